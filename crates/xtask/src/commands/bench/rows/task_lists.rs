//! Rows about long task lists: the time of common verbs with ten thousand tasks, divided by that
//! with a thousand. A ratio of ten is linear growth.

use crate::commands::bench::measure::{Samples, in_turns, timed};
use crate::commands::bench::place::Place;
use crate::commands::bench::row::Options;
use serde_json::{Value, json};
use std::path::PathBuf;
use xtask::Failure;

const LONG: usize = 10_000;
const SHORT: usize = 1_000;

/// Measures `tasks status`, which reads all tasks and selects none.
pub fn status(options: &Options) -> Result<Samples, Failure> {
    growth(options, &["tasks", "status", "--json"])
}

/// Measures `tasks graph`: cycles, blocked tasks, and all eligible tasks in order.
pub fn selection(options: &Options) -> Result<Samples, Failure> {
    growth(options, &["tasks", "graph", "--json"])
}

fn growth(options: &Options, args: &[&str]) -> Result<Samples, Failure> {
    let place = options.place()?;
    let (short, long) = (list(&place, SHORT)?, list(&place, LONG)?);
    let run = |root: &PathBuf| -> Result<f64, Failure> {
        let mut command = place.muleteer(args);
        command.current_dir(root);
        let (status, took) = timed(|| Ok(command.status()?))?;
        if status.success() { Ok(took) } else { Err(format!("{args:?}: {status}").into()) }
    };
    let mut samples =
        in_turns(options.rounds * 2, Box::new(|| run(&short)), Box::new(|| run(&long)), vec![])?;
    samples.note = Some(format!(
        "{LONG} tasks, a third completed, each on the one before it and one far back"
    ));
    Ok(samples)
}

fn list(place: &Place, count: usize) -> Result<PathBuf, Failure> {
    let root = place.path(&format!("list-{count}"));
    std::fs::create_dir_all(&root)?;
    let id = |number: usize| format!("task-{number:05}");
    let task = |number: usize| -> Value {
        let needs = [number.checked_sub(1), Some(number / 2)]
            .into_iter()
            .flatten()
            .filter(|other| *other < number);
        let needs: Vec<_> = needs.map(id).collect();
        let status = if number < count / 3 { "completed" } else { "pending" };
        json!({
            "id": id(number), "title": format!("Task {number} of the list"), "status": status,
            "priority": format!("P{}", number % 3), "depends_on": needs, "attempts": 0,
            "max_attempts": 3,
            "validation": {"command": "make test", "timeout_seconds": 300}, "error_log": [],
            "checkpoints": [],
        })
    };
    let tasks: Vec<_> = (0..count).map(task).collect();
    let document = json!({"version": 2, "session_config": {}, "tasks": tasks, "session_count": 0});
    std::fs::write(root.join("harness-tasks.json"), document.to_string())?;
    Ok(root)
}
