//! Checks a shim that does not answer a request, and carries out the decisions of [`ShimWatch`].

use crate::daemon::context::Daemon;
use crate::ledger::{append, entry};
use crate::ports::ledger::LedgerError;
use muleteer_model::event::Event;
use muleteer_model::event::id::DispatchId;
use muleteer_model::restart::shim_watch::{Act, ShimWatch, Why};
use muleteer_process::host::host;
use muleteer_process::identity::Pinned;
use muleteer_shim::attach;
use rustix::process::Signal;
use std::time::Duration;
use tokio::time::Instant;

/// The time that a shim gets for a request before the first check, and between checks.
pub const EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Stuck {
    watch: ShimWatch,
    looked: Instant,
    /// The pid of the shim, if this daemon has just started it.
    forked: Option<u32>,
}

impl Stuck {
    pub fn new() -> Self {
        Self::of(None)
    }

    /// Begins to watch a shim that was started now, with this pid if that is known. Where many
    /// start, each of them may be late. If each check then looked through all processes, the checks
    /// would take the processors from the shims.
    pub fn of(forked: Option<u32>) -> Self {
        Self { watch: ShimWatch::default(), looked: Instant::now(), forked }
    }

    /// Returns the time of the next check, if a request is still unanswered.
    pub fn due(&self) -> Instant {
        self.looked + EVERY
    }

    /// Resets the watch: the shim has answered, or owes nothing.
    pub fn content(&mut self) {
        *self = Self::of(self.forked);
    }

    /// Checks the shim of a dispatch, if one lives. `ending` says that it was told to terminate its
    /// agent and has not answered.
    ///
    /// # Errors
    /// The decision could not be recorded, so nothing was done.
    pub async fn look(
        &mut self,
        daemon: &Daemon,
        id: &DispatchId,
        ending: bool,
    ) -> Result<(), LedgerError> {
        let since = std::mem::replace(&mut self.looked, Instant::now()).elapsed();
        let shim = attach::shim_of(&daemon.paths.agent(id.as_str()), self.forked);
        let Some(shim) = shim.and_then(|shim| Pinned::open_exact(shim).ok()) else { return Ok(()) };
        let stopped = host().stat(shim.id().pid).is_some_and(|stat| stat.stopped);
        let pid = shim.id().pid;
        let (signal, tell, message) = match self.watch.look(stopped, ending.then_some(since)) {
            Act::Nothing => return Ok(()),
            Act::GoOn { tell } => (
                Signal::CONT,
                tell,
                format!("process {pid} was stopped by a signal: sending SIGCONT"),
            ),
            Act::Kill { why, tell } => {
                let why = match why {
                    Why::StoppedAgain => "was stopped by signals repeatedly",
                    Why::Silent => "did not answer when asked to stop its agent",
                };
                (Signal::KILL, tell, format!("process {pid} {why}: killing it and its agent"))
            }
        };
        if tell {
            let event = Event::Fault { what: format!("the shim of {id}"), message };
            append(daemon, vec![entry(id, None, event)]).await?;
        }
        // If the shim is gone meanwhile, that is fine.
        let _ = shim.signal(signal.as_raw());
        Ok(())
    }
}
