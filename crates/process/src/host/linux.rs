//! Linux: `/proc`, pidfds, subreaper.

use crate::host::{Abilities, Host, Stat};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug)]
pub struct Linux;

impl Host for Linux {
    fn pids(&self) -> Vec<u32> {
        let Ok(entries) = std::fs::read_dir("/proc") else { return vec![] };
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    fn stat(&self, pid: u32) -> Option<Stat> {
        let mut line = [0; STAT];
        parse_stat(kernel_line(&format!("/proc/{pid}/stat"), &mut line)?)
    }

    fn began_before(&self, start_time: u64, other: u64) -> bool {
        start_time < other
    }

    fn children(&self, pid: u32) -> Option<Vec<u32>> {
        let tasks = match std::fs::read_dir(format!("/proc/{pid}/task")) {
            Ok(tasks) => tasks,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(vec![]),
            Err(_) => return None,
        };
        let mut children = vec![];
        for task in tasks.flatten() {
            match std::fs::read_to_string(task.path().join("children")) {
                Ok(text) => children.extend(
                    text.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()),
                ),
                // Either the thread has ended, or the kernel was built without this file.
                Err(_) if !task.path().exists() => {}
                Err(_) => return None,
            }
        }
        Some(children)
    }

    fn name(&self, pid: u32) -> Option<String> {
        let mut line = [0; COMM];
        let name = kernel_line(&format!("/proc/{pid}/comm"), &mut line)?;
        let name = String::from_utf8_lossy(name).trim_end().to_owned();
        // A program that was started from a descriptor has the descriptor's number as its name.
        if !name.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(name);
        }
        let words = kernel_file(&format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let first = words.split(|byte| *byte == 0).next().unwrap_or_default();
        let first = first.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        Some(String::from_utf8_lossy(first).into_owned())
            .filter(|own| !own.is_empty())
            .or(Some(name))
    }

    fn cwd(&self, pid: u32) -> io::Result<Option<PathBuf>> {
        match std::fs::read_link(format!("/proc/{pid}/cwd")) {
            Ok(cwd) => Ok(Some(cwd)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn environ(&self, pid: u32) -> Option<Vec<u8>> {
        let environ = kernel_file(&format!("/proc/{pid}/environ"))?;
        if environ.is_empty() && self.stat(pid).is_some_and(|stat| stat.leader_gone) {
            // The first thread has ended and released its view of the memory; others still run.
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
            return tasks
                .flatten()
                .filter_map(|task| std::fs::read(task.path().join("environ")).ok())
                .find(|environ| !environ.is_empty());
        }
        Some(environ)
    }

    fn boot_id(&self) -> String {
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map_or_else(|_| "unknown".into(), |id| id.trim().to_owned())
    }

    fn pid_namespace(&self) -> u64 {
        std::fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino())
    }

    fn pin(&self, pid: u32) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => Ok(Some(fd)),
            Err(rustix::io::Errno::NOSYS) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn become_subreaper(&self) -> bool {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).is_ok()
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            pidfd: matches!(self.pin(std::process::id()), Ok(Some(_))),
            subreaper: true,
            parent_death_signal: true,
        }
    }
}

/// A name of at most 64 bytes and fifty numbers of at most 20 digits.
const STAT: usize = 2048;
/// Such a name, a newline, and spare room that shows that the file ended.
const COMM: usize = 128;

/// Reads a one-line kernel file. The kernel returns it whole with the first read if there is room.
fn kernel_line<'a>(path: &str, room: &'a mut [u8]) -> Option<&'a [u8]> {
    let len = File::open(path).ok()?.read(room).ok()?;
    (len < room.len()).then_some(&room[..len])
}

/// Reads a whole kernel file. Such files report length 0, so the length is not asked for.
fn kernel_file(path: &str) -> Option<Vec<u8>> {
    const USUAL: usize = 4096;
    let mut file = File::open(path).ok()?;
    let (mut bytes, mut len) = (vec![0; USUAL], 0);
    loop {
        match file.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
        if len == bytes.len() {
            bytes.resize(len * 2, 0);
        }
    }
    bytes.truncate(len);
    Some(bytes)
}

/// Parses `/proc/PID/stat`. The name in parentheses may contain spaces and parentheses, so fields
/// are counted from the last closing one.
fn parse_stat(line: &[u8]) -> Option<Stat> {
    let open = line.iter().position(|&byte| byte == b'(')?;
    let close = line.iter().rposition(|&byte| byte == b')')?;
    let pid = std::str::from_utf8(line.get(..open)?).ok()?.trim().parse().ok()?;
    let rest = std::str::from_utf8(line.get(close + 1..)?).ok()?;
    // Counted as in proc(5), where the state is field 3.
    let mut fields = [""; 24 - 2];
    fields
        .iter_mut()
        .zip(rest.split_ascii_whitespace())
        .for_each(|(field, text)| *field = text);
    let number = |n: usize| fields[n - 3].parse::<i64>().ok();
    let dead = matches!(fields[0], "Z" | "X" | "x");
    let threads = number(20)?;
    let ticks = |n: usize| number(n).unwrap_or(0).max(0) as u64;
    let time = |ticks: u64| {
        Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second().max(1))
    };
    Some(Stat {
        pid,
        parent: number(4)?.max(0) as u32,
        group: number(5)?.max(0) as u32,
        session: number(6)?.max(0) as u32,
        start_time: fields[22 - 3].parse().ok()?,
        zombie: dead && threads <= 1,
        leader_gone: dead && threads > 1,
        stopped: fields[0] == "T",
        rss: number(24).unwrap_or(0).max(0) as u64 * rustix::param::page_size() as u64,
        cpu: time(ticks(14) + ticks(15)),
        reaped_cpu: time(ticks(16) + ticks(17)),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_is_no_trouble() {
        let line = b"42 (a) Z (b) S 1 42 40 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 9876 1000 3 \
            18446744073709551615 1 1";
        let stat = parse_stat(line).unwrap();
        assert_eq!((stat.pid, stat.parent, stat.group, stat.session), (42, 1, 42, 40));
        assert_eq!(stat.start_time, 9876);
        assert!(!stat.zombie && !stat.leader_gone && !stat.stopped);
        for (state, stopped) in [(" T 1 42", true), (" t 1 42", false)] {
            let line = String::from_utf8_lossy(line).replace(" S 1 42", state);
            assert_eq!(parse_stat(line.as_bytes()).unwrap().stopped, stopped, "{state}");
        }
        let only_leader_gone = String::from_utf8_lossy(line)
            .replace(" S 1 42", " Z 1 42")
            .replace(" 20 0 1 0 ", " 20 0 5 0 ");
        let stat = parse_stat(only_leader_gone.as_bytes()).unwrap();
        assert!(!stat.zombie && stat.leader_gone, "its other threads still run");
        assert_eq!(stat.rss, 3 * rustix::param::page_size() as u64);
    }

    /// A process that is ending has no directory any more. That differs from an unknown directory.
    #[test]
    fn process_identity_is_known_until_the_exit() {
        let dir = tempfile::tempdir().unwrap();
        let mut child =
            crate::command::helper("sleep").arg("60").current_dir(dir.path()).spawn().unwrap();
        assert_eq!(Linux.cwd(child.id()).unwrap(), Some(dir.path().canonicalize().unwrap()));
        child.kill().unwrap();
        while !Linux.stat(child.id()).unwrap().zombie {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(Linux.cwd(child.id()).unwrap(), None);
        child.wait().unwrap();
        assert_eq!(Linux.cwd(child.id()).unwrap(), None);
    }

    #[test]
    fn cpu_time_is_its_own_and_that_of_its_dead() {
        let line = b"42 (x) S 1 42 40 0 -1 0 1 0 0 0 150 50 1000 200 20 0 1 0 9876 1000 3 0 1 1";
        let stat = parse_stat(line).unwrap();
        let ticks = |ticks: u64| {
            Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
        };
        assert_eq!((stat.cpu, stat.reaped_cpu), (ticks(200), ticks(1200)));
    }

    #[test]
    fn garbage_is_no_process() {
        for line in [&b""[..], b"1", b"1 (", b")(", b"1 (x) S", b"x (y) S 1 1 1"] {
            assert_eq!(parse_stat(line), None);
        }
    }
}
