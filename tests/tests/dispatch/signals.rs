//! Blocked and ignored signals of the program that starts Muleteer.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use muleteer_tests::task_list::Scene;
use std::path::Path;

/// Returns the blocked and the ignored signals in a `status` file of `/proc`, without those that
/// the C library uses itself.
fn masks(file: &Path) -> (u64, u64) {
    let status = std::fs::read_to_string(file).unwrap();
    let mask = |name: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() & !(0b11 << 31)
    };
    (mask("SigBlk:"), mask("SigIgn:"))
}

/// The daemon of these calls is started on demand, so it inherits what its client inherits.
#[test]
fn inherited_signals_reach_no_agent_and_no_validation() {
    for options in [
        ["--block-signal=CHLD,TERM,INT,USR1", "--ignore-signal=PIPE"],
        ["--block-signal=HUP", "--ignore-signal=CHLD,HUP,INT,QUIT,TERM,RTMIN"],
    ] {
        let scene = Scene::new();
        let words: Vec<String> =
            ["env"].iter().chain(&options).map(|word| (*word).to_string()).collect();
        let home = scene.world.home();
        let look = |name: &str| format!("cat /proc/self/status > {}/{name}", home.display());
        let agent = format!("cat > /dev/null; {}", look("agent"));
        let spawn = ["spawn", "developer", scene.repo.to_str(), "do it", "--wait"];
        let command = ["--backend", "subprocess", "--command", &agent];
        scene.world.under(&words, &[&spawn[..], &command[..]].concat()).run().expect_code(0);
        scene.add("One", &look("validation"), &[]);
        let worker = format!("cat > /dev/null; {}", look("worker"));
        let run = ["tasks", "run", "--backend", "subprocess", "--command", &worker];
        let run = scene.world.under(&words, &run).current_dir(&scene.repo.path);
        run.run().expect_code(0);
        scene.tasks(&["add", "Two", "--validate", &look("by_hand")]).expect_code(0);
        let by_hand = ["tasks", "validate", "task-002"];
        let by_hand = scene.world.under(&words, &by_hand).current_dir(&scene.repo.path);
        by_hand.run().expect_code(0);
        for name in ["agent", "worker", "validation", "by_hand"] {
            assert_eq!(masks(&home.join(name)), (0, 0), "{name} below {options:?}");
        }
        scene.end();
    }
}
