//! Hides the differences between operating systems behind one trait.
//!
//! [`Linux`] uses the real mechanisms. [`Portable`] does what POSIX and `ps` allow and runs on
//! other systems; it compiles everywhere, so that every build checks it. `doctor` names the
//! abilities that are best effort.

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
    /// In the host's own unit. Together with the pid it identifies one process of one boot.
    pub start_time: u64,
    /// It has ended and waits to be reaped, so it counts as dead.
    pub zombie: bool,
    /// Its first thread has ended, which looks like a zombie; other threads still run.
    pub leader_gone: bool,
    /// Stopped by a signal until it gets SIGCONT. Not stopped by a debugger.
    pub stopped: bool,
    /// Resident memory in bytes; 0 if not known.
    pub rss: u64,
    /// Cpu time it has used.
    pub cpu: Duration,
    /// Cpu time of descendants that ended and were waited for; zero if not known.
    pub reaped_cpu: Duration,
}

/// The abilities of this host that tie an agent to its shim. `doctor` and `status` show them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    pub pidfd: bool,
    pub subreaper: bool,
    pub parent_death_signal: bool,
}

pub trait Host: std::fmt::Debug + Sync {
    /// Returns every visible process.
    fn pids(&self) -> Vec<u32>;
    /// Returns a process's state; `None` if it does not exist or cannot be seen.
    fn stat(&self, pid: u32) -> Option<Stat>;
    /// Whether one [`Stat::start_time`] is certainly before another.
    fn began_before(&self, _start_time: u64, _other: u64) -> bool {
        false
    }
    /// Returns the children of a process, zombies included. The list is empty if the process is
    /// gone; `None` if the host does not report it. It may miss a child while another one ends.
    fn children(&self, pid: u32) -> Option<Vec<u32>>;
    /// Returns a process's name, as `ps` shows it; `None` if the process is gone.
    fn name(&self, pid: u32) -> Option<String>;
    /// Returns a process's working directory; `None` if the process is ending and has released it.
    /// An error if it cannot be known.
    fn cwd(&self, pid: u32) -> io::Result<Option<PathBuf>>;
    /// Returns the environment with which a process was started, NUL-separated; `None` if it cannot
    /// be read.
    fn environ(&self, pid: u32) -> Option<Vec<u8>>;
    /// Returns the id of this boot of this machine.
    fn boot_id(&self) -> String;
    /// Returns the id of this process's pid namespace; 0 if there is only one.
    fn pid_namespace(&self) -> u64;
    /// Returns a descriptor of the process. It keeps meaning that process when the pid is reused,
    /// and becomes readable when the process ends.
    fn pin(&self, pid: u32) -> io::Result<Option<OwnedFd>>;
    /// Makes orphans below this process its children.
    fn become_subreaper(&self) -> bool;
    fn abilities(&self) -> Abilities;
}

/// Returns the host for which this was built.
#[cfg(target_os = "linux")]
pub fn host() -> &'static dyn Host {
    &Linux
}

/// Returns the host for which this was built.
#[cfg(not(target_os = "linux"))]
pub fn host() -> &'static dyn Host {
    &Portable
}
