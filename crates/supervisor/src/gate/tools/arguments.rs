//! The arguments of a call. An agent's model writes them, so each is checked.

use super::{Refusal, refused};
use serde_json::{Map, Value};

/// A JSON object.
#[derive(Debug)]
pub(super) struct Arguments(Map<String, Value>);

impl Arguments {
    pub fn read(text: &str) -> Result<Self, Refusal> {
        match serde_json::from_str::<Value>(text) {
            Ok(Value::Object(all)) => Ok(Self(all)),
            Ok(Value::Null) => Ok(Self(Map::new())),
            Ok(_) | Err(_) => refused("the arguments are not a JSON object"),
        }
    }

    /// Returns the arguments with sorted keys, so that equal calls have equal texts.
    pub fn canonical(&self) -> String {
        let mut all: Vec<_> = self.0.iter().filter(|(_, value)| !value.is_null()).collect();
        all.sort_by_key(|(key, _)| key.as_str());
        all.into_iter().map(|(key, value)| format!("{key}={value}\n")).collect()
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub fn text(&self, name: &str) -> Result<Option<&str>, Refusal> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => refused(format!("`{name}` must be a text")),
        }
    }

    /// Returns a text that must be there and not be empty.
    pub fn needed(&self, name: &str) -> Result<&str, Refusal> {
        match self.text(name)?.filter(|text| !text.trim().is_empty()) {
            Some(text) => Ok(text),
            None => refused(format!("`{name}` is missing")),
        }
    }

    pub fn flag(&self, name: &str) -> Result<bool, Refusal> {
        match self.get(name) {
            None => Ok(false),
            Some(Value::Bool(set)) => Ok(*set),
            Some(_) => refused(format!("`{name}` must be true or false")),
        }
    }

    /// Returns a number that is not negative.
    pub fn number(&self, name: &str) -> Result<Option<f64>, Refusal> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => match value.as_f64().filter(|number| *number >= 0.0) {
                Some(number) => Ok(Some(number)),
                None => refused(format!("`{name}` must be a number of at least 0")),
            },
        }
    }

    /// Returns a list; a single value is a list of one.
    pub fn list(&self, name: &str) -> Vec<&Value> {
        match self.get(name) {
            None => vec![],
            Some(Value::Array(all)) => all.iter().collect(),
            Some(one) => vec![one],
        }
    }

    /// Returns a list of texts.
    pub fn texts(&self, name: &str) -> Result<Vec<&str>, Refusal> {
        let texts: Option<Vec<_>> = self.list(name).into_iter().map(Value::as_str).collect();
        match texts {
            Some(texts) => Ok(texts),
            None => refused(format!("`{name}` must be a list of texts")),
        }
    }
}
