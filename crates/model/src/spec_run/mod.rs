//! The spec run as a pure state machine: from a frozen spec to judged, merged code.
//!
//! ```text
//!  Freeze ─────▶ Decompose ─────▶ Implement ──────────────▶ Judge ──pass──▶ Finish ─▶ completed
//!   copy, hash,   existing beads    agents on beads, up to     reasoning,    (partial, if a
//!   integration   by label, or an   max_concurrency; beside    then its      bead is blocked)
//!   branch, then  agent that makes  them at most one           structure
//!   acceptance    them; accepted    maintenance run              │
//!   criteria      as a whole             ▲                      fail
//!                     │                  │   IterationStarted    │
//!                     ▼                  └───────────────────────┘   max_iterations ─▶ partial
//!            (human_review, dry_run:
//!             rests until resumed)
//!
//!  anywhere: stop ─▶ stopping (agents are ended) ─▶ rests, or has failed
//! ```
//!
//! A bead:
//!
//! ```text
//!          BeadAssigned            closed, and its commits are on the target
//!   open ─────────────▶ taken ──────────────────────────────────────────────▶ done
//!    ▲                    │
//!    └─── BeadRetried ────┤ BeadBlocked: out of retries
//!   (timeout, crash: in a └──────────────▶ blocked
//!    fresh worktree; incomplete: in the same)
//! ```
//!
//! The loop is that of a dispatch: [`decide()`] turns an input into events, [`Run::apply`] folds
//! them once they are durable, [`advance()`] adds the events that follow without an input, and
//! [`effects()`] returns the pending effects. Effects follow from the state alone, so a daemon that
//! is killed anywhere folds the same state and repeats the same effects.

pub mod report;
#[cfg(test)]
mod tests;

pub mod checkpoint;
mod decide;
mod effects;
pub mod estimate;
pub mod event;
pub mod forge;
pub mod judge;
pub mod price;
pub mod prompts;
pub mod spec;
mod state;

pub use decide::{
    Barred, Gate, GateAnswer, GoOn, Input, JobEnd, PullRequest, Settled, advance, blocks, circle,
    decide, gate, may_go_on, unpushed,
};
pub use effects::{Effect, EffectKey, effects};
pub use state::{
    Blocked, Decomposition, Frozen, Iteration, Job, JudgeStage, Maintenance, MaintenanceRun,
    Observations, Pause, PhaseState, Publication, Pushed, Run, RunStanding, Runtime, Sealed,
    Slowdown, Stage, Stopping, TaskState, Trials, Versions,
};
