//! The settings of a repository that an agent loads without asking anybody, and how the agent is
//! started without them: by ACP, or as a command.
//!
//! | agent | loads | is started without it by |
//! |---|---|---|
//! | opencode | `opencode.json`, `.opencode/`: plugins, tools, MCP servers | nothing: it is not started |
//! | gemini | `.gemini/`: hooks, MCP servers; `.env` | `GEMINI_CLI_TRUST_WORKSPACE=false` |
//! | qwen | `.qwen/`: hooks, MCP servers; `.env` | its own trust of folders, switched on by a file |
//! | copilot | `.github/hooks` | nothing: it is not started |
//! | cline | `.cline/`: plugins, hooks; `.clinerules/hooks` | nothing: it is not started |
//!
//! This was tried with opencode 1.18.33 (which imports plugins in spite of
//! `OPENCODE_DISABLE_PROJECT_CONFIG` and `OPENCODE_PURE`), gemini-cli 0.61.0, qwen-code 0.24.4,
//! copilot 1.0.102 and cline 3.0.65. claude-agent-acp is in `claude_code/repository_settings.rs`.
//! codex-acp and pi load nothing of a directory that the user has not trusted in the agent itself.

use crate::BackendError;
use crate::acp::Known;
use crate::acp::start::Start as Started;
use crate::launch::{LaunchFile, LaunchSpec, ProjectSettings};
use crate::properties::{AgentSettings, RepositorySettings};
use muleteer_model::agent::capability::{CLAUDE_CODE, CLINE, COPILOT, GEMINI, OPENCODE, QWEN};
use serde_json::json;

/// The settings of the agents that load them without a question.
pub const SETTINGS: [AgentSettings; 5] = [
    AgentSettings {
        agent: OPENCODE.name,
        program: OPENCODE.program,
        files: &["opencode.json", "opencode.jsonc"],
        folders: &[".opencode"],
        can_be_ignored: false,
    },
    AgentSettings {
        agent: GEMINI.name,
        program: GEMINI.program,
        files: &[".env"],
        folders: &[".gemini"],
        can_be_ignored: true,
    },
    AgentSettings {
        agent: QWEN.name,
        program: QWEN.program,
        files: &[".env", ".mcp.json"],
        folders: &[".qwen"],
        can_be_ignored: true,
    },
    AgentSettings {
        agent: COPILOT.name,
        program: COPILOT.program,
        files: &[],
        folders: &[".github/hooks"],
        can_be_ignored: false,
    },
    AgentSettings {
        agent: CLINE.name,
        program: CLINE.program,
        files: &[],
        folders: &[".cline", ".clinerules/hooks"],
        can_be_ignored: false,
    },
];

/// Returns the settings of the agent that a program starts.
pub(crate) fn of_program(program: &str) -> Option<&'static AgentSettings> {
    SETTINGS.iter().find(|settings| settings.program == program)
}

/// Variables and files for the start of an agent.
#[derive(Debug, Default)]
pub(crate) struct Start {
    pub env: Vec<(String, String)>,
    pub files: Vec<LaunchFile>,
}

impl Start {
    fn set(&mut self, name: &str, value: impl Into<String>) {
        self.env.push((name.into(), value.into()));
    }

    /// Writes a file of settings, and names it by a variable.
    fn write(&mut self, launch: &LaunchSpec, name: (&str, &str), contents: &serde_json::Value) {
        let (variable, file) = name;
        let path = launch.agent_dir.join("acp").join(file);
        self.set(variable, path.to_string_lossy());
        self.files.push(LaunchFile { path, contents: format!("{contents:#}\n") });
    }
}

/// Returns the settings that every start of a preset gets. They are defaults: the user's own
/// settings win.
pub(crate) fn defaults(known: &Known, launch: &LaunchSpec) -> Start {
    let mut start = Start::default();
    if known.name == QWEN.name {
        let settings = json!({
            // Each of these makes model requests beside those of the task.
            "memory": {"enableManagedAutoMemory": false, "enableAutoSkill": false},
            "ui": {"enableFollowupSuggestions": false},
            // It waits up to half an hour for the end of a rate limit, and reports nothing
            // meanwhile. Each request is still tried seven times.
            "model": {"generationConfig": {"maxRetries": 0}},
        });
        let name = ("QWEN_CODE_SYSTEM_DEFAULTS_PATH", "qwen-defaults.json");
        start.write(launch, name, &settings);
    }
    start
}

/// Returns the settings of a repository that a command of these programs loads.
pub(crate) fn of_command(starts: &[Started]) -> Option<RepositorySettings> {
    let loaded = |start: &Started| {
        let program = start.program.as_deref()?;
        let of_claude = (program == CLAUDE_CODE.program && !leaves_out_settings(&start.args))
            .then_some(RepositorySettings::Fixed);
        of_claude.or_else(|| of_program(program).map(RepositorySettings::Of))
    };
    let mut loaded = starts.iter().filter_map(loaded);
    let first = loaded.next()?;
    // Each of several agents would need other variables.
    let is_one = loaded.all(|other| other == first);
    Some(if is_one { first } else { RepositorySettings::OfSeveral })
}

/// Whether the arguments of Claude Code leave out the settings and the MCP servers of a repository.
fn leaves_out_settings(args: &[String]) -> bool {
    const SOURCES: &str = "--setting-sources";
    let at = args.iter().position(|arg| arg == SOURCES);
    let joined = args.iter().find_map(|arg| arg.strip_prefix(SOURCES)?.strip_prefix('='));
    let sources = at.and_then(|at| args.get(at + 1)).map(String::as_str).or(joined);
    sources.is_some_and(|sources| !sources.contains("project") && !sources.contains("local"))
        && args.iter().any(|arg| arg == "--strict-mcp-config")
}

/// Returns how an agent is started if its repository's settings do not count.
///
/// # Errors
/// [`BackendError::Untrusted`]: the agent loads them in any case.
pub(crate) fn start(
    loaded: Option<RepositorySettings>,
    launch: &LaunchSpec,
) -> Result<Start, BackendError> {
    let Some(loaded) = loaded else { return Ok(Start::default()) };
    match (loaded, launch.project_settings) {
        (_, ProjectSettings::Count) => Ok(Start::default()),
        (RepositorySettings::Of(own), _) if own.can_be_ignored => Ok(without_settings(own, launch)),
        // claude-agent-acp is told in the call that opens its session.
        (RepositorySettings::Shared | RepositorySettings::All, _) => Ok(Start::default()),
        (_, ProjectSettings::Ignored) => Err(BackendError::Untrusted { agent: loaded.agent() }),
        // A judge starts in any case: nobody has looked whether there are settings.
        (_, ProjectSettings::Nothing) => Ok(Start::default()),
    }
}

fn without_settings(settings: &AgentSettings, launch: &LaunchSpec) -> Start {
    let mut start = Start::default();
    let cwd = launch.cwd.to_string_lossy();
    match settings.agent {
        agent if agent == GEMINI.name => start.set("GEMINI_CLI_TRUST_WORKSPACE", "false"),
        agent if agent == QWEN.name => {
            let settings = json!({"security": {"folderTrust": {"enabled": true}}});
            let name = ("QWEN_CODE_SYSTEM_SETTINGS_PATH", "qwen-settings.json");
            start.write(launch, name, &settings);
            let folders = json!({cwd.as_ref(): "DO_NOT_TRUST"});
            let name = ("QWEN_CODE_TRUSTED_FOLDERS_PATH", "qwen-folders.json");
            start.write(launch, name, &folders);
        }
        _ => {}
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acp::start::starts;
    use crate::launch::Command;

    #[test]
    fn commands_of_known_agents_load_settings() {
        let loads = |command: &str| {
            let command = Command::Shell(command.into());
            of_command(&starts(Some(&command), &[])).map(|loaded| loaded.agent())
        };
        for (command, agent) in [
            ("opencode run", Some("opencode")),
            ("cd web && npx -y @google/gemini-cli -p \"$(cat)\"", Some("gemini")),
            ("gemini -p x; opencode run y", Some("a command of several agents")),
            ("gemini -p x || qwen -p y", Some("a command of several agents")),
            ("gemini -p x || gemini -p y", Some("gemini")),
            ("npx -y @anthropic-ai/claude-code -p", Some("Claude Code")),
            ("claude -p", Some("Claude Code")),
            ("claude -p --setting-sources user", Some("Claude Code")),
            ("claude -p --setting-sources user --strict-mcp-config", None),
            ("claude -p --setting-sources=user,project --strict-mcp-config", Some("Claude Code")),
            ("pi --mode json", None),
            ("./my-agent.sh", None),
        ] {
            assert_eq!(loads(command), agent, "{command}");
        }
    }

    #[test]
    fn agent_starts_without_untrusted_settings_or_not_at_all() {
        let started = |command: &str, project_settings| {
            let command = Command::Shell(command.into());
            let loaded = of_command(&starts(Some(&command), &[]));
            let launch = LaunchSpec { project_settings, ..LaunchSpec::default() };
            start(loaded, &launch).map(|start| start.env.len())
        };
        use ProjectSettings::{Count, Ignored, Nothing};
        for command in ["opencode run", "claude -p", "copilot -p x", "cline x", "qwen; gemini"] {
            let refused = started(command, Ignored);
            assert!(matches!(refused, Err(BackendError::Untrusted { .. })), "{command}");
            assert!(matches!(started(command, Count), Ok(0)), "{command}");
            assert!(matches!(started(command, Nothing), Ok(0)), "{command}");
        }
        assert!(matches!(started("gemini -p x", Ignored), Ok(1)));
        assert!(matches!(started("qwen -p x", Ignored), Ok(2)));
        assert!(matches!(started("qwen -p x", Count), Ok(0)));
    }
}
