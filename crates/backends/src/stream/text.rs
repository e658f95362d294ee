//! Keeps events small. The complete output stays in the spool.

use muleteer_model::agent::event::{AgentEvent, TEXT_LIMIT, both_ends, cut};
use muleteer_model::text::fnv1a;
use serde_json::Value;

/// The longest final text of a turn. A result document may be at its end, where it is searched for.
pub const RESULT_TEXT_LIMIT: usize = 256 * 1024;

/// Returns bytes as text, cut to [`TEXT_LIMIT`], with invalid UTF-8 replaced.
pub fn lossy(bytes: &[u8]) -> String {
    // A character has at most 4 bytes, so this cut removes nothing that `cut` would keep.
    let head = &bytes[..bytes.len().min(TEXT_LIMIT + 4)];
    cut(&String::from_utf8_lossy(head), TEXT_LIMIT)
}

/// Returns the end of a text that is longer than `limit` bytes.
pub fn tail(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_string();
    }
    let mut start = text.len() - limit + '…'.len_utf8();
    while !text.is_char_boundary(start) {
        start += 1;
    }
    format!("…{}", &text[start..])
}

/// Returns a count: a fraction is truncated, and a negative value or a non-number is 0.
pub fn number(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_f64().map(|n| n as u64)).unwrap_or_default()
}

/// Cuts long texts inside a tool's input. The mark contains the length and a checksum of the whole
/// text, so that two inputs that differ only after the cut stay different for the loop detector.
pub fn slim(value: &mut Value) {
    match value {
        Value::String(text) if text.len() > TEXT_LIMIT => {
            let mark = format!(" [{} bytes, {:016x}]", text.len(), fnv1a::of(text.as_bytes()));
            *text = format!("{}{mark}", cut(text, TEXT_LIMIT - mark.len()));
        }
        Value::Array(items) => items.iter_mut().for_each(slim),
        Value::Object(map) => map.values_mut().for_each(slim),
        _ => {}
    }
}

/// Bounds the texts of an event that an agent wrote itself.
pub fn bound(event: &mut AgentEvent) {
    let short = |text: &mut String| {
        if text.len() > TEXT_LIMIT {
            *text = cut(text, TEXT_LIMIT);
        }
    };
    match event {
        AgentEvent::Text { chars, text } | AgentEvent::Thinking { chars, text } => {
            *chars = (*chars).max(text.chars().count() as u64);
            short(text);
        }
        AgentEvent::Prompt { text, .. }
        | AgentEvent::Notice { text }
        | AgentEvent::Question { text, .. }
        | AgentEvent::Answer { text, .. }
        | AgentEvent::Output { text }
        | AgentEvent::Unknown { raw: text } => short(text),
        AgentEvent::ToolResult { text, .. } if text.len() > TEXT_LIMIT => {
            *text = both_ends(text, TEXT_LIMIT)
        }
        AgentEvent::ToolCall { input, .. } => slim(input),
        AgentEvent::Permission { ask, .. } => **ask = std::mem::take(&mut **ask).bound(),
        AgentEvent::Result(result) => {
            if let Some(text) = &mut result.text {
                *text = tail(text, RESULT_TEXT_LIMIT);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn inputs_that_differ_beyond_the_cut_stay_different() {
        let long = |end: &str| {
            let mut value =
                json!({"file_path": "a", "content": [format!("{}{end}", "é".repeat(5000))]});
            slim(&mut value);
            value
        };
        assert_ne!(long("x"), long("y"));
        assert_eq!(long("x"), long("x"));
        assert!(long("x").to_string().len() < TEXT_LIMIT + 100);
    }

    #[test]
    fn the_tail_of_a_text_is_whole_characters() {
        for limit in 8..20 {
            let text = tail(&"aé√".repeat(9), limit);
            assert!(text.len() <= limit && text.starts_with('…') && text.ends_with('√'), "{text}");
        }
    }
}
