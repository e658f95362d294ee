//! `close`: ends a dispatch that has nothing more to do, for good.

use crate::dispatch::{Dispatch, Phase};
use crate::event::{Event, FinalState};

/// The reason of a dispatch that was closed (contract.md, "Verbs").
pub const CLOSED: &str = "closed";

/// The way to close a dispatch in its present state.
#[derive(Debug, Clone, PartialEq)]
pub enum Closing {
    /// Its agent has ended as stalled, or its conversation owes nothing: these events end the
    /// dispatch for good.
    Events(Vec<Event>),
    /// Its agent is alive and waits for a message: it is killed with the reason [`CLOSED`].
    Kill,
    /// It is at work, or will be: only a kill ends it.
    AtWork,
    /// It has ended in another state, which stays.
    Ended,
}

/// Decides how `by` closes a dispatch.
pub fn close(d: &Dispatch, by: &str) -> Closing {
    let talks = d.created.thread().is_some();
    match &d.phase {
        Phase::Finished { state: FinalState::Stalled } => Closing::Events(closed(by)),
        Phase::Finished { state: FinalState::Success | FinalState::Partial } if talks => {
            Closing::Events(closed(by))
        }
        Phase::Finished { .. } => Closing::Ended,
        _ if d.is_idle() || d.holds_idle() => Closing::Kill,
        _ => Closing::AtWork,
    }
}

fn closed(by: &str) -> Vec<Event> {
    vec![
        Event::KillRequested { reason: CLOSED.into(), by: by.into() },
        // Without a result, the fold keeps the one that the agent gave.
        Event::DispatchFinished { state: FinalState::Killed, reason: CLOSED.into(), result: None },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::tests::created;
    use crate::event::id::DispatchId;
    use crate::event::{Entry, Record, VERSION};
    use jiff::Timestamp;

    fn ended(state: FinalState) -> Dispatch {
        let id = DispatchId::try_from("abcd2345".to_string()).expect("an id");
        let mut dispatch = Dispatch::new(id, created(), Timestamp::UNIX_EPOCH);
        dispatch.phase = Phase::Finished { state };
        dispatch
    }

    fn apply(dispatch: &mut Dispatch, event: Event) {
        let entry = Entry {
            id: "x".into(),
            dispatch_id: Some(dispatch.id.clone()),
            at: None,
            more: false,
            event,
        };
        dispatch.apply(&Record { v: VERSION, seq: 9, ts: Timestamp::UNIX_EPOCH, entry });
    }

    #[test]
    fn close_of_a_stalled_dispatch_makes_it_killed_for_good() {
        let mut dispatch = ended(FinalState::Stalled);
        let Closing::Events(events) = close(&dispatch, "operator") else { panic!("no events") };
        events.into_iter().for_each(|event| apply(&mut dispatch, event));
        assert_eq!((dispatch.state(), dispatch.reason.as_deref()), ("killed", Some("closed")));
        assert!(dispatch.was_killed_for_good());
        assert_eq!(close(&dispatch, "operator"), Closing::Ended);
    }

    #[test]
    fn close_leaves_other_endings_and_refuses_a_dispatch_at_work() {
        for state in [FinalState::Success, FinalState::Partial, FinalState::Killed] {
            assert_eq!(close(&ended(state), "operator"), Closing::Ended, "{state:?}");
        }
        let mut queued = ended(FinalState::Success);
        queued.phase = Phase::Queued;
        assert_eq!(close(&queued, "operator"), Closing::AtWork);
    }

    #[test]
    fn idle_dispatch_of_a_thread_is_closed_for_good() {
        let mut dispatch = ended(FinalState::Success);
        dispatch.created = std::sync::Arc::new(crate::event::Created {
            by: format!("{}thrdabcd", crate::conversation::BY),
            ..created()
        });
        assert_eq!(dispatch.state(), "idle");
        let Closing::Events(events) = close(&dispatch, "operator") else { panic!("no events") };
        events.into_iter().for_each(|event| apply(&mut dispatch, event));
        assert_eq!(dispatch.state(), "killed");
        assert!(dispatch.was_killed_for_good());
    }
}
