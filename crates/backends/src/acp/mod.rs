//! Runs any agent that speaks the Agent Client Protocol (JSON-RPC, one message per line): its
//! command line and our messages to it.
//!
//! One process holds one session of many turns: `initialize`, then `session/new` or `session/load`,
//! then a `session/prompt` for each turn. Each call encodes its meaning in its id, which comes back
//! with the answer, so that the parser need not remember the call.
//!
//! The protocol has no receipt for a prompt. Prompts carry their key in a last line, and an agent
//! that loads a session first replays its history: a prompt in the history was accepted.
//!
//! Architecture invariant: only this folder knows the protocol's names. The official types check
//! ours in the tests but are not part of the program: they reject lines of a newer protocol
//! version, and a supervisor must not.

pub(crate) mod api_error;
mod ask;
mod asking;
pub(crate) mod names;
mod parser;
mod result;
pub(crate) mod start;
mod update;
mod wrapper;

pub use asking::{program, refusal};
pub(crate) use result::{broken_off, unanswered};

use crate::Backend;
use crate::BackendError;
use crate::Briefed;
use crate::Capabilities;
use crate::Command;
use crate::CommandLine;
use crate::Home;
use crate::Interrupt;
use crate::LaunchSpec;
use crate::Parser;
use crate::ProjectSettings;
use crate::RepositorySettings;
use crate::StdinMode;
use crate::Variables;
use crate::find_program;
use crate::launch::{Cli, ToolServer};
use crate::properties::agent_settings;
use crate::stream::lines::LineParser;
use muleteer_model::agent::acp_handshake::Call;
use muleteer_model::agent::ask::{Answer, Ask};
use muleteer_model::agent::backend::Traits;
use muleteer_model::agent::capability::{self, Agent, Refused};
use muleteer_model::agent::prompt;
use serde_json::{Value, json};
use std::ffi::OsStr;

/// The protocol version that we speak.
const VERSION: u64 = 1;

/// An agent that is known by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    pub name: &'static str,
    pub program: &'static str,
    pub args: &'static [&'static str],
    /// Further arguments under an open policy. They are left out if the user's arguments name a
    /// mode: some agents reject both together.
    pub open_args: &'static [&'static str],
    /// How to install it.
    pub get: &'static str,
    /// The variable that sets which actions the agent takes without asking, if it has one, with its
    /// values for an open policy and for one that asks.
    pub mode: Option<Mode>,
    /// The variable that chooses the model, if the agent is started with it.
    pub model: Option<&'static str>,
    /// Variables that the agent does not inherit.
    pub env_remove: &'static [&'static str],
    /// Variables that are set unless the user set them.
    pub env: &'static [(&'static str, &'static str)],
    /// Set if no new dispatch may name it.
    pub refused: Option<Refused>,
}

/// The variable that controls whether an agent asks us. By default, agents that have their own
/// sandbox ask that sandbox and not us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    pub variable: &'static str,
    /// `None`: the agent's own settings decide.
    pub unasked: Option<&'static str>,
    pub asking: &'static str,
}

/// The ACP agent that is Claude Code.
const CLAUDE: &str = capability::CLAUDE_AGENT_ACP.name;

const VARIABLES: Variables = Variables {
    own: &["GEMINI_API_KEY*", "GOOGLE_API_KEY*"],
    passed: &["GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENROUTER_API_KEY"],
    for_agents: &["GEMINI_*", "GOOGLE_*"],
    loading: &[
        "OPENCODE_*",
        "GEMINI_CLI_*",
        "AIDER_*",
        "COPILOT_*",
        "CURSOR_*",
        "GOOSE_*",
        "QWEN_*",
    ],
    nesting: &[],
};

/// In the order in which `--backend acp` searches for one: that of [`capability::ACP`].
pub const KNOWN: [Known; 8] = [
    Known {
        env: &[
            // Otherwise it has the model suggest a next prompt after each turn, which is an extra
            // request.
            ("CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION", "false"),
            // It does not report its retries, and ten of them are minutes of silence. With one
            // retry the failure and its reason are reported.
            ("CLAUDE_CODE_MAX_RETRIES", "1"),
        ],
        ..preset(&capability::CLAUDE_AGENT_ACP)
    },
    Known {
        mode: Some(Mode {
            variable: "INITIAL_AGENT_MODE",
            unasked: Some("agent-full-access"),
            asking: "read-only",
        }),
        ..preset(&capability::CODEX_ACP)
    },
    Known {
        args: &["acp"],
        mode: Some(asking::OPENCODE),
        env: &[("OPENCODE_DISABLE_AUTOUPDATE", "1")],
        ..preset(&capability::OPENCODE)
    },
    Known {
        args: &["--acp"],
        open_args: &["--yolo"],
        // It hides the user's git configuration from its commands, so that no commit has an author.
        // It leaves settings in the environment alone.
        env: &[
            ("GIT_CONFIG_COUNT", "2"),
            ("GIT_CONFIG_KEY_0", "include.path"),
            ("GIT_CONFIG_VALUE_0", "~/.config/git/config"),
            ("GIT_CONFIG_KEY_1", "include.path"),
            ("GIT_CONFIG_VALUE_1", "~/.gitconfig"),
        ],
        ..preset(&capability::GEMINI)
    },
    Known { args: &["--acp"], open_args: &["--yolo"], ..preset(&capability::QWEN) },
    Known {
        args: &["--acp", "--no-auto-update"],
        open_args: &["--allow-all-tools"],
        model: Some("COPILOT_MODEL"),
        // With this variable it runs the servers of a repository's `.mcp.json`.
        env_remove: &["COPILOT_ALLOW_ALL"],
        ..preset(&capability::COPILOT)
    },
    Known { args: &["--acp"], ..preset(&capability::CLINE) },
    preset(&capability::PI),
];

/// Returns the preset of an agent that its program alone starts.
const fn preset(agent: &Agent) -> Known {
    Known {
        name: agent.name,
        program: agent.program,
        args: &[],
        open_args: &[],
        get: agent.install,
        mode: None,
        model: None,
        env_remove: &[],
        env: &[],
        refused: agent.refused,
    }
}

/// Returns the agent with that name.
///
/// # Errors
/// [`BackendError::UnknownAgent`], with the nearest name.
pub fn known(name: &str) -> Result<Known, BackendError> {
    KNOWN
        .into_iter()
        .find(|known| known.name == name)
        .ok_or_else(|| BackendError::unknown_agent(name))
}

/// Returns the agent that a new dispatch names.
///
/// # Errors
/// [`BackendError::UnknownAgent`], and [`BackendError::RefusedAgent`] with what to use instead.
pub fn to_start(name: &str) -> Result<Known, BackendError> {
    let known = known(name)?;
    match known.refused {
        Some(refused) => Err(BackendError::RefusedAgent { name: known.name, refused }),
        None => Ok(known),
    }
}

/// Returns the agents that a new dispatch may name.
pub(crate) fn offered() -> impl Iterator<Item = Known> {
    KNOWN.into_iter().filter(|known| known.refused.is_none())
}

/// Returns the first of the agents on `path` that a new dispatch may name.
pub fn installed(path: Option<&OsStr>) -> Option<Known> {
    offered().find(|known| find_program(known.program, path).is_some())
}

/// The backend `acp`.
#[derive(Debug, Clone, Copy)]
pub struct Acp;

const NAME: &str = "acp";
const EMPTY: &str = "backends.acp.command is an empty list: remove it, or name the program first";

impl Backend for Acp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            multi_turn: true,
            // Agents that cannot resume say so in their answer to `initialize`.
            resumable: true,
            structured: false,
            receipts: false,
            briefed: Briefed::InFirstPrompt,
            interrupt: Interrupt::ByStdin,
            asks: true,
            judges_actions: false,
            folds: false,
        }
    }

    fn traits(&self) -> Traits {
        Traits { agents: &capability::ACP, ..Traits::default() }
    }

    /// The CLIs that speak the protocol, and others that a person runs beside them.
    fn process_names(&self) -> &'static [&'static str] {
        &["gemini", "opencode", "cursor-agent", "copilot", "goose", "aider", "qwen", "droid"]
    }

    fn runs_command_in_shell(&self, agent: Option<&str>) -> bool {
        agent.is_none()
    }

    fn has_agents(&self) -> bool {
        true
    }

    fn variables(&self) -> Variables {
        VARIABLES
    }

    /// Any CLI can be behind the protocol.
    fn creates_home(&self, _home: &Home) -> bool {
        true
    }

    // The agent may be Codex.
    fn uses_login_shells(&self) -> bool {
        true
    }

    fn own_folder(&self) -> Option<&'static str> {
        Some("acp")
    }

    fn repository_settings(
        &self,
        agent: Option<&str>,
        command: Option<&Command>,
    ) -> Option<RepositorySettings> {
        let named = || match command {
            Some(Command::Shell(text)) => text.contains(CLAUDE),
            Some(Command::Argv(words)) => words.iter().any(|word| word.contains(CLAUDE)),
            None => false,
        };
        if agent == Some(CLAUDE) || named() {
            return Some(RepositorySettings::All);
        }
        let known = agent.and_then(|name| known(name).ok());
        let program = asking::program(known, command, &[])?;
        agent_settings::of_program(&program).map(RepositorySettings::Of)
    }

    fn by_calls(&self) -> bool {
        true
    }

    fn command_line(&self, launch: &LaunchSpec) -> Result<CommandLine, BackendError> {
        let path = launch.path.as_deref().map(OsStr::new);
        let known = match (&launch.agent, &launch.command) {
            (Some(name), _) => Some(known(name)?),
            (None, Some(_)) => None,
            (None, None) => Some(installed(path).ok_or(BackendError::NoAgent)?),
        };
        let mut argv = match (&launch.command, known) {
            // Arguments of ours would change the meaning of the command; `sh -c` needs none.
            (Some(Command::Shell(text)), None) if !text.trim().is_empty() => {
                ["/bin/sh", "-c", text].map(str::to_string).to_vec()
            }
            (_, known) => {
                let (program, get) =
                    known.map_or(("acp", EMPTY), |known| (known.program, known.get));
                Cli { backend: NAME, program, get, empty: EMPTY }.words(launch)?
            }
        };
        argv.extend(known.iter().flat_map(|known| known.args).map(|arg| (*arg).to_string()));
        let words = argv.iter().chain(&launch.args);
        if launch.permissions.is_open() && !words.into_iter().any(|word| asking::names_a_mode(word))
        {
            let open = known.iter().flat_map(|known| known.open_args);
            argv.extend(open.map(|arg| (*arg).to_string()));
        }
        let in_a_shell = matches!((&launch.command, known), (Some(Command::Shell(_)), None));
        if in_a_shell && !launch.args.is_empty() {
            // This is the command's `$0`, so that the configured arguments are its "$@".
            argv.push("sh".into());
        }
        argv.extend(launch.args.iter().cloned());
        let given = |name: &str| launch.env.iter().any(|(key, _)| key == name);
        let nesting = crate::claude_code::set_for_nested().chain(crate::codex::NESTING);
        let nesting = nesting.chain(known.iter().flat_map(|known| known.env_remove).copied());
        let env_remove = nesting.filter(|name| !given(name)).map(str::to_string).collect();
        let mode = known.map_or_else(
            || asking::mode(launch.command.as_ref(), &launch.args),
            |known| known.mode,
        );
        let mode = mode.and_then(|mode| {
            let value = if launch.permissions.is_open() { mode.unasked? } else { mode.asking };
            Some((mode.variable, value))
        });
        let agent_settings::Start { env: settings, files } = settings(known, launch)?;
        let ours = known.iter().flat_map(|known| known.env).copied().chain(mode);
        let ours = ours.map(|(name, value)| (name.to_string(), value.to_string()));
        let model = known.and_then(|known| known.model).zip(launch.model.clone());
        let model = model.map(|(name, model)| (name.to_string(), model));
        let ours = ours.chain(model).chain(settings).filter(|(name, _)| !given(name));
        let env = crate::claude_code::in_sandbox(launch)
            .into_iter()
            .chain(launch.env.iter().cloned())
            .chain(ours)
            .collect();
        Ok(CommandLine { argv, env, env_remove, stdin: StdinMode::Open, files })
    }

    fn call(
        &self,
        call: &Call,
        session: Option<&str>,
        settings: ProjectSettings,
        tools: Option<&ToolServer>,
    ) -> Option<Vec<u8>> {
        Some(match call {
            Call::Greet => request(
                id::GREET,
                "initialize",
                json!({
                    "protocolVersion": VERSION,
                    // The agent must use its own file access: ours would bypass its sandbox.
                    "clientCapabilities": {
                        "fs": {"readTextFile": false, "writeTextFile": false},
                        "terminal": false,
                    },
                    "clientInfo": {
                        "name": "muleteer",
                        "title": "Muleteer",
                        "version": env!("CARGO_PKG_VERSION"),
                    },
                }),
            ),
            Call::Open { load, cwd, agent, permissions } => {
                let servers: Vec<_> = tools.into_iter().map(server).collect();
                let mut params = json!({"cwd": cwd, "mcpServers": servers});
                if let Some(meta) = asking::meta(agent, permissions, (settings, cwd)) {
                    params["_meta"] = meta;
                }
                let name = agent.split(' ').next().unwrap_or_default();
                if tools.is_some() && capability::CODEX_ACP.names.contains(&name) {
                    // Otherwise the first request to the model may lack the tools.
                    params["_meta"]["mcpStartupAwaitTimeoutMs"] =
                        (ToolServer::LONGEST_START_S * 1000).into();
                }
                match load {
                    None => request(id::NEW, "session/new", params),
                    Some(session) => {
                        params["sessionId"] = session.as_str().into();
                        request(id::LOAD, "session/load", params)
                    }
                }
            }
            Call::SetMode { by, mode } | Call::RestoreMode { by, mode, .. } => match by
                .strip_prefix(BY_OPTION)
            {
                Some(option) => {
                    let params = json!({"sessionId": session, "configId": option, "value": mode});
                    request(id::MODE, "session/set_config_option", params)
                }
                None => request(
                    id::MODE,
                    "session/set_mode",
                    json!({"sessionId": session, "modeId": mode}),
                ),
            },
            Call::SetModel { by, model } => set_model(id::MODEL, session, by, model),
        })
    }

    fn prompt(&self, session: Option<&str>, key: &str, text: &str) -> Vec<u8> {
        prompted(session, key, &prompt::mark(&prompt::literal(text), key))
    }

    /// Without the mark, because an agent would take it for the command's arguments.
    fn cli_command(&self, session: Option<&str>, key: &str, command: &str) -> Option<Vec<u8>> {
        Some(prompted(session, key, command))
    }

    fn interrupt(&self, session: Option<&str>, _key: &str) -> Option<Vec<u8>> {
        // This is a notification: the end of the turn is the answer.
        Some(line(&json!({
            "jsonrpc": "2.0",
            "method": "session/cancel",
            "params": {"sessionId": session},
        })))
    }

    fn can_say(&self, ask: &Ask, answer: &Answer) -> bool {
        ask::can_say(ask, answer)
    }

    fn answer(&self, id: &str, ask: &Ask, answer: &Answer) -> Option<Vec<u8>> {
        Some(line(&ask::answer(id, ask, answer)))
    }

    fn set_model(
        &self,
        session: Option<&str>,
        by: Option<&str>,
        key: &str,
        model: &str,
    ) -> Option<Vec<u8>> {
        Some(set_model(&format!("{}{key}", id::CHANGE), session, by?, model))
    }

    fn parser(&self) -> Box<dyn Parser> {
        Box::new(LineParser::new(parser::Messages))
    }
}

/// Returns the variables and files with which an agent gets the settings of its preset, and starts
/// without those of a repository that is not trusted.
///
/// # Errors
/// The agent loads the repository's settings in any case.
fn settings(
    known: Option<Known>,
    launch: &LaunchSpec,
) -> Result<agent_settings::Start, BackendError> {
    let mut start = known.map(|known| agent_settings::defaults(&known, launch)).unwrap_or_default();
    let program = asking::program(known, launch.command.as_ref(), &launch.args);
    let loaded = program.as_deref().and_then(agent_settings::of_program);
    let without = agent_settings::start(loaded.map(RepositorySettings::Of), launch)?;
    start.env.extend(without.env);
    start.files.extend(without.files);
    Ok(start)
}

/// The ids of our calls. No other client of the protocol uses such ids, so an answer to another
/// client's call (in `muleteer parse`) is recognised by its shape.
mod id {
    pub const GREET: &str = "initialize";
    pub const NEW: &str = "session/new";
    pub const LOAD: &str = "session/load";
    pub const MODE: &str = "mode";
    pub const MODEL: &str = "model";
    /// The id of a model change in an open session, followed by its key.
    pub const CHANGE: &str = "model/";
    pub const PROMPT: &str = "prompt/";
}

/// How a model is set: by a configuration option of the session, whose id follows the prefix, or by
/// a separate call.
const BY_OPTION: &str = "option ";
const BY_CALL: &str = "call";

fn set_model(id: &str, session: Option<&str>, by: &str, model: &str) -> Vec<u8> {
    match by.strip_prefix(BY_OPTION) {
        Some(option) => {
            let params = json!({"sessionId": session, "configId": option, "value": model});
            request(id, "session/set_config_option", params)
        }
        None => request(id, "session/set_model", json!({"sessionId": session, "modelId": model})),
    }
}

fn prompted(session: Option<&str>, key: &str, text: &str) -> Vec<u8> {
    let params = json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]});
    request(&format!("{}{key}", id::PROMPT), "session/prompt", params)
}

fn request(id: &str, method: &str, params: Value) -> Vec<u8> {
    line(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
}

/// Returns the message as one line; JSON escapes every newline.
fn line(value: &Value) -> Vec<u8> {
    let mut bytes = value.to_string().into_bytes();
    bytes.push(b'\n');
    bytes
}

/// Returns Muleteer's MCP server for `session/new`.
fn server(tools: &ToolServer) -> Value {
    let env = tools.env.iter().map(|(name, value)| json!({"name": name, "value": value}));
    json!({
        "name": ToolServer::NAME,
        "command": tools.program,
        "args": ["mcp"],
        "env": env.collect::<Vec<_>>(),
    })
}
