//! The command lines of the ACP agents that are known by name.

#![allow(clippy::unwrap_used)]

use muleteer_backends::acp::{Acp, KNOWN};
use muleteer_backends::{Backend, LaunchSpec};
use muleteer_model::agent::capability;
use muleteer_model::agent::permission::{Mode, Policy};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Returns the program with its arguments, and the variables that Muleteer sets.
fn started(name: &str, policy: &Policy, args: &[&str]) -> (String, Vec<(String, String)>) {
    let folder = tempfile::tempdir().unwrap();
    for agent in &capability::ACP {
        let program = folder.path().join(agent.program);
        std::fs::write(&program, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = folder.path().to_string_lossy().into_owned();
    let line = Acp
        .command_line(&LaunchSpec {
            cwd: PathBuf::from("/project"),
            agent_dir: PathBuf::from("/state/agents/a1"),
            muleteer: PathBuf::from("/opt/bin/muleteer"),
            path: Some(path.clone()),
            agent: Some(name.into()),
            args: args.iter().map(|arg| (*arg).to_string()).collect(),
            permissions: policy.clone(),
            ..LaunchSpec::default()
        })
        .unwrap();
    (line.argv.join(" ").replace(&format!("{path}/"), ""), line.env)
}

#[test]
fn presets_follow_the_policy() {
    let open = Policy::default();
    let asks = Policy { mode: Mode::Ask, ..Policy::default() };
    for (name, under_open, under_ask) in [
        ("claude-agent-acp", "claude-agent-acp", "claude-agent-acp"),
        ("codex-acp", "codex-acp", "codex-acp"),
        ("opencode", "opencode acp", "opencode acp"),
        ("gemini", "gemini --acp --yolo", "gemini --acp"),
        ("qwen", "qwen --acp --yolo", "qwen --acp"),
        (
            "copilot",
            "copilot --acp --no-auto-update --allow-all-tools",
            "copilot --acp --no-auto-update",
        ),
        ("cline", "cline --acp", "cline --acp"),
        ("pi", "pi-acp", "pi-acp"),
    ] {
        assert_eq!(started(name, &open, &[]).0, under_open);
        assert_eq!(started(name, &asks, &[]).0, under_ask);
    }
    let has = |env: &[(String, String)], name: &str| env.iter().any(|(key, _)| key == name);
    assert!(!has(&started("opencode", &open, &[]).1, "OPENCODE_PERMISSION"));
    assert!(has(&started("opencode", &asks, &[]).1, "OPENCODE_PERMISSION"));
}

#[test]
fn mode_of_the_user_replaces_that_of_the_preset() {
    for args in [&["--approval-mode", "default"][..], &["--approval-mode=auto"], &["-y"]] {
        let line = started("gemini", &Policy::default(), args).0;
        assert_eq!(line, format!("gemini --acp {}", args.join(" ")));
    }
    let line = started("qwen", &Policy::default(), &["--debug"]).0;
    assert_eq!(line, "qwen --acp --yolo --debug");
}

#[test]
fn presets_are_in_the_order_of_the_table_of_capabilities() {
    assert_eq!(KNOWN.map(|known| known.name), capability::ACP.map(|agent| agent.name));
    assert_eq!(KNOWN.map(|known| known.get), capability::ACP.map(|agent| agent.install));
}
