//! OTLP's JSON for `/v1/traces` and `/v1/metrics`.
//!
//! The JSON form of the protocol is as stable as its binary form, and every collector with OTLP
//! over HTTP accepts it. Ids are hexadecimal; 64-bit numbers are strings.

use crate::metrics::{Meter, Sum};
use crate::trace::{Span, SpanEvent, Status};
use jiff::Timestamp;
use muleteer_model::event::trace_context::{Context, hex};
use serde_json::{Value, json};

const SCOPE: &str = "muleteer";

/// Returns the body of a request to `/v1/traces`.
pub fn traces(resource: &[(String, String)], version: &str, spans: &[Span]) -> Value {
    let spans: Vec<_> = spans.iter().map(span).collect();
    json!({ "resourceSpans": [{
        "resource": { "attributes": strings(resource) },
        "scopeSpans": [{ "scope": { "name": SCOPE, "version": version }, "spans": spans }],
    }]})
}

/// Returns the body of a request to `/v1/metrics`. `dropped` counts spans that no collector
/// accepted.
pub fn metrics(
    resource: &[(String, String)],
    version: &str,
    meter: &Meter,
    dropped: u64,
    now: Timestamp,
) -> Value {
    let since = nanos(meter.since.unwrap_or(now));
    let now = nanos(now);
    let point = |labels: &[(&'static str, String)], value: f64| {
        let labels: Vec<_> =
            labels.iter().map(|(key, value)| attribute(key, &json!(value))).collect();
        json!({ "attributes": labels, "startTimeUnixNano": since, "timeUnixNano": now,
            "asDouble": value })
    };
    let sum = |name: &str, unit: &str, meaning: &str, points: Vec<Value>| {
        json!({ "name": name, "unit": unit, "description": meaning,
            "sum": { "dataPoints": points, "aggregationTemporality": 2, "isMonotonic": true } })
    };
    let gauge = |name: &str, unit: &str, meaning: &str, value: usize| {
        json!({ "name": name, "unit": unit, "description": meaning,
            "gauge": { "dataPoints": [{ "timeUnixNano": now, "asInt": value.to_string() }] } })
    };
    let mut all: Vec<_> = Sum::ALL
        .into_iter()
        .map(|of| {
            let mut points: Vec<_> =
                meter.of(of).map(|(labels, value)| point(labels, value)).collect();
            // Sums start at 0. A query for growth would miss the first event if its point appeared
            // with 1.
            if points.is_empty() && !of.has_labels() {
                points.push(point(&[], 0.0));
            }
            sum(of.name(), of.unit(), of.meaning(), points)
        })
        .filter(|metric| {
            metric["sum"]["dataPoints"].as_array().is_some_and(|points| !points.is_empty())
        })
        .collect();
    #[allow(clippy::cast_precision_loss)] // A small count.
    let lost = vec![point(&[], dropped as f64)];
    all.push(sum(
        "muleteer.telemetry.dropped_spans",
        "{span}",
        "spans that no collector accepted",
        lost,
    ));
    all.push(gauge(
        "muleteer.queue",
        "{dispatch}",
        "dispatches that wait for a free slot",
        meter.queue(),
    ));
    all.push(gauge("muleteer.agents", "{agent}", "running dispatches", meter.active()));
    json!({ "resourceMetrics": [{
        "resource": { "attributes": strings(resource) },
        "scopeMetrics": [{ "scope": { "name": SCOPE, "version": version }, "metrics": all }],
    }]})
}

fn span(span: &Span) -> Value {
    let status = match &span.status {
        Status::Unset => json!({}),
        Status::Ok => json!({ "code": 1 }),
        Status::Error(message) => json!({ "code": 2, "message": message }),
    };
    let mut value = json!({
        "traceId": hex(&span.trace),
        "spanId": hex(&span.id),
        "name": span.name,
        // Client or internal.
        "kind": if span.is_client { 3 } else { 1 },
        "startTimeUnixNano": nanos(span.start),
        "endTimeUnixNano": nanos(span.end),
        "attributes": attributes(&span.attributes),
        "events": span.events.iter().map(event).collect::<Vec<_>>(),
        "status": status,
    });
    if let Some(parent) = span.parent {
        value["parentSpanId"] = json!(hex(&parent));
    }
    if !span.links.is_empty() {
        let link = |to: &Context| json!({ "traceId": hex(&to.trace), "spanId": hex(&to.span) });
        value["links"] = span.links.iter().map(link).collect();
    }
    if span.dropped_events > 0 {
        value["droppedEventsCount"] = json!(span.dropped_events);
    }
    value
}

fn event(event: &SpanEvent) -> Value {
    json!({ "name": event.name, "timeUnixNano": nanos(event.at),
        "attributes": attributes(&event.attributes) })
}

fn attributes(all: &[(&'static str, Value)]) -> Vec<Value> {
    all.iter().map(|(key, value)| attribute(key, value)).collect()
}

fn strings(all: &[(String, String)]) -> Vec<Value> {
    all.iter().map(|(key, value)| attribute(key, &json!(value))).collect()
}

fn attribute(key: &str, value: &Value) -> Value {
    let value = match value {
        Value::Bool(value) => json!({ "boolValue": value }),
        Value::Number(number) if number.is_f64() => json!({ "doubleValue": number }),
        Value::Number(number) => json!({ "intValue": number.to_string() }),
        Value::String(text) => json!({ "stringValue": text }),
        other => json!({ "stringValue": other.to_string() }),
    };
    json!({ "key": key, "value": value })
}

fn nanos(at: Timestamp) -> String {
    at.as_nanosecond().max(0).to_string()
}
