//! The files of tbd in its own worktree, read only as far as they have changed.

use muleteer_model::beads::tbd::Issues;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The limits for all issue files together, and for one.
pub const FILES_LIMIT: u64 = 256 * 1024 * 1024;
pub const FILE_LIMIT: u64 = 2 * 1024 * 1024;

/// The file with the ids that tbd shows, in the folder of its data.
const IDS: &str = "mappings/ids.yml";

/// Inode, length, seconds and nanoseconds of each file, by its path in the folder of tbd's data.
/// tbd replaces files, so each change gives another stamp.
pub type Stamp = BTreeMap<String, (u64, u64, i64, i64)>;

/// Returns the folder of tbd's data in a repository.
pub fn folder(repo: &Path) -> PathBuf {
    repo.join(".git/tbd/data-sync-worktree/.tbd/data-sync")
}

/// Returns the stamp of tbd's files, which saves a call of tbd if it is unchanged. `None` if the
/// files are elsewhere; then tbd is called each time.
pub fn stamp(data: &Path) -> Option<Stamp> {
    let mut stamp = Stamp::new();
    for folder in ["issues", "mappings"] {
        for entry in std::fs::read_dir(data.join(folder)).ok()? {
            let entry = entry.ok()?;
            let meta = entry.metadata().ok()?;
            let name = format!("{folder}/{}", entry.file_name().to_str()?);
            stamp.insert(name, (meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec()));
        }
    }
    Some(stamp)
}

/// Reads the files that differ between two stamps. Returns false if the result is not certain to
/// be what `tbd save` would give, because tbd is in the middle of a change or a file is unreadable.
/// Then the caller reads all issues again.
pub fn reread(issues: &mut Issues, data: &Path, before: &Stamp, now: &Stamp) -> bool {
    let size: u64 = now.values().map(|(_, length, _, _)| length).sum();
    if size > FILES_LIMIT {
        return false;
    }
    for gone in before.keys().filter(|name| !now.contains_key(*name)) {
        if let Some(file) = issue(gone) {
            issues.remove(file);
        }
    }
    for (name, stamp) in now.iter().filter(|(name, stamp)| before.get(*name) != Some(*stamp)) {
        let Some(file) = issue(name).or_else(|| (name == IDS).then_some(name.as_str())) else {
            continue;
        };
        let fits = name == IDS || stamp.1 <= FILE_LIMIT;
        let Some(text) = std::fs::read_to_string(data.join(name)).ok().filter(|_| fits) else {
            return false;
        };
        let read = if name == IDS { issues.set_ids(&text) } else { issues.put(file, &text) };
        if read.is_err() {
            return false;
        }
    }
    issues.is_whole()
}

/// Returns the file name if it is the path of an issue.
fn issue(name: &str) -> Option<&str> {
    name.strip_prefix("issues/").filter(|file| file.ends_with(".md"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn write(data: &Path, id: &str, title: &str) {
        let text = format!(
            "---\nid: is-{id}\ntitle: {title}\ncreated_at: 2026-11-22T08:55:17Z\n\
             updated_at: 2026-11-22T08:55:17Z\n---\n"
        );
        std::fs::write(data.join(format!("issues/is-{id}.md")), text).unwrap();
    }

    #[test]
    fn only_changed_files_are_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path();
        for folder in ["issues", "mappings"] {
            std::fs::create_dir(data.join(folder)).unwrap();
        }
        let mut issues = Issues::default();
        let mut before = Stamp::new();
        let mut step = |issues: &mut Issues| {
            let now = stamp(data).unwrap();
            let whole = reread(issues, data, &before, &now);
            before = now;
            whole
        };
        write(data, "a", "One");
        write(data, "b", "Two");
        assert!(!step(&mut issues), "tbd has not written their ids yet");
        std::fs::write(data.join(IDS), "x: a\ny: b\n").unwrap();
        assert!(step(&mut issues));
        write(data, "b", "Two, changed");
        std::fs::remove_file(data.join("issues/is-a.md")).unwrap();
        std::fs::write(data.join("issues/.gitkeep"), "").unwrap();
        assert!(step(&mut issues));
        let known = issues.known("sup");
        let titles: Vec<_> = known.beads.values().map(|bead| (&*bead.id, &*bead.title)).collect();
        assert_eq!(titles, [("sup-y", "Two, changed")]);
        std::fs::write(data.join("issues/is-b.md"), "half of a fi").unwrap();
        assert!(!step(&mut issues));
    }
}
