//! The agent CLIs: what to run, what to write to its stdin, and what its output means.
//!
//! Architecture invariant: nothing here starts a process, reads a clock or writes a file. A backend
//! is a value; [`Backend::command_line`] describes a process for the supervisor to start, and a
//! [`Parser`] is a pure function from bytes to events. A parser remembers nothing across lines
//! except how many bytes it has read. So the daemon can drop a parser at any line boundary and
//! start a new one there.
//!
//! One module per CLI, with the command line and the parser in separate files:
//!
//! | name | module | stdin | sessions |
//! |---|---|---|---|
//! | `subprocess` | [`subprocess`] | the prompt, then closed | none |
//! | `rehearsal` | [`rehearsal`] | JSON lines, several turns | resumable |
//! | `claude-code` | [`claude_code`] | stream-json, several turns | resumable |
//! | `codex` | [`codex`] | the prompt, then closed | resumable, a process for each turn |
//! | `acp` | [`acp`] | JSON-RPC, several turns | resumable where the agent can |
//! | `opencode` | [`opencode`] | the prompt, then closed | resumable, a process for each turn |
//! | `pi` | [`pi`] | the prompt, then closed | resumable, a process for each turn |

pub mod stream;

pub mod acp;
pub mod claude_code;
pub mod codex;
mod error;
mod flags;
mod launch;
pub mod opencode;
pub mod pi;
mod properties;
pub mod rehearsal;
pub mod subprocess;
mod transcript;

pub use error::BackendError;
pub use flags::flag_words;
pub use launch::{
    Briefed, Capabilities, Collector, Command, CommandLine, Interrupt, LaunchFile, LaunchSpec,
    ProjectSettings, StdinMode, ToolServer, find_program, named_program, seen_from,
};
pub use properties::agent_settings::SETTINGS as AGENT_SETTINGS;
pub use properties::sealed;
pub use properties::{
    Access, AgentSettings, Home, Program, RepositorySettings, TRAITS, Variable, home_path, homes,
    own_folders, passing, process_names, traits, variables,
};
pub use stream::assembly::Assembly;
pub use stream::lines::{LINE_LIMIT, Line, Parser};
pub use stream::live::{Live, LiveReader};
pub use stream::native_events::{KINDS, is_observed};
pub use stream::replay::{ParseError, parse_all, settle};
pub use transcript::{Place, Transcripts};
pub use variables::Variables;

use muleteer_model::agent::acp_handshake::Call;
use muleteer_model::agent::ask::{Answer, Ask};
use muleteer_model::agent::backend::Traits;
use muleteer_model::agent::permission::Policy;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::path::PathBuf;

/// One agent CLI.
pub trait Backend: Send + Sync + Debug {
    /// Returns the name in [`NAMES`].
    fn name(&self) -> &'static str;

    fn capabilities(&self) -> Capabilities;

    /// Returns the properties on which the rules of the model depend.
    fn traits(&self) -> Traits {
        Traits::default()
    }

    /// Returns the program that an agent runs if no command is configured.
    fn program(&self) -> Program {
        Program::Other
    }

    /// Whether `backend: auto` takes this CLI if it is the first one on PATH.
    fn is_automatic(&self) -> bool {
        false
    }

    /// Whether the CLI reaches models of any provider, so that it needs the keys of them all.
    fn has_any_provider(&self) -> bool {
        false
    }

    /// Returns the names of the CLI's processes, as the system shows them.
    fn process_names(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns true if a configured command that is one text runs in a shell, and does not replace
    /// the CLI's program. `agent` is the agent that the request names.
    fn runs_command_in_shell(&self, agent: Option<&str>) -> bool {
        let _ = agent;
        false
    }

    /// Returns true if `backend: NAME:AGENT` can name one of several agents.
    fn has_agents(&self) -> bool {
        false
    }

    fn variables(&self) -> Variables {
        Variables::default()
    }

    fn home(&self) -> Option<Home> {
        None
    }

    /// Returns true if this CLI creates that home when it does not exist.
    fn creates_home(&self, home: &Home) -> bool {
        self.home().as_ref() == Some(home)
    }

    /// Whether the CLI runs its commands in login shells, in which `/etc/profile` resets PATH.
    fn uses_login_shells(&self) -> bool {
        false
    }

    /// Returns the folder for the CLI's own files, below an agent's folder.
    fn own_folder(&self) -> Option<&'static str> {
        None
    }

    /// Returns the CLI's own configuration file that [`Backend::access`] needs.
    fn access_file(&self, variable: Variable<'_>) -> Option<PathBuf> {
        let _ = variable;
        None
    }

    /// Returns how the CLI reaches its model's API. `config` is the content of
    /// [`Backend::access_file`], empty if there is none; `args` are its configured arguments.
    fn access(&self, variable: Variable<'_>, config: &str, args: &[String]) -> Access {
        let _ = (variable, config, args);
        Access::default()
    }

    /// Returns which settings files of a repository the CLI loads: files that run programs before
    /// the user is asked. `agent` and `command` are those of the request or the configuration.
    fn repository_settings(
        &self,
        agent: Option<&str>,
        command: Option<&Command>,
    ) -> Option<RepositorySettings> {
        let _ = (agent, command);
        None
    }

    /// Returns the process to start for `launch`.
    ///
    /// # Errors
    /// Says what is missing and how to get it: the CLI itself, a command, or an absolute path.
    fn command_line(&self, launch: &LaunchSpec) -> Result<CommandLine, BackendError>;

    /// Returns true if the backend speaks JSON-RPC. The daemon then opens a session before the
    /// first prompt ([`Backend::call`]), and an [`Assembly`] joins the chunks of the agent's
    /// messages.
    fn by_calls(&self) -> bool {
        false
    }

    /// Returns the piece of the agent's text that a line of its stdout has, if its CLI prints
    /// pieces of a message before the message. Parsers leave such lines out.
    fn text_delta(&self, _line: &[u8]) -> Option<String> {
        None
    }

    /// Returns the bytes of a call that opens a session; `None` if the backend has no calls.
    /// `session` is the session that is already open, `settings` applies to the directory in which
    /// the session is opened. `tools` is Muleteer's MCP server, which the session gets.
    fn call(
        &self,
        _call: &Call,
        _session: Option<&str>,
        _settings: ProjectSettings,
        _tools: Option<&ToolServer>,
    ) -> Option<Vec<u8>> {
        None
    }

    /// Returns the bytes that deliver one prompt to the agent's stdin; by default, the text alone.
    /// `key` comes back in the `prompt` event that is the receipt, if the CLI gives one
    /// ([`Capabilities::receipts`]).
    fn prompt(&self, session: Option<&str>, key: &str, text: &str) -> Vec<u8> {
        let _ = (session, key);
        text.as_bytes().to_vec()
    }

    /// Returns the bytes that run a command of the CLI's own (`/compact`); `None` if it has none. A
    /// prompt never runs such a command: [`Backend::prompt`] delivers every text to the model.
    fn cli_command(&self, session: Option<&str>, key: &str, command: &str) -> Option<Vec<u8>> {
        let _ = (session, key, command);
        None
    }

    /// Returns the bytes that end the running turn and keep the session. `None` if only a signal
    /// can do that (SIGINT to the process group).
    fn interrupt(&self, session: Option<&str>, key: &str) -> Option<Vec<u8>> {
        let _ = (session, key);
        None
    }

    /// Returns the bytes that answer an ask of the agent; `None` if the backend cannot answer
    /// ([`Capabilities::asks`]). The agent ignores a second answer to the same id.
    fn answer(&self, id: &str, ask: &Ask, answer: &Answer) -> Option<Vec<u8>> {
        let _ = (id, ask, answer);
        None
    }

    /// Whether the backend can express this answer. The daemon rejects an answer that it cannot
    /// express, and tells the client that gave it.
    fn can_say(&self, ask: &Ask, answer: &Answer) -> bool {
        let _ = (ask, answer);
        true
    }

    /// Adds arguments to `args` that forbid the agent to change files, as far as the CLI can do
    /// that. It is for agents that only judge, where our sandbox does not confine them. If the
    /// configuration already sets permissions, they stay as they are.
    fn keep_from_writing(&self, _args: &mut Vec<String>) {}

    /// Whether the backend can enforce a policy.
    fn keeps(&self, policy: &Policy) -> bool {
        policy.is_open() || self.capabilities().asks
    }

    /// Returns the first word of the command and its arguments ([`flag_words`]) that would let the
    /// agent do what the policy restricts. The policy is not open.
    fn loosened_by(&self, policy: &Policy, words: &[String]) -> Option<String> {
        let _ = (policy, words);
        None
    }

    /// Returns the CLI's transcripts, if they record what happened to a prompt.
    fn transcripts(&self) -> Option<&'static dyn Transcripts> {
        None
    }

    /// Returns the bytes that switch the running process to another model. The agent answers with a
    /// `reply` event that has `key`. `None` if only a new process can use another model. `by` is
    /// how the session said that a model is set
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

    /// Returns a parser for this CLI's stdout, starting at a line boundary. Its byte count starts
    /// at 0.
    fn parser(&self) -> Box<dyn Parser>;
}

/// All backend names, as they are printed, documented and accepted.
pub const NAMES: [&str; 7] =
    ["acp", "claude-code", "codex", "opencode", "pi", "rehearsal", "subprocess"];

/// Returns all backends: first the agent CLIs, in the order in which `backend: auto` searches for
/// one of those that it may take ([`Backend::is_automatic`]).
pub fn all() -> [&'static dyn Backend; 7] {
    [
        &claude_code::ClaudeCode,
        &codex::Codex,
        &acp::Acp,
        &opencode::Opencode,
        &pi::Pi,
        &subprocess::Subprocess,
        &rehearsal::Rehearsal,
    ]
}

/// Returns the backend with that name. Configuration keys are spelled with `_`; both spellings
/// work.
///
/// # Errors
/// [`BackendError::UnknownName`], with the nearest name.
pub fn by_name(name: &str) -> Result<&'static dyn Backend, BackendError> {
    let asked = name.replace('_', "-");
    let is_asked =
        |backend: &&dyn Backend| backend.name() == asked || backend.program().is_named(&asked);
    all().into_iter().find(is_asked).ok_or_else(|| BackendError::unknown_name(name))
}

/// Resolves `backend: auto`: the first real agent CLI on `path`, the value of the PATH that the
/// agent will get. It takes Claude Code or Codex only: users name the others explicitly.
///
/// # Errors
/// [`BackendError::NothingInstalled`], which says how to get one.
pub fn auto(path: Option<&OsStr>) -> Result<&'static dyn Backend, BackendError> {
    let is_installed = |backend: &&dyn Backend| match backend.program() {
        Program::OnPath { name, .. } => find_program(name, path).is_some(),
        Program::Command { .. } | Program::Other => false,
    };
    let mut automatic = all().into_iter().filter(|backend| backend.is_automatic());
    automatic.find(is_installed).ok_or(BackendError::NothingInstalled)
}

/// Whether the MCP client with this name lets a call of a tool take hours, as long as it hears of
/// progress: Claude Code ends a call that is silent for 30 minutes, and nothing else by default.
pub fn waits_for_tools(mcp_client: &str) -> bool {
    mcp_client == "claude-code"
}
