#![allow(clippy::unwrap_used)]
//! Too much output, and no room for it: memory stays flat, the pipe backs up, nothing is lost.

mod common;

use common::{Agent, PATIENCE, wait_for};
use muleteer_process::command::helper;
use muleteer_protocol::shim::v1::{FromShim, ToShim};
use muleteer_shim::attach::Client;
use muleteer_shim::control::{BlockReason, Cause, Control};
use muleteer_shim::launch::SpoolLimits;
use muleteer_shim::record::{Cursor, Stream};
use muleteer_shim::spool::{Reader, State};
use std::path::Path;

fn private_kb(pid: u32) -> u64 {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = smaps.lines().find(|line| line.starts_with("Private_Dirty")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

fn status(client: &mut Client) -> FromShim {
    client.send(&ToShim::Query).unwrap();
    client
        .receive_until(PATIENCE, |frame| {
            matches!(frame, FromShim::Status { .. }).then(|| frame.clone())
        })
        .unwrap()
}

#[test]
fn a_gigabyte_line_meets_the_cap_and_memory_stays_flat() {
    const TOTAL: usize = 3_000_000;
    let mut agent = Agent::script(&format!("head -c {TOTAL} /dev/zero; exit 7"));
    agent.launch.spool =
        SpoolLimits { segment_bytes: 128 << 10, cap_bytes: 512 << 10, retain_bytes: 128 << 10 };
    agent.start();
    agent.control("back-pressure", |c| {
        *c == Control::Blocked { on: true, reason: BlockReason::Cap }
    });
    let mut client = agent.attached();
    assert!(matches!(status(&mut client), FromShim::Status { blocked: true, .. }));
    let pid = agent.shim.as_ref().unwrap().id();
    let before = private_kb(pid);
    // A daemon reads and acknowledges, and the shim continues at its pace.
    let mut reader = Reader::open(&agent.spool());
    let mut cursor = Cursor::start_of(1);
    let (mut read, mut exited) = (0, None);
    let mut most = before;
    wait_for("all of it", || {
        let batch = reader.read(cursor, 256 << 10).unwrap();
        for record in &batch.records {
            match record.control() {
                Some(Control::Exited { code, .. }) => exited = code,
                Some(_) => {}
                None => read += record.bytes.len(),
            }
        }
        cursor = batch.next;
        most = most.max(private_kb_if_there(pid).unwrap_or(0));
        let _ = client.send(&ToShim::Ack { epoch: cursor.epoch, offset: cursor.offset });
        exited
    });
    assert_eq!((read, exited), (TOTAL, Some(7)));
    assert!(most < before + 512, "{before} kB grew to {most} kB");
    agent.gone();
}

fn private_kb_if_there(pid: u32) -> Option<u64> {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    smaps
        .lines()
        .find(|line| line.starts_with("Private_Dirty"))?
        .split_ascii_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

#[test]
fn blocked_agent_can_be_stopped_and_reports_its_exit() {
    let mut agent = Agent::script("yes");
    agent.launch.spool =
        SpoolLimits { segment_bytes: 64 << 10, cap_bytes: 256 << 10, retain_bytes: 0 };
    agent.start();
    agent.control("back-pressure", |c| matches!(c, Control::Blocked { on: true, .. }));
    let mut client = agent.attached();
    client.send(&ToShim::Terminate { idem: [1; 16], grace_ms: 5000 }).unwrap();
    agent.gone();
    assert!(matches!(agent.exited(), Control::Exited { cause: Cause::Terminated, .. }));
    let kept: u64 = std::fs::read_dir(agent.spool())
        .unwrap()
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum();
    assert!(kept < 600 << 10, "{kept}");
    let printed = agent.stream(Stream::Stdout);
    assert!(printed.chunks(2).all(|line| line == b"y\n" || line == b"y"), "torn in the middle");
}

/// A file system of one megabyte; unmounted with its owner.
struct TinyDisk(std::path::PathBuf);

impl TinyDisk {
    fn mount(at: &Path) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let mounted = helper("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
            .arg(at)
            .output()
            .ok()?;
        mounted.status.success().then(|| Self(at.to_owned()))
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        let _ = helper("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn full_disk_pauses_reading_until_space_returns() {
    let mut agent = Agent::script("yes | head -c 1500000; echo end >&2; exit 9");
    let Some(disk) = TinyDisk::mount(&agent.dir()) else {
        eprintln!("SKIPPED: a full disk needs the right to mount a small one");
        return;
    };
    agent.start();
    agent.control("back-pressure", |c| {
        *c == Control::Blocked { on: true, reason: BlockReason::Disk }
    });
    let mut client = agent.attached();
    assert!(matches!(status(&mut client), FromShim::Status { blocked: true, .. }));
    let grown = helper("mount").args(["-o", "remount,size=8m"]).arg(&disk.0).status().unwrap();
    assert!(grown.success());
    assert_eq!(
        agent.exited(),
        Control::Exited { code: Some(9), signal: None, cause: Cause::Exited }
    );
    agent.gone();
    assert_eq!(agent.stream(Stream::Stdout).len(), 1_500_000);
    assert_eq!(agent.read().1, State::CaughtUp);
    drop(disk);
}

#[test]
fn exit_records_fit_on_a_full_disk() {
    let mut agent =
        Agent::script("trap 'echo going >&2; exit 6' TERM; yes & while :; do sleep 0.05; done");
    let Some(disk) = TinyDisk::mount(&agent.dir()) else {
        eprintln!("SKIPPED: a full disk needs the right to mount a small one");
        return;
    };
    agent.start();
    agent.control("back-pressure", |c| {
        *c == Control::Blocked { on: true, reason: BlockReason::Disk }
    });
    // No other file may use the remaining space either.
    let _ = std::fs::write(agent.dir().join("filler"), vec![0; 1 << 20]);
    let mut client = agent.attached();
    client.send(&ToShim::Terminate { idem: [1; 16], grace_ms: 20_000 }).unwrap();
    assert_eq!(
        agent.exited(),
        Control::Exited { code: Some(6), signal: None, cause: Cause::Terminated }
    );
    agent.gone();
    assert!(agent.stream(Stream::Stderr).ends_with(b"going\n"));
    assert_eq!(agent.controls().last(), Some(&Control::Ended { survivors: 0, left: vec![] }));
    drop(disk);
}
