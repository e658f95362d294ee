//! The span of a verb, if its environment names a collector; it is the root of everything the verb
//! causes.
//!
//! A slow collector cannot hold a verb up: a finished verb waits for the delivery of its span only
//! briefly.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use jiff::Timestamp;
use muleteer_supervisor::telemetry::http;
use muleteer_telemetry as telemetry;
use muleteer_telemetry::settings::Sampler;
use muleteer_telemetry::trace::{Span, Status};
use muleteer_telemetry::{Settings, otlp};
use serde_json::json;
use std::sync::mpsc;
use std::time::Duration;

/// How long a finished verb waits for the collector to accept its span.
const PATIENCE: Duration = Duration::from_millis(500);

/// Runs a verb as a span below `TRACEPARENT`, or as the root of a new trace.
pub fn run(
    verb: &'static str,
    context: &Context,
    work: impl FnOnce(&Context) -> Result<Exit, Failure>,
) -> Result<Exit, Failure> {
    let settings = Settings::from_env(&|name| std::env::var(name).ok()).ok().flatten();
    let Some(settings) = settings.filter(|settings| settings.traces.is_some()) else {
        return work(context);
    };
    let above = context.trace.as_deref().and_then(telemetry::Context::parse);
    let Some((here, span)) = begin(verb, above, settings.sampler) else { return work(context) };
    let traced = Context { trace: Some(here.to_string()), ..context.clone() };
    let outcome = work(&traced);
    if here.sampled {
        send(settings, end(span, &outcome));
    }
    outcome
}

/// Begins a span. `None` if the system provides no random bytes.
fn begin(
    verb: &str,
    above: Option<telemetry::Context>,
    sampler: Sampler,
) -> Option<(telemetry::Context, Span)> {
    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes).ok()?;
    let (trace, id) = (bytes[..16].try_into().ok()?, bytes[16..].try_into().ok()?);
    let sampled = above.map_or_else(|| sampler.root(trace), |above| sampler.below(above));
    let above = above.unwrap_or(telemetry::Context { trace, span: id, sampled });
    let above = telemetry::Context { sampled, ..above };
    let span = Span {
        is_client: true,
        ..Span::new(above, id, format!("muleteer {verb}"), Timestamp::now())
    };
    Some((above.below(id), span))
}

fn end(mut span: Span, outcome: &Result<Exit, Failure>) -> Span {
    span.end = Timestamp::now().max(span.start);
    span.attributes.push(("process.pid", json!(std::process::id())));
    let failed = match outcome {
        Ok(Exit::Done) => None,
        Ok(exit) => Some(format!("exit_{}", *exit as u8)),
        Err(failure) => Some(failure.code().to_string()),
    };
    span.attributes.extend(failed.as_ref().map(|kind| ("error.type", json!(kind))));
    span.status = failed.map_or(Status::Ok, Status::Error);
    span
}

/// Sends the span from a thread and waits at most [`PATIENCE`] for it: even the resolver may hang.
fn send(settings: Settings, span: Span) {
    let (done, wait) = mpsc::sync_channel(1);
    let post = move || {
        let body = otlp::traces(&settings.resource, env!("CARGO_PKG_VERSION"), &[span]);
        let outcome = settings.traces.map(|target| http::post(&target, PATIENCE, &body));
        if let Some(Err(error)) = outcome {
            tracing::debug!(%error, "failed to record the span of this verb");
        }
        let _ = done.send(());
    };
    if std::thread::Builder::new().name("span".into()).spawn(post).is_ok() {
        let _ = wait.recv_timeout(PATIENCE);
    }
}
