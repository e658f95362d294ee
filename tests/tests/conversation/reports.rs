//! The reports to a thread about the work of its agents.

use crate::{ask, open, show};
use muleteer_process::fault::REPORT_POINTS;
use muleteer_tests::{PATIENCE, Repo, World, wait_until};
use serde_json::Value;

/// An agent that writes two entries into its journal in each turn, and works until a file exists.
const JOURNAL: &str = "
v: 1
turns:
  - repeat: true
    steps:
      - run: printf -- '- 12:34 — [agent] %s\\n' \"Starting $prompt\" \"Half of $prompt\" \
        >> \"$journal\"
      - run: {command: \"while [ ! -e go ]; do sleep 0.05; done\", timeout: 120s}
      - say: \"${turn}: ${prompt}\"
";

/// Returns the texts of Muleteer's messages that answer nothing.
fn reports(shown: &Value) -> Vec<String> {
    let all = shown["messages"].as_array().expect("messages");
    let is_report = |message: &&Value| {
        message["author"]["kind"] == "muleteer"
            && message["answers"].as_array().is_none_or(Vec::is_empty)
    };
    let texts = all.iter().filter(is_report);
    texts.map(|message| message["text"].as_str().unwrap_or_default().to_string()).collect()
}

fn wait_for_reports(world: &World, thread: &str, count: usize) -> Vec<String> {
    wait_until("the reports", PATIENCE, || {
        let reports = reports(&show(world, thread));
        (reports.len() >= count).then_some(reports)
    })
}

fn finish(repo: &Repo, world: &World, thread: &str) -> Value {
    repo.write("go", "");
    wait_until("the answer", PATIENCE, || {
        let shown = show(world, thread);
        let last = shown["messages"].as_array().and_then(|all| all.last().cloned())?;
        (last["author"]["kind"] == "agent").then_some(shown)
    })
}

#[test]
fn journal_entries_are_told_once_whatever_daemon_is_killed() {
    // The last one is passed while the turn runs, however many records one write has.
    for point in REPORT_POINTS.iter().chain(&["ledger.after_fsync:8"]) {
        let world = World::new();
        let repo = world.repo("repo");
        let mut first = world.daemon();
        let thread = open(&world, &repo, JOURNAL);
        first.kill_9();
        let mut killed = world.daemon_with(&[("MULETEER_FAULT", &format!("{point}=kill"))]);
        world.muleteer(&["thread", "send", &thread, "one", "--key", "k"]).run();
        killed.ended();
        // A client that asks starts the next daemon, unless the one above did.
        ask(&world, &thread, "/help");
        let told = wait_for_reports(&world, &thread, 1);
        let shown = finish(&repo, &world, &thread);
        assert_eq!(reports(&shown), told, "{point}");
        let lines: Vec<_> = told.iter().flat_map(|text| text.lines()).collect();
        let entries: Vec<_> = lines.iter().map(|line| line.trim_start_matches("- ")).collect();
        let wanted = ["`product-analyst`: Starting one", "`product-analyst`: Half of one"];
        assert_eq!(entries, wanted, "{point}: {told:?}");
    }
}

#[test]
fn quiet_thread_is_told_of_no_journal_entry() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let thread = open(&world, &repo, JOURNAL);
    let answer = |text: &str| ask(&world, &thread, text)["answer"]["text"].clone();
    assert_eq!(answer("/set verbosity quiet"), "The verbosity of this thread is quiet.");
    let unknown = "E_BAD_INPUT: `loud` is no verbosity of a thread (use quiet, normal or all)";
    assert_eq!(answer("/set verbosity loud"), unknown);
    repo.write("go", "");
    assert_eq!(answer("one"), "1: one");
    assert_eq!(
        answer("/set verbosity"),
        "The verbosity of this thread is that of each agent's role."
    );
    assert_eq!(answer("two"), "2: two");
    let told = wait_for_reports(&world, &thread, 1).join("\n");
    assert!(told.contains("Starting two") && !told.contains("Starting one"), "{told}");
    world.finish(Some(daemon));
}

/// A coordinator that dispatches a reviewer. The reviewer prints the same, which is a text.
const COORDINATOR: &str = "
v: 1
turns:
  - repeat: true
    steps:
      - run: printf '%s\\n' \"$prompt\" >> heard
      - say: '{\"response\": \"I start it.\", \"commands\": [ \
        {\"action\": \"spawn\", \"role\": \"reviewer\", \"prompt\": \"look\", \
         \"title\": \"A look\"}]}'
";

#[test]
fn commands_of_a_coordinator_are_carried_out_once_whatever_daemon_is_killed() {
    for point in ["thread.decided:3", "thread.task_opened", "thread.command_done"] {
        let world = World::new();
        let repo = world.repo("repo");
        let mut first = world.daemon();
        let thread = open(&world, &repo, COORDINATOR);
        let given = ask(&world, &thread, "/role project-coordinator");
        assert_eq!(given["state"], "answered", "{given}");
        first.kill_9();
        let mut killed = world.daemon_with(&[("MULETEER_FAULT", &format!("{point}=kill"))]);
        world.muleteer(&["thread", "send", &thread, "plan", "--key", "k"]).run();
        killed.ended();
        // A client that asks starts the next daemon, unless the one above did.
        ask(&world, &thread, "/help");
        let shown = wait_until("the end of the task", PATIENCE, || {
            let shown = show(&world, &thread);
            (shown["tasks"][1]["state"] == "closed").then_some(shown)
        });
        let all = shown["messages"].as_array().expect("messages");
        let count = |text: &str| {
            all.iter()
                .filter(|one| one["text"].as_str().is_some_and(|of| of.contains(text)))
                .count()
        };
        assert_eq!(count("I start it."), 2, "{point}: {shown}");
        assert_eq!(count("Dispatched `reviewer`"), 1, "{point}: {shown}");
        let command =
            all.iter().find(|one| one["text"] == "/spawn reviewer look --title \"A look\"");
        let command = command.unwrap_or_else(|| panic!("{point}: {shown}"));
        assert_eq!((&command["direction"], &command["state"]), (&"in".into(), &"answered".into()));
        assert_eq!(shown["tasks"][1]["title"], "A look", "{point}: {shown}");
        assert_eq!(repo.effects("heard"), ["plan", "look"], "{point}");
    }
}
