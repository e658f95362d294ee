//! `harness-tasks.json`, version 2. Unknown fields and the order of keys are preserved, because
//! other tools work on the same file.

pub mod equivalence;
mod foreign_items;
pub mod json_position;
pub mod merge;
mod reader;
pub mod tamper;

use crate::event::id::{Unfound, by_beginning};
use crate::task_list::document::equivalence::instant;
use crate::task_list::document::reader::Reader;
use crate::text::bom::unmarked;
use crate::text::foreign_json::{self, Document, Repair};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::fmt;

pub const VERSION: u64 = 2;
/// The default of `max_attempts`.
pub const MAX_ATTEMPTS: u32 = 3;
/// The default of `timeout_seconds`.
pub const TIMEOUT_SECONDS: u64 = 300;
/// The default priority, which is below every usual one.
const LAST_PRIORITY: u32 = 2;
/// The known keys of `session_config`.
const SETTINGS: [&str; 4] =
    ["concurrency_mode", "max_tasks_per_session", "max_sessions", "save_ignored"];
/// The most tasks of a list. A longer list is a mistake, and a list is read as a whole.
pub const TASKS_LIMIT: usize = 100_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    Pending,
    InProgress,
    Completed,
    Failed,
}

impl Status {
    pub const ALL: [Self; 4] = [Self::Pending, Self::InProgress, Self::Completed, Self::Failed];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }
}

/// How many sessions may work on a list at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// One session, which holds the lock for its whole duration.
    #[default]
    Exclusive,
    /// Several workers. Each holds the lock only while it changes the list.
    Concurrent,
}

impl Mode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Concurrent => "concurrent",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct TaskList {
    pub mode: Mode,
    pub max_tasks_per_session: Option<u64>,
    pub max_sessions: Option<u64>,
    /// Ignored files that a rollback saves too; an extension of Muleteer's.
    pub save_ignored: Vec<String>,
    pub tasks: Vec<Task>,
    pub session_count: u64,
    pub last_session: Option<String>,
    raw: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    pub id: String,
    pub title: String,
    pub description: Option<String>,
    pub status: Status,
    pub priority: u32,
    pub depends_on: Vec<String>,
    pub attempts: u32,
    pub max_attempts: u32,
    pub started_at_commit: Option<String>,
    /// `validation.command`; `None` if it is empty.
    pub command: Option<String>,
    pub timeout_seconds: Option<u64>,
    /// `on_failure.cleanup`.
    pub cleanup: Option<String>,
    pub error_log: Vec<String>,
    pub checkpoints: Vec<Checkpoint>,
    pub completed_at: Option<String>,
    pub claimed_by: Option<String>,
    pub lease_expires_at: Option<Timestamp>,
    /// The time of the last failure; an extension of Muleteer's, for "oldest failure first".
    pub failed_at: Option<Timestamp>,
    raw: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    pub step: u64,
    pub total: u64,
    pub description: String,
    pub timestamp: String,
    /// The working directory at that time, as a git tree. An extension of Muleteer's, by which the
    /// checkpoint can be verified.
    pub tree: Option<String>,
}

impl fmt::Display for Checkpoint {
    /// Other harnesses number no steps.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.total > 0 {
            write!(out, "{}/{}: ", self.step, self.total)?;
        }
        out.write_str(&self.description)
    }
}

/// The reason why a text is not a task list.
#[derive(Debug, Clone, PartialEq)]
pub enum Unreadable {
    /// It cannot be parsed. The backup may help.
    Corrupt { line: u64, column: u64, why: String },
    /// It can be parsed, but its content is invalid. A person has to fix it (category `CONFIG`).
    Invalid(Vec<Fault>),
}

/// One invalid field of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Counted from 1.
    pub line: Option<u64>,
    pub column: Option<u64>,
    /// For example `tasks[3].depends_on[0]`.
    pub field: String,
    pub task: Option<String>,
    pub message: String,
    pub hint: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "`{}`: {}", self.field, self.message)
    }
}

impl TaskList {
    /// Creates an empty list, as `init` does.
    pub fn new(now: Timestamp) -> Self {
        let raw = json!({
            "version": VERSION,
            "created": iso(now),
            "session_config": {"concurrency_mode": "exclusive", "max_tasks_per_session": 20,
                "max_sessions": 50},
            "tasks": [],
            "session_count": 0,
            "last_session": null,
        });
        Self {
            mode: Mode::Exclusive,
            max_tasks_per_session: Some(20),
            max_sessions: Some(50),
            save_ignored: vec![],
            tasks: vec![],
            session_count: 0,
            last_session: None,
            raw: object(raw),
        }
    }

    /// Parses the file's text. Invalid JSON that JavaScript tools write is repaired.
    ///
    /// # Errors
    /// [`Unreadable`]: all faults, each with its position.
    pub fn parse(text: &str) -> Result<Self, Unreadable> {
        let text = unmarked(text);
        let value = serde_json::from_str(text).or_else(|error| {
            repaired(text).ok_or_else(|| Unreadable::Corrupt {
                line: error.line() as u64,
                column: error.column() as u64,
                why: error.to_string(),
            })
        })?;
        let Value::Object(raw) = value else {
            let why = "expected an object with `version` and `tasks`".to_string();
            return Err(Unreadable::Corrupt { line: 1, column: 1, why });
        };
        let mut reader = Reader { text, faults: vec![] };
        let list = reader.list(raw);
        if reader.faults.is_empty() { Ok(list) } else { Err(Unreadable::Invalid(reader.faults)) }
    }

    /// Returns the file's text: two spaces of indentation, and a final newline.
    pub fn to_text(&self) -> String {
        let mut text = serde_json::to_string_pretty(&self.to_value()).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Returns the list as the JSON value of the file.
    pub fn to_value(&self) -> Value {
        let mut raw = self.raw.clone();
        let tasks = self.tasks.iter().map(|task| Value::Object(task.to_raw())).collect();
        put(&mut raw, "tasks", Value::Array(tasks), None);
        put(&mut raw, "session_count", json!(self.session_count), Some(&json!(0)));
        put(&mut raw, "last_session", json!(self.last_session), Some(&Value::Null));
        Value::Object(raw)
    }

    /// Sets a key of `session_config`.
    pub fn configure(&mut self, key: &str, value: Value) {
        let config = self.raw.entry("session_config").or_insert_with(|| json!({}));
        if let Value::Object(config) = config {
            config.insert(key.into(), value);
        }
    }

    /// Restores the settings and the session count from another version of the list. Returns
    /// whether they differed. Unknown fields of `session_config` are not changed.
    pub(super) fn restore_session(&mut self, other: &Self) -> bool {
        let setting = |list: &Self, key: &str| list.raw.get("session_config")?.get(key).cloned();
        let is_changed = |key: &&&str| {
            let (own, others) = (setting(self, key), setting(other, key));
            !equivalence::values(key, own.as_ref(), others.as_ref())
        };
        let changed: Vec<_> = SETTINGS.iter().filter(is_changed).collect();
        if changed.is_empty() && self.session_count == other.session_count {
            return false;
        }
        for key in changed {
            let config = nested(&mut self.raw, "session_config");
            match setting(other, key) {
                Some(value) => drop(config.insert((*key).into(), value)),
                None => drop(config.shift_remove(*key)),
            }
        }
        self.mode = other.mode;
        self.max_tasks_per_session = other.max_tasks_per_session;
        self.max_sessions = other.max_sessions;
        self.save_ignored.clone_from(&other.save_ignored);
        self.session_count = other.session_count;
        true
    }

    pub fn get(&self, id: &str) -> Option<&Task> {
        self.tasks.iter().find(|task| task.id == id)
    }

    /// Finds the task by a unique prefix of its id.
    ///
    /// # Errors
    /// No task matches, or more than one.
    pub fn find(&self, beginning: &str) -> Result<&Task, Unfound> {
        by_beginning(self.tasks.iter().map(|task| (task.id.as_str(), task)), beginning)
    }

    pub fn get_mut(&mut self, id: &str) -> Option<&mut Task> {
        self.tasks.iter_mut().find(|task| task.id == id)
    }

    /// Returns the id of the next new task: `task-NNN`, one above the highest number.
    pub fn next_id(&self) -> String {
        let numbers =
            self.tasks.iter().filter_map(|task| task.id.strip_prefix("task-")?.parse::<u64>().ok());
        format!("task-{:03}", numbers.max().unwrap_or(0) + 1)
    }

    /// Returns the session number for the log.
    pub fn session(&self) -> u64 {
        self.session_count.max(1)
    }
}

impl Task {
    /// Creates a task as `add` does: pending, three attempts, no validation command.
    pub fn new(id: impl Into<String>, title: impl Into<String>) -> Self {
        let (id, title) = (id.into(), title.into());
        let raw = json!({
            "id": id, "title": title, "status": "pending", "priority": "P1", "depends_on": [],
            "attempts": 0,
            "max_attempts": MAX_ATTEMPTS, "started_at_commit": null,
            "validation": {"command": null, "timeout_seconds": TIMEOUT_SECONDS},
            "on_failure": {"cleanup": null}, "error_log": [], "checkpoints": [],
            "completed_at": null,
        });
        Self {
            id,
            title,
            description: None,
            status: Status::Pending,
            priority: 1,
            depends_on: vec![],
            attempts: 0,
            max_attempts: MAX_ATTEMPTS,
            started_at_commit: None,
            command: None,
            timeout_seconds: Some(TIMEOUT_SECONDS),
            cleanup: None,
            error_log: vec![],
            checkpoints: vec![],
            completed_at: None,
            claimed_by: None,
            lease_expires_at: None,
            failed_at: None,
            raw: object(raw),
        }
    }

    /// Returns the task with another id and other dependencies.
    pub fn renamed(&self, id: String, depends_on: Vec<String>) -> Self {
        Self { id, depends_on, ..self.clone() }
    }

    /// Returns the task as the JSON value of the file.
    pub fn to_value(&self) -> Value {
        Value::Object(self.to_raw())
    }

    /// Returns a field that this version does not know.
    pub fn unknown(&self, key: &str) -> Option<&Value> {
        self.raw.get(key)
    }

    /// Sets an unknown field.
    pub fn keep(&mut self, key: &str, value: Value) {
        self.raw.insert(key.into(), value);
    }

    pub fn timeout(&self) -> u64 {
        self.timeout_seconds.unwrap_or(TIMEOUT_SECONDS)
    }

    fn to_raw(&self) -> Map<String, Value> {
        let null = Some(&Value::Null);
        let (empty, zero) = (json!([]), json!(0));
        let mut raw = self.raw.clone();
        put(&mut raw, "id", json!(self.id), None);
        put(&mut raw, "title", json!(self.title), None);
        put(&mut raw, "description", json!(self.description), null);
        put(&mut raw, "status", json!(self.status.as_str()), Some(&json!("pending")));
        put(
            &mut raw,
            "priority",
            json!(format!("P{}", self.priority)),
            Some(&json!(format!("P{LAST_PRIORITY}"))),
        );
        put(&mut raw, "depends_on", json!(self.depends_on), Some(&empty));
        put(&mut raw, "attempts", json!(self.attempts), Some(&zero));
        put(&mut raw, "max_attempts", json!(self.max_attempts), Some(&json!(MAX_ATTEMPTS)));
        put(&mut raw, "started_at_commit", json!(self.started_at_commit), null);
        if self.command.is_some()
            || self.timeout_seconds.is_some()
            || raw.contains_key("validation")
        {
            let validation = nested(&mut raw, "validation");
            // An empty command means none. Its spelling is not changed.
            if self.command.is_some()
                || validation.get("command").is_some_and(|old| old.as_str() != Some(""))
            {
                put(validation, "command", json!(self.command), null);
            }
            put(validation, "timeout_seconds", json!(self.timeout_seconds), null);
        }
        if self.cleanup.is_some() || raw.contains_key("on_failure") {
            let failure = nested(&mut raw, "on_failure");
            if self.cleanup.is_some()
                || failure.get("cleanup").is_some_and(|old| old.as_str() != Some(""))
            {
                put(failure, "cleanup", json!(self.cleanup), null);
            }
        }
        foreign_items::put_texts(&mut raw, "error_log", &self.error_log);
        foreign_items::put_checkpoints(&mut raw, &self.checkpoints);
        put(&mut raw, "completed_at", json!(self.completed_at), null);
        put(&mut raw, "claimed_by", json!(self.claimed_by), null);
        put_time(&mut raw, "lease_expires_at", self.lease_expires_at);
        put_time(&mut raw, "failed_at", self.failed_at);
        raw
    }
}

/// Returns an instant without its fraction. The files have whole seconds, so a value that is read
/// back equals the one that was written.
pub fn second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// Formats an instant as in the files.
pub fn iso(at: Timestamp) -> String {
    format!("{at:.0}")
}

/// Returns whether an id is valid. Ids occur in brackets in the log and in the names of refs.
pub fn valid_id(id: &str) -> bool {
    let ok = |c: char| {
        c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | '#' | '@' | '+')
    };
    !id.is_empty() && id.len() <= 100 && id.chars().all(ok)
}

/// Parses `P0`, `P1`, …
pub fn parse_priority(text: &str) -> Option<u32> {
    text.strip_prefix(['P', 'p'])?
        .parse()
        .ok()
        .filter(|level| *level < 100 && text[1..].bytes().all(|b| b.is_ascii_digit()))
}

/// Repairs invalid JSON if no information is lost. The next change writes the repaired list.
fn repaired(text: &str) -> Option<Value> {
    let Document { value, repairs, damage, .. } = foreign_json::read(text.as_bytes());
    let is_kept = |repair: &Repair| match repair {
        Repair::TooDeep | Repair::Shortened => false,
        Repair::LoneSurrogate
        | Repair::NotUtf8
        | Repair::ByteOrderMark
        | Repair::NumberOutOfRange
        | Repair::ControlCharacter => true,
    };
    (damage.is_none() && repairs.iter().all(is_kept)).then_some(value)
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Sets a key, unless it has that value already or is absent and the value is its default.
fn put(raw: &mut Map<String, Value>, key: &str, value: Value, default: Option<&Value>) {
    match raw.get(key) {
        Some(old) if *old == value => {}
        None if default == Some(&value) => {}
        _ => drop(raw.insert(key.into(), value)),
    }
}

/// Sets an instant, and keeps the spelling of an equal one.
fn put_time(raw: &mut Map<String, Value>, key: &str, at: Option<Timestamp>) {
    let old = raw.get(key).and_then(Value::as_str).and_then(instant);
    if old != at || (at.is_none() && raw.get(key).is_some_and(|old| !old.is_null())) {
        put(raw, key, json!(at.map(iso)), Some(&Value::Null));
    }
}

fn nested<'a>(raw: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let value = raw.entry(key).or_insert_with(|| json!({}));
    if !value.is_object() {
        *value = json!({});
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("it was just made an object"),
    }
}

#[cfg(test)]
mod tests;
