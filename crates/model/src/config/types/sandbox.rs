//! Settings of the sandbox of a run's agents.

use schemars::JsonSchema;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// The sandbox of a run's agents: `on`, `off`, or `on` with exceptions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Sandbox {
    Is(Switch),
    With(Exceptions),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Switch {
    On,
    Off,
}

/// The paths that the sandbox shows, absolute or from `~/`, and the actions that it allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Exceptions {
    /// Paths that agents may write.
    pub write: Vec<String>,
    /// Paths that agents may see.
    pub show: Vec<String>,
    /// The HOME that agents get: one of their own, or the person's.
    pub home: SandboxHome,
    /// Agents may make user namespaces, which a sandbox inside of the sandbox needs.
    pub nested: bool,
    /// The most processes and threads of one agent; 0 has no limit.
    pub max_processes: u32,
    /// The most memory of one agent, in MiB; null is three quarters of the machine's, 0 has no
    /// limit.
    pub max_memory_mib: Option<u64>,
    /// The most disk space of one agent's private HOME with its caches, in MiB; null is half of
    /// what is free when the agent starts, 0 has no limit.
    pub max_home_mib: Option<u64>,
}

impl Default for Exceptions {
    fn default() -> Self {
        let (write, show, home) = (vec![], vec![], SandboxHome::Private);
        Self {
            write,
            show,
            home,
            nested: false,
            max_processes: 4096,
            max_memory_mib: None,
            max_home_mib: None,
        }
    }
}

/// The HOME of an agent in the sandbox: a folder of its own with the person's logins, settings,
/// tools and caches, or the person's own, which it may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxHome {
    Private,
    Shared,
}

impl Default for Sandbox {
    fn default() -> Self {
        Self::With(Exceptions::default())
    }
}

impl Sandbox {
    /// Returns the exceptions from the sandbox; `None` if the sandbox is off.
    pub fn exceptions(&self) -> Option<Exceptions> {
        match self {
            Self::Is(Switch::Off) => None,
            Self::Is(Switch::On) => Some(Exceptions::default()),
            Self::With(exceptions) => Some(exceptions.clone()),
        }
    }
}

impl<'de> Deserialize<'de> for Sandbox {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WordOrMap;
        impl<'de> Visitor<'de> for WordOrMap {
            type Value = Sandbox;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`on`, `off`, or a mapping (`write`, `show`, …)")
            }
            fn visit_bool<E: de::Error>(self, on: bool) -> Result<Sandbox, E> {
                Ok(Sandbox::Is(if on { Switch::On } else { Switch::Off }))
            }
            fn visit_str<E: de::Error>(self, word: &str) -> Result<Sandbox, E> {
                match word {
                    "on" => Ok(Sandbox::Is(Switch::On)),
                    "off" => Ok(Sandbox::Is(Switch::Off)),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Sandbox, A::Error> {
                Exceptions::deserialize(de::value::MapAccessDeserializer::new(map))
                    .map(Sandbox::With)
            }
        }
        deserializer.deserialize_any(WordOrMap)
    }
}
