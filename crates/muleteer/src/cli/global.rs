//! The options of every verb.

use crate::cli::output::{Color, Output};
use clap::{ArgAction, Args};
use std::path::PathBuf;

/// The options of every verb.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Print results and errors as one JSON document on stdout (JSON lines when following)
    #[arg(long, global = true)]
    pub json: bool,
    /// The daemon's socket [default: the state directory's, or MULETEER_SOCKET]
    #[arg(long, global = true, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Run the verb on another host, by ssh [default: MULETEER_HOST]
    #[arg(long, global = true, value_name = "HOST")]
    pub remote: Option<String>,
    /// A configuration file, layered over the user's and the project's
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print no remarks, only results and errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print more details; give it twice for even more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t)]
    pub color: Color,
}

impl Global {
    pub fn output(&self) -> Output {
        Output { json: self.json, quiet: self.quiet, verbose: self.verbose, color: self.color }
    }
}
