//! Input from other programs that `serde_json` refuses although JavaScript accepts it, or that is
//! damaged.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::World;
use muleteer_tests::task_list::Scene;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// The agent prints a file and ends with exit code 0, so only the line in the file says that it
/// failed.
#[test]
fn a_failed_verdict_that_needs_repair_or_is_damaged_is_no_success() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    for (name, line) in [
        ("surrogate", &br#"{"type":"result","status":"failed","summary":"cut \ud83d"}"#[..]),
        ("mark", b"\xef\xbb\xbf{\"type\":\"result\",\"status\":\"failed\",\"summary\":\"x\"}\n"),
        ("latin1", b"{\"type\":\"result\",\"status\":\"failed\",\"summary\":\"caf\xe9\"}\n"),
        ("number", b"{\"type\":\"result\",\"status\":\"failed\",\"summary\":\"x\",\"t\":1e999}\n"),
        ("cut", b"{\"type\":\"result\",\"status\":\"failed\",\"summ"),
        ("quotes", b"{\"type\":\"result\",\"status\":\"failed\",\"summary\":'x'}\n"),
        ("progress", b"50%\r99%\r{\"type\":\"result\",\"status\":\"failed\",\"summary\":\"x\"}\n"),
        ("colour", b"\x1b[0m{\"type\":\"result\",\"status\":\"failed\",\"summary\":\"x\"}\n"),
        (
            "same line",
            b"{\"type\":\"text\",\"text\":\"a\"}\
              {\"type\":\"result\",\"status\":\"failed\",\"summary\":\"x\"}\n",
        ),
        ("types", b"{\"type\":\"result\",\"ok\":false,\"status\":\"failed\"}\n"),
    ] {
        let file = world.home().join(name);
        std::fs::write(&file, line).unwrap();
        let ended = world.spawn(&repo, &format!("cat {}", file.display()), &["--wait"]).run();
        assert_eq!(ended.code, Some(4), "{name}: {ended:?}");
    }
    let notices = world.events().iter().filter(|event| event["event"] == "agent_notice").count();
    assert!(notices >= 5, "{notices} faults recorded");
    world.finish(Some(daemon));
}

fn stop(scene: &Scene, event: &[u8]) -> (Option<i32>, String) {
    let mut command = Command::new(scene.world.program());
    command.args(["hook", "stop"]).current_dir(&scene.repo.path);
    scene.world.environment(&mut command);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(event).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A stop hook that cannot read its event must not let the session stop.
#[test]
fn a_stop_event_that_needs_repair_or_is_damaged_is_refused_like_any_other() {
    let scene = Scene::new();
    scene.add("One", "test -f one", &[]);
    let long = format!("{{\"session_id\":\"s\",\"x\":\"{}\"}}", "x".repeat(17 * 1024 * 1024));
    for event in [
        &br#"{"session_id":"s","last_assistant_message":"half \ud83d"}"#[..],
        b"\xef\xbb\xbf{\"session_id\":\"s\"}",
        b"{\"session_id\":\"s\",\"x\":\"caf\xe9\"}",
        b"{\"session_id\":\"s\",\"x\":1e999}",
        b"{\"session_id\":\"s\",\"x\":\"cut",
        b"no JSON",
        long.as_bytes(),
    ] {
        let (code, said) = stop(&scene, event);
        let shown = String::from_utf8_lossy(&event[..event.len().min(80)]);
        assert!(code == Some(0) && said.contains("\"block\""), "{shown}: {code:?} {said}");
    }
}

#[test]
fn list_that_needs_repair_refuses_a_stop_and_can_be_changed() {
    let scene = Scene::new();
    scene.add("One ~", "test -f one", &[]);
    let file = scene.repo.path.join("harness-tasks.json");
    let list = std::fs::read_to_string(&file).unwrap();
    let (before, after) = list.split_once('~').unwrap();
    for (broken, end) in [
        (&br"\ud83d"[..], &b""[..]),
        (b"caf\xe9", b""),
        (b"\", \"x\": 1e999, \"y\": \"", b""),
        (b"", b"\0\0"),
    ] {
        std::fs::write(&file, [before.as_bytes(), broken, after.as_bytes(), end].concat()).unwrap();
        let (code, said) = stop(&scene, br#"{"session_id":"s"}"#);
        assert!(code == Some(0) && said.contains("task-001"), "{said}");
        scene.tasks(&["status"]).expect_code(0);
        scene.add("Two", "true", &[]);
        assert!(!scene.repo.path.join("harness-tasks.json.damaged").exists());
    }
}

/// Nobody knows whether work is left, so the hook refuses the stop, but not for ever.
#[test]
fn unreadable_active_list_refuses_a_stop_a_bounded_number_of_times() {
    let scene = Scene::new();
    scene.add("One", "test -f one", &[]);
    for name in ["harness-tasks.json", "harness-tasks.json.bak"] {
        std::fs::write(scene.repo.path.join(name), "{\"version\": 2, \"tasks\": [").unwrap();
    }
    let event = |again: bool| format!(r#"{{"session_id":"s","stop_hook_active":{again}}}"#);
    let refusals = (0..9).take_while(|at| {
        let (code, said) = stop(&scene, event(*at > 0).as_bytes());
        assert_eq!(code, Some(0), "{said}");
        said.contains("\"block\"")
            && said.contains("cannot be read")
            && said.contains("harness-tasks.json:1")
    });
    assert_eq!(refusals.count(), 5);
}

#[test]
fn settings_that_need_repair_take_hooks_and_keep_their_bytes() {
    let world = World::new();
    let repo = world.repo("repo");
    let settings = repo.path.join(".claude/settings.json");
    std::fs::create_dir_all(settings.parent().unwrap()).unwrap();
    let hooks = |verb: &str| {
        world.muleteer(&["hooks", verb, "--project", repo.to_str()]).run().expect_code(0)
    };
    let read = |path: &Path| std::fs::read(path).unwrap();
    for old in [
        &b"\xef\xbb\xbf{\"a\":1}\n"[..],
        br#"{"a":"\ud83d"}"#,
        b"{\"a\":\"caf\xe9\"}",
        br#"{"a":1e999}"#,
        b"\xef\xbb\xbf{\r\n  \"hooks\": {}\r\n}\r\n",
    ] {
        std::fs::write(&settings, old).unwrap();
        hooks("install");
        assert!(read(&settings).len() > old.len() + 100);
        hooks("uninstall");
        assert_eq!(read(&settings), old);
    }
}
