//! The `[harness]` lines. Each is a function of one event only, so the same events always give the
//! same lines.
//!
//! The texts are a file format. A journal is compared with the lines of its events, so a line that
//! another version rendered otherwise would count as an agent's entry. Do not reword them.

use crate::agent::ask::Verdict;
use crate::agent::backend::TraitsOf;
use crate::agent::event::cut;
use crate::agent::permission::POLICY;
use crate::agent::transcript::Standing;
use crate::config::Span;
use crate::event::mcp::McpCalled;
use crate::event::{Created, Event, ExitCause, LeftProcess, Limit, Outcome, PromptKind, Record};
use crate::monitor::Action;
use crate::spec_run::judge::readable;
use crate::{
    api_events, attempt_events, conversation_events, daemon_events, intervention_events,
    output_events, permission_events, prompt_events, question_events, result_events,
    session_events, spec_run_events, task_list_events, thread_events, tool_events,
};
use jiff::Timestamp;
use jiff::tz::Offset;
use std::time::Duration;

/// The longest text in a line, in bytes, so that a journal stays readable.
const TEXT: usize = 300;

/// Returns the journal line of an event without a newline; `None` for events without a line. The
/// time is shown at `offset`.
pub fn harness_line(record: &Record, offset: Offset, traits: TraitsOf) -> Option<String> {
    let text = text(&record.entry.event, offset, traits)?;
    let time = record.ts.to_zoned(offset.to_time_zone()).strftime("%H:%M").to_string();
    Some(format!("- {time} — [harness] {text}"))
}

fn text(event: &Event, offset: Offset, traits: TraitsOf) -> Option<String> {
    match event {
        attempt_events!() => attempt(event, traits),
        prompt_events!() | session_events!() => conversation(event),
        output_events!() | tool_events!() | permission_events!() | result_events!() => {
            output(event)
        }
        api_events!() | intervention_events!() => incident(event, offset),
        question_events!() => question(event),
        daemon_events!()
        | spec_run_events!()
        | thread_events!()
        | task_list_events!()
        | Event::Unknown => None,
    }
}

/// Returns the text for an event of the dispatch itself or of its attempts.
fn attempt(event: &Event, traits: TraitsOf) -> Option<String> {
    Some(match event {
        Event::DispatchCreated(created) => {
            let model = created
                .model
                .as_ref()
                .map(|model| format!(", model {}", say(model)))
                .unwrap_or_default();
            let unkept = unkept(created, traits)
                .map(|unkept| format!("; {}", say(&unkept)))
                .unwrap_or_default();
            format!(
                "dispatched {} ({}) to {}{model}{unkept}",
                code(&created.role),
                say(&created.category),
                say(&created.backend)
            )
        }
        Event::WorktreeCreated { path, base } => {
            format!("worktree {} at {}", code(path), code(base))
        }
        Event::AttemptStarted { attempt, resume, .. } => match resume {
            Some(session) => {
                format!("attempt {attempt} started, resuming session {}", code(session))
            }
            None => format!("attempt {attempt} started"),
        },
        Event::AgentSpawned { pid, .. } => format!("agent started, pid {pid}"),
        Event::AgentAdopted { .. } => "agent adopted by a new daemon; it was not disturbed".into(),
        Event::StartFailed { error, .. } => format!("agent could not be started: {}", say(error)),
        Event::AgentExited { code, signal, cause, stderr_tail, left, .. } => {
            let exited = exited(*code, *signal, *cause, stderr_tail);
            match left.is_empty() {
                true => exited,
                false => {
                    format!("{exited}; killed what it left: {}", say(&LeftProcess::describe(left)))
                }
            }
        }
        Event::SweepFinished { killed: 0, clean: true, .. } => return None,
        Event::SweepFinished { killed, clean, left } => {
            let names = match left.is_empty() {
                true => String::new(),
                false => format!(": {}", say(&LeftProcess::describe(left))),
            };
            let more = if *clean { "" } else { ", and some would not end" };
            format!("swept up {killed} left-over processes{names}{more}")
        }
        Event::AttemptFinished { attempt, outcome, reason, .. } => {
            let outcome = match outcome {
                Outcome::Success => "succeeded",
                Outcome::Failure => "failed",
                Outcome::Timeout => "timed out",
            };
            if reason.is_empty() {
                format!("attempt {attempt} {outcome}")
            } else {
                format!("attempt {attempt} {outcome}: {}", say(reason))
            }
        }
        Event::RestartScheduled { delay_ms, .. } => {
            format!("restart in {}", Span(Duration::from_millis(*delay_ms)))
        }
        Event::WorkFetched(work) => format!("work: {}", say(&work.describe(None))),
        Event::DispatchFinished { state, reason, .. } if reason.is_empty() => {
            format!("finished: {}", state.as_str())
        }
        Event::DispatchFinished { state, reason, .. } => {
            format!("finished: {} — {}", state.as_str(), say(reason))
        }
        // Frequent events, and events that another event of the same batch explains.
        Event::DispatchClosing { .. }
        | Event::AnswerAwaited {}
        | Event::FilesRemoved { .. }
        | Event::CloneRemoved { .. }
        | Event::JournalArchived { .. } => return None,
        prompt_events!()
        | session_events!()
        | output_events!()
        | tool_events!()
        | permission_events!()
        | result_events!()
        | api_events!()
        | intervention_events!()
        | daemon_events!()
        | spec_run_events!()
        | conversation_events!()
        | task_list_events!()
        | Event::Unknown => return None,
    })
}

/// Returns the text for a question that is no request of the agent's CLI, or for its answer.
fn question(event: &Event) -> Option<String> {
    Some(match event {
        Event::QuestionAsked(asked) => format!("BLOCKED: {}", say(&asked.text)),
        Event::QuestionAnswered(answered) => {
            let by = answered.by.to_string();
            format!("Answer received: {} (by {})", say(&answered.answer.describe()), say(&by))
        }
        Event::QuestionState { state, reason, .. } if !reason.is_empty() => {
            format!("question {}: {}", state.as_str(), say(reason))
        }
        _ => return None,
    })
}

/// Returns the text for an event of a prompt, a turn or a session.
fn conversation(event: &Event) -> Option<String> {
    Some(match event {
        Event::PromptQueued { kind, by, .. } => match kind {
            PromptKind::Initial | PromptKind::Unknown => return None,
            PromptKind::Send => format!("further prompt from {}", say(by)),
            PromptKind::Repair => "asked for the result again".into(),
            PromptKind::Continue => "asked to go on where it was cut short".into(),
        },
        Event::TurnStarted { turn, .. } => format!("turn {turn} started"),
        Event::PromptFolded { turn, .. } => format!("further prompt taken into turn {turn}"),
        Event::PromptProbed { standing, counted, detail, .. } => {
            probed(*standing, *counted, detail)
        }
        Event::TurnFinished { turn, ok: true, .. } => format!("turn {turn} finished"),
        Event::TurnFinished { turn, error, status, .. } => {
            let error = error.and_then(|error| serde_json::to_value(error).ok());
            let error =
                error.as_ref().and_then(|error| error.as_str()).unwrap_or("error").to_string();
            let status = status.map(|status| format!(" (status {status})")).unwrap_or_default();
            format!("turn {turn} failed: {error}{status}")
        }
        // A backend without sessions may still have a model.
        Event::SessionStarted { session_id, model } if session_id.is_empty() => {
            format!("model {}", say(model.as_ref()?))
        }
        Event::SessionStarted { session_id, model } => {
            let model =
                model.as_ref().map(|model| format!(", model {}", say(model))).unwrap_or_default();
            format!("session {}{model}", code(session_id))
        }
        Event::AgentGreeted { agent, load: None } => format!("it is {}", say(agent)),
        Event::AgentGreeted { agent, load: Some(session) } => {
            format!("it is {}, loading {}", say(agent), code(session))
        }
        Event::SessionModeChanged { mode, back: None } => {
            format!("it went into its mode {}", say(mode))
        }
        Event::SessionModeChanged { mode, back: Some(back) } => {
            format!("it went into its mode {}; {} is set again", say(mode), say(back))
        }
        Event::SessionModelSet { model } => format!("model {} set", say(model)),
        Event::CallFailed { call, reason, .. } => format!("{} failed: {}", say(call), say(reason)),
        Event::SessionLost { session_id } => {
            format!("the session {} is no longer there", code(session_id))
        }
        Event::ModelRequested { model, by, .. } => {
            format!("model {} wanted by {}", say(model), say(by))
        }
        Event::ModelChanged { model, .. } => format!("goes on with model {}", say(model)),
        Event::ModelRefused { reason, .. } => {
            format!("the other model was refused: {}", say(reason))
        }
        // Frequent events, and events that another event of the same batch explains.
        Event::SessionOpened { .. }
        | Event::SessionModeKept { .. }
        | Event::SessionModeStays { .. }
        | Event::SessionModeSet { .. }
        | Event::SessionModeRefused { .. }
        | Event::PromptSent { .. }
        | Event::PromptWritten { .. } => return None,
        attempt_events!()
        | output_events!()
        | tool_events!()
        | permission_events!()
        | result_events!()
        | api_events!()
        | intervention_events!()
        | daemon_events!()
        | spec_run_events!()
        | conversation_events!()
        | task_list_events!()
        | Event::Unknown => return None,
    })
}

/// Returns the text for output of the agent: notices, tool calls, requests and results.
fn output(event: &Event) -> Option<String> {
    Some(match event {
        Event::McpCalled(called) if called.wait.is_some() => return None,
        Event::McpCalled(called) => called_tool(called),
        Event::AgentNotice { text } => format!("notice: {}", say(text)),
        Event::Compacted { before, after } => {
            format!("context compacted: {before} to {after} tokens")
        }
        Event::BlockedByUs { on: true } => {
            "output held back by Muleteer (spool or disk full)".into()
        }
        Event::BlockedByUs { on: false } => "output flows again".into(),
        // The agent's own entries are in the journal already.
        Event::JournalEntry { .. } => return None,
        Event::ToolCalled { tool, target, .. } if target.is_empty() => {
            format!("tool_use: {}", say(tool))
        }
        Event::ToolCalled { tool, target, .. } => {
            format!("tool_use: {} {}", say(tool), code(target))
        }
        Event::ToolFailed { text, .. } => format!("tool failed: {}", say(text)),
        Event::PermissionRequested { answered: true, .. } => return None,
        Event::PermissionRequested { ask, question, .. } => {
            let blocked = if *question { "BLOCKED: " } else { "" };
            format!("{blocked}waits for an answer: {}", say(&ask.describe()))
        }
        // The journal already has the agent's call, and its failure will follow.
        Event::PermissionAnswered { by, .. } if by == POLICY => return None,
        Event::PermissionAnswered { answer, text, by, question, .. } => {
            let received = if *question { "Answer received: " } else { "" };
            let verdict = match answer {
                Verdict::Allow => "allowed",
                Verdict::Deny => "denied",
                Verdict::Text => "answered",
            };
            let text = if text.is_empty() { String::new() } else { format!(": {}", say(text)) };
            format!("{received}{verdict} by {}{text}", say(by))
        }
        Event::PermissionClosed { .. } => "the request was taken back".into(),
        Event::HoldExpired { idle: true } => return None,
        Event::HoldExpired { .. } => "nobody answered within the hold: the process is ended".into(),
        Event::ResultReceived { result } => {
            let status = serde_json::to_value(result.status).unwrap_or_default();
            let summary = readable(&result.summary).unwrap_or_else(|| result.summary.clone());
            format!("result: {} — {}", status.as_str().unwrap_or_default(), say(&summary))
        }
        Event::ResultInvalid { faults, repair } => {
            let next = if *repair { "; asking once more" } else { "" };
            format!("result invalid: {}{next}", say(&faults.join("; ")))
        }
        Event::ResultQuoted {} => "the result stands behind other text on its line".into(),
        Event::ResultOvertaken {} => {
            "the result was not the last line, and counts for nothing".into()
        }
        // Frequent events, and events that another event of the same batch explains.
        Event::ToolSubject { .. }
        | Event::ToolFinished { .. }
        | Event::PolicyBroken { .. }
        | Event::AgentSaid { .. }
        | Event::UsageRecorded { .. }
        | Event::AnswerDelivered { .. }
        | Event::OutputRead { .. } => return None,
        attempt_events!()
        | prompt_events!()
        | session_events!()
        | api_events!()
        | intervention_events!()
        | daemon_events!()
        | spec_run_events!()
        | conversation_events!()
        | task_list_events!()
        | Event::Unknown => return None,
    })
}

/// Returns the text for a call of Muleteer's MCP server.
fn called_tool(called: &McpCalled) -> String {
    match (&called.child, called.percent) {
        (Some(child), _) => format!("drafted {}", code(child.as_str())),
        (None, Some(percent)) => format!("progress {percent} %: {}", say(&called.text)),
        (None, None) => format!("{}: {}", say(&called.tool.replace('_', " ")), say(&called.text)),
    }
}

/// Returns the text for trouble with the model API, or for an intervention.
fn incident(event: &Event, offset: Offset) -> Option<String> {
    let clock = |at: &Timestamp| {
        at.to_zoned(offset.to_time_zone()).strftime("%Y-%m-%d %H:%M:%S").to_string()
    };
    Some(match event {
        Event::ApiRetried { attempt, max, status, delay_s, .. } => {
            let status = status.map(|status| format!(", status {status}")).unwrap_or_default();
            let delay = seconds(*delay_s);
            format!("model API retry {attempt} of {max}{status}, after {delay}")
        }
        Event::RateLimited { until: Some(until), .. } => {
            format!("rate limited until {}", clock(until))
        }
        Event::RateLimited { until: None, wait_s, .. } => {
            format!("rate limited for {}", seconds(*wait_s))
        }
        Event::ApiWaiting { trouble, status, until, .. } => {
            format!(
                "waiting for the model API until {}: {}",
                clock(until),
                trouble.describe(*status)
            )
        }
        Event::ApiGivenUp { reason, .. } => {
            format!("the model API is not asked any more: {}", say(reason))
        }
        Event::InterruptRequested { by, .. } => format!("interrupt requested by {}", say(by)),
        Event::KillRequested { reason, by } if reason.is_empty() => {
            format!("kill requested by {}", say(by))
        }
        Event::KillRequested { reason, by } => {
            format!("kill requested by {}: {}", say(by), say(reason))
        }
        // The detail of an older version is no part of a sentence.
        Event::LimitReached { limit, detail } if detail.starts_with("its ") => {
            limit.describe(&say(detail))
        }
        Event::LimitReached { limit, detail } => {
            format!("limit reached: {}: {}", name(*limit), say(detail))
        }
        Event::StallDetected { silent_s, evidence } => {
            format!(
                "stalled: no sign of life for {} ({})",
                Span::from_secs(*silent_s),
                say(evidence)
            )
        }
        Event::MonitorSpoke { monitor, action, reason } => {
            let then = if *action == Action::Stop { ", so it is ended" } else { "" };
            format!("{monitor}: {}{then}", say(reason))
        }
        Event::HealingBegun(begun) => match &begun.healer {
            Some(healer) => {
                format!("the light agent {} decides what follows", code(healer.as_str()))
            }
            None => return None,
        },
        Event::HealingChosen(chosen) => {
            let by = say(&chosen.by);
            let other = chosen.dispatch.as_ref().map(|id| format!(" as {}", code(id.as_str())));
            let (choice, other) = (chosen.choice.as_str(), other.unwrap_or_default());
            format!("self-healing: {choice}{other} (by {by}): {}", say(&chosen.reason))
        }
        Event::HealingDone(done) if done.reason.is_empty() => return None,
        Event::HealingDone(done) => format!("self-healing ended: {}", say(&done.reason)),
        attempt_events!()
        | prompt_events!()
        | session_events!()
        | output_events!()
        | tool_events!()
        | permission_events!()
        | result_events!()
        | daemon_events!()
        | spec_run_events!()
        | conversation_events!()
        | task_list_events!()
        | Event::Unknown => return None,
    })
}

fn probed(standing: Standing, counted: bool, detail: &str) -> String {
    let used =
        if counted { "its tokens until then are counted" } else { "what that used is not known" };
    let what = match standing {
        Standing::NotTaken => "the prompt was not taken".to_string(),
        Standing::Unanswered => "the prompt was taken and not yet answered".to_string(),
        Standing::MidTool => format!("the prompt was taken and being worked on ({used})"),
        Standing::Answered => format!("the prompt was taken and answered ({used})"),
        Standing::Unknown => {
            return format!("whether the prompt was taken is not known: {}", say(detail));
        }
    };
    format!("its transcript says: {what}")
}

fn exited(code: Option<i32>, signal: Option<i32>, cause: ExitCause, stderr: &str) -> String {
    let how = match (code, signal) {
        (Some(code), _) => format!("with code {code}"),
        (None, Some(signal)) => format!("by signal {signal}"),
        (None, None) => "in an unknown way".into(),
    };
    let why = match cause {
        ExitCause::Exited | ExitCause::Unknown => "",
        ExitCause::Terminated => ", ended by Muleteer",
        ExitCause::ShimPolicy => ", ended by its shim at a limit",
        ExitCause::LeaseExpired => ", ended because no daemon renewed its lease",
        ExitCause::ShimLost => ", its shim died first",
        ExitCause::NeverRan => ", before it ever ran",
        ExitCause::CannotStart => ", it could not be started",
    };
    let last = stderr.lines().rev().find(|line| !line.trim().is_empty()).map(say);
    let last = last.filter(|_| code != Some(0)).map(|line| format!(": {line}")).unwrap_or_default();
    format!("agent exited {how}{why}{last}")
}

fn seconds(seconds: f64) -> Span {
    Span(Duration::from_millis((seconds.clamp(0.0, 1e9) * 1000.0) as u64))
}

fn say(text: &str) -> String {
    cut(&crate::journal::one_line(text), TEXT)
}

/// Formats a text as a code span, even if it contains backticks.
fn code(text: &str) -> String {
    let text = say(text);
    if text.contains('`') { format!("`` {text} ``") } else { format!("`{text}`") }
}

/// Describes a budget that cannot be enforced, as [`Created::unkept`] did at first.
fn unkept(created: &Created, traits: TraitsOf) -> Option<String> {
    let costless = !traits.get(&created.backend).reports_cost && created.api.price.is_none();
    let budget = created.limits.budget_usd.filter(|_| costless)?;
    let model = created.model.as_deref().unwrap_or("a model that --model names");
    Some(format!(
        "the budget of ${budget:.2} cannot be kept: {} reports tokens and no cost, and \
         models.prices has no price for {model}",
        created.backend
    ))
}

fn name(limit: Limit) -> &'static str {
    match limit {
        Limit::Budget => "budget",
        Limit::Turns => "turns",
        Limit::Timeout => "time",
        Limit::Unknown => "unknown",
    }
}
