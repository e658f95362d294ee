//! Requests of the relay to the daemon. Each has a connection of its own, because one connection
//! handles one request at a time.

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::client::{Client, ClientError};
use muleteer_protocol::v1::{Reply, Request, ToolTaken};
use std::time::Duration;
use tokio::time::{Instant, sleep};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// The pause before a request is repeated that the daemon cannot carry out now.
const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// The way to the daemon.
#[derive(Debug)]
pub(super) struct Link {
    context: Context,
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error("Muleteer's daemon does not answer now: call the tool again")]
    Away,
    #[error("{0}")]
    Client(#[from] ClientError),
    #[error("{0}")]
    NoDaemon(String),
}

impl Link {
    pub fn new(context: &Context) -> Self {
        let mut context = context.clone();
        // Its stdout belongs to the MCP client, and nobody reads its notes.
        context.out.quiet = true;
        Self { context }
    }

    /// Sends a request until a daemon answers it. `request` makes it for the time that is left.
    ///
    /// # Errors
    /// [`LinkError::Away`] if `until` passed without a daemon; the others are final.
    pub async fn ask(
        &self,
        request: &mut (dyn FnMut(Option<Duration>) -> Request + Send),
        until: Option<Instant>,
    ) -> Result<Reply, LinkError> {
        let mut pause = FIRST_PAUSE;
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let error = match self.try_once(request(left)).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let wait = match &error {
                LinkError::Client(error) if error.is_lost() => {
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    pause
                }
                LinkError::Client(ClientError::Slow(_)) => BUSY_PAUSE,
                LinkError::Client(ClientError::Remote(wire) | ClientError::Refused(wire))
                    if is_passing(&wire.code) =>
                {
                    BUSY_PAUSE
                }
                _ => return Err(error),
            };
            if until.is_some_and(|until| Instant::now() + wait > until) {
                return Err(LinkError::Away);
            }
            sleep(wait).await;
        }
    }

    /// Confirms that the client has a result. It tries until a daemon has recorded it.
    pub async fn confirm(&self, taken: ToolTaken) {
        let mut request = |_| Request::ToolTaken(Box::new(taken.clone()));
        if let Err(error) = self.ask(&mut request, None).await {
            tracing::warn!(%error, "failed to confirm the result of a call");
        }
    }

    async fn try_once(&self, request: Request) -> Result<Reply, LinkError> {
        let mut client = self.connect().await?;
        Ok(client.call(request).await?)
    }

    /// Connects. A client that is no agent starts a daemon if none runs.
    async fn connect(&self) -> Result<Client, LinkError> {
        match self.context.is_agent {
            true => Ok(self.context.dial().await?),
            false => self.context.connect_or_start().await.map_err(unreachable),
        }
    }
}

fn unreachable(failure: Failure) -> LinkError {
    match failure {
        Failure::Told(told) => LinkError::NoDaemon(told.error.message),
        Failure::OutputClosed => LinkError::Away,
    }
}

fn is_passing(code: &str) -> bool {
    [ErrorCode::Busy, ErrorCode::DiskFull, ErrorCode::DaemonEnding]
        .iter()
        .any(|passing| code == passing.as_str())
}
