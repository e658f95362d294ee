//! The task list's hooks in Claude Code's settings: their answers and effects, alone and with the
//! real `claude`.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::claude;
use muleteer_tests::model_server::{ModelServer, Step};
use muleteer_tests::task_list::{RUN, Scene};
use muleteer_tests::{World, wait_until};
use serde_json::json;

#[test]
fn hooks_do_nothing_without_the_marker_and_inside_our_own_agents() {
    let scene = Scene::new();
    scene.add("One", "test -f one", &[]);
    let event = json!({"session_id": "s1", "cwd": scene.repo.path, "stop_hook_active": false});
    let refused = scene.hook("stop", &event).expect_code(0);
    assert_eq!(refused.json()["decision"], "block");
    let inside = scene
        .world
        .muleteer(&["hook", "stop"])
        .env("MULETEER_DISPATCH_ID", "x")
        .current_dir(&scene.repo.path);
    assert_eq!(inside.stdin(&event.to_string()).run().expect_code(0).stdout, "");
    let idle = scene.hook(
        "teammate-idle",
        &json!({"session_id": "s1", "cwd": scene.repo.path, "teammate_name": "ann"}),
    );
    assert!(idle.expect_code(2).stderr.contains("muleteer tasks claim task-001 --worker ann"));
    scene.tasks(&["claim", "--worker", "agent-7"]).expect_code(0);
    let event = json!({"session_id": "s1", "cwd": scene.repo.path, "agent_id": "agent-7"});
    assert_eq!(scene.hook("subagent-stop", &event).expect_code(0).json()["decision"], "block");
    std::fs::remove_file(scene.repo.path.join(".harness-active")).unwrap();
    // The hooks do not even read the list.
    scene.repo.write("harness-tasks.json", "garbage");
    for name in ["session-start", "claim", "renew"] {
        let said =
            scene.hook(name, &json!({"session_id": "new", "cwd": scene.repo.path})).expect_code(0);
        assert_eq!((said.stdout.as_str(), said.stderr.as_str()), ("", ""), "{name}");
    }
    for name in ["stop", "subagent-stop", "teammate-idle", "self-reflect-stop"] {
        assert_eq!(
            scene
                .hook(name, &json!({"session_id": "new", "cwd": scene.repo.path}))
                .expect_code(0)
                .stdout,
            ""
        );
    }
}

#[test]
fn every_end_at_an_unreadable_list_is_refused_a_bounded_number_of_times() {
    let scene = Scene::new();
    scene.add("One", "test -f one", &[]);
    for list in ["garbage", "\u{fffd}{\"tasks\": 3}", "", "[]", "{\"version\": 99}"] {
        scene.repo.write("harness-tasks.json", list);
        // Muleteer would read the backup instead of the list.
        let _ = std::fs::remove_file(scene.repo.path.join("harness-tasks.json.bak"));
        for name in ["stop", "subagent-stop", "self-reflect-stop", "teammate-idle"] {
            let session = format!("{name} {list}");
            let event =
                json!({"session_id": session, "cwd": scene.repo.path, "stop_hook_active": true});
            let refused = |said: muleteer_tests::Output| {
                let text = match said.code {
                    Some(2) if name == "teammate-idle" => said.stderr,
                    Some(0) if said.stdout.is_empty() => return false,
                    Some(0) => said.json()["reason"].as_str().unwrap_or_default().to_string(),
                    other => panic!("{name} at {list:?} exits with {other:?}: {}", said.stderr),
                };
                assert!(text.contains("cannot be read"), "{name} at {list:?}: {text}");
                true
            };
            let times = (0..8).take_while(|_| refused(scene.hook(name, &event))).count();
            assert_eq!(times, 5, "{name} at {list:?}");
        }
    }
}

/// JSON has no such name, so the list is not below the directory that the event names.
#[cfg(target_os = "linux")]
#[test]
fn stop_hook_finds_the_list_in_a_directory_that_is_not_utf8() {
    use std::os::unix::ffi::OsStrExt;
    let scene = Scene::new();
    scene.add("One", "test -f one", &[]);
    let odd = scene.world.path().join(std::ffi::OsStr::from_bytes(b"odd-\xff"));
    std::fs::create_dir_all(odd.join("below")).unwrap();
    for file in ["harness-tasks.json", ".harness-active"] {
        std::fs::copy(scene.repo.path.join(file), odd.join(file)).unwrap();
    }
    let event = json!({"session_id": "s1", "cwd": odd.join("below").to_string_lossy(),
        "stop_hook_active": false});
    let hook = scene.world.muleteer(&["hook", "stop"]).current_dir(&odd.join("below"));
    let said = hook.stdin(&event.to_string()).run().expect_code(0);
    assert_eq!(said.json()["decision"], "block", "{said:?}");
}

#[test]
fn claim_and_renew_hooks_manage_a_workers_claim() {
    let scene = Scene::new();
    scene.add("One", "test -f one", &[]);
    let event = json!({"session_id": "s1", "cwd": scene.repo.path, "agent_id": "agent-7"});
    let told = scene.hook("claim", &event).expect_code(0).json();
    assert!(
        told["hookSpecificOutput"]["additionalContext"].as_str().unwrap().contains("task-001"),
        "{told}"
    );
    let task = scene.task("task-001");
    assert_eq!(
        (task["status"].as_str(), task["claimed_by"].as_str()),
        (Some("in_progress"), Some("agent-7"))
    );
    assert_eq!(
        scene
            .hook("claim", &json!({"session_id": "s2", "cwd": scene.repo.path}))
            .expect_code(0)
            .stdout,
        ""
    );
    scene.tasks(&["renew", "task-001", "--worker", "agent-7", "--lease", "5s"]).expect_code(0);
    let before = scene.task("task-001")["lease_expires_at"].as_str().unwrap().to_string();
    scene.hook("renew", &event).expect_code(0);
    let after = scene.task("task-001")["lease_expires_at"].as_str().unwrap().to_string();
    assert!(after > before, "{before} {after}");
    scene.tasks(&["renew", "task-001", "--worker", "agent-7", "--lease", "5s"]).expect_code(0);
    scene
        .tasks(&["checkpoint", "task-001", "1/2", "half", "--worker", "agent-7"])
        .expect_code(0);
    assert!(
        scene.task("task-001")["lease_expires_at"].as_str().unwrap() > before.as_str(),
        "a checkpoint renews it"
    );
    scene.end();
}

/// Starts a session that claims a task and lives until its stdin is closed.
fn session(scene: &Scene, name: &str) -> std::process::Child {
    let event = json!({"session_id": name, "cwd": scene.repo.path});
    let script = format!(
        "echo '{event}' | muleteer hook session-start > began.{name}\nmuleteer tasks claim \
         --worker claude-{name} && exec cat"
    );
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", &script]).current_dir(&scene.repo.path);
    scene.world.environment(&mut command);
    let path = scene.world.program().parent().unwrap().display().to_string();
    command.env("PATH", format!("{path}:/usr/local/bin:/usr/bin:/bin"));
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
    let child = command.spawn().unwrap();
    wait_until("the session to have its task", RUN, || {
        (scene.task("task-001")["claimed_by"] == format!("claude-{name}")).then_some(())
    });
    child
}

/// In an exclusive list a task in progress belongs to a session while that lives, and was
/// interrupted when it has ended. The context of a new session and its stop hook agree about that.
#[test]
fn task_of_a_dead_session_is_recovered_and_of_a_live_one_left_alone() {
    let scene = Scene::new();
    scene.add("One", "test -f one", &[]);
    scene.add("Two", "test -f two", &[]);
    let mut first = session(&scene, "s1");
    let event =
        |name: &str| json!({"session_id": name, "cwd": scene.repo.path, "stop_hook_active": false});
    let context = |name: &str| {
        let said = scene.hook("session-start", &event(name)).expect_code(0).json();
        said["hookSpecificOutput"]["additionalContext"].as_str().unwrap().to_string()
    };
    let stop = |name: &str| scene.hook("stop", &event(name)).expect_code(0).stdout;
    let recover =
        |name: &str| scene.tasks(&["recover", "--worker", &format!("claude-{name}"), "--json"]);
    let beside = context("s2");
    assert!(beside.contains("`task-001` is claimed by claude-s1 until"), "{beside}");
    assert!(!beside.contains("Next:") && !beside.contains("was interrupted"), "{beside}");
    assert_eq!(stop("s2"), "", "there is nothing for it to do");
    assert_eq!(recover("s2").expect_code(0).json()["recovered"], json!([]));
    scene.repo.write("one", "done, but for saying so\n");
    first.kill().unwrap();
    first.wait().unwrap();
    for name in ["s2", "s3"] {
        let after = context(name);
        assert!(
            after.contains("muleteer tasks recover task-001") && !after.contains("is claimed by"),
            "{after}"
        );
        assert!(stop(name).contains("muleteer tasks recover task-001"), "{}", stop(name));
    }
    assert_eq!(recover("s3").expect_code(0).json()["recovered"][0]["action"], "completed");
    assert!(stop("s3").contains("Next: task-002"), "{}", stop("s3"));
    // The next session of a process ends the one before; here both belong to this test.
    scene.tasks(&["claim", "--worker", "claude-s3"]).expect_code(0);
    assert!(stop("s3").contains("muleteer tasks complete task-002"), "{}", stop("s3"));
    assert!(context("s4").contains("muleteer tasks recover task-002"));
    assert!(stop("s4").contains("muleteer tasks recover task-002"));
    assert_eq!(recover("s4").expect_code(0).json()["recovered"][0]["action"], "failed");
    scene.end();
}

/// The hook of an unknown CLI may run in a script that ends with it, while the session continues.
#[test]
fn task_stays_claimed_after_the_exit_of_a_hook_script() {
    let scene = Scene::new();
    scene.add("One", "test -f one", &[]);
    let start = || {
        let event = json!({"session_id": "s1", "cwd": scene.repo.path});
        let script =
            format!("echo '{event}' | timeout 60 muleteer hook session-start > /dev/null\ntrue");
        let mut command = std::process::Command::new("/bin/sh");
        command.args(["-c", &script]).current_dir(&scene.repo.path);
        scene.world.environment(&mut command);
        let path = scene.world.program().parent().unwrap().display().to_string();
        command.env("PATH", format!("{path}:/usr/local/bin:/usr/bin:/bin"));
        assert!(command.status().unwrap().success());
    };
    start();
    scene.tasks(&["claim", "--worker", "claude-s1"]).expect_code(0);
    let recover =
        || scene.tasks(&["recover", "--worker", "claude-s2", "--json"]).expect_code(0).json();
    assert_eq!(recover()["recovered"], json!([]));
    // The session continues, for example after its context was compacted.
    start();
    assert_eq!(recover()["recovered"], json!([]));
    assert_eq!(scene.task("task-001")["claimed_by"], "claude-s1");
    scene.end();
}

/// A new session of the real `claude` finds the task of its dead predecessor.
#[test]
fn a_real_claude_recovers_the_task_of_the_one_before_it() {
    let test = "a_real_claude_recovers_the_task_of_the_one_before_it";
    let Some(binary) = claude::binary(test) else { return };
    let scene = Scene::new();
    scene.add("Write one", "test -f one.txt", &[]);
    install(&scene, &binary);
    let first = ModelServer::start([
        Step::bash("muleteer tasks claim && echo 1 > one.txt"),
        Step::text("I end.").times(9),
    ]);
    ask(&scene, &first, "Work through the task list");
    assert_eq!(scene.status("task-001"), "in_progress");
    let second = ModelServer::start([
        Step::bash("muleteer tasks recover task-001"),
        Step::text("It is recovered.").times(9),
    ]);
    ask(&scene, &second, "Go on");
    let said = second.main_requests()[0].body["messages"].to_string();
    assert!(said.contains("task-001 (Write one) was interrupted"), "{said}");
    assert_eq!(scene.status("task-001"), "completed");
    scene.check_log();
}

#[test]
fn hooks_install_and_uninstall_restore_the_settings() {
    let scene = Scene::new();
    let dir = scene.repo.path.join(".claude");
    std::fs::create_dir(&dir).unwrap();
    let before = "{\n\t\"model\":\"x\", \"hooks\" : {\"Stop\":[ \
        {\"hooks\":[{\"type\":\"command\",\"command\":\"own\"}]} ]}\n}";
    std::fs::write(dir.join("settings.json"), before).unwrap();
    let hooks = |verb: &str| {
        scene.world.muleteer(&["hooks", verb, "--json"]).current_dir(&scene.repo.path).json()
    };
    assert_eq!(hooks("install")["missing"], json!([]));
    let once = std::fs::read_to_string(dir.join("settings.json")).unwrap();
    hooks("install");
    assert_eq!(std::fs::read_to_string(dir.join("settings.json")).unwrap(), once);
    let skill = dir.join("skills/task-list/SKILL.md");
    let ours = std::fs::read_to_string(&skill).unwrap();
    std::fs::write(&skill, "mine").unwrap();
    hooks("install");
    assert_eq!(std::fs::read_to_string(&skill).unwrap(), ours);
    let kept = skill.with_extension("md.old");
    assert_eq!(
        std::fs::read_to_string(kept).unwrap(),
        "mine",
        "what somebody wrote there is not lost"
    );
    assert_eq!(hooks("uninstall")["installed"], json!([]));
    assert_eq!(std::fs::read_to_string(dir.join("settings.json")).unwrap(), before);
    std::fs::write(dir.join("settings.json"), "{ // mine\n}").unwrap();
    let told = scene.world.muleteer(&["hooks", "status"]).current_dir(&scene.repo.path).run();
    assert!(told.code == Some(2) && told.stderr.contains("settings.json:1:"), "{told:?}");
    let elsewhere = scene.repo.path.join("none");
    let place = elsewhere.display().to_string();
    let told = scene.world.muleteer(&["hooks", "install", "--project", &place]).run();
    assert!(told.code == Some(2) && !elsewhere.exists(), "{told:?}");
}

/// Returns every path below a folder, links not followed.
fn tree(dir: &std::path::Path) -> Vec<String> {
    let mut found = vec![];
    let mut open = vec![dir.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            found.push(entry.path().strip_prefix(dir).unwrap().display().to_string());
            if entry.file_type().unwrap().is_dir() {
                open.push(entry.path());
            }
        }
    }
    found.sort_unstable();
    found
}

/// The record of an installation is written before the settings, so that an installation that was
/// interrupted in between can be repeated and undone.
#[test]
fn interrupted_installation_of_hooks_is_undone_as_a_whole_one() {
    let world = World::new();
    let dir = world.path().join("project");
    std::fs::create_dir_all(dir.join(".claude")).unwrap();
    std::os::unix::fs::symlink("/proc/nowhere", dir.join(".claude/skills")).unwrap();
    let project = dir.to_str().unwrap();
    let run = world.muleteer(&["hooks", "install", "--project", project]).run();
    assert_ne!(run.code, Some(0), "no folder can be created there: {run:?}");
    assert!(!dir.join(".claude/settings.json").exists(), "{run:?}");
    std::fs::remove_file(dir.join(".claude/skills")).unwrap();
    world.muleteer(&["hooks", "install", "--project", project]).ok();
    world.muleteer(&["hooks", "uninstall", "--project", project]).ok();
    let left: Vec<_> = std::fs::read_dir(dir.join(".claude")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn hooks_uninstall_restores_missing_blank_and_linked_settings() {
    let world = World::new();
    type Prepare = fn(&std::path::Path);
    let prepare: [(&str, Prepare); 6] = [
        ("nothing", |_| {}),
        ("an empty folder", |dir| std::fs::create_dir_all(dir.join(".claude/skills")).unwrap()),
        ("an empty file", |dir| {
            std::fs::create_dir(dir.join(".claude")).unwrap();
            std::fs::write(dir.join(".claude/settings.json"), "").unwrap();
        }),
        ("a blank file", |dir| {
            std::fs::create_dir(dir.join(".claude")).unwrap();
            std::fs::write(dir.join(".claude/settings.json"), "\u{feff}\n").unwrap();
        }),
        ("an empty object", |dir| {
            std::fs::create_dir(dir.join(".claude")).unwrap();
            std::fs::write(dir.join(".claude/settings.json"), "\u{feff}{}\n").unwrap();
        }),
        ("a dangling link", |dir| {
            std::fs::create_dir(dir.join(".claude")).unwrap();
            std::fs::create_dir(dir.join("dotfiles")).unwrap();
            let link = dir.join(".claude/settings.json");
            std::os::unix::fs::symlink("../dotfiles/claude.json", link).unwrap();
        }),
    ];
    for (at, (what, prepare)) in prepare.into_iter().enumerate() {
        let dir = world.path().join(format!("p{at}"));
        std::fs::create_dir(&dir).unwrap();
        prepare(&dir);
        let settings = dir.join(".claude/settings.json");
        let before = (tree(&dir), std::fs::read(&settings).ok());
        let hooks = |verb: &str| {
            world.muleteer(&["hooks", verb, "--json", "--project", dir.to_str().unwrap()]).json()
        };
        assert_eq!(hooks("install")["missing"], json!([]), "{what}");
        hooks("install");
        if what == "a dangling link" {
            assert!(settings.is_symlink() && dir.join("dotfiles/claude.json").is_file());
        }
        assert_eq!(hooks("uninstall")["installed"], json!([]), "{what}");
        assert_eq!((tree(&dir), std::fs::read(&settings).ok()), before, "{what}");
    }
}

#[test]
fn hooks_install_behind_a_dangling_folder_link() {
    let world = World::new();
    let dir = world.path().join("p");
    std::fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink("dotfiles/claude", dir.join(".claude")).unwrap();
    let args = ["hooks", "install", "--json", "--project", dir.to_str().unwrap()];
    assert_eq!(world.muleteer(&args).json()["missing"], json!([]));
    assert!(dir.join(".claude").is_symlink());
    assert!(dir.join("dotfiles/claude/settings.json").is_file());
}

#[test]
fn hooks_reject_settings_that_are_no_regular_file() {
    let world = World::new();
    for name in ["fifo", "zero"] {
        let dir = world.path().join(name);
        std::fs::create_dir_all(dir.join(".claude")).unwrap();
        let settings = dir.join(".claude/settings.json");
        if name == "fifo" {
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mkfifoat(rustix::fs::CWD, &settings, mode).unwrap();
        } else {
            std::os::unix::fs::symlink("/dev/zero", &settings).unwrap();
        }
        for verb in ["status", "install", "uninstall"] {
            let args = ["hooks", verb, "--json", "--project", dir.to_str().unwrap()];
            let refused = world.muleteer(&args).run();
            let said = format!("{refused:?}");
            assert!(refused.code != Some(0) && said.contains("not a regular file"), "{said}");
        }
    }
}

/// Puts the real `claude` and `muleteer` on the PATH, and the hooks into the project's settings.
fn install(scene: &Scene, binary: &std::path::Path) {
    claude::link(&scene.world, binary);
    std::os::unix::fs::symlink(scene.world.program(), scene.world.bin().join("muleteer")).unwrap();
    scene.world.muleteer(&["hooks", "install"]).current_dir(&scene.repo.path).ok();
}

/// Runs a session of the real `claude` until it ends by itself.
fn ask(scene: &Scene, server: &ModelServer, prompt: &str) {
    let mut command = std::process::Command::new(scene.world.bin().join("claude"));
    command
        .args(["-p", prompt, "--dangerously-skip-permissions"])
        .current_dir(&scene.repo.path);
    scene.world.environment(&mut command);
    command.envs(claude::variables(server));
    let output = command.stdin(std::process::Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The real `claude` runs with the hooks in its settings, against the scripted model.
#[test]
fn stop_hook_keeps_claude_working_until_the_list_is_done() {
    let test = "stop_hook_keeps_claude_working_until_the_list_is_done";
    let Some(binary) = claude::binary(test) else { return };
    let scene = Scene::new();
    scene.add("Write one", "test -f one.txt", &[]);
    install(&scene, &binary);
    let server = ModelServer::start([
        Step::text("I am done."),
        Step::bash("muleteer tasks claim && echo 1 > one.txt && muleteer tasks complete task-001"),
        Step::text("Now I am done.").times(9),
    ]);
    ask(&scene, &server, "Work through the task list");
    assert_eq!(scene.status("task-001"), "completed");
    let requests = server.main_requests();
    let said = |at: usize| requests[at].body["messages"].to_string();
    assert!(said(0).contains("# Task list, session 1"), "context at session start");
    assert!(
        said(1).contains("The task list is not done: 0 of 1 completed"),
        "the stop was refused"
    );
    assert!(said(3).contains("look back (1/5)"), "and then asked to look back");
    assert!(requests.len() >= 8, "five looks back, then let go: {}", requests.len());
    assert!(!scene.repo.path.join(".harness-active").exists());
    scene.check_log();
}

/// A subagent of the real `claude` that holds a claim may not stop until it has reported its task's
/// end.
#[test]
fn subagent_stop_hook_runs_for_a_real_claude() {
    let test = "subagent_stop_hook_runs_for_a_real_claude";
    let Some(binary) = claude::binary(test) else { return };
    let scene = Scene::new();
    scene.add("Write one", "test -f one.txt", &[]);
    install(&scene, &binary);
    let asked = json!({"description": "Do a task", "prompt": "Take a task and do it",
        "subagent_type": "general-purpose",
                       "run_in_background": false});
    let server = ModelServer::start([
        Step::tool("Agent", asked),
        Step::bash("muleteer tasks claim --worker \"$HARNESS_WORKER_ID/sub\" && echo 1 > one.txt"),
        Step::text("The subagent is done."),
        Step::bash("muleteer tasks complete task-001 --worker \"$HARNESS_WORKER_ID/sub\""),
        Step::text("Now it is."),
        Step::text("All is done.").times(9),
    ]);
    ask(&scene, &server, "Have the task list worked through");
    let requests = server.main_requests();
    let said: Vec<_> =
        requests.iter().map(|request| request.body["messages"].to_string()).collect();
    assert!(
        said[3].contains("You have claimed task-001 and not reported its end"),
        "refused: {}",
        said[3]
    );
    assert_eq!(scene.status("task-001"), "completed");
    scene.check_log();
}
