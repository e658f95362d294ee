//! What the harness does with git. It never runs `reset --hard` and `clean -fd` as such: it writes down
//! everything that is there as a tree, and then moves the files from that tree to the wanted one. What is
//! ignored, the harness's own files, and what a person had lying about before the task stay as they are.
//! The effect on what the task did is the same, and nothing is lost.
//!
//! Trees are made with an index of their own, so what a person has staged stays staged.

use crate::mend;
use crate::worktree::DURABLE;
use muleteer_model::tasklist::OWN_FILES;
use muleteer_process::command::helper;
use muleteer_process::group::may_be_at_work;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Output of git that we read: no list of changed files is larger.
const OUTPUT_LIMIT: usize = 64 * 1024 * 1024;
/// Of its complaints.
const WORD_LIMIT: usize = 64 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GitError {
    #[error("{} is in no git repository", .0.display())]
    NoRepository(PathBuf),
    #[error("{} has no commit yet", .0.display())]
    NoCommit(PathBuf),
    #[error("{what}: {said}")]
    Failed { what: String, said: String },
    /// git had no say: the system is out of something, or its answer was too long.
    #[error("{what}: {said}")]
    Unheard { what: String, said: String },
}

impl GitError {
    /// The lock that was in its way.
    fn lock(&self) -> Option<PathBuf> {
        let Self::Failed { said, .. } = self else { return None };
        let (_, rest) = said.split_once("Unable to create '")?;
        let (path, _) = rest.split_once("': File exists")?;
        Some(PathBuf::from(path)).filter(|path| path.extension().is_some_and(|kind| kind == "lock"))
    }

    /// There is something in the working directory that git cannot take in: a repository without a commit, or a file that nobody
    /// may read.
    fn is_of_a_file(&self) -> bool {
        let tells =
            |said: &str| said.contains("does not have a commit checked out") || said.contains("unable to index file");
        matches!(self, Self::Failed { said, .. } if tells(said))
    }

    /// What git said means this, where it said something.
    fn meaning(self, meant: Self) -> Self {
        if matches!(self, Self::Unheard { .. }) { self } else { meant }
    }
}

/// Where git stops looking for a repository.
const CEILING: &str = "GIT_CEILING_DIRECTORIES";
/// As [`DURABLE`], for what may write the person's own index: git cannot work with one that a power cut emptied.
const DURABLE_INDEX: &str = "core.fsync=committed,index";

/// So often, and so long in between, is looked whether a lock is gone: other gits have one for a moment.
const LOCK_LOOKS: u32 = if cfg!(test) { 2 } else { 60 };
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// In a clone's git directory until a task begins there.
const ANEW: &str = "muleteer-anew";

/// A working directory of git, and what in it belongs to the harness.
#[derive(Debug, Clone)]
pub struct Git {
    top: PathBuf,
    git_dir: PathBuf,
    common_dir: PathBuf,
    /// Paths from the top that no tree of ours holds.
    own: Vec<String>,
    identity: (String, String),
}

/// What a rollback took away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    pub name: String,
    pub commit: String,
    /// Where it was rolled back to.
    pub base: String,
    /// Where HEAD was before.
    pub head: String,
    pub start: String,
}

impl Saved {
    /// The task it was saved for, as the ref's name tells it.
    pub fn task(&self) -> Option<String> {
        self.name.rsplit('/').nth(1).map(String::from)
    }
}

impl Git {
    /// The repository `dir` is in. `root` is the harness's, as seen from the top of the repository it is in.
    ///
    /// # Errors
    /// When there is none, or it has no commit.
    pub fn open(dir: &Path) -> Result<Self, GitError> {
        Self::open_below(dir, None)
    }

    /// Looks for it no higher than below `ceiling`.
    fn open_below(dir: &Path, ceiling: Option<&Path>) -> Result<Self, GitError> {
        let ask = |what: &str| {
            let mut command = bare(dir);
            command.envs(ceiling.map(|ceiling| (CEILING, ceiling)));
            command.args(["rev-parse", "--path-format=absolute", what]);
            run(command, b"", "rev-parse").map_err(|error| error.meaning(GitError::NoRepository(dir.into())))
        };
        let (top, git_dir) = (ask("--show-toplevel")?, ask("--git-dir")?);
        let prefix = ask("--show-prefix")?;
        let mut git = Self {
            top: top.into(),
            git_dir: git_dir.into(),
            common_dir: ask("--git-common-dir")?.into(),
            own: vec![],
            identity: ("Muleteer".into(), "muleteer@localhost".into()),
        };
        git.own = own(&prefix);
        git.identity = git.identity();
        git.head().map_err(|error| error.meaning(GitError::NoCommit(dir.into())))?;
        Ok(git)
    }

    /// As [`Self::open`], for a clone of the repository whose harness lives at `prefix` below its top. One that is broken is
    /// none: git would find the person's own repository, which the clone lies in, and throw away what is there.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_clone(dir: &Path, of: &Self) -> Result<Self, GitError> {
        let mut git = Self::open_below(dir, dir.parent())?;
        git.own.extend(of.own.clone());
        git.identity = of.identity.clone();
        Ok(git)
    }

    /// Takes away what a git has locked that died with the machine, and makes the index anew where it is empty, as a power cut may leave it: nothing can be lost by that. True if it was.
    pub fn mend_index(&self) -> Result<bool, GitError> {
        mend::forget_stale_locks(&self.git_dir);
        let real = self.git_dir.join("index");
        if !std::fs::metadata(&real).is_ok_and(|meta| meta.len() == 0) {
            return Ok(false);
        }
        std::fs::remove_file(&real).map_err(|error| failed("index", &error.to_string()))?;
        self.git(&["read-tree", "HEAD"])?;
        drop(self.git(&["update-index", "-q", "--refresh"]));
        Ok(true)
    }

    /// Waits until everything that lies here is on the disk, whoever wrote it. A file that a power cut emptied would look like
    /// one that the task has emptied, and be committed.
    pub fn settle(&self) -> Result<(), GitError> {
        let fail = |error: std::io::Error| failed("sync", &format!("{}: {error}", self.top.display()));
        let top = std::fs::File::open(&self.top).map_err(fail)?;
        #[cfg(target_os = "linux")]
        rustix::fs::syncfs(&top).map_err(|errno| fail(errno.into()))?;
        #[cfg(not(target_os = "linux"))]
        {
            drop(top);
            rustix::fs::sync();
        }
        Ok(())
    }

    /// The directory of what all worktrees of the repository share.
    pub fn common_dir(&self) -> &Path {
        &self.common_dir
    }

    pub fn top(&self) -> &Path {
        &self.top
    }

    fn identity(&self) -> (String, String) {
        // With the person's own configuration: it only names them.
        let ask = |key: &str, otherwise: &str| {
            let mut command = helper("git");
            command.arg("-C").arg(&self.top).args(["config", key]).stderr(Stdio::null());
            run(command, b"", "config")
                .ok()
                .filter(|name| !name.is_empty())
                .unwrap_or_else(|| otherwise.into())
        };
        (ask("user.name", "Muleteer"), ask("user.email", "muleteer@localhost"))
    }

    fn git(&self, args: &[&str]) -> Result<String, GitError> {
        self.git_with(args, b"", None)
    }

    fn git_with(&self, args: &[&str], stdin: &[u8], index: Option<&Path>) -> Result<String, GitError> {
        self.bytes(args, stdin, index).map(words)
    }

    /// Where a lock is in the way, waits for whoever has it; one of a git that was killed is taken away.
    fn bytes(&self, args: &[&str], stdin: &[u8], index: Option<&Path>) -> Result<Vec<u8>, GitError> {
        let mut patience = LOCK_LOOKS;
        loop {
            let error = match self.once(args, stdin, index) {
                Ok(said) => return Ok(said),
                Err(error) => error,
            };
            let Some(lock) = error.lock() else { return Err(error) };
            if patience > 0 {
                patience -= 1;
                std::thread::sleep(LOCK_PAUSE);
            } else if !self.forget_dead_lock(&lock) {
                return Err(error);
            }
        }
    }

    /// True if it is gone. While it is there no other git can make it, so nobody who lives is robbed of it.
    fn forget_dead_lock(&self, lock: &Path) -> bool {
        let is_ours = [&self.git_dir, &self.common_dir].iter().any(|dir| lock.starts_with(dir));
        if !is_ours || may_be_at_work("git", &[&self.top, &self.git_dir, &self.common_dir]) {
            return false;
        }
        tracing::warn!(lock = %lock.display(), "left by a git that was killed, and taken away");
        std::fs::remove_file(lock).is_ok()
    }

    fn once(&self, args: &[&str], stdin: &[u8], index: Option<&Path>) -> Result<Vec<u8>, GitError> {
        let mut command = bare(&self.top);
        // It may break while we work in it.
        command.envs(self.top.parent().map(|above| (CEILING, above)));
        if index.is_none() {
            command.args(["-c", DURABLE_INDEX]);
        }
        command.args(args);
        let (name, email) = &self.identity;
        command.env("GIT_AUTHOR_NAME", name).env("GIT_AUTHOR_EMAIL", email);
        command.env("GIT_COMMITTER_NAME", name).env("GIT_COMMITTER_EMAIL", email);
        if let Some(index) = index {
            command.env("GIT_INDEX_FILE", index);
        }
        run_bytes(command, stdin, args.first().unwrap_or(&"git"))
    }

    pub fn head(&self) -> Result<String, GitError> {
        self.git(&["rev-parse", "--verify", "HEAD^{commit}"])
    }

    /// The branch that is checked out; none if HEAD is detached.
    pub fn branch(&self) -> Option<String> {
        self.git(&["symbolic-ref", "--quiet", "--short", "HEAD"]).ok()
    }

    pub fn tip(&self, branch: &str) -> Result<String, GitError> {
        self.git(&["rev-parse", "--verify", &format!("refs/heads/{branch}^{{commit}}")])
    }

    /// As `git cat-file -t` has it: whether the commit is there.
    pub fn exists(&self, commit: &str) -> bool {
        !commit.starts_with('-') && self.git(&["cat-file", "-t", commit]).is_ok_and(|kind| kind == "commit")
    }

    /// `git log --oneline`, newest first.
    pub fn recent(&self, count: usize) -> String {
        self.git(&["log", "--oneline", &format!("-{count}")]).unwrap_or_default()
    }

    /// `git diff --stat`, with what is untracked.
    pub fn uncommitted(&self) -> String {
        let stat = self.git(&["diff", "--stat", "HEAD"]).unwrap_or_default();
        let untracked = self.git(&["ls-files", "--others", "--exclude-standard"]).unwrap_or_default();
        let untracked: Vec<_> = untracked
            .lines()
            .filter(|path| !self.own.iter().any(|own| path == own || path.starts_with(&format!("{own}/"))))
            .take(20)
            .map(|path| format!(" {path} (untracked)"))
            .collect();
        [stat, untracked.join("\n")]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join("\n")
    }

    pub fn stashes(&self) -> String {
        self.git(&["stash", "list"]).unwrap_or_default()
    }

    /// The commits since `base` and their messages, the newest first.
    pub fn commits_since(&self, base: &str) -> Result<Vec<(String, String)>, GitError> {
        let text = self.git(&["log", "--format=%H %B%x00", &format!("{base}..HEAD")])?;
        let commits = text.split('\0').filter_map(|commit| commit.trim().split_once(' '));
        Ok(commits.map(|(hash, message)| (hash.into(), message.into())).collect())
    }

    /// Everything that lies in the working directory and is not ignored, as a tree.
    pub fn snapshot(&self) -> Result<String, GitError> {
        self.snapshot_into(&self.index()).map(|(tree, _)| tree)
    }

    fn snapshot_into<'a>(&self, index: &'a Index) -> Result<(String, &'a Index), GitError> {
        // A copy knows the files' times, so only what changed is read.
        let real = self.git_dir.join("index");
        if std::fs::metadata(&real).is_ok_and(|meta| meta.len() > 0) {
            std::fs::copy(&real, &index.0).map_err(|error| failed("copy of the index", &error.to_string()))?;
        }
        // Not with excluding pathspecs: git fails where one of them is ignored too.
        let args = ["add", "-A", "--", ":(top)"].map(String::from);
        match self.with(index, &args, b"") {
            // It stays where it is, as `git clean` would leave it: what is in no tree is not moved.
            Err(error) if error.is_of_a_file() => {
                tracing::warn!(%error, "not taken in");
                let args = ["add", "-A", "--ignore-errors", "--", ":(top)"].map(String::from);
                drop(self.with(index, &args, b""));
            }
            done => drop(done?),
        }
        self.forget_own(index)?;
        Ok((self.with(index, &["write-tree".into()], b"")?, index))
    }

    /// A commit's tree without what is the harness's.
    pub fn tree_of(&self, commit: &str) -> Result<String, GitError> {
        let index = self.index();
        self.with(&index, &["read-tree".into(), commit.into()], b"")?;
        self.forget_own(&index)?;
        self.with(&index, &["write-tree".into()], b"")
    }

    fn forget_own(&self, index: &Index) -> Result<(), GitError> {
        let mut args: Vec<String> = ["rm", "-r", "-q", "--cached", "--ignore-unmatch", "--"].map(String::from).into();
        args.extend(self.own.iter().map(|path| format!(":(top,literal){path}")));
        self.with(index, &args, b"").map(drop)
    }

    fn with(&self, index: &Index, args: &[String], stdin: &[u8]) -> Result<String, GitError> {
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        self.git_with(&args, stdin, Some(&index.0))
    }

    fn index(&self) -> Index {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Index(self.git_dir.join(format!("muleteer-index-{}-{count}", std::process::id())))
    }

    /// Remembers what lay about when a task began, if that is not just its base: it is a person's, and stays
    /// out of the task's commits and rollbacks.
    pub fn remember_start(&self, task: &str, base: &str) -> Result<(), GitError> {
        let name = start_ref(task);
        let tree = self.snapshot()?;
        if tree == self.tree_of(base)? {
            drop(self.git(&["update-ref", "-d", &name]));
            return Ok(());
        }
        let commit = self.commit_tree(&tree, base, &format!("muleteer: the working directory before {task}"))?;
        self.git(&["update-ref", &name, &commit]).map(drop)
    }

    /// What lay about when the task began at `base`: as remembered, else just the base.
    pub fn start(&self, task: &str, base: &str) -> Result<String, GitError> {
        let name = start_ref(task);
        let parent = self.git(&["rev-parse", "--verify", "--quiet", &format!("{name}^")]);
        let full = self.git(&["rev-parse", "--verify", &format!("{base}^{{commit}}")])?;
        match parent {
            Ok(parent) if parent == full => self.git(&["rev-parse", &format!("{name}^{{tree}}")]),
            _ => self.tree_of(base),
        }
    }

    pub fn forget_start(&self, task: &str) {
        drop(self.git(&["update-ref", "-d", &start_ref(task)]));
    }

    fn commit_tree(&self, tree: &str, parent: &str, message: &str) -> Result<String, GitError> {
        self.git_with(&["commit-tree", tree, "-p", parent], message.as_bytes(), None)
    }

    /// What changed since `start` and is in no commit, as a tree upon HEAD's; none if that is nothing.
    pub fn uncommitted_since(&self, start: &str) -> Result<Option<String>, GitError> {
        self.pending(start).map(|pending| pending.map(|(tree, _)| tree))
    }

    fn pending(&self, start: &str) -> Result<Option<(String, Vec<u8>)>, GitError> {
        let now = self.snapshot()?;
        let changes = self.changes(start, &now)?;
        if changes.is_empty() {
            return Ok(None);
        }
        let index = self.index();
        self.with(&index, &["read-tree".into(), "HEAD".into()], b"")?;
        self.with(&index, &["update-index".into(), "-z".into(), "--index-info".into()], &changes)?;
        let tree = self.with(&index, &["write-tree".into()], b"")?;
        let head = self.git(&["rev-parse", "HEAD^{tree}"])?;
        Ok((tree != head).then_some((tree, changes)))
    }

    /// The way from one tree to another, as `update-index --index-info` reads it.
    fn changes(&self, from: &str, to: &str) -> Result<Vec<u8>, GitError> {
        let args = ["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", from, to];
        // In bytes: a path need not be text.
        let listed = self.bytes(&args, b"", None)?;
        let mut fields = listed.split(|byte| *byte == 0);
        let mut info = vec![];
        while let (Some(about), Some(path)) = (fields.next(), fields.next()) {
            let about = String::from_utf8_lossy(about);
            let mut words = about.trim_start_matches(':').split(' ');
            let (mode, id) = (words.nth(1).unwrap_or_default(), words.nth(1).unwrap_or_default());
            info.extend_from_slice(format!("{mode} {id}\t").as_bytes());
            info.extend_from_slice(path);
            info.push(0);
        }
        Ok(info)
    }

    /// Commits what the task changed and did not commit itself. Without hooks: the validation is the check.
    pub fn commit(&self, start: &str, message: &str) -> Result<Option<String>, GitError> {
        let Some((tree, changes)) = self.pending(start)? else { return Ok(None) };
        let head = self.head()?;
        let commit = self.commit_tree(&tree, &head, message)?;
        // First: an index ahead of HEAD is what is about to be committed, one behind it takes the commit back.
        self.git_with(&["update-index", "-z", "--index-info"], &changes, None)?;
        self.git(&["update-ref", "-m", "muleteer: task completed", "HEAD", &commit, &head])?;
        drop(self.git(&["update-index", "-q", "--refresh"]));
        Ok(Some(commit))
    }

    /// Puts HEAD back to `base` and the files to what they were when the task began, after everything that
    /// is there was saved as a ref, of which `on_saved` hears before anything moves. What came with the commit `kept`,
    /// which is since the base, stays. None if there was nothing to save.
    pub fn roll_back(
        &self,
        task: &str,
        base: &str,
        kept: Option<&str>,
        branch: Option<&str>,
        ignored: &[String],
        on_saved: &mut dyn FnMut(&Saved),
    ) -> Result<Option<Saved>, GitError> {
        let start = self.start(task, base)?;
        let head = self.head()?;
        let base = self.git(&["rev-parse", "--verify", &format!("{base}^{{commit}}")])?;
        let index = self.index();
        let (now, index) = self.snapshot_into(&index)?;
        let elsewhere = branch.is_some_and(|branch| self.branch().as_deref() != Some(branch));
        let (end, files) = match kept {
            Some(kept) => (kept, self.with_changes(&start, &base, kept)?),
            None => (base.as_str(), start.clone()),
        };
        if now == files && head == end && !elsewhere {
            return Ok(None);
        }
        let saved = self.save("rollback", task, &base, &start, ignored)?;
        on_saved(&saved);
        muleteer_process::fault::point("tasks.saved");
        self.move_to(end, branch)?;
        self.move_files(index, &now, &files)?;
        Ok(Some(saved))
    }

    /// A tree with what changed from one commit to another.
    fn with_changes(&self, tree: &str, from: &str, to: &str) -> Result<String, GitError> {
        let changes = self.changes(from, to)?;
        let index = self.index();
        self.with(&index, &["read-tree".into(), tree.into()], b"")?;
        self.with(&index, &["update-index".into(), "-z".into(), "--index-info".into()], &changes)?;
        self.forget_own(&index)?;
        self.with(&index, &["write-tree".into()], b"")
    }

    fn move_to(&self, commit: &str, branch: Option<&str>) -> Result<(), GitError> {
        if let Some(branch) = branch {
            // The agent may have checked out another one, which is not ours to move.
            self.git(&["symbolic-ref", "HEAD", &format!("refs/heads/{branch}")])?;
        }
        self.git(&["reset", "-q", "--mixed", commit]).map(drop)
    }

    /// Moves the files in the working directory from one tree to another. The index must be the first one's.
    fn move_files(&self, index: &Index, from: &str, to: &str) -> Result<(), GitError> {
        if from == to {
            return Ok(());
        }
        let two_way = ["read-tree", "-m", "-u", from, to].map(String::from);
        if self.with(index, &two_way, b"").is_err() {
            // Something ignored is in the way of a file: it was tracked once.
            self.with(index, &["read-tree", "--reset", "-u", to].map(String::from), b"")?;
        }
        drop(self.git(&["update-index", "-q", "--refresh"]));
        Ok(())
    }

    /// Keeps everything that is there, commits and files, under a name of its own.
    fn save(&self, kind: &str, task: &str, base: &str, start: &str, ignored: &[String]) -> Result<Saved, GitError> {
        let index = self.index();
        let (mut tree, index) = self.snapshot_into(&index)?;
        // Ignored but listed: git would leave them, and an agent may have overwritten them.
        let there: Vec<_> = ignored.iter().filter(|path| self.top.join(path).exists()).collect();
        if !there.is_empty() {
            let mut args: Vec<String> = ["add", "-A", "-f", "--"].map(String::from).into();
            args.extend(there.iter().map(|path| format!(":(top,literal){path}")));
            self.with(index, &args, b"")?;
            tree = self.with(index, &["write-tree".into()], b"")?;
        }
        let head = self.head()?;
        let message = format!(
            "muleteer: saved before a {kind} of {task}\n\nTask: {task}\nBase: {base}\nHead: {head}\nStart: {start}\n"
        );
        let commit = self.commit_tree(&tree, &head, &message)?;
        let folder = format!("refs/muleteer/{kind}/{}", ref_part(task));
        for number in 1..10_000 {
            let name = format!("{folder}/{number}");
            // Creates it, or fails if it is there.
            if self
                .git(&["update-ref", &name, &commit, "0000000000000000000000000000000000000000"])
                .is_ok()
            {
                return Ok(Saved { name, commit, base: base.into(), head, start: start.into() });
            }
        }
        Err(failed("update-ref", &format!("{folder} is full")))
    }

    /// What was saved before rollbacks of a task, or under a full name; the newest first.
    pub fn saved(&self, of: Option<&str>) -> Result<Vec<Saved>, GitError> {
        let pattern = match of {
            Some(name) if name.starts_with("refs/muleteer/") => name.to_string(),
            Some(task) => format!("refs/muleteer/rollback/{}/", ref_part(task)),
            None => "refs/muleteer/rollback/".into(),
        };
        let format = "--format=%(refname)%00%(objectname)%00%(contents:body)%01";
        let text = self.git(&["for-each-ref", "--sort=-committerdate", "--sort=-refname", format, &pattern])?;
        let read = |record: &str| {
            let mut fields = record.trim_start().split('\0');
            let (name, commit, body) = (fields.next()?, fields.next()?, fields.next()?);
            let field = |key: &str| body.lines().find_map(|line| line.strip_prefix(key)).map(|text| text.trim().into());
            Some(Saved {
                name: name.into(),
                commit: commit.into(),
                base: field("Base:")?,
                head: field("Head:")?,
                start: field("Start:")?,
            })
        };
        let mut all: Vec<Saved> = text.split('\u{1}').filter_map(read).collect();
        // Within a second, the higher number is the newer one.
        all.sort_by(|a, b| muleteer_model::tasklist::select::by_id(&b.name, &a.name));
        Ok(all)
    }

    /// The one that was saved last.
    pub fn newest(&self, saved: &[Saved]) -> Option<Saved> {
        let when = |one: &Saved| {
            self.git(&["show", "-s", "--format=%ct", &one.commit])
                .ok()
                .and_then(|text| text.parse::<u64>().ok())
        };
        // Sorted newest first within a task; the first of the latest is meant.
        let mut best: Option<(Option<u64>, &Saved)> = None;
        for one in saved {
            let at = when(one);
            if best.as_ref().is_none_or(|(known, _)| at > *known) {
                best = Some((at, one));
            }
        }
        best.map(|(_, one)| one.clone())
    }

    /// Whether this is a clone or worktree of the same repository.
    pub fn shares(&self, other: &Self) -> bool {
        self.common_dir == other.common_dir
            || std::fs::read_to_string(self.common_dir.join("objects/info/alternates"))
                .is_ok_and(|text| text.lines().any(|line| Path::new(line).starts_with(&other.common_dir)))
    }

    /// Brings back what a rollback took away. What is there now is saved first, and its name returned.
    ///
    /// # Errors
    /// When HEAD is no longer where the rollback put it: then commits would be dropped.
    pub fn undo(&self, saved: &Saved, ignored: &[String]) -> Result<Option<String>, GitError> {
        let head = self.head()?;
        if head != saved.base {
            let said = format!(
                "HEAD is no longer at {}; `git branch NAME {}` keeps the saved work beside it",
                &saved.base[..saved.base.len().min(12)],
                saved.name
            );
            return Err(failed("undo", &said));
        }
        let index = self.index();
        let (now, index) = self.snapshot_into(&index)?;
        let kept = if now == saved.start { None } else { Some(self.save("undo", "undo", &head, &now, ignored)?.name) };
        self.git(&["reset", "-q", "--mixed", &saved.head])?;
        let wanted = self.git(&["rev-parse", &format!("{}^{{tree}}", saved.commit)])?;
        self.move_files(index, &now, &wanted)?;
        Ok(kept)
    }

    // Concurrent workers: a clone each.

    /// Mends what a power cut may have left of a worker's clone; one in which git cannot work any more is put aside. Then it
    /// says where, and why. The clone's agent may live and be at work in it.
    pub fn mend_clone(&self, dir: &Path, branch: &str) -> Result<Option<(PathBuf, GitError)>, GitError> {
        if !dir.exists() {
            return Ok(None);
        }
        mend::forget_stale_locks(&dir.join(".git"));
        mend::forget_empty_objects(&dir.join(".git/objects"));
        let tip = self.tip(branch)?;
        let usable = Self::open_clone(dir, self).and_then(|clone| {
            clone.mend_index()?;
            clone.check_objects(&tip)?;
            clone.end_stale_rebase()?;
            clone.fill_emptied();
            Ok(())
        });
        let error = match usable {
            Ok(()) => return Ok(None),
            // Nothing is wrong with the clone, as far as we know.
            Err(error @ GitError::Unheard { .. }) => return Err(error),
            Err(error) => error,
        };
        let fail = |error: std::io::Error| failed("clone", &format!("{}: {error}", dir.display()));
        let aside = crate::worktree::free_name(dir, "broken");
        std::fs::rename(dir, &aside).map_err(fail)?;
        Ok(Some((aside, error)))
    }

    /// Ends a rebase in the middle of which the machine went down.
    fn end_stale_rebase(&self) -> Result<(), GitError> {
        let is_left = || {
            ["rebase-merge", "rebase-apply"]
                .iter()
                .any(|name| mend::is_stale_folder(&self.git_dir.join(name)))
        };
        if is_left() {
            drop(self.git(&["rebase", "--abort"]));
        }
        if is_left() { Err(failed("rebase", "what was left of one cannot be undone")) } else { Ok(()) }
    }

    /// Puts back what the machine's end has emptied: git does not sync the files that it checks out, and they would look
    /// like files that a task has emptied. Only in a clone, where no person works. What cannot be put back is left to the
    /// validation.
    fn fill_emptied(&self) {
        let modified = self.git(&["ls-files", "-z", "--modified", "--deduplicate"]).unwrap_or_default();
        let emptied = modified.split('\0').filter(|path| !path.is_empty());
        let emptied = emptied.filter(|path| mend::is_stale_and_empty(&self.top.join(path)));
        let emptied: Vec<String> = emptied.map(|path| format!(":(top,literal){path}")).collect();
        for some in emptied.chunks(200) {
            let paths = some.iter().map(String::as_str);
            drop(self.git(&["checkout", "--quiet", "--"].into_iter().chain(paths).collect::<Vec<_>>()));
        }
    }

    /// That what was committed here since `tip` can be read.
    fn check_objects(&self, tip: &str) -> Result<(), GitError> {
        let list = self.git(&["rev-list", "--objects", "HEAD", "--not", tip])?;
        let names: String = list
            .lines()
            .filter_map(|line| line.split(' ').next())
            .map(|name| format!("{name}\n"))
            .collect();
        if names.is_empty() {
            return Ok(());
        }
        let types = self.git_with(&["cat-file", "--batch-check=%(objecttype)"], names.as_bytes(), None)?;
        match types.lines().find(|line| line.ends_with(" missing")) {
            Some(missing) => Err(failed("cat-file", missing)),
            None => Ok(()),
        }
    }

    /// Makes a worker's clone, or brings it up to date: on a branch of its own at the tip of `branch`.
    /// Whatever is in it is saved in the project first.
    pub fn prepare_clone(&self, dir: &Path, branch: &str) -> Result<Self, GitError> {
        if !dir.join(".git").exists() {
            let fail = |error: std::io::Error| failed("clone", &format!("{}: {error}", dir.display()));
            if let Some(parent) = dir.parent() {
                std::fs::create_dir_all(parent).map_err(fail)?;
            }
            let partial = dir.with_extension("partial");
            if partial.exists() {
                std::fs::remove_dir_all(&partial).map_err(fail)?;
            }
            let mut command = bare(&self.top);
            command.args(["clone", "--quiet", "--shared", "--no-hardlinks", "."]).arg(&partial);
            run(command, b"", "clone")?;
            crate::worktree::exclude(&partial.join(".git")).map_err(fail)?;
            std::fs::write(partial.join(".git").join(ANEW), "").map_err(fail)?;
            std::fs::rename(&partial, dir).map_err(fail)?;
        }
        let clone = Self::open_clone(dir, self)?;
        let (name, email) = &self.identity;
        clone.git(&["config", "user.name", name])?;
        clone.git(&["config", "user.email", email])?;
        clone.fetch(&self.top, branch)?;
        Ok(clone)
    }

    fn fetch(&self, from: &Path, branch: &str) -> Result<String, GitError> {
        let from = from.to_string_lossy();
        self.git(&["fetch", "--quiet", "--no-tags", &from, &format!("refs/heads/{branch}")])?;
        self.git(&["rev-parse", "FETCH_HEAD"])
    }

    /// Whether a clone was made and no task has begun in it since: what one had passed with before lay in another.
    pub fn is_made_anew(&self) -> bool {
        self.git_dir.join(ANEW).exists()
    }

    /// Throws away what is in a clone and stands at the tip of the project's branch, for a task to begin.
    pub fn reset_clone(&self, project: &Self, branch: &str) -> Result<String, GitError> {
        let tip = self.fetch(&project.top, branch)?;
        drop(self.git(&["rebase", "--abort"]));
        self.git(&["checkout", "--quiet", "--force", "-B", "muleteer/work", &tip])?;
        self.git(&["reset", "--quiet", "--hard", &tip])?;
        self.git(&["clean", "-fdq"])?;
        match std::fs::remove_file(self.git_dir.join(ANEW)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed("clone", &error.to_string())),
            _ => Ok(tip),
        }
    }

    /// Rebases onto the project's branch; the new base. A conflict leaves everything as it was.
    pub fn rebase(&self, project: &Self, branch: &str) -> Result<String, GitError> {
        let tip = self.fetch(&project.top, branch)?;
        if let Err(error) = self.git(&["rebase", "--quiet", &tip]) {
            drop(self.git(&["rebase", "--abort"]));
            return Err(error);
        }
        Ok(tip)
    }

    /// Brings a clone's commits onto the project's branch, if that still stands at `tip`. False if not.
    pub fn land(&self, clone: &Self, branch: &str, tip: &str) -> Result<bool, GitError> {
        if self.tip(branch)? != tip {
            return Ok(false);
        }
        let commit = clone.head()?;
        let from = clone.top.to_string_lossy();
        self.git(&["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", &from, "HEAD"])?;
        if self.branch().as_deref() == Some(branch) {
            self.git(&["merge", "--quiet", "--ff-only", &commit])?;
        } else {
            self.git(&["update-ref", &format!("refs/heads/{branch}"), &commit, tip])?;
        }
        self.settle()?;
        Ok(true)
    }

    /// Brings what was saved in a clone into the project, under the same name or the next free one.
    pub fn adopt(&self, clone: &Self, saved: &Saved) -> Result<String, GitError> {
        let from = clone.top.to_string_lossy();
        self.git(&["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", &from, &saved.name])?;
        let folder = saved.name.rsplit_once('/').map_or(saved.name.as_str(), |(folder, _)| folder);
        for number in 1..10_000 {
            let name = format!("{folder}/{number}");
            let there = self.git(&["rev-parse", "--verify", "--quiet", &name]);
            if there.as_ref() == Ok(&saved.commit) {
                return Ok(name);
            }
            if there.is_err()
                && self
                    .git(&["update-ref", &name, &saved.commit, "0000000000000000000000000000000000000000"])
                    .is_ok()
            {
                return Ok(name);
            }
        }
        Err(failed("update-ref", &format!("{folder} is full")))
    }
}

/// An index file of our own; gone when dropped.
#[derive(Debug)]
struct Index(PathBuf);

impl Drop for Index {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
        drop(std::fs::remove_file(self.0.with_extension("lock")));
    }
}

/// What belongs to the harness, in a repository where it lives below `prefix`.
fn own(prefix: &str) -> Vec<String> {
    let files =
        OWN_FILES
            .iter()
            .chain(&[".muleteer/tasks", ".muleteer/tasks.lock", ".muleteer/worktrees", ".muleteer/runs"]);
    let mut own: Vec<_> = files.map(|name| format!("{prefix}{name}")).collect();
    own.push(".agents/journals".into());
    if !prefix.is_empty() {
        own.extend([".muleteer/worktrees".into(), ".muleteer/runs".into()]);
    }
    own
}

fn start_ref(task: &str) -> String {
    format!("refs/muleteer/start/{}", ref_part(task))
}

/// An id as part of a ref's name.
fn ref_part(id: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let plain: String = id.chars().map(|c| if fits(c) { c } else { '_' }).collect();
    if plain == id { plain } else { format!("{plain}-{:08x}", hash(id)) }
}

/// FNV-1a: tells two ids apart whose plain forms are alike.
fn hash(text: &str) -> u32 {
    text.bytes()
        .fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn failed(what: &str, said: &str) -> GitError {
    GitError::Failed { what: format!("git {what}"), said: said.into() }
}

/// git, deaf to configuration that could run somebody's code or ask somebody something.
fn bare(dir: &Path) -> Command {
    let mut command = helper("git");
    command
        .arg("-C")
        .arg(dir)
        .args(["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.quotePath=false"])
        .args(["-c", "protocol.ext.allow=never", "-c", "commit.gpgSign=false", "-c", "gc.auto=0"])
        // A snapshot may be of thousands of files: for those git waits once, at the end.
        .args(["-c", DURABLE, "-c", "core.fsyncMethod=batch"])
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_EDITOR", "true")
        .env("LC_ALL", "C");
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR"] {
        command.env_remove(name);
    }
    command
}

fn run(command: Command, stdin: &[u8], what: &str) -> Result<String, GitError> {
    run_bytes(command, stdin, what).map(words)
}

/// Only git's own words are trimmed: what is NUL-separated keeps its separators. A path that is no text names nothing then.
fn words(said: Vec<u8>) -> String {
    String::from_utf8_lossy(&said).trim_matches('\n').trim_end_matches('\0').to_string()
}

/// Runs it to its end.
fn run_bytes(mut command: Command, stdin: &[u8], what: &str) -> Result<Vec<u8>, GitError> {
    let unheard = |said: String| GitError::Unheard { what: format!("git {what}"), said };
    let fail = |error: std::io::Error| unheard(error.to_string());
    if !stdin.is_empty() {
        command.stdin(Stdio::piped());
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(fail)?;
    let writer = child.stdin.take().map(|mut pipe| {
        let bytes = stdin.to_vec();
        // git may answer before it has read everything.
        std::thread::spawn(move || drop(pipe.write_all(&bytes)))
    });
    // Its complaints are read beside its answer, or it could wait for us for ever.
    let stderr = child.stderr.take();
    let complaints = std::thread::spawn(move || at_most(stderr, WORD_LIMIT));
    // One byte more than is allowed tells that there was more; then its pipe is closed, and it ends.
    let stdout = at_most(child.stdout.take(), OUTPUT_LIMIT + 1);
    let status = child.wait().map_err(fail)?;
    if let Some(writer) = writer {
        drop(writer.join());
    }
    let stdout = stdout.map_err(fail)?;
    if stdout.len() > OUTPUT_LIMIT {
        return Err(unheard("its answer is too long".into()));
    }
    if !status.success() {
        let stderr = complaints.join().ok().and_then(Result::ok).unwrap_or_default();
        let stderr = String::from_utf8_lossy(&stderr);
        let said = stderr
            .trim()
            .lines()
            .filter(|line| !line.starts_with("hint:"))
            .collect::<Vec<_>>()
            .join("; ");
        return Err(failed(what, if said.is_empty() { "it failed" } else { &said }));
    }
    Ok(stdout)
}

fn at_most(stream: Option<impl Read>, limit: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![];
    if let Some(stream) = stream {
        stream.take(limit as u64).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
