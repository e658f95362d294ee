//! The task-list harness with real binaries, real repositories and real kills.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::model_server::{ModelServer, Step};
use muleteer_tests::{Output, PATIENCE, Repo, World, claude, wait_until};
use serde_json::{Value, json};
use std::time::Duration;

/// Longer than any wait of these tests may take on a loaded machine.
const RUN: Duration = Duration::from_secs(180);

struct Scene {
    world: World,
    repo: Repo,
}

impl Scene {
    fn new() -> Self {
        let world = World::new();
        let repo = world.repo("repo");
        let scene = Self { world, repo };
        scene.tasks(&["init"]).expect_code(0);
        scene
    }

    fn tasks(&self, args: &[&str]) -> Output {
        let args: Vec<_> = ["tasks"].iter().chain(args).copied().collect();
        self.world.muleteer(&args).current_dir(&self.repo.path).deadline(RUN).run()
    }

    fn add(&self, title: &str, validate: &str, more: &[&str]) -> String {
        let args: Vec<_> = ["add", title, "--validate", validate].iter().chain(more).copied().collect();
        self.tasks(&args).expect_code(0).stdout.trim().to_string()
    }

    fn run(&self, script: &str, more: &[&str]) -> Output {
        let args: Vec<_> = ["run", "--backend", "subprocess", "--command", script]
            .iter()
            .chain(more)
            .copied()
            .collect();
        self.tasks(&args)
    }

    fn list(&self) -> Value {
        serde_json::from_str(&self.repo.read("harness-tasks.json")).expect("the list always parses")
    }

    fn task(&self, id: &str) -> Value {
        let list = self.list();
        let all = list["tasks"].as_array().unwrap();
        all.iter().find(|task| task["id"] == id).unwrap_or_else(|| panic!("no {id}")).clone()
    }

    fn status(&self, id: &str) -> String {
        self.task(id)["status"].as_str().unwrap().to_string()
    }

    fn log(&self) -> String {
        self.repo.read("harness-progress.txt")
    }

    /// Every line of the log is one of the grammar, read as a stranger would.
    fn check_log(&self) {
        let kinds = "INIT Starting Completed ERROR CHECKPOINT ROLLBACK RECOVERY STATS LOCK WARN";
        for line in self.log().lines() {
            let mut words = line.splitn(3, ' ');
            let (at, session, rest) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap_or_default());
            let fits = at.starts_with('[')
                && at.ends_with("Z]")
                && session.starts_with("[SESSION-")
                && kinds.split(' ').any(|kind| rest.split(' ').next() == Some(kind));
            assert!(fits, "no line of the log: {line}");
        }
    }

    /// In the middle of a task, as another tool or a killed session left it.
    fn interrupt(&self, id: &str) -> String {
        let base = self.repo.git(&["rev-parse", "HEAD"]);
        let mut list = self.list();
        for task in list["tasks"].as_array_mut().unwrap().iter_mut().filter(|task| task["id"] == id) {
            task["status"] = json!("in_progress");
            task["started_at_commit"] = json!(base);
        }
        self.repo.write("harness-tasks.json", &serde_json::to_string_pretty(&list).unwrap());
        base
    }

    fn end(self) {
        self.check_log();
        self.world.finish(None);
    }
}

#[test]
fn twelve_tasks_with_a_failure_a_timeout_a_chain_a_rollback_and_a_retry() {
    let scene = Scene::new();
    for number in 1..=6 {
        let before = format!("task-{:03}", number - 1);
        let chain = if number > 1 { vec!["--depends-on", before.as_str()] } else { vec![] };
        scene.add(&format!("Link {number}"), &format!("test -f f{number}"), &chain);
    }
    scene.add("Fails for good", "false", &["--max-attempts", "2", "--cleanup", "echo c >> \"$HOME/cleaned\""]);
    scene.add("Blocked", "true", &["--depends-on", "task-007"]);
    scene.add("Too slow", "sleep 1000", &["--timeout", "1", "--max-attempts", "1"]);
    scene.add("Second time", "test -f second", &[]);
    scene.add("First of all", "test -f urgent", &["--priority", "P0"]);
    scene.add("Commits itself", "test -f own", &[]);
    let script = "n=${MULETEER_TASK_ID#task-0}; muleteer tasks checkpoint $MULETEER_TASK_ID 1/1 began; case $n in \
        07) echo junk > junk; git add junk; git commit -qm 'task-007: junk'; echo more > more;; \
        10) if [ -e \"$HOME/once\" ]; then echo x > second; else touch \"$HOME/once\"; echo y > wrong; fi;; \
        11) echo x > urgent;; 12) echo x > own; git add own; git commit -qm 'task-012: by itself';; \
        0*) echo x > f${n#0};; esac";
    let run = scene.run(script, &["--json"]).expect_code(4);
    let told = run.json();
    assert_eq!((told["status"].as_str(), told["stats"]["completed"].as_u64()), (Some("failed"), Some(9)), "{told}");

    for id in ["task-001", "task-006", "task-010", "task-011", "task-012"] {
        assert_eq!(scene.status(id), "completed", "{id}");
    }
    assert_eq!(
        (scene.task("task-010")["attempts"].as_u64(), scene.task("task-007")["attempts"].as_u64()),
        (Some(2), Some(2))
    );
    assert_eq!(scene.task("task-008")["error_log"][0], "[DEPENDENCY] Blocked by failed task-007");
    assert!(scene.task("task-009")["error_log"][0].as_str().unwrap().starts_with("[TIMEOUT]"));
    assert!(["junk", "more", "wrong"].iter().all(|name| !scene.repo.path.join(name).exists()), "rolled back");
    assert!(
        ["f1", "f6", "second", "urgent", "own"]
            .iter()
            .all(|name| scene.repo.path.join(name).exists())
    );
    assert_eq!(scene.repo.git(&["status", "--porcelain", "--", "f1", "second"]), "", "committed");
    assert!(!scene.repo.git(&["log", "--format=%s"]).contains("junk"));
    assert_eq!(std::fs::read_to_string(scene.world.home().join("cleaned")).unwrap(), "c\nc\n");
    let log = scene.log();
    let first = log.lines().find(|line| line.contains(" Starting ")).unwrap();
    assert!(first.contains("[task-011]"), "P0 first: {first}");
    assert!(log.contains("ROLLBACK [task-007] git reset --hard ") && log.contains("refs/muleteer/rollback/task-007/1"));
    assert!(log.contains("STATS tasks_total=12 completed=9 failed=3 pending=0 blocked=0"), "{log}");
    assert!(log.contains("LOCK acquired (pid=") && log.trim_end().ends_with("LOCK released"));
    assert!(!scene.repo.path.join(".harness-active").exists(), "nothing is left to do");
    assert_eq!(scene.list()["session_count"], 1);

    scene.tasks(&["undo", "refs/muleteer/rollback/task-007/1"]).expect_code(4);
    scene.end();
}

#[test]
fn a_killed_daemon_s_task_is_adopted_and_not_done_twice() {
    let scene = Scene::new();
    scene.add("Slow", "test -f done", &[]);
    let mut daemon = scene.world.daemon();
    let script = "echo began >> \"$HOME/effects\"; while [ ! -e \"$HOME/go\" ]; do sleep 0.05; done; echo x > done";
    let args = ["tasks", "run", "--backend", "subprocess", "--command", script];
    let client = scene.world.muleteer(&args).current_dir(&scene.repo.path).deadline(RUN).start();
    let effects = || std::fs::read_to_string(scene.world.home().join("effects")).unwrap_or_default();
    wait_until("the agent to begin", PATIENCE, || (!effects().is_empty()).then_some(()));
    daemon.kill_9();
    let daemon = scene.world.daemon();
    std::fs::write(scene.world.home().join("go"), "").unwrap();
    client.finish().expect_code(0);
    assert_eq!((effects().as_str(), scene.status("task-001").as_str()), ("began\n", "completed"));
    assert_eq!(scene.log().matches(" Starting ").count(), 1);
    scene.check_log();
    scene.world.finish(Some(daemon));
}

#[test]
fn killed_at_every_point_of_a_task_it_is_done_once() {
    for point in [
        "intent_durable",
        "claimed",
        "list_written",
        "backup_written",
        "validated",
        "saved",
        "committed",
        "outcome_written",
    ] {
        let scene = Scene::new();
        scene.add("Twice", "test -f \"$HOME/once.$MULETEER_NEVER\" -o -f good", &["--max-attempts", "3"]);
        let fault = format!("tasks.{point}");
        let daemon = scene.world.daemon_unready(&[("MULETEER_FAULT", &fault)]);
        wait_until("the daemon to answer", PATIENCE, || {
            (scene.world.status()["daemon"]["running"] == true).then_some(())
        });
        let script = "if [ -e \"$HOME/second\" ]; then echo x > good; else touch \"$HOME/second\"; echo y > bad; fi";
        let run = scene.run(script, &[]);
        assert_eq!(run.code, Some(0), "{point}: {run:?}\n{}", scene.log());
        assert_eq!(scene.status("task-001"), "completed", "{point}");
        assert_eq!(scene.task("task-001")["attempts"], 2, "{point}: {}", scene.log());
        assert!(!scene.repo.path.join("bad").exists() && scene.repo.path.join("good").exists(), "{point}");
        assert!(scene.task("task-001")["lease_expires_at"].is_null(), "{point}");
        drop(daemon);
        scene.end();
    }
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
    for (what, uncommitted, commits, status, said) in table {
        let scene = Scene::new();
        scene.add("Interrupted", "grep -q good work other", &["--max-attempts", "1"]);
        let base = scene.interrupt("task-001");
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
    scene.repo.write("harness-init.sh", "echo broken; exit 1\n");
    scene.run("true", &[]).expect_code(3);
    assert_eq!(scene.log().matches("INIT Environment health check: FAIL").count(), 2, "run twice, then stopped");
    scene
        .repo
        .write("harness-tasks.json", "{\"version\": 2, \"tasks\": [{\"id\": \"a\", \"status\": \"odd\"}]}");
    assert_eq!(scene.run("true", &["--json"]).expect_code(2).json()["error"]["code"], "E_TASKS_INVALID");
    scene.world.finish(None);
}

#[test]
fn a_second_session_fails_fast_and_status_reads_without_the_lock() {
    let scene = Scene::new();
    scene.add("Slow", "test -f done", &[]);
    let id = scene
        .run("while [ ! -e \"$HOME/go\" ]; do sleep 0.05; done; echo > done", &["--detach"])
        .expect_code(0);
    wait_until("the task to begin", PATIENCE, || (scene.status("task-001") == "in_progress").then_some(()));
    scene.run("true", &[]).expect_code(3);
    scene.tasks(&["add", "Another"]).expect_code(3);
    let status = scene.tasks(&["status", "--json"]).expect_code(0).json();
    assert_eq!(status["run_id"], id.stdout.trim());
    scene.tasks(&["stop"]).expect_code(0);
    std::fs::write(scene.world.home().join("go"), "").unwrap();
    wait_until("the run to end", PATIENCE, || scene.log().contains("LOCK released").then_some(()));
    assert_eq!(scene.status("task-001"), "completed", "the task in hand is done first");
    scene.end();
}

#[test]
fn concurrent_workers_have_a_clone_each_and_land_on_the_start_branch_killed_or_not() {
    for workers in ["2", "8"] {
        let scene = Scene::new();
        for number in 1..=9 {
            scene.add(&format!("Task {number}"), &format!("test -f w{number}"), &[]);
        }
        let mut daemon = scene.world.daemon();
        let script = "n=${MULETEER_TASK_ID#task-00}; echo $n >> \"$HOME/effects\"; sleep 0.2; echo x > w$n";
        let args = ["tasks", "run", "--concurrency", workers, "--backend", "subprocess", "--command", script];
        let client = scene.world.muleteer(&args).current_dir(&scene.repo.path).deadline(RUN).start();
        wait_until("some to be done", RUN, || (scene.log().matches(" Completed ").count() >= 2).then_some(()));
        daemon.kill_9();
        let daemon = scene.world.daemon();
        client.finish().expect_code(0);
        let effects = std::fs::read_to_string(scene.world.home().join("effects")).unwrap();
        let mut done: Vec<_> = effects.lines().collect();
        done.sort_unstable();
        assert_eq!(done, ["1", "2", "3", "4", "5", "6", "7", "8", "9"], "each once, none lost");
        assert!((1..=9).all(|number| scene.repo.path.join(format!("w{number}")).exists()));
        assert_eq!(scene.repo.git(&["status", "--porcelain", "--", "w1", "w9"]), "");
        assert_eq!(scene.repo.git(&["rev-list", "--count", "HEAD"]), "10");
        let list = scene.list();
        assert!(list["tasks"].as_array().unwrap().iter().all(|task| task["lease_expires_at"].is_null()));
        scene.check_log();
        scene.world.finish(Some(daemon));
    }
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

/// Workers that are plain shells, killed at random: the claim is the gate.
#[test]
fn two_and_eight_foreign_workers_killed_at_random_lose_nothing_and_do_nothing_twice() {
    for count in [2, 8] {
        let scene = Scene::new();
        scene.tasks(&["init"]).expect_code(0);
        let mut list = scene.list();
        list["session_config"]["concurrency_mode"] = json!("concurrent");
        scene.repo.write("harness-tasks.json", &list.to_string());
        for number in 1..=10 {
            scene.add(&format!("Task {number}"), "true", &["--max-attempts", "50"]);
        }
        let script = "while :; do id=$(muleteer tasks claim --worker $W --lease 2s -q) || { sleep 0.3; continue; }; \
            sleep 0.1; muleteer tasks complete $id --worker $W -q >/dev/null && echo $id >> \"$HOME/completed\"; done";
        std::os::unix::fs::symlink(scene.world.program(), scene.world.bin().join("muleteer")).unwrap();
        let start = |number: usize| {
            let dir = scene.world.path().join(format!("clone{number}"));
            if !dir.exists() {
                scene.repo.git(&["clone", "-q", scene.repo.to_str(), dir.to_str().unwrap()]);
            }
            let mut command = std::process::Command::new("sh");
            command.args(["-c", script]).current_dir(dir);
            scene.world.environment(&mut command);
            command.env("W", format!("w{number}")).env("HARNESS_STATE_ROOT", &scene.repo.path);
            command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
            command.spawn().unwrap()
        };
        let mut workers: Vec<_> = (0..count).map(start).collect();
        let mut turn = 0usize;
        wait_until("all to be completed", RUN, || {
            // Kills are this test's input; the seed is the turn.
            turn += 1;
            if turn.is_multiple_of(7) {
                let victim = (turn / 7 * 5) % count;
                workers[victim].kill().unwrap();
                workers[victim].wait().unwrap();
                workers[victim] = start(victim);
            }
            let list = scene.list();
            list["tasks"]
                .as_array()
                .unwrap()
                .iter()
                .all(|task| task["status"] == "completed")
                .then_some(())
        });
        for mut worker in workers {
            worker.kill().unwrap();
            worker.wait().unwrap();
        }
        let completed = scene.log().lines().filter(|line| line.contains("] Completed [")).count();
        assert_eq!(completed, 10, "none twice\n{}", scene.log());
        assert!(
            scene.list()["tasks"]
                .as_array()
                .unwrap()
                .iter()
                .all(|task| task["lease_expires_at"].is_null())
        );
        scene.check_log();
    }
}

fn hook(scene: &Scene, name: &str, event: &Value) -> Output {
    scene
        .world
        .muleteer(&["hook", name])
        .current_dir(&scene.repo.path)
        .stdin(&event.to_string())
        .run()
}

#[test]
fn hooks_do_nothing_without_the_marker_and_inside_our_own_agents() {
    let scene = Scene::new();
    scene.add("One", "test -f one", &[]);
    let event = json!({"session_id": "s1", "cwd": scene.repo.path, "stop_hook_active": false});
    let refused = hook(&scene, "stop", &event).expect_code(0);
    assert_eq!(refused.json()["decision"], "block");
    let inside = scene
        .world
        .muleteer(&["hook", "stop"])
        .env("MULETEER_DISPATCH_ID", "x")
        .current_dir(&scene.repo.path);
    assert_eq!(inside.stdin(&event.to_string()).run().expect_code(0).stdout, "");
    let idle =
        hook(&scene, "teammate-idle", &json!({"session_id": "s1", "cwd": scene.repo.path, "teammate_name": "ann"}));
    assert!(idle.expect_code(2).stderr.contains("muleteer tasks claim task-001 --worker ann"));
    scene.tasks(&["claim", "--worker", "agent-7"]).expect_code(0);
    let event = json!({"session_id": "s1", "cwd": scene.repo.path, "agent_id": "agent-7"});
    assert_eq!(hook(&scene, "subagent-stop", &event).expect_code(0).json()["decision"], "block");
    std::fs::remove_file(scene.repo.path.join(".harness-active")).unwrap();
    // The list is not even read.
    scene.repo.write("harness-tasks.json", "garbage");
    for name in ["session-start", "claim", "renew"] {
        let said = hook(&scene, name, &json!({"session_id": "new", "cwd": scene.repo.path})).expect_code(0);
        assert_eq!((said.stdout.as_str(), said.stderr.as_str()), ("", ""), "{name}");
    }
    for name in ["stop", "subagent-stop", "teammate-idle", "self-reflect-stop"] {
        assert_eq!(
            hook(&scene, name, &json!({"session_id": "new", "cwd": scene.repo.path}))
                .expect_code(0)
                .stdout,
            ""
        );
    }
}

#[test]
fn hooks_are_entered_and_taken_out_without_a_trace() {
    let scene = Scene::new();
    let dir = scene.repo.path.join(".claude");
    std::fs::create_dir(&dir).unwrap();
    let before =
        "{\n\t\"model\":\"x\", \"hooks\" : {\"Stop\":[ {\"hooks\":[{\"type\":\"command\",\"command\":\"own\"}]} ]}\n}";
    std::fs::write(dir.join("settings.json"), before).unwrap();
    let hooks = |verb: &str| scene.world.muleteer(&["hooks", verb, "--json"]).current_dir(&scene.repo.path).json();
    assert_eq!(hooks("install")["missing"], json!([]));
    let once = std::fs::read_to_string(dir.join("settings.json")).unwrap();
    hooks("install");
    assert_eq!(std::fs::read_to_string(dir.join("settings.json")).unwrap(), once);
    assert_eq!(hooks("uninstall")["installed"], json!([]));
    assert_eq!(std::fs::read_to_string(dir.join("settings.json")).unwrap(), before);
}

/// The real `claude`, with the hooks in its settings, against the scripted model.
#[test]
fn the_real_claude_is_kept_at_it_until_the_list_is_done() {
    let test = "the_real_claude_is_kept_at_it_until_the_list_is_done";
    let Some(binary) = claude::binary(test) else { return };
    let scene = Scene::new();
    scene.add("Write one", "test -f one.txt", &[]);
    claude::link(&scene.world, &binary);
    std::os::unix::fs::symlink(scene.world.program(), scene.world.bin().join("muleteer")).unwrap();
    scene.world.muleteer(&["hooks", "install"]).current_dir(&scene.repo.path).ok();
    let server = ModelServer::start([
        Step::text("I am done."),
        Step::bash("muleteer tasks claim && echo 1 > one.txt && muleteer tasks complete task-001"),
        Step::text("Now I am done.").times(9),
    ]);
    let mut command = std::process::Command::new(scene.world.bin().join("claude"));
    command
        .args(["-p", "Work through the task list", "--dangerously-skip-permissions"])
        .current_dir(&scene.repo.path);
    scene.world.environment(&mut command);
    command.envs(claude::variables(&server));
    let output = command.stdin(std::process::Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(scene.status("task-001"), "completed");
    let requests = server.main_requests();
    let said = |at: usize| requests[at].body["messages"].to_string();
    assert!(said(0).contains("# Task list, session 1"), "context at session start");
    assert!(said(1).contains("The task list is not done: 0 of 1 completed"), "the stop was refused");
    assert!(said(3).contains("look back (1/5)"), "and then asked to look back");
    assert!(requests.len() >= 8, "five looks back, then let go: {}", requests.len());
    assert!(!scene.repo.path.join(".harness-active").exists());
    scene.check_log();
}

#[test]
fn the_real_claude_works_a_list_off_in_a_run() {
    let test = "the_real_claude_works_a_list_off_in_a_run";
    let Some(binary) = claude::binary(test) else { return };
    let scene = Scene::new();
    scene.add("Write one", "test -f one.txt", &[]);
    scene.add("Write two", "test -f two.txt", &["--depends-on", "task-001"]);
    claude::link(&scene.world, &binary);
    let server = ModelServer::start([
        Step::bash("echo 1 > one.txt; muleteer tasks checkpoint task-001 1/1 'one is there'"),
        Step::success("one"),
        Step::bash("echo wrong > three.txt"),
        Step::success("not really"),
        Step::bash("echo 2 > two.txt"),
        Step::success("two"),
    ]);
    let options = claude::env_options(&server);
    let mut args = vec!["tasks", "run", "--backend", "claude-code"];
    args.extend(options.iter().map(String::as_str));
    scene
        .world
        .muleteer(&args)
        .current_dir(&scene.repo.path)
        .deadline(RUN)
        .run()
        .expect_code(0);
    assert_eq!(
        (scene.task("task-001")["attempts"].as_u64(), scene.task("task-002")["attempts"].as_u64()),
        (Some(1), Some(2))
    );
    assert_eq!(scene.task("task-001")["checkpoints"][0]["description"], "one is there");
    assert!(!scene.repo.path.join("three.txt").exists(), "rolled back");
    let last = server.main_requests().pop().unwrap().body["messages"].to_string();
    assert!(last.contains("## Attempt 2 of 3"), "the next attempt is told what went wrong");
    scene.end();
}
