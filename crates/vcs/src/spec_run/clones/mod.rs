//! The private clones of a run's agents (docs/design/git-and-clones.md). No git runs *in* a clone
//! once its agent has started. The harness reads it with its private repository, an index of its
//! own, and the clone as a plain directory of files.

mod index;

use crate::command::{AGENT_EMAIL, AGENT_NAME, git, own_config, run};
use crate::error::{Damage, FileError, Refusal, RepoError};
use crate::reflog;
use crate::spec_run::RunRepos;
use crate::spec_run::private_repo::{self, LEFT, RESCUE, WORK};
use crate::untrusted_path;
use crate::user_repo::large_files::{self, Large};
use crate::worktree::{exclude, free_name, is_clone};
use index::Index;
use muleteer_process::clock;
use muleteer_process::fault;
use muleteer_store::atomic::{create_dir_durable, put_dir, write_atomic};
use muleteer_store::removal;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The limit of a file with one hash and a newline.
const HASH_LIMIT: u64 = 100;
/// At most this many commits are checked, the newest first.
const COMMITS_LIMIT: usize = 10_000;
/// A longer reflog is not read.
const REFLOG_LIMIT: u64 = 4 << 20;
/// A clone with more branches is never removed, because some of its work would be lost.
const BRANCHES_LIMIT: usize = 50;

/// The timeout for saving uncommitted files.
const RESCUING: Duration = Duration::from_secs(5 * 60);

/// The folder with the base commits of clones that could not be read, by the clones' names.
const LOST: &str = "lost";
const LOG: &str = "logs/HEAD";
const BESIDE: &str = "worktrees";

/// The state of a clone's commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// The number of commits since the clone was made.
    pub commits: u32,
    pub on_target: bool,
    /// Some of these commits were made here, and the target has all that were. No branch and no
    /// interrupted rebase of the clone has more. An agent that was interrupted in this state had
    /// pushed all its work.
    pub whole: bool,
    /// Why the clone cannot be read, if its agent has damaged it.
    pub unreadable: Option<String>,
}

impl Work {
    pub fn new(commits: u32, on_target: bool) -> Self {
        Self { commits, on_target, whole: commits > 0 && on_target, unreadable: None }
    }
}

fn name_of(dir: &Path) -> String {
    dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn write(path: &Path, text: &str) -> Result<(), RepoError> {
    make_parent(path)?;
    Ok(std::fs::write(path, text).map_err(FileError::at(path))?)
}

/// Saves a commit for a clone in one of the run's private folders.
fn note(repos: &RunRepos, folder: &str, clone: &str, commit: &str) -> Result<(), RepoError> {
    let folder = repos.paths.private.join(folder);
    create_dir_durable(&folder, 0o700)?;
    Ok(write_atomic(&folder.join(clone), commit.as_bytes(), 0o600)?)
}

fn known(repos: &RunRepos, folder: &str, clone: &str) -> Option<String> {
    let path = repos.paths.private.join(folder).join(clone);
    private_repo::hash(&untrusted_path::read_file(&path, HASH_LIMIT).ok()?)
}

/// Returns the commit that the clone began at.
fn base(repos: &RunRepos, clone: &str) -> Option<String> {
    known(repos, "bases", clone)
}

/// Saves the HEAD of a clone, whose commits are in the private repository.
pub fn remember(repos: &RunRepos, clone: &str, head: &str) -> Result<(), RepoError> {
    note(repos, "heads", clone, head)
}

/// Saves the newest commit that was made in a clone.
pub fn remember_own(repos: &RunRepos, clone: &str, commit: &str) -> Result<(), RepoError> {
    note(repos, "own", clone, commit)
}

/// Makes a clone of the target for an agent, on the branch `branch` if given, else detached. The
/// directory of an attempt whose agent never started is made again. With `reuse` it stays, unless
/// the machine restarted since: then it is made again from its commits, because nobody knows which
/// of its other files reached the disk. Returns a message if something was moved aside; the caller
/// records it as a fault.
pub async fn worktree(
    repos: &RunRepos,
    dir: &Path,
    target: &str,
    branch: Option<&str>,
    reuse: bool,
) -> Result<Option<String>, RepoError> {
    let clone = name_of(dir);
    let mut fault = None;
    if reuse && dir.is_dir() {
        let whole = is_clone(dir);
        if whole && !outlived_the_machine(repos, dir) {
            return Ok(None);
        }
        match discard(repos, dir, target).await {
            Err(why) if why.is_disk_full() => return Err(why),
            Err(why) => fault = Some(set_aside(dir, &why.to_string())?),
            Ok(kept) if !whole => {
                let kept = kept.unwrap_or_else(|| "nothing: all files were committed".into());
                fault = Some(format!("its agent removed the git directory; saved files: {kept}"));
            }
            Ok(_) => {}
        }
    }
    // This also applies if the daemon was killed after it removed the clone.
    let gone_on_with =
        if reuse { known(repos, "heads", &clone).zip(base(repos, &clone)) } else { None };
    let tip = crate::spec_run::hub::tip(repos, target).await?;
    let form = form(repos, target).await?;
    let (begin, base) = gone_on_with.unwrap_or_else(|| (tip.clone(), tip.clone()));
    let partial = dir.with_file_name(format!(".{clone}.partial"));
    remove(&partial).await?;
    remove(dir).await?;
    copy(&form, &partial.join(".git")).map_err(FileError::at(&partial))?;
    write(
        &partial.join(".git/packed-refs"),
        &format!(
            "# pack-refs with: peeled fully-peeled sorted \n{tip} refs/heads/{target}\n\
             {tip} refs/remotes/origin/{target}\n"
        ),
    )?;
    let mut checkout = git(&partial);
    checkout.args(["checkout", "--quiet"]);
    match branch {
        Some(name) => checkout.arg("-B").arg(format!("bead-{name}")),
        None => checkout.arg("--detach"),
    };
    run(checkout.arg(&begin), "cannot check the clone out").await?;
    if !reuse {
        // Notes about an earlier clone of that name do not apply to this one.
        for folder in ["heads", "own", LOST] {
            let _ = std::fs::remove_file(repos.paths.private.join(folder).join(&clone));
        }
    }
    note(repos, "bases", &clone, &base)?;
    std::fs::rename(&partial, dir).map_err(FileError::at(dir))?;
    Ok(fault)
}

/// Whether the machine restarted since the clone was made. git does not sync files that it checks
/// out, and an agent does not sync its own.
pub fn outlived_the_machine(repos: &RunRepos, dir: &Path) -> bool {
    made_at(repos, dir).is_some_and(clock::is_before_boot)
}

/// Returns the time at which the clone was made and nobody had written to it yet.
fn made_at(repos: &RunRepos, dir: &Path) -> Option<SystemTime> {
    let noted = repos.paths.private.join("bases").join(name_of(dir));
    std::fs::metadata(noted).and_then(|meta| meta.modified()).ok()
}

/// Moves a clone aside, because it may hold work that exists nowhere else. Returns a message.
fn set_aside(dir: &Path, why: &str) -> Result<String, RepoError> {
    let aside = free_name(dir, "broken");
    std::fs::rename(dir, &aside).map_err(FileError::at(dir))?;
    Ok(format!("it cannot be reused ({why}); moved it to {}", aside.display()))
}

/// Returns the git directory that every clone of the run is copied from. It is made once: asking
/// git for one takes longer than the rest of an agent's start.
async fn form(repos: &RunRepos, target: &str) -> Result<PathBuf, RepoError> {
    let _one = repos.git.lock().await;
    let form = repos.paths.private.join("clone");
    if form.join("HEAD").exists() {
        return Ok(form);
    }
    let partial = repos.paths.private.join(".clone.partial");
    remove(&partial).await?;
    let own = repos.paths.keep();
    let format =
        run(git(&own).args(["rev-parse", "--show-object-format"]), "cannot make a clone").await?;
    let format = format!("--object-format={format}");
    run(
        git(&own).args(["init", "--quiet", "--template=", &format]).arg(&partial),
        "cannot make a clone",
    )
    .await?;
    let hub = repos.paths.hub().display().to_string();
    let name = format!("refs/heads/{target}");
    run(git(&partial).args(["symbolic-ref", "HEAD", &name]), "cannot make a clone").await?;
    let user = own_config(&repos.repo, "user.name").await;
    let email = own_config(&repos.repo, "user.email").await;
    for (key, value) in [
        ("user.name", user.unwrap_or_else(|| AGENT_NAME.into())),
        ("user.email", email.unwrap_or_else(|| AGENT_EMAIL.into())),
        ("remote.origin.url", hub),
        ("remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*".into()),
        (&format!("branch.{target}.remote"), "origin".into()),
        (&format!("branch.{target}.merge"), name),
    ] {
        run(git(&partial).args(["config", key]).arg(value), "cannot configure the clone").await?;
    }
    let made = partial.join(".git");
    write(&made.join("objects/info/alternates"), &format!("{}\n", own.join("objects").display()))?;
    if let Ok(roots) = std::fs::read_to_string(own.join(private_repo::SHALLOW)) {
        write(&made.join(private_repo::SHALLOW), &roots)?;
    }
    exclude(&made).map_err(FileError::at(&made))?;
    put_dir(&made, &form)?;
    remove(&partial).await?;
    Ok(form)
}

/// Copies files and folders; a new git directory has nothing else.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()))?;
        } else if kind.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

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

/// Whether the clone has changed or untracked files; `.gitignore` is obeyed.
pub async fn is_dirty(repos: &RunRepos, dir: &Path) -> Result<bool, RepoError> {
    let base = base(repos, &name_of(dir));
    match changes(repos, dir, base.as_deref()).await {
        Err(why) if why.exceeds_output() => {
            tracing::warn!(dir = %dir.display(), "a clone has too many untracked files to list");
            Ok(true)
        }
        changes => Ok(!changes?.is_empty()),
    }
}

async fn changes(repos: &RunRepos, dir: &Path, base: Option<&str>) -> Result<String, RepoError> {
    const WHAT: &str = "cannot compare";
    if !dir.is_dir() {
        return Ok(String::new());
    }
    let index = Index::new(repos, dir);
    let base = base.unwrap_or("--empty");
    run(index.git(repos, dir).args(["read-tree", base]), "cannot read the tree").await?;
    let left_out = index.leave_out_large(repos, dir, base).await?;
    let left_out = left_out.all.iter().map(|one| format!("?? {}", one.path.display()));
    // The status compares with the commit as well, because a new index does not know deleted files.
    // A nested repository is ignored: its git would obey its own configuration.
    let status = [
        "status",
        "--porcelain",
        // The branch line comes first, because `run` trims the beginning of the first line.
        "--branch",
        "--untracked-files=normal",
        "--no-renames",
        "--ignore-submodules=all",
    ];
    let listed = run(index.git(repos, dir).args(status), WHAT).await.map_err(RepoError::from);
    let text = match listed {
        Err(why) if !why.is_disk_full() && !why.exceeds_output() => {
            // git fails on some attributes.
            run(index.plain(repos, dir, base).args(status), WHAT).await?
        }
        text => text?,
    };
    Ok(text
        .lines()
        .filter(|line| !line.starts_with("## "))
        .filter(|line| {
            !line.starts_with("M ") && !line.starts_with("A ") && !line.starts_with("D ")
        })
        .map(String::from)
        .chain(left_out)
        .collect::<Vec<_>>()
        .join("\n"))
}

/// Saves the uncommitted files of a clone as a commit. Returns its ref, and the files that are too
/// large to save.
async fn rescue(repos: &RunRepos, dir: &Path) -> Result<(Option<String>, Vec<Large>), RepoError> {
    let clone = name_of(dir);
    let head = known(repos, "heads", &clone).or_else(|| base(repos, &clone));
    let Some(head) = head else { return Ok((None, vec![])) };
    let changes = match changes(repos, dir, Some(&head)).await {
        // The clone is the only place that has them, so it stays.
        Err(why) if why.exceeds_output() => return Err(Refusal::TooManyFiles.into()),
        changes => changes?,
    };
    if changes.is_empty() {
        return Ok((None, vec![]));
    }
    let what = "cannot save the uncommitted changes";
    let index = Index::new(repos, dir);
    run(index.git(repos, dir).args(["read-tree", &head]), "cannot read the tree").await?;
    index.forget_submodules(repos, dir, &head).await?;
    let left_out = index.leave_out_large(repos, dir, &head).await?;
    index.add_all(repos, dir, &head, (RESCUING, what)).await?;
    index.forget(repos, dir, &head, &left_out.new).await?;
    let tree = run(index.plain(repos, dir, &head).args(["write-tree"]), what).await?;
    if !left_out.all.is_empty() {
        let before = format!("{head}^{{tree}}");
        let before = run(git(&repos.paths.keep()).args(["rev-parse", &before]), what).await?;
        if before == tree {
            return Ok((None, left_out.all));
        }
    }
    let mut commit = git(&repos.paths.keep());
    for role in ["AUTHOR", "COMMITTER"] {
        commit
            .env(format!("GIT_{role}_NAME"), "Muleteer")
            .env(format!("GIT_{role}_EMAIL"), "rescue@muleteer.invalid");
    }
    let message = format!("uncommitted changes of {clone}");
    let commit =
        run(commit.args(["commit-tree", &tree, "-p", &head, "-m", &message]), what).await?;
    let name = format!("{RESCUE}/{clone}");
    private_repo::set(repos, &name, &commit, what).await?;
    Ok((Some(name), left_out.all))
}

/// The suffix of a clone that is no longer needed and may be half removed: `.<name>.gone`.
const GONE: &str = ".gone";

/// Removes a clone after it has saved work that exists nowhere else. If it is killed on the way,
/// the next call for the folder's new name finishes, because half a clone cannot be read any more.
pub async fn discard(
    repos: &RunRepos,
    dir: &Path,
    target: &str,
) -> Result<Option<String>, RepoError> {
    let name = name_of(dir);
    if name.starts_with('.') && name.ends_with(GONE) {
        return remove(dir).await.map(|()| None);
    }
    if !dir.is_dir() {
        return Ok(None);
    }
    if let Some(why) = work(repos, dir, target).await?.unreadable {
        // It may hold work that exists nowhere else, so it stays.
        return Err(Damage::Unreadable(why).into());
    }
    let (saved, left_out) = rescue(repos, dir).await?;
    if !left_out.is_empty() {
        // It is the only place that has them, so it stays.
        return Err(Refusal::TooLarge { names: large_files::names(&left_out), saved }.into());
    }
    let gone = dir.with_file_name(format!(".{name}{GONE}"));
    remove(&gone).await?;
    std::fs::rename(dir, &gone).map_err(FileError::at(dir))?;
    fault::point("run.mid_discard");
    remove(&gone).await?;
    Ok(saved)
}

/// Removes a tree of any depth, which an agent may have made. The git of a killed daemon, or the
/// agent of a killed shim, may still write in it for a moment, so removal is retried.
pub async fn remove(path: &Path) -> Result<(), RepoError> {
    const TRIES: usize = 20;
    for last in (0..=TRIES).map(|n| n == TRIES) {
        let tree = path.to_owned();
        // An agent decides how long this takes, so it must not block a task of the daemon.
        let removing =
            tokio::task::spawn_blocking(move || removal::remove_tree(&tree, removal::PATIENCE));
        match removing.await.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) if last || error.kind() == std::io::ErrorKind::TimedOut => {
                return Err(FileError::at(path)(error).into());
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    Ok(())
}

fn make_parent(path: &Path) -> Result<(), RepoError> {
    let parent = path.parent().unwrap_or(path);
    Ok(std::fs::create_dir_all(parent).map_err(FileError::at(parent))?)
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
