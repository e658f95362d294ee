//! The log of a run that has ended is compressed, and the run goes on from it.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use crate::verbs::content;
use muleteer_process::fault::SEGMENT_POINTS;
use muleteer_tests::spec_stage::{SpecStage as Stage, last};
use muleteer_tests::{PATIENCE, wait_until};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn folder(stage: &Stage, run: &str) -> PathBuf {
    stage.repo.path.join(".muleteer/runs").join(run)
}

/// Returns the names of the closed files of a run's log.
fn closed(stage: &Stage, run: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder(stage, run).join("events")) else { return vec![] };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn answers(stage: &Stage, run: &str) -> Vec<Value> {
    let status = stage.muleteer(&["run", "--status", run, "--json"]).json();
    let runs = stage.muleteer(&["runs", "--json"]).json();
    vec![status, runs, stage.names(run).into()]
}

/// Copies a folder with the times of its files.
fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

#[test]
fn log_of_an_ended_run_is_compressed_and_the_run_goes_on() {
    let stage = Stage::new(&content());
    let mut daemon = stage.world.daemon();
    let done = last(&stage.begin(&["--json"]).run().expect_code(0).stdout);
    let run = done["run_id"].as_str().unwrap();
    assert_eq!(done["status"], "completed", "{done}");
    let clean = |more: &[&str]| {
        stage.muleteer(&[&["clean", "--json"], more].concat()).json()["compressed"].clone()
    };
    wait_until("the end of the run's actor", PATIENCE, || (clean(&[])["runs"] == 1).then_some(()));
    let before = answers(&stage, run);
    daemon.kill_9();
    let (log, saved) = (folder(&stage, run), stage.world.path().join("saved"));
    copy(&log, &saved);
    // Killed at each step, the next pass finishes it.
    for point in SEGMENT_POINTS {
        std::fs::remove_dir_all(&log).unwrap();
        copy(&saved, &log);
        let mut daemon = stage.world.daemon_with(&[("MULETEER_FAULT", point)]);
        // The client waits for another daemon, and would repeat its request.
        let client = stage.muleteer(&["clean", "--apply", "--json"]).start();
        daemon.ended();
        drop(client);
        assert_eq!(answers(&stage, run), before, "{point}");
        let mut daemon = stage.world.daemon();
        clean(&["--apply"]);
        let names = closed(&stage, run);
        assert!(names.len() == 1 && names[0].ends_with(".jsonl.zst"), "{point}: {names:?}");
        assert_eq!(std::fs::metadata(log.join("events.jsonl")).unwrap().len(), 0, "{point}");
        assert_eq!(answers(&stage, run), before, "{point}");
        daemon.kill_9();
    }
    let daemon = stage.world.daemon();
    // A completed run can still be judged again.
    let resume = ["run", "--resume", run, "--from-phase", "judge", "--json"];
    let again = last(&stage.muleteer(&resume).run().expect_code(0).stdout);
    assert_eq!(again["status"], "completed", "{again}");
    assert!(stage.names(run).len() > before[2].as_array().unwrap().len());
    stage.world.finish(Some(daemon));
}
