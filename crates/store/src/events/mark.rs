//! `events.mark`: the highest seq known to be durable, beside the log.
//!
//! With it a start can distinguish a torn tail (never acknowledged, cut) from a damaged or missing
//! line that was acknowledged as durable (a named error). It is written after each fsync of the
//! log, but is not fsynced itself: after `kill -9` it is exact, after a power failure it may be
//! older, never newer. It always has the same length and is overwritten in place, so a full disk
//! does not matter. A missing or damaged mark protects nothing and harms nothing.

use crate::links::{open_to_read, open_to_write};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) struct Mark {
    path: PathBuf,
    file: Option<File>,
}

pub(crate) fn path_of(events: &Path) -> PathBuf {
    events.with_extension("mark")
}

/// Returns the durable seq in the mark of this log.
pub(crate) fn read(events: &Path) -> Option<u64> {
    let mut text = String::new();
    open_to_read(&path_of(events)).ok()?.take(256).read_to_string(&mut text).ok()?;
    let (seq, crc) = text.strip_suffix('\n')?.split_once(' ')?;
    (crc == format!("{:08x}", crc32c::crc32c(seq.as_bytes()))).then(|| seq.parse().ok())?
}

impl Mark {
    pub(crate) fn new(events: &Path) -> Self {
        Self { path: path_of(events), file: None }
    }

    /// Writes the mark. It never fails: a mark that cannot be written is removed, because an old
    /// one would hide new events from followers.
    pub(crate) fn write(&mut self, seq: u64) {
        if self.file.is_none() {
            let mut options = OpenOptions::new();
            let options = options.write(true).create(true).truncate(false).mode(0o600);
            self.file = open_to_write(&self.path, options).ok();
        }
        let seq = format!("{seq:020}");
        let text = format!("{seq} {:08x}\n", crc32c::crc32c(seq.as_bytes()));
        let written =
            self.file.as_ref().is_some_and(|file| file.write_all_at(text.as_bytes(), 0).is_ok());
        if !written {
            self.file = None;
            drop(std::fs::remove_file(&self.path));
        }
    }
}
