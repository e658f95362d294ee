//! The actor tree: the only crate that knows ractor.
//!
//! - [`tree`]: the supervision tree as data, and `branch`, the one actor that carries it out;
//! - [`ledger`]: the only writer of events; [`daemon`]: start-up, which *is* recovery;
//! - [`pool`], [`agent`]: admission, and one small subtree per dispatch;
//! - [`runs`]: spec runs;
//! - [`tasklist`]: the task-list harness;
//! - [`git`]: a person's working directory, and what is brought into it, for both; [`worktree`]: clones for agents;
//! - [`gate`]: the socket people and agents talk to.
//!
//! Actors only carry out what `model` decides; a rule that can't be tested without a process is in
//! the wrong place.

#![allow(missing_debug_implementations)]

pub mod acp;
pub mod agent;
mod backend_choice;
pub mod beneath;
mod branch;
pub mod confine;
pub mod container;
pub mod context;
pub mod daemon;
pub mod gate;
pub mod git;
pub mod heartbeat;
pub mod launch;
pub mod ledger;
mod mend;
pub mod notify;
pub mod owned;
pub mod paths;
pub mod pool;
pub mod projection;
pub mod prune;
pub mod request;
mod reserve;
pub mod runs;
pub mod settings;
pub mod shims;
pub mod signals;
mod stuck;
pub mod tasklist;
pub mod telemetry;
pub mod tree;
pub mod trust;
pub mod view;
pub mod watch;
pub mod worktree;
