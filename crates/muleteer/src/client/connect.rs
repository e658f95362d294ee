//! Reaching the daemon: connecting, starting one on demand, and asking again after a lost answer.

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::client::on_demand;
use muleteer_process::lock;
use muleteer_protocol::client::{Client, ClientError};
use muleteer_protocol::v1::{Reply, Request};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// After a lost answer, a daemon that something else restarts (systemd, a test) gets this long
/// before we start one ourselves.
const RESTART_PATIENCE: Duration = Duration::from_secs(2);
/// A request other than `wait` is given up after so many lost answers.
const RESENDS: u32 = 10;
/// So long somebody waits without being told what for.
const QUIET: Duration = Duration::from_secs(3);
/// A living daemon whose socket was removed makes it again within this time.
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

    /// Connects to a daemon that must be there; an agent's client waits for it to come back.
    ///
    /// # Errors
    /// `E_NO_DAEMON` and what else the connection fails with.
    pub async fn connect(&self) -> Result<Client, Failure> {
        self.dial_living().await.map_err(Failure::from)
    }

    /// Connects if there is a daemon; for verbs that can read from disk.
    ///
    /// # Errors
    /// When something is there, and is of no use.
    pub async fn connect_if_running(&self) -> Result<Option<Client>, Failure> {
        match self.dial_living().await {
            Ok(client) => Ok(Some(client)),
            // One that died while it greeted us is none either; one that hangs or refuses is there,
            // and reading the disk instead would hide that.
            Err(error) if error.is_lost() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Connects, and starts a daemon if there is none and this client may.
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

    /// Asks a daemon, starting one if need be, and asks again when it goes away before it answers.
    ///
    /// The request must be one that may be repeated: it carries an id or key of ours, or changes
    /// nothing by being done twice. `wait` is asked for as long as daemons come back; the others
    /// `RESENDS` times.
    ///
    /// # Errors
    /// The daemon's own, or why it cannot be reached.
    pub async fn ask(&self, request: Request) -> Result<Reply, Failure> {
        let endless = matches!(request, Request::Wait { .. } | Request::TasksWait { .. });
        let mut lost = 0;
        loop {
            let mut client = self.connect_or_start().await?;
            match client.call(request.clone()).await {
                Err(error) if error.is_lost() && (endless || lost < RESENDS) => {
                    lost += 1;
                    self.out.detail("the daemon went away before it answered; asking again");
                    if matches!(error, ClientError::Remote(_)) {
                        // It still answers, and will not for long.
                        sleep(LONGEST_PAUSE).await;
                    } else if !self.is_agent {
                        drop(self.dial_within(RESTART_PATIENCE).await);
                    }
                }
                answer => return answer.map_err(Failure::from),
            }
        }
    }

    /// Dials; where nobody answers though a daemon lives, for a little longer.
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

    /// A daemon has the state directory, whether it can be reached or not.
    pub fn is_held(&self) -> bool {
        lock::is_held(&self.paths.daemon_lock())
    }

    /// Dials until someone answers or `patience` is over.
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
                            "no daemon answers at {socket}; it may come back, for {seconds} s"
                        ));
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                other => return other,
            }
        }
    }

    /// The key that shows we may read the state directory. An agent's client must not show it, even
    /// where it could: it would take the operator's rights.
    fn operator_key(&self) -> Option<String> {
        if self.is_agent {
            return None;
        }
        let key = std::fs::read_to_string(self.paths.operator_key()).ok()?;
        Some(key.trim().to_string()).filter(|key| !key.is_empty())
    }
}

/// The error for a reply that does not answer the request.
pub fn unexpected(reply: &Reply) -> Failure {
    Failure::from(ClientError::Unexpected(format!("{reply:?}").chars().take(200).collect()))
}
