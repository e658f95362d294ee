//! `tree`: shows the live supervision tree.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::connect::unexpected;
use crate::client::offline;
use crate::render::terminal;
use crate::render::tree::draw;
use muleteer_protocol::v1::{Reply, Request, TreeNode};
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  muleteer tree
  muleteer tree --json | jq '.. | .process? | select(.) | .pid'";

/// Show the supervision tree: strategies, restarts, states, and each agent's process
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {}

pub async fn run(context: &Context) -> Result<Exit, Failure> {
    let tree = match context.connect_if_running().await? {
        None => None,
        Some(mut client) => match client.call(Request::Tree).await {
            Ok(Reply::Tree(tree)) => Some(tree),
            Ok(other) => return Err(unexpected(&other)),
            Err(error) if error.is_lost() => None,
            Err(error) => return Err(error.into()),
        },
    };
    match tree {
        Some(tree) if context.out.json => context.out.document(&tree)?,
        Some(tree) => context.out.text(draw(&tree, terminal::width()))?,
        None => without_daemon(context)?,
    }
    Ok(Exit::Done)
}

/// Shows what is known without a daemon: the tree's root, and the agents that were last known to
/// run. The tree itself exists only in the daemon.
fn without_daemon(context: &Context) -> Result<(), Failure> {
    let fleet = offline::fleet(context)?;
    let agents = fleet.unfinished().filter(|dispatch| dispatch.is_active());
    let children =
        agents.map(|dispatch| node(&format!("agent/{}", dispatch.id), dispatch.state())).collect();
    let root = TreeNode { children, ..node("root", "stopped") };
    if context.out.json {
        let mut value = serde_json::to_value(&root).map_err(std::io::Error::from)?;
        if let Value::Object(object) = &mut value {
            object.insert("running".into(), json!(false));
        }
        return context.out.document(&value);
    }
    offline::say_so(context);
    context.out.text(draw(&root, terminal::width()))
}

fn node(name: &str, state: &str) -> TreeNode {
    TreeNode {
        name: name.into(),
        strategy: "-".into(),
        restart: "permanent".into(),
        restarts_in_window: 0,
        state: state.into(),
        children: vec![],
        process: None,
    }
}
