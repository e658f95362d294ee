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
//! Who works already is left alone: its CLI knows how to wait. It is folded from the events, so a
//! daemon that restarts holds back as its predecessor did.

use crate::admission::api_error::{LONGEST_WAIT, Trouble, after};
use crate::dispatch::Dispatch;
use crate::event::{Event, Record};
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;
use std::time::Duration;

/// A strike without a time holds the others back for so long.
const SHORTEST: Duration = Duration::from_secs(2);
/// One more place each, once the time is over.
const STEP: SignedDuration = SignedDuration::from_secs(15);
/// Beyond so many places there is no pressure left to speak of.
const FREE: u32 = 1000;
/// Channels are named after what agents are given: they may not fill our memory.
const MOST_CHANNELS: usize = 1000;

/// One channel under pressure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pressure {
    pub trouble: Trouble,
    pub status: Option<u16>,
    /// Nobody starts before.
    pub until: Timestamp,
    /// How many may be at work at `until`.
    pub places: u32,
}

/// By channel; see [`channel`].
pub type Pressures = BTreeMap<String, Pressure>;

/// What the limits of a dispatch are shared by.
pub fn channel(d: &Dispatch) -> &str {
    match d.created.api.channel.as_str() {
        "" => &d.created.backend,
        channel => channel,
    }
}

/// What a record says about the API: the trouble, and until when it should be left alone.
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
        _ => return None,
    };
    trouble
        .presses()
        .then(|| (trouble, status, until.clamp(wait(SHORTEST), wait(LONGEST_WAIT))))
}

/// Folds a strike in. `at_work`: how many of the channel hold a place, the one that was struck too.
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
        // One outage strikes everybody who is at work: that is one strike.
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
    /// How many may be at work.
    pub fn places_at(&self, now: Timestamp) -> u32 {
        if now < self.until {
            return 0;
        }
        let steps = now.duration_since(self.until).as_secs() / STEP.as_secs();
        self.places.saturating_add(u32::try_from(steps).unwrap_or(FREE))
    }

    /// When there will be a place beside `at_work` others.
    pub fn place_for(&self, at_work: u32) -> Timestamp {
        let more = (at_work + 1).saturating_sub(self.places);
        self.until
            .checked_add(STEP.saturating_mul(i32::try_from(more).unwrap_or(i32::MAX)))
            .unwrap_or(Timestamp::MAX)
    }

    /// For `status` and `tree`.
    pub fn describe(&self, channel: &str, now: Timestamp) -> String {
        let what = self.trouble.describe(self.status);
        match self.places_at(now) {
            0 => format!("the model API ({channel}) is left alone until {:.0}: {what}", self.until),
            places => format!("the model API ({channel}) was {what}: {places} at once for now"),
        }
    }
}

#[cfg(test)]
mod tests;
