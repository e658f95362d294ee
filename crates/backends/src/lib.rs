//! The agent CLIs: what to run, what to write to its stdin, and what its output means.
//!
//! Architecture invariant: nothing here starts a process, reads a clock or keeps a file. A backend
//! is a value; [`Backend::command_line`] describes a process for the supervisor to start, and a
//! [`Parser`] is a pure function from bytes to events. So the daemon can throw a parser away at any
//! line boundary and start a new one there: no parser knows anything across lines except how many
//! bytes it has seen.
//!
//! One module per CLI, command line and parser apart:
//!
//! | name | module | stdin | sessions |
//! |---|---|---|---|
//! | `subprocess` | [`subprocess`] | the prompt, then closed | none |
//! | `rehearsal` | [`rehearsal`] | JSON lines, several turns | resumable |
//! | `claude-code` | [`claude_code`] | stream-json, several turns | resumable |
//! | `codex` | [`codex`] | the prompt, then closed | resumable, a process for each turn |
//! | `acp` | [`acp`] | JSON-RPC, several turns | resumable where the agent can |

pub mod stream;

pub mod acp;
pub mod claude_code;
pub mod codex;
mod env_ownership;
mod error;
mod flags;
mod launch;
pub mod rehearsal;
mod replay;
pub mod subprocess;
mod transcript;

pub use env_ownership::is_of_another;
pub use error::BackendError;
pub use flags::flag_words;
pub use launch::{
    Briefed, Capabilities, Collector, Command, CommandLine, Interrupt, LaunchFile, LaunchSpec,
    ProjectSettings, StdinMode, find_program, named_program, seen_from,
};
pub use replay::{ParseError, parse_all, settle};
pub use stream::assembly::Assembly;
pub use stream::lines::{LINE_LIMIT, Line, Parser};
pub use stream::native_events::{KINDS, is_observed};
pub use transcript::{Place, Transcripts};

use muleteer_model::agent::acp_handshake::Call;
use muleteer_model::agent::ask::{Answer, Ask};
use muleteer_model::agent::permission::Policy;
use std::ffi::OsStr;
use std::fmt::Debug;

/// One agent CLI.
pub trait Backend: Send + Sync + Debug {
    /// `subprocess`, `rehearsal`, `claude-code`, `codex` or `acp`.
    fn name(&self) -> &'static str;

    fn capabilities(&self) -> Capabilities;

    /// The process to start for `launch`.
    ///
    /// # Errors
    /// What is missing and how to get it: the CLI itself, a command, an absolute path.
    fn command_line(&self, launch: &LaunchSpec) -> Result<CommandLine, BackendError>;

    /// It is spoken to by calls: a session is opened before the first prompt ([`Backend::call`]),
    /// and what it says comes in pieces, which an [`Assembly`] puts together.
    fn by_calls(&self) -> bool {
        false
    }

    /// The bytes of a call that opens a session (`session`: the open one); `None` where there are
    /// none. `settings`: those of the directory that the session is opened in.
    fn call(
        &self,
        _call: &Call,
        _session: Option<&str>,
        _settings: ProjectSettings,
    ) -> Option<Vec<u8>> {
        None
    }

    /// The bytes that bring one prompt to the agent's stdin. `key` comes back in the `prompt` event
    /// that is its receipt, where the CLI gives one ([`Capabilities::receipts`]).
    fn prompt(&self, session: Option<&str>, key: &str, text: &str) -> Vec<u8>;

    /// The bytes that run a command of the CLI's own (`/compact`); `None` where it has none. A
    /// prompt never runs one: [`Backend::prompt`] brings every text to the model.
    fn cli_command(&self, session: Option<&str>, key: &str, command: &str) -> Option<Vec<u8>> {
        let _ = (session, key, command);
        None
    }

    /// The bytes that end the running turn and keep the session; `None` where only a signal does
    /// (SIGINT to the group).
    fn interrupt(&self, session: Option<&str>, key: &str) -> Option<Vec<u8>>;

    /// The bytes that tell the agent an answer to what it asked; `None` where it cannot be told
    /// ([`Capabilities::asks`]). Told twice under one id, the second is nothing new to it.
    fn answer(&self, id: &str, ask: &Ask, answer: &Answer) -> Option<Vec<u8>> {
        let _ = (id, ask, answer);
        None
    }

    /// Whether an answer can be told as it is meant. One that cannot is refused to whoever gives
    /// it.
    fn can_say(&self, ask: &Ask, answer: &Answer) -> bool {
        let _ = (ask, answer);
        true
    }

    /// Adds to `args` what makes its CLI keep its agent from changing files, as far as it can: for
    /// who only judges, where no sandbox of ours holds it. What is configured about rights stays as
    /// it is.
    fn keep_from_writing(&self, _args: &mut Vec<String>) {}

    /// Whether a policy can be kept with it.
    fn keeps(&self, policy: &Policy) -> bool {
        policy.is_open() || self.capabilities().asks
    }

    /// The first of the words of its command and arguments ([`flag_words`]) by which its agent
    /// could do what the policy, which is not open, restricts.
    fn loosened_by(&self, policy: &Policy, words: &[String]) -> Option<String> {
        let _ = (policy, words);
        None
    }

    /// Its transcripts, where they tell what became of a prompt.
    fn transcripts(&self) -> Option<&'static dyn Transcripts> {
        None
    }

    /// The bytes that make the running process go on with another model, answered by a `reply` with
    /// `key`; `None` where only a new process can. `by` is what the session told of the way
    /// ([`muleteer_model::agent::acp_handshake::CallAnswer::Opened`]).
    fn set_model(
        &self,
        session: Option<&str>,
        by: Option<&str>,
        key: &str,
        model: &str,
    ) -> Option<Vec<u8>> {
        let _ = (session, by, key, model);
        None
    }

    /// A parser at a line boundary of this CLI's stdout. Its byte count starts at 0 there.
    fn parser(&self) -> Box<dyn Parser>;
}

/// Every name that is printed, documented and accepted.
pub const NAMES: [&str; 5] = ["acp", "claude-code", "codex", "rehearsal", "subprocess"];

/// The backend of that name; configuration keys are spelled with `_`, and both spellings work.
///
/// # Errors
/// [`BackendError::UnknownName`], with the nearest name.
pub fn by_name(name: &str) -> Result<&'static dyn Backend, BackendError> {
    match name.replace('_', "-").as_str() {
        "subprocess" => Ok(&subprocess::Subprocess),
        "rehearsal" => Ok(&rehearsal::Rehearsal),
        "claude-code" | "claude" => Ok(&claude_code::ClaudeCode),
        "codex" => Ok(&codex::Codex),
        "acp" => Ok(&acp::Acp),
        _ => Err(BackendError::unknown_name(name)),
    }
}

/// `backend: auto`: the first real agent CLI on `path` (the value of the PATH the agent will get).
/// Never `subprocess` or `rehearsal`: those are asked for by name.
///
/// # Errors
/// [`BackendError::NothingInstalled`], which says how to get one.
pub fn auto(path: Option<&OsStr>) -> Result<&'static dyn Backend, BackendError> {
    let known: [(&str, &'static dyn Backend); 2] =
        [(claude_code::PROGRAM, &claude_code::ClaudeCode), (codex::PROGRAM, &codex::Codex)];
    let first = known.into_iter().find(|(program, _)| find_program(program, path).is_some());
    first.map(|(_, backend)| backend).ok_or(BackendError::NothingInstalled)
}
