//! The next events of schedules, as pure functions of the configuration, the folded state and the
//! wall clock.

use crate::conversation::fold::Conversations;
use crate::conversation::schedule::event::{ScheduleDue, ScheduleSet};
use crate::conversation::schedule::fold::Followed;
use crate::conversation::schedule::pattern::Pattern;
use crate::conversation::schedule::{OnBusy, PREFIX, Schedule, key};
use crate::event::Event;
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;
use std::time::Duration;

/// A clock that goes back by less than this catches up before the next start. After a larger step
/// the schedules are followed from the new time on: otherwise a clock that was in the wrong year
/// for a moment would end them all.
const SET_BACK: SignedDuration = SignedDuration::from_hours(1);

/// The pause after the first failure, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Returns the pause after `failures` tries in a row that failed for a passing reason.
pub fn pause(failures: u32) -> Duration {
    let doubled = 1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE)
}

/// Returns the events that are due now: at most one for each schedule.
pub fn next(
    configured: &BTreeMap<String, Schedule>,
    state: &Conversations,
    now: Timestamp,
) -> Vec<Event> {
    let known = state.schedules();
    let mut events: Vec<_> =
        gone(configured, state).map(|name| unfollowed(name, now, true)).collect();
    for (name, schedule) in configured {
        events.extend(of(name, schedule, known.get(name), state, now));
    }
    events
}

/// Whether the configuration lacks a schedule that is followed. It may be in the middle of an edit.
pub fn lacks(configured: &BTreeMap<String, Schedule>, state: &Conversations) -> bool {
    gone(configured, state).next().is_some()
}

fn gone<'a>(
    configured: &'a BTreeMap<String, Schedule>,
    state: &'a Conversations,
) -> impl Iterator<Item = &'a str> {
    let known = state.schedules().iter();
    let is_gone = |name: &str, removed: bool| !configured.contains_key(name) && !removed;
    known
        .filter(move |(name, followed)| is_gone(name, followed.removed))
        .map(|(name, _)| name)
}

fn of(
    name: &str,
    schedule: &Schedule,
    known: Option<&Followed>,
    state: &Conversations,
    now: Timestamp,
) -> Option<Event> {
    let times = (schedule.cron.clone(), schedule.time_zone.clone());
    if !schedule.enabled {
        let is_followed = known.is_some_and(|it| it.times.is_some());
        return is_followed.then(|| unfollowed(name, now, false));
    }
    let known = known.filter(|it| it.times.as_ref() == Some(&times) && !it.removed);
    let Some(known) = known.filter(|it| it.since.duration_since(now) <= SET_BACK) else {
        // A new time must not be due for the past.
        return Some(Event::ScheduleSet(Box::new(ScheduleSet {
            schedule: name.into(),
            cron: Some(times.0),
            time_zone: times.1,
            since: now,
            removed: false,
        })));
    };
    if known.pending.is_some() {
        return None;
    }
    let pattern = Pattern::new(&schedule.cron, schedule.time_zone.as_deref()).ok()?;
    // Of all moments that were missed, only the newest counts.
    let due = pattern.latest(now).filter(|due| *due > known.since)?;
    let skipped = match schedule.on_busy {
        OnBusy::Skip => busy(name, known, state),
        OnBusy::Queue => None,
    };
    Some(Event::ScheduleDue(Box::new(ScheduleDue {
        skipped,
        ..start(name, schedule, key(name, due), due)
    })))
}

/// Returns the start of a schedule at a moment.
pub fn start(name: &str, schedule: &Schedule, key: String, due: Timestamp) -> ScheduleDue {
    ScheduleDue {
        schedule: name.into(),
        due,
        key,
        thread: schedule.thread.clone(),
        role: schedule.role.clone(),
        project: schedule.project.clone(),
        backend: schedule.backend.clone(),
        prompt: schedule.prompt.clone(),
        by: None,
        skipped: None,
    }
}

/// Returns why an earlier start is not over, for people. A message that is not in memory is over.
fn busy(name: &str, known: &Followed, state: &Conversations) -> Option<String> {
    let thread = state.get(known.last.as_ref()?.thread.as_deref()?)?;
    let of_schedule = format!("{PREFIX}{name}/");
    let is_earlier = |key: &String| key.starts_with(&of_schedule);
    let open = thread.open().find(|open| open.key.as_ref().is_some_and(is_earlier))?;
    Some(format!("the message {} of an earlier start has no answer yet", open.id))
}

fn unfollowed(name: &str, now: Timestamp, removed: bool) -> Event {
    Event::ScheduleSet(Box::new(ScheduleSet {
        schedule: name.into(),
        cron: None,
        time_zone: None,
        since: now,
        removed,
    }))
}

/// Returns the next due moment of any schedule, after which [`next`] may have events.
pub fn wake(
    configured: &BTreeMap<String, Schedule>,
    state: &Conversations,
    now: Timestamp,
) -> Option<Timestamp> {
    let enabled = configured.iter().filter(|(_, schedule)| schedule.enabled);
    enabled.filter_map(|(name, schedule)| next_due(name, schedule, state, now)).min()
}

/// Returns the next due moment of a schedule; `None` if none comes.
pub fn next_due(
    name: &str,
    schedule: &Schedule,
    state: &Conversations,
    now: Timestamp,
) -> Option<Timestamp> {
    let pattern = Pattern::new(&schedule.cron, schedule.time_zone.as_deref()).ok()?;
    let since = state.schedules().get(name).map_or(now, |known| known.since.max(now));
    pattern.next(since)
}

#[cfg(test)]
mod tests;
