//! `harness-progress.txt`: one line per event, in a form for grep.
//!
//! `[ISO-timestamp] [SESSION-N] <TYPE> [task-id]? [category]? message`

use crate::task_list::category::{Category, one_line};
use crate::task_list::document::Task;
use crate::task_list::select::FailureTimes;
use crate::task_list::stats::Stats;
use crate::text::commit_hash::short;
use jiff::Timestamp;
use std::collections::HashSet;
use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Init,
    Starting,
    Completed,
    Error,
    Checkpoint,
    Rollback,
    Recovery,
    Stats,
    Lock,
    Warn,
}

impl Kind {
    pub const ALL: [Self; 10] = [
        Self::Init,
        Self::Starting,
        Self::Completed,
        Self::Error,
        Self::Checkpoint,
        Self::Rollback,
        Self::Recovery,
        Self::Stats,
        Self::Lock,
        Self::Warn,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Init => "INIT",
            Self::Starting => "Starting",
            Self::Completed => "Completed",
            Self::Error => "ERROR",
            Self::Checkpoint => "CHECKPOINT",
            Self::Rollback => "ROLLBACK",
            Self::Recovery => "RECOVERY",
            Self::Stats => "STATS",
            Self::Lock => "LOCK",
            Self::Warn => "WARN",
        }
    }
}

/// The content of a line, without its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub kind: Kind,
    pub task: Option<String>,
    pub category: Option<Category>,
    pub message: String,
}

/// A whole line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub at: Timestamp,
    pub session: u64,
    pub entry: Entry,
}

impl Entry {
    fn new(kind: Kind, task: Option<&str>, category: Option<Category>, message: &str) -> Self {
        Self { kind, task: task.map(String::from), category, message: one_line(message) }
    }

    pub fn init(message: &str) -> Self {
        Self::new(Kind::Init, None, None, message)
    }

    pub fn lock_acquired(pid: u32) -> Self {
        Self::new(Kind::Lock, None, None, &format!("acquired (pid={pid})"))
    }

    pub fn lock_released() -> Self {
        Self::new(Kind::Lock, None, None, "released")
    }

    pub fn starting(task: &Task, base: &str) -> Self {
        let title = crate::agent::event::cut(&one_line(&task.title), 300);
        Self::new(Kind::Starting, Some(&task.id), None, &format!("{title} (base={})", short(base)))
    }

    pub fn completed(task: &str, commit: &str) -> Self {
        Self::new(Kind::Completed, Some(task), None, &format!("(commit {})", short(commit)))
    }

    pub fn error(task: Option<&str>, category: Category, message: &str) -> Self {
        Self::new(Kind::Error, task, Some(category), message)
    }

    pub fn checkpoint(task: &str, step: u64, total: u64, text: &str) -> Self {
        let text = crate::agent::event::cut(&one_line(text), 400).replace('"', "'");
        Self::new(Kind::Checkpoint, Some(task), None, &format!("step={step}/{total} \"{text}\""))
    }

    /// `saved` is the ref that holds what the rollback removed.
    pub fn rollback(task: &str, base: &str, saved: Option<&str>) -> Self {
        let saved = saved.map_or_else(String::new, |name| format!(" (saved as {name})"));
        Self::new(
            Kind::Rollback,
            Some(task),
            None,
            &format!("git reset --hard {}{saved}", short(base)),
        )
    }

    pub fn recovery(task: &str, action: &str, reason: &str) -> Self {
        let quote = |text: &str| one_line(text).replace('"', "'");
        let message = format!("action=\"{}\" reason=\"{}\"", quote(action), quote(reason));
        Self::new(Kind::Recovery, Some(task), None, &message)
    }

    pub fn stats(stats: &Stats) -> Self {
        Self::new(Kind::Stats, None, None, &stats.to_string())
    }

    pub fn warn(task: Option<&str>, message: &str) -> Self {
        Self::new(Kind::Warn, task, None, message)
    }

    /// Returns the line for an entry. Muleteer writes whole seconds; other tools may write
    /// fractions.
    pub fn at(self, session: u64, at: Timestamp) -> Line {
        let at = Timestamp::from_second(at.as_second()).unwrap_or(at);
        Line { at, session, entry: self }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { kind, task, category, message } = &self.entry;
        write!(out, "[{}] [SESSION-{}] {}", self.at, self.session, kind.as_str())?;
        if let Some(task) = task {
            write!(out, " [{task}]")?;
        }
        if let Some(category) = category {
            write!(out, " [{category}]")?;
        }
        if message.is_empty() { Ok(()) } else { write!(out, " {message}") }
    }
}

/// Parses a line; `None` if it does not follow the grammar.
pub fn parse(line: &str) -> Option<Line> {
    let (at, rest) = line.strip_prefix('[')?.split_once("] [SESSION-")?;
    let (session, rest) = rest.split_once("] ")?;
    let (word, mut rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let kind = Kind::ALL.into_iter().find(|kind| kind.as_str() == word)?;
    let mut bracket = |fits: &dyn Fn(&str) -> bool| -> Option<String> {
        let (inside, after) = rest.strip_prefix('[')?.split_once(']')?;
        if !fits(inside) || !(after.is_empty() || after.starts_with(' ')) {
            return None;
        }
        rest = after.trim_start();
        Some(inside.to_string())
    };
    // A category without a task is an error of the whole session.
    let task = bracket(&|text| {
        crate::task_list::document::valid_id(text) && Category::parse(text).is_none()
    });
    let category =
        bracket(&|text| Category::parse(text).is_some()).and_then(|text| Category::parse(&text));
    let session_level = matches!(kind, Kind::Init | Kind::Lock | Kind::Stats);
    if (session_level && task.is_some()) || (kind == Kind::Error && category.is_none()) {
        return None;
    }
    let entry = Entry { kind, task, category, message: rest.to_string() };
    Some(Line { at: at.parse().ok()?, session: session.parse().ok()?, entry })
}

/// Returns when each task failed last, according to the log.
pub fn failure_times<'a>(lines: impl IntoIterator<Item = &'a str>) -> FailureTimes {
    let errors = lines.into_iter().filter(|line| line.contains("] ERROR [")).filter_map(parse);
    errors.filter_map(|line| Some((line.entry.task?, line.at))).collect()
}

/// Returns how many attempts ended in a session, according to the log. The lines of other tools
/// count also if they do not follow the grammar.
pub fn attempts_in<'a>(lines: impl IntoIterator<Item = &'a str>, session: u64) -> u64 {
    let tag = format!("[SESSION-{session}] ");
    let is_end = |line: &&str| match parse(line).map(|line| line.entry) {
        Some(Entry { kind: Kind::Completed, .. }) => true,
        Some(Entry { kind: Kind::Error, task, category, .. }) => {
            task.is_some() && category != Some(Category::Dependency)
        }
        Some(_) => false,
        None => {
            line.contains(" Completed [") || line.contains(" ERROR [") && line.contains("[task-")
        }
    };
    lines.into_iter().filter(|line| line.contains(&tag)).filter(is_end).count() as u64
}

/// Returns the commits (in short form) with which tasks were completed, according to the log.
pub fn completions<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<(String, String)> {
    let completed =
        lines.into_iter().filter(|line| line.contains("] Completed [")).filter_map(parse);
    let named = |line: Line| {
        let commit = line.entry.message.strip_prefix("(commit ")?.strip_suffix(')')?.to_string();
        Some((line.entry.task?, commit))
    };
    completed.filter_map(named).collect()
}

/// The tasks that workers began and completed, according to the log.
#[derive(Debug, Default)]
pub struct Doings {
    pub begun: HashSet<String>,
    pub completed: HashSet<String>,
}

impl Doings {
    pub fn of<'a>(lines: impl IntoIterator<Item = &'a str>) -> Self {
        let mut all = Self::default();
        for Line { entry, .. } in lines.into_iter().filter_map(parse) {
            match (entry.kind, entry.task) {
                (Kind::Starting, Some(task)) => drop(all.begun.insert(task)),
                (Kind::Completed, Some(task)) => drop(all.completed.insert(task)),
                _ => {}
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The protocol's example, unchanged.
    const REFERENCE: &str = "\
[2025-07-01T10:00:00Z] [SESSION-1] INIT Harness initialized for project /path/to/project
[2025-07-01T10:00:05Z] [SESSION-1] INIT Environment health check: PASS
[2025-07-01T10:00:10Z] [SESSION-1] LOCK acquired (pid=12345)
[2025-07-01T10:00:11Z] [SESSION-1] Starting [task-001] Implement user authentication (base=def5678)
[2025-07-01T10:05:00Z] [SESSION-1] CHECKPOINT [task-001] \
step=2/4 \"auth routes created, tests pending\"
[2025-07-01T10:15:30Z] [SESSION-1] Completed [task-001] (commit abc1234)
[2025-07-01T10:15:31Z] [SESSION-1] Starting [task-002] Add rate limiting (base=abc1234)
[2025-07-01T10:20:00Z] [SESSION-1] ERROR [task-002] [TASK_EXEC] Redis connection refused
[2025-07-01T10:20:01Z] [SESSION-1] ROLLBACK [task-002] git reset --hard abc1234
[2025-07-01T10:20:02Z] [SESSION-1] STATS tasks_total=5 completed=1 failed=1 \
pending=3 blocked=0 attempts_total=2 checkpoints=1";

    #[test]
    fn reference_log_lines_round_trip() {
        let mut auth = Task::new("task-001", "Implement user authentication");
        let stats = Stats {
            tasks_total: 5,
            completed: 1,
            failed: 1,
            pending: 3,
            attempts_total: 2,
            checkpoints: 1,
            ..Stats::default()
        };
        let written = [
            Entry::init("Harness initialized for project /path/to/project"),
            Entry::init("Environment health check: PASS"),
            Entry::lock_acquired(12345),
            Entry::starting(&auth, "def5678"),
            Entry::checkpoint("task-001", 2, 4, "auth routes created, tests pending"),
            Entry::completed("task-001", "abc1234"),
            {
                (auth.id, auth.title) = ("task-002".into(), "Add rate limiting".into());
                Entry::starting(&auth, "abc1234")
            },
            Entry::error(Some("task-002"), Category::TaskExec, "Redis connection refused"),
            Entry::rollback("task-002", "abc1234", None),
            Entry::stats(&stats),
        ];
        for (line, entry) in REFERENCE.lines().zip(written) {
            let read = parse(line).unwrap_or_else(|| panic!("not read: {line}"));
            assert_eq!(read.to_string(), line);
            assert_eq!(read.entry, entry);
            assert_eq!(entry.at(1, read.at).to_string(), line);
        }
    }

    #[test]
    fn every_log_entry_is_one_line_of_the_grammar() {
        let at = "2025-07-01T10:00:00Z".parse().expect("an instant");
        let nasty =
            "a\nb] [x] \"quoted\"\r\n[2025-07-01T10:00:00Z] [SESSION-9] INIT forged \u{1b}[31m";
        let mut task = Task::new("task-001", nasty);
        task.description = Some(nasty.into());
        for entry in [
            Entry::init(nasty),
            Entry::lock_acquired(7),
            Entry::lock_released(),
            Entry::starting(&task, "abc"),
            Entry::completed("task-001", "abc"),
            Entry::error(Some("task-001"), Category::TestFail, nasty),
            Entry::error(None, Category::Config, nasty),
            Entry::checkpoint("task-001", 1, 2, nasty),
            Entry::rollback("task-001", "abc", Some("refs/muleteer/rollback/task-001/1")),
            Entry::recovery("task-001", nasty, nasty),
            Entry::stats(&Stats::default()),
            Entry::warn(Some("task-001"), nasty),
            Entry::warn(None, nasty),
        ] {
            let line = entry.clone().at(3, at).to_string();
            assert!(!line.contains(['\n', '\r', '\u{1b}']), "{line:?}");
            let read = parse(&line).unwrap_or_else(|| panic!("not read: {line}"));
            assert_eq!(
                (read.entry.kind, read.entry.category, read.session),
                (entry.kind, entry.category, 3),
                "{line}"
            );
        }
    }

    #[test]
    fn text_outside_the_grammar_is_rejected() {
        for line in [
            "",
            "free text",
            "[yesterday] [SESSION-1] INIT x",
            "[2025-07-01T10:00:00Z] [SESSION-x] INIT x",
            "[2025-07-01T10:00:00Z] [SESSION-1] NOTE x",
            "[2025-07-01T10:00:00Z] [SESSION-1] ERROR [task-001] no category",
            "[2025-07-01T10:00:00Z] [SESSION-1] STATS [task-001] x",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn attempts_of_a_session_are_counted_from_the_log() {
        let foreign = "[SESSION-2] Completed [task-1]\n[SESSION-1] ERROR [CONFIG] no list\n\
            [2025-07-01T10:20:00Z] [SESSION-1] ERROR [x] [DEPENDENCY] Blocked by failed y";
        let lines = || REFERENCE.lines().chain(foreign.lines());
        assert_eq!([1, 2, 3].map(|session| attempts_in(lines(), session)), [2, 1, 0]);
    }

    #[test]
    fn failures_are_dated_from_the_log() {
        let times = failure_times(REFERENCE.lines());
        assert_eq!(
            times.get("task-002").map(ToString::to_string).as_deref(),
            Some("2025-07-01T10:20:00Z")
        );
    }
}
