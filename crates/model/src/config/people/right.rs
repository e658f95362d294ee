//! The rights of people, and the rules that give them.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::fmt;

/// A kind of action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Right {
    /// Write in threads, read their state, and stop a turn.
    Talk,
    /// Answer questions of agents.
    Answer,
    /// Dispatch agents.
    Spawn,
    /// Kill dispatches.
    Kill,
    /// Change settings, models and roles, and use the commands of an agent's CLI.
    Set,
}

const NAMES: &[&str] = &["talk", "answer", "spawn", "kill", "set"];
const SCOPES: &[&str] = &["project", "role"];

impl Right {
    pub const ALL: [Self; 5] = [Self::Talk, Self::Answer, Self::Spawn, Self::Kill, Self::Set];

    /// Returns the name in rules.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Talk => "talk",
            Self::Answer => "answer",
            Self::Spawn => "spawn",
            Self::Kill => "kill",
            Self::Set => "set",
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A right, perhaps for one project or one role only: `spawn`, `spawn:project=shop`,
/// `kill:project=shop,role=reviewer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub right: Right,
    /// The name of a configured project.
    pub project: Option<String>,
    pub role: Option<String>,
}

impl Rule {
    /// Returns the rule that gives a right without a limit.
    pub fn all(right: Right) -> Self {
        Self { right, project: None, role: None }
    }

    /// Returns whether the rule allows an action with this right on a dispatch of one of these
    /// projects and this role. A rule with a scope does not allow an action without one.
    pub fn allows(&self, right: Right, projects: &[&str], role: Option<&str>) -> bool {
        self.right == right
            && self.project.as_deref().is_none_or(|project| projects.contains(&project))
            && self.role.as_deref().is_none_or(|wanted| role == Some(wanted))
    }

    /// Parses a rule. The error is of the caller's kind, so that it has the place and a hint.
    fn parse<E: de::Error>(text: &str) -> Result<Self, E> {
        let (name, scopes) = match text.split_once(':') {
            Some((name, scopes)) => (name.trim(), Some(scopes)),
            None => (text.trim(), None),
        };
        let right = Right::ALL.into_iter().find(|right| right.as_str() == name);
        let right = right.ok_or_else(|| E::unknown_variant(name, NAMES))?;
        let mut rule = Self::all(right);
        for scope in scopes.into_iter().flat_map(|scopes| scopes.split(',')) {
            let Some((key, value)) = scope.split_once('=') else {
                return Err(E::custom(format!(
                    "`{}` is no scope: write `project=NAME` or `role=NAME`",
                    scope.trim()
                )));
            };
            let (key, value) = (key.trim(), value.trim());
            let slot = match key {
                "project" => &mut rule.project,
                "role" => &mut rule.role,
                other => return Err(E::unknown_variant(other, SCOPES)),
            };
            if value.is_empty() || slot.is_some() {
                return Err(E::custom(format!("`{key}` needs one name")));
            }
            *slot = Some(value.into());
        }
        Ok(rule)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.right.as_str())?;
        let scopes = [("project", &self.project), ("role", &self.role)];
        let given = scopes.into_iter().filter_map(|(key, name)| Some((key, name.as_ref()?)));
        for (at, (key, name)) in given.enumerate() {
            write!(f, "{}{key}={name}", if at == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = Rule;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a right such as `talk`, or `spawn:project=NAME`")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Rule, E> {
                Rule::parse(text)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl JsonSchema for Rule {
    fn schema_name() -> Cow<'static, str> {
        "Right".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "`talk`, `answer`, `spawn`, `kill` or `set`; with a scope as in \
                            `spawn:project=NAME` or `kill:role=NAME`",
            "type": "string",
            "pattern": "^\\s*(talk|answer|spawn|kill|set)\\s*(:.+)?$"
        })
    }
}
