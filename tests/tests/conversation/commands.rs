//! Commands in threads, with real agents and killed daemons.

use crate::{ECHO, SLOW, ask, open, show, states};
use muleteer_process::fault::COMMAND_POINTS;
use muleteer_tests::{PATIENCE, World, wait_until};
use serde_json::{Value, json};

/// Returns the text of the reply to a message.
fn reply(answered: &Value) -> String {
    answered["answer"]["text"]
        .as_str()
        .unwrap_or_else(|| panic!("no answer: {answered}"))
        .into()
}

fn texts(shown: &Value) -> Vec<String> {
    let all = shown["messages"].as_array().into_iter().flatten();
    all.map(|message| message["text"].as_str().unwrap_or_default().to_string()).collect()
}

#[test]
fn known_commands_are_muleteers_and_other_text_is_the_agents() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let thread = open(&world, &repo, ECHO);
    let help = ask(&world, &thread, "/help");
    assert!(reply(&help).contains("/spawn ROLE PROJECT PROMPT"), "{help}");
    assert_eq!(ask(&world, &thread, "/compact please")["answer"]["text"], "1: /compact please");
    assert_eq!(repo.effects("heard"), ["/compact please"]);
    let shown = show(&world, &thread);
    assert_eq!(states(&shown), ["answered", "answered"]);
    assert_eq!(shown["messages"][1]["author"]["kind"], "muleteer", "{shown}");
    // The turn is answered before its process has ended.
    world.muleteer(&["wait", shown["dispatch_id"].as_str().expect("a dispatch")]).ok();
    let status = reply(&ask(&world, &thread, "/status"));
    assert!(status.contains("`product-analyst`: idle; 1 turn; $"), "{status}");
    assert!(reply(&ask(&world, &thread, "/cost")).contains("for 1 dispatches"), "{status}");
    let misused = reply(&ask(&world, &thread, "/kill"));
    assert!(misused.starts_with("E_USAGE: the dispatch or role is missing"), "{misused}");
    let unknown = reply(&ask(&world, &thread, "/kill zzzzzz"));
    assert!(unknown.starts_with("E_NOT_FOUND"), "{unknown}");
    world.finish(Some(daemon));
}

#[test]
fn spawned_agent_answers_in_the_thread_and_can_be_addressed() {
    let world = World::new();
    let (repo, other) = (world.repo("repo"), world.repo("other"));
    let daemon = world.daemon();
    let thread = open(&world, &repo, ECHO);
    let text = format!("/spawn reviewer {} Look at this --title A look", other.to_str());
    let spawned = reply(&ask(&world, &thread, &text));
    assert!(spawned.starts_with("Dispatched `reviewer` as "), "{spawned}");
    let shown = wait_until("the answer of the reviewer", PATIENCE, || {
        let shown = show(&world, &thread);
        texts(&shown).contains(&"1: Look at this".to_string()).then_some(shown)
    });
    let all = shown["messages"].as_array().expect("messages");
    let answer = all.iter().find(|message| message["author"]["name"] == "reviewer");
    let answer = answer.unwrap_or_else(|| panic!("no answer of the reviewer: {shown}"));
    let id = answer["author"]["id"].as_str().expect("an id").to_string();
    assert!(spawned.contains(&id), "{spawned} {id}");
    assert_eq!(other.effects("heard"), ["Look at this"]);
    // The same agent is addressed by its role; its session goes on.
    assert_eq!(ask(&world, &thread, "@reviewer And this?")["answer"]["text"], "2: And this?");
    // Another role gets an agent of its own in the thread's project.
    assert_eq!(ask(&world, &thread, "@tester Test it")["answer"]["text"], "1: Test it");
    assert_eq!(ask(&world, &thread, "@tester Again")["answer"]["text"], "2: Again");
    assert_eq!(ask(&world, &thread, "@nobody there?")["answer"]["text"], "1: @nobody there?");
    assert_eq!(repo.effects("heard"), ["Test it", "Again", "@nobody there?"]);
    let status = reply(&ask(&world, &thread, "/status"));
    for role in ["product-analyst", "reviewer", "tester"] {
        assert!(status.contains(&format!("`{role}`: idle")), "{status}");
    }
    let unknown = reply(&ask(&world, &thread, "/spawn nobody . do it"));
    assert!(unknown.starts_with("E_ROLE_UNKNOWN"), "{unknown}");
    let elsewhere = reply(&ask(&world, &thread, "/spawn tester nowhere do it"));
    assert!(elsewhere.starts_with("E_PROJECT_NOT_FOUND"), "{elsewhere}");
    world.finish(Some(daemon));
}

#[test]
fn stop_and_kill_act_before_the_messages_that_wait() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let thread = open(&world, &repo, SLOW);
    world.muleteer(&["thread", "send", &thread, "one"]).ok();
    wait_until("the turn to run", PATIENCE, || {
        (states(&show(&world, &thread)) == ["read"]).then_some(())
    });
    let stopped = reply(&ask(&world, &thread, "/stop"));
    assert!(stopped.starts_with("Stopped the turn of `product-analyst`"), "{stopped}");
    wait_until("the end of the turn", PATIENCE, || {
        (states(&show(&world, &thread)) == ["answered"; 2]).then_some(())
    });
    world.muleteer(&["thread", "send", &thread, "two"]).ok();
    wait_until("the next turn to run", PATIENCE, || {
        (states(&show(&world, &thread))[2] == "read").then_some(())
    });
    let killed = reply(&ask(&world, &thread, "/kill product-analyst"));
    assert!(killed.starts_with("Killed `product-analyst`"), "{killed}");
    repo.write("go", "");
    let answered = reply(&ask(&world, &thread, "three"));
    assert!(answered.starts_with("1: ") && answered.ends_with("\nthree"), "{answered}");
    world.finish(Some(daemon));
}

#[test]
fn thread_is_given_to_another_role() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let thread = open(&world, &repo, ECHO);
    ask(&world, &thread, "one");
    assert!(reply(&ask(&world, &thread, "/role nobody")).starts_with("E_ROLE_UNKNOWN"));
    let given = reply(&ask(&world, &thread, "/role reviewer"));
    assert_eq!(given, "`reviewer` answers in this thread from the next message on.");
    let answered = reply(&ask(&world, &thread, "two"));
    assert!(answered.starts_with("1: # Context\n"), "{answered}");
    assert!(answered.contains("- product-analyst (idle): 1: one"), "{answered}");
    assert!(answered.ends_with("# Message\n\ntwo"), "{answered}");
    let shown = show(&world, &thread);
    assert_eq!(shown["role"], "reviewer");
    assert!(texts(&shown).iter().any(|text| text.contains("the thread was given to reviewer")));
    assert_eq!(ask(&world, &thread, "@product-analyst hi")["answer"]["text"], "1: hi");
    world.finish(Some(daemon));
}

#[test]
fn commands_take_effect_once_whatever_daemon_is_killed() {
    let below = ["gate.create_durable", "thread.accepted"];
    for point in COMMAND_POINTS.iter().chain(&below) {
        let world = World::new();
        let (repo, other) = (world.repo("repo"), world.repo("other"));
        let mut first = world.daemon();
        let thread = open(&world, &repo, ECHO);
        first.kill_9();
        let mut killed = world.daemon_with(&[("MULETEER_FAULT", &format!("{point}=kill"))]);
        let text = format!("/spawn reviewer {} look", other.to_str());
        let args = ["thread", "send", &thread, &text, "--key", "k", "--json"];
        let sent = world.muleteer(&args).run();
        assert_eq!(sent.code, Some(0), "{point}: {sent:?}");
        killed.ended();
        let set = ask(&world, &thread, "/set models.default m1");
        assert_eq!(set["answer"]["text"], "`models.default` is m1.", "{point}");
        let shown = wait_until("the answer of the reviewer", PATIENCE, || {
            let shown = show(&world, &thread);
            texts(&shown).contains(&"1: look".to_string()).then_some(shown)
        });
        assert_eq!(other.effects("heard"), ["look"], "{point}");
        assert_eq!(states(&shown), ["answered"; 2], "{point}: {shown}");
        let replies = texts(&shown);
        let count = replies.iter().filter(|text| text.starts_with("Dispatched")).count();
        let is_end = |text: &&String| text.starts_with("The agent has ended (success)");
        let ends = replies.iter().filter(is_end).count();
        assert_eq!((count, replies.len() - ends), (1, 5), "{point}: {shown}");
        let closed = wait_until("the end of the task", PATIENCE, || {
            let shown = show(&world, &thread);
            (shown["tasks"][0]["state"] == "closed").then_some(shown)
        });
        let task = &closed["tasks"][0];
        assert_eq!(task["title"], "look", "{point}: {closed}");
        assert_eq!(task["dispatches"].as_array().map(Vec::len), Some(1), "{point}: {closed}");
        assert_eq!(closed["tasks"].as_array().map(Vec::len), Some(1), "{point}: {closed}");
        let ends = texts(&closed).into_iter().filter(|text| is_end(&text));
        let ends: Vec<_> = ends.collect();
        assert_eq!(ends.len(), 1, "{point}: {closed}");
        assert!(ends[0].contains("`reviewer`") && ends[0].contains(": 1 turn, "), "{ends:?}");
        let listed = world.muleteer(&["status", "--json"]).json();
        assert_eq!(listed["dispatches"].as_array().map(Vec::len), Some(1), "{point}: {listed}");
    }
}

#[test]
fn setting_holds_over_restarts_until_it_is_withdrawn() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let thread = open(&world, &repo, ECHO);
    let model = |world: &World| {
        let shown = show(world, &thread);
        let id = shown["dispatch_id"].as_str().expect("a dispatch").to_string();
        let status = world.muleteer(&["status", &id, "--json"]).json();
        status["dispatches"][0]["model"].clone()
    };
    let refused = reply(&ask(&world, &thread, "/set models.defualt m1"));
    assert!(refused.starts_with("E_CONFIG_INVALID: unknown key `defualt`"), "{refused}");
    assert!(refused.contains("did you mean `default`?"), "{refused}");
    ask(&world, &thread, "/set models.default m1");
    daemon.kill_9();
    let daemon = world.daemon();
    ask(&world, &thread, "one");
    assert_eq!(model(&world), json!("m1"));
    let later = reply(&ask(&world, &thread, "/set pool.max_agents 3"));
    assert_eq!(later, "`pool.max_agents` is 3, from the next start of the daemon on.");
    let withdrawn = reply(&ask(&world, &thread, "/set models.default"));
    assert_eq!(withdrawn, "`models.default` is null again.");
    world.finish(Some(daemon));
}

#[test]
fn configuration_is_shown_with_what_is_set_at_run_time() {
    let world = World::new();
    let daemon = world.daemon();
    world.muleteer(&["config", "set", "models.default", "m1"]).ok();
    let shown = world.muleteer(&["config", "show", "models.default", "--json"]).json();
    let origin = &shown["origins"][0];
    assert_eq!((&origin["layer"], &origin["value"]), (&json!("set"), &json!("m1")), "{shown}");
    let by = origin["file"].as_str().expect("who set it");
    assert!(by.starts_with("/set by operator at "), "{by}");
    let refused = world.muleteer(&["config", "set", "pool.max_depth", "1000", "--json"]).run();
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stdout.contains("E_CONFIG_INVALID"), "{refused:?}");
    world.muleteer(&["config", "unset", "models.default"]).ok();
    let shown = world.muleteer(&["config", "show", "models.default", "--json"]).json();
    assert_eq!(shown["origins"][0]["layer"], "default", "{shown}");
    world.finish(Some(daemon));
}

#[test]
fn invalid_edit_keeps_the_thread_going_and_is_shown() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let thread = open(&world, &repo, ECHO);
    ask(&world, &thread, "one");
    let folder = std::path::Path::new(repo.to_str()).join(".muleteer");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("config.yaml"), "pool: {max_depth: oops}\n").expect("a file");
    // A new agent is begun with the configuration that was valid last.
    assert!(reply(&ask(&world, &thread, "@tester go")).ends_with("go"));
    let status = world.muleteer(&["status", "--json"]).json();
    let faults = status["daemon"]["config_faults"].as_array().expect("faults");
    assert!(faults[0].as_str().is_some_and(|text| text.contains("config.yaml:1: ")), "{status}");
    let is_noted = |event: &&Value| event["event"] == "fault" && event["what"] == "configuration";
    wait_until("the fault in the log", PATIENCE, || {
        (world.events().iter().filter(is_noted).count() == 1).then_some(())
    });
    std::fs::write(folder.join("config.yaml"), "pool: {max_depth: 2}\n").expect("a file");
    assert!(reply(&ask(&world, &thread, "@reviewer go")).ends_with("go"));
    let status = world.muleteer(&["status", "--json"]).json();
    assert_eq!(status["daemon"]["config_faults"], Value::Null, "{status}");
    world.finish(Some(daemon));
}

#[test]
fn invalid_edit_of_a_role_keeps_the_last_valid_one_and_is_told_once() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let folder = world.path().join("config/muleteer/roles");
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("scribe.md");
    let write = |category: &str| {
        let text = format!("---\ncategory: {category}\ndescription: writes\n---\nWrite.\n");
        std::fs::write(&file, text).expect("a role");
    };
    write("coding");
    let thread = open(&world, &repo, ECHO);
    assert!(reply(&ask(&world, &thread, "@scribe one")).ends_with("one"));
    write("[");
    // Each of them begins a new agent.
    for text in ["two", "three"] {
        ask(&world, &thread, &format!("/spawn scribe {} {text}", repo.to_str()));
    }
    wait_until("both agents", PATIENCE, || (repo.effects("heard").len() == 3).then_some(()));
    let is_told = |text: &&String| text.contains("the file of the role `scribe` is invalid");
    let told = |thread: &str| texts(&show(&world, thread)).iter().filter(is_told).count();
    wait_until("the fault in the thread", PATIENCE, || (told(&thread) > 0).then_some(()));
    let status = world.muleteer(&["status", "--json"]).json();
    let faults = status["daemon"]["role_faults"].as_array().expect("faults");
    assert!(faults[0].as_str().is_some_and(|text| text.contains("scribe.md:")), "{status}");
    let shown = world.muleteer(&["config", "show"]).run();
    assert!(shown.stderr.contains("scribe.md:"), "{shown:?}");
    // Another thread is told as well.
    let other = open(&world, &repo, ECHO);
    assert!(reply(&ask(&world, &other, "@scribe four")).ends_with("four"));
    wait_until("the fault in the other thread", PATIENCE, || (told(&other) > 0).then_some(()));
    assert_eq!((told(&thread), told(&other)), (1, 1), "{}", show(&world, &thread));
    let is_noted = |event: &&Value| event["event"] == "fault" && event["what"] == "role";
    assert_eq!(world.events().iter().filter(is_noted).count(), 1);
    // As with configuration, a new daemon has read no valid version.
    daemon.kill_9();
    let daemon = world.daemon();
    let third = open(&world, &repo, ECHO);
    world.muleteer(&["thread", "send", &third, "@scribe five", "--wait"]).run();
    let refused = show(&world, &third).to_string();
    assert!(refused.contains("E_CONFIG_INVALID"), "{refused}");
    write("coding");
    assert!(reply(&ask(&world, &third, "@scribe six")).ends_with("six"));
    let status = world.muleteer(&["status", "--json"]).json();
    assert_eq!(status["daemon"]["role_faults"], Value::Null, "{status}");
    world.finish(Some(daemon));
}

#[test]
fn end_of_a_spawned_agent_is_told_in_the_thread_once() {
    let world = World::new();
    let (repo, other) = (world.repo("repo"), world.repo("other"));
    let mut daemon = world.daemon();
    let thread = open(&world, &repo, SLOW);
    let text = format!("/spawn reviewer {} look", other.to_str());
    ask(&world, &thread, &text);
    wait_until("the turn to run", PATIENCE, || {
        std::path::Path::new(other.to_str()).join("heard").exists().then_some(())
    });
    let listed = world.muleteer(&["status", "--json"]).json();
    let id = listed["dispatches"][0]["id"].as_str().expect("a dispatch").to_string();
    world.muleteer(&["kill", &id]).ok();
    let is_end = |text: &&String| text.starts_with("The agent has ended (killed)");
    let ends = |shown: &Value| texts(shown).iter().filter(is_end).count();
    wait_until("the end to be told", PATIENCE, || {
        (ends(&show(&world, &thread)) == 1).then_some(())
    });
    daemon.kill_9();
    let daemon = world.daemon();
    ask(&world, &thread, "/status");
    assert_eq!(ends(&show(&world, &thread)), 1, "{}", show(&world, &thread));
    world.finish(Some(daemon));
}
