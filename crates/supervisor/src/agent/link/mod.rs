//! The link to one shim, as a part of its agent's life. It serves one epoch at a time with a task
//! of its own, and starts it again after a failure.
//!
//! Dropping a link closes a socket and signals nobody. Its state is read again from the spool.

mod error;
mod session;
mod spool;

use crate::agent::link::error::LinkError;
use crate::agent::link::session::Session;
use crate::daemon::context::Daemon;
use crate::daemon::owned_task::{own, survive};
use crate::ports::agent::LifeMsg;
use crate::ports::shim_command::Command;
use crate::telemetry::own_spans;
use crate::tree::LINK;
use futures_util::FutureExt;
use muleteer_model::event::Event;
use muleteer_model::event::id::DispatchId;
use muleteer_model::restart::{Decision, Window, seed};
use muleteer_process::clock::awake_ms;
use ractor::ActorRef;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// The limit of commands that wait for a shim. Life sends few; more means that something is wrong.
const COMMANDS: usize = 64;

pub struct Link {
    daemon: Arc<Daemon>,
    id: DispatchId,
    life: ActorRef<LifeMsg>,
    state: State,
    failures: Window,
}

enum State {
    Idle,
    Serving {
        epoch: u32,
        commands: mpsc::Sender<Command>,
        _task: AbortOnDropHandle<()>,
    },
    /// It has failed. [`LifeMsg::LinkUp`] comes after the pause, and ends the span.
    Pausing {
        _span: tracing::Span,
    },
}

/// A link has failed too often, so the whole life restarts.
#[derive(Debug, thiserror::Error)]
#[error("the link failed too often: {0}")]
pub struct Hopeless(String);

impl Link {
    pub fn new(daemon: Arc<Daemon>, id: DispatchId, life: ActorRef<LifeMsg>) -> Self {
        let failures = Window::new(LINK.intensity, LINK.backoff, seed(LINK.name));
        Self { daemon, id, life, state: State::Idle, failures }
    }

    /// Whether the link waits for its next try. Then all requests come again with
    /// [`LifeMsg::LinkUp`].
    pub fn is_pausing(&self) -> bool {
        matches!(self.state, State::Pausing { .. })
    }

    /// Makes sure that the shim of `epoch` is served.
    pub fn ensure(&mut self, epoch: u32, resume: Option<String>) {
        match &self.state {
            State::Serving { epoch: served, .. } if *served == epoch => return,
            State::Pausing { .. } => return,
            State::Idle | State::Serving { .. } => {}
        }
        let (commands, inbox) = mpsc::channel(COMMANDS);
        let life = self.life.clone();
        let serving = self.serve(epoch, resume, inbox);
        // Not in an `async` block, which would have the state of `serving` twice.
        let task = own(survive(serving).map(move |ended| {
            let ended = ended.unwrap_or_else(|panicked| Err(panicked.into()));
            let error = ended.err().map(|error| error.to_string());
            let _ = life.cast(LifeMsg::LinkEnded(epoch, error));
        }));
        self.state = State::Serving { epoch, commands, _task: task };
    }

    fn serve(
        &self,
        epoch: u32,
        resume: Option<String>,
        inbox: mpsc::Receiver<Command>,
    ) -> impl Future<Output = Result<(), LinkError>> + Send + use<> {
        let session = Session::new(&self.daemon, &self.id, epoch, resume);
        #[cfg(test)]
        if let Some(played) = self.daemon.agent(&self.id).played.get().cloned() {
            return played_shim::pass_on(epoch, inbox, played).left_future();
        }
        #[cfg(test)]
        return session.serve(inbox).right_future();
        #[cfg(not(test))]
        session.serve(inbox)
    }

    /// Sends a command to the shim that is served.
    pub fn send(&self, command: Command) {
        if let State::Serving { commands, .. } = &self.state
            && commands.try_send(command).is_err()
        {
            let id = &self.id;
            tracing::warn!(%id, "the shim rejected a command that came too late or twice");
        }
    }

    /// Notes that the task of this epoch has ended. After a failure the link pauses, and the event
    /// log says so.
    ///
    /// # Errors
    /// It has failed too often.
    pub fn ended(&mut self, of: u32, error: Option<String>) -> Result<(), Hopeless> {
        if !matches!(self.state, State::Serving { epoch, .. } if epoch == of) {
            return Ok(());
        }
        self.state = State::Idle;
        let Some(reason) = error else { return Ok(()) };
        let now = awake_ms();
        let Decision::RestartAfter(delay) = self.failures.record(now) else {
            return Err(Hopeless(reason));
        };
        let fleet = self.daemon.snapshot();
        let trace = fleet.get(&self.id).and_then(|dispatch| dispatch.created.trace.as_deref());
        let settings = self.daemon.settings.telemetry.as_ref();
        let span = own_spans::restart(settings, LINK.name, LINK.name, trace);
        self.daemon.note(Event::ActorRestarted {
            actor: LINK.name.into(),
            reason,
            restarts_in_window: self.failures.restarts(now),
            delay_ms: delay.as_millis() as u64,
        });
        self.state = State::Pausing { _span: span };
        self.life.send_after(delay, || LifeMsg::LinkUp);
        Ok(())
    }

    /// Ends the pause after a failure.
    pub fn resume(&mut self) {
        if self.is_pausing() {
            self.state = State::Idle;
        }
    }
}

/// A shim that a test plays.
#[cfg(test)]
pub(crate) mod played_shim {
    use super::{Command, LinkError};
    use tokio::sync::mpsc;

    /// A request to a link.
    #[derive(Debug)]
    pub(crate) enum Asked {
        Ensure(u32),
        Do(Command),
    }

    pub(super) async fn pass_on(
        epoch: u32,
        mut inbox: mpsc::Receiver<Command>,
        to: mpsc::Sender<Asked>,
    ) -> Result<(), LinkError> {
        let _ = to.send(Asked::Ensure(epoch)).await;
        while let Some(command) = inbox.recv().await {
            let _ = to.send(Asked::Do(command)).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::daemon::context::test_daemon;
    use muleteer_model::config::Pool;
    use std::time::Duration;

    /// A link that continued after a failure would never read its agent's output again, and one
    /// that always fails must not go on for ever.
    #[tokio::test]
    async fn failed_session_is_served_again_after_a_pause_until_it_is_hopeless() {
        let daemon = test_daemon::daemon("/nowhere".as_ref(), Pool::default());
        let (life, mut heard) = test_daemon::stand_in().await;
        let mut link = Link::new(daemon, test_daemon::id("abcd2345"), life);
        let mut next = async || {
            tokio::time::timeout(Duration::from_secs(30), heard.recv()).await.unwrap().unwrap()
        };
        for _ in 0..LINK.intensity.max {
            // There is no such dispatch.
            link.ensure(1, None);
            let LifeMsg::LinkEnded(1, error @ Some(_)) = next().await else { panic!() };
            link.ended(1, error).unwrap();
            assert!(link.is_pausing());
            link.ensure(1, None);
            assert!(link.is_pausing(), "it is served after the pause only");
            assert!(matches!(next().await, LifeMsg::LinkUp));
            link.resume();
        }
        link.ensure(1, None);
        let LifeMsg::LinkEnded(1, error) = next().await else { panic!() };
        assert!(link.ended(1, error).is_err());
    }
}
