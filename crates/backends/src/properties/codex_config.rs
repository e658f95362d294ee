//! The configuration of Codex for an agent that judges.

use serde_json::to_string;
use std::fmt::Write;
use toml_edit::{Document, Item, Table, Value};

/// The keys that choose the model, its provider and the login. All others may run programs, load
/// instructions or widen rights.
const KEPT: [&str; 20] = [
    "model",
    "model_provider",
    "model_providers",
    "model_context_window",
    "model_max_output_tokens",
    "model_reasoning_effort",
    "model_reasoning_summary",
    "model_supports_reasoning_summaries",
    "model_verbosity",
    "service_tier",
    "preferred_auth_method",
    "forced_login_method",
    "forced_chatgpt_workspace_id",
    "cli_auth_credentials_store",
    "chatgpt_base_url",
    "openai_base_url",
    "oss_provider",
    "disable_response_storage",
    "profile",
    "profiles",
];

/// No instructions of the judged repository, no skills, no hooks, no plugins, and no history beside
/// the sessions.
const OWN: &str = "project_doc_max_bytes = 0\n\
    check_for_update_on_startup = false\n\
    [history]\n\
    persistence = \"none\"\n\
    [skills]\n\
    include_instructions = false\n\
    [features]\n\
    hooks = false\n\
    plugins = false\n\
    memories = false\n";

/// Returns the configuration of a judging agent. One that is not valid TOML counts as empty; Codex
/// itself would refuse it.
pub(super) fn sealed(config: &str) -> String {
    let mut text = String::new();
    if let Ok(document) = Document::parse(config) {
        for (name, item) in document.as_table() {
            if KEPT.contains(&name)
                && let Some(value) = kept(name, item)
            {
                let _ = writeln!(text, "{} = {value}", quoted(name));
            }
        }
    }
    text + OWN
}

/// Returns the value of a kept key. Profiles hold the same keys again.
fn kept(name: &str, item: &Item) -> Option<String> {
    if name != "profiles" {
        return inline(item);
    }
    let profile = |(name, item): (&str, &Item)| {
        let table = item.as_table()?;
        let keys = table.iter().filter(|(key, _)| KEPT.contains(key) && *key != "profiles");
        let field = |(key, item)| Some(format!("{} = {}", quoted(key), inline(item)?));
        let fields = keys.filter_map(field).collect::<Vec<_>>().join(", ");
        Some(format!("{} = {{ {fields} }}", quoted(name)))
    };
    let profiles: Vec<_> = item.as_table()?.iter().filter_map(profile).collect();
    Some(format!("{{ {} }}", profiles.join(", ")))
}

/// Returns an item as a value in one line.
fn inline(item: &Item) -> Option<String> {
    match item {
        Item::None => None,
        Item::Value(value) => of_value(value),
        Item::Table(table) => of_table(table),
        Item::ArrayOfTables(tables) => {
            let tables: Option<Vec<_>> = tables.iter().map(of_table).collect();
            Some(format!("[{}]", tables?.join(", ")))
        }
    }
}

fn of_table(table: &Table) -> Option<String> {
    let fields = table.iter().filter_map(|(key, item)| Some((key, inline(item)?)));
    let fields: Vec<_> = fields.map(|(key, value)| format!("{} = {value}", quoted(key))).collect();
    Some(format!("{{ {} }}", fields.join(", ")))
}

fn of_value(value: &Value) -> Option<String> {
    Some(match value {
        Value::String(text) => quoted(text.value()),
        Value::Integer(number) => number.value().to_string(),
        Value::Float(number) => format!("{:?}", number.value()),
        Value::Boolean(yes) => yes.value().to_string(),
        Value::Datetime(at) => at.value().to_string(),
        Value::Array(items) => {
            let items: Option<Vec<_>> = items.iter().map(of_value).collect();
            format!("[{}]", items?.join(", "))
        }
        Value::InlineTable(table) => {
            let fields: Option<Vec<_>> = table
                .iter()
                .map(|(key, value)| Some(format!("{} = {}", quoted(key), of_value(value)?)))
                .collect();
            format!("{{ {} }}", fields?.join(", "))
        }
    })
}

/// Returns a text as a basic string of TOML, which has the escapes of JSON.
fn quoted(text: &str) -> String {
    to_string(text).unwrap_or_default().replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn sealed_codex_configuration_keeps_the_provider_and_no_program() {
        let config = r#"
model = "m\"1"
model_provider = "near"
notify = ["sh", "-c", "evil"]
developer_instructions = "evil"
model_instructions_file = "/evil"
sandbox_mode = "danger-full-access"
profile = "p"
[model_providers.near]
name = "near"
base_url = "http://near/v1"
query_params = { api-version = "1" }
request_max_retries = 3
requires_openai_auth = false
[mcp_servers.x]
command = "evil"
[hooks]
SessionStart = "evil"
[projects."/r"]
trust_level = "trusted"
[features]
hooks = true
plugins = true
[skills]
include_instructions = true
[profiles.p]
model = "other"
model_instructions_file = "/evil"
notify = ["evil"]
"#;
        let text = sealed(config);
        let found =
            Document::parse(text.as_str()).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let found = found.as_table();
        let near = &found["model_providers"]["near"];
        assert_eq!(found["model"].as_str(), Some("m\"1"));
        assert_eq!(near["base_url"].as_str(), Some("http://near/v1"));
        assert_eq!(near["query_params"]["api-version"].as_str(), Some("1"));
        assert_eq!(near["request_max_retries"].as_integer(), Some(3));
        assert_eq!(found["profiles"]["p"]["model"].as_str(), Some("other"));
        assert_eq!(found["project_doc_max_bytes"].as_integer(), Some(0));
        for name in ["hooks", "plugins"] {
            assert_eq!(found["features"][name].as_bool(), Some(false), "{text}");
        }
        for gone in ["evil", "mcp_servers", "projects", "sandbox_mode", "notify", "trust"] {
            assert!(!text.contains(gone), "{gone}: {text}");
        }
        for odd in ["", "not toml [", "\u{feff}"] {
            assert_eq!(sealed(odd), OWN, "{odd:?}");
        }
    }
}
