//! The shims of all agents: starting them, talking to one, and checking one that does not answer.

pub mod error;
pub mod port;
pub mod shims;
pub(crate) mod watchdog;
