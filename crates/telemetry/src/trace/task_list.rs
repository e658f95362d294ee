//! The spans of the runs of task lists and of their tasks.

use crate::trace::span::{Span, Status};
use muleteer_model::event::trace_context::Context;
use muleteer_model::event::trace_ids;
use muleteer_model::event::{Event, Record};
use muleteer_model::{conversation_events, daemon_events, dispatch_events, spec_run_events};
use serde_json::json;
use std::collections::BTreeMap;

/// The unfinished runs of task lists.
#[derive(Debug, Default)]
pub(super) struct OpenLists(BTreeMap<String, OpenList>);

/// An unfinished run of a task list.
#[derive(Debug)]
struct OpenList {
    span: Span,
    /// By worker.
    tasks: BTreeMap<u32, Span>,
}

impl OpenLists {
    /// Returns the number of unfinished spans.
    pub(super) fn count(&self) -> usize {
        self.0.values().map(|list| 1 + list.tasks.len()).sum()
    }

    /// Returns the spans that this record of a task list ends.
    pub(super) fn apply(&mut self, record: &Record) -> Vec<Span> {
        let at = record.ts;
        let mut done = vec![];
        match &record.entry.event {
            Event::TaskListStarted(started) => {
                if let Some(context) =
                    started.trace.as_deref().and_then(Context::parse).filter(|of| of.sampled)
                {
                    let span = Span::new(
                        context,
                        trace_ids::task_list(&started.list),
                        "task list".into(),
                        at,
                    )
                    .with([
                        ("muleteer.task_list.id", json!(started.list)),
                        ("muleteer.project", json!(started.root)),
                        ("muleteer.role", json!(started.role)),
                        ("muleteer.backend", json!(started.backend)),
                        ("muleteer.by", json!(started.by)),
                    ]);
                    self.0.insert(started.list.clone(), OpenList { span, tasks: BTreeMap::new() });
                }
            }
            Event::TaskBegun { list, worker, task, dispatch, resumed, .. } => {
                if let Some(open) = self.0.get_mut(list) {
                    let id = trace_ids::task(list, dispatch);
                    let within =
                        Context { trace: open.span.trace, span: open.span.id, sampled: true };
                    let before = open.tasks.remove(worker);
                    // The next daemon may repeat the event; it is the same span.
                    let span = match before {
                        Some(span) if span.id == id => span,
                        other => {
                            done.extend(other.map(|span| span.cut_short(at)));
                            Span::new(within, id, "task".into(), at).with([
                                ("muleteer.task.id", json!(task)),
                                ("muleteer.worker", json!(worker)),
                                ("muleteer.dispatch.id", json!(dispatch.as_str())),
                                ("muleteer.resumed", json!(resumed)),
                            ])
                        }
                    };
                    open.tasks.insert(*worker, span);
                }
            }
            Event::TaskJudged { list, worker, verdict, .. } => {
                if let Some(span) = self.0.get_mut(list).and_then(|open| open.tasks.get_mut(worker))
                {
                    let kind = json!(verdict.category);
                    span.note(
                        "judged",
                        at,
                        vec![("muleteer.passed", json!(verdict.passed)), ("error.type", kind)],
                    );
                }
            }
            Event::TaskEnded { list, worker, status, .. } => {
                if let Some(span) = self.0.get_mut(list).and_then(|open| open.tasks.remove(worker))
                {
                    let outcome = match status.as_str() {
                        "completed" => Status::Ok,
                        other => Status::Error(other.into()),
                    };
                    done.push(span.with([("muleteer.state", json!(status))]).ended(at, outcome));
                }
            }
            Event::TaskListFinished { list, finished, .. } => {
                if let Some(OpenList { span, tasks }) = self.0.remove(list) {
                    done.extend(tasks.into_values().map(|task| task.cut_short(at)));
                    let outcome = match (finished.status.as_str(), &finished.code) {
                        ("completed", _) => Status::Ok,
                        (_, Some(code)) => Status::Error(code.clone()),
                        (other, None) => Status::Error(other.into()),
                    };
                    done.push(
                        span.with([("muleteer.state", json!(finished.status))]).ended(at, outcome),
                    );
                }
            }
            Event::TaskListSession { .. } | Event::TaskListStopping { .. } => {}
            conversation_events!()
            | daemon_events!()
            | dispatch_events!()
            | spec_run_events!()
            | Event::Unknown => {}
        }
        done
    }
}
