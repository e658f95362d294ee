//! The typed configuration (contract.md, "Configuration keys"). The value of every field comes from
//! `config/default.yaml`. The `Default` implementations here only let a layer omit keys; their
//! values never reach a user.

mod daemon;
pub mod notify;
mod sandbox;
pub(crate) mod verbosity;

use crate::agent::permission::Permissions;
use crate::config::people::Person;
use crate::config::span::Span;
pub use crate::config::types::daemon::{
    Coordinator, CoordinatorCommands, InForce, Mcp, McpClients, Questions, Retention, Telemetry,
};
use crate::config::types::notify::Notify;
pub use crate::config::types::sandbox::{Exceptions, Sandbox, SandboxHome, Switch};
pub use crate::config::types::verbosity::{ThreadVerbosity, Verbosity};
use crate::conversation::schedule::settings::Schedule;
use crate::event::Limits;
use crate::monitor::Responses;
use crate::monitor::healing::settings::Healing;
use schemars::JsonSchema;
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// All keys of a configuration file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The default agent CLI, if neither a flag nor the role names one.
    pub backend: BackendChoice,
    /// The limits of each category of roles. A new category inherits missing keys from `coding`.
    pub categories: BTreeMap<String, Category>,
    pub models: Models,
    pub pool: Pool,
    pub questions: Questions,
    /// The permission policy of all agents. Roles and categories add rules to it.
    pub permissions: Permissions,
    pub backends: Backends,
    pub env: EnvRules,
    /// The sandbox of the agents of runs.
    pub sandbox: Sandbox,
    /// Directories that have a name.
    pub projects: BTreeMap<String, Project>,
    pub run: Run,
    /// The people that adapters know, and their rights. Only the user's own file lists them.
    pub people: BTreeMap<String, Person>,
    /// Messages that Muleteer writes at configured times. Only the user's own file lists them.
    pub schedules: BTreeMap<String, Schedule>,
    pub healing: Healing,
    /// The settings of each adapter, which reads them itself.
    pub adapters: BTreeMap<String, Value>,
    pub mcp: Mcp,
    pub coordinator: Coordinator,
    pub telemetry: Telemetry,
    pub retention: Retention,
    /// Notifications when something waits for a person.
    pub notify: Notify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[derive(strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum BackendChoice {
    /// The first agent CLI found on PATH.
    #[default]
    Auto,
    ClaudeCode,
    Codex,
    Acp,
    Opencode,
    Pi,
    Subprocess,
    Rehearsal,
}

impl BackendChoice {
    pub const ALL: [Self; 8] = [
        Self::Auto,
        Self::ClaudeCode,
        Self::Codex,
        Self::Acp,
        Self::Opencode,
        Self::Pi,
        Self::Subprocess,
        Self::Rehearsal,
    ];

    /// Returns the name, which is also the value of the configuration.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Parses a name in any spelling: `claude-code`, `claude_code` and `claudeCode`.
    ///
    /// # Errors
    /// The name is unknown; the error suggests the nearest known one.
    pub fn parse(name: &str) -> Result<Self, crate::config::error::NotFound> {
        let wanted = crate::config::key::canonical(name);
        Self::ALL
            .into_iter()
            .find(|choice| crate::config::key::canonical(choice.as_str()) == wanted)
            .ok_or_else(|| {
                crate::config::error::NotFound::new("backend", name, Self::ALL.map(Self::as_str))
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
    /// An agent that is silent and idle for longer than this is stalled.
    pub inactivity_timeout: Span,
    /// The number of restarts after crashes before the dispatch fails.
    pub max_restarts: u32,
    /// The most that one dispatch may cost; null for no limit.
    pub budget_usd: Option<f64>,
    /// The most model turns of one dispatch; null for no limit.
    pub max_turns: Option<u32>,
    /// The most awake time of all attempts together; null for no limit.
    pub timeout: Option<Span>,
    /// The total wait for a rate-limited or overloaded model API before the dispatch fails. The
    /// wait for the reset of a usage limit may be longer.
    pub api_patience: Span,
    /// The total time of other failures of the model API before the dispatch fails.
    pub api_timeout: Span,
    /// How long a permission request of an unattended agent (in a run or task list) waits before it
    /// is denied. Questions are denied at once.
    pub answer_timeout: Span,
    /// The reaction to a crash.
    pub on_crash: OnCrash,
    /// Whether the agent must return a validated result.
    pub result: bool,
    /// The strongest reaction to each finding of a monitor.
    pub monitors: Responses,
    /// The permission policy of the category's agents.
    pub permissions: Permissions,
    /// How often the agents are told to write to their journals.
    pub verbosity: Verbosity,
    /// How long the process of an agent of a thread stays after its turn, for a further message. It
    /// takes no slot of the pool meanwhile. 0 ends it at once, and the next message resumes its
    /// session.
    pub idle_hold: Span,
    /// How much the thread of an agent is told of its work.
    pub thread_verbosity: ThreadVerbosity,
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
    /// Resume the session up to `max_restarts` times, with increasing delays.
    #[default]
    Resume,
    /// Block and ask a person.
    Ask,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Models {
    /// The model of all agents; null uses the agent CLI's own default.
    pub default: Option<String>,
    /// The model of each category. A role's `model` and `--model` override it.
    pub overrides: BTreeMap<String, String>,
    /// Prices of models, for agent CLIs that report tokens but no cost (codex). Without a price the
    /// cost is 0, and no budget stops the agent.
    pub prices: BTreeMap<String, Price>,
}

/// US dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Price {
    /// The price of input tokens.
    pub input: f64,
    /// The price of output tokens.
    pub output: f64,
    /// The price of cached tokens; null uses the price of `input`.
    pub cache_read: Option<f64>,
    /// The price of cached tokens; null uses the price of `input`.
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
    /// The most agents that run at the same time; further dispatches wait in order.
    pub max_agents: u32,
    /// The most levels of agents that dispatch agents; 0 forbids it.
    pub max_depth: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Backends {
    pub claude_code: Backend,
    pub codex: Backend,
    pub acp: Acp,
    pub opencode: Backend,
    pub pi: Backend,
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
            BackendChoice::Opencode => self.opencode.clone(),
            BackendChoice::Pi => self.pi.clone(),
            BackendChoice::Subprocess => self.subprocess.clone(),
            BackendChoice::Rehearsal => self.rehearsal.clone(),
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Backend {
    /// The command, if it is not the program on PATH. For `subprocess`, text runs in `sh -c` and a
    /// list is the argument vector.
    pub command: Option<Command>,
    /// Arguments that follow those of Muleteer.
    pub args: Vec<String>,
    /// Environment variables of this backend's agents.
    pub env: BTreeMap<String, String>,
}

/// Settings of agents that use the Agent Client Protocol.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Acp {
    /// The name of a known agent; null uses `command`, or the first known agent on PATH.
    pub agent: Option<String>,
    /// The command, if it is not the program on PATH.
    pub command: Option<Command>,
    /// Arguments that follow those of Muleteer.
    pub args: Vec<String>,
    /// Environment variables of these agents.
    pub env: BTreeMap<String, String>,
    /// The time limit for the agent's answer to a call other than a prompt.
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
                    return Err(de::Error::custom(
                        "the list is empty: its first item is the program",
                    ));
                }
                Ok(Command::Text(text.into()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Command, A::Error> {
                let argv = Vec::<String>::deserialize(de::value::SeqAccessDeserializer::new(seq))?;
                if argv.first().is_none_or(|program| program.trim().is_empty()) {
                    return Err(de::Error::custom(
                        "the first item of the list, the program, is empty",
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
    /// Names of environment variables that agents inherit, besides the built-in list.
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

/// Settings of spec runs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Run {
    pub spec: Option<String>,
    /// An agent reviews the spec before it is frozen, and a person approves its findings.
    pub review_spec: bool,
    pub agent: RunAgent,
    /// The branch that agents push to; `auto` creates an integration branch for the run.
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

/// The store of the beads of runs and of `muleteer bead`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Beads {
    pub store: BeadStoreChoice,
    /// The command of `tbd`, if it has another name: text runs in `sh -c`, a list is the argument
    /// vector.
    pub command: Option<Command>,
    /// The time limit of one call of `tbd`.
    pub timeout: Span,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BeadStoreChoice {
    /// Muleteer's own store in `.muleteer/beads`.
    #[default]
    Embedded,
    /// The repository's `tbd`, used by its command line.
    Tbd,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Worktree {
    pub strategy: WorktreeStrategy,
    /// The branch that the run starts from; null uses the checked-out branch.
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
    pub finish: Finish,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Finish {
    /// Wait for a person's approval before the result is published.
    pub human_review: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Decompose {
    pub auto: bool,
    /// Wait for a person's approval after decomposition.
    pub human_review: bool,
    /// Labels that select existing beads as the beads of the run.
    pub existing_selector: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Implement {
    /// The number of beads that are done one at a time before several agents start. If one of them
    /// is blocked, the run stops.
    pub canary: u32,
    pub guidelines: Vec<String>,
    /// The checks that an agent must pass before it closes a bead.
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
    /// The model of the judge; null uses the model of the run's other agents.
    pub model: Option<String>,
    pub on_complete: OnComplete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnComplete {
    /// Push the branch and create a pull request, or print the page on which to create it.
    #[default]
    Pr,
    /// Push the branch.
    Push,
    /// Keep the branch in the repository only.
    None,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Acceptance {
    pub generate: bool,
    pub model: Option<String>,
    /// A directory of handwritten criteria that replace generated ones.
    pub path: Option<String>,
}
