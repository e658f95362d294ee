//! The settings of a repository that an ACP agent loads without asking anybody, and how the agent
//! is started without them.
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

use crate::acp::Known;
use crate::launch::{LaunchFile, LaunchSpec};
use crate::properties::AgentSettings;
use muleteer_model::agent::capability::{CLINE, COPILOT, GEMINI, OPENCODE, QWEN};
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
pub(super) struct Start {
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
pub(super) fn defaults(known: &Known, launch: &LaunchSpec) -> Start {
    let mut start = Start::default();
    if known.name == QWEN.name {
        // Each of these makes model requests beside those of the task.
        let settings = json!({
            "memory": {"enableManagedAutoMemory": false, "enableAutoSkill": false},
            "ui": {"enableFollowupSuggestions": false},
        });
        let name = ("QWEN_CODE_SYSTEM_DEFAULTS_PATH", "qwen-defaults.json");
        start.write(launch, name, &settings);
    }
    start
}

/// Returns how the agent is started without the settings of its repository.
pub(super) fn without_settings(settings: &AgentSettings, launch: &LaunchSpec) -> Start {
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
