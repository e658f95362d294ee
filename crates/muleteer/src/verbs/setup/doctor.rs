//! `doctor`: reports problems of this machine, how to fix them, and which features are best effort
//! here.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::doctor;
use crate::render::{BOLD, DIM, GREEN, RED, RESET, YELLOW, safe};
use muleteer_model::agent::capability::Features;
use muleteer_model::doctor::{Check, Status, is_well, judge};
use serde_json::json;
use std::fmt::Write as _;

const EXAMPLES: &str = "\
Examples:
  muleteer doctor
  muleteer doctor --json | jq '.checks[] | select(.status == \"fail\")'

Each check is ok, warn (works with a limitation), fail, or skip (does not apply here). Exits 0 if \
no check fails, else 4. The checks change nothing.";

/// Check what Muleteer needs here: agent CLIs, git, directories, sandbox, limits, telemetry
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {}

pub async fn run(_: &Args, context: &Context) -> Result<Exit, Failure> {
    let facts = doctor::facts(context).await;
    let checks = judge(&facts);
    if context.out.json {
        let count = |status| checks.iter().filter(|check| check.status == status).count();
        let summary: serde_json::Map<_, _> = Status::ALL
            .into_iter()
            .map(|status| (status.as_str().to_string(), count(status).into()))
            .collect();
        context
            .out
            .document(&json!({ "ok": is_well(&checks), "checks": checks, "summary": summary }))?;
    } else {
        context.out.text(render(&checks))?;
    }
    Ok(if is_well(&checks) { Exit::Done } else { Exit::Failed })
}

/// Returns the capabilities that an agent has, and those that it lacks.
fn capability_words(features: Features) -> String {
    let list = |wanted: bool| {
        let names = features.named().into_iter().filter(|(_, has)| *has == wanted);
        names.map(|(name, _)| name).collect::<Vec<_>>().join(", ")
    };
    format!("{}; not: {}", list(true), list(false))
}

/// Renders one line for each check; the remedy and the fallback follow below it.
pub fn render(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
    let indent = " ".repeat(width + 8);
    let mut text = String::new();
    for check in checks {
        let color = match check.status {
            Status::Ok => GREEN,
            Status::Warn => YELLOW,
            Status::Fail => RED,
            Status::Skip => DIM,
        };
        let (status, name, message) = (check.status.as_str(), &check.name, safe(&check.message));
        let _ = writeln!(text, "{color}{status:<4}{RESET}  {BOLD}{name:<width$}{RESET}  {message}");
        let can = check.capabilities.map(capability_words);
        for (what, more) in [("can", &can), ("do", &check.hint), ("here", &check.best_effort)] {
            if let Some(more) = more {
                let _ = writeln!(text, "{indent}{DIM}{what}:{RESET} {}", safe(more));
            }
        }
    }
    let counts = Status::ALL.map(|status| {
        let count = checks.iter().filter(|check| check.status == status).count();
        format!("{count} {}", status.as_str())
    });
    let _ = writeln!(text, "{}", counts.join(", "));
    text
}
