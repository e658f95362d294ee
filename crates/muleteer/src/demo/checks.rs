//! What must hold afterwards. Each check says what it saw, whether it holds or not: a ✓ that nobody can
//! retrace is worth as little as a promise.

use crate::demo::cast::{CAST, Part, VICTIM};
use crate::demo::log::Log;
use crate::demo::place::Place;
use crate::demo::play::is_adopted;
use crate::failure::Failure;
use crate::render::usd;
use muleteer_model::event::{Event, Record};
use muleteer_model::journal::summarize;
use muleteer_process::clock::awake;
use muleteer_store::events;
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long the last shims may take to go, once their agents have ended.
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

    /// Holds when nothing is wrong.
    fn of(what: &'static str, wrong: &[String], seen: impl Into<String>) -> Self {
        let seen = if wrong.is_empty() { seen.into() } else { wrong.join("; ") };
        Self::new(what, wrong.is_empty(), seen)
    }

    pub fn went_to_the_end(played: &Result<(), Failure>) -> Self {
        let what = "the demo went to its end";
        match played {
            Ok(()) => Self::new(what, true, "nothing was waited for in vain"),
            Err(failure) => Self::new(what, false, failure.document()["error"]["message"].as_str().unwrap_or_default()),
        }
    }
}

pub async fn all(place: &Place, log: &Log) -> Vec<Check> {
    vec![
        successes(log),
        resumed(log),
        second_daemon(log),
        Check::new(
            "the agents worked on while no daemon lived",
            log.unattended.len() == CAST.len(),
            format!("{} got to their next commit", list(&log.unattended)),
        ),
        adopted(log),
        every_event(place, log),
        every_effect(place, log),
        journals(log),
        cost(log),
        nothing_left(place).await,
    ]
}

fn successes(log: &Log) -> Check {
    let states: Vec<_> = log.statuses.iter().map(|status| format!("{} {}", status.role, status.state)).collect();
    let all = log.statuses.len() == CAST.len() && log.statuses.iter().all(|status| status.state == "success");
    Check::new("three dispatches, three successes", all, list(&states))
}

fn resumed(log: &Log) -> Check {
    let sessions: BTreeSet<&str> = log
        .of(VICTIM)
        .filter_map(|event| match event {
            Event::SessionStarted { session_id, .. } => Some(session_id.as_str()),
            Event::AttemptStarted { resume, .. } => resume.as_deref(),
            _ => None,
        })
        .chain(log.status(VICTIM).and_then(|status| status.session_id.as_deref()))
        .collect();
    let attempts = |role| log.status(role).map_or(0, |status| status.attempts);
    let resumes = log.count(VICTIM, |event| matches!(event, Event::AttemptStarted { resume: Some(_), .. }));
    let others = CAST.iter().all(|part| part.role == VICTIM || attempts(part.role) == 1);
    let (pid, reached) = log.killed.unwrap_or_default();
    let killed = if reached { "killed" } else { "not killed" };
    let names: Vec<_> = sessions.iter().copied().collect();
    Check::new(
        "the killed agent was resumed, and nobody else restarted",
        reached && attempts(VICTIM) == 2 && resumes == 1 && sessions.len() == 1 && others,
        format!("pid {pid} {killed}, {} attempts in session {}", attempts(VICTIM), list(&names)),
    )
}

fn second_daemon(log: &Log) -> Check {
    let started: Vec<_> = log
        .records
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
    let killed = if log.daemon_killed { "the first died of SIGKILL" } else { "the first did not die of SIGKILL" };
    Check::new(
        "the daemon was killed, and another took over",
        in_order && log.daemon_killed,
        format!("{}; {killed}", list(&told)),
    )
}

fn adopted(log: &Log) -> Check {
    let mut wrong = vec![];
    let mut pids = vec![];
    for part in &CAST {
        match log.processes.iter().find(|(role, ..)| *role == part.role) {
            Some((_, process, true)) => pids.push(process.pid.to_string()),
            Some((_, process, false)) => wrong.push(format!("the {}'s pid {} did not go on", part.role, process.pid)),
            None => wrong.push(format!("the {} was not running", part.role)),
        }
        let adopted = log.count(part.role, is_adopted);
        if adopted != 1 {
            wrong.push(format!("the {} was adopted {adopted} times", part.role));
        }
    }
    Check::of(
        "all agents were adopted as the processes they were",
        &wrong,
        format!("pids {} before and after", list(&pids)),
    )
}

/// The file is whole (checksums, no gap), and the stream showed just what is in it.
fn every_event(place: &Place, log: &Log) -> Check {
    let what = "no event was lost or doubled";
    let mut stored: Vec<Record> = vec![];
    let recovery = match events::read(&place.context.paths.events(), |record| stored.push(record)) {
        Ok(recovery) => recovery,
        Err(error) => return Check::new(what, false, crate::failure::chain(&error)),
    };
    let mut wrong = vec![];
    if recovery.cut_bytes > 0 {
        wrong.push(format!("{} bytes at the end are torn", recovery.cut_bytes));
    }
    if let Some((at, _)) = stored.iter().enumerate().find(|(at, record)| record.seq != *at as u64 + 1) {
        wrong.push(format!("event {} is not where it belongs", at + 1));
    }
    let ids: BTreeSet<_> = stored.iter().map(|record| &record.entry.id).collect();
    if ids.len() != stored.len() {
        wrong.push(format!("{} events are there twice", stored.len() - ids.len()));
    }
    // What the daemon recorded while it stopped was not waited for.
    if log.records.is_empty() || !stored.starts_with(&log.records) {
        let first = log.records.iter().zip(&stored).position(|(streamed, stored)| streamed != stored);
        let at = first.map_or(stored.len().min(log.records.len()), |at| at);
        wrong.push(format!("the stream differs from the file at event {}", at + 1));
    }
    if log.lost != 1 || log.back != 1 {
        wrong.push(format!("the stream broke off {} times and came back {} times", log.lost, log.back));
    }
    let seen = format!(
        "{} events with good checksums, 1 to {}; the {} streamed are the same",
        stored.len(),
        recovery.last_seq,
        log.records.len()
    );
    Check::of(what, &wrong, seen)
}

fn every_effect(place: &Place, log: &Log) -> Check {
    let mut wrong = vec![];
    let (mut commits, mut lines) = (0, 0);
    for part in &CAST {
        match effects(place, log, part) {
            Ok(found) if found.is_empty() => {
                commits += part.commits.len();
                lines += part.lines.len();
            }
            Ok(found) => wrong.extend(found),
            Err(failure) => wrong.push(failure.document()["error"]["message"].as_str().unwrap_or_default().to_string()),
        }
    }
    let seen = format!("{commits} commits on 3 branches, {lines} appended lines, each exactly once");
    Check::of("every effect on files happened exactly once", &wrong, seen)
}

/// What is wrong with one agent's branch.
fn effects(place: &Place, log: &Log, part: &Part) -> Result<Vec<String>, Failure> {
    let mut wrong = vec![];
    let Some(branch) = log.id(part.role).map(|id| format!("muleteer/{id}")) else {
        return Ok(vec![format!("the {} was never sent", part.role)]);
    };
    let range = format!("main..{branch}");
    let subjects = place.git(&["log", "--reverse", "--format=%s", &range])?;
    if !subjects.lines().eq(part.commits.iter().copied()) {
        wrong.push(format!("the {} committed {:?}", part.role, subjects.lines().collect::<Vec<_>>()));
    }
    let files = place.git(&["diff", "--name-only", &range])?;
    if !files.lines().eq(part.files.iter().copied()) {
        wrong.push(format!("the {} changed {:?}", part.role, files.lines().collect::<Vec<_>>()));
    }
    for (file, line) in part.lines {
        let text = place.git(&["show", &format!("{branch}:{file}")])?;
        let times = text.lines().filter(|found| found == line).count();
        if times != 1 {
            wrong.push(format!("`{line}` is {times} times in the {}'s {file}", part.role));
        }
    }
    Ok(wrong)
}

fn journals(log: &Log) -> Check {
    let mut wrong = vec![];
    let mut entries = 0;
    for part in &CAST {
        let path = log
            .dispatch(part.role)
            .map(|dispatch| dispatch.created.journal.clone())
            .unwrap_or_default();
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let summary = summarize(&text);
        entries += summary.entries;
        match summary.status.as_deref() {
            Some("completed") => {}
            other => wrong.push(format!("the {}'s journal says {}", part.role, other.unwrap_or("nothing"))),
        }
        let own = text.matches(part.journal).count();
        let told =
            log.count(part.role, |event| matches!(event, Event::JournalEntry { text } if text.contains(part.journal)));
        if own != 1 || told != 1 {
            wrong.push(format!("what the {} wrote is there {own} times and was told {told} times", part.role));
        }
    }
    let seen = format!("3 completed, {entries} entries, among them what each agent wrote with no daemon alive");
    Check::of("the journals are complete, the agents' own words told once", &wrong, seen)
}

fn cost(log: &Log) -> Check {
    let wanted: f64 = CAST.iter().map(|part| part.cost_usd).sum();
    let parts = CAST
        .iter()
        .map(|part| (part, log.status(part.role).map_or(0.0, |status| status.cost_usd)));
    let same = parts.clone().all(|(part, cost)| (cost - part.cost_usd).abs() < 1e-9);
    let told: Vec<_> = parts.map(|(part, cost)| format!("{} {}", part.role, usd(cost))).collect();
    Check::new("every model call was paid for once", same, format!("{}; {} in all", list(&told), usd(wanted)))
}

async fn nothing_left(place: &Place) -> Check {
    let deadline = awake() + LAST_TO_GO;
    loop {
        let living = place.living();
        let what = "nothing is left alive";
        if living.is_empty() {
            return Check::new(what, true, "no process of this demo's");
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
