//! The report at the end: the run, its commits, the checks, and how to inspect each.

use crate::cli::failure::Failure;
use crate::cli::output::Output;
use crate::client::on_demand::own_program;
use crate::demo::cast::CAST;
use crate::demo::checks::Check;
use crate::demo::log::Log;
use crate::demo::place::Place;
use crate::demo::screen::color;
use crate::render::run as told;
use crate::render::{BOLD, DIM, GREEN, RED, RESET, clip, usd};
use jiff::Timestamp;
use muleteer_model::spec_run::checkpoint;
use muleteer_model::spec_run::report::status::Standing;
use serde_json::{Value, json};
use std::time::Duration;

/// The width of a line.
const LINE: usize = 110;

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
        run(out, log)?;
        commits(out, place)?;
        look(out, place, log, keep)?;
        heading(out, "Checks")?;
    }
    for check in checks {
        let mark =
            if check.held { format!("{GREEN}✓{RESET}") } else { format!("{RED}✗{RESET}") };
        out.line(format!("  {mark} {}{DIM}: {}{RESET}", check.what, check.seen))?;
    }
    let failed = checks.iter().filter(|check| !check.held).count();
    let after = format!("after {:.1} s", took.as_secs_f64());
    match failed {
        0 => out.line(format!("\n{BOLD}{GREEN}all {} passed{RESET}, {after}", checks.len())),
        failed => {
            out.line(format!("\n{BOLD}{RED}{failed} of {} failed{RESET}, {after}", checks.len()))
        }
    }
}

fn heading(out: Output, text: &str) -> Result<(), Failure> {
    out.line(format!("\n{BOLD}{text}{RESET}"))
}

fn run(out: Output, log: &Log) -> Result<(), Failure> {
    heading(out, "muleteer run report")?;
    let Some(chronicle) = &log.chronicle else { return out.line("  the run did not start") };
    let standing = Standing::of(&chronicle.run, None, true, Timestamp::now());
    for line in told::report(&chronicle.run, &standing).lines() {
        out.line(format!("  {line}"))?;
    }
    out.line(format!(
        "  {DIM}{} in all, at the price of a model; a rehearsal costs nothing{RESET}",
        usd(chronicle.run.cost_usd)
    ))
}

fn commits(out: Output, place: &Place) -> Result<(), Failure> {
    heading(out, "git log main")?;
    // The checks report missing commits.
    let shown = place.git(&["log", "--format=%h %s", "--shortstat", "main"]).unwrap_or_default();
    for line in shown.lines().filter(|line| !line.is_empty()) {
        let part =
            CAST.iter().find(|part| part.commits.iter().any(|subject| line.ends_with(subject)));
        out.line(format!(
            "    {}{}{RESET}",
            part.map_or("", |part| color(part.key)),
            clip(line, LINE)
        ))?;
    }
    Ok(())
}

fn look(out: Output, place: &Place, log: &Log, keep: bool) -> Result<(), Failure> {
    let program = own_program().display().to_string();
    if keep {
        heading(out, &format!("Inspect the demo in {}", place.root.display()))?;
    } else {
        heading(out, "Inspect the demo after `muleteer demo --keep`, which keeps its folder")?;
    }
    let folder = if keep { place.root.display().to_string() } else { "FOLDER".into() };
    let run = if keep { log.run_id.as_str() } else { "" };
    let commands = [
        (format!("{folder}/run.html"), "an HTML page of the run: graph, timeline, cost, findings"),
        (format!(". {folder}/env.sh && cd {folder}/wordtools"), "use it in this shell"),
        (format!("{program} run report {run}"), "the work and the result of the run"),
        (format!("{program} run report --html run.html"), "that page for any run"),
        (format!("{program} status"), "its agents' dispatches"),
        (format!("{program} events --since 0"), "their events"),
        ("git log --graph --oneline --all".into(), "the work"),
    ];
    let width =
        commands.iter().map(|(command, _)| command.chars().count()).max().unwrap_or_default();
    for (command, what) in commands {
        out.line(format!("  {:<width$}  {DIM}{what}{RESET}", command.trim_end()))?;
    }
    Ok(())
}

fn document(place: &Place, log: &Log, checks: &[Check], took: Duration, keep: bool) -> Value {
    let shown = place.git(&["log", "--reverse", "--format=%H %s", "main"]).unwrap_or_default();
    let commits: Vec<_> = shown
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(commit, subject)| {
            let part = CAST.iter().find(|part| part.commits.contains(&subject))?;
            Some(json!({ "bead": part.title, "commit": commit, "subject": subject }))
        })
        .collect();
    let run = log.chronicle.as_ref().map(|chronicle| &chronicle.run);
    json!({
        "ok": checks.iter().all(|check| check.held),
        "seconds": (took.as_secs_f64() * 10.0).round() / 10.0,
        "checks": checks,
        "run": run.map(checkpoint::document),
        "dispatches": log.statuses,
        "commits": commits,
        "cost_usd": run.map_or(0.0, |run| run.cost_usd),
        "kept": keep.then(|| place.root.display().to_string()),
    })
}
