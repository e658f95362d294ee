//! The JSON surface of a type, read from a sample and from the type's own deserializer.
//!
//! The deserializer is asked about changed copies of the sample: whether a field may be null or
//! absent, which numbers it takes, and which words an enumeration has.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A word that no type of ours accepts.
const NO_WORD: &str = "\u{a4}";

/// Adds one line for each field at any depth: `prefix.path: kind`, and the other inputs that the
/// type accepts.
///
/// # Panics
/// When the sample cannot be written as JSON.
pub fn describe<T: Serialize + DeserializeOwned>(
    prefix: &str,
    sample: &T,
    is_known: impl Fn(&T) -> bool,
    lines: &mut BTreeSet<String>,
) {
    let whole = serde_json::to_value(sample).expect("a sample is JSON");
    let read = |value: &Value| match serde_json::from_value::<T>(value.clone()) {
        Ok(read) if is_known(&read) => Ok(()),
        Ok(_) => Err(String::new()),
        Err(error) => Err(error.to_string()),
    };
    assert_eq!(read(&whole), Ok(()), "{prefix}: the sample reads itself");
    Probe { prefix, whole: &whole, read: &read, lines }.visit("", "", &whole);
}

struct Probe<'a> {
    prefix: &'a str,
    whole: &'a Value,
    read: &'a dyn Fn(&Value) -> Result<(), String>,
    lines: &'a mut BTreeSet<String>,
}

impl Probe<'_> {
    /// `pointer` finds the value in the sample; `path` names it for people.
    fn visit(&mut self, pointer: &str, path: &str, value: &Value) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let pointer =
                        format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
                    let path = format!("{path}.{name}");
                    let mut said = self.kind(&pointer, value);
                    if !value.is_null() && self.with(&pointer, &Value::Null).is_ok() {
                        said.push_str(" or null");
                    }
                    if self.without(&pointer) {
                        said.push_str(", optional");
                    }
                    self.lines.insert(format!("{}{path}: {said}", self.prefix));
                    self.visit(&pointer, &path, value);
                }
            }
            Value::Array(items) => {
                for (at, value) in items.iter().enumerate() {
                    let (pointer, path) = (format!("{pointer}/{at}"), format!("{path}[]"));
                    let said = self.kind(&pointer, value);
                    self.lines.insert(format!("{}{path}: {said}", self.prefix));
                    self.visit(&pointer, &path, value);
                }
            }
            _ => {}
        }
    }

    fn kind(&self, pointer: &str, value: &Value) -> String {
        match value {
            Value::Null => {
                let others = [json!(true), json!(1), json!("x"), json!([]), json!({})];
                let taken = others.iter().filter(|other| self.with(pointer, other).is_ok());
                let kinds: Vec<_> = taken.map(plain_kind).collect();
                format!(
                    "null or {}",
                    if kinds.is_empty() { "another".into() } else { kinds.join(" or ") }
                )
            }
            Value::Number(_) if self.with(pointer, &json!(1.5)).is_ok() => "number".into(),
            Value::Number(_) if self.with(pointer, &json!(-1)).is_ok() => "integer".into(),
            Value::Number(_) => "unsigned".into(),
            Value::String(_) => match self.with(pointer, &json!(NO_WORD)) {
                Ok(()) => "string".into(),
                Err(error) => words(&error),
            },
            _ => plain_kind(value).into(),
        }
    }

    fn with(&self, pointer: &str, value: &Value) -> Result<(), String> {
        let mut changed = self.whole.clone();
        *changed.pointer_mut(pointer).expect("the place is in the sample") = value.clone();
        (self.read)(&changed)
    }

    fn without(&self, pointer: &str) -> bool {
        let mut changed = self.whole.clone();
        let (parent, name) = pointer.rsplit_once('/').expect("a field has a parent");
        let name = name.replace("~1", "/").replace("~0", "~");
        let fields = changed.pointer_mut(parent).and_then(Value::as_object_mut);
        fields.expect("a field's parent is an object").remove(&name);
        (self.read)(&changed).is_ok()
    }
}

/// Returns the words of an enumeration, from the error of its deserializer.
fn words(error: &str) -> String {
    let known: BTreeSet<_> = match error.split_once("unknown variant") {
        Some((_, list)) => list.split('`').skip(3).step_by(2).collect(),
        None => BTreeSet::new(),
    };
    if known.is_empty() {
        return "string of a form".into();
    }
    format!("one of {}", known.into_iter().collect::<Vec<_>>().join(" "))
}

/// Returns the name of a JSON type.
pub fn plain_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
