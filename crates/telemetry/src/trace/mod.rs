//! Spans from events: the history of a dispatch as a tree in time.
//!
//! ```text
//! muleteer spawn            the CLI command, if it is traced itself
//! └─ dispatch ROLE          from creation to end; restarts, stalls and limits are its events
//!    └─ attempt N           one process of the agent; parent of the agent's spans (TRACEPARENT)
//!       ├─ start agent      until the shim has released it
//!       └─ invoke_agent ROLE    a turn
//!          └─ execute_tool NAME    a subagent's tools are below the call that runs it
//!
//! muleteer tasks run
//! └─ task list              one run of it
//!    └─ task                from its claim to its end
//!       └─ dispatch ROLE    as above
//! ```
//!
//! [`run`](crate::run) has the spans of a spec run above its dispatches.
//!
//! Spans must not contain what agents write. A failed span has a fixed word (`error.type`). The
//! reason, which may quote an agent, stays in the journal.

mod dispatch;
mod span;
mod task_list;

use crate::trace::dispatch::Open;
use crate::trace::task_list::OpenLists;
use muleteer_model::agent::backend::TraitsOf;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::trace_context::Context;
use muleteer_model::event::{Event, Record};
use std::collections::BTreeMap;

pub use span::{Span, SpanEvent, Status};

/// Folds records into spans. Each span is returned once, when it has ended.
#[derive(Debug, Default)]
pub struct Tracer {
    traits: TraitsOf,
    dispatches: BTreeMap<DispatchId, Open>,
    task_lists: OpenLists,
}

impl Tracer {
    /// Returns a tracer that knows the traits of the backends.
    pub fn new(traits: TraitsOf) -> Self {
        Self { traits, ..Self::default() }
    }

    /// Returns the spans that this record ends. Dispatches without a trace context make none.
    pub fn apply(&mut self, record: &Record) -> Vec<Span> {
        let Some(id) = &record.entry.dispatch_id else { return self.task_lists.apply(record) };
        if let Event::DispatchCreated(created) = &record.entry.event {
            if let Some(context) =
                created.trace.as_deref().and_then(Context::parse).filter(|context| context.sampled)
            {
                let traits = self.traits.get(&created.backend);
                self.dispatches.entry(id.clone()).or_insert_with(|| {
                    Open::new(id, ((**created).clone(), traits), context, record.ts)
                });
            }
            return vec![];
        }
        let Some(open) = self.dispatches.get_mut(id) else { return vec![] };
        open.apply(id, record)
    }

    /// Returns the number of unfinished spans.
    pub fn open(&self) -> usize {
        self.dispatches.values().map(Open::count).sum::<usize>() + self.task_lists.count()
    }
}

#[cfg(test)]
mod tests;
