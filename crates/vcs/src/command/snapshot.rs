//! Copies of a person's global git configuration, with all files that it includes. git obeys a copy
//! where the configuration can name programs: what an agent writes into `~/.gitconfig` later has no
//! effect.

use crate::command::program;
use crate::error::FileError;
use crate::untrusted_path;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{PoisonError, RwLock};

/// The variable by which git finds a copy.
pub(crate) const GLOBAL: &str = "GIT_CONFIG_GLOBAL";
/// The name of the copy itself. It exists once the copies of all included files do.
const WHOLE: &str = "config";
/// A file that never exists, in place of an included one that does not.
const ABSENT: &str = "absent";
/// The limits of the files that a configuration includes. git has the same limit of depth.
const LONGEST: u64 = 1 << 20;
const MOST: usize = 256;
const DEEPEST: usize = 10;

/// The newest copy of this process, for repositories in which a person's filters run.
static COPIED: RwLock<Option<PathBuf>> = RwLock::new(None);

/// Why a configuration was not copied.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} includes more than {MOST} files or {DEEPEST} levels of them", .0.display())]
    TooMany(PathBuf),
    #[error("git cannot read {}: {said}", path.display())]
    Unreadable { path: PathBuf, said: String },
}

type Outcome<T> = Result<T, SnapshotError>;

/// Copies the global configuration that git reads with an environment to the file `whole`, for
/// `GIT_CONFIG_GLOBAL`. Its folder has nothing else than the copies. A copy that is there stays.
/// Blocks.
///
/// # Errors
/// A file cannot be read or written, or git cannot parse it.
pub fn copy_global_configuration(
    whole: &Path,
    environment: &dyn Fn(&str) -> Option<OsString>,
) -> Result<(), SnapshotError> {
    if whole.is_file() {
        return Ok(());
    }
    let into = whole.parent().unwrap_or(whole);
    // A crash may have left a part.
    match std::fs::remove_dir_all(into) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(FileError::at(into)(error).into());
        }
        _ => {}
    }
    let mut private = std::fs::DirBuilder::new();
    private.recursive(true).mode(0o700).create(into).map_err(FileError::at(into))?;
    let home = environment("HOME");
    let mut copies = Copies { into, home, made: 0 };
    let mut text = vec![];
    for source in sources(environment) {
        if let Some(copy) = copies.copy(&source, 0)? {
            text.extend(std::fs::read(&copy).map_err(FileError::at(&copy))?);
            text.push(b'\n');
        }
    }
    muleteer_store::atomic::write_atomic(whole, &text, 0o600).map_err(FileError::from)?;
    Ok(())
}

/// Copies the configuration of this process's environment into a new folder below `folder`, for
/// later git commands in a person's working directory. Copies before the last one are removed.
/// Blocks.
///
/// # Errors
/// Those of [`copy_global_configuration`]. The last copy stays in use.
pub fn renew_configuration(folder: &Path) -> Result<(), SnapshotError> {
    let mut copied = COPIED.write().unwrap_or_else(PoisonError::into_inner);
    let name = |number: u64| folder.join(number.to_string());
    let last = copied.as_deref().and_then(Path::parent).and_then(Path::file_name);
    let last: Option<u64> = last.and_then(OsStr::to_str).and_then(|name| name.parse().ok());
    let next = last.map_or(0, |last| last + 1);
    // A command that began before still reads the last one.
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if last.is_none_or(|last| entry.path() != name(last)) {
            std::fs::remove_dir_all(entry.path()).map_err(FileError::at(&entry.path()))?;
        }
    }
    let whole = name(next).join(WHOLE);
    copy_global_configuration(&whole, &|name| std::env::var_os(name))?;
    *copied = Some(whole);
    Ok(())
}

/// Returns the variable that makes git obey the newest copy of [`renew_configuration`]; `None` if
/// there is none.
pub(crate) fn copied_configuration() -> Option<(&'static str, PathBuf)> {
    let copied = COPIED.read().unwrap_or_else(PoisonError::into_inner).clone();
    copied.map(|path| (GLOBAL, path))
}

/// Returns the files of the global configuration, in git's order.
fn sources(environment: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let folder =
        |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(named) = environment(GLOBAL) {
        return vec![named.into()];
    }
    let home = folder("HOME");
    let config = folder("XDG_CONFIG_HOME").or_else(|| Some(home.as_ref()?.join(".config")));
    let files = [config.map(|dir| dir.join("git/config")), home.map(|dir| dir.join(".gitconfig"))];
    files.into_iter().flatten().collect()
}

struct Copies<'a> {
    into: &'a Path,
    home: Option<OsString>,
    made: usize,
}

impl Copies<'_> {
    /// Copies a file and those that it includes. `None` if it does not exist.
    fn copy(&mut self, source: &Path, depth: usize) -> Outcome<Option<PathBuf>> {
        let read = source.canonicalize().and_then(|real| {
            // The variable may name the null device, which has no content.
            let is_device = real.metadata()?.file_type();
            if std::os::unix::fs::FileTypeExt::is_char_device(&is_device) {
                return Ok(vec![]);
            }
            untrusted_path::read_file(&real, LONGEST)
        });
        let text = match read {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(FileError::at(source)(error).into()),
        };
        if self.made >= MOST || depth > DEEPEST {
            return Err(SnapshotError::TooMany(source.into()));
        }
        let copy = self.into.join(format!("{}-included", self.made));
        self.made += 1;
        muleteer_store::atomic::write_whole(&copy, &text, 0o600).map_err(FileError::from)?;
        if text.to_ascii_lowercase().windows(7).any(|part| part == b"include") {
            self.include(source, &copy, depth)?;
        }
        Ok(Some(copy))
    }

    /// Makes a copy include copies.
    fn include(&mut self, source: &Path, copy: &Path, depth: usize) -> Outcome<()> {
        let named = self.included(copy, false)?;
        let expanded = self.included(copy, true)?;
        let mut known = BTreeSet::new();
        for ((key, named), (_, expanded)) in named.into_iter().zip(expanded) {
            if !known.insert((key.clone(), named.clone())) {
                continue;
            }
            let target = source.parent().unwrap_or(source).join(Path::new(&expanded));
            let to = self.copy(&target, depth + 1)?.unwrap_or_else(|| self.into.join(ABSENT));
            let mut set = self.git(copy);
            set.args(["--fixed-value", "--replace-all"]).arg(&key).arg(&to).arg(&named);
            run(set, source)?;
            // The condition is relative to the file's folder. The setting of the copied section is
            // harmless: no repository is in the copy's folder.
            if let Some(condition) = absolute_condition(&key, source) {
                let mut add = self.git(copy);
                add.arg("--add").arg(condition).arg(&to);
                run(add, source)?;
            }
        }
        Ok(())
    }

    /// Returns the keys that include files, with their values. `expanded` replaces a `~`.
    fn included(&self, copy: &Path, expanded: bool) -> Outcome<Vec<(OsString, OsString)>> {
        let mut ask = self.git(copy);
        ask.args(expanded.then_some("--type=path"));
        ask.args(["-z", "--get-regexp", r"^include(if\..*)?\.path$"]);
        let output = ask.output().map_err(FileError::at(copy))?;
        // git found no such key.
        if output.status.code() == Some(1) {
            return Ok(vec![]);
        }
        let listed = if output.status.success() {
            output.stdout
        } else {
            return Err(unreadable(copy, &output.stderr));
        };
        let entries = listed.split(|byte| *byte == 0).filter(|entry| !entry.is_empty());
        let pair = |entry: &[u8]| {
            let mut parts = entry.splitn(2, |byte| *byte == b'\n').map(OsStr::from_bytes);
            let key = parts.next().unwrap_or_default().to_owned();
            (key, parts.next().unwrap_or_default().to_owned())
        };
        Ok(entries.map(pair).collect())
    }

    /// Returns a git that works on one configuration file.
    fn git(&self, file: &Path) -> Command {
        let mut command = program::git();
        command.current_dir(self.into).env_clear();
        command.envs(self.home.iter().map(|home| ("HOME", home)));
        // Whatever it does, git reads the global configuration first.
        command.env(GLOBAL, "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        command.env("LC_ALL", "C").arg("config").arg("--file").arg(file);
        command
    }
}

fn run(mut command: Command, source: &Path) -> Outcome<()> {
    let output = command.output().map_err(FileError::at(source))?;
    if output.status.success() { Ok(()) } else { Err(unreadable(source, &output.stderr)) }
}

fn unreadable(path: &Path, stderr: &[u8]) -> SnapshotError {
    SnapshotError::Unreadable { path: path.into(), said: super::complaint(stderr) }
}

/// Returns the key with its condition made absolute, if that begins with `./`.
fn absolute_condition(key: &OsStr, source: &Path) -> Option<OsString> {
    let folder = source.canonicalize().ok()?.parent()?.to_str()?.to_owned();
    let (start, rest) = key.to_str()?.split_once(":./")?;
    ["includeif.gitdir", "includeif.gitdir/i"].contains(&start).then_some(())?;
    let mut absolute = String::from(start);
    write!(absolute, ":{folder}/{rest}").ok()?;
    Some(absolute.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    struct Stage {
        _dir: tempfile::TempDir,
        root: PathBuf,
    }

    impl Stage {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().canonicalize().unwrap();
            Self { _dir: dir, root }
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn copy(&self) -> Outcome<PathBuf> {
            let whole = self.root.join("copy/config");
            let home = |name: &str| (name == "HOME").then(|| self.root.join("home").into());
            copy_global_configuration(&whole, &home).map(|()| whole)
        }

        /// Returns git's answer in a repository with the copy, or with the person's own files.
        fn ask(&self, repo: &str, copy: Option<&Path>, key: &str) -> String {
            let mut git = program::git();
            git.current_dir(self.root.join(repo)).env_clear().env("HOME", self.root.join("home"));
            git.env("GIT_CONFIG_NOSYSTEM", "1").envs(copy.map(|copy| (GLOBAL, copy)));
            let output = git.args(["config", "--get-all", key]).output().unwrap();
            String::from_utf8_lossy(&output.stdout).trim().replace('\n', ",")
        }

        fn repo(&self, name: &str) {
            let mut git = program::git();
            let made = git.args(["init", "--quiet"]).arg(self.root.join(name)).status();
            assert!(made.unwrap().success());
        }
    }

    #[test]
    fn copy_says_what_the_files_said_with_all_that_they_include() {
        let stage = Stage::new();
        stage.write("home/.config/git/config", "[user]\n name = first\n[only]\n here = yes");
        let files = "[user]\n name = second\n[include]\n path = more\n path = none\n\
            [includeIf \"gitdir:~/work/\"]\n path = ~/at-work\n\
            [includeIf \"gitdir:./beside/\"]\n path = \"with space\"\n\
            [user]\n name = last\n";
        stage.write("home/.gitconfig", files);
        stage.write("home/more", "[user]\n name = more\n[include]\n path = sub/deep\n");
        stage.write("home/sub/deep", "[deep]\n key = 1\n[include]\n path = deeper\n");
        stage.write("home/sub/deeper", "[deep]\n key = 2\n");
        stage.write("home/at-work", "[user]\n email = work@example.org\n");
        stage.write("home/with space", "[user]\n email = beside@example.org\n");
        let repos = ["home/work/repo", "home/beside/repo", "home/other"];
        repos.iter().for_each(|repo| stage.repo(repo));
        let copy = stage.copy().unwrap();
        for repo in repos {
            for key in ["user.name", "user.email", "only.here", "deep.key"] {
                let own = stage.ask(repo, None, key);
                assert_eq!(stage.ask(repo, Some(&copy), key), own, "{key} in {repo}");
            }
        }
        assert_eq!(stage.ask(repos[0], Some(&copy), "user.email"), "work@example.org");
        assert_eq!(stage.ask(repos[1], Some(&copy), "user.email"), "beside@example.org");
        assert_eq!(stage.ask(repos[2], Some(&copy), "deep.key"), "1,2");
    }

    #[test]
    fn later_changes_do_not_reach_the_copy() {
        let stage = Stage::new();
        stage.write("home/.gitconfig", "[include]\n path = more\n path = later\n");
        stage.write("home/more", "[a]\n b = before\n");
        let copy = stage.copy().unwrap();
        let evil = "[a]\n b = evil\n[url \"ext::sh\"]\n insteadOf = https://\n";
        for name in ["home/.gitconfig", "home/more", "home/later", "home/.config/git/config"] {
            stage.write(name, evil);
        }
        stage.copy().unwrap();
        assert_eq!(stage.ask("home", Some(&copy), "a.b"), "before");
        assert_eq!(stage.ask("home", Some(&copy), "url.ext::sh.insteadof"), "");
        let mode = std::os::unix::fs::MetadataExt::mode(&copy.metadata().unwrap());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn person_without_a_configuration_has_an_empty_copy() {
        let stage = Stage::new();
        std::fs::create_dir(stage.root.join("home")).unwrap();
        let copy = stage.copy().unwrap();
        assert_eq!(std::fs::read(copy).unwrap(), b"");
    }

    #[test]
    fn files_that_include_each_other_are_an_error() {
        let stage = Stage::new();
        stage.write("home/.gitconfig", "[include]\n path = .gitconfig\n");
        let many = stage.copy().unwrap_err();
        assert!(matches!(many, SnapshotError::TooMany(_)), "{many}");
        stage.write("home/.gitconfig", "[include\n path = .gitconfig\n");
        let unreadable = stage.copy().unwrap_err();
        assert!(matches!(unreadable, SnapshotError::Unreadable { .. }), "{unreadable}");
    }
}
