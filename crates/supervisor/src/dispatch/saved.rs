//! The private files of a dispatch that exist before anything of it is durable.

use crate::dispatch::confine::confined::Confined;
use crate::dispatch::error::{fault, internal, unwritten};
use crate::dispatch::launch::secret_values;
use muleteer_backends::Command;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::WireError;
use muleteer_store::{StoreError, atomic};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// The data for a start that is not in the events: the agent's environment. It may hold secrets, so
/// it is in a private file and not in the ledger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    pub v: u16,
    pub env: Vec<(String, String)>,
    /// API keys of other agent CLIs that matched `env.pass`. Withheld from this agent, kept because
    /// a child dispatch may use one of those CLIs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub withheld: Vec<(String, String)>,
    pub extra_env: Vec<(String, String)>,
    pub backend_env: Vec<(String, String)>,
    /// The search path for its program; `None` means its own PATH.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program_path: Option<String>,
    /// The name of the known `acp` agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    pub command: Option<Command>,
    pub args: Vec<String>,
    pub scenario: Option<String>,
    pub system_prompt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confined: Option<Confined>,
    /// The JSON schema of its answer, if that is not a dispatch's result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<serde_json::Value>,
    /// The folder with the homes of its CLI, if it judges the work of others: it then loads no
    /// settings, hooks, MCP servers, skills or instructions but those in there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<PathBuf>,
    /// The secret variables whose values were removed when the dispatch ended, each with the list
    /// that it was in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<(List, String)>,
    /// The first prompt. Earlier versions had it in a file of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
}

/// The lists of variables in [`Saved`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum List {
    Env,
    Withheld,
    ExtraEnv,
    BackendEnv,
}

const SAVED: &str = "request.json";
/// The folder that an agent may see: its socket and its prompts.
const PUBLIC: &str = "pub";
pub(super) const SAVED_VERSION: u16 = 1;

/// Why a private file of a dispatch cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{}: {source}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}: {source}", .path.display())]
    Parse { path: PathBuf, source: serde_json::Error },
    #[error(
        "{} has version {found}, but this muleteer knows {SAVED_VERSION}",
        .path.display()
    )]
    Version { path: PathBuf, found: u16 },
    #[error("the prompt file {} is missing", .path.display())]
    NoPrompt { path: PathBuf },
    #[error(transparent)]
    Launch(#[from] muleteer_shim::launch::LaunchError),
    #[error(transparent)]
    Write(#[from] StoreError),
}

impl Saved {
    pub fn read(agent_dir: &Path) -> Result<Self, FileError> {
        let path = agent_dir.join(SAVED);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(source) => return Err(FileError::Read { path, source }),
        };
        match serde_json::from_slice::<Self>(&bytes) {
            Ok(saved) if saved.v > SAVED_VERSION => {
                Err(FileError::Version { path, found: saved.v })
            }
            Ok(saved) => Ok(saved),
            Err(source) => Err(FileError::Parse { path, source }),
        }
    }

    fn list(&mut self, list: List) -> &mut Vec<(String, String)> {
        match list {
            List::Env => &mut self.env,
            List::Withheld => &mut self.withheld,
            List::ExtraEnv => &mut self.extra_env,
            List::BackendEnv => &mut self.backend_env,
        }
    }

    /// Removes the secret variables from all lists, and returns them.
    pub(super) fn take_secrets(&mut self) -> Vec<(String, String)> {
        let mut taken = vec![];
        // A later list wins over an earlier one, and a value is found by its name alone.
        for list in [List::Withheld, List::Env, List::BackendEnv, List::ExtraEnv] {
            let secret = secret_values::take(self.list(list));
            self.removed.extend(secret.iter().map(|(name, _)| (list, name.clone())));
            taken.extend(secret);
        }
        taken
    }

    /// Adds the removed variables again, as far as they have a value.
    pub(super) fn give_secrets(
        &mut self,
        known: &[(String, String)],
        other: secret_values::Lookup<'_>,
    ) {
        let mut removed = std::mem::take(&mut self.removed);
        let add = |(list, _): &(List, String), pair| self.list(*list).push(pair);
        secret_values::give(&mut removed, |(_, name)| name, known, other, add);
        self.removed = removed;
    }

    /// Replaces the file.
    pub(super) fn replace(&self, agent_dir: &Path) -> Result<(), FileError> {
        let path = agent_dir.join(SAVED);
        match serde_json::to_vec_pretty(self) {
            Ok(bytes) => Ok(atomic::write_atomic(&path, &bytes, 0o600)?),
            Err(source) => Err(FileError::Parse { path, source }),
        }
    }

    /// Makes `agents/<id>/` with all that must exist before anything is durable: this file, and the
    /// folder for the agent's socket and its prompts.
    pub(super) fn write(&self, agent_dir: &Path) -> Result<(), WireError> {
        let bytes =
            serde_json::to_vec_pretty(self).map_err(|error| internal(&error.to_string()))?;
        let put = || {
            let above = agent_dir.parent().unwrap_or(agent_dir);
            atomic::create_dir_durable(above, 0o700)?;
            for dir in [agent_dir, &agent_dir.join(PUBLIC)] {
                atomic::create_dir(dir, 0o700)?;
            }
            // There is no such dispatch yet, so nobody reads an incomplete file.
            let file = agent_dir.join(SAVED);
            atomic::write_first(&[(&file, &bytes)], &[agent_dir, above], 0o600)
        };
        put().map_err(|error| unwritten(&error))
    }
}

/// Returns the file of a prompt.
pub(super) fn prompt_file(agent_dir: &Path, key: &str) -> Result<PathBuf, WireError> {
    let ok = !key.is_empty()
        && key.len() <= 64
        && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if !ok {
        return Err(fault(
            ErrorCode::BadInput,
            "the key of a prompt must have 1 to 64 letters, digits and dashes",
            "",
        ));
    }
    Ok(prompt_dir(agent_dir).join(format!("{key}.md")))
}

/// Returns the file that gives this agent's git a name, if its environment needs one of its own.
pub(super) fn identity_file(agent_dir: &Path) -> PathBuf {
    agent_dir.join("gitconfig")
}

/// Returns the folder of an agent's prompts. Dispatches of earlier versions have one of their own.
pub(super) fn prompt_dir(agent_dir: &Path) -> PathBuf {
    let own = agent_dir.join("prompt");
    if own.is_dir() { own } else { agent_dir.join(PUBLIC) }
}
