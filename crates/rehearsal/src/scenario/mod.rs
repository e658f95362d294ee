//! The format of a scenario (docs/guides/rehearsal.md), version 1.

mod check;
mod fault;
mod strict;
mod values;

pub use fault::ScenarioFault;
pub use values::{Size, Span};

use muleteer_model::agent::event::{AgentEvent, TurnError};
use muleteer_model::agent::result::{AgentResult, ResultStatus};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use values::short;

/// The version that this build reads.
pub const VERSION: u32 = 1;

/// The scenario that is played if none is named: a small file is written and committed.
pub const DEFAULT: &str = include_str!("../default-scenario.yaml");

/// A scenario that was read and checked.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub v: u32,
    #[serde(default)]
    pub description: String,
    /// The model's name in the agent's events, unless `--model` gives one.
    #[serde(default)]
    pub model: Option<String>,
    /// More names for `${name}`. A value may use names of the environment and built-in ones.
    #[serde(default)]
    pub vars: BTreeMap<String, String>,
    /// A prompt starts the first unused turn whose `when` holds.
    pub turns: Vec<Turn>,
    /// The steps for a prompt when no turn is left. The default is a result that says so.
    #[serde(default = "nothing_more")]
    pub otherwise: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turn {
    #[serde(default)]
    pub when: When,
    /// The turn can be used repeatedly.
    #[serde(default)]
    pub repeat: bool,
    pub steps: Vec<Step>,
}

/// All named conditions must hold. Without any, it always holds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct When {
    /// The prompt contains this text.
    #[serde(default)]
    pub prompt: Option<String>,
    /// Each variable has this value.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// One action of the agent. A resumed agent does not repeat a step that is done.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    Say(String),
    Think(String),
    Write(FileText),
    Append(FileText),
    Run(Run),
    /// Commits everything in the working directory. An empty commit is not a failure.
    Commit(String),
    ToolCall(ToolCall),
    Usage(Usage),
    Wait(Span),
    Ask(Ask),
    /// An agent event, printed unchanged.
    Emit(AgentEvent),
    /// A line of stdout, printed unchanged.
    Print(String),
    /// A line of stderr.
    Complain(String),

    Crash(Crash),
    Hang(Hang),
    Loop(Loop),
    Flood(Flood),
    Garbage(Garbage),
    LongLine(LongLine),
    IgnoreTerm(bool),
    Leak(Leak),

    Result(#[serde(deserialize_with = "strict::read")] AgentResult),
    InvalidResult(Value),
    Fail(Fail),
    Exit(i32),
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileText {
    /// Relative to the working directory; missing directories are created.
    pub path: String,
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub command: String,
    /// Continue after a failure; otherwise a failure ends the turn.
    pub may_fail: bool,
    /// The command is terminated after this time.
    pub timeout: Option<Span>,
}

short!(Run, "a command, or a map with `command`",
    |command| Run { command, may_fail: false, timeout: None }, {
    command: String, may_fail: bool = false, timeout: Option<Span> = None
});

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    pub name: String,
    #[serde(default)]
    pub input: Value,
    #[serde(default = "yes")]
    pub ok: bool,
    #[serde(default)]
    pub text: String,
    #[serde(default)]
    pub exit_code: Option<i64>,
    #[serde(default)]
    pub takes: Span,
    /// `false`: the call never returns.
    #[serde(default = "yes")]
    pub returns: bool,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    #[serde(default)]
    pub input: u64,
    #[serde(default)]
    pub output: u64,
    #[serde(default)]
    pub cache_read: u64,
    #[serde(default)]
    pub cache_write: u64,
    #[serde(default)]
    pub cost_usd: f64,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// The action for which the agent asks permission.
    #[serde(default)]
    pub permission: Option<String>,
    #[serde(default)]
    pub question: Option<String>,
    /// Continues without an answer after this time. Without it, waits for the answer.
    #[serde(default, rename = "for")]
    pub patience: Option<Span>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Crash {
    #[serde(default)]
    pub code: Option<i32>,
    /// `KILL`, `SEGV`, `ABRT`, `TERM` or `INT`.
    #[serde(default)]
    pub signal: Option<String>,
    /// Only the first time: a resumed agent continues after this step.
    #[serde(default)]
    pub once: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hang {
    #[serde(default, rename = "for")]
    pub patience: Option<Span>,
    /// Ignores interrupts as well.
    #[serde(default)]
    pub deaf: bool,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loop {
    pub name: String,
    #[serde(default)]
    pub input: Value,
    pub times: u32,
    #[serde(default)]
    pub ok: bool,
    #[serde(default)]
    pub text: String,
    #[serde(default)]
    pub every: Span,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flood {
    pub bytes: Size,
    #[serde(default = "flood_line")]
    pub line: Size,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Garbage {
    pub bytes: Size,
    #[serde(default)]
    pub seed: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongLine {
    pub bytes: Size,
    #[serde(default = "yes")]
    pub newline: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leak {
    /// The lifetime of the grandchild process.
    #[serde(rename = "for")]
    pub life: Span,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fail {
    #[serde(deserialize_with = "values::turn_error")]
    pub error: TurnError,
    #[serde(default)]
    pub status: Option<u16>,
    #[serde(default)]
    pub text: String,
}

fn yes() -> bool {
    true
}

fn nothing_more() -> Vec<Step> {
    let summary = "This scenario has no more steps.";
    vec![Step::Result(AgentResult::new(ResultStatus::Success, summary))]
}

fn flood_line() -> Size {
    Size(1024)
}

impl Scenario {
    /// Reads and checks a scenario; `file` is its name in errors.
    ///
    /// # Errors
    /// The first fault, with its position and a hint.
    pub fn parse(text: &str, file: &str) -> Result<Self, ScenarioFault> {
        check::parse(text, file)
    }

    /// Returns the steps of a turn by the index that [`crate::session::Session`] stores.
    /// The index after the last turn is `otherwise`.
    pub fn steps(&self, turn: usize) -> &[Step] {
        self.turns.get(turn).map_or(&self.otherwise, |turn| &turn.steps)
    }
}
