//! The state machine of a worker. `model::task_list::session::worker` decides, and the ledger has
//! its events and its state. Its difference from other machines: the list is a file that others
//! change, so each step reads it, and a step is one task that blocks.

use crate::daemon::context::random_key;
use crate::driver::{Carried, Due, Machine, Panicked};
use crate::ledger::append;
use crate::task_list::run::Driven;
use crate::task_list::steps::{Place, StepError};
use crate::task_list::worker::attempt::go_on;
use crate::task_list::worker::conclude::conclude;
use crate::task_list::worker::outcome::{End, Ended, Outcome, TaskToBegin};
use crate::task_list::worker::take::take;
use jiff::Timestamp;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event};
use muleteer_model::task_list::session::Work;
use muleteer_model::task_list::session::worker::{self, Effect, EffectKey, Input};
use muleteer_process::fault;
use tokio::sync::OwnedMutexGuard;

pub(super) struct WorkerMachine {
    driven: Driven,
    worker: u32,
    place: Place,
    /// Work that had passed was in a clone that is gone. It applies to the first task alone.
    lost: bool,
    /// The number of steps that have ended.
    steps: u64,
    /// The work that this incarnation has judged.
    judged: Option<DispatchId>,
    /// Held until the task that was taken has begun.
    taking: Option<OwnedMutexGuard<()>>,
    end: Option<Ended>,
}

pub(super) enum Failure {
    Step(StepError),
    Task(Panicked),
}

impl From<Panicked> for Failure {
    fn from(panic: Panicked) -> Self {
        Self::Task(panic)
    }
}

impl From<StepError> for Failure {
    fn from(error: StepError) -> Self {
        Self::Step(error)
    }
}

impl WorkerMachine {
    pub fn new(driven: Driven, worker: u32, place: Place, lost: bool) -> Self {
        Self { driven, worker, place, lost, steps: 0, judged: None, taking: None, end: None }
    }

    /// Returns how the worker has ended.
    pub fn end(self) -> Result<End, Failure> {
        self.end.unwrap_or(Ok(End::Nothing)).map_err(Failure::Step)
    }

    /// Returns the work in hand, with the loss of its clone. That is applied once.
    fn with_loss(&mut self, work: Work) -> Work {
        let passed = work.verdict.as_ref().is_some_and(|verdict| verdict.passed);
        let lost = std::mem::take(&mut self.lost) && passed;
        Work { doubted: work.doubted || lost, ..work }
    }
}

impl Machine for WorkerMachine {
    type Input = Outcome;
    type Event = Entry;
    type Record = Entry;
    type Effect = Effect;
    type Key = EffectKey;
    type Report = Outcome;
    type Error = Failure;

    fn decide(&mut self, outcome: Outcome) -> Vec<Entry> {
        self.steps += 1;
        let run = self.driven.run();
        let work = run.as_ref().and_then(|run| run.workers.get(&self.worker));
        let dispatch = work.map(|work| work.dispatch.clone());
        let mut id = random_key();
        let input = match outcome {
            Outcome::Taken(taken) => {
                let TaskToBegin { task, dispatch, base, resumed, taking } = *taken;
                self.taking = Some(taking);
                Input::Begin { task, dispatch, base, resumed }
            }
            Outcome::LookAgain => return vec![],
            Outcome::Ended(end) => {
                self.end = Some(end);
                return vec![];
            }
            Outcome::Judged(verdict) => {
                self.judged = dispatch;
                Input::Judge(verdict)
            }
            Outcome::Closed { status, message, counted, end } => {
                self.end = end;
                let dispatch = dispatch.map(|dispatch| dispatch.to_string()).unwrap_or_default();
                id = format!("{}/{dispatch}/ended", self.driven.list);
                Input::Close { status, message, counted }
            }
        };
        let event = run.and_then(|run| worker::decide(&run, self.worker, input));
        if event.is_none() {
            self.taking = None;
        }
        let entry = |event| Entry { id, dispatch_id: None, at: None, more: false, event };
        event.map(entry).into_iter().collect()
    }

    fn advance(&mut self, _: Timestamp) -> Vec<Entry> {
        vec![]
    }

    async fn append(&mut self, entries: Vec<Entry>) -> Result<Vec<Entry>, Failure> {
        let appended = append(&self.driven.daemon, entries.clone()).await;
        appended.map_err(|error| StepError::Other(error.to_string()))?;
        if entries.iter().any(|entry| matches!(entry.event, Event::TaskBegun { .. })) {
            fault::point("tasks.intent_durable");
        }
        Ok(entries)
    }

    /// The ledger has folded the entries.
    fn fold(&mut self, entries: Vec<Entry>) -> Result<(), Failure> {
        self.taking = None;
        if entries.iter().any(|entry| matches!(entry.event, Event::TaskEnded { .. })) {
            self.driven.shared.changed.notify_waiters();
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.end.is_some()
    }

    fn due(&self) -> Due<Effect> {
        let run = self.driven.run();
        let effect = worker::effect(run.as_deref(), self.worker, self.judged.as_ref());
        Due { effects: vec![effect], wake_at: None }
    }

    fn key(&self, effect: &Effect) -> EffectKey {
        effect.key(self.steps)
    }

    async fn carry_out(
        &mut self,
        _: &EffectKey,
        effect: Effect,
    ) -> Result<Carried<Outcome>, Failure> {
        let effect = match effect {
            Effect::GoOn(work) => Effect::GoOn(self.with_loss(work)),
            effect @ (Effect::Take | Effect::Conclude(..)) => effect,
        };
        let (driven, worker, place) = (self.driven.clone(), self.worker, self.place.clone());
        Ok(Carried::Task(Box::pin(async move {
            let outcome = match effect {
                Effect::Take => take(&driven, worker, &place).await,
                Effect::GoOn(work) => go_on(&driven, worker, &place, &work).await,
                Effect::Conclude(work, verdict) => {
                    conclude(&driven, worker, &place, &work, verdict).await
                }
            };
            Some(outcome.unwrap_or_else(|error| Outcome::Ended(Err(error))))
        })))
    }
}
