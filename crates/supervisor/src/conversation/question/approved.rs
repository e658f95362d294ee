//! Carries out the answer to the sign-off of a spec: the run begins, or the thread's agent gets the
//! wish to revise it.

use crate::conversation::deliver::template;
use crate::conversation::{serve as threads, view};
use crate::daemon::context::Daemon;
use crate::dispatch::error::is_passing;
use crate::question::copies::{self, blocking};
use crate::question::credentials;
use crate::question::sign_off::derived;
use crate::spec_run::begin;
use muleteer_model::conversation::event::Author;
use muleteer_model::conversation::route::OWN_KEY;
use muleteer_model::conversation::thread::Thread;
use muleteer_model::question::Question;
use muleteer_model::question::sign_off::{self, RunStart, START_RUN, Spec};
use muleteer_process::fault::point;
use muleteer_protocol::v1::{self, ThreadSend, WireError};
use std::sync::Arc;

/// Carries an answer out. May be repeated: the run's id, the message to the agent and the message
/// of the outcome follow from the question. Returns the reason if the run cannot start.
///
/// # Errors
/// Those that may pass.
pub async fn carry_out(
    daemon: &Arc<Daemon>,
    question: &Question,
) -> Result<Option<String>, WireError> {
    let (Some(answer), Some(by), Some(thread), Some(spec)) =
        (&question.answer, &question.answered_by, &question.thread, Spec::of(question))
    else {
        return Ok(None);
    };
    let thread = view::find(daemon, thread)?;
    if !sign_off::approves(answer) {
        let text = format!("Revise the spec {}: {}", spec.path, answer.text.trim());
        let key = format!("{OWN_KEY}{}", question.id);
        let sent = ThreadSend { thread: thread.id().into(), key, text, ..ThreadSend::default() };
        threads::send_as(daemon, &sent, Author::muleteer()).await?;
        return Ok(None);
    }
    let run_id = sign_off::run_id(question);
    let started = match answer.is(START_RUN) {
        true => Some(start(daemon, &thread, &spec, &run_id).await),
        false => None,
    };
    point("signoff.begun");
    let run = match started {
        Some(Err(error)) if is_passing(&error) => return Err(error),
        Some(Err(error)) => Some(RunStart::Failed(format!("{}: {}", error.code, error.message))),
        Some(Ok(lost)) => Some(RunStart::Started { id: run_id, lost }),
        None => None,
    };
    let message = derived(&format!("{}/outcome", question.id));
    let text = sign_off::outcome(&spec, by, run.as_ref());
    threads::tell_once(daemon, thread.id(), &message, text).await?;
    point("signoff.told");
    Ok(match run {
        Some(RunStart::Failed(why)) => Some(why),
        Some(RunStart::Started { .. }) | None => None,
    })
}

/// Starts the run with the text that was shown, as `muleteer run` would in the repository: the
/// configuration chooses the backend, because the agents of the thread may be of another one. The
/// same id again is the same run. Returns the variables that its push lacks.
async fn start(
    daemon: &Arc<Daemon>,
    thread: &Thread,
    spec: &Spec,
    run_id: &str,
) -> Result<Vec<String>, WireError> {
    credentials::check(daemon, thread).await?;
    let copy = copies::path_of(daemon, thread.id(), &spec.sha256);
    copies::check(copy.clone(), spec.clone()).await?;
    let (of, opened) = (daemon.clone(), thread.clone());
    let template = blocking(move || template(&of, &opened)).await?;
    let request = v1::Run {
        run_id: run_id.into(),
        repo: spec.repo.clone(),
        spec: Some(copy.display().to_string()),
        spec_shown: Some(spec.path.clone()),
        env: template.env,
        extra_env: template.extra_env,
        config: template.config,
        thread: Some(thread.id().into()),
        ..v1::Run::default()
    };
    begin::begin(daemon, &request, false, None).await?;
    credentials::lost(daemon, thread).await
}
