//! The event that an agent CLI gives to a hook, the list that it means, and the variables of the
//! reference's hooks.

use crate::cli::failure::Failure;
use crate::verbs::work::tasks::place::variable;
use jiff::Timestamp;
use muleteer_backends::claude_code::PROJECT_DIR;
use muleteer_model::agent::event::cut;
use muleteer_model::task_list::TASKS;
use muleteer_model::task_list::document::iso;
use muleteer_model::task_list::session::hook::REFLECTIONS;
use muleteer_model::text::foreign_json;
use muleteer_protocol::ErrorCode;
use muleteer_store::task_list::Root;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The maximum length of a CLI's event.
const INPUT_LIMIT: usize = 16 * 1024 * 1024;
/// The file that the reference's hook creates when all tasks are done.
const REFLECT: &str = ".harness-reflect";
/// The fields of an event that the log of the hooks names, as in the reference.
const LOGGED: [&str; 9] = [
    "session_id",
    "cwd",
    "source",
    "reason",
    "teammate_name",
    "team_name",
    "agent_id",
    "agent_type",
    "stop_hook_active",
];
/// The maximum length of one field there.
const LOGGED_LENGTH: usize = 4096;

/// A CLI's event: those fields of Claude Code's that matter.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) root: Root,
    pub(super) session: Option<String>,
    /// Whether the event counts as a repetition, so that rejections are counted and end.
    pub(super) again: bool,
    /// Whether the CLI says that an earlier stop was rejected.
    pub(super) is_repeated: bool,
    /// The names of the subagent.
    pub(super) agent: Vec<String>,
    pub(super) teammate: Option<String>,
    /// The name of the CLI's event.
    pub(super) name: String,
    /// The reason of a session's start: `startup`, `resume`, `compact`, ….
    pub(super) source: String,
    value: Value,
}

/// Reads the event. `None` if no list is found.
pub(super) fn read() -> Result<Option<Event>, Failure> {
    let document =
        foreign_json::read_from(&mut std::io::stdin().lock(), INPUT_LIMIT).map_err(|error| {
            Failure::new(ErrorCode::BadInput, format!("cannot read the event: {error}"))
        })?;
    // A damaged event must not let a session stop; the fields that could be read decide.
    let damaged = document.damage.is_some() && !document.is_empty;
    if let Some(fault) = document.fault().filter(|_| !document.is_empty) {
        drop(writeln!(std::io::stderr(), "muleteer hook: the event is invalid: {fault}"));
    }
    let value = document.value;
    let field = |key: &str| {
        value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(String::from)
    };
    let Some(dir) = pinned().or_else(|| list_above(&starts(field("cwd").map(PathBuf::from))))
    else {
        return Ok(None);
    };
    let said = value.get("stop_hook_active").map(is_true);
    let session = field("session_id");
    Ok(Some(Event {
        root: Root::at(&dir),
        // Rejections of a damaged event without a session are nobody's, so that they do not end.
        again: said.unwrap_or(damaged && session.is_some()),
        session,
        is_repeated: said == Some(true),
        agent: ["agent_id", "agent_type", "agent_name"].into_iter().filter_map(field).collect(),
        teammate: field("teammate_name"),
        name: field("hook_event_name").unwrap_or_default(),
        source: field("source").unwrap_or_default(),
        value,
    }))
}

/// Returns whether a value counts as true for the reference's hooks, which do not ask for its type.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(is_true) => *is_true,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(object) => !object.is_empty(),
    }
}

/// Returns the directory that `HARNESS_STATE_ROOT` names, if it has a list or the backup of one.
fn pinned() -> Option<PathBuf> {
    let dir = std::env::var_os("HARNESS_STATE_ROOT").filter(|path| !path.is_empty())?;
    let dir = PathBuf::from(dir);
    Root::find(&dir, Some(&dir)).is_ok().then_some(dir)
}

/// Returns the directories from which a list is searched, in order. The session's project comes
/// first, because the session may have changed to another directory. A path that is not UTF-8
/// arrives changed in the event's JSON; then this process's own directory comes before it.
fn starts(cwd: Option<PathBuf>) -> Vec<PathBuf> {
    let project = std::env::var_os(PROJECT_DIR).filter(|path| !path.is_empty()).map(PathBuf::from);
    let here = std::env::current_dir().ok();
    let is_there = cwd.as_ref().is_some_and(|cwd| cwd.is_dir());
    let [first, second] = if is_there { [cwd, here] } else { [here, cwd] };
    [project, first, second].into_iter().flatten().collect()
}

fn list_above(starts: &[PathBuf]) -> Option<PathBuf> {
    let mut dirs = starts.iter().flat_map(|start| start.ancestors());
    dirs.find(|dir| dir.join(TASKS).is_file()).map(Path::to_path_buf)
}

impl Event {
    /// Returns the key of the session's memory.
    pub(super) fn key(&self) -> &str {
        self.session.as_deref().unwrap_or("unknown")
    }

    /// Returns the worker name of this session.
    pub(super) fn worker(&self) -> String {
        variable("HARNESS_WORKER_ID").unwrap_or_else(|| {
            let id: String = self
                .key()
                .chars()
                .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
                .take(8)
                .collect();
            format!("claude-{id}")
        })
    }

    /// Returns the worker name of this session, if the event or the environment has it.
    pub(super) fn known_worker(&self) -> Option<String> {
        let is_known = self.session.is_some() || variable("HARNESS_WORKER_ID").is_some();
        is_known.then(|| self.worker())
    }

    /// Returns the file by which the reference's hooks ask for a review.
    pub(super) fn reflect(&self) -> PathBuf {
        self.root.path().join(REFLECT)
    }

    /// Appends a line about this call to the file that `HARNESS_HOOK_LOG` names. It is for
    /// debugging, so a failure is ignored.
    pub(super) fn log(&self, hook: &str) {
        let Some(path) = variable("HARNESS_HOOK_LOG") else { return };
        let path = match (path.strip_prefix("~/"), std::env::var_os("HOME")) {
            (Some(rest), Some(home)) => Path::new(&home).join(rest),
            _ => PathBuf::from(path),
        };
        let mut line = Map::new();
        line.insert("ts".into(), json!(iso(Timestamp::now())));
        line.insert("hook_script".into(), json!(hook));
        line.insert("hook_event_name".into(), json!(cut(&self.name, LOGGED_LENGTH)));
        line.insert("harness_root".into(), json!(self.root.path().to_string_lossy()));
        for key in LOGGED {
            let value = match self.value.get(key) {
                None => continue,
                Some(Value::String(text)) => json!(cut(text, LOGGED_LENGTH)),
                Some(value) if value.is_object() || value.is_array() => continue,
                Some(value) => value.clone(),
            };
            line.insert(key.into(), value);
        }
        // A pipe without a reader must not block the hook.
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let write = || -> std::io::Result<()> {
            path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            let mut options = std::fs::OpenOptions::new();
            let mut file = options.create(true).append(true).custom_flags(flags).open(&path)?;
            file.write_all(format!("{}\n", Value::Object(line)).as_bytes())
        };
        drop(write());
    }
}

/// Returns how often a review is requested: `REFLECT_MAX_ITERATIONS`, else [`REFLECTIONS`]. 0
/// switches the review off.
pub(super) fn reflections() -> u32 {
    let number =
        variable("REFLECT_MAX_ITERATIONS").and_then(|text| text.trim().parse::<i64>().ok());
    number.map_or(REFLECTIONS, |number| u32::try_from(number.max(0)).unwrap_or(u32::MAX))
}
