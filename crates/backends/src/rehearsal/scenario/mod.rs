//! The format of a scenario (docs/rehearsal.md), version 1.

mod check;
mod fault;
mod values;

pub use fault::ScenarioFault;
pub use values::{Size, Span};

use muleteer_model::agent::event::{AgentEvent, TurnError};
use muleteer_model::agent::result::ResultStatus;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use values::short;

/// The version this build reads.
pub const VERSION: u32 = 1;

/// What is played where no scenario is named: a small file, committed.
pub const DEFAULT: &str = include_str!("../default-scenario.yaml");

/// A scenario that was read and checked.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub v: u32,
    #[serde(default)]
    pub description: String,
    /// What the agent says its model is, unless `--model` says it.
    #[serde(default)]
    pub model: Option<String>,
    /// More names for `${name}`; a value may use names of the environment and built-in ones.
    #[serde(default)]
    pub vars: BTreeMap<String, String>,
    /// A prompt takes the first turn not yet taken whose `when` holds.
    pub turns: Vec<Turn>,
    /// What is done for a prompt that no turn is left for; unless given, a result that says so.
    #[serde(default = "nothing_more")]
    pub otherwise: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turn {
    #[serde(default)]
    pub when: When,
    /// May be taken again and again.
    #[serde(default)]
    pub repeat: bool,
    pub steps: Vec<Step>,
}

/// All that is named must hold; nothing named always holds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct When {
    /// Is somewhere in the prompt.
    #[serde(default)]
    pub prompt: Option<String>,
    /// Each variable has that value.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// One thing the agent does. After it is done, a resumed agent does not do it again.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    Say(String),
    Think(String),
    Write(FileText),
    Append(FileText),
    Run(Run),
    /// Everything in the working directory; nothing to commit is no failure.
    Commit(String),
    ToolCall(ToolCall),
    Usage(Usage),
    Wait(Span),
    Ask(Ask),
    /// An agent event, as it is.
    Emit(AgentEvent),
    /// A line of stdout, as it is.
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

    Result(ResultDoc),
    InvalidResult(Value),
    Fail(Fail),
    Exit(i32),
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileText {
    /// Relative to the working directory; missing directories are made.
    pub path: String,
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub command: String,
    /// Go on when it fails; else a failure ends the turn.
    pub may_fail: bool,
    /// Ended after this long.
    pub timeout: Option<Span>,
}

short!(Run, "a command, or a map with `command`", |command| Run { command, may_fail: false, timeout: None }, {
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
    /// What a permission is asked for.
    #[serde(default)]
    pub permission: Option<String>,
    #[serde(default)]
    pub question: Option<String>,
    /// Goes on unanswered after this long; without it, waits for the answer.
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
    /// Only the first time: a resumed agent goes on behind it.
    #[serde(default)]
    pub once: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hang {
    #[serde(default, rename = "for")]
    pub patience: Option<Span>,
    /// Hears no interrupt either.
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
    /// How long the grandchild lives.
    #[serde(rename = "for")]
    pub life: Span,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResultDoc {
    pub status: ResultStatus,
    pub summary: String,
    #[serde(default)]
    pub changes: Vec<String>,
    #[serde(default)]
    pub issues: Vec<String>,
    #[serde(default)]
    pub questions: Vec<String>,
    #[serde(default)]
    pub pr_url: Option<String>,
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
    vec![Step::Result(ResultDoc {
        status: ResultStatus::Success,
        summary: "There is nothing more in this scenario.".to_string(),
        changes: vec![],
        issues: vec![],
        questions: vec![],
        pr_url: None,
    })]
}

fn flood_line() -> Size {
    Size(1024)
}

impl Scenario {
    /// Reads and checks a scenario; `file` is what its errors call it.
    ///
    /// # Errors
    /// The first fault, with its place and what to do.
    pub fn parse(text: &str, file: &str) -> Result<Self, ScenarioFault> {
        check::parse(text, file)
    }

    /// The steps of a turn, by the index [`crate::rehearsal::session::Session`] keeps; the one
    /// behind the last is `otherwise`.
    pub fn steps(&self, turn: usize) -> &[Step] {
        self.turns.get(turn).map_or(&self.otherwise, |turn| &turn.steps)
    }
}
