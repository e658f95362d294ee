//! The open questions of the thread: shown, and answered in place.

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::client::connect::unexpected;
use crate::render::{BOLD, DIM, RESET, YELLOW, clip, safe};
use muleteer_protocol::v1::{AskStatus, Reply, Request};

/// A question that nobody has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    ask: AskStatus,
}

/// An answer that is to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    question: String,
    text: String,
}

impl Open {
    pub fn new(ask: AskStatus) -> Self {
        Self { ask }
    }

    pub fn id(&self) -> &str {
        &self.ask.request_id
    }

    /// Returns the question as lines, with the ways to answer it.
    pub fn lines(&self) -> Vec<String> {
        let ask = &self.ask;
        let text = safe(ask.text.trim());
        let mut lines = vec![];
        if !self.is_permission() {
            lines.push(format!("{YELLOW}? {BOLD}{}{RESET}", text.replace('\n', "\n  ")));
        } else {
            let call = format!("{} {}", clip(&ask.tool, 100), clip(&ask.target, 200));
            let call = if call.trim().is_empty() { "this" } else { call.trim() };
            lines.push(format!("{YELLOW}? {BOLD}permission for {call}{RESET}"));
            lines.extend((!text.is_empty()).then(|| format!("  {}", text.replace('\n', "\n  "))));
        }
        let options = ask.options.iter().enumerate();
        lines.extend(options.map(|(at, name)| format!("  {}. {}", at + 1, clip(name, 160))));
        let ways = match (self.is_question(), self.is_permission(), ask.options.is_empty()) {
            (true, _, true) => "type the answer, or `deny`",
            (true, _, false) => "type a number or the answer, or `deny`",
            (_, true, true) => "type `allow` or `deny`, or `/answer REASON` to deny with a reason",
            (_, true, false) => "type a number, `allow` or `deny`",
            (_, false, _) => "type a number or an option",
        };
        lines.push(format!("  {DIM}{ways}{RESET}"));
        lines
    }

    fn is_question(&self) -> bool {
        self.ask.kind == "question"
    }

    fn is_permission(&self) -> bool {
        self.ask.kind == "permission"
    }

    /// Returns the answer that a line gives; `None` for a line that is a message to the agent.
    pub fn answer(&self, line: &str) -> Option<Answer> {
        let line = line.trim();
        let by_number = || {
            let at = line.parse::<usize>().ok()?.checked_sub(1)?;
            self.ask.options.get(at).cloned()
        };
        let by_name = || {
            let is_it = |name: &&String| name.eq_ignore_ascii_case(line);
            self.ask.options.iter().find(is_it).cloned()
        };
        let text = match line.to_ascii_lowercase().as_str() {
            _ if line.is_empty() => return None,
            "deny" if self.is_question() || self.is_permission() => "deny".to_string(),
            "allow" if self.is_permission() => "allow".to_string(),
            "y" | "yes" if self.is_permission() => "allow".to_string(),
            "n" | "no" if self.is_permission() => "deny".to_string(),
            _ => match by_number().or_else(by_name) {
                Some(text) => text,
                None if self.is_question() && !line.starts_with('/') => line.to_string(),
                None => return None,
            },
        };
        Some(self.with(text))
    }

    /// Returns the answer with this text: of a permission, the reason of a denial.
    pub fn with(&self, text: String) -> Answer {
        Answer { question: self.ask.request_id.clone(), text }
    }
}

impl Answer {
    /// Returns the id of the question.
    pub fn question(&self) -> &str {
        &self.question
    }
}

/// Sends an answer. `key` makes a repeated request the same answer.
///
/// # Errors
/// The daemon's: nobody waits for the answer any more, or it is none of the offered ones.
pub async fn send(context: &Context, answer: Answer, key: String) -> Result<String, Failure> {
    let Answer { question, text } = answer;
    let asked =
        Request::Answer { id: question, request: None, answer: text, arguments: vec![], key };
    match context.ask(asked).await? {
        Reply::Answered { answer, .. } => Ok(match answer.as_str() {
            "allow" => "allowed".into(),
            "deny" => "denied".into(),
            _ => "answered".into(),
        }),
        other => Err(unexpected(&other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(kind: &str, options: &[&str]) -> Open {
        let options = options.iter().map(|option| (*option).to_string()).collect();
        let ask = AskStatus { kind: kind.into(), options, ..AskStatus::default() };
        Open::new(ask)
    }

    #[test]
    fn lines_answer_a_question_or_are_messages() {
        let answers = |open: &Open, line: &str| open.answer(line).map(|answer| answer.text);
        let permission = open("permission", &[]);
        for (line, answer) in [
            ("allow", Some("allow")),
            (" Yes ", Some("allow")),
            ("n", Some("deny")),
            ("why do you need it?", None),
            ("/status", None),
        ] {
            assert_eq!(answers(&permission, line).as_deref(), answer, "{line}");
        }
        let stall = open("stall", &["respawn", "leave"]);
        for (line, answer) in
            [("1", Some("respawn")), ("Leave", Some("leave")), ("deny", None), ("go on", None)]
        {
            assert_eq!(answers(&stall, line).as_deref(), answer, "{line}");
        }
        let question = open("question", &["Red", "Blue"]);
        for (line, answer) in [
            ("2", Some("Blue")),
            ("red", Some("Red")),
            ("3", Some("3")),
            ("green, please", Some("green, please")),
            ("/help", None),
            ("", None),
        ] {
            assert_eq!(answers(&question, line).as_deref(), answer, "{line}");
        }
    }
}
