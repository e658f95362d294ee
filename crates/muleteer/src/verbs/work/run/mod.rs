//! `run`: from a written spec to judged, merged code. The daemon hosts the run; this client follows
//! it.

mod follow;
mod report;
mod request;
pub(in crate::verbs::work) mod standing;

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::connect::unexpected;
use crate::client::run_files::Runs;
use crate::render::run as show;
use crate::verbs::agents::spawn;
use follow::{attend, follow};
use jiff::Timestamp;
use muleteer_model::spec_run::checkpoint::document_at;
use muleteer_protocol::v1::{self, Reply, Request};
use report::{conclude, report};
use request::request;
use serde_json::json;
use standing::standing;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  muleteer run --spec plan.md                     freeze, plan, implement, judge, make a branch
  muleteer run --spec plan.md --dry-run           only freeze and plan: shows the beads in order
  muleteer run --status                           the state of the newest run, from any terminal
  muleteer run --status --follow                  the same, live; Ctrl-C does not stop the run
  muleteer run --resume                           continue it after a stop, a crash or a review
  muleteer run --spec plan.md --backend subprocess --command ./agent.sh

Ctrl-C stops the run and its agents; --resume continues it. With --detach the daemon continues it \
until `muleteer run stop`.
Exit codes: 0 the judge passed it, 2 bad input, 3 locked or something is missing, 4 failed, 5 the \
judge found something in every iteration there may be.";

const STOP: &str = "\
Examples:
  muleteer run stop                               the only running run of this repository
  muleteer run stop a1b2c3

Stops its agents, like Ctrl-C while following the run. `muleteer run --resume` continues it.";

const REPORT: &str = "\
Examples:
  muleteer run report run-2026-02-12-a1b2c3
  muleteer run report --html run.html             one file for a browser

The page is made from the run's files in any state of the run, and loads nothing from the \
network. Before the run has ended it omits the acceptance criteria, as the run's agents must not \
read them.";

/// Run a spec: agents plan, implement and judge it until it is merged
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Sub>,
    /// The spec: a markdown file [default: run.spec of the configuration]
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
    /// Resume a run [default: the newest]
    #[arg(long, value_name = "RUN", num_args = 0..=1, conflicts_with = "spec")]
    resume: Option<Option<String>>,
    /// Show the state of a run [default: the newest]
    #[arg(long, value_name = "RUN", num_args = 0..=1, conflicts_with_all = ["spec", "resume"])]
    status: Option<Option<String>>,
    /// With --status: follow the run until it pauses or ends; exits with the run's exit code
    #[arg(short, long, requires = "status")]
    follow: bool,
    /// Stop after freezing and decomposing the spec; continue with `--resume`
    #[arg(long)]
    dry_run: bool,
    /// Print the acceptance criteria and wait for approval before planning; approve with
    /// `--resume --yes`
    #[arg(long)]
    preview_acceptance: bool,
    /// The most coding agents at the same time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    concurrency: Option<u32>,
    /// The agents' backend: auto, claude-code, codex, acp, acp:NAME, subprocess, rehearsal
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// The command of the `subprocess` backend, for `sh -c`; a JSON list runs without a shell
    #[arg(long, value_name = "CMD", value_parser = spawn::command_line)]
    command: Option<String>,
    /// The scenario of the `rehearsal` backend [default: MULETEER_SCENARIO]
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// The model of the agents
    #[arg(long, value_parser = spawn::model_name)]
    model: Option<String>,
    /// The branch that the agents push to; `auto` creates one for the run
    #[arg(long, value_name = "BRANCH", conflicts_with = "resume")]
    target: Option<String>,
    /// Use the existing beads with this label instead of decomposing the spec
    #[arg(long, value_name = "LABEL", conflicts_with = "resume")]
    bead_label: Option<String>,
    /// Print the run's id and return; the daemon continues the run
    #[arg(long)]
    detach: bool,
    /// Run the judge again on a run that has ended
    #[arg(long, value_name = "RUN", conflicts_with_all = ["spec", "resume", "status"])]
    judge_only: Option<String>,
    /// With --resume: continue from this phase
    #[arg(
        long,
        value_name = "PHASE",
        requires = "resume",
        value_parser = ["implement", "maintain", "judge"]
    )]
    from_phase: Option<String>,
    /// Stop when the run has cost this much
    #[arg(long, value_name = "USD", value_parser = spawn::budget)]
    budget_usd: Option<f64>,
    /// Stop after this running time: 2h, 90m, bare seconds
    #[arg(long, value_name = "TIME", value_parser = spawn::seconds)]
    max_runtime: Option<u64>,
    /// Approve the acceptance criteria or beads that wait for approval
    #[arg(long)]
    yes: bool,
    /// Set an environment variable for the agents, regardless of `env.pass`
    #[arg(long, value_name = "K=V", value_parser = spawn::variable)]
    env: Vec<(String, String)>,
}

#[derive(Debug, clap::Subcommand)]
enum Sub {
    /// Show the work and the result of a run
    #[command(after_help = REPORT)]
    Report {
        /// The run [default: the newest]
        run: Option<String>,
        /// Write an HTML page with graph, timeline, cost and findings; `-` is stdout
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
    },
    /// Stop a running run; `muleteer run --resume` continues it
    #[command(after_help = STOP)]
    Stop {
        /// The run [default: the only one that is running]
        run: Option<String>,
    },
}

impl Args {
    /// Returns whether the verb starts or continues work, and does not only show it.
    pub fn acts(&self) -> bool {
        self.verb.is_none() && self.status.is_none()
    }
}

/// Executes the verb.
///
/// # Errors
/// Bad input before anything was created, or the error that ended the run.
pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let runs = Runs::here()?;
    match &args.verb {
        Some(Sub::Report { run, html }) => {
            let id = runs.resolve(run.as_deref())?;
            return report(context, &runs, &id, html.as_deref());
        }
        Some(Sub::Stop { run }) => return halt(context, &runs, run.as_deref()).await,
        None => {}
    }
    if let Some(id) = &args.status {
        let id = runs.resolve(id.as_deref())?;
        let run = runs.read(&id)?;
        if args.follow && attend(context, &runs, &run).await? {
            return conclude(context, &runs, &runs.read(&id)?);
        }
        match context.out.json {
            true => context.out.document(&document_at(&run, &standing(context, &runs, &run)))?,
            false => context.out.text(show::status(
                &run,
                &standing(context, &runs, &run),
                Timestamp::now(),
            ))?,
        }
        // 0 would mean that the judge has passed the run.
        return Ok(if args.follow { Exit::Interrupted } else { Exit::Done });
    }
    let request = request(args, context, &runs)?;
    let run_id = request.run_id.clone();
    let known = if request.resume { Some(runs.chronicle(&run_id)?) } else { None };
    up(context, &request).await?;
    if args.detach {
        match context.out.json {
            true => context.out.document(&json!({ "run_id": run_id }))?,
            false => context.out.line(&run_id)?,
        }
        return Ok(Exit::Done);
    }
    context.out.note(format!("run {run_id} ({})", runs.folder().join(&run_id).display()));
    follow(context, &runs, &request, known).await?;
    let run = runs.read(&run_id)?;
    conclude(context, &runs, &run)
}

/// Stops a run that nobody has to be following, and shows its state afterwards. A resting run is
/// left alone.
async fn halt(context: &Context, runs: &Runs, given: Option<&str>) -> Result<Exit, Failure> {
    let id = match given {
        Some(_) => runs.resolve(given)?,
        None => runs.under_way()?,
    };
    if runs.read(&id)?.is_live() {
        stop(context, &id).await?;
    }
    let run = runs.read(&id)?;
    let standing = standing(context, runs, &run);
    match context.out.json {
        true => context.out.document(&document_at(&run, &standing))?,
        false => context.out.text(show::status(&run, &standing, Timestamp::now()))?,
    }
    Ok(Exit::Done)
}

async fn up(context: &Context, request: &v1::Run) -> Result<(), Failure> {
    match context.ask(Request::Run(Box::new(request.clone()))).await? {
        Reply::RunUp { .. } => Ok(()),
        other => Err(unexpected(&other)),
    }
}

async fn stop(context: &Context, run_id: &str) -> Result<(), Failure> {
    context.ask(Request::RunStop { run_id: run_id.into() }).await.map(|_| ())
}
