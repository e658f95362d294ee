//! Fast-forwards a person's working directory. git writes the files first, then the index, then the
//! branch. If a power cut interrupts it, the files that it has written would be in its way for
//! ever. So a note with both commits is written first, and the next call finishes the fast-forward
//! or undoes it.

use crate::command::blocking::failed;
use crate::user_repo::merge::Name;
use crate::user_repo::{Git, GitError, Index};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The note in the git directory during a fast-forward: `1 FROM TO`.
const NOTE: &str = "muleteer-forward";

impl Git {
    /// Moves HEAD, index and files forward from one commit to another, or fails and changes
    /// nothing. The caller calls [`Self::forwarded`] once all of it is on the disk.
    pub fn forward(&self, from: &str, to: &str) -> Result<(), GitError> {
        self.mend_forward()?;
        if let Some(what) = self.in_progress()? {
            return Err(GitError::InTheWay { said: what.into() });
        }
        let index = self.index();
        drop(self.copy_index(&index));
        let is_free = self
            .with(&index, &["read-tree", "-m", "-u", "-n", from, to].map(String::from), b"")
            .is_ok();
        if is_free {
            let note = format!("1 {from} {to}\n");
            muleteer_store::atomic::write_atomic(&self.git_dir.join(NOTE), note.as_bytes(), 0o644)
                .map_err(|error| failed("merge", &error.to_string()))?;
        }
        muleteer_process::fault::point("git.before_forward");
        let merged = self.git(&["merge", "--quiet", "--ff-only", "--no-verify-signatures", to]);
        if merged.is_err() {
            // git may have been killed halfway.
            self.mend_forward()?;
        }
        match merged {
            Err(GitError::Failed { said, .. }) if !is_free => Err(GitError::InTheWay { said }),
            merged => merged.map(drop),
        }
    }

    /// Removes the note, because the fast-forward is on the disk.
    pub fn forwarded(&self) -> Result<(), GitError> {
        let fail = |error: std::io::Error| failed("merge", &format!("{NOTE}: {error}"));
        match std::fs::remove_file(self.git_dir.join(NOTE)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            // The removal is synced: a file that a person empties later must not count as emptied
            // by a power cut.
            done => {
                done.and_then(|()| std::fs::File::open(&self.git_dir)?.sync_all()).map_err(fail)
            }
        }
    }

    /// Undoes or finishes an interrupted fast-forward and returns the number of files that it
    /// changed. Later changes of a person stay.
    pub fn mend_forward(&self) -> Result<usize, GitError> {
        let Ok(note) = std::fs::read_to_string(self.git_dir.join(NOTE)) else { return Ok(0) };
        let mut mended = 0;
        if let ["1", from, to] = note.split_whitespace().collect::<Vec<_>>()[..] {
            let head = self.head()?;
            if head == from {
                mended = self.restore_files(from, to)?;
            } else if head == to {
                mended = self.restore_files(to, from)?;
            }
        }
        self.settle()?;
        self.forwarded()?;
        Ok(mended)
    }

    /// Restores files to the state of the commit `wanted`, if they have the state of `other`, or
    /// only the beginning of one of both.
    fn restore_files(&self, wanted: &str, other: &str) -> Result<usize, GitError> {
        let (at, of_other) = (self.at(wanted)?, self.at(other)?);
        let changed = names(&self.bytes(
            &["diff-tree", "-r", "-z", "--name-only", other, wanted],
            b"",
            None,
        )?);
        let [differing, differs_from_other] = [&at, &of_other].map(|index| self.differing(index));
        let (differing, differs_from_other) = (differing?, differs_from_other?);
        let [tracked, tracked_by_other] =
            [wanted, other].map(|commit| self.names_of(commit, &changed));
        let (tracked, tracked_by_other) = (tracked?, tracked_by_other?);
        let is_wrong = |name: &&Name| {
            let there = std::fs::symlink_metadata(self.place(name)).is_ok();
            let is_at = |tracked: &HashSet<Name>, differing: &HashSet<Name>| {
                if tracked.contains(*name) { there && !differing.contains(*name) } else { !there }
            };
            let whole = is_at(&tracked_by_other, &differs_from_other);
            !is_at(&tracked, &differing) && (whole || !there || self.is_part(name, [wanted, other]))
        };
        let wrong: Vec<&Name> = changed.iter().filter(is_wrong).collect();
        let (back, gone): (Vec<&Name>, Vec<&Name>) =
            wrong.iter().partition(|name| tracked.contains(**name));
        let listed: Vec<u8> =
            back.iter().flat_map(|name| [name.as_slice(), b"\0"].concat()).collect();
        if !listed.is_empty() {
            self.with(&at, &["checkout-index", "-f", "-z", "--stdin"].map(String::from), &listed)?;
        }
        for name in gone {
            let place = self.place(name);
            drop(std::fs::remove_file(&place));
            // The folders that git made for the file.
            let above = place.ancestors().skip(1).take_while(|above| *above != self.top);
            let _ = above.map(std::fs::remove_dir).take_while(Result::is_ok).count();
        }
        self.update_unstaged(wanted, other)?;
        Ok(wrong.len())
    }

    /// Updates index entries that equal the other commit's. A person's staged changes stay.
    fn update_unstaged(&self, wanted: &str, other: &str) -> Result<(), GitError> {
        let staged = names(&self.bytes(
            &["diff-index", "--cached", "-z", "--name-only", other, "--"],
            b"",
            None,
        )?);
        let staged: HashSet<Name> = staged.into_iter().collect();
        let is_others = |line: &&[u8]| {
            let name = line.splitn(2, |byte| *byte == b'\t').nth(1).unwrap_or_default();
            !staged.contains(name.strip_suffix(b"\0").unwrap_or(name))
        };
        let changes = self.changes(other, wanted)?;
        let info: Vec<u8> = changes
            .split_inclusive(|byte| *byte == 0)
            .filter(is_others)
            .flatten()
            .copied()
            .collect();
        if !info.is_empty() {
            self.git_with(&["update-index", "-z", "--index-info"], &info, None)?;
        }
        drop(self.git(&["update-index", "-q", "--refresh"]));
        Ok(())
    }

    fn place(&self, name: &[u8]) -> PathBuf {
        self.top.join(Path::new(OsStr::from_bytes(name)))
    }

    /// Makes an index with the files of a commit.
    fn at(&self, commit: &str) -> Result<Index, GitError> {
        let index = self.index();
        self.with(&index, &["read-tree", commit].map(String::from), b"")?;
        // git reports a failure if files differ.
        drop(self.with(&index, &["update-index", "-q", "--refresh"].map(String::from), b""));
        Ok(index)
    }

    /// Returns the files that differ from an index, or are missing.
    fn differing(&self, index: &Index) -> Result<HashSet<Name>, GitError> {
        let listed = self.bytes(&["diff-files", "-z", "--name-only"], b"", Some(&index.0))?;
        Ok(names(&listed).into_iter().collect())
    }

    /// Returns the names among `among` that a commit has.
    fn names_of(&self, commit: &str, among: &[Name]) -> Result<HashSet<Name>, GitError> {
        let all: HashSet<Name> = names(&self.bytes(
            &["ls-tree", "-r", "-z", "--name-only", "--full-tree", commit],
            b"",
            None,
        )?)
        .into_iter()
        .collect();
        Ok(among.iter().filter(|name| all.contains(*name)).cloned().collect())
    }

    /// Whether a file is empty, or has only the beginning of its content in one of the commits.
    fn is_part(&self, name: &[u8], of: [&str; 2]) -> bool {
        let place = self.place(name);
        let Some(meta) = std::fs::symlink_metadata(&place).ok().filter(std::fs::Metadata::is_file)
        else {
            return false;
        };
        of.iter().any(|commit| {
            let object = [commit.as_bytes(), b":", name].concat();
            let asked =
                OsStr::from_bytes(&object).to_str().map(|object| ["cat-file", "--filters", object]);
            let Some(whole) = asked.and_then(|args| self.bytes(&args, b"", None).ok()) else {
                return false;
            };
            let mut part = vec![];
            meta.len() <= whole.len() as u64
                && std::fs::File::open(&place)
                    .and_then(|file| file.take(meta.len()).read_to_end(&mut part))
                    .is_ok()
                && whole.starts_with(&part)
        })
    }
}

fn names(listed: &[u8]) -> Vec<Name> {
    listed
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}
