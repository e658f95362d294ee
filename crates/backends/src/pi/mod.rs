//! pi (`pi --mode json`): its command line.
//!
//! One process is one turn: the prompt on stdin, then end of file. A further turn is another
//! process that resumes the session. `--mode rpc` would keep one process for several turns, but an
//! extension of the user can wait there for an answer that nobody gives; in this mode it cannot.
//!
//! Prompts carry their key in a last line, which the session's file then contains. We choose the id
//! of a session and its folder, which is below the agent's own.
//!
//! pi never asks for permission. It reports the tokens and the cost of every model call. It exits
//! with 0 after an error of the model API; its output says so.

pub(crate) mod parser;
mod rights;
mod transcript;

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
use crate::ProjectSettings;
use crate::StdinMode;
use crate::Transcripts;
use crate::Variable;
use crate::Variables;
use crate::launch::Cli;
use crate::stream::lines::LineParser;
use muleteer_model::agent::backend::{StartError, Traits};
use muleteer_model::agent::capability::PI_JSON;
use muleteer_model::agent::prompt;

const HOME: Home = Home {
    variable: "PI_CODING_AGENT_DIR",
    folder: ".pi/agent",
    // The sessions are in the agent's own folder.
    conversations: &[],
    database: None,
};

/// The variable that says where the sessions are. Otherwise the user's settings or the project's
/// could, and a session would not be found after a crash.
const SESSIONS: &str = "PI_CODING_AGENT_SESSION_DIR";

const VARIABLES: Variables = Variables {
    own: &[],
    passed: &["PI_CODING_AGENT_DIR"],
    for_agents: &["PI_*"],
    loading: &["PI_*"],
    nesting: &[],
};

const CLI: Cli = Cli {
    backend: "pi",
    program: PI_JSON.program,
    get: "npm install -g @earendil-works/pi-coding-agent, or set backends.pi.command",
    empty: "backends.pi.command is an empty list: remove it, or name the program first",
};

const START_ERRORS: [StartError; 2] = [
    StartError {
        marks: &["No API key found for the selected model"],
        reason: "pi has no key for its model: run `pi` and `/login`, or set the provider's key",
    },
    StartError {
        marks: &["Error: Model ", " not found"],
        reason: "pi does not know the model: `pi --list-models` lists those that it knows",
    },
];

/// Nothing of the repository and of others is loaded.
const WITHOUT_SETTINGS: [&str; 6] = [
    "--no-approve",
    "--no-context-files",
    "--no-extensions",
    "--no-prompt-templates",
    "--no-skills",
    "--no-themes",
];

/// The backend `pi`.
#[derive(Debug, Clone, Copy)]
pub struct Pi;

impl Backend for Pi {
    fn name(&self) -> &'static str {
        CLI.backend
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            multi_turn: false,
            resumable: PI_JSON.resumes,
            structured: false,
            receipts: false,
            folds: false,
            briefed: Briefed::InSystemPrompt,
            interrupt: Interrupt::BySignal,
            asks: PI_JSON.asks(),
            judges_actions: false,
        }
    }

    fn traits(&self) -> Traits {
        Traits {
            reports_cost: PI_JSON.tells_cost(),
            start_errors: &START_ERRORS,
            agent: Some(&PI_JSON),
            ..Traits::default()
        }
    }

    fn program(&self) -> Program {
        Program::OnPath { name: PI_JSON.program, install: PI_JSON.install }
    }

    fn has_any_provider(&self) -> bool {
        true
    }

    fn process_names(&self) -> &'static [&'static str] {
        &["pi"]
    }

    fn variables(&self) -> Variables {
        VARIABLES
    }

    fn home(&self) -> Option<Home> {
        Some(HOME)
    }

    fn own_folder(&self) -> Option<&'static str> {
        Some("pi")
    }

    fn access(&self, _: Variable<'_>, _config: &str, _args: &[String]) -> Access {
        Access { credential: "the key of pi's provider".into(), ..Access::default() }
    }

    fn command_line(&self, launch: &LaunchSpec) -> Result<CommandLine, BackendError> {
        let mut argv = CLI.words(launch)?;
        let mut files = Vec::new();
        let mut flag = |words: &[&str]| argv.extend(words.iter().map(|word| (*word).to_string()));
        flag(&["--mode", "json"]);
        if let Some(text) = launch.system_prompt_append.as_deref().filter(|text| !text.is_empty()) {
            // In a file, because arguments are public and one argument holds at most 128 KiB.
            let path = launch.agent_dir.join("pi/system-prompt.md");
            flag(&["--append-system-prompt", &path.to_string_lossy()]);
            files.push(LaunchFile { path, contents: text.to_string() });
        }
        if let Some(model) = &launch.model {
            flag(&["--model", model]);
        }
        match (&launch.resume, &launch.session_id) {
            (Some(session), _) => flag(&["--session", session]),
            (None, Some(session)) => flag(&["--session-id", session]),
            (None, None) => {}
        }
        if launch.project_settings == ProjectSettings::Nothing {
            argv.extend(WITHOUT_SETTINGS.map(String::from));
        }
        argv.extend(launch.args.iter().cloned());
        let sessions = launch.agent_dir.join("pi/sessions");
        let mut env = vec![(SESSIONS.to_string(), sessions.to_string_lossy().into_owned())];
        env.extend(launch.env.iter().cloned());
        Ok(CommandLine { argv, env, env_remove: vec![], stdin: StdinMode::CloseAfterPrompt, files })
    }

    fn prompt(&self, _session: Option<&str>, key: &str, text: &str) -> Vec<u8> {
        prompt::mark(&prompt::literal(text), key).into_bytes()
    }

    /// The agent's shell can still write. Whether it did is checked afterwards.
    fn keep_from_writing(&self, args: &mut Vec<String>) {
        if !rights::names_tools(args) {
            args.extend(["--exclude-tools".into(), "edit,write".into()]);
        }
    }

    fn transcripts(&self) -> Option<&'static dyn Transcripts> {
        Some(&transcript::Sessions)
    }

    fn parser(&self) -> Box<dyn Parser> {
        Box::new(LineParser::new(parser::ModeJson))
    }
}
