//! Compares spellings of a field. Formatters and other tools rewrite the list: they write instants
//! with or without fractions and offsets, numbers as `1.0`, and absent fields as null or as their
//! default.

use crate::task_list::document::{MAX_ATTEMPTS, TIMEOUT_SECONDS};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Instants closer than this are equal: the files have whole seconds, and tools cut or round
/// fractions.
const RESOLUTION_MS: i64 = 1000;
/// Larger floats cannot represent every integer.
const LARGEST_WHOLE: f64 = 9_007_199_254_740_992.0;

/// Parses an instant in any usual form of ISO 8601. Without an offset it is in UTC.
pub fn instant(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    let local =
        || text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok().map(|at| at.timestamp());
    text.parse().ok().or_else(local)
}

/// Returns an integer, which a tool may have written as `1.0`.
pub fn whole(value: &Value) -> Option<u64> {
    let float = || value.as_f64().filter(|n| n.fract() == 0.0 && (0.0..=LARGEST_WHOLE).contains(n));
    value.as_u64().or_else(|| float().map(|n| n as u64))
}

pub(in crate::task_list) fn instants(one: Option<Timestamp>, other: Option<Timestamp>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => {
            (one.as_millisecond() - other.as_millisecond()).abs() < RESOLUTION_MS
        }
        (one, other) => one == other,
    }
}

/// Returns whether two texts are equal, are the same instant, or are both absent or empty.
pub(in crate::task_list) fn texts(one: Option<&str>, other: Option<&str>) -> bool {
    let said = |text: Option<&'_ str>| text.filter(|text| !text.is_empty()).map(String::from);
    match (said(one), said(other)) {
        (Some(one), Some(other)) => one == other || is_one_instant(&one, &other),
        (one, other) => one == other,
    }
}

fn is_one_instant(one: &str, other: &str) -> bool {
    let read = |text: &str| {
        if text.starts_with(|c: char| c.is_ascii_digit()) { instant(text) } else { None }
    };
    matches!((read(one), read(other)), (Some(one), Some(other)) if instants(Some(one), Some(other)))
}

/// Returns whether two lists have the same members in any order.
pub(in crate::task_list) fn sets(one: &[String], other: &[String]) -> bool {
    one.iter().collect::<BTreeSet<_>>() == other.iter().collect()
}

/// Returns whether two values of the field `key` are equivalent; `None` means absent.
pub(in crate::task_list) fn values(key: &str, one: Option<&Value>, other: Option<&Value>) -> bool {
    let default = default_of(key);
    let or_default = |value: Option<&Value>| {
        value.filter(|value| !value.is_null()).or(default.as_ref()).cloned()
    };
    match (or_default(one), or_default(other)) {
        (Some(Value::Object(one)), Some(Value::Object(other))) => objects(&one, &other),
        (Some(Value::Array(one)), Some(Value::Array(other))) if key == "depends_on" => {
            let sorted =
                |all: Vec<Value>| all.iter().map(Value::to_string).collect::<BTreeSet<_>>();
            sorted(one) == sorted(other)
        }
        (Some(Value::Array(one)), Some(Value::Array(other))) => {
            one.len() == other.len()
                && one.iter().zip(&other).all(|(one, other)| values("", Some(one), Some(other)))
        }
        (Some(Value::String(one)), Some(Value::String(other))) => {
            one == other || is_one_instant(&one, &other)
        }
        (Some(Value::Number(one)), Some(Value::Number(other))) => {
            one == other || one.as_f64() == other.as_f64()
        }
        (one, other) => one == other,
    }
}

fn objects(one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    let keys = one.keys().chain(other.keys().filter(|key| !one.contains_key(*key)));
    keys.into_iter().all(|key| values(key, one.get(key), other.get(key)))
}

/// Returns the value that the format assumes for an absent field.
fn default_of(key: &str) -> Option<Value> {
    Some(match key {
        "status" => json!("pending"),
        "priority" => json!("P2"),
        "concurrency_mode" => json!("exclusive"),
        "attempts" | "session_count" => json!(0),
        "max_attempts" => json!(MAX_ATTEMPTS),
        "timeout_seconds" => json!(TIMEOUT_SECONDS),
        "depends_on" | "error_log" | "checkpoints" | "save_ignored" => json!([]),
        "validation" | "on_failure" | "session_config" => json!({}),
        "command" | "cleanup" | "description" | "claimed_by" | "started_at_commit"
        | "completed_at" | "failed_at" | "lease_expires_at" | "last_session" => json!(""),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_in_other_forms_are_the_same_instant() {
        for other in [
            "2025-07-01T10:00:00Z",
            "2025-07-01T10:00:00.987654Z",
            "2025-07-01T10:00:00.000+00:00",
            "2025-07-01T12:00:00+02:00",
            "2025-07-01 10:00:00Z",
            "2025-07-01t10:00:00z",
            "2025-07-01T10:00:00",
            "20250701T100000Z",
        ] {
            assert!(texts(Some("2025-07-01T10:00:00Z"), Some(other)), "{other}");
        }
        for other in [
            Some("2025-07-01T10:00:01Z"),
            Some("2025-07-01T10:00:00+02:00"),
            Some("later"),
            Some(""),
            None,
        ] {
            assert!(!texts(Some("2025-07-01T10:00:00Z"), other), "{other:?}");
        }
        assert!(texts(None, Some("")), "an empty text says nothing");
    }

    #[test]
    fn numbers_absent_fields_and_orders_of_keys_are_compared_by_meaning() {
        let read = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        for (one, other, alike) in [
            (
                r#"{"attempts": 1, "a": {"x": 1, "y": "\u00e9"}}"#,
                r#"{"a": {"y": "é", "x": 1.0}, "attempts": 1e0}"#,
                true,
            ),
            (r#"{"attempts": 0, "depends_on": [], "claimed_by": null}"#, "{}", true),
            (
                r#"{"validation": {"command": null, "timeout_seconds": 300}}"#,
                r#"{"validation": null}"#,
                true,
            ),
            (r#"{"depends_on": ["b", "a"]}"#, r#"{"depends_on": ["a", "b"]}"#, true),
            (r#"{"attempts": 1}"#, r#"{"attempts": 2}"#, false),
            (r#"{"error_log": ["b", "a"]}"#, r#"{"error_log": ["a", "b"]}"#, false),
            (r#"{"owner": ""}"#, "{}", false),
        ] {
            assert_eq!(values("", Some(&read(one)), Some(&read(other))), alike, "{one} {other}");
        }
        assert_eq!(
            [json!(3), json!(3.0), json!(3.5), json!(-1), json!("3")].map(|n| whole(&n)),
            [Some(3), Some(3), None, None, None]
        );
    }
}
