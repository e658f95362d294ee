//! Properties in which the agent CLIs differ: programs, folders, access to an API, traits.

pub mod agent_settings;
mod codex_config;
mod obeyed;
pub mod passing;
pub mod sealed;
mod sealed_homes;
pub mod variables;

use crate::{Backend, all, by_name};
use muleteer_model::agent::backend::{Traits, TraitsOf};
use std::path::PathBuf;

/// The program of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// A CLI that is searched for on PATH.
    OnPath {
        name: &'static str,
        /// How to install it.
        install: &'static str,
    },
    /// A command that the user must give.
    Command {
        /// How to give one.
        hint: &'static str,
    },
    /// One of several agents, or Muleteer itself.
    Other,
}

impl Program {
    /// Returns true for the name of a CLI's program, which also names its backend.
    pub(crate) fn is_named(self, asked: &str) -> bool {
        matches!(self, Self::OnPath { name, .. } if name == asked)
    }
}

/// The folder in which a CLI stores its settings and conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Home {
    /// The variable that names the folder.
    pub variable: &'static str,
    /// The folder in the user's home directory if the variable is not set.
    pub folder: &'static str,
    /// The folders with conversations, below the home.
    pub conversations: &'static [&'static str],
    /// The variable that moves the database of conversations out of the home, if there is one.
    pub database: Option<&'static str>,
}

/// The way in which a CLI reaches its model's API.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Access {
    /// The name of the credential, as far as it is known; its value is never read.
    pub credential: String,
    /// The configured address of the API.
    pub address: Option<String>,
    /// The command is the client of the API, so another command has limits of its own.
    pub by_command: bool,
}

/// The settings files of a repository that a CLI loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepositorySettings {
    /// Those of Claude Code, but for those of one person.
    Shared,
    /// Those of Claude Code.
    All,
    /// Those of Claude Code, which was started by a command of the user and cannot ignore them.
    Fixed,
    /// Those of another agent.
    Of(&'static AgentSettings),
    /// Those of every known agent, for a command that starts several of them.
    OfSeveral,
}

impl RepositorySettings {
    /// Returns the name of the agent, for people.
    pub fn agent(&self) -> &'static str {
        match self {
            Self::Shared | Self::All | Self::Fixed => "Claude Code",
            Self::Of(settings) => settings.agent,
            Self::OfSeveral => "a command of several agents",
        }
    }

    /// Whether the agent can be started without them.
    pub fn can_be_ignored(&self) -> bool {
        match self {
            Self::Shared | Self::All => true,
            Self::Fixed | Self::OfSeveral => false,
            Self::Of(settings) => settings.can_be_ignored,
        }
    }
}

/// The settings of a repository that an agent loads from its directory and from each directory
/// above it.
#[derive(Debug, PartialEq, Eq)]
pub struct AgentSettings {
    pub agent: &'static str,
    /// The agent's program.
    pub program: &'static str,
    pub files: &'static [&'static str],
    /// Folders of which every file counts.
    pub folders: &'static [&'static str],
    /// The agent can be started without them.
    pub can_be_ignored: bool,
}

/// Finds a variable of an agent's environment; `None` if it is not set, or empty.
pub type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Finds the traits of a backend, for the folds and rules that need them.
pub const TRAITS: TraitsOf = TraitsOf(traits);

/// Returns the traits of a backend; those of an unknown CLI for an unknown name.
pub fn traits(name: &str) -> Traits {
    by_name(name).map(Backend::traits).unwrap_or_default()
}

/// Returns the process names of all agent CLIs, as the system shows them.
pub fn process_names() -> Vec<&'static str> {
    all().into_iter().flat_map(Backend::process_names).copied().collect()
}

/// Returns the homes of the CLIs.
pub fn homes() -> impl Iterator<Item = Home> {
    all().into_iter().filter_map(Backend::home)
}

/// Returns the folders for the CLIs' own files, below an agent's folder.
pub fn own_folders() -> impl Iterator<Item = &'static str> {
    all().into_iter().filter_map(Backend::own_folder)
}

/// Returns the absolute path of the CLI's home, given the agent's environment.
pub fn home_path(home: Home, variable: Variable<'_>) -> Option<PathBuf> {
    let named = variable(home.variable).map(PathBuf::from);
    named.or_else(|| Some(PathBuf::from(variable("HOME")?).join(home.folder)))
}

/// Returns the first of these variables that is set, and `login` if none is.
pub(crate) fn first_set(names: &[&str], variable: Variable<'_>, login: &str) -> String {
    let found = names.iter().find(|name| variable(name).is_some());
    found.map_or_else(|| login.to_string(), |name| (*name).to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn access_names_the_preferred_credential() {
        for (backend, set, expected) in [
            ("claude-code", &["ANTHROPIC_API_KEY"][..], "ANTHROPIC_API_KEY"),
            (
                "claude-code",
                &["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"][..],
                "ANTHROPIC_AUTH_TOKEN",
            ),
            ("claude-code", &[][..], "the login of `claude` (/login renews it)"),
            ("codex", &["OPENAI_API_KEY", "CODEX_API_KEY"][..], "CODEX_API_KEY"),
            ("codex", &["OPENAI_API_KEY"][..], "OPENAI_API_KEY"),
            ("subprocess", &["OPENAI_API_KEY"][..], ""),
        ] {
            let variable = |name: &str| set.contains(&name).then(|| "x".to_string());
            let access = by_name(backend).unwrap().access(&variable, "", &[]);
            assert_eq!(access.credential, expected, "{backend} {set:?}");
        }
    }

    #[test]
    fn codex_finds_its_configuration_in_its_home() {
        let codex = by_name("codex").unwrap();
        let file = |set: &[(&str, &str)]| {
            let variable = |name: &str| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| value.to_string())
            };
            codex.access_file(&variable)
        };
        assert_eq!(file(&[]), None);
        assert_eq!(file(&[("HOME", "/h")]), Some("/h/.codex/config.toml".into()));
        let moved = [("HOME", "/h"), ("CODEX_HOME", "/c")];
        assert_eq!(file(&moved), Some("/c/config.toml".into()));
    }

    #[test]
    fn repository_settings_are_loaded_by_both_forms_of_claude_code() {
        let loads = |backend: &str, agent: Option<&str>, command: Option<&str>| {
            let command = command.map(|text| crate::Command::Shell(text.into()));
            by_name(backend).unwrap().repository_settings(agent, command.as_ref())
        };
        assert_eq!(loads("claude-code", None, None), Some(RepositorySettings::Shared));
        let acp = Some(RepositorySettings::All);
        assert_eq!(loads("acp", Some("claude-agent-acp"), None), acp);
        assert_eq!(loads("acp", None, Some("npx claude-agent-acp")), acp);
        for (agent, command) in [(Some("gemini"), None), (None, Some("npx gemini --acp"))] {
            let Some(RepositorySettings::Of(gemini)) = loads("acp", agent, command) else {
                panic!("{agent:?} {command:?}")
            };
            assert_eq!((gemini.agent, gemini.folders), ("gemini", &[".gemini"][..]));
        }
        assert_eq!(loads("acp", Some("pi"), None), None);
        assert_eq!(loads("acp", None, Some("my-agent --acp")), None);
        assert_eq!(loads("codex", None, None), None);
    }
}
