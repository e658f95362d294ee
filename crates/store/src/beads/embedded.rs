//! The embedded bead store: one file of changes, each line whole or not there.
//!
//! ```text
//!  beads.jsonl      {"crc":"xxxxxxxx","v":1,"put":[…],"delete":[…]}    one line per operation
//!  beads.jsonl.cut  what the last repair has cut off its end
//!  lock             held (flock) while a line is added; never unlinked
//! ```
//!
//! Readers take no lock: an incomplete line counts as not yet there. A writer takes the lock, cuts
//! a line that a killed writer left incomplete, decides on the newest state, appends, and returns
//! when the line is on disk. A file that is mostly history is rewritten.

use crate::beads::stay_in_repository;
use jiff::Timestamp;
use muleteer_model::beads::foreign::other_record;
use muleteer_model::beads::{self, Answer, Bead, Beads, Fault, Op, check_foreign};
use muleteer_model::text::bom::unmarked;
use muleteer_model::text::foreign_json;
use muleteer_process::lock;
use muleteer_protocol::ErrorCode;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead as _, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const VERSION: u16 = 1;
/// How long a writer waits for another one.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
/// A smaller file is never rewritten.
const COMPACT_FROM: u64 = 1024 * 1024;
/// The longest line; an import is one line.
const LINE_LIMIT: u64 = 256 * 1024 * 1024;
const HEAD: &str = "{\"crc\":\"";

#[derive(Debug, thiserror::Error)]
pub enum BeadError {
    #[error(transparent)]
    Fault(#[from] Fault),
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} line {line}: {why}", .path.display())]
    Corrupt { path: PathBuf, line: u64, why: String },
    #[error("{} has been locked for {seconds} s", .path.display())]
    Locked { path: PathBuf, seconds: u64 },
    /// The store belongs to another program, which is missing.
    #[error("{message}")]
    Unavailable { message: String, hint: String },
    /// That program did not carry out the request.
    #[error("{0}")]
    Failed(String),
}

impl BeadError {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Fault(fault) => fault.code,
            Self::Io { .. } => ErrorCode::StoreIo,
            Self::Corrupt { .. } => ErrorCode::BeadsCorrupt,
            Self::Locked { .. } => ErrorCode::Busy,
            Self::Unavailable { .. } => ErrorCode::BeadsUnavailable,
            Self::Failed(_) => ErrorCode::BeadsFailed,
        }
    }

    /// Returns the faulty file, and its line if that is known.
    pub fn place(&self) -> Option<(&Path, Option<u64>)> {
        match self {
            Self::Io { path, .. } | Self::Locked { path, .. } => Some((path, None)),
            Self::Corrupt { path, line, .. } => Some((path, Some(*line))),
            Self::Fault(_) | Self::Unavailable { .. } | Self::Failed(_) => None,
        }
    }

    pub fn hint(&self) -> String {
        match self {
            Self::Fault(fault) => fault.hint.clone(),
            Self::Io { .. } => String::new(),
            Self::Corrupt { path, .. } => {
                format!("save a copy of {}, delete the damaged line, and try again", path.display())
            }
            Self::Locked { .. } => "find the process that has the lock with `fuser`: it may \
                                    hang"
                .into(),
            Self::Unavailable { hint, .. } => hint.clone(),
            Self::Failed(_) => "try again, which is safe; check tbd's files with `tbd \
                                doctor`"
                .into(),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Line {
    v: u16,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    put: Vec<Bead>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    delete: Vec<String>,
}

/// Reads a store, and writes it when it is asked for a change.
#[derive(Debug)]
pub struct BeadStore {
    dir: PathBuf,
    beads: Beads,
    /// The inode of the file that was read, and how far it was read: only new bytes are read again.
    inode: u64,
    offset: u64,
    lines: u64,
}

impl BeadStore {
    /// Returns the store in `dir`, which need not exist yet, without reading or creating anything.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.into(), beads: Beads::new(), inode: 0, offset: 0, lines: 0 }
    }

    pub fn file(&self) -> PathBuf {
        self.dir.join("beads.jsonl")
    }

    /// Returns the current beads. It takes no lock and changes nothing on disk.
    ///
    /// # Errors
    /// `E_STORE_IO`, `E_BEADS_CORRUPT`.
    pub fn read(&mut self) -> Result<&Beads, BeadError> {
        self.refresh()?;
        Ok(&self.beads)
    }

    /// Carries out `op` durably and returns its answer. `fresh` is the id for a created bead.
    ///
    /// # Errors
    /// Says what is wrong with `op` or with the store. Nothing was changed then, except that after
    /// `E_STORE_IO` the result is unknown (a retry is safe).
    pub fn apply(&mut self, op: &Op, now: Timestamp, fresh: &str) -> Result<Answer, BeadError> {
        if matches!(op, Op::Show { .. } | Op::List { .. } | Op::Ready { .. }) {
            self.refresh()?;
            return Ok(beads::apply(&self.beads, op, now, fresh)?.answer);
        }
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| BeadError::Io { path, source }
        };
        // A clone may bring links in place of the folders.
        stay_in_repository(&self.dir).map_err(io(&self.dir))?;
        std::fs::create_dir_all(&self.dir).map_err(io(&self.dir))?;
        let lock = self.dir.join("lock");
        let _held =
            lock::lock_within(&lock, LOCK_PATIENCE).map_err(io(&lock))?.ok_or_else(|| {
                BeadError::Locked { path: lock.clone(), seconds: LOCK_PATIENCE.as_secs() }
            })?;
        self.refresh()?;
        let mut change = beads::apply(&self.beads, op, now, fresh)?;
        if !change.put.is_empty() || !change.delete.is_empty() {
            let path = self.file();
            let written = self.append(&Line {
                v: VERSION,
                put: change.put.clone(),
                delete: change.delete.clone(),
            });
            match written {
                Ok(None) => {}
                Ok(Some(kept)) => change.answer.warnings.push(format!(
                    "the last line of {} was damaged, so its operation is lost; the damaged line \
                     is in {}",
                    path.display(),
                    kept.display()
                )),
                Err(source) => {
                    // The next read finds out whether the line is there.
                    self.inode = 0;
                    return Err(BeadError::Io { path, source });
                }
            }
            self.fold(change.put, change.delete);
            self.compact().map_err(io(&path))?;
        }
        Ok(change.answer)
    }

    fn fold(&mut self, put: Vec<Bead>, delete: Vec<String>) {
        for bead in put {
            self.beads.insert(bead.id.clone(), bead);
        }
        for id in delete {
            self.beads.remove(&id);
        }
    }

    fn refresh(&mut self) -> Result<(), BeadError> {
        let path = self.file();
        let io = |source| BeadError::Io { path: path.clone(), source };
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                *self = Self::new(&self.dir);
                return Ok(());
            }
            Err(error) => return Err(io(error)),
        };
        let meta = file.metadata().map_err(io)?;
        if meta.ino() != self.inode || meta.len() < self.offset {
            (self.beads, self.inode, self.offset, self.lines) = (Beads::new(), meta.ino(), 0, 0);
        }
        let unread = meta.len() - self.offset;
        if unread == 0 {
            return Ok(());
        }
        if unread > LINE_LIMIT * 4 {
            return Err(io(io::ErrorKind::FileTooLarge.into()));
        }
        file.seek(SeekFrom::Start(self.offset)).map_err(io)?;
        let mut bytes = Vec::with_capacity(usize::try_from(unread).unwrap_or_default());
        file.take(unread).read_to_end(&mut bytes).map_err(io)?;
        let mut rest = bytes.as_slice();
        loop {
            let end = (&mut &*rest).skip_until(b'\n').map_err(io)?.saturating_sub(1);
            if rest.get(end) != Some(&b'\n') {
                break;
            }
            let line = match decode(&rest[..end]) {
                Ok(line) => line,
                // A power failure may have torn the last line; a torn line in the middle is damage.
                Err(_) if rest.len() == end + 1 => break,
                Err(why) => {
                    return Err(BeadError::Corrupt {
                        path: path.clone(),
                        line: self.lines + 1,
                        why: why.to_string(),
                    });
                }
            };
            self.fold(line.put, line.delete);
            self.offset += end as u64 + 1;
            self.lines += 1;
            rest = &rest[end + 1..];
        }
        Ok(())
    }

    /// Appends a line. The caller holds the lock and has read the newest state. Returns the file
    /// that keeps a torn line that was cut.
    fn append(&mut self, line: &Line) -> io::Result<Option<PathBuf>> {
        let path = self.file();
        let fresh = !path.exists();
        let mut file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)?;
        let bytes = encode(line)?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut torn = Vec::new();
        (&file).take(LINE_LIMIT).read_to_end(&mut torn)?;
        let mut kept = None;
        if !torn.is_empty() {
            let beside = path.with_extension("jsonl.cut");
            crate::atomic::write_atomic(&beside, &torn, 0o600).map_err(io::Error::other)?;
            file.set_len(self.offset)?;
            kept = Some(beside);
        }
        file.seek(SeekFrom::Start(self.offset))?;
        if let Err(error) = file.write_all(&bytes) {
            // Without the cut, the next line would continue the torn one.
            file.set_len(self.offset)?;
            return Err(error);
        }
        file.sync_data()?;
        if fresh {
            File::open(&self.dir)?.sync_all()?;
        }
        self.inode = file.metadata()?.ino();
        self.offset += bytes.len() as u64;
        self.lines += 1;
        Ok(kept)
    }

    fn compact(&mut self) -> io::Result<()> {
        if self.offset < COMPACT_FROM || self.lines < 4 * self.beads.len() as u64 + 64 {
            return Ok(());
        }
        let mut bytes = Vec::new();
        for bead in self.beads.values() {
            bytes.extend(encode(&Line { v: VERSION, put: vec![bead.clone()], delete: vec![] })?);
        }
        let path = self.file();
        crate::atomic::write_atomic(&path, &bytes, 0o600).map_err(io::Error::other)?;
        self.inode = std::fs::metadata(&path)?.ino();
        self.offset = bytes.len() as u64;
        self.lines = self.beads.len() as u64;
        Ok(())
    }
}

fn encode(line: &Line) -> io::Result<Vec<u8>> {
    let json = serde_json::to_string(line)?;
    let rest = &json[1..];
    Ok(format!("{HEAD}{:08x}\",{rest}\n", crc32c::crc32c(rest.as_bytes())).into_bytes())
}

/// Why bytes are not a line of the store.
#[derive(Debug, thiserror::Error)]
enum DecodeError {
    #[error(transparent)]
    NotUtf8(#[from] std::str::Utf8Error),
    #[error("its checksum is wrong")]
    Checksum,
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("it has version {0}, this muleteer knows {VERSION}")]
    Version(u16),
}

fn decode(bytes: &[u8]) -> Result<Line, DecodeError> {
    let text = std::str::from_utf8(bytes)?;
    text.strip_prefix(HEAD)
        .and_then(|text| text.split_at_checked(8))
        .filter(|(hex, rest)| {
            rest.strip_prefix("\",")
                .is_some_and(|rest| *hex == format!("{:08x}", crc32c::crc32c(rest.as_bytes())))
        })
        .ok_or(DecodeError::Checksum)?;
    // The text includes the checksum, which is not a field of a line: removing it would copy the
    // text.
    let line: Line = serde_json::from_str(text)?;
    if line.v > VERSION {
        return Err(DecodeError::Version(line.v));
    }
    Ok(line)
}

/// Parses `issues.jsonl` of Beads: one bead on each line. Records that are not issues are left
/// out: see [`other_records`].
///
/// # Errors
/// The first line that is not a bead, by its number.
pub fn parse_issues(text: &str) -> Result<Vec<Bead>, (u64, String)> {
    let lines = unmarked(text).lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    lines
        .filter(|(line, _)| other_record(line).is_none())
        .map(|(line, at)| {
            let bead: Bead =
                foreign_json::typed(line.as_bytes()).map_err(|error| (at, error.to_string()))?;
            check_foreign(&bead).map_err(|fault| (at, fault.message))?;
            Ok(bead)
        })
        .collect()
}

/// Returns the lines of `issues.jsonl` that are not issues, such as the memories of `bd`, each
/// with its type.
pub fn other_records(text: &str) -> Vec<(String, &str)> {
    let lines = unmarked(text).lines();
    lines.filter_map(|line| other_record(line).map(|kind| (kind, line))).collect()
}

/// Writes beads in the format that [`parse_issues`] reads. Staged beads are internal and left out.
pub fn write_issues(beads: &Beads) -> String {
    let lines = beads
        .values()
        .filter(|bead| bead.staged.is_none())
        .filter_map(|bead| serde_json::to_string(bead).ok());
    lines.map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(title: &str) -> Op {
        serde_json::from_value(serde_json::json!({"op": "create", "title": title})).expect("an op")
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_700_000_000).expect("a time")
    }

    #[test]
    fn beads_written_by_one_store_are_read_by_another() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut writer, mut reader) = (BeadStore::new(dir.path()), BeadStore::new(dir.path()));
        assert!(reader.read().expect("reads").is_empty());
        for at in 0..3 {
            writer.apply(&create("one"), now(), &format!("bead{at}")).expect("writes");
            assert_eq!(reader.read().expect("reads").len(), at + 1);
        }
        let close = Op::Close { id: "bead1".into(), reason: "r".into(), no_change: true };
        reader.apply(&close, now(), "").expect("closes");
        assert!(writer.read().expect("reads")["bead1"].no_change);
    }

    #[test]
    fn a_torn_line_at_every_byte_costs_that_line_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut store = BeadStore::new(dir.path());
        store.apply(&create("one"), now(), "aaaa").expect("writes");
        let whole = std::fs::read(store.file()).expect("the file");
        store.apply(&create("two"), now(), "bbbb").expect("writes");
        let both = std::fs::read(store.file()).expect("the file");
        for cut in whole.len()..both.len() {
            std::fs::write(store.file(), &both[..cut]).expect("a torn file");
            let mut after = BeadStore::new(dir.path());
            assert_eq!(after.read().expect("reads").len(), 1, "cut at {cut}");
            let answer = after.apply(&create("three"), now(), "cccc").expect("writes");
            assert_eq!(answer.warnings.len(), usize::from(cut > whole.len()), "cut at {cut}");
            let ids: Vec<String> =
                BeadStore::new(dir.path()).read().expect("reads").keys().cloned().collect();
            assert_eq!(ids, ["aaaa", "cccc"], "cut at {cut}");
            let kept = dir.path().join("beads.jsonl.cut");
            assert_eq!(
                std::fs::read(&kept).unwrap_or_default(),
                &both[whole.len()..cut],
                "cut at {cut}"
            );
            let _ = std::fs::remove_file(kept);
        }
    }

    #[test]
    fn damage_in_the_middle_is_an_error_with_its_line() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut store = BeadStore::new(dir.path());
        for id in ["aaaa", "bbbb", "cccc"] {
            store.apply(&create("t"), now(), id).expect("writes");
        }
        let text = std::fs::read_to_string(store.file())
            .expect("the file")
            .replace("\"bbbb\"", "\"bbxb\"");
        std::fs::write(store.file(), text).expect("damage");
        let error = BeadStore::new(dir.path()).read().expect_err("damage").to_string();
        assert!(error.contains("beads.jsonl line 2: its checksum is wrong"), "{error}");
    }

    #[test]
    fn concurrent_writers_lose_nothing_and_history_is_compacted() {
        let dir = tempfile::tempdir().expect("a directory");
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let dir = dir.path();
                scope.spawn(move || {
                    let mut store = BeadStore::new(dir);
                    for at in 0..10 {
                        store
                            .apply(&create("t"), now(), &format!("bead-{thread}-{at}"))
                            .expect("writes");
                    }
                });
            }
        });
        let mut store = BeadStore::new(dir.path());
        assert_eq!(store.read().expect("reads").len(), 40);
        let big = "x".repeat(20_000);
        for _ in 0..300 {
            let op = serde_json::json!({"op": "update", "id": "bead-0-0", "description": big});
            store.apply(&serde_json::from_value(op).expect("an op"), now(), "").expect("writes");
        }
        assert!(std::fs::metadata(store.file()).expect("the file").len() < 5_000_000);
        assert_eq!(BeadStore::new(dir.path()).read().expect("reads").len(), 40);
    }

    #[test]
    fn issues_jsonl_goes_in_and_out_without_loss() {
        let text = "{\"id\":\"bd-1\",\"title\":\"T\",\"description\":\"d\",\"status\":\"open\",\"priority\":1,\"issue_type\":\"bug\",\"labels\":[\"a\"],\"dependencies\":[],\"created_at\":\"2025-10-16T13:36:17-07:00\",\"updated_at\":\"2025-10-16T13:36:17-07:00\",\"closed_at\":null,\"close_reason\":null,\"notes\":\"kept\"}\n";
        let dir = tempfile::tempdir().expect("a directory");
        let mut store = BeadStore::new(dir.path());
        let beads = parse_issues(text).expect("parses");
        store.apply(&Op::Import { beads }, now(), "").expect("imports");
        assert_eq!(write_issues(store.read().expect("reads")), text);
        assert_eq!(parse_issues("{}\n").expect_err("no bead").0, 1);
        let memory = "{\"_type\":\"memory\",\"key\":\"k\",\"value\":\"v\"}";
        let both = format!("{memory}\n{text}");
        assert_eq!(parse_issues(&both).expect("parses").len(), 1);
        assert_eq!(other_records(&both), [("memory".to_string(), memory)]);
    }
}
