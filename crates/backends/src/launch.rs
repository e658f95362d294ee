//! What the supervisor tells a backend about one start, and what it gets back.

use crate::BackendError;
use muleteer_model::agent::permission::Policy;
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// What a CLI can do. Decided per backend, not per start: the dispatch records it when it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Takes further prompts on stdin while it lives.
    pub multi_turn: bool,
    /// A new process can go on with the session of a dead one.
    pub resumable: bool,
    /// Sees itself that a result schema is kept, and reports the document in
    /// `TurnResult.structured`.
    pub structured: bool,
    /// Echoes a prompt's key when it takes it (`prompt` event with `key`).
    pub receipts: bool,
    /// A prompt that comes in the middle of a turn becomes part of it.
    pub folds: bool,
    pub briefed: Briefed,
    pub interrupt: Interrupt,
    /// Asks for permission, or asks questions, and waits for the answer
    /// ([`crate::Backend::answer`]).
    pub asks: bool,
}

/// Where an agent gets what is said beside its task: its role's text, and the rules of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Briefed {
    /// Appended to the CLI's own system prompt.
    InSystemPrompt,
    /// In front of the first prompt ([`muleteer_model::agent::prompt::dispatch`]).
    InFirstPrompt,
    /// It gets the task as it is. What it must know is part of that.
    Nowhere,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    /// [`crate::Backend::interrupt`] gives the bytes; the process goes on living.
    ByStdin,
    /// SIGINT to the group; the process ends.
    BySignal,
}

/// Everything a backend may need to know to start one agent process.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LaunchSpec {
    /// The agent's working directory, absolute.
    pub cwd: PathBuf,
    /// `agents/<id>/` in the state directory, absolute: where files that only this agent reads go.
    pub agent_dir: PathBuf,
    /// The `muleteer` executable, absolute (`rehearsal` runs it).
    pub muleteer: PathBuf,
    /// The PATH the agent will get; programs are looked up there.
    pub path: Option<String>,
    pub model: Option<String>,
    /// What is left of these limits: a resumed session gets what earlier processes did not use.
    pub max_turns: Option<u32>,
    pub budget_usd: Option<f64>,
    /// The role's text, appended to the CLI's own system prompt.
    pub system_prompt_append: Option<String>,
    /// The session of a dead process to go on with.
    pub resume: Option<String>,
    /// The id a new session shall have (a UUID), where the CLI lets us choose.
    pub session_id: Option<String>,
    /// The agent of `acp` that was asked for by name.
    pub agent: Option<String>,
    /// `--command` or `backends.<name>.command`: replaces the CLI's program, or is the agent.
    pub command: Option<Command>,
    /// `backends.<name>.args`, after our own.
    pub args: Vec<String>,
    /// `backends.<name>.env` and `--env`, in that order: set last, so they win over everything.
    pub env: Vec<(String, String)>,
    /// Names of the variables it gets from whoever asked for it.
    pub inherited: Vec<String>,
    /// What the agent may do without asking.
    pub permissions: Policy,
    /// Of the CLI itself, in the agent's directory.
    pub project_settings: ProjectSettings,
    /// JSON schema of the result wanted.
    pub result_schema: Option<Value>,
    /// It works as root, and something around it bounds what it can do: a sandbox of ours, or a
    /// container.
    pub sandboxed_root: bool,
    /// The scenario of a rehearsal, absolute.
    pub scenario: Option<PathBuf>,
    /// The collector that takes this daemon's spans (OTLP over HTTP): the CLI's own go there too.
    pub telemetry: Option<Collector>,
}

/// Whether a repository's settings for an agent CLI count: they run programs before anybody is
/// asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProjectSettings {
    #[default]
    Count,
    /// The user has not trusted them.
    Ignored,
}

/// Where the daemon sends its own spans and figures: whole addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collector {
    /// Before `/v1/…`, of what has no place of its own.
    pub base: Option<String>,
    pub traces: Option<String>,
    pub metrics: Option<String>,
}

/// A command as people write it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub enum Command {
    /// Runs under `sh -c`.
    Shell(String),
    Argv(Vec<String>),
}

/// The process to start. Environment: what the supervisor passes to every agent, minus
/// `env_remove`, plus `env`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// `argv[0]` is an absolute path. Holds no prompt and no secret: arguments are public.
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub env_remove: Vec<String>,
    pub stdin: StdinMode,
    /// To be written (0600, whole, before the start; an existing one is replaced). Their
    /// directories are made, 0700.
    pub files: Vec<LaunchFile>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StdinMode {
    /// Stays open for further prompts; closing it asks the agent to finish and go.
    Open,
    /// Closed after the first prompt: the agent reads to the end of file before it works.
    CloseAfterPrompt,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchFile {
    pub path: PathBuf,
    pub contents: String,
}

/// A CLI that a configured command may stand in for.
pub(crate) struct Cli {
    pub backend: &'static str,
    pub program: &'static str,
    /// What to do where it is missing.
    pub get: &'static str,
    /// What to do about a command without words.
    pub empty: &'static str,
}

impl Cli {
    /// The words before our flags: the program, or what stands in for it.
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
            // `exec`, so that the process we supervise is the agent and not a shell.
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
    /// The absolute path of a program that the agent's command names: on its PATH, or from its
    /// directory.
    pub(crate) fn find_program(&self, program: &str) -> Option<String> {
        let found =
            find_program(&seen_from(&self.cwd, program), self.path.as_deref().map(OsStr::new))?;
        Some(found.to_string_lossy().into_owned())
    }
}

/// The name of a program as seen from `cwd`: what has a `/` in it and is relative begins there.
pub fn seen_from(cwd: &Path, program: &str) -> String {
    if !program.contains('/') {
        return program.into();
    }
    // Collected, so that no `.` is left in it.
    cwd.join(program).components().collect::<PathBuf>().to_string_lossy().into_owned()
}

/// The program that a command names where the CLI of a backend would stand
/// (`--backend codex --command ./mine`, or the first word of a list); `None` where a shell finds
/// it, or nobody named any.
pub fn named_program(command: &Command, in_a_shell: bool) -> Option<&str> {
    match command {
        Command::Argv(words) => words.first().map(String::as_str),
        Command::Shell(text) => Some(text.as_str()).filter(|text| !in_a_shell && is_one_word(text)),
    }
}

/// The absolute path of `program` on `path`; a name with a `/` is taken as it is. Relative entries
/// of PATH are skipped: they mean something else in the agent's directory.
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
