//! A program that is found once. Later it runs as the file that it was then, or not at all.
//!
//! An agent may be able to write a folder of PATH, or the program itself. So PATH is not searched
//! again, and a file that somebody without administrator's rights could replace is held open, is
//! compared before each run, and runs from its descriptor. Only the administrator can replace other
//! files, by an upgrade; these run by their path, because the upgraded program belongs to the
//! upgraded files around it. A system that runs no program by its descriptor (macOS) runs all of
//! them by their path: a person's upgrade would else end every later command.

use crate::command::helper;
use crate::spawn::find_program;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Whether a system runs programs by the path of a descriptor.
const BY_DESCRIPTOR: bool = cfg!(target_os = "linux");
/// The folder of this process's descriptors.
const DESCRIPTORS: &str = "/proc/self/fd";

/// A program that was found on PATH.
#[derive(Debug)]
pub struct Program {
    name: OsString,
    path: PathBuf,
    /// `None` if only the administrator can replace it, or if it could not be run from there.
    held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    file: File,
    /// Its interpreter opens it again, by the path it was started with.
    is_script: bool,
    /// Keyed with a secret of this process, so that nobody can write another file with it.
    hash: u64,
    key: RandomState,
    /// The version of the file that had this hash last.
    seen: Mutex<Seen>,
}

/// Distinguishes versions of a file. The kernel sets the time of the last change, also when
/// the file gets or loses a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    file: (u64, u64),
    size: u64,
    changed: (i64, i64),
}

impl Seen {
    fn of(meta: &Metadata) -> Self {
        Self {
            file: (meta.dev(), meta.ino()),
            size: meta.size(),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

impl Program {
    /// Finds a program on a PATH (`None`: the system's default). Relative folders of PATH are taken
    /// from the root.
    ///
    /// # Errors
    /// Those of exec, if it is not there; those of opening it.
    pub fn find(name: &str, path: Option<&OsStr>) -> io::Result<Self> {
        let path = find_program(name, path.and_then(OsStr::to_str), Path::new("/"))?;
        let by_path = !BY_DESCRIPTOR || only_root_replaces(&path);
        let held = if by_path { None } else { Some(Held::open(&path)?) };
        Ok(Self { name: name.into(), path, held })
    }

    /// Where it was found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a command that runs it with its name as the first word.
    ///
    /// # Errors
    /// The file is not what it was when it was found.
    pub fn command(&self) -> io::Result<Command> {
        let mut command = match &self.held {
            None => helper(&self.path),
            Some(held) => held.command(&self.path)?,
        };
        command.arg0(&self.name);
        Ok(command)
    }
}

impl Held {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let key = RandomState::new();
        let (seen, mut head) = (Seen::of(&file.metadata()?), [0; 2]);
        let is_script = file.read_at(&mut head, 0)? == head.len() && head == *b"#!";
        let hash = hash(&file, &key)?;
        Ok(Self { file, is_script, hash, key, seen: Mutex::new(seen) })
    }

    fn command(&self, path: &Path) -> io::Result<Command> {
        if self.is_script {
            self.check(&File::open(path)?, path)?;
            return Ok(helper(path));
        }
        self.check(&self.file, path)?;
        Ok(helper(format!("{DESCRIPTORS}/{}", self.file.as_raw_fd())))
    }

    /// Checks that a file has the content that was found. An upgrade takes its name away, and
    /// leaves the content of the open file.
    fn check(&self, file: &File, path: &Path) -> io::Result<()> {
        let now = Seen::of(&file.metadata()?);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if now == *seen {
            return Ok(());
        }
        if now.size != seen.size || hash(file, &self.key)? != self.hash {
            let what = format!("{} changed since it was found", path.display());
            return Err(io::Error::other(what));
        }
        *seen = now;
        Ok(())
    }
}

fn hash(file: &File, key: &RandomState) -> io::Result<u64> {
    let (mut hasher, mut part, mut at) = (key.build_hasher(), vec![0; 1 << 16], 0);
    loop {
        let length = file.read_at(&mut part, at)?;
        if length == 0 {
            return Ok(hasher.finish());
        }
        hasher.write(&part[..length]);
        at += length as u64;
    }
}

/// Whether a command's program is a descriptor of this process.
pub fn is_descriptor(program: &OsStr) -> bool {
    Path::new(program).starts_with(DESCRIPTORS)
}

/// Whether only the administrator can replace the file at a path: it and all folders above belong
/// to root, nobody else may write them, and they are outside of HOME. The last matters for root.
pub fn only_root_replaces(path: &Path) -> bool {
    let Ok(real) = path.canonicalize() else { return false };
    let home = std::env::var_os("HOME").and_then(|home| PathBuf::from(home).canonicalize().ok());
    let home = home.filter(|home| home.parent().is_some());
    let is_roots = |path: &Path| {
        let of_root =
            |meta: Metadata| meta.uid() == 0 && (meta.is_symlink() || meta.mode() & 0o022 == 0);
        path.symlink_metadata().is_ok_and(of_root)
    };
    let is_safe = |path: &Path| {
        let in_home = home.as_ref().is_some_and(|home| path.starts_with(home));
        !in_home && path.ancestors().all(&is_roots)
    };
    path.is_absolute() && is_safe(path) && is_safe(&real)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Copies a program by a separate process: a file that this process has open for writing cannot
    /// be run.
    fn put(from: &str, to: &Path) {
        let new = to.with_extension("new");
        assert!(helper("install").arg("-m755").arg(from).arg(&new).status().unwrap().success());
        std::fs::rename(new, to).unwrap();
    }

    fn said(program: &Program, args: &[&str]) -> String {
        let output = program.command().unwrap().args(args).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[test]
    fn program_in_a_folder_of_the_user_runs_as_it_was_found() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let path = dir.join("program");
        put("/bin/echo", &path);
        let found = Program::find("program", Some(dir.as_os_str())).unwrap();
        assert_eq!(found.path(), path);
        assert_eq!(said(&found, &["one"]), "one\n");
        put("/bin/cat", &path);
        if !BY_DESCRIPTOR {
            assert_eq!(said(&found, &["two"]), "", "an upgrade");
            return;
        }
        assert_eq!(said(&found, &["two"]), "two\n", "the file that was found");
        // A later version of the very file is refused.
        let found = Program::find("program", Some(dir.as_os_str())).unwrap();
        std::fs::File::options().append(true).open(&path).unwrap().set_len(1).unwrap();
        let refused = found.command().unwrap_err().to_string();
        assert!(refused.ends_with("changed since it was found"), "{refused}");
    }

    #[test]
    fn script_in_a_folder_of_the_user_is_refused_once_it_was_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("script");
        let write = |text: &str| {
            let mut shell = helper("sh");
            shell.args([
                "-c",
                "printf '#!/bin/sh\\n%s' \"$2\" > \"$1.new\" && chmod 755 \"$1.new\"",
                "sh",
            ]);
            assert!(shell.arg(&path).arg(text).status().unwrap().success());
            std::fs::rename(dir.path().join("script.new"), &path).unwrap();
        };
        write("echo \"${0##*/} $1\"");
        let found = Program::find("script", Some(dir.path().as_os_str())).unwrap();
        assert_eq!(said(&found, &["one"]), "script one\n");
        write("echo other");
        assert_eq!(found.command().is_err(), BY_DESCRIPTOR);
    }

    #[test]
    fn only_files_of_the_system_are_roots_alone() {
        let system = Path::new("/bin/sh").canonicalize().unwrap();
        let owner = system.metadata().unwrap().uid();
        assert_eq!(only_root_replaces(&system), owner == 0, "{}", system.display());
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let link = dir.path().join("sh");
        std::os::unix::fs::symlink(&system, &link).unwrap();
        assert!(!only_root_replaces(&link), "the link can be replaced");
        assert!(!only_root_replaces(&dir.path().join("none")));
    }
}
