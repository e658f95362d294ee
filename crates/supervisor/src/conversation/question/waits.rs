//! The records that calls of MCP tools wait: for a person, or for other agents. While a call waits,
//! its dispatch takes no slot of the pool, and the hold of questions applies to it.

use crate::daemon::context::{Daemon, random_key};
use crate::dispatch::error::unappended;
use crate::ledger::{entry, try_append};
use crate::ports::agent::LifeMsg;
use crate::question::waiters::{BACK_WITHIN, Waiter};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::mcp::{McpCalled, Tool, Wait};
use muleteer_model::event::{Entry, Event};
use muleteer_process::fault::point;
use muleteer_protocol::v1::WireError;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// The pause before a record that could not be written is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// A call that waits.
#[derive(Debug)]
pub struct Waiting<'a> {
    pub dispatch: &'a DispatchId,
    pub tool: Tool,
    /// The key of the call.
    pub call: &'a str,
    /// The question, unless it waits for other agents.
    pub question: Option<&'a str>,
}

impl Waiting<'_> {
    /// Records that the call waits, unless that is on record. A call that a relay repeats at the
    /// next daemon is one wait.
    ///
    /// The wait itself does not depend on the record, so a full disk only costs the free slot.
    pub async fn begin<'d>(&self, daemon: &'d Arc<Daemon>) -> Waiter<'d> {
        let live = daemon.waiters.enter(&name(self.dispatch, self.call));
        let _alone = daemon.creating(&lock(self.dispatch)).await;
        let fleet = daemon.snapshot();
        let is_open = |id: &str| fleet.questions.get(id).is_some_and(|question| question.is_open());
        let is_known = fleet
            .get(self.dispatch)
            .is_none_or(|dispatch| dispatch.mcp.waits.iter().any(|wait| wait.call == self.call));
        if is_known || self.question.is_some_and(|id| !is_open(id)) {
            return live;
        }
        let wait = Wait { over: false, ..self.ended() };
        match record(daemon, self.dispatch, self.tool, wait).await {
            Ok(()) => point("tool.waiting"),
            Err(error) => tracing::warn!(?error, "failed to record that a call waits"),
        }
        // The answer may have become durable between the look and the record.
        let fleet = daemon.snapshot();
        let is_over = |id: &str| !fleet.questions.get(id).is_some_and(|found| found.is_open());
        if self.question.is_some_and(is_over) {
            let called = self.ended();
            if let Err(error) = record(daemon, self.dispatch, self.tool, called).await {
                tracing::warn!(?error, "failed to record that a call waits no longer");
            }
        }
        live
    }

    /// Returns the record of the end of the wait.
    fn ended(&self) -> Wait {
        Wait { call: self.call.into(), question: self.question.map(String::from), over: true }
    }

    /// Records that the call no longer waits, unless the same call waits on another connection.
    pub async fn end(&self, daemon: &Arc<Daemon>, live: Waiter<'_>) {
        let _alone = daemon.creating(&lock(self.dispatch)).await;
        drop(live);
        if let Err(error) = end(daemon, self.dispatch, self.call).await {
            tracing::warn!(?error, "failed to record that a call waits no longer");
        }
    }
}

/// Ends the recorded waits of calls that did not come back after the start of the daemon: their
/// relay or their agent's call is gone.
pub async fn forget_lost(daemon: &Arc<Daemon>) {
    sleep(BACK_WITHIN).await;
    loop {
        let mut again = false;
        let fleet = daemon.snapshot();
        for dispatch in fleet.unfinished() {
            for wait in &dispatch.mcp.waits {
                let _alone = daemon.creating(&lock(&dispatch.id)).await;
                again |= end(daemon, &dispatch.id, &wait.call).await.is_err();
            }
        }
        if !again {
            return;
        }
        sleep(PAUSE).await;
    }
}

fn name(dispatch: &DispatchId, call: &str) -> String {
    format!("{dispatch}/{call}")
}

fn lock(dispatch: &DispatchId) -> String {
    format!("waits of {dispatch}")
}

async fn end(daemon: &Arc<Daemon>, dispatch: &DispatchId, call: &str) -> Result<(), WireError> {
    let fleet = daemon.snapshot();
    let known = fleet.get(dispatch);
    let mut waits = known.iter().flat_map(|dispatch| &dispatch.mcp.waits);
    let Some(wait) = waits.find(|wait| wait.call == call) else { return Ok(()) };
    if daemon.waiters.has(&name(dispatch, call)) {
        return Ok(());
    }
    let tool = if wait.question.is_some() { Tool::AwaitAnswer } else { Tool::AwaitAgent };
    record(daemon, dispatch, tool, Wait { over: true, ..wait.clone() }).await
}

async fn record(
    daemon: &Arc<Daemon>,
    dispatch: &DispatchId,
    tool: Tool,
    wait: Wait,
) -> Result<(), WireError> {
    let called = McpCalled { wait: Some(wait), ..McpCalled::text(tool, "") };
    let event = Event::McpCalled(Box::new(called));
    let entry = Entry { id: random_key(), ..entry(dispatch, None, event) };
    try_append(daemon, vec![entry]).await.map_err(|error| unappended(&error))?;
    // It times the hold, and the pool may give the slot to another dispatch.
    daemon.agent(dispatch).life.cast(LifeMsg::Wake);
    daemon.look();
    Ok(())
}
