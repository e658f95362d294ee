//! Tests of the whole state machine.

#[cfg(test)]
pub(crate) mod golden;
#[cfg(test)]
pub(crate) mod rules;
#[cfg(test)]
pub(crate) mod simulator;
