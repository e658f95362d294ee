//! Reads a task list from JSON, and reports every invalid field with its position.

use crate::task_list::document::equivalence::{instant, whole};
use crate::task_list::document::foreign_items;
use crate::task_list::document::json_position::{Step, locate};
use crate::task_list::document::{
    Fault, LAST_PRIORITY, MAX_ATTEMPTS, Mode, Status, TASKS_LIMIT, Task, TaskList, VERSION,
    parse_priority, valid_id,
};
use jiff::Timestamp;
use serde_json::{Map, Value};

/// Reads fields and collects their faults.
pub(super) struct Reader<'a> {
    pub(super) text: &'a str,
    pub(super) faults: Vec<Fault>,
}

const FAULTS_LIMIT: usize = 20;

impl Reader<'_> {
    fn fault(&mut self, path: &[Step], task: Option<&str>, message: impl Into<String>, hint: &str) {
        if self.faults.len() >= FAULTS_LIMIT {
            return;
        }
        let place = locate(self.text, path);
        self.faults.push(Fault {
            line: place.map(|(line, _)| line),
            column: place.map(|(_, column)| column),
            field: Step::join(path),
            task: task.map(String::from),
            message: message.into(),
            hint: hint.into(),
        });
    }

    pub(super) fn list(&mut self, raw: Map<String, Value>) -> TaskList {
        match raw.get("version") {
            // The reference neither reads nor requires it.
            None | Some(Value::Null) => {}
            Some(version) if whole(version) == Some(VERSION) => {}
            Some(found) => {
                let hint = "use a newer muleteer for a newer file: this one knows version 2 of the \
                            format";
                self.fault(
                    &["version".into()],
                    None,
                    format!("it is {found}, but must be {VERSION}"),
                    hint,
                );
            }
        }
        let hint = "write an object, as `muleteer tasks init` does";
        let config =
            self.object(&raw, &["session_config".into()], None, hint).cloned().unwrap_or_default();
        let path = |key: &'static str| vec![Step::from("session_config"), key.into()];
        let mode = match config.get("concurrency_mode") {
            None | Some(Value::Null) => Mode::Exclusive,
            Some(Value::String(text)) if text == "exclusive" => Mode::Exclusive,
            Some(Value::String(text)) if text == "concurrent" => Mode::Concurrent,
            Some(other) => {
                self.fault(
                    &path("concurrency_mode"),
                    None,
                    format!("it is {other}"),
                    "use `exclusive` or `concurrent`",
                );
                Mode::Exclusive
            }
        };
        // As in the reference, 0 sets no limit.
        let is_limit = |limit: &u64| *limit > 0;
        let max_tasks_per_session =
            self.number(&config, &path("max_tasks_per_session"), None).filter(is_limit);
        let max_sessions = self.number(&config, &path("max_sessions"), None).filter(is_limit);
        let save_ignored = self.strings(&config, &path("save_ignored"), None);
        let session_count = self.number(&raw, &["session_count".into()], None).unwrap_or(0);
        let last_session = self.string(&raw, &["last_session".into()], None);
        let tasks = match raw.get("tasks") {
            Some(Value::Array(tasks)) if tasks.len() <= TASKS_LIMIT => self.tasks(tasks),
            Some(Value::Array(tasks)) => {
                let message =
                    format!("the list has {} tasks: the limit is {TASKS_LIMIT}", tasks.len());
                self.fault(&["tasks".into()], None, message, "split the list");
                vec![]
            }
            _ => {
                self.fault(
                    &["tasks".into()],
                    None,
                    "write a list of tasks",
                    "create a list with `muleteer tasks init`",
                );
                vec![]
            }
        };
        let mut raw = raw;
        // The tasks are serialized again at each write.
        if let Some(tasks) = raw.get_mut("tasks") {
            *tasks = Value::Null;
        }
        TaskList {
            mode,
            max_tasks_per_session,
            max_sessions,
            save_ignored,
            tasks,
            session_count,
            last_session,
            raw,
        }
    }

    fn tasks(&mut self, values: &[Value]) -> Vec<Task> {
        let tasks: Vec<_> =
            values.iter().enumerate().filter_map(|(at, value)| self.task(at, value)).collect();
        if !self.faults.is_empty() {
            return tasks;
        }
        let mut known = std::collections::HashMap::new();
        for (at, task) in tasks.iter().enumerate() {
            if let Some(first) = known.insert(task.id.as_str(), at) {
                let message = format!("`{}` is also the id of tasks[{first}]", task.id);
                self.fault(
                    &["tasks".into(), at.into(), "id".into()],
                    Some(&task.id),
                    message,
                    "give each task its own id",
                );
            }
        }
        for (at, task) in tasks.iter().enumerate() {
            for (which, needed) in task.depends_on.iter().enumerate() {
                if !known.contains_key(needed.as_str()) {
                    let path = ["tasks".into(), at.into(), "depends_on".into(), which.into()];
                    let message = format!("no task `{needed}`");
                    self.fault(
                        &path,
                        Some(&task.id),
                        message,
                        "add it, or remove it from `depends_on`",
                    );
                }
            }
        }
        tasks
    }

    fn task(&mut self, at: usize, value: &Value) -> Option<Task> {
        let Value::Object(raw) = value else {
            self.fault(
                &["tasks".into(), at.into()],
                None,
                "write an object",
                "read the page `task-list` of the documentation",
            );
            return None;
        };
        let path = |key: &'static str| vec![Step::from("tasks"), at.into(), key.into()];
        let inner = |outer: &'static str, key: &'static str| {
            vec![Step::from("tasks"), at.into(), outer.into(), key.into()]
        };
        let id = raw.get("id").and_then(Value::as_str).unwrap_or_default().to_string();
        if !valid_id(&id) {
            let hint = "use 1 to 100 letters, digits and any of - _ . / : # @ +";
            self.fault(&path("id"), None, format!("`{id}` cannot be an id"), hint);
            return None;
        }
        let of = Some(id.as_str());
        let status = match raw.get("status") {
            None | Some(Value::Null) => Status::Pending,
            Some(value) => value.as_str().and_then(Status::parse).unwrap_or_else(|| {
                let hint = "use pending, in_progress, completed or failed (blocked is never \
                            stored)";
                self.fault(&path("status"), of, format!("it is {value}"), hint);
                Status::Pending
            }),
        };
        let priority = match raw.get("priority") {
            None | Some(Value::Null) => LAST_PRIORITY,
            Some(value) => value.as_str().and_then(parse_priority).unwrap_or_else(|| {
                self.fault(&path("priority"), of, format!("it is {value}"), "use P0, P1 or P2");
                LAST_PRIORITY
            }),
        };
        let empty = Map::new();
        let hint = "write {\"command\": \"npm test\", \"timeout_seconds\": 300} or null";
        let validation = self.object(raw, &path("validation"), of, hint).unwrap_or(&empty);
        let hint = "write {\"cleanup\": \"docker compose down\"} or null";
        let on_failure = self.object(raw, &path("on_failure"), of, hint).unwrap_or(&empty);
        let present = |text: &String| !text.trim().is_empty();
        let task = Task {
            title: self.string(raw, &path("title"), of).unwrap_or_else(|| id.clone()),
            description: self.string(raw, &path("description"), of),
            status,
            priority,
            depends_on: self.strings(raw, &path("depends_on"), of),
            attempts: self.small(raw, &path("attempts"), of).unwrap_or(0),
            max_attempts: self.small(raw, &path("max_attempts"), of).unwrap_or(MAX_ATTEMPTS),
            started_at_commit: self.string(raw, &path("started_at_commit"), of),
            command: self.string(validation, &inner("validation", "command"), of).filter(present),
            timeout_seconds: self.number(validation, &inner("validation", "timeout_seconds"), of),
            cleanup: self.string(on_failure, &inner("on_failure", "cleanup"), of).filter(present),
            error_log: foreign_items::texts(raw.get("error_log")),
            checkpoints: foreign_items::checkpoints(raw.get("checkpoints")),
            completed_at: self.string(raw, &path("completed_at"), of),
            claimed_by: self.string(raw, &path("claimed_by"), of),
            lease_expires_at: self.time(raw, &path("lease_expires_at"), of),
            failed_at: self.time(raw, &path("failed_at"), of),
            raw: raw.clone(),
            id: id.clone(),
        };
        if task.timeout_seconds == Some(0) {
            self.fault(
                &inner("validation", "timeout_seconds"),
                of,
                "it is 0",
                "use at least 1 second",
            );
        }
        Some(task)
    }

    fn value<'m>(raw: &'m Map<String, Value>, path: &[Step]) -> Option<&'m Value> {
        let Some(Step::Key(key)) = path.last() else { return None };
        raw.get(*key).filter(|value| !value.is_null())
    }

    fn object<'m>(
        &mut self,
        raw: &'m Map<String, Value>,
        path: &[Step],
        task: Option<&str>,
        hint: &str,
    ) -> Option<&'m Map<String, Value>> {
        let value = Self::value(raw, path)?;
        if !value.is_object() {
            self.fault(path, task, format!("it is {}", short(value)), hint);
        }
        value.as_object()
    }

    fn string(
        &mut self,
        raw: &Map<String, Value>,
        path: &[Step],
        task: Option<&str>,
    ) -> Option<String> {
        match Self::value(raw, path)? {
            Value::String(text) => Some(text.clone()),
            other => {
                self.fault(path, task, format!("it is {}", short(other)), "use text or null");
                None
            }
        }
    }

    fn number(
        &mut self,
        raw: &Map<String, Value>,
        path: &[Step],
        task: Option<&str>,
    ) -> Option<u64> {
        let value = Self::value(raw, path)?;
        let number = whole(value);
        if number.is_none() {
            self.fault(
                path,
                task,
                format!("it is {}", short(value)),
                "use a whole number of at least 0",
            );
        }
        number
    }

    fn small(
        &mut self,
        raw: &Map<String, Value>,
        path: &[Step],
        task: Option<&str>,
    ) -> Option<u32> {
        self.number(raw, path, task).map(|number| u32::try_from(number).unwrap_or(u32::MAX))
    }

    fn time(
        &mut self,
        raw: &Map<String, Value>,
        path: &[Step],
        task: Option<&str>,
    ) -> Option<Timestamp> {
        let text = self.string(raw, path, task)?;
        let at = instant(&text);
        if at.is_none() {
            self.fault(
                path,
                task,
                format!("`{text}` is not a time"),
                "use a time like 2025-07-01T10:00:00Z",
            );
        }
        at
    }

    fn strings(
        &mut self,
        raw: &Map<String, Value>,
        path: &[Step],
        task: Option<&str>,
    ) -> Vec<String> {
        let Some(value) = Self::value(raw, path) else { return vec![] };
        let Value::Array(items) = value else {
            self.fault(path, task, format!("it is {}", short(value)), "use a list of texts");
            return vec![];
        };
        let texts: Option<Vec<_>> =
            items.iter().map(|item| item.as_str().map(String::from)).collect();
        texts.unwrap_or_else(|| {
            self.fault(path, task, "an item is not text", "use a list of texts");
            vec![]
        })
    }
}

pub(super) fn short(value: &Value) -> String {
    crate::agent::event::cut(&value.to_string(), 60)
}
