//! What differs between operating systems, behind one trait.
//!
//! [`Linux`] has the real mechanisms; [`Portable`] does what POSIX and `ps` allow, compiles
//! everywhere (so that it cannot rot unseen), and is what runs elsewhere. `doctor` names what is
//! best effort.

pub mod descriptors;
pub mod memory;
pub mod pipe;

#[cfg(target_os = "linux")]
mod linux;
mod portable;

#[cfg(target_os = "linux")]
pub use linux::Linux;
pub use portable::Portable;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

/// One process as the system describes it at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    pub pid: u32,
    pub parent: u32,
    pub group: u32,
    pub session: u32,
    /// In a unit of the host's own; with the pid it names one process of one boot.
    pub start_time: u64,
    /// Ended, and only waits to be reaped: as good as dead.
    pub zombie: bool,
    /// Its first thread has ended, which looks like a zombie; other threads go on.
    pub leader_gone: bool,
    /// Stopped by a signal, until one tells it to go on. Not by a debugger.
    pub stopped: bool,
    /// Resident memory in bytes; 0 if not known.
    pub rss: u64,
    /// Cpu time it has used.
    pub cpu: Duration,
    /// Cpu time of the descendants that ended and were waited for; zero if not known.
    pub reaped_cpu: Duration,
}

/// What `doctor` and `status` say holds an agent to its shim on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    pub pidfd: bool,
    pub subreaper: bool,
    pub parent_death_signal: bool,
}

pub trait Host: std::fmt::Debug + Sync {
    /// Every process that can be seen.
    fn pids(&self) -> Vec<u32>;
    /// `None` when there is no such process (or it cannot be seen).
    fn stat(&self, pid: u32) -> Option<Stat>;
    /// Whether one [`Stat::start_time`] is certainly before another.
    fn began_before(&self, _start_time: u64, _other: u64) -> bool {
        false
    }
    /// Its children, zombies included; none when it is gone, `None` where the host does not tell. A
    /// child may be left out while another one goes.
    fn children(&self, pid: u32) -> Option<Vec<u32>>;
    /// Its name, as `ps` shows it; `None` when it is gone.
    fn name(&self, pid: u32) -> Option<String>;
    /// The directory it stands in; `None` when it has let go of it, because it is ending. An error
    /// if that cannot be known.
    fn cwd(&self, pid: u32) -> io::Result<Option<PathBuf>>;
    /// The environment a process was started with, NUL-separated; `None` if it cannot be read.
    fn environ(&self, pid: u32) -> Option<Vec<u8>>;
    /// Names this boot of this machine.
    fn boot_id(&self) -> String;
    /// Names the pid namespace this process is in; 0 where there is only one.
    fn pid_namespace(&self) -> u64;
    /// A descriptor of the process that stays its own when the pid is reused, and becomes
    /// readable when it ends.
    fn pin(&self, pid: u32) -> io::Result<Option<OwnedFd>>;
    /// Orphans below this process become its children.
    fn become_subreaper(&self) -> bool;
    fn abilities(&self) -> Abilities;
}

/// The host this was built for.
#[cfg(target_os = "linux")]
pub fn host() -> &'static dyn Host {
    &Linux
}

/// The host this was built for.
#[cfg(not(target_os = "linux"))]
pub fn host() -> &'static dyn Host {
    &Portable
}
