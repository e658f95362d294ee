//! The identity of a process. A pid alone proves nothing: it is reused, and means another process
//! in another boot or pid namespace.

#![allow(unsafe_code)]

pub mod caller;

use crate::host::{Stat, host};
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The variable that marks all of an agent's processes, also forked and detached ones.
pub const NONCE_VAR: &str = "MULETEER_NONCE";

/// One process of this boot and pid namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: u32,
    /// In the host's own unit. It is only compared;
    /// [`Host::began_before`](crate::host::Host::began_before) compares the order.
    pub start_time: u64,
}

impl ProcessId {
    /// Returns this process.
    pub fn current() -> Self {
        Self::of(std::process::id()).unwrap_or(Self { pid: std::process::id(), start_time: 0 })
    }

    /// Returns the process that has `pid` now, zombie or not.
    pub fn of(pid: u32) -> Option<Self> {
        host().stat(pid).map(Self::from)
    }

    /// Whether the process still exists and is not a zombie. If pid 1 does not reap, the dead stay
    /// zombies for ever.
    pub fn is_alive(self) -> bool {
        host().stat(self.pid).is_some_and(|stat| Self::from(stat) == self && !stat.zombie)
    }
}

impl From<Stat> for ProcessId {
    fn from(stat: Stat) -> Self {
        Self { pid: stat.pid, start_time: stat.start_time }
    }
}

/// Sets the name that `ps` shows for this process instead of its executable's. At most 15 bytes
/// count. Only the first thread's call works, and only on Linux.
pub fn name_this_process(name: &std::ffi::CStr) {
    #[cfg(target_os = "linux")]
    // SAFETY: the kernel copies at most 16 bytes of a string that ends with NUL.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, name.as_ptr());
    }
    #[cfg(not(target_os = "linux"))]
    let _ = name;
}

/// The memory of this process's arguments, which the system reads for `ps`.
#[derive(Debug, Clone, Copy)]
pub struct Title {
    start: usize,
    len: usize,
}

impl Title {
    /// Returns `None` if the system does not report the place.
    #[cfg(target_os = "linux")]
    pub fn of_this_process() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        // Fields 48 and 49 of proc_pid_stat(5). The third follows the name, which may contain
        // anything.
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut fields = rest.split_ascii_whitespace().skip(48 - 3);
        let (start, end): (usize, usize) =
            (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let len = end.checked_sub(start).filter(|len| start > 0 && *len > 0)?;
        Some(Self { start, len })
    }

    /// Returns `None`: this system does not report the place.
    #[cfg(not(target_os = "linux"))]
    pub fn of_this_process() -> Option<Self> {
        None
    }

    /// Replaces the shown arguments, cut to the length of the original ones.
    ///
    /// # Safety
    /// `self` must belong to this process, or to the one it was forked from. Neither
    /// `std::env::args` nor any pointer into the original arguments may be used afterwards.
    pub unsafe fn show(self, words: &[&[u8]]) {
        let mut text = words.join(&0);
        text.resize(self.len - 1, 0);
        text.push(0);
        // SAFETY: the kernel told us that our words lie here; they are ours to write, and stay
        // NUL-terminated.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), self.start as *mut u8, self.len) }
    }
}

/// Returns the id of this boot of this machine.
pub fn boot_id() -> String {
    #[cfg(feature = "fault-points")]
    if let Ok(other) = std::env::var(crate::fault::BOOT_VAR) {
        return other;
    }
    host().boot_id()
}

/// Returns the id of this process's pid namespace; 0 if the system has only one.
pub fn pid_namespace() -> u64 {
    host().pid_namespace()
}

/// A handle on a process. While it is held, the pid cannot come to mean another process.
#[derive(Debug)]
pub struct Pinned {
    id: ProcessId,
    /// The parent at the time of pinning.
    parent: u32,
    fd: Option<OwnedFd>,
}

impl Pinned {
    /// Pins the process that has `pid` now. `NotFound` if there is none, or only a zombie.
    pub fn open(pid: u32) -> io::Result<Self> {
        let fd = host().pin(pid).map_err(gone)?;
        // Read after pinning: if the pid was reused in between, both belong to the new process.
        let stat = host().stat(pid).filter(|stat| !stat.zombie).ok_or(io::ErrorKind::NotFound)?;
        let pinned = Self { id: stat.into(), parent: stat.parent, fd };
        if pinned.wait(Duration::ZERO) { Err(io::ErrorKind::NotFound.into()) } else { Ok(pinned) }
    }

    /// Pins exactly this process. `NotFound` if it is gone, even if its pid was reused.
    pub fn open_exact(id: ProcessId) -> io::Result<Self> {
        let pinned = Self::open(id.pid)?;
        if pinned.id == id { Ok(pinned) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// A descriptor that becomes readable when the process ends; `None` if the host has none.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Sends a signal. `NotFound` if the process is already gone.
    pub fn signal(&self, signo: i32) -> io::Result<()> {
        let signal = signal(signo)?;
        let sent = match &self.fd {
            #[cfg(target_os = "linux")]
            Some(fd) => rustix::process::pidfd_send_signal(fd, signal),
            _ if !self.id.is_alive() => Err(rustix::io::Errno::SRCH),
            _ => rustix::process::kill_process(raw(self.id.pid)?, signal),
        };
        sent.map_err(|errno| gone(errno.into()))
    }

    /// Waits until the process has ended; false if it has not within `limit`. Blocks the thread.
    pub fn wait(&self, limit: Duration) -> bool {
        let deadline = crate::clock::awake() + limit;
        loop {
            let left = deadline.saturating_sub(crate::clock::awake());
            match &self.fd {
                Some(fd) => {
                    use rustix::event::{PollFd, PollFlags, Timespec, poll};
                    let timeout = Timespec {
                        tv_sec: left.as_secs() as i64,
                        tv_nsec: left.subsec_nanos().into(),
                    };
                    match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)) {
                        Ok(0) => return false,
                        Ok(_) => return true,
                        Err(rustix::io::Errno::INTR) => {}
                        Err(_) => return !self.id.is_alive(),
                    }
                }
                None if !self.id.is_alive() => return true,
                None if left.is_zero() => return false,
                None => std::thread::sleep(left.min(Duration::from_millis(10))),
            }
        }
    }
}

/// Returns the value of [`NONCE_VAR`] in the environment with which `pid` was started.
pub fn nonce_of(pid: u32) -> Option<String> {
    let environ = host().environ(pid)?;
    let value = environ
        .split(|&byte| byte == 0)
        .find_map(|entry| entry.strip_prefix(NONCE_VAR.as_bytes())?.strip_prefix(b"="))?;
    String::from_utf8(value.to_vec()).ok()
}

/// The process at the other end of a unix socket, as the kernel saw it when it connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    pub uid: u32,
    /// `None` if it is in a pid namespace that we cannot see, or if the host does not report it.
    pub pid: Option<u32>,
}

/// Reads the peer's credentials.
#[cfg(target_os = "linux")]
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let size = size_of::<libc::ucred>() as libc::socklen_t;
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size;
    // rustix's call cannot return pid 0, which the kernel reports for a peer in an unrelated
    // namespace.
    // SAFETY: the pointers are to a ucred and its length.
    let done = unsafe {
        let into = (&raw mut credentials).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, into, &mut length)
    };
    if done != 0 || length != size {
        return Err(io::Error::last_os_error());
    }
    Ok(Peer {
        uid: credentials.uid,
        pid: u32::try_from(credentials.pid).ok().filter(|&pid| pid != 0),
    })
}

/// Reads the peer's credentials.
#[cfg(not(target_os = "linux"))]
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let (mut uid, mut gid) = (0, 0);
    // SAFETY: both pointers are to integers of the right size.
    if unsafe { libc::getpeereid(socket.as_raw_fd(), &mut uid, &mut gid) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Peer { uid, pid: None })
}

/// The result of walking up from a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ancestry {
    /// The start of the walk, or a process above it, satisfied the predicate: this one.
    Below(ProcessId),
    /// The walk reached the top, or processes older than all candidates, and found none.
    Apart,
    /// Its parent is init: init started it, or it was orphaned, perhaps to hide its origin.
    Orphan,
    /// The process, or one above it, ended during the walk or cannot be seen.
    Unknown,
}

/// Walks from `pid` to the top and calls `is_it` for each process on the way. `oldest` is the
/// oldest process that can satisfy `is_it`, if known: the walk then stops at processes that began
/// before it, because a parent, also a foster parent, is always older than its child.
///
/// Each process is pinned, and its child's parent is read again after pinning, so that a pid that
/// is reused meanwhile cannot lead the walk elsewhere.
pub fn ancestry(
    pid: u32,
    oldest: Option<ProcessId>,
    is_it: impl Fn(ProcessId) -> bool,
) -> Ancestry {
    /// Deeper than any real tree. A loop should be impossible, but the limit does not rely on it.
    const DEEPEST: usize = 4096;
    if let Some(oldest) = oldest
        && let Some(stat) = host().stat(pid).filter(|stat| !stat.zombie && !is_it((*stat).into()))
        && let Some(above) = host().stat(stat.parent)
        && host().began_before(above.start_time, oldest.start_time)
    {
        // The process above had this pid before `oldest` began, so both readings belong together
        // and nothing needs to be pinned.
        return Ancestry::Apart;
    }
    let Ok(mut here) = Pinned::open(pid) else { return Ancestry::Unknown };
    for depth in 0..DEEPEST {
        if is_it(here.id) {
            return Ancestry::Below(here.id);
        }
        let parent = here.parent;
        if oldest.is_some_and(|oldest| host().began_before(here.id.start_time, oldest.start_time)) {
            return Ancestry::Apart;
        }
        if parent <= 1 {
            return if depth == 0 && parent == 1 { Ancestry::Orphan } else { Ancestry::Apart };
        }
        let Ok(above) = Pinned::open(parent) else { return Ancestry::Unknown };
        if parent_of(here.id) != Some(parent) {
            return Ancestry::Unknown;
        }
        here = above;
    }
    Ancestry::Unknown
}

fn parent_of(id: ProcessId) -> Option<u32> {
    host().stat(id.pid).filter(|stat| ProcessId::from(*stat) == id).map(|stat| stat.parent)
}

pub(crate) fn raw(pid: u32) -> io::Result<Pid> {
    i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

pub(crate) fn signal(signo: i32) -> io::Result<Signal> {
    Signal::from_named_raw(signo).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
}

fn gone(error: io::Error) -> io::Error {
    if error.raw_os_error() == Some(libc::ESRCH) { io::ErrorKind::NotFound.into() } else { error }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_child_is_pinned_signalled_and_dead_as_a_zombie() {
        let mut child =
            crate::command::helper("sleep").arg("60").env(NONCE_VAR, "n1").spawn().unwrap();
        let pinned = Pinned::open(child.id()).unwrap();
        assert!(pinned.id().is_alive());
        assert!(!pinned.wait(Duration::from_millis(1)));
        assert_eq!(
            ancestry(child.id(), None, |id| id == ProcessId::current()),
            Ancestry::Below(ProcessId::current())
        );
        pinned.signal(libc::SIGKILL).unwrap();
        assert!(pinned.wait(Duration::from_secs(10)));
        assert!(!pinned.id().is_alive(), "a zombie is dead");
        assert_eq!(Pinned::open_exact(pinned.id()).unwrap_err().kind(), io::ErrorKind::NotFound);
        child.wait().unwrap();
    }

    /// The candidate began after this process, so the walk must not look above this process.
    #[test]
    #[cfg(target_os = "linux")]
    fn older_process_is_not_a_descendant() {
        let me = ProcessId::current();
        let mut younger = loop {
            let mut child = crate::command::helper("sleep").arg("60").spawn().unwrap();
            if ProcessId::of(child.id()).unwrap().start_time > me.start_time {
                break child;
            }
            child.kill().unwrap();
            child.wait().unwrap();
        };
        let child = ProcessId::of(younger.id()).unwrap();
        let asked = std::cell::RefCell::new(vec![]);
        let look = |pid, oldest| {
            let found = ancestry(pid, Some(oldest), |id| {
                asked.borrow_mut().push(id);
                id == oldest
            });
            let mut asked = asked.take();
            asked.dedup();
            (found, asked)
        };
        assert_eq!(look(me.pid, child), (Ancestry::Apart, vec![me]));
        assert_eq!(look(child.pid, me), (Ancestry::Below(me), vec![child, me]));
        younger.kill().unwrap();
        younger.wait().unwrap();
    }

    #[test]
    fn the_same_pid_with_another_start_time_is_another_process() {
        let me = ProcessId::current();
        assert!(me.is_alive());
        assert!(!ProcessId { start_time: me.start_time + 1, ..me }.is_alive());
        assert!(!boot_id().is_empty());
    }
}
