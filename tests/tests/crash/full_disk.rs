//! A full disk is a state and no crash: no new effects, reads work, and it passes.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::skip::skip;
use muleteer_tests::{PATIENCE, World, wait_until};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small file system for the world's state, unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Option<Self> {
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(at).output();
        mounted.is_ok_and(|output| output.status.success()).then(|| Self(at.into()))
    }

    /// Fills the file system completely.
    fn fill(&self) {
        let mut chunk = 1 << 20;
        let mut at = 0;
        while chunk > 0 {
            let file = self.0.join(format!("filler{at}"));
            at += 1;
            if std::fs::write(&file, vec![0_u8; chunk]).is_err() {
                chunk /= 2;
            }
        }
    }

    /// Leaves about this many bytes free.
    fn leave(&self, bytes: u64) {
        self.fill();
        let filler = std::fs::File::options().write(true).open(self.0.join("filler0")).unwrap();
        filler.set_len(filler.metadata().unwrap().len() - bytes).unwrap();
    }

    fn empty(&self) {
        for entry in std::fs::read_dir(&self.0).unwrap().flatten() {
            if entry.file_name().to_string_lossy().starts_with("filler") {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}

#[test]
fn a_full_disk_is_a_state_that_passes() {
    let world = World::new();
    let Some(disk) = SmallDisk::mount(&world.path().join("state")) else {
        return skip(
            "a_full_disk_is_a_state_that_passes",
            "a tmpfs cannot be mounted here (not root)",
        );
    };
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let script = "echo start >> effects; while [ ! -e go ]; do echo chatter chatter chatter; sleep \
        0.01; done; echo end >> effects";
    let id = world.spawn(&repo, script, &[]).ok();
    wait_until("the agent to run", PATIENCE, || {
        (!repo.effects("effects").is_empty()).then_some(())
    });
    disk.fill();

    let refused = wait_until("a create to be refused", PATIENCE, || {
        let output = world.spawn(&repo, "echo two >> effects", &["--json"]).run();
        (output.code != Some(0)).then_some(output)
    });
    assert_eq!(
        (refused.code, refused.error_code().as_str()),
        (Some(3), "E_DISK_FULL"),
        "{refused:?}"
    );
    assert!(daemon.is_alive());
    assert_eq!(world.dispatch(&id)["state"], "running", "reading works");

    disk.empty();
    let second = wait_until("room to be used again", PATIENCE, || {
        let output = world.spawn(&repo, "echo three >> effects", &[]).run();
        (output.code == Some(0)).then(|| output.stdout.trim().to_string())
    });
    assert_eq!(world.wait_for_end(&second)["state"], "success");
    repo.write("go", "");
    assert_eq!(
        world.wait_for_end(&id)["state"],
        "success",
        "the agent waited in its pipe, and went on"
    );
    let effects = repo.effects("effects");
    assert!(effects.contains(&"three".into()) && effects.contains(&"end".into()), "{effects:?}");
    world.expect_clean_end(Some(daemon));
    drop(disk); // before the world, whose directory a mounted disk would keep busy
}

/// There is room for a request and none for its agent's output. The reason of the failure must name
/// the disk.
#[test]
fn reason_names_the_cause_of_a_dead_shim() {
    let world = World::new();
    let Some(disk) = SmallDisk::mount(&world.path().join("state")) else {
        return skip(
            "reason_names_the_cause_of_a_dead_shim",
            "a tmpfs cannot be mounted here (not root)",
        );
    };
    let repo = world.repo("repo");
    let daemon = world.daemon();
    disk.leave(160 << 10);
    let id = world.spawn(&repo, "echo never", &[]).ok();
    let ended = world.wait_for_end(&id);
    let reason = ended["reason"].as_str().unwrap_or_default();
    assert_eq!(ended["state"], "failed", "{ended}");
    assert!(
        reason.contains("before it started the agent") && reason.contains("No space left"),
        "{reason}"
    );
    disk.empty();
    world.expect_clean_end(Some(daemon));
    drop(disk);
}

/// The user must be able to end the agent that fills the disk, also by a daemon that was started
/// afterwards.
#[test]
fn agent_can_be_killed_on_a_full_disk() {
    for daemon_dies in [false, true] {
        let world = World::new();
        let Some(disk) = SmallDisk::mount(&world.path().join("state")) else {
            return skip(
                "agent_can_be_killed_on_a_full_disk",
                "a tmpfs cannot be mounted here (not root)",
            );
        };
        let repo = world.repo("repo");
        let mut daemon = world.daemon();
        let scenario = world.path().join("scenario.yaml");
        std::fs::write(&scenario, "v: 1\nturns: [{steps: [{hang: {}}]}]\n").unwrap();
        let args =
            ["spawn", "developer", repo.to_str(), "x", "--backend", "rehearsal", "--scenario"];
        let spawned = world.muleteer(&[&args[..], &[scenario.to_str().unwrap()]].concat()).run();
        let id = spawned.expect_code(0).stdout.trim().to_string();
        // Before this the disk would be too full for the prompt, and the attempt would fail.
        wait_until("the agent's turn to begin", PATIENCE, || {
            (!world.events_of(&id, "turn_started").is_empty()).then_some(())
        });
        disk.fill();
        // The last page of the log still has room.
        for text in ["x".repeat(500), "x".into()] {
            wait_until("no room for another word", PATIENCE, || {
                let said = world.muleteer(&["send", &id, &text, "--json"]).run();
                (said.code == Some(3)).then_some(())
            });
        }
        if daemon_dies {
            daemon.kill_9();
            daemon = world.daemon();
        }
        world.muleteer(&["kill", &id]).run().expect_code(0);
        assert_eq!(world.wait_for_end(&id)["state"], "killed", "the daemon died: {daemon_dies}");
        disk.empty();
        world.expect_clean_end(Some(daemon));
        drop(disk);
    }
}
