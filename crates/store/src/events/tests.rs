//! Simulates each way in which a disk can fail.

use crate::events::*;
use muleteer_model::event::Event;
use std::fs;
use std::sync::{Arc, Mutex};

/// The results of the next calls; a real file stores the bytes.
#[derive(Debug, Default)]
struct Plan {
    /// Room for this many bytes in the file. Further writes are short and then fail.
    room: Option<u64>,
    /// At most this many bytes per call.
    chunk: Option<usize>,
    write_error: Option<io::ErrorKind>,
    sync_fails: bool,
    truncate_fails: bool,
}

#[derive(Debug)]
struct Failing {
    file: fs::File,
    plan: Arc<Mutex<Plan>>,
}

impl Medium for Failing {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let mut plan = self.plan.lock().expect("not poisoned");
        if let Some(kind) = plan.write_error.take() {
            return Err(kind.into());
        }
        let mut len = bytes.len().min(plan.chunk.unwrap_or(usize::MAX));
        if let Some(room) = plan.room {
            len = len.min(room.saturating_sub(offset) as usize);
            if len == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        Medium::write_at(&mut self.file, &bytes[..len], offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.plan.lock().expect("not poisoned").sync_fails {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.file.sync()
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        if self.plan.lock().expect("not poisoned").truncate_fails {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.file.truncate(len)
    }

    fn stat(&mut self) -> io::Result<(u64, bool)> {
        self.file.stat()
    }
}

fn entry(id: &str, more: bool) -> Entry {
    let event = Event::Fault { what: "test".into(), message: format!("of {id}") };
    Entry { id: id.into(), dispatch_id: None, at: None, more, event }
}

struct Bench {
    dir: tempfile::TempDir,
    log: EventLog,
    plan: Arc<Mutex<Plan>>,
}

fn bench() -> Bench {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("events.jsonl");
    let (mut log, recovery) = EventLog::open(&path, 0, |_| {}).expect("creates");
    assert!(recovery.created);
    let plan = Arc::new(Mutex::new(Plan::default()));
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).expect("opens");
    log.file = Box::new(Failing { file, plan: plan.clone() });
    Bench { dir, log, plan }
}

impl Bench {
    fn path(&self) -> PathBuf {
        self.dir.path().join("events.jsonl")
    }

    fn append(&mut self, ids: &[&str]) -> Result<Vec<Record>, AppendError> {
        let entries: Vec<_> = ids.iter().map(|id| entry(id, false)).collect();
        self.log.append(&entries, Timestamp::UNIX_EPOCH)
    }

    fn plan(&self, change: impl FnOnce(&mut Plan)) {
        change(&mut self.plan.lock().expect("not poisoned"));
    }

    fn ids(&self) -> Vec<String> {
        let mut ids = vec![];
        read(&self.path(), |record| ids.push(record.entry.id)).expect("reads");
        ids
    }
}

#[test]
fn short_and_interrupted_writes_are_finished() {
    let mut b = bench();
    b.plan(|plan| (plan.chunk, plan.write_error) = (Some(7), Some(io::ErrorKind::Interrupted)));
    let records = b.append(&["a", "b"]).expect("appends");
    assert_eq!(records.iter().map(|record| record.seq).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(b.ids(), ["a", "b"]);
}

#[test]
fn a_full_disk_is_a_state_and_nothing_is_glued_together() {
    let mut b = bench();
    b.append(&["a"]).expect("appends");
    let len = b.log.len;
    for room in len..len + 150 {
        b.plan(|plan| plan.room = Some(room));
        assert!(matches!(b.append(&["b", "c"]), Err(AppendError::Full { .. })));
        assert_eq!(fs::metadata(b.path()).expect("is there").len(), len);
    }
    b.plan(|plan| plan.room = None);
    assert_eq!(b.append(&["b", "c"]).expect("there is room again")[0].seq, 2);
    assert_eq!(b.ids(), ["a", "b", "c"]);
}

#[test]
fn after_a_failed_fsync_nothing_is_appended_and_the_next_start_copies() {
    use std::os::unix::fs::MetadataExt;
    let mut b = bench();
    b.append(&["a"]).expect("appends");
    b.plan(|plan| plan.sync_fails = true);
    assert!(matches!(b.append(&["b"]), Err(AppendError::Poisoned { .. })));
    b.plan(|plan| plan.sync_fails = false);
    assert!(
        matches!(b.append(&["c"]), Err(AppendError::Poisoned { .. })),
        "not even when it would work again"
    );
    assert!(b.log.poisoned.is_some());

    let inode = || fs::metadata(b.path()).expect("is there").ino();
    let before = inode();
    let (mut log, recovery) = EventLog::open(&b.path(), 0, |_| {}).expect("opens");
    assert!(recovery.copied);
    assert_ne!(inode(), before);
    log.append(&[entry("d", false)], Timestamp::UNIX_EPOCH).expect("appends");
    assert_eq!(b.ids(), ["a", "b", "d"], "what was written is kept; the caller resends by id");
    let (_, recovery) = EventLog::open(&b.path(), 0, |_| {}).expect("opens");
    assert!(!recovery.copied);
    assert_eq!(fs::read_dir(b.dir.path()).expect("lists").count(), 2, "the log and its mark");
}

#[test]
fn a_write_that_cannot_be_cut_back_or_fails_otherwise_poisons() {
    let mut b = bench();
    b.append(&["a"]).expect("appends");
    b.plan(|plan| (plan.room, plan.truncate_fails) = (Some(b.log.len + 10), true));
    assert!(matches!(b.append(&["b"]), Err(AppendError::Poisoned { .. })));
    let (_, recovery) = EventLog::open(&b.path(), 0, |_| {}).expect("opens");
    assert_eq!((recovery.cut_bytes, recovery.copied, recovery.last_seq), (10, true, 1));

    let mut b = bench();
    b.plan(|plan| plan.write_error = Some(io::ErrorKind::PermissionDenied));
    assert!(matches!(b.append(&["b"]), Err(AppendError::Poisoned { .. })));
}

#[test]
fn a_second_writer_or_a_deleted_file_is_noticed() {
    let mut b = bench();
    b.append(&["a"]).expect("appends");
    let (mut other, _) = EventLog::open(&b.path(), 0, |_| {}).expect("opens");
    other.append(&[entry("x", false)], Timestamp::UNIX_EPOCH).expect("appends");
    assert!(matches!(b.append(&["b"]), Err(AppendError::Poisoned { .. })));

    let mut b = bench();
    fs::remove_file(b.path()).expect("removes");
    assert!(matches!(b.append(&["b"]), Err(AppendError::Poisoned { .. })));
}

/// The longest agent text fits easily. A longer one is rejected before anything is written.
#[test]
fn a_line_may_have_megabytes() {
    let mut bench = bench();
    let saying = |bytes: usize| {
        let event = Event::Fault { what: "test".into(), message: "x".repeat(bytes) };
        [Entry { event, ..entry("long", false) }]
    };
    let written =
        bench.log.append(&saying(MAX_LINE - 1000), Timestamp::UNIX_EPOCH).expect("it fits");
    let before = fs::metadata(bench.path()).expect("a file").len();
    assert!(before > 4_000_000, "{before}");
    assert!(bench.log.append(&saying(MAX_LINE), Timestamp::UNIX_EPOCH).is_err());
    assert_eq!(fs::metadata(bench.path()).expect("a file").len(), before);
    let mut read = vec![];
    EventLog::open(&bench.path(), 0, |record| read.push(record)).expect("opens again");
    assert_eq!(read, written);
}

#[test]
fn unreadable_event_is_rejected_without_damage() {
    let mut b = bench();
    let bad = Entry { event: Event::Unknown, ..entry("bad", false) };
    let refused = b.log.append(&[entry("a", false), bad], Timestamp::UNIX_EPOCH);
    assert!(matches!(refused, Err(AppendError::Refused { index: 1, .. })));
    let open_ended = b.log.append(&[entry("a", true)], Timestamp::UNIX_EPOCH);
    assert!(matches!(open_ended, Err(AppendError::Refused { index: 0, .. })));
    assert_eq!(b.append(&["a"]).expect("appends")[0].seq, 1);
    assert_eq!(b.ids(), ["a"]);
}

#[test]
fn batch_is_recovered_completely_or_not() {
    let mut b = bench();
    b.append(&["a"]).expect("appends");
    let whole = b.log.len;
    b.log
        .append(&[entry("b", true), entry("c", true), entry("d", false)], Timestamp::UNIX_EPOCH)
        .expect("appends");
    let bytes = fs::read(b.path()).expect("reads");
    for cut in whole as usize..=bytes.len() {
        fs::write(b.path(), &bytes[..cut]).expect("writes");
        fs::remove_file(mark::path_of(&b.path())).expect("as after a power failure");
        let mut ids = vec![];
        let (_, recovery) =
            EventLog::open(&b.path(), 0, |record| ids.push(record.entry.id)).expect("opens");
        let left = if cut == bytes.len() { vec!["a", "b", "c", "d"] } else { vec!["a"] };
        assert_eq!(ids, left, "cut at {cut}");
        assert_eq!(recovery.len + recovery.cut_bytes, cut as u64);
        assert!(recovery.cut_kept.is_none());
    }
}
