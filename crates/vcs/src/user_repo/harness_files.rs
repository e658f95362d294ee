//! Keeps the harness's own files out of commits. An agent that runs `git add -A` commits the task
//! list, and the next rollback, branch or clone would then carry an old state of it around.
//!
//! The commits that an agent made since its task began are made anew without these files: each has
//! what its first parent has of them. Author, dates and message stay. Commits that were there
//! before, or that came from somewhere else (a remote, a tag, a fetch), stay as they are; where
//! HEAD still tracks the files then, a commit of the harness stops that. The files are never
//! touched.

use crate::command::blocking::failed;
use crate::untrusted_path;
use crate::user_repo::snapshot_trees::{Index, escaped, ref_part};
use crate::user_repo::{Git, GitError, is_below};
use muleteer_model::task_list::{DAMAGED, INIT};
use muleteer_store::atomic::write_atomic;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Of a repository with more refs none is remembered.
const REFS: usize = 100_000;
/// The last line of the file of refs: one without it is not whole, and not believed.
const END: &str = "end\n";
/// Where git notes what it fetched last. Longer ones are not read.
const FETCHED: &str = "FETCH_HEAD";
const FETCHED_LIMIT: u64 = 1 << 20;
/// A person may want to track these.
const JOURNALS: &str = ".agents/journals";

impl Git {
    /// Remembers which commits are there when a task begins: all others are its own. The file is
    /// on the disk when this returns.
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

    /// The commit and the name of each ref that was there when the task began; `None` where no
    /// whole file says so.
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

    /// Takes the harness's files out of what a task that began at `base` has committed or staged.
    /// Done again, it finds nothing to do. Gives what it did, in words.
    pub fn disown(&self, task: &str, base: &str) -> Result<Option<String>, GitError> {
        let mut done = None;
        if self.exists(base) {
            let anew = self.make_anew(task, base)?;
            if anew > 0 {
                done = Some(format!(
                    "its agent had committed files of the harness: {anew} of its commits are made anew without them"
                ));
            }
        }
        self.unstage_own()?;
        // What was not made anew: commits that are somebody else's.
        let before = if self.exists(base) { self.own_in(base)? } else { vec![] };
        if self.own_in("HEAD")? != before {
            let untracked = self.untrack()?;
            done = done.or(untracked);
        }
        Ok(done)
    }

    /// Stops tracking the harness's files where HEAD does, with a commit of its own.
    /// `harness-init.sh` is a person's to track.
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
        // As in a task's commit: an index ahead of HEAD is what is about to be committed.
        self.git_with(&["update-index", "-z", "--index-info"], &removed, None)?;
        self.git(&["update-ref", "-m", "muleteer: task list untracked", "HEAD", &commit, &head])?;
        Ok(Some(format!(
            "git tracked files of the harness: commit {} stops that, and the files stay",
            &commit[..12]
        )))
    }

    /// How many commits were made anew.
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
        let mut anew: HashMap<String, String> = HashMap::new();
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

    /// The commits that a task may have made, as `rev-list` reads it: those of HEAD and of new
    /// branches that were not there when it began, and that came from nowhere else since.
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

    /// The commits that were fetched last, as a pull from an address leaves them under no ref.
    fn fetched(&self) -> Vec<String> {
        let text =
            untrusted_path::read(&self.git_dir, Path::new(FETCHED), FETCHED_LIMIT).ok().flatten();
        let text = String::from_utf8_lossy(&text.unwrap_or_default()).into_owned();
        let id =
            |line: &str| line.split_whitespace().next().filter(|id| is_id(id)).map(String::from);
        text.lines().filter_map(id).collect()
    }

    /// The local branches that no working directory has checked out, each with its commit.
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

    /// The commit with the parents that are made anew, and with what the first of them has of the
    /// harness's files. One that is empty then, and was not, is left out: its parent takes its
    /// place.
    fn without_own(
        &self,
        commit: &str,
        anew: &HashMap<String, String>,
    ) -> Result<String, GitError> {
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
            // Nothing may be left of what was merged.
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
        // A commit that stops tracking them does what is to be done. The script is a person's to
        // track.
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
            // `MODE TYPE ID<TAB>PATH` as ls-tree says it; the type is not asked for.
            let mut fields = entry.splitn(3, |byte| *byte == b' ');
            let (mode, rest) =
                (fields.next().unwrap_or_default(), fields.nth(1).unwrap_or_default());
            info.extend([mode, b" ", rest, b"\0"].concat());
        }
        self.tree_with(commit, &info)
    }

    /// HEAD, and the branches that the task made, come to the commits that are made anew.
    fn point_to(&self, anew: &HashMap<String, String>) -> Result<(), GitError> {
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

    /// In the person's index the harness's files are as HEAD has them.
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
        // Patterns are not for ls-tree: of damaged lists there may be several. So each folder is
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

    /// Takes what is the harness's out of an index, whatever state it is in.
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

/// The path of an entry as `ls-tree` lists it.
fn path_of(entry: &[u8]) -> &[u8] {
    entry.splitn(2, |byte| *byte == b'\t').nth(1).unwrap_or_default()
}

fn is_id(id: &str) -> bool {
    matches!(id.len(), 40 | 64) && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Patterns that fit the harness's files.
fn patterns<'a>(own: impl Iterator<Item = &'a String>) -> Vec<String> {
    let both = |path: &String| {
        // Of damaged lists, further ones have a number behind the name.
        let more = path.ends_with(DAMAGED).then(|| format!(":(top,glob){}.*", escaped(path)));
        std::iter::once(format!(":(top,literal){path}")).chain(more)
    };
    own.flat_map(both).collect()
}

/// That the path of an entry is gone, as `update-index -z --index-info` reads it. `id` is any of
/// the repository's ids.
fn removal(entry: &[u8], id: &str) -> Vec<u8> {
    let path = path_of(entry);
    let zero = "0".repeat(id.len());
    [format!("0 {zero}\t").as_bytes(), path, b"\0"].concat()
}

/// The headers of a commit, and its message with the empty line before it.
fn split(raw: &[u8]) -> (&[u8], &[u8]) {
    let end = raw.windows(2).position(|two| two == b"\n\n").map_or(raw.len(), |at| at + 1);
    raw.split_at(end)
}

/// Author, committer and whatever else is said of a commit, without a signature: it was of another
/// commit.
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
    fn a_commit_made_anew_keeps_its_headers_and_loses_its_signature() {
        let raw =
            b"tree 1\nparent 2\nauthor A <a> 1 +0200\ncommitter B <b> 2 +0000\ngpgsig -----BEGIN\n x\n -----END\n\
                    encoding latin1\n\nsubject\n\nbody\n";
        let (head, message) = split(raw);
        assert_eq!(message, b"\nsubject\n\nbody\n");
        assert_eq!(
            other_headers(head),
            b"author A <a> 1 +0200\ncommitter B <b> 2 +0000\nencoding latin1\n"
        );
    }
}
