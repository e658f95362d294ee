//! Crashes that need a scene of their own; `campaign.rs` has the rest of the campaign.

#![allow(clippy::unwrap_used)]

use muleteer_tests::processes::{self, Process};
use muleteer_tests::{Daemon, PATIENCE, Repo, World, events, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::os::unix::net::UnixStream;

/// A grandchild in a session of its own that ignores every signal that can be ignored, and does not
/// end with any pipe, as `npm run dev &` of an agent does.
const STUBBORN: &str = r#"
setsid sh -c 'trap "" TERM PIPE HUP INT; while :; do echo beat >> beats; sleep 0.05; done' </dev/null >/dev/null 2>&1 &
echo "start $$" >> effects
echo tool running
sleep 1000
"#;

fn shim(world: &World) -> Process {
    wait_until("a shim", PATIENCE, || {
        processes::shims(&world.processes()).first().map(|one| (*one).clone())
    })
}

/// Waits until the agent of `repo` has had its first effect.
fn agent_runs(repo: &Repo) {
    wait_until("the agent to run", PATIENCE, || {
        (!repo.effects("effects").is_empty()).then_some(())
    });
}

fn start(world: &World, repo: &Repo, script: &str) -> String {
    let id = world.spawn(repo, script, &[]).ok();
    agent_runs(repo);
    world.wait_for_state(&id, &["running"]);
    id
}

/// No user started that daemon by name, so no user should notice that it was killed while it began.
#[test]
fn a_daemon_killed_while_it_is_started_on_demand_is_started_again() {
    let world = World::new();
    let repo = world.repo("repo");
    let killed = world.path().join("killed");
    let spawned = world
        .spawn(&repo, "echo start >> effects", &["--wait"])
        .env("MULETEER_DAEMON_FAULT", "ledger.before_write=kill")
        .env("MULETEER_FAULT_ONCE", &killed)
        .run();
    assert!(killed.exists(), "the first daemon was killed before it had written anything");
    assert_eq!(spawned.code, Some(0), "{spawned:?}");
    assert_eq!(repo.effects("effects"), ["start"]);
    world.muleteer(&["daemon", "stop", "--agents", "stop"]).ok();
}

fn only_the_daemon_is_left(world: &World, daemon: &Daemon) {
    world.wait_for_nothing_left(&[daemon.pid()]);
}

#[test]
fn shim_killed_during_a_tool_ends_all_its_processes() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = start(&world, &repo, STUBBORN);
    world.kill_9(shim(&world).pid);
    let entry = world.wait_for_end(&id);
    assert_eq!(entry["state"], "failed", "{entry}");
    assert!(
        entry.to_string().contains("unknown"),
        "the outcome is unknown, and the status says so: {entry}"
    );
    only_the_daemon_is_left(&world, &daemon);
    assert_eq!(repo.effects("effects").len(), 1, "a subprocess agent is never restarted by itself");
    assert_eq!(entry["attempts"], 1);
    world.finish(Some(daemon));
}

#[test]
fn a_shim_and_the_daemon_killed_together_leave_nothing_after_the_next_start() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let id = start(&world, &repo, STUBBORN);
    let shim = shim(&world).pid;
    daemon.kill_9();
    world.kill_9(shim);
    let daemon = world.daemon();
    assert_eq!(world.wait_for_end(&id)["state"], "failed");
    only_the_daemon_is_left(&world, &daemon);
    assert_eq!(repo.effects("effects").len(), 1);
    world.finish(Some(daemon));
}

#[test]
fn a_killed_agent_with_a_stubborn_grandchild_is_wholly_ended() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = start(&world, &repo, STUBBORN);
    world.muleteer(&["kill", &id]).ok();
    assert_eq!(world.wait_for_end(&id)["state"], "killed");
    only_the_daemon_is_left(&world, &daemon);
    world.finish(Some(daemon));
}

/// The zygote forks shims, which are the daemon's children as if the daemon had started them. No
/// process depends on the zygote.
#[test]
fn zygote_is_no_parent_and_its_death_is_harmless() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let zygote = wait_until("the zygote", PATIENCE, || processes::zygote(daemon.pid()));
    let id = start(&world, &repo, "echo first >> effects; while [ ! -e go ]; do sleep 0.05; done");
    let first = shim(&world);
    assert_eq!(first.parent, daemon.pid(), "{first}");
    let words = ["muleteer-shim", "--epoch", "1", "--agent", &id].join(" ");
    assert_eq!(first.command.trim_end(), words, "people tell one shim from another");
    processes::kill_zygote(daemon.pid());
    wait_until("the zygote's end", PATIENCE, || (!processes::is_alive(zygote.pid)).then_some(()));
    let second = world.spawn(&repo, "echo second >> effects", &["--wait"]).run();
    assert_eq!(second.code, Some(0), "{second:?}\n{}", daemon.log());
    repo.write("go", "");
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    assert_eq!(repo.effects("effects"), ["first", "second"]);
    // Neither shims nor zygotes stay as zombies.
    wait_until("the dead to be collected", PATIENCE, || {
        let path = format!("/proc/{0}/task/{0}/children", daemon.pid());
        let children = std::fs::read_to_string(path).unwrap();
        children
            .split(' ')
            .filter_map(|pid| pid.parse().ok())
            .all(processes::is_alive)
            .then_some(())
    });
    daemon.kill_9();
    let daemon = world.daemon();
    let next = wait_until("the next zygote", PATIENCE, || processes::zygote(daemon.pid()));
    world.finish(Some(daemon));
    assert!(!processes::is_alive(next.pid), "a daemon that was stopped has seen its zygote off");
}

/// The stopped zygote still has the request, and the agent's lock. If it continued, it would start
/// an agent that another process has started by then.
#[test]
fn a_zygote_that_is_stopped_is_ended_and_the_agent_started_by_another() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let zygote = wait_until("the zygote", PATIENCE, || processes::zygote(daemon.pid()));
    // The zygote has nothing that belongs to a world.
    processes::signal("".as_ref(), zygote.pid, Signal::STOP);
    let run = world.spawn(&repo, "echo start >> effects", &["--wait"]).run();
    assert_eq!(run.code, Some(0), "{run:?}\n{}", daemon.log());
    assert_eq!(repo.effects("effects"), ["start"]);
    assert!(!processes::is_alive(zygote.pid));
    world.finish(Some(daemon));
}

#[test]
fn a_living_agent_is_adopted_and_never_doubled() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let script = "echo \"start $$\" >> effects; echo before; while [ ! -e go ]; do sleep 0.05; \
        done; echo after; echo end >> effects";
    let id = start(&world, &repo, script);
    let before = shim(&world).pid;
    for _ in 0..3 {
        daemon.kill_9();
        daemon = world.daemon();
        assert_eq!(world.wait_for_state(&id, &["running"])["attempts"], 1);
        assert_eq!(shim(&world).pid, before, "the same shim, adopted");
    }
    repo.write("go", "");
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    assert_eq!(repo.effects("effects").len(), 2, "{:?}", repo.effects("effects"));
    let raw = world.muleteer(&["logs", &id, "--raw"]).ok();
    assert_eq!((raw.matches("before").count(), raw.matches("after").count()), (1, 1), "{raw}");
    assert!(!world.events_of(&id, "agent_adopted").is_empty(), "an adoption is reported");
    world.finish(Some(daemon));
}

/// The next daemon also answers requests of adopted agents.
#[test]
fn next_daemon_reads_the_output_of_an_adopted_agent() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let script = "echo start >> effects; while [ ! -e go ]; do sleep 0.05; done; muleteer status \
        --json > said; echo $? > code";
    let id = start(&world, &repo, script);
    daemon.kill_9();
    let daemon = world.daemon();
    let socket = world.state().join("agents").join(&id).join("pub/sock");
    wait_until("its socket to be served", PATIENCE, || UnixStream::connect(&socket).ok());
    repo.write("go", "");
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    assert_eq!(repo.read("code"), "0\n", "{}", repo.read("said"));
    world.finish(Some(daemon));
}

/// A daemon adopts all agents at once. Only its own link waits for an agent that cannot answer.
#[test]
fn agent_with_a_stopped_shim_is_adopted_after_the_others() {
    let world = World::new();
    let repos = ["one", "two", "three"].map(|name| world.repo(name));
    let mut daemon = world.daemon();
    let script = "echo start >> effects; while [ ! -e go ]; do sleep 0.05; done";
    let ids = repos.each_ref().map(|repo| start(&world, repo, script));
    let shims = ids.each_ref().map(|id| {
        let all = world.processes();
        processes::shims(&all).iter().find(|shim| shim.command.contains(id)).unwrap().pid
    });
    daemon.kill_9();
    world.signal(shims[1], Signal::STOP);
    let daemon = world.daemon();
    let adoptions = || ids.each_ref().map(|id| world.events_of(id, "agent_adopted").len());
    wait_until("two adoptions", PATIENCE, || {
        (adoptions().iter().sum::<usize>() >= 2).then_some(())
    });
    assert_eq!(adoptions(), [1, 0, 1], "one that does not answer is in nobody's hands");
    let first = world.events().into_iter().find(|event| event["event"] == "agent_adopted").unwrap();
    assert_eq!(first["more"], true, "they are recorded together: {first}");
    assert_eq!(world.dispatch(&ids[1])["state"], "running");
    world.signal(shims[1], Signal::CONT);
    wait_until("the third adoption", PATIENCE, || (adoptions() == [1, 1, 1]).then_some(()));
    for (id, repo) in ids.iter().zip(&repos) {
        repo.write("go", "");
        assert_eq!(world.wait_for_end(id)["state"], "success");
        assert_eq!(repo.effects("effects").len(), 1);
    }
    assert_eq!(adoptions(), [1, 1, 1], "each is adopted once by a daemon");
    world.finish(Some(daemon));
}

#[test]
fn exit_without_a_daemon_is_reported_correctly() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let script = "echo start >> effects; while [ ! -e go ]; do sleep 0.05; done; echo \
        '{\"type\":\"result\",\"status\":\"partial\",\"summary\":\"half of it\"}'; exit 0";
    let id = start(&world, &repo, script);
    daemon.kill_9();
    repo.write("go", "");
    world.wait_for_nothing_left(&[]);
    let daemon = world.daemon();
    let entry = world.wait_for_end(&id);
    assert_eq!(
        (&entry["state"], &entry["result"]["summary"]),
        (&"partial".into(), &"half of it".into()),
        "{entry}"
    );
    world.finish(Some(daemon));
}

/// The trampoline child waits on the shim's pipe; the shim is stopped before it writes.
#[test]
fn the_daemon_killed_between_fork_and_release_starts_no_second_agent() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon_with(&[("MULETEER_FAULT", "shim.forked=stop")]);
    let id = world.spawn(&repo, "echo \"start $$\" >> effects", &[]).ok();
    let stopped = wait_until("the shim to stop itself", PATIENCE, || {
        let shim = shim(&world);
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", shim.pid)).ok()?;
        stat.rsplit_once(") ")?.1.starts_with('T').then_some(shim.pid)
    });
    daemon.kill_9();
    let daemon = world.daemon();
    assert!(repo.effects("effects").is_empty(), "nothing runs before the release");
    assert!(processes::is_alive(stopped), "a living shim is not killed by a daemon that starts");
    kill_process(Pid::from_raw(stopped.cast_signed()).unwrap(), Signal::CONT).unwrap();
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    assert_eq!(repo.effects("effects").len(), 1, "{:?}", repo.effects("effects"));
    world.finish(Some(daemon));
}

#[test]
fn the_runtime_directory_may_vanish() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let id = start(
        &world,
        &repo,
        "echo start >> effects; while [ ! -e go ]; do sleep 0.05; done; muleteer status --json > \
         inner.json",
    );
    std::fs::remove_dir_all(world.runtime()).unwrap();
    std::fs::create_dir(world.runtime()).unwrap();
    daemon.kill_9();
    let daemon = world.daemon();
    assert_eq!(world.wait_for_state(&id, &["running"])["attempts"], 1);
    repo.write("go", "");
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    let inner: Value = serde_json::from_str(&repo.read("inner.json")).unwrap();
    assert_eq!(
        inner["daemon"]["running"], true,
        "the agent's own socket is bound anew at each start"
    );
    world.finish(Some(daemon));
}

/// A logout does that with `/run/user/UID`, and so does a person who tidies up.
#[test]
fn daemon_recreates_its_removed_socket() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = start(&world, &repo, "echo start >> effects; sleep 1000");
    let follower = world.muleteer(&["wait", &id]).start();
    let runtime = world.runtime().join("muleteer");
    assert!(runtime.is_dir());
    std::fs::remove_dir_all(&runtime).unwrap();
    assert_eq!(world.status()["daemon"]["running"], true);
    let checks = world.muleteer(&["doctor", "--json"]).run().json();
    let checks = checks["checks"].as_array().unwrap().clone();
    let check = checks.iter().find(|check| check["name"] == "daemon").unwrap();
    assert!(check["message"].to_string().contains(&format!("pid {}", daemon.pid())), "{check}");

    let socket = world.status()["daemon"]["socket"].as_str().unwrap().to_string();
    std::fs::remove_file(socket).unwrap();
    world.muleteer(&["kill", &id]).run().expect_code(0);
    assert_eq!(follower.finish().code, Some(6), "who was connected stays so");
    world.finish(Some(daemon));
}

#[test]
fn daemon_stop_keeps_its_agents() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let id = start(&world, &repo, "echo start >> effects; while [ ! -e go ]; do sleep 0.05; done");
    let said = world.muleteer(&["daemon", "stop"]).run().expect_code(0);
    assert!(
        format!("{}{}", said.stdout, said.stderr).contains('h'),
        "how long the lease lasts: {said:?}"
    );
    daemon.ended();
    assert!(processes::is_alive(shim(&world).pid));
    let daemon = world.daemon();
    repo.write("go", "");
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    world.finish(Some(daemon));
}

#[test]
fn stopped_shim_does_not_block_a_daemon_stop() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let id = start(&world, &repo, "echo start >> effects; while [ ! -e go ]; do sleep 0.05; done");
    let stopped = shim(&world).pid;
    world.signal(stopped, Signal::STOP);
    world.muleteer(&["daemon", "stop"]).run().expect_code(0);
    daemon.ended();
    let daemon = world.daemon();
    world.signal(stopped, Signal::CONT);
    repo.write("go", "");
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    assert_eq!(repo.effects("effects"), ["start"]);
    world.finish(Some(daemon));
}

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
        let spool = world.state().join("agents").join(&id).join("spool");
        let segment =
            std::fs::read_dir(&spool).unwrap().flatten().map(|entry| entry.path()).max().unwrap();
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

/// A bad sector does that: no read will ever succeed, so nobody may wait for one.
#[test]
fn a_spool_that_the_system_cannot_read_ends_its_dispatch_with_a_fault() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let id = start(&world, &repo, "echo start >> effects; sleep 1000");
    daemon.kill_9();
    assert!(processes::end_all(world.path()).is_empty());
    let spool = world.state().join("agents").join(&id).join("spool");
    for segment in std::fs::read_dir(&spool).unwrap().flatten().map(|entry| entry.path()) {
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
    let own = |name: &str| name == "meta.json" || name == "key" || name.starts_with("launch-");
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
    std::fs::remove_dir_all(dir.join("spool")).unwrap();
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
        let world = World::new();
        let repo = world.repo("repo");
        let mut daemon = world.daemon_with(&[("MULETEER_FAULT", point)]);
        let id = world.spawn(&repo, "echo start >> ../../../effects", &["--worktree"]).ok();
        daemon.ended();
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

/// The pool dies, and the whole fleet of actors restarts with it; no agent notices.
#[test]
fn a_panic_of_the_pool_is_invisible_to_fifty_agents() {
    const AGENTS: usize = 50;
    let world = World::new();
    world.configure(&format!("pool:\n  max_agents: {AGENTS}\n"));
    let repo = world.repo("repo");
    let daemon = world.daemon_with(&[("MULETEER_FAULT", "pool.look:60=panic")]);
    let script =
        "echo \"start $$\" >> effects; while [ ! -e go ]; do sleep 0.5; done; echo end >> effects";
    let ids: Vec<String> = (0..AGENTS).map(|_| world.spawn(&repo, script, &[]).ok()).collect();
    wait_until("every agent to run", PATIENCE, || {
        (repo.effects("effects").len() == AGENTS).then_some(())
    });
    let is_restart = |event: &Value| {
        event["event"] == "actor_restarted"
            && event["actor"].as_str().is_some_and(|name| name.contains("pool"))
    };
    let mut extra = vec![];
    wait_until("the pool to panic", PATIENCE, || {
        // Every further dispatch makes the pool look once more.
        extra.push(world.spawn(&repo, "echo extra >> extras", &[]).ok());
        world.events().iter().any(is_restart).then_some(())
    });
    assert!(daemon.is_alive());
    let before = processes::shims(&world.processes()).len();
    assert_eq!(before, AGENTS, "all of them live, and none twice");
    repo.write("go", "");
    for id in ids.iter().chain(&extra) {
        let entry = world.wait_for_end(id);
        assert_eq!(
            (&entry["state"], &entry["attempts"]),
            (&"success".into(), &1.into()),
            "{entry}"
        );
    }
    assert_eq!(repo.effects("effects").len(), 2 * AGENTS, "each once, to its end");
    assert_eq!(repo.effects("extras").len(), extra.len());
    world.finish(Some(daemon));
}

#[test]
fn a_ledger_that_panics_five_times_loses_nothing_and_repeats_nothing() {
    let world = World::new();
    let repo = world.repo("repo");
    // The root allows this many restarts in a minute.
    let daemon = world.daemon_with(&[("MULETEER_FAULT", "ledger.before_write:3=panic*5")]);
    let id = world.spawn(&repo, "echo run >> effects", &["--wait"]).ok();
    assert!(daemon.is_alive());
    assert_eq!(world.dispatch(&id)["state"], "success");
    assert_eq!(repo.effects("effects"), ["run"]);
    let is_restart =
        |event: &Value| event["event"] == "actor_restarted" && event["actor"] == "ledger";
    wait_until("five restarts on record", PATIENCE, || {
        (world.events().iter().filter(|event| is_restart(event)).count() == 5).then_some(())
    });
    world.finish(Some(daemon));
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

/// A broken user configuration (an agent may break it) must not prevent a `kill`. Unfinished
/// dispatches are supervised with the earlier daemon's settings, and nothing new begins. If nothing
/// is unfinished, the daemon does not start, and says what is wrong.
#[test]
fn a_configuration_that_is_wrong_leaves_no_agent_without_a_daemon() {
    let world = World::new();
    let repo = world.repo("repo");
    world.configure("pool: {max_agents: 1}\n");
    let mut daemon = world.daemon();
    let id = start(&world, &repo, "echo start >> effects; sleep 1000");
    let waiting = world.spawn(&repo, "echo two >> effects", &[]).ok();
    daemon.kill_9();
    world.configure("pool: {max_agents: 4}\nmodels: {defualt: fast}\n");

    let daemon = world.daemon();
    let refused = world.spawn(&repo, "true", &["--json"]).run().expect_code(2);
    let error = &refused.json()["error"];
    assert_eq!(
        (refused.error_code().as_str(), &error["line"]),
        ("E_CONFIG_INVALID", &json!(2)),
        "{error}"
    );
    let told = wait_until("the fault", PATIENCE, || {
        world
            .events()
            .into_iter()
            .find(|event| event["event"] == "fault" && event["what"] == "configuration")
    });
    assert!(
        told["message"].as_str().is_some_and(|text| text.contains("config.yaml:2: ")),
        "{told}"
    );
    assert_eq!(world.dispatch(&waiting)["state"], "queued", "the pool is as small as it was");
    world.muleteer(&["kill", &id]).ok();
    assert_eq!(world.wait_for_end(&id)["state"], "killed");
    assert_eq!(world.wait_for_end(&waiting)["state"], "success");
    assert_eq!(repo.effects("effects"), ["start", "two"]);
    world.expect_clean_end(Some(daemon));

    // No dispatch is unfinished now.
    let before = world.events().len();
    let refused = world.muleteer(&["daemon", "--json"]).run().expect_code(2);
    assert_eq!((refused.error_code().as_str(), world.events().len()), ("E_CONFIG_INVALID", before));
}
