//! A span, as the exporter sends it.

use jiff::Timestamp;
use muleteer_model::event::trace_context::Context;
use serde_json::{Value, json};

/// The most events of one span; more are counted.
pub(super) const EVENT_LIMIT: usize = 128;

#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    pub trace: [u8; 16],
    pub id: [u8; 8],
    pub parent: Option<[u8; 8]>,
    pub name: String,
    pub start: Timestamp,
    pub end: Timestamp,
    pub attributes: Vec<(&'static str, Value)>,
    pub events: Vec<SpanEvent>,
    pub dropped_events: u32,
    /// Related spans that are not ancestors.
    pub links: Vec<Context>,
    pub status: Status,
    /// The span is a request to another process (the CLI command).
    pub is_client: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct SpanEvent {
    pub name: &'static str,
    pub at: Timestamp,
    pub attributes: Vec<(&'static str, Value)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    Unset,
    Ok,
    /// A word from a small fixed set.
    Error(String),
}

impl Span {
    pub fn new(context: Context, id: [u8; 8], name: String, start: Timestamp) -> Self {
        Self {
            trace: context.trace,
            id,
            parent: Some(context.span).filter(|parent| *parent != id),
            name,
            start,
            end: start,
            attributes: vec![],
            events: vec![],
            dropped_events: 0,
            links: vec![],
            status: Status::Unset,
            is_client: false,
        }
    }

    pub(crate) fn with(
        mut self,
        attributes: impl IntoIterator<Item = (&'static str, Value)>,
    ) -> Self {
        self.set(attributes);
        self
    }

    /// Adds attributes. Null values are omitted.
    pub(crate) fn set(&mut self, attributes: impl IntoIterator<Item = (&'static str, Value)>) {
        self.attributes.extend(attributes.into_iter().filter(|(_, value)| !value.is_null()));
    }

    pub(crate) fn note(
        &mut self,
        name: &'static str,
        at: Timestamp,
        mut attributes: Vec<(&'static str, Value)>,
    ) {
        if self.events.len() < EVENT_LIMIT {
            attributes.retain(|(_, value)| !value.is_null());
            self.events.push(SpanEvent { name, at, attributes });
        } else {
            self.dropped_events += 1;
        }
    }

    /// Ends the span. A failed one gets `error.type`.
    pub(crate) fn ended(mut self, at: Timestamp, status: Status) -> Self {
        // A clock that was set back must not make a negative duration.
        self.end = at.max(self.start);
        if let Status::Error(kind) = &status {
            self.set([("error.type", json!(kind))]);
        }
        self.status = status;
        self
    }

    /// Ends a span whose work was cut off, so that its outcome is unknown.
    pub(crate) fn cut_short(mut self, at: Timestamp) -> Self {
        self.set([("muleteer.cut_short", json!(true))]);
        self.ended(at, Status::Unset)
    }
}
