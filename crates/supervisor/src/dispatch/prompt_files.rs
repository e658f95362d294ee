//! Writes and reads the prompts of a dispatch. A prompt is on disk before it is durable.

use crate::daemon::context::Daemon;
use crate::dispatch::error::{fault, unwritten};
use crate::dispatch::saved::{FileError, Saved, prompt_dir, prompt_file};
use muleteer_backends::Briefed;
use muleteer_model::agent::prompt;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::event::PromptKind;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::WireError;
use muleteer_store::atomic;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

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
    let kind = dispatch.prompt(key).map(|prompt| prompt.kind);
    if kind == Some(PromptKind::Initial) {
        return Ok(Said::Prompt(first_prompt(&dir, dispatch, key)?));
    }
    let prompts = prompt_dir(&dir);
    let command = prompts.join(command_file(key));
    match tokio::fs::read_to_string(&command).await {
        Ok(text) => return Ok(Said::CliCommand(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(FileError::Read { path: command, source }),
    }
    let path = prompts.join(format!("{key}.md"));
    match tokio::fs::read_to_string(&path).await {
        Ok(text) => return Ok(Said::Prompt(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(FileError::Read { path, source }),
    }
    let text = match kind {
        Some(PromptKind::Repair) => prompt::repair(&dispatch.result.faults),
        Some(PromptKind::Continue) => {
            let journal = &dispatch.created.journal;
            let text = prompt::go_on(journal, dispatch.cut_at(), dispatch.files.unsynced);
            match answers(dispatch, key) {
                Some(answers) => format!("{answers}\n\n{text}"),
                None => text,
            }
        }
        Some(PromptKind::Send) if let Some(answers) = answers(dispatch, key) => answers,
        _ => return Err(FileError::NoPrompt { path }),
    };
    atomic::write_atomic(&path, text.as_bytes(), 0o600)?;
    Ok(Said::Prompt(text))
}

/// Returns the text that tells an agent the answers which its predecessor did not get, if the
/// prompt with this key is to tell any.
fn answers(dispatch: &Dispatch, key: &str) -> Option<String> {
    let told = dispatch.asks.left().filter(|left| left.told_in.as_deref() == Some(key));
    let told: Vec<_> = told.filter_map(|left| Some((&left.ask, left.answer.as_ref()?))).collect();
    (!told.is_empty()).then(|| prompt::answers(&told))
}

/// Returns the task, with the briefing if the CLI has no other place for it.
fn first_prompt(dir: &Path, dispatch: &Dispatch, key: &str) -> Result<String, FileError> {
    let saved = Saved::read(dir)?;
    let task = match saved.prompt {
        Some(task) => task,
        // A dispatch of an earlier version.
        None => {
            let path = prompt_dir(dir).join(format!("{key}.md"));
            std::fs::read_to_string(&path).map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => FileError::NoPrompt { path },
                _ => FileError::Read { path, source },
            })?
        }
    };
    Ok(if is_briefed_in_prompt(&dispatch.created.backend) {
        prompt::dispatch(&task, saved.system_prompt.as_deref())
    } else {
        task
    })
}

/// Writes the file that `MULETEER_PROMPT_FILE` names, and returns its path. It is made again if a
/// power cut took it, so nobody waits for the disk.
///
/// # Errors
/// It cannot be written.
pub fn write_first_prompt(dir: &Path, dispatch: &Dispatch, saved: &Saved) -> io::Result<PathBuf> {
    let first = dispatch.prompts.first().map(|prompt| prompt.key.as_str()).unwrap_or_default();
    let folder = prompt_dir(dir);
    let path = folder.join(format!("{first}.md"));
    if let Some(task) = &saved.prompt
        && path.metadata().ok().is_none_or(|file| file.len() != task.len() as u64)
    {
        // The agent does not run yet, so nobody reads an incomplete file.
        let mut new = File::options();
        new.write(true).create(true).truncate(true).mode(0o600);
        new.open(&path)?.write_all(task.as_bytes())?;
    }
    Ok(path)
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
