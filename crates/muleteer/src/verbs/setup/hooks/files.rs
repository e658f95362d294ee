//! Reads and finds files that other programs and people own.

use rustix::fs::OFlags;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// No settings file is larger.
const LIMIT: u64 = 4 * 1024 * 1024;
/// The kernel follows no more links either.
const LINKS: u32 = 40;

/// Reads a regular file; `None` if it does not exist. A pipe in its place would block, and a device
/// may never end.
pub(super) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let not_regular = || io::Error::other("it is not a regular file");
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let opened = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(None);
        }
        // A socket cannot be opened at all.
        Err(_) if std::fs::metadata(path).is_ok_and(|meta| !meta.is_file()) => {
            return Err(not_regular());
        }
        Err(error) => return Err(error),
    };
    if !file.metadata()?.is_file() {
        return Err(not_regular());
    }
    let mut bytes = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LIMIT {
        return Err(io::Error::other("the file is too large"));
    }
    Ok(Some(bytes))
}

/// Returns the file that a path leads to through links. It need not exist: people keep settings
/// behind links to a directory that is not there yet.
pub(super) fn target(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..LINKS {
        match std::fs::read_link(&path) {
            Ok(to) => path = path.parent().unwrap_or(Path::new("")).join(to),
            Err(_) => return Ok(path),
        }
    }
    Err(rustix::io::Errno::LOOP.into())
}

/// Creates a folder and those above it, each also behind a link that leads nowhere yet.
pub(super) fn create_folder(path: &Path) -> io::Result<()> {
    create_linked_folder(path, LINKS)
}

fn create_linked_folder(path: &Path, links_left: u32) -> io::Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    path.parent().map_or(Ok(()), |parent| create_linked_folder(parent, links_left))?;
    let to = target(path)?;
    if to == path {
        return std::fs::create_dir_all(path);
    }
    let links_left = links_left.checked_sub(1).ok_or(rustix::io::Errno::LOOP)?;
    create_linked_folder(&to, links_left)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_regular_files_of_bounded_size_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        assert!(read(&at("none")).unwrap().is_none());
        symlink("gone", at("dangling")).unwrap();
        assert!(read(&at("dangling")).unwrap().is_none());
        symlink("/dev/zero", at("zero")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), rustix::fs::Mode::from_raw_mode(0o600))
            .unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        for name in ["zero", "fifo", "socket", "folder"] {
            let said = read(&at(name)).unwrap_err().to_string();
            assert!(said.contains("not a regular file"), "{name}: {said}");
        }
        std::fs::File::create(at("large")).unwrap().set_len(LIMIT + 1).unwrap();
        assert!(read(&at("large")).unwrap_err().to_string().contains("too large"));
        std::fs::write(at("file"), "{}").unwrap();
        symlink(at("file"), at("link")).unwrap();
        assert_eq!(read(&at("link")).unwrap().unwrap(), b"{}");
    }

    #[test]
    fn folders_behind_dangling_links_are_created_on_every_level() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        symlink("dotfiles/claude", at("first")).unwrap();
        symlink("first/deep", at("second")).unwrap();
        create_folder(&at("second/skills/list")).unwrap();
        create_folder(&at("second/skills/list")).unwrap();
        assert!(at("dotfiles/claude/deep/skills/list").is_dir());
        assert!(at("first").is_symlink() && at("second").is_symlink());
        symlink("inside/below", at("inside")).unwrap();
        symlink("itself", at("itself")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        for name in ["inside/skills", "itself/skills", "file/skills"] {
            assert!(create_folder(&at(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn target_of_dangling_and_nested_links_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        symlink("second", at("first")).unwrap();
        symlink(at("dotfiles/settings.json"), at("second")).unwrap();
        symlink("loop", at("loop")).unwrap();
        assert_eq!(target(&at("first")).unwrap(), at("dotfiles/settings.json"));
        assert_eq!(target(&at("file")).unwrap(), at("file"));
        assert!(target(&at("loop")).is_err());
    }
}
