//! The limits of an agent that another agent dispatched: it never has more than its parent,
//! whatever configuration it is given.

#![allow(clippy::unwrap_used)]

use muleteer_tests::{PATIENCE, Repo, World, program, wait_until};
use serde_json::{Value, json};

fn created(world: &World, id: &str) -> Value {
    world.events_of(id, "dispatch_created").pop().unwrap()
}

/// Writes a rehearsal whose only step is `step`.
fn scenario(world: &World, name: &str, step: &str) -> String {
    let file = world.path().join(name);
    let text = format!(
        "v: 1\nturns:\n  - steps:\n      - {step}\n      - result: {{status: success, summary: \
         s}}\n"
    );
    std::fs::write(&file, text).unwrap();
    file.display().to_string()
}

/// Runs a rehearsed agent that runs `script`, which must succeed.
fn parent(world: &World, repo: &Repo, script: &str) -> String {
    let file = world.path().join("parent.sh");
    std::fs::write(&file, script).unwrap();
    let run = scenario(world, "parent.yaml", &format!("run: sh -e {} > said 2>&1", file.display()));
    let spawn = [
        "spawn",
        "developer",
        repo.to_str(),
        "the parent",
        "--backend",
        "rehearsal",
        "--scenario",
        &run,
    ];
    let id = world.muleteer(&spawn).ok();
    let entry = world.wait_for_end(&id);
    let said = std::fs::read_to_string(repo.path.join("said")).unwrap_or_default();
    assert_eq!(entry["state"], "success", "{entry}: {said}");
    id
}

#[test]
fn configuration_cannot_remove_the_parents_policy_from_a_child() {
    let world = World::new();
    world.configure("permissions: {deny: [\"*\"]}\n");
    program::write(&world.bin().join("codex"), "#!/bin/sh\nexec sleep 60\n");
    let (repo, other) = (world.repo("repo"), world.repo("other"));
    std::fs::create_dir(other.path.join(".muleteer")).unwrap();
    let open = "permissions: {mode: allow, deny: []}\nbackends: {claude_code: {args: \
        [--permission-mode, bypassPermissions]}}\n";
    other.write(".muleteer/config.yaml", open);
    world.trust(&other);
    let file = world.path().join("open.yaml");
    std::fs::write(&file, open).unwrap();
    let daemon = world.daemon();
    let child = scenario(&world, "child.yaml", "ask: {permission: \"rm -rf build\", for: 5s}");
    let spawn = format!(
        "muleteer spawn developer DIR 'the child' --backend rehearsal --scenario '{child}' --wait"
    );
    let there = spawn.replace("DIR", &format!("'{}'", other.to_str()));
    let here = spawn.replace("DIR", ".");
    let by_file = format!("--config '{}'", file.display());
    let none = "MULETEER_CONFIG__PERMISSIONS__MODE=allow MULETEER_CONFIG__PERMISSIONS__DENY='[]'";
    program::write(&world.bin().join("claude"), "#!/bin/sh\nexec sleep 60\n");
    let claude = format!("muleteer spawn developer . x --backend claude-code {by_file}");
    let command = format!("{claude} --command 'touch ran' --json");
    let command_of_any = format!("muleteer spawn developer . x --backend codex {by_file} --json");
    let script = format!(
        "{here} > child-1\n{here} {by_file} > child-2\n{there} > child-3\n{none} {here} > child-4\n\
         {claude} > claude\n! {command} > refused-1\n! {command_of_any} > refused-2\n"
    );
    parent(&world, &repo, &script);
    for child in ["child-1", "child-2", "child-3", "child-4"] {
        let id = std::fs::read_to_string(repo.path.join(child)).unwrap();
        let id = id.trim();
        let answered = world.events_of(id, "permission_answered");
        let said: Vec<_> =
            answered.iter().map(|event| (&event["answer"], &event["by"], &event["rule"])).collect();
        let denied = (&json!("deny"), &json!("policy"), &json!("*"));
        assert_eq!(said, [denied], "{child}");
        let within = &created(&world, id)["permissions"]["within"][0];
        assert_eq!(within["deny"], json!(["*"]), "and it is on record: {child}");
    }
    for refused in ["refused-1", "refused-2"] {
        let said = std::fs::read_to_string(repo.path.join(refused)).unwrap();
        assert!(
            said.contains("E_UNSUPPORTED") && said.contains("its child needs a backend"),
            "{refused}: {said}"
        );
    }
    assert!(!repo.path.join("ran").exists(), "who cannot ask is not held by a policy");
    let claude = std::fs::read_to_string(repo.path.join("claude")).unwrap();
    let saved = world.state().join("agents").join(claude.trim()).join("request.json");
    let saved: Value = serde_json::from_str(&std::fs::read_to_string(saved).unwrap()).unwrap();
    assert_eq!(saved["args"], json!([]), "a flag would take it away as well");
    world.muleteer(&["kill", claude.trim()]).ok();
    // A person's own dispatch is not affected.
    let spawn = ["--config", file.to_str().unwrap(), "spawn", "developer", repo.to_str(), "x"];
    let id = world
        .muleteer(&[&spawn[..], &["--backend", "subprocess", "--command", "true"]].concat())
        .ok();
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    world.finish(Some(daemon));
}

/// A variable that makes the child's CLI load code would run code that the policy does not allow.
#[test]
fn an_agent_under_a_policy_does_not_choose_its_childs_code() {
    let world = World::new();
    world.configure("permissions: {deny: [\"*\"]}\n");
    let fake = |folder: &std::path::Path, said: &str| {
        std::fs::create_dir_all(folder).unwrap();
        let said = world.path().join(said);
        // The rename makes the file appear whole.
        let file = format!("'{}'.$MULETEER_DISPATCH_ID", said.display());
        let script = format!("#!/bin/sh\nenv > {file}.new\nmv {file}.new {file}\nexec sleep 60\n");
        program::write(&folder.join("claude"), &script);
    };
    fake(&world.bin(), "own");
    let evil = world.path().join("evil");
    fake(&evil, "evil");
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let evil = evil.display();
    let spawn = "muleteer spawn developer . x --backend claude-code";
    let names = [
        "PATH",
        "HOME",
        "LD_PRELOAD",
        "BASH_ENV",
        "NODE_OPTIONS",
        "GIT_SSH_COMMAND",
        "CLAUDE_CONFIG_DIR",
    ];
    let refused: String = names
        .iter()
        .map(|name| format!("! {spawn} --env {name}={evil} --json > refused-{name}\n"))
        .collect();
    // The client passes these on as its own environment, which the daemon must not believe.
    let set = format!(
        "PATH='{evil}':\"$PATH\" HOME='{evil}' GIT_SSH='{evil}/x' \
         CLAUDE_CODE_SHELL_PREFIX='{evil}/x'"
    );
    let script = format!(
        "{refused}{spawn} --env FINE=yes > fine\nm=$(command -v muleteer)\n{set} \"$m\" {} > \
         child\n",
        &spawn[9..]
    );
    parent(&world, &repo, &script);
    for name in names {
        let said = std::fs::read_to_string(repo.path.join(format!("refused-{name}"))).unwrap();
        assert!(said.contains("E_FORBIDDEN") && said.contains(name), "{said}");
    }
    let child =
        |name: &str| std::fs::read_to_string(repo.path.join(name)).unwrap().trim().to_string();
    for name in ["fine", "child"] {
        let id = child(name);
        wait_until("the child to begin", PATIENCE, || world.events_of(&id, "agent_spawned").pop());
        let file = world.path().join(format!("own.{id}"));
        let env = wait_until("its environment", PATIENCE, || std::fs::read_to_string(&file).ok());
        assert!(!env.contains(&evil.to_string()), "{name}: {env}");
        assert!(env.contains(&format!("HOME={}", world.home().display())), "{name}: {env}");
        world.muleteer(&["kill", &id]).ok();
    }
    world.finish(Some(daemon));
}

/// An agent that must ask a person for an action must not be able to answer such a question itself.
#[test]
fn parent_cannot_allow_what_needs_its_own_permission() {
    let world = World::new();
    world.configure("permissions: {ask: [\"*\"]}\n");
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let child = scenario(&world, "child.yaml", "ask: {permission: \"rm -rf build\"}");
    let script = format!(
        "id=$(muleteer spawn developer . 'the child' --backend rehearsal --scenario \
         '{child}')\necho $id > child\n\
         while [ \"$(muleteer status $id --json | grep -c '\"waiting\"')\" = 0 ]; do sleep 0.1; \
         done\n\
         ! muleteer answer $id allow --json > answered\n"
    );
    parent(&world, &repo, &script);
    let answered = std::fs::read_to_string(repo.path.join("answered")).unwrap();
    assert!(answered.contains("E_FORBIDDEN"), "{answered}");
    let child = std::fs::read_to_string(repo.path.join("child")).unwrap();
    let child = child.trim();
    assert_eq!(world.dispatch(child)["state"], "waiting");
    world.muleteer(&["answer", child, "allow"]).ok();
    assert_eq!(world.wait_for_end(child)["state"], "success");
    world.finish(Some(daemon));
}

#[test]
fn childs_budget_is_the_rest_of_its_parents() {
    let world = World::new();
    let repo = world.repo("repo");
    let rich = world.path().join("rich.yaml");
    std::fs::write(&rich, "categories: {coding: {budget_usd: 99}}\n").unwrap();
    let none = world.path().join("none.yaml");
    std::fs::write(&none, "categories: {coding: {budget_usd: null}}\n").unwrap();
    let daemon = world.daemon();
    let spend = |usd: f64| {
        format!("echo '{{\"type\":\"usage\",\"input\":1,\"output\":1,\"cost_usd\":{usd}}}'")
    };
    let spawn = format!(
        "muleteer spawn developer . x --backend subprocess --command \"{}\"",
        "sh spends.sh"
    );
    repo.write("spends.sh", &format!("cat > /dev/null\n{}\n", spend(0.25)));
    let (rich, none) = (rich.display(), none.display());
    let script = format!(
        "{}; while [ ! -e go ]; do sleep 0.05; done; {spawn} --config {rich} --wait > child-1; \
         {spawn} --budget-usd 99 --wait > child-2; {spawn} --config {none} --wait > child-3; \
         {spawn} --budget-usd 0.01 --wait > child-4; true",
        spend(0.5)
    );
    let parent = world.spawn(&repo, &script, &["--budget-usd", "1"]).ok();
    wait_until("what it spent to be known", PATIENCE, || {
        world.events_of(&parent, "usage_recorded").pop()
    });
    repo.write("go", "");
    assert_eq!(world.wait_for_end(&parent)["state"], "success");
    let child = |n: usize| {
        std::fs::read_to_string(repo.path.join(format!("child-{n}"))).unwrap().trim().to_string()
    };
    for (n, budget) in [(1, 0.5), (2, 0.25), (3, 0.0), (4, 0.0)] {
        assert_eq!(created(&world, &child(n))["limits"]["budget_usd"], budget, "child {n}");
    }
    for n in [3, 4] {
        let entry = world.dispatch(&child(n));
        assert!(entry["reason"].as_str().unwrap().contains("budget"), "{entry}");
        assert_eq!(
            world.events_of(&child(n), "agent_spawned"),
            Vec::<Value>::new(),
            "nothing is left to begin with"
        );
    }
    world.finish(Some(daemon));
}
