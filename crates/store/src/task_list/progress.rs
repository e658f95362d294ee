//! Reads the end of the list's log, and appends to it.

use crate::links::{open_to_read, open_to_write};
use crate::task_list::error::TaskListError;
use crate::task_list::root::Root;
use jiff::Timestamp;
use muleteer_model::task_list::TaskList;
use muleteer_model::task_list::log::{self, Entry};
use muleteer_model::task_list::select::FailureTimes;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// How much of the log's end is read.
const LOG_TAIL: u64 = 1024 * 1024;

impl Root {
    /// Returns the last lines of the log, oldest first.
    pub fn log_tail(&self, lines: usize) -> Vec<String> {
        self.log_tail_within(lines, usize::MAX)
    }

    /// Returns the newest of these lines, at most `bytes` in total.
    pub fn log_tail_within(&self, lines: usize, bytes: usize) -> Vec<String> {
        let text = self.log_end();
        let mut left = bytes;
        let fits = |line: &&str| {
            let fits = line.len() < left;
            left = left.saturating_sub(line.len() + 1);
            fits
        };
        let mut end: Vec<_> =
            text.lines().rev().take(lines).take_while(fits).map(String::from).collect();
        end.reverse();
        end
    }

    /// Returns when tasks failed that do not have that time themselves.
    pub fn failure_times(&self, list: &TaskList) -> FailureTimes {
        let unsaid = |task: &muleteer_model::task_list::Task| {
            task.failed_at.is_none() && !task.error_log.is_empty()
        };
        if list.tasks.iter().any(unsaid) {
            log::failure_times(self.log_end().lines())
        } else {
            FailureTimes::new()
        }
    }

    /// Returns how many attempts ended in a session, as far as the end of the log shows.
    pub fn attempts_logged(&self, session: u64) -> u64 {
        log::attempts_in(self.log_end().lines(), session)
    }

    /// Returns the recently completed tasks with their short commit ids.
    pub fn completions(&self) -> Vec<(String, String)> {
        log::completions(self.log_end().lines())
    }

    fn log_end(&self) -> String {
        self.log_from(self.log_length().saturating_sub(LOG_TAIL))
    }

    pub(super) fn log_length(&self) -> u64 {
        fs::metadata(self.progress()).map_or(0, |meta| meta.len())
    }

    /// Returns the log from `at` on, or all of it if the log was replaced; `None` if that is more
    /// than is read.
    pub(super) fn log_since(&self, at: u64) -> Option<String> {
        let length = self.log_length();
        let at = if at > length { 0 } else { at };
        (length - at <= LOG_TAIL).then(|| self.log_from(at))
    }

    fn log_from(&self, at: u64) -> String {
        let read = || -> io::Result<Vec<u8>> {
            let mut file = open_to_read(&self.progress())?;
            file.seek(SeekFrom::Start(at))?;
            let mut bytes = vec![];
            file.take(LOG_TAIL).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
    }

    /// Appends lines to the log without changing the list. The caller must be the only writer, or
    /// the lines must not depend on the list.
    ///
    /// # Errors
    /// If the log cannot be written.
    pub fn note(
        &self,
        session: u64,
        now: Timestamp,
        entries: Vec<Entry>,
    ) -> Result<(), TaskListError> {
        let text: String =
            entries.into_iter().map(|entry| format!("{}\n", entry.at(session, now))).collect();
        append(&self.progress(), &text)
    }
}

/// Appends with one write, so that a kill leaves all of the text or nothing. A torn line from a
/// full disk first gets its newline.
pub(super) fn append(path: &Path, text: &str) -> Result<(), TaskListError> {
    if text.is_empty() {
        return Ok(());
    }
    let write = || -> io::Result<()> {
        let mut file =
            open_to_write(path, OpenOptions::new().create(true).append(true).read(true))?;
        let length = file.metadata()?.len();
        let mut last = [b'\n'];
        if length > 0 {
            file.seek(SeekFrom::Start(length - 1))?;
            file.read_exact(&mut last)?;
        }
        let gap = if last == [b'\n'] { "" } else { "\n" };
        file.write_all(format!("{gap}{text}").as_bytes())
    };
    write().map_err(TaskListError::io(path, "append to"))
}
