//! The actor tree: the only crate that knows ractor.
//!
//! - [`tree`]: the supervision tree as data, and `branch`, the one actor that carries it out;
//! - [`ledger`]: the only writer of events; [`daemon`]: start-up, which *is* recovery;
//! - [`pool`], [`agent`]: admission, and one small subtree per dispatch;
//! - [`runs`]: spec runs;
//! - [`tasklist`]: the task-list harness;
//! - [`git`]: a person's working directory, and what is brought into it, for both; [`worktree`]:
//!   clones for agents;
//! - [`gate`]: the socket people and agents talk to.
//!
//! Actors only carry out what `model` decides; a rule that can't be tested without a process is in
//! the wrong place.

#![allow(missing_debug_implementations)]

pub mod dispatch;
pub mod vcs;

pub mod agent;
pub mod daemon;
pub mod gate;
pub mod ledger;
pub mod signals;
pub mod spec_run;
pub mod task_list;
pub mod telemetry;
pub mod tree;
