//! A sample of every event, and the page docs/events.md that is generated from the types.

mod conversation;
mod dispatch;
mod page;
mod spec_run;
mod task_list;

pub use page::events_doc;

use jiff::Timestamp;
use muleteer_model::config::InForce;
use muleteer_model::event::groups::Group;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event, Position, Record, VERSION};
use muleteer_model::setting::SettingChanged;

/// Returns one record of every event, with all optional fields. A test compares them with the
/// variants of [`Event`].
pub fn samples() -> Vec<Record> {
    let id = id();
    let records = (1..).zip(events()).map(|(seq, event)| {
        let name = event.name();
        let of_dispatch = event.group() != Group::Daemon;
        let read = matches!(
            event,
            Event::ToolCalled { .. } | Event::UsageRecorded { .. } | Event::OutputRead {}
        );
        let at = Position { epoch: 1, offset: 4096 + seq, skip: 17 };
        let entry = Entry {
            id: format!("{name}-{seq}"),
            dispatch_id: of_dispatch.then(|| id.clone()),
            at: read.then_some(at),
            more: matches!(event, Event::ToolCalled { .. }),
            event,
        };
        Record { v: VERSION, seq, ts: time(), entry }
    });
    records.collect()
}

fn events() -> Vec<Event> {
    [
        daemon,
        dispatch::all,
        spec_run::all,
        task_list::all,
        conversation::all,
        conversation::adapters,
        conversation::schedules,
        conversation::meetings,
        conversation::questions,
    ]
    .into_iter()
    .flat_map(|group| group())
    .collect()
}

/// Returns the events of the daemon.
fn daemon() -> Vec<Event> {
    vec![
        Event::DaemonStarted {
            pid: 4711,
            generation: 3,
            version: "0.1.0".into(),
            boot_id: "3c8f1a52".into(),
            settings: Some(InForce {
                max_agents: 8,
                max_depth: 2,
                output_mib: 64,
                clean_after_s: None,
                in_memory: None,
                events_s: None,
                compress_after_s: None,
            }),
        },
        Event::DaemonStopping { agents: "keep".into(), alive: 2, lease_s: 28800 },
        Event::LogRecovered { cut_bytes: 120 },
        Event::ActorRestarted {
            actor: "journal".into(),
            reason: "panicked: index out of bounds".into(),
            restarts_in_window: 1,
            delay_ms: 100,
        },
        Event::ActorEscalated { actor: "link".into(), reason: "5 restarts in 60 s".into() },
        Event::SettingChanged(Box::new(SettingChanged {
            key: "models.default".into(),
            value: Some("claude-opus-4-6".into()),
            by: "anna".into(),
            adapter: "slack".into(),
        })),
        Event::Fault { what: "watcher".into(), message: "inotify limit reached".into() },
    ]
}

/// Returns the dispatch of the samples.
fn id() -> DispatchId {
    DispatchId::from_random([1, 2, 3, 4, 5])
}

fn time() -> Timestamp {
    Timestamp::from_millisecond(1_767_261_600_250).unwrap_or_default()
}

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
