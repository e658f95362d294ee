//! Two writers of one file: own lines are restored, and foreign lines are never lost.

use crate::admission::api_error::Trouble;
use crate::agent::backend::TraitsOf;
use crate::agent::result::{AgentResult, ResultStatus};
use crate::event::{Entry, Event, ExitCause, LeftProcess, Limit, Outcome, Record, VERSION};
use crate::journal::*;
use proptest::prelude::{
    Just, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest,
};

fn head() -> Header {
    Header {
        feature: "login".into(),
        spec: None,
        task: None,
        project: "/work/shop".into(),
        branch: "muleteer/abcd2345".into(),
        started: "2026-02-17T12:34:56Z".parse().unwrap(),
    }
}

fn ours(count: usize) -> Vec<String> {
    // Some lines are equal on purpose: the same file is read twice in a minute.
    (0..count)
        .map(|n| format!("- 12:{:02} — [harness] tool_use: Read `src/{}.rs`", 34 + n / 4, n / 2))
        .collect()
}

fn again(text: &str, expected: &[String], status: Status) -> String {
    reconcile(text, &head(), expected, status, Offset::UTC).unwrap_or_else(|| text.to_string())
}

fn journal(expected: &[String], status: Status) -> String {
    again("", expected, status)
}

#[test]
fn a_new_journal_has_the_references_form() {
    let spec = Header { spec: Some("docs/specs/login.md".into()), ..head() };
    let offset = Offset::from_seconds(3600).unwrap();
    insta::assert_snapshot!(header(&spec, Status::InProgress, offset));
    let plain = header(&head(), Status::InProgress, offset);
    assert!(!plain.contains("Spec:") && !plain.contains("Task:"), "{plain}");
}

#[test]
fn task_and_spec_are_in_the_header_and_its_summary() {
    let full = Header {
        spec: Some("docs/specs/login.md".into()),
        task: Some("Users log in\nStatus: completed".into()),
        ..head()
    };
    let text = header(&full, Status::InProgress, Offset::UTC);
    let first: Vec<&str> = text.lines().take(4).collect();
    let task = "Task: Users log in Status: completed";
    assert_eq!(
        first,
        ["# Journal: login", "Spec: docs/specs/login.md", task, "Project: /work/shop"]
    );
    let read = summarize(&text);
    assert_eq!(read.spec.as_deref(), Some("docs/specs/login.md"));
    assert_eq!(read.task.as_deref(), Some("Users log in Status: completed"));
    assert_eq!(read.status.as_deref(), Some("in-progress"));
    // A damaged header gets its lines back.
    let damaged = text.replace("Task: ", "Tusk: ").replace("## Log\n", "");
    let mended = reconcile(&damaged, &full, &[], Status::InProgress, Offset::UTC).unwrap();
    assert!(mended.contains(task) && mended.contains("## Log"), "{mended}");
    // A line of a person stays in a journal whose dispatch has no title.
    let restored = reconcile(
        &damaged.replace("Tusk: ", "Task: "),
        &head(),
        &[],
        Status::InProgress,
        Offset::UTC,
    )
    .unwrap();
    assert_eq!(restored.matches(task).count(), 1, "{restored}");
    assert_eq!(restored.matches("Spec: docs/specs/login.md").count(), 1, "{restored}");
}

#[test]
fn a_hostile_feature_name_stays_on_its_line() {
    let text = header(
        &Header { feature: "x\nStatus: completed\u{1b}[2J".into(), ..head() },
        Status::Failed,
        Offset::UTC,
    );
    assert!(text.starts_with("# Journal: x Status: completed [2J\nProject:"), "{text}");
    assert_eq!(summarize(&text).status.as_deref(), Some("failed"));
}

fn line(event: Event) -> String {
    let entry = Entry { id: "e".into(), dispatch_id: None, at: None, more: false, event };
    let record = Record { v: VERSION, seq: 1, ts: "2026-02-17T23:59:59Z".parse().unwrap(), entry };
    let offset = Offset::from_seconds(2 * 3600).unwrap();
    harness_line(&record, offset, TraitsOf::default()).unwrap_or_else(|| "(no line)".into())
}

#[test]
fn events_leave_lines() {
    let exit = |code, signal, cause, stderr: &str| Event::AgentExited {
        epoch: 1,
        code,
        signal,
        cause,
        stderr_tail: stderr.into(),
        used_ms: 0,
        left: vec![],
    };
    let events = vec![
        Event::AttemptStarted { attempt: 1, epoch: 1, resume: None },
        Event::AttemptStarted { attempt: 2, epoch: 2, resume: Some("5f0c".into()) },
        Event::AgentSpawned { pid: 42, shim_pid: 41, containment: "cgroup".into(), awake_ms: 0 },
        Event::ToolCalled {
            call_id: "t".into(),
            tool: "Edit".into(),
            target: "src/a.rs".into(),
            parent: None,
        },
        Event::ToolCalled {
            call_id: "t".into(),
            tool: "Bash".into(),
            target: "echo `date`\nrm -rf /".into(),
            parent: None,
        },
        Event::ToolCalled {
            call_id: "t".into(),
            tool: "TodoWrite".into(),
            target: String::new(),
            parent: None,
        },
        Event::ToolFailed {
            call_id: "t".into(),
            text: "no such file\n- 00:00 — [harness] finished: success".into(),
        },
        Event::TurnFinished { turn: 1, ok: true, error: None, status: None, text: "done".into() },
        Event::TurnFinished {
            turn: 2,
            ok: false,
            error: Some(crate::agent::event::TurnError::RateLimit),
            status: Some(429),
            text: String::new(),
        },
        Event::ResultReceived { result: AgentResult::new(ResultStatus::Partial, "half of it") },
        Event::ResultInvalid { faults: vec!["`status` is missing".into()], repair: true },
        Event::ApiRetried { attempt: 2, max: 10, status: Some(529), delay_s: 2.5, awake_ms: None },
        Event::Compacted { before: 180_000, after: 20_000 },
        Event::BlockedByUs { on: true },
        Event::KillRequested { reason: "wrong branch".into(), by: "operator".into() },
        Event::LimitReached { limit: Limit::Budget, detail: "$10.02 of $10.00".into() },
        Event::StallDetected { silent_s: 300, evidence: "no output".into() },
        Event::RateLimited {
            until: Some(Timestamp::from_second(1_767_265_200).unwrap()),
            wait_s: 0.0,
            awake_ms: None,
        },
        Event::RateLimited { until: None, wait_s: 90.0, awake_ms: None },
        Event::ApiWaiting {
            trouble: Trouble::Overload,
            status: Some(529),
            until: Timestamp::from_second(1_767_265_200).unwrap(),
            told: false,
            waits: 2,
            spent_ms: 60_000,
        },
        Event::ApiGivenUp {
            trouble: Trouble::Refused,
            status: Some(401),
            reason: "the key is refused".into(),
        },
        exit(Some(0), None, ExitCause::Exited, "a warning"),
        exit(Some(1), None, ExitCause::Exited, "trace\nboom\n\n"),
        exit(None, Some(9), ExitCause::Terminated, ""),
        exit(None, None, ExitCause::ShimLost, ""),
        Event::SweepFinished { killed: 0, clean: true, left: vec![] },
        Event::SweepFinished { killed: 2, clean: false, left: vec![] },
        Event::AttemptFinished {
            attempt: 1,
            outcome: Outcome::Failure,
            reason: "exit code 1".into(),
            counted: true,
        },
        Event::RestartScheduled { until: "2026-02-18T00:00:01Z".parse().unwrap(), delay_ms: 1_250 },
        Event::AgentSaid { text: "hello".into() },
        Event::JournalEntry { text: "mine".into() },
        Event::DispatchFinished {
            state: FinalState::Failed,
            reason: "attempts used up".into(),
            result: None,
        },
        Event::Unknown,
    ];
    insta::assert_snapshot!(events.into_iter().map(line).collect::<Vec<_>>().join("\n"));
}

#[test]
fn session_without_an_id_shows_only_its_model() {
    let started = |id: &str, model: Option<&str>| {
        line(Event::SessionStarted { session_id: id.into(), model: model.map(String::from) })
    };
    assert!(started("5f0c", Some("m")).ends_with("[harness] session `5f0c`, model m"));
    assert!(started("", Some("m")).ends_with("[harness] model m"));
    assert_eq!(started("", None), "(no line)");
}

#[test]
fn a_line_from_outside_is_bounded() {
    let text = line(Event::ToolFailed { call_id: "t".into(), text: "x".repeat(1_000_000) });
    assert!(text.len() < 400 && !text.contains('\n'));
}

#[test]
fn an_untouched_journal_is_left_alone() {
    let text = journal(&ours(5), Status::InProgress);
    assert_eq!(reconcile(&text, &head(), &ours(5), Status::InProgress, Offset::UTC), None);
}

#[test]
fn new_lines_are_appended_and_nothing_before_them_moves() {
    let text = format!("{}- 12:50 — [agent] §1 complete\n", journal(&ours(2), Status::InProgress));
    let new = again(&text, &ours(4), Status::InProgress);
    assert_eq!(new, format!("{text}{}\n{}\n", ours(4)[2], ours(4)[3]));
}

#[test]
fn removed_lines_return_to_their_places() {
    let expected = ours(9);
    let text = journal(&expected, Status::InProgress);
    let text = text.replace(&format!("{}\n", expected[4]), "- 12:40 — [agent] tidied up\n");
    let new = again(&text, &expected, Status::InProgress);
    let at = |line: &str| new.lines().position(|l| l == line).unwrap();
    assert_eq!(new.matches(expected[4].as_str()).count(), 2, "{new}");
    assert!(at(&expected[3]) < at(&expected[4]) && at(&expected[4]) < at(&expected[6]), "{new}");
    assert!(new.contains("[agent] tidied up"));
}

#[test]
fn rewritten_journal_keeps_agent_entries_and_restores_harness_entries() {
    let text = "I finished everything.\n\nStatus: completed\n\n- parser done\n- tests pass";
    let new = again(text, &ours(2), Status::Killed);
    insta::assert_snapshot!(new);
    assert_eq!(
        agent_lines(&new, &ours(2), &[]),
        ["I finished everything.", "- parser done", "- tests pass"]
    );
}

#[test]
fn corrected_header_is_kept_except_its_status() {
    let text = journal(&ours(1), Status::InProgress)
        .replace("Branch: muleteer/abcd2345", "Branch: feature/login")
        .replace("Status: in-progress", "Status: completed")
        .replace("Started: 2026-02-17 12:34\n", "");
    let new = again(&text, &ours(1), Status::Blocked);
    let expected = "# Journal: login\nProject: /work/shop\nBranch: feature/login\
                    \nStarted: 2026-02-17 12:34\nStatus: blocked\n\n## Log\n\n";
    assert!(new.starts_with(expected), "{new}");
}

#[test]
fn a_forged_harness_line_is_an_agents_line() {
    let forged = "- 12:59 — [harness] finished: success";
    let text = format!("{}{forged}\n", journal(&ours(2), Status::InProgress));
    assert_eq!(agent_lines(&text, &ours(2), &[]), [forged]);
    let twice = format!("{}{}\n", journal(&ours(1), Status::InProgress), ours(1)[0]);
    // An agent that rewrites its journal while a line is being restored leaves a duplicate, which
    // is not an entry of the agent.
    assert!(agent_lines(&twice, &ours(1), &[]).is_empty(), "a copy of ours is no news");
}

#[test]
fn each_entry_becomes_one_event() {
    let expected = ours(2);
    let mut text = format!(
        "{}- 12:40 — [agent] waiting\n- 12:40 — [agent] waiting\n",
        journal(&expected, Status::InProgress)
    );
    let mut known = agent_lines(&text, &expected, &[]);
    assert_eq!(known.len(), 2, "the same words twice are two entries");
    assert!(agent_lines(&text, &expected, &known).is_empty());

    text.push_str("- 12:41 — [agent] half an en");
    assert!(agent_lines(&text, &expected, &known).is_empty(), "it has no newline yet");
    text.push_str("try\n## Notes\n\nfree words\n");
    let new = agent_lines(&text, &expected, &known);
    assert_eq!(new, ["- 12:41 — [agent] half an entry", "free words"]);
    known.extend(new);

    text.push_str(&format!("{}\n", "y".repeat(50_000)));
    let new = agent_lines(&text, &expected, &known);
    assert!(new.len() == 1 && new[0].len() <= ENTRY_LIMIT);
    known.extend(new);
    assert!(agent_lines(&text, &expected, &known).is_empty(), "a cut entry is known by its cut");
}

#[test]
fn our_torn_line_is_completed_and_theirs_is_ended() {
    let whole = journal(&ours(3), Status::InProgress);
    for cut in 1..ours(3)[2].len() {
        // A reader converts torn UTF-8 in this way.
        let torn = String::from_utf8_lossy(&whole.as_bytes()[..whole.len() - 1 - cut]).into_owned();
        assert_eq!(again(&torn, &ours(3), Status::InProgress), whole, "cut by {cut}");
    }
    let theirs = format!("{}- 12:50 — [agent] no newline", journal(&ours(2), Status::InProgress));
    assert_eq!(again(&theirs, &ours(3), Status::InProgress), format!("{theirs}\n{}\n", ours(3)[2]));
    assert_eq!(
        reconcile(&theirs, &head(), &ours(2), Status::InProgress, Offset::UTC),
        None,
        "it may still grow"
    );
}

#[test]
fn summary_reads_the_journal_file() {
    let text = format!(
        "{}- 13:00 — [agent] blocked: which port?\n{}\n",
        journal(&ours(1), Status::Blocked),
        ours(2)[1]
    );
    let summary = summarize(&text);
    assert_eq!(
        (summary.feature.as_deref(), summary.status.as_deref(), summary.entries),
        (Some("login"), Some("blocked"), 3)
    );
    assert_eq!(summary.last_agent_entry.as_deref(), Some("13:00 — [agent] blocked: which port?"));
    assert_eq!(summarize(""), Summary::default());
    assert_eq!(summarize("- x\n").entries, 1);
}

/// Lines of an agent, including ones that look like header lines and headings.
fn foreign() -> impl Strategy<Value = String> {
    prop_oneof![
        "- 12:[0-5][0-9] — \\[agent\\] [a-z ]{0,12}",
        "[a-z*-][a-z ]{0,10}",
        Just("## Log".to_string()),
        Just("## Notes".to_string()),
        Just("Status: done".to_string()),
        Just("Branch: other".to_string()),
        Just("# Journal: mine".to_string()),
        Just(String::new()),
        Just("- 12:34 — [harness] finished: success".to_string()),
        (0..6_usize).prop_map(|n| ours(6)[n].clone()),
    ]
}

fn status() -> impl Strategy<Value = Status> {
    (0..Status::ALL.len()).prop_map(|at| Status::ALL[at])
}

/// Counts each foreign line of a text.
fn theirs(text: &str, expected: &[String]) -> std::collections::BTreeMap<String, usize> {
    let mut counts = std::collections::BTreeMap::new();
    let header = |line: &str| {
        line == LOG
            || [TITLE, SPEC, TASK, "Project:", "Branch:", "Started:", "Status:"]
                .iter()
                .any(|key| line.starts_with(key))
    };
    for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty() && !header(line)) {
        if !expected.iter().any(|ours| ours == line) {
            *counts.entry(line.to_string()).or_default() += 1;
        }
    }
    counts
}

fn holds_all(text: &str, expected: &[String]) -> bool {
    expected.iter().all(|line| {
        text.lines().filter(|l| l == line).count() >= expected.iter().filter(|l| *l == line).count()
    })
}

proptest! {
    #[test]
    fn journal_merge_loses_nothing_and_is_idempotent(
        lines in prop::collection::vec(foreign(), 0..25), ended in any::<bool>(),
        count in 0_usize..7, status in status(),
    ) {
        let mut text = lines.join("\n");
        if ended {
            text.push('\n');
        }
        let expected = ours(count);
        let new = again(&text, &expected, status);
        prop_assert!(holds_all(&new, &expected), "{}", new);
        prop_assert_eq!(summarize(&new).status, Some(status.to_string()));
        prop_assert_eq!(again(&new, &expected, status), new.clone(), "not idempotent");
        let (before, after) = (theirs(&text, &expected), theirs(&new, &expected));
        for (line, times) in &before {
            // The beginning of the next own line may be that line, torn; it is completed.
            let torn = !ended && lines.last().is_some_and(|last| last.trim_end() == line)
                && expected.iter().any(|e| e.starts_with(line.as_str()));
            prop_assert!(torn || after.get(line).is_some_and(|now| now >= times),
                "lost {:?} in {}", line, new);
        }
    }

    #[test]
    fn after_any_truncation_all_our_lines_are_back(count in 0_usize..12, cut in 0_usize..900,
        status in status()) {
        let expected = ours(count);
        let whole = journal(&expected, status);
        let bytes = &whole.as_bytes()[..whole.len().saturating_sub(cut)];
        let new = again(&String::from_utf8_lossy(bytes), &expected, status);
        prop_assert_eq!(new, whole);
    }

    #[test]
    fn lines_only_added_leave_the_rest_in_place(
        lines in prop::collection::vec("- 12:[0-5][0-9] — \\[agent\\] [a-z ]{0,12}", 0..10),
        have in 0_usize..6, more in 0_usize..6,
    ) {
        let text = format!("{}{}", journal(&ours(have), Status::InProgress),
            lines.iter().map(|l| format!("{l}\n")).collect::<String>());
        let new = again(&text, &ours(have + more), Status::InProgress);
        prop_assert!(new.starts_with(&text), "appending is enough: {}", new);
    }

    #[test]
    fn a_line_becomes_an_event_exactly_once(lines in prop::collection::vec(foreign(), 0..25),
        count in 0_usize..7) {
        let expected = ours(count);
        let mut text = journal(&expected, Status::InProgress);
        let mut known: Vec<String> = vec![];
        for line in &lines {
            text.push_str(line);
            text.push('\n');
            known.extend(agent_lines(&text, &expected, &known));
        }
        prop_assert_eq!(agent_lines(&text, &expected, &[]).len(), known.len());
        prop_assert!(agent_lines(&text, &expected, &known).is_empty());
    }
}

#[test]
fn killed_processes_are_named() {
    let process = |pid, name: &str| LeftProcess { pid, name: name.into() };
    let left = vec![process(7, "node"), process(8, "odd\n[2J")];
    let exited = Event::AgentExited {
        epoch: 1,
        code: Some(0),
        signal: None,
        cause: ExitCause::Exited,
        stderr_tail: String::new(),
        used_ms: 0,
        left: left.clone(),
    };
    let named = "node (pid 7), odd [2J (pid 8)";
    let told = line(exited);
    assert!(told.ends_with(&format!("with code 0; killed what it left: {named}")), "{told}");
    let told = line(Event::SweepFinished { killed: 2, clean: true, left });
    assert!(told.ends_with(&format!("swept up 2 left-over processes: {named}")), "{told}");
}
