//! Snapshots of the events: a daemon killed while it writes one, and one that is damaged, cost the
//! next start time and nothing else.

#![allow(clippy::unwrap_used)]

use crate::recovery::start;
use muleteer_model::event::{Entry, Event};
use muleteer_process::fault::SNAPSHOT_POINTS;
use muleteer_store::events::EventLog;
use muleteer_store::events::snapshot;
use muleteer_tests::{PATIENCE, World, wait_until};
use std::path::PathBuf;

/// Makes the log so long that the next daemon writes a snapshot. No daemon may run.
fn lengthen(world: &World) -> PathBuf {
    let events = world.state().join("events.jsonl");
    let (mut log, _) = EventLog::open(&events, 0, |_| {}).unwrap();
    let entry = |n: u32| {
        let event = Event::Fault { what: "long".into(), message: "x".repeat(64 * 1024) };
        Entry { id: format!("long-{n}"), dispatch_id: None, at: None, more: false, event }
    };
    let entries: Vec<_> = (0..80).map(entry).collect();
    log.append(&entries, jiff::Timestamp::now()).unwrap();
    events
}

#[test]
fn agents_survive_a_daemon_that_is_killed_while_it_writes_a_snapshot() {
    for point in SNAPSHOT_POINTS {
        let world = World::new();
        let repo = world.repo("repo");
        let mut daemon = world.daemon();
        let ended = world.spawn(&repo, "echo end", &["--wait"]).run();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let script = "echo start >> effects; while [ ! -e go ]; do sleep 0.05; done; echo went";
        let id = start(&world, &repo, script);
        daemon.kill_9();
        let events = lengthen(&world);
        let mut killed = world.daemon_unready(&[("MULETEER_FAULT", &format!("{point}=kill"))]);
        killed.ended();
        let is_written = snapshot::read(&events).is_ok();
        assert_eq!(is_written, point.contains("after"), "{point}");

        let daemon = world.daemon();
        wait_until("a snapshot", PATIENCE, || snapshot::read(&events).ok().map(drop));
        assert_eq!(world.wait_for_state(&id, &["running"])["attempts"], 1, "{point}");
        repo.write("go", "");
        assert_eq!(world.wait_for_end(&id)["state"], "success", "{point}");
        assert_eq!(repo.effects("effects"), ["start"], "{point}");
        let journal = world.muleteer(&["journal", &id]).ok();
        let count = |of: &str| journal.lines().filter(|line| line.contains(of)).count();
        assert_eq!(
            (count("] dispatched"), count("finished: success")),
            (1, 1),
            "{point}: {journal}"
        );
        let all = world.status();
        assert_eq!(all["dispatches"].as_array().unwrap().len(), 2, "{point}: {all}");
        world.finish(Some(daemon));
    }
}

/// With a daemon and without one.
#[test]
fn damaged_snapshot_changes_nothing_but_the_time_of_a_start() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let script = "echo start >> effects; sleep 1000";
    let id = start(&world, &repo, script);
    daemon.kill_9();
    let events = lengthen(&world);
    let mut daemon = world.daemon();
    wait_until("a snapshot", PATIENCE, || snapshot::read(&events).ok().map(drop));
    let file = snapshot::path_of(&events);
    let good = std::fs::read(&file).unwrap();
    for damage in ["flip", "cut", "empty"] {
        daemon.kill_9();
        let mut bytes = good.clone();
        match damage {
            "flip" => {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
            }
            "cut" => bytes.truncate(good.len() - 7),
            _ => bytes.clear(),
        }
        std::fs::write(&file, &bytes).unwrap();
        let offline = world.status();
        assert_eq!(offline["dispatches"][0]["id"], id.as_str(), "{damage}: {offline}");
        daemon = world.daemon();
        assert!(daemon.log().contains("snapshot"), "{damage}: {}", daemon.log());
        assert_eq!(world.wait_for_state(&id, &["running"])["attempts"], 1, "{damage}");
    }
    assert_eq!(repo.effects("effects"), ["start"]);
    world.finish(Some(daemon));
}
