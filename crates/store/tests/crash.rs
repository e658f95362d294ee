//! Kills real processes with `kill -9` while they append, and uses real full disks.
//!
//! The child is this test binary again and runs only the test `child`. It appends `e1`, `e2`, … in
//! batches and prints each batch's last number once it is durable.
#![allow(
    clippy::disallowed_methods,
    reason = "the store's tests start no agents: `process` is not theirs"
)]

use jiff::Timestamp;
use muleteer_model::event::{Entry, Event};
use muleteer_store::AppendError;
use muleteer_store::db::Projection;
use muleteer_store::events::{EventLog, fold_fleet, read};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const DIR: &str = "STORE_TEST_DIR";
const LIMIT: &str = "STORE_TEST_LIMIT";

fn entry(n: u64, more: bool) -> Entry {
    let event =
        Event::Fault { what: format!("n{n}"), message: "x".repeat((n * 37 % 3000) as usize) };
    Entry { id: format!("e{n}"), dispatch_id: None, at: None, more, event }
}

/// Not a test by itself: the other tests kill it.
#[test]
#[ignore = "started by the others"]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let limit: u64 =
        std::env::var(LIMIT).ok().and_then(|text| text.parse().ok()).unwrap_or(u64::MAX);
    let dir = Path::new(&dir);
    let (mut db, _) = Projection::open(&dir.join("muleteer.db")).expect("opens");
    let path = dir.join("events.jsonl");
    let (mut log, _) = EventLog::open(&path, db.applied_seq(), |_| {}).expect("opens");
    let fleet = fold_fleet(&path).expect("folds").0;
    db.catch_up(&path, &fleet).expect("catches up");
    while log.last_seq() < limit {
        let next = log.last_seq() + 1;
        let size = 1 + next % 5;
        let entries: Vec<_> = (0..size).map(|n| entry(next + n, n + 1 < size)).collect();
        match log.append(&entries, Timestamp::UNIX_EPOCH) {
            Ok(records) => {
                println!("durable {}", log.last_seq());
                // Without room the database is behind, and catches up at the next start.
                if let Err(error) = db.apply(&records, &fleet) {
                    eprintln!("{error}");
                }
            }
            Err(AppendError::Full { .. }) => {
                println!("full {}", log.last_seq());
                return;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn command(dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("has a path"));
    command
        .args(["child", "--exact", "--ignored", "--nocapture"])
        .env(DIR, dir)
        .env_remove("MULETEER_FAULT");
    command
}

/// Starts the child and returns it with its output, line by line.
fn start(command: &mut Command) -> (Child, impl Iterator<Item = (String, u64)> + use<>) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
    let out = BufReader::new(child.stdout.take().expect("piped"));
    let said = out.lines().map_while(Result::ok).filter_map(|line| {
        let (word, number) = line.trim().rsplit_once(' ')?;
        // The test harness may have printed text before it on the line.
        let word = word.rsplit(' ').next()?;
        matches!(word, "durable" | "full")
            .then(|| number.parse().ok().map(|number| (word.to_string(), number)))?
    });
    (child, said)
}

/// Recovers, and checks that all acknowledged records are there, once, in order, and in the
/// database.
fn check(dir: &Path, acknowledged: u64) -> u64 {
    let path = dir.join("events.jsonl");
    let (mut db, opened) = Projection::open(&dir.join("muleteer.db")).expect("opens");
    assert_eq!(opened.moved_aside, None);
    let (mut seq, mut open_ended) = (0, false);
    let (log, _) = EventLog::open(&path, db.applied_seq(), |record| {
        seq += 1;
        open_ended = record.entry.more;
        assert_eq!((record.seq, record.entry.id), (seq, format!("e{seq}")));
    })
    .expect("recovers");
    assert!(!open_ended, "half a batch was recovered");
    assert!(seq >= acknowledged, "{acknowledged} were acknowledged, {seq} are there");
    let (fleet, _) = fold_fleet(&path).expect("folds");
    db.catch_up(&path, &fleet).expect("catches up");
    assert_eq!(db.applied_seq(), log.last_seq());
    seq
}

#[test]
fn killed_at_seeded_moments_no_durable_record_is_lost_or_doubled() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut acknowledged, mut random) = (0, 0x2545_f491_4f6c_dd1d_u64);
    for _ in 0..12 {
        let (mut child, mut said) = start(&mut command(dir.path()));
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        for _ in 0..random % 9 {
            acknowledged = said.next().expect("it goes on until killed").1;
        }
        // Any moment will do, so this does not wait for a state; each round picks another moment.
        std::thread::sleep(Duration::from_micros(random % 3000));
        child.kill().expect("kills");
        child.wait().expect("ends");
        acknowledged = said.last().map_or(acknowledged, |(_, seq)| seq);
        acknowledged = check(dir.path(), acknowledged);
    }
}

#[cfg(feature = "fault-points")]
#[test]
fn killed_at_each_named_point_no_durable_record_is_lost_or_doubled() {
    use std::os::unix::process::ExitStatusExt;
    for point in ["ledger.before_write", "ledger.after_write", "ledger.after_fsync"] {
        let dir = tempfile::tempdir().expect("a directory");
        let mut acknowledged = 0;
        for nth in 1..6 {
            let (mut child, said) =
                start(command(dir.path()).env("MULETEER_FAULT", format!("{point}:{nth}")));
            acknowledged = said.last().map_or(acknowledged, |(_, seq)| seq);
            assert_eq!(child.wait().expect("ends").signal(), Some(9), "{point}");
            let left = check(dir.path(), acknowledged);
            assert_eq!(
                left > acknowledged,
                point != "ledger.before_write",
                "{point}: written is kept"
            );
            acknowledged = left;
        }
    }
}

/// A shell sets a limit on the size of files. This needs no privileges, and writes are short as on
/// a full disk.
#[test]
fn file_size_limit_reports_full_and_recovers_later() {
    let dir = tempfile::tempdir().expect("a directory");
    check(dir.path(), 0);
    let exe = std::env::current_exe().expect("has a path");
    let mut shell = Command::new("sh");
    // The shell counts 512-byte or 1024-byte blocks. XFSZ is ignored, so the write fails with
    // EFBIG.
    shell.args(["-c", "trap '' XFSZ; ulimit -f 200; exec \"$@\"", "sh"]).arg(exe);
    shell.args(["child", "--exact", "--ignored", "--nocapture"]).env(DIR, dir.path());
    let (mut child, said) = start(&mut shell);
    let (word, seq) = said.last().expect("it said something");
    assert!(child.wait().expect("ends").success());
    assert_eq!(word, "full");
    let looked = read(&dir.path().join("events.jsonl"), |_| {}).expect("reads");
    assert_eq!((looked.last_seq, looked.cut_bytes), (seq, 0), "cut back to the last good byte");
    assert_eq!(check(dir.path(), seq), seq);

    let (mut child, said) = start(command(dir.path()).env(LIMIT, (seq + 10).to_string()));
    assert!(said.last().expect("there is room again").1 >= seq + 10);
    assert!(child.wait().expect("ends").success());
    check(dir.path(), seq + 10);
}

/// A real full file system in its own mount namespace; skipped if that is not allowed.
#[test]
fn full_file_system_reports_full_and_keeps_events_intact() {
    let dir = tempfile::tempdir().expect("a directory");
    let (small, out) = (dir.path().join("small"), dir.path().join("out"));
    for path in [&small, &out] {
        std::fs::create_dir(path).expect("creates");
    }
    let exe = std::env::current_exe().expect("has a path");
    let script = "mount -t tmpfs -o size=512k none \"$1\" || exit 77; \"$3\" child --exact \
        --ignored --nocapture; code=$?; cp \"$1\"/events.* \"$2\"; exit $code";
    let mut shell = Command::new("unshare");
    shell.args(["-rm", "sh", "-c", script, "sh"]).args([&small, &out, &exe]).env(DIR, &small);
    let Ok(probe) = Command::new("unshare").args(["-rm", "true"]).stderr(Stdio::null()).status()
    else {
        return eprintln!("SKIPPED: there is no `unshare` here");
    };
    let (mut child, said) = start(&mut shell);
    let said: Vec<_> = said.collect();
    let code = child.wait().expect("ends").code();
    if !probe.success() || code == Some(77) {
        return eprintln!("SKIPPED: mounting is not allowed here");
    }
    let (word, seq) = said.last().expect("it said something");
    assert_eq!((word.as_str(), code), ("full", Some(0)));
    let looked = read(&out.join("events.jsonl"), |_| {}).expect("reads");
    assert_eq!((looked.last_seq, looked.cut_bytes), (*seq, 0));
}
