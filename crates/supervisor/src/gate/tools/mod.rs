//! Carries out the MCP tools of agents ([`muleteer_model::event::mcp`]). The relay `muleteer mcp`
//! passes each call on and holds no state, so everything that a call needs is here.
//!
//! - [`ask`]: questions to people, and the wait for their answers;
//! - [`draft`]: child dispatches;
//! - [`act`]: notes, reports, messages and kills;
//! - [`read`]: what an agent may look at;
//! - [`operator`]: what a client outside of Muleteer does with the rights of the operator;
//! - [`wait`]: calls that wait.
//!
//! A refusal is a result that says what is allowed instead. A state of the daemon that passes (it
//! ends, its disk is full) is an error, and the relay repeats the call.

mod act;
mod arguments;
mod ask;
mod draft;
mod operator;
mod read;
mod wait;

use crate::daemon::context::Daemon;
use crate::dispatch::error::is_passing;
use crate::gate::peer::{Identity, has_ended};
use muleteer_model::agent::event::cut;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::event::mcp::{Access, Tool};
use muleteer_protocol::v1::{Reply, ToolCall, ToolResult, ToolTaken, WireError};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The tools that read something of the calling agent itself.
const OF_AN_AGENT: [Tool; 3] = [Tool::GetBudget, Tool::GetTaskContext, Tool::ReadThread];

/// The client of a call.
#[derive(Debug)]
pub struct Client {
    pub daemon: Arc<Daemon>,
    pub identity: Identity,
    /// Cancelled when the client no longer wants the result. A call that waits ends then; a call
    /// that acts completes.
    pub cancelled: CancellationToken,
}

/// The most bytes of a call's key.
const KEY_LIMIT: usize = 256;

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
    /// The client has cancelled the call, or is gone.
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
    /// A client of the operator, who lets it act (`mcp.clients: act`).
    Operator,
}

impl Caller {
    fn of(client: &Client) -> Result<Self, Refusal> {
        let id = match &client.identity {
            Identity::Agent(id) => id,
            Identity::Operator if operator::may_act(&client.daemon)? => return Ok(Self::Operator),
            Identity::Operator | Identity::Unknown => return Ok(Self::Outside),
        };
        let dispatch = client.daemon.snapshot().get(id).cloned();
        match dispatch.filter(|_| !has_ended(&client.daemon, id)) {
            Some(dispatch) => Ok(Self::Agent(dispatch)),
            None => Err(Refusal::Refused(format!("dispatch {id} has ended: it has no tools"))),
        }
    }

    fn has(&self, tool: Tool, read_only: bool) -> bool {
        let may = match self {
            Self::Agent(dispatch) => tool.is_allowed(access(dispatch)),
            Self::Outside => tool.reads() && !OF_AN_AGENT.contains(&tool),
            Self::Operator => {
                operator::ACTING.contains(&tool) || tool.reads() && !OF_AN_AGENT.contains(&tool)
            }
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
    client: &'a Client,
    dispatch: Arc<Dispatch>,
    call: ToolCall,
    arguments: arguments::Arguments,
    trace: Option<String>,
}

/// Lists the tools of the caller.
pub(super) fn list(client: &Client, read_only: bool) -> Reply {
    let tools = Caller::of(client).map(|caller| caller.tools(read_only)).unwrap_or_default();
    Reply::Tools { tools }
}

/// Carries out a call.
///
/// # Errors
/// The daemon cannot carry it out now. `None` answers a client that cancelled the call.
pub(super) async fn call(
    client: &Client,
    call: ToolCall,
    trace: Option<String>,
) -> Result<Option<Reply>, WireError> {
    let result = match carry_out(client, call, trace).await {
        Ok(Done { value, subject }) => {
            ToolResult { result: value.to_string(), refused: false, subject }
        }
        Err(Refusal::Refused(reason)) => {
            let result = json!({ "refused": reason }).to_string();
            ToolResult { result, refused: true, subject: None }
        }
        Err(Refusal::Failed(error)) => return Err(error),
        Err(Refusal::Cancelled) => return Ok(None),
    };
    Ok(Some(Reply::Tool(Box::new(result))))
}

async fn carry_out(
    client: &Client,
    call: ToolCall,
    trace: Option<String>,
) -> Result<Done, Refusal> {
    let caller = Caller::of(client)?;
    if call.key.is_empty() || call.key.len() > KEY_LIMIT {
        return refused(format!("the key of a call must have 1 to {KEY_LIMIT} bytes"));
    }
    let tool = Tool::named(&call.tool).filter(|tool| caller.has(*tool, call.read_only));
    let Some(tool) = tool else {
        let has = caller.tools(call.read_only);
        let has = match has.is_empty() {
            true => "none".to_string(),
            false => has.join(", "),
        };
        let tool = &*cut(&call.tool, 100);
        let message = match &caller {
            Caller::Agent(_) => {
                format!("this agent does not have the tool `{tool}`: it has {has}")
            }
            Caller::Outside => {
                let hint = operator::hint(client, tool);
                format!("this client is no agent of Muleteer and has only: {has}{hint}")
            }
            Caller::Operator => {
                format!("the tool `{tool}` belongs to agents: a client of the operator has {has}")
            }
        };
        return Err(Refusal::Refused(message));
    };
    let arguments = arguments::Arguments::read(&call.arguments)?;
    let dispatch = match caller {
        Caller::Agent(dispatch) => dispatch,
        Caller::Operator if operator::ACTING.contains(&tool) => {
            return operator::act(client, tool, &call, &arguments, trace).await;
        }
        Caller::Outside | Caller::Operator => {
            return read::outside(client, tool, &call, &arguments).await;
        }
    };
    // The child of an agent gets the environment of its parent, whatever the call says.
    let call = ToolCall { env: vec![], directory: None, ..call };
    let call = Call { client, dispatch, call, arguments, trace };
    match tool {
        Tool::AskHuman => ask::human(&call).await,
        Tool::AwaitAnswer => ask::answer(&call).await,
        Tool::Note | Tool::ReportProgress => act::note(&call, tool).await,
        Tool::DraftAgent => draft::agent(&call).await,
        Tool::KillAgent => act::kill(&call).await,
        Tool::MessageAgent => act::message(&call).await,
        Tool::SendMessage => act::send(&call).await,
        Tool::AwaitAgent => {
            let ended = read::ended(client, &call.call, &call.arguments);
            wait::recorded(&call, tool, None, ended).await
        }
        Tool::GetBudget => Ok(read::budget(&call)),
        Tool::ListAgents => Ok(read::agents(&call.client.daemon, Some(&call.dispatch))),
        Tool::GetStatus => read::status(&call),
        Tool::ListTasks => read::tasks(&call.client.daemon, &call.arguments, &call.dispatch),
        Tool::GetTaskContext => Ok(read::context(&call)),
        Tool::ReadJournal => read::journal(&call.client.daemon, &call.arguments).await,
        Tool::ReadThread => read::thread(&call),
    }
}

/// Records that the agent's CLI has the result of a call.
pub(super) async fn taken(client: &Client, taken: &ToolTaken) -> Result<Reply, WireError> {
    let Ok(Caller::Agent(dispatch)) = Caller::of(client) else { return Ok(Reply::Pong) };
    let daemon = &client.daemon;
    match Tool::named(&taken.tool) {
        Some(Tool::AskHuman | Tool::AwaitAnswer) => ask::taken(daemon, &dispatch, taken).await?,
        Some(Tool::DraftAgent) => draft::taken(daemon, &dispatch, taken).await?,
        _ => {}
    }
    Ok(Reply::Pong)
}

/// Waits for `event`, for the end of the caller's patience (`None`), or for the end of the client.
async fn patiently<T>(
    client: &Client,
    patience: Option<Duration>,
    event: impl Future<Output = T>,
) -> Result<Option<T>, Refusal> {
    let over = async {
        match patience {
            Some(patience) => tokio::time::sleep(patience).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        done = event => Ok(Some(done)),
        () = over => Ok(None),
        () = client.cancelled.cancelled() => Err(Refusal::Cancelled),
    }
}

fn patience(call: &ToolCall) -> Option<Duration> {
    call.patience_ms.map(Duration::from_millis)
}

fn refused<T>(reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Refused(reason.into()))
}
