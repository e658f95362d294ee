//! `adapter`: the processes that connect threads to places where people are.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::connect::unexpected;
use crate::render::table::{Align, Cell, layout};
use crate::render::{BOLD, clip};
use muleteer_protocol::v1::{AdapterDoc, Reply, Request};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  muleteer adapter list
  muleteer adapter list --json | jq '.adapters[] | select(.outbox.pending > 0)'
  muleteer adapter restart slack

An adapter is a section of `adapters` in config.yaml. `enable` and `disable` override its key
`enabled`. `restart` reads its settings again, and starts an adapter that was set aside because it
failed too often.";

/// Show and control the adapters, which connect threads to other systems
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// List the adapters with their states, inboxes and outboxes
    #[command(after_help = "Example:\n  muleteer adapter list --json")]
    List,
    /// End an adapter's process and start another one
    #[command(after_help = "Example:\n  muleteer adapter restart slack")]
    Restart(Name),
    /// Start an adapter now, and with each daemon
    #[command(after_help = "Example:\n  muleteer adapter enable slack")]
    Enable(Name),
    /// End an adapter's process, and start it no more
    #[command(after_help = "Example:\n  muleteer adapter disable slack")]
    Disable(Name),
}

#[derive(Debug, clap::Args)]
struct Name {
    /// The name of the adapter
    name: String,
}

impl Args {
    /// Whether the verb changes something.
    pub fn acts(&self) -> bool {
        !matches!(self.what, What::List)
    }
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let (name, act) = match &args.what {
        What::List => return list(context).await,
        What::Restart(Name { name }) => (name, "restart"),
        What::Enable(Name { name }) => (name, "enable"),
        What::Disable(Name { name }) => (name, "disable"),
    };
    let request = Request::Adapter { name: name.clone(), act: act.into() };
    let adapters = adapters(context.ask(request).await?)?;
    match context.out.json {
        true => context.out.document(&json!({ "adapters": adapters }))?,
        false => {
            for adapter in adapters {
                context.out.note(format!("{}: {}", adapter.name, adapter.state));
            }
        }
    }
    Ok(Exit::Done)
}

async fn list(context: &Context) -> Result<Exit, Failure> {
    let adapters = adapters(context.ask(Request::Adapters).await?)?;
    if context.out.json {
        context.out.document(&json!({ "adapters": adapters }))?;
    } else if adapters.is_empty() {
        context.out.line("no adapters")?;
    } else {
        context.out.text(table(&adapters))?;
    }
    Ok(Exit::Done)
}

fn adapters(reply: Reply) -> Result<Vec<AdapterDoc>, Failure> {
    match reply {
        Reply::Adapters { adapters } => Ok(adapters),
        other => Err(unexpected(&other)),
    }
}

fn table(adapters: &[AdapterDoc]) -> String {
    let heads = ["ADAPTER", "STATE", "CONNECTED", "RESTARTS", "IN", "OUT", "PENDING", "REASON"]
        .map(|head| (head, if head == "REASON" { Align::Main(24) } else { Align::Left }));
    let rows: Vec<Vec<Cell>> = adapters
        .iter()
        .map(|adapter| {
            vec![
                Cell::colored(&adapter.name, BOLD),
                adapter.state.as_str().into(),
                if adapter.connected { "yes" } else { "no" }.into(),
                adapter.restarts.to_string().into(),
                adapter.inbox.accepted.to_string().into(),
                adapter.outbox.posted.to_string().into(),
                adapter.outbox.pending.to_string().into(),
                clip(adapter.reason.as_deref().unwrap_or("-"), 60).into(),
            ]
        })
        .collect();
    layout(&heads, &rows, &["RESTARTS", "CONNECTED", "IN"])
}
