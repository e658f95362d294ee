//! The prompt of the light agent, and its answer.

use crate::agent::event::cut;
use crate::dispatch::Dispatch;
use crate::monitor::healing::event::{Choice, Trouble};
use crate::text::data_block::DataBlocks;
use serde_json::{Value, json};

/// The most bytes of the journal in the prompt.
pub const JOURNAL_LIMIT: usize = 16 * 1024;
/// The most bytes of the task in the prompt.
const TASK_LIMIT: usize = 8 * 1024;
/// The most bytes of an answer that are read, from its end.
const ANSWER_LIMIT: usize = 64 * 1024;
/// The most bytes of the message for a redirected agent.
const MESSAGE_LIMIT: usize = 4096;

/// The answer of a light agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// `Respawn`, `Redirect` or `Escalate`.
    pub choice: Choice,
    pub reason: String,
    /// The message for a redirected agent.
    pub message: Option<String>,
}

/// Why the answer of a light agent cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("it has no JSON object with a `choice`")]
    NoObject,
    #[error("its `choice` is none of respawn, redirect and escalate")]
    NoChoice,
    #[error("it has no `reason`")]
    NoReason,
    #[error("it redirects without a `message`")]
    NoMessage,
    #[error("its output cannot be read")]
    NoOutput,
}

/// Returns the JSON schema of an answer.
pub fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "choice": {"enum": ["respawn", "redirect", "escalate"]},
            "reason": {"type": "string"},
            "message": {"type": "string"},
        },
        "required": ["choice", "reason"],
    })
}

/// Writes the prompt about a dispatch in trouble. `task` is its first prompt, `journal` the end of
/// its journal, `random` a random text.
pub fn write(
    dispatch: &Dispatch,
    trouble: Trouble,
    task: &str,
    journal: &str,
    random: &str,
) -> String {
    let blocks = DataBlocks::new(random);
    let created = &dispatch.created;
    let what = match trouble {
        Trouble::Stall => "gave no sign of life and was ended",
        Trouble::Monitor => "was active without progress, and a monitor ended it",
        Trouble::Failure | Trouble::Newer => "failed",
    };
    let mut prompt = format!(
        "Another agent (role {}, dispatch {}) {what}. Decide what follows. Change no files, and \
         start no long commands: read what is below, and look at the directory only if that is \
         not enough.\n\n\
         It made {} attempts and {} turns, cost ${:.2}, and was helped {} times before.\n\n",
        created.role,
        dispatch.id,
        dispatch.attempts,
        dispatch.turns,
        dispatch.spend.cost_usd,
        dispatch.healing.number().saturating_sub(1),
    );
    let warning = dispatch.warnings.monitor.as_deref().unwrap_or_default();
    for (name, text) in [
        ("Why it ended", cut(dispatch.reason.as_deref().unwrap_or_default(), 2000)),
        ("The last warning of a monitor", cut(warning, 2000)),
        ("Its task", cut(task, TASK_LIMIT)),
        ("The end of its journal", tail(journal, JOURNAL_LIMIT).to_string()),
    ] {
        if !text.trim().is_empty() {
            prompt.push_str(&format!("{name}:\n\n"));
            blocks.add(&mut prompt, &text);
            prompt.push('\n');
        }
    }
    prompt.push_str(
        "Choose one:\n\n\
         - `respawn`: the cause will probably not come back; it continues its work.\n\
         - `redirect`: it works at the wrong thing or in the wrong way; it continues with your \
           `message`, which says what to do instead.\n\
         - `escalate`: a person must decide, or you are not sure.\n\n\
         Your last message is one JSON object and nothing else:\n\n\
         {\"choice\": \"respawn|redirect|escalate\", \"reason\": \"one sentence for people\", \
         \"message\": \"for redirect only\"}\n",
    );
    prompt
}

/// Returns the end of a text, at a boundary of characters.
fn tail(text: &str, limit: usize) -> &str {
    let mut from = text.len().saturating_sub(limit);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

/// Reads the answer in the light agent's output: the last JSON object with a `choice`.
///
/// # Errors
/// There is none, or it is incomplete.
pub fn read(output: &str) -> Result<Answer, Unreadable> {
    let output = tail(output, ANSWER_LIMIT);
    let mut last = None;
    let mut rest = output;
    while let Some(at) = rest.find('{') {
        rest = &rest[at..];
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        match values.next() {
            Some(Ok(value)) => {
                rest = &rest[values.byte_offset()..];
                if value.get("choice").is_some() {
                    last = Some(value);
                }
            }
            _ => rest = &rest[1..],
        }
    }
    let Some(answer) = last else { return Err(Unreadable::NoObject) };
    let text = |name: &str| {
        let text = answer.get(name).and_then(Value::as_str).map(str::trim);
        text.filter(|text| !text.is_empty()).map(String::from)
    };
    let choice = match answer.get("choice").and_then(Value::as_str) {
        Some("respawn") => Choice::Respawn,
        Some("redirect") => Choice::Redirect,
        Some("escalate") => Choice::Escalate,
        _ => return Err(Unreadable::NoChoice),
    };
    let Some(reason) = text("reason") else { return Err(Unreadable::NoReason) };
    let message = text("message").filter(|_| choice == Choice::Redirect);
    if choice == Choice::Redirect && message.is_none() {
        return Err(Unreadable::NoMessage);
    }
    Ok(Answer { choice, reason, message: message.map(|message| cut(&message, MESSAGE_LIMIT)) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn last_object_with_a_choice_is_the_answer() {
        let said = "I looked {at} it: {\"x\": 1}\n{\"choice\": \"respawn\", \"reason\": \"a\"}\n\
                    ```json\n{\"choice\": \"redirect\", \"reason\": \"b\", \"message\": \"m\"}";
        let answer = read(said).unwrap();
        assert_eq!((answer.choice, &*answer.reason), (Choice::Redirect, "b"));
        assert_eq!(answer.message.as_deref(), Some("m"));
    }

    #[test]
    fn unreadable_answers_are_faults() {
        for said in [
            "",
            "respawn it",
            "{\"choice\": \"respawn\"}",
            "{\"choice\": \"redirect\", \"reason\": \"r\"}",
            "{\"choice\": \"delete\", \"reason\": \"r\"}",
            "{\"choice\": 1, \"reason\": \"r\"}",
            "{\"choice\": \"escalate\", \"reason\": \" \"}",
        ] {
            assert!(read(said).is_err(), "{said}");
        }
        assert!(read(&"{".repeat(1 << 20)).is_err());
    }
}
