//! Starts a run, resumes one, and recovers the runs of the last daemon.

mod amendment;
mod files;
pub mod gate;
pub(crate) mod preconditions;
pub(super) mod recovery;
pub(super) mod secrets;

pub use files::obstacle;
use preconditions::read_spec;

use crate::daemon::context::Daemon;
use crate::dispatch::error::{fault, internal, linked_away, unwritten};
use crate::ports::spec_run::RunMsg;
use crate::ports::tree::BranchMsg;
use crate::question::credentials;
use crate::spec_run::host::{Chosen, Hosted, LogError, Places, key_of, take_lock};
use crate::telemetry::mark;
use files::{check_checkpoint, read, save, saved};
use jiff::Timestamp;
use muleteer_model::beads::Status;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::trace_ids;
use muleteer_model::event::{Entry, Event};
use muleteer_model::spec_run::event::{RunStarted, RunStatus};
use muleteer_model::spec_run::{self, GateAnswer, GoOn, Input, Run, Settled, Stage};
use muleteer_process::fault::point;
use muleteer_process::lock::LockGuard;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{self, WireError};
use muleteer_store::atomic::{create_dir_durable, write_atomic};
use muleteer_store::beads::Store;
use muleteer_store::events::EventLog;
use muleteer_store::links::stay_within;
use muleteer_vcs::worktree;
use preconditions::{
    check_base, check_branch, check_repository, chosen, confine, in_thread, load_config,
    run_settings, scope, shown,
};
use ractor::rpc::CallResult;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Starts or resumes a run, and returns its id once it is under way. With `amend`, the resumed run
/// takes the spec of the request.
///
/// # Errors
/// The reason why it cannot begin; then nothing was made that has an effect.
pub async fn begin(
    daemon: &Arc<Daemon>,
    request: &v1::Run,
    amend: bool,
    trace: Option<String>,
) -> Result<String, WireError> {
    let waiting = match request.resume {
        true => gate::Waiting::of(daemon, request).await?,
        false => None,
    };
    let way = if amend { Way::Amend } else { Way::Client };
    let run_id = begin_by(daemon, request, way, trace).await?;
    if let Some(waiting) = waiting {
        waiting.close(daemon, request.yes && !amend).await;
    }
    Ok(run_id)
}

/// The cause of a resumption.
enum Way {
    Client,
    /// A client, with a new version of the spec.
    Amend,
    /// The answer to the question for which it rests.
    Answer {
        question: String,
        answer: GateAnswer,
    },
}

async fn begin_by(
    daemon: &Arc<Daemon>,
    request: &v1::Run,
    way: Way,
    trace: Option<String>,
) -> Result<String, WireError> {
    let _one = daemon.runs.gate.lock().await;
    let run_id = request.run_id.clone();
    // A client cannot ask for a run that never began by its id.
    let is_there = || {
        let places = Places::new(&daemon.paths, Path::new(&request.repo), &run_id);
        places.events().exists() && !matches!(read(&places), Ok(None))
    };
    let named = |error: WireError| match request.resume || is_there() {
        true => WireError { run_id: Some(run_id.clone()), ..error },
        false => error,
    };
    let key = key_of(&run_id).ok_or_else(|| {
        fault(ErrorCode::BadInput, &format!("`{run_id}` is not the id of a run"), "")
    })?;
    let outcome = match request.resume {
        true => resume(daemon, request, way, key, trace).await,
        false => create(daemon, request, key, trace).await,
    };
    if request.resume && outcome.is_err() {
        recovery::keep_again(daemon, Path::new(&request.repo), &run_id);
    }
    outcome.map_err(named)?;
    Ok(run_id)
}

async fn create(
    daemon: &Arc<Daemon>,
    request: &v1::Run,
    key: DispatchId,
    trace: Option<String>,
) -> Result<(), WireError> {
    let run_id = &request.run_id;
    let repo = PathBuf::from(&request.repo);
    let places = Places::new(&daemon.paths, &repo, run_id);
    if let Some(hosted) = daemon.runs.find(run_id) {
        hosted.give_for_push(&request.push_env);
        return Ok(());
    }
    if places.saved().exists()
        && places.events().exists()
        && let Some(known) = read(&places)?
    {
        // The client repeats its request after a lost answer. The run has begun, and may have
        // ended. If its log says that it goes on, a daemon was killed before it wrote the file.
        if places.live().exists() {
            let hosted = host(daemon, &places, key, None)?;
            hosted.give_for_push(&request.push_env);
        } else if known.is_live() {
            let lock = take_lock(&places, run_id)?;
            go_live(daemon, &places, (key, lock), request).await?;
        }
        return Ok(());
    }
    let request = &in_thread(daemon, request)?;
    let config = load_config(daemon, request, &repo)?;
    let (spec, title) = read_spec(request.spec.as_deref().unwrap_or_default())?;
    check_repository(&repo).await?;
    let settings = confine(daemon, request, &config, run_settings(request, &config)?).await;
    let bead_label = request
        .bead_label
        .clone()
        .or_else(|| config.run.phases.decompose.existing_selector.clone());
    let store = Store::new(
        &crate::daemon::settings::beads_home(&repo),
        &config.run.beads,
        Some(request.env.clone()),
    );
    scope(store, bead_label.clone(), config.run.phases.decompose.auto).await?;
    let target = request.target.clone().unwrap_or_else(|| config.run.target_branch.clone());
    check_branch(&repo, &target).await?;
    check_base(&repo, &config).await?;
    if let Some(path) = &settings.acceptance_path
        && !repo.join(path).is_dir()
    {
        let message = format!("the acceptance criteria {path} are not a directory");
        return Err(fault(
            ErrorCode::AcceptanceMissing,
            &message,
            "set `run.acceptance.path` to a directory, relative to the repository",
        ));
    }
    prepare_files(&repo, &places, &spec).await?;
    save(&places, request, &chosen(&config))?;
    let started = RunStarted {
        run_id: run_id.clone(),
        spec: shown(
            &repo,
            request.spec_shown.as_ref().or(request.spec.as_ref()).map_or("", String::as_str),
        ),
        title,
        repo: request.repo.clone(),
        target,
        bead_label,
        settings,
        trace: Some(daemon.place_in_trace(trace, trace_ids::run(run_id, 0))),
        thread: request.thread.clone(),
    };
    let lock = take_lock(&places, run_id)?;
    record_start(daemon, &places, run_id, started)?;
    point("run.recorded");
    go_live(daemon, &places, (key, lock), request).await
}

/// Hosts a run that is on record. The next daemon finds it by the file that this writes first.
async fn go_live(
    daemon: &Arc<Daemon>,
    places: &Places,
    (key, lock): (DispatchId, LockGuard),
    request: &v1::Run,
) -> Result<(), WireError> {
    write_atomic(&places.live(), b"", 0o600).map_err(|error| unwritten(&error))?;
    let hosted = host(daemon, places, key, Some(lock))?;
    hosted.give_for_push(&request.push_env);
    hosted.claim();
    bring_up(daemon, &hosted).await;
    Ok(())
}

/// Makes the run's directories, and saves its spec.
async fn prepare_files(repo: &Path, places: &Places, spec: &str) -> Result<(), WireError> {
    for path in [&places.public, &places.worktrees, &repo.join(".agents/journals")] {
        stay_within(repo, path).map_err(|error| linked_away(&error))?;
    }
    for dir in [&places.private, &places.sealed] {
        create_dir_durable(dir, 0o700).map_err(|error| unwritten(&error))?;
    }
    if let Some(git) = worktree::git_dir(repo).await {
        worktree::exclude(&git).map_err(|error| internal(&error.to_string()))?;
    }
    create_dir_durable(&places.public, 0o700).map_err(|error| unwritten(&error))?;
    write_atomic(&places.spec(0), spec.as_bytes(), 0o400).map_err(|error| unwritten(&error))
}

/// Makes the first events of a run durable, unless its log has some.
fn record_start(
    daemon: &Daemon,
    places: &Places,
    run_id: &str,
    started: RunStarted,
) -> Result<(), WireError> {
    let (mut log, _) = EventLog::open(&places.events(), 0, |_| ())
        .map_err(|error| internal(&crate::dispatch::error::chain(&error)))?;
    let entry = |name: &str, event| Entry {
        id: format!("{run_id}/{name}"),
        dispatch_id: None,
        at: None,
        more: false,
        event,
    };
    let begun = [
        Entry { more: true, ..entry("started", Event::RunStarted(Box::new(started))) },
        entry("freeze", Event::PhaseChanged { phase: spec_run::event::Phase::Freeze }),
    ];
    mark::expect(daemon, run_id, places);
    point("run.before_started");
    if log.last_seq() == 0 {
        log.append(&begun, Timestamp::now()).map_err(|error| internal(&error.to_string()))?;
    }
    Ok(())
}

/// The phase name that resumes a run with the judge, and ends it afterwards.
const JUDGE_ONLY: &str = "judge-only";

async fn resume(
    daemon: &Arc<Daemon>,
    request: &v1::Run,
    way: Way,
    key: DispatchId,
    trace: Option<String>,
) -> Result<(), WireError> {
    let amend = matches!(way, Way::Amend);
    let repo = PathBuf::from(&request.repo);
    let places = Places::new(&daemon.paths, &repo, &request.run_id);
    let missing = || {
        fault(
            ErrorCode::NotFound,
            &format!("no run {}", request.run_id),
            "run `muleteer runs` to list them",
        )
    };
    if !places.saved().exists() {
        return Err(missing());
    }
    let mut before = saved(&places.saved())?;
    secrets::give_back(daemon, &mut before, &key, &request.env);
    let kept = merged(request, before.request);
    let config = load_config(daemon, &kept, &repo)?;
    let mut chosen = chosen(&config);
    // The command of the store may change on resume, but not which store it is.
    chosen.beads.store = before.chosen.beads.store;
    let mut settings = confine(daemon, &kept, &config, run_settings(&kept, &config)?).await;
    settings.judge_only = request.from_phase.as_deref() == Some(JUDGE_ONLY);
    let from = continue_from(request)?;
    let env = Some(kept.env.clone());
    let home = crate::daemon::settings::beads_home(&repo);
    let open_store = || Store::new(&home, &chosen.beads, env.clone());
    let plan = |run: &Run| amendment::plan(open_store(), run, request, &places);
    let look = |run: &Run| -> Result<_, WireError> {
        let amended = amend.then(|| plan(run)).transpose()?;
        Ok((settled_for(open_store(), run, request, from)?, amended))
    };
    let known = daemon.runs.find(&request.run_id);
    let completed = |run: &Run| run.outcome() == Some(RunStatus::Completed);
    if from.is_none() && !amend {
        let done = match &known {
            Some(hosted) => hosted.run().is_some_and(|run| completed(&run)),
            None => {
                check_checkpoint(&places)?;
                read(&places)?.is_some_and(|run| completed(&run))
            }
        };
        // No work is left, and a published result is not published again.
        if done {
            return Ok(());
        }
    }
    let (hosted, (settled, amended), fresh) = match known {
        Some(hosted) => {
            let settled = match hosted.run() {
                Some(run) => look(&run)?,
                None => look(&read(&places)?.ok_or_else(missing)?)?,
            };
            if !hosted.claim() {
                return Err(in_progress(&request.run_id));
            }
            (hosted, settled, false)
        }
        None => {
            check_checkpoint(&places)?;
            recovery::leave_aside(daemon, &request.run_id).await;
            let lock = take_lock(&places, &request.run_id)?;
            let run = read(&places)?.ok_or_else(missing)?;
            let settled = look(&run)?;
            check_frozen(&places, &run).await?;
            let hosted = host(daemon, &places, key, Some(lock))?;
            hosted.claim();
            (hosted, settled, true)
        }
    };
    hosted.give_for_push(&request.push_env);
    let (settings, by, approve) = (Box::new(settings), "operator".to_string(), request.yes);
    let trace = daemon.given_place(trace);
    let input = Input::Resume { settings, by, approve, from, settled, trace };
    let input = match way {
        Way::Client | Way::Amend => input,
        Way::Answer { question, answer } => {
            Input::Answered { question, answer, resume: Box::new(input) }
        }
    };
    let outcome = match amendment::input(&places, amended, input) {
        Ok(input) => go_on(daemon, &places, &hosted, (kept, chosen), input).await,
        Err(error) => Err(error),
    };
    if outcome.is_err() {
        if from.is_none() && !amend && hosted.run().is_some_and(|run| completed(&run)) {
            // The run has ended by itself just now.
            return Ok(());
        }
        // Nobody drives the run now, so the next request must not get "in progress".
        *hosted.claimed.lock().unwrap_or_else(PoisonError::into_inner) = false;
        if fresh && hosted.actor.get().is_none() {
            daemon.runs.remove(&hosted.key);
            daemon.lifecycle.connections.send_modify(|count| *count = count.saturating_sub(1));
        }
    }
    outcome
}

/// Returns the point from which a person continues a run; `None` is its current phase.
fn continue_from(request: &v1::Run) -> Result<Option<GoOn>, WireError> {
    match request.from_phase.as_deref() {
        None => Ok(None),
        Some("implement") => Ok(Some(GoOn::Implement)),
        Some("maintain") => Ok(Some(GoOn::Maintain)),
        Some("judge" | JUDGE_ONLY) => Ok(Some(GoOn::Judge)),
        Some(other) => {
            let message = format!("a run cannot continue from the phase `{other}`");
            Err(fault(ErrorCode::BadInput, &message, "use implement, maintain or judge"))
        }
    }
}

/// Returns the beads that a person settled, if the run may continue from there.
fn settled_for(
    store: Store,
    run: &Run,
    request: &v1::Run,
    from: Option<GoOn>,
) -> Result<Vec<Settled>, WireError> {
    let settled = settled(store, run)?;
    match from.map(|from| spec_run::may_go_on(run, from, request.yes, &settled)) {
        Some(Err(barred)) => {
            let message =
                format!("run {} cannot continue from there: {}", request.run_id, barred.message);
            let command = run.resume_command();
            let hint = format!("continue it from its current phase with `{command}`");
            Err(fault(barred.code, &message, &hint))
        }
        _ => Ok(settled),
    }
}

/// Checks that the frozen spec and the sealed criteria are unchanged.
async fn check_frozen(places: &Places, run: &Run) -> Result<(), WireError> {
    crate::spec_run::steps::verified_spec(places, run).map_err(|error| WireError {
        file: Some(places.frozen_spec().display().to_string()),
        ..fault(&error.code, &error.message, "restore it")
    })?;
    crate::spec_run::criteria::check(run).await.map_err(|error| {
        fault(
            &error.code,
            &error.message,
            "restore them; the sealed tree of the state directory has a second copy",
        )
    })
}

fn in_progress(run_id: &str) -> WireError {
    let message = format!("run {run_id} is already in progress (pid {})", std::process::id());
    fault(ErrorCode::RunLocked, &message, "check it with `muleteer run --status`")
}

/// Makes the resumption durable, and makes sure that an actor drives the run.
async fn go_on(
    daemon: &Arc<Daemon>,
    places: &Places,
    hosted: &Arc<Hosted>,
    (kept, chosen): (v1::Run, Chosen),
    input: Input,
) -> Result<(), WireError> {
    save(places, &kept, &chosen)?;
    *hosted.beads.lock().await = Store::new(&hosted.repo, &chosen.beads, Some(kept.env.clone()));
    *hosted.chosen.lock().unwrap_or_else(PoisonError::into_inner) = chosen;
    *hosted.request.lock().unwrap_or_else(PoisonError::into_inner) = kept;
    mark::expect(daemon, &hosted.run_id, places);
    // A person wants the run, so crashes that it caused no longer count.
    recovery::taken_up(places);
    // The mark comes first: a daemon that dies in between checks once more, and finds the run at
    // rest.
    write_atomic(&places.live(), b"", 0o600).map_err(|error| unwritten(&error))?;
    if hosted.actor.get().is_none() && hosted.run().is_none() {
        let (opened, now) = (hosted.clone(), Timestamp::now());
        let amends = matches!(input, Input::Amend { .. });
        let appended = tokio::task::spawn_blocking(move || -> Result<bool, LogError> {
            let run = opened.open_log()?;
            let events = run.map(|run| spec_run::decide(&run, input, now)).unwrap_or_default();
            let taken = !events.is_empty();
            opened.append(events)?;
            Ok(taken)
        });
        let appended = appended.await.map_err(|error| internal(&error.to_string()))?;
        if !appended.map_err(|error| internal(&error.to_string()))? {
            return Err(not_taken(&hosted.run_id));
        }
        if amends {
            muleteer_process::fault::point("amend.recorded");
        }
        bring_up(daemon, hosted).await;
        return Ok(());
    }
    if hosted.actor.get().is_none() {
        bring_up(daemon, hosted).await;
    }
    let Some(actor) = hosted.actor.get() else { return Err(not_taken(&hosted.run_id)) };
    match actor
        .call(|reply| RunMsg::Command(Box::new(input), reply), Some(Duration::from_secs(30)))
        .await
    {
        Ok(CallResult::Success(true)) => Ok(()),
        _ => Err(not_taken(&hosted.run_id)),
    }
}

fn not_taken(run_id: &str) -> WireError {
    let hint = "check it with `muleteer run --status`, then try again";
    fault(
        ErrorCode::Busy,
        &format!("the state of run {run_id} changed meanwhile, so it was not resumed"),
        hint,
    )
}

/// Returns the beads that a person closed or reopened while the run was not under way.
fn settled(mut store: Store, run: &Run) -> Result<Vec<Settled>, WireError> {
    if !run.has_accepted_beads() || run.beads.values().all(|task| task.stage == Stage::Done) {
        return Ok(vec![]);
    }
    let beads = tokio::task::block_in_place(|| store.read().cloned())
        .map_err(|error| crate::spec_run::beads::wire(&error))?;
    let left =
        run.beads.iter().filter(|(_, task)| matches!(task.stage, Stage::Open | Stage::Blocked));
    Ok(left
        .filter_map(|(id, task)| {
            let bead = beads.get(id)?;
            let closed = bead.status.is_over();
            let reopened = task.stage == Stage::Blocked && bead.status == Status::Open;
            (closed || reopened).then(|| Settled {
                bead: id.clone(),
                closed,
                no_change: bead.no_change,
            })
        })
        .collect())
}

/// Merges two requests: an option that the new one leaves out keeps its old value.
fn merged(request: &v1::Run, before: v1::Run) -> v1::Run {
    let now = request.clone();
    v1::Run {
        spec: before.spec,
        spec_shown: before.spec_shown,
        target: before.target,
        bead_label: before.bead_label,
        concurrency: now.concurrency.or(before.concurrency),
        backend: now.backend.or(before.backend),
        command: now.command.or(before.command),
        scenario: now.scenario.or(before.scenario),
        model: now.model.or(before.model),
        budget_usd: now.budget_usd.or(before.budget_usd),
        max_runtime_s: now.max_runtime_s.or(before.max_runtime_s),
        preview_acceptance: now.preview_acceptance || before.preview_acceptance,
        review_spec: now.review_spec || before.review_spec,
        review: union(before.review, &now.review),
        extra_env: if now.extra_env.is_empty() { before.extra_env } else { now.extra_env },
        config: now.config.or(before.config),
        thread: now.thread.or(before.thread),
        push_env: vec![],
        ..request.clone()
    }
}

/// Returns the gates of both: a gate that is not passed yet stays.
fn union(mut gates: Vec<String>, more: &[String]) -> Vec<String> {
    for gate in more {
        if !gates.contains(gate) {
            gates.push(gate.clone());
        }
    }
    gates
}

fn host(
    daemon: &Daemon,
    places: &Places,
    key: DispatchId,
    lock: Option<muleteer_process::lock::LockGuard>,
) -> Result<Arc<Hosted>, WireError> {
    let saved = saved(&places.saved())?;
    let run_id = saved.request.run_id.clone();
    let lock = match lock {
        Some(lock) => lock,
        None => take_lock(places, &run_id)?,
    };
    let for_push = credentials::for_push_of_sign_off(daemon, &saved.request);
    let hosted = Arc::new(Hosted::new(places.clone(), &run_id, key, saved, lock));
    hosted.give_for_push(&for_push);
    daemon.runs.insert(hosted.clone(), daemon.settings.telemetry.is_some());
    // A daemon that hosts a run is not idle.
    daemon.lifecycle.connections.send_modify(|count| *count += 1);
    Ok(hosted)
}

async fn bring_up(daemon: &Daemon, hosted: &Hosted) {
    if let Some(branch) = daemon.ports.runs.get() {
        let _ = branch
            .call(|reply| BranchMsg::Add(hosted.key.clone(), reply), Some(Duration::from_secs(10)))
            .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resumption_adds_gates_and_removes_none() {
        let of = |gates: &[&str]| v1::Run {
            review: gates.iter().map(|gate| gate.to_string()).collect(),
            ..v1::Run::default()
        };
        let resumed = |more: &[&str]| merged(&of(more), of(&["plan"])).review;
        assert_eq!(resumed(&["merge"]), ["plan", "merge"]);
        assert_eq!(resumed(&["plan"]), ["plan"]);
        assert_eq!(resumed(&[]), ["plan"]);
    }
}
