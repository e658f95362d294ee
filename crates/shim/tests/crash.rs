#![allow(clippy::unwrap_used)]
//! kill -9 of the shim wherever it hurts: nothing unrecorded runs, nothing survives a sweep, and
//! the next epoch starts beside what the dead one left.

mod common;

use common::{Agent, wait_for};
use muleteer_process::group::{Before, by_nonce, sweep};
use muleteer_process::identity::ProcessId;
#[cfg(feature = "fault-points")]
use muleteer_shim::control::Control;
use muleteer_shim::meta;
use muleteer_shim::record::{Cursor, segment_path};
use muleteer_shim::spool::{Reader, State};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

#[cfg(feature = "fault-points")]
#[test]
fn a_shim_killed_before_release_leaves_no_agent() {
    for point in ["shim.meta_written", "shim.forked", "shim.recorded"] {
        let mut agent = Agent::script("echo ran > ran; sleep 60");
        agent.start_faulty(Some(point)).gone();
        agent.nothing_left();
        assert!(!agent.root.path().join("ran").exists(), "{point}: the agent ran");
        let spawned =
            agent.controls().iter().any(|control| matches!(control, Control::Spawned { .. }));
        assert_eq!(spawned, point == "shim.recorded", "{point}");
        assert!(sweep(&[&agent.nonce], agent.cgroup().as_deref(), Before::Nobody, LONG).clean);
        // The next epoch opens beside it.
        agent.launch.epoch = 2;
        agent.launch.argv = vec!["echo".into(), "again".into()];
        agent.start().gone();
        assert_eq!(agent.stdout(), "again\n", "{point}");
    }
}

#[cfg(feature = "fault-points")]
#[test]
fn shim_killed_after_release_takes_its_agent_down() {
    for point in ["shim.released", "shim.record_written", "shim.record_written:2"] {
        let mut agent = Agent::script("echo one; sleep 0.1; echo two; sleep 60");
        agent.start_faulty(Some(point)).gone();
        let id = agent.agent_id();
        wait_for("the agent's death", || (!id.is_alive()).then_some(()));
        assert!(!agent.controls().iter().any(Control::is_final), "{point}");
        let (records, state) = agent.read();
        assert_eq!(state, State::CaughtUp, "{point}");
        assert!(records.iter().enumerate().all(|(n, record)| record.seq == n as u64));
        assert!(sweep(&[&agent.nonce], agent.cgroup().as_deref(), Before::Nobody, LONG).clean);
    }
}

#[cfg(feature = "fault-points")]
#[test]
fn shim_killed_after_the_exit_record_has_reported_it() {
    let mut agent = Agent::script("echo all; exit 4");
    agent.start_faulty(Some("shim.exited_written")).gone();
    assert_eq!(agent.stdout(), "all\n");
    assert!(matches!(agent.exited(), Control::Exited { code: Some(4), .. }));
}

#[test]
fn processes_of_a_dead_shim_are_swept_by_nonce() {
    let script = "for i in 1 2 3; do setsid sh -c 'trap \"\" TERM PIPE HUP; echo up >> up; while \
        :; do sleep 1; done' & done; wait";
    let mut agent = Agent::script(script);
    agent.launch.cgroup = false;
    agent.start();
    let up = agent.root.path().join("up");
    wait_for("three grandchildren", || {
        (std::fs::read_to_string(&up).ok()?.lines().count() == 3).then_some(())
    });
    let agent_id = agent.agent_id();
    agent.kill_shim();
    wait_for("the agent's death", || (!agent_id.is_alive()).then_some(()));
    assert!(
        !by_nonce(&agent.nonce).is_empty(),
        "the grandchildren had to survive for this test to mean anything"
    );
    let report = sweep(&[&agent.nonce], None, Before::Nobody, LONG);
    assert!(report.clean && report.killed >= 3 && report.survivors.is_empty(), "{report:?}");
    assert!(by_nonce(&agent.nonce).is_empty());
    assert_eq!(sweep(&[&agent.nonce], None, Before::Nobody, LONG).killed, 0);
}

#[test]
fn cgroup_contains_processes_with_a_hidden_environment() {
    let mut agent =
        Agent::script("env -i PATH=/usr/bin:/bin setsid sh -c 'echo $$ > pid; sleep 600' & wait");
    agent.start();
    let file = agent.root.path().join("pid");
    let pid =
        wait_for("the grandchild", || std::fs::read_to_string(&file).ok()?.trim().parse().ok());
    let grandchild = ProcessId::of(pid).unwrap();
    let meta = meta::read(&agent.dir()).unwrap().unwrap();
    agent.kill_shim();
    let report = sweep(&[&agent.nonce], meta.cgroup.as_deref(), Before::Nobody, LONG);
    assert!(report.clean);
    if meta.containment.starts_with("cgroup") {
        wait_for("the grandchild's death", || (!grandchild.is_alive()).then_some(()));
        assert!(!meta.cgroup.unwrap().exists());
    } else {
        // Nothing else could have found it, and the containment does not claim so.
        eprintln!("no cgroup can be made here: {}", meta.containment);
        let _ = muleteer_process::identity::Pinned::open_exact(grandchild)
            .and_then(|pinned| pinned.signal(libc::SIGKILL));
    }
}

#[test]
fn the_torn_tail_of_an_old_epoch_is_its_end() {
    let mut agent = Agent::script("echo one; sleep 0.05; echo two; sleep 600");
    agent.start();
    wait_for("both lines", || (agent.stdout() == "one\ntwo\n").then_some(()));
    agent.kill_shim();
    sweep(&[&agent.nonce], agent.cgroup().as_deref(), Before::Nobody, LONG);
    let path = segment_path(&agent.spool(), Cursor::start_of(1));
    let length = std::fs::metadata(&path).unwrap().len();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(length - 2).unwrap();
    let (records, state) = agent.read();
    assert!(matches!(state, State::Torn { bytes } if bytes > 0));
    assert_eq!(records.len(), 2, "spawned and the first line");
    agent.launch.epoch = 2;
    agent.launch.argv = vec!["echo".into(), "three".into()];
    agent.start().gone();
    let mut reader = Reader::open(&agent.spool());
    let torn = reader.read(Cursor::default(), 1 << 20).unwrap();
    assert!(matches!(torn.state, State::Torn { .. }));
    assert_eq!(torn.next, Cursor::start_of(2));
    assert_eq!(agent.stdout(), "one\nthree\n");
    assert_eq!(
        std::fs::metadata(&path).unwrap().len(),
        length - 2,
        "nobody touches an older epoch"
    );
}
