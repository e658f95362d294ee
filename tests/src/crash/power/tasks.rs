//! Power cuts in a run of a task list: the list, its log, the commits and the daemon's own files.
//!
//! - The list can be read, and so can every line of its log but the last one that the disk had in
//!   part.
//! - A task that was completed on the disk stays completed, with its commit, and no agent works on
//!   it again.
//! - All tasks are completed in the end, each begun no more often than it has attempts.

use super::{Disk, Names, Recording, Step, under_strace};
use crate::events;
use crate::task_list::{RUN, Scene};
use serde_json::Value;

use std::collections::BTreeSet;

const TASKS: usize = 2;

/// A recorded run of a task list: the steps on its files.
#[derive(Debug)]
pub struct RecordedTasks {
    scene: Scene,
    recording: Recording,
}

impl RecordedTasks {
    /// Runs a task list under `strace`. If there are several workers, each has a clone.
    ///
    /// # Panics
    /// When the run does not end.
    pub fn new(workers: usize) -> Self {
        let scene = Scene::new();
        for number in 1..=TASKS {
            // The agent's files are not synced, so only the validation can tell whether they are
            // whole.
            scene.add(&format!("Task {number}"), &format!("test \"$(cat w{number})\" = x"), &[]);
        }
        let mut disk = Disk::default();
        disk.root(&scene.world.state(), Names::Synced);
        disk.root(&scene.repo.path, Names::Journal);
        let (traces, mut daemon) = under_strace(&scene.world, true);
        daemon.answers_or_ends(&scene.world);
        let ran = scene.run(&script(&scene), &["--concurrency", &workers.to_string()]);
        assert_eq!(ran.code, Some(0), "{ran:?}\n{}", daemon.log());
        scene.check_done_once();
        scene.world.expect_clean_end(Some(daemon));
        let recording = Recording::read(disk, &traces, &scene.home("effects"));
        let effects = recording.count(|step| matches!(step, Step::Effect(_)));
        assert_eq!(effects, TASKS, "the agents' effects are in the recording");
        Self { scene, recording }
    }

    /// Returns the number of steps after which the power can be cut.
    pub fn len(&self) -> usize {
        self.recording.steps.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Cuts the power as `seed` chooses, starts a daemon on the remaining state, and works through
    /// the list.
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub fn cut(&self, seed: u64) {
        let scene = &self.scene;
        let log = scene.world.state().join("events.jsonl");
        let list = scene.repo.path.join("harness-tasks.json");
        let mut cut = self.recording.cut(seed, &log);
        cut.lay_out();
        let done = completed(&std::fs::read(&list).expect("the list"));
        let daemon = cut.boot(&scene.world, &log, &scene.home("effects"));
        scene.list();
        let begun = std::time::Instant::now();
        loop {
            let ran = scene.run(&script(scene), &[]);
            if ran.code == Some(0) && scene.is_done() {
                break;
            }
            // The interrupted run may resume by itself.
            let busy = ran.stderr.contains("E_TASKS_LOCKED");
            assert!(busy && begun.elapsed() < RUN, "{ran:?}\n{}\n{}", scene.log(), daemon.log());
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let before: Vec<&str> = cut.effects.lines().collect();
        let after = scene.effects();
        for number in 1..=TASKS {
            let (id, name) = (format!("task-{number:03}"), number.to_string());
            let times = after.iter().filter(|line| **line == name).count();
            let task = scene.task(&id);
            assert!(
                times as u64 <= task["attempts"].as_u64().expect("a number"),
                "{times} times: {task}"
            );
            if done.contains(&id) {
                let before = before.iter().filter(|line| **line == name).count();
                assert_eq!(times, before, "it was completed: {task}\n{}", scene.log());
            }
            assert_eq!(
                scene.repo.git(&["show", &format!("HEAD:w{number}")]),
                "x",
                "{task}\n{}",
                scene.log()
            );
        }
        scene.repo.git(&["rev-list", "--objects", "--quiet", "HEAD"]);
        // git does not sync the files that it checks out, so the working directory may differ.
        scene.repo.git(&["status", "--porcelain"]);
        check_log(scene);
        let said = scene.log();
        assert!(!said.contains("somebody has"), "what the disk has kept is nobody's doing\n{said}");
        events::check(&log);
        scene.world.expect_clean_end(Some(daemon));
    }
}

/// Checks the log, except for one line that the disk had in part.
fn check_log(scene: &Scene) {
    let log = scene.log();
    let odd: Vec<_> =
        log.lines().filter_map(|line| Some((line, scene.fits(line).err()?))).collect();
    assert!(odd.len() <= 1, "{odd:?}\n{log}");
}

fn script(scene: &Scene) -> String {
    format!(
        "n=${{MULETEER_TASK_ID#task-00}}; echo $n >> {}; echo x > w$n",
        scene.home("effects").display()
    )
}

/// Returns the completed tasks of a list on disk; none if it cannot be read.
fn completed(list: &[u8]) -> BTreeSet<String> {
    let list: Value = serde_json::from_slice(list).unwrap_or_default();
    let tasks = list["tasks"].as_array().into_iter().flatten();
    tasks
        .filter(|task| task["status"] == "completed")
        .filter_map(|task| task["id"].as_str().map(String::from))
        .collect()
}
