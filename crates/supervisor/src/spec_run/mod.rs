//! Hosts spec runs: `model::spec_run` decides, `run/<id>` carries the effects out.
//!
//! - `host`: a run's files, lock and log; `begin`: starting and resuming a run;
//! - `actor`: `run/<id>`, with its machine; `job`: one agent of a run; `steps`: the other effects;
//! - `criteria`: the judge's acceptance criteria;
//! - `publish`: the branch of a run at its end; `repairs`: what was repaired of its hub, recorded;
//! - `beads`: the operations on beads that agents may request.
//!
//! The agents of a run are ordinary dispatches: they live in their shims whatever happens to the
//! actor or the daemon. The actor only makes sure that they exist, and reads their results.

pub mod actor;
pub mod beads;
pub mod begin;
mod criteria;
pub mod host;
mod job;
pub(crate) mod output;
mod publish;
mod repairs;
mod snapshots;
pub(crate) mod steps;
#[cfg(test)]
mod tests;
mod trouble;

pub use begin::begin;
pub use begin::obstacle;
pub use begin::recovery::{boot, keep_set_aside, outlived};
pub use host::{Hosted, Runs, is_hosted};
