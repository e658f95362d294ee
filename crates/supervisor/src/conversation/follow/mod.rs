//! The live view of a thread: its messages as they move, its agent's state, and the agent's output.

pub(super) mod output;

use crate::conversation::follow::output::Output;
use crate::conversation::{older, view};
use crate::daemon::context::Daemon;
use crate::question::view::asked;
use muleteer_model::conversation::event::State;
use muleteer_model::conversation::step;
use muleteer_model::conversation::thread::{Message, Thread};
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_protocol::v1::{OPEN_LIMIT, Part, ThreadFollow, ThreadPart, ThreadPlace, WireError};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most earlier messages that come first.
const HISTORY_LIMIT: u32 = 1000;

/// One client's knowledge of a thread.
pub struct Follower {
    daemon: Arc<Daemon>,
    thread: String,
    place: ThreadPlace,
    /// The inbound messages that may move, with the state and reason that the client has.
    open: BTreeMap<String, Option<(State, String)>>,
    output: Option<Output>,
    dispatch: Option<Arc<Dispatch>>,
    agent: Option<Part>,
    is_present: bool,
}

impl Follower {
    /// Begins at the place of the request, or with the newest messages and the present output.
    pub fn new(daemon: &Arc<Daemon>, thread: &Thread, asked: ThreadFollow) -> Self {
        let fleet = daemon.snapshot();
        let present = thread.dispatch.as_ref().and_then(|id| fleet.get(id));
        let resumes = asked.from.is_some();
        let place = asked.from.unwrap_or_else(|| {
            let history = u64::from(asked.history.min(HISTORY_LIMIT));
            let messages = (thread.messages.len() as u64).saturating_sub(history);
            let output = present.map(|dispatch| Output::present(dispatch)).unwrap_or_default();
            ThreadPlace { messages, ..output }
        });
        let open = asked.open.into_iter().take(OPEN_LIMIT).map(|id| (id, None)).collect();
        Self {
            daemon: daemon.clone(),
            thread: thread.id().into(),
            place,
            open,
            output: None,
            dispatch: None,
            agent: None,
            is_present: resumes,
        }
    }

    /// Whether the client gets earlier messages first. One that resumes gets the output first,
    /// which has the texts of the messages after its place.
    pub fn wants_history(&self) -> bool {
        !self.is_present
    }

    /// Adds the messages that have moved, the next new ones, and at their end the agent's state if
    /// it has changed. Returns whether there are more new messages. It waits for the database if a
    /// message left the memory.
    ///
    /// # Errors
    /// `E_BUSY` while the database is filled again; its error.
    pub async fn messages(
        &mut self,
        thread: &Arc<Thread>,
        fleet: &Fleet,
        parts: &mut Vec<ThreadPart>,
    ) -> Result<bool, WireError> {
        self.moved(thread, fleet, parts).await?;
        let unseen = since(&self.daemon, thread, self.place.messages).await?;
        if unseen.is_empty() {
            // The view goes on, whatever the database lacks.
            self.place.messages = self.place.messages.max(thread.messages.len() as u64);
        }
        for message in unseen {
            self.place.messages += 1;
            if message.is_inbound() && !message.state.is_final() {
                self.open.insert(message.id.clone(), None);
                self.tell(thread, &message, fleet, parts);
            } else {
                let part = Part::Message(Box::new(view::message(thread, &message, fleet)));
                parts.push(self.part(part));
            }
        }
        if self.place.messages < thread.messages.len() as u64 {
            return Ok(true);
        }
        if !std::mem::replace(&mut self.is_present, true) {
            parts.push(self.part(Part::Present));
        }
        let agent =
            thread.dispatch.as_ref().and_then(|id| fleet.get(id)).map(|d| agent(fleet, d, thread));
        if agent.is_some() && agent != self.agent {
            self.agent.clone_from(&agent);
            parts.extend(agent.map(|part| self.part(part)));
        }
        Ok(false)
    }

    /// Adds the messages that moved since the client has them.
    async fn moved(
        &mut self,
        thread: &Thread,
        fleet: &Fleet,
        parts: &mut Vec<ThreadPart>,
    ) -> Result<(), WireError> {
        let ids: Vec<_> = self.open.keys().cloned().collect();
        for id in ids {
            match older::message(&self.daemon, thread, &id).await? {
                Some(message) => self.tell(thread, &message, fleet, parts),
                // The thread has no such message.
                None => drop(self.open.remove(&id)),
            }
        }
        Ok(())
    }

    /// Adds a message whose state or reason the client does not have.
    fn tell(
        &mut self,
        thread: &Thread,
        message: &Message,
        fleet: &Fleet,
        parts: &mut Vec<ThreadPart>,
    ) {
        let now = (message.state, step::reason(thread, message, fleet));
        if self.open.get(&message.id).is_none_or(|known| known.as_ref() == Some(&now)) {
            return;
        }
        let part = Part::Message(Box::new(view::message(thread, message, fleet)));
        parts.push(self.part(part));
        match message.state.is_final() {
            true => self.open.remove(&message.id),
            false => self.open.insert(message.id.clone(), Some(now)),
        };
    }

    /// Adds the next parts of the agent's output. Returns whether there is more. It blocks for the
    /// disk.
    pub fn output(&mut self, thread: &Thread, fleet: &Fleet, parts: &mut Vec<ThreadPart>) -> bool {
        let Some(dispatch) = thread.dispatch.as_ref().and_then(|id| fleet.get(id)) else {
            return false;
        };
        let messages = self.place.messages;
        let mut read = vec![];
        // The rest of an earlier dispatch comes before the present one.
        let is_past = |output: &&mut Output| output.dispatch != dispatch.id;
        let mut more = match self.output.as_mut().filter(is_past) {
            Some(earlier) => {
                let more = earlier.read(messages, &mut read);
                if !more {
                    self.output = None;
                }
                true
            }
            None => false,
        };
        if !more {
            if self.output.is_none() {
                let spool = self.daemon.paths.spool(dispatch.id.as_str());
                // An unknown backend has no output that this build can read.
                self.output = Output::new(dispatch, &spool, &self.place).ok();
            }
            if let Some(output) = &mut self.output {
                output.know(dispatch);
                more = output.read(messages, &mut read);
            }
            self.dispatch = Some(dispatch.clone());
        }
        if let Some(output) = &self.output {
            self.place = output.place(messages);
        }
        parts.extend(read.into_iter().map(|(at, part)| ThreadPart { at, part }));
        more
    }

    /// Whether the output may have grown because the thread's dispatch changed.
    pub fn has_changed(&self, thread: &Thread, fleet: &Fleet) -> bool {
        let now = thread.dispatch.as_ref().and_then(|id| fleet.get(id));
        match (now, &self.dispatch) {
            (Some(now), Some(known)) => !Arc::ptr_eq(now, known),
            (now, known) => now.is_some() || known.is_some(),
        }
    }

    pub fn thread(&self) -> &str {
        &self.thread
    }

    fn part(&self, part: Part) -> ThreadPart {
        ThreadPart { at: self.place.clone(), part }
    }
}

/// Returns the next messages of a thread from this number on: all of them if they are in memory,
/// else a page.
async fn since(
    daemon: &Arc<Daemon>,
    thread: &Arc<Thread>,
    from: u64,
) -> Result<Vec<Arc<Message>>, WireError> {
    let missing = (thread.messages.len() as u64).saturating_sub(from);
    let kept: Vec<_> = thread.messages.since(from).map(|(_, one)| one.clone()).collect();
    match kept.len() as u64 == missing {
        true => Ok(kept),
        false => older::Pages::since(thread.clone(), from).next(daemon).await,
    }
}

/// Returns the state of a thread's agent, with all open questions of the thread.
fn agent(fleet: &Fleet, dispatch: &Dispatch, thread: &Thread) -> Part {
    let open = fleet.questions.open_of(thread.id());
    Part::Agent {
        dispatch_id: dispatch.id.to_string(),
        role: dispatch.created.role.clone(),
        state: dispatch.state().into(),
        turn: dispatch.turns,
        reason: dispatch.reason.clone().filter(|reason| !reason.is_empty()),
        asks: open.into_iter().map(|question| asked(question)).collect(),
    }
}
