//! The typed configuration (contract.md, "Configuration keys"). The value of every field comes from
//! `config/default.yaml`. The `Default` implementations here only let a layer omit keys; their
//! values never reach a user.

use crate::agent::permission::Permissions;
use crate::config::span::Span;
use crate::event::Limits;
use crate::monitor::Responses;
use schemars::JsonSchema;
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// Everything a configuration file may say.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The agent CLI used where neither a flag nor the role names one.
    pub backend: BackendChoice,
    /// Limits shared by the roles of a category. Keys left out of a category of your own are
    /// `coding`'s.
    pub categories: BTreeMap<String, Category>,
    pub models: Models,
    pub pool: Pool,
    /// What agents may do without asking; roles and categories add to it.
    pub permissions: Permissions,
    pub backends: Backends,
    pub env: EnvRules,
    /// What holds the agents of runs back.
    pub sandbox: Sandbox,
    /// Names for directories.
    pub projects: BTreeMap<String, Project>,
    /// The spec run.
    pub run: Run,
    /// By adapter; read by the adapter itself.
    pub adapters: BTreeMap<String, Value>,
    pub telemetry: Telemetry,
    pub retention: Retention,
}

/// Where the daemon sends traces and metrics; the variables of OpenTelemetry say the rest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Telemetry {
    /// Used where `OTEL_EXPORTER_OTLP_ENDPOINT` is not set.
    pub endpoint: Option<String>,
}

/// What the daemon keeps of what has been done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// Of each agent's raw output, MiB: how far back `logs --raw` reaches.
    pub output_mib: u32,
}

impl Retention {
    /// A quarter of the largest possible spool.
    pub const MOST_MIB: u32 = 256;

    pub fn output_bytes(self) -> u64 {
        u64::from(self.output_mib) << 20
    }
}

/// The settings that a daemon uses for its whole life, as recorded in `daemon_started`. It is a
/// type of its own, to which later versions may add fields: the types of the file reject unknown
/// keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InForce {
    pub max_agents: u32,
    pub max_depth: u32,
    pub output_mib: u32,
}

impl InForce {
    pub fn of(settings: &Settings) -> Self {
        let (Pool { max_agents, max_depth }, Retention { output_mib }) =
            (settings.pool, settings.retention);
        Self { max_agents, max_depth, output_mib }
    }

    pub fn pool(self) -> Pool {
        Pool { max_agents: self.max_agents, max_depth: self.max_depth }
    }

    pub fn retention(self) -> Retention {
        Retention { output_mib: self.output_mib }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BackendChoice {
    /// What is found on PATH.
    #[default]
    Auto,
    ClaudeCode,
    Codex,
    Acp,
    Subprocess,
    Rehearsal,
}

impl BackendChoice {
    pub const ALL: [Self; 6] =
        [Self::Auto, Self::ClaudeCode, Self::Codex, Self::Acp, Self::Subprocess, Self::Rehearsal];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::ClaudeCode => "claude-code",
            Self::Codex => "codex",
            Self::Acp => "acp",
            Self::Subprocess => "subprocess",
            Self::Rehearsal => "rehearsal",
        }
    }

    /// Parses a name in any spelling: `claude-code`, `claude_code` and `claudeCode`.
    ///
    /// # Errors
    /// The name is unknown; the error suggests the nearest known one.
    pub fn parse(name: &str) -> Result<Self, crate::config::NotFound> {
        let wanted = crate::config::canonical(name);
        Self::ALL
            .into_iter()
            .find(|choice| crate::config::canonical(choice.as_str()) == wanted)
            .ok_or_else(|| {
                crate::config::NotFound::new("backend", name, Self::ALL.map(Self::as_str))
            })
    }
}

impl fmt::Display for BackendChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Category {
    /// Silence longer than this, with no evidence of life, is a stall.
    pub inactivity_timeout: Span,
    /// Counted attempts after a crash before the dispatch has failed.
    pub max_restarts: u32,
    /// Of one dispatch; null for none.
    pub budget_usd: Option<f64>,
    /// Model turns of one dispatch; null for no limit.
    pub max_turns: Option<u32>,
    /// Awake time of all attempts together; null for none.
    pub timeout: Option<Span>,
    /// How long a rate limit or an overload of the model API is waited for, in all, before the
    /// dispatch has failed.
    pub api_patience: Span,
    /// How long an agent may try in vain to get an answer of the model API that is neither.
    pub api_timeout: Span,
    /// How long an agent of a run or a task list, where nobody watches, waits for an answer to what
    /// it asks before that is denied. A question is denied at once.
    pub answer_timeout: Span,
    /// What follows a crash.
    pub on_crash: OnCrash,
    /// A validated result is asked of the agent.
    pub result: bool,
    /// The most that is done about what is found in an agent that works, and is sick.
    pub monitors: Responses,
    /// What its agents may do without asking.
    pub permissions: Permissions,
}

impl Category {
    /// The limits of a dispatch in this category, before flags override them.
    pub fn limits(&self) -> Limits {
        Limits {
            budget_usd: self.budget_usd,
            max_turns: self.max_turns,
            timeout_s: self.timeout.map(Span::as_secs),
            inactivity_timeout_s: self.inactivity_timeout.as_secs(),
            max_restarts: self.max_restarts,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnCrash {
    /// Resume the session, up to `max_restarts` times, with growing pauses.
    #[default]
    Resume,
    /// Block and ask a person.
    Ask,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Models {
    /// Null leaves the choice to the agent CLI.
    pub default: Option<String>,
    /// By category; a role's own `model` and `--model` win.
    pub overrides: BTreeMap<String, String>,
    /// By model, for agents that report tokens and no cost (codex): without a price, their cost is
    /// 0 and no budget stops them.
    pub prices: BTreeMap<String, Price>,
}

/// US dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Price {
    pub input: f64,
    pub output: f64,
    /// Null: as `input`.
    pub cache_read: Option<f64>,
    /// Null: as `input`.
    pub cache_write: Option<f64>,
}

impl Price {
    /// Returns the cost of these numbers of tokens.
    pub fn of(&self, input: u64, output: u64, cache_read: u64, cache_write: u64) -> f64 {
        let cost = |tokens: u64, price: f64| tokens as f64 * price.max(0.0) / 1e6;
        cost(input, self.input)
            + cost(output, self.output)
            + cost(cache_read, self.cache_read.unwrap_or(self.input))
            + cost(cache_write, self.cache_write.unwrap_or(self.input))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Pool {
    /// Agents alive at once; further dispatches wait in order.
    pub max_agents: u32,
    /// How deep agents may dispatch agents; 0: not at all.
    pub max_depth: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Backends {
    pub claude_code: Backend,
    pub codex: Backend,
    pub acp: Acp,
    pub subprocess: Backend,
    pub rehearsal: Backend,
}

impl Backends {
    /// Returns the settings of a backend; `None` for [`BackendChoice::Auto`], which is not a
    /// backend.
    pub fn get(&self, choice: BackendChoice) -> Option<Backend> {
        Some(match choice {
            BackendChoice::Auto => return None,
            BackendChoice::ClaudeCode => self.claude_code.clone(),
            BackendChoice::Codex => self.codex.clone(),
            BackendChoice::Acp => self.acp.backend(),
            BackendChoice::Subprocess => self.subprocess.clone(),
            BackendChoice::Rehearsal => self.rehearsal.clone(),
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Backend {
    /// The program, if not the one on PATH. For `subprocess`: text runs under `sh -c`, a list is
    /// the argument vector.
    pub command: Option<Command>,
    /// Added after the arguments Muleteer gives.
    pub args: Vec<String>,
    /// Set for this backend's agents.
    pub env: BTreeMap<String, String>,
}

/// Agents that speak the Agent Client Protocol.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Acp {
    /// Which of the agents known by name; null: the first on PATH, or `command` alone.
    pub agent: Option<String>,
    /// The program, if not the one on PATH.
    pub command: Option<Command>,
    /// Added after the arguments Muleteer gives.
    pub args: Vec<String>,
    /// Set for these agents.
    pub env: BTreeMap<String, String>,
    /// What an agent has for the answer to a call that is no prompt.
    pub call_timeout: Option<Span>,
}

impl Acp {
    /// Returns the settings that all backends have.
    pub fn backend(&self) -> Backend {
        Backend { command: self.command.clone(), args: self.args.clone(), env: self.env.clone() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Command {
    Text(String),
    Argv(Vec<String>),
}

/// Written by hand, because a derived untagged enum reports neither the fault nor its position.
impl<'de> Deserialize<'de> for Command {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrList;
        impl<'de> Visitor<'de> for TextOrList {
            type Value = Command;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a command (text, or a list of arguments)")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Command, E> {
                if text.trim().is_empty() {
                    return Err(de::Error::custom("it is empty: it begins with the program"));
                }
                Ok(Command::Text(text.into()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Command, A::Error> {
                let argv = Vec::<String>::deserialize(de::value::SeqAccessDeserializer::new(seq))?;
                if argv.first().is_none_or(|program| program.trim().is_empty()) {
                    return Err(de::Error::custom(
                        "no program is named: it is the first item of the list",
                    ));
                }
                Ok(Command::Argv(argv))
            }
        }
        deserializer.deserialize_any(TextOrList)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EnvRules {
    /// Variables let through to agents beside the built-in list.
    pub pass: Vec<String>,
}

/// A directory with a name: its path, or a mapping with `path`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Project {
    Path(String),
    Full(ProjectSettings),
}

impl Project {
    /// Returns the path as written; see [`crate::config::Config::project_path`].
    pub fn path(&self) -> &str {
        match self {
            Self::Path(path) => path,
            Self::Full(full) => &full.path,
        }
    }
}

impl<'de> Deserialize<'de> for Project {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PathOrMap;
        impl<'de> Visitor<'de> for PathOrMap {
            type Value = Project;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path, or a mapping with `path`")
            }
            fn visit_str<E: de::Error>(self, path: &str) -> Result<Project, E> {
                Ok(Project::Path(path.into()))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Project, A::Error> {
                ProjectSettings::deserialize(de::value::MapAccessDeserializer::new(map))
                    .map(Project::Full)
            }
        }
        deserializer.deserialize_any(PathOrMap)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProjectSettings {
    pub path: String,
}

/// The sandbox of a run's agents: `on`, `off`, or what is let through it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Sandbox {
    Is(Switch),
    With(Exceptions),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Switch {
    On,
    Off,
}

/// Paths, absolute or from `~/`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Exceptions {
    /// May be written.
    pub write: Vec<String>,
    /// May be seen, where it would be hidden.
    pub show: Vec<String>,
}

impl Default for Sandbox {
    fn default() -> Self {
        Self::With(Exceptions::default())
    }
}

impl Sandbox {
    /// Returns the exceptions from the sandbox; `None` if the sandbox is off.
    pub fn exceptions(&self) -> Option<Exceptions> {
        match self {
            Self::Is(Switch::Off) => None,
            Self::Is(Switch::On) => Some(Exceptions::default()),
            Self::With(exceptions) => Some(exceptions.clone()),
        }
    }
}

impl<'de> Deserialize<'de> for Sandbox {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WordOrMap;
        impl<'de> Visitor<'de> for WordOrMap {
            type Value = Sandbox;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`on`, `off`, or a mapping with `write` and `show`")
            }
            fn visit_bool<E: de::Error>(self, on: bool) -> Result<Sandbox, E> {
                Ok(Sandbox::Is(if on { Switch::On } else { Switch::Off }))
            }
            fn visit_str<E: de::Error>(self, word: &str) -> Result<Sandbox, E> {
                match word {
                    "on" => Ok(Sandbox::Is(Switch::On)),
                    "off" => Ok(Sandbox::Is(Switch::Off)),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Sandbox, A::Error> {
                Exceptions::deserialize(de::value::MapAccessDeserializer::new(map))
                    .map(Sandbox::With)
            }
        }
        deserializer.deserialize_any(WordOrMap)
    }
}

/// Keys of the spec run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Run {
    pub spec: Option<String>,
    pub agent: RunAgent,
    /// `auto` for an integration branch of the run's own, or a branch.
    pub target_branch: String,
    pub beads: Beads,
    pub worktree: Worktree,
    pub phases: Phases,
    pub acceptance: Acceptance,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RunAgent {
    pub backend: BackendChoice,
    pub command: Option<Command>,
    pub max_concurrency: u32,
    pub timeout_per_bead: Span,
    pub max_retries_per_bead: u32,
}

/// Where beads are kept, by runs and by `muleteer bead`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Beads {
    pub store: BeadStoreChoice,
    /// How `tbd` is called, if not by that name: text runs under `sh -c`, a list is argv.
    pub command: Option<Command>,
    /// Of one call of `tbd`.
    pub timeout: Span,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BeadStoreChoice {
    /// Muleteer's own, below `.muleteer/beads`.
    #[default]
    Embedded,
    /// The repository's `tbd`, through its command line.
    Tbd,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Worktree {
    pub strategy: WorktreeStrategy,
    /// Null: the branch checked out now.
    pub base_branch: Option<String>,
    pub cleanup: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WorktreeStrategy {
    #[default]
    PerAgent,
    Shared,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Phases {
    pub decompose: Decompose,
    pub implement: Implement,
    pub maintain: Maintain,
    pub judge: Judge,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Decompose {
    pub auto: bool,
    /// Wait for a person's approval after decomposition.
    pub human_review: bool,
    /// Labels of beads that exist already and make up the run.
    pub existing_selector: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Implement {
    pub guidelines: Vec<String>,
    /// What an agent must pass before it closes a bead.
    pub completion_checks: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Maintain {
    pub trigger: MaintainTrigger,
    pub n: u32,
    pub parallel: bool,
    pub max_concurrency: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MaintainTrigger {
    #[default]
    EveryNBeads,
    AfterAll,
    Never,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Judge {
    pub enabled: bool,
    pub spec_drift: bool,
    pub acceptance: bool,
    pub max_iterations: u32,
    /// Null: the model of the run's other agents.
    pub model: Option<String>,
    pub on_complete: OnComplete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnComplete {
    /// The branch is pushed and a pull request is made; without a way to make one, the page for it
    /// is named.
    #[default]
    Pr,
    /// The branch is pushed.
    Push,
    /// The branch stays in the repository.
    None,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Acceptance {
    pub generate: bool,
    pub model: Option<String>,
    /// Criteria written by hand, instead of generated ones.
    pub path: Option<String>,
}
