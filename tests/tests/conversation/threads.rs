//! Threads and their messages, as scripts use them.

use crate::{ECHO, SLOW, ask, open, show, states};
use muleteer_process::fault::HOLD_POINTS;
use muleteer_tests::{PATIENCE, World, wait_until};
use serde_json::json;

#[test]
fn thread_documents_match_the_contract() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let thread = open(&world, &repo, ECHO);
    let answered = ask(&world, &thread, "hello");
    let (message, answer) = (&answered["message_id"], &answered["answer"]);
    let expected = json!({
        "thread_id": thread,
        "message_id": message,
        "state": "answered",
        "answer": {"message_id": answer["message_id"], "text": "1: hello"},
    });
    assert_eq!(answered, expected);
    let shown = show(&world, &thread[..5]);
    let dispatch = shown["dispatch_id"].as_str().expect("a dispatch").to_string();
    assert_eq!(shown["title"], "hello");
    assert_eq!((&shown["state"], &shown["role"]), (&json!("open"), &json!("product-analyst")));
    assert_eq!(shown["message_count"], 2);
    assert_eq!(shown["tasks"][0]["dispatches"], json!([dispatch]));
    let (first, second) = (&shown["messages"][0], &shown["messages"][1]);
    assert_eq!((&first["direction"], &first["author"]["kind"]), (&json!("in"), &json!("person")));
    assert_eq!((&second["direction"], &second["author"]["kind"]), (&json!("out"), &json!("agent")));
    assert_eq!(second["answers"], json!([message]));
    let text = world.muleteer(&["thread", "show", &thread]).ok();
    let task = shown["tasks"][0]["id"].as_str().expect("a task");
    assert!(text.contains(&format!("task {task} · active · hello · {dispatch}")), "{text}");
    let listed = world.muleteer(&["thread", "list", "--json"]).json();
    assert_eq!(listed["threads"][0]["id"], json!(thread));
    // A conversation that owes nothing is idle, and counts as ended.
    let waited = world.muleteer(&["wait", &dispatch, "--json"]).json();
    assert_eq!(waited["dispatches"][0]["state"], "idle");
    world.finish(Some(daemon));
}

#[test]
fn the_same_key_is_the_same_message_after_restarts() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let thread = open(&world, &repo, ECHO);
    let send = |text: &str| {
        let args = ["thread", "send", &thread, text, "--key", "k1", "--wait", "--json"];
        world.muleteer(&args).json()
    };
    let first = send("once");
    daemon.kill_9();
    let daemon = world.daemon();
    assert_eq!(send("once"), first);
    assert_eq!(send("another text"), first, "the key decides");
    assert_eq!(repo.effects("heard"), ["once"]);
    world.finish(Some(daemon));
}

#[test]
fn conversation_continues_over_three_killed_daemons() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let thread = open(&world, &repo, ECHO);
    let mut dispatches = vec![];
    for n in 1..=4 {
        let answered = ask(&world, &thread, &format!("message {n}"));
        assert_eq!(answered["answer"]["text"], format!("{n}: message {n}"), "{answered}");
        dispatches.push(show(&world, &thread)["dispatch_id"].clone());
        daemon.kill_9();
        daemon = world.daemon();
    }
    dispatches.dedup();
    assert_eq!(dispatches.len(), 1, "one session: {dispatches:?}");
    assert_eq!(show(&world, &thread)["message_count"], 8);
    world.finish(Some(daemon));
}

#[test]
fn messages_to_a_busy_agent_keep_their_order_and_say_why_they_wait() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let thread = open(&world, &repo, SLOW);
    for text in ["one", "two", "three"] {
        world.muleteer(&["thread", "send", &thread, text]).ok();
    }
    let waiting = wait_until("the second message to wait behind the first", PATIENCE, || {
        let shown = show(&world, &thread);
        (states(&shown) == ["read", "queued", "queued"]).then_some(shown)
    });
    let reason = waiting["messages"][1]["reason"].as_str().expect("a reason");
    assert_eq!(reason, "queued behind turn 1 of product-analyst");
    repo.write("go", "");
    let args = ["thread", "send", &thread, "four", "--wait"];
    assert_eq!(world.muleteer(&args).ok(), "4: four");
    assert_eq!(repo.effects("heard"), ["one", "two", "three", "four"]);
    assert_eq!(states(&show(&world, &thread)), ["answered"; 4]);
    world.finish(Some(daemon));
}

#[test]
fn archived_thread_opens_again_when_somebody_writes() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let thread = open(&world, &repo, ECHO);
    ask(&world, &thread, "one");
    world.muleteer(&["thread", "archive", &thread]).ok();
    assert_eq!(show(&world, &thread)["state"], "archived");
    assert_eq!(ask(&world, &thread, "two")["answer"]["text"], "2: two");
    assert_eq!(show(&world, &thread)["state"], "open");
    world.finish(Some(daemon));
}

#[test]
fn thread_is_shown_without_a_daemon() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let thread = open(&world, &repo, ECHO);
    ask(&world, &thread, "one");
    let live = show(&world, &thread);
    daemon.kill_9();
    assert_eq!(show(&world, &thread), live);
    let unknown = world.muleteer(&["thread", "show", "zzzz", "--json"]).run();
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    assert!(unknown.stdout.contains("E_NOT_FOUND"), "{unknown:?}");
}

#[test]
fn attached_file_reaches_the_agent() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let scenario = "
v: 1
turns:
  - steps:
      - run: cat \"$(printf '%s' \"$prompt\" | sed -n 's/^- \\(.*\\) (.*/\\1/p')\" > copy
      - say: done
";
    let thread = open(&world, &repo, scenario);
    let file = world.path().join("notes.txt");
    std::fs::write(&file, "the content").expect("a file");
    let file = file.to_str().expect("a path");
    let args = ["thread", "send", &thread, "look", "--file", file, "--wait", "--json"];
    assert_eq!(world.muleteer(&args).json()["state"], "answered");
    assert_eq!(repo.effects("copy"), ["the content"]);
    let shown = show(&world, &thread);
    let attached = &shown["messages"][0]["files"][0];
    assert_eq!((&attached["name"], &attached["bytes"]), (&json!("notes.txt"), &json!(11)));
    world.finish(Some(daemon));
}

#[test]
fn killed_agent_is_replaced_and_the_thread_says_so() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let thread = open(&world, &repo, SLOW);
    let waiting = ["thread", "send", &thread, "one"];
    world.muleteer(&waiting).ok();
    wait_until("the message to be read", PATIENCE, || {
        (states(&show(&world, &thread)) == ["read"]).then_some(())
    });
    let dispatch = show(&world, &thread)["dispatch_id"].clone();
    world.muleteer(&["kill", dispatch.as_str().expect("an id")]).ok();
    wait_until("the message to be explained", PATIENCE, || {
        (states(&show(&world, &thread)) == ["answered"]).then_some(())
    });
    repo.write("go", "");
    // The new agent gets a summary of the thread before the message.
    let answered = ask(&world, &thread, "two");
    let text = answered["answer"]["text"].as_str().expect("an answer");
    assert!(text.starts_with("1: # Context\n") && text.ends_with("# Message\n\ntwo"), "{text}");
    assert!(text.contains("## Results\n\n- product-analyst (killed"), "{text}");
    assert!(text.contains("## Conversation\n\n- ") && text.contains(": one\n"), "{text}");
    let shown = show(&world, &thread);
    assert_ne!(shown["dispatch_id"], dispatch);
    assert_eq!(shown["tasks"][0]["dispatches"].as_array().map(Vec::len), Some(2));
    let texts: Vec<_> = shown["messages"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|m| m["text"].to_string())
        .collect();
    assert!(texts.iter().any(|text| text.contains("has ended (killed)")), "{texts:?}");
    assert!(texts.iter().any(|text| text.contains("A new agent continues")), "{texts:?}");
    world.finish(Some(daemon));
}

#[test]
fn message_is_refused_with_a_reason_when_its_agent_cannot_start() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let thread = open(&world, &repo, ECHO);
    // The directory is gone when the first message begins the agent.
    std::fs::remove_dir_all(repo.to_str()).expect("the repository");
    let refused = world.muleteer(&["thread", "send", &thread, "hi", "--wait", "--json"]).run();
    assert_eq!(refused.code, Some(4), "{refused:?}");
    let document: serde_json::Value = serde_json::from_str(&refused.stdout).expect("JSON");
    assert_eq!(document["state"], "refused", "{document}");
    let reason = document["reason"].as_str().expect("a reason");
    assert!(reason.starts_with("E_PROJECT_NOT_FOUND"), "{reason}");
    world.finish(Some(daemon));
}

fn hold_for(world: &World, span: &str) {
    world.muleteer(&["config", "set", "categories.conversational.idle_hold", span]).ok();
}

fn count(world: &World, kind: &str) -> usize {
    world.events().iter().filter(|event| event["event"] == kind).count()
}

fn dispatch(world: &World, thread: &str) -> String {
    show(world, thread)["dispatch_id"].as_str().expect("a dispatch").to_string()
}

fn state(world: &World, thread: &str) -> String {
    let shown = world.muleteer(&["status", &dispatch(world, thread), "--json"]).json();
    shown["dispatches"][0]["state"].as_str().expect("a state").to_string()
}

#[test]
fn idle_process_takes_the_next_message_over_a_killed_daemon() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut first = world.daemon();
    hold_for(&world, "1h");
    let thread = open(&world, &repo, ECHO);
    assert_eq!(ask(&world, &thread, "one")["answer"]["text"], "1: one");
    let id = dispatch(&world, &thread);
    // `wait` counts an idle process as ended.
    let waited = world.muleteer(&["wait", &id, "--json"]).json();
    assert_eq!(waited["dispatches"][0]["state"], "idle");
    assert_eq!(ask(&world, &thread, "two")["answer"]["text"], "2: two");
    first.kill_9();
    let daemon = world.daemon();
    assert_eq!(ask(&world, &thread, "three")["answer"]["text"], "3: three");
    let counts = ["agent_spawned", "agent_exited", "turn_finished"].map(|kind| count(&world, kind));
    assert_eq!(counts, [1, 0, 3]);
    assert_eq!(repo.effects("heard"), ["one", "two", "three"]);
    world.muleteer(&["close", &id]).ok();
    assert_eq!((state(&world, &thread), count(&world, "agent_exited")), ("killed".into(), 1));
    world.finish(Some(daemon));
}

#[test]
fn idle_process_ends_after_the_hold_whatever_daemon_is_killed() {
    for point in HOLD_POINTS {
        let world = World::new();
        let repo = world.repo("repo");
        let mut killed = world.daemon_with(&[("MULETEER_FAULT", &format!("{point}=kill"))]);
        hold_for(&world, "1s");
        let thread = open(&world, &repo, ECHO);
        assert_eq!(ask(&world, &thread, "one")["answer"]["text"], "1: one", "{point}");
        killed.ended();
        assert_eq!(count(&world, "agent_exited"), 0, "{point}");
        let daemon = world.daemon();
        let ended = || (count(&world, "dispatch_finished") == 1).then_some(());
        wait_until("the end of the hold", PATIENCE, ended);
        assert_eq!(state(&world, &thread), "idle", "{point}");
        assert_eq!(ask(&world, &thread, "two")["answer"]["text"], "2: two", "{point}");
        let counts = ["hold_expired", "agent_spawned", "turn_finished"];
        let counts = counts.map(|kind| count(&world, kind));
        assert_eq!((&counts[1..], counts[0] >= 1), (&[2, 2][..], true), "{point}: {counts:?}");
        assert_eq!(repo.effects("heard"), ["one", "two"], "{point}");
        world.finish(Some(daemon));
    }
}
