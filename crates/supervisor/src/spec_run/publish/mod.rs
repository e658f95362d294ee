//! Ends a run: brings its branch into the repository, and makes a pull request if the remote
//! supports it.

use crate::daemon::context::Daemon;
use crate::spec_run::clones;
use crate::spec_run::host::Hosted;
use crate::spec_run::hub;
use crate::spec_run::private_repo;
use crate::spec_run::trouble::Trouble;
use muleteer_vcs::git_repair;
use muleteer_vcs::user_repo::{Git, GitError};
use muleteer_vcs::worktree::{
    self, DURABLE, HARMLESS, LEADING_AWAY, complaint, fetching, git, output, run as git_run,
};
use muleteer_model::agent::event::cut;
use muleteer_model::event::Event;
use muleteer_model::spec_run::forge::{self, Forge};
use muleteer_model::spec_run::{Input, PullRequest, Run, Stage, unpushed};
use muleteer_process::command::helper;
use muleteer_process::fault;
use muleteer_vcs::git_repair;
use muleteer_vcs::user_repo::{Git, GitError};
use muleteer_vcs::worktree::{
    self, as_person, complaint, fetching, git, output, remote, run as git_run,
};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::process::Command;

mod early;
mod remote;
#[cfg(test)]
mod tests;

pub use early::keep_early;
use remote::{Remote, settings};

/// Refs in the private repository: the rebased branch by its commit before, and the pushed branches
/// by their names.
const REBASED: &str = "refs/muleteer/rebased";
const PUSHED: &str = "refs/muleteer/pushed";
/// The ref in the private repository for the remote's base branch.
const BASE: &str = "refs/muleteer/base";
/// The timeout for asking the remote for a branch. It is asked again later.
const REMOTE_PATIENCE: Duration = Duration::from_secs(10);
/// The limit of names that are tried for a result, because people may have committed on earlier
/// ones.
const MOST_BESIDE: u32 = 10;
/// The interval of such questions while agents work.
const REMOTE_EVERY: Duration = Duration::from_secs(60);
/// The timeout for transferring a branch. The next one is for `gh`.
const TRANSFER: Duration = Duration::from_secs(600);
const GH_PATIENCE: Duration = Duration::from_secs(120);
/// GitHub rejects a longer body, and so does the system as an argument.
const BODY_LIMIT: usize = 60_000;

pub async fn finish(daemon: &Daemon, hosted: &Arc<Hosted>, run: &Run) -> Result<Input, Trouble> {
    let failed = |message: String| Trouble::new("E_GIT", message);
    let target = run.target();
    hub::unlock(hosted, &target).await;
    // Only the judged commit is published.
    let undone = match run.settings.judge {
        true => hub::hold(hosted, &target, None).await,
        false => hub::guard(hosted, &target, None).await,
    };
    hub::report(daemon, hosted);
    if let Some(message) = undone.map_err(failed)? {
        daemon.note(Event::Fault { what: format!("the hub of {}", hosted.run_id), message });
    }
    let commit = hub::commit(hosted, &target)
        .await
        .ok_or_else(|| failed(format!("the branch {target} is gone")))?;
    let base = run.frozen.as_ref().map(|frozen| frozen.base_branch.clone()).unwrap_or_default();
    let remote = Remote::find(&hosted.repo, &base).await;
    if let Some(message) =
        trespassed(hosted, run, remote_now(hosted, run, remote.clone()).await).await
    {
        return Err(Trouble::new("E_REMOTE_CHANGED", message));
    }
    fault::point("run.before_publish");
    let branch = bring_home(hosted, &target).await.map_err(failed)?;
    crate::spec_run::steps::keep_base(hosted, None).await;
    fault::point("run.after_publish");
    let merge = if branch == base {
        format!("it is on {base}")
    } else {
        format!("git checkout {base} && git merge {branch}")
    };
    let wanted = (run.settings.pull_request || run.settings.push) && run.pr_url.is_none();
    let pr = match remote.filter(|_| wanted) {
        Some(remote) => Some(pull_request(hosted, run, remote, &base).await),
        None => None,
    };
    sweep(hosted, run).await;
    Ok(Input::Published { branch, commit, merge, pr })
}

async fn pull_request(hosted: &Hosted, run: &Run, remote: Remote, base: &str) -> PullRequest {
    if let Some(why) = unpushed(run) {
        return PullRequest::Unpushed(why);
    }
    let env = hosted.person_env();
    let path = env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_str());
    let gh = muleteer_backends::find_program("gh", path.map(OsStr::new));
    // `gh` speaks to GitHub only. If the kind of host is unknown, `gh` may know it.
    let is_hub = forge::forge(&remote.push).is_none_or(|forge| forge == Forge::GitHub);
    let by_gh = run.settings.pull_request && gh.is_some() && is_hub;
    let address = remote.push.clone();
    let place = Place::new(hosted, gh.unwrap_or_default(), remote, settings(&hosted.repo).await);
    fault::point("run.before_pr");
    let made = match place.pushed(hosted, run, base).await {
        // The run has passed nevertheless, and its branch is in the repository.
        Err(why) => PullRequest::Unpushed(why),
        Ok((branch, conflicts)) => {
            let asked = match by_gh {
                true => place.pull_request(run, &branch, base, &conflicts).await.map_err(Some),
                false => Err(None),
            };
            let page = forge::pull_request_page(&address, base, &branch).filter(|_| base != "HEAD");
            asked.map_or_else(
                |trouble| PullRequest::Pushed { branch, page, trouble },
                PullRequest::Made,
            )
        }
    };
    fault::point("run.after_pr");
    made
}

/// Returns the commit of the remote's base branch, with the person's own credentials. Returns
/// `None` if the remote does not answer soon.
async fn remote_base(hosted: &Hosted, remote: Remote, base: &str) -> Option<String> {
    let place = Place::new(hosted, PathBuf::new(), remote, vec![]);
    let name = format!("refs/heads/{base}");
    let asked = ["ls-remote", place.remote.fetch.as_str(), &name];
    let said = place.git(&asked, REMOTE_PATIENCE, "").await.ok()?;
    said.split_whitespace().next().map(str::to_string)
}

/// Calls [`remote_now`], but at most once per interval: an unreachable remote must not delay the
/// end of every agent.
pub async fn remote_lately(hosted: &Hosted, run: &Run) -> Option<String> {
    let now = muleteer_process::clock::awake();
    {
        let mut asked = hosted.remote_asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.is_some_and(|before| now < before + REMOTE_EVERY) {
            return None;
        }
        *asked = Some(now);
    }
    let base = &run.frozen.as_ref()?.base_branch;
    remote_now(hosted, run, Remote::find(&hosted.repo, base).await).await
}

/// Returns the remote's base commit now, if the one at the run's start is known.
async fn remote_now(hosted: &Hosted, run: &Run, remote: Option<Remote>) -> Option<String> {
    remembered(hosted).exists().then_some(())?;
    remote_base(hosted, remote?, &run.frozen.as_ref()?.base_branch).await
}

fn remembered(hosted: &Hosted) -> PathBuf {
    hosted.places.private.join("remote-base")
}

/// Saves the commit of the remote's base branch when the run begins.
pub async fn remember_remote(hosted: &Hosted, base: &str) {
    let Some(remote) = Remote::find(&hosted.repo, base).await else { return };
    if let Some(commit) = remote_base(hosted, remote, base).await {
        let _ = muleteer_store::atomic::write_atomic(&remembered(hosted), commit.as_bytes(), 0o600);
    }
}

/// Returns a message if the remote's base branch got a commit that an agent of this run made.
/// Commits that other people push there are not in the run's repository.
pub async fn trespassed(hosted: &Hosted, run: &Run, now: Option<String>) -> Option<String> {
    let (before, now) = (std::fs::read_to_string(remembered(hosted)).ok()?, now?);
    if now == before {
        return None;
    }
    let base = &run.frozen.as_ref()?.base_branch;
    let object = format!("{now}^{{commit}}");
    let ours =
        git_run(git(&hosted.places.keep()).args(["cat-file", "-e", &object]), "").await.is_ok();
    // The person may have pushed a commit that their repository had already.
    let known = git_run(git(&hosted.repo).args(["cat-file", "-e", &object]), "").await.is_ok();
    let first = now.get(..12).unwrap_or(&now);
    (ours && !known).then(|| {
        format!("an agent has pushed {first} to {base} of the remote by itself; look at it first")
    })
}

/// Fetches the integration branch into the repository, under its own name if possible.
async fn bring_home(hosted: &Hosted, target: &str) -> Result<String, String> {
    let (repo, own) = (&hosted.repo, &hosted.places.keep());
    let fetch = |name: String| async move {
        run_fetch(repo, own, &format!("refs/heads/{target}:refs/heads/{name}"))
            .await
            .map(|()| name)
    };
    if let Some(dir) = worktree::git_dir(repo).await {
        // A stale lock would make git bring it under another name.
        git_repair::forget_stale_locks(&dir);
    }
    let checked_out = worktree::branch(repo).await.as_deref() == Some(target);
    if !checked_out && let Ok(name) = fetch(target.to_string()).await {
        return Ok(name);
    }
    if checked_out {
        // The checked-out branch only moves by a fast-forward that damages nothing in the working
        // directory.
        let came = format!("refs/muleteer/run/{}", hosted.run_id);
        run_fetch(repo, own, &format!("+refs/heads/{target}:{came}")).await?;
        let commit =
            git_run(git(repo).args(["rev-parse", &format!("{came}^{{commit}}")]), "nothing came")
                .await?;
        let dir = repo.clone();
        let merged = tokio::task::spawn_blocking(move || forward(&dir, &commit)).await;
        git_run(git(repo).args(["update-ref", "-d", &came]), "cannot tidy").await?;
        match merged.map_err(|error| error.to_string())? {
            Ok(()) => return Ok(target.to_string()),
            Err(error) => tracing::info!(%error, "the branch is brought beside"),
        }
    }
    // The branch has moved on, or the working directory is in the way, so the result gets a branch
    // of its own. That one only moves forward too: commits of a person on an earlier result stay.
    let commit =
        hub::commit(hosted, target).await.ok_or_else(|| format!("the branch {target} is gone"))?;
    let beside = format!("muleteer/{}", hosted.run_id);
    let beside = if beside == target { format!("{beside}-result") } else { beside };
    let mut refused = String::new();
    // If a branch `muleteer` exists, git cannot make one below it.
    for name in [beside, format!("muleteer-{}", hosted.run_id)] {
        for name in
            [name.clone()].into_iter().chain((2..MOST_BESIDE).map(|n| format!("{name}-{n}")))
        {
            let has_it = ["merge-base", "--is-ancestor", &commit, &format!("refs/heads/{name}")];
            if git_run(git(repo).args(has_it), "").await.is_ok() {
                return Ok(name);
            }
            match fetch(name).await {
                Ok(name) => return Ok(name),
                Err(why) => refused = why,
            }
        }
    }
    Err(refused)
}

/// Moves the checked-out branch to the commit. Blocks.
fn forward(repo: &Path, commit: &str) -> Result<(), GitError> {
    let git = Git::open(repo)?;
    git.forward(&git.head()?, commit)?;
    git.settle()?;
    git.forwarded()
}

async fn run_fetch(repo: &Path, own: &Path, refspec: &str) -> Result<(), String> {
    git_run(fetching(repo, own).arg(refspec), "cannot bring the branch home").await.map(drop)
}

/// Removes the run's remaining clones, after work that exists nowhere else is saved.
async fn sweep(hosted: &Hosted, run: &Run) {
    if !run.settings.cleanup {
        return;
    }
    let Ok(entries) = std::fs::read_dir(&hosted.places.worktrees) else { return };
    for entry in entries.flatten() {
        // The clone of a blocked bead stays, because a person will want to inspect it.
        let is_partial = |name: &str| name.starts_with('.') && name.ends_with(".partial");
        if entry.file_name().to_str().is_some_and(is_partial) {
            // It was being made when the run was stopped.
            if let Err(error) = clones::remove(&entry.path()).await {
                tracing::warn!(%error, "a clone that was never whole is left");
            }
            continue;
        }
        let blocked = |name: &str| {
            run.beads.values().any(|task| {
                task.stage == Stage::Blocked
                    && name.starts_with(&format!("bead-{}-", task.planned.id))
            })
        };
        if !entry.file_name().to_str().is_some_and(blocked)
            && let Err(error) = hub::discard(hosted, &entry.path(), &run.target()).await
        {
            tracing::warn!(%error, path = %entry.path().display(), "a worktree is left");
        }
    }
    let _ = std::fs::remove_dir(&hosted.places.worktrees);
}

/// The programs and addresses for a pull request: a remote, and `gh`.
struct Place {
    gh: PathBuf,
    remote: Remote,
    env: Vec<(String, String)>,
    /// The settings of the repository that say how to reach its remote.
    settings: Vec<(String, String)>,
    repo: PathBuf,
    /// The harness's private repository.
    own: PathBuf,
}

impl Place {
    fn new(hosted: &Hosted, gh: PathBuf, remote: Remote, settings: Vec<(String, String)>) -> Self {
        let (repo, own) = (hosted.repo.clone(), hosted.places.keep());
        Self { gh, remote, env: hosted.person_env(), settings, repo, own }
    }

    /// Returns a command with the person's own environment: remote and credentials are the
    /// person's.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = helper(program);
        as_person(&mut command, &self.repo, &self.env);
        command.into()
    }

    async fn out(
        &self,
        command: &mut Command,
        patience: Duration,
        what: &str,
    ) -> Result<String, String> {
        let output = output(command, patience).await.map_err(|error| format!("{what}: {error}"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim().to_string());
        }
        Err(format!("{what}: {}", complaint(&output.stderr)))
    }

    /// Runs [`Self::git`] on the harness's private repository. It runs in the person's directory,
    /// as a `git push` of the person would.
    async fn with_own(
        &self,
        args: &[&str],
        patience: Duration,
        what: &str,
    ) -> Result<String, String> {
        let own = self.own.display().to_string();
        self.git(&[&["--git-dir", own.as_str()], args].concat(), patience, what).await
    }

    /// Runs a git that talks to the remote. It is used for nothing else, because the person's
    /// configuration may name programs.
    async fn git(&self, args: &[&str], patience: Duration, what: &str) -> Result<String, String> {
        let mut command = remote(&self.repo, &self.env, &self.settings);
        self.out(command.args(args), patience, what).await
    }

    /// Asks `gh` for a pull request of the pushed branch `head`, unless one exists from before a
    /// crash.
    async fn pull_request(
        &self,
        run: &Run,
        head: &str,
        base: &str,
        conflicts: &str,
    ) -> Result<String, String> {
        if let Some(url) = self.known(head).await {
            return Ok(url);
        }
        let title = format!("muleteer run: {}", run.started.title);
        let body = body(run, conflicts);
        let ask = async |more: &[&str]| {
            let mut create = self.command(&self.gh);
            create.args([
                "pr", "create", "--head", head, "--base", base, "--title", &title, "--body", &body,
            ]);
            self.out(create.args(more), GH_PATIENCE, "the pull request could not be made").await
        };
        // A repository may lack these labels, and `gh` rejects unknown ones.
        let made = match ask(&["--label", "muleteer-run", "--label", "automated"]).await {
            Err(why) if why.contains("label") => ask(&[]).await,
            made => made,
        };
        let said = match made {
            Ok(out) => out,
            // A pull request of an earlier try may exist after all.
            Err(why) => return self.known(head).await.ok_or(why),
        };
        let url = said.lines().rev().find(|line| line.starts_with("http")).map(str::to_string);
        url.ok_or(format!("gh said: {said}"))
    }

    /// Pushes the branch, rebased onto the remote's current base for a pull request. Returns its
    /// name at the remote, and the files that conflict. Each step first checks whether it was done
    /// before a crash.
    async fn pushed(
        &self,
        hosted: &Hosted,
        run: &Run,
        base: &str,
    ) -> Result<(String, String), String> {
        let target = run.target();
        let (commit, conflicts) = match run.settings.pull_request {
            true => self.rebased(hosted, &target, base).await?,
            false => {
                (hub::commit(hosted, &target).await.ok_or("the branch is gone")?, String::new())
            }
        };
        let branch = self.push_beside(hosted, &commit, &target).await?;
        Ok((branch, conflicts))
    }

    /// Pushes under the branch's name, or under another one. That is needed if the name is
    /// protected, belongs to somebody else, or conflicts with the name of another branch.
    async fn push_beside(
        &self,
        hosted: &Hosted,
        commit: &str,
        target: &str,
    ) -> Result<String, String> {
        let mut refused = String::new();
        for name in [target.to_string(), format!("{target}-rebased"), target.replace('/', "-")] {
            match self.push(hosted, commit, &name).await {
                Ok(()) => {
                    fault::point("run.pushed");
                    return Ok(name);
                }
                Err(why) => refused = why,
            }
        }
        Err(refused)
    }

    /// Returns the URL of the branch's pull request, if there is one.
    async fn known(&self, head: &str) -> Option<String> {
        let mut view = self.command(&self.gh);
        view.args(["pr", "view", head, "--json", "url", "--jq", ".url"]);
        let said = self.out(&mut view, GH_PATIENCE, "").await.ok()?;
        said.lines().find(|line| line.starts_with("http")).map(str::to_string)
    }

    /// Rebases the branch onto the remote's current base. The result is saved, so that a retry
    /// makes no other commits. If the rebase conflicts, returns the branch as it is, and the files.
    async fn rebased(
        &self,
        hosted: &Hosted,
        target: &str,
        base: &str,
    ) -> Result<(String, String), String> {
        let tip = hub::commit(hosted, target).await.ok_or("the branch is gone")?;
        let kept = format!("{REBASED}/{tip}");
        if let Some(commit) = private_repo::at(hosted, &kept).await {
            return Ok((commit, String::new()));
        }
        let refspec = format!("+refs/heads/{base}:{BASE}");
        let fetch = [
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-write-fetch-head",
            &self.remote.fetch,
            &refspec,
        ];
        if self.with_own(&fetch, TRANSFER, "cannot fetch the base branch").await.is_err() {
            // The remote has no base branch yet, so there is nothing to rebase onto.
            return Ok((tip, String::new()));
        }
        let onto = private_repo::at(hosted, BASE).await.ok_or("the base branch was not brought")?;
        // The rebase runs where no agent can write, and without the person's filters and merge
        // drivers, because their input would be the agents' files.
        let dir = hosted.places.private.join("finish");
        hub::worktree(hosted, &dir, target, None, false).await?;
        let outcome = match git_run(git(&dir).args(["rebase", "--quiet", &onto]), "").await {
            Ok(_) => {
                let commit = worktree::head(&dir).await.ok_or("the rebase left nothing")?;
                let what = "cannot keep the rebased branch";
                private_repo::fetch(
                    hosted,
                    &dir.join(".git"),
                    &commit,
                    &[&format!("+{kept}")],
                    what,
                )
                .await?;
                (commit, String::new())
            }
            Err(_) => {
                let list = ["diff", "--name-only", "--diff-filter=U"];
                (tip, git_run(git(&dir).args(list), "").await.unwrap_or_default())
            }
        };
        clones::remove(&dir).await?;
        Ok(outcome)
    }

    /// Pushes `commit` as `name`. It overwrites only a commit that this run had pushed.
    async fn push(&self, hosted: &Hosted, commit: &str, name: &str) -> Result<(), String> {
        let (full, to) = (format!("refs/heads/{name}"), self.remote.push.as_str());
        let asked = ["ls-remote", to, &full];
        let there = self.with_own(&asked, GH_PATIENCE, "the remote does not answer").await?;
        let there = there.split_whitespace().next().unwrap_or_default().to_string();
        if there == commit {
            return Ok(());
        }
        let ours = format!("{PUSHED}/{name}");
        if !there.is_empty()
            && private_repo::at(hosted, &ours).await.as_deref() != Some(there.as_str())
        {
            return Err(format!("{name} is there already, and not by this run"));
        }
        let (lease, refspec) =
            (format!("--force-with-lease={full}:{there}"), format!("{commit}:{full}"));
        let push = ["push", "--quiet", &lease, to, &refspec];
        self.with_own(&push, TRANSFER, "cannot push the branch").await?;
        private_repo::set(hosted, &ours, commit, "cannot remember what was pushed").await
    }
}

fn body(run: &Run, conflicts: &str) -> String {
    let mut text = format!(
        "Made by `muleteer run` from {}, run {}.\n\n- {} beads done, in {} iterations, by {} \
         agents\n\
         - the judge: {}\n",
        run.started.spec,
        run.id(),
        run.count(Stage::Done),
        run.iteration,
        run.spawns,
        run.verdicts.last().map_or("not asked", |verdict| verdict.verdict.as_str()),
    );
    if !conflicts.is_empty() {
        text.push_str("\nIt could not be rebased by itself; these files conflict:\n\n");
        text.extend(conflicts.lines().map(|line| format!("- {line}\n")));
    }
    cut(&text, BODY_LIMIT)
}
