//! The paths of all files (docs/architecture.md, "On disk"): the one place that turns the
//! environment into paths. It is a pure function, so that a client and a daemon with the same
//! environment always use the same socket.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// The kernel takes socket paths shorter than this.
const SUN_PATH: usize = 108;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// `$XDG_STATE_HOME/muleteer`: one daemon per such directory.
    pub state_dir: PathBuf,
    /// The directory of the daemon's socket, 0700.
    pub runtime_dir: PathBuf,
    /// The daemon's socket, 0600.
    pub socket: PathBuf,
    /// `$XDG_CONFIG_HOME/muleteer`.
    pub config_dir: PathBuf,
    /// `$XDG_CACHE_HOME/muleteer`.
    pub cache_dir: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("HOME is not set to an absolute path, and {0} is not set either")]
    NoHome(&'static str),
    #[error(
        "the socket's path has {} bytes, but the system allows at most {}: {}",
        .0.as_os_str().len(), SUN_PATH - 1, .0.display()
    )]
    SocketTooLong(PathBuf),
}

impl PathError {
    /// Returns what the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoHome(_) => "set HOME, or the XDG_… directories, to absolute paths",
            Self::SocketTooLong(_) => {
                "set XDG_RUNTIME_DIR to a shorter path (or unset it, to use a private directory in \
                 /tmp), or give a shorter --socket"
            }
        }
    }
}

/// Checks that the system accepts a socket's path.
///
/// # Errors
/// When it is too long.
pub fn check_socket(path: &Path) -> Result<(), PathError> {
    if path.as_os_str().len() >= SUN_PATH {
        Err(PathError::SocketTooLong(path.into()))
    } else {
        Ok(())
    }
}

impl Paths {
    /// Derives the paths from the process's environment and user. [`check_socket`] checks the
    /// length of the socket's path, because verbs without a daemon work with any.
    ///
    /// # Errors
    /// When there is neither an XDG directory nor a HOME.
    pub fn from_env() -> Result<Self, PathError> {
        Self::resolve(
            &|name| std::env::var_os(name),
            rustix::process::getuid().as_raw(),
            &canonical,
        )
    }

    /// Returns paths that do not exist, for verbs that work without HOME.
    pub fn nowhere() -> Self {
        let env = |name: &str| (name == "HOME").then(|| "/nonexistent".into());
        Self::resolve(&env, rustix::process::getuid().as_raw(), &Path::to_path_buf)
            .unwrap_or_else(|_| unreachable!())
    }

    /// Does the same as [`Self::from_env`] for any environment. `canonical` maps all names of a
    /// directory (symlinks, `..`) to one, so that they share one socket.
    ///
    /// # Errors
    /// Those of [`Self::from_env`].
    pub fn resolve(
        env: &dyn Fn(&str) -> Option<OsString>,
        uid: u32,
        canonical: &dyn Fn(&Path) -> PathBuf,
    ) -> Result<Self, PathError> {
        // The XDG specification says that relative paths are invalid and must be ignored.
        let absolute = |name: &str| env(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let base = |name: &'static str, under_home: &str| {
            let home = || absolute("HOME").map(|home| home.join(under_home));
            absolute(name).or_else(home).ok_or(PathError::NoHome(name))
        };
        let state_dir = canonical(&base("XDG_STATE_HOME", ".local/state")?.join("muleteer"));
        let runtime = match absolute("XDG_RUNTIME_DIR") {
            Some(dir) => dir.join("muleteer"),
            None => PathBuf::from(format!("/tmp/muleteer-{uid}")),
        };
        let runtime_dir = runtime.join(format!("{:08x}", fnv1a(state_dir.as_os_str().as_bytes())));
        Ok(Self {
            state_dir,
            socket: runtime_dir.join("daemon.sock"),
            runtime_dir,
            config_dir: base("XDG_CONFIG_HOME", ".config")?.join("muleteer"),
            cache_dir: base("XDG_CACHE_HOME", ".cache")?.join("muleteer"),
        })
    }

    /// The event log, which is the truth.
    pub fn events(&self) -> PathBuf {
        self.state_dir.join("events.jsonl")
    }

    /// The cost and the outcome of each dispatch, by day.
    pub fn metrics(&self) -> PathBuf {
        self.state_dir.join("metrics")
    }

    /// The lock that the one daemon of this state directory holds; never unlinked.
    pub fn daemon_lock(&self) -> PathBuf {
        self.state_dir.join("daemon.lock")
    }

    /// The disk space that is reserved for a start on a full disk.
    pub fn reserve(&self) -> PathBuf {
        self.state_dir.join("reserve")
    }

    /// This file is not empty if the last daemon crashed.
    pub fn crashed(&self) -> PathBuf {
        self.state_dir.join("daemon.crashed")
    }

    /// The key that an operator's client presents (docs/design/permissions-and-trust.md).
    pub fn operator_key(&self) -> PathBuf {
        self.state_dir.join("operator.key")
    }

    /// The records of the repositories whose configuration the user trusts.
    pub fn trust(&self) -> PathBuf {
        self.state_dir.join("trust")
    }

    /// The copies of the person's global git configuration.
    pub fn git(&self) -> PathBuf {
        self.state_dir.join("gitconfig")
    }

    /// The git configuration of agents for whom git finds no name.
    pub fn identity(&self) -> PathBuf {
        self.state_dir.join("identity")
    }

    /// The notifications that were sent, and those that are due.
    pub fn notifications(&self) -> PathBuf {
        self.state_dir.join("notify.json")
    }

    pub fn database(&self) -> PathBuf {
        self.state_dir.join("muleteer.db")
    }

    pub fn logs(&self) -> PathBuf {
        self.state_dir.join("logs")
    }

    /// The output of a daemon that was started on demand.
    pub fn daemon_log(&self) -> PathBuf {
        self.logs().join("daemon.log")
    }

    pub fn agents(&self) -> PathBuf {
        self.state_dir.join("agents")
    }

    /// The folder of one agent; `id` is the id of its dispatch.
    pub fn agent(&self, id: &str) -> PathBuf {
        self.agents().join(id)
    }

    /// The number of the newest event of which no ended dispatch has keys in its files.
    pub fn secrets_mark(&self) -> PathBuf {
        self.state_dir.join("secrets.mark")
    }

    /// The private folders of runs: their hubs, and the environment of their agents.
    pub fn runs(&self) -> PathBuf {
        self.state_dir.join("runs")
    }

    pub fn run(&self, id: &str) -> PathBuf {
        self.runs().join(id)
    }

    /// Data of task-list runs beyond the events. It is private, because it may hold secrets.
    pub fn task_lists(&self) -> PathBuf {
        self.state_dir.join("task-lists")
    }

    /// The private folder of an adapter: the mark of its processes, and its working directory.
    pub fn adapter(&self, name: &str) -> PathBuf {
        self.state_dir.join("adapters").join(name)
    }

    /// The private folder of a thread: the template of its dispatches, and attached files.
    pub fn thread(&self, id: &str) -> PathBuf {
        self.state_dir.join("threads").join(id)
    }

    /// The template of a thread's dispatches.
    pub fn thread_request(&self, id: &str) -> PathBuf {
        self.thread(id).join("request.json")
    }

    /// The folder with the output of one agent, which can be read while its shim writes.
    pub fn spool(&self, id: &str) -> PathBuf {
        muleteer_shim::spool::dir_of(&self.agent(id))
    }

    pub fn config_file(&self) -> PathBuf {
        self.config_dir.join("config.yaml")
    }
}

/// Resolves symlinks in the existing part of a path. The missing part stays as written, so the
/// result does not change when it is created.
fn canonical(path: &Path) -> PathBuf {
    let mut missing = Vec::new();
    let mut there = path;
    loop {
        if let Ok(real) = there.canonicalize() {
            return missing.iter().rev().fold(real, |path, part| path.join(part));
        }
        match (there.components().next_back(), there.parent()) {
            (Some(Component::Normal(name)), Some(parent)) => {
                missing.push(name.to_os_string());
                there = parent;
            }
            _ => return path.to_path_buf(),
        }
    }
}

/// FNV-1a, 32 bits. It only separates the sockets of different state directories, and keeps their
/// paths short. If two collide, the lock in the state directory rejects the second daemon.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(vars: &[(&str, &str)]) -> Result<Paths, PathError> {
        let env = |name: &str| {
            vars.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        };
        Paths::resolve(&env, 1000, &Path::to_path_buf)
    }

    #[test]
    fn a_bare_home_is_enough() {
        let paths = paths(&[("HOME", "/home/u")]).expect("paths");
        assert_eq!(paths.state_dir, Path::new("/home/u/.local/state/muleteer"));
        assert_eq!(paths.config_dir, Path::new("/home/u/.config/muleteer"));
        assert_eq!(paths.cache_dir, Path::new("/home/u/.cache/muleteer"));
        // The hash is part of the contract between versions of client and daemon.
        assert_eq!(paths.socket, Path::new("/tmp/muleteer-1000/6dd8fe7f/daemon.sock"));
    }

    #[test]
    fn xdg_directories_win_and_relative_ones_are_ignored() {
        let paths = paths(&[
            ("HOME", "/home/u"),
            ("XDG_STATE_HOME", "/s"),
            ("XDG_CONFIG_HOME", "relative"),
            ("XDG_RUNTIME_DIR", "/run/user/1000"),
        ])
        .expect("paths");
        assert_eq!(paths.state_dir, Path::new("/s/muleteer"));
        assert_eq!(paths.config_dir, Path::new("/home/u/.config/muleteer"));
        assert!(paths.socket.starts_with("/run/user/1000/muleteer"), "{paths:?}");
    }

    #[test]
    fn different_state_directories_have_different_sockets() {
        let socket =
            |state| paths(&[("HOME", "/h"), ("XDG_STATE_HOME", state)]).expect("paths").socket;
        assert_ne!(socket("/a"), socket("/b"));
    }

    #[test]
    fn missing_home_and_long_runtime_directory_are_named_errors() {
        assert_eq!(paths(&[]), Err(PathError::NoHome("XDG_STATE_HOME")));
        let deep = format!("/{}", "d".repeat(90));
        let socket = paths(&[("HOME", "/h"), ("XDG_RUNTIME_DIR", &deep)]).expect("paths").socket;
        assert_eq!(check_socket(&socket), Err(PathError::SocketTooLong(socket.clone())));
        let [longest, longer] =
            [107, 108].map(|len| PathBuf::from(format!("/{}", "s".repeat(len - 1))));
        assert_eq!(check_socket(&longest), Ok(()));
        assert!(check_socket(&longer).is_err());
        assert!(Paths::nowhere().state_dir.starts_with("/nonexistent"));
    }

    #[test]
    fn canonical_path_is_stable_when_the_directory_is_created() {
        let root = std::env::temp_dir().join(format!("muleteer-paths-{}", std::process::id()));
        let path = root.join("a/b");
        let before = canonical(&path);
        std::fs::create_dir_all(&path).expect("make");
        let after = canonical(&path);
        std::fs::remove_dir_all(&root).expect("remove");
        assert_eq!(before, after);
    }
}
