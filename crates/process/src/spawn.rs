//! Forks a child that exists, and can be recorded, before anything of the agent runs.
//!
//! ```text
//!   parent                              child
//!   fork ─────────────────────────────▶ own group, dies with parent
//!   records the pid, durably            waits on the release pipe ── end of file ─▶ _exit(0)
//!   writes one byte ──────────────────▶ chdir, exec
//!   reads the status pipe: end of file  ◀── exec closed it
//!                          8 bytes      ◀── exec failed: errno and stage, _exit(127)
//! ```
//!
//! So no unrecorded agent ever runs, and a parent that dies before it writes the byte leaves
//! nothing behind.

#![allow(unsafe_code)]

use crate::host::pipe;
use crate::identity::ProcessId;
use rustix::fs::Mode;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The program to run after the release. Everything is prepared before the fork, because the child
/// must not allocate.
#[derive(Debug)]
pub struct Program {
    path: CString,
    argv: Vec<CString>,
    envp: Vec<CString>,
    cwd: CString,
    umask: Mode,
}

/// The agent's ends of its standard streams.
#[derive(Debug)]
pub struct Stdio {
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

/// A forked child that waits for its release. Dropping this value ends the child.
#[derive(Debug)]
pub struct Held {
    id: ProcessId,
    contained: bool,
    release: OwnedFd,
    status: OwnedFd,
}

/// A released child, which may not have executed its program yet.
#[derive(Debug)]
pub struct Released {
    status: OwnedFd,
}

/// Whether the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecStatus {
    /// Not known yet.
    Pending,
    /// Exec succeeded, or the child died before it could fail.
    Passed,
    Failed {
        errno: i32,
        stage: Stage,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Chdir,
    Exec,
}

impl Program {
    /// Prepares the program. Returns `InvalidInput` if a string contains a NUL.
    pub fn new<'a>(
        path: &Path,
        argv: impl IntoIterator<Item = &'a str>,
        env: impl IntoIterator<Item = (&'a str, &'a str)>,
        cwd: &Path,
        umask: Mode,
    ) -> io::Result<Self> {
        Ok(Self {
            path: c_string(path.as_os_str().as_bytes())?,
            argv: argv
                .into_iter()
                .map(|word| c_string(word.as_bytes()))
                .collect::<io::Result<_>>()?,
            envp: env
                .into_iter()
                .map(|(name, value)| c_string(format!("{name}={value}").as_bytes()))
                .collect::<io::Result<_>>()?,
            cwd: c_string(cwd.as_os_str().as_bytes())?,
            umask,
        })
    }

    /// Forks the child and holds it before its program. The child leads its own process group. On
    /// Linux the kernel kills it when the calling *thread* ends, so call this from a
    /// single-threaded process. The child is created in `cgroup` if the kernel can do that (5.7),
    /// else it is moved there while it is held; [`Held::contained`] says whether it is there.
    pub fn hold(&self, stdio: Stdio, cgroup: Option<&Path>) -> io::Result<Held> {
        let (release_read, release) = pipe::pair()?;
        let (status, status_write) = pipe::pair()?;
        pipe::set_nonblocking(&status)?;
        let argv = pointers(&self.argv);
        let envp = pointers(&self.envp);
        let child = Child {
            parent: std::process::id(),
            stdio: [stdio.stdin.as_raw_fd(), stdio.stdout.as_raw_fd(), stdio.stderr.as_raw_fd()],
            release_read: release_read.as_raw_fd(),
            release: release.as_raw_fd(),
            status: status_write.as_raw_fd(),
            path: self.path.as_ptr(),
            argv: argv.as_ptr(),
            envp: envp.as_ptr(),
            cwd: self.cwd.as_ptr(),
            umask: self.umask.as_raw_mode() as libc::mode_t,
        };
        let born_inside = cgroup.and_then(|cgroup| std::fs::File::open(cgroup).ok());
        // SAFETY: the child only calls async-signal-safe functions on memory made ready above, and
        // ends in exec or _exit, never returning into Rust code that could unwind or allocate.
        let (pid, born_inside) =
            match born_inside.as_ref().and_then(|cgroup| unsafe { fork_into(cgroup.as_fd()) }) {
                Some(pid) => (pid, true),
                // SAFETY: as above.
                None => (unsafe { libc::fork() }, false),
            };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: we are the only thread of the child; the pointers outlive it.
            0 => unsafe { child.run() },
            pid => {
                // Parent and child both call it, so that neither continues before the group exists.
                if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                    let _ = rustix::process::setpgid(Some(pid), Some(pid));
                }
                let pid = pid as u32;
                let id = ProcessId::of(pid).unwrap_or(ProcessId { pid, start_time: 0 });
                let contained =
                    born_inside || cgroup.is_some_and(|cgroup| crate::cgroup::enter(cgroup, pid));
                Ok(Held { id, contained, release, status })
            }
        }
    }
}

impl Held {
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Whether the child is in the requested cgroup.
    pub fn contained(&self) -> bool {
        self.contained
    }

    /// Lets the child execute its program.
    pub fn release(self) -> io::Result<Released> {
        // EPIPE means that the child was killed meanwhile; its exit status says so.
        let _ = rustix::io::write(&self.release, b"G");
        Ok(Released { status: self.status })
    }
}

impl Released {
    /// Returns the status without waiting.
    pub fn status(&self) -> ExecStatus {
        let mut bytes = [0; 8];
        match rustix::io::read(&self.status, &mut bytes) {
            Ok(0) => ExecStatus::Passed,
            Ok(8) => {
                let [a, b, c, d, stage, ..] = bytes;
                let stage = if stage == 1 { Stage::Chdir } else { Stage::Exec };
                ExecStatus::Failed { errno: i32::from_ne_bytes([a, b, c, d]), stage }
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => ExecStatus::Pending,
            _ => ExecStatus::Passed,
        }
    }
}

impl AsFd for Released {
    /// Readable when [`Released::status`] is known.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.status.as_fd()
    }
}

/// Forks into a cgroup. `None` if the kernel cannot do it. Moving a living process into a cgroup
/// makes the kernel wait for all of its cores (up to 15 ms), and the whole machine does one such
/// move at a time. Creating the process there costs nothing.
///
/// # Safety
/// As for `fork` in a process of one thread, whose child calls only async-signal-safe functions:
/// this skips the preparations of libc for a child that keeps running this program.
#[cfg(target_os = "linux")]
unsafe fn fork_into(cgroup: BorrowedFd<'_>) -> Option<libc::pid_t> {
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    // SAFETY: plain numbers; zero means nothing of that kind.
    let mut how: libc::clone_args = unsafe { std::mem::zeroed() };
    how.flags = CLONE_INTO_CGROUP;
    how.exit_signal = libc::SIGCHLD as u64;
    how.cgroup = cgroup.as_raw_fd() as u64;
    // SAFETY: without CLONE_VM and a stack the child is a copy of us, as after `fork`.
    let pid =
        unsafe { libc::syscall(libc::SYS_clone3, &raw const how, size_of::<libc::clone_args>()) };
    libc::pid_t::try_from(pid).ok().filter(|pid| *pid >= 0)
}

#[cfg(not(target_os = "linux"))]
unsafe fn fork_into(_: BorrowedFd<'_>) -> Option<libc::pid_t> {
    None
}

/// Forks a sibling: a copy of this process whose parent is *our* parent, which reaps it. Returns
/// `None` in the sibling, and the sibling's pid here. It uses the old `clone`, because a seccomp
/// filter cannot read the arguments of `clone3`, so container engines let `clone3` fail with
/// ENOSYS.
///
/// # Errors
/// As for `fork`; always `Unsupported` except on Linux.
///
/// # Safety
/// Only in a process of one thread: the sibling would have the unfinished work of other threads,
/// but not the threads.
#[cfg(target_os = "linux")]
pub unsafe fn fork_brother() -> io::Result<Option<u32>> {
    // The parent gets the same signal for the sibling's death as for ours. On s390x flags and stack
    // are in the opposite order, see clone(2).
    let flags = libc::c_long::from(libc::CLONE_PARENT | libc::SIGCHLD);
    let (first, second) = if cfg!(target_arch = "s390x") { (0, flags) } else { (flags, 0) };
    // SAFETY: without CLONE_VM and a stack the brother is a copy of us, as after `fork`; and there
    // is one thread, so nothing that the C library does around a fork is missed.
    match unsafe { libc::syscall(libc::SYS_clone, first, second, 0, 0, 0) } {
        0 => Ok(None),
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Some(pid as u32)),
    }
}

/// Always fails on this system.
///
/// # Errors
/// Always.
///
/// # Safety
/// It does nothing.
#[cfg(not(target_os = "linux"))]
pub unsafe fn fork_brother() -> io::Result<Option<u32>> {
    Err(io::ErrorKind::Unsupported.into())
}

struct Child {
    parent: u32,
    stdio: [RawFd; 3],
    release_read: RawFd,
    release: RawFd,
    status: RawFd,
    path: *const libc::c_char,
    argv: *const *const libc::c_char,
    envp: *const *const libc::c_char,
    cwd: *const libc::c_char,
    umask: libc::mode_t,
}

impl Child {
    /// # Safety
    /// Only in a freshly forked child, with every pointer valid.
    unsafe fn run(&self) -> ! {
        // SAFETY: async-signal-safe calls only, on descriptors and memory the parent made ready.
        unsafe {
            libc::setpgid(0, 0);
            #[cfg(target_os = "linux")]
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // The parent may have died before prctl took effect.
            if libc::getppid() as u32 != self.parent {
                libc::_exit(0);
            }
            // Exec resets handlers but keeps ignored signals ignored, and Rust ignores SIGPIPE.
            // Until exec, the parent's handlers would swallow a TERM that is meant for the child.
            crate::signals::inherited::reset_before_exec();
            // With the child's own copy of the write end, its read would never see end of file.
            libc::close(self.release);
            for (target, &fd) in self.stdio.iter().enumerate() {
                libc::dup2(fd, target as RawFd);
            }
            let mut byte = 0u8;
            loop {
                match libc::read(self.release_read, (&raw mut byte).cast(), 1) {
                    1 => break,
                    -1 if io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {}
                    _ => libc::_exit(0),
                }
            }
            // All descriptors from 3 up should be close-on-exec already. This call also covers
            // descriptors of a library that forgot the flag.
            #[cfg(target_os = "linux")]
            libc::syscall(
                libc::SYS_close_range,
                3u32,
                u32::MAX,
                4u32, /* CLOSE_RANGE_CLOEXEC */
            );
            libc::umask(self.umask);
            if libc::chdir(self.cwd) != 0 {
                self.fail(1);
            }
            libc::execve(self.path, self.argv, self.envp);
            self.fail(2)
        }
    }

    /// # Safety
    /// As [`Child::run`].
    unsafe fn fail(&self, stage: u8) -> ! {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        let [a, b, c, d] = errno.to_ne_bytes();
        let message = [a, b, c, d, stage, 0, 0, 0];
        // SAFETY: write and _exit are async-signal-safe, the buffer is ours.
        unsafe {
            libc::write(self.status, message.as_ptr().cast(), message.len());
            libc::_exit(127)
        }
    }
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    pub pid: u32,
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

/// Returns an ended child without reaping it: a zombie keeps its pid, and its group's number, from
/// being reused. Without a pid, it checks all children.
pub fn peek_exit(pid: Option<u32>) -> Option<Exit> {
    wait_for(pid, libc::WNOWAIT)
}

/// Reaps an ended child; `None` if it has not ended or is not a child.
pub fn reap(pid: u32) -> Option<Exit> {
    wait_for(Some(pid), 0)
}

fn wait_for(pid: Option<u32>, flags: libc::c_int) -> Option<Exit> {
    let (kind, id) = pid.map_or((libc::P_ALL, 0), |pid| (libc::P_PID, pid));
    // SAFETY: siginfo_t is plain data that the kernel fills; zeroed it says "nobody".
    let (done, info) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let done = libc::waitid(kind, id, &mut info, libc::WEXITED | libc::WNOHANG | flags);
        (done, info)
    };
    // SAFETY: after waitid these fields of the union are the valid ones.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    if done != 0 || pid == 0 {
        return None;
    }
    let exited = info.si_code == libc::CLD_EXITED;
    Some(Exit {
        pid: pid as u32,
        code: exited.then_some(status),
        signal: (!exited).then_some(status),
    })
}

/// Resolves a program name like exec does, but on a given `PATH`. A failure has the error of exec.
pub fn find_program(name: &str, path: Option<&str>, cwd: &Path) -> io::Result<PathBuf> {
    let name = OsStr::new(name);
    if name.as_bytes().contains(&b'/') {
        return Ok(cwd.join(name));
    }
    let mut error = io::Error::from_raw_os_error(libc::ENOENT);
    for dir in path.unwrap_or("/usr/local/bin:/usr/bin:/bin").split(':') {
        let candidate = cwd.join(dir).join(name);
        let Ok(meta) = std::fs::metadata(&candidate) else { continue };
        if meta.is_file() && rustix::fs::access(&candidate, rustix::fs::Access::EXEC_OK).is_ok() {
            return Ok(candidate);
        }
        error = io::Error::from_raw_os_error(libc::EACCES);
    }
    Err(error)
}

fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidInput, "a NUL in the program's arguments")
    })
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Closes every descriptor from 3 up except `keep`. Only for a process that was just started and
/// has opened nothing else yet.
pub fn close_others(keep: &impl AsFd) {
    let keep = keep.as_fd().as_raw_fd() as u32;
    // SAFETY: descriptors below 3 and `keep` stay; nothing in this process owns any other yet.
    #[cfg(target_os = "linux")]
    unsafe {
        if keep > 3 {
            libc::syscall(libc::SYS_close_range, 3u32, keep - 1, 0u32);
        }
        libc::syscall(libc::SYS_close_range, keep + 1, u32::MAX, 0u32);
    }
    #[cfg(not(target_os = "linux"))]
    for fd in (3..1024).filter(|&fd| fd != keep) {
        // SAFETY: as above.
        unsafe { libc::close(fd as RawFd) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup;

    fn held(cgroup: Option<&Path>) -> Held {
        let null = || {
            OwnedFd::from(
                std::fs::File::options().read(true).write(true).open("/dev/null").expect("null"),
            )
        };
        let stdio = Stdio { stdin: null(), stdout: null(), stderr: null() };
        let program = Program::new(
            Path::new("/bin/true"),
            ["true"],
            [],
            Path::new("/"),
            Mode::from_raw_mode(0o022),
        );
        program.expect("words").hold(stdio, cgroup).expect("a child")
    }

    /// Ends the child and returns its exit code.
    fn end(held: Held) -> Option<i32> {
        let pid = held.id().pid;
        drop(held);
        for _ in 0..1000 {
            if let Some(exit) = reap(pid) {
                return exit.code;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("{pid} lives on though nobody can release it");
    }

    #[test]
    fn child_is_contained_without_a_cgroup() {
        let dir = tempfile::tempdir().expect("a directory");
        for place in [None, Some(Path::new("/nowhere")), Some(dir.path())] {
            let child = held(place);
            assert!(!child.contained(), "{place:?}");
            assert_eq!(end(child), Some(0), "{place:?}");
        }
        assert_eq!(
            std::fs::read_dir(dir.path()).expect("it").count(),
            0,
            "no file was made in what is no cgroup"
        );
    }

    /// Exec passes on blocked and ignored signals, and then a TERM would not end the agent.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_child_has_no_blocked_and_no_ignored_signals() {
        let mut caught =
            crate::signals::Signals::catch(&[libc::SIGUSR1, libc::SIGHUP]).expect("handlers");
        // SAFETY: an all-zero set is valid.
        let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: plain numbers, and sets that are made empty before they are used.
        unsafe {
            let mut blocked: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut blocked);
            libc::sigaddset(&mut blocked, libc::SIGTERM);
            libc::pthread_sigmask(libc::SIG_BLOCK, &blocked, &mut before);
        }
        let dir = tempfile::tempdir().expect("a directory");
        let output = dir.path().join("signals");
        let null = || {
            OwnedFd::from(
                std::fs::File::options().read(true).write(true).open("/dev/null").expect("null"),
            )
        };
        let stdout = std::fs::File::create(&output).expect("a file").into();
        let stdio = Stdio { stdin: null(), stdout, stderr: null() };
        let words = ["cat", "/proc/self/status"];
        let program = Program::new(
            Path::new("/bin/cat"),
            words,
            [],
            Path::new("/"),
            Mode::from_raw_mode(0o022),
        );
        let child = program.expect("words").hold(stdio, None).expect("a child");
        let pid = child.id().pid;
        let released = child.release().expect("released");
        for _ in 0..1000 {
            if reap(pid).is_some() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        drop(released);
        // SAFETY: a plain number and a set that the kernel filled in.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
        let found = std::fs::read_to_string(&output).expect("its output");
        let mask = |name: &str| {
            let of = found.lines().find_map(|line| line.strip_prefix(name)).expect("a mask");
            // The C library uses the real-time signals itself.
            u64::from_str_radix(of.trim(), 16).expect("a number") & 0x7fff_ffff
        };
        assert_eq!((mask("SigBlk:"), mask("SigIgn:")), (0, 0), "{found}");
        assert!(caught.take().is_empty());
    }

    #[test]
    fn a_child_is_born_in_its_cgroup() {
        let name = format!("muleteer-test-{}", std::process::id());
        let Some(place) = cgroup::own().and_then(|own| cgroup::create(&own, &name)) else {
            eprintln!("SKIPPED: no cgroup can be made here");
            return;
        };
        let child = held(Some(&place));
        let (members, pid, contained) =
            (cgroup::members(&place), child.id().pid, child.contained());
        let ended = end(child);
        cgroup::remove(&place);
        assert_eq!((members, contained, ended), (vec![pid], true, Some(0)));
    }
}
