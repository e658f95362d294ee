//! The prompt of a turn: the meeting, what was said since the role's last turn, and the task.
//!
//! ```text
//! # Meeting
//! ## Said since your last turn     by the other roles, newest last, bounded
//! ## From people                   the messages that nobody has heard, and later ones
//! # Your turn
//! ```

use crate::conversation::event::AuthorKind;
use crate::conversation::meeting::event::{EndReason, TurnKind};
use crate::conversation::meeting::fold::{Chair, Meeting, Phase, Turn};
use crate::conversation::thread::{Message, Thread};
use crate::text::data_block::DataBlocks;
use std::fmt::Write;

/// The most bytes of one entry.
const ENTRY_LIMIT: usize = 6 * 1024;
/// The most bytes of all entries of a section.
const SECTION_LIMIT: usize = 32 * 1024;

/// Returns the prompt of a message that gives a turn; `None` for any other message.
pub fn of(thread: &Thread, message: &str) -> Option<String> {
    let meeting = thread.meeting()?;
    let turn = meeting.turn.as_ref().filter(|turn| turn.given.message == message)?;
    let mut prompt = head(meeting, turn);
    let (agents, people) = said(thread, meeting, turn);
    if !agents.is_empty() {
        let title =
            if turn.since == meeting.place { "Said so far" } else { "Said since your last turn" };
        let _ = write!(prompt, "\n## {title}\n\n");
        // The id of the message is new and random, so no speaker before knows the tag.
        DataBlocks::new(message).add(&mut prompt, &agents);
    }
    if !people.is_empty() {
        let _ = write!(prompt, "\n## From people\n\n{people}");
    }
    let _ = write!(prompt, "\n# Your turn\n\n{}\n", task(meeting, turn));
    Some(prompt)
}

fn head(meeting: &Meeting, turn: &Turn) -> String {
    let started = &meeting.started;
    let roles: Vec<_> = meeting.present().collect();
    let chair = match meeting.chair() {
        Chair::RoundRobin => "The turns go round.".to_string(),
        Chair::Mention => "A role speaks next if the last text mentions it as `@ROLE`.".into(),
        Chair::Role(role) => format!("`{role}` chairs and names the next speaker."),
    };
    let stand = match turn.given.kind {
        TurnKind::Minutes => "The turns are over.".to_string(),
        TurnKind::Speak | TurnKind::Newer | TurnKind::Choose => {
            format!("{chair} Turn {} of at most {}.", turn.given.turn, started.max_turns)
        }
    };
    format!(
        "# Meeting\n\nTopic: {}\n\nYou are `{}`. Roles: {}. {stand}\n",
        started.topic.trim(),
        turn.given.role,
        roles.join(", "),
    )
}

fn task(meeting: &Meeting, turn: &Turn) -> String {
    match turn.given.kind {
        TurnKind::Speak | TurnKind::Newer => {
            "Say what your role has to say to the topic and to what was said. Be brief: the text \
             of your answer is your speech, and the others get it. Change no files."
                .into()
        }
        TurnKind::Choose => {
            let roles: Vec<_> = meeting.present().collect();
            format!(
                "You chair the meeting. Say briefly what is agreed and what is open. Then end your \
                 answer with one line: `NEXT: ROLE` with one of {}, or `END` if the meeting has \
                 what it needs.",
                roles.join(", ")
            )
        }
        TurnKind::Minutes => {
            let reason = match &meeting.phase {
                Phase::Ending { reason, .. } => *reason,
                Phase::Talking | Phase::Ended { .. } => EndReason::Requested,
            };
            format!(
                "The meeting ends ({}). Write its minutes in Markdown: decisions, open points, and \
                 who does what next. Write what was said, and nothing else. The text of your \
                 answer becomes the minutes. Change no files.",
                reason.describe()
            )
        }
    }
}

/// Returns what other roles said since the role's last turn, and what people wrote, oldest first.
/// Only the newest entries are returned if there are too many.
fn said(thread: &Thread, meeting: &Meeting, turn: &Turn) -> (String, String) {
    let mut agents = Section::default();
    let mut people = Section::default();
    for (place, message) in thread.messages.places().rev() {
        let hears = turn.given.hears.contains(&message.id);
        let is_new = place > turn.since && place < turn.place;
        if !hears && !is_new || meeting.gave(&message.id) {
            continue;
        }
        match message.author.kind {
            AuthorKind::Agent if message.author.name != turn.given.role => agents.add(message),
            AuthorKind::Person | AuthorKind::Operator if is_talk(message) => people.add(message),
            AuthorKind::Agent
            | AuthorKind::Person
            | AuthorKind::Operator
            | AuthorKind::Muleteer
            | AuthorKind::Other => {}
        }
    }
    // Messages that left the memory are in the thread only.
    agents.is_full |= thread.messages.left().is_some_and(|(newest, _)| newest > turn.since);
    (agents.text(), people.text())
}

/// Whether a message of a person is no command.
fn is_talk(message: &Message) -> bool {
    message.command.is_none() && !message.text.trim_start().starts_with('/')
}

/// Entries, the newest first.
#[derive(Default)]
struct Section {
    entries: Vec<String>,
    bytes: usize,
    is_full: bool,
}

impl Section {
    fn add(&mut self, message: &Message) {
        let text = message.text.trim();
        let cut = text.len() > ENTRY_LIMIT;
        let text = &text[..text.floor_char_boundary(ENTRY_LIMIT)];
        let entry = format!("{}: {text}{}\n", message.author.name, if cut { " […]" } else { "" });
        self.is_full |= self.bytes + entry.len() > SECTION_LIMIT;
        if !self.is_full {
            self.bytes += entry.len();
            self.entries.push(entry);
        }
    }

    fn text(mut self) -> String {
        if self.is_full {
            self.entries.push("(older ones are left out; the thread has them)\n".into());
        }
        self.entries.reverse();
        self.entries.join("\n")
    }
}
