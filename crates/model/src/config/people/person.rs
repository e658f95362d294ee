//! One entry of `people`: the ids of a person in each adapter, and the rights of the person.

use crate::config::people::right::{Right, Rule};
use schemars::JsonSchema;
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// A person. Every key but `may` is the name of an adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    pub accounts: BTreeMap<String, Accounts>,
    pub may: Vec<Rule>,
}

/// The ids of a person in one adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Accounts {
    /// `true`: the adapter knows the person by the name of the entry. `false`: not at all.
    ByName(bool),
    Ids(Vec<String>),
}

const MAY: &str = "may";

impl Default for Person {
    fn default() -> Self {
        let may = [Right::Talk, Right::Answer].map(Rule::all).to_vec();
        Self { accounts: BTreeMap::new(), may }
    }
}

impl Person {
    /// Returns whether the adapter knows the person, whose entry has this name, by this id.
    pub fn is(&self, name: &str, adapter: &str, user: &str) -> bool {
        self.accounts.get(adapter).is_some_and(|accounts| accounts.ids(name).any(|id| id == user))
    }
}

impl Accounts {
    /// Returns the ids of a person whose entry has this name.
    pub fn ids<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let (by_name, ids) = match self {
            Self::ByName(known) => (known.then_some(name), &[][..]),
            Self::Ids(ids) => (None, &ids[..]),
        };
        by_name.into_iter().chain(ids.iter().map(String::as_str))
    }
}

impl Serialize for Person {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.accounts.len() + 1))?;
        for (adapter, accounts) in &self.accounts {
            map.serialize_entry(adapter, accounts)?;
        }
        map.serialize_entry(MAY, &self.may)?;
        map.end()
    }
}

/// Written by hand, because a flattened map loses the places of its values.
impl<'de> Deserialize<'de> for Person {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Person;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping of adapters to ids, with `may`")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Person, A::Error> {
                let mut person = Person::default();
                while let Some(key) = map.next_key::<Key>()? {
                    match key {
                        Key::May => person.may = map.next_value()?,
                        Key::Adapter(adapter) => {
                            person.accounts.insert(adapter, map.next_value()?);
                        }
                    }
                }
                Ok(person)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

enum Key {
    May,
    Adapter(String),
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = Key;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of an adapter, or `may`")
            }
            fn visit_str<E: de::Error>(self, name: &str) -> Result<Key, E> {
                match crate::config::key::canonical(name).as_str() {
                    MAY => Ok(Key::May),
                    // A misspelt `may` would be an adapter that nobody has.
                    near if crate::config::error::nearest(near, [MAY]).is_some() => {
                        Err(E::unknown_field(name, &[MAY]))
                    }
                    _ => Ok(Key::Adapter(name.into())),
                }
            }
        }
        deserializer.deserialize_str(Name)
    }
}

impl<'de> Deserialize<'de> for Accounts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BoolOrIds;
        impl<'de> Visitor<'de> for BoolOrIds {
            type Value = Accounts;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`true`, an id, or a list of ids")
            }
            fn visit_bool<E: de::Error>(self, known: bool) -> Result<Accounts, E> {
                Ok(Accounts::ByName(known))
            }
            fn visit_u64<E: de::Error>(self, id: u64) -> Result<Accounts, E> {
                Ok(Accounts::Ids(vec![id.to_string()]))
            }
            fn visit_str<E: de::Error>(self, id: &str) -> Result<Accounts, E> {
                checked(vec![id.into()])
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Accounts, A::Error> {
                checked(Vec::deserialize(de::value::SeqAccessDeserializer::new(seq))?)
            }
        }
        fn checked<E: de::Error>(ids: Vec<String>) -> Result<Accounts, E> {
            match ids.iter().any(|id| id.trim().is_empty() || id.chars().any(char::is_control)) {
                true => Err(E::custom("an id is empty, or has control characters")),
                false => Ok(Accounts::Ids(ids)),
            }
        }
        deserializer.deserialize_any(BoolOrIds)
    }
}

impl JsonSchema for Person {
    fn schema_name() -> Cow<'static, str> {
        "Person".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let may = generator.subschema_for::<Vec<Rule>>();
        schemars::json_schema!({
            "description": "A person: the ids in each adapter, and the rights",
            "type": "object",
            "properties": {"may": may},
            "additionalProperties": {
                "description": "The ids in an adapter; `true` is the name of the entry",
                "anyOf": [
                    {"type": "boolean"},
                    {"type": ["string", "integer"]},
                    {"type": "array", "items": {"type": ["string", "integer"]}}
                ]
            }
        })
    }
}
