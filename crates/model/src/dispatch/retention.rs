//! Files, clones and journals of ended dispatches that may be removed or archived.

use crate::config::Span;
use crate::dispatch::fleet::Fleet;
use crate::dispatch::{Dispatch, Phase};
use crate::event::FinalState;
use crate::event::id::DispatchId;
use jiff::{SignedDuration, Timestamp};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Whether a dispatch ended at least `age` ago, so that the files of its agent may be removed.
/// `at_work` tells whether a run is active: it may not have read its agents' last output yet.
///
/// A dispatch whose files were removed before is included, because that removal may have been
/// interrupted.
pub fn is_removable(
    dispatch: &Dispatch,
    now: Timestamp,
    age: SignedDuration,
    at_work: impl Fn(&str) -> bool,
) -> bool {
    let old = dispatch.is_finished() && now.duration_since(dispatch.since) >= age;
    old && !dispatch.created.by.strip_prefix("run/").is_some_and(at_work)
}

/// The reason why the clone and the journal of a dispatch stay.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Keep {
    #[error("the dispatch is {0}")]
    Unfinished(&'static str),
    #[error("run {0} is active")]
    ActiveRun(String),
    #[error("dispatch {0} works in it")]
    InUse(DispatchId),
    #[error("the dispatch ended less than {0} ago")]
    Recent(Span),
    /// A person has to look at it first.
    #[error("the dispatch ended as {state}{}", reason_of(.reason))]
    Flagged { state: &'static str, reason: String },
}

/// The dispatches whose clones and journals may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// They ended at least this long ago.
    pub age: SignedDuration,
    /// The terms include dispatches that stalled, failed, were blocked or did only a part.
    pub failed: bool,
}

/// Checks whether the clone and the journal of a dispatch may go. `at_work` tells whether a run is
/// active.
///
/// # Errors
/// The reason why they stay.
pub fn check(
    dispatch: &Dispatch,
    now: Timestamp,
    terms: Terms,
    at_work: impl Fn(&str) -> bool,
) -> Result<(), Keep> {
    let Phase::Finished { state } = &dispatch.phase else {
        return Err(Keep::Unfinished(dispatch.state()));
    };
    if let Some(run) = dispatch.created.by.strip_prefix("run/").filter(|run| at_work(run)) {
        return Err(Keep::ActiveRun(run.into()));
    }
    let is_flagged = match state {
        FinalState::Success | FinalState::Killed => false,
        FinalState::Partial | FinalState::Failed | FinalState::Blocked | FinalState::Stalled => {
            true
        }
    };
    if is_flagged && !terms.failed {
        let reason = dispatch.reason.clone().unwrap_or_default();
        return Err(Keep::Flagged { state: state.as_str(), reason });
    }
    if now.duration_since(dispatch.since) < terms.age {
        return Err(Keep::Recent(Span(terms.age.unsigned_abs())));
    }
    Ok(())
}

/// Returns a dispatch other than `owner` that has not ended and works in the clone.
pub fn user_of<'a>(fleet: &'a Fleet, owner: &DispatchId, clone: &Path) -> Option<&'a DispatchId> {
    let is_in = |dispatch: &&Arc<Dispatch>| {
        dispatch.id != *owner && Path::new(dispatch.created.directory()).starts_with(clone)
    };
    fleet.unfinished().find(is_in).map(|dispatch| &dispatch.id)
}

/// Returns the pause between two passes of the retention: short ages need short pauses.
pub fn pause(age: Span) -> Duration {
    (age.as_duration() / 20).clamp(Duration::from_secs(5), Duration::from_secs(3600))
}

/// Returns the reason of a dispatch's end, in one line and cut.
fn reason_of(reason: &str) -> String {
    match reason.lines().next().map(str::trim) {
        None | Some("") => String::new(),
        Some(line) => format!(": {}", crate::agent::event::cut(line, 200)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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

    fn ended(fleet: &mut Fleet, id: &str, state: FinalState, reason: &str) -> Arc<Dispatch> {
        let dispatch_id = DispatchId::try_from(id.to_string()).expect("an id");
        let event = Event::DispatchFinished { state, reason: reason.into(), result: None };
        let entry = Entry {
            id: format!("{id}/end"),
            dispatch_id: Some(dispatch_id.clone()),
            at: None,
            more: false,
            event,
        };
        let ts = Timestamp::from_second(100).expect("a time");
        fleet.apply(&Record { v: crate::event::VERSION, seq: 1000, ts, entry });
        fleet.get(&dispatch_id).expect("it is there").clone()
    }

    #[test]
    fn clone_goes_after_success_and_kill_and_stays_after_a_failure() {
        let now = Timestamp::from_second(200).expect("a time");
        let terms = Terms { age: SignedDuration::from_secs(60), failed: false };
        for (state, why) in [
            (FinalState::Success, None),
            (FinalState::Killed, None),
            (FinalState::Failed, Some("the dispatch ended as failed: exit 1")),
            (FinalState::Partial, Some("the dispatch ended as partial: exit 1")),
            (FinalState::Blocked, Some("the dispatch ended as blocked: exit 1")),
            (FinalState::Stalled, Some("the dispatch ended as stalled: exit 1")),
        ] {
            let mut fleet = fleet(&[("aaaa", "operator", None)]);
            let dispatch = ended(&mut fleet, "aaaa", state, "exit 1\nmore");
            let kept = check(&dispatch, now, terms, |_| false).err().map(|why| why.to_string());
            assert_eq!(kept.as_deref(), why, "{state:?}");
            let all = Terms { failed: true, ..terms };
            assert_eq!(check(&dispatch, now, all, |_| false), Ok(()), "{state:?}");
            let young = Terms { age: SignedDuration::from_secs(101), ..all };
            let kept = check(&dispatch, now, young, |_| false).expect_err("it is young");
            assert_eq!(kept, Keep::Recent(Span::from_secs(101)));
        }
    }

    #[test]
    fn clone_of_an_unfinished_dispatch_or_an_active_run_stays() {
        let now = Timestamp::from_second(200).expect("a time");
        let terms = Terms { age: SignedDuration::ZERO, failed: true };
        let fleet = fleet(&[("aaaa", "operator", None), ("cccc", "run/live", Some(100))]);
        let kept: Vec<_> = fleet
            .iter()
            .map(|dispatch| check(dispatch, now, terms, |run| run == "live").expect_err("kept"))
            .collect();
        assert_eq!(kept, [Keep::Unfinished("queued"), Keep::ActiveRun("live".into())]);
    }

    #[test]
    fn clone_in_which_a_child_works_is_in_use() {
        let fleet = fleet(&[("aaaa", "operator", Some(100)), ("bbbb", "agent/aaaa", None)]);
        let [owner, child] = &fleet.iter().collect::<Vec<_>>()[..] else { panic!("two of them") };
        let dir = Path::new(child.created.directory());
        assert_eq!(user_of(&fleet, &owner.id, dir), Some(&child.id));
        assert_eq!(user_of(&fleet, &child.id, dir), None, "its owner may be the one");
        assert_eq!(user_of(&fleet, &owner.id, &dir.join("below")), None);
    }

    #[test]
    fn pause_of_the_retention_follows_its_age() {
        let pause = |seconds| pause(Span::from_secs(seconds)).as_secs();
        assert_eq!([pause(0), pause(200), pause(7 * 86_400)], [5, 10, 3600]);
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
            let age = SignedDuration::from_secs(60);
            fleet
                .iter()
                .filter(|dispatch| is_removable(dispatch, now, age, |run| run == "live"))
                .map(|dispatch| dispatch.id.as_str())
                .collect()
        };
        assert!(may(159).is_empty());
        assert_eq!(may(160), ["aaaa", "dddd"]);
        assert_eq!(may(161), ["aaaa", "dddd", "eeee"]);
        assert!(may(0).is_empty(), "a clock that was set back makes nobody old");
    }
}
