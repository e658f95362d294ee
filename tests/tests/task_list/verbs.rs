//! The verbs by which a person changes a list.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::task_list::{RUN, Scene};
use muleteer_tests::wait_until;
use serde_json::{Value, json};

#[test]
fn lists_are_imported_from_beads_and_checklists() {
    let scene = Scene::new();
    let beads = scene.world.path().join("issues.jsonl");
    let lines = [
        json!({"id": "bd-1", "title": "First", "status": "closed", "priority": 0,
            "issue_type": "task",
               "closed_at": "2025-07-01T10:00:00Z"}),
        json!({"id": "bd-2", "title": "Second", "status": "open", "priority": 1,
            "issue_type": "task",
               "dependencies": [{"issue_id": "bd-2", "depends_on_id": "bd-1", "type": "blocks"}]}),
    ];
    std::fs::write(&beads, lines.map(|line| format!("{line}\n")).concat()).unwrap();
    let told = scene.tasks(&["import", beads.to_str().unwrap(), "--json"]).expect_code(0).json();
    assert_eq!(told["added"], json!(["bd-1", "bd-2"]));
    assert_eq!(
        (scene.status("bd-1").as_str(), scene.task("bd-2")["depends_on"][0].as_str()),
        ("completed", Some("bd-1"))
    );
    assert_eq!(
        scene.tasks(&["import", beads.to_str().unwrap(), "--json"]).json()["skipped"],
        2,
        "safe to repeat"
    );
    scene.repo.write(
        "PLAN.md",
        "# Plan\n\n- [ ] Whole\n  validate: `test -f whole`\n  - [ ] Part\n- [x] Done\n",
    );
    scene.tasks(&["import", "PLAN.md"]).expect_code(0);
    let titles: Vec<_> =
        scene.all().iter().map(|task| task["title"].as_str().unwrap().to_string()).collect();
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
    let lost = concat!(
        r#"{"id": "bd-3", "title": "Third", "dependencies": [{"depends_on_id": "bd-8"},"#,
        r#" {"depends_on_id": "bd-1"}]}"#
    );
    scene.repo.write("lost.jsonl", lost);
    let told = scene.tasks(&["import", "lost.jsonl", "--json"]).expect_code(0).json();
    assert_eq!(told["dropped"], json!([{"task": "bd-3", "depends_on": "bd-8"}]));
    scene.repo.write("lost.jsonl", &lost.replace("bd-3", "bd-4"));
    let told = scene.tasks(&["import", "lost.jsonl"]).expect_code(0).stderr;
    assert!(told.contains("bd-4 depends on bd-8, which is in neither"), "{told}");
    let needs = |id: &str, on: &str| {
        format!(
            "{{\"id\":\"{id}\",\"title\":\"x\",\
             \"dependencies\":[{{\"depends_on_id\":\"{on}\"}}]}}\n"
        )
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
    assert!(
        refused["error"]["file"].as_str().is_some_and(|file| file.ends_with("round.jsonl")),
        "{refused}"
    );
    assert!(
        refused["error"]["message"].as_str().is_some_and(|text| text.contains("r2 -> r3 -> r2")),
        "{refused}"
    );
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
        let document: Value = serde_json::from_str(&said.stdout)
            .unwrap_or_else(|error| panic!("{args:?}: {error} {said:?}"));
        document
    };
    assert_eq!(json(&["init"], 0)["created"], false);
    assert_eq!(
        json(
            &["add", "One", "--validate", "test -f one", "--priority", "P0", "--timeout", "5m"],
            0
        )["id"],
        "task-001"
    );
    assert_eq!(
        json(&["add", "Two", "--depends-on", "task-001", "--validate", "true"], 0)["depends_on"][0],
        "task-001"
    );
    assert_eq!(
        json(&["edit", "task-002", "--title", "Zwei", "--max-attempts", "1"], 0)["title"],
        "Zwei"
    );
    assert_eq!(json(&["show", "task-001"], 0)["validation"]["timeout_seconds"], 300);
    assert_eq!(json(&["show", "task-009"], 2)["error"]["code"], "E_TASK_UNKNOWN");
    assert_eq!(json(&["graph"], 0)["eligible"], json!(["task-001"]));
    assert_eq!(json(&["validate"], 0)["ok"], true);
    assert_eq!(json(&["validate", "task-001"], 4)["passed"], false);
    assert_eq!(json(&["claim", "--worker", "w"], 0)["task"]["id"], "task-001");
    assert_eq!(json(&["claim", "task-001", "--worker", "v"], 3)["error"]["code"], "E_TASK_CLAIMED");
    assert!(json(&["renew", "task-001", "--worker", "w"], 0)["lease_expires_at"].is_string());
    assert_eq!(
        json(&["checkpoint", "task-001", "1/2", "half", "--worker", "w"], 0)["checkpoints"],
        1
    );
    assert_eq!(
        json(&["complete", "task-001", "--worker", "w"], 4)["error"]["code"],
        "E_TASK_FAILED"
    );
    assert_eq!(
        json(&["fail", "task-001", "not like this", "--worker", "w"], 0)["status"],
        "failed"
    );
    assert_eq!(json(&["claim", "--worker", "w"], 0)["task"]["attempts"], 1);
    assert_eq!(json(&["recover", "--worker", "w"], 0)["recovered"][0]["action"], "failed");
    json(&["claim", "--worker", "w"], 0);
    scene.repo.write("one", "1\n");
    let done = json(&["complete", "task-001", "--worker", "w"], 0);
    assert_eq!(
        (done["status"].as_str(), done["next"].as_str()),
        (Some("completed"), Some("task-002"))
    );
    json(&["claim", "--worker", "w"], 0);
    json(&["fail", "task-002", "no", "--worker", "w"], 0);
    assert_eq!(json(&["retry", "task-002"], 0)["retried"], json!(["task-002"]));
    assert_eq!(json(&["undo", "--list"], 0)["saved"], json!([]));
    assert_eq!(json(&["undo"], 2)["error"]["code"], "E_NOT_FOUND");
    assert_eq!(json(&["stop"], 2)["error"]["code"], "E_NOT_FOUND");
    let status = json(&["status"], 0);
    assert_eq!(
        (status["counts"]["completed"].as_u64(), status["counts"]["pending"].as_u64()),
        (Some(1), Some(1))
    );
    assert_eq!(
        json(&["run", "--backend", "subprocess", "--command", "true"], 0)["status"],
        "completed"
    );
    scene.end();
}

#[test]
fn init_creates_the_files_and_status_shows_the_list() {
    let scene = Scene::new();
    let there = |name: &str| scene.repo.path.join(name).exists();
    assert!(there(".harness-active") && !there("harness-init.sh"));
    assert!(
        scene.log().contains("[SESSION-1] INIT Harness initialized for project "),
        "{}",
        scene.log()
    );
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
    // The script is a program. It runs at the session's start, in the project's directory and with
    // the agents' variables.
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
        status.contains(
            "[completed] task-001: One (1/3)\n[pending] task-002: Two, of two lines (0/3)\n"
        ),
        "{status}"
    );
    assert!(
        status.contains(
            "2 tasks: 1 completed, 0 in progress, 0 failed, 1 pending (0 of them blocked)"
        ),
        "{status}"
    );
    let last: Vec<_> = scene.log().lines().rev().take(5).map(String::from).collect();
    assert!(last.iter().all(|line| status.contains(line)), "{status}");
    assert!(status.contains("sessions: 1, the last ended: 20"), "{status}");
    scene.end();
}

/// A shortened import would lack tasks, and nobody would notice.
#[test]
fn import_rejects_partial_and_binary_files() {
    let scene = Scene::new();
    let line = format!("- [ ] {}\n", "x".repeat(1015));
    for (name, bytes, said) in [
        ("large.md", line.repeat(66 << 10).into_bytes(), "larger than 64 MiB"),
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
fn add_and_edit_reject_invalid_values() {
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
    // One worker has the working directory alone: the changes of a second one would be committed or
    // rolled back with the first's.
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

/// Agents run `git clean`: the files beside a list must stay, wherever in the repository the list
/// is and whoever made it.
#[test]
fn git_clean_leaves_the_saved_files_of_a_list() {
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

/// A unique beginning of an id is enough, as for a dispatch.
#[test]
fn task_id_can_be_a_unique_prefix() {
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
    assert!(said.contains("`parse` matches 2 tasks: parse-dates, parse-times"), "{said}");
    assert_eq!(scene.tasks(&["show", "x", "--json"]).expect_code(2).error_code(), "E_TASK_UNKNOWN");
    assert_eq!(scene.tasks(&["claim", "parse-d"]).expect_code(0).stdout.trim(), "parse-dates");
    for args in [
        &["validate", "parse-d"][..],
        &["renew", "parse-d"],
        &["checkpoint", "parse-d", "1/1", "all"],
    ] {
        scene.tasks(args).expect_code(0);
    }
    assert_eq!(
        scene.tasks(&["complete", "parse-d"]).expect_code(0).stdout.trim(),
        "parse-dates completed"
    );
    scene.end();
}

/// The validation runs in its own process group, so a key at the terminal does not reach it.
#[test]
fn validation_ends_with_its_caller() {
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
