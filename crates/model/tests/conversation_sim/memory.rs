//! The messages that stay in memory.

use crate::Sim;
use muleteer_model::conversation::event::{
    Author, AuthorKind, MessageAccepted, MessageRecorded, State, ThreadOpened,
};
use muleteer_model::conversation::window::{HOLDERS, KEPT, KEPT_BYTES};
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::Event;

impl Sim {
    fn opens(&mut self, thread: &str) {
        self.tell(
            None,
            Event::ThreadOpened(Box::new(ThreadOpened {
                thread: thread.into(),
                role: "product-analyst".into(),
                project: "/p".into(),
                title: None,
                adapter: "cli".into(),
                external: None,
                by: "operator".into(),
                bang: None,
            })),
        );
    }

    /// Accepts a message of a thread.
    fn asks(&mut self, thread: &str, name: &str, text: &str) {
        let author = Author { kind: AuthorKind::Person, id: "o".into(), name: "Anna".into() };
        self.tell(
            None,
            Event::MessageAccepted(Box::new(MessageAccepted {
                thread: thread.into(),
                message: name.into(),
                author,
                text: text.into(),
                key: format!("key-{name}"),
                files: vec![],
                shown: false,
                command: None,
            })),
        );
    }

    /// Records the answer to a message, and the message's last state.
    fn answers(&mut self, thread: &str, name: &str) {
        let author = Author { kind: AuthorKind::Agent, id: "a".into(), name: "analyst".into() };
        self.tell(
            None,
            Event::MessageRecorded(Box::new(MessageRecorded {
                thread: thread.into(),
                message: format!("re-{name}"),
                author,
                text: "yes".into(),
                answers: vec![name.into()],
                dispatch: None,
                turn: None,
                files: vec![],
                reports_through: None,
            })),
        );
        self.tell(
            None,
            Event::MessageState {
                thread: thread.into(),
                message: name.into(),
                state: State::Answered,
                reason: String::new(),
                dispatch: None,
            },
        );
    }
}

#[test]
fn newest_messages_and_all_open_ones_stay_in_memory() {
    let mut sim = Sim::new(1);
    sim.opens("t");
    sim.asks("t", "open", "what I wait for");
    for n in 0..100 {
        sim.asks("t", &format!("m{n}"), "a question");
        sim.answers("t", &format!("m{n}"));
    }
    let thread = sim.fleet.conversations.get("t").unwrap().clone();
    assert_eq!(thread.messages.len(), 201);
    assert_eq!(thread.messages.iter().count(), KEPT + 1);
    assert_eq!(thread.open().map(|message| &*message.id).collect::<Vec<_>>(), ["open"]);
    assert!(thread.by_key("key-m0").is_none() && thread.message("re-m50").is_none());
    assert!(thread.by_key("key-m99").is_some() && thread.answer_to("m99").is_some());
    let newest: Vec<_> = thread.messages.since(199).map(|(number, _)| number).collect();
    assert_eq!(newest, [199, 200]);
    assert_eq!(thread.messages.numbered(0).map(|(message, _)| &*message.id), Some("open"));
    assert_eq!(thread.messages.numbered(1), None, "it left");
    let (through, left_at) = thread.messages.left().unwrap();
    assert!(through < left_at && left_at == sim.fleet.seq);
    assert_eq!(thread.title().as_deref(), Some("what I wait for"));
    // The message that was open for a long time leaves when it is answered.
    sim.answers("t", "open");
    let thread = sim.fleet.conversations.get("t").unwrap();
    assert!(thread.message("open").is_none());
    assert_eq!(thread.messages.iter().count(), KEPT);
    sim.restart();
}

#[test]
fn long_texts_leave_the_memory_earlier() {
    let mut sim = Sim::new(1);
    sim.opens("t");
    let text = "x".repeat(usize::try_from(KEPT_BYTES).unwrap() / 4);
    for n in 0..10 {
        sim.asks("t", &format!("m{n}"), &text);
        sim.answers("t", &format!("m{n}"));
    }
    let thread = sim.fleet.conversations.get("t").unwrap();
    let bytes: usize = thread.messages.iter().map(|message| message.text.len()).sum();
    assert!(bytes as u64 <= KEPT_BYTES, "{bytes}");
    assert!(thread.message("re-m9").is_some());
}

#[test]
fn thread_that_is_quiet_for_the_longest_time_keeps_only_its_list_row() {
    let mut sim = Sim::new(1);
    for n in 0..=HOLDERS {
        let thread = format!("t{n}");
        sim.opens(&thread);
        sim.asks(&thread, "m", &format!("question {n}"));
        sim.answers(&thread, "m");
    }
    let kept =
        |fleet: &Fleet, id: &str| fleet.conversations.get(id).unwrap().messages.iter().count();
    assert_eq!([kept(&sim.fleet, "t0"), kept(&sim.fleet, "t1")], [0, 2]);
    let quiet = sim.fleet.conversations.get("t0").unwrap().clone();
    assert_eq!((quiet.messages.len(), quiet.title().as_deref()), (2, Some("question 0")));
    // It is written to again, and another thread is the quietest.
    sim.asks("t0", "n", "another");
    assert_eq!([kept(&sim.fleet, "t0"), kept(&sim.fleet, "t1")], [1, 0]);
    let mut whole = Fleet::with_archived();
    sim.log.iter().for_each(|record| whole.apply(record));
    assert_eq!(kept(&whole, "t0"), 3, "a fleet that is shown keeps all");
    sim.restart();
}
