//! How an attempt ended, by the typed values of its events. A reason is a text for people, and an
//! agent's own last words can be in it, so that nothing may decide by it.

use crate::dispatch::{Dispatch, Exit, Phase, Turn};
use crate::event::{ExitCause, FinalState, Outcome};
use serde::{Deserialize, Serialize};

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptEnd {
    pub outcome: Outcome,
    process: Process,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Process {
    /// It told how it ended, or Muleteer ended it.
    Known,
    /// It disappeared in the middle of its work.
    Vanished,
    /// It may still live: the processes that its dead shim left could not be terminated.
    Unswept,
}

impl AttemptEnd {
    /// Derives the end from the state before it is recorded.
    pub(super) fn of(dispatch: &Dispatch, outcome: Outcome) -> Self {
        let process = match &dispatch.phase {
            Phase::Gone { exit, turn, .. } if is_vanished(dispatch, exit, turn) => {
                Process::Vanished
            }
            Phase::Gone { .. } => Process::Known,
            Phase::Queued
            | Phase::Starting { .. }
            | Phase::Working { .. }
            | Phase::Backoff { .. }
            | Phase::Closing { .. }
            | Phase::Finished { .. } => Process::Unswept,
        };
        Self { outcome, process }
    }

    /// Whether nobody knows what the agent has done: its files and commits tell.
    pub fn is_unknown(self, state: FinalState) -> bool {
        match self.process {
            Process::Known => false,
            // Otherwise the dispatch has ended for a reason that is known.
            Process::Vanished => state == FinalState::Failed,
            Process::Unswept => true,
        }
    }
}

fn is_vanished(dispatch: &Dispatch, exit: &Exit, turn: &Turn) -> bool {
    let created = &dispatch.created;
    let is_lost = match exit.cause {
        ExitCause::ShimLost => true,
        // A session is resumed after that.
        ExitCause::LeaseExpired => !created.has_turns(),
        ExitCause::Exited | ExitCause::Terminated | ExitCause::Unknown => {
            exit.code.is_none() && exit.signal.is_some()
        }
        ExitCause::ShimPolicy | ExitCause::NeverRan | ExitCause::CannotStart => false,
    };
    let is_at_work = matches!(turn, Turn::None | Turn::Running { .. })
        || (exit.cause == ExitCause::ShimLost && !created.resumable);
    is_lost && is_at_work && dispatch.stop.is_none() && dispatch.process().call_failed.is_none()
}
