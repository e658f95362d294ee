//! Runs one agent of a run: makes its worktree, prompt and dispatch, and reads its results.

mod briefing;
mod settle;
mod typescript;

use crate::daemon::context::Daemon;
use crate::dispatch::confine::Confined;
use crate::dispatch::control;
use crate::dispatch::launch::sealed_home;
use crate::dispatch::request::{self, Asker, Part, Prepared};
use crate::ledger;
use crate::spec_run::host::Hosted;
use crate::spec_run::trouble::Trouble;
use crate::spec_run::{beads, repairs, steps};
pub use briefing::guideline;
use briefing::{prompt, rules, variables};
use muleteer_model::agent::event::cut;
use muleteer_model::beads::{Op, Status};
use muleteer_model::dispatch::life;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Event, Outcome, Purse};
use muleteer_model::spec_run::event::Purpose;
use muleteer_model::spec_run::{Input, Job, JobEnd, Run, Sealed, judge};
use muleteer_process::fault;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1;
use muleteer_vcs::spec_run::hub;
use settle::settle;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const KILL_PATIENCE: Duration = Duration::from_secs(45);
/// The pause between two attempts to read the archive.
const ARCHIVE_PAUSE: Duration = Duration::from_secs(1);

/// Makes sure that the agent runs, waits for its end, and returns the outcome. Returns nothing if
/// the agent is terminated before it started; [`end`] reports that case.
pub async fn run(
    daemon: &Arc<Daemon>,
    hosted: &Arc<Hosted>,
    run: &Arc<Run>,
    job: &Job,
) -> Result<Option<Input>, Trouble> {
    let id = id_of(job)?;
    tokio::select! {
        biased;
        () = hosted.repos.halt.cancelled() => return Ok(None),
        restored = restore(daemon, &id) => restored?,
    }
    if daemon.snapshot().get(&id).is_none() {
        tokio::select! {
            biased;
            () = hosted.repos.halt.cancelled() => return Ok(None),
            begun = begin_planned(daemon, hosted, run, job, &id) => begun?,
        }
    }
    control::bring_up(daemon, &id).await;
    ended(daemon, &id).await;
    fault::point("run.agent_ended");
    let end = settle(daemon, hosted, run, job, &id).await?;
    Ok(Some(Input::JobEnded { dispatch: job.start.dispatch.clone(), end: Box::new(end) }))
}

/// Begins an agent. The beads of a plan that a person wants changed are closed before, so that the
/// agent that plans again does not find them open.
async fn begin_planned(
    daemon: &Arc<Daemon>,
    hosted: &Arc<Hosted>,
    run: &Arc<Run>,
    job: &Job,
    id: &DispatchId,
) -> Result<(), Trouble> {
    if job.start.purpose == Purpose::Decompose && !run.is_amending() {
        steps::withdraw(hosted, run).await?;
    }
    begin(daemon, hosted, run, job, id).await
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
    restore(daemon, &id).await?;
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

/// Restores a dispatch that was archived while the run was paused. Waits while the archive is
/// filled again, which takes as long as the log is: the run must not fail by it.
async fn restore(daemon: &Daemon, id: &DispatchId) -> Result<(), Trouble> {
    loop {
        let Err(error) = ledger::archive::restore(daemon, id).await else { return Ok(()) };
        let passes = [ErrorCode::Busy, ErrorCode::Db].iter().any(|it| it.as_str() == error.code);
        if !passes {
            return Err(Trouble::new(&error.code, error.message));
        }
        tracing::warn!(dispatch = %id, error = %error.message, "waiting for the archive");
        tokio::time::sleep(ARCHIVE_PAUSE).await;
    }
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
    let purpose = job.start.purpose;
    let spec = spec_text(daemon, hosted, run, purpose).await?;
    let dir = workdir(hosted, job);
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
        role: if matches!(purpose, Purpose::Judge | Purpose::Structure | Purpose::Review) {
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
        title: Some(title(run, job)),
        spec: Some(run.started.spec.clone()).filter(|spec| !spec.is_empty()),
        permissions: None,
        sandbox: false,
    };
    let sealed = is_sealed(purpose);
    let part = Part {
        run: hosted.run_id.clone(),
        repo: hosted.repo.clone(),
        journals: sealed.then(|| hosted.places.sealed.join("journals")),
        confined: match run.settings.confined {
            true => Some(confined(hosted, job, &request, run.settings.private_home).await?),
            false => None,
        },
        purse,
        only_reads: purpose == Purpose::Judge && !run.settings.confined,
        rules: rules(hosted, run, job).await?,
        schema: (purpose == Purpose::Structure).then(judge::schema),
        home: sealed.then(|| hosted.places.home_of(id)),
    };
    let trace = run.context(job.start.bead_id.as_deref()).map(|context| context.to_string());
    let asker = Asker::Run(Box::new(part));
    let Prepared { entries, reservation, .. } = request::prepare(daemon, &spawn, &asker, trace)
        .await
        .map_err(|error| Trouble::new(&error.code, error.message))?;
    fault::point("run.before_dispatch");
    ledger::append(daemon, entries)
        .await
        .map_err(|error| Trouble::new(ErrorCode::Internal, error.to_string()))?;
    drop(reservation);
    fault::point("run.after_dispatch");
    Ok(())
}

/// Returns the spec for an agent: the frozen one, or that which is under review before its freeze.
async fn spec_text(
    daemon: &Daemon,
    hosted: &Arc<Hosted>,
    run: &Run,
    purpose: Purpose,
) -> Result<String, Trouble> {
    if purpose != Purpose::Review {
        return steps::verified_spec(&hosted.places, run);
    }
    if run.frozen.is_none() {
        steps::make_hub(daemon, hosted, run).await?;
    }
    let path = hosted.places.spec(run.versions.current);
    std::fs::read_to_string(&path).map_err(steps::io(&path))
}

/// Whether the agent knows the acceptance criteria, or says whether they are met. Nobody else may
/// read what it reads and writes, and nothing that others wrote may instruct it.
fn is_sealed(purpose: Purpose) -> bool {
    matches!(purpose, Purpose::Acceptance | Purpose::Judge | Purpose::Structure)
}

/// Returns the title of the agent's task, which names no acceptance criterion: everybody may read
/// it.
fn title(run: &Run, job: &Job) -> String {
    let purpose = job.start.purpose.as_str();
    let bead = job.start.bead_id.as_ref().and_then(|id| run.beads.get(id));
    match bead {
        Some(bead) => format!("{purpose}: {}", bead.planned.title),
        None => format!("{purpose}: {}", run.started.title),
    }
}

/// Returns the budget that all agents of the run share, if there is one.
fn purse(hosted: &Hosted, run: &Run) -> Option<Purse> {
    run.settings.budget_usd.map(|usd| Purse { of: hosted.run_id.clone(), usd })
}

/// Returns the paths that this agent may see and write, beyond those of all agents.
async fn confined(
    hosted: &Hosted,
    job: &Job,
    request: &v1::Run,
    private_home: bool,
) -> Result<Confined, Trouble> {
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
        private_home,
        nested: exceptions.nested,
        max_processes: exceptions.max_processes,
        max_memory_mib: exceptions.max_memory_mib,
        max_home_mib: exceptions.max_home_mib,
        only_model: purpose == Purpose::Structure,
        ..Confined::default()
    };
    if purpose != Purpose::Judge {
        let given = hosted.run().and_then(|run| run.settings.acceptance_path.clone());
        confined.hide.extend(given.map(|path| hosted.repo.join(path)));
    }
    confined.show.extend(hub::lenders(&hosted.repos).await);
    // A spec under review has no frozen copy yet.
    confined.show.extend(Some(places.frozen_spec()).filter(|path| path.exists()));
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
    if is_sealed(purpose) {
        make_dir(&places.sealed.join("journals"), 0o700)?;
        confined.write.push(places.sealed.join("journals"));
        confined.talk = Some(places.talk());
        // The sandbox can only show what exists.
        let homes = places.home_of(&id_of(job)?);
        for home in sealed_home::folders(&homes) {
            make_dir(&home, 0o700)?;
            confined.write.push(home);
        }
    } else {
        make_dir(&journals, 0o700)?;
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

fn make_dir(path: &Path, mode: u32) -> Result<(), Trouble> {
    muleteer_store::atomic::create_dir_durable(path, mode)
        .map_err(|error| Trouble::new(ErrorCode::StoreIo, crate::dispatch::error::chain(&error)))
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

/// Describes sealed files by their path and hash.
pub fn sealed(path: &Path, sha256: String) -> Sealed {
    Sealed { path: path.display().to_string(), sha256 }
}
