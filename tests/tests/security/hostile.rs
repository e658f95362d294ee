//! Input that no well-meaning client would send or print. It harms only its sender.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_protocol::v1::{Command, Reply, Request, ServerFrame, Spawn};
use muleteer_tests::wire::{self, Wire};
use muleteer_tests::{Daemon, PATIENCE, World, program, skip, wait::holds_for, wait_until};
use std::fs::Permissions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::Duration;

/// Longer than any deadline of the daemon for a frame that has begun.
const CLOSED_WITHIN: Duration = Duration::from_secs(40);

fn still_serves(world: &World, daemon: &Daemon) {
    assert!(daemon.is_alive(), "the daemon died:\n{}", daemon.log());
    assert_eq!(world.status()["daemon"]["pid"], daemon.pid());
}

fn resident_kilobytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn malformed_frames_end_their_own_connection_only() {
    let world = World::new();
    let daemon = world.daemon();
    let bodies: [&[u8]; 6] =
        [b"", b"\xc1", b"hello", b"\x81\xa1t\xa5hello", &[0xff; 512], &[0x91; 60_000]];
    for body in bodies {
        let mut wire = Wire::connect(&world);
        let _ = wire.raw(&wire::header(body.len() as u32));
        let _ = wire.raw(body);
        wire.expect_closed(CLOSED_WITHIN);
        let mut wire = Wire::greeted(&world, true);
        assert!(matches!(wire.receive(), Some(ServerFrame::Welcome(_))));
        let _ = wire.raw(&wire::header(body.len() as u32));
        let _ = wire.raw(body);
        wire.expect_closed(CLOSED_WITHIN);
    }
    still_serves(&world, &daemon);
    world.finish(Some(daemon));
}

#[test]
fn a_huge_frame_is_refused_before_its_body_is_read() {
    let world = World::new();
    let daemon = world.daemon();
    let before = resident_kilobytes(daemon.pid());
    let mut open = vec![];
    for _ in 0..32 {
        let mut wire = Wire::connect(&world);
        let _ = wire.raw(&wire::header(u32::MAX));
        let _ = wire.raw(&[0; 4096]);
        open.push(wire);
    }
    for wire in &mut open {
        wire.expect_closed(CLOSED_WITHIN);
    }
    let grown = resident_kilobytes(daemon.pid()).saturating_sub(before);
    assert!(grown < 32 * 1024, "the daemon grew by {grown} KB");
    still_serves(&world, &daemon);
    world.finish(Some(daemon));
}

#[test]
fn slow_and_half_open_peers_do_not_block_others() {
    let world = World::new();
    let daemon = world.daemon();
    let silent: Vec<UnixStream> =
        (0..64).map(|_| UnixStream::connect(wire::socket(&world)).unwrap()).collect();
    let mut dripping = Wire::connect(&world);
    dripping.raw(&wire::header(1000)[..2]).unwrap();
    still_serves(&world, &daemon);
    dripping.expect_closed(CLOSED_WITHIN);
    let mut half = Wire::greeted(&world, true);
    half.stream.shutdown(std::net::Shutdown::Write).unwrap();
    half.expect_closed(CLOSED_WITHIN);
    still_serves(&world, &daemon);
    drop(silent);
    world.finish(Some(daemon));
}

/// Peers that connect and send nothing, or stop in the middle, once took all places for ever.
#[test]
fn idle_peers_do_not_exclude_others() {
    const PEERS: usize = 300;
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let socket = wire::socket(&world);
    let silent: Vec<UnixStream> =
        (0..PEERS).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    still_serves(&world, &daemon);
    drop(silent);
    let key = std::fs::read_to_string(world.state().join("operator.key")).unwrap();
    for key in [Some(key.trim().to_string()), None] {
        let connect = || Wire::greeting(UnixStream::connect(&socket).unwrap(), key.clone());
        let greeted: Vec<Wire> = (0..PEERS).map(|_| connect()).collect();
        still_serves(&world, &daemon);
        let id = world.spawn(&repo, "true", &[]).ok();
        assert_eq!(world.wait_for_end(&id)["state"], "success");
        drop(greeted);
    }
    world.finish(Some(daemon));
}

/// A mark of no dispatch belongs to an agent, or to a process that copied it, so even the operator
/// key gives it no rights.
#[test]
fn a_process_with_an_unknown_nonce_may_only_read() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = world.spawn(&repo, "while [ ! -e go ]; do sleep 0.05; done", &[]).ok();
    world.wait_for_state(&id, &["running"]);
    let ask = |args: &[&str]| world.muleteer(args).env("MULETEER_NONCE", "0123456789abcdef").run();
    ask(&["status", &id, "--json"]).expect_code(0);
    for args in [&["kill", &id, "--json"][..], &["daemon", "stop", "--json"]] {
        let refused = ask(args);
        assert_eq!(
            (refused.code, refused.error_code().as_str()),
            (Some(3), "E_FORBIDDEN"),
            "{refused:?}"
        );
    }
    assert_eq!(world.dispatch(&id)["state"], "running");
    repo.write("go", "");
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    world.finish(Some(daemon));
}

/// Without a limit, a flood of connections from one agent would make all other agents and people
/// wait.
#[test]
fn connections_of_an_agent_are_limited() {
    const PER_AGENT: usize = 16;
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = world.spawn(&repo, "while [ ! -e go ]; do sleep 0.05; done", &[]).ok();
    let socket = world.state().join("agents").join(&id).join("pub/sock");
    wait_until("its agent's socket", PATIENCE, || socket.exists().then_some(()));
    let connect = || Wire::greeting(UnixStream::connect(&socket).unwrap(), None);
    let mut served: Vec<Wire> = (0..PER_AGENT).map(|_| connect()).collect();
    let is_welcome = |wire: &mut Wire| matches!(wire.receive(), Some(ServerFrame::Welcome(_)));
    assert!(served.iter_mut().all(is_welcome));
    let mut waits = connect();
    still_serves(&world, &daemon);
    waits.stream.set_nonblocking(true).unwrap();
    holds_for("that it waits", Duration::from_millis(300), || {
        waits.stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    });
    waits.stream.set_nonblocking(false).unwrap();
    drop(served.pop());
    assert!(is_welcome(&mut waits), "one that goes makes room");
    repo.write("go", "");
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    world.finish(Some(daemon));
}

#[test]
fn the_sockets_are_the_users_own() {
    let world = World::new();
    let daemon = world.daemon();
    let socket = wire::socket(&world);
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&socket), 0o600);
    assert_eq!(mode(socket.parent().unwrap()), 0o700);
    assert_eq!(mode(&world.state().join("operator.key")), 0o600);
    world.finish(Some(daemon));
}

/// Another user gets nothing, even if somebody loosened the directories' modes by hand.
#[test]
fn another_user_is_rejected_on_an_open_socket() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        skip::skip("another_user_is_refused", "only root can be another user");
        return;
    }
    let world = World::new();
    let daemon = world.daemon();
    let socket = wire::socket(&world);
    let open = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap()
    };
    for folder in socket.ancestors().skip(1).take_while(|folder| folder.starts_with(world.path())) {
        open(folder, 0o711);
    }
    open(&socket, 0o666);
    let theirs = world.path().join("muleteer-of-another");
    program::copy(&world.program(), &theirs);
    let output = std::process::Command::new(&theirs)
        .args(["status", "--json", "--socket"])
        .arg(&socket)
        .env_clear()
        .env("HOME", "/nonexistent")
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("E_FORBIDDEN") && said.contains("another user"), "{said}");
    still_serves(&world, &daemon);
    world.finish(Some(daemon));
}

/// A sandbox takes from its programs the way to more rights, and may hide whose they are.
#[test]
fn sandboxed_peer_without_a_key_may_only_read() {
    let deprived = std::fs::read_to_string("/proc/self/status").unwrap().contains("NoNewPrivs:\t1");
    let setpriv = std::process::Command::new("setpriv").arg("--version").output();
    if deprived || !setpriv.is_ok_and(|output| output.status.success()) {
        skip::skip("who_comes_from_a_sandbox", "there is no setpriv, or this is a sandbox itself");
        return;
    }
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = world.spawn(&repo, "while [ ! -e go ]; do sleep 0.05; done", &[]).ok();
    let socket = wire::socket(&world);
    let ask = |sandbox: &[&str], verb: &str| {
        let mut command = std::process::Command::new("setpriv");
        world.environment(&mut command);
        // That directory has no key.
        command
            .env("XDG_STATE_HOME", world.path().join("elsewhere"))
            .args(sandbox)
            .arg(world.program());
        let output = command
            .args(["--socket", socket.to_str().unwrap(), verb, &id, "--json"])
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    world.wait_for_state(&id, &["running"]);
    let sandbox = ["--no-new-privs"];
    assert_eq!(ask(&sandbox, "status").0, Some(0));
    let (code, said) = ask(&sandbox, "kill");
    assert!(code == Some(3) && said.contains("E_FORBIDDEN"), "{code:?} {said}");
    assert_eq!(world.dispatch(&id)["state"], "running");
    assert_eq!(ask(&[], "kill").0, Some(0), "a person's own terminal may");
    world.finish(Some(daemon));
}

/// The client chooses the id, so a create that it repeats after a lost reply is answered and not
/// executed again.
#[test]
fn a_repeated_create_is_answered_and_not_repeated() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let wanted = Spawn {
        id: "twicetwice".into(),
        role: "developer".into(),
        project: repo.to_str().into(),
        prompt: "do it".into(),
        backend: Some("subprocess".into()),
        command: Some(Command::Shell("echo start >> effects".into())),
        env: vec![
            ("PATH".into(), std::env::var("PATH").unwrap()),
            ("HOME".into(), world.home().to_str().unwrap().into()),
        ],
        ..Spawn::default()
    };
    let create = |spawn: &Spawn| {
        let mut wire = Wire::greeted(&world, true);
        assert!(matches!(wire.receive(), Some(ServerFrame::Welcome(_))));
        wire.request(Request::Spawn(Box::new(spawn.clone())));
        wire.receive()
    };
    for round in 0..3 {
        match create(&wanted) {
            Some(ServerFrame::Reply { body: Reply::Spawned { dispatch_id, .. }, .. }) => {
                assert_eq!(dispatch_id, wanted.id)
            }
            other => panic!("round {round}: {other:?}"),
        }
        if round == 1 {
            daemon.kill_9();
            daemon = world.daemon();
        }
    }
    assert_eq!(world.wait_for_end(&wanted.id)["state"], "success");
    assert_eq!(repo.effects("effects"), ["start"]);
    assert_eq!(world.events_of(&wanted.id, "dispatch_created").len(), 1);
    match create(&Spawn { prompt: "something else".into(), ..wanted }) {
        Some(ServerFrame::Error { error, .. }) => assert_eq!(error.code, "E_ID_TAKEN"),
        other => panic!("the same id with other content: {other:?}"),
    }
    world.finish(Some(daemon));
}

/// Many clients want one id at the same moment for different work. One gets it, and only its work
/// runs.
#[test]
fn concurrent_creates_of_one_id_have_one_winner() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let answers: Vec<_> = std::thread::scope(|scope| {
        let create = |n: usize| {
            let spawn = Spawn {
                id: "onlyonewin".into(),
                role: "developer".into(),
                project: repo.to_str().into(),
                prompt: format!("prompt {n}"),
                backend: Some("subprocess".into()),
                command: Some(Command::Shell(format!(
                    "cat >> effects; echo ' command {n}' >> effects"
                ))),
                env: vec![("PATH".into(), std::env::var("PATH").unwrap())],
                ..Spawn::default()
            };
            let mut wire = Wire::greeted(&world, true);
            assert!(matches!(wire.receive(), Some(ServerFrame::Welcome(_))));
            wire.request(Request::Spawn(Box::new(spawn)));
            wire.receive()
        };
        let askers: Vec<_> = (0..8).map(|n| scope.spawn(move || create(n))).collect();
        askers.into_iter().map(|asker| asker.join().unwrap()).collect()
    });
    let won = |answer: &Option<ServerFrame>| matches!(answer, Some(ServerFrame::Reply { .. }));
    let winners: Vec<_> = (0..8).filter(|n| won(&answers[*n])).collect();
    assert_eq!(winners.len(), 1, "{answers:?}");
    for answer in answers.iter().filter(|answer| !won(answer)) {
        assert!(
            matches!(answer, Some(ServerFrame::Error { error, .. }) if error.code == "E_ID_TAKEN"),
            "{answer:?}"
        );
    }
    assert_eq!(world.wait_for_end("onlyonewin")["state"], "success");
    let n = winners[0];
    assert_eq!(repo.effects("effects"), [format!("prompt {n} command {n}")]);
    world.finish(Some(daemon));
}

#[test]
fn an_agent_that_calls_operator_verbs_is_refused() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let victim = world
        .spawn(&repo, "echo up >> victim; while [ ! -e done ]; do sleep 0.05; done", &[])
        .ok();
    wait_until("the victim to run", PATIENCE, || {
        (!repo.effects("victim").is_empty()).then_some(())
    });
    let key = world.state().join("operator.key");
    // The agent tries its own socket; then the daemon's socket without the marks of an agent (the
    // client then even shows the operator key); then the same from an orphan in a session of its
    // own.
    let script = format!(
        r#"
        muleteer kill {victim} --json > own.json; echo $? > own.code
        muleteer daemon stop --agents stop --json > stop.json; echo $? > stop.code
        env -i PATH="$PATH" HOME="$HOME" XDG_STATE_HOME={state} \
            muleteer --socket {socket} kill {victim} --json > bare.json; echo $? > bare.code
        setsid env -i PATH="$PATH" HOME="$HOME" XDG_STATE_HOME={state} sh -c '
            muleteer --socket {socket} kill {victim} --json > orphan.json
            echo $? > orphan.code' </dev/null >/dev/null 2>&1 &
        while [ ! -e orphan.code ]; do sleep 0.05; done
        test -r {key}; true
        "#,
        socket = wire::socket(&world).display(),
        key = key.display(),
        state = world.path().join("state").display(),
    );
    let id = world.spawn(&repo, &script, &["--wait"]).run();
    assert_eq!(id.code, Some(0), "{id:?}");
    for name in ["own", "stop", "bare", "orphan"] {
        let (code, said) = (repo.read(&format!("{name}.code")), repo.read(&format!("{name}.json")));
        assert_eq!(code.trim(), "3", "{name}: {said}");
        assert!(said.contains("E_FORBIDDEN"), "{name}: {said}");
    }
    assert_eq!(world.dispatch(&victim)["state"], "running", "the victim lives");
    still_serves(&world, &daemon);
    repo.write("done", "");
    assert_eq!(world.wait_for_end(&victim)["state"], "success");
    world.finish(Some(daemon));
}

#[test]
fn two_hundred_megabytes_from_one_agent() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let other = world.spawn(&repo, "echo small; sleep 0.5; echo x >> other", &[]).ok();
    let script = "yes 'a line of sixty-three characters, and not one of them matters..' | head -c \
        209715200; \
                  echo; echo the last line";
    let flood = world.spawn(&repo, script, &["--wait"]).deadline(Duration::from_secs(180)).run();
    assert_eq!(flood.code, Some(0), "{flood:?}");
    let grown = resident_kilobytes(daemon.pid());
    assert!(grown < 300 * 1024, "the daemon holds {grown} KB: output belongs on disk");
    assert_eq!(world.wait_for_end(&other)["state"], "success");
    let id = flood.stdout.trim();
    let raw = world.muleteer(&["logs", id, "--raw"]).deadline(Duration::from_secs(180)).ok();
    assert!(raw.ends_with("the last line"), "the end of the output is kept");
    assert!(raw.len() >= 60 << 20, "64 MiB of the tail are kept by default: {}", raw.len());
    still_serves(&world, &daemon);
    world.finish(Some(daemon));
}

#[test]
fn garbage_and_a_line_without_end() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let script = r#"
        head -c 4000000 /dev/urandom
        echo
        head -c 67108864 /dev/zero | tr '\0' 'x'
        echo
        echo '{"type":"tool_call","id":7,"name":[]}'
        echo '{"type":"result","status":"success","summary":"through"}'
    "#;
    let run = world.spawn(&repo, script, &["--wait"]).deadline(Duration::from_secs(180)).run();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(world.dispatch(run.stdout.trim())["result"]["summary"], "through");
    let grown = resident_kilobytes(daemon.pid());
    assert!(grown < 300 * 1024, "the daemon holds {grown} KB");
    still_serves(&world, &daemon);
    world.finish(Some(daemon));
}

/// People see names that an agent chooses, so these must not control the terminal.
#[test]
fn names_from_agents_are_escaped_for_the_terminal() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let session = r#"{"type":"session","model":"m\u001b]0;pwn\u0007\u009b31m","session_id":"s"}"#;
    let call = r#"{"type":"tool_call","id":"a","name":"T\u001b]0;pwn\u0007\r","input":{}}"#;
    repo.write("said.jsonl", &format!("{session}\n{call}\n"));
    let id = world.spawn(&repo, "cat said.jsonl", &["--wait"]).ok();
    for verb in [&["events"][..], &["logs", &id], &["status", &id]] {
        let shown = world.muleteer(&[verb, &["--color", "always"]].concat()).ok();
        let wild = |c: &char| matches!(c, '\u{7}' | '\r' | '\u{9b}');
        assert!(
            !shown.contains("\u{1b}]") && shown.chars().all(|c| !wild(&c)),
            "{verb:?}: {shown:?}"
        );
    }
    let events = world.muleteer(&["events"]).ok();
    assert!(events.contains("m]0;pwn"), "it is shown all the same: {events}");
    world.finish(Some(daemon));
}

/// Users who are not root run the doctor's check of the kernel too, and the sandbox works for them.
#[test]
fn unprivileged_user_gets_the_same_namespace_check() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        skip::skip("a_user_who_is_not_root", "only root can be another user");
        return;
    }
    use std::os::unix::process::CommandExt;
    let world = World::new();
    std::fs::set_permissions(world.path(), Permissions::from_mode(0o711)).unwrap();
    let theirs = world.path().join("muleteer-of-another");
    program::copy(&world.program(), &theirs);
    let asked = |command: &mut std::process::Command| {
        let output = command.args(["probe", "namespaces"]).current_dir("/").output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_string()
    };
    let root = asked(&mut std::process::Command::new(&theirs));
    let nobody = asked(std::process::Command::new(&theirs).uid(NOBODY).gid(NOBODY));
    assert!(nobody == root || nobody.starts_with("no unshare"), "root: {root}; nobody: {nobody}");
}

/// An agent's damage to its own journal must not affect others.
#[test]
fn endless_journal_does_not_block_other_journals() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = world.spawn(&repo, "ln -sf /dev/zero \"$MULETEER_JOURNAL\"", &["--wait"]).ok();
    let other = world.spawn(&repo, "true", &["--wait"]).ok();
    // At the dispatch's end Muleteer makes the journal again, because the agent's replacement is no
    // journal. So the test replaces it again.
    let journal = world.dispatch(&id)["journal"].as_str().unwrap().to_string();
    let _ = std::fs::remove_file(&journal);
    std::os::unix::fs::symlink("/dev/zero", &journal).unwrap();
    let listed = world.muleteer(&["journal", "--all", "--json"]).run().expect_code(0).json();
    let last = |id: &str| {
        let rows = listed["journals"].as_array().unwrap();
        rows.iter()
            .find(|row| row["dispatch_id"] == id)
            .map(|row| row["last_entry"].as_str().unwrap().to_string())
    };
    assert!(last(&id).unwrap().contains("cannot read"), "{listed}");
    assert!(last(&other).unwrap().contains("finished"), "{listed}");
    world.muleteer(&["journal", &id]).run().expect_code(4);
    world.finish(Some(daemon));
}

/// A limit that a command prints holds back only that command.
#[test]
fn printed_rate_limits_of_a_command_affect_only_itself() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let lines = [
        r#"{"type":"rate_limit","resets_in_s":1e300}"#,
        r#"{"type":"result","ok":false,"error":"rate_limit","status":429}"#,
    ];
    let script = lines.map(|line| format!("echo '{line}'")).join("; ");
    let struck = world.spawn(&repo, &script, &[]).ok();
    wait_until("the limit to be on record", PATIENCE, || {
        (!world.events_of(&struck, "rate_limited").is_empty()).then_some(())
    });
    world.spawn(&repo, "echo fine", &["--wait"]).run().expect_code(0);
    world.muleteer(&["kill", &struck]).run();
    world.finish(Some(daemon));
}

/// A stopped shim ends no agent, counts no time and answers nobody.
#[test]
fn an_agent_that_stops_its_shim_is_ended_all_the_same() {
    let stopping = "kill -STOP $PPID; echo stopped >> effects; sleep 1000";
    let again =
        "trap '' TERM; while :; do kill -STOP $PPID; echo stopped >> effects; sleep 0.01; done";
    let world = World::new();
    let daemon = world.daemon();
    let faults = |id: &str| {
        let faults = world.events_of(id, "fault").into_iter();
        faults.map(|fault| fault["message"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    let start = |name: &str, script: &str, more: &[&str]| {
        let repo = world.repo(name);
        let id = world.spawn(&repo, script, more).ok();
        wait_until("the shim to be stopped", PATIENCE, || {
            (!repo.effects("effects").is_empty()).then_some(())
        });
        id
    };
    let once = start("once", stopping, &[]);
    world.muleteer(&["kill", &once]).run().expect_code(0);
    assert_eq!(world.wait_for_end(&once)["state"], "killed");
    let told = faults(&once);
    assert!(told.len() == 1 && told[0].contains("sending SIGCONT"), "{told:?}");

    let again = start("again", again, &[]);
    world.muleteer(&["kill", &again]).run().expect_code(0);
    assert_eq!(world.wait_for_end(&again)["state"], "killed");
    let told = faults(&again);
    assert!(
        told.iter()
            .all(|told| told.contains("sending SIGCONT")
                || told.contains("killing it and its agent")),
        "{told:?}"
    );

    let limited = start("limited", stopping, &["--timeout", "2s"]);
    let ended = world.wait_for_end(&limited);
    assert_eq!(ended["state"], "failed", "{ended}");
    assert!(
        world.events_of(&limited, "dispatch_finished")[0].to_string().contains("timeout"),
        "{ended}"
    );

    let left = start("left", stopping, &[]);
    world.muleteer(&["daemon", "stop", "--agents", "stop"]).run().expect_code(0);
    assert_eq!(world.dispatch(&left)["state"], "killed");
    world.finish(Some(daemon));
}

/// The shim has not yet written who it is, so the daemon does not know its process.
#[test]
fn shim_stopped_before_its_hello_continues() {
    let world = World::new();
    let repo = world.repo("repo");
    let once = world.path().join("once");
    let variables =
        [("MULETEER_FAULT", "shim.begun=stop"), ("MULETEER_FAULT_ONCE", once.to_str().unwrap())];
    let daemon = world.daemon_with(&variables);
    let id = world.spawn(&repo, "echo start >> effects", &["--wait"]).run().expect_code(0);
    assert_eq!(repo.effects("effects"), ["start"]);
    assert_eq!(world.events_of(id.stdout.trim(), "fault").len(), 1);
    world.finish(Some(daemon));
}
