//! Every agent CLI of the conformance suite: its program on PATH, and its settings for a scripted
//! model.

use crate::model_server::ModelServer;
use crate::{Repo, World, claude, codex, program};
use muleteer_model::agent::capability::{AGENTS, Agent};
use serde_json::{Value, json};
use std::path::Path;
use xtask::agents::Agents;

/// An agent of the capability table (`muleteer_model::agent::capability`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cli {
    ClaudeCode,
    Codex,
    ClaudeAcp,
    CodexAcp,
    Opencode,
    OpencodeAcp,
    Gemini,
    Qwen,
    Copilot,
    Pi,
    PiAcp,
    Cline,
}

/// The program of an MCP server, with its arguments.
pub type Server<'a> = (&'a str, &'a [String]);

/// An MCP server with one tool, as a shell script: `ping` writes a line to the file that is its
/// first argument.
pub const MCP_SERVER: &str = r#"
reply() { echo '{"jsonrpc":"2.0","id":'$id',"result":'"$1"'}'; }
while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9][0-9]*\).*/\1/p')
  case "$line" in
    *'"method":"initialize"'*)
      reply '{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},'\
'"serverInfo":{"name":"sup","version":"1"}}' ;;
    *'"method":"tools/list"'*)
      reply '{"tools":[{"name":"ping","description":"p",'\
'"inputSchema":{"type":"object","properties":{}}}]}' ;;
    *'"method":"tools/call"'*)
      echo pinged >> "$1"
      reply '{"content":[{"type":"text","text":"pong"}]}' ;;
    *'"id"'*) reply '{}' ;;
  esac
done
"#;

impl Cli {
    pub const ALL: [Self; 12] = [
        Self::ClaudeCode,
        Self::Codex,
        Self::ClaudeAcp,
        Self::CodexAcp,
        Self::Opencode,
        Self::OpencodeAcp,
        Self::Gemini,
        Self::Qwen,
        Self::Copilot,
        Self::Pi,
        Self::PiAcp,
        Self::Cline,
    ];

    /// Returns the backend, which names one row of the capability table.
    pub fn backend(self) -> &'static str {
        match self {
            Self::ClaudeCode => "claude-code",
            Self::Codex => "codex",
            Self::ClaudeAcp => "acp:claude-agent-acp",
            Self::CodexAcp => "acp:codex-acp",
            Self::Opencode => "opencode",
            Self::OpencodeAcp => "acp:opencode",
            Self::Gemini => "acp:gemini",
            Self::Qwen => "acp:qwen",
            Self::Copilot => "acp:copilot",
            Self::Pi => "pi",
            Self::PiAcp => "acp:pi",
            Self::Cline => "acp:cline",
        }
    }

    /// Returns the agent's row of the capability table.
    ///
    /// # Panics
    /// When it has none.
    pub fn capabilities(self) -> &'static Agent {
        AGENTS
            .iter()
            .find(|agent| agent.backend == self.backend())
            .expect("a row of the capability table")
    }

    /// Returns the npm package whose version is the agent's.
    pub fn package(self) -> &'static str {
        match self {
            Self::ClaudeCode => "@anthropic-ai/claude-code-linux-x64",
            Self::Codex => "@openai/codex-linux-x64",
            Self::ClaudeAcp => "@agentclientprotocol/claude-agent-acp",
            Self::CodexAcp => "@agentclientprotocol/codex-acp",
            Self::Opencode | Self::OpencodeAcp => "opencode-linux-x64",
            Self::Gemini => "@google/gemini-cli",
            Self::Qwen => "@qwen-code/qwen-code",
            Self::Copilot => "@github/copilot-linux-x64",
            Self::Pi | Self::PiAcp => "@earendil-works/pi-coding-agent",
            Self::Cline => "@cline/cli-linux-x64",
        }
    }

    /// Puts the agent on the world's PATH, and writes the settings that its user would write.
    ///
    /// # Panics
    /// When a file cannot be written, or `cline auth` fails.
    pub fn install(self, world: &World, server: &ModelServer, agents: &Agents) {
        let link = |name: &str, program: &Path| {
            std::os::unix::fs::symlink(program, world.bin().join(name)).expect("a link");
        };
        let script = |name: &str, path: &Path, variables: &[(&str, &Path)]| {
            let set: String = variables
                .iter()
                .map(|(name, value)| format!("export {name}='{}'\n", value.display()))
                .collect();
            let (node, path) = (agents.node(), path.display().to_string());
            let text = format!("#!/bin/sh\n{set}exec '{}' '{path}' \"$@\"\n", node.display());
            program::write(&world.bin().join(name), &text);
        };
        match self {
            Self::ClaudeCode => claude::link(world, &agents.claude()),
            Self::Codex => codex::install(world, &agents.codex(), server),
            Self::ClaudeAcp => {
                let cli = agents.claude();
                let variables = [("CLAUDE_CODE_EXECUTABLE", cli.as_path())];
                script("claude-agent-acp", &agents.claude_acp(), &variables);
            }
            Self::CodexAcp => {
                codex::install(world, &agents.codex(), server);
                let cli = agents.codex();
                script("codex-acp", &agents.codex_acp(), &[("CODEX_PATH", cli.as_path())]);
            }
            Self::Opencode | Self::OpencodeAcp => {
                link("opencode", &agents.opencode());
                let models = json!({"m1": {"name": "m1"}, "m2": {"name": "m2"}});
                let provider = json!({"npm": "@ai-sdk/openai-compatible", "name": "scripted",
                    "options": {"baseURL": format!("{}/v1", server.url()), "apiKey": "dummy"},
                    "models": models});
                let settings = json!({"$schema": "https://opencode.ai/config.json",
                    "provider": {"scripted": provider}, "model": "scripted/m1",
                    "small_model": "scripted/m1", "autoupdate": false, "share": "disabled"});
                write(&opencode_settings(world), &settings);
            }
            Self::Gemini => {
                script("gemini", &agents.gemini(), &[]);
                // It uses no MCP servers in a folder that its user does not trust.
                let repo = world.path().join("repo").display().to_string();
                let trusted = json!({repo: "TRUST_FOLDER"});
                write(&world.home().join(".gemini/trustedFolders.json"), &trusted);
                write(
                    &world.home().join(".gemini/settings.json"),
                    &json!({
                        "security": {"auth": {"selectedType": "gemini-api-key"}},
                        "model": {"name": "gemini-2.5-pro"},
                        "general": {"enableAutoUpdate": false,
                            "enableAutoUpdateNotification": false},
                        "privacy": {"usageStatisticsEnabled": false}
                    }),
                );
            }
            Self::Qwen => {
                script("qwen", &agents.qwen(), &[]);
                write(&world.home().join(".qwen/settings.json"), &qwen_settings(server));
            }
            Self::Copilot => link("copilot", &agents.copilot()),
            Self::Pi | Self::PiAcp => {
                script("pi", &agents.pi(), &[]);
                script("pi-acp", &agents.pi_acp(), &[]);
                let model = |id: &str| {
                    json!({"id": id, "name": id, "reasoning": false, "input": ["text"],
                        "cost": {"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0},
                        "contextWindow": 200_000, "maxTokens": 8000})
                };
                let provider = json!({"baseUrl": format!("{}/v1", server.url()),
                    "apiKey": "dummy", "api": "openai-completions",
                    "models": [model("m1"), model("m2")]});
                let own = world.home().join(".pi/agent");
                write(&own.join("models.json"), &json!({"providers": {"scripted": provider}}));
                let settings = json!({"defaultProvider": "scripted", "defaultModel": "m1",
                    "retry": {"enabled": true, "maxRetries": 1, "baseDelayMs": 200}});
                write(&own.join("settings.json"), &settings);
            }
            Self::Cline => {
                link("cline", &agents.cline());
                let url = format!("{}/v1", server.url());
                let mut login = std::process::Command::new(agents.cline());
                login.args(["auth", "-p", "openai", "-k", "dummy", "-m", "m1", "-b", &url]);
                world.environment(&mut login);
                let output = login.output().expect("cline starts");
                assert!(output.status.success(), "cline auth: {output:?}");
            }
        }
    }

    /// Returns the options of `muleteer spawn` that choose and isolate the agent.
    pub fn options(self, world: &World, server: &ModelServer) -> Vec<String> {
        let v1 = format!("{}/v1", server.url());
        let fixed = |name: &'static str, value: &str| (name, value.to_string());
        let variables: Vec<(&str, String)> = match self {
            Self::ClaudeCode | Self::ClaudeAcp => claude::variables(server),
            Self::Codex | Self::CodexAcp => vec![
                ("CODEX_HOME", codex::home(world).display().to_string()),
                fixed("OPENAI_API_KEY", "dummy"),
            ],
            Self::Opencode | Self::OpencodeAcp => vec![
                fixed("OPENCODE_DISABLE_MODELS_FETCH", "1"),
                fixed("OPENCODE_DISABLE_AUTOUPDATE", "1"),
            ],
            Self::Gemini => vec![
                fixed("GEMINI_API_KEY", "dummy"),
                ("GOOGLE_GEMINI_BASE_URL", server.url()),
                fixed("GEMINI_CLI_NO_RELAUNCH", "true"),
            ],
            Self::Qwen => vec![
                fixed("OPENAI_API_KEY", "dummy"),
                ("OPENAI_BASE_URL", v1),
                fixed("OPENAI_MODEL", "m1"),
            ],
            Self::Copilot => vec![
                ("COPILOT_PROVIDER_BASE_URL", v1),
                fixed("COPILOT_PROVIDER_API_KEY", "dummy"),
                fixed("COPILOT_MODEL", "gpt-5"),
                fixed("COPILOT_OFFLINE", "true"),
            ],
            Self::Pi | Self::PiAcp => vec![fixed("PI_OFFLINE", "1")],
            Self::Cline => {
                vec![fixed("CLINE_PROVIDER", "openai-compatible"), fixed("CLINE_API_KEY", "dummy")]
            }
        };
        let mut options = vec!["--backend".to_string(), self.backend().into()];
        for (name, value) in variables {
            options.extend(["--env".into(), format!("{name}={value}")]);
        }
        if matches!(self, Self::Codex | Self::CodexAcp) {
            options.extend(["--model", "gpt-5.5"].map(String::from));
        }
        options
    }

    /// Returns the name of another model for `muleteer model`, and what the API is then asked for.
    pub fn other_model(self) -> [&'static str; 2] {
        match self {
            Self::ClaudeCode | Self::ClaudeAcp => ["haiku", "haiku"],
            Self::Codex | Self::CodexAcp => ["gpt-6-astra", "gpt-6-astra"],
            Self::Opencode | Self::OpencodeAcp => ["scripted/m2", "m2"],
            Self::Gemini => ["gemini-2.5-flash", "gemini-2.5-flash"],
            Self::Qwen => ["m2(openai)", "m2"],
            Self::Copilot | Self::Cline => ["m2", "m2"],
            Self::Pi | Self::PiAcp => ["scripted/m2", "m2"],
        }
    }

    /// Writes an MCP server named `sup` where the agent's user configures it.
    ///
    /// # Panics
    /// When a file cannot be written.
    pub fn add_mcp_server(self, world: &World, repo: &Repo, (command, args): Server) {
        let entry = json!({"command": command, "args": args});
        let servers = json!({"mcpServers": {"sup": &entry}});
        match self {
            // Muleteer starts it without its user's settings.
            Self::ClaudeCode => {
                let file = world.path().join("mcp.json");
                write(&file, &servers);
                let args = format!("[--strict-mcp-config, --mcp-config, {}]", file.display());
                world.configure(&format!("backends:\n  claude_code:\n    args: {args}\n"));
            }
            Self::ClaudeAcp => {
                let entry = json!({"type": "stdio", "command": command, "args": args});
                let servers = json!({"mcpServers": {"sup": entry}});
                write(&world.home().join(".claude.json"), &servers);
            }
            Self::Codex | Self::CodexAcp => {
                let file = codex::home(world).join("config.toml");
                let mut text = std::fs::read_to_string(&file).expect("the configuration of codex");
                text += &format!("\n[mcp_servers.sup]\ncommand = {command:?}\nargs = {args:?}\n");
                std::fs::write(&file, text).expect("the configuration of codex");
            }
            Self::Opencode | Self::OpencodeAcp => {
                let words: Vec<&str> =
                    std::iter::once(command).chain(args.iter().map(String::as_str)).collect();
                let servers = json!({"mcp": {"sup": {"type": "local", "command": words,
                    "enabled": true}}});
                merge(&opencode_settings(world), &servers);
            }
            Self::Gemini => merge(&world.home().join(".gemini/settings.json"), &servers),
            Self::Qwen => merge(&world.home().join(".qwen/settings.json"), &servers),
            Self::Copilot => {
                let entry = json!({"type": "local", "command": command, "args": args,
                    "tools": ["*"]});
                let servers = json!({"mcpServers": {"sup": entry}});
                write(&world.home().join(".copilot/mcp-config.json"), &servers);
            }
            Self::Pi | Self::PiAcp | Self::Cline => write(&repo.path.join(".mcp.json"), &servers),
        }
    }
}

fn opencode_settings(world: &World) -> std::path::PathBuf {
    world.path().join("config/opencode/opencode.json")
}

fn write(file: &Path, value: &Value) {
    std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder for settings");
    std::fs::write(file, value.to_string()).expect("settings");
}

fn merge(file: &Path, more: &Value) {
    let text = std::fs::read_to_string(file).expect("settings");
    let mut settings: Value = serde_json::from_str(&text).expect("settings in JSON");
    for (key, value) in more.as_object().into_iter().flatten() {
        settings[key] = value.clone();
    }
    write(file, &settings);
}

fn qwen_settings(server: &ModelServer) -> Value {
    // qwen reads the last field of such a model nowhere else, so a preset cannot set it.
    let model = |id: &str| {
        json!({"id": id, "name": id, "envKey": "OPENAI_API_KEY",
            "baseUrl": format!("{}/v1", server.url()),
            "generationConfig": {"maxRetries": 0}})
    };
    json!({
        "security": {"auth": {"selectedType": "openai"}},
        "model": {"name": "m1"},
        "modelProviders": {"openai": [model("m1"), model("m2")]},
        "general": {"enableAutoUpdate": false},
        "privacy": {"usageStatisticsEnabled": false}
    })
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use muleteer_model::agent::capability::AGENTS;

    /// The suite does not have mini-swe-agent, which npm cannot install.
    #[test]
    fn every_agent_of_the_capability_table_is_in_the_suite() {
        let missing: Vec<&str> = AGENTS
            .iter()
            .filter(|agent| !agent.program.is_empty() && agent.name != "mini-swe-agent")
            .map(|agent| agent.backend)
            .filter(|backend| !Cli::ALL.iter().any(|cli| cli.backend() == *backend))
            .collect();
        assert_eq!(missing, [""; 0]);
    }
}
