//! Requests that an agent waits on: a permission to use a tool, or a question.
//!
//! [`pending`] has the requests of one dispatch and draws their life.

pub mod pending;

pub use pending::{Asks, Pending};

use crate::agent::event::{cut, target};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The most open requests of one dispatch; further ones are denied.
pub const MOST_OPEN: usize = 32;
/// The most answered requests that are kept. The agent has received all answers but the newest.
pub(super) const MOST_ANSWERED: usize = 16;
/// The `by` of answers that Muleteer gives itself.
pub const OURSELVES: &str = "muleteer";
/// The rule that denies a request because nobody is there to answer.
pub const UNATTENDED: &str = "unattended";
/// The most bytes of a request's id. The id is returned to the agent unchanged, so it cannot be
/// cut.
pub const ID_LIMIT: usize = 200;
/// The most bytes of a tool's input that are stored, as JSON.
const INPUT_LIMIT: usize = 16 * 1024;
/// The most bytes of a text in the input that names the call's subject, and of any other text.
const SUBJECT_LIMIT: usize = 8 * 1024;
const OTHER_LIMIT: usize = 1024;
const TEXT_LIMIT: usize = 2048;
const MOST_OPTIONS: usize = 32;
/// The keys of the input that rules match and that people want to read.
pub const SUBJECTS: [&str; 8] =
    ["command", "file_path", "notebook_path", "path", "url", "query", "pattern", "description"];

/// A request of an agent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Ask {
    /// The kind of the request.
    #[serde(default)]
    pub kind: AskKind,
    /// The id of the tool call that the request is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// The name of the tool.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tool: String,
    /// The subject of the tool call, in one line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// The agent's own text: a question, or a reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// The input for the tool.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub input: Value,
    /// The input is incomplete, because it was too long.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub input_cut: bool,
    /// The answers that the agent offers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<AskOption>,
}

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AskKind {
    /// A permission. The answer is `allow`, `deny`, or a text, which is the reason of a denial.
    #[default]
    Permission,
    /// A question. The answer is a text.
    Question,
    /// A request that is unknown here. It is refused, so that the agent does not wait for ever.
    #[serde(other)]
    Other,
}

/// An answer that the agent offers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct AskOption {
    /// The value that is returned to the agent.
    pub id: String,
    /// The text for people.
    pub name: String,
    /// The agent's own word for it (`allow_once`, `reject_once`, …), if it gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// The answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "AskVerdict")]
pub enum Verdict {
    /// The tool may be used.
    Allow,
    /// The tool may not be used.
    Deny,
    /// A question is answered by a text.
    Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub verdict: Verdict,
    /// The answer to a question, or the reason of a denial; may be empty.
    pub text: String,
}

impl Ask {
    /// Returns a request to call `tool` with `input`, which is cut to its limit.
    pub fn tool(tool: &str, input: Value) -> Self {
        let target = target(tool, &input);
        let (input, input_cut) = bounded(input);
        Self { tool: cut(tool, ID_LIMIT), target, input, input_cut, ..Self::default() }
    }

    /// Cuts the fields that the agent wrote to their limits.
    #[must_use]
    pub fn bound(mut self) -> Self {
        let (input, input_cut) = bounded(self.input);
        (self.input, self.input_cut) = (input, self.input_cut || input_cut);
        self.tool = cut(&self.tool, ID_LIMIT);
        self.target = cut(&self.target, ID_LIMIT);
        self.text = cut(&self.text, TEXT_LIMIT);
        self.options.truncate(MOST_OPTIONS);
        self.options.retain(|option| {
            option.id.len() <= ID_LIMIT && option.kind.as_ref().is_none_or(|kind| kind.len() <= 64)
        });
        for option in &mut self.options {
            option.name = cut(&option.name, ID_LIMIT);
        }
        self
    }

    /// Whether a repetition of the request asks for the same. The id of the call differs.
    pub fn is_like(&self, other: &Self) -> bool {
        let same = |one: &Self| Self { call_id: None, ..one.clone() };
        same(self) == same(other)
    }

    /// Describes the request for people in a few words: `may it use Bash: rm -rf x?`
    pub fn describe(&self) -> String {
        match self.kind {
            AskKind::Question if self.text.is_empty() => "it asks a question".into(),
            AskKind::Question => format!("it asks: {}", self.text),
            AskKind::Other => format!("it requests `{}`, which is not known here", self.tool),
            AskKind::Permission => {
                match (self.tool.as_str(), self.target.as_str(), self.text.as_str()) {
                    ("", "", "") => "it asks for permission".into(),
                    ("", "", text) => format!("may it: {text}?"),
                    ("", target, _) => format!("may it: {target}?"),
                    (tool, "", _) => format!("may it use {tool}?"),
                    (tool, target, _) => format!("may it use {tool}: {target}?"),
                }
            }
        }
    }

    /// Converts a person's text to an answer to this request.
    fn meaning(&self, said: &str) -> Result<Answer, Unanswerable> {
        let text = |said: &str| Answer { verdict: Verdict::Text, text: said.into() };
        if let Some(option) = self.option(said) {
            return Ok(text(&option.id));
        }
        match said.to_ascii_lowercase().as_str() {
            "allow" if self.kind == AskKind::Question => Err(Unanswerable::NotAllowable),
            "allow" => Ok(Answer::allow()),
            "deny" => Ok(Answer::deny("")),
            _ => Ok(text(said)),
        }
    }

    /// Returns the option that a text names, by id, or by name in any case.
    pub fn option(&self, text: &str) -> Option<&AskOption> {
        let text = text.trim();
        self.options
            .iter()
            .find(|option| option.id == text)
            .or_else(|| self.options.iter().find(|option| option.name.eq_ignore_ascii_case(text)))
    }
}

impl Answer {
    pub fn allow() -> Self {
        Self { verdict: Verdict::Allow, text: String::new() }
    }

    pub fn deny(reason: &str) -> Self {
        Self { verdict: Verdict::Deny, text: reason.into() }
    }
}

/// The reason why an answer cannot be given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unanswerable {
    #[error("it has no open request")]
    NothingOpen,
    #[error("that request was already answered")]
    Answered,
    #[error("it has no open request `{0}`")]
    Unknown(String),
    #[error("{} requests are open: {}", .0.len(), .0.join(", "))]
    Several(Vec<String>),
    #[error("the answer is empty")]
    Empty,
    #[error("the agent offers no option to allow it")]
    NoSuchOption,
    #[error("`allow` does not answer a question: answer with a text, or `deny`")]
    NotAllowable,
}

/// Returns the request that is meant, and the answer that `said` gives to it: `allow`, `deny`, or a
/// text. A text is the answer to a question, one of the offered options, or the reason of a denial.
///
/// # Errors
/// When nothing is open, when several are open and none is named, or when `said` is no answer to
/// it. The same answer again is no error: a client that repeats its request after a lost reply gets
/// the same reply.
pub fn read_answer<'a>(
    asks: &'a Asks,
    request: Option<&str>,
    said: &str,
) -> Result<(&'a Pending, Answer), Unanswerable> {
    let said = said.trim();
    if said.is_empty() {
        return Err(Unanswerable::Empty);
    }
    let fits = |pending: &&Pending| {
        request.is_none_or(|wanted| !wanted.is_empty() && pending.id.starts_with(wanted))
    };
    let open: Vec<_> = asks.unanswered().filter(fits).collect();
    let pending = match open.as_slice() {
        [first, rest @ ..] if rest.iter().all(|other| other.question == first.question) => first,
        [] => {
            let same = |pending: &&Pending| pending.ask.meaning(said).ok() == pending.answer;
            let mut known = asks.answered().map(|(pending, _)| pending).filter(fits).peekable();
            return match (known.peek(), request) {
                (None, Some(wanted)) => Err(Unanswerable::Unknown(wanted.into())),
                (None, None) => Err(Unanswerable::NothingOpen),
                (Some(_), _) => match known.filter(same).last() {
                    Some(pending) => Ok((pending, pending.ask.meaning(said)?)),
                    None if request.is_some() => Err(Unanswerable::Answered),
                    None => Err(Unanswerable::NothingOpen),
                },
            };
        }
        several => {
            let exact = several.iter().find(|pending| Some(pending.id.as_str()) == request);
            let ids = || several.iter().map(|pending| pending.id.clone()).collect();
            exact.ok_or_else(|| Unanswerable::Several(ids()))?
        }
    };
    Ok((pending, pending.ask.meaning(said)?))
}

/// Returns the input with its long texts cut, and whether any was cut.
fn bounded(mut input: Value) -> (Value, bool) {
    if input.to_string().len() <= INPUT_LIMIT {
        return (input, false);
    }
    shorten(&mut input, None);
    if input.to_string().len() > INPUT_LIMIT {
        let subjects: Map<String, Value> = SUBJECTS
            .iter()
            .filter_map(|key| {
                Some((
                    (*key).to_string(),
                    Value::String(cut_subject(input.get(key)?.as_str()?, 1024)),
                ))
            })
            .collect();
        input = Value::Object(subjects);
    }
    (input, true)
}

fn shorten(value: &mut Value, key: Option<&str>) {
    match value {
        Value::String(text) => {
            let limit = if key.is_some_and(|key| SUBJECTS.contains(&key)) {
                SUBJECT_LIMIT
            } else {
                OTHER_LIMIT
            };
            *text = cut_subject(text, limit);
        }
        Value::Array(items) => items.iter_mut().for_each(|item| shorten(item, None)),
        Value::Object(map) => map.iter_mut().for_each(|(key, value)| shorten(value, Some(key))),
        _ => {}
    }
}

fn cut_subject(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        text.to_string()
    } else {
        format!("{} [{} bytes]", cut(text, limit), text.len())
    }
}

/// Whether a text has the mark of `cut_subject`, so that part of it is missing. A text that only
/// looks so is treated with the same suspicion.
pub fn looks_cut(text: &str) -> bool {
    text.ends_with(" bytes]") && text.contains("… [")
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use serde_json::json;

    #[test]
    fn ask_input_is_complete_or_marked_as_cut() {
        let small = json!({"command": "ls", "n": 3});
        let ask = Ask::tool("Bash", small.clone());
        assert_eq!((ask.input, ask.input_cut, ask.target.as_str()), (small, false, "ls"));

        let ask = Ask::tool("Write", json!({"file_path": "/a/b", "content": "é".repeat(50_000)}));
        assert!(ask.input_cut && ask.input["file_path"] == "/a/b", "{ask:?}");
        assert!(looks_cut(ask.input["content"].as_str().unwrap_or_default()));

        let many: Vec<_> = (0..1000).map(|n| format!("{n} {}", "x".repeat(100))).collect();
        let ask = Ask::tool("Bash", json!({"command": "y".repeat(100_000), "edits": many}));
        assert!(ask.input.to_string().len() <= INPUT_LIMIT && ask.input_cut);
        assert!(looks_cut(ask.input["command"].as_str().unwrap_or_default()));
        assert!(ask.input.get("edits").is_none());
    }

    #[test]
    fn ask_is_described_in_one_line() {
        let ask = Ask::tool("Bash", json!({"command": "rm -rf x"}));
        assert_eq!(ask.describe(), "may it use Bash: rm -rf x?");
        assert_eq!(Ask::default().describe(), "it asks for permission");
        let question =
            Ask { kind: AskKind::Question, text: "Which colour?".into(), ..Ask::default() };
        assert_eq!(question.describe(), "it asks: Which colour?");
    }

    #[test]
    fn an_option_is_named_by_id_or_name() {
        let option =
            |id: &str, name: &str| AskOption { id: id.into(), name: name.into(), kind: None };
        let ask = Ask { options: vec![option("1", "Red"), option("red", "2")], ..Ask::default() };
        assert_eq!(ask.option("RED").map(|o| o.id.as_str()), Some("1"));
        assert_eq!(ask.option("red").map(|o| o.id.as_str()), Some("red"));
        assert_eq!(ask.option("blue"), None);
    }

    #[test]
    fn answer_is_parsed_by_the_kind_of_ask() {
        let mut asks = Asks::default();
        let told = |asks: &Asks, request: Option<&str>, said: &str| {
            read_answer(asks, request, said)
                .map(|(pending, answer)| (pending.id.clone(), answer.verdict, answer.text))
        };
        let is = |id: &str, verdict, text: &str| Ok((id.to_string(), verdict, text.to_string()));
        assert_eq!(told(&asks, None, "allow"), Err(Unanswerable::NothingOpen));
        asks.request("aa1", &Ask::default(), Timestamp::UNIX_EPOCH, false, "qa1");
        assert_eq!(told(&asks, None, " Allow\n"), is("aa1", Verdict::Allow, ""));
        assert_eq!(told(&asks, None, "deny"), is("aa1", Verdict::Deny, ""));
        assert_eq!(
            told(&asks, None, "use the other file"),
            is("aa1", Verdict::Text, "use the other file")
        );
        assert_eq!(told(&asks, None, "  "), Err(Unanswerable::Empty));
        assert_eq!(told(&asks, Some("zz"), "allow"), Err(Unanswerable::Unknown("zz".into())));

        let red = AskOption { id: "Red".into(), name: "Red".into(), kind: None };
        let question = Ask { kind: AskKind::Question, options: vec![red], ..Ask::default() };
        asks.request("ab2", &question, Timestamp::UNIX_EPOCH, false, "qb2");
        assert_eq!(
            told(&asks, None, "red"),
            Err(Unanswerable::Several(vec!["aa1".into(), "ab2".into()]))
        );
        assert_eq!(told(&asks, Some("ab"), "red"), is("ab2", Verdict::Text, "Red"));
        assert_eq!(told(&asks, Some("ab"), "allow"), Err(Unanswerable::NotAllowable));

        asks.answer("ab2", Answer { verdict: Verdict::Text, text: "Red".into() }, "operator", None);
        assert_eq!(
            told(&asks, Some("ab2"), "red"),
            is("ab2", Verdict::Text, "Red"),
            "the same again"
        );
        assert_eq!(told(&asks, Some("ab2"), "blue"), Err(Unanswerable::Answered));
        asks.answer("aa1", Answer::allow(), "operator", None);
        assert_eq!(told(&asks, None, "allow"), is("aa1", Verdict::Allow, ""), "the reply was lost");
        assert_eq!(told(&asks, None, "deny"), Err(Unanswerable::NothingOpen));
    }

    #[test]
    fn answered_asks_expire_and_open_asks_do_not() {
        let mut asks = Asks::default();
        for n in 0..60 {
            let n = n.to_string();
            asks.request(&n, &Ask::default(), Timestamp::UNIX_EPOCH, false, &n);
        }
        for n in 0..50 {
            asks.answer(&n.to_string(), Answer::allow(), "operator", None);
        }
        assert_eq!((asks.open().count(), asks.answered().count()), (10, MOST_ANSWERED));
        assert!(asks.get("49").is_some() && asks.get("3").is_none());
        for n in 0..50 {
            asks.heard(&format!("k{n}"), &n.to_string(), Verdict::Allow);
        }
        asks.clear();
        assert_eq!(
            (asks.by_key("k49"), asks.by_key("k3"), asks.by_key("")),
            (Some(("49", Verdict::Allow)), None, None)
        );
        for n in 40..50 {
            let n = n.to_string();
            asks.request(&n, &Ask::default(), Timestamp::UNIX_EPOCH, false, &n);
            asks.answer(&n.to_string(), Answer::allow(), "operator", None);
        }
        asks.answer("49", Answer::deny("no"), "operator", None);
        assert_eq!(
            asks.get("49").and_then(|pending| pending.answer.clone()),
            Some(Answer::allow()),
            "the first counts"
        );
    }
}
