//! The context of an agent that continues a thread without the session of the agent before it.
//!
//! ```text
//! # Context
//! ## Results            what the earlier dispatches of the task returned, newest first
//! ## Changes            the changes that they named
//! ## Open issues        the problems that they left
//! ## Questions          the questions that they asked
//! ## Conversation       the newest messages of the thread, newest first
//! ## Journal            the end of the newest journal
//! # Message             the message that the new agent answers
//! ```
//!
//! Each section has a bound of its own; the newest entries of a section are the ones that fit.

use crate::conversation::event::AuthorKind;
use crate::conversation::thread::{Message, Thread};
use crate::dispatch::Dispatch;
use crate::dispatch::fleet::Fleet;
use std::sync::Arc;

/// The most bytes of one section.
const SECTION_LIMIT: usize = 6 * 1024;
/// The most bytes of one entry.
const ENTRY_LIMIT: usize = 1500;
/// The most earlier dispatches that are described.
const MOST_DISPATCHES: usize = 10;
/// The most bytes of the end of a journal that a caller needs to read.
pub const JOURNAL_LIMIT: usize = 4 * 1024;

const INTRODUCTION: &str = "You continue a conversation. The session of the agent before you is \
                            not available; this is what is known of it, newest first.";

/// Returns the prompt of a message for an agent that has no earlier session, with the context of
/// the thread. `journal` is the end of the journal of the newest earlier dispatch. Returns `None`
/// if nothing happened before.
pub fn prompt(
    thread: &Thread,
    message: &str,
    text: &str,
    fleet: &Fleet,
    journal: &str,
) -> Option<String> {
    let earlier = earlier(thread, fleet);
    let results = earlier.iter().map(|dispatch| result(dispatch));
    let of = |list: fn(&crate::agent::result::AgentResult) -> &[String]| {
        let values = earlier.iter().filter_map(|dispatch| dispatch.result.value.as_ref());
        values.flat_map(list).cloned().collect::<Vec<_>>()
    };
    let before = thread.messages.iter().take_while(|other| other.id != message);
    let before: Vec<_> = before.filter(|message| is_talk(message)).collect();
    let talk = before.into_iter().rev().map(|message| {
        format!("{} ({:.0}): {}", message.author.name, message.at, message.text.trim())
    });
    let sections = [
        ("Results", section(results)),
        ("Changes", section(of(|result| &result.changes).into_iter())),
        ("Open issues", section(of(|result| &result.issues).into_iter())),
        ("Questions", section(of(|result| &result.questions).into_iter())),
        ("Conversation", section(talk)),
        ("Journal", tail(journal)),
    ];
    let filled: Vec<_> = sections.into_iter().filter(|(_, body)| !body.is_empty()).collect();
    if filled.is_empty() {
        return None;
    }
    let mut prompt = format!("# Context\n\n{INTRODUCTION}\n");
    for (title, body) in filled {
        prompt.push_str(&format!("\n## {title}\n\n{body}\n"));
    }
    Some(format!("{prompt}\n# Message\n\n{text}"))
}

/// Returns the newest dispatch that worked on the thread's task before the present one.
pub fn predecessor<'a>(thread: &Thread, fleet: &'a Fleet) -> Option<&'a Arc<Dispatch>> {
    earlier(thread, fleet).first().copied()
}

/// The dispatches of the thread's task before the present one, newest first.
fn earlier<'a>(thread: &Thread, fleet: &'a Fleet) -> Vec<&'a Arc<Dispatch>> {
    let task = thread.own_task().map(|task| &task.dispatches[..]).unwrap_or_default();
    let before = task.iter().rev().filter(|id| thread.dispatch.as_ref() != Some(*id));
    before.filter_map(|id| fleet.get(id)).take(MOST_DISPATCHES).collect()
}

fn result(dispatch: &Dispatch) -> String {
    let (role, state) = (&dispatch.created.role, dispatch.state());
    let reason = dispatch.reason.as_deref().filter(|reason| !reason.is_empty());
    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    let summary = dispatch.result.value.as_ref().map(|result| result.summary.trim());
    let summary = summary.filter(|summary| !summary.is_empty()).unwrap_or("it returned no result");
    format!("{role} ({state}{reason}): {summary}")
}

/// Whether a message belongs to the conversation, and is no command or its reply.
fn is_talk(message: &Message) -> bool {
    let is_command = message.is_inbound() && message.delivery.is_none();
    !is_command && message.author.kind != AuthorKind::Muleteer
}

/// Joins entries as a list, as many as fit.
fn section(entries: impl Iterator<Item = String>) -> String {
    let mut text = String::new();
    for entry in entries {
        let entry = clipped(entry.trim(), ENTRY_LIMIT).replace('\n', "\n  ");
        if text.len() + entry.len() > SECTION_LIMIT {
            text.push_str("- older ones are left out\n");
            break;
        }
        text.push_str(&format!("- {entry}\n"));
    }
    text.trim_end().to_string()
}

/// Returns at most `limit` bytes of a text, and says that it was cut.
fn clipped(text: &str, limit: usize) -> String {
    match text.len() <= limit {
        true => text.into(),
        false => format!("{} […]", &text[..text.floor_char_boundary(limit)]),
    }
}

/// Returns the last whole lines of a journal.
fn tail(journal: &str) -> String {
    let start = journal.len().saturating_sub(JOURNAL_LIMIT);
    let cut = &journal[journal.ceil_char_boundary(start)..];
    let whole = if start == 0 { cut } else { cut.split_once('\n').map_or("", |(_, rest)| rest) };
    whole.trim().to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_bounded_and_newest_first() {
        let entries = (0..100).map(|n| format!("{n}: {}", "x".repeat(200)));
        let text = section(entries);
        assert!(text.len() <= SECTION_LIMIT + 40, "{}", text.len());
        assert!(text.starts_with("- 0: x") && text.ends_with("- older ones are left out"));
        let long = section(std::iter::once("ä".repeat(ENTRY_LIMIT)));
        assert!(long.ends_with(" […]") && long.len() < ENTRY_LIMIT + 20);
        assert_eq!(section(["a\nb".to_string()].into_iter()), "- a\n  b");
    }

    #[test]
    fn journal_is_cut_at_a_line() {
        let journal: String = (0..1000).map(|n| format!("line {n}\n")).collect();
        let end = tail(&journal);
        assert!(end.starts_with("line ") && end.ends_with("line 999"));
        assert!(end.len() <= JOURNAL_LIMIT);
        assert_eq!(tail("one\ntwo\n"), "one\ntwo");
    }
}
