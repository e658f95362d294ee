//! Connections to the daemon: dialling, starting one on demand, and resending after a lost answer.

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::client::on_demand;
use crate::remote;
use muleteer_model::event::id::ID_BYTES;
use muleteer_process::lock;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::client::{Client, ClientError};
use muleteer_protocol::v1::{Reply, Request};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long a client waits after a lost answer before it starts a daemon itself. Something else,
/// such as systemd or a test, may restart it in that time.
const RESTART_PATIENCE: Duration = Duration::from_secs(2);
/// A request other than `wait` fails after this many lost answers.
const RESENDS: u32 = 10;
/// How long a client waits silently before it reports what it waits for.
const QUIET: Duration = Duration::from_secs(3);
/// A living daemon whose socket was removed creates it again within this time.
const REMADE: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

impl Context {
    /// Connects once.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn dial(&self) -> Result<Client, ClientError> {
        let name = concat!("muleteer/", env!("CARGO_PKG_VERSION"));
        let mut client = Client::connect(&self.socket, name, self.operator_key()).await?;
        client.set_trace(self.trace.clone());
        Ok(client)
    }

    /// Connects to a running daemon; an agent's client waits for an absent one to come back.
    ///
    /// # Errors
    /// `E_NO_DAEMON`, or another error of the connection.
    pub async fn connect(&self) -> Result<Client, Failure> {
        self.dial_living().await.map_err(Failure::from)
    }

    /// Connects if a daemon runs; for verbs that can read from disk.
    ///
    /// # Errors
    /// When a process answers that cannot be used.
    pub async fn connect_if_running(&self) -> Result<Option<Client>, Failure> {
        match self.dial_living().await {
            Ok(client) => Ok(Some(client)),
            // A daemon that died during the handshake counts as absent. One that hangs or rejects
            // us is there, and reading the disk instead would hide that.
            Err(error) if error.is_lost() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Connects; starts a daemon if none runs and this client may do so.
    ///
    /// # Errors
    /// `E_NO_DAEMON`, or `E_DAEMON_START` with the end of the daemon's log.
    pub async fn connect_or_start(&self) -> Result<Client, Failure> {
        if self.is_agent {
            return self.connect().await;
        }
        match self.dial().await {
            Err(ClientError::NoDaemon { .. } | ClientError::Lost) => on_demand::start(self).await,
            other => other.map_err(Failure::from),
        }
    }

    /// Sends a request, starting a daemon if necessary, and resends it if the daemon dies before it
    /// answers.
    ///
    /// The request must be repeatable: it carries an id or key from us, or a second execution
    /// changes nothing. `wait` is resent as long as daemons come back, other requests `RESENDS`
    /// times.
    ///
    /// # Errors
    /// The daemon's error, or the reason why it cannot be reached.
    pub async fn ask(&self, request: Request) -> Result<Reply, Failure> {
        let endless = matches!(
            request,
            Request::Wait { .. }
                | Request::WaitAny { .. }
                | Request::TasksWait { .. }
                | Request::ThreadWait { .. }
        );
        let mut lost = 0;
        loop {
            let mut client = self.connect_or_start().await?;
            match client.call(request.clone()).await {
                Err(error) if error.is_lost() && (endless || lost < RESENDS) => {
                    lost += 1;
                    self.out.detail("the daemon ended before it answered; retrying");
                    if matches!(error, ClientError::Remote(_)) {
                        // The daemon still answers, but is about to stop.
                        sleep(LONGEST_PAUSE).await;
                    } else if !self.is_agent {
                        drop(self.dial_within(RESTART_PATIENCE).await);
                    }
                }
                answer => return answer.map_err(Failure::from),
            }
        }
    }

    /// Dials; retries a little longer if nobody answers although a daemon lives.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn dial_living(&self) -> Result<Client, ClientError> {
        match self.dial_within(self.patience).await {
            Err(error) if error.is_lost() && !self.is_agent && self.is_held() => {
                self.dial_within(REMADE).await
            }
            other => other,
        }
    }

    /// Returns whether a daemon holds the state directory, even if it cannot be reached.
    pub fn is_held(&self) -> bool {
        lock::is_held(&self.paths.daemon_lock())
    }

    /// Dials until a daemon answers or `patience` is over.
    pub async fn dial_within(&self, patience: Duration) -> Result<Client, ClientError> {
        let (began, mut said) = (Instant::now(), false);
        let deadline = began + patience;
        let mut pause = FIRST_PAUSE;
        loop {
            match self.dial().await {
                Err(error) if error.is_lost() && Instant::now() < deadline => {
                    if began.elapsed() > QUIET && !std::mem::replace(&mut said, true) {
                        let (socket, seconds) = (self.socket.display(), patience.as_secs());
                        self.out.note(format!(
                            "no daemon answers at {socket}; retrying for {seconds} s"
                        ));
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                other => return other,
            }
        }
    }

    /// Returns the key that proves access to the state directory. An agent's client must not send
    /// it, even if it could read it: it would get the operator's rights.
    fn operator_key(&self) -> Option<String> {
        if self.is_agent {
            return None;
        }
        let key = std::fs::read_to_string(self.paths.operator_key()).ok()?;
        Some(key.trim().to_string()).filter(|key| !key.is_empty())
    }
}

/// Returns the error for a reply that does not answer the request.
pub fn unexpected(reply: &Reply) -> Failure {
    Failure::from(ClientError::Unexpected(format!("{reply:?}").chars().take(200).collect()))
}

/// Returns random bytes for an id, or for a key by which the daemon recognises a resent request.
///
/// # Errors
/// When the system provides no random bytes.
pub fn random() -> Result<[u8; ID_BYTES], Failure> {
    if let Some(bytes) = remote::repeatable() {
        return Ok(bytes);
    }
    let mut bytes = [0; ID_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| {
        Failure::new(ErrorCode::Io, format!("cannot get random bytes: {error}"))
    })?;
    Ok(bytes)
}
