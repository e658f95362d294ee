//! The scripted agent: a real process that plays a scenario (docs/guides/rehearsal.md).
//!
//! It tests supervision, and demonstrates Muleteer without an account. `muleteer rehearse` is its
//! program; the backend `rehearsal` of `muleteer-backends` starts it and reads its output.
//!
//! - [`scenario`]: the language, read and checked;
//! - [`step`] and [`session`]: the pure part of playing one;
//! - [`player`]: the process.

pub mod player;
pub mod scenario;
pub mod session;
pub mod step;
mod vars;

pub use vars::{UnknownVariable, Vars};
