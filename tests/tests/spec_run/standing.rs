//! The reported condition of a run: without a daemon, while the run waits, and after it failed.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::spec_stage::{AGENT, PATIENCE, SpecStage as Stage, last};
use muleteer_tests::wait_until;
use serde_json::{Value, json};

/// Makes a stage whose coding agents work until the test lets them continue.
fn held() -> Stage {
    let hold = "implement)\n  while test ! -e \"$HOME/out/go\"; do sleep 0.1; done\n";
    Stage::new(
        &AGENT
            .replace("implement)\n", hold)
            .replace("if test \"$MULETEER_ITERATION\" = 1; then", "if false; then"),
    )
}

/// A daemon that cannot host the run is as bad for it as no daemon.
#[test]
fn status_while_the_daemon_cannot_host_the_run_claims_no_life() {
    let stage = held();
    let mut daemon = stage.world.daemon();
    let run = stage.begin(&["--detach"]).ok();
    wait_until("an agent to work", PATIENCE, || (stage.status()["agents"] == 1).then_some(()));
    daemon.kill_9();
    let saved = stage.world.state().join("runs").join(&run).join("run.json");
    let text = std::fs::read_to_string(&saved).unwrap();
    std::fs::write(&saved, "{").unwrap();
    let mut daemon = stage.world.daemon();
    let dead = stage.status();
    assert_eq!((&dead["abandoned"], &dead["agents"]), (&json!(true), &json!(0)), "{dead}");
    assert_eq!(stage.status()["as_of"], dead["as_of"], "nothing more is known later");
    let is_told = |why: &str| {
        let seen = self::text(&stage, &run);
        assert!(
            seen.contains("a daemon is running but does not continue it: ") && seen.contains(why),
            "{seen}"
        );
        assert!(!seen.contains("no daemon is running"), "{seen}");
        assert!(stage.status()["reason"].as_str().unwrap().contains(why), "{}", stage.status());
    };
    is_told("run.json");
    std::fs::write(&saved, text.replacen("\"v\": 1", "\"v\": 9", 1)).unwrap();
    is_told("has version 9");
    let runs = stage.muleteer(&["runs"]).ok();
    assert!(runs.contains("in_progress (abandoned)"), "{runs}");
    daemon.kill_9();
    std::fs::write(&saved, text).unwrap();
    std::fs::write(stage.world.home().join("out/go"), "").unwrap();
    let daemon = stage.world.daemon();
    assert_eq!(stage.over(&run)["status"], "completed");
    stage.world.finish(Some(daemon));
}

fn text(stage: &Stage, run: &str) -> String {
    stage.muleteer(&["run", "--status", run]).ok()
}

#[test]
fn status_after_a_killed_daemon_shows_an_abandoned_run_and_its_age() {
    let stage = held();
    let mut daemon = stage.world.daemon();
    let run = stage.begin(&["--detach"]).ok();
    let at_work = || {
        let document = stage.status();
        (document["beads"]["in_progress"] == 1 && document["agents"] == 1).then_some(document)
    };
    let alive = wait_until("an agent to work", PATIENCE, at_work);
    assert_eq!(alive["abandoned"], false, "{alive}");
    let seen = text(&stage, &run);
    assert!(seen.contains("  agent ") && !seen.contains("abandoned"), "{seen}");
    daemon.kill_9();

    let dead = stage.status();
    assert_eq!(
        (&dead["status"], &dead["abandoned"], &dead["agents"], &dead["last_agents"]),
        (&json!("in_progress"), &json!(true), &json!(0), &json!(1)),
        "{dead}"
    );
    assert_eq!(stage.status()["as_of"], dead["as_of"], "nothing more is known later");
    assert_eq!(dead["waiting_for"][0]["kind"], "daemon", "{dead}");
    let hint = format!("muleteer run --resume {run}");
    assert!(dead["reason"].as_str().unwrap().contains(&hint), "{dead}");
    let seen = text(&stage, &run);
    for part in [
        "abandoned, last recorded as in_progress",
        "as of ",
        "no daemon is running",
        "they may have ended since",
        &hint,
    ] {
        assert!(seen.contains(part), "{part}: {seen}");
    }
    assert!(!seen.contains("  next "), "nothing comes next: {seen}");
    let report = stage.muleteer(&["run", "report", &run, "--json"]).json();
    assert_eq!(
        (&report["abandoned"], &report["as_of"]),
        (&json!(true), &dead["as_of"]),
        "{report}"
    );
    assert!(stage.muleteer(&["run", "report", &run]).ok().contains("abandoned"));
    let runs = stage.muleteer(&["runs"]).ok();
    assert!(runs.contains("in_progress (abandoned)"), "{runs}");
    assert_eq!(stage.muleteer(&["runs", "--json"]).json()["runs"][0]["abandoned"], true);

    std::fs::write(stage.world.home().join("out/go"), "").unwrap();
    let daemon = stage.world.daemon();
    let document = stage.over(&run);
    assert_eq!(
        (&document["status"], &document["abandoned"]),
        (&json!("completed"), &json!(false)),
        "{document}"
    );
    assert!(document["reason"].is_null(), "{document}");
    stage.world.finish(Some(daemon));
}

/// No event of the run reports such a wait, because none comes meanwhile.
#[test]
fn status_of_a_run_waiting_for_the_model_api_names_the_end() {
    let stage = Stage::new(AGENT);
    let scenario = stage.world.path().join("limited.yaml");
    let turns = "v: 1\nturns:\n  - steps:\n      - emit: {type: rate_limit, resets_in_s: \
        3600}\n      \
                 - fail: {error: rate_limit, status: 429, text: scripted}\n";
    std::fs::write(&scenario, turns).unwrap();
    let mut daemon = stage.world.daemon();
    let args = [
        "run",
        "--spec",
        "plan.md",
        "--backend",
        "rehearsal",
        "--scenario",
        scenario.to_str().unwrap(),
        "--detach",
    ];
    let run = stage.muleteer(&args).ok();
    let waits = || {
        let document = stage.status();
        (document["waiting_for"][0]["kind"] == "model_api").then_some(document)
    };
    let document = wait_until("it to wait for the model API", PATIENCE, waits);
    let wait = &document["waiting_for"][0];
    assert!(wait["dispatch_id"].is_string() && wait["since"].is_string(), "{document}");
    assert_eq!(
        (&wait["until"], document["until"].as_str().unwrap() > document["as_of"].as_str().unwrap()),
        (&document["until"], true)
    );
    assert!(document["reason"].as_str().unwrap().contains("the model API until"), "{document}");
    assert_eq!(document["status"], "in_progress");
    // Between the end of the turn and the decision to wait, nothing is waited for.
    let counts = || {
        let text = text(&stage, &run);
        let is_waiting = text.contains("waiting for the model API until ");
        // The limit is told before the answer with the status.
        let has_reason = text.contains("HTTP 429");
        (is_waiting && has_reason && !text.contains("so far    0s")).then_some(text)
    };
    wait_until("its time to count though no event comes", PATIENCE, counts);
    // This is known without the daemon too, and nothing more is.
    daemon.kill_9();
    let dead = stage.status();
    let kinds: Vec<&Value> =
        dead["waiting_for"].as_array().unwrap().iter().map(|wait| &wait["kind"]).collect();
    assert_eq!(kinds, ["daemon", "model_api"], "{dead}");
    let daemon = stage.world.daemon();
    stage.muleteer(&["run", "stop", &run]).ok();
    stage.world.finish(Some(daemon));
}

#[test]
fn status_and_report_of_a_failed_run_give_the_reason() {
    let stage =
        Stage::new(&AGENT.replace("implement)\n", "implement)\n  echo no compiler here; exit 3\n"));
    let daemon = stage.world.daemon();
    let document = last(&stage.begin(&["--json"]).run().expect_code(4).stdout);
    let run = document["run_id"].as_str().unwrap();
    let status = stage.status();
    assert_eq!(
        (&status["status"], &status["abandoned"]),
        (&json!("failed"), &json!(false)),
        "{status}"
    );
    let reason = status["reason"].as_str().unwrap();
    assert!(reason.contains("(Base)") && reason.contains("exit code 3"), "{reason}");
    assert_eq!(document["reason"], status["reason"], "said at its end, too");
    for seen in [text(&stage, run), stage.muleteer(&["run", "report", run]).ok()] {
        assert!(seen.contains("  reason    ") && seen.contains("exit code 3"), "{seen}");
    }
    let report = stage.muleteer(&["run", "report", run, "--json"]).json();
    assert_eq!(report["reason"], status["reason"]);
    stage.world.finish(Some(daemon));
}

/// The judge found something in each iteration.
#[test]
fn status_of_a_failed_run_has_the_findings_of_the_judge() {
    let stage =
        Stage::new(&AGENT.replace("if test \"$MULETEER_ITERATION\" = 1; then", "if true; then"));
    stage.configure("run: {phases: {judge: {max_iterations: 1}}}\n");
    let daemon = stage.world.daemon();
    let document = last(&stage.begin(&["--json"]).run().stdout);
    assert_ne!(document["status"], "completed", "{document}");
    let reason = stage.status()["reason"].as_str().unwrap().to_string();
    assert!(reason.contains("the judge, iteration 1: "), "{reason}");
    let seen = text(&stage, document["run_id"].as_str().unwrap());
    assert!(seen.contains("the judge, iteration 1: "), "{seen}");
    stage.world.finish(Some(daemon));
}
