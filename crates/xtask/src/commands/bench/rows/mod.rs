//! The functions that measure the rows, one module for each part of Muleteer.

pub mod agents;
pub mod beads;
pub mod cli;
pub mod events;
pub mod memory;
pub mod month;
pub mod output;
pub mod runs;
pub mod start;
pub mod task_lists;
pub mod threads;
