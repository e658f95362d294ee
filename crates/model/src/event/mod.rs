//! The lines of `events.jsonl`: typed records of what happened. They record *decisions*: folding
//! them never decides again (docs/design/event-log.md).
//!
//! A line is `{"crc":"xxxxxxxx",` followed by the rest, where the CRC-32C is of the rest's bytes
//! without the newline. The rest always begins with `"v":1,"seq":…,"ts":…,"id":…`.

pub mod id;
pub mod trace_context;
pub mod trace_ids;

use crate::admission::api_error::{Terms, Trouble};
use crate::agent::acp_handshake::Calls;
use crate::agent::ask::{Ask, Verdict};
use crate::agent::event::TurnError;
use crate::agent::permission::Policy;
use crate::agent::result::AgentResult;
use crate::agent::transcript::{Session, Standing};
use crate::config::InForce;
use crate::dispatch::work::WorkHome;
use crate::event::id::DispatchId;
use crate::monitor::{self, Action, Monitor};
use crate::spec_run::event as pipeline;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The version written on every line.
pub const VERSION: u16 = 1;

/// One durable line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Flat")]
pub struct Record {
    pub v: u16,
    pub seq: u64,
    pub ts: Timestamp,
    #[serde(flatten)]
    pub entry: Entry,
}

/// A record as it is read: what is flattened into what is flattened would be kept and gone through
/// once more.
#[derive(Deserialize)]
struct Flat {
    v: u16,
    seq: u64,
    ts: Timestamp,
    id: String,
    #[serde(default)]
    dispatch_id: Option<DispatchId>,
    #[serde(default)]
    at: Option<Position>,
    #[serde(default)]
    more: bool,
    #[serde(flatten)]
    event: Event,
}

impl From<Flat> for Record {
    fn from(flat: Flat) -> Self {
        let Flat { v, seq, ts, id, dispatch_id, at, more, event } = flat;
        Self { v, seq, ts, entry: Entry { id, dispatch_id, at, more, event } }
    }
}

/// What a caller asks the ledger to append. `id` is the caller's choice: the same id again is
/// answered, not repeated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch_id: Option<DispatchId>,
    /// Set on events read from an agent's spool: everything before it is folded in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Position>,
    /// The next line belongs to the same batch. A batch is all or nothing: recovery cuts trailing
    /// records back to the last one without `more`, so events that were decided together are never
    /// half recorded (a second decision on half-folded state would differ from the first).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    #[serde(flatten)]
    pub event: Event,
}

/// A place in an agent's spool up to which its output has become events.
///
/// `(epoch, offset)` is the record in which the next unread line of stdout begins, `skip` the bytes
/// of that record's payload that belong to lines already read. The events of one line are one batch
/// (see [`Entry::more`]), so a position never points into the middle of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Position {
    pub epoch: u32,
    pub offset: u64,
    pub skip: u32,
}

/// A mode to set in a session, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeStep {
    pub mode: String,
    pub by: String,
    /// Tried where the agent refuses the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    // The daemon itself.
    DaemonStarted {
        pid: u32,
        generation: u64,
        version: String,
        boot_id: String,
        /// From before it was recorded: none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        settings: Option<InForce>,
    },
    DaemonStopping {
        agents: String,
        alive: u32,
        lease_s: u64,
    },
    /// A torn tail was cut back at start-up.
    LogRecovered {
        cut_bytes: u64,
    },
    ActorRestarted {
        actor: String,
        reason: String,
        restarts_in_window: u32,
        delay_ms: u64,
    },
    /// Restarts exceeded the intensity: the parent was asked to restart its branch.
    ActorEscalated {
        actor: String,
        reason: String,
    },
    /// Something went wrong that no other event names.
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
        /// The place in a trace of whoever asks.
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
        /// The shim's clock of awake time, as it stood then.
        #[serde(default)]
        awake_ms: u64,
    },
    /// A living shim was found and taken over by this daemon.
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
    /// It told who it is; its session is made next, or `load`ed.
    AgentGreeted {
        agent: String,
        load: Option<String>,
    },
    /// Prompts may be sent, once the model is set where one is asked for.
    SessionOpened {
        session_id: String,
        set_model_by: Option<String>,
        #[serde(default)]
        model_by: Option<String>,
        /// The mode that is set first, because the policy needs it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        set_mode: Option<Box<ModeStep>>,
    },
    /// The session is in the mode that the policy needs; `by` is how it is set, should the agent
    /// leave it.
    SessionModeKept {
        mode: String,
        by: String,
    },
    /// The agent went over to another mode. `back`: the one that is set again, because it does not
    /// ask in this one and has a policy.
    SessionModeChanged {
        mode: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        back: Option<String>,
    },
    /// The agent does not leave a mode in which it does not ask, though it has a policy: it is
    /// stopped.
    SessionModeStays {
        mode: String,
        reason: String,
    },
    /// The agent has taken the mode that the policy needs.
    SessionModeSet {
        mode: String,
    },
    /// The agent refused a mode that an open policy would have liked; `next` is tried instead.
    SessionModeRefused {
        mode: String,
        reason: String,
        next: Option<String>,
    },
    SessionModelSet {
        model: String,
    },
    /// A call of ours was refused, or not answered in time: its process is ended.
    CallFailed {
        call: String,
        reason: String,
        /// Another process would fare no better.
        for_good: bool,
    },
    /// Written before the shim receives the prompt.
    PromptSent {
        key: String,
    },
    /// The shim acknowledged that it wrote the prompt to the agent's stdin. Nothing that the agent
    /// printed before this is about the prompt.
    PromptWritten {
        key: String,
    },
    TurnStarted {
        turn: u32,
        key: String,
    },
    /// A prompt that came in the middle of a turn has become part of it.
    PromptFolded {
        key: String,
        turn: u32,
    },
    /// After its process died: what the CLI's transcript says about a prompt. Durable before
    /// anything is sent again.
    PromptProbed {
        key: String,
        standing: Standing,
        /// Of the session the transcript is of.
        session: Session,
        session_id: Option<String>,
        /// What its turn has used is known, and stands beside this.
        #[serde(default)]
        counted: bool,
        detail: String,
    },
    /// The CLI no longer has the session that was to go on.
    SessionLost {
        session_id: String,
    },
    ToolCalled {
        call_id: String,
        tool: String,
        target: String,
        /// The call that runs the subagent which made it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<String>,
    },
    /// The whole of what the call just told works on, where `target` is its first line only. Of an
    /// agent that is watched because it has a policy.
    ToolSubject {
        call_id: String,
        text: String,
    },
    ToolFailed {
        call_id: String,
        text: String,
    },
    /// The call came to an end, and not to an error.
    ToolFinished {
        call_id: String,
    },
    /// The agent used a tool without asking, though its policy would have asked about it or refused
    /// it, or used one that it was denied: it is stopped.
    PolicyBroken {
        call_id: String,
        tool: String,
        target: String,
        /// What would have asked or refused, or who denied it.
        rule: String,
        /// It had asked, and was denied.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        denied: bool,
    },
    /// The agent waits until somebody says whether it may, or answers its question.
    PermissionRequested {
        request_id: String,
        /// In the same batch: nobody had to be asked.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        answered: bool,
        #[serde(flatten)]
        ask: Box<Ask>,
    },
    /// Written before the agent is told.
    PermissionAnswered {
        request_id: String,
        answer: Verdict,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        text: String,
        /// `policy` where nobody had to be asked.
        by: String,
        /// Of the policy, what decided.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rule: Option<String>,
        /// Of a client's request, by which it is known again when the client repeats it.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        key: String,
    },
    /// The agent no longer wants to know.
    PermissionClosed {
        request_id: String,
    },
    AgentSaid {
        text: String,
    },
    /// It has to do without something; told once in each attempt.
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
        /// Counted against what this OS process had reported before.
        cumulative: bool,
        /// What the CLI then told as the cost of the whole session.
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
    /// Its result was not the last it printed, so it is none.
    ResultOvertaken {},
    /// The result just received stands behind other text on its line: one that the program gives by
    /// itself counts in its place.
    ResultQuoted {},
    JournalEntry {
        text: String,
    },
    ApiRetried {
        attempt: u32,
        max: u32,
        status: Option<u16>,
        delay_s: f64,
        /// The shim's clock of awake time, when it was printed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        awake_ms: Option<u64>,
    },
    /// The CLI was told of a limit that is reached, and until when if that was told.
    RateLimited {
        until: Option<Timestamp>,
        wait_s: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        awake_ms: Option<u64>,
    },
    /// The model API is not to be asked before `until`: the agent is gone, its session is kept, and
    /// the dispatch waits for a place again. `spent_ms`: all the waiting since the API last
    /// answered.
    ApiWaiting {
        trouble: Trouble,
        status: Option<u16>,
        until: Timestamp,
        told: bool,
        waits: u32,
        spent_ms: u64,
    },
    /// The model API is not asked any more, whatever the CLI would do: it is ended.
    ApiGivenUp {
        trouble: Trouble,
        status: Option<u16>,
        reason: String,
    },
    Compacted {
        before: u64,
        after: u64,
    },
    /// A checkpoint in output that holds nothing worth an event, so that the spool can be let go.
    OutputRead {},
    /// We stopped reading (spool cap or full disk): silence is ours, not the agent's.
    BlockedByUs {
        on: bool,
    },
    /// Somebody wants it to go on with another model.
    ModelRequested {
        key: String,
        model: String,
        by: String,
    },
    /// Its CLI goes on with that model.
    ModelChanged {
        key: String,
        model: String,
    },
    /// Its CLI does not.
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
    /// It gave no sign of life for longer than its category allows: it is ended, and its session
    /// kept.
    StallDetected {
        silent_s: u64,
        evidence: String,
    },
    /// It is at work and sick: what a monitor found, and what is done about it. With `stop` it is
    /// ended, and its session kept.
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
        /// Awake time from its start to its end, as far as the spool tells.
        #[serde(default)]
        used_ms: u64,
    },
    /// What a dead shim left was looked for and ended.
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
    /// The final state is decided; what is left is to bring the work home.
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
    /// Written before `agents/<id>` is removed: its output, prompts and request.
    FilesRemoved {
        by: String,
    },

    // A spec run: these stand in the run's own events.jsonl.
    RunStarted(Box<pipeline::RunStarted>),
    RunResumed {
        run_id: String,
        settings: Box<pipeline::RunSettings>,
        by: String,
        /// The place in a trace of whoever went on with it.
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
    /// An empty path: there are no criteria.
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
    /// They are no longer staged.
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
    /// An agent the run cannot do without is started again.
    AgentRetried {
        purpose: pipeline::Purpose,
        reason: String,
        counted: bool,
    },
    BeadCompleted {
        bead_id: String,
        /// Who closed it: `agent` or `harness`.
        by: String,
        no_change: bool,
        commits: u32,
    },
    BeadRetried {
        bead_id: String,
        /// Tries so far.
        attempt: u32,
        reason: String,
        /// The next one goes on in the same worktree.
        reuse: bool,
        counted: bool,
        /// What the next one is told.
        note: String,
    },
    BeadBlocked {
        bead_id: String,
        reason: String,
        dependants: Vec<String>,
    },
    /// A person gave it back, and its failures with it.
    BeadReopened {
        bead_id: String,
        by: String,
    },
    /// Something outside the run that a bead waited for was closed.
    OutsideClosed {
        bead_id: String,
        on: String,
    },
    /// The model's provider had no room: nobody is started before that time.
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
    /// An agent pushed to the target what was no fast-forward; it is as it was before.
    PushUndone {
        agent: u32,
        reason: String,
    },
    /// It was due while another was under way, which takes care of it.
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
    /// The first pass is done: its reasoning is kept for the second.
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
        /// How a person merges it.
        merge: String,
        /// Why it is in the repository only, although there is a remote.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unpushed: Option<String>,
    },
    PrCreated {
        url: String,
    },
    /// The branch is at the remote, and a pull request is a person's to make.
    BranchPushed {
        branch: String,
        /// Where it can be made.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        page: Option<String>,
        /// Why `gh` made no pull request, where it was asked to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trouble: Option<String>,
    },
    /// Of a run that ends before it passed, or is stopped: its branch is in the repository.
    RunWorkKept(pipeline::KeptWork),
    /// No new agent is started, and those that live are ended. Without a code it is to rest.
    RunStopping {
        code: String,
        message: String,
    },
    /// Nothing goes on until it is resumed.
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
    /// Written before the task is claimed and its dispatch is made.
    TaskBegun {
        list: String,
        worker: u32,
        task: String,
        dispatch: DispatchId,
        base: String,
        resumed: bool,
    },
    /// Written before anything follows from it.
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

    /// Written by a newer version.
    #[serde(other)]
    Unknown,
}

/// Everything decided when a dispatch is made: later configuration changes do not reach it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Created {
    pub role: String,
    pub category: String,
    /// Where it works; an absolute path.
    pub project: String,
    /// What its work is for, where `project` is a clone that was made for it and does not outlast
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    pub feature: String,
    pub backend: String,
    #[serde(default)]
    pub model: Option<String>,
    /// `flag`, `role`, `category` or `default`.
    #[serde(default)]
    pub model_source: Option<String>,
    pub limits: Limits,
    /// What it spends from beside its own budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purse: Option<Purse>,
    #[serde(default)]
    pub worktree: Option<String>,
    /// The branch its commits go to, as known when it was made.
    #[serde(default)]
    pub branch: Option<String>,
    pub journal: String,
    /// The dispatch whose agent asked for this one.
    #[serde(default)]
    pub parent: Option<DispatchId>,
    pub by: String,
    /// Its CLI takes further turns on stdin.
    pub multi_turn: bool,
    /// Its CLI can go on with a session after its process died.
    pub resumable: bool,
    /// Its CLI is spoken to by calls: a session is opened before the first prompt, and what it says
    /// comes in pieces.
    #[serde(default)]
    pub calls: Option<Calls>,
    /// A validated result is asked of the agent.
    pub wants_result: bool,
    /// After a crash a person is asked instead of the session being resumed.
    #[serde(default)]
    pub ask_on_crash: bool,
    /// What its agent may do without asking.
    #[serde(default)]
    pub permissions: Policy,
    /// Its CLI can be told an answer while it waits for one.
    #[serde(default)]
    pub can_ask: bool,
    /// It works for a run or a task list, or for an agent of one, and nobody watches: what it asks
    /// waits for so many seconds at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unattended_s: Option<u64>,
    /// The name of the program that its agent is, where it speaks by calls and that can be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// Its CLI keeps a transcript that tells what became of a prompt.
    #[serde(default)]
    pub transcripts: bool,
    /// Its CLI makes a prompt that comes in the middle of a turn part of it.
    #[serde(default)]
    pub folds: bool,
    #[serde(default)]
    pub trace: Option<String>,
    /// Its way to the model API.
    #[serde(default)]
    pub api: Terms,
    /// What it is watched for while it works.
    #[serde(default)]
    pub watched: monitor::Terms,
    /// Of the request, so that the same id with other content is told apart.
    pub fingerprint: String,
}

impl Created {
    /// Turns are told apart from the life of a process: its CLI takes several, or a new process
    /// goes on with the session. Of any other agent, the process is the turn.
    pub fn has_turns(&self) -> bool {
        self.multi_turn || self.resumable
    }

    /// The directory that what it does is seen from.
    pub fn directory(&self) -> &str {
        self.worktree.as_deref().unwrap_or(&self.project)
    }

    /// The project in a person's eyes: clones come and go, and nobody has heard of them.
    pub fn project_name(&self) -> &str {
        self.repository.as_deref().unwrap_or(&self.project)
    }

    /// The clone it works in, if it was made one: for a dispatch alone, or as a part of a run or a
    /// task list.
    pub fn clone_of_its_own(&self) -> Option<&str> {
        let in_one = self.repository.as_ref().is_some_and(|repository| *repository != self.project);
        self.worktree.as_deref().or_else(|| in_one.then_some(self.project.as_str()))
    }

    /// The repository of what its agent has others do in `dir`, where that is a clone of its own or
    /// its run's.
    pub fn repository_of(&self, dir: &Path) -> Option<&str> {
        let own = self.directory();
        Some(self.project_name()).filter(|name| dir.starts_with(own) && *name != own)
    }

    /// What it was promised and cannot be given, for people.
    pub fn unkept(&self) -> Option<String> {
        let costless = self.backend == "codex" && self.api.price.is_none();
        let budget = self.limits.budget_usd.filter(|_| costless)?;
        let model = self.model.as_deref().unwrap_or("a model that --model names");
        Some(format!(
            "the budget of ${budget:.2} cannot be kept: codex reports tokens and no cost, and models.prices has no \
             price for {model}"
        ))
    }

    /// No result line repeats the answer of a turn: it is the last thing said.
    pub fn said_is_answer(&self) -> bool {
        self.calls.is_some() || (!self.multi_turn && self.resumable)
    }
}

/// Money that several dispatches spend from, and all that these dispatch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Purse {
    /// The run whose it is.
    pub of: String,
    /// What all of them may spend together.
    pub usd: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    pub budget_usd: Option<f64>,
    pub max_turns: Option<u32>,
    /// Awake seconds of all its attempts together.
    pub timeout_s: Option<u64>,
    pub inactivity_timeout_s: u64,
    pub max_restarts: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptKind {
    Initial,
    Send,
    /// Asks for the result again, naming its faults.
    Repair,
    /// "Go on", in a session resumed after a crash.
    Continue,
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    Budget,
    Turns,
    Timeout,
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitCause {
    /// By itself, or by a signal nobody here sent.
    Exited,
    /// We asked its shim to end it.
    Terminated,
    /// Its shim's own deadline or limits.
    ShimPolicy,
    /// No daemon renewed the lease: it did not fail.
    LeaseExpired,
    /// The shim died; how the agent ended is not known.
    ShimLost,
    /// The shim died before the agent was released: nothing ever ran.
    NeverRan,
    /// The program could not be executed, and trying again would not help.
    CannotStart,
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Success,
    Failure,
    Timeout,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinalState {
    Success,
    Partial,
    Failed,
    Blocked,
    Killed,
    Stalled,
}

impl FinalState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Partial => "partial",
            Self::Failed => "failed",
            Self::Blocked => "blocked",
            Self::Killed => "killed",
            Self::Stalled => "stalled",
        }
    }
}

impl Event {
    /// The `event` field's value.
    pub fn name(&self) -> String {
        serde_json::to_value(self)
            .ok()
            .and_then(|value| value.get("event")?.as_str().map(str::to_string))
            .unwrap_or_else(|| "unknown".into())
    }
}
