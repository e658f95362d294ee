#![allow(clippy::unwrap_used)]

use crate::event::{Entry, Event, Outcome, Record};
use crate::spec_run::decide::JobEnd;
use crate::spec_run::event::JudgeFinished;
use crate::spec_run::report::status::*;
use crate::spec_run::state::{RunStanding, Stopping};
use crate::spec_run::tests::play::{Play, bead, settings};
use serde_json::Value;

const START: i64 = 1_700_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(START + second).unwrap()
}

fn working() -> Play {
    Play::with(settings(), vec![bead("a", &[]), bead("b", &["a"])])
}

/// Builds a fleet in which the run's first agent emits these events, one per second.
fn fleet(run: &Run, events: Vec<Event>) -> Fleet {
    let dispatch = run.jobs.values().next().unwrap().start.dispatch.clone();
    let id = DispatchId::try_from(dispatch).unwrap();
    let created = Event::DispatchCreated(Box::new(crate::dispatch::tests::created()));
    let mut fleet = Fleet::default();
    for (n, event) in [created].into_iter().chain(events).enumerate() {
        let entry = Entry {
            id: format!("e{n}"),
            dispatch_id: Some(id.clone()),
            at: None,
            more: false,
            event,
        };
        fleet.apply(&Record { v: 1, seq: n as u64 + 1, ts: at(n as i64 + 1), entry });
    }
    fleet
}

fn limited(until: i64) -> Event {
    Event::ApiWaiting {
        trouble: crate::admission::api_error::Trouble::RateLimit,
        status: Some(429),
        until: at(until),
        told: true,
        waits: 1,
        spent_ms: 0,
    }
}

#[test]
fn run_without_a_daemon_is_abandoned_since_its_newest_event() {
    let play = working();
    let standing = Standing::of(&play.run, None, false, at(500));
    assert!(standing.abandoned);
    assert_eq!((standing.as_of, standing.last_agents), (play.run.updated_at, Some(1)));
    assert_eq!(standing.waiting_for[0].kind, WaitKind::Daemon);
    assert!(standing.reason().unwrap().contains("run --resume"), "{standing:?}");
    let known = standing.clone().with_obstacle(&play.run, Some("run.json is newer".into()));
    assert!(known.reason().unwrap().contains("continues it (run.json is newer)"), "{known:?}");
    assert_eq!(known.obstacle.as_deref(), Some("run.json is newer"));
    let hosted =
        Standing::of(&play.run, None, true, at(500)).with_obstacle(&play.run, Some("no".into()));
    assert_eq!((hosted.obstacle, hosted.waiting_for), (None, vec![]));
    // Later events of an agent make the information newer.
    let fleet = fleet(&play.run, vec![limited(900)]);
    let standing = Standing::of(&play.run, Some(&fleet), false, at(500));
    assert_eq!(standing.as_of, at(2));
    let document =
        serde_json::to_value(crate::spec_run::checkpoint::document_at(&play.run, &standing))
            .unwrap();
    assert_eq!(
        (&document["status"], &document["abandoned"], &document["agents"]),
        (&"in_progress".into(), &true.into(), &0.into()),
        "{document}"
    );
}

#[test]
fn run_with_a_daemon_is_current_and_waits_for_nothing() {
    let play = working();
    let standing = Standing::of(&play.run, None, true, at(500));
    assert_eq!((standing.as_of, standing.abandoned, standing.last_agents), (at(500), false, None));
    assert_eq!((standing.reason(), standing.until), (None, None));
    assert!(serde_json::to_value(&standing).unwrap()["waiting_for"].is_null());
}

#[test]
fn wait_for_the_model_api_names_its_end() {
    let play = working();
    let fleet = fleet(&play.run, vec![limited(900)]);
    let standing = Standing::of(&play.run, Some(&fleet), true, at(500));
    let [wait] = &standing.waiting_for[..] else { panic!("{standing:?}") };
    assert_eq!(
        (wait.kind, wait.until, standing.until),
        (WaitKind::ModelApi, Some(at(900)), Some(at(900)))
    );
    let reason = standing.reason().unwrap();
    assert!(
        reason.starts_with("it is waiting for the model API until ") && reason.contains("HTTP 429"),
        "{reason}"
    );
    let json: Value = serde_json::to_value(&standing).unwrap();
    assert_eq!(json["waiting_for"][0]["kind"], "model_api");
    assert!(json["until"].as_str().unwrap().ends_with(".000Z"), "{json}");
    // A time that has passed is not shown.
    assert_eq!(Standing::of(&play.run, Some(&fleet), true, at(901)).until, None);
}

#[test]
fn slowed_run_names_the_end_and_the_reason() {
    let mut play = working();
    let slowed = Event::PoolSlowed { until: at(60), reason: "HTTP 429".into() };
    let entry =
        Entry { id: "slow".into(), dispatch_id: None, at: None, more: false, event: slowed };
    play.run.apply(&Record { v: 1, seq: play.run.seq + 1, ts: at(0), entry });
    let standing = Standing::of(&play.run, None, true, at(1));
    assert_eq!((standing.waiting_for[0].kind, standing.until), (WaitKind::Backoff, Some(at(60))));
    assert!(standing.reason().unwrap().contains("HTTP 429"));
    assert_eq!(Standing::of(&play.run, None, true, at(61)).waiting_for, []);
}

#[test]
fn failed_run_names_the_last_failure_of_its_beads() {
    let mut play = working();
    assert_eq!(why(&play.run), None, "it is under way");
    for text in ["exit code 3: no compiler", "exit code 4: no linker"] {
        play.end("a", Outcome::Failure, |end: &mut JobEnd| end.reason = text.into());
    }
    let why = why(&play.run).unwrap();
    assert!(
        why.contains("bead a (Do a): ")
            && why.contains("no linker")
            && !why.contains("no compiler"),
        "{why}"
    );
    let document = serde_json::to_value(crate::spec_run::checkpoint::document(&play.run)).unwrap();
    assert_eq!((&document["status"], &document["reason"]), (&"failed".into(), &why.into()));
}

#[test]
fn failed_run_names_the_findings_of_the_judge() {
    let mut play = working();
    let mut finished: JudgeFinished = serde_json::from_value(serde_json::json!({
        "iteration": 1, "verdict": "fail", "new_beads": 0, "reason": "the exit code is 1",
    }))
    .unwrap();
    finished.iteration = 3;
    play.run.verdicts.push(finished);
    let error = Stopping { code: "E".into(), message: "out of iterations".into() };
    play.run.standing = RunStanding::Ended { outcome: RunStatus::Failed, error: Some(error) };
    let why = why(&play.run).unwrap();
    assert_eq!(why, "out of iterations; the judge, iteration 3: the exit code is 1");
}

#[test]
fn run_that_waits_for_approval_needs_no_daemon() {
    let mut settings = settings();
    settings.human_review = true;
    let play = Play::with(settings, vec![bead("a", &[])]);
    assert_eq!(play.run.status(), RunStatus::AwaitingApproval);
    let standing = Standing::of(&play.run, None, false, at(500));
    assert!(!standing.abandoned, "it rests: no daemon is needed until somebody approves");
    assert_eq!(standing.waiting_for[0].kind, WaitKind::Approval);
}

#[test]
fn run_whose_question_took_an_answer_in_vain_names_the_reason() {
    let mut settings = settings();
    settings.human_review = true;
    let mut play = Play::with(settings, vec![bead("a", &[])]);
    let standing = RunStatus::AwaitingApproval;
    let rested =
        Event::RunRested { status: standing, reason: "x".into(), question: Some("q1".into()) };
    play.fold(vec![rested]);
    let gate = crate::spec_run::gate::Merge::default();
    let asked = crate::spec_run::gate::question(&play.run, Gate::Plan, &gate, "q1".into());
    let mut fleet = Fleet::default();
    let mut apply = |seq, event| {
        let id = format!("e{seq}");
        let entry = Entry { id, dispatch_id: None, at: None, more: false, event };
        fleet.apply(&Record { v: 1, seq, ts: at(1), entry });
        Standing::of(&play.run, Some(&fleet), false, at(500)).waiting_for[0].reason.clone()
    };
    let open = apply(1, Event::QuestionAsked(Box::new(asked)));
    assert!(open.ends_with("of the beads: muleteer answer q1 approve"), "{open}");
    let state = crate::question::State::Undeliverable;
    let reason = "E_GIT: no commit".into();
    let closed = apply(2, Event::QuestionState { question: "q1".into(), state, reason });
    assert!(closed.contains("its question is undeliverable: E_GIT: no commit"), "{closed}");
    assert!(closed.contains("muleteer run --resume") && !closed.contains("answer q1"), "{closed}");
}
