//! The cost by the events, with a daemon and right after one was killed.

#![allow(clippy::unwrap_used)]

use muleteer_tests::spec_stage::{AGENT, SpecStage};
use muleteer_tests::task_list::Scene;
use muleteer_tests::{PATIENCE, Repo, World, wait_until};
use serde_json::{Value, json};

const SCENARIO: &str = "\
v: 1
turns:
  - steps:
      - usage: {input: 1200, output: 90, cache_read: 7, cache_write: 5, cost_usd: 0.25}
      - usage: {input: 800, output: 10, cost_usd: 0.5}
      - hang: {for: 10m}
";

fn spender(world: &World, repo: &Repo, role: &str) -> String {
    let scenario = world.path().join("scenario.yaml");
    std::fs::write(&scenario, SCENARIO).unwrap();
    let scenario = scenario.to_str().unwrap();
    let id = world
        .muleteer(&[
            "spawn",
            role,
            repo.to_str(),
            "spend",
            "--scenario",
            scenario,
            "--model",
            "actor",
        ])
        .ok();
    // The daemon counts an event once it is durable: that is later than its line in the file.
    wait_until("the daemon to count both usages", PATIENCE, || {
        let rows = cost(world, &["--by", "role"])["rows"].take();
        let own = rows.as_array()?.iter().find(|row| row["role"] == role)?;
        (own["cost_usd"] == 0.75).then_some(())
    });
    id
}

fn cost(world: &World, args: &[&str]) -> Value {
    world.muleteer(&[&["cost", "--json"], args].concat()).json()
}

#[test]
fn nothing_spent_is_forgotten_by_a_killed_daemon() {
    let world = World::new();
    let (one, two) = (world.repo("one"), world.repo("two"));
    let mut daemon = world.daemon();
    spender(&world, &one, "developer");
    spender(&world, &two, "reviewer");
    let live: Vec<Value> =
        ["role", "model", "day", "project"].map(|by| cost(&world, &["--by", by])).into();
    daemon.kill_9();
    let dead: Vec<Value> =
        ["role", "model", "day", "project"].map(|by| cost(&world, &["--by", by])).into();
    // Each document says whether a daemon runs, and nothing else differs.
    let without = |bills: &[Value], running: bool| -> Vec<Value> {
        assert!(bills.iter().all(|bill| bill["running"] == running), "{bills:?}");
        bills.iter().map(|bill| json!([bill["by"], bill["rows"], bill["total"]])).collect()
    };
    assert_eq!(without(&live, true), without(&dead, false));
    for bill in &dead {
        let total = &bill["total"];
        assert_eq!((&total["cost_usd"], &total["dispatches"]), (&1.5.into(), &2.into()), "{bill}");
        assert_eq!((&total["input"], &total["output"]), (&4000.into(), &200.into()), "{bill}");
        assert_eq!(
            (&total["cache_read"], &total["cache_write"]),
            (&14.into(), &10.into()),
            "{bill}"
        );
        let sum: f64 = bill["rows"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["cost_usd"].as_f64().unwrap())
            .sum();
        assert_eq!(sum, 1.5, "{bill}");
    }
    let keys = |at: usize, by: &str| -> Vec<String> {
        let rows = dead[at]["rows"].as_array().unwrap();
        let mut keys: Vec<_> =
            rows.iter().map(|row| row[by].as_str().unwrap().to_string()).collect();
        keys.sort();
        keys
    };
    assert_eq!(keys(0, "role"), ["developer", "reviewer"]);
    assert_eq!(keys(1, "model"), ["actor"]);
    assert_eq!(keys(3, "project"), [one.to_str(), two.to_str()]);
    assert_eq!(cost(&world, &["--since", "2099-01-01"])["total"]["cost_usd"], 0.0);
    assert_eq!(cost(&world, &["--since", "1h"])["total"]["cost_usd"], 1.5);
    let table = world.muleteer(&["cost", "--by", "model"]).ok();
    assert!(table.contains("actor") && table.contains("$1.50"), "{table}");

    let daemon = world.daemon();
    assert_eq!(cost(&world, &[])["total"]["cost_usd"], 1.5, "the next daemon counts nothing twice");
    world.finish(Some(daemon));
}

const SPEND: &str = r#"echo '{"type":"usage","input":10,"output":10,"cost_usd":0.5}'"#;

/// The cost belongs to the repository: no row names the clones that a run makes and removes.
fn is_all_of(world: &World, repo: &Repo, agents: usize) {
    let bill = cost(world, &["--by", "project"]);
    let rows = bill["rows"].as_array().unwrap();
    assert_eq!((rows.len(), rows[0]["project"].as_str()), (1, Some(repo.to_str())), "{bill}");
    assert_eq!(
        (&rows[0]["dispatches"], &rows[0]["cost_usd"]),
        (&agents.into(), &(agents as f64 / 2.0).into()),
        "{bill}"
    );
    let status = world.muleteer(&["status", "--json"]).json();
    let dispatches = status["dispatches"].as_array().unwrap();
    assert_eq!(dispatches.len(), agents);
    assert!(dispatches.iter().all(|dispatch| dispatch["project"] == repo.to_str()), "{status}");
}

#[test]
fn cost_of_a_runs_agents_counts_for_its_repository() {
    let stage = SpecStage::new(&AGENT.replace("set -e\n", &format!("set -e\n{SPEND}\n")));
    let daemon = stage.world.daemon();
    stage.begin(&["--json"]).run().expect_code(0);
    let all = stage.world.events().into_iter().filter(|event| event["event"] == "dispatch_created");
    is_all_of(&stage.world, &stage.repo, all.count());
    stage.world.finish(Some(daemon));
}

#[test]
fn cost_of_task_list_workers_counts_for_their_repository() {
    let scene = Scene::new();
    for id in ["task-001", "task-002"] {
        scene.add("A file", &format!("test -f {id}"), &[]);
    }
    let script = format!("{SPEND}; touch $MULETEER_TASK_ID");
    scene.run(&script, &["--concurrency", "2"]).expect_code(0);
    let dirs: Vec<_> = scene
        .world
        .events()
        .into_iter()
        .filter(|event| event["event"] == "dispatch_created")
        .collect();
    let in_clone =
        |event: &Value| event["project"].as_str().unwrap().contains("/.muleteer/worktrees/tasks/");
    assert!(dirs.iter().all(in_clone), "{dirs:?}");
    is_all_of(&scene.world, &scene.repo, dirs.len());
    scene.end();
}
