//! `doctor` on machines that are broken in one place.

mod support;

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use support::{Said, User, said};

fn program(user: &User, name: &str, text: &str) {
    user.write(Path::new("bin").join(name), &format!("#!/bin/sh\n{text}\n"));
    let path = user.path("bin").join(name);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("mode");
}

/// With only the programs of the test on PATH, and git.
fn doctor(user: &User, variables: &[(&str, &str)]) -> Said {
    let mut command = user.command(&["doctor", "--json"]);
    command.env("PATH", format!("{}:/usr/bin:/bin", user.path("bin").display()));
    command.envs(variables.iter().copied());
    said(command.output().expect("run"))
}

fn check(document: &Value, name: &str) -> Value {
    let checks = document["checks"].as_array().expect("checks");
    checks
        .iter()
        .find(|check| check["name"] == name)
        .unwrap_or_else(|| panic!("no {name} in {document}"))
        .clone()
}

#[test]
fn a_machine_with_one_agent_is_well() {
    let user = User::new();
    program(&user, "claude", "echo '2.1.3 (Claude Code)'");
    let said = doctor(&user, &[]);
    let document = said.json();
    assert_eq!((said.code, &document["ok"]), (0, &Value::Bool(true)), "{said:?}");
    let claude = check(&document, "backend.claude-code");
    assert_eq!(claude["status"], "ok");
    assert!(claude["message"].as_str().expect("text").starts_with("2.1.3 (Claude Code) ("), "{claude}");
    let counted: u64 = document["summary"].as_object().expect("object").values().filter_map(Value::as_u64).sum();
    assert_eq!(counted as usize, document["checks"].as_array().expect("checks").len());
    assert!(!user.state().exists(), "looking changes nothing");

    let text = said_of(&user, &["doctor"]);
    assert!(text.contains("ok    git") && text.contains("skip  telemetry"), "{text}");
}

fn said_of(user: &User, args: &[&str]) -> String {
    user.run(args).stdout
}

#[test]
fn what_fails_is_told_and_exits_4() {
    let user = User::new();
    program(&user, "claude", "echo broken >&2; exit 1");
    user.write(".config/muleteer/config.yaml", "pool:\n  max_agnts: 3\n");
    let said = doctor(&user, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318")]);
    assert_eq!(said.code, 4, "{said:?}");
    let document = said.json();
    let config = check(&document, "config");
    assert_eq!(config["status"], "fail");
    assert!(config["message"].as_str().expect("text").contains("config.yaml:2"), "{config}");
    assert_eq!(check(&document, "backend.claude-code")["status"], "warn");
    assert_eq!(check(&document, "telemetry")["status"], "fail");
}

#[test]
fn a_configured_agent_that_is_missing_fails() {
    let user = User::new();
    program(&user, "claude", "echo 2.1.3");
    user.write(".config/muleteer/config.yaml", "backend: codex\nbackends: {codex: {command: /nowhere/codex}}\n");
    let document = doctor(&user, &[]).json();
    assert_eq!(check(&document, "backend.codex")["status"], "fail");
    assert_eq!(check(&document, "backend.claude-code")["status"], "ok");
}

#[test]
fn directories_that_others_may_enter_fail() {
    let user = User::new();
    std::fs::create_dir_all(user.state()).expect("dir");
    std::fs::set_permissions(user.state(), std::fs::Permissions::from_mode(0o777)).expect("mode");
    user.write(".local/state/muleteer/operator.key", "key");
    std::fs::set_permissions(user.state().join("operator.key"), std::fs::Permissions::from_mode(0o644)).expect("mode");
    let document = doctor(&user, &[]).json();
    assert_eq!(check(&document, "state_dir")["status"], "fail");
    assert_eq!(check(&document, "operator_key")["status"], "fail");
}

#[test]
fn a_daemon_is_seen_and_a_collector_is_reached() {
    let user = User::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let endpoint = format!("http://{}", listener.local_addr().expect("address"));
    assert_eq!(check(&doctor(&user, &[]).json(), "daemon")["status"], "ok");
    // Any verb that acts starts one.
    let spawn = user.run(&["spawn", "developer", ".", "x", "--backend", "subprocess", "--command", "true", "--wait"]);
    assert_eq!(spawn.code, 0, "{spawn:?}");
    let document = doctor(&user, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]).json();
    let daemon = check(&document, "daemon");
    assert!(daemon["message"].as_str().expect("text").starts_with("pid "), "{daemon}");
    assert_eq!(check(&document, "operator_key")["status"], "ok");
    assert_eq!(check(&document, "state_dir")["status"], "ok");
    assert_eq!(check(&document, "telemetry")["status"], "ok");
    drop(listener);
    let document = doctor(&user, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]).json();
    assert_eq!(check(&document, "telemetry")["status"], "warn");
}
