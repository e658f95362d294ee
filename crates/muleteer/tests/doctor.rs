//! Tests `doctor` on machines with one defect each.

mod support;

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use support::{Said, User, said};

fn program(user: &User, name: &str, text: &str) {
    user.write("text", &format!("#!/bin/sh\n{text}\n"));
    std::fs::create_dir_all(user.path("bin")).expect("dir");
    // Another process installs the program. If this process wrote it, a child forked by another
    // test could hold the file open for writing, and running it would fail until that child's exec.
    #[allow(clippy::disallowed_methods)]
    let mut install = std::process::Command::new("install");
    let status =
        install.arg("-m755").arg(user.path("text")).arg(user.path("bin").join(name)).status();
    assert!(status.expect("install").success());
}

/// Runs `doctor` with only the test's programs and git on PATH.
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
    assert!(
        claude["message"].as_str().expect("text").starts_with("2.1.3 (Claude Code) ("),
        "{claude}"
    );
    let counted: u64 =
        document["summary"].as_object().expect("object").values().filter_map(Value::as_u64).sum();
    assert_eq!(counted as usize, document["checks"].as_array().expect("checks").len());
    assert!(!user.state().exists(), "looking changes nothing");

    let text = said_of(&user, &["doctor"]);
    assert!(text.contains("ok    git") && text.contains("skip  telemetry"), "{text}");
}

fn said_of(user: &User, args: &[&str]) -> String {
    user.run(args).stdout
}

#[test]
fn failed_check_is_reported_and_exits_4() {
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
    user.write(
        ".config/muleteer/config.yaml",
        "backend: codex\nbackends: {codex: {command: /nowhere/codex}}\n",
    );
    let document = doctor(&user, &[]).json();
    assert_eq!(check(&document, "backend.codex")["status"], "fail");
    assert_eq!(check(&document, "backend.claude-code")["status"], "ok");
}

/// `doctor` fails for everything that `spawn` and `run` would reject.
#[test]
fn configured_agents_are_looked_up_by_kind() {
    let user = User::new();
    program(&user, "claude", "echo 2.1.3");
    let found = |config: &str, name: &str| {
        user.write(".config/muleteer/config.yaml", config);
        let said = doctor(&user, &[]);
        let found = check(&said.json(), name);
        assert_eq!(said.code == 4, found["status"] == "fail", "{said:?}");
        let text = |key: &str| found[key].as_str().unwrap_or_default().to_string();
        (text("status"), text("message"), text("hint"))
    };
    for config in
        ["backends: {acp: {agent: gemini}}\n", "backend: acp\nbackends: {acp: {agent: gemini}}\n"]
    {
        let (status, message, hint) = found(config, "backend.acp");
        assert_eq!(status, "fail", "{config}: {message}");
        assert!(
            message.contains("`gemini` is not on PATH") && hint.contains("gemini-cli"),
            "{message} {hint}"
        );
    }
    let (status, message, hint) = found("backends: {acp: {agent: gemni}}\n", "backend.acp");
    assert!(
        status == "fail" && message.contains("gemni") && hint.contains("\"gemini\""),
        "{message} {hint}"
    );
    let (status, message, _) = found("backend: acp\n", "backend.acp");
    assert!(status == "fail" && message.contains("no ACP agent is on PATH"), "{message}");
    let (status, message, _) = found("run: {agent: {backend: codex}}\n", "backend.codex");
    assert!(status == "fail" && message.contains("run.agent.backend"), "{message}");
    let (status, message, _) =
        found("run: {agent: {backend: subprocess, command: ./agent}}\n", "backend.subprocess");
    assert!(status == "fail" && message.contains("run.agent.command"), "{message}");
    // Not every ACP agent can print its version: an older claude-agent-acp starts to serve instead.
    program(&user, "gemini", "sleep 1000");
    let (status, message, _) = found("backend: acp\n", "backend.acp");
    assert!(status == "ok" && message.contains("/gemini"), "{message}");
}

#[test]
fn broken_path_is_reported_as_broken() {
    let user = User::new();
    user.write(
        ".config/muleteer/config.yaml",
        "backends: {claude_code: {command: /nope/claude}}\n",
    );
    let found = check(&doctor(&user, &[]).json(), "backend.claude-code");
    let text = found.to_string();
    assert!(text.contains("`/nope/claude` is missing") && !text.contains("PATH"), "{found}");
    assert!(
        found["hint"].as_str().expect("hint").contains("backends.claude_code.command"),
        "{found}"
    );
}

#[test]
fn program_without_a_version_is_a_warning() {
    let user = User::new();
    for text in ["echo hello world", "head -c 300000 /dev/urandom"] {
        program(&user, "claude", text);
        let said = doctor(&user, &[]);
        let claude = check(&said.json(), "backend.claude-code");
        assert_eq!((said.code, claude["status"].as_str()), (0, Some("warn")), "{claude}");
        assert!(claude["message"].as_str().expect("text").contains("not a version"), "{claude}");
    }
    program(
        &user,
        "claude",
        "echo 'a newer one is there'; echo '2.1.3 (Claude Code)'; sleep 20 & exit 0",
    );
    let claude = check(&doctor(&user, &[]).json(), "backend.claude-code");
    assert_eq!(claude["status"], "ok", "{claude}");
    assert!(
        claude["message"].as_str().expect("text").starts_with("2.1.3 (Claude Code) ("),
        "{claude}"
    );
}

#[test]
fn directories_that_others_may_enter_fail() {
    let user = User::new();
    std::fs::create_dir_all(user.state()).expect("dir");
    std::fs::set_permissions(user.state(), std::fs::Permissions::from_mode(0o777)).expect("mode");
    user.write(".local/state/muleteer/operator.key", "key");
    std::fs::set_permissions(
        user.state().join("operator.key"),
        std::fs::Permissions::from_mode(0o644),
    )
    .expect("mode");
    let document = doctor(&user, &[]).json();
    assert_eq!(check(&document, "state_dir")["status"], "fail");
    assert_eq!(check(&document, "operator_key")["status"], "fail");
}

/// A directory may count as creatable only if the first daemon can create it.
#[test]
fn directory_that_cannot_be_created_fails() {
    let user = User::new();
    user.write("file", "");
    let below = user.path("file").join("state").display().to_string();
    let document = doctor(&user, &[("XDG_STATE_HOME", &below)]).json();
    assert_eq!(check(&document, "state_dir")["status"], "fail", "{document}");
    let document = doctor(&user, &[("XDG_RUNTIME_DIR", &below)]).json();
    assert_eq!(check(&document, "runtime_dir")["status"], "fail", "{document}");
    // The daemon also requires that nobody else can write to its directory's parent.
    std::fs::create_dir(user.path("run/muleteer")).expect("dir");
    std::fs::set_permissions(user.path("run/muleteer"), std::fs::Permissions::from_mode(0o777))
        .expect("mode");
    let found = check(&doctor(&user, &[]).json(), "runtime_dir");
    assert_eq!(found["status"], "fail", "{found}");
    let cure = format!("`chmod 700 {}`", user.path("run/muleteer").display());
    assert_eq!(found["hint"], cure.as_str(), "it is ours: nothing has to be removed");
}

/// Without usable directories `doctor` reports that as one check of many, and verbs that need no
/// state work.
#[test]
fn missing_directory_variables_are_reported() {
    let user = User::new();
    let deep = user.path(&"d".repeat(120)).display().to_string();
    let said = doctor(&user, &[("XDG_RUNTIME_DIR", &deep)]);
    assert_eq!(
        (said.code, check(&said.json(), "runtime_dir")["status"].as_str()),
        (4, Some("fail")),
        "{said:?}"
    );
    let homeless = |args: &[&str]| {
        let mut command = user.command(args);
        support::said(command.env_remove("HOME").output().expect("run"))
    };
    let said = homeless(&["doctor", "--json"]);
    let found = check(&said.json(), "state_dir");
    assert_eq!((said.code, found["status"].as_str()), (4, Some("fail")), "{said:?}");
    assert!(found["message"].as_str().expect("text").contains("HOME"), "{found}");
    assert_eq!(homeless(&["completions", "bash"]).code, 0);
    assert_eq!(homeless(&["config", "schema"]).code, 0);
    let refused = homeless(&["status", "--json"]).json();
    assert_eq!(refused["error"]["code"], "E_USAGE", "{refused}");
    // No daemon is asked, because no socket can have such a path.
    let refused = user.run(&["status", "--json", "--socket", &deep]);
    assert_eq!(
        (refused.code, refused.json()["error"]["code"].as_str()),
        (2, Some("E_USAGE")),
        "{refused:?}"
    );
}

#[test]
fn a_log_that_no_daemon_would_start_with_fails() {
    let user = User::new();
    let document = doctor(
        &user,
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9"), ("OTEL_SDK_DISABLED", "true")],
    );
    assert_eq!(check(&document.json(), "telemetry")["status"], "skip");
    let spawn = user.run(&[
        "spawn",
        "developer",
        ".",
        "x",
        "--backend",
        "subprocess",
        "--command",
        "true",
        "--wait",
    ]);
    assert_eq!(spawn.code, 0, "{spawn:?}");
    let document = doctor(&user, &[]).json();
    assert_eq!(check(&document, "events")["status"], "ok", "{document}");
    assert_eq!(check(&document, "database")["status"], "ok", "{document}");
    assert_eq!(user.run(&["daemon", "stop"]).code, 0);
    let events = user.state().join("events.jsonl");
    let good = std::fs::read_to_string(&events).expect("events");
    std::fs::write(&events, good.replacen("daemon_started", "daemon_stopped", 1)).expect("write");
    let found = check(&doctor(&user, &[]).json(), "events");
    assert_eq!(found["status"], "fail", "{found}");
    assert!(found["message"].as_str().expect("text").contains("line 1"), "{found}");
    // The database holds more than a log that lost its end.
    std::fs::write(&events, "").expect("write");
    let _ = std::fs::remove_file(user.state().join("events.mark"));
    let found = check(&doctor(&user, &[]).json(), "database");
    assert_eq!(found["status"], "fail", "{found}");
    std::fs::write(&events, good).expect("write");
}

#[test]
fn a_daemon_is_seen_and_a_collector_is_reached() {
    let user = User::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let endpoint = format!("http://{}", listener.local_addr().expect("address"));
    assert_eq!(check(&doctor(&user, &[]).json(), "daemon")["status"], "ok");
    // Any verb that acts starts a daemon.
    let spawn = user.run(&[
        "spawn",
        "developer",
        ".",
        "x",
        "--backend",
        "subprocess",
        "--command",
        "true",
        "--wait",
    ]);
    assert_eq!(spawn.code, 0, "{spawn:?}");
    let variable = [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())];
    let document = doctor(&user, &variable).json();
    let daemon = check(&document, "daemon");
    assert!(daemon["message"].as_str().expect("text").starts_with("pid "), "{daemon}");
    assert_eq!(check(&document, "operator_key")["status"], "ok");
    assert_eq!(check(&document, "state_dir")["status"], "ok");
    // A collector answers, but nothing is exported to it.
    let telemetry = check(&document, "telemetry");
    assert_eq!(telemetry["status"], "warn", "{telemetry}");
    assert!(
        telemetry["message"]
            .as_str()
            .expect("text")
            .contains("the running daemon exports nothing"),
        "{telemetry}"
    );
    assert!(
        telemetry["hint"].as_str().expect("hint").contains("muleteer daemon stop"),
        "{telemetry}"
    );

    assert_eq!(user.run(&["daemon", "stop"]).code, 0);
    let args =
        ["spawn", "developer", ".", "x", "--backend", "subprocess", "--command", "true", "--wait"];
    let spawn = said(user.command(&args).envs(variable).output().expect("run"));
    assert_eq!(spawn.code, 0, "{spawn:?}");
    assert_eq!(check(&doctor(&user, &variable).json(), "telemetry")["status"], "ok");
    // The daemon's exporter counts, not this shell's environment.
    assert_eq!(check(&doctor(&user, &[]).json(), "telemetry")["status"], "ok");
    let telemetry = check(
        &doctor(&user, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")]).json(),
        "telemetry",
    );
    let message = telemetry["message"].as_str().expect("text");
    assert!(telemetry["status"] == "warn" && message.contains(&endpoint), "{telemetry}");
    drop(listener);
    assert_eq!(check(&doctor(&user, &variable).json(), "telemetry")["status"], "warn");
    assert_eq!(check(&doctor(&user, &[]).json(), "telemetry")["status"], "warn");
}
