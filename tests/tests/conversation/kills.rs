//! Daemons that are killed on the way of a message.

use crate::{ECHO, SLOW, ask, open, show, states};
use muleteer_process::fault::THREAD_POINTS;
use muleteer_tests::{PATIENCE, World, wait_until};

/// The fault points that lie between the acceptance of a message and its answer.
fn points() -> Vec<String> {
    let of_threads = THREAD_POINTS.iter().map(ToString::to_string);
    let later = ["thread.decided:2"];
    let below = ["gate.create_durable", "life.attempt_durable", "link.before_prompt"];
    let below = below.iter().chain(&["link.after_prompt", "life.batch_durable"]);
    of_threads.chain(later.iter().chain(below).map(ToString::to_string)).collect()
}

#[test]
fn message_is_delivered_once_whatever_daemon_is_killed() {
    for point in points() {
        let world = World::new();
        let repo = world.repo("repo");
        let mut first = world.daemon();
        let thread = open(&world, &repo, ECHO);
        first.kill_9();
        let mut killed = world.daemon_with(&[("MULETEER_FAULT", &format!("{point}=kill"))]);
        // The client sends the message again to the next daemon, under its key.
        let args = ["thread", "send", &thread, "hello", "--key", "k", "--json"];
        let sent = world.muleteer(&args).run();
        assert_eq!(sent.code, Some(0), "{point}: {sent:?}");
        killed.ended();
        let answered = ask(&world, &thread, "again");
        assert_eq!(answered["answer"]["text"], "2: again", "{point}: {answered}");
        assert_eq!(repo.effects("heard"), ["hello", "again"], "{point}");
        let shown = show(&world, &thread);
        assert_eq!(states(&shown), ["answered", "answered"], "{point}: {shown}");
        assert_eq!(shown["message_count"], 4, "{point}: {shown}");
        let is_accepted = |event: &&serde_json::Value| event["event"] == "message_accepted";
        assert_eq!(world.events().iter().filter(is_accepted).count(), 2, "{point}");
    }
}

#[test]
fn queued_messages_keep_their_order_over_killed_daemons() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let thread = open(&world, &repo, SLOW);
    for text in ["one", "two", "three"] {
        world.muleteer(&["thread", "send", &thread, text]).ok();
        daemon.kill_9();
        daemon = world.daemon();
    }
    repo.write("go", "");
    wait_until("all answers", PATIENCE, || {
        let shown = show(&world, &thread);
        (states(&shown) == ["answered"; 3]).then_some(())
    });
    assert_eq!(repo.effects("heard"), ["one", "two", "three"]);
    world.finish(Some(daemon));
}
