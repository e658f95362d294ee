//! Sends a running agent messages that are no prompts: the answer to its ask, or another model.

use crate::daemon::context::Daemon;
use crate::dispatch::control::{command, find};
use crate::dispatch::error::{fault, unappended};
use crate::dispatch::request::{Asker, check_model};
use crate::dispatch::view;
use crate::ledger::{archive, entry, try_append};
use crate::ports::agent::{JournalMsg, LifeMsg};
use crate::question::serve::Given;
use muleteer_model::agent::ask::{self, Answer, Ask, Unanswerable, Verdict};
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::life::Input;
use muleteer_model::event::{Created, Entry, Event};
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Reply, WireError};
use std::sync::Arc;

/// The limit of an answer, which becomes an event and is kept for ever.
const ANSWER_LIMIT: usize = 16 * 1024;

/// Answers an agent's ask. The reply is sent when the answer is durable.
pub async fn answer(daemon: &Arc<Daemon>, given: Given<'_>) -> Result<Reply, WireError> {
    let Given { id, request, said, arguments: _, key, asker, by } = given;
    if said.len() > ANSWER_LIMIT {
        let message = format!("the answer has {} bytes: the limit is {ANSWER_LIMIT}", said.len());
        return Err(fault(
            ErrorCode::BadInput,
            &message,
            "put the text into a file, and name the file",
        ));
    }
    let dispatch = find(daemon, id)?;
    if !key.is_empty() && !is_key(key) {
        return Err(bad_key(&dispatch));
    }
    if let Some(reply) = heard(daemon, &dispatch, key) {
        return Ok(reply);
    }
    let (request_id, answer, known) = {
        let (pending, answer) =
            ask::read_answer(&dispatch.asks, request, said).map_err(|e| refused(&dispatch, &e))?;
        let backend = muleteer_backends::by_name(&dispatch.created.backend);
        if !backend.is_ok_and(|backend| backend.can_say(&pending.ask, &answer)) {
            return Err(refused(&dispatch, &Unanswerable::NoSuchOption));
        }
        if matches!(asker, Asker::Agent(_)) && !may_give(&dispatch.created, &pending.ask, &answer) {
            return Err(not_given(&dispatch));
        }
        (pending.id.clone(), answer, pending.answer.is_some())
    };
    let reply = replied(daemon, &dispatch, &request_id, answer.verdict);
    let input = Input::Answer { id: request_id, answer, by: by.into(), key: key.into() };
    if known || command(daemon, &dispatch.id, input).await? {
        return Ok(reply);
    }
    // Since the check another client, or this one in an earlier try, has answered, or the agent no
    // longer waits.
    heard(daemon, &*find(daemon, id)?, key)
        .ok_or_else(|| refused(&dispatch, &Unanswerable::NothingOpen))
}

/// Whether an agent may give this answer: it cannot permit its children more than it may do itself.
fn may_give(created: &Created, ask: &Ask, answer: &Answer) -> bool {
    let leave = match answer.verdict {
        Verdict::Allow => true,
        Verdict::Text => ask.option(&answer.text).is_some(),
        Verdict::Deny => false,
    };
    !leave || created.permissions.is_given_above(ask, created.directory())
}

fn not_given(dispatch: &Dispatch) -> WireError {
    let message = format!(
        "dispatch {} requests something for which you need permission yourself",
        dispatch.id
    );
    let hint = "deny it, or let a person answer";
    WireError {
        dispatch_id: Some(dispatch.id.to_string()),
        ..fault(ErrorCode::Forbidden, &message, hint)
    }
}

/// Returns the reply to a request that was carried out before, in case the client lost the first
/// reply.
fn heard(daemon: &Daemon, dispatch: &Dispatch, key: &str) -> Option<Reply> {
    let (request_id, verdict) = dispatch.asks.by_key(key)?;
    Some(replied(daemon, dispatch, request_id, verdict))
}

fn replied(daemon: &Daemon, dispatch: &Dispatch, request: &str, verdict: Verdict) -> Reply {
    let mut all = dispatch.asks.all();
    let pending = all.find(|pending| pending.id == request);
    let fleet = daemon.snapshot();
    let request_id = pending.map_or(request, |pending| view::request_id(&fleet, dispatch, pending));
    let answer = match verdict {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny",
        Verdict::Text => "text",
    };
    Reply::Answered {
        dispatch_id: dispatch.id.to_string(),
        request_id: request_id.into(),
        answer: answer.into(),
    }
}

fn is_key(key: &str) -> bool {
    (1..=64).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn bad_key(dispatch: &Dispatch) -> WireError {
    let message = "a key must have 1 to 64 letters, digits and dashes";
    WireError {
        dispatch_id: Some(dispatch.id.to_string()),
        ..fault(ErrorCode::BadInput, message, "")
    }
}

fn refused(dispatch: &Dispatch, error: &Unanswerable) -> WireError {
    let (code, hint) = match error {
        Unanswerable::NothingOpen | Unanswerable::Answered => {
            let state = dispatch.state();
            (
                ErrorCode::NothingAsked,
                if dispatch.is_finished() {
                    format!("it has ended ({state})")
                } else {
                    format!("it is {state}; `muleteer status` lists the open requests")
                },
            )
        }
        Unanswerable::Unknown(_) => {
            let open: Vec<_> =
                dispatch.asks.unanswered().map(|pending| pending.question.as_str()).collect();
            (
                ErrorCode::NotFound,
                format!(
                    "use one of the open requests: {}",
                    if open.is_empty() { "none".into() } else { open.join(", ") }
                ),
            )
        }
        Unanswerable::Several(_) => (ErrorCode::Ambiguous, "name one with --request".to_string()),
        Unanswerable::NoSuchOption => {
            (ErrorCode::BadInput, "deny it, or name one of the options it offers".to_string())
        }
        Unanswerable::Empty | Unanswerable::NotAllowable => {
            (ErrorCode::BadInput, view::how_to_answer(dispatch).unwrap_or_default())
        }
    };
    let message = format!("dispatch {}: {error}", dispatch.id);
    WireError { dispatch_id: Some(dispatch.id.to_string()), ..fault(code, &message, &hint) }
}

/// Makes a dispatch continue with another model: at once if its CLI supports that, else with its
/// next process.
pub async fn set_model(
    daemon: &Arc<Daemon>,
    id: &str,
    key: &str,
    model: &str,
    by: String,
) -> Result<Reply, WireError> {
    let name = find(daemon, id)?.id.clone();
    // This lock keeps the dispatch from being archived meanwhile.
    let _alone = daemon.creating(name.as_str()).await;
    let dispatch = find(daemon, name.as_str())?;
    let fail = |code: ErrorCode, message: &str, hint: &str| {
        Err(WireError { dispatch_id: Some(name.to_string()), ..fault(code, message, hint) })
    };
    let model = model.trim();
    if let Err(error) = check_model(Some(model)) {
        return Err(WireError { dispatch_id: Some(name.to_string()), hint: None, ..error });
    }
    if !is_key(key) {
        return Err(bad_key(&dispatch));
    }
    let backend = muleteer_backends::by_name(&dispatch.created.backend)
        .map_err(|error| fault(error.code(), &error.to_string(), &error.hint()))?;
    let (session, way) = (dispatch.session.id.as_deref(), dispatch.model.set_by.as_deref());
    let live = !dispatch.is_finished() && backend.set_model(session, way, key, model).is_some();
    if let Some(agent) = dispatch.known_agent().filter(|agent| !agent.changes_model) {
        let message = format!("{} cannot change the model of its session", agent.name);
        let hint = match agent.choose_model {
            "" => "spawn a new dispatch with --model",
            how => how,
        };
        return fail(ErrorCode::Unsupported, &message, hint);
    }
    if dispatch.created.calls.is_some() && session.is_some() && way.is_none() {
        return fail(
            ErrorCode::Unsupported,
            "this agent cannot switch its model",
            "spawn a new dispatch with another agent",
        );
    }
    if !live && !dispatch.can_go_on() {
        let message = format!(
            "the {} backend cannot change the model of a dispatch",
            dispatch.created.backend
        );
        return fail(ErrorCode::Unsupported, &message, "spawn a new dispatch with --model");
    }
    // A restoration that has read its events before would leave this one out.
    archive::restore(daemon, &name).await?;
    let event = Event::ModelRequested { key: key.into(), model: model.into(), by };
    let entry = Entry { id: format!("{name}/model/{key}"), ..entry(&name, None, event) };
    let records = try_append(daemon, vec![entry]).await.map_err(|error| unappended(&error))?;
    daemon.agent(&name).journal.cast(JournalMsg::Records(records));
    daemon.agent(&name).life.cast(LifeMsg::Wake);
    let note = (!live || dispatch.pid().is_none()).then(|| "its next process uses it".to_string());
    Ok(Reply::Done { dispatch_id: name.to_string(), note })
}
