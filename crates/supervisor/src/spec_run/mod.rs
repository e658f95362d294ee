//! Hosting spec runs: `model::pipeline` decides, `run/<id>` carries out.
//!
//! - `host`: a run's files, lock and log; `begin`: beginning one and going on with one;
//! - `actor`: `run/<id>`; `job`: one agent of a run; `steps`: the other effects;
//! - `criteria`: what the judge judges by;
//! - `hub`: the bare repository that agents push to; `keep`: the harness's own; `clones`: the
//!   agents' private ones;
//! - `beads`: what agents may do to beads.
//!
//! The agents of a run are ordinary dispatches: they live in their shims whatever happens to the
//! actor or the daemon. The actor only sees to it that they are there, and looks at what they
//! leave.

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
pub(crate) mod steps;

pub use begin::begin;
pub use begin::obstacle;
pub use begin::recovery::{begin_trial, boot, is_suspect, keep_set_aside, outlived};
pub use host::{Hosted, Runs, is_hosted};
pub(crate) use private_repo::{check_files, hash};
