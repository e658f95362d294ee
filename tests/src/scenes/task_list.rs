//! A repository with a task list in it, and the invariants of the list and its log.

use crate::run::Running;
use crate::{Output, Repo, World, wait_until};
use serde_json::{Value, json};
use std::time::Duration;

/// Longer than any run of these tests may take on a loaded machine.
pub const RUN: Duration = Duration::from_secs(240);

const TYPES: [&str; 10] = [
    "INIT",
    "Starting",
    "Completed",
    "ERROR",
    "CHECKPOINT",
    "ROLLBACK",
    "RECOVERY",
    "STATS",
    "LOCK",
    "WARN",
];
const CATEGORIES: [&str; 7] =
    ["ENV_SETUP", "CONFIG", "TASK_EXEC", "TEST_FAIL", "TIMEOUT", "DEPENDENCY", "SESSION_TIMEOUT"];

#[derive(Debug)]
pub struct Scene {
    pub world: World,
    pub repo: Repo,
}

impl Default for Scene {
    fn default() -> Self {
        Self::new()
    }
}

impl Scene {
    /// Creates a repository with an empty list.
    pub fn new() -> Self {
        let world = World::new();
        let repo = world.repo("repo");
        let scene = Self { world, repo };
        scene.tasks(&["init"]).expect_code(0);
        scene
    }

    /// Runs `muleteer tasks …` in the repository.
    pub fn tasks(&self, args: &[&str]) -> Output {
        let args: Vec<_> = ["tasks"].iter().chain(args).copied().collect();
        self.world.muleteer(&args).current_dir(&self.repo.path).deadline(RUN).run()
    }

    pub fn add(&self, title: &str, validate: &str, more: &[&str]) -> String {
        let args: Vec<_> =
            ["add", title, "--validate", validate].iter().chain(more).copied().collect();
        self.tasks(&args).expect_code(0).stdout.trim().to_string()
    }

    /// Runs `muleteer tasks run` with a shell script as the agent.
    pub fn run(&self, script: &str, more: &[&str]) -> Output {
        let args: Vec<_> = ["run", "--backend", "subprocess", "--command", script]
            .iter()
            .chain(more)
            .copied()
            .collect();
        self.tasks(&args)
    }

    /// Begins a run by a client that never starts a daemon. A test that kills daemons starts the
    /// next one itself. The client's own end means nothing.
    pub fn begin(&self, script: &str, workers: u64) -> Running {
        let socket = wait_until("the daemon to answer", RUN, || {
            let status = self.world.status();
            (status["daemon"]["running"] == true)
                .then(|| status["daemon"]["socket"].as_str().map(String::from))?
        });
        let workers = workers.to_string();
        let args =
            ["tasks", "run", "--detach", "--concurrency", &workers, "--backend", "subprocess"];
        let args = [&args[..], &["--command", script]].concat();
        let client = self.world.muleteer(&args).current_dir(&self.repo.path).deadline(RUN);
        client.env("MULETEER_SOCKET", socket).start()
    }

    /// Runs a hook as Claude Code does, with this event on its stdin.
    pub fn hook(&self, name: &str, event: &serde_json::Value) -> Output {
        let hook = self.world.muleteer(&["hook", name]).current_dir(&self.repo.path);
        hook.stdin(&event.to_string()).run()
    }

    /// Waits until all tasks are completed and the run is over.
    pub fn wait_until_done(&self) {
        wait_until("the run to be over", RUN, || {
            (self.is_done() && self.log().trim_end().ends_with("LOCK released")).then_some(())
        });
    }

    /// Reads the list.
    ///
    /// # Panics
    /// When the list does not parse: it always must.
    pub fn list(&self) -> Value {
        let text = self.repo.read("harness-tasks.json");
        serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("the list always parses: {error}\n{text}"))
    }

    pub fn all(&self) -> Vec<Value> {
        self.list()["tasks"].as_array().expect("tasks").clone()
    }

    pub fn task(&self, id: &str) -> Value {
        self.all().into_iter().find(|task| task["id"] == id).unwrap_or_else(|| panic!("no {id}"))
    }

    pub fn status(&self, id: &str) -> String {
        self.task(id)["status"].as_str().expect("a status").to_string()
    }

    pub fn is_done(&self) -> bool {
        self.all().iter().all(|task| task["status"] == "completed")
    }

    pub fn configure(&self, key: &str, value: Value) {
        let mut list = self.list();
        list["session_config"][key] = value;
        self.repo.write("harness-tasks.json", &list.to_string());
    }

    pub fn log(&self) -> String {
        self.repo.read("harness-progress.txt")
    }

    /// Checks that every line of the log follows the grammar, without the product's code.
    pub fn check_log(&self) {
        let log = self.log();
        assert!(log.ends_with('\n'), "the last line has an end: {log}");
        for line in log.lines() {
            if let Err(why) = self.fits(line) {
                panic!("{why}: {line}");
            }
        }
    }

    /// Checks one line against the grammar.
    ///
    /// # Errors
    /// The rule that the line breaks.
    pub fn fits(&self, line: &str) -> Result<(), &'static str> {
        let known: Vec<String> =
            self.all().iter().filter_map(|task| task["id"].as_str().map(String::from)).collect();
        fits(line, &known)
    }

    /// Checks that every task was completed exactly once, and that no lease is left.
    pub fn check_done_once(&self) {
        let log = self.log();
        for task in self.all() {
            let id = task["id"].as_str().expect("an id");
            assert_eq!(task["status"], "completed", "lost: {task}\n{log}");
            assert_eq!(
                log.matches(&format!("] Completed [{id}] ")).count(),
                1,
                "{id} is done once\n{log}"
            );
            assert!(task["lease_expires_at"].is_null(), "a lease outlives its holder: {task}");
        }
        self.check_log();
    }

    /// Changes a task as if another tool or a killed session had stopped in the middle of it.
    /// Returns the commit at which it began.
    pub fn interrupt(&self, id: &str) -> String {
        let base = self.repo.git(&["rev-parse", "HEAD"]);
        let mut list = self.list();
        for task in
            list["tasks"].as_array_mut().expect("tasks").iter_mut().filter(|task| task["id"] == id)
        {
            task["status"] = json!("in_progress");
            task["started_at_commit"] = json!(base);
        }
        self.repo.write("harness-tasks.json", &serde_json::to_string_pretty(&list).expect("JSON"));
        base
    }

    /// Changes a task as if a worker had claimed it and died: the lease is over.
    pub fn abandon(&self, id: &str) {
        self.interrupt(id);
        let mut list = self.list();
        for task in
            list["tasks"].as_array_mut().expect("tasks").iter_mut().filter(|task| task["id"] == id)
        {
            task["claimed_by"] = json!("gone");
            task["lease_expires_at"] = json!("2025-07-01T10:00:00Z");
        }
        self.repo.write("harness-tasks.json", &serde_json::to_string_pretty(&list).expect("JSON"));
    }

    pub fn home(&self, name: &str) -> std::path::PathBuf {
        self.world.home().join(name)
    }

    /// Returns the lines that agents wrote there, sorted.
    pub fn effects(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.home("effects")).unwrap_or_default();
        let mut lines: Vec<_> = text.lines().map(String::from).collect();
        lines.sort_unstable();
        lines
    }

    pub fn end(self) {
        self.check_log();
        self.world.finish(None);
    }
}

/// Checks `[ISO-timestamp] [SESSION-N] <TYPE> [task-id]? [category]? message`, and the required
/// parts of each type.
fn fits(line: &str, known: &[String]) -> Result<(), &'static str> {
    let (at, rest) = bracketed(line).ok_or("no timestamp")?;
    let digits = |text: &str, form: &str| {
        text.len() == form.len()
            && text
                .bytes()
                .zip(form.bytes())
                .all(|(c, f)| if f == b'0' { c.is_ascii_digit() } else { c == f })
    };
    if !digits(at, "0000-00-00T00:00:00Z") {
        return Err("the timestamp is not ISO");
    }
    let (session, rest) = bracketed(rest).ok_or("no session")?;
    let number = session.strip_prefix("SESSION-").ok_or("no session")?;
    if number.parse::<u64>().is_err() {
        return Err("no session's number");
    }
    let (kind, rest) = rest.split_once(' ').ok_or("no message")?;
    if !TYPES.contains(&kind) {
        return Err("an unknown type");
    }
    let task = bracketed(rest).filter(|(id, _)| known.iter().any(|known| known == id));
    let message = task.map_or(rest, |(_, rest)| rest);
    if message.trim().is_empty() {
        return Err("no message");
    }
    let after = |prefix: &str| message.strip_prefix(prefix);
    let good = match kind {
        "INIT" => task.is_none(),
        "LOCK" => task.is_none() && (message == "released" || after("acquired (pid=").is_some()),
        "STATS" => {
            let names = [
                "tasks_total",
                "completed",
                "failed",
                "pending",
                "blocked",
                "attempts_total",
                "checkpoints",
            ];
            let fields: Vec<_> =
                message.split(' ').filter_map(|field| field.split_once('=')).collect();
            task.is_none()
                && fields.iter().map(|(name, _)| *name).eq(names)
                && fields.iter().all(|(_, value)| value.parse::<u64>().is_ok())
        }
        "Starting" => task.is_some() && message.contains("(base=") && message.ends_with(')'),
        "Completed" => task.is_some() && after("(commit ").is_some_and(|rest| rest.ends_with(')')),
        "CHECKPOINT" => task.is_some() && after("step=").is_some_and(|rest| rest.ends_with('"')),
        "ROLLBACK" => task.is_some() && after("git reset --hard ").is_some(),
        "RECOVERY" => {
            task.is_some() && after("action=\"").is_some_and(|rest| rest.contains("\" reason=\""))
        }
        "ERROR" => bracketed(message).is_some_and(|(category, _)| CATEGORIES.contains(&category)),
        _ => true,
    };
    if good { Ok(()) } else { Err("not what its type must say") }
}

fn bracketed(text: &str) -> Option<(&str, &str)> {
    let (inside, rest) = text.strip_prefix('[')?.split_once(']')?;
    Some((inside, rest.strip_prefix(' ').unwrap_or(rest)))
}
