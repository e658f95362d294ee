//! Crashes of shims, zygotes and daemons while an agent lives: it is adopted or ended, and never
//! doubled.

#![allow(clippy::unwrap_used)]

use crate::recovery::{agent_runs, only_the_daemon_is_left, shim, start};
use muleteer_tests::processes;
use muleteer_tests::{PATIENCE, World, segments, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A grandchild in a session of its own that ignores every signal that can be ignored, and does not
/// end with any pipe, as `npm run dev &` of an agent does.
const STUBBORN: &str = r#"
setsid sh -c 'trap "" TERM PIPE HUP INT; while :; do echo beat >> beats; sleep 0.05; done' \
  </dev/null >/dev/null 2>&1 &
echo "start $$" >> effects
echo tool running
sleep 1000
"#;

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

/// Gives the files of a living agent the layout of earlier versions, whose shims may still run.
fn to_earlier_layout(dir: &Path) {
    let lock = std::fs::read_to_string(dir.join("lock")).unwrap();
    let newest = |kind: &str| lock.lines().rev().find_map(|line| line.strip_prefix(kind)).unwrap();
    let digits = newest("key ").as_bytes();
    let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap();
    std::fs::write(dir.join("key"), digits.chunks(2).map(byte).collect::<Vec<u8>>()).unwrap();
    std::fs::write(dir.join("meta.json"), newest("meta ")).unwrap();
    std::fs::write(dir.join("shim.log"), "").unwrap();
    // The file stays the same one, because the shim holds its lock.
    std::fs::File::options().write(true).open(dir.join("lock")).unwrap().set_len(0).unwrap();
    for name in ["spool", "prompt"] {
        std::fs::create_dir(dir.join(name)).unwrap();
    }
    for file in segments(dir) {
        std::fs::rename(&file, dir.join("spool").join(file.file_name().unwrap())).unwrap();
    }
    for entry in std::fs::read_dir(dir.join("pub")).unwrap().flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "md") {
            std::fs::rename(entry.path(), dir.join("prompt").join(entry.file_name())).unwrap();
        }
    }
    let request = dir.join("request.json");
    let mut saved: Value = serde_json::from_slice(&std::fs::read(&request).unwrap()).unwrap();
    saved.as_object_mut().unwrap().remove("prompt").expect("a prompt");
    std::fs::write(&request, saved.to_string()).unwrap();
    let launch = dir.join("launch-00000001.json");
    let mut old: Value = serde_json::from_slice(&std::fs::read(&launch).unwrap()).unwrap();
    old["v"] = 1.into();
    std::fs::write(&launch, old.to_string()).unwrap();
}

#[test]
fn living_agent_in_the_layout_of_earlier_versions_is_adopted_and_continued() {
    let world = World::new();
    let repo = world.repo("repo");
    let scenario = world.path().join("scenario.yaml");
    let turn = "  - steps:\n      - run: echo $$ >> effects; while [ ! -e go ]; do sleep 0.05; \
                done\n      - result: {status: success, summary: done}\n";
    std::fs::write(&scenario, format!("v: 1\nturns:\n{turn}{turn}")).unwrap();
    let mut daemon = world.daemon();
    let words = ["spawn", "developer", repo.to_str(), "do it", "--backend", "rehearsal"];
    let more = ["--scenario", scenario.to_str().unwrap()];
    let id = world.muleteer(&[&words[..], &more].concat()).ok();
    agent_runs(&repo);
    world.wait_for_state(&id, &["running"]);
    daemon.kill_9();
    let dir = world.state().join("agents").join(&id);
    to_earlier_layout(&dir);
    let mut daemon = world.daemon();
    wait_until("its adoption", PATIENCE, || {
        (!world.events_of(&id, "agent_adopted").is_empty()).then_some(())
    });
    repo.write("go", "");
    let entry = world.wait_for_end(&id);
    assert_eq!((&entry["state"], &entry["attempts"]), (&json!("success"), &json!(1)), "{entry}");
    // The next process of the same dispatch is of this version.
    world.muleteer(&["send", &id, "once more"]).ok();
    wait_until("its next turn", PATIENCE, || (repo.effects("effects").len() == 2).then_some(()));
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    assert!(std::fs::read_to_string(dir.join("lock")).unwrap().contains("\"epoch\":2"));
    daemon.kill_9();
    let daemon = world.daemon();
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
