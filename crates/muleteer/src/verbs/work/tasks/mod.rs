//! `tasks`: the task-list harness. Verbs that change only the list work on it directly, under its
//! lock; the daemon hosts runs.

mod change;
mod claim;
mod outcome;
pub mod place;
mod recover;
mod run;
mod show;
mod validate;

use crate::block_on;
use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  muleteer tasks init
  muleteer tasks add \"Parse dates\" --validate 'cargo test dates' --priority P0
  muleteer tasks add \"Show dates\" --validate 'cargo test' --depends-on task-001
  muleteer tasks run             until all is done; Ctrl-C detaches
  muleteer tasks status

The list is harness-tasks.json, the log harness-progress.txt. \
`tasks run` exits 0 when all tasks are done, 2 for an invalid list, 3 if it is locked, 4 if tasks \
failed for good, 5 at a limit.";

/// Work through a list of tasks, each validated by its own command
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
pub struct Args {
    /// The directory of the list [default: HARNESS_STATE_ROOT, else the nearest one upwards]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Task list")]
    root: Option<PathBuf>,
    #[command(subcommand)]
    verb: Sub,
}

#[derive(Debug, clap::Subcommand)]
enum Sub {
    Init(change::Init),
    Run(Box<run::Args>),
    Stop(run::Stop),
    Status(show::Status),
    Add(change::Add),
    Edit(change::Edit),
    Show(show::Show),
    Graph(show::Graph),
    Retry(change::Retry),
    Validate(validate::Validate),
    Import(change::Import),
    Claim(claim::Claim),
    Renew(claim::Renew),
    Checkpoint(claim::Checkpoint),
    Complete(outcome::Complete),
    Fail(outcome::Fail),
    Recover(recover::Recover),
    Undo(recover::Undo),
}

impl Args {
    /// Returns whether the verb starts agents.
    pub fn acts(&self) -> bool {
        matches!(self.verb, Sub::Run(_))
    }
}

pub fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let root = args.root.as_deref();
    match &args.verb {
        Sub::Init(args) => change::init(args, root, context),
        Sub::Run(args) => block_on(run::run(args, root, context)),
        Sub::Stop(args) => block_on(run::stop(args, root, context)),
        Sub::Status(_) => show::status(root, context),
        Sub::Add(args) => change::add(args, root, context),
        Sub::Edit(args) => change::edit(args, root, context),
        Sub::Show(args) => show::show(args, root, context),
        Sub::Graph(_) => show::graph(root, context),
        Sub::Retry(args) => change::retry(args, root, context),
        Sub::Validate(args) => validate::validate(args, root, context),
        Sub::Import(args) => change::import(args, root, context),
        Sub::Claim(args) => claim::claim(args, root, context),
        Sub::Renew(args) => claim::renew(args, root, context),
        Sub::Checkpoint(args) => claim::checkpoint(args, root, context),
        Sub::Complete(args) => outcome::complete(args, root, context),
        Sub::Fail(args) => outcome::fail(args, root, context),
        Sub::Recover(args) => recover::recover(args, root, context),
        Sub::Undo(args) => recover::undo(args, root, context),
    }
}
