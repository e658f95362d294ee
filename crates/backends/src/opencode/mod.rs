//! opencode (`opencode run --format json`): its command line.
//!
//! One process is one turn: the prompt on stdin, then end of file. A further turn is another
//! process that continues the session.
//!
//! Without a person opencode asks nobody: it rejects what it would ask about, ends the turn, and
//! exits with 0. So no policy can bind it here; `acp:opencode` asks. It reports a tool call when
//! the call has ended, and the tokens and the cost of every model call.

pub(crate) mod parser;

use crate::Access;
use crate::Backend;
use crate::BackendError;
use crate::Briefed;
use crate::Capabilities;
use crate::Command;
use crate::CommandLine;
use crate::Interrupt;
use crate::LaunchSpec;
use crate::Parser;
use crate::Program;
use crate::ProjectSettings;
use crate::RepositorySettings;
use crate::StdinMode;
use crate::Variable;
use crate::flags::{Flag, flag_words};
use crate::launch::Cli;
use crate::properties::agent_settings;
use crate::stream::lines::LineParser;
use muleteer_model::agent::backend::{StartError, Traits};
use muleteer_model::agent::capability::OPENCODE_RUN;

const CLI: Cli = Cli {
    backend: "opencode",
    program: OPENCODE_RUN.program,
    get: "npm install -g opencode-ai, or set backends.opencode.command",
    empty: "backends.opencode.command is an empty list: remove it, or name the program first",
};

/// Otherwise it rejects what its own settings say to ask about.
const UNASKED: &str = "--auto";

const NO_UPDATE: &str = "OPENCODE_DISABLE_AUTOUPDATE";

const START_ERRORS: [StartError; 1] = [StartError {
    marks: &["Session not found"],
    reason: "opencode no longer has the session: start a new dispatch",
}];

/// The backend `opencode`.
#[derive(Debug, Clone, Copy)]
pub struct Opencode;

impl Backend for Opencode {
    fn name(&self) -> &'static str {
        CLI.backend
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            multi_turn: false,
            resumable: OPENCODE_RUN.resumes,
            structured: false,
            receipts: false,
            folds: false,
            briefed: Briefed::InFirstPrompt,
            interrupt: Interrupt::BySignal,
            asks: OPENCODE_RUN.asks(),
            judges_actions: false,
        }
    }

    fn traits(&self) -> Traits {
        Traits {
            reports_cost: OPENCODE_RUN.tells_cost(),
            start_errors: &START_ERRORS,
            agent: Some(&OPENCODE_RUN),
            ..Traits::default()
        }
    }

    fn program(&self) -> Program {
        Program::OnPath { name: OPENCODE_RUN.program, install: OPENCODE_RUN.install }
    }

    fn has_any_provider(&self) -> bool {
        true
    }

    fn own_folder(&self) -> Option<&'static str> {
        Some("opencode")
    }

    fn access(&self, _: Variable<'_>, _config: &str, _args: &[String]) -> Access {
        Access { credential: "the key of opencode's provider".into(), ..Access::default() }
    }

    fn repository_settings(
        &self,
        _agent: Option<&str>,
        _command: Option<&Command>,
    ) -> Option<RepositorySettings> {
        agent_settings::of_program(OPENCODE_RUN.program).map(RepositorySettings::Of)
    }

    fn command_line(&self, launch: &LaunchSpec) -> Result<CommandLine, BackendError> {
        // It loads plugins whatever its variables say.
        if launch.project_settings == ProjectSettings::Ignored {
            return Err(BackendError::Untrusted { agent: OPENCODE_RUN.name });
        }
        let mut argv = CLI.words(launch)?;
        let mut flag = |words: &[&str]| argv.extend(words.iter().map(|word| (*word).to_string()));
        flag(&["run", "--format", "json", UNASKED]);
        if let Some(model) = &launch.model {
            flag(&["--model", model]);
        }
        match &launch.resume {
            Some(session) => flag(&["--session", session]),
            // With a title of its own it does not ask the model for one, outside of its report.
            None => {
                let id = launch.agent_dir.file_name().unwrap_or_default().to_string_lossy();
                flag(&["--title", format!("muleteer {id}").trim_end()]);
            }
        }
        argv.extend(launch.args.iter().cloned());
        let mut env = vec![(NO_UPDATE.to_string(), "1".to_string())];
        env.extend(launch.env.iter().cloned());
        Ok(CommandLine {
            argv,
            env,
            env_remove: vec![],
            stdin: StdinMode::CloseAfterPrompt,
            files: vec![],
        })
    }

    /// Its agent `plan` has no tools that edit. The agent's shell can still write.
    fn keep_from_writing(&self, args: &mut Vec<String>) {
        if !Flag::all(&flag_words(None, args)).any(|flag| flag.name == "--agent") {
            args.extend(["--agent".into(), "plan".into()]);
        }
    }

    fn parser(&self) -> Box<dyn Parser> {
        Box::new(LineParser::new(parser::RunJson))
    }
}
