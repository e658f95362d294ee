//! The data that the supervisor gives a backend for one start, and the command line it gets back.

use crate::BackendError;
use muleteer_model::agent::permission::Policy;
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The abilities of a CLI. They belong to the backend, not to one start: the dispatch records them
/// when it is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// It accepts further prompts on stdin while it runs.
    pub multi_turn: bool,
    /// A new process can resume the session of a dead one.
    pub resumable: bool,
    /// The CLI itself enforces a result schema and reports the document in `TurnResult.structured`.
    pub structured: bool,
    /// It echoes a prompt's key when it accepts the prompt (`prompt` event with `key`).
    pub receipts: bool,
    /// A prompt that arrives during a turn becomes part of that turn.
    pub folds: bool,
    pub briefed: Briefed,
    pub interrupt: Interrupt,
    /// It asks for permission, or asks questions, and waits for the answer
    /// ([`crate::Backend::answer`]).
    pub asks: bool,
    /// It has the permission mode `auto`, in which the CLI itself judges each action.
    pub judges_actions: bool,
}

/// Where an agent gets the text that accompanies its task: its role's text, and the rules of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Briefed {
    /// Appended to the CLI's own system prompt.
    InSystemPrompt,
    /// In front of the first prompt ([`muleteer_model::agent::prompt::dispatch`]).
    InFirstPrompt,
    /// The agent gets the task unchanged, so the task must say everything that the agent needs to
    /// know.
    Nowhere,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    /// [`crate::Backend::interrupt`] gives the bytes; the process stays alive.
    ByStdin,
    /// SIGINT to the group; the process ends.
    BySignal,
}

/// Everything that a backend needs to know to start one agent process.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LaunchSpec {
    /// The agent's working directory, absolute.
    pub cwd: PathBuf,
    /// `agents/<id>/` in the state directory, absolute. Files that only this agent reads go there.
    pub agent_dir: PathBuf,
    /// The `muleteer` executable, absolute (`rehearsal` runs it).
    pub muleteer: PathBuf,
    /// The PATH the agent will get; programs are looked up there.
    pub path: Option<String>,
    pub model: Option<String>,
    /// The remainder of these limits: a resumed session gets what earlier processes did not use.
    pub max_turns: Option<u32>,
    pub budget_usd: Option<f64>,
    /// The role's text, appended to the CLI's own system prompt.
    pub system_prompt_append: Option<String>,
    /// The session of a dead process that this process resumes.
    pub resume: Option<String>,
    /// The id for a new session (a UUID), if the CLI lets us choose it.
    pub session_id: Option<String>,
    /// The `acp` agent that the user asked for by name.
    pub agent: Option<String>,
    /// `--command` or `backends.<name>.command`. It replaces the CLI's program, or is the agent
    /// itself.
    pub command: Option<Command>,
    /// `backends.<name>.args`, after our own.
    pub args: Vec<String>,
    /// `backends.<name>.env` and `--env`, in that order. They are set last, so they win over all
    /// others.
    pub env: Vec<(String, String)>,
    /// Names of the variables that the agent inherits from the client that requested the dispatch.
    pub inherited: Vec<String>,
    /// The permission policy: which actions the agent may take without asking.
    pub permissions: Policy,
    /// Whether the CLI applies its own settings files in the agent's directory.
    pub project_settings: ProjectSettings,
    /// The JSON schema of the requested result.
    pub result_schema: Option<Value>,
    /// The agent runs as root, and our sandbox or a container limits it.
    pub sandboxed_root: bool,
    /// The scenario file of a rehearsal, absolute.
    pub scenario: Option<PathBuf>,
    /// Muleteer's MCP server, if the agent has tools of it.
    pub tools: Option<ToolServer>,
    /// The collector that receives this daemon's spans (OTLP over HTTP). The CLI sends its own
    /// there too.
    pub telemetry: Option<Collector>,
}

/// Muleteer's MCP server, which the CLI starts as its child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolServer {
    /// The `muleteer` executable, absolute: the CLI's PATH need not have it.
    pub program: PathBuf,
    /// The variables that it needs. Codex passes only a few of its own to a server.
    pub env: Vec<(String, String)>,
    /// The longest call, in whole seconds. After it the CLI gives up the call.
    pub longest_call: Duration,
}

impl ToolServer {
    /// The server's name, by which agents see its tools.
    pub const NAME: &str = "muleteer";
    /// The longest start of the server, in seconds.
    pub const LONGEST_START_S: u64 = 60;
}

/// Whether the CLI applies a repository's settings for it. Such settings run programs before the
/// user is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProjectSettings {
    #[default]
    Count,
    /// The user has not trusted the repository's settings.
    Ignored,
    /// The agent judges the repository: no settings, hooks, MCP servers, skills or instructions are
    /// loaded, neither the repository's nor those of its own home.
    Nothing,
}

/// Where the daemon sends its own spans and metrics, as complete URLs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collector {
    /// The base URL before `/v1/…`, for signals that have no URL of their own.
    pub base: Option<String>,
    pub traces: Option<String>,
    pub metrics: Option<String>,
}

/// A command in either of the two forms that the configuration accepts.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub enum Command {
    /// Runs under `sh -c`.
    Shell(String),
    Argv(Vec<String>),
}

/// The process to start. Its environment is the one that the supervisor passes to every agent,
/// minus `env_remove`, plus `env`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// `argv[0]` is an absolute path. No prompt and no secret is in it, because other users can
    /// read a process's arguments.
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub env_remove: Vec<String>,
    pub stdin: StdinMode,
    /// Files that the supervisor writes before the start, completely and with mode 0600, replacing
    /// existing ones. It creates their directories with mode 0700.
    pub files: Vec<LaunchFile>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StdinMode {
    /// Stays open for further prompts. Closing it asks the agent to finish and exit.
    Open,
    /// Closed after the first prompt, because the agent reads to end of file before it works.
    CloseAfterPrompt,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchFile {
    pub path: PathBuf,
    pub contents: String,
}

/// A CLI whose program can be replaced by a configured command.
pub(crate) struct Cli {
    pub backend: &'static str,
    pub program: &'static str,
    /// The hint if the program is missing.
    pub get: &'static str,
    /// The hint if the command is an empty list.
    pub empty: &'static str,
}

impl Cli {
    /// Returns the words before our flags: the program, or the configured command that replaces it.
    pub fn words(&self, launch: &LaunchSpec) -> Result<Vec<String>, BackendError> {
        let words = match &launch.command {
            None => vec![self.program.to_string()],
            Some(Command::Argv(words)) if !words.is_empty() => words.clone(),
            Some(Command::Argv(_)) => {
                let what = "a program in its command";
                return Err(BackendError::Incomplete {
                    backend: self.backend,
                    what,
                    hint: self.empty,
                });
            }
            Some(Command::Shell(text)) if is_one_word(text) => vec![text.clone()],
            // The script uses `exec`, so the process that we supervise is the agent and not a
            // shell.
            Some(Command::Shell(text)) => {
                let script = format!("exec {text} \"$@\"");
                return Ok(["/bin/sh", "-c", &script, self.program].map(str::to_string).to_vec());
            }
        };
        let found = launch.find_program(&words[0]).ok_or_else(|| BackendError::ProgramMissing {
            backend: self.backend,
            program: words[0].clone(),
            get: self.get,
        })?;
        Ok(std::iter::once(found).chain(words.into_iter().skip(1)).collect())
    }
}

fn is_one_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "/._-+@".contains(c))
}

impl LaunchSpec {
    /// Returns the absolute path of a program that the agent's command names. The lookup uses the
    /// agent's PATH, or the agent's directory for a name with a `/`.
    pub(crate) fn find_program(&self, program: &str) -> Option<String> {
        let found =
            find_program(&seen_from(&self.cwd, program), self.path.as_deref().map(OsStr::new))?;
        Some(found.to_string_lossy().into_owned())
    }
}

/// Resolves a program name against `cwd`. Only a relative name that contains a `/` changes.
pub fn seen_from(cwd: &Path, program: &str) -> String {
    if !program.contains('/') {
        return program.into();
    }
    // Collecting the components removes every `.` component.
    cwd.join(program).components().collect::<PathBuf>().to_string_lossy().into_owned()
}

/// Returns the program that a configured command runs instead of the backend's CLI (`--backend
/// codex --command ./mine`, or the first word of a list). `None` if a shell resolves it, or if no
/// program is named.
pub fn named_program(command: &Command, in_a_shell: bool) -> Option<&str> {
    match command {
        Command::Argv(words) => words.first().map(String::as_str),
        Command::Shell(text) => Some(text.as_str()).filter(|text| !in_a_shell && is_one_word(text)),
    }
}

/// Returns the absolute path of `program` on `path`; a name with a `/` is used unchanged. Relative
/// entries of PATH are skipped, because they mean another directory for the agent.
pub fn find_program(program: &str, path: Option<&OsStr>) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| is_executable(path));
    }
    std::env::split_paths(path?)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(program))
        .find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    }
    #[cfg(not(unix))]
    {
        path.is_file()
    }
}
