//! Claude Code (`claude -p` with stream-json both ways): its command line.
//!
//! One process holds one session of many turns. Prompts are sent as user messages whose `uuid` is
//! our prompt key. `--replay-user-messages` echoes each when the CLI accepts it, which is the
//! receipt. Sessions stay on disk, because a dispatch survives a crash by resuming its session.

pub(crate) mod control;
mod delta;
pub(crate) mod parser;
pub mod repository_settings;
mod result;
mod rights;
mod transcript;

use crate::Access;
use crate::Backend;
use crate::BackendError;
use crate::Briefed;
use crate::Capabilities;
use crate::Command;
use crate::CommandLine;
use crate::Home;
use crate::Interrupt;
use crate::LaunchFile;
use crate::LaunchSpec;
use crate::Parser;
use crate::Program;
use crate::ProjectSettings;
use crate::RepositorySettings;
use crate::StdinMode;
use crate::Transcripts;
use crate::Variable;
use crate::Variables;
use crate::launch::{Cli, Collector, ToolServer};
use crate::properties::first_set;
use crate::stream::lines::LineParser;
use muleteer_model::agent::ask::{Answer, Ask};
use muleteer_model::agent::backend::{StartError, Traits};
use muleteer_model::agent::capability::CLAUDE_CODE;
use muleteer_model::agent::permission::Policy;
use muleteer_model::agent::prompt;
use serde_json::{Value, json};

const PROGRAM: &str = CLAUDE_CODE.program;

/// How to install it.
pub(crate) const GET: &str = CLAUDE_CODE.install;

/// Its settings and conversations.
pub const HOME: Home = Home {
    variable: "CLAUDE_CONFIG_DIR",
    folder: ".claude",
    conversations: &[
        "projects",
        "todos",
        "file-history",
        "debug",
        "shell-snapshots",
        "session-env",
    ],
    database: None,
};

/// The folder of a repository with its subagents, which Muleteer reads as roles.
pub const SUBAGENTS: &str = ".claude/agents";

/// The variable that names, for a hook, the directory in which the session was started.
pub const PROJECT_DIR: &str = "CLAUDE_PROJECT_DIR";
/// The variable that names, for a hook, a shell script that each command of the session runs first.
pub const ENV_FILE: &str = "CLAUDE_ENV_FILE";

/// The error that it prints before it exits, as root and with all permissions:
/// `--dangerously-skip-permissions cannot be used with root/sudo privileges for security reasons`.
const AS_ROOT: StartError = StartError {
    marks: &["--dangerously", "cannot be used with root/sudo privileges"],
    reason: "Claude Code refuses to run as root without asking for permission: run Muleteer as an \
        ordinary user; or, in a container or on a disposable machine, set `--env IS_SANDBOX=1` (or \
        `backends: {claude_code: {env: {IS_SANDBOX: \"1\"}}}`); or let the agent ask, with \
        `permissions: {mode: ask}`",
};

const VARIABLES: Variables = Variables {
    own: &["ANTHROPIC_*", "CLAUDE_CODE_*", "CLAUDE_CONFIG_DIR*"],
    passed: &[
        "ANTHROPIC_*",
        "CLAUDE_CONFIG_DIR",
        "CLAUDE_CODE_*",
        "DISABLE_*",
        "IS_SANDBOX",
        "BASH_DEFAULT_TIMEOUT_MS",
        "BASH_MAX_TIMEOUT_MS",
        "MAX_THINKING_TOKENS",
        "MCP_TIMEOUT",
        "MCP_TOOL_TIMEOUT",
        "API_TIMEOUT_MS",
        "AWS_REGION",
        "AWS_PROFILE",
        "CLOUD_ML_REGION",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ],
    for_agents: &[
        "ANTHROPIC_*",
        "CLAUDE*",
        "GOOGLE_*",
        "AWS_*",
        "CLOUD_ML_*",
        "API_TIMEOUT*",
        "MCP_*",
        "DISABLE_*",
        "BASH_*",
        "MAX_*",
        "IS_SANDBOX*",
    ],
    loading: &["CLAUDE_CONFIG_DIR", ENV_FILE, "CLAUDE_CODE_*"],
    nesting: &NESTING,
};

/// Variables by which Claude Code tells a nested Claude Code that it runs inside another one.
const NESTING: [&str; 5] = [
    "CLAUDECODE",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_CODE_SSE_PORT",
    "CLAUDE_CODE_SESSION_ID",
    "CLAUDE_CODE_CHILD_SESSION",
];
/// Settings that Claude Code gives to the programs that it runs. A person may set them too.
const OF_NESTED: [&str; 2] =
    ["CLAUDE_CODE_DISABLE_FEEDBACK_SURVEY", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"];

/// Returns the variables that Claude Code sets for a nested Claude Code. They are removed, because
/// our agents are not nested.
pub fn set_for_nested() -> impl Iterator<Item = &'static str> {
    NESTING.into_iter().chain(OF_NESTED)
}

/// Makes the CLI read `CLAUDE.md` and rules of added directories.
pub(crate) const READ_INSTRUCTIONS: &str = "CLAUDE_CODE_ADDITIONAL_DIRECTORIES_CLAUDE_MD";

const CLI: Cli = Cli {
    backend: "claude-code",
    program: PROGRAM,
    get: "npm install -g @anthropic-ai/claude-code, or set backends.claude_code.command",
    empty: "backends.claude_code.command is an empty list: remove it, or name the program first",
};

/// The backend `claude-code`.
#[derive(Debug, Clone, Copy)]
pub struct ClaudeCode;

impl Backend for ClaudeCode {
    fn name(&self) -> &'static str {
        CLI.backend
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            multi_turn: true,
            resumable: CLAUDE_CODE.resumes,
            structured: true,
            receipts: true,
            folds: true,
            briefed: Briefed::InSystemPrompt,
            interrupt: Interrupt::ByStdin,
            asks: CLAUDE_CODE.asks(),
            judges_actions: true,
        }
    }

    fn traits(&self) -> Traits {
        Traits {
            reports_cost: CLAUDE_CODE.tells_cost(),
            limits_turns: true,
            provider: Some("anthropic"),
            start_errors: &[AS_ROOT],
            agent: Some(&CLAUDE_CODE),
            ..Traits::default()
        }
    }

    fn program(&self) -> Program {
        Program::OnPath { name: PROGRAM, install: GET }
    }

    fn is_automatic(&self) -> bool {
        true
    }

    fn process_names(&self) -> &'static [&'static str] {
        &[PROGRAM]
    }

    fn variables(&self) -> Variables {
        VARIABLES
    }

    fn home(&self) -> Option<Home> {
        Some(HOME)
    }

    fn own_folder(&self) -> Option<&'static str> {
        Some("claude")
    }

    fn access(&self, variable: Variable<'_>, _config: &str, _args: &[String]) -> Access {
        let is_set = |name: &str| variable(name).is_some();
        let credential = if is_set("CLAUDE_CODE_USE_BEDROCK") {
            "the AWS credentials of CLAUDE_CODE_USE_BEDROCK".into()
        } else if is_set("CLAUDE_CODE_USE_VERTEX") {
            "the Google credentials of CLAUDE_CODE_USE_VERTEX".into()
        } else {
            // In the order in which Claude Code prefers them.
            first_set(
                &["ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"],
                variable,
                "the login of `claude` (/login renews it)",
            )
        };
        Access { credential, address: variable("ANTHROPIC_BASE_URL"), by_command: false }
    }

    fn text_delta(&self, line: &[u8]) -> Option<String> {
        delta::text(line)
    }

    /// Its command line names the sources of settings, and those of one person are not among them.
    fn repository_settings(
        &self,
        _agent: Option<&str>,
        _command: Option<&Command>,
    ) -> Option<RepositorySettings> {
        Some(RepositorySettings::Shared)
    }

    fn command_line(&self, launch: &LaunchSpec) -> Result<CommandLine, BackendError> {
        let mut argv = CLI.words(launch)?;
        let mut files = Vec::new();
        let mut flag = |words: &[&str]| argv.extend(words.iter().map(|word| (*word).to_string()));

        flag(&["-p", "--output-format", "stream-json", "--input-format", "stream-json"]);
        // stream-json output requires --verbose. Partial messages are signs of life, and text
        // for the people who watch.
        flag(&["--verbose", "--replay-user-messages", "--include-partial-messages"]);
        // Without this flag it has no tool for asking a person a question, whatever the policy.
        flag(&["--permission-prompt-tool", "stdio"]);
        flag(&["--permission-mode", control::mode(&launch.permissions)]);
        // Under an open policy the sandbox and the clone limit the agent, not its CLI.
        if !launch.permissions.is_open() {
            // Over the control protocol it asks us about actions that it would not do unasked.
            // These settings make it ask about, or reject, the rest.
            let path = launch.agent_dir.join("claude/permissions.json");
            flag(&["--settings", &path.to_string_lossy()]);
            if let Some(tools) = control::tools(&launch.permissions) {
                flag(&[&format!("--tools={}", tools.join(","))]);
            }
            let never = control::never(&launch.permissions);
            if !never.is_empty() {
                flag(&[&format!("--disallowedTools={}", never.join(","))]);
            }
            files.push(LaunchFile {
                path,
                contents: control::settings(&launch.permissions).to_string(),
            });
        }
        if let Some(server) = &launch.tools {
            let path = launch.agent_dir.join("claude/mcp.json");
            flag(&["--mcp-config", &path.to_string_lossy()]);
            files.push(LaunchFile { path, contents: servers(server).to_string() });
        }
        // The user's own settings and hooks are not used; the project's belong to the work.
        match launch.project_settings {
            ProjectSettings::Count => flag(&["--setting-sources", "project"]),
            // With no setting source it reads no instructions either, except those of an added
            // directory.
            ProjectSettings::Ignored => {
                flag(&["--add-dir", &launch.cwd.to_string_lossy(), "--setting-sources", ""])
            }
            ProjectSettings::Nothing => flag(&["--strict-mcp-config", "--setting-sources", ""]),
        }
        if let Some(text) = launch.system_prompt_append.as_deref().filter(|text| !text.is_empty()) {
            // In a file, because arguments are public and one argument holds at most 128 KiB.
            let path = launch.agent_dir.join("claude/system-prompt.md");
            flag(&["--append-system-prompt-file", &path.to_string_lossy()]);
            files.push(LaunchFile { path, contents: text.to_string() });
        }
        if let Some(model) = &launch.model {
            flag(&["--model", model]);
        }
        if let Some(turns) = launch.max_turns {
            flag(&["--max-turns", &turns.to_string()]);
        }
        if let Some(budget) = launch.budget_usd {
            flag(&["--max-budget-usd", &budget.to_string()]);
        }
        if let Some(schema) = &launch.result_schema {
            flag(&["--json-schema", &schema.to_string()]);
        }
        match (&launch.resume, &launch.session_id) {
            // The CLI rejects a used id with --session-id, so never pass both.
            (Some(session), _) => flag(&["--resume", session]),
            (None, Some(session)) => flag(&["--session-id", session]),
            (None, None) => {}
        }
        argv.extend(launch.args.iter().cloned());

        let given = |name: &str| launch.env.iter().any(|(key, _)| key == name);
        let env_remove = set_for_nested().filter(|name| !given(name)).map(str::to_string).collect();
        let mut env = launch.telemetry.as_ref().map(telemetry).unwrap_or_default();
        env.extend(in_sandbox(launch));
        if launch.project_settings == ProjectSettings::Ignored {
            env.push((READ_INSTRUCTIONS.into(), "1".into()));
        }
        env.extend(launch.env.iter().cloned());
        Ok(CommandLine { argv, env, env_remove, stdin: StdinMode::Open, files })
    }

    fn prompt(&self, _session: Option<&str>, key: &str, text: &str) -> Vec<u8> {
        user(key, &prompt::literal(text))
    }

    fn cli_command(&self, _session: Option<&str>, key: &str, command: &str) -> Option<Vec<u8>> {
        Some(user(key, command))
    }

    fn interrupt(&self, _session: Option<&str>, key: &str) -> Option<Vec<u8>> {
        Some(line(&json!({
            "type": "control_request",
            "request_id": key,
            "request": {"subtype": "interrupt"},
        })))
    }

    fn answer(&self, id: &str, ask: &Ask, answer: &Answer) -> Option<Vec<u8>> {
        Some(line(&control::answer(id, ask, answer)))
    }

    /// The agent's shell can still write. Whether it did is checked afterwards.
    fn keep_from_writing(&self, args: &mut Vec<String>) {
        let named = |arg: &String| {
            arg.starts_with("--disallowedTools") || arg.starts_with("--disallowed-tools")
        };
        if !args.iter().any(named) {
            args.push("--disallowedTools=Edit,Write,NotebookEdit".into());
        }
    }

    fn loosened_by(&self, policy: &Policy, words: &[String]) -> Option<String> {
        rights::loosened_by(policy, words)
    }

    fn transcripts(&self) -> Option<&'static dyn Transcripts> {
        Some(&transcript::ClaudeTranscripts)
    }

    fn set_model(
        &self,
        _session: Option<&str>,
        _by: Option<&str>,
        key: &str,
        model: &str,
    ) -> Option<Vec<u8>> {
        Some(line(&json!({
            "type": "control_request",
            "request_id": key,
            "request": {"subtype": "set_model", "model": model},
        })))
    }

    fn parser(&self) -> Box<dyn Parser> {
        Box::new(LineParser::new(parser::StreamJson))
    }
}

/// Returns the variable that lets the CLI run as root without asking: it requires a sandbox for
/// that. Configured variables and those inherited from the client win over it.
pub(crate) fn in_sandbox(launch: &LaunchSpec) -> Option<(String, String)> {
    const NAME: &str = "IS_SANDBOX";
    let said = launch.inherited.iter().any(|name| name == NAME);
    (launch.sandboxed_root && !said).then(|| (NAME.into(), "1".into()))
}

/// Returns the variables that make the CLI send its own spans, metrics and logs. `TRACEPARENT`
/// makes its root span a child of ours. Configured variables win over these.
fn telemetry(collector: &Collector) -> Vec<(String, String)> {
    // An agent sends only the signals that the daemon sends. Logs have only the base URL.
    let exporter = |goes: bool| if goes { "otlp" } else { "none" };
    let Collector { base, traces, metrics } = collector;
    let places = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", base),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", traces),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", metrics),
    ];
    let on = [
        ("CLAUDE_CODE_ENABLE_TELEMETRY", "1"),
        // Its spans are a beta feature.
        ("CLAUDE_CODE_ENHANCED_TELEMETRY_BETA", "1"),
        ("OTEL_TRACES_EXPORTER", exporter(traces.is_some())),
        ("OTEL_METRICS_EXPORTER", exporter(metrics.is_some())),
        ("OTEL_LOGS_EXPORTER", exporter(base.is_some())),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
    ];
    let places = places.into_iter().filter_map(|(name, place)| Some((name, place.as_deref()?)));
    on.into_iter()
        .chain(places)
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
}

/// Returns the line of a user message. The CLI runs a text that begins with a slash as its command.
fn user(key: &str, text: &str) -> Vec<u8> {
    line(&json!({
        "type": "user",
        "message": {"role": "user", "content": text},
        "parent_tool_use_id": null,
        "session_id": "",
        "uuid": key,
    }))
}

/// Returns the JSON as one stdin line. A line that is not JSON would kill the process; JSON escapes
/// every newline, so the value is one line.
fn line(value: &serde_json::Value) -> Vec<u8> {
    let mut bytes = value.to_string().into_bytes();
    bytes.push(b'\n');
    bytes
}

/// Returns the file that names Muleteer's MCP server. Without `timeout`, the longest call would
/// depend on the version of the CLI.
fn servers(server: &ToolServer) -> Value {
    let env: serde_json::Map<_, _> =
        server.env.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
    json!({"mcpServers": {ToolServer::NAME: {
        "type": "stdio",
        "command": server.program,
        "args": ["mcp"],
        "env": env,
        "timeout": server.longest_call.as_secs() * 1000,
    }}})
}
