//! `ask_human` and `await_answer`.
//!
//! The question is durable before anybody sees it, and waits for ever. The call may end at any
//! time: of its relay, of the daemon, of the agent. A repeated call finds the same question by its
//! key or by its text. An answer that no call takes begins a turn of the agent.

use super::act::check_pace;
use super::arguments::Arguments;
use super::draft::record;
use super::wait::recorded;
use super::{Call, Done, Refusal, patience, patiently, refused};
use crate::conversation::new_id;
use crate::daemon::context::Daemon;
use crate::dispatch::error::fault;
use crate::question::serve;
use jiff::{SignedDuration, Timestamp};
use muleteer_model::agent::event::cut;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::dispatch::{Dispatch, PromptState, answer_prompt};
use muleteer_model::event::Event;
use muleteer_model::event::mcp::{McpCalled, TEXT_LIMIT, Tool};
use muleteer_model::question::{Choice, Kind, Question, QuestionAsked, State};
use muleteer_process::fault::point;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{ToolTaken, WireError};
use serde_json::{Value, json};
use std::sync::Arc;

/// The shortest time that a person gets for an answer, in seconds.
const SHORTEST_DEADLINE_S: f64 = 60.0;

/// Asks a person, and waits for the answer.
pub(super) async fn human(call: &Call<'_>) -> Result<Done, Refusal> {
    let (daemon, dispatch) = (call.client.daemon.clone(), call.dispatch.clone());
    let text = call.arguments.needed("question")?;
    let subject = format!("mcp/{}/{}", dispatch.id, call.call.key);
    let known = known(&daemon.snapshot(), &dispatch, text, &subject).map(|known| known.id.clone());
    let id = match known {
        Some(id) => id,
        None => {
            check_pace(call, &cut(text, TEXT_LIMIT))?;
            let asked = asked(&call.arguments, &dispatch, text, subject)?;
            let id = serve::ask(&daemon, &asked).await?;
            let called = McpCalled::text(Tool::AskHuman, cut(text, 300));
            record(&daemon, &dispatch, &call.call.key, called).await?;
            id
        }
    };
    point("tool.asked");
    recorded(call, Tool::AskHuman, Some(&id), wait(call, &id)).await
}

/// Waits further for the answer to a question.
pub(super) async fn answer(call: &Call<'_>) -> Result<Done, Refusal> {
    let id = call.arguments.needed("question_id")?.to_string();
    let fleet = call.client.daemon.snapshot();
    // The question of another agent counts as unknown, so that nobody reads its answer.
    let own = fleet.questions.get(&id).filter(|question| is_of(question, &call.dispatch));
    if own.is_none() {
        return refused(format!("this agent has asked no question `{id}`"));
    }
    recorded(call, Tool::AwaitAnswer, Some(&id), wait(call, &id)).await
}

fn is_of(question: &Question, dispatch: &Dispatch) -> bool {
    question.kind == Kind::Question
        && question.request.is_none()
        && question.dispatch.as_ref() == Some(&dispatch.id)
}

/// Returns the question that a call asks again: the call's own one, or one with the same text whose
/// answer the agent does not have.
fn known<'a>(
    fleet: &'a Fleet,
    dispatch: &Dispatch,
    text: &str,
    subject: &str,
) -> Option<&'a Question> {
    let all = || fleet.questions.iter().filter(|one| is_of(one, dispatch)).map(|one| &**one);
    let by_key = all().find(|question| question.subject == subject);
    // A question counts as delivered when the prompt with its answer is in the agent's stdin. An
    // agent in the middle of a turn, such as the successor of a killed one, has not read it yet.
    let lacks_answer = |question: &Question| {
        let prompt = answer_prompt_of(fleet, dispatch, &question.id);
        question.is_unsettled() || matches!(prompt, Some(PromptState::Queued | PromptState::Sent))
    };
    by_key.or_else(|| all().find(|question| question.text == text && lacks_answer(question)))
}

/// Returns the state of the prompt that tells the agent the answer, if there is one.
fn answer_prompt_of(fleet: &Fleet, dispatch: &Dispatch, question: &str) -> Option<PromptState> {
    let key = answer_prompt(&dispatch.id, question);
    fleet.get(&dispatch.id)?.prompt(&key).map(|prompt| prompt.state)
}

fn asked(
    arguments: &Arguments,
    dispatch: &Dispatch,
    text: &str,
    subject: String,
) -> Result<QuestionAsked, Refusal> {
    let options: Result<Vec<_>, _> = arguments.list("options").into_iter().map(choice).collect();
    let options = options?;
    let seconds = arguments.number("deadline_s")?;
    if seconds.is_some_and(|seconds| seconds < SHORTEST_DEADLINE_S) {
        return refused(format!(
            "`deadline_s` must be at least {SHORTEST_DEADLINE_S}: a person needs time to read the \
             question"
        ));
    }
    let deadline = seconds.and_then(|seconds| {
        Timestamp::now().checked_add(SignedDuration::try_from_secs_f64(seconds).ok()?).ok()
    });
    Ok(QuestionAsked {
        question: new_id().to_string(),
        kind: Kind::Question,
        text: text.to_string(),
        multi: arguments.flag("multi")? && !options.is_empty(),
        options,
        // A person may always answer in words.
        free_text: true,
        detail: Value::Null,
        default: arguments.text("default")?.map(String::from),
        deadline,
        thread: dispatch.created.thread().map(String::from),
        shown_in: vec![],
        dispatch: Some(dispatch.id.clone()),
        asked_by: dispatch.created.role.clone(),
        subject,
    })
}

/// Reads an option: a text, or an object with an id, a label and a description.
fn choice(value: &Value) -> Result<Choice, Refusal> {
    if let Some(text) = value.as_str().filter(|text| !text.trim().is_empty()) {
        return Ok(Choice::new(text, ""));
    }
    let field =
        |name: &str| value.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let Some(label) = field("label").or(field("id")) else {
        return refused("each option is a text, or an object with a `label`");
    };
    Ok(Choice {
        id: field("id").unwrap_or(label).into(),
        label: label.into(),
        description: field("description").unwrap_or_default().into(),
    })
}

/// Waits for the answer as long as the caller does.
async fn wait(call: &Call<'_>, id: &str) -> Result<Done, Refusal> {
    let daemon = call.client.daemon.clone();
    let _waiter = daemon.waiters.enter(id);
    let mut changes = daemon.fleet.subscribe();
    let is_open = |fleet: &Arc<Fleet>| {
        fleet.questions.get(id).is_none_or(|question| question.state != State::Open)
    };
    let over = async { changes.wait_for(is_open).await.map(|fleet| fleet.clone()).ok() };
    let over = async {
        let fleet = over.await;
        let own = fleet.as_ref().and_then(|fleet| fleet.get(&call.dispatch.id));
        match own.is_some_and(|own| own.mcp.held.iter().any(|held| held == id)) {
            // Its process is ended now. The answer begins a turn of its successor, and this process
            // would lose it.
            true => std::future::pending().await,
            false => fleet,
        }
    };
    let fleet = match patiently(call.client, patience(&call.call), over).await? {
        Some(Some(fleet)) => fleet,
        // The relay asks the next daemon.
        Some(None) => {
            let error = fault(
                ErrorCode::DaemonEnding,
                "the daemon ended before it could answer",
                "try again: the next daemon answers, and asks nobody twice",
            );
            return Err(Refusal::Failed(error));
        }
        None => {
            let hint = "no answer yet: call await_answer with this question_id, or do other work. \
                        The question stays open, and a later answer reaches you as a message";
            return Ok(json!({"question_id": id, "state": "open", "hint": hint}).into());
        }
    };
    let Some(question) = fleet.questions.get(id) else {
        return refused(format!("question {id} was closed long ago"));
    };
    if comes_as_message(&fleet, &call.dispatch, id) {
        let hint = "the answer comes as a message: end your turn to get it";
        return Ok(json!({"question_id": id, "state": "answered", "hint": hint}).into());
    }
    result(question)
}

/// Whether the answer is on its way to the agent as a prompt, or the agent has that prompt. Then a
/// call that returned it would tell it twice.
fn comes_as_message(fleet: &Fleet, dispatch: &Dispatch, question: &str) -> bool {
    answer_prompt_of(fleet, dispatch, question).is_some_and(|state| match state {
        PromptState::Queued
        | PromptState::Sent
        | PromptState::Taken
        | PromptState::Done
        | PromptState::Superseded => true,
        PromptState::Withdrawn | PromptState::Returned | PromptState::Doubtful => false,
    })
}

fn result(question: &Question) -> Result<Done, Refusal> {
    let taken_default = question.state == State::Expired;
    let answer = question.answer.clone().or_else(|| question.default_answer());
    match (question.state, answer) {
        (State::Answered | State::Delivered | State::Expired, Some(answer)) => {
            let by = question.answered_by.as_ref().map(ToString::to_string);
            let value = json!({
                "answer": answer.told(),
                "options": answer.options,
                "text": answer.text,
                "answered_by": by,
                "is_default": taken_default,
                "question_id": question.id,
            });
            let subject = question.is_unsettled().then(|| question.id.clone());
            Ok(Done { value, subject })
        }
        (state, _) => {
            let reason = match question.reason.as_str() {
                "" => String::new(),
                reason => format!(": {reason}"),
            };
            refused(format!("question {} is {}{reason}", question.id, state.as_str()))
        }
    }
}

/// Records that the agent has the answer.
pub(super) async fn taken(
    daemon: &Arc<Daemon>,
    dispatch: &Dispatch,
    taken: &ToolTaken,
) -> Result<(), WireError> {
    let fleet = daemon.snapshot();
    let own = fleet.questions.get(&taken.subject).filter(|question| is_of(question, dispatch));
    let Some(question) = own.filter(|question| question.is_unsettled() && !question.is_open())
    else {
        return Ok(());
    };
    let event = Event::QuestionState {
        question: question.id.clone(),
        state: State::Delivered,
        reason: String::new(),
    };
    serve::record(daemon, &question.id, State::Delivered.as_str(), Some(&dispatch.id), event).await
}
