//! The state of one thread, and the reports that it is due ([`report`]).

pub mod limits;
pub mod report;
pub mod window;

use crate::config::types::ThreadVerbosity;
use crate::conversation::adapter::asks::Shown;
use crate::conversation::adapter::outbox::Outbox;
use crate::conversation::event::{
    AgentCommand, Author, MessageAccepted, MessageFile, MessageRecorded, State, TaskState,
    ThreadOpened,
};
use crate::conversation::meeting::fold::Meeting;
use crate::conversation::thread::report::Reports;
use crate::conversation::thread::window::Window;
use crate::conversation::{initial_key, prompt_key};
use crate::event::Event;
use crate::event::id::DispatchId;
use jiff::Timestamp;
use rpds::RedBlackTreeMapSync;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Thread {
    pub opened: ThreadOpened,
    pub archived: bool,
    pub created: Timestamp,
    pub last_activity: Timestamp,
    /// The open messages and the newest final ones.
    pub messages: Window,
    /// The first line of the first message.
    pub(in crate::conversation) first_line: Option<String>,
    /// The place of each kept inbound message by its key.
    pub(in crate::conversation) keys: RedBlackTreeMapSync<String, u64>,
    /// The place of each kept message by its id.
    pub(in crate::conversation) places: RedBlackTreeMapSync<String, u64>,
    /// The places of the inbound messages whose state is not final.
    pub(in crate::conversation) open: BTreeSet<u64>,
    /// The record that made this the most recently active thread; 0 if no final message is kept.
    pub(in crate::conversation) held_since: u64,
    pub tasks: Vec<Task>,
    /// The dispatch that gets the messages.
    pub dispatch: Option<DispatchId>,
    /// That dispatch is chosen, and its first message is not.
    pub(in crate::conversation) fresh: bool,
    /// The present dispatch has taken a message, so its session would be missed.
    pub(in crate::conversation) heard: bool,
    /// The reason why the dispatch before the next one was given up, with its session.
    pub(in crate::conversation) lost: Option<String>,
    /// The turns that ended and whose last message is not recorded yet, oldest first.
    pub(in crate::conversation) turns: Vec<TurnEnd>,
    /// The items that the thread's adapter has not acknowledged.
    pub outbox: Outbox,
    /// The questions that the adapter shows, by their ids.
    #[serde(default)]
    pub(in crate::conversation) shown: RedBlackTreeMapSync<String, Shown>,
    /// The dispatches of other roles that ended otherwise than well after a turn, and whose end no
    /// message tells yet.
    pub(in crate::conversation) ends: Vec<DispatchId>,
    /// The events of its dispatches that no message tells yet.
    #[serde(default)]
    pub reports: Reports,
    /// How much it is told of its agents' work, if a person has decided that for this thread.
    #[serde(default)]
    pub verbosity: Option<ThreadVerbosity>,
    /// The meetings that were held in it, oldest first. Only the last one may be open.
    #[serde(default)]
    pub meetings: Vec<Arc<Meeting>>,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    pub id: String,
    pub author: Author,
    pub text: Arc<str>,
    pub at: Timestamp,
    pub state: State,
    pub reason: String,
    /// The key of an inbound message; an outbound one has none.
    pub key: Option<String>,
    pub files: Vec<MessageFile>,
    /// The messages that this one answers.
    pub answers: Vec<String>,
    pub delivery: Option<Delivery>,
    /// The place of an outbound message in the outside system.
    pub external_ref: Option<String>,
    /// The command of a coordinator's output that it is.
    #[serde(default)]
    pub command: Option<Box<AgentCommand>>,
}

/// The dispatch that gets a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    pub dispatch: DispatchId,
    /// The dispatch is created with this message as its prompt.
    pub first: bool,
    /// So many prompts with the message were withdrawn before an agent took them, because the
    /// daemon was stopped with its agents. A withdrawn key is refused for ever.
    pub withdrawn: u32,
}

/// A task of a thread, with its dispatches in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    pub id: String,
    pub title: String,
    pub state: TaskState,
    /// The role that works on it; `None` for the thread's own agent.
    #[serde(default)]
    pub role: Option<String>,
    pub dispatches: Vec<DispatchId>,
}

/// A turn that ended and answers messages of the thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnEnd {
    pub dispatch: DispatchId,
    pub turn: u32,
    pub interrupted: bool,
    pub text: String,
    pub answers: Vec<String>,
}

impl Message {
    /// Makes the message of an accepted one.
    pub fn accepted(accepted: &MessageAccepted, at: Timestamp) -> Self {
        Self {
            id: accepted.message.clone(),
            author: accepted.author.clone(),
            text: accepted.text.as_str().into(),
            at,
            state: State::Accepted,
            reason: String::new(),
            key: Some(accepted.key.clone()),
            files: accepted.files.clone(),
            answers: vec![],
            delivery: None,
            external_ref: None,
            command: accepted.command.clone().map(Box::new),
        }
    }

    /// Makes the message of a recorded one.
    pub fn recorded(recorded: &MessageRecorded, at: Timestamp) -> Self {
        Self {
            id: recorded.message.clone(),
            author: recorded.author.clone(),
            text: recorded.text.as_str().into(),
            at,
            state: State::Recorded,
            reason: String::new(),
            key: None,
            files: recorded.files.clone(),
            answers: recorded.answers.clone(),
            delivery: None,
            external_ref: None,
            command: None,
        }
    }

    pub fn is_inbound(&self) -> bool {
        self.key.is_some()
    }

    /// Returns the dispatch that gets the message, with the key of the prompt.
    pub fn prompt(&self, thread: &str) -> Option<(&DispatchId, String)> {
        let delivery = self.delivery.as_ref()?;
        let key = match delivery.first {
            true => initial_key(&delivery.dispatch),
            false if delivery.withdrawn == 0 => prompt_key(thread, &self.id),
            false => prompt_key(thread, &format!("{}/{}", self.id, delivery.withdrawn)),
        };
        Some((&delivery.dispatch, key))
    }
}

impl Thread {
    /// Returns the event that closes a task.
    pub fn task_closed(&self, task: &str, reason: &str) -> Event {
        self.task_state(task, TaskState::Closed, reason)
    }

    /// Returns the event that gives a task another state.
    pub(super) fn task_state(&self, task: &str, state: TaskState, reason: &str) -> Event {
        Event::ThreadTaskState {
            thread: self.id().into(),
            task: task.into(),
            state,
            dispatch: None,
            reason: reason.into(),
        }
    }

    pub fn id(&self) -> &str {
        &self.opened.thread
    }

    /// Returns the inbound message with this key, if it is kept in memory.
    pub fn by_key(&self, key: &str) -> Option<&Arc<Message>> {
        self.messages.get(*self.keys.get(key)?)
    }

    /// Returns the message with this id, if it is kept in memory.
    pub fn message(&self, id: &str) -> Option<&Arc<Message>> {
        self.messages.get(*self.places.get(id)?)
    }

    /// The inbound messages whose state is not final, oldest first.
    pub fn open(&self) -> impl Iterator<Item = &Arc<Message>> {
        self.open.iter().filter_map(|at| self.messages.get(*at))
    }

    /// Returns the task of the thread's own agent, which its messages belong to.
    pub fn own_task(&self) -> Option<&Task> {
        self.tasks.iter().rfind(|task| task.role.is_none())
    }

    /// Whether a dispatch is or was the thread's own agent.
    pub fn is_own(&self, dispatch: &DispatchId) -> bool {
        let own = self.tasks.iter().filter(|task| task.role.is_none());
        own.into_iter().any(|task| task.dispatches.contains(dispatch))
    }

    /// Returns the task that a dispatch works on.
    pub fn task_of(&self, dispatch: &DispatchId) -> Option<&Task> {
        self.tasks.iter().rfind(|task| task.dispatches.contains(dispatch))
    }

    /// Whether a dispatch was begun for a message that was accepted after this one. A command is
    /// not about such a dispatch, even if it is carried out later.
    pub fn is_begun_after(&self, dispatch: &DispatchId, message: &str) -> bool {
        let began = |one: &Message| {
            one.id == dispatch.as_str()
                || one.delivery.as_ref().is_some_and(|to| to.first && to.dispatch == *dispatch)
        };
        self.is_after(message, began)
    }

    /// Whether the prompt with this key delivers a message that was accepted after this one.
    pub fn is_prompted_after(&self, key: &str, message: &str) -> bool {
        let is_prompt = |one: &Message| one.prompt(self.id()).is_some_and(|it| it.1 == key);
        self.is_after(message, is_prompt)
    }

    fn is_after(&self, message: &str, is_meant: impl Fn(&Message) -> bool) -> bool {
        let found = self.messages.places().find(|(_, one)| is_meant(one));
        let place = self.places.get(message);
        found.zip(place).is_some_and(|((found, _), place)| found > *place)
    }

    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Returns the message that answers another, if it is kept in memory.
    pub fn answer_to(&self, id: &str) -> Option<&Arc<Message>> {
        // The answer is usually near the end.
        self.messages.iter().rev().find(|message| message.answers.iter().any(|one| one == id))
    }

    /// Whether something follows by itself: a message or a meeting is open, or an answer, a report
    /// or the end of a dispatch is not recorded.
    pub fn is_busy(&self) -> bool {
        !self.open.is_empty()
            || !self.turns.is_empty()
            || !self.ends.is_empty()
            || !self.reports.is_empty()
            || self.meeting().is_some()
    }

    /// Returns the title: the given one, else the first line of the first message.
    pub fn title(&self) -> Option<String> {
        let first = self.first_line.as_deref().unwrap_or_default();
        crate::event::title(self.opened.title.as_deref(), first)
    }
}
