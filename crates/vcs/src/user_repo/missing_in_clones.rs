//! The files of a person's working directory that a clone for an agent will not contain.

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
    /// Files that Git LFS stores outside of the repository.
    pub lfs: Vec<String>,
}

impl Git {
    /// Returns the files of the working directory that a clone of its commit will not contain. A
    /// git that fails counts as one that finds nothing, because this is only for warnings.
    pub fn missing_in_clones(&self) -> MissingInClones {
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
            lfs: names(&["ls-files", "-z", "--", ":(attr:filter=lfs)"]),
        }
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
                 it: {}",
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
        assert!(warnings[2].ends_with("f1, f2"), "{warnings:?}");
    }
}
