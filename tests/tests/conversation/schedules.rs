//! Schedules: real daemons, real clocks, scripted agents.

use crate::{ECHO, show};
use jiff::Timestamp;
use muleteer_process::fault::SCHEDULE_POINTS;
use muleteer_tests::{Daemon, PATIENCE, Repo, World, wait_until};
use serde_json::Value;
use std::collections::BTreeSet;

/// A moment that no test reaches.
const NEVER: &str = "0 0 1 1 *";
/// Each second.
const ALWAYS: &str = "* * * * * *";

fn configure(world: &World, repo: &Repo, cron: &str, more: &str) {
    world.configure(&format!(
        "schedules:\n  standup:\n    cron: \"{cron}\"\n    role: developer\n    \
         time_zone: UTC\n    prompt: Report.\n    project: {}\n    backend: rehearsal\n{more}",
        repo.to_str()
    ));
}

/// Starts a daemon whose new threads have agents that play [`ECHO`].
fn daemon(world: &World, more: &[(&str, &str)]) -> Daemon {
    let file = scenario(world);
    let scenario = ("MULETEER_SCENARIO", file.as_str());
    world.daemon_with(&[&[scenario], more].concat())
}

/// Starts such a daemon that dies at a point, perhaps before it answers, and waits for its end.
fn killed_at(world: &World, point: &str) {
    let file = scenario(world);
    let fault = format!("{point}=kill");
    let scenario = ("MULETEER_SCENARIO", file.as_str());
    world.daemon_unready(&[scenario, ("MULETEER_FAULT", &fault)]).ended();
}

fn scenario(world: &World) -> String {
    let file = world.path().join("scenario.yaml");
    std::fs::write(&file, ECHO).expect("a scenario");
    file.to_str().expect("a path").into()
}

fn list(world: &World) -> Value {
    let listed = world.muleteer(&["schedule", "list", "--json"]).json();
    listed["schedules"][0].clone()
}

fn named(world: &World, name: &str) -> Vec<Value> {
    world.events().into_iter().filter(|event| event["event"] == name).collect()
}

/// Returns the keys of the moments that were due and not skipped.
fn due(world: &World) -> Vec<String> {
    let due = named(world, "schedule_due").into_iter();
    let due = due.filter(|event| event["skipped"].is_null());
    due.map(|event| event["key"].as_str().expect("a key").to_string()).collect()
}

fn accepted(world: &World) -> Vec<String> {
    let all = named(world, "message_accepted").into_iter();
    all.map(|event| event["key"].as_str().expect("a key").to_string()).collect()
}

/// Waits until each message is answered.
fn settled(world: &World) {
    wait_until("all answers", PATIENCE, || {
        let done = named(world, "schedule_done");
        let threads: BTreeSet<_> =
            done.iter().filter_map(|event| event["thread"].as_str()).collect();
        let is_answered = |thread: &&str| {
            show(world, thread)["messages"].as_array().is_some_and(|all| {
                let inbound = all.iter().filter(|message| message["direction"] == "in");
                inbound.clone().count() > 0
                    && inbound.clone().all(|message| message["state"] == "answered")
            })
        };
        let is_done = done.len() == due(world).len() && !done.is_empty();
        (is_done && threads.iter().all(is_answered)).then_some(())
    });
}

#[test]
fn due_schedule_writes_to_a_thread_of_its_own_until_it_is_edited() {
    let world = World::new();
    let repo = world.repo("repo");
    // A folder that exists is watched.
    world.configure("");
    let daemon = daemon(&world, &[]);
    assert_eq!(world.muleteer(&["schedule", "list"]).ok(), "no schedules");
    // The daemon reads the edited file without a restart.
    configure(&world, &repo, ALWAYS, "");
    wait_until("two starts", PATIENCE, || (due(&world).len() >= 2).then_some(()));
    configure(&world, &repo, ALWAYS, "    enabled: false\n");
    wait_until("the schedule to be disabled", PATIENCE, || {
        let set = named(&world, "schedule_set");
        set.last().is_some_and(|event| event["cron"].is_null()).then_some(())
    });
    settled(&world);
    let keys = accepted(&world);
    assert_eq!(keys, due(&world));
    assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
    assert_eq!(repo.effects("heard"), vec!["Report."; keys.len()]);
    let listed = list(&world);
    assert_eq!(listed["next"], Value::Null, "{listed}");
    let thread = named(&world, "schedule_done")[0]["thread"].clone();
    let shown = show(&world, thread.as_str().expect("a thread"));
    assert_eq!(shown["role"], "developer", "{shown}");
    assert_eq!(shown["title"], "standup", "{shown}");
    assert_eq!(due(&world).len(), keys.len(), "it is disabled");
    world.finish(Some(daemon));
}

#[test]
fn requested_start_writes_one_message_whatever_daemon_is_killed() {
    for point in SCHEDULE_POINTS.iter().copied().chain(["thread.accepted"]) {
        let world = World::new();
        let repo = world.repo("repo");
        configure(&world, &repo, NEVER, "    enabled: false\n");
        let mut killed = daemon(&world, &[("MULETEER_FAULT", &format!("{point}=kill"))]);
        let mut client = world.muleteer(&["schedule", "run", "standup"]).start();
        killed.ended();
        world.signal(client.pid(), rustix::process::Signal::KILL);
        let _ = client.is_running();
        let next = daemon(&world, &[]);
        settled(&world);
        assert_eq!(due(&world).len(), 1, "{point}");
        assert_eq!(accepted(&world), due(&world), "{point}");
        assert_eq!(named(&world, "thread_opened").len(), 1, "{point}");
        assert_eq!(repo.effects("heard"), ["Report."], "{point}");
        let last = list(&world)["last"].clone();
        assert_eq!(last["state"], "started", "{point}: {last}");
        assert_eq!(last["message_state"], "answered", "{point}: {last}");
        world.finish(Some(next));
    }
}

#[test]
fn due_moment_writes_one_message_whatever_daemon_is_killed() {
    for point in SCHEDULE_POINTS {
        let world = World::new();
        let repo = world.repo("repo");
        configure(&world, &repo, ALWAYS, "");
        killed_at(&world, point);
        let started = due(&world);
        assert_eq!(started.len(), 1, "{point}");
        // A start that is under way is completed, although the schedule is disabled meanwhile.
        configure(&world, &repo, ALWAYS, "    enabled: false\n");
        let next = daemon(&world, &[]);
        settled(&world);
        assert_eq!(due(&world), started, "{point}");
        assert_eq!(accepted(&world), started, "{point}");
        assert_eq!(repo.effects("heard"), ["Report."], "{point}");
        world.finish(Some(next));
    }
}

/// The seconds of [`some_seconds`].
const SECONDS: i8 = 20;

/// Returns a pattern that is due in each of the next seconds and then not for a year, with the last
/// of these moments.
fn some_seconds() -> (String, Timestamp) {
    let begin = wait_until("a minute with enough seconds left", 2 * PATIENCE, || {
        let now = Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
        (now.second() < 59 - SECONDS).then_some(now)
    });
    let (first, last) = (begin.second() + 1, begin.second() + SECONDS);
    let (minute, hour, day, month) = (begin.minute(), begin.hour(), begin.day(), begin.month());
    let end = begin.with().second(last).subsec_nanosecond(0).build().expect("a moment");
    (format!("{first}-{last} {minute} {hour} {day} {month} *"), end.timestamp())
}

/// Returns once a daemon has decided about all moments so far: it follows another schedule by the
/// same decision.
fn decided(world: &World, repo: &Repo, cron: &str, other: &str) {
    let project = repo.to_str();
    let place = format!("role: developer\n    prompt: x\n    project: {project}");
    let more = format!("    on_busy: queue\n  {other}:\n    cron: \"{NEVER}\"\n    {place}\n");
    configure(world, repo, cron, &more);
    wait_until("the other schedule to be followed", PATIENCE, || {
        let set = named(world, "schedule_set");
        set.iter().any(|event| event["schedule"] == other).then_some(())
    });
}

/// A daemon dies in the start of a moment, and several more pass without a daemon. The first one is
/// completed and not started again, and those that were missed are one start.
fn moments_pass_after_a_kill_at(point: &str) {
    let world = World::new();
    let repo = world.repo("repo");
    let (cron, last) = some_seconds();
    configure(&world, &repo, &cron, "    on_busy: queue\n");
    killed_at(&world, point);
    let first = due(&world);
    assert_eq!(first.len(), 1, "{point}: {first:?}");
    let passed = last + std::time::Duration::from_millis(1_100);
    wait_until("the moments to pass", PATIENCE, || (Timestamp::now() > passed).then_some(()));
    let wanted = vec![first[0].clone(), format!("schedule/standup/{last}")];
    assert_ne!(wanted[0], wanted[1], "{point}: the machine is too slow for {SECONDS} moments");
    let next = daemon(&world, &[]);
    wait_until("the start of the missed moments", PATIENCE, || {
        (due(&world).len() >= 2).then_some(())
    });
    settled(&world);
    decided(&world, &repo, &cron, "second");
    assert_eq!(due(&world), wanted, "{point}");
    world.expect_clean_end(Some(next));
    // Another daemon, which begins after everything is done, starts nothing.
    let third = daemon(&world, &[]);
    decided(&world, &repo, &cron, "third");
    settled(&world);
    assert_eq!(due(&world), wanted, "{point}");
    assert_eq!(accepted(&world), wanted, "{point}");
    assert_eq!(repo.effects("heard"), ["Report.", "Report."], "{point}");
    world.finish(Some(third));
}

#[test]
fn moments_that_passed_without_a_daemon_are_started_once() {
    std::thread::scope(|scope| {
        for point in SCHEDULE_POINTS.iter().copied() {
            scope.spawn(move || moments_pass_after_a_kill_at(point));
        }
    });
}

/// The thread of another schedule has as many unanswered messages as it may have.
#[test]
fn start_that_must_wait_says_why_and_is_made_later() {
    let world = World::new();
    let repo = world.repo("repo");
    world.configure("");
    let daemon = daemon(&world, &[]);
    let thread = crate::open(&world, &repo, crate::SLOW);
    for number in 0..muleteer_model::conversation::MOST_OPEN {
        world.muleteer(&["thread", "send", &thread, &format!("message {number}")]).ok();
    }
    configure(&world, &repo, NEVER, &format!("    thread: \"{thread}\"\n"));
    let ran = world.muleteer(&["schedule", "run", "standup"]).run();
    assert_ne!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("cannot be started now"), "{ran:?}");
    assert!(ran.stderr.contains("are unanswered"), "the reason: {ran:?}");
    let again = world.muleteer(&["schedule", "run", "standup"]).run();
    assert!(again.stderr.contains("are unanswered"), "{again:?}");
    let listed = list(&world);
    assert_eq!(listed["running"], true, "{listed}");
    assert!(listed["reason"].as_str().is_some_and(|it| it.contains("E_BUSY")), "{listed}");
    let shown = world.muleteer(&["schedule", "list"]).ok();
    assert!(shown.contains("waiting") && shown.contains("E_BUSY"), "{shown}");
    // The pause grows, and the reason is told once.
    let retry = |listed: &Value| -> Option<Timestamp> { listed["retry_at"].as_str()?.parse().ok() };
    let first = retry(&listed).expect("a time");
    wait_until("two more tries", PATIENCE, || {
        let second = retry(&list(&world))?;
        (second >= first + std::time::Duration::from_secs(8)).then_some(())
    });
    let told = named(&world, "fault").into_iter();
    let told: Vec<_> = told.filter(|event| event["what"] == "schedule standup").collect();
    assert_eq!(told.len(), 1, "{told:?}");
    repo.write("go", "");
    wait_until("the start", 2 * PATIENCE, || {
        (list(&world)["last"]["state"] == "started").then_some(())
    });
    assert!(list(&world)["reason"].is_null());
    assert_eq!(due(&world).len(), 1);
    world.finish(Some(daemon));
}

#[test]
fn edited_backend_is_used_by_the_next_start() {
    let world = World::new();
    let repo = world.repo("repo");
    let place = |more: &str| {
        let project = repo.to_str();
        let role = "role: developer\n    prompt: Report.";
        world.configure(&format!(
            "backends: {{subprocess: {{command: \"cat >> heard_by_subprocess\"}}}}\nschedules:\n  \
             standup:\n    cron: \"{NEVER}\"\n    {role}\n    project: {project}\n    {more}\n"
        ));
    };
    place("backend: rehearsal");
    let daemon = daemon(&world, &[]);
    world.muleteer(&["schedule", "run", "standup"]).ok();
    settled(&world);
    place("backend: subprocess");
    world.muleteer(&["schedule", "run", "standup"]).ok();
    let backends = wait_until("an agent of the other backend", PATIENCE, || {
        let created = named(&world, "dispatch_created").into_iter();
        let backends = created.filter_map(|event| event["backend"].as_str().map(String::from));
        let backends: Vec<_> = backends.collect();
        (backends.len() >= 2).then_some(backends)
    });
    assert_eq!(backends, ["rehearsal", "subprocess"]);
    world.finish(Some(daemon));
}

#[test]
fn schedule_that_cannot_be_started_says_why() {
    let world = World::new();
    let repo = world.repo("repo");
    configure(&world, &repo, NEVER, "    thread: \"slack:C1\"\n");
    let daemon = daemon(&world, &[]);
    let ran = world.muleteer(&["schedule", "run", "standup"]).run();
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(ran.stdout.contains("has no thread `C1`"), "{ran:?}");
    let unknown = world.muleteer(&["schedule", "run", "sit-down"]).run();
    assert!(unknown.stderr.contains("no schedule `sit-down`"), "{unknown:?}");
    let listed = list(&world);
    assert_eq!(listed["last"]["state"], "failed", "{listed}");
    assert!(listed["next"].as_str().is_some_and(|next| next.contains("-01-01T")), "{listed}");
    world.finish(Some(daemon));
}

#[test]
fn daemon_stays_as_long_as_a_schedule_is_enabled() {
    let world = World::new();
    let repo = world.repo("repo");
    configure(&world, &repo, NEVER, "");
    let args = ["daemon", "--on-demand", "--idle-exit", "1s"];
    let mut daemon = world.muleteer(&args).start();
    wait_until("the schedule to be followed", PATIENCE, || {
        (named(&world, "schedule_set").len() == 1).then_some(())
    });
    let until = Timestamp::now() + std::time::Duration::from_secs(3);
    wait_until("the idle time to pass", PATIENCE, || (Timestamp::now() > until).then_some(()));
    assert!(daemon.is_running());
    configure(&world, &repo, NEVER, "    enabled: false\n");
    assert_eq!(daemon.finish().code, Some(0), "it has gone by itself");
    world.finish(None);
}

/// A shell empties the file before it writes it.
#[test]
fn configuration_that_is_empty_for_a_moment_ends_no_schedule() {
    let world = World::new();
    let repo = world.repo("repo");
    configure(&world, &repo, NEVER, "");
    let daemon = daemon(&world, &[]);
    wait_until("the schedule to be followed", PATIENCE, || {
        (named(&world, "schedule_set").len() == 1).then_some(())
    });
    let file = world.path().join("config/muleteer/config.yaml");
    let text = std::fs::read(&file).expect("the configuration");
    std::fs::write(&file, "").expect("an empty file");
    std::fs::write(&file, text).expect("the configuration");
    // A schedule that is added is followed after a look at the whole file.
    let other = format!("  other:\n    cron: \"{NEVER}\"\n    role: developer\n    ");
    let more = format!("{other}prompt: Other.\n    project: /\n");
    configure(&world, &repo, NEVER, &more);
    wait_until("the other schedule to be followed", PATIENCE, || {
        let set = named(&world, "schedule_set");
        set.iter().any(|event| event["schedule"] == "other").then_some(())
    });
    let removed = |event: &Value| event["removed"] == true;
    assert!(!named(&world, "schedule_set").iter().any(removed));
    world.finish(Some(daemon));
}
