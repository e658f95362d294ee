//! The state machine of a run: `model::spec_run` decides, and the run's log has its events. Its
//! differences from other machines: a suspect run waits for its trial, and the work of a run that
//! ends early is brought home before its end is recorded.

use crate::daemon::context::Daemon;
use crate::driver::{Carried, Due, Machine, Report};
use crate::ports::spec_run::RunMsg;
use crate::ports::tree::BranchMsg;
use crate::question::run_end;
use crate::spec_run::begin::{self, recovery, secrets};
use crate::spec_run::host::Hosted;
use crate::spec_run::trouble::Trouble;
use crate::spec_run::{criteria, job, publish, repairs, snapshots, steps};
use jiff::Timestamp;
use muleteer_model::event::{Event, Record};
use muleteer_model::spec_run::event::KeptWork;
use muleteer_model::spec_run::{self, Effect, EffectKey, Input, Run, gate};
use muleteer_process::fault;
use muleteer_protocol::ErrorCode;
use muleteer_vcs::spec_run::hub;
use ractor::{ActorProcessingErr, ActorRef};
use std::sync::Arc;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinSet;

/// After this many heartbeats the daemon has outlived resuming the run.
const OUTLIVED: u32 = 12;

pub(super) struct RunMachine {
    daemon: Arc<Daemon>,
    pub hosted: Arc<Hosted>,
    /// Shared with readers; a change makes a copy.
    pub run: Option<Arc<Run>>,
    /// Clean-ups, repairs and the wait for a trial: nothing that the state waits for.
    asides: JoinSet<()>,
    /// The number of heartbeats until the daemon has outlived resuming the run; 0 afterwards.
    unproven: u32,
    /// The newest state is not published yet.
    unseen: bool,
    pub trial: Trial,
    pub keeping: Keeping,
    pub asking: Asking,
}

/// Whether the question of the gate at which the run is about to rest is durable, which happens
/// before the rest is recorded.
pub(super) enum Asking {
    Not,
    /// Begun as of the event `seq`.
    UnderWay {
        seq: u64,
    },
    /// Asked, as of the event `seq`.
    Done {
        seq: u64,
        question: Option<String>,
    },
}

/// Whether the work of a run that ends early is in the repository, which happens before its end is
/// recorded. A task does it, so that the actor keeps answering its mailbox.
pub(super) enum Keeping {
    /// There is nothing to bring home, or not yet.
    Not,
    /// Begun as of the event `seq`.
    UnderWay { seq: u64 },
    /// Done, as of the event `seq`.
    Done { seq: u64, event: Option<Box<Event>> },
}

/// Whether the run may resume after daemons crashed: see [`crate::spec_run::begin::recovery`].
pub(super) enum Trial {
    /// The run is no suspect, or was outlived.
    Over,
    /// Another suspect resumes. No effect of this run is carried out meanwhile.
    Waiting,
    Held {
        /// Lets the next suspect resume when it is dropped.
        _turn: OwnedMutexGuard<()>,
    },
    /// It was stopped while it waited, and ends beside the run on trial.
    Stopped,
}

#[derive(Debug)]
pub(super) enum RunEffect {
    Step(EffectKey, Box<Effect>),
    /// Bring the work home, as of the event `seq`.
    KeepEarly {
        seq: u64,
    },
    /// Ask the question of the gate at which the run is about to rest, as of the event `seq`.
    Ask {
        seq: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RunKey {
    Step(EffectKey),
    KeepEarly { seq: u64 },
    Ask { seq: u64 },
}

impl From<Report<RunMsg, RunKey>> for RunMsg {
    fn from(report: Report<RunMsg, RunKey>) -> Self {
        match report {
            Report::Done(message) => message,
            Report::Woken => Self::Wake,
            Report::Panicked(RunKey::Step(key), panic) => {
                Self::Failed { key, code: ErrorCode::Internal.into(), message: panic.to_string() }
            }
            Report::Panicked(RunKey::KeepEarly { seq }, panic) => {
                let kept = KeptWork { trouble: Some(panic.to_string()), ..KeptWork::default() };
                Self::Kept { seq, event: Some(Box::new(Event::RunWorkKept(kept))) }
            }
            Report::Panicked(RunKey::Ask { seq }, panic) => {
                tracing::error!(%panic, "failed to ask the question of a run");
                Self::Asked { seq, question: None }
            }
        }
    }
}

impl Machine for RunMachine {
    type Input = Input;
    type Event = Event;
    type Record = Record;
    type Effect = RunEffect;
    type Key = RunKey;
    type Report = RunMsg;
    type Error = ActorProcessingErr;

    fn decide(&mut self, input: Input) -> Vec<Event> {
        let Some(run) = &self.run else { return vec![] };
        spec_run::decide(run, input, Timestamp::now())
    }

    fn advance(&mut self, now: Timestamp) -> Vec<Event> {
        let Some(run) = &self.run else { return vec![] };
        let mut events = spec_run::advance(run, now);
        if gate::rests(&events) {
            return self.asked(events);
        }
        if !ends_early(run, &events) {
            return events;
        }
        if matches!(self.trial, Trial::Waiting) {
            return vec![];
        }
        // This comes first, so that a client that sees the end also sees where the work is.
        let seq = run.seq;
        match std::mem::replace(&mut self.keeping, Keeping::Not) {
            Keeping::Done { seq: kept, event } if kept == seq => {
                events.splice(0..0, event.map(|event| *event));
                events
            }
            // The run has progressed since, so its newer work must be brought home.
            Keeping::Not | Keeping::Done { .. } => {
                self.keeping = Keeping::UnderWay { seq };
                vec![]
            }
            under_way @ Keeping::UnderWay { .. } => {
                self.keeping = under_way;
                vec![]
            }
        }
    }

    async fn append(&mut self, events: Vec<Event>) -> Result<Vec<Record>, ActorProcessingErr> {
        fault::point("run.before_commit");
        let hosted = self.hosted.clone();
        let records = tokio::task::spawn_blocking(move || hosted.append(events)).await??;
        self.outlived();
        fault::point("run.committed");
        Ok(records)
    }

    fn fold(&mut self, records: Vec<Record>) -> Result<(), ActorProcessingErr> {
        let Some(run) = self.run.as_mut().map(Arc::make_mut) else { return Ok(()) };
        for record in &records {
            run.apply(record);
            steps::tidy(&self.daemon, &self.hosted, run, &record.entry.event, &mut self.asides);
        }
        self.unseen = true;
        Ok(())
    }

    /// Writes the snapshots, once for all events that followed from one input, and then publishes
    /// the new state.
    async fn publish(&mut self) -> Result<(), ActorProcessingErr> {
        let Some(run) = self.run.clone().filter(|_| std::mem::take(&mut self.unseen)) else {
            return Ok(());
        };
        let (daemon, hosted) = (self.daemon.clone(), self.hosted.clone());
        tokio::task::spawn_blocking(move || snapshots::write(&daemon, &hosted, &run)).await?;
        fault::point("run.checkpointed");
        self.announce();
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.run.as_ref().is_none_or(|run| !run.is_live())
    }

    fn due(&self) -> Due<RunEffect> {
        let mut due = Due { effects: vec![], wake_at: None };
        let Some(run) = self.run.as_ref().filter(|_| !matches!(self.trial, Trial::Waiting)) else {
            return due;
        };
        for effect in spec_run::effects(run) {
            match effect {
                Effect::WakeAt(at) => {
                    due.wake_at = Some(due.wake_at.map_or(at, |before| before.min(at)));
                }
                effect => due.effects.push(RunEffect::Step(effect.key(run), Box::new(effect))),
            }
        }
        if let Keeping::UnderWay { seq } = self.keeping {
            due.effects.push(RunEffect::KeepEarly { seq });
        }
        // A run that is stopped before its question is asked rests without one.
        if let Asking::UnderWay { seq } = self.asking
            && run.seq == seq
            && gate::rests(&spec_run::advance(run, Timestamp::now()))
        {
            due.effects.push(RunEffect::Ask { seq });
        }
        due
    }

    fn key(&self, effect: &RunEffect) -> RunKey {
        match effect {
            RunEffect::Step(key, _) => RunKey::Step(key.clone()),
            RunEffect::KeepEarly { seq } => RunKey::KeepEarly { seq: *seq },
            RunEffect::Ask { seq } => RunKey::Ask { seq: *seq },
        }
    }

    async fn carry_out(
        &mut self,
        _: &RunKey,
        effect: RunEffect,
    ) -> Result<Carried<RunMsg>, ActorProcessingErr> {
        let Some(run) = self.run.clone() else { return Ok(Carried::Done) };
        let (daemon, hosted) = (self.daemon.clone(), self.hosted.clone());
        Ok(Carried::Task(match effect {
            RunEffect::Step(key, effect) => Box::pin(async move {
                match carry(&daemon, &hosted, &run, *effect).await {
                    Ok(input) => input.map(|input| RunMsg::Input(Box::new(input))),
                    Err(Trouble { code, message, .. }) => {
                        Some(RunMsg::Failed { key, code, message })
                    }
                }
            }),
            RunEffect::KeepEarly { seq } => Box::pin(async move {
                let event = publish::keep_early(&daemon, &hosted, &run).await.map(Box::new);
                Some(RunMsg::Kept { seq, event })
            }),
            RunEffect::Ask { seq } => Box::pin(async move {
                let question = begin::gate::ask(&daemon, &hosted, &run).await;
                Some(RunMsg::Asked { seq, question })
            }),
        }))
    }
}

impl RunMachine {
    pub fn new(daemon: Arc<Daemon>, hosted: Arc<Hosted>) -> Self {
        Self {
            daemon,
            hosted,
            run: None,
            asides: JoinSet::new(),
            unproven: OUTLIVED,
            unseen: false,
            trial: Trial::Over,
            keeping: Keeping::Not,
            asking: Asking::Not,
        }
    }

    /// Returns the events by which the run rests at a gate, once its question is durable: a client
    /// that sees the run rest also sees the question.
    fn asked(&mut self, mut events: Vec<Event>) -> Vec<Event> {
        let Some(seq) = self.run.as_ref().map(|run| run.seq) else { return vec![] };
        if matches!(self.trial, Trial::Waiting) {
            return vec![];
        }
        match std::mem::replace(&mut self.asking, Asking::Not) {
            Asking::Done { seq: asked, question: id } if asked == seq => {
                for event in &mut events {
                    if let Event::RunRested { question, .. } = event {
                        question.clone_from(&id);
                    }
                }
                let fleet = self.daemon.snapshot();
                let asked = id.as_ref().and_then(|id| fleet.questions.get(id));
                let asked = asked.map(|asked| Event::QuestionAsked(Box::new(asked.as_asked())));
                events.splice(0..0, asked);
                events
            }
            Asking::Not | Asking::Done { .. } | Asking::UnderWay { .. } => {
                self.asking = Asking::UnderWay { seq };
                vec![]
            }
        }
    }

    /// Takes the question that was asked as of the event `seq`. Withdraws it if the run went on
    /// meanwhile, because no answer to it would reach the run.
    pub fn take_question(&mut self, seq: u64, question: Option<String>) {
        if self.run.as_ref().is_some_and(|run| run.seq == seq) {
            self.asking = Asking::Done { seq, question };
        } else if let Some(id) = question {
            let daemon = self.daemon.clone();
            self.asides.spawn(async move {
                begin::gate::withdraw(&daemon, &id, begin::gate::WENT_ON).await;
            });
        }
    }

    /// Reads the run from its log, unless that is done.
    pub async fn open(&mut self) -> Result<(), ActorProcessingErr> {
        if self.run.is_none() {
            let hosted = self.hosted.clone();
            let folded = tokio::task::spawn_blocking(move || hosted.open_log()).await?;
            self.run = folded.map_err(|error| crate::dispatch::error::chain(&error))?.map(Arc::new);
            self.announce();
        }
        Ok(())
    }

    /// Writes that the run is under way, and watches its hub. Counts the heartbeats that the daemon
    /// has outlived.
    pub async fn beat(&mut self, run: &Run) -> Result<(), ActorProcessingErr> {
        while self.asides.try_join_next().is_some() {}
        let (hosted, since) = (self.hosted.clone(), run.runtime.since);
        tokio::task::spawn_blocking(move || hosted.write_lock_note(since)).await?;
        let waits = matches!(self.trial, Trial::Waiting);
        if !waits && self.unproven > 1 {
            self.unproven -= 1;
        } else {
            self.outlived();
        }
        if run.frozen.is_some() && !waits {
            self.watch_hub(run.target());
        }
        Ok(())
    }

    /// Records, once, that resuming the run does not crash the daemon. A run that has not resumed
    /// yet proves nothing.
    fn outlived(&mut self) {
        if matches!(self.trial, Trial::Waiting) {
            return;
        }
        if std::mem::take(&mut self.unproven) > 0 {
            recovery::outlived(&self.hosted.places);
        }
        self.trial = Trial::Over;
    }

    pub fn wait_for_trial(&mut self, myself: &ActorRef<RunMsg>) {
        self.trial = Trial::Waiting;
        let (trial, myself) = (self.daemon.runs.trial.clone(), myself.clone());
        self.asides.spawn(async move {
            let _ = myself.cast(RunMsg::Trial(trial.lock_owned().await));
        });
    }

    /// Begins the trial with the turn that the run has waited for. A run that no longer needs the
    /// turn drops it for the next one.
    pub async fn begin_trial(
        &mut self,
        turn: OwnedMutexGuard<()>,
    ) -> Result<(), ActorProcessingErr> {
        if matches!(self.trial, Trial::Waiting) {
            let places = self.hosted.places.clone();
            tokio::task::spawn_blocking(move || recovery::begin_trial(&places)).await?;
            self.trial = Trial::Held { _turn: turn };
        }
        Ok(())
    }

    /// Ends a suspect that a person stops at once, instead of after every trial before its own. Its
    /// mark is changed first, because the run may cause a crash from here on.
    pub async fn leave_queue(&mut self) -> Result<(), ActorProcessingErr> {
        if matches!(self.trial, Trial::Waiting) {
            let places = self.hosted.places.clone();
            tokio::task::spawn_blocking(move || recovery::begin_trial(&places)).await?;
            self.trial = Trial::Stopped;
        }
        Ok(())
    }

    fn announce(&self) {
        self.hosted.state.send_replace(self.run.clone());
        self.daemon.runs.moved.send_modify(|moves| *moves += 1);
    }

    /// Repairs the hub, which agents can write and may have removed.
    fn watch_hub(&mut self, target: String) {
        let (daemon, hosted) = (self.daemon.clone(), self.hosted.clone());
        self.asides.spawn(async move {
            if let Err(error) = hub::watch(&hosted.repos, &target).await {
                tracing::warn!(run = %hosted.run_id, %error, "failed to repair the hub");
            }
            repairs::report(&daemon, &hosted);
        });
    }

    /// Saves the message about the end of the run for its thread. Returns whether the run may be
    /// removed from those that the next daemon finds.
    pub async fn save_end(&self) -> Result<bool, ActorProcessingErr> {
        let Some(run) = self.run.clone() else { return Ok(true) };
        let (daemon, private) = (self.daemon.clone(), self.hosted.places.private.clone());
        let save = move || run_end::save(&daemon, &private, &run);
        let Err(error) = tokio::task::spawn_blocking(save).await? else { return Ok(true) };
        let what = format!("the end of run {}", self.hosted.run_id);
        self.daemon.note(Event::Fault { what, message: error.message });
        Ok(false)
    }

    /// Removes the run from the daemon, because it has ended or rests. With `is_saved` false the
    /// next daemon finds it once more, to tell its end.
    pub fn rest(&mut self, is_saved: bool) {
        fault::point("run.before_rest");
        self.trial = Trial::Over;
        self.outlived();
        match self.run.as_ref().is_some_and(|run| run.question().is_some()) {
            // The answer starts agents without a client, so the keys stay.
            true => self.daemon.runs.keep_push_env(&self.hosted),
            false => {
                self.daemon.runs.forget_push_env(&self.hosted.run_id);
                secrets::put_away(&self.daemon, &self.hosted.places, &self.hosted.key);
            }
        }
        if is_saved {
            let _ = std::fs::remove_file(self.hosted.places.live());
        }
        self.hosted.remove_lock_note();
        self.daemon.runs.remove(&self.hosted.key);
        self.daemon.lifecycle.connections.send_modify(|count| *count = count.saturating_sub(1));
        self.daemon.ports.runs.cast(BranchMsg::Remove(self.hosted.key.clone()));
        // Clients that follow the run see the last state and disconnect.
        self.announce();
        self.run = None;
    }
}

/// Whether the run fails, or rests because it was stopped.
fn ends_early(run: &Run, events: &[Event]) -> bool {
    events.iter().any(|event| match event {
        Event::RunFailed { .. } => true,
        Event::RunRested { .. } => run.stopping().is_some(),
        _ => false,
    })
}

async fn carry(
    daemon: &Arc<Daemon>,
    hosted: &Arc<Hosted>,
    run: &Arc<Run>,
    effect: Effect,
) -> Result<Option<Input>, Trouble> {
    match effect {
        Effect::Freeze => steps::freeze(daemon, hosted, run).await.map(Some),
        Effect::SealGiven => criteria::seal_given(daemon, hosted, run).await.map(Some),
        Effect::Gather { made } => {
            steps::verified_spec(&hosted.places, run)?;
            steps::gather(hosted, run, made).await.map(Some)
        }
        Effect::AcceptBeads => steps::accept(hosted, run).await.map(Some),
        Effect::Agent(job) => job::run(daemon, hosted, run, &job).await,
        Effect::End(job) => job::end(daemon, hosted, run, &job).await.map(Some),
        Effect::LookOutside => steps::look_outside(hosted, run).await.map(Some),
        Effect::ApplyVerdict { iteration, verdict, result } => {
            steps::apply_verdict(daemon, hosted, run, iteration, verdict, &result).await.map(Some)
        }
        Effect::Finish => {
            steps::verified_spec(&hosted.places, run)?;
            publish::finish(daemon, hosted, run).await.map(Some)
        }
        // The driver has the timer.
        Effect::WakeAt(_) => Ok(None),
    }
}
