//! What `muleteer doctor` makes of the facts it gathered: for each check whether all is well, what
//! is wrong, what to do about it, and what is best effort on this machine.
//!
//! Judging is apart from gathering, so that every verdict stands in a table of tests and none needs
//! a broken machine.

pub mod container;

mod agents;
mod host;

mod places;
#[cfg(test)]
mod tests;

pub use agents::answer;
pub use host::open_files_for;
use serde::Serialize;
use std::path::PathBuf;

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: String,
    pub status: Status,
    /// What was found; where something is wrong, what.
    pub message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// What Muleteer does here instead of what it would do elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_effort: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Ok,
    /// Does not apply here, or was not asked for.
    Skip,
    /// Works, with less than it could have.
    Warn,
    /// Something will not work until it is mended.
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
        Self { name: name.into(), status, message: message.into(), hint: None, best_effort: None }
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

/// Everything that was found out. No field is an opinion.
#[derive(Debug, Clone)]
pub struct Facts {
    /// `linux`, `macos`, …
    pub os: String,
    pub uid: u32,
    /// This program's version.
    pub version: String,
    pub backends: Vec<BackendFacts>,
    pub git: Program,
    pub identity: IdentityFacts,
    pub config: Result<Vec<String>, String>,
    pub trust: TrustFacts,
    pub state_dir: DirFacts,
    pub runtime_dir: DirFacts,
    /// The one above, which several daemons of one user share: whoever may write there can put
    /// another in its place.
    pub runtime_parent: DirFacts,
    pub events: EventFacts,
    pub database: DatabaseFacts,
    pub operator_key: Option<FileFacts>,
    pub daemon: DaemonFacts,
    pub shim: Result<ShimFacts, String>,
    pub sandbox: SandboxFacts,
    pub containment: ContainmentFacts,
    pub service: ServiceFacts,
    pub limits: LimitFacts,
    pub telemetry: TelemetryFacts,
}

/// What became of `PROGRAM --version`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    Missing,
    Answered {
        path: PathBuf,
        said: String,
        ms: u64,
    },
    /// It had not ended by the deadline, and was ended.
    Silent {
        path: PathBuf,
        after_s: u64,
    },
    Failed {
        path: PathBuf,
        error: String,
    },
    /// A configured command line, which nobody but its author may run: it was only looked up.
    NotAsked {
        path: PathBuf,
        why: String,
    },
    /// Which program it is cannot be said: why.
    Unknown(String),
}

/// Whom git names as the author of a commit that is made here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentityFacts {
    Is(String),
    /// Why there is none.
    None(String),
    /// git could not be asked.
    Unknown,
}

/// What the configuration of the repository that this is asked in names, by key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustFacts {
    /// Ignored, because the user has not trusted it.
    pub ignored: Vec<String>,
    /// Trusted, and not run by the doctor.
    pub not_run: Vec<String>,
}

#[derive(Debug, Clone)]
pub struct BackendFacts {
    pub name: String,
    /// What was looked for on PATH.
    pub program: String,
    /// How to get it.
    pub get: String,
    /// The keys of the configuration that want it: without it, what they are about does not start.
    pub named_by: Vec<String>,
    pub found: Program,
}

#[derive(Debug, Clone)]
pub struct DirFacts {
    pub path: PathBuf,
    pub there: There,
    /// Its name as a socket's address would have it, in bytes.
    pub socket_len: Option<usize>,
}

#[derive(Debug, Clone)]
pub enum There {
    /// Not yet. Whether it can be made, as the nearest directory above has it.
    Missing(Result<(), Barred>),
    Broken(String),
    Dir(DirState),
}

/// Why nothing can be written or made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Barred {
    pub why: String,
    /// No right that could be given would help.
    pub read_only: bool,
}

/// What came of reading the whole log, as the next daemon will.
#[derive(Debug, Clone)]
pub enum EventFacts {
    None,
    Read {
        records: u64,
    },
    Slow {
        after_s: u64,
    },
    /// What is wrong, with the place, and what to do.
    Broken {
        error: String,
        hint: String,
    },
}

#[derive(Debug, Clone)]
pub enum DatabaseFacts {
    None,
    /// The newest record it holds.
    Read {
        applied: u64,
    },
    /// Damaged, which costs nothing: it is made again from the log.
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
    /// `nfs`, `fuse`, …: a file system whose locks may not hold. None where they do.
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
    /// It said so itself.
    Answers { pid: u32, version: String, socket: PathBuf, exports: Option<Exports> },
    /// A socket that nobody listens on: a dead daemon's, taken over by the next one.
    Left { socket: PathBuf },
    /// Something is there and does not answer.
    Mute { socket: PathBuf, error: String },
}

/// What a running daemon does with its spans. None: it does not say (an older one, or not to an
/// agent).
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

/// Whether something worked when it was done in a child: the step that failed, and the system's
/// word.
pub type Tried = Result<String, String>;

#[derive(Debug, Clone)]
pub struct SandboxFacts {
    /// A user, mount and pid namespace was made, and something mounted in it. None: not on this
    /// system.
    pub namespaces: Option<Tried>,
    /// A file outside the allowed tree could not be written. `Ok` says how much was enforced.
    pub landlock: Option<Tried>,
}

#[derive(Debug, Clone)]
pub struct ContainmentFacts {
    pub pidfd: bool,
    pub subreaper: bool,
    pub parent_death_signal: bool,
    /// A cgroup of our own could be made (and was removed).
    pub cgroup: Tried,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceFacts {
    /// No service manager that we know.
    None,
    Systemd {
        user: String,
        linger: bool,
        /// Our unit is there; `Some(active)`.
        unit: Option<String>,
    },
    Launchd {
        loaded: bool,
    },
}

#[derive(Debug, Clone)]
pub struct LimitFacts {
    /// Soft and hard.
    pub open_files: (u64, u64),
    pub processes: Option<u64>,
    pub max_agents: u32,
    pub inotify: Option<InotifyFacts>,
}

#[derive(Debug, Clone)]
pub struct InotifyFacts {
    /// Another instance could be had.
    pub available: Tried,
    pub max_instances: u64,
    pub max_watches: u64,
}

/// What is set for whoever asks; where nothing is, what the running daemon has.
#[derive(Debug, Clone)]
pub enum TelemetryFacts {
    Off,
    /// An endpoint is named, and `OTEL_SDK_DISABLED` says no.
    Disabled,
    /// Connected within the deadline.
    Reached {
        endpoint: String,
        ms: u64,
        /// What was asked for and is not done.
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

/// Every check, in the order a person reads them.
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
    checks.push(host::landlock(facts));
    checks.push(host::containment(facts));
    checks.push(host::cgroup(facts));
    checks.push(host::service(facts));
    checks.push(host::inotify(facts));
    checks.push(host::open_files(&facts.limits));
    checks.push(host::processes(&facts.limits));
    checks.push(agents::telemetry(facts));
    checks
}

/// Nothing fails.
pub fn is_well(checks: &[Check]) -> bool {
    checks.iter().all(|check| check.status != Status::Fail)
}
