//! Any POSIX system, by `ps`. It is slower, and nothing pins a process: a pid is compared with its
//! start time right before it is used, which narrows the race to microseconds but cannot close it.

use crate::command::helper;
use crate::host::{Abilities, Host, Stat};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

#[derive(Debug)]
pub struct Portable;

impl Host for Portable {
    fn pids(&self) -> Vec<u32> {
        ps(&["-A", "-o", "pid="]).lines().filter_map(|line| line.trim().parse().ok()).collect()
    }

    fn stat(&self, pid: u32) -> Option<Stat> {
        parse(
            ps(&["-p", &pid.to_string(), "-o", "pid=,ppid=,pgid=,rss=,stat=,time=,lstart="])
                .lines()
                .next()?,
        )
    }

    fn children(&self, _: u32) -> Option<Vec<u32>> {
        None
    }

    fn name(&self, pid: u32) -> Option<String> {
        let program = ps(&["-p", &pid.to_string(), "-o", "comm="]);
        let name = program.trim().rsplit('/').next().unwrap_or_default();
        Some(name.to_owned()).filter(|name| !name.is_empty())
    }

    fn cwd(&self, _: u32) -> io::Result<Option<PathBuf>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn environ(&self, pid: u32) -> Option<Vec<u8>> {
        // `ps -E` appends the environment of our own processes to the command, separated by spaces.
        let text = ps(&["-E", "-ww", "-p", &pid.to_string(), "-o", "command="]);
        (!text.is_empty()).then(|| {
            text.trim_end().bytes().map(|byte| if byte == b' ' { 0 } else { byte }).collect()
        })
    }

    fn boot_id(&self) -> String {
        let sysctl = |name| run(helper("sysctl").args(["-n", name]));
        let session = sysctl("kern.bootsessionuuid");
        let id = if session.trim().is_empty() { sysctl("kern.boottime") } else { session };
        if id.trim().is_empty() { "unknown".into() } else { id.trim().to_owned() }
    }

    fn pid_namespace(&self) -> u64 {
        0
    }

    fn pin(&self, _: u32) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }

    fn become_subreaper(&self) -> bool {
        false
    }

    fn abilities(&self) -> Abilities {
        Abilities { pidfd: false, subreaper: false, parent_death_signal: false }
    }
}

fn ps(args: &[&str]) -> String {
    run(helper("ps").args(args))
}

fn run(command: &mut Command) -> String {
    let command = command.env("LC_ALL", "C").stderr(Stdio::null());
    command
        .output()
        .map_or_else(|_| String::new(), |out| String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Parses one line of `pid ppid pgid rss stat time lstart`. The start time is a hash of the text of
/// `lstart`, because it is only compared.
fn parse(line: &str) -> Option<Stat> {
    let mut fields = line.split_ascii_whitespace();
    let mut number = || fields.next()?.parse::<u32>().ok();
    let (pid, parent, group, rss) = (number()?, number()?, number()?, number()?);
    let state = fields.next()?;
    let cpu = cpu_time(fields.next()?);
    let mut start_time = 0xcbf2_9ce4_8422_2325_u64;
    for byte in fields.flat_map(str::bytes) {
        start_time = (start_time ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    Some(Stat {
        pid,
        parent,
        group,
        session: 0,
        start_time,
        leader_gone: false,
        zombie: state.starts_with('Z'),
        stopped: state.starts_with('T'),
        rss: u64::from(rss) * 1024,
        cpu,
        reaped_cpu: Duration::ZERO,
    })
}

/// Parses `[[days-]hours:]minutes:seconds`; on some systems the seconds have a fraction.
fn cpu_time(text: &str) -> Duration {
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let mut seconds = 0.0;
    for part in clock.split(':') {
        seconds = seconds * 60.0 + part.parse::<f64>().unwrap_or(0.0);
    }
    seconds += days.parse::<f64>().unwrap_or(0.0) * 86_400.0;
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_line_of_ps_is_understood() {
        let one = parse("  42     1    42  1024 Ss   00:01:05 Sat Nov 21 23:09:25 2026").unwrap();
        let other =
            parse("  42     1    42  1024 Z    1-00:00:00 Sat Nov 21 23:09:26 2026").unwrap();
        assert_eq!((one.pid, one.parent, one.group, one.rss), (42, 1, 42, 1 << 20));
        assert!(!one.zombie && other.zombie && !one.stopped);
        assert!(
            parse("  42     1    42  1024 T    1-00:00:00 Sat Nov 21 23:09:26 2026")
                .unwrap()
                .stopped
        );
        assert_ne!(one.start_time, other.start_time);
        assert_eq!((one.cpu.as_secs(), other.cpu.as_secs()), (65, 86_400));
        assert_eq!(cpu_time("0:01.50"), Duration::from_millis(1500));
        assert_eq!(parse("nonsense"), None);
    }
}
