//! Verbs for larger pieces of work: spec runs, task lists and beads.

pub mod bead;
pub mod hook;
pub mod run;
pub mod runs;
pub mod tasks;
