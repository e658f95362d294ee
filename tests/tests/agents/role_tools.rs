//! The tools that a role lists: the real `claude` against the scripted model.

#![allow(clippy::unwrap_used)]

use crate::permissions::{Asks, claude};
use muleteer_tests::World;
use muleteer_tests::model_server::Step;

const LOOKER: &str =
    "---\nname: looker\ntools: Read, Grep\ndisallowedTools: Bash\n---\nYou only read.\n";

/// A backend that cannot keep the role's restrictions of tools does not run the role.
#[test]
fn role_tools_are_rejected_by_a_backend_that_cannot_enforce_them() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    std::fs::create_dir_all(repo.path.join(".claude/agents")).unwrap();
    let role = |name: &str, front: &str| {
        repo.write(
            &format!(".claude/agents/{name}.md"),
            &format!("---\nname: {name}\n{front}\n---\nYou look.\n"),
        );
    };
    role("reader", "tools: Read, Grep");
    role("toolless", "tools: []");
    role("writer", "disallowedTools: Bash");
    role("planner", "permissionMode: plan");
    role("bold", "permissionMode: bypassPermissions");
    for (name, key) in [
        ("reader", "`tools`"),
        ("toolless", "`tools`"),
        ("writer", "`disallowedTools`"),
        ("planner", "`permissionMode`"),
    ] {
        let args = [
            "spawn",
            name,
            repo.to_str(),
            "look",
            "--backend",
            "subprocess",
            "--command",
            "true",
            "--json",
        ];
        let refused = world.muleteer(&args).run();
        assert_eq!(
            (refused.code, refused.error_code().as_str()),
            (Some(2), "E_UNSUPPORTED"),
            "{refused:?}"
        );
        assert!(refused.stdout.contains(key) || refused.stderr.contains(key), "{refused:?}");
    }
    let args = [
        "spawn",
        "bold",
        repo.to_str(),
        "look",
        "--backend",
        "subprocess",
        "--command",
        "true",
        "--wait",
    ];
    assert_eq!(world.muleteer(&args).run().code, Some(0));
    world.finish(Some(daemon));
}

#[test]
fn claude_has_no_tool_that_its_role_does_not_name() {
    let test = "claude_has_no_tool_that_its_role_does_not_name";
    let steps =
        [Step::bash("touch one"), Step::bash("touch two"), Step::success("as far as it may")];
    let Some(scene) = claude(test, "", steps) else { return };
    std::fs::create_dir_all(scene.repo.path.join(".muleteer/roles")).unwrap();
    scene.repo.write(".muleteer/roles/developer.md", &LOOKER.replace("looker", "developer"));
    let daemon = scene.world.daemon();
    let run = scene.spawn(&["--wait"]).run();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!([scene.has("one"), scene.has("two")], [false, false]);
    let first = scene.server.main_requests().remove(0).body;
    let tools: Vec<&str> = first["tools"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|tool| tool["name"].as_str())
        .collect();
    assert!(tools.contains(&"Read") && tools.contains(&"AskUserQuestion"), "{tools:?}");
    assert!(
        !tools.contains(&"Bash") && !tools.contains(&"Write") && !tools.contains(&"Edit"),
        "{tools:?}"
    );
    scene.world.finish(Some(daemon));
}

#[test]
fn claude_has_no_tools_if_its_role_lists_none() {
    let test = "claude_has_no_tools_if_its_role_lists_none";
    let Some(scene) =
        claude(test, "", [Step::bash("touch one"), Step::success("as far as it may")])
    else {
        return;
    };
    std::fs::create_dir_all(scene.repo.path.join(".muleteer/roles")).unwrap();
    scene.repo.write(".muleteer/roles/developer.md", "---\ntools: []\n---\nYou think.\n");
    let daemon = scene.world.daemon();
    let run = scene.spawn(&["--wait"]).run();
    assert_eq!((run.code, scene.has("one")), (Some(0), false), "{run:?}");
    let first = scene.server.main_requests().remove(0).body;
    let names =
        first["tools"].as_array().into_iter().flatten().filter_map(|tool| tool["name"].as_str());
    // The agent does not choose the tool of its result, and a call of the placeholder has no
    // effect.
    let of_the_cli = ["StructuredOutput", "DeferredToolPlaceholder"];
    assert_eq!(
        names.filter(|name| !of_the_cli.contains(name)).collect::<Vec<_>>(),
        Vec::<&str>::new()
    );
    scene.world.finish(Some(daemon));
}
