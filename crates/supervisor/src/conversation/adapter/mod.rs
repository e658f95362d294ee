//! Adapters: processes that connect threads to places where people are (docs/adapters.md).
//!
//! - [`actor`]: the `adapters` leaf of the tree; `supervise` runs one process;
//! - [`session`]: one connection of an adapter; `inbound` handles what comes from it;
//! - [`registry`]: what is known of each adapter while this daemon lives;
//! - `place`: the role, project and environment of the agents of its threads;
//! - [`view`]: what clients see.

pub mod actor;
mod inbound;
mod place;
pub mod registry;
pub mod serve;
pub mod session;
mod supervise;
pub mod view;

pub(super) use place::{environment, variables as environment_layer};
