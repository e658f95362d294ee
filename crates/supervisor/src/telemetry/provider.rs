//! Spans of `tracing` as spans of OpenTelemetry: the span of a command.
//!
//! Only spans of [`TARGET`] are exported, and no event: a log line may quote an agent.

use crate::telemetry::exporter::Exporter;
use crate::telemetry::http::Outcome;
use muleteer_telemetry::{Context, Settings, otlp};
use opentelemetry::trace::{Status, TraceContextExt, TracerProvider};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{self, SdkTracer, SdkTracerProvider, SpanData, SpanProcessor};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tracing::{Dispatch, Metadata, Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

/// The target of the spans that are exported.
pub const TARGET: &str = "muleteer::span";

/// Whether a collector may get this span or event.
pub fn is_exported(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.target() == TARGET
}

/// Returns the layer that gives the exported spans to a tracer.
pub(crate) fn layer<S>(tracer: SdkTracer) -> impl Layer<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    tracing_opentelemetry::layer()
        .with_tracer(tracer)
        // A user has no use for source lines and thread names.
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_level(false)
        .with_target(false)
        .with_context_activation(false)
        // Without the hint, every log line of every library would be formatted to be dropped.
        .with_filter(filter_fn(is_exported).with_max_level_hint(LevelFilter::INFO))
}

/// Puts a span below `above`, which is in another process.
pub fn set_parent(span: &Span, above: Context) {
    let above = opentelemetry::Context::new().with_remote_span_context(otlp::context(above, true));
    // It fails for a disabled span only, which has no parent.
    let _ = span.set_parent(above);
}

/// Marks a span as failed. `kind` is a word from a small fixed set.
pub fn set_failed(span: &Span, kind: &str) {
    span.set_attribute("error.type", kind.to_string());
    span.set_status(Status::error(kind.to_string()));
}

/// The span of a command, which is the root of everything that the command causes. Nothing is
/// exported if it is dropped.
#[derive(Debug)]
pub struct CommandSpan {
    span: Span,
    place: Context,
    ended: EndedSpans,
    exporter: Exporter,
}

impl CommandSpan {
    /// Begins a span below `above`, or at the root of a new trace. Returns `None` if traces are
    /// not exported.
    pub fn begin(
        settings: &Settings,
        name: &str,
        above: Option<Context>,
        patience: Duration,
    ) -> Option<Self> {
        let target = settings.traces.as_ref()?;
        let resource = otlp::resource(&settings.resource);
        let exporter = Exporter::of_spans(target, patience, &resource).ok()?;
        let ended = EndedSpans::default();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(ended.clone())
            .with_sampler(settings.sampler.sdk())
            .with_resource(resource)
            .build();
        let tracer = provider.tracer_with_scope(otlp::scope());
        let dispatch = Dispatch::new(Registry::default().with(layer(tracer)));
        let span = tracing::dispatcher::with_default(&dispatch, || {
            tracing::info_span!(
                target: TARGET,
                parent: None,
                "command",
                otel.name = name,
                otel.kind = "client",
                // Unsigned numbers would become text.
                process.pid = i64::from(std::process::id()),
            )
        });
        if let Some(above) = above {
            set_parent(&span, above);
        }
        let context = span.context();
        let own = context.span().span_context().clone();
        let place = Context {
            trace: own.trace_id().to_bytes(),
            span: own.span_id().to_bytes(),
            sampled: own.is_sampled(),
        };
        own.is_valid().then_some(Self { span, place, ended, exporter })
    }

    /// Returns the context for everything that the command causes.
    pub fn place(&self) -> Context {
        self.place
    }

    /// Ends the span and, if it is sampled, sends it. Blocks until the collector has answered, at
    /// most for the time given at the begin, unless the resolver hangs. Returns how many spans the
    /// collector rejected.
    ///
    /// # Errors
    /// As [`Exporter::spans`].
    pub fn end(self, failure: Option<&str>) -> Outcome {
        let Self { span, ended, exporter, .. } = self;
        match failure {
            Some(kind) => set_failed(&span, kind),
            None => span.set_status(Status::Ok),
        }
        drop(span);
        exporter.spans(ended.take())
    }
}

/// Holds ended spans until they are exported. The SDK's own processor would export a span that is
/// dropped, on the thread that drops it, and would not return what the collector answered.
#[derive(Debug, Clone, Default)]
struct EndedSpans(Arc<Mutex<Vec<SpanData>>>);

impl EndedSpans {
    fn take(&self) -> Vec<SpanData> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl SpanProcessor for EndedSpans {
    fn on_start(&self, _: &mut trace::Span, _: &opentelemetry::Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::http::PostError;
    use muleteer_telemetry::VARIABLE;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    const PATIENCE: Duration = Duration::from_secs(2);

    fn settings(endpoint: &str, sampler: &str) -> Settings {
        let settings = Settings::from_env(&|name| match name {
            VARIABLE => Some(endpoint.into()),
            "OTEL_TRACES_SAMPLER" => Some(sampler.into()),
            _ => None,
        });
        settings.expect("good").expect("on")
    }

    /// Runs one command, and returns its place and the span that a collector got.
    fn sent(above: Option<Context>, failure: Option<&str>) -> (Context, serde_json::Value) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let endpoint = format!("http://{}", listener.local_addr().expect("address"));
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accept");
            let mut bytes = vec![];
            let body = loop {
                let mut chunk = [0; 4096];
                let read = stream.read(&mut chunk).expect("request");
                bytes.extend_from_slice(&chunk[..read]);
                let text = String::from_utf8_lossy(&bytes);
                let body = text.split_once("\r\n\r\n").map(|(_, body)| body);
                if let Some(body) = body.and_then(|body| serde_json::from_str(body).ok()) {
                    break body;
                }
            };
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").expect("answer");
            body
        });
        let settings = settings(&endpoint, "parentbased_always_on");
        let span = CommandSpan::begin(&settings, "muleteer kill", above, PATIENCE).expect("on");
        let place = span.place();
        tracing::error!("a log line is no event of the span");
        assert_eq!(span.end(failure).expect("taken"), 0);
        let body: serde_json::Value = thread.join().expect("collector");
        (place, body["resourceSpans"][0]["scopeSpans"][0]["spans"][0].clone())
    }

    #[test]
    fn command_span_is_sent_under_the_place_that_its_requests_carry() {
        let hex = muleteer_model::event::trace_context::hex;
        let (place, span) = sent(None, None);
        assert_eq!(span["name"], "muleteer kill");
        assert_eq!((&span["kind"], &span["status"]["code"]), (&3.into(), &1.into()));
        assert_eq!(span["traceId"], hex(&place.trace));
        assert_eq!(span["spanId"], hex(&place.span));
        assert_eq!(span["parentSpanId"], "");
        assert_eq!(span["events"], serde_json::json!([]));
        let pid = serde_json::json!({
            "key": "process.pid", "value": {"intValue": std::process::id().to_string()},
        });
        assert_eq!(span["attributes"], serde_json::json!([pid]), "and nothing else");

        let caller = Context { trace: [1; 16], span: [2; 8], sampled: true };
        let (place, span) = sent(Some(caller), Some("exit_1"));
        assert_eq!((place.trace, place.sampled), (caller.trace, true));
        assert_eq!(span["parentSpanId"], hex(&caller.span));
        assert_eq!(span["status"], serde_json::json!({"code": 2, "message": "exit_1"}));
    }

    #[test]
    fn unsampled_command_has_a_place_and_sends_nothing() {
        // Nobody listens there: an export would fail, but not before a connection.
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        listener.set_nonblocking(true).expect("non-blocking");
        let endpoint = format!("http://{}", listener.local_addr().expect("address"));
        let settings = settings(&endpoint, "parentbased_always_off");
        let span = CommandSpan::begin(&settings, "muleteer kill", None, PATIENCE).expect("on");
        let place = span.place();
        assert!(!place.sampled && place.trace != [0; 16] && place.span != [0; 8]);
        assert_eq!(span.end(None).expect("nothing to send"), 0);
        assert!(listener.accept().is_err(), "no connection was made");
        let caller = Context { trace: [1; 16], span: [2; 8], sampled: false };
        let span = CommandSpan::begin(&settings, "x", Some(caller), PATIENCE).expect("on");
        assert_eq!((span.place().trace, span.place().sampled), ([1; 16], false));
    }

    #[test]
    fn dropped_command_span_is_not_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        listener.set_nonblocking(true).expect("non-blocking");
        let endpoint = format!("http://{}", listener.local_addr().expect("address"));
        let settings = settings(&endpoint, "always_on");
        drop(CommandSpan::begin(&settings, "muleteer kill", None, PATIENCE).expect("on"));
        assert!(listener.accept().is_err(), "no connection was made");
    }

    #[test]
    fn ended_command_span_returns_why_it_was_lost() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let endpoint = format!("http://{}", listener.local_addr().expect("address"));
        drop(listener);
        let settings = settings(&endpoint, "always_on");
        let span = CommandSpan::begin(&settings, "muleteer kill", None, PATIENCE).expect("on");
        let error = span.end(None).expect_err("nobody listens");
        assert!(matches!(error, PostError::Unreachable { .. }), "{error}");
    }
}
