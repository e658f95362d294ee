//! Adapters: processes that connect threads to places where people are (docs/adapters.md).
//!
//! - [`actor`]: the `adapters` leaf of the tree; `supervise` runs one process;
//! - [`session`]: one connection of an adapter; `inbound` handles what comes from it,
//!   `frame` makes the frames of what its threads owe, `live` those about work that goes on;
//! - [`registry`]: what is known of each adapter while this daemon lives;
//! - `place`: the role, project and environment of the agents of its threads;
//! - [`view`]: what clients see.

pub mod actor;
mod frame;
mod inbound;
mod live;
pub(in crate::conversation) mod place;
pub mod registry;
pub mod serve;
pub mod session;
mod supervise;
pub mod view;

pub(super) use place::{
    directory, environment, scenario, template, variables as environment_layer,
};
