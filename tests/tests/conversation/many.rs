//! Threads with more messages than the memory keeps.

use crate::{ECHO, open, show, states};
use muleteer_tests::{PATIENCE, World, wait_until};
use serde_json::Value;

/// More than the messages that stay in memory (`muleteer_model::conversation::window`).
const MESSAGES: usize = 40;

fn send(world: &World, thread: &str, n: usize) -> Value {
    let (text, key) = (format!("message {n}"), format!("k{n}"));
    world.muleteer(&["thread", "send", thread, &text, "--key", &key, "--json"]).json()
}

/// Returns the texts of all messages, the answers behind their questions.
fn texts(shown: &Value) -> Vec<String> {
    let all = shown["messages"].as_array().expect("messages");
    all.iter()
        .map(|message| message["text"].as_str().unwrap_or_default().to_string())
        .collect()
}

/// The live view begins with messages that left the memory, and goes on to the newest.
fn check_live_view(world: &World, thread: &str) {
    let args = ["chat", "--thread", thread, "--history", "80"];
    let mut terminal = world.on_a_terminal(&args, &[]);
    terminal.sees(&format!("{MESSAGES}: message {}", MESSAGES - 1));
    let bytes = String::from_utf8_lossy(&terminal.bytes()).into_owned();
    for n in 0..MESSAGES {
        let answer = format!("{}: message {n}", n + 1);
        assert!(bytes.contains(&answer), "{answer}: {bytes}");
    }
    terminal.edits();
    terminal.keys("\x04");
    assert_eq!(terminal.ended(), Some(0));
}

fn remove_database(world: &World) {
    for name in ["muleteer.db", "muleteer.db-wal", "muleteer.db-shm"] {
        let _ = std::fs::remove_file(world.state().join(name));
    }
}

#[test]
fn messages_that_left_the_memory_are_shown_and_their_keys_stay_known() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let thread = open(&world, &repo, ECHO);
    let sent: Vec<Value> = (0..MESSAGES).map(|n| send(&world, &thread, n)).collect();
    wait_until("all answers", PATIENCE, || {
        let states = states(&show(&world, &thread));
        (states.len() == MESSAGES && states.iter().all(|state| state == "answered")).then_some(())
    });
    let live = show(&world, &thread);
    let said = texts(&live);
    assert_eq!((said.len(), &live["message_count"]), (MESSAGES * 2, &(MESSAGES * 2).into()));
    for n in 0..MESSAGES {
        let wanted = [format!("message {n}"), format!("{}: message {n}", n + 1)];
        for text in wanted {
            assert_eq!(said.iter().filter(|one| **one == text).count(), 1, "{text}: {said:?}");
        }
    }
    let check_key = || {
        assert_eq!(send(&world, &thread, 0)["message_id"], sent[0]["message_id"]);
        let args = ["thread", "send", &thread, "message 0", "--key", "k0", "--wait"];
        assert_eq!(world.muleteer(&args).ok(), "1: message 0");
    };
    check_key();
    check_live_view(&world, &thread);
    daemon.kill_9();
    assert_eq!(show(&world, &thread), live, "from the disk");
    remove_database(&world);
    assert_eq!(show(&world, &thread), live, "from the events");
    let mut daemon = world.daemon();
    assert_eq!(show(&world, &thread), live, "from a database that was filled again");
    check_key();
    // A database that is lost while its daemon is killed again and again.
    for _ in 0..3 {
        daemon.kill_9();
        remove_database(&world);
        daemon = world.daemon();
    }
    check_key();
    assert_eq!(show(&world, &thread), live);
    assert_eq!(repo.effects("heard").len(), MESSAGES, "nothing was said twice");
    world.finish(Some(daemon));
}
