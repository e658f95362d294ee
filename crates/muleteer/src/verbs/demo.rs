//! `demo`: demonstrates Muleteer on this machine, without a real agent or a network.

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::output::Output;
use crate::demo;

const EXAMPLES: &str = "\
Examples:
  muleteer demo
  muleteer demo --keep                  look around afterwards
  muleteer demo --json | tail -n 1 | jq .checks

Rehearsed agents take a spec through a whole run, under a daemon of the demo's own: criteria, beads,
agents side by side, maintenance, a judge who finds something and then nothing, a merge. \
    One agent is
killed with -9 and its bead is tried again; then the daemon is, and the next one adopts the agents.
All of it is in a temporary folder: nothing of yours is read or changed. It needs git and sh, and no
network.
Exits 0 only if all of it held; every check says what it saw.";

/// See it work: from a spec to merged code, with one crash, one dead daemon, and nothing lost
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Leave the folder, and say how to look around in it
    #[arg(long)]
    keep: bool,
}

/// Takes no context, because the demo also works without a state directory of the user.
pub async fn run(args: &Args, out: Output) -> Result<Exit, Failure> {
    demo::run(out, args.keep).await
}
