//! Verbs that start, address, stop and await agents.

pub mod answer;
pub mod clean;
pub mod close;
mod dispatch_action;
mod follow;
pub mod interrupt;
pub mod kill;
pub mod model;
pub mod prune;
pub mod questions;
pub mod send;
pub mod spawn;
pub mod wait;
