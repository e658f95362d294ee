//! Rules of questions that are no requests of an agent's CLI.

#![allow(clippy::unwrap_used)]

use jiff::{SignedDuration, Timestamp};
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::{Entry, Event, Record, VERSION};
use muleteer_model::question::event::Answer;
use muleteer_model::question::step::{self, Asking, Unaskable};
use muleteer_model::question::{AnsweredBy, Choice, Kind, QuestionAsked, State, sign_off};

fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
}

fn tell(fleet: &mut Fleet, now: Timestamp, event: Event) {
    let entry = Entry { id: String::new(), dispatch_id: None, at: None, more: false, event };
    let seq = fleet.seq + 1;
    fleet.apply(&Record { v: VERSION, seq, ts: now, entry });
}

fn asked(id: &str, subject: &str) -> QuestionAsked {
    QuestionAsked {
        question: id.into(),
        kind: Kind::Approval,
        text: "Start it?".into(),
        options: vec![Choice::new("yes", ""), Choice::new("no", "")],
        multi: false,
        free_text: false,
        detail: serde_json::Value::Null,
        default: None,
        deadline: None,
        thread: Some("thrdabcd".into()),
        shown_in: vec![],
        dispatch: None,
        asked_by: "muleteer".into(),
        subject: subject.into(),
    }
}

fn ask(fleet: &mut Fleet, asked: &QuestionAsked) -> String {
    let event = match step::ask(fleet, asked).unwrap() {
        Asking::Known(known) => return known.id.clone(),
        Asking::New(event) => *event,
    };
    tell(fleet, at(0), event);
    asked.question.clone()
}

#[test]
fn same_subject_is_asked_about_once_while_the_question_is_open() {
    let mut fleet = Fleet::default();
    assert_eq!(ask(&mut fleet, &asked("q1", "run/r1")), "q1");
    assert_eq!(ask(&mut fleet, &asked("q2", "run/r1")), "q1");
    assert_eq!(ask(&mut fleet, &asked("q3", "run/r2")), "q3");
    assert_eq!(fleet.questions.open_in("thrdabcd"), 2);
    let useless = QuestionAsked { options: vec![], ..asked("q4", "") };
    assert!(matches!(step::ask(&fleet, &useless), Err(Unaskable::Unanswerable)));
    let other = QuestionAsked { default: Some("perhaps".into()), ..asked("q5", "") };
    assert!(matches!(step::ask(&fleet, &other), Err(Unaskable::BadDefault)));
    let long = "x".repeat(muleteer_model::question::TEXT_LIMIT);
    let options = vec![Choice::new("yes", &long)];
    let large = QuestionAsked { options, ..asked("q6", "") };
    assert!(matches!(step::ask(&fleet, &large), Err(Unaskable::TooLong)));
    let default = Some(long + "x");
    let large = QuestionAsked { default, free_text: true, ..asked("q7", "") };
    assert!(matches!(step::ask(&fleet, &large), Err(Unaskable::TooLong)));
}

#[test]
fn default_is_taken_once_also_when_the_deadline_passed_without_a_daemon() {
    let mut fleet = Fleet::default();
    let (default, deadline) = (Some("no".to_string()), Some(at(100)));
    let id = ask(&mut fleet, &QuestionAsked { default, deadline, ..asked("q1", "run/r1") });
    let question = |fleet: &Fleet| fleet.questions.get(&id).unwrap().clone();
    assert_eq!(step::next_deadline(&fleet), Some(at(100)));
    assert_eq!(step::next(&question(&fleet), &fleet, at(99)), None);
    // The next daemon starts a week later.
    let event = step::next(&question(&fleet), &fleet, at(700_000)).unwrap();
    tell(&mut fleet, at(700_000), event);
    let taken = question(&fleet);
    assert_eq!((taken.state, taken.answer.clone()), (State::Expired, Some(Answer::option("no"))));
    assert_eq!(step::next(&taken, &fleet, at(700_001)), None, "it is taken once");
    assert_eq!(step::next_deadline(&fleet), None);
    let late = step::answered(&taken, Answer::option("yes"), AnsweredBy::of("operator"), "k");
    assert_eq!(late, None);
}

#[test]
fn first_answer_counts_and_final_states_stay() {
    let mut fleet = Fleet::default();
    let id = ask(&mut fleet, &asked("q1", "run/r1"));
    let question = |fleet: &Fleet| fleet.questions.get(&id).unwrap().clone();
    let by = AnsweredBy::of("slack:U0123");
    assert_eq!((by.adapter.as_str(), by.to_string().as_str()), ("slack", "slack:U0123"));
    // Two daemons, or two clients, may both decide on the open question.
    let first = step::answered(&question(&fleet), Answer::option("yes"), by.clone(), "k1").unwrap();
    let second = step::answered(&question(&fleet), Answer::option("no"), by, "k2").unwrap();
    tell(&mut fleet, at(1), first);
    tell(&mut fleet, at(2), second);
    assert_eq!(question(&fleet).answer, Some(Answer::option("yes")));
    let state = |state| Event::QuestionState { question: id.clone(), state, reason: String::new() };
    tell(&mut fleet, at(3), state(State::Delivered));
    tell(&mut fleet, at(4), state(State::Withdrawn));
    assert_eq!(question(&fleet).state, State::Delivered);
    assert_eq!(fleet.questions.unsettled().count(), 0);
}

#[test]
fn newer_text_of_a_spec_withdraws_the_older_question_and_its_copy() {
    let mut fleet = Fleet::default();
    let spec = |path: &str, sha256: &str| sign_off::Spec {
        path: path.into(),
        repo: "/repo".into(),
        title: "The plan".into(),
        sha256: sha256.into(),
        bytes: 4,
    };
    let mut ask_at = |now, id: &str, thread: &str, spec: &sign_off::Spec| {
        let asked = sign_off::question(spec, "text", thread, "anna", id.into());
        tell(&mut fleet, at(now), Event::QuestionAsked(Box::new(asked)));
    };
    ask_at(1, "q1", "thrdabcd", &spec("/repo/plan.md", "aa"));
    ask_at(2, "q2", "thrdabcd", &spec("/repo/plan.md", "bb"));
    ask_at(2, "q3", "thrdabcd", &spec("/repo/other.md", "cc"));
    ask_at(3, "q4", "thrdefgh", &spec("/repo/plan.md", "dd"));
    let hashes = |fleet: &Fleet| {
        let needed = sign_off::needed_copies(&fleet.questions);
        needed.into_iter().map(|copy| copy.sha256).collect::<Vec<_>>()
    };
    assert_eq!(hashes(&fleet), ["aa", "bb", "cc", "dd"]);
    let next = |fleet: &Fleet, id: &str| step::next(fleet.questions.get(id).unwrap(), fleet, at(9));
    let withdrawn = next(&fleet, "q1").unwrap();
    let reason = sign_off::superseded("q2");
    let (question, state) = ("q1".to_string(), State::Withdrawn);
    assert_eq!(withdrawn, Event::QuestionState { question, state, reason });
    for newest in ["q2", "q3", "q4"] {
        assert_eq!(next(&fleet, newest), None, "{newest}");
    }
    tell(&mut fleet, at(9), withdrawn);
    assert_eq!(hashes(&fleet), ["bb", "cc", "dd"]);
    // The copy is needed until the answer is carried out.
    let question = fleet.questions.get("q2").unwrap();
    let answer = Answer::option(sign_off::START_RUN);
    let event = step::answered(question, answer, AnsweredBy::of("operator"), "k").unwrap();
    tell(&mut fleet, at(10), event);
    assert_eq!(hashes(&fleet), ["bb", "cc", "dd"]);
    let (question, reason) = ("q2".to_string(), String::new());
    tell(&mut fleet, at(11), Event::QuestionState { question, state: State::Delivered, reason });
    assert_eq!(hashes(&fleet), ["cc", "dd"]);
}

#[test]
fn closed_questions_are_bounded_and_open_ones_stay() {
    let mut fleet = Fleet::default();
    ask(&mut fleet, &asked("open", "run/open"));
    for n in 0..muleteer_model::question::MOST_CLOSED + 50 {
        let id = ask(&mut fleet, &asked(&format!("q{n}"), &format!("run/{n}")));
        let (state, reason) = (State::Withdrawn, String::new());
        tell(&mut fleet, at(1), Event::QuestionState { question: id, state, reason });
    }
    assert_eq!(fleet.questions.iter().count(), muleteer_model::question::MOST_CLOSED + 1);
    assert!(fleet.questions.get("open").is_some() && fleet.questions.get("q0").is_none());
}

fn expired(fleet: &mut Fleet, kind: Kind) -> String {
    let (default, deadline) = (Some("no".to_string()), Some(at(100)));
    let asked = QuestionAsked { default, deadline, kind, ..asked("q1", "") };
    let id = ask(fleet, &asked);
    let event = step::next(fleet.questions.get(&id).unwrap(), fleet, at(101)).unwrap();
    tell(fleet, at(101), event);
    id
}

#[test]
fn default_is_unsettled_until_it_has_reached_the_agent() {
    for (state, reason) in [(State::Delivered, ""), (State::Undeliverable, "its agent was killed")]
    {
        let mut fleet = Fleet::default();
        let id = expired(&mut fleet, Kind::Question);
        assert_eq!(fleet.questions.unsettled().count(), 1);
        let (question, reason) = (id.clone(), reason.to_string());
        tell(&mut fleet, at(102), Event::QuestionState { question, state, reason: reason.clone() });
        let question = fleet.questions.get(&id).unwrap();
        assert_eq!((question.state, fleet.questions.unsettled().count()), (State::Expired, 0));
        assert!(question.reason.ends_with(&reason), "{}", question.reason);
    }
    let mut fleet = Fleet::default();
    expired(&mut fleet, Kind::Approval);
    assert_eq!(fleet.questions.unsettled().count(), 0, "the run takes it itself");
}
