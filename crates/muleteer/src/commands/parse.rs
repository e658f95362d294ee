//! `parse`: a backend's parser over what a CLI printed.

use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use muleteer_backends::{ParseError, by_name, parse_all};
use std::io;

const EXAMPLES: &str = "\
Examples:
  claude -p --output-format stream-json --verbose \"hello\" | muleteer parse claude-code
  muleteer parse subprocess < output.log

Prints one event on each line, as the monitors read them. What the parser does not know becomes
{\"type\":\"unknown\",\"raw\":…}.";

/// Turn what an agent's program printed (on stdin) into events, as JSON lines
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// claude-code, codex, acp, subprocess or rehearsal
    backend: String,
}

pub fn run(args: &Args, _context: &Context) -> Result<Exit, Failure> {
    let backend =
        by_name(&args.backend).map_err(|error| Failure::new("E_USAGE", error.to_string()).hint(error.hint()))?;
    let out = io::BufWriter::new(io::stdout().lock());
    parse_all(backend, io::stdin().lock(), out).map_err(|error| match error {
        ParseError::Write(error) => error.into(),
        ParseError::Read(error) => Failure::new("E_IO", format!("cannot read stdin: {error}")),
    })?;
    Ok(Exit::Done)
}
