//! System tests of task lists and bead stores.

mod agents;
mod bead_stores;
mod crash;
mod hooks;
mod recovery;
mod sessions;
mod verbs;
mod workers;
