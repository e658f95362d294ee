//! Verbs that show what agents and the daemon do and did, and change nothing.

pub mod cost;
pub mod events;
pub mod journal;
mod journal_times;
pub mod logs;
pub mod parse;
pub mod status;
pub mod tree;
pub mod why;
