//! Spans and metrics as OpenTelemetry's packages want them.
//!
//! Spans become the SDK's [`SpanData`], which its exporter converts to OTLP. Its metric data cannot
//! be constructed outside of the SDK, whose instruments count from the start of a process. So
//! metrics become the messages of the protocol.

use crate::metrics::{Meter, Sum};
use crate::run::metrics::{RunSum, RunSums};
use crate::trace::{Span, SpanEvent, Status};
use jiff::Timestamp;
use muleteer_model::event::trace_context::Context;
use opentelemetry::trace::{
    Event, Link, SpanContext, SpanId, SpanKind, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::Attributes;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope as Scope;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Point;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics,
    Sum as SumOf,
};
use opentelemetry_proto::tonic::resource::v1::Resource as ResourceOf;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use serde_json::Value;
use std::time::SystemTime;

const SCOPE: &str = "muleteer";

/// Returns the name and version of this program, as the origin of a span.
pub fn scope() -> InstrumentationScope {
    InstrumentationScope::builder(SCOPE).with_version(env!("CARGO_PKG_VERSION")).build()
}

pub fn resource(attributes: &[(String, String)]) -> Resource {
    // Only what was configured: the SDK's detectors would read the environment again.
    Resource::builder_empty().with_attributes(strings(attributes)).build()
}

pub fn spans(spans: &[Span]) -> Vec<SpanData> {
    let scope = scope();
    spans.iter().map(|span| data(span, &scope)).collect()
}

/// Returns the place of a span as OpenTelemetry's type.
pub fn context(place: Context, is_remote: bool) -> SpanContext {
    SpanContext::new(
        TraceId::from_bytes(place.trace),
        SpanId::from_bytes(place.span),
        TraceFlags::default().with_sampled(place.sampled),
        is_remote,
        TraceState::default(),
    )
}

fn data(span: &Span, scope: &InstrumentationScope) -> SpanData {
    let place = Context { trace: span.trace, span: span.id, sampled: true };
    let mut events = SpanEvents::default();
    events.events = span.events.iter().map(event).collect();
    events.dropped_count = span.dropped_events;
    let mut links = SpanLinks::default();
    links.links = span.links.iter().map(|to| Link::new(context(*to, true), vec![], 0)).collect();
    SpanData {
        span_context: context(place, false),
        parent_span_id: span.parent.map_or(SpanId::INVALID, SpanId::from_bytes),
        parent_span_is_remote: false,
        span_kind: if span.is_client { SpanKind::Client } else { SpanKind::Internal },
        name: span.name.clone().into(),
        start_time: span.start.into(),
        end_time: span.end.into(),
        attributes: attributes(&span.attributes),
        dropped_attributes_count: 0,
        events,
        links,
        status: match &span.status {
            Status::Unset => opentelemetry::trace::Status::Unset,
            Status::Ok => opentelemetry::trace::Status::Ok,
            Status::Error(kind) => opentelemetry::trace::Status::error(kind.clone()),
        },
        instrumentation_scope: scope.clone(),
    }
}

fn event(event: &SpanEvent) -> Event {
    Event::new(event.name, SystemTime::from(event.at), attributes(&event.attributes), 0)
}

fn attributes(all: &[(&'static str, Value)]) -> Vec<KeyValue> {
    all.iter().map(|(key, value)| attribute(key, value)).collect()
}

fn attribute(key: &'static str, value: &Value) -> KeyValue {
    match value {
        Value::Bool(value) => KeyValue::new(key, *value),
        Value::String(text) => KeyValue::new(key, text.clone()),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => KeyValue::new(key, whole),
            (None, Some(float)) => KeyValue::new(key, float),
            (None, None) => KeyValue::new(key, number.to_string()),
        },
        other => KeyValue::new(key, other.to_string()),
    }
}

fn strings(all: &[(String, String)]) -> impl Iterator<Item = KeyValue> {
    all.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone()))
}

/// Returns the request with all metrics: of the dispatches, and of the spec runs. `dropped` counts
/// spans that no collector accepted.
pub fn metrics(
    resource: &[(String, String)],
    version: &str,
    (meter, runs): (&Meter, &RunSums),
    dropped: u64,
    now: Timestamp,
) -> ExportMetricsServiceRequest {
    let times = (nanos(meter.since.unwrap_or(now)), nanos(now));
    let mut all: Vec<_> = Sum::ALL
        .into_iter()
        .filter_map(|of| {
            let mut points: Vec<_> =
                meter.of(of).map(|(labels, value)| point(labels, value, times)).collect();
            // Sums start at 0. A query for growth would miss the first event if its point appeared
            // with 1.
            if points.is_empty() && !of.has_labels() {
                points.push(point(&[], 0.0, times));
            }
            let named = (of.name(), of.unit(), of.meaning());
            (!points.is_empty()).then(|| sum(named, points))
        })
        .collect();
    all.extend(RunSum::ALL.into_iter().filter_map(|of| {
        let points: Vec<_> = runs
            .of(of)
            .map(|(label, value)| {
                point(&[(of.label(), label.to_string())], of.in_unit(value), times)
            })
            .collect();
        let named = (of.name(), of.unit(), of.meaning());
        (!points.is_empty()).then(|| sum(named, points))
    }));
    #[allow(clippy::cast_precision_loss)] // A small count.
    let lost = vec![point(&[], dropped as f64, times)];
    let named = ("muleteer.telemetry.dropped_spans", "{span}", "spans that no collector accepted");
    all.push(sum(named, lost));
    let named = ("muleteer.queue", "{dispatch}", "dispatches that wait for a free slot");
    all.push(gauge(named, meter.queue(), times.1));
    let named = ("muleteer.agents", "{agent}", "running dispatches");
    all.push(gauge(named, meter.active(), times.1));
    let scope = Scope { name: SCOPE.into(), version: version.into(), ..Scope::default() };
    let resource =
        ResourceOf { attributes: Attributes::from(strings(resource)).0, ..ResourceOf::default() };
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(resource),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(scope),
                metrics: all,
                ..ScopeMetrics::default()
            }],
            ..ResourceMetrics::default()
        }],
    }
}

/// A metric's name, unit and description.
type Named = (&'static str, &'static str, &'static str);

fn metric((name, unit, meaning): Named, data: Data) -> Metric {
    Metric {
        name: name.into(),
        unit: unit.into(),
        description: meaning.into(),
        data: Some(data),
        ..Metric::default()
    }
}

fn sum(named: Named, data_points: Vec<NumberDataPoint>) -> Metric {
    let aggregation_temporality = AggregationTemporality::Cumulative.into();
    metric(named, Data::Sum(SumOf { data_points, aggregation_temporality, is_monotonic: true }))
}

fn gauge(named: Named, value: usize, now: u64) -> Metric {
    let value = Point::AsInt(i64::try_from(value).unwrap_or(i64::MAX));
    let point =
        NumberDataPoint { time_unix_nano: now, value: Some(value), ..NumberDataPoint::default() };
    metric(named, Data::Gauge(Gauge { data_points: vec![point] }))
}

/// Returns a point of a sum, between two times.
fn point(
    labels: &[(&'static str, String)],
    value: f64,
    (since, now): (u64, u64),
) -> NumberDataPoint {
    let labels = labels.iter().map(|(key, value)| KeyValue::new(*key, value.clone()));
    NumberDataPoint {
        attributes: Attributes::from(labels).0,
        start_time_unix_nano: since,
        time_unix_nano: now,
        value: Some(Point::AsDouble(value)),
        ..NumberDataPoint::default()
    }
}

fn nanos(at: Timestamp) -> u64 {
    u64::try_from(at.as_nanosecond().max(0)).unwrap_or(u64::MAX)
}
