//! Trouble with the model's API: its cost, the number of requests, and the reports of journal and
//! status. Rehearsed agents come first, then the real CLIs.

#![allow(clippy::unwrap_used)]

use muleteer_tests::acp::Agent;
use muleteer_tests::model_server::Step;
use muleteer_tests::{PATIENCE, Repo, Scene, World, wait_until};
use serde_json::{Value, json};
use std::time::Duration;

/// A CLI that gives up at once, so that Muleteer makes the next attempt.
const NO_RETRIES: [&str; 2] = ["--env", "CLAUDE_CODE_MAX_RETRIES=0"];

fn rehearse(world: &World, repo: &Repo, name: &str, turns: &str, more: &[&str]) -> String {
    let scenario = world.path().join(format!("{name}.yaml"));
    std::fs::write(&scenario, format!("v: 1\nturns:\n{turns}")).unwrap();
    let mut args = vec!["spawn", "developer", repo.to_str(), "do it", "--backend", "rehearsal"];
    args.extend(["--scenario", scenario.to_str().unwrap()]);
    args.extend(more);
    world.muleteer(&args).ok()
}

/// Returns the dispatch once it has ended, however long it waits.
fn ended(world: &World, id: &str) -> Value {
    world.muleteer(&["wait", id]).deadline(Duration::from_secs(120)).run();
    world.dispatch(id)
}

fn reason(entry: &Value) -> &str {
    entry["reason"].as_str().unwrap_or_default()
}

fn counted(world: &World, id: &str) -> usize {
    world
        .events_of(id, "attempt_finished")
        .iter()
        .filter(|event| event["counted"] == true)
        .count()
}

const LIMITED: &str = "  - steps:
      - emit: {type: rate_limit, resets_in_s: 12}
      - fail: {error: rate_limit, status: 429, text: scripted}
  - steps:
      - result: {status: success, summary: after the limit}
";
const WELL: &str = "  - steps:\n      - result: {status: success, summary: well}\n";

#[test]
fn rate_limit_delays_all_agents_of_its_channel_across_daemons() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let struck = rehearse(&world, &repo, "limited", LIMITED, &[]);
    let waits = || {
        let entry = world.dispatch(&struck);
        (entry["pid"].is_null() && entry["state"] == "waiting").then_some(entry)
    };
    let entry = wait_until("it to wait without a process", PATIENCE, waits);
    assert!(reason(&entry).starts_with("waiting for the model API until "), "{entry}");
    assert!(reason(&entry).contains("rate limited (HTTP 429)"), "{entry}");
    let other = rehearse(&world, &repo, "well", WELL, &[]);
    let stranger = world.spawn(&repo, "echo hello", &[]).ok();
    assert_eq!(
        ended(&world, &stranger)["state"],
        "success",
        "another backend has nothing to do with it"
    );

    daemon.kill_9();
    let daemon = world.daemon();
    let entry = world.dispatch(&other);
    assert_eq!(entry["state"], "queued", "{entry}");
    assert!(reason(&entry).contains("no calls to the model API"), "{entry}");
    assert_eq!(world.dispatch(&struck)["state"], "waiting");
    let tree = world.muleteer(&["tree", "--json"]).json().to_string();
    assert!(tree.contains("running; no calls to the model API (rehearsal) until"), "{tree}");

    for (id, summary) in [(&struck, "after the limit"), (&other, "well")] {
        let entry = ended(&world, id);
        assert_eq!(
            (&entry["state"], &entry["result"]["summary"]),
            (&json!("success"), &json!(summary)),
            "{entry}"
        );
        assert_eq!(counted(&world, id), 0);
    }
    assert_eq!(world.events_of(&struck, "api_waiting").len(), 1);
    let journal = world.muleteer(&["journal", &struck]).ok();
    assert!(journal.contains("[harness] waiting for the model API until "), "{journal}");
    world.finish(Some(daemon));
}

/// The text names a duration, the reset is a date: a daemon that restarts, or that was not there
/// when the agent printed it, waits for the same time.
#[test]
fn usage_limit_parks_its_channel_until_the_reset_across_daemons() {
    const PARKED: &str = "  - steps:
      - fail: {error: other, text: \"5-hour limit reached ∙ resets in 20 seconds\"}
  - steps:
      - result: {status: success, summary: after the reset}
";
    let world = World::new();
    world.configure("categories:\n  coding:\n    api_patience: 1m\n");
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let parked = rehearse(&world, &repo, "parked", PARKED, &[]);
    let waits = || {
        let entry = world.dispatch(&parked);
        (entry["pid"].is_null() && entry["state"] == "waiting").then_some(entry)
    };
    let entry = wait_until("it to wait without a process", PATIENCE, waits);
    assert!(reason(&entry).contains("usage limit reached"), "{entry}");
    let until = entry["until"].as_str().unwrap().to_string();
    let other = rehearse(&world, &repo, "well", WELL, &[]);
    daemon.kill_9();
    let daemon = world.daemon();
    assert_eq!(world.dispatch(&parked)["until"], json!(until));
    assert_eq!(world.dispatch(&other)["state"], "queued");
    for (id, summary) in [(&parked, "after the reset"), (&other, "well")] {
        let entry = ended(&world, id);
        assert_eq!(
            (&entry["state"], &entry["result"]["summary"]),
            (&json!("success"), &json!(summary)),
            "{entry}"
        );
        assert_eq!(counted(&world, id), 0);
    }
    let limits = world.events_of(&parked, "rate_limited");
    assert_eq!(limits.len(), 1, "{limits:?}");
    assert!(limits[0]["until"].is_string(), "{limits:?}");
    let journal = world.muleteer(&["journal", &parked]).ok();
    assert!(journal.contains("rate limited until "), "{journal}");
    world.finish(Some(daemon));
}

#[test]
fn kill_ends_a_parked_dispatch_at_once() {
    const PARKED: &str = "  - steps:
      - fail: {error: rate_limit, text: \"You've hit your limit · resets in 3 days\"}
";
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = rehearse(&world, &repo, "parked", PARKED, &[]);
    wait_until("it to be parked", PATIENCE, || {
        (world.dispatch(&id)["until"].is_string()).then_some(())
    });
    world.muleteer(&["kill", &id]).ok();
    assert_eq!(ended(&world, &id)["state"], "killed");
    assert!(world.dispatch(&id)["until"].is_null());
    world.finish(Some(daemon));
}

#[test]
fn a_cli_that_tries_in_vain_is_ended() {
    let world = World::new();
    world.configure("categories:\n  coding:\n    inactivity_timeout: 10s\n    api_timeout: 3s\n");
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let retry = |status: &str| {
        format!(
            "      - emit: {{type: api_retry, attempt: 2, max: 9, delay_s: 1, status: {status}}}\n"
        )
    };
    let refused = format!("  - steps:\n{}      - hang: {{for: 1h}}\n", retry("401"));
    let silent =
        format!("  - steps:\n{}", format!("{}      - wait: 1s\n", retry("null")).repeat(60));
    for (name, turns, expected) in [
        ("refused", refused, "the model API refused the key"),
        ("silent", silent, "the model API: no answer for "),
    ] {
        let id = rehearse(&world, &repo, name, &turns, &[]);
        let entry = ended(&world, &id);
        assert_eq!((&entry["state"], &entry["attempts"]), (&json!("failed"), &json!(1)), "{entry}");
        assert!(reason(&entry).starts_with(expected), "{entry}");
        assert_eq!(world.events_of(&id, "api_given_up").len(), 1);
    }
    world.finish(Some(daemon));
}

#[test]
fn attempts_share_the_time_of_their_dispatch() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let dies = "  - steps:\n      - run: sleep 2; kill -9 $PPID\n";
    let id = rehearse(&world, &repo, "dies", dies, &["--timeout", "5s"]);
    let entry = ended(&world, &id);
    assert_eq!(entry["state"], "failed", "{entry}");
    assert!(
        reason(&entry).starts_with("stopped after its time limit of 5s (`timeout`)"),
        "{entry}"
    );
    let used: Vec<_> = world
        .events_of(&id, "agent_exited")
        .iter()
        .map(|event| event["used_ms"].as_u64().unwrap())
        .collect();
    assert!(used.len() >= 2 && used[0] >= 2000 && used[1] >= 2000, "{used:?}");
    world.finish(Some(daemon));
}

#[test]
fn a_parent_that_waits_leaves_its_place_to_its_child() {
    let world = World::new();
    world.configure("pool:\n  max_agents: 1\n");
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let script =
        "muleteer spawn developer . 'the child' --backend subprocess --command 'echo child' --wait";
    let parent = world.spawn(&repo, script, &[]).ok();
    assert_eq!(ended(&world, &parent)["state"], "success");
    assert_eq!(world.status()["dispatches"].as_array().unwrap().len(), 2);
    world.finish(Some(daemon));
}

// ---- Claude Code

#[test]
fn claude_is_refused() {
    let Some(scene) = Scene::claude("claude_is_refused", [Step::status(401)]) else { return };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    let entry = ended(&scene.world, &id);
    assert_eq!((&entry["state"], &entry["attempts"]), (&json!("failed"), &json!(1)), "{entry}");
    assert!(reason(&entry).contains("refused the key ANTHROPIC_API_KEY (HTTP 401)"), "{entry}");
    assert!(!reason(&entry).contains("dummy"), "{entry}");
    let requests = scene.server.main_requests().len();
    assert!((1..=4).contains(&requests), "{requests} requests");
    assert_eq!(entry["cost_usd"], 0.0, "{entry}");
    scene.world.finish(Some(daemon));
}

#[test]
fn claude_waits_for_its_rate_limit_and_muleteer_waits_when_it_gives_up() {
    let test = "claude_waits_for_its_rate_limit_and_muleteer_waits_when_it_gives_up";
    // The answer says when to retry, so the CLI waits by itself.
    let Some(scene) =
        Scene::claude(test, [Step::status(429).header("retry-after", "3"), Step::success("well")])
    else {
        return;
    };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    let entry = scene.world.wait_for_state(&id, &["waiting"]);
    assert!(reason(&entry).contains("rate limited (HTTP 429)"), "{entry}");
    let entry = ended(&scene.world, &id);
    assert_eq!((&entry["state"], &entry["attempts"]), (&json!("success"), &json!(1)), "{entry}");
    assert_eq!(scene.server.main_requests().len(), 2);
    scene.world.finish(Some(daemon));

    // The model is overloaded and the CLI gives up, so Muleteer waits and resumes the session.
    let steps = [Step::status(529).times(2), Step::success("well").usage(1000, 200)];
    let Some(scene) = Scene::claude(test, steps) else { return };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&NO_RETRIES).ok();
    let entry = ended(&scene.world, &id);
    assert_eq!(
        (&entry["state"], &entry["result"]["summary"]),
        (&json!("success"), &json!("well")),
        "{entry}"
    );
    assert!(!scene.world.events_of(&id, "api_waiting").is_empty());
    assert_eq!(counted(&scene.world, &id), 0, "no failure of the agent");
    assert!(scene.server.main_requests().len() <= 4, "{}", scene.server.main_requests().len());
    assert!(entry["cost_usd"].as_f64().unwrap() > 0.0, "{entry}");
    scene.world.finish(Some(daemon));
}

#[test]
fn claude_meets_errors_and_cut_streams() {
    let test = "claude_meets_errors_and_cut_streams";
    let Some(scene) =
        Scene::claude(test, [Step::text("a cut text").die_mid(), Step::success("well")])
    else {
        return;
    };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    assert_eq!(ended(&scene.world, &id)["result"]["summary"], "well");
    assert!(scene.server.main_requests().len() <= 3);
    scene.world.finish(Some(daemon));

    let Some(scene) = Scene::claude(test, [Step::status(500)]) else { return };
    scene.world.configure("categories:\n  coding:\n    max_restarts: 1\n");
    let daemon = scene.world.daemon();
    let id = scene.spawn(&NO_RETRIES).ok();
    let entry = ended(&scene.world, &id);
    assert_eq!((&entry["state"], &entry["attempts"]), (&json!("failed"), &json!(2)), "{entry}");
    assert!(reason(&entry).contains("model API error (HTTP 500)"), "{entry}");
    assert!(scene.server.main_requests().len() <= 4, "{}", scene.server.main_requests().len());
    scene.world.finish(Some(daemon));
}

#[test]
fn claude_meets_silence() {
    for step in [
        Step::hang(Duration::from_secs(3600)),
        Step::text("a begun text").hang_mid(Duration::from_secs(3600)),
    ] {
        let Some(scene) = Scene::claude("claude_meets_silence", [step]) else { return };
        is_silent(&scene);
    }
}

#[test]
fn claude_stops_at_its_budget_and_nothing_spent_is_forgotten() {
    let test = "claude_stops_at_its_budget_and_nothing_spent_is_forgotten";
    let steps = [Step::bash("echo on >> effects").usage(1_000_000, 100_000)];
    let Some(scene) = Scene::claude(test, steps) else { return };
    let mut daemon = scene.world.daemon();
    let id = scene.spawn(&["--budget-usd", "1"]).ok();
    let entry = ended(&scene.world, &id);
    assert_eq!(entry["state"], "partial", "{entry}");
    assert!(reason(&entry).contains("stopped at its budget of $"), "{entry}");
    let requests = scene.server.main_requests().len();
    assert!(requests <= 2, "it went on: {requests} requests");
    let cost = entry["cost_usd"].as_f64().unwrap();
    assert!(cost >= 1.0, "{entry}");
    daemon.kill_9();
    let daemon = scene.world.daemon();
    assert_eq!(scene.world.dispatch(&id)["cost_usd"].as_f64().unwrap(), cost);
    scene.world.finish(Some(daemon));
}

// ---- Codex

#[test]
fn codex_is_refused_and_limited() {
    let test = "codex_is_refused_and_limited";
    let Some(scene) = Scene::codex(test, [Step::status(401)]) else { return };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    let entry = ended(&scene.world, &id);
    assert_eq!((&entry["state"], &entry["attempts"]), (&json!("failed"), &json!(1)), "{entry}");
    assert!(reason(&entry).contains("refused the key OPENAI_API_KEY (HTTP 401)"), "{entry}");
    assert!(scene.server.main_requests().len() <= 6, "{}", scene.server.main_requests().len());
    scene.world.finish(Some(daemon));

    // One process makes this many requests; the next one succeeds.
    let Some(scene) = Scene::codex(test, [Step::status(429).times(3), Step::success("well")])
    else {
        return;
    };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    let entry = ended(&scene.world, &id);
    assert_eq!(
        (&entry["state"], &entry["result"]["summary"]),
        (&json!("success"), &json!("well")),
        "{entry}"
    );
    assert_eq!(counted(&scene.world, &id), 0);
    assert!(scene.server.main_requests().len() <= 8, "{}", scene.server.main_requests().len());
    // The channel is the provider that Codex's own configuration names, so no other agent shares
    // the limit.
    let channel = scene.world.events_of(&id, "dispatch_created")[0]["api"]["channel"].clone();
    let address = scene.server.url().replace("http://", "");
    assert_eq!(channel, format!("codex, OPENAI_API_KEY at {address}"));
    scene.world.finish(Some(daemon));
}

#[test]
fn codex_meets_an_overload() {
    let test = "codex_meets_an_overload";
    let steps = [Step::status(529).times(6), Step::success("well")];
    let Some(scene) = Scene::codex(test, steps) else { return };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    let entry = ended(&scene.world, &id);
    assert_eq!(
        (&entry["state"], &entry["result"]["summary"]),
        (&json!("success"), &json!("well")),
        "{entry}"
    );
    let waited = scene.world.events_of(&id, "api_waiting");
    assert!(
        waited.iter().any(|event| event["trouble"] == "overload" && event["status"] == 529),
        "{waited:?}"
    );
    assert_eq!(counted(&scene.world, &id), 0, "no failure of the agent");
    assert!(scene.server.main_requests().len() <= 13, "{}", scene.server.main_requests().len());
    scene.world.finish(Some(daemon));
}

#[test]
fn codex_meets_errors_and_silence() {
    let test = "codex_meets_errors_and_silence";
    let Some(scene) = Scene::codex(test, [Step::status(500)]) else { return };
    scene.world.configure("categories:\n  coding:\n    max_restarts: 1\n");
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    let entry = ended(&scene.world, &id);
    assert_eq!((&entry["state"], &entry["attempts"]), (&json!("failed"), &json!(2)), "{entry}");
    assert!(reason(&entry).contains("model API error"), "{entry}");
    // Two processes with three streams each, and two requests in each stream.
    assert!(scene.server.main_requests().len() <= 12, "{}", scene.server.main_requests().len());
    scene.world.finish(Some(daemon));

    for step in [
        Step::hang(Duration::from_secs(3600)),
        Step::text("a begun text").hang_mid(Duration::from_secs(3600)),
    ] {
        let Some(scene) = Scene::codex(test, [step]) else { return };
        is_silent(&scene);
    }
}

/// Codex reports tokens and no cost. A price makes a cost of them; without one, Muleteer warns that
/// it cannot keep a budget.
#[test]
fn codex_cost_is_computed_from_its_tokens() {
    let test = "codex_cost_is_computed_from_its_tokens";
    let Some(scene) = Scene::codex(test, [Step::success("well").usage(1_000_000, 100_000)]) else {
        return;
    };
    let mut daemon = scene.world.daemon();
    let run = scene.spawn(&["--budget-usd", "1.5", "--wait"]).run();
    assert!(run.stderr.contains("the budget of $1.50 cannot be enforced"), "{run:?}");
    assert_eq!(scene.world.dispatch(run.stdout.trim())["cost_usd"], 0.0);
    // Muleteer also warns about the category's budget.
    let made = scene.spawn(&["--json"]).json();
    assert!(
        made["warnings"][0].as_str().unwrap().contains("the budget of $10.00 cannot be enforced"),
        "{made}"
    );
    let id = made["dispatch_id"].as_str().unwrap();
    ended(&scene.world, id);
    let journal = scene.world.muleteer(&["journal", id]).ok();
    assert!(journal.contains("the budget of $10.00 cannot be kept"), "{journal}");

    scene.world.configure("models:\n  prices:\n    gpt-5.5: {input: 1, output: 10}\n");
    let run = scene.spawn(&["--budget-usd", "1.5", "--wait"]).run();
    assert!(run.code == Some(0) && !run.stderr.contains("budget"), "{run:?}");
    let id = run.stdout.trim();
    assert_eq!(scene.world.dispatch(id)["cost_usd"], 2.0);
    // The budget is spent for the next daemon too, so it starts no further turn.
    daemon.kill_9();
    let daemon = scene.world.daemon();
    let requests = scene.server.main_requests().len();
    scene.world.muleteer(&["send", id, "and more"]).ok();
    let entry = wait_until("it to end at its budget", PATIENCE, || {
        let entry = scene.world.dispatch(id);
        (entry["state"] == "partial").then_some(entry)
    });
    assert!(reason(&entry).contains("stopped at its budget of $"), "{entry}");
    assert_eq!(scene.server.main_requests().len(), requests, "nothing more was asked");
    scene.world.finish(Some(daemon));
}

// ---- Agents behind ACP

fn acp_is_refused(test: &str, agent: Agent) {
    let Some(scene) = Scene::acp(test, agent, [Step::status(401)]) else { return };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    let entry = ended(&scene.world, &id);
    assert_eq!((&entry["state"], &entry["attempts"]), (&json!("failed"), &json!(1)), "{entry}");
    assert!(reason(&entry).contains("refused the key"), "{entry}");
    assert!(scene.server.main_requests().len() <= 6, "{}", scene.server.main_requests().len());
    scene.world.finish(Some(daemon));
}

#[test]
fn acp_claude_is_refused() {
    acp_is_refused("acp_claude_is_refused", Agent::Claude);
}

#[test]
fn acp_codex_is_refused() {
    acp_is_refused("acp_codex_is_refused", Agent::Codex);
}

/// The agent waits by itself, or gives up and Muleteer waits. Either way the trouble is no failure
/// of the agent.
fn acp_is_limited(test: &str, agent: Agent, status: u16, times: usize) {
    let steps = [Step::status(status).times(times), Step::success("well")];
    let Some(scene) = Scene::acp(test, agent, steps) else { return };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    let entry = ended(&scene.world, &id);
    assert_eq!(
        (&entry["state"], &entry["result"]["summary"]),
        (&json!("success"), &json!("well")),
        "{entry}"
    );
    let attempts = scene.world.events_of(&id, "attempt_finished");
    assert_eq!(counted(&scene.world, &id), 0, "no failure of the agent: {attempts:?}");
    let requests = scene.server.main_requests().len();
    assert!(requests <= 2 * times + 2, "{requests}");
    scene.world.finish(Some(daemon));
}

#[test]
fn acp_claude_is_limited() {
    acp_is_limited("acp_claude_is_limited", Agent::Claude, 429, 3);
}

#[test]
fn acp_claude_meets_an_overload() {
    acp_is_limited("acp_claude_meets_an_overload", Agent::Claude, 529, 3);
}

#[test]
fn acp_codex_is_limited() {
    acp_is_limited("acp_codex_is_limited", Agent::Codex, 429, 3);
}

fn acp_meets_errors(test: &str, agent: Agent) {
    let Some(scene) =
        Scene::acp(test, agent, [Step::text("a cut text").die_mid(), Step::success("well")])
    else {
        return;
    };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    assert_eq!(ended(&scene.world, &id)["result"]["summary"], "well");
    assert!(scene.server.main_requests().len() <= 3);
    scene.world.finish(Some(daemon));

    let Some(scene) = Scene::acp(test, agent, [Step::status(500)]) else { return };
    scene.world.configure("categories:\n  coding:\n    max_restarts: 1\n");
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    let entry = ended(&scene.world, &id);
    assert_eq!((&entry["state"], &entry["attempts"]), (&json!("failed"), &json!(2)), "{entry}");
    assert!(reason(&entry).contains("model API error"), "{entry}");
    assert!(scene.server.main_requests().len() <= 12, "{}", scene.server.main_requests().len());
    scene.world.finish(Some(daemon));
}

#[test]
fn acp_claude_meets_errors() {
    acp_meets_errors("acp_claude_meets_errors", Agent::Claude);
}

#[test]
fn acp_codex_meets_errors() {
    acp_meets_errors("acp_codex_meets_errors", Agent::Codex);
}

fn acp_meets_silence(test: &str, agent: Agent) {
    for step in [
        Step::hang(Duration::from_secs(3600)),
        Step::text("a begun text").hang_mid(Duration::from_secs(3600)),
    ] {
        let Some(scene) = Scene::acp(test, agent, [step]) else { return };
        is_silent(&scene);
    }
}

#[test]
fn acp_claude_meets_silence() {
    acp_meets_silence("acp_claude_meets_silence", Agent::Claude);
}

#[test]
fn acp_codex_meets_silence() {
    acp_meets_silence("acp_codex_meets_silence", Agent::Codex);
}

#[test]
fn acp_claude_stops_at_its_budget() {
    let test = "acp_claude_stops_at_its_budget";
    let steps = [Step::bash("echo on >> effects").usage(1_000_000, 100_000)];
    let Some(scene) = Scene::acp(test, Agent::Claude, steps) else { return };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&["--budget-usd", "1"]).ok();
    let entry = ended(&scene.world, &id);
    // Claude reports the cost together with its context, which these tokens fill. So Claude may end
    // the turn by itself before Muleteer does.
    let ends = [("partial", "stopped at its budget of $"), ("failed", "the context is full")];
    let (state, why) = (entry["state"].as_str().unwrap(), reason(&entry));
    assert!(ends.iter().any(|(one, word)| *one == state && why.contains(word)), "{entry}");
    assert!(entry["cost_usd"].as_f64().unwrap() >= 1.0, "{entry}");
    let requests = scene.server.main_requests().len();
    assert!(requests <= 3, "it went on: {requests} requests");
    scene.world.finish(Some(daemon));
}

/// The API takes the request and sends nothing, or stops in the middle. Muleteer ends the agent at
/// its own deadline, and the reason says why.
fn is_silent(scene: &Scene) {
    scene.world.configure("categories:\n  coding:\n    inactivity_timeout: 5s\n");
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    let entry = ended(&scene.world, &id);
    assert_eq!((&entry["state"], &entry["attempts"]), (&json!("stalled"), &json!(1)), "{entry}");
    assert!(reason(&entry).contains("the model API did not answer"), "{entry}");
    assert!(scene.server.main_requests().len() <= 2, "{}", scene.server.main_requests().len());
    scene.world.muleteer(&["daemon", "stop", "--agents", "stop"]).run();
    scene.world.wait_for_nothing_left(&[]);
    drop(daemon);
}
