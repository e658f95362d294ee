//! Codex (`codex exec --json`): its command line.
//!
//! One process is one turn: the prompt on stdin, then end of file. A further turn is another
//! process that resumes the session. Prompts carry their key in a last line, which the session's
//! rollout file in `$CODEX_HOME/sessions` then contains; so sessions stay on disk.
//!
//! Codex has no limit for turns or money, and none for the time until the model's API begins to
//! answer: `model::dispatch::life` counts its turns, `model::monitor::stall` bounds its silence. It
//! reports tokens but no cost, and a turn's tokens only at its end; `models.prices` converts them
//! to money.

mod failure;
mod parser;
mod provider;
mod rights;
mod transcript;

use provider::provider;

use crate::Access;
use crate::Backend;
use crate::BackendError;
use crate::Briefed;
use crate::Capabilities;
use crate::CommandLine;
use crate::Home;
use crate::Interrupt;
use crate::LaunchFile;
use crate::LaunchSpec;
use crate::Parser;
use crate::Program;
use crate::StdinMode;
use crate::Transcripts;
use crate::Variable;
use crate::Variables;
use crate::launch::{Cli, ToolServer};
use crate::properties::{first_set, home_path};
use crate::stream::lines::LineParser;
use muleteer_model::agent::backend::Traits;
use muleteer_model::agent::capability::CODEX;
use muleteer_model::agent::permission::Policy;
use muleteer_model::agent::prompt;
use serde_json::Value;
use std::path::PathBuf;

const PROGRAM: &str = CODEX.program;

/// How to install it.
pub(crate) const GET: &str = CODEX.install;

const HOME: Home = Home {
    variable: "CODEX_HOME",
    folder: ".codex",
    conversations: &["sessions"],
    database: Some("CODEX_SQLITE_HOME"),
};

const VARIABLES: Variables = Variables {
    own: &["OPENAI_*", "CODEX_*"],
    passed: &[
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "OPENAI_ORGANIZATION",
        "CODEX_HOME",
        "CODEX_API_KEY",
        "RUST_LOG",
        "RUST_BACKTRACE",
    ],
    for_agents: &["OPENAI_*", "CODEX_*"],
    loading: &["CODEX_*"],
    nesting: &[],
};

/// Variables that Codex sets for programs that run inside it. They are removed, because our agents
/// do not run inside it.
pub const NESTING: [&str; 8] = [
    "CODEX_APPLY_PATCH_PRESERVE_LINE_ENDINGS",
    "CODEX_CI",
    "CODEX_SANDBOX",
    "CODEX_SANDBOX_NETWORK_DISABLED",
    "CODEX_SESSION_ID",
    "CODEX_THREAD_ID",
    "CODEX_TOOL_CALL_ID",
    "CODEX_VERSION",
];

const CLI: Cli = Cli {
    backend: "codex",
    program: PROGRAM,
    get: "npm install -g @openai/codex, or set backends.codex.command",
    empty: "backends.codex.command is an empty list: remove it, or name the program first",
};

/// Nobody at a terminal can allow anything, so the agent is limited from outside. Claude Code gets
/// the same (`bypassPermissions`).
const UNASKED: &str = "--dangerously-bypass-approvals-and-sandbox";

/// The log filter for stderr: errors, as without the variable, and MCP servers that do not work,
/// which Codex reports nowhere else.
const LOG: &str = "RUST_LOG";
const BROKEN_SERVERS: &str = "error,codex_mcp::rmcp_client=warn";

/// The backend `codex`.
#[derive(Debug, Clone, Copy)]
pub struct Codex;

impl Backend for Codex {
    fn name(&self) -> &'static str {
        CLI.backend
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            multi_turn: false,
            resumable: CODEX.resumes,
            // Codex passes a schema to the model and does not check the answer.
            structured: false,
            receipts: false,
            folds: false,
            briefed: Briefed::InFirstPrompt,
            interrupt: Interrupt::BySignal,
            asks: CODEX.asks(),
            judges_actions: false,
        }
    }

    fn traits(&self) -> Traits {
        Traits {
            reports_cost: CODEX.tells_cost(),
            provider: Some("openai"),
            agent: Some(&CODEX),
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

    fn uses_login_shells(&self) -> bool {
        true
    }

    fn own_folder(&self) -> Option<&'static str> {
        Some("codex")
    }

    fn access_file(&self, variable: Variable<'_>) -> Option<PathBuf> {
        Some(home_path(HOME, variable)?.join("config.toml"))
    }

    fn access(&self, variable: Variable<'_>, config: &str, args: &[String]) -> Access {
        let provider = provider(config, args);
        let login = "the login of `codex` (`codex login` renews it)";
        let keys = ["CODEX_API_KEY", "OPENAI_API_KEY"];
        Access {
            credential: provider.env_key.unwrap_or_else(|| first_set(&keys, variable, login)),
            address: provider.base_url.or_else(|| variable("OPENAI_BASE_URL")),
            by_command: false,
        }
    }

    fn command_line(&self, launch: &LaunchSpec) -> Result<CommandLine, BackendError> {
        let mut argv = CLI.words(launch)?;
        let mut files = Vec::new();
        let mut flag = |words: &[&str]| argv.extend(words.iter().map(|word| (*word).to_string()));

        flag(&["exec", "--json", "--skip-git-repo-check"]);
        if rights::rights(&launch.args).is_none() {
            match launch.permissions.is_open_but_for_plan() {
                // Its sandbox forbids writing, and a plan needs nothing more.
                true => flag(&["--sandbox", "read-only"]),
                false => flag(&[UNASKED]),
            }
        }
        if let Some(model) = &launch.model {
            flag(&["--model", model]);
        }
        if let Some(schema) = &launch.result_schema {
            let path = launch.agent_dir.join("codex/result-schema.json");
            flag(&["--output-schema", &path.to_string_lossy()]);
            files.push(LaunchFile { path, contents: strict(schema.clone()).to_string() });
        }
        if let Some(collector) = &launch.telemetry {
            let logs = collector.base.as_ref().map(|base| format!("{base}/v1/logs"));
            for (table, place) in [("trace_exporter", &collector.traces), ("exporter", &logs)] {
                let Some(place) = place else { continue };
                let exporter = format!(
                    "otel.{table}={{otlp-http={{endpoint=\"{place}\",protocol=\"json\"}}}}"
                );
                flag(&["-c", &exporter]);
            }
        }
        if let Some(server) = &launch.tools {
            for word in servers(server) {
                flag(&["-c", &word]);
            }
        }
        let given = |name: &str| {
            let known = launch.env.iter().map(|(key, _)| key).chain(&launch.inherited);
            known.into_iter().any(|key| key == name)
        };
        let mut env = Vec::new();
        if !given(LOG) {
            env.push((LOG.to_string(), BROKEN_SERVERS.to_string()));
            // The variable is meant for Codex, not for the programs that its tools run.
            flag(&["-c", "shell_environment_policy.set.RUST_LOG=\"\""]);
        }
        env.extend(launch.env.iter().cloned());
        argv.extend(launch.args.iter().cloned());
        // After the flags, because the `resume` subcommand does not know all of them.
        if let Some(session) = &launch.resume {
            argv.extend(["resume".to_string(), session.clone()]);
        }
        argv.push("-".into());

        let given = |name: &str| launch.env.iter().any(|(key, _)| key == name);
        let env_remove =
            NESTING.into_iter().filter(|name| !given(name)).map(str::to_string).collect();
        Ok(CommandLine { argv, env, env_remove, stdin: StdinMode::CloseAfterPrompt, files })
    }

    fn prompt(&self, _session: Option<&str>, key: &str, text: &str) -> Vec<u8> {
        prompt::mark(text, key).into_bytes()
    }

    fn keep_from_writing(&self, args: &mut Vec<String>) {
        if rights::rights(args).is_none() {
            args.extend(["--sandbox".into(), "read-only".into()]);
        }
    }

    fn keeps(&self, policy: &Policy) -> bool {
        policy.is_open() || (CODEX.sandbox && policy.is_open_but_for_plan())
    }

    fn loosened_by(&self, _policy: &Policy, words: &[String]) -> Option<String> {
        rights::loosened_by(words)
    }

    fn transcripts(&self) -> Option<&'static dyn Transcripts> {
        Some(&transcript::Rollouts)
    }

    fn parser(&self) -> Box<dyn Parser> {
        Box::new(LineParser::new(parser::ExecJson))
    }
}

/// Returns the settings of Muleteer's MCP server. `required`: otherwise the first request to the
/// model may lack its tools.
fn servers(server: &ToolServer) -> Vec<String> {
    // A JSON string is a TOML string too.
    let text = |text: &str| Value::from(text).to_string();
    let env: Vec<_> =
        server.env.iter().map(|(name, value)| format!("{}={}", text(name), text(value))).collect();
    let set = |key: &str, value: String| format!("mcp_servers.{}.{key}={value}", ToolServer::NAME);
    vec![
        set("command", text(&server.program.to_string_lossy())),
        set("args", "[\"mcp\"]".into()),
        set("env", format!("{{{}}}", env.join(","))),
        set("required", "true".into()),
        set("startup_timeout_sec", ToolServer::LONGEST_START_S.to_string()),
        set("tool_timeout_sec", server.longest_call.as_secs().to_string()),
    ]
}

/// Makes a schema strict. The model's API requires that every property is required and no other is
/// allowed.
fn strict(mut schema: Value) -> Value {
    if let Some(object) = schema.as_object_mut()
        && let Some(properties) = object.get("properties").and_then(Value::as_object)
    {
        let names: Vec<Value> = properties.keys().cloned().map(Value::from).collect();
        object.insert("required".into(), names.into());
        object.insert("additionalProperties".into(), false.into());
    }
    schema
}
