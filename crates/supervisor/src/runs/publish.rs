//! The end of a run: its branch in the repository, and a pull request where there is somewhere to make one.

// git and gh are short-lived children that we wait for and that die with their handle.
#![allow(clippy::disallowed_methods)]

use super::actor::Trouble;
use super::host::Hosted;
use super::hub;
use crate::worktree::{self, git, run as git_run};
use muleteer_model::pipeline::{Input, Run, Stage};
use muleteer_process::fault;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::process::Command;

/// In the hub: the branch as it was rebased, by what it was before, and what was pushed, by its name.
const REBASED: &str = "refs/muleteer/rebased";
const PUSHED: &str = "refs/muleteer/pushed";
/// A remote that takes longer is asked another time.
const REMOTE_PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

pub async fn finish(hosted: &Arc<Hosted>, run: &Run) -> Result<Input, Trouble> {
    let failed = |message: String| Trouble::new("E_GIT", message);
    let target = run.target();
    hub::unlock(hosted).await;
    hub::guard(hosted, &target).await.map_err(failed)?;
    let commit = hub::commit(hosted, &target)
        .await
        .ok_or_else(|| failed(format!("the hub has lost the branch {target}")))?;
    fault::point("run.before_publish");
    let branch = bring_home(hosted, &target).await.map_err(failed)?;
    fault::point("run.after_publish");
    let base = run.frozen.as_ref().map(|frozen| frozen.base_branch.clone()).unwrap_or_default();
    let merge =
        if branch == base { format!("it is on {base}") } else { format!("git checkout {base} && git merge {branch}") };
    let mut pr = None;
    if run.settings.pull_request
        && run.started.target == "auto"
        && run.pr_url.is_none()
        && run.count(Stage::Blocked) == 0
        && let Some(place) = Place::find(hosted).await
    {
        fault::point("run.before_pr");
        pr = Some(place.pull_request(hosted, run, &target, &base).await);
        fault::point("run.after_pr");
    }
    sweep(hosted, run).await;
    Ok(Input::Published { branch, commit, merge, pr })
}

/// Where the real remote's base branch is, asked with the person's own credentials. `None` where there is
/// no remote, or it does not answer soon.
async fn remote_base(hosted: &Hosted, base: &str) -> Option<String> {
    let origin = git_run(git(&hosted.repo).args(["remote", "get-url", "origin"]), "").await.ok()?;
    let place = Place { gh: PathBuf::new(), env: hosted.request().env };
    let name = format!("refs/heads/{base}");
    let asked = ["ls-remote", origin.as_str(), &name];
    let asking = place.git(&hosted.repo, &asked, "");
    let said = tokio::time::timeout(REMOTE_PATIENCE, asking).await.ok()?.ok()?;
    said.split_whitespace().next().map(str::to_string)
}

fn remembered(hosted: &Hosted) -> PathBuf {
    hosted.places.private.join("remote-base")
}

/// Notes where the real remote's base branch was when the run began.
pub async fn remember_remote(hosted: &Hosted, base: &str) {
    if let Some(commit) = remote_base(hosted, base).await {
        let _ = muleteer_store::atomic::write_atomic(&remembered(hosted), commit.as_bytes(), 0o600);
    }
}

/// Says so if the real remote's base branch has got a commit that an agent of this run made. What others push
/// there is not in the hub.
pub async fn trespassed(hosted: &Hosted, run: &Run) -> Option<String> {
    let before = std::fs::read_to_string(remembered(hosted)).ok()?;
    let base = &run.frozen.as_ref()?.base_branch;
    let now = remote_base(hosted, base).await?;
    let object = format!("{now}^{{commit}}");
    let ours = now != before && git_run(git(&hosted.places.hub()).args(["cat-file", "-e", &object]), "").await.is_ok();
    // The person may have pushed what the repository had already.
    let known = git_run(git(&hosted.repo).args(["cat-file", "-e", &object]), "").await.is_ok();
    let first = now.get(..12).unwrap_or(&now);
    (ours && !known).then(|| format!("an agent has pushed {first} to {base} of the remote by itself; look at it first"))
}

/// Fetches the integration branch into the repository, under its name if that can be.
async fn bring_home(hosted: &Hosted, target: &str) -> Result<String, String> {
    let (repo, hub) = (&hosted.repo, hosted.places.hub());
    let fetch = |name: String| async move {
        run_fetch(repo, &hosted.places.hub(), &format!("refs/heads/{target}:refs/heads/{name}"))
            .await
            .map(|()| name)
    };
    let checked_out = worktree::branch(repo).await.as_deref() == Some(target);
    if !checked_out && let Ok(name) = fetch(target.to_string()).await {
        return Ok(name);
    }
    if checked_out {
        // Only what is a fast-forward, and harms nothing in the working directory.
        git_run(
            git(repo)
                .args(["fetch", "--quiet", "--no-tags"])
                .arg(&hub)
                .arg(format!("refs/heads/{target}")),
            "cannot fetch the branch",
        )
        .await?;
        if git_run(git(repo).args(["merge", "--quiet", "--ff-only", "FETCH_HEAD"]), "").await.is_ok() {
            return Ok(target.to_string());
        }
    }
    // It moved on by itself, or the working directory is in the way: beside it, then.
    let beside = format!("muleteer/{}", hosted.run_id);
    let name = if beside == target { format!("{beside}-result") } else { beside };
    run_fetch(repo, &hub, &format!("+refs/heads/{target}:refs/heads/{name}")).await?;
    Ok(name)
}

async fn run_fetch(repo: &Path, hub: &Path, refspec: &str) -> Result<(), String> {
    let mut command = git(repo);
    command
        .args(["fetch", "--quiet", "--no-tags", "--no-write-fetch-head"])
        .arg(hub)
        .arg(refspec);
    git_run(&mut command, "cannot bring the branch home").await.map(|_| ())
}

/// What is left of the run's clones; what they hold and nobody else does is kept in the hub.
async fn sweep(hosted: &Hosted, run: &Run) {
    if !run.settings.cleanup {
        return;
    }
    let Ok(entries) = std::fs::read_dir(&hosted.places.worktrees) else { return };
    for entry in entries.flatten() {
        // A blocked bead's stays: a person will want to look at it.
        let blocked = |name: &str| {
            run.beads
                .values()
                .any(|task| task.stage == Stage::Blocked && name.starts_with(&format!("bead-{}-", task.planned.id)))
        };
        if !entry.file_name().to_str().is_some_and(blocked)
            && let Err(error) = hub::discard(hosted, &entry.path(), &run.target()).await
        {
            tracing::warn!(%error, path = %entry.path().display(), "a worktree is left");
        }
    }
    let _ = std::fs::remove_dir(&hosted.places.worktrees);
}

/// Where a pull request can be made: a remote, and `gh`.
struct Place {
    gh: PathBuf,
    env: Vec<(String, String)>,
}

impl Place {
    async fn find(hosted: &Hosted) -> Option<Self> {
        let env = hosted.request().env;
        let path = env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
        let gh = muleteer_backends::find_program("gh", path.as_deref().map(OsStr::new))?;
        git_run(git(&hosted.repo).args(["remote", "get-url", "origin"]), "").await.ok()?;
        Some(Self { gh, env })
    }

    /// With the person's own environment: it is the person's remote and the person's credentials.
    fn command(&self, program: impl AsRef<OsStr>, dir: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(dir)
            .env_clear()
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env("GIT_TERMINAL_PROMPT", "0")
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true);
        command
    }

    async fn out(&self, command: &mut Command, what: &str) -> Result<String, String> {
        let output = command.output().await.map_err(|error| format!("{what}: {error}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        Err(format!("{what}: {}", text(&output.stderr).lines().next_back().unwrap_or("failed")))
    }

    async fn git(&self, dir: &Path, args: &[&str], what: &str) -> Result<String, String> {
        let mut command = self.command("git", dir);
        self.out(command.args(args), what).await
    }

    /// Rebases onto the base as the remote has it, pushes, and asks for the pull request. Each step looks first
    /// whether it was taken before a crash.
    async fn pull_request(&self, hosted: &Hosted, run: &Run, target: &str, base: &str) -> Result<String, String> {
        let origin = git_run(git(&hosted.repo).args(["remote", "get-url", "origin"]), "there is no remote").await?;
        let (commit, conflicts) = self.rebased(hosted, target, base, &origin).await?;
        let mut head = target.to_string();
        if self.push(hosted, &origin, &commit, &head).await.is_err() {
            // Protected, or somebody else's: beside it, then.
            head = format!("{target}-rebased");
            self.push(hosted, &origin, &commit, &head).await?;
        }
        fault::point("run.pushed");
        if let Some(url) = self.known(&hosted.repo, &head).await {
            return Ok(url);
        }
        let title = format!("muleteer run: {}", run.started.title);
        let body = body(run, &conflicts);
        let ask = async |more: &[&str]| {
            let mut create = self.command(&self.gh, &hosted.repo);
            create.args(["pr", "create", "--head", &head, "--base", base, "--title", &title, "--body", &body]);
            self.out(create.args(more), "the pull request could not be made").await
        };
        // A repository need not have the labels, and `gh` refuses those it does not know.
        let made = match ask(&["--label", "muleteer-run", "--label", "automated"]).await {
            Err(why) if why.contains("label") => ask(&[]).await,
            made => made,
        };
        let said = match made {
            Ok(out) => out,
            // One of an earlier try may have come through after all.
            Err(why) => return self.known(&hosted.repo, &head).await.ok_or(why),
        };
        let url = said.lines().rev().find(|line| line.starts_with("http")).map(str::to_string);
        url.ok_or(format!("gh said: {said}"))
    }

    /// The pull request of that branch, if there is one.
    async fn known(&self, repo: &Path, head: &str) -> Option<String> {
        let mut view = self.command(&self.gh, repo);
        view.args(["pr", "view", head, "--json", "url", "--jq", ".url"]);
        let said = self.out(&mut view, "").await.ok()?;
        said.lines().find(|line| line.starts_with("http")).map(str::to_string)
    }

    /// The branch on top of what the remote's base has come to, kept in the hub so that a second try makes no
    /// other commits; where that conflicts the branch as it is, and the files.
    async fn rebased(
        &self,
        hosted: &Hosted,
        target: &str,
        base: &str,
        origin: &str,
    ) -> Result<(String, String), String> {
        let hub = hosted.places.hub();
        let tip = hub::commit(hosted, target).await.ok_or("the hub has lost the branch")?;
        let kept = format!("{REBASED}/{tip}");
        if let Ok(commit) = git_run(git(&hub).args(["rev-parse", "--verify", "--quiet", &kept]), "").await {
            return Ok((commit, String::new()));
        }
        let dir = hosted.places.worktrees.join("finish");
        hub::worktree(hosted, &dir, target, None, false).await?;
        if self
            .git(&dir, &["fetch", "--quiet", origin, base], "cannot fetch the base branch")
            .await
            .is_err()
        {
            // Nothing of it is there yet: there is nothing to be rebased onto.
            return Ok((tip, String::new()));
        }
        if self.git(&dir, &["rebase", "--quiet", "FETCH_HEAD"], "").await.is_err() {
            let conflicts = self
                .git(&dir, &["diff", "--name-only", "--diff-filter=U"], "cannot list the conflicts")
                .await
                .unwrap_or_default();
            self.git(&dir, &["rebase", "--abort"], "cannot give the rebase up").await?;
            return Ok((tip, conflicts));
        }
        let commit = self.git(&dir, &["rev-parse", "HEAD"], "the rebase left nothing").await?;
        let mut keep = git(&hub);
        keep.args(["fetch", "--quiet", "--no-tags", "--no-write-fetch-head"]).arg(&dir);
        git_run(keep.arg(format!("+HEAD:{kept}")), "cannot keep the rebased branch").await?;
        Ok((commit, String::new()))
    }

    /// Pushes `commit` as `name`, over nothing but what this run had pushed there before.
    async fn push(&self, hosted: &Hosted, origin: &str, commit: &str, name: &str) -> Result<(), String> {
        let hub = hosted.places.hub();
        let full = format!("refs/heads/{name}");
        let there = self.git(&hub, &["ls-remote", origin, &full], "the remote does not answer").await?;
        let there = there.split_whitespace().next().unwrap_or_default().to_string();
        if there == commit {
            return Ok(());
        }
        let ours = format!("{PUSHED}/{name}");
        let before = git_run(git(&hub).args(["rev-parse", "--verify", "--quiet", &ours]), "").await;
        if !there.is_empty() && before.ok().as_deref() != Some(there.as_str()) {
            return Err(format!("{name} is there already, and not by this run"));
        }
        let (lease, refspec) = (format!("--force-with-lease={full}:{there}"), format!("{commit}:{full}"));
        self.git(&hub, &["push", "--quiet", &lease, origin, &refspec], "cannot push the branch")
            .await?;
        git_run(git(&hub).args(["update-ref", &ours, commit]), "cannot remember what was pushed")
            .await
            .map(|_| ())
    }
}

fn body(run: &Run, conflicts: &str) -> String {
    let mut text = format!(
        "Made by `muleteer run` from {}, run {}.\n\n- {} beads done, in {} iterations, by {} agents\n- the judge: {}\n",
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
    text
}
