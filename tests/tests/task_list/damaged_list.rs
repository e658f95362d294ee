//! A list that an agent, a person or a crash damaged or removed.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::task_list::{RUN, Scene};
use muleteer_tests::wait_until;
use serde_json::{Value, json};

/// Whatever an agent does to the list and its backup, the run knows its last version and continues
/// with it.
#[test]
fn damaged_list_is_restored_and_the_run_continues() {
    for mode in ["exclusive", "concurrent"] {
        let scene = Scene::new();
        scene.configure("concurrency_mode", json!(mode));
        for number in 1..=4 {
            scene.add(&format!("Task {number}"), &format!("test -f f{number}"), &[]);
        }
        let script = "n=${MULETEER_TASK_ID#task-00}; echo $n >> \"$HOME/effects\"; touch f$n; cd \
             \"$HARNESS_STATE_ROOT\"
            list=harness-tasks.json
            case $n in
            1) echo '{,1' > $list; echo '{' > $list.bak;;
            2) echo '{\"version\": 2, \"tasks\": [{\"id\": 7}]}' > $list; cp $list $list.bak;;
            3) rm -f $list $list.bak;;
            4) rm -f $list.bak; rm $list; mkdir $list;;
            esac";
        let ran = scene.run(script, &[]).expect_code(0);
        assert_eq!(scene.effects(), ["1", "2", "3", "4"], "{mode}: {}", scene.log());
        scene.check_done_once();
        let said = "harness-tasks.json was damaged; restored the run's last version";
        assert_eq!(
            scene.log().matches(&format!("WARN {said}")).count(),
            4,
            "{mode}: {}",
            scene.log()
        );
        assert_eq!(ran.stderr.matches(&format!("warning: {said}")).count(), 4, "{mode}: {ran:?}");
        for (name, held) in
            [("damaged", "{,1\n"), ("damaged.2", "{\"version\": 2, \"tasks\": [{\"id\": 7}]}\n")]
        {
            assert_eq!(scene.repo.read(&format!("harness-tasks.json.{name}")), held, "{mode}");
        }
        scene.end();
    }
}

/// In many repositories git does not track the list, which is in the directory that an agent
/// cleans.
#[test]
fn removed_list_is_restored_and_the_run_continues() {
    let scene = Scene::new();
    for number in 1..=3 {
        scene.add(&format!("Task {number}"), &format!("test -f f{number}"), &[]);
    }
    let script = "case $MULETEER_TASK_ID in task-001) touch f1;; task-002) git clean -qfd; touch \
        f2;; \
                  *) git clean -qfdx; touch f3;; esac";
    let ran = scene.run(script, &[]).expect_code(0);
    assert!(scene.is_done() && scene.repo.path.join("f3").exists(), "{}", scene.log());
    assert!(ran.stderr.contains(
        "warning: harness-tasks.json was damaged; restored the run's \
                last version (it no longer exists)"
    ));
    scene.end();
}

/// This also holds if the daemon that wrote the list is dead. A person must repair a list that is
/// invalid when a run begins.
#[test]
fn list_damaged_without_a_daemon_is_restored() {
    let text = "{\"version\": 2, \"tasks\": [{\"id\": 7}]}";
    for mode in ["exclusive", "concurrent"] {
        let scene = Scene::new();
        scene.configure("concurrency_mode", json!(mode));
        scene.add("One", "test -f f1", &["--priority", "P0"]);
        scene.add("Two", "test -f f2", &[]);
        let mut daemon = scene.world.daemon();
        let script = "touch \"$HOME/begun\"; while [ ! -e \"$HOME/go\" ]; do sleep 0.05; done; \
            touch f${MULETEER_TASK_ID#task-00}";
        let client = scene.begin(script, 1);
        wait_until("the agent to begin", RUN, || scene.home("begun").exists().then_some(()));
        daemon.kill_9();
        scene.repo.write("harness-tasks.json", text);
        scene.repo.write("harness-tasks.json.bak", text);
        let daemon = scene.world.daemon();
        std::fs::write(scene.home("go"), "").unwrap();
        wait_until("the run to be over", RUN, || {
            let list: Value = serde_json::from_str(&scene.repo.read("harness-tasks.json")).ok()?;
            let is_done =
                list["tasks"].as_array()?.iter().all(|task| task["status"] == "completed");
            (is_done && scene.log().contains(" STATS ")).then_some(())
        });
        drop(client);
        assert!(
            scene.log().contains("WARN harness-tasks.json was damaged; restored the run's last"),
            "{}",
            scene.log()
        );
        assert_eq!(scene.repo.read("harness-tasks.json.damaged"), text);
        scene.check_done_once();
        scene.world.finish(Some(daemon));
    }
    let scene = Scene::new();
    scene.add("One", "true", &[]);
    scene.repo.write("harness-tasks.json", text);
    assert_eq!(scene.run("true", &["--json"]).error_code(), "E_TASKS_INVALID");
    assert_eq!(scene.repo.read("harness-tasks.json"), text);
    scene.world.finish(None);
}

#[test]
fn a_corrupt_list_is_restored_or_stops_the_run() {
    let scene = Scene::new();
    scene.add("One", "true", &[]);
    scene.add("Two", "true", &[]);
    scene.repo.write("harness-tasks.json", "{\"version\": 2, \"tas");
    assert_eq!(
        scene.tasks(&["status", "--json"]).json()["counts"]["total"],
        1,
        "what the backup holds"
    );
    let told = scene.run("true", &[]).expect_code(0).stderr;
    assert_eq!(scene.status("task-001"), "completed");
    assert!(told.contains("warning: harness-tasks.json was damaged"), "{told}");
    assert_eq!(scene.repo.read("harness-tasks.json.damaged"), "{\"version\": 2, \"tas");
    assert!(
        scene.log().contains(
            "saved the damaged content, with the last change, as harness-tasks.json.damaged "
        ),
        "{}",
        scene.log()
    );
    // In the middle of a run the daemon finds the fault.
    scene.add("Three", "true", &[]);
    let told = scene.run("echo '{,' > harness-tasks.json", &[]).expect_code(0).stderr;
    assert!(told.contains("saved the damaged content as harness-tasks.json.damaged.2 ("), "{told}");
    assert_eq!(scene.repo.read("harness-tasks.json.damaged.2"), "{,\n");
    scene.repo.write("harness-tasks.json", "{\"version\": 2, \"tas");
    std::fs::remove_file(scene.repo.path.join("harness-tasks.json.bak")).unwrap();
    let refused = scene.run("true", &["--json"]).expect_code(2);
    assert_eq!(refused.error_code(), "E_TASKS_CORRUPT");
    assert!(
        scene.log().contains("ERROR [ENV_SETUP] harness-tasks.json corrupted and unrecoverable")
    );
    scene.world.finish(None);
}
