//! Carries out the MCP tools of agents ([`muleteer_model::event::mcp`]). The relay `muleteer mcp`
//! passes each call on and holds no state, so everything that a call needs is here.
//!
//! - [`ask`]: questions to people, and the wait for their answers;
//! - [`draft`]: child dispatches;
//! - [`act`]: notes, reports, messages and kills;
//! - [`read`]: what an agent may look at.
//!
//! A refusal is a result that says what is allowed instead. A state of the daemon that passes (it
//! ends, its disk is full) is an error, and the relay repeats the call.

mod act;
mod arguments;
mod ask;
mod draft;
mod read;

use crate::dispatch::error::is_passing;
use crate::gate::connection::{Answer, Connection, Heard};
use crate::gate::peer::{Identity, has_ended};
use muleteer_model::dispatch::Dispatch;
use muleteer_model::event::mcp::{Access, Tool};
use muleteer_protocol::codec::FrameError;
use muleteer_protocol::v1::{Reply, ToolCall, ToolResult, ToolTaken, WireError};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// The tools that read something of the calling agent itself.
const OF_AN_AGENT: [Tool; 3] = [Tool::GetBudget, Tool::GetTaskContext, Tool::ReadThread];

/// The result of a call.
struct Done {
    value: Value,
    /// See [`ToolResult::subject`].
    subject: Option<String>,
}

impl From<Value> for Done {
    fn from(value: Value) -> Self {
        Self { value, subject: None }
    }
}

/// Why a call has no result.
enum Refusal {
    /// The agent may not do this, or its arguments are wrong. The agent reads it.
    Refused(String),
    /// The daemon cannot do it now.
    Failed(WireError),
    /// The client is gone.
    Gone(FrameError),
    /// The client has cancelled the call.
    Cancelled,
}

impl From<WireError> for Refusal {
    fn from(error: WireError) -> Self {
        if is_passing(&error) {
            return Self::Failed(error);
        }
        let hint = error.hint.filter(|hint| !hint.is_empty());
        let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
        Self::Refused(format!("{}: {}{hint}", error.code, error.message))
    }
}

/// The caller, and the tools that it has.
enum Caller {
    Agent(Arc<Dispatch>),
    /// A client that belongs to no agent: it only reads.
    Outside,
}

impl Caller {
    fn of(connection: &Connection) -> Result<Self, Refusal> {
        let Identity::Agent(id) = &connection.identity else { return Ok(Self::Outside) };
        let dispatch = connection.daemon.snapshot().get(id).cloned();
        match dispatch.filter(|_| !has_ended(&connection.daemon, id)) {
            Some(dispatch) => Ok(Self::Agent(dispatch)),
            None => Err(Refusal::Refused(format!("dispatch {id} has ended: it has no tools"))),
        }
    }

    fn has(&self, tool: Tool, read_only: bool) -> bool {
        let may = match self {
            Self::Agent(dispatch) => tool.is_allowed(access(dispatch)),
            Self::Outside => tool.reads() && !OF_AN_AGENT.contains(&tool),
        };
        may && (!read_only || tool.reads())
    }

    fn tools(&self, read_only: bool) -> Vec<String> {
        let has = Tool::all().filter(|tool| self.has(*tool, read_only));
        has.map(|tool| tool.name().to_string()).collect()
    }
}

/// Dispatches of versions without the server have no tools.
fn access(dispatch: &Dispatch) -> Access {
    dispatch.created.mcp.unwrap_or(Access::None)
}

/// A call of an agent.
struct Call<'a> {
    connection: &'a mut Connection,
    dispatch: Arc<Dispatch>,
    call: ToolCall,
    arguments: arguments::Arguments,
    trace: Option<String>,
}

/// Lists the tools of the caller.
pub(super) fn list(connection: &Connection, read_only: bool) -> Reply {
    let tools = Caller::of(connection).map(|caller| caller.tools(read_only)).unwrap_or_default();
    Reply::Tools { tools }
}

/// Carries out a call.
pub(super) async fn call(
    connection: &mut Connection,
    call: ToolCall,
    trace: Option<String>,
) -> Answer {
    let result = match carry_out(connection, call, trace).await {
        Ok(Done { value, subject }) => {
            ToolResult { result: value.to_string(), refused: false, subject }
        }
        Err(Refusal::Refused(reason)) => {
            let result = json!({ "refused": reason }).to_string();
            ToolResult { result, refused: true, subject: None }
        }
        Err(Refusal::Failed(error)) => return Ok(Err(error)),
        Err(Refusal::Gone(error)) => return Err(error),
        Err(Refusal::Cancelled) => return Ok(Ok(None)),
    };
    Ok(Ok(Some(Reply::Tool(Box::new(result)))))
}

async fn carry_out(
    connection: &mut Connection,
    call: ToolCall,
    trace: Option<String>,
) -> Result<Done, Refusal> {
    let caller = Caller::of(connection)?;
    let tool = Tool::named(&call.tool).filter(|tool| caller.has(*tool, call.read_only));
    let Some(tool) = tool else {
        let has = caller.tools(call.read_only);
        let has = match has.is_empty() {
            true => "it has none".to_string(),
            false => format!("it has {}", has.join(", ")),
        };
        let message = format!("this agent does not have the tool `{}`: {has}", call.tool);
        return Err(Refusal::Refused(message));
    };
    let arguments = arguments::Arguments::read(&call.arguments)?;
    let dispatch = match caller {
        Caller::Agent(dispatch) => dispatch,
        Caller::Outside => return read::outside(connection, tool, &call, &arguments).await,
    };
    let mut call = Call { connection, dispatch, call, arguments, trace };
    match tool {
        Tool::AskHuman => ask::human(&mut call).await,
        Tool::AwaitAnswer => ask::answer(&mut call).await,
        Tool::Note | Tool::ReportProgress => act::note(&call, tool).await,
        Tool::DraftAgent => draft::agent(&call).await,
        Tool::KillAgent => act::kill(&call).await,
        Tool::MessageAgent => act::message(&call).await,
        Tool::SendMessage => act::send(&call).await,
        Tool::AwaitAgent => {
            let Call { connection, call, arguments, .. } = call;
            read::ended(connection, &call, &arguments).await
        }
        Tool::GetBudget => Ok(read::budget(&call)),
        Tool::ListAgents => Ok(read::agents(&call.connection.daemon, Some(&call.dispatch))),
        Tool::GetStatus => read::status(&call),
        Tool::ListTasks => read::tasks(&call.connection.daemon, &call.arguments, &call.dispatch),
        Tool::GetTaskContext => Ok(read::context(&call)),
        Tool::ReadJournal => read::journal(&call.connection.daemon, &call.arguments).await,
        Tool::ReadThread => read::thread(&call),
    }
}

/// Records that the agent's CLI has the result of a call.
pub(super) async fn taken(connection: &Connection, taken: &ToolTaken) -> Result<Reply, WireError> {
    let Ok(Caller::Agent(dispatch)) = Caller::of(connection) else { return Ok(Reply::Pong) };
    let daemon = &connection.daemon;
    match Tool::named(&taken.tool) {
        Some(Tool::AskHuman | Tool::AwaitAnswer) => ask::taken(daemon, &dispatch, taken).await?,
        Some(Tool::DraftAgent) => draft::taken(daemon, &dispatch, taken).await?,
        _ => {}
    }
    Ok(Reply::Pong)
}

/// Waits for `event`, for the end of the caller's patience (`None`), or for the end of the client.
async fn patiently<T>(
    connection: &mut Connection,
    patience: Option<Duration>,
    event: impl Future<Output = T>,
) -> Result<Option<T>, Refusal> {
    tokio::pin!(event);
    let over = async {
        match patience {
            Some(patience) => tokio::time::sleep(patience).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(over);
    loop {
        tokio::select! {
            biased;
            done = &mut event => return Ok(Some(done)),
            () = &mut over => return Ok(None),
            heard = connection.hear() => match heard {
                Ok(Heard::Cancelled) => return Err(Refusal::Cancelled),
                Ok(Heard::Credit) => {}
                Err(error) => return Err(Refusal::Gone(error)),
            },
        }
    }
}

fn patience(call: &ToolCall) -> Option<Duration> {
    call.patience_ms.map(Duration::from_millis)
}

fn refused<T>(reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Refused(reason.into()))
}
