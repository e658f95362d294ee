//! A repository's configuration runs and loosens nothing for the daemon, too, until its user trusts it.

#![allow(clippy::unwrap_used)]

use muleteer_tests::{Repo, World};
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

    // What was trusted was this content, of this repository.
    std::fs::remove_file(repo.path.join("ran")).unwrap();
    repo.write(".muleteer/config.yaml", &format!("{COMMAND}# another\n"));
    assert_ne!(world.muleteer(&spawn).run().code, Some(0));
    let other = configured(&world, "other", COMMAND);
    let spawn = ["spawn", "developer", other.to_str(), "x", "--wait", "--json"];
    assert_ne!(world.muleteer(&spawn).run().code, Some(0));
    assert!(!repo.path.join("ran").exists() && !other.path.join("ran").exists());
    world.finish(Some(daemon));
}

#[test]
fn spawn_warns_of_what_is_ignored_and_keeps_the_users_policy() {
    let world = World::new();
    world.configure("permissions: {mode: ask}\n");
    let yaml = "permissions: {mode: allow, deny: [WebFetch]}\n";
    let repo = configured(&world, "repo", yaml);
    std::fs::create_dir(repo.path.join(".muleteer/roles")).unwrap();
    repo.write(".muleteer/roles/developer.md", "---\npermissions: {allow: ['Bash(*)']}\n---\nYou are.\n");
    let daemon = world.daemon();
    let scenario = world.path().join("plain.yaml");
    std::fs::write(&scenario, "v: 1\nturns:\n  - steps:\n      - result: {status: success, summary: s}\n").unwrap();
    let scenario = scenario.to_str().unwrap();
    let spawn = ["spawn", "developer", repo.to_str(), "x", "--backend", "rehearsal", "--scenario", scenario, "--json"];
    let policy = |document: &Value| {
        let id = document["dispatch_id"].as_str().unwrap();
        world.wait_for_end(id);
        world.events_of(id, "dispatch_created").pop().unwrap()["permissions"].clone()
    };
    let made = world.muleteer(&spawn).json();
    let warnings: Vec<_> = made["warnings"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    assert_eq!(warnings.len(), 2, "{made}");
    assert!(warnings[0].contains("config.yaml:1: `permissions.mode` is ignored"), "{made}");
    assert!(warnings[1].contains("developer.md:2: `permissions.allow` is ignored"), "{made}");
    assert!(warnings[1].contains("muleteer trust"), "{made}");
    assert_eq!(policy(&made), json!({"mode": "ask", "deny": ["WebFetch"]}), "what tightens counts");
    world.trust(&repo);
    let made = world.muleteer(&spawn).json();
    assert_eq!(made["warnings"], Value::Null);
    assert_eq!(policy(&made), json!({"mode": "allow", "allow": ["Bash(*)"], "deny": ["WebFetch"]}));
    world.finish(Some(daemon));
}

#[test]
fn agents_clone_inherits_trust_until_the_agent_changes_it() {
    let world = World::new();
    let repo = configured(&world, "repo", "run: {agent: {max_concurrency: 2}}\nenv: {pass: [SOME_*]}\n");
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
    let read = |name: &str| -> Value { serde_json::from_str(&std::fs::read_to_string(out(name)).unwrap()).unwrap() };
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
