//! Applies the changes between two trees to a third one. If that tree has changed too, both changes
//! are merged line by line. If both changed the same lines, only a person could decide.

use crate::command::blocking::failed;
use crate::user_repo::{Git, GitError};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A larger file is not merged.
const LARGEST: u64 = 16 * 1024 * 1024;

/// A path from the top, in any bytes.
pub(super) type Name = Vec<u8>;

/// The entry of a tree at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    mode: String,
    id: String,
}

impl Entry {
    /// Whether the tree has an entry there. git prints the mode zero for a missing one.
    pub(super) fn is_there(&self) -> bool {
        self.mode.bytes().any(|digit| digit != b'0')
    }

    fn is_file(&self) -> bool {
        matches!(self.mode.as_str(), "100644" | "100755")
    }

    /// Formats the entry as `update-index -z --index-info` reads it.
    pub(super) fn line(&self, path: &[u8]) -> Vec<u8> {
        [format!("{} {}\t", self.mode, self.id).as_bytes(), path, b"\0"].concat()
    }
}

/// How a path differs in two trees.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) path: Name,
    pub(super) from: Entry,
    pub(super) to: Entry,
}

impl Git {
    pub(super) fn differences(&self, from: &str, to: &str) -> Result<Vec<Change>, GitError> {
        let args = ["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", from, to];
        // Bytes, because a path need not be UTF-8.
        let listed = self.bytes(&args, b"", None)?;
        let mut fields = listed.split(|byte| *byte == 0);
        let mut changes = vec![];
        while let (Some(about), Some(path)) = (fields.next(), fields.next()) {
            let about = String::from_utf8_lossy(about);
            let words: Vec<_> = about.trim_start_matches(':').split(' ').collect();
            let [mode, to_mode, id, to_id, ..] = words[..] else {
                return Err(failed("diff-tree", &format!("its answer is not understood: {about}")));
            };
            let entry = |mode: &str, id: &str| Entry { mode: mode.into(), id: id.into() };
            changes.push(Change {
                path: path.to_vec(),
                from: entry(mode, id),
                to: entry(to_mode, to_id),
            });
        }
        Ok(changes)
    }

    /// Returns the changes between `from` and `to`, applied to `onto`, in the form that
    /// `update-index -z --index-info` reads. For changes of both sides that conflict, `to` wins.
    pub(super) fn carry(&self, onto: &str, from: &str, to: &str) -> Result<Vec<u8>, GitError> {
        let changed = self.differences(from, to)?;
        if changed.is_empty() {
            return Ok(vec![]);
        }
        let there =
            self.differences(from, onto)?.into_iter().map(|change| (change.path, change.to));
        let there: HashMap<Name, Entry> = there.collect();
        let mut info = vec![];
        for Change { path, from, to } in changed {
            let merged = match there.get(&path) {
                Some(onto) => self.merged(onto, &from, &to)?,
                None => None,
            };
            info.extend(merged.unwrap_or(to).line(&path));
        }
        Ok(info)
    }

    /// Makes a tree with some of its entries changed.
    pub(super) fn tree_with(&self, tree: &str, info: &[u8]) -> Result<String, GitError> {
        let index = self.index();
        self.with(&index, &["read-tree".into(), tree.into()], b"")?;
        // A file may replace a folder.
        let args = ["update-index", "--replace", "-z", "--index-info"].map(String::from);
        self.with(&index, &args, info)?;
        self.with(&index, &["write-tree".into()], b"")
    }

    /// Merges two changes of the entry `base`. `None` if they conflict.
    pub(super) fn merged(
        &self,
        ours: &Entry,
        base: &Entry,
        theirs: &Entry,
    ) -> Result<Option<Entry>, GitError> {
        if ours == base || ours == theirs {
            return Ok(Some(theirs.clone()));
        }
        if theirs == base {
            return Ok(Some(ours.clone()));
        }
        let all = [ours, base, theirs];
        if !all.iter().all(|entry| entry.is_file()) {
            return Ok(None);
        }
        let mode = if ours.mode == base.mode { &theirs.mode } else { &ours.mode };
        for entry in all {
            let size = self.git(&["cat-file", "-s", &entry.id])?;
            if size.parse::<u64>().map_or(true, |size| size > LARGEST) {
                return Ok(None);
            }
        }
        let mut files = vec![];
        for entry in all {
            files.push(Scratch::new(
                &self.git_dir,
                &self.bytes(&["cat-file", "blob", &entry.id], b"", None)?,
            )?);
        }
        let names: Vec<_> = files.iter().map(|file| file.0.to_string_lossy()).collect();
        let args: Vec<&str> =
            ["merge-file", "-q", "-p"].into_iter().chain(names.iter().map(AsRef::as_ref)).collect();
        let text = match self.bytes(&args, b"", None) {
            Ok(text) => text,
            Err(error @ GitError::Unheard { .. }) => return Err(error),
            // The exit code is the number of conflicts, or the file is binary.
            Err(_) => return Ok(None),
        };
        let id = self.git_with(&["hash-object", "-w", "--no-filters", "--stdin"], &text, None)?;
        Ok(Some(Entry { mode: mode.clone(), id }))
    }
}

/// A temporary file for git to read. It is removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(git_dir: &Path, bytes: &[u8]) -> Result<Self, GitError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let file = Self(git_dir.join(format!("muleteer-merge-{}-{count}", std::process::id())));
        std::fs::write(&file.0, bytes).map_err(|error| failed("merge-file", &error.to_string()))?;
        Ok(file)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}
