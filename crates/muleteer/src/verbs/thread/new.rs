//! `thread new`: opens a thread.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::settings;
use crate::client::connect::unexpected;
use crate::client::env_pass;
use crate::verbs::agents::spawn;
use muleteer_model::conversation::DEFAULT_ROLE;
use muleteer_protocol::v1::{Reply, Request, Spawn, ThreadNew};
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  muleteer thread new
  muleteer thread new --role reviewer --project web --title \"The export\"
  thread=$(muleteer thread new) && muleteer thread send \"$thread\" \"Hello\" --wait

Prints the id of the thread. Its agent starts with the first message. The agent gets the
environment of this command, as `spawn` passes it.";

/// Open a thread; prints its id
#[derive(Debug, Default, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The role that answers [default: product-analyst]
    #[arg(long, value_name = "ROLE")]
    pub role: Option<String>,
    /// The project: a directory, or a configured name [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub project: Option<String>,
    /// The title [default: the first line of the first message]
    #[arg(long, value_name = "TEXT", value_parser = spawn::title)]
    pub title: Option<String>,
    #[command(flatten)]
    pub agent: Agent,
}

/// The options that choose the agent of a thread, as `spawn` has them.
#[derive(Debug, Default, clap::Args)]
pub struct Agent {
    /// The model [default: the role's, its category's, the configured default]
    #[arg(long, value_parser = spawn::model_name)]
    pub model: Option<String>,
    /// The agent's backend, as for `spawn`
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,
    /// The scenario of the `rehearsal` backend [default: MULETEER_SCENARIO]
    #[arg(long, value_name = "FILE")]
    pub scenario: Option<PathBuf>,
    /// Set an environment variable for the agent, regardless of `env.pass`
    #[arg(long, value_name = "K=V", value_parser = spawn::variable)]
    pub env: Vec<(String, String)>,
    /// Set the decision where no permission rule matches [default: as configured, or allow]
    #[arg(long, value_name = "MODE", value_parser = ["allow", "ask", "deny"])]
    pub permissions: Option<String>,
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let id = open(args, context).await?;
    match context.out.json {
        true => context.out.document(&json!({ "thread_id": id }))?,
        false => context.out.line(&id)?,
    }
    Ok(Exit::Done)
}

/// Opens a thread and returns its id.
///
/// # Errors
/// Bad input before anything was created, or the daemon's error.
pub async fn open(args: &Args, context: &Context) -> Result<String, Failure> {
    open_within(args, None, context).await
}

/// Does the same for a thread whose agents have a budget each, in US dollars.
///
/// # Errors
/// Those of [`open`].
pub async fn open_within(
    args: &Args,
    budget_usd: Option<f64>,
    context: &Context,
) -> Result<String, Failure> {
    let hint = || "run `muleteer config show projects` to list the configured projects".into();
    let project = spawn::project_path(args.project.as_deref(), context, hint)?;
    let config = settings::config(context, Some(&project))?;
    let agent = &args.agent;
    let backend = spawn::implied_backend(agent.backend.as_deref(), false, agent.scenario.is_some());
    let dispatch = Spawn {
        role: args.role.clone().unwrap_or_else(|| DEFAULT_ROLE.into()),
        project: spawn::utf8(project)?,
        model: agent.model.clone(),
        backend,
        scenario: spawn::scenario(agent.scenario.as_deref())?,
        env: spawn::passed_env(&config),
        extra_env: agent.env.clone(),
        config: context.config.clone().map(spawn::utf8).transpose()?,
        permissions: agent.permissions.clone(),
        budget_usd,
        ..Spawn::default()
    };
    let new = ThreadNew {
        id: spawn::new_id()?,
        title: args.title.clone(),
        dispatch,
        push_env: env_pass::for_push(spawn::vars()),
    };
    match context.ask(Request::ThreadNew(Box::new(new))).await? {
        Reply::ThreadOpened { thread_id } => Ok(thread_id),
        other => Err(unexpected(&other)),
    }
}
