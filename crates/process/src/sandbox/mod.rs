//! The sandbox of an agent: a user, mount, pid and ipc namespace. A [`Plan`] says which paths the
//! agent can see and write (docs/design/sandbox.md).
//!
//! ```text
//!  shim's child ── unshare, new root ── fork ─▶ init (pid 1): its own /proc, enters the root,
//!   │                                          │  reaps, closes its descriptors
//!   │ ignores TERM                             └─ fork ─▶ the agent: no keys, no capabilities,
//!   │                                                     a filter of system calls
//!   └─ ends as the agent ended ◀── its status, by a pipe
//! ```
//!
//! The first two processes change themselves permanently, so [`run`] is only for a process with a
//! single thread that was started for it. Signals reach the agent as a member of the process group;
//! init ignores them, as the first process of a pid namespace does. When the agent has ended, init
//! ends, and the kernel then kills everything that the agent left.

#![allow(unsafe_code)]

pub mod probe;
#[cfg(target_os = "linux")]
mod rights;
#[cfg(target_os = "linux")]
mod view;

#[cfg(target_os = "linux")]
use crate::host::pipe;
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
#[cfg(target_os = "linux")]
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The exit code if the sandbox could not be set up. The agent did not run then.
pub const CANNOT: u8 = 125;
const VERSION: u16 = 2;
/// Longer than any grace period between TERM and KILL (10 s by default), so that the killer's own
/// deadline decides.
#[cfg(target_os = "linux")]
const GRACE: std::time::Duration = std::time::Duration::from_secs(15);

/// Which paths the sandbox shows, and the limits of the agent. A path that no place covers does not
/// exist in the sandbox, except for a minimal `/dev` and a `/proc`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub v: u16,
    pub places: Vec<Place>,
    /// The limit of all [`What::Scratch`] places together; 0 stands for the kernel's own.
    #[serde(default)]
    pub scratch_bytes: u64,
    /// The most processes and threads of the sandbox; 0 stands for no limit of its own.
    #[serde(default)]
    pub max_processes: u32,
    /// The agent may make user namespaces, for a sandbox of its own.
    #[serde(default)]
    pub nested: bool,
    /// The only TCP ports that the agent may connect to, on any address, where the kernel can limit
    /// that (Linux 6.7). `None` is every port.
    #[serde(default)]
    pub ports: Option<Vec<u16>>,
}

/// A path, by its real name, and its form in the sandbox. A symbolic link stays a link. Of two
/// places the deeper one wins; of two for the same path, the one with the later variant of
/// [`What`]. A path that does not exist outside is left out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    pub path: PathBuf,
    pub what: What,
}

impl Place {
    /// Returns the outside path at which the agent's `path`, which is in this place, is written.
    /// `None` if `path` is not in it, or if both paths are the same.
    pub fn instead_of(&self, path: &Path) -> Option<PathBuf> {
        let (What::Instead(other) | What::Overlay { changes: other, .. }) = &self.what else {
            return None;
        };
        let rest = path.strip_prefix(&self.path).ok()?;
        Some(if rest.as_os_str().is_empty() { other.clone() } else { other.join(rest) })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// An empty directory that stays empty.
    Hidden,
    /// An empty directory of the agent, which disappears with it.
    Scratch,
    /// The path as it is outside of the sandbox, read-only.
    Show,
    /// The path as it is outside of the sandbox, writable.
    Write,
    /// Another path is shown at this place, writable.
    Instead(PathBuf),
    /// A socket without a listener, because a client can connect to a read-only socket. Also a file
    /// that cannot be read.
    Closed,
    /// A symbolic link, which leads to this path.
    Link(PathBuf),
    /// The directory as it is outside, writable; the changes go to the folder `changes`. `work` is
    /// an empty folder of the same file system, for the kernel. Where the kernel has no overlays
    /// for this, only `changes` is shown.
    Overlay { changes: PathBuf, work: PathBuf },
}

impl What {
    /// Whether the machine's own path can be seen there.
    pub fn shows(&self) -> bool {
        match self {
            Self::Show | Self::Write | Self::Overlay { .. } => true,
            Self::Hidden | Self::Scratch | Self::Closed | Self::Link(_) | Self::Instead(_) => false,
        }
    }
}

/// The step that failed, and the system's error.
#[derive(Debug)]
pub struct SandboxError {
    pub step: String,
    pub source: io::Error,
}

impl fmt::Display for SandboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step, self.source)
    }
}

impl std::error::Error for SandboxError {}

fn at(step: impl Into<String>) -> impl FnOnce(io::Error) -> SandboxError {
    let step = step.into();
    move |source| SandboxError { step, source }
}

/// Begins a line of the sandbox on standard error.
pub const LABEL: &str = "muleteer: sandbox: ";

impl Plan {
    pub fn new(places: Vec<Place>) -> Self {
        Self { v: VERSION, places, scratch_bytes: 0, max_processes: 0, nested: false, ports: None }
    }

    /// Reads a plan from a file.
    ///
    /// # Errors
    /// Says what is wrong with the file.
    pub fn read(path: &Path) -> io::Result<Self> {
        let plan: Self = serde_json::from_slice(&std::fs::read(path)?)?;
        match plan.v {
            VERSION => Ok(plan),
            other => Err(io::Error::other(format!(
                "{} has version {other}, but this muleteer knows {VERSION}",
                path.display()
            ))),
        }
    }

    /// Says which paths of the machine an agent does not see, and how to show one.
    #[cfg(any(target_os = "linux", test))]
    fn explanation(&self) -> String {
        let own = self.places.iter().filter(|place| place.what == What::Scratch);
        let own: Vec<_> = own.map(|place| place.path.display().to_string()).collect();
        format!(
            "The sandbox has its own {}: `sandbox.show` in the configuration shows a path of the \
             machine's",
            own.join(", ")
        )
    }

    /// Returns the nearest place above `path`.
    #[cfg(target_os = "linux")]
    fn above(&self, path: &Path) -> Option<&Place> {
        let above = self.places.iter().filter(|place| path != place.path);
        let above = above.filter(|place| path.starts_with(&place.path));
        above.max_by_key(|place| place.path.components().count())
    }

    /// Returns the places, parents before their contents.
    #[cfg(any(target_os = "linux", test))]
    fn in_order(&self) -> Vec<&Place> {
        let mut places: Vec<&Place> = self.places.iter().collect();
        places.sort_by_key(|place| (place.path.components().count(), &place.path, &place.what));
        places
    }
}

/// Runs the program in the sandbox of `plan` and ends with its exit status or signal. Only for a
/// process with one thread that was started for this.
#[cfg(target_os = "linux")]
pub fn run(
    plan: &Plan,
    cwd: &Path,
    argv: &[CString],
) -> Result<std::convert::Infallible, SandboxError> {
    // SAFETY: getppid has no preconditions.
    let parent = unsafe { libc::getppid() };
    deaf();
    unshare(parent)?;
    let view = view::View::build(plan)?;
    std::env::set_current_dir("/").map_err(at("chdir /"))?;
    let (alive, held) = pipe::pair().map_err(at("pipe"))?;
    let (heard, tell) = pipe::pair().map_err(at("pipe"))?;
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        -1 => Err(at("fork")(io::Error::last_os_error())),
        0 => {
            drop((held, heard));
            init(&Sandboxed { plan, view: &view, cwd, argv }, &alive, tell)
        }
        pid => {
            drop((alive, tell));
            let ended = wait_for_init(&heard, pid);
            drop(held);
            explain(plan, ended);
            end_as(ended)
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub fn run(_: &Plan, _: &Path, _: &[CString]) -> Result<std::convert::Infallible, SandboxError> {
    Err(at("sandbox")(io::ErrorKind::Unsupported.into()))
}

/// Ignores signals that go to the whole group: the agent reacts to them, and this process ends as
/// the agent does.
#[cfg(target_os = "linux")]
fn deaf() {
    for signo in
        [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2]
    {
        // SAFETY: ignoring a signal has no preconditions.
        unsafe { libc::signal(signo, libc::SIG_IGN) };
    }
}

#[cfg(target_os = "linux")]
fn unshare(parent: libc::pid_t) -> Result<(), SandboxError> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC;
    // SAFETY: no pointers; this process has one thread and was started for this.
    if unsafe { libc::unshare(flags) } != 0 {
        return Err(at("unshare")(io::Error::last_os_error()));
    }
    // The new credentials have cleared the parent-death signal.
    die_with(Some(parent));
    std::fs::write("/proc/self/setgroups", "deny").map_err(at("setgroups"))?;
    std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1")).map_err(at("uid_map"))?;
    std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1")).map_err(at("gid_map"))?;
    Ok(())
}

/// Makes the kernel kill this process when its parent dies; exits if the parent is already dead.
#[cfg(target_os = "linux")]
fn die_with(parent: Option<libc::pid_t>) {
    // SAFETY: prctl with plain numbers; getppid and _exit have no preconditions.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if parent.is_some_and(|parent| libc::getppid() != parent) {
            libc::_exit(i32::from(CANNOT));
        }
    }
}

/// The agent that the first process of the pid namespace starts.
#[cfg(target_os = "linux")]
struct Sandboxed<'a> {
    plan: &'a Plan,
    view: &'a view::View,
    cwd: &'a Path,
    argv: &'a [CString],
}

/// Runs the first process of the pid namespace. Never returns.
#[cfg(target_os = "linux")]
fn init(sandboxed: &Sandboxed<'_>, alive: &OwnedFd, tell: OwnedFd) -> ! {
    die_with(None);
    // Our parent holds the other end. If it is closed, the parent died before the parent-death
    // signal was set.
    let mut fds = [rustix::event::PollFd::new(alive, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    if rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0) {
        exit(CANNOT);
    }
    if let Err(error) = sandboxed.view.enter(sandboxed.cwd) {
        complain(&error);
        exit(CANNOT);
    }
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        -1 => {
            complain(&at("fork")(io::Error::last_os_error()));
            exit(CANNOT)
        }
        0 => become_agent(sandboxed),
        agent => {
            // A reader of the agent's pipes must see end of file when the agent ends, not when we
            // do.
            let keep = tell.as_raw_fd();
            // SAFETY: nothing else in this process uses a descriptor from here on.
            unsafe {
                for fd in 0..3 {
                    libc::close(fd);
                }
            }
            close_all_but(keep);
            loop {
                let mut status = 0;
                // SAFETY: waitpid writes one int.
                let pid = unsafe { libc::waitpid(-1, &raw mut status, 0) };
                if pid == agent {
                    if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGTERM {
                        outlive_grace();
                    }
                    let _ = rustix::io::write(&tell, &status.to_ne_bytes());
                    exit(0);
                }
                if pid == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD) {
                    exit(CANNOT);
                }
            }
        }
    }
}

/// Waits for the other processes after the agent died of TERM. Usually the agent is a shell that
/// ran the real one, and the whole group got the TERM: all of them have the same grace period, and
/// the sender of the TERM kills us at its end. Our own end takes the whole namespace along.
#[cfg(target_os = "linux")]
fn outlive_grace() {
    let begun = std::time::Instant::now();
    while begun.elapsed() < GRACE {
        let mut status = 0;
        // SAFETY: waitpid writes one int.
        match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
            0 => std::thread::sleep(std::time::Duration::from_millis(10)),
            -1 => return,
            _ => {}
        }
    }
}

#[cfg(target_os = "linux")]
fn close_all_but(keep: RawFd) {
    let keep = keep as libc::c_uint;
    // SAFETY: plain numbers; nothing uses the others any more.
    unsafe {
        if keep > 0 {
            libc::syscall(libc::SYS_close_range, 0 as libc::c_uint, keep - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, keep + 1, libc::c_uint::MAX, 0);
    }
}

#[cfg(target_os = "linux")]
fn become_agent(sandboxed: &Sandboxed<'_>) -> ! {
    let argv = sandboxed.argv;
    let mut words: Vec<*const libc::c_char> = argv.iter().map(|word| word.as_ptr()).collect();
    words.push(std::ptr::null());
    // SAFETY: plain numbers, and strings that are NUL-terminated and live until the exec.
    unsafe {
        crate::signals::inherited::reset_before_exec();
        libc::syscall(libc::SYS_close_range, 3 as libc::c_uint, libc::c_uint::MAX, 0);
        rights::forget_keys();
        if let Err(error) = rights::give_up(sandboxed.plan) {
            complain(&error);
            libc::_exit(i32::from(CANNOT));
        }
        libc::execvp(words[0], words.as_ptr());
        let error = io::Error::last_os_error();
        let name = argv.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
        complain(&at(format!("cannot start {name}"))(error));
        libc::_exit(127)
    }
}

/// Returns the agent's wait status; `None` if init died before it reported one.
#[cfg(target_os = "linux")]
fn wait_for_init(heard: &OwnedFd, init: libc::pid_t) -> Option<i32> {
    let mut told = [0; 4];
    let mut have = 0;
    while have < told.len() {
        match rustix::io::read(heard, &mut told[have..]) {
            Ok(0) => break,
            Ok(count) => have += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => break,
        }
    }
    let mut status = 0;
    // SAFETY: waitpid writes one int.
    while unsafe { libc::waitpid(init, &raw mut status, 0) } == -1
        && io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
    {}
    (have == told.len())
        .then(|| i32::from_ne_bytes(told))
        .or(Some(status).filter(|status| *status != 0))
}

/// Names the sandbox on standard error if a program could not be run: the system and the shell only
/// say that there is no such file.
#[cfg(target_os = "linux")]
fn explain(plan: &Plan, status: Option<i32>) {
    let code =
        status.filter(|status| libc::WIFEXITED(*status)).map(|status| libc::WEXITSTATUS(status));
    if let Some(code) = code.filter(|code| matches!(code, 126 | 127)) {
        say(&format!("exit code {code}: a program cannot be run. {}", plan.explanation()));
    }
}

#[cfg(target_os = "linux")]
fn end_as(status: Option<i32>) -> ! {
    let Some(status) = status else { exit(CANNOT) };
    if libc::WIFSIGNALED(status) {
        let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
        let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
        // SAFETY: plain numbers.
        unsafe {
            libc::signal(libc::WTERMSIG(status), libc::SIG_DFL);
            libc::raise(libc::WTERMSIG(status));
        }
        exit(CANNOT);
    }
    exit(libc::WEXITSTATUS(status) as u8)
}

#[cfg(target_os = "linux")]
fn exit(code: u8) -> ! {
    // SAFETY: nothing of this process needs to be tidied away.
    unsafe { libc::_exit(i32::from(code)) }
}

/// Writes to standard error, where the agent's own last message would be.
fn complain(error: &SandboxError) {
    say(&error.to_string());
}

fn say(text: &str) {
    let line = format!("{LABEL}{text}\n");
    // SAFETY: descriptor 2 is this process's; where it is closed, nobody listens.
    let stderr = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(2) });
    let _ = rustix::io::write(stderr.as_fd(), line.as_bytes());
}

/// Implements `confine PLAN CWD WORD…`, which a shim runs in the agent's place. It ends as the
/// agent ends.
pub fn main(args: impl IntoIterator<Item = std::ffi::OsString>) -> std::process::ExitCode {
    let mut args = args.into_iter();
    let (Some(plan), Some(cwd)) = (args.next(), args.next()) else { return CANNOT.into() };
    let argv: Result<Vec<CString>, _> = args.map(|word| CString::new(word.as_bytes())).collect();
    let outcome = match (Plan::read(Path::new(&plan)), argv) {
        (Ok(plan), Ok(argv)) if !argv.is_empty() => run(&plan, Path::new(&cwd), &argv),
        (Err(error), _) => Err(at("plan")(error)),
        _ => Err(at("plan")(io::ErrorKind::InvalidInput.into())),
    };
    match outcome {
        Err(error) => complain(&error),
        Ok(never) => match never {},
    }
    CANNOT.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explanation_names_the_private_folders_and_the_setting() {
        let place = |path: &str| Place { path: path.into(), what: What::Scratch };
        let said = Plan::new(vec![place("/tmp"), place("/var/tmp")]).explanation();
        assert!(said.contains("own /tmp, /var/tmp:") && said.contains("sandbox.show"), "{said}");
    }

    #[test]
    fn mounts_are_ordered_parents_first_and_exceptions_last() {
        let place = |path: &str, what| Place { path: path.into(), what };
        let plan = Plan::new(vec![
            place("/a/b/c", What::Write),
            place("/a/b", What::Show),
            place("/a", What::Write),
            place("/a/b", What::Hidden),
        ]);
        let order: Vec<String> = plan
            .in_order()
            .iter()
            .map(|place| format!("{} {:?}", place.path.display(), place.what))
            .collect();
        assert_eq!(order, ["/a Write", "/a/b Hidden", "/a/b Show", "/a/b/c Write"]);
    }
}
