//! Tests verbs with a real daemon: started on demand, killed, stopped, and absent.

mod support;

use serde_json::Value;
use std::io::Read;
use std::time::{Duration, Instant};
use support::{Said, User, said};

/// This is long enough for a loaded machine; no test waits for it to pass.
const DEADLINE: Duration = Duration::from_secs(30);

fn spawn(user: &User, command: &str, more: &[&str]) -> Said {
    let args =
        ["spawn", "developer", ".", "Do it", "--backend", "subprocess", "--command", command];
    user.run(&[&args[..], more].concat())
}

/// Polls until the answer fits.
fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn state(user: &User, id: &str) -> String {
    user.run(&["status", id, "--json"]).json()["dispatches"][0]["state"]
        .as_str()
        .unwrap_or_default()
        .to_string()
}

fn daemon_pid(user: &User) -> Option<u32> {
    u32::try_from(user.run(&["status", "--json"]).json()["daemon"]["pid"].as_u64()?).ok()
}

fn kill_9(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).expect("pid")).expect("pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
}

#[test]
fn spawn_starts_a_daemon_and_prints_only_the_id() {
    let user = User::new();
    let plain = spawn(&user, "cat", &[]);
    let id = plain.stdout.trim_end().to_string();
    assert_eq!((plain.code, plain.stdout.lines().count()), (0, 1), "{plain:?}");
    let access: Vec<_> = plain.stderr.lines().collect();
    assert!(
        matches!(access[..], [line] if line.starts_with("the agent may do everything")),
        "{plain:?}"
    );
    assert!(
        id.len() == 8 && id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()),
        "{id}"
    );
    assert!(daemon_pid(&user).is_some());
    let waited = user.run(&["wait", &id[..6], "--json"]);
    assert_eq!(
        (waited.code, waited.json()["dispatches"][0]["state"].as_str()),
        (0, Some("success")),
        "{waited:?}"
    );
    assert_eq!(user.run(&["logs", &id, "--raw"]).stdout, "Do it");
    let lines = user.run(&["events", "--json"]).json();
    let names: Vec<_> = lines["events"]
        .as_array()
        .expect("events")
        .iter()
        .filter_map(|event| event["event"].as_str())
        .collect();
    assert!(
        names.contains(&"dispatch_created") && names.contains(&"dispatch_finished"),
        "{names:?}"
    );
}

#[test]
fn missing_backend_has_one_error_code() {
    let user = User::new();
    for backend in ["telepathy", "acp:telepathy", "codex:telepathy"] {
        let said = user.run(&["spawn", "developer", ".", "x", "--backend", backend, "--json"]);
        assert_eq!(
            (said.code, said.json()["error"]["code"].as_str()),
            (2, Some("E_BACKEND_UNAVAILABLE")),
            "{said:?}"
        );
    }
}

#[test]
fn retained_output_follows_the_configuration() {
    let user = User::new();
    user.write(".config/muleteer/config.yaml", "retention: {output_mib: 3}\n");
    let said = spawn(&user, "true", &["--wait"]);
    let launch = user.state().join("agents").join(said.stdout.trim()).join("launch-00000001.json");
    let launch: Value =
        serde_json::from_str(&std::fs::read_to_string(launch).expect("launch")).expect("json");
    assert_eq!(launch["spool"]["retain_bytes"], 3 << 20, "{launch}");
}

/// A daemon that cannot start for a reason of its own has not lost to another daemon. The verb
/// reports the reason and tries no other daemon.
#[test]
fn verb_reports_the_reason_of_a_failed_daemon_start() {
    let user = User::new();
    assert_eq!(spawn(&user, "true", &["--wait"]).code, 0);
    assert_eq!(user.run(&["daemon", "stop"]).code, 0);
    let starts = || {
        let log = std::fs::read_to_string(user.state().join("logs/daemon.log")).expect("log");
        log.matches("error").count()
    };
    let events = user.state().join("events.jsonl");
    let good = std::fs::read_to_string(&events).expect("events");
    let bad = good.replacen("daemon_started", "daemon\u{1}started", 1);
    std::fs::write(&events, &bad).expect("write");
    let before = starts();
    let refused = spawn(&user, "true", &["--json"]);
    let error = refused.json()["error"].clone();
    assert_eq!(
        (refused.code, error["code"].as_str()),
        (3, Some("E_EVENTS_CORRUPT")),
        "{refused:?}"
    );
    assert!(error["line"].as_u64().is_some() && error["file"].as_str().is_some(), "{error}");
    assert_eq!(starts(), before + 1, "one daemon was tried, and its log has why");
    assert_eq!(std::fs::read_to_string(&events).expect("events"), bad, "nothing is changed");
    std::fs::write(&events, &good).expect("write");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    let runtime = user.path("run/muleteer");
    std::fs::set_permissions(&runtime, open).expect("mode");
    let refused = spawn(&user, "true", &["--json"]);
    assert_eq!(
        (refused.code, refused.json()["error"]["code"].as_str()),
        (3, Some("E_NOT_PRIVATE")),
        "{refused:?}"
    );
}

/// The owner of the state directory, or anybody who may write in it, could put their own key there.
#[test]
fn a_state_directory_of_others_is_refused_and_one_that_was_opened_is_closed() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let user = User::new();
    let begin = || {
        let said = spawn(&user, "true", &["--wait", "--json"]);
        assert_eq!(user.run(&["daemon", "stop"]).code, if said.code == 0 { 0 } else { 3 });
        said
    };
    assert_eq!(begin().code, 0);
    let log = || std::fs::read_to_string(user.state().join("logs/daemon.log")).expect("log");
    let key = user.state().join("operator.key");
    let first = std::fs::read_to_string(&key).expect("a key");
    std::fs::set_permissions(user.state(), PermissionsExt::from_mode(0o777)).expect("mode");
    assert_eq!(begin().code, 0);
    assert_eq!(user.state().metadata().expect("it").permissions().mode() & 0o7777, 0o700);
    assert!(log().contains("other users could write to the state directory"), "{}", log());
    assert_eq!(std::fs::read_to_string(&key).expect("a key"), first, "a good one stays");

    std::fs::write(&key, "x\n").expect("write");
    assert_eq!(begin().code, 0);
    assert_eq!(std::fs::read_to_string(&key).expect("a key").len(), first.len());
    assert!(log().contains("the operator key was invalid"), "{}", log());

    if chown(user.state(), Some(12_345), None).is_err() {
        return eprintln!("SKIPPED: only root can give a directory away");
    }
    let refused = begin();
    let error = &refused.json()["error"];
    assert_eq!((refused.code, error["code"].as_str()), (3, Some("E_NOT_PRIVATE")), "{refused:?}");
    assert!(error["hint"].as_str().is_some_and(|hint| hint.contains("XDG_STATE_HOME")), "{error}");
    chown(user.state(), Some(0), None).expect("ours again");
}

#[test]
fn wait_exits_by_the_worst_ending() {
    let user = User::new();
    let good = spawn(&user, "true", &["--wait", "--json"]);
    assert_eq!((good.code, good.json()["state"].as_str()), (0, Some("success")), "{good:?}");
    let bad = spawn(&user, "exit 3", &["--wait"]);
    assert_eq!((bad.code, bad.stdout.lines().count()), (4, 1), "{bad:?}");
    let long = spawn(&user, "sleep 600", &["--json"]);
    let id = long.json()["dispatch_id"].as_str().expect("id").to_string();
    until("it runs", || (state(&user, &id) == "running").then_some(()));
    assert_eq!(user.run(&["kill", &id, "--reason", "enough"]).code, 0);
    let ids = [
        good.json()["dispatch_id"].as_str().expect("id").to_string(),
        bad.stdout.trim().to_string(),
        id,
    ];
    assert_eq!(user.run(&["wait", &ids[0], &ids[1]]).code, 4);
    assert_eq!(user.run(&["wait", &ids[0], &ids[1], &ids[2]]).code, 6);
}

#[test]
fn follow_shows_it_to_the_end() {
    let user = User::new();
    let followed = spawn(&user, "echo one; echo two", &["--follow", "--json"]);
    assert_eq!(followed.code, 0, "{followed:?}");
    let lines = followed.lines();
    let (first, last) = (&lines[0], &lines[lines.len() - 1]);
    assert_eq!(
        (first["dispatch_id"].as_str(), last["state"].as_str()),
        (last["id"].as_str(), Some("success")),
        "{followed:?}"
    );
    let logs = user.run(&["logs", last["id"].as_str().expect("id"), "-f", "--json"]);
    let texts: Vec<_> =
        logs.lines().iter().filter_map(|line| line["text"].as_str().map(String::from)).collect();
    assert_eq!(texts, ["one", "two"], "{logs:?}");
}

#[test]
fn wait_continues_across_daemons() {
    let user = User::new();
    let id = spawn(&user, "sleep 2; echo done", &[]).stdout.trim().to_string();
    until("it runs", || (state(&user, &id) == "running").then_some(()));
    let waiting = user.command(&["wait", &id]).spawn().expect("spawn");
    kill_9(daemon_pid(&user).expect("daemon"));
    let waited = said(waiting.wait_with_output().expect("wait"));
    assert_eq!(waited.code, 0, "{waited:?}");
}

#[test]
fn recorded_state_is_read_without_a_daemon() {
    let user = User::new();
    let id = spawn(&user, "echo hello", &["--wait"]).stdout.trim().to_string();
    kill_9(daemon_pid(&user).expect("daemon"));
    until("the daemon is gone", || daemon_pid(&user).is_none().then_some(()));
    let report = user.run(&["status", "--json"]).json();
    assert_eq!(
        (report["daemon"]["running"].as_bool(), report["dispatches"][0]["state"].as_str()),
        (Some(false), Some("success"))
    );
    assert_eq!(user.run(&["logs", &id, "--raw"]).stdout, "hello\n");
    assert!(user.run(&["journal", &id]).stdout.contains("Status: completed"));
    assert_eq!(user.run(&["wait", &id]).code, 0);
    assert!(user.run(&["events"]).stdout.contains(&id));
    assert!(daemon_pid(&user).is_none(), "none of this started one");
}

/// A name comes from somebody else. Of the escape sequences in a line for people, only our own
/// colours reach the terminal.
#[test]
fn a_name_cannot_drive_the_terminal() {
    let user = User::new();
    let name = "web\u{1b}]0;pwn\u{7}\r\u{8}\u{9b}31m\u{202e}\ngone";
    std::fs::create_dir(user.project().join(name)).expect("dir");
    let args = [
        "spawn",
        "developer",
        name,
        "Do it",
        "--backend",
        "subprocess",
        "--command",
        "true",
        "--wait",
    ];
    assert_eq!(user.run(&args).code, 0);
    let driving = |c: char| c.is_control() && c != '\n' && c != '\u{1b}' || c == '\u{202e}';
    for color in ["always", "never"] {
        let events = user.run(&["events", "--color", color]).stdout;
        let shown = events.lines().find(|line| line.contains("web")).expect("its line");
        assert!(shown.contains("/web]0;pwn31m gone ("), "{shown:?}");
        assert!(!events.contains(driving), "{events:?}");
        assert_eq!(events.contains("\u{1b}["), color == "always", "{events:?}");
        let refused = user.run(&["spawn", "developer", &name[3..], "Do it", "--color", color]);
        assert_eq!(refused.code, 2, "{refused:?}");
        let said = refused.stderr;
        assert!(
            said.contains("]0;pwn31m") && !said.contains(driving) && !said.contains("\u{1b}]"),
            "{said:?}"
        );
    }
    let events = user.run(&["events", "--json"]).json();
    let mut projects = events["events"].as_array().expect("events").iter();
    assert!(
        projects.any(|event| event["project"].as_str().is_some_and(|path| path.ends_with(name))),
        "{events}"
    );
}

#[test]
fn a_second_daemon_is_refused_and_names_the_first() {
    let user = User::new();
    spawn(&user, "true", &["--wait"]);
    let second = user.run(&["daemon", "--json"]);
    let error: &Value = &second.json()["error"];
    assert_eq!((second.code, error["code"].as_str()), (3, Some("E_ALREADY_RUNNING")), "{second:?}");
    let pid = daemon_pid(&user).expect("daemon").to_string();
    assert!(error["message"].as_str().is_some_and(|text| text.contains(&pid)), "{error}");
}

#[test]
fn daemon_stop_reports_the_lease_of_agents() {
    let user = User::new();
    let id = spawn(&user, "sleep 600", &[]).stdout.trim().to_string();
    until("it runs", || (state(&user, &id) == "running").then_some(()));
    let stopped = user.run(&["daemon", "stop", "--json"]).json();
    assert_eq!(
        (stopped["agents_alive"].as_u64(), stopped["lease_s"].as_u64()),
        (Some(1), Some(8 * 3600)),
        "{stopped}"
    );
    // The next daemon adopts the agent.
    let killed = user.run(&["kill", &id]);
    assert_eq!(killed.code, 0, "{killed:?}");
    assert_eq!(user.run(&["wait", &id]).code, 6);
}

#[test]
fn an_agent_s_client_starts_no_daemon() {
    let user = User::new();
    let nobody = std::os::unix::net::UnixListener::bind(user.path("nobody.sock")).expect("bind");
    let mut child = user
        .command(&["status"])
        .env("MULETEER_SOCKET", user.path("nobody.sock"))
        .spawn()
        .expect("spawn");
    // The second attempt shows that the first one did not make the client start a daemon.
    for _ in 0..2 {
        drop(nobody.accept().expect("it keeps trying to reach its daemon"));
    }
    assert!(child.try_wait().expect("wait").is_none(), "it waits for its daemon to come back");
    child.kill().expect("kill");
    child.wait().expect("wait");
    assert!(!user.state().exists());
}

#[test]
fn a_daemon_started_on_demand_holds_nothing_of_its_caller() {
    let user = User::new();
    // A script's `$( … )` does the same: it reads until every writer is gone. Descriptor 7
    // represents any descriptor of the script's own.
    #[allow(clippy::disallowed_methods)]
    let mut shell = std::process::Command::new("sh");
    let line =
        "exec 7>&1; exec \"$0\" spawn developer . x --backend subprocess --command true --wait";
    let mut child = shell
        .args(["-c", line, env!("CARGO_BIN_EXE_muleteer")])
        .env_clear()
        .envs(user.command(&[]).get_envs().filter_map(|(name, value)| Some((name, value?))))
        .current_dir(user.project())
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("sh");
    let mut out = child.stdout.take().expect("stdout");
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        drop(out.read_to_string(&mut text));
        drop(tell.send(text));
    });
    let text = told.recv_timeout(DEADLINE).expect("the daemon does not hold our output open");
    reader.join().expect("reader");
    assert_eq!(text.trim().len(), 8, "{text}");
    assert!(child.wait().expect("wait").success());
    assert!(daemon_pid(&user).is_some());
}

#[test]
fn idle_daemon_exits() {
    let user = User::new();
    let daemon = user.command(&["daemon", "--idle-exit", "1"]).spawn().expect("daemon");
    let ended = said(daemon.wait_with_output().expect("wait"));
    assert_eq!(ended.code, 0, "{ended:?}");
}

#[test]
fn ctrl_c_only_stops_following() {
    let user = User::new();
    let id = spawn(&user, "sleep 600", &[]).stdout.trim().to_string();
    until("it runs", || (state(&user, &id) == "running").then_some(()));
    let mut child = user.command(&["logs", &id, "-f"]).spawn().expect("spawn");
    // The client catches signals before it watches; the watch is an inotify descriptor.
    let fds = format!("/proc/{}/fd", child.id());
    until("it follows", || {
        let links = std::fs::read_dir(&fds)
            .ok()?
            .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        links.into_iter().any(|link| link.to_string_lossy().contains("inotify")).then_some(())
    });
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("kill");
    let mut text = String::new();
    child.stderr.take().expect("stderr").read_to_string(&mut text).expect("read");
    assert_eq!(child.wait().expect("wait").code(), Some(0), "{text}");
    assert!(text.contains("stopped following"), "{text}");
    assert_eq!(state(&user, &id), "running");
}
