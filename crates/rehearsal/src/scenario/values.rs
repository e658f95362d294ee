//! Values with their own syntax: time spans, sizes, and steps with a short form.

use muleteer_model::agent::event::TurnError;
use serde::de::{Deserializer, Error, IntoDeserializer, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// A span of time: `200ms`, `1.5s`, `15m`, `2h`, or bare seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Span(pub Duration);

/// A number of bytes: `4096`, `64KiB`, `200MB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Size(pub u64);

/// Longer spans and larger sizes are typing errors.
const LONGEST_S: f64 = 30.0 * 86400.0;
const LARGEST: f64 = 1024.0 * 1024.0 * 1024.0 * 16.0;

const SPANS: [(&str, f64); 5] = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("", 1.0)];
const SIZES: [(&str, f64); 9] = [
    ("B", 1.0),
    ("kB", 1e3),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("", 1.0),
];

fn measure(text: &str, units: &[(&str, f64)], most: f64) -> Option<f64> {
    let text = text.trim();
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let factor = units.iter().find(|(name, _)| *name == unit.trim())?.1;
    let value = number.parse::<f64>().ok()? * factor;
    (0.0..=most).contains(&value).then_some(value)
}

struct Measured(&'static str);

impl Visitor<'_> for Measured {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_string())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<String, E> {
        Ok(number.to_string())
    }
}

/// The spellings of [`TurnError`].
static TURN_ERRORS: [&str; 9] = [
    "auth",
    "api_error",
    "rate_limit",
    "max_turns",
    "budget",
    "structured_output",
    "context",
    "interrupted",
    "other",
];

/// Reads a [`TurnError`] by one of its names. Elsewhere an unknown name becomes `other`, because
/// newer agents may use it; in a scenario it is an error.
pub fn turn_error<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TurnError, D::Error> {
    let name = String::deserialize(deserializer)?;
    let error =
        TurnError::deserialize(IntoDeserializer::<D::Error>::into_deserializer(name.as_str()))?;
    if error == TurnError::Other && name != "other" {
        return Err(D::Error::unknown_variant(&name, &TURN_ERRORS));
    }
    Ok(error)
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const WANTED: &str = "a span of time such as 200ms, 5s, 15m or bare seconds";
        let text = deserializer.deserialize_any(Measured(WANTED))?;
        measure(&text, &SPANS, LONGEST_S)
            .map(|seconds| Self(Duration::from_secs_f64(seconds)))
            .ok_or_else(|| D::Error::custom(format!("{text:?} is not {WANTED}")))
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const WANTED: &str = "a size such as 4096, 64KiB or 200MB, at most 16GiB";
        let text = deserializer.deserialize_any(Measured(WANTED))?;
        measure(&text, &SIZES, LARGEST)
            .map(|bytes| Self(bytes as u64))
            .ok_or_else(|| D::Error::custom(format!("{text:?} is not {WANTED}")))
    }
}

/// Implements a step that is written as one text or as a map. An untagged enum would hide which key
/// of the map is wrong.
macro_rules! short {
    ($step:ident, $wanted:literal, |$text:ident| $make:expr, {
        $first:ident: $first_type:ty $(, $field:ident: $type:ty = $default:expr)*
    }) => {
        impl<'de> serde::Deserialize<'de> for $step {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                #[derive(serde::Deserialize)]
                #[serde(deny_unknown_fields)]
                struct Long {
                    $first: $first_type,
                    $(#[serde(default)] $field: Option<$type>,)*
                }
                struct Either;
                impl<'de> serde::de::Visitor<'de> for Either {
                    type Value = $step;
                    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                        f.write_str($wanted)
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$step, E> {
                        let $text = text.to_string();
                        Ok($make)
                    }
                    fn visit_map<A: serde::de::MapAccess<'de>>(
                        self,
                        map: A,
                    ) -> Result<$step, A::Error> {
                        let long =
                            Long::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
                        Ok($step {
                            $first: long.$first,
                            $($field: long.$field.unwrap_or($default),)*
                        })
                    }
                }
                deserializer.deserialize_any(Either)
            }
        }
    };
}
pub(super) use short;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_sizes() {
        for (text, wanted) in
            [("200ms", Some(0.2)), ("1.5s", Some(1.5)), ("15m", Some(900.0)), ("7", Some(7.0))]
        {
            assert_eq!(measure(text, &SPANS, LONGEST_S), wanted, "{text}");
        }
        for text in ["", "s", "5 parsecs", "-1s", "1e3s", "999999h"] {
            assert_eq!(measure(text, &SPANS, LONGEST_S), None, "{text}");
        }
        assert_eq!(measure("64KiB", &SIZES, LARGEST), Some(65536.0));
    }
}
