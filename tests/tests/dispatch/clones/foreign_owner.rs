//! A repository of another user that the person trusts, as in containers and CI.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::skip::skip;
use muleteer_tests::task_list::Scene;
use std::io::Write;

#[test]
fn trusted_repository_of_another_user_is_cloned() {
    let scene = Scene::new();
    let (world, repo) = (&scene.world, &scene.repo);
    scene.add("One", "test -f one", &[]);
    scene.add("Two", "true", &[]);
    let chown = std::process::Command::new("chown").args(["-R", "54321"]).arg(&repo.path).output();
    if !chown.unwrap().status.success() {
        return skip("trusted_repository_of_another_user_is_cloned", "not root");
    }
    let config = world.home().join(".gitconfig");
    let mut config = std::fs::OpenOptions::new().append(true).open(config).unwrap();
    // The person trusts the working directory, and not every directory.
    writeln!(config, "[safe]\n\tdirectory = {}", repo.to_str()).unwrap();
    world.spawn(repo, "cat > /dev/null", &["--worktree", "--wait"]).run().expect_code(0);
    scene.run("cat > /dev/null; echo > one", &["--concurrency", "2"]).expect_code(0);
    assert!(scene.is_done());
    scene.end();
}
