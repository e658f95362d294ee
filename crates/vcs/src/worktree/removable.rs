//! Searches a clone for work that no fetch brings home: repositories inside it, and linked working
//! directories. It reads the clone as files and runs no git.

use muleteer_process::clock::awake;
use muleteer_store::removal;
use std::fs::{DirEntry, FileType};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time limit of a search.
const PATIENCE: Duration = Duration::from_secs(60);
/// The prefix and the suffix of the name that a clone has while it is being removed.
const PREFIX: &str = ".";
const SUFFIX: &str = ".removed";

/// Work in a clone that would be lost with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsaved {
    #[error("it contains a repository of its own: {}", .0.display())]
    Repository(PathBuf),
    #[error("it has a linked working directory: {}", .0.display())]
    LinkedWorktree(PathBuf),
    #[error("{} is a link", .0.display())]
    Link(PathBuf),
    #[error("it has too many files to search them")]
    TooLarge,
}

/// Returns the first thing in a clone that would be lost with it, although its commits and files
/// were fetched. Blocks.
///
/// # Errors
/// A directory of the clone cannot be read.
pub fn unsaved(clone: &Path) -> io::Result<Option<Unsaved>> {
    // A link would lead the removal to files of somebody else.
    let folders = clone.ancestors().take(3);
    if let Some(link) = folders.filter(|folder| !is_folder(folder)).last() {
        return Ok(Some(Unsaved::Link(link.into())));
    }
    let own = clone.join(".git");
    if let Some(module) = entries(&own.join("modules"))?.first() {
        return Ok(Some(Unsaved::Repository(module.path())));
    }
    if let Some(linked) = entries(&own.join("worktrees"))?.first() {
        return Ok(Some(Unsaved::LinkedWorktree(linked.path())));
    }
    repository_below(clone, awake() + PATIENCE)
}

/// Returns the name that a clone has while it is being removed. A partly removed clone thus never
/// looks like one whose agent deleted files.
pub fn removal_name(clone: &Path) -> Option<PathBuf> {
    let name = clone.file_name()?.to_str()?;
    Some(clone.with_file_name(format!("{PREFIX}{name}{SUFFIX}")))
}

/// Returns the id of the dispatch if a file name is one of a clone that is being removed.
pub fn removed_id(name: &str) -> Option<&str> {
    name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)
}

/// Moves a clone away from its place, and returns where it is now. Blocks.
///
/// # Errors
/// The clone cannot be renamed, or the rest of an earlier removal cannot be removed.
pub fn move_away(clone: &Path) -> io::Result<PathBuf> {
    let away = removal_name(clone).ok_or(io::ErrorKind::InvalidInput)?;
    match removal::remove_tree(&away, removal::PATIENCE) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::fs::rename(clone, &away)?;
    Ok(away)
}

fn is_folder(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir())
}

/// Returns the entries of a directory; none if it does not exist or is no directory.
fn entries(folder: &Path) -> io::Result<Vec<DirEntry>> {
    if !is_folder(folder) {
        return Ok(vec![]);
    }
    std::fs::read_dir(folder)?.collect()
}

/// Returns a repository below the top of a clone, with or without a working directory.
fn repository_below(clone: &Path, deadline: Duration) -> io::Result<Option<Unsaved>> {
    let mut folders = vec![clone.to_owned()];
    while let Some(folder) = folders.pop() {
        if awake() > deadline {
            return Ok(Some(Unsaved::TooLarge));
        }
        let (mut parts, is_top) = (0, folder == clone);
        for entry in entries(&folder)? {
            let (name, kind): (_, FileType) = (entry.file_name(), entry.file_type()?);
            if name == ".git" {
                if is_top {
                    continue;
                }
                return Ok(Some(Unsaved::Repository(folder)));
            }
            let is_part = (kind.is_file() && name == "HEAD")
                || (kind.is_dir() && (name == "objects" || name == "refs"));
            parts += u8::from(is_part);
            if kind.is_dir() {
                folders.push(entry.path());
            }
        }
        if parts == 3 {
            return Ok(Some(Unsaved::Repository(folder)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    struct Place {
        dir: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Self {
            let place = Self { dir: tempfile::tempdir().expect("a directory") };
            place.write("repo/.muleteer/worktrees/abcd2345/.git/HEAD", "ref: refs/heads/x\n");
            place.write("repo/.muleteer/worktrees/abcd2345/src/main.rs", "");
            place.write("repo/.git/HEAD", "ref: refs/heads/main\n");
            place
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn clone(&self) -> PathBuf {
            self.path("repo/.muleteer/worktrees/abcd2345")
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.path(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a directory");
            std::fs::write(path, text).expect("a file");
        }

        fn unsaved(&self) -> Option<Unsaved> {
            unsaved(&self.clone()).expect("it can be read")
        }
    }

    #[test]
    fn ordinary_clone_has_nothing_unsaved() {
        assert_eq!(Place::new().unsaved(), None);
    }

    /// Each of these would be lost without a trace: git's ignore rules hide such folders.
    #[test]
    fn repositories_inside_a_clone_are_unsaved() {
        for file in [
            "vendor/lib/.git/HEAD",
            "vendor/lib/.git",
            ".git/modules/lib/HEAD",
            "target/cache.git/HEAD",
        ] {
            let place = Place::new();
            let at = format!("repo/.muleteer/worktrees/abcd2345/{file}");
            place.write(&at, "");
            if file.starts_with("target") {
                for folder in ["objects", "refs"] {
                    let at = place.clone().join("target/cache.git").join(folder);
                    std::fs::create_dir_all(at).expect("a directory");
                }
            }
            let found = place.unsaved();
            assert!(matches!(found, Some(Unsaved::Repository(_))), "{file}: {found:?}");
        }
        let place = Place::new();
        place.write("repo/.muleteer/worktrees/abcd2345/.git/worktrees/side/HEAD", "");
        assert!(matches!(place.unsaved(), Some(Unsaved::LinkedWorktree(_))));
    }

    /// The removal must not follow a link that an agent made.
    #[test]
    fn clone_behind_a_link_is_unsaved() {
        let place = Place::new();
        let folder = place.path("repo/.muleteer/worktrees");
        std::fs::rename(&folder, place.path("elsewhere")).expect("it moves");
        symlink(place.path("elsewhere"), &folder).expect("a link");
        assert_eq!(place.unsaved(), Some(Unsaved::Link(folder)));
    }

    #[test]
    fn clone_moves_away_over_the_rest_of_an_earlier_removal() {
        let place = Place::new();
        let away = removal_name(&place.clone()).expect("a name");
        assert_eq!(away.file_name().and_then(|name| removed_id(name.to_str()?)), Some("abcd2345"));
        std::fs::create_dir_all(away.join("old")).expect("a directory");
        assert_eq!(move_away(&place.clone()).expect("it moves"), away);
        assert!(!place.clone().exists() && away.join("src").exists() && !away.join("old").exists());
        assert_eq!(removed_id("abcd2345"), None);
    }
}
