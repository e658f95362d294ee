//! Where in a text the verdict is. A model drafts, quotes the shape that was asked for, and is cut
//! off: the last thing that is like a verdict is it, readable or not.

use crate::spec_run::judge::JudgeResult;
use crate::text::foreign_json::{self, Damage, Repair};
use serde_json::Value;

/// The longest text read.
const LIMIT: usize = 1024 * 1024;
/// Of what begins like JSON and is none, so much is looked at.
const BROKEN: usize = 64;
/// What a verdict says, and what only a verdict says.
const NAMES: [&str; 5] = ["status", "specDrift", "acceptance", "observations", "newBeads"];
const OWN: [&str; 3] = ["specDrift", "acceptance", "newBeads"];

/// The last object that is like a verdict, or why that one cannot be read.
///
/// # Errors
/// The text is not looked through.
pub fn last(text: &str) -> Result<Option<Result<JudgeResult, String>>, String> {
    if text.len() > LIMIT {
        return Err(format!("it is {} bytes long, and {LIMIT} is the limit", text.len()));
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
        // What `serde_json` refuses may need repair only: half of a surrogate pair, `1e999`.
        let (document, length) = foreign_json::prefix(&text[begin..]);
        match document.damage {
            None => {
                at = begin + length;
                found = whole(&text[begin..at], document.value).or(found);
                continue;
            }
            // A quote in prose would run on over its line.
            Some(Damage::CutOff) if !document.repairs.contains(&Repair::ControlCharacter) => {
                return Ok(Some(Err(format!("it is cut off: {error}"))));
            }
            Some(_) => {}
        }
        broken += 1;
        if broken > BROKEN {
            return Err("too much in it begins like JSON and is none".into());
        }
        let end = begin + extent(&text[begin..]);
        if says_a_verdict(&text[begin..end]) {
            found = Some(Err(format!("it is no JSON: {error}")));
            at = end;
        }
    }
    Ok(found)
}

/// Not every brace does: prose quotes code.
fn begins_an_object(text: &str) -> bool {
    let inside = text[1..].trim_start();
    inside.is_empty() || inside.starts_with(['"', '}']) || names_something_first(inside)
}

/// A verdict's word as the first key, in whatever quotes.
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

/// An object that is JSON: a verdict, or one that holds one.
fn whole(text: &str, value: Value) -> Option<Result<JudgeResult, String>> {
    // A last line `{"type":"result", …}` is an agent's own, and has a status too.
    let bare = value.get("status").is_some() && value.get("type").is_none();
    if is_verdict(&value) || bare {
        if !is_verdict(&value) {
            let lacks = "it has neither `specDrift` nor `acceptance`: what the judge was asked about is missing";
            return Some(Err(lacks.into()));
        }
        if value.get("status").is_none() {
            return Some(Err("`status` is missing: success, failure or timeout".into()));
        }
        // From the text, where a field that is there twice is an error.
        return Some(foreign_json::typed(text.as_bytes()).map_err(|error| error.to_string()));
    }
    let mut within = vec![];
    held(value, &mut within);
    match within.len() {
        0 => None,
        1 => within
            .pop()
            .map(|value| serde_json::from_value(value).map_err(|error| error.to_string())),
        many => Some(Err(format!("there are {many} verdicts in one object"))),
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

/// How far it goes, by its braces: to the end of the text, where they are not closed.
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
