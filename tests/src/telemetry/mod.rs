//! Receivers of traces and metrics.

pub mod collector;
pub mod rotel;
