//! Facts that the system reports, and results of trying its features.

use crate::doctor::ask::probe;
use muleteer_model::doctor::{InotifyFacts, Tried};
use muleteer_store::removal::remove_tree;
use rustix::process::{Resource, getrlimit};
use std::path::Path;
use std::time::Duration;

const PROBE_DEADLINE: Duration = Duration::from_secs(10);

pub(super) async fn namespaces(own: &Path) -> Option<Tried> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    Some(probe(own, &["namespaces"], PROBE_DEADLINE).await)
}

/// Tries an overlay beside the private HOMEs of agents. `None` if there is no state directory yet,
/// whose file system decides.
pub(super) async fn overlays(own: &Path, state_dir: &Path) -> Option<Tried> {
    if !cfg!(target_os = "linux") || !state_dir.is_dir() {
        return None;
    }
    let base = state_dir.join(format!("doctor-{}", std::process::id()));
    let layers = ["lower", "changes", "work"].map(|name| base.join(name));
    // The kernel makes a folder in the work folder that its owner may not read.
    let remove = || drop(remove_tree(&base, PROBE_DEADLINE));
    // An earlier process may have had the same id.
    remove();
    let made =
        std::fs::create_dir(&base).and_then(|()| layers.iter().try_for_each(std::fs::create_dir));
    let names: Option<Vec<&str>> = layers.iter().map(|layer| layer.to_str()).collect();
    let tried = match (made, names.as_deref()) {
        (Ok(()), Some([lower, changes, work])) => {
            probe(own, &["overlays", lower, changes, work], PROBE_DEADLINE).await
        }
        (Err(error), _) => Err(format!("{}: {error}", base.display()).into()),
        _ => Err(format!("{} is not UTF-8", base.display()).into()),
    };
    remove();
    Some(tried)
}

pub(super) async fn landlock(own: &Path) -> Option<Tried> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    // Two directories side by side: the probe may write to one and not to the other.
    let base = std::env::temp_dir().join(format!("muleteer-doctor-{}", std::process::id()));
    let (allowed, forbidden) = (base.join("allowed"), base.join("forbidden"));
    let made = std::fs::create_dir(&base)
        .and_then(|()| std::fs::create_dir(&allowed))
        .and_then(|()| std::fs::create_dir(&forbidden));
    let tried = match (made, allowed.to_str(), forbidden.to_str()) {
        (Ok(()), Some(allowed), Some(forbidden)) => {
            probe(own, &["landlock", allowed, forbidden], PROBE_DEADLINE).await
        }
        (Err(error), ..) => Err(format!("{}: {error}", base.display()).into()),
        _ => Err(format!("{} is not UTF-8", base.display()).into()),
    };
    let _ = std::fs::remove_dir_all(&base);
    Some(tried)
}

/// Returns the soft and the hard limit; without a limit it is the largest number.
pub(super) fn open_files() -> (u64, u64) {
    let limit = getrlimit(Resource::Nofile);
    (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX))
}

/// Returns the limit. `None` if there is no limit, and for root, to whom it does not apply.
pub(super) fn processes() -> Option<u64> {
    if rustix::process::getuid().is_root() {
        return None;
    }
    getrlimit(Resource::Nproc).current
}

#[cfg(target_os = "linux")]
pub(super) fn inotify() -> Option<InotifyFacts> {
    use rustix::fs::inotify;
    let limit = |name: &str| {
        let text =
            std::fs::read_to_string(format!("/proc/sys/fs/inotify/{name}")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    let available = inotify::init(inotify::CreateFlags::CLOEXEC)
        .map(|_| String::new())
        .map_err(|error| std::io::Error::from(error).to_string().into());
    Some(InotifyFacts {
        available,
        max_instances: limit("max_user_instances"),
        max_watches: limit("max_user_watches"),
    })
}

#[cfg(not(target_os = "linux"))]
pub(super) fn inotify() -> Option<InotifyFacts> {
    None
}
