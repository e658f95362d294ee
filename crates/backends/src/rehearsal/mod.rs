//! A scripted agent: a real process that plays a scenario (docs/guides/rehearsal.md).
//!
//! This module has its command line, its stdin format ([`wire`]) and the reader of its sessions
//! ([`transcript`]). The crate `muleteer-rehearsal` has the language and the player.

pub mod transcript;
pub mod wire;

use crate::Backend;
use crate::BackendError;
use crate::Briefed;
use crate::Capabilities;
use crate::CommandLine;
use crate::Interrupt;
use crate::LaunchSpec;
use crate::Parser;
use crate::StdinMode;
use crate::Transcripts;
use crate::Variables;
use crate::stream::lines::LineParser;
use crate::stream::native_events::{OwnLines, Plain};
use muleteer_model::agent::ask::{Answer, Ask, AskKind, Verdict};
use muleteer_model::agent::backend::Traits;
use muleteer_model::agent::capability::REHEARSAL;

pub const NAME: &str = "rehearsal";

/// The folder in which a rehearsed agent stores its sessions.
pub const DIR_VARIABLE: &str = "MULETEER_REHEARSAL_DIR";

/// Names the scenario if there is no `--scenario`.
pub const SCENARIO_VARIABLE: &str = "MULETEER_SCENARIO";

/// The backend `rehearsal`.
#[derive(Debug, Clone, Copy)]
pub struct Rehearsal;

impl Backend for Rehearsal {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            multi_turn: true,
            resumable: REHEARSAL.resumes,
            structured: false,
            receipts: true,
            folds: false,
            briefed: Briefed::Nowhere,
            interrupt: Interrupt::ByStdin,
            asks: REHEARSAL.asks(),
            judges_actions: false,
        }
    }

    fn traits(&self) -> Traits {
        Traits { scripted: true, reports_cost: REHEARSAL.tells_cost(), ..Traits::default() }
    }

    fn variables(&self) -> Variables {
        Variables {
            own: &["MULETEER_SCENARIO*"],
            passed: &[SCENARIO_VARIABLE],
            ..Variables::default()
        }
    }

    fn own_folder(&self) -> Option<&'static str> {
        Some("rehearsal")
    }

    fn command_line(&self, launch: &LaunchSpec) -> Result<CommandLine, BackendError> {
        if launch.command.is_some() {
            return Err(BackendError::Unsupported {
                backend: NAME,
                what: "run a command: it plays a scenario (--scenario FILE)",
            });
        }
        for path in [&launch.muleteer, &launch.agent_dir].into_iter().chain(&launch.scenario) {
            if !path.is_absolute() {
                return Err(BackendError::Relative { path: path.clone() });
            }
        }
        let mut argv = vec![launch.muleteer.to_string_lossy().into_owned(), "rehearse".to_string()];
        let mut flag = |name: &str, value: &str| argv.extend([name.to_string(), value.to_string()]);
        if let Some(scenario) = &launch.scenario {
            flag("--scenario", &scenario.to_string_lossy());
        }
        if let Some(session) = &launch.resume {
            flag("--resume", session);
        } else if let Some(session) = &launch.session_id {
            flag("--session-id", session);
        }
        if let Some(model) = &launch.model {
            flag("--model", model);
        }
        argv.extend(launch.args.iter().cloned());
        let folder = launch.agent_dir.join("rehearsal").to_string_lossy().into_owned();
        let mut env = vec![(DIR_VARIABLE.to_string(), folder)];
        env.extend(launch.env.iter().cloned());
        Ok(CommandLine { argv, env, env_remove: vec![], stdin: StdinMode::Open, files: vec![] })
    }

    fn prompt(&self, _session: Option<&str>, key: &str, text: &str) -> Vec<u8> {
        wire::line(&wire::Input::Prompt { key: Some(key.to_string()), text: text.to_string() })
    }

    fn interrupt(&self, _session: Option<&str>, _key: &str) -> Option<Vec<u8>> {
        Some(wire::line(&wire::Input::Interrupt))
    }

    fn answer(&self, id: &str, ask: &Ask, answer: &Answer) -> Option<Vec<u8>> {
        let (id, text) = (id.to_string(), answer.text.clone());
        Some(wire::line(&match ask.kind {
            AskKind::Question => wire::Input::Answer { id, text },
            _ => {
                wire::Input::PermissionAnswer { id, allow: answer.verdict == Verdict::Allow, text }
            }
        }))
    }

    fn transcripts(&self) -> Option<&'static dyn Transcripts> {
        Some(&transcript::RehearsalTranscripts)
    }

    fn parser(&self) -> Box<dyn Parser> {
        Box::new(LineParser::new(OwnLines { plain: Plain::Unknown }))
    }
}
