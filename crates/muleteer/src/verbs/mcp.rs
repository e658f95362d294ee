//! `mcp`: Muleteer's MCP server, over stdin and stdout.

use crate::block_on;
use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::mcp;

const EXAMPLES: &str = "\
Examples:
  muleteer mcp                             in an agent: all tools that it has
  claude mcp add muleteer -- muleteer mcp  in your own session: tools that read

Muleteer gives its agents this server by itself. It ends with its stdin. While no daemon answers, \
it waits and then repeats the call, which takes effect once.";

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
