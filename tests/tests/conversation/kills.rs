//! Daemons that are killed on the way of a message.

use crate::{ECHO, SLOW, ask, open, show, states};
use muleteer_process::fault::{DATABASE_POINTS, SECRET_POINTS, THREAD_POINTS};
use muleteer_tests::{PATIENCE, World, wait_until};

/// The fault points that lie between the acceptance of a message and its answer.
fn points() -> Vec<String> {
    let of_messages = THREAD_POINTS.iter().filter(|point| **point != "thread.archived");
    let of_threads = of_messages.map(ToString::to_string);
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
fn commands_on_a_running_turn_take_effect_once_whatever_daemon_is_killed() {
    let commands = [
        ("/kill product-analyst", "kill_requested"),
        ("/stop", "interrupt_requested"),
        ("/role reviewer", "thread_role"),
        ("/set models.default m1", "setting_changed"),
    ];
    for (text, effect) in commands {
        for point in ["thread.accepted", "thread.command_done", "thread.command_recorded"] {
            let case = format!("{text} {point}");
            let world = World::new();
            let repo = world.repo("repo");
            let mut first = world.daemon();
            let thread = open(&world, &repo, SLOW);
            world.muleteer(&["thread", "send", &thread, "one"]).ok();
            wait_until("the turn to run", PATIENCE, || {
                (states(&show(&world, &thread)) == ["read"]).then_some(())
            });
            first.kill_9();
            let mut killed = world.daemon_with(&[("MULETEER_FAULT", &format!("{point}=kill"))]);
            world.muleteer(&["thread", "send", &thread, text, "--key", "k", "--json"]).run();
            killed.ended();
            // A client that asks starts the next daemon, unless the one above did.
            ask(&world, &thread, "/help");
            wait_until("the end of the command", PATIENCE, || {
                (states(&show(&world, &thread))[1] == "answered").then_some(())
            });
            repo.write("go", "");
            let answered = ask(&world, &thread, "two");
            let answer = answered["answer"]["text"].as_str().unwrap_or_default();
            assert!(answer.ends_with("two"), "{case}: {answered}");
            let count = world.events().iter().filter(|event| event["event"] == effect).count();
            assert_eq!(count, 1, "{case}");
            let shown = show(&world, &thread);
            let all = shown["messages"].as_array().expect("messages");
            let command = all.iter().find(|message| message["text"] == text).expect("the command");
            let answers = |message: &&serde_json::Value| {
                let answers = message["answers"].as_array();
                answers.is_some_and(|ids| ids.contains(&command["id"]))
            };
            assert_eq!(all.iter().filter(answers).count(), 1, "{case}: {shown}");
        }
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

#[test]
fn keys_of_an_archived_thread_leave_the_disk_whatever_daemon_is_killed() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut first = world.daemon();
    let file = world.path().join("scenario.yaml");
    std::fs::write(&file, ECHO).expect("a scenario");
    let scenario = file.to_str().expect("a path");
    let args = ["thread", "new", "--project", repo.to_str(), "--backend", "rehearsal"];
    let secret = ["--scenario", scenario, "--env", "SHOP_API_KEY=sk-left-on-the-disk"];
    let thread = world.muleteer(&[&args[..], &secret].concat()).ok();
    let request = world.state().join("threads").join(&thread).join("request.json");
    let has_key = || {
        let text = std::fs::read_to_string(&request).expect("the request");
        text.contains("sk-left-on-the-disk")
    };
    assert!(has_key());
    first.kill_9();
    let mut killed = world.daemon_with(&[("MULETEER_FAULT", "thread.archived=kill")]);
    // The client repeats its request, so the daemon that it starts would do the rest: end it first.
    let mut client = world.muleteer(&["thread", "archive", &thread]).start();
    killed.ended();
    world.signal(client.pid(), rustix::process::Signal::KILL);
    let _ = client.is_running();
    let daemon = world.daemon();
    wait_until("the keys to leave the disk", PATIENCE, || (!has_key()).then_some(()));
    assert_eq!(show(&world, &thread)["state"], "archived");
    assert_eq!(ask(&world, &thread, "again")["answer"]["text"], "1: again");
    world.finish(Some(daemon));
}

/// A dispatch has keys in two files, and a daemon may die between them: at the end of the dispatch,
/// and when the next daemon starts and does the rest.
#[test]
fn keys_of_an_ended_dispatch_leave_both_files_whatever_daemon_is_killed() {
    const KEY: &str = "sk-left-on-the-disk";
    for point in SECRET_POINTS {
        let world = World::new();
        let repo = world.repo("repo");
        let fault = ("MULETEER_FAULT", format!("{point}=kill"));
        let fault = [(fault.0, fault.1.as_str())];
        let mut killed = world.daemon_with(&fault);
        let variable = format!("SHOP_API_KEY={KEY}");
        let id = world.spawn(&repo, "echo done", &["--env", &variable]).ok();
        killed.ended();
        // This one finds an ended dispatch whose files it has to look at.
        let mut killed = world.daemon_unready(&fault);
        killed.ended();
        let daemon = world.daemon();
        let folder = world.state().join("agents").join(&id);
        wait_until(&format!("{point}: the keys to leave the disk"), PATIENCE, || {
            let files = std::fs::read_dir(&folder).expect("its folder").flatten();
            let mut files = files.filter(|file| file.path().is_file());
            let has_key = files.any(|file| {
                let bytes = std::fs::read(file.path()).unwrap_or_default();
                bytes.windows(KEY.len()).any(|window| window == KEY.as_bytes())
            });
            (!has_key).then_some(())
        });
        assert_eq!(world.wait_for_end(&id)["state"], "success", "{point}");
        world.finish(Some(daemon));
    }
}

/// The table of the messages is filled again from the events, over kills too.
#[test]
fn messages_out_of_memory_survive_kills_while_the_database_is_filled_again() {
    /// Each has an answer, so there are more messages than the memory keeps.
    const MESSAGES: usize = 20;
    let world = World::new();
    let repo = world.repo("repo");
    let mut first = world.daemon();
    let thread = open(&world, &repo, ECHO);
    let send = |number: usize| {
        let (text, key) = (format!("text {number}"), format!("key {number}"));
        let args = ["thread", "send", &thread, &text, "--key", &key, "--wait", "--json"];
        world.muleteer(&args).json()
    };
    let before: Vec<_> = (0..MESSAGES).map(send).collect();
    first.kill_9();
    for file in ["muleteer.db", "muleteer.db-wal", "muleteer.db-shm"] {
        let _ = std::fs::remove_file(world.state().join(file));
    }
    for point in DATABASE_POINTS {
        let fault = format!("{point}=kill");
        let mut killed = world.daemon_unready(&[("MULETEER_FAULT", &fault)]);
        killed.ended();
    }
    let daemon = world.daemon();
    for (number, known) in before.iter().enumerate() {
        let again = wait_until("the messages", PATIENCE, || {
            let (text, key) = (format!("text {number}"), format!("key {number}"));
            let args = ["thread", "send", &thread, &text, "--key", &key, "--wait", "--json"];
            let output = world.muleteer(&args).run();
            (output.code == Some(0)).then(|| output.json())
        });
        assert_eq!(again, *known);
    }
    assert_eq!(show(&world, &thread)["message_count"], 2 * MESSAGES);
    assert_eq!(repo.effects("heard").len(), MESSAGES);
    world.finish(Some(daemon));
}

/// The first versions wrote the request of a thread without a version.
#[test]
fn request_of_a_thread_without_a_version_loads_and_a_newer_one_is_named() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let thread = open(&world, &repo, ECHO);
    let request = world.state().join("threads").join(&thread).join("request.json");
    let change = |edit: &dyn Fn(&mut serde_json::Map<String, serde_json::Value>)| {
        let text = std::fs::read_to_string(&request).expect("the request");
        let mut value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        edit(value.as_object_mut().expect("an object"));
        std::fs::write(&request, value.to_string()).expect("the request");
    };
    change(&|request| assert_eq!(request.remove("v"), Some(1.into())));
    assert_eq!(ask(&world, &thread, "one")["answer"]["text"], "1: one");
    let other = open(&world, &repo, ECHO);
    let text = std::fs::read_to_string(&request).expect("the request");
    let request = world.state().join("threads").join(&other).join("request.json");
    std::fs::write(&request, text.replacen('{', "{\"v\":9,", 1)).expect("the request");
    let refused = world.muleteer(&["thread", "send", &other, "hi", "--wait", "--json"]).run();
    assert!(refused.stdout.contains("of a newer version (9)"), "{refused:?}");
    world.finish(Some(daemon));
}
