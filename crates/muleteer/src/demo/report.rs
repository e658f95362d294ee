//! What is told at the end: journals, commits, results, the checks, and how to look at each.

use crate::demo::cast::CAST;
use crate::demo::checks::Check;
use crate::demo::log::Log;
use crate::demo::place::Place;
use crate::demo::screen::color;
use crate::failure::Failure;
use crate::on_demand::own_program;
use crate::output::Output;
use crate::render::status::ending;
use crate::render::{BOLD, DIM, GREEN, RED, RESET, clip, usd};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// Room for a line of a journal.
const LINE: usize = 110;
/// Lines of a journal that everyone expects; the file has them.
const ROUTINE: [&str; 7] =
    ["tool_use:", "agent started", "session `", "turn ", "result:", "agent exited with", "attempt 1 started"];

pub fn show(
    out: Output,
    place: &Place,
    log: &Log,
    checks: &[Check],
    took: Duration,
    keep: bool,
) -> Result<(), Failure> {
    if out.json {
        return out.json_line(&document(place, log, checks, took, keep));
    }
    if !out.quiet {
        journals(out, log)?;
        commits(out, place, log)?;
        heading(out, "Results")?;
        for status in &log.statuses {
            out.line(format!("  {}{:<9}{RESET} {}", color(&status.role), status.role, ending(status)))?;
        }
        let total: f64 = log.statuses.iter().map(|status| status.cost_usd).sum();
        out.line(format!(
            "  {DIM}{} in all, as a model would have cost; a rehearsal costs nothing{RESET}",
            usd(total)
        ))?;
        look(out, place, log, keep)?;
        heading(out, "Checks")?;
    }
    for check in checks {
        let mark = if check.held { format!("{GREEN}✓{RESET}") } else { format!("{RED}✗{RESET}") };
        out.line(format!("  {mark} {}{DIM}: {}{RESET}", check.what, check.seen))?;
    }
    let failed = checks.iter().filter(|check| !check.held).count();
    let after = format!("after {:.1} s", took.as_secs_f64());
    match failed {
        0 => out.line(format!("\n{BOLD}{GREEN}all {} hold{RESET}, {after}", checks.len())),
        failed => out.line(format!("\n{BOLD}{RED}{failed} of {} do not hold{RESET}, {after}", checks.len())),
    }
}

fn heading(out: Output, text: &str) -> Result<(), Failure> {
    out.line(format!("\n{BOLD}{text}{RESET}"))
}

fn journals(out: Output, log: &Log) -> Result<(), Failure> {
    heading(out, "Journals, shortened")?;
    for part in &CAST {
        let Some(dispatch) = log.dispatch(part.role) else { continue };
        let path = Path::new(&dispatch.created.journal);
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        out.line(format!("  {}{}{RESET} {DIM}.agents/journals/demo/{name}{RESET}", color(part.role), part.role))?;
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let expected = |line: &str| ROUTINE.iter().any(|start| line.contains(&format!("[harness] {start}")));
        for line in text
            .lines()
            .filter(|line| line.starts_with("Status:") || line.starts_with("- "))
            .filter(|line| !expected(line))
        {
            out.line(format!("    {}", clip(line, LINE)))?;
        }
    }
    Ok(())
}

fn commits(out: Output, place: &Place, log: &Log) -> Result<(), Failure> {
    heading(out, "Commits")?;
    for (id, part) in &log.agents {
        out.line(format!("  {}muleteer/{id}{RESET}", color(part.role)))?;
        let range = format!("main..muleteer/{id}");
        // A branch that is not there is told by the checks.
        let shown = place.git(&["log", "--format=%h %s", "--shortstat", &range]).unwrap_or_default();
        for line in shown.lines().filter(|line| !line.is_empty()) {
            out.line(format!("    {}", clip(line, LINE)))?;
        }
    }
    Ok(())
}

fn look(out: Output, place: &Place, log: &Log, keep: bool) -> Result<(), Failure> {
    let program = own_program().display().to_string();
    let first = log.agents.first().map(|(id, _)| id.to_string()).unwrap_or_default();
    if keep {
        heading(out, &format!("Look around, in {}", place.root.display()))?;
    } else {
        heading(out, "Look around, after `muleteer demo --keep`, which leaves the folder and says where")?;
    }
    let folder = if keep { place.root.display().to_string() } else { "FOLDER".into() };
    let id = if keep { first } else { "ID".into() };
    let commands = [
        (format!(". {folder}/env.sh"), "point this shell at the private daemon's state"),
        (format!("{program} status"), "dispatches, and what came of them"),
        (format!("{program} status {id}"), "one in full"),
        (format!("{program} events --since 0"), "all that happened"),
        (format!("{program} journal {id}"), "a journal"),
        (format!("{program} logs {id}"), "all an agent printed and did"),
        (format!("git -C {folder}/wordtools log --graph --oneline --all"), "the work"),
    ];
    let width = commands.iter().map(|(command, _)| command.chars().count()).max().unwrap_or_default();
    for (command, what) in commands {
        out.line(format!("  {command:<width$}  {DIM}{what}{RESET}"))?;
    }
    Ok(())
}

fn document(place: &Place, log: &Log, checks: &[Check], took: Duration, keep: bool) -> Value {
    let commits: Vec<_> = log
        .agents
        .iter()
        .flat_map(|(id, part)| {
            let range = format!("main..muleteer/{id}");
            let shown = place.git(&["log", "--reverse", "--format=%H %s", &range]).unwrap_or_default();
            let commit = move |line: &str| {
                let (commit, subject) = line.split_once(' ')?;
                Some(json!({ "role": part.role, "branch": format!("muleteer/{id}"), "commit": commit, "subject": subject }))
            };
            shown.lines().filter_map(commit).collect::<Vec<_>>()
        })
        .collect();
    json!({
        "ok": checks.iter().all(|check| check.held),
        "seconds": (took.as_secs_f64() * 10.0).round() / 10.0,
        "checks": checks,
        "dispatches": log.statuses,
        "commits": commits,
        "cost_usd": log.statuses.iter().map(|status| status.cost_usd).sum::<f64>(),
        "kept": keep.then(|| place.root.display().to_string()),
    })
}
