//! One event in one line, as an operations channel would show it.

use crate::render::{BOLD, DIM, RED, RESET, YELLOW, clip, count, span, state_color, usd};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use muleteer_model::agent::ask::Verdict;
use muleteer_model::event::{Event, Record};
use muleteer_model::monitor::Action;
use muleteer_model::{spec_run_events, task_list_events};
use std::time::Duration;

/// The width of text from an agent.
const TEXT: usize = 160;

/// Returns the line of one event; `None` for an event that this version does not know.
pub fn line(record: &Record) -> Option<String> {
    let what = describe(&record.entry.event)?;
    let time = record.ts.to_zoned(TimeZone::system()).strftime("%H:%M:%S");
    let who = record.entry.dispatch_id.as_ref().map_or("-", |id| id.as_str());
    // A name with a newline must not start a second line, which would read as another event.
    Some(format!("{DIM}{time}{RESET} {BOLD}{who:<8}{RESET} {}", what.trim_end().replace('\n', " ")))
}

/// Describes the event, without its time and its dispatch.
pub fn describe(event: &Event) -> Option<String> {
    let text = |text: &str| clip(text.trim(), TEXT);
    let warn = |text: String| format!("{YELLOW}{text}{RESET}");
    let bad = |text: String| format!("{RED}{text}{RESET}");
    let state = |state: &str| format!("{}{state}{RESET}", state_color(state));
    Some(match event {
        Event::DaemonStarted { pid, version, .. } => format!("daemon {version} started, pid {pid}"),
        Event::DaemonStopping { alive: 0, .. } => "daemon stopping, no agents left".into(),
        Event::DaemonStopping { agents, alive, lease_s } => {
            format!(
                "daemon stopping: {alive} agents ({agents}), lease {}",
                span(Duration::from_secs(*lease_s))
            )
        }
        Event::LogRecovered { cut_bytes } => {
            warn(format!("a torn tail of {cut_bytes} bytes was cut from the events"))
        }
        Event::ActorRestarted { actor, reason, restarts_in_window, delay_ms } => warn(format!(
            "{actor} restarted after {delay_ms} ms ({restarts_in_window} in the window): {}",
            text(reason)
        )),
        Event::ActorEscalated { actor, reason } => {
            bad(format!("{actor} failed too often: {}", text(reason)))
        }
        Event::Fault { what, message } => bad(format!("{what}: {}", text(message))),
        Event::DispatchCreated(created) => {
            format!(
                "{} on {} ({}), asked by {}",
                created.role, created.project, created.backend, created.by
            )
        }
        Event::PromptQueued { kind, by, .. } => format!("prompt queued by {by} ({})", word(kind)),
        Event::WorktreeCreated { path, base } => format!("worktree {path} at {}", clip(base, 12)),
        Event::AttemptStarted { attempt, resume, .. } => {
            format!(
                "attempt {attempt}{}",
                if resume.is_some() { ", resuming its session" } else { "" }
            )
        }
        Event::AgentSpawned { pid, containment, .. } => {
            format!("agent started, pid {pid} ({containment})")
        }
        Event::AgentAdopted { shim_pid, .. } => format!("agent adopted from shim {shim_pid}"),
        Event::StartFailed { error, .. } => bad(format!("start failed: {}", text(error))),
        // An agent without sessions may still report its model.
        Event::SessionStarted { session_id, model } if session_id.is_empty() => {
            format!("model {}", model.as_ref()?)
        }
        Event::SessionStarted { session_id, model } => {
            format!(
                "session {}{}",
                clip(session_id, 40),
                model.as_ref().map(|model| format!(", {model}")).unwrap_or_default()
            )
        }
        Event::AgentGreeted { agent, load } => {
            format!(
                "agent {}{}",
                text(agent),
                if load.is_some() { ", loading its session" } else { "" }
            )
        }
        Event::SessionOpened { .. } => "session open".into(),
        Event::SessionModeSet { mode } => format!("mode {} set", text(mode)),
        Event::SessionModeKept { .. } => return None,
        Event::SessionModeChanged { mode, back: None } => format!("went into mode {}", text(mode)),
        Event::SessionModeChanged { mode, back: Some(back) } => {
            warn(format!("went into mode {}, set back to {}", text(mode), text(back)))
        }
        Event::SessionModeStays { mode, reason } => {
            bad(format!("stays in mode {}: {}", text(mode), text(reason)))
        }
        Event::SessionModeRefused { mode, reason, .. } => {
            warn(format!("mode {}: {}", text(mode), text(reason)))
        }
        Event::PolicyBroken { tool, target, rule, denied, .. } => {
            let how = if *denied { "used though denied" } else { "used without asking" };
            bad(format!("{how}: {tool} {} ({})", text(target), text(rule)))
        }
        Event::SessionModelSet { model } => format!("model {model} set"),
        Event::CallFailed { call, reason, .. } => warn(format!("{call}: {}", text(reason))),
        Event::PromptSent { .. } => "prompt sent".into(),
        Event::PromptWritten { .. } => return None,
        Event::TurnStarted { turn, .. } => format!("turn {turn}"),
        Event::PromptFolded { turn, .. } => format!("prompt taken into turn {turn}"),
        Event::PromptProbed { standing, detail, .. } if detail.is_empty() => {
            format!("transcript: prompt {}", word(standing))
        }
        Event::PromptProbed { detail, .. } => {
            warn(format!("not known whether the prompt was taken: {}", text(detail)))
        }
        Event::SessionLost { session_id } => {
            warn(format!("session {} is no longer there", clip(session_id, 40)))
        }
        Event::ToolCalled { tool, target, .. } => format!("{tool} {}", text(target)),
        Event::ToolFailed { text: why, .. } => warn(format!("tool failed: {}", text(why))),
        Event::ToolFinished { .. } | Event::ToolSubject { .. } => return None,
        Event::PermissionRequested { answered: true, .. } => return None,
        Event::PermissionRequested { ask, .. } => {
            warn(format!("waits for an answer: {}", text(&ask.describe())))
        }
        Event::PermissionAnswered { answer: Verdict::Allow, by, .. } => format!("allowed by {by}"),
        Event::PermissionAnswered { answer, text: why, by, .. } => {
            let verdict = if *answer == Verdict::Deny { "denied" } else { "answered" };
            warn(format!("{verdict} by {by}: {}", text(why)))
        }
        Event::PermissionClosed { .. } => "the request was taken back".into(),
        Event::AgentNotice { text: what } => warn(text(what)),
        Event::AgentSaid { text: said } => format!("“{}”", text(said)),
        Event::UsageRecorded { model, input, output, cost_usd, .. } => {
            format!("{model}: {} in, {} out, {}", count(*input), count(*output), usd(*cost_usd))
        }
        Event::TurnFinished { turn, ok: true, .. } => format!("turn {turn} done"),
        Event::TurnFinished { turn, error, status, text: why, .. } => {
            let error = error.map(|error| word(&error)).unwrap_or_default();
            let status = status.map(|status| format!(" {status}")).unwrap_or_default();
            warn(format!("turn {turn} failed: {error}{status} {}", text(why)))
        }
        Event::ResultReceived { result } => {
            format!("result: {} {}", state(&word(&result.status)), text(&result.summary))
        }
        Event::ResultInvalid { faults, repair } => {
            let repair = if *repair { "; asked again" } else { "" };
            warn(format!("invalid result: {}{repair}", text(&faults.join("; "))))
        }
        Event::ResultQuoted {} => return None,
        Event::ResultOvertaken {} => {
            warn("it printed more after its result, which is none then".into())
        }
        Event::JournalEntry { text: entry } => format!("journal: {}", text(entry)),
        Event::ApiRetried { attempt, max, status, delay_s, .. } => {
            let status = status.map(|status| format!(" after HTTP {status}")).unwrap_or_default();
            warn(format!(
                "the model's API is tried again ({attempt}/{max}){status}, in {delay_s:.0}s"
            ))
        }
        Event::RateLimited { until: Some(until), .. } => {
            warn(format!("rate limited until {}", local(until)))
        }
        Event::RateLimited { until: None, wait_s, .. } => {
            warn(format!("rate limited for {wait_s:.0}s"))
        }
        Event::ApiWaiting { trouble, status, until, .. } => warn(format!(
            "waits for the model API until {}: {}",
            local(until),
            trouble.describe(*status)
        )),
        Event::ApiGivenUp { reason, .. } => bad(text(reason)),
        Event::Compacted { before, after } => {
            format!("context compacted from {} to {} tokens", count(*before), count(*after))
        }
        Event::BlockedByUs { on: true } => {
            warn("output held back: the spool or the disk is full".into())
        }
        Event::BlockedByUs { on: false } => "output flows again".into(),
        Event::ModelRequested { model, by, .. } => format!("model {model} asked by {by}"),
        Event::ModelChanged { model, .. } => format!("goes on with {model}"),
        Event::ModelRefused { reason, .. } => {
            warn(format!("the other model was refused: {}", text(reason)))
        }
        Event::InterruptRequested { by, .. } => format!("interrupt asked by {by}"),
        Event::KillRequested { reason, by } => format!("kill asked by {by}: {}", text(reason)),
        Event::LimitReached { limit, detail } => {
            warn(format!("limit reached: {} ({})", word(limit), text(detail)))
        }
        Event::MonitorSpoke { monitor, action, reason } => {
            let what = format!("{monitor}: {}", text(reason));
            match action {
                Action::Stop => bad(format!("{what}: it is ended")),
                Action::Warn => warn(what),
                _ => what,
            }
        }
        Event::StallDetected { silent_s, evidence } => {
            let silent = span(Duration::from_secs(*silent_s));
            warn(format!("stalled: no sign of life for {silent} ({})", text(evidence)))
        }
        Event::AgentExited { code, signal, cause, .. } => {
            let how = match (code, signal) {
                (Some(code), _) => format!("exited with {code}"),
                (None, Some(signal)) => format!("ended by signal {signal}"),
                (None, None) => "ended".into(),
            };
            format!("agent {how} ({})", word(cause).replace('_', " "))
        }
        Event::SweepFinished { killed: 0, clean: true } => "nothing was left behind".into(),
        Event::SweepFinished { killed, clean: true } => {
            warn(format!("{killed} processes left behind were ended"))
        }
        Event::SweepFinished { killed, clean: false } => {
            bad(format!("processes are left that could not be ended ({killed} were)"))
        }
        Event::AttemptFinished { attempt, outcome, reason, .. } => {
            format!("attempt {attempt}: {} {}", word(outcome), text(reason))
        }
        Event::RestartScheduled { delay_ms, .. } => {
            warn(format!("restarts in {}", span(Duration::from_millis(*delay_ms))))
        }
        Event::DispatchClosing { .. } => "bringing the work home".into(),
        Event::WorkFetched(work) if work.trouble.is_some() || !work.skipped.is_empty() => {
            warn(format!("work: {}", text(&work.describe(None))))
        }
        Event::WorkFetched(work) => format!("work: {}", text(&work.describe(None))),
        Event::DispatchFinished { state: ended, reason, .. } => {
            format!("{} {}", state(ended.as_str()), text(reason))
        }
        Event::FilesRemoved { by } => format!("its files are removed by {by}"),
        Event::OutputRead {} | task_list_events!() => event.name().replace('_', " "),
        spec_run_events!() => return crate::render::run::describe(event),
        Event::Unknown => return None,
    })
}

fn local(at: &Timestamp) -> String {
    at.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Returns a unit variant as it is spelled in files.
pub(super) fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_sessions_has_only_a_model() {
        let started = |id: &str, model: Option<&str>| {
            describe(&Event::SessionStarted {
                session_id: id.into(),
                model: model.map(String::from),
            })
        };
        assert_eq!(started("5f0c", Some("m")).as_deref(), Some("session 5f0c, m"));
        assert_eq!(started("", Some("m")).as_deref(), Some("model m"));
        assert_eq!(started("", None), None);
    }
}
