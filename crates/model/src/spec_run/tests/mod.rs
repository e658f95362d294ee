//! Tests of the whole state machine.

mod golden;
pub(crate) mod rules;
mod simulator;
