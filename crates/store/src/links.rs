//! Symbolic links of a repository, through which nothing is written.
//!
//! A link comes with a clone, so its author chooses what a write through it changes: a person's
//! shell profile, a hook of git. A link that stays in the project harms nothing that a commit could
//! not change as well, so people may keep `.claude` or `.agents` behind one.

use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

/// Git's own folder: what lies in it is no content of a commit.
const GIT: &str = ".git";

/// A symbolic link through which nothing is written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} is a symbolic link to {}, and Muleteer does not write through it: replace the link by a \
     directory or file of its own", .link.display(), .to.display()
)]
pub struct LinkedAway {
    link: PathBuf,
    to: PathBuf,
}

impl From<LinkedAway> for io::Error {
    fn from(link: LinkedAway) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, link)
    }
}

/// Checks that no link on the way from `top` to `path`, which is below it, leads out of `top` or
/// into git's folder. Neither `path` nor the target of a link need exist.
///
/// # Errors
/// The first such link, as [`LinkedAway`].
pub fn stay_within(top: &Path, path: &Path) -> io::Result<()> {
    let Ok(below) = path.strip_prefix(top) else { return Ok(()) };
    let real_top = real(top);
    let mut at = top.to_path_buf();
    for part in below.components() {
        at.push(part);
        let Ok(to) = std::fs::read_link(&at) else { continue };
        let real = real(&at);
        let inside = real.strip_prefix(&real_top);
        let is_git = |part: Component<'_>| part.as_os_str().eq_ignore_ascii_case(GIT);
        if inside.is_ok_and(|inside| !inside.components().any(is_git)) {
            continue;
        }
        return Err(LinkedAway { link: at, to }.into());
    }
    Ok(())
}

/// Checks that a file is no link. For files that nobody keeps behind one: git itself reads no
/// linked `.gitignore`.
///
/// # Errors
/// The link, as [`LinkedAway`].
pub fn refuse_link(path: &Path) -> io::Result<()> {
    match std::fs::read_link(path) {
        Ok(to) => Err(LinkedAway { link: path.into(), to }.into()),
        Err(_) => Ok(()),
    }
}

/// Opens a file of a repository for writing, unless it is a link or no regular file. A pipe in its
/// place must not block.
///
/// # Errors
/// The link, as [`LinkedAway`]; those of opening a file.
pub fn open_to_write(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = options.custom_flags(flags.bits().cast_signed()).open(path);
    let file = opened.map_err(|error| refuse_link(path).err().unwrap_or(error))?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// Opens a regular file for reading, through links too. Agents work in the folders of a repository,
/// and a pipe or a device in the place of a file must not block.
///
/// # Errors
/// Those of opening a file; it is no regular file.
pub fn open_to_read(path: &Path) -> io::Result<File> {
    let waits_for_nobody = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(waits_for_nobody).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// Resolves the links of a path, as far as it exists; the rest stays as it is.
fn real(path: &Path) -> PathBuf {
    const LINKS: u32 = 40;
    let (mut at, mut left) = (PathBuf::from("/"), LINKS);
    let mut parts: Vec<PathBuf> = reversed(path);
    while let Some(part) = parts.pop() {
        match part.components().next() {
            Some(Component::ParentDir) => drop(at.pop()),
            Some(Component::Normal(name)) => {
                let next = at.join(name);
                match std::fs::read_link(&next) {
                    Ok(to) if left > 0 => {
                        left -= 1;
                        if to.is_absolute() {
                            at = PathBuf::from("/");
                        }
                        parts.extend(reversed(&to));
                    }
                    _ => at = next,
                }
            }
            _ => {}
        }
    }
    at
}

fn reversed(path: &Path) -> Vec<PathBuf> {
    let parts = path.components().rev();
    parts.map(|part| PathBuf::from(part.as_os_str())).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn link_out_of_the_project_is_refused_at_every_level() {
        let dir = tempfile::tempdir().unwrap();
        let (top, out) = (dir.path().join("p"), dir.path().join("out"));
        for folder in [&top.join("inner/deep"), &top.join(".git/hooks"), &out] {
            std::fs::create_dir_all(folder).unwrap();
        }
        for (at, (to, fine)) in [
            ("../out", false),
            (out.to_str().unwrap(), false),
            ("../out/not-there-yet/deep", false),
            ("/etc", false),
            (".git/hooks", false),
            ("inner/../.git", false),
            ("inner/../../out", false),
            ("inner", true),
            ("inner/not-there-yet", true),
            ("./inner/../inner", true),
        ]
        .into_iter()
        .enumerate()
        {
            let link = top.join(format!("l{at}"));
            symlink(to, &link).unwrap();
            // Directly, below it, and behind another link.
            let second = top.join(format!("m{at}"));
            symlink(format!("l{at}"), &second).unwrap();
            for path in [link.clone(), link.join("a/b"), second.join("c")] {
                let checked = stay_within(&top, &path);
                assert_eq!(checked.is_ok(), fine, "{to}: {}", path.display());
                let said = checked.err().map(|error| error.to_string()).unwrap_or_default();
                assert!(fine || said.contains("is a symbolic link to"), "{said}");
            }
        }
        symlink("loop", top.join("loop")).unwrap();
        assert!(stay_within(&top, &top.join("inner/file")).is_ok());
        assert!(stay_within(&top, &top.join("not-there/file")).is_ok());
    }

    #[test]
    fn linked_file_and_pipe_are_not_opened_to_write() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("victim"), "theirs").unwrap();
        symlink("victim", at("link")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), mode).unwrap();
        let open = |name: &str| {
            open_to_write(&at(name), OpenOptions::new().create(true).append(true).read(true))
        };
        for name in ["link", "dangling"] {
            let said = open(name).unwrap_err().to_string();
            assert!(said.contains("is a symbolic link to"), "{said}");
        }
        assert!(open("pipe").is_err() && open("new").is_ok() && open("victim").is_ok());
        assert_eq!(std::fs::read_to_string(at("victim")).unwrap(), "theirs");
        assert!(!at("nowhere").exists());
    }
}
