//! Version 1 of the daemon's protocol.
//!
//! Every enum that a peer may extend has a catch-all (`Unknown`), so an older peer skips values
//! that it does not know. Fields are only ever added, with `#[serde(default)]`.
//!
//! ```text
//! client                                daemon
//!   Hello {versions, …}        ──▶
//!                              ◀──       Welcome {version, identity, …}  |  Refused
//!   Request {id, trace, body}  ──▶
//!                              ◀──       Item {id, item}*    (only while credits last)
//!   Credit {id, n}             ──▶
//!   Cancel {id}                ──▶
//!                              ◀──       Reply {id, body}  |  Error {id, error}
//! ```

mod adapter;
mod clean;
mod conversation;
mod dispatch;
mod meeting;
mod question;
mod report;
mod run;
mod schedule;
mod thread_follow;
mod tool;
mod tree;
mod work_doc;

pub use adapter::{
    ADAPTER_VERSION, Ack, AdapterDoc, AdapterHello, AdapterWelcome, FirstFrame, FromAdapter,
    HelloTag, Inbound, InboundFile, InboxDoc, MOST_CREDITS, Outbound, OutboundOption, OutboxDoc,
    ToAdapter,
};
pub use clean::{Archived, Clean, Cleaned, Compressed, Kept, Removed, RemovedEvents};
pub use conversation::{
    AttachedFile, AuthorDoc, FILES_LIMIT, FileDoc, MessageDoc, ThreadDoc, ThreadInFull, ThreadNew,
    ThreadSend, ThreadTaskDoc,
};
pub use dispatch::{AskStatus, DispatchStatus, ResultDoc, Tokens};
pub use meeting::{MeetingDoc, MeetingStart, MeetingTurnDoc};
pub use question::{AnswerDoc, AnsweredByDoc, ChoiceDoc, QuestionDoc};
pub use report::{DaemonStatus, StatusReport};
pub use run::Run;
pub use schedule::{ScheduleDoc, ScheduleStartDoc};
pub use thread_follow::{OPEN_LIMIT, Part, ThreadFollow, ThreadPart, ThreadPlace};
pub use tool::{ToolCall, ToolResult, ToolTaken};
pub use tree::{ProcessStatus, TreeNode};
pub use work_doc::{LeftDoc, WorkDoc};

use serde::{Deserialize, Serialize};

/// The versions that this build speaks, best first.
pub const VERSIONS: &[u16] = &[1];
/// How many items a stream may have in flight before the client grants more.
pub const INITIAL_CREDITS: u32 = 64;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum ClientFrame {
    Hello(Hello),
    Request {
        id: u64,
        /// W3C `traceparent` of the caller.
        #[serde(default)]
        trace: Option<String>,
        body: Request,
    },
    Credit {
        id: u64,
        n: u32,
    },
    Cancel {
        id: u64,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub versions: Vec<u16>,
    /// Program and version, for logs only.
    pub client: String,
    /// The contents of `operator.key` in hex, if the client may read it and does not work for an
    /// agent.
    #[serde(default)]
    pub operator_key: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum ServerFrame {
    Welcome(Welcome),
    Refused {
        error: WireError,
    },
    Item {
        id: u64,
        item: Item,
    },
    Reply {
        id: u64,
        body: Reply,
    },
    Error {
        id: u64,
        error: WireError,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    pub version: u16,
    pub daemon_pid: u32,
    pub daemon_version: String,
    /// `operator`, `agent` or `unknown` (read-only).
    pub identity: String,
    pub state_dir: String,
    /// Where this daemon exports its telemetry. Only the operator gets it, and older daemons omit
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<Telemetry>,
}

/// Where a daemon sends its spans and metrics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Telemetry {
    /// The collector that the daemon was started with; None if it exports nothing.
    #[serde(default)]
    pub endpoint: Option<String>,
}

/// An error as it is shown to the user. The code is the text of an
/// [`ErrorCode`](crate::ErrorCode), or of one that only a newer daemon knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct WireError {
    pub code: String,
    pub message: String,
    #[serde(default)]
    pub hint: Option<String>,
    #[serde(default)]
    pub dispatch_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    #[serde(default)]
    pub file: Option<String>,
    #[serde(default)]
    pub line: Option<u64>,
    #[serde(default)]
    pub column: Option<u64>,
    /// The faulty line of the file, unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snippet: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case")]
pub enum Request {
    Spawn(Box<Spawn>),
    Status {
        /// A unique prefix of an id; all dispatches when absent.
        #[serde(default)]
        id: Option<String>,
        /// Adds the archived dispatches, as [`Item::Dispatch`] before the reply.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        archived: bool,
    },
    Tree,
    /// Streams [`Item::Event`]. Ends after the newest event unless `follow`.
    Events {
        /// The first sequence number that is wanted.
        #[serde(default)]
        from_seq: u64,
        #[serde(default)]
        follow: bool,
    },
    Send {
        id: String,
        /// Chosen by the client. A request with a known key is answered, but not carried out again.
        key: String,
        text: String,
        /// `text` is a command of the agent's own CLI, not a prompt.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        cli_command: bool,
    },
    Interrupt {
        id: String,
    },
    Kill {
        id: String,
        #[serde(default)]
        reason: Option<String>,
    },
    /// Ends a stalled dispatch, or one that waits for a message, for good.
    Close {
        id: String,
    },
    /// Answers a question: `id` is a question, or a dispatch with one.
    Answer {
        id: String,
        /// Which of several asks; a unique prefix of its id.
        #[serde(default)]
        request: Option<String>,
        /// `allow`, `deny`, or a text.
        answer: String,
        /// The separate arguments of which `answer` was joined. They tell options that contain a
        /// comma apart.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        arguments: Vec<String>,
        /// Chosen by the client. A request with a known key is answered, but not carried out again.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        key: String,
    },
    /// Switches to another model.
    SetModel {
        id: String,
        /// Chosen by the client. A request with a known key is answered, but not carried out again.
        key: String,
        model: String,
    },
    /// Removes the agent files of dispatches that ended at least this long ago. Answered after the
    /// removal.
    Prune {
        /// Seconds.
        older_than_s: u64,
        /// Only reports what would be removed.
        #[serde(default)]
        dry_run: bool,
        /// Only dispatches created by this event or a later one. The reply says where to continue.
        #[serde(default)]
        from_seq: u64,
    },
    /// Removes clones whose work is in the repository, and archives journals, of dispatches that
    /// ended at least this long ago. Answered after that.
    Clean(Clean),
    /// Answered when all of `ids` have ended.
    Wait {
        ids: Vec<String>,
    },
    /// Answered when at least one of `ids` has ended, with those that have.
    WaitAny {
        ids: Vec<String>,
    },
    Stop {
        /// `keep` or `stop`.
        agents: String,
    },
    Ping,
    /// An operation on the beads of the calling agent's run, as JSON. With the same `key`, a
    /// repeated create makes one bead.
    Bead {
        key: String,
        op: String,
    },
    /// Starts or resumes a run. Answered when the run is under way.
    Run(Box<Run>),
    /// As `Run`, for a run that rests, with the spec of the request as the new version.
    RunAmend(Box<Run>),
    /// Streams the lines of a run's own events; with `follow` until the run rests or has ended.
    RunEvents {
        run_id: String,
        #[serde(default)]
        from_seq: u64,
        #[serde(default)]
        follow: bool,
    },
    /// Ends the run's agents and lets the run rest. Answered when it rests.
    RunStop {
        run_id: String,
    },
    /// Works through a task list. Answered when the run is durable.
    TasksRun(Box<TasksRun>),
    /// Answered when the run has ended.
    TasksWait {
        id: String,
    },
    /// Ends a run of a task list: after the current tasks, or `now`. `id` is the run's id or its
    /// root.
    TasksStop {
        id: String,
        #[serde(default)]
        now: bool,
    },
    /// Opens a thread. Answered when it is durable.
    ThreadNew(Box<ThreadNew>),
    /// Adds a message to a thread. Answered when it is durable.
    ThreadSend(Box<ThreadSend>),
    /// Answered when the state of the message changes no more.
    ThreadWait {
        thread: String,
        message: String,
    },
    ThreadArchive {
        thread: String,
    },
    Threads,
    /// Lists the open questions; with `all` the closed ones too.
    Questions {
        #[serde(default)]
        all: bool,
    },
    /// Changes a setting at run time, or withdraws the change. Answered when it is durable.
    ConfigSet {
        key: String,
        /// YAML; absent to withdraw.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<String>,
    },
    /// Streams [`Item::Message`], then the thread with its other parts.
    ThreadShow {
        thread: String,
    },
    /// Streams [`Item::ThreadPart`] until the client cancels.
    ThreadFollow(Box<ThreadFollow>),
    /// Lists the MCP tools that the caller has.
    Tools {
        #[serde(default)]
        read_only: bool,
    },
    /// Calls an MCP tool. Answered with its result, however long that takes.
    Tool(Box<ToolCall>),
    /// Confirms the result of a call. Answered when it is durable.
    ToolTaken(Box<ToolTaken>),
    Adapters,
    /// Starts an adapter again, or enables or disables it. Answered when that is done.
    Adapter {
        name: String,
        /// `restart`, `enable` or `disable`.
        act: String,
    },
    /// Lists the configured schedules.
    Schedules,
    /// Starts a schedule now. Answered when its message is accepted or cannot be written.
    ScheduleRun {
        name: String,
        /// The same key is the same start.
        key: String,
    },
    /// Lists the meetings; with `meeting` that one alone, with its turns.
    Meetings {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        meeting: Option<String>,
    },
    /// Starts a meeting. Answered when it is durable.
    MeetingStart(Box<MeetingStart>),
    /// Ends a meeting. Answered when that is durable; its minutes come later.
    MeetingEnd {
        meeting: String,
    },
    /// Answered when the meeting is over.
    MeetingWait {
        meeting: String,
    },
    #[serde(other)]
    Unknown,
}

/// A run of a task list (docs/task-list.md). The client chooses `id`, as for a dispatch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct TasksRun {
    pub id: String,
    /// The directory with `harness-tasks.json`, absolute.
    pub root: String,
    /// The template of each task's dispatch; each task has its own `id`, `project` and `prompt`.
    pub dispatch: Spawn,
    #[serde(default)]
    pub concurrency: u32,
    #[serde(default)]
    pub max_tasks: Option<u64>,
}

/// A dispatch to create. The client chooses `id`: if it repeats the request after a lost reply, the
/// same id with the same content is answered and not carried out again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct Spawn {
    pub id: String,
    pub role: String,
    /// Absolute path of the project's directory.
    pub project: String,
    pub prompt: String,
    #[serde(default)]
    pub feature: Option<String>,
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub backend: Option<String>,
    /// A string runs under `sh -c`; a list is argv.
    #[serde(default)]
    pub command: Option<Command>,
    #[serde(default)]
    pub scenario: Option<String>,
    #[serde(default)]
    pub budget_usd: Option<f64>,
    #[serde(default)]
    pub max_turns: Option<u32>,
    #[serde(default)]
    pub timeout_s: Option<u64>,
    #[serde(default)]
    pub worktree: bool,
    /// The client's environment, already reduced to the names that may pass.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// `--env K=V`: added even if the pass list does not name it.
    #[serde(default)]
    pub extra_env: Vec<(String, String)>,
    /// `--config`, absolute.
    #[serde(default)]
    pub config: Option<String>,
    /// The title of the task; absent takes one from the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The file that the task is from, for the journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<String>,
    /// `allow`, `ask` or `deny`: the decision on a tool if no permission rule matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<String>,
    /// The agent runs in a sandbox.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sandbox: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Command {
    Shell(String),
    Argv(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum Item {
    /// One line of `events.jsonl`, without its newline.
    Event { seq: u64, line: String },
    /// One dispatch of a `status` or `wait` answer that is too long for one frame. It precedes the
    /// dispatches in the reply itself.
    Dispatch(Box<DispatchStatus>),
    /// A thread of a `threads` answer that is too long for one frame.
    Thread(Box<ThreadDoc>),
    /// A message of a thread that was asked for.
    Message(Box<MessageDoc>),
    /// A part of the live view of a thread.
    ThreadPart(Box<ThreadPart>),
    /// A question of a `questions` answer that is too long for one frame.
    Question(Box<QuestionDoc>),
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum Reply {
    Spawned {
        dispatch_id: String,
        /// Requests that the daemon could not fulfil, as text for people.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        warnings: Vec<String>,
        /// The permissions and the place of the agent, on one line. Older daemons omit it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        access: Option<String>,
    },
    Status(StatusReport),
    Tree(TreeNode),
    /// Send: the prompt is durable. `queued` if a turn is running.
    Sent {
        dispatch_id: String,
        queued: bool,
    },
    /// Interrupt, kill: the request is durable and has reached the agent, or was not necessary.
    Done {
        dispatch_id: String,
        #[serde(default)]
        note: Option<String>,
    },
    /// Answer: the answer is durable. `answer` is `allow`, `deny` or `text`. `request_id` is the
    /// question. A question that belongs to no dispatch has an empty `dispatch_id`.
    Answered {
        dispatch_id: String,
        request_id: String,
        answer: String,
    },
    Pruned {
        /// How many dispatches' files were removed, or would be.
        dispatches: u64,
        bytes: u64,
        /// There are more: continue from here.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next_seq: Option<u64>,
        /// At most a few removals that failed, as text for people.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        faults: Vec<String>,
        /// How many archived threads' attached files were removed, or would be.
        #[serde(default, skip_serializing_if = "report::is_zero")]
        threads: u64,
    },
    Cleaned(Cleaned),
    Waited {
        dispatches: Vec<DispatchStatus>,
    },
    Stopping {
        agents_alive: u32,
        lease_s: u64,
    },
    EndOfEvents {
        next_seq: u64,
    },
    Pong,
    /// The answer to a bead operation, as JSON.
    Beads {
        answer: String,
    },
    RunUp {
        run_id: String,
        /// As in [`Reply::Spawned`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        warnings: Vec<String>,
    },
    TasksStarted {
        id: String,
        from_seq: u64,
        /// As in [`Reply::Spawned`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        warnings: Vec<String>,
    },
    TasksEnded(TasksEnded),
    ThreadOpened {
        thread_id: String,
    },
    /// The message is durable. A message that was sent before has its present state.
    MessageAccepted {
        thread_id: String,
        message_id: String,
        state: String,
    },
    /// The message, and the message that answers it if there is one.
    Message {
        thread_id: String,
        message: Box<MessageDoc>,
        answer: Option<Box<MessageDoc>>,
    },
    ThreadArchived {
        thread_id: String,
    },
    /// A setting was changed; the note says what is in force.
    ConfigSet {
        note: String,
    },
    Threads {
        threads: Vec<ThreadDoc>,
    },
    Thread(Box<ThreadInFull>),
    Adapters {
        adapters: Vec<AdapterDoc>,
    },
    Schedules {
        schedules: Vec<ScheduleDoc>,
    },
    Meetings {
        meetings: Vec<MeetingDoc>,
    },
    /// The names of the tools.
    Tools {
        tools: Vec<String>,
    },
    Tool(Box<ToolResult>),
    /// The questions that were not sent as items before.
    Questions {
        questions: Vec<QuestionDoc>,
    },
    #[serde(other)]
    Unknown,
}

/// How a run of a task list ended. `status` is `running` if it has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct TasksEnded {
    pub id: String,
    pub root: String,
    /// `completed`, `failed`, `limit`, `interrupted`, `invalid`, `environment`, `locked`,
    /// `error`; or `running`.
    pub status: String,
    pub reason: String,
    #[serde(default)]
    pub code: Option<String>,
    #[serde(default)]
    pub session: Option<u64>,
}
