//! The commands of an agent's output that wait for a person's yes (`coordinator.commands: ask`).
//!
//! ```text
//!  a turn ends ──▶ its commands are one question ── approve ─▶ they become messages, once
//!                                                └─ reject ──▶ the thread's agent is told
//! ```
//!
//! The question is durable with the message that ends the turn. Each command has a key that follows
//! from the turn, so a repeated answer carries nothing out twice.

use crate::agent::ask::OURSELVES;
use crate::agent::event::cut;
use crate::conversation::TEXT_LIMIT;
use crate::conversation::directed::commander;
use crate::conversation::event::{AgentCommand, Author, MessageAccepted};
use crate::conversation::thread::Thread;
use crate::event::Event;
use crate::event::id::DispatchId;
use crate::question::{Choice, Kind, Question, QuestionAsked};
use crate::spec_run::gate::{APPROVE, REJECT};
use serde::{Deserialize, Serialize};

/// The most bytes of one command in the question. `detail` has the whole one.
const SHOWN: usize = 800;

/// The commands of a turn, in the `detail` of their question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// The person whom the turn answers. The commands have this person's rights.
    pub author: Author,
    pub commands: Vec<Proposed>,
}

/// A command, with the key of the message that it becomes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposed {
    pub key: String,
    pub command: AgentCommand,
}

impl Proposal {
    /// Returns the commands of a question; `None` for a question about something else.
    pub fn of(question: &Question) -> Option<Self> {
        let detail = (question.kind == Kind::Approval).then(|| question.detail.clone())?;
        serde_json::from_value(detail).ok()
    }

    /// Returns the events that accept the commands.
    pub fn accepted(
        self,
        thread: &Thread,
        new_id: &mut dyn FnMut() -> DispatchId,
    ) -> Vec<MessageAccepted> {
        let accepted = |Proposed { key, command }| MessageAccepted {
            thread: thread.id().into(),
            message: new_id().to_string(),
            author: self.author.clone(),
            text: cut(&command.describe(), TEXT_LIMIT),
            key,
            files: vec![],
            shown: false,
            command: Some(command),
        };
        self.commands.into_iter().map(accepted).collect()
    }
}

/// Whether a batch accepts commands that wait for a yes.
pub fn is_due(events: &[Event]) -> bool {
    events.iter().any(|event| waits(event).is_some())
}

/// Returns the batch with one question in place of the commands that wait for a yes.
pub fn asked_first(
    thread: &Thread,
    events: Vec<Event>,
    new_id: &mut dyn FnMut() -> DispatchId,
) -> Vec<Event> {
    let (waiting, mut events): (Vec<_>, Vec<_>) =
        events.into_iter().partition(|event| waits(event).is_some());
    let waiting: Vec<_> = waiting.iter().filter_map(waits).collect();
    let Some((first, _)) = waiting.first() else { return events };
    let author = first.author.clone();
    let lines = waiting.iter().map(|(_, command)| format!("- {}", shown(command)));
    let text = format!(
        "Carry out these commands of the agent, with the rights of {}?\n\n{}",
        author.name,
        lines.collect::<Vec<_>>().join("\n")
    );
    let commands = waiting.iter().map(|(accepted, command)| Proposed {
        key: accepted.key.clone(),
        command: (*command).clone(),
    });
    let proposal = Proposal { author, commands: commands.collect() };
    events.push(Event::QuestionAsked(Box::new(QuestionAsked {
        question: new_id().to_string(),
        kind: Kind::Approval,
        text,
        options: vec![
            Choice::new(APPROVE, "the commands are carried out"),
            Choice::new(REJECT, "they are not; the agent gets your text"),
        ],
        multi: false,
        free_text: false,
        subject: format!("commands/{}", first.key),
        detail: serde_json::to_value(proposal).unwrap_or_default(),
        default: None,
        deadline: None,
        thread: Some(thread.id().into()),
        shown_in: vec![],
        dispatch: None,
        asked_by: OURSELVES.into(),
    })));
    events
}

/// Returns the command of an agent's output that an event accepts, if it waits for a yes. One that
/// reads, that is refused, or that only asks a person does not wait.
fn waits(event: &Event) -> Option<(&MessageAccepted, &AgentCommand)> {
    let Event::MessageAccepted(accepted) = event else { return None };
    let command = accepted.command.as_ref().filter(|_| commander(&accepted.key).is_some())?;
    let acts = !matches!(command.action.as_str(), "status" | "sign_off");
    (acts && command.command().is_ok()).then_some((accepted, command))
}

/// Returns a command for people, who learn where the rest of a long one is.
fn shown(command: &AgentCommand) -> String {
    let whole = command.describe();
    match whole.len() > SHOWN {
        true => format!("{} (`muleteer questions --json` has the rest)", cut(&whole, SHOWN)),
        false => whole,
    }
}

/// Returns the message to the agent whose commands a person rejected.
pub fn rejected(by: &str, text: &str) -> String {
    let because = match text.trim() {
        "" => String::new(),
        text => format!(" Reason: {text}"),
    };
    format!("{by} rejected your commands, and none of them was carried out.{because}")
}
