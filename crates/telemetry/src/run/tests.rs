//! The spans of a run that is stopped and resumed, and the trace contexts of its dispatches.

use crate::run::*;
use crate::shape::{self, tree};
use muleteer_model::event::Entry;
use muleteer_model::spec_run::event::{JudgeFinished, Planned, RunStatus, Verdict};
use std::collections::BTreeSet;

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const AGAIN: &str = "00-1bf7651916cd43dd8448eb211c80319c-c7ad6b7169203331-01";

fn started(trace: Option<&str>) -> Event {
    let samples = include_str!("../../../store/samples/events-v1.jsonl");
    let line =
        samples.lines().find(|line| line.contains(r#""event":"run_started""#)).expect("a sample");
    let record: Record = serde_json::from_str(line).expect("a record");
    let Event::RunStarted(mut started) = record.entry.event else { panic!("it is one") };
    started.trace = trace.map(str::to_string);
    Event::RunStarted(started)
}

fn resumed(trace: Option<&str>) -> Event {
    let Event::RunStarted(started) = started(None) else { panic!("it is one") };
    let settings = Box::new(started.settings);
    Event::RunResumed {
        run_id: started.run_id,
        settings,
        by: "operator".into(),
        trace: trace.map(str::to_string),
    }
}

fn records(events: Vec<Event>) -> Vec<Record> {
    let start: Timestamp = "2026-11-22T10:00:00Z".parse().expect("time");
    let record = |(at, event): (usize, Event)| Record {
        v: 1,
        seq: at as u64 + 1,
        ts: start + jiff::SignedDuration::from_secs(i64::try_from(at).expect("few")),
        entry: Entry { id: format!("e{at}"), dispatch_id: None, at: None, more: false, event },
    };
    events.into_iter().enumerate().map(record).collect()
}

fn planned(id: &str) -> Planned {
    serde_json::from_value(
        json!({"id": id, "title": id, "priority": 2, "created_at": "2026-02-12T00:00:00Z"}),
    )
    .expect("a bead")
}

fn assigned(bead: &str) -> Event {
    Event::BeadAssigned { bead_id: bead.into(), agent: 1, claim: "c".into() }
}

fn completed(bead: &str) -> Event {
    Event::BeadCompleted { bead_id: bead.into(), by: "agent".into(), no_change: false, commits: 1 }
}

/// Criteria; two beads, one of them with a retry; a judge with a finding; a stop in the second
/// iteration; a resume by another caller, to the end.
fn life() -> Vec<Record> {
    let judged = |verdict| {
        let judged = JudgeFinished {
            iteration: 1,
            verdict,
            new_beads: 1,
            reason: "prose of the judge".into(),
            result: None,
        };
        Event::JudgeFinished(Box::new(judged))
    };
    records(vec![
        started(Some(TRACE)),
        Event::BeadsCreated {
            count: 2,
            dependency_edges: 0,
            beads: vec![planned("b1"), planned("b2")],
        },
        Event::BeadsAccepted {},
        assigned("b1"),
        assigned("b2"),
        Event::BeadRetried {
            bead_id: "b1".into(),
            attempt: 1,
            reason: "prose of an agent".into(),
            reuse: false,
            counted: true,
            note: String::new(),
            kind: None,
        },
        completed("b2"),
        assigned("b1"),
        Event::BeadBlocked {
            bead_id: "b1".into(),
            reason: "prose of an agent".into(),
            dependants: vec![],
            kind: None,
        },
        judged(Verdict::Fail),
        Event::IterationStarted { iteration: 2, beads: vec![planned("b3")] },
        assigned("b3"),
        Event::RunStopping { code: String::new(), message: "stopped".into() },
        Event::RunRested {
            status: RunStatus::InProgress,
            reason: "stopped".into(),
            question: None,
        },
        resumed(Some(AGAIN)),
        assigned("b3"),
        completed("b3"),
        judged(Verdict::Pass),
        Event::RunCompleted { status: RunStatus::Completed, total_beads: 3 },
    ])
}

fn spans(records: &[Record]) -> Vec<Span> {
    let mut tracer = RunTracer::default();
    let spans = records.iter().flat_map(|record| tracer.apply(record)).collect();
    assert_eq!(tracer.open(), 0, "everything has ended");
    spans
}

#[test]
fn each_run_session_is_a_tree_below_its_caller() {
    let spans = spans(&life());
    assert_eq!(
        tree(&spans, TRACE),
        "\
run 13s
  iteration 10s ok +judged
    bead 5s blocked +retry
    bead 2s ok
  iteration 3s
    bead 2s
"
    );
    assert_eq!(
        tree(&spans, AGAIN),
        "\
run 4s ok
  iteration 4s ok +judged
    bead 1s ok
"
    );
    let ids: BTreeSet<_> = spans.iter().map(|span| span.id).collect();
    assert_eq!(ids.len(), spans.len(), "every span has an id of its own");
    let text = format!("{:?}", crate::otlp::spans(&spans));
    assert!(
        !text.contains("prose"),
        "what was said is nobody's business but the journal's: {text}"
    );
}

/// An agent receives the id of its parent span at its start, before that span ends.
#[test]
fn dispatch_span_has_its_future_parent() {
    let (life, mut run) = (life(), None::<Run>);
    let spans = spans(&life);
    for record in &life {
        match &mut run {
            Some(run) => run.apply(record),
            None => run = Run::begin(record),
        }
        let run = run.as_ref().expect("begun");
        let place = |bead: Option<&str>| run.context(bead).expect("it is traced");
        if let Event::BeadAssigned { bead_id, .. } = &record.entry.event {
            let place = place(Some(bead_id));
            let bead = spans.iter().find(|span| span.id == place.span).expect("a span");
            assert_eq!((bead.trace, bead.name.as_str()), (place.trace, "bead"));
            assert!(bead.start <= record.ts && record.ts <= bead.end, "{bead:?}");
        }
        let iteration = place(None).span;
        assert!(
            spans.iter().any(|span| span.id == iteration && span.name == "iteration"),
            "{record:?}"
        );
    }
}

#[test]
fn export_killed_anywhere_loses_and_repeats_no_span() {
    let tracer = || {
        let mut tracer = RunTracer::default();
        move |record: &Record| tracer.apply(record)
    };
    shape::export_killed_anywhere_loses_and_repeats_no_span(&life(), tracer);
}

#[test]
fn request_without_a_trace_continues_the_existing_one() {
    let mut life = life();
    life[14].entry.event = resumed(None);
    let traces: BTreeSet<_> = spans(&life).iter().map(|span| span.trace).collect();
    assert_eq!(traces.len(), 1);
    life[0].entry.event = started(None);
    assert_eq!(spans(&life), vec![], "an earlier version began it");
}
