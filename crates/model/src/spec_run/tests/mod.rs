//! Tests of the whole state machine.

mod amendment;
mod endings;
mod gates;
mod golden;
mod judging;
pub(crate) mod play;
mod rules;
mod simulator;
mod spec;
