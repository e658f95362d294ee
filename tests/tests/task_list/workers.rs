//! Several workers of one list, each in its own clone.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::task_list::{RUN, Scene};
use muleteer_tests::wait_until;
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

#[test]
fn conflict_between_workers_is_task_exec_and_the_retry_sees_the_other_work() {
    let scene = Scene::new();
    for number in 1..=2 {
        scene.add(&format!("Same file {number}"), &format!("grep -q line{number} shared"), &[]);
    }
    let script = "n=${MULETEER_TASK_ID#task-00}; touch \"$HOME/began$n\"; if [ ! -e \"$HOME/met\" \
        ]; then \
        while [ ! -e \"$HOME/began1\" ] || [ ! -e \"$HOME/began2\" ]; do sleep 0.05; done; touch \
        \"$HOME/met\"; fi; \
        echo line$n >> shared";
    scene.run(script, &["--concurrency", "2"]).expect_code(0);
    assert!(
        scene.log().contains("[TASK_EXEC] conflict with tasks that were completed meanwhile"),
        "{}",
        scene.log()
    );
    assert!(
        scene.repo.read("shared").contains("line1") && scene.repo.read("shared").contains("line2")
    );
    scene.end();
}

/// Two workers that look at the same moment take two tasks: no task is begun twice.
#[test]
fn each_task_is_started_by_one_worker() {
    let scene = Scene::new();
    let numbers = 1..=8;
    for number in numbers.clone() {
        scene.add(&format!("Task {number}"), &format!("test -f f{number}"), &[]);
    }
    scene
        .run("touch \"f${MULETEER_TASK_ID#task-00}\"", &["--concurrency", "4"])
        .expect_code(0);
    let begun = scene.world.events().into_iter().filter(|event| event["event"] == "task_begun");
    let mut begun: Vec<String> =
        begun.map(|event| event["task"].as_str().unwrap().into()).collect();
    begun.sort();
    assert_eq!(begun, numbers.map(|number| format!("task-00{number}")).collect::<Vec<_>>());
    scene.end();
}

/// Workers may share a directory: one worker's failure keeps the others' completed work.
#[test]
fn rollback_keeps_tasks_completed_by_other_workers() {
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

/// The person caused the obstacle, so no attempt counts, and no work is lost.
#[test]
fn user_changes_that_block_a_merge_end_the_run_without_an_attempt() {
    let scene = Scene::new();
    scene.repo.write("doc", "1\n2\n3\n");
    scene.repo.git(&["add", "doc"]);
    scene.repo.git(&["commit", "-qm", "doc"]);
    scene.repo.write("doc", "1\n2\n3 mine\n");
    scene.add("Changes it", "grep -q agent doc", &[]);
    let script = "echo x >> \"$HOME/tries\"; sed -i s/1/1agent/ doc; git add doc; git commit -qm \
        'by myself'";
    for said in ["started by", "run "] {
        let barred = scene.run(script, &["--concurrency", "2"]).expect_code(4);
        assert!(
            barred.stderr.contains("E_TASKS_GIT") && barred.stderr.contains(said),
            "{barred:?}"
        );
        assert!(
            barred.stderr.contains("task-001 has passed, but merging it into the project failed"),
            "{barred:?}"
        );
        assert!(
            barred.stderr.contains("would be overwritten by merge")
                && barred.stderr.contains("doc"),
            "{barred:?}"
        );
        let task = scene.task("task-001");
        assert_eq!(
            (&task["status"], &task["attempts"]),
            (&json!("in_progress"), &json!(0)),
            "{}",
            scene.log()
        );
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

/// An agent that breaks its clone does not end the run of others.
#[test]
fn an_agent_that_breaks_its_clone_has_failed_and_the_next_one_has_another() {
    let scene = Scene::new();
    for file in ["f1", "f2", "f3"] {
        scene.add(file, &format!("test -f {file}"), &[]);
    }
    let script = "touch f1 f2 f3; test -e \"$HOME/$MULETEER_TASK_ID\" || { touch \
        \"$HOME/$MULETEER_TASK_ID\";
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

#[test]
fn concurrent_mode_holds_the_lock_only_for_a_change() {
    let scene = Scene::new();
    scene.configure("concurrency_mode", json!("concurrent"));
    scene.add("Slow", "test -f done", &[]);
    let script =
        "touch \"$HOME/began\"; while [ ! -e \"$HOME/go\" ]; do sleep 0.05; done; echo > done";
    let begun = scene.run(script, &["--detach"]).expect_code(0).stdout;
    wait_until("the agent to begin", RUN, || scene.home("began").exists().then_some(()));
    let slow = scene.task("task-001");
    assert!(slow["claimed_by"].is_string() && slow["lease_expires_at"].is_string(), "{slow}");
    let status = scene.tasks(&["status", "--json"]).expect_code(0).json();
    assert_eq!(status["run_id"].as_str(), Some(begun.trim()), "{status}");
    let told = scene.tasks(&["status"]).expect_code(0).stdout;
    assert!(told.contains(&format!("run {} is working on it", begun.trim())), "{told}");
    // While agents work, others change the list; a claimed task stays with its worker.
    scene.add("Another", "true", &[]);
    scene.tasks(&["claim", "task-001", "--worker", "other"]).expect_code(3);
    assert_eq!(
        scene.tasks(&["recover", "--worker", "other", "--json"]).json()["recovered"],
        json!([])
    );
    assert_eq!(
        scene.tasks(&["claim", "--worker", "other"]).expect_code(0).stdout.trim(),
        "task-002"
    );
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

/// A new run of a concurrent list recovers a dead worker's work on the branch, as a new run of an
/// exclusive list does.
#[test]
fn task_of_a_dead_concurrent_worker_is_recovered_from_the_branch() {
    let scene = Scene::new();
    scene.configure("concurrency_mode", json!("concurrent"));
    for (title, validate) in
        [("Passes", "grep -q good w1"), ("Fails", "grep -q good w2"), ("Nothing", "test -f w3")]
    {
        scene.add(title, validate, &[]);
    }
    for (id, file, text) in
        [("task-001", "w1", "good\n"), ("task-002", "w2", "bad\n"), ("task-003", "", "")]
    {
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
    let of = |id: &str| {
        (scene.task(id)["attempts"].as_u64().unwrap(), scene.task(id)["error_log"].to_string())
    };
    assert_eq!(of("task-001"), (1, "[]".into()), "{log}");
    assert!(
        of("task-002")
            .1
            .contains("[SESSION_TIMEOUT] interrupted, and the existing work did not pass"),
        "{log}"
    );
    assert!(of("task-003").1.contains("[SESSION_TIMEOUT] No progress detected"), "{log}");
    assert_eq!((of("task-002").0, of("task-003").0), (2, 2));
    for (id, action) in
        [("task-001", "validate"), ("task-002", "validate"), ("task-003", "mark failed")]
    {
        assert!(log.contains(&format!("RECOVERY [{id}] action=\"{action}\"")), "{log}");
    }
    assert_eq!(scene.repo.read("mine"), "a person's\n");
    assert!(!log.contains("ROLLBACK"), "what is on the branch is everybody's: {log}");
    scene.check_done_once();
    scene.end();
}

/// A claim lasts as long as its lease; a run that waits for it names the holder.
#[test]
fn run_waiting_for_a_claim_names_the_worker() {
    let scene = Scene::new();
    scene.configure("concurrency_mode", json!("concurrent"));
    scene.add("Bob has it", "true", &[]);
    scene.tasks(&["claim", "--worker", "bob", "--lease", "60s"]).expect_code(0);
    let mut command = std::process::Command::new(scene.world.program());
    command
        .args(["tasks", "run", "--backend", "subprocess", "--command", "true"])
        .current_dir(&scene.repo.path);
    scene.world.environment(&mut command);
    let mut run =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map_while(Result::ok);
    let told = lines
        .find(|line| line.contains("task-001  is claimed by worker bob; waiting for it, until 2"));
    assert!(told.is_some(), "it ended by itself, with his lease: {}", scene.log());
    scene.tasks(&["complete", "task-001", "--worker", "bob"]).expect_code(0);
    lines.for_each(drop);
    assert!(run.wait().unwrap().success());
    scene.end();
}
