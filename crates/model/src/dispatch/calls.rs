//! The open calls and requests of an agent, and the effect of events on them.

use crate::agent::ask::{Answer, AskOption, Verdict};
use crate::agent::event::{cut, subject};
use crate::agent::permission::POLICY;
use crate::dispatch::Dispatch;
use crate::event::{Event, ModeStep};
use crate::{daemon_events, intervention_events, output_events, result_events};
use crate::{session_events, spec_run_events, task_list_events};
use jiff::Timestamp;

/// The most open calls that are remembered. Beyond that the oldest are forgotten, and the stall
/// monitor no longer knows of them.
const MOST_CALLS: usize = 256;

/// The most bytes that are stored of a call's subject.
pub const WHOLE_LIMIT: usize = 8 * 1024;

/// The mode of a session; it decides what the agent asks about.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionMode {
    /// The mode that the policy needs, and the method that sets it.
    pub wanted: Option<ModeStep>,
    /// The mode that the agent reported last.
    pub current: Option<String>,
    /// The mode that the agent entered by itself and in which it does not ask. It is being set
    /// back.
    pub left_for: Option<String>,
    /// The mode was set back in this turn.
    pub was_set_back: bool,
    /// The number of times that the agent changed its mode.
    pub changes: u32,
}

/// A tool call, as far as the agent has reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToldCall {
    pub id: String,
    pub tool: String,
    /// The whole subject, for example all lines of a command.
    pub target: String,
}

/// A call for which the agent requested permission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskedCall {
    pub request: String,
    pub call: ToldCall,
    /// `None` until somebody answers.
    pub answer: Option<Permitted>,
}

/// The answer to a request for permission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permitted {
    pub allowed: bool,
    /// The rule that decided, or the one who answered.
    pub by: String,
}

/// Appends a call and drops the oldest one beyond the limit.
fn push<T>(calls: &mut Vec<T>, call: T) {
    if calls.len() >= MOST_CALLS {
        calls.remove(0);
    }
    calls.push(call);
}

impl Dispatch {
    /// Folds an event into the agent's open calls and requests.
    pub(super) fn apply_to_calls(&mut self, event: &Event, ts: Timestamp) {
        match event {
            Event::ToolCalled { call_id, parent, tool, target }
                if !call_id.is_empty() && !self.calls.contains(call_id) =>
            {
                self.tell(call_id, tool, target);
                if self.calls.len() >= MOST_CALLS {
                    let oldest = self.calls.remove(0);
                    self.subcalls.retain(|call| *call != oldest);
                }
                self.calls.push(call_id.clone());
                if parent.is_some() {
                    self.subcalls.push(call_id.clone());
                }
            }
            Event::ToolFinished { call_id } | Event::ToolFailed { call_id, .. } => {
                self.calls.retain(|open| open != call_id);
                self.subcalls.retain(|open| open != call_id);
                self.asks.call_ended(call_id);
            }
            Event::PermissionRequested { request_id, ask, .. } => {
                if self.created.calls.is_some() {
                    let id = ask.call_id.clone().unwrap_or_default();
                    let whole = subject(&ask.input).unwrap_or(&ask.target);
                    let call =
                        ToldCall { id, tool: ask.tool.clone(), target: cut(whole, WHOLE_LIMIT) };
                    push(
                        &mut self.asked,
                        AskedCall { request: request_id.clone(), call, answer: None },
                    );
                }
                self.asks.request(request_id, ask, ts);
            }
            Event::PermissionAnswered { request_id, answer, text, by, rule, key } => {
                self.permitted(request_id, *answer, text, rule.as_ref().unwrap_or(by));
                self.give_for_good(request_id, *answer, text);
                self.refused |=
                    *answer != Verdict::Allow && by != POLICY && by != crate::agent::ask::OURSELVES;
                self.asks.heard(key, request_id, *answer);
                self.asks.answer(request_id, Answer { verdict: *answer, text: text.clone() });
            }
            Event::PermissionClosed { request_id } => self.asks.close(request_id),
            // The open calls and requests of a process end with its turn, and with the process.
            Event::TurnFinished { .. }
            | Event::AttemptStarted { .. }
            | Event::AgentExited { .. }
            | Event::StartFailed { .. }
            | Event::ApiWaiting { .. }
            | Event::DispatchClosing { .. } => {
                self.calls.clear();
                self.subcalls.clear();
                self.asks.clear();
                self.refused = false;
                self.told.clear();
                self.asked.clear();
                self.mode.was_set_back = false;
            }
            Event::ToolCalled { .. }
            | Event::ToolSubject { .. }
            | Event::PolicyBroken { .. }
            | Event::PromptQueued { .. }
            | Event::PromptSent { .. }
            | Event::PromptWritten { .. }
            | Event::PromptFolded { .. }
            | Event::PromptProbed { .. }
            | Event::TurnStarted { .. }
            | Event::DispatchCreated { .. }
            | Event::WorktreeCreated { .. }
            | Event::AgentSpawned { .. }
            | Event::AgentAdopted { .. }
            | Event::SweepFinished { .. }
            | Event::AttemptFinished { .. }
            | Event::RestartScheduled { .. }
            | Event::WorkFetched { .. }
            | Event::DispatchFinished { .. }
            | Event::FilesRemoved { .. }
            | Event::ApiRetried { .. }
            | Event::RateLimited { .. }
            | Event::ApiGivenUp { .. } => {}
            session_events!()
            | output_events!()
            | result_events!()
            | intervention_events!()
            | daemon_events!()
            | spec_run_events!()
            | task_list_events!()
            | Event::Unknown => {}
        }
    }

    fn tell(&mut self, id: &str, tool: &str, target: &str) {
        if self.created.calls.is_some() {
            push(
                &mut self.told,
                ToldCall { id: id.into(), tool: tool.into(), target: target.into() },
            );
        }
    }

    /// Records whether the answer to a request allows the call.
    fn permitted(&mut self, request: &str, answer: Verdict, chosen: &str, by: &str) {
        let allows = |option: &AskOption| {
            option.kind.as_deref().is_some_and(|kind| kind.starts_with("allow"))
        };
        let allowed = match answer {
            Verdict::Allow => true,
            Verdict::Deny => false,
            Verdict::Text => self
                .asks
                .get(request)
                .and_then(|pending| pending.ask.option(chosen))
                .is_some_and(allows),
        };
        if let Some(asked) = self.asked.iter_mut().rev().find(|asked| asked.request == request) {
            asked.answer = Some(Permitted { allowed, by: by.into() });
        }
    }

    /// Records that the agent need not ask about this tool again. A person chose that, or the agent
    /// offers no other way to allow it.
    fn give_for_good(&mut self, request: &str, answer: Verdict, chosen: &str) {
        let Some(pending) = self.asks.get(request) else { return };
        let kind = |option: &AskOption, kind: &str| option.kind.as_deref() == Some(kind);
        let options = &pending.ask.options;
        let always = match answer {
            Verdict::Deny => false,
            Verdict::Text => {
                pending.ask.option(chosen).is_some_and(|option| kind(option, "allow_always"))
            }
            Verdict::Allow => {
                !options.iter().any(|option| kind(option, "allow_once"))
                    && options.iter().any(|option| kind(option, "allow_always"))
            }
        };
        let tool = pending.ask.tool.clone();
        if always && self.leaves.len() < MOST_CALLS && !self.leaves.contains(&tool) {
            self.leaves.push(tool);
        }
    }
}
