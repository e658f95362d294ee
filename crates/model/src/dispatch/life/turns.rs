//! Decides about the output of a working agent: receipts, messages, use, results.

use crate::admission::api_error::{self, Trouble};
use crate::agent::acp_handshake::{Opening, may_be_past};
use crate::agent::ask::{Ask, AskKind};
use crate::agent::event::{AgentEvent, TurnError, TurnResult, cut, subject, target};
use crate::agent::result::{self, AgentResult, ResultStatus};
use crate::dispatch::life::acp_handshake;
use crate::dispatch::life::asks;
use crate::dispatch::life::prompt_key;
use crate::dispatch::life::unasked;
use crate::dispatch::life::usage;
use crate::dispatch::life::whose;
use crate::dispatch::{Dispatch, Phase, Prompt, PromptState, Turn, WHOLE_LIMIT};
use crate::event::id::key_of;
use crate::event::{Event, PromptKind};
use serde_json::Value;
use std::borrow::Cow;

/// The most bytes of a message or a tool's error that become an event.
const SAID_LIMIT: usize = 280;
/// The failed tool calls in a row after which a turn that the agent cancels ended because of them.
const MOST_MISTAKES: u32 = 3;
/// The most different notices in one attempt.
const MOST_NOTICES: usize = 50;

/// The most bytes of the name of a session or a model. It is written into the log with each use.
const NAME_LIMIT: usize = 512;

/// Drops names of an absurd length.
fn with_names(event: &AgentEvent) -> Cow<'_, AgentEvent> {
    let absurd = |name: &Option<String>| name.as_ref().is_some_and(|name| name.len() > NAME_LIMIT);
    let mut event = Cow::Borrowed(event);
    let (session, model) = match event.as_ref() {
        AgentEvent::Session { session_id, model, .. } => (absurd(session_id), absurd(model)),
        AgentEvent::Usage { model, .. } => (false, absurd(model)),
        _ => return event,
    };
    if session || model {
        match event.to_mut() {
            AgentEvent::Session { session_id, model: named, .. } => {
                session_id.take_if(|_| session);
                named.take_if(|_| model);
            }
            AgentEvent::Usage { model, .. } => *model = None,
            _ => {}
        }
    }
    event
}

/// Decides the events for one event of an agent's output.
pub(super) fn agent_event(d: &Dispatch, event: &AgentEvent) -> Vec<Event> {
    let event = with_names(event);
    let event = event.as_ref();
    if d.process().opening != Opening::Ready || is_past(d, event) {
        return acp_handshake::agent_event(d, event);
    }
    let speaks = matches!(
        event,
        AgentEvent::Text { .. }
            | AgentEvent::ToolCall { .. }
            | AgentEvent::Thinking { .. }
            | AgentEvent::Permission { .. }
    );
    let mut events = if speaks && !is_in_a_turn(d) { taken_unseen(d) } else { vec![] };
    events.extend(unasked::ran(d, event));
    events.extend(output(d, event));
    events
}

/// Decides the events for output of an agent whose session is open.
fn output(d: &Dispatch, event: &AgentEvent) -> Vec<Event> {
    let mut events = Vec::new();
    match event {
        AgentEvent::Session { session_id, model, .. } => {
            events.extend(session(d, session_id.as_ref(), model.as_ref()));
        }
        AgentEvent::Prompt { key: Some(key), repeated, .. } => {
            events.extend(receipt(d, key, *repeated));
        }
        // The receipt of a process that takes one prompt need not name the prompt.
        AgentEvent::Prompt { key: None, .. } if !d.created.multi_turn && d.created.resumable => {
            events.extend(on_its_way(d).map(|key| Event::TurnStarted { turn: d.turns + 1, key }));
        }
        AgentEvent::Text { text, .. } if !text.trim().is_empty() => {
            // If no result line repeats the answer, the last of these messages is the answer.
            let text = match (d.created.said_is_answer(), d.created.thread()) {
                (true, _) => text.clone(),
                (false, Some(_)) => cut(text, answer_limit(d)),
                (false, None) => cut(text, SAID_LIMIT),
            };
            events.push(Event::AgentSaid { text });
        }
        AgentEvent::ToolCall { id, name, input } => events.extend(tool_call(d, id, name, input)),
        AgentEvent::Subagent { parent, event } => events.extend(subagent(d, parent, event)),
        AgentEvent::ToolResult { id, ok: true, .. } if d.process().calls.open.contains(id) => {
            events.push(Event::ToolFinished { call_id: id.clone() });
        }
        AgentEvent::ToolResult { id, ok: false, text, .. } => {
            events.push(Event::ToolFailed { call_id: cut(id, 200), text: cut(text, SAID_LIMIT) });
        }
        AgentEvent::Permission { id, ask } => {
            events.extend(asks::asked(d, id, &asks::completed(d, ask)));
        }
        AgentEvent::Question { id, text } => {
            let ask = Ask { kind: AskKind::Question, text: text.clone(), ..Ask::default() }.bound();
            events.extend(asks::asked(d, id, &ask));
        }
        AgentEvent::Request { id, what } => {
            let ask = Ask { kind: AskKind::Other, tool: cut(what, 200), ..Ask::default() };
            events.extend(asks::asked(d, id, &ask));
        }
        AgentEvent::PermissionAnswer { id } | AgentEvent::Answer { id, .. } => {
            events.extend(asks::withdrawn(d, id));
        }
        AgentEvent::Notice { text } => events.extend(notice(d, text)),
        AgentEvent::Reply { id, ok, text } => events.extend(model_reply(d, id, *ok, text)),
        AgentEvent::Usage {
            input,
            output,
            cost_usd,
            cache_read,
            cache_write,
            model,
            call,
            total_usd,
        } => {
            let tokens = [*input, *output, *cache_read, *cache_write];
            events.extend(match (call, total_usd) {
                (None, _) => Some(usage::of_call(d, tokens, *cost_usd, model.as_deref())),
                (Some(_), Some(total)) => usage::cost_so_far(d, *total, model.as_deref()),
                (Some(_), None) => None,
            });
        }
        AgentEvent::ApiRetry { attempt, max, status, delay_s } => {
            let (attempt, max, status, delay_s) = (*attempt, *max, *status, *delay_s);
            events.push(Event::ApiRetried { attempt, max, status, delay_s, awake_ms: None });
            events.extend(hopeless(d, attempt, status, delay_s));
        }
        AgentEvent::RateLimit { resets_in_s, resets_at, warning: false } => {
            let until = resets_at.and_then(api_error::moment);
            let wait_s = api_error::wait(*resets_in_s).as_secs_f64();
            events.push(Event::RateLimited { until, wait_s, awake_ms: None });
        }
        AgentEvent::Compaction { before, after } => {
            events.push(Event::Compacted { before: *before, after: *after });
        }
        // The result of a one-shot agent must be its last line.
        AgentEvent::Output { .. } if !d.created.has_turns() && has_reported(d) => {
            events.push(Event::ResultOvertaken {});
        }
        AgentEvent::Result(result) => events.extend(turn_result(d, result)),
        AgentEvent::CallAnswer(reply) => events.extend(acp_handshake::of_mode(d, reply)),
        // These need no decision.
        AgentEvent::Prompt { .. }
        | AgentEvent::Thinking { .. }
        | AgentEvent::Text { .. }
        | AgentEvent::ToolOutput { .. }
        | AgentEvent::ToolResult { .. }
        | AgentEvent::RateLimit { .. }
        | AgentEvent::Process { .. }
        | AgentEvent::Backpressure { .. }
        | AgentEvent::Exit { .. }
        | AgentEvent::Output { .. }
        | AgentEvent::Unknown { .. } => {}
    }
    events
}

/// Records a session or a model that was not known. An agent without sessions may have a model.
fn session(d: &Dispatch, id: Option<&String>, model: Option<&String>) -> Option<Event> {
    let is_news = match id {
        Some(id) => {
            d.session.id.as_ref() != Some(id)
                || (model.is_some() && d.session.model.as_ref() != model)
        }
        None => model.is_some() && d.session.model.as_ref() != model,
    };
    let session_id = id.or(d.session.id.as_ref()).cloned().unwrap_or_default();
    is_news.then(|| Event::SessionStarted { session_id, model: model.cloned() })
}

/// Records a tool call. If its policy is enforced, the whole subject of the call is recorded too.
fn tool_call(d: &Dispatch, id: &str, name: &str, input: &Value) -> Vec<Event> {
    let (call_id, tool) = (cut(id, 200), cut(name, 200));
    // A daemon that was restarted reads a later report of a call that is on record.
    if d.created.calls.is_some() && d.process().calls.open.contains(&call_id) {
        return vec![];
    }
    let target = target(name, input);
    let is_watched = d.created.calls.is_some() && !d.created.permissions.is_open();
    let whole = subject(input).filter(|whole| is_watched && *whole != target);
    let whole = whole
        .map(|text| Event::ToolSubject { call_id: call_id.clone(), text: cut(text, WHOLE_LIMIT) });
    let called = Event::ToolCalled { call_id, tool, target, parent: None };
    std::iter::once(called).chain(whole).collect()
}

fn notice(d: &Dispatch, text: &str) -> Option<Event> {
    let (text, known) = (cut(text, SAID_LIMIT), &d.warnings.notices);
    (known.len() < MOST_NOTICES && !known.contains(&text)).then_some(Event::AgentNotice { text })
}

/// Gives up on the model API if no retry of the CLI can help.
fn hopeless(d: &Dispatch, attempt: u32, status: Option<u16>, delay_s: f64) -> Option<Event> {
    let trouble = Trouble::of_status(status);
    let reason = api_error::hopeless(trouble, status, attempt, delay_s, whose(d))?;
    let counts = d.created.has_turns() && d.stop.is_none();
    counts.then_some(Event::ApiGivenUp { trouble, status, reason })
}

/// Whether an event belongs to the past of a session. Some agents report that past after they have
/// answered that the session is loaded. Until the next prompt is written, all such output is the
/// past.
pub(super) fn is_past(d: &Dispatch, event: &AgentEvent) -> bool {
    d.created.calls.is_some() && reports_past(d) && may_be_past(event)
}

/// Whether the process still reports the past of the session that it loads: no prompt of ours is
/// written to it.
fn reports_past(d: &Dispatch) -> bool {
    d.process().opening != Opening::Ready || (!is_in_a_turn(d) && d.unwritten().is_some())
}

/// Decides about a subagent, which works inside of a tool call. Its tool calls count as the
/// agent's; its messages go to the agent only.
fn subagent(d: &Dispatch, parent: &str, event: &AgentEvent) -> Vec<Event> {
    match event {
        AgentEvent::ToolCall { .. } | AgentEvent::ToolResult { .. } => {}
        _ => return vec![],
    }
    let mut events = agent_event(d, event);
    for event in &mut events {
        if let Event::ToolCalled { parent: by, .. } = event {
            *by = Some(cut(parent, 200));
        }
    }
    events
}

fn is_in_a_turn(d: &Dispatch) -> bool {
    matches!(d.phase, Phase::Working { turn: Turn::Running { .. }, .. })
}

fn has_reported(d: &Dispatch) -> bool {
    d.result.value.is_some() || !d.result.faults.is_empty()
}

/// Returns the result of a model change; other requests of ours show their effect elsewhere.
fn model_reply(d: &Dispatch, id: &str, ok: bool, text: &str) -> Option<Event> {
    let change = d.model.change.as_ref().filter(|change| change.key == id)?;
    let (key, model) = (change.key.clone(), d.model.wanted.clone()?);
    Some(match ok {
        true => Event::ModelChanged { key, model },
        false => Event::ModelRefused { key, reason: cut(text, SAID_LIMIT) },
    })
}

/// Starts the turn of a written prompt without a receipt: the agent works, so it has the prompt.
pub(super) fn taken_unseen(d: &Dispatch) -> Vec<Event> {
    unreceipted(d)
        .map(|key| Event::TurnStarted { turn: d.turns + 1, key })
        .into_iter()
        .collect()
}

/// Returns the prompt that is on its way to this process.
fn on_its_way(d: &Dispatch) -> Option<String> {
    d.prompts.iter().find(|p| p.state == PromptState::Sent).map(|p| p.key.clone())
}

/// Returns the prompt that was written to this process and has no receipt. A prompt that is not
/// known to be written was not taken, whatever the agent prints meanwhile.
fn unreceipted(d: &Dispatch) -> Option<String> {
    on_its_way(d).filter(|_| d.unwritten().is_none())
}

/// Records that the CLI has a prompt. A prompt that its session already had (it was sent again
/// after a crash that hid the receipt) is not worked on again. A `Continue` prompt replaces it, as
/// after any cut turn.
pub(super) fn receipt(d: &Dispatch, key: &str, repeated: bool) -> Vec<Event> {
    let on_its_way = |p: &Prompt| matches!(p.state, PromptState::Sent | PromptState::Queued);
    if !d.prompt(key).is_some_and(on_its_way) {
        return vec![];
    }
    let mut events = vec![taken(d, key.into())];
    if repeated {
        let key = key_of(&format!("{}/again/{key}", d.id));
        events.push(Event::PromptQueued {
            key,
            kind: PromptKind::Continue,
            by: "muleteer".into(),
            trace: None,
        });
    }
    events
}

/// A prompt that is taken while a turn runs becomes part of that turn.
fn taken(d: &Dispatch, key: String) -> Event {
    if is_in_a_turn(d) {
        return Event::PromptFolded { key, turn: d.turns };
    }
    Event::TurnStarted { turn: d.turns + 1, key }
}

fn turn_result(d: &Dispatch, result: &TurnResult) -> Vec<Event> {
    if has_ended(d, result) {
        return vec![];
    }
    let result = &unasked_for(d, result);
    let mut events = usage::of_turn(d, result);
    if let (true, Some(session_id)) = (result.session_lost, &d.session.id) {
        // The session is lost, so no prompt was taken.
        events.push(Event::SessionLost { session_id: session_id.clone() });
        let text = result.text.clone().unwrap_or_default();
        events.push(Event::TurnFinished {
            turn: d.turns,
            ok: false,
            error: result.error,
            status: None,
            text,
        });
        return events;
    }
    let text = last_message(d, result);
    if !d.created.has_turns() {
        // A log line may quote the result that the program has given, or another program's result.
        if result.quoted && d.process().own_result {
            return vec![];
        }
        if let Some(damage) = &result.damage {
            events.push(Event::ResultInvalid { faults: vec![damage.clone()], repair: false });
            events.extend(result.quoted.then_some(Event::ResultQuoted {}));
            return events;
        }
        // The result line of a one-shot agent counts when its process has ended well.
        if let Some(doc) = &result.structured {
            events.push(match result::validate(doc) {
                Ok(result) => Event::ResultReceived { result },
                Err(faults) => Event::ResultInvalid { faults, repair: false },
            });
            events.extend(result.quoted.then_some(Event::ResultQuoted {}));
        } else if !result.quoted {
            events.extend(reported_turn(d, result, &text));
        }
        return events;
    }
    // If the CLI names the prompts that it answered, a prompt on its way does not count as taken. A
    // prompt that was sent into the running turn counts as taken only if the CLI names it.
    let folded = is_in_a_turn(d);
    let named = on_its_way(d).filter(|key| result.keys.contains(key));
    let took_unseen =
        named.or_else(|| unreceipted(d).filter(|_| result.keys.is_empty() && !folded));
    let turn = d.turns + u32::from(took_unseen.is_some() && !folded);
    // The answer to a new question may be repaired, even if an earlier answer was.
    let asked = |key: &String| d.prompt(key).is_some_and(|prompt| prompt.kind == PromptKind::Send);
    let may_mend = !d.result.repair_used || took_unseen.as_ref().is_some_and(asked);
    let comes_next = d.next_prompt().is_some()
        || on_its_way(d).is_some_and(|key| took_unseen.as_ref() != Some(&key));
    events.extend(took_unseen.map(|key| taken(d, key)));
    events.push(Event::TurnFinished {
        turn,
        ok: result.ok,
        error: result.error,
        status: result.status,
        text: cut(&text, answer_limit(d)),
    });
    if !result.ok || comes_next {
        return events;
    }
    let doc = result.structured.clone().or_else(|| result::find_in_text(&text));
    match (doc, d.created.wants_result) {
        (Some(doc), wanted) => match result::validate(&doc) {
            Ok(result) => events.push(Event::ResultReceived { result }),
            Err(faults) if wanted => events.extend(invalid(d, turn, may_mend, faults)),
            Err(_) => events.push(spoken(&text)),
        },
        (None, false) => events.push(spoken(&text)),
        (None, true) => events.extend(invalid(
            d,
            turn,
            may_mend,
            vec!["the answer contains no result document".into()],
        )),
    }
    events
}

/// Returns the last message of a turn. In a conversation an agent that returns a document or
/// nothing has answered too.
fn last_message(d: &Dispatch, result: &TurnResult) -> String {
    let talks = d.created.thread().is_some();
    let own = result.text.clone().filter(|text| !talks || !text.trim().is_empty());
    let summary = || {
        let document = result.structured.as_ref().filter(|_| talks)?;
        Some(result::validate(document).ok()?.summary)
    };
    own.or_else(summary).or_else(|| d.result.said.clone()).unwrap_or_default()
}

/// Records a turn whose end a one-shot agent reports: its error, or its answer. The process may go
/// on.
fn reported_turn(d: &Dispatch, result: &TurnResult, text: &str) -> Vec<Event> {
    let mut events = vec![Event::TurnFinished {
        turn: d.turns.max(1),
        ok: result.ok,
        error: result.error,
        status: result.status,
        text: cut(text, crate::agent::event::TEXT_LIMIT),
    }];
    if !result.ok || text.trim().is_empty() {
        return events;
    }
    // Nobody asked this agent for a document, so an invalid one is its answer.
    let document = result::find_in_text(text).and_then(|doc| result::validate(&doc).ok());
    events.push(match document {
        Some(result) => Event::ResultReceived { result },
        None => spoken(text),
    });
    events
}

/// Whether the turn of this result has ended already: the agent also printed its answer in a log
/// line on the same stream.
fn has_ended(d: &Dispatch, result: &TurnResult) -> bool {
    let is_over =
        |key: &String| d.prompt(key).is_some_and(|prompt| prompt.state == PromptState::Done);
    d.created.calls.is_some()
        && !is_in_a_turn(d)
        && !result.keys.is_empty()
        && result.keys.iter().all(is_over)
}

/// Turns an unrequested cancellation into a failed turn; otherwise the dispatch would wait for a
/// message, and nobody would know. A refusal by a person counts as a request, because some agents
/// take it as an order to stop. Some agents (cline) cancel the turn when their own limit of failed
/// calls is reached: another process would fail in the same way, so the turn has ended.
fn unasked_for<'a>(d: &Dispatch, result: &'a TurnResult) -> Cow<'a, TurnResult> {
    let cancelled = result.error == Some(TurnError::Interrupted);
    if !cancelled
        || d.process().interrupt.is_some()
        || d.process().calls.refused
        || d.created.calls.is_none()
    {
        return Cow::Borrowed(result);
    }
    let failed = d.process().calls.failed_in_a_row;
    let (error, why) = if failed >= MOST_MISTAKES {
        let why = format!("the agent ended its turn after {failed} failed tool calls in a row");
        (TurnError::Mistakes, why)
    } else {
        let why = "the agent cancelled the turn, although nothing interrupted it";
        (TurnError::Other, why.to_string())
    };
    let text = result.text.clone().filter(|text| !text.trim().is_empty()).unwrap_or(why);
    Cow::Owned(TurnResult { error: Some(error), text: Some(text), ..result.clone() })
}

/// The most bytes of the last message of a turn. In a conversation it is the answer to a person.
fn answer_limit(d: &Dispatch) -> usize {
    match d.created.thread() {
        Some(_) => crate::conversation::thread::limits::ANSWER_LIMIT,
        None => crate::agent::event::TEXT_LIMIT,
    }
}

fn spoken(text: &str) -> Event {
    Event::ResultReceived {
        result: AgentResult::new(ResultStatus::Success, cut(text, crate::agent::event::TEXT_LIMIT)),
    }
}

fn invalid(d: &Dispatch, turn: u32, repair: bool, faults: Vec<String>) -> Vec<Event> {
    let mut events = vec![Event::ResultInvalid { faults, repair }];
    if repair {
        let key = prompt_key(&d.id, PromptKind::Repair, turn);
        events.push(Event::PromptQueued {
            key,
            kind: PromptKind::Repair,
            by: "muleteer".into(),
            trace: None,
        });
    }
    events
}
