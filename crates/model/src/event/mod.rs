//! The types of the lines of `events.jsonl`. An event records a *decision*; folding it never
//! decides again (docs/design/event-log.md).
//!
//! A line is `{"crc":"xxxxxxxx",` followed by the rest. The CRC-32C covers the bytes of the rest
//! without the newline. The rest always begins with `"v":1,"seq":…,"ts":…,"id":…`.

pub mod groups;
pub mod id;
pub mod trace_context;
pub mod trace_ids;

mod created;
mod kinds;
mod record;

pub use created::{Created, Limits, Purse};
pub use kinds::{ExitCause, FinalState, Limit, ModeStep, Outcome, PromptKind};
pub use record::{Entry, Position, Record, VERSION};

use crate::admission::api_error::Trouble;
use crate::agent::ask::{Ask, Verdict};
use crate::agent::event::TurnError;
use crate::agent::result::AgentResult;
use crate::agent::transcript::{Session, Standing};
use crate::config::types::InForce;
use crate::dispatch::work::WorkHome;
use crate::event::id::DispatchId;
use crate::monitor::{Action, Monitor};
use crate::spec_run::event as pipeline;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    // The daemon itself.
    DaemonStarted {
        pid: u32,
        generation: u64,
        version: String,
        boot_id: String,
        /// Absent in records of versions that did not record it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        settings: Option<InForce>,
    },
    DaemonStopping {
        agents: String,
        alive: u32,
        lease_s: u64,
    },
    /// The daemon cut back a torn tail at start-up.
    LogRecovered {
        cut_bytes: u64,
    },
    ActorRestarted {
        actor: String,
        reason: String,
        restarts_in_window: u32,
        delay_ms: u64,
    },
    /// An actor's restarts exceeded the intensity, and its parent was asked to restart its branch.
    ActorEscalated {
        actor: String,
        reason: String,
    },
    /// A problem that no other event names and that stops nothing.
    Fault {
        what: String,
        message: String,
    },

    // The life of a dispatch, in the usual order.
    DispatchCreated(Box<Created>),
    PromptQueued {
        key: String,
        kind: PromptKind,
        by: String,
        /// The caller's trace context.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trace: Option<String>,
    },
    WorktreeCreated {
        path: String,
        base: String,
    },
    AttemptStarted {
        attempt: u32,
        epoch: u32,
        resume: Option<String>,
    },
    AgentSpawned {
        pid: u32,
        shim_pid: u32,
        containment: String,
        /// The shim's clock of awake time at the spawn.
        #[serde(default)]
        awake_ms: u64,
    },
    /// This daemon found a living shim and adopted it.
    AgentAdopted {
        shim_pid: u32,
        epoch: u32,
    },
    StartFailed {
        epoch: u32,
        error: String,
        permanent: bool,
    },
    SessionStarted {
        session_id: String,
        model: Option<String>,
    },
    /// The agent introduced itself. Its session is created next, or loaded if `load` is set.
    AgentGreeted {
        agent: String,
        load: Option<String>,
    },
    /// The session is open. Prompts may be sent after the model is set, if the request names one.
    SessionOpened {
        session_id: String,
        set_model_by: Option<String>,
        #[serde(default)]
        model_by: Option<String>,
        /// The mode that is set first, because the policy needs it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        set_mode: Option<Box<ModeStep>>,
    },
    /// The session is in the mode that the policy needs. `by` is the method that restores it if the
    /// agent leaves it.
    SessionModeKept {
        mode: String,
        by: String,
    },
    /// The agent switched to another mode. If it has a policy and does not ask in that mode, `back`
    /// is the mode that Muleteer restores.
    SessionModeChanged {
        mode: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        back: Option<String>,
    },
    /// The agent has a policy and stays in a mode in which it does not ask. Muleteer stops it.
    SessionModeStays {
        mode: String,
        reason: String,
    },
    /// The agent accepted the mode that the policy needs.
    SessionModeSet {
        mode: String,
    },
    /// The agent refused a mode that is optional under its open policy. `next` is requested
    /// instead.
    SessionModeRefused {
        mode: String,
        reason: String,
        next: Option<String>,
    },
    SessionModelSet {
        model: String,
    },
    /// The agent refused a call of ours or did not answer it in time. Its process is terminated.
    CallFailed {
        call: String,
        reason: String,
        /// A retry in another process would not help.
        for_good: bool,
    },
    /// A prompt is about to be sent. The event is durable before the shim receives the prompt.
    PromptSent {
        key: String,
    },
    /// The shim acknowledged that it wrote the prompt to the agent's stdin. No earlier output of
    /// the agent is about the prompt.
    PromptWritten {
        key: String,
    },
    TurnStarted {
        turn: u32,
        key: String,
    },
    /// A prompt that arrived during a turn became part of that turn.
    PromptFolded {
        key: String,
        turn: u32,
    },
    /// The result of searching the CLI's transcript for a prompt whose process is gone. It is
    /// durable before anything is sent again.
    PromptProbed {
        key: String,
        standing: Standing,
        /// The state of the session that the transcript belongs to.
        session: Session,
        session_id: Option<String>,
        /// The tokens of the prompt's turn are known and recorded in the same batch.
        #[serde(default)]
        counted: bool,
        detail: String,
    },
    /// The CLI no longer has the session that was to be resumed.
    SessionLost {
        session_id: String,
    },
    ToolCalled {
        call_id: String,
        tool: String,
        target: String,
        /// The call that runs the subagent, if a subagent made this call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<String>,
    },
    /// The whole subject of the call just reported; `target` has its first line only. Recorded for
    /// an agent that is watched because it has a policy.
    ToolSubject {
        call_id: String,
        text: String,
    },
    ToolFailed {
        call_id: String,
        text: String,
    },
    /// The call ended without an error.
    ToolFinished {
        call_id: String,
    },
    /// The agent made a call without asking although its policy asks about it or refuses it, or
    /// made a call that was denied. Muleteer stops it.
    PolicyBroken {
        call_id: String,
        tool: String,
        target: String,
        /// The rule or mode that asks about the call or refuses it, or the one who denied it.
        rule: String,
        /// The agent had asked and was denied.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        denied: bool,
    },
    /// The agent waits for a permission, or for the answer to its question.
    PermissionRequested {
        request_id: String,
        /// The answer is in the same batch, because the policy decided.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        answered: bool,
        #[serde(flatten)]
        ask: Box<Ask>,
    },
    /// A request was answered. The event is durable before the agent receives the answer.
    PermissionAnswered {
        request_id: String,
        answer: Verdict,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        text: String,
        /// The one who answered; `policy` if the policy decided.
        by: String,
        /// The rule or the mode of the policy that decided.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rule: Option<String>,
        /// The key of the client's request, by which a repeated request is deduplicated.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        key: String,
    },
    /// The agent withdrew its request.
    PermissionClosed {
        request_id: String,
    },
    AgentSaid {
        text: String,
    },
    /// The agent has to do without something, for example an MCP server. Recorded once in each
    /// attempt.
    AgentNotice {
        text: String,
    },
    UsageRecorded {
        model: String,
        input: u64,
        output: u64,
        cache_read: u64,
        cache_write: u64,
        cost_usd: f64,
        /// The amounts are the increase over what this OS process had reported before.
        cumulative: bool,
        /// The cost of the whole session, as the CLI reported it then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total_usd: Option<f64>,
    },
    TurnFinished {
        turn: u32,
        ok: bool,
        error: Option<TurnError>,
        status: Option<u16>,
        text: String,
    },
    ResultReceived {
        result: AgentResult,
    },
    ResultInvalid {
        faults: Vec<String>,
        repair: bool,
    },
    /// The agent printed more after its result, so that was not its result.
    ResultOvertaken {},
    /// Other text precedes the result on its line. A result that the program prints alone on a line
    /// replaces it.
    ResultQuoted {},
    JournalEntry {
        text: String,
    },
    ApiRetried {
        attempt: u32,
        max: u32,
        status: Option<u16>,
        delay_s: f64,
        /// The shim's clock of awake time when the agent printed the line.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        awake_ms: Option<u64>,
    },
    /// The CLI reached a rate limit of the API. `until` is the end of the limit, if the API named
    /// it.
    RateLimited {
        until: Option<Timestamp>,
        wait_s: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        awake_ms: Option<u64>,
    },
    /// The dispatch waits for a pool slot and asks the model API again at `until` at the earliest.
    /// The agent is gone; its session is kept. `spent_ms` is all the waiting since the API last
    /// answered.
    ApiWaiting {
        trouble: Trouble,
        status: Option<u16>,
        until: Timestamp,
        told: bool,
        waits: u32,
        spent_ms: u64,
    },
    /// Muleteer gave up on the model API and terminates the CLI, even if the CLI would retry.
    ApiGivenUp {
        trouble: Trouble,
        status: Option<u16>,
        reason: String,
    },
    Compacted {
        before: u64,
        after: u64,
    },
    /// A checkpoint in output without events, so that the spool can be trimmed.
    OutputRead {},
    /// We stopped reading (spool cap or full disk): the silence is not the agent's.
    BlockedByUs {
        on: bool,
    },
    /// A client asked for another model.
    ModelRequested {
        key: String,
        model: String,
        by: String,
    },
    /// The CLI continues with that model.
    ModelChanged {
        key: String,
        model: String,
    },
    /// The CLI refused the model.
    ModelRefused {
        key: String,
        reason: String,
    },
    InterruptRequested {
        key: String,
        by: String,
    },
    KillRequested {
        reason: String,
        by: String,
    },
    LimitReached {
        limit: Limit,
        detail: String,
    },
    /// The agent gave no sign of life for longer than its category allows. It is terminated, and
    /// its session is kept.
    StallDetected {
        silent_s: u64,
        evidence: String,
    },
    /// A monitor found a problem in the behaviour of a working agent; `action` is the response.
    /// With `stop`, the agent is terminated and its session is kept.
    MonitorSpoke {
        monitor: Monitor,
        action: Action,
        reason: String,
    },
    AgentExited {
        epoch: u32,
        code: Option<i32>,
        signal: Option<i32>,
        cause: ExitCause,
        stderr_tail: String,
        /// Awake time from the start of the process to its end, as far as the spool tells.
        #[serde(default)]
        used_ms: u64,
    },
    /// Muleteer searched for the processes that a dead shim left, and terminated them.
    SweepFinished {
        killed: u32,
        clean: bool,
    },
    AttemptFinished {
        attempt: u32,
        outcome: Outcome,
        reason: String,
        counted: bool,
    },
    RestartScheduled {
        until: Timestamp,
        delay_ms: u64,
    },
    /// The final state is decided; only the agent's work is still to be fetched.
    DispatchClosing {
        state: FinalState,
        reason: String,
    },
    WorkFetched(WorkHome),
    DispatchFinished {
        state: FinalState,
        reason: String,
        result: Option<AgentResult>,
    },
    /// The directory `agents/<id>` (output, prompts, request) is about to be removed. The event is
    /// durable before the removal.
    FilesRemoved {
        by: String,
    },

    // A spec run: these events are in the run's own events.jsonl.
    RunStarted(Box<pipeline::RunStarted>),
    RunResumed {
        run_id: String,
        settings: Box<pipeline::RunSettings>,
        by: String,
        /// The trace context of the client that resumed the run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trace: Option<String>,
    },
    PhaseChanged {
        phase: pipeline::Phase,
    },
    SpecFrozen {
        sha256: String,
        base_branch: String,
        base_commit: String,
        target_branch: String,
    },
    /// The acceptance criteria are sealed. An empty path means that there are none.
    AcceptanceSealed {
        path: String,
        sha256: String,
    },
    /// The decomposition agent is done.
    Decomposed {},
    BeadsCreated {
        count: u32,
        dependency_edges: u32,
        beads: Vec<pipeline::Planned>,
    },
    /// The beads are no longer staged.
    BeadsAccepted {},
    RunApproved {
        by: String,
    },
    BeadAssigned {
        bead_id: String,
        agent: u32,
        /// `run:iteration:attempt`.
        claim: String,
    },
    AgentStarted(Box<pipeline::AgentStarted>),
    AgentFinished(Box<pipeline::AgentFinished>),
    /// The run retries an agent that it cannot do without.
    AgentRetried {
        purpose: pipeline::Purpose,
        reason: String,
        counted: bool,
    },
    BeadCompleted {
        bead_id: String,
        /// The one who closed it: `agent` or `harness`.
        by: String,
        no_change: bool,
        commits: u32,
    },
    BeadRetried {
        bead_id: String,
        /// Tries so far.
        attempt: u32,
        reason: String,
        /// The next try continues in the same worktree.
        reuse: bool,
        counted: bool,
        /// The note for the next try's prompt.
        note: String,
    },
    BeadBlocked {
        bead_id: String,
        reason: String,
        dependants: Vec<String>,
    },
    /// A person reopened the bead and reset its failures.
    BeadReopened {
        bead_id: String,
        by: String,
    },
    /// A bead outside of the run was closed, and a bead of the run had waited for it.
    OutsideClosed {
        bead_id: String,
        on: String,
    },
    /// The model's provider had no capacity: no agent is started before that time.
    PoolSlowed {
        until: Timestamp,
        reason: String,
    },
    ObservationCreated {
        bead_id: String,
        created_by: String,
    },
    MaintenanceStarted {
        maintenance: String,
        bead_id: String,
        trigger_completed_count: u32,
    },
    /// An agent's push to the target was no fast-forward, and Muleteer restored the target.
    PushUndone {
        agent: u32,
        reason: String,
    },
    /// Maintenance was due while another one ran, which covers it.
    MaintenanceCoalesced {
        completed_count: u32,
    },
    MaintenanceFinished {
        maintenance: String,
        status: String,
    },
    JudgeStarted {
        iteration: u32,
        round: u32,
        observations: Vec<String>,
    },
    /// The judge's first pass is done; its reasoning is stored for the second.
    JudgeReasoned {
        round: u32,
    },
    JudgeFinished(Box<pipeline::JudgeFinished>),
    VerdictApplied {
        iteration: u32,
        triage: Box<pipeline::Triage>,
    },
    IterationStarted {
        iteration: u32,
        beads: Vec<pipeline::Planned>,
    },
    BranchPublished {
        branch: String,
        commit: String,
        /// The command by which a person merges it.
        merge: String,
        /// The reason why the branch is only in the repository, although there is a remote.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unpushed: Option<String>,
    },
    PrCreated {
        url: String,
    },
    /// The branch is at the remote, and a person makes the pull request.
    BranchPushed {
        branch: String,
        /// The page on which a person can make it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        page: Option<String>,
        /// The reason why `gh` made no pull request, if it was asked to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trouble: Option<String>,
    },
    /// The run ended without passing, or was stopped. Its branch is in the repository.
    RunWorkKept(pipeline::KeptWork),
    /// No new agent is started, and the living ones are terminated. Without a code the run rests.
    RunStopping {
        code: String,
        message: String,
    },
    /// The run does nothing until it is resumed.
    RunRested {
        status: pipeline::RunStatus,
        reason: String,
    },
    RunCompleted {
        status: pipeline::RunStatus,
        total_beads: u32,
    },
    RunFailed {
        code: String,
        message: String,
        status: pipeline::RunStatus,
    },

    // A run of a task list (docs/task-list.md).
    TaskListStarted(Box<crate::task_list::session::Started>),
    TaskListSession {
        list: String,
        session: u64,
    },
    /// The event is durable before the task is claimed and its dispatch is made.
    TaskBegun {
        list: String,
        worker: u32,
        task: String,
        dispatch: DispatchId,
        base: String,
        resumed: bool,
    },
    /// The event is durable before anything follows from it.
    TaskJudged {
        list: String,
        worker: u32,
        task: String,
        verdict: crate::task_list::session::Verdict,
    },
    TaskEnded {
        list: String,
        worker: u32,
        task: String,
        status: String,
        message: String,
        counted: bool,
    },
    TaskListStopping {
        list: String,
        now: bool,
        by: String,
    },
    TaskListFinished {
        list: String,
        finished: crate::task_list::session::Finished,
        stats: String,
    },

    /// An event of a newer version.
    #[serde(other)]
    Unknown,
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
