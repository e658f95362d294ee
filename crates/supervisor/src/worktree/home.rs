//! Brings home what an agent did in its clone: its commits as a branch of the person's repository, and what it left
//! elsewhere (other branches, stashes, a detached HEAD, uncommitted files) as refs below `refs/muleteer/left/<id>`.
//!
//! git works in the person's repository and in one of our own, never in the clone: its hooks, filters and
//! configuration are its agent's.

use super::leftover::{self, Leftover};
use super::{UPLOAD_PACK, branch_in_the_way, fetching, git, is_clone, run, run_within, tip};
use crate::beneath;
use crate::runs::reflog;
use muleteer_model::work::{LeftWork, WorkHome};
use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where work is kept that is on no branch.
pub const LEFT: &str = "refs/muleteer/left";
/// A clone answers at once where its refs are, unless its agent has seen to it that it never does.
const AT_ONCE: Duration = Duration::from_secs(120);
/// Names that are tried for the branch where others are taken.
const MOST_NAMES: u32 = 10;
/// Of more branches, stashes and detached commits than these, the rest is named and stays in the clone.
const MOST_LEFT: usize = 50;
/// A reflog that is longer is not read.
const REFLOG_LIMIT: u64 = 4 << 20;
const HASH_LIMIT: u64 = 100;

/// The clone of a dispatch that has ended.
#[derive(Debug, Clone, Copy)]
pub struct Homecoming<'a> {
    pub project: &'a Path,
    pub clone: &'a Path,
    pub id: &'a str,
    /// The commit that the clone began at, where that is known.
    pub base: Option<&'a str>,
    /// The branch that was chosen when the dispatch was made.
    pub branch: &'a str,
    /// What came home when it had ended before.
    pub before: Option<&'a WorkHome>,
}

/// A commit of the clone that may be on no branch of the person's.
struct Candidate {
    commit: String,
    /// Below the dispatch's own folder of refs.
    name: String,
    what: String,
}

impl Homecoming<'_> {
    /// Brings everything home. Safe to repeat after a crash.
    ///
    /// # Errors
    /// The commits could not be brought: worth another try, for another git may hold a lock.
    pub async fn bring(&self) -> Result<WorkHome, String> {
        let mut work = WorkHome { branch: self.branch.into(), ..WorkHome::default() };
        let mut head = self.base.map(String::from);
        if is_clone(self.clone) {
            let refs = self.refs().await?;
            let at = |name: &str| refs.iter().find(|(_, known)| known == name).map(|(commit, _)| commit.clone());
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
            work.trouble = Some("the git directory of the clone was removed, with the commits in it".into());
        } else {
            work.trouble = Some("the clone was removed".into());
            return Ok(work);
        }
        match head {
            Some(head) => self.bring_uncommitted(&head, &mut work).await,
            None => work.skipped.push("uncommitted files: the commit they are based on is not known".into()),
        }
        Ok(work)
    }

    fn git_dir(&self) -> PathBuf {
        self.clone.join(".git")
    }

    /// A reflog of the clone; nothing of one that cannot be read.
    fn log(&self, name: &str) -> String {
        let log = beneath::read(&self.git_dir(), Path::new(name), REFLOG_LIMIT).ok().flatten();
        String::from_utf8_lossy(&log.unwrap_or_default()).into_owned()
    }

    /// What the clone's refs are at, with HEAD among them.
    async fn refs(&self) -> Result<Vec<(String, String)>, String> {
        let mut ask = git(self.project);
        ask.args(["ls-remote", "--upload-pack", UPLOAD_PACK]).arg(self.git_dir());
        let said = run_within(&mut ask, AT_ONCE, "cannot look at the clone").await?;
        let pairs = said.lines().filter_map(|line| line.split_once('\t'));
        Ok(pairs.map(|(commit, name)| (commit.to_string(), name.to_string())).collect())
    }

    /// The commits that refs of the person's repository are at.
    async fn known(&self) -> Result<HashSet<String>, String> {
        let mut list = git(self.project);
        list.args(["for-each-ref", "--format=%(objectname)"]);
        let mut known: HashSet<String> =
            run(&mut list, "cannot list the branches").await?.lines().map(String::from).collect();
        known.extend(self.base.map(String::from));
        Ok(known)
    }

    /// The tip of what the agent did: what is checked out, or the branch that it was given if it has left that. `None`
    /// if neither has a commit of its own.
    async fn main(&self, head: Option<String>, own: Option<String>, known: &HashSet<String>) -> Option<String> {
        let made: HashSet<String> = reflog::made(&self.log("logs/HEAD")).into_iter().collect();
        for tip in [head, own].into_iter().flatten() {
            if Some(tip.as_str()) == self.base {
                continue;
            }
            // Two agents may make the same commit in the same second: each made it.
            let brought = self.before.is_some_and(|before| before.commit.as_deref() == Some(&tip));
            if brought || made.contains(&tip) || !(known.contains(&tip) && self.is_elsewhere(&tip).await) {
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
        let kept = format!("{LEFT}/{}/", self.id);
        said.lines().any(|name| {
            let own = names(self.branch, self.id).any(|own| name == format!("refs/heads/{own}"));
            !own && !name.starts_with(&kept)
        })
    }

    /// Brings a commit as the branch that was chosen, or beside it: one that a person has gone on with, or that is
    /// checked out, is not moved.
    async fn bring_branch(&self, commit: &str) -> Result<String, String> {
        let before = self.before.and_then(|before| before.commit.as_deref());
        let mut refused = String::new();
        for name in names(self.branch, self.id) {
            if let Some(other) = branch_in_the_way(self.project, &name).await {
                refused = format!("a branch {other} leaves git no room for {name}");
                continue;
            }
            let there = tip(self.project, &name).await;
            if there.as_deref() == Some(commit) {
                return Ok(name);
            }
            let force = if there.is_some() && there.as_deref() == before { "+" } else { "" };
            let refspec = format!("{force}{commit}:refs/heads/{name}");
            match run(fetching(self.project, &self.git_dir()).arg(refspec), "cannot fetch the work").await {
                Ok(_) => return Ok(name),
                Err(why) if is_taken(&why) => refused = why,
                // Asked to be quiet, git does not say that it was no fast-forward.
                Err(_) if self.has_gone_on(there.as_deref(), commit).await => {
                    refused = format!("the branch {name} has commits of somebody else");
                }
                Err(why) => return Err(why),
            }
        }
        Err(refused)
    }

    /// A branch has what the commit does not have in its history; the commit was fetched by then.
    async fn has_gone_on(&self, branch: Option<&str>, commit: &str) -> bool {
        let Some(branch) = branch else { return false };
        let mut there = git(self.project);
        let is_there = run(there.args(["cat-file", "-e", &format!("{commit}^{{commit}}")]), "").await.is_ok();
        let mut ask = git(self.project);
        is_there && run(ask.args(["merge-base", "--is-ancestor", branch, commit]), "").await.is_err()
    }

    async fn count(&self, tip: &str) -> Option<u32> {
        let mut count = git(self.project);
        count.args(["rev-list", "--count", &format!("{}..{tip}", self.base?)]);
        run(&mut count, "").await.ok()?.parse().ok()
    }

    /// Commits of other branches and tags, stashes, a rebase that was not ended, and what was checked out by its hash.
    fn candidates(&self, refs: &[(String, String)], main: Option<&str>, known: &HashSet<String>) -> Vec<Candidate> {
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
            } else if let Some(tag) = name.strip_prefix("refs/tags/").filter(|tag| !tag.ends_with("^{}")) {
                add(commit.clone(), format!("tags/{tag}"), format!("tag {tag}"));
            } else if name == "refs/stash" {
                add(commit.clone(), "stash/1".into(), "stash".into());
            }
        }
        let git_dir = self.git_dir();
        for (at, commit) in reflog::reached(&self.log("logs/refs/stash")).into_iter().rev().enumerate() {
            add(commit, format!("stash/{}", at + 1), "stash".into());
        }
        for name in ["rebase-merge/orig-head", "rebase-apply/orig-head"] {
            let bytes = beneath::read(&git_dir, Path::new(name), HASH_LIMIT).ok().flatten();
            let commit = bytes.and_then(|bytes| crate::runs::hash(&bytes));
            if let Some(commit) = commit {
                add(commit, "rebase".into(), "the branch that was being rebased".into());
            }
        }
        for (at, commit) in reflog::left_detached(&self.log("logs/HEAD")).into_iter().enumerate() {
            add(commit, format!("detached/{}", at + 1), "commits on no branch".into());
        }
        found
    }

    async fn bring_others(&self, others: Vec<Candidate>, work: &mut WorkHome) {
        let mut left = vec![];
        for other in others {
            if !self.is_kept(&other.commit).await {
                left.push(other);
            }
        }
        for other in left.iter().take(MOST_LEFT) {
            let name = format!("{LEFT}/{}/{}", self.id, other.name);
            let refspec = format!("+{}:{name}", other.commit);
            let mut fetch = fetching(self.project, &self.git_dir());
            match run_within(fetch.arg(refspec), AT_ONCE, "it cannot be fetched").await {
                Ok(_) => work.left.push(LeftWork { name, what: other.what.clone() }),
                // A reflog may name what git has forgotten long since.
                Err(why) if other.name.starts_with("detached") => tracing::debug!(%why, "failed to fetch a commit"),
                Err(why) => work.skipped.push(format!("{} ({why})", other.what)),
            }
        }
        if left.len() > MOST_LEFT {
            work.skipped.push(format!("{} more branches and stashes", left.len() - MOST_LEFT));
        }
    }

    /// Whether a ref of the person's repository has the commit in its history.
    async fn is_kept(&self, commit: &str) -> bool {
        let mut list = git(self.project);
        list.args(["for-each-ref", "--count=1", "--format=%(refname)", "--contains", commit]);
        run(&mut list, "").await.is_ok_and(|said| !said.is_empty())
    }

    async fn bring_uncommitted(&self, head: &str, work: &mut WorkHome) {
        match leftover::gather(self.project, self.clone, head, self.id).await {
            Ok(Leftover { kept, skipped }) => {
                work.left.extend(kept);
                work.skipped.extend(skipped);
            }
            Err(why) => work.skipped.push(format!("uncommitted files ({why})")),
        }
    }
}

/// The names for the branch, the best first.
fn names<'a>(branch: &'a str, id: &'a str) -> impl Iterator<Item = String> + 'a {
    let beside = format!("muleteer-{id}");
    [branch.to_string(), beside.clone()]
        .into_iter()
        .chain((2..MOST_NAMES).map(move |number| format!("{beside}-{number}")))
}

/// What git says where a branch cannot be moved to a commit, whenever it is asked.
fn is_taken(why: &str) -> bool {
    ["non-fast-forward", "refusing to fetch into", "cannot create '", "exists; cannot create"]
        .iter()
        .any(|said| why.contains(said))
}
