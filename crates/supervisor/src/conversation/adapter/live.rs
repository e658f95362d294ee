//! The items for a connection of an adapter about work that goes on: marks of messages, the text
//! of running turns, and the states of agents. No record owes these items.

use crate::conversation::adapter::{frame, inbound};
use crate::conversation::follow::output::Output;
use crate::daemon::context::Daemon;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muleteer_model::conversation::adapter::abilities::Abilities;
use muleteer_model::conversation::adapter::live::{Latest, Stream, mark, stream_key};
use muleteer_model::conversation::adapter::outbox::{Content, Post};
use muleteer_model::conversation::event::AuthorKind;
use muleteer_model::conversation::thread::{Message, Thread};
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::dispatch::{Dispatch, Phase, Turn};
use muleteer_model::event::Position;
use muleteer_protocol::v1::{AuthorDoc, Outbound, Part};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The most threads that are followed at the same time.
const MOST_THREADS: usize = 1000;
/// The most batches of output that one look reads of a thread.
const BATCHES: usize = 8;

/// An item that no record owes.
pub(super) struct Item {
    pub thread: String,
    pub frame: Outbound,
    /// The turn of a stream.
    pub turn: Option<u32>,
}

/// The threads of a connection in which work goes on.
pub(super) struct LiveThreads {
    adapter: String,
    abilities: Abilities,
    /// The sequence number of the newest record when the connection began.
    since: u64,
    all: BTreeMap<String, Watched>,
}

/// The outcome of a look.
pub(super) struct Look {
    /// Not all output was read.
    pub more: bool,
    /// Each is ready when the output of an agent has grown.
    pub growing: Vec<BoxFuture<'static, ()>>,
}

#[derive(Default)]
struct Watched {
    agent: Option<Agent>,
    state: Latest<(String, String)>,
    /// The marks of inbound messages, by their ids.
    marks: BTreeMap<String, Mark>,
    /// The newest stream that has a place in the outside system.
    place: Option<(String, String)>,
}

/// The mark of an inbound message.
struct Mark {
    source: String,
    is_final: bool,
    mark: Latest<&'static str>,
}

/// The output of a thread's agent.
struct Agent {
    output: Output,
    stream: Stream,
    /// The tool call that runs, with its id.
    call: Option<(String, String)>,
}

impl LiveThreads {
    pub(super) fn new(adapter: &str, abilities: Abilities, since: u64) -> Self {
        Self { adapter: adapter.into(), abilities, since, all: BTreeMap::new() }
    }

    /// Follows the threads in which something goes on. It blocks for the disk.
    pub(super) fn look(&mut self, daemon: &Arc<Daemon>, fleet: &Fleet) -> Look {
        let mut look = Look { more: false, growing: vec![] };
        if !self.abilities.is_live() {
            return look;
        }
        let all = &fleet.conversations;
        for id in all.busy() {
            let is_own = all.get(id).is_some_and(|thread| thread.opened.adapter == self.adapter);
            if is_own && self.all.len() < MOST_THREADS && !self.all.contains_key(id) {
                self.all.insert(id.into(), Watched::default());
            }
        }
        let (abilities, since) = (self.abilities, self.since);
        self.all.retain(|id, watched| {
            let Some(thread) = all.get(id) else { return false };
            if abilities.reactions {
                watched.mark_open(thread);
            }
            if abilities.streaming || abilities.status {
                watched.read((daemon, fleet), thread, since, &mut look);
            }
            // The last message is answered before the agent rests, and its rest is told too.
            let moves =
                abilities.status && agent_of(thread, fleet).is_some_and(|agent| is_moving(agent));
            all.is_busy(id) || !thread.outbox.is_empty() || moves || watched.is_due(abilities)
        });
        look
    }

    /// Returns the next mark of a thread that is not among `held`.
    pub(super) fn next_mark(&mut self, held: &BTreeSet<String>, fleet: &Fleet) -> Option<Item> {
        let mut free = self.all.iter_mut().filter(|(id, _)| !held.contains(*id));
        free.find_map(|(id, watched)| watched.next_mark(fleet.conversations.get(id)?))
    }

    /// Returns a mark that comes before an item: of a message that the item answers. A connection
    /// that ends in between gets both again.
    pub(super) fn mark_before(&mut self, thread: &Thread, post: &Post) -> Option<Item> {
        let Content::Message(id) = &post.content else { return None };
        if !self.abilities.reactions {
            return None;
        }
        let answered = &thread.message(id)?.answers;
        let watched = self.all.entry(thread.id().into()).or_default();
        for message in answered.iter().filter_map(|id| thread.message(id)) {
            watched.mark(message);
        }
        watched.next_mark(thread)
    }

    /// Returns the next piece of a stream or state of a thread that is not among `held`.
    pub(super) fn next(&mut self, held: &BTreeSet<String>, fleet: &Fleet) -> Option<Item> {
        let abilities = self.abilities;
        let mut free = self.all.iter_mut().filter(|(id, _)| !held.contains(*id));
        free.find_map(|(id, watched)| {
            let thread = fleet.conversations.get(id)?;
            let item = |frame, turn| Item { thread: id.clone(), frame, turn };
            if abilities.streaming
                && let Some((frame, turn)) = watched.next_piece(thread, fleet)
            {
                return Some(item(frame, Some(turn)));
            }
            let (state, text) = abilities.status.then(|| watched.state.take_due()).flatten()?;
            let frame = frame::of_thread(thread);
            let key = format!("{id}/status");
            let op = "status".into();
            Some(item(Outbound { key, op, text, state: Some(state), ..frame }, None))
        })
    }

    /// Notes that an adapter took a piece of a stream, or did not.
    pub(super) fn streamed(&mut self, thread: &str, turn: u32, place: Result<Option<String>, ()>) {
        let Some(watched) = self.all.get_mut(thread) else { return };
        let Some(agent) = &mut watched.agent else { return };
        match place {
            Ok(place) => {
                let key = stream_key(thread, agent.output.dispatch.as_str(), turn);
                if let Some(place) = &place {
                    watched.place = Some((key, place.clone()));
                }
                agent.stream.acknowledged(turn, place);
            }
            Err(()) => agent.stream.failed(turn),
        }
    }

    /// Returns the place of a stream in the outside system.
    pub(super) fn place(&self, thread: &str, stream: Option<&String>) -> Option<String> {
        let (key, place) = self.all.get(thread)?.place.as_ref()?;
        (Some(key) == stream).then(|| place.clone())
    }
}

impl Watched {
    fn is_due(&self, abilities: Abilities) -> bool {
        self.marks.values().any(|mark| mark.mark.is_due())
            || (abilities.status && self.state.is_due())
    }

    /// Notes the marks of the open messages, and of those that were open before.
    fn mark_open(&mut self, thread: &Thread) {
        let before: Vec<_> = self.marks.keys().filter_map(|id| thread.message(id)).collect();
        for message in before.into_iter().chain(thread.open()) {
            self.mark(message);
        }
        // A final mark that was given is not needed any more, nor one of a message out of memory.
        // While the thread owes an item, `mark_before` would give a forgotten mark again, and
        // again before the item itself.
        let owes = !thread.outbox.is_empty();
        self.marks.retain(|id, mark| {
            thread.message(id).is_some() && (owes || mark.mark.is_due() || !mark.is_final)
        });
    }

    fn mark(&mut self, message: &Message) {
        let Some(source) = inbound::source_of(message) else { return };
        // The ids of people elsewhere are none of this adapter's.
        if message.author.kind != AuthorKind::Person {
            return;
        }
        let entry = self.marks.entry(message.id.clone());
        let mark_of =
            entry.or_insert_with(|| Mark { source, is_final: false, mark: Latest::default() });
        mark_of.is_final = message.state.is_final();
        mark_of.mark.want(mark(message.state));
    }

    fn next_mark(&mut self, thread: &Thread) -> Option<Item> {
        let (id, mark) = self.marks.iter_mut().find(|(_, mark)| mark.mark.is_due())?;
        let state = mark.mark.take_due()?;
        let frame = Outbound {
            key: format!("{}/react/{id}/{state}", thread.id()),
            op: "react".into(),
            message_id: Some(id.clone()),
            reply_to: Some(mark.source.clone()),
            state: Some(state.into()),
            ..frame::of_thread(thread)
        };
        Some(Item { thread: thread.id().into(), frame, turn: None })
    }

    /// Reads the output of the thread's agent, and notes its state.
    fn read(
        &mut self,
        (daemon, fleet): (&Arc<Daemon>, &Fleet),
        thread: &Thread,
        since: u64,
        look: &mut Look,
    ) {
        let Some(dispatch) = agent_of(thread, fleet) else { return };
        // It is registered before the output is read, so that no growth in between is missed.
        if let Some(slots) = daemon.agents.get(&dispatch.id) {
            let mut grown = async move { slots.output.notified().await }.boxed();
            match (&mut grown).now_or_never() {
                Some(()) => look.more = true,
                None => look.growing.push(grown),
            }
        }
        if self.agent.as_ref().is_none_or(|agent| agent.output.dispatch != dispatch.id) {
            let spool = daemon.paths.spool(dispatch.id.as_str());
            // An unknown backend has no output that this build can read.
            // A turn that began after the connection is streamed from its beginning, however late
            // it is noticed.
            let is_new = |(began, _): &(u64, Position)| *began > since;
            let turn = running(dispatch).and(dispatch.turn_began).filter(is_new);
            let (at, stream) = match turn {
                Some((_, at)) => (at, Stream::new(dispatch.turns.saturating_sub(1), false)),
                None => {
                    let is_running = running(dispatch).is_some();
                    (dispatch.position, Stream::new(dispatch.turns, is_running))
                }
            };
            let output = Output::new(dispatch, &spool, &Output::place_at(dispatch, at)).ok();
            self.agent = output.map(|output| Agent { output, stream, call: None });
        }
        let call = self.agent.as_mut().and_then(|agent| agent.read(dispatch, look));
        self.state.want((dispatch.state().into(), call.unwrap_or_default()));
    }

    fn next_piece(&mut self, thread: &Thread, fleet: &Fleet) -> Option<(Outbound, u32)> {
        let agent = self.agent.as_mut()?;
        let dispatch = fleet.get(&agent.output.dispatch)?;
        let turn = running(dispatch)?;
        let piece = agent.stream.next(turn)?;
        let (id, role) = (dispatch.id.to_string(), dispatch.created.role.clone());
        let frame = Outbound {
            key: stream_key(thread.id(), dispatch.id.as_str(), turn),
            op: "stream".into(),
            text: piece.text,
            author: AuthorDoc { kind: AuthorKind::Agent.as_str().into(), id, name: role },
            offset: Some(piece.offset as u64),
            external_ref: piece.place,
            ..frame::of_thread(thread)
        };
        Some((frame, turn))
    }
}

impl Agent {
    /// Reads what is new. Returns the tool call that runs.
    fn read(&mut self, dispatch: &Dispatch, look: &mut Look) -> Option<String> {
        self.output.know(dispatch);
        let (mut parts, mut more) = (vec![], true);
        for _ in 0..BATCHES {
            more = self.output.read(0, &mut parts);
            for (_, part) in parts.drain(..) {
                self.take(part);
            }
            if !more {
                break;
            }
        }
        look.more |= more;
        if !more && running(dispatch).is_none() {
            self.stream.rest(dispatch.turns);
        }
        self.call.as_ref().map(|(_, call)| call.clone())
    }

    fn take(&mut self, part: Part) {
        match part {
            Part::Text { text } => self.stream.add(&text),
            Part::TextEnd => self.stream.end_block(),
            Part::Call { id, name, target } => {
                let call = if target.is_empty() { name } else { format!("{name}: {target}") };
                self.call = Some((id, call));
            }
            Part::CallEnd { id, .. } => drop(self.call.take_if(|(running, _)| *running == id)),
            Part::TurnEnd { .. } => {
                self.call = None;
                self.stream.end_turn();
            }
            Part::Message(_)
            | Part::Present
            | Part::Notice { .. }
            | Part::Agent { .. }
            | Part::Unknown => {}
        }
    }
}

fn agent_of<'a>(thread: &Thread, fleet: &'a Fleet) -> Option<&'a Arc<Dispatch>> {
    thread.dispatch.as_ref().and_then(|id| fleet.get(id))
}

/// Whether the state of an agent will soon be another one, without a message to it.
fn is_moving(agent: &Dispatch) -> bool {
    matches!(agent.state(), "starting" | "running")
}

/// Returns the number of the turn that runs.
fn running(dispatch: &Dispatch) -> Option<u32> {
    let is_running = matches!(&dispatch.phase, Phase::Working { turn: Turn::Running { .. }, .. });
    is_running.then_some(dispatch.turns)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use muleteer_model::config::Pool;
    use muleteer_model::conversation::event::{
        Author, MessageAccepted, MessageRecorded, State, TaskState, ThreadOpened,
    };
    use muleteer_model::event::Event;

    /// Opens a thread with one message of a person.
    fn asked(daemon: &Daemon, (id, message): (&str, &str)) {
        daemon.fold_plain(Event::ThreadOpened(Box::new(ThreadOpened {
            thread: id.into(),
            role: "product-analyst".into(),
            project: "/p".into(),
            title: None,
            adapter: "slack".into(),
            external: Some("C1".into()),
            by: "U1".into(),
            bang: None,
        })));
        daemon.fold_plain(Event::MessageAccepted(Box::new(MessageAccepted {
            thread: id.into(),
            message: message.into(),
            author: Author { kind: AuthorKind::Person, id: "U1".into(), name: "U1".into() },
            text: "How?".into(),
            key: "in/1".into(),
            files: vec![],
            shown: false,
            command: None,
        })));
    }

    /// The answer is posted while the agent's process still ends. People would see it work for
    /// ever.
    #[test]
    fn rest_of_an_agent_is_told_after_its_answer() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let (thread, message) = ("thrd2345", "msga2345");
        asked(&daemon, (thread, message));
        let agent = test_daemon::id("aaaa2222");
        let mut created = test_daemon::sample("dispatch_created");
        if let Event::DispatchCreated(created) = &mut created {
            created.by = format!("{}{thread}", muleteer_model::conversation::limits::BY);
        }
        daemon.fold(&agent, created);
        for name in ["attempt_started", "agent_spawned"] {
            daemon.fold(&agent, test_daemon::sample(name));
        }
        daemon.fold_plain(Event::ThreadTaskOpened {
            thread: thread.into(),
            task: "task2345".into(),
            title: String::new(),
            role: None,
        });
        daemon.fold_plain(Event::ThreadTaskState {
            thread: thread.into(),
            task: "task2345".into(),
            state: TaskState::Active,
            dispatch: Some(agent.clone()),
            reason: String::new(),
        });
        let of = |state, dispatch| Event::MessageState {
            thread: thread.into(),
            message: message.into(),
            state,
            reason: String::new(),
            dispatch,
        };
        daemon.fold_plain(of(State::Delivered, Some(agent.clone())));
        let mut live = LiveThreads::new("slack", Abilities::of(&["status".into()], None), 0);
        let mut told = || {
            let fleet = daemon.snapshot();
            live.look(&daemon, &fleet);
            let item = live.next(&BTreeSet::new(), &fleet);
            item.map(|item| item.frame.state.unwrap())
        };
        assert_eq!(told().as_deref(), Some("running"));
        daemon.fold_plain(of(State::Answered, None));
        assert!(!daemon.snapshot().conversations.is_busy(thread));
        assert_eq!(told(), None);
        daemon.fold(&agent, test_daemon::sample("dispatch_finished"));
        assert_eq!(told().as_deref(), Some("idle"));
        assert_eq!(told(), None);
        assert_eq!(live.all.len(), 0, "nothing is left to tell");
    }

    /// A forgotten mark would be given again before the answer, for ever.
    #[test]
    fn given_mark_is_not_repeated_while_its_answer_is_owed() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let (id, asked_id) = ("thrd2345".to_string(), "msga2345".to_string());
        asked(&daemon, (&id, &asked_id));
        let author = |kind| Author { kind, id: "U1".into(), name: "U1".into() };
        daemon.fold_plain(Event::MessageRecorded(Box::new(MessageRecorded {
            thread: id.clone(),
            message: "msgb2345".into(),
            author: author(AuthorKind::Agent),
            text: "So.".into(),
            answers: vec![asked_id.clone()],
            dispatch: None,
            turn: None,
            files: vec![],
            reports_through: None,
        })));
        daemon.fold_plain(Event::MessageState {
            thread: id.clone(),
            message: asked_id,
            state: State::Answered,
            reason: String::new(),
            dispatch: None,
        });
        let fleet = daemon.snapshot();
        let thread = fleet.conversations.get(&id).unwrap();
        let (_, post) = thread.outbox.iter().next().expect("an owed answer");
        let abilities = Abilities::of(&["reactions".into()], None);
        let mut live = LiveThreads::new("slack", abilities, 0);
        let given = live.mark_before(thread, post).expect("a mark");
        assert_eq!(given.frame.state.as_deref(), Some("done"));
        // The thread is looked at while the adapter acknowledges the mark.
        live.look(&daemon, &fleet);
        assert!(live.mark_before(thread, post).is_none(), "the answer is next");
    }
}
