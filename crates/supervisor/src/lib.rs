//! The daemon's actor tree. No other crate knows ractor.
//!
//! - [`tree`]: the supervision tree as data, and the one supervisor actor;
//! - [`ledger`]: the only writer of events;
//! - [`daemon`]: start-up, which is recovery, and the daemon's own files and settings;
//! - [`ports`]: the messages of all actors, and their addresses;
//! - [`driver`]: the interpreter of the state machines whose events are durable;
//! - [`dispatch`]: dispatches from the request to the shim;
//! - [`agent`]: the subtree of one dispatch;
//! - [`spec_run`]: the actor of a spec run, with its hub, clones and private repository;
//! - [`task_list`]: runs of task lists;
//! - [`conversation`]: threads between people and agents;
//! - [`question`], a part of it: everything that waits for the answer of a person;
//! - [`gate`]: the sockets for people and agents;
//! - [`notify`]: notifications for people;
//! - [`telemetry`]: export of spans and metrics.
//!
//! Actors only carry out the decisions of `model`. A rule that cannot be tested without a process
//! is in the wrong place.

#![allow(missing_debug_implementations)]

pub mod agent;
pub mod conversation;
pub mod daemon;
pub mod dispatch;
pub mod driver;
pub mod gate;
pub mod ledger;
pub mod notify;
pub mod ports;
pub mod spec_run;
pub mod task_list;
pub mod telemetry;
pub mod tree;

pub use conversation::question;
