//! Files of ended dispatches that may be removed.

use crate::dispatch::Dispatch;
use crate::dispatch::fleet::Fleet;
use jiff::{SignedDuration, Timestamp};
use std::sync::Arc;

/// Returns the dispatches that ended at least `age` ago, oldest first; the files of their agents
/// may be removed. `at_work` tells whether a run is active: it may not have read its agents' last
/// output yet.
///
/// A dispatch whose files were removed before is included, because that removal may have been
/// interrupted.
pub fn removable(
    fleet: &Fleet,
    now: Timestamp,
    age: SignedDuration,
    at_work: impl Fn(&str) -> bool,
) -> impl Iterator<Item = &Arc<Dispatch>> {
    fleet.iter().filter(move |dispatch| {
        let old = dispatch.is_finished() && now.duration_since(dispatch.since) >= age;
        old && !dispatch.created.by.strip_prefix("run/").is_some_and(&at_work)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::id::DispatchId;
    use crate::event::{Created, Entry, Event, FinalState, Record};

    fn fleet(made: &[(&str, &str, Option<i64>)]) -> Fleet {
        let mut fleet = Fleet::default();
        let mut seq = 0;
        let mut tell = |id: &str, second: i64, event: Event| {
            seq += 1;
            let dispatch_id = Some(DispatchId::try_from(id.to_string()).expect("an id"));
            let entry =
                Entry { id: format!("{id}/{seq}"), dispatch_id, at: None, more: false, event };
            fleet.apply(&Record {
                v: crate::event::VERSION,
                seq,
                ts: Timestamp::from_second(second).expect("a time"),
                entry,
            });
        };
        for (id, by, ended) in made {
            let created = Created { by: (*by).into(), ..crate::dispatch::tests::created() };
            tell(id, 0, Event::DispatchCreated(Box::new(created)));
            if let Some(second) = ended {
                let state = FinalState::Success;
                tell(
                    id,
                    *second,
                    Event::DispatchFinished { state, reason: String::new(), result: None },
                );
            }
        }
        fleet
    }

    #[test]
    fn prune_selects_old_dispatches_except_those_of_running_runs() {
        let fleet = fleet(&[
            ("aaaa", "operator", Some(100)),
            ("bbbb", "operator", None),
            ("cccc", "run/live", Some(100)),
            ("dddd", "run/over", Some(100)),
            ("eeee", "agent/aaaa", Some(101)),
        ]);
        let may = |now: i64| -> Vec<&str> {
            let now = Timestamp::from_second(now).expect("a time");
            removable(&fleet, now, SignedDuration::from_secs(60), |run| run == "live")
                .map(|dispatch| dispatch.id.as_str())
                .collect()
        };
        assert!(may(159).is_empty());
        assert_eq!(may(160), ["aaaa", "dddd"]);
        assert_eq!(may(161), ["aaaa", "dddd", "eeee"]);
        assert!(may(0).is_empty(), "a clock that was set back makes nobody old");
    }
}
