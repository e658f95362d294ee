//! The types of the lines of `events.jsonl`. An event records a *decision*; folding it never
//! decides again (docs/design/event-log.md).
//!
//! A line is `{"crc":"xxxxxxxx",` followed by the rest. The CRC-32C covers the bytes of the rest
//! without the newline. The rest always begins with `"v":1,"seq":…,"ts":…,"id":…`.

pub mod groups;
pub mod id;
pub mod mcp;
pub mod mcp_pace;
pub mod trace_context;
pub mod trace_ids;

mod access;
mod archive;
mod created;
mod kinds;
mod record;
mod title;

pub use archive::{Archived, EventsRemoved, Restored};
pub use created::{Created, Limits, Purse};
pub use kinds::{ExitCause, FinalState, LeftProcess, Limit, ModeStep, Outcome, PromptKind};
pub use record::{Entry, Position, Record, VERSION};
pub use title::{TITLE_LIMIT, title};

use crate::admission::api_error::Trouble;
use crate::agent::ask::{Ask, Verdict};
use crate::agent::event::TurnError;
use crate::agent::result::AgentResult;
use crate::agent::transcript::{Session, Standing};
use crate::config::types::InForce;
use crate::conversation::adapter::event as adapter;
use crate::conversation::event as conversation;
use crate::conversation::meeting::event as meeting;
use crate::conversation::schedule::event as schedule;
use crate::dispatch::work::WorkHome;
use crate::event::id::DispatchId;
use crate::monitor::healing::event as healing;
use crate::monitor::{Action, Monitor};
use crate::question::event as question;
use crate::spec_run::event as pipeline;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An event: something that happened or was decided, with everything that follows from it.
///
/// docs/events.md is generated from the comments of this type: every event and every field has one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    // The daemon itself.
    /// A daemon took over the state directory.
    DaemonStarted {
        /// The process id of the daemon.
        pid: u32,
        /// Counts the daemons of this state directory. It fences earlier daemons: shims reject
        /// them.
        generation: u64,
        /// The version of Muleteer.
        version: String,
        /// The kernel's id of the present boot.
        boot_id: String,
        /// The settings that the daemon uses until it ends. A later daemon that cannot read its
        /// configuration uses them too. Absent in records of versions that did not record it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        settings: Option<InForce>,
    },
    /// A client asked the daemon to stop.
    DaemonStopping {
        /// `keep` lets the agents run on; `stop` terminates them.
        agents: String,
        /// The number of agents that run.
        alive: u32,
        /// The seconds for which kept agents run without a daemon.
        lease_s: u64,
    },
    /// At its start the daemon removed an incomplete last write from the log.
    LogRecovered {
        /// The bytes that were removed.
        cut_bytes: u64,
    },
    /// An actor of the daemon failed and was restarted.
    ActorRestarted {
        /// The name of the actor.
        actor: String,
        /// The error or panic that ended it.
        reason: String,
        /// The number of its restarts within the time that its parent counts.
        restarts_in_window: u32,
        /// The pause before the restart, in milliseconds.
        delay_ms: u64,
    },
    /// An actor failed too often, so its parent was asked to restart the whole branch.
    ActorEscalated {
        /// The name of the actor.
        actor: String,
        /// The failures that exceeded the limit.
        reason: String,
    },
    /// A fault that has no event of its own and stops nothing.
    Fault {
        /// The part that failed.
        what: String,
        /// The error, for people.
        message: String,
    },

    // The life of a dispatch, in the usual order.
    /// A dispatch was created. The event has every decision made then; later changes of the
    /// configuration do not affect it.
    DispatchCreated(Box<Created>),
    /// A prompt was queued. Its text is in a file of the dispatch.
    PromptQueued {
        /// The key of the prompt: a repeated request has the same one.
        key: String,
        /// The reason for the prompt.
        kind: PromptKind,
        /// The user or agent that sent it.
        by: String,
        /// The W3C trace context of the caller.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trace: Option<String>,
    },
    /// The agent got a clone of its own.
    WorktreeCreated {
        /// The absolute path of the clone.
        path: String,
        /// The commit at which the clone was created.
        base: String,
    },
    /// An attempt begins. Written before the shim starts.
    AttemptStarted {
        /// Counts the attempts of the dispatch from 1.
        attempt: u32,
        /// The number of the shim: each start of a process has a higher one.
        epoch: u32,
        /// The session of the CLI to resume; null begins a new one.
        resume: Option<String>,
    },
    /// The agent's process runs.
    AgentSpawned {
        /// The process id of the agent.
        pid: u32,
        /// The process id of its shim.
        shim_pid: u32,
        /// The means by which the kernel or the shim ends all processes of the agent, joined by
        /// `+`: `cgroup`, `pdeathsig`, `subreaper`, `sweep`.
        containment: String,
        /// The shim's clock of awake time at the spawn, in milliseconds.
        #[serde(default)]
        awake_ms: u64,
    },
    /// A new daemon found a running shim and adopted it.
    AgentAdopted {
        /// The process id of the shim.
        shim_pid: u32,
        /// The number of the shim.
        epoch: u32,
    },
    /// The agent could not be started.
    StartFailed {
        /// The number of the shim that failed.
        epoch: u32,
        /// The error, for people.
        error: String,
        /// A retry would not help.
        permanent: bool,
    },
    /// The CLI reported its session.
    SessionStarted {
        /// The CLI's id of the session, by which it is resumed.
        session_id: String,
        /// The model that the CLI uses, if it reports one.
        model: Option<String>,
    },
    /// An ACP agent identified itself. Its session is created or loaded next.
    AgentGreeted {
        /// The name and version of the agent.
        agent: String,
        /// The session to load; null creates a new one.
        load: Option<String>,
    },
    /// The session is open. Prompts are sent once the requested mode and model are set.
    SessionOpened {
        /// The agent's id of the session.
        session_id: String,
        /// The method that sets the requested model next; null if none was requested.
        set_model_by: Option<String>,
        /// The method that changes the model later; null if the agent has none.
        #[serde(default)]
        model_by: Option<String>,
        /// The mode that is set first, because the policy requires it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        set_mode: Option<Box<ModeStep>>,
    },
    /// The session is in the mode that the policy requires.
    SessionModeKept {
        /// The agent's id of the mode.
        mode: String,
        /// The method that restores the mode if the agent leaves it.
        by: String,
    },
    /// The agent switched to another mode.
    SessionModeChanged {
        /// The new mode.
        mode: String,
        /// The mode that Muleteer restores, because the agent has a policy and the new mode does
        /// not ask for permission.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        back: Option<String>,
    },
    /// The agent has a policy and stays in a mode that does not ask for permission. Muleteer stops
    /// it.
    SessionModeStays {
        /// The mode that the agent does not leave.
        mode: String,
        /// The attempt to restore the other mode, and its result.
        reason: String,
    },
    /// The agent accepted the mode that the policy requires.
    SessionModeSet {
        /// The mode of the session.
        mode: String,
    },
    /// The agent refused a mode that does not ask for permission, which its open policy allows but
    /// does not require.
    SessionModeRefused {
        /// The refused mode.
        mode: String,
        /// The agent's reason.
        reason: String,
        /// The mode that Muleteer requests instead; null if there is none.
        next: Option<String>,
    },
    /// The agent accepted the requested model.
    SessionModelSet {
        /// The model of the session.
        model: String,
    },
    /// The agent refused a call or did not answer it in time. Muleteer terminates its process.
    CallFailed {
        /// The method of the call.
        call: String,
        /// The agent's error, or the time that passed without an answer.
        reason: String,
        /// A retry in another process would not help, so there is none.
        for_good: bool,
        /// The agent no longer has the session that it was to load. Once the session is old, there
        /// is no retry.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        missing: bool,
    },
    /// A prompt is about to be sent. Written before the shim receives the prompt.
    PromptSent {
        /// The key of the prompt.
        key: String,
    },
    /// The shim acknowledged that it wrote the prompt to the agent's stdin. Earlier output does
    /// not belong to it.
    PromptWritten {
        /// The key of the prompt.
        key: String,
    },
    /// The CLI accepted a prompt and works on it.
    TurnStarted {
        /// Counts the turns of the dispatch from 1.
        turn: u32,
        /// The key of the prompt.
        key: String,
    },
    /// The CLI made a prompt that arrived during a turn a part of that turn.
    PromptFolded {
        /// The key of the prompt.
        key: String,
        /// The number of the turn.
        turn: u32,
    },
    /// The result of searching the CLI's transcript for a prompt whose process died. Written before
    /// anything is sent again.
    PromptProbed {
        /// The key of the prompt.
        key: String,
        /// The fate of the prompt.
        standing: Standing,
        /// The state of the session that the transcript belongs to.
        session: Session,
        /// The session in which the prompt was found, if one was found.
        session_id: Option<String>,
        /// The usage of the prompt's turn is known: a `usage_recorded` is in the same batch.
        #[serde(default)]
        counted: bool,
        /// The reason why the transcript could not be read; may be empty.
        detail: String,
    },
    /// The CLI no longer has the session to resume.
    SessionLost {
        /// The lost session.
        session_id: String,
    },
    /// The agent called a tool.
    ToolCalled {
        /// The agent's id of the call.
        call_id: String,
        /// The name of the tool.
        tool: String,
        /// The file, command or other subject of the call, in one line and cut.
        target: String,
        /// The call that runs the subagent, if a subagent made this call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<String>,
    },
    /// The whole subject of the tool call just reported, if `target` has only its first line.
    /// Recorded for agents with a policy.
    ToolSubject {
        /// The agent's id of the call.
        call_id: String,
        /// The whole subject.
        text: String,
    },
    /// A tool call ended with an error.
    ToolFailed {
        /// The agent's id of the call.
        call_id: String,
        /// The error, cut.
        text: String,
    },
    /// A tool call ended without an error.
    ToolFinished {
        /// The agent's id of the call.
        call_id: String,
    },
    /// The agent used a tool without asking although its policy asks or denies, or although it was
    /// denied. Muleteer stops the agent.
    PolicyBroken {
        /// The agent's id of the call.
        call_id: String,
        /// The name of the tool.
        tool: String,
        /// The subject of the call, in one line and cut.
        target: String,
        /// The rule or mode that asks about the call or denies it, or the person that denied it.
        rule: String,
        /// The agent had asked and was denied.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        denied: bool,
    },
    /// The agent waits for a permission, or for the answer to its question.
    PermissionRequested {
        /// The agent's id of the request.
        request_id: String,
        /// The answer is in the same batch, because the policy decided.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        answered: bool,
        /// It is a question for people. Absent in records of older versions.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        question: bool,
        #[serde(flatten)]
        ask: Box<Ask>,
    },
    /// A request of the agent was answered. Written before the agent receives the answer.
    PermissionAnswered {
        /// The agent's id of the request.
        request_id: String,
        /// The answer.
        answer: Verdict,
        /// The answer to a question, or the reason of a denial.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        text: String,
        /// The user or agent that answered; `policy` if the policy decided, `muleteer` if nobody
        /// could.
        by: String,
        /// The rule or mode of the policy that decided.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rule: Option<String>,
        /// The key of the client's request: a repeated request has the same one.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        key: String,
        /// It answers a question for people. Absent in records of older versions.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        question: bool,
    },
    /// The agent withdrew its request.
    PermissionClosed {
        /// The agent's id of the request.
        request_id: String,
    },
    /// The shim acknowledged that it wrote the answer to the agent's stdin.
    AnswerDelivered {
        /// The agent's id of the request.
        request_id: String,
    },
    /// Nobody answered the agent within the hold, so Muleteer ends its process. The answer begins a
    /// turn of its successor.
    HoldExpired {
        /// Its turn had ended, and no further message came within `idle_hold`. Absent in records of
        /// older versions.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        idle: bool,
    },
    /// The process has ended after the hold. The dispatch waits for the answer without one.
    AnswerAwaited {},
    /// The agent wrote a text.
    AgentSaid {
        /// The text, cut.
        text: String,
    },
    /// The agent lacks something, for example an MCP server or the requested model. Recorded once
    /// in each attempt.
    AgentNotice {
        /// The thing that it lacks, for people.
        text: String,
    },
    /// The agent called a tool of Muleteer's MCP server: a note, a report of progress, or a draft
    /// whose answer it has.
    McpCalled(Box<mcp::McpCalled>),
    /// The tokens and the cost since the last such event.
    UsageRecorded {
        /// The model that was used.
        model: String,
        /// Input tokens that came from no cache.
        input: u64,
        /// Output tokens.
        output: u64,
        /// Input tokens that were read from the cache.
        cache_read: u64,
        /// Input tokens that were written to the cache.
        cache_write: u64,
        /// The cost in US dollars; 0 if the CLI reports none.
        cost_usd: f64,
        /// The amounts are the increase over the sums that this process had reported before.
        cumulative: bool,
        /// The cost of the whole session in US dollars, if the CLI reports it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total_usd: Option<f64>,
    },
    /// The agent finished a turn.
    TurnFinished {
        /// The number of the turn.
        turn: u32,
        /// The turn ended without an error.
        ok: bool,
        /// The kind of the error.
        error: Option<TurnError>,
        /// The HTTP status of the model API that caused the error.
        status: Option<u16>,
        /// The last message of the turn, or the text of the error; cut.
        text: String,
    },
    /// The agent returned a valid result.
    ResultReceived {
        /// The result.
        result: AgentResult,
    },
    /// The agent returned an invalid result.
    ResultInvalid {
        /// The faults, each with its field.
        faults: Vec<String>,
        /// Muleteer asks the agent once more for the result.
        repair: bool,
    },
    /// A command printed more lines after its result, which therefore does not count: only the last
    /// line can be a result.
    ResultOvertaken {},
    /// The last result follows other text on its line. A result that the program prints alone on a
    /// line replaces it.
    ResultQuoted {},
    /// The agent wrote an entry into its journal.
    JournalEntry {
        /// The text of the entry.
        text: String,
    },
    /// The CLI retries a call to the model API.
    ApiRetried {
        /// The number of this retry, from 1.
        attempt: u32,
        /// The most retries of the CLI.
        max: u32,
        /// The HTTP status that caused the retry.
        status: Option<u16>,
        /// The pause before the retry, in seconds.
        delay_s: f64,
        /// The shim's clock of awake time when the agent printed the line, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        awake_ms: Option<u64>,
    },
    /// The CLI reached a rate limit of the model API.
    RateLimited {
        /// The end of the limit in RFC 3339, if the API named it.
        #[schemars(with = "Option<String>")]
        until: Option<Timestamp>,
        /// The seconds until the end of the limit.
        wait_s: f64,
        /// The shim's clock of awake time when the agent printed the line, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        awake_ms: Option<u64>,
    },
    /// The dispatch waits for the model API, without a process and without a slot of the pool. Its
    /// session is kept.
    ApiWaiting {
        /// The kind of the trouble.
        trouble: Trouble,
        /// The HTTP status of the model API.
        status: Option<u16>,
        /// The earliest time of the next request, in RFC 3339.
        #[schemars(with = "String")]
        until: Timestamp,
        /// The API itself named that time.
        told: bool,
        /// The number of consecutive waits.
        waits: u32,
        /// The total time of these waits since the API last answered, in milliseconds.
        spent_ms: u64,
    },
    /// Muleteer gives up the model API and stops the agent, even if the CLI would retry.
    ApiGivenUp {
        /// The kind of the trouble.
        trouble: Trouble,
        /// The HTTP status of the model API.
        status: Option<u16>,
        /// The refusal, or the patience that was exceeded; for people.
        reason: String,
    },
    /// The CLI compacted its context.
    Compacted {
        /// The tokens before.
        before: u64,
        /// The tokens after.
        after: u64,
    },
    /// Muleteer read the output up to `at`, and it contained no other event. The shim may remove
    /// what was read.
    OutputRead {},
    /// Muleteer paused or resumed reading the agent's output, because the disk or the spool is
    /// full. During a pause, silence is not a stall.
    BlockedByUs {
        /// Reading is paused.
        on: bool,
    },
    /// A client requested another model. A CLI that cannot switch gets it with its next process.
    ModelRequested {
        /// The key of the request.
        key: String,
        /// The requested model.
        model: String,
        /// The user or agent that requested it.
        by: String,
    },
    /// The CLI switched to another model.
    ModelChanged {
        /// The key of the request.
        key: String,
        /// The new model.
        model: String,
    },
    /// The CLI refused another model and keeps the previous one.
    ModelRefused {
        /// The key of the request.
        key: String,
        /// The CLI's reason.
        reason: String,
    },
    /// A client requested to stop the turn.
    InterruptRequested {
        /// The key of the request.
        key: String,
        /// The user or agent that requested it.
        by: String,
    },
    /// A client requested to kill the agent, which is never restarted.
    KillRequested {
        /// The reason that the client gave.
        reason: String,
        /// The user or agent that requested it.
        by: String,
    },
    /// The dispatch reached a limit. Muleteer stops the agent.
    LimitReached {
        /// The kind of the limit.
        limit: Limit,
        /// The value that was reached and its limit, for people.
        detail: String,
    },
    /// The agent gave no sign of life for longer than its category allows. Muleteer stops it; its
    /// session stays resumable.
    StallDetected {
        /// The awake seconds without a sign of life.
        silent_s: u64,
        /// The signs that were missing, for people.
        evidence: String,
    },
    /// A monitor found a fault in the behaviour of a running agent.
    MonitorSpoke {
        /// The monitor.
        monitor: Monitor,
        /// The reaction to the finding.
        action: Action,
        /// The finding, in one line for people.
        reason: String,
    },
    /// A dispatch that stalled, failed or was stopped by a monitor is to be healed. Written before
    /// its light agent is created.
    HealingBegun(Box<healing::HealingBegun>),
    /// A light agent or the configuration chose what follows. Written before it is carried out.
    HealingChosen(Box<healing::HealingChosen>),
    /// The choice was carried out, or cannot be.
    HealingDone(Box<healing::HealingDone>),
    /// The agent's process exited.
    AgentExited {
        /// The number of its shim.
        epoch: u32,
        /// The exit code; null after a signal.
        code: Option<i32>,
        /// The signal that ended the process; null after an exit.
        signal: Option<i32>,
        /// The cause of the end.
        cause: ExitCause,
        /// The end of the agent's stderr.
        stderr_tail: String,
        /// The awake time of the process in milliseconds, as far as the spool tells.
        #[serde(default)]
        used_ms: u64,
        /// The processes that the agent left and Muleteer killed, at most 50.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        left: Vec<LeftProcess>,
    },
    /// Muleteer searched for the processes that a dead shim left, and killed them.
    SweepFinished {
        /// The number of processes that were killed.
        killed: u32,
        /// No process is left.
        clean: bool,
        /// The processes that were killed, at most 50.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        left: Vec<LeftProcess>,
    },
    /// An attempt ended.
    AttemptFinished {
        /// The number of the attempt.
        attempt: u32,
        /// The outcome of the attempt.
        outcome: Outcome,
        /// The reason, for people.
        reason: String,
        /// The attempt counts for `max_restarts`.
        counted: bool,
    },
    /// Another attempt will start.
    RestartScheduled {
        /// The time of its start, in RFC 3339.
        #[schemars(with = "String")]
        until: Timestamp,
        /// The pause before it, in milliseconds.
        delay_ms: u64,
    },
    /// The final state is decided. The agent's work is fetched next.
    DispatchClosing {
        /// The final state.
        state: FinalState,
        /// The reason, for people.
        reason: String,
    },
    /// Muleteer fetched the work of the agent's clone into the repository.
    WorkFetched(WorkHome),
    /// The dispatch has ended.
    DispatchFinished {
        /// The final state.
        state: FinalState,
        /// The reason, for people.
        reason: String,
        /// The agent's result, if it returned a valid one.
        result: Option<AgentResult>,
    },
    /// The agent's files (output, prompts, request) are about to be removed. Written before the
    /// removal. The dispatch accepts no more messages.
    FilesRemoved {
        /// The user or agent that requested it.
        by: String,
    },
    /// The agent's clone is about to be removed, because all its work is in the repository. Written
    /// before the removal. The dispatch accepts no more messages.
    CloneRemoved {
        /// The absolute path of the clone.
        path: String,
        /// The user that requested it, or `retention`.
        by: String,
    },
    /// The journal is about to be moved to the archive.
    JournalArchived {
        /// The absolute path of the journal in the archive.
        path: String,
        /// The user that requested it, or `retention`.
        by: String,
    },

    // The archive of dispatches; these events are about several of them.
    /// Finished dispatches left the daemon's memory. Their state follows from their own events.
    DispatchesArchived {
        /// Dispatches that belong together by their parents. If one of them has a later event than
        /// the list says, all of them stay.
        families: Vec<Vec<Archived>>,
    },
    /// Archived dispatches are in the daemon's memory again, because one of them goes on.
    DispatchesRestored(Restored),
    /// The oldest events are about to be removed.
    EventsRemoved(Box<EventsRemoved>),

    // A spec run: these events are in the run's own events.jsonl.
    /// A spec run started. Only its settings may change when it is resumed. The events of a run are
    /// in a log of its own.
    RunStarted(Box<pipeline::RunStarted>),
    /// The run was resumed, with the configuration read again.
    RunResumed {
        /// The id of the run.
        run_id: String,
        /// The settings from now on.
        settings: Box<pipeline::RunSettings>,
        /// The user or agent that resumed it.
        by: String,
        /// The W3C trace context of the client that resumed the run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trace: Option<String>,
    },
    /// The run entered another phase.
    PhaseChanged {
        /// The new phase.
        phase: pipeline::Phase,
    },
    /// A person amended the spec while the run rested. The new version is then frozen.
    SpecAmended(Box<pipeline::SpecAmended>),
    /// Beads that stay after an amendment depend on other beads.
    BeadsReplanned {
        /// The beads with their new dependencies.
        beads: Vec<pipeline::Planned>,
    },
    /// An agent has reviewed the spec before it is frozen.
    SpecReviewed {
        /// The findings, the most severe first.
        findings: Vec<pipeline::SpecFinding>,
    },
    /// The spec was copied and hashed, and the integration branch was created.
    SpecFrozen {
        /// The SHA-256 of the spec, in hex.
        sha256: String,
        /// The branch from which the run began.
        base_branch: String,
        /// The commit at which the integration branch was created.
        base_commit: String,
        /// The integration branch, to which the agents push.
        target_branch: String,
    },
    /// The acceptance criteria are sealed.
    AcceptanceSealed {
        /// The path of the sealed copy; empty means that there are no criteria.
        path: String,
        /// The SHA-256 of the criteria, in hex.
        sha256: String,
    },
    /// The decomposition agent finished. Its beads are staged until all are accepted.
    Decomposed {},
    /// The beads of the run are planned.
    BeadsCreated {
        /// The number of the beads.
        count: u32,
        /// The number of the dependencies between them.
        dependency_edges: u32,
        /// The beads.
        beads: Vec<pipeline::Planned>,
    },
    /// The beads are no longer staged, so every agent sees them.
    BeadsAccepted {},
    /// A person approved the beads, or in the last phase the publication.
    RunApproved {
        /// The person.
        by: String,
    },
    /// A person asked for another plan. The unfinished beads are withdrawn.
    PlanChangeRequested {
        /// The person.
        by: String,
        /// The changes, in the words of the person.
        text: String,
    },
    /// A bead was given to an agent.
    BeadAssigned {
        /// The bead.
        bead_id: String,
        /// The number of the agent.
        agent: u32,
        /// The claim of the bead: `run:iteration:attempt`.
        claim: String,
    },
    /// An agent of the run starts. Written before its dispatch is created.
    AgentStarted(Box<pipeline::AgentStarted>),
    /// An agent of the run ended.
    AgentFinished(Box<pipeline::AgentFinished>),
    /// The run retries an agent that it cannot do without.
    AgentRetried {
        /// The purpose of the agent.
        purpose: pipeline::Purpose,
        /// The failure that caused the retry.
        reason: String,
        /// The failure counts for `max_retries`.
        counted: bool,
    },
    /// A bead is closed, and its commits are on the integration branch.
    BeadCompleted {
        /// The bead.
        bead_id: String,
        /// The party that closed it: `agent` or `harness`.
        by: String,
        /// The agent reported that the bead needs no change.
        no_change: bool,
        /// The number of its commits.
        commits: u32,
    },
    /// An agent did not finish its bead, which is tried again.
    BeadRetried {
        /// The bead.
        bead_id: String,
        /// The number of tries so far.
        attempt: u32,
        /// The failure that caused the retry.
        reason: String,
        /// The next agent continues in the same worktree.
        reuse: bool,
        /// The try counts for `max_retries`.
        counted: bool,
        /// The note for the next agent's prompt.
        note: String,
        /// The kind of a failure that counts; null if nothing classified it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kind: Option<pipeline::FailureKind>,
    },
    /// A bead has no tries left. It and its dependants wait for a person.
    BeadBlocked {
        /// The bead.
        bead_id: String,
        /// The last failure.
        reason: String,
        /// The beads that depend on it.
        dependants: Vec<String>,
        /// The kind of the last failure; null if nothing classified it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kind: Option<pipeline::FailureKind>,
    },
    /// A person reopened a blocked bead, which resets its failures.
    BeadReopened {
        /// The bead.
        bead_id: String,
        /// The person.
        by: String,
    },
    /// A dependency outside the run was closed.
    OutsideClosed {
        /// The bead of the run that waited for it.
        bead_id: String,
        /// The closed bead outside the run.
        on: String,
    },
    /// The model API is overloaded or limited: the run starts no agent for a time.
    PoolSlowed {
        /// The time until which no agent starts, in RFC 3339.
        #[schemars(with = "String")]
        until: Timestamp,
        /// The failure that caused it.
        reason: String,
    },
    /// An agent recorded an observation for the judge.
    ObservationCreated {
        /// The bead that holds the observation.
        bead_id: String,
        /// The agent: `agent-` and its number.
        created_by: String,
        /// The title of the bead; empty if it is unknown.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        title: String,
    },
    /// A maintenance run starts.
    MaintenanceStarted {
        /// The id of the maintenance run.
        maintenance: String,
        /// The bead of the maintenance run.
        bead_id: String,
        /// The number of beads completed in this iteration, which triggered it.
        trigger_completed_count: u32,
    },
    /// Muleteer undid an agent's push to the integration branch that was not a fast-forward.
    PushUndone {
        /// The number of the agent.
        agent: u32,
        /// The push that was undone, for people.
        reason: String,
    },
    /// Maintenance was due while another maintenance run was running, which covers it.
    MaintenanceCoalesced {
        /// The number of beads completed in this iteration.
        completed_count: u32,
    },
    /// A maintenance run ended.
    MaintenanceFinished {
        /// The id of the maintenance run.
        maintenance: String,
        /// `success`, `failure`, `timeout`, or `stopped`: it ended with its run and is triggered
        /// again.
        status: String,
    },
    /// The judge starts.
    JudgeStarted {
        /// The number of the iteration, from 1.
        iteration: u32,
        /// The number of the round, from 1. A further round repeats one in which the judge changed
        /// files that it judged.
        round: u32,
        /// The observations that the judge gets.
        observations: Vec<String>,
    },
    /// The judge's first pass is done. Its reasoning is stored, and its structure follows.
    JudgeReasoned {
        /// The number of the round.
        round: u32,
    },
    /// The judge returned its verdict.
    JudgeFinished(Box<pipeline::JudgeFinished>),
    /// The verdict was turned into beads, and observations were promoted or dismissed.
    VerdictApplied {
        /// The number of the iteration that was judged.
        iteration: u32,
        /// The beads and observations that follow from the verdict.
        triage: Box<pipeline::Triage>,
    },
    /// The run starts another iteration on the findings of the judge.
    IterationStarted {
        /// The number of the iteration.
        iteration: u32,
        /// The beads of the iteration.
        beads: Vec<pipeline::Planned>,
    },
    /// The integration branch is in the user's repository.
    BranchPublished {
        /// The name of the branch.
        branch: String,
        /// The tip of the branch.
        commit: String,
        /// The command by which a person merges it.
        merge: String,
        /// The reason why the branch was not pushed to the remote, although there is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unpushed: Option<String>,
    },
    /// The run created a pull request.
    PrCreated {
        /// The address of the pull request.
        url: String,
    },
    /// The branch was pushed to the remote, and a person creates the pull request.
    BranchPushed {
        /// The name of the branch at the remote.
        branch: String,
        /// The page on which a person can create it, if the page is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        page: Option<String>,
        /// The reason why `gh` created no pull request, if it was asked to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trouble: Option<String>,
    },
    /// The run ended without passing, or was stopped. Its branch is in the user's repository.
    RunWorkKept(pipeline::KeptWork),
    /// The run starts no more agents and stops the running ones.
    RunStopping {
        /// The error code of docs/contract.md; without one the run pauses.
        code: String,
        /// The reason, for people.
        message: String,
    },
    /// The run does nothing until it is resumed.
    RunRested {
        /// The status of the run.
        status: pipeline::RunStatus,
        /// The reason, for people.
        reason: String,
        /// The question whose answer continues the run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        question: Option<String>,
    },
    /// The run ended. The judge passed it, or was not requested.
    RunCompleted {
        /// `completed`, or `partial` if a bead is blocked.
        status: pipeline::RunStatus,
        /// The number of all beads of the run.
        total_beads: u32,
    },
    /// The run ended before the judge passed it.
    RunFailed {
        /// The error code of docs/contract.md.
        code: String,
        /// The reason, for people.
        message: String,
        /// `failed`, or `partial` if the judge still found faults in the last iteration.
        status: pipeline::RunStatus,
    },

    // A run of a task list (docs/task-list.md).
    /// A run of a task list started.
    TaskListStarted(Box<crate::task_list::session::Started>),
    /// The session was counted: the lines of the list's log have `SESSION-` and its number.
    TaskListSession {
        /// The id of the run.
        list: String,
        /// The number of the session.
        session: u64,
    },
    /// A worker begins a task. Written before the task is claimed and its dispatch is created.
    TaskBegun {
        /// The id of the run.
        list: String,
        /// The number of the worker, from 1.
        worker: u32,
        /// The id of the task.
        task: String,
        /// The dispatch that works on the task.
        dispatch: DispatchId,
        /// The commit at which the attempt begins.
        base: String,
        /// The attempt continues after an interruption.
        resumed: bool,
    },
    /// The attempt was judged by the task's validation. Written before the commit or rollback.
    TaskJudged {
        /// The id of the run.
        list: String,
        /// The number of the worker.
        worker: u32,
        /// The id of the task.
        task: String,
        /// The verdict.
        verdict: crate::task_list::session::Verdict,
    },
    /// The outcome of the attempt is in the list.
    TaskEnded {
        /// The id of the run.
        list: String,
        /// The number of the worker.
        worker: u32,
        /// The id of the task.
        task: String,
        /// `completed`, `failed` or `released`.
        status: String,
        /// The outcome, for people.
        message: String,
        /// The attempt counts for the most tasks of a session.
        counted: bool,
    },
    /// A client asked the run to stop.
    TaskListStopping {
        /// The id of the run.
        list: String,
        /// The running tasks are stopped too; otherwise they end first.
        now: bool,
        /// The user or agent that asked.
        by: String,
    },
    /// The run of a task list ended.
    TaskListFinished {
        /// The id of the run.
        list: String,
        /// The end of the run.
        finished: crate::task_list::session::Finished,
        /// The counts of the list at the end, as its log has them.
        stats: String,
    },

    // Conversations (docs/guides/conversations.md).
    /// A thread was opened.
    ThreadOpened(Box<conversation::ThreadOpened>),
    /// A message of a person was accepted. Written before the person is told so.
    MessageAccepted(Box<conversation::MessageAccepted>),
    /// The state of a person's message changed.
    MessageState {
        /// The id of the thread.
        thread: String,
        /// The id of the message.
        message: String,
        /// The new state.
        state: conversation::State,
        /// The reason, for people; may be empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
        /// The dispatch that is to get the message. Written before the dispatch is created or gets
        /// it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dispatch: Option<DispatchId>,
    },
    /// A message of an agent or of Muleteer was recorded.
    MessageRecorded(Box<conversation::MessageRecorded>),
    /// A thread was given to another role.
    ThreadRole(Box<conversation::RoleChanged>),
    /// A person changed what a thread is told of its agents' work.
    ThreadVerbosity(Box<conversation::VerbosityChanged>),
    /// A setting was changed at run time, or such a change was withdrawn.
    SettingChanged(Box<crate::config::setting::event::SettingChanged>),
    /// A task was opened in a thread.
    ThreadTaskOpened {
        /// The id of the thread.
        thread: String,
        /// The id of the task.
        task: String,
        /// The title of the task, on one line.
        title: String,
        /// The role that works on it; absent for the thread's own agent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        role: Option<String>,
    },
    /// The state of a task of a thread changed.
    ThreadTaskState {
        /// The id of the thread.
        thread: String,
        /// The id of the task.
        task: String,
        /// The new state.
        state: conversation::TaskState,
        /// The dispatch that works on the task from now on. Written before it is created.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dispatch: Option<DispatchId>,
        /// The reason, for people; may be empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
    },
    /// A thread was archived. The next message opens it again.
    ThreadArchived {
        /// The id of the thread.
        thread: String,
        /// The user that archived it.
        by: String,
    },

    // Adapters.
    /// An adapter's process is about to run its program.
    AdapterStarted(Box<adapter::AdapterStarted>),
    /// An adapter's process ended without being told to.
    AdapterLost(Box<adapter::AdapterLost>),
    /// An adapter ended too often. It stays down until a person restarts it.
    AdapterSetAside(Box<adapter::AdapterSetAside>),
    /// A person enabled or disabled an adapter.
    AdapterSwitched(Box<adapter::AdapterSwitched>),
    /// The state of an outbound item of a thread changed.
    PostState(Box<adapter::PostState>),
    /// A request of an adapter other than a message was handled.
    AdapterSignal(Box<adapter::AdapterSignal>),
    /// A person without permissions was told how to get them.
    StrangerTold(Box<adapter::StrangerTold>),

    // Schedules (docs/guides/conversations.md).
    /// The daemon follows a schedule from a moment on, or follows it no more.
    ScheduleSet(Box<schedule::ScheduleSet>),
    /// A schedule is due. Written before its message is accepted.
    ScheduleDue(Box<schedule::ScheduleDue>),
    /// The message of a due schedule is accepted, or cannot be written.
    ScheduleDone(Box<schedule::ScheduleDone>),

    // Meetings (docs/guides/conversations.md).
    /// A meeting began in a thread.
    MeetingStarted(Box<meeting::MeetingStarted>),
    /// A turn of a meeting was given. Its message is accepted in the same batch.
    MeetingTurn(Box<meeting::MeetingTurn>),
    /// A turn of a meeting is over.
    MeetingTurnDone(Box<meeting::MeetingTurnDone>),
    /// A meeting gives no more turns, except for the minutes.
    MeetingEnding(Box<meeting::MeetingEnding>),
    /// A meeting is over. Its minutes are durable before.
    MeetingEnded(Box<meeting::MeetingEnded>),

    // Questions that are no requests of agents' CLIs.
    /// A question was asked. Written before anybody sees it.
    QuestionAsked(Box<question::QuestionAsked>),
    /// A question was answered. The first answer counts, and is written before its effect.
    QuestionAnswered(Box<question::QuestionAnswered>),
    /// The state of a question changed in another way.
    QuestionState {
        /// The id of the question.
        question: String,
        /// The new state.
        state: question::State,
        /// The reason, for people; may be empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
    },

    /// An event of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// Returns the JSON schema of [`Event`]; its descriptions are the comments of the types.
pub fn schema() -> Value {
    schemars::schema_for!(Event).to_value()
}

impl Event {
    /// Returns the value of the `event` field.
    pub fn name(&self) -> String {
        serde_json::to_value(self)
            .ok()
            .and_then(|value| value.get("event")?.as_str().map(str::to_string))
            .unwrap_or_else(|| "unknown".into())
    }
}
