//! System tests of task lists and bead stores.

mod agents;
mod bead_stores;
mod crash;
mod damaged_list;
mod hooks;
mod recovery;
mod sessions;
mod verbs;
mod workers;
