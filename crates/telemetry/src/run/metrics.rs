//! Metrics over all spec runs, folded from the logs of the runs.
//!
//! The event log of the daemon has the dispatches of a run, but neither its beads nor its verdicts.
//! The sums of an ended run are saved, so that its log need not be read again.

use muleteer_model::event::{Event, Outcome, Record};
use muleteer_model::spec_run::event::{AgentFinished, Purpose};
use muleteer_model::{
    conversation_events, daemon_events, dispatch_events, planning_events, task_list_events,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunSum {
    /// By `status`.
    Runs,
    /// By `outcome`.
    Beads,
    /// By `status`.
    Attempts,
    /// By `verdict`.
    Verdicts,
    /// By `status`.
    Maintenance,
    /// By `purpose`; in milliseconds.
    Durations,
}

impl RunSum {
    pub const ALL: [Self; 6] = [
        Self::Runs,
        Self::Beads,
        Self::Attempts,
        Self::Verdicts,
        Self::Maintenance,
        Self::Durations,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Runs => "muleteer.runs",
            Self::Beads => "muleteer.beads",
            Self::Attempts => "muleteer.bead.attempts",
            Self::Verdicts => "muleteer.judge.verdicts",
            Self::Maintenance => "muleteer.maintenance.runs",
            Self::Durations => "muleteer.run.agent.duration",
        }
    }

    /// Returns the name of the only label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Runs | Self::Attempts | Self::Maintenance => "status",
            Self::Beads => "outcome",
            Self::Verdicts => "verdict",
            Self::Durations => "purpose",
        }
    }

    pub fn unit(self) -> &'static str {
        match self {
            Self::Runs | Self::Maintenance => "{run}",
            Self::Beads => "{bead}",
            Self::Attempts => "{attempt}",
            Self::Verdicts => "{verdict}",
            Self::Durations => "s",
        }
    }

    pub fn meaning(self) -> &'static str {
        match self {
            Self::Runs => "ends of spec runs",
            Self::Beads => "beads that were completed or blocked",
            Self::Attempts => "ended attempts at beads",
            Self::Verdicts => "verdicts of judges",
            Self::Maintenance => "ended maintenance runs, and triggers that a running one covered",
            Self::Durations => "time for which agents of spec runs worked",
        }
    }

    /// Returns a sum in the unit of the metric.
    #[allow(clippy::cast_precision_loss)] // Counts and milliseconds are below 2^53.
    pub fn in_unit(self, value: u64) -> f64 {
        match self {
            Self::Durations => value as f64 / 1000.0,
            Self::Runs | Self::Beads | Self::Attempts | Self::Verdicts | Self::Maintenance => {
                value as f64
            }
        }
    }
}

/// The sums of one run, or of several. The keys are the name of the metric and its label.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunSums {
    sums: BTreeMap<String, BTreeMap<String, u64>>,
}

impl RunSums {
    pub fn apply(&mut self, record: &Record) {
        match &record.entry.event {
            Event::RunCompleted { status, .. } | Event::RunFailed { status, .. } => {
                self.count(RunSum::Runs, status.as_str());
            }
            Event::BeadCompleted { .. } => self.count(RunSum::Beads, "completed"),
            Event::BeadBlocked { .. } => self.count(RunSum::Beads, "blocked"),
            Event::AgentFinished(end) => self.finish(end),
            Event::JudgeFinished(end) => self.count(RunSum::Verdicts, end.verdict.as_str()),
            Event::MaintenanceCoalesced { .. } => self.count(RunSum::Maintenance, "coalesced"),
            Event::MaintenanceFinished { status, .. } => {
                self.count(RunSum::Maintenance, known_status(status));
            }
            Event::RunStarted { .. }
            | Event::RunResumed { .. }
            | Event::RunApproved { .. }
            | Event::RunStopping { .. }
            | Event::RunRested { .. }
            | Event::PhaseChanged { .. }
            | Event::IterationStarted { .. }
            | Event::AgentStarted { .. }
            | Event::AgentRetried { .. }
            | Event::PoolSlowed { .. }
            | Event::BeadAssigned { .. }
            | Event::BeadRetried { .. }
            | Event::BeadReopened { .. }
            | Event::OutsideClosed { .. }
            | Event::ObservationCreated { .. }
            | Event::PushUndone { .. }
            | Event::MaintenanceStarted { .. }
            | Event::JudgeStarted { .. }
            | Event::JudgeReasoned { .. }
            | Event::VerdictApplied { .. }
            | Event::BranchPublished { .. }
            | Event::BranchPushed { .. }
            | Event::PrCreated { .. }
            | Event::RunWorkKept { .. } => {}
            planning_events!()
            | daemon_events!()
            | dispatch_events!()
            | conversation_events!()
            | task_list_events!()
            | Event::Unknown => {}
        }
    }

    pub fn of(&self, sum: RunSum) -> impl Iterator<Item = (&str, u64)> {
        let labels = self.sums.get(sum.name()).into_iter().flatten();
        labels.map(|(label, value)| (label.as_str(), *value))
    }

    /// Adds the sums of another run.
    pub fn add(&mut self, other: &Self) {
        self.merge(other, u64::saturating_add);
    }

    /// Returns the larger of each two sums. A run that is resumed is read from its begin, and its
    /// log may be lost: its sums must not fall meanwhile.
    pub fn at_least(&self, before: &Self) -> Self {
        let mut larger = self.clone();
        larger.merge(before, u64::max);
        larger
    }

    fn merge(&mut self, other: &Self, combine: impl Fn(u64, u64) -> u64) {
        for (name, labels) in &other.sums {
            let own = self.sums.entry(name.clone()).or_default();
            for (label, value) in labels {
                let sum = own.entry(label.clone()).or_default();
                *sum = combine(*sum, *value);
            }
        }
    }

    fn count(&mut self, sum: RunSum, label: &str) {
        self.increase(sum, label, 1);
    }

    fn increase(&mut self, sum: RunSum, label: &str, by: u64) {
        let labels = self.sums.entry(sum.name().into()).or_default();
        let value = labels.entry(label.into()).or_default();
        *value = value.saturating_add(by);
    }

    fn finish(&mut self, end: &AgentFinished) {
        self.increase(RunSum::Durations, end.purpose.as_str(), end.duration_ms);
        if end.purpose == Purpose::Implement {
            let status = match end.status {
                Outcome::Success => "success",
                Outcome::Failure => "failure",
                Outcome::Timeout => "timeout",
            };
            self.count(RunSum::Attempts, status);
        }
    }
}

/// Returns the status of a maintenance run as a label. The log is in a user's repository, where
/// any text may stand, so other texts share one label.
fn known_status(status: &str) -> &'static str {
    let known = ["success", "failure", "timeout", "stopped"];
    known.into_iter().find(|one| *one == status).unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Meter;
    use crate::otlp;
    use jiff::Timestamp;
    use muleteer_model::event::Entry;
    use muleteer_model::spec_run::event::{JudgeFinished, RunStatus, Verdict};

    fn ended(purpose: Purpose, status: Outcome, duration_ms: u64) -> Event {
        Event::AgentFinished(Box::new(AgentFinished {
            agent: 1,
            purpose,
            bead_id: None,
            status,
            duration_ms,
            reason: String::new(),
            cost_usd: 0.0,
            cli_changed: false,
        }))
    }

    fn sums_of(events: Vec<Event>) -> RunSums {
        let mut sums = RunSums::default();
        for event in events {
            let entry = Entry { id: "e".into(), dispatch_id: None, at: None, more: false, event };
            sums.apply(&Record { v: 1, seq: 1, ts: Timestamp::UNIX_EPOCH, entry });
        }
        sums
    }

    fn life() -> Vec<Event> {
        let completed = Event::BeadCompleted {
            bead_id: "a".into(),
            by: "agent".into(),
            no_change: false,
            commits: 1,
        };
        let blocked = Event::BeadBlocked {
            bead_id: "b".into(),
            reason: "x".into(),
            dependants: vec![],
            kind: None,
        };
        let maintained = |status: &str| Event::MaintenanceFinished {
            maintenance: "maint-1".into(),
            status: status.into(),
        };
        let judged = Event::JudgeFinished(Box::new(JudgeFinished {
            iteration: 1,
            verdict: Verdict::Pass,
            new_beads: 0,
            reason: String::new(),
            result: None,
        }));
        vec![
            ended(Purpose::Implement, Outcome::Failure, 1500),
            ended(Purpose::Implement, Outcome::Success, 1000),
            completed,
            ended(Purpose::Implement, Outcome::Timeout, 0),
            blocked,
            Event::MaintenanceCoalesced { completed_count: 2 },
            ended(Purpose::Maintain, Outcome::Success, 500),
            maintained("success"),
            maintained("an agent wrote this"),
            ended(Purpose::Judge, Outcome::Success, 4000),
            judged,
            Event::RunCompleted { status: RunStatus::Partial, total_beads: 2 },
        ]
    }

    fn listed(sums: &RunSums, sum: RunSum) -> Vec<(String, u64)> {
        sums.of(sum).map(|(label, value)| (label.to_string(), value)).collect()
    }

    #[test]
    fn beads_judges_and_maintenance_are_counted_by_their_ends() {
        let sums = sums_of(life());
        let expected = [
            (RunSum::Runs, vec![("partial", 1)]),
            (RunSum::Beads, vec![("blocked", 1), ("completed", 1)]),
            (RunSum::Attempts, vec![("failure", 1), ("success", 1), ("timeout", 1)]),
            (RunSum::Verdicts, vec![("pass", 1)]),
            (RunSum::Maintenance, vec![("coalesced", 1), ("other", 1), ("success", 1)]),
            (RunSum::Durations, vec![("implement", 2500), ("judge", 4000), ("maintain", 500)]),
        ];
        for (sum, points) in expected {
            let points: Vec<_> =
                points.into_iter().map(|(label, value)| (label.to_string(), value)).collect();
            assert_eq!(listed(&sums, sum), points, "{sum:?}");
        }
    }

    #[test]
    fn saved_sums_are_read_again_and_never_fall() {
        let sums = sums_of(life());
        let text = serde_json::to_string(&sums).expect("JSON");
        assert_eq!(serde_json::from_str::<RunSums>(&text).expect("sums"), sums);
        let mut all = sums.clone();
        all.add(&sums);
        assert_eq!(listed(&all, RunSum::Verdicts), [("pass".to_string(), 2)]);
        let half = sums_of(life().drain(..3).collect());
        assert_eq!(half.at_least(&sums), sums, "the log was not read to its end");
    }

    #[test]
    fn exported_durations_are_seconds() {
        let sums = sums_of(life());
        let document =
            otlp::metrics(&[], "1", (&Meter::default(), &sums), 0, Timestamp::UNIX_EPOCH);
        let document = serde_json::to_value(&document).expect("JSON");
        let all = document["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].clone();
        let all = all.as_array().expect("metrics").clone();
        let point = |name: &str, label: &str| {
            let metric = all.iter().find(|one| one["name"] == name).expect("the metric");
            let points = metric["sum"]["dataPoints"].as_array().expect("points");
            let has =
                |one: &&serde_json::Value| one["attributes"][0]["value"]["stringValue"] == label;
            points.iter().find(has).map(|one| one["asDouble"].clone()).expect("the point")
        };
        assert_eq!(point("muleteer.run.agent.duration", "implement"), 2.5);
        assert_eq!(point("muleteer.bead.attempts", "failure"), 1.0);
    }
}
