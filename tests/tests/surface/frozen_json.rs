//! The documents of `--json` and the files of a run, compared with their shapes in `tests/frozen`.
//!
//! Marks in those files: `?` is a key that only some of the objects have, `~` one that depends on
//! time or machine (a person writes it, and UPDATE_FROZEN=1 keeps it). `frozen.rs` names the rest.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::shape::Shapes;
use muleteer_tests::spec_stage::{AGENT, PATIENCE, SpecStage, last};
use muleteer_tests::task_list::{RUN, Scene};
use muleteer_tests::{Repo, World, wait_until};
use serde_json::{Value, json};
use std::path::Path;

/// Objects whose keys are names of categories, models, or variables.
const MAPS: &[&str] = &[
    "config show .config.categories",
    "config show .config.models.overrides",
    "config show .config.models.prices",
    "config show .config.projects",
];

/// Runs `muleteer WORDS --json` in a folder, and expects this exit code.
fn ask(world: &World, folder: &Path, words: &[&str], code: i32) -> Value {
    let words = [words, &["--json"]].concat();
    world.muleteer(&words).current_dir(folder).deadline(RUN).run().expect_code(code).json()
}

/// Adds the JSON files below a folder, each under the last part of its name without numbers.
fn add_files(shapes: &mut Shapes, prefix: &str, folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            add_files(shapes, prefix, &path);
            continue;
        }
        if name == "lock" {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            for meta in text.lines().filter_map(|line| line.strip_prefix("meta ")) {
                shapes.add(&format!("{prefix} lock meta"), &serde_json::from_str(meta).unwrap());
            }
        }
        let Some(stem) = name.strip_suffix(".json") else { continue };
        let stem = stem.trim_matches(|char: char| char.is_ascii_digit() || char == '-');
        // Not every machine can make a sandbox.
        if stem.starts_with("sandbox") {
            continue;
        }
        // A running process may replace or remove the file.
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        if let Ok(value) = serde_json::from_str(&text) {
            shapes.add(&format!("{prefix} {stem}.json"), &value);
        }
    }
}

#[test]
fn documents_without_a_daemon_match_the_frozen_shape() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut shapes = Shapes::new(MAPS);
    let here = |words: &[&str], code: i32| ask(&world, &repo.path, words, code);
    shapes.add("status (no daemon)", &here(&["status"], 0));
    shapes.add("tree (no daemon)", &here(&["tree"], 0));
    shapes.add("events (no daemon)", &here(&["events"], 0));
    shapes.add("config show", &here(&["config", "show"], 0));
    std::fs::create_dir_all(repo.path.join(".muleteer")).unwrap();
    repo.write(
        ".muleteer/config.yaml",
        "env: {pass: [FOO]}\nbackends: {subprocess: {command: make}}\n",
    );
    shapes.add("config show", &here(&["config", "show"], 0));
    shapes.add("trust", &here(&["trust", "--dry-run"], 0));
    shapes.add("trust", &here(&["trust"], 0));
    shapes.add("trust --list", &here(&["trust", "--list"], 0));
    shapes.add("trust --revoke", &here(&["trust", "--revoke"], 0));
    shapes.add("config check", &here(&["config", "check"], 0));
    repo.write(".muleteer/config.yaml", "pool: {max_agents: many}\n");
    shapes.add("(error of a file)", &here(&["config", "check"], 2));
    std::fs::remove_file(repo.path.join(".muleteer/config.yaml")).unwrap();
    shapes.add("(error)", &here(&["status", "--limit", "many"], 2));
    shapes.add("(error)", &here(&["wait", "zzzzzzzz"], 2));
    shapes.add("roles", &here(&["roles"], 0));
    shapes.add("roles NAME", &here(&["roles", "developer"], 0));
    let doctor = world.muleteer(&["doctor", "--json"]).run();
    shapes.add("doctor", &doctor.json());
    shapes.add("man", &here(&["man", "pages"], 0));
    shapes.add("service install", &here(&["service", "install", "--dry-run"], 0));
    shapes.add("service uninstall", &here(&["service", "uninstall", "--dry-run"], 0));
    shapes.add("service status", &here(&["service", "status"], 3));
    repo.write("scenario.yaml", SCENARIO);
    let check = |code| {
        ask(&world, &repo.path, &["rehearse", "--check", "--scenario", "scenario.yaml"], code)
    };
    shapes.add("rehearse --check", &check(0));
    repo.write("scenario.yaml", "v: 1\nturns: none\n");
    shapes.add("(error of a file)", &check(2));
    for verb in ["status", "install", "status", "uninstall"] {
        shapes.add("hooks", &here(&["hooks", verb, "--project", "."], 0));
        if verb == "install" {
            add_files(&mut shapes, "(hooks)", &repo.path.join(".claude"));
        }
    }
    let lines = "hello\n{\"type\":\"result\",\"status\":\"success\",\"summary\":\"s\"}\n";
    let parsed = world.muleteer(&["parse", "subprocess"]).stdin(lines).run().expect_code(0);
    shapes.add_lines("parse", &parsed.stdout);
    beads(&mut shapes, &world, &repo);
    shapes.check("json-alone.txt");
    world.finish(None);
}

fn beads(shapes: &mut Shapes, world: &World, repo: &Repo) {
    let here = |words: &[&str]| ask(world, &repo.path, &[&["bead"], words].concat(), 0);
    let one = here(&["create", "One", "--description", "d", "--label", "l", "--priority", "1"]);
    let two = here(&["create", "--title", "Two"]);
    let (one_id, two_id) = (one["id"].as_str().unwrap(), two["id"].as_str().unwrap());
    shapes.add("bead (changed)", &one);
    for words in [
        &["dep", "add", two_id, one_id][..],
        &["update", two_id, "--status", "in_progress"],
        &["label", two_id, "m"],
        &["close", one_id, "--reason", "done"],
    ] {
        shapes.add("bead (changed)", &here(words));
    }
    shapes.add("bead list", &here(&["list"]));
    shapes.add("bead show", &here(&["show", one_id]));
    shapes.add("bead ready", &here(&["ready"]));
    shapes.add("bead graph", &here(&["graph"]));
    shapes.add("bead (changed)", &here(&["reopen", one_id]));
    shapes.add("bead ready", &here(&["ready"]));
    shapes.add("bead (changed)", &here(&["dep", "rm", two_id, one_id]));
    shapes.add("bead export", &here(&["export", "issues.jsonl"]));
    shapes.add_lines("(issues.jsonl)", &repo.read("issues.jsonl"));
    shapes.add("bead import", &here(&["import", "issues.jsonl"]));
}

const SCENARIO: &str = "v: 1\nturns:\n  - steps:\n      - say: begun\n      \
     - write: {path: a, text: \"a\\n\"}\n      - usage: {input: 10, output: 5, cost_usd: \
     0.01}\n      \
     - commit: Add a\n      - complain: careful\n      \
     - ask: {permission: \"rm -rf build\"}\n      \
     - result: {status: success, summary: done, changes: [a]}\n";

/// Adds every actor of a supervision tree under one name, whatever its depth.
fn add_tree(shapes: &mut Shapes, mut actor: Value) {
    for child in std::mem::take(actor["children"].as_array_mut().unwrap()) {
        add_tree(shapes, child);
    }
    shapes.add("tree", &actor);
}

#[test]
fn documents_of_dispatches_match_the_frozen_shape() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let mut shapes = Shapes::new(MAPS);
    let here = |words: &[&str], code: i32| ask(&world, &repo.path, words, code);
    repo.write("scenario.yaml", SCENARIO);
    let rehearsal = ["--backend", "rehearsal", "--scenario", "scenario.yaml", "--worktree"];
    let begun = here(&[&["spawn", "developer", ".", "do it"], &rehearsal[..]].concat(), 0);
    shapes.add("spawn", &begun);
    let id = begun["dispatch_id"].as_str().unwrap();
    world.wait_for_state(id, &["waiting"]);
    shapes.add("status", &here(&["status"], 0));
    add_tree(&mut shapes, here(&["tree"], 0));
    shapes.add("answer", &here(&["answer", id, "allow"], 0));
    shapes.add("wait", &here(&["wait", id], 0));
    shapes.add("send", &here(&["send", id, "again"], 0));
    shapes.add("wait", &here(&["wait", id], 0));
    let command = ["--backend", "subprocess", "--command"];
    let run = |script| [&["spawn", "developer", ".", "do it"], &command[..], &[script]].concat();
    let failed = [&run("exit 3"), &["--wait"][..]].concat();
    shapes.add("spawn --wait", &here(&failed, 4));
    let killed = here(&run("exec sleep 600"), 0);
    let killed = killed["dispatch_id"].as_str().unwrap();
    world.wait_for_state(killed, &["running"]);
    shapes.add("kill", &here(&["kill", killed], 0));
    shapes.add("wait", &here(&["wait", killed], 6));
    repo.write("hang.yaml", "v: 1\nturns:\n  - steps:\n      - hang: {for: 1h}\n");
    let hang =
        ["spawn", "developer", ".", "hang", "--backend", "rehearsal", "--scenario", "hang.yaml"];
    let hanging = here(&hang, 0);
    let hanging = hanging["dispatch_id"].as_str().unwrap();
    // An interrupt before its turn is rejected in the end, by the clock.
    wait_until("the turn to run", PATIENCE, || {
        (!world.events_of(hanging, "turn_started").is_empty()).then_some(())
    });
    shapes.add("model", &here(&["model", hanging, "other"], 0));
    shapes.add("interrupt", &here(&["interrupt", hanging], 0));
    shapes.add("kill", &here(&["kill", hanging], 0));
    shapes.add("wait", &here(&["wait", hanging], 6));
    let followed = [&run("echo hi"), &["--follow"][..]].concat();
    let followed =
        world.muleteer(&[&followed, &["--json"][..]].concat()).current_dir(&repo.path).run();
    shapes.add("spawn --follow (last line)", &last(&followed.stdout));
    shapes.add("status", &here(&["status", "--all"], 0));
    let mut events = here(&["events"], 0);
    events["events"] = json!([]);
    shapes.add("events", &events);
    let mut logs = here(&["logs", id], 0);
    for event in std::mem::take(logs["events"].as_array_mut().unwrap()) {
        shapes.add(&format!("logs event {}", event["type"].as_str().unwrap_or("(none)")), &event);
    }
    shapes.add("logs", &logs);
    shapes.add("journal ID", &here(&["journal", id], 0));
    let lines = world.muleteer(&["journal", id, "-f", "--json"]).run().expect_code(0);
    shapes.add_lines("journal ID -f", &lines.stdout);
    shapes.add("journal --summary", &here(&["journal", "--summary", "--all"], 0));
    for by in ["role", "model", "day", "project"] {
        shapes.add(&format!("cost --by {by}"), &here(&["cost", "--by", by], 0));
    }
    shapes.add("prune", &here(&["prune", "--older-than", "0s", "--dry-run"], 0));
    add_files(&mut shapes, "(state)", &world.state());
    shapes.add("daemon stop", &here(&["daemon", "stop", "--agents", "stop"], 0));
    shapes.check("json-dispatch.txt");
    world.finish(Some(daemon));
}

#[test]
fn documents_of_task_lists_match_the_frozen_shape() {
    let scene = Scene::new();
    let mut shapes = Shapes::new(MAPS);
    let mut told = |name: &str, words: &[&str], code: i32| {
        let document = ask(&scene.world, &scene.repo.path, &[&["tasks"], words].concat(), code);
        shapes.add(name, &document);
    };
    told("tasks init", &["init"], 0);
    told(
        "tasks (task)",
        &["add", "One", "--validate", "test -f one", "--timeout", "5m", "--description", "d"],
        0,
    );
    told("tasks (task)", &["add", "Two", "--depends-on", "task-001", "--validate", "true"], 0);
    told("tasks (task)", &["edit", "task-002", "--max-attempts", "1", "--cleanup", "true"], 0);
    told("tasks (task)", &["show", "task-001"], 0);
    told("tasks graph", &["graph"], 0);
    told("tasks validate", &["validate"], 0);
    told("tasks validate ID", &["validate", "task-001"], 4);
    told("tasks claim", &["claim", "--worker", "w"], 0);
    told("tasks renew", &["renew", "task-001", "--worker", "w"], 0);
    told("tasks checkpoint", &["checkpoint", "task-001", "1/2", "half", "--worker", "w"], 0);
    told("tasks (error)", &["complete", "task-001", "--worker", "w"], 4);
    told("tasks status", &["status"], 0);
    scene.repo.write("half", "1\n");
    told("tasks complete", &["fail", "task-001", "not like this", "--worker", "w"], 0);
    told("tasks undo --list", &["undo", "--list"], 0);
    told("tasks undo", &["undo"], 0);
    told("tasks claim", &["claim", "--worker", "w"], 0);
    told("tasks recover", &["recover", "--worker", "w"], 0);
    told("tasks claim", &["claim", "--worker", "w"], 0);
    scene.repo.write("one", "1\n");
    told("tasks complete", &["complete", "task-001", "--worker", "w"], 0);
    told("tasks claim", &["claim", "--worker", "w"], 0);
    told("tasks complete", &["fail", "task-002", "no", "--worker", "w"], 0);
    told("tasks retry", &["retry", "task-002"], 0);
    scene.repo.write("PLAN.md", "- [ ] Three\n  validate: `true`\n");
    told("tasks import", &["import", "PLAN.md"], 0);
    told("tasks run", &["run", "--backend", "subprocess", "--command", "true"], 0);
    told("tasks status", &["status"], 0);
    shapes.add("(harness-tasks.json)", &scene.list());
    let mut told = |name: &str, words: &[&str], code: i32| {
        let document = ask(&scene.world, &scene.repo.path, &[&["tasks"], words].concat(), code);
        shapes.add(name, &document);
    };
    told("tasks (task)", &["add", "Long", "--validate", "true"], 0);
    let slow = ["run", "--detach", "--backend", "subprocess", "--command", "exec sleep 600"];
    told("tasks run --detach", &slow, 0);
    wait_until("the task to be worked on", RUN, || {
        let all = scene.all();
        all.iter().any(|task| task["status"] == "in_progress").then_some(())
    });
    told("tasks stop", &["stop", "--now"], 0);
    wait_until("the run to be over", RUN, || {
        scene.log().trim_end().ends_with("LOCK released").then_some(())
    });
    shapes.check("json-tasks.txt");
    scene.end();
}

#[test]
fn documents_of_hooks_match_the_frozen_shape() {
    let scene = Scene::new();
    scene.add("One", "false", &[]);
    let mut shapes = Shapes::new(MAPS);
    let event = json!({"session_id": "s1", "cwd": scene.repo.path, "agent_id": "agent-7"});
    for name in ["session-start", "claim", "renew", "stop", "subagent-stop"] {
        let said = scene.hook(name, &event).expect_code(0);
        if !said.stdout.is_empty() {
            shapes.add(&format!("hook {name}"), &said.json());
        }
    }
    shapes.check("json-hooks.txt");
    scene.end();
}

#[test]
fn documents_of_a_spec_run_match_the_frozen_shape() {
    let hold = "acceptance)\n  test ! -e \"$HOME/out/hold\" || { touch \"$HOME/out/held\"; sleep \
                600; }\n";
    let stage = SpecStage::new(&AGENT.replace("acceptance)\n", hold));
    let daemon = stage.world.daemon();
    let mut shapes = Shapes::new(MAPS);
    let here = |words: &[&str]| ask(&stage.world, &stage.repo.path, words, 0);
    let planned = last(&stage.begin(&["--dry-run", "--json"]).run().expect_code(0).stdout);
    shapes.add("run --dry-run", &planned);
    let run = planned["run_id"].as_str().unwrap();
    shapes.add("run --status (planned)", &here(&["run", "--status"]));
    let done = stage.muleteer(&["run", "--resume", run, "--json"]).run().expect_code(0).stdout;
    shapes.add("run", &last(&done));
    shapes.add("run --status", &here(&["run", "--status", run]));
    shapes.add("run report", &here(&["run", "report", run]));
    shapes.add("run report --html", &here(&["run", "report", run, "--html", "report.html"]));
    shapes.add("runs", &here(&["runs"]));
    let refused = stage.muleteer(&["run", "--resume", "zzzz", "--json"]).run();
    shapes.add("run (error)", &refused.json());
    std::fs::write(stage.world.home().join("out/hold"), "").unwrap();
    let detached = stage.begin(&["--detach", "--json"]).run().expect_code(0).json();
    shapes.add("run --detach", &detached);
    let second = detached["run_id"].as_str().unwrap();
    wait_until("an agent of the second run", PATIENCE, || {
        stage.world.home().join("out/held").exists().then_some(())
    });
    shapes.add("run --status (under way)", &here(&["run", "--status", second]));
    add_files(&mut shapes, "(run)", &stage.repo.path.join(".muleteer/runs").join(second));
    add_files(&mut shapes, "(state of a run)", &stage.world.state().join("runs").join(second));
    let stopped = stage.muleteer(&["run", "stop", second, "--json"]).run().json();
    shapes.add("run stop", &stopped);
    shapes.check("json-run.txt");
    stage.world.finish(Some(daemon));
}
