//! The one interpreter of the state machines that outlive a daemon: the life of a dispatch, a spec
//! run, and a worker of a task list.
//!
//! ```text
//!   input ──▶ decide ──▶ append ──▶ fold ──▶ advance ──▶ publish ──▶ due
//!     ▲                    ▲       (durable)    │                     │
//!     │                    └────── events ──────┘                     ▼
//!     ├──────── report ◀──────── one owned task a key ◀────────── carry_out
//!     └──────── woken ◀───────── one timer
//! ```
//!
//! The machine decides, by pure functions of `model`, and knows its log. The driver owns the order:
//!
//! - An effect starts only when the events that it follows from are durable and folded. A failed
//!   append carries out nothing.
//! - Effects follow from the folded state alone. Each is carried out once for its key, until the
//!   owner forgets the key.
//! - A key has at most one running task. The driver owns it: it ends with the driver, or when the
//!   same key is carried out again.
//! - One timer serves all wake-ups. It is set to the earliest, and one in the past fires at once.
//!
//! Reports of tasks and the timer return to the mailbox of the owner: an actor's, or a bounded
//! [`queue`] for [`Driver::run`]. So inputs that arrive during an append keep their order.

#[cfg(test)]
mod tests;

use crate::daemon::owned_task::{own, survive};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use ractor::{ActorRef, Message};
use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::task::AbortOnDropHandle;

/// The limit of reports that wait in a [`queue`]. Further senders wait, so memory is bounded.
pub const QUEUE: usize = 64;

/// A state machine whose events are durable.
pub trait Machine: Send + Sized {
    type Input: Send;
    type Event: Send;
    /// An event as the log has it.
    type Record: Send;
    type Effect: Send;
    /// The idempotency key of an effect.
    type Key: Clone + Debug + Eq + Hash + Send + 'static;
    /// The result of an effect's task, for the owner.
    type Report: Send + 'static;
    type Error: From<Panicked> + Send;

    /// Decides the events that follow from an input, by a pure function of the folded state. Only
    /// buffers may change, of input that is not accounted for yet.
    fn decide(&mut self, input: Self::Input) -> Vec<Self::Event>;

    /// Decides the events that follow from the folded state alone; none if it is settled.
    fn advance(&mut self, now: Timestamp) -> Vec<Self::Event>;

    /// Returns once the events are durable. They are never empty.
    ///
    /// # Errors
    /// Nobody knows whether the events are durable. The machine must be folded from its log again.
    fn append(
        &mut self,
        events: Vec<Self::Event>,
    ) -> impl Future<Output = Result<Vec<Self::Record>, Self::Error>> + Send;

    /// Applies durable events to the state.
    ///
    /// # Errors
    /// The log and the state do not fit.
    fn fold(&mut self, records: Vec<Self::Record>) -> Result<(), Self::Error>;

    /// Shows the settled state to readers, before its effects begin.
    ///
    /// # Errors
    /// The state cannot be shown, and none of its effects begins.
    fn publish(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        std::future::ready(Ok(()))
    }

    /// Whether nothing more is to be carried out.
    fn is_over(&self) -> bool;

    /// Returns the effects and the wake-up that the folded state asks for.
    fn due(&self) -> Due<Self::Effect>;

    fn key(&self, effect: &Self::Effect) -> Self::Key;

    /// Carries out an effect: a short one at once, and one that waits as a task. It may be cut off
    /// at any point and repeated, as by a kill.
    ///
    /// # Errors
    /// A short effect failed. A task reports its failure instead.
    fn carry_out(
        &mut self,
        key: &Self::Key,
        effect: Self::Effect,
    ) -> impl Future<Output = Result<Carried<Self::Report>, Self::Error>> + Send;
}

/// The effects of a state, in the order in which they begin.
#[derive(Debug)]
pub struct Due<E> {
    pub effects: Vec<E>,
    pub wake_at: Option<Timestamp>,
}

/// The progress of an effect when [`Machine::carry_out`] returns.
pub enum Carried<R> {
    Done,
    /// The driver runs it. It may be aborted at any await.
    Task(BoxFuture<'static, Option<R>>),
}

/// Returns to the mailbox of a driver's owner.
#[derive(Debug)]
pub enum Report<R, K> {
    /// The result of a task; also an input from outside, in a [`queue`].
    Done(R),
    /// The timer has fired. The owner calls [`Driver::woken`].
    Woken,
    /// The task of this key has panicked.
    Panicked(K, Panicked),
}

/// The message of a panic.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Panicked(pub String);

/// The address to which tasks and the timer report.
pub trait Mailbox<R>: Clone + Send + Sync + 'static {
    /// Returns once the report is in the mailbox, or its owner is gone. If the future is dropped,
    /// the report may be lost.
    fn put(&self, report: R) -> impl Future<Output = ()> + Send;
}

impl<R: Send, M: Message + From<R>> Mailbox<R> for ActorRef<M> {
    async fn put(&self, report: R) {
        let _ = self.cast(report.into());
    }
}

impl<R: Send + 'static> Mailbox<R> for mpsc::Sender<R> {
    async fn put(&self, report: R) {
        let _ = self.send(report).await;
    }
}

/// The report that the driver of a machine puts into its mailbox.
pub type ReportOf<M> = Report<<M as Machine>::Report, <M as Machine>::Key>;

/// Makes the mailbox of an owner that is no actor, for [`Driver::run`].
pub fn queue<M: Machine>() -> (mpsc::Sender<ReportOf<M>>, mpsc::Receiver<ReportOf<M>>) {
    mpsc::channel(QUEUE)
}

/// Drives one machine. Dropping it aborts its tasks and its timer.
pub struct Driver<M: Machine, B> {
    machine: M,
    mailbox: B,
    /// The keys of effects that have begun.
    carried: HashSet<M::Key>,
    running: HashMap<M::Key, AbortHandle>,
    tasks: JoinSet<()>,
    timer: Option<Timer>,
}

struct Timer {
    at: Timestamp,
    _task: AbortOnDropHandle<()>,
}

impl<M: Machine, B: Mailbox<ReportOf<M>>> Driver<M, B> {
    pub fn new(machine: M, mailbox: B) -> Self {
        Self {
            machine,
            mailbox,
            carried: HashSet::new(),
            running: HashMap::new(),
            tasks: JoinSet::new(),
            timer: None,
        }
    }

    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// Returns the machine, to change what is not folded from events.
    pub fn machine_mut(&mut self) -> &mut M {
        &mut self.machine
    }

    /// Decides about an input, and returns whether it had an effect. Then the events and all that
    /// follows from them are durable and published. [`Self::carry_out`] is the next step.
    ///
    /// Not cancel-safe: if the future is dropped, events may be durable that are not folded. The
    /// driver must then be dropped too, and the machine be folded from its log again.
    ///
    /// # Errors
    /// An append failed, or the state could not be folded or published. Nothing was carried out.
    pub async fn feed(&mut self, input: M::Input) -> Result<bool, M::Error> {
        let events = self.machine.decide(input);
        let taken = !events.is_empty();
        self.commit(events).await?;
        self.settle().await?;
        Ok(taken)
    }

    /// Makes durable what follows from the state alone, until nothing does, and publishes it. The
    /// owner calls it when the machine has been folded, or changed from outside.
    ///
    /// Not cancel-safe, as [`Self::feed`].
    ///
    /// # Errors
    /// As [`Self::feed`].
    pub async fn settle(&mut self) -> Result<(), M::Error> {
        loop {
            let events = self.machine.advance(Timestamp::now());
            if events.is_empty() {
                return self.machine.publish().await;
            }
            self.commit(events).await?;
        }
    }

    async fn commit(&mut self, events: Vec<M::Event>) -> Result<(), M::Error> {
        if events.is_empty() {
            return Ok(());
        }
        let records = self.machine.append(events).await?;
        self.machine.fold(records)
    }

    /// Begins the effects of the folded state that have not begun yet, and sets the timer. Does
    /// neither when the machine is over.
    ///
    /// Not cancel-safe: if the future is dropped, a short effect may be half done and counts as
    /// carried out. Tasks that have begun go on until the driver is dropped.
    ///
    /// # Errors
    /// A short effect failed. The effects before it have begun, those after it have not.
    pub async fn carry_out(&mut self) -> Result<(), M::Error> {
        while self.tasks.try_join_next().is_some() {}
        self.running.retain(|_, task| !task.is_finished());
        if self.machine.is_over() {
            self.timer = None;
            return Ok(());
        }
        let due = self.machine.due();
        self.set_timer(due.wake_at);
        for effect in due.effects {
            let key = self.machine.key(&effect);
            if !self.carried.insert(key.clone()) {
                continue;
            }
            match self.machine.carry_out(&key, effect).await? {
                Carried::Done => {}
                Carried::Task(task) => self.start(key, task),
            }
        }
        Ok(())
    }

    fn start(&mut self, key: M::Key, task: BoxFuture<'static, Option<M::Report>>) {
        let (mailbox, own_key) = (self.mailbox.clone(), key.clone());
        let running = self.tasks.spawn(async move {
            let report = match survive(task).await {
                Ok(None) => return,
                Ok(Some(done)) => Report::Done(done),
                Err(message) => Report::Panicked(own_key, Panicked(message)),
            };
            mailbox.put(report).await;
        });
        if let Some(older) = self.running.insert(key, running) {
            older.abort();
        }
    }

    fn set_timer(&mut self, wake_at: Option<Timestamp>) {
        if self.timer.as_ref().map(|timer| timer.at) == wake_at {
            return;
        }
        self.timer = wake_at.map(|at| {
            let wait = at.duration_since(Timestamp::now()).try_into().unwrap_or(Duration::ZERO);
            let mailbox = self.mailbox.clone();
            let task = own(async move {
                tokio::time::sleep(wait).await;
                mailbox.put(Report::Woken).await;
            });
            Timer { at, _task: task }
        });
    }

    /// Records that the timer has fired. [`Self::carry_out`] sets it again if the state still asks
    /// for it: the timer may be early, or the clock may have been set back.
    pub fn woken(&mut self) {
        self.timer = None;
    }

    /// Lets the effect of this key be carried out again. A task of it that still runs is aborted
    /// then, not now.
    pub fn forget(&mut self, key: &M::Key) {
        self.carried.remove(key);
    }

    /// Does the same as [`Self::forget`] for all keys, for effects that may have been lost.
    pub fn forget_all(&mut self) {
        self.carried.clear();
    }
}

impl<M: Machine<Report = <M as Machine>::Input>> Driver<M, mpsc::Sender<ReportOf<M>>>
where
    M::Input: 'static,
{
    /// Drives the machine until it is over, and returns it. Reads the inputs in the order in which
    /// they came.
    ///
    /// Not cancel-safe: dropping the future drops the driver, and its tasks with it.
    ///
    /// # Errors
    /// As [`Self::feed`] and [`Self::carry_out`], or a task has panicked.
    pub async fn run(mut self, mut inbox: mpsc::Receiver<ReportOf<M>>) -> Result<M, M::Error> {
        self.settle().await?;
        self.carry_out().await?;
        while !self.machine.is_over() {
            // The driver holds a sender, so the queue does not close.
            let Some(report) = inbox.recv().await else { break };
            match report {
                Report::Done(input) => drop(self.feed(input).await?),
                Report::Woken => {
                    self.woken();
                    self.settle().await?;
                }
                Report::Panicked(_, panic) => return Err(panic.into()),
            }
            self.carry_out().await?;
        }
        Ok(self.machine)
    }
}
