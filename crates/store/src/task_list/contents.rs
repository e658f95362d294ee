//! Reads and writes the files of a list, and parses their contents.

use crate::links::{open_to_read, open_to_write};
use crate::task_list::error::TaskListError;
use muleteer_model::task_list::TaskList;
use muleteer_model::task_list::document::Unreadable;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::Path;

/// The largest list, because a list is read as a whole.
pub(super) const LIST_LIMIT: u64 = 256 * 1024 * 1024;

pub(super) fn write_through(path: &Path, bytes: &[u8]) -> Result<(), TaskListError> {
    let write = || -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = open_to_write(path, options.create(true).write(true).truncate(true))?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(TaskListError::io(path, "write"))
}

pub(super) fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    open_to_read(path)?.take(LIST_LIMIT + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub(super) fn parse(path: &Path) -> Result<TaskList, TaskListError> {
    match bytes(path) {
        Ok(bytes) => parse_bytes(path, &bytes),
        // The list is gone but its backup exists, which counts as damage.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(TaskListError::Corrupt {
            file: path.into(),
            line: 0,
            column: 0,
            why: "it no longer exists".into(),
        }),
        Err(error) => Err(TaskListError::io(path, "read")(error)),
    }
}

pub(super) fn parse_bytes(path: &Path, bytes: &[u8]) -> Result<TaskList, TaskListError> {
    let corrupt =
        |line, column, why: String| TaskListError::Corrupt { file: path.into(), line, column, why };
    if bytes.len() as u64 > LIST_LIMIT {
        return Err(corrupt(0, 0, format!("it is larger than {} MiB", LIST_LIMIT >> 20)));
    }
    TaskList::parse(&String::from_utf8_lossy(bytes)).map_err(|error| match error {
        Unreadable::Corrupt { line, column, why } => corrupt(line, column, why),
        Unreadable::Invalid(faults) => TaskListError::Invalid { file: path.into(), faults },
    })
}
