//! Spans from events: the history of a dispatch as a tree in time.
//!
//! ```text
//! muleteer spawn            the CLI command, if it is traced itself
//! └─ dispatch ROLE          from creation to end; restarts, stalls and limits are its events
//!    └─ attempt N           one process of the agent; parent of the agent's spans (TRACEPARENT)
//!       ├─ start agent      until the shim has released it
//!       └─ invoke_agent ROLE    a turn
//!          └─ execute_tool NAME    a subagent's tools are below the call that runs it
//!
//! muleteer tasks run
//! └─ task list              one run of it
//!    └─ task                from its claim to its end
//!       └─ dispatch ROLE    as above
//! ```
//!
//! [`run`](crate::run) has the spans of a spec run above its dispatches.
//!
//! Spans must not contain what agents write. A failed span has a fixed word (`error.type`). The
//! reason, which may quote an agent, stays in the journal.

use jiff::Timestamp;
use muleteer_model::agent::backend::{Traits, TraitsOf};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::trace_context::Context;
use muleteer_model::event::trace_ids;
use muleteer_model::event::{Created, Event, FinalState, Limit, Outcome, Record};
use muleteer_model::monitor::Action;
use muleteer_model::{daemon_events, dispatch_events, permission_events, result_events};
use muleteer_model::{spec_run_events, task_list_events};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The most events of one span; more are counted.
const EVENT_LIMIT: usize = 128;
/// The most links of one span, one for each later sender of a prompt; the log has the rest.
const LINK_LIMIT: usize = 32;
/// The most tool calls of one dispatch that may be open at once.
const OPEN_TOOLS: usize = 256;
/// The conventions' value for an unknown error.
const OTHER: &str = "_OTHER";

#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    pub trace: [u8; 16],
    pub id: [u8; 8],
    pub parent: Option<[u8; 8]>,
    pub name: String,
    pub start: Timestamp,
    pub end: Timestamp,
    pub attributes: Vec<(&'static str, Value)>,
    pub events: Vec<SpanEvent>,
    pub dropped_events: u32,
    /// Related spans that are not ancestors.
    pub links: Vec<Context>,
    pub status: Status,
    /// The span is a request to another process (the CLI command).
    pub is_client: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct SpanEvent {
    pub name: &'static str,
    pub at: Timestamp,
    pub attributes: Vec<(&'static str, Value)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    Unset,
    Ok,
    /// A word from a small fixed set.
    Error(String),
}

impl Span {
    pub fn new(context: Context, id: [u8; 8], name: String, start: Timestamp) -> Self {
        Self {
            trace: context.trace,
            id,
            parent: Some(context.span).filter(|parent| *parent != id),
            name,
            start,
            end: start,
            attributes: vec![],
            events: vec![],
            dropped_events: 0,
            links: vec![],
            status: Status::Unset,
            is_client: false,
        }
    }

    pub(super) fn with(
        mut self,
        attributes: impl IntoIterator<Item = (&'static str, Value)>,
    ) -> Self {
        self.set(attributes);
        self
    }

    /// Adds attributes. Null values are omitted.
    pub(super) fn set(&mut self, attributes: impl IntoIterator<Item = (&'static str, Value)>) {
        self.attributes.extend(attributes.into_iter().filter(|(_, value)| !value.is_null()));
    }

    pub(super) fn note(
        &mut self,
        name: &'static str,
        at: Timestamp,
        mut attributes: Vec<(&'static str, Value)>,
    ) {
        if self.events.len() < EVENT_LIMIT {
            attributes.retain(|(_, value)| !value.is_null());
            self.events.push(SpanEvent { name, at, attributes });
        } else {
            self.dropped_events += 1;
        }
    }

    /// Ends the span. A failed one gets `error.type`.
    pub(super) fn ended(mut self, at: Timestamp, status: Status) -> Self {
        // A clock that was set back must not make a negative duration.
        self.end = at.max(self.start);
        if let Status::Error(kind) = &status {
            self.set([("error.type", json!(kind))]);
        }
        self.status = status;
        self
    }

    /// Ends a span whose work was cut off, so that its outcome is unknown.
    pub(super) fn cut_short(mut self, at: Timestamp) -> Self {
        self.set([("muleteer.cut_short", json!(true))]);
        self.ended(at, Status::Unset)
    }
}

/// Folds records into spans. Each span is returned once, when it has ended.
#[derive(Debug, Default)]
pub struct Tracer {
    traits: TraitsOf,
    dispatches: BTreeMap<DispatchId, Open>,
    task_lists: BTreeMap<String, OpenList>,
}

/// An unfinished run of a task list.
#[derive(Debug)]
struct OpenList {
    span: Span,
    /// By worker.
    tasks: BTreeMap<u32, Span>,
}

/// The unfinished spans of one dispatch.
#[derive(Debug)]
struct Open {
    created: Created,
    /// The model's provider, as far as the CLI determines it.
    provider: Option<&'static str>,
    context: Context,
    /// How many times the dispatch has ended.
    opened: u32,
    session: Option<String>,
    model: Option<String>,
    dispatch: Option<Span>,
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

impl Tracer {
    /// Returns a tracer that knows the traits of the backends.
    pub fn new(traits: TraitsOf) -> Self {
        Self { traits, ..Self::default() }
    }

    /// Returns the spans that this record ends. Dispatches without a trace context make none.
    pub fn apply(&mut self, record: &Record) -> Vec<Span> {
        let Some(id) = &record.entry.dispatch_id else { return self.apply_to_list(record) };
        if let Event::DispatchCreated(created) = &record.entry.event {
            if let Some(context) =
                created.trace.as_deref().and_then(Context::parse).filter(|context| context.sampled)
            {
                let traits = self.traits.get(&created.backend);
                self.dispatches.entry(id.clone()).or_insert_with(|| {
                    Open::new(id, ((**created).clone(), traits), context, record.ts)
                });
            }
            return vec![];
        }
        let Some(open) = self.dispatches.get_mut(id) else { return vec![] };
        open.apply(id, record)
    }

    /// Returns the number of unfinished spans.
    pub fn open(&self) -> usize {
        let lists = self.task_lists.values().map(|list| 1 + list.tasks.len());
        self.dispatches.values().map(Open::count).chain(lists).sum()
    }

    fn apply_to_list(&mut self, record: &Record) -> Vec<Span> {
        let at = record.ts;
        let mut done = vec![];
        match &record.entry.event {
            Event::TaskListStarted(started) => {
                if let Some(context) =
                    started.trace.as_deref().and_then(Context::parse).filter(|of| of.sampled)
                {
                    let span = Span::new(
                        context,
                        trace_ids::task_list(&started.list),
                        "task list".into(),
                        at,
                    )
                    .with([
                        ("muleteer.task_list.id", json!(started.list)),
                        ("muleteer.project", json!(started.root)),
                        ("muleteer.role", json!(started.role)),
                        ("muleteer.backend", json!(started.backend)),
                        ("muleteer.by", json!(started.by)),
                    ]);
                    self.task_lists
                        .insert(started.list.clone(), OpenList { span, tasks: BTreeMap::new() });
                }
            }
            Event::TaskBegun { list, worker, task, dispatch, resumed, .. } => {
                if let Some(open) = self.task_lists.get_mut(list) {
                    let id = trace_ids::task(list, dispatch);
                    let within =
                        Context { trace: open.span.trace, span: open.span.id, sampled: true };
                    let before = open.tasks.remove(worker);
                    // The next daemon may repeat the event; it is the same span.
                    let span = match before {
                        Some(span) if span.id == id => span,
                        other => {
                            done.extend(other.map(|span| span.cut_short(at)));
                            Span::new(within, id, "task".into(), at).with([
                                ("muleteer.task.id", json!(task)),
                                ("muleteer.worker", json!(worker)),
                                ("muleteer.dispatch.id", json!(dispatch.as_str())),
                                ("muleteer.resumed", json!(resumed)),
                            ])
                        }
                    };
                    open.tasks.insert(*worker, span);
                }
            }
            Event::TaskJudged { list, worker, verdict, .. } => {
                if let Some(span) =
                    self.task_lists.get_mut(list).and_then(|open| open.tasks.get_mut(worker))
                {
                    let kind = json!(verdict.category);
                    span.note(
                        "judged",
                        at,
                        vec![("muleteer.passed", json!(verdict.passed)), ("error.type", kind)],
                    );
                }
            }
            Event::TaskEnded { list, worker, status, .. } => {
                if let Some(span) =
                    self.task_lists.get_mut(list).and_then(|open| open.tasks.remove(worker))
                {
                    let outcome = match status.as_str() {
                        "completed" => Status::Ok,
                        other => Status::Error(other.into()),
                    };
                    done.push(span.with([("muleteer.state", json!(status))]).ended(at, outcome));
                }
            }
            Event::TaskListFinished { list, finished, .. } => {
                if let Some(OpenList { span, tasks }) = self.task_lists.remove(list) {
                    done.extend(tasks.into_values().map(|task| task.cut_short(at)));
                    let outcome = match (finished.status.as_str(), &finished.code) {
                        ("completed", _) => Status::Ok,
                        (_, Some(code)) => Status::Error(code.clone()),
                        (other, None) => Status::Error(other.into()),
                    };
                    done.push(
                        span.with([("muleteer.state", json!(finished.status))]).ended(at, outcome),
                    );
                }
            }
            Event::TaskListSession { .. } | Event::TaskListStopping { .. } => {}
            daemon_events!() | dispatch_events!() | spec_run_events!() | Event::Unknown => {}
        }
        done
    }
}

impl Open {
    fn new(
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

    fn count(&self) -> usize {
        let singles = [&self.dispatch, &self.attempt, &self.start, &self.turn];
        singles.into_iter().flatten().count() + self.tools.len()
    }

    fn apply(&mut self, id: &DispatchId, record: &Record) -> Vec<Span> {
        let at = record.ts;
        let mut done = Vec::new();
        match &record.entry.event {
            Event::PromptQueued { trace, .. } => {
                if self.dispatch.is_none() {
                    // A further turn of a finished dispatch.
                    self.opened += 1;
                    self.begin(id, at);
                }
                // The dispatch stays in its first trace, because its agent received that trace
                // context.
                let asker = trace.as_deref().and_then(Context::parse);
                if let (Some(asker), Some(dispatch)) = (asker, &mut self.dispatch)
                    && dispatch.links.len() < LINK_LIMIT
                {
                    dispatch.links.push(asker);
                }
            }
            Event::AttemptStarted { attempt, epoch, resume } => {
                self.end_attempt(at, &Status::Unset, &mut done);
                self.trouble = None;
                let parent = self.context.below(trace_ids::dispatch(id, self.opened));
                let span = Span::new(
                    parent,
                    trace_ids::attempt(id, *epoch),
                    format!("attempt {attempt}"),
                    at,
                )
                .with([
                    ("muleteer.attempt", json!(attempt)),
                    ("muleteer.epoch", json!(epoch)),
                    ("muleteer.resumed_session", json!(resume)),
                ]);
                self.start = Some(Span::new(
                    parent.below(span.id),
                    trace_ids::start(id, *epoch),
                    "start agent".into(),
                    at,
                ));
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
            Event::SessionStarted { session_id, model } => {
                self.session = Some(session_id.clone()).filter(|id| !id.is_empty());
                self.model = model.clone().or(self.model.take());
                // Some agents report session and model only after the turn has begun.
                let (session, model) = (json!(self.session), json!(self.model));
                if let Some(turn) = &mut self.turn {
                    turn.attributes.retain(|(key, _)| {
                        !matches!(*key, "gen_ai.conversation.id" | "gen_ai.request.model")
                    });
                    turn.set([
                        ("gen_ai.conversation.id", session),
                        ("gen_ai.request.model", model),
                    ]);
                }
            }
            Event::TurnStarted { turn, .. } => {
                self.end_turn(at, Status::Unset, &mut done);
                self.begin_turn(id, *turn, record.seq, at);
            }
            Event::ToolCalled { call_id, tool, parent, .. } if self.tools.len() < OPEN_TOOLS => {
                let caller = parent
                    .as_ref()
                    .and_then(|parent| self.tools.iter().find(|(open, _)| open == parent));
                let within =
                    caller.map(|(_, span)| span).or(self.turn.as_ref()).or(self.attempt.as_ref());
                let parent = within.map_or(self.context.span, |span| span.id);
                let name = format!("execute_tool {tool}");
                let span = Span::new(
                    self.context.below(parent),
                    trace_ids::tool(id, record.seq),
                    name,
                    at,
                )
                .with([
                    ("gen_ai.operation.name", json!("execute_tool")),
                    ("gen_ai.tool.name", json!(tool)),
                    ("gen_ai.tool.call.id", json!(call_id)),
                    ("gen_ai.tool.type", json!("function")),
                ]);
                self.tools.push((call_id.clone(), span));
            }
            Event::ToolFinished { call_id } => self.end_tool(call_id, at, Status::Unset, &mut done),
            Event::ToolFailed { call_id, .. } => {
                self.end_tool(call_id, at, Status::Error("tool_error".into()), &mut done);
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
            Event::TurnFinished { ok, error, status, .. } => {
                let outcome = if *ok {
                    Status::Ok
                } else {
                    let error = serde_json::to_value(error)
                        .ok()
                        .and_then(|value| value.as_str().map(str::to_string));
                    let error = error.unwrap_or_else(|| OTHER.into());
                    if let Some(turn) = &mut self.turn {
                        turn.set([("http.response.status_code", json!(status))]);
                    }
                    self.trouble = Some(error.clone());
                    Status::Error(error)
                };
                self.end_turn(at, outcome, &mut done);
            }
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
            Event::Compacted { before, after } => {
                self.note(
                    "compaction",
                    at,
                    vec![("muleteer.before", json!(before)), ("muleteer.after", json!(after))],
                );
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
            Event::BlockedByUs { on } => {
                self.note("blocked_by_us", at, vec![("muleteer.on", json!(on))])
            }
            Event::AgentExited { code, signal, .. } => {
                // An earlier known problem explains the end of the process.
                let status = match (code, signal) {
                    // A CLI that exits during a turn has not reported the turn's outcome.
                    (Some(0), _) if self.created.has_turns() => Status::Unset,
                    (Some(0), _) => Status::Ok,
                    (Some(code), _) => Status::Error(self.in_trouble(&format!("exit_{code}"))),
                    (None, Some(signal)) => {
                        Status::Error(self.in_trouble(&format!("signal_{signal}")))
                    }
                    (None, None) => Status::Error(self.in_trouble(OTHER)),
                };
                self.end_turn(at, status, &mut done);
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
                    _ => Status::Error(self.in_trouble(OTHER)),
                };
                self.on_attempt("muleteer.outcome", word);
                self.end_attempt(at, &status, &mut done);
            }
            Event::RestartScheduled { delay_ms, .. } => {
                self.note("restart", at, vec![("muleteer.delay_ms", json!(delay_ms))]);
            }
            Event::DispatchFinished { state, .. } => {
                self.end_attempt(at, &Status::Unset, &mut done);
                if let Some(mut span) = self.dispatch.take() {
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
                    done.push(span.ended(at, status));
                }
            }
            Event::DispatchCreated { .. }
            | Event::WorktreeCreated { .. }
            | Event::SweepFinished { .. }
            | Event::DispatchClosing { .. }
            | Event::WorkFetched { .. }
            | Event::FilesRemoved { .. }
            | Event::PromptSent { .. }
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
            | Event::JournalEntry { .. }
            | Event::OutputRead { .. }
            | Event::ToolCalled { .. }
            | Event::ToolSubject { .. }
            | Event::RateLimited { .. } => {}
            permission_events!()
            | result_events!()
            | daemon_events!()
            | spec_run_events!()
            | task_list_events!()
            | Event::Unknown => {}
        }
        done
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

#[cfg(test)]
mod tests;
