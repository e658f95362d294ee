//! The gates of a run as questions: they are asked before the run rests, and their answers resume
//! it. The rules are in `model::spec_run::gate`.

use crate::conversation::new_id;
use crate::daemon::context::{Alone, Daemon};
use crate::dispatch::error::{fault, internal};
use crate::question::{places, serve};
use crate::spec_run::begin::files::{read, saved};
use crate::spec_run::begin::{Way, begin_by, secrets};
use crate::spec_run::host::{Hosted, Places, key_of};
use muleteer_model::event::Event;
use muleteer_model::question::event::{Answer, AnsweredBy, State};
use muleteer_model::question::{Question, step};
use muleteer_model::spec_run::{Gate, Run, gate};
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{self, WireError};
use muleteer_vcs::spec_run::{hub, publish};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The pause before a question that could not be recorded is tried again.
const PAUSE: Duration = Duration::from_secs(1);
const TRIES: u32 = 5;

/// The author of the answer that a resumption with `--yes` gives.
const OPERATOR: &str = "operator";

/// The reason why an answer to the question of a run has no effect.
pub const WENT_ON: &str = "the run went on";

/// The effect of an answer.
pub(crate) enum Applied {
    /// The run has it, or continued without it.
    Done,
    Impossible(String),
}

/// Asks the question of the gate at which a run is about to rest, and returns its id once it is
/// durable. The same state of a run has one question, whichever daemon asks. `None` if there is no
/// question, or if it cannot be recorded: then only `--resume --yes` continues the run.
pub async fn ask(daemon: &Arc<Daemon>, hosted: &Arc<Hosted>, run: &Run) -> Option<String> {
    let gate = run.gate()?;
    let merge = match gate {
        Gate::Merge => merge(hosted, run).await,
        Gate::Spec | Gate::Criteria | Gate::Plan => gate::Merge::default(),
    };
    let mut asked = gate::question(run, gate, &merge, new_id().to_string());
    // An earlier daemon may have asked about a state that the run has left.
    for open in daemon.snapshot().questions.open() {
        if gate::run_of(open) == Some(run.id()) && open.subject != asked.subject {
            withdraw(daemon, &open.id, WENT_ON).await;
        }
    }
    // An earlier daemon may have asked, and it may be answered already.
    if let Some(known) = daemon.snapshot().questions.of_subject(&asked.subject) {
        return Some(known.id.clone());
    }
    let request = hosted.request();
    let (run_id, title) = (run.id(), run.started.title.as_str());
    let asking = places::Asking { run_id, title, thread: hosted.key.as_str(), request: &request };
    places::choose(daemon, asking, &mut asked).await;
    let mut tries = 0;
    loop {
        tries += 1;
        match serve::ask(daemon, &asked).await {
            Ok(id) => return Some(id),
            Err(_) if tries < TRIES => tokio::time::sleep(PAUSE).await,
            Err(error) => {
                let what = format!("the question of run {}", run.id());
                daemon.note(Event::Fault { what, message: error.message });
                return None;
            }
        }
    }
}

/// Returns the facts about the branch that is to be published. A fact that git cannot tell is left
/// out.
async fn merge(hosted: &Hosted, run: &Run) -> gate::Merge {
    let base = run.frozen.as_ref().map(|frozen| frozen.base_commit.as_str()).unwrap_or_default();
    let Some(commit) = hub::commit(&hosted.repos, &run.target()).await else {
        return gate::Merge::default();
    };
    let commits = publish::count_commits(&hosted.repos, base, &commit).await.unwrap_or_default();
    let diff = publish::diff_stat(&hosted.repos, base, &commit).await.unwrap_or_default();
    gate::Merge { commit, commits, diff }
}

/// Returns the run of a question, as its log has it; `None` if the run is gone.
fn run_of(daemon: &Daemon, question: &Question) -> Result<Option<(Places, Arc<Run>)>, WireError> {
    let Some(run_id) = gate::run_of(question).filter(|id| key_of(id).is_some()) else {
        return Ok(None);
    };
    let repo = question.detail["repo"].as_str().unwrap_or_default();
    let places = Places::new(&daemon.paths, Path::new(repo), run_id);
    if !places.saved().exists() {
        return Ok(None);
    }
    let hosted = daemon.runs.find(run_id).and_then(|hosted| hosted.run());
    let run = match hosted {
        Some(run) => Some(run),
        None => tokio::task::block_in_place(|| read(&places))?.map(Arc::new),
    };
    Ok(run.map(|run| (places, run)))
}

/// Whether a run asked this question and has not recorded yet that it rests.
fn is_about_to_rest(run: &Run, question: &Question) -> bool {
    run.is_live() && run.gate().is_some_and(|at| gate::subject(run, at) == question.subject)
}

/// Whether a run rested for this question once.
fn has_rested_for(places: &Places, question: &str) -> Result<bool, WireError> {
    let mut rested = false;
    let read = muleteer_store::events::read(&places.events(), |record| {
        if let Event::RunRested { question: Some(id), .. } = &record.entry.event {
            rested |= id == question;
        }
    });
    read.map_err(|error| internal(&crate::dispatch::error::chain(&error)))?;
    Ok(rested)
}

/// Returns `E_BUSY` for the lock of this daemon: the run has announced that it rests, and is about
/// to release its lock. The lock of another daemon stays an error.
fn of_own_lock(is_hosted: bool, error: WireError) -> WireError {
    match is_hosted && error.code == ErrorCode::RunLocked.as_str() {
        true => fault(ErrorCode::Busy, "the run has not rested yet", "try again"),
        false => error,
    }
}

/// Gives the answer to the run. May be repeated.
///
/// # Errors
/// The run cannot be resumed; `E_BUSY` if it has not rested yet.
pub(crate) async fn apply(daemon: &Arc<Daemon>, question: &Question) -> Result<Applied, WireError> {
    let Some((places, run)) = run_of(daemon, question)? else {
        return Ok(Applied::Impossible("the files of its run are gone".into()));
    };
    if run.question() != Some(question.id.as_str()) {
        return match is_about_to_rest(&run, question) {
            true => Err(fault(ErrorCode::Busy, "the run has not rested yet", "try again")),
            false if tokio::task::block_in_place(|| has_rested_for(&places, &question.id))? => {
                Ok(Applied::Done)
            }
            false => Ok(Applied::Impossible(WENT_ON.into())),
        };
    }
    let (Some(answer), Some(by)) = (&question.answer, &question.answered_by) else {
        return Ok(Applied::Done);
    };
    let answer = gate::read(answer, &by.to_string());
    let request = tokio::task::block_in_place(|| saved(&places.saved()))?.request;
    let request = v1::Run {
        resume: true,
        yes: matches!(answer, muleteer_model::spec_run::GateAnswer::Approve { .. }),
        dry_run: false,
        from_phase: None,
        push_env: daemon.runs.kept_push_env(run.id()),
        ..request
    };
    let way = Way::Answer { question: question.id.clone(), answer };
    let is_hosted = || daemon.runs.find(run.id()).is_some();
    let was_hosted = is_hosted();
    let resumed = begin_by(daemon, &request, way, None).await;
    let resumed = resumed.map_err(|error| of_own_lock(was_hosted || is_hosted(), error));
    if let Err(error) = &resumed
        && !crate::dispatch::error::is_passing(error)
        && let Some(key) = key_of(run.id())
    {
        // Nothing but a client continues it now, and brings its own keys.
        daemon.runs.forget_push_env(run.id());
        secrets::put_away(daemon, &places, &key);
    }
    resumed.map(|_| Applied::Done)
}

/// Withdraws the open questions of runs that went on meanwhile: a daemon was killed between a
/// resumption and its record, or the run was removed. Called once, before answers are followed.
pub(crate) async fn reconcile(daemon: &Arc<Daemon>) {
    let fleet = daemon.snapshot();
    for question in fleet.questions.open().filter(|one| gate::run_of(one).is_some()) {
        let reason = match run_of(daemon, question) {
            Ok(Some((_, run)))
                if run.question() == Some(question.id.as_str())
                    || is_about_to_rest(&run, question) =>
            {
                continue;
            }
            Ok(Some(_)) => WENT_ON,
            Ok(None) => "the files of its run are gone",
            // It may be readable again.
            Err(_) => continue,
        };
        withdraw(daemon, &question.id, reason).await;
    }
}

/// Withdraws a question, unless it was closed meanwhile.
pub async fn withdraw(daemon: &Daemon, id: &str, reason: &str) {
    // A client may resume the run at this moment, and close the question itself.
    let _alone = daemon.creating(&format!("answer to {id}")).await;
    let now = daemon.snapshot();
    if let Some(question) = now.questions.open().find(|open| open.id == id) {
        settle(daemon, question, State::Withdrawn, reason).await;
    }
}

/// The question for which a run rests, while a client resumes it.
pub(super) struct Waiting<'a> {
    question: Arc<Question>,
    _alone: Alone<'a>,
}

impl<'a> Waiting<'a> {
    /// Returns the question for which the requested run rests, and lets nobody answer it meanwhile.
    ///
    /// # Errors
    /// `E_ALREADY_ANSWERED`: the first answer counts, and is on its way to the run.
    pub async fn of(daemon: &'a Daemon, request: &v1::Run) -> Result<Option<Self>, WireError> {
        let places = Places::new(&daemon.paths, Path::new(&request.repo), &request.run_id);
        let run = match daemon.runs.find(&request.run_id).and_then(|hosted| hosted.run()) {
            Some(run) => Some(run),
            // The resumption reports the faults of its log.
            None => tokio::task::block_in_place(|| read(&places)).unwrap_or(None).map(Arc::new),
        };
        let Some(id) = run.as_ref().and_then(|run| run.question()) else { return Ok(None) };
        let alone = daemon.creating(&format!("answer to {id}")).await;
        let fleet = daemon.snapshot();
        let known = fleet.questions.iter().find(|question| question.id == id);
        match known {
            Some(question) if question.state == State::Answered => Err(serve::closed(question)),
            Some(question) if question.is_open() => {
                Ok(Some(Self { question: question.clone(), _alone: alone }))
            }
            _ => Ok(None),
        }
    }

    /// Closes the question after the resumption: with `--yes` it is approved, else nobody waits for
    /// its answer any more.
    pub async fn close(self, daemon: &Daemon, approved: bool) {
        let question = &self.question;
        if !approved {
            return settle(daemon, question, State::Withdrawn, "the run was resumed").await;
        }
        let by = AnsweredBy::of(OPERATOR);
        let answer = Answer::option(gate::APPROVE);
        if let Some(event) = step::answered(question, answer, by, "") {
            // The driver of questions finds that the run has it, and closes the question.
            let recorded = serve::record(daemon, &question.id, "answered", None, event).await;
            if let Err(error) = recorded {
                tracing::warn!(question = %question.id, error = %error.message, "failed to record \
                    an answer");
            }
        }
    }
}

/// Records a state. A failure leaves the question to the next look at it.
async fn settle(daemon: &Daemon, question: &Question, state: State, reason: &str) {
    let event =
        Event::QuestionState { question: question.id.clone(), state, reason: reason.into() };
    let recorded = serve::record(daemon, &question.id, state.as_str(), None, event).await;
    if let Err(error) = recorded {
        tracing::warn!(question = %question.id, error = %error.message, "failed to close a \
            question");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use jiff::Timestamp;
    use muleteer_model::config::Pool;
    use muleteer_model::event::Entry;
    use muleteer_model::spec_run::event::RunStatus;
    use muleteer_store::events::EventLog;

    const RUN: &str = "run-2026-11-27-abcd2345";

    #[test]
    fn own_lock_is_retried_and_the_lock_of_another_daemon_is_not() {
        let locked = || fault(ErrorCode::RunLocked, "run is already in progress", "");
        assert_eq!(of_own_lock(true, locked()).code, "E_BUSY");
        assert_eq!(of_own_lock(false, locked()).code, "E_RUN_LOCKED");
        let missing = fault(ErrorCode::NotFound, "no run", "");
        assert_eq!(of_own_lock(true, missing).code, "E_NOT_FOUND");
    }

    #[test]
    fn question_that_the_run_never_rested_for_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let places = Hosted::alone(dir.path(), RUN).places.clone();
        std::fs::create_dir_all(places.events().parent().unwrap()).unwrap();
        let event = Event::RunRested {
            status: RunStatus::AwaitingApproval,
            reason: "waiting".into(),
            question: Some("q2345678".into()),
        };
        let entry = Entry { id: "e".into(), dispatch_id: None, at: None, more: false, event };
        let (mut log, _) = EventLog::open(&places.events(), 0, |_| ()).unwrap();
        log.append(&[entry], Timestamp::UNIX_EPOCH).unwrap();
        assert!(has_rested_for(&places, "q2345678").unwrap());
        assert!(!has_rested_for(&places, "q3456789").unwrap());
    }

    #[tokio::test]
    async fn variables_for_the_push_survive_a_failed_resumption() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let hosted = Hosted::alone(dir.path(), RUN);
        let given = vec![("GH_TOKEN".to_string(), "one".to_string())];
        hosted.give_for_push(&given);
        daemon.runs.keep_push_env(&hosted);
        assert_eq!(daemon.runs.kept_push_env(RUN), given);
        assert_eq!(daemon.runs.kept_push_env(RUN), given, "a retry needs them too");
        daemon.runs.forget_push_env(RUN);
        assert!(daemon.runs.kept_push_env(RUN).is_empty());
    }
}
