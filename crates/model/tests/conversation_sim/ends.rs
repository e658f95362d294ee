//! The ends of agents in conversations, one by one.

use crate::{Sim, is_taken_back, lost_session};
use muleteer_model::conversation::event::{State, TaskState};
use muleteer_model::conversation::step;
use muleteer_model::dispatch::{Dispatch, Phase, Stop};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Event, FinalState, PromptKind};

#[test]
fn archived_thread_opens_again_and_continues_its_session() {
    let mut sim = Sim::new(1);
    sim.accept("a");
    for _ in 0..40 {
        sim.drive();
        sim.live(true);
    }
    let before = sim.thread();
    assert_eq!(before.messages.iter().map(|m| m.state.as_str()).next(), Some("answered"));
    let events = step::archived(&before, "operator");
    events.into_iter().for_each(|event| sim.tell(None, event));
    assert!(sim.thread().archived);
    assert_eq!(sim.thread().tasks[0].state, TaskState::Closed);
    sim.accept("b");
    assert!(!sim.thread().archived);
    for _ in 0..40 {
        sim.drive();
        sim.live(true);
    }
    let after = sim.thread();
    assert_eq!(after.dispatch, before.dispatch);
    assert_eq!(after.tasks[0].state, TaskState::Active);
    assert_eq!(after.by_key("b").unwrap().state, State::Answered);
}

/// Drives until the message with this key has a state, and returns whether it came.
fn until(sim: &mut Sim, key: &str, state: State) -> bool {
    for _ in 0..60 {
        if sim.thread().by_key(key).unwrap().state == state {
            return true;
        }
        sim.drive();
        sim.live(true);
    }
    false
}

/// Brings the thread to a running turn of `a`, with `b` queued behind it, and kills the agent.
fn killed_with_a_queue(seed: u64, reason: &str) -> (Sim, DispatchId) {
    let mut sim = Sim::new(seed);
    sim.accept("a");
    assert!(until(&mut sim, "a", State::Read));
    sim.accept("b");
    for _ in 0..3 {
        sim.drive();
    }
    let id = sim.thread().dispatch.clone().unwrap();
    let waits = |d: &Dispatch| d.prompts.iter().any(|prompt| prompt.is_waiting());
    for _ in 0..20 {
        if waits(sim.fleet.get(&id).unwrap()) {
            break;
        }
        sim.drive();
    }
    assert!(waits(sim.fleet.get(&id).unwrap()));
    let killed = Event::KillRequested { reason: reason.into(), by: "operator".into() };
    sim.tell(Some(&id), killed);
    // The driver looks before the agent has ended, and a third message comes.
    sim.accept("c");
    for _ in 0..10 {
        sim.drive();
    }
    assert!(!sim.fleet.get(&id).unwrap().is_finished());
    (sim, id)
}

#[test]
fn agent_that_is_killed_with_a_queue_is_replaced_when_it_has_ended_and_the_person_is_told() {
    let (mut sim, id) = killed_with_a_queue(2, "enough");
    assert_eq!(sim.thread().dispatch, Some(id.clone()), "it still runs");
    assert_eq!(sim.thread().by_key("b").unwrap().state, State::Refused);
    assert!(until(&mut sim, "c", State::Answered));
    let thread = sim.thread();
    assert_ne!(thread.dispatch, Some(id));
    let is_told = |text: &str| text.contains("A new agent continues");
    assert_eq!(thread.messages.iter().filter(|message| is_told(&message.text)).count(), 1);
}

#[test]
fn daemon_that_stops_with_its_agents_refuses_no_message_and_keeps_the_session() {
    let (mut sim, id) = killed_with_a_queue(2, Stop::WITH_DAEMON);
    for key in ["b", "c"] {
        assert!(until(&mut sim, key, State::Answered), "{key}");
    }
    let thread = sim.thread();
    assert_eq!(thread.dispatch, Some(id));
    assert!(!thread.messages.iter().any(|message| message.text.contains("A new agent")));
    sim.check_deliveries(&["a", "b", "c"].map(|key| thread.by_key(key).unwrap().id.clone()));
}

#[test]
fn first_message_is_delivered_after_a_daemon_that_stopped_before_its_agent_started() {
    let mut sim = Sim::new(2);
    sim.accept("a");
    while sim.fleet.unfinished().next().is_none() {
        sim.drive();
    }
    let id = sim.thread().dispatch.clone().unwrap();
    let reason = Stop::WITH_DAEMON.to_string();
    sim.tell(Some(&id), Event::KillRequested { reason, by: "operator".into() });
    assert!(until(&mut sim, "a", State::Answered));
    assert_eq!(sim.thread().dispatch, Some(id.clone()));
    assert_eq!(sim.fleet.get(&id).unwrap().turns, 1);
}

#[test]
fn reason_of_an_agent_that_was_given_up_is_told_with_the_next_one() {
    let mut sim = Sim::new(2);
    sim.accept("a");
    assert!(until(&mut sim, "a", State::Answered));
    let events = step::given_up(&sim.thread(), "its files were pruned");
    events.into_iter().for_each(|event| sim.tell(None, event));
    sim.restart();
    sim.accept("b");
    assert!(until(&mut sim, "b", State::Answered));
    let said = "A new agent continues without the earlier session: its files were pruned. It gets \
                a summary.";
    assert!(sim.thread().messages.iter().any(|message| &*message.text == said));
}

#[test]
fn answer_of_a_one_shot_agent_stands_in_the_thread_once() {
    let mut sim = Sim::new(3);
    assert!(sim.one_shot);
    sim.accept("a");
    assert!(until(&mut sim, "a", State::Answered));
    assert!(!sim.thread().is_busy());
    assert_eq!(sim.thread().messages.len(), 2);
}

#[test]
fn killed_agent_is_replaced_and_the_person_is_told() {
    let mut sim = Sim::new(2);
    sim.accept("a");
    assert!(until(&mut sim, "a", State::Answered));
    let first = sim.thread().dispatch.clone().unwrap();
    let killed = Event::KillRequested { reason: "enough".into(), by: "operator".into() };
    sim.tell(Some(&first), killed);
    let (state, reason) = (FinalState::Killed, "enough".to_string());
    sim.tell(Some(&first), Event::DispatchFinished { state, reason, result: None });
    sim.accept("b");
    assert!(until(&mut sim, "b", State::Answered));
    let thread = sim.thread();
    assert_ne!(thread.dispatch, Some(first));
    assert_eq!(thread.tasks[0].dispatches.len(), 2);
    assert!(thread.messages.iter().any(|message| message.text.contains("A new agent continues")));
}

/// The message that finds no session is delivered by another agent, and the person is told.
#[test]
fn message_that_finds_no_session_is_answered_by_another_agent() {
    let mut sim = Sim::new(2);
    sim.accept("a");
    assert!(until(&mut sim, "a", State::Answered));
    let first = sim.thread().dispatch.clone().unwrap();
    sim.accept("b");
    until(&mut sim, "b", State::Queued);
    let is_working = |d: &Dispatch| matches!(d.phase, Phase::Working { .. });
    while !is_working(sim.fleet.get(&first).unwrap()) {
        sim.drive();
        sim.live(true);
    }
    for event in lost_session(&sim.fleet.get(&first).unwrap().clone()) {
        sim.tell(Some(&first), event);
    }
    assert!(until(&mut sim, "b", State::Answered));
    let thread = sim.thread();
    assert_ne!(thread.dispatch, Some(first.clone()));
    let said = "A new agent continues without the earlier session: it no longer exists. It gets a \
                summary.";
    assert_eq!(thread.messages.iter().filter(|message| &*message.text == said).count(), 1);
    assert!(thread.by_key("b").unwrap().reason.is_empty());
    // A message to the first agent begins a new session there, and delivers nothing twice.
    let (key, kind, by) = ("past".to_string(), PromptKind::Send, "operator".to_string());
    sim.tell(Some(&first), Event::PromptQueued { key, kind, by, trace: None });
    for _ in 0..40 {
        sim.drive();
        sim.live(true);
    }
    let turns: Vec<_> = sim.log.iter().filter(|record| is_turn(&record.entry.event)).collect();
    assert_eq!(turns.len(), 3, "a, b and the message past the thread");
}

fn is_turn(event: &Event) -> bool {
    matches!(event, Event::TurnStarted { .. })
}

/// `muleteer send` to an agent that was given up delivers nothing that its thread has refused.
#[test]
fn message_to_a_given_up_agent_delivers_no_refused_message() {
    let mut sim = Sim::new(2);
    sim.accept("a");
    while sim.fleet.unfinished().next().is_none() {
        sim.drive();
    }
    let id = sim.thread().dispatch.clone().unwrap();
    let failed = |sim: &mut Sim| {
        let epoch = sim.fleet.get(&id).unwrap().epoch + 1;
        let attempt = sim.fleet.get(&id).unwrap().attempts + 1;
        sim.tell(Some(&id), Event::AttemptStarted { attempt, epoch, resume: None });
        let (error, permanent) = ("no such program".to_string(), true);
        sim.tell(Some(&id), Event::StartFailed { epoch, error, permanent });
        let (state, reason) = (FinalState::Failed, "no such program".to_string());
        sim.tell(Some(&id), Event::DispatchFinished { state, reason, result: None });
    };
    failed(&mut sim);
    assert!(until(&mut sim, "a", State::Refused));
    let (key, kind, by) = ("past".to_string(), PromptKind::Send, "operator".to_string());
    sim.tell(Some(&id), Event::PromptQueued { key, kind, by, trace: None });
    assert!(!sim.fleet.get(&id).unwrap().is_finished(), "it goes on");
    for _ in 0..40 {
        sim.drive();
        sim.live(true);
    }
    let dispatch = sim.fleet.get(&id).unwrap();
    assert!(is_taken_back(&dispatch.prompts[0]), "{:?}", dispatch.prompts);
    assert_eq!(dispatch.turns, 1, "only the message past the thread");
    assert_eq!(sim.thread().by_key("a").unwrap().state, State::Refused);
}
