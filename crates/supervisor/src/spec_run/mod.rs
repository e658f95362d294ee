//! Hosts spec runs: `model::spec_run` decides, `run/<id>` carries the effects out.
//!
//! - `host`: a run's files, lock and log; `begin`: starting and resuming a run;
//! - `actor`: `run/<id>`; `job`: one agent of a run; `steps`: the other effects;
//! - `criteria`: the judge's acceptance criteria;
//! - `hub`: the bare repository that agents push to; `private_repo`: the harness's own; `clones`:
//!   the agents' private ones;
//! - `beads`: the operations on beads that agents may request.
//!
//! The agents of a run are ordinary dispatches: they live in their shims whatever happens to the
//! actor or the daemon. The actor only makes sure that they exist, and reads their results.

pub mod actor;
pub mod beads;
pub mod begin;
mod clones;
mod criteria;
pub mod host;
pub mod hub;
mod job;
mod output;
mod private_repo;
mod publish;
pub(crate) mod reflog;
mod snapshots;
pub(crate) mod steps;
mod trouble;

pub use begin::begin;
pub use begin::obstacle;
pub use begin::recovery::{begin_trial, boot, is_suspect, keep_set_aside, outlived};
pub use host::{Hosted, Runs, is_hosted};
