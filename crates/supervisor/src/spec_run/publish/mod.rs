//! Ends a run: brings its branch into the repository, and makes a pull request if the remote
//! supports it.

use crate::daemon::context::Daemon;
use crate::spec_run::host::Hosted;
use crate::spec_run::repairs;
use crate::spec_run::trouble::Trouble;
use muleteer_model::agent::event::cut;
use muleteer_model::event::Event;
use muleteer_model::spec_run::forge::{self, Forge};
use muleteer_model::spec_run::{Input, PullRequest, Run, Stage, unpushed};
use muleteer_process::command::program::Program;
use muleteer_process::fault;
use muleteer_protocol::ErrorCode;
use muleteer_vcs::command::{CommandError, as_person, output};
use muleteer_vcs::error::{Refusal, RepoError};
use muleteer_vcs::spec_run::remote::{
    Connection, Remote, copy_configuration, settings, trusted_environment,
};
use muleteer_vcs::spec_run::{clones, hub, publish};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::process::Command;

mod early;

pub use early::keep_early;

/// The interval at which the remote is asked for its base branch while agents work.
const REMOTE_EVERY: Duration = Duration::from_secs(60);
/// The timeout for `gh`.
const GH_PATIENCE: Duration = Duration::from_secs(120);
/// GitHub rejects a longer body, and so does the system as an argument.
const BODY_LIMIT: usize = 60_000;

/// Why `gh` made no pull request.
#[derive(Debug, thiserror::Error)]
enum PullRequestError {
    #[error(transparent)]
    Command(#[from] RepoError),
    #[error("{0} changed while the run's agents worked, so it was not run")]
    ChangedGh(String),
    #[error("cannot run gh: {0}")]
    Gh(std::io::Error),
    /// Its output has no address.
    #[error("gh said: {0}")]
    NoAddress(String),
}

pub async fn finish(daemon: &Daemon, hosted: &Arc<Hosted>, run: &Run) -> Result<Input, Trouble> {
    let failed = |error: RepoError| Trouble::new(ErrorCode::Git, error.to_string());
    let target = run.target();
    hub::unlock(&hosted.repos, &target).await;
    // Only the judged commit is published.
    let undone = match run.settings.judge {
        true => hub::hold(&hosted.repos, &target, None).await,
        false => hub::guard(&hosted.repos, &target, None).await,
    };
    repairs::report(daemon, hosted);
    if let Some(message) = undone.map_err(failed)? {
        daemon.note(Event::Fault { what: format!("the hub of {}", hosted.run_id), message });
    }
    let commit = hub::commit(&hosted.repos, &target)
        .await
        .ok_or_else(|| failed(Refusal::NoBranch(target.clone()).into()))?;
    let base = run.frozen.as_ref().map(|frozen| frozen.base_branch.clone()).unwrap_or_default();
    let remote = Remote::find(&hosted.repo, &base).await;
    if let Some(message) =
        trespassed(hosted, run, remote_now(hosted, run, remote.clone()).await).await
    {
        return Err(Trouble::new(ErrorCode::RemoteChanged, message));
    }
    fault::point("run.before_publish");
    let branch = publish::bring_home(&hosted.repos, &target).await.map_err(failed)?;
    repairs::report(daemon, hosted);
    crate::spec_run::steps::keep_base(hosted, None).await;
    fault::point("run.after_publish");
    let merge = if branch == base {
        format!("it is on {base}")
    } else {
        format!("git checkout {base} && git merge {branch}")
    };
    let wanted =
        (run.settings.pull_request || run.settings.push) && run.publication.pr_url.is_none();
    let pr = match remote.filter(|_| wanted) {
        Some(remote) => Some(pull_request(hosted, run, remote, &base).await),
        None => None,
    };
    sweep(hosted, run).await;
    Ok(Input::Published { branch, commit, merge, pr })
}

async fn pull_request(hosted: &Arc<Hosted>, run: &Run, remote: Remote, base: &str) -> PullRequest {
    if let Some(why) = unpushed(run) {
        return PullRequest::Unpushed(why);
    }
    let env = trusted_env(hosted).await;
    // `gh` speaks to GitHub only. If the kind of host is unknown, `gh` may know it.
    let is_hub = forge::forge(&remote.push).is_none_or(|forge| forge == Forge::GitHub);
    let place = match run.settings.pull_request && is_hub {
        true => Place::find(hosted, &env),
        false => Ok(None),
    };
    let address = remote.push.clone();
    let settings = settings(&hosted.repo).await;
    let connection = Connection::new(&hosted.repos, remote, env, settings);
    fault::point("run.before_pr");
    let made = match pushed(&connection, hosted, run, base).await {
        // The run has passed nevertheless, and its branch is in the repository.
        Err(why) => PullRequest::Unpushed(why.to_string()),
        Ok((branch, conflicts)) => {
            let asked = match place {
                Ok(Some(place)) => {
                    let made = place.pull_request(run, &branch, base, &conflicts).await;
                    made.map_err(|error| Some(error.to_string()))
                }
                Ok(None) => Err(None),
                Err(changed) => Err(Some(changed.to_string())),
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
async fn remote_base(hosted: &Arc<Hosted>, remote: Remote, base: &str) -> Option<String> {
    let env = trusted_env(hosted).await;
    Connection::new(&hosted.repos, remote, env, vec![]).tip(base).await
}

/// Returns the person's environment for programs that get the person's tokens.
async fn trusted_env(hosted: &Arc<Hosted>) -> Vec<(String, String)> {
    let (of, env) = (hosted.clone(), hosted.person_env());
    // A panic leaves no environment, so git reaches nothing.
    tokio::task::spawn_blocking(move || trusted_environment(&of.repos, env))
        .await
        .unwrap_or_default()
}

/// Calls [`remote_now`], but at most once per interval: an unreachable remote must not delay the
/// end of every agent.
pub async fn remote_lately(hosted: &Arc<Hosted>, run: &Run) -> Option<String> {
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
async fn remote_now(hosted: &Arc<Hosted>, run: &Run, remote: Option<Remote>) -> Option<String> {
    remembered(hosted).exists().then_some(())?;
    remote_base(hosted, remote?, &run.frozen.as_ref()?.base_branch).await
}

fn remembered(hosted: &Hosted) -> PathBuf {
    hosted.places.private.join("remote-base")
}

/// Copies the person's git configuration when the run begins. git reports what is wrong with it
/// wherever it is needed, so a failure does not fail the run.
pub async fn copy_git_configuration(daemon: &Daemon, hosted: &Arc<Hosted>) {
    let (of, env) = (hosted.clone(), hosted.person_env());
    let kept = tokio::task::spawn_blocking(move || copy_configuration(&of.repos, &env)).await;
    if let Ok(Err(error)) = kept {
        let message = format!("git obeys the person's changing configuration: {error}");
        daemon.note(Event::Fault { what: format!("run {}", hosted.run_id), message });
    }
}

/// Saves the commit of the remote's base branch when the run begins.
pub async fn remember_remote(hosted: &Arc<Hosted>, base: &str) {
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
    // The person may have pushed a commit that their repository had already.
    let ours = publish::is_only_of_run(&hosted.repos, &now).await;
    let first = now.get(..12).unwrap_or(&now);
    ours.then(|| {
        format!("an agent pushed {first} to {base} of the remote on its own; check it first")
    })
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
                tracing::warn!(%error, "failed to remove an incomplete clone");
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
            && let Err(error) = hub::discard(&hosted.repos, &entry.path(), &run.target()).await
        {
            tracing::warn!(%error, path = %entry.path().display(), "failed to remove a worktree");
        }
    }
    let _ = std::fs::remove_dir(&hosted.places.worktrees);
}

/// `gh`, where and as the person would run it.
struct Place {
    gh: Program,
    env: Vec<(String, String)>,
    repo: PathBuf,
}

impl Place {
    /// Finds `gh` with the environment for programs that get tokens. `None` if the person has none.
    ///
    /// # Errors
    /// The person's has changed since the run began.
    fn find(hosted: &Hosted, env: &[(String, String)]) -> Result<Option<Self>, PullRequestError> {
        let search = |env: &[(String, String)]| {
            let path = env.iter().rev().find(|(name, _)| name == "PATH");
            Program::find("gh", path.map(|(_, value)| OsStr::new(value))).ok()
        };
        match (search(env), search(&hosted.person_env())) {
            (Some(gh), _) => Ok(Some(Self { gh, env: env.into(), repo: hosted.repo.clone() })),
            (None, Some(changed)) => {
                Err(PullRequestError::ChangedGh(changed.path().display().to_string()))
            }
            (None, None) => Ok(None),
        }
    }

    /// Returns a `gh` with the person's own environment: remote and credentials are the person's.
    fn command(&self) -> Result<Command, PullRequestError> {
        let mut command = self.gh.command().map_err(PullRequestError::Gh)?;
        as_person(&mut command, &self.repo, &self.env);
        Ok(command.into())
    }

    async fn out(
        &self,
        command: &mut Command,
        patience: Duration,
        what: &str,
    ) -> Result<String, RepoError> {
        let output = output(command, patience).await.map_err(RepoError::step(what))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim().to_string());
        }
        // The further arguments have the text of the pull request.
        let args = command.as_std().get_args().take(2);
        Err(CommandError::failed(what, args, &output.stderr).into())
    }

    /// Asks `gh` for a pull request of the pushed branch `head`, unless one exists from before a
    /// crash.
    async fn pull_request(
        &self,
        run: &Run,
        head: &str,
        base: &str,
        conflicts: &str,
    ) -> Result<String, PullRequestError> {
        if let Some(url) = self.known(head).await {
            return Ok(url);
        }
        let title = format!("muleteer run: {}", run.started.title);
        let body = body(run, conflicts);
        let ask = async |more: &[&str]| {
            let mut create = self.command()?;
            create.args([
                "pr", "create", "--head", head, "--base", base, "--title", &title, "--body", &body,
            ]);
            let what = "the pull request could not be created";
            Ok(self.out(create.args(more), GH_PATIENCE, what).await?)
        };
        // A repository may lack these labels, and `gh` rejects unknown ones.
        let made = match ask(&["--label", "muleteer-run", "--label", "automated"]).await {
            Err(PullRequestError::Command(why)) if is_about_labels(&why) => ask(&[]).await,
            made => made,
        };
        let said = match made {
            Ok(out) => out,
            // A pull request of an earlier try may exist after all.
            Err(why) => return self.known(head).await.ok_or(why),
        };
        let url = said.lines().rev().find(|line| line.starts_with("http")).map(str::to_string);
        url.ok_or(PullRequestError::NoAddress(said))
    }

    /// Returns the URL of the branch's pull request, if there is one.
    async fn known(&self, head: &str) -> Option<String> {
        let mut view = self.command().ok()?;
        view.args(["pr", "view", head, "--json", "url", "--jq", ".url"]);
        let said = self.out(&mut view, GH_PATIENCE, "").await.ok()?;
        said.lines().find(|line| line.starts_with("http")).map(str::to_string)
    }
}

/// Whether `gh` complains of a label. It has no exit code for that.
fn is_about_labels(error: &RepoError) -> bool {
    let RepoError::Command(CommandError::Failed { complaint, .. }) = error else { return false };
    complaint.contains("label")
}

/// Pushes the branch, rebased onto the remote's current base for a pull request. Returns its
/// name at the remote, and the files that conflict. Each step first checks whether it was done
/// before a crash.
async fn pushed(
    connection: &Connection,
    hosted: &Hosted,
    run: &Run,
    base: &str,
) -> Result<(String, String), RepoError> {
    let target = run.target();
    let (commit, conflicts) = match run.settings.pull_request {
        true => connection.rebased(&hosted.repos, &target, base).await?,
        false => {
            (hub::commit(&hosted.repos, &target).await.ok_or(Refusal::NoResult)?, String::new())
        }
    };
    let branch = push_beside(connection, hosted, &commit, &target).await?;
    Ok((branch, conflicts))
}

/// Pushes under the branch's name, or under another one. That is needed if the name is
/// protected, belongs to somebody else, or conflicts with the name of another branch.
async fn push_beside(
    connection: &Connection,
    hosted: &Hosted,
    commit: &str,
    target: &str,
) -> Result<String, RepoError> {
    let mut refused = RepoError::from(Refusal::NoName);
    for name in [target.to_string(), format!("{target}-rebased"), target.replace('/', "-")] {
        match connection.push(&hosted.repos, commit, &name).await {
            Ok(()) => {
                fault::point("run.pushed");
                return Ok(name);
            }
            // The hook may run for minutes, and the name is no reason of its.
            Err(why @ RepoError::Refused(Refusal::HookRefused(_) | Refusal::ChangedHook(_))) => {
                return Err(why);
            }
            Err(why) => refused = why,
        }
    }
    Err(refused)
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
        text.push_str("\nAutomatic rebasing failed; these files conflict:\n\n");
        text.extend(conflicts.lines().map(|line| format!("- {line}\n")));
    }
    cut(&text, BODY_LIMIT)
}
