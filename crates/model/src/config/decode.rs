//! Decodes a tree with positions into typed values. The serde deserializer's errors have the key,
//! its position and, for an unknown key or word, the nearest known one. It also collects every
//! leaf, from which the layers are merged.

use crate::config::error::{ConfigError, Place, list, nearest};
use crate::config::ranges;
use crate::config::yaml::{Entry, Kind, Node};
use serde::de::{
    self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor, value::StrDeserializer,
};
use serde::forward_to_deserialize_any;
use serde_json::Value;
use std::cell::RefCell;
use std::fmt;

/// A scalar, a list, or an empty mapping, with its canonical path.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Leaf {
    pub path: Vec<String>,
    pub value: Value,
    pub place: Option<Place>,
}

const NUMBER: &str = "a whole number of at least 0";

/// The most faults reported for one file; further ones are likely consequences.
const MOST_FAULTS: usize = 20;

/// Decodes a `T` and returns the leaves that it was decoded from.
///
/// # Errors
/// All faults: after each one, the faulty part is removed and decoding is repeated.
pub(crate) fn decode<T: de::DeserializeOwned>(
    mut root: Node,
    file: Option<&str>,
    text: &str,
) -> Result<(T, Vec<Leaf>), Vec<ConfigError>> {
    let mut errors = vec![];
    let mut left_out: Vec<Vec<String>> = vec![];
    loop {
        let leaves = RefCell::new(vec![]);
        match T::deserialize(Tree { node: &root, path: &[], leaves: &leaves }) {
            Ok(value) if errors.is_empty() => return Ok((value, leaves.into_inner())),
            Ok(_) => return Err(errors),
            Err(fault) => {
                let removed = remove(&mut root, &fault.path);
                let place = fault.place.or(root.place);
                // A key that is missing now may be the misspelt one that was just removed.
                if !left_out.iter().any(|path| path.starts_with(&fault.path)) {
                    left_out.push(fault.path.clone());
                    errors.push(fault.into_error().at(file, text, place));
                }
                if !removed || errors.len() >= MOST_FAULTS {
                    return Err(errors);
                }
            }
        }
    }
}

/// Removes the entry `path` (as written) from the tree. An item of a list removes the whole list.
fn remove(node: &mut Node, path: &[String]) -> bool {
    let (Kind::Map(entries), [key, rest @ ..]) = (&mut node.kind, path) else { return false };
    let Some(at) = entries.iter().position(|entry| entry.key == *key) else { return false };
    if !remove(&mut entries[at].value, rest) {
        entries.remove(at);
    }
    true
}

/// An error on its way up. Each level adds its key in front.
#[derive(Debug, Clone, PartialEq)]
struct Fault {
    message: String,
    hint: Option<String>,
    place: Option<Place>,
    /// The keys as written; `[2]` in a list.
    path: Vec<String>,
    /// The message already contains the key.
    named: bool,
}

impl Fault {
    fn new(message: String) -> Self {
        Self { message, hint: None, place: None, path: vec![], named: false }
    }

    fn below(mut self, key: &str, place: Option<Place>) -> Self {
        self.place = self.place.or(place);
        self.path.insert(0, key.to_string());
        self
    }

    fn unknown_key(entry: &Entry, known: &'static [&'static str]) -> Self {
        <Self as de::Error>::unknown_field(&entry.key, known).below(&entry.key, entry.key_place)
    }

    fn into_error(mut self) -> ConfigError {
        // The same key has one range, in this message as in the one about an impossible number.
        if let Some(range) = ranges::of(&self.path)
            && let Some(rest) = self.message.strip_prefix(&format!("expected {NUMBER}"))
        {
            let (_, found) = rest.split_once(", not ").unwrap_or_default();
            self.message = format!("expected {range}, not {found}");
        }
        let path = dotted(&self.path);
        let message = match (self.named, path.is_empty()) {
            (_, true) => self.message,
            (false, _) => format!("`{path}`: {}", self.message),
            (true, _) if self.path.len() == 1 => self.message,
            (true, _) => {
                format!("{} in `{}`", self.message, dotted(&self.path[..self.path.len() - 1]))
            }
        };
        ConfigError::new(message).with_hint(self.hint)
    }
}

/// Joins a path as `a.b.c`. Parts that contain a dot are quoted, and list indices are appended.
pub(crate) fn dotted(path: &[String]) -> String {
    let mut text = String::new();
    for part in path {
        if !text.is_empty() && !part.starts_with('[') {
            text.push('.');
        }
        if part.contains('.') {
            text.push_str(&format!("{part:?}"));
        } else {
            text.push_str(part);
        }
    }
    text
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message.to_string())
    }

    fn invalid_type(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let expected = expected.to_string();
        let wanted = wanted(&expected);
        let mut fault = Self::new(format!("expected {wanted}, not {}", shown(found)));
        let scalar = matches!(
            found,
            de::Unexpected::Bool(_) | de::Unexpected::Float(_) | de::Unexpected::Signed(_)
        );
        if wanted == "text" && scalar {
            fault.hint = Some("put it in quotes to make it text".into());
        }
        fault
    }

    fn invalid_value(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let expected = expected.to_string();
        let most = match (expected.as_str(), &found) {
            ("u8", de::Unexpected::Unsigned(_)) => u64::from(u8::MAX),
            ("u16", de::Unexpected::Unsigned(_)) => u64::from(u16::MAX),
            ("u32", de::Unexpected::Unsigned(_)) => u64::from(u32::MAX),
            _ => {
                return Self::new(format!("expected {}, not {}", wanted(&expected), shown(found)));
            }
        };
        Self::new(format!("expected {NUMBER} and at most {most}, not {}", shown(found)))
    }

    fn unknown_variant(variant: &str, known: &'static [&'static str]) -> Self {
        let near =
            nearest(variant, known.iter().copied()).map(|near| format!("did you mean `{near}`?"));
        let shown: String = variant.chars().take(60).collect();
        Self { hint: near, ..Self::new(format!("`{shown}` is not one of {}", list(known))) }
    }

    fn unknown_field(field: &str, known: &'static [&'static str]) -> Self {
        let near =
            nearest(field, known.iter().copied()).map(|near| format!("did you mean `{near}`?"));
        let hint = near.unwrap_or_else(|| format!("known keys: {}", list(known)));
        Self { hint: Some(hint), named: true, ..Self::new(format!("unknown key `{field}`")) }
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new(format!("`{field}` is missing"))
    }

    fn duplicate_field(field: &'static str) -> Self {
        Self::new(format!("`{field}` is given twice, in two spellings"))
    }
}

fn wanted(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => NUMBER,
        "i64" => "a whole number",
        "f32" | "f64" => "a number",
        "a string" => "text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "a mapping",
        other if other.starts_with("struct ") => "a mapping",
        other => other,
    }
}

fn shown(found: de::Unexpected<'_>) -> String {
    match found {
        de::Unexpected::Str(text) => {
            format!("the text {:?}", text.chars().take(60).collect::<String>())
        }
        de::Unexpected::Unit | de::Unexpected::Option => "nothing".into(),
        de::Unexpected::Seq => "a list".into(),
        de::Unexpected::Map => "a mapping".into(),
        de::Unexpected::Bool(value) => value.to_string(),
        de::Unexpected::Signed(value) => value.to_string(),
        de::Unexpected::Unsigned(value) => value.to_string(),
        de::Unexpected::Float(value) => value.to_string(),
        other => other.to_string(),
    }
}

/// A node that is being decoded.
#[derive(Clone, Copy)]
struct Tree<'a> {
    node: &'a Node,
    /// In canonical spelling.
    path: &'a [String],
    leaves: &'a RefCell<Vec<Leaf>>,
}

impl<'a> Tree<'a> {
    fn note(&self, value: Value) {
        if !self.path.is_empty() {
            self.leaves.borrow_mut().push(Leaf {
                path: self.path.to_vec(),
                value,
                place: self.node.place,
            });
        }
    }

    /// Describes the node in an error.
    fn found(&self) -> de::Unexpected<'a> {
        match &self.node.kind {
            Kind::Null => de::Unexpected::Unit,
            Kind::Bool(value) => de::Unexpected::Bool(*value),
            Kind::Int(value) => de::Unexpected::Signed(*value),
            Kind::Float(value) => de::Unexpected::Float(*value),
            Kind::Text(value) => de::Unexpected::Str(value),
            Kind::List(_) => de::Unexpected::Seq,
            Kind::Map(_) => de::Unexpected::Map,
        }
    }

    /// Decodes a mapping. A key with nothing below it, such as `pool:`, is an empty mapping.
    fn map<'de, V: Visitor<'de>>(
        self,
        entries: &[Entry],
        known: Option<&'static [&'static str]>,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        if entries.is_empty() {
            self.note(Value::Object(serde_json::Map::new()));
        }
        visitor.visit_map(Entries { tree: self, left: entries.iter(), value: None, known })
    }

    fn list<'de, V: Visitor<'de>>(self, items: &[Node], visitor: V) -> Result<V::Value, Fault> {
        let noted = RefCell::new(vec![]);
        let read = visitor.visit_seq(Items { leaves: &noted, left: items.iter(), at: 0 })?;
        // A list is one leaf, with its items as decoded: a number among texts is a text.
        let mut values = vec![Value::Null; items.len()];
        for leaf in noted.into_inner() {
            let Some((at, below)) = leaf.path.split_first() else { continue };
            if let Some(value) = at.parse().ok().and_then(|at: usize| values.get_mut(at)) {
                put(value, below, leaf.value);
            }
        }
        self.note(Value::Array(values));
        Ok(read)
    }
}

/// Sets `leaf` at `path` below `value`, and creates the mappings in between.
fn put(value: &mut Value, path: &[String], leaf: Value) {
    let Some((key, below)) = path.split_first() else { return *value = leaf };
    if !value.is_object() {
        *value = Value::Object(serde_json::Map::new());
    }
    if let Value::Object(entries) = value {
        put(entries.entry(key.clone()).or_insert(Value::Null), below, leaf);
    }
}

impl<'de> Deserializer<'de> for Tree<'_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.kind {
            Kind::Map(entries) => return self.map(entries, None, visitor),
            Kind::List(items) => return self.list(items, visitor),
            _ => self.note(self.node.to_json()),
        }
        match &self.node.kind {
            Kind::Bool(value) => visitor.visit_bool(*value),
            Kind::Int(value) => match u64::try_from(*value) {
                Ok(value) => visitor.visit_u64(value),
                Err(_) => visitor.visit_i64(*value),
            },
            Kind::Float(value) => visitor.visit_f64(*value),
            Kind::Text(value) => visitor.visit_str(value),
            Kind::Null | Kind::List(_) | Kind::Map(_) => visitor.visit_unit(),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.node.kind {
            Kind::Null => {
                self.note(Value::Null);
                visitor.visit_none()
            }
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.node.kind {
            // An integer has one spelling, so it can be read as text without loss.
            Kind::Int(value) => {
                self.note(Value::String(value.to_string()));
                visitor.visit_string(value.to_string())
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_string(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match &self.node.kind {
            Kind::Map(entries) => self.map(entries, Some(fields), visitor),
            Kind::Null => self.map(&[], Some(fields), visitor),
            // A derived struct would accept a list as its fields in order.
            Kind::List(_) => Err(de::Error::invalid_type(de::Unexpected::Seq, &visitor)),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.kind {
            Kind::Null => self.map(&[], None, visitor),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let text = match &self.node.kind {
            Kind::Text(text) => text.as_str(),
            // `on_complete: none` is a word; a user may write an unquoted `null` for it.
            Kind::Null if variants.contains(&"none") => "none",
            Kind::Map(_) => return self.deserialize_any(visitor),
            _ => {
                return Err(de::Error::invalid_type(
                    self.found(),
                    &format!("one of {}", list(variants)).as_str(),
                ));
            }
        };
        let wanted = crate::config::canonical(text);
        let variant = variants.iter().find(|variant| crate::config::canonical(variant) == wanted);
        let variant = variant.ok_or_else(|| de::Error::unknown_variant(text, variants))?;
        self.note(Value::String((*variant).to_string()));
        visitor.visit_enum(StrDeserializer::new(variant))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf
        unit unit_struct seq tuple tuple_struct identifier ignored_any
    }
}

struct Entries<'a> {
    tree: Tree<'a>,
    left: std::slice::Iter<'a, Entry>,
    value: Option<(&'a Entry, String)>,
    /// The fields of a struct; `None` for a mapping whose keys are names.
    known: Option<&'static [&'static str]>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        let Some(entry) = self.left.next() else { return Ok(None) };
        let key = match self.known {
            None => entry.key.clone(),
            Some(known) => {
                let canonical = crate::config::canonical(&entry.key);
                if !known.contains(&canonical.as_str()) {
                    return Err(Fault::unknown_key(entry, known));
                }
                canonical
            }
        };
        let read = seed.deserialize(StrDeserializer::<Fault>::new(&key));
        let read = read.map_err(|fault| fault.below(&entry.key, entry.key_place))?;
        self.value = Some((entry, key));
        Ok(Some(read))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        let Some((entry, key)) = self.value.take() else {
            return Err(Fault::new("a value was requested before its key".into()));
        };
        let mut path = self.tree.path.to_vec();
        path.push(key);
        let below = Tree { node: &entry.value, path: &path, leaves: self.tree.leaves };
        seed.deserialize(below)
            .map_err(|fault| fault.below(&entry.key, entry.value.place.or(entry.key_place)))
    }
}

struct Items<'a> {
    leaves: &'a RefCell<Vec<Leaf>>,
    left: std::slice::Iter<'a, Node>,
    at: usize,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Fault> {
        let Some(node) = self.left.next() else { return Ok(None) };
        let path = [self.at.to_string()];
        let below = Tree { node, path: &path, leaves: self.leaves };
        let index = format!("[{}]", self.at);
        self.at += 1;
        seed.deserialize(below).map(Some).map_err(|fault| fault.below(&index, node.place))
    }
}
