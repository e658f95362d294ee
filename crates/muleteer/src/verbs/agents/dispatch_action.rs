//! Shared code of the verbs that act on one dispatch.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::connect::unexpected;
use crate::client::offline;
use muleteer_protocol::v1::{Reply, Request};
use serde_json::json;

/// Resolves the dispatch's id. Without a running daemon it is looked up on disk first, so that a
/// mistyped id does not start a daemon.
pub async fn target(context: &Context, id: &str) -> Result<String, Failure> {
    if context.is_agent || context.connect_if_running().await?.is_some() {
        return Ok(id.to_string());
    }
    offline::find(context, id).map(|dispatch| dispatch.id)
}

/// Sends a request and reports its result.
pub async fn done(context: &Context, request: Request, what: &str) -> Result<Exit, Failure> {
    match context.ask(request).await? {
        Reply::Done { dispatch_id, note } if context.out.json => {
            context.out.document(&json!({ "dispatch_id": dispatch_id, "note": note }))?;
        }
        Reply::Done { dispatch_id, note } => {
            context.out.note(format!("{dispatch_id}: {}", note.as_deref().unwrap_or(what)));
        }
        other => return Err(unexpected(&other)),
    }
    Ok(Exit::Done)
}
