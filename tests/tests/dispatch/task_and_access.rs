//! The permissions and the place of an agent, and the display of its task: in the answer of
//! `spawn`, in `status`, the journal, the events and the log.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::skip::skip;
use muleteer_tests::spec_stage::confined;
use muleteer_tests::task_list::Scene;
use muleteer_tests::{PATIENCE, World, wait_until};

#[test]
fn spawn_says_what_the_agent_may_do_and_where() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let said = world.spawn(&repo, "true", &["--wait"]).run().expect_code(0);
    let access = "the agent may do everything without asking, in";
    assert!(said.stderr.contains(access), "{}", said.stderr);
    assert!(said.stderr.contains("on the checked-out branch main"), "{}", said.stderr);
    assert!(said.stderr.contains("without a sandbox"), "{}", said.stderr);
    let made = world.spawn(&repo, "true", &["--worktree", "--json"]).json();
    let access = made["access"].as_str().unwrap();
    assert!(access.contains("muleteer/worktrees/") && access.contains("the branch muleteer/"));
    let id = made["dispatch_id"].as_str().unwrap();
    world.wait_for_end(id);
    assert_eq!(world.muleteer(&["status", id, "--json"]).json()["dispatches"][0]["access"], access);
    let refused = world.spawn(&repo, "true", &["--permissions", "ask", "--json"]).run();
    assert_eq!((refused.code, refused.error_code().as_str()), (Some(2), "E_UNSUPPORTED"));
    let wrong = world.spawn(&repo, "true", &["--permissions", "some"]).run();
    assert_eq!(wrong.code, Some(2));
    world.finish(Some(daemon));
}

#[test]
fn title_and_spec_of_a_task_are_shown_everywhere() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    repo.write("plan.md", "# Log people in\n\nWith a password, or a key.\n");
    let args = ["spawn", "developer", repo.to_str(), "--backend", "subprocess", "--command"];
    let plan = repo.path.join("plan.md");
    let more = ["echo done", "--prompt-file", plan.to_str().unwrap(), "--wait"];
    let said = world.muleteer(&[&args[..], &more[..]].concat()).run().expect_code(0);
    let id = said.stdout.trim();
    assert!(said.stderr.contains("work: in "), "{}", said.stderr);
    let one = world.muleteer(&["status", id, "--json"]).json()["dispatches"][0].clone();
    assert_eq!((&one["title"], &one["spec"]), (&"Log people in".into(), &"plan.md".into()));
    assert!(one["task"].as_str().unwrap().contains("With a password, or a key."), "{one}");
    let journal = std::fs::read_to_string(one["journal"].as_str().unwrap()).unwrap();
    assert!(journal.contains("\nSpec: plan.md\nTask: Log people in\n"), "{journal}");
    for verb in [&["status"][..], &["status", id], &["events"], &["logs", id]] {
        let shown = world.muleteer(verb).ok();
        assert!(shown.contains("Log people in"), "{verb:?}: {shown}");
    }
    let titled = world.spawn(&repo, "true", &["--title", "Mend\nit", "--wait"]).ok();
    assert_eq!(world.dispatch(&titled)["title"], "Mend it");
    world.finish(Some(daemon));
}

#[test]
fn work_of_a_clone_is_reported_with_commands_that_work() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let commit = "echo new > b.txt && git add b.txt && git commit --quiet -m 'Add b'";
    let said = world.spawn(&repo, commit, &["--worktree", "--wait"]).run().expect_code(0);
    let line = |key: &str| {
        let found = said.stderr.lines().find_map(|line| line.trim().strip_prefix(key));
        found.unwrap_or_else(|| panic!("{}", said.stderr)).to_string()
    };
    let shell = |text: &str| {
        let output = std::process::Command::new("sh")
            .args(["-c", text])
            .env("HOME", world.home())
            .output()
            .unwrap();
        assert!(output.status.success(), "{text}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(shell(&line("view: ")).contains("+new"));
    shell(&line("merge: "));
    assert_eq!(repo.read("b.txt"), "new\n");
    world.finish(Some(daemon));
}

#[test]
fn shared_checkout_and_files_that_a_clone_lacks_are_warned_of() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let script = "while [ ! -e \"$HOME/go\" ]; do sleep 0.05; done";
    let first = world.spawn(&repo, script, &["--json"]).json();
    assert!(first.get("warnings").is_none(), "{first}");
    let id = first["dispatch_id"].as_str().unwrap();
    let second = world.spawn(&repo, "true", &["--json"]).json();
    let warning = second["warnings"][0].as_str().unwrap();
    assert!(warning.contains("same checkout") && warning.contains(id), "{warning}");
    repo.write("notes.txt", "mine\n");
    let third = world.spawn(&repo, "true", &["--worktree", "--json"]).json();
    let warning = third["warnings"][0].as_str().unwrap();
    assert!(warning.contains("uncommitted changes") && warning.contains("notes.txt"), "{warning}");
    std::fs::write(world.home().join("go"), "").unwrap();
    for made in [&first, &second, &third] {
        world.wait_for_end(made["dispatch_id"].as_str().unwrap());
    }
    world.finish(Some(daemon));
}

#[test]
fn workers_in_clones_are_warned_of_uncommitted_changes() {
    let scene = Scene::new();
    scene.add("One", "true", &[]);
    scene.repo.write("notes.txt", "mine\n");
    let said = scene.run("true", &["--concurrency", "2"]).expect_code(0);
    assert!(said.stderr.contains("warning: uncommitted changes"), "{}", said.stderr);
    assert!(said.stderr.contains("notes.txt"), "{}", said.stderr);
    assert!(said.stderr.contains("view the work: git -C "), "{}", said.stderr);
    let dispatches = scene.world.status()["dispatches"].clone();
    assert_eq!(dispatches[0]["title"], "One", "{dispatches}");
    scene.end();
}

#[test]
fn agent_in_a_sandbox_writes_only_its_directory_and_dispatches_nobody() {
    let name = "agent_in_a_sandbox_writes_only_its_directory_and_dispatches_nobody";
    if !confined() {
        return skip(name, "no namespaces");
    }
    let world = World::new();
    let (repo, other) = (world.repo("repo"), world.repo("other"));
    let daemon = world.daemon();
    let script = format!(
        "echo x > inside.txt; echo y > {}/outside.txt; echo z > .git/hooks/post-commit; \
         muleteer spawn developer . x --backend subprocess --command true --json > child.json; \
         exit 0",
        other.to_str()
    );
    let said = world.spawn(&repo, &script, &["--sandbox", "on", "--wait"]).run().expect_code(0);
    assert!(said.stderr.contains("in a sandbox with write access only there"), "{}", said.stderr);
    assert_eq!(repo.read("inside.txt"), "x\n");
    assert!(!other.path.join("outside.txt").exists());
    assert!(!repo.path.join(".git/hooks/post-commit").exists());
    let child: serde_json::Value = serde_json::from_str(&repo.read("child.json")).unwrap();
    assert_eq!(child["error"]["code"], "E_FORBIDDEN", "{child}");
    let commit = "echo new > b.txt && git add b.txt && git commit --quiet -m 'Add b'";
    let more = ["--sandbox", "on", "--worktree", "--wait"];
    let id = world.spawn(&repo, commit, &more).ok();
    assert_eq!(world.dispatch(&id)["work"]["commits"], 1);
    wait_until("the journal to end", PATIENCE, || {
        let journal = world.muleteer(&["journal", &id]).ok();
        journal.contains("finished: success").then_some(())
    });
    world.finish(Some(daemon));
}
