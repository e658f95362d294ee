//! Reads the time of a reset from prose, in every spelling that CLIs are known to use:
//!
//! | spelling | example |
//! |---|---|
//! | Unix seconds or milliseconds | `limit reached\|1759813200`, `resets_at: 1759813200` |
//! | RFC 3339, or a local date and time | `resets at 2026-10-07T01:00:00Z` |
//! | a duration | `try again in 2 hours 30 minutes`, `reset after 2h30m10s` |
//! | a time of day | `resets 3pm`, `resets 15:30 (Europe/Berlin)`, `midnight Pacific time` |
//! | a date | `resets Oct 7, 1am (Europe/Berlin)`, `try again at Oct 7th, 2026 1:02 AM` |
//! | a weekday | `resets Monday at 9am` |

use jiff::civil::{Date, DateTime, Time, Weekday};
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

/// Words that a reset time follows.
const ANCHORS: &[&str] =
    &["reset", "try again", "retry", "available", "until", "renew", "wait", "come back", "|"];
/// The most places of a text that are tried.
const MOST_ANCHORS: usize = 16;
/// The most words that are read at one place.
const MOST_WORDS: usize = 16;
/// Names of fields, as they are written in prose.
const FIELDS: &[(&str, &str)] = &[
    ("resets_in_seconds", "resets in seconds "),
    ("resetsinseconds", "resets in seconds "),
    ("resets_at", "resets at "),
    ("resetsat", "resets at "),
    ("reset_at", "reset at "),
    ("retry_after", "retry after "),
    ("retry-after", "retry after "),
];
/// Words between an anchor and the time.
const FILLERS: &[&str] = &[
    "s",
    "ting",
    "ed",
    "able",
    "at",
    "on",
    "by",
    "is",
    "will",
    "be",
    "again",
    "about",
    "around",
    "approximately",
    "approx",
    "less",
    "than",
    "the",
    "your",
    "limit",
    "quota",
    "usage",
    "time",
    "window",
    "automatically",
];
/// Words between an anchor and a duration.
const BEFORE_DURATIONS: &[&str] = &["in", "after", "within", "for"];
/// A time of day that passed so recently is that time, not the same time of the next day.
const JUST_PASSED: SignedDuration = SignedDuration::from_mins(15);
/// A date without a year that passed so recently is of this year.
const DATE_PASSED: SignedDuration = SignedDuration::from_hours(7 * 24);
/// The longest name of a time zone.
const ZONE_LIMIT: usize = 48;

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const MONTHS_IN_FULL: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
const WEEKDAYS: [(&str, Weekday); 7] = [
    ("monday", Weekday::Monday),
    ("tuesday", Weekday::Tuesday),
    ("wednesday", Weekday::Wednesday),
    ("thursday", Weekday::Thursday),
    ("friday", Weekday::Friday),
    ("saturday", Weekday::Saturday),
    ("sunday", Weekday::Sunday),
];
/// Abbreviations with a fixed offset, in hours.
const ABBREVIATIONS: [(&str, i8); 13] = [
    ("utc", 0),
    ("gmt", 0),
    ("z", 0),
    ("pst", -8),
    ("pdt", -7),
    ("mst", -7),
    ("mdt", -6),
    ("cst", -6),
    ("cdt", -5),
    ("est", -5),
    ("edt", -4),
    ("cet", 1),
    ("cest", 2),
];
const REGIONS: [(&str, &str); 8] = [
    ("pacific", "America/Los_Angeles"),
    ("pt", "America/Los_Angeles"),
    ("mountain", "America/Denver"),
    ("mt", "America/Denver"),
    ("central", "America/Chicago"),
    ("ct", "America/Chicago"),
    ("eastern", "America/New_York"),
    ("et", "America/New_York"),
];

/// Returns the times of resets that the text names, in the order of the text.
pub(super) fn find(said: &str, now: Timestamp, zone: &TimeZone) -> impl Iterator<Item = Timestamp> {
    let mut text = said.to_ascii_lowercase();
    for (field, prose) in FIELDS {
        if text.contains(field) {
            text = text.replace(field, prose);
        }
    }
    let mut places: Vec<usize> = ANCHORS
        .iter()
        .flat_map(|anchor| text.match_indices(anchor).map(|(at, _)| at + anchor.len()))
        .collect();
    places.sort_unstable();
    places.truncate(MOST_ANCHORS);
    let found: Vec<_> =
        places.into_iter().filter_map(|at| read(&words(text.get(at..)?), now, zone)).collect();
    found.into_iter()
}

/// Splits the beginning of a text into words without the punctuation around them.
fn words(text: &str) -> Vec<&str> {
    let is_inner =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '+' | '.' | '/' | '_' | '-');
    text.split(|c: char| !is_inner(c))
        .map(|word| word.trim_matches(|c: char| matches!(c, ':' | '.' | '/' | '_')))
        .map(|word| word.trim_end_matches(['-', '+']))
        .filter(|word| !word.is_empty() && *word != "-")
        .take(MOST_WORDS)
        .collect()
}

/// Reads the time after an anchor.
fn read(words: &[&str], now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let mut words = words;
    let mut is_relative = false;
    while let [first, rest @ ..] = words {
        if BEFORE_DURATIONS.contains(first) {
            is_relative = true;
        } else if !FILLERS.contains(first) {
            break;
        }
        words = rest;
    }
    epoch(words)
        .or_else(|| instant(words, zone))
        .or_else(|| now.checked_add(duration(words, is_relative)?).ok())
        .or_else(|| Moment::read(words)?.resolve(now, zone))
}

/// Reads Unix seconds or milliseconds.
fn epoch(words: &[&str]) -> Option<Timestamp> {
    let first = words.first()?;
    let whole = first.split('.').next().unwrap_or_default();
    let is_number = first.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if !is_number || !(10..=13).contains(&whole.len()) {
        return None;
    }
    let number: i64 = whole.parse().ok()?;
    match whole.len() {
        13 => Timestamp::from_millisecond(number).ok(),
        _ => Timestamp::from_second(number).ok(),
    }
}

/// Reads an RFC 3339 time, or a date and time of a named zone.
fn instant(words: &[&str], zone: &TimeZone) -> Option<Timestamp> {
    let [first, rest @ ..] = words else { return None };
    let is_dated = first.len() >= 10 && first.bytes().take(4).all(|b| b.is_ascii_digit());
    if !is_dated || first.as_bytes().get(4) != Some(&b'-') {
        return None;
    }
    let joined =
        rest.first().filter(|next| next.contains(':')).map(|next| format!("{first}t{next}"));
    let rest = if joined.is_some() { rest.get(1..).unwrap_or_default() } else { rest };
    let text = joined.unwrap_or_else(|| first.to_string()).to_ascii_uppercase();
    if let Ok(at) = text.parse::<Timestamp>() {
        return Some(at);
    }
    let at: DateTime = text.parse().ok()?;
    let named = rest.first().and_then(|word| named_zone(word));
    let zoned = at.to_zoned(named.unwrap_or_else(|| zone.clone())).ok()?;
    Some(zoned.timestamp())
}

/// Reads `2 hours 30 minutes`, `2h30m10s`, `an hour`, `34.07s`; also `90` and `seconds 90` if a
/// duration is expected.
fn duration(words: &[&str], is_expected: bool) -> Option<SignedDuration> {
    if is_expected {
        match words {
            ["seconds", number, ..] => return seconds(number.parse().ok()?),
            [number] if number.parse::<f64>().is_ok() => return seconds(number.parse().ok()?),
            _ => {}
        }
    }
    let (mut total, mut found) = (0.0, false);
    let mut words = words.iter().copied().peekable();
    while let Some(word) = words.next() {
        if word == "and" && found {
            continue;
        }
        let amount = match word {
            "a" | "an" => Some(1.0),
            word => {
                word.parse::<f64>().ok().filter(|_| word.starts_with(|c: char| c.is_ascii_digit()))
            }
        };
        let part = match amount {
            Some(amount) => words
                .next_if(|unit| unit_seconds(unit).is_some())
                .and_then(unit_seconds)
                .map(|unit| amount * unit),
            None => compound(word),
        };
        let Some(part) = part else { break };
        (total, found) = (total + part, true);
    }
    if found { seconds(total) } else { None }
}

/// Reads `2h30m10s` as seconds.
fn compound(word: &str) -> Option<f64> {
    let (mut rest, mut total) = (word, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let (number, after) = rest.split_at(digits);
        let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        total += number.parse::<f64>().ok()? * unit_seconds(unit)?;
        rest = next;
    }
    (!word.is_empty()).then_some(total)
}

fn unit_seconds(unit: &str) -> Option<f64> {
    Some(match unit {
        "ms" => 0.001,
        "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
        "m" | "min" | "mins" | "minute" | "minutes" => 60.0,
        "h" | "hr" | "hrs" | "hour" | "hours" => 3600.0,
        "d" | "day" | "days" => 86_400.0,
        "w" | "week" | "weeks" => 7.0 * 86_400.0,
        _ => return None,
    })
}

/// Converts a number of seconds from outside to a duration within bounds.
fn seconds(seconds: f64) -> Option<SignedDuration> {
    const MOST: f64 = 366.0 * 86_400.0;
    (seconds.is_finite() && (0.0..=MOST).contains(&seconds))
        .then(|| SignedDuration::from_millis((seconds * 1000.0).round() as i64))
}

/// The parts of a date and a time of day that a text names.
#[derive(Debug, Default)]
struct Moment {
    month: Option<i8>,
    day: Option<i8>,
    year: Option<i16>,
    weekday: Option<Weekday>,
    is_tomorrow: bool,
    time: Option<Time>,
    zone: Option<TimeZone>,
}

impl Moment {
    fn read(words: &[&str]) -> Option<Self> {
        let mut moment = Self::default();
        let mut words = words;
        while let Some(taken) = moment.take(words).filter(|taken| *taken > 0) {
            words = words.get(taken..).unwrap_or_default();
        }
        let is_date = moment.month.is_some() && moment.day.is_some();
        let is_known =
            moment.time.is_some() || moment.weekday.is_some() || moment.is_tomorrow || is_date;
        is_known.then_some(moment)
    }

    /// Takes the next part, and returns how many words it has.
    fn take(&mut self, words: &[&str]) -> Option<usize> {
        let word = *words.first()?;
        let next = words.get(1).copied().unwrap_or_default();
        if matches!(word, "at" | "on" | "of" | "the" | "today" | "time") {
            return Some(1);
        }
        if word == "tomorrow" {
            self.is_tomorrow = true;
            return Some(1);
        }
        if self.weekday.is_none()
            && let Some(weekday) = weekday(word)
        {
            self.weekday = Some(weekday);
            return Some(1);
        }
        if self.month.is_none()
            && let Some(month) = month(word)
        {
            self.month = Some(month);
            return Some(1);
        }
        if self.time.is_none()
            && let Some((time, taken)) = time(word, next)
        {
            self.time = Some(time);
            return Some(taken);
        }
        if let Some(number) = ordinal(word) {
            let is_day = (1..=31).contains(&number) && self.day.is_none();
            if is_day && (self.month.is_some() || month(next).is_some()) {
                self.day = i8::try_from(number).ok();
                return Some(1);
            }
            if self.day.is_some() && self.year.is_none() && (2000..3000).contains(&number) {
                self.year = i16::try_from(number).ok();
                return Some(1);
            }
            return None;
        }
        if self.zone.is_none() {
            self.zone = Some(named_zone(word)?);
            return Some(1);
        }
        None
    }

    fn resolve(self, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let zone = self.zone.as_ref().unwrap_or(zone);
        let time = self.time.unwrap_or(Time::midnight());
        // Clocks that go forward or back: the later reading of a time that does not exist, and the
        // earlier one of a time that exists twice.
        let at = |date: Date| Some(date.to_datetime(time).to_zoned(zone.clone()).ok()?.timestamp());
        let today = now.to_zoned(zone.clone()).date();
        if let (Some(month), Some(day)) = (self.month, self.day) {
            let of = |year: i16| at(Date::new(year, month, day).ok()?);
            let passed = now.checked_sub(DATE_PASSED).ok()?;
            return match self.year {
                Some(year) => of(year),
                // The 29th of February need not exist in the first of these years.
                None => (today.year()..=today.year().saturating_add(1))
                    .filter_map(of)
                    .find(|at| *at > passed),
            };
        }
        let passed = now.checked_sub(JUST_PASSED).ok()?;
        let mut date = if self.is_tomorrow { today.tomorrow().ok()? } else { today };
        // A weekday comes again within eight days, any other time within two.
        for _ in 0..=8 {
            let is_its_day = self.weekday.is_none_or(|weekday| date.weekday() == weekday);
            if is_its_day && let Some(at) = at(date).filter(|at| *at > passed) {
                return Some(at);
            }
            date = date.tomorrow().ok()?;
        }
        None
    }
}

fn weekday(word: &str) -> Option<Weekday> {
    let is_it = |name: &str| name == word || name.get(..3) == Some(word);
    WEEKDAYS.iter().find(|(name, _)| is_it(name)).map(|(_, weekday)| *weekday)
}

fn month(word: &str) -> Option<i8> {
    let at = MONTHS
        .iter()
        .position(|name| *name == word)
        .or_else(|| MONTHS_IN_FULL.iter().position(|name| *name == word))
        .or_else(|| (word == "sept").then_some(8))?;
    i8::try_from(at + 1).ok()
}

/// Reads `7`, `7th`, `2026`.
fn ordinal(word: &str) -> Option<u32> {
    let digits = ["st", "nd", "rd", "th"].iter().find_map(|end| word.strip_suffix(end));
    let digits = digits.unwrap_or(word);
    (digits.len() <= 4 && digits.bytes().all(|b| b.is_ascii_digit()))
        .then(|| digits.parse().ok())
        .flatten()
}

/// Reads a time of day, with the next word if that is `am` or `pm`. Returns also how many words it
/// has.
fn time(word: &str, next: &str) -> Option<(Time, usize)> {
    match word {
        "noon" => return Some((Time::new(12, 0, 0, 0).ok()?, 1)),
        "midnight" => return Some((Time::midnight(), 1)),
        _ => {}
    }
    let attached = ["am", "pm", "a.m", "p.m"]
        .iter()
        .find_map(|half| word.strip_suffix(half).map(|digits| (digits, half.starts_with('p'))));
    let (digits, is_afternoon, taken) = match (attached, next) {
        (Some((digits, is_afternoon)), _) => (digits, Some(is_afternoon), 1),
        (None, "am" | "a.m") => (word, Some(false), 2),
        (None, "pm" | "p.m") => (word, Some(true), 2),
        (None, _) => (word, None, 1),
    };
    let mut parts = digits.split(':');
    let mut number = |most: i8| -> Option<i8> {
        let part = parts.next()?;
        let is_number = (1..=2).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
        part.parse().ok().filter(|number| is_number && *number <= most)
    };
    let hour = number(23)?;
    let (minute, second) = (number(59), number(59));
    let is_whole = parts.next().is_none()
        && digits.split(':').count()
            == 1 + usize::from(minute.is_some()) + usize::from(second.is_some());
    let hour = match is_afternoon {
        // A bare number is no time of day.
        None => minute.map(|_| hour)?,
        Some(_) if !(1..=12).contains(&hour) => return None,
        Some(is_afternoon) => hour % 12 + if is_afternoon { 12 } else { 0 },
    };
    let time = Time::new(hour, minute.unwrap_or(0), second.unwrap_or(0), 0).ok()?;
    is_whole.then_some((time, taken))
}

/// Returns the zone of a name, an abbreviation or an offset. The database of zones is data of the
/// system that only grows, so the same name gives the same zone.
fn named_zone(word: &str) -> Option<TimeZone> {
    if word.len() > ZONE_LIMIT {
        return None;
    }
    let fixed = |seconds: i32| Some(Offset::from_seconds(seconds).ok()?.to_time_zone());
    if let Some((_, hours)) = ABBREVIATIONS.iter().find(|(name, _)| *name == word) {
        return fixed(i32::from(*hours) * 3600);
    }
    let offset = word.strip_prefix("utc").or_else(|| word.strip_prefix("gmt")).unwrap_or(word);
    if let Some((sign, rest)) = offset
        .strip_prefix('+')
        .map(|rest| (1, rest))
        .or_else(|| offset.strip_prefix('-').map(|rest| (-1, rest)))
    {
        let (hours, minutes) = rest.split_once(':').unwrap_or_else(|| match rest.len() {
            4 => rest.split_at(2),
            _ => (rest, "0"),
        });
        let (hours, minutes): (u8, u8) = (hours.parse().ok()?, minutes.parse().ok()?);
        let is_offset = hours <= 14 && minutes < 60;
        let seconds = i32::from(hours) * 3600 + i32::from(minutes) * 60;
        return is_offset.then(|| fixed(sign * seconds)).flatten();
    }
    if let Some((_, name)) = REGIONS.iter().find(|(region, _)| *region == word) {
        return TimeZone::get(name).ok();
    }
    let is_name = word.contains('/') && !word.contains("..") && !word.starts_with('/');
    is_name.then(|| TimeZone::get(word).ok()).flatten()
}
