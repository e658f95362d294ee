//! `chat` on a terminal, as a person uses it.

use crate::{ECHO, open, show, states};
use muleteer_tests::world::terminal::Terminal;
use muleteer_tests::{PATIENCE, Repo, World, wait_until};
use serde_json::Value;

/// An agent that writes one text, waits for a file, and writes another.
const STREAM: &str = "
v: 1
turns:
  - repeat: true
    steps:
      - say: \"first **part** of ${turn}\"
      - tool_call: {name: Bash, input: {command: \"cargo test\"}, text: \"3 passed\"}
      - run: {command: \"while [ ! -e go ]; do sleep 0.05; done\", timeout: 120s}
      - say: \"last part of ${turn}: ${prompt}\"
";

fn chat(world: &World, thread: &str) -> Terminal {
    let terminal = world.on_a_terminal(&["chat", "--thread", thread], &[("VISUAL", "false")]);
    terminal.sees("> ");
    terminal
}

/// Returns how often a line that contains `text` is on the screen.
fn count(screen: &str, text: &str) -> usize {
    screen.lines().filter(|line| line.contains(text)).count()
}

fn answered(world: &World, thread: &str, count: usize) -> Value {
    wait_until("the answers", PATIENCE, || {
        let shown = show(world, thread);
        (states(&shown) == vec!["answered"; count]).then_some(shown)
    })
}

#[test]
fn text_and_calls_appear_while_the_turn_runs() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let thread = open(&world, &repo, STREAM);
    let mut terminal = chat(&world, &thread);
    terminal.keys("hello\r");
    // The turn waits for the file, so all this is seen before its end.
    terminal.sees("first part of 1");
    terminal.sees("● Bash cargo test");
    terminal.sees("└ ok 3 passed");
    terminal.keys("and now?\r");
    terminal.sees("queued behind turn 1 of product-analyst");
    repo.write("go", "");
    terminal.sees("last part of 1: hello");
    let screen = terminal.sees("last part of 2: and now?");
    assert_eq!(count(&screen, "last part of 1: hello"), 1, "{screen}");
    terminal.keys("\x04");
    assert_eq!(terminal.ended(), Some(0));
    let screen = terminal.sees(&format!("`muleteer chat --thread {thread}` continues it"));
    assert_eq!(count(&screen, "last part of 2: and now?"), 1, "{screen}");
    answered(&world, &thread, 2);
    world.finish(Some(daemon));
}

#[test]
fn history_comes_first_and_several_lines_are_one_message() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let thread = open(&world, &repo, ECHO);
    for text in ["one", "two", "three"] {
        crate::ask(&world, &thread, text);
    }
    let args = ["chat", "--thread", &thread[..6], "--history", "2"];
    let mut terminal = world.on_a_terminal(&args, &[("NO_COLOR", "1")]);
    let screen = terminal.sees("3: three");
    assert_eq!((count(&screen, "2: two"), count(&screen, "three")), (0, 2), "{screen}");
    terminal.keys("a\\\rb\r");
    terminal.sees("4: a");
    // A terminal sends this when the person pastes.
    terminal.keys("\x1b[200~c\nd\x1b[201~\r");
    terminal.sees("5: c");
    let shown = answered(&world, &thread, 5);
    let messages = shown["messages"].as_array().expect("messages").iter();
    let inbound = messages.filter(|message| message["direction"] == "in");
    let texts: Vec<_> = inbound.filter_map(|message| message["text"].as_str()).collect();
    assert_eq!(texts, ["one", "two", "three", "a\nb", "c\nd"], "{shown}");
    terminal.keys("/he\t\r");
    terminal.sees("/spawn ROLE PROJECT PROMPT");
    terminal.keys("/quit\r");
    assert_eq!(terminal.ended(), Some(0));
    let bytes = String::from_utf8_lossy(&terminal.bytes()).into_owned();
    let is_styled = ["\x1b[1m", "\x1b[2m", "\x1b[31m"].iter().any(|code| bytes.contains(code));
    assert!(!is_styled, "NO_COLOR is set: {bytes:?}");
    assert!(!bytes.contains("/he\t"));
    world.finish(Some(daemon));
}

#[test]
fn dead_daemon_loses_and_repeats_nothing() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let thread = open(&world, &repo, STREAM);
    let mut terminal = chat(&world, &thread);
    terminal.keys("hello\r");
    terminal.sees("first part of 1");
    terminal.sees("└ ok 3 passed");
    daemon.kill_9();
    terminal.sees("the daemon is gone");
    let daemon = world.daemon();
    terminal.sees("connected again");
    terminal.keys("again\r");
    repo.write("go", "");
    let screen = terminal.sees("last part of 2: again");
    for text in ["first part of 1", "● Bash cargo test", "last part of 1", "first part of 2"] {
        let times = if text.starts_with('●') { 2 } else { 1 };
        assert_eq!(count(&screen, text), times, "{text}: {screen}");
    }
    terminal.keys("\x04");
    assert_eq!(terminal.ended(), Some(0));
    let shown = answered(&world, &thread, 2);
    assert_eq!(shown["message_count"], 4, "{shown}");
    world.finish(Some(daemon));
}

/// The first request of a chat after a crash starts a daemon, and has its key.
#[test]
fn message_to_a_dead_daemon_is_sent_once() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let thread = open(&world, &repo, ECHO);
    let mut terminal = chat(&world, &thread);
    daemon.kill_9();
    let mut killed = world.daemon_with(&[("MULETEER_FAULT", "thread.accepted=kill")]);
    terminal.keys("hello\r");
    killed.ended();
    let screen = terminal.sees("1: hello");
    assert_eq!(count(&screen, "1: hello"), 1, "{screen}");
    assert_eq!(repo.effects("heard"), ["hello"]);
    terminal.keys("\x04");
    assert_eq!(terminal.ended(), Some(0));
    world.finish(None);
}

#[test]
fn questions_are_answered_in_place() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let thread = open(
        &world,
        &repo,
        "
v: 1
turns:
  - repeat: true
    steps:
      - ask: {permission: \"rm -rf build\"}
      - ask: {question: \"Which colour?\"}
      - say: \"done with ${prompt}\"
",
    );
    let mut terminal = chat(&world, &thread);
    terminal.keys("go\r");
    terminal.sees("to deny with a reason");
    assert!(terminal.bytes().contains(&7), "the bell rings");
    terminal.keys("yes\r");
    terminal.sees("allowed");
    terminal.sees("? Which colour?");
    terminal.keys("Blue\r");
    terminal.sees("done with go");
    terminal.keys("\x04");
    assert_eq!(terminal.ended(), Some(0));
    assert_eq!(answered(&world, &thread, 1)["message_count"], 2);
    world.finish(Some(daemon));
}

#[test]
fn ctrl_c_interrupts_the_turn_and_the_second_one_leaves() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let thread = open(&world, &repo, STREAM);
    let mut terminal = chat(&world, &thread);
    terminal.keys("hello\r");
    terminal.sees("first part of 1");
    terminal.keys("\x03");
    terminal.sees("interrupting the turn");
    let shown = answered(&world, &thread, 1);
    assert_eq!(shown["messages"][0]["reason"], "interrupted", "{shown}");
    terminal.sees("interrupted");
    terminal.keys("\x03");
    assert_eq!(terminal.ended(), Some(0));
    world.finish(Some(daemon));
}

#[test]
fn editor_writes_a_message_and_continue_finds_the_thread() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let thread = open(&world, &repo, ECHO);
    let editor = world.bin().join("write");
    muleteer_tests::program::write(&editor, "#!/bin/sh\nprintf 'two\\nlines\\n' >> \"$1\"\n");
    let script = format!("cd {} && exec muleteer chat --continue", repo.to_str());
    std::os::unix::fs::symlink(world.program(), world.bin().join("muleteer")).expect("a link");
    let variables = [("EDITOR", editor.to_str().expect("a path")), ("TERM", "dumb")];
    let mut terminal = world.on_a_terminal_running("sh", &["-c", &script], &variables);
    terminal.sees("> ");
    terminal.keys("/editor one \n");
    terminal.sees("1: onetwo");
    terminal.keys("\x04");
    assert_eq!(terminal.ended(), Some(0));
    let shown = answered(&world, &thread, 1);
    assert_eq!(shown["messages"][0]["text"], "onetwo\nlines", "{shown}");
    world.finish(Some(daemon));
}

/// An agent's text must not drive the terminal.
#[test]
fn terminal_escapes_of_an_agent_are_left_out() {
    let world = World::new();
    let repo: Repo = world.repo("repo");
    let daemon = world.daemon();
    let thread = open(
        &world,
        &repo,
        "
v: 1
turns:
  - repeat: true
    steps:
      - say: \"a\\e]0;evil\\ab \\u202ec\\u009b2Jd\"
      - tool_call: {name: \"B\\e[31mash\", input: {command: \"x\\e[2J\"}, text: \"\\e[9m\"}
      - say: \"end\"
",
    );
    let mut terminal = chat(&world, &thread);
    terminal.keys("go\r");
    terminal.sees("end");
    let bytes = String::from_utf8_lossy(&terminal.bytes()).into_owned();
    for evil in ["\x1b]0;", "\x1b[2J", "\x1b[9m", "\u{202e}", "\u{9b}"] {
        assert!(!bytes.contains(evil), "{evil:?} in {bytes:?}");
    }
    terminal.keys("\x04");
    assert_eq!(terminal.ended(), Some(0));
    world.finish(Some(daemon));
}

/// Questions, options and the names of tools are texts of agents too.
#[test]
fn terminal_escapes_in_questions_and_names_are_left_out() {
    let evil = "\\e]0;evil\\a\\e[2J\\u009b2J\\u202e\\u2066\\u0085\\e]8;;http://x\\e\\\\\\x7f\\b";
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let thread = open(
        &world,
        &repo,
        &format!(
            "
v: 1
turns:
  - repeat: true
    steps:
      - ask: {{permission: \"rm{evil} build\"}}
      - ask: {{question: \"Which{evil} colour?\"}}
      - tool_call: {{name: \"B{evil}ash\", input: {{command: \"x{evil}\"}}, text: \"r{evil}\"}}
      - say: \"# T{evil}\\n`c{evil}` [l{evil}](http://x{evil})\\n```\\nb{evil}\\n```\\nend of it\"
"
        ),
    );
    let mut terminal = chat(&world, &thread);
    terminal.keys("go\r");
    terminal.sees("to deny with a reason");
    // Those who list the questions see them as well.
    let mut list = world.on_a_terminal(&["questions"], &[]);
    assert_eq!(list.ended(), Some(0));
    terminal.keys("yes\r");
    terminal.sees("colour?");
    terminal.keys("Blue\r");
    terminal.sees("end of it");
    terminal.keys("\x04");
    assert_eq!(terminal.ended(), Some(0));
    let mut shown = world.on_a_terminal(&["thread", "show", &thread], &[]);
    assert_eq!(shown.ended(), Some(0));
    for (what, bytes) in
        [("chat", terminal.bytes()), ("questions", list.bytes()), ("show", shown.bytes())]
    {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        for evil in
            ["\x1b]0;", "\x1b[2J", "\x1b]8;", "\u{9b}", "\u{85}", "\u{202e}", "\u{2066}", "\x7f"]
        {
            assert!(!text.contains(evil), "{what}: {evil:?} in {text:?}");
        }
    }
    world.finish(Some(daemon));
}
