//! Saves an agent's uncommitted files in its clone as a commit.
//!
//! ```text
//! <worktrees>/.<id>.left/          a bare repository of ours, removed afterwards
//!             objects/info/alternates  the object folders of the person and the clone
//!             worktree-index       the files of the clone
//!             staged-index         a copy of the clone's own index
//! ```
//!
//! No filter and no hook runs: that repository has no configuration, and the clone's is not read.
//! The number and size of files and the time of git are limited, because an agent may leave a file
//! of 300 GB, or a pipe.

use crate::command::{CommandError, fetching, git, output, own_config_of, run_within};
use crate::error::{FileError, Refusal, RepoError};
use crate::lfs;
use crate::untrusted_path;
use crate::user_repo::raw;
use crate::worktree::{OURS, discard};
use muleteer_model::agent::event::cut;
use muleteer_model::dispatch::work::LeftWork;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::process::Command;

/// The timeout of one git.
const PATIENCE: Duration = Duration::from_secs(120);
/// The limit of a changed file. A larger one is named and stays in the clone.
const FILE_LIMIT: u64 = 64 << 20;
/// The limits of untracked files and their bytes. Further files are named.
const FILES_LIMIT: usize = 20_000;
const BYTES_LIMIT: u64 = 512 << 20;
const INDEX_LIMIT: u64 = 256 << 20;
const EXCLUDE_LIMIT: u64 = 1 << 20;
/// At most this many files are named one by one.
const NAMED: usize = 10;

/// The work that was saved, and the files that were not.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Leftover {
    pub kept: Vec<LeftWork>,
    pub skipped: Vec<String>,
}

/// Saves the content of the clone's files and index that `head` does not have, as refs of the
/// person's repository.
///
/// # Errors
/// git cannot read the files, or cannot save them, or `given_up` completes first.
pub async fn gather(
    project: &Path,
    clone: &Path,
    head: &str,
    id: &str,
    given_up: impl Future<Output = ()>,
) -> Result<Leftover, RepoError> {
    let parent = clone.parent().ok_or(Refusal::NoParent("clone"))?;
    let bench = Bench {
        dir: parent.join(format!(".{id}.left")),
        clone: clone.to_owned(),
        project: project.to_owned(),
    };
    discard(&bench.dir)?;
    let found = tokio::select! {
        found = bench.gather(head, id) => found,
        () = given_up => Err(RepoError::GivenUp),
    };
    discard(&bench.dir)?;
    found
}

/// The repository of ours that reads the clone.
struct Bench {
    dir: PathBuf,
    clone: PathBuf,
    project: PathBuf,
}

impl Bench {
    async fn gather(&self, head: &str, id: &str) -> Result<Leftover, RepoError> {
        self.make().await?;
        let mut found = Leftover::default();
        let tree = self.files(head, &mut found.skipped).await?;
        let began = self.said(["rev-parse", "--verify", &format!("{head}^{{tree}}")]).await?;
        if tree != began {
            let count = self.changed(&began, &tree).await?.len();
            let what =
                format!("uncommitted changes in {count} file{}", if count == 1 { "" } else { "s" });
            found.kept.push(
                self.keep(
                    head,
                    &tree,
                    &format!("{}/{id}/uncommitted", crate::worktree::home::LEFT),
                    what,
                )
                .await?,
            );
        }
        if let Some(staged) = self.staged(&began, &tree).await {
            let what = "changes that were staged and then changed again".to_string();
            found.kept.push(
                self.keep(
                    head,
                    &staged,
                    &format!("{}/{id}/staged", crate::worktree::home::LEFT),
                    what,
                )
                .await?,
            );
        }
        Ok(found)
    }

    async fn make(&self) -> Result<(), RepoError> {
        let mut ask = git(&self.project);
        ask.args(["rev-parse", "--show-object-format", "--path-format=absolute"]);
        ask.args(["--git-path", "objects", "--git-path", "shallow", "--git-path", "info/exclude"]);
        let said = run_within(&mut ask, PATIENCE, "cannot find the repository's objects").await?;
        let [format, objects, shallow, exclude] = said.lines().collect::<Vec<_>>()[..] else {
            return Err(CommandError::NoObjectFolder.into());
        };
        let mut init = git(self.dir.parent().unwrap_or(&self.dir));
        init.args([
            "init",
            "--quiet",
            "--bare",
            "--template=",
            &format!("--object-format={format}"),
        ]);
        run_within(init.arg(&self.dir), PATIENCE, "cannot create a repository").await?;
        let mut lenders = format!("{objects}\n");
        let own = self.clone.join(".git/objects");
        if std::fs::symlink_metadata(&own).is_ok_and(|meta| meta.is_dir()) && lends(&own) {
            lenders.push_str(&format!("{}\n", own.display()));
        }
        self.write("objects/info/alternates", lenders.as_bytes())?;
        if let Ok(roots) = std::fs::read(shallow) {
            self.write("shallow", &roots)?;
        }
        // The person's ignore patterns, the agent's, and ours.
        let mut patterns = std::fs::read(exclude).unwrap_or_default();
        patterns.push(b'\n');
        let of_clone =
            untrusted_path::read(&self.clone, Path::new(".git/info/exclude"), EXCLUDE_LIMIT);
        patterns.extend(of_clone.ok().flatten().unwrap_or_default());
        patterns.push(b'\n');
        patterns.extend(OURS.join("\n").into_bytes());
        Ok(self.write("info/exclude", &patterns)?)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), FileError> {
        let path = self.dir.join(name);
        let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.and_then(|()| std::fs::write(&path, bytes)).map_err(FileError::at(&path))
    }

    /// Returns a git command on our repository, with the clone's files.
    fn git(&self, index: &str) -> Command {
        let mut command = git(&self.dir);
        command.args(["-c", "core.bare=false", "--git-dir"]).arg(&self.dir);
        command.arg("--work-tree").arg(&self.clone).env("GIT_INDEX_FILE", self.dir.join(index));
        command
    }

    async fn bytes(&self, command: &mut Command) -> Result<Vec<u8>, CommandError> {
        let output = output(command, PATIENCE).await?;
        match output.status.success() {
            true => Ok(output.stdout),
            false => Err(CommandError::failed("", command.as_std().get_args(), &output.stderr)),
        }
    }

    async fn said<const N: usize>(&self, args: [&str; N]) -> Result<String, CommandError> {
        let said = self.bytes(self.git("worktree-index").args(args)).await?;
        Ok(String::from_utf8_lossy(&said).trim().to_string())
    }

    /// Returns the tree of the clone's files that are not ignored. Files that are left out are
    /// named.
    async fn files(&self, head: &str, skipped: &mut Vec<String>) -> Result<String, RepoError> {
        const INDEX: &str = "worktree-index";
        self.bytes(self.git(INDEX).args(["read-tree", head])).await?;
        let mut list = self.git(INDEX);
        let tracked =
            self.bytes(list.args(["ls-tree", "-r", "-z", "-l", "--full-tree", head])).await?;
        let mut list = self.git(INDEX);
        if let Some(person) = person_excludes(&self.project).await {
            list.arg("-c").arg(format!("core.excludesFile={person}"));
        }
        let others =
            self.bytes(list.args(["ls-files", "-z", "--others", "--exclude-standard"])).await?;
        // A file that git-lfs keeps differs from its commit, which has only a pointer.
        let unchanged = lfs::unchanged(&|| self.git(INDEX), &self.clone, &tracked).await;
        let unchanged = unchanged.unwrap_or_else(|why| {
            tracing::warn!(%why, "files of git-lfs are saved as if they had changed");
            HashSet::new()
        });
        let clone = self.clone.clone();
        let choosing = move || choose(&clone, (&tracked, &unchanged), &others);
        let chosen = tokio::task::spawn_blocking(choosing).await?;
        skipped.extend(chosen.skipped);
        // Deletions come first, because a deleted file may be in the way of a new one.
        self.update(INDEX, &["--force-remove", "--stdin"], &chosen.gone).await?;
        if let Err(why) = self.update(INDEX, &raw::ADD, &chosen.paths).await {
            // A file that git cannot convert as its attributes demand is saved unconverted.
            let git = || self.git(INDEX);
            let raw = raw::find(&git, &self.clone, &chosen.paths, &self.dir.join("paths")).await?;
            if raw.odd.is_empty() {
                return Err(why);
            }
            self.update(INDEX, &raw::ADD, &raw.other).await?;
            self.update(INDEX, &["--index-info"], &raw.entries).await?;
        }
        Ok(self.said(["write-tree"]).await?)
    }

    /// Makes git add paths to the index, or remove them: all of them or none.
    async fn update(&self, index: &str, how: &[&str], paths: &[u8]) -> Result<(), RepoError> {
        if paths.is_empty() {
            return Ok(());
        }
        self.write("paths", paths)?;
        let list = self.dir.join("paths");
        let paths = File::open(&list).map_err(FileError::at(&list))?;
        let mut update = self.git(index);
        update.args(["update-index", "-z"]).args(how).stdin(paths);
        self.bytes(&mut update).await?;
        Ok(())
    }

    /// Returns the paths that differ between two trees, with the second tree's entries.
    async fn changed(&self, from: &str, to: &str) -> Result<HashMap<Vec<u8>, Vec<u8>>, RepoError> {
        let mut diff = self.git("worktree-index");
        diff.args(["diff-tree", "-r", "-z", "--raw", "--no-renames", from, to]);
        let raw = self.bytes(&mut diff).await?;
        let fields: Vec<&[u8]> = raw.split(|byte| *byte == 0).collect();
        let (pairs, _) = fields.as_chunks::<2>();
        let blob =
            |about: &[u8]| about.split(|byte| *byte == b' ').nth(3).unwrap_or_default().to_vec();
        Ok(pairs.iter().map(|[about, path]| (path.to_vec(), blob(about))).collect())
    }

    /// Returns the tree of the clone's index, if commit and files lack some of its content. An
    /// unreadable index is ignored.
    async fn staged(&self, began: &str, files: &str) -> Option<String> {
        let index = untrusted_path::read(&self.clone, Path::new(".git/index"), INDEX_LIMIT)
            .ok()
            .flatten()?;
        self.write("staged-index", &index).ok()?;
        let tree = self.bytes(self.git("staged-index").arg("write-tree")).await.ok()?;
        let tree = String::from_utf8_lossy(&tree).trim().to_string();
        if tree == began || tree == files {
            return None;
        }
        let (in_files, in_index) =
            (self.changed(began, files).await.ok()?, self.changed(began, &tree).await.ok()?);
        let only_there = in_index.iter().any(|(path, blob)| {
            blob.iter().any(|digit| *digit != b'0')
                && in_files.get(path).is_none_or(|other| other != blob)
        });
        only_there.then_some(tree)
    }

    /// Commits a tree on `head` and fetches it into the person's repository. It gets the first name
    /// that is free or has this tree already.
    async fn keep(
        &self,
        head: &str,
        tree: &str,
        name: &str,
        what: String,
    ) -> Result<LeftWork, RepoError> {
        let mut name = name.to_string();
        for number in 2_u32.. {
            let mut ask = git(&self.project);
            ask.args(["rev-parse", "--verify", "--quiet", &format!("{name}^{{tree}}")]);
            match run_within(&mut ask, PATIENCE, "").await {
                Err(_) => break,
                Ok(there) if there == tree => return Ok(LeftWork { name, what }),
                Ok(_) => {
                    name = format!(
                        "{}-{number}",
                        name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '-')
                    )
                }
            }
        }
        let mut commit = self.git("worktree-index");
        for role in ["AUTHOR", "COMMITTER"] {
            commit
                .env(format!("GIT_{role}_NAME"), "Muleteer")
                .env(format!("GIT_{role}_EMAIL"), "rescue@muleteer.invalid");
        }
        let message = format!("Muleteer: {what}");
        let commit =
            self.bytes(commit.args(["commit-tree", tree, "-p", head, "-m", &message])).await?;
        let commit = String::from_utf8_lossy(&commit).trim().to_string();
        let mut fetch = fetching(&self.project, &self.dir);
        run_within(fetch.arg(format!("{commit}:{name}")), PATIENCE, "cannot keep them").await?;
        Ok(LeftWork { name, what })
    }
}

/// Whether git can read a repository's alternates file: a pipe there would block it for ever.
fn lends(objects: &Path) -> bool {
    untrusted_path::read(objects, Path::new("info/alternates"), EXCLUDE_LIMIT).is_ok()
}

/// Returns the person's own file of global ignore patterns.
async fn person_excludes(project: &Path) -> Option<String> {
    if let Some(path) = own_config_of(project, &["--type=path", "core.excludesFile"]).await {
        return Some(path);
    }
    let config =
        std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let config =
        config.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".config")))?;
    Some(config.join("git/ignore"))
        .filter(|path| path.is_file())
        .map(|path| path.display().to_string())
}

#[derive(Debug, Default)]
struct Chosen {
    /// The paths, each with a zero byte after it.
    paths: Vec<u8>,
    /// Tracked paths that are no longer a file, in the format of `paths`.
    gone: Vec<u8>,
    skipped: Vec<String>,
}

/// Chooses the files for git: all tracked ones that may have changed and the untracked ones, except
/// those that are too large to save.
fn choose(clone: &Path, (tracked, unchanged): (&[u8], &HashSet<Vec<u8>>), others: &[u8]) -> Chosen {
    let mut chosen = Chosen::default();
    let mut unnamed = 0_usize;
    let (mut files, mut bytes) = (0_usize, 0_u64);
    let mut skip = |path: &[u8], why: &str, skipped: &mut Vec<String>| {
        if skipped.len() < NAMED {
            skipped.push(format!("{} ({why})", cut(&String::from_utf8_lossy(path), 200)));
        } else {
            unnamed += 1;
        }
    };
    let mut folders = Folders::default();
    let push = |paths: &mut Vec<u8>, path: &[u8]| paths.extend(path.iter().chain(b"\0"));
    let at = |path: &[u8]| std::fs::symlink_metadata(clone.join(OsStr::from_bytes(path)));
    let is_readable = |path: &[u8]| {
        let path = clone.join(OsStr::from_bytes(path));
        rustix::fs::access(path, rustix::fs::Access::READ_OK).is_ok()
    };
    for entry in tracked.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()) {
        let Some(tab) = entry.iter().position(|byte| *byte == b'\t') else { continue };
        let (about, path) = (&entry[..tab], &entry[tab + 1..]);
        let size = about.rsplit(|byte| *byte == b' ').next().unwrap_or_default();
        let size: Option<u64> = std::str::from_utf8(size).ok().and_then(|size| size.parse().ok());
        // A submodule is a repository of its own. git lists no other files in its place.
        if about.starts_with(b"160000") {
            let is_other = folders.look(clone, path).ok().flatten().is_some_and(|meta| {
                let place = clone.join(OsStr::from_bytes(path));
                let is_empty =
                    || std::fs::read_dir(&place).is_ok_and(|mut all| all.next().is_none());
                !(meta.is_dir() && (at_git(&place) || is_empty()))
            });
            if is_other {
                skip(path, "in the place of a submodule", &mut chosen.skipped);
            }
            continue;
        }
        if unchanged.contains(path) {
            continue;
        }
        // git gives up on all files if it finds one behind a link, a pipe, or one that it may not
        // read.
        match folders.look(clone, path) {
            Ok(Some(meta))
                if meta.is_file() && meta.len() > FILE_LIMIT && size != Some(meta.len()) =>
            {
                skip(path, "too large", &mut chosen.skipped);
            }
            Ok(Some(meta)) if meta.is_file() && !is_readable(path) => {
                skip(path, "not readable", &mut chosen.skipped);
            }
            Ok(Some(meta)) if meta.is_file() || meta.is_symlink() => push(&mut chosen.paths, path),
            Ok(_) => push(&mut chosen.gone, path),
            Err(_) => skip(path, "not readable", &mut chosen.skipped),
        }
    }
    for path in others.split(|byte| *byte == 0).filter(|path| !path.is_empty()) {
        let Ok(meta) = at(path) else { continue };
        let length = if meta.is_file() { meta.len() } else { 0 };
        if path.ends_with(b"/") {
            skip(path, "a repository of its own", &mut chosen.skipped);
        } else if length > FILE_LIMIT {
            skip(path, "too large", &mut chosen.skipped);
        } else if files >= FILES_LIMIT || bytes + length > BYTES_LIMIT {
            skip(path, "too much altogether", &mut chosen.skipped);
        } else if meta.is_file() && !is_readable(path) {
            skip(path, "not readable", &mut chosen.skipped);
        } else if meta.is_file() || meta.is_symlink() {
            files += 1;
            bytes += length;
            push(&mut chosen.paths, path);
        }
    }
    if unnamed > 0 {
        chosen.skipped.push(format!("{unnamed} more files"));
    }
    chosen
}

/// Whether a directory is the top of a repository.
fn at_git(dir: &Path) -> bool {
    std::fs::symlink_metadata(dir.join(".git")).is_ok()
}

/// A cache of a clone's directories: whether each is a directory, and no link.
#[derive(Debug, Default)]
struct Folders(HashMap<PathBuf, bool>);

impl Folders {
    /// Returns the metadata of a path; `None` if nothing is there, or only a link leads there.
    fn look(&mut self, clone: &Path, path: &[u8]) -> io::Result<Option<Metadata>> {
        let path = Path::new(OsStr::from_bytes(path));
        let above: Vec<&Path> =
            path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()).collect();
        // lstat follows links in all parts of a path but the last, so the check goes from the top
        // down.
        for folder in above.into_iter().rev() {
            let is_folder = match self.0.get(folder) {
                Some(known) => *known,
                None => {
                    let found = there(&clone.join(folder))?.is_some_and(|meta| meta.is_dir());
                    self.0.insert(folder.to_owned(), found);
                    found
                }
            };
            if !is_folder {
                return Ok(None);
            }
        }
        there(&clone.join(path))
    }
}

fn there(path: &Path) -> io::Result<Option<Metadata>> {
    match std::fs::symlink_metadata(path) {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(None)
        }
        found => found.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::run;

    async fn git_in(dir: &Path, args: &[&str]) -> String {
        let who = ["-c", "user.name=t", "-c", "user.email=t@example.org"];
        run(git(dir).args(who).args(args), "git").await.expect("git")
    }

    #[tokio::test]
    async fn unconvertible_file_is_saved_byte_for_byte() {
        const ODD: &[u8] = b"\x00odd\r\nline\nend\xff";
        for attributes in [
            "*.txt working-tree-encoding=UTF-16\n",
            "* ident text eol=crlf filter=none\nodd.txt working-tree-encoding=no-such\n",
            "* working-tree-encoding\n",
        ] {
            let dir = tempfile::tempdir().expect("a directory");
            let base = dir.path().canonicalize().expect("a path");
            let (project, clone) = (base.join("project"), base.join("clone"));
            std::fs::create_dir(&project).expect("a directory");
            git_in(&project, &["init", "--quiet"]).await;
            std::fs::write(project.join("tracked"), "tracked\n").expect("a file");
            git_in(&project, &["add", "--all"]).await;
            git_in(&project, &["commit", "--quiet", "--message=one"]).await;
            git_in(&base, &["clone", "--quiet", "project", "clone"]).await;
            let head = git_in(&project, &["rev-parse", "HEAD"]).await;
            std::fs::write(clone.join(".gitattributes"), attributes).expect("a file");
            std::fs::write(clone.join("tracked"), "changed\n").expect("a file");
            std::fs::write(clone.join("odd.txt"), ODD).expect("a file");
            for n in 0..10 {
                std::fs::write(clone.join(format!("new{n}")), format!("{n}\n")).expect("a file");
            }
            let found = gather(&project, &clone, &head, "abcd2345", std::future::pending()).await;
            let found = found.unwrap_or_else(|why| panic!("{attributes}: {why}"));
            assert_eq!(found.skipped, Vec::<String>::new(), "{attributes}");
            let [kept] = &found.kept[..] else { panic!("{attributes}: {found:?}") };
            assert_eq!(kept.what, "uncommitted changes in 13 files", "{attributes}");
            let blob = ["cat-file", "blob", &format!("{}:odd.txt", kept.name)];
            let odd = output(git(&project).args(blob), PATIENCE).await.expect("git").stdout;
            assert_eq!(odd, ODD, "{attributes}");
            let names = git_in(&project, &["ls-tree", "--name-only", &kept.name]).await;
            assert_eq!(names.lines().count(), 13, "{attributes}: {names}");
        }
    }
}
