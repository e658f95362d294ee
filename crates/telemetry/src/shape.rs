//! The text form of spans in tests, and a property that every tracer must have.

use crate::trace::{Span, Status};
use muleteer_model::event::Record;
use muleteer_model::event::trace_context::Context;

/// Formats each span below its parent, in order of start: name, duration, status and events.
pub fn tree(spans: &[Span], trace: &str) -> String {
    let context = Context::parse(trace).expect("a context");
    let own: Vec<_> = spans.iter().filter(|span| span.trace == context.trace).collect();
    let mut text = String::new();
    below(&own, context.span, 0, &mut text);
    text
}

fn below(spans: &[&Span], parent: [u8; 8], depth: usize, text: &mut String) {
    let mut children: Vec<_> = spans.iter().filter(|span| span.parent == Some(parent)).collect();
    children.sort_by_key(|span| span.start);
    for span in children {
        let status = match &span.status {
            Status::Unset => "",
            Status::Ok => " ok",
            Status::Error(kind) => &format!(" {kind}"),
        };
        let length = span.start.duration_until(span.end).as_secs();
        let events: String = span.events.iter().map(|event| format!(" +{}", event.name)).collect();
        text.push_str(&format!("{}{} {length}s{status}{events}\n", "  ".repeat(depth), span.name));
        below(spans, span.id, depth + 1, text);
    }
}

/// Checks that a tracer makes the same spans after a kill at any record. Each span ends at one
/// record, so a daemon that knows the last sent record can continue with the spans after it.
pub fn export_killed_anywhere_loses_and_repeats_no_span<F: FnMut(&Record) -> Vec<Span>>(
    life: &[Record],
    fold: impl Fn() -> F,
) {
    let whole: Vec<_> = life.iter().flat_map(fold()).collect();
    for killed_after in 0..life.len() {
        let mut sent: Vec<_> = life[..killed_after].iter().flat_map(fold()).collect();
        let mut second = fold();
        for record in life {
            let ended = second(record);
            if record.seq > killed_after as u64 {
                sent.extend(ended);
            }
        }
        assert_eq!(sent, whole, "killed after {killed_after}");
    }
}
