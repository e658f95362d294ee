#![allow(clippy::unwrap_used)]
//! An agent's life under its shim, with real processes: start, output, commands, end.

mod common;

use common::{Agent, PATIENCE, outcome, wait_for, write};
use muleteer_process::identity::{Pinned, ProcessId};
use muleteer_protocol::shim::v1::{FromShim, Outcome, RefusedCode, ToShim};
use muleteer_shim::attach::{self, Client};
use muleteer_shim::control::{Cause, Control};
use muleteer_shim::launch::StdinMode;
use muleteer_shim::meta;
use muleteer_shim::record::Stream;
use std::time::Duration;

#[test]
fn an_agent_runs_prints_and_exits() {
    let mut agent = Agent::script("echo out; echo err >&2; exit 3");
    agent.start().gone();
    assert_eq!(agent.stdout(), "out\n");
    assert_eq!(agent.stream(Stream::Stderr), b"err\n");
    let controls = agent.controls();
    assert!(matches!(controls[0], Control::Spawned { .. }), "{controls:?}");
    assert_eq!(controls[1], Control::Exited { code: Some(3), signal: None, cause: Cause::Exited });
    assert_eq!(controls[2], Control::Ended { survivors: 0, left: vec![] });
    assert_eq!(controls.len(), 3);
    let records = agent.read().0;
    assert!(records.iter().enumerate().all(|(n, record)| record.seq == n as u64));
    assert!(agent.shim.as_mut().unwrap().wait().unwrap().success());
    assert!(!agent.dir().join("sock").exists());
}

/// Processes that an agent leaves when it dies, some of them already dead, are ended at once, and
/// the shim waits for no unneeded grace period.
#[test]
fn remaining_processes_end_at_once_on_sigterm() {
    let mut agent =
        Agent::script("true & (sleep 60 & sleep 60) & echo up; while :; do sleep 60; done");
    agent.launch.timing.term_grace_ms = 600_000;
    agent.start();
    let id = agent.agent_id();
    wait_for("its output", || (agent.stdout() == "up\n").then_some(()));
    let shim = agent.shim.as_ref().unwrap().id();
    // On Linux `ps` shows the shim's name, whatever file it was executed from.
    if let Ok(name) = std::fs::read_to_string(format!("/proc/{shim}/comm")) {
        assert_eq!(name, "muleteer-shim\n");
    }
    Pinned::open_exact(id).unwrap().signal(libc::SIGKILL).unwrap();
    agent.gone().nothing_left();
    let controls = agent.controls();
    let exited = Control::Exited { code: None, signal: Some(libc::SIGKILL), cause: Cause::Exited };
    assert_eq!(controls[1], exited);
    let [_, _, Control::Ended { survivors: 0, left }] = &controls[..] else {
        panic!("{controls:?}")
    };
    assert!(left.len() >= 2 && left.iter().any(|process| process.name == "sleep"), "{left:?}");
}

/// Before a shim has written its identity, it is found by the pid with which it was started. The
/// pid of another process counts for nothing.
#[cfg(target_os = "linux")]
#[test]
fn shim_without_identity_is_found_by_its_pid_or_by_a_search() {
    let mut agent = Agent::script("exec sleep 600");
    agent.start();
    drop(agent.attached());
    let (shim, own, dir) = (agent.shim.as_ref().unwrap().id(), agent.agent_id().pid, agent.dir());
    std::fs::File::options().write(true).truncate(true).open(dir.join(attach::LOCK)).unwrap();
    assert_eq!(meta::read(&dir).unwrap().map(|meta| meta.shim), None);
    for forked in [Some(shim), None, Some(std::process::id()), Some(own)] {
        assert_eq!(attach::shim_of(&dir, forked).map(|found| found.pid), Some(shim), "{forked:?}");
    }
}

#[test]
fn a_program_that_cannot_be_started_is_no_exit() {
    for argv in [&["no-such-program"][..], &["/etc/passwd"]] {
        let mut agent = Agent::new(argv);
        agent.start().gone();
        let controls = agent.controls();
        assert!(
            controls.iter().any(|c| matches!(c, Control::StartFailed { errno, .. } if *errno != 0)),
            "{controls:?}"
        );
        assert!(!controls.iter().any(|c| matches!(c, Control::Exited { .. })), "{controls:?}");
        assert_eq!(controls.last(), Some(&Control::Ended { survivors: 0, left: vec![] }));
    }
    let mut agent = Agent::script("true");
    agent.launch.cwd = agent.root.path().join("not-there");
    agent.start().gone();
    assert!(matches!(agent.exited(), Control::StartFailed { errno: libc::ENOENT, .. }));
}

#[test]
fn fifty_megabytes_arrive_intact() {
    let mut agent = Agent::script("seq 1 7000000 | head -c 50000000; echo done >&2");
    agent.start();
    assert_eq!(
        agent.exited(),
        Control::Exited { code: Some(0), signal: None, cause: Cause::Exited }
    );
    agent.gone();
    let mut expected = String::with_capacity(50_000_010);
    for n in 1.. {
        expected.push_str(&format!("{n}\n"));
        if expected.len() >= 50_000_000 {
            break;
        }
    }
    expected.truncate(50_000_000);
    let printed = agent.stream(Stream::Stdout);
    assert_eq!(printed.len(), expected.len());
    assert_eq!(crc32c::crc32c(&printed), crc32c::crc32c(expected.as_bytes()));
    assert!(
        muleteer_shim::spool::segments(&agent.spool()).unwrap().len() > 1,
        "the spool was never rotated"
    );
}

#[test]
fn the_environment_is_the_launchs_and_the_lock_is_not_inherited() {
    let mut agent = Agent::script("env; ls -l /proc/self/fd; echo umask $(umask)");
    agent.launch.env.push(("SECRET".into(), "s3cret".into()));
    agent.launch.stdin = StdinMode::Null;
    agent.start().gone();
    let printed = agent.stdout();
    assert!(printed.contains("SECRET=s3cret\n"), "{printed}");
    assert!(printed.contains(&format!("MULETEER_NONCE={}\n", agent.nonce)), "{printed}");
    assert!(!printed.contains("HOME="), "{printed}");
    assert!(
        !printed.contains("lock") && !printed.contains("sock") && !printed.contains("spool"),
        "{printed}"
    );
    assert!(!printed.contains("umask 0077"), "the shim's umask leaked: {printed}");
}

#[test]
fn prompts_and_answers_pass_through_the_shim() {
    let mut agent = Agent::script("cat; until [ -e stop ]; do sleep 0.02; done");
    agent.start();
    let mut client = agent.attached();
    client.send(&write(1, "first\n", false)).unwrap();
    assert_eq!(outcome(&mut client, 1), Outcome::Ok);
    // Repeated: answered, but not carried out again.
    client.send(&write(1, "first\n", false)).unwrap();
    assert_eq!(outcome(&mut client, 1), Outcome::Ok);
    client.send(&write(2, "second\n", true)).unwrap();
    assert_eq!(outcome(&mut client, 2), Outcome::Ok);
    client.send(&write(3, "third\n", false)).unwrap();
    assert_eq!(outcome(&mut client, 3), Outcome::StdinClosed);
    std::fs::write(agent.root.path().join("stop"), "").unwrap();
    agent.gone();
    assert_eq!(agent.stdout(), "first\nsecond\n");
    let written = agent
        .controls()
        .iter()
        .filter(|c| matches!(c, Control::StdinWritten { ok: true, .. }))
        .count();
    assert_eq!(written, 2);
}

#[test]
fn large_prompt_does_not_block_the_shim() {
    let mut agent = Agent::script("read first; echo got $first; wc -c");
    agent.start();
    let mut client = agent.attached();
    let big = "x".repeat(9 << 20);
    client.send(&write(1, &big, false)).unwrap();
    // The agent reads nothing yet after a line that never ends; the shim still answers.
    client.send(&ToShim::Query).unwrap();
    client
        .receive_until(PATIENCE, |frame| matches!(frame, FromShim::Status { .. }).then_some(()))
        .unwrap();
    client.send(&write(2, &format!("\n{big}"), true)).unwrap();
    wait_for("both to be taken", || {
        client.send(&write(2, &format!("\n{big}"), true)).unwrap();
        (outcome(&mut client, 2) == Outcome::Ok).then_some(())
    });
    agent.gone();
    assert!(agent.stdout().ends_with(&format!("{}\n", 9 << 20)));
}

#[test]
fn adoption_finds_the_agent_as_it_was() {
    let mut agent = Agent::script("echo one; read line; echo $line; exit 0");
    agent.start();
    let id = agent.agent_id();
    let mut first = agent.attached();
    first.send(&ToShim::Query).unwrap();
    drop(first);
    // A new daemon of a newer generation, after the old one died.
    let meta = meta::read(&agent.dir()).unwrap().unwrap();
    assert_eq!(meta.agent, Some(id));
    assert_eq!(meta.shim.pid, agent.shim.as_ref().unwrap().id());
    assert!(agent.is_alive());
    let mut second = agent.client_of(2);
    match second.receive(PATIENCE).unwrap() {
        FromShim::HelloOk { shim_pid, agent_pid, epoch, nonce, .. } => {
            assert_eq!((shim_pid, agent_pid, epoch), (meta.shim.pid, id.pid, 1));
            assert_eq!(nonce, meta.nonce);
        }
        other => panic!("{other:?}"),
    }
    second.send(&write(9, "two\n", true)).unwrap();
    assert_eq!(outcome(&mut second, 9), Outcome::Ok);
    agent.gone();
    assert_eq!(agent.stdout(), "one\ntwo\n");
}

#[test]
fn an_older_daemon_is_fenced_off() {
    let mut agent = Agent::new(&["cat"]);
    agent.start();
    let mut old = agent.attached();
    let mut new = agent.client_of(5);
    assert!(matches!(new.receive(PATIENCE).unwrap(), FromShim::HelloOk { .. }));
    let refused = |frame: &FromShim| match frame {
        FromShim::Refused { code, .. } => Some(*code),
        _ => None,
    };
    assert_eq!(old.receive_until(PATIENCE, refused).unwrap(), RefusedCode::StaleGeneration);
    let _ = old.send(&write(1, "from the old one\n", false));
    let mut again = agent.client_of(4);
    assert_eq!(again.receive_until(PATIENCE, refused).unwrap(), RefusedCode::StaleGeneration);
    new.send(&write(2, "from the new one\n", true)).unwrap();
    agent.gone();
    assert_eq!(agent.stdout(), "from the new one\n");
}

#[test]
fn a_wrong_key_and_garbage_end_only_their_connection() {
    let mut agent = Agent::new(&["cat"]);
    agent.start();
    let mut good = agent.attached();
    let mut wrong = Client::connect_with(&agent.dir(), 99, [7; 16]).unwrap();
    assert!(matches!(
        wrong.receive(PATIENCE).unwrap(),
        FromShim::Refused { code: RefusedCode::BadKey, .. }
    ));
    let mut garbage = Client::connect_silently(&agent.dir(), 1).unwrap();
    garbage.send_raw(&[0xff; 64]).unwrap();
    assert!(matches!(
        garbage.receive(PATIENCE).unwrap(),
        FromShim::Refused { code: RefusedCode::Malformed, .. }
    ));
    let mut early = Client::connect_silently(&agent.dir(), 1).unwrap();
    early.send(&ToShim::Query).unwrap();
    assert!(matches!(
        early.receive(PATIENCE).unwrap(),
        FromShim::Refused { code: RefusedCode::Malformed, .. }
    ));
    // Half-open connections, more than the limit.
    let strangers: Vec<_> =
        (0..20).map(|_| Client::connect_silently(&agent.dir(), 1).unwrap()).collect();
    let mut second = agent.attached();
    second.send(&ToShim::Query).unwrap();
    second
        .receive_until(PATIENCE, |frame| matches!(frame, FromShim::Status { .. }).then_some(()))
        .unwrap();
    drop(strangers);
    good.send(&write(1, "still here\n", true)).unwrap();
    agent.gone();
    assert_eq!(agent.stdout(), "still here\n");
}

#[test]
fn terminate_ends_a_grandchild_that_fled_and_ignores_term() {
    let script = "setsid sh -c 'trap \"\" TERM HUP PIPE; echo $$ > grandchild; while :; do sleep \
        1; done' & trap '' TERM; while :; do sleep 1; done";
    let mut agent = Agent::script(script);
    agent.start();
    let file = agent.root.path().join("grandchild");
    let grandchild: u32 =
        wait_for("the grandchild", || std::fs::read_to_string(&file).ok()?.trim().parse().ok());
    let grandchild = ProcessId::of(grandchild).unwrap();
    let mut client = agent.attached();
    client.send(&ToShim::Terminate { idem: [1; 16], grace_ms: 100 }).unwrap();
    assert_eq!(outcome(&mut client, 1), Outcome::Ok);
    agent.gone();
    assert!(!grandchild.is_alive());
    assert_eq!(
        agent.exited(),
        Control::Exited { code: None, signal: Some(libc::SIGKILL), cause: Cause::Terminated }
    );
    let controls = agent.controls();
    assert!(matches!(controls.last(), Some(Control::Ended { survivors: 0, .. })), "{controls:?}");
    agent.nothing_left();
}

#[test]
fn remaining_processes_do_not_delay_the_exit() {
    // The grandchild holds the pipes open and floods them.
    let mut agent = Agent::script(
        "setsid sh -c 'trap \"\" TERM; yes' & sleep 0.2; echo last words >&2; exit 5",
    );
    agent.launch.timing.term_grace_ms = 200;
    agent.start();
    assert_eq!(
        agent.exited(),
        Control::Exited { code: Some(5), signal: None, cause: Cause::Exited }
    );
    agent.gone();
    agent.nothing_left();
    let records = agent.read().0;
    let exited =
        records.iter().position(|r| matches!(r.control(), Some(Control::Exited { .. }))).unwrap();
    let last = records.iter().position(|r| r.stream == Stream::Stderr).unwrap();
    assert!(last < exited, "what it printed stands before its end");
}

#[test]
fn the_lease_lets_an_agent_finish_its_turn() {
    let mut agent = Agent::script("cat; echo finished; exit 0");
    agent.launch.timing.lease_ms = 200;
    agent.start().gone();
    assert_eq!(agent.stdout(), "finished\n");
    assert_eq!(
        agent.exited(),
        Control::Exited { code: Some(0), signal: None, cause: Cause::LeaseExpired }
    );
}

#[test]
fn the_lease_ends_one_that_does_not_and_heartbeats_renew_it() {
    let mut agent = Agent::script("trap '' TERM; while :; do sleep 0.1; done");
    agent.launch.timing.lease_ms = 400;
    agent.launch.timing.lease_grace_ms = 100;
    agent.start();
    let mut client = agent.attached();
    client.send(&ToShim::Heartbeat { lease_ms: 60_000 }).unwrap();
    let left = client
        .receive_until(PATIENCE, |frame| match frame {
            FromShim::Status { lease_left_ms, .. } => Some(*lease_left_ms),
            _ => None,
        })
        .unwrap();
    assert!(left > 30_000, "{left}");
    client.send(&ToShim::Heartbeat { lease_ms: 50 }).unwrap();
    drop(client);
    agent.gone();
    let killed =
        Control::Exited { code: None, signal: Some(libc::SIGKILL), cause: Cause::LeaseExpired };
    assert_eq!(agent.exited(), killed);
    assert!(agent.controls().contains(&Control::LeaseExpired));
}

#[test]
fn limits_are_enforced_without_a_daemon() {
    type Limit = fn(&mut Agent);
    let cases: [(&str, Limit); 4] = [
        ("sleep 60", |agent| agent.launch.limits.deadline_ms = 200),
        ("for i in 1 2 3 4 5 6; do sleep 60 & done; wait", |agent| {
            agent.launch.limits.max_procs = 3
        }),
        ("x=$(head -c 60000000 /dev/zero | tr '\\0' x); sleep 60", |agent| {
            agent.launch.limits.max_memory_bytes = 40 << 20;
        }),
        (
            "d=$MULETEER_TEST_DIR/private/a/b; mkdir -p $d; \
                head -c 3000000 /dev/zero > $d/one; cp $d/one $d/two; sleep 60",
            |agent| {
                let dir = agent.dir().display().to_string();
                agent.launch.env.push(("MULETEER_TEST_DIR".into(), dir));
                agent.launch.limits.max_private_bytes = 4 << 20;
            },
        ),
    ];
    for (script, limit) in cases {
        let mut agent = Agent::script(script);
        agent.launch.timing.sample_ms = 50;
        limit(&mut agent);
        agent.start().gone();
        let controls = agent.controls();
        assert!(
            controls.iter().any(|c| matches!(c, Control::PolicyKill { .. })),
            "{script}: {controls:?}"
        );
        assert!(
            matches!(agent.exited(), Control::Exited { cause: Cause::ShimPolicy, .. }),
            "{controls:?}"
        );
        agent.nothing_left();
    }
}

#[test]
fn signals_reach_the_agent_and_are_not_repeated() {
    let mut agent =
        Agent::script("trap 'echo caught' INT; echo ready; while :; do sleep 0.05; done");
    agent.start();
    wait_for("the trap", || agent.stdout().contains("ready").then_some(()));
    let mut client = agent.attached();
    let signal = ToShim::Signal { idem: [4; 16], signo: libc::SIGINT, group: false };
    for _ in 0..3 {
        client.send(&signal).unwrap();
        assert_eq!(outcome(&mut client, 4), Outcome::Ok);
    }
    wait_for("the signal", || agent.stdout().contains("caught").then_some(()));
    client.send(&ToShim::Signal { idem: [5; 16], signo: 4000, group: true }).unwrap();
    assert!(matches!(outcome(&mut client, 5), Outcome::Failed { .. }));
    client.send(&ToShim::Terminate { idem: [6; 16], grace_ms: 10 }).unwrap();
    agent.gone();
    assert_eq!(agent.stdout().matches("caught").count(), 1);
}

#[test]
fn an_agent_cannot_command_its_own_shim() {
    // The agent can read the key, because it has the same uid; the shim recognises it by its
    // descent.
    let mut agent = Agent::script("true");
    let own = std::env::current_exe().unwrap();
    agent.launch.argv = vec![
        own.display().to_string(),
        "--exact".into(),
        "as_an_agent".into(),
        "--nocapture".into(),
    ];
    agent
        .launch
        .env
        .push(("MULETEER_TEST_AGENT_DIR".into(), agent.dir().display().to_string()));
    agent.start().gone();
    assert!(agent.stdout().contains("answer: Ok(Refused { code: BadPeer"), "{}", agent.stdout());
}

/// Not a test by itself: [`an_agent_cannot_command_its_own_shim`] runs it as the agent.
#[test]
fn as_an_agent() {
    let Some(dir) = std::env::var_os("MULETEER_TEST_AGENT_DIR") else { return };
    let mut client = Client::connect_silently(dir.as_ref(), 1).unwrap();
    println!("answer: {:?}", client.receive(Duration::from_secs(10)));
}

#[test]
fn a_polite_end_of_the_shim_ends_the_agent_first() {
    let mut agent =
        Agent::script("trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done");
    agent.launch.timing.term_grace_ms = 30_000;
    agent.start();
    wait_for("the trap", || agent.stdout().contains("ready").then_some(()));
    let shim = agent.shim.as_ref().unwrap().id();
    muleteer_process::identity::Pinned::open(shim).unwrap().signal(libc::SIGTERM).unwrap();
    agent.gone();
    assert_eq!(agent.stdout(), "ready\nbye\n");
    assert_eq!(
        agent.exited(),
        Control::Exited { code: Some(0), signal: None, cause: Cause::Terminated }
    );
}

#[test]
fn a_stopped_agent_is_ended_too() {
    let mut agent = Agent::script("echo ready; kill -STOP $$; echo never");
    agent.start();
    let id = agent.agent_id();
    wait_for("the stop", || {
        std::fs::read_to_string(format!("/proc/{}/stat", id.pid))
            .ok()?
            .contains(") T ")
            .then_some(())
    });
    let mut client = agent.attached();
    client.send(&ToShim::Terminate { idem: [1; 16], grace_ms: 50 }).unwrap();
    agent.gone();
    assert!(matches!(agent.exited(), Control::Exited { signal: Some(libc::SIGKILL), .. }));
    assert_eq!(agent.stdout(), "ready\n");
}

#[test]
fn a_peer_that_does_not_read_is_dropped_and_costs_nothing() {
    let mut agent = Agent::new(&["cat"]);
    agent.start();
    let mut deaf = agent.attached();
    // Every query is answered, but the peer never reads the answers.
    let mut sent = 0;
    while deaf.send(&ToShim::Query).is_ok() {
        sent += 1;
        assert!(sent < 1_000_000, "the shim kept everything for a peer that reads nothing");
    }
    let mut client = agent.attached();
    client.send(&write(1, "fine\n", true)).unwrap();
    agent.gone();
    assert_eq!(agent.stdout(), "fine\n");
}
