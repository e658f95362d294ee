//! Interrupted tasks and their recovery.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::task_list::{RUN, Scene};
use muleteer_tests::wait_until;
use serde_json::json;

/// The rows of the recovery matrix: the remaining state, and the decision about the task.
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
    // If there are only checkpoints, the files decide:
    // `checkpoints_alone_are_verified_by_the_files`.
    for ((what, uncommitted, commits, status, said), checkpoint) in
        any.filter(|(row, some)| row.0 != "nothing" || !some)
    {
        let scene = Scene::new();
        scene.add("Interrupted", "grep -q good work other", &["--max-attempts", "1"]);
        let base = scene.interrupt("task-001");
        if checkpoint {
            let mut list = scene.list();
            list["tasks"][0]["checkpoints"] = json!([{"step": 1, "total": 2, "description": "half",
                "timestamp": "2025-07-01T10:00:00Z"}]);
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
            assert_eq!(
                scene.repo.git(&["status", "--porcelain", "--", "work", "other"]),
                "",
                "{what}: committed"
            );
        }
        scene.end();
    }
}

/// This also holds for an exclusive list: a worker with a lease is at work, and nobody rolls its
/// work back.
#[test]
fn task_of_a_live_worker_is_not_interrupted() {
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
        assert!(
            said.contains("`task-001` is claimed by w1 until ") && !said.contains("interrupted"),
            "{said}"
        );
    }
    let nothing = scene.tasks(&["recover", "--worker", "w2", "--json"]).expect_code(0).json();
    assert_eq!(nothing["recovered"], json!([]), "nothing of that was interrupted");
    let hooked =
        scene.hook("claim", &json!({"session_id": "s2", "cwd": scene.repo.path})).expect_code(0);
    assert_eq!(hooked.stdout, "", "nor is another one handed out beside it");
    assert_eq!(scene.repo.read("staged"), "half of it\n");
    let (task, second) = (scene.task("task-001"), scene.status("task-002"));
    assert_eq!(
        (task["claimed_by"].as_str(), task["attempts"].as_u64(), second.as_str()),
        (Some("w1"), Some(0), "pending")
    );
    // The worker itself may recover its task, and so may a person who knows better (`--force`).
    let own = scene.tasks(&["recover", "--worker", "w1", "--json"]).expect_code(0).json();
    assert_eq!(own["recovered"][0]["action"], "failed", "what is there does not pass");
    scene.tasks(&["claim", "task-001", "--worker", "w1"]).expect_code(0);
    scene.tasks(&["recover", "--force", "--worker", "w2"]).expect_code(2);
    let forced = scene
        .tasks(&["recover", "task-001", "--force", "--worker", "w2", "--json"])
        .expect_code(0)
        .json();
    assert_eq!(forced["recovered"][0]["action"], "failed");
    // An expired lease blocks nobody.
    scene.tasks(&["claim", "task-001", "--worker", "w1", "--lease", "1s"]).expect_code(0);
    let over = |args: &[&str]| {
        !scene.tasks(&[args, &["--worker", "w2"]].concat()).stderr.contains("is claimed by")
    };
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
    // Nothing changed since the checkpoint, so it holds, and the work continues after it.
    let told = scene.tasks(&["recover", "--worker", "w", "--json"]).expect_code(0).json();
    assert_eq!(told["recovered"][0]["action"], "resume");
    scene.repo.write("part", "p\n");
    scene.tasks(&["checkpoint", "task-001", "2/2", "half", "--worker", "w"]).expect_code(0);
    std::fs::remove_file(scene.repo.path.join("part")).unwrap();
    let told = scene.tasks(&["recover", "--worker", "w", "--json"]).expect_code(0).json();
    assert_eq!(told["recovered"][0]["action"], "failed", "the work was lost");
    scene.end();
}

/// If nothing of a task is there, nothing is rolled back: later commits belong to somebody else.
#[test]
fn later_commits_of_the_user_survive_a_recovery() {
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
    assert_eq!(
        (scene.status("task-001"), &scene.task("task-001")["attempts"]),
        ("failed".into(), &json!(1))
    );
    scene.end();
}

#[test]
fn session_recovers_interrupted_tasks_and_sessions_are_limited() {
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
    assert_eq!(
        (run["status"].as_str(), scene.status("task-002").as_str()),
        (Some("limit"), "pending"),
        "{run}"
    );
    assert_eq!(scene.list()["session_count"], 1);
    assert!(scene.list()["last_session"].is_string());
    scene.configure("max_sessions", json!(10));
    scene.configure("max_tasks_per_session", json!(1));
    scene.add("And another", "true", &[]);
    scene.run("true", &[]).expect_code(5);
    assert_eq!(
        (scene.status("task-002").as_str(), scene.status("task-003").as_str()),
        ("completed", "pending")
    );
    assert!(
        scene.log().contains("[SESSION-2] STATS tasks_total=3 completed=2 failed=0 pending=1"),
        "{}",
        scene.log()
    );
    scene.end();
}

/// One such file ended every snapshot, and with it the rollback, the commit and the list.
#[test]
fn task_that_leaves_a_file_git_cannot_convert_is_rolled_back_and_then_completed() {
    for (attributes, workers) in [
        ("odd.txt working-tree-encoding=UTF-16", "1"),
        ("* working-tree-encoding", "1"),
        ("*.txt text eol=crlf working-tree-encoding=UTF-16", "1"),
        ("*.txt text eol=crlf working-tree-encoding=UTF-16", "2"),
    ] {
        let scene = Scene::new();
        scene.add("Odd", "test -f good", &[]);
        scene.add("Next", "test -f next", &["--depends-on", "task-001"]);
        let daemon = scene.world.daemon();
        let script = format!(
            "echo '{attributes}' > .gitattributes; printf 'odd\\n\\377' > odd.txt; \
             for n in 0 1 2 3 4 5 6 7 8 9; do echo $n > new$n; done; \
             if [ -e good ]; then echo x > next; \
             elif [ -e \"$HOME/again\" ]; then echo x > good; \
             else touch \"$HOME/again\"; echo y > bad; fi"
        );
        let run = scene.run(&script, &["--concurrency", workers]);
        assert_eq!(run.code, Some(0), "{attributes}: {run:?}\n{}", scene.log());
        assert_eq!(scene.task("task-001")["attempts"], 2, "{attributes}: {}", scene.log());
        assert_eq!(scene.status("task-002"), "completed", "{attributes}: {}", scene.log());
        assert!(!scene.repo.path.join("bad").exists(), "{attributes}");
        let saved = scene.repo.git(&[
            "for-each-ref",
            "--format=%(refname)",
            "refs/muleteer/rollback/task-001",
        ]);
        assert_eq!(scene.repo.git(&["show", &format!("{saved}:bad")]), "y", "{attributes}");
        for commit in ["HEAD", &saved] {
            // The output of git is text in tests: the name of the blob tells its bytes.
            let blob = scene.repo.git(&["rev-parse", &format!("{commit}:odd.txt")]);
            assert_eq!(blob, "5812219acf4155b709c3b780c16ca3f17f59eee4", "{attributes}: {commit}");
            for n in 0..10 {
                let text = scene.repo.git(&["show", &format!("{commit}:new{n}")]);
                assert_eq!(text, n.to_string(), "{attributes}: {commit}");
            }
        }
        // A checkout brings the commits of workers here.
        if workers == "1" {
            let there = std::fs::read(scene.repo.path.join("odd.txt")).unwrap();
            assert_eq!(there, b"odd\n\xff", "{attributes}");
        }
        scene.world.finish(Some(daemon));
    }
}
