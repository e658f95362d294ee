//! Stores the log lines of a change before the list is replaced. If the process is killed between
//! the two, the next process that changes the list writes them to the log.

use crate::task_list::root::Root;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

#[derive(Debug, Serialize, Deserialize)]
struct Intent {
    /// The list after the change.
    list: Mark,
    /// The length of the log before the change.
    at: u64,
    lines: String,
}

fn file(root: &Root) -> PathBuf {
    root.private().join("log-intent.json")
}

/// Identifies a text: checksum and length.
pub(super) type Mark = (u32, u64);

pub(super) fn mark(text: &[u8]) -> Mark {
    (crc32c::crc32c(text), text.len() as u64)
}

/// Stores the lines. The caller holds our flock, here and below.
pub(super) fn write(root: &Root, list: &str, lines: &str) -> io::Result<()> {
    let at = fs::metadata(root.progress()).map_or(0, |meta| meta.len());
    let intent = Intent { list: mark(list.as_bytes()), at, lines: lines.into() };
    fs::create_dir_all(root.private())?;
    fs::write(file(root), serde_json::to_vec(&intent)?)
}

pub(super) fn forget(root: &Root) {
    drop(fs::remove_file(file(root)));
}

/// Returns log lines that a killed predecessor did not write for a change that it made. A torn
/// intent is older than its change, so that change was not made.
pub(super) fn unsaid(root: &Root) -> Option<String> {
    let intent: Intent = serde_json::from_slice(&fs::read(file(root)).ok()?).ok()?;
    if mark(&fs::read(root.tasks()).ok()?) != intent.list {
        return None;
    }
    let since = || -> io::Result<String> {
        let mut log = File::open(root.progress())?;
        log.seek(SeekFrom::Start(intent.at))?;
        let mut bytes = vec![];
        log.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    // Lines are appended by one write, so all of them are there, or none.
    (!since().unwrap_or_default().contains(&intent.lines)).then_some(intent.lines)
}
