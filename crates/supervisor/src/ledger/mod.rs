//! The ledger: the only writer of `events.jsonl`. It answers an append once that is durable and
//! folded. Many callers share one fsync (group commit).
//!
//! A thread of the actor writes the file, because fsync blocks. The thread ends when the actor
//! drops its end of the channel. A restarted ledger opens the log again, which is recovery.

pub mod archive;
mod compress;
pub mod log;
mod metrics;
pub mod parts;
mod snapshots;

use crate::daemon::context::{Daemon, random_key};
use crate::daemon::owned_task::own;
use crate::ledger::log::Opened;
use crate::ports::ledger::{LedgerError, LedgerMsg};
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event, Record};
use muleteer_store::{AppendError, StoreError};
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// The limit of batches that wait for the writer. Further senders wait, so memory is bounded.
const QUEUE: usize = 256;
/// The limit of entries for one fsync.
const GROUP: usize = 1024;

pub struct Ledger;

pub struct State {
    to_writer: mpsc::Sender<Job>,
    _snapshots: AbortOnDropHandle<()>,
    _compress: AbortOnDropHandle<()>,
    _metrics: AbortOnDropHandle<()>,
}

struct Job {
    entries: Vec<Entry>,
    reply: Option<RpcReplyPort<Result<Vec<Record>, LedgerError>>>,
}

impl Actor for Ledger {
    type Msg = LedgerMsg;
    type State = State;
    type Arguments = Arc<Daemon>;

    async fn pre_start(
        &self,
        myself: ActorRef<LedgerMsg>,
        daemon: Arc<Daemon>,
    ) -> Result<State, ActorProcessingErr> {
        let (to_writer, jobs) = mpsc::channel(QUEUE);
        let (writer, ledger) = (Writer { daemon: daemon.clone() }, myself.clone());
        std::thread::Builder::new()
            .name("ledger".into())
            .spawn(move || writer.run(&ledger, jobs))?;
        daemon.ports.ledger.set(myself.clone());
        myself.cast(LedgerMsg::Drain)?;
        Ok(State {
            to_writer,
            _snapshots: own(snapshots::keep(daemon.clone())),
            _compress: own(compress::keep(daemon.clone())),
            _metrics: own(metrics::keep(daemon)),
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<LedgerMsg>,
        message: LedgerMsg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let job = match message {
            LedgerMsg::Append(entries, reply) => Job { entries, reply: Some(reply) },
            LedgerMsg::Drain => Job { entries: vec![], reply: None },
        };
        let _ = myself;
        state.to_writer.send(job).await.map_err(|_| "the writer thread has ended")?;
        Ok(())
    }
}

struct Writer {
    daemon: Arc<Daemon>,
}

impl Writer {
    fn run(self, ledger: &ActorRef<LedgerMsg>, jobs: mpsc::Receiver<Job>) {
        if let Err(error) = self.write(jobs) {
            tracing::error!(%error, "the ledger failed");
            ledger.stop(Some(error.to_string()));
        }
    }

    fn write(&self, mut jobs: mpsc::Receiver<Job>) -> Result<(), StoreError> {
        // A daemon's first writer uses the log that the daemon opened; its successors recover.
        let opened = self.daemon.opened.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut log = match opened {
            Some(opened) => opened,
            None => Opened::open(&self.daemon.paths.events(), 0, |_, _| ())?.0,
        };
        self.daemon.backlog().follow();
        self.publish(&log.fleet);
        while let Some(first) = jobs.blocking_recv() {
            let mut group = vec![first];
            let mut size = group[0].entries.len();
            while size < GROUP
                && let Ok(job) = jobs.try_recv()
            {
                size += job.entries.len();
                group.push(job);
            }
            let mut entries = self.daemon.restarts.waiting();
            entries.retain(|entry| log.ids.seq_of(&entry.id).is_none());
            let noted = entries.len();
            let mut shares = Vec::with_capacity(group.len());
            for job in &mut group {
                let mut fresh: Vec<_> = job
                    .entries
                    .drain(..)
                    .filter(|entry| log.ids.seq_of(&entry.id).is_none())
                    .collect();
                let last = fresh.len().saturating_sub(1);
                for (at, entry) in fresh.iter_mut().enumerate() {
                    entry.more = at < last;
                }
                shares.push(fresh.len());
                entries.extend(fresh);
            }
            let outcome = if entries.is_empty() {
                Ok(vec![])
            } else {
                log.append(&entries, &self.daemon.parts)
            };
            if let Some(error) = log.take_trouble() {
                compress::note(&self.daemon, &error);
            }
            match outcome {
                Ok(records) => {
                    self.daemon.restarts.written(&entries[..noted]);
                    if !records.is_empty() {
                        self.daemon.backlog().keep(&log.fleet, &records);
                        self.publish(&log.fleet);
                    }
                    let mut records = records.into_iter().skip(noted);
                    for (job, share) in group.into_iter().zip(shares) {
                        let share = records.by_ref().take(share).collect();
                        // The caller may be gone; the events are durable nevertheless.
                        let _ = job.reply.map(|reply| reply.send(Ok(share)));
                    }
                }
                Err(AppendError::Poisoned { .. }) => {
                    // After a failed fsync nobody knows what is on the disk; the next start finds
                    // out.
                    tracing::error!(
                        "fsync failed: stopping the daemon, so that the next start recovers"
                    );
                    std::process::exit(1);
                }
                // An entry that cannot be written must not reject the batches of other callers: its
                // caller gets the error, the others append again under the same ids.
                Err(AppendError::Refused { id, why, .. }) => {
                    tracing::error!(%id, %why, "failed to write an event");
                    if let Some(own) = entries[..noted].iter().find(|entry| entry.id == id) {
                        // Nobody waits for a supervisor's event. If it stayed, it would be rejected
                        // with every later group.
                        self.daemon.restarts.written(std::slice::from_ref(own));
                    }
                    let error = LedgerError::Refused { id: id.clone(), why };
                    let guilty = |entries: &[Entry]| entries.iter().any(|entry| entry.id == id);
                    let mut rest = entries.into_iter().skip(noted);
                    for (job, share) in group.into_iter().zip(shares) {
                        let share: Vec<_> = rest.by_ref().take(share).collect();
                        let error = if guilty(&share) { error.clone() } else { LedgerError::Again };
                        let _ = job.reply.map(|reply| reply.send(Err(error)));
                    }
                }
                Err(AppendError::Full { .. }) => {
                    tracing::error!(noted, "the disk is full");
                    refuse(group, &LedgerError::Full);
                }
            }
        }
        Ok(())
    }

    fn publish(&self, fleet: &Fleet) {
        self.daemon.fleet.send_replace(Arc::new(fleet.clone()));
    }
}

fn refuse(group: Vec<Job>, error: &LedgerError) {
    for reply in group.into_iter().filter_map(|job| job.reply) {
        let _ = reply.send(Err(error.clone()));
    }
}

/// Returns when all earlier append requests are in the fleet or will never be. This includes
/// requests whose caller no longer waits.
///
/// # Errors
/// When the ledger cannot write.
pub async fn settled(daemon: &Daemon) -> Result<(), LedgerError> {
    // An empty batch is queued behind the earlier ones.
    ask(daemon, &[]).await.map(|_| ())
}

/// Appends, and returns once the entries are durable and folded, across restarts of the ledger. The
/// entries keep their ids, so an entry that was written before a lost reply is not written again.
///
/// Waits while the disk is full. Cancel-safe: if it is dropped, the append may or may not have
/// happened.
pub async fn append(daemon: &Daemon, entries: Vec<Entry>) -> Result<Vec<Record>, LedgerError> {
    loop {
        match append_once(daemon, &entries).await {
            Err(LedgerError::Full) if !daemon.lifecycle.stop.is_cancelled() => {
                tokio::time::sleep(Duration::from_secs(1)).await
            }
            outcome => return outcome,
        }
    }
}

/// Does the same as [`append`], for a caller that reports a full disk instead of waiting.
pub async fn try_append(daemon: &Daemon, entries: Vec<Entry>) -> Result<Vec<Record>, LedgerError> {
    append_once(daemon, &entries).await
}

async fn append_once(daemon: &Daemon, entries: &[Entry]) -> Result<Vec<Record>, LedgerError> {
    if entries.is_empty() { Ok(vec![]) } else { ask(daemon, entries).await }
}

async fn ask(daemon: &Daemon, entries: &[Entry]) -> Result<Vec<Record>, LedgerError> {
    loop {
        if let Some(ledger) = daemon.ports.ledger.get() {
            let entries = entries.to_vec();
            match ledger.call(|reply| LedgerMsg::Append(entries, reply), None).await {
                Ok(ractor::rpc::CallResult::Success(Err(LedgerError::Again))) => {}
                Ok(ractor::rpc::CallResult::Success(outcome)) => return outcome,
                _ => {}
            }
        }
        if daemon.lifecycle.stop.is_cancelled() {
            return Err(LedgerError::Ending);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Makes an entry about a dispatch, with a new id.
pub fn entry(id: &DispatchId, at: Option<muleteer_model::event::Position>, event: Event) -> Entry {
    Entry { id: random_key(), dispatch_id: Some(id.clone()), at, more: false, event }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use muleteer_model::config::Pool;

    fn fault(what: &str, length: usize) -> Entry {
        let event = Event::Fault { what: what.into(), message: "x".repeat(length) };
        Entry { id: what.into(), dispatch_id: None, at: None, more: false, event }
    }

    /// Returns the outcomes of entries that are written in one group.
    async fn written(daemon: &Arc<Daemon>, group: &[Entry]) -> Vec<Result<usize, LedgerError>> {
        let (to_writer, jobs) = mpsc::channel(group.len());
        let answers: Vec<_> = group
            .iter()
            .map(|entry| {
                let (reply, answer) = tokio::sync::oneshot::channel();
                let job = Job { entries: vec![entry.clone()], reply: Some(reply.into()) };
                assert!(to_writer.try_send(job).is_ok());
                answer
            })
            .collect();
        drop(to_writer);
        let writer = Writer { daemon: daemon.clone() };
        tokio::task::spawn_blocking(move || writer.write(jobs))
            .await
            .expect("it ends")
            .expect("it can write");
        let mut outcomes = vec![];
        for answer in answers {
            outcomes.push(answer.await.expect("an answer").map(|records| records.len()));
        }
        outcomes
    }

    #[tokio::test]
    async fn an_entry_that_cannot_be_written_is_its_owners_trouble_alone() {
        const TOO_LONG: usize = 5 << 20;
        let dir = tempfile::tempdir().expect("a directory");
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        std::fs::create_dir_all(&daemon.paths.state_dir).expect("a directory");
        let group = [fault("a", 1), fault("b", TOO_LONG), fault("c", 1)];
        let told = written(&daemon, &group).await;
        assert!(
            matches!(&told[1], Err(LedgerError::Refused { id, .. }) if id == "b"),
            "{:?}",
            told[1]
        );
        assert_eq!((&told[0], &told[2]), (&Err(LedgerError::Again), &Err(LedgerError::Again)));
        let others = [fault("a", 1), fault("c", 1)];
        assert_eq!(
            written(&daemon, &others).await,
            [Ok(1), Ok(1)],
            "nothing of them was written before"
        );

        // A supervisor's event: the other callers are asked once to append again, and then it is
        // gone.
        daemon.note(fault("d", TOO_LONG).event);
        assert_eq!(written(&daemon, &[fault("e", 1)]).await, [Err(LedgerError::Again)]);
        assert_eq!(written(&daemon, &[fault("e", 1)]).await, [Ok(1)]);
    }
}
