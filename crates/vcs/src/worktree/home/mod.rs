//! Brings home an agent's work from its clone. Its commits become a branch of the person's
//! repository. The rest (other branches, stashes, a detached HEAD, uncommitted files) gets refs
//! below `refs/muleteer/left/<id>`.
//!
//! git works in the person's repository and in one of our own, never in the clone, whose hooks,
//! filters and configuration belong to its agent.

mod removal;

use crate::command::{CommandError, Meaning, UPLOAD_PACK, fetching, git, run, run_within};
use crate::error::{Refusal, RepoError};
use crate::git_files::{self, check_files};
use crate::lfs::{self, Store};
use crate::reflog;
use crate::untrusted_path;
use crate::worktree::leftover::{self, Leftover};
use crate::worktree::{branch_in_the_way, is_clone, tip};
use muleteer_model::dispatch::work::{LeftWork, WorkHome};
use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

/// The folder of refs for work that is on no branch.
pub const LEFT: &str = "refs/muleteer/left";
/// The timeout for listing a clone's refs. It answers at once unless its agent makes git hang.
const AT_ONCE: Duration = Duration::from_secs(120);
/// The timeout for fetching the commits.
const BRINGING: Duration = Duration::from_secs(5 * 60);
/// The timeout of both once the dispatch was killed.
const STOPPED: Duration =
    if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(5) };
/// The limit of names that are tried for the branch.
const MOST_NAMES: u32 = 10;
/// The limit of other branches, stashes and detached commits that are saved. The rest is named and
/// stays in the clone.
const MOST_LEFT: usize = 50;
/// The limit of commits in a question to git: an agent can make a branch in a millisecond.
const MOST_ASKED: usize = 5000;
/// A longer reflog is not read.
const REFLOG_LIMIT: u64 = 4 << 20;
const HASH_LIMIT: u64 = 100;
const REBASED: &str = "the branch that was being rebased";
const AUTOSTASH: &str = "changes that git set aside for a rebase or a merge";
/// The suffix for work that an earlier end of the dispatch has saved.
const EARLIER: &str = ", kept earlier";

/// The clone of a dispatch that has ended.
#[derive(Debug, Clone, Copy)]
pub struct Homecoming<'a> {
    pub project: &'a Path,
    pub clone: &'a Path,
    pub id: &'a str,
    /// The commit that the clone began at, if known.
    pub base: Option<&'a str>,
    /// The branch that was chosen when the dispatch was made.
    pub branch: &'a str,
    /// The work that came home at an earlier end of the dispatch.
    pub before: Option<&'a WorkHome>,
    /// Cancelled when the user kills the dispatch and waits for its end.
    pub stop: &'a CancellationToken,
}

/// The reason why the commits were not fetched into the user's repository.
#[derive(Debug, thiserror::Error)]
pub enum BringError {
    /// Another git may have held a lock: a retry may succeed.
    #[error(transparent)]
    Failed(RepoError),
    /// A retry would hang in the same way, or nobody waits for it any more.
    #[error(transparent)]
    GaveUp(RepoError),
}

impl From<CommandError> for BringError {
    fn from(why: CommandError) -> Self {
        if why.was_killed() { Self::GaveUp(why.into()) } else { Self::Failed(why.into()) }
    }
}

impl BringError {
    /// Whether git says that a branch cannot move to a commit.
    fn is_taken(&self) -> bool {
        let (Self::Failed(why) | Self::GaveUp(why)) = self;
        matches!(why, RepoError::Command(why) if why.meaning() == Some(Meaning::BranchTaken))
    }
}

/// A commit of the clone that may be on no branch of the person's.
struct Candidate {
    commit: String,
    /// Its name below the dispatch's own folder of refs.
    name: String,
    what: String,
}

impl Homecoming<'_> {
    /// Brings everything home. Safe to repeat after a crash.
    ///
    /// # Errors
    /// The commits could not be brought.
    pub async fn bring(&self) -> Result<WorkHome, BringError> {
        let mut work = WorkHome { branch: self.branch.into(), ..WorkHome::default() };
        let mut head = self.base.map(String::from);
        if is_clone(self.clone) {
            self.check().await?;
            let refs = self.refs().await?;
            let at = |name: &str| {
                refs.iter().find(|(_, known)| known == name).map(|(commit, _)| commit.clone())
            };
            head = at("HEAD").or(head);
            let own = at(&format!("refs/heads/{}", self.branch));
            let known = self.known().await?;
            let main = self.main(at("HEAD"), own, &known).await;
            if let Some(main) = &main {
                let name = self.bring_branch(main).await?;
                work.commits = self.count(main).await;
                (work.branch, work.commit) = (name, Some(main.clone()));
            }
            let others = self.candidates(&refs, main.as_deref(), &known);
            self.bring_others(others, &mut work).await;
        } else if std::fs::symlink_metadata(self.clone).is_ok_and(|meta| meta.is_dir()) {
            work.trouble =
                Some("the git directory of the clone was removed, with the commits in it".into());
        } else {
            work.trouble = Some("the clone was removed".into());
            self.name_earlier(&mut work).await;
            return Ok(work);
        }
        match head {
            Some(head) => self.bring_uncommitted(&head, &mut work).await,
            None => work
                .skipped
                .push("uncommitted files: the commit they are based on is not known".into()),
        }
        self.bring_large(&mut work).await;
        self.name_earlier(&mut work).await;
        Ok(work)
    }

    /// Brings the files of the commits that git-lfs keeps. Without them a branch cannot be checked
    /// out.
    async fn bring_large(&self, work: &mut WorkHome) {
        // Only an agent that uses git-lfs adds such files.
        if std::fs::symlink_metadata(self.git_dir().join("lfs")).is_err() {
            return;
        }
        let tips: Vec<String> =
            work.commit.iter().chain(work.left.iter().map(|left| &left.name)).cloned().collect();
        let brought = async {
            let common = crate::worktree::git_dir(self.project).await;
            let common = common.ok_or(CommandError::NoObjectFolder)?;
            let stores = vec![Store::of_person(self.project, &common).await];
            let wanted = lfs::wanted(self.project, &tips, &Vec::from_iter(self.base)).await?;
            lfs::take(wanted, stores, vec![self.git_dir()], self.stop.clone()).await
        };
        match brought.await {
            Ok(missing) => work.skipped.extend(lfs::describe_missing(&missing)),
            Err(why) => work.skipped.push(format!("files that git-lfs keeps ({why})")),
        }
    }

    /// Rejects a clone with a file in its git directory that would make git hang.
    async fn check(&self) -> Result<(), BringError> {
        let git_dir = self.git_dir();
        let checking = tokio::task::spawn_blocking(move || check_files(&git_dir));
        let checked = checking.await.map_err(|error| BringError::Failed(error.into()))?;
        checked.map_err(|why| BringError::GaveUp(RepoError::step("cannot fetch the work")(why)))
    }

    /// Runs a git that reads the clone. It is killed soon if it hangs, and sooner once the dispatch
    /// was killed.
    async fn read(
        &self,
        command: &mut Command,
        patience: Duration,
        what: &str,
    ) -> Result<String, BringError> {
        tokio::select! {
            said = run_within(command, patience, what) => said.map_err(BringError::from),
            () = self.given_up() => {
                let killed = CommandError::DispatchKilled { purpose: what.into() };
                Err(BringError::GaveUp(killed.into()))
            }
        }
    }

    async fn given_up(&self) {
        self.stop.cancelled().await;
        tokio::time::sleep(STOPPED).await;
    }

    fn git_dir(&self) -> PathBuf {
        self.clone.join(".git")
    }

    /// Returns a reflog of the clone; empty if it cannot be read.
    fn log(&self, name: &str) -> String {
        let log =
            untrusted_path::read(&self.git_dir(), Path::new(name), REFLOG_LIMIT).ok().flatten();
        String::from_utf8_lossy(&log.unwrap_or_default()).into_owned()
    }

    /// Returns the clone's refs, HEAD among them, with their commits.
    async fn refs(&self) -> Result<Vec<(String, String)>, BringError> {
        let mut ask = git(self.project);
        ask.args(["ls-remote", "--upload-pack", UPLOAD_PACK]).arg(self.git_dir());
        let said = self.read(&mut ask, AT_ONCE, "cannot look at the clone").await?;
        let pairs = said.lines().filter_map(|line| line.split_once('\t'));
        Ok(pairs.map(|(commit, name)| (commit.to_string(), name.to_string())).collect())
    }

    /// Returns the commits of all refs of the person's repository, except those that this dispatch
    /// may move. Moving a ref could lose its commit.
    async fn known(&self) -> Result<HashSet<String>, CommandError> {
        let own = self.own_branches();
        let listed = self.list("refs/").await?.into_iter();
        let known =
            listed.filter(|(_, name)| !own.contains(name) && !name.starts_with(&self.folder()));
        Ok(known.map(|(commit, _)| commit).chain(self.base.map(String::from)).collect())
    }

    /// Returns the refs of the person's repository with this prefix, each with its object.
    async fn list(&self, prefix: &str) -> Result<Vec<(String, String)>, CommandError> {
        let mut list = git(self.project);
        list.args(["for-each-ref", "--format=%(objectname) %(refname)", prefix]);
        let said = run(&mut list, "cannot list the branches").await?;
        let pairs = said.lines().filter_map(|line| line.split_once(' '));
        Ok(pairs.map(|(commit, name)| (commit.to_string(), name.to_string())).collect())
    }

    /// Returns the dispatch's own folder of refs.
    fn folder(&self) -> String {
        format!("{LEFT}/{}/", self.id)
    }

    /// Returns the branches that this dispatch has brought, or may have brought.
    fn own_branches(&self) -> Vec<String> {
        names(self.branch, self.id).map(|name| format!("refs/heads/{name}")).collect()
    }

    /// Returns the tip of the agent's work. It is HEAD, or the branch that the agent was given, if
    /// HEAD has left that branch. `None` if neither has a commit of its own.
    async fn main(
        &self,
        head: Option<String>,
        own: Option<String>,
        known: &HashSet<String>,
    ) -> Option<String> {
        let made: HashSet<String> = reflog::made(&self.log("logs/HEAD")).into_iter().collect();
        for tip in [head, own].into_iter().flatten() {
            if Some(tip.as_str()) == self.base {
                continue;
            }
            // Two agents may make the same commit in the same second; then it belongs to both.
            let brought = self.before.is_some_and(|before| before.commit.as_deref() == Some(&tip));
            if brought
                || made.contains(&tip)
                || !(known.contains(&tip) && self.is_elsewhere(&tip).await)
            {
                return Some(tip);
            }
        }
        None
    }

    /// Whether another branch of the person's has the commit, so that it is not this agent's.
    async fn is_elsewhere(&self, commit: &str) -> bool {
        let mut list = git(self.project);
        list.args(["for-each-ref", "--format=%(refname)", "--contains", commit]);
        let Ok(said) = run(&mut list, "").await else { return false };
        let own = self.own_branches();
        said.lines()
            .any(|name| !own.iter().any(|own| own == name) && !name.starts_with(&self.folder()))
    }

    /// Brings a commit as the chosen branch, or under another name. A branch with a person's
    /// commits, or one that is checked out, does not move.
    async fn bring_branch(&self, commit: &str) -> Result<String, BringError> {
        let before = self.before.and_then(|before| before.commit.as_deref());
        let mut refused = BringError::Failed(Refusal::NoName.into());
        for name in names(self.branch, self.id) {
            if let Some(other) = branch_in_the_way(self.project, &name).await {
                refused = BringError::Failed(Refusal::NameConflict { name, other }.into());
                continue;
            }
            let there = tip(self.project, &name).await;
            if there.as_deref() == Some(commit) {
                return Ok(name);
            }
            let force = if there.is_some() && there.as_deref() == before { "+" } else { "" };
            let refspec = format!("{force}{commit}:refs/heads/{name}");
            let mut fetch = fetching(self.project, &self.git_dir());
            match self.read(fetch.arg(refspec), BRINGING, "cannot fetch the work").await {
                Ok(_) => return Ok(name),
                Err(why @ BringError::GaveUp(_)) => return Err(why),
                Err(why) if why.is_taken() => refused = why,
                // With `--quiet` git does not say that it was no fast-forward.
                Err(_) if self.has_gone_on(there.as_deref(), commit).await => {
                    refused = BringError::Failed(Refusal::MovedOn(name).into());
                }
                Err(why) => return Err(why),
            }
        }
        Err(refused)
    }

    /// Whether a branch has commits that are not in the history of `commit`, which was fetched
    /// before.
    async fn has_gone_on(&self, branch: Option<&str>, commit: &str) -> bool {
        let Some(branch) = branch else { return false };
        let mut there = git(self.project);
        let is_there =
            run(there.args(["cat-file", "-e", &format!("{commit}^{{commit}}")]), "").await.is_ok();
        let mut ask = git(self.project);
        is_there
            && run(ask.args(["merge-base", "--is-ancestor", branch, commit]), "").await.is_err()
    }

    async fn count(&self, tip: &str) -> Option<u32> {
        let mut count = git(self.project);
        count.args(["rev-list", "--count", &format!("{}..{tip}", self.base?)]);
        run(&mut count, "").await.ok()?.parse().ok()
    }

    /// Returns the commits of other branches and tags, stashes, an interrupted rebase, and commits
    /// that were checked out by their hash.
    fn candidates(
        &self,
        refs: &[(String, String)],
        main: Option<&str>,
        known: &HashSet<String>,
    ) -> Vec<Candidate> {
        let mut seen = BTreeSet::from_iter(main.map(String::from));
        let mut found = vec![];
        let mut add = |commit: String, name: String, what: String| {
            if !known.contains(&commit) && seen.insert(commit.clone()) {
                found.push(Candidate { commit, name, what });
            }
        };
        for (commit, name) in refs {
            if let Some(branch) = name.strip_prefix("refs/heads/") {
                add(commit.clone(), format!("heads/{branch}"), format!("branch {branch}"));
            } else if let Some(tag) =
                name.strip_prefix("refs/tags/").filter(|tag| !tag.ends_with("^{}"))
            {
                add(commit.clone(), format!("tags/{tag}"), format!("tag {tag}"));
            } else if name == "refs/stash" {
                add(commit.clone(), "stash/1".into(), "stash".into());
            } else if let Some(other) = name.strip_prefix("refs/").filter(|other| {
                // Remotes have the commits of their branches, and these names are no refs.
                !other.starts_with("remotes/") && !other.ends_with("^{}")
            }) {
                add(commit.clone(), format!("refs/{other}"), format!("ref {name}"));
            }
        }
        let git_dir = self.git_dir();
        for (at, commit) in
            reflog::reached(&self.log("logs/refs/stash")).into_iter().rev().enumerate()
        {
            add(commit, format!("stash/{}", at + 1), "stash".into());
        }
        for (name, short, what) in [
            ("rebase-merge/orig-head", "rebase", REBASED),
            ("rebase-apply/orig-head", "rebase", REBASED),
            ("rebase-merge/autostash", "autostash", AUTOSTASH),
            ("rebase-apply/autostash", "autostash", AUTOSTASH),
            ("MERGE_AUTOSTASH", "autostash", AUTOSTASH),
        ] {
            let bytes = untrusted_path::read(&git_dir, Path::new(name), HASH_LIMIT).ok().flatten();
            let commit = bytes.and_then(|bytes| git_files::hash(bytes.trim_ascii_end()));
            if let Some(commit) = commit {
                add(commit, short.into(), what.into());
            }
        }
        for (at, commit) in reflog::left_detached(&self.log("logs/HEAD")).into_iter().enumerate() {
            add(commit, format!("detached/{}", at + 1), "commits on no branch".into());
        }
        found
    }

    /// Saves each commit under a name of its own. Refs of an earlier end stay, and are named again.
    async fn bring_others(&self, mut others: Vec<Candidate>, work: &mut WorkHome) {
        let mut more = others.len().saturating_sub(MOST_ASKED);
        others.truncate(MOST_ASKED);
        let mut there = self.list(&self.folder()).await.unwrap_or_default();
        let kept = self.kept(others.iter().map(|other| other.commit.as_str())).await;
        others.retain(|other| !kept.contains(&other.commit));
        let (mut brought, mut gave_up) = (0, false);
        for other in others {
            if let Some((_, name)) = there.iter().find(|(commit, _)| *commit == other.commit) {
                if work.left.len() < MOST_LEFT {
                    work.left.push(LeftWork { name: name.clone(), what: other.what });
                }
                continue;
            }
            if brought == MOST_LEFT || gave_up {
                more += 1;
                continue;
            }
            brought += 1;
            let name = free_ref(&there, &self.folder(), &other);
            let mut fetch = fetching(self.project, &self.git_dir());
            let refspec = format!("{}:{name}", other.commit);
            match self.read(fetch.arg(refspec), AT_ONCE, "it cannot be fetched").await {
                Ok(_) => {
                    there.push((other.commit, name.clone()));
                    work.left.push(LeftWork { name, what: other.what });
                }
                // The next fetch would hang in the same way.
                Err(BringError::GaveUp(why)) => {
                    work.skipped.push(format!("{} ({why})", other.what));
                    gave_up = true;
                }
                // A reflog may name commits that git has deleted long ago.
                Err(why) if other.name.starts_with("detached") => {
                    tracing::debug!(%why, "failed to fetch a commit")
                }
                Err(why) => work.skipped.push(format!("{} ({why})", other.what)),
            }
        }
        if more > 0 {
            work.skipped.push(format!("{more} more branches and stashes"));
        }
    }

    /// Returns those commits that are in the history of a ref of the person's repository. The
    /// dispatch's own folder does not count, because a ref there may be the only one.
    async fn kept<'a>(&self, commits: impl Iterator<Item = &'a str> + Clone) -> HashSet<String> {
        let mut there = git(self.project);
        there.args(["rev-list", "--ignore-missing", "--no-walk"]).args(commits.clone());
        let mut only_here = git(self.project);
        only_here.args(["rev-list", "--ignore-missing"]).args(commits.clone());
        only_here.args(["--not", &format!("--exclude={}*", self.folder()), "--glob=refs/*"]);
        if commits.clone().next().is_none() {
            return HashSet::new();
        }
        // If git cannot say, all of them are saved once more.
        let (Ok(there), Ok(only_here)) = (run(&mut there, "").await, run(&mut only_here, "").await)
        else {
            return HashSet::new();
        };
        let only_here: HashSet<&str> = only_here.lines().collect();
        let there = there.lines().filter(|commit| !only_here.contains(commit));
        there.map(String::from).collect()
    }

    /// Names the work that earlier ends have saved. The agent may no longer have it, and no other
    /// ref leads to it.
    pub async fn name_earlier(&self, work: &mut WorkHome) {
        let mut there = self.list(&self.folder()).await.unwrap_or_default();
        there.retain(|(_, name)| !work.left.iter().any(|left| left.name == *name));
        there.truncate(MOST_ASKED);
        let kept = self.kept(there.iter().map(|(commit, _)| commit.as_str())).await;
        there.retain(|(commit, _)| !kept.contains(commit));
        let more = there.len().saturating_sub(MOST_LEFT);
        let before = self.before.map(|before| before.left.as_slice()).unwrap_or_default();
        for (_, name) in there.into_iter().take(MOST_LEFT) {
            let what = before.iter().find(|left| left.name == name).map(|left| left.what.as_str());
            let what = what
                .unwrap_or_else(|| described(name.strip_prefix(&self.folder()).unwrap_or(&name)));
            let what = format!("{}{EARLIER}", what.trim_end_matches(EARLIER));
            work.left.push(LeftWork { name, what });
        }
        if more > 0 {
            let (name, what) =
                (format!("{LEFT}/{}", self.id), format!("{more} more refs{EARLIER}"));
            work.left.push(LeftWork { name, what });
        }
    }

    async fn bring_uncommitted(&self, head: &str, work: &mut WorkHome) {
        match leftover::gather(self.project, self.clone, head, self.id, self.given_up()).await {
            Ok(Leftover { kept, skipped }) => {
                work.left.extend(kept);
                work.skipped.extend(skipped);
            }
            Err(why) => work.skipped.push(format!("uncommitted files ({why})")),
        }
    }
}

/// Returns the names for the branch, the best first.
fn names<'a>(branch: &'a str, id: &'a str) -> impl Iterator<Item = String> + 'a {
    let beside = format!("muleteer-{id}");
    [branch.to_string(), beside.clone()]
        .into_iter()
        .chain((2..MOST_NAMES).map(move |number| format!("{beside}-{number}")))
}

/// Returns a ref that no other commit has, and that git can make beside the existing ones.
fn free_ref(there: &[(String, String)], folder: &str, other: &Candidate) -> String {
    let is_below = |name: &str, above: &str| {
        name.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
    };
    let is_free = |name: &String| {
        let is_in_the_way =
            |taken: &str| taken == name || is_below(taken, name) || is_below(name, taken);
        !there.iter().any(|(_, taken)| is_in_the_way(taken))
    };
    let wanted = format!("{folder}{}", other.name);
    let numbered = (2..MOST_NAMES).map(|number| format!("{wanted}-{number}"));
    let mut names = std::iter::once(wanted.clone()).chain(numbered);
    names.find(is_free).unwrap_or_else(|| format!("{folder}commits/{}", other.commit))
}

/// Describes a ref in a dispatch's folder by its name, if no event does.
fn described(name: &str) -> &'static str {
    let of = name.split(['/', '-']).next().unwrap_or_default();
    match of {
        "heads" => "a branch",
        "tags" => "a tag",
        "stash" => "stash",
        "refs" => "another ref",
        "rebase" => REBASED,
        "autostash" => AUTOSTASH,
        "uncommitted" => "uncommitted changes",
        "staged" => "changes that were staged and then changed again",
        _ => "commits on no branch",
    }
}

#[cfg(test)]
mod tests;
