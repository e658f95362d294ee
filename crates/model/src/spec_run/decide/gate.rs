//! The gates of a run: what a person must approve before it continues, as a question.
//!
//! ```text
//!  RunRested {question} ──▶ resting ── approve ─▶ RunResumed, RunApproved
//!                              ├────── change ──▶ RunResumed, PlanChangeRequested   (plan only)
//!                              └────── reject ──▶ RunResumed, RunStopping {E_REJECTED}
//! ```
//!
//! The run's own log has the question before `RunRested`, and the answer before `RunResumed`, so
//! that a person who reads only that log sees both.
//!
//! The question is durable before the run rests, and `RunRested` names it. An answer counts only
//! while the run rests for that very question, so a repeated answer has no second effect.

use crate::agent::event::cut;
use crate::event::Event;
use crate::question::event::{Answer, AnsweredBy, Choice, Kind, QuestionAnswered, QuestionAsked};
use crate::question::{Question, TEXT_LIMIT};
use crate::spec_run::decide::{Input, decide};
use crate::spec_run::event::RunStatus;
use crate::spec_run::state::{Decomposition, PhaseState, Run};
use jiff::Timestamp;
use muleteer_protocol::ErrorCode;
use serde_json::{Value, json};

/// The option that lets the run continue.
pub const APPROVE: &str = "approve";
/// The option that asks for another plan; the text of the answer says which.
pub const CHANGE: &str = "change";
/// The option that ends the run; the text of the answer is the reason.
pub const REJECT: &str = "reject";

/// The most beads that a question names.
const MOST_NAMED: usize = 100;
/// The most bytes of a title.
const TITLE_LIMIT: usize = 100;
/// The most bytes of a person's words in the events of a run.
const WORDS_LIMIT: usize = 4096;

/// The step that a person has to approve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// The spec, in which a review found something.
    Spec,
    /// The acceptance criteria.
    Criteria,
    /// The beads.
    Plan,
    /// The publication of the result.
    Merge,
}

impl Gate {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Spec => "spec",
            Self::Criteria => "criteria",
            Self::Plan => "plan",
            Self::Merge => "merge",
        }
    }

    /// Returns what a person approves, for a sentence.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Spec => "the spec",
            Self::Criteria => "the acceptance criteria",
            Self::Plan => "the beads",
            Self::Merge => "the result",
        }
    }
}

/// The answer of a person to the question of a gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GateAnswer {
    Approve { by: String },
    Change { by: String, text: String },
    Reject { by: String, reason: String },
}

/// Facts about the branch that is to be published.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Merge {
    pub commit: String,
    pub commits: u32,
    /// The output of `git diff --shortstat`; empty if git could not tell.
    pub diff: String,
}

impl Run {
    /// Returns the gate at which the run rests or is about to rest; `None` if there is none.
    pub fn gate(&self) -> Option<Gate> {
        match &self.phase {
            PhaseState::Freeze if self.awaits_review() => Some(Gate::Spec),
            PhaseState::Freeze => Some(Gate::Criteria),
            PhaseState::Decompose(Decomposition::Accepted { .. }) => Some(Gate::Plan),
            PhaseState::Finish => Some(Gate::Merge),
            PhaseState::Decompose(Decomposition::Pending { .. } | Decomposition::Planned)
            | PhaseState::Implement
            | PhaseState::Judge(_)
            | PhaseState::Unknown => None,
        }
    }

    /// Returns whether an agent can plan the beads once more. A label selects existing beads, and
    /// an amendment plans only a part.
    fn can_plan_again(&self) -> bool {
        self.started.bead_label.is_none() && self.versions.current == 0
    }
}

/// Returns whether these events let the run rest at a gate.
pub fn rests(events: &[Event]) -> bool {
    events
        .iter()
        .any(|event| matches!(event, Event::RunRested { status: RunStatus::AwaitingApproval, .. }))
}

/// Returns the subject of the question at this gate. It names the state of the run, so that each
/// state asks once.
pub fn subject(run: &Run, gate: Gate) -> String {
    format!("run/{}/{}/{}", run.id(), gate.as_str(), run.seq)
}

/// Returns the question of a gate. `merge` counts for [`Gate::Merge`] only.
pub fn question(run: &Run, gate: Gate, merge: &Merge, id: String) -> QuestionAsked {
    let can_change = gate == Gate::Plan && run.can_plan_again();
    let mut options = vec![Choice::new(APPROVE, "the run continues")];
    if can_change {
        options.push(Choice::new(CHANGE, "an agent plans again and gets your text"));
    }
    options.push(Choice::new(REJECT, "the run ends; your text is the reason"));
    QuestionAsked {
        question: id,
        kind: if gate == Gate::Plan { Kind::Plan } else { Kind::Approval },
        text: cut(&text(run, gate, merge), TEXT_LIMIT),
        options,
        multi: false,
        free_text: can_change,
        detail: detail(run, gate, merge),
        default: None,
        deadline: None,
        thread: run.started.thread.clone(),
        shown_in: vec![],
        dispatch: None,
        asked_by: format!("run {}", run.id()),
        // A run that rests again asks again, because what is to be approved may have changed.
        subject: subject(run, gate),
    }
}

fn text(run: &Run, gate: Gate, merge: &Merge) -> String {
    let title = cut(&run.started.title, TITLE_LIMIT);
    let of = format!("of run {} ({title})", run.id());
    match gate {
        Gate::Spec => {
            let count = run.review.as_ref().map_or(0, Vec::len);
            let mut text = format!("Approve the spec {of}? Its review has {count} findings:");
            for one in run.review.iter().flatten().take(MOST_NAMED) {
                let description = cut(one.description.trim(), 300);
                text.push_str(&format!("\n- {}: {description}", one.severity.as_str()));
            }
            text
        }
        Gate::Criteria => {
            let path = run.sealed.as_ref().map(|sealed| sealed.path.as_str()).unwrap_or_default();
            format!("Approve the acceptance criteria {of}? They are in {path}.")
        }
        Gate::Plan => {
            let mut text = format!(
                "Approve the plan {of}? It has {} beads for up to {} agents of {}:",
                run.beads.len(),
                run.settings.max_concurrency,
                run.settings.backend
            );
            for task in planned(run) {
                let waits = match task.depends_on.len() {
                    0 => String::new(),
                    _ => format!(" (after {})", task.depends_on.join(", ")),
                };
                let title = cut(&task.title, TITLE_LIMIT);
                text.push_str(&format!("\n- {} {title}{waits}", task.id));
            }
            let more = run.beads.len().saturating_sub(MOST_NAMED);
            if more > 0 {
                text.push_str(&format!("\nand {more} more"));
            }
            text
        }
        Gate::Merge => {
            let diff = match merge.diff.as_str() {
                "" => format!("{} commits", merge.commits),
                diff => format!("{} commits, {diff}", merge.commits),
            };
            format!("Publish {} {of}? {diff}. {}", run.target(), verdict(run))
        }
    }
}

fn verdict(run: &Run) -> String {
    match run.verdicts.last() {
        _ if !run.settings.judge => "No judge was requested.".into(),
        None => "The judge gave no verdict.".into(),
        Some(end) => format!("The judge's verdict: {}.", end.verdict.as_str()),
    }
}

fn planned(run: &Run) -> impl Iterator<Item = &crate::spec_run::event::Planned> {
    let tasks = run.order.iter().filter_map(|id| run.beads.get(id));
    tasks.map(|task| &task.planned).take(MOST_NAMED)
}

fn detail(run: &Run, gate: Gate, merge: &Merge) -> Value {
    let mut detail = json!({
        "run_id": run.id(),
        "repo": run.started.repo,
        "gate": gate.as_str(),
        "title": cut(&run.started.title, TITLE_LIMIT),
    });
    match gate {
        Gate::Spec => detail["findings"] = json!(run.review.iter().flatten().count()),
        Gate::Criteria => {
            detail["path"] = json!(run.sealed.as_ref().map(|sealed| &sealed.path));
        }
        Gate::Plan => {
            let beads = planned(run).map(|bead| {
                json!({
                    "id": bead.id,
                    "title": cut(&bead.title, TITLE_LIMIT),
                    "depends_on": bead.depends_on,
                })
            });
            detail["beads"] = beads.collect();
            detail["bead_count"] = json!(run.beads.len());
            detail["agents"] = json!({
                "backend": run.settings.backend,
                "model": run.settings.model,
                "max_concurrency": run.settings.max_concurrency,
            });
        }
        Gate::Merge => {
            detail["branch"] = json!(run.target());
            detail["commit"] = json!(merge.commit);
            detail["commits"] = json!(merge.commits);
            detail["diff"] = json!(merge.diff);
            detail["verdict"] = json!(run.verdicts.last().map(|end| end.verdict.as_str()));
        }
    }
    detail
}

/// Returns the run that a question is about; `None` for a question of no run.
pub fn run_of(question: &Question) -> Option<&str> {
    match question.kind {
        Kind::Approval | Kind::Plan => question.detail["run_id"].as_str(),
        Kind::Question | Kind::Permission | Kind::SignOff | Kind::Stall | Kind::Newer => None,
    }
}

/// Reads an answer. A text without an option asks for changes.
pub fn read(answer: &Answer, by: &str) -> GateAnswer {
    let (by, text) = (by.to_string(), cut(answer.text.trim(), WORDS_LIMIT));
    match answer.options.first().map(String::as_str) {
        Some(APPROVE) => GateAnswer::Approve { by },
        Some(REJECT) => GateAnswer::Reject { by, reason: text },
        _ => GateAnswer::Change { by, text },
    }
}

/// Returns the event of an answer, for the run's own log.
fn as_recorded(question: &str, answer: &GateAnswer) -> Event {
    let (option, text, by) = match answer {
        GateAnswer::Approve { by } => (APPROVE, "", by),
        GateAnswer::Change { by, text } => (CHANGE, text.as_str(), by),
        GateAnswer::Reject { by, reason } => (REJECT, reason.as_str(), by),
    };
    Event::QuestionAnswered(Box::new(QuestionAnswered {
        question: question.into(),
        answer: Answer { options: vec![option.into()], text: text.into() },
        by: AnsweredBy::of(by),
        key: String::new(),
    }))
}

/// Returns the events after the answer of a person; none if the run does not rest for the question.
pub(super) fn answered(
    run: &Run,
    question: &str,
    answer: GateAnswer,
    mut resume: Input,
    now: Timestamp,
) -> Vec<Event> {
    if run.question() != Some(question) {
        return vec![];
    }
    if let Input::Resume { by: resumed_by, approve, .. } = &mut resume {
        let (GateAnswer::Approve { by }
        | GateAnswer::Change { by, .. }
        | GateAnswer::Reject { by, .. }) = &answer;
        resumed_by.clone_from(by);
        *approve = matches!(answer, GateAnswer::Approve { .. });
    }
    let gate = run.gate();
    let recorded = as_recorded(question, &answer);
    let mut events = decide(run, resume, now);
    if events.is_empty() {
        return events;
    }
    events.insert(0, recorded);
    match answer {
        GateAnswer::Approve { .. } => {}
        GateAnswer::Change { by, text } if gate == Some(Gate::Plan) && run.can_plan_again() => {
            events.push(Event::PlanChangeRequested { by, text });
        }
        GateAnswer::Change { by, text: reason } | GateAnswer::Reject { by, reason } => {
            let what = gate.map_or("the run", Gate::describe);
            let reason = match reason.as_str() {
                "" => String::new(),
                reason => format!(": {reason}"),
            };
            let message = format!("{by} rejected {what}{reason}");
            events.push(Event::RunStopping { code: ErrorCode::Rejected.into(), message });
        }
    }
    events
}
