//! Verbs that set Muleteer up on a host or in a repository, and check it.

pub mod agents;
pub mod completions;
pub mod config;
pub mod doctor;
pub mod hooks;
pub mod man;
pub mod notify;
pub mod roles;
pub mod service;
pub mod trust;
