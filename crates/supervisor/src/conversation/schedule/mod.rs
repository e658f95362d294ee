//! Schedules: messages that Muleteer writes into threads at configured times. The rules are in
//! `model::conversation::schedule`.
//!
//! - [`delays`]: the starts that cannot be carried out now;
//! - [`driver`]: makes due moments durable, and writes their messages;
//! - [`serve`]: what clients see, and `schedule run`.

pub mod delays;
pub mod driver;
pub mod serve;
mod write;
