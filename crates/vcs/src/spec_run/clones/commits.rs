//! The commits of a clone: they are saved in the private repository, and compared with the target.

use crate::command::{git, run};
use crate::error::{Damage, RepoError};
use crate::reflog;
use crate::spec_run::clones::{
    HASH_LIMIT, LOST, Work, base, known, note, outlived_the_machine, remember, remember_own,
};
use crate::spec_run::large_files;
use crate::spec_run::private_repo::{self, LEFT, WORK};
use crate::spec_run::{RunRepos, name_of};
use crate::untrusted_path;
use crate::worktree::is_clone;
use std::collections::BTreeSet;
use std::path::Path;

/// At most this many commits are checked, the newest first.
const COMMITS_LIMIT: usize = 10_000;
/// A longer reflog is not read.
const REFLOG_LIMIT: u64 = 4 << 20;
/// A clone with more branches is never removed, because some of its work would be lost.
const BRANCHES_LIMIT: usize = 50;

const LOG: &str = "logs/HEAD";
const BESIDE: &str = "worktrees";

/// Saves the clone's commits in the private repository, and says whether the target has them.
pub async fn work(repos: &RunRepos, dir: &Path, target: &str) -> Result<Work, RepoError> {
    let clone = name_of(dir);
    if !is_clone(dir) {
        if dir.is_dir()
            && let Some(base) = base(repos, &clone)
        {
            // Nobody can know what its agent pushed before it removed the git directory.
            note(repos, LOST, &clone, &base)?;
        }
        return Ok(Work::new(0, true));
    }
    let _one = repos.git.lock().await;
    private_repo::ensure(repos, target, None).await?;
    let found = look(repos, dir, target).await?;
    let unknown = || known(repos, "own", &clone).is_none() && outlived_the_machine(repos, dir);
    if (found.unreadable.is_some() || forgot(&dir.join(".git")) || unknown())
        && let Some(base) = base(repos, &clone)
    {
        note(repos, LOST, &clone, &base)?;
    }
    Ok(found)
}

/// Returns the work of a clone that cannot be read, or the error if the disk is full. A full disk
/// breaks no clone: its agent has not failed, and the run waits or ends with that error.
fn unreadable(why: RepoError) -> Result<Work, RepoError> {
    if why.is_disk_full() {
        return Err(why);
    }
    Ok(Work { unreadable: Some(why.to_string()), ..Work::new(0, false) })
}

async fn look(repos: &RunRepos, dir: &Path, target: &str) -> Result<Work, RepoError> {
    let clone = name_of(dir);
    let tip = crate::spec_run::hub::commit(repos, target).await;
    let base = base(repos, &clone);
    let head = match bring(repos, dir, &[&tip, &base, &known(repos, "heads", &clone)]).await {
        Ok(head) => head,
        Err(why) => return unreadable(why),
    };
    remember(repos, &clone, &head)?;
    let branch = format!("refs/heads/{target}");
    let reached = async |commit: &str| {
        Some(commit) == tip.as_deref()
            || Some(commit) == base.as_deref()
            || private_repo::is_ancestor(repos, commit, &branch).await
    };
    let on_target = reached(&head).await;
    let git_dir = dir.join(".git");
    let others = match others(repos, &git_dir, branch_of(&clone), &head).await {
        Ok(others) => others,
        Err(why) => return unreadable(why),
    };
    if others.len() > BRANCHES_LIMIT {
        return unreadable(
            Damage::TooManyBranches { count: others.len(), limit: BRANCHES_LIMIT }.into(),
        );
    }
    let mut whole = on_target;
    for other in &others {
        if reached(other).await {
            continue;
        }
        whole = false;
        let name = format!("{LEFT}/{clone}/{other}");
        if let Err(why) =
            private_repo::fetch(repos, &git_dir, other, &[&name], "cannot save a branch").await
        {
            return unreadable(why);
        }
    }
    let tips: Vec<String> = [&head].into_iter().chain(&others).chain(&tip).cloned().collect();
    large_files::gather(repos, dir, &tips, base.as_deref()).await?;
    // After a rebase the range also has the commits of others.
    let since = match &base {
        Some(base) if *base == head => vec![],
        Some(base) => {
            let mut list = git(&repos.paths.keep());
            list.args([
                "rev-list",
                &format!("--max-count={COMMITS_LIMIT}"),
                &format!("{base}..{head}"),
            ]);
            run(&mut list, "cannot count commits").await?.lines().map(String::from).collect()
        }
        None => vec![head.clone()],
    };
    let made = made_in(&git_dir, branch_of(&clone));
    let mut count = since.len();
    let mut own = since
        .iter()
        .find(|commit| made.as_ref().is_none_or(|made| made.contains(*commit)))
        .cloned();
    if let (None, Some(made), Some(base)) = (&own, &made, &base) {
        // The agent may have made and pushed it on another branch, or moved back since.
        let mut list = git(&repos.paths.keep());
        list.args([
            "rev-list",
            &format!("--max-count={COMMITS_LIMIT}"),
            &format!("{base}..{branch}"),
        ]);
        let pushed = run(&mut list, "cannot count commits").await?;
        let pushed: Vec<&str> = pushed.lines().filter(|commit| made.contains(*commit)).collect();
        own = pushed.first().map(ToString::to_string);
        count = count.max(pushed.len());
    }
    if let Some(own) = &own {
        remember_own(repos, &clone, own)?;
    }
    Ok(Work { whole: whole && own.is_some(), ..Work::new(count as u32, on_target) })
}

/// Returns the branch of a clone: `bead-<id>-<number>` begins on `bead-<id>`.
fn branch_of(clone: &str) -> &str {
    clone.rsplit_once('-').map_or(clone, |(branch, _)| branch)
}

/// Whether the reflog lost entries after a power cut: it exists, but it does not lead to the
/// current HEAD.
fn forgot(git_dir: &Path) -> bool {
    let Ok(Some(log)) = untrusted_path::read(git_dir, Path::new(LOG), REFLOG_LIMIT) else {
        return false;
    };
    let newest = log.trim_ascii_end().rsplit(|byte| *byte == b'\n').next();
    let newest =
        newest.and_then(|line| private_repo::hash(line.split(|byte| *byte == b' ').nth(1)?));
    newest.is_none() || private_repo::head(git_dir).is_some_and(|head| newest != Some(head))
}

/// Returns the commits that were made in a clone, by its reflogs; `None` if it has no reflog.
fn made_in(git_dir: &Path, branch: &str) -> Option<BTreeSet<String>> {
    let mut logs = vec![LOG.to_string(), format!("logs/refs/heads/{branch}")];
    // Linked working directories that the agent has made.
    let beside = std::fs::read_dir(git_dir.join(BESIDE))
        .into_iter()
        .flatten()
        .flatten()
        .take(BRANCHES_LIMIT);
    logs.extend(
        beside.filter_map(|entry| Some(format!("{BESIDE}/{}/{LOG}", entry.file_name().to_str()?))),
    );
    let read =
        |name: &String| untrusted_path::read(git_dir, Path::new(name), REFLOG_LIMIT).ok().flatten();
    let found: Vec<_> = logs.iter().filter_map(read).collect();
    (!found.is_empty())
        .then(|| found.iter().flat_map(|log| reflog::made(&String::from_utf8_lossy(log))).collect())
}

/// Returns the clone's other tips: its branches, and the branch that is being rebased.
async fn others(
    repos: &RunRepos,
    git_dir: &Path,
    branch: &str,
    head: &str,
) -> Result<BTreeSet<String>, RepoError> {
    let rebased = ["rebase-merge/orig-head", "rebase-apply/orig-head"].iter().filter_map(|name| {
        private_repo::hash(&untrusted_path::read(git_dir, Path::new(name), HASH_LIMIT).ok()??)
    });
    let mut found: BTreeSet<String> = rebased.collect();
    match only_branch(git_dir, branch) {
        Some(commit) => drop(found.insert(commit)),
        None => found.extend(private_repo::branches(repos, git_dir).await?),
    }
    found.remove(head);
    Ok(found)
}

/// Returns the commit of the clone's branch if it has no other new branch; `None` means: ask git.
fn only_branch(git_dir: &Path, branch: &str) -> Option<String> {
    let packed = untrusted_path::read(git_dir, Path::new("packed-refs"), REFLOG_LIMIT).ok()??;
    let packed = packed
        .split(|byte| *byte == b'\n')
        .filter(|line| line.windows(12).any(|part| part == b" refs/heads/"));
    let mut loose = std::fs::read_dir(git_dir.join("refs/heads")).ok()?;
    let alone = loose.all(|entry| entry.is_ok_and(|entry| entry.file_name() == branch));
    (alone && packed.count() <= 1)
        .then(|| private_repo::loose(git_dir, &format!("refs/heads/{branch}")))?
}

/// Fetches the clone's HEAD into the private repository, unless it is one of `there`, which are
/// there already.
async fn bring(
    repos: &RunRepos,
    dir: &Path,
    there: &[&Option<String>],
) -> Result<String, RepoError> {
    let (clone, git_dir, what) =
        (name_of(dir), dir.join(".git"), "cannot inspect the agent's commits");
    let head = match private_repo::head(&git_dir) {
        Some(head) => head,
        None => private_repo::asked(repos, &git_dir, "HEAD").await?.ok_or(Damage::NoHead)?,
    };
    if !there.iter().any(|one| one.as_ref() == Some(&head)) {
        private_repo::fetch(repos, &git_dir, &head, &[&format!("+{WORK}/{clone}")], what).await?;
    }
    Ok(head)
}

/// Whether an earlier attempt at the bead has brought commits of its own to the target. If a clone
/// could not be read, any new commit on the target may be its own, because nobody can tell. Then a
/// later agent that finds nothing left to do is believed.
pub async fn was_pushed(repos: &RunRepos, bead: &str, target: &str) -> Result<bool, RepoError> {
    let target = format!("refs/heads/{target}");
    for clone in attempts(repos, "own", bead) {
        if let Some(own) = known(repos, "own", &clone)
            && private_repo::is_ancestor(repos, &own, &target).await
        {
            return Ok(true);
        }
    }
    for clone in attempts(repos, LOST, bead) {
        let Some(base) = known(repos, LOST, &clone) else { continue };
        let mut list = git(&repos.paths.keep());
        list.args(["rev-list", "--max-count=1", &format!("{base}..{target}")]);
        if !run(&mut list, "cannot inspect the pushes").await?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the clones of a bead that have a note in this folder.
fn attempts(repos: &RunRepos, folder: &str, bead: &str) -> Vec<String> {
    let prefix = format!("bead-{bead}-");
    let entries = std::fs::read_dir(repos.paths.private.join(folder));
    let names = entries.into_iter().flatten().flatten();
    let is_one = |clone: &String| {
        let number = clone.strip_prefix(&prefix).unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    names.filter_map(|entry| entry.file_name().into_string().ok()).filter(is_one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::CommandError;

    #[test]
    fn full_disk_breaks_no_clone() {
        let purpose = "cannot inspect the agent's commits";
        let failed = |stderr: &str| CommandError::failed(purpose, ["fetch"], stderr.as_bytes());
        let full = "error: file write error: No space left on device\nfatal: index-pack failed\n";
        let why = unreadable(failed(full).into()).expect_err("the clone is not broken");
        assert!(why.is_disk_full(), "{why}");
        let broken = unreadable(failed("fatal: bad object HEAD").into()).expect("it is broken");
        assert_eq!(broken.unreadable, Some(format!("{purpose}: fatal: bad object HEAD")));
        assert!(!broken.on_target && broken.commits == 0);
    }
}
