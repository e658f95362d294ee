//! `demo`: demonstrates Muleteer on this machine, without a real agent or a network.

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::output::Output;
use crate::demo;

const EXAMPLES: &str = "\
Examples:
  muleteer demo
  muleteer demo --keep                  keep the folder for inspection
  muleteer demo --json | tail -n 1 | jq .checks

Scripted agents take a spec through a whole run under the demo's own daemon: criteria, beads, \
parallel agents, maintenance, a judge that finds a fault and then none, a merge. The demo kills \
one agent with -9, and the run retries its bead; then it kills the daemon, and the next daemon \
adopts the agents. It works in a temporary folder and does not read or change your files. It \
needs git and sh, and no network.
Exits 0 only if every check passes. Each check prints what it found.";

/// Watch a scripted run: a spec becomes merged code, and an agent and the daemon are killed
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Keep the demo's folder, and print how to inspect it
    #[arg(long)]
    keep: bool,
}

/// Takes no context, because the demo also works without a state directory of the user.
pub async fn run(args: &Args, out: Output) -> Result<Exit, Failure> {
    demo::run(out, args.keep).await
}
