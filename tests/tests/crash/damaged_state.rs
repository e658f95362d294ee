//! Files that a power cut or a fault of the disk damaged: nothing that has run is repeated.

#![allow(clippy::unwrap_used)]

use crate::recovery::{agent_runs, start};
use muleteer_tests::processes;
use muleteer_tests::{PATIENCE, Repo, World, events, segments, wait_until};

/// The spool is torn or has a flipped bit, and every process is dead, as after a power failure.
#[test]
fn a_damaged_spool_is_read_to_its_last_good_record() {
    for damage in ["cut", "flip"] {
        let world = World::new();
        let repo = world.repo("repo");
        let mut daemon = world.daemon();
        let id = start(
            &world,
            &repo,
            "echo start >> effects; echo one; sleep 0.3; echo two; sleep 1000",
        );
        let printed = || world.muleteer(&["logs", &id, "--raw"]).ok().contains("two").then_some(());
        wait_until("the output to be spooled", PATIENCE, printed);
        daemon.kill_9();
        assert!(processes::end_all(world.path()).is_empty());
        let segment = segments(&world.state().join("agents").join(&id)).pop().unwrap();
        let mut bytes = std::fs::read(&segment).unwrap();
        let at = bytes
            .windows(3)
            .rposition(|window| window == b"two")
            .expect("the last line in the newest segment");
        match damage {
            "cut" => bytes.truncate(at + 1),
            _ => bytes[at] ^= 0x10,
        }
        std::fs::write(&segment, &bytes).unwrap();
        let daemon = world.daemon();
        assert_eq!(world.wait_for_end(&id)["state"], "failed", "{damage}");
        let raw = world.muleteer(&["logs", &id, "--raw"]).ok();
        assert!(raw.contains("one") && !raw.contains("two"), "{damage}: {raw:?}");
        world.finish(Some(daemon));
    }
}

/// A cut end looks like a record that a killed shim left in part, and the events know better.
#[test]
fn damaged_output_of_an_ended_agent_is_told() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = world.spawn(&repo, "echo one; sleep 0.3; echo two", &["--wait"]).ok();
    let logs = || world.muleteer(&["logs", &id, "--json"]).run();
    let before = logs().json();
    let segment = segments(&world.state().join("agents").join(&id)).pop().unwrap();
    let whole = std::fs::read(&segment).unwrap();
    let at = whole.windows(3).rposition(|window| window == b"two").unwrap();
    std::fs::write(&segment, &whole[..=at]).unwrap();
    let cut = logs().json();
    assert!(cut.to_string().contains("the end of the output is missing in"), "{cut}");
    let followed = world.muleteer(&["logs", &id, "-f"]).run().expect_code(0);
    assert!(followed.stderr.contains("the end of the output is missing in"), "{followed:?}");
    let followed = world.muleteer(&["logs", &id, "-f", "--json"]).run().expect_code(0);
    assert!(followed.stdout.contains("the end of the output is missing in"), "{followed:?}");
    // Damage at the beginning leaves nothing to go on with.
    std::fs::write(segment.with_extension("seg.zst"), b"").unwrap();
    std::fs::remove_file(&segment).unwrap();
    let broken = logs().expect_code(4);
    let error = &broken.json()["error"];
    assert_eq!(error["code"], "E_SPOOL_DAMAGED", "{broken:?}");
    assert!(error["hint"].is_string(), "{error}");
    std::fs::write(&segment, &whole).unwrap();
    assert_eq!(logs().json(), before);
    world.finish(Some(daemon));
}

/// A bad sector does that: no read will ever succeed, so nobody may wait for one.
#[test]
fn a_spool_that_the_system_cannot_read_ends_its_dispatch_with_a_fault() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let id = start(&world, &repo, "echo start >> effects; sleep 1000");
    daemon.kill_9();
    assert!(processes::end_all(world.path()).is_empty());
    for segment in segments(&world.state().join("agents").join(&id)) {
        std::fs::remove_file(&segment).unwrap();
        std::fs::create_dir(&segment).unwrap();
    }
    let daemon = world.daemon();
    assert_eq!(world.wait_for_end(&id)["state"], "failed");
    let faults = world.events_of(&id, "fault");
    assert!(
        faults.iter().any(|fault| fault["message"].as_str().unwrap().contains("cannot be read")),
        "{faults:?}"
    );
    let restarted =
        world.events().iter().filter(|event| event["event"] == "actor_restarted").count();
    assert_eq!(restarted, 0, "no actor fails over and over");
    world.finish(Some(daemon));
}

/// Removes or empties the unsynced files of daemon and shim, as a power cut leaves them.
fn power_cut(world: &World, id: &str, emptied: bool) {
    assert!(processes::end_all(world.path()).is_empty());
    let dir = world.state().join("agents").join(id);
    let own = |name: &str| name == "lock" || name.starts_with("launch-");
    for entry in std::fs::read_dir(&dir).unwrap().flatten() {
        if own(&entry.file_name().to_string_lossy()) {
            if emptied {
                std::fs::write(entry.path(), "")
            } else {
                std::fs::remove_file(entry.path())
            }
            .unwrap();
        }
    }
    segments(&dir).iter().for_each(|segment| std::fs::remove_file(segment).unwrap());
}

#[test]
fn after_a_power_cut_nothing_that_has_run_is_started_again() {
    for emptied in [false, true] {
        let world = World::new();
        let repo = world.repo("repo");
        let mut daemon = world.daemon_with(&[("MULETEER_FAULT_BOOT", "one")]);
        let id = start(&world, &repo, "echo start >> effects; sleep 1000");
        daemon.kill_9();
        power_cut(&world, &id, emptied);
        let daemon = world.daemon_with(&[("MULETEER_FAULT_BOOT", "two")]);
        let entry = world.wait_for_end(&id);
        assert_eq!(entry["state"], "failed", "{entry}");
        assert!(entry["reason"].as_str().unwrap().starts_with("outcome unknown"), "{entry}");
        assert_eq!(repo.effects("effects"), ["start"], "emptied: {emptied}");
        // The directory can be used again.
        assert_eq!(world.spawn(&repo, "true", &["--wait"]).run().code, Some(0));
        world.finish(Some(daemon));
    }
}

/// The agent had begun, and the daemon died before it recorded that: the ledger has only the
/// attempt.
#[test]
fn unreported_attempt_is_not_repeated_after_a_power_cut() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon_with(&[
        ("MULETEER_FAULT_BOOT", "one"),
        ("MULETEER_FAULT", "start.after_shim=kill"),
    ]);
    let id = world.spawn(&repo, "echo start >> effects; sleep 1000", &[]).ok();
    daemon.ended();
    agent_runs(&repo);
    power_cut(&world, &id, false);
    let daemon = world.daemon_with(&[("MULETEER_FAULT_BOOT", "two")]);
    let entry = world.wait_for_end(&id);
    assert_eq!(entry["state"], "failed", "{entry}");
    assert_eq!(repo.effects("effects"), ["start"]);
    world.finish(Some(daemon));
}

/// git does not wait for the disk with files that it checks out.
#[test]
fn partial_clone_after_a_power_cut_is_recreated() {
    for killed in [false, true] {
        a_clone_left_in_part_is_made_again(killed);
    }
}

fn a_clone_left_in_part_is_made_again(killed: bool) {
    let world = World::new();
    let repo = world.repo("repo");
    let scenario = world.path().join("scenario.yaml");
    let steps = "v: 1\nturns:\n  - steps:\n      - run: cat README.md >> ../../../seen; git status \
        --porcelain >> ../../../seen\n";
    std::fs::write(
        &scenario,
        format!("{steps}      - result: {{status: success, summary: done}}\n"),
    )
    .unwrap();
    let mut daemon = world.daemon_with(&[
        ("MULETEER_FAULT_BOOT", "one"),
        ("MULETEER_FAULT", "start.before_shim=kill"),
    ]);
    let args =
        ["spawn", "developer", repo.to_str(), "do it", "--backend", "rehearsal", "--worktree"];
    let id =
        world.muleteer(&[&args[..], &["--scenario", scenario.to_str().unwrap()]].concat()).ok();
    daemon.ended();
    power_cut(&world, &id, false);
    let clone = std::path::Path::new(repo.to_str()).join(".muleteer/worktrees").join(&id);
    for lost in ["README.md", ".git/index"] {
        std::fs::write(clone.join(lost), "").unwrap();
    }
    if killed {
        // The daemon dies between the new clone and the shim; the next one does not trust this
        // clone either.
        let fault = [("MULETEER_FAULT_BOOT", "two"), ("MULETEER_FAULT", "start.before_shim=kill")];
        world.daemon_unready(&fault).ended();
        std::fs::write(clone.join(".git/index"), "").unwrap();
    }
    let daemon = world.daemon_with(&[("MULETEER_FAULT_BOOT", "two")]);
    let entry = world.wait_for_end(&id);
    assert_eq!(entry["state"], "success", "{entry}");
    assert_eq!(repo.read("seen"), repo.read("README.md"));
    let faults = world.events().into_iter().filter(|event| event["event"] == "fault");
    let told = faults.filter(|fault| fault["what"] == format!("the clone of {id}")).count();
    // A killed daemon may have had no time to record it.
    assert!(told == 1 || (killed && told == 2), "{told}");
    world.finish(Some(daemon));
}

/// The daemon that made the clone records it, or the next one does.
#[test]
fn created_clone_is_reported_once() {
    for point in ["clone.made", "start.before_shim", "start.after_shim"] {
        let (world, repo, id) = killed_as_it_starts(point);
        let untold = world.events_of(&id, "worktree_created").is_empty();
        assert_eq!(untold, point == "clone.made", "{point}");
        let daemon = world.daemon();
        assert_eq!(world.wait_for_end(&id)["state"], "success", "{point}");
        let told = world.events_of(&id, "worktree_created");
        assert_eq!(told.len(), 1, "{point}");
        assert_eq!(told[0]["base"], repo.git(&["rev-parse", "HEAD"]).trim(), "{point}");
        assert_eq!(repo.effects("effects"), ["start"], "{point}");
        world.finish(Some(daemon));
    }
}

/// Spawns an agent with a clone under a daemon that dies at `point`. If that daemon dies before it
/// answers, the client starts another one, which continues; then all begins again.
fn killed_as_it_starts(point: &str) -> (World, Repo, String) {
    const TRIES: usize = 10;
    for _ in 0..TRIES {
        let world = World::new();
        let repo = world.repo("repo");
        let mut daemon = world.daemon_with(&[("MULETEER_FAULT", point)]);
        let id = world.spawn(&repo, "echo start >> ../../../effects", &["--worktree"]).ok();
        daemon.ended();
        let events = world.events();
        let daemons = events.iter().filter(|event| event["event"] == "daemon_started").count();
        if daemons == 1 {
            return (world, repo, id);
        }
        world.finish(None);
    }
    panic!("{TRIES} daemons died at {point} before they answered");
}

/// Without the files that name them, nobody can look for processes that an agent left. So Muleteer
/// starts nothing beside them.
#[test]
fn agent_with_an_emptied_directory_blocks_and_is_not_restarted() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let id = start(&world, &repo, "echo start >> effects; sleep 1000");
    daemon.kill_9();
    power_cut(&world, &id, true);
    let daemon = world.daemon();
    let entry = world.wait_for_end(&id);
    assert_eq!(entry["state"], "blocked", "{entry}");
    assert_eq!(repo.effects("effects"), ["start"]);
    let faults = world.events().into_iter().filter(|event| event["event"] == "fault");
    let told = faults
        .filter(|fault| fault["message"].to_string().contains("cannot be searched for"))
        .count();
    assert_eq!(told, 1);
    world.finish(Some(daemon));
}

#[test]
fn damaged_database_is_rebuilt_or_reported() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let id = world.spawn(&repo, "true", &["--wait"]).ok();
    daemon.kill_9();
    let database = world.state().join("muleteer.db");
    let mut bytes = std::fs::read(&database).unwrap();
    bytes.iter_mut().skip(100).step_by(7).for_each(|byte| *byte ^= 0x55);
    std::fs::write(&database, bytes).unwrap();
    let mut daemon = world.daemon_unready(&[]);
    let answered = wait_until("the daemon to start or to refuse", PATIENCE, || {
        let running = daemon.is_alive();
        if running && world.status()["daemon"]["running"] != true { None } else { Some(running) }
    });
    if answered {
        assert_eq!(
            world.dispatch(&id)["state"],
            "success",
            "the events are the truth, and the database follows"
        );
    } else {
        assert_eq!(daemon.ended().code(), Some(3));
        assert!(daemon.log().contains("muleteer.db"), "{}", daemon.log());
    }
}

#[test]
fn a_torn_last_event_is_cut_and_a_bad_line_before_it_is_named() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let id = world.spawn(&repo, "true", &["--wait"]).ok();
    daemon.kill_9();
    let path = world.state().join("events.jsonl");
    let whole = std::fs::read(&path).unwrap();

    let torn = [&whole[..], b"{\"crc\":\"00000000\",\"v\":1,\"seq\":"].concat();
    std::fs::write(&path, &torn).unwrap();
    assert_eq!(world.dispatch(&id)["state"], "success", "a reader passes over a torn tail");
    let mut daemon = world.daemon();
    assert!(world.events().iter().any(|event| event["event"] == "log_recovered"));
    daemon.kill_9();
    events::check(&path);

    let mut flipped = std::fs::read(&path).unwrap();
    let middle = whole.len() / 2;
    flipped[middle] ^= 1;
    std::fs::write(&path, &flipped).unwrap();
    let refused = world.muleteer(&["daemon", "--json"]).run().expect_code(3);
    assert!(refused.error_code().contains("CORRUPT"), "{refused:?}");
    let error = &refused.json()["error"];
    assert!(
        error["file"].as_str().is_some_and(|file| file.ends_with("events.jsonl"))
            && error["line"].is_u64(),
        "{error}"
    );
    assert_eq!(
        std::fs::read(&path).unwrap(),
        flipped,
        "nothing was changed on the way to the error"
    );
}
