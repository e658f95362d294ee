//! Finds the verdict in a text. A model writes drafts, quotes the requested shape, or is cut off,
//! so the last candidate is the verdict, whether or not it is valid.

use crate::spec_run::judge::JudgeResult;
use crate::spec_run::judge::error::VerdictError;
use crate::text::foreign_json::{self, Damage, Repair};
use serde_json::Value;

/// The longest text that is parsed.
const LIMIT: usize = 1024 * 1024;
/// The most objects with invalid JSON that are examined.
const BROKEN: usize = 64;
/// The fields of a verdict, and those that only a verdict has.
const NAMES: [&str; 5] = ["status", "specDrift", "acceptance", "observations", "newBeads"];
const OWN: [&str; 3] = ["specDrift", "acceptance", "newBeads"];

/// A candidate for a verdict: the verdict, or why it is invalid.
pub type Found = Result<JudgeResult, VerdictError>;

/// Returns the last candidate for a verdict, or why that one is invalid.
///
/// # Errors
/// The text cannot be searched.
pub fn last(text: &str) -> Result<Option<Found>, VerdictError> {
    if text.len() > LIMIT {
        return Err(VerdictError::TooLong { length: text.len(), limit: LIMIT });
    }
    let (mut found, mut at, mut broken) = (None, 0, 0);
    while let Some(begin) = text[at..].find('{').map(|ahead| at + ahead) {
        at = begin + 1;
        if !begins_an_object(&text[begin..]) {
            continue;
        }
        let mut stream = serde_json::Deserializer::from_str(&text[begin..]).into_iter::<Value>();
        let error = match stream.next() {
            Some(Ok(value)) => {
                at = begin + stream.byte_offset();
                found = whole(&text[begin..at], value).or(found);
                continue;
            }
            Some(Err(error)) => error,
            None => continue,
        };
        // `serde_json` rejects some repairable documents: half of a surrogate pair, `1e999`.
        let (document, length) = foreign_json::prefix(&text[begin..]);
        match document.damage {
            None => {
                at = begin + length;
                found = whole(&text[begin..at], document.value).or(found);
                continue;
            }
            // A string that contains a line break is more likely a quote in prose than a cut-off
            // document.
            Some(Damage::CutOff) if !document.repairs.contains(&Repair::ControlCharacter) => {
                return Ok(Some(Err(VerdictError::CutOff(error.to_string()))));
            }
            Some(_) => {}
        }
        broken += 1;
        if broken > BROKEN {
            return Err(VerdictError::TooMuchBroken);
        }
        let end = begin + extent(&text[begin..]);
        if says_a_verdict(&text[begin..end]) {
            found = Some(Err(VerdictError::NoJson(error.to_string())));
            at = end;
        }
    }
    Ok(found)
}

/// Returns whether a brace begins an object. Prose also contains quoted code.
fn begins_an_object(text: &str) -> bool {
    let inside = text[1..].trim_start();
    inside.is_empty() || inside.starts_with(['"', '}']) || names_something_first(inside)
}

/// Returns whether the first key is a field of a verdict, in any quotes.
fn names_something_first(inside: &str) -> bool {
    let bare = inside.trim_start_matches(['"', '\'', '`']);
    NAMES.iter().any(|name| {
        bare.strip_prefix(name).is_some_and(|rest| {
            rest.trim_start_matches(['"', '\'', '`']).trim_start().starts_with(':')
        })
    })
}

fn says_a_verdict(text: &str) -> bool {
    names_something_first(text[1..].trim_start())
        || OWN.iter().chain(["status"].iter()).any(|name| text.contains(&format!("\"{name}\"")))
}

/// Examines a valid JSON object: it is a verdict, or contains one.
fn whole(text: &str, value: Value) -> Option<Found> {
    // A last line `{"type":"result", …}` comes from the agent CLI and has a status too.
    let bare = value.get("status").is_some() && value.get("type").is_none();
    if is_verdict(&value) || bare {
        if !is_verdict(&value) {
            return Some(Err(VerdictError::NoParts));
        }
        if value.get("status").is_none() {
            return Some(Err(VerdictError::NoStatus));
        }
        // Parsed from the text, so that a duplicate field is an error.
        let typed = foreign_json::typed(text.as_bytes());
        return Some(typed.map_err(|error| VerdictError::Shape(error.to_string())));
    }
    let mut within = vec![];
    held(value, &mut within);
    match within.len() {
        0 => None,
        1 => within
            .pop()
            .map(serde_json::from_value)
            .map(|typed| typed.map_err(|error| VerdictError::Shape(error.to_string()))),
        many => Some(Err(VerdictError::Several(many))),
    }
}

fn is_verdict(value: &Value) -> bool {
    OWN.iter().any(|name| value.get(name).is_some())
}

fn held(value: Value, found: &mut Vec<Value>) {
    match value {
        value if is_verdict(&value) => found.push(value),
        Value::Object(fields) => fields.into_iter().for_each(|(_, value)| held(value, found)),
        Value::Array(values) => values.into_iter().for_each(|value| held(value, found)),
        _ => {}
    }
}

/// Returns the length of an object by its braces, or of the whole text if they are not closed.
fn extent(text: &str) -> usize {
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'{' if !quoted => depth += 1,
            b'}' if !quoted => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    text.len()
}
