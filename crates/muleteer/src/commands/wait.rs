//! `wait`: until dispatches have ended.

use crate::connect::unexpected;
use crate::context::Context;
use crate::exit::{self, Exit};
use crate::failure::Failure;
use crate::offline;
use crate::render::status::ending;
use muleteer_protocol::v1::{DispatchStatus, Reply, Request};
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  muleteer wait k3f9
  muleteer wait $(muleteer spawn tester . \"Run the tests\") && echo passed

Exits 0 if every one succeeded, 4 if one was partial, failed or blocked, 6 if one was killed.";

/// Wait until dispatches have ended, and exit by how
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Dispatches, by id or its beginning
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let dispatches = ended(context, args.ids.clone()).await?;
    let out = &context.out;
    if out.json {
        out.document(&json!({ "dispatches": dispatches }))?;
    } else {
        for dispatch in &dispatches {
            out.line(ending(dispatch))?;
        }
    }
    Ok(worst(&dispatches))
}

/// `spawn --wait`: one dispatch, whose id is on stdout already (except with `--json`, where there is
/// to be one document, and it comes last).
pub async fn one(context: &Context, id: &str) -> Result<Exit, Failure> {
    let dispatches = ended(context, vec![id.to_string()]).await?;
    for dispatch in &dispatches {
        if context.out.json {
            context.out.document(&document(dispatch))?;
        } else {
            context.out.note(ending(dispatch));
        }
    }
    Ok(worst(&dispatches))
}

/// A dispatch as `status` shows it, with the key of `spawn --json` added.
pub fn document(dispatch: &DispatchStatus) -> Value {
    let mut value = json!({ "dispatch_id": dispatch.id });
    if let (Some(object), Ok(Value::Object(more))) = (value.as_object_mut(), serde_json::to_value(dispatch)) {
        object.extend(more);
    }
    value
}

/// Waits, however long and through however many daemons.
///
/// With none running, what has ended already is answered from disk; otherwise a daemon is started,
/// because without one nothing that is unfinished ever ends.
pub async fn ended(context: &Context, ids: Vec<String>) -> Result<Vec<DispatchStatus>, Failure> {
    if context.connect_if_running().await?.is_none()
        && let Some(all) = offline::ended(context, &ids)?
    {
        offline::say_so(context);
        return Ok(all);
    }
    match context.ask(Request::Wait { ids }).await? {
        Reply::Waited { dispatches } => Ok(dispatches),
        other => Err(unexpected(&other)),
    }
}

pub fn worst(dispatches: &[DispatchStatus]) -> Exit {
    dispatches
        .iter()
        .map(|dispatch| exit::of_state(&dispatch.state))
        .max()
        .unwrap_or(Exit::Done)
}
