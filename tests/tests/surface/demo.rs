//! `muleteer demo` as a new user runs it: it succeeds, it is quick, and it leaves nothing.

#![allow(clippy::disallowed_methods)] // it starts a copy of the program under test

use muleteer_tests::{Muleteer, PATIENCE, World, processes, wait_until};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The documented limit is a minute, on a machine that has other things to do.
const MINUTE: Duration = Duration::from_secs(60);

/// Runs the demo with an empty HOME and a temporary folder in the world, so that the test can see
/// all that is left.
fn demo(world: &World, args: &[&str]) -> Muleteer {
    let words: Vec<&str> = std::iter::once("demo").chain(args.iter().copied()).collect();
    std::fs::remove_file(world.home().join(".gitconfig")).ok();
    world.muleteer(&words).deadline(MINUTE)
}

fn temporary(world: &World) -> Vec<PathBuf> {
    entries(&world.path().join("tmp"))
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a directory of the world");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

/// Checks that no process of the demo runs, its folder is gone, and the user's directories are
/// unchanged.
fn nothing_is_left(world: &World) {
    world.wait_for_nothing_left(&[]);
    assert_eq!(temporary(world), [] as [PathBuf; 0]);
    for place in
        [world.home(), world.runtime(), world.path().join("state"), world.path().join("config")]
    {
        assert_eq!(entries(&place), [] as [PathBuf; 0], "{}", place.display());
    }
}

#[test]
fn demo_passes_and_leaves_nothing() {
    let world = World::new();
    let output = demo(&world, &[]).run().expect_code(0);
    assert!(
        !output.stdout.contains('✗') && output.stdout.contains("all 14 passed"),
        "{}",
        output.stdout
    );
    assert!(!output.stdout.contains('\u{1b}'), "no colours where there is no terminal");
    for told in [
        "kill -9",
        "connected again",
        "retried",
        "judge: fail",
        "judge: pass",
        "git merge muleteer/run-",
        "run report --html",
    ] {
        assert!(output.stdout.contains(told), "{told}:\n{}", output.stdout);
    }
    nothing_is_left(&world);
}

#[test]
fn json_is_the_events_as_lines_and_then_the_checks() {
    let world = World::new();
    let output = demo(&world, &["--json"]).run().expect_code(0);
    let lines: Vec<Value> =
        output.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let (last, events) = lines.split_last().expect("lines");
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["seq"], at + 1, "each event once, in order");
    }
    assert_eq!(last["ok"], true, "{last}");
    let checks = last["checks"].as_array().expect("checks");
    assert!(checks.iter().all(|check| check["ok"] == true && check["seen"].is_string()), "{last}");
    assert_eq!(
        (&last["run"]["status"], &last["run"]["beads"]["closed"]),
        (&"completed".into(), &4.into()),
        "{last}"
    );
    assert_eq!(last["kept"], Value::Null);
    nothing_is_left(&world);
}

#[test]
fn kept_demo_can_be_inspected() {
    let world = World::new();
    let output = demo(&world, &["--keep", "--json"]).run().expect_code(0);
    let last: Value =
        serde_json::from_str(output.stdout.lines().last().expect("a line")).expect("JSON");
    let kept = PathBuf::from(last["kept"].as_str().expect("a folder"));
    world.wait_for_nothing_left(&[]);
    let mut status = world.muleteer(&["status", "--json"]);
    for line in std::fs::read_to_string(kept.join("env.sh")).expect("env.sh").lines() {
        let (name, value) =
            line.strip_prefix("export ").and_then(|rest| rest.split_once('=')).expect("an export");
        status = status.env(name, value.trim_matches('\''));
    }
    let status = status.json();
    assert_eq!(status["dispatches"], last["dispatches"], "told from disk as the daemon told it");
}

#[test]
fn demo_needs_no_home_and_no_installed_shim() {
    let world = World::new();
    let alone = world.bin().join("muleteer");
    let built = xtask::binaries::ensure().expect("binaries").join("muleteer");
    muleteer_tests::program::copy(built.as_ref(), &alone);
    let mut command = Command::new(&alone);
    command.arg("demo").current_dir(world.path());
    world.environment(&mut command);
    for name in
        ["HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "LANG"]
    {
        command.env_remove(name);
    }
    let output = command.output().expect("the demo runs");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(temporary(&world), [] as [PathBuf; 0]);
    world.wait_for_nothing_left(&[]);
}

#[test]
fn interrupted_demo_cleans_up() {
    let world = World::new();
    let mut running = demo(&world, &["--keep"]).start();
    let pid = running.pid();
    wait_until("its agents to run", PATIENCE, || {
        let all = world.processes();
        (!processes::shims(&all).is_empty()).then_some(())
    });
    assert!(running.is_running());
    let raw = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a pid");
    rustix::process::kill_process(raw, rustix::process::Signal::INT)
        .expect("a signal to our child");
    let output = running.finish().expect_code(4);
    assert!(output.stderr.contains("E_CANCELLED"), "{}", output.stderr);
    nothing_is_left(&world);
}
