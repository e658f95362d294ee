//! The things that a CLI needs to judge the work of others: a home of its own, with the person's
//! login and with as much of the person's configuration as names the model.
//!
//! A home that agents can write may hold hooks, MCP servers, instructions and other addresses of
//! the model, and so may the repository that is judged. Configuration is therefore an allowlist.

use crate::properties::codex_config;
use serde_json::{Map, Value};

/// The home of one CLI for agents that judge.
#[derive(Debug, Clone, Copy)]
pub struct SealedHome {
    /// The variable that names the home.
    pub variable: &'static str,
    /// The home below HOME if the variable is not set.
    pub folder: &'static str,
    pub files: &'static [SealedFile],
    /// Entries of the home that a resumed session needs.
    pub kept: &'static [&'static str],
    /// Variables that switch off what is loaded from elsewhere.
    pub set: &'static [(&'static str, &'static str)],
    /// A variable that would move a part of the home elsewhere.
    pub unset: Option<&'static str>,
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
}

/// The homes of all CLIs. Any of them may be behind a configured command, so each judging agent
/// gets all.
pub const HOMES: [SealedHome; 3] = [
    SealedHome {
        variable: "CLAUDE_CONFIG_DIR",
        folder: ".claude",
        files: &[
            SealedFile { name: ".credentials.json", is_beside: false, content: Content::Login },
            SealedFile {
                name: ".claude.json",
                is_beside: true,
                content: Content::Json(&["oauthAccount", "primaryApiKey", "userID"]),
            },
        ],
        kept: &["projects", "todos", "file-history", "session-env"],
        set: &[("CLAUDE_CODE_DISABLE_CLAUDE_MDS", "1"), ("CLAUDE_CODE_DISABLE_AUTO_MEMORY", "1")],
        unset: None,
    },
    SealedHome {
        variable: "CODEX_HOME",
        folder: ".codex",
        files: &[
            SealedFile { name: "auth.json", is_beside: false, content: Content::Login },
            SealedFile { name: "config.toml", is_beside: false, content: Content::Codex },
        ],
        kept: &["sessions", "archived_sessions"],
        set: &[],
        unset: Some("CODEX_SQLITE_HOME"),
    },
    SealedHome {
        // It names the folder above `.gemini`.
        variable: "GEMINI_CLI_HOME",
        folder: "",
        files: &[
            SealedFile {
                name: ".gemini/oauth_creds.json",
                is_beside: false,
                content: Content::Login,
            },
            SealedFile {
                name: ".gemini/google_accounts.json",
                is_beside: false,
                content: Content::Login,
            },
            SealedFile {
                name: ".gemini/settings.json",
                is_beside: false,
                content: Content::Gemini,
            },
        ],
        kept: &[".gemini/tmp"],
        set: &[],
        unset: None,
    },
];

/// Variables for opencode, whose folders are those of the system: it loads nothing from the
/// repository, and neither plugins nor the instructions of other CLIs.
pub const OPENCODE: [(&str, &str); 4] = [
    ("OPENCODE_DISABLE_PROJECT_CONFIG", "1"),
    ("OPENCODE_DISABLE_CLAUDE_CODE", "1"),
    ("OPENCODE_DISABLE_EXTERNAL_SKILLS", "1"),
    ("OPENCODE_PURE", "1"),
];

impl SealedFile {
    /// Returns the file's text for a judging agent. `text` is the person's file, if there is one.
    /// `None` means that the agent gets none.
    pub fn text(&self, text: Option<&str>) -> Option<String> {
        match self.content {
            Content::Login => text.map(str::to_string),
            Content::Json(fields) => {
                let found: Map<String, Value> = serde_json::from_str(text?).ok()?;
                let kept = found.into_iter().filter(|(name, _)| fields.contains(&name.as_str()));
                Some(Value::Object(kept.collect()).to_string())
            }
            Content::Codex => Some(codex_config::sealed(text.unwrap_or_default())),
            Content::Gemini => Some(gemini(text.unwrap_or_default())),
        }
    }
}

/// Returns Gemini's settings with the login, the model and nothing else. With an untrusted folder
/// and another name for its instructions it loads nothing from the repository.
fn gemini(text: &str) -> String {
    let found: Value = serde_json::from_str(text).unwrap_or_default();
    let mut kept = serde_json::json!({
        "security": {"folderTrust": {"enabled": true}},
        "context": {"fileName": [".muleteer-none.md"]},
    });
    for path in ["/security/auth", "/model"] {
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
}
