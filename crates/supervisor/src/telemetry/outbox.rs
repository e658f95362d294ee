//! The daemon's own spans: from `tracing` to the export.
//!
//! The daemon has one subscriber, and so one [`Outbox`]. Ended spans wait in its memory until the
//! telemetry actor exports them, so nothing waits for a collector, and a stop flushes nothing:
//! spans that were not sent by then are lost. The spans of dispatches are not made here; they come
//! from durable events.

use crate::telemetry::provider;
use muleteer_telemetry::otlp;
use muleteer_telemetry::settings::Sampler;
use opentelemetry::trace::{Link, SpanKind, TraceId, TraceState, TracerProvider};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    SamplingDecision, SamplingResult, SdkTracerProvider, ShouldSample, Span, SpanData,
    SpanProcessor,
};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tracing::Subscriber;
use tracing_subscriber::layer::Layer;
use tracing_subscriber::registry::LookupSpan;

/// The most spans that wait. More are dropped and counted.
const LIMIT: usize = 256;
/// The attribute of a span that is dropped if it took less than this number of milliseconds. It is
/// not exported.
const SLOW_MS: &str = "muleteer.slow_ms";

static OUTBOX: LazyLock<Arc<Outbox>> = LazyLock::new(Arc::default);

/// Returns the outbox of this process.
pub fn outbox() -> &'static Outbox {
    &OUTBOX
}

/// Returns the layer of the daemon's subscriber that fills this process's outbox.
pub fn layer<S>() -> impl Layer<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    layer_for(&OUTBOX)
}

fn layer_for<S>(outbox: &Arc<Outbox>) -> impl Layer<S> + use<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    let provider = SdkTracerProvider::builder()
        .with_sampler(Handle(outbox.clone()))
        .with_span_processor(Handle(outbox.clone()))
        // The exporter adds the resource.
        .with_resource(Resource::builder_empty().build())
        .build();
    provider::layer(provider.tracer_with_scope(otlp::scope()))
}

#[derive(Debug, Default)]
pub struct Outbox {
    /// Unset until the settings are known. Spans that end before that are dropped.
    sampler: OnceLock<Sampler>,
    waiting: Mutex<Waiting>,
    added: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    spans: Vec<SpanData>,
    dropped: u64,
}

impl Outbox {
    /// Begins to collect spans.
    pub fn open(&self, sampler: Sampler) {
        // A second daemon of this process, in tests, uses the sampler of the first.
        let _ = self.sampler.set(sampler);
    }

    /// Takes all waiting spans, and the number of those that were dropped since the last call.
    pub fn take(&self) -> (Vec<SpanData>, u64) {
        let waiting = std::mem::take(&mut *self.lock());
        (waiting.spans, waiting.dropped)
    }

    /// Returns when a span was added since the last call. Cancel-safe.
    pub async fn added(&self) {
        self.added.notified().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, span: SpanData) {
        let mut waiting = self.lock();
        if waiting.spans.len() < LIMIT {
            waiting.spans.push(span);
            drop(waiting);
            self.added.notify_one();
        } else {
            waiting.dropped += 1;
        }
    }
}

/// The outbox as parts of OpenTelemetry's SDK.
#[derive(Debug, Clone)]
struct Handle(Arc<Outbox>);

impl ShouldSample for Handle {
    fn should_sample(
        &self,
        above: Option<&Context>,
        trace: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        match self.0.sampler.get() {
            Some(sampler) => {
                sampler.sdk().should_sample(above, trace, name, kind, attributes, links)
            }
            None => SamplingResult {
                decision: SamplingDecision::Drop,
                attributes: vec![],
                trace_state: TraceState::default(),
            },
        }
    }
}

impl SpanProcessor for Handle {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, mut span: SpanData) {
        if !span.span_context.is_sampled() || is_quick(&mut span) {
            return;
        }
        self.0.add(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Whether the span took less than its [`SLOW_MS`], which is removed.
fn is_quick(span: &mut SpanData) -> bool {
    let Some(at) = span.attributes.iter().position(|one| one.key.as_str() == SLOW_MS) else {
        return false;
    };
    let took = span.end_time.duration_since(span.start_time).unwrap_or_default();
    match span.attributes.remove(at).value {
        Value::I64(limit) => took < Duration::from_millis(limit.unsigned_abs()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::provider::{TARGET, set_failed, set_parent};
    use muleteer_telemetry::Settings;
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::registry::Registry;

    fn sampler(name: &str) -> Sampler {
        let settings = Settings::from_env(&|variable| match variable {
            muleteer_telemetry::VARIABLE => Some("http://c".into()),
            "OTEL_TRACES_SAMPLER" => Some(name.into()),
            _ => None,
        });
        settings.expect("good").expect("on").sampler
    }

    fn names(outbox: &Outbox) -> Vec<String> {
        outbox.take().0.into_iter().map(|span| span.name.into_owned()).collect()
    }

    #[test]
    fn own_spans_wait_for_the_export_and_log_lines_do_not() {
        let outbox = Arc::new(Outbox::default());
        let subscriber = Registry::default().with(layer_for(&outbox));
        tracing::subscriber::with_default(subscriber, || {
            tracing::info_span!(target: TARGET, parent: None, "early");
            // The sampler decides when a span ends, so this one is not too early.
            let recovery = tracing::info_span!(target: TARGET, parent: None, "recovery");
            outbox.open(sampler("always_on"));
            drop(recovery);
            assert_eq!(names(&outbox), ["recovery"]);

            let span = tracing::info_span!(
                target: TARGET,
                parent: None,
                "x",
                otel.name = "restart ledger",
                muleteer.slow_ms = 0_i64,
            );
            let above = muleteer_telemetry::Context { trace: [1; 16], span: [2; 8], sampled: true };
            set_parent(&span, above);
            span.in_scope(|| tracing::error!(target: TARGET, "a log line may quote an agent"));
            set_failed(&span, "E_BUSY");
            drop(span);
            tracing::info_span!(
                target: TARGET,
                parent: None,
                "quick",
                muleteer.slow_ms = 60_000_i64,
            );
            tracing::info_span!("of a library");
            let (spans, dropped) = outbox.take();
            assert_eq!((spans.len(), dropped), (1, 0), "{spans:?}");
            let span = &spans[0];
            assert_eq!(span.name, "restart ledger");
            assert_eq!(span.span_context.trace_id().to_bytes(), [1; 16]);
            assert_eq!(span.parent_span_id.to_bytes(), [2; 8]);
            assert!(span.events.is_empty(), "{span:?}");
            assert_eq!(span.attributes, [KeyValue::new("error.type", "E_BUSY")]);
        });
    }

    #[test]
    fn outbox_drops_and_counts_spans_beyond_its_limit_and_unsampled_ones_silently() {
        let outbox = Arc::new(Outbox::default());
        outbox.open(sampler("parentbased_always_off"));
        let subscriber = Registry::default().with(layer_for(&outbox));
        tracing::subscriber::with_default(subscriber, || {
            let above = muleteer_telemetry::Context { trace: [1; 16], span: [2; 8], sampled: true };
            for _ in 0..LIMIT + 3 {
                let span = tracing::info_span!(target: TARGET, parent: None, "sampled");
                set_parent(&span, above);
            }
            tracing::info_span!(target: TARGET, parent: None, "unsampled");
            let (spans, dropped) = outbox.take();
            assert_eq!((spans.len(), dropped), (LIMIT, 3));
            assert_eq!(outbox.take(), (vec![], 0));
        });
    }

    #[tokio::test]
    async fn added_returns_at_once_for_a_span_that_came_before() {
        let outbox = Arc::new(Outbox::default());
        outbox.open(sampler("always_on"));
        let subscriber = Registry::default().with(layer_for(&outbox));
        tracing::subscriber::with_default(subscriber, || {
            tracing::info_span!(target: TARGET, parent: None, "one");
        });
        outbox.added().await;
        assert_eq!(names(&outbox), ["one"]);
    }
}
