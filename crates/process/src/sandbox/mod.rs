//! The sandbox of an agent: a user, mount, pid and ipc namespace. A [`Plan`] says which paths the
//! agent can see and write (docs/design/sandbox.md).
//!
//! ```text
//!  shim's child ── unshare, mounts ── fork ─▶ init (pid 1): its own /proc, reaps, closes its
//!   │                                         │  descriptors
//!   │ ignores TERM                            └─ fork ─▶ the agent: no capabilities,
//!   │                                                    no new privileges
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
const VERSION: u16 = 1;
/// Longer than any grace period between TERM and KILL (10 s by default), so that the killer's own
/// deadline decides.
#[cfg(target_os = "linux")]
const GRACE: std::time::Duration = std::time::Duration::from_secs(15);

/// Which paths the sandbox shows. Everything that no place covers is as outside, but read-only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub v: u16,
    pub places: Vec<Place>,
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
    /// Returns the outside path of `path`, which is in this place. `None` if `path` is not in it,
    /// or if both paths are the same.
    pub fn instead_of(&self, path: &Path) -> Option<PathBuf> {
        let What::Instead(other) = &self.what else { return None };
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
    /// A socket without a listener, because a client can connect to a read-only socket.
    Closed,
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
        Self { v: VERSION, places }
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
    mount_all(plan)?;
    std::env::set_current_dir(cwd).map_err(at(format!("chdir {}", cwd.display())))?;
    let (alive, held) = pipe::pair().map_err(at("pipe"))?;
    let (heard, tell) = pipe::pair().map_err(at("pipe"))?;
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        -1 => Err(at("fork")(io::Error::last_os_error())),
        0 => {
            drop((held, heard));
            init(&alive, tell, argv)
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

#[cfg(target_os = "linux")]
fn mount_all(plan: &Plan) -> Result<(), SandboxError> {
    use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags};
    use rustix::mount::{mount, mount_change, move_mount, open_tree};
    let errno = |step: String| move |error: rustix::io::Errno| at(step)(error.into());
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(errno("private mounts".into()))?;
    let places = plan.in_order();
    // Opened while everything is still visible and writable.
    let mut trees: Vec<Option<OwnedFd>> = vec![];
    // A link is a place itself. If its target matters, that is another place.
    let clone = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    for place in &places {
        let from = match &place.what {
            What::Hidden | What::Scratch => None,
            What::Show | What::Write => Some(place.path.as_path()),
            What::Instead(other) => Some(other.as_path()),
            What::Closed => Some(Path::new("/dev/null")),
        };
        trees.push(match from {
            None => None,
            Some(path) => match open_tree(rustix::fs::CWD, path, clone) {
                Ok(tree) => Some(tree),
                Err(rustix::io::Errno::NOENT) => None,
                Err(error) => return Err(errno(format!("open {}", path.display()))(error)),
            },
        });
    }
    set_read_only(Path::new("/"), true).map_err(at("read-only /"))?;
    let mut hidden = vec![];
    for (place, tree) in places.iter().zip(&trees) {
        let (path, shown) = (&place.path, place.path.display());
        match &place.what {
            What::Hidden | What::Scratch => {
                // A directory below a hidden or scratch one has disappeared and may be needed.
                // Elsewhere it never existed.
                if !path.is_dir() && std::fs::create_dir_all(path).is_err() {
                    continue;
                }
                hidden.extend((place.what == What::Hidden).then_some(path));
                let mode = if place.what == What::Scratch { c"mode=1777" } else { c"mode=0755" };
                mount("tmpfs", path, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(mode))
                    .map_err(errno(format!("tmpfs over {shown}")))?;
            }
            // A socket in a hidden directory is already unreachable.
            What::Closed if path.symlink_metadata().is_err() => {}
            What::Show | What::Write | What::Instead(_) | What::Closed => {
                let Some(tree) = tree else { continue };
                let is_dir = rustix::fs::fstat(tree)
                    .map_err(errno(format!("stat {shown}")))
                    .map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir())?;
                make_target(path, is_dir).map_err(at(format!("a place for {shown}")))?;
                move_mount(
                    tree,
                    "",
                    rustix::fs::CWD,
                    path,
                    MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
                )
                .map_err(errno(format!("mount {shown}")))?;
                if place.what == What::Show {
                    set_read_only(path, true).map_err(at(format!("read-only {shown}")))?;
                }
            }
        }
    }
    // The mount points inside them have been created by now.
    for path in hidden {
        set_read_only(path, false).map_err(at(format!("read-only {}", path.display())))?;
    }
    Ok(())
}

/// Creates a mount point if a hidden directory has none.
#[cfg(target_os = "linux")]
fn make_target(path: &Path, is_dir: bool) -> io::Result<()> {
    if path.symlink_metadata().is_ok() {
        return Ok(());
    }
    if is_dir {
        return std::fs::create_dir_all(path);
    }
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::File::create(path).map(|_| ())
}

#[cfg(target_os = "linux")]
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

#[cfg(target_os = "linux")]
pub(crate) fn set_read_only(path: &Path, recursive: bool) -> io::Result<()> {
    const MOUNT_ATTR_RDONLY: u64 = 1;
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attr = MountAttr { set: MOUNT_ATTR_RDONLY, ..MountAttr::default() };
    let flags = libc::AT_SYMLINK_NOFOLLOW | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is NUL-terminated, and the structure as large as is said.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Runs the first process of the pid namespace. Never returns.
#[cfg(target_os = "linux")]
fn init(alive: &OwnedFd, tell: OwnedFd, argv: &[CString]) -> ! {
    die_with(None);
    // Our parent holds the other end. If it is closed, the parent died before the parent-death
    // signal was set.
    let mut fds = [rustix::event::PollFd::new(alive, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    if rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0) {
        exit(CANNOT);
    }
    if let Err(error) = own_proc() {
        complain(&error);
        exit(CANNOT);
    }
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        -1 => {
            complain(&at("fork")(io::Error::last_os_error()));
            exit(CANNOT)
        }
        0 => become_agent(argv),
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

/// Mounts a `/proc` of this namespace. Its files for system settings are read-only.
#[cfg(target_os = "linux")]
fn own_proc() -> Result<(), SandboxError> {
    use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, mount, move_mount, open_tree};
    let errno = |step: &'static str| move |error: rustix::io::Errno| at(step)(error.into());
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None).map_err(errno("proc"))?;
    for path in ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"] {
        let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let Ok(tree) = open_tree(rustix::fs::CWD, path, clone) else { continue };
        move_mount(&tree, "", rustix::fs::CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(errno("/proc/sys"))?;
        set_read_only(Path::new(path), false).map_err(at("read-only /proc/sys"))?;
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn become_agent(argv: &[CString]) -> ! {
    let mut words: Vec<*const libc::c_char> = argv.iter().map(|word| word.as_ptr()).collect();
    words.push(std::ptr::null());
    // SAFETY: plain numbers, and strings that are NUL-terminated and live until the exec.
    unsafe {
        crate::signals::inherited::reset_before_exec();
        if let Err(error) = give_up_rights() {
            complain(&error);
            libc::_exit(i32::from(CANNOT));
        }
        libc::syscall(libc::SYS_close_range, 3 as libc::c_uint, libc::c_uint::MAX, 0);
        libc::execvp(words[0], words.as_ptr());
        let error = io::Error::last_os_error();
        let name = argv.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
        complain(&at(format!("cannot start {name}"))(error));
        libc::_exit(127)
    }
}

/// Drops all capabilities for good, and lets no set-uid program grant any.
#[cfg(target_os = "linux")]
fn give_up_rights() -> Result<(), SandboxError> {
    const NO_ROOT_LOCKED: libc::c_ulong = 0b11;
    // SAFETY: prctl with plain numbers; capset reads a header and two records of zeros.
    unsafe {
        libc::prctl(libc::PR_SET_SECUREBITS, NO_ROOT_LOCKED, 0, 0, 0);
        for capability in 0..=63 {
            libc::prctl(libc::PR_CAPBSET_DROP, capability as libc::c_ulong, 0, 0, 0);
        }
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1 as libc::c_ulong, 0, 0, 0) != 0 {
            return Err(at("no_new_privs")(io::Error::last_os_error()));
        }
        let header: [u32; 2] = [0x2008_0522, 0];
        let none = [[0_u32; 3]; 2];
        if libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) != 0 {
            return Err(at("capset")(io::Error::last_os_error()));
        }
    }
    Ok(())
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
