//! The processes that backends describe, and their errors if something is missing.

#![allow(clippy::unwrap_used)]

use muleteer_backends::Backend;
use muleteer_backends::BackendError;
use muleteer_backends::Collector;
use muleteer_backends::Command;
use muleteer_backends::LaunchSpec;
use muleteer_backends::ProjectSettings;
use muleteer_backends::StdinMode;
use muleteer_backends::ToolServer;
use muleteer_backends::auto;
use muleteer_backends::by_name;
use muleteer_backends::claude_code::{ClaudeCode, set_for_nested};
use muleteer_backends::codex::Codex;
use muleteer_backends::opencode::Opencode;
use muleteer_backends::pi::Pi;
use muleteer_backends::rehearsal::Rehearsal;
use muleteer_backends::subprocess::Subprocess;
use muleteer_model::event::mcp_pace::Periods;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Returns a PATH with the programs of all CLIs on it.
fn installed() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    for name in ["claude", "codex", "opencode", "pi"] {
        let program = folder.path().join(name);
        std::fs::write(&program, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = folder.path().to_string_lossy().into_owned();
    (folder, path)
}

fn launch() -> LaunchSpec {
    LaunchSpec {
        cwd: PathBuf::from("/project"),
        agent_dir: PathBuf::from("/state/agents/a1"),
        muleteer: PathBuf::from("/opt/bin/muleteer"),
        ..LaunchSpec::default()
    }
}

fn words(argv: &[String], folder: &str) -> String {
    argv.join("\n").replace(folder, "PATH")
}

fn told(error: &BackendError) -> String {
    format!("{}: {error}\nhint: {}", error.code(), error.hint())
}

#[test]
fn claude_arguments_have_all_options_and_no_prompt() {
    let (_folder, path) = installed();
    let line = ClaudeCode
        .command_line(&LaunchSpec {
            path: Some(path.clone()),
            model: Some("haiku".into()),
            max_turns: Some(7),
            budget_usd: Some(2.5),
            system_prompt_append: Some("You review.".into()),
            session_id: Some("s-new".into()),
            result_schema: Some(serde_json::json!({"type": "object"})),
            args: vec!["--debug".into()],
            env: vec![("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC".into(), "1".into())],
            ..launch()
        })
        .unwrap();
    insta::assert_snapshot!(words(&line.argv, &path), @r#"
    PATH/claude
    -p
    --output-format
    stream-json
    --input-format
    stream-json
    --verbose
    --replay-user-messages
    --include-partial-messages
    --permission-prompt-tool
    stdio
    --permission-mode
    bypassPermissions
    --setting-sources
    project
    --append-system-prompt-file
    /state/agents/a1/claude/system-prompt.md
    --model
    haiku
    --max-turns
    7
    --max-budget-usd
    2.5
    --json-schema
    {"type":"object"}
    --session-id
    s-new
    --debug
    "#);
    assert_eq!(line.files[0].contents, "You review.");
    assert_eq!(line.stdin, StdinMode::Open);
    // A variable that the user set is kept.
    let kept =
        set_for_nested().filter(|name| !line.env_remove.iter().any(|removed| removed == name));
    assert_eq!(kept.collect::<Vec<_>>(), ["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"]);
}

#[test]
fn claude_in_an_untrusted_repository_gets_no_settings_of_it() {
    let (_folder, path) = installed();
    let line = ClaudeCode
        .command_line(&LaunchSpec {
            path: Some(path.clone()),
            session_id: Some("s-new".into()),
            project_settings: ProjectSettings::Ignored,
            ..launch()
        })
        .unwrap();
    let at = line.argv.iter().position(|word| word == "--add-dir").unwrap();
    assert_eq!(
        line.argv[at..at + 5],
        ["--add-dir", "/project", "--setting-sources", "", "--session-id"]
    );
    let instructions =
        ("CLAUDE_CODE_ADDITIONAL_DIRECTORIES_CLAUDE_MD".to_string(), "1".to_string());
    assert!(line.env.contains(&instructions), "{:?}", line.env);
}

#[test]
fn pi_gets_its_role_in_a_file_and_its_prompt_on_stdin() {
    let (_folder, path) = installed();
    let launch = LaunchSpec {
        path: Some(path.clone()),
        model: Some("anthropic/opus".into()),
        session_id: Some("s-new".into()),
        system_prompt_append: Some("You review.".into()),
        args: vec!["--thinking".into(), "high".into()],
        ..launch()
    };
    let line = Pi.command_line(&launch).unwrap();
    insta::assert_snapshot!(words(&line.argv, &path), @r#"
    PATH/pi
    --mode
    json
    --append-system-prompt
    /state/agents/a1/pi/system-prompt.md
    --model
    anthropic/opus
    --session-id
    s-new
    --thinking
    high
    "#);
    assert_eq!(line.files[0].contents, "You review.");
    assert_eq!(line.stdin, StdinMode::CloseAfterPrompt);
    let sessions = ("PI_CODING_AGENT_SESSION_DIR", "/state/agents/a1/pi/sessions");
    assert_eq!(line.env, [(sessions.0.to_string(), sessions.1.to_string())]);
    let prompt = String::from_utf8(Pi.prompt(None, "k", "/login fails")).unwrap();
    assert!(prompt.starts_with("The prompt is:\n\n/login fails") && prompt.contains("k]\n"));

    let resumed = LaunchSpec { resume: Some("s-old".into()), ..launch };
    let argv = Pi.command_line(&resumed).unwrap().argv;
    let at = argv.iter().position(|word| word == "--session").unwrap();
    assert_eq!(argv[at + 1], "s-old");
    assert!(!argv.contains(&"--session-id".to_string()));
}

#[test]
fn opencode_asks_nobody_and_gets_its_prompt_on_stdin() {
    let (_folder, path) = installed();
    let launch = LaunchSpec { path: Some(path.clone()), model: Some("a/m".into()), ..launch() };
    let line = Opencode.command_line(&launch).unwrap();
    insta::assert_snapshot!(words(&line.argv, &path), @r#"
    PATH/opencode
    run
    --format
    json
    --auto
    --model
    a/m
    --title
    muleteer a1
    "#);
    assert_eq!(line.stdin, StdinMode::CloseAfterPrompt);
    assert_eq!(Opencode.prompt(None, "k", "do it"), b"do it");
    let resumed = LaunchSpec { resume: Some("ses_1".into()), ..launch };
    let argv = Opencode.command_line(&resumed).unwrap().argv;
    assert!(argv.ends_with(&["--session".to_string(), "ses_1".to_string()]), "{argv:?}");
}

/// Its plugins run whatever its variables say.
#[test]
fn opencode_does_not_start_with_settings_that_are_not_trusted() {
    let (_folder, path) = installed();
    assert!(Opencode.repository_settings(None, None).is_some());
    for (project_settings, starts) in [
        (ProjectSettings::Count, true),
        (ProjectSettings::Ignored, false),
        (ProjectSettings::Nothing, true),
    ] {
        let launch = LaunchSpec { path: Some(path.clone()), project_settings, ..launch() };
        assert_eq!(Opencode.command_line(&launch).is_ok(), starts, "{project_settings:?}");
    }
}

/// Neither can ask, so no policy can bind them.
#[test]
fn pi_and_opencode_keep_an_open_policy_only() {
    use muleteer_model::agent::permission::{Mode, PermissionMode, Policy};
    let ask = Policy { mode: Mode::Ask, ..Policy::default() };
    let plan = Policy { permission_mode: Some(PermissionMode::Plan), ..Policy::default() };
    for backend in [&Pi as &dyn Backend, &Opencode] {
        assert!(backend.keeps(&Policy::default()), "{}", backend.name());
        assert!(!backend.keeps(&ask) && !backend.keeps(&plan), "{}", backend.name());
    }
    let kept = |backend: &dyn Backend, own: &[&str]| {
        let mut args: Vec<_> = own.iter().map(|arg| (*arg).to_string()).collect();
        backend.keep_from_writing(&mut args);
        args.join(" ")
    };
    assert_eq!(kept(&Pi, &[]), "--exclude-tools edit,write");
    assert_eq!(kept(&Pi, &["--tools", "read"]), "--tools read");
    assert_eq!(kept(&Opencode, &[]), "--agent plan");
    assert_eq!(kept(&Opencode, &["--agent", "mine"]), "--agent mine");
}

#[test]
fn codex_gets_its_schema_in_a_file_and_its_prompt_on_stdin() {
    let (_folder, path) = installed();
    let launch = LaunchSpec {
        path: Some(path.clone()),
        model: Some("gpt-5.5".into()),
        max_turns: Some(7),
        budget_usd: Some(2.5),
        system_prompt_append: Some("You review.".into()),
        result_schema: Some(muleteer_model::agent::result::schema()),
        ..launch()
    };
    let line = Codex.command_line(&launch).unwrap();
    insta::assert_snapshot!(words(&line.argv, &path), @r#"
    PATH/codex
    exec
    --json
    --skip-git-repo-check
    --dangerously-bypass-approvals-and-sandbox
    --model
    gpt-5.5
    --output-schema
    /state/agents/a1/codex/result-schema.json
    -c
    shell_environment_policy.set.RUST_LOG=""
    -
    "#);
    assert_eq!(line.stdin, StdinMode::CloseAfterPrompt);
    // The requirements of the model's API for a schema.
    let schema: serde_json::Value = serde_json::from_str(&line.files[0].contents).unwrap();
    let properties: Vec<_> = schema["properties"].as_object().unwrap().keys().collect();
    assert_eq!(schema["required"], serde_json::json!(properties));
    assert_eq!(schema["additionalProperties"], false);
    assert!(line.env_remove.contains(&"CODEX_THREAD_ID".to_string()));
    assert!(!line.env_remove.contains(&"CODEX_HOME".to_string()));

    let resumed = Codex.command_line(&LaunchSpec { resume: Some("s-1".into()), ..launch }).unwrap();
    assert!(
        resumed.argv.ends_with(&["resume".into(), "s-1".into(), "-".into()]),
        "{:?}",
        resumed.argv
    );
}

/// Configured permissions of Codex are not overruled, also with `resume`.
#[test]
fn codex_keeps_its_own_sandbox_if_configured() {
    let (_folder, path) = installed();
    let argv = |args: &[&str]| {
        let args = args.iter().map(|arg| (*arg).to_string()).collect();
        let inherited = vec!["RUST_LOG".to_string()];
        let spec = LaunchSpec {
            path: Some(path.clone()),
            args,
            inherited,
            resume: Some("s-1".into()),
            ..launch()
        };
        let line = Codex.command_line(&spec).unwrap();
        assert!(line.env.iter().all(|(name, _)| name != "RUST_LOG"), "what a person set stays");
        line.argv[1..].join(" ")
    };
    let ours = "exec --json --skip-git-repo-check";
    assert_eq!(
        argv(&["--sandbox", "workspace-write"]),
        format!("{ours} --sandbox workspace-write resume s-1 -")
    );
    for own in ["-s", "--sandbox=read-only", "sandbox_mode=\"read-only\"", "--approve-for-me"] {
        assert!(!argv(&[own]).contains("bypass"), "{own}");
    }
    assert!(
        argv(&["-c", "model_reasoning_effort=high"])
            .contains("--dangerously-bypass-approvals-and-sandbox")
    );
}

#[test]
fn a_prompt_for_codex_ends_in_its_key() {
    let bytes = Codex.prompt(None, "k-1", "fix it\n");
    assert_eq!(
        muleteer_model::agent::prompt::marked(std::str::from_utf8(&bytes).unwrap()),
        Some("k-1")
    );
    assert!(bytes.starts_with(b"fix it\n"));
    assert_eq!(Codex.interrupt(None, "k"), None);
}

#[test]
fn a_resumed_session_is_not_given_a_new_id() {
    let (_folder, path) = installed();
    let both = LaunchSpec {
        path: Some(path),
        resume: Some("old".into()),
        session_id: Some("new".into()),
        ..launch()
    };
    let argv = ClaudeCode.command_line(&both).unwrap().argv;
    assert!(argv.ends_with(&["--resume".into(), "old".into()]), "{argv:?}");
    assert_eq!(Rehearsal.command_line(&both).unwrap().argv[1..], ["rehearse", "--resume", "old"]);
}

#[test]
fn claude_may_be_another_command() {
    let (_folder, path) = installed();
    let argv = |command: Command| {
        let line = ClaudeCode.command_line(&LaunchSpec {
            command: Some(command),
            path: Some(path.clone()),
            ..launch()
        });
        line.map(|line| line.argv.into_iter().take_while(|word| word != "-p").collect::<Vec<_>>())
    };
    assert_eq!(argv(Command::Shell("claude".into())).unwrap(), [format!("{path}/claude")]);
    let wrapped = argv(Command::Shell("nice -n 5 claude".into())).unwrap();
    assert_eq!(wrapped, ["/bin/sh", "-c", "exec nice -n 5 claude \"$@\"", "claude"]);
    assert_eq!(
        argv(Command::Argv(vec!["claude".into(), "x".into()])).unwrap(),
        [format!("{path}/claude"), "x".into()]
    );
    assert!(matches!(argv(Command::Argv(vec![])), Err(BackendError::Incomplete { .. })));
}

#[test]
fn prompts_and_interrupts_are_one_line_each() {
    for backend in [&ClaudeCode as &dyn Backend, &Rehearsal] {
        let prompt = backend.prompt(None, "k-1", "two\nlines \u{2028} \"quoted\"");
        assert_eq!(prompt.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert!(prompt.ends_with(b"\n"));
        let interrupt = backend.interrupt(None, "k-2").unwrap();
        assert!(serde_json::from_slice::<serde_json::Value>(&interrupt).unwrap().is_object());
    }
    // A text runs as a command only if it is sent as one.
    let content = |bytes: &[u8]| {
        let value: serde_json::Value = serde_json::from_slice(bytes).unwrap();
        let text =
            value.pointer("/message/content").or_else(|| value.pointer("/params/prompt/0/text"));
        text.unwrap().as_str().unwrap().to_string()
    };
    for backend in [&ClaudeCode as &dyn Backend, by_name("acp").unwrap()] {
        let prompt = content(&backend.prompt(None, "k-1", " /login fails"));
        assert!(
            !prompt.trim().starts_with('/') && prompt.contains("\n /login fails"),
            "{prompt:?}"
        );
        assert_eq!(content(&backend.cli_command(None, "k-1", "/compact").unwrap()), "/compact");
    }
    assert_eq!(Codex.cli_command(None, "k-1", "/compact"), None);
    let value: serde_json::Value =
        serde_json::from_slice(&ClaudeCode.prompt(None, "k-1", "x")).unwrap();
    assert_eq!((&value["uuid"], &value["message"]["content"]), (&"k-1".into(), &"x".into()));
    assert_eq!(Subprocess.prompt(None, "k-1", "as it is"), b"as it is");
    assert_eq!(Subprocess.interrupt(None, "k"), None);
}

#[test]
fn a_command_runs_under_a_shell_or_as_it_is() {
    let line = |command, args: &[&str]| {
        let args = args.iter().map(|arg| (*arg).to_string()).collect();
        Subprocess.command_line(&LaunchSpec {
            command: Some(command),
            args,
            path: Some("/bin:/usr/bin".into()),
            ..launch()
        })
    };
    let shell = line(Command::Shell("echo $1 | wc".into()), &[]).unwrap();
    assert_eq!(
        (shell.argv, shell.stdin),
        (vec!["/bin/sh".into(), "-c".into(), "echo $1 | wc".into()], StdinMode::CloseAfterPrompt)
    );
    assert_eq!(line(Command::Shell("echo $1".into()), &["a"]).unwrap().argv[3..], ["sh", "a"]);
    let listed = line(Command::Argv(vec!["sh".into(), "-e".into()]), &["a"]).unwrap().argv;
    assert!(listed[0].ends_with("bin/sh") && listed[1..] == ["-e", "a"], "{listed:?}");
}

#[test]
fn rehearsal_runs_muleteer_and_stores_sessions_with_the_agent() {
    let line = Rehearsal
        .command_line(&LaunchSpec {
            scenario: Some("/s.yaml".into()),
            model: Some("m".into()),
            ..launch()
        })
        .unwrap();
    assert_eq!(
        line.argv,
        ["/opt/bin/muleteer", "rehearse", "--scenario", "/s.yaml", "--model", "m"]
    );
    assert_eq!(
        line.env,
        [("MULETEER_REHEARSAL_DIR".to_string(), "/state/agents/a1/rehearsal".to_string())]
    );
}

#[test]
fn missing_programs_have_installation_hints() {
    let empty = tempfile::tempdir().unwrap();
    let path = Some(empty.path().to_string_lossy().into_owned());
    let missing = Command::Argv(vec!["aider".into()]);
    let errors = [
        ClaudeCode.command_line(&LaunchSpec { path: path.clone(), ..launch() }).unwrap_err(),
        Codex.command_line(&LaunchSpec { path: path.clone(), ..launch() }).unwrap_err(),
        Subprocess.command_line(&launch()).unwrap_err(),
        Subprocess
            .command_line(&LaunchSpec { command: Some(missing), path, ..launch() })
            .unwrap_err(),
        Rehearsal
            .command_line(&LaunchSpec { scenario: Some("s.yaml".into()), ..launch() })
            .unwrap_err(),
        Rehearsal
            .command_line(&LaunchSpec { command: Some(Command::Shell("x".into())), ..launch() })
            .unwrap_err(),
        auto(Some(empty.path().as_os_str())).unwrap_err(),
        auto(None).unwrap_err(),
    ];
    insta::assert_snapshot!(errors.iter().map(told).collect::<Vec<_>>().join("\n\n"));
    let (folder, path) = installed();
    assert_eq!(auto(Some(path.as_ref())).unwrap().name(), "claude-code");
    std::fs::remove_file(folder.path().join("claude")).unwrap();
    assert_eq!(auto(Some(path.as_ref())).unwrap().name(), "codex");
    std::fs::remove_file(folder.path().join("codex")).unwrap();
    assert!(auto(Some(path.as_ref())).is_err(), "users name the others");
}

#[test]
fn agent_gets_the_span_endpoint_unless_configured() {
    let (_folder, path) = installed();
    let env = vec![("OTEL_LOGS_EXPORTER".to_string(), "none".to_string())];
    let at = |path: &str| Some(format!("http://127.0.0.1:4318{path}"));
    let telemetry = Some(Collector { base: at(""), traces: at("/v1/traces"), metrics: None });
    let spec = LaunchSpec { path: Some(path), telemetry, env, ..launch() };
    let claude = ClaudeCode.command_line(&spec).unwrap();
    let last = |name: &str| {
        claude.env.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    };
    assert_eq!(last("OTEL_EXPORTER_OTLP_ENDPOINT"), Some("http://127.0.0.1:4318"));
    assert_eq!(last("CLAUDE_CODE_ENABLE_TELEMETRY"), Some("1"));
    assert_eq!(last("OTEL_LOGS_EXPORTER"), Some("none"));
    assert_eq!(last("OTEL_TRACES_EXPORTER"), Some("otlp"));
    assert_eq!(last("OTEL_METRICS_EXPORTER"), Some("none"), "the daemon sends none either");
    let codex = Codex.command_line(&spec).unwrap();
    let wanted = "otel.trace_exporter={otlp-http={endpoint=\"http://127.0.0.1:4318/v1/traces\",protocol=\"json\"}}";
    assert!(codex.argv.windows(2).any(|pair| pair == ["-c", wanted]), "{:?}", codex.argv);
    let off = LaunchSpec { telemetry: None, ..spec };
    assert!(!Codex.command_line(&off).unwrap().argv.join(" ").contains("otel"));
    assert_eq!(ClaudeCode.command_line(&off).unwrap().env.len(), 1);
}

#[test]
fn claude_as_root_gets_is_sandbox_only_in_a_container() {
    let (_folder, path) = installed();
    let set = |sandboxed_root: bool, env: &[(&str, &str)]| {
        let env =
            env.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect();
        let launch = LaunchSpec { path: Some(path.clone()), sandboxed_root, env, ..launch() };
        let line = ClaudeCode.command_line(&launch).unwrap();
        // The last value counts.
        line.env.into_iter().rev().find(|(name, _)| name == "IS_SANDBOX").map(|(_, value)| value)
    };
    assert_eq!(set(false, &[]), None);
    assert_eq!(set(true, &[]).as_deref(), Some("1"));
    assert_eq!(set(true, &[("IS_SANDBOX", "0")]).as_deref(), Some("0"), "what is configured wins");
    let inherited = vec!["IS_SANDBOX".to_string()];
    let launch =
        LaunchSpec { path: Some(path.clone()), sandboxed_root: true, inherited, ..launch() };
    let line = ClaudeCode.command_line(&launch).unwrap();
    assert!(
        !line.env.iter().any(|(name, _)| name == "IS_SANDBOX"),
        "so does what the asker has set"
    );
}

/// The role's tools reach the CLI as flags, and the stricter of mode and policy applies.
#[test]
fn tools_of_a_role_reach_the_cli() {
    use muleteer_model::agent::permission::{Mode, PermissionMode, Policy};
    let (_folder, path) = installed();
    let flags = |policy: &Policy| {
        let launch =
            LaunchSpec { path: Some(path.clone()), permissions: policy.clone(), ..launch() };
        let argv = ClaudeCode.command_line(&launch).unwrap().argv;
        let mode = argv.iter().position(|arg| arg == "--permission-mode").unwrap();
        let named =
            |name: &str| argv.iter().find_map(|arg| arg.strip_prefix(name).map(str::to_string));
        (argv[mode + 1].clone(), named("--tools="), named("--disallowedTools="))
    };
    let text = |list: &[&str]| list.iter().map(|one| (*one).to_string()).collect::<Vec<_>>();
    let mut looker = Policy::default();
    looker.restrict(
        Some(&text(&["Read", "Grep", "Bash(git log *)", "mcp__docs"])),
        &text(&["Write", "Bash(rm *)"]),
        None,
    );
    let tools = Some("Read,Grep,Bash,AskUserQuestion".to_string());
    assert_eq!(flags(&looker), ("default".into(), tools, Some("Write".into())));
    for (mode, open, asking) in [
        (PermissionMode::Plan, "plan", "plan"),
        (PermissionMode::AcceptEdits, "acceptEdits", "default"),
        (PermissionMode::DontAsk, "default", "default"),
        (PermissionMode::Auto, "auto", "default"),
        (PermissionMode::Default, "default", "default"),
        (PermissionMode::BypassPermissions, "bypassPermissions", "default"),
    ] {
        let policy =
            |of: Mode| Policy { mode: of, permission_mode: Some(mode), ..Policy::default() };
        assert_eq!(flags(&policy(Mode::Allow)).0, open);
        assert_eq!(flags(&policy(Mode::Ask)).0, asking, "a policy stays the stricter one");
    }
    let mut toolless = Policy::default();
    toolless.restrict(Some(&[]), &[], None);
    assert_eq!(
        flags(&toolless),
        ("default".into(), Some(String::new()), None),
        "not even a question"
    );
    assert!(ClaudeCode.keeps(&toolless) && !Codex.keeps(&toolless) && !Subprocess.keeps(&toolless));
    // Claude Code itself rejects nothing under `dontAsk`: the policy makes and records each
    // rejection.
    let unasked = Policy {
        permission_mode: Some(PermissionMode::DontAsk),
        allow: looker.only.clone(),
        ..looker
    };
    let spec = LaunchSpec { path: Some(path.clone()), permissions: unasked.clone(), ..launch() };
    let settings = ClaudeCode.command_line(&spec).unwrap().files.swap_remove(0).contents;
    assert_eq!(settings, r#"{"permissions":{"ask":[],"deny":["Write","Bash(rm *)"]}}"#);
    let looker = unasked;
    let plan = Policy { permission_mode: Some(PermissionMode::Plan), ..Policy::default() };
    assert!(Codex.keeps(&plan) && Codex.loosened_by(&plan, &["--sandbox".into()]).is_some());
    assert!(!Codex.keeps(&looker) && !Subprocess.keeps(&plan) && ClaudeCode.keeps(&looker));
    let spec = LaunchSpec { path: Some(path.clone()), permissions: plan, ..launch() };
    let argv = Codex.command_line(&spec).unwrap().argv;
    assert!(argv.windows(2).any(|pair| pair == ["--sandbox", "read-only"]), "{argv:?}");
}

/// A person may take a day to answer, and the CLI must not give up before.
#[test]
fn tool_server_is_passed_with_its_environment_and_long_calls() {
    let (_folder, path) = installed();
    let tools = ToolServer {
        program: "/state/bin/muleteer".into(),
        env: vec![("MULETEER_SOCKET".into(), "/state/agents/a1/pub/so\"ck".into())],
        longest_call: Periods::default().longest,
    };
    let launch = LaunchSpec { path: Some(path), tools: Some(tools), ..launch() };
    let line = ClaudeCode.command_line(&launch).unwrap();
    let at = line.argv.iter().position(|word| word == "--mcp-config").unwrap();
    assert_eq!(line.argv[at + 1], "/state/agents/a1/claude/mcp.json");
    let file = line.files.iter().find(|file| file.path.ends_with("mcp.json")).unwrap();
    let servers: serde_json::Value = serde_json::from_str(&file.contents).unwrap();
    let server = &servers["mcpServers"]["muleteer"];
    assert_eq!(server["command"], "/state/bin/muleteer");
    assert_eq!(server["timeout"], 86_400_000);
    assert_eq!(server["env"]["MULETEER_SOCKET"], "/state/agents/a1/pub/so\"ck");

    let line = Codex.command_line(&launch).unwrap();
    let set: Vec<_> = line.argv.iter().filter(|word| word.starts_with("mcp_servers.")).collect();
    assert_eq!(
        set,
        [
            "mcp_servers.muleteer.command=\"/state/bin/muleteer\"",
            "mcp_servers.muleteer.args=[\"mcp\"]",
            "mcp_servers.muleteer.env={\"MULETEER_SOCKET\"=\"/state/agents/a1/pub/so\\\"ck\"}",
            "mcp_servers.muleteer.required=true",
            "mcp_servers.muleteer.startup_timeout_sec=60",
            "mcp_servers.muleteer.tool_timeout_sec=86400",
        ]
    );
    let without = LaunchSpec { tools: None, ..launch };
    for line in [ClaudeCode.command_line(&without), Codex.command_line(&without)] {
        assert!(!line.unwrap().argv.iter().any(|word| word.contains("mcp")));
    }
}
