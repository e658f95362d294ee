//! Finds the living processes of a world. A process belongs to a world if its environment, its
//! arguments or its working directory has the world's path: every world's HOME is a fresh random
//! path.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

#[derive(Debug, Clone)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    pub command: String,
    environment: Vec<u8>,
}

impl Process {
    /// Returns a variable of the environment with which the process was started.
    pub fn variable(&self, name: &str) -> Option<String> {
        let wanted = format!("{name}=");
        let of = |entry: &[u8]| entry.strip_prefix(wanted.as_bytes()).map(<[u8]>::to_vec);
        let value = self.environment.split(|byte| *byte == 0).find_map(of)?;
        Some(String::from_utf8_lossy(&value).into_owned())
    }

    /// Returns whether the process has a shim's name. So has the child that has not yet become the
    /// agent (see [`shims`]).
    fn is_shim(&self) -> bool {
        let mut words = self.command.split(' ');
        let program = words.next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
        program == "muleteer-shim" || (program == "muleteer" && words.next() == Some("shim"))
    }

    /// Returns whether the process is a daemon's zygote, which ends with the daemon.
    pub fn is_zygote(&self) -> bool {
        self.command.split(' ').next() == Some("muleteer-zygote")
    }

    pub fn is_daemon(&self) -> bool {
        let mut words = self.command.split(' ');
        let program = words.next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
        program == "muleteer" && words.any(|word| word == "daemon")
    }
}

impl fmt::Display for Process {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} (parent {}): {}", self.pid, self.parent, self.command)
    }
}

/// Returns every living process of the world at `path` except this one. Zombies count as dead.
pub fn of_world(path: &Path) -> Vec<Process> {
    let needle = path.as_os_str().as_bytes();
    let own = std::process::id();
    let entries = std::fs::read_dir("/proc").expect("/proc");
    let pids =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != own).filter_map(|pid| read(pid, needle)).collect()
}

fn read(pid: u32, needle: &[u8]) -> Option<Process> {
    let file = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let (environment, arguments) = (file("environ"), file("cmdline"));
    let cwd = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
    let ours = contains(&environment, needle)
        || contains(&arguments, needle)
        || contains(cwd.as_os_str().as_bytes(), needle);
    let stat = String::from_utf8_lossy(&file("stat")).into_owned();
    // `pid (any text) S ppid …`
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let command = String::from_utf8_lossy(&arguments).replace('\0', " ").trim().to_string();
    (ours && !matches!(state, "Z" | "X")).then_some(Process { pid, parent, command, environment })
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    needle.is_empty() || haystack.windows(needle.len()).any(|window| window == needle)
}

/// Returns the kernel function that each thread waits in, and the open files, for the reader of a
/// failure.
pub fn at_what(pid: u32) -> String {
    let entries = |name: &str| {
        std::fs::read_dir(format!("/proc/{pid}/{name}")).into_iter().flatten().flatten()
    };
    let read = |path: std::path::PathBuf| {
        std::fs::read_to_string(path).unwrap_or_default().trim().to_string()
    };
    let threads = entries("task").map(|thread| {
        let path = thread.path();
        format!("\n    {} {}", read(path.join("comm")), read(path.join("wchan")))
    });
    let files = entries("fd")
        .filter_map(|fd| Some(format!("\n    {}", std::fs::read_link(fd.path()).ok()?.display())));
    threads.chain(files).collect()
}

/// Returns the shims among `all`. The child that is about to become the agent still looks like its
/// shim.
pub fn shims(all: &[Process]) -> Vec<&Process> {
    let is_child_of_shim =
        |one: &Process| all.iter().any(|other| other.pid == one.parent && other.is_shim());
    all.iter().filter(|one| one.is_shim() && !is_child_of_shim(one)).collect()
}

/// Returns a daemon's zygote, which belongs to a world only by its parent.
pub fn zygote(daemon: u32) -> Option<Process> {
    let entries = std::fs::read_dir("/proc").expect("/proc");
    let pids =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| read(pid, b"")).find(|one| one.parent == daemon && one.is_zygote())
}

/// Sends SIGKILL to the zygote, if there is one.
pub fn kill_zygote(daemon: u32) {
    let Some(zygote) = zygote(daemon).and_then(|one| Pid::from_raw(one.pid.cast_signed())) else {
        return;
    };
    let Ok(handle) = pidfd_open(zygote, PidfdFlags::empty()) else { return };
    // The zygote is still the daemon's child, so no other process had its pid by then.
    if self::zygote(daemon)
        .is_some_and(|one| one.pid.cast_signed() == zygote.as_raw_nonzero().get())
    {
        let _ = pidfd_send_signal(handle, Signal::KILL);
    }
}

/// Returns true if `pid` exists and is no zombie.
pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Sends SIGKILL to one process of a world, through a pidfd, so that a recycled pid is never hit.
pub fn kill_9(path: &Path, pid: u32) {
    signal(path, pid, Signal::KILL);
}

/// Sends a signal to a process of the world at `path`, and to no other process that got its pid
/// since.
pub fn signal(path: &Path, pid: u32, signal: Signal) {
    let Some(handle) =
        Pid::from_raw(pid.cast_signed()).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
    else {
        return;
    };
    if read(pid, path.as_os_str().as_bytes()).is_some() {
        let _ = pidfd_send_signal(handle, signal);
    }
}

/// Kills every process of the world at `path`, repeatedly until none is left, because a dying tree
/// may still fork. Returns the processes that do not end.
pub fn end_all(path: &Path) -> Vec<Process> {
    let mut left = of_world(path);
    for _ in 0..100 {
        if left.is_empty() {
            break;
        }
        for process in &left {
            kill_9(path, process.pid);
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        left = of_world(path);
    }
    left
}
