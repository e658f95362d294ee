//! The open calls and requests of an agent, and the effect of events on them.

use crate::agent::ask::{Answer, Ask, AskOption, Verdict};
use crate::agent::event::{cut, subject};
use crate::agent::permission::POLICY;
use crate::dispatch::{Dispatch, Prompt, PromptState};
use crate::event::id::{DispatchId, encode, key_of};
use crate::event::{Event, ModeStep, Position, PromptKind};
use crate::question::State;
use crate::{daemon_events, intervention_events, output_events, result_events};
use crate::{session_events, spec_run_events, task_list_events, thread_events};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The most open calls that are remembered. Beyond that the oldest are forgotten, and the stall
/// monitor no longer knows of them.
const MOST_CALLS: usize = 256;

/// The most bytes that are stored of a call's subject.
pub const WHOLE_LIMIT: usize = 8 * 1024;

/// The mode of a session; it decides what the agent asks about.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
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

impl SessionMode {
    pub const fn new() -> Self {
        Self { wanted: None, current: None, left_for: None, was_set_back: false, changes: 0 }
    }

    /// Records that the session is in the mode that the policy needs.
    pub(super) fn keep(&mut self, mode: &str, by: &str) {
        self.wanted = Some(ModeStep { mode: mode.into(), by: by.into(), otherwise: None });
        self.current = Some(mode.into());
    }

    /// Records that the agent switched to a mode, which is set back or not.
    pub(super) fn change(&mut self, mode: &str, is_set_back: bool) {
        self.current = Some(mode.into());
        self.changes += 1;
        if is_set_back {
            self.left_for = Some(mode.into());
            self.was_set_back = true;
        }
    }
}

/// The calls that a process has reported in this turn, and those that it asked about.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct OpenCalls {
    /// The tool calls that have not ended, as far as the events tell.
    pub open: Vec<String>,
    /// The open calls that subagents made.
    pub by_subagents: Vec<String>,
    /// The calls reported in this turn, of an agent that speaks by calls.
    pub reported: Vec<ToldCall>,
    /// The calls for which such an agent requested permission in this turn.
    pub asked: Vec<AskedCall>,
    /// In the running turn, a person or the agent's parent refused something that it asked for.
    pub refused: bool,
    /// The newest tool calls that failed in this turn, without one that succeeded among them.
    pub failed_in_a_row: u32,
}

impl OpenCalls {
    pub const fn new() -> Self {
        Self {
            open: Vec::new(),
            by_subagents: Vec::new(),
            reported: Vec::new(),
            asked: Vec::new(),
            refused: false,
            failed_in_a_row: 0,
        }
    }

    /// Replaces the subject of a reported call by its whole text.
    pub(super) fn describe(&mut self, id: &str, subject: &str) {
        if let Some(call) = self.reported.iter_mut().rev().find(|call| call.id == id) {
            call.target = subject.into();
        }
    }

    fn begin(&mut self, id: &str, by_subagent: bool) {
        if self.open.len() >= MOST_CALLS {
            let oldest = self.open.remove(0);
            self.by_subagents.retain(|call| *call != oldest);
        }
        self.open.push(id.into());
        if by_subagent {
            self.by_subagents.push(id.into());
        }
    }

    fn end(&mut self, id: &str, well: bool) {
        self.failed_in_a_row = if well { 0 } else { self.failed_in_a_row.saturating_add(1) };
        self.open.retain(|open| open != id);
        self.by_subagents.retain(|open| open != id);
    }
}

/// A tool call, as far as the agent has reported it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldCall {
    pub id: String,
    pub tool: String,
    /// The whole subject, for example all lines of a command.
    pub target: String,
}

/// A call for which the agent requested permission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedCall {
    pub request: String,
    pub call: ToldCall,
    /// `None` until somebody answers.
    pub answer: Option<Permitted>,
}

/// The answer to a request for permission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// Returns the key of the question that a request becomes. It follows from the place of the request
/// in the output, so it is known before the request is durable.
fn question_key(id: &DispatchId, at: Position, request: &str) -> String {
    let Position { epoch, offset, skip } = at;
    let key = key_of(&format!("{id}/question/{epoch}/{offset}/{skip}/{request}"));
    let bytes: Vec<u8> = key.bytes().filter(|byte| *byte != b'-').collect();
    let hex = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    // The first and the last characters of the key differ most between similar names.
    let ends = bytes[..6].chunks(2).chain(bytes[bytes.len() - 4..].chunks(2));
    encode(&ends.filter_map(hex).collect::<Vec<_>>())
}

/// Returns the key of the prompt that tells a later process the answer to a question.
pub fn answer_prompt(id: &DispatchId, question: &str) -> String {
    key_of(&format!("{id}/answer/{question}"))
}

impl Dispatch {
    /// Folds an event into the agent's open calls and requests.
    pub(super) fn apply_to_calls(&mut self, event: &Event, at: Option<Position>, ts: Timestamp) {
        match event {
            Event::ToolCalled { call_id, parent, tool, target } => {
                let reports = self.created.calls.is_some();
                self.with_process(|process| {
                    let calls = &mut process.calls;
                    if call_id.is_empty() || calls.open.contains(call_id) {
                        return;
                    }
                    if reports {
                        let (id, tool, target) = (call_id.clone(), tool.clone(), target.clone());
                        push(&mut calls.reported, ToldCall { id, tool, target });
                    }
                    calls.begin(call_id, parent.is_some());
                });
            }
            Event::ToolFinished { call_id } | Event::ToolFailed { call_id, .. } => {
                let well = matches!(event, Event::ToolFinished { .. });
                self.with_process(|process| process.calls.end(call_id, well));
                self.asks.call_ended(call_id);
            }
            Event::PermissionRequested { request_id, ask, answered, .. } => {
                let question = question_key(&self.id, at.unwrap_or(self.position), request_id);
                self.requested(request_id, ask);
                self.asks.request(request_id, ask, ts, *answered, &question);
            }
            Event::PermissionAnswered { request_id, answer, text, by, rule, key, .. } => {
                self.permitted(request_id, *answer, text, rule.as_ref().unwrap_or(by));
                self.give_for_good(request_id, *answer, text);
                let refused =
                    *answer != Verdict::Allow && by != POLICY && by != crate::agent::ask::OURSELVES;
                self.with_process(|process| process.calls.refused |= refused);
                self.asks.heard(key, request_id, *answer);
                let given = Answer { verdict: *answer, text: text.clone() };
                self.asks.answer(request_id, given, by, rule.as_ref());
            }
            Event::PermissionClosed { request_id } => self.asks.close(request_id),
            Event::AnswerDelivered { request_id } => self.asks.delivered(request_id),
            // See `fold_intervention`.
            Event::HoldExpired { idle: true } => {}
            Event::HoldExpired { idle: false } => {
                self.asks.held = true;
                self.mcp.hold();
            }
            // The open calls of a process end with its turn, and with the process. The requests
            // that it leaves are questions still.
            Event::TurnFinished { .. } => {
                self.asks.turn_ended();
                self.mcp.held.clear();
                self.end_calls();
            }
            Event::AttemptStarted { resume, .. } => {
                // A fresh session knows nothing of the prompt that the question came from.
                if resume.is_some() && self.continues_with_answer() {
                    self.supersede_taken();
                }
                self.mcp.held.clear();
                self.asks.process_ended();
                self.asks.held = false;
                self.end_calls();
            }
            Event::AgentExited { .. } | Event::StartFailed { .. } | Event::ApiWaiting { .. } => {
                self.asks.process_ended();
                self.end_calls();
            }
            Event::DispatchClosing { .. } => {
                self.withdraw_answers();
                self.asks.clear();
                self.mcp.held.clear();
                self.end_calls();
            }
            Event::PromptSent { key } if self.tells_answers(key) => self.asks.told_in(key),
            Event::PromptWritten { key }
            | Event::TurnStarted { key, .. }
            | Event::PromptFolded { key, .. } => self.asks.prompt_taken(key),
            Event::PromptProbed { key, .. } => {
                let taken = |prompt: &Prompt| prompt.state == PromptState::Taken;
                if self.prompt(key).is_some_and(taken) {
                    self.asks.prompt_taken(key);
                }
            }
            Event::QuestionAnswered(answered) => self.mcp.settled(&answered.question, false),
            Event::QuestionState { question, state, .. } => {
                // The answer is on its way in the other states.
                let reached =
                    matches!(state, State::Withdrawn | State::Undeliverable | State::Delivered);
                self.mcp.settled(question, reached);
            }
            Event::ToolSubject { .. }
            | Event::PolicyBroken { .. }
            | Event::PromptQueued { .. }
            | Event::PromptSent { .. }
            | Event::DispatchCreated { .. }
            | Event::WorktreeCreated { .. }
            | Event::AgentSpawned { .. }
            | Event::AgentAdopted { .. }
            | Event::SweepFinished { .. }
            | Event::AttemptFinished { .. }
            | Event::AnswerAwaited {}
            | Event::RestartScheduled { .. }
            | Event::WorkFetched { .. }
            | Event::DispatchFinished { .. }
            | Event::FilesRemoved { .. }
            | Event::CloneRemoved { .. }
            | Event::JournalArchived { .. }
            | Event::ApiRetried { .. }
            | Event::RateLimited { .. }
            | Event::ApiGivenUp { .. } => {}
            session_events!()
            | output_events!()
            | result_events!()
            | intervention_events!()
            | daemon_events!()
            | spec_run_events!()
            | thread_events!()
            | Event::QuestionAsked(_)
            | task_list_events!()
            | Event::Unknown => {}
        }
    }

    /// Notes the call of a request if calls are reported, and removes the prompt of an answer that
    /// the agent gets otherwise now.
    fn requested(&mut self, request_id: &str, ask: &Ask) {
        if self.created.calls.is_some() {
            let id = ask.call_id.clone().unwrap_or_default();
            let whole = subject(&ask.input).unwrap_or(&ask.target);
            let call = ToldCall { id, tool: ask.tool.clone(), target: cut(whole, WHOLE_LIMIT) };
            let asked = AskedCall { request: request_id.into(), call, answer: None };
            self.with_process(|process| push(&mut process.calls.asked, asked));
        }
        if let Some(before) = self.asks.answered_before(ask) {
            self.remove_queued(&answer_prompt(&self.id, &before.question));
        }
    }

    /// Removes the prompts that tell a later process the answers.
    fn withdraw_answers(&mut self) {
        let told: Vec<_> = self.asks.left().map(|left| left.question.clone()).collect();
        for question in told {
            self.remove_queued(&answer_prompt(&self.id, &question));
        }
    }

    fn end_calls(&mut self) {
        self.mcp.waits.clear();
        self.with_process(|process| {
            process.calls = OpenCalls::new();
            process.mode.was_set_back = false;
        });
    }

    /// Whether a prompt tells the agent the answers that its predecessor did not get.
    pub fn tells_answers(&self, key: &str) -> bool {
        let continues = |prompt: &Prompt| prompt.kind == PromptKind::Continue;
        self.prompt(key).is_some_and(continues)
            || self.asks.left().any(|left| answer_prompt(&self.id, &left.question) == key)
    }

    /// Removes a prompt of Muleteer's that no process has.
    fn remove_queued(&mut self, key: &str) {
        self.prompts.retain(|prompt| prompt.key != key || prompt.state != PromptState::Queued);
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
        self.with_process(|process| {
            let mut all = process.calls.asked.iter_mut().rev();
            if let Some(asked) = all.find(|asked| asked.request == request) {
                asked.answer = Some(Permitted { allowed, by: by.into() });
            }
        });
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
        let allowed = &mut self.session.allowed_tools;
        if always && allowed.len() < MOST_CALLS && !allowed.contains(&tool) {
            allowed.push(tool);
        }
    }
}
