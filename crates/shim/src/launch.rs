//! `launch-<epoch>.json`: all the data that a shim needs. The daemon writes it before it starts the
//! shim, with mode 0600, because the agent's environment may contain secrets.

use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The `v` that this build writes, and the newest that it reads. Since 2 the shim's key and
/// identity are in the lock file.
pub const VERSION: u16 = 2;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    pub v: u16,
    /// One more than any epoch of this agent directory so far; from 1.
    pub epoch: u32,
    /// The generation of the daemon that starts it. Only this daemon or a newer one may command the
    /// shim.
    pub generation: u64,
    /// Added to the agent's environment as `MULETEER_NONCE`, by which its processes are found
    /// again. Only ASCII letters, digits, `-` and `_`.
    pub nonce: String,
    /// The program and its arguments. It is searched on the `PATH` of `env` unless it has a slash.
    pub argv: Vec<String>,
    /// The agent's whole environment; the agent inherits nothing from the shim.
    pub env: Vec<(String, String)>,
    /// Absolute.
    pub cwd: PathBuf,
    #[serde(default)]
    pub stdin: StdinMode,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default)]
    pub spool: SpoolLimits,
    #[serde(default)]
    pub timing: Timing,
    /// Try to give the agent its own cgroup.
    #[serde(default = "yes")]
    pub cgroup: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StdinMode {
    /// Open until a `WriteStdin` with `close`, or the end of the lease, closes it.
    #[default]
    Pipe,
    /// `/dev/null`.
    Null,
}

/// The folder in the agent's directory that holds its HOME, if that is private.
pub const PRIVATE: &str = "private";

/// Limits that the shim enforces alone, with or without a daemon. Zero means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Awake time since the start, in milliseconds.
    pub deadline_ms: u64,
    /// The most processes of this agent at once, sampled.
    pub max_procs: u32,
    /// The most resident bytes of all of them together, sampled.
    pub max_memory_bytes: u64,
    /// The most bytes on disk of the folder [`PRIVATE`], sampled.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_private_bytes: u64,
    /// The cgroup has the same limits of processes and memory, where that is possible. Then these
    /// are not sampled.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hard: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpoolLimits {
    pub segment_bytes: u64,
    /// At this size on disk the shim stops reading the agent's output.
    pub cap_bytes: u64,
    /// How many bytes are kept although they are acknowledged.
    pub retain_bytes: u64,
}

impl Default for SpoolLimits {
    fn default() -> Self {
        Self { segment_bytes: 32 << 20, cap_bytes: 1 << 30, retain_bytes: 64 << 20 }
    }
}

impl SpoolLimits {
    /// Returns limits that can be kept. With too large segments, or too much retained, a full spool
    /// could never shrink. Segments are deleted as a whole, so they are small if little is
    /// retained.
    pub fn sane(self) -> Self {
        const SMALL: u64 = 1 << 20;
        let cap_bytes = self.cap_bytes.max(64 << 10);
        let segment_bytes = self
            .segment_bytes
            .min((self.retain_bytes / 2).max(SMALL))
            .clamp(4 << 10, cap_bytes / 4);
        Self { cap_bytes, segment_bytes, retain_bytes: self.retain_bytes.min(cap_bytes / 4) }
    }
}

/// Milliseconds of awake time. Tests shorten them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Timing {
    /// Without a heartbeat for this long, the shim closes stdin and begins to end the agent.
    pub lease_ms: u64,
    /// The time from closing stdin to TERM, so that a CLI can finish its turn.
    pub lease_grace_ms: u64,
    /// The time from TERM to KILL, except for [`Terminate`](muleteer_protocol::shim::v1::ToShim),
    /// which names its own.
    pub term_grace_ms: u64,
    /// The time from KILL until the shim gives up on processes that do not die.
    pub kill_grace_ms: u64,
    /// The interval of sampling processes and memory, if they are limited.
    pub sample_ms: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            lease_ms: 3_600_000,
            lease_grace_ms: 600_000,
            term_grace_ms: 10_000,
            kill_grace_ms: 30_000,
            sample_ms: 2_000,
        }
    }
}

impl Launch {
    /// Returns a launch with default limits.
    pub fn new(
        epoch: u32,
        generation: u64,
        nonce: String,
        argv: Vec<String>,
        cwd: PathBuf,
    ) -> Self {
        Self {
            v: VERSION,
            epoch,
            generation,
            nonce,
            argv,
            env: vec![],
            cwd,
            stdin: StdinMode::default(),
            limits: Limits::default(),
            spool: SpoolLimits::default(),
            timing: Timing::default(),
            cgroup: true,
        }
    }

    /// Returns the file's path in the agent's directory.
    pub fn path(dir: &Path, epoch: u32) -> PathBuf {
        dir.join(format!("launch-{epoch:08}.json"))
    }

    /// Reads and checks the launch of `epoch`.
    pub fn read(dir: &Path, epoch: u32) -> Result<Self, LaunchError> {
        let path = Self::path(dir, epoch);
        let bytes = std::fs::read(&path)
            .map_err(|source| LaunchError::Read { path: path.clone(), source })?;
        let launch: Self = serde_json::from_slice(&bytes)
            .map_err(|source| LaunchError::Parse { path: path.clone(), source })?;
        if launch.v > VERSION {
            return Err(LaunchError::Version { path, found: launch.v });
        }
        // The nonce names a cgroup and is searched for in environments.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let nonce = !launch.nonce.is_empty() && launch.nonce.bytes().all(plain);
        if launch.epoch != epoch || launch.argv.is_empty() || !nonce {
            return Err(LaunchError::Senseless { path });
        }
        Ok(launch)
    }

    /// Writes the file atomically with mode 0600.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        write_private(&Self::path(dir, self.epoch), &serde_json::to_vec_pretty(self)?)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is not a launch file")]
    Parse { path: PathBuf, source: serde_json::Error },
    #[error(
        "{path} has version {found}, but this shim knows {VERSION}: use the shim of the muleteer \
         that wrote it"
    )]
    Version { path: PathBuf, found: u16 },
    #[error("{path} has another epoch, no program, or an invalid nonce")]
    Senseless { path: PathBuf },
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn yes() -> bool {
    true
}

/// Replaces `path` atomically by a file of mode 0600.
fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = match options.open(&temporary) {
        // A crash has left one, perhaps with another mode.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(&temporary)?;
            options.open(&temporary)?
        }
        opened => opened?,
    };
    file.write_all(bytes)?;
    std::fs::rename(&temporary, path)
}
