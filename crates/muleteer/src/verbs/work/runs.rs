//! `runs`: lists the runs of this repository.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::offline;
use crate::client::run_files::Runs;
use crate::render::table::{Align, Cell, layout};
use crate::render::{BOLD, clip, usd};
use crate::verbs::work::run::standing::{BOOTING, is_carried_on, obstacle};
use jiff::Timestamp;
use muleteer_model::spec_run::checkpoint::document_at;
use muleteer_model::spec_run::report::status::Standing;
use muleteer_model::spec_run::{Run, Stage};
use muleteer_process::clock::awake;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  muleteer runs
  muleteer runs --json";

/// List the runs of this repository, the newest last
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {}

/// Lists the runs.
///
/// # Errors
/// When there is no current directory.
pub fn run(context: &Context) -> Result<Exit, Failure> {
    let runs = Runs::here()?;
    let (mut found, mut damaged) = (vec![], vec![]);
    for id in runs.ids() {
        match runs.read(&id) {
            Ok(run) => found.push(run),
            Err(failure) if context.out.json => {
                damaged.push(failure.run(&id).document()["error"].take())
            }
            Err(failure) => context.out.note(format!("{id}: {}", failure.text())),
        }
    }
    // All runs share one deadline, because several of them may have no daemon.
    let deadline = awake() + BOOTING;
    let is_hosted = |run: &Run| run.is_live() && is_carried_on(context, &runs, run.id(), deadline);
    if context.out.json {
        let asks = |run: &Run| run.is_live() || run.question().is_some();
        let fleet = found.iter().any(asks).then(|| offline::fleet(context).ok()).flatten();
        let stands = |run| {
            let hosted = is_hosted(run);
            let fleet = fleet.as_ref().filter(|_| asks(run));
            let standing = Standing::of(run, fleet, hosted, Timestamp::now());
            document_at(run, &standing.with_obstacle(run, obstacle(context, run, hosted)))
        };
        let documents: Vec<_> = found.iter().map(stands).collect();
        let mut all = json!({ "runs": documents });
        if !damaged.is_empty() {
            all["errors"] = json!(damaged);
        }
        context.out.document(&all)?;
        return Ok(Exit::Done);
    }
    if found.is_empty() {
        return context.out.line("no runs").map(|()| Exit::Done);
    }
    let heads = ["RUN", "STATUS", "PHASE", "BEADS", "COST", "SPEC"]
        .map(|head| (head, if head == "SPEC" { Align::Main(24) } else { Align::Left }));
    let rows: Vec<Vec<Cell>> = found
        .iter()
        .map(|run| {
            vec![
                Cell::colored(run.id(), BOLD),
                status(run, is_hosted(run)).into(),
                run.phase().as_str().to_string().into(),
                format!("{}/{}", run.count(Stage::Done), run.total()).into(),
                usd(run.cost_usd).into(),
                clip(&run.started.title, 60).into(),
            ]
        })
        .collect();
    context.out.text(layout(&heads, &rows, &["PHASE", "COST", "BEADS"]))?;
    Ok(Exit::Done)
}

/// Returns the status of a run. A live run that no daemon hosts is abandoned, whatever its events
/// say.
fn status(run: &Run, hosted: bool) -> String {
    match run.is_live() && !hosted {
        true => format!("{} (abandoned)", run.status().as_str()),
        false => run.status().as_str().to_string(),
    }
}
