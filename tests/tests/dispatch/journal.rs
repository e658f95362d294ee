//! The journal of a dispatch, which Muleteer and its agent both write.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use crate::lifecycle::RESULT;
use muleteer_tests::wait::holds_for;
use muleteer_tests::{PATIENCE, World, wait_until};
use rustix::process::Signal;
use std::path::Path;
use std::time::Duration;

#[test]
fn journal_is_written_and_agent_entries_are_read() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let script =
        format!("echo '- found the cause in a.rs' >> \"$MULETEER_JOURNAL\"; sleep 0.5; {RESULT}");
    let id = world.spawn(&repo, &script, &["--wait", "--feature", "login"]).ok();
    let journal = world.dispatch(&id)["journal"].as_str().unwrap().to_string();
    assert!(
        journal.starts_with(&format!("{}/.agents/journals/login/", repo.to_str())),
        "{journal}"
    );
    let text = wait_until("the journal to be completed", PATIENCE, || {
        let text = std::fs::read_to_string(&journal).unwrap_or_default();
        text.contains("completed").then_some(text)
    });
    assert!(text.contains("found the cause in a.rs"), "the agent's own line stays:\n{text}");
    assert_eq!(world.muleteer(&["journal", &id, "--json"]).json()["text"], text);
    // The file has `- 12:34 — [harness] …` in UTC; people see the local date and time.
    let shown = |zone: &str| world.muleteer(&["journal", &id]).env("TZ", zone).ok();
    let utc = shown("UTC");
    assert_eq!(utc.lines().count(), text.trim().lines().count(), "{utc}");
    for (line, stored) in utc.lines().zip(text.lines()) {
        match stored.strip_prefix("- ").filter(|rest| rest.contains("[harness]")) {
            Some(rest) => {
                let dated = line.strip_prefix("- ").and_then(|line| line.strip_suffix(rest));
                let day = dated.map(|day| day.trim().parse::<jiff::civil::Date>());
                assert!(day.is_some_and(|day| day.is_ok()), "{line} for {stored}");
            }
            None => assert_eq!(line, stored),
        }
    }
    assert_ne!(shown("Etc/GMT+12"), utc);
    let entries = world.events_of(&id, "journal_entry");
    assert!(
        entries.iter().any(|event| event["text"].as_str().unwrap().contains("found the cause")),
        "{entries:?}"
    );
    world.finish(Some(daemon));
}

/// The agent rewrites the file in place, which empties it first: at once, and slowly while a line
/// of ours is due. It also replaces the file as editors do.
#[test]
fn agent_that_rewrites_its_journal_keeps_its_entries() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let script = r#"
        for n in 1 2 3 4 5 6; do
            cat "$MULETEER_JOURNAL" > t; echo "- at once $n" >> t
            cat t > "$MULETEER_JOURNAL"; sleep 0.1
        done
        echo "- plainly 1" >> "$MULETEER_JOURNAL"
        cat "$MULETEER_JOURNAL" > t; echo "- moved 1" >> t; mv t "$MULETEER_JOURNAL"
        cat "$MULETEER_JOURNAL" > t
        {
            cat t; echo "- slowly 1"
            while [ ! -e more ]; do sleep 0.05; done
            echo "- slowly 2"
            while [ ! -e call ]; do sleep 0.05; done
            echo '{"type":"tool_call","id":"a","name":"Due","input":{}}' >&3
            while [ ! -e go ]; do sleep 0.05; done
            echo "- slowly 3"
        } 3>&1 > "$MULETEER_JOURNAL"
        while [ ! -e end ]; do sleep 0.05; done
    "#;
    let id = world.spawn(&repo, script, &[]).ok();
    let is_known = |line: &str| {
        let entries = world.events_of(&id, "journal_entry");
        entries.iter().any(|entry| entry["text"] == line).then_some(())
    };
    // The first line may be read before the system reports that somebody writes. The next one is
    // read because the system has reported it.
    wait_until("the first slow line to be read", PATIENCE, || is_known("- slowly 1"));
    repo.write("more", "");
    wait_until("the second slow line to be read", PATIENCE, || is_known("- slowly 2"));
    repo.write("call", "");
    wait_until("our line to be due", PATIENCE, || {
        (!world.events_of(&id, "tool_called").is_empty()).then_some(())
    });
    let journal = world.dispatch(&id)["journal"].as_str().unwrap().to_string();
    let text = || std::fs::read_to_string(&journal).unwrap_or_default();
    holds_for("that nothing is put into what is being written", Duration::from_millis(600), || {
        text().ends_with("- slowly 2\n")
    });
    repo.write("go", "");
    wait_until("our line to be put back once it is closed", PATIENCE, || {
        text().contains("Due").then_some(())
    });
    repo.write("end", "");
    world.wait_for_end(&id);
    let text = wait_until("the journal to be completed", PATIENCE, || {
        Some(text()).filter(|text| text.contains("Status: completed"))
    });
    let mut lines: Vec<String> = (1..=6).map(|n| format!("- at once {n}")).collect();
    lines.extend(
        ["- plainly 1", "- moved 1", "- slowly 1", "- slowly 2", "- slowly 3"].map(String::from),
    );
    let entries = world.events_of(&id, "journal_entry");
    assert_eq!(
        entries.iter().map(|entry| entry["text"].as_str().unwrap()).collect::<Vec<_>>(),
        lines
    );
    for line in lines.iter().map(String::as_str).chain([
        "attempt 1 started",
        "agent started",
        "tool_use: Due",
        "finished",
    ]) {
        assert_eq!(text.matches(line).count(), 1, "{line} in\n{text}");
    }
    world.finish(Some(daemon));
}

/// The end of a dispatch is durable before its journal has it, and a client that follows the
/// journal still sees it.
#[test]
fn journal_follow_shows_the_last_line() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = world.spawn(&repo, "while [ ! -e go ]; do sleep 0.05; done", &[]).ok();
    world.wait_for_state(&id, &["running"]);
    let following = world.muleteer(&["journal", &id, "-f"]).start();
    repo.write("go", "");
    let shown = following.finish();
    assert!(shown.code == Some(0) && shown.stdout.contains("finished"), "{shown:?}");
    world.finish(Some(daemon));
}

/// The journal is made before the agent starts. If it cannot be made, a fault is recorded and the
/// work continues. In a sandbox an agent may write its journal but not read our files, so the
/// daemon does neither for it, and a pipe does not block anybody.
#[test]
fn link_or_pipe_instead_of_a_journal_is_ignored() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let secret = world.path().join("secret");
    std::fs::write(&secret, "- 00:00 — sealed\n").unwrap();
    let exclude = std::path::Path::new(repo.to_str()).join(".git/info/exclude");
    let link = format!("ln -s '{}' x; mv -f x \"$MULETEER_JOURNAL\"", secret.display());
    for (number, replace) in
        ["mkfifo x; mv -f x \"$MULETEER_JOURNAL\"", &link].into_iter().enumerate()
    {
        let script = format!(
            "{replace}; echo '{{\"type\":\"text\",\"text\":\"told\"}}'; echo run >> effects"
        );
        let id = world.spawn(&repo, &script, &["--feature", &format!("f{number}"), "--wait"]).ok();
        assert_eq!(world.dispatch(&id)["state"], "success", "{replace}");
        let faults = || world.events_of(&id, "fault");
        wait_until("the fault to be on record", PATIENCE, || (!faults().is_empty()).then_some(()));
        assert!(world.events_of(&id, "journal_entry").is_empty(), "{replace}");
    }
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "- 00:00 — sealed\n");

    std::fs::remove_file(&exclude).unwrap();
    std::os::unix::fs::symlink(&secret, &exclude).unwrap();
    world.spawn(&repo, "echo run >> effects", &["--wait"]).ok();
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "- 00:00 — sealed\n");
    assert_eq!(repo.effects("effects").len(), 3);
    world.finish(Some(daemon));
}

/// Each line of an agent's journal becomes a permanent event, so a flood of lines is cut at a
/// limit.
#[test]
fn flood_of_journal_entries_is_limited() {
    const MOST: usize = 10_000;
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = world.spawn(&repo, "yes | head -n 60000 >> \"$MULETEER_JOURNAL\"", &["--wait"]).ok();
    assert_eq!(world.dispatch(&id)["state"], "success");
    assert_eq!(world.events_of(&id, "journal_entry").len(), MOST);
    let faults = world.events_of(&id, "fault");
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0]["message"].as_str().unwrap().contains("10000 entries"), "{faults:?}");
    world.finish(Some(daemon));
}

/// Another process may write the file between Muleteer's check and its own write.
#[test]
fn foreign_text_during_the_creation_of_a_journal_is_kept() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon_with(&[("MULETEER_FAULT", "journal.mid_batch=stop")]);
    let spawned = world.spawn(&repo, "true", &["--wait"]).start();
    wait_until("the daemon to stop itself", PATIENCE, || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.pid())).ok()?;
        stat.rsplit_once(") ")?.1.starts_with('T').then_some(())
    });
    let created =
        world.events().into_iter().find(|event| event["event"] == "dispatch_created").unwrap();
    let journal = Path::new(created["journal"].as_str().unwrap());
    assert!(!journal.exists(), "it is about to be made");
    std::fs::create_dir_all(journal.parent().unwrap()).unwrap();
    std::fs::write(journal, "- somebody was quicker\n").unwrap();
    world.signal(daemon.pid(), Signal::CONT);
    assert_eq!(spawned.finish().code, Some(0));
    let text = std::fs::read_to_string(journal).unwrap();
    assert!(text.contains("somebody was quicker") && text.contains("completed"), "{text}");
    world.finish(Some(daemon));
}

#[test]
fn unwritable_journal_does_not_block_a_dispatch() {
    let world = World::new();
    let repo = world.repo("repo");
    repo.write(".agents", "somebody's file");
    let daemon = world.daemon();
    let id = world.spawn(&repo, "echo run >> effects", &["--wait"]).ok();
    assert_eq!(world.dispatch(&id)["state"], "success");
    assert_eq!(repo.effects("effects"), ["run"]);
    let of_its_own = |event: &serde_json::Value| event["dispatch_id"] == id.as_str();
    assert!(
        world.events().iter().any(|event| event["event"] == "fault"
            && event["what"] == "journal"
            && of_its_own(event))
    );
    world.finish(Some(daemon));
}
