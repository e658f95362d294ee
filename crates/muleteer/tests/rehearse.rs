//! Tests `muleteer rehearse` as a real process: killed, resumed, interrupted, ignoring signals,
//! leaking.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test starts the program it tests"
)]

use muleteer_backends::Backend;
use muleteer_backends::Parser;
use muleteer_backends::rehearsal::Rehearsal;
use muleteer_model::agent::event::{AgentEvent, TurnError, TurnResult};
use muleteer_process::clock::awake;
use muleteer_process::group::descendants;
use muleteer_process::identity::{Pinned, ProcessId};
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);
const TERM: i32 = 15;
const KILL: i32 = 9;

/// A rehearsed agent; dropping it ends the process.
struct Agent {
    child: Child,
    stdin: Option<ChildStdin>,
    events: Receiver<AgentEvent>,
}

impl Agent {
    fn start(folder: &std::path::Path, scenario: &str, args: &[&str]) -> Self {
        let file = folder.join("scenario.yaml");
        std::fs::write(&file, format!("v: 1\nturns:\n{scenario}")).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_muleteer"))
            .arg("rehearse")
            .arg("--scenario")
            .arg(&file)
            .args(args)
            .current_dir(folder)
            .env("MULETEER_REHEARSAL_DIR", folder.join("sessions"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let (sender, events) = sync_channel(100_000);
        std::thread::spawn(move || {
            let mut parser: Box<dyn Parser> = Rehearsal.parser();
            let mut chunk = vec![0; 64 * 1024];
            while let Ok(n @ 1..) = stdout.read(&mut chunk) {
                for timed in parser.push(&chunk[..n]).into_iter().flat_map(|line| line.events) {
                    let _ = sender.send(timed.event);
                }
            }
        });
        Self { stdin: child.stdin.take(), child, events }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    fn prompt(&mut self, key: &str) {
        self.send(&Rehearsal.prompt(None, key, "go"));
    }

    /// Returns the events up to and including the first for which `is` holds.
    fn until(&self, is: impl Fn(&AgentEvent) -> bool) -> Vec<AgentEvent> {
        let mut seen = vec![];
        loop {
            let event =
                self.events.recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("{e} after {seen:?}"));
            seen.push(event);
            if is(seen.last().unwrap()) {
                return seen;
            }
        }
    }

    fn result(&self) -> TurnResult {
        match self.until(|event| matches!(event, AgentEvent::Result(_))).pop() {
            Some(AgentEvent::Result(result)) => result,
            other => panic!("{other:?}"),
        }
    }

    fn id(&self) -> ProcessId {
        ProcessId::of(self.child.id()).unwrap()
    }

    fn signal(&self, signo: i32) {
        Pinned::open(self.child.id()).unwrap().signal(signo).unwrap();
    }

    /// Closes stdin and waits for the agent to exit.
    fn leave(mut self) -> ExitStatus {
        self.stdin = None;
        assert!(
            Pinned::open(self.child.id()).map_or(true, |pinned| pinned.wait(PATIENCE)),
            "it stays"
        );
        self.child.wait().unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Polls for a condition that no event reports.
fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = awake() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(awake() < deadline, "it never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn said(events: &[AgentEvent]) -> Vec<&str> {
    let texts = events.iter().filter_map(|event| match event {
        AgentEvent::Text { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

fn is_text(wanted: &str) -> impl Fn(&AgentEvent) -> bool {
    move |event| matches!(event, AgentEvent::Text { text, .. } if text == wanted)
}

#[test]
fn killed_agent_continues_after_its_last_step_once() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = "
  - steps:
      - say: one
      - append: {path: log, text: \"x\"}
      - crash: {signal: KILL, once: true}
      - say: two
      - hang: {}
      - result: {status: success, summary: never}
";
    let mut first = Agent::start(folder.path(), scenario, &["--session-id", "s"]);
    first.prompt("k1");
    first.until(|event| matches!(event, AgentEvent::ToolResult { ok: true, .. }));
    let status = first.child.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(KILL));

    let mut second = Agent::start(folder.path(), scenario, &["--resume", "s"]);
    second.prompt("k1");
    let known = |event: &AgentEvent| matches!(event, AgentEvent::Prompt { repeated: true, .. });
    second.until(known);
    second.prompt("k2");
    assert_eq!(said(&second.until(is_text("two"))), ["two"]);
    assert_eq!(std::fs::read_to_string(folder.path().join("log")).unwrap(), "x");

    let other = Agent::start(folder.path(), scenario, &["--resume", "s"]);
    let refused = other.result();
    assert!(refused.text.unwrap().contains("already in use"));

    // An interrupt reaches the agent while it hangs, and it exits normally.
    second.send(&Rehearsal.interrupt(None, "i").unwrap());
    assert_eq!(second.result().error, Some(TurnError::Interrupted));
    assert!(second.leave().success());
}

#[test]
fn an_interrupt_ends_a_command_and_everything_it_started() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = "
  - steps: [run: sleep 600 & sleep 600; echo never]
  - steps: [result: {status: success, summary: still here}]
";
    let mut agent = Agent::start(folder.path(), scenario, &[]);
    agent.prompt("k1");
    agent.until(|event| matches!(event, AgentEvent::ToolCall { .. }));
    let started = eventually(|| {
        let below: Vec<_> =
            descendants(agent.child.id()).into_iter().map(ProcessId::from).collect();
        (below.len() == 3).then_some(below)
    });
    agent.send(&Rehearsal.interrupt(None, "i").unwrap());
    assert_eq!(agent.result().error, Some(TurnError::Interrupted));
    for id in started {
        assert!(
            Pinned::open_exact(id).map_or(true, |pinned| pinned.wait(PATIENCE)),
            "{id:?} lives"
        );
    }
    agent.prompt("k2");
    assert_eq!(agent.result().text.as_deref(), Some("still here"));
    assert!(agent.leave().success());
}

#[test]
fn rehearsal_can_ignore_sigterm_and_leak_a_grandchild() {
    let folder = tempfile::tempdir().unwrap();
    let scenario =
        "  - steps: [ignore_term: true, leak: {for: 60s}, say: ready, hang: {deaf: true}]\n";
    let mut agent = Agent::start(folder.path(), scenario, &[]);
    agent.prompt("k");
    agent.until(is_text("ready"));
    let me = agent.id();
    let leaked = eventually(|| match descendants(me.pid)[..] {
        // The grandchild creates a session of its own soon after it starts.
        [child] if child.session == child.pid => Some(ProcessId::from(child)),
        _ => None,
    });
    agent.signal(TERM);
    agent.send(&Rehearsal.interrupt(None, "i").unwrap());
    let pinned = Pinned::open_exact(me).unwrap();
    assert!(!pinned.wait(Duration::from_millis(300)), "TERM ended it");
    agent.signal(KILL);
    assert!(pinned.wait(PATIENCE));
    let leaked = Pinned::open_exact(leaked).unwrap();
    assert!(!leaked.wait(Duration::from_millis(100)), "the grandchild died with it");
    leaked.signal(KILL).unwrap();
}

#[test]
fn crash_step_uses_the_given_signal_even_if_ignored() {
    let folder = tempfile::tempdir().unwrap();
    for (name, signo) in [("SEGV", 11), ("ABRT", 6), ("TERM", TERM), ("INT", 2), ("KILL", KILL)] {
        let scenario = format!("  - steps: [ignore_term: true, crash: {{signal: {name}}}]\n");
        let mut agent = Agent::start(folder.path(), &scenario, &[]);
        agent.prompt("k");
        let ended = agent.leave();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&ended),
            Some(signo),
            "{name}: {ended:?}"
        );
    }
}

#[test]
fn failed_command_reports_its_end_and_output() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = "
  - steps: [run: echo no; exit 3]
  - steps: [run: 'false']
  - steps: [run: kill -KILL $$]
  - steps: [run: {command: echo begun; sleep 600, timeout: 200ms}]
";
    let mut agent = Agent::start(folder.path(), scenario, &[]);
    let reasons = [
        "`echo no; exit 3`: exit 3\nno",
        "`false`: exit 1",
        "`kill -KILL $$`: ended by signal 9",
        "`echo begun; sleep 600` timed out after 200ms\nbegun",
    ];
    for (turn, reason) in reasons.into_iter().enumerate() {
        agent.prompt(&format!("k{turn}"));
        let result = agent.result();
        assert_eq!(result.text.as_deref(), Some(reason));
        assert_eq!(result.structured.unwrap()["summary"], reason);
    }
    assert!(agent.leave().success());
}

#[test]
fn noise_does_not_hide_later_output() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = "
  - steps:
      - flood: {bytes: 3MB, line: 200}
      - garbage: {bytes: 100kB, seed: 7}
      - long_line: {bytes: 9MiB}
      - print: \"{\\\"type\\\":\\\"text\\\"\"
      - result: {status: partial, summary: heard}
";
    let mut agent = Agent::start(folder.path(), scenario, &[]);
    agent.prompt("k");
    let seen = agent.until(|event| matches!(event, AgentEvent::Result(_)));
    assert!(
        seen.iter().filter(|event| matches!(event, AgentEvent::Output { .. })).count() > 10_000
    );
    assert!(matches!(seen.last(), Some(AgentEvent::Result(result))
            if result.text.as_deref() == Some("heard")));
    assert!(agent.leave().success());
}

#[test]
fn with_the_end_of_stdin_the_turn_is_finished_first() {
    let folder = tempfile::tempdir().unwrap();
    let mut agent =
        Agent::start(folder.path(), "  - steps: [wait: 300ms, say: done, exit: 7]\n", &[]);
    agent.prompt("k");
    agent.stdin = None;
    agent.until(is_text("done"));
    assert_eq!(agent.leave().code(), Some(7));
}

/// As for all verbs: one document on stdout, and the exit code of its error.
#[test]
fn errors_are_json_documents_with_json() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("scenario.yaml");
    let check = |text: &str, more: &[&str]| {
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_muleteer"));
        let command =
            command.args(["rehearse", "--check", "--json", "--scenario"]).arg(&file).args(more);
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        (output.status.code(), serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap())
    };
    let (code, found) = check("v: 1\nturns: [{steps: [{say: a}]}]\n", &[]);
    assert_eq!((code, found), (Some(0), serde_json::json!({ "turns": 1, "steps": 1 })));
    let (code, wrong) = check("v: 1\nturns: [{steps: [{nonsense: 1}]}]\n", &[]);
    assert_eq!((code, &wrong["error"]["code"]), (Some(2), &"E_SCENARIO_INVALID".into()), "{wrong}");
    assert_eq!(
        (&wrong["error"]["line"], &wrong["error"]["file"]),
        (&2.into(), &file.to_str().unwrap().into())
    );
    let (code, wrong) = check("", &["--no-such-flag"]);
    assert_eq!((code, &wrong["error"]["code"]), (Some(2), &"E_USAGE".into()), "{wrong}");
}
