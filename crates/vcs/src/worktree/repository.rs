//! Finds the repository that a directory is in, which every dispatch needs. Only git knows, and
//! takes milliseconds. Its answer is cached until a file that it read has changed.

use crate::command::{git, run};
use crate::worktree::branch;
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::fs::Metadata;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The limit of cached answers. Dispatches rarely alternate between more directories.
const KEPT: usize = 256;
/// The coarsest granularity of a file system's time stamps.
const TICK: Duration = Duration::from_millis(50);
/// A longer configuration is not searched, and its answer is not cached.
const LONGEST_CONFIG: u64 = 64 << 10;

/// The facts about a directory's repository that a dispatch needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repository {
    /// The top of its worktree.
    pub top: PathBuf,
    /// Its `.git` directory, which all its worktrees share.
    pub git_dir: PathBuf,
    /// The branch that is checked out, even if it has no commit yet.
    pub branch: Option<String>,
}

/// git's answers about directories.
#[derive(Debug, Default)]
pub struct Repositories(Mutex<HashMap<PathBuf, Kept>>);

#[derive(Debug, Clone)]
struct Kept {
    places: Places,
    marks: Vec<Mark>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Places {
    top: PathBuf,
    common: PathBuf,
    own: PathBuf,
}

/// Shows whether a path still leads to the file that git saw.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mark {
    path: PathBuf,
    seen: Option<Seen>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    device: u64,
    inode: u64,
    mode: u32,
    owner: u32,
    /// `None` for a directory, whose time stamps change with every entry in it.
    content: Option<Content>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Content {
    size: u64,
    modified: Stamp,
    changed: Stamp,
}

/// Seconds and nanoseconds of the real-time clock.
type Stamp = (i64, i64);

impl Repositories {
    /// Returns the repository with a worktree that `dir` is in. git does not run if there is no
    /// `.git` on the way up, or if its cached answer is still valid.
    pub async fn of(&self, dir: &Path) -> Option<Repository> {
        // The path is resolved as git does: a link to a directory of a repository is in that
        // repository.
        let real = dir.canonicalize().ok()?;
        let link = real
            .ancestors()
            .map(|above| above.join(".git"))
            .find(|link| Mark::of(link).seen.is_some())?;
        let places = match self.kept(&real, &link) {
            Some(places) => places,
            None => self.ask(dir, real, &link).await?,
        };
        let branch = checked_out(dir, &places.own).await;
        Some(Repository { top: places.top, git_dir: places.common, branch })
    }

    fn kept(&self, real: &Path, link: &Path) -> Option<Places> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(real).cloned()?;
        let holds = known.marks.first().is_some_and(|first| first.path == link)
            && known.marks.iter().all(|mark| *mark == Mark::of(&mark.path));
        holds.then_some(known.places)
    }

    async fn ask(&self, dir: &Path, real: PathBuf, link: &Path) -> Option<Places> {
        let asked_at = SystemTime::now();
        let places = Places::ask(dir).await;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.remove(&real);
        let places = places?;
        let read = [
            link.to_owned(),
            places.top.clone(),
            places.own.join("commondir"),
            places.own.join("config.worktree"),
            places.common.join("config"),
        ];
        let marks: Vec<Mark> = read.into_iter().map(|path| Mark::of(&path)).collect();
        let settled = marks.iter().all(|mark| mark.is_older_than(asked_at));
        if settled && !marks[3..].iter().any(|config| leads_elsewhere(&config.path)) {
            if known.len() >= KEPT {
                known.clear();
            }
            known.insert(real, Kept { places: places.clone(), marks });
        }
        Some(places)
    }
}

impl Places {
    const WORDS: [&str; 3] = ["--show-toplevel", "--git-common-dir", "--git-dir"];

    async fn ask(dir: &Path) -> Option<Self> {
        let ask = async |words: &[&str]| {
            run(git(dir).args(["rev-parse", "--path-format=absolute"]).args(words), "").await.ok()
        };
        let said = ask(&Self::WORDS).await?;
        if let [top, common, own] = said.lines().collect::<Vec<_>>()[..] {
            return Some(Self { top: top.into(), common: common.into(), own: own.into() });
        }
        // A path has a line break.
        let [top, common, own] = Self::WORDS.map(|word| [word]);
        let places = (ask(&top).await?, ask(&common).await?, ask(&own).await?);
        Some(Self { top: places.0.into(), common: places.1.into(), own: places.2.into() })
    }
}

impl Mark {
    fn of(path: &Path) -> Self {
        let seen = std::fs::symlink_metadata(path).ok();
        Self { path: path.to_owned(), seen: seen.as_ref().map(Seen::of) }
    }

    /// Whether the file changed before git ran. A later version may or may not be the one that git
    /// read.
    fn is_older_than(&self, asked_at: SystemTime) -> bool {
        let Some(Content { changed, .. }) = self.seen.as_ref().and_then(|seen| seen.content) else {
            return true;
        };
        let before = asked_at.checked_sub(TICK).and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        before.is_some_and(|before| {
            changed < (before.as_secs().cast_signed(), before.subsec_nanos().into())
        })
    }
}

impl Seen {
    fn of(stat: &Metadata) -> Self {
        let (modified, changed) =
            ((stat.mtime(), stat.mtime_nsec()), (stat.ctime(), stat.ctime_nsec()));
        Self {
            device: stat.dev(),
            inode: stat.ino(),
            mode: stat.mode(),
            owner: stat.uid(),
            content: (!stat.is_dir()).then_some(Content { size: stat.size(), modified, changed }),
        }
    }
}

/// Whether a configuration may include files that no mark watches.
fn leads_elsewhere(config: &Path) -> bool {
    let mut text = String::new();
    match std::fs::File::open(config)
        .map(|file| file.take(LONGEST_CONFIG + 1).read_to_string(&mut text))
    {
        Ok(Ok(length)) => {
            length as u64 > LONGEST_CONFIG || text.to_ascii_lowercase().contains("[include")
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        _ => true,
    }
}

/// Returns the branch by the HEAD file, or by git if the file does not have it (reftable).
async fn checked_out(dir: &Path, git_dir: &Path) -> Option<String> {
    const LONGEST: u64 = 4096;
    // A pipe of an agent's must not block, and has no answer.
    let mut file = std::fs::OpenOptions::new();
    let file = file
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(git_dir.join("HEAD"));
    let mut head = String::new();
    file.ok()?.take(LONGEST).read_to_string(&mut head).ok()?;
    match head.trim_end().strip_prefix("ref: refs/heads/") {
        Some(".invalid") => branch(dir).await,
        name => name.map(String::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn git_in(dir: &Path, args: &[&str]) {
        let who = ["-c", "user.name=t", "-c", "user.email=t@example.org"];
        run(git(dir).args(who).args(args), "git").await.expect("git");
    }

    /// Asks both a fresh cache and one that may have an answer, and compares them.
    async fn of(asked: &Repositories, dir: &Path) -> Option<Repository> {
        let anew = Repositories::default().of(dir).await;
        assert_eq!(asked.of(dir).await, anew);
        assert_eq!(asked.of(dir).await, anew);
        anew
    }

    #[tokio::test]
    async fn repository_is_found_from_below_with_a_branch_without_a_commit() {
        let asked = Repositories::default();
        let dir = tempfile::tempdir().expect("a directory");
        let base = dir.path().canonicalize().expect("a path");
        let (top, below, linked) = (base.join("r"), base.join("r/a/b"), base.join("linked"));
        std::fs::create_dir_all(&below).expect("directories");
        assert_eq!(of(&asked, &below).await, None);

        git_in(&top, &["init", "-q", "-b", "feature/x"]).await;
        let found = Repository {
            top: top.clone(),
            git_dir: top.join(".git"),
            branch: Some("feature/x".into()),
        };
        assert_eq!(of(&asked, &below).await, Some(found.clone()));

        let link = base.join("link");
        std::os::unix::fs::symlink(&below, &link).expect("a link");
        assert_eq!(of(&asked, &link).await, Some(found.clone()));

        git_in(&top, &["commit", "-q", "--allow-empty", "-m", "one"]).await;
        git_in(&top, &["worktree", "add", "-q", "-b", "other", "../linked"]).await;
        let other =
            Repository { top: linked.clone(), branch: Some("other".into()), ..found.clone() };
        assert_eq!(of(&asked, &linked).await, Some(other));

        git_in(&top, &["checkout", "-q", "--detach"]).await;
        assert_eq!(of(&asked, &top).await, Some(Repository { branch: None, ..found }));
    }

    #[tokio::test]
    async fn repository_path_with_a_line_break_is_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let top = dir.path().canonicalize().expect("a path").join("two\nlines");
        std::fs::create_dir(&top).expect("a directory");
        git_in(&top, &["init", "-q", "-b", "main"]).await;
        let found =
            Repository { top: top.clone(), git_dir: top.join(".git"), branch: Some("main".into()) };
        assert_eq!(of(&Repositories::default(), &top).await, Some(found));
    }

    /// Asks until the answer is cached: right after a change it is not.
    async fn settle(asked: &Repositories, dir: &Path) -> Places {
        let link = dir.join(".git");
        for _ in 0..1000 {
            drop(asked.of(dir).await.expect("a repository"));
            if let Some(places) = asked.kept(dir, &link) {
                return places;
            }
        }
        panic!("the answer is never kept");
    }

    #[tokio::test]
    async fn cached_answer_is_kept_until_its_files_change() {
        let asked = Repositories::default();
        let dir = tempfile::tempdir().expect("a directory");
        let top = dir.path().canonicalize().expect("a path");
        git_in(&top, &["init", "-q", "-b", "main"]).await;
        let kept = settle(&asked, &top).await;
        assert_eq!((&kept.top, &kept.own), (&top, &top.join(".git")));

        // The branch is not part of the cached answer.
        git_in(&top, &["checkout", "-q", "--orphan", "other"]).await;
        assert_eq!(asked.kept(&top, &top.join(".git")), Some(kept));
        assert_eq!(of(&asked, &top).await.expect("a repository").branch.as_deref(), Some("other"));

        // A cache without checks would answer each of these wrongly.
        let elsewhere = top.join("elsewhere");
        std::fs::create_dir(&elsewhere).expect("a directory");
        git_in(&top, &["config", "core.worktree", &elsewhere.display().to_string()]).await;
        assert_eq!(of(&asked, &top).await.expect("a repository").top, elsewhere);
        git_in(&top, &["config", "--unset", "core.worktree"]).await;
        settle(&asked, &top).await;

        let below = top.join("below");
        std::fs::create_dir(&below).expect("a directory");
        assert_eq!(of(&asked, &below).await.expect("a repository").top, top);
        git_in(&below, &["init", "-q"]).await;
        assert_eq!(of(&asked, &below).await.expect("a repository").top, below);

        let aside = dir.path().join("aside");
        std::fs::rename(top.join(".git"), &aside).expect("a name");
        assert_eq!(of(&asked, &top).await, None);
        std::fs::write(top.join(".git"), format!("gitdir: {}\n", aside.display())).expect("a file");
        let found = of(&asked, &top).await.expect("a repository");
        assert_eq!((found.top, found.git_dir), (top, aside.canonicalize().expect("a path")));
    }

    #[tokio::test]
    async fn answer_with_an_included_configuration_is_not_cached() {
        let asked = Repositories::default();
        let dir = tempfile::tempdir().expect("a directory");
        let top = dir.path().canonicalize().expect("a path");
        git_in(&top, &["init", "-q"]).await;
        settle(&asked, &top).await;
        let more = top.join("more");
        std::fs::write(&more, format!("[core]\n\tworktree = {}\n", top.display())).expect("a file");
        git_in(&top, &["config", "include.path", &more.display().to_string()]).await;
        assert_eq!(of(&asked, &top).await.expect("a repository").top, top);
        let config = top.join(".git/config");
        assert!(leads_elsewhere(&config));
        // The age of the configuration does not matter.
        while !Mark::of(&config).is_older_than(SystemTime::now()) {
            tokio::task::yield_now().await;
        }
        assert!(asked.of(&top).await.is_some());
        assert_eq!(asked.kept(&top, &top.join(".git")), None);
    }

    #[tokio::test]
    async fn pipe_in_place_of_head_does_not_block() {
        let dir = tempfile::tempdir().expect("a directory");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.path().join("HEAD"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .expect("a pipe");
        let looked =
            tokio::time::timeout(Duration::from_secs(10), checked_out(dir.path(), dir.path()))
                .await;
        assert_eq!(looked, Ok(None));
    }
}
