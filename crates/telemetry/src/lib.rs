//! Traces and metrics as pure functions of the durable events.
//!
//! A span's ids are derived from its subject and never drawn at random. A daemon that is killed and
//! started again makes the same spans of the same events. So its successor continues with them, and
//! a span that is sent twice is one span to its receiver.
//!
//! - [`trace::Tracer`] and, for a run's own log, [`run::RunTracer`]: from records to finished spans;
//! - [`metrics::Meter`]: from records to figures;
//! - [`otlp`]: both as OTLP's JSON; [`settings::Settings`]: OpenTelemetry's variables;
//! - [`Context`]: a place in a trace, as `TRACEPARENT` carries it.

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
