//! Conversations with the real agents: they outlive daemons, take messages while they are busy, and
//! continue when their sessions are lost.
//!
//! The model is scripted, and its log of requests says which messages reached it, in which order
//! and how often.

#![allow(clippy::unwrap_used)]

use muleteer_tests::acp::Agent;
use muleteer_tests::model_server::Step;
use muleteer_tests::{Daemon, Scene, codex, wait_until};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// The time limit of a turn on a loaded machine.
const LONG: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cli {
    Claude,
    Codex,
    ClaudeAcp,
    CodexAcp,
}

/// A thread whose agent is a real CLI.
struct Talk {
    cli: Cli,
    scene: Scene,
    daemon: Daemon,
    thread: String,
}

impl Talk {
    /// Opens a thread. Returns `None` after a report that the test is skipped.
    fn open(cli: Cli, test: &str, steps: impl IntoIterator<Item = Step>) -> Option<Self> {
        Self::open_with(cli, test, steps, &[])
    }

    /// Does the same with more options of `thread new`.
    fn open_with(
        cli: Cli,
        test: &str,
        steps: impl IntoIterator<Item = Step>,
        more: &[&str],
    ) -> Option<Self> {
        let scene = match cli {
            Cli::Claude => Scene::claude(test, steps)?,
            Cli::Codex => Scene::codex(test, steps)?,
            Cli::ClaudeAcp => Scene::acp(test, Agent::Claude, steps)?,
            Cli::CodexAcp => Scene::acp(test, Agent::Codex, steps)?,
        };
        let daemon = scene.world.daemon();
        let thread = scene.open_thread(more);
        Some(Self { cli, scene, daemon, thread })
    }

    fn send(&self, text: &str) -> String {
        self.scene.world.muleteer(&["thread", "send", &self.thread, text]).ok()
    }

    /// Sends a message and returns its answer.
    fn ask(&self, text: &str) -> Value {
        let args = ["thread", "send", &self.thread, text, "--wait", "--json"];
        self.scene.world.muleteer(&args).deadline(LONG).json()
    }

    /// Sends a message and waits for its answer as long as the agent is started again. Muleteer
    /// asks an agent for a minute to load a session that is young, so a limit of the whole time
    /// would be a limit of the machine.
    fn ask_over_attempts(&self, text: &str) {
        let attempts = || {
            let all = self.scene.world.events().into_iter();
            all.filter(|event| event["event"] == "attempt_started").count()
        };
        self.send(text);
        let is_answered = || self.states().last().is_some_and(|state| state == "answered");
        while !is_answered() {
            let before = attempts();
            wait_until("another attempt, or the answer", LONG, || {
                (is_answered() || attempts() > before).then_some(())
            });
        }
    }

    fn show(&self) -> Value {
        self.scene.world.muleteer(&["thread", "show", &self.thread, "--json"]).json()
    }

    /// Returns the texts of the messages with this direction.
    fn texts(&self, direction: &str) -> Vec<String> {
        let shown = self.show();
        let all = shown["messages"].as_array().unwrap().iter();
        let of = all.filter(|message| message["direction"] == direction);
        of.map(|message| message["text"].as_str().unwrap().to_string()).collect()
    }

    /// Returns the states of the messages of people.
    fn states(&self) -> Vec<String> {
        let shown = self.show();
        let all = shown["messages"].as_array().unwrap().iter();
        let inbound = all.filter(|message| message["direction"] == "in");
        inbound.map(|message| message["state"].as_str().unwrap().to_string()).collect()
    }

    fn wait_for_states(&self, wanted: &[&str]) {
        wait_until(&format!("messages that are {wanted:?}"), LONG, || {
            (self.states() == wanted).then_some(())
        });
    }

    fn session(&self) -> Value {
        let dispatch = self.show()["dispatch_id"].clone();
        self.scene.world.dispatch(dispatch.as_str().unwrap())["session_id"].clone()
    }

    /// Kills the daemon with `kill -9` and starts another one.
    fn restart(&mut self) {
        self.daemon.kill_9();
        self.daemon = self.scene.world.daemon();
    }

    /// The folder with the sessions of the CLI.
    fn sessions(&self) -> PathBuf {
        match self.cli {
            Cli::Claude | Cli::ClaudeAcp => self.scene.world.home().join(".claude/projects"),
            Cli::Codex | Cli::CodexAcp => codex::home(&self.scene.world).join("sessions"),
        }
    }

    /// Checks that the model knows each of the texts, once and in this order.
    fn check_told(&self, texts: &[&str]) {
        let told = self.scene.last_told();
        let mut from = 0;
        for text in texts {
            assert_eq!(told.matches(text).count(), 1, "{text}: {told}");
            let at = told.find(text).unwrap();
            assert!(from <= at, "{text} came too early: {told}");
            from = at;
        }
    }

    fn finish(self) {
        self.scene.world.finish(Some(self.daemon));
    }
}

/// The daemon is killed between turns, and in the middle of one.
fn over_three_daemons(cli: Cli, test: &str) {
    let busy = Step::bash("echo up >> effects; while [ ! -e go ]; do sleep 0.05; done");
    let answer = |n: u32| Step::text(format!("answer {n}"));
    let steps = [answer(1), answer(2), busy, answer(3), answer(4)];
    let Some(mut talk) = Talk::open(cli, test, steps) else { return };
    assert_eq!(talk.ask("message-alfa")["answer"]["text"], "answer 1");
    let session = talk.session();
    assert!(session.is_string(), "{session}");
    talk.restart();
    assert_eq!(talk.ask("message-bravo")["answer"]["text"], "answer 2");
    assert_eq!(talk.session(), session);
    talk.send("message-charlie");
    talk.scene.wait_for_the_tool();
    talk.restart();
    talk.scene.repo.write("go", "");
    talk.wait_for_states(&["answered"; 3]);
    talk.restart();
    assert_eq!(talk.ask("message-delta")["answer"]["text"], "answer 4");
    assert_eq!(talk.session(), session);
    assert_eq!(talk.texts("out"), ["answer 1", "answer 2", "answer 3", "answer 4"]);
    assert_eq!(talk.scene.repo.effects("effects"), ["up"], "the tool ran once");
    assert_eq!(talk.scene.server.main_requests().len(), 5, "each message was answered once");
    talk.check_told(&["message-alfa", "message-bravo", "message-charlie", "message-delta"]);
    let shown = talk.show();
    assert_eq!(shown["tasks"][0]["dispatches"].as_array().map(Vec::len), Some(1), "{shown}");
    talk.finish();
}

/// Messages arrive while the agent runs a tool. It gets each once, in order, in this turn or after
/// it.
fn messages_to_a_busy_agent(cli: Cli, test: &str) {
    let busy = Step::bash("echo up >> effects; while [ ! -e go ]; do sleep 0.05; done");
    let Some(talk) = Talk::open(cli, test, [busy, Step::text("heard").times(4)]) else { return };
    talk.send("message-alfa");
    talk.scene.wait_for_the_tool();
    for text in ["message-bravo", "message-charlie"] {
        talk.send(text);
    }
    // Each interface shows where the messages are.
    wait_until("the place of the messages", LONG, || {
        let shown = talk.show();
        let waits = |n: usize| {
            let message = &shown["messages"][n];
            match message["state"].as_str() {
                Some("delivered") => true,
                Some("queued") => message["reason"]
                    .as_str()
                    .is_some_and(|reason| reason.starts_with("queued behind turn")),
                _ => false,
            }
        };
        (shown["messages"][0]["state"] == "read" && waits(1) && waits(2)).then_some(())
    });
    talk.scene.repo.write("go", "");
    talk.wait_for_states(&["answered"; 3]);
    talk.check_told(&["message-alfa", "message-bravo", "message-charlie"]);
    assert_eq!(talk.scene.repo.effects("effects"), ["up"]);
    talk.finish();
}

/// The files of the session are deleted between two turns. The message that finds no session is
/// answered by a new one, and the thread says so.
fn lost_session(cli: Cli, test: &str) {
    let steps = [Step::text("answer 1"), Step::text("answer 2"), Step::text("answer 3")];
    let Some(mut talk) = Talk::open(cli, test, steps) else { return };
    assert_eq!(talk.ask("message-alfa")["answer"]["text"], "answer 1");
    let lost = talk.session();
    // A CLI writes the last records of its session when it exits.
    let dispatch = talk.show()["dispatch_id"].as_str().unwrap().to_string();
    wait_until("the end of the process", LONG, || {
        (!talk.scene.world.events_of(&dispatch, "agent_exited").is_empty()).then_some(())
    });
    std::fs::remove_dir_all(talk.sessions()).unwrap();
    talk.ask_over_attempts("message-bravo");
    assert!(talk.texts("out").iter().any(|text| text == "answer 2"), "{}", talk.show());
    assert_ne!(talk.session(), lost, "another session");
    let shown = talk.show();
    let notices = shown["messages"].as_array().unwrap().iter();
    let notices: Vec<_> =
        notices.filter(|message| message["author"]["kind"] == "muleteer").collect();
    assert_eq!(notices.len(), 1, "{shown}");
    let text = notices[0]["text"].as_str().unwrap();
    assert!(text.contains("A new agent continues without the earlier session"), "{text}");
    assert_eq!(notices[0]["answers"], json!([]), "a notice is no answer: {shown}");
    // The new session is as good as the old one was.
    talk.restart();
    assert_eq!(talk.ask("message-charlie")["answer"]["text"], "answer 3");
    talk.check_told(&["message-bravo", "message-charlie"]);
    assert_eq!(talk.scene.server.main_requests().len(), 3);
    talk.finish();
}

/// The agent asks a person by an MCP call, and the daemon is killed while it waits. The call gets
/// the answer, and no message repeats it.
fn asks_a_person_over_a_killed_daemon(cli: Cli, test: &str) {
    let ask = Step::tool("mcp__muleteer__ask_human", json!({"question": "Which colour?"}));
    let steps = [ask, Step::text("it is done").times(2)];
    let Some(mut talk) = Talk::open(cli, test, steps) else { return };
    talk.send("message-alfa");
    let question = |talk: &Talk, state: &str| {
        wait_until(&format!("a question that is {state}"), LONG, || {
            let all = talk.scene.world.muleteer(&["questions", "--all", "--json"]).json();
            let first = all["questions"].as_array()?.first()?.clone();
            (first["state"] == state).then(|| first["id"].as_str().unwrap_or_default().to_string())
        })
    };
    let id = question(&talk, "open");
    talk.restart();
    talk.scene.world.muleteer(&["answer", &id, "--text", "ultramarine"]).ok();
    talk.wait_for_states(&["answered"]);
    question(&talk, "delivered");
    assert!(talk.scene.last_told().contains("ultramarine"), "{}", talk.scene.last_told());
    assert_eq!(talk.texts("out"), ["it is done"]);
    assert_eq!(talk.scene.server.main_requests().len(), 2, "the answer came once");
    talk.finish();
}

/// The agent asks for a permission by its own protocol, and a question by an MCP call. A person
/// answers both in `chat`.
fn is_answered_in_chat(cli: Cli, test: &str) {
    let run = match cli {
        // Codex asks if its model says that the sandbox would prevent the action.
        Cli::CodexAcp => Step::tool(
            "exec_command",
            json!({"cmd": "echo up >> effects", "sandbox_permissions": "require_escalated",
                "justification": "it writes a file"}),
        ),
        Cli::Claude | Cli::Codex | Cli::ClaudeAcp => Step::bash("echo up >> effects"),
    };
    let ask = Step::tool("mcp__muleteer__ask_human", json!({"question": "Which colour?"}));
    // `codex exec` asks for no permission.
    let asks = cli != Cli::Codex;
    let steps = [asks.then_some(run), Some(ask), Some(Step::text("it is done"))];
    let steps = steps.into_iter().flatten();
    let more: &[&str] = if asks { &["--permissions", "ask"] } else { &[] };
    let Some(talk) = Talk::open_with(cli, test, steps, more) else { return };
    let args = ["chat", "--thread", &talk.thread];
    let mut terminal = talk.scene.world.on_a_terminal(&args, &[("VISUAL", "false")]);
    terminal.sees("> ");
    terminal.keys("message-alfa\r");
    if asks {
        terminal.sees("? permission for");
        assert!(talk.scene.repo.effects("effects").is_empty(), "it waits for the permission");
        terminal.keys("yes\r");
        terminal.sees("allowed");
    }
    terminal.sees("? Which colour?");
    terminal.keys("ultramarine\r");
    terminal.sees("it is done");
    terminal.keys("\x04");
    assert_eq!(terminal.ended(), Some(0));
    drop(terminal);
    talk.wait_for_states(&["answered"]);
    let told = talk.scene.last_told();
    assert!(told.contains("ultramarine"), "{told}");
    assert_eq!(talk.scene.repo.effects("effects").len(), usize::from(asks));
    let all = talk.scene.world.muleteer(&["questions", "--all", "--json"]).json();
    let all = all["questions"].as_array().unwrap();
    assert_eq!(all.len(), 1 + usize::from(asks), "{all:?}");
    assert!(all.iter().all(|question| question["state"] == "delivered"), "{all:?}");
    talk.finish();
}

macro_rules! conversations {
    ($($name:ident: $scene:ident $cli:ident;)*) => {
        $(#[test]
        fn $name() {
            $scene(Cli::$cli, stringify!($name));
        })*
    };
}

conversations! {
    claude_continues_over_three_killed_daemons: over_three_daemons Claude;
    codex_continues_over_three_killed_daemons: over_three_daemons Codex;
    claude_acp_continues_over_three_killed_daemons: over_three_daemons ClaudeAcp;
    codex_acp_continues_over_three_killed_daemons: over_three_daemons CodexAcp;
    busy_claude_gets_each_message_once: messages_to_a_busy_agent Claude;
    busy_codex_gets_each_message_once: messages_to_a_busy_agent Codex;
    busy_claude_acp_gets_each_message_once: messages_to_a_busy_agent ClaudeAcp;
    busy_codex_acp_gets_each_message_once: messages_to_a_busy_agent CodexAcp;
    claude_gets_a_persons_answer_over_a_killed_daemon: asks_a_person_over_a_killed_daemon Claude;
    codex_gets_a_persons_answer_over_a_killed_daemon: asks_a_person_over_a_killed_daemon Codex;
    claude_acp_gets_a_persons_answer_over_a_killed_daemon:
        asks_a_person_over_a_killed_daemon ClaudeAcp;
    codex_acp_gets_a_persons_answer_over_a_killed_daemon:
        asks_a_person_over_a_killed_daemon CodexAcp;
    claude_is_answered_in_chat: is_answered_in_chat Claude;
    codex_is_answered_in_chat: is_answered_in_chat Codex;
    claude_acp_is_answered_in_chat: is_answered_in_chat ClaudeAcp;
    codex_acp_is_answered_in_chat: is_answered_in_chat CodexAcp;
    claude_that_lost_its_session_is_replaced: lost_session Claude;
    codex_that_lost_its_session_is_replaced: lost_session Codex;
    claude_acp_that_lost_its_session_is_replaced: lost_session ClaudeAcp;
    codex_acp_that_lost_its_session_is_replaced: lost_session CodexAcp;
}
