//! `chat` over a pipe.

use crate::{ECHO, ask, open, show};
use muleteer_tests::World;

#[test]
fn each_line_is_a_message_and_each_answer_is_printed() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let file = world.path().join("scenario.yaml");
    std::fs::write(&file, ECHO).expect("a scenario");
    let file = file.to_str().expect("a path");
    let args = ["chat", "reviewer", repo.to_str(), "--backend", "rehearsal", "--scenario", file];
    let said = world.muleteer(&args).stdin("one\n\ntwo\nthree").ok();
    assert_eq!(said.lines().collect::<Vec<_>>(), ["1: one", "2: two", "3: three"]);
    let listed = world.muleteer(&["thread", "list", "--json"]).json();
    assert_eq!(listed["threads"][0]["role"], "reviewer");
    world.finish(Some(daemon));
}

#[test]
fn chat_continues_a_thread_with_documents_that_end_with_nul() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let thread = open(&world, &repo, ECHO);
    ask(&world, &thread, "first");
    let args = ["chat", "--thread", &thread[..6], "-0"];
    let said = world.muleteer(&args).stdin("two\nlines\0and one\0").ok();
    assert_eq!(said.lines().collect::<Vec<_>>(), ["2: two", "lines", "3: and one"]);
    assert_eq!(show(&world, &thread)["message_count"], 6);
    world.finish(Some(daemon));
}

/// An agent that takes prompts of any length.
const BRIEF: &str = "
v: 1
turns:
  - repeat: true
    steps:
      - say: \"ok ${turn}\"
";

/// The daemon limits a message to 512 KiB.
#[test]
fn message_that_is_too_long_is_refused_before_it_is_read_and_none_of_it_is_sent() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let thread = open(&world, &repo, BRIEF);
    let longest = "x".repeat(512 << 10);
    for (null, end) in [(false, "\n"), (true, "\0")] {
        let args = ["chat", "--thread", &thread, "-0"];
        let args = if null { &args[..] } else { &args[..3] };
        let before = show(&world, &thread)["message_count"].as_u64().expect("a count");
        // The messages before it are sent, and those after it are not.
        let input = format!("first{end}{longest}y{end}last{end}");
        let said = world.muleteer(args).stdin(&input).run();
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.stderr.contains("the message is longer than 512 KiB"), "{}", said.stderr);
        assert_eq!(said.stdout.lines().count(), 1, "{}", said.stdout);
        let shown = show(&world, &thread);
        assert_eq!(shown["message_count"].as_u64(), Some(before + 2), "{before}");
        // The longest possible message passes.
        let said = world.muleteer(args).stdin(&format!("{longest}{end}")).ok();
        assert!(said.starts_with("ok "), "{said}");
        let shown = show(&world, &thread);
        let last = shown["messages"].as_array().expect("messages").iter();
        let last = last.rev().find(|message| message["direction"] == "in").expect("a message");
        assert_eq!(last["text"].as_str().map(str::len), Some(512 << 10));
    }
    // A stream without an end is refused as well, and not gathered in memory.
    let endless = "z".repeat(8 << 20);
    let said = world.muleteer(&["chat", "--thread", &thread]).stdin(&endless).run();
    assert_eq!(said.code, Some(2), "{said:?}");
    world.finish(Some(daemon));
}
