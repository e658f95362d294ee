//! Writes and reads the prompts of a dispatch. A prompt is on disk before it is durable.

use crate::daemon::context::Daemon;
use crate::dispatch::error::{fault, unwritten};
use crate::dispatch::saved::{FileError, Saved, prompt_file};
use muleteer_backends::Briefed;
use muleteer_model::agent::prompt;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::event::PromptKind;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::WireError;
use muleteer_store::atomic;
use std::io;
use std::path::Path;

/// Writes a prompt, which must be on disk before it is durable in the ledger.
fn write_prompt(agent_dir: &Path, key: &str, text: &str) -> Result<(), WireError> {
    atomic::write_atomic(&prompt_file(agent_dir, key)?, text.as_bytes(), 0o600)
        .map_err(|error| unwritten(&error))
}

/// A message to an existing agent.
#[derive(Debug, Clone, Copy)]
pub struct Further<'a> {
    pub key: &'a str,
    pub text: &'a str,
    /// The text is a command for the agent's CLI, and no prompt.
    pub cli_command: bool,
}

/// Writes the message where [`prompt_text`] finds it.
///
/// # Errors
/// A command is rejected if the CLI has none, or would pass it to its model.
pub fn write_further(agent_dir: &Path, backend: &str, said: &Further<'_>) -> Result<(), WireError> {
    if !said.cli_command {
        return write_prompt(agent_dir, said.key, said.text);
    }
    if !said.text.starts_with('/') {
        return Err(fault(
            ErrorCode::Usage,
            "a command of the agent's CLI begins with a slash",
            "omit --cli-command",
        ));
    }
    let known = muleteer_backends::by_name(backend);
    if !known.is_ok_and(|known| known.cli_command(None, said.key, said.text).is_some()) {
        let message = format!("the {backend} backend has no CLI commands");
        return Err(fault(ErrorCode::Unsupported, &message, "omit --cli-command"));
    }
    let file = prompt_file(agent_dir, said.key)?.with_file_name(command_file(said.key));
    atomic::write_atomic(&file, said.text.as_bytes(), 0o600).map_err(|error| unwritten(&error))
}

/// Returns the text of a prompt, or of a command for the CLI. A person's text was on disk before it
/// was durable in the ledger. The harness's own prompts follow from the state, and are written when
/// they are first needed.
pub async fn prompt_text(
    daemon: &Daemon,
    dispatch: &Dispatch,
    key: &str,
) -> Result<Said, FileError> {
    let dir = daemon.paths.agent(dispatch.id.as_str());
    let command = dir.join("prompt").join(command_file(key));
    match tokio::fs::read_to_string(&command).await {
        Ok(text) => return Ok(Said::CliCommand(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(FileError::Read { path: command, source }),
    }
    let path = dir.join("prompt").join(format!("{key}.md"));
    let kind = dispatch.prompt(key).map(|prompt| prompt.kind);
    match tokio::fs::read_to_string(&path).await {
        Ok(task)
            if kind == Some(PromptKind::Initial)
                && is_briefed_in_prompt(&dispatch.created.backend) =>
        {
            let saved = Saved::read(&dir)?;
            return Ok(Said::Prompt(prompt::dispatch(&task, saved.system_prompt.as_deref())));
        }
        Ok(text) => return Ok(Said::Prompt(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(FileError::Read { path, source }),
    }
    let text = match kind {
        Some(PromptKind::Repair) => prompt::repair(&dispatch.result.faults),
        Some(PromptKind::Continue) => {
            prompt::go_on(&dispatch.created.journal, dispatch.cut_at(), dispatch.files.unsynced)
        }
        _ => return Err(FileError::NoPrompt { path }),
    };
    atomic::write_atomic(&path, text.as_bytes(), 0o600)?;
    Ok(Said::Prompt(text))
}

/// The input for an agent's stdin.
#[derive(Debug)]
pub enum Said {
    /// Text for the model, whatever it begins with.
    Prompt(String),
    /// A command for the CLI itself.
    CliCommand(String),
}

/// Returns the name of the file for a command of the CLI, in the folder of prompts.
fn command_file(key: &str) -> String {
    format!("{key}.command")
}

fn is_briefed_in_prompt(backend: &str) -> bool {
    muleteer_backends::by_name(backend)
        .is_ok_and(|backend| backend.capabilities().briefed == Briefed::InFirstPrompt)
}
