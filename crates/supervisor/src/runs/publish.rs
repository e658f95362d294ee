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

pub async fn finish(hosted: &Arc<Hosted>, run: &Run) -> Result<Input, Trouble> {
    let failed = |message: String| Trouble::new("E_GIT", message);
    let target = run.target();
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

    async fn out(&self, mut command: Command, what: &str) -> Result<String, String> {
        let output = command.output().await.map_err(|error| format!("{what}: {error}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        Err(format!("{what}: {}", text(&output.stderr).lines().next_back().unwrap_or("failed")))
    }

    async fn git(&self, dir: &Path, args: &[&str], what: &str) -> Result<String, String> {
        let mut command = self.command("git", dir);
        command.args(args);
        self.out(command, what).await
    }

    /// Rebases onto the base as the remote has it, pushes, and asks for the pull request.
    async fn pull_request(&self, hosted: &Hosted, run: &Run, target: &str, base: &str) -> Result<String, String> {
        let repo = &hosted.repo;
        let origin = git_run(git(repo).args(["remote", "get-url", "origin"]), "there is no remote").await?;
        let dir = hosted.places.worktrees.join("finish");
        hub::worktree(hosted, &dir, target, None, false).await?;
        let mut conflicts = String::new();
        let fetched = self.git(&dir, &["fetch", "--quiet", &origin, base], "cannot fetch the base branch").await;
        if fetched.is_ok() && self.git(&dir, &["rebase", "--quiet", "FETCH_HEAD"], "").await.is_err() {
            conflicts = self
                .git(&dir, &["diff", "--name-only", "--diff-filter=U"], "cannot list the conflicts")
                .await
                .unwrap_or_default();
            self.git(&dir, &["rebase", "--abort"], "cannot give the rebase up").await?;
        }
        let mut head = target.to_string();
        let push = |name: String| format!("HEAD:refs/heads/{name}");
        let pushed = self
            .git(&dir, &["push", "--quiet", "--force-with-lease", &origin, &push(head.clone())], "")
            .await;
        if pushed.is_err() {
            // Protected, or somebody else's: beside it, then.
            head = format!("{target}-rebased");
            self.git(
                &dir,
                &["push", "--quiet", "--force-with-lease", &origin, &push(head.clone())],
                "cannot push the branch",
            )
            .await?;
        }
        // It may have been made before a crash.
        let mut known = self.command(&self.gh, repo);
        known.args(["pr", "view", &head, "--json", "url", "--jq", ".url"]);
        if let Ok(url) = self.out(known, "").await
            && url.starts_with("http")
        {
            return Ok(url);
        }
        let mut create = self.command(&self.gh, repo);
        create.args([
            "pr",
            "create",
            "--head",
            &head,
            "--base",
            base,
            "--title",
            &format!("muleteer run: {}", run.started.title),
        ]);
        create.args(["--body", &body(run, &conflicts)]);
        let out = self.out(create, "the pull request could not be made").await?;
        out.lines()
            .rev()
            .find(|line| line.starts_with("http"))
            .map(str::to_string)
            .ok_or(format!("gh said: {out}"))
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
