//! Schedules: messages that Muleteer writes into threads at configured times. The rules are in
//! `model::conversation::schedule`.
//!
//! - [`driver`]: makes due moments durable, and writes their messages;
//! - [`serve`]: what clients see, and `schedule run`.

pub mod driver;
pub mod serve;
mod write;
