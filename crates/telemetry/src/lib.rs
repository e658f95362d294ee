//! Traces and metrics as pure functions of the durable events.
//!
//! A span's ids are derived from its subject and are never random. A restarted daemon therefore
//! makes the same spans from the same events. It continues the spans of its predecessor, and a span
//! that is sent twice counts once at its receiver.
//!
//! - [`trace::Tracer`] and, for a run's own log, [`run::RunTracer`]: from records to finished
//!   spans;
//! - [`metrics::Meter`] and, for the logs of runs, [`run::metrics::RunSums`]: from records to
//!   metrics;
//! - [`otlp`]: both as data of OpenTelemetry's packages; [`settings::Settings`]: OpenTelemetry's
//!   variables;
//! - [`Context`]: a trace context, as in `TRACEPARENT`.

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
