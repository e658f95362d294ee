//! `muleteer mcp`: the tools of agents, over killed relays and daemons.

use crate::{SLOW, open, show};
use muleteer_process::fault::TOOL_POINTS;
use muleteer_tests::mcp::Mcp;
use muleteer_tests::{PATIENCE, Repo, World, wait_until};
use serde_json::{Value, json};

/// Opens a thread whose agent is in the middle of a turn, and returns both.
fn busy_agent(world: &World, repo: &Repo) -> (String, String) {
    let thread = open(world, repo, SLOW);
    world.muleteer(&["thread", "send", &thread, "begin"]).ok();
    let dispatch = wait_until("the agent's turn", PATIENCE, || {
        let id = show(world, &thread)["dispatch_id"].as_str()?.to_string();
        (repo.effects("heard").len() == 1).then_some(id)
    });
    (thread, dispatch)
}

fn questions(world: &World) -> Vec<Value> {
    let all = world.muleteer(&["questions", "--all", "--json"]).json();
    all["questions"].as_array().expect("questions").clone()
}

fn question_in(world: &World, state: &str) -> String {
    wait_until(&format!("the question to be {state}"), PATIENCE, || {
        let all = questions(world);
        assert!(all.len() < 2, "it is asked once: {all:?}");
        let question = all.first()?;
        (question["state"] == state).then(|| question["id"].as_str().unwrap_or_default().into())
    })
}

fn let_go(repo: &Repo) {
    repo.write("go", "");
}

#[test]
fn answer_reaches_a_call_that_outlives_the_daemon() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut first = world.daemon();
    let (_, dispatch) = busy_agent(&world, &repo);
    let mcp = Mcp::of(&world, &dispatch);
    let asking = mcp.begin("ask_human", json!({"question": "Which colour?", "options": ["red"]}));
    let question = question_in(&world, "open");
    first.kill_9();
    let second = world.daemon();
    world.muleteer(&["answer", &question, "--text", "blue"]).ok();
    let answer = mcp.end(asking);
    assert_eq!(answer["answer"], "blue", "{answer}");
    question_in(&world, "delivered");
    // It waits for its turn to end, and gets no second copy of the answer.
    let_go(&repo);
    world.wait_for_state(&dispatch, &["idle"]);
    assert_eq!(repo.effects("heard"), ["begin"]);
    mcp.close();
    world.finish(Some(second));
}

#[test]
fn options_that_contain_commas_stay_apart() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let (_, dispatch) = busy_agent(&world, &repo);
    let mcp = Mcp::of(&world, &dispatch);
    let options = json!(["Red", "warm", "Red, warm", "Blue, dark"]);
    for (words, chosen) in [
        (&["Red", "warm"][..], json!(["Red", "warm"])),
        (&["Red, warm", "Blue, dark"], json!(["Red, warm", "Blue, dark"])),
        (&["warm, Blue, dark"], json!(["warm", "Blue, dark"])),
    ] {
        let asked = json!({"question": words.join("; "), "options": options, "multi": true});
        let asking = mcp.begin("ask_human", asked);
        let question = wait_until("the open question", PATIENCE, || {
            let open = questions(&world).into_iter().find(|one| one["state"] == "open")?;
            open["id"].as_str().map(String::from)
        });
        world.muleteer(&[&["answer", &question][..], words].concat()).ok();
        let answer = mcp.end(asking);
        assert_eq!(answer["options"], chosen, "{answer}");
    }
    let_go(&repo);
    world.wait_for_state(&dispatch, &["idle"]);
    mcp.close();
    world.finish(Some(daemon));
}

#[test]
fn daemon_that_dies_with_a_question_asks_nobody_twice() {
    let point = TOOL_POINTS[0];
    assert_eq!(point, "tool.asked");
    let world = World::new();
    let repo = world.repo("repo");
    let mut killed = world.daemon_with(&[("MULETEER_FAULT", &format!("{point}=kill"))]);
    let (_, dispatch) = busy_agent(&world, &repo);
    let mcp = Mcp::of(&world, &dispatch);
    let asking = mcp.begin("ask_human", json!({"question": "Which colour?"}));
    killed.ended();
    let second = world.daemon();
    let question = question_in(&world, "open");
    world.muleteer(&["answer", &question, "--text", "blue"]).ok();
    assert_eq!(mcp.end(asking)["answer"], "blue");
    assert_eq!(question_in(&world, "delivered"), question);
    mcp.close();
    let_go(&repo);
    world.finish(Some(second));
}

#[test]
fn message_of_an_agent_keeps_its_id_when_a_killed_daemon_had_recorded_it() {
    let point = TOOL_POINTS[2];
    assert_eq!(point, "tool.message_recorded");
    let world = World::new();
    let repo = world.repo("repo");
    let mut killed = world.daemon_with(&[("MULETEER_FAULT", &format!("{point}=kill"))]);
    let (_, dispatch) = busy_agent(&world, &repo);
    let mcp = Mcp::of(&world, &dispatch);
    let sending = mcp.begin("send_message", json!({"text": "I am at it."}));
    killed.ended();
    let second = world.daemon();
    let sent = mcp.end(sending);
    let is_it = |event: &Value| event["text"] == "I am at it.";
    let events = world.events().into_iter();
    let recorded: Vec<_> =
        events.filter(|event| event["event"] == "message_recorded" && is_it(event)).collect();
    assert_eq!(recorded.len(), 1, "{recorded:?}");
    assert_eq!(recorded[0]["message"], sent["message_id"]);
    // An equal call is another message.
    let other = mcp.call("send_message", json!({"text": "I am at it."}));
    assert_ne!(other["message_id"], sent["message_id"]);
    mcp.close();
    let_go(&repo);
    world.finish(Some(second));
}

#[test]
fn answer_begins_one_turn_if_the_relay_is_dead() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let (_, dispatch) = busy_agent(&world, &repo);
    let mut mcp = Mcp::of(&world, &dispatch);
    let _asking = mcp.begin("ask_human", json!({"question": "Which colour?"}));
    let question = question_in(&world, "open");
    mcp.kill_9();
    world.muleteer(&["answer", &question, "--text", "blue"]).ok();
    let_go(&repo);
    wait_until("the turn with the answer", PATIENCE, || {
        let heard = repo.read("heard");
        (heard.contains("Which colour?") && heard.contains("blue")).then_some(())
    });
    assert_eq!(question_in(&world, "delivered"), question);
    world.wait_for_state(&dispatch, &["idle"]);
    assert_eq!(repo.read("heard").matches("blue").count(), 1);
    drop(mcp);
    world.finish(Some(daemon));
}

#[test]
fn call_of_another_relay_gets_the_answer_that_the_first_one_could_not_take() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let (_, dispatch) = busy_agent(&world, &repo);
    let mut first = Mcp::of(&world, &dispatch);
    let _asking = first.begin("ask_human", json!({"question": "Which colour?"}));
    let question = question_in(&world, "open");
    first.kill_9();
    let second = Mcp::of(&world, &dispatch);
    let again = second.begin("ask_human", json!({"question": "Which colour?"}));
    world.muleteer(&["answer", &question, "--text", "blue"]).ok();
    let answer = second.end(again);
    assert_eq!((&answer["answer"], &answer["question_id"]), (&json!("blue"), &json!(question)));
    question_in(&world, "delivered");
    second.close();
    let_go(&repo);
    world.wait_for_state(&dispatch, &["idle"]);
    assert_eq!(repo.effects("heard"), ["begin"]);
    world.finish(Some(daemon));
}

/// Adds a role whose agents play the default scenario.
pub fn helper_role(world: &World) {
    let dir = world.path().join("config/muleteer/roles");
    std::fs::create_dir_all(&dir).expect("a folder");
    let role = "---\nname: helper\nbackend: rehearsal\n---\n\nYou help.\n";
    std::fs::write(dir.join("helper.md"), role).expect("a role");
}

fn children(world: &World, parent: &str) -> Vec<String> {
    let status = world.status();
    let all = status["dispatches"].as_array().expect("dispatches");
    let role = all.iter().filter(|one| one["role"] == "helper" && one["id"] != parent);
    role.map(|one| one["id"].as_str().unwrap_or_default().to_string()).collect()
}

#[test]
fn agent_is_drafted_once_for_a_call_whatever_daemon_is_killed() {
    for point in ["gate.create_durable:2", TOOL_POINTS[1]] {
        let world = World::new();
        helper_role(&world);
        let repo = world.repo("repo");
        let mut killed = world.daemon_with(&[("MULETEER_FAULT", &format!("{point}=kill"))]);
        let (_, dispatch) = busy_agent(&world, &repo);
        let mcp = Mcp::of(&world, &dispatch);
        let task = json!({"role": "helper", "prompt": "help", "title": "Help"});
        let drafting = mcp.begin("draft_agent", task.clone());
        killed.ended();
        let second = world.daemon();
        let drafted = mcp.end(drafting);
        let id = drafted["dispatch_id"].as_str().expect("an id").to_string();
        assert_eq!(children(&world, &dispatch), std::slice::from_ref(&id), "{point}");
        let ended = mcp.call("await_agent", json!({"dispatch_ids": [id]}));
        assert_eq!(ended["done"], true, "{ended}");
        assert_eq!(ended["agents"][0]["dispatch_id"], json!(id));
        let called = world.events_of(&dispatch, "mcp_called").into_iter();
        assert_eq!(called.filter(|event| event["wait"].is_null()).count(), 1, "{point}");
        // The agent has the answer, so an equal call means another agent.
        let other = mcp.call("draft_agent", task);
        assert_ne!(other["dispatch_id"], json!(id), "{point}");
        mcp.close();
        let_go(&repo);
        world.finish(Some(second));
    }
}

#[test]
fn agent_is_drafted_once_for_a_call_whose_relay_is_killed() {
    let world = World::new();
    helper_role(&world);
    let repo = world.repo("repo");
    let daemon = world.daemon_with(&[("MULETEER_FAULT", "tool.drafted=stop")]);
    let (_, dispatch) = busy_agent(&world, &repo);
    let mut first = Mcp::of(&world, &dispatch);
    let task = json!({"role": "helper", "prompt": "help"});
    let _drafting = first.begin("draft_agent", task.clone());
    wait_until("the draft", PATIENCE, || {
        let made = world.events().into_iter().filter(|event| event["event"] == "dispatch_created");
        (made.count() == 2).then_some(())
    });
    // The record is seen before the daemon stops. A signal before that would be in vain.
    let stat = format!("/proc/{}/stat", daemon.pid());
    wait_until("the daemon to stop", PATIENCE, || {
        std::fs::read_to_string(&stat).ok()?.contains(") T ").then_some(())
    });
    first.kill_9();
    world.signal(daemon.pid(), rustix::process::Signal::CONT);
    let second = Mcp::of(&world, &dispatch);
    let drafted = second.call("draft_agent", task);
    assert_eq!(json!(children(&world, &dispatch)), json!([drafted["dispatch_id"]]));
    second.close();
    let_go(&repo);
    world.finish(Some(daemon));
}

#[test]
fn tools_follow_the_role_and_refuse_what_is_not_allowed() {
    let world = World::new();
    helper_role(&world);
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let (thread, dispatch) = busy_agent(&world, &repo);
    let analyst = Mcp::of(&world, &dispatch);
    assert_eq!(analyst.tools().len(), 16);
    let wait = "while [ ! -e go ]; do sleep 0.05; done";
    let other = world.spawn(&repo, wait, &[]).ok();
    world.wait_for_state(&other, &["running"]);
    let developer = Mcp::of(&world, &other);
    let has = developer.tools();
    assert!(has.contains(&"ask_human".into()) && !has.contains(&"draft_agent".into()), "{has:?}");
    let refused = developer.refused("draft_agent", json!({"role": "helper", "prompt": "x"}));
    assert!(refused.contains("does not have the tool") && refused.contains("ask_human"));
    let quiet = Mcp::with(&world, Some(&dispatch), &["mcp", "--read-only"]);
    assert!(
        !quiet.tools().contains(&"note".into()) && quiet.tools().contains(&"get_status".into())
    );
    let outside = Mcp::with(&world, None, &["mcp"]);
    assert!(!outside.tools().contains(&"ask_human".into()), "{:?}", outside.tools());
    assert!(outside.tools().contains(&"list_agents".into()), "{:?}", outside.tools());

    // Notes and progress stand in the journal and in the status.
    analyst.call("note", json!({"text": "Chose a map: order matters."}));
    analyst.call("report_progress", json!({"text": "half of it", "percent": 50}));
    let status = analyst.call("get_status", json!({}));
    assert_eq!(status["progress"], json!({"text": "half of it", "percent": 50}));
    let journal = analyst.call("read_journal", json!({"dispatch_id": dispatch}));
    let text = journal["text"].as_str().unwrap_or_default();
    assert!(text.contains("note: Chose a map") && text.contains("progress 50 %"), "{text}");
    assert_eq!(analyst.call("get_task_context", json!({}))["thread_id"], json!(thread));
    assert_eq!(analyst.call("read_thread", json!({}))["messages"][0]["text"], "begin");
    analyst.call("send_message", json!({"text": "I am at it."}));
    assert!(show(&world, &thread)["messages"].to_string().contains("I am at it."));
    assert!(analyst.call("get_budget", json!({}))["spent_usd"].is_number());

    // An agent floods the journal, ends another's agent, and reads another's answer.
    let flood =
        (0..40).map(|_| analyst.begin("note", json!({"text": "again"}))).collect::<Vec<_>>();
    let results = flood.into_iter().map(|call| analyst.result(call));
    let refused = results.filter(|one| one.is_error == Some(true));
    assert!(refused.count() >= 1, "a flood of notes is refused");
    assert!(
        analyst
            .refused("kill_agent", json!({"dispatch_id": other}))
            .contains("was not started by")
    );
    let _asking = developer.begin("ask_human", json!({"question": "May I?"}));
    let question = question_in(&world, "open");
    let refused = analyst.refused("await_answer", json!({"question_id": question}));
    assert!(refused.contains("has asked no question"), "{refused}");
    // It answers its own question, and the question of another.
    for agent in [&dispatch, &other] {
        let socket = world.state().join(format!("agents/{agent}/pub/sock"));
        let own = world.muleteer(&["answer", &question, "--text", "yes", "--json"]);
        let refused = own.env("MULETEER_SOCKET", socket).run();
        assert_eq!(refused.error_code(), "E_FORBIDDEN", "{refused:?}");
    }
    assert_eq!(question_in(&world, "open"), question);
    for mcp in [analyst, developer, quiet, outside] {
        mcp.close();
    }
    let_go(&repo);
    world.wait_for_end(&other);
    world.finish(Some(daemon));
}

fn is_waiting(world: &World, dispatch: &str) -> bool {
    world.dispatch(dispatch)["state"] == "waiting"
}

#[test]
fn agent_that_asks_gives_up_its_slot_and_its_process_and_the_answer_begins_one_turn() {
    let world = World::new();
    world.configure("pool:\n  max_agents: 1\nquestions:\n  hold: 2s\n");
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let (_, dispatch) = busy_agent(&world, &repo);
    let mcp = Mcp::of(&world, &dispatch);
    let _asking = mcp.begin("ask_human", json!({"question": "Which colour?"}));
    let question = question_in(&world, "open");
    wait_until("the state", PATIENCE, || is_waiting(&world, &dispatch).then_some(()));
    assert_eq!(world.dispatch(&dispatch)["waiting_for"][0]["request_id"], json!(question));
    // The only slot is free for another one.
    let other = world.spawn(&repo, "echo here", &[]).ok();
    world.wait_for_end(&other);
    wait_until("the end of the process", PATIENCE, || {
        let entry = world.dispatch(&dispatch);
        (entry["state"] == "waiting" && entry["pid"].is_null()).then_some(())
    });
    assert_eq!(world.dispatch(&dispatch)["waiting_for"][0]["request_id"], json!(question));
    world.muleteer(&["answer", &question, "--text", "blue"]).ok();
    let_go(&repo);
    assert_eq!(question_in(&world, "delivered"), question);
    world.wait_for_state(&dispatch, &["idle"]);
    // The prompt with the answer is the only one of the successor.
    let queued = world.events_of(&dispatch, "prompt_queued");
    let kinds: Vec<_> = queued.iter().map(|event| event["kind"].clone()).collect();
    assert_eq!(kinds, ["initial", "send"], "{queued:?}");
    assert_eq!(world.events_of(&dispatch, "hold_expired").len(), 1);
    let turns = world.events_of(&dispatch, "turn_started");
    assert_eq!(turns.len(), 2, "{turns:?}");
    assert_eq!(turns[1]["key"], queued[1]["key"]);
    drop(mcp);
    world.finish(Some(daemon));
}

#[test]
fn agent_that_waits_for_another_one_leaves_it_the_only_slot() {
    let world = World::new();
    helper_role(&world);
    world.configure("pool:\n  max_agents: 1\n");
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let (_, dispatch) = busy_agent(&world, &repo);
    // It is no child of the agent, so it takes over no slot from it.
    let stranger = world.spawn(&repo, "echo here", &[]).ok();
    let mcp = Mcp::of(&world, &dispatch);
    let drafted = mcp.call("draft_agent", json!({"role": "helper", "prompt": "help"}));
    let ids = json!([drafted["dispatch_id"], stranger]);
    let ended = mcp.call("await_agent", json!({"dispatch_ids": ids}));
    assert_eq!(ended["done"], true, "{ended}");
    wait_until("the end of the wait", PATIENCE, || (!is_waiting(&world, &dispatch)).then_some(()));
    assert_eq!(waits(&world, &dispatch), [false, true]);
    mcp.close();
    let_go(&repo);
    world.wait_for_state(&dispatch, &["idle"]);
    world.finish(Some(daemon));
}

/// Returns the records of calls that wait, and of their ends: whether each is an end.
fn waits(world: &World, dispatch: &str) -> Vec<bool> {
    let calls = world.events_of(dispatch, "mcp_called").into_iter();
    let waits = calls.map(|call| call["wait"].clone()).filter(Value::is_object);
    waits.map(|wait| wait["over"] == true).collect()
}

#[test]
fn wait_of_a_call_that_died_with_its_daemon_is_forgotten() {
    let point = TOOL_POINTS[3];
    assert_eq!(point, "tool.waiting");
    let world = World::new();
    let repo = world.repo("repo");
    let mut killed = world.daemon_with(&[("MULETEER_FAULT", &format!("{point}=kill"))]);
    let (_, dispatch) = busy_agent(&world, &repo);
    let mut mcp = Mcp::of(&world, &dispatch);
    let _asking = mcp.begin("ask_human", json!({"question": "Which colour?"}));
    killed.ended();
    mcp.kill_9();
    let second = world.daemon();
    assert!(!waits(&world, &dispatch).is_empty(), "the wait is on record");
    let question = question_in(&world, "open");
    wait_until("the agent at work", PATIENCE, || {
        (world.dispatch(&dispatch)["state"] == "running").then_some(())
    });
    world.muleteer(&["answer", &question, "--text", "blue"]).ok();
    let_go(&repo);
    assert_eq!(question_in(&world, "delivered"), question);
    world.wait_for_state(&dispatch, &["idle"]);
    assert_eq!(repo.read("heard").matches("blue").count(), 1);
    drop(mcp);
    world.finish(Some(second));
}

/// Returns the process ids of the shim and the agent of a dispatch.
fn processes(world: &World, dispatch: &str) -> [u32; 2] {
    let spawned = world.events_of(dispatch, "agent_spawned").pop().expect("a process");
    ["shim_pid", "pid"].map(|name| spawned[name].as_u64().expect("a process id") as u32)
}

#[test]
fn answer_reaches_the_successor_once_whatever_was_killed() {
    for killed in ["agent", "shim", "all"] {
        let world = World::new();
        let repo = world.repo("repo");
        let mut daemon = world.daemon();
        let (_, dispatch) = busy_agent(&world, &repo);
        let mut mcp = Mcp::of(&world, &dispatch);
        let _asking = mcp.begin("ask_human", json!({"question": "Which colour?"}));
        let question = question_in(&world, "open");
        wait_until("the state", PATIENCE, || is_waiting(&world, &dispatch).then_some(()));
        let [shim, agent] = processes(&world, &dispatch);
        if killed == "all" {
            daemon.kill_9();
        }
        // Its relay ends with the agent.
        mcp.kill_9();
        if killed != "agent" {
            world.kill_9(shim);
        }
        if killed != "shim" {
            world.kill_9(agent);
        }
        if killed == "all" {
            daemon = world.daemon();
        }
        wait_until("the successor", PATIENCE, || {
            let spawned = world.events_of(&dispatch, "agent_spawned").len();
            (spawned == 2).then_some(())
        });
        assert_eq!(question_in(&world, "open"), question, "{killed}");
        world.muleteer(&["answer", &question, "--text", "blue"]).ok();
        let_go(&repo);
        assert_eq!(question_in(&world, "delivered"), question, "{killed}");
        world.wait_for_state(&dispatch, &["idle"]);
        let heard = repo.read("heard");
        assert_eq!(heard.matches("The answer: blue").count(), 1, "{killed}: {heard}");
        drop(mcp);
        world.finish(Some(daemon));
    }
}

#[test]
fn message_of_an_agent_carries_its_files_over_a_killed_daemon() {
    let point = TOOL_POINTS[4];
    assert_eq!(point, "tool.files_written");
    let world = World::new();
    let repo = world.repo("repo");
    let mut killed = world.daemon_with(&[("MULETEER_FAULT", &format!("{point}=kill"))]);
    let (thread, dispatch) = busy_agent(&world, &repo);
    let mcp = Mcp::of(&world, &dispatch);
    std::fs::write(world.path().join("plan.md"), "1. sort").expect("a file");
    let message = json!({"text": "Here is the plan.", "files": ["plan.md"]});
    let sending = mcp.begin("send_message", message);
    killed.ended();
    let second = world.daemon();
    let sent = mcp.end(sending);
    let shown = show(&world, &thread);
    let all = shown["messages"].as_array().expect("messages").iter();
    let of: Vec<_> = all.filter(|one| one["id"] == sent["message_id"]).collect();
    assert_eq!(of.len(), 1, "{shown}");
    let file = &of[0]["files"][0];
    assert_eq!((&file["name"], &file["bytes"]), (&json!("plan.md"), &json!(7)), "{shown}");
    let folder = world.state().join("threads").join(&thread).join("files");
    let path = folder.join(file["sha256"].as_str().expect("a hash")).join("plan.md");
    assert_eq!(std::fs::read_to_string(path).expect("the file"), "1. sort");
    let refused = mcp.refused("send_message", json!({"text": "and", "files": ["gone.md"]}));
    assert!(refused.contains("cannot read gone.md"), "{refused}");
    mcp.close();
    let_go(&repo);
    world.finish(Some(second));
}
