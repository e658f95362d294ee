//! Beads as other programs write them: `issues.jsonl` of `bd` and `br`.
//!
//! Those programs leave fields out or write `null`, know more states, and write records beside the
//! issues that are no issues.

use crate::beads::{Status, default_priority, default_type};
use crate::text::foreign_json;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

impl Status {
    /// Whether the work is over: closed, or the same in the words of another program.
    pub fn is_over(&self) -> bool {
        match self {
            Self::Closed => true,
            Self::Open | Self::InProgress | Self::Blocked => false,
            Self::Other(name) => matches!(name.as_str(), "tombstone" | "done"),
        }
    }

    /// Whether a bead in this state blocks the beads that depend on it. The states of other
    /// programs count as in `bd`: `deferred` and `hooked` block; `pinned`, which never ends, and
    /// unknown states do not.
    pub fn is_blocking(&self) -> bool {
        match self {
            Self::Open | Self::InProgress | Self::Blocked => true,
            Self::Closed => false,
            Self::Other(name) => matches!(name.as_str(), "deferred" | "hooked"),
        }
    }
}

/// Returns the type of a record that is not an issue, such as `memory`; `None` for an issue.
pub fn other_record(line: &str) -> Option<String> {
    // Most lines are issues, and they are parsed only once, as beads.
    if !line.contains("\"_type\"") {
        return None;
    }
    let record = foreign_json::whole(line.as_bytes()).ok()?;
    let kind = record.get("_type").and_then(Value::as_str)?;
    (kind != "issue").then(|| kind.to_string())
}

/// Reads `null` as the default.
pub(super) fn or_default<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

pub(super) fn or_default_priority<'de, D: Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
    Ok(Option::<u8>::deserialize(from)?.unwrap_or_else(default_priority))
}

pub(super) fn or_default_type<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let kind = Option::<String>::deserialize(from)?;
    Ok(kind.filter(|kind| !kind.is_empty()).unwrap_or_else(default_type))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::beads::Bead;

    #[test]
    fn bead_with_nulls_or_without_optional_fields_is_read_with_defaults() {
        for line in [
            r#"{"id":"b-1","title":"x"}"#,
            r#"{"id":"b-1","title":"x","status":null,"priority":null,"issue_type":null,
                "description":null,"labels":null,"dependencies":null,"created_at":null,
                "updated_at":null,"closed_at":null,"close_reason":null,"no_change":null}"#,
        ] {
            let bead: Bead = serde_json::from_str(line).expect("a bead");
            assert_eq!(
                (&bead.status, bead.priority, bead.issue_type.as_str()),
                (&Status::Open, 2, "task")
            );
            let written = serde_json::to_value(&bead).expect("JSON");
            assert!(
                written.get("updated_at").is_none() && written.get("created_at").is_none(),
                "no time is invented: {written}"
            );
        }
    }

    #[test]
    fn dependency_without_type_and_issue_blocks_its_own_bead() {
        let line = r#"{"id":"b","title":"x","dependencies":[{"depends_on_id":"a"},
                       {"depends_on_id":"c","type":null,"issue_id":null},
                       {"depends_on_id":"d","type":"related"}]}"#;
        let bead: Bead = serde_json::from_str(line).expect("a bead");
        assert_eq!(bead.blockers().collect::<Vec<_>>(), ["a", "c"]);
    }

    #[test]
    fn states_of_other_programs_block_as_in_bd() {
        for (state, is_blocking, is_over) in [
            ("open", true, false),
            ("in_progress", true, false),
            ("blocked", true, false),
            ("closed", false, true),
            ("deferred", true, false),
            ("hooked", true, false),
            ("pinned", false, false),
            ("tombstone", false, true),
            ("done", false, true),
            ("in_review", false, false),
        ] {
            let status = Status::parse(state).unwrap_or_else(|_| Status::Other(state.into()));
            assert_eq!((status.is_blocking(), status.is_over()), (is_blocking, is_over), "{state}");
        }
    }

    #[test]
    fn only_records_of_another_type_are_no_issues() {
        for (line, kind) in [
            (r#"{"_type":"memory","key":"k","value":"v"}"#, Some("memory")),
            (r#"{"_type": "config","id":"b-1","title":"x"}"#, Some("config")),
            (r#"{"_type":"issue","id":"b-1","title":"x"}"#, None),
            (r#"{"_type":7,"id":"b-1","title":"x"}"#, None),
            (r#"{"id":"b-1","title":"the \"_type\" field"}"#, None),
            (r#"{"_type":"memory","#, None),
            ("", None),
        ] {
            assert_eq!(other_record(line).as_deref(), kind, "{line}");
        }
    }
}
