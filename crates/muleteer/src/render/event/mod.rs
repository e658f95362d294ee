//! One event in one line, as an operations channel would show it.

mod healing;
mod kept;
mod names;
mod plain;
mod thread;

use crate::render::event::names::Names;
use crate::render::event::plain::plain;
use crate::render::{
    BOLD, DIM, RED, RESET, YELLOW, clip, count, local_time, span, state_color, usd,
};
use jiff::Timestamp;
use muleteer_model::agent::ask::Verdict;
use muleteer_model::agent::transcript::Standing;
use muleteer_model::event::{Entry, Event, ExitCause, LeftProcess, Outcome, Record};
use muleteer_model::monitor::Action;
use muleteer_model::spec_run::Run;
use muleteer_model::spec_run::judge::readable;
use muleteer_model::spec_run::report::names::MAINTENANCE;
use muleteer_model::{
    api_events, attempt_events, conversation_events, daemon_events, intervention_events,
    output_events, permission_events, prompt_events, question_events, result_events,
    session_events, spec_run_events, task_list_events, tool_events,
};
use std::cell::RefCell;
use std::time::Duration;

/// The width of text from an agent.
const TEXT: usize = 160;

/// The lines of a stream of events. Later lines use names from earlier events: the titles of beads
/// and the attempts of agents.
#[derive(Debug, Default)]
pub struct Lines {
    names: RefCell<Names>,
}

impl Lines {
    /// Learns the names of a run whose earlier events are not in the stream.
    pub fn learn(&self, run: &Run) {
        let mut names = self.names.borrow_mut();
        for (id, bead) in &run.beads {
            names.titles.insert(id.clone(), bead.planned.title.clone());
        }
        names.titles.extend(run.observations.titles.clone());
        let maintained = run.maintenance.runs.iter();
        names.titles.extend(maintained.map(|one| (one.bead_id.clone(), MAINTENANCE.into())));
        names.run = run.id().into();
        for job in run.jobs.values() {
            names.attempts.insert(job.start.agent, job.start.attempt + 1);
        }
    }

    /// Returns the line of one event; `None` for an event that this version does not know.
    pub fn line(&self, record: &Record) -> Option<String> {
        let what = self.describe(&record.entry)?;
        let time = local_time(record.ts);
        let who = record.entry.dispatch_id.as_ref().map_or("-", |id| id.as_str());
        // A name with a newline must not start a second line, which would read as another event.
        let what = what.trim_end().replace('\n', " ");
        Some(format!("{DIM}{time}{RESET} {BOLD}{who:<8}{RESET} {what}"))
    }

    /// Describes the event, without its time and its dispatch.
    pub fn describe(&self, entry: &Entry) -> Option<String> {
        let plain = plain(entry);
        let entry = plain.as_ref();
        let mut names = self.names.borrow_mut();
        names.take(entry);
        let dispatch = entry.dispatch_id.as_ref().map(|id| id.as_str());
        match &entry.event {
            Event::DispatchClosing { .. } => {
                let has_clone = dispatch.is_some_and(|id| names.clones.contains(id));
                has_clone.then(|| "fetching its commits".into())
            }
            Event::AgentStarted(start) => Some(format!(
                "agent {} starts: {}: attempt {} (dispatch {})",
                start.agent,
                names.job(start.purpose, start.bead_id.as_deref()),
                start.attempt + 1,
                start.dispatch
            )),
            Event::AgentFinished(end) => {
                let job = names.job(end.purpose, end.bead_id.as_deref());
                let attempt = match names.attempts.get(&end.agent) {
                    Some(attempt) => format!("attempt {attempt}"),
                    None => "the attempt".into(),
                };
                let (how, color) = match end.status {
                    Outcome::Success => ("succeeded", ""),
                    Outcome::Failure => ("failed", YELLOW),
                    Outcome::Timeout => ("timed out", YELLOW),
                };
                // The agent may have reported success for work that does not count as done.
                let reason = clip(end.reason.trim(), TEXT);
                let reason = match reason.as_str() {
                    "" | "success" => String::new(),
                    reason => format!(": {reason}"),
                };
                let line = format!("agent {}: {job}: {attempt} {how}{reason}", end.agent);
                Some(if color.is_empty() { line } else { format!("{color}{line}{RESET}") })
            }
            spec_run_events!() => {
                crate::render::run::describe(&entry.event, &names.run, &|id| names.bead(id))
            }
            // Only the log of a run names one.
            event @ question_events!() if !names.run.is_empty() => {
                crate::render::run::describe(event, &names.run, &|id| names.bead(id))
            }
            event => describe(event),
        }
    }
}

/// Describes an event that needs no other one.
fn describe(event: &Event) -> Option<String> {
    match event {
        daemon_events!() | attempt_events!() | intervention_events!() => process(event),
        prompt_events!() | session_events!() | tool_events!() | permission_events!() => {
            conversation(event)
        }
        output_events!() | result_events!() | api_events!() => output(event),
        conversation_events!() => thread::describe(event),
        task_list_events!() => Some(event.name().replace('_', " ")),
        // The stream of events describes these, because it knows the titles of beads.
        spec_run_events!() | Event::Unknown => None,
    }
}

/// Describes an event of the daemon, of an attempt or of an intervention.
fn process(event: &Event) -> Option<String> {
    Some(match event {
        Event::DaemonStarted { pid, version, .. } => format!("daemon {version} started, pid {pid}"),
        Event::DaemonStopping { alive: 0, .. } => "daemon stopping, no agents running".into(),
        Event::DaemonStopping { agents, alive, lease_s } => {
            format!(
                "daemon stopping: {alive} agents ({agents}), lease {}",
                span(Duration::from_secs(*lease_s))
            )
        }
        Event::LogRecovered { cut_bytes } => {
            warn(format!("removed an incomplete last write of {cut_bytes} bytes from the events"))
        }
        Event::ActorRestarted { actor, reason, restarts_in_window, delay_ms } => warn(format!(
            "{actor} restarted after {delay_ms} ms ({restarts_in_window} in the window): {}",
            text(reason)
        )),
        Event::ActorEscalated { actor, reason } => {
            bad(format!("{actor} failed too often: {}", text(reason)))
        }
        Event::Fault { what, message } => bad(format!("{what}: {}", text(message))),
        Event::SettingChanged(_)
        | Event::DispatchesArchived { .. }
        | Event::DispatchesRestored(_)
        | Event::EventsRemoved(_) => return kept::describe(event),
        Event::DispatchCreated(created) => {
            let title = created.title.as_deref().map(|title| format!(": {}", text(title)));
            format!(
                "{} on {} ({}), requested by {}{}",
                created.role,
                created.project,
                created.backend,
                created.by,
                title.unwrap_or_default()
            )
        }
        Event::WorktreeCreated { path, base } => format!("worktree {path} at {}", clip(base, 12)),
        Event::AttemptStarted { attempt, resume, .. } => {
            format!(
                "attempt {attempt}{}",
                if resume.is_some() { ", resuming its session" } else { "" }
            )
        }
        Event::AgentSpawned { pid, .. } => format!("agent started, pid {pid}"),
        Event::AgentAdopted { shim_pid, .. } => format!("agent adopted from shim {shim_pid}"),
        Event::StartFailed { error, .. } => bad(format!("start failed: {}", text(error))),
        Event::InterruptRequested { by, .. } => format!("interrupt requested by {by}"),
        Event::KillRequested { reason, by } => format!("kill requested by {by}: {}", text(reason)),
        Event::LimitReached { limit, detail } => warn(limit.describe(&text(detail))),
        Event::MonitorSpoke { monitor, action, reason } => {
            let what = format!("{monitor}: {}", text(reason));
            match action {
                Action::Stop => bad(format!("{what}: stopping the agent")),
                Action::Warn => warn(what),
                _ => what,
            }
        }
        Event::HealingBegun(_) | Event::HealingChosen(_) | Event::HealingDone(_) => {
            return healing::describe(event);
        }
        Event::StallDetected { silent_s, evidence } => {
            let silent = span(Duration::from_secs(*silent_s));
            warn(format!("stalled: no sign of life for {silent} ({})", text(evidence)))
        }
        Event::AgentExited { code, signal, cause, left, .. } => {
            exited(*code, *signal, *cause, left)
        }
        Event::SweepFinished { killed, clean, left } => swept(*killed, *clean, left),
        Event::AttemptFinished { attempt, outcome, reason, .. } => {
            format!("attempt {attempt}: {} {}", word(outcome), text(reason))
        }
        Event::AnswerAwaited {} => "waits for an answer without a process".into(),
        Event::RestartScheduled { delay_ms, .. } => {
            warn(format!("restarts in {}", span(Duration::from_millis(*delay_ms))))
        }
        Event::WorkFetched(work) if work.trouble.is_some() || !work.skipped.is_empty() => {
            warn(format!("work: {}", text(&work.describe(None))))
        }
        Event::WorkFetched(work) => format!("work: {}", text(&work.describe(None))),
        Event::DispatchFinished { state: ended, reason, .. } => {
            format!("{} {}", state(ended.as_str()), text(reason))
        }
        Event::FilesRemoved { by } => format!("files removed by {by}"),
        Event::CloneRemoved { by, .. } => format!("clone removed by {}", text(by)),
        Event::JournalArchived { path, .. } => format!("journal archived at {}", text(path)),
        // The stream of events describes this one, because it knows the dispatches with a clone.
        Event::DispatchClosing { .. } => return None,
        prompt_events!()
        | session_events!()
        | tool_events!()
        | permission_events!()
        | output_events!()
        | result_events!()
        | api_events!()
        | conversation_events!()
        | task_list_events!()
        | spec_run_events!()
        | Event::Unknown => return None,
    })
}

/// Describes the end of an agent's process, and the processes that it left.
fn exited(
    code: Option<i32>,
    signal: Option<i32>,
    cause: ExitCause,
    left: &[LeftProcess],
) -> String {
    let how = match (code, signal) {
        (Some(code), _) => format!("exited (code {code})"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended in an unknown way".into(),
    };
    let exited = match cause {
        ExitCause::Exited | ExitCause::Unknown => format!("agent {how}"),
        cause => format!("agent {how}: {}", exit_cause(cause)),
    };
    match left.is_empty() {
        true => exited,
        false => warn(format!("{exited}; killed what it left: {}", names(left))),
    }
}

/// Describes a search for processes that a dead shim left.
fn swept(killed: u32, clean: bool, left: &[LeftProcess]) -> String {
    match (killed, clean) {
        (0, true) => "no processes left behind".into(),
        (_, true) if left.is_empty() => {
            warn(format!("killed {killed} processes that were left behind"))
        }
        (_, true) => warn(format!("killed processes that were left behind: {}", names(left))),
        (_, false) => {
            let which = if left.is_empty() { String::new() } else { format!(": {}", names(left)) };
            bad(format!("some processes could not be killed ({killed} were killed{which})"))
        }
    }
}

/// Names processes that were killed, in one line.
fn names(left: &[LeftProcess]) -> String {
    text(&LeftProcess::describe(left))
}

/// Describes an event of a prompt, a session, a tool or a permission.
fn conversation(event: &Event) -> Option<String> {
    Some(match event {
        Event::PromptQueued { kind, by, .. } => format!("prompt queued by {by} ({})", word(kind)),
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
        Event::SessionModeChanged { mode, back: None } => {
            format!("switched to mode {}", text(mode))
        }
        Event::SessionModeChanged { mode, back: Some(back) } => {
            warn(format!("switched to mode {}, reset to {}", text(mode), text(back)))
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
        Event::PromptFolded { turn, .. } => format!("message folded into turn {turn}"),
        Event::PromptProbed { standing, detail, .. } if detail.is_empty() => {
            format!("transcript: {}", last_prompt(*standing))
        }
        Event::PromptProbed { detail, .. } => {
            warn(format!("not known whether the prompt was taken: {}", text(detail)))
        }
        Event::SessionLost { session_id } => {
            warn(format!("session {} no longer exists", clip(session_id, 40)))
        }
        Event::ToolCalled { tool, target, .. } => format!("{tool} {}", text(target)),
        Event::ToolFailed { text: why, .. } => warn(format!("tool failed: {}", text(why))),
        Event::ToolFinished { .. } | Event::ToolSubject { .. } => return None,
        Event::PermissionRequested { answered: true, .. } => return None,
        Event::PermissionRequested { ask, .. } => {
            warn(format!("waiting for an answer: {}", text(&ask.describe())))
        }
        Event::PermissionAnswered { answer: Verdict::Allow, by, .. } => format!("allowed by {by}"),
        Event::PermissionAnswered { answer, text: why, by, .. } => {
            let verdict = if *answer == Verdict::Deny { "denied" } else { "answered" };
            warn(format!("{verdict} by {by}: {}", text(why)))
        }
        Event::PermissionClosed { .. } => "the agent withdrew the request".into(),
        Event::AnswerDelivered { .. } => "the agent has the answer".into(),
        Event::HoldExpired { idle: true } => {
            "no further message within the idle hold: ending the process".into()
        }
        Event::HoldExpired { .. } => {
            warn("nobody answered within the hold: ending the process".into())
        }
        Event::TurnFinished { turn, ok: true, .. } => format!("turn {turn} done"),
        Event::TurnFinished { turn, error, status, text: why, .. } => {
            let error = error.map(|error| word(&error)).unwrap_or_default();
            let status = status.map(|status| format!(" {status}")).unwrap_or_default();
            warn(format!("turn {turn} failed: {error}{status} {}", text(why)))
        }
        Event::ModelRequested { model, by, .. } => format!("model {model} requested by {by}"),
        Event::ModelChanged { model, .. } => format!("switched to model {model}"),
        Event::ModelRefused { reason, .. } => {
            warn(format!("the other model was refused: {}", text(reason)))
        }
        daemon_events!()
        | attempt_events!()
        | intervention_events!()
        | output_events!()
        | result_events!()
        | api_events!()
        | conversation_events!()
        | task_list_events!()
        | spec_run_events!()
        | Event::Unknown => return None,
    })
}

/// Describes an event of an agent's other output, its result or the model API.
fn output(event: &Event) -> Option<String> {
    Some(match event {
        Event::AgentNotice { text: what } => warn(text(what)),
        Event::McpCalled(called) if called.wait.is_some() => return None,
        Event::McpCalled(called) => match (&called.child, called.percent) {
            (Some(child), _) => format!("drafted {child}"),
            (None, Some(percent)) => format!("progress {percent} %: {}", text(&called.text)),
            (None, None) => format!("{}: {}", called.tool, text(&called.text)),
        },
        Event::AgentSaid { text: said } => {
            readable(said).map_or_else(|| format!("“{}”", text(said)), |verdict| text(&verdict))
        }
        Event::UsageRecorded { model, input, output, cost_usd, .. } => {
            format!("{model}: {} in, {} out, {}", count(*input), count(*output), usd(*cost_usd))
        }
        Event::ResultReceived { result } => {
            let summary = readable(&result.summary).unwrap_or_else(|| result.summary.clone());
            format!("result: {} {}", state(&word(&result.status)), text(&summary))
        }
        Event::ResultInvalid { faults, repair } => {
            let repair = if *repair { "; asking again" } else { "" };
            warn(format!("invalid result: {}{repair}", text(&faults.join("; "))))
        }
        Event::ResultQuoted {} => return None,
        Event::ResultOvertaken {} => {
            warn("it printed more output after its result, so the result does not count".into())
        }
        Event::JournalEntry { text: entry } => format!("journal: {}", text(entry)),
        Event::ApiRetried { attempt, max, status, delay_s, .. } => {
            let status = status.map(|status| format!(" after HTTP {status}")).unwrap_or_default();
            warn(format!(
                "the CLI retries the model API ({attempt}/{max}){status}, in {delay_s:.0}s"
            ))
        }
        Event::RateLimited { until: Some(until), .. } => {
            warn(format!("rate limited until {}", local(until)))
        }
        Event::RateLimited { until: None, wait_s, .. } => {
            warn(format!("rate limited for {wait_s:.0}s"))
        }
        Event::ApiWaiting { trouble, status, until, .. } => warn(format!(
            "waiting for the model API until {}: {}",
            local(until),
            trouble.describe(*status)
        )),
        Event::ApiGivenUp { reason, .. } => bad(text(reason)),
        Event::Compacted { before, after } => {
            format!("context compacted from {} to {} tokens", count(*before), count(*after))
        }
        Event::BlockedByUs { on: true } => {
            warn("output paused: the spool or the disk is full".into())
        }
        Event::BlockedByUs { on: false } => "output resumed".into(),
        Event::OutputRead {} => event.name().replace('_', " "),
        daemon_events!()
        | attempt_events!()
        | intervention_events!()
        | prompt_events!()
        | session_events!()
        | tool_events!()
        | permission_events!()
        | conversation_events!()
        | task_list_events!()
        | spec_run_events!()
        | Event::Unknown => return None,
    })
}

pub(super) fn text(text: &str) -> String {
    clip(text.trim(), TEXT)
}

pub(super) fn warn(text: String) -> String {
    format!("{YELLOW}{text}{RESET}")
}

pub(super) fn bad(text: String) -> String {
    format!("{RED}{text}{RESET}")
}

fn state(state: &str) -> String {
    format!("{}{state}{RESET}", state_color(state))
}

fn local(at: &Timestamp) -> String {
    local_time(*at)
}

/// Describes the last prompt of a dead process by the CLI's transcript.
fn last_prompt(standing: Standing) -> &'static str {
    match standing {
        Standing::NotTaken => "the prompt was not taken",
        Standing::Unanswered => "cut off before an answer",
        Standing::MidTool => "cut off in the middle of a tool call",
        Standing::Answered => "the prompt was answered",
        Standing::Unknown => "it is not known whether the prompt was taken",
    }
}

/// Describes the cause of an exit, for causes other than the process itself.
fn exit_cause(cause: ExitCause) -> &'static str {
    match cause {
        ExitCause::Exited | ExitCause::Unknown => "by itself",
        ExitCause::Terminated => "terminated by Muleteer",
        ExitCause::ShimPolicy => "terminated by its shim at a limit",
        ExitCause::LeaseExpired => "terminated because no daemon renewed its lease",
        ExitCause::ShimLost => "its shim died first",
        ExitCause::NeverRan => "it never ran",
        ExitCause::CannotStart => "it could not be started",
    }
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
    use serde_json::json;

    #[test]
    fn session_without_an_id_shows_only_its_model() {
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

    fn lines_of(events: &[serde_json::Value]) -> Vec<String> {
        let lines = Lines::default();
        let line = |event: &serde_json::Value| {
            let mut entry = event.clone();
            entry["id"] = "x".into();
            entry["dispatch_id"] = "abcd2345".into();
            let entry = serde_json::from_value(entry).expect("an event");
            Some(anstream::adapter::strip_str(&lines.describe(&entry)?).to_string())
        };
        events.iter().filter_map(line).collect()
    }

    #[test]
    fn agent_of_a_run_is_named_by_bead_and_attempt() {
        let bead = json!({"id": "xk9e8v2e", "title": "Parse dates", "priority": 1,
            "created_at": "2026-02-12T10:00:00.000Z"});
        let start = |attempt: u32| {
            json!({"event": "agent_started", "agent": 1, "purpose": "implement",
                "bead_id": "xk9e8v2e", "workdir": "w", "dispatch": "abcd2345", "attempt": attempt})
        };
        let end = |status: &str| {
            json!({"event": "agent_finished", "agent": 1, "purpose": "implement",
                "bead_id": "xk9e8v2e", "status": status, "duration_ms": 1, "reason": "success"})
        };
        let beads = json!({"event": "beads_created", "count": 1, "dependency_edges": 0,
            "beads": [bead]});
        let lines = lines_of(&[beads, start(0), end("failure"), start(1), end("success")]);
        let job = "implement \"Parse dates\" (xk9e8v2e)";
        assert_eq!(
            lines[1..],
            [
                format!("agent 1 starts: {job}: attempt 1 (dispatch abcd2345)"),
                format!("agent 1: {job}: attempt 1 failed"),
                format!("agent 1 starts: {job}: attempt 2 (dispatch abcd2345)"),
                format!("agent 1: {job}: attempt 2 succeeded"),
            ]
        );
    }

    #[test]
    fn closing_dispatch_fetches_commits_only_with_a_worktree() {
        let clone = json!({"event": "worktree_created", "path": "/w", "base": "9fceb02d"});
        let closing = json!({"event": "dispatch_closing", "state": "success", "reason": ""});
        assert_eq!(lines_of(std::slice::from_ref(&closing)), [""; 0]);
        assert_eq!(lines_of(&[clone, closing])[1..], ["fetching its commits"]);
    }

    #[test]
    fn ends_of_agents_and_limits_are_described() {
        let exit = |code: i32, cause: &str| {
            json!({"event": "agent_exited", "epoch": 1, "code": code, "signal": null,
                "cause": cause, "stderr_tail": "", "used_ms": 1})
        };
        let limit = json!({"event": "limit_reached", "limit": "turns",
            "detail": "its limit of 4 turns"});
        let probed = json!({"event": "prompt_probed", "key": "k1", "standing": "mid_tool",
            "session": "held", "detail": ""});
        assert_eq!(
            lines_of(&[exit(0, "exited"), exit(1, "lease_expired"), limit, probed]),
            [
                "agent exited (code 0)",
                "agent exited (code 1): terminated because no daemon renewed its lease",
                "stopped at its limit of 4 turns",
                "transcript: cut off in the middle of a tool call",
            ]
        );
    }
}
