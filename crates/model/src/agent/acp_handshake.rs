//! The handshake with an agent that speaks by calls (Agent Client Protocol): its states, our calls,
//! and the agent's answers.
//!
//! ```text
//!   spawned ─▶ Greeting ── greeted ─▶ Session ── opened ─▶ Mode ─▶ Model ── set ─▶ Ready
//!                 │                      │    (no model is requested)  ▲      ▲
//!                 │                      └─────────────────────────────┼──────┘
//!                 └──────────┬───────────┴──────────┬──────────────────┘
//!                            ▼                      ▼
//!                  refused, or not answered in time: its process is terminated
//! ```
//!
//! Each step follows from a durable event. So a daemon that restarts in the middle makes the due
//! call again; the shim knows the call's key and carries it out once.

use crate::agent::event::AgentEvent;
use crate::agent::permission::Policy;
use crate::agent::session_mode::Modes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The time in which an agent must answer a call of ours, if the configuration sets none. It does
/// not apply to prompts: a working agent is watched for signs of life.
pub const CALL_TIMEOUT_S: u64 = 120;
/// The time in which a turn must end after an interrupt was requested.
pub const INTERRUPT_TIMEOUT_S: u64 = 30;

/// The time in which the process must end after the end of its input.
pub const EXIT_TIMEOUT_S: u64 = 10;
/// The same for an agent that is known not to exit (gemini with an MCP server).
pub const NO_EXIT_TIMEOUT_S: u64 = 2;

/// The settings of an agent that speaks by calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Calls {
    /// The awake seconds within which the agent must answer a call of ours other than a prompt.
    pub timeout_s: u64,
}

/// The state of the handshake in the present process.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Opening {
    /// Prompts may be sent.
    #[default]
    Ready,
    /// The agent was greeted and has not reported its capabilities.
    Greeting,
    /// The session is being created, or loaded if `load` is set.
    Session { load: Option<String> },
    /// The mode that the policy needs is being set; then the model, if one is to be set.
    Mode { by: String, mode: String, otherwise: Option<String>, then: Option<ModelStep> },
    /// The model of the process is being set. A model that somebody requests meanwhile is set when
    /// the session is open: the answer must belong to one request.
    Model(ModelStep),
}

/// A model that is to be set, and the method that the agent named for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelStep {
    pub by: String,
    pub model: String,
}

/// A call of ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    Greet,
    /// Opens a session. `agent` is the name that the agent gave itself. `permissions` is for agents
    /// that accept their policy at once.
    Open {
        load: Option<String>,
        cwd: String,
        agent: String,
        permissions: Policy,
    },
    SetMode {
        by: String,
        mode: String,
    },
    /// Sets the mode that the agent left; `nth` distinguishes repeated calls.
    RestoreMode {
        by: String,
        mode: String,
        nth: u32,
    },
    SetModel {
        by: String,
        model: String,
    },
}

/// The agent's answers and reports for `life`. They are not shown to those who watch agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum CallAnswer {
    Greeted {
        /// The agent's name and version.
        agent: String,
        /// The agent can load a session of an earlier process.
        loads: bool,
    },
    Opened {
        /// The id of a new session; a loaded session has its id already.
        session_id: Option<String>,
        model: Option<String>,
        /// The method that changes the model, if there is one.
        model_by: Option<String>,
        /// The modes that the agent offers, if it has modes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        modes: Option<Modes>,
    },
    ModeSet {},
    ModelSet {
        /// The model of the session after the change, if the agent reports it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
    },
    /// The agent announced the tool call of this id. It will report the input later, or ask.
    ToolAnnounced {
        id: String,
    },
    /// The tool call of this id has begun: the agent has reported all of it.
    ToolRuns {
        #[serde(default)]
        id: String,
    },
    /// The tool call of this id has produced output, and has not ended.
    ToolOutput {
        id: String,
    },
    /// The session switched to another mode without a request of ours.
    ModeChanged {
        mode: String,
    },
    /// The text or thought that follows is a piece of this message; another name begins another
    /// message.
    Says {
        message: String,
    },
    /// The running turn was aborted from outside, whatever its end will report.
    BrokeOff {},
    /// The agent works on a prompt. If the turn ends without an answer of the model, the model's
    /// API failed, whatever the turn's end reports.
    TurnRuns {},
    Refused {
        /// The call's name.
        call: String,
        message: String,
        /// Nobody is logged in, or the key is wrong: a retry would not help.
        auth: bool,
        /// The agent says that the session to load does not exist.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        missing: bool,
    },
}

/// A failed call, because of which its process is terminated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallFailure {
    pub call: String,
    pub reason: String,
    /// A retry in another process would not help.
    pub for_good: bool,
    /// The agent no longer has the session that it was to load.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub missing: bool,
}

/// Whether an agent that loads a session reports the session's past by such an event. Between the
/// start of the process and the next prompt, these events are that past, and not news.
pub fn may_be_past(event: &AgentEvent) -> bool {
    matches!(
        event,
        AgentEvent::Text { .. }
            | AgentEvent::Thinking { .. }
            | AgentEvent::Prompt { .. }
            | AgentEvent::ToolCall { .. }
            | AgentEvent::ToolResult { .. }
            | AgentEvent::Subagent { .. }
            | AgentEvent::Usage { call: None, .. }
            | AgentEvent::Result(_)
    )
}

impl Opening {
    /// Returns the name of the call whose answer is awaited.
    pub fn awaits(&self) -> Option<&'static str> {
        Some(match self {
            Self::Ready => return None,
            Self::Greeting => GREET,
            Self::Session { load: None } => NEW,
            Self::Session { load: Some(_) } => LOAD,
            Self::Mode { .. } => MODE,
            Self::Model(_) => MODEL,
        })
    }
}

/// The names of the calls, in events and reasons.
pub const GREET: &str = "initialize";
pub const NEW: &str = "session/new";
pub const LOAD: &str = "session/load";
pub const MODE: &str = "set mode";
pub const MODEL: &str = "set model";
/// The reason for the denial of requests that were open at an interrupt.
pub const INTERRUPTED: &str = "interrupted";
pub const INTERRUPT: &str = "interrupt";
/// The end of input, which asks the process to exit.
pub const EXIT: &str = "end of input";
