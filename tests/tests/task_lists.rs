//! The task-list harness with real binaries, real repositories and real kills.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::model_server::{ModelServer, Step};
use muleteer_tests::task_list::{RUN, Scene};
use muleteer_tests::{Output, Repo, claude, wait_until};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// Twelve tasks: a chain, an urgent one, one that fails for good and what depends on it, one whose validation
/// takes too long, one that fails once, and one that a killed session left behind, committed.
fn twelve() -> Scene {
    let scene = Scene::new();
    for number in 1..=6 {
        let before = format!("task-{:03}", number - 1);
        let chain = if number > 1 { vec!["--depends-on", before.as_str()] } else { vec![] };
        scene.add(&format!("Link {number}"), &format!("test -f f{number}"), &chain);
    }
    scene.add("Fails for good", "false", &["--max-attempts", "2", "--cleanup", "echo c >> \"$HOME/cleaned\""]);
    scene.add("Blocked", "true", &["--depends-on", "task-007"]);
    let cleanup = "echo t >> \"$HOME/cleaned\"";
    scene.add("Too slow", "sleep 1000", &["--timeout", "1", "--max-attempts", "1", "--cleanup", cleanup]);
    scene.add("Second time", "test -f second", &[]);
    scene.add("First of all", "test -f urgent", &["--priority", "P0"]);
    scene.add("Interrupted", "test -f own", &[]);
    scene.interrupt("task-012");
    scene.repo.write("own", "x\n");
    scene.repo.git(&["add", "own"]);
    scene.repo.git(&["commit", "-qm", "task-012: what was done before the crash"]);
    scene
}

/// "Completed" stays true when the power fails: the commit and the branch are on the disk before the list says so.
#[test]
fn what_is_completed_is_on_the_disk() {
    let scene = Scene::new();
    scene.add("One", "test -f done", &[]);
    let trace = scene.world.path().join("git.trace");
    let daemon = scene.world.daemon_with(&[("GIT_TRACE2_EVENT", trace.to_str().unwrap())]);
    scene.run("echo x > done", &[]).expect_code(0);
    assert_eq!(scene.status("task-001"), "completed");
    assert_eq!(scene.repo.git(&["show", "HEAD:done"]), "x");
    let syncs = |command: &str| Repo::syncs(&trace, &[command]);
    assert!(syncs("add") > 0 && syncs("write-tree") > 0 && syncs("update-ref") > 0);
    assert_eq!(syncs("commit-tree"), 1);
    scene.world.finish(Some(daemon));
}

/// What the agent of each of them does.
const WORK: &str = "muleteer tasks checkpoint $MULETEER_TASK_ID 1/1 began; n=${MULETEER_TASK_ID#task-0}; case $n in \
    07) echo junk > junk; git add junk; git commit -qm 'task-007: junk'; echo more > more;; \
    10) if [ -e \"$HOME/once\" ]; then echo x > second; else touch \"$HOME/once\"; echo y > wrong; fi;; \
    11) echo x > urgent;; 0*) echo x > f${n#0};; esac";

fn check_twelve(scene: &Scene, run: &Output) {
    let told = run.json();
    assert_eq!((told["status"].as_str(), told["stats"]["completed"].as_u64()), (Some("failed"), Some(9)), "{told}");
    for id in
        ["task-001", "task-002", "task-003", "task-004", "task-005", "task-006", "task-010", "task-011", "task-012"]
    {
        assert_eq!(scene.status(id), "completed", "{id}");
    }
    let attempts = |id: &str| scene.task(id)["attempts"].as_u64();
    assert_eq!((attempts("task-010"), attempts("task-007"), attempts("task-009")), (Some(2), Some(2), Some(1)));
    let first_error = |id: &str| scene.task(id)["error_log"][0].as_str().unwrap_or_default().to_string();
    assert_eq!(first_error("task-008"), "[DEPENDENCY] Blocked by failed task-007");
    assert!(first_error("task-009").starts_with("[TIMEOUT]"));
    assert!(first_error("task-007").starts_with("[TEST_FAIL]"));
    assert!(first_error("task-010").starts_with("[TASK_EXEC]"), "the agent said so: {}", first_error("task-010"));
    let there = |name: &str| scene.repo.path.join(name).exists();
    assert!(["junk", "more", "wrong", "f9"].iter().all(|name| !there(name)), "rolled back");
    assert!(["f1", "f6", "second", "urgent", "own"].iter().all(|name| there(name)));
    assert_eq!(scene.repo.git(&["status", "--porcelain", "--", "f1", "second"]), "", "committed");
    assert!(!scene.repo.git(&["log", "--format=%s"]).contains("junk"));
    assert_eq!(std::fs::read_to_string(scene.home("cleaned")).unwrap(), "c\nt\nc\n");
    let log = scene.log();
    let begun: Vec<_> = log.lines().filter(|line| line.contains(" Starting ")).collect();
    assert!(begun[0].contains("[task-011]"), "P0 first: {}", begun[0]);
    assert!(begun[1..7].iter().zip(1..).all(|(line, n)| line.contains(&format!("[task-{n:03}]"))), "{begun:?}");
    assert!(begun[begun.len() - 2].contains("[task-007]"), "what failed comes last, the oldest failure first");
    assert!(!log.contains("Starting [task-012]") && log.contains("RECOVERY [task-012] action=\"validate\""));
    assert!(log.contains("ROLLBACK [task-007] git reset --hard ") && log.contains("refs/muleteer/rollback/task-007/1"));
    assert!(log.contains("STATS tasks_total=12 completed=9 failed=3 pending=0 blocked=0"), "{log}");
    assert!(log.contains("LOCK acquired (pid=") && log.trim_end().ends_with("LOCK released"));
    assert!(log.contains("CHECKPOINT [task-001] step=1/1 \"began\""));
    assert!(!there(".harness-active"), "nothing is left to do");
    assert_eq!(scene.list()["session_count"], 1);
    scene.tasks(&["undo", "refs/muleteer/rollback/task-007/1"]).expect_code(4);
    scene.check_log();
}

#[test]
fn twelve_tasks_with_a_failure_a_timeout_a_chain_a_rollback_and_a_recovery() {
    let scene = twelve();
    let scenario = scene.world.path().join("scenario.yaml");
    let used = json!({"input": 100, "output": 10, "cost_usd": 0.5});
    let text = json!({"v": 1, "turns": [{"steps": [
        {"usage": used}, {"run": WORK}, {"run": "test ! -e wrong"}, {"result": {"status": "success", "summary": "done"}},
    ]}]});
    std::fs::write(&scenario, text.to_string()).unwrap();
    let run = scene.tasks(&["run", "--scenario", scenario.to_str().unwrap(), "--json"]);
    check_twelve(&scene, &run.expect_code(4));
    // Each attempt is a dispatch as any other: what it cost is in the books, what happened in its journal.
    let attempts = scene.log().matches(" Starting [").count();
    assert_eq!(attempts, 12);
    let cost = scene.world.muleteer(&["cost", "--json"]).json();
    assert_eq!((&cost["total"]["cost_usd"], &cost["total"]["dispatches"]), (&json!(6.0), &json!(12)), "{cost}");
    for dispatch in scene.world.status()["dispatches"].as_array().unwrap() {
        let journal = std::fs::read_to_string(dispatch["journal"].as_str().unwrap()).unwrap();
        assert!(journal.contains("finished: "), "{journal}");
    }
    scene.world.finish(None);
}

#[test]
fn the_real_claude_works_twelve_tasks_off_in_a_run() {
    let test = "the_real_claude_works_twelve_tasks_off_in_a_run";
    let Some(binary) = claude::binary(test) else { return };
    let scene = twelve();
    claude::link(&scene.world, &binary);
    // In the order the rules give: urgent, the chain, the others, then what failed. The tenth says that it failed.
    let steps = (1..=12).flat_map(|at| {
        let failed = json!({"status": "failed", "summary": "Redis connection refused", "changes": [], "issues": [],
                            "questions": [], "pr_url": null});
        [Step::bash(WORK), if at == 10 { Step::document(failed) } else { Step::success("done") }]
    });
    let server = ModelServer::start(steps);
    let options = claude::env_options(&server);
    let mut args = vec!["run", "--json", "--backend", "claude-code"];
    args.extend(options.iter().map(String::as_str));
    let run = scene.tasks(&args);
    check_twelve(&scene, &run.expect_code(4));
    let requests = server.main_requests();
    let last = requests.last().unwrap().body["messages"].to_string();
    assert!(last.contains("## Attempt 2 of 3") && last.contains("Redis connection refused"), "{last}");
    scene.world.finish(None);
}

#[test]
fn a_killed_daemon_s_task_is_adopted_and_not_done_twice() {
    let scene = Scene::new();
    scene.add("Slow", "test -f done", &[]);
    let mut daemon = scene.world.daemon();
    let script = "echo began >> \"$HOME/effects\"; while [ ! -e \"$HOME/go\" ]; do sleep 0.05; done; echo x > done";
    let client = scene.begin(script, 1);
    let effects = || std::fs::read_to_string(scene.world.home().join("effects")).unwrap_or_default();
    wait_until("the agent to begin", RUN, || (!effects().is_empty()).then_some(()));
    daemon.kill_9();
    let daemon = scene.world.daemon();
    std::fs::write(scene.home("go"), "").unwrap();
    scene.wait_until_done();
    drop(client);
    assert_eq!((effects().as_str(), scene.status("task-001").as_str()), ("began\n", "completed"));
    assert_eq!(scene.log().matches(" Starting ").count(), 1);
    scene.check_log();
    scene.world.finish(Some(daemon));
}

/// Rows of the recovery matrix: what was left, and what becomes of the task.
#[test]
fn the_recovery_matrix_in_real_repositories() {
    let commit = |scene: &Scene, name: &str, text: &str| {
        scene.repo.write(name, text);
        scene.repo.git(&["add", name]);
        scene.repo.git(&["commit", "-qm", "task-001: some of it"]);
    };
    let table: &[(&str, bool, bool, &str, &str)] = &[
        ("nothing", false, false, "failed", "No progress detected"),
        ("commits that pass", false, true, "completed", ""),
        ("commits that do not", false, false, "failed", "did not pass"),
        ("changes that pass", true, false, "completed", ""),
        ("changes that do not", true, false, "failed", "did not pass"),
        ("both, passing", true, true, "completed", ""),
        ("both, failing", true, true, "failed", "did not pass"),
    ];
    let any = table.iter().flat_map(|row| [(row, false), (row, true)]);
    // With nothing but checkpoints, the files decide: `checkpoints_alone_are_verified_by_the_files`.
    for ((what, uncommitted, commits, status, said), checkpoint) in
        any.filter(|(row, some)| row.0 != "nothing" || !some)
    {
        let scene = Scene::new();
        scene.add("Interrupted", "grep -q good work other", &["--max-attempts", "1"]);
        let base = scene.interrupt("task-001");
        if checkpoint {
            let mut list = scene.list();
            list["tasks"][0]["checkpoints"] =
                json!([{"step": 1, "total": 2, "description": "half", "timestamp": "2025-07-01T10:00:00Z"}]);
            scene.repo.write("harness-tasks.json", &list.to_string());
        }
        let text = if *status == "completed" { "good\n" } else { "bad\n" };
        if *commits || what.starts_with("commits") {
            commit(&scene, "work", text);
        }
        if *uncommitted {
            scene.repo.write("other", text);
        }
        let told = scene.tasks(&["recover", "task-001"]).expect_code(0).stdout;
        assert_eq!(scene.status("task-001"), *status, "{what}: {told}\n{}", scene.log());
        assert!(scene.log().contains("RECOVERY [task-001] action=\""), "{what}");
        assert!(scene.task("task-001")["error_log"].to_string().contains(said), "{what}");
        let there = |name: &str| scene.repo.path.join(name).exists();
        if *status == "failed" {
            assert_eq!(scene.repo.git(&["rev-parse", "HEAD"]), base, "{what}: rolled back");
            assert!(!there("work") && !there("other"), "{what}");
        } else {
            assert_eq!(scene.repo.git(&["status", "--porcelain", "--", "work", "other"]), "", "{what}: committed");
        }
        scene.end();
    }
}

/// Of a list in which one works at a time, too: who has a lease is at work, and nobody rolls that back.
#[test]
fn what_a_living_worker_has_claimed_was_not_interrupted() {
    let scene = Scene::new();
    scene.add("First", "test -f one", &[]);
    scene.add("Second", "true", &[]);
    scene.tasks(&["claim", "--worker", "w1"]).expect_code(0);
    scene.repo.write("staged", "half of it\n");
    scene.repo.git(&["add", "staged"]);
    let refused = |args: &[&str]| {
        let said = scene.tasks(&[args, &["--worker", "w2", "--json"]].concat()).expect_code(3);
        assert_eq!(said.error_code(), "E_TASK_CLAIMED", "{args:?}");
        said.stdout
    };
    for args in [&["claim"][..], &["claim", "task-002"], &["recover", "task-001"]] {
        let said = refused(args);
        assert!(said.contains("`task-001` is claimed by w1 until ") && !said.contains("interrupted"), "{said}");
    }
    let nothing = scene.tasks(&["recover", "--worker", "w2", "--json"]).expect_code(0).json();
    assert_eq!(nothing["recovered"], json!([]), "nothing of that was interrupted");
    let hooked = scene.hook("claim", &json!({"session_id": "s2", "cwd": scene.repo.path})).expect_code(0);
    assert_eq!(hooked.stdout, "", "nor is another one handed out beside it");
    assert_eq!(scene.repo.read("staged"), "half of it\n");
    let (task, second) = (scene.task("task-001"), scene.status("task-002"));
    assert_eq!(
        (task["claimed_by"].as_str(), task["attempts"].as_u64(), second.as_str()),
        (Some("w1"), Some(0), "pending")
    );
    // Its worker may, and so may who knows better.
    let own = scene.tasks(&["recover", "--worker", "w1", "--json"]).expect_code(0).json();
    assert_eq!(own["recovered"][0]["action"], "failed", "what is there does not pass");
    scene.tasks(&["claim", "task-001", "--worker", "w1"]).expect_code(0);
    scene.tasks(&["recover", "--force", "--worker", "w2"]).expect_code(2);
    let forced = scene
        .tasks(&["recover", "task-001", "--force", "--worker", "w2", "--json"])
        .expect_code(0)
        .json();
    assert_eq!(forced["recovered"][0]["action"], "failed");
    // A lease that is over holds nobody up.
    scene.tasks(&["claim", "task-001", "--worker", "w1", "--lease", "1s"]).expect_code(0);
    let over = |args: &[&str]| !scene.tasks(&[args, &["--worker", "w2"]].concat()).stderr.contains("is claimed by");
    wait_until("the lease to be over", RUN, || over(&["claim"]).then_some(()));
    assert!(refused(&["claim"]).contains("was interrupted"));
    scene.tasks(&["recover", "--worker", "w2"]).expect_code(0);
    scene.end();
}

#[test]
fn checkpoints_alone_are_verified_by_the_files() {
    let scene = Scene::new();
    scene.add("Stepwise", "test -f done", &["--max-attempts", "2"]);
    scene.tasks(&["claim", "--worker", "w"]).expect_code(0);
    scene
        .tasks(&["checkpoint", "task-001", "1/2", "read", "everything", "--worker", "w"])
        .expect_code(0);
    // Nothing changed since the checkpoint: it holds, and the work goes on behind it.
    let told = scene.tasks(&["recover", "--worker", "w", "--json"]).expect_code(0).json();
    assert_eq!(told["recovered"][0]["action"], "resume");
    scene.repo.write("part", "p\n");
    scene.tasks(&["checkpoint", "task-001", "2/2", "half", "--worker", "w"]).expect_code(0);
    std::fs::remove_file(scene.repo.path.join("part")).unwrap();
    let told = scene.tasks(&["recover", "--worker", "w", "--json"]).expect_code(0).json();
    assert_eq!(told["recovered"][0]["action"], "failed", "the work was lost");
    scene.end();
}

#[test]
fn lists_that_cannot_be_worked_on_stop_the_run_with_their_exit_codes() {
    let scene = Scene::new();
    scene.tasks(&["run", "--once"]).expect_code(0);
    scene.tasks(&["add", "No command"]).expect_code(0);
    let run = scene.run("true", &["--json"]).expect_code(2);
    assert_eq!(run.json()["code"], "E_TASKS_INVALID");
    assert_eq!(run.error_code(), "E_TASKS_INVALID", "as every verb says it: {run:?}");
    assert!(scene.log().contains("ERROR [task-001] [CONFIG] Missing validation.command"));
    scene
        .tasks(&["edit", "task-001", "--validate", "surely-no-such-program --all"])
        .expect_code(0);
    scene.run("true", &[]).expect_code(3);
    assert!(scene.log().contains("ERROR [task-001] [ENV_SETUP] `surely-no-such-program`"));
    assert_eq!((scene.status("task-001").as_str(), scene.task("task-001")["attempts"].as_u64()), ("pending", Some(0)));
    scene.tasks(&["edit", "task-001", "--validate", "./to-be-written.sh"]).expect_code(0);
    scene
        .run("printf '#!/bin/sh\\n' > to-be-written.sh; chmod +x to-be-written.sh", &[])
        .expect_code(0);
    scene.add("One", "true", &[]);
    scene.add("Two", "true", &[]);
    scene.run("true", &["--max-tasks", "1"]).expect_code(5);
    let mends = "if [ -e \"$HOME/mended\" ]; then exit 0; fi; touch \"$HOME/mended\"; exit 1\n";
    scene.repo.write("harness-init.sh", mends);
    scene.run("true", &["--max-tasks", "1"]).expect_code(0);
    let init: Vec<_> = ["FAIL", "PASS"]
        .map(|how| scene.log().matches(&format!("health check: {how}")).count())
        .into();
    assert_eq!(init, [1, 1], "the second time it is well, and the run goes on");
    scene.repo.write("harness-init.sh", "echo broken; exit 1\n");
    scene.add("Three", "true", &[]);
    scene.run("true", &[]).expect_code(3);
    assert_eq!(scene.log().matches("INIT Environment health check: FAIL").count(), 3, "run twice, then stopped");
    scene
        .repo
        .write("harness-tasks.json", "{\"version\": 2, \"tasks\": [{\"id\": \"a\", \"status\": \"odd\"}]}");
    assert_eq!(scene.run("true", &["--json"]).expect_code(2).json()["error"]["code"], "E_TASKS_INVALID");
    scene.world.finish(None);
}

/// Each task would fail by it, one after the other, and each session count.
#[test]
fn a_run_that_nobody_could_work_for_is_refused_before_it_is_counted() {
    let scene = Scene::new();
    let refused = |args: &[&str]| {
        let args = [&["run", "--json"], args].concat();
        scene.tasks(&args).expect_code(2).error_code()
    };
    // With nothing to be done nobody is needed.
    scene.tasks(&["run", "--backend", "nope"]).expect_code(0);
    scene.add("One", "true", &[]);
    let before = scene.list();
    assert_eq!(refused(&["--backend", "nope"]), "E_BACKEND_UNAVAILABLE");
    assert_eq!(refused(&["--role", "nope", "--command", "true"]), "E_ROLE_UNKNOWN");
    assert_eq!(refused(&["--backend", "rehearsal", "--scenario", "nope.yaml"]), "E_SCENARIO_INVALID");
    assert_eq!(refused(&["--backend", "subprocess"]), "E_CONFIG_INVALID");
    scene.repo.git(&["checkout", "-q", "--detach"]);
    let nowhere = scene.tasks(&["run", "--json", "--command", "true", "--concurrency", "2"]).expect_code(4);
    assert_eq!(nowhere.error_code(), "E_TASKS_GIT", "{nowhere:?}");
    assert_eq!(scene.list(), before);
    scene.run("true", &[]).expect_code(0);
    scene.end();
}

/// 0 says that all is done.
#[test]
fn whoever_stops_looking_at_a_run_does_not_hear_that_it_is_done() {
    let scene = Scene::new();
    scene.add("Slow", "test -f done", &[]);
    let args = ["tasks", "run", "--command", "while [ ! -e \"$HOME/go\" ]; do sleep 0.05; done; echo > done"];
    let looking = scene.world.muleteer(&args).current_dir(&scene.repo.path).deadline(RUN).start();
    wait_until("the task to begin", RUN, || (scene.status("task-001") == "in_progress").then_some(()));
    scene.world.signal(looking.pid(), rustix::process::Signal::INT);
    let seen = looking.finish().expect_code(130);
    assert!(seen.stderr.contains("`muleteer tasks stop` ends it"), "{seen:?}");
    std::fs::write(scene.home("go"), "").unwrap();
    wait_until("the run to end", RUN, || scene.log().contains("LOCK released").then_some(()));
    scene.check_done_once();
    scene.end();
}

#[test]
fn a_second_session_fails_fast_and_status_reads_without_the_lock() {
    let scene = Scene::new();
    scene.add("Slow", "test -f done", &[]);
    let id = scene
        .run("while [ ! -e \"$HOME/go\" ]; do sleep 0.05; done; echo > done", &["--detach"])
        .expect_code(0);
    wait_until("the task to begin", RUN, || (scene.status("task-001") == "in_progress").then_some(()));
    scene.run("true", &[]).expect_code(3);
    scene.tasks(&["add", "Another"]).expect_code(3);
    let status = scene.tasks(&["status", "--json"]).expect_code(0).json();
    assert_eq!(status["run_id"], id.stdout.trim());
    scene.tasks(&["stop"]).expect_code(0);
    std::fs::write(scene.home("go"), "").unwrap();
    wait_until("the run to end", RUN, || scene.log().contains("LOCK released").then_some(()));
    assert_eq!(scene.status("task-001"), "completed", "the task in hand is done first");
    scene.end();
}

#[test]
fn a_conflict_between_workers_is_task_exec_and_the_second_try_sees_the_first_s_work() {
    let scene = Scene::new();
    for number in 1..=2 {
        scene.add(&format!("Same file {number}"), &format!("grep -q line{number} shared"), &[]);
    }
    let script = "n=${MULETEER_TASK_ID#task-00}; touch \"$HOME/began$n\"; if [ ! -e \"$HOME/met\" ]; then \
        while [ ! -e \"$HOME/began1\" ] || [ ! -e \"$HOME/began2\" ]; do sleep 0.05; done; touch \"$HOME/met\"; fi; \
        echo line$n >> shared";
    scene.run(script, &["--concurrency", "2"]).expect_code(0);
    assert!(scene.log().contains("[TASK_EXEC] conflict with what others completed meanwhile"), "{}", scene.log());
    assert!(scene.repo.read("shared").contains("line1") && scene.repo.read("shared").contains("line2"));
    scene.end();
}

/// Two that look at the same moment take two tasks: none is begun for nothing.
#[test]
fn each_task_is_begun_by_one_worker() {
    let scene = Scene::new();
    let numbers = 1..=8;
    for number in numbers.clone() {
        scene.add(&format!("Task {number}"), &format!("test -f f{number}"), &[]);
    }
    scene
        .run("touch \"f${MULETEER_TASK_ID#task-00}\"", &["--concurrency", "4"])
        .expect_code(0);
    let begun = scene.world.events().into_iter().filter(|event| event["event"] == "task_begun");
    let mut begun: Vec<String> = begun.map(|event| event["task"].as_str().unwrap().into()).collect();
    begun.sort();
    assert_eq!(begun, numbers.map(|number| format!("task-00{number}")).collect::<Vec<_>>());
    scene.end();
}

/// The agent's word counts for nothing; the environment is the harness's; and what was said reaches the next attempt.
#[test]
fn a_validation_is_run_by_the_harness_in_a_clean_environment_and_its_output_reaches_the_next_attempt() {
    let scene = Scene::new();
    let check = "env | grep -v ^MULETEER_NONCE= | grep -c -e ^ANTHROPIC -e ^MULETEER -e ^HARNESS -e ^STRAY | sed s/^/seen=/; \
        echo 'test old ... FAILED'; test -e fixed && exit 0; test ! -e broken || echo 'test fresh ... FAILED'; exit 1";
    scene.add("Mend", check, &[]);
    scene.add("Passes already", "true", &[]);
    let script = "cat \"$MULETEER_PROMPT_FILE\" > \"$HOME/prompt.$MULETEER_TASK_ID.$(ls \"$HOME\" | grep -c prompt)\"; \
        test $MULETEER_TASK_ID = task-001 || exit 0; if [ -e \"$HOME/again\" ]; then touch fixed; else touch \"$HOME/again\"; \
        touch broken; echo '{\"type\":\"result\",\"status\":\"success\",\"summary\":\"all done, believe me\"}'; fi";
    let args = ["tasks", "run", "--backend", "subprocess", "--command", script, "--env", "ANTHROPIC_API_KEY=k"];
    let run = scene
        .world
        .muleteer(&args)
        .env("STRAY", "1")
        .current_dir(&scene.repo.path)
        .deadline(RUN)
        .run();
    run.expect_code(0);
    let log = scene.log();
    assert!(log.contains("ERROR [task-001] [TEST_FAIL] validation failed: exit 1"), "{log}");
    assert!(log.contains("(1 of its failures were there before)"), "{log}");
    assert!(log.contains("WARN [task-002] validation passes already"), "{log}");
    let prompt = |name: &str| std::fs::read_to_string(scene.home(name)).unwrap();
    assert!(prompt("prompt.task-002.1").contains("passes already"), "warned about, and run all the same");
    let second = prompt("prompt.task-001.2");
    assert!(second.contains("## Attempt 2 of 3") && second.contains("seen=0"), "{second}");
    assert!(second.contains("test fresh ... FAILED") && second.contains("test old ... FAILED"), "{second}");
    assert!(!scene.repo.path.join("broken").exists() && scene.repo.path.join("fixed").exists());
    scene.end();
}

#[test]
fn a_rollback_is_undone_by_name_and_a_person_s_files_are_not_touched() {
    let scene = Scene::new();
    scene.repo.write("notes", "mine\n");
    scene.repo.write(".gitignore", "cache\n");
    scene.repo.git(&["add", ".gitignore"]);
    scene.repo.git(&["commit", "-qm", "ignore"]);
    scene.configure("save_ignored", json!(["cache"]));
    scene.add("Fails", "false", &["--max-attempts", "1"]);
    let base = scene.repo.git(&["rev-parse", "HEAD"]);
    let script = "echo a > a; git add a; git commit -qm 'task-001: a'; echo b > b; echo c > cache";
    scene.run(script, &[]).expect_code(4);
    let there = |name: &str| scene.repo.path.join(name).exists();
    assert_eq!((scene.repo.git(&["rev-parse", "HEAD"]), there("a"), there("b")), (base, false, false));
    assert_eq!(scene.repo.read("notes"), "mine\n");
    assert!(scene.status("task-001") == "failed" && there("harness-progress.txt"), "its own files stay");
    let log = scene.log();
    let line = log.lines().find(|line| line.contains(" ROLLBACK ")).unwrap();
    let name = line.split_whitespace().find(|word| word.contains("refs/muleteer/")).unwrap();
    let name = name.trim_matches(|c: char| !c.is_alphanumeric());
    std::fs::remove_file(scene.repo.path.join("cache")).unwrap();
    let listed = scene.tasks(&["undo", "--list", "--json"]).json();
    assert_eq!(listed["saved"][0]["ref"], name);
    assert_eq!(scene.tasks(&["undo", name, "--json"]).expect_code(0).json()["restored"], name);
    assert!(there("a") && there("b") && there("cache"), "untracked and ignored-but-listed too");
    assert!(scene.repo.git(&["log", "-1", "--format=%s"]).contains("task-001: a"));
    assert_eq!(scene.repo.read("notes"), "mine\n");
    scene.end();
}

/// An agent that begins by tidying up passes its validation, and what it swept away nobody else has.
#[test]
fn what_an_agent_swept_away_of_a_person_s_is_kept_and_said() {
    let scene = Scene::new();
    scene.repo.write("doc", "1\n2\n3\n");
    scene.repo.git(&["add", "doc"]);
    scene.repo.git(&["commit", "-qm", "doc"]);
    scene.repo.write("doc", "1\n2 mine\n3\n");
    scene.repo.write("notes", "mine\n");
    scene.add("Sweeps", "test -f f1", &[]);
    scene.add("Goes on", "test -f f2", &[]);
    let script = "case $MULETEER_TASK_ID in task-001) git checkout -q -- doc; rm notes; touch f1;; *) touch f2;; esac";
    let ran = scene.run(script, &[]).expect_code(0);
    let name = "refs/muleteer/rollback/task-001/1";
    let said = format!("`muleteer tasks undo {name}` brings it back");
    assert!(ran.stderr.contains("warning: task-001: what lay uncommitted in doc, notes"), "{ran:?}");
    assert!(ran.stderr.contains(&said), "{ran:?}");
    assert!(scene.log().contains(" WARN [task-001] what lay uncommitted in doc, notes"), "{}", scene.log());
    assert_eq!(scene.tasks(&["undo", "--list"]).expect_code(0).stdout.trim(), name);
    scene.tasks(&["undo", name]).expect_code(0);
    assert_eq!((scene.repo.read("doc").as_str(), scene.repo.read("notes").as_str()), ("1\n2 mine\n3\n", "mine\n"));
    assert!(scene.repo.path.join("f1").exists() && scene.repo.path.join("f2").exists());
    assert!(!scene.repo.git(&["log", "-p"]).contains("mine"), "nobody has committed it");
    scene.end();
}

/// Workers may share a directory: a failure of one leaves what the others have done.
#[test]
fn a_rollback_leaves_what_another_worker_has_completed_since() {
    let scene = Scene::new();
    scene.configure("concurrency_mode", json!("concurrent"));
    scene.add("Fails", "true", &[]);
    scene.add("Is done", "test -f b", &[]);
    scene.add("Is done by its agent's own commit", "test -f c", &[]);
    for (id, worker) in [("task-001", "a"), ("task-002", "b"), ("task-003", "c")] {
        scene.tasks(&["claim", id, "--worker", worker]).expect_code(0);
    }
    scene.repo.write("b", "b\n");
    scene.tasks(&["complete", "task-002", "--worker", "b"]).expect_code(0);
    scene.repo.write("c", "c\n");
    scene.repo.git(&["add", "c"]);
    scene.repo.git(&["commit", "-qm", "all of c"]);
    scene.tasks(&["complete", "task-003", "--worker", "c"]).expect_code(0);
    let done = scene.repo.git(&["rev-parse", "HEAD"]);
    scene.repo.write("junk", "junk\n");
    scene.repo.write("b", "worse\n");
    scene.repo.git(&["add", "junk"]);
    scene.repo.git(&["commit", "-qm", "junk"]);
    scene.tasks(&["fail", "task-001", "no", "--worker", "a"]).expect_code(0);
    assert_eq!(scene.repo.git(&["rev-parse", "HEAD"]), done, "{}", scene.log());
    assert_eq!((scene.repo.read("b"), scene.repo.read("c")), ("b\n".into(), "c\n".into()));
    assert!(!scene.repo.path.join("junk").exists());
    assert_eq!([2, 3].map(|n| scene.status(&format!("task-00{n}"))), ["completed", "completed"]);
    scene.end();
}

/// It is the person's circumstance: no attempt is charged for it, and nothing that was done is lost.
#[test]
fn what_a_person_has_in_the_way_of_a_clone_s_work_ends_the_run_and_costs_no_attempt() {
    let scene = Scene::new();
    scene.repo.write("doc", "1\n2\n3\n");
    scene.repo.git(&["add", "doc"]);
    scene.repo.git(&["commit", "-qm", "doc"]);
    scene.repo.write("doc", "1\n2\n3 mine\n");
    scene.add("Changes it", "grep -q agent doc", &[]);
    let script = "echo x >> \"$HOME/tries\"; sed -i s/1/1agent/ doc; git add doc; git commit -qm 'by myself'";
    for said in ["begun by", "run "] {
        let barred = scene.run(script, &["--concurrency", "2"]).expect_code(4);
        assert!(barred.stderr.contains("E_TASKS_GIT") && barred.stderr.contains(said), "{barred:?}");
        assert!(barred.stderr.contains("task-001 has passed and cannot be brought home"), "{barred:?}");
        assert!(barred.stderr.contains("would be overwritten by merge") && barred.stderr.contains("doc"), "{barred:?}");
        let task = scene.task("task-001");
        assert_eq!((&task["status"], &task["attempts"]), (&json!("in_progress"), &json!(0)), "{}", scene.log());
        assert!(!scene.log().contains("TASK_EXEC"), "{}", scene.log());
    }
    scene.repo.git(&["stash", "-q"]);
    scene.run(script, &["--concurrency", "2"]).expect_code(0);
    assert_eq!(scene.repo.read("doc"), "1agent\n2\n3\n");
    assert_eq!(std::fs::read_to_string(scene.home("tries")).unwrap(), "x\n", "it was done once");
    assert_eq!(scene.task("task-001")["attempts"], 1);
    scene.check_done_once();
    scene.end();
}

/// Of a task of which nothing is there nothing is rolled back: what was committed since is somebody's own.
#[test]
fn what_a_person_committed_since_a_task_was_interrupted_stays() {
    let scene = Scene::new();
    scene.add("One", "test -f never", &["--max-attempts", "2"]);
    scene.interrupt("task-001");
    scene.repo.write("mine", "mine");
    scene.repo.git(&["add", "mine"]);
    scene.repo.git(&["commit", "--quiet", "--message", "my own"]);
    let own = scene.repo.git(&["rev-parse", "HEAD"]);
    scene.tasks(&["recover", "task-001"]).expect_code(0);
    assert_eq!(scene.repo.git(&["rev-parse", "HEAD"]), own, "{}", scene.log());
    assert!(scene.log().contains("[SESSION_TIMEOUT] No progress detected"), "{}", scene.log());
    assert_eq!((scene.status("task-001"), &scene.task("task-001")["attempts"]), ("failed".into(), &json!(1)));
    scene.end();
}

/// An agent that breaks its clone ends no run of others.
#[test]
fn an_agent_that_breaks_its_clone_has_failed_and_the_next_one_has_another() {
    let scene = Scene::new();
    for file in ["f1", "f2", "f3"] {
        scene.add(file, &format!("test -f {file}"), &[]);
    }
    let script = "touch f1 f2 f3; test -e \"$HOME/$MULETEER_TASK_ID\" || { touch \"$HOME/$MULETEER_TASK_ID\";
        case $MULETEER_TASK_ID in task-001) rm -rf .git;; task-002) rm -rf \"$PWD\";; esac; }";
    scene.run(script, &["--concurrency", "2"]).expect_code(0);
    let attempts = |id: &str| scene.task(id)["attempts"].as_u64();
    assert_eq!((attempts("task-001"), attempts("task-002")), (Some(2), Some(2)), "{}", scene.log());
    for id in ["task-001", "task-002"] {
        let said = format!("ERROR [{id}] [TASK_EXEC] git cannot work in its clone any more (");
        assert!(scene.log().contains(&said), "{said}\n{}", scene.log());
    }
    scene.check_done_once();
    scene.end();
}

/// Only the validation says that a task is completed, and only the harness writes it down.
#[test]
fn an_agent_that_calls_its_own_task_completed_is_judged_all_the_same() {
    for more in [&[][..], &["--concurrency", "2"]] {
        let scene = Scene::new();
        scene.add("One", "test -f never", &["--max-attempts", "2"]);
        scene.add("Two", "test -f f2", &[]);
        let script = "touch f2; sed -i 's/in_progress/completed/; s/\"attempts\": 0/\"attempts\": 1/' \"$HARNESS_STATE_ROOT/harness-tasks.json\"";
        let ran = scene.run(script, more).expect_code(4);
        let task = scene.task("task-001");
        assert_eq!((scene.status("task-001"), scene.status("task-002")), ("failed".into(), "completed".into()));
        assert_eq!((&task["attempts"], &task["completed_at"]), (&json!(2), &Value::Null), "{task}");
        assert!(task["error_log"].to_string().contains("[TEST_FAIL]"), "{task}");
        // Of two agents at once, one may write over what the other has just changed.
        let both = if more.is_empty() { ", attempts in harness-tasks.json" } else { "" };
        let said = format!("WARN [task-001] somebody has changed its status{both}");
        assert!(scene.log().contains(&said), "{}", scene.log());
        assert!(ran.stderr.contains("warning: task-001: somebody has changed"), "{ran:?}");
        scene.end();
    }
}

/// Who is judged says neither what the tasks are nor how they are judged: with the verbs of this program, nor with those of
/// another agent that it dispatched.
#[test]
fn an_agent_may_not_change_what_tasks_are_or_how_they_are_judged() {
    let scene = Scene::new();
    scene.add("One", "test -f never", &["--max-attempts", "1"]);
    scene.add("Two", "test -f neither", &["--max-attempts", "1", "--depends-on", "task-001"]);
    scene.add("Failed", "false", &["--priority", "P0", "--max-attempts", "1"]);
    scene.run("true", &["--once"]).expect_code(5);
    std::fs::write(scene.home("plan.md"), "- [x] Done\n").unwrap();
    let script = "muleteer tasks checkpoint task-001 1/2 half && echo ok > \"$HOME/checkpoint\"
        edit() { muleteer tasks edit task-001 --validate true --json; echo $?; }
        { edit; muleteer tasks edit task-002 --validate true --json; echo $?; muleteer tasks retry task-003 --json; echo $?
        muleteer tasks import \"$HOME/plan.md\" --json; echo $?; unset MULETEER_TASKS_RUN; edit; } > \"$HOME/said\"";
    scene.run(script, &[]).expect_code(4);
    let said = std::fs::read_to_string(scene.home("said")).unwrap();
    assert_eq!(said.matches("\"E_FORBIDDEN\"").count(), 5, "{said}");
    assert_eq!(said.lines().filter(|line| *line == "3").count(), 5, "{said}");
    assert_eq!(std::fs::read_to_string(scene.home("checkpoint")).unwrap(), "ok\n", "what is its to say");
    assert_eq!(scene.all().len(), 3);
    assert_eq!(["task-001", "task-002", "task-003"].map(|id| scene.status(id)), ["failed", "failed", "failed"]);
    // A person may, when the run has ended.
    scene.tasks(&["edit", "task-001", "--validate", "true"]).expect_code(0);
    scene.end();
}

/// What it writes into the file by hand about what is not its to say is said, and does not count: of a list that a session holds
/// nobody else changes that.
#[test]
fn what_an_agent_writes_over_of_the_list_is_put_back_and_said() {
    for more in [&[][..], &["--concurrency", "2"]] {
        let scene = Scene::new();
        let own = scene.add("One", "test -f never", &["--max-attempts", "2", "--priority", "P0"]);
        let other = scene.add("Two", "test -f f2", &[]);
        scene.add("Three", "touch \"$HOME/judged\"; test -f f3", &["--priority", "P2"]);
        scene.tasks(&["edit", &other, "--depends-on", "task-003"]).expect_code(0);
        let gone = scene.add("Four", "test -f f4", &["--depends-on", "task-003"]);
        let script = r#"n=${MULETEER_TASK_ID#task-00}; if [ $n = 1 ] && [ ! -e "$HOME/tried" ]; then
            touch "$HOME/tried"; cd "$HARNESS_STATE_ROOT"; node -e '
            const fs = require("fs"), list = JSON.parse(fs.readFileSync("harness-tasks.json"));
            const [one, two, three] = list.tasks;
            one.validation = {command: "true", timeout_seconds: 7};
            for (const task of [two, three]) { task.status = "completed"; task.completed_at = "2025-07-01T10:00:00Z"; }
            two.depends_on = []; three.title = "In other words";
            list.tasks = [one, two, three]; list.session_config.max_tasks_per_session = 1;
            fs.writeFileSync("harness-tasks.json", JSON.stringify(list));'
            else touch f$n; fi"#;
        let ran = scene.run(script, more).expect_code(4);
        let task = scene.task(&own);
        assert_eq!((scene.status(&own), &task["attempts"]), ("failed".into(), &json!(2)), "{task}");
        assert_eq!(task["validation"], json!({"command": "test -f never", "timeout_seconds": 300}));
        for id in [&other, "task-003", &gone] {
            assert_eq!((scene.status(id), &scene.task(id)["attempts"]), ("completed".into(), &json!(1)), "{id}");
        }
        assert!(
            scene.home("judged").exists() && ["f2", "f3", "f4"].iter().all(|name| scene.repo.path.join(name).exists())
        );
        assert_eq!(scene.task(&other)["depends_on"], json!(["task-003"]));
        assert_eq!(scene.task("task-003")["title"], "In other words");
        assert_eq!(scene.list()["session_config"]["max_tasks_per_session"], 20);
        for said in [
            "[task-001] somebody has changed its validation.command, validation.timeout_seconds in harness-tasks.json",
            "[task-002] somebody has changed its status, completed_at in",
            "[task-002] somebody has changed its depends_on in",
            "[task-003] somebody has changed its title in",
            "[task-004] somebody has taken it out of",
            "somebody has changed session_config",
        ] {
            assert!(scene.log().contains(&format!("WARN {said}")), "{said}: {}", scene.log());
            let (of, words) = said.split_once("] ").unwrap_or(("", said));
            let told =
                format!("warning: {}{words}", if of.is_empty() { String::new() } else { format!("{}: ", &of[1..]) });
            assert!(ran.stderr.contains(&told), "{told}: {ran:?}");
        }
        scene.end();
    }
}

/// Also where the daemon that wrote the list is dead.
#[test]
fn what_was_written_over_while_no_daemon_was_there_is_put_back() {
    let scene = Scene::new();
    scene.add("One", "test -f f1", &["--priority", "P0"]);
    scene.add("Two", "test -f f2", &[]);
    let mut daemon = scene.world.daemon();
    let script =
        "touch \"$HOME/begun\"; while [ ! -e \"$HOME/go\" ]; do sleep 0.05; done; touch f${MULETEER_TASK_ID#task-00}";
    let client = scene.begin(script, 1);
    wait_until("the agent to begin", RUN, || scene.home("begun").exists().then_some(()));
    daemon.kill_9();
    let mut list = scene.list();
    for task in list["tasks"].as_array_mut().unwrap() {
        task["status"] = json!("completed");
    }
    scene.repo.write("harness-tasks.json", &list.to_string());
    let daemon = scene.world.daemon();
    std::fs::write(scene.home("go"), "").unwrap();
    scene.wait_until_done();
    drop(client);
    assert!(["f1", "f2"].iter().all(|name| scene.repo.path.join(name).exists()), "{}", scene.log());
    assert!(scene.log().contains("WARN [task-002] somebody has changed its status in"), "{}", scene.log());
    scene.check_done_once();
    scene.world.finish(Some(daemon));
}

/// An agent's work is done where the person looks for it, and after what the person did.
#[test]
fn who_rewrites_history_or_leaves_the_branch_has_not_completed_a_task() {
    let scene = Scene::new();
    scene.add("One", "test -f f1", &["--max-attempts", "3"]);
    scene.repo.write("precious", "p\n");
    scene.repo.git(&["add", "precious"]);
    scene.repo.git(&["commit", "-qm", "a person's"]);
    let base = scene.repo.git(&["rev-parse", "HEAD"]);
    let script = "echo x >> \"$HOME/tries\"; touch f1; case $(wc -l < \"$HOME/tries\") in
        1) git reset -q --hard HEAD~1;;
        2) git tag main; git checkout -q -b side; git add f1; git commit -qm mine;;
        esac; touch f1";
    scene.run(script, &[]).expect_code(0);
    let task = scene.task("task-001");
    assert_eq!((task["status"].as_str(), task["attempts"].as_u64()), (Some("completed"), Some(3)), "{task}");
    let said = |at: usize| task["error_log"][at].as_str().unwrap_or_default().to_string();
    assert!(said(0).starts_with("[TASK_EXEC] the agent took commit "), "{task}");
    assert!(
        said(1).starts_with("[TASK_EXEC] the agent left HEAD on branch `side`; the task began on `main`"),
        "{task}"
    );
    assert_eq!(scene.repo.git(&["symbolic-ref", "HEAD"]), "refs/heads/main");
    assert_eq!(scene.repo.git(&["rev-parse", "HEAD~1"]), base);
    assert_eq!(scene.repo.git(&["log", "-1", "--format=%s", "side"]), "mine", "it stays what it was");
    for (number, file) in [(1, "f1"), (2, "precious")] {
        let saved = format!("refs/muleteer/rollback/task-001/{number}");
        assert!(scene.log().contains(&format!("(saved as {saved})")), "{}", scene.log());
        scene.repo.git(&["cat-file", "-e", &format!("{saved}:{file}")]);
        scene.repo.git(&["merge-base", "--is-ancestor", &base, &saved]);
    }
    // Nor is what an interrupted one left.
    scene.add("Two", "test -f f2", &["--max-attempts", "1"]);
    let base = scene.interrupt("task-002");
    scene.repo.git(&["reset", "-q", "--hard", "HEAD~1"]);
    scene.repo.write("f2", "");
    scene.run("true", &[]).expect_code(4);
    assert_eq!(scene.status("task-002"), "failed");
    assert_eq!(scene.repo.git(&["rev-parse", "HEAD"]), base);
    // Between two tasks it is a person who checks something else out: the run ends, and nothing is moved.
    scene.add("Three", "false", &["--max-attempts", "1", "--cleanup", "git checkout -q -f side"]);
    scene.add("Four", "true", &[]);
    let ended = scene.run("true", &["--json"]);
    assert!(ended.stdout.contains("HEAD is on `side` now, and was on `main`"), "{ended:?}");
    assert_eq!((ended.error_code().as_str(), scene.status("task-004").as_str()), ("E_TASKS_GIT", "pending"));
    assert_eq!(scene.repo.git(&["log", "-1", "--format=%s"]), "mine");
    scene.world.finish(None);
}

#[test]
fn a_session_recovers_what_was_interrupted_and_sessions_are_counted_and_limited() {
    let scene = Scene::new();
    scene.add("Uncommitted", "test -f done", &[]);
    scene.interrupt("task-001");
    scene.repo.write("done", "x\n");
    scene.configure("max_sessions", json!(1));
    scene.run("exit 1", &[]).expect_code(0);
    let log = scene.log();
    assert!(log.contains("[SESSION-1] RECOVERY [task-001] action=\"validate\""), "{log}");
    assert!(!log.contains(" Starting "), "nobody was needed");
    assert_eq!(scene.repo.git(&["status", "--porcelain", "--", "done"]), "", "committed");
    let order = ["LOCK acquired", "RECOVERY", "Completed [task-001]", "STATS", "LOCK released"];
    let at: Vec<_> = order
        .iter()
        .map(|what| log.find(what).unwrap_or_else(|| panic!("no {what}: {log}")))
        .collect();
    assert!(at.is_sorted(), "{log}");
    scene.add("One more", "true", &[]);
    let run = scene.run("true", &["--json"]).expect_code(5).json();
    assert_eq!((run["status"].as_str(), scene.status("task-002").as_str()), (Some("limit"), "pending"), "{run}");
    assert_eq!(scene.list()["session_count"], 1);
    assert!(scene.list()["last_session"].is_string());
    scene.configure("max_sessions", json!(10));
    scene.configure("max_tasks_per_session", json!(1));
    scene.add("And another", "true", &[]);
    scene.run("true", &[]).expect_code(5);
    assert_eq!((scene.status("task-002").as_str(), scene.status("task-003").as_str()), ("completed", "pending"));
    assert!(scene.log().contains("[SESSION-2] STATS tasks_total=3 completed=2 failed=0 pending=1"), "{}", scene.log());
    scene.end();
}

#[test]
fn lists_are_imported_from_beads_and_checklists() {
    let scene = Scene::new();
    let beads = scene.world.path().join("issues.jsonl");
    let lines = [
        json!({"id": "bd-1", "title": "First", "status": "closed", "priority": 0, "issue_type": "task",
               "closed_at": "2025-07-01T10:00:00Z"}),
        json!({"id": "bd-2", "title": "Second", "status": "open", "priority": 1, "issue_type": "task",
               "dependencies": [{"issue_id": "bd-2", "depends_on_id": "bd-1", "type": "blocks"}]}),
    ];
    std::fs::write(&beads, lines.map(|line| format!("{line}\n")).concat()).unwrap();
    let told = scene.tasks(&["import", beads.to_str().unwrap(), "--json"]).expect_code(0).json();
    assert_eq!(told["added"], json!(["bd-1", "bd-2"]));
    assert_eq!(
        (scene.status("bd-1").as_str(), scene.task("bd-2")["depends_on"][0].as_str()),
        ("completed", Some("bd-1"))
    );
    assert_eq!(scene.tasks(&["import", beads.to_str().unwrap(), "--json"]).json()["skipped"], 2, "safe to repeat");
    scene
        .repo
        .write("PLAN.md", "# Plan\n\n- [ ] Whole\n  validate: `test -f whole`\n  - [ ] Part\n- [x] Done\n");
    scene.tasks(&["import", "PLAN.md"]).expect_code(0);
    let titles: Vec<_> = scene.all().iter().map(|task| task["title"].as_str().unwrap().to_string()).collect();
    assert_eq!(titles, ["First", "Second", "Whole", "Part", "Done"]);
    let whole = &scene.all()[2];
    assert_eq!(
        (whole["validation"]["command"].as_str(), whole["depends_on"][0].as_str()),
        (Some("test -f whole"), scene.all()[3]["id"].as_str())
    );
    scene.repo.write("marked.md", "\u{feff}- [ ] With a mark\n- [ ] Without\n");
    assert_eq!(
        scene.tasks(&["import", "marked.md"]).expect_code(0).stdout.lines().count(),
        2,
        "an editor's mark is no text"
    );
    let lost =
        r#"{"id": "bd-3", "title": "Third", "dependencies": [{"depends_on_id": "bd-8"}, {"depends_on_id": "bd-1"}]}"#;
    scene.repo.write("lost.jsonl", lost);
    let told = scene.tasks(&["import", "lost.jsonl", "--json"]).expect_code(0).json();
    assert_eq!(told["dropped"], json!([{"task": "bd-3", "depends_on": "bd-8"}]));
    scene.repo.write("lost.jsonl", &lost.replace("bd-3", "bd-4"));
    let told = scene.tasks(&["import", "lost.jsonl"]).expect_code(0).stderr;
    assert!(told.contains("bd-4 depends on bd-8, which is in neither"), "{told}");
    let needs = |id: &str, on: &str| {
        format!("{{\"id\":\"{id}\",\"title\":\"x\",\"dependencies\":[{{\"depends_on_id\":\"{on}\"}}]}}\n")
    };
    scene
        .repo
        .write("round.jsonl", &(needs("r1", "bd-1") + &needs("r2", "r3") + &needs("r3", "r2")));
    let before = scene.list();
    let refused = scene.tasks(&["import", "round.jsonl", "--json"]).expect_code(2).json();
    assert_eq!(
        (&refused["error"]["code"], &refused["error"]["line"]),
        (&json!("E_GRAPH_CYCLE"), &json!(2)),
        "{refused}"
    );
    assert!(refused["error"]["file"].as_str().is_some_and(|file| file.ends_with("round.jsonl")), "{refused}");
    assert!(refused["error"]["message"].as_str().is_some_and(|text| text.contains("r2 -> r3 -> r2")), "{refused}");
    assert_eq!(scene.list(), before);
    scene.repo.write("bad.jsonl", "{\"id\": 1}\n");
    let refused = scene.tasks(&["import", "bad.jsonl", "--json"]).expect_code(2).json();
    assert_eq!(refused["error"]["line"], 1);
    scene.end();
}

#[test]
fn every_verb_answers_in_json() {
    let scene = Scene::new();
    let json = |args: &[&str], code: i32| {
        let args: Vec<_> = args.iter().copied().chain(["--json"]).collect();
        let said = scene.tasks(&args).expect_code(code);
        let document: Value =
            serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{args:?}: {error} {said:?}"));
        document
    };
    assert_eq!(json(&["init"], 0)["created"], false);
    assert_eq!(
        json(&["add", "One", "--validate", "test -f one", "--priority", "P0", "--timeout", "5m"], 0)["id"],
        "task-001"
    );
    assert_eq!(json(&["add", "Two", "--depends-on", "task-001", "--validate", "true"], 0)["depends_on"][0], "task-001");
    assert_eq!(json(&["edit", "task-002", "--title", "Zwei", "--max-attempts", "1"], 0)["title"], "Zwei");
    assert_eq!(json(&["show", "task-001"], 0)["validation"]["timeout_seconds"], 300);
    assert_eq!(json(&["show", "task-009"], 2)["error"]["code"], "E_TASK_UNKNOWN");
    assert_eq!(json(&["graph"], 0)["eligible"], json!(["task-001"]));
    assert_eq!(json(&["validate"], 0)["ok"], true);
    assert_eq!(json(&["validate", "task-001"], 4)["passed"], false);
    assert_eq!(json(&["claim", "--worker", "w"], 0)["task"]["id"], "task-001");
    assert_eq!(json(&["claim", "task-001", "--worker", "v"], 3)["error"]["code"], "E_TASK_CLAIMED");
    assert!(json(&["renew", "task-001", "--worker", "w"], 0)["lease_expires_at"].is_string());
    assert_eq!(json(&["checkpoint", "task-001", "1/2", "half", "--worker", "w"], 0)["checkpoints"], 1);
    assert_eq!(json(&["complete", "task-001", "--worker", "w"], 4)["error"]["code"], "E_TASK_FAILED");
    assert_eq!(json(&["fail", "task-001", "not like this", "--worker", "w"], 0)["status"], "failed");
    assert_eq!(json(&["claim", "--worker", "w"], 0)["task"]["attempts"], 1);
    assert_eq!(json(&["recover", "--worker", "w"], 0)["recovered"][0]["action"], "failed");
    json(&["claim", "--worker", "w"], 0);
    scene.repo.write("one", "1\n");
    let done = json(&["complete", "task-001", "--worker", "w"], 0);
    assert_eq!((done["status"].as_str(), done["next"].as_str()), (Some("completed"), Some("task-002")));
    json(&["claim", "--worker", "w"], 0);
    json(&["fail", "task-002", "no", "--worker", "w"], 0);
    assert_eq!(json(&["retry", "task-002"], 0)["retried"], json!(["task-002"]));
    assert_eq!(json(&["undo", "--list"], 0)["saved"], json!([]));
    assert_eq!(json(&["undo"], 2)["error"]["code"], "E_NOT_FOUND");
    assert_eq!(json(&["stop"], 2)["error"]["code"], "E_NOT_FOUND");
    let status = json(&["status"], 0);
    assert_eq!((status["counts"]["completed"].as_u64(), status["counts"]["pending"].as_u64()), (Some(1), Some(1)));
    assert_eq!(json(&["run", "--backend", "subprocess", "--command", "true"], 0)["status"], "completed");
    scene.end();
}

#[test]
fn a_list_begins_with_its_files_and_status_tells_how_it_stands() {
    let scene = Scene::new();
    let there = |name: &str| scene.repo.path.join(name).exists();
    assert!(there(".harness-active") && !there("harness-init.sh"));
    assert!(scene.log().contains("[SESSION-1] INIT Harness initialized for project "), "{}", scene.log());
    let list = scene.list();
    assert_eq!(
        (list["version"].as_u64(), &list["tasks"], list["session_count"].as_u64()),
        (Some(2), &json!([]), Some(0))
    );
    assert_eq!(list["session_config"]["concurrency_mode"], "exclusive");
    let log = scene.log();
    scene.tasks(&["init", "--script", "--gitignore"]).expect_code(0);
    assert_eq!((scene.list(), scene.log()), (list, log), "what is there is kept");
    assert!(scene.repo.read(".gitignore").lines().any(|line| line == "/harness-tasks.json"));
    scene.add("One", "true", &[]);
    scene.add("Two,\nof two lines", "true", &["--depends-on", "task-001"]);
    std::fs::remove_file(scene.repo.path.join(".harness-active")).unwrap();
    // The script is a program, run at the session's start, from the project and with the agents' variables.
    scene
        .repo
        .write("harness-init.sh", "#!/bin/sh\npwd > \"$HOME/init\"; ls -a > \"$HOME/files\"\n");
    scene.run("ls -a > \"$HOME/files.2\"", &["--once"]).expect_code(5);
    assert!(scene.log().contains("INIT Environment health check: PASS"), "{}", scene.log());
    assert_eq!(std::fs::read_to_string(scene.home("init")).unwrap().trim(), scene.repo.to_str());
    assert!(
        std::fs::read_to_string(scene.home("files.2")).unwrap().contains(".harness-active"),
        "a run marks the list"
    );
    let status = scene.tasks(&["status"]).expect_code(0).stdout;
    assert!(
        status.contains("[completed] task-001: One (1/3)\n[pending] task-002: Two, of two lines (0/3)\n"),
        "{status}"
    );
    assert!(
        status.contains("2 tasks: 1 completed, 0 in progress, 0 failed, 1 pending (0 of them blocked)"),
        "{status}"
    );
    let last: Vec<_> = scene.log().lines().rev().take(5).map(String::from).collect();
    assert!(last.iter().all(|line| status.contains(line)), "{status}");
    assert!(status.contains("sessions: 1, the last ended: 20"), "{status}");
    scene.end();
}

#[test]
fn concurrent_mode_holds_the_lock_only_for_a_change() {
    let scene = Scene::new();
    scene.configure("concurrency_mode", json!("concurrent"));
    scene.add("Slow", "test -f done", &[]);
    let script = "touch \"$HOME/began\"; while [ ! -e \"$HOME/go\" ]; do sleep 0.05; done; echo > done";
    let begun = scene.run(script, &["--detach"]).expect_code(0).stdout;
    wait_until("the agent to begin", RUN, || scene.home("began").exists().then_some(()));
    let slow = scene.task("task-001");
    assert!(slow["claimed_by"].is_string() && slow["lease_expires_at"].is_string(), "{slow}");
    let status = scene.tasks(&["status", "--json"]).expect_code(0).json();
    assert_eq!(status["run_id"].as_str(), Some(begun.trim()), "{status}");
    let told = scene.tasks(&["status"]).expect_code(0).stdout;
    assert!(told.contains(&format!("run {} works on it", begun.trim())), "{told}");
    // While work is done, others change the list; a held task is nobody else's.
    scene.add("Another", "true", &[]);
    scene.tasks(&["claim", "task-001", "--worker", "other"]).expect_code(3);
    assert_eq!(scene.tasks(&["recover", "--worker", "other", "--json"]).json()["recovered"], json!([]));
    assert_eq!(scene.tasks(&["claim", "--worker", "other"]).expect_code(0).stdout.trim(), "task-002");
    scene.tasks(&["complete", "task-002", "--worker", "other"]).expect_code(0);
    std::fs::write(scene.home("go"), "").unwrap();
    wait_until("both to be done", RUN, || scene.is_done().then_some(()));
    wait_until("the run to end", RUN, || scene.log().contains("STATS").then_some(()));
    assert!(!scene.log().contains("LOCK"), "no session holds it: {}", scene.log());
    let over = || scene.tasks(&["status", "--json"]).expect_code(0).json()["run_id"].is_null();
    wait_until("nobody to work on it", RUN, || over().then_some(()));
    scene.check_done_once();
    scene.end();
}

/// Who begins a run of a concurrent list recovers what a dead worker has left on the branch, as who begins one of an exclusive list.
#[test]
fn what_a_dead_worker_of_a_concurrent_list_has_left_is_recovered_by_what_is_on_the_branch() {
    let scene = Scene::new();
    scene.configure("concurrency_mode", json!("concurrent"));
    for (title, validate) in [("Passes", "grep -q good w1"), ("Fails", "grep -q good w2"), ("Nothing", "test -f w3")] {
        scene.add(title, validate, &[]);
    }
    for (id, file, text) in [("task-001", "w1", "good\n"), ("task-002", "w2", "bad\n"), ("task-003", "", "")] {
        scene.abandon(id);
        if !file.is_empty() {
            scene.repo.write(file, text);
            scene.repo.git(&["add", file]);
            scene.repo.git(&["commit", "-qm", &format!("{id}: some of it")]);
        }
    }
    scene.repo.write("mine", "a person's\n");
    scene
        .run("n=${MULETEER_TASK_ID#task-00}; echo $n >> \"$HOME/effects\"; echo good > w$n", &[])
        .expect_code(0);
    let log = scene.log();
    assert_eq!(scene.effects(), ["2", "3"], "what passes on the branch is not done again: {log}");
    let of = |id: &str| (scene.task(id)["attempts"].as_u64().unwrap(), scene.task(id)["error_log"].to_string());
    assert_eq!(of("task-001"), (1, "[]".into()), "{log}");
    assert!(
        of("task-002")
            .1
            .contains("[SESSION_TIMEOUT] interrupted, and what was there did not pass"),
        "{log}"
    );
    assert!(of("task-003").1.contains("[SESSION_TIMEOUT] No progress detected"), "{log}");
    assert_eq!((of("task-002").0, of("task-003").0), (2, 2));
    for (id, action) in [("task-001", "validate"), ("task-002", "validate"), ("task-003", "mark failed")] {
        assert!(log.contains(&format!("RECOVERY [{id}] action=\"{action}\"")), "{log}");
    }
    assert_eq!(scene.repo.read("mine"), "a person's\n");
    assert!(!log.contains("ROLLBACK"), "what is on the branch is everybody's: {log}");
    scene.check_done_once();
    scene.end();
}

/// A claim lasts as long as its lease: who waits for one is told whose it is.
#[test]
fn a_run_that_waits_for_somebody_else_says_for_whom() {
    let scene = Scene::new();
    scene.configure("concurrency_mode", json!("concurrent"));
    scene.add("Bob has it", "true", &[]);
    scene.tasks(&["claim", "--worker", "bob", "--lease", "60s"]).expect_code(0);
    let mut command = std::process::Command::new(scene.world.program());
    command
        .args(["tasks", "run", "--backend", "subprocess", "--command", "true"])
        .current_dir(&scene.repo.path);
    scene.world.environment(&mut command);
    let mut run = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map_while(Result::ok);
    let told = lines.find(|line| line.contains("task-001  is claimed by bob, who is waited for, until 2"));
    assert!(told.is_some(), "it ended by itself, with his lease: {}", scene.log());
    scene.tasks(&["complete", "task-001", "--worker", "bob"]).expect_code(0);
    lines.for_each(drop);
    assert!(run.wait().unwrap().success());
    scene.end();
}

#[test]
fn a_run_that_is_stopped_at_once_leaves_its_task_to_the_next_session() {
    let scene = Scene::new();
    scene.add("Stepwise", "test -f one -a -f two", &[]);
    let script = "if [ -e one ]; then cat \"$MULETEER_PROMPT_FILE\" > \"$HOME/prompt\"; echo > two; else \
        muleteer tasks checkpoint $MULETEER_TASK_ID 1/2 nothing yet; touch \"$HOME/began\"; sleep 1000; fi";
    scene.run(script, &["--detach"]).expect_code(0);
    wait_until("the agent to begin", RUN, || scene.home("began").exists().then_some(()));
    scene.tasks(&["stop", "--now"]).expect_code(0);
    wait_until("the run to end", RUN, || scene.log().contains("LOCK released").then_some(()));
    assert_eq!(scene.status("task-001"), "in_progress");
    assert!(!scene.log().contains("ROLLBACK") && scene.task("task-001")["attempts"] == 0, "{}", scene.log());
    // Its checkpoint holds, so the next session goes on behind it.
    let second = "cat \"$MULETEER_PROMPT_FILE\" > \"$HOME/prompt\"; echo > one; echo > two";
    // The list is let go of a moment before the end of its run is durable: until then there is one too many.
    let done = wait_until("the next session", RUN, || {
        Some(scene.run(second, &[])).filter(|run| !run.stderr.contains("E_TASKS_LOCKED"))
    });
    done.expect_code(0);
    assert!(
        scene
            .log()
            .contains("[SESSION-2] RECOVERY [task-001] action=\"resume from the last checkpoint\"")
    );
    let prompt = std::fs::read_to_string(scene.home("prompt")).unwrap();
    assert!(prompt.contains("The work was interrupted") && prompt.contains("- 1/2: nothing yet"), "{prompt}");
    scene.check_done_once();
    scene.end();
}

/// A clean-up has no limit but half an hour: who stops the run, or the daemon, does not wait for it.
#[test]
fn a_clean_up_ends_with_the_run_and_with_the_daemon() {
    let scene = Scene::new();
    let cleanup = "echo x >> \"$HOME/cleaning\"; exec sleep 611";
    let cleaning = |times: usize| {
        let begun = || std::fs::read_to_string(scene.home("cleaning")).unwrap_or_default().lines().count() == times;
        wait_until("the clean-up to begin", RUN, || begun().then_some(()));
    };
    scene.add("Fails", "false", &["--max-attempts", "1", "--cleanup", cleanup]);
    scene.run("true", &["--detach"]).expect_code(0);
    cleaning(1);
    let told = scene.tasks(&["stop", "--now"]).expect_code(0);
    assert!(told.stderr.contains("is being ended"), "{told:?}");
    wait_until("the run to end", RUN, || scene.log().contains("LOCK released").then_some(()));
    assert!(scene.log().contains("WARN [task-001] on_failure.cleanup was called off"), "{}", scene.log());
    let task = scene.task("task-001");
    assert_eq!((&task["status"], &task["attempts"]), (&json!("failed"), &json!(1)), "what came of it is known");
    // The next daemon begins with it again.
    scene.add("Fails too", "false", &["--max-attempts", "1", "--cleanup", cleanup]);
    scene.run("true", &["--detach"]).expect_code(0);
    cleaning(2);
    scene.world.muleteer(&["daemon", "stop"]).run().expect_code(0);
    scene.world.wait_for_nothing_left(&[]);
    assert_eq!(scene.status("task-002"), "in_progress", "{}", scene.log());
    let daemon = scene.world.daemon();
    cleaning(3);
    scene.tasks(&["stop", "--now"]).expect_code(0);
    wait_until("the run to end", RUN, || (scene.status("task-002") == "failed").then_some(()));
    assert_eq!(scene.task("task-002")["attempts"], 1);
    scene.world.finish(Some(daemon));
}

/// That it was called off says nothing of the environment.
#[test]
fn a_run_that_is_stopped_while_its_environment_is_made_has_not_failed_by_that() {
    let scene = Scene::new();
    scene.add("One", "true", &[]);
    scene.repo.write("harness-init.sh", "touch \"$HOME/begun\"; sleep 611\n");
    scene.run("true", &["--detach"]).expect_code(0);
    wait_until("the script to begin", RUN, || scene.home("begun").exists().then_some(()));
    scene.tasks(&["stop", "--now"]).expect_code(0);
    wait_until("the run to end", RUN, || scene.log().contains("LOCK released").then_some(()));
    let log = scene.log();
    assert!(!log.contains("FAIL") && !log.contains("ENV_SETUP"), "{log}");
    let session = |what: &str| {
        let line = log.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("no {what}: {log}"));
        line.split("[SESSION-").nth(1).and_then(|rest| rest.split(']').next()).map(String::from)
    };
    assert_eq!(session("STATS"), session("LOCK acquired"), "{log}");
    assert_eq!(scene.list()["session_count"], 0, "none was begun");
    scene.end();
}

#[test]
fn a_corrupt_list_is_restored_or_stops_the_run() {
    let scene = Scene::new();
    scene.add("One", "true", &[]);
    scene.add("Two", "true", &[]);
    scene.repo.write("harness-tasks.json", "{\"version\": 2, \"tas");
    assert_eq!(scene.tasks(&["status", "--json"]).json()["counts"]["total"], 1, "what the backup holds");
    let told = scene.run("true", &[]).expect_code(0).stderr;
    assert_eq!(scene.status("task-001"), "completed");
    assert!(told.contains("warning: harness-tasks.json was corrupted"), "{told}");
    assert_eq!(scene.repo.read("harness-tasks.json.damaged"), "{\"version\": 2, \"tas");
    assert!(scene.log().contains("what it held is kept as harness-tasks.json.damaged: "), "{}", scene.log());
    // In the middle of a run it is the daemon that finds it.
    scene.add("Three", "true", &[]);
    let told = scene.run("echo '{,' > harness-tasks.json", &[]).expect_code(0).stderr;
    assert!(told.contains("kept as harness-tasks.json.damaged.2: "), "{told}");
    assert_eq!(scene.repo.read("harness-tasks.json.damaged.2"), "{,\n");
    scene.repo.write("harness-tasks.json", "{\"version\": 2, \"tas");
    std::fs::remove_file(scene.repo.path.join("harness-tasks.json.bak")).unwrap();
    let refused = scene.run("true", &["--json"]).expect_code(2);
    assert_eq!(refused.error_code(), "E_TASKS_CORRUPT");
    assert!(scene.log().contains("ERROR [ENV_SETUP] harness-tasks.json corrupted and unrecoverable"));
    scene.world.finish(None);
}

/// Cut short, it would lack tasks that nobody misses.
#[test]
fn what_is_imported_is_whole_and_text() {
    let scene = Scene::new();
    let line = format!("- [ ] {}\n", "x".repeat(1015));
    for (name, bytes, said) in [
        ("large.md", line.repeat(66 << 10).into_bytes(), "over 64 MiB"),
        ("binary.md", b"- [ ] one\n- [ ] \xff\n".to_vec(), "not UTF-8"),
    ] {
        std::fs::write(scene.repo.path.join(name), bytes).unwrap();
        let refused = scene.tasks(&["import", name]);
        assert!(refused.code == Some(2) && refused.stderr.contains(said), "{refused:?}");
        assert!(refused.stderr.contains(name) && scene.all().is_empty(), "{refused:?}");
    }
    let folder = scene.tasks(&["import", "."]);
    assert!(folder.code == Some(2) && folder.stderr.contains("E_BAD_INPUT"), "{folder:?}");
    scene.end();
}

#[test]
fn a_damaged_list_is_no_valid_one() {
    let scene = Scene::new();
    scene.add("One", "true", &[]);
    scene.add("Two", "true", &[]);
    scene.tasks(&["validate"]).expect_code(0);
    scene.repo.write("harness-tasks.json", "{\"a\":");
    let said = scene.tasks(&["validate"]).expect_code(2);
    assert!(said.stdout.contains("is damaged"), "{said:?}");
    let said = scene.tasks(&["validate", "--json"]).expect_code(2);
    let said: Value = serde_json::from_str(&said.stdout).unwrap();
    assert!(said["ok"] == false && said["problems"][0]["task"].is_null(), "{said}");
}

#[test]
fn what_a_person_changes_is_what_a_list_may_hold() {
    let scene = Scene::new();
    let id = scene.add("One", "true", &[]);
    let after = scene.add("After", "true", &["--depends-on", &id]);
    let before = scene.list();
    for args in [
        &["edit", &id, "--title", " "][..],
        &["edit", &id, "--depends-on", &after],
        &["edit", &id, "--depends-on", &id],
        &["edit", &id, "--priority", "P3"],
        &["add", "Two", "--validate", "true", "--priority", "P99"],
        &["claim", "--worker", ""],
    ] {
        scene.tasks(args).expect_code(2);
    }
    assert_eq!(scene.list(), before);
    // Alone with its working directory: what a second one did there would be committed, or rolled back, with the first's.
    let other = scene.add("Other", "true", &[]);
    scene.tasks(&["claim", &id, "--worker", "one"]).expect_code(0);
    let refused = scene.tasks(&["claim", &other, "--worker", "two", "--json"]).expect_code(3);
    assert_eq!(refused.error_code(), "E_TASK_CLAIMED");
    for said in [&["checkpoint", &id, "1/2", " "][..], &["fail", &id, ""]] {
        scene.tasks(&[said, &["--worker", "one"]].concat()).expect_code(2);
    }
    assert_eq!((scene.status(&id), scene.status(&other)), ("in_progress".into(), "pending".into()));
    scene.end();
}

/// Agents tidy up: what is kept beside a list stays, wherever in the repository the list is and whoever began it.
#[test]
fn git_clean_leaves_what_is_kept_beside_a_list() {
    let scene = Scene::new();
    let list = scene.repo.read("harness-tasks.json");
    for folder in ["web", "by/hand"] {
        let kept = format!("{folder}/kept");
        std::fs::create_dir_all(scene.repo.path.join(folder)).unwrap();
        scene.repo.write(&kept, "");
        scene.repo.git(&["add", &kept]);
        scene.repo.git(&["commit", "-qm", "a folder"]);
        if folder == "web" {
            scene.tasks(&["init", "web"]).expect_code(0);
        } else {
            scene.repo.write(&format!("{folder}/harness-tasks.json"), &list);
        }
        scene.tasks(&["--root", folder, "add", "One", "--validate", "false"]).expect_code(0);
        scene.tasks(&["--root", folder, "claim"]).expect_code(0);
        scene.tasks(&["--root", folder, "complete", "task-001"]).expect_code(4);
        let kept = scene.repo.path.join(folder).join(".muleteer/tasks");
        let names = || std::fs::read_dir(&kept).map(|all| all.count()).unwrap_or(0);
        let before = names();
        assert!(before > 0, "{folder}: the output of the validation");
        scene.repo.git(&["clean", "-fdq"]);
        assert_eq!(names(), before, "{folder}");
    }
    scene.world.finish(None);
}

/// As much of an id as names one task is enough, as of a dispatch's.
#[test]
fn a_task_is_named_by_the_beginning_of_its_id() {
    let scene = Scene::new();
    for id in ["parse-dates", "parse-times", "show"] {
        scene.add(id, "true", &["--id", id]);
    }
    scene.tasks(&["edit", "show", "--depends-on", "parse-d"]).expect_code(0);
    assert_eq!(scene.task("show")["depends_on"], json!(["parse-dates"]));
    assert_eq!(scene.tasks(&["show", "sh", "--json"]).expect_code(0).json()["id"], "show");
    let refused = scene.tasks(&["claim", "parse", "--json"]).expect_code(2).json();
    assert_eq!(refused["error"]["code"], "E_AMBIGUOUS");
    let said = refused["error"]["message"].as_str().unwrap();
    assert!(said.contains("`parse` fits 2 tasks: parse-dates, parse-times"), "{said}");
    assert_eq!(scene.tasks(&["show", "x", "--json"]).expect_code(2).error_code(), "E_TASK_UNKNOWN");
    assert_eq!(scene.tasks(&["claim", "parse-d"]).expect_code(0).stdout.trim(), "parse-dates");
    for args in [&["validate", "parse-d"][..], &["renew", "parse-d"], &["checkpoint", "parse-d", "1/1", "all"]] {
        scene.tasks(args).expect_code(0);
    }
    assert_eq!(scene.tasks(&["complete", "parse-d"]).expect_code(0).stdout.trim(), "parse-dates completed");
    scene.end();
}

/// Whatever an agent leaves, its task comes to an end and the next one begins.
#[test]
fn what_an_agent_leaves_behind_stops_no_list() {
    let scene = Scene::new();
    for file in ["f1", "f2", "f3"] {
        scene.add(file, &format!("test -f {file}"), &[]);
    }
    let script = "case $MULETEER_TASK_ID in
        task-001) if [ -e \"$HOME/again\" ]; then touch f1; else touch \"$HOME/again\" .git/index.lock; fi;;
        task-002) git init -q nested; touch f2 \"$(printf '\\377x')\";;
        task-003) touch f3; echo '{' > harness-tasks.json;;
        esac";
    scene.run(script, &[]).expect_code(0);
    assert_eq!(scene.task("task-001")["attempts"], 2, "its first one failed: {}", scene.log());
    assert!(scene.log().contains("WARN [task-003] the list had lost that it was being worked on"), "{}", scene.log());
    let committed = scene.repo.git(&["ls-tree", "-r", "--name-only", "HEAD"]);
    assert!(["f1", "f2", "f3", "377x"].iter().all(|name| committed.contains(name)), "{committed}");
    scene.end();
}

/// It runs in a group of its own, so a key at the terminal does not reach it.
#[test]
fn a_validation_ends_with_whoever_asked_for_it() {
    let scene = Scene::new();
    let id = scene.add("One", "touch \"$HOME/begun\"; sleep 1000", &[]);
    scene.tasks(&["claim"]).expect_code(0);
    for verb in ["validate", "complete"] {
        let asked = scene.world.muleteer(&["tasks", verb, &id]).current_dir(&scene.repo.path);
        let running = asked.deadline(RUN).start();
        wait_until("the validation to begin", RUN, || scene.home("begun").exists().then_some(()));
        let pid = rustix::process::Pid::from_raw(running.pid().cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let said = running.finish();
        assert!(said.code == Some(4) && said.stderr.contains("E_CANCELLED"), "{verb}: {said:?}");
        scene.world.wait_for_nothing_left(&[]);
        std::fs::remove_file(scene.home("begun")).unwrap();
    }
    assert_eq!(scene.status(&id), "in_progress");
    scene.end();
}

/// docs/task-list.md maps what the reference says to tests: they must exist.
#[test]
fn the_map_of_the_reference_names_tests_that_are_there() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let page = read("docs/task-list.md");
    let (_, map) = page.split_once("## The reference, sentence by sentence").unwrap();
    let mut checked = 0;
    for line in map
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| **") && !line.ends_with("| tests |"))
    {
        let (_, tests) = line.trim_end_matches(" |").rsplit_once(" | ").unwrap();
        for test in tests.split(", ") {
            let (place, name) = test.trim_matches('`').split_once("::").unwrap_or_else(|| panic!("{line}"));
            let file = match place {
                "system" => "tests/tests/task_lists.rs".to_string(),
                "hooks" => "tests/tests/task_list_hooks.rs".into(),
                "crash" => "tests/tests/task_list_crash.rs".into(),
                "store" => "crates/store/src/tasklist/tests.rs".into(),
                "git" => "crates/supervisor/src/git/tests.rs".into(),
                "steps" => "crates/supervisor/src/tasklist/steps.rs".into(),
                "process" => "crates/process/src/bounded.rs".into(),
                "list" | "select" => format!("crates/model/src/tasklist/{place}/tests.rs"),
                module => format!("crates/model/src/tasklist/{module}.rs"),
            };
            assert!(read(&file).contains(&format!("fn {name}()")), "{file} has no test {name}, named in: {line}");
            checked += 1;
        }
    }
    assert!(checked > 60, "{checked}");
}
