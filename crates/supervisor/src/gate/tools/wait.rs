//! Calls that wait for a person or for other agents.

use super::{Call, Refusal};
use crate::question::waits::Waiting;
use muleteer_model::event::mcp::Tool;
use std::time::Duration;

/// A shorter wait is not recorded: each record costs two writes to the disk.
const SHORT: Duration = Duration::from_millis(250);

/// Carries out `waiting`, and records meanwhile that the call waits.
pub(super) async fn recorded<T>(
    call: &Call<'_>,
    tool: Tool,
    question: Option<&str>,
    waiting: impl Future<Output = Result<T, Refusal>>,
) -> Result<T, Refusal> {
    tokio::pin!(waiting);
    if let Ok(done) = tokio::time::timeout(SHORT, &mut waiting).await {
        return done;
    }
    let (daemon, id) = (&call.client.daemon, &call.dispatch.id);
    let record = Waiting { dispatch: id, tool, call: &call.call.key, question };
    let live = record.begin(daemon).await;
    let done = waiting.await;
    record.end(daemon, live).await;
    done
}
