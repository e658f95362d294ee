//! The parts of a run's state that outlive its phases.

use crate::event::Outcome;
use crate::spec_run::event::{AgentStarted, FailureKind, KeptWork, Planned};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frozen {
    pub sha256: String,
    pub base_branch: String,
    pub base_commit: String,
    pub target_branch: String,
}

/// The versions of the spec. A person amends the spec of a run that rests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Versions {
    /// The number of amendments, which is the number of the current version.
    pub current: u32,
    /// The hash of the current version; `None` before the first amendment.
    pub sha256: Option<String>,
    /// The current version is not frozen yet.
    pub unfrozen: bool,
    /// The version from which the accepted beads were planned; `None` before they are accepted.
    pub planned: Option<u32>,
    /// The titles of the beads that were withdrawn since that version, by their ids.
    pub withdrawn: BTreeMap<String, String>,
    /// Finished beads of sections that changed since that version.
    pub outdated: BTreeSet<String>,
}

/// Acceptance criteria, hashed before the first coding agent starts. An empty path means no
/// criteria.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    pub path: String,
    pub sha256: String,
}

/// How long the run has run: since its last start or resume, and before that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runtime {
    pub since: Timestamp,
    pub before_ms: i64,
}

/// The statistics of one iteration, for the run log and the maintenance that is due.
#[derive(Debug, Clone, PartialEq)]
pub struct Iteration {
    pub started_at: Timestamp,
    pub beads: u32,
    pub completed: u32,
    pub failed: u32,
    pub spawns: u32,
    pub maintenance: u32,
    pub observations: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskState {
    pub planned: Planned,
    pub iteration: u32,
    /// Attempts so far, which is also the number of the next one.
    pub attempts: u32,
    /// Failures that count.
    pub failures: u32,
    /// Worktrees created for the bead so far.
    pub worktrees: u32,
    /// The next attempt continues in the last worktree.
    pub reuse: bool,
    /// Notes about the last attempt for the next one's prompt.
    pub note: String,
    /// Why the last attempt failed; empty before the first failure and after a reopening.
    pub failure: String,
    pub stage: Stage,
    /// Open dependencies outside the run.
    pub outside: BTreeSet<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Open,
    Taken,
    Done,
    Blocked,
}

/// An open bead that cannot be worked on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    pub bead: String,
    /// From that bead to the blocker at the end of the chain.
    pub chain: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub start: AgentStarted,
    pub started_at: Timestamp,
    /// The iteration in which the agent started.
    pub iteration: u32,
}

/// The failures of the agents of one purpose that the run needs, since the last success.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trials {
    /// Consecutive failures that count.
    pub failures: u32,
    /// Consecutive failures that do not count (rate limits).
    pub uncounted: u32,
    /// Why the last agent failed; part of the next agent's prompt.
    pub complaint: String,
}

/// The maintenance of the run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Maintenance {
    pub runs: Vec<MaintenanceRun>,
    pub coalesced: u32,
    /// The number of beads that were completed in this iteration when maintenance was last
    /// triggered.
    pub triggered_at: u32,
    /// The last maintenance run was stopped with the run, so maintenance is triggered again.
    pub interrupted: bool,
    /// How many attempts failed since the last maintenance run began, by the kind of the failure.
    pub failures: BTreeMap<FailureKind, u32>,
    /// The last failures of one kind, with no completed bead between them.
    pub in_a_row: Option<(FailureKind, u32)>,
}

/// This many failures of one kind in a row trigger maintenance.
const REPEATED: u32 = 2;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaintenanceRun {
    pub id: String,
    pub bead_id: String,
    pub trigger_completed_count: u32,
    /// `running`, `success`, `failure`, `timeout` or `stopped`.
    pub state: String,
    pub at: Timestamp,
    /// The failures before it, by their kinds.
    pub failures: BTreeMap<FailureKind, u32>,
}

/// The beads that agents have noted for the judge.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observations {
    pub pending: BTreeSet<String>,
    pub promoted: BTreeSet<String>,
    pub dismissed: BTreeSet<String>,
    /// The titles of the noted beads, as far as they were recorded.
    pub titles: BTreeMap<String, String>,
}

/// The rate limits that the run has met since a bead was last completed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Slowdown {
    pub pause: Option<Pause>,
    pub count: u32,
}

/// After a rate limit, no agent starts before a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    pub until: Timestamp,
    pub reason: String,
}

/// Where the work of the run is, once it has left the run's own clones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Publication {
    /// The branch in the user's repository.
    pub branch: Option<String>,
    /// Why the published branch is in the user's repository only.
    pub unpushed: Option<String>,
    /// Where the branch was pushed without a pull request.
    pub pushed: Option<Pushed>,
    pub pr_url: Option<String>,
    /// The preserved work of a run that ended without a pass.
    pub preserved: Option<KeptWork>,
}

/// A branch at the remote, and the web page for a pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    pub branch: String,
    pub page: Option<String>,
    /// Why `gh` made no pull request, if it was asked to.
    pub trouble: Option<String>,
}

/// The state of a maintenance run that was stopped with its run.
pub(crate) const STOPPED: &str = "stopped";

pub(crate) fn status_of(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Success => "success",
        Outcome::Failure => "failure",
        Outcome::Timeout => "timeout",
    }
}

impl Iteration {
    pub(super) fn new(started_at: Timestamp) -> Self {
        Self {
            started_at,
            beads: 0,
            completed: 0,
            failed: 0,
            spawns: 0,
            maintenance: 0,
            observations: 0,
        }
    }
}

impl TaskState {
    pub(super) fn new(planned: &Planned, iteration: u32) -> Self {
        Self {
            outside: planned.outside.iter().cloned().collect(),
            stage: if planned.closed { Stage::Done } else { Stage::Open },
            planned: planned.clone(),
            iteration,
            attempts: 0,
            failures: 0,
            worktrees: 0,
            reuse: false,
            note: String::new(),
            failure: String::new(),
        }
    }
}

impl Publication {
    /// Returns the branch of the preserved work, if the run ended without a pass.
    pub fn preserved_branch(&self) -> Option<&String> {
        self.preserved.as_ref().and_then(|work| work.branch.as_ref())
    }

    /// Returns the published branch, unless later work was preserved beside it.
    pub fn final_branch(&self) -> Option<&String> {
        self.branch.as_ref().filter(|_| self.preserved.is_none())
    }
}

impl Maintenance {
    /// Counts the completed beads from zero again.
    pub(super) fn begin_iteration(&mut self) {
        (self.triggered_at, self.interrupted) = (0, false);
        self.in_a_row = None;
    }

    /// Records the end of the last run. The end of its agent has recorded any status but
    /// [`STOPPED`].
    pub(super) fn finish(&mut self, status: &str) {
        if status == STOPPED {
            self.interrupted = true;
            if let Some(last) = self.runs.last_mut() {
                last.state = STOPPED.into();
                // The next maintenance run is about these failures too.
                for (kind, count) in &last.failures {
                    *self.failures.entry(*kind).or_default() += count;
                }
            }
        }
    }

    /// Records the failure of an attempt. A failure that does not count has no kind.
    pub(super) fn note(&mut self, kind: Option<FailureKind>) {
        let Some(kind) = kind else { return };
        *self.failures.entry(kind).or_default() += 1;
        let before = self.in_a_row.filter(|(last, _)| *last == kind).map_or(0, |(_, count)| count);
        self.in_a_row = Some((kind, before + 1));
    }

    /// Returns whether the last failures call for maintenance, whatever beads are completed.
    pub fn repeats(&self) -> bool {
        self.in_a_row.is_some_and(|(kind, count)| kind.is_repairable() && count >= REPEATED)
    }

    /// Returns whether maintenance is due after `completed` beads of this iteration.
    pub fn is_due(&self, completed: u32, every: u32) -> bool {
        self.interrupted || (every > 0 && completed / every > self.triggered_at / every)
    }
}
