//! Traces and metrics as pure functions of the events: where they go and what they are.

mod endpoint;

pub use endpoint::{BadEndpoint, Endpoint, VARIABLE};
