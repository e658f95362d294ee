//! Runs any command as an agent: the prompt on stdin, lines on stdout.
//!
//! A line of the headless JSON of an agent CLI that we know has the meaning that it has there. Any
//! other line is output, unless it is a JSON object whose `type` is one of our agent events; then
//! it is that event. `{"type":"result", …}` with the fields of a result is the agent's result.

mod headless;
mod lines;

use crate::Access;
use crate::Backend;
use crate::BackendError;
use crate::Briefed;
use crate::Capabilities;
use crate::CommandLine;
use crate::Interrupt;
use crate::LaunchSpec;
use crate::Parser;
use crate::Program;
use crate::RepositorySettings;
use crate::StdinMode;
use crate::Variable;
use crate::acp::start;
use crate::launch::Command;
use crate::properties::agent_settings;
use crate::stream::lines::LineParser;
use muleteer_model::agent::backend::Traits;
use muleteer_model::agent::capability::{COMMANDS, SUBPROCESS};

pub const NAME: &str = "subprocess";
/// The hint if the program of a list command is missing.
pub const GET: &str = "install it, or give the absolute path as the command's first word";

/// The backend `subprocess`.
#[derive(Debug, Clone, Copy)]
pub struct Subprocess;

impl Backend for Subprocess {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            multi_turn: false,
            resumable: SUBPROCESS.resumes,
            structured: false,
            receipts: false,
            folds: false,
            briefed: Briefed::Nowhere,
            interrupt: Interrupt::BySignal,
            asks: SUBPROCESS.asks(),
            judges_actions: false,
        }
    }

    fn traits(&self) -> Traits {
        Traits { reports_cost: SUBPROCESS.tells_cost(), agents: &COMMANDS, ..Traits::default() }
    }

    fn program(&self) -> Program {
        Program::Command { hint: "give --command 'CMD', or set backends.subprocess.command" }
    }

    fn runs_command_in_shell(&self, _agent: Option<&str>) -> bool {
        true
    }

    fn access(&self, _: Variable<'_>, _config: &str, _args: &[String]) -> Access {
        Access { by_command: true, ..Access::default() }
    }

    /// Those of the known agents that the command starts.
    fn repository_settings(
        &self,
        _agent: Option<&str>,
        command: Option<&Command>,
    ) -> Option<RepositorySettings> {
        agent_settings::of_command(&start::starts(command, &[]))
    }

    fn command_line(&self, launch: &LaunchSpec) -> Result<CommandLine, BackendError> {
        let missing_program = |program: &str| BackendError::ProgramMissing {
            backend: NAME,
            program: program.into(),
            get: GET,
        };
        let missing = BackendError::Incomplete {
            backend: NAME,
            what: "a command",
            hint: "--command 'CMD', or backends.subprocess.command in the configuration",
        };
        let mut argv = match &launch.command {
            Some(Command::Shell(text)) if !text.trim().is_empty() => {
                let mut argv = ["/bin/sh", "-c", text].map(str::to_string).to_vec();
                if !launch.args.is_empty() {
                    // This is the command's `$0`, so that the configured arguments are its "$@".
                    argv.push("sh".to_string());
                }
                argv
            }
            Some(Command::Argv(words)) if !words.is_empty() => {
                let found =
                    launch.find_program(&words[0]).ok_or_else(|| missing_program(&words[0]))?;
                std::iter::once(found).chain(words.iter().skip(1).cloned()).collect()
            }
            _ => return Err(missing),
        };
        if launch.resume.is_some() {
            return Err(BackendError::Unsupported { backend: NAME, what: "resume a session" });
        }
        argv.extend(launch.args.iter().cloned());
        let loaded = agent_settings::of_command(&start::starts(launch.command.as_ref(), &[]));
        let agent_settings::Start { mut env, files } = agent_settings::start(loaded, launch)?;
        env.extend(launch.env.iter().cloned());
        Ok(CommandLine { argv, env, env_remove: vec![], stdin: StdinMode::CloseAfterPrompt, files })
    }

    fn parser(&self) -> Box<dyn Parser> {
        Box::new(LineParser::new(lines::OutputLines))
    }
}
