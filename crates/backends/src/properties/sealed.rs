//! The things that a CLI needs to judge the work of others: a home of its own, with the person's
//! login and with as much of the person's configuration as names the model.
//!
//! A home that agents can write may hold hooks, MCP servers, instructions and other addresses of
//! the model, and so may the repository that is judged. Configuration is therefore an allowlist.

use crate::properties::codex_config;
pub use crate::properties::obeyed::{Obeyed, obeyed, program};
pub use crate::properties::sealed_homes::{HOMES, LENT, MORE_CONVERSATIONS, OPENCODE};
use muleteer_model::agent::capability;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// The home of one CLI for agents that judge.
#[derive(Debug, Clone, Copy)]
pub struct SealedHome {
    /// The variable that names the home.
    pub variable: &'static str,
    /// The home below HOME if the variable is not set.
    pub folder: &'static str,
    pub files: &'static [SealedFile],
    /// Folders of the home with the conversations, which a resumed session needs.
    pub kept: &'static [&'static str],
    /// More of its folders that are private: with logs and histories, which no session needs.
    pub histories: &'static [&'static str],
    /// Files of the home with the conversations.
    pub databases: &'static [&'static str],
    /// Variables that switch off what is loaded from elsewhere.
    pub set: &'static [(&'static str, &'static str)],
    /// More variables that get the path of the home.
    pub also: &'static [&'static str],
    /// Variables that would move a part of the home elsewhere.
    pub unset: &'static [&'static str],
    /// Entries of the person's folder for other programs, which the home leads to by links.
    pub links: &'static [&'static str],
    /// The only program that gets this home, if its variable also moves the files of others.
    pub only: Option<&'static str>,
}

impl SealedHome {
    /// Returns the person's home of this CLI.
    pub fn persons(&self, home: &Path, absolute: &dyn Fn(&str) -> Option<PathBuf>) -> PathBuf {
        absolute(self.variable).unwrap_or_else(|| home.join(self.folder))
    }

    /// Returns the folders and files of the home with the conversations, as relative paths.
    pub fn conversations(&self) -> impl Iterator<Item = &'static str> {
        self.kept.iter().chain(self.databases).copied()
    }

    /// Whether an agent with this program gets the home.
    pub fn is_for(&self, program: Option<&str>) -> bool {
        self.only.is_none_or(|only| program == Some(only))
    }
}

/// Returns the names in HOME of the homes that belong to one CLI alone, or of its folders in those
/// that it shares with other programs.
pub fn folders() -> impl Iterator<Item = &'static str> {
    let own = HOMES.iter().map(|home| home.folder).filter(|folder| !SHARED.contains(folder));
    own.chain(IN_SHARED)
}

/// The homes that several programs share.
const SHARED: [&str; 4] = ["", ".config", ".local/share", ".cache"];
/// The folders of CLIs in shared homes.
const IN_SHARED: [&str; 3] = [".gemini", ".config/opencode", ".local/share/opencode"];

/// Returns the person's folders with conversations in the homes of all CLIs; those elsewhere are
/// [`MORE_CONVERSATIONS`]. They need not exist. `absolute` finds a variable that is an absolute
/// path.
pub fn conversations(
    home: &Path,
    absolute: &dyn Fn(&str) -> Option<PathBuf>,
) -> impl Iterator<Item = PathBuf> {
    let of = move |known: &SealedHome| {
        let top = known.persons(home, absolute);
        let names = known.kept.iter().chain(known.histories);
        names.map(|name| top.join(name)).collect::<Vec<_>>()
    };
    HOMES.iter().flat_map(of)
}

/// Names of histories of prompts: of Codex, Cursor's agent and Mistral's Vibe.
const HISTORIES: [&str; 3] = ["session_index.jsonl", "prompt_history.json", "vibehistory"];

/// Whether a file of a CLI's home is a database of conversations or a history of prompts, by its
/// name.
pub fn is_private_file(name: &str) -> bool {
    let is_database = |path: &&str| path.rsplit('/').next() == Some(name);
    name.contains(".sqlite")
        || name.ends_with("history.jsonl")
        || HISTORIES.contains(&name)
        || name.starts_with(".claude.json.backup")
        || HOMES.iter().flat_map(|home| home.databases).any(is_database)
}

/// One file of a home.
#[derive(Debug, Clone, Copy)]
pub struct SealedFile {
    pub name: &'static str,
    /// Its place is in HOME, beside the folder, if the variable is not set.
    pub is_beside: bool,
    pub content: Content,
}

/// The part of a person's file that a judging agent gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A login, whole. The CLI may renew it, so it is brought back.
    Login,
    /// These fields of a JSON object.
    Json(&'static [&'static str]),
    /// The configuration of Codex that names the model and its provider.
    Codex,
    /// The settings of Gemini that name the login and the model.
    Gemini,
    /// The settings of Qwen Code that name the login and the model.
    Qwen,
    /// The configuration of opencode that names the model and its provider.
    Opencode,
    /// The login of pi, unless a part of it is the output of a command.
    PiLogin,
    /// These fields of a JSON object, without the commands that pi would run for a value.
    PiJson(&'static [&'static str]),
}

impl Content {
    /// Whether the CLI may renew it.
    pub fn is_login(self) -> bool {
        matches!(self, Self::Login | Self::PiLogin)
    }
}

/// Whether agents of the backend, as a run names it, judge without settings, hooks and instructions
/// of others. The scripted one loads none; of a command nothing is known.
pub fn is_sealed(backend: &str) -> bool {
    let named = backend.strip_prefix("acp:");
    let is_preset = capability::ACP.iter().any(|agent| named == Some(agent.name));
    let own = [
        capability::CLAUDE_CODE,
        capability::CODEX,
        capability::OPENCODE_RUN,
        capability::PI_JSON,
        capability::REHEARSAL,
    ];
    is_preset || own.iter().any(|agent| agent.backend == backend)
}

impl SealedFile {
    /// Returns the file's text for a judging agent. `text` is the person's file, if there is one.
    /// `None` means that the agent gets none.
    pub fn text(&self, text: Option<&str>) -> Option<String> {
        match self.content {
            Content::Login => text.map(str::to_string),
            Content::PiLogin => {
                let mut login: Value = serde_json::from_str(text?).ok()?;
                let whole = login.clone();
                drop_commands(&mut login);
                (login == whole).then(|| text.map(str::to_string)).flatten()
            }
            Content::Json(fields) => fields_of(text?, fields).map(|kept| kept.to_string()),
            Content::PiJson(fields) => {
                let mut kept = fields_of(text?, fields)?;
                drop_commands(&mut kept);
                Some(kept.to_string())
            }
            Content::Codex => Some(codex_config::sealed(text.unwrap_or_default())),
            Content::Gemini => Some(gemini(text.unwrap_or_default())),
            Content::Qwen => Some(qwen(text.unwrap_or_default())),
            Content::Opencode => fields_of(text?, &OPENCODE_FIELDS).map(opencode),
        }
    }
}

/// The fields of opencode's configuration that choose the model.
const OPENCODE_FIELDS: [&str; 5] =
    ["provider", "model", "small_model", "disabled_providers", "enabled_providers"];

/// Returns some fields of a JSON object. Lines that are comments are left out, because Copilot
/// begins its file with some.
fn fields_of(text: &str, fields: &[&str]) -> Option<Value> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let found: Map<String, Value> =
        serde_json::from_str(&lines.collect::<Vec<_>>().join("\n")).ok()?;
    let kept = found.into_iter().filter(|(name, _)| fields.contains(&name.as_str()));
    Some(Value::Object(kept.collect()))
}

/// Removes the values that are commands for pi: they begin with `!`.
fn drop_commands(value: &mut Value) {
    let is_command =
        |value: &Value| value.as_str().is_some_and(|text| text.trim_start().starts_with('!'));
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !is_command(value));
            fields.values_mut().for_each(drop_commands);
        }
        Value::Array(items) => {
            items.retain(|value| !is_command(value));
            items.iter_mut().for_each(drop_commands);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Returns opencode's configuration without the packages that are files, and without updates.
fn opencode(mut kept: Value) -> String {
    for provider in kept["provider"].as_object_mut().into_iter().flat_map(Map::values_mut) {
        let is_package = provider["npm"]
            .as_str()
            .is_none_or(|npm| !npm.contains(':') && !npm.starts_with(['/', '.', '~']));
        if let Some(provider) = provider.as_object_mut().filter(|_| !is_package) {
            provider.remove("npm");
        }
    }
    kept["autoupdate"] = false.into();
    kept["share"] = "disabled".into();
    kept.to_string()
}

/// Returns Qwen Code's settings with the login, the model and nothing else.
fn qwen(text: &str) -> String {
    let kept = serde_json::json!({
        "security": {"folderTrust": {"enabled": true}},
        "general": {"enableAutoUpdate": false},
    });
    with_settings(kept, text, &["/security/auth", "/model", "/modelProviders"])
}

/// Returns Gemini's settings with the login, the model and nothing else. With an untrusted folder
/// and another name for its instructions it loads nothing from the repository.
fn gemini(text: &str) -> String {
    let kept = serde_json::json!({
        "security": {"folderTrust": {"enabled": true}},
        "context": {"fileName": [".muleteer-none.md"]},
    });
    with_settings(kept, text, &["/security/auth", "/model"])
}

/// Adds the values at these pointers of a JSON text.
fn with_settings(mut kept: Value, text: &str, pointers: &[&str]) -> String {
    let found: Value = serde_json::from_str(text).unwrap_or_default();
    for path in pointers {
        if let Some(value) = found.pointer(path)
            && let Some((above, name)) = path.rsplit_once('/')
            && let Some(object) = kept.pointer_mut(above).and_then(Value::as_object_mut)
        {
            object.insert(name.into(), value.clone());
        }
    }
    kept.to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn file(name: &str) -> SealedFile {
        let files = HOMES.into_iter().flat_map(|home| home.files.iter().copied());
        files.into_iter().find(|file| file.name == name).unwrap()
    }

    #[test]
    fn judges_with_a_home_of_their_own_are_sealed() {
        for (backend, expected) in [
            ("claude-code", true),
            ("codex", true),
            ("acp:gemini", true),
            ("rehearsal", true),
            ("acp:qwen", true),
            ("acp", false),
            ("acp:unknown", false),
            ("opencode", true),
            ("pi", true),
            ("subprocess", false),
        ] {
            assert_eq!(is_sealed(backend), expected, "{backend}");
        }
    }

    #[test]
    fn sealed_home_has_the_login_and_no_program_of_anyone() {
        let claude = r#"{"oauthAccount":{"accountUuid":"a"},"primaryApiKey":"k","mcpServers":{"x":
            {"command":"evil"}},"projects":{"/r":{"hasTrustDialogAccepted":true}},
            "env":{"A":"b"}}"#;
        let kept = file(".claude.json").text(Some(claude)).unwrap();
        assert_eq!(kept, r#"{"oauthAccount":{"accountUuid":"a"},"primaryApiKey":"k"}"#);
        assert_eq!(file(".claude.json").text(Some("[damaged")), None);
        assert_eq!(file("auth.json").text(Some("{}")), Some("{}".into()));
        assert_eq!(file("auth.json").text(None), None);
        let settings = r#"{"security":{"auth":{"selectedType":"oauth"}},"model":{"name":"m"},
            "mcpServers":{"x":{"command":"evil"}},"hooks":{},"tools":{"discoveryCommand":"evil"}}"#;
        let kept = file(".gemini/settings.json").text(Some(settings)).unwrap();
        assert!(kept.contains("\"selectedType\":\"oauth\"") && kept.contains("\"name\":\"m\""));
        assert!(!kept.contains("evil") && !kept.contains("hooks"), "{kept}");
        assert!(file(".gemini/settings.json").text(None).unwrap().contains("folderTrust"));
    }
    #[test]
    fn sealed_settings_of_other_agents_name_the_model_and_no_program() {
        let opencode = r#"{"model":"a/m","plugin":["evil"],"mcp":{"x":{"command":["evil"]}},
            "provider":{"a":{"npm":"@ai-sdk/openai-compatible","options":{"baseURL":"http://a"}},
            "b":{"npm":"file:///evil"},"c":{"npm":"./evil"}}}"#;
        let kept = file("opencode/opencode.json").text(Some(opencode)).unwrap();
        assert!(kept.contains("@ai-sdk/openai-compatible") && kept.contains("\"model\":\"a/m\""));
        assert!(!kept.contains("evil") && !kept.contains("mcp"), "{kept}");
        let qwen = r#"{"model":{"name":"m"},"security":{"auth":{"selectedType":"openai"}},
            "modelProviders":{"openai":[{"id":"m"}]},"mcpServers":{"x":{"command":"evil"}},
            "env":{"NODE_OPTIONS":"evil"},"hooks":{}}"#;
        let settings = HOMES.iter().find(|home| home.variable == "QWEN_HOME").unwrap();
        let settings = settings.files.iter().find(|file| file.name == "settings.json").unwrap();
        let kept = settings.text(Some(qwen)).unwrap();
        assert!(kept.contains("modelProviders") && kept.contains("selectedType"), "{kept}");
        assert!(!kept.contains("evil") && !kept.contains("hooks"), "{kept}");
        let pi = r#"{"providers":{"a":{"baseUrl":"http://a","apiKey":"!evil","headers":
            {"x":" !evil"},"models":[{"id":"m"}]},"b":{"apiKey":"k"}}}"#;
        let kept = file("models.json").text(Some(pi)).unwrap();
        assert!(kept.contains("\"id\":\"m\"") && kept.contains("\"k\""), "{kept}");
        assert!(!kept.contains("evil"), "{kept}");
        let home = HOMES.iter().find(|home| home.variable == "PI_CODING_AGENT_DIR").unwrap();
        let login = home.files.iter().find(|file| file.name == "auth.json").unwrap();
        assert!(login.content.is_login());
        assert_eq!(login.text(Some(r#"{"a":{"key":"k"}}"#)), Some(r#"{"a":{"key":"k"}}"#.into()));
        assert_eq!(login.text(Some(r#"{"a":{"key":"!evil"}}"#)), None);
        let copilot = "// Managed by the CLI.\n{\"loggedInUsers\":[1],\"hooks\":{\"a\":1}}";
        let kept = file("config.json").text(Some(copilot)).unwrap();
        assert_eq!(kept, "{\"loggedInUsers\":[1]}");
    }
}
