//! The content of the events of questions.

use crate::event::id::DispatchId;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;

/// A question of an agent, a run or a thread that is no request of an agent's CLI.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QuestionAsked {
    /// The id of the question.
    pub question: String,
    /// The kind of the question.
    pub kind: Kind,
    /// The text, for people.
    pub text: String,
    /// The answers to choose from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<Choice>,
    /// Several options may be chosen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub multi: bool,
    /// A text is an answer too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub free_text: bool,
    /// The exact action: the command, the difference, the document.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub detail: Value,
    /// The answer that counts when the deadline passes: the id of an option, or a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// The time at which the default is taken. Without a deadline the question waits for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub deadline: Option<Timestamp>,
    /// The thread in which it is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Further threads in which it is shown, and may be answered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shown_in: Vec<String>,
    /// The dispatch whose agent waits for the answer, or that the question is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch: Option<DispatchId>,
    /// The role of the agent that asks; `muleteer` for a question of Muleteer itself.
    pub asked_by: String,
    /// The thing that the question is about, in the form of a key. The same subject is asked about
    /// once while the question is open.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub subject: String,
}

/// The answer to a question. Written before its effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QuestionAnswered {
    /// The id of the question.
    pub question: String,
    /// The answer.
    pub answer: Answer,
    /// The person or agent that answered.
    pub by: AnsweredBy,
    /// The key of the client's request: a repeated request has the same one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
}

/// The kind of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "QuestionKind")]
pub enum Kind {
    /// An agent asks a person.
    Question,
    /// An agent asks whether it may use a tool.
    Permission,
    /// A run waits for the approval of its work items.
    Approval,
    /// A plan waits for its review.
    Plan,
    /// A spec waits for its sign-off.
    SignOff,
    /// An agent gave no sign of life for too long.
    Stall,
    /// A kind of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Newer,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Question => "question",
            Self::Permission => "permission",
            Self::Approval => "approval",
            Self::Plan => "plan",
            Self::SignOff => "sign_off",
            Self::Stall => "stall",
            Self::Newer => "newer",
        }
    }
}

/// The state of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "QuestionStateName")]
pub enum State {
    /// It waits for an answer.
    Open,
    /// The first answer is durable.
    Answered,
    /// The one who asked has the answer.
    Delivered,
    /// Nobody can take the answer.
    Undeliverable,
    /// The deadline passed, and the default was taken.
    Expired,
    /// Nobody waits for the answer any more.
    Withdrawn,
    /// A state of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Newer,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Answered => "answered",
            Self::Delivered => "delivered",
            Self::Undeliverable => "undeliverable",
            Self::Expired => "expired",
            Self::Withdrawn => "withdrawn",
            Self::Newer => "newer",
        }
    }

    /// Whether a question in this state changes no more.
    pub fn is_final(self) -> bool {
        match self {
            Self::Open | Self::Answered => false,
            Self::Delivered
            | Self::Undeliverable
            | Self::Expired
            | Self::Withdrawn
            | Self::Newer => true,
        }
    }
}

/// An answer to choose.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "QuestionChoice")]
pub struct Choice {
    /// The id of the option.
    pub id: String,
    /// The text for people.
    pub label: String,
    /// The consequence of this choice; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
}

impl Choice {
    /// Returns an option whose label is its id.
    pub fn new(id: &str, description: &str) -> Self {
        Self { id: id.into(), label: id.into(), description: description.into() }
    }
}

/// The answer to a question: the chosen options, or a text.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "QuestionAnswer")]
pub struct Answer {
    /// The ids of the chosen options.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// The text; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

impl Answer {
    /// Returns the choice of one option.
    pub fn option(id: &str) -> Self {
        Self { options: vec![id.into()], text: String::new() }
    }

    /// Returns an answer in words.
    pub fn text(text: &str) -> Self {
        Self { options: vec![], text: text.into() }
    }

    /// Returns the answer in one line: the options, then the text.
    pub fn describe(&self) -> String {
        let options = self.options.join(", ");
        match (options.is_empty(), self.text.is_empty()) {
            (false, false) => format!("{options}: {}", self.text),
            (false, true) => options,
            (true, _) => self.text.clone(),
        }
    }

    /// Returns the answer as an agent reads it: as [`Self::describe`], with quotes around options
    /// that contain a comma where there are several.
    pub fn told(&self) -> String {
        if self.options.len() < 2 || !self.options.iter().any(|option| option.contains(',')) {
            return self.describe();
        }
        let quoted = |option: &String| match option.contains([',', '"']) {
            true => serde_json::Value::from(option.as_str()).to_string(),
            false => option.clone(),
        };
        let options: Vec<_> = self.options.iter().map(quoted).collect();
        Self { options: vec![options.join(", ")], text: self.text.clone() }.describe()
    }

    /// Whether the answer is exactly this option.
    pub fn is(&self, option: &str) -> bool {
        self.options.len() == 1 && self.options[0] == option
    }
}

/// The one who answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AnsweredBy {
    /// The adapter that the answer came by: `cli` for the command line, `agent` for an agent,
    /// `muleteer` for Muleteer itself.
    pub adapter: String,
    /// The id of the person in that adapter, or of the agent.
    pub user: String,
}

impl AnsweredBy {
    /// Returns the one that the author of an event names: `slack:U0123`, `operator`, or the id of
    /// an agent.
    pub fn of(by: &str) -> Self {
        use crate::agent::ask::OURSELVES;
        use crate::agent::permission::POLICY;
        if let Some(agent) = by.strip_prefix("agent/") {
            return Self { adapter: "agent".into(), user: agent.into() };
        }
        if let Some((adapter, user)) = by.split_once(':') {
            return Self { adapter: adapter.into(), user: user.into() };
        }
        let adapter = match by {
            "operator" => "cli",
            OURSELVES | POLICY => "muleteer",
            _ => "agent",
        };
        Self { adapter: adapter.into(), user: by.into() }
    }
}

impl fmt::Display for AnsweredBy {
    /// Writes the author for an event; [`AnsweredBy::of`] reads it again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.adapter.as_str() {
            "cli" | "muleteer" => f.write_str(&self.user),
            "agent" => write!(f, "agent/{}", self.user),
            adapter => write!(f, "{adapter}:{}", self.user),
        }
    }
}
