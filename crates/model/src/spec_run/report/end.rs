//! The end of a run, as its thread is told of it.

use crate::agent::event::cut;
use crate::config::Span;
use crate::spec_run::checkpoint;
use crate::spec_run::event::RunStatus;
use crate::spec_run::report::work_place::Whereabouts;
use crate::spec_run::state::{Run, RunStanding, Stage};
use jiff::Timestamp;
use std::time::Duration;

/// The most bytes of a title.
const TITLE_LIMIT: usize = 100;
/// The most bytes of a reason.
const REASON_LIMIT: usize = 2048;

/// The message about the end of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunEnd {
    /// The id of the thread in which the run was started.
    pub thread: String,
    /// The same end has the same key, and each further end of a resumed run another one.
    pub key: String,
    pub text: String,
}

/// Returns the message about the end of a run that has ended or rests. `None` if the run was
/// started without a thread, still runs, or rests for a question, which the thread shows itself.
pub fn end(run: &Run) -> Option<RunEnd> {
    let thread = run.started.thread.clone()?;
    let how = how(run)?;
    let key = format!("run/{}/end/{}", run.id(), run.end_seq);
    let title = cut(run.started.title.trim(), TITLE_LIMIT);
    let mut text = format!("Run {} ({title}) {how}: {}.", run.id(), figures(run));
    let reason =
        checkpoint::shortfall(run).map(|error| format!("{}: {}", error.code, error.message));
    let reason = reason.or_else(|| run.rest_reason().map(String::from));
    if let Some(reason) = reason.filter(|reason| !reason.trim().is_empty()) {
        text.push_str(&format!("\nReason: {}", cut(reason.trim(), REASON_LIMIT)));
    }
    let place = Whereabouts::of(run).unwrap_or_default();
    if let Some(branch) = &place.branch {
        text.push_str(&format!("\nBranch: {branch}"));
    }
    if let Some(url) = &place.pr_url {
        text.push_str(&format!("\nPull request: {url}"));
    }
    if let Some(trouble) = &place.trouble {
        text.push_str(&format!("\nIts work: {}", cut(trouble, REASON_LIMIT)));
    }
    if let Some(next) = &place.next {
        text.push_str(&format!("\nNext: {next}"));
    }
    Some(RunEnd { thread, key, text })
}

/// Returns the state as the end of a sentence about the run; `None` if the run has not ended.
fn how(run: &Run) -> Option<&'static str> {
    let (status, stopped) = match &run.standing {
        RunStanding::Running | RunStanding::Stopping(_) => return None,
        RunStanding::Resting { question: Some(_), .. } => return None,
        RunStanding::Resting { status, stopped, .. } => (*status, *stopped),
        RunStanding::Ended { outcome, .. } => (*outcome, false),
    };
    Some(match status {
        _ if stopped => "was stopped",
        RunStatus::Completed => "is completed",
        RunStatus::Partial => "is partly done",
        RunStatus::Failed => "failed",
        RunStatus::AwaitingApproval => "waits for an approval",
        RunStatus::Pending | RunStatus::InProgress => "rests",
        RunStatus::Unknown => "has ended",
    })
}

/// Returns the beads, the time and the cost: `3 of 4 beads done, 1 failed, 12m, $0.40`.
fn figures(run: &Run) -> String {
    // It does not run, so the present time does not count.
    let ran = run.ran_for_ms(Timestamp::UNIX_EPOCH) / 1000;
    let ran = Duration::from_secs(u64::try_from(ran).unwrap_or_default());
    format!(
        "{} of {} beads done, {} failed, {}, ${:.2}",
        run.count(Stage::Done),
        run.total(),
        run.count(Stage::Blocked),
        Span(ran),
        run.cost_usd.max(0.0)
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::spec_run::event::KeptWork;
    use crate::spec_run::tests::play::{Play, bead, settings};

    /// A run with two beads and these further events.
    fn played(thread: Option<&str>, events: Vec<Event>) -> Run {
        let mut play = Play::with(settings(), vec![bead("a", &[]), bead("b", &["a"])]);
        play.run.started.thread = thread.map(String::from);
        play.fold(events);
        play.run
    }

    fn told(events: Vec<Event>) -> RunEnd {
        end(&played(Some("thrd2345"), events)).unwrap()
    }

    fn rested(status: RunStatus, question: Option<&str>) -> Event {
        let question = question.map(String::from);
        Event::RunRested { status, reason: "waiting for a person".into(), question }
    }

    fn failed() -> Event {
        let (code, message) = ("E_REJECTED".into(), "anna rejected the plan".into());
        Event::RunFailed { code, message, status: RunStatus::Failed }
    }

    fn stopped() -> Vec<Event> {
        let stopping = Event::RunStopping { code: String::new(), message: "stopped".into() };
        vec![stopping, rested(RunStatus::Pending, None)]
    }

    #[test]
    fn end_is_told_with_state_beads_time_cost_and_reason() {
        let end = told(vec![failed()]);
        assert_eq!(end.thread, "thrd2345");
        let lines: Vec<_> = end.text.lines().collect();
        let first = "Run run-2026-02-12-a1b2c3 (T) failed: 0 of 2 beads done, 0 failed, 0s, $0.00.";
        assert_eq!(lines[0], first);
        assert_eq!(lines[1], "Reason: E_REJECTED: anna rejected the plan");
        assert_eq!(lines[2], "Next: muleteer run --resume run-2026-02-12-a1b2c3");
        assert!(told(stopped()).text.contains(" was stopped: "));
    }

    #[test]
    fn run_without_a_thread_or_an_end_tells_nothing() {
        assert_eq!(end(&played(None, vec![failed()])), None);
        assert_eq!(end(&played(Some("thrd2345"), vec![])), None);
        let asks = rested(RunStatus::AwaitingApproval, Some("q2345678"));
        assert_eq!(end(&played(Some("thrd2345"), vec![asks])), None);
        let text = told(vec![rested(RunStatus::AwaitingApproval, None)]).text;
        assert!(text.contains(" waits for an approval: "), "{text}");
    }

    #[test]
    fn key_stays_after_later_records_and_changes_with_the_next_end() {
        let with = |more: Vec<Event>| told(stopped().into_iter().chain(more).collect()).key;
        let once = with(vec![]);
        assert_eq!(once, with(vec![Event::RunWorkKept(KeptWork::default())]));
        let resumed = Event::RunResumed {
            run_id: "run-2026-02-12-a1b2c3".into(),
            settings: Box::new(settings()),
            by: "operator".into(),
            trace: None,
        };
        assert_ne!(once, with(vec![resumed, failed()]));
    }
}
