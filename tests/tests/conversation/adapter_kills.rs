//! Adapters and daemons that are killed on the way of a message.

use crate::ECHO;
use crate::adapters::Outside;
use muleteer_process::fault::ADAPTER_POINTS;
use muleteer_tests::{PATIENCE, wait_until};
use serde_json::json;
use std::time::Duration;

/// The fault points of a conversation over an adapter.
fn points() -> Vec<String> {
    let later = ["adapter.sent:2", "adapter.given:2", "adapter.posted:2"];
    let below = ["thread.accepted", "thread.decided", "thread.delivered"];
    // No user of the test interrupts a turn.
    let of_messages = ADAPTER_POINTS.iter().filter(|point| **point != "adapter.interrupted");
    of_messages.chain(&later).chain(&below).map(ToString::to_string).collect()
}

#[test]
fn posts_appear_once_and_in_order_whatever_daemon_is_killed() {
    for point in points() {
        let outside = Outside::new(ECHO, "");
        outside.writes("C1/1", "e1", "one");
        let scenario = outside.world.path().join("scenario.yaml");
        let mut killed = outside.world.daemon_unready(&[
            ("MULETEER_FAULT", &format!("{point}=kill")),
            ("MULETEER_SCENARIO", scenario.to_str().expect("a path")),
        ]);
        // The second message follows the first answer, or the death of the daemon.
        wait_until(&format!("{point}: a post or a death"), PATIENCE, || {
            (!outside.posts("C1/1").is_empty() || killed.has_ended()).then_some(())
        });
        outside.writes("C1/1", "e2", "two");
        killed.ended();
        let daemon = outside.daemon();
        outside.wait_for_posts("C1/1", &["1: one", "2: two"]);
        outside.wait_for_entry(&format!("{point}: nothing to be owed"), |entry| {
            entry["outbox"]["pending"] == 0
        });
        assert_eq!(outside.repo.effects("heard"), ["one", "two"], "{point}");
        let entry = outside.entry();
        assert_eq!(entry["inbox"]["accepted"], 2, "{point}: {entry}");
        outside.world.finish(Some(daemon));
    }
}

#[test]
fn first_message_loses_its_role_after_a_kill_too() {
    let outside = Outside::new(ECHO, "");
    let path = outside.world.path().join("config/muleteer/config.yaml");
    let config = std::fs::read_to_string(&path).expect("a configuration");
    let config = config.replace("[U1]}", "[U1], may: [talk, spawn]}");
    std::fs::write(&path, config).expect("a configuration");
    outside.writes("C1/1", "e1", "@tester one");
    let scenario = outside.world.path().join("scenario.yaml");
    let mut killed = outside.world.daemon_unready(&[
        ("MULETEER_FAULT", "adapter.thread_opened=kill"),
        ("MULETEER_SCENARIO", scenario.to_str().expect("a path")),
    ]);
    killed.ended();
    let daemon = outside.daemon();
    outside.wait_for_posts("C1/1", &["1: one"]);
    assert_eq!(outside.thread("C1/1")["role"], "tester");
    outside.world.finish(Some(daemon));
}

/// `MULETEER_ADAPTER_KILLS=100` kills it so often, under ten times as many messages in each
/// direction.
#[test]
fn killed_adapter_delivers_each_message_once_in_both_directions() {
    let kills = std::env::var("MULETEER_ADAPTER_KILLS").ok().and_then(|text| text.parse().ok());
    campaign(kills.unwrap_or(20), kills.unwrap_or(20) * 10);
}

/// Kills the adapter while people write in several conversations.
fn campaign(kills: usize, messages: usize) {
    const CONVERSATIONS: usize = 4;
    let outside = Outside::new(ECHO, "    max_restarts: 1000\n");
    let daemon = outside.daemon();
    let external = |number: usize| format!("C1/{}", number % CONVERSATIONS);
    let text = |number: usize| format!("message {number}");
    for number in 0..messages {
        outside.writes(&external(number), &format!("e{number}"), &text(number));
        if number % (messages / kills) == messages / kills / 2 {
            let entry = outside.wait_for_entry("the adapter to run", |entry| {
                entry["state"] == "running" && entry["connected"] == true
            });
            let pid = entry["pid"].as_u64().expect("a pid");
            outside.world.kill_9(u32::try_from(pid).expect("a pid"));
            outside.wait_for_entry("its death to be noticed", |now| now["pid"] != pid);
        }
    }
    // Each message is a turn of an agent, and a loaded machine takes a second for it.
    let deadline = PATIENCE + Duration::from_secs(messages as u64);
    wait_until("all posts", deadline, || {
        let entry = outside.entry();
        let is_done = entry["inbox"]["accepted"] == messages && entry["outbox"]["pending"] == 0;
        is_done.then_some(())
    });
    let mut heard = outside.repo.effects("heard");
    for conversation in 0..CONVERSATIONS {
        let sent: Vec<_> = (conversation..messages).step_by(CONVERSATIONS).map(text).collect();
        let shown = outside.thread(&external(conversation));
        let all = shown["messages"].as_array().expect("messages");
        let inbound = all.iter().filter(|message| message["direction"] == "in");
        let inbound: Vec<_> = inbound.map(|message| message["text"].clone()).collect();
        assert_eq!(inbound, sent.iter().map(|text| json!(text)).collect::<Vec<_>>());
        let recorded = all.iter().filter(|message| message["direction"] == "out");
        let recorded: Vec<_> =
            recorded.map(|message| message["text"].as_str().unwrap_or_default()).collect();
        assert_eq!(outside.posts(&external(conversation)), recorded, "each post once, in order");
        assert!(all.iter().all(|one| one["state"] == "answered" || one["state"] == "posted"));
    }
    heard.sort();
    let mut expected: Vec<_> = (0..messages).map(text).collect();
    expected.sort();
    assert_eq!(heard, expected, "each message reached its agent once");
    let events = outside.world.events();
    let lost = events.iter().filter(|event| event["event"] == "adapter_lost").count();
    assert_eq!(lost, kills);
    outside.world.finish(Some(daemon));
}
