//! The settings of notifications.

use crate::notify::matter::Kind;
use jiff::civil::Time;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, Zoned};
use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

/// When a person is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    pub kinds: BTreeSet<Kind>,
    /// A matter that is settled within this time needs no notification.
    pub dwell: Duration,
    /// The least time between two notifications. Matters that become due meanwhile share the next.
    pub cool_down: Duration,
    pub quiet: Option<QuietHours>,
    /// The zone of the quiet hours.
    pub zone: TimeZone,
}

/// The hours of each day in which nobody is told: `22:00-07:00`, in local time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuietHours {
    begin: Time,
    end: Time,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` are no hours: write `22:00-07:00`")]
pub struct BadHours(pub String);

impl FromStr for QuietHours {
    type Err = BadHours;

    fn from_str(text: &str) -> Result<Self, BadHours> {
        let bad = || BadHours(text.chars().take(40).collect());
        let (begin, end) = text.split_once('-').ok_or_else(bad)?;
        let time = |text: &str| {
            let (hour, minute) = text.trim().split_once(':')?;
            let is_short = hour.len() <= 2 && minute.len() == 2;
            Time::new(hour.parse().ok()?, minute.parse().ok()?, 0, 0).ok().filter(|_| is_short)
        };
        let (begin, end) = (time(begin).ok_or_else(bad)?, time(end).ok_or_else(bad)?);
        if begin == end {
            return Err(bad());
        }
        Ok(Self { begin, end })
    }
}

impl QuietHours {
    /// Returns when the quiet hours end, if it is quiet at `now`.
    ///
    /// The hours follow the wall clock of the zone: a night in which the clock changes is an hour
    /// longer or shorter.
    pub fn until(&self, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let local = now.to_zoned(zone.clone());
        let time = local.time();
        let is_quiet = match self.begin < self.end {
            true => (self.begin..self.end).contains(&time),
            false => time >= self.begin || time < self.end,
        };
        if !is_quiet {
            return None;
        }
        let end = self.next_end(&local)?;
        // A clock that was set back can repeat the end; then it is quiet until the second one.
        Some(end.timestamp().max(now + SignedDuration::from_secs(1)))
    }

    fn next_end(&self, local: &Zoned) -> Option<Zoned> {
        let date = match local.time() < self.end {
            true => local.date(),
            false => local.date().tomorrow().ok()?,
        };
        date.to_datetime(self.end).to_zoned(local.time_zone().clone()).ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn hours_are_two_different_times() {
        for good in ["22:00-07:00", " 9:30 - 12:00 ", "00:00-23:59"] {
            assert!(good.parse::<QuietHours>().is_ok(), "{good}");
        }
        for bad in ["", "22-7", "22:00", "24:00-07:00", "07:00-07:00", "22:0-7:00", "a:00-b:00"] {
            assert_eq!(bad.parse::<QuietHours>(), Err(BadHours(bad.into())), "{bad}");
        }
    }

    #[test]
    fn quiet_hours_follow_the_zone_and_pass_midnight() {
        let berlin = TimeZone::get("Europe/Berlin").unwrap();
        let night: QuietHours = "22:00-07:00".parse().unwrap();
        for (now, until) in [
            // 21:59, 22:00, 23:30, 06:59 and 07:00 of a winter's night in Berlin.
            ("2026-01-10T20:59:59Z", None),
            ("2026-01-10T21:00:00Z", Some("2026-01-11T06:00:00Z")),
            ("2026-01-10T22:30:00Z", Some("2026-01-11T06:00:00Z")),
            ("2026-01-11T05:59:59Z", Some("2026-01-11T06:00:00Z")),
            ("2026-01-11T06:00:00Z", None),
            // The nights in which the clock is set forward and back.
            ("2026-03-28T22:00:00Z", Some("2026-03-29T05:00:00Z")),
            ("2026-10-24T21:00:00Z", Some("2026-10-25T06:00:00Z")),
        ] {
            assert_eq!(night.until(at(now), &berlin), until.map(at), "{now}");
        }
        let noon: QuietHours = "12:00-13:00".parse().unwrap();
        assert_eq!(noon.until(at("2026-01-10T11:59:59Z"), &TimeZone::UTC), None);
        let until = noon.until(at("2026-01-10T12:00:00Z"), &TimeZone::UTC);
        assert_eq!(until, Some(at("2026-01-10T13:00:00Z")));
    }

    /// New York skips 02:00 to 03:00 on this day.
    #[test]
    fn quiet_hours_end_in_a_gap_of_the_clock() {
        let zone = TimeZone::get("America/New_York").unwrap();
        let hours: QuietHours = "22:00-02:30".parse().unwrap();
        let until = hours.until(at("2026-03-08T06:00:00Z"), &zone).unwrap();
        assert_eq!(until, at("2026-03-08T07:30:00Z"));
        assert_eq!(hours.until(until, &zone), None);
    }
}
