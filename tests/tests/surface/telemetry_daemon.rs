//! The forms of the export, and the daemon's own spans.

use muleteer_tests::collector::{Collector, Span};
use muleteer_tests::rotel::Rotel;
use muleteer_tests::spec_stage::{AGENT, SpecStage};
use muleteer_tests::{PATIENCE, World, wait_until};

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const PROTOBUF: (&str, &str) = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
/// A short interval, so that a test need not wait a minute for metrics.
const SOON: (&str, &str) = ("OTEL_METRIC_EXPORT_INTERVAL", "200");

fn span(collector: &Collector, name: &str) -> Span {
    wait_until(name, PATIENCE, || collector.spans().into_iter().find(|span| span.name() == name))
}

#[test]
fn daemon_and_command_send_protobuf_if_the_variable_says_so() {
    let world = World::new();
    let repo = world.repo("project");
    let collector = Collector::start();
    let endpoint = collector.url();
    let daemon = world.daemon_with(&[(ENDPOINT, &endpoint), PROTOBUF, SOON]);
    let command = world.spawn(&repo, "echo working", &["--wait"]);
    let id = command.env(ENDPOINT, &endpoint).env(PROTOBUF.0, PROTOBUF.1).ok();
    let (dispatch, command) =
        (span(&collector, "dispatch developer"), span(&collector, "muleteer spawn"));
    assert_eq!(dispatch.attribute("muleteer.dispatch.id").as_deref(), Some(id.as_str()));
    assert_eq!((dispatch.trace(), dispatch.parent()), (command.trace(), command.id()));
    wait_until("figures of the ended dispatch", PATIENCE, || {
        collector.metrics().iter().any(|one| one["name"] == "muleteer.dispatches").then_some(())
    });
    let (binary, other) = collector.posts_by_form();
    assert_eq!(other, 0, "{binary} posts are protobuf");
    assert!(binary >= 3, "spans of both, and metrics");
    world.finish(Some(daemon));
}

#[test]
fn a_real_collector_takes_protobuf() {
    let world = World::new();
    let Some(rotel) = Rotel::start("a_real_collector_takes_protobuf", world.path()) else { return };
    wait_until("rotel", PATIENCE, || rotel.answers().then_some(()));
    let repo = world.repo("project");
    let endpoint = rotel.url();
    let daemon = world.daemon_with(&[(ENDPOINT, &endpoint), PROTOBUF, SOON]);
    let command = world.spawn(&repo, "echo working", &["--wait"]);
    command.env(ENDPOINT, &endpoint).env(PROTOBUF.0, PROTOBUF.1).ok();
    let output = wait_until("rotel to print the dispatch", PATIENCE, || {
        let output = rotel.output();
        output.contains("dispatch developer").then_some(output)
    });
    for name in ["muleteer spawn", "attempt 1", "invoke_agent developer"] {
        assert!(output.contains(name), "no {name} in\n{output}");
    }
    drop(rotel);
    world.finish(Some(daemon));
}

#[test]
fn slow_request_is_a_span_below_the_command_that_sent_it() {
    let world = World::new();
    let repo = world.repo("project");
    let collector = Collector::start();
    let endpoint = collector.url();
    let daemon = world.daemon_with(&[(ENDPOINT, &endpoint)]);
    // A kill is answered when the agent has ended.
    let script = "trap 'sleep 2; exit 0' TERM; touch ready; while :; do sleep 0.05; done";
    let id = world.spawn(&repo, script, &[]).ok();
    wait_until("the agent to run", PATIENCE, || repo.path.join("ready").exists().then_some(()));
    world.muleteer(&["kill", &id]).env(ENDPOINT, &endpoint).ok();
    let (request, command) = (span(&collector, "request kill"), span(&collector, "muleteer kill"));
    assert_eq!((request.trace(), request.parent()), (command.trace(), command.id()));
    assert_eq!(request.attribute("muleteer.request").as_deref(), Some("kill"));
    assert_eq!(request.service, "muleteer");
    world.finish(Some(daemon));
}

#[test]
fn restart_of_an_actor_is_a_span_without_log_lines() {
    let world = World::new();
    let repo = world.repo("project");
    let collector = Collector::start();
    let faults = ("MULETEER_FAULT", "ledger.before_write:3=panic");
    let daemon = world.daemon_with(&[(ENDPOINT, &collector.url()), faults]);
    let id = world.spawn(&repo, "true", &["--wait"]).ok();
    assert_eq!(world.dispatch(&id)["state"], "success");
    let restart = span(&collector, "restart ledger");
    assert_eq!(restart.attribute("muleteer.actor").as_deref(), Some("ledger"));
    assert_eq!(restart.json["events"], serde_json::json!([]), "no log line is exported");
    let dispatch = span(&collector, "dispatch developer");
    assert_ne!(restart.trace(), dispatch.trace(), "the ledger is no dispatch's");
    world.finish(Some(daemon));
}

/// The sum of a metric with this value of its only label.
fn sum(collector: &Collector, name: &str, label: &str) -> Option<f64> {
    let metrics = collector.metrics();
    let metric = metrics.iter().find(|one| one["name"] == name)?;
    let points = metric["sum"]["dataPoints"].as_array()?;
    let has = |one: &&serde_json::Value| one["attributes"][0]["value"]["stringValue"] == label;
    points.iter().find(has)?["asDouble"].as_f64()
}

#[test]
fn metrics_of_an_ended_run_survive_a_restart_of_the_daemon() {
    let stage = SpecStage::new(AGENT);
    stage.configure("run: {phases: {maintain: {n: 2}}}\n");
    let mut collector = Collector::start();
    let mut daemon = stage.world.daemon_with(&[(ENDPOINT, &collector.url()), SOON]);
    stage.begin(&["--json"]).run().expect_code(0);
    // The judge finds a fault in the first iteration, whose bead is the fourth.
    let expected = [
        ("muleteer.runs", "completed", 1.0),
        ("muleteer.beads", "completed", 4.0),
        ("muleteer.bead.attempts", "success", 4.0),
        ("muleteer.judge.verdicts", "fail", 1.0),
        ("muleteer.judge.verdicts", "pass", 1.0),
        ("muleteer.maintenance.runs", "success", 1.0),
    ];
    for restarted in [false, true] {
        if restarted {
            daemon.kill_9();
            collector = Collector::start();
            daemon = stage.world.daemon_with(&[(ENDPOINT, &collector.url()), SOON]);
        }
        for (name, label, value) in expected {
            wait_until(name, PATIENCE, || {
                (sum(&collector, name, label) == Some(value)).then_some(())
            });
        }
    }
    stage.world.finish(Some(daemon));
}
