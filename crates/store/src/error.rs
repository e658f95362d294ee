//! The errors of this crate. Each has a code (contract.md, "Output"), the affected file and line,
//! and a hint that says how to fix it.

use std::io;
use std::path::{Path, PathBuf};

/// Why a file cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{}, line {line} (byte {offset}): {why}", .file.display())]
    Corrupt { file: PathBuf, line: u64, offset: u64, why: String },
    #[error("{}, line {line} (byte {offset}): the checksum is right, but the line cannot be \
        understood", .file.display())]
    Unreadable {
        file: PathBuf,
        line: u64,
        offset: u64,
        #[source]
        source: serde_json::Error,
    },
    #[error("{}, line {line}: seq {wanted} is wanted, but it has {found}", .file.display())]
    Gap { file: PathBuf, line: u64, offset: u64, wanted: u64, found: u64 },
    #[error("{}, line {line}: written in version {found}; this is {known}", .file.display())]
    Version { file: PathBuf, line: u64, found: u64, known: u64 },
    #[error("{}, line {line}: the event `{event}` is not known here", .file.display())]
    UnknownEvent { file: PathBuf, line: u64, event: String },
    #[error("{} ends at seq {last}, but seq {durable} was durable", .file.display())]
    Short { file: PathBuf, last: u64, durable: u64 },
    /// `file` is the log, because events are missing there.
    #[error("the database beside {} has events up to seq {applied} in it, but the log ends at \
        {last}", .file.display())]
    DbAhead { file: PathBuf, applied: u64, last: u64 },
    #[error("{} has events up to seq {applied} in it; seq {given} cannot follow", .file.display())]
    DbGap { file: PathBuf, applied: u64, given: u64 },
    #[error("{}: schema version {found}; this is {known}", .file.display())]
    DbVersion { file: PathBuf, found: i64, known: i64 },
    #[error("{}: no room to write", .file.display())]
    DbFull {
        file: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error("{} is damaged: {why}", .file.display())]
    DbCorrupt { file: PathBuf, why: String },
    #[error("{}: the database refused", .file.display())]
    Db {
        file: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error("cannot {doing} {}", .file.display())]
    Io {
        file: PathBuf,
        doing: &'static str,
        #[source]
        source: io::Error,
    },
}

/// Why a batch was not appended. In every case no part of it counts as durable.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// A state, not a crash: nothing was appended and the file is unchanged. Retry when there is
    /// room; until then no effect may run.
    #[error("no room to append to {}", .file.display())]
    Full {
        file: PathBuf,
        #[source]
        source: io::Error,
    },
    /// This process must not append to the file again: exit. The next start reads the file and
    /// finds out whether the batch is durable.
    #[error("{} cannot be trusted any more: {why}", .file.display())]
    Poisoned {
        file: PathBuf,
        why: String,
        #[source]
        source: Option<io::Error>,
    },
    /// This entry could not be read back, so neither it nor the rest of its batch was written.
    /// `index` is its index in the batch. The log is undamaged.
    #[error("event `{id}` cannot be written: {why}")]
    Refused { index: usize, id: String, why: String },
}

impl StoreError {
    pub(crate) fn io(file: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { file: file.into(), doing, source }
    }

    pub fn code(&self) -> &'static str {
        match self {
            Self::Corrupt { .. } | Self::Unreadable { .. } => "E_EVENTS_CORRUPT",
            Self::Gap { .. } => "E_EVENTS_GAP",
            Self::Version { .. } => "E_EVENTS_VERSION",
            Self::UnknownEvent { .. } => "E_EVENTS_UNKNOWN",
            Self::Short { .. } => "E_EVENTS_SHORT",
            Self::DbAhead { .. } => "E_DB_AHEAD",
            Self::DbGap { .. } => "E_DB_GAP",
            Self::DbVersion { .. } => "E_DB_VERSION",
            Self::DbFull { .. } => "E_DB_FULL",
            Self::DbCorrupt { .. } => "E_DB_CORRUPT",
            Self::Db { .. } => "E_DB",
            Self::Io { .. } => "E_STORE_IO",
        }
    }

    pub fn file(&self) -> &Path {
        match self {
            Self::Corrupt { file, .. }
            | Self::Unreadable { file, .. }
            | Self::Gap { file, .. }
            | Self::Version { file, .. }
            | Self::UnknownEvent { file, .. }
            | Self::Short { file, .. }
            | Self::DbAhead { file, .. }
            | Self::DbGap { file, .. }
            | Self::DbVersion { file, .. }
            | Self::DbFull { file, .. }
            | Self::DbCorrupt { file, .. }
            | Self::Db { file, .. }
            | Self::Io { file, .. } => file,
        }
    }

    /// Returns the line, counted from 1; `None` if the error is not about a line.
    pub fn line(&self) -> Option<u64> {
        match self {
            Self::Corrupt { line, .. }
            | Self::Unreadable { line, .. }
            | Self::Gap { line, .. }
            | Self::Version { line, .. }
            | Self::UnknownEvent { line, .. } => Some(*line),
            _ => None,
        }
    }

    /// Returns a hint that says how to fix the error.
    pub fn hint(&self) -> String {
        match self {
            Self::Corrupt { offset, .. }
            | Self::Unreadable { offset, .. }
            | Self::Gap { offset, .. } => format!(
                "nothing was changed. Look for a damaged disk and restore the file from a backup; \
                 to go on with only what stands before the damage, keep a copy, cut the file with \
                 `truncate -s {offset}`, and move events.mark and muleteer.db beside it away"
            ),
            Self::Version { .. } | Self::UnknownEvent { .. } => {
                "a newer muleteer wrote this file: run that version, or a newer one".into()
            }
            Self::Short { .. } => "durable events are missing: restore the file from a backup; if \
                you put an older one there on purpose, move events.mark and muleteer.db beside it \
                away"
                .into(),
            Self::DbAhead { .. } => "the database is made from the events: restore the missing \
                events, or, if you removed them on purpose, move the database and events.mark away \
                and it is made anew"
                .into(),
            Self::DbGap { .. } => {
                "records were left out; the database catches up from the events at the next \
                 start"
                    .into()
            }
            Self::DbVersion { .. } => {
                "a newer muleteer made this database: run that version, or move the file away and \
                 it is made anew"
                    .into()
            }
            Self::DbFull { .. } => "make room on the disk; no event is lost, the database catches \
                up"
            .into(),
            Self::DbCorrupt { .. } => "it is made anew from the events at the next start".into(),
            Self::Db { .. } => "is another program holding it? It is made from the events and may \
                be moved away"
                .into(),
            Self::Io { .. } => "look at the disk, the permissions and the owner of this \
                file"
                .into(),
        }
    }
}

/// Whether a write failed because there was no room or a size limit was reached.
pub fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

impl AppendError {
    pub fn code(&self) -> &'static str {
        match self {
            Self::Full { .. } => "E_EVENTS_FULL",
            Self::Poisoned { .. } => "E_EVENTS_POISONED",
            Self::Refused { .. } => "E_EVENT_REFUSED",
        }
    }
    /// Returns a hint that says how to fix the error.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Full { .. } => "make room on the disk: it goes on by itself",
            Self::Poisoned { .. } => {
                "look at the disk; the daemon ends, and the next start copies what is whole to a \
                 new file"
            }
            Self::Refused { .. } => "this is a fault in muleteer: please report it",
        }
    }
}
