//! How a session is opened with an agent that is spoken to by calls (the Agent Client Protocol),
//! and what it answers.
//!
//! ```text
//!   spawned ─▶ Greeting ── greeted ─▶ Session ── opened ─▶ Mode ─▶ Model ── set ─▶ Ready: prompts may be sent
//!                 │                      │    (no model is asked for)  ▲      ▲
//!                 │                      └─────────────────────────────┼──────┘
//!                 └──────────┬───────────┴──────────┬──────────────────┘
//!                            ▼                      ▼
//!                  refused, or not answered in time: its process is ended
//! ```
//!
//! Each step follows from a durable event, so a daemon that begins anew in the middle asks again
//! for the step that is due; the shim knows the call's key and carries it out once.

use crate::agent::permission::Policy;
use crate::agent::session_mode::Modes;
use serde::{Deserialize, Serialize};

/// How long an agent may take to answer a call of ours, where the configuration says nothing. A
/// prompt is no such call: its agent is watched for signs of life.
pub const CALL_TIMEOUT_S: u64 = 120;
/// How long a turn may go on after its agent was asked to stop it.
pub const INTERRUPT_TIMEOUT_S: u64 = 30;

/// The terms of an agent that is spoken to by calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    /// Awake seconds that it has for the answer to a call of ours that is no prompt.
    pub timeout_s: u64,
}

/// How far it has come in the present process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Opening {
    /// Prompts may be sent.
    #[default]
    Ready,
    /// It has been greeted, and has not told what it can.
    Greeting,
    /// Its session is being made, or `load`ed.
    Session { load: Option<String> },
    /// The mode that the policy needs is being set; the model after it, where `model_by` says how.
    Mode { by: String, mode: String, otherwise: Option<String>, model_by: Option<String> },
    /// The model asked for is being set, in the way the agent told.
    Model { by: String },
}

/// A call of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    Greet,
    /// `agent`: the name it gave itself. `permissions`: some can be told at once what they may do.
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
    /// The mode that the agent left; `nth` tells one such call from another.
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

/// What the agent answers. For the harness alone: nobody who watches agents learns from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum CallAnswer {
    Greeted {
        /// Its name and version.
        agent: String,
        /// It can go on with a session of an earlier process.
        loads: bool,
    },
    Opened {
        /// Of a new session; one that was loaded has its id already.
        session_id: Option<String>,
        model: Option<String>,
        /// How the model can be changed, where it can.
        model_by: Option<String>,
        /// The modes it offers, where it has such.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        modes: Option<Modes>,
    },
    ModeSet {},
    ModelSet {},
    /// The tool call of this id has begun: all of it has been said.
    ToolRuns {
        #[serde(default)]
        id: String,
    },
    /// The tool call of this id has given out something, and has not ended.
    ToolOutput {
        id: String,
    },
    /// The session went over to another mode, and nobody asked for that.
    ModeChanged {
        mode: String,
    },
    /// What it says or thinks next is a piece of this message; another name begins another message.
    Says {
        message: String,
    },
    /// The turn that runs was broken off from outside, whatever its end will say.
    BrokeOff {},
    Refused {
        /// The call's name.
        call: String,
        message: String,
        /// Nobody is logged in, or the key is wrong: asking again would not help.
        auth: bool,
    },
}

/// A call that came to nothing, for which its process is ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallFailure {
    pub call: String,
    pub reason: String,
    /// Another process would fare no better.
    pub for_good: bool,
}

impl Opening {
    /// The call that is waited for, by name.
    pub fn awaits(&self) -> Option<&'static str> {
        Some(match self {
            Self::Ready => return None,
            Self::Greeting => GREET,
            Self::Session { load: None } => NEW,
            Self::Session { load: Some(_) } => LOAD,
            Self::Mode { .. } => MODE,
            Self::Model { .. } => MODEL,
        })
    }
}

/// The calls' names, in events and reasons.
pub const GREET: &str = "initialize";
pub const NEW: &str = "session/new";
pub const LOAD: &str = "session/load";
pub const MODE: &str = "set mode";
pub const MODEL: &str = "set model";
/// Why a request for permission was denied that stood in the way of an interrupt.
pub const INTERRUPTED: &str = "interrupted";
pub const INTERRUPT: &str = "interrupt";
