//! Back-pressure of a model API: when one dispatch meets a limit or an overload, others that share
//! it hold back.
//!
//! ```text
//!   places
//!     8 ┤■■■■■■                                    ■■■■ no pressure any more
//!       │      │ struck: half of those at work    ■
//!     4 ┤      │                        ■■■■   one more every STEP
//!       │      │     nobody starts      │
//!     0 ┤      └────────────────────────┘ until
//! ```
//!
//! Running agents are left alone: their CLIs know how to wait. The state is folded from the events,
//! so a daemon that restarts holds back as its predecessor did.

use crate::admission::api_error::{LONGEST_WAIT, Trouble, after};
use crate::dispatch::Dispatch;
use crate::event::{Event, Record};
use crate::{attempt_events, daemon_events, intervention_events, output_events};
use crate::{conversation_events, spec_run_events, task_list_events, tool_events};
use crate::{permission_events, prompt_events, result_events, session_events};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The wait after a strike without a time.
const SHORTEST: Duration = Duration::from_secs(2);
/// The interval at which one more slot opens, after the wait.
const STEP: SignedDuration = SignedDuration::from_secs(15);
/// With so many slots there is no pressure left.
const FREE: u32 = 1000;
/// The most channels. Their names come from what agents are given, so they must not fill the
/// memory.
const MOST_CHANNELS: usize = 1000;

/// The state of one channel under pressure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    pub trouble: Trouble,
    pub status: Option<u16>,
    /// The time before which no dispatch starts.
    pub until: Timestamp,
    /// The number of dispatches that may run at `until`.
    pub places: u32,
}

/// The pressures by channel; see [`channel`].
pub type Pressures = BTreeMap<String, Pressure>;

/// Returns the channel that shares the limits of a dispatch.
pub fn channel(d: &Dispatch) -> &str {
    match d.created.api.channel.as_str() {
        "" => &d.created.backend,
        channel => channel,
    }
}

/// Returns the trouble that a record reports, and the time until which the API should be left
/// alone.
pub fn strike(record: &Record) -> Option<(Trouble, Option<u16>, Timestamp)> {
    let wait = |wait| after(record.ts, wait);
    let (trouble, status, until) = match &record.entry.event {
        Event::ApiRetried { status, delay_s, .. } => (
            Trouble::of_status(*status),
            *status,
            wait(crate::admission::api_error::wait(*delay_s)),
        ),
        Event::RateLimited { until, wait_s, .. } => (
            Trouble::RateLimit,
            None,
            until.unwrap_or_else(|| wait(crate::admission::api_error::wait(*wait_s))),
        ),
        Event::ApiWaiting { trouble, status, until, .. } => (*trouble, *status, *until),
        // Earlier events have reported that trouble.
        Event::ApiGivenUp { .. } => return None,
        attempt_events!()
        | prompt_events!()
        | session_events!()
        | output_events!()
        | tool_events!()
        | permission_events!()
        | result_events!()
        | intervention_events!()
        | daemon_events!()
        | spec_run_events!()
        | conversation_events!()
        | task_list_events!()
        | Event::Unknown => return None,
    };
    trouble
        .presses()
        .then(|| (trouble, status, until.clamp(wait(SHORTEST), wait(LONGEST_WAIT))))
}

/// Folds a strike in. `at_work` counts the dispatches of the channel that hold a slot, with the one
/// that was struck.
pub fn fold(
    pressures: &mut Pressures,
    channel: &str,
    (trouble, status, until): (Trouble, Option<u16>, Timestamp),
    at_work: u32,
    now: Timestamp,
) {
    if let Some(known) = pressures.get_mut(channel)
        && now <= known.until
    {
        // One outage strikes all running dispatches: that counts as one strike.
        (known.trouble, known.status, known.until) =
            (trouble, status.or(known.status), known.until.max(until));
        return;
    }
    pressures.retain(|_, pressure| pressure.places_at(now) < FREE);
    let allowed = pressures.get(channel).map_or(FREE, |known| known.places_at(now));
    if pressures.len() < MOST_CHANNELS || pressures.contains_key(channel) {
        let places = (at_work.min(allowed) / 2).max(1);
        pressures.insert(channel.to_string(), Pressure { trouble, status, until, places });
    }
}

impl Pressure {
    /// Returns how many dispatches may run at `now`.
    pub fn places_at(&self, now: Timestamp) -> u32 {
        if now < self.until {
            return 0;
        }
        let steps = now.duration_since(self.until).as_secs() / STEP.as_secs();
        self.places.saturating_add(u32::try_from(steps).unwrap_or(FREE))
    }

    /// Returns when there will be a slot beside `at_work` others.
    pub fn place_for(&self, at_work: u32) -> Timestamp {
        let more = (at_work + 1).saturating_sub(self.places);
        self.until
            .checked_add(STEP.saturating_mul(i32::try_from(more).unwrap_or(i32::MAX)))
            .unwrap_or(Timestamp::MAX)
    }

    /// Describes the pressure for `status` and `tree`.
    pub fn describe(&self, channel: &str, now: Timestamp) -> String {
        let what = self.trouble.describe(self.status);
        match self.places_at(now) {
            0 => format!("no calls to the model API ({channel}) until {:.0}: {what}", self.until),
            places => format!(
                "the model API ({channel}) was {what}: at most {places} agents at a \
                               time for now"
            ),
        }
    }
}

#[cfg(test)]
mod tests;
