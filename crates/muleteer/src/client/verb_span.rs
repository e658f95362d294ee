//! The span of a verb, if its environment names a collector; it is the root of everything the verb
//! causes.
//!
//! A slow collector cannot hold a verb up: a finished verb waits for the delivery of its span only
//! briefly.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use muleteer_supervisor::telemetry::provider::CommandSpan;
use muleteer_telemetry as telemetry;
use muleteer_telemetry::Settings;
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
    let above = context.trace.as_deref().and_then(telemetry::Context::parse);
    let name = format!("muleteer {verb}");
    let span = settings.and_then(|settings| CommandSpan::begin(&settings, &name, above, PATIENCE));
    let Some(span) = span else { return work(context) };
    let place = span.place();
    let traced = Context { trace: Some(place.to_string()), ..context.clone() };
    let outcome = work(&traced);
    if place.sampled {
        send(span, failure(&outcome));
    }
    outcome
}

fn failure(outcome: &Result<Exit, Failure>) -> Option<String> {
    match outcome {
        Ok(Exit::Done) => None,
        Ok(exit) => Some(format!("exit_{}", *exit as u8)),
        Err(failure) => Some(failure.code().to_string()),
    }
}

/// Sends the span from a thread and waits at most [`PATIENCE`] for it: even the resolver may hang.
fn send(span: CommandSpan, failure: Option<String>) {
    let (done, wait) = mpsc::sync_channel(1);
    let end = move || {
        span.end(failure.as_deref());
        let _ = done.send(());
    };
    if std::thread::Builder::new().name("span".into()).spawn(end).is_ok() {
        let _ = wait.recv_timeout(PATIENCE);
    }
}
