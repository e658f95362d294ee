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
    let (mut found, mut damaged) = (vec![], vec![]);
    for id in runs.ids() {
        match runs.read(&id) {
            Ok(run) => found.push(run),
            Err(failure) if context.out.json => damaged.push(failure.run(&id).document()["error"].take()),
            Err(failure) => context.out.note(format!("{id}: {}", failure.text())),
        }
    }
    if context.out.json {
        let documents: Vec<_> = found.iter().map(document).collect();
        let mut all = json!({ "runs": documents });
        if !damaged.is_empty() {
            all["errors"] = json!(damaged);
        }
        context.out.document(&all)?;
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
                format!("{}/{}", run.count(Stage::Done), run.total()).into(),
                usd(run.cost_usd).into(),
                clip(&run.started.title, 60).into(),
            ]
        })
        .collect();
    context.out.text(layout(&heads, &rows))?;
    Ok(Exit::Done)
}
