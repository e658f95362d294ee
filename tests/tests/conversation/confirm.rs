//! Commands of a coordinator that wait for a person's yes, with killed daemons.

use crate::{ask, open, show};
use muleteer_tests::{PATIENCE, Repo, World, wait_until};
use serde_json::Value;

/// Each of its agents answers with commands; only those of a coordinator count.
const COMMANDING: &str = "
v: 1
turns:
  - repeat: true
    steps:
      - run: printf '%s\\n' \"$prompt\" >> heard
      - say: '{\"response\": \"I propose this.\", \"commands\": [ \
        {\"action\": \"status\"}, \
        {\"action\": \"spawn\", \"role\": \"reviewer\", \"prompt\": \"review it\"}, \
        {\"action\": \"spawn\", \"role\": \"tester\", \"prompt\": \"test it\"}]}'
";

fn questions(world: &World) -> Vec<Value> {
    let all = world.muleteer(&["questions", "--all", "--json"]).json();
    all["questions"].as_array().expect("questions").clone()
}

/// Waits for the only question, and returns it.
fn question_in(world: &World, state: &str) -> Value {
    wait_until(&format!("the question to be {state}"), PATIENCE, || {
        let all = questions(world);
        assert!(all.len() < 2, "it is asked once: {all:?}");
        all.first().filter(|question| question["state"] == state).cloned()
    })
}

/// Opens a thread with a coordinator.
fn coordinated(world: &World, repo: &Repo) -> String {
    world.configure("coordinator:\n  commands: ask\n");
    let first = world.daemon();
    let thread = open(world, repo, COMMANDING);
    let given = ask(world, &thread, "/role project-coordinator");
    assert_eq!(given["state"], "answered", "{given}");
    drop(first);
    thread
}

/// Starts a daemon unless a verb has started one.
fn start_daemon(world: &World) {
    world.muleteer(&["adapter", "list"]).ok();
}

fn roles(world: &World) -> Vec<String> {
    let status = world.status();
    let all = status["dispatches"].as_array().expect("dispatches").iter();
    let mut roles: Vec<_> =
        all.map(|one| one["role"].as_str().unwrap_or_default().to_string()).collect();
    roles.sort();
    roles
}

fn count(world: &World, thread: &str, text: &str) -> usize {
    show(world, thread)["messages"].to_string().matches(text).count()
}

#[test]
fn commands_are_carried_out_once_after_a_yes_whatever_daemon_is_killed() {
    for point in [
        "thread.decided:3",
        "question.answered",
        "question.before_effect",
        "thread.accepted:2",
        "question.after_effect",
        "thread.command_done:2",
    ] {
        let world = World::new();
        let repo = world.repo("repo");
        let thread = coordinated(&world, &repo);
        let fault = format!("{point}=kill");
        let mut killed = world.daemon_with(&[("MULETEER_FAULT", fault.as_str())]);
        world.muleteer(&["thread", "send", &thread, "begin", "--key", "k"]).run();
        if point.starts_with("thread.decided") {
            killed.ended();
            start_daemon(&world);
        }
        let question = question_in(&world, "open");
        assert_eq!(question["kind"], "approval", "{point}: {question}");
        let text = question["text"].as_str().expect("a text");
        let first = "- /spawn reviewer review it\n- /spawn tester test it";
        assert!(text.contains(first) && !text.contains("/status"), "{point}: {text}");
        assert_eq!(roles(&world), ["project-coordinator"], "{point}: nothing is carried out");
        let id = question["id"].as_str().expect("an id");
        world.muleteer(&["answer", id, "approve"]).run();
        killed.ended();
        start_daemon(&world);
        question_in(&world, "delivered");
        wait_until("the agents of both commands", PATIENCE, || {
            (count(&world, &thread, "Dispatched `") == 2).then_some(())
        });
        wait_until("both agents to be told", PATIENCE, || {
            (repo.effects("heard").len() == 3).then_some(())
        });
        assert_eq!(roles(&world), ["project-coordinator", "reviewer", "tester"], "{point}");
        let late = world.muleteer(&["answer", id, "reject", "--json"]).run();
        assert_eq!(late.error_code(), "E_ALREADY_ANSWERED", "{point}");
        world.finish(None);
    }
}

#[test]
fn rejected_commands_are_told_to_their_agent_and_not_carried_out() {
    let world = World::new();
    let repo = world.repo("repo");
    let thread = coordinated(&world, &repo);
    let daemon = world.daemon();
    world.muleteer(&["thread", "send", &thread, "begin"]).ok();
    let question = question_in(&world, "open");
    let id = question["id"].as_str().expect("an id");
    world.muleteer(&["answer", id, "reject: too early"]).ok();
    question_in(&world, "delivered");
    // The turn that hears of it answers no person, so its own commands are refused.
    wait_until("the next turn", PATIENCE, || {
        (count(&world, &thread, "The agent's commands are refused") == 1).then_some(())
    });
    let heard = repo.effects("heard");
    let told = "rejected your commands, and none of them was carried out. Reason: too early";
    assert!(heard.len() == 2 && heard[1].ends_with(told), "{heard:?}");
    assert_eq!(roles(&world), ["project-coordinator"]);
    assert_eq!(questions(&world).len(), 1);
    world.finish(Some(daemon));
}
