//! Requests of an agent, and the decision who answers.

use crate::agent::acp_handshake::Calls;
use crate::agent::ask::{
    Answer, Ask, AskKind, ID_LIMIT, MOST_OPEN, OURSELVES, UNATTENDED, Verdict,
};
use crate::agent::permission::{Mode, POLICY, Policy, Rule};
use crate::dispatch::life::tests::*;

impl Told {
    /// Returns an agent in the middle of a turn whose requests go to people.
    fn asking() -> Self {
        let mut told = Self::busy();
        Arc::make_mut(&mut told.d.created).permissions.mode = Mode::Ask;
        told
    }

    fn asks_as(&mut self, id: &str) -> bool {
        self.asks_for(id, Ask::tool("Bash", json!({})))
    }

    fn asks_for(&mut self, id: &str, ask: Ask) -> bool {
        self.line(vec![AgentEvent::Permission { id: id.into(), ask: Box::new(ask) }])
    }

    fn open(&self) -> Vec<&str> {
        self.d.asks.open().map(|pending| pending.id.as_str()).collect()
    }

    fn allowed(&mut self, id: &str) -> bool {
        let answer = Answer { verdict: Verdict::Allow, text: String::new() };
        self.feed(Input::Answer { id: id.into(), answer, by: "operator".into(), key: "k".into() })
    }

    fn hears_answers_to(&self) -> Vec<String> {
        let answer = |effect| if let Effect::Answer { id } = effect { Some(id) } else { None };
        effects(&self.d).into_iter().filter_map(answer).collect()
    }
}

/// An id is returned to the agent unchanged, so a request whose id is too long is ignored.
#[test]
fn ask_with_an_unusable_id_is_ignored() {
    let longest = "x".repeat(ID_LIMIT);
    for (id, heard) in
        [("r1", true), (longest.as_str(), true), ("", false), (&format!("{longest}x"), false)]
    {
        let mut told = Told::asking();
        told.asks_as(id);
        assert_eq!(told.open(), if heard { vec![id] } else { vec![] }, "{} bytes", id.len());
    }
    let mut told = Told::asking();
    Arc::make_mut(&mut told.d.created).can_ask = false;
    told.asks_as("r1");
    assert_eq!(told.open(), [] as [&str; 0], "of one that cannot be told an answer");
}

#[test]
fn repeated_ask_is_recorded_once() {
    let mut told = Told::asking();
    assert_eq!(told.d.state(), "running");
    told.asks_as("r1");
    assert_eq!(told.d.state(), "waiting");
    let before = told.log.len();
    told.asks_as("r1");
    assert_eq!(&told.log[before..], []);
    assert_eq!(told.open(), ["r1"]);
}

/// Only a person knows the answer, whatever the policy allows.
#[test]
fn a_question_is_for_people() {
    let mut told = Told::busy();
    told.line(vec![AgentEvent::Question { id: "q1".into(), text: "which of them?".into() }]);
    let pending = told.d.asks.open().next().expect("a question");
    assert_eq!(
        (pending.ask.kind, pending.ask.text.as_str()),
        (AskKind::Question, "which of them?")
    );
    assert_eq!(told.d.state(), "waiting");
}

/// An unknown request is refused even if everything is allowed: it would wait for ever.
#[test]
fn unknown_ask_is_refused_at_once() {
    let mut told = Told::busy();
    told.line(vec![AgentEvent::Request { id: "r1".into(), what: "fs/read".into() }]);
    let (pending, answer) = told.d.asks.answered().next().expect("an answer");
    assert_eq!((pending.ask.kind, answer.verdict), (AskKind::Other, Verdict::Deny));
    assert!(answer.text.contains("`fs/read`"), "{answer:?}");
    assert_eq!(told.hears_answers_to(), ["r1"]);
}

#[test]
fn too_many_open_asks_are_refused() {
    let mut told = Told::asking();
    for n in 0..=MOST_OPEN {
        told.asks_as(&format!("r{n}"));
    }
    assert_eq!(told.open().len(), MOST_OPEN);
    assert_eq!(told.hears_answers_to(), [format!("r{MOST_OPEN}")]);
}

/// The agent has the answer from elsewhere, or has withdrawn the request.
#[test]
fn withdrawn_ask_is_closed() {
    let mut told = Told::asking();
    told.asks_as("r1");
    told.asks_as("r2");
    let withdraws =
        |told: &mut Told, id: &str| told.line(vec![AgentEvent::PermissionAnswer { id: id.into() }]);
    withdraws(&mut told, "r1");
    assert_eq!(told.open(), ["r2"]);
    assert!(!told.allowed("r1"), "there is nothing to answer any more");
    assert!(told.allowed("r2"));
    let before = told.log.len();
    withdraws(&mut told, "r2");
    withdraws(&mut told, "r3");
    assert_eq!(
        &told.log[before..],
        [],
        "what is answered is closed by its end, and r3 was never asked"
    );
    assert_eq!(told.hears_answers_to(), ["r2"]);
}

#[test]
fn only_the_first_answer_counts() {
    let mut told = Told::asking();
    told.asks_as("r1");
    assert!(!told.allowed("r2") && told.allowed("r1") && !told.allowed("r1"));
    assert_eq!(told.hears_answers_to(), ["r1"]);
}

/// An agent that speaks by calls does not process an interrupt until its open request is answered.
#[test]
fn interrupt_closes_open_asks() {
    for (by_calls, refused) in [(true, vec!["r1".to_string()]), (false, vec![])] {
        let mut told = Told::asking();
        Arc::make_mut(&mut told.d.created).calls = by_calls.then_some(Calls { timeout_s: 60 });
        told.asks_as("r1");
        assert!(told.feed(Input::Interrupt { key: "i1".into(), by: "operator".into() }));
        assert_eq!(told.hears_answers_to(), refused, "by calls: {by_calls}");
        assert!(told.d.asks.answered().all(|(_, answer)| answer.verdict == Verdict::Deny));
    }
}

fn rules(text: &str) -> Vec<Rule> {
    vec![Rule::try_from(text.to_string()).unwrap()]
}

/// The agent may ask for something else then, so the denial names the rule.
#[test]
fn a_refusal_of_the_policy_names_the_rule() {
    let mut told = Told::asking();
    let policy = Policy {
        mode: Mode::Ask,
        allow: rules("Read"),
        deny: rules("Bash(rm *)"),
        ..Policy::default()
    };
    Arc::make_mut(&mut told.d.created).permissions = policy;
    let mut answered = |ask: Ask| {
        told.asks_for("r1", ask);
        let Some(Event::PermissionAnswered { answer, text, by, rule, .. }) =
            told.log.last().cloned()
        else {
            panic!("nobody answered: {:?}", told.log.last())
        };
        told.fold(None, Event::PermissionClosed { request_id: "r1".into() });
        assert_eq!(by, POLICY);
        (answer, text, rule.unwrap())
    };
    let (verdict, text, rule) = answered(Ask::tool("Bash", json!({"command": "rm -rf build"})));
    assert_eq!((verdict, rule.as_str()), (Verdict::Deny, "Bash(rm *)"));
    assert!(text.contains("Bash(rm *)"), "{text}");
    let allowed = answered(Ask::tool("Read", json!({"file_path": "/p/a"})));
    assert_eq!(allowed, (Verdict::Allow, String::new(), "Read".into()));
}

#[test]
fn policy_paths_are_relative_to_the_agents_directory() {
    for (worktree, path, asked) in [
        (None, "/p/src/a.rs", false),
        (Some("/w"), "/w/src/a.rs", false),
        (Some("/w"), "/p/src/a.rs", true),
    ] {
        let mut told = Told::asking();
        let created = Arc::make_mut(&mut told.d.created);
        created.worktree = worktree.map(String::from);
        created.permissions.allow = rules("Edit(src/**)");
        told.asks_for("r1", Ask::tool("Edit", json!({"file_path": path})));
        assert_eq!(!told.open().is_empty(), asked, "{path} from {worktree:?}");
    }
}

/// The run or task list that it works for would wait for ever.
#[test]
fn unattended_agents_are_denied_questions_at_once_and_permissions_in_time() {
    let unattended = || {
        let mut told = Told::asking();
        Arc::make_mut(&mut told.d.created).unattended_s = Some(600);
        told
    };
    let denied = |told: &Told| {
        let found = told.log.iter().rev().find_map(|event| match event {
            Event::PermissionAnswered { answer, text, by, rule, .. } => {
                Some((*answer, text.clone(), by.clone(), rule.clone()))
            }
            _ => None,
        });
        let (answer, text, by, rule) = found.expect("an answer");
        assert_eq!(
            (answer, by.as_str(), rule.as_deref()),
            (Verdict::Deny, OURSELVES, Some(UNATTENDED))
        );
        text
    };
    let question = || vec![AgentEvent::Question { id: "q1".into(), text: "which of them?".into() }];
    let mut told = unattended();
    told.line(question());
    assert_eq!((told.open(), told.d.state()), (vec![], "running"));
    assert!(denied(&told).contains("Decide yourself"), "{}", denied(&told));
    assert_eq!(told.hears_answers_to(), ["q1"]);
    assert!(!told.d.process().calls.refused, "no person has refused anything");

    // The agent that dispatched it may know the answer.
    let mut told = unattended();
    Arc::make_mut(&mut told.d.created).parent = Some(told.d.id.clone());
    told.line(question());
    assert_eq!(told.open(), ["q1"]);

    let mut told = unattended();
    told.asks_as("r1");
    let since = told.d.asks.open().next().expect("it waits").since;
    let after = |seconds: i64| since + jiff::SignedDuration::from_secs(seconds);
    assert!(effects(&told.d).contains(&Effect::WakeAt(after(600))));
    assert_eq!(advance(&told.d, after(599)), []);
    // A clock that was set back does not prolong the wait.
    for now in [after(600), after(-1)] {
        let events = advance(&told.d, now);
        assert!(
            matches!(
                &events[..],
                [Event::PermissionAnswered { answer: Verdict::Deny, text, .. }]
                    if text.contains("10m")
            ),
            "{events:?}"
        );
    }
    assert!(told.allowed("r1"), "somebody may still answer in time");
    assert!(!effects(&told.d).iter().any(|effect| matches!(effect, Effect::WakeAt(_))));

    let mut watched = Told::asking();
    watched.asks_as("r1");
    assert_eq!(advance(&watched.d, after(1_000_000)), []);
}
