//! The phase and the standing of a run. Each variant owns the data that only it has.

use crate::spec_run::event::{Phase, RunStatus};
use crate::spec_run::judge::JudgeResult;

/// The phase of a run, with its progress.
#[derive(Debug, Clone, PartialEq)]
pub enum PhaseState {
    Freeze,
    Decompose(Decomposition),
    /// The beads of an iteration outlive this phase, because a person may resume it after the
    /// judge.
    Implement,
    Judge(JudgeStage),
    Finish,
    /// A phase of a newer version.
    Unknown,
}

/// The progress of the decomposition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decomposition {
    /// No beads are read yet. With `decomposed`, the decomposition agent has succeeded.
    Pending { decomposed: bool },
    /// The beads are planned, and may still be staged.
    Planned,
    /// The beads are the run's. With `reread`, the run was resumed before any bead was begun, so
    /// the beads are read again.
    Accepted { reread: bool },
}

/// The judge's progress in this iteration.
#[derive(Debug, Clone, PartialEq)]
pub enum JudgeStage {
    /// The judge evaluates: round 1, or one more after it changed files.
    Reason { round: u32 },
    /// An agent structures the evaluation of that round; `tries` of its results could not be
    /// parsed.
    Structure { round: u32, tries: u32 },
    /// The verdict is ready to be applied to the bead store.
    Apply(Box<JudgeResult>),
}

/// Whether a run continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunStanding {
    Running,
    /// The run ends or rests when no agent is left.
    Stopping(Stopping),
    /// The run does nothing until it is resumed. With `stopped`, it rests because it was stopped.
    Resting {
        status: RunStatus,
        reason: String,
        stopped: bool,
        /// The question whose answer continues the run.
        question: Option<String>,
    },
    /// The run has ended. Without an error, it came to its regular end.
    Ended {
        outcome: RunStatus,
        error: Option<Stopping>,
    },
}

/// A decision to end or rest. It takes effect when no agent is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopping {
    /// An error code, or empty for a rest.
    pub code: String,
    pub message: String,
}

impl PhaseState {
    /// Returns the state of a phase that has just begun.
    pub(super) fn begun(phase: Phase) -> Self {
        match phase {
            Phase::Freeze => Self::Freeze,
            Phase::Decompose => Self::Decompose(Decomposition::Pending { decomposed: false }),
            Phase::Implement => Self::Implement,
            Phase::Judge => Self::Judge(JudgeStage::Reason { round: 1 }),
            Phase::Finish => Self::Finish,
            Phase::Unknown => Self::Unknown,
        }
    }

    /// Returns the phase without its progress.
    pub fn name(&self) -> Phase {
        match self {
            Self::Freeze => Phase::Freeze,
            Self::Decompose(_) => Phase::Decompose,
            Self::Implement => Phase::Implement,
            Self::Judge(_) => Phase::Judge,
            Self::Finish => Phase::Finish,
            Self::Unknown => Phase::Unknown,
        }
    }
}
