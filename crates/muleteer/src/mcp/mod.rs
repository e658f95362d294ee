//! The MCP server of agents: a relay without state between an MCP client and the daemon.
//!
//! ```text
//! agent's CLI ──tools/call──▶ relay ──Tool {key}──▶ daemon      the effect is durable
//!             ◀──result──────       ◀──ToolResult──
//!                             relay ──ToolTaken──▶ daemon       only now the agent has it
//! ```
//!
//! The relay never ends while its stdin is open: Codex fails every later call of a session whose
//! server ended once. If the daemon dies, it connects to the next one and repeats the call with the
//! same key. Only this module knows `rmcp`.
//!
//! - `link`: requests to the daemon; `wire`: stdin and stdout; `catalog`: the tools; `waiting`:
//!   calls that wait; `attachments`: the files of messages.

mod attachments;
mod catalog;
mod link;
mod waiting;
mod wire;

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::settings;
use crate::client::connect::random;
use crate::verbs::agents::spawn::passed_env;
use link::Link;
use muleteer_model::event::mcp::{LONG_CALLS, Tool};
use muleteer_model::event::mcp_pace::Pace;
use muleteer_protocol::v1::{Reply, Request, ToolCall, ToolResult, ToolTaken};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData,
    Implementation, ListToolsResult, PaginatedRequestParams, ProgressNotificationParam,
    ServerCapabilities, ServerConfig,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::{ServerHandler, ServiceExt as _};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use wire::{Wire, Written};

/// The server's name, by which agents see its tools.
pub const NAME: &str = "muleteer";

/// The most calls that wait for people or agents at the same time. Each has a connection.
const WAITING: usize = 10;
/// The most other calls at the same time.
const QUICK: usize = 4;
/// The time for the last confirmations after the end of stdin.
const LAST: Duration = Duration::from_secs(5);

const INSTRUCTIONS: &str = "Tools of Muleteer, which supervises this agent. Ask a person with \
    ask_human instead of guessing; the question waits for the answer, also over restarts. Write \
    down decisions with note, and where you are with report_progress.";

/// Serves MCP over stdin and stdout until stdin ends.
///
/// # Errors
/// The system provides no random bytes.
pub async fn serve(context: &Context, read_only: bool) -> Result<Exit, Failure> {
    let session = data_encoding_of(&random()?);
    let (taken, mut confirm) = mpsc::channel::<ToolTaken>(256);
    let written = Arc::new(Written::new(taken));
    let link = Link::new(context);
    let confirming = async {
        while let Some(taken) = confirm.recv().await {
            link.confirm(taken).await;
        }
    };
    let serving = async {
        let ended = written.clone();
        while !ended.has_ended() {
            let relay = Relay {
                link: Link::new(context),
                session: session.clone(),
                read_only,
                context: context.clone(),
                has_time: std::env::var_os(LONG_CALLS).is_some(),
                written: written.clone(),
                waiting: Semaphore::new(WAITING),
                quick: Semaphore::new(QUICK),
            };
            // A client that begins in a way that the protocol does not allow gets an error, and may
            // begin again.
            match relay.serve(Wire::stdio(written.clone())?).await {
                Ok(running) => drop(running.waiting().await),
                Err(error) => tracing::warn!(%error, "failed to begin the MCP session"),
            }
        }
        written.close();
        Ok::<_, std::io::Error>(())
    };
    tokio::pin!(confirming);
    tokio::select! {
        served = serving => served?,
        () = &mut confirming => {}
    }
    let _ = tokio::time::timeout(LAST, confirming).await;
    Ok(Exit::Done)
}

fn data_encoding_of(bytes: &[u8]) -> String {
    muleteer_model::event::id::encode(bytes)
}

/// The handler of one session.
struct Relay {
    link: Link,
    /// The beginning of the keys of all calls.
    session: String,
    read_only: bool,
    context: Context,
    /// The client waits as long as a call takes.
    has_time: bool,
    written: Arc<Written>,
    waiting: Semaphore,
    quick: Semaphore,
}

impl ServerHandler for Relay {
    fn get_info(&self) -> ServerConfig {
        let version = env!("CARGO_PKG_VERSION");
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new(NAME, version))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let request = Request::Tools { read_only: self.read_only };
        let tools = match self.link.ask(&mut |_| request.clone(), None).await {
            Ok(Reply::Tools { tools }) => tools,
            Ok(_) => vec![],
            Err(error) => return Err(ErrorData::internal_error(error.to_string(), None)),
        };
        let has = |tool: &Tool| tools.iter().any(|name| name == tool.name());
        let shown = Tool::all().filter(has).map(catalog::definition);
        Ok(ListToolsResult::with_all_items(shown.collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let began = Instant::now();
        let waits = matches!(
            Tool::named(&request.name),
            Some(Tool::AskHuman | Tool::AwaitAnswer | Tool::AwaitAgent)
        );
        let (env, directory) = match Tool::named(&request.name) {
            Some(Tool::DraftAgent) if !self.context.is_agent => match surroundings(&self.context) {
                Ok(surroundings) => surroundings,
                Err(Failure::Told(told)) => return Ok(failed(told.error.message).into()),
                Err(Failure::OutputClosed) => {
                    return Ok(failed("stdout is closed".into()).into());
                }
            },
            _ => (vec![], None),
        };
        let files = match Tool::named(&request.name) {
            Some(Tool::SendMessage) => attachments::read(request.arguments.as_ref()).await,
            _ => Ok(vec![]),
        };
        let files = match files {
            Ok(files) => files,
            Err(reason) => return Ok(failed(reason.to_string()).into()),
        };
        let places = if waits { &self.waiting } else { &self.quick };
        let client = context.client_info();
        let is_known =
            client.is_some_and(|client| muleteer_backends::waits_for_tools(&client.name));
        let pace = Pace::new(waiting::periods(), self.has_time || is_known);
        let until = pace.end().map(|end| began + end);
        let call = ToolCall {
            key: format!("{}-{}", self.session, context.id),
            tool: request.name.to_string(),
            arguments: serde_json::Value::Object(request.arguments.unwrap_or_default()).to_string(),
            read_only: self.read_only,
            patience_ms: None,
            env,
            directory,
            files,
        };
        let mut request = |left: Option<Duration>| {
            let patience_ms = left.map(|left| left.as_millis() as u64);
            Request::Tool(Box::new(ToolCall { patience_ms, ..call.clone() }))
        };
        let asking = async {
            let _place = places.acquire().await;
            self.link.ask(&mut request, until).await
        };
        let cancelled = context.ct.cancelled();
        let report = |elapsed| report(&context, elapsed);
        let Some(reply) = waiting::reporting(pace, began, asking, cancelled, report).await else {
            return Err(ErrorData::internal_error("the client cancelled the call", None));
        };
        Ok(match reply {
            Ok(Reply::Tool(result)) => {
                if let Some(subject) = result.subject.clone() {
                    let ms = began.elapsed().as_millis() as u64;
                    let taken = ToolTaken { tool: call.tool.clone(), subject, ms };
                    self.written.expect(context.id.clone(), taken);
                }
                shown(&result)
            }
            Ok(other) => failed(format!("this muleteer does not know the answer {other:?}")),
            Err(error) => failed(error.to_string()),
        }
        .into())
    }
}

/// The environment and the directory of a client.
type Surroundings = (Vec<(String, String)>, Option<String>);

/// Returns the environment and the directory for an agent that a client outside of Muleteer drafts.
/// The child of an agent gets those of its parent.
///
/// # Errors
/// The configuration is faulty, so it is not known which variables the agent may get.
fn surroundings(context: &Context) -> Result<Surroundings, Failure> {
    let directory = std::env::current_dir().ok();
    let config = settings::config(context, directory.as_deref())?;
    let directory = directory.and_then(|path| path.into_os_string().into_string().ok());
    Ok((passed_env(&config), directory))
}

/// Tells the client that the call goes on.
async fn report(context: &RequestContext<RoleServer>, elapsed: Duration) {
    let Some(token) = context.meta.get_progress_token() else { return };
    let seconds = elapsed.as_secs();
    // Each value must be greater than the one before, also in tests with short periods.
    let param = ProgressNotificationParam::new(token, elapsed.as_secs_f64())
        .with_message(format!("waiting for {seconds} s"));
    // A client that is gone is noticed at stdin.
    let _ = context.peer.notify_progress(param).await;
}

fn shown(result: &ToolResult) -> CallToolResult {
    let value = serde_json::from_str::<serde_json::Value>(&result.result).unwrap_or_default();
    if result.refused {
        let reason = value.get("refused").and_then(serde_json::Value::as_str);
        return failed(reason.unwrap_or(&result.result).to_string());
    }
    let mut shown = CallToolResult::success(vec![ContentBlock::text(result.result.clone())]);
    shown.structured_content = Some(value);
    shown
}

fn failed(reason: String) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(reason)])
}
