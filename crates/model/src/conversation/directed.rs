//! Messages that are not for the thread's agent: commands, and messages for another role.

use crate::agent::event::cut;
use crate::conversation::TEXT_LIMIT;
use crate::conversation::event::{
    AgentCommand, Author, AuthorKind, MessageAccepted, MessageRecorded, RoleChanged, State,
    TaskState,
};
use crate::conversation::route;
use crate::conversation::step::{Effect, Way, given_up, is_due_again, state, undelivered, way_to};
use crate::conversation::thread::{Message, Thread, TurnEnd};
use crate::dispatch::Dispatch;
use crate::dispatch::fleet::Fleet;
use crate::event::Event;
use crate::event::id::DispatchId;
use std::sync::Arc;

/// In front of the keys of the commands in an agent's output.
const COMMAND_KEY: &str = "command/";

/// The reply of Muleteer to a command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Replied {
    pub text: String,
    /// The command was refused, with this code and reason.
    pub refusal: Option<String>,
    /// The dispatch that the reply is about.
    pub dispatch: Option<DispatchId>,
}

/// Moves the messages for other roles whose dispatch cannot get them as it was decided.
pub(super) fn redirected(
    thread: &Thread,
    fleet: &Fleet,
    new_id: &mut dyn FnMut() -> DispatchId,
) -> Vec<Event> {
    let mut events = vec![];
    for message in thread.open() {
        if route::sent_elsewhere(thread, message).is_none() {
            continue;
        }
        let Some((id, key)) = message.prompt(thread.id()) else { continue };
        let Some(dispatch) = fleet.get(id) else { continue };
        let is_again = match dispatch.prompt(&key) {
            Some(prompt) if is_due_again(dispatch, prompt) => true,
            Some(_) => continue,
            None => false,
        };
        match way_to(id, fleet) {
            Way::To(_) if is_again => events.push(Event::MessageState {
                thread: thread.id().into(),
                message: message.id.clone(),
                state: message.state,
                reason: String::new(),
                dispatch: Some(id.clone()),
            }),
            Way::Fresh(why) => {
                let why = why.unwrap_or_default();
                let to = State::Refused;
                events.extend(undelivered(thread, &message.id, to, &why, new_id));
            }
            Way::To(_) | Way::Wait => {}
        }
    }
    events
}

/// Returns the effect of a message for another role. Each dispatch gets its messages in order.
pub(super) fn effect(thread: &Thread, fleet: &Fleet) -> Option<Effect> {
    let mut waiting: Vec<&DispatchId> = vec![];
    for message in thread.open() {
        if route::sent_elsewhere(thread, message).is_none() {
            continue;
        }
        let (Some(delivery), Some((id, key))) = (&message.delivery, message.prompt(thread.id()))
        else {
            continue;
        };
        let (dispatch, message) = (id.clone(), message.id.clone());
        match fleet.get(id) {
            _ if waiting.contains(&id) => {}
            Some(known) if known.prompt(&key).is_some() => {}
            None if delivery.first => return Some(Effect::Create { dispatch, message }),
            _ if way_to(id, fleet) == Way::To(dispatch.clone()) => {
                return Some(Effect::Send { dispatch, message, key });
            }
            _ => waiting.push(id),
        }
    }
    None
}

/// Returns the events after a command: the reply of Muleteer, and the end of the message.
pub fn replied(
    thread: &Thread,
    message: &Message,
    reply: Replied,
    new_id: &mut dyn FnMut() -> DispatchId,
) -> Vec<Event> {
    let Replied { text, refusal, dispatch } = reply;
    let to = if refusal.is_some() { State::Refused } else { State::Answered };
    vec![
        Event::MessageRecorded(Box::new(MessageRecorded {
            thread: thread.id().into(),
            message: new_id().to_string(),
            author: Author::muleteer(),
            text,
            answers: vec![message.id.clone()],
            dispatch,
            turn: None,
            files: vec![],
            reports_through: None,
        })),
        state(thread, &message.id, to, &refusal.unwrap_or_default()),
    ]
}

/// Returns the present dispatch of another role of the thread.
pub fn present(thread: &Thread, role: &str, fleet: &Fleet) -> Option<DispatchId> {
    let is_open = |dispatch: &&Arc<Dispatch>| {
        dispatch.created.role == role && matches!(way_to(&dispatch.id, fleet), Way::To(_))
    };
    route::dispatches(thread, fleet)
        .filter(|dispatch| !thread.is_own(&dispatch.id))
        .find(is_open)
        .map(|dispatch| dispatch.id.clone())
}

/// Returns the events that give a message to another role of the thread: to its present dispatch,
/// else to a new one, which has the id of the message.
pub fn addressed(thread: &Thread, message: &Message, role: &str, fleet: &Fleet) -> Vec<Event> {
    let present = present(thread, role, fleet);
    let Some(dispatch) = present.or_else(|| DispatchId::try_from(message.id.clone()).ok()) else {
        return handed_on(thread, message, "its id names no dispatch");
    };
    let task = thread.task_of(&dispatch).filter(|task| task.state == TaskState::Closed);
    let reopened = task.map(|task| thread.task_state(&task.id, TaskState::Active, ""));
    let queued = Event::MessageState {
        thread: thread.id().into(),
        message: message.id.clone(),
        state: State::Queued,
        reason: String::new(),
        dispatch: Some(dispatch),
    };
    reopened.into_iter().chain([queued]).collect()
}

/// Returns the events that open the task of a command, with its dispatch; none if the thread has
/// it. They are durable before the dispatch is created. Task and dispatch have the id of the
/// command's message, so a repeated command is about the same ones.
pub fn task_opened(thread: &Thread, dispatch: &DispatchId, role: &str, title: &str) -> Vec<Event> {
    if thread.task_of(dispatch).is_some() {
        return vec![];
    }
    let (task, id) = (dispatch.to_string(), thread.id().to_string());
    let state = Event::ThreadTaskState {
        thread: id.clone(),
        task: task.clone(),
        state: TaskState::Active,
        dispatch: Some(dispatch.clone()),
        reason: String::new(),
    };
    let (title, role) = (title.to_string(), Some(role.to_string()));
    vec![Event::ThreadTaskOpened { thread: id, task, title, role }, state]
}

/// Returns the event that leaves a message to the thread's agent, for this reason.
pub fn handed_on(thread: &Thread, message: &Message, reason: &str) -> Vec<Event> {
    vec![state(thread, &message.id, State::Accepted, reason)]
}

/// Returns the events that give the thread to another role. The next message begins its dispatch.
pub fn given_to(thread: &Thread, role: &str, by: &str) -> Vec<Event> {
    let mut events = vec![Event::ThreadRole(Box::new(RoleChanged {
        thread: thread.id().into(),
        role: role.into(),
        by: by.into(),
    }))];
    events.extend(given_up(thread, &format!("the thread was given to {role}")));
    events
}

/// Returns the events after a message that the dispatch of another role does not get.
pub fn refused_elsewhere(
    thread: &Thread,
    message: &str,
    reason: &str,
    new_id: &mut dyn FnMut() -> DispatchId,
) -> Vec<Event> {
    undelivered(thread, message, State::Refused, reason, new_id)
}

/// Returns the events that accept the commands of a coordinator's turn as messages of the person
/// whom the turn answers, so that they have the rights of that person. The messages of two people
/// are answered by no common right, so then the commands are refused.
pub(super) fn commanded(
    thread: &Thread,
    end: &TurnEnd,
    commands: Vec<AgentCommand>,
    new_id: &mut dyn FnMut() -> DispatchId,
) -> Vec<Event> {
    if commands.is_empty() {
        return vec![];
    }
    // A message that left the memory may be of another person.
    let authors = end.answers.iter().map(|id| Some(&thread.message(id)?.author));
    let Some(mut authors) = authors.collect::<Option<Vec<_>>>() else {
        return vec![uncommanded(thread, end, new_id)];
    };
    authors.dedup_by(|one, other| one.kind == other.kind && one.id == other.id);
    let is_person =
        |author: &Author| matches!(author.kind, AuthorKind::Person | AuthorKind::Operator);
    let [author] = authors[..] else { return vec![uncommanded(thread, end, new_id)] };
    if !is_person(author) {
        return vec![uncommanded(thread, end, new_id)];
    }
    let accepted = |(number, command): (usize, AgentCommand)| {
        Event::MessageAccepted(Box::new(MessageAccepted {
            thread: thread.id().into(),
            message: new_id().to_string(),
            author: author.clone(),
            text: cut(&command.describe(), TEXT_LIMIT),
            key: format!("{COMMAND_KEY}{}/{}/{number}", end.dispatch, end.turn),
            files: vec![],
            shown: false,
            command: Some(command),
        }))
    };
    commands.into_iter().enumerate().map(accepted).collect()
}

/// Returns the dispatch whose output has the command with this key.
pub fn commander(key: &str) -> Option<DispatchId> {
    let (dispatch, _) = key.strip_prefix(COMMAND_KEY)?.split_once('/')?;
    DispatchId::try_from(dispatch.to_string()).ok()
}

/// Says that the commands of a turn are refused.
fn uncommanded(thread: &Thread, end: &TurnEnd, new_id: &mut dyn FnMut() -> DispatchId) -> Event {
    Event::MessageRecorded(Box::new(MessageRecorded {
        thread: thread.id().into(),
        message: new_id().to_string(),
        author: Author::muleteer(),
        text:
            "The agent's commands are refused: its turn does not answer exactly one person, whose \
               rights would hold for them. Ask it again."
                .into(),
        answers: vec![],
        dispatch: Some(end.dispatch.clone()),
        turn: Some(end.turn),
        files: vec![],
        reports_through: None,
    }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::conversation::event::ThreadOpened;
    use crate::dispatch::tests::created;
    use crate::event::{Created, Entry, Record, VERSION};
    use jiff::Timestamp;

    const THREAD: &str = "thrd2345";

    fn id(text: &str) -> DispatchId {
        DispatchId::try_from(text.to_string()).unwrap()
    }

    fn add(fleet: &mut Fleet, dispatch_id: Option<DispatchId>, event: Event) {
        let entry = Entry { id: String::new(), dispatch_id, at: None, more: false, event };
        let (seq, ts) = (fleet.seq + 1, Timestamp::UNIX_EPOCH);
        fleet.apply(&Record { v: VERSION, seq, ts, entry });
    }

    /// A thread with a message of the operator, and its dispatch.
    fn fleet() -> Fleet {
        let mut fleet = Fleet::default();
        let opened = ThreadOpened {
            thread: THREAD.into(),
            role: "analyst".into(),
            project: "/p".into(),
            title: None,
            adapter: "cli".into(),
            external: None,
            by: "operator".into(),
            bang: None,
        };
        add(&mut fleet, None, Event::ThreadOpened(Box::new(opened)));
        let kind = AuthorKind::Operator;
        let accepted = MessageAccepted {
            thread: THREAD.into(),
            message: "msga2345".into(),
            author: Author { kind, id: "operator".into(), name: "operator".into() },
            text: "Go.".into(),
            key: "k".into(),
            files: vec![],
            shown: false,
            command: None,
        };
        add(&mut fleet, None, Event::MessageAccepted(Box::new(accepted)));
        let created = Created { by: format!("thread/{THREAD}"), ..created() };
        let event = Event::DispatchCreated(Box::new(created));
        add(&mut fleet, Some(id("dspa2345")), event);
        fleet
    }

    /// The forgotten message may be of another person, whose rights do not hold for the commands.
    #[test]
    fn commands_are_refused_if_an_answered_message_is_forgotten() {
        let fleet = fleet();
        let thread = fleet.conversations.get(THREAD).unwrap();
        let given = |answers: &[&str]| {
            let end = TurnEnd {
                dispatch: id("dspa2345"),
                turn: 1,
                interrupted: false,
                text: String::new(),
                answers: answers.iter().map(ToString::to_string).collect(),
            };
            let command = AgentCommand { action: "status".into(), ..AgentCommand::default() };
            commanded(thread, &end, vec![command], &mut || id("nwid2345"))
        };
        assert!(matches!(given(&["msga2345"])[..], [Event::MessageAccepted(_)]));
        let refused = given(&["msga2345", "gone2345"]);
        let [Event::MessageRecorded(refused)] = &refused[..] else { panic!("{refused:?}") };
        assert!(refused.text.starts_with("The agent's commands are refused"));
    }

    #[test]
    fn interrupt_of_an_earlier_agent_of_the_thread_is_known() {
        let mut fleet = fleet();
        let (key, by) = ("interrupt-slack-1".to_string(), "U1".to_string());
        add(&mut fleet, Some(id("dspa2345")), Event::InterruptRequested { key: key.clone(), by });
        let thread = fleet.conversations.get(THREAD).unwrap();
        assert!(route::has_interrupted(thread, &fleet, &key));
        assert!(!route::has_interrupted(thread, &fleet, "interrupt-slack-2"));
    }
}
