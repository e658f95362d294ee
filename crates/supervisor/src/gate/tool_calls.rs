//! Serves the calls of MCP tools on a connection: it passes them to [`tools`], and tells a call
//! when its client no longer waits.

use crate::gate::connection::{Answer, Connection, Heard};
use crate::gate::tools::{self, Client};
use muleteer_protocol::v1::{Reply, ToolCall, ToolTaken, WireError};
use tokio_util::sync::CancellationToken;

fn client(connection: &Connection) -> Client {
    Client {
        daemon: connection.daemon.clone(),
        identity: connection.identity.clone(),
        cancelled: CancellationToken::new(),
    }
}

/// Lists the tools of the client.
pub fn list(connection: &Connection, read_only: bool) -> Reply {
    tools::list(&client(connection), read_only)
}

/// Carries out a call. The client may cancel it or disconnect. Then a call that waits ends, and a
/// call that acts completes: half an effect would be worse than one that nobody waits for.
pub async fn call(connection: &mut Connection, call: ToolCall, trace: Option<String>) -> Answer {
    let client = client(connection);
    let calling = tools::call(&client, call, trace);
    tokio::pin!(calling);
    loop {
        let heard = tokio::select! {
            biased;
            result = &mut calling => return Ok(result),
            heard = connection.hear() => heard,
        };
        match heard {
            Ok(Heard::Credit) => {}
            Ok(Heard::Cancelled) => client.cancelled.cancel(),
            Err(error) => {
                client.cancelled.cancel();
                // Nobody reads the result.
                let _ = calling.await;
                return Err(error);
            }
        }
    }
}

/// Records that the agent's CLI has the result of a call.
///
/// # Errors
/// The daemon cannot record it now.
pub async fn taken(connection: &Connection, taken: &ToolTaken) -> Result<Reply, WireError> {
    tools::taken(&client(connection), taken).await
}
