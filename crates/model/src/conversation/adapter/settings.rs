//! The settings of one adapter, as far as the daemon reads them.

use crate::config::key::is_file_name;
use crate::config::people::LOCAL;
use crate::config::{Command, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// The keys below `adapters.<name>` that the daemon reads. The adapter reads other keys itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AdapterSettings {
    /// Whether it runs; absent enables an adapter that has a `command`.
    pub enabled: Option<bool>,
    /// The program: a text runs under `sh -c`, a list is the argument vector.
    pub command: Option<Command>,
    /// Environment variables of its process, which also gets those of the daemon.
    pub env: BTreeMap<String, String>,
    /// The role that answers in its threads.
    pub role: Option<String>,
    /// The project of its threads: a directory, or a configured name.
    pub project: Option<String>,
    /// The backend of the agents of its threads.
    pub backend: Option<String>,
    /// The adapter's id of the conversation that shows the questions of all runs; absent shows them
    /// in none of its conversations.
    pub questions: Option<String>,
    /// The mark before commands in its threads; `bang` for an adapter named `slack`, else `slash`.
    pub commands: Option<CommandMark>,
    /// The restarts within ten minutes after which it is set aside.
    pub max_restarts: Option<u32>,
    /// The longest pause before a restart.
    pub max_backoff: Option<Span>,
    /// The settings of single channels, by the adapter's id of the channel.
    pub channels: BTreeMap<String, Channel>,
}

/// The mark before the name of a command, in threads that are opened from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CommandMark {
    /// A slash.
    Slash,
    /// A slash, `!` or a mention: the outside system keeps slash commands for itself.
    Bang,
}

/// The settings of a channel; an absent key has the adapter's value.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Channel {
    /// The role that answers in threads of the channel.
    pub role: Option<String>,
    /// The project of these threads.
    pub project: Option<String>,
    /// The backend of their agents.
    pub backend: Option<String>,
}

/// The reason why the settings of an adapter cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("`{0}` is no name of an adapter: it has 1 to 64 letters, digits, `-` and `_`")]
    Name(String),
    #[error("adapters.{name}: {why}")]
    Malformed { name: String, why: String },
}

/// Reads the settings of an adapter.
///
/// # Errors
/// Its name is invalid or reserved, or a key has a wrong type.
pub fn read(name: &str, value: &Value) -> Result<AdapterSettings, SettingsError> {
    if !is_name(name) {
        return Err(SettingsError::Name(name.into()));
    }
    // `name:` without a value.
    if value.is_null() {
        return Ok(AdapterSettings::default());
    }
    serde_json::from_value(value.clone())
        .map_err(|error| SettingsError::Malformed { name: name.into(), why: error.to_string() })
}

/// The names by which answers of agents, of Muleteer and of the operator are told apart from those
/// of an adapter's people.
const RESERVED: [&str; 4] = [LOCAL, "agent", "muleteer", "operator"];

/// Whether a name is a valid name of an adapter. It becomes a part of file names.
pub fn is_name(name: &str) -> bool {
    is_file_name(name) && !RESERVED.contains(&name)
}

impl AdapterSettings {
    /// Whether it runs if no person decided otherwise.
    pub fn is_enabled(&self) -> bool {
        self.enabled.unwrap_or(self.command.is_some())
    }

    /// Returns the settings of a channel, with those of the adapter for absent keys.
    pub fn channel(&self, id: Option<&str>) -> Channel {
        let own = id.and_then(|id| self.channels.get(id)).cloned().unwrap_or_default();
        Channel {
            role: own.role.or_else(|| self.role.clone()),
            project: own.project.or_else(|| self.project.clone()),
            backend: own.backend.or_else(|| self.backend.clone()),
        }
    }
}

/// Splits `@role text` into the role and the rest; `None` if the text begins with no such name.
pub fn addressed(text: &str) -> Option<(&str, &str)> {
    let rest = text.trim_start().strip_prefix('@')?;
    let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_')));
    let (role, text) = rest.split_at(end.unwrap_or(rest.len()));
    let text = text.trim_start_matches([':', ',']).trim_start();
    (!role.is_empty() && !text.is_empty()).then_some((role, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn channel_settings_fall_back_to_those_of_the_adapter() {
        let value = json!({
            "command": ["python3", "a.py"], "role": "analyst", "project": "/p",
            "channels": {"C1": {"role": "reviewer"}}, "workspace": "the adapter's own key",
        });
        let settings = read("slack", &value).expect("settings");
        assert!(settings.is_enabled());
        let of = |id| settings.channel(id).role.unwrap_or_default();
        assert_eq!([of(Some("C1")), of(Some("C2")), of(None)], ["reviewer", "analyst", "analyst"]);
        assert_eq!(settings.channel(Some("C1")).project.as_deref(), Some("/p"));
        let off = read("slack", &json!({"command": "x", "enabled": false})).expect("settings");
        assert!(!off.is_enabled() && !read("web", &Value::Null).expect("settings").is_enabled());
    }

    #[test]
    fn reserved_and_malformed_adapters_are_errors() {
        for name in ["", "cli", "a/b", "..", &"x".repeat(65)] {
            assert!(matches!(read(name, &json!({})), Err(SettingsError::Name(_))), "{name}");
        }
        let error = read("a", &json!({"command": 7})).expect_err("a number");
        assert!(error.to_string().starts_with("adapters.a: "), "{error}");
    }

    #[test]
    fn role_at_the_beginning_of_a_text_is_split_off() {
        assert_eq!(addressed("@reviewer: look"), Some(("reviewer", "look")));
        assert_eq!(addressed(" @reviewer look"), Some(("reviewer", "look")));
        assert_eq!(addressed("look @reviewer"), None);
        assert_eq!(addressed("@reviewer"), None);
        assert_eq!(addressed("@ x"), None);
    }
}
