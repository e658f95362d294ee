//! The reports of a run: its page, and the text at its end.

use super::standing::standing;
use crate::cli::context::{Context, absolute};
use crate::cli::exit::{self, Exit};
use crate::cli::failure::{Failure, chain};
use crate::client::run_files::Runs;
use crate::render::{page, run as show, safe};
use jiff::tz::TimeZone;
use muleteer_model::spec_run::Run;
use muleteer_model::spec_run::checkpoint::{self, document};
use muleteer_model::spec_run::event::{Phase, RunStatus};
use muleteer_model::spec_run::price::Price;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1;
use muleteer_store::atomic::write_atomic;
use serde_json::json;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Limits for displaying acceptance criteria: three files of a few pages are usual.
const CRITERIA_FILES: usize = 20;
const CRITERIA_LIMIT: u64 = 64 * 1024;
/// The cost is estimated from at most this many runs.
const PRICED: usize = 50;

/// Shows the report of a run, or writes its HTML page to a file.
pub(super) fn report(
    context: &Context,
    runs: &Runs,
    id: &str,
    html: Option<&Path>,
) -> Result<Exit, Failure> {
    let Some(file) = html else {
        let run = runs.read(id)?;
        match context.out.json {
            true => {
                context.out.document(&checkpoint::report(&run, &standing(context, runs, &run)))?
            }
            false => context.out.text(show::report(&run, &standing(context, runs, &run)))?,
        }
        return Ok(Exit::Done);
    };
    let chronicle = runs.chronicle(id)?;
    let results = context.paths.state_dir.join("sealed").join(id).join("judge-results");
    let setting = page::Setting {
        zone: TimeZone::system(),
        judge_results: results.is_dir().then(|| results.display().to_string()),
    };
    let text = page::page(&chronicle, &setting);
    if file == Path::new("-") {
        return context.out.bytes(text.as_bytes()).map(|()| Exit::Done);
    }
    // A pipe or a device is written to, not replaced.
    let special = std::fs::metadata(file).is_ok_and(|meta| !meta.is_file());
    let written = if special {
        std::fs::write(file, text)
            .map_err(|error| format!("cannot write {}: {error}", file.display()))
    } else {
        write_atomic(file, text.as_bytes(), 0o600).map_err(|error| chain(&error))
    };
    written.map_err(|error| Failure::new(ErrorCode::Io, error).file(file))?;
    match context.out.json {
        true => context.out.document(&json!({ "run_id": id, "html": absolute(file) }))?,
        false => context.out.line(file.display().to_string())?,
    }
    Ok(Exit::Done)
}

/// Prints the final report and returns the exit code.
pub(super) fn conclude(context: &Context, runs: &Runs, run: &Run) -> Result<Exit, Failure> {
    if context.out.json {
        let mut document = document(run);
        if let Some(plan) = &mut document.plan {
            plan.price = price(runs, run);
        }
        Failure::unless_closed(context.out.json_line(&document))?;
    } else {
        let before_plan =
            run.phase() == Phase::Freeze && run.status() == RunStatus::AwaitingApproval;
        let of_criteria = before_plan && !run.awaits_review();
        if of_criteria {
            Failure::unless_closed(context.out.text(criteria(run)))?;
        }
        // Before the approval of its criteria a run has no plan to show.
        let is_plan = run.settings.dry_run && run.outcome().is_none() && !before_plan;
        let report = if is_plan {
            show::plan(run, price(runs, run).as_ref())
        } else {
            show::report(run, &standing(context, runs, run))
        };
        Failure::unless_closed(context.out.text(report))?;
        if !is_plan && run.status() == RunStatus::AwaitingApproval && run.has_accepted_beads() {
            let price = show::expected(price(runs, run).as_ref());
            Failure::unless_closed(context.out.line(format!("expected cost: {price}")))?;
        }
    }
    Ok(match (run.status(), checkpoint::shortfall(run)) {
        (RunStatus::Completed | RunStatus::AwaitingApproval, _) => Exit::Done,
        (RunStatus::Pending, None) if run.settings.dry_run => Exit::Done,
        (_, Some(error)) => {
            if !context.out.json {
                context.out.failure(&Failure::from(v1::WireError {
                    code: error.code.clone(),
                    message: error.message,
                    run_id: Some(error.run_id),
                    ..v1::WireError::default()
                }));
            }
            exit::of_code(&error.code)
        }
        _ => Exit::Failed,
    })
}

/// Estimates the cost of a run by the newest earlier runs of the repository. A run that cannot be
/// read does not count.
fn price(runs: &Runs, run: &Run) -> Option<Price> {
    let ids = runs.ids();
    let earlier: Vec<Run> =
        ids.iter().rev().take(PRICED).filter_map(|id| runs.read(id).ok()).collect();
    Price::of(run, &earlier)
}

/// Returns the acceptance criteria that an agent wrote for the judge, so that the user can approve
/// them.
fn criteria(run: &Run) -> String {
    let folder = run.sealed.as_ref().map(|sealed| PathBuf::from(&sealed.path)).unwrap_or_default();
    let mut names: Vec<_> = std::fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    names.sort();
    let mut text = String::new();
    for path in names.iter().filter(|path| path.is_file()).take(CRITERIA_FILES) {
        let mut said = String::new();
        // The name of an unreadable file is printed without its content.
        let _ = std::fs::File::open(path)
            .and_then(|file| file.take(CRITERIA_LIMIT).read_to_string(&mut said));
        let name =
            path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let _ = writeln!(text, "{}", safe(&name));
        for line in said.lines() {
            let _ = writeln!(text, "  {}", safe(line));
        }
    }
    let _ = writeln!(
        text,
        "\napprove them with `{}`; they are in {}",
        run.resume_command(),
        folder.display()
    );
    text
}
