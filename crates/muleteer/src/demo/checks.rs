//! The checks after the demo. Each check reports what it saw, even if it passes, because a ✓
//! without evidence would be worth as little as a promise.

use crate::cli::failure::Failure;
use crate::demo::cast::{CAST, KILLED_USD, VICTIM, price, survivors};
use crate::demo::log::Log;
use crate::demo::place::Place;
use crate::demo::play::{is_adopted, ledger};
use crate::render::usd;
use muleteer_model::event::{Event, Record};
use muleteer_model::journal::summarize;
use muleteer_model::spec_run::event::{RunStatus, Verdict};
use muleteer_process::clock::awake;
use muleteer_store::events;
use rustix::process::Signal;
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long the last shims may take to exit after their agents have ended.
const LAST_TO_GO: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, Serialize)]
pub struct Check {
    pub what: &'static str,
    #[serde(rename = "ok")]
    pub held: bool,
    pub seen: String,
}

impl Check {
    fn new(what: &'static str, held: bool, seen: impl Into<String>) -> Self {
        Self { what, held, seen: seen.into() }
    }

    /// Creates a check that passes if `wrong` is empty.
    fn of(what: &'static str, wrong: &[String], seen: impl Into<String>) -> Self {
        let seen = if wrong.is_empty() { seen.into() } else { wrong.join("; ") };
        Self::new(what, wrong.is_empty(), seen)
    }

    pub fn went_to_the_end(played: &Result<(), Failure>) -> Self {
        let what = "the demo ran to its end";
        match played {
            Ok(()) => Self::new(what, true, "every wait was met"),
            Err(failure) => Self::new(
                what,
                false,
                failure.document()["error"]["message"].as_str().unwrap_or_default(),
            ),
        }
    }
}

pub async fn all(place: &Place, log: &Log) -> Vec<Check> {
    let ledger = ledger(place);
    vec![
        completed(log),
        tried_again(log, &ledger),
        second_daemon(log, &ledger),
        Check::new(
            "the agents continued without a daemon",
            log.unattended.len() == survivors().count(),
            format!("{} made their next commit", list(&log.unattended)),
        ),
        adopted(log, &ledger),
        maintained(log),
        judged(log),
        every_event(place, log),
        every_effect(place, log),
        journals(&ledger),
        cost(log),
        page(place, log),
        nothing_left(place).await,
    ]
}

fn completed(log: &Log) -> Check {
    let status = log.outcome();
    let seen = match (&log.chronicle, status) {
        (Some(chronicle), Some(status)) => format!(
            "{}, {} of {} beads done, {} agents in {} iterations",
            status.as_str(),
            log.done(),
            chronicle.run.beads.len(),
            chronicle.run.spawns,
            chronicle.run.iteration
        ),
        _ => "it did not end".into(),
    };
    let held =
        status == Some(RunStatus::Completed) && log.done() == CAST.len() && log.merged.is_some();
    Check::new("the spec became judged and merged code", held, seen)
}

fn tried_again(log: &Log, ledger: &[Record]) -> Check {
    let (dispatch, pid, reached) = log.killed.clone().unwrap_or_default();
    let died = ledger.iter().any(|record| {
        record.entry.dispatch_id.as_ref().is_some_and(|id| id.as_str() == dispatch)
            && matches!(record.entry.event, Event::AgentExited { signal: Some(signal), .. }
                if signal == Signal::KILL.as_raw())
    });
    let retries: Vec<_> = log
        .events()
        .filter_map(|event| match event {
            Event::BeadRetried { bead_id, reuse, .. } => {
                Some((log.part(bead_id).map_or("?", |part| part.key), *reuse))
            }
            _ => None,
        })
        .collect();
    let attempts: Vec<_> = CAST.iter().map(|part| (part.key, log.attempts(part.key))).collect();
    let others = attempts.iter().all(|(key, count)| *count == 1 + u32::from(*key == VICTIM));
    let told: Vec<_> = attempts.iter().map(|(key, count)| format!("{key} {count}")).collect();
    let killed = if reached && died { "died of SIGKILL" } else { "did not die of SIGKILL" };
    Check::new(
        "only the killed agent's bead was retried, in a fresh worktree",
        reached && died && retries == [(VICTIM, false)] && others,
        format!("pid {pid} {killed}; attempts: {}", list(&told)),
    )
}

fn second_daemon(log: &Log, ledger: &[Record]) -> Check {
    let started: Vec<_> = ledger
        .iter()
        .filter_map(|record| match record.entry.event {
            Event::DaemonStarted { pid, generation, .. } => Some((pid, generation)),
            _ => None,
        })
        .collect();
    let in_order = matches!(&started[..], [(a, 1), (b, 2)] if log.daemons == [*a, *b] && a != b);
    let told: Vec<_> = started
        .iter()
        .map(|(pid, generation)| format!("generation {generation} was pid {pid}"))
        .collect();
    let killed = if log.daemon_killed {
        "the first died of SIGKILL"
    } else {
        "the first did not die of SIGKILL"
    };
    Check::new(
        "the daemon was killed, and another one continued the run",
        in_order && log.daemon_killed,
        format!("{}; {killed}", list(&told)),
    )
}

fn adopted(log: &Log, ledger: &[Record]) -> Check {
    let mut wrong = vec![];
    let mut pids = vec![];
    for part in survivors() {
        match log.processes.iter().find(|(key, ..)| *key == part.key) {
            Some((_, process, true)) => pids.push(process.pid.to_string()),
            Some((_, process, false)) => {
                wrong.push(format!("pid {} at {} did not continue", process.pid, part.key))
            }
            None => wrong.push(format!("no agent was at {}", part.key)),
        }
    }
    let adopted = ledger.iter().filter(|record| is_adopted(&record.entry.event)).count();
    if adopted != survivors().count() {
        wrong.push(format!("{adopted} agents were adopted"));
    }
    Check::of(
        "the new daemon adopted the same agent processes",
        &wrong,
        format!("pids {} before and after", list(&pids)),
    )
}

fn maintained(log: &Log) -> Check {
    let ended: Vec<_> = log
        .events()
        .filter_map(|event| match event {
            Event::MaintenanceFinished { maintenance, status } => {
                Some((maintenance.as_str(), status.as_str()))
            }
            _ => None,
        })
        .collect();
    let told: Vec<_> = ended.iter().map(|(which, status)| format!("{which} {status}")).collect();
    let held = !ended.is_empty() && ended.iter().all(|(_, status)| *status == "success");
    Check::new("maintenance ran the tests between the beads", held, list(&told))
}

fn judged(log: &Log) -> Check {
    let words: Vec<_> = log
        .chronicle
        .iter()
        .flat_map(|chronicle| &chronicle.judgements)
        .map(|word| (word.end.iteration, word.end.verdict))
        .collect();
    let told: Vec<_> = words
        .iter()
        .map(|(iteration, verdict)| format!("{} in iteration {iteration}", verdict.as_str()))
        .collect();
    let held = words == [(1, Verdict::Fail), (2, Verdict::Pass)];
    Check::new("the judge found a fault, and none after it was fixed", held, list(&told))
}

/// Checks that both files are complete (checksums, no gap), and that the stream showed exactly the
/// run's events.
fn every_event(place: &Place, log: &Log) -> Check {
    let what = "no event was lost or doubled";
    let mut wrong = vec![];
    let mut seen = vec![];
    let files = [
        ("the run's", place.run_events(&log.run_id)),
        ("the daemon's", place.context.paths.events()),
    ];
    for (whose, path) in files {
        let mut stored: Vec<Record> = vec![];
        let recovery = match events::read(&path, |record| stored.push(record)) {
            Ok(recovery) => recovery,
            Err(error) => return Check::new(what, false, crate::cli::failure::chain(&error)),
        };
        if recovery.cut_bytes > 0 {
            wrong
                .push(format!("{} bytes at the end of {whose} are incomplete", recovery.cut_bytes));
        }
        if let Some((at, _)) =
            stored.iter().enumerate().find(|(at, record)| record.seq != *at as u64 + 1)
        {
            wrong.push(format!("event {} of {whose} is out of order", at + 1));
        }
        let ids: BTreeSet<_> = stored.iter().map(|record| &record.entry.id).collect();
        if ids.len() != stored.len() {
            wrong.push(format!("{} of {whose} events are duplicates", stored.len() - ids.len()));
        }
        seen.push(format!("{} {whose}", stored.len()));
        if whose == "the run's" && (log.records.is_empty() || stored != log.records) {
            let first =
                log.records.iter().zip(&stored).position(|(streamed, stored)| streamed != stored);
            let at = first.map_or(stored.len().min(log.records.len()), |at| at);
            wrong.push(format!("the stream differs from the file at event {}", at + 1));
        }
    }
    if log.lost != 1 || log.back != 1 {
        wrong.push(format!(
            "the stream was interrupted {} times and resumed {} times",
            log.lost, log.back
        ));
    }
    let told = format!(
        "events with valid checksums: {}; each event of the run was streamed once",
        list(&seen)
    );
    Check::of(what, &wrong, told)
}

fn every_effect(place: &Place, log: &Log) -> Check {
    let found = effects(place, log);
    let wrong = match found {
        Ok(wrong) => wrong,
        Err(failure) => {
            vec![failure.document()["error"]["message"].as_str().unwrap_or_default().to_string()]
        }
    };
    let commits: usize = CAST.iter().map(|part| part.commits.len()).sum();
    let lines: usize = CAST.iter().map(|part| part.lines.len()).sum();
    let seen = format!("{commits} commits on main, {lines} appended lines, each exactly once");
    Check::of("every change to files happened exactly once", &wrong, seen)
}

/// Returns everything that is wrong with the main branch.
fn effects(place: &Place, log: &Log) -> Result<Vec<String>, Failure> {
    let mut wrong = vec![];
    if log.merged.is_none() {
        return Ok(vec!["nothing was merged".into()]);
    }
    let subjects = place.git(&["log", "--reverse", "--format=%s", "main"])?;
    let wanted = CAST.iter().flat_map(|part| part.commits).copied();
    let mut wanted: Vec<&str> = wanted.chain([crate::demo::place::FIRST]).collect();
    let mut subjects: Vec<&str> = subjects.lines().collect();
    for part in &CAST {
        let own: Vec<&str> =
            subjects.iter().copied().filter(|subject| part.commits.contains(subject)).collect();
        if own != part.commits {
            wrong.push(format!("the commits of {} are {own:?}", part.key));
        }
    }
    wanted.sort_unstable();
    subjects.sort_unstable();
    if subjects != wanted {
        wrong.push(format!("main has the commits {subjects:?}"));
    }
    for (file, line) in CAST.iter().flat_map(|part| part.lines) {
        let text = place.git(&["show", &format!("main:{file}")])?;
        let times = text.lines().filter(|found| found == line).count();
        if times != 1 {
            wrong.push(format!("{file} contains `{line}` {times} times"));
        }
    }
    Ok(wrong)
}

fn journals(ledger: &[Record]) -> Check {
    let mut wrong = vec![];
    let mut texts = vec![];
    for record in ledger {
        let Event::DispatchCreated(created) = &record.entry.event else { continue };
        let text = std::fs::read_to_string(&created.journal).unwrap_or_default();
        let summary = summarize(&text);
        if !matches!(summary.status.as_deref(), Some("completed" | "failed")) {
            wrong.push(format!(
                "{} says {}",
                created.journal,
                summary.status.as_deref().unwrap_or("nothing")
            ));
        }
        texts.push(text);
    }
    for part in survivors() {
        let own: usize = texts.iter().map(|text| text.matches(part.journal).count()).sum();
        let is_reported = |record: &&Record| match &record.entry.event {
            Event::JournalEntry { text } => text.contains(part.journal),
            _ => false,
        };
        let told = ledger.iter().filter(is_reported).count();
        if own != 1 || told != 1 {
            wrong.push(format!(
                "the journal entry of {} is there {own} times and was reported {told} times",
                part.key
            ));
        }
    }
    let seen =
        format!("{} journals, with the entries that agents wrote without a daemon", texts.len());
    Check::of("the journals are complete, and each entry was reported once", &wrong, seen)
}

fn cost(log: &Log) -> Check {
    let killed = log.killed.as_ref().map(|(dispatch, ..)| dispatch.as_str()).unwrap_or_default();
    let wanted: f64 = log
        .stints()
        .map(|stint| match stint.start.bead_id.as_deref().and_then(|bead| log.part(bead)) {
            _ if stint.start.dispatch == killed => KILLED_USD,
            Some(part) => part.cost_usd,
            None => price(stint.start.purpose),
        })
        .sum();
    let told = log.chronicle.as_ref().map_or(0.0, |chronicle| chronicle.run.cost_usd);
    let by_dispatch: f64 = log.statuses.iter().map(|status| status.cost_usd).sum();
    let same = (told - wanted).abs() < 1e-9 && (by_dispatch - wanted).abs() < 1e-9;
    let seen = format!(
        "{} of {} by the run, {} by its dispatches",
        usd(told),
        usd(wanted),
        usd(by_dispatch)
    );
    Check::new("every model call was counted once", same, seen)
}

fn page(place: &Place, log: &Log) -> Check {
    let text = std::fs::read_to_string(place.page()).unwrap_or_default();
    let whole = text.starts_with("<!DOCTYPE html>") && text.ends_with("</html>");
    let beads = CAST.iter().filter(|part| text.contains(part.title)).count();
    Check::new(
        "the HTML report of the run is complete",
        whole && beads == CAST.len() && text.contains(&log.run_id),
        format!("run.html, {} KB, {beads} beads", text.len() / 1024),
    )
}

async fn nothing_left(place: &Place) -> Check {
    let deadline = awake() + LAST_TO_GO;
    loop {
        let living = place.living();
        let what = "no process is left";
        if living.is_empty() {
            return Check::new(what, true, "no process of the demo");
        }
        if awake() > deadline {
            let pids: Vec<_> = living.iter().map(|pinned| pinned.id().pid.to_string()).collect();
            return Check::new(what, false, format!("pids {}", list(&pids)));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn list<S: AsRef<str>>(items: &[S]) -> String {
    if items.is_empty() {
        return "nothing".into();
    }
    items.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", ")
}
