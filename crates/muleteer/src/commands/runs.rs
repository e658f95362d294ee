//! `runs`: the runs of this repository.

use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::render::table::{Align, Cell, layout};
use crate::render::{BOLD, clip, usd};
use crate::run_files::Runs;
use muleteer_model::pipeline::Stage;
use muleteer_model::pipeline::checkpoint::document;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  muleteer runs
  muleteer runs --json";

/// List the runs of this repository, the newest last
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {}

/// # Errors
/// When there is no current directory.
pub fn run(context: &Context) -> Result<Exit, Failure> {
    let runs = Runs::here()?;
    let mut found = vec![];
    for id in runs.ids() {
        match runs.read(&id) {
            Ok(run) => found.push(run),
            Err(failure) => context.out.note(format!("{id}: {}", failure.text())),
        }
    }
    if context.out.json {
        let documents: Vec<_> = found.iter().map(document).collect();
        context.out.document(&json!({ "runs": documents }))?;
        return Ok(Exit::Done);
    }
    let heads = ["RUN", "STATUS", "PHASE", "BEADS", "COST", "SPEC"].map(|head| (head, Align::Left));
    let rows: Vec<Vec<Cell>> = found
        .iter()
        .map(|run| {
            vec![
                Cell::colored(run.id(), BOLD),
                run.status().as_str().to_string().into(),
                run.phase.as_str().to_string().into(),
                format!("{}/{}", run.count(Stage::Done), run.beads.len()).into(),
                usd(run.cost_usd).into(),
                clip(&run.started.title, 60).into(),
            ]
        })
        .collect();
    context.out.text(layout(&heads, &rows))?;
    Ok(Exit::Done)
}
