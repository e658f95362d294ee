//! The errors of this crate. Each has a code (contract.md, "Output"), the affected file and line,
//! and a hint that says how to fix it.

use muleteer_model::dispatch::fleet::archive::Incomplete;
use muleteer_protocol::ErrorCode;
use std::io;
use std::path::{Path, PathBuf};

/// Why a file cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{}, line {line} (byte {offset}): {why}", .file.display())]
    Corrupt { file: PathBuf, line: u64, offset: u64, why: String },
    #[error("{}, line {line} (byte {offset}): the checksum is valid, but the line cannot be \
        decoded", .file.display())]
    Unreadable {
        file: PathBuf,
        line: u64,
        offset: u64,
        #[source]
        source: serde_json::Error,
    },
    #[error("{}, line {line}: expected seq {wanted}, found {found}", .file.display())]
    Gap { file: PathBuf, line: u64, offset: u64, wanted: u64, found: u64 },
    #[error(
        "{}, line {line}: it has version {found}, but this muleteer knows {known}",
        .file.display()
    )]
    Version { file: PathBuf, line: u64, found: u64, known: u64 },
    #[error("{}, line {line}: unknown event `{event}`", .file.display())]
    UnknownEvent { file: PathBuf, line: u64, event: String },
    /// A closed part of the log, whose name says what it must hold.
    #[error("{} is damaged: {why}", .file.display())]
    Segment { file: PathBuf, why: String },
    /// `file` is the folder of the segments.
    #[error("in {}, the events from seq {wanted} to {} are missing", .file.display(), found - 1)]
    SegmentMissing { file: PathBuf, wanted: u64, found: u64 },
    /// The retention removed events that a reader had not read yet.
    #[error("the events of {} from seq {wanted} to {through} were removed", .file.display())]
    Removed { file: PathBuf, wanted: u64, through: u64 },
    #[error("{} ends at seq {last}, but seq {durable} was durable", .file.display())]
    Short { file: PathBuf, last: u64, durable: u64 },
    #[error("{} lacks events", .file.display())]
    Incomplete {
        file: PathBuf,
        #[source]
        source: Incomplete,
    },
    /// `file` is the log, because events are missing there.
    #[error("the database beside {} contains events up to seq {applied}, but the log ends at \
        {last}", .file.display())]
    DbAhead { file: PathBuf, applied: u64, last: u64 },
    #[error("{} contains events up to seq {applied}; seq {given} cannot follow", .file.display())]
    DbGap { file: PathBuf, applied: u64, given: u64 },
    #[error("{}: it has schema version {found}, but this muleteer knows {known}", .file.display())]
    DbVersion { file: PathBuf, found: i64, known: i64 },
    #[error("{}: the disk is full", .file.display())]
    DbFull {
        file: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error("{} is damaged: {why}", .file.display())]
    DbCorrupt { file: PathBuf, why: String },
    #[error("{}: a database operation failed", .file.display())]
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
    #[error("cannot append to {}: the disk is full", .file.display())]
    Full {
        file: PathBuf,
        #[source]
        source: io::Error,
    },
    /// This process must not append to the file again: exit. The next start reads the file and
    /// finds out whether the batch is durable.
    #[error("{} can no longer be trusted: {why}", .file.display())]
    Poisoned {
        file: PathBuf,
        why: String,
        #[source]
        source: Option<io::Error>,
    },
    /// This entry could not be read back, so neither it nor the rest of its batch was written.
    /// `index` is its index in the batch. The log is undamaged.
    #[error("failed to write event `{id}`: {why}")]
    Refused { index: usize, id: String, why: String },
}

impl StoreError {
    pub(crate) fn io(file: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { file: file.into(), doing, source }
    }

    /// Converts an error about a line of a closed file, whose end cannot be cut.
    pub(crate) fn in_segment(self) -> Self {
        let (file, why) = match self {
            Self::Corrupt { file, line, why, .. } => (file, format!("line {line}: {why}")),
            Self::Unreadable { file, line, source, .. } => {
                (file, format!("line {line} cannot be decoded: {source}"))
            }
            Self::Gap { file, line, wanted, found, .. } => {
                (file, format!("line {line}: expected seq {wanted}, found {found}"))
            }
            other => return other,
        };
        Self::Segment { file, why }
    }

    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Corrupt { .. } | Self::Unreadable { .. } | Self::Segment { .. } => {
                ErrorCode::EventsCorrupt
            }
            Self::Gap { .. } | Self::SegmentMissing { .. } | Self::Removed { .. } => {
                ErrorCode::EventsGap
            }
            Self::Version { .. } => ErrorCode::EventsVersion,
            Self::UnknownEvent { .. } => ErrorCode::EventsUnknown,
            Self::Short { .. } | Self::Incomplete { .. } => ErrorCode::EventsShort,
            Self::DbAhead { .. } => ErrorCode::DbAhead,
            Self::DbGap { .. } => ErrorCode::DbGap,
            Self::DbVersion { .. } => ErrorCode::DbVersion,
            Self::DbFull { .. } => ErrorCode::DbFull,
            Self::DbCorrupt { .. } => ErrorCode::DbCorrupt,
            Self::Db { .. } => ErrorCode::Db,
            Self::Io { .. } => ErrorCode::StoreIo,
        }
    }

    pub fn file(&self) -> &Path {
        match self {
            Self::Corrupt { file, .. }
            | Self::Unreadable { file, .. }
            | Self::Gap { file, .. }
            | Self::Version { file, .. }
            | Self::UnknownEvent { file, .. }
            | Self::Segment { file, .. }
            | Self::SegmentMissing { file, .. }
            | Self::Removed { file, .. }
            | Self::Short { file, .. }
            | Self::Incomplete { file, .. }
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
                "check the disk and restore the file from a backup (nothing was changed); to \
                 continue with the events before the damage, save a copy, cut the file with \
                 `truncate -s {offset}`, and move events.mark and muleteer.db away"
            ),
            Self::Version { .. } | Self::UnknownEvent { .. } => {
                "run the version that wrote this file, or a newer one".into()
            }
            Self::Segment { .. } => "check the disk and restore this file from a backup (nothing \
                was changed); a segment has its name in every backup, compressed or not"
                .into(),
            Self::SegmentMissing { .. } => "restore the missing files of this folder, or the \
                whole state directory, from a backup (nothing was changed)"
                .into(),
            Self::Removed { .. } => {
                "run `muleteer events` again: it shows the events that are left \
                (configuration: retention.events)"
                    .into()
            }
            Self::Short { .. } => "restore the file from a backup: durable events are missing; if \
                you restored an older file on purpose, move events.mark and muleteer.db away"
                .into(),
            Self::Incomplete { .. } => "restore the missing events from a backup".into(),
            Self::DbAhead { .. } => "restore the missing events; if you removed them on purpose, \
                move the database and events.mark away, and the daemon rebuilds it"
                .into(),
            Self::DbGap { .. } => {
                "restart the daemon: the database then catches up from the events".into()
            }
            Self::DbVersion { .. } => {
                "run the version that created this database, or move the file away, and the daemon \
                 rebuilds it"
                    .into()
            }
            Self::DbFull { .. } => {
                "free disk space: no event is lost, and the database catches up".into()
            }
            Self::DbCorrupt { .. } => "restart the daemon, which rebuilds it from the \
                                       events"
                .into(),
            Self::Db { .. } => "check for a program that has locked it; you may move it away, and \
                the daemon rebuilds it"
                .into(),
            Self::Io { .. } => "check the disk, the permissions and the owner of this file".into(),
        }
    }
}

/// Whether a write failed because there was no room or a size limit was reached.
pub fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

impl AppendError {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Full { .. } => ErrorCode::EventsFull,
            Self::Poisoned { .. } => ErrorCode::EventsPoisoned,
            Self::Refused { .. } => ErrorCode::EventRefused,
        }
    }
    /// Returns a hint that says how to fix the error.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Full { .. } => "free disk space: the daemon continues by itself",
            Self::Poisoned { .. } => {
                "check the disk; the daemon exits, and the next start copies the valid events to a \
                 new file"
            }
            Self::Refused { .. } => "report this bug of muleteer",
        }
    }
}
