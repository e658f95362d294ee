//! The daemon too runs and loosens nothing by a repository's configuration until its user trusts
//! it.

#![allow(clippy::unwrap_used)]

use muleteer_tests::acp::Agent;
use muleteer_tests::model_server::Step;
use muleteer_tests::{PATIENCE, Repo, Scene, World, program, wait_until};
use serde_json::{Value, json};

fn configured(world: &World, name: &str, yaml: &str) -> Repo {
    let repo = world.repo(name);
    std::fs::create_dir(repo.path.join(".muleteer")).unwrap();
    repo.write(".muleteer/config.yaml", yaml);
    repo
}

const COMMAND: &str = "backend: subprocess\nbackends: {subprocess: {command: 'touch ran'}}\n";

#[test]
fn untrusted_command_is_not_run_and_a_trusted_one_is() {
    let world = World::new();
    let repo = configured(&world, "repo", COMMAND);
    let daemon = world.daemon();
    let spawn = ["spawn", "developer", repo.to_str(), "x", "--wait", "--json"];
    let refused = world.muleteer(&spawn).run();
    assert!(refused.code != Some(0) && !repo.path.join("ran").exists(), "{refused:?}");
    world.trust(&repo);
    world.muleteer(&spawn).run().expect_code(0);
    assert!(repo.path.join("ran").exists());

    // The user trusted this content, in this repository.
    std::fs::remove_file(repo.path.join("ran")).unwrap();
    repo.write(".muleteer/config.yaml", &format!("{COMMAND}# another\n"));
    assert_ne!(world.muleteer(&spawn).run().code, Some(0));
    let other = configured(&world, "other", COMMAND);
    let spawn = ["spawn", "developer", other.to_str(), "x", "--wait", "--json"];
    assert_ne!(world.muleteer(&spawn).run().code, Some(0));
    assert!(!repo.path.join("ran").exists() && !other.path.join("ran").exists());
    world.finish(Some(daemon));
}

/// A command that starts a known agent makes it load what its preset would load.
#[test]
fn command_of_a_known_agent_waits_for_the_trust_of_its_settings() {
    let world = World::new();
    let repo = world.repo("repo");
    program::write(&world.bin().join("opencode"), "#!/bin/sh\ntouch ran\n");
    std::fs::create_dir_all(repo.path.join(".opencode/plugin")).unwrap();
    repo.write(".opencode/plugin/run.ts", "text");
    let daemon = world.daemon();
    let command = "exec opencode run";
    let backend = ["--backend", "subprocess", "--command", command, "--wait", "--json"];
    let spawn = [&["spawn", "developer", repo.to_str(), "x"][..], &backend].concat();
    let refused = world.muleteer(&spawn).run();
    assert!(refused.code != Some(0) && !repo.path.join("ran").exists(), "{refused:?}");
    assert!(refused.stdout.contains("opencode"), "{refused:?}");
    world.trust(&repo);
    world.muleteer(&spawn).run().expect_code(0);
    assert!(repo.path.join("ran").exists());
    world.finish(Some(daemon));
}

#[test]
fn spawn_warns_about_ignored_settings_and_uses_the_users_policy() {
    let world = World::new();
    world.configure("permissions: {mode: ask}\n");
    let yaml = "permissions: {mode: allow, deny: [WebFetch]}\n";
    let repo = configured(&world, "repo", yaml);
    std::fs::create_dir(repo.path.join(".muleteer/roles")).unwrap();
    repo.write(
        ".muleteer/roles/developer.md",
        "---\npermissions: {allow: ['Bash(*)']}\n---\nYou are.\n",
    );
    let daemon = world.daemon();
    let scenario = world.path().join("plain.yaml");
    std::fs::write(
        &scenario,
        "v: 1\nturns:\n  - steps:\n      - result: {status: success, summary: s}\n",
    )
    .unwrap();
    let scenario = scenario.to_str().unwrap();
    let spawn = [
        "spawn",
        "developer",
        repo.to_str(),
        "x",
        "--backend",
        "rehearsal",
        "--scenario",
        scenario,
        "--json",
    ];
    let policy = |document: &Value| {
        let id = document["dispatch_id"].as_str().unwrap();
        world.wait_for_end(id);
        world.events_of(id, "dispatch_created").pop().unwrap()["permissions"].clone()
    };
    let made = world.muleteer(&spawn).json();
    let warnings: Vec<_> =
        made["warnings"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    assert_eq!(warnings.len(), 2, "{made}");
    assert!(warnings[0].contains("config.yaml:1: `permissions.mode` is ignored"), "{made}");
    assert!(warnings[1].contains("developer.md:2: `permissions.allow` is ignored"), "{made}");
    assert!(warnings[1].contains("muleteer trust"), "{made}");
    // Muleteer's own tools need no permission, because the daemon checks each call.
    let tightened = json!({"mode": "ask", "allow": ["mcp__muleteer"], "deny": ["WebFetch"]});
    assert_eq!(policy(&made), tightened, "what tightens counts");
    world.trust(&repo);
    let made = world.muleteer(&spawn).json();
    assert_eq!(made["warnings"], Value::Null);
    let allow = json!(["Bash(*)", "mcp__muleteer"]);
    assert_eq!(policy(&made), json!({"mode": "allow", "allow": allow, "deny": ["WebFetch"]}));
    world.finish(Some(daemon));
}

#[test]
fn agents_clone_inherits_trust_until_the_agent_changes_it() {
    let world = World::new();
    let repo =
        configured(&world, "repo", "run: {agent: {max_concurrency: 2}}\nenv: {pass: [SOME_*]}\n");
    repo.git(&["add", "--force", ".muleteer"]);
    repo.git(&["commit", "--quiet", "--message=configuration"]);
    world.trust(&repo);
    let daemon = world.daemon();
    let out = |name: &str| world.path().join(name);
    let script = format!(
        "muleteer config show --json > {}\necho 'sandbox: off' >> .muleteer/config.yaml\n\
         muleteer config show --json > {}\nmuleteer trust --json > {}; true",
        out("trusted.json").display(),
        out("changed.json").display(),
        out("refused.json").display()
    );
    world.spawn(&repo, &script, &["--worktree", "--wait"]).ok();
    let read = |name: &str| -> Value {
        serde_json::from_str(&std::fs::read_to_string(out(name)).unwrap()).unwrap()
    };
    let keys = |name: &str| -> Vec<String> {
        read(name)["ignored"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["key"].as_str().unwrap().to_string())
            .collect()
    };
    assert_eq!(keys("trusted.json"), Vec::<String>::new());
    assert_eq!(keys("changed.json"), ["env.pass", "sandbox"]);
    assert_eq!(read("refused.json")["error"]["code"], "E_FORBIDDEN");
    world.finish(Some(daemon));
}

/// Adds settings with a hook and an MCP server, which Claude Code runs at its start.
fn hooked(scene: &Scene) {
    let repo = &scene.repo;
    std::fs::create_dir_all(repo.path.join(".claude")).unwrap();
    let hook = format!("touch '{}'", repo.path.join("hooked").display());
    let hooks = json!({"SessionStart": [{"hooks": [{"type": "command", "command": hook}]}]});
    repo.write(".claude/settings.json", &json!({ "hooks": hooks }).to_string());
    let server = format!("touch '{}'; sleep 1", repo.path.join("served").display());
    let servers = json!({"mcpServers": {"evil": {"command": "/bin/sh", "args": ["-c", server]}}});
    repo.write(".mcp.json", &servers.to_string());
    repo.write("CLAUDE.md", "The word of this repository is heliotrope.\n");
}

/// Runs an agent before and after the user trusts the repository, and after a change.
fn claude_settings_count_once_trusted(scene: &Scene) {
    hooked(scene);
    let ran = || scene.repo.path.join("hooked").exists();
    let run = |is_trusted: bool, why: &str| {
        for effect in ["hooked", "served"] {
            drop(std::fs::remove_file(scene.repo.path.join(effect)));
        }
        let run = scene.spawn(&["--wait", "--json"]).run();
        assert_eq!(run.code, Some(0), "{why}: {run:?}");
        let document: Value = serde_json::from_str(&run.stdout).unwrap();
        let notices =
            scene.world.events_of(document["dispatch_id"].as_str().unwrap(), "agent_notice");
        let noted = notices
            .iter()
            .filter(|event| event["text"].to_string().contains("have not trusted"))
            .count();
        assert_eq!((ran(), noted), (is_trusted, usize::from(!is_trusted)), "{why}: {notices:?}");
        assert!(is_trusted || !scene.repo.path.join("served").exists(), "{why}");
        assert_eq!(run.stderr.contains("muleteer trust"), !is_trusted, "{why}: {run:?}");
        assert!(scene.last_told().contains("heliotrope"), "{why}: it reads its instructions");
    };
    let daemon = scene.world.daemon();
    run(false, "nobody trusts it");
    scene.world.trust(&scene.repo);
    run(true, "it is trusted");
    let settings = std::fs::read_to_string(scene.repo.path.join(".claude/settings.json")).unwrap();
    scene.repo.write(".claude/settings.json", &format!("{settings}\n"));
    run(false, "it has changed");
    scene.world.expect_clean_end(Some(daemon));
}

#[test]
fn claude_starts_without_settings_that_are_not_trusted() {
    let steps = [Step::success("done").times(9)];
    let Some(scene) = Scene::claude("claude_starts_without_settings_that_are_not_trusted", steps)
    else {
        return;
    };
    claude_settings_count_once_trusted(&scene);
}

#[test]
fn claude_over_acp_starts_without_settings_that_are_not_trusted() {
    let test = "claude_over_acp_starts_without_settings_that_are_not_trusted";
    let Some(scene) = Scene::acp(test, Agent::Claude, [Step::success("done").times(9)]) else {
        return;
    };
    claude_settings_count_once_trusted(&scene);
}

/// Returns a script that calls `muleteer trust` as a hiding agent does. The answers go to `out-N`.
fn hidden_trust(world: &World, repo: &Repo) -> String {
    let out = |n: usize| world.path().join(format!("out-{n}")).display().to_string();
    let dir = repo.to_str();
    let unset = "env -u MULETEER_NONCE -u MULETEER_SOCKET -u MULETEER_DISPATCH_ID";
    format!(
        "{unset} muleteer trust '{dir}' --json > '{}' 2>&1\n\
         {unset} setsid -w muleteer trust '{dir}' --json > '{}' 2>&1\n\
         {unset} muleteer trust --revoke '{dir}' --json > '{}' 2>&1\n\
         ({unset} setsid sh -c \"muleteer trust '{dir}' --json > '{}' 2>&1; mv '{}' '{}'\" &)\n",
        out(1),
        out(2),
        out(3),
        out(4),
        out(4),
        out(5)
    )
}

fn hidden_trust_was_refused(world: &World, repo: &Repo) {
    let last = world.path().join("out-5");
    wait_until("the last try", PATIENCE, || last.exists().then_some(()));
    for n in [1, 2, 3, 5] {
        let answer = std::fs::read_to_string(world.path().join(format!("out-{n}"))).unwrap();
        assert!(answer.contains("E_FORBIDDEN"), "{n}: {answer}");
    }
    let listed = world.muleteer(&["trust", "--list", "--json"]).json();
    assert_eq!(listed["repositories"], json!([]), "{}", repo.to_str());
}

#[test]
fn disguised_agent_cannot_trust_a_repository() {
    let world = World::new();
    let repo = configured(&world, "repo", COMMAND);
    let daemon = world.daemon();
    let script =
        format!("{}while [ ! -e ../out-5 ]; do sleep 0.1; done\n", hidden_trust(&world, &repo));
    let other = world.repo("other");
    world.spawn(&other, &script, &["--wait"]).ok();
    hidden_trust_was_refused(&world, &repo);
    world.finish(Some(daemon));
}

#[test]
fn agent_cannot_trust_a_repository_without_a_daemon() {
    let world = World::new();
    let repo = configured(&world, "repo", COMMAND);
    let mut daemon = world.daemon();
    let script = format!(
        "touch ../begun\nwhile [ ! -e ../gone ]; do sleep 0.1; done\n{}while [ ! -e ../out-5 ]; do \
         sleep 0.1; done\n",
        hidden_trust(&world, &repo)
    );
    let other = world.repo("other");
    let id = world.spawn(&other, &script, &[]).ok();
    wait_until("the agent works", PATIENCE, || world.path().join("begun").exists().then_some(()));
    daemon.kill_9();
    std::fs::write(world.path().join("gone"), "").unwrap();
    hidden_trust_was_refused(&world, &repo);
    let daemon = world.daemon();
    world.wait_for_end(id.trim());
    world.finish(Some(daemon));
}

#[test]
fn process_with_an_unknown_mark_cannot_trust() {
    let world = World::new();
    let repo = configured(&world, "repo", COMMAND);
    let marked = |args: &[&str]| {
        let run = world.muleteer(args).env("MULETEER_NONCE", "of-a-validation").run();
        (run.code, run.stdout.contains("E_FORBIDDEN"))
    };
    let refused = || {
        for args in [
            &["trust", repo.to_str(), "--json"][..],
            &["trust", "--revoke", repo.to_str(), "--json"],
        ] {
            let (code, is_forbidden) = marked(args);
            assert!(code != Some(0) && is_forbidden, "{args:?}");
        }
        assert_eq!(marked(&["trust", "--dry-run", repo.to_str(), "--json"]).0, Some(0));
    };
    refused();
    let daemon = world.daemon();
    refused();
    // The user's own process may, with and without a daemon.
    world.trust(&repo);
    world.expect_clean_end(Some(daemon));
    world.trust(&repo);
}

#[test]
fn arguments_that_void_a_policy_are_refused() {
    let world = World::new();
    for name in ["claude", "codex"] {
        program::write(&world.bin().join(name), "#!/bin/sh\nexec sleep 60\n");
    }
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let spawn = |backend: &str, role: &str, policy: &str, args: &str| {
        let section = backend.replace('-', "_");
        world.configure(&format!(
            "permissions: {policy}\nbackends: {{{section}: {{args: {args}}}}}\n"
        ));
        let run = world
            .muleteer(&["spawn", role, repo.to_str(), "x", "--backend", backend, "--json"])
            .run();
        let document: Value = serde_json::from_str(&run.stdout).unwrap();
        if let Some(id) = document["dispatch_id"].as_str() {
            world.muleteer(&["kill", id]).ok();
            world.wait_for_end(id);
        }
        document["error"].clone()
    };
    for args in [
        "[--dangerously-skip-permissions]",
        "[--permission-mode, bypassPermissions]",
        "['--permission-mode=bypassPermissions']",
        "['--allowedTools', 'Bash(*)']",
        "[\"--allowed-tools='Bash'\"]",
        "[--settings, '{}']",
    ] {
        let error = spawn("claude-code", "developer", "{mode: ask}", args);
        assert_eq!(error["code"], "E_UNSUPPORTED", "{args}: {error}");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains("`--") && message.contains("backends.claude_code.args"),
            "{message}"
        );
        assert_eq!(spawn("claude-code", "developer", "{mode: allow}", args), Value::Null, "{args}");
    }
    assert_eq!(spawn("claude-code", "developer", "{mode: ask}", "[--debug]"), Value::Null);
    let plan = "---\npermissionMode: plan\n---\nYou plan.\n";
    let roles = world.path().join("config/muleteer/roles");
    std::fs::create_dir_all(&roles).unwrap();
    std::fs::write(roles.join("planner.md"), plan).unwrap();
    for args in [
        "[--full-auto]",
        "[--yolo]",
        "[-s, danger-full-access]",
        "[-c, 'approval_policy=\"never\"']",
    ] {
        let error = spawn("codex", "planner", "{mode: allow}", args);
        assert_eq!(error["code"], "E_UNSUPPORTED", "{args}: {error}");
        assert!(error["message"].as_str().unwrap().contains("backends.codex.args"), "{error}");
    }
    assert_eq!(spawn("codex", "planner", "{mode: allow}", "[--search]"), Value::Null);
    world.finish(Some(daemon));
}
