//! Serves one epoch of an agent: makes sure that its shim runs, brings its output to life in
//! acknowledged batches, and sends commands to it.

use crate::agent::link::error::LinkError;
use crate::agent::link::spool::Spool;
use crate::agent::spool_decoder::Drain;
use crate::daemon::context::{AgentSlots, Daemon};
use crate::dispatch::launch::command_line;
use crate::dispatch::launch::sweep::{Swept, sweep};
use crate::dispatch::launch::{self, Standing};
use crate::dispatch::shim::error::ShimError;
use crate::dispatch::shim::port::ShimPort;
use crate::dispatch::shim::watchdog::Stuck;
use crate::ports::agent::{LifeMsg, Step};
use crate::ports::shim_command::Command;
use muleteer_model::dispatch::life::Input;
use muleteer_model::dispatch::{Dispatch, Phase};
use muleteer_model::event::Position;
use muleteer_model::event::id::DispatchId;
use muleteer_process::fault;
use muleteer_process::lock::LockGuard;
use muleteer_protocol::shim::v1::{FromShim, Idem, Outcome, ToShim};
use muleteer_shim::attach::{self, Liveness};
use muleteer_shim::control;
use muleteer_shim::spool::{Cursor, Reader};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// The interval at which the spool is read without a nudge, because a nudge can be lost with its
/// connection.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// The time for a shim to end after its last record. If it takes longer, the successor's own start
/// searches.
const SHIM_EXIT: Duration = Duration::from_millis(100);

/// Serves one epoch from its current state to its end.
pub(super) struct Session {
    daemon: Arc<Daemon>,
    id: DispatchId,
    slots: Arc<AgentSlots>,
    epoch: u32,
    resume: Option<String>,
    /// Commands that are sent and not answered yet, in order. They are sent again on a new
    /// connection, under the same keys.
    unanswered: VecDeque<ToShim>,
    /// Writes that the shim has acknowledged. They are reported once the spool is read that far:
    /// the shim also records them in order, but leaves the record out if the disk is full.
    acknowledged: Vec<String>,
    /// The moment at which the dispatch's time is over, and the shim should have ended the agent.
    over: Option<Instant>,
    stuck: Stuck,
    /// This daemon has reported the shim: an adoption is reported once.
    told: bool,
}

impl Session {
    pub(super) fn new(
        daemon: &Arc<Daemon>,
        id: &DispatchId,
        epoch: u32,
        resume: Option<String>,
    ) -> Self {
        let slots = daemon.agent(id);
        let (unanswered, acknowledged, stuck) = (VecDeque::new(), vec![], Stuck::new());
        let (daemon, id) = (daemon.clone(), id.clone());
        Self {
            daemon,
            id,
            slots,
            epoch,
            resume,
            unanswered,
            acknowledged,
            over: None,
            stuck,
            told: false,
        }
    }

    fn dispatch(&self) -> Result<Arc<Dispatch>, LinkError> {
        self.daemon.snapshot().get(&self.id).cloned().ok_or(LinkError::NoDispatch)
    }

    pub(super) async fn serve(
        mut self,
        mut inbox: mpsc::Receiver<Command>,
    ) -> Result<(), LinkError> {
        let dispatch = self.dispatch()?;
        // For an adopted shim this is a little late.
        let left = dispatch
            .created
            .limits
            .timeout_s
            .map(|timeout| command_line::left(timeout, dispatch.usage.awake_ms));
        self.over = left.and_then(|left| Instant::now().checked_add(Duration::from_millis(left)));
        let backend = muleteer_backends::by_name(&dispatch.created.backend)?;
        let last_line = !dispatch.created.has_turns();
        let mut drain = Drain::new(self.epoch, dispatch.position, backend.parser(), last_line);
        let reader = Reader::open(&self.daemon.paths.spool(self.id.as_str()));
        let start = Cursor { epoch: self.epoch, offset: drain.position().offset };
        let mut spool = Spool::new(reader, start);
        let rebooted = dispatch.was_rebooted();
        // The state of this moment, with its prompts and texts, is not held for as long as the
        // agent lives.
        drop(dispatch);
        while !drain.ended {
            if let Some(port) = self.slots.take_port(self.epoch) {
                self.told = true;
                self.attached(port, &mut inbox, &mut drain, &mut spool).await?;
                continue;
            }
            // It is boxed, so that memory for the start is not held for as long as the agent lives.
            match Box::pin(self.stand()).await? {
                Standing::Alive { adopted } => {
                    if let Some(port) = self.connect(adopted, &mut inbox).await? {
                        self.attached(port, &mut inbox, &mut drain, &mut spool).await?;
                    }
                }
                Standing::Dead { lock } => {
                    return Box::pin(self.bury(lock, rebooted, drain, spool)).await;
                }
                Standing::Unswept { killed } => {
                    self.tell(Input::ShimLost {
                        epoch: self.epoch,
                        spawned: false,
                        killed,
                        clean: false,
                        awake_ms: 0,
                        said: String::new(),
                        left: vec![],
                    });
                    return Ok(());
                }
                Standing::CannotStart { error, permanent } => {
                    self.tell(Input::StartFailed { at: None, epoch: self.epoch, error, permanent });
                    return Ok(());
                }
            }
        }
        self.trim();
        if drain.survivors > 0 {
            let message = format!("failed to kill {} processes of {}", drain.survivors, self.id);
            self.daemon.fault(&self.id, "survivors", message);
        }
        self.sweep_ahead().await
    }

    /// Finds or starts the shim.
    async fn stand(&self) -> Result<Standing, LinkError> {
        let dispatch = self.dispatch()?;
        let standing =
            launch::stand(&self.daemon, &dispatch, self.epoch, self.resume.as_deref()).await?;
        Ok(standing)
    }

    /// Searches for processes that the ended agent left, while the restart policy pauses: after the
    /// pause its successor would wait for the search. The shim's own search was the one before.
    async fn sweep_ahead(&self) -> Result<(), LinkError> {
        if !matches!(self.dispatch()?.phase, Phase::Backoff { .. } | Phase::Queued) {
            return Ok(());
        }
        let dir = self.daemon.paths.agent(self.id.as_str());
        let probe = move || attach::probe_within(&dir, SHIM_EXIT);
        let probed = tokio::task::spawn_blocking(probe).await.map_err(ShimError::from)?;
        if let Liveness::Dead(lock) = probed.map_err(ShimError::Probe)?
            && sweep(&self.daemon, &self.id, None, &lock).await?.clean
        {
            self.slots.note_swept(self.epoch);
        }
        Ok(())
    }

    /// Connects to the living shim, and reports its adoption. Returns nothing if it does not answer
    /// yet: it may be about to bind, or about to die, and the lock decides.
    async fn connect(
        &mut self,
        adopted: Option<u32>,
        inbox: &mut mpsc::Receiver<Command>,
    ) -> Result<Option<ShimPort>, LinkError> {
        let dir = self.daemon.paths.agent(self.id.as_str());
        match Box::pin(ShimPort::connect(&dir, self.daemon.settings.generation)).await {
            Ok(port) => {
                if let (Some(shim_pid), false) = (adopted, std::mem::replace(&mut self.told, true))
                {
                    self.tell(Input::Adopted { shim_pid, epoch: self.epoch });
                }
                Ok(Some(port))
            }
            Err(error) => {
                tracing::debug!(id = %self.id, %error, "no connection to the shim yet");
                while let Ok(Command(frame)) = inbox.try_recv() {
                    self.unanswered.push_back(*frame);
                }
                self.look_after().await?;
                tokio::time::sleep(Duration::from_millis(5)).await;
                Ok(None)
            }
        }
    }

    /// Brings the rest of a dead shim's spool to life, terminates the processes that it left, and
    /// reports its end. Nobody can start another shim while `lock` is held.
    async fn bury(
        &mut self,
        lock: LockGuard,
        rebooted: bool,
        mut drain: Drain,
        mut spool: Spool,
    ) -> Result<(), LinkError> {
        self.read_all(&mut drain, &mut spool).await?;
        if drain.ended {
            self.trim();
            return Ok(());
        }
        let report = sweep(&self.daemon, &self.id, Some((self.epoch, rebooted)), &lock).await?;
        drop(lock);
        if report.clean {
            self.slots.note_swept(self.epoch);
            drain.note_left(report.left.iter().cloned());
        }
        if let (Some(step), true) = (drain.release(), report.clean) {
            self.deliver(vec![step]).await?;
            return Ok(());
        }
        let (spawned, epoch, awake_ms) = (drain.spawned, self.epoch, drain.awake_ms);
        let Swept { killed, clean, said, left } = report;
        self.tell(Input::ShimLost { epoch, spawned, killed, clean, awake_ms, said, left });
        Ok(())
    }

    /// Whether the shim owes an answer, or should have ended its agent by itself.
    fn owes(&self) -> bool {
        let over = self.over.is_some_and(|over| over <= Instant::now());
        over || self.is_ending() || !self.unanswered.is_empty()
    }

    /// Whether the agent is to be terminated.
    fn is_ending(&self) -> bool {
        self.daemon.snapshot().get(&self.id).is_some_and(|dispatch| dispatch.stop.is_some())
    }

    /// Checks a shim that owes an answer, when a check is due.
    async fn look_after(&mut self) -> Result<(), LinkError> {
        if !self.owes() {
            self.stuck.content();
        } else if self.stuck.due() <= Instant::now() {
            let ending = |frame: &ToShim| matches!(frame, ToShim::Terminate { .. });
            let silent = self.unanswered.iter().any(ending);
            Box::pin(self.stuck.look(&self.daemon, &self.id, silent)).await?;
        }
        Ok(())
    }

    /// Deletes the segments that the shim would have deleted after our last acknowledgement, had it
    /// lived.
    fn trim(&self) {
        let dir = self.daemon.paths.spool(self.id.as_str());
        if let Err(error) =
            muleteer_shim::spool::trim(&dir, self.daemon.settings.retention.output_bytes())
        {
            tracing::warn!(id = %self.id, %error, "failed to trim the spool");
        }
    }

    fn tell(&self, input: Input) {
        self.slots.life.cast(LifeMsg::Input(input));
    }

    /// Serves the living shim until its connection or its agent ends.
    async fn attached(
        &mut self,
        mut port: ShimPort,
        inbox: &mut mpsc::Receiver<Command>,
        drain: &mut Drain,
        spool: &mut Spool,
    ) -> Result<(), LinkError> {
        let _ = port.heartbeat_nowait(self.daemon.settings.lease_ms).await;
        for frame in self.unanswered.clone() {
            if port.send(&frame).await.is_err() {
                return Ok(());
            }
        }
        let mut look_at = Instant::now();
        loop {
            // It reads a batch, acknowledges it, then handles other events. So a flood of output
            // neither fills the disk nor blocks other events.
            if look_at <= Instant::now() {
                let Read { durable, more } = Box::pin(self.read_some(drain, spool)).await?;
                if let Some(at) = durable
                    && port.send(&ToShim::Ack { epoch: at.epoch, offset: at.offset }).await.is_err()
                {
                    return Ok(());
                }
                if drain.ended {
                    return Ok(());
                }
                if !more {
                    for idem in self.acknowledged.drain(..) {
                        self.slots.life.cast(LifeMsg::Written(self.epoch, idem));
                    }
                }
                look_at = Instant::now() + if more { Duration::ZERO } else { LOOK_AGAIN };
            }
            self.look_after().await?;
            let wake = if self.owes() {
                look_at.min(self.stuck.due())
            } else {
                look_at.min(self.over.unwrap_or(look_at))
            };
            tokio::select! {
                command = inbox.recv() => {
                    let Some(Command(frame)) = command else { return Ok(()) };
                    self.unanswered.push_back((*frame).clone());
                    if port.send(&frame).await.is_err() {
                        return Ok(());
                    }
                }
                frame = port.receive() => match frame {
                    Ok(FromShim::Nudge { .. } | FromShim::Exited { .. }) =>
                        look_at = Instant::now(),
                    Ok(frame) => {
                        self.hear(frame);
                        if !self.acknowledged.is_empty() {
                            look_at = Instant::now();
                        }
                    }
                    Err(error) => {
                        tracing::debug!(id = %self.id, %error, "the shim's connection ended");
                        return Ok(());
                    }
                },
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    fn hear(&mut self, frame: FromShim) {
        if let FromShim::Done { idem, outcome } = frame {
            let writes = |sent: &ToShim| {
                matches!(sent, ToShim::WriteStdin { .. }) && key_of(sent) == Some(idem)
            };
            if outcome == Outcome::Ok && self.unanswered.iter().any(writes) {
                self.acknowledged.push(control::hex(&idem));
            }
            self.unanswered.retain(|sent| key_of(sent) != Some(idem));
            if outcome != Outcome::Ok {
                // The effect shows in the spool (stdin closed, agent gone); life decides by that.
                tracing::info!(id = %self.id, ?outcome, "the shim failed to execute a command");
            }
        }
    }

    /// Brings the whole rest of the spool to life.
    async fn read_all(&mut self, drain: &mut Drain, spool: &mut Spool) -> Result<(), LinkError> {
        while self.read_some(drain, spool).await?.more {}
        Ok(())
    }

    /// Brings one batch of the spool to life.
    async fn read_some(&mut self, drain: &mut Drain, spool: &mut Spool) -> Result<Read, LinkError> {
        let (records, damage, more) = spool.read().await?;
        if let Some(message) = damage {
            self.daemon.fault(&self.id, format!("spool of {}", self.id), message);
        }
        if records.is_empty() {
            return Ok(Read { durable: None, more });
        }
        self.slots.output.notify_waiters();
        fault::point("link.batch_read");
        let mut steps = Vec::new();
        for record in &records {
            drain.feed(record, &mut steps);
        }
        drain.mark(&mut steps);
        let durable = Some(self.deliver(steps).await?);
        Ok(Read { durable, more })
    }

    async fn deliver(&self, steps: Vec<Step>) -> Result<Position, LinkError> {
        let life = self.slots.life.get().ok_or(LinkError::NoLife)?;
        match life.call(|reply| LifeMsg::Output(steps, reply), None).await {
            Ok(ractor::rpc::CallResult::Success(position)) => Ok(position),
            other => Err(LinkError::OutputRejected { answer: format!("{other:?}") }),
        }
    }
}

/// The result of reading the spool once.
struct Read {
    durable: Option<Position>,
    more: bool,
}

fn key_of(frame: &ToShim) -> Option<Idem> {
    match frame {
        ToShim::WriteStdin { idem, .. }
        | ToShim::Signal { idem, .. }
        | ToShim::Terminate { idem, .. } => Some(*idem),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::agent::link::COMMANDS;
    use crate::daemon::context::test_daemon;
    use crate::ports::shim_command::idem;
    use muleteer_model::config::Pool;
    use muleteer_protocol::shim::v1::MAX_BODY;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    /// Plays a shim on one connection: returns the frames it received until it closed, and answers
    /// them if `answers`.
    async fn hears(mut stream: UnixStream, frames: usize, answers: bool) -> Vec<ToShim> {
        let (mut bytes, mut heard) = (vec![], vec![]);
        while heard.len() < frames {
            assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "{heard:?}");
            while let Some(decoded) = ToShim::decode(&bytes, MAX_BODY).unwrap() {
                bytes.drain(..decoded.used);
                if let (true, Some(idem)) = (answers, key_of(&decoded.frame)) {
                    let mut answer = vec![];
                    FromShim::Done { idem, outcome: Outcome::Ok }.encode(1, &mut answer);
                    stream.write_all(&answer).await.unwrap();
                }
                heard.push(decoded.frame);
            }
        }
        heard
    }

    /// A shim closes a connection on which a frame takes too long. This happens, for example, if
    /// its daemon is stopped in the middle of a frame.
    #[tokio::test(flavor = "multi_thread")]
    async fn unanswered_command_is_resent_on_the_next_connection() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let id = test_daemon::id("abcd2345");
        let spool = daemon.paths.spool(id.as_str());
        std::fs::create_dir_all(&spool).unwrap();
        let mut session = Session::new(&daemon, &id, 1, None);
        let parser = muleteer_backends::by_name("subprocess").unwrap().parser();
        let mut drain = Drain::new(1, Position::default(), parser, false);
        let mut spool = Spool::new(Reader::open(&spool), Cursor { epoch: 1, offset: 0 });
        let (commands, mut inbox) = mpsc::channel(COMMANDS);
        commands.try_send(Command::write("prompt", b"do it".to_vec(), false)).unwrap();
        let mut heard = vec![];
        // Each connection renews the lease.
        for (frames, answers) in [(2, false), (2, true), (1, false)] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let port = ShimPort::of(ours.into_std().unwrap(), 1, vec![]).unwrap();
            let serving = session.attached(port, &mut inbox, &mut drain, &mut spool);
            let talking = async { tokio::join!(serving, hears(theirs, frames, answers)) };
            let (served, said) =
                tokio::time::timeout(Duration::from_secs(20), talking).await.unwrap();
            served.unwrap();
            heard.push(said.into_iter().filter_map(|frame| key_of(&frame)).collect::<Vec<_>>());
        }
        assert_eq!(heard, [vec![idem("prompt")], vec![idem("prompt")], vec![]]);
    }
}
