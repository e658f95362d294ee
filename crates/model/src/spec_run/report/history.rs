//! The history of a run, agent by agent, for its report and its live view. [`Run`] keeps only the
//! state that the next decision needs; the agents' working times and costs are kept here.

use crate::event::{Event, Outcome, Record};
use crate::spec_run::event::{AgentStarted, JudgeFinished, Phase, Purpose};
use crate::spec_run::state::{Run, Stage};
use crate::{conversation_events, publishing_events, task_list_events};
use crate::{daemon_events, dispatch_events, maintenance_events, planning_events};
use jiff::Timestamp;
use std::collections::{BTreeMap, HashMap};

/// The most retries, blocks and slowdowns that are listed; further ones are only counted.
const TROUBLES: usize = 1000;

#[derive(Debug, Clone, PartialEq)]
pub struct Chronicle {
    pub run: Run,
    /// One entry per agent, in the order of their starts.
    pub stints: Vec<Stint>,
    pub phases: Vec<(Timestamp, Phase)>,
    pub iterations: Vec<(Timestamp, u32)>,
    pub judgements: Vec<Judgement>,
    pub troubles: Vec<Trouble>,
    /// The number of troubles that are not listed.
    pub untold: usize,
    /// Indices of running stints, by agent number.
    open: HashMap<u32, usize>,
}

/// The work of one agent, from its start to its end.
#[derive(Debug, Clone, PartialEq)]
pub struct Stint {
    pub start: AgentStarted,
    pub iteration: u32,
    pub began: Timestamp,
    /// `None` while the agent runs.
    pub end: Option<StintEnd>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct StintEnd {
    pub at: Timestamp,
    pub status: Outcome,
    pub reason: String,
    /// Awake time, measured by the shim.
    pub worked_ms: u64,
    pub cost_usd: f64,
}

/// A verdict and its time.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    pub at: Timestamp,
    pub end: JudgeFinished,
}

/// A problem that the run has handled.
#[derive(Debug, Clone, PartialEq)]
pub struct Trouble {
    pub at: Timestamp,
    pub kind: TroubleKind,
    /// A bead, an agent or a purpose; empty for the whole run.
    pub whose: String,
    pub reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TroubleKind {
    Retried,
    /// Retried without counting as a failure.
    Uncounted,
    Blocked,
    Slowed,
    PushUndone,
}

/// The total effort of several stints.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Tally {
    pub agents: u32,
    pub worked_ms: u64,
    pub cost_usd: f64,
}

impl Tally {
    fn add(&mut self, stint: &Stint, now: Timestamp) {
        self.agents += 1;
        self.worked_ms += stint.worked_ms(now);
        self.cost_usd += stint.end.as_ref().map_or(0.0, |end| end.cost_usd);
    }
}

impl Stint {
    /// Returns the working time. For a running stint, this is the time since its start.
    pub fn worked_ms(&self, now: Timestamp) -> u64 {
        match &self.end {
            Some(end) => end.worked_ms,
            None => (now.as_millisecond() - self.began.as_millisecond()).max(0).unsigned_abs(),
        }
    }
}

impl Chronicle {
    /// Creates a history from the first event of a run's log.
    pub fn begin(record: &Record) -> Option<Self> {
        let run = Run::begin(record)?;
        Some(Self {
            phases: vec![(record.ts, run.phase())],
            iterations: vec![(record.ts, run.iteration)],
            run,
            stints: vec![],
            judgements: vec![],
            troubles: vec![],
            untold: 0,
            open: HashMap::new(),
        })
    }

    /// Folds a whole log.
    pub fn fold<'a>(records: impl IntoIterator<Item = &'a Record>) -> Option<Self> {
        let mut records = records.into_iter();
        let mut chronicle = Self::begin(records.next()?)?;
        for record in records {
            chronicle.apply(record);
        }
        Some(chronicle)
    }

    /// Folds one record.
    pub fn apply(&mut self, record: &Record) {
        let at = record.ts;
        match &record.entry.event {
            Event::PhaseChanged { phase } => self.phases.push((at, *phase)),
            Event::IterationStarted { iteration, .. } => {
                self.iterations.push((at, *iteration));
                self.phases.push((at, Phase::Implement));
            }
            Event::AgentStarted(start) => {
                self.open.insert(start.agent, self.stints.len());
                let iteration = self.run.iteration;
                self.stints.push(Stint {
                    start: (**start).clone(),
                    iteration,
                    began: at,
                    end: None,
                });
            }
            Event::AgentFinished(end) => {
                if let Some(stint) =
                    self.open.remove(&end.agent).and_then(|index| self.stints.get_mut(index))
                {
                    stint.end = Some(StintEnd {
                        at,
                        status: end.status,
                        reason: end.reason.clone(),
                        worked_ms: end.duration_ms,
                        cost_usd: end.cost_usd,
                    });
                }
            }
            Event::JudgeFinished(end) => {
                self.judgements.push(Judgement { at, end: (**end).clone() })
            }
            Event::AgentRetried { purpose, reason, counted } => {
                self.trouble(at, retried(*counted), purpose.as_str(), reason);
            }
            Event::BeadRetried { bead_id, reason, counted, .. } => {
                self.trouble(at, retried(*counted), bead_id, reason);
            }
            Event::BeadBlocked { bead_id, reason, .. } => {
                self.trouble(at, TroubleKind::Blocked, bead_id, reason)
            }
            Event::PoolSlowed { reason, .. } => self.trouble(at, TroubleKind::Slowed, "", reason),
            Event::PushUndone { agent, reason } => {
                self.trouble(at, TroubleKind::PushUndone, &format!("agent {agent}"), reason);
            }
            Event::RunStarted { .. }
            | Event::RunResumed { .. }
            | Event::RunApproved { .. }
            | Event::RunStopping { .. }
            | Event::RunRested { .. }
            | Event::RunCompleted { .. }
            | Event::RunFailed { .. }
            | Event::BeadAssigned { .. }
            | Event::BeadCompleted { .. }
            | Event::BeadReopened { .. }
            | Event::OutsideClosed { .. }
            | Event::ObservationCreated { .. }
            | Event::JudgeStarted { .. }
            | Event::JudgeReasoned { .. }
            | Event::VerdictApplied { .. } => {}
            planning_events!() | maintenance_events!() | publishing_events!() => {}
            daemon_events!()
            | dispatch_events!()
            | conversation_events!()
            | task_list_events!()
            | Event::Unknown => {}
        }
        self.run.apply(record);
    }

    fn trouble(&mut self, at: Timestamp, kind: TroubleKind, whose: &str, reason: &str) {
        if self.troubles.len() < TROUBLES {
            self.troubles.push(Trouble { at, kind, whose: whose.into(), reason: reason.into() });
        } else {
            self.untold += 1;
        }
    }

    /// Returns the total effort for each bead: coding and maintenance, all attempts.
    pub fn by_bead(&self) -> BTreeMap<&str, Tally> {
        let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
        for stint in &self.stints {
            if let Some(bead) = &stint.start.bead_id {
                tallies.entry(bead).or_default().add(stint, self.run.updated_at);
            }
        }
        tallies
    }

    /// Returns the total effort for each purpose, in the order of the pipeline.
    pub fn by_purpose(&self) -> BTreeMap<Purpose, Tally> {
        let mut tallies: BTreeMap<Purpose, Tally> = BTreeMap::new();
        for stint in &self.stints {
            tallies.entry(stint.start.purpose).or_default().add(stint, self.run.updated_at);
        }
        tallies
    }

    /// Returns the working time of each finished bead, over all attempts. The estimate is based on
    /// it.
    pub fn measured_ms(&self) -> Vec<u64> {
        let tallies = self.by_bead();
        let done = self.run.beads.values().filter(|task| task.stage == Stage::Done);
        done.filter_map(|task| tallies.get(task.planned.id.as_str()).map(|tally| tally.worked_ms))
            .collect()
    }

    /// Returns the chain of beads that took the longest, from first to last. Beads without work
    /// count as one millisecond, so that before any work this is the longest chain of the graph.
    pub fn longest_chain(&self) -> Vec<&str> {
        let graph = self.run.schedule.graph();
        let tallies = self.by_bead();
        let mut best = vec![(0u64, usize::MAX); graph.len()];
        for at in graph.topological() {
            let own = tallies.get(graph.id(at)).map_or(0, |tally| tally.worked_ms) + 1;
            let before = graph.blockers(at).iter().max_by_key(|on| best[**on].0);
            best[at] = before.map_or((own, usize::MAX), |&on| (best[on].0 + own, on));
        }
        let mut chain = vec![];
        let mut at = (0..best.len()).max_by_key(|at| best[*at].0).unwrap_or(usize::MAX);
        while at != usize::MAX {
            chain.push(graph.id(at));
            at = best[at].1;
        }
        chain.reverse();
        chain
    }
}

fn retried(counted: bool) -> TroubleKind {
    if counted { TroubleKind::Retried } else { TroubleKind::Uncounted }
}
