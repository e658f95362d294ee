//! The behaviour that the hooks have from the reference's: where they find the list, whose tasks
//! hold a session, which variables they obey, and the lines that they write.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::task_list::Scene;
use muleteer_tests::{Output, World};
use serde_json::{Value, json};
use std::path::Path;

/// Runs a hook in a directory with variables.
fn hook(world: &World, dir: &Path, name: &str, input: &str, variables: &[(&str, &str)]) -> Output {
    let mut call = world.muleteer(&["hook", name]).current_dir(dir);
    for (key, value) in variables {
        call = call.env(key, value);
    }
    call.stdin(input).run()
}

/// Whether a hook of an end has refused it.
fn is_refused(said: &Output) -> bool {
    match said.code {
        Some(0) => !said.stdout.is_empty() && said.json()["decision"] == "block",
        Some(2) => true,
        other => panic!("exits with {other:?}: {}", said.stderr),
    }
}

/// Writes a list as another tool does, with its marker, into a directory that is no repository.
fn foreign(world: &World, name: &str, tasks: &Value, more: &Value) -> std::path::PathBuf {
    let dir = world.path().join(name);
    std::fs::create_dir_all(&dir).unwrap();
    let mut list = json!({"tasks": tasks});
    for (key, value) in more.as_object().unwrap() {
        list[key] = value.clone();
    }
    std::fs::write(dir.join("harness-tasks.json"), list.to_string()).unwrap();
    std::fs::write(dir.join(".harness-active"), "").unwrap();
    dir
}

fn context(said: &Output) -> String {
    said.json()["hookSpecificOutput"]["additionalContext"].as_str().unwrap().to_string()
}

#[test]
fn hooks_find_the_list_of_the_sessions_project_after_a_cd() {
    let world = World::new();
    let open = json!([{"id": "t1", "title": "Open", "status": "pending"}]);
    let project = foreign(&world, "project", &open, &json!({}));
    let other = foreign(&world, "other", &json!([{"id": "x", "status": "completed"}]), &json!({}));
    let nowhere = world.path().join("nowhere");
    std::fs::create_dir(&nowhere).unwrap();
    let below = project.join("src");
    std::fs::create_dir(&below).unwrap();
    for start in [&project, &below] {
        for dir in [&nowhere, &other] {
            let event = json!({"session_id": "s1", "cwd": dir}).to_string();
            let start = start.to_str().unwrap();
            let said = hook(&world, dir, "stop", &event, &[("CLAUDE_PROJECT_DIR", start)]);
            assert!(is_refused(&said) && said.stdout.contains("t1"), "{said:?}");
        }
    }
    // A directory without a list does not hide the one where the session is.
    let event = json!({"session_id": "s1", "cwd": project}).to_string();
    let gone = nowhere.to_str().unwrap();
    for variable in ["CLAUDE_PROJECT_DIR", "HARNESS_STATE_ROOT"] {
        let said = hook(&world, &nowhere, "stop", &event, &[(variable, gone)]);
        assert!(is_refused(&said), "{variable}: {said:?}");
    }
}

#[test]
fn stop_hook_decides_as_the_reference_does() {
    let world = World::new();
    let pending = json!({"id": "t1", "title": "Do it", "status": "pending", "priority": "P0"});
    let failed = json!({"id": "t1", "title": "Retry me", "status": "failed", "attempts": 1,
        "max_attempts": 3});
    let over = json!({"id": "t1", "status": "failed", "attempts": 3, "max_attempts": 3});
    let others = json!({"id": "t1", "status": "in_progress", "claimed_by": "worker-a"});
    let concurrent = json!({"session_config": {"concurrency_mode": "concurrent"}});
    for (name, tasks, more, log, wanted) in [
        ("pending", json!([pending]), json!({}), "", true),
        ("retryable", json!([failed]), json!({}), "", true),
        ("exhausted", json!([over]), json!({}), "", false),
        ("blocked", json!([over, {"id": "t2", "depends_on": ["t1"]}]), json!({}), "", false),
        ("in progress", json!([{"id": "t1", "status": "in_progress"}]), json!({}), "", true),
        (
            "sessions",
            json!([pending]),
            json!({"session_count": 5, "session_config": {"max_sessions": 5}}),
            "",
            false,
        ),
        (
            "tasks",
            json!([pending]),
            json!({"session_count": 2, "session_config": {"max_tasks_per_session": 1}}),
            "[SESSION-2] Completed [task-1]\n",
            false,
        ),
        (
            "tasks of others",
            json!([pending]),
            json!({"session_count": 2, "session_config": {"max_tasks_per_session": 1}}),
            "[SESSION-1] Completed [task-1]\n",
            true,
        ),
        (
            "no limit",
            json!([pending]),
            json!({"session_count": 2, "session_config": {"max_tasks_per_session": 0}}),
            "",
            true,
        ),
        ("of another worker", json!([others]), concurrent, "", false),
    ] {
        let dir = foreign(&world, name, &tasks, &more);
        std::fs::write(dir.join("harness-progress.txt"), log).unwrap();
        let event = json!({"session_id": "s1", "cwd": dir}).to_string();
        let said = hook(&world, &dir, "stop", &event, &[("HARNESS_WORKER_ID", "worker-b")]);
        assert_eq!(is_refused(&said), wanted, "{name}: {said:?}");
    }
}

#[test]
fn marker_is_removed_when_another_tool_has_finished_the_list() {
    let world = World::new();
    let over = json!({"id": "t1", "status": "failed", "attempts": 3, "max_attempts": 3});
    for (name, tasks) in [
        ("done", json!([{"id": "t1", "status": "completed"}])),
        ("blocked", json!([over, {"id": "t2", "status": "pending", "depends_on": ["t1"]}])),
    ] {
        let dir = foreign(&world, name, &tasks, &json!({"session_count": 1}));
        let event = json!({"session_id": "s1", "cwd": dir}).to_string();
        assert!(!is_refused(&hook(&world, &dir, "stop", &event, &[])), "{name}");
        assert!(!dir.join(".harness-active").exists(), "{name}");
        let log = std::fs::read_to_string(dir.join("harness-progress.txt")).unwrap();
        assert!(log.contains("[SESSION-1] STATS tasks_total="), "{name}: {log}");
        let text = std::fs::read_to_string(dir.join("harness-tasks.json")).unwrap();
        let list: Value = serde_json::from_str(&text).unwrap();
        assert!(list["last_session"].is_string() && list.get("version").is_none(), "{list}");
        // The session that took part looks back, and only that one.
        assert!(is_refused(&hook(&world, &dir, "self-reflect-stop", &event, &[])), "{name}");
        let stranger = json!({"session_id": "s2", "cwd": dir}).to_string();
        assert!(!is_refused(&hook(&world, &dir, "self-reflect-stop", &stranger, &[])), "{name}");
    }
}

#[test]
fn reviews_follow_the_variable_and_the_marker_of_the_reference() {
    let world = World::new();
    let done = json!([{"id": "t1", "status": "completed"}]);
    let dir = foreign(&world, "p", &done, &json!({}));
    std::fs::remove_file(dir.join(".harness-active")).unwrap();
    let event = |session: &str| json!({"session_id": session, "cwd": dir}).to_string();
    let review = |input: &str, most: &str| {
        hook(&world, &dir, "self-reflect-stop", input, &[("REFLECT_MAX_ITERATIONS", most)])
    };
    assert!(!is_refused(&review(&event("s1"), "5")), "nobody has asked for a review");
    let marker = dir.join(".harness-reflect");
    std::fs::write(&marker, "").unwrap();
    assert!(!is_refused(&review(&event("s1"), "0")), "it is switched off");
    for input in ["", "not json at all", &json!({"cwd": dir}).to_string()] {
        assert!(!is_refused(&review(input, "5")), "{input}");
    }
    for (most, times) in [("2", 2), ("many", 5)] {
        std::fs::write(&marker, "").unwrap();
        let asked: Vec<_> = (0..8)
            .map(|_| review(&event(most), most))
            .take_while(is_refused)
            .map(|said| said.json()["reason"].to_string())
            .collect();
        assert_eq!(asked.len(), times, "{asked:?}");
        assert!(asked[0].contains(&format!("(1/{times})")), "{asked:?}");
        assert!(!marker.exists(), "{most}");
    }
}

#[test]
fn subagents_and_teammates_with_a_task_may_not_stop() {
    let world = World::new();
    let mine = |by: &str| {
        json!([{"id": "t1", "title": "Mine", "status": "in_progress",
        "claimed_by": by}])
    };
    let unclaimed = json!([{"id": "t1", "title": "Mine", "status": "in_progress"}]);
    let concurrent = json!({"session_config": {"concurrency_mode": "concurrent"}});
    let none: &[(&str, &str)] = &[];
    let worker: &[(&str, &str)] = &[("HARNESS_WORKER_ID", "worker-a")];
    let rows = [
        ("a", "subagent-stop", unclaimed.clone(), json!({}), json!({}), none, true),
        (
            "b",
            "subagent-stop",
            unclaimed.clone(),
            json!({}),
            json!({"stop_hook_active": true}),
            none,
            false,
        ),
        (
            "b2",
            "subagent-stop",
            unclaimed,
            json!({}),
            json!({"stop_hook_active": "yes"}),
            none,
            false,
        ),
        ("c", "subagent-stop", mine("worker-a"), concurrent.clone(), json!({}), worker, true),
        ("d", "subagent-stop", mine("worker-b"), concurrent.clone(), json!({}), worker, false),
        ("e", "subagent-stop", mine("worker-a"), concurrent.clone(), json!({}), none, true),
        (
            "f",
            "subagent-stop",
            mine("ann"),
            concurrent,
            json!({"teammate_name": "ann"}),
            none,
            true,
        ),
        ("g", "teammate-idle", mine("ann"), json!({}), json!({"teammate_name": "ann"}), none, true),
        (
            "h",
            "teammate-idle",
            mine("bob"),
            json!({}),
            json!({"teammate_name": "ann"}),
            none,
            false,
        ),
        ("i", "teammate-idle", mine("worker-a"), json!({}), json!({}), worker, true),
    ];
    for (name, of, tasks, more, event, variables, wanted) in rows {
        let dir = foreign(&world, name, &tasks, &more);
        let mut event = event;
        event["cwd"] = json!(dir);
        let said = hook(&world, &dir, of, &event.to_string(), variables);
        assert_eq!(is_refused(&said), wanted, "{name}: {said:?}");
    }
}

#[test]
fn malformed_event_keeps_a_session_at_work() {
    let world = World::new();
    let held = json!([{"id": "t1", "status": "in_progress", "claimed_by": "claude-s1",
        "lease_expires_at": "2099-01-01T00:00:00Z"}]);
    let concurrent = json!({"session_config": {"concurrency_mode": "concurrent"}});
    for (mode, more) in [("exclusive", json!({})), ("concurrent", concurrent)] {
        for (at, input) in ["", "not json at all", "[]", "{\"session_id\": ", "{\"cwd\": 7}"]
            .into_iter()
            .enumerate()
        {
            for name in ["stop", "subagent-stop"] {
                let dir = foreign(&world, &format!("{mode}{at}{name}"), &held, &more);
                let said = hook(&world, &dir, name, input, &[]);
                assert!(is_refused(&said), "{name} of {mode} at {input:?}: {said:?}");
            }
            let open = json!([{"id": "t1", "status": "pending"}]);
            let dir = foreign(&world, &format!("{mode}{at}open"), &open, &more);
            for name in ["stop", "teammate-idle"] {
                let said = hook(&world, &dir, name, input, &[]);
                assert!(is_refused(&said), "{name} of {mode} at {input:?}: {said:?}");
            }
        }
    }
}

#[test]
fn malformed_event_is_refused_however_often_it_comes() {
    let world = World::new();
    let open = json!([{"id": "t1", "status": "pending"}]);
    let dir = foreign(&world, "p", &open, &json!({}));
    for at in 0..7 {
        let said = hook(&world, &dir, "stop", "not json at all", &[]);
        assert!(is_refused(&said), "{at}: {said:?}");
    }
    // Where the session is known, its refusals are counted, and end with a warning.
    let cut = |at: usize| {
        let said = hook(&world, &dir, "stop", "{\"session_id\": \"s1\", \"cwd\": ", &[]);
        assert_eq!(is_refused(&said), at < 5, "{at}: {said:?}");
        said.stderr
    };
    assert!((0..5).map(cut).all(|said| !said.contains("WARN")));
    assert!(cut(5).contains("WARN the end is allowed although work may be left"));
}

#[test]
fn attempts_before_the_first_hook_of_a_session_count_towards_its_limit() {
    let scene = Scene::new();
    scene.configure("max_tasks_per_session", json!(1));
    scene.add("One", "true", &[]);
    scene.add("Two", "true", &[]);
    let stop = |session: &str| {
        let event = json!({"session_id": session, "cwd": scene.repo.path});
        is_refused(&scene.hook("stop", &event))
    };
    // The list is made in the middle of a session, so no start is counted.
    scene.tasks(&["claim", "--worker", "claude-s1"]).expect_code(0);
    scene.tasks(&["complete", "task-001", "--worker", "claude-s1"]).expect_code(0);
    assert!(!stop("s1"));
    assert!(stop("s2"), "the attempt is that of s1");
    assert!(!stop("s1"));
    scene.end();
}

#[test]
fn session_start_reports_an_unreadable_list_and_exits_with_0() {
    let scene = Scene::new();
    for text in ["{invalid json", "{\"tasks\": \"not a list\"}"] {
        scene.repo.write("harness-tasks.json", text);
        let _ = std::fs::remove_file(scene.repo.path.join("harness-tasks.json.bak"));
        let event = json!({"session_id": "s1", "cwd": scene.repo.path});
        let said = context(&scene.hook("session-start", &event).expect_code(0));
        assert!(said.contains("Error:") && said.contains("cannot be read"), "{said}");
    }
}

#[test]
fn rejections_of_hooks_that_run_at_the_same_time_are_all_counted() {
    let scene = Scene::new();
    scene.add("One", "test -f one", &[]);
    let event = json!({"session_id": "s1", "cwd": scene.repo.path, "stop_hook_active": true});
    let refused: usize = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..12)
            .map(|_| scope.spawn(|| usize::from(is_refused(&scene.hook("stop", &event)))))
            .collect();
        calls.into_iter().map(|call| call.join().unwrap()).sum()
    });
    assert_eq!(refused, 5);
}

#[test]
fn session_of_the_hooks_is_logged_from_begin_to_end() {
    let scene = Scene::new();
    scene.add("One", "true", &[]);
    let event = json!({"session_id": "s1", "cwd": scene.repo.path});
    scene.hook("session-start", &event).expect_code(0);
    scene
        .hook(
            "session-start",
            &json!({"session_id": "s1", "cwd": scene.repo.path,
        "source": "compact"}),
        )
        .expect_code(0);
    assert_eq!(scene.list()["session_count"], 1, "the session continues after a compaction");
    assert_eq!(scene.log().matches("[SESSION-1] LOCK acquired (pid=").count(), 1);
    assert!(is_refused(&scene.hook("stop", &event)));
    assert!(!scene.log().contains("STATS"), "it has not ended");
    scene.tasks(&["claim", "--worker", "claude-s1"]).expect_code(0);
    scene.tasks(&["complete", "task-001", "--worker", "claude-s1"]).expect_code(0);
    for _ in 0..2 {
        assert!(!is_refused(&scene.hook("stop", &event)));
        let log = scene.log();
        assert_eq!(log.matches("[SESSION-1] STATS tasks_total=1 completed=1").count(), 1, "{log}");
        assert!(log.ends_with("[SESSION-1] LOCK released\n"), "{log}");
        assert!(scene.list()["last_session"].is_string());
    }
    scene.end();
}

#[test]
fn session_at_its_limit_is_logged_once() {
    let scene = Scene::new();
    scene.add("One", "true", &[]);
    scene.add("Two", "true", &[]);
    scene.configure("max_tasks_per_session", json!(1));
    let event = json!({"session_id": "s1", "cwd": scene.repo.path});
    scene.hook("session-start", &event).expect_code(0);
    scene.tasks(&["claim", "--worker", "claude-s1"]).expect_code(0);
    scene.tasks(&["complete", "task-001", "--worker", "claude-s1"]).expect_code(0);
    for _ in 0..3 {
        assert!(!is_refused(&scene.hook("stop", &event)));
    }
    let log = scene.log();
    assert_eq!((log.matches(" STATS ").count(), log.matches("LOCK released").count()), (1, 1));
    assert!(scene.repo.path.join(".harness-active").exists(), "a task is left");
    scene.end();
}

#[test]
fn session_start_with_nothing_to_do_is_not_counted() {
    let scene = Scene::new();
    scene.add("One", "true", &[]);
    let count = || scene.list()["session_count"].clone();
    let start = |name: &str| {
        let event = json!({"session_id": name, "cwd": scene.repo.path});
        context(&scene.hook("session-start", &event).expect_code(0))
    };
    // Another worker has the directory.
    scene.tasks(&["claim", "--worker", "other"]).expect_code(0);
    assert!(start("s1").contains("is claimed by other until"));
    assert_eq!(count(), 0);
    assert!(!scene.log().contains("LOCK"), "{}", scene.log());
    scene.tasks(&["complete", "task-001", "--worker", "other"]).expect_code(0);
    scene.add("Two", "true", &[]);
    start("s2");
    assert_eq!(count(), 1);
    // All that is left waits for another worker.
    scene.configure("concurrency_mode", json!("concurrent"));
    scene.add("Three", "true", &["--depends-on", "task-002"]);
    scene.tasks(&["claim", "task-002", "--worker", "other"]).expect_code(0);
    start("s4");
    assert_eq!(count(), 1);
    scene.configure("concurrency_mode", json!("exclusive"));
    scene.tasks(&["fail", "task-002", "no", "--worker", "other"]).expect_code(0);
    // No session is left.
    scene.configure("max_sessions", json!(1));
    assert!(start("s3").contains("max_sessions (1) is reached"));
    assert_eq!(count(), 1);
    scene.end();
}

#[test]
fn claim_hook_fails_tasks_with_expired_leases_first() {
    for mode in ["exclusive", "concurrent"] {
        let scene = Scene::new();
        scene.configure("concurrency_mode", json!(mode));
        scene.add("One", "true", &[]);
        scene.add("Two", "true", &[]);
        scene.abandon("task-001");
        let event = json!({"session_id": "s1", "cwd": scene.repo.path, "agent_id": "agent-7"});
        let said = context(&scene.hook("claim", &event).expect_code(0));
        assert!(said.contains("You have task-002"), "{mode}: {said}");
        let task = scene.task("task-001");
        assert_eq!((task["status"].as_str(), task["attempts"].as_u64()), (Some("failed"), Some(1)));
        assert!(task["error_log"][0].as_str().unwrap().starts_with("[SESSION_TIMEOUT]"), "{task}");
        scene.end();
    }
    // Work that is still there is recovered, not passed on to the next task.
    let scene = Scene::new();
    scene.add("One", "true", &[]);
    scene.abandon("task-001");
    scene.repo.write("half", "of the work\n");
    let event = json!({"session_id": "s1", "cwd": scene.repo.path, "agent_id": "agent-7"});
    let said = context(&scene.hook("claim", &event).expect_code(0));
    assert!(said.contains("muleteer tasks recover task-001"), "{said}");
    assert_eq!(scene.status("task-001"), "in_progress");
    scene.end();
}

#[test]
fn leases_and_locks_follow_the_variables_of_the_reference() {
    let scene = Scene::new();
    scene.add("One", "true", &[]);
    let event = json!({"session_id": "s1", "cwd": scene.repo.path, "agent_id": "agent-7"});
    let run = |name: &str, variables: &[(&str, &str)]| {
        hook(&scene.world, &scene.repo.path, name, &event.to_string(), variables)
    };
    run("claim", &[("HARNESS_LEASE_SECONDS", "7200")]).expect_code(0);
    let until = || {
        let text = scene.task("task-001")["lease_expires_at"].as_str().unwrap().to_string();
        text.parse::<jiff::Timestamp>().unwrap()
    };
    let hour = jiff::SignedDuration::from_hours(1);
    assert!(until().duration_since(jiff::Timestamp::now()) > hour);
    // Another tool holds the lock: the caller waits as long as it says, and no longer.
    let lock = scene.repo.path.canonicalize().unwrap();
    let hash = std::process::Command::new("sh")
        .args(["-c", "printf %s \"$1\" | sha256sum | cut -c1-16", "sh", lock.to_str().unwrap()])
        .output()
        .unwrap();
    let name = String::from_utf8(hash.stdout).unwrap();
    let lock = std::path::PathBuf::from(format!("/tmp/harness-{}.lock", name.trim()));
    std::fs::create_dir(&lock).unwrap();
    std::fs::write(lock.join("pid"), std::process::id().to_string()).unwrap();
    let patient = scene
        .world
        .muleteer(&["hook", "claim"])
        .current_dir(&scene.repo.path)
        .env("HARNESS_LOCK_TIMEOUT_SECONDS", "600");
    let mut patient = patient.stdin(&event.to_string()).start();
    for variables in [&[][..], &[("HARNESS_LOCK_TIMEOUT_SECONDS", "0")]] {
        let said = run("claim", variables);
        assert!(said.code == Some(4) && said.stderr.contains("lock"), "{said:?}");
    }
    assert!(patient.is_running(), "callers that began later have given up before it");
    // A session gets its context without the lock.
    scene.configure("concurrency_mode", json!("concurrent"));
    let said = run("session-start", &[("HARNESS_LOCK_TIMEOUT_SECONDS", "0")]).expect_code(0);
    assert!(context(&said).contains("0 of 1 tasks completed"), "{said:?}");
    assert!(said.stderr.contains("the session is not counted"), "{said:?}");
    scene.configure("concurrency_mode", json!("exclusive"));
    std::fs::remove_dir_all(&lock).unwrap();
    patient.finish().expect_code(0);
    scene.end();
}

#[test]
fn calls_of_hooks_are_logged_where_the_variable_says() {
    let scene = Scene::new();
    scene.add("One", "true", &[]);
    let log = scene.world.path().join("logs/hooks.jsonl");
    let variables = [("HARNESS_HOOK_LOG", log.to_str().unwrap())];
    let event = json!({"session_id": "s1", "cwd": scene.repo.path, "hook_event_name": "Stop",
        "stop_hook_active": false, "transcript_path": "/secret"});
    let run = || hook(&scene.world, &scene.repo.path, "stop", &event.to_string(), &variables);
    assert!(is_refused(&run()));
    let text = std::fs::read_to_string(&log).unwrap();
    let line: Value = serde_json::from_str(text.trim_end()).unwrap();
    assert_eq!((&line["hook_script"], &line["hook_event_name"]), (&json!("stop"), &json!("Stop")));
    assert_eq!((&line["session_id"], &line["stop_hook_active"]), (&json!("s1"), &json!(false)));
    assert!(line["ts"].is_string() && line["harness_root"].is_string(), "{line}");
    assert!(line.get("transcript_path").is_none(), "{line}");
    std::fs::remove_file(scene.repo.path.join(".harness-active")).unwrap();
    run().expect_code(0);
    assert_eq!(std::fs::read_to_string(&log).unwrap(), text, "without the marker no hook acts");
}
