//! `completions`: shell completions.

use crate::cli::Cli;
use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use clap::CommandFactory;
use clap_complete::Shell;

const EXAMPLES: &str = "\
Examples:
  muleteer completions bash > /etc/bash_completion.d/muleteer
  muleteer completions zsh > \"${fpath[1]}/_muleteer\"
  muleteer completions fish > ~/.config/fish/completions/muleteer.fish";

/// Print the completion script of a shell
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

pub fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    // The script is generated in memory first, because the generator panics on a write error.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "muleteer", &mut script);
    context.out.bytes(&script)?;
    Ok(Exit::Done)
}
