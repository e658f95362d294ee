//! The spans of one dispatch, its attempts, turns and tool calls.

use crate::trace::span::{Span, Status};
use jiff::Timestamp;
use muleteer_model::agent::backend::Traits;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::trace_context::Context;
use muleteer_model::event::trace_ids;
use muleteer_model::event::{Created, Event, FinalState, Limit, Outcome, Record};
use muleteer_model::monitor::Action;
use muleteer_model::{
    api_events, attempt_events, conversation_events, daemon_events, intervention_events,
    output_events, permission_events, prompt_events, result_events, session_events,
    spec_run_events, task_list_events, tool_events,
};
use serde_json::{Value, json};

/// The most links of one span, one for each later sender of a prompt; the log has the rest.
const LINK_LIMIT: usize = 32;
/// The most tool calls of one dispatch that may be open at once.
pub(super) const OPEN_TOOLS: usize = 256;
/// The conventions' value for an unknown error.
const OTHER: &str = "_OTHER";

/// The unfinished spans of one dispatch.
#[derive(Debug)]
pub(super) struct Open {
    created: Created,
    /// The model's provider, as far as the CLI determines it.
    provider: Option<&'static str>,
    context: Context,
    /// How many times the dispatch has ended.
    opened: u32,
    session: Option<String>,
    model: Option<String>,
    pub(super) dispatch: Option<Span>,
    attempt: Option<Span>,
    start: Option<Span>,
    turn: Option<Span>,
    tools: Vec<(String, Span)>,
    usage: Usage,
    total: Usage,
    /// The cause of the newest attempt's end, as one word.
    trouble: Option<String>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Usage {
    input: u64,
    output: u64,
    cache_read: u64,
    cache_write: u64,
    cost_usd: f64,
}

impl Usage {
    fn attributes(self) -> [(&'static str, Value); 5] {
        [
            // The conventions count tokens read from and written to a cache as input.
            (
                "gen_ai.usage.input_tokens",
                json!(self.input.saturating_add(self.cache_read).saturating_add(self.cache_write)),
            ),
            ("gen_ai.usage.output_tokens", json!(self.output)),
            ("gen_ai.usage.cache_read.input_tokens", json!(self.cache_read)),
            ("gen_ai.usage.cache_creation.input_tokens", json!(self.cache_write)),
            ("muleteer.cost_usd", json!(self.cost_usd)),
        ]
    }
}

impl Open {
    pub(super) fn new(
        id: &DispatchId,
        (created, traits): (Created, Traits),
        context: Context,
        at: Timestamp,
    ) -> Self {
        let provider = traits.provider;
        let mut open = Self {
            created,
            provider,
            context,
            opened: 0,
            session: None,
            model: None,
            dispatch: None,
            attempt: None,
            start: None,
            turn: None,
            tools: vec![],
            usage: Usage::default(),
            total: Usage::default(),
            trouble: None,
        };
        open.begin(id, at);
        open
    }

    fn begin(&mut self, id: &DispatchId, at: Timestamp) {
        let created = &self.created;
        let span_id = trace_ids::dispatch(id, self.opened);
        let span =
            Span::new(self.context, span_id, format!("dispatch {}", created.role), at).with([
                ("muleteer.dispatch.id", json!(id.as_str())),
                ("muleteer.role", json!(created.role)),
                ("muleteer.category", json!(created.category)),
                ("muleteer.project", json!(created.project_name())),
                ("muleteer.feature", json!(created.feature)),
                ("muleteer.backend", json!(created.backend)),
                ("muleteer.by", json!(created.by)),
                (
                    "muleteer.parent.id",
                    json!(created.parent.as_ref().map(|parent| parent.as_str().to_string())),
                ),
                ("gen_ai.request.model", json!(created.model)),
            ]);
        self.dispatch = Some(span);
        self.total = Usage::default();
        self.trouble = None;
    }

    pub(super) fn count(&self) -> usize {
        let singles = [&self.dispatch, &self.attempt, &self.start, &self.turn];
        singles.into_iter().flatten().count() + self.tools.len()
    }

    /// Returns the spans that this record of the dispatch ends.
    pub(super) fn apply(&mut self, id: &DispatchId, record: &Record) -> Vec<Span> {
        let mut done = Vec::new();
        match &record.entry.event {
            attempt_events!() => self.apply_attempt(id, record, &mut done),
            prompt_events!() | session_events!() | output_events!() | tool_events!() => {
                self.apply_turn(id, record, &mut done);
            }
            api_events!() | intervention_events!() => self.apply_incident(record),
            permission_events!()
            | result_events!()
            | daemon_events!()
            | spec_run_events!()
            | conversation_events!()
            | task_list_events!()
            | Event::Unknown => {}
        }
        done
    }

    /// Applies an event of the dispatch itself or of its attempts.
    fn apply_attempt(&mut self, id: &DispatchId, record: &Record, done: &mut Vec<Span>) {
        let at = record.ts;
        match &record.entry.event {
            Event::AttemptStarted { attempt, epoch, resume } => {
                self.end_attempt(at, &Status::Unset, done);
                self.trouble = None;
                let parent = self.context.below(trace_ids::dispatch(id, self.opened));
                let name = format!("attempt {attempt}");
                let span = Span::new(parent, trace_ids::attempt(id, *epoch), name, at).with([
                    ("muleteer.attempt", json!(attempt)),
                    ("muleteer.epoch", json!(epoch)),
                    ("muleteer.resumed_session", json!(resume)),
                ]);
                let (within, start) = (parent.below(span.id), trace_ids::start(id, *epoch));
                self.start = Some(Span::new(within, start, "start agent".into(), at));
                self.attempt = Some(span);
            }
            Event::AgentSpawned { pid, shim_pid, containment, .. } => {
                if let Some(mut start) = self.start.take() {
                    start.set([
                        ("process.pid", json!(pid)),
                        ("muleteer.shim.pid", json!(shim_pid)),
                        ("muleteer.containment", json!(containment)),
                    ]);
                    done.push(start.ended(at, Status::Unset));
                }
                self.on_attempt("process.pid", json!(pid));
            }
            Event::AgentAdopted { shim_pid, .. } => {
                self.note("adopted", at, vec![("muleteer.shim.pid", json!(shim_pid))])
            }
            Event::StartFailed { .. } => {
                self.in_trouble("start_failed");
                if let Some(start) = self.start.take() {
                    done.push(start.ended(at, Status::Error("start_failed".into())));
                }
            }
            Event::AgentExited { code, signal, .. } => {
                let status = self.exit_status(*code, *signal);
                self.end_turn(at, status, done);
                self.on_attempt("process.exit.code", json!(code));
                self.on_attempt("muleteer.exit.signal", json!(signal));
            }
            Event::AttemptFinished { outcome, .. } => {
                let word = serde_json::to_value(outcome).unwrap_or_default();
                let status = match outcome {
                    Outcome::Success => Status::Ok,
                    Outcome::Timeout => {
                        self.trouble = Some("timeout".into());
                        Status::Error("timeout".into())
                    }
                    Outcome::Failure => Status::Error(self.in_trouble(OTHER)),
                };
                self.on_attempt("muleteer.outcome", word);
                self.end_attempt(at, &status, done);
            }
            Event::AnswerAwaited {} => self.note("awaits_answer", at, vec![]),
            Event::RestartScheduled { delay_ms, .. } => {
                self.note("restart", at, vec![("muleteer.delay_ms", json!(delay_ms))]);
            }
            Event::DispatchFinished { state, .. } => {
                self.end_attempt(at, &Status::Unset, done);
                done.extend(self.end_dispatch(*state, at));
            }
            Event::DispatchCreated { .. }
            | Event::WorktreeCreated { .. }
            | Event::SweepFinished { .. }
            | Event::DispatchClosing { .. }
            | Event::WorkFetched { .. }
            | Event::FilesRemoved { .. }
            | Event::CloneRemoved { .. }
            | Event::JournalArchived { .. } => {}
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
            | Event::Unknown => {}
        }
    }

    /// Applies an event of a prompt, a turn, a session, a tool call or other output.
    fn apply_turn(&mut self, id: &DispatchId, record: &Record, done: &mut Vec<Span>) {
        let at = record.ts;
        match &record.entry.event {
            Event::PromptQueued { trace, .. } => {
                if self.dispatch.is_none() {
                    // A further turn of a finished dispatch.
                    self.opened += 1;
                    self.begin(id, at);
                }
                self.link(trace.as_deref());
            }
            Event::SessionStarted { session_id, model } => {
                self.session = Some(session_id.clone()).filter(|id| !id.is_empty());
                self.model = model.clone().or(self.model.take());
                self.update_turn();
            }
            Event::TurnStarted { turn, .. } => {
                self.end_turn(at, Status::Unset, done);
                self.begin_turn(id, *turn, record.seq, at);
            }
            Event::ToolCalled { call_id, tool, parent, .. } if self.tools.len() < OPEN_TOOLS => {
                let span = self.tool(
                    call_id,
                    tool,
                    parent.as_deref(),
                    at,
                    trace_ids::tool(id, record.seq),
                );
                self.tools.push((call_id.clone(), span));
            }
            Event::ToolFinished { call_id } => self.end_tool(call_id, at, Status::Unset, done),
            Event::ToolFailed { call_id, .. } => {
                self.end_tool(call_id, at, Status::Error("tool_error".into()), done);
            }
            Event::UsageRecorded { input, output, cache_read, cache_write, cost_usd, .. } => {
                for usage in [&mut self.usage, &mut self.total] {
                    usage.input = usage.input.saturating_add(*input);
                    usage.output = usage.output.saturating_add(*output);
                    usage.cache_read = usage.cache_read.saturating_add(*cache_read);
                    usage.cache_write = usage.cache_write.saturating_add(*cache_write);
                    usage.cost_usd += cost_usd;
                }
            }
            Event::TurnFinished { ok: true, .. } => self.end_turn(at, Status::Ok, done),
            Event::TurnFinished { ok: false, error, status, .. } => {
                let error = serde_json::to_value(error)
                    .ok()
                    .and_then(|value| value.as_str().map(str::to_string));
                let error = error.unwrap_or_else(|| OTHER.into());
                if let Some(turn) = &mut self.turn {
                    turn.set([("http.response.status_code", json!(status))]);
                }
                self.trouble = Some(error.clone());
                self.end_turn(at, Status::Error(error), done);
            }
            Event::Compacted { before, after } => {
                self.note(
                    "compaction",
                    at,
                    vec![("muleteer.before", json!(before)), ("muleteer.after", json!(after))],
                );
            }
            Event::BlockedByUs { on } => {
                self.note("blocked_by_us", at, vec![("muleteer.on", json!(on))])
            }
            Event::PromptSent { .. }
            | Event::PromptWritten { .. }
            | Event::PromptFolded { .. }
            | Event::PromptProbed { .. }
            | Event::AgentGreeted { .. }
            | Event::SessionOpened { .. }
            | Event::SessionModeKept { .. }
            | Event::SessionModeChanged { .. }
            | Event::SessionModeStays { .. }
            | Event::SessionModeSet { .. }
            | Event::SessionModeRefused { .. }
            | Event::SessionModelSet { .. }
            | Event::CallFailed { .. }
            | Event::SessionLost { .. }
            | Event::ModelRequested { .. }
            | Event::ModelChanged { .. }
            | Event::ModelRefused { .. }
            | Event::AgentSaid { .. }
            | Event::AgentNotice { .. }
            | Event::McpCalled(_)
            | Event::JournalEntry { .. }
            | Event::OutputRead { .. }
            | Event::ToolCalled { .. }
            | Event::ToolSubject { .. } => {}
            attempt_events!()
            | permission_events!()
            | result_events!()
            | api_events!()
            | intervention_events!()
            | daemon_events!()
            | spec_run_events!()
            | conversation_events!()
            | task_list_events!()
            | Event::Unknown => {}
        }
    }

    /// Applies trouble with the model API, or an intervention by a person, a limit or a monitor.
    fn apply_incident(&mut self, record: &Record) {
        let at = record.ts;
        match &record.entry.event {
            Event::ApiRetried { attempt, max, status, delay_s, .. } => self.note(
                "api_retry",
                at,
                vec![
                    ("muleteer.retry", json!(attempt)),
                    ("muleteer.retries", json!(max)),
                    ("http.response.status_code", json!(status)),
                    ("muleteer.delay_s", json!(delay_s)),
                ],
            ),
            Event::ApiWaiting { trouble, status, waits, .. } => self.note(
                "api_wait",
                at,
                vec![
                    ("error.type", json!(trouble)),
                    ("http.response.status_code", json!(status)),
                    ("muleteer.waits", json!(waits)),
                ],
            ),
            Event::ApiGivenUp { trouble, .. } => {
                let word = json!(trouble);
                self.in_trouble(word.as_str().unwrap_or(OTHER));
            }
            Event::InterruptRequested { by, .. } => {
                self.note("interrupt", at, vec![("muleteer.by", json!(by))])
            }
            Event::KillRequested { by, .. } => {
                self.in_trouble("killed");
                self.note("kill", at, vec![("muleteer.by", json!(by))]);
            }
            Event::LimitReached { limit, detail } => {
                self.in_trouble(match limit {
                    Limit::Timeout => "timeout",
                    Limit::Turns => "max_turns",
                    Limit::Budget => "budget",
                    Limit::Unknown => OTHER,
                });
                self.note("limit", at, vec![("muleteer.reason", json!(detail))]);
            }
            Event::StallDetected { silent_s, evidence } => {
                self.in_trouble("stalled");
                let evidence = json!(evidence);
                self.note(
                    "stall",
                    at,
                    vec![("muleteer.silent_s", json!(silent_s)), ("muleteer.reason", evidence)],
                );
            }
            Event::MonitorSpoke { monitor, action, .. } => {
                if *action == Action::Stop {
                    self.in_trouble(&monitor.to_string());
                }
                // The reason quotes the arguments of tools.
                self.note(
                    "monitor",
                    at,
                    vec![("muleteer.monitor", json!(monitor)), ("muleteer.action", json!(action))],
                );
            }
            Event::HealingChosen(chosen) => {
                let choice = json!(chosen.choice.as_str());
                self.note("healing", at, vec![("muleteer.choice", choice)]);
            }
            Event::RateLimited { .. } | Event::HealingBegun(_) | Event::HealingDone(_) => {}
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
            | Event::Unknown => {}
        }
    }

    /// Links the dispatch to the trace of a prompt's sender. The dispatch stays in its first trace,
    /// because its agent received that trace context.
    fn link(&mut self, trace: Option<&str>) {
        let asker = trace.and_then(Context::parse);
        if let (Some(asker), Some(dispatch)) = (asker, &mut self.dispatch)
            && dispatch.links.len() < LINK_LIMIT
        {
            dispatch.links.push(asker);
        }
    }

    /// Sets the session and the model of the current turn. Some agents report them only after the
    /// turn has begun.
    fn update_turn(&mut self) {
        let (session, model) = (json!(self.session), json!(self.model));
        if let Some(turn) = &mut self.turn {
            turn.attributes.retain(|(key, _)| {
                !matches!(*key, "gen_ai.conversation.id" | "gen_ai.request.model")
            });
            turn.set([("gen_ai.conversation.id", session), ("gen_ai.request.model", model)]);
        }
    }

    /// Returns the span of a tool call. A call of a subagent is below the call that runs it.
    fn tool(
        &self,
        call_id: &str,
        tool: &str,
        parent: Option<&str>,
        at: Timestamp,
        span_id: [u8; 8],
    ) -> Span {
        let caller = parent.and_then(|parent| self.tools.iter().find(|(open, _)| open == parent));
        let within = caller.map(|(_, span)| span).or(self.turn.as_ref()).or(self.attempt.as_ref());
        let parent = within.map_or(self.context.span, |span| span.id);
        let name = format!("execute_tool {tool}");
        Span::new(self.context.below(parent), span_id, name, at).with([
            ("gen_ai.operation.name", json!("execute_tool")),
            ("gen_ai.tool.name", json!(tool)),
            ("gen_ai.tool.call.id", json!(call_id)),
            ("gen_ai.tool.type", json!("function")),
        ])
    }

    /// Returns the status of a turn that the end of its process ends. An earlier known problem
    /// explains the end of the process.
    fn exit_status(&mut self, code: Option<i32>, signal: Option<i32>) -> Status {
        match (code, signal) {
            // A CLI that exits during a turn has not reported the turn's outcome.
            (Some(0), _) if self.created.has_turns() => Status::Unset,
            (Some(0), _) => Status::Ok,
            (Some(code), _) => Status::Error(self.in_trouble(&format!("exit_{code}"))),
            (None, Some(signal)) => Status::Error(self.in_trouble(&format!("signal_{signal}"))),
            (None, None) => Status::Error(self.in_trouble(OTHER)),
        }
    }

    fn end_dispatch(&mut self, state: FinalState, at: Timestamp) -> Option<Span> {
        let mut span = self.dispatch.take()?;
        span.set(self.total.attributes());
        span.set([
            ("muleteer.state", json!(state.as_str())),
            ("gen_ai.conversation.id", json!(self.session)),
        ]);
        let status = match state {
            FinalState::Success => Status::Ok,
            FinalState::Failed => Status::Error(self.in_trouble("failed")),
            // The outcome of the last attempt does not matter here.
            other => Status::Error(other.as_str().into()),
        };
        Some(span.ended(at, status))
    }

    fn begin_turn(&mut self, id: &DispatchId, turn: u32, seq: u64, at: Timestamp) {
        let parent = self.attempt.as_ref().map_or(self.context.span, |span| span.id);
        let created = &self.created;
        let name = format!("invoke_agent {}", created.role);
        let span =
            Span::new(self.context.below(parent), trace_ids::turn(id, seq), name, at).with([
                ("gen_ai.operation.name", json!("invoke_agent")),
                ("gen_ai.provider.name", json!(self.provider)),
                ("gen_ai.agent.name", json!(created.role)),
                ("gen_ai.agent.id", json!(id.as_str())),
                ("gen_ai.request.model", json!(self.model.as_ref().or(created.model.as_ref()))),
                ("gen_ai.conversation.id", json!(self.session)),
                ("muleteer.turn", json!(turn)),
            ]);
        self.turn = Some(span);
        self.usage = Usage::default();
    }

    fn end_tool(&mut self, call: &str, at: Timestamp, status: Status, done: &mut Vec<Span>) {
        if let Some(place) = self.tools.iter().position(|(open, _)| open == call) {
            done.push(self.tools.remove(place).1.ended(at, status));
        }
    }

    fn end_turn(&mut self, at: Timestamp, status: Status, done: &mut Vec<Span>) {
        done.extend(self.tools.drain(..).map(|(_, tool)| tool.cut_short(at)));
        let Some(mut turn) = self.turn.take() else { return };
        turn.set(std::mem::take(&mut self.usage).attributes());
        done.push(if status == Status::Unset {
            turn.cut_short(at)
        } else {
            turn.ended(at, status)
        });
    }

    /// Records the cause of trouble unless an earlier one is known, and returns the known one.
    fn in_trouble(&mut self, word: &str) -> String {
        self.trouble.get_or_insert_with(|| word.into()).clone()
    }

    fn end_attempt(&mut self, at: Timestamp, status: &Status, done: &mut Vec<Span>) {
        self.end_turn(at, Status::Unset, done);
        if let Some(start) = self.start.take() {
            done.push(start.ended(at, Status::Error("start_failed".into())));
        }
        if let Some(attempt) = self.attempt.take() {
            done.push(attempt.ended(at, status.clone()));
        }
    }

    fn on_attempt(&mut self, key: &'static str, value: Value) {
        if let Some(attempt) = &mut self.attempt {
            attempt.attributes.retain(|(known, _)| *known != key);
            attempt.set([(key, value)]);
        }
    }

    fn note(&mut self, name: &'static str, at: Timestamp, attributes: Vec<(&'static str, Value)>) {
        if let Some(dispatch) = &mut self.dispatch {
            dispatch.note(name, at, attributes);
        }
    }
}
