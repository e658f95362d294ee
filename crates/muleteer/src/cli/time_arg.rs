//! Parses a point in time as people type it: an age or a time.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use muleteer_model::config::Span;

/// Parses an age with a unit (`15m`, `2h`, `1d`), an RFC 3339 time, or a date. A date
/// (`2026-01-31`) means midnight UTC at its beginning.
pub fn parse(text: &str) -> Option<Timestamp> {
    if let Ok(time) = text.parse() {
        return Some(time);
    }
    if let Ok(day) = text.parse::<Date>() {
        return day.to_zoned(TimeZone::UTC).ok().map(|start| start.timestamp());
    }
    // A number without a unit is not accepted as an age, because it has another meaning for
    // `events`.
    let age = text.parse::<Span>().ok().filter(|_| text.parse::<u64>().is_err())?;
    Timestamp::now().checked_sub(age.as_duration()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_a_time_or_a_day() {
        let at = |text: &str| parse(text).map(|at| at.to_string());
        assert_eq!(at("2026-01-02T03:04:05Z").as_deref(), Some("2026-01-02T03:04:05Z"));
        assert_eq!(at("2026-01-31").as_deref(), Some("2026-01-31T00:00:00Z"));
        let hour_ago = parse("1h").map(|at| at.duration_until(Timestamp::now()).as_secs());
        assert!(hour_ago.is_some_and(|age| (3590..3610).contains(&age)), "{hour_ago:?}");
        for nonsense in ["yesterday", "120", "", "-1h", "2026-02-31"] {
            assert_eq!(parse(nonsense), None, "{nonsense}");
        }
    }
}
