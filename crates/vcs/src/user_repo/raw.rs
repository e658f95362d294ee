//! Files that git cannot convert as their attributes demand: text in another encoding than
//! `working-tree-encoding` names, line ends that a checkout would not restore, a filter that fails.
//! One such file fails a whole `git add`. If that happens, a search finds these files, and they are
//! added unconverted, byte for byte. All others are converted as usual.

use crate::command::run_within;
use crate::error::{FileError, RepoError};
use crate::user_repo::large_files::{empty_tree, is_regular};
use crate::user_repo::snapshot_trees::Index;
use crate::user_repo::{Git, GitError};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use tokio::process::Command;

/// A path from the top of the working directory, in any bytes.
type Name = Vec<u8>;

/// The variable that makes git read attributes from a tree and not from the working directory.
pub(crate) const ATTRIBUTES_FROM: &str = "GIT_ATTR_SOURCE";
/// The limit of trials. After them, all files that are still suspected are added unconverted.
const TRIALS: usize = 300;
/// The prefix of a line in a commit's message that names an unconverted file.
const LISTED_AS: &str = "Raw: ";
/// At most this many files are listed in a message.
const LISTED: usize = 1000;
/// The timeout of one trial.
const PATIENCE: Duration = Duration::from_secs(120);

/// The search for the files that git cannot convert. A group that fails is halved.
#[derive(Debug)]
struct Search {
    open: Vec<Vec<Name>>,
    odd: Vec<Name>,
    /// The files that git could convert, and their entries.
    fine: Vec<Name>,
    converted: Vec<u8>,
    trials: usize,
}

impl Search {
    /// Starts a search among those of these names that are regular files.
    fn new(top: &Path, names: impl Iterator<Item = Name>) -> Self {
        let names: Vec<Name> =
            names.filter(|name| is_regular(&top.join(OsStr::from_bytes(name)))).collect();
        Self { open: vec![names], odd: vec![], fine: vec![], converted: vec![], trials: 0 }
    }

    /// Returns the files to try next.
    fn next(&mut self) -> Option<Vec<Name>> {
        if self.trials >= TRIALS {
            self.odd.extend(self.open.drain(..).flatten());
        }
        self.trials += 1;
        self.open.retain(|names| !names.is_empty());
        self.open.pop()
    }

    /// Notes that git converted these files; `hashes` has a line for each.
    fn succeeded(&mut self, top: &Path, mut names: Vec<Name>, hashes: &str) {
        self.converted.extend(entries(top, &names, hashes));
        self.fine.append(&mut names);
    }

    /// Notes that git failed on one of these files.
    fn failed(&mut self, mut names: Vec<Name>) {
        if names.len() == 1 {
            self.odd.append(&mut names);
        } else {
            let rest = names.split_off(names.len() / 2);
            self.open.extend([rest, names]);
        }
    }
}

/// Formats names as `git hash-object --stdin-paths` reads them: quoted as in C, one a line.
fn lines(names: &[Name]) -> Vec<u8> {
    let quoted = |name: &Name| {
        let bytes = name.iter().map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => {
                char::from(*byte).to_string()
            }
            other => format!("\\{other:03o}"),
        });
        format!("\"{}\"\n", bytes.collect::<String>())
    };
    names.iter().flat_map(|name| quoted(name).into_bytes()).collect()
}

/// Formats the first of these files (each with a NUL after it) as lines of a commit's message.
pub(super) fn listed(files: &[u8]) -> String {
    let names: Vec<Name> = split(files).take(LISTED).collect();
    let lines = String::from_utf8_lossy(&lines(&names)).into_owned();
    lines.lines().map(|line| format!("{LISTED_AS}{line}\n")).collect()
}

/// Parses the files that a commit's message lists.
fn unlisted(message: &str) -> impl Iterator<Item = Name> {
    let name = |line: &str| {
        let quoted = line.strip_prefix(LISTED_AS)?.strip_prefix('"')?.strip_suffix('"')?;
        let mut name = vec![];
        let mut rest = quoted.as_bytes();
        while let [first, after @ ..] = rest {
            let (byte, after) = match (first, after) {
                (b'\\', [a, b, c, after @ ..]) => {
                    let digits = [*a, *b, *c];
                    let digits = std::str::from_utf8(&digits).ok()?;
                    (u8::from_str_radix(digits, 8).ok()?, after)
                }
                _ => (*first, after),
            };
            name.push(byte);
            rest = after;
        }
        Some(name)
    };
    message.lines().filter_map(name).take(LISTED)
}

/// Splits a list of names, each with a NUL after it.
fn split(listed: &[u8]) -> impl Iterator<Item = Name> {
    listed.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec)
}

fn ended(names: &[Name]) -> Vec<u8> {
    names.iter().flat_map(|name| name.iter().copied().chain([0])).collect()
}

/// Formats files as `update-index -z --index-info` reads them; `hashes` has a line for each.
fn entries(top: &Path, names: &[Name], hashes: &str) -> Vec<u8> {
    let entry = |(name, hash): (&Name, &str)| {
        let meta = std::fs::symlink_metadata(top.join(OsStr::from_bytes(name)));
        let is_program = meta.is_ok_and(|meta| meta.permissions().mode() & 0o100 != 0);
        let mode = if is_program { "100755" } else { "100644" };
        [format!("{mode} {hash} 0\t").as_bytes(), name, b"\0"].concat()
    };
    names.iter().zip(hashes.lines()).flat_map(entry).collect()
}

const TRY: [&str; 3] = ["hash-object", "-w", "--stdin-paths"];
/// Arguments of `update-index -z` that add the files of its input.
pub(crate) const ADD: [&str; 4] = ["--add", "--remove", "--replace", "--stdin"];
const AS_IT_IS: [&str; 4] = ["hash-object", "-w", "--no-filters", "--stdin-paths"];

/// Whether a git command writes only the index, and adds no file's content to it.
pub(super) fn writes_index_alone(args: &[&str]) -> bool {
    let has = |flag: &str| args.contains(&flag);
    match args.first() {
        Some(&"write-tree") => true,
        Some(&"read-tree") => !has("-u"),
        Some(&"reset") => has("--mixed"),
        Some(&"update-index") => !has("--refresh") && !has("--add"),
        _ => false,
    }
}

impl Git {
    /// Returns a copy that ignores the attributes in files of the repository.
    pub(super) fn without_attributes(&self) -> Result<Self, GitError> {
        let mut plain =
            Self { attributes_from: Some(empty_tree(&self.head_or("")?)), ..self.clone() };
        plain.person.attributes = None;
        Ok(plain)
    }

    /// Adds all files to the index after `git add` failed with `why`. A file that git cannot
    /// convert is added unconverted; these files are returned, as `update-index --stdin` reads
    /// them.
    ///
    /// # Errors
    /// `why`, if an unconverted file is to be committed and the person has a filter for it: the
    /// commit would have other content than the person's own git would make.
    pub(super) fn add_raw(
        &self,
        index: &Index,
        is_committed: bool,
        why: GitError,
    ) -> Result<Vec<u8>, GitError> {
        // git also reads a file that may have changed when it writes the index, and may fail on its
        // attributes then. So the index is written without attributes where possible.
        let plain = self.without_attributes()?;
        let list = |which: &[&str]| {
            let args: Vec<&str> =
                ["ls-files", "-z", "--full-name"].iter().chain(which).copied().collect();
            plain.bytes(&args, b"", Some(&index.0))
        };
        let new = list(&["--others", "--exclude-standard", "--", ":(top)"])?;
        let changed = list(&["--modified", "--", ":(top)"])?;
        let mut search = Search::new(&self.top, split(&new).chain(split(&changed)));
        while let Some(names) = search.next() {
            match self.git_with(&TRY, &lines(&names), None) {
                Ok(hashes) => search.succeeded(&self.top, names, &hashes),
                Err(error @ GitError::Unheard { .. }) => return Err(error),
                Err(_) => search.failed(names),
            }
        }
        let (odd, fine) = (ended(&search.odd), ended(&search.fine));
        if is_committed && !odd.is_empty() && self.has_filter(&odd)? {
            return Err(why);
        }
        if !odd.is_empty() {
            let files = search.odd.len();
            tracing::warn!(dir = %self.top.display(), files, %why, "taken in byte for byte");
        }
        let update = |git: &Self, how: &[&str], input: &[u8]| match input {
            [] => Ok(()),
            input => {
                let args: Vec<&str> = ["update-index", "-z"].iter().chain(how).copied().collect();
                git.git_with(&args, input, Some(&index.0)).map(drop)
            }
        };
        if !odd.is_empty() {
            let hashes = self.git_with(&AS_IT_IS, &lines(&search.odd), None)?;
            let entries = entries(&self.top, &search.odd, &hashes);
            update(&plain, &["--index-info"], &entries)?;
        }
        // This form is preferred, because git keeps the line ends that the index has.
        if update(self, &ADD, &fine).is_err() {
            update(&plain, &["--index-info"], &search.converted)?;
        }
        // The rest (links, deleted files) is never converted.
        let known = [odd.as_slice(), &fine].concat();
        update(&plain, &["--assume-unchanged", "--stdin"], &known)?;
        plain.add_all(index)?;
        update(&plain, &["--no-assume-unchanged", "--stdin"], &known)?;
        // git reports a failure for converted files.
        drop(plain.git_with(&["update-index", "-q", "--refresh"], b"", Some(&index.0)));
        Ok(odd)
    }

    /// Writes the unconverted files again as they are in the tree `to`, because git may have
    /// converted them at the checkout. The commit `by` lists them. A file that differs between the
    /// tree `of`, in which it was added, and `to` is not written.
    pub(super) fn put_raw(&self, by: &str, of: &str, to: &str) -> Result<(), GitError> {
        let mut raw = self.raw_of(by)?;
        if raw.is_empty() {
            return Ok(());
        }
        for change in self.differences(of, to)? {
            raw.remove(&change.path);
        }
        let list = ["ls-tree", "-r", "-z", "--name-only", "--full-tree", to];
        let there = self.bytes(&list, b"", None)?;
        let there: Vec<Name> = split(&there).filter(|name| raw.contains(name)).collect();
        if there.is_empty() {
            return Ok(());
        }
        // A new index has no time stamps, so git takes no file for unchanged and writes all.
        let index = self.index();
        let plain = self.without_attributes()?;
        plain.git_with(&["read-tree", to], b"", Some(&index.0))?;
        let args = ["checkout-index", "-f", "-z", "--stdin"];
        plain.git_with(&args, &ended(&there), Some(&index.0)).map(drop)
    }

    /// Returns the files that the message of a commit lists as unconverted.
    fn raw_of(&self, commit: &str) -> Result<HashSet<Name>, GitError> {
        let message = match self.bytes(&["log", "-1", "--format=%b", commit], b"", None) {
            Err(error @ GitError::Unheard { .. }) => return Err(error),
            // The ref is missing if the task began under an earlier version.
            message => message.unwrap_or_default(),
        };
        Ok(unlisted(&String::from_utf8_lossy(&message)).collect())
    }

    /// Returns the lines for the message of another commit with the same files.
    pub(super) fn lines_of(&self, commit: &str) -> Result<String, GitError> {
        let names: Vec<Name> = self.raw_of(commit)?.into_iter().collect();
        Ok(listed(&ended(&names)))
    }

    /// Whether one of these files goes through a filter of the person.
    fn has_filter(&self, paths: &[u8]) -> Result<bool, GitError> {
        if self.is_clone || self.person.filters.is_empty() {
            return Ok(false);
        }
        let told = self.bytes(&["check-attr", "-z", "--stdin", "filter"], paths, None)?;
        let fields: Vec<_> = told.split(|byte| *byte == 0).collect();
        let (triples, _) = fields.as_chunks::<3>();
        let is_persons =
            |value: &[u8]| self.person.filters.contains_key(&*String::from_utf8_lossy(value));
        Ok(triples.iter().any(|[_, _, value]| is_persons(value)))
    }
}

/// The result of the search among the files of a clone.
#[derive(Debug, Default)]
pub(crate) struct Raw {
    /// The files that git cannot convert, as `update-index -z --index-info` reads them.
    pub entries: Vec<u8>,
    /// Their paths, each with a NUL after it.
    pub odd: Vec<u8>,
    /// All other paths.
    pub other: Vec<u8>,
    /// The regular files among those, and their entries.
    pub fine: Vec<u8>,
    pub converted: Vec<u8>,
}

/// Finds the files among `paths` that git cannot convert, and adds their bytes to the repository.
/// `git` makes a command for the repository with the working directory `top`. Its input is written
/// to `list`.
pub(crate) async fn find(
    git: &(impl Fn() -> Command + Sync),
    top: &Path,
    paths: &[u8],
    list: &Path,
) -> Result<Raw, RepoError> {
    let hash = async |how: &[&str], names: &[Name]| {
        std::fs::write(list, lines(names)).map_err(FileError::at(list))?;
        let mut command = git();
        command.arg("-C").arg(top).args(how);
        command.stdin(std::fs::File::open(list).map_err(FileError::at(list))?);
        let hashes = run_within(&mut command, PATIENCE, "cannot read the files").await?;
        Ok::<_, RepoError>(hashes)
    };
    let mut search = Search::new(top, split(paths));
    while let Some(names) = search.next() {
        match hash(&TRY, &names).await {
            Ok(hashes) => search.succeeded(top, names, &hashes),
            Err(_) => search.failed(names),
        }
    }
    let Search { odd, fine, converted, .. } = search;
    let hashes = if odd.is_empty() { String::new() } else { hash(&AS_IT_IS, &odd).await? };
    let known: HashSet<&Name> = odd.iter().collect();
    let other: Vec<Name> = split(paths).filter(|name| !known.contains(name)).collect();
    Ok(Raw {
        entries: entries(top, &odd, &hashes),
        odd: ended(&odd),
        other: ended(&other),
        fine: ended(&fine),
        converted,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn search_with_several_odd_files_finds_just_these() {
        let dir = tempfile::tempdir().unwrap();
        let names: Vec<Name> = (0..50).map(|n| format!("f{n}").into_bytes()).collect();
        for name in &names {
            std::fs::write(dir.path().join(OsStr::from_bytes(name)), "x").unwrap();
        }
        std::os::unix::fs::symlink("f0", dir.path().join("link")).unwrap();
        let all = names.iter().cloned().chain([b"link".to_vec(), b"gone".to_vec()]);
        let mut search = Search::new(dir.path(), all);
        let wanted = [b"f0".to_vec(), b"f17".to_vec(), b"f49".to_vec()];
        while let Some(tried) = search.next() {
            assert!(!tried.iter().any(|name| name == b"link" || name == b"gone"));
            if tried.iter().any(|name| wanted.contains(name)) {
                search.failed(tried);
            }
        }
        search.odd.sort();
        assert_eq!(search.odd, wanted);
        assert!(search.trials < 40, "{}", search.trials);
    }

    #[test]
    fn names_of_any_bytes_in_a_message_are_read_again() {
        let names = [b"a/b c".to_vec(), b"\xff\n\"\\".to_vec()];
        let message = format!("Start: x\n{}", listed(&ended(&names)));
        assert_eq!(unlisted(&message).collect::<Vec<_>>(), names);
    }

    #[test]
    fn name_of_any_bytes_is_quoted() {
        assert_eq!(
            lines(&[b"a/b c".to_vec(), b"\xff\n\"".to_vec()]),
            b"\"a/b\\040c\"\n\"\\377\\012\\042\"\n"
        );
    }
}
