//! The live view of a thread: its messages as they move, its agent's state, and the agent's output.

use crate::conversation::output::Output;
use crate::conversation::view;
use crate::daemon::context::Daemon;
use crate::dispatch::view::asks;
use muleteer_model::conversation::event::State;
use muleteer_model::conversation::step;
use muleteer_model::conversation::thread::{Message, Thread};
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_protocol::v1::{OPEN_LIMIT, Part, ThreadFollow, ThreadPart, ThreadPlace};
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

    /// Adds the messages that are new or have moved, and the agent's state if it has changed.
    pub fn messages(&mut self, thread: &Thread, fleet: &Fleet, parts: &mut Vec<ThreadPart>) {
        let mut moved = vec![];
        for id in self.open.keys() {
            let Some(message) = thread.message(id) else { continue };
            moved.push(message.clone());
        }
        for message in moved {
            self.tell(thread, &message, fleet, parts);
        }
        let from = usize::try_from(self.place.messages).unwrap_or(usize::MAX);
        for at in from..thread.messages.len() {
            let Some(message) = thread.messages.get(at).cloned() else { break };
            self.place.messages = at as u64 + 1;
            if message.is_inbound() && !message.state.is_final() {
                self.open.insert(message.id.clone(), None);
                self.tell(thread, &message, fleet, parts);
            } else {
                let part = Part::Message(Box::new(view::message(thread, &message, fleet)));
                parts.push(self.part(part));
            }
        }
        if !std::mem::replace(&mut self.is_present, true) {
            parts.push(self.part(Part::Present));
        }
        let agent = thread.dispatch.as_ref().and_then(|id| fleet.get(id)).map(|d| agent(fleet, d));
        if agent.is_some() && agent != self.agent {
            self.agent.clone_from(&agent);
            parts.extend(agent.map(|part| self.part(part)));
        }
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

fn agent(fleet: &Fleet, dispatch: &Dispatch) -> Part {
    Part::Agent {
        dispatch_id: dispatch.id.to_string(),
        role: dispatch.created.role.clone(),
        state: dispatch.state().into(),
        turn: dispatch.turns,
        reason: dispatch.reason.clone().filter(|reason| !reason.is_empty()),
        asks: asks(fleet, dispatch),
    }
}
