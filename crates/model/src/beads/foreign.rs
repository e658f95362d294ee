//! Beads as other programs write them: `issues.jsonl` of `bd` and `br`.
//!
//! Those programs leave fields out or write `null`, know more states, and write records beside the
//! issues that are no issues.

use crate::beads::{Bead, Dependency, Status, default_priority, default_type};
use crate::text::foreign_json;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

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

/// A field of another program's record.
#[derive(Debug, Default)]
enum Field<T> {
    #[default]
    Missing,
    Null,
    Value(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Option::<T>::deserialize(from)?.map_or(Self::Null, Self::Value))
    }
}

impl<T> Field<T> {
    /// Returns the value, or the default of a field without one. `null` is noted in `extra`.
    fn or(self, key: &str, extra: &mut Map<String, Value>, default: impl FnOnce() -> T) -> T {
        match self {
            Self::Value(value) => value,
            Self::Missing => default(),
            Self::Null => {
                extra.insert(key.into(), Value::Null);
                default()
            }
        }
    }
}

/// A bead as it is read.
#[derive(Debug, Deserialize)]
pub(super) struct ReadBead {
    id: String,
    title: String,
    #[serde(default)]
    description: Field<String>,
    #[serde(default)]
    status: Field<Status>,
    #[serde(default)]
    priority: Field<u8>,
    #[serde(default)]
    issue_type: Field<String>,
    #[serde(default)]
    labels: Field<Vec<String>>,
    #[serde(default)]
    dependencies: Field<Vec<Dependency>>,
    #[serde(default)]
    created_at: Field<String>,
    #[serde(default)]
    updated_at: Field<String>,
    #[serde(default)]
    closed_at: Option<String>,
    #[serde(default)]
    close_reason: Option<String>,
    #[serde(default)]
    no_change: Field<bool>,
    #[serde(default)]
    key: Field<String>,
    #[serde(default)]
    staged: Field<String>,
    #[serde(flatten)]
    extra: Map<String, Value>,
}

impl From<ReadBead> for Bead {
    fn from(read: ReadBead) -> Self {
        let mut extra = read.extra;
        let optional = |field: Field<String>, key: &str, extra: &mut Map<String, Value>| {
            let text = match field {
                Field::Missing => Field::Missing,
                Field::Null => Field::Null,
                Field::Value(text) => Field::Value(Some(text)),
            };
            text.or(key, extra, || None)
        };
        let issue_type = read.issue_type.or("issue_type", &mut extra, default_type);
        Self {
            id: read.id,
            title: read.title,
            description: read.description.or("description", &mut extra, String::new),
            status: read.status.or("status", &mut extra, Status::default),
            priority: read.priority.or("priority", &mut extra, default_priority),
            issue_type: if issue_type.is_empty() { default_type() } else { issue_type },
            labels: read.labels.or("labels", &mut extra, Vec::new),
            dependencies: read.dependencies.or("dependencies", &mut extra, Vec::new),
            created_at: read.created_at.or("created_at", &mut extra, String::new),
            updated_at: read.updated_at.or("updated_at", &mut extra, String::new),
            closed_at: read.closed_at,
            close_reason: read.close_reason,
            no_change: read.no_change.or("no_change", &mut extra, || false),
            key: optional(read.key, "key", &mut extra),
            staged: optional(read.staged, "staged", &mut extra),
            extra,
        }
    }
}

/// A dependency as it is read.
#[derive(Debug, Deserialize)]
pub(super) struct ReadDependency {
    #[serde(default)]
    issue_id: Field<String>,
    depends_on_id: String,
    #[serde(default, rename = "type")]
    kind: Field<String>,
    #[serde(flatten)]
    extra: Map<String, Value>,
}

impl From<ReadDependency> for Dependency {
    fn from(read: ReadDependency) -> Self {
        let mut extra = read.extra;
        Self {
            issue_id: read.issue_id.or("issue_id", &mut extra, String::new),
            depends_on_id: read.depends_on_id,
            kind: read.kind.or("type", &mut extra, String::new),
            extra,
        }
    }
}

/// The fields of [`Bead`], in the order in which they are written.
const FIELDS: [&str; 15] = [
    "id",
    "title",
    "description",
    "status",
    "priority",
    "issue_type",
    "labels",
    "dependencies",
    "created_at",
    "updated_at",
    "closed_at",
    "close_reason",
    "no_change",
    "key",
    "staged",
];

impl Serialize for Bead {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut out = Written { map: to.serialize_map(None)?, extra: &self.extra };
        out.field("id", &self.id, false)?;
        out.field("title", &self.title, false)?;
        out.field("description", &self.description, self.description.is_empty())?;
        out.field("status", &self.status, self.status == Status::default())?;
        out.field("priority", &self.priority, self.priority == default_priority())?;
        out.field("issue_type", &self.issue_type, self.issue_type == default_type())?;
        out.field("labels", &self.labels, self.labels.is_empty())?;
        out.field("dependencies", &self.dependencies, self.dependencies.is_empty())?;
        out.optional("created_at", &self.created_at, self.created_at.is_empty())?;
        out.optional("updated_at", &self.updated_at, self.updated_at.is_empty())?;
        out.field("closed_at", &self.closed_at, false)?;
        out.field("close_reason", &self.close_reason, false)?;
        out.optional("no_change", &self.no_change, !self.no_change)?;
        out.optional("key", &self.key, self.key.is_none())?;
        out.optional("staged", &self.staged, self.staged.is_none())?;
        for (key, value) in &self.extra {
            if !FIELDS.contains(&key.as_str()) {
                out.map.serialize_entry(key, value)?;
            }
        }
        out.map.end()
    }
}

/// Writes the fields of a bead.
struct Written<'a, M> {
    map: M,
    extra: &'a Map<String, Value>,
}

impl<M: SerializeMap> Written<'_, M> {
    /// Writes a field, and its default as `null` if another program did so.
    fn field<T: Serialize>(
        &mut self,
        key: &'static str,
        value: &T,
        is_default: bool,
    ) -> Result<(), M::Error> {
        if is_default && self.extra.get(key).is_some_and(Value::is_null) {
            return self.map.serialize_entry(key, &Value::Null);
        }
        self.map.serialize_entry(key, value)
    }

    /// Writes a field that is left out while it has its default.
    fn optional<T: Serialize>(
        &mut self,
        key: &'static str,
        value: &T,
        is_default: bool,
    ) -> Result<(), M::Error> {
        if is_default && !self.extra.contains_key(key) {
            return Ok(());
        }
        self.field(key, value, is_default)
    }
}

impl Bead {
    /// Returns the bead with the defaults in place of another program's `null`, for readers that
    /// expect each field to have its type.
    #[must_use]
    pub fn without_nulls(mut self) -> Self {
        self.extra.retain(|key, value| !(value.is_null() && FIELDS.contains(&key.as_str())));
        for dependency in &mut self.dependencies {
            let is_noted = |key: &str| matches!(key, "issue_id" | "type");
            dependency.extra.retain(|key, value| !(value.is_null() && is_noted(key)));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let has_no_time = |key: &str| written.get(key).is_none_or(serde_json::Value::is_null);
            assert!(has_no_time("updated_at") && has_no_time("created_at"), "{written}");
            let shown = serde_json::to_value(bead.without_nulls()).expect("JSON");
            assert_eq!(
                (&shown["status"], &shown["labels"]),
                (&"open".into(), &Value::Array(vec![]))
            );
        }
    }

    #[test]
    fn null_in_a_known_field_is_written_back_until_it_has_a_value() {
        let line = concat!(
            r#"{"id":"b","title":"x","description":null,"status":null,"priority":null,"#,
            r#""issue_type":null,"labels":null,"dependencies":null,"created_at":null,"#,
            r#""updated_at":null,"closed_at":null,"close_reason":null,"no_change":null,"#,
            r#""key":null,"staged":null,"due":null}"#,
        );
        let mut bead: Bead = serde_json::from_str(line).expect("a bead");
        assert_eq!(serde_json::to_string(&bead).expect("JSON"), line);
        bead.status = Status::InProgress;
        bead.labels = vec!["a".into()];
        let written = serde_json::to_value(&bead).expect("JSON");
        assert_eq!(
            (&written["status"], &written["labels"][0]),
            (&"in_progress".into(), &"a".into())
        );
        assert!(written["priority"].is_null() && written["due"].is_null(), "{written}");
        let again: Bead = serde_json::from_value(written).expect("a bead");
        assert_eq!((again.status, again.labels.len()), (Status::InProgress, 1));
        let line = concat!(
            r#"{"id":"b","title":"x","description":"","status":"open","priority":2,"#,
            r#""issue_type":"task","labels":[],"dependencies":[{"depends_on_id":"c","#,
            r#""issue_id":null,"type":null}],"closed_at":null,"close_reason":null}"#,
        );
        let bead: Bead = serde_json::from_str(line).expect("a bead");
        assert_eq!(serde_json::to_string(&bead).expect("JSON"), line);
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
