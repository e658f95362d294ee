//! Files that git cannot take in as their attributes say: text in another encoding than
//! `working-tree-encoding` names, line ends that would not come back, a filter that fails. One of
//! them ends a whole `git add`. So where that fails, those files are found, and taken in byte for
//! byte; all others are converted as always.

use crate::vcs::user_repo::large_files::{empty_tree, is_regular};
use crate::vcs::user_repo::snapshot_trees::Index;
use crate::vcs::user_repo::{Git, GitError};
use crate::vcs::worktree::run_within;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use tokio::process::Command;

/// A path from the top of the working directory, in any bytes.
type Name = Vec<u8>;

/// Has git take attributes from this tree alone, and not from the working directory.
pub(crate) const ATTRIBUTES_FROM: &str = "GIT_ATTR_SOURCE";
/// Of more trials than these the files that are not told apart by then are taken in as they are.
const TRIALS: usize = 300;
/// Most that one trial takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// The search for the files that git cannot convert: what fails together is halved.
#[derive(Debug)]
struct Search {
    open: Vec<Vec<Name>>,
    odd: Vec<Name>,
    trials: usize,
}

impl Search {
    /// Among the regular files of these.
    fn new(top: &Path, names: impl Iterator<Item = Name>) -> Self {
        let names: Vec<Name> =
            names.filter(|name| is_regular(&top.join(OsStr::from_bytes(name)))).collect();
        Self { open: vec![names], odd: vec![], trials: 0 }
    }

    /// The files to be tried next.
    fn next(&mut self) -> Option<Vec<Name>> {
        if self.trials >= TRIALS {
            self.odd.extend(self.open.drain(..).flatten());
        }
        self.trials += 1;
        self.open.retain(|names| !names.is_empty());
        self.open.pop()
    }

    /// They could not be taken in.
    fn failed(&mut self, mut names: Vec<Name>) {
        if names.len() == 1 {
            self.odd.append(&mut names);
        } else {
            let rest = names.split_off(names.len() / 2);
            self.open.extend([rest, names]);
        }
    }
}

/// The names as `git hash-object --stdin-paths` reads them: quoted as in C, one a line.
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

/// Names, each ended by NUL, one by one.
fn split(listed: &[u8]) -> impl Iterator<Item = Name> {
    listed.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec)
}

fn ended(names: &[Name]) -> Vec<u8> {
    names.iter().flat_map(|name| name.iter().copied().chain([0])).collect()
}

/// The files as `update-index -z --index-info` reads them; `hashes` is a line for each.
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
const AS_IT_IS: [&str; 4] = ["hash-object", "-w", "--no-filters", "--stdin-paths"];

impl Git {
    /// This one, deaf to the attributes that files of the repository set.
    pub(super) fn without_attributes(&self) -> Result<Self, GitError> {
        Ok(Self { attributes_from: Some(empty_tree(&self.head_or("")?)), ..self.clone() })
    }

    /// Takes the files into the index that git cannot convert, and has `git add` pass them over.
    /// They are returned, each ended by NUL. One that is to be committed goes through a filter of
    /// the person's, or `why` is the answer: something else would be committed.
    pub(super) fn take_raw(
        &self,
        index: &Index,
        is_committed: bool,
        why: GitError,
    ) -> Result<Vec<u8>, GitError> {
        let plain = self.without_attributes()?;
        // A file that lies there as the index has it is not read by `git add`. It complains of
        // others.
        drop(plain.with(index, &["update-index", "-q", "--refresh"].map(String::from), b""));
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
                Ok(_) => {}
                Err(error @ GitError::Unheard { .. }) => return Err(error),
                Err(_) => search.failed(names),
            }
        }
        let odd = search.odd;
        if odd.is_empty() {
            return Ok(vec![]);
        }
        let paths = ended(&odd);
        if is_committed && self.has_filter(&paths)? {
            return Err(why);
        }
        tracing::warn!(dir = %self.top.display(), files = odd.len(), %why, "taken in byte for byte");
        let hashes = self.git_with(&AS_IT_IS, &lines(&odd), None)?;
        self.with(
            index,
            &["update-index", "-z", "--index-info"].map(String::from),
            &entries(&self.top, &odd, &hashes),
        )?;
        plain.with(
            index,
            &["update-index", "-z", "--assume-unchanged", "--stdin"].map(String::from),
            &paths,
        )?;
        Ok(paths)
    }

    /// Lets the index know again what [`Self::take_raw`] had passed over: as it lies there.
    pub(super) fn know_raw(&self, index: &Index, paths: &[u8]) -> Result<(), GitError> {
        let plain = self.without_attributes()?;
        let known = ["update-index", "-z", "--no-assume-unchanged", "--stdin"].map(String::from);
        plain.with(index, &known, paths)?;
        // It complains of other files.
        drop(plain.with(index, &["update-index", "-q", "--refresh"].map(String::from), b""));
        Ok(())
    }

    /// Whether one of these files goes through a filter that the person has.
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

/// What was found among the files of a clone.
#[derive(Debug, Default)]
pub(crate) struct Raw {
    /// Those that git cannot convert, as `update-index -z --index-info` reads them.
    pub entries: Vec<u8>,
    /// Their paths, each ended by NUL.
    pub odd: Vec<u8>,
    /// All other paths.
    pub other: Vec<u8>,
}

/// Finds the files among `paths` that git cannot convert, and puts their bytes into the repository.
/// `git` makes a git of it with the working directory `top`; its input is written to `list`.
pub(crate) async fn find(
    git: &(impl Fn() -> Command + Sync),
    top: &Path,
    paths: &[u8],
    list: &Path,
) -> Result<Raw, String> {
    let hash = async |how: &[&str], names: &[Name]| {
        let failed = |error: std::io::Error| format!("{}: {error}", list.display());
        std::fs::write(list, lines(names)).map_err(failed)?;
        let mut command = git();
        command.arg("-C").arg(top).args(how);
        command.stdin(std::fs::File::open(list).map_err(failed)?);
        run_within(&mut command, PATIENCE, "cannot read the files").await
    };
    let mut search = Search::new(top, split(paths));
    while let Some(names) = search.next() {
        if hash(&TRY, &names).await.is_err() {
            search.failed(names);
        }
    }
    let odd = search.odd;
    if odd.is_empty() {
        return Ok(Raw { other: paths.to_vec(), ..Raw::default() });
    }
    let hashes = hash(&AS_IT_IS, &odd).await?;
    let known: std::collections::HashSet<&Name> = odd.iter().collect();
    let other: Vec<Name> = split(paths).filter(|name| !known.contains(name)).collect();
    Ok(Raw { entries: entries(top, &odd, &hashes), odd: ended(&odd), other: ended(&other) })
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
    fn name_of_any_bytes_is_quoted() {
        assert_eq!(
            lines(&[b"a/b c".to_vec(), b"\xff\n\"".to_vec()]),
            b"\"a/b\\040c\"\n\"\\377\\012\\042\"\n"
        );
    }
}
