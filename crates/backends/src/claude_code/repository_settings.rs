//! The rights in a repository's settings for Claude Code, as `muleteer trust` shows them.

use muleteer_model::config::trust::Ignored;
use serde_json::{Map, Value};

/// Claude Code reads these files from its start directory.
pub const SETTINGS: [&str; 2] = [".claude/settings.json", LOCAL_SETTINGS];
/// The settings of one person, to which Claude Code adds each "always allow". The backend
/// `claude-code` never loads them, so a change of them must not affect its agents.
pub const LOCAL_SETTINGS: &str = ".claude/settings.local.json";
/// The file of its MCP servers. Claude Code also reads it from every directory above.
pub const SERVERS: &str = ".mcp.json";

/// Lists the entries of such a file that run programs or loosen permissions.
///
/// An unknown key counts as one that runs a program, because new versions have new keys. A text
/// that is not a JSON object is listed as a whole, since Claude Code may accept more than JSON.
pub fn allows(file: &str, text: &str) -> Vec<Ignored> {
    let listed =
        |key: String, value: Value, effect| Ignored { key, value, effect, file: None, line: None };
    let Ok(object) = serde_json::from_str::<Map<String, Value>>(text) else {
        return vec![listed("text".into(), text.into(), "runs")];
    };
    let one = |(key, value): (String, Value)| match value {
        Value::Object(inner) if key == "mcpServers" && file.ends_with(SERVERS) => inner
            .into_iter()
            .map(|(name, value)| listed(format!("{key}.{name}"), value, "runs"))
            .collect(),
        value => {
            let effect =
                if matches!(key.as_str(), "permissions" | "sandbox") { "loosens" } else { "runs" };
            vec![listed(key, value, effect)]
        }
    };
    object.into_iter().flat_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(file: &str, text: &str) -> Vec<(String, &'static str)> {
        allows(file, text).into_iter().map(|one| (one.key, one.effect)).collect()
    }

    #[test]
    fn settings_list_each_key_with_its_effect() {
        let text =
            r#"{"hooks": {}, "env": {"A": "b"}, "permissions": {"allow": ["Bash"]}, "newKey": 1}"#;
        let expected =
            [("env", "runs"), ("hooks", "runs"), ("newKey", "runs"), ("permissions", "loosens")];
        let mut found = keys(SETTINGS[0], text);
        found.sort();
        assert_eq!(found, expected.map(|(key, effect)| (key.to_string(), effect)));
    }

    #[test]
    fn servers_are_listed_by_name() {
        let text = r#"{"mcpServers": {"a": {"command": "x"}, "b": {"url": "http://b"}}}"#;
        let expected = [("mcpServers.a", "runs"), ("mcpServers.b", "runs")];
        assert_eq!(
            keys("web/.mcp.json", text),
            expected.map(|(key, effect)| (key.to_string(), effect))
        );
    }

    #[test]
    fn text_that_is_no_object_is_listed_whole() {
        for text in ["", "[]", "{", "{\"hooks\": {} // why\n}", "\u{feff}{}"] {
            assert_eq!(keys(SETTINGS[1], text), [("text".to_string(), "runs")], "{text}");
        }
    }
}
