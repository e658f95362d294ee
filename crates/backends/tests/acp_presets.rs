//! The command lines of the ACP agents that are known by name.

#![allow(clippy::unwrap_used)]

use muleteer_backends::AGENT_SETTINGS;
use muleteer_backends::acp::{self, Acp, KNOWN};
use muleteer_backends::{Backend, BackendError, CommandLine, LaunchSpec, ProjectSettings};
use muleteer_model::agent::capability;
use muleteer_model::agent::permission::{Mode, Policy};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Returns the program with its arguments, and the variables that Muleteer sets.
fn started(name: &str, policy: &Policy, args: &[&str]) -> (String, Vec<(String, String)>) {
    let launch = LaunchSpec {
        args: args.iter().map(|arg| (*arg).to_string()).collect(),
        permissions: policy.clone(),
        ..LaunchSpec::default()
    };
    let (argv, line) = launched(name, launch).unwrap();
    (argv, line.env)
}

/// Returns the command line, also as a text without the folder of the program.
fn launched(name: &str, launch: LaunchSpec) -> Result<(String, CommandLine), BackendError> {
    let folder = tempfile::tempdir().unwrap();
    for agent in &capability::ACP {
        let program = folder.path().join(agent.program);
        std::fs::write(&program, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = folder.path().to_string_lossy().into_owned();
    let line = Acp.command_line(&LaunchSpec {
        cwd: PathBuf::from("/project"),
        agent_dir: PathBuf::from("/state/agents/a1"),
        muleteer: PathBuf::from("/opt/bin/muleteer"),
        path: Some(path.clone()),
        agent: Some(name.into()),
        ..launch
    })?;
    Ok((line.argv.join(" ").replace(&format!("{path}/"), ""), line))
}

fn value<'a>(line: &'a CommandLine, name: &str) -> Option<&'a str> {
    line.env.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

/// Returns the file that a variable names, as the agent finds it.
fn settings(line: &CommandLine, name: &str) -> Option<Value> {
    let path = value(line, name)?;
    let file = line.files.iter().find(|file| file.path == Path::new(path))?;
    assert!(file.path.starts_with("/state/agents/a1/acp"), "{}", file.path.display());
    serde_json::from_str(&file.contents).ok()
}

#[test]
fn agents_start_without_settings_of_an_untrusted_repository() {
    let start = |name: &str, project_settings| {
        launched(name, LaunchSpec { project_settings, ..LaunchSpec::default() })
    };
    let trust = "GEMINI_CLI_TRUST_WORKSPACE";
    let line = start("gemini", ProjectSettings::Ignored).unwrap().1;
    assert_eq!(value(&line, trust), Some("false"));
    assert_eq!(value(&start("gemini", ProjectSettings::Count).unwrap().1, trust), None);

    // A judge trusts nothing either.
    for without in [ProjectSettings::Ignored, ProjectSettings::Nothing] {
        let line = start("qwen", without).unwrap().1;
        let system = settings(&line, "QWEN_CODE_SYSTEM_SETTINGS_PATH").unwrap();
        assert_eq!(system["security"]["folderTrust"]["enabled"], true);
        let folders = settings(&line, "QWEN_CODE_TRUSTED_FOLDERS_PATH").unwrap();
        assert_eq!(folders, json!({"/project": "DO_NOT_TRUST"}));
    }

    let refused = AGENT_SETTINGS.iter().filter(|settings| !settings.can_be_ignored);
    let names: Vec<_> = refused.clone().map(|settings| settings.agent).collect();
    assert_eq!(names, ["opencode", "copilot", "cline"]);
    for agent in refused {
        let refused = start(agent.agent, ProjectSettings::Ignored).unwrap_err();
        assert!(refused.to_string().starts_with(agent.agent), "{refused}");
        assert!(refused.hint().contains("muleteer trust"), "{}", refused.hint());
        assert!(start(agent.agent, ProjectSettings::Count).is_ok());
    }
}

#[test]
fn qwen_makes_no_requests_beside_the_task() {
    let (_, line) = launched("qwen", LaunchSpec::default()).unwrap();
    let defaults = settings(&line, "QWEN_CODE_SYSTEM_DEFAULTS_PATH").unwrap();
    for key in ["/memory/enableManagedAutoMemory", "/memory/enableAutoSkill"] {
        assert_eq!(defaults.pointer(key), Some(&json!(false)), "{key}");
    }
    assert_eq!(defaults["ui"]["enableFollowupSuggestions"], false);
    // Its own waits for the end of a rate limit are silent.
    assert_eq!(defaults["model"]["generationConfig"]["maxRetries"], 0);
    assert_eq!(value(&line, "QWEN_CODE_SYSTEM_SETTINGS_PATH"), None);
    let own = ("QWEN_CODE_SYSTEM_DEFAULTS_PATH".to_string(), "/etc/own.json".to_string());
    let (_, line) =
        launched("qwen", LaunchSpec { env: vec![own], ..LaunchSpec::default() }).unwrap();
    assert_eq!(value(&line, "QWEN_CODE_SYSTEM_DEFAULTS_PATH"), Some("/etc/own.json"));
}

#[test]
fn requested_model_reaches_an_agent_that_is_started_with_it() {
    let model = || LaunchSpec { model: Some("m1".into()), ..LaunchSpec::default() };
    let (_, line) = launched("copilot", model()).unwrap();
    assert_eq!(value(&line, "COPILOT_MODEL"), Some("m1"));
    let own = vec![("COPILOT_MODEL".to_string(), "m2".to_string())];
    let (_, line) = launched("copilot", LaunchSpec { env: own, ..model() }).unwrap();
    assert_eq!(value(&line, "COPILOT_MODEL"), Some("m2"));
    assert_eq!(value(&launched("gemini", model()).unwrap().1, "COPILOT_MODEL"), None);
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

/// pi's own JSON tells what pi-acp does not.
#[test]
fn refused_agent_starts_for_old_dispatches_only_and_names_the_way_out() {
    let refused = acp::to_start("pi").unwrap_err();
    assert!(refused.to_string().contains("does not report errors"), "{refused}");
    assert_eq!(refused.hint(), "use `--backend pi`");
    assert_eq!(started("pi", &Policy::default(), &[]).0, "pi-acp");
    for offer in [BackendError::NoAgent.hint(), acp::to_start("gemin").unwrap_err().hint()] {
        assert!(offer.contains("gemini") && !offer.contains("pi-acp"), "{offer}");
        assert!(!offer.contains(" pi,"), "{offer}");
    }
}
