//! Meetings: scripted agents of several roles, people, killed daemons.

use crate::show;
use muleteer_process::fault::MEETING_POINTS;
use muleteer_tests::{Daemon, PATIENCE, Repo, World, wait_until};
use serde_json::Value;

/// Each role says its turn; the chair names the tester and then ends; minutes are written.
const ROLES: &str = "
v: 1
turns:
  - repeat: true
    when: {prompt: \"Write its minutes\"}
    steps:
      - run: echo minutes >> heard
      - say: \"## Decisions\\n\\n- CSV first.\"
  - repeat: true
    steps:
      - run: printf '%s\\n' \"$prompt\" | sed -n 's/^You are `\\([a-z-]*\\)`.*/\\1/p' >> heard
      - run: printf '%s\\n' \"$prompt\" >> prompts
      - say: \"I say ${turn}.\"
";

/// Starts a meeting whose agents play a scenario.
fn start(world: &World, repo: &Repo, scenario: &str, more: &[&str]) -> Value {
    let file = world.path().join("scenario.yaml");
    std::fs::write(&file, scenario).expect("a scenario");
    let file = file.to_str().expect("a path").to_string();
    let place = ["--project", repo.to_str(), "--backend", "rehearsal", "--scenario", &file];
    let topic = ["meeting", "start", "--topic", "How do we export?", "--json"];
    world.muleteer(&[&topic[..], &place, more].concat()).json()
}

fn meeting(world: &World, id: &str) -> Value {
    world.muleteer(&["meeting", "show", id, "--json"]).json()
}

fn ended(world: &World, id: &str) -> Value {
    wait_until("the end of the meeting", PATIENCE, || {
        let shown = meeting(world, id);
        (shown["state"] == "ended").then_some(shown)
    })
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no {key}: {value}"))
}

fn speakers(shown: &Value) -> Vec<String> {
    let turns = shown["turns"].as_array().expect("turns").iter();
    let speech = turns.filter(|turn| turn["kind"] != "minutes");
    speech.map(|turn| text(turn, "role").to_string()).collect()
}

fn count(world: &World, name: &str) -> usize {
    world.events().iter().filter(|event| event["event"] == name).count()
}

#[test]
fn roles_take_turns_and_leave_minutes() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let more = ["--role", "developer", "--role", "tester", "--max-turns", "4", "--wait"];
    let over = start(&world, &repo, ROLES, &more);
    assert_eq!(over["reason"], "max_turns", "{over}");
    assert_eq!(speakers(&over), ["developer", "tester", "developer", "tester"], "{over}");
    assert_eq!(repo.effects("heard"), ["developer", "tester", "developer", "tester", "minutes"]);
    // The second speaker got what the first one said.
    let prompts = repo.effects("prompts").join("\n");
    assert!(prompts.contains("## Said so far"), "{prompts}");
    assert!(prompts.contains("developer: I say 1."), "{prompts}");
    assert!(prompts.contains("## Said since your last turn"), "{prompts}");
    let minutes = std::fs::read_to_string(text(&over, "minutes")).expect("the minutes");
    assert!(minutes.starts_with("# Minutes: How do we export?\n"), "{minutes}");
    assert!(minutes.contains("- CSV first."), "{minutes}");
    assert!(minutes.contains("1. developer: I say 1."), "{minutes}");
    assert!(text(&over, "minutes").ends_with(".md"));
    assert!(text(&over, "minutes").starts_with(repo.to_str()), "{over}");
    let shown = show(&world, text(&over, "thread_id"));
    let last = shown["messages"].as_array().and_then(|all| all.last()).expect("a message");
    assert_eq!(last["files"][0]["name"], "minutes.md", "{last}");
    assert_eq!(last["author"]["kind"], "muleteer", "{last}");
    let listed = world.muleteer(&["meeting", "list", "--json"]).json();
    assert_eq!(listed["meetings"][0]["id"], over["id"]);
    // Over is over.
    let again = world.muleteer(&["meeting", "end", text(&over, "id"), "--json"]).json();
    assert_eq!(again["reason"], "max_turns");
    daemon.kill_9();
    // The last state is on the disk.
    let left = meeting(&world, text(&over, "id"));
    assert_eq!(left["minutes"], over["minutes"]);
    world.finish(None);
}

/// A role waits in its turn until a file exists.
const SLOW_TURNS: &str = "
v: 1
turns:
  - repeat: true
    when: {prompt: \"Write its minutes\"}
    steps:
      - say: \"- Nothing.\"
  - repeat: true
    steps:
      - run: printf '%s\\n' \"$prompt\" >> prompts
      - run: {command: \"while [ ! -e go ]; do sleep 0.05; done; rm go\", timeout: 120s}
      - say: \"I say ${turn}.\"
";

#[test]
fn person_is_heard_by_the_next_speaker_gives_the_floor_and_ends() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let roles = ["--role", "developer", "--role", "tester", "--role", "reviewer"];
    let begun = start(&world, &repo, SLOW_TURNS, &roles);
    let (id, thread) = (text(&begun, "id").to_string(), text(&begun, "thread_id").to_string());
    wait_until("the first turn to run", PATIENCE, || {
        (!repo.effects("prompts").is_empty()).then_some(())
    });
    let busy = ["meeting", "start", "--thread", &thread, "--topic", "x", "--role", "tester"];
    let refused = world.muleteer(&busy).run();
    assert!(refused.stderr.contains("E_BUSY"), "{refused:?}");
    let said = ["thread", "send", &thread, "@reviewer Is XML needed?", "--wait", "--json"];
    let mut client = world.muleteer(&said).start();
    wait_until("the message to wait", PATIENCE, || {
        let shown = show(&world, &thread);
        let all = shown["messages"].as_array().expect("messages").clone();
        let mine = all.iter().find(|one| one["text"] == "@reviewer Is XML needed?")?;
        let reason = "waits for the next speaker of the meeting";
        (mine["reason"] == reason).then_some(())
    });
    repo.write("go", "");
    wait_until("the second turn to run", PATIENCE, || {
        let prompts = repo.effects("prompts").join("\n");
        prompts.contains("You are `reviewer`").then(|| {
            assert!(prompts.contains("## From people"), "{prompts}");
            assert!(prompts.contains("@reviewer Is XML needed?"), "{prompts}");
        })
    });
    let end = world.muleteer(&["meeting", "end", &id, "--json"]).json();
    assert_eq!(end["state"], "ending", "{end}");
    repo.write("go", "");
    let over = ended(&world, &id);
    assert_eq!(over["reason"], "requested", "{over}");
    assert_eq!(speakers(&over), ["developer", "reviewer"], "{over}");
    // The answer to the person is what the speaker said.
    let shown = show(&world, &thread);
    let all = shown["messages"].as_array().expect("messages");
    let mine = all.iter().find(|one| one["text"] == "@reviewer Is XML needed?").expect("mine");
    assert_eq!(mine["state"], "answered", "{mine}");
    let answers = |one: &&Value| {
        one["answers"].as_array().is_some_and(|answers| answers.contains(&mine["id"]))
    };
    let answer = all.iter().find(answers).expect("an answer");
    assert_eq!(answer["author"]["name"], "reviewer", "{answer}");
    wait_until("the client to end", PATIENCE, || (!client.is_running()).then_some(()));
    world.finish(Some(daemon));
}

/// The chair names the tester, and then ends the meeting.
const CHAIRED: &str = "
v: 1
turns:
  - repeat: true
    when: {prompt: \"Write its minutes\"}
    steps:
      - say: \"- CSV first.\"
  - when: {prompt: \"You chair the meeting\"}
    steps:
      - say: \"The tests first.\\n\\nNEXT: tester\"
  - when: {prompt: \"You chair the meeting\"}
    steps:
      - say: \"That is all.\\n\\nEND\"
  - repeat: true
    steps:
      - say: \"I am for CSV.\"
";

#[test]
fn chair_names_the_speakers_and_ends_the_meeting() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let roles = ["--role", "developer", "--role", "tester", "--chair", "product-analyst"];
    let over = start(&world, &repo, CHAIRED, &[&roles[..], &["--wait"]].concat());
    assert_eq!(over["reason"], "chair_ended", "{over}");
    assert_eq!(speakers(&over), ["product-analyst", "tester", "product-analyst"], "{over}");
    let minutes = over["turns"].as_array().and_then(|all| all.last()).expect("turns");
    assert_eq!(
        (&minutes["kind"], &minutes["role"]),
        (&"minutes".into(), &"product-analyst".into())
    );
    world.finish(Some(daemon));
}

/// The developer mentions the tester, who mentions nobody.
const MENTIONS: &str = "
v: 1
turns:
  - repeat: true
    when: {prompt: \"Write its minutes\"}
    steps:
      - say: \"- CSV first.\"
  - repeat: true
    when: {prompt: \"You are `developer`\"}
    steps:
      - say: \"I ask @tester.\"
  - repeat: true
    steps:
      - say: \"I have nothing to add.\"
";

#[test]
fn meeting_by_mention_ends_when_nobody_is_mentioned() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let roles = ["--role", "developer", "--role", "reviewer", "--role", "tester"];
    let rule = ["--chair", "mention", "--turn-limit", "3s", "--wait"];
    let over = start(&world, &repo, MENTIONS, &[&roles[..], &rule].concat());
    assert_eq!(over["reason"], "nobody_mentioned", "{over}");
    assert_eq!(speakers(&over), ["developer", "tester"], "{over}");
    world.finish(Some(daemon));
}

/// The tester fails, and the developer never answers.
const FAILING: &str = "
v: 1
turns:
  - repeat: true
    when: {prompt: \"You are `tester`\"}
    steps:
      - exit: 3
  - repeat: true
    steps:
      - run: {command: \"sleep 120\", timeout: 120s}
";

#[test]
fn meeting_whose_every_role_fails_ends_with_that_reason() {
    let world = World::new();
    let repo = world.repo("repo");
    world.configure("categories:\n  coding: {max_restarts: 0}\n  testing: {max_restarts: 0}\n");
    let daemon = world.daemon();
    let roles = ["--role", "developer", "--role", "tester", "--turn-limit", "2s"];
    let begun = start(&world, &repo, FAILING, &roles);
    let over = ended(&world, text(&begun, "id"));
    assert_eq!(over["reason"], "every_role_failed", "{over}");
    assert_eq!(over["left"], serde_json::json!(["developer", "tester"]), "{over}");
    let lost = over["turns"].as_array().expect("turns").iter();
    let lost: Vec<_> = lost.filter(|turn| turn["outcome"] == "lost").collect();
    assert_eq!(lost.len(), 4, "{over}");
    assert!(text(lost[0], "reason").contains("no answer within 2s"), "{over}");
    let minutes = std::fs::read_to_string(text(&over, "minutes")).expect("the minutes");
    assert!(minutes.contains("No agent wrote minutes"), "{minutes}");
    let shown = show(&world, text(&over, "thread_id"));
    let all = shown["messages"].as_array().expect("messages");
    let told = |part: &str| all.iter().any(|one| text(one, "text").contains(part));
    assert!(told("`developer` lost turn 1 of the meeting: no answer within 2s."), "{shown}");
    assert!(told("It takes no more turns."), "{shown}");
    let waited = world.muleteer(&["meeting", "end", text(&over, "id"), "--wait"]).run();
    assert_eq!(waited.code, Some(4), "{waited:?}");
    world.finish(Some(daemon));
}

/// Each turn costs 20 cents.
const COSTLY: &str = "
v: 1
turns:
  - repeat: true
    when: {prompt: \"Write its minutes\"}
    steps:
      - say: \"- CSV first.\"
  - repeat: true
    steps:
      - usage: {input: 900, output: 50, cache_read: 0, cache_write: 0, cost_usd: 0.2}
      - say: \"I say ${turn}.\"
";

/// The project has a file in the place of the folder, so only the thread has the minutes.
#[test]
fn budget_ends_the_meeting_and_minutes_survive_a_project_that_cannot_be_written() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let roles = ["--role", "developer", "--role", "tester", "--role", "reviewer"];
    let more = ["--budget", "0.5", "--max-turns", "9"];
    std::fs::create_dir(repo.path.join(".agents")).expect("a folder");
    repo.write(".agents/meetings", "in the way");
    let begun = start(&world, &repo, COSTLY, &[&roles[..], &more].concat());
    let over = ended(&world, text(&begun, "id"));
    assert_eq!(over["reason"], "budget", "{over}");
    assert_eq!(speakers(&over), ["developer", "tester", "reviewer"], "{over}");
    let spent = over["spent_usd"].as_f64().expect("a cost");
    assert!((spent - 0.6).abs() < 1e-9, "{over}");
    let minutes = text(&over, "minutes");
    assert!(minutes.ends_with("/minutes.md"), "{over}");
    let document = std::fs::read_to_string(minutes).expect("the minutes");
    assert!(document.contains("- Cost: $0.60"), "{document}");
    let faults = world.events().into_iter().filter(|event| event["event"] == "fault");
    let told: Vec<_> = faults.map(|event| text(&event, "message").to_string()).collect();
    assert!(told.iter().any(|it| it.starts_with("failed to write the minutes")), "{told:?}");
    // They exist nowhere else, so they stay.
    world.muleteer(&["thread", "archive", text(&over, "thread_id")]).ok();
    let clean = ["clean", "--output", "--older-than", "0s", "--apply", "--json"];
    let cleaned = world.muleteer(&clean).json();
    assert_eq!(cleaned["output"]["dispatches"], 3, "{cleaned}");
    assert!(std::path::Path::new(minutes).exists());
    world.finish(Some(daemon));
}

fn killing(world: &World, point: &str) -> Daemon {
    world.daemon_with(&[("MULETEER_FAULT", &format!("{point}=kill"))])
}

#[test]
fn no_turn_is_given_twice_whatever_daemon_is_killed() {
    // A decision is the turn, its end, the end of the meeting, and the turn for the minutes.
    let decisions = (1..=6).map(|nth| format!("meeting.decided:{nth}"));
    let passed = MEETING_POINTS.iter().filter(|point| **point != "meeting.interrupted");
    let passed = passed.map(ToString::to_string);
    let below = ["gate.create_durable", "life.batch_durable", "thread.command_recorded"];
    let below = below.iter().chain(&["thread.delivered", "thread.decided"]);
    for point in passed.chain(decisions).chain(below.map(ToString::to_string)) {
        let world = World::new();
        let repo = world.repo("repo");
        let mut killed = killing(&world, &point);
        let more = ["--role", "developer", "--role", "tester", "--max-turns", "2"];
        let begun = start(&world, &repo, ROLES, &more);
        killed.ended();
        // A client that asks starts the next daemon, unless the one above did.
        world.muleteer(&["schedule", "list"]).ok();
        let over = ended(&world, text(&begun, "id"));
        assert_eq!(speakers(&over), ["developer", "tester"], "{point}: {over}");
        assert_eq!(repo.effects("heard"), ["developer", "tester", "minutes"], "{point}");
        for (name, expected) in [
            ("meeting_started", 1),
            ("meeting_turn", 3),
            ("meeting_turn_done", 3),
            ("meeting_ending", 1),
            ("meeting_ended", 1),
            ("message_accepted", 3),
        ] {
            assert_eq!(count(&world, name), expected, "{point}: {name}");
        }
        let folder = repo.path.join(".agents/meetings");
        let files = std::fs::read_dir(folder).expect("a folder").count();
        assert_eq!(files, 1, "{point}");
        let shown = show(&world, text(&over, "thread_id"));
        let all = shown["messages"].as_array().expect("messages");
        let posts = all.iter().filter(|one| !one["files"].as_array().expect("files").is_empty());
        assert_eq!(posts.count(), 1, "{point}: {shown}");
    }
}

#[test]
fn killed_daemon_takes_a_stalled_turn_away_once() {
    for point in ["meeting.interrupted", "meeting.decided:2"] {
        let world = World::new();
        let repo = world.repo("repo");
        let mut killed = killing(&world, point);
        let more = ["--role", "developer", "--max-turns", "1", "--turn-limit", "2s"];
        let begun = start(&world, &repo, SLOW_TURNS, &more);
        killed.ended();
        let next = world.daemon();
        let over = ended(&world, text(&begun, "id"));
        let lost = &over["turns"][0];
        assert_eq!(lost["outcome"], "lost", "{point}: {over}");
        assert_eq!(count(&world, "interrupt_requested"), 1, "{point}");
        assert_eq!(count(&world, "meeting_turn_done"), count(&world, "meeting_turn"), "{point}");
        world.finish(Some(next));
    }
}

#[test]
fn archived_thread_ends_its_meeting_and_bad_requests_start_none() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let begun = start(&world, &repo, SLOW_TURNS, &["--role", "developer"]);
    let thread = text(&begun, "thread_id");
    world.muleteer(&["thread", "archive", thread]).ok();
    let over = ended(&world, text(&begun, "id"));
    assert_eq!(over["reason"], "archived", "{over}");
    let base = ["meeting", "start", "--thread", thread, "--topic", "x"];
    for (more, code) in [
        (&["--role", "nobody"][..], "E_ROLE_UNKNOWN"),
        (&["--role", "tester", "--role", "tester"], "E_BAD_INPUT"),
        (&["--role", "tester", "--chair", "nobody"], "E_ROLE_UNKNOWN"),
        (&["--role", "tester", "--max-turns", "0"], "E_BAD_INPUT"),
        (&["--role", "a b"], "E_BAD_INPUT"),
    ] {
        let refused = world.muleteer(&[&base[..], more].concat()).run();
        assert!(refused.stderr.contains(code), "{more:?}: {refused:?}");
    }
    assert_eq!(count(&world, "meeting_started"), 1);
    world.finish(Some(daemon));
}
