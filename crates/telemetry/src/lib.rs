//! Traces and metrics as pure functions of the durable events.
//!
//! A span's ids are derived from what it is about, never drawn: a daemon that is killed and started
//! again makes the very same spans of the same events, so its successor goes on with them, and what
//! is sent twice is one span to whoever receives it.
//!
//! - [`Context`]: a place in a trace, as `TRACEPARENT` carries it; [`ids`] derives them.
//! - [`trace::Tracer`] and, for a run's own log, [`run::RunTracer`]: records in, finished spans
//!   out; [`metrics::Meter`]: records in, figures out.
//! - [`otlp`]: both as OTLP's JSON. [`settings::Settings`]: OpenTelemetry's variables.

pub mod metrics;
pub mod otlp;
pub mod run;
pub mod settings;
#[cfg(test)]
mod shape;
pub mod trace;

pub use muleteer_model::config::otlp_endpoint::{BadEndpoint, Endpoint, VARIABLE};
pub use muleteer_model::event::trace_context::{Context, trace_state};
pub use settings::Settings;
