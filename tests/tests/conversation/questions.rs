//! Questions of agents, from the request to the answer, over killed processes.

use crate::{ECHO, ask, open, show, states};
use muleteer_process::fault::{POINTS, QUESTION_POINTS};
use muleteer_tests::{PATIENCE, Repo, World, wait_until};
use serde_json::{Value, json};

/// An agent that asks for one permission and then works.
const ASKS: &str = "
v: 1
turns:
  - repeat: true
    steps:
      - ask: {permission: \"push the branch\"}
      - run: echo worked >> worked
      - result: {status: success, summary: done}
";

fn spawn(world: &World, repo: &Repo) -> String {
    let file = world.path().join("scenario.yaml");
    std::fs::write(&file, ASKS).expect("a scenario");
    let file = file.display().to_string();
    world.muleteer(&["spawn", "developer", repo.to_str(), "do it", "--scenario", &file]).ok()
}

fn questions(world: &World, all: bool) -> Vec<Value> {
    let mut args = vec!["questions", "--json"];
    args.extend(all.then_some("--all"));
    world.muleteer(&args).json()["questions"].as_array().expect("questions").clone()
}

/// Waits until one question is open, and returns it.
fn asked(world: &World) -> Value {
    wait_until("a question", PATIENCE, || {
        let open = questions(world, false);
        (open.len() == 1).then(|| open[0].clone())
    })
}

/// Waits until the only question is delivered, and returns it.
fn delivered(world: &World, why: &str) -> Value {
    wait_until(&format!("the delivery ({why})"), PATIENCE, || {
        let all = questions(world, true);
        assert_eq!(all.len(), 1, "{why}: {all:?}");
        (all[0]["state"] == "delivered").then(|| all[0].clone())
    })
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

#[test]
fn first_answer_wins_and_later_ones_name_it() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = spawn(&world, &repo);
    let question = asked(&world);
    assert_eq!(
        (text(&question, "kind"), text(&question, "state"), text(&question, "dispatch_id")),
        ("permission", "open", id.as_str()),
        "{question}"
    );
    assert!(text(&question, "text").contains("push the branch"), "{question}");
    assert_eq!(world.dispatch(&id)["waiting_for"][0]["request_id"], question["id"]);
    let shown = world.muleteer(&["questions"]).ok();
    assert!(shown.contains("push the branch") && shown.contains("muleteer answer"), "{shown}");

    let name = text(&question, "id");
    let answered = world.muleteer(&["answer", name, "allow", "--json"]).json();
    assert_eq!(answered, json!({"dispatch_id": id, "request_id": name, "answer": "allow"}));
    let late = world.muleteer(&["answer", name, "deny", "--json"]).run();
    let error = (late.code, late.error_code());
    assert_eq!(error, (Some(3), "E_ALREADY_ANSWERED".to_string()), "{late:?}");
    let message = late.json()["error"]["message"].to_string();
    assert!(message.contains("operator") && message.contains("allow"), "{message}");

    assert_eq!(world.wait_for_end(&id)["state"], "success");
    let closed = delivered(&world, "at the end");
    assert_eq!(closed["answered_by"], json!({"adapter": "cli", "user": "operator"}), "{closed}");
    assert_eq!(closed["answer"], json!({"options": ["allow"], "text": ""}), "{closed}");
    let journal = world.muleteer(&["journal", &id]).ok();
    let lines = ["BLOCKED: waits for an answer", "Answer received: allowed by operator"];
    assert!(lines.iter().all(|line| journal.contains(line)), "{journal}");
    world.finish(Some(daemon));
}

#[test]
fn process_that_waits_longer_than_the_hold_ends_and_the_answer_resumes_it() {
    let world = World::new();
    world.configure("questions:\n  hold: 1s\n");
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = spawn(&world, &repo);
    let question = asked(&world);
    wait_until("the end of the process", PATIENCE, || {
        let entry = world.dispatch(&id);
        (entry["state"] == "waiting" && entry["pid"].is_null()).then_some(())
    });
    assert_eq!(asked(&world)["id"], question["id"], "the question is still open");
    assert_eq!(world.dispatch(&id)["waiting_for"][0]["request_id"], question["id"]);
    world.muleteer(&["answer", text(&question, "id"), "allow"]).ok();
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    assert_eq!(repo.effects("worked"), ["worked"]);
    delivered(&world, "to the successor");
    world.finish(Some(daemon));
}

#[test]
fn answer_to_a_killed_agent_reaches_its_successor() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = spawn(&world, &repo);
    let question = asked(&world);
    world.kill_9(world.dispatch(&id)["pid"].as_u64().expect("a process") as u32);
    world.muleteer(&["answer", text(&question, "id"), "allow"]).ok();
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    assert_eq!(repo.effects("worked"), ["worked"]);
    assert_eq!(delivered(&world, "to the successor")["id"], question["id"]);
    world.finish(Some(daemon));
}

/// The points between a durable answer and the agent that has it.
const POINTS_OF_ANSWERS: [&str; 2] = ["link.before_answer", "link.after_answer"];

#[test]
fn answer_is_delivered_once_whatever_daemon_is_killed() {
    for point in POINTS_OF_ANSWERS {
        assert!(POINTS.contains(&point), "{point}");
        let world = World::new();
        let repo = world.repo("repo");
        let mut first = world.daemon();
        let id = spawn(&world, &repo);
        let question = asked(&world);
        first.kill_9();
        let mut killed = world.daemon_with(&[("MULETEER_FAULT", &format!("{point}=kill"))]);
        let answer = ["answer", text(&question, "id"), "allow", "--json"];
        let answered = world.muleteer(&answer).run();
        assert_eq!(answered.code, Some(0), "{point}: {answered:?}");
        killed.ended();
        assert_eq!(world.wait_for_end(&id)["state"], "success", "{point}");
        assert_eq!(repo.effects("worked"), ["worked"], "{point}");
        let closed = delivered(&world, point);
        assert_eq!(closed["answer"]["options"], json!(["allow"]), "{point}");
        let answers = world.events_of(&id, "permission_answered");
        assert!(answers.iter().all(|event| event["answer"] == "allow"), "{point}: {answers:?}");
    }
}

#[test]
fn question_of_a_killed_agent_waits_over_daemons_and_is_asked_once() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut first = world.daemon();
    let id = spawn(&world, &repo);
    let question = asked(&world);
    let pid = world.dispatch(&id)["pid"].as_u64().expect("a process") as u32;
    first.kill_9();
    world.kill_9(pid);
    let daemon = world.daemon();
    wait_until("the successor to ask again", PATIENCE, || {
        (world.events_of(&id, "permission_requested").len() == 2).then_some(())
    });
    let again = asked(&world);
    assert_eq!(again["id"], question["id"], "asking again is the same question: {again}");
    world.muleteer(&["answer", &id, "deny"]).ok();
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    assert_eq!(delivered(&world, "at last")["answer"]["options"], json!(["deny"]));
    world.finish(Some(daemon));
}

#[test]
fn stall_of_a_conversation_is_a_question_and_a_respawn_answers_it() {
    let world = World::new();
    world.configure("categories:\n  conversational:\n    inactivity_timeout: 3s\n");
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let thread = open(&world, &repo, HANGS);
    world.muleteer(&["thread", "send", &thread, "hello"]).ok();
    let question = asked(&world);
    assert_eq!(
        (text(&question, "kind"), text(&question, "thread_id"), text(&question, "asked_by")),
        ("stall", thread.as_str(), "muleteer"),
        "{question}"
    );
    let options: Vec<_> = question["options"].as_array().expect("options").iter().collect();
    let ids: Vec<_> = options.iter().map(|option| text(option, "id")).collect();
    assert_eq!(ids, ["respawn", "abandon", "leave"]);
    let shown = show(&world, &thread);
    assert_eq!((&shown["open_questions"], &shown["questions"][0]), (&json!(1), &question));
    let stalled = shown["dispatch_id"].clone();

    let name = text(&question, "id");
    let wrong = world.muleteer(&["answer", name, "perhaps", "--json"]).run();
    assert_eq!((wrong.code, wrong.error_code()), (Some(2), "E_BAD_INPUT".into()), "{wrong:?}");
    std::fs::write(world.path().join("scenario.yaml"), ECHO).expect("a scenario");
    world.muleteer(&["answer", name, "respawn"]).ok();
    let closed = delivered(&world, "the respawn");
    assert_eq!(closed["answer"]["options"], json!(["respawn"]), "{closed}");
    wait_until("another agent", PATIENCE, || {
        let shown = show(&world, &thread);
        let is_new = shown["dispatch_id"].is_string() && shown["dispatch_id"] != stalled;
        (is_new && states(&shown).last().is_some_and(|state| state == "answered")).then_some(())
    });
    let late = world.muleteer(&["answer", name, "leave", "--json"]).run();
    assert_eq!((late.code, late.error_code()), (Some(3), "E_ALREADY_ANSWERED".into()), "{late:?}");
    world.finish(Some(daemon));
}

/// An agent of a thread whose first turn never ends.
const HANGS: &str = "v: 1\nturns:\n  - steps:\n      - say: I begin\n      - hang: {for: 1h}\n";

fn count(world: &World, name: &str) -> usize {
    world.events().iter().filter(|event| event["event"] == name).count()
}

#[test]
fn stall_is_answered_once_whatever_daemon_is_killed() {
    for point in QUESTION_POINTS {
        let world = World::new();
        world.configure("categories:\n  conversational:\n    inactivity_timeout: 3s\n");
        let repo = world.repo("repo");
        let mut killed = world.daemon_with(&[("MULETEER_FAULT", &format!("{point}=kill"))]);
        let thread = open(&world, &repo, HANGS);
        world.muleteer(&["thread", "send", &thread, "hello"]).ok();
        if *point == "question.asked" {
            killed.ended();
        }
        let question = asked(&world);
        std::fs::write(world.path().join("scenario.yaml"), ECHO).expect("a scenario");
        let answered =
            world.muleteer(&["answer", text(&question, "id"), "respawn", "--json"]).run();
        assert_eq!(answered.code, Some(0), "{point}: {answered:?}");
        killed.ended();
        start_daemon(&world);
        let closed = delivered(&world, point);
        assert_eq!(closed["answer"]["options"], json!(["respawn"]), "{point}: {closed}");
        wait_until(&format!("the respawned agent ({point})"), PATIENCE, || {
            let shown = show(&world, &thread);
            let is_answered = states(&shown).last().is_some_and(|state| state == "answered");
            (shown["message_count"].as_u64() >= Some(3) && is_answered).then_some(())
        });
        let counts = ["question_asked", "question_answered", "message_accepted"];
        assert_eq!(counts.map(|name| count(&world, name)), [1, 1, 2], "{point}");
        assert_eq!(count(&world, "dispatch_created"), 2, "{point}: one respawn");
        world.finish(None);
    }
}

/// Starts a daemon unless one runs: the verbs that read do without one.
fn start_daemon(world: &World) {
    world.muleteer(&["adapter", "list"]).ok();
}

/// An agent of a thread that asks for permission in each turn.
const ASKS_IN_A_THREAD: &str = "
v: 1
turns:
  - repeat: true
    steps:
      - run: printf '%s\\n' \"$prompt\" >> heard
      - ask: {permission: \"push the branch\"}
      - run: echo worked >> worked
      - say: \"${turn}: ${prompt}\"
";

fn reply(answered: &Value) -> &str {
    answered["answer"]["text"].as_str().unwrap_or_default()
}

#[test]
fn message_that_fits_is_the_answer_and_any_other_goes_to_the_agent() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let thread = open(&world, &repo, ASKS_IN_A_THREAD);
    world.muleteer(&["thread", "send", &thread, "hello"]).ok();
    let first = asked(&world);
    world.muleteer(&["thread", "send", &thread, "tell me more"]).ok();
    wait_until("the message to be the agent's", PATIENCE, || {
        let states = states(&show(&world, &thread));
        (states.len() == 2 && states[1] != "accepted").then_some(())
    });
    assert_eq!(asked(&world)["id"], first["id"], "a text never answers a permission");
    let answered = ask(&world, &thread, "Yes");
    let id = text(&first, "id");
    assert_eq!(reply(&answered), format!("Answered question {id} of product-analyst: allow"));
    let second = wait_until("the next question", PATIENCE, || {
        let open = questions(&world, false);
        open.into_iter().find(|question| question["id"] != first["id"])
    });
    let id = text(&second, "id");
    let command = format!("/answer {id} deny");
    let answered = ask(&world, &thread, &command);
    assert_eq!(reply(&answered), format!("Answered question {id} of product-analyst: deny"));
    let late = ask(&world, &thread, &format!("/answer {id} allow"));
    assert!(reply(&late).starts_with("E_ALREADY_ANSWERED"), "{late}");
    assert!(reply(&late).contains("operator"), "{late}");
    wait_until("the end of the turns", PATIENCE, || {
        states(&show(&world, &thread)).iter().all(|state| state == "answered").then_some(())
    });
    assert_eq!(repo.effects("heard"), ["hello", "tell me more"]);
    world.finish(Some(daemon));
}

#[test]
fn answer_in_a_message_counts_once_whatever_daemon_is_killed() {
    for point in [
        "thread.accepted",
        "thread.command_done",
        "thread.command_recorded",
        "link.before_answer",
        "link.after_answer",
    ] {
        assert!(POINTS.contains(&point) || point.starts_with("thread."), "{point}");
        let world = World::new();
        let repo = world.repo("repo");
        let mut first = world.daemon();
        let thread = open(&world, &repo, ASKS_IN_A_THREAD);
        world.muleteer(&["thread", "send", &thread, "hello"]).ok();
        let question = asked(&world);
        first.kill_9();
        let mut killed = world.daemon_with(&[("MULETEER_FAULT", &format!("{point}=kill"))]);
        let args = ["thread", "send", &thread, "yes", "--key", "k", "--json"];
        let sent = world.muleteer(&args).run();
        assert_eq!(sent.code, Some(0), "{point}: {sent:?}");
        killed.ended();
        start_daemon(&world);
        let shown = wait_until(&format!("both answers ({point})"), PATIENCE, || {
            let shown = show(&world, &thread);
            (states(&shown) == ["answered", "answered"]).then_some(shown)
        });
        assert_eq!(shown["message_count"], 4, "{point}: {shown}");
        let closed = delivered(&world, point);
        assert_eq!(closed["id"], question["id"], "{point}");
        assert_eq!(closed["answer"]["options"], json!(["allow"]), "{point}: {closed}");
        assert_eq!(repo.effects("heard"), ["hello"], "{point}: the agent got no second prompt");
        assert_eq!(repo.effects("worked"), ["worked"], "{point}");
        assert_eq!(count(&world, "permission_answered"), 1, "{point}");
        world.finish(None);
    }
}
