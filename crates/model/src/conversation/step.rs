//! The next events and the next effect of a thread.
//!
//! Both follow from the thread and its dispatches alone. A daemon that is killed anywhere folds the
//! same state, decides the same, and carries the same effect out again. Each effect has an
//! idempotency key: the id of the dispatch, or the key of the prompt.

use crate::conversation::command::structured::{self, Structured};
use crate::conversation::event::{Author, AuthorKind, MessageRecorded, State, TaskState};
use crate::conversation::thread::report;
use crate::conversation::thread::{Message, Task, Thread, TurnEnd};
use crate::conversation::{directed, meeting, route};
use crate::dispatch::fleet::Fleet;
use crate::dispatch::{Dispatch, Phase, Prompt, PromptState, Stop};
use crate::event::id::DispatchId;
use crate::event::{Event, FinalState};
use std::sync::Arc;

const WITHDRAWN: &str = "the agent was killed before it received the message";
const RETURNED: &str = "the agent ended before it received the message";

/// An action that carries a message further.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Creates the dispatch with the message as its prompt.
    Create { dispatch: DispatchId, message: String },
    /// Sends the message to the dispatch under the key.
    Send { dispatch: DispatchId, message: String, key: String },
}

/// The way of a message that has no dispatch yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// This dispatch gets it.
    To(DispatchId),
    /// A new dispatch gets it. The reason says why an earlier one does not.
    Fresh(Option<String>),
    /// The present dispatch ends first.
    Wait,
}

/// Decides which dispatch gets the next message.
pub fn way(thread: &Thread, fleet: &Fleet) -> Way {
    let Some(id) = &thread.dispatch else { return Way::Fresh(thread.lost.clone()) };
    way_to(id, fleet)
}

/// Decides whether a dispatch gets the next message that is meant for it.
pub fn way_to(id: &DispatchId, fleet: &Fleet) -> Way {
    let lost = |why: &str| Way::Fresh(Some(why.into()));
    // It is being created, or only its record is elsewhere.
    let Some(dispatch) = fleet.get(id) else { return Way::To(id.clone()) };
    if dispatch.is_being_killed() {
        return Way::Wait;
    }
    if dispatch.was_killed_for_good() {
        return lost("the earlier agent was killed");
    }
    if dispatch.files.removed || dispatch.files.clone_removed {
        return lost("the files of the earlier agent were removed");
    }
    if has_lost_its_session(dispatch) {
        return lost("it no longer exists");
    }
    match (dispatch.created.has_turns(), dispatch.is_finished()) {
        (true, true) if !dispatch.created.resumable => lost("the earlier agent cannot be resumed"),
        (false, true) => lost("the earlier agent accepts one prompt only"),
        (false, false) => Way::Wait,
        (true, _) => Way::To(id.clone()),
    }
}

/// Returns the next events of a thread; empty if nothing follows. They belong into one batch.
/// `new_id` makes ids of messages, tasks and dispatches.
pub fn next(thread: &Thread, fleet: &Fleet, new_id: &mut dyn FnMut() -> DispatchId) -> Vec<Event> {
    if let Some(end) = thread.turns.first() {
        return turn_ended(thread, fleet, end, new_id);
    }
    let moved = moved(thread, fleet, new_id);
    if !moved.is_empty() {
        return moved;
    }
    if let Some(id) = thread.ends.first() {
        return vec![told(thread, fleet, id, new_id)];
    }
    let elsewhere = directed::redirected(thread, fleet, new_id);
    if elsewhere.is_empty() { routed(thread, fleet, new_id) } else { elsewhere }
}

/// Records the last message of a turn, and the end of the messages that it answers.
fn turn_ended(
    thread: &Thread,
    fleet: &Fleet,
    end: &TurnEnd,
    new_id: &mut dyn FnMut() -> DispatchId,
) -> Vec<Event> {
    let structured = structured(fleet, end);
    let said = structured.as_ref().map_or(&end.text, |output| &output.response);
    let says = !said.trim().is_empty();
    let (author, text) = match (says, end.interrupted) {
        (true, _) => (agent(&end.dispatch, fleet), said.clone()),
        (false, true) => (Author::muleteer(), "The turn was interrupted.".to_string()),
        (false, false) => {
            (Author::muleteer(), "The agent ended its turn without a text.".to_string())
        }
    };
    let recorded = MessageRecorded {
        thread: thread.id().into(),
        message: new_id().to_string(),
        author,
        text,
        answers: end.answers.clone(),
        dispatch: Some(end.dispatch.clone()),
        turn: Some(end.turn),
        files: vec![],
        reports_through: None,
    };
    let reason = if end.interrupted { "interrupted" } else { "" };
    let answered = end.answers.iter().map(|id| state(thread, id, State::Answered, reason));
    let commands = structured.map(|output| output.commands).unwrap_or_default();
    let commanded = directed::commanded(thread, end, commands, new_id);
    let recorded = Event::MessageRecorded(Box::new(recorded));
    std::iter::once(recorded).chain(answered).chain(commanded).collect()
}

/// Returns the structured output of a turn, if its role may give commands.
fn structured(fleet: &Fleet, end: &TurnEnd) -> Option<Structured> {
    let role = &fleet.get(&end.dispatch)?.created.role;
    (!end.interrupted).then(|| structured::of_role(role, &end.text)).flatten()
}

/// Moves the messages whose prompts have moved.
fn moved(thread: &Thread, fleet: &Fleet, new_id: &mut dyn FnMut() -> DispatchId) -> Vec<Event> {
    let (mut events, mut cut, mut retired) = (vec![], vec![], None);
    for message in thread.open() {
        let Some((dispatch, prompt)) = prompt_of(thread, message, fleet) else { continue };
        // `routed` gives it to an agent again.
        if is_due_again(dispatch, prompt) {
            continue;
        }
        let (to, reason) = match is_gone(dispatch) {
            Some(ending) => last_state(dispatch, prompt, ending),
            None if prompt.state == PromptState::Withdrawn => (State::Refused, WITHDRAWN.into()),
            None if prompt.state == PromptState::Returned => (State::Refused, RETURNED.into()),
            None => (state_of(prompt), String::new()),
        };
        if to == State::Answered {
            cut.push((message, dispatch));
        }
        let is_present = thread.dispatch.as_ref() == Some(&dispatch.id);
        if to == State::Refused && is_present && dispatch.is_finished() {
            retired = Some(dispatch);
        }
        if to.rank() > message.state.rank() {
            match to {
                State::Refused | State::Unknown => {
                    events.extend(undelivered(thread, &message.id, to, &reason, new_id));
                }
                _ => events.push(state(thread, &message.id, to, &reason)),
            }
        }
    }
    if let Some((_, dispatch)) = cut.first() {
        let answers = cut.iter().map(|(message, _)| message.id.clone()).collect();
        events.insert(0, ended(thread, dispatch, answers, new_id));
    }
    // An agent that ended before it took a message gets no later one: the next message begins
    // another. One that still runs ends first.
    if let (Some(dispatch), Some(task)) = (retired, thread.own_task()) {
        events.push(retire(thread, task, dispatch.reason.as_deref().unwrap_or_default()));
    }
    events
}

/// Returns the final state of a dispatch that has ended.
fn is_gone(dispatch: &Dispatch) -> Option<FinalState> {
    match dispatch.phase {
        Phase::Finished { state } => Some(state),
        _ => None,
    }
}

/// Whether the message of a prompt that no agent received is delivered again: a daemon stopped with
/// its agents, or the session is lost. Nobody judged this agent. After a stop only such a dispatch
/// is ever continued, perhaps with a message from elsewhere, and then has no stop any more.
pub(super) fn is_due_again(dispatch: &Dispatch, prompt: &Prompt) -> bool {
    let is_judged = match &dispatch.stop {
        Some(stop @ Stop::Kill { .. }) => !stop.is_with_daemon(),
        _ => dispatch.was_killed_for_good(),
    };
    match prompt.state {
        PromptState::Withdrawn => !is_judged,
        PromptState::Returned => has_lost_its_session(dispatch),
        PromptState::Queued
        | PromptState::Sent
        | PromptState::Taken
        | PromptState::Done
        | PromptState::Superseded
        | PromptState::Doubtful => false,
    }
}

/// Whether a dispatch has ended because its CLI no longer has its session.
fn has_lost_its_session(dispatch: &Dispatch) -> bool {
    dispatch.is_finished() && dispatch.session.lost
}

/// Returns the state that the message of a prompt has while its dispatch goes on.
fn state_of(prompt: &Prompt) -> State {
    match prompt.state {
        PromptState::Queued => State::Queued,
        PromptState::Sent if prompt.written => State::Delivered,
        PromptState::Sent => State::Queued,
        // The end of the turn is a record of its own.
        PromptState::Taken | PromptState::Done | PromptState::Superseded => State::Read,
        PromptState::Withdrawn | PromptState::Returned => State::Refused,
        // The dispatch ends now.
        PromptState::Doubtful => State::Delivered,
    }
}

/// Returns the last state of the message of a prompt whose dispatch has ended, with the reason.
fn last_state(dispatch: &Dispatch, prompt: &Prompt, ending: FinalState) -> (State, String) {
    let reason = || match dispatch.reason.as_deref().filter(|reason| !reason.is_empty()) {
        Some(reason) => format!("the agent ended ({}): {reason}", ending.as_str()),
        None => format!("the agent ended ({})", ending.as_str()),
    };
    let one_shot = !dispatch.created.has_turns();
    match prompt.state {
        PromptState::Taken | PromptState::Done | PromptState::Superseded => {
            (State::Answered, if is_well(ending) { String::new() } else { reason() })
        }
        PromptState::Sent if one_shot => {
            (State::Answered, if is_well(ending) { String::new() } else { reason() })
        }
        PromptState::Queued if one_shot && is_well(ending) => (State::Answered, String::new()),
        PromptState::Sent | PromptState::Doubtful => (State::Unknown, reason()),
        PromptState::Withdrawn => (State::Refused, WITHDRAWN.into()),
        PromptState::Queued | PromptState::Returned => (State::Refused, reason()),
    }
}

fn is_well(ending: FinalState) -> bool {
    match ending {
        FinalState::Success | FinalState::Partial => true,
        FinalState::Failed | FinalState::Blocked | FinalState::Killed | FinalState::Stalled => {
            false
        }
    }
}

/// Says how a dispatch of another role ended, to which no open message belongs.
fn told(
    thread: &Thread,
    fleet: &Fleet,
    id: &DispatchId,
    new_id: &mut dyn FnMut() -> DispatchId,
) -> Event {
    if let Some(dispatch) = fleet.get(id) {
        return ended(thread, dispatch, vec![], new_id);
    }
    Event::MessageRecorded(Box::new(MessageRecorded {
        thread: thread.id().into(),
        message: new_id().to_string(),
        author: Author::muleteer(),
        text: format!("The agent of dispatch {id} has ended."),
        answers: vec![],
        dispatch: Some(id.clone()),
        turn: None,
        files: vec![],
        reports_through: None,
    }))
}

/// Says how a dispatch ended, to the authors of messages that got no other answer.
fn ended(
    thread: &Thread,
    dispatch: &Dispatch,
    answers: Vec<String>,
    new_id: &mut dyn FnMut() -> DispatchId,
) -> Event {
    let result = dispatch.result.value.as_ref().map(|result| result.summary.trim());
    let result = result.filter(|summary| !summary.is_empty() && dispatch.state() != "failed");
    let reason = dispatch.reason.as_deref().filter(|reason| !reason.is_empty());
    // The message of an older version has no figures.
    let used = match dispatch.created.thread_verbosity {
        Some(_) => format!(". It used {}.", report::figures(dispatch)),
        None => ".".into(),
    };
    let (author, text) = match (result, reason) {
        (Some(summary), _) => (agent_of(dispatch), summary.to_string()),
        (None, Some(reason)) => {
            let reason = reason.trim_end_matches('.');
            (
                Author::muleteer(),
                format!("The agent has ended ({}): {reason}{}", dispatch.state(), used),
            )
        }
        (None, None) => {
            (Author::muleteer(), format!("The agent has ended ({}){used}", dispatch.state()))
        }
    };
    Event::MessageRecorded(Box::new(MessageRecorded {
        thread: thread.id().into(),
        message: new_id().to_string(),
        author,
        text,
        answers,
        dispatch: Some(dispatch.id.clone()),
        turn: None,
        files: vec![],
        reports_through: None,
    }))
}

/// Chooses a dispatch for each message that has none, in order.
fn routed(thread: &Thread, fleet: &Fleet, new_id: &mut dyn FnMut() -> DispatchId) -> Vec<Event> {
    let way = way(thread, fleet);
    let unassigned = |message: &&Arc<Message>| {
        is_ordinary(thread, message, fleet) && needs_a_dispatch(thread, message, fleet, &way)
    };
    let waiting: Vec<_> = thread.open().filter(unassigned).collect();
    let Some(first) = waiting.first() else { return vec![] };
    let (mut events, dispatch) = match way {
        Way::Wait => return vec![],
        Way::To(dispatch) => (reactivated(thread), dispatch),
        Way::Fresh(why) => fresh(thread, first, why, new_id),
    };
    events.extend(waiting.iter().map(|message| Event::MessageState {
        thread: thread.id().into(),
        message: message.id.clone(),
        // A state never goes back, even if the message is delivered once more.
        state: if message.state.rank() > State::Queued.rank() {
            message.state
        } else {
            State::Queued
        },
        reason: String::new(),
        dispatch: Some(dispatch.clone()),
    }));
    events
}

/// Whether a message is for the thread's agent.
fn is_ordinary(thread: &Thread, message: &Message, fleet: &Fleet) -> bool {
    !route::is_special(thread, message, &fleet.questions)
        && route::sent_elsewhere(thread, message).is_none()
}

/// Whether a message has no dispatch that has or will get it.
fn needs_a_dispatch(thread: &Thread, message: &Message, fleet: &Fleet, way: &Way) -> bool {
    let Some((id, key)) = message.prompt(thread.id()) else { return true };
    match fleet.get(id) {
        // It has the prompt already.
        Some(dispatch) if let Some(prompt) = dispatch.prompt(&key) => {
            is_due_again(dispatch, prompt)
        }
        _ => *way != Way::To(id.clone()),
    }
}

/// Chooses a new dispatch, and a task for it.
fn fresh(
    thread: &Thread,
    message: &Message,
    why: Option<String>,
    new_id: &mut dyn FnMut() -> DispatchId,
) -> (Vec<Event>, DispatchId) {
    let mut events = vec![];
    if let Some(why) = why {
        events.push(Event::MessageRecorded(Box::new(MessageRecorded {
            thread: thread.id().into(),
            message: new_id().to_string(),
            author: Author::muleteer(),
            text: continues(&why),
            answers: vec![],
            dispatch: thread.dispatch.clone(),
            turn: None,
            files: vec![],
            reports_through: None,
        })));
    }
    let task = match thread.own_task() {
        Some(task) => task.id.clone(),
        None => {
            let task = new_id().to_string();
            let given = thread.opened.title.as_deref();
            let title = crate::event::title(given, &message.text).unwrap_or_default();
            let thread = thread.id().to_string();
            events.push(Event::ThreadTaskOpened { thread, task: task.clone(), title, role: None });
            task
        }
    };
    let dispatch = new_id();
    events.push(Event::ThreadTaskState {
        thread: thread.id().into(),
        task,
        state: TaskState::Active,
        dispatch: Some(dispatch.clone()),
        reason: String::new(),
    });
    (events, dispatch)
}

/// Says that a new agent continues, and why.
fn continues(why: &str) -> String {
    match why.trim_end_matches('.') {
        "" => "A new agent continues without the earlier session. It gets a summary.".into(),
        why => {
            format!("A new agent continues without the earlier session: {why}. It gets a summary.")
        }
    }
}

/// Returns the event after which a task that was closed with its thread is worked on again.
fn reactivated(thread: &Thread) -> Vec<Event> {
    let closed = thread.own_task().filter(|task| task.state == TaskState::Closed);
    let active = closed.map(|task| Event::ThreadTaskState {
        thread: thread.id().into(),
        task: task.id.clone(),
        state: TaskState::Active,
        dispatch: None,
        reason: String::new(),
    });
    active.into_iter().collect()
}

/// Returns the effect that is due, of the oldest message that has one. Later messages wait for it,
/// so the order is kept.
pub fn effect(thread: &Thread, fleet: &Fleet) -> Option<Effect> {
    let of_agent = effect_of_agent(thread, fleet);
    of_agent.or_else(|| directed::effect(thread, fleet))
}

fn effect_of_agent(thread: &Thread, fleet: &Fleet) -> Option<Effect> {
    let way = way(thread, fleet);
    for message in thread.open().filter(|message| is_ordinary(thread, message, fleet)) {
        let delivery = message.delivery.as_ref()?;
        let (id, key) = message.prompt(thread.id())?;
        let (dispatch, message) = (id.clone(), message.id.clone());
        match fleet.get(id) {
            Some(known) if known.prompt(&key).is_some() => {}
            None if delivery.first => return Some(Effect::Create { dispatch, message }),
            _ if way == Way::To(dispatch.clone()) => {
                return Some(Effect::Send { dispatch, message, key });
            }
            // It waits for another dispatch.
            _ => return None,
        }
    }
    None
}

/// Returns the events after a dispatch that cannot be created, or that cannot get a message: the
/// message is refused, and the next one begins another dispatch.
pub fn refused(
    thread: &Thread,
    message: &str,
    reason: &str,
    new_id: &mut dyn FnMut() -> DispatchId,
) -> Vec<Event> {
    let mut events = undelivered(thread, message, State::Refused, reason, new_id);
    events.extend(thread.own_task().map(|task| retire(thread, task, reason)));
    events
}

/// Returns the events that end a message that no agent answers. The user of an adapter sees no
/// states, so a message says why.
pub(super) fn undelivered(
    thread: &Thread,
    message: &str,
    to: State,
    reason: &str,
    new_id: &mut dyn FnMut() -> DispatchId,
) -> Vec<Event> {
    let text = match to {
        State::Unknown => format!("It is unknown whether the agent received this: {reason}"),
        _ => format!("No agent received this message: {reason}"),
    };
    let recorded = thread.has_adapter().then(|| {
        Event::MessageRecorded(Box::new(MessageRecorded {
            thread: thread.id().into(),
            message: new_id().to_string(),
            author: Author::muleteer(),
            text,
            answers: vec![message.into()],
            dispatch: None,
            turn: None,
            files: vec![],
            reports_through: None,
        }))
    });
    recorded.into_iter().chain([state(thread, message, to, reason)]).collect()
}

/// Returns the events that give up the present dispatch and leave its messages to another one.
pub fn given_up(thread: &Thread, reason: &str) -> Vec<Event> {
    thread.own_task().map(|task| retire(thread, task, reason)).into_iter().collect()
}

/// Returns the events that archive a thread.
pub fn archived(thread: &Thread, by: &str) -> Vec<Event> {
    let tasks = thread.tasks.iter().filter(|task| task.state != TaskState::Closed);
    let closed = tasks.map(|task| Event::ThreadTaskState {
        thread: thread.id().into(),
        task: task.id.clone(),
        state: TaskState::Closed,
        dispatch: None,
        reason: "the thread was archived".into(),
    });
    let meeting = meeting::step::archived(thread);
    let archived = Event::ThreadArchived { thread: thread.id().into(), by: by.into() };
    closed.chain(meeting).chain([archived]).collect()
}

/// Says, for people, why an open message is where it is now.
pub fn reason(thread: &Thread, message: &Message, fleet: &Fleet) -> String {
    if message.state.is_final() || message.state.rank() > State::Queued.rank() {
        return message.reason.clone();
    }
    if let Some(held) = thread.meeting()
        && route::route(thread, message, &fleet.questions) == route::Route::Meeting
    {
        return meeting::step::reason(held, message);
    }
    let present = message.delivery.as_ref().map(|delivery| &delivery.dispatch);
    let Some(dispatch) = present.or(thread.dispatch.as_ref()).and_then(|id| fleet.get(id)) else {
        return "its agent is being started".into();
    };
    if dispatch.is_being_killed() {
        return "waits for the end of the agent that is being killed".into();
    }
    match dispatch.state() {
        "queued" => "waits for a free slot of the pool".into(),
        "starting" => "its agent is starting".into(),
        "running" => {
            format!("queued behind turn {} of {}", dispatch.turns.max(1), dispatch.created.role)
        }
        "waiting" => dispatch.reason.clone().unwrap_or_else(|| "the agent waits".into()),
        _ => "its agent is being resumed".into(),
    }
}

fn prompt_of<'a>(
    thread: &Thread,
    message: &Message,
    fleet: &'a Fleet,
) -> Option<(&'a Dispatch, &'a Prompt)> {
    let (id, key) = message.prompt(thread.id())?;
    let dispatch = fleet.get(id)?;
    Some((dispatch, dispatch.prompt(&key)?))
}

fn retire(thread: &Thread, task: &Task, reason: &str) -> Event {
    Event::ThreadTaskState {
        thread: thread.id().into(),
        task: task.id.clone(),
        state: TaskState::Open,
        dispatch: None,
        reason: reason.into(),
    }
}

pub(super) fn state(thread: &Thread, message: &str, state: State, reason: &str) -> Event {
    Event::MessageState {
        thread: thread.id().into(),
        message: message.into(),
        state,
        reason: reason.into(),
        dispatch: None,
    }
}

fn agent(id: &DispatchId, fleet: &Fleet) -> Author {
    match fleet.get(id) {
        Some(dispatch) => agent_of(dispatch),
        None => Author { kind: AuthorKind::Agent, id: id.to_string(), name: id.to_string() },
    }
}

fn agent_of(dispatch: &Dispatch) -> Author {
    let name = dispatch.created.role.clone();
    Author { kind: AuthorKind::Agent, id: dispatch.id.to_string(), name }
}
