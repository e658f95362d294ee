//! Reads a git directory as plain files. git does not run, so nothing of an agent's can run.

use crate::error::Damage;
use crate::untrusted_path;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// The limit of a loose ref file, which has a hash or the name of another ref.
pub(crate) const REF_LIMIT: u64 = 1024;
/// At most this many entries of a repository are checked before a git reads it.
const ENTRIES_LIMIT: usize = 100_000;

/// Parses a hash as git writes it.
pub fn hash(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?.trim_end();
    let fine = matches!(text.len(), 40 | 64)
        && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    fine.then(|| text.to_string())
}

/// Reads a ref from its loose file, which the most recently written refs have. git does not run.
pub fn loose(git_dir: &Path, name: &str) -> Option<String> {
    let bytes = untrusted_path::read(git_dir, Path::new(name), REF_LIMIT).ok()??;
    hash(&bytes)
}

/// Returns the commit that is checked out in a clone if its files say so; `None` means: ask git.
pub fn head(git_dir: &Path) -> Option<String> {
    let bytes = untrusted_path::read(git_dir, Path::new("HEAD"), REF_LIMIT).ok()??;
    if let Some(hash) = hash(&bytes) {
        return Some(hash);
    }
    let name = std::str::from_utf8(&bytes).ok()?.strip_prefix("ref: ")?.trim_end();
    name.starts_with("refs/heads/").then(|| loose(git_dir, name))?
}

/// Rejects pipes and devices. git would wait for ever at a pipe without a writer, and read a device
/// without an end.
pub fn check_files(git_dir: &Path) -> Result<(), Damage> {
    let (mut folders, mut seen) = (vec![git_dir.to_owned()], 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            seen += 1;
            // Beyond the limit, only the timeouts protect.
            if seen > ENTRIES_LIMIT {
                return Ok(());
            }
            let Ok(mut kind) = entry.file_type() else { continue };
            if kind.is_symlink() {
                let Ok(there) = std::fs::metadata(entry.path()) else { continue };
                // Some tools disable hooks with a link to `/dev/null`. Reading it ends at once.
                if is_null(&there) {
                    continue;
                }
                kind = there.file_type();
            } else if kind.is_dir() {
                folders.push(entry.path());
            }
            // A socket cannot be opened as a file, so it does not make git wait.
            if !kind.is_file() && !kind.is_dir() && !kind.is_socket() {
                let name = entry.path();
                let name = name.strip_prefix(git_dir).unwrap_or(&name).display().to_string();
                return Err(Damage::SpecialFile(name));
            }
        }
    }
    Ok(())
}

/// Whether it is the device `/dev/null`, by its number and not by its name.
fn is_null(there: &std::fs::Metadata) -> bool {
    let null = std::fs::metadata("/dev/null").is_ok_and(|null| null.rdev() == there.rdev());
    there.file_type().is_char_device() && null
}
