//! Parses YAML text into a tree in which every key and value has its position.
//!
//! The limits are far below the library's own. A configuration has hundreds of nodes, and with the
//! default budget an alias bomb of a few lines took seconds to be rejected.

#![allow(
    clippy::result_large_err,
    reason = "a faulty file is reported once, and then nothing runs"
)]

use crate::config::error::{ConfigError, Place};
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use std::borrow::Cow;
use std::fmt;

/// The longest text that is parsed.
pub(crate) const TEXT_LIMIT: usize = 1024 * 1024;
const NODES: usize = 20_000;
const DEPTH: usize = 32;
const ALIASES: usize = 1_000;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub place: Option<Place>,
    pub kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub key: String,
    pub key_place: Option<Place>,
    pub value: Node,
}

impl Node {
    /// Returns the value without its positions. There are no duplicate keys, because the parser
    /// rejects them.
    pub fn to_json(&self) -> serde_json::Value {
        use serde_json::Value;
        match &self.kind {
            Kind::Null => Value::Null,
            Kind::Bool(value) => (*value).into(),
            Kind::Int(value) => (*value).into(),
            Kind::Float(value) => (*value).into(),
            Kind::Text(value) => value.as_str().into(),
            Kind::List(items) => items.iter().map(Self::to_json).collect(),
            Kind::Map(entries) => {
                entries.iter().map(|e| (e.key.clone(), e.value.to_json())).collect()
            }
        }
    }
}

/// Replaces lone carriage returns by spaces. YAML counts them as line ends but editors do not, so
/// the line numbers of errors would be wrong.
pub fn with_file_lines(text: &str) -> Cow<'_, str> {
    let lone = |at: usize| !text[at + 1..].starts_with('\n');
    if !text.match_indices('\r').any(|(at, _)| lone(at)) {
        return Cow::Borrowed(text);
    }
    let chars = text.char_indices();
    Cow::Owned(chars.map(|(at, char)| if char == '\r' && lone(at) { ' ' } else { char }).collect())
}

/// Parses one document.
///
/// # Errors
/// The YAML fault, with its position.
pub(crate) fn parse(text: &str, file: Option<&str>) -> Result<Node, ConfigError> {
    if text.len() > TEXT_LIMIT {
        let message = format!("the file has {} bytes: the limit is {TEXT_LIMIT}", text.len());
        return Err(ConfigError::new(message).at(file, text, None));
    }
    // Otherwise an empty file, or one with comments only, would be an error.
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(Node { place: None, kind: Kind::Null });
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 2 * NODES,
            max_nodes: NODES,
            max_depth: DEPTH,
            max_aliases: ALIASES,
            max_anchors: ALIASES,
            max_documents: 1,
            max_recorded_anchor_events: NODES,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: NODES,
            max_replay_stack_depth: 16,
        },
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        with_snippet: false,
    };
    match serde_saphyr::from_str_with_options::<Spanned<Bare>>(&with_file_lines(text), options) {
        Ok(spanned) => Ok(spanned.into()),
        Err(error) => {
            let place = error.location().and_then(place);
            let message =
                format!("this is not valid YAML: {}", plain(&error.without_snippet().to_string()));
            Err(ConfigError::new(message).at(file, text, place))
        }
    }
}

/// Returns the library's message without its position, which is printed separately, in plain words.
fn plain(message: &str) -> &str {
    let message = message.split(" at line ").next().unwrap_or(message);
    let message = message.split(", set DuplicateKeyPolicy").next().unwrap_or(message);
    let message = message.strip_prefix("error: ").unwrap_or(message);
    match message.strip_prefix("budget breached: ") {
        Some(budget) if budget.starts_with("Documents") => {
            "expected one document, but a second one begins here"
        }
        Some(_) => "it has too many entries, levels or aliases",
        None => message,
    }
}

fn place(location: serde_saphyr::Location) -> Option<Place> {
    let (line, column) = (location.line(), location.column());
    // Line 0 means unknown.
    (line > 0).then(|| Place { line: line as u32, column: column.max(1) as u32 })
}

/// The library's output: values whose children have positions, but that lack their own.
enum Bare {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Spanned<Bare>>),
    Map(Vec<(Spanned<String>, Spanned<Bare>)>),
}

impl From<Spanned<Bare>> for Node {
    fn from(spanned: Spanned<Bare>) -> Self {
        let kind = match spanned.value {
            Bare::Null => Kind::Null,
            Bare::Bool(value) => Kind::Bool(value),
            Bare::Int(value) => Kind::Int(value),
            Bare::Float(value) => Kind::Float(value),
            Bare::Text(value) => Kind::Text(value),
            Bare::List(items) => Kind::List(items.into_iter().map(Node::from).collect()),
            Bare::Map(entries) => Kind::Map(
                entries
                    .into_iter()
                    .map(|(key, value)| Entry {
                        key_place: place(key.referenced),
                        key: key.value,
                        value: value.into(),
                    })
                    .collect(),
            ),
        };
        Node { place: place(spanned.referenced), kind }
    }
}

impl<'de> Deserialize<'de> for Bare {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Bare;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_unit<E: de::Error>(self) -> Result<Bare, E> {
                Ok(Bare::Null)
            }
            fn visit_none<E: de::Error>(self) -> Result<Bare, E> {
                Ok(Bare::Null)
            }
            fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Bare, D::Error> {
                Bare::deserialize(deserializer)
            }
            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Bare, E> {
                Ok(Bare::Bool(value))
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Bare, E> {
                Ok(Bare::Int(value))
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Bare, E> {
                Ok(i64::try_from(value).map_or(Bare::Float(value as f64), Bare::Int))
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Bare, E> {
                Ok(Bare::Float(value))
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Bare, E> {
                Ok(Bare::Text(value.into()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Bare, A::Error> {
                let mut items = vec![];
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Bare::List(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Bare, A::Error> {
                let mut entries = vec![];
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Bare::Map(entries))
            }
        }
        deserializer.deserialize_any(Any)
    }
}
