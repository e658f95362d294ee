//! The due moments of a cron pattern in a time zone.
//!
//! A moment at a fixed time that the clock skips, when daylight saving time begins, is due at the
//! first moment after the gap. One that the clock repeats, at its end, is due once. Patterns that
//! name no hour (`*/15 * * * *`) go on through both.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// A pattern with its time zone.
#[derive(Debug, Clone)]
pub struct Pattern {
    cron: Cron,
    zone: TimeZone,
}

/// The reason why a pattern cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PatternError {
    #[error("`{pattern}` is no cron pattern: {source}")]
    Malformed { pattern: String, source: croner::errors::CronError },
    #[error("the times of `{0}` never come")]
    Never(String),
    #[error("the time zone is unknown: {0}")]
    Zone(#[source] jiff::Error),
}

/// Returns a time zone by name, or that of the system.
///
/// # Errors
/// The name is unknown.
pub fn zone(name: Option<&str>) -> Result<TimeZone, PatternError> {
    match name {
        Some(name) => TimeZone::get(name).map_err(PatternError::Zone),
        None => Ok(TimeZone::system()),
    }
}

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// The pattern is malformed, or the time zone is unknown.
    pub fn new(cron: &str, time_zone: Option<&str>) -> Result<Self, PatternError> {
        Ok(Self { cron: parse(cron)?, zone: zone(time_zone)? })
    }

    /// Checks a pattern alone. One whose times never come is an error: it would look like a
    /// schedule that works.
    ///
    /// # Errors
    /// The pattern is malformed, or its times never come.
    pub fn check(cron: &str) -> Result<(), PatternError> {
        let pattern = Self { cron: parse(cron)?, zone: TimeZone::UTC };
        let next = pattern.next(Timestamp::UNIX_EPOCH);
        next.map(drop).ok_or_else(|| PatternError::Never(cron.into()))
    }

    /// Returns the first due moment after `after`; `None` if there is none.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let found = self.cron.find_next_occurrence(&self.at(after), false).ok()?;
        whole(&found).filter(|due| *due > after)
    }

    /// Returns the newest due moment up to `now`; `None` if there is none.
    pub fn latest(&self, now: Timestamp) -> Option<Timestamp> {
        let found = self.cron.find_previous_occurrence(&self.at(now), true).ok()?;
        whole(&found).filter(|due| *due <= now)
    }

    fn at(&self, moment: Timestamp) -> Zoned {
        // A fraction of a second is in no pattern.
        let seconds = Timestamp::from_second(moment.as_second()).unwrap_or(moment);
        seconds.to_zoned(self.zone.clone())
    }
}

fn whole(found: &Zoned) -> Option<Timestamp> {
    Timestamp::from_second(found.timestamp().as_second()).ok()
}

fn parse(pattern: &str) -> Result<Cron, PatternError> {
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
    let malformed = |source| PatternError::Malformed { pattern: pattern.into(), source };
    parser.parse(pattern).map_err(malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect(text)
    }

    fn next(cron: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
        let pattern = Pattern::new(cron, Some(zone)).expect(cron);
        let mut now = at(after);
        let step = |_| {
            now = pattern.next(now).expect("a due moment");
            now.to_string()
        };
        (0..count).map(step).collect()
    }

    /// Berlin: 2027-03-28 02:00 becomes 03:00; 2026-10-25 03:00 becomes 02:00.
    #[test]
    fn due_moments_follow_the_clock_of_the_zone() {
        for (cron, zone, after, due) in [
            // Two zones, with and without daylight saving time.
            ("0 9 * * 1-5", "Europe/Berlin", "2026-11-27T09:00:00Z", "2026-11-30T08:00:00Z"),
            ("0 9 * * 1-5", "Asia/Tokyo", "2026-11-27T09:00:00Z", "2026-11-30T00:00:00Z"),
            ("0 9 * * *", "Europe/Berlin", "2027-07-01T00:00:00Z", "2027-07-01T07:00:00Z"),
            // In the gap: at the first moment after it.
            ("30 2 * * *", "Europe/Berlin", "2027-03-27T12:00:00Z", "2027-03-28T01:00:00Z"),
            // In the overlap: once, the first time.
            ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z"),
            ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"),
            ("0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("0 0 L * *", "UTC", "2028-02-01T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("*/10 * * * * *", "UTC", "2026-01-01T00:00:05.5Z", "2026-01-01T00:00:10Z"),
            ("0 9 * * *", "UTC", "2026-01-01T09:00:00.000000001Z", "2026-01-02T09:00:00Z"),
        ] {
            assert_eq!(next(cron, zone, after, 1), [due], "{cron} {zone} after {after}");
        }
    }

    #[test]
    fn hourly_schedules_go_on_through_gap_and_overlap() {
        let spring = next("0 * * * *", "Europe/Berlin", "2027-03-28T00:00:00Z", 2);
        assert_eq!(spring, ["2027-03-28T01:00:00Z", "2027-03-28T02:00:00Z"]);
        let autumn = next("0 * * * *", "Europe/Berlin", "2026-10-24T23:00:00Z", 3);
        let hours = ["2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"];
        assert_eq!(autumn, hours);
    }

    /// A scheduler that looked at both could otherwise start a moment twice, or never.
    #[test]
    fn latest_and_next_agree() {
        for cron in ["30 2 * * *", "*/15 * * * *", "0 9 * * 1-5", "0 0 29 2 *", "5 2 25 10 *"] {
            for zone in ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"] {
                let pattern = Pattern::new(cron, Some(zone)).expect(cron);
                let mut now = at("2026-10-20T00:00:00Z");
                for _ in 0..60 {
                    let due = pattern.next(now).expect("a due moment");
                    assert_eq!(pattern.latest(due), Some(due), "{cron} {zone}");
                    let before = Timestamp::from_second(due.as_second() - 1).expect("a time");
                    let earlier = pattern.latest(before).expect("a due moment");
                    assert!(earlier <= now, "{cron} {zone}: {earlier} is between {now} and {due}");
                    now = due;
                }
            }
        }
    }
}
