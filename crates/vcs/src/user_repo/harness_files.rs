//! Keeps the harness's own files out of commits. An agent that runs `git add -A` commits the task
//! list, and the next rollback, branch or clone would restore an old state of it.
//!
//! The commits that an agent made since its task began are rewritten without these files: each has
//! them as its first parent has them. Author, dates and message stay. Earlier commits, and commits
//! that came from somewhere else (a remote, a tag, a fetch), are not rewritten. If HEAD then still
//! tracks the files, a commit of the harness stops tracking them. The files in the working
//! directory never change.

use crate::command::blocking::failed;
use crate::untrusted_path;
use crate::user_repo::snapshot_trees::{Index, escaped, ref_part};
use crate::user_repo::{Git, GitError, is_below};
use muleteer_model::task_list::{DAMAGED, INIT};
use muleteer_store::atomic::write_atomic;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// In a repository with more refs than this, none is saved.
const REFS: usize = 100_000;
/// The last line of the file of refs. A file without it is incomplete and ignored.
const END: &str = "end\n";
/// The file of the last fetch. A longer one is not read.
const FETCHED: &str = "FETCH_HEAD";
const FETCHED_LIMIT: u64 = 1 << 20;
/// The journals, which a person may want to track.
const JOURNALS: &str = ".agents/journals";

/// The new commits, by the old ones.
type Rewritten = HashMap<String, String>;

impl Git {
    /// Saves the refs when a task begins, durably. All other commits are the task's own.
    pub fn remember_refs(&self, task: &str) -> Result<(), GitError> {
        let all = self.git(&["for-each-ref", "--format=%(objectname) %(refname)"])?;
        if all.lines().count() > REFS {
            self.forget_refs(task);
            return Ok(());
        }
        let text: String =
            all.lines().map(|line| format!("{line}\n")).chain([END.into()]).collect();
        write_atomic(&self.refs_file(task), text.as_bytes(), 0o600)
            .map_err(|error| failed("for-each-ref", &crate::error::chain(&error)))?;
        muleteer_process::fault::point("tasks.refs_written");
        Ok(())
    }

    /// Returns the commit and the name of each ref when the task began; `None` without a complete
    /// file.
    pub(super) fn remembered_refs(&self, task: &str) -> Option<Vec<(String, String)>> {
        let text = std::fs::read_to_string(self.refs_file(task)).ok()?;
        let whole = text.strip_suffix(END)?;
        let read = |line: &str| line.split_once(' ').map(|(id, name)| (id.into(), name.into()));
        whole.lines().map(read).collect()
    }

    pub(super) fn forget_refs(&self, task: &str) {
        drop(std::fs::remove_file(self.refs_file(task)));
    }

    pub(super) fn refs_file(&self, task: &str) -> PathBuf {
        self.git_dir.join(format!("muleteer-refs-{}", ref_part(task)))
    }

    /// Removes the harness's files from the commits and the index of a task that began at `base`.
    /// Returns a message about it. A repetition changes nothing.
    pub fn disown(&self, task: &str, base: &str) -> Result<Option<String>, GitError> {
        let mut done = None;
        if self.exists(base) {
            let anew = self.make_anew(task, base)?;
            if anew > 0 {
                done = Some(format!(
                    "its agent had committed files of the harness: {anew} of its commits are made \
                     anew without them"
                ));
            }
        }
        self.unstage_own()?;
        // Commits of somebody else were not rewritten.
        let before = if self.exists(base) { self.own_in(base)? } else { vec![] };
        if self.own_in("HEAD")? != before {
            let untracked = self.untrack()?;
            done = done.or(untracked);
        }
        Ok(done)
    }

    /// Makes a commit that stops tracking the harness's files, if HEAD tracks them. A person may
    /// track `harness-init.sh`.
    pub fn untrack(&self) -> Result<Option<String>, GitError> {
        let tracked: Vec<_> = self
            .own_in("HEAD")?
            .into_iter()
            .filter(|entry| !entry.ends_with(INIT.as_bytes()))
            .collect();
        if tracked.is_empty() {
            return Ok(None);
        }
        let head = self.head()?;
        let removed: Vec<u8> = tracked.iter().flat_map(|entry| removal(entry, &head)).collect();
        let tree = self.tree_with(&head, &removed)?;
        let message = "muleteer: stop tracking the files of the task list\n\n\
                       They change with every task. The files stay where they are, untracked.\n";
        let commit = self.commit_tree(&tree, &[&head], message)?;
        // The index comes first, as in a task's commit: if it is ahead of HEAD, its changes are
        // only staged.
        self.git_with(&["update-index", "-z", "--index-info"], &removed, None)?;
        self.git(&["update-ref", "-m", "muleteer: task list untracked", "HEAD", &commit, &head])?;
        Ok(Some(format!(
            "git tracked files of the harness: commit {} stops that, and the files stay",
            &commit[..12]
        )))
    }

    /// Rewrites the task's commits without the harness's files and returns the number of changed
    /// ones.
    fn make_anew(&self, task: &str, base: &str) -> Result<usize, GitError> {
        let since = self.commits_of(task, base)?;
        let list = |more: &[String]| -> Result<Vec<String>, GitError> {
            let args = [
                "rev-list",
                "--full-history",
                "--topo-order",
                "--reverse",
                "--ignore-missing",
                "--stdin",
            ];
            let names: Vec<&str> = since.iter().chain(more).map(String::as_str).collect();
            let text = self.git_with(&args, (names.join("\n") + "\n").as_bytes(), None)?;
            Ok(text.lines().map(String::from).collect())
        };
        let mut paths = vec!["--".to_string()];
        paths.extend(patterns(self.lists()));
        if list(&paths)?.is_empty() {
            return Ok(0);
        }
        let mut anew = Rewritten::new();
        let mut count = 0;
        for commit in list(&[])? {
            let made = self.without_own(&commit, &anew)?;
            if made != commit {
                count += 1;
                anew.insert(commit, made);
            }
        }
        self.point_to(&anew)?;
        Ok(count)
    }

    /// Returns the commits that a task may have made, as arguments of `rev-list`: those of HEAD and
    /// of new branches, without those that existed when it began or that were fetched since.
    fn commits_of(&self, task: &str, base: &str) -> Result<Vec<String>, GitError> {
        let mut names = vec!["HEAD".to_string(), format!("^{base}")];
        let others =
            self.git(&["for-each-ref", "--format=^%(objectname)", "refs/remotes", "refs/tags"])?;
        names.extend(others.lines().map(String::from));
        names.extend(self.fetched().iter().map(|id| format!("^{id}")));
        let Some(before) = self.remembered_refs(task) else { return Ok(names) };
        let known: HashSet<&str> = before.iter().map(|(_, name)| name.as_str()).collect();
        let ids: HashSet<&str> =
            before.iter().map(|(id, _)| id.as_str()).filter(|id| is_id(id)).collect();
        names.extend(ids.iter().map(|id| format!("^{id}")));
        let branches = self.free_branches()?;
        names.extend(
            branches
                .into_iter()
                .filter(|(_, name)| !known.contains(name.as_str()))
                .map(|(id, _)| id),
        );
        Ok(names)
    }

    /// Returns the commits of the last fetch. A pull from an address gives them no ref.
    fn fetched(&self) -> Vec<String> {
        let text =
            untrusted_path::read(&self.git_dir, Path::new(FETCHED), FETCHED_LIMIT).ok().flatten();
        let text = String::from_utf8_lossy(&text.unwrap_or_default()).into_owned();
        let id =
            |line: &str| line.split_whitespace().next().filter(|id| is_id(id)).map(String::from);
        text.lines().filter_map(id).collect()
    }

    /// Returns the local branches that no working directory has checked out, each with its commit.
    fn free_branches(&self) -> Result<Vec<(String, String)>, GitError> {
        let format = "--format=%(objectname) %(refname) %(worktreepath)";
        let all = self.bytes(&["for-each-ref", format, "refs/heads"], b"", None)?;
        let all = String::from_utf8_lossy(&all).into_owned();
        let read = |line: &str| {
            let mut fields = line.splitn(3, ' ');
            let (id, name) = (fields.next()?.to_string(), fields.next()?.to_string());
            fields.next().is_none_or(str::is_empty).then_some((id, name))
        };
        Ok(all.lines().filter_map(read).collect())
    }

    /// Rewrites a commit with its rewritten parents, and with the harness's files of the first one.
    /// A commit that becomes empty by that is left out: its parent takes its place.
    fn without_own(&self, commit: &str, anew: &Rewritten) -> Result<String, GitError> {
        let raw = self.bytes(&["cat-file", "commit", commit], b"", None)?;
        let (head, message) = split(&raw);
        let header = |key: &str| -> Vec<String> {
            let line = |line: &&[u8]| {
                line.strip_prefix(key.as_bytes())
                    .map(|name| String::from_utf8_lossy(name).into_owned())
            };
            head.split(|byte| *byte == b'\n').filter_map(|one| line(&one)).collect()
        };
        let parents = header("parent ");
        let mut new: Vec<String> = vec![];
        for parent in &parents {
            let made = anew.get(parent).unwrap_or(parent);
            // A merged branch may have become part of the first parent.
            let is_in_first = match new.first() {
                Some(first) => first == made || (made != parent && self.contains(first, made)?),
                None => false,
            };
            if !is_in_first {
                new.push(made.clone());
            }
        }
        let old_tree = header("tree ").into_iter().next().unwrap_or_default();
        let mut wanted = match new.first() {
            Some(first) => self.own_in(first)?,
            None => vec![],
        };
        let there = self.own_in(commit)?;
        // A commit that stops tracking the files stays so. A person may track the script.
        wanted.retain(|entry| {
            path_of(entry).ends_with(INIT.as_bytes())
                || there.iter().any(|one| path_of(one) == path_of(entry))
        });
        let tree = if there == wanted {
            old_tree.clone()
        } else {
            self.tree_with_own(commit, &there, &wanted)?
        };
        if tree == old_tree && new == parents {
            return Ok(commit.into());
        }
        if let [only] = &new[..] {
            let of = |name: &str| self.git(&["rev-parse", &format!("{name}^{{tree}}")]);
            if of(only)? == tree && of(&parents[0])? != old_tree {
                return Ok(only.clone());
            }
        }
        let mut text = format!("tree {tree}\n").into_bytes();
        for parent in &new {
            text.extend(format!("parent {parent}\n").as_bytes());
        }
        text.extend(other_headers(head));
        text.extend(message);
        self.git_with(&["hash-object", "-t", "commit", "-w", "--stdin"], &text, None)
    }

    fn tree_with_own(
        &self,
        commit: &str,
        there: &[Vec<u8>],
        wanted: &[Vec<u8>],
    ) -> Result<String, GitError> {
        let mut info: Vec<u8> = there.iter().flat_map(|entry| removal(entry, commit)).collect();
        for entry in wanted {
            // `ls-tree` prints `MODE TYPE ID<TAB>PATH`; `update-index` takes no type.
            let mut fields = entry.splitn(3, |byte| *byte == b' ');
            let (mode, rest) =
                (fields.next().unwrap_or_default(), fields.nth(1).unwrap_or_default());
            info.extend([mode, b" ", rest, b"\0"].concat());
        }
        self.tree_with(commit, &info)
    }

    /// Moves HEAD and the task's own branches to the rewritten commits.
    fn point_to(&self, anew: &Rewritten) -> Result<(), GitError> {
        let head = self.head()?;
        if let Some(new) = anew.get(&head) {
            self.git(&["update-ref", "-m", "muleteer: without the task list", "HEAD", new, &head])?;
        }
        for (old, name) in self.free_branches()? {
            if let Some(new) = anew.get(&old) {
                self.git(&[
                    "update-ref",
                    "-m",
                    "muleteer: without the task list",
                    &name,
                    new,
                    &old,
                ])?;
            }
        }
        Ok(())
    }

    /// Resets the harness's files in the person's index to HEAD.
    fn unstage_own(&self) -> Result<(), GitError> {
        let paths = patterns(self.lists());
        let paths = paths.iter().map(String::as_str);
        let args: Vec<&str> = ["diff-index", "--cached", "--quiet", "HEAD", "--"]
            .into_iter()
            .chain(paths.clone())
            .collect();
        match self.git(&args) {
            Ok(_) => Ok(()),
            Err(error @ GitError::Unheard { .. }) => Err(error),
            Err(_) => {
                let args: Vec<&str> =
                    ["reset", "-q", "HEAD", "--"].into_iter().chain(paths).collect();
                self.git(&args).map(drop)
            }
        }
    }

    /// Returns the harness's files in a commit, as `ls-tree` lists them.
    fn own_in(&self, commit: &str) -> Result<Vec<Vec<u8>>, GitError> {
        let mut places: Vec<&str> = self
            .lists()
            .map(|path| path.rsplit_once('/').map_or("", |(folder, _)| folder))
            .collect();
        places.sort_unstable();
        places.dedup();
        let mut found = vec![];
        // `ls-tree` takes no patterns, and there may be several damaged lists. So each folder is
        // listed.
        for place in places {
            let tree = if place.is_empty() {
                format!("{commit}^{{tree}}")
            } else {
                format!("{commit}:{place}")
            };
            let listed = match self.bytes(&["ls-tree", "-z", &tree], b"", None) {
                Ok(listed) => listed,
                Err(error @ GitError::Unheard { .. }) => return Err(error),
                // There is no such folder.
                Err(_) => continue,
            };
            for entry in listed.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()) {
                let mut parts = entry.splitn(2, |byte| *byte == b'\t');
                let (about, name) =
                    (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
                let folder = if place.is_empty() { String::new() } else { format!("{place}/") };
                let path = [folder.as_bytes(), name].concat();
                if !self.lists().any(|own| is_below(own, &String::from_utf8_lossy(&path))) {
                    continue;
                }
                if about.starts_with(b"040000") {
                    let path = String::from_utf8_lossy(&path).into_owned();
                    let below = self.bytes(
                        &["ls-tree", "-r", "-z", "--full-tree", commit, "--", &path],
                        b"",
                        None,
                    )?;
                    found.extend(
                        below
                            .split(|byte| *byte == 0)
                            .filter(|one| !one.is_empty())
                            .map(<[u8]>::to_vec),
                    );
                } else {
                    found.push([about, b"\t", &path].concat());
                }
            }
        }
        Ok(found)
    }

    /// Returns the paths that belong to task lists and runs.
    fn lists(&self) -> impl Iterator<Item = &String> {
        self.own.iter().filter(|path| *path != JOURNALS)
    }

    /// Removes the harness's files from an index.
    pub(super) fn forget_own(&self, index: &Index) -> Result<(), GitError> {
        let paths = patterns(self.own.iter());
        let args: Vec<&str> = ["ls-files", "-z", "--cached", "--"]
            .into_iter()
            .chain(paths.iter().map(String::as_str))
            .collect();
        let tracked = self.bytes(&args, b"", Some(&index.0))?;
        if tracked.is_empty() {
            return Ok(());
        }
        self.with(
            index,
            &["update-index", "-z", "--force-remove", "--stdin"].map(String::from),
            &tracked,
        )
        .map(drop)
    }
}

/// Returns the path of an entry as `ls-tree` lists it.
fn path_of(entry: &[u8]) -> &[u8] {
    entry.splitn(2, |byte| *byte == b'\t').nth(1).unwrap_or_default()
}

fn is_id(id: &str) -> bool {
    matches!(id.len(), 40 | 64) && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns patterns that match the harness's files.
fn patterns<'a>(own: impl Iterator<Item = &'a String>) -> Vec<String> {
    let both = |path: &String| {
        // The names of further damaged lists end with a number.
        let more = path.ends_with(DAMAGED).then(|| format!(":(top,glob){}.*", escaped(path)));
        std::iter::once(format!(":(top,literal){path}")).chain(more)
    };
    own.flat_map(both).collect()
}

/// Returns the removal of an entry, as `update-index -z --index-info` reads it. `id` is any of the
/// repository's ids.
fn removal(entry: &[u8], id: &str) -> Vec<u8> {
    let path = path_of(entry);
    let zero = "0".repeat(id.len());
    [format!("0 {zero}\t").as_bytes(), path, b"\0"].concat()
}

/// Splits a commit into its headers, and its message with the empty line before it.
fn split(raw: &[u8]) -> (&[u8], &[u8]) {
    let end = raw.windows(2).position(|two| two == b"\n\n").map_or(raw.len(), |at| at + 1);
    raw.split_at(end)
}

/// Returns the headers that a rewritten commit keeps: author, committer and others, without the
/// signature, which is that of the old commit.
fn other_headers(head: &[u8]) -> Vec<u8> {
    let mut kept = vec![];
    let mut is_kept = true;
    for line in head.split_inclusive(|byte| *byte == b'\n') {
        if !line.starts_with(b" ") {
            let left_out: [&[u8]; 4] = [b"tree ", b"parent ", b"gpgsig ", b"gpgsig-sha256 "];
            is_kept = !left_out.iter().any(|key| line.starts_with(key));
        }
        if is_kept {
            kept.extend_from_slice(line);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewritten_commit_keeps_its_headers_and_loses_its_signature() {
        let raw = b"tree 1\nparent 2\nauthor A <a> 1 +0200\ncommitter B <b> 2 +0000\n\
                    gpgsig -----BEGIN\n x\n -----END\nencoding latin1\n\nsubject\n\nbody\n";
        let (head, message) = split(raw);
        assert_eq!(message, b"\nsubject\n\nbody\n");
        assert_eq!(
            other_headers(head),
            b"author A <a> 1 +0200\ncommitter B <b> 2 +0000\nencoding latin1\n"
        );
    }
}
