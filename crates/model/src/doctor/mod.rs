//! Turns the facts of `muleteer doctor` into checks: each says whether all is well, what is wrong,
//! how to fix it, and what is best effort on this machine.
//!
//! Judging is separate from gathering, so that tables test every verdict without a broken machine.

pub mod container;

mod agents;
mod host;

mod places;
#[cfg(test)]
mod tests;

use crate::agent::capability::Features;
pub use agents::answer;
pub use host::open_files_for;
use serde::Serialize;
use std::path::PathBuf;

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: String,
    pub status: Status,
    /// The finding, or the problem.
    pub message: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The substitute for a feature that this machine lacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_effort: Option<String>,
    /// The capabilities of the agent that was found, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Features>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Ok,
    /// Does not apply here, or was not requested.
    Skip,
    /// Works, with less than the full features.
    Warn,
    /// Does not work until it is fixed.
    Fail,
}

impl Status {
    pub const ALL: [Self; 4] = [Self::Ok, Self::Warn, Self::Fail, Self::Skip];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skip => "skip",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

impl Check {
    fn new(name: impl Into<String>, status: Status, message: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            status,
            message: message.into(),
            hint: None,
            best_effort: None,
            capabilities: None,
        }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    fn best_effort(mut self, what: impl Into<String>) -> Self {
        self.best_effort = Some(what.into());
        self
    }
}

/// All gathered facts, without any judgement.
#[derive(Debug, Clone)]
pub struct Facts {
    /// `linux`, `macos`, …
    pub os: String,
    pub uid: u32,
    /// The version of this program.
    pub version: String,
    pub backends: Vec<BackendFacts>,
    pub git: Program,
    pub identity: IdentityFacts,
    pub config: Result<Vec<String>, Cause>,
    pub trust: TrustFacts,
    pub state_dir: DirFacts,
    pub runtime_dir: DirFacts,
    /// The parent directory, which several daemons of one user share. A user who may write there
    /// could replace the runtime directory.
    pub runtime_parent: DirFacts,
    pub events: EventFacts,
    pub database: DatabaseFacts,
    pub operator_key: Option<FileFacts>,
    pub daemon: DaemonFacts,
    pub shim: Result<ShimFacts, Cause>,
    pub sandbox: SandboxFacts,
    pub containment: ContainmentFacts,
    pub service: ServiceFacts,
    /// The adapters that the configuration enables.
    pub adapters: Vec<String>,
    /// The schedules that the user's configuration enables.
    pub schedules: Vec<String>,
    pub limits: LimitFacts,
    pub telemetry: TelemetryFacts,
    pub notify: NotifyFacts,
}

/// The channels of notifications.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NotifyFacts {
    pub channels: Vec<String>,
    /// The channels whose newest try failed, with the error.
    pub failing: Vec<(String, String)>,
}

/// The result of `PROGRAM --version`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    Missing,
    Answered {
        path: PathBuf,
        said: String,
        ms: u64,
    },
    /// It did not end by the deadline, and was terminated.
    Silent {
        path: PathBuf,
        after_s: u64,
    },
    Failed {
        path: PathBuf,
        error: String,
    },
    /// A configured command line that the doctor must not run. It was only looked up.
    NotAsked {
        path: PathBuf,
        why: String,
    },
    /// It cannot be determined which program it is; the reason.
    Unknown(String),
}

/// The author that git would name in a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentityFacts {
    Is(String),
    /// The reason why there is no author.
    None(String),
    /// git could not be run.
    Unknown,
}

/// The keys in the configuration of the current repository that need trust.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustFacts {
    /// Ignored, because the user has not trusted the repository.
    pub ignored: Vec<String>,
    /// Trusted, but not run by the doctor.
    pub not_run: Vec<String>,
}

#[derive(Debug, Clone)]
pub struct BackendFacts {
    pub name: String,
    /// The program that was looked up on PATH.
    pub program: String,
    /// How to install it.
    pub get: String,
    /// The configuration keys that need it.
    pub named_by: Vec<String>,
    pub found: Program,
}

#[derive(Debug, Clone)]
pub struct DirFacts {
    pub path: PathBuf,
    pub there: There,
    /// The length of its path as a socket address, in bytes.
    pub socket_len: Option<usize>,
}

#[derive(Debug, Clone)]
pub enum There {
    /// Missing. Whether it can be created, according to the nearest existing directory above.
    Missing(Result<(), Barred>),
    Broken(String),
    Dir(DirState),
}

/// Why a place cannot be written or created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Barred {
    pub why: String,
    /// The file system is read-only, so no permission would help.
    pub read_only: bool,
}

/// The result of reading the whole log, as the next daemon will.
#[derive(Debug, Clone)]
pub enum EventFacts {
    None,
    Read {
        records: u64,
    },
    Slow {
        after_s: u64,
    },
    /// The error with its position, and the remedy.
    Broken {
        error: String,
        hint: String,
    },
}

#[derive(Debug, Clone)]
pub enum DatabaseFacts {
    None,
    /// The newest record in it.
    Read {
        applied: u64,
    },
    /// Damaged. It is rebuilt from the log without loss.
    Damaged(String),
    Broken {
        error: String,
        hint: String,
    },
}

#[derive(Debug, Clone)]
pub struct DirState {
    pub uid: u32,
    pub mode: u32,
    pub writable: Result<(), Barred>,
    pub free_bytes: u64,
    /// `nfs`, `fuse`, …: a file system whose locks may not work. `None` for others.
    pub doubtful_fs: Option<String>,
}

#[derive(Debug, Clone)]
pub struct FileFacts {
    pub path: PathBuf,
    pub uid: u32,
    pub mode: u32,
}

#[derive(Debug, Clone)]
pub enum DaemonFacts {
    /// Neither a socket nor a held lock.
    None,
    /// The facts come from the daemon itself.
    Answers { pid: u32, version: String, socket: PathBuf, exports: Option<Exports> },
    /// A socket of a dead daemon; the next one takes it over.
    Left { socket: PathBuf },
    /// A socket or lock exists, but no daemon answers.
    Mute { socket: PathBuf, error: String },
}

/// The target of a running daemon's spans. `None` if it does not report it: an older daemon, or a
/// client that is an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exports {
    Nothing,
    To(String),
}

#[derive(Debug, Clone)]
pub struct ShimFacts {
    pub path: PathBuf,
    /// The small binary, not `muleteer shim`.
    pub own_binary: bool,
}

/// The cause of a failure, as the system or a child process states it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Cause(String);

impl From<&str> for Cause {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Cause {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// The result of an attempt in a child process. The error has the failed step and the system's
/// message.
pub type Tried = Result<String, Cause>;

#[derive(Debug, Clone)]
pub struct SandboxFacts {
    /// A user, mount and pid namespace was created, with a mount in it. `None` if the system has
    /// none.
    pub namespaces: Option<Tried>,
    /// A folder was shown as an overlay, and a change of it stayed apart. `None` if the system has
    /// none, or if there is no state directory whose file system could be tried.
    pub overlays: Option<Tried>,
    /// A file outside the allowed tree could not be written. `Ok` has the enforced level.
    pub landlock: Option<Tried>,
}

#[derive(Debug, Clone)]
pub struct ContainmentFacts {
    pub pidfd: bool,
    pub subreaper: bool,
    pub parent_death_signal: bool,
    /// A cgroup could be created (and was removed).
    pub cgroup: Tried,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceFacts {
    /// No known service manager.
    None,
    Systemd {
        user: String,
        linger: bool,
        /// The state of Muleteer's unit, such as `active`, if it is installed.
        unit: Option<String>,
    },
    Launchd {
        loaded: bool,
    },
}

#[derive(Debug, Clone)]
pub struct LimitFacts {
    /// The soft and the hard limit.
    pub open_files: (u64, u64),
    pub processes: Option<u64>,
    pub max_agents: u32,
    pub inotify: Option<InotifyFacts>,
}

#[derive(Debug, Clone)]
pub struct InotifyFacts {
    /// Another instance could be created.
    pub available: Tried,
    pub max_instances: u64,
    pub max_watches: u64,
}

/// The settings of the caller or, without any, those of the running daemon.
#[derive(Debug, Clone)]
pub enum TelemetryFacts {
    Off,
    /// An endpoint is set, but `OTEL_SDK_DISABLED` is true.
    Disabled,
    /// A connection succeeded within the deadline.
    Reached {
        endpoint: String,
        ms: u64,
        /// Requested settings that are not supported.
        unheeded: Vec<String>,
    },
    Unreachable {
        endpoint: String,
        error: String,
    },
    BadEndpoint {
        endpoint: String,
        error: String,
    },
}

/// Returns all checks in the order of the output.
pub fn judge(facts: &Facts) -> Vec<Check> {
    let mut checks = agents::backends(&facts.backends);
    checks.push(agents::git(&facts.git));
    checks.push(agents::identity(&facts.identity));
    checks.push(agents::config(&facts.config));
    checks.extend(agents::trust(&facts.trust));
    checks.push(places::state_dir(facts));
    checks.push(places::runtime_dir(facts));
    checks.push(places::operator_key(facts));
    checks.push(places::events(&facts.events));
    checks.push(places::database(&facts.database));
    checks.push(places::daemon(facts));
    checks.push(places::shim(&facts.shim));
    checks.push(host::namespaces(facts));
    checks.push(host::overlays(facts));
    checks.push(host::landlock(facts));
    checks.push(host::containment(facts));
    checks.push(host::cgroup(facts));
    checks.push(host::service(facts));
    checks.push(host::inotify(facts));
    checks.push(host::open_files(&facts.limits));
    checks.push(host::processes(&facts.limits));
    checks.push(agents::telemetry(facts));
    checks.push(agents::notify(facts));
    checks
}

/// Returns whether no check fails.
pub fn is_well(checks: &[Check]) -> bool {
    checks.iter().all(|check| check.status != Status::Fail)
}
