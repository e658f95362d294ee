//! The files of a person's working directory that a clone for an agent will not contain.

use crate::command::blocking::run_bytes;
use crate::command::configuration;
use crate::lfs::{self, LONGEST, Pointer, Store};
use crate::user_repo::{Git, is_below};
use std::collections::BTreeSet;

/// The number of names in a warning.
const NAMED: usize = 3;

/// The work that an agent in a clone will not see, by the names of the files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MissingInClones {
    /// Changed, staged and untracked files that no commit contains.
    pub uncommitted: Vec<String>,
    /// The repository has submodules, or names some.
    pub has_submodules: bool,
    /// The directories of submodules.
    pub submodules: Vec<String>,
    /// Files of Git LFS that will be pointers.
    pub lfs: Vec<String>,
}

/// The content of Git LFS files in clones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LfsContent<'a> {
    /// Muleteer copies it, if the agent finds git-lfs on this `PATH` and the content is here.
    Copied { path: Option<&'a str> },
    /// No clone gets it.
    Absent,
}

impl Git {
    /// Returns the files of the working directory that a clone of its commit will not contain. A
    /// git that fails counts as one that finds nothing, because this is only for warnings.
    pub fn missing_in_clones(&self, content: LfsContent<'_>) -> MissingInClones {
        let names = |args: &[&str]| -> Vec<String> {
            let listed = self.bytes(args, b"", None).unwrap_or_default();
            let names = listed.split(|byte| *byte == 0).filter(|name| !name.is_empty());
            names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
        };
        let is_own = |path: &String| self.own.iter().any(|own| is_below(own, path));
        let changed = [
            "diff",
            "--no-ext-diff",
            "--no-textconv",
            "--no-renames",
            "--ignore-submodules=dirty",
            "--name-only",
            "-z",
            "HEAD",
        ];
        let untracked = ["ls-files", "-z", "--others", "--exclude-standard", "--directory"];
        let uncommitted: BTreeSet<String> =
            names(&changed).into_iter().chain(names(&untracked)).collect();
        let staged = names(&["ls-files", "-z", "--stage"]);
        // Each line is `160000 <hash> <stage>\t<path>` for a submodule.
        let submodules = staged.iter().filter(|line| line.starts_with("160000 "));
        let submodules = submodules.filter_map(|line| line.split_once('\t'));
        let submodules: Vec<String> = submodules.map(|(_, path)| path.to_string()).collect();
        MissingInClones {
            has_submodules: !submodules.is_empty() || self.top.join(".gitmodules").exists(),
            uncommitted: uncommitted.into_iter().filter(|path| !is_own(path)).collect(),
            submodules,
            lfs: self.pointers_in_clones(content),
        }
    }

    /// Returns the Git LFS files of which a clone will only have the pointers.
    fn pointers_in_clones(&self, content: LfsContent<'_>) -> Vec<String> {
        let list = ["ls-files", "-z", "--stage", "--", ":(top,attr:filter=lfs)"];
        let listed = self.bytes(&list, b"", None).unwrap_or_default();
        // Each line is `100644 <hash> <stage>\t<path>`.
        let files: Vec<(String, String)> = listed
            .split(|byte| *byte == 0)
            .filter_map(|line| {
                let line = String::from_utf8_lossy(line);
                let (about, name) = line.split_once('\t')?;
                Some((about.split(' ').nth(1)?.to_string(), name.to_string()))
            })
            .collect();
        if files.is_empty() {
            return vec![];
        }
        // A file of another length is no pointer, and may be too large to read.
        let ask = |args: &[&str], blobs: &[&str]| {
            let text = format!("{}\n", blobs.join("\n"));
            self.bytes(args, text.as_bytes(), None).unwrap_or_default()
        };
        let blobs: Vec<&str> = files.iter().map(|(blob, _)| blob.as_str()).collect();
        let sizes = ask(&["cat-file", "--batch-check=%(objectsize)"], &blobs);
        let sizes = String::from_utf8_lossy(&sizes);
        let is_short = |size: &str| size.parse::<u64>().is_ok_and(|size| size <= LONGEST);
        let (blobs, names): (Vec<&str>, Vec<&String>) = files
            .iter()
            .zip(sizes.lines())
            .filter(|(_, size)| is_short(size))
            .map(|((blob, name), _)| (blob.as_str(), name))
            .unzip();
        let pointers = lfs::pointers_of(&ask(&["cat-file", "--batch"], &blobs));
        let store = match content {
            LfsContent::Copied { path } if lfs::is_installed(path, &self.top) => Some(self.store()),
            LfsContent::Copied { .. } | LfsContent::Absent => None,
        };
        let has =
            |pointer: &Pointer| store.as_ref().is_some_and(|store| store.find(pointer).is_some());
        let files = names.into_iter().zip(pointers);
        files
            .filter(|(_, pointer)| pointer.as_ref().is_some_and(|pointer| !has(pointer)))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Returns the folder in which git-lfs keeps the files of the repository.
    fn store(&self) -> Store {
        let mut ask = configuration(&self.top);
        ask.args(["config", "--type=path", "lfs.storage"]);
        let chosen = run_bytes(ask, b"", "config").unwrap_or_default();
        Store::chosen(&self.common_dir, String::from_utf8_lossy(&chosen).trim())
    }
}

impl MissingInClones {
    /// Returns a warning for each kind of files, for people.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = vec![];
        if !self.uncommitted.is_empty() {
            warnings.push(format!(
                "uncommitted changes are not in the agent's clone: {}; commit what it needs",
                named(&self.uncommitted)
            ));
        }
        if self.has_submodules {
            let names = match self.submodules.is_empty() {
                true => String::new(),
                false => format!(": {}", named(&self.submodules)),
            };
            warnings.push(format!(
                "the agent's clone does not contain the submodules of the repository{names}"
            ));
        }
        if !self.lfs.is_empty() {
            warnings.push(format!(
                "the agent's clone does not contain the content of Git LFS files, only pointers to \
                 it: {}; put git-lfs on the agent's PATH, and run `git lfs fetch`",
                named(&self.lfs)
            ));
        }
        warnings
    }
}

/// Returns the first names, and the number of the others.
fn named(names: &[String]) -> String {
    let first: Vec<&str> = names.iter().take(NAMED).map(String::as_str).collect();
    match names.len().saturating_sub(NAMED) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_name_the_first_files_of_each_kind() {
        assert!(MissingInClones::default().warnings().is_empty());
        let names = |count: usize| (1..=count).map(|n| format!("f{n}")).collect::<Vec<_>>();
        let missing = MissingInClones {
            uncommitted: names(5),
            has_submodules: true,
            submodules: names(1),
            lfs: names(2),
        };
        let warnings = missing.warnings();
        assert_eq!(warnings.len(), 3);
        assert!(warnings[0].contains("f1, f2, f3 and 2 more"), "{warnings:?}");
        assert!(warnings[1].ends_with("submodules of the repository: f1"), "{warnings:?}");
        assert!(warnings[2].contains("pointers to it: f1, f2;"), "{warnings:?}");
    }
}
