//! Agents that overstep: a list, a history or a person's files that they change.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::task_list::{RUN, Scene};
use muleteer_tests::wait_until;
use serde_json::{Value, json};

#[test]
fn undo_by_name_restores_a_rollback_and_leaves_user_files() {
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
    assert_eq!(
        (scene.repo.git(&["rev-parse", "HEAD"]), there("a"), there("b")),
        (base, false, false)
    );
    assert_eq!(scene.repo.read("notes"), "mine\n");
    assert!(
        scene.status("task-001") == "failed" && there("harness-progress.txt"),
        "its own files stay"
    );
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

/// An agent that begins with a clean-up passes its validation, and the files that it removed exist
/// nowhere else.
#[test]
fn user_changes_removed_by_an_agent_are_saved_and_reported() {
    let scene = Scene::new();
    scene.repo.write("doc", "1\n2\n3\n");
    scene.repo.git(&["add", "doc"]);
    scene.repo.git(&["commit", "-qm", "doc"]);
    scene.repo.write("doc", "1\n2 mine\n3\n");
    scene.repo.write("notes", "mine\n");
    scene.add("Sweeps", "test -f f1", &[]);
    scene.add("Goes on", "test -f f2", &[]);
    let script = "case $MULETEER_TASK_ID in task-001) git checkout -q -- doc; rm notes; touch f1;; \
        *) touch f2;; esac";
    let ran = scene.run(script, &[]).expect_code(0);
    let name = "refs/muleteer/rollback/task-001/1";
    let said = format!("restore them with `muleteer tasks undo {name}`");
    assert!(ran.stderr.contains("warning: task-001: uncommitted changes in doc, notes"), "{ran:?}");
    assert!(ran.stderr.contains(&said), "{ran:?}");
    assert!(
        scene.log().contains(" WARN [task-001] uncommitted changes in doc, notes"),
        "{}",
        scene.log()
    );
    assert_eq!(scene.tasks(&["undo", "--list"]).expect_code(0).stdout.trim(), name);
    scene.tasks(&["undo", name]).expect_code(0);
    assert_eq!(
        (scene.repo.read("doc").as_str(), scene.repo.read("notes").as_str()),
        ("1\n2 mine\n3\n", "mine\n")
    );
    assert!(scene.repo.path.join("f1").exists() && scene.repo.path.join("f2").exists());
    assert!(!scene.repo.git(&["log", "-p"]).contains("mine"), "nobody has committed it");
    scene.end();
}

/// Only the validation decides whether a task is completed, and only the harness records it.
#[test]
fn an_agent_that_calls_its_own_task_completed_is_judged_all_the_same() {
    for more in [&[][..], &["--concurrency", "2"]] {
        let scene = Scene::new();
        scene.add("One", "test -f never", &["--max-attempts", "2"]);
        scene.add("Two", "test -f f2", &[]);
        let script = "touch f2; sed -i 's/in_progress/completed/; s/\"attempts\": 0/\"attempts\": \
            1/' \"$HARNESS_STATE_ROOT/harness-tasks.json\"";
        let ran = scene.run(script, more).expect_code(4);
        let task = scene.task("task-001");
        assert_eq!(
            (scene.status("task-001"), scene.status("task-002")),
            ("failed".into(), "completed".into())
        );
        assert_eq!((&task["attempts"], &task["completed_at"]), (&json!(2), &Value::Null), "{task}");
        assert!(task["error_log"].to_string().contains("[TEST_FAIL]"), "{task}");
        // Of two agents at once, one may overwrite the other's change.
        let both = if more.is_empty() { ", attempts in harness-tasks.json" } else { "" };
        let said = format!("WARN [task-001] its status{both}");
        assert!(scene.log().contains(&said), "{}", scene.log());
        assert!(ran.stderr.contains("warning: task-001: its status"), "{ran:?}");
        scene.end();
    }
}

/// A formatter or another tool may write the same list in another way.
#[test]
fn list_reformatted_by_an_agent_is_not_tampering() {
    let scene = Scene::new();
    scene.add("Fails", "false", &["--max-attempts", "1", "--priority", "P0"]);
    scene.add("Blocked", "true", &["--depends-on", "task-001"]);
    for id in ["task-003", "task-004", "task-005"] {
        scene.add("Works", &format!("test -f {id}"), &[]);
    }
    let script = r#"touch $MULETEER_TASK_ID
        sed -i -e 's/\("attempts": [0-9]\),/\1.0,/' -e 's/\(T[0-9:]*\)Z"/\1.000+00:00"/' \
            -e 's/"Works"/"\\u0057orks"/' "$HARNESS_STATE_ROOT/harness-tasks.json""#;
    let ran = scene.run(script, &[]).expect_code(4);
    let log = scene.log();
    assert!(!log.contains(" changed") && !ran.stderr.contains(" changed"), "{log}\n{ran:?}");
    let all: Vec<_> = ["task-001", "task-002", "task-003", "task-004", "task-005"]
        .map(|id| scene.status(id))
        .into();
    assert_eq!(all, ["failed", "failed", "completed", "completed", "completed"]);
    scene.end();
}

/// Returns the harness's files in the commits since `base`, and in the index.
fn tracked(scene: &Scene, base: &str) -> String {
    let commits = scene.repo.git(&[
        "log",
        "--full-history",
        "-m",
        "--format=",
        "--name-only",
        &format!("{base}..HEAD"),
        "--",
        "harness-*",
    ]);
    format!("{commits}{}", scene.repo.git(&["ls-files", "harness-tasks*", "harness-progress*"]))
}

/// An agent commits all files. The commit leaves the task list out, and neither a rollback nor a
/// success fails by it.
#[test]
fn committed_list_is_removed_from_the_commit_and_does_not_block() {
    for (script, more) in [
        ("git add -A && git commit -qm all", &[][..]),
        (
            "git add -A && git commit -qm all && git commit -q --amend -m again && echo \
             $MULETEER_DISPATCH_ID > y && git add -A && git commit -qm y",
            &[],
        ),
        (
            "git add -Af && git commit -qm all && muleteer tasks checkpoint $MULETEER_TASK_ID 1/2 \
             half && git add -A",
            &[],
        ),
        (
            "git checkout -qb s-$MULETEER_DISPATCH_ID && git add -A && git commit -qm all && git \
             checkout -q - && git merge -q --no-ff -m merge s-$MULETEER_DISPATCH_ID",
            &[],
        ),
        (
            "cp \"$HARNESS_STATE_ROOT/harness-tasks.json\" . ; git add -A && git commit -qm all",
            &["--concurrency", "2"],
        ),
    ] {
        let scene = Scene::new();
        scene.add("Second try", "test -f again && test -f f-task-001", &["--max-attempts", "2"]);
        scene.add("Fails", "false", &["--max-attempts", "1"]);
        scene.add("Works", "test -f f-task-003", &[]);
        let base = scene.repo.git(&["rev-parse", "HEAD"]);
        let script = format!(
            "touch f-$MULETEER_TASK_ID; test ! -e \"$HOME/$MULETEER_TASK_ID\" || touch again; \
             touch \"$HOME/$MULETEER_TASK_ID\"\n{script}"
        );
        let ran = scene.run(&script, more).expect_code(4);
        let all = ["task-001", "task-002", "task-003"].map(|id| scene.status(id));
        assert_eq!(all, ["completed", "failed", "completed"], "{script}: {ran:?}\n{}", scene.log());
        assert_eq!(tracked(&scene, &base), "", "{script}");
        let files = scene.repo.git(&["ls-files", "f-*", "again"]);
        assert_eq!(files, "again\nf-task-001\nf-task-003", "{script}");
        scene.end();
    }
}

/// An older version, another tool or a person left the list tracked, staged and changed since.
#[test]
fn tracked_list_is_untracked_automatically() {
    for interrupted in [false, true] {
        let scene = Scene::new();
        scene.add("One", "test -f one", &[]);
        scene.add("Fails", "false", &["--max-attempts", "1"]);
        if interrupted {
            scene.interrupt("task-001");
            scene.repo.write("one", "1\n");
        }
        scene.repo.git(&["add", "-Af"]);
        scene.repo.git(&["commit", "-qm", "task-001: with the list"]);
        let theirs = scene.repo.git(&["rev-parse", "HEAD"]);
        scene.repo.write("harness-progress.txt", &format!("{}\n", scene.log().trim_end()));
        let text = scene.repo.read("harness-tasks.json").replace("\"One\"", "\"Eins\"");
        scene.repo.write("harness-tasks.json", &text);
        scene.repo.git(&["add", "-A"]);
        scene.repo.write("harness-tasks.json", &text.replace("\"Fails\"", "\"Scheitert\""));
        let ran = scene.run("touch one; git add -A; git commit -qm all", &[]).expect_code(4);
        assert_eq!(
            (scene.status("task-001"), scene.status("task-002")),
            ("completed".into(), "failed".into()),
            "{ran:?}"
        );
        assert_eq!(scene.repo.git(&["ls-files", "harness-tasks.json", "harness-progress.txt"]), "");
        assert_eq!(scene.task("task-001")["title"], "Eins");
        if !interrupted {
            assert_eq!(
                scene.repo.git(&["merge-base", "HEAD", &theirs]),
                theirs,
                "a person's history stays"
            );
        }
        scene.end();
    }
}

/// A validation is not the person: it may not change what its agent may not change.
#[test]
fn validation_cannot_change_tasks_or_validations() {
    for more in [&[][..], &["--concurrency", "2"]] {
        let scene = Scene::new();
        let program = scene.world.program().display().to_string();
        let check = format!(
            "{program} tasks edit task-002 --validate true --json >> \"$HOME/said\"; {program} \
             tasks complete task-002 --json \
             >> \"$HOME/said\"; test -f done"
        );
        if !more.is_empty() {
            scene.configure("concurrency_mode", json!("concurrent"));
        }
        scene.add("One", &check, &[]);
        scene.add("Two", "false", &["--max-attempts", "1"]);
        scene.run("touch done", more).expect_code(4);
        let said = std::fs::read_to_string(scene.home("said")).unwrap();
        assert!(said.lines().count() > 0 && said.matches("E_FORBIDDEN").count() >= 2, "{said}");
        assert_eq!(scene.task("task-002")["validation"]["command"], "false");
        assert_eq!(
            (scene.status("task-001"), scene.status("task-002")),
            ("completed".into(), "failed".into())
        );
        scene.end();
    }
}

/// An agent may change neither the tasks nor their validation: with the verbs of this program, or
/// with those of another agent that it dispatched.
#[test]
fn agent_cannot_change_tasks_or_validations() {
    let scene = Scene::new();
    scene.add("One", "test -f never", &["--max-attempts", "1"]);
    scene.add("Two", "test -f neither", &["--max-attempts", "1", "--depends-on", "task-001"]);
    scene.add("Failed", "false", &["--priority", "P0", "--max-attempts", "1"]);
    scene.run("true", &["--once"]).expect_code(5);
    std::fs::write(scene.home("plan.md"), "- [x] Done\n").unwrap();
    let script = "muleteer tasks checkpoint task-001 1/2 half && echo ok > \"$HOME/checkpoint\"
        edit() { muleteer tasks edit task-001 --validate true --json; echo $?; }
        { edit; muleteer tasks edit task-002 --validate true --json; echo $?; muleteer tasks retry \
        task-003 --json; echo $?
        muleteer tasks import \"$HOME/plan.md\" --json; echo $?; unset MULETEER_TASKS_RUN; edit; } \
        > \"$HOME/said\"";
    scene.run(script, &[]).expect_code(4);
    let said = std::fs::read_to_string(scene.home("said")).unwrap();
    assert_eq!(said.matches("\"E_FORBIDDEN\"").count(), 5, "{said}");
    assert_eq!(said.lines().filter(|line| *line == "3").count(), 5, "{said}");
    assert_eq!(
        std::fs::read_to_string(scene.home("checkpoint")).unwrap(),
        "ok\n",
        "what is its to say"
    );
    assert_eq!(scene.all().len(), 3);
    assert_eq!(
        ["task-001", "task-002", "task-003"].map(|id| scene.status(id)),
        ["failed", "failed", "failed"]
    );
    // A person may, after the run has ended.
    scene.tasks(&["edit", "task-001", "--validate", "true"]).expect_code(0);
    scene.end();
}

/// Muleteer reports and reverts an agent's manual changes that are not its to make. While a session
/// holds a list, nobody else may make them.
#[test]
fn overwritten_fields_are_restored_and_reported() {
    for more in [&[][..], &["--concurrency", "2"]] {
        let scene = Scene::new();
        let own = scene.add("One", "test -f never", &["--max-attempts", "2", "--priority", "P0"]);
        let other = scene.add("Two", "test -f f2", &[]);
        scene.add("Three", "touch \"$HOME/judged\"; test -f f3", &["--priority", "P2"]);
        scene.tasks(&["edit", &other, "--depends-on", "task-003"]).expect_code(0);
        let gone = scene.add("Four", "test -f f4", &["--depends-on", "task-003"]);
        // With two workers the other one works meanwhile, so the harness writes nothing at that
        // moment.
        let both = if more.is_empty() { "" } else { "yes" };
        let script = r#"n=${MULETEER_TASK_ID#task-00}
            until_there() {
                for i in $(seq 600); do [ -e "$HOME/$1" ] && return; sleep 0.05; done
                exit 1
            }
            if [ -n "$BOTH" ] && [ $n = 3 ]; then touch "$HOME/three"; until_there written; fi
            if [ $n = 1 ] && [ ! -e "$HOME/tried" ]; then
            [ -z "$BOTH" ] || until_there three
            touch "$HOME/tried"; cd "$HARNESS_STATE_ROOT"; node -e '
            const fs = require("fs"), list = JSON.parse(fs.readFileSync("harness-tasks.json"));
            const [one, two, three] = list.tasks;
            one.validation = {command: "true", timeout_seconds: 7};
            for (const task of [two, three]) {
                task.status = "completed"; task.completed_at = "2025-07-01T10:00:00Z";
            }
            two.depends_on = []; three.title = "In other words";
            list.tasks = [one, two, three]; list.session_config.max_tasks_per_session = 1;
            fs.writeFileSync("harness-tasks.json", JSON.stringify(list));'
            touch "$HOME/written"; else touch f$n; fi"#;
        let ran = scene.run(&format!("BOTH={both}\n{script}"), more).expect_code(4);
        let task = scene.task(&own);
        assert_eq!((scene.status(&own), &task["attempts"]), ("failed".into(), &json!(2)), "{task}");
        assert_eq!(task["validation"], json!({"command": "test -f never", "timeout_seconds": 300}));
        for id in [&other, "task-003", &gone] {
            assert_eq!(
                (scene.status(id), &scene.task(id)["attempts"]),
                ("completed".into(), &json!(1)),
                "{id}"
            );
        }
        assert!(
            scene.home("judged").exists()
                && ["f2", "f3", "f4"].iter().all(|name| scene.repo.path.join(name).exists())
        );
        assert_eq!(scene.task(&other)["depends_on"], json!(["task-003"]));
        assert_eq!(scene.task("task-003")["title"], "In other words");
        assert_eq!(scene.list()["session_config"]["max_tasks_per_session"], 20);
        for said in [
            "[task-001] its validation.command, validation.timeout_seconds in \
             harness-tasks.json",
            "[task-002] its status, completed_at in",
            "[task-002] its depends_on in",
            "[task-003] its title in",
            "[task-004] it was removed from",
            "session_config or session_count in",
        ] {
            assert!(scene.log().contains(&format!("WARN {said}")), "{said}: {}", scene.log());
            let (of, words) = said.split_once("] ").unwrap_or(("", said));
            let told = format!(
                "warning: {}{words}",
                if of.is_empty() { String::new() } else { format!("{}: ", &of[1..]) }
            );
            assert!(ran.stderr.contains(&told), "{told}: {ran:?}");
        }
        scene.end();
    }
}

/// In a concurrent list others may complete tasks. They have claimed them, and the log says so.
#[test]
fn unclaimed_task_of_a_concurrent_list_cannot_be_completed_by_hand() {
    let scene = Scene::new();
    scene.configure("concurrency_mode", json!("concurrent"));
    for (number, priority) in [(1, "P0"), (2, "P1"), (3, "P1")] {
        scene.add(
            &format!("Task {number}"),
            &format!("test -f f{number}"),
            &["--priority", priority],
        );
    }
    scene.add("By somebody else", "true", &["--priority", "P2"]);
    scene.tasks(&["claim", "task-004", "--worker", "other"]).expect_code(0);
    let script = "n=${MULETEER_TASK_ID#task-00}; touch f$n; [ $n = 1 ] || exit 0
        touch \"$HOME/begun\"; while [ ! -e \"$HOME/go\" ]; do sleep 0.05; done; cd \
        \"$HARNESS_STATE_ROOT\"
        node -e 'const fs = require(\"fs\"), list = \
        JSON.parse(fs.readFileSync(\"harness-tasks.json\"));
            for (const task of list.tasks.slice(0, 3)) { task.status = \"completed\"; \
            task.attempts = 1; }
            fs.writeFileSync(\"harness-tasks.json\", JSON.stringify(list));'";
    let daemon = scene.world.daemon();
    let client = scene.begin(script, 1);
    wait_until("the agent to begin", RUN, || scene.home("begun").exists().then_some(()));
    scene.tasks(&["complete", "task-004", "--worker", "other"]).expect_code(0);
    std::fs::write(scene.home("go"), "").unwrap();
    // Until then the agent may be writing the list, which is empty for a moment.
    wait_until("the run to be over", RUN, || {
        (scene.log().trim_end().lines().last()?.contains(" STATS ") && scene.is_done())
            .then_some(())
    });
    drop(client);
    for number in 1..=3 {
        let said = format!("WARN [task-00{number}] its status");
        assert_eq!(scene.log().matches(&said).count(), 1, "{said}: {}", scene.log());
        assert!(scene.repo.path.join(format!("f{number}")).exists(), "{}", scene.log());
    }
    assert!(!scene.log().contains("WARN [task-004]"), "{}", scene.log());
    scene.check_done_once();
    scene.world.finish(Some(daemon));
}

/// This also holds if the daemon that wrote the list is dead.
#[test]
fn fields_overwritten_without_a_daemon_are_restored() {
    let scene = Scene::new();
    scene.add("One", "test -f f1", &["--priority", "P0"]);
    scene.add("Two", "test -f f2", &[]);
    let mut daemon = scene.world.daemon();
    let script = "touch \"$HOME/begun\"; while [ ! -e \"$HOME/go\" ]; do sleep 0.05; done; touch \
        f${MULETEER_TASK_ID#task-00}";
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
    assert!(scene.log().contains("WARN [task-002] its status in"), "{}", scene.log());
    scene.check_done_once();
    scene.world.finish(Some(daemon));
}

/// An agent's work must be where the person looks for it, and after the person's own commits.
#[test]
fn rewritten_history_or_another_branch_fails_the_task() {
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
    assert_eq!(
        (task["status"].as_str(), task["attempts"].as_u64()),
        (Some("completed"), Some(3)),
        "{task}"
    );
    let said = |at: usize| task["error_log"][at].as_str().unwrap_or_default().to_string();
    assert!(said(0).starts_with("[TASK_EXEC] the agent removed commit "), "{task}");
    assert!(
        said(1).starts_with(
            "[TASK_EXEC] the agent left HEAD on branch `side`; the task began on `main`"
        ),
        "{task}"
    );
    assert_eq!(scene.repo.git(&["symbolic-ref", "HEAD"]), "refs/heads/main");
    assert_eq!(scene.repo.git(&["rev-parse", "HEAD~1"]), base);
    assert_eq!(
        scene.repo.git(&["log", "-1", "--format=%s", "side"]),
        "mine",
        "it stays what it was"
    );
    for (number, file) in [(1, "f1"), (2, "precious")] {
        let saved = format!("refs/muleteer/rollback/task-001/{number}");
        assert!(scene.log().contains(&format!("(saved as {saved})")), "{}", scene.log());
        scene.repo.git(&["cat-file", "-e", &format!("{saved}:{file}")]);
        scene.repo.git(&["merge-base", "--is-ancestor", &base, &saved]);
    }
    // The same holds for the work of an interrupted task.
    scene.add("Two", "test -f f2", &["--max-attempts", "1"]);
    let base = scene.interrupt("task-002");
    scene.repo.git(&["reset", "-q", "--hard", "HEAD~1"]);
    scene.repo.write("f2", "");
    scene.run("true", &[]).expect_code(4);
    assert_eq!(scene.status("task-002"), "failed");
    assert_eq!(scene.repo.git(&["rev-parse", "HEAD"]), base);
    // Between two tasks only a person checks out another branch. The run ends, and nothing is
    // moved.
    scene.add("Three", "false", &["--max-attempts", "1", "--cleanup", "git checkout -q -f side"]);
    scene.add("Four", "true", &[]);
    let ended = scene.run("true", &["--json"]);
    assert!(ended.stdout.contains("HEAD is on `side` now, but was on `main`"), "{ended:?}");
    assert_eq!(
        (ended.error_code().as_str(), scene.status("task-004").as_str()),
        ("E_TASKS_GIT", "pending")
    );
    assert_eq!(scene.repo.git(&["log", "-1", "--format=%s"]), "mine");
    scene.world.finish(None);
}

/// Whatever an agent leaves, its task ends and the next one begins.
#[test]
fn files_left_by_an_agent_do_not_block_the_list() {
    let scene = Scene::new();
    for file in ["f1", "f2", "f3"] {
        scene.add(file, &format!("test -f {file}"), &[]);
    }
    let script = "case $MULETEER_TASK_ID in
        task-001) if [ -e \"$HOME/again\" ]; then touch f1; else touch \"$HOME/again\" \
        .git/index.lock; fi;;
        task-002) git init -q nested; touch f2 \"$(printf '\\377x')\";;
        task-003) touch f3; echo '{' > harness-tasks.json;;
        esac";
    scene.run(script, &[]).expect_code(0);
    assert_eq!(scene.task("task-001")["attempts"], 2, "its first one failed: {}", scene.log());
    assert!(
        scene.log().contains(
            "WARN harness-tasks.json was damaged; restored the run's last version; saved"
        )
    );
    let committed = scene.repo.git(&["ls-tree", "-r", "--name-only", "HEAD"]);
    assert!(["f1", "f2", "f3", "377x"].iter().all(|name| committed.contains(name)), "{committed}");
    scene.end();
}
