//! A client of `muleteer mcp`, for tests of the relay and of what the tools do.

use crate::{PATIENCE, World};
use rmcp::model::{CallToolRequestParams, CallToolResult, ProgressNotificationParam};
use rmcp::service::{NotificationContext, Peer, RoleClient, RunningService};
use rmcp::{ClientHandler, ServiceError, ServiceExt as _};
use serde_json::Value;
use std::fmt;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// An MCP client with a relay.
pub struct Mcp<'a> {
    world: &'a World,
    runtime: Runtime,
    service: Option<RunningService<RoleClient, Counting>>,
    child: tokio::process::Child,
    reports: Arc<AtomicUsize>,
}

impl fmt::Debug for Mcp<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Mcp").field("relay", &self.child.id()).finish_non_exhaustive()
    }
}

/// A call that was begun.
pub type Called = JoinHandle<Result<CallToolResult, ServiceError>>;

/// Counts the reports of progress.
struct Counting(Arc<AtomicUsize>);

impl ClientHandler for Counting {
    async fn on_progress(&self, _: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl<'a> Mcp<'a> {
    /// Starts a relay at the socket of an agent. Its client waits as long as a call takes.
    pub fn of(world: &'a World, dispatch: &str) -> Self {
        Self::with(world, Some(dispatch), &["mcp"])
    }

    /// Starts a relay with these arguments, at the socket of an agent or of the operator.
    pub fn with(world: &'a World, dispatch: Option<&str>, args: &[&str]) -> Self {
        Self::start(world, dispatch, args, &[("MULETEER_MCP_LONG_CALLS", "1")])
    }

    /// Starts a relay with these variables.
    ///
    /// # Panics
    /// When the relay opens no session.
    pub fn start(
        world: &'a World,
        dispatch: Option<&str>,
        args: &[&str],
        env: &[(&str, &str)],
    ) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let mut command = std::process::Command::new(world.program());
        command.args(args).current_dir(world.path());
        world.environment(&mut command);
        if let Some(dispatch) = dispatch {
            command.env("MULETEER_SOCKET", socket(world, dispatch));
        }
        command.envs(env.iter().copied());
        let mut command = tokio::process::Command::from(command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let reports = Arc::new(AtomicUsize::new(0));
        let (service, child) = runtime.block_on(async {
            let mut child = command.spawn().expect("a relay");
            let pipes = (child.stdout.take().expect("a pipe"), child.stdin.take().expect("a pipe"));
            let client = Counting(reports.clone());
            (client.serve(pipes).await.expect("a session"), child)
        });
        Self { world, runtime, service: Some(service), child, reports }
    }

    fn peer(&self) -> Peer<RoleClient> {
        self.service.as_ref().expect("a session").peer().clone()
    }

    pub fn tools(&self) -> Vec<String> {
        let tools = self.runtime.block_on(self.peer().list_all_tools()).expect("tools");
        tools.into_iter().map(|tool| tool.name.to_string()).collect()
    }

    /// Begins a call.
    pub fn begin(&self, tool: &str, arguments: Value) -> Called {
        let mut params = CallToolRequestParams::new(tool.to_string());
        params.arguments = arguments.as_object().cloned();
        let peer = self.peer();
        self.runtime.spawn(async move { peer.call_tool(params).await })
    }

    /// Waits for the end of a call.
    pub fn result(&self, called: Called) -> CallToolResult {
        let waited = async { tokio::time::timeout(PATIENCE, called).await };
        let ended = self.runtime.block_on(waited).expect("the call ends in time");
        ended.expect("a task").expect("a result")
    }

    /// Returns the document of a call's result.
    pub fn end(&self, called: Called) -> Value {
        let result = self.result(called);
        assert_ne!(result.is_error, Some(true), "{result:?}");
        result.structured_content.expect("a document")
    }

    pub fn call(&self, tool: &str, arguments: Value) -> Value {
        self.end(self.begin(tool, arguments))
    }

    /// Returns the reason of a refused call.
    pub fn refused(&self, tool: &str, arguments: Value) -> String {
        let result = self.result(self.begin(tool, arguments));
        assert_eq!(result.is_error, Some(true), "{result:?}");
        serde_json::to_string(&result.content).expect("a text")
    }

    /// Returns the number of reports of progress that the relay has sent.
    pub fn reports(&self) -> usize {
        self.reports.load(Ordering::SeqCst)
    }

    pub fn kill_9(&mut self) {
        let pid = self.child.id().expect("it runs");
        self.world.kill_9(pid);
        self.runtime.block_on(self.child.wait()).expect("an end");
    }

    /// Closes its stdin, and waits for its end.
    pub fn close(mut self) {
        let service = self.service.take().expect("a session");
        self.runtime.block_on(async {
            drop(service.cancel().await);
            let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
            assert!(ended.expect("it ends with its stdin").expect("an end").success());
        });
    }
}

/// Returns the socket of an agent.
pub fn socket(world: &World, dispatch: &str) -> String {
    world.state().join(format!("agents/{dispatch}/pub/sock")).display().to_string()
}
