//! `man`: manual pages, one for each verb.

use crate::cli::Cli;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use clap::CommandFactory;
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Example:
  muleteer man ~/.local/share/man/man1 && man muleteer-spawn";

/// Write manual pages into a directory
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where to; it is made if it is not there
    dir: PathBuf,
}

pub fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new("E_IO", format!("cannot write manual pages to {}: {error}", args.dir.display())).file(&args.dir)
    };
    std::fs::create_dir_all(&args.dir).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), &args.dir).map_err(failed)?;
    if context.out.json {
        context.out.document(&json!({ "dir": args.dir.display().to_string() }))?;
    } else {
        context.out.note(format!("manual pages written to {}", args.dir.display()));
    }
    Ok(Exit::Done)
}
