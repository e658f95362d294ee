//! Looks for the signs of a container. The model interprets them
//! ([`muleteer_model::doctor::container`]).

use muleteer_model::doctor::container::{MARKERS, Signs};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::LazyLock;

/// The limit for reading a file of `/proc`.
const LIMIT: u64 = 64 * 1024;

/// Whether this machine is a container. This cannot change while a daemon runs.
pub fn is_container() -> bool {
    static FOUND: LazyLock<bool> = LazyLock::new(|| {
        let found = signs().of_container();
        if let Some(sign) = &found {
            tracing::info!(%sign, "this machine is a container");
        }
        found.is_some()
    });
    *FOUND
}

fn signs() -> Signs {
    let read = |path: &str| {
        let mut bytes = Vec::new();
        // Another user's process cannot be read, which is no sign.
        let _ = File::open(path).and_then(|file| file.take(LIMIT).read_to_end(&mut bytes));
        bytes
    };
    Signs {
        markers: MARKERS
            .iter()
            .filter(|path| Path::new(path).exists())
            .map(|path| (*path).to_string())
            .collect(),
        first_environ: read("/proc/1/environ"),
        first_cgroup: String::from_utf8_lossy(&read("/proc/1/cgroup")).into_owned(),
        kubernetes: std::env::var_os("KUBERNETES_SERVICE_HOST")
            .is_some_and(|host| !host.is_empty()),
    }
}
