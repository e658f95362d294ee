//! Shared code of the verbs that act on dispatches.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::connect::unexpected;
use crate::client::offline;
use futures_util::{StreamExt, stream};
use muleteer_protocol::v1::{Reply, Request};
use serde_json::{Value, json};

/// The number of requests that are sent at the same time.
const AT_ONCE: usize = 8;

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

/// Sends a request for each of `ids` and reports every result. One that fails does not prevent the
/// others; the highest exit code counts. With one id the output is that of [`done`].
pub async fn each(
    context: &Context,
    ids: &[String],
    request: impl Fn(String) -> Request,
    what: &str,
) -> Result<Exit, Failure> {
    if let [one] = ids {
        return done(context, request(target(context, one).await?), what).await;
    }
    let request = &request;
    let asked = |id: String| async move { one(context, &id, request).await };
    let answers: Vec<_> = stream::iter(each_once(ids)).map(asked).buffered(AT_ONCE).collect().await;
    let (mut done, mut errors, mut exit) = (vec![], vec![], Exit::Done);
    for answer in answers {
        match answer {
            Ok((id, note)) if context.out.json => {
                done.push(json!({ "dispatch_id": id, "note": note }));
            }
            Ok((id, note)) => {
                context.out.note(format!("{id}: {}", note.as_deref().unwrap_or(what)));
            }
            Err(failure) => {
                exit = exit.max(failure.exit());
                match context.out.json {
                    true => errors.push(failure.document()["error"].take()),
                    false => context.out.failure(&failure),
                }
            }
        }
    }
    if context.out.json {
        context.out.document(&several(&done, errors))?;
    }
    Ok(exit)
}

/// Sends one request, and returns the id of the dispatch with the daemon's note.
async fn one(
    context: &Context,
    id: &str,
    request: impl Fn(String) -> Request,
) -> Result<(String, Option<String>), Failure> {
    match context.ask(request(target(context, id).await?)).await? {
        Reply::Done { dispatch_id, note } => Ok((dispatch_id, note)),
        other => Err(unexpected(&other)),
    }
}

/// Returns the document of a verb that acted on several dispatches; `errors` only if there are any.
fn several(done: &[Value], errors: Vec<Value>) -> Value {
    let mut document = json!({ "dispatches": done });
    if !errors.is_empty() {
        document["errors"] = Value::Array(errors);
    }
    document
}

/// Returns the ids in their order, without repetitions.
fn each_once(ids: &[String]) -> Vec<String> {
    let mut known = std::collections::HashSet::new();
    ids.iter().filter(|id| known.insert(id.as_str())).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_ids_are_asked_once_in_order() {
        let ids = ["b", "a", "b", "c"].map(String::from);
        assert_eq!(each_once(&ids), ["b", "a", "c"]);
    }

    #[test]
    fn document_of_several_has_errors_only_if_there_are_any() {
        let one = json!({"dispatch_id": "k3f9abcd", "note": null});
        assert_eq!(several(std::slice::from_ref(&one), vec![]), json!({"dispatches": [one]}));
        let both = several(&[], vec![json!({"code": "E_NOT_FOUND"})]);
        assert_eq!(both, json!({"dispatches": [], "errors": [{"code": "E_NOT_FOUND"}]}));
    }
}
