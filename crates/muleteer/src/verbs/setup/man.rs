//! `man`: writes manual pages, one for each verb.

use crate::cli::Cli;
use crate::cli::context::Context;
use crate::cli::exit::{self, Exit};
use crate::cli::failure::Failure;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use muleteer_protocol::ErrorCode;
use serde_json::json;
use std::io;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Example:
  muleteer man ~/.local/share/man/man1 && man muleteer-spawn";

/// Write manual pages into a directory
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The directory; it is created if it is missing
    dir: PathBuf,
}

pub fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let failed = |error: io::Error| {
        Failure::new(
            ErrorCode::Io,
            format!("cannot write manual pages to {}: {error}", args.dir.display()),
        )
        .file(&args.dir)
    };
    std::fs::create_dir_all(&args.dir).map_err(failed)?;
    let mut top = Cli::command().disable_help_subcommand(true);
    top.build();
    write(&top, "", &args.dir).map_err(failed)?;
    if context.out.json {
        context.out.document(&json!({ "dir": args.dir.display().to_string() }))?;
    } else {
        context.out.note(format!("manual pages written to {}", args.dir.display()));
    }
    Ok(Exit::Done)
}

/// Writes a page for a verb and each of its subcommands; `words` are the words that the user types.
fn write(verb: &Command, words: &str, dir: &Path) -> io::Result<()> {
    for below in verb.get_subcommands().filter(|below| !below.is_hide_set()) {
        write(below, format!("{words} {}", below.get_name()).trim(), dir)?;
    }
    // By default the library treats a verb as a separate program without a version.
    let man = Man::new(verb.clone()).source(concat!("muleteer ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    // The library's synopsis lists all options, but without their values.
    let usage = verb.clone().render_usage().to_string();
    section("SYNOPSIS", usage.trim_start_matches("Usage:").trim(), &mut page)?;
    man.render_options_section(&mut page)?;
    if verb.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    let after = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
    let examples = after.split_once('\n').map_or(after.as_str(), |(_, rest)| rest);
    let codes = exit::of_verb(words);
    let codes: Vec<_> =
        codes.into_iter().map(|(code, says)| format!("{:<5}{says}", code as u8)).collect();
    section("EXIT STATUS", &codes.join("\n"), &mut page)?;
    section("EXAMPLES", examples, &mut page)?;
    let above =
        verb.get_display_name().unwrap_or_default().rsplit_once('-').map(|(above, _)| above);
    if let Some(above) = above {
        section("SEE ALSO", &format!("{above}(1)"), &mut page)?;
    }
    std::fs::write(dir.join(man.get_filename()), page)
}

/// Writes a section whose line breaks are preserved.
fn section(title: &str, text: &str, page: &mut Vec<u8>) -> io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let mut roff = Roff::new();
    roff.control("SH", [title]).control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []).to_writer(page)
}
