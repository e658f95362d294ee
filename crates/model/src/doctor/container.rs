//! Detects whether this machine is a container, by the traces of container engines.

/// The gathered signs, without any judgement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signs {
    /// Existing marker files, such as `/.dockerenv`.
    pub markers: Vec<String>,
    /// The environment of process 1, from `/proc/1/environ`.
    pub first_environ: Vec<u8>,
    /// `/proc/1/cgroup`.
    pub first_cgroup: String,
    /// The daemon's own environment has a Kubernetes variable.
    pub kubernetes: bool,
}

/// Files that only container engines create.
pub const MARKERS: [&str; 3] = ["/.dockerenv", "/run/.containerenv", "/run/systemd/container"];

/// Parts of cgroup paths that only container engines create.
const CGROUPS: [&str; 6] = ["/docker", "/kubepods", "/containerd", "/lxc", "/libpod", "/crio"];

impl Signs {
    /// Returns the sign of a container; `None` on a physical or virtual machine.
    pub fn of_container(&self) -> Option<String> {
        if let Some(marker) = self.markers.first() {
            return Some(marker.clone());
        }
        // systemd-nspawn, podman and LXC set `container=`.
        let variables = self.first_environ.split(|byte| *byte == 0);
        let named = variables
            .filter_map(|text| text.strip_prefix(b"container="))
            .find(|value| !value.is_empty());
        if let Some(engine) = named {
            return Some(format!("container={}", String::from_utf8_lossy(engine)));
        }
        if self.kubernetes {
            return Some("KUBERNETES_SERVICE_HOST".into());
        }
        let paths = self.first_cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        let of_engine = |path: &&str| CGROUPS.iter().any(|part| path.contains(part));
        let mut found = paths.filter(of_engine);
        found.next().map(|path| format!("/proc/1/cgroup: {path}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_leave_signs_and_machines_do_not() {
        let none = Signs::default();
        let environ =
            |text: &str| Signs { first_environ: text.as_bytes().to_vec(), ..Signs::default() };
        let cgroup = |text: &str| Signs { first_cgroup: text.into(), ..Signs::default() };
        for (signs, said) in [
            (Signs { markers: vec!["/.dockerenv".into()], ..none.clone() }, Some("/.dockerenv")),
            (environ("PATH=/bin\0container=podman\0"), Some("container=podman")),
            (Signs { kubernetes: true, ..none.clone() }, Some("KUBERNETES_SERVICE_HOST")),
            (cgroup("12:pids:/docker/0a1b\n"), Some("/proc/1/cgroup: /docker/0a1b")),
            (environ("container=\0containers=3\0"), None),
            (cgroup("0::/init.scope\n"), None),
            (none, None),
        ] {
            assert_eq!(signs.of_container().as_deref(), said, "{signs:?}");
        }
    }
}
