//! Asks and answers questions.

use crate::conversation::rights::Author;
use crate::daemon::context::Daemon;
use crate::dispatch::answer;
use crate::dispatch::control::find;
use crate::dispatch::error::{fault, unappended};
use crate::dispatch::request::Asker;
use crate::ledger::try_append;
use crate::ports::agent::JournalMsg;
use crate::question::view;
use muleteer_model::conversation::DEFAULT_ROLE;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::{Entry, Event};
use muleteer_model::people::Right;
use muleteer_model::question::answer::{NoAnswer, by_arguments, read};
use muleteer_model::question::event::{Answer, AnsweredBy};
use muleteer_model::question::fold::LookupError;
use muleteer_model::question::step::{self, Asking};
use muleteer_model::question::{Question, QuestionAsked, State, sign_off};
use muleteer_model::spec_run::gate;
use muleteer_process::fault::point;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Reply, WireError};
use std::path::Path;
use std::sync::Arc;

/// An answer that somebody gives.
#[derive(Debug, Clone, Copy)]
pub struct Given<'a> {
    /// A question or a dispatch: the id, or the beginning of it.
    pub id: &'a str,
    /// One of several requests of a dispatch.
    pub request: Option<&'a str>,
    pub said: &'a str,
    /// The arguments that were joined to `said`; empty if nobody knows them.
    pub arguments: &'a [String],
    /// The key of the client's request; may be empty.
    pub key: &'a str,
    /// The client, for its rights.
    pub asker: &'a Asker,
    /// The author of the answer: see [`AnsweredBy`].
    pub by: &'a str,
}

/// Asks a question, and returns its id. Returns once it is durable. The same question of the same
/// dispatch that is open already is returned instead.
///
/// # Errors
/// The question cannot be asked.
pub async fn ask(daemon: &Arc<Daemon>, asked: &QuestionAsked) -> Result<String, WireError> {
    let of = asked.dispatch.as_ref().map_or(asked.subject.as_str(), |id| id.as_str());
    // One question of a dispatch at a time, because two would each find no equal one.
    let _alone = daemon.creating(&format!("question of {of}")).await;
    let fleet = daemon.snapshot();
    let event = match step::ask(&fleet, asked) {
        Ok(Asking::Known(known)) => return Ok(known.id.clone()),
        Ok(Asking::New(event)) => *event,
        Err(error) => return Err(fault(ErrorCode::BadInput, &error.to_string(), "")),
    };
    record(daemon, &asked.question, "asked", asked.dispatch.as_ref(), event).await?;
    point("question.asked");
    Ok(asked.question.clone())
}

/// Answers a question, or the open request of a dispatch. The reply is sent when the answer is
/// durable. The first answer wins.
///
/// # Errors
/// `E_ALREADY_ANSWERED`, `E_NOTHING_ASKED`, or the words are no answer.
pub async fn answer(daemon: &Arc<Daemon>, given: Given<'_>) -> Result<Reply, WireError> {
    let fleet = daemon.snapshot();
    if let Some(question) = named(&fleet, daemon, given.id)? {
        return to_question(daemon, &question, given).await;
    }
    let dispatch = find(daemon, given.id)?;
    let request = match given.request {
        Some(request) => of_request(&fleet, &dispatch, request),
        // A dispatch without an open request of its CLI may wait for another question.
        None if dispatch.asks.unanswered().next().is_none() => {
            let mut open =
                fleet.questions.open().filter(|one| one.dispatch == Some(dispatch.id.clone()));
            match (open.next(), open.next()) {
                (Some(one), None) => return to_question(daemon, &one.clone(), given).await,
                _ => None,
            }
        }
        None => None,
    };
    if let Some(question) = &request
        && question.request.is_none()
    {
        return to_question(daemon, question, given).await;
    }
    let name = request.as_ref().and_then(|question| pending_id(&dispatch, question));
    let given =
        Given { id: dispatch.id.as_str(), request: name.as_deref().or(given.request), ..given };
    let error = match answer::answer(daemon, given).await {
        Err(error) if error.code == ErrorCode::NothingAsked.as_str() => error,
        other => return other,
    };
    // A question that was named, or the newest of an agent that goes on, says who was first.
    let fleet = daemon.snapshot();
    let first = match request {
        Some(question) => fleet.questions.get(&question.id).cloned(),
        None => newest_answered(&fleet, &*find(daemon, given.id)?),
    };
    match first.filter(|question| question.answered_by.is_some()) {
        Some(question) => Err(already(&question)),
        None => Err(error),
    }
}

/// Returns the question that an id names; `None` if it names a dispatch, or nothing.
fn named(fleet: &Fleet, daemon: &Daemon, id: &str) -> Result<Option<Arc<Question>>, WireError> {
    let found = match fleet.questions.find(id) {
        Ok(found) => found,
        Err(LookupError::Unknown(_)) => return Ok(None),
        Err(error @ LookupError::Ambiguous { .. }) => {
            return match find(daemon, id) {
                Ok(_) => Ok(None),
                Err(_) => {
                    let hint = "give a longer part of the id";
                    Err(fault(ErrorCode::Ambiguous, &error.to_string(), hint))
                }
            };
        }
    };
    Ok(find(daemon, id)
        .map_or(true, |dispatch| is_the_question(id, &found.id, dispatch.id.as_str()))
        .then(|| found.clone()))
}

/// Whether an id that names a question and a dispatch means the question. A beginning of both ids
/// means the dispatch, and so does its whole id: agents influence the ids of questions.
fn is_the_question(id: &str, question: &str, dispatch: &str) -> bool {
    question == id && dispatch != id
}

/// Returns the question of a dispatch that `--request` names.
fn of_request(fleet: &Fleet, dispatch: &Dispatch, request: &str) -> Option<Arc<Question>> {
    let of = |question: &&Arc<Question>| {
        question.dispatch.as_ref() == Some(&dispatch.id)
            && !request.is_empty()
            && (question.id.starts_with(request) || question.request.as_deref() == Some(request))
    };
    let mut found: Vec<_> = fleet.questions.iter().filter(of).collect();
    found.sort_by_key(|question| (question.id != request, !question.is_open(), question.asked_at));
    found.first().map(|question| (*question).clone())
}

/// Returns the agent's id of the request that a question is.
fn pending_id(dispatch: &Dispatch, question: &Question) -> Option<String> {
    let of = |key: &String| {
        let mut all = dispatch.asks.all();
        all.find(|pending| pending.question == *key).map(|pending| pending.id.clone())
    };
    question.request.as_ref().and_then(of)
}

/// Returns the newest answered question of an agent that has not ended.
fn newest_answered(fleet: &Fleet, dispatch: &Dispatch) -> Option<Question> {
    if dispatch.is_finished() {
        return None;
    }
    let answered = dispatch.asks.all().filter(|pending| pending.answer.is_some());
    let found = answered.filter_map(|one| fleet.questions.of_request(&dispatch.id, &one.question));
    found.max_by_key(|question| question.answered_at).cloned()
}

async fn to_question(
    daemon: &Arc<Daemon>,
    question: &Question,
    given: Given<'_>,
) -> Result<Reply, WireError> {
    let Some(request) = &question.request else { return to_other(daemon, question, given).await };
    // The dispatch may have forgotten the request, with the key of its answer.
    if !given.key.is_empty() && question.key == given.key {
        return Ok(replied(question));
    }
    let Some(id) = question.dispatch.as_ref() else { return Err(closed(question)) };
    let dispatch = find(daemon, id.as_str())?;
    let name = pending_id(&dispatch, question);
    let repeated = dispatch.asks.by_key(given.key).is_some();
    if !question.is_open() && !repeated {
        return Err(closed(question));
    }
    let request = name.unwrap_or_else(|| request.clone());
    let given = Given { id: id.as_str(), request: Some(&request), ..given };
    match answer::answer(daemon, given).await {
        Err(error) if error.code == ErrorCode::NothingAsked.as_str() => {
            let now = daemon.snapshot();
            Err(now.questions.get(&question.id).map_or(error, closed))
        }
        other => other,
    }
}

/// Answers a question that is no request of an agent's CLI.
async fn to_other(
    daemon: &Arc<Daemon>,
    question: &Question,
    given: Given<'_>,
) -> Result<Reply, WireError> {
    let _alone = daemon.creating(&format!("answer to {}", question.id)).await;
    let fleet = daemon.snapshot();
    let Some(question) = fleet.questions.get(&question.id) else { return Err(closed(question)) };
    if !question.is_open() {
        return match !given.key.is_empty() && question.key == given.key {
            true => Ok(replied(question)),
            false => Err(closed(question)),
        };
    }
    if let Asker::Agent(_) = given.asker
        && question.is_for_people()
    {
        let message =
            format!("only a person answers a question of the kind {}", question.kind.as_str());
        return Err(fault(ErrorCode::Forbidden, &message, "let a person answer"));
    }
    if let (Asker::Agent(agent), Some(of)) = (given.asker, &question.dispatch)
        && agent == of
    {
        let message = "an agent does not answer its own question";
        return Err(fault(ErrorCode::Forbidden, message, "let a person answer"));
    }
    let by = AnsweredBy::of(given.by);
    permit(daemon, question, &by, Right::Answer)?;
    let words: Vec<_> = given.said.split_whitespace().collect();
    let answer = match by_arguments(question, given.arguments) {
        Some(answer) => answer,
        None => read_words(question, given.said, &words)?,
    };
    if answer.is(sign_off::START_RUN) {
        permit(daemon, question, &by, Right::Spawn)?;
    }
    crate::question::sign_off::check(daemon, question, &answer).await?;
    let Some(event) = step::answered(question, answer, by, given.key) else {
        return Err(closed(question));
    };
    record(daemon, &question.id, "answered", question.dispatch.as_ref(), event).await?;
    point("question.answered");
    let now = daemon.snapshot();
    Ok(replied(now.questions.get(&question.id).unwrap_or(question)))
}

/// Checks a right of the person for the repository of the question's run. The thread that shows the
/// question may belong to another project.
fn permit(
    daemon: &Daemon,
    question: &Question,
    by: &AnsweredBy,
    right: Right,
) -> Result<(), WireError> {
    let repo = question.detail["repo"].as_str().filter(|_| question.is_for_people());
    let (Some(repo), false) = (repo, is_local(by)) else { return Ok(()) };
    let author = Author::of_adapter(&by.adapter, &by.user);
    author.permit(daemon, right, Some(Path::new(repo)), Some(DEFAULT_ROLE))
}

/// Whether the answer is no person's of an adapter: it is the operator's, an agent's or Muleteer's.
fn is_local(by: &AnsweredBy) -> bool {
    ["cli", "agent", "muleteer"].contains(&by.adapter.as_str())
}

fn read_words(question: &Question, said: &str, words: &[&str]) -> Result<Answer, WireError> {
    let answer = read(question, &[said.trim()]).or_else(|error| match (error, question.multi) {
        (NoAnswer::NoSuchOption, true) => read(question, words),
        (error, _) => Err(error),
    });
    answer.map_err(|error| {
        let options: Vec<_> = question.options.iter().map(|option| option.id.as_str()).collect();
        let hint = match options.is_empty() {
            true => String::new(),
            false => format!("choose one of: {}", options.join(", ")),
        };
        fault(ErrorCode::BadInput, &format!("question {}: {error}", question.id), &hint)
    })
}

/// Makes an event of a question durable, and shows it in the journal of its dispatch.
pub(crate) async fn record(
    daemon: &Daemon,
    question: &str,
    what: &str,
    dispatch: Option<&muleteer_model::event::id::DispatchId>,
    event: Event,
) -> Result<(), WireError> {
    let id = format!("question/{question}/{what}");
    let known = dispatch.filter(|id| daemon.snapshot().get(id).is_some());
    let entry = Entry { id, dispatch_id: known.cloned(), at: None, more: false, event };
    let records = try_append(daemon, vec![entry]).await.map_err(|error| unappended(&error))?;
    if let Some(dispatch) = known {
        daemon.agent(dispatch).journal.cast(JournalMsg::Records(records));
    }
    Ok(())
}

fn replied(question: &Question) -> Reply {
    let answer = question.answer.as_ref();
    let is = |option: &str| answer.is_some_and(|answer| answer.is(option));
    Reply::Answered {
        dispatch_id: question.dispatch.as_ref().map(ToString::to_string).unwrap_or_default(),
        request_id: question.id.clone(),
        answer: match answer.and_then(|answer| answer.options.first()).map(String::as_str) {
            Some(gate::APPROVE) => gate::APPROVE,
            Some(gate::REJECT) => gate::REJECT,
            Some(gate::CHANGE) => gate::CHANGE,
            Some(sign_off::SIGN_OFF) => sign_off::SIGN_OFF,
            Some(sign_off::START_RUN) => sign_off::START_RUN,
            Some(sign_off::REVISE) => sign_off::REVISE,
            _ if is("allow") => "allow",
            _ if is("deny") => "deny",
            _ => "text",
        }
        .into(),
    }
}

/// Returns the error for an answer to a question that takes none any more.
pub fn closed(question: &Question) -> WireError {
    match question.state {
        State::Withdrawn => nothing(question),
        _ if question.answered_by.is_some() => already(question),
        _ => nothing(question),
    }
}

fn nothing(question: &Question) -> WireError {
    let reason = match question.reason.as_str() {
        "" => String::new(),
        reason => format!(": {reason}"),
    };
    let message = format!("question {} is {}{reason}", question.id, question.state.as_str());
    of_dispatch(question, fault(ErrorCode::NothingAsked, &message, LIST))
}

fn already(question: &Question) -> WireError {
    let by = question.answered_by.as_ref();
    let who = by.map_or("somebody".into(), |by| format!("{} ({})", by.user, by.adapter));
    let when = question.answered_at.map(|at| format!(" at {}", view::time(at))).unwrap_or_default();
    let answer = question.answer.as_ref().map(Answer::describe).unwrap_or_default();
    let message = format!("question {} was answered by {who}{when}: {answer}", question.id);
    of_dispatch(question, fault(ErrorCode::AlreadyAnswered, &message, LIST))
}

const LIST: &str = "run `muleteer questions --all` to list all questions";

fn of_dispatch(question: &Question, error: WireError) -> WireError {
    let dispatch_id = question.dispatch.as_ref().map(ToString::to_string);
    WireError { dispatch_id, ..error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_id_of_a_dispatch_never_means_a_question() {
        assert!(!is_the_question("k3f9abcd", "k3f9abcd", "k3f9abcd"));
        assert!(!is_the_question("k3f9", "k3f9abcd", "k3f9zzzz"));
        assert!(is_the_question("k3f9", "k3f9", "k3f9zzzz"));
    }
}
