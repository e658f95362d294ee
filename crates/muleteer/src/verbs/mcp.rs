//! `mcp`: Muleteer's MCP server, over stdin and stdout.

use crate::block_on;
use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::mcp;

const EXAMPLES: &str = "\
Examples:
  muleteer mcp                                     in an agent: all tools that it has
  claude mcp add muleteer -- muleteer mcp          in a session of your own: tools that read

Muleteer gives its agents this server by itself. It never ends while its stdin is open: it waits \
for a daemon that is away, and repeats the call without a second effect.";

/// Serve Muleteer's tools to an agent (MCP over stdin and stdout)
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Offer only the tools that read
    #[arg(long)]
    read_only: bool,
}

/// Serves until stdin ends.
///
/// # Errors
/// The system provides no random bytes, or no runtime.
pub fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    block_on(mcp::serve(context, args.read_only))
}
