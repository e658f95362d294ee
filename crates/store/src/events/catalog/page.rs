//! The page docs/events.md, generated from the JSON schema of the events. The comments of the types
//! are its texts; the samples are its examples.

use crate::events::catalog::samples;
use muleteer_model::event;
use serde_json::Value;
use std::collections::BTreeMap;

const INTRODUCTION: &str = r#"# Events

<!-- Generated from the comments of crates/model/src/event/mod.rs and the types that it uses; a test
     compares them. Update it with UPDATE_DOCS=1 cargo test -p muleteer-store events_doc -->

`events.jsonl` holds one JSON object a line. It has the newest events; older ones are in `events/`
beside it, in files with the same lines: `<first seq>-<last seq>.<begin>-<end>.jsonl`, with `.zst`
if they are compressed (zstd). The names sort in the order of the events. After a crash two of these
files may have the same events, which count once. Earlier versions have one file.
`muleteer events --json` prints all events.

A line begins with `{"crc":"xxxxxxxx",`: the CRC-32C, in eight lower-case hex digits, of the bytes
after that comma up to the newline. Every line then has these fields:

| field | type | meaning |
|---|---|---|
| `v` | integer | the version of the format, 1 |
| `seq` | integer | counts from 1 without gaps |
| `ts` | string | the time of the append, in RFC 3339, UTC, with milliseconds |
| `id` | string | chosen by the sender, so that the same event sent again is not repeated |
| `dispatch_id` | string, optional | the dispatch to which the event belongs |
| `at` | object, optional | the position up to which the agent's output was read (`epoch`, `offset`, `skip`), on events read from it |
| `more` | boolean, optional | the next line belongs to the same batch: a batch is recovered whole or not at all |
| `event` | string | the name, one of those below |
| `info` | boolean, optional | a reader that does not know the event may fold the rest without it |

"or null" means that the field may be null or missing; "optional" means that it may be missing.
Durations with the suffix `_s` are in seconds and those with `_ms` in milliseconds; times are UTC.
Viewers skip events that they do not know.
"#;

const TYPES: &str = "\n## Types\n\nThe objects and words that several events have. Readers must \
    accept further words.\n";

/// The columns at which prose is wrapped.
const COLUMNS: usize = 100;

/// Returns the text of `docs/events.md`.
pub fn events_doc() -> String {
    let schema = event::schema();
    let examples: BTreeMap<String, Value> = samples()
        .into_iter()
        .map(|record| record.entry.event)
        .map(|event| (event.name(), serde_json::to_value(&event).unwrap_or_default()))
        .collect();
    let mut types: BTreeMap<&str, &Value> = schema["$defs"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, of_type)| (name.as_str(), of_type))
        .collect();
    let mut doc = INTRODUCTION.to_string();
    for variant in schema["oneOf"].as_array().into_iter().flatten() {
        let name = text(&variant["properties"]["event"]["const"]);
        doc.push_str(&format!("\n## `{name}`\n\n{}", prose(variant)));
        // The fields of some events are those of a type that no other event has.
        let payload = referenced(variant).and_then(|name| types.remove(name)).unwrap_or(variant);
        doc.push_str(&fields(payload, examples.get(name).or(Some(&Value::Null))));
    }
    doc.push_str(TYPES);
    for (name, of_type) in types {
        doc.push_str(&format!("\n### {name}\n\n{}", prose(of_type)));
        doc.push_str(&fields(of_type, None));
        doc.push_str(&words(of_type));
    }
    doc
}

/// Returns the table of an object's fields; empty if it has none.
fn fields(of_object: &Value, example: Option<&Value>) -> String {
    let properties = of_object["properties"].as_object().into_iter().flatten();
    let fields: Vec<_> = properties.filter(|(name, _)| *name != "event").collect();
    if fields.is_empty() {
        return String::new();
    }
    let mut table = match example {
        Some(_) => "\n| field | type | meaning | example |\n|---|---|---|---|\n".to_string(),
        None => "\n| field | type | meaning |\n|---|---|---|\n".to_string(),
    };
    let required = of_object["required"].as_array().cloned().unwrap_or_default();
    for (name, field) in fields {
        let mut kind = kind(field);
        if !required.contains(&name.as_str().into()) && !kind.ends_with(" or null") {
            kind.push_str(", optional");
        }
        table.push_str(&format!("| `{name}` | {kind} | {} |", cell(&description(field))));
        if let Some(example) = example {
            let example = example.get(name).map(|value| format!("`{}`", cell(&value.to_string())));
            table.push_str(&format!(" {} |", example.unwrap_or_default()));
        }
        table.push('\n');
    }
    table
}

/// Returns the table of an enumeration's words; empty for another type.
fn words(of_type: &Value) -> String {
    let words = of_type["oneOf"].as_array().into_iter().flatten();
    let rows: String = words
        .map(|word| format!("| `{}` | {} |\n", text(&word["const"]), cell(&description(word))))
        .collect();
    if rows.is_empty() { rows } else { format!("\n| word | meaning |\n|---|---|\n{rows}") }
}

/// Returns the type of a value in words: `string or null`, `array of [Planned](#planned)`.
fn kind(schema: &Value) -> String {
    if let Some(name) = referenced(schema) {
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(either) = schema["anyOf"].as_array() {
        return either.iter().map(kind).collect::<Vec<_>>().join(" or ");
    }
    match &schema["type"] {
        Value::String(name) if name == "array" => format!("array of {}", kind(&schema["items"])),
        Value::String(name) => name.clone(),
        Value::Array(names) => names.iter().map(text).collect::<Vec<_>>().join(" or "),
        _ => "any".to_string(),
    }
}

/// Returns the name of the type to which a schema refers.
fn referenced(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.rsplit('/').next()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the comment of a type or field on one line.
fn description(schema: &Value) -> String {
    text(&schema["description"]).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A bar would end the cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// Returns the comment of a type as a paragraph.
fn prose(schema: &Value) -> String {
    let (mut lines, mut line) = (String::new(), String::new());
    for word in description(schema).split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines.push_str(&line);
            lines.push('\n');
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    format!("{lines}{line}\n")
}
