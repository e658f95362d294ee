//! System tests of task lists and bead stores.

mod agents;
mod bead_stores;
mod crash;
mod damaged_list;
mod foreign_files;
mod hooks;
mod recovery;
mod reference_hooks;
mod sandbox;
mod sessions;
mod verbs;
mod workers;
