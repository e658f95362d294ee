//! The task-list harness with real binaries, real repositories and real kills: whole runs. The
//! files beside this one have the rest.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::model_server::{ModelServer, Step};
use muleteer_tests::task_list::{RUN, Scene};
use muleteer_tests::{Output, Repo, claude, wait_until};
use serde_json::json;

/// Makes twelve tasks: a chain, an urgent one, one that fails for good with its dependant, one
/// whose validation takes too long, one that fails once, and one that a killed session left behind,
/// committed.
fn twelve() -> Scene {
    let scene = Scene::new();
    for number in 1..=6 {
        let before = format!("task-{:03}", number - 1);
        let chain = if number > 1 { vec!["--depends-on", before.as_str()] } else { vec![] };
        scene.add(&format!("Link {number}"), &format!("test -f f{number}"), &chain);
    }
    scene.add(
        "Fails for good",
        "false",
        &["--max-attempts", "2", "--cleanup", "echo c >> \"$HOME/cleaned\""],
    );
    scene.add("Blocked", "true", &["--depends-on", "task-007"]);
    let cleanup = "echo t >> \"$HOME/cleaned\"";
    scene.add(
        "Too slow",
        "sleep 1000",
        &["--timeout", "1", "--max-attempts", "1", "--cleanup", cleanup],
    );
    scene.add("Second time", "test -f second", &[]);
    scene.add("First of all", "test -f urgent", &["--priority", "P0"]);
    scene.add("Interrupted", "test -f own", &[]);
    scene.interrupt("task-012");
    scene.repo.write("own", "x\n");
    scene.repo.git(&["add", "own"]);
    scene.repo.git(&["commit", "-qm", "task-012: what was done before the crash"]);
    scene
}

/// A completed task survives a power cut: the commit and the branch are on the disk before the list
/// says so.
#[test]
fn completed_task_is_durable() {
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

/// The script of each task's agent.
const WORK: &str = "muleteer tasks checkpoint $MULETEER_TASK_ID 1/1 began; \
    n=${MULETEER_TASK_ID#task-0}; case $n in \
    07) echo junk > junk; git add junk; git commit -qm 'task-007: junk'; echo more > more;; \
    10) if [ -e \"$HOME/once\" ]; then echo x > second; else touch \"$HOME/once\"; echo y > wrong; \
    fi;; \
    11) echo x > urgent;; 0*) echo x > f${n#0};; esac";

fn check_twelve(scene: &Scene, run: &Output) {
    let told = run.json();
    assert_eq!(
        (told["status"].as_str(), told["stats"]["completed"].as_u64()),
        (Some("failed"), Some(9)),
        "{told}"
    );
    for id in [
        "task-001", "task-002", "task-003", "task-004", "task-005", "task-006", "task-010",
        "task-011", "task-012",
    ] {
        assert_eq!(scene.status(id), "completed", "{id}");
    }
    let attempts = |id: &str| scene.task(id)["attempts"].as_u64();
    assert_eq!(
        (attempts("task-010"), attempts("task-007"), attempts("task-009")),
        (Some(2), Some(2), Some(1))
    );
    let first_error =
        |id: &str| scene.task(id)["error_log"][0].as_str().unwrap_or_default().to_string();
    assert_eq!(first_error("task-008"), "[DEPENDENCY] Blocked by failed task-007");
    assert!(first_error("task-009").starts_with("[TIMEOUT]"));
    assert!(first_error("task-007").starts_with("[TEST_FAIL]"));
    assert!(
        first_error("task-010").starts_with("[TASK_EXEC]"),
        "the agent said so: {}",
        first_error("task-010")
    );
    let there = |name: &str| scene.repo.path.join(name).exists();
    assert!(["junk", "more", "wrong", "f9"].iter().all(|name| !there(name)), "rolled back");
    assert!(["f1", "f6", "second", "urgent", "own"].iter().all(|name| there(name)));
    assert_eq!(scene.repo.git(&["status", "--porcelain", "--", "f1", "second"]), "", "committed");
    assert!(!scene.repo.git(&["log", "--format=%s"]).contains("junk"));
    assert_eq!(std::fs::read_to_string(scene.home("cleaned")).unwrap(), "c\nt\nc\n");
    let log = scene.log();
    let begun: Vec<_> = log.lines().filter(|line| line.contains(" Starting ")).collect();
    assert!(begun[0].contains("[task-011]"), "P0 first: {}", begun[0]);
    assert!(
        begun[1..7].iter().zip(1..).all(|(line, n)| line.contains(&format!("[task-{n:03}]"))),
        "{begun:?}"
    );
    assert!(
        begun[begun.len() - 2].contains("[task-007]"),
        "what failed comes last, the oldest failure first"
    );
    assert!(
        !log.contains("Starting [task-012]")
            && log.contains("RECOVERY [task-012] action=\"validate\"")
    );
    assert!(
        log.contains("ROLLBACK [task-007] git reset --hard ")
            && log.contains("refs/muleteer/rollback/task-007/1")
    );
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
        {"usage": used}, {"run": WORK}, {"run": "test ! -e wrong"},
        {"result": {"status": "success", "summary": "done"}},
    ]}]});
    std::fs::write(&scenario, text.to_string()).unwrap();
    let run = scene.tasks(&["run", "--scenario", scenario.to_str().unwrap(), "--json"]);
    check_twelve(&scene, &run.expect_code(4));
    // Each attempt is an ordinary dispatch: its cost is counted, and its events are in its journal.
    let attempts = scene.log().matches(" Starting [").count();
    assert_eq!(attempts, 12);
    let cost = scene.world.muleteer(&["cost", "--json"]).json();
    assert_eq!(
        (&cost["total"]["cost_usd"], &cost["total"]["dispatches"]),
        (&json!(6.0), &json!(12)),
        "{cost}"
    );
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
    // The tasks come in the order of the rules: urgent, the chain, the others, then the failed
    // ones. The tenth reports its failure.
    let steps = (1..=12).flat_map(|at| {
        let failed = json!({"status": "failed", "summary": "Redis connection refused",
            "changes": [], "issues": [],
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
    assert!(
        last.contains("## Attempt 2 of 3") && last.contains("Redis connection refused"),
        "{last}"
    );
    scene.world.finish(None);
}

#[test]
fn task_of_a_killed_daemon_is_adopted_and_done_once() {
    let scene = Scene::new();
    scene.add("Slow", "test -f done", &[]);
    let mut daemon = scene.world.daemon();
    let script = "echo began >> \"$HOME/effects\"; while [ ! -e \"$HOME/go\" ]; do sleep 0.05; \
        done; echo x > done";
    let client = scene.begin(script, 1);
    let effects =
        || std::fs::read_to_string(scene.world.home().join("effects")).unwrap_or_default();
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

#[test]
fn unusable_lists_stop_the_run_with_their_exit_codes() {
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
    assert_eq!(
        (scene.status("task-001").as_str(), scene.task("task-001")["attempts"].as_u64()),
        ("pending", Some(0))
    );
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
    assert_eq!(
        scene.log().matches("INIT Environment health check: FAIL").count(),
        3,
        "run twice, then stopped"
    );
    scene.repo.write(
        "harness-tasks.json",
        "{\"version\": 2, \"tasks\": [{\"id\": \"a\", \"status\": \"odd\"}]}",
    );
    assert_eq!(
        scene.run("true", &["--json"]).expect_code(2).json()["error"]["code"],
        "E_TASKS_INVALID"
    );
    scene.world.finish(None);
}

/// Otherwise each task would fail by the missing part, one after the other, and each session would
/// count.
#[test]
fn run_without_a_usable_agent_is_rejected_before_it_counts() {
    let scene = Scene::new();
    let refused = |args: &[&str]| {
        let args = [&["run", "--json"], args].concat();
        scene.tasks(&args).expect_code(2).error_code()
    };
    // Without a task to do, no agent is needed.
    scene.tasks(&["run", "--backend", "nope"]).expect_code(0);
    scene.add("One", "true", &[]);
    let before = scene.list();
    assert_eq!(refused(&["--backend", "nope"]), "E_BACKEND_UNAVAILABLE");
    assert_eq!(refused(&["--role", "nope", "--command", "true"]), "E_ROLE_UNKNOWN");
    assert_eq!(
        refused(&["--backend", "rehearsal", "--scenario", "nope.yaml"]),
        "E_SCENARIO_INVALID"
    );
    assert_eq!(refused(&["--backend", "subprocess"]), "E_CONFIG_INVALID");
    scene.repo.git(&["checkout", "-q", "--detach"]);
    let nowhere =
        scene.tasks(&["run", "--json", "--command", "true", "--concurrency", "2"]).expect_code(4);
    assert_eq!(nowhere.error_code(), "E_TASKS_GIT", "{nowhere:?}");
    assert_eq!(scene.list(), before);
    scene.run("true", &[]).expect_code(0);
    scene.end();
}

/// Exit code 0 says that all is done.
#[test]
fn interrupted_follow_of_a_run_exits_130() {
    let scene = Scene::new();
    scene.add("Slow", "test -f done", &[]);
    let args = [
        "tasks",
        "run",
        "--command",
        "while [ ! -e \"$HOME/go\" ]; do sleep 0.05; done; echo > done",
    ];
    let looking = scene.world.muleteer(&args).current_dir(&scene.repo.path).deadline(RUN).start();
    wait_until("the task to begin", RUN, || {
        (scene.status("task-001") == "in_progress").then_some(())
    });
    scene.world.signal(looking.pid(), rustix::process::Signal::INT);
    let seen = looking.finish().expect_code(130);
    assert!(seen.stderr.contains("stop it with `muleteer tasks stop`"), "{seen:?}");
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
    wait_until("the task to begin", RUN, || {
        (scene.status("task-001") == "in_progress").then_some(())
    });
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

/// Returns the lock of the session that a daemon has.
fn lock_of(daemon: u32) -> std::path::PathBuf {
    let held = |path: &std::path::Path| {
        let pid = std::fs::read_to_string(path.join("pid")).unwrap_or_default();
        pid.trim() == daemon.to_string()
    };
    let locks = std::fs::read_dir("/tmp").unwrap().flatten().map(|entry| entry.path());
    locks
        .filter(|path| path.to_string_lossy().starts_with("/tmp/harness-"))
        .find(|path| held(path))
        .expect("the session's lock")
}

/// Gives a lock to this process, as a tool does that takes the holder for dead.
fn take(lock: &std::path::Path) {
    std::fs::remove_dir_all(lock).unwrap();
    std::fs::create_dir(lock).unwrap();
    std::fs::write(lock.join("pid"), format!("{}\n", std::process::id())).unwrap();
}

/// The new holder works on the same files, so nobody else may.
#[test]
fn run_that_loses_its_lock_ends_its_agent() {
    for restarted in [false, true] {
        let scene = Scene::new();
        scene.add("Slow", "test -f never", &[]);
        let mut daemon = scene.world.daemon();
        let script = "echo $$ > \"$HOME/agent\"; exec sleep 1000";
        let run = scene.run(script, &["--detach"]).expect_code(0);
        let agent = || std::fs::read_to_string(scene.home("agent")).ok();
        let agent = wait_until("the agent to begin", RUN, || {
            agent().and_then(|text| text.trim().parse::<u32>().ok())
        });
        if restarted {
            daemon.kill_9();
        }
        let lock = lock_of(daemon.pid());
        take(&lock);
        if restarted {
            daemon = scene.world.daemon();
        }
        let run = run.stdout.trim().to_string();
        wait_until("the run to end", RUN, || {
            let finished = scene.world.events().into_iter().find(|event| {
                event["event"] == "task_list_finished" && event["list"] == run.as_str()
            })?;
            assert_eq!(finished["finished"]["code"], "E_TASKS_LOCKED", "{finished}");
            Some(())
        });
        let is_alive = || std::path::Path::new(&format!("/proc/{agent}")).exists();
        wait_until("the agent to be gone", RUN, || (!is_alive()).then_some(()));
        assert_eq!(
            std::fs::read_to_string(lock.join("pid")).unwrap().trim(),
            std::process::id().to_string(),
            "the new holder keeps its lock"
        );
        std::fs::remove_dir_all(lock).unwrap();
        scene.world.finish(Some(daemon));
    }
}

/// A cleaner of `/tmp` removes what is old.
#[test]
fn run_takes_a_removed_lock_again() {
    let scene = Scene::new();
    scene.add("Slow", "test -f done", &[]);
    let daemon = scene.world.daemon();
    let script = "echo > \"$HOME/began\"; while [ ! -e \"$HOME/go\" ]; do sleep 0.05; done; \
        echo > done";
    scene.run(script, &["--detach"]).expect_code(0);
    wait_until("the agent to begin", RUN, || scene.home("began").exists().then_some(()));
    let lock = lock_of(daemon.pid());
    std::fs::remove_dir_all(&lock).unwrap();
    wait_until("the lock to be taken again", RUN, || {
        let pid = std::fs::read_to_string(lock.join("pid")).ok()?;
        (pid.trim() == daemon.pid().to_string()).then_some(())
    });
    std::fs::write(scene.home("go"), "").unwrap();
    scene.wait_until_done();
    wait_until("the lock to be released", RUN, || (!lock.exists()).then_some(()));
    scene.world.finish(Some(daemon));
}

/// The judged agent may have written the validation. So the validation acts for nobody, with the
/// mark of an agent and without.
#[test]
fn a_validation_does_not_act_as_the_operator() {
    let scene = Scene::new();
    let daemon = scene.world.daemon();
    let victim = scene.world.repo("victim");
    let victim = scene.world.spawn(&victim, "while [ ! -e go ]; do sleep 0.05; done", &[]).ok();
    let socket = muleteer_tests::wire::socket(&scene.world);
    let (socket, program) = (socket.display().to_string(), scene.world.program());
    let (program, state) = (program.display(), scene.world.path().join("state"));
    let kill = format!("{program} --socket {socket} kill {victim} --json");
    let bare = format!("env -i HOME=\"$HOME\" XDG_STATE_HOME={} {kill}", state.display());
    let check = format!("{kill} > \"$HOME/marked\"; {bare} > \"$HOME/bare\"; test -e done");
    scene.add("One", &check, &[]);
    scene.run("echo x > done", &[]).expect_code(0);
    for name in ["marked", "bare"] {
        let said = std::fs::read_to_string(scene.home(name)).unwrap();
        assert!(said.contains("E_FORBIDDEN"), "{name}: {said}");
    }
    assert_eq!(scene.world.dispatch(&victim)["state"], "running");
    scene.world.muleteer(&["kill", &victim]).ok();
    scene.world.finish(Some(daemon));
}

/// The agent's own claim counts for nothing, the environment is the harness's, and the next attempt
/// gets the output.
#[test]
fn validation_has_a_clean_environment_and_its_output_reaches_the_next_attempt() {
    let scene = Scene::new();
    let check = "env | grep -v ^MULETEER_NONCE= | grep -c -e ^ANTHROPIC -e ^MULETEER -e ^HARNESS \
        -e ^STRAY | sed s/^/seen=/; \
        echo 'test old ... FAILED'; test -e fixed && exit 0; test ! -e broken || echo 'test fresh \
        ... FAILED'; exit 1";
    scene.add("Mend", check, &[]);
    scene.add("Passes already", "true", &[]);
    let script = "cat \"$MULETEER_PROMPT_FILE\" > \"$HOME/prompt.$MULETEER_TASK_ID.$(ls \"$HOME\" \
        | grep -c prompt)\"; \
        test $MULETEER_TASK_ID = task-001 || exit 0; if [ -e \"$HOME/again\" ]; then touch fixed; \
        else touch \"$HOME/again\"; \
        touch broken; echo '{\"type\":\"result\",\"status\":\"success\",\"summary\":\"all done, \
        believe me\"}'; fi";
    let args = [
        "tasks",
        "run",
        "--backend",
        "subprocess",
        "--command",
        script,
        "--env",
        "ANTHROPIC_API_KEY=k",
    ];
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
    assert!(log.contains("(1 of its failures existed before)"), "{log}");
    assert!(log.contains("WARN [task-002] the validation passes before any work"), "{log}");
    let prompt = |name: &str| std::fs::read_to_string(scene.home(name)).unwrap();
    assert!(
        prompt("prompt.task-002.1").contains("passes already"),
        "warned about, and run all the same"
    );
    let second = prompt("prompt.task-001.2");
    assert!(second.contains("## Attempt 2 of 3") && second.contains("seen=0"), "{second}");
    assert!(
        second.contains("test fresh ... FAILED") && second.contains("test old ... FAILED"),
        "{second}"
    );
    assert!(!scene.repo.path.join("broken").exists() && scene.repo.path.join("fixed").exists());
    scene.end();
}

#[test]
fn a_run_that_is_stopped_at_once_leaves_its_task_to_the_next_session() {
    let scene = Scene::new();
    scene.add("Stepwise", "test -f one -a -f two", &[]);
    let script = "if [ -e one ]; then cat \"$MULETEER_PROMPT_FILE\" > \"$HOME/prompt\"; echo > \
        two; else \
        muleteer tasks checkpoint $MULETEER_TASK_ID 1/2 nothing yet; touch \"$HOME/began\"; sleep \
        1000; fi";
    scene.run(script, &["--detach"]).expect_code(0);
    wait_until("the agent to begin", RUN, || scene.home("began").exists().then_some(()));
    scene.tasks(&["stop", "--now"]).expect_code(0);
    wait_until("the run to end", RUN, || scene.log().contains("LOCK released").then_some(()));
    assert_eq!(scene.status("task-001"), "in_progress");
    assert!(
        !scene.log().contains("ROLLBACK") && scene.task("task-001")["attempts"] == 0,
        "{}",
        scene.log()
    );
    // The checkpoint holds, so the next session continues after it.
    let second = "cat \"$MULETEER_PROMPT_FILE\" > \"$HOME/prompt\"; echo > one; echo > two";
    // The run releases the list a moment before its end is durable. Until then the next run is
    // refused.
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
    assert!(
        prompt.contains("The work was interrupted") && prompt.contains("- 1/2: nothing yet"),
        "{prompt}"
    );
    scene.check_done_once();
    scene.end();
}

/// A clean-up's only limit is half an hour. Stopping the run or the daemon must not wait for it.
#[test]
fn a_clean_up_ends_with_the_run_and_with_the_daemon() {
    let scene = Scene::new();
    let cleanup = "echo x >> \"$HOME/cleaning\"; exec sleep 611";
    let cleaning = |times: usize| {
        let begun = || {
            std::fs::read_to_string(scene.home("cleaning")).unwrap_or_default().lines().count()
                == times
        };
        wait_until("the clean-up to begin", RUN, || begun().then_some(()));
    };
    scene.add("Fails", "false", &["--max-attempts", "1", "--cleanup", cleanup]);
    scene.run("true", &["--detach"]).expect_code(0);
    cleaning(1);
    let told = scene.tasks(&["stop", "--now"]).expect_code(0);
    assert!(told.stderr.contains("is being stopped"), "{told:?}");
    wait_until("the run to end", RUN, || scene.log().contains("LOCK released").then_some(()));
    assert!(
        scene.log().contains("WARN [task-001] on_failure.cleanup was cancelled"),
        "{}",
        scene.log()
    );
    let task = scene.task("task-001");
    assert_eq!(
        (&task["status"], &task["attempts"]),
        (&json!("failed"), &json!(1)),
        "what came of it is known"
    );
    // The next daemon starts the clean-up again.
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

/// A cancelled init script says nothing about the environment.
#[test]
fn run_stopped_during_its_init_has_not_failed() {
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
        let line = log
            .lines()
            .find(|line| line.contains(what))
            .unwrap_or_else(|| panic!("no {what}: {log}"));
        line.split("[SESSION-").nth(1).and_then(|rest| rest.split(']').next()).map(String::from)
    };
    assert_eq!(session("STATS"), session("LOCK acquired"), "{log}");
    assert_eq!(scene.list()["session_count"], 0, "none was begun");
    scene.end();
}

/// docs/task-list.md maps each sentence of the protocol to tests, which must exist.
#[test]
fn the_map_of_the_reference_names_tests_that_are_there() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| {
        std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let page = read("docs/task-list.md");
    let (_, map) = page.split_once("## The protocol, sentence by sentence").unwrap();
    let subjects =
        ["sessions", "damaged_list", "recovery", "workers", "agents", "verbs", "reference_hooks"];
    let system = subjects.map(|subject| read(&format!("tests/tests/task_list/{subject}.rs")));
    let subjects = ["clones", "rollback"];
    let git = subjects.map(|name| read(&format!("crates/vcs/src/user_repo/tests/{name}.rs")));
    let mut checked = 0;
    for line in map.lines().filter(|line| {
        line.starts_with("| ") && !line.starts_with("| **") && !line.ends_with("| tests |")
    }) {
        let (_, tests) = line.trim_end_matches(" |").rsplit_once(" | ").unwrap();
        for test in tests.split(", ") {
            let (place, name) =
                test.trim_matches('`').split_once("::").unwrap_or_else(|| panic!("{line}"));
            let file = match place {
                "system" => "tests/tests/task_list/*.rs".to_string(),
                "hooks" => "tests/tests/task_list/hooks.rs".into(),
                "crash" => "tests/tests/task_list/crash.rs".into(),
                "store" => "crates/store/src/task_list/tests.rs".into(),
                "git" => "crates/vcs/src/user_repo/tests/*.rs".into(),
                "steps" => "crates/supervisor/src/task_list/steps/commands.rs".into(),
                "process" => "crates/process/src/bounded.rs".into(),
                module => ["", "session/", "document/", "outcome/"]
                    .iter()
                    .flat_map(|folder| ["/tests.rs", ".rs", "/mod.rs"].map(|end| (folder, end)))
                    .map(|(folder, end)| {
                        format!("crates/model/src/task_list/{folder}{module}{end}")
                    })
                    .find(|file| xtask::workspace::root().join(file).exists())
                    .unwrap_or_else(|| panic!("no module {module}, named in: {line}")),
            };
            let has = |text: &str| text.contains(&format!("fn {name}()"));
            let there = match place {
                "system" => system.iter().any(|text| has(text)),
                "git" => git.iter().any(|text| has(text)),
                _ => has(&read(&file)),
            };
            assert!(there, "{file} has no test {name}, named in: {line}");
            checked += 1;
        }
    }
    assert!(checked > 60, "{checked}");
}
