//! One trace from the command line to the tool, whichever process is killed, and whatever happens
//! to the collector.

#![allow(clippy::unwrap_used)]

use muleteer_tests::collector::{Absent, Collector, Span};
use muleteer_tests::model_server::{ModelServer, Step};
use muleteer_tests::rotel::Rotel;
use muleteer_tests::spec_stage::{AGENT, SpecStage, last};
use muleteer_tests::{Daemon, PATIENCE, Repo, World, claude, codex, wait_until};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// A short interval, so that a test need not wait a minute for metrics.
const SOON: (&str, &str) = ("OTEL_METRIC_EXPORT_INTERVAL", "200");

const SCENARIO: &str = "\
v: 1
model: actor
turns:
  - steps:
      - tool_call: {name: Read, input: {file_path: a}, ok: true, text: body}
      - usage: {input: 1200, output: 90, cost_usd: 0.25}
      - result: {status: success, summary: done}
";

fn rehearse(world: &World, repo: &Repo, scenario: &str, variables: &[(&str, &str)]) -> String {
    let file = world.path().join("scenario.yaml");
    std::fs::write(&file, scenario).unwrap();
    let args = ["spawn", "developer", repo.to_str(), "do it", "--scenario", file.to_str().unwrap()];
    let muleteer = variables
        .iter()
        .fold(world.muleteer(&args), |muleteer, (name, value)| muleteer.env(name, value));
    muleteer.ok()
}

fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    spans.iter().filter(|span| span.name() == name).collect()
}

/// Waits until the dispatch has ended and its span has arrived. Returns all spans so far.
fn spans_of(collector: &Collector, dispatch: &str) -> Vec<Span> {
    wait_until("the dispatch's span", PATIENCE, || {
        let spans = collector.spans();
        let arrived = |span: &Span| {
            span.name().starts_with("dispatch")
                && span.attribute("muleteer.dispatch.id").as_deref() == Some(dispatch)
        };
        spans.iter().any(arrived).then_some(spans)
    })
}

#[test]
fn one_trace_from_the_command_to_the_tool() {
    let world = World::new();
    let repo = world.repo("project");
    let collector = Collector::start();
    let endpoint = collector.url();
    let daemon = world.daemon_with(&[(ENDPOINT, &endpoint), SOON]);
    let id = rehearse(&world, &repo, SCENARIO, &[(ENDPOINT, &endpoint)]);
    world.muleteer(&["wait", &id]).ok();
    let spans = spans_of(&collector, &id);

    // The chain from the tool up to the command.
    let chain = [
        "execute_tool Read",
        "invoke_agent developer",
        "attempt 1",
        "dispatch developer",
        "muleteer spawn",
    ];
    for pair in chain.windows(2) {
        let (child, parent) = (named(&spans, pair[0]), named(&spans, pair[1]));
        assert_eq!((child.len(), parent.len()), (1, 1), "{pair:?}: {spans:#?}");
        assert_eq!(child[0].parent(), parent[0].id(), "{pair:?}");
    }
    assert_eq!(named(&spans, "muleteer spawn")[0].parent(), "");
    assert_eq!(named(&spans, "start agent")[0].parent(), named(&spans, "attempt 1")[0].id());
    let traces: BTreeSet<_> = spans.iter().map(Span::trace).collect();
    assert_eq!(traces.len(), 1, "{traces:?}");
    let turn = named(&spans, "invoke_agent developer")[0];
    assert_eq!(turn.attribute("gen_ai.operation.name").as_deref(), Some("invoke_agent"));
    assert_eq!(turn.attribute("gen_ai.usage.input_tokens").as_deref(), Some("1200"));
    assert_eq!(turn.service, "muleteer");

    let metrics = wait_until("figures of the ended dispatch", PATIENCE, || {
        let metrics = collector.metrics();
        metrics.iter().any(|metric| metric["name"] == "muleteer.dispatches").then_some(metrics)
    });
    let names: BTreeSet<_> = metrics.iter().filter_map(|metric| metric["name"].as_str()).collect();
    for name in
        ["muleteer.tokens", "muleteer.cost", "muleteer.queue", "muleteer.agents", "muleteer.turns"]
    {
        assert!(names.contains(name), "no {name} in {names:?}");
    }
    world.finish(Some(daemon));
}

#[test]
fn agent_gets_its_trace_context() {
    let world = World::new();
    let repo = world.repo("project");
    let collector = Collector::start();
    let daemon = world.daemon_with(&[(ENDPOINT, &collector.url())]);
    // The command itself is not traced, but its caller is.
    let caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let script = "printf %s \"$TRACEPARENT\" > place; printf %s \"$TRACESTATE\" > state";
    let id = world
        .spawn(&repo, script, &["--wait"])
        .env("TRACEPARENT", caller)
        .env("TRACESTATE", "a=b")
        .ok();
    assert_eq!(repo.read("state"), "a=b");
    let spans = spans_of(&collector, &id);
    let attempt = named(&spans, "attempt 1")[0];
    let told = std::fs::read_to_string(std::path::Path::new(repo.to_str()).join("place")).unwrap();
    assert_eq!(told, format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", attempt.id()));
    assert_eq!(named(&spans, "dispatch developer")[0].parent(), "b7ad6b7169203331");

    // Nothing traces this dispatch's caller, so its own span is the root.
    let alone = world.spawn(&repo, "true", &["--wait"]).ok();
    let spans = spans_of(&collector, &alone);
    let is_its =
        |span: &&Span| span.attribute("muleteer.dispatch.id").as_deref() == Some(alone.as_str());
    assert_eq!(spans.iter().find(is_its).unwrap().parent(), "");
    world.finish(Some(daemon));
}

#[test]
fn spans_continue_across_a_killed_daemon() {
    let world = World::new();
    let repo = world.repo("project");
    let collector = Collector::start();
    let endpoint = collector.url();
    let mut daemon = world.daemon_with(&[(ENDPOINT, &endpoint)]);
    let id = world.spawn(&repo, "until test -e go; do sleep 0.05; done", &[]).ok();
    wait_until("the agent to run", PATIENCE, || {
        (world.dispatch(&id)["state"] == "running").then_some(())
    });
    wait_until("its first span", PATIENCE, || {
        (!named(&collector.spans(), "start agent").is_empty()).then_some(())
    });
    daemon.kill_9();
    let daemon = world.daemon_with(&[(ENDPOINT, &endpoint)]);
    wait_until("its adoption", PATIENCE, || {
        (!world.events_of(&id, "agent_adopted").is_empty()).then_some(())
    });
    std::fs::write(std::path::Path::new(repo.to_str()).join("go"), "").unwrap();
    world.muleteer(&["wait", &id]).ok();
    let spans = spans_of(&collector, &id);
    let dispatch = named(&spans, "dispatch developer")[0];
    let events: Vec<_> =
        dispatch.json["events"].as_array().unwrap().iter().map(|event| &event["name"]).collect();
    assert_eq!(events, ["adopted"], "the successor knows what the first one saw");
    // A span may be sent twice, but its receiver sees one.
    let ids: BTreeSet<_> = spans.iter().map(Span::id).collect();
    assert_eq!(ids.len(), 4, "dispatch, attempt, start and turn: {spans:#?}");
    let start =
        |span: &Span| span.json["startTimeUnixNano"].as_str().unwrap().parse::<u128>().unwrap();
    assert!(start(dispatch) <= start(named(&spans, "start agent")[0]));
    world.finish(Some(daemon));
}

#[test]
fn unreachable_collector_delays_nothing_and_gets_spans_later() {
    let world = World::new();
    let repo = world.repo("project");
    let absent = Absent::on_loopback();
    let endpoint = absent.url();
    let daemon = world.daemon_with(&[(ENDPOINT, &endpoint)]);
    let script = "echo working";
    // The command is traced too, by a collector that does not exist.
    let id = world.spawn(&repo, script, &["--wait"]).env(ENDPOINT, &endpoint).ok();
    assert_eq!(world.dispatch(&id)["state"], "success");
    wait_until("its absence to be noted", PATIENCE, || {
        let events = std::fs::read_to_string(world.state().join("events.jsonl")).unwrap();
        events.contains("\"what\":\"telemetry\"").then_some(())
    });
    let collector = absent.comes();
    let spans = spans_of(&collector, &id);
    assert_eq!(named(&spans, "attempt 1").len(), 1);
    world.finish(Some(daemon));
}

/// A collector that refuses metrics may be repaired while the daemon lives. Metrics are sums, so
/// none is lost.
#[test]
fn metrics_that_were_refused_are_offered_again() {
    let world = World::new();
    let repo = world.repo("project");
    let collector = Collector::start();
    collector.refuse_metrics(2);
    let daemon = world.daemon_with(&[(ENDPOINT, &collector.url()), SOON]);
    let id = world.spawn(&repo, "echo working", &["--wait"]).ok();
    assert_eq!(world.dispatch(&id)["state"], "success");
    let named = |metric: &serde_json::Value| metric["name"] == "muleteer.dispatches";
    wait_until("the metrics to be taken", PATIENCE, || {
        collector.metrics().iter().any(named).then_some(())
    });
    assert_eq!(collector.refusing(), 0);
    let events = std::fs::read_to_string(world.state().join("events.jsonl")).unwrap();
    assert_eq!(
        events.matches("\"what\":\"telemetry\"").count(),
        1,
        "told once for each time, not for each post"
    );
    world.finish(Some(daemon));
}

/// Spans do not wait for metrics, whatever happens to those.
#[test]
fn slow_metrics_do_not_delay_spans() {
    let world = World::new();
    let repo = world.repo("project");
    let collector = Collector::start();
    collector.put_metrics_off(u32::MAX);
    let daemon = world.daemon_with(&[(ENDPOINT, &collector.url()), SOON]);
    world.spawn(&repo, "echo working", &["--wait"]).ok();
    wait_until("metrics to be put off", PATIENCE, || {
        (collector.refusing() < u32::MAX).then_some(())
    });
    let told = || {
        std::fs::read_to_string(world.state().join("events.jsonl"))
            .unwrap()
            .contains("\"what\":\"telemetry\"")
    };
    wait_until("that to be told", PATIENCE, || told().then_some(()));
    world.spawn(&repo, "echo working", &["--wait"]).ok();
    wait_until("all spans", PATIENCE, || {
        (named(&collector.spans(), "dispatch developer").len() == 2).then_some(())
    });
    let events = std::fs::read_to_string(world.state().join("events.jsonl")).unwrap();
    assert_eq!(events.matches("\"what\":\"telemetry\"").count(), 1, "told once");
    assert!(!events.contains("spans stay in the event log"), "they do not");
    world.finish(Some(daemon));
}

#[test]
fn real_collector_accepts_spans() {
    let world = World::new();
    let Some(rotel) = Rotel::start("real_collector_accepts_spans", world.path()) else { return };
    wait_until("rotel", PATIENCE, || rotel.answers().then_some(()));
    let repo = world.repo("project");
    let endpoint = rotel.url();
    let daemon = world.daemon_with(&[(ENDPOINT, &endpoint), SOON]);
    let id = rehearse(&world, &repo, SCENARIO, &[(ENDPOINT, &endpoint)]);
    world.muleteer(&["wait", &id]).ok();
    let output = wait_until("rotel to print the dispatch", PATIENCE, || {
        let output = rotel.output();
        output.contains("dispatch developer").then_some(output)
    });
    for name in ["muleteer spawn", "attempt 1", "invoke_agent developer", "execute_tool Read"] {
        assert!(output.contains(name), "no {name} in\n{output}");
    }
    assert!(output.contains("gen_ai.usage.input_tokens: Int(1200)"), "{output}");
    drop(rotel);
    world.finish(Some(daemon));
}

/// Returns the spans of the dispatch's trace that are not ours.
fn joined(collector: &Collector, dispatch: &str) -> Vec<Span> {
    let trace = spans_of(collector, dispatch)[0].trace().to_string();
    wait_until("the agent's own spans", PATIENCE, || {
        let spans = collector.spans();
        let theirs: Vec<_> = spans
            .into_iter()
            .filter(|span| span.trace() == trace && span.service != "muleteer")
            .collect();
        (!theirs.is_empty()).then_some(theirs)
    })
}

#[test]
fn claude_spans_join_the_trace() {
    let Some(binary) = claude::binary("claude_spans_join_the_trace") else { return };
    let world = World::new();
    claude::link(&world, &binary);
    let repo = world.repo("repo");
    let server = ModelServer::start([Step::bash("echo hello"), Step::success("done")]);
    let collector = Collector::start();
    let daemon = world.daemon_with(&[(ENDPOINT, &collector.url())]);
    let options = claude::env_options(&server);
    let mut args = vec![
        "spawn",
        "developer",
        repo.to_str(),
        "Say hello",
        "--backend",
        "claude-code",
        "--wait",
    ];
    args.extend(options.iter().map(String::as_str));
    let id = world.muleteer(&args).deadline(Duration::from_secs(120)).ok();
    let theirs = joined(&collector, &id);
    let spans = collector.spans();
    let attempt = named(&spans, "attempt 1")[0].id();
    assert!(theirs.iter().any(|span| span.parent() == attempt), "{theirs:#?}");
    world.finish(Some(daemon));
}

#[test]
fn codex_spans_join_the_trace() {
    let Some(binary) = codex::binary("codex_spans_join_the_trace") else { return };
    let world = World::new();
    let server = ModelServer::start([Step::bash("echo hello"), Step::success("done")]);
    codex::install(&world, &binary, &server);
    let repo = world.repo("repo");
    let collector = Collector::start();
    let daemon = world.daemon_with(&[(ENDPOINT, &collector.url())]);
    let options = codex::env_options(&world);
    let mut args = vec![
        "spawn",
        "developer",
        repo.to_str(),
        "Say hello",
        "--backend",
        "codex",
        "--model",
        "gpt-5.5",
    ];
    args.extend(options.iter().map(String::as_str));
    args.push("--wait");
    let id = world.muleteer(&args).deadline(Duration::from_secs(120)).ok();
    let theirs = joined(&collector, &id);
    let spans = collector.spans();
    let attempt = named(&spans, "attempt 1")[0].id();
    assert!(theirs.iter().any(|span| span.parent() == attempt), "{theirs:#?}");
    world.finish(Some(daemon));
}

/// Counts the spans of a trace by the names of parent and span. A missing parent is an error.
fn shape(spans: &[Span], trace: &str) -> BTreeMap<(String, String), usize> {
    let own: Vec<_> = spans.iter().filter(|span| span.trace() == trace).collect();
    let by_id: BTreeMap<_, _> = own.iter().map(|span| (span.id(), span.name())).collect();
    let mut shape = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for span in own.iter().filter(|span| seen.insert(span.id())) {
        let parent = match span.parent() {
            "" => "",
            parent => by_id
                .get(parent)
                .unwrap_or_else(|| panic!("the parent of {} is not there", span.name())),
        };
        *shape.entry((parent.to_string(), span.name().to_string())).or_default() += 1;
    }
    shape
}

/// Returns an agent that records the parent for its own spans.
fn telling() -> String {
    AGENT.replacen(
        "set -e",
        "set -e\necho \"$MULETEER_PURPOSE $TRACEPARENT\" >> \"$HOME/out/places\"",
        1,
    )
}

#[test]
fn a_run_is_one_trace_from_the_command_to_its_agents() {
    let stage = SpecStage::new(&telling());
    stage.configure("run: {phases: {maintain: {n: 2}}}\n");
    let collector = Collector::start();
    let endpoint = collector.url();
    let daemon = stage.world.daemon_with(&[(ENDPOINT, &endpoint)]);
    let caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    stage
        .begin(&["--json"])
        .env(ENDPOINT, &endpoint)
        .env("TRACEPARENT", caller)
        .run()
        .expect_code(0);
    let arrived = |name: &str| collector.spans().iter().any(|span| span.name() == name);
    wait_until("the run's span", PATIENCE, || {
        (arrived("run") && arrived("muleteer run")).then_some(())
    });
    let mut spans = collector.spans();
    let command = spans.iter_mut().find(|span| span.name() == "muleteer run").unwrap();
    assert_eq!(command.parent(), "b7ad6b7169203331", "who called is above the command");
    command.json["parentSpanId"] = "".into();
    let shape = shape(&spans, "0af7651916cd43dd8448eb211c80319c");
    let count = |parent: &str, name: &str| {
        shape.get(&(parent.to_string(), name.to_string())).copied().unwrap_or(0)
    };
    assert_eq!(
        [count("", "muleteer run"), count("muleteer run", "run"), count("run", "iteration")],
        [1, 1, 2]
    );
    assert_eq!(
        (count("iteration", "bead"), count("bead", "dispatch developer")),
        (4, 4),
        "{shape:#?}"
    );
    assert!(count("maintenance", "dispatch developer") >= 1, "{shape:#?}");
    // The agents that wrote the criteria and the plan, and the judge, which has two passes each
    // time.
    assert_eq!(count("iteration", "dispatch developer"), 2, "{shape:#?}");
    assert_eq!(count("iteration", "dispatch reviewer"), 4, "{shape:#?}");

    let places = std::fs::read_to_string(stage.world.home().join("out/places")).unwrap();
    let attempts: BTreeSet<_> =
        spans.iter().filter(|span| span.name().starts_with("attempt")).map(Span::id).collect();
    let mut purposes = BTreeSet::new();
    for line in places.lines() {
        let (purpose, place) = line.split_once(' ').unwrap();
        let span = place.split('-').nth(2).unwrap_or_else(|| panic!("{line}: no place in a trace"));
        assert!(attempts.contains(span), "{line}: it is no attempt's");
        purposes.insert(purpose);
    }
    let all = ["acceptance", "decompose", "implement", "judge", "maintain", "structure"];
    assert_eq!(purposes, BTreeSet::from(all));
    stage.world.finish(Some(daemon));
}

/// A collector that accepts a post and does not answer. While it holds the post, the export reads
/// nothing.
struct Silent {
    listener: TcpListener,
    held: TcpStream,
}

impl Silent {
    /// Starts a daemon that has sent its first post, so that the export does not see the begin and
    /// end of a run.
    fn daemon(stage: &SpecStage) -> (Daemon, Self) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let daemon = stage
            .world
            .daemon_with(&[(ENDPOINT, &endpoint), ("OTEL_EXPORTER_OTLP_TIMEOUT", "60000")]);
        let (held, _) = listener.accept().unwrap();
        (daemon, Self { listener, held })
    }

    /// Drops the held post, and starts a real collector in its place.
    fn give_way(self) -> Collector {
        drop(self.held);
        Collector::on(self.listener)
    }
}

fn run_of_three_beads(collector: &Collector) {
    let run = wait_until("the run's span", PATIENCE, || {
        collector.spans().into_iter().find(|span| span.name() == "run")
    });
    assert_eq!((run.parent(), run.attribute("muleteer.state").as_deref()), ("", Some("completed")));
    let shape = shape(&collector.spans(), run.trace());
    assert_eq!(shape.get(&("iteration".to_string(), "bead".to_string())), Some(&3), "{shape:#?}");
}

const THREE_BEADS: &str =
    "run: {acceptance: {generate: false}, phases: {judge: {enabled: false}}}\n";

/// The run has ended, and no collector has its spans, when the daemon is killed.
#[test]
fn next_daemon_exports_spans_of_a_run_that_ended_before() {
    let stage = SpecStage::new(AGENT);
    stage.configure(THREE_BEADS);
    let (mut daemon, silent) = Silent::daemon(&stage);
    stage.begin(&["--json"]).run().expect_code(0);
    daemon.kill_9();
    let collector = silent.give_way();
    let daemon = stage.world.daemon_with(&[(ENDPOINT, &collector.url())]);
    run_of_three_beads(&collector);
    stage.world.finish(Some(daemon));
}

#[test]
fn run_finished_before_the_export_is_exported() {
    let stage = SpecStage::new(AGENT);
    stage.configure(THREE_BEADS);
    let (daemon, silent) = Silent::daemon(&stage);
    stage.begin(&["--json"]).run().expect_code(0);
    run_of_three_beads(&silent.give_way());
    stage.world.finish(Some(daemon));
}

/// The fault is recorded once, however often the export retries and whichever daemon retries.
#[test]
fn unreadable_run_log_is_reported_once() {
    let stage = SpecStage::new(AGENT);
    stage.configure(THREE_BEADS);
    let (mut daemon, silent) = Silent::daemon(&stage);
    let output = stage.begin(&["--json"]).run().expect_code(0);
    let run_id = last(&output.stdout)["run_id"].as_str().unwrap().to_string();
    daemon.kill_9();
    let log = stage.repo.path.join(".muleteer/runs").join(&run_id).join("events.jsonl");
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::write(&log, text.replacen("\"seq\":3,", "\"seq\":4,", 1)).unwrap();
    let endpoint = format!("http://{}", silent.listener.local_addr().unwrap());
    drop(silent.held);
    let mut daemon = stage.world.daemon_with(&[(ENDPOINT, &endpoint)]);
    for _ in 0..3 {
        drop(silent.listener.accept().unwrap());
    }
    let told = || {
        let events = std::fs::read_to_string(stage.world.state().join("events.jsonl")).unwrap();
        events.matches(&format!("telemetry of {run_id}")).count()
    };
    assert_eq!(told(), 1);
    daemon.kill_9();
    let collector = Collector::on(silent.listener);
    let mark = stage.world.state().join("runs").join(&run_id).join("telemetry.json");
    // The collector has none of the earlier spans, so the export reads that log once more, and then
    // never again.
    for _ in 0..2 {
        let mut daemon = stage.world.daemon_with(&[(ENDPOINT, &collector.url())]);
        let id = stage.world.spawn(&stage.repo, "true", &["--wait"]).ok();
        spans_of(&collector, &id);
        // A daemon that dies before it has marked the log as done reads it again, as it should.
        wait_until("the run's log to be marked as done", PATIENCE, || {
            let mark = std::fs::read_to_string(&mark).unwrap_or_default();
            mark.contains("\"done\":true").then_some(())
        });
        daemon.kill_9();
    }
    assert_eq!(told(), 2);
}

#[test]
fn tasks_of_a_list_are_one_trace_below_the_command() {
    let scene = muleteer_tests::task_list::Scene::new();
    let collector = Collector::start();
    let endpoint = collector.url();
    let daemon = scene.world.daemon_with(&[(ENDPOINT, &endpoint)]);
    scene.add("one", "test -f one", &[]);
    scene.add("two", "test -f two", &[]);
    let args = ["tasks", "run", "--backend", "subprocess", "--command", "touch one two"];
    let run = scene
        .world
        .muleteer(&args)
        .current_dir(&scene.repo.path)
        .deadline(muleteer_tests::task_list::RUN);
    run.env(ENDPOINT, &endpoint).run().expect_code(0);
    let list = wait_until("the list's span", PATIENCE, || {
        let spans = collector.spans();
        let arrived = |name: &str| spans.iter().find(|span| span.name() == name);
        arrived("muleteer tasks run").and(arrived("task list")).cloned()
    });
    let shape = shape(&collector.spans(), list.trace());
    let count = |parent: &str, name: &str| {
        shape.get(&(parent.to_string(), name.to_string())).copied().unwrap_or(0)
    };
    assert_eq!(
        [count("", "muleteer tasks run"), count("muleteer tasks run", "task list")],
        [1, 1],
        "{shape:#?}"
    );
    assert_eq!(
        (count("task list", "task"), count("task", "dispatch developer")),
        (2, 2),
        "{shape:#?}"
    );
    scene.world.finish(Some(daemon));
}

/// One batch that breaks a collector must not prevent all later batches.
#[test]
fn a_collector_that_breaks_on_one_batch_gets_the_next() {
    let world = World::new();
    let repo = world.repo("project");
    let collector = Collector::start();
    collector.break_on("execute_tool Bad");
    let daemon = world.daemon_with(&[(ENDPOINT, &collector.url()), SOON]);
    let call = |tool: &str| {
        format!("echo '{{\"type\":\"tool_call\",\"id\":\"a\",\"name\":\"{tool}\",\"input\":{{}}}}'")
    };
    world.spawn(&repo, &call("Bad"), &["--wait"]).ok();
    wait_until("the loss to be noted", PATIENCE, || {
        let events = std::fs::read_to_string(world.state().join("events.jsonl")).unwrap();
        events.contains("spans: ").then_some(())
    });
    let good = world.spawn(&repo, &call("Good"), &["--wait"]).ok();
    let spans = spans_of(&collector, &good);
    assert_eq!(named(&spans, "execute_tool Good").len(), 1);
    wait_until("the losses to be counted", PATIENCE, || {
        let metrics = collector.metrics();
        let lost =
            metrics.iter().find(|metric| metric["name"] == "muleteer.telemetry.dropped_spans")?;
        (lost["sum"]["dataPoints"][0]["asDouble"].as_f64()? > 0.0).then_some(())
    });
    world.finish(Some(daemon));
}
