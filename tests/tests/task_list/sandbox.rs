//! Runs of a list whose agents are in the sandbox, with `--sandbox on`.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::skip::skip;
use muleteer_tests::spec_stage::confined;
use muleteer_tests::task_list::Scene;

/// A script that tries to write outside of its directory, and does its task there.
const ESCAPE: &str = "echo out >> ../escaped; echo bad > .git/hooks/pre-commit; \
    muleteer tasks checkpoint \"$MULETEER_TASK_ID\" 1/2 half > noted 2>&1; echo done > made";

fn scene(test: &str) -> Option<Scene> {
    if !confined() {
        skip(test, "this system makes no sandbox");
        return None;
    }
    Some(Scene::new())
}

/// The validation runs code of the agent, so it has no way out either.
#[test]
fn agents_and_validations_of_a_list_write_only_to_their_directory() {
    let Some(scene) = scene("agents_and_validations_of_a_list_write_only_to_their_directory")
    else {
        return;
    };
    let escaped = scene.repo.path.with_file_name("escaped");
    // The home of a CLI and a cache, which the sandbox shows.
    let home = scene.world.home();
    for name in [".claude/settings.json", ".npm/x"] {
        let path = home.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "{}\n").unwrap();
    }
    let validate = "sh ./check.sh && test ! -e .git/hooks/pre-commit && grep -q done made";
    let script = format!("{ESCAPE}; echo 'echo out >> ../escaped; true' > check.sh");
    scene.add("Free", validate, &[]);
    // Without the sandbox the same script gets out.
    scene.run(&format!("{script}; rm .git/hooks/pre-commit"), &[]).expect_code(0);
    assert_eq!(std::fs::read_to_string(&escaped).unwrap(), "out\nout\n");
    std::fs::remove_file(&escaped).unwrap();
    let in_home = "echo > \"$HOME/.npm/mine\"";
    scene.add("Confined", &format!("{validate} && {in_home}"), &[]);
    scene.run(&script, &["--sandbox", "on"]).expect_code(0);
    assert!(!escaped.exists(), "{}", std::fs::read_to_string(&escaped).unwrap_or_default());
    assert!(!scene.repo.path.join(".git/hooks/pre-commit").exists());
    assert_eq!(scene.status("task-002"), "completed");
    let noted = scene.repo.read("noted");
    assert!(noted.contains("E_STORE_IO"), "the list's lock is Muleteer's: {noted}");
    assert!(!home.join(".npm/mine").exists(), "the HOME of the commands is another");
    let left = std::fs::read_dir(scene.world.state().join("task-lists")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().path()).collect();
    assert!(!left.iter().any(|path| path.is_dir()), "it goes with the run: {left:?}");
    scene.end();
}

#[test]
fn sandboxed_workers_in_clones_land_their_work() {
    let Some(scene) = scene("sandboxed_workers_in_clones_land_their_work") else { return };
    for n in 1..=2 {
        scene.add(&format!("Task {n}"), &format!("test -f made-{n}"), &[]);
    }
    let script = "n=${MULETEER_TASK_ID##*-00}; echo out > ../../../../escaped; \
        echo out > \"$HARNESS_STATE_ROOT/escaped\"; \
        muleteer tasks checkpoint \"$MULETEER_TASK_ID\" 1/2 half || echo x > made-$n; \
        git add made-$n; \
        git commit -qm \"$MULETEER_TASK_ID: made\"";
    scene.run(script, &["--sandbox", "on", "--concurrency", "2"]).expect_code(0);
    for n in 1..=2 {
        assert_eq!(scene.repo.read(&format!("made-{n}")), "x\n");
    }
    assert!(!scene.repo.path.join("escaped").exists());
    scene.end();
}
