//! The spans of a dispatch's life, also after a kill at any record.

use crate::metrics::{Meter, Sum};
use crate::otlp;
use crate::run::metrics::RunSums;
use crate::shape::{self, tree};
use crate::trace::dispatch::OPEN_TOOLS;
use crate::trace::span::EVENT_LIMIT;
use crate::trace::*;
use jiff::Timestamp;
use muleteer_model::agent::backend::Traits;
use muleteer_model::agent::event::TurnError;
use muleteer_model::event::trace_context::hex;
use muleteer_model::event::{Entry, ExitCause, FinalState, Limit, Outcome, PromptKind};
use muleteer_model::monitor::{Action, Monitor};
use muleteer_model::task_list::session::{Finished, Started};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const SENDER: &str = "00-1bf7651916cd43dd8448eb211c80319c-c7ad6b7169203331-01";

fn id() -> DispatchId {
    DispatchId::try_from("k3f9aaaa".to_string()).expect("id")
}

fn created(trace: Option<&str>) -> Event {
    // Parsed from JSON, so that new fields of a dispatch need no change here.
    let document = json!({
        "role": "developer", "category": "coding", "project": "/p", "feature": "f",
        "backend": "claude-code",
        "model": "sonnet", "journal": "/p/j.md", "by": "operator", "multi_turn": true,
        "resumable": true,
        "wants_result": true, "trace": trace, "fingerprint": "x",
        "limits": {"budget_usd": null, "max_turns": null, "timeout_s": null,
            "inactivity_timeout_s": 900, "max_restarts": 3},
    });
    Event::DispatchCreated(Box::new(serde_json::from_value(document).expect("a dispatch")))
}

fn records(events: Vec<Event>) -> Vec<Record> {
    let start: Timestamp = "2026-11-22T10:00:00Z".parse().expect("time");
    let record = |(at, event): (usize, Event)| {
        let seconds = i64::try_from(at).expect("few");
        Record {
            v: 1,
            seq: at as u64 + 1,
            ts: start + jiff::SignedDuration::from_secs(seconds),
            entry: Entry {
                id: format!("e{at}"),
                dispatch_id: Some(id()),
                at: None,
                more: false,
                event,
            },
        }
    };
    events.into_iter().enumerate().map(record).collect()
}

fn usage(input: u64) -> Event {
    Event::UsageRecorded {
        model: "sonnet".into(),
        input,
        output: 2,
        cache_read: 3,
        cache_write: 4,
        cost_usd: 0.5,
        cumulative: false,
        total_usd: None,
    }
}

fn exited() -> Event {
    Event::AgentExited {
        epoch: 1,
        code: None,
        signal: Some(9),
        cause: ExitCause::Exited,
        stderr_tail: String::new(),
        used_ms: 0,
        left: vec![],
    }
}

/// Two attempts: the first is killed during a tool call, the second succeeds. Then a further turn.
fn life() -> Vec<Record> {
    let tool = |call: &str| Event::ToolCalled {
        call_id: call.into(),
        tool: "Bash".into(),
        target: "ls".into(),
        parent: None,
    };
    let key = |key: &str| key.to_string();
    records(vec![
        created(Some(TRACE)),
        Event::PromptQueued {
            key: key("k1"),
            kind: PromptKind::Initial,
            by: "operator".into(),
            trace: None,
        },
        Event::AttemptStarted { attempt: 1, epoch: 1, resume: None },
        Event::AgentSpawned { pid: 10, shim_pid: 9, containment: "cgroup".into(), awake_ms: 0 },
        Event::SessionStarted { session_id: "s1".into(), model: Some("sonnet-5".into()) },
        Event::TurnStarted { turn: 1, key: key("k1") },
        tool("t1"),
        Event::ToolFailed { call_id: "t1".into(), text: "no".into() },
        usage(1),
        tool("t2"),
        exited(),
        Event::AttemptFinished {
            attempt: 1,
            outcome: Outcome::Failure,
            reason: "signal 9".into(),
            counted: true,
        },
        Event::RestartScheduled { until: Timestamp::UNIX_EPOCH, delay_ms: 250 },
        Event::AttemptStarted { attempt: 2, epoch: 2, resume: Some("s1".into()) },
        Event::AgentSpawned { pid: 12, shim_pid: 11, containment: "cgroup".into(), awake_ms: 0 },
        Event::TurnStarted { turn: 2, key: key("k2") },
        tool("t3"),
        Event::ToolFinished { call_id: "t3".into() },
        usage(10),
        Event::TurnFinished { turn: 2, ok: true, error: None, status: None, text: "done".into() },
        exited(),
        Event::AttemptFinished {
            attempt: 2,
            outcome: Outcome::Success,
            reason: String::new(),
            counted: false,
        },
        Event::DispatchFinished { state: FinalState::Success, reason: String::new(), result: None },
        Event::PromptQueued {
            key: key("k3"),
            kind: PromptKind::Send,
            by: "operator".into(),
            trace: Some(SENDER.into()),
        },
        Event::AttemptStarted { attempt: 3, epoch: 3, resume: Some("s1".into()) },
        Event::AgentSpawned { pid: 14, shim_pid: 13, containment: "cgroup".into(), awake_ms: 0 },
        Event::TurnStarted { turn: 3, key: key("k3") },
        Event::TurnFinished {
            turn: 3,
            ok: false,
            error: Some(TurnError::RateLimit),
            status: Some(429),
            text: String::new(),
        },
        exited(),
        Event::AttemptFinished {
            attempt: 3,
            outcome: Outcome::Failure,
            reason: "rate limit".into(),
            counted: true,
        },
        Event::DispatchFinished {
            state: FinalState::Failed,
            reason: "rate limit".into(),
            result: None,
        },
    ])
}

fn traits(backend: &str) -> Traits {
    let provider = (backend == "claude-code").then_some("anthropic");
    Traits { provider, ..Traits::default() }
}

fn spans(records: &[Record]) -> Vec<Span> {
    let mut tracer = Tracer::new(TraitsOf(traits));
    let spans = records.iter().flat_map(|record| tracer.apply(record)).collect();
    assert_eq!(tracer.open(), 0, "everything has ended");
    spans
}

#[test]
fn a_life_is_a_tree() {
    let spans = spans(&life());
    assert_eq!(
        tree(&spans, TRACE),
        "\
dispatch developer 22s ok +restart
  attempt 1 9s signal_9
    start agent 1s
    invoke_agent developer 5s signal_9
      execute_tool Bash 1s tool_error
      execute_tool Bash 1s
  attempt 2 8s ok
    start agent 1s
    invoke_agent developer 4s ok
      execute_tool Bash 1s
dispatch developer 7s rate_limit
  attempt 3 5s rate_limit
    start agent 1s
    invoke_agent developer 1s rate_limit
"
    );
    let trace: BTreeSet<_> = spans.iter().map(|span| hex(&span.trace)).collect();
    assert_eq!(trace.into_iter().collect::<Vec<_>>(), ["0af7651916cd43dd8448eb211c80319c"]);
    let ids: BTreeSet<_> = spans.iter().map(|span| span.id).collect();
    assert_eq!(ids.len(), spans.len(), "every span has an id of its own");
}

fn attribute<'a>(span: &'a Span, key: &str) -> &'a Value {
    span.attributes
        .iter()
        .find(|(known, _)| *known == key)
        .map_or(&Value::Null, |(_, value)| value)
}

#[test]
fn spans_carry_the_conventions_attributes() {
    let spans = spans(&life());
    let named = |name: &str| spans.iter().filter(|span| span.name == name).collect::<Vec<_>>();
    let turn = named("invoke_agent developer")[1];
    for (key, value) in [
        ("gen_ai.operation.name", json!("invoke_agent")),
        ("gen_ai.provider.name", json!("anthropic")),
        ("gen_ai.agent.name", json!("developer")),
        ("gen_ai.request.model", json!("sonnet-5")),
        ("gen_ai.conversation.id", json!("s1")),
        // Including tokens read from and written to a cache.
        ("gen_ai.usage.input_tokens", json!(10 + 3 + 4)),
    ] {
        assert_eq!(attribute(turn, key), &value, "{key}");
    }
    let failed = named("invoke_agent developer")[2];
    assert_eq!(
        (attribute(failed, "error.type"), attribute(failed, "http.response.status_code")),
        (&json!("rate_limit"), &json!(429))
    );
    let again = named("dispatch developer")[1];
    assert_eq!(again.links, [Context::parse(SENDER).expect("one")], "who spoke to it again");
    let dispatch = named("dispatch developer")[0];
    assert_eq!(
        attribute(dispatch, "gen_ai.usage.input_tokens"),
        &json!(11 + 2 * 7),
        "of both attempts"
    );
    assert_eq!(dispatch.events.iter().map(|event| event.name).collect::<Vec<_>>(), ["restart"]);
    let text = format!("{:?}", otlp::spans(&spans));
    assert!(
        !text.contains("ls\""),
        "what a tool was called with is nobody's business but the journal's"
    );
}

/// A failed span has a fixed word for the cause, and no quote of an agent.
#[test]
fn failed_span_has_a_reason_without_quoted_text() {
    let reason = || "exit code 1: token=sk-12345".to_string();
    let ended = |code: Option<i32>, signal: Option<i32>| Event::AgentExited {
        epoch: 1,
        code,
        signal,
        cause: ExitCause::Exited,
        stderr_tail: reason(),
        used_ms: 0,
        left: vec![],
    };
    let limit = Event::LimitReached { limit: Limit::Budget, detail: "1 USD".into() };
    let stall = Event::StallDetected { silent_s: 900, evidence: "no output".into() };
    let circle =
        Event::MonitorSpoke { monitor: Monitor::Loop, action: Action::Stop, reason: reason() };
    let kill = Event::KillRequested { reason: reason(), by: "operator".into() };
    let (failure, timeout) = (Outcome::Failure, Outcome::Timeout);
    for (before, exit, outcome, state, [turn, attempt, dispatch]) in [
        (None, ended(Some(3), None), failure, FinalState::Failed, ["exit_3", "exit_3", "exit_3"]),
        (
            None,
            ended(None, Some(15)),
            timeout,
            FinalState::Failed,
            ["signal_15", "timeout", "timeout"],
        ),
        (Some(limit), ended(Some(0), None), failure, FinalState::Failed, ["", "budget", "budget"]),
        (
            Some(stall),
            ended(None, Some(9)),
            failure,
            FinalState::Stalled,
            ["stalled", "stalled", "stalled"],
        ),
        (
            Some(circle),
            ended(None, Some(15)),
            failure,
            FinalState::Stalled,
            ["loop", "loop", "stalled"],
        ),
        (
            Some(kill),
            ended(None, Some(9)),
            failure,
            FinalState::Killed,
            ["killed", "killed", "killed"],
        ),
        (None, ended(Some(0), None), failure, FinalState::Blocked, ["", "_OTHER", "blocked"]),
    ] {
        let mut events = vec![
            created(Some(TRACE)),
            Event::AttemptStarted { attempt: 1, epoch: 1, resume: None },
            Event::TurnStarted { turn: 1, key: "k".into() },
        ];
        events.extend(before);
        events.push(exit);
        events.push(Event::AttemptFinished {
            attempt: 1,
            outcome,
            reason: reason(),
            counted: true,
        });
        events.push(Event::DispatchFinished { state, reason: reason(), result: None });
        let spans = spans(&records(events));
        for (name, wanted) in [
            ("invoke_agent developer", turn),
            ("attempt 1", attempt),
            ("dispatch developer", dispatch),
        ] {
            let span = spans.iter().find(|span| span.name == name).expect("a span");
            let told = attribute(span, "error.type").as_str().unwrap_or_default();
            assert_eq!(told, wanted, "{name} of one that is {state:?}");
            assert_eq!(
                matches!(&span.status, Status::Error(kind) if kind == told),
                !told.is_empty(),
                "{span:?}"
            );
        }
        let text = format!("{:?}", otlp::spans(&spans));
        assert!(!text.contains("sk-12345"), "{text}");
    }
}

#[test]
fn subagent_calls_are_children_of_their_call_and_late_session_joins_the_turn() {
    let tool = |call: &str, parent: Option<&str>| Event::ToolCalled {
        call_id: call.into(),
        tool: call.into(),
        target: String::new(),
        parent: parent.map(str::to_string),
    };
    let spans = spans(&records(vec![
        created(Some(TRACE)),
        Event::AttemptStarted { attempt: 1, epoch: 1, resume: None },
        Event::TurnStarted { turn: 1, key: "k".into() },
        Event::SessionStarted { session_id: "late".into(), model: Some("m".into()) },
        tool("Task", None),
        tool("Read", Some("Task")),
        Event::ToolFinished { call_id: "Read".into() },
        Event::ToolFinished { call_id: "Task".into() },
        tool("Edit", Some("gone")),
        Event::DispatchFinished { state: FinalState::Success, reason: String::new(), result: None },
    ]));
    let named = |name: &str| spans.iter().find(|span| span.name == name).expect("a span");
    let turn = named("invoke_agent developer");
    assert_eq!(named("execute_tool Read").parent, Some(named("execute_tool Task").id));
    assert_eq!(named("execute_tool Task").parent, Some(turn.id));
    assert_eq!(
        named("execute_tool Edit").parent,
        Some(turn.id),
        "a caller that is gone has no children"
    );
    assert_eq!(attribute(turn, "gen_ai.conversation.id"), &json!("late"));
    let models: Vec<_> =
        turn.attributes.iter().filter(|(key, _)| *key == "gen_ai.request.model").collect();
    assert_eq!(models, [&("gen_ai.request.model", json!("m"))]);
}

#[test]
fn dispatch_without_a_session_has_no_conversation_id() {
    let spans = spans(&records(vec![
        created(Some(TRACE)),
        Event::AttemptStarted { attempt: 1, epoch: 1, resume: None },
        Event::TurnStarted { turn: 1, key: "k".into() },
        Event::SessionStarted { session_id: String::new(), model: Some("m".into()) },
        Event::DispatchFinished { state: FinalState::Success, reason: String::new(), result: None },
    ]));
    let turn = spans.iter().find(|span| span.name == "invoke_agent developer").expect("a turn");
    assert_eq!(attribute(turn, "gen_ai.request.model"), &json!("m"));
    assert!(
        spans
            .iter()
            .flat_map(|span| &span.attributes)
            .all(|(key, _)| *key != "gen_ai.conversation.id")
    );
}

#[test]
fn task_list_run_is_the_parent_of_its_tasks() {
    let of_list = |mut records: Vec<Record>| {
        records.iter_mut().for_each(|record| record.entry.dispatch_id = None);
        records
    };
    let started = Started {
        list: "l1".into(),
        root: "/p".into(),
        concurrency: 1,
        max_tasks: None,
        branch: None,
        role: "developer".into(),
        backend: None,
        by: "operator".into(),
        trace: Some(TRACE.into()),
    };
    let begun = |task: &str, dispatch: &str| Event::TaskBegun {
        list: "l1".into(),
        worker: 1,
        task: task.into(),
        dispatch: DispatchId::try_from(dispatch.to_string()).expect("id"),
        base: "b".into(),
        resumed: false,
    };
    let ended = |task: &str, status: &str| Event::TaskEnded {
        list: "l1".into(),
        worker: 1,
        task: task.into(),
        status: status.into(),
        message: "prose".into(),
        counted: true,
    };
    let finished = Finished { status: "failed".into(), reason: "prose".into(), code: None };
    let spans = spans(&of_list(records(vec![
        Event::TaskListStarted(Box::new(started.clone())),
        begun("t1", "d1aaaaaa"),
        // The next daemon repeats the event of the same task.
        begun("t1", "d1aaaaaa"),
        ended("t1", "completed"),
        begun("t2", "d2aaaaaa"),
        ended("t2", "failed"),
        Event::TaskListFinished { list: "l1".into(), finished, stats: String::new() },
    ])));
    assert_eq!(
        tree(&spans, TRACE),
        "\
task list 6s failed
  task 2s ok
  task 1s failed
"
    );
    // The trace context that the first task's dispatch receives.
    let mut fleet = muleteer_model::dispatch::fleet::Fleet::default();
    of_list(records(vec![Event::TaskListStarted(Box::new(started))]))
        .iter()
        .for_each(|record| fleet.apply(record));
    let run = fleet.task_lists.get("l1").expect("a run");
    let place =
        run.place_of(&DispatchId::try_from("d1aaaaaa".to_string()).expect("id")).expect("traced");
    assert_eq!(Context::parse(&place).expect("one").span, spans[0].id);
}

#[test]
fn export_killed_anywhere_loses_and_repeats_no_span() {
    let tracer = || {
        let mut tracer = Tracer::default();
        move |record: &Record| tracer.apply(record)
    };
    shape::export_killed_anywhere_loses_and_repeats_no_span(&life(), tracer);
}

#[test]
fn no_context_no_spans_and_one_that_is_not_sampled_neither() {
    for trace in
        [None, Some("nonsense"), Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")]
    {
        let mut life = life();
        life[0].entry.event = created(trace);
        assert_eq!(spans(&life), vec![], "{trace:?}");
    }
}

#[test]
fn untraced_dispatch_is_a_root_span() {
    let own = Context::parse(TRACE)
        .expect("context")
        .below(muleteer_model::event::trace_ids::dispatch(&id(), 0));
    let mut life = life();
    life[0].entry.event = created(Some(&own.to_string()));
    let spans = spans(&life);
    let roots: Vec<_> = spans.iter().filter(|span| span.parent.is_none()).collect();
    assert_eq!(roots.len(), 1);
    assert_eq!(roots[0].id, own.span);
}

#[test]
fn a_flood_of_events_and_tools_is_bounded() {
    let mut events =
        vec![created(Some(TRACE)), Event::AttemptStarted { attempt: 1, epoch: 1, resume: None }];
    events.push(Event::TurnStarted { turn: 1, key: "k".into() });
    for n in 0..1000 {
        events.push(Event::KillRequested { reason: String::new(), by: "x".into() });
        events.push(Event::ToolCalled {
            call_id: format!("t{n}"),
            tool: format!("T{n}"),
            target: String::new(),
            parent: None,
        });
    }
    let records = records(events);
    let (mut tracer, mut meter) = (Tracer::default(), Meter::default());
    for record in &records {
        assert_eq!(tracer.apply(record), vec![]);
        meter.apply(record);
    }
    assert!(tracer.open() <= OPEN_TOOLS + 4, "{}", tracer.open());
    let dispatch = tracer.dispatches[&id()].dispatch.as_ref().expect("open");
    assert_eq!((dispatch.events.len(), dispatch.dropped_events), (EVENT_LIMIT, 1000 - 128));
    assert!(meter.of(Sum::ToolCalls).count() <= 201);
    assert!((meter.of(Sum::ToolCalls).map(|(_, value)| value).sum::<f64>() - 1000.0).abs() < 0.5);
}

#[test]
fn figures_are_folded_too() {
    let mut meter = Meter::default();
    let life = life();
    meter.apply(&life[0]);
    assert_eq!((meter.queue(), meter.active()), (1, 0));
    for record in &life[1..3] {
        meter.apply(record);
    }
    assert_eq!((meter.queue(), meter.active()), (0, 1));
    for record in &life[3..] {
        meter.apply(record);
    }
    assert_eq!((meter.queue(), meter.active()), (0, 0));
    let sum = |of: Sum| meter.of(of).map(|(_, value)| value).sum::<f64>();
    for (of, wanted) in [
        (Sum::Dispatches, 2.0),
        (Sum::Restarts, 1.0),
        (Sum::Turns, 3.0),
        (Sum::ToolCalls, 3.0),
        (Sum::Tokens, 11.0 + 4.0 + 6.0 + 8.0),
        (Sum::Cost, 1.0),
    ] {
        assert!((sum(of) - wanted).abs() < 1e-9, "{of:?}: {}", sum(of));
    }
    let body = otlp::metrics(
        &[("service.name".into(), "m".into())],
        "1",
        (&meter, &RunSums::default()),
        7,
        Timestamp::UNIX_EPOCH,
    );
    let body = serde_json::to_value(&body).expect("JSON");
    let metrics = body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
        .as_array()
        .expect("metrics")
        .clone();
    let find = |name: &str| {
        metrics
            .iter()
            .find(|metric| metric["name"] == name)
            .unwrap_or_else(|| panic!("no {name}"))
    };
    assert_eq!(find("muleteer.telemetry.dropped_spans")["sum"]["dataPoints"][0]["asDouble"], 7.0);
    assert_eq!(
        find("muleteer.stalls")["sum"]["dataPoints"][0]["asDouble"],
        0.0,
        "who waits for the first must see none"
    );
    assert_eq!(find("muleteer.queue")["gauge"]["dataPoints"][0]["asInt"], "0");
}

/// The JSON that the protocol requires: hexadecimal ids, and 64-bit numbers as strings.
#[test]
fn otlp_json_document() {
    let spans = spans(&life());
    let resource = otlp::resource(&[("service.name".into(), "muleteer".into())]);
    let body = ExportTraceServiceRequest {
        resource_spans: group_spans_by_resource_and_scope(otlp::spans(&spans), &(&resource).into()),
    };
    let body = serde_json::to_value(&body).expect("JSON");
    let resource = &body["resourceSpans"][0];
    assert_eq!(
        resource["resource"]["attributes"][0],
        json!({"key": "service.name", "value": {"stringValue": "muleteer"}})
    );
    let all = resource["scopeSpans"][0]["spans"].as_array().expect("spans");
    assert_eq!(all.len(), spans.len());
    let start = all.iter().find(|span| span["name"] == "start agent").expect("start");
    assert_eq!(start["traceId"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(start["spanId"].as_str().map(str::len), Some(16));
    assert_eq!((&start["kind"], &start["droppedEventsCount"]), (&json!(1), &json!(0)));
    let links: Vec<_> =
        all.iter().flat_map(|span| span["links"].as_array().expect("list")).collect();
    assert_eq!(links.len(), 1, "one span has a later sender");
    assert_eq!(links[0]["traceId"], "1bf7651916cd43dd8448eb211c80319c");
    assert_eq!(links[0]["spanId"], "c7ad6b7169203331");
    let root = all.iter().find(|span| span["parentSpanId"] == "");
    assert!(root.is_none(), "all are below the caller");
    assert_eq!(start["startTimeUnixNano"], "1795341602000000000");
    assert!(
        start["attributes"]
            .as_array()
            .expect("list")
            .contains(&json!({"key": "process.pid", "value": {"intValue": "10"}}))
    );
}
