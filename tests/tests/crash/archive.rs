//! Archived dispatches: every command finds them, also without a daemon and without the database,
//! and a daemon that is killed while it archives or restores loses nothing.

#![allow(clippy::unwrap_used)]

use muleteer_model::event::id::{DispatchId, ID_BYTES};
use muleteer_model::event::{Entry, Record};
use muleteer_process::fault::ARCHIVE_POINTS;
use muleteer_store::events::{EventLog, fold_fleet, read, snapshot};
use muleteer_tests::{Daemon, PATIENCE, Repo, World, wait_until};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

/// The number of copies that are made of a finished dispatch.
const COPIES: u8 = 40;

/// A world with a finished dispatch that can go on, and many newer copies of it in the log. No
/// daemon runs.
struct Scene {
    world: World,
    _repo: Repo,
    id: String,
}

impl Scene {
    fn new() -> Self {
        let world = World::new();
        let repo = world.repo("repo");
        world.configure("retention: {in_memory: 20}\n");
        let scenario = world.path().join("scenario.yaml");
        let turn =
            "  - steps:\n      - say: hello\n      - result: {status: success, summary: done}\n";
        fs::write(&scenario, format!("v: 1\nturns:\n{}", turn.repeat(3))).unwrap();
        let mut daemon = world.daemon();
        let mut args = vec!["spawn", "developer", repo.to_str(), "do it", "--wait", "--json"];
        let path = scenario.display().to_string();
        args.extend(["--backend", "rehearsal", "--scenario", &path]);
        let spawned = world.muleteer(&args).json();
        let id = spawned["dispatch_id"].as_str().unwrap().to_string();
        daemon.kill_9();
        let scene = Self { world, _repo: repo, id };
        scene.copy();
        scene
    }

    fn log(&self) -> PathBuf {
        self.world.state().join("events.jsonl")
    }

    fn copy(&self) {
        let mut records: Vec<Record> = vec![];
        read(&self.log(), |record| records.push(record)).unwrap();
        records.retain(|record| {
            record.entry.dispatch_id.as_ref().is_some_and(|of| of.as_str() == self.id)
        });
        let (mut log, _) = EventLog::open(&self.log(), 0, |_| {}).unwrap();
        for number in 1..=COPIES {
            let id = DispatchId::from_random([number; ID_BYTES]);
            let copy = |(at, record): (usize, &Record)| Entry {
                id: format!("{id}-{at}"),
                dispatch_id: Some(id.clone()),
                more: false,
                ..record.entry.clone()
            };
            let entries: Vec<_> = records.iter().enumerate().map(copy).collect();
            log.append(&entries, jiff::Timestamp::now()).unwrap();
        }
    }

    fn is_archived(&self) -> bool {
        self.world.events().iter().any(|event| {
            event["event"] == "dispatches_archived" && event.to_string().contains(&self.id)
        })
    }

    fn wait_until_archived(&self) {
        wait_until("the archival", PATIENCE, || self.is_archived().then_some(()));
    }

    /// Waits until the daemon has its archived dispatches.
    fn wait_until_found(&self) -> Value {
        wait_until("the dispatch", PATIENCE, || {
            let output = self.world.muleteer(&["status", &self.id, "--json"]).run();
            (output.code == Some(0)).then(|| output.json())
        })
    }

    /// Returns the answers of the commands that find dispatches, without what tells of the daemon.
    fn answers(&self) -> Vec<String> {
        let json = |args: &[&str]| {
            let mut answer = self.world.muleteer(args).json();
            answer.as_object_mut().unwrap().remove("daemon");
            answer.as_object_mut().unwrap().remove("running");
            answer.to_string()
        };
        let id = self.id.as_str();
        let mut answers = vec![
            json(&["status", id, "--json"]),
            json(&["status", "--json"]),
            json(&["status", "--state", "success", "--limit", "40", "--json"]),
            json(&["journal", "--all", "--json"]),
            json(&["journal", "--json"]),
            json(&["logs", id, "--json"]),
            json(&["journal", id, "--json"]),
            json(&["why", id, "--json"]),
            json(&["cost", "--json"]),
            json(&["cost", "--by", "agent", "--json"]),
            json(&["wait", id, "--json"]),
        ];
        let text = |args: &[&str]| self.world.muleteer(args).ok();
        answers.extend([
            text(&["logs", id]),
            text(&["events", "--role", "developer", "--json"])
                .lines()
                .filter(|line| line.contains("dispatch_id"))
                .collect(),
        ]);
        let (all, unique) = (&id[..1], &id[..6]);
        let status = |prefix: &str| {
            let output = self.world.muleteer(&["status", prefix, "--json"]).run();
            output.code.filter(|code| *code != 0).map(|_| output.error_code()).unwrap_or_default()
        };
        answers.extend([all, unique, "zzzzzzzz"].map(status));
        answers
    }
}

fn ids(status: &Value) -> Vec<&str> {
    status["dispatches"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["id"].as_str().unwrap())
        .collect()
}

fn assert_same(before: &[String], after: &[String], when: &str) {
    for (number, (before, after)) in before.iter().zip(after).enumerate() {
        assert_eq!(after, before, "answer {number} {when}");
    }
}

#[test]
fn archived_dispatches_are_found_by_every_command() {
    let scene = Scene::new();
    let world = &scene.world;
    // Without a daemon, before anything is archived.
    let before = scene.answers();
    let mut daemon = world.daemon();
    scene.wait_until_archived();
    assert_same(&before, &scene.answers(), "with a daemon");
    let idle = world.muleteer(&["interrupt", &scene.id, "--json"]).json();
    assert!(idle.to_string().contains("no turn was running (the dispatch is success)"), "{idle}");
    let status = world.status();
    assert_eq!(ids(&status).len(), usize::from(COPIES) + 1);
    assert_eq!(ids(&status)[0], scene.id, "in the order of creation");
    daemon.kill_9();
    assert_same(&before, &scene.answers(), "without a daemon");
    fs::remove_file(world.state().join("muleteer.db")).unwrap();
    assert_same(&before, &scene.answers(), "without the database");
    let daemon = world.daemon();
    scene.wait_until_found();
    assert_same(&before, &scene.answers(), "with a database that was made again");
    scene.world.finish(Some(daemon));
}

#[test]
fn message_restores_an_archived_dispatch() {
    let scene = Scene::new();
    let world = &scene.world;
    let mut daemon = world.daemon();
    scene.wait_until_archived();
    let said = world.muleteer(&["send", &scene.id, "again", "--wait", "--json"]).json();
    assert_eq!((&said["state"], &said["turns"]), (&"success".into(), &2.into()), "{said}");
    assert_eq!(world.events().iter().filter(|it| it["event"] == "dispatches_restored").count(), 1);
    let order = |status: &Value| ids(status).iter().map(ToString::to_string).collect::<Vec<_>>();
    let all = order(&world.status());
    assert_eq!((all.len(), all[0].as_str()), (usize::from(COPIES) + 1, scene.id.as_str()));
    let journal = world.muleteer(&["journal", &scene.id]).ok();
    assert_eq!(journal.matches("] dispatched").count(), 1, "{journal}");
    assert_eq!(journal.matches("finished: success").count(), 2, "{journal}");
    // A start without the snapshot folds its events again.
    daemon.kill_9();
    let _ = fs::remove_file(world.state().join("events.snapshot"));
    let daemon = world.daemon();
    assert_eq!(scene.wait_until_found()["dispatches"][0]["turns"], 2);
    assert_eq!(order(&world.status()), all);
    scene.world.finish(Some(daemon));
}

/// The snapshot spares the start the damaged line, and the database needs it for ever.
#[test]
fn damaged_line_that_the_database_needs_is_named_instead_of_busy() {
    let scene = Scene::new();
    let world = &scene.world;
    let mut daemon = world.daemon();
    scene.wait_until_archived();
    daemon.kill_9();
    let (fleet, _) = fold_fleet(&scene.log()).unwrap();
    snapshot::write(&scene.log(), &fleet).unwrap();
    for file in ["muleteer.db", "muleteer.db-wal", "muleteer.db-shm"] {
        let _ = fs::remove_file(world.state().join(file));
    }
    let mut damaged = fs::read(scene.log()).unwrap();
    damaged[200] ^= 1;
    fs::write(scene.log(), &damaged).unwrap();
    // `status` has no answer either.
    let mut daemon = world.daemon_unready(&[]);
    wait_until("the daemon", PATIENCE, || {
        (daemon.log().matches("recovered generation").count() == 3).then_some(())
    });
    let told = wait_until("the error", PATIENCE, || {
        let output = world.muleteer(&["send", &scene.id, "again", "--json"]).run();
        (output.error_code() != "E_BUSY").then_some(output)
    });
    assert_eq!(told.error_code(), "E_EVENTS_CORRUPT", "{told:?}");
    let error = &told.json()["error"];
    assert!(error["file"].as_str().unwrap().ends_with("events.jsonl"), "{error}");
    assert!(error["line"].is_u64() && error["hint"].is_string(), "{error}");
    daemon.kill_9();
}

/// Clones, journals and output of an archived dispatch can be removed, and then no message
/// restores it.
#[test]
fn output_of_an_archived_dispatch_is_pruned() {
    let scene = Scene::new();
    let world = &scene.world;
    let daemon = world.daemon();
    scene.wait_until_archived();
    let pruned = world.muleteer(&["prune", "--older-than", "0s", "--json"]).json();
    assert_eq!(pruned["dispatches"], 1, "{pruned}");
    assert!(!world.state().join("agents").join(&scene.id).exists());
    let refused = wait_until("the database", PATIENCE, || {
        let output = world.muleteer(&["send", &scene.id, "go on", "--json"]).run();
        (output.error_code() != "E_BUSY").then_some(output)
    });
    assert_eq!(refused.error_code(), "E_UNSUPPORTED", "{refused:?}");
    scene.world.finish(Some(daemon));
}

fn killed(world: &World, point: &str) -> Daemon {
    world.daemon_unready(&[("MULETEER_FAULT", &format!("{point}=kill"))])
}

#[test]
fn killed_while_it_archives_or_restores_the_daemon_loses_nothing() {
    for point in ARCHIVE_POINTS {
        let scene = Scene::new();
        let world = &scene.world;
        let restores = *point == "archive.restored";
        if point.starts_with("archive.") && !restores {
            killed(world, point).ended();
        } else {
            let mut daemon = world.daemon();
            scene.wait_until_archived();
            daemon.kill_9();
            if restores {
                let mut daemon = killed(world, point);
                let send = world.muleteer(&["send", &scene.id, "again", "--wait", "--json"]);
                let said = send.start();
                daemon.ended();
                drop(said);
            } else {
                fs::remove_file(world.state().join("muleteer.db")).unwrap();
                killed(world, point).ended();
            }
        }
        let daemon = world.daemon();
        scene.wait_until_archived();
        let found = scene.wait_until_found();
        assert_eq!(found["dispatches"][0]["turns"], 1, "{point}: {found}");
        let status = world.status();
        assert_eq!(ids(&status).len(), usize::from(COPIES) + 1, "{point}");
        let said = world.muleteer(&["send", &scene.id, "again", "--wait", "--json"]).json();
        assert_eq!((&said["state"], &said["turns"]), (&"success".into(), &2.into()), "{point}");
        scene.world.finish(Some(daemon));
    }
}
