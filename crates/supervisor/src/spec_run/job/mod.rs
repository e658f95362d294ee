//! Runs one agent of a run: makes its worktree, prompt and dispatch, and reads its results.

mod briefing;

use crate::daemon::context::Daemon;
use crate::dispatch::confine::Confined;
use crate::dispatch::control;
use crate::dispatch::request::{self, Asker, Part};
use crate::ledger;
use crate::spec_run::host::Hosted;
use crate::spec_run::trouble::Trouble;
use crate::spec_run::{beads, output, repairs};
pub use briefing::guideline;
use briefing::{prompt, reasoning, rules, variables};
use muleteer_model::agent::event::cut;
use muleteer_model::beads::{OBSERVATION, Op, Status, run_label};
use muleteer_model::dispatch::life;
use muleteer_model::dispatch::{Dispatch, Stop};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Event, FinalState, Limit, Outcome, Purse};
use muleteer_model::spec_run::event::Purpose;
use muleteer_model::spec_run::{self, Input, Job, JobEnd, JudgeStage, Run, Sealed, judge};
use muleteer_process::fault;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1;
use muleteer_vcs::error::RepoError;
use muleteer_vcs::spec_run::hub;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The three files that an acceptance agent writes.
const CRITERIA: [&str; 3] = ["user-stories.md", "edge-cases.md", "negative-tests.md"];
const KILL_PATIENCE: Duration = Duration::from_secs(45);

/// Makes sure that the agent runs, waits for its end, and returns the outcome. Returns nothing if
/// the agent is terminated before it started; [`end`] reports that case.
pub async fn run(
    daemon: &Arc<Daemon>,
    hosted: &Arc<Hosted>,
    run: &Arc<Run>,
    job: &Job,
) -> Result<Option<Input>, Trouble> {
    let id = id_of(job)?;
    if daemon.snapshot().get(&id).is_none() {
        tokio::select! {
            biased;
            () = hosted.repos.halt.cancelled() => return Ok(None),
            begun = begin(daemon, hosted, run, job, &id) => begun?,
        }
    }
    control::bring_up(daemon, &id).await;
    ended(daemon, &id).await;
    fault::point("run.agent_ended");
    let end = settle(daemon, hosted, run, job, &id).await?;
    Ok(Some(Input::JobEnded { dispatch: job.start.dispatch.clone(), end: Box::new(end) }))
}

/// Terminates the agent and returns the outcome, once the end is certain.
///
/// # Errors
/// `E_BUSY` if the agent has not ended in time; the caller retries.
pub async fn end(
    daemon: &Arc<Daemon>,
    hosted: &Arc<Hosted>,
    run: &Arc<Run>,
    job: &Job,
) -> Result<Input, Trouble> {
    let id = id_of(job)?;
    let mut end = JobEnd::new(Outcome::Failure, "the run was stopped");
    hosted.repos.halt.cancel();
    drop(hosted.begins.write().await);
    // A task that was cancelled may have requested the dispatch without waiting for the answer.
    ledger::settled(daemon)
        .await
        .map_err(|error| Trouble::new(ErrorCode::Busy, error.to_string()))?;
    if daemon.snapshot().get(&id).is_some() {
        control::bring_up(daemon, &id).await;
        let kill = life::Input::Kill {
            reason: "the run was stopped".into(),
            by: format!("run/{}", hosted.run_id),
        };
        control::command(daemon, &id, kill)
            .await
            .map_err(|error| Trouble::new(&error.code, error.message))?;
        tokio::time::timeout(KILL_PATIENCE, ended(daemon, &id)).await.map_err(|_| {
            Trouble::new(
                ErrorCode::Busy,
                format!(
                    "dispatch {id} was still running {} s after it was killed",
                    KILL_PATIENCE.as_secs()
                ),
            )
        })?;
        match settle(daemon, hosted, run, job, &id).await {
            Ok(settled) => end = settled,
            Err(trouble) => {
                take_back(hosted, job).await?;
                end.reason = cut(&format!("the run was stopped: {}", trouble.message), 300);
            }
        }
    }
    Ok(Input::JobEnded { dispatch: job.start.dispatch.clone(), end: Box::new(end) })
}

fn id_of(job: &Job) -> Result<DispatchId, Trouble> {
    DispatchId::try_from(job.start.dispatch.clone())
        .map_err(|error| Trouble::new(ErrorCode::Internal, error.to_string()))
}

async fn ended(daemon: &Daemon, id: &DispatchId) {
    let mut fleet = daemon.fleet.subscribe();
    let _ =
        fleet.wait_for(|fleet| fleet.get(id).is_some_and(|dispatch| dispatch.is_finished())).await;
}

/// Returns the directory that the agent works in.
pub fn workdir(hosted: &Hosted, job: &Job) -> PathBuf {
    hosted.repo.join(&job.start.workdir)
}

/// Makes the agent's worktree and its dispatch. If the future is dropped, either may have been
/// made.
async fn begin(
    daemon: &Arc<Daemon>,
    hosted: &Arc<Hosted>,
    run: &Arc<Run>,
    job: &Job,
    id: &DispatchId,
) -> Result<(), Trouble> {
    let _begins = hosted.begins.read().await;
    let spec = crate::spec_run::steps::verified_spec(&hosted.places, run)?;
    let dir = workdir(hosted, job);
    let purpose = job.start.purpose;
    fault::point("run.before_worktree");
    let branch = job
        .start
        .bead_id
        .as_ref()
        .filter(|_| purpose == Purpose::Implement || purpose == Purpose::Maintain);
    hub::unlock(&hosted.repos, &run.target()).await;
    let fault = hub::worktree(
        &hosted.repos,
        &dir,
        &run.target(),
        branch.map(String::as_str),
        job.start.reuse,
    )
    .await
    .map_err(|error| Trouble::new(ErrorCode::Git, error.to_string()))?;
    repairs::report(daemon, hosted);
    if let Some(message) = fault {
        daemon.note(Event::Fault { what: format!("worktree {}", dir.display()), message });
    }
    fault::point("run.after_worktree");
    let prompt = prompt(daemon, hosted, run, job, &spec).await?;
    let request = hosted.request();
    let purse = purse(hosted, run);
    let spent = daemon.snapshot().purse_usd(&hosted.run_id);
    if let Some(purse) = purse.as_ref().filter(|purse| spent >= purse.usd) {
        // Agents that still run have spent it, so the run does not know of it yet.
        return Err(Trouble::new(
            ErrorCode::Budget,
            format!("spent ${spent:.2} of its budget of ${:.2}", purse.usd),
        ));
    }
    let spawn = v1::Spawn {
        id: id.to_string(),
        role: if matches!(purpose, Purpose::Judge | Purpose::Structure) {
            "reviewer"
        } else {
            "developer"
        }
        .into(),
        project: dir.display().to_string(),
        prompt,
        feature: Some(hosted.run_id.clone()),
        model: model(hosted, purpose, &request),
        backend: Some(run.settings.backend.clone()),
        command: request.command.clone().or_else(|| hosted.chosen().command),
        scenario: request.scenario.clone(),
        budget_usd: purse.as_ref().map(|purse| purse.usd - spent),
        max_turns: None,
        timeout_s: Some(run.settings.timeout_s),
        worktree: false,
        env: request.env.clone(),
        extra_env: variables(hosted, run, job, &request),
        config: request.config.clone(),
    };
    let sealed = matches!(purpose, Purpose::Acceptance | Purpose::Judge | Purpose::Structure);
    let part = Part {
        run: hosted.run_id.clone(),
        repo: hosted.repo.clone(),
        journals: sealed.then(|| hosted.places.sealed.join("journals")),
        confined: match run.settings.confined {
            true => Some(confined(hosted, job, &request).await?),
            false => None,
        },
        purse,
        only_reads: purpose == Purpose::Judge && !run.settings.confined,
        rules: rules(hosted, run, job).await?,
        schema: (purpose == Purpose::Structure).then(judge::schema),
    };
    let trace = run.context(job.start.bead_id.as_deref()).map(|context| context.to_string());
    let (entries, claim) = request::prepare(daemon, &spawn, &Asker::Run(Box::new(part)), trace)
        .await
        .map_err(|error| Trouble::new(&error.code, error.message))?;
    fault::point("run.before_dispatch");
    ledger::append(daemon, entries)
        .await
        .map_err(|error| Trouble::new(ErrorCode::Internal, error.to_string()))?;
    drop(claim);
    fault::point("run.after_dispatch");
    Ok(())
}

/// Returns the budget that all agents of the run share, if there is one.
fn purse(hosted: &Hosted, run: &Run) -> Option<Purse> {
    run.settings.budget_usd.map(|usd| Purse { of: hosted.run_id.clone(), usd })
}

/// Returns the paths that this agent may see and write, beyond those of all agents.
async fn confined(hosted: &Hosted, job: &Job, request: &v1::Run) -> Result<Confined, Trouble> {
    let (purpose, places) = (job.start.purpose, &hosted.places);
    let exceptions = hosted.chosen();
    let home = request.env.iter().find(|(name, _)| name == "HOME").map(|(_, home)| home.clone());
    let expand = |path: &String| match (path.strip_prefix("~/"), &home) {
        (Some(rest), Some(home)) => Path::new(home).join(rest),
        _ => PathBuf::from(path),
    };
    let journals = hosted.repo.join(".agents/journals").join(&hosted.run_id);
    let mut confined = Confined {
        write: exceptions.write.iter().map(expand).collect(),
        show: exceptions.show.iter().map(expand).collect(),
        talk: None,
        hide: vec![],
    };
    if purpose != Purpose::Judge {
        let given = hosted.run().and_then(|run| run.settings.acceptance_path.clone());
        confined.hide.extend(given.map(|path| hosted.repo.join(path)));
    }
    confined.show.extend(hub::lenders(&hosted.repos).await);
    confined.show.push(places.frozen_spec());
    confined.show.extend(request.scenario.as_ref().map(PathBuf::from));
    let (workdir, hub) = (workdir(hosted, job), places.repos().hub());
    match purpose {
        Purpose::Judge => confined.show.extend([workdir, hub]),
        Purpose::Implement | Purpose::Maintain => {
            // The harness may run git there, so agents must not control its configuration and
            // hooks.
            let ours =
                ["config", "hooks", "HEAD", "info", "objects/info"].map(|name| hub.join(name));
            confined.show.extend(ours);
            confined.write.extend([workdir, hub]);
        }
        _ => {
            confined.show.push(hub);
            confined.write.push(workdir);
        }
    }
    match purpose {
        Purpose::Acceptance => confined.write.push(places.acceptance.clone()),
        Purpose::Judge => confined.show.push(places.acceptance.clone()),
        _ => {}
    }
    if matches!(purpose, Purpose::Acceptance | Purpose::Judge | Purpose::Structure) {
        make_dir(&places.sealed.join("journals"), 0o700)?;
        confined.write.push(places.sealed.join("journals"));
        confined.talk = Some(places.talk());
    } else {
        make_dir(&journals, 0o755)?;
        confined.write.push(journals);
    }
    Ok(confined)
}

/// Returns the configured model of the judge or of the acceptance agent.
fn model(hosted: &Hosted, purpose: Purpose, request: &v1::Run) -> Option<String> {
    let chosen = hosted.chosen();
    let own = match purpose {
        Purpose::Judge | Purpose::Structure => chosen.judge_model,
        Purpose::Acceptance => chosen.acceptance_model,
        _ => None,
    };
    own.or_else(|| request.model.clone())
}

/// Returns the name of the verdict's file: `iteration-1.yml`, then `iteration-1-2.yml` for a second
/// verdict of the same iteration.
fn verdict_name(run: &Run) -> String {
    let before =
        run.verdicts.iter().filter(|end| end.iteration == run.iteration && end.result.is_some());
    match before.count() {
        0 => format!("iteration-{}.yml", run.iteration),
        before => format!("iteration-{}-{}.yml", run.iteration, before + 1),
    }
}

fn make_dir(path: &Path, mode: u32) -> Result<(), Trouble> {
    muleteer_store::atomic::create_dir_durable(path, mode)
        .map_err(|error| Trouble::new(ErrorCode::StoreIo, crate::dispatch::error::chain(&error)))
}

/// Collects the agent's results: all facts that the pipeline decides by.
async fn settle(
    daemon: &Arc<Daemon>,
    hosted: &Arc<Hosted>,
    run: &Arc<Run>,
    job: &Job,
    id: &DispatchId,
) -> Result<JobEnd, Trouble> {
    let dispatch = daemon.snapshot().get(id).cloned().ok_or_else(|| {
        Trouble::new(ErrorCode::Internal, format!("dispatch {id} no longer exists"))
    })?;
    let mut end = outcome(&dispatch, job);
    if matches!(&dispatch.stop, Some(Stop::Limit { limit: Limit::Budget, .. })) {
        let spent = daemon.snapshot().purse_usd(&hosted.run_id);
        end.penniless = Some(spent)
            .filter(|spent| run.settings.budget_usd.is_some_and(|budget| *spent >= budget));
    }
    let dir = workdir(hosted, job);
    let said = {
        let (spool, backend) = (daemon.paths.spool(id.as_str()), dispatch.created.backend.clone());
        tokio::task::spawn_blocking(move || output::read(&spool, &backend))
            .await
            .map_err(|error| Trouble::new(ErrorCode::Internal, error.to_string()))?
    };
    end.last_lines = said.tail();
    let outlived = hub::outlived_the_machine(&hosted.repos, &dir);
    let only_word =
        matches!(job.start.purpose, Purpose::Acceptance | Purpose::Judge | Purpose::Structure);
    if outlived && only_word && end.outcome == Outcome::Success {
        // Its output and files were not synced, and nothing shows whether they are complete.
        (end.outcome, end.reason) =
            (Outcome::Failure, "the machine stopped before its work was inspected".into());
    }
    let git = |error: RepoError| Trouble::new(ErrorCode::Git, error.to_string());
    match job.start.purpose {
        Purpose::Implement | Purpose::Maintain => {
            let bead = job.start.bead_id.clone().unwrap_or_default();
            hub::unlock(&hosted.repos, &run.target()).await;
            end.undone = hub::guard(&hosted.repos, &run.target(), Some(&job.start.dispatch))
                .await
                .map_err(git)?;
            repairs::report(daemon, hosted);
            let target = run.target();
            let (work, remote) = tokio::join!(
                hub::work(&hosted.repos, &dir, &target),
                crate::spec_run::publish::remote_lately(hosted, run)
            );
            let work = work.map_err(git)?;
            end.trespassed = crate::spec_run::publish::trespassed(hosted, run, remote).await;
            (end.commits, end.on_target, end.whole) = (work.commits, work.on_target, work.whole);
            if let Some(why) = work.unreadable {
                // The attempt has failed, not the run: another attempt gets another clone.
                (end.outcome, end.reason) =
                    (Outcome::Failure, cut(&format!("its clone is broken: {why}"), 300));
            }
            if end.commits == 0 && job.start.attempt > 0 {
                // An attempt that failed before it closed the bead may have pushed all the work.
                end.pushed_before =
                    hub::was_pushed(&hosted.repos, &bead, &run.target()).await.map_err(git)?;
            }
            settle_bead(hosted, run, job, &bead, &mut end).await?;
            end.observations = observations(hosted).await?;
        }
        Purpose::Acceptance if end.outcome == Outcome::Success => {
            let folder = hosted.places.acceptance.clone();
            match crate::spec_run::criteria::seal(hosted, &folder, &CRITERIA).await {
                Ok(sealed) => end.sealed = Some(sealed),
                Err(why) if why.is_disk_full => return Err(why),
                Err(why) => (end.outcome, end.reason) = (Outcome::Failure, why.message),
            }
        }
        Purpose::Decompose if end.outcome == Outcome::Success => {
            let mark = beads::mark(&hosted.run_id, &job.start.dispatch);
            let made = beads::with_store(
                hosted,
                Op::List { labels: vec![], status: None, staged: Some(mark.clone()) },
                String::new(),
            )
            .await?
            .beads
            .into_iter()
            .filter(|bead| bead.staged.as_ref() == Some(&mark))
            .count();
            if made == 0 {
                (end.outcome, end.reason) =
                    (Outcome::Failure, "it succeeded without creating beads".into());
                end.empty = true;
            }
        }
        Purpose::Judge => {
            end.undone = hub::hold(&hosted.repos, &run.target(), Some(&job.start.dispatch))
                .await
                .map_err(git)?;
            repairs::report(daemon, hosted);
            // The judge is not to blame if the disk lost files.
            let dirty = !outlived && hub::is_dirty(&hosted.repos, &dir).await.map_err(git)?;
            end.wrote = dirty || end.undone.is_some();
            if end.outcome == Outcome::Success && !end.wrote {
                let round = match run.judge() {
                    Some(JudgeStage::Reason { round }) => *round,
                    Some(JudgeStage::Structure { .. } | JudgeStage::Apply(_)) | None => 1,
                };
                make_dir(&hosted.places.verdicts(), 0o700)?;
                let path = reasoning(hosted, run, round);
                muleteer_store::atomic::write_atomic(&path, said.answer().as_bytes(), 0o600)
                    .map_err(|error| {
                        Trouble::new(ErrorCode::StoreIo, crate::dispatch::error::chain(&error))
                    })?;
            }
        }
        Purpose::Structure if end.outcome == Outcome::Success => {
            let ways = [said.document(), said.answer(), said.everything()];
            let verdict = judge::read(ways.iter().map(String::as_str));
            if let Ok(result) = &verdict
                && let Ok(text) = muleteer_model::spec_run::checkpoint::to_yaml(result)
            {
                let path = hosted.places.verdicts().join(verdict_name(run));
                let _ = muleteer_store::atomic::write_atomic(&path, text.as_bytes(), 0o600);
            }
            end.verdict = Some(verdict);
        }
        _ => {}
    }
    Ok(end)
}

/// Returns the outcome that the dispatch reports, before any file of the agent is read.
fn outcome(dispatch: &Dispatch, job: &Job) -> JobEnd {
    let reason = dispatch.reason.clone().unwrap_or_default();
    let state = match dispatch.phase {
        muleteer_model::dispatch::Phase::Finished { state } => state,
        _ => FinalState::Failed,
    };
    let timed_out = matches!(
        &dispatch.stop,
        Some(Stop::Limit { limit: Limit::Timeout, .. } | Stop::Stall { .. })
    ) || dispatch
        .ended
        .map_or_else(|| Limit::is_timeout(&reason), |ended| ended.outcome == Outcome::Timeout);
    let limited = matches!(&dispatch.stop, Some(Stop::Limit { .. }));
    let outcome = match state {
        _ if timed_out => Outcome::Timeout,
        FinalState::Success => Outcome::Success,
        // It ended by itself without a readable result: its files and commits decide.
        FinalState::Partial if !limited => Outcome::Success,
        _ => Outcome::Failure,
    };
    let said =
        dispatch.result.value.as_ref().map(|result| cut(&result.summary, 300)).unwrap_or_default();
    let why = [reason.as_str(), &said, state.as_str()].into_iter().find(|text| !text.is_empty());
    let mut end = JobEnd::new(outcome, why.unwrap_or_default());
    end.unknown = dispatch.ended.is_some_and(|ended| ended.is_unknown(state));
    // It waited as long as it was allowed to. The outage is no failure of the bead.
    end.rate_limited = outcome == Outcome::Failure
        && dispatch.outage.as_ref().is_some_and(|outage| outage.trouble.presses());
    end.cost_usd = dispatch.spend.cost_usd;
    let took = dispatch.since.as_millisecond() - job.started_at.as_millisecond();
    end.duration_ms = took.max(0) as u64;
    end
}

/// Closes, reopens or blocks the bead after its agent. If the work is pushed and the bead open, the
/// harness closes it. Unfinished work leaves the bead open, or blocked after its last attempt. The
/// store is changed before the run's log: a daemon that is killed in between repeats this.
async fn settle_bead(
    hosted: &Arc<Hosted>,
    run: &Arc<Run>,
    job: &Job,
    bead: &str,
    end: &mut JobEnd,
) -> Result<(), Trouble> {
    let purpose = job.start.purpose;
    let found = beads::with_store(hosted, Op::Show { id: bead.into() }, String::new()).await?;
    let Some(bead) = found.beads.into_iter().next() else { return Ok(()) };
    end.closed = bead.status == Status::Closed;
    end.no_change = bead.no_change;
    let pushed = end.whole;
    let maintained = purpose == Purpose::Maintain;
    let complete = end.closed && (end.has_pushed() || (end.no_change && end.commits == 0))
        || (maintained && end.closed);
    let finished = end.outcome == Outcome::Success || (end.unknown && !maintained);
    let close = !end.closed && finished && (pushed || maintained);
    // The run proceeds meanwhile.
    let newest = || hosted.run().unwrap_or_else(|| run.clone());
    fault::point("run.before_bead");
    let op = if close {
        let reason =
            if pushed { "its commits are on the target branch" } else { "maintenance has ended" };
        Some(Op::Close { id: bead.id.clone(), reason: reason.into(), no_change: !pushed })
    } else if !complete && maintained {
        // If the run was stopped, another maintenance bead will replace this one.
        let reason = if newest().stopping().is_some() {
            "the run was stopped"
        } else {
            "maintenance has failed"
        };
        Some(Op::Close { id: bead.id.clone(), reason: reason.into(), no_change: true })
    } else if !complete {
        Some(Op::Reopen { id: bead.id.clone() })
    } else {
        None
    };
    if let Some(op) = op {
        beads::with_store(hosted, op, String::new()).await?;
    }
    if spec_run::blocks(&newest(), &job.start.dispatch, end) {
        let blocked = Op::Update {
            id: bead.id.clone(),
            title: None,
            description: None,
            status: Some("blocked".into()),
            priority: None,
            issue_type: None,
            add_labels: vec![],
            remove_labels: vec![],
        };
        beads::with_store(hosted, blocked, String::new()).await?;
    }
    fault::point("run.after_bead");
    Ok(())
}

/// Reopens a bead if its agent's work could not be read. A bead that its agent closed would count
/// as closed by a person when the run resumes.
///
/// # Errors
/// `E_BUSY`; the caller retries.
async fn take_back(hosted: &Arc<Hosted>, job: &Job) -> Result<(), Trouble> {
    let Some(id) = job.start.bead_id.clone().filter(|_| job.start.purpose == Purpose::Implement)
    else {
        return Ok(());
    };
    let busy = |trouble: Trouble| Trouble::new(ErrorCode::Busy, trouble.message);
    let found = beads::with_store(hosted, Op::Show { id: id.clone() }, String::new())
        .await
        .map_err(busy)?;
    if found.beads.first().is_some_and(|bead| bead.status == Status::Closed) {
        beads::with_store(hosted, Op::Reopen { id }, String::new()).await.map_err(busy)?;
    }
    Ok(())
}

/// Returns the open observations of the run.
async fn observations(hosted: &Arc<Hosted>) -> Result<Vec<String>, Trouble> {
    let labels = vec![run_label(&hosted.run_id), OBSERVATION.into()];
    let list = Op::List { labels, status: Some("open".into()), staged: None };
    let found = beads::with_store(hosted, list, String::new()).await?;
    Ok(found.beads.into_iter().map(|bead: muleteer_model::beads::Bead| bead.id).collect())
}

/// Describes sealed files by their path and hash.
pub fn sealed(path: &Path, sha256: String) -> Sealed {
    Sealed { path: path.display().to_string(), sha256 }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The stopped run does not record the bead as blocked, so its store must not either.
    #[tokio::test]
    async fn stop_while_a_bead_is_reopened_does_not_block_it() {
        let dir = tempfile::tempdir().unwrap();
        let past =
            ["run_started", "beads_created", "beads_accepted", "bead_assigned", "agent_started"];
        let samples = muleteer_store::events::catalog::samples();
        let of =
            |name: &&str| samples.iter().find(|record| record.entry.event.name() == *name).unwrap();
        let mut run = Run::fold(past.iter().map(of)).unwrap();
        run.settings.max_retries = 0;
        let run = Arc::new(run);
        let hosted = Arc::new(Hosted::alone(dir.path(), run.id()));
        hosted.state.send_replace(Some(run.clone()));
        let job = run.jobs.values().next().cloned().unwrap();
        let id = job.start.bead_id.clone().unwrap();
        let make = Op::Create {
            title: "Parse the header".into(),
            description: String::new(),
            issue_type: "task".into(),
            priority: 1,
            labels: vec![],
            depends_on: vec![],
            key: None,
            staged: None,
        };
        beads::with_store(&hosted, make, id.clone()).await.unwrap();
        let mut end = JobEnd::new(Outcome::Failure, "exit code 1");
        assert!(spec_run::blocks(&run, &job.start.dispatch, &end), "it was its last try");
        let before = hosted.beads.lock().await;
        let settling = settle_bead(&hosted, &run, &job, &id, &mut end);
        let stopping = async {
            drop(before);
            // The store is locked in turn, so the bead has been shown by now.
            let between = hosted.beads.lock().await;
            while Arc::strong_count(&hosted.beads) == 1 {
                tokio::task::yield_now().await;
            }
            let mut stopped = Run::clone(&run);
            let stopping = spec_run::Stopping { code: String::new(), message: "enough".into() };
            stopped.standing = spec_run::RunStanding::Stopping(stopping);
            hosted.state.send_replace(Some(Arc::new(stopped)));
            drop(between);
        };
        tokio::join!(settling, stopping).0.unwrap();
        let found = beads::with_store(&hosted, Op::Show { id }, String::new()).await.unwrap();
        assert_eq!(found.beads[0].status, Status::Open);
    }
}
