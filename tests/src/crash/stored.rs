//! Kills while the daemon stores: it closes a file of the log for each append, compresses segments
//! and output, archives finished dispatches, restores one, and removes old events.
//!
//! Afterwards no recorded event is lost or doubled (unless events were to be removed), every
//! dispatch is found, no effect happened twice, each end has its line of the metrics, and the
//! output of an agent that was compressed reads as before.

use crate::crash::Dice;
use crate::run::Running;
use crate::{Daemon, PATIENCE, Repo, World, events, wait_until};
use muleteer_model::event::id::{DispatchId, ID_BYTES};
use muleteer_model::event::{Entry, Record};
use muleteer_process::fault::SEGMENT_VAR;
use muleteer_store::events::{EventLog, read};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// The number of copies that are made of a finished dispatch, twice as many as stay in memory.
const COPIES: u8 = 40;
/// A file is closed before each append.
const SMALL: (&str, &str) = (SEGMENT_VAR, "1");

struct Scene {
    world: World,
    repo: Repo,
    /// The first dispatch, which is archived and can go on.
    first: String,
    /// Its output.
    printed: String,
}

impl Scene {
    fn new(removes: bool) -> Self {
        let world = World::new();
        let repo = world.repo("repo");
        let events = if removes { ", events: 0s" } else { "" };
        world.configure(&format!("retention: {{in_memory: 20, compress_after: 0s{events}}}\n"));
        let scenario = world.path().join("scenario.yaml");
        let turn =
            "  - steps:\n      - say: hello\n      - result: {status: success, summary: done}\n";
        std::fs::write(&scenario, format!("v: 1\nturns:\n{}", turn.repeat(9))).expect("a file");
        let mut daemon = world.daemon_with(&[SMALL]);
        let path = scenario.display().to_string();
        let args = ["spawn", "developer", repo.to_str(), "do it", "--wait", "--json"];
        let how = ["--backend", "rehearsal", "--scenario", &path];
        let spawned = world.muleteer(&[&args[..], &how].concat()).json();
        let first = spawned["dispatch_id"].as_str().expect("an id").to_string();
        let printed = world.muleteer(&["logs", &first, "--raw"]).ok();
        daemon.kill_9();
        let scene = Self { world, repo, first, printed };
        scene.copy();
        scene
    }

    fn log(&self) -> PathBuf {
        self.world.state().join("events.jsonl")
    }

    /// Returns the id of a copy.
    fn id(number: u8) -> DispatchId {
        DispatchId::from_random([number; ID_BYTES])
    }

    fn copy(&self) {
        let mut records: Vec<Record> = vec![];
        read(&self.log(), |record| records.push(record)).expect("the events");
        records.retain(|record| {
            record.entry.dispatch_id.as_ref().is_some_and(|of| of.as_str() == self.first)
        });
        let (mut log, _) = EventLog::open(&self.log(), 0, |_| {}).expect("the log");
        for number in 1..=COPIES {
            let id = Self::id(number);
            let copy = |(at, record): (usize, &Record)| Entry {
                id: format!("{id}-{at}"),
                dispatch_id: Some(id.clone()),
                more: false,
                ..record.entry.clone()
            };
            let entries: Vec<_> = records.iter().enumerate().map(copy).collect();
            log.append(&entries, jiff::Timestamp::now()).expect("they are appended");
        }
    }

    /// Returns the ids of all dispatches.
    fn ids(&self) -> BTreeSet<String> {
        let status = wait_until("the archive", PATIENCE, || {
            let output = self.world.muleteer(&["status", "--json"]).run();
            (output.code == Some(0)).then(|| output.json())
        });
        let all = status["dispatches"].as_array().expect("dispatches").iter();
        all.map(|one| one["id"].as_str().expect("an id").to_string()).collect()
    }

    /// Returns how many lines about ends of a dispatch the metrics have.
    fn ends(&self, id: &str) -> usize {
        let files = std::fs::read_dir(self.world.state().join("metrics")).expect("the metrics");
        let texts =
            files.map(|file| std::fs::read_to_string(file.expect("a file").path()).expect("text"));
        let text: String = texts.collect();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line"));
        lines.filter(|line| line["kind"] == "dispatch" && line.to_string().contains(id)).count()
    }
}

/// Kills the daemon at moments chosen by `seed`, while clients make it archive, restore, rotate,
/// compress and, with an odd seed, remove events.
///
/// # Panics
/// When an invariant does not hold.
pub fn seeded(seed: u64) {
    let removes = seed % 2 == 1;
    let (mut dice, scene) = (Dice::new(seed), Scene::new(removes));
    let world = &scene.world;
    let mut daemon = world.daemon_with(&[SMALL]);
    let (mut clients, mut before): (Vec<Running>, Vec<String>) = (vec![], vec![]);
    let kills = 1 + dice.below(3);
    for kill in 0..kills {
        let script = format!("echo {kill} >> effects; echo printed");
        clients.push(world.spawn(&scene.repo, &script, &["--wait", "--json"]).start());
        if dice.below(2) == 0 {
            // It may be in the archive, on the way there, or on the way back.
            let words = ["send", &scene.first, "again", "--wait", "--json"];
            clients.push(world.muleteer(&words).deadline(PATIENCE * 2).start());
        }
        if removes {
            clients.push(world.muleteer(&["clean", "--apply", "--json"]).start());
        }
        // This sleep *is* the test's input: a moment chosen by the seed.
        std::thread::sleep(Duration::from_millis(dice.below(1500)));
        daemon.kill_9();
        if !removes {
            before = events::lines(&scene.log());
        }
        daemon = next(world);
    }
    eprintln!("stored seed {seed}: killed {kills} times, events removed: {removes}");
    // A client whose daemon died may give up, as busy; what it asked for is checked below.
    clients.into_iter().for_each(|client| drop(client.finish()));
    scene.check(kills, removes);
    if !removes {
        events::check_nothing_lost(&before, &scene.log());
    }
    world.muleteer(&["daemon", "stop", "--agents", "stop"]).run();
    drop(daemon);
    world.wait_for_nothing_left(&[]);
}

/// Starts the next daemon, unless a client has started one on demand.
fn next(world: &World) -> Daemon {
    let mut daemon = world.daemon_unready(&[SMALL]);
    daemon.answers_or_ends(world);
    daemon
}

impl Scene {
    fn check(&self, kills: u64, removes: bool) {
        let world = &self.world;
        wait_until("the archival", PATIENCE, || {
            world
                .events()
                .iter()
                .any(|event| event["event"] == "dispatches_archived" || removes)
                .then_some(())
        });
        let ids = self.ids();
        let copies = (1..=COPIES).map(|number| Self::id(number).to_string());
        let wanted: BTreeSet<String> = copies.chain([self.first.clone()]).collect();
        if !removes {
            assert!(wanted.is_subset(&ids), "some are lost: {ids:?}");
        }
        assert!(ids.contains(&self.first), "it has files, so its events stay: {ids:?}");
        let mut effects = self.repo.effects("effects");
        let count = effects.len();
        effects.sort();
        effects.dedup();
        assert_eq!(count, effects.len(), "no agent ran twice: {effects:?}");
        assert!(count as u64 <= kills, "{effects:?}");
        let entry = wait_until("the end of the first", PATIENCE, || {
            let output = world.muleteer(&["status", &self.first, "--json"]).run();
            let entry = output.json()["dispatches"][0].clone();
            ["success", "idle"].contains(&entry["state"].as_str()?).then_some(entry)
        });
        let turns = entry["turns"].as_u64().expect("turns");
        assert!((1..=kills + 1).contains(&turns), "{entry}");
        let raw = world.muleteer(&["logs", &self.first, "--raw"]).ok();
        assert!(raw.starts_with(&self.printed), "the output before: {raw}");
        wait_until("its line of the metrics", PATIENCE, || {
            (self.ends(&self.first) >= 1).then_some(())
        });
        for number in 1..=COPIES {
            assert_eq!(self.ends(Self::id(number).as_str()), 1, "copy {number}");
        }
        let doctor = world.muleteer(&["doctor", "--json"]).run();
        assert!(!doctor.stdout.contains("E_EVENTS"), "{doctor:?}");
    }
}
