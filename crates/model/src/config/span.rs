//! Durations as people write them: `15m`, `300s`, `1h30m`, `500ms`, or bare seconds.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A duration. Serialized in seconds, as an integer if it is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Span(pub Duration);

/// A hundred years. No configured duration needs more, and sums cannot overflow.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a duration: write `15m`, `300s`, `1h30m`, `500ms`, or bare seconds")]
pub struct BadSpan(pub String);

impl Span {
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    pub fn as_secs(self) -> u64 {
        self.0.as_secs()
    }

    pub fn as_duration(self) -> Duration {
        self.0
    }

    pub fn is_zero(self) -> bool {
        self.0.is_zero()
    }
}

impl FromStr for Span {
    type Err = BadSpan;

    fn from_str(text: &str) -> Result<Self, BadSpan> {
        parse(text.trim())
            .filter(|span| *span <= LONGEST)
            .map(Self)
            .ok_or_else(|| BadSpan(text.chars().take(40).collect()))
    }
}

fn parse(text: &str) -> Option<Duration> {
    if text.is_empty() {
        return None;
    }
    if !text.ends_with(|c: char| c.is_ascii_alphabetic()) {
        return seconds(text);
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| c.is_ascii_alphabetic())?;
        let (number, tail) = rest.split_at(unit_at);
        let end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, next) = tail.split_at(end);
        let scale = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            _ => return None,
        };
        let part = seconds(number)?.as_secs_f64() * scale;
        total = total.checked_add(Duration::try_from_secs_f64(part).ok()?)?;
        rest = next.trim_start();
    }
    Some(total)
}

/// Parses digits with at most one point. Signs and exponents, which `f64` accepts, are rejected.
fn seconds(text: &str) -> Option<Duration> {
    let plain = !text.is_empty()
        && text.len() <= 15
        && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if !plain {
        return None;
    }
    Duration::try_from_secs_f64(text.parse().ok()?).ok()
}

/// Formats as `5m`, `1h30m` or `2.5s`. [`FromStr`] parses the same value from it.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        if millis == 0 {
            return f.write_str("0s");
        }
        if millis < 1000 {
            return write!(f, "{millis}ms");
        }
        let (seconds, millis) = (millis / 1000, millis % 1000);
        for (amount, unit) in [(seconds / 3600, "h"), (seconds / 60 % 60, "m")] {
            if amount > 0 {
                write!(f, "{amount}{unit}")?;
            }
        }
        match (seconds % 60, millis) {
            (0, 0) => Ok(()),
            (whole, 0) => write!(f, "{whole}s"),
            (whole, millis) => {
                write!(f, "{}s", format!("{whole}.{millis:03}").trim_end_matches('0'))
            }
        }
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.subsec_nanos() == 0 {
            serializer.serialize_u64(self.0.as_secs())
        } else {
            serializer.serialize_f64(self.0.as_secs_f64())
        }
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = Span;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as `15m`, `300s` or bare seconds")
            }
            fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Span, E> {
                self.visit_str(&seconds.to_string())
            }
            fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<Span, E> {
                self.visit_str(&seconds.to_string())
            }
            fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<Span, E> {
                self.visit_str(&seconds.to_string())
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Text)
    }
}

impl schemars::JsonSchema for Span {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "`15m`, `300s`, `1h30m`, `500ms`, or bare seconds",
            "anyOf": [
                {"type": "number", "minimum": 0},
                {"type": "string", "pattern": "^\\s*([0-9.]+|([0-9.]+(ms|s|m|h|d)\\s*)+)\\s*$"}
            ]
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, millis) in [
            ("300", 300_000),
            ("300s", 300_000),
            ("15m", 900_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("500ms", 500),
            ("1.5s", 1_500),
            ("0", 0),
            ("2d", 172_800_000),
        ] {
            assert_eq!(text.parse::<Span>().unwrap().0.as_millis(), millis, "{text}");
        }
        for bad in [
            "",
            "m",
            "-5",
            "-5m",
            "5 minutes",
            "1e9",
            "15M",
            "inf",
            "nan",
            "1..5s",
            "99999999999999d",
            "5m3",
        ] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn printed_duration_parses_back(millis in 0_u64..1_000_000_000) {
            let span = Span(Duration::from_millis(millis));
            let back: Span = span.to_string().parse().unwrap();
            proptest::prop_assert_eq!(back.0.as_millis(), span.0.as_millis());
        }
    }
}
