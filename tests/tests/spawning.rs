//! Where a dispatch's program is looked for, who is refused for want of it, and how who follows it exits.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::{Repo, World, program};

/// A program of the project's own, which is in its history.
fn own_program(repo: &Repo, name: &str) {
    program::write(&repo.path.join(name), "#!/bin/sh\ncat > /dev/null\npwd >> \"$HOME/ran\"\n");
    repo.git(&["add", name]);
    repo.git(&["commit", "--quiet", "--message", name]);
}

#[test]
fn a_relative_program_is_looked_for_where_the_agent_works() {
    let world = World::new();
    let repo = world.repo("repo");
    own_program(&repo, "prog");
    let daemon = world.daemon();
    let spawn = |backend: &str, command: &str, more: &[&str]| {
        let args = ["spawn", "developer", repo.to_str(), "x", "--backend", backend, "--command", command, "--wait"];
        // From elsewhere: it is the agent's directory that counts.
        world.muleteer(&[&args, more].concat()).current_dir(world.path()).run()
    };
    let ran = || std::fs::read_to_string(world.home().join("ran")).unwrap_or_default();
    spawn("subprocess", "[\"./prog\"]", &[]).expect_code(0);
    assert_eq!(ran(), format!("{}\n", repo.to_str()));
    let id = spawn("subprocess", "[\"./prog\", \"x\"]", &["--worktree"]).expect_code(0).stdout;
    assert!(ran().lines().last().unwrap().ends_with(id.trim()), "{}", ran());
    let codex = spawn("codex", "./prog", &[]);
    let here = ran().lines().skip(2).any(|line| line == repo.to_str());
    assert!(here, "whatever became of one that says nothing: {codex:?}");
    world.finish(Some(daemon));
}
