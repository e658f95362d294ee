//! Repairs damage that a power cut may leave in a git directory of ours, and that git itself cannot
//! repair. Files are removed only if nobody can be using them, because an agent may be running
//! there.

use std::ffi::OsStr;
use std::fs::{self, DirEntry, Metadata};
use std::path::Path;

/// Removes lock files of gits that died with the machine: every living process started later.
pub fn forget_stale_locks(git_dir: &Path) {
    let is_stale = |entry: &DirEntry| {
        let meta = entry.metadata();
        meta.is_ok_and(|meta| meta.is_file() && is_old(&meta))
            && entry.path().extension() == Some(OsStr::new("lock"))
    };
    let mut folders = vec![git_dir.join("refs/heads")];
    entries(git_dir).filter(is_stale).for_each(|entry| forget(&entry));
    while let Some(folder) = folders.pop() {
        for entry in entries(&folder) {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            } else if is_stale(&entry) {
                forget(&entry);
            }
        }
    }
}

/// Removes empty loose objects. git writes an object whole before it gets its name, so it would
/// take an empty one for an object that it has and cannot read.
pub fn forget_empty_objects(objects: &Path) {
    let folders = entries(objects).filter(|entry| entry.file_name().len() == 2);
    let empty =
        |entry: &DirEntry| entry.metadata().is_ok_and(|meta| meta.is_file() && meta.len() == 0);
    folders
        .flat_map(|folder| entries(&folder.path()).collect::<Vec<_>>())
        .filter(empty)
        .for_each(|entry| forget(&entry));
}

/// Whether a folder has files, and none that was written since the machine started.
pub fn is_stale_folder(folder: &Path) -> bool {
    let mut files = entries(folder)
        .filter_map(|entry| entry.metadata().ok())
        .filter(Metadata::is_file)
        .peekable();
    files.peek().is_some() && files.all(|meta| is_old(&meta))
}

/// Whether a file is empty and was not written since the machine started.
pub fn is_stale_and_empty(file: &Path) -> bool {
    fs::symlink_metadata(file).is_ok_and(|meta| meta.is_file() && meta.len() == 0 && is_old(&meta))
}

fn is_old(meta: &Metadata) -> bool {
    meta.modified().is_ok_and(muleteer_process::clock::is_before_boot)
}

fn entries(folder: &Path) -> impl Iterator<Item = DirEntry> {
    fs::read_dir(folder).into_iter().flatten().flatten()
}

fn forget(entry: &DirEntry) {
    tracing::warn!(
        path = %entry.path().display(),
        "left by a machine that went down, and taken away"
    );
    drop(fs::remove_file(entry.path()));
}
