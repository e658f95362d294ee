//! When a new process can load a session that its agent has just made.
//!
//! gemini names the file of a session by the minute (UTC) in which a process makes it or loads it.
//! A load within the minute of the session's creation opens the session's own file for a new, empty
//! history, replaces the old one, and then finds nothing to load: the session is lost. So no such
//! load is made. Any other agent that refuses to load a young session is asked again, in another
//! process, until the session is old enough.

use jiff::{SignedDuration, Timestamp};

/// The condition on the age of a session that an agent loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loads {
    /// As soon as the session exists.
    AtOnce,
    /// From the minute of the clock after the one in which the session was made.
    FromNextMinute,
}

/// The age from which a session counts as old: an agent that refuses to load it has another reason.
pub const OLD: SignedDuration = SignedDuration::from_secs(60);
/// The margin after the time from which a session can be loaded.
const MARGIN: SignedDuration = SignedDuration::from_secs(1);
const SHORTEST_PAUSE: SignedDuration = SignedDuration::from_secs(2);
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_secs(20);

/// Returns the time before which a session that was made at `made` must not be loaded; `None` if it
/// can be loaded now. A clock that was set back does not extend the wait.
pub fn rests_until(loads: Loads, made: Timestamp, now: Timestamp) -> Option<Timestamp> {
    let until = match loads {
        Loads::AtOnce => return None,
        Loads::FromNextMinute => {
            let in_minute = made.as_second().rem_euclid(60);
            let next = Timestamp::from_second(made.as_second() - in_minute + 60).ok()?;
            next.checked_add(MARGIN).ok()?
        }
    };
    let left = until.duration_since(now);
    (left.is_positive() && left <= OLD + MARGIN).then_some(until)
}

/// Returns when to try again after an agent refused to load a session that was made at `made`. The
/// pauses grow with the age of the session; `None` once it is old, or if the clock was set back.
pub fn again_at(made: Timestamp, now: Timestamp) -> Option<Timestamp> {
    let age = now.duration_since(made);
    if age.is_negative() || age >= OLD {
        return None;
    }
    let pause = age.clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
    let last = made.checked_add(OLD + MARGIN).ok()?;
    Some(now.checked_add(pause).ok()?.min(last))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        format!("2026-01-01T{text}Z").parse().unwrap()
    }

    #[test]
    fn session_rests_until_the_minute_of_its_creation_is_over() {
        use Loads::{AtOnce, FromNextMinute};
        for (loads, made, now, expected) in [
            (AtOnce, "10:00:00", "10:00:00", None),
            (FromNextMinute, "10:00:00", "10:00:00", Some("10:01:01")),
            (FromNextMinute, "10:00:59.999", "10:00:59.999", Some("10:01:01")),
            (FromNextMinute, "10:00:30", "10:01:00", Some("10:01:01")),
            (FromNextMinute, "10:00:30", "10:01:01", None),
            (FromNextMinute, "10:00:30", "11:00:00", None),
            // The clock was set back by an hour.
            (FromNextMinute, "10:00:30", "09:00:00", None),
        ] {
            let until = rests_until(loads, at(made), at(now));
            assert_eq!(until, expected.map(at), "{made} {now}");
        }
    }

    #[test]
    fn refused_load_of_a_young_session_is_tried_again_until_it_is_old() {
        let made = at("10:00:30");
        let (mut now, mut tries) = (made, 0);
        while let Some(next) = again_at(made, now) {
            assert!(next > now && next.duration_since(made) <= OLD + MARGIN, "{next}");
            (now, tries) = (next, tries + 1);
        }
        assert!(now.duration_since(made) >= OLD && tries <= 8, "{tries} until {now}");
        assert_eq!(again_at(made, at("10:01:30")), None);
        assert_eq!(again_at(made, at("09:00:00")), None);
        assert_eq!(again_at(made, at("10:00:31")), Some(at("10:00:33")));
    }
}
