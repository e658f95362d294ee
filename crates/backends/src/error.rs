//! Errors for everything that can be missing before an agent starts, with a hint how to get it.

use muleteer_model::agent::capability::Refused;
use muleteer_protocol::ErrorCode;
use std::path::PathBuf;

/// An agent cannot be started as requested. Nothing was started when this error is returned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    #[error("backend {name:?} is not known")]
    UnknownName { name: String, nearest: Option<&'static str> },
    #[error("the ACP agent {name:?} is not known")]
    UnknownAgent { name: String, nearest: Option<&'static str> },
    #[error("the ACP agent `{name}` is refused: {}", .refused.why)]
    RefusedAgent { name: &'static str, refused: Refused },
    #[error("no ACP agent is on PATH")]
    NoAgent,
    #[error("no agent CLI found (claude, codex): nothing can run")]
    NothingInstalled,
    #[error("{program:?}, which backend {backend} runs, is {}", absent(program))]
    ProgramMissing { backend: &'static str, program: String, get: &'static str },
    #[error("backend {backend} needs {what}")]
    Incomplete { backend: &'static str, what: &'static str, hint: &'static str },
    #[error("backend {backend} cannot {what}")]
    Unsupported { backend: &'static str, what: &'static str },
    #[error(
        "{agent} would load settings of this repository that you have not trusted, and cannot be \
         started without them"
    )]
    Untrusted { agent: &'static str },
    #[error("{agent} judges here, and cannot be kept from obeying {}", path.display())]
    Obeys { agent: &'static str, path: PathBuf },
    #[error("{} is not an absolute path", path.display())]
    Relative { path: PathBuf },
}

/// Says how a program is missing. Only a name without a `/` is searched on PATH.
fn absent(program: &str) -> &'static str {
    if program.contains('/') { "missing or not executable" } else { "not on PATH" }
}

impl BackendError {
    /// The error code that scripts test for (contract.md, "Exit codes").
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Incomplete { .. }
            | Self::Unsupported { .. }
            | Self::Untrusted { .. }
            | Self::Obeys { .. } => ErrorCode::ConfigInvalid,
            Self::UnknownName { .. }
            | Self::UnknownAgent { .. }
            | Self::RefusedAgent { .. }
            | Self::NothingInstalled
            | Self::NoAgent
            | Self::ProgramMissing { .. }
            | Self::Relative { .. } => ErrorCode::BackendUnavailable,
        }
    }

    /// Returns a hint that says how to fix the error.
    pub fn hint(&self) -> String {
        match self {
            Self::UnknownName { nearest: Some(nearest), .. } => {
                format!("did you mean {nearest:?}? Known: auto, {}", crate::NAMES.join(", "))
            }
            Self::UnknownName { nearest: None, .. } => {
                format!("known: auto, {}", crate::NAMES.join(", "))
            }
            Self::UnknownAgent { nearest, .. } => {
                let names: Vec<_> = crate::acp::offered().map(|known| known.name).collect();
                let names = names.join(", ");
                let nearest =
                    nearest.map(|name| format!("did you mean {name:?}? ")).unwrap_or_default();
                format!(
                    "{nearest}Known: {names}; use another agent by its command: --backend acp \
                     --command 'CMD'"
                )
            }
            Self::RefusedAgent { refused, .. } => format!("use `--backend {}`", refused.instead),
            Self::NoAgent => {
                let all = crate::acp::offered();
                let all: Vec<_> =
                    all.map(|known| format!("{} ({})", known.name, known.get)).collect();
                format!(
                    "install one: {}; or give its command: --backend acp --command 'CMD'",
                    all.join(", ")
                )
            }
            Self::NothingInstalled => format!(
                "install Claude Code ({}) or Codex ({}), or name another agent: --backend \
                 subprocess --command 'CMD'; `muleteer demo` shows Muleteer without one",
                crate::claude_code::GET,
                crate::codex::GET
            ),
            Self::ProgramMissing { get, .. } => (*get).to_string(),
            Self::Incomplete { hint, .. } => (*hint).to_string(),
            Self::Unsupported { .. } => "choose another backend, or omit the option".into(),
            Self::Untrusted { .. } => {
                "read the settings, then run `muleteer trust` in the repository".into()
            }
            Self::Obeys { .. } => {
                "let the agents of runs work in the sandbox, or choose another backend".into()
            }
            Self::Relative { .. } => "give an absolute path".into(),
        }
    }

    pub(crate) fn unknown_name(name: &str) -> Self {
        let asked = name.replace('_', "-").to_lowercase();
        Self::UnknownName { name: name.to_string(), nearest: nearest(&asked, &crate::NAMES) }
    }

    pub(crate) fn unknown_agent(name: &str) -> Self {
        let names = crate::acp::KNOWN.map(|known| known.name);
        Self::UnknownAgent {
            name: name.to_string(),
            nearest: nearest(&name.to_lowercase(), &names),
        }
    }
}

fn nearest(asked: &str, names: &[&'static str]) -> Option<&'static str> {
    names
        .iter()
        .map(|known| (strsim::damerau_levenshtein(asked, known), *known))
        .filter(|(distance, known)| *distance <= 3 || known.starts_with(asked) && asked.len() > 2)
        .min()
        .map(|(_, known)| known)
}
