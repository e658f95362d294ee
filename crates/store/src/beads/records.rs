//! Records of an `issues.jsonl` that are not issues, such as the memories of `bd`. No store of
//! beads has them, so they are kept beside it as they were, until an export writes them again.
//!
//! ```text
//!  records.jsonl    one record per line, in the order in which they came
//!  records.lock     held (flock) while the file is replaced; never unlinked
//! ```

use crate::beads::embedded::BeadError;
use crate::beads::stay_in_repository;
use muleteer_model::text::foreign_json;
use muleteer_process::lock;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a writer waits for another one.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
/// The maximum length of the file. A larger one is assumed to be a mistake.
const LIMIT: u64 = 128 * 1024 * 1024;

/// The kept records of a repository.
#[derive(Debug)]
pub struct Records {
    dir: PathBuf,
}

impl Records {
    /// Returns the records of the repository whose top directory is `repo`, without reading or
    /// creating anything.
    pub fn new(repo: &Path) -> Self {
        Self { dir: repo.join(".muleteer/beads") }
    }

    fn file(&self) -> PathBuf {
        self.dir.join("records.jsonl")
    }

    /// Keeps records durably. One replaces the record with the same type and name.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn keep<'a>(&self, lines: impl IntoIterator<Item = &'a str>) -> Result<(), BeadError> {
        let new: Vec<&str> = lines.into_iter().collect();
        if new.is_empty() {
            return Ok(());
        }
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| BeadError::Io { path, source }
        };
        stay_in_repository(&self.dir).map_err(io(&self.dir))?;
        std::fs::create_dir_all(&self.dir).map_err(io(&self.dir))?;
        let path = self.dir.join("records.lock");
        let _held =
            lock::lock_within(&path, LOCK_PATIENCE).map_err(io(&path))?.ok_or_else(|| {
                BeadError::Locked { path: path.clone(), seconds: LOCK_PATIENCE.as_secs() }
            })?;
        let file = self.file();
        let old = self.text().map_err(io(&file))?;
        let text = merged(&old, new);
        if text == old {
            return Ok(());
        }
        crate::atomic::write_atomic(&file, text.as_bytes(), 0o600)
            .map_err(|error| io(&file)(io::Error::other(error)))
    }

    /// Returns the kept records after those of a file (`there`), without those that the file has.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn after(&self, there: &str) -> Result<String, BeadError> {
        let path = self.file();
        let kept = self.text().map_err(|source| BeadError::Io { path, source })?;
        let known: HashSet<String> = there.lines().map(name).collect();
        let missing = kept.lines().filter(|line| !known.contains(&name(line)));
        Ok(there.lines().chain(missing).map(|line| format!("{line}\n")).collect())
    }

    fn text(&self) -> io::Result<String> {
        let mut text = String::new();
        match File::open(self.file()) {
            // A part of the records would replace all of them.
            Ok(file) if file.metadata()?.len() > LIMIT => Err(io::ErrorKind::FileTooLarge.into()),
            Ok(file) => file.take(LIMIT).read_to_string(&mut text).map(|_| text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(text),
            Err(error) => Err(error),
        }
    }
}

/// Adds records to a text, in place of the old ones with the same names.
fn merged(old: &str, new: Vec<&str>) -> String {
    let mut lines: Vec<&str> = old.lines().collect();
    let mut places: HashMap<String, usize> =
        lines.iter().enumerate().map(|(at, line)| (name(line), at)).collect();
    for line in new {
        let line = line.trim();
        match places.get(&name(line)) {
            Some(at) => lines[*at] = line,
            None => {
                places.insert(name(line), lines.len());
                lines.push(line);
            }
        }
    }
    lines.into_iter().map(|line| format!("{line}\n")).collect()
}

/// Returns what makes two lines the same record: its type with its `key` or `id`, else all of it.
fn name(line: &str) -> String {
    let line = line.trim();
    let record = foreign_json::whole(line.as_bytes()).ok();
    let field =
        |record: &Value, key: &str| record.get(key).and_then(Value::as_str).map(String::from);
    record
        .and_then(|record| {
            let kind = field(&record, "_type")?;
            let key = field(&record, "key").or_else(|| field(&record, "id"))?;
            Some(format!("{kind}\n{key}"))
        })
        .unwrap_or_else(|| line.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_kept_once_and_the_newest_version_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let records = Records::new(dir.path());
        assert_eq!(records.after("").expect("reads"), "");
        let old = r#"{"_type":"memory","key":"k","value":"old"}"#;
        let new = r#"{"_type":"memory","key":"k","value":"new"}"#;
        let other = r#"{"_type":"memory","key":"l","value":"v"}"#;
        let config = r#"{"_type":"config","x":1}"#;
        records.keep([old, other, config]).expect("keeps");
        records.keep([new, config]).expect("keeps");
        assert_eq!(records.after("").expect("reads"), format!("{new}\n{other}\n{config}\n"));
        // A file has its own version.
        assert_eq!(
            records.after(&format!("{old}\n")).expect("reads"),
            format!("{old}\n{other}\n{config}\n")
        );
    }

    #[test]
    fn records_that_are_too_large_are_not_replaced_by_a_part_of_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let records = Records::new(dir.path());
        std::fs::create_dir_all(&records.dir).expect("a directory");
        let file = File::create(records.file()).expect("a file");
        file.set_len(LIMIT + 1).expect("a length");
        assert!(records.keep([r#"{"_type":"config"}"#]).is_err());
        assert_eq!(file.metadata().expect("a length").len(), LIMIT + 1);
    }
}
