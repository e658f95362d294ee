//! Events whose texts cannot drive a terminal.

use muleteer_model::event::{Entry, Event};
use muleteer_model::text::controls::reorders;
use serde_json::Value;
use std::borrow::Cow;

/// Returns the entry without the control characters of its texts, but for line feeds and tabs.
/// Agents choose most of these texts, and a terminal shows them between our colours: a colour in
/// the name of a model, a tool or a session could hide the rest of the line.
pub fn plain(entry: &Entry) -> Cow<'_, Entry> {
    let drives = |c: char| (c.is_control() && !matches!(c, '\n' | '\t')) || reorders(c);
    let Ok(json) = serde_json::to_string(entry) else { return Cow::Borrowed(entry) };
    // JSON escapes control characters below the space, and no others.
    let escapes = ["\\u00", "\\b", "\\f", "\\r"];
    if !json.contains(drives) && !escapes.iter().any(|escape| json.contains(escape)) {
        return Cow::Borrowed(entry);
    }
    let mut value: Value = serde_json::from_str(&json).unwrap_or_default();
    clear(&mut value, &drives);
    let unknown = || Entry { event: Event::Unknown, ..entry.clone() };
    Cow::Owned(serde_json::from_value(value).unwrap_or_else(|_| unknown()))
}

/// Removes each such character from the texts in a value.
fn clear(value: &mut Value, drives: &dyn Fn(char) -> bool) {
    match value {
        Value::String(text) if text.contains(drives) => text.retain(|c| !drives(c)),
        Value::Array(items) => items.iter_mut().for_each(|item| clear(item, drives)),
        Value::Object(fields) => fields.values_mut().for_each(|field| clear(field, drives)),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::event::Lines;
    use crate::render::{BLUE, BOLD, CYAN, DIM, GREEN, MAGENTA, RED, RESET, YELLOW};

    /// Agents choose the names of their models, tools, sessions and modes.
    #[test]
    fn no_text_of_an_event_drives_the_terminal() {
        let evil = "\u{1b}[31;8mm\u{1b}[0m\u{9b}1m\u{7f}\u{202e}\u{1b}]0;t\u{7}\r\u{8}";
        let samples = muleteer_store::events::catalog::samples();
        let lines = Lines::default();
        for record in samples {
            let mut value = serde_json::to_value(&record.entry).expect("JSON");
            poison(&mut value, evil, &record.entry);
            let Ok(entry) = serde_json::from_value::<Entry>(value) else { continue };
            let shown = lines.describe(&entry).unwrap_or_default();
            let ours = [RED, YELLOW, GREEN, BLUE, MAGENTA, CYAN, RESET, BOLD, DIM];
            let left = ours.iter().fold(shown.clone(), |text, colour| text.replace(colour, ""));
            let drives = |c: char| (c.is_control() && c != '\n' && c != '\t') || reorders(c);
            assert!(!left.contains(drives), "{}: {shown:?}", entry.event.name());
            assert!(!shown.contains("\u{1b}[31;8m"), "{}: {shown:?}", entry.event.name());
        }
    }

    /// Puts the text into each text of the event that may be any text.
    fn poison(value: &mut Value, evil: &str, entry: &Entry) {
        let fields: Vec<String> =
            value.as_object().into_iter().flat_map(|fields| fields.keys().cloned()).collect();
        for field in fields {
            let before = value[&field].clone();
            if !before.is_string() || ["event", "id", "dispatch_id"].contains(&field.as_str()) {
                continue;
            }
            value[&field] = evil.into();
            let reads = serde_json::from_value::<Entry>(value.clone());
            if !reads.is_ok_and(|read| read.event.name() == entry.event.name()) {
                value[&field] = before;
            }
        }
    }
}
