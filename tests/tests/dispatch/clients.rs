//! The client and the daemon: its start on demand, reading without it, ids and exit codes.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use crate::lifecycle::succeeded;
use muleteer_tests::{PATIENCE, World, wait_until};
use serde_json::{Value, json};
use std::process::Command;

/// With `--json` the id is in the one document, which is the last output.
#[test]
fn interrupted_wait_names_the_dispatches() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let script = "while [ ! -e \"$HOME/go\" ]; do sleep 0.05; done";
    let waiting = world.spawn(&repo, script, &["--wait", "--json"]).start();
    let id = wait_until("the agent to run", PATIENCE, || {
        let running = world.status()["dispatches"].as_array()?.first()?.clone();
        (running["state"] == "running").then(|| running["id"].as_str().unwrap().to_string())
    });
    world.signal(waiting.pid(), rustix::process::Signal::INT);
    let said = waiting.finish().expect_code(130);
    assert_eq!(
        (said.error_code().as_str(), &said.json()["error"]["dispatch_id"]),
        ("E_CANCELLED", &json!(id))
    );
    assert_eq!(world.dispatch(&id)["state"], "running");
    std::fs::write(world.home().join("go"), "").unwrap();
    world.muleteer(&["wait", &id]).ok();
    world.finish(Some(daemon));
}

/// Nothing ends without a daemon, so `--follow` starts the next one, as `wait` does.
#[test]
fn follow_continues_across_daemons() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let script = "echo begun; while [ ! -e \"$HOME/go\" ]; do sleep 0.05; done; exit 3";
    let following = world.spawn(&repo, script, &["--follow", "--json"]).start();
    wait_until("the agent to run", PATIENCE, || {
        let running = world.status()["dispatches"].as_array()?.first()?.clone();
        (running["state"] == "running").then_some(())
    });
    daemon.kill_9();
    std::fs::write(world.home().join("go"), "").unwrap();
    let said = following.finish().expect_code(4);
    let last: Value = serde_json::from_str(said.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(last["state"], "failed", "{last}");
    world.muleteer(&["daemon", "stop"]).run();
    world.finish(None);
}

#[test]
fn exit_codes_of_the_contract() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let code = |script: &str| world.spawn(&repo, script, &["--wait"]).run().code;
    assert_eq!(code("exit 0"), Some(0), "exit 0 is success");
    assert_eq!(code("exit 7"), Some(4), "any other exit is failure");
    assert_eq!(
        code(r#"echo '{"type":"result","status":"partial","summary":"half"}'"#),
        Some(4),
        "partial"
    );
    assert_eq!(
        code(r#"echo '{"type":"result","status":"blocked","summary":"stuck"}'"#),
        Some(4),
        "blocked"
    );

    let killed = world.spawn(&repo, "sleep 1000", &[]).ok();
    world.wait_for_state(&killed, &["running"]);
    world.muleteer(&["kill", &killed, "--reason", "a test"]).ok();
    assert_eq!(world.muleteer(&["wait", &killed]).run().code, Some(6), "killed");
    assert_eq!(world.dispatch(&killed)["attempts"], 1, "an intentional kill is never resurrected");

    let bad = world.muleteer(&["spawn", "nobody-of-that-name", repo.to_str(), "x", "--json"]).run();
    assert_eq!((bad.code, bad.error_code().starts_with("E_")), (Some(2), true), "{bad:?}");
    let bad = world.muleteer(&["spawn", "developer", "/no/such/project", "x", "--json"]).run();
    assert_eq!(bad.code, Some(2), "{bad:?}");
    let bad = world.muleteer(&["no-such-verb", "--json"]).run();
    assert_eq!(bad.code, Some(2), "{bad:?}");
    world.finish(Some(daemon));
}

#[test]
fn dispatch_id_can_be_any_unique_prefix() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = succeeded(&world, &repo);
    let status = world.muleteer(&["status", &id[..3], "--json"]).json();
    assert_eq!(status["dispatches"][0]["id"], id.as_str());
    let unknown = world.muleteer(&["status", "zzzzzzzz", "--json"]).run().expect_code(2);
    assert_eq!(unknown.error_code(), "E_NOT_FOUND");
    world.finish(Some(daemon));
}

#[test]
fn reading_verbs_work_without_a_daemon_and_say_so() {
    let world = World::new();
    let repo = world.repo("repo");
    let status = world.status();
    assert_eq!(status["daemon"]["running"], false, "nothing was ever started: {status}");
    let mut daemon = world.daemon();
    let id = succeeded(&world, &repo);
    daemon.kill_9();
    let status = world.status();
    assert_eq!(status["daemon"]["running"], false);
    assert_eq!(world.dispatch(&id)["state"], "success");
    assert!(world.muleteer(&["logs", &id, "--raw"]).ok().contains("working"));
    assert!(world.muleteer(&["journal", &id]).ok().contains("completed"));
    assert!(world.muleteer(&["events", "--json"]).ok().contains("dispatch_finished"));
    assert!(world.processes().is_empty(), "a verb that reads starts no daemon");
}

/// An unreadable state is an error, and does not mean that there are no dispatches.
#[test]
fn unreadable_state_without_a_daemon_is_an_error() {
    let world = World::new();
    std::fs::create_dir_all(world.state().parent().unwrap()).unwrap();
    std::fs::write(world.state(), "no directory").unwrap();
    for verb in [&["status", "--json"][..], &["status", "abcd2345", "--json"], &["cost", "--json"]]
    {
        let output = world.muleteer(verb).run().expect_code(4);
        assert_eq!(output.error_code(), "E_STORE_IO", "{verb:?}: {}", output.stdout);
    }
    std::fs::remove_file(world.state()).unwrap();
    world.finish(None);
}

/// An environment may have bytes that are no text; such a variable is no setting of ours.
#[test]
fn variable_that_is_not_utf8_does_not_prevent_a_daemon_start() {
    use std::os::unix::ffi::OsStrExt as _;
    let world = World::new();
    let repo = world.repo("repo");
    let odd = std::ffi::OsStr::from_bytes(b"x\xffy");
    let id = world.spawn(&repo, "true", &["--wait"]).env("LC_ODD", odd).ok();
    assert_eq!(world.dispatch(&id)["state"], "success");
    world.muleteer(&["daemon", "stop"]).ok();
    world.finish(None);
}

#[test]
fn a_daemon_is_started_on_demand_and_outlives_its_client() {
    let world = World::new();
    let repo = world.repo("repo");
    let id = world.spawn(&repo, "sleep 0.3; echo x >> effects", &[]).ok();
    assert_eq!(world.status()["daemon"]["running"], true);
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    assert_eq!(repo.effects("effects"), ["x"]);
    world.finish(None);
}

#[test]
fn a_second_daemon_is_refused_and_names_the_first() {
    let world = World::new();
    let daemon = world.daemon();
    let second = world.muleteer(&["daemon", "--json"]).run().expect_code(3);
    assert_eq!(second.error_code(), "E_ALREADY_RUNNING");
    assert!(second.stdout.contains(&daemon.pid().to_string()), "{}", second.stdout);
    world.finish(Some(daemon));
}

/// A removed working directory names no project; a project that is given explicitly works.
#[test]
fn project_can_be_named_from_a_removed_directory() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let prompt = world.path().join("prompt");
    std::fs::write(&prompt, "do it").unwrap();
    let run = |project: &str| {
        let line = format!(
            "mkdir gone && cd gone && rmdir ../gone && \"$1\" spawn developer {project} \
             --prompt-file \"$2\" \
             --backend subprocess --command 'echo run >> effects' --wait --json"
        );
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &line, "sh"])
            .arg(world.program())
            .arg(&prompt)
            .current_dir(world.path());
        world.environment(&mut shell);
        shell.stdin(std::process::Stdio::null()).output().unwrap()
    };
    let named = run(repo.to_str());
    assert!(named.status.success(), "{named:?}");
    assert_eq!(repo.effects("effects"), ["run"]);
    let nowhere = run("");
    assert_eq!(nowhere.status.code(), Some(2), "{nowhere:?}");
    assert!(
        String::from_utf8_lossy(&nowhere.stdout).contains("E_PROJECT_NOT_FOUND"),
        "{nowhere:?}"
    );
    world.finish(Some(daemon));
}

/// `--socket` is for people, whatever an agent has left in their environment.
#[test]
fn explicit_socket_does_not_wait_for_a_daemon() {
    let world = World::new();
    let nowhere = world.path().join("nowhere.sock");
    let asked = ["status", "--json", "--socket", nowhere.to_str().unwrap()];
    // That is less than the minute for which an agent's client waits.
    let status = world.muleteer(&asked).env("MULETEER_SOCKET", &nowhere).deadline(PATIENCE).json();
    assert_eq!(status["daemon"]["running"], false);
}
