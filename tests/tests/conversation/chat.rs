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
