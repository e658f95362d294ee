//! `parse`: runs a backend's parser on the output of a CLI.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use muleteer_backends::Backend;
use muleteer_backends::BackendError;
use muleteer_backends::ParseError;
use muleteer_backends::acp::known;
use muleteer_backends::by_name;
use muleteer_backends::parse_all;
use muleteer_protocol::ErrorCode;
use muleteer_supervisor::dispatch::acp_program;
use std::io;

const EXAMPLES: &str = "\
Examples:
  muleteer logs k3f9 --raw | muleteer parse claude-code
  muleteer parse acp:gemini < session.jsonl

Prints one event on each line, as the monitors read them. Unknown input becomes \
{\"type\":\"unknown\",\"raw\":…}.";

/// Convert an agent CLI's output (on stdin) into events, as JSON lines
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The backend: claude-code, codex, acp, acp:NAME, opencode, pi, subprocess or rehearsal
    backend: String,
}

/// Returns the backend for a name in the form of `--backend`.
fn backend(text: &str) -> Result<&'static dyn Backend, Failure> {
    let failure =
        |error: BackendError| Failure::new(error.code(), error.to_string()).hint(error.hint());
    acp_program::check_name(text).map_err(Failure::from)?;
    let (name, agent) = acp_program::split(text);
    if let Some(agent) = agent {
        known(agent).map_err(failure)?;
    }
    by_name(name).map_err(failure)
}

pub fn run(args: &Args, _context: &Context) -> Result<Exit, Failure> {
    let backend = backend(&args.backend)?;
    let out = io::BufWriter::new(io::stdout().lock());
    parse_all(backend, io::stdin().lock(), out).map_err(|error| match error {
        ParseError::Write(error) => error.into(),
        ParseError::Read(error) => {
            Failure::new(ErrorCode::Io, format!("cannot read stdin: {error}"))
        }
    })?;
    Ok(Exit::Done)
}
