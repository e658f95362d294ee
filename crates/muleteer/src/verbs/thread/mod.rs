//! `thread`: conversations with agents that outlive every process.

pub mod chat;
mod list;
pub mod meeting;
pub mod new;
pub mod schedule;
pub mod send;

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  muleteer thread new --role product-analyst --title \"Exports\"
  muleteer thread send k3f9 \"Which formats do we support?\" --wait
  muleteer thread show k3f9
  muleteer thread list";

/// Talk with agents: open threads, write messages, read answers
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    New(Box<new::Args>),
    Send(send::Args),
    List(list::ListArgs),
    Show(list::ShowArgs),
    Archive(list::ArchiveArgs),
}

impl Args {
    /// Whether the verb changes something.
    pub fn acts(&self) -> bool {
        match self.what {
            What::New(_) | What::Send(_) | What::Archive(_) => true,
            What::List(_) | What::Show(_) => false,
        }
    }
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    match &args.what {
        What::New(args) => new::run(args, context).await,
        What::Send(args) => send::run(args, context).await,
        What::List(_) => list::list(context).await,
        What::Show(args) => list::show(args, context).await,
        What::Archive(args) => list::archive(args, context).await,
    }
}
