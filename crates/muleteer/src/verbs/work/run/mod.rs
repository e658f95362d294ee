//! `run`: from a written spec to judged, merged code. The daemon hosts the run; this client follows
//! it.

mod follow;
mod report;
mod request;
pub(in crate::verbs::work) mod standing;
#[cfg(test)]
mod tests;

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
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  muleteer run plan.md             freeze, plan, implement, judge, make a branch
  muleteer run plan.md --dry-run   only freeze and plan; shows the beads
  muleteer run status              the state of the newest run
  muleteer run status --follow     the same, live; Ctrl-C does not stop the run
  muleteer run resume              continue after a stop, a crash or a review
  muleteer run amend plan.md       continue with a changed spec
  muleteer run list                the runs of this repository
  muleteer run plan.md --thread 7k2m   ask and tell its end in a thread
  muleteer run plan.md --backend subprocess --command ./agent.sh

`run plan.md` is `run --spec plan.md`, `run status` is `run --status`, and `run resume` is \
`run --resume`. A spec with the name of a verb needs a path: `run ./status`.

Ctrl-C stops the run and its agents; --resume continues it. With --detach the daemon continues it \
until `muleteer run stop`.
Exit codes: 0 the judge passed it, 2 bad input, 3 locked or something is missing, 4 failed, 5 the \
judge found something in every iteration there may be.";

const RESUME: &str = "\
Examples:
  muleteer run resume                the newest run
  muleteer run resume a1b2c3 --yes   approve what it waits for, and continue";

const AMEND: &str = "\
Examples:
  muleteer run amend plan.md            the newest run
  muleteer run amend a1b2c3 plan.md --dry-run

Beads of sections that did not change stay. Unfinished beads of changed sections are withdrawn, \
and an agent plans the changes. Stop a running run first.";

const STOP: &str = "\
Examples:
  muleteer run stop           the only running run of this repository
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
    #[arg(value_name = "SPEC", conflicts_with_all = ["spec", "resume", "status", "judge_only"])]
    file: Option<PathBuf>,
    /// The spec, as an option
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
    /// The branch that the agents push to; `auto` creates one for the run
    #[arg(long, value_name = "BRANCH", conflicts_with = "resume")]
    target: Option<String>,
    /// Use the existing beads with this label instead of decomposing the spec
    #[arg(long, value_name = "LABEL", conflicts_with = "resume")]
    bead_label: Option<String>,
    /// Ask the run's questions in this thread, and tell its end there
    #[arg(
        long,
        value_name = "THREAD",
        conflicts_with_all = ["resume", "status", "judge_only"]
    )]
    thread: Option<String>,
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
    #[command(flatten)]
    options: Options,
}

/// The options of a new run and of a resumed one.
#[derive(Debug, Clone, clap::Args)]
struct Options {
    /// Stop after freezing and decomposing the spec; continue with `--resume`
    #[arg(long)]
    dry_run: bool,
    /// Print the acceptance criteria and wait for approval before planning; approve with
    /// `--resume --yes`
    #[arg(long)]
    preview_acceptance: bool,
    /// Let an agent review the spec before it is frozen; wait for approval if it finds something
    #[arg(long)]
    review_spec: bool,
    /// Wait for a person at these gates: plan, merge (a list with commas)
    #[arg(long, value_name = "GATES", value_delimiter = ',', value_parser = ["plan", "merge"])]
    review: Vec<String>,
    /// The most coding agents at the same time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    concurrency: Option<u32>,
    /// The agents' backend: auto, claude-code, codex, acp, acp:NAME, opencode, pi, subprocess,
    /// rehearsal
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
    /// Print the run's id and return; the daemon continues the run
    #[arg(long)]
    detach: bool,
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
    /// Show the state of a run
    #[command(after_help = "Example:\n  muleteer run status a1b2c3 --follow")]
    Status {
        /// The run [default: the newest]
        run: Option<String>,
        /// Follow the run until it pauses or ends; exits with the run's exit code
        #[arg(short, long)]
        follow: bool,
    },
    /// Continue a run after a stop, a crash or a review
    #[command(after_help = RESUME)]
    Resume(Box<Resume>),
    /// Continue a run that rests with a new version of its spec
    #[command(after_help = AMEND, allow_missing_positional = true)]
    Amend(Box<Amend>),
    /// List the runs of this repository, the newest last
    #[command(after_help = "Example:\n  muleteer run list --json")]
    List,
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

#[derive(Debug, Clone, clap::Args)]
struct Resume {
    /// The run [default: the newest]
    run: Option<String>,
    /// Continue from this phase
    #[arg(long, value_name = "PHASE", value_parser = ["implement", "maintain", "judge"])]
    from_phase: Option<String>,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Clone, clap::Args)]
struct Amend {
    /// The run [default: the newest]
    run: Option<String>,
    /// The new version of the spec
    spec: PathBuf,
    #[command(flatten)]
    options: Options,
}

/// A run to start or to continue, however the user asked for it.
#[derive(Debug)]
struct Wanted<'a> {
    spec: Option<&'a Path>,
    /// The run to resume; within it `None` is the newest.
    resume: Option<Option<&'a str>>,
    /// The new version of the spec of the resumed run.
    amend: Option<&'a Path>,
    judge_only: Option<&'a str>,
    from_phase: Option<&'a str>,
    target: Option<&'a str>,
    bead_label: Option<&'a str>,
    thread: Option<&'a str>,
    options: &'a Options,
}

impl Args {
    /// Returns whether the verb starts or continues work, and does not only show it.
    pub fn acts(&self) -> bool {
        match &self.verb {
            Some(Sub::Resume(_) | Sub::Amend(_)) => true,
            Some(_) => false,
            None => self.status.is_none(),
        }
    }

    fn wanted(&self) -> Wanted<'_> {
        if let Some(Sub::Resume(resume)) = &self.verb {
            return Wanted {
                spec: None,
                resume: Some(resume.run.as_deref()),
                amend: None,
                judge_only: None,
                from_phase: resume.from_phase.as_deref(),
                target: None,
                bead_label: None,
                thread: None,
                options: &resume.options,
            };
        }
        if let Some(Sub::Amend(amend)) = &self.verb {
            return Wanted {
                spec: None,
                resume: Some(amend.run.as_deref()),
                amend: Some(&amend.spec),
                judge_only: None,
                from_phase: None,
                target: None,
                bead_label: None,
                thread: None,
                options: &amend.options,
            };
        }
        Wanted {
            spec: self.file.as_deref().or(self.spec.as_deref()),
            resume: self.resume.as_ref().map(|id| id.as_deref()),
            amend: None,
            judge_only: self.judge_only.as_deref(),
            from_phase: self.from_phase.as_deref(),
            target: self.target.as_deref(),
            bead_label: self.bead_label.as_deref(),
            thread: self.thread.as_deref(),
            options: &self.options,
        }
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
        Some(Sub::Status { run, follow }) => {
            return status(context, &runs, run.as_deref(), *follow).await;
        }
        Some(Sub::List) => return crate::verbs::work::runs::run(context),
        Some(Sub::Resume(_) | Sub::Amend(_)) | None => {}
    }
    if let Some(id) = &args.status {
        return status(context, &runs, id.as_deref(), args.follow).await;
    }
    let wanted = args.wanted();
    let request = request(&wanted, context, &runs)?;
    let run_id = request.run_id.clone();
    let known = if request.resume { Some(runs.chronicle(&run_id)?) } else { None };
    let warnings = match wanted.amend {
        Some(_) => begun(context, Request::RunAmend(Box::new(request.clone()))).await?,
        None => up(context, &request).await?,
    };
    spawn::print_warnings(context, &warnings);
    if wanted.options.detach {
        match context.out.json {
            true if warnings.is_empty() => context.out.document(&json!({ "run_id": run_id }))?,
            true => {
                context.out.document(&json!({ "run_id": run_id, "warnings": warnings }))?;
            }
            false => context.out.line(&run_id)?,
        }
        return Ok(Exit::Done);
    }
    context.out.note(format!("run {run_id} ({})", runs.folder().join(&run_id).display()));
    follow(context, &runs, &request, known).await?;
    let run = runs.read(&run_id)?;
    conclude(context, &runs, &run)
}

/// Shows the state of a run, or follows it until it pauses or ends.
async fn status(
    context: &Context,
    runs: &Runs,
    given: Option<&str>,
    follow: bool,
) -> Result<Exit, Failure> {
    let id = runs.resolve(given)?;
    let run = runs.read(&id)?;
    if follow && attend(context, runs, &run).await? {
        return conclude(context, runs, &runs.read(&id)?);
    }
    let standing = standing(context, runs, &run);
    match context.out.json {
        true => context.out.document(&document_at(&run, &standing))?,
        false => context.out.text(show::status(&run, &standing, Timestamp::now()))?,
    }
    // 0 would mean that the judge has passed the run.
    Ok(if follow { Exit::Interrupted } else { Exit::Done })
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

/// Starts or resumes the run, and returns the warnings.
async fn up(context: &Context, request: &v1::Run) -> Result<Vec<String>, Failure> {
    begun(context, Request::Run(Box::new(request.clone()))).await
}

async fn begun(context: &Context, request: Request) -> Result<Vec<String>, Failure> {
    match context.ask(request).await? {
        Reply::RunUp { warnings, .. } => Ok(warnings),
        other => Err(unexpected(&other)),
    }
}

async fn stop(context: &Context, run_id: &str) -> Result<(), Failure> {
    context.ask(Request::RunStop { run_id: run_id.into() }).await.map(|_| ())
}
