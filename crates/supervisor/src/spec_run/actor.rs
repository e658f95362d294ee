//! `run/<id>`: decides with `model::spec_run`, makes decisions durable, then acts. All its state is
//! folded from the run's log, so it can be killed at any line.

use crate::daemon::context::Daemon;
use crate::daemon::owned_task::survive;
use crate::ports::spec_run::RunMsg;
use crate::ports::tree::BranchMsg;
use crate::spec_run::begin::recovery;
use crate::spec_run::host::Hosted;
use crate::spec_run::trouble::Trouble;
use crate::spec_run::{criteria, job, publish, repairs, snapshots, steps};
use jiff::Timestamp;
use muleteer_model::event::Event;
use muleteer_model::event::id::DispatchId;
use muleteer_model::spec_run::{self, Effect, Input, Run};
use muleteer_process::fault;
use muleteer_protocol::ErrorCode;
use muleteer_vcs::spec_run::hub;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinSet;

/// The interval at which `lock.json` is rewritten.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// After this many heartbeats the daemon has outlived resuming the run.
const OUTLIVED: u32 = 12;

/// Codes of failures that may pass by themselves. The git of a killed daemon works for a moment
/// longer, and holds its locks.
const PASSING: &[ErrorCode] =
    &[ErrorCode::Git, ErrorCode::Io, ErrorCode::StoreIo, ErrorCode::Busy, ErrorCode::BeadsFailed];
const TRIES: u32 = 4;
const AGAIN: Duration = Duration::from_millis(500);

pub struct RunActor;

pub struct State {
    daemon: Arc<Daemon>,
    hosted: Arc<Hosted>,
    /// Shared with readers; a change makes a copy.
    run: Option<Arc<Run>>,
    carried: HashSet<String>,
    /// The number of failures in a row of each effect that is retried.
    tries: HashMap<String, u32>,
    tasks: JoinSet<()>,
    beating: bool,
    /// The number of heartbeats until the daemon has outlived resuming the run; 0 afterwards.
    unproven: u32,
    /// The newest state is not published yet.
    unseen: bool,
    trial: Trial,
    keeping: Keeping,
}

/// Whether the work of a run that ends early is in the repository, which happens before its end is
/// recorded. A task does it, so that the actor keeps answering its mailbox.
enum Keeping {
    /// There is nothing to bring home, or not yet.
    Not,
    UnderWay,
    /// Done, as of the event `seq`.
    Done {
        seq: u64,
        event: Option<Box<Event>>,
    },
}

/// Whether the run may resume after daemons crashed: see [`crate::spec_run::begin::recovery`].
enum Trial {
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

impl Actor for RunActor {
    type Msg = RunMsg;
    type State = State;
    type Arguments = (Arc<Daemon>, DispatchId);

    async fn pre_start(
        &self,
        myself: ActorRef<RunMsg>,
        (daemon, key): (Arc<Daemon>, DispatchId),
    ) -> Result<State, ActorProcessingErr> {
        let hosted = daemon.runs.get(&key).ok_or("this daemon does not host the run")?;
        hosted.actor.set(myself.clone());
        myself.cast(RunMsg::Boot)?;
        Ok(State {
            daemon,
            hosted,
            run: None,
            carried: HashSet::new(),
            tries: HashMap::new(),
            tasks: JoinSet::new(),
            beating: false,
            unproven: OUTLIVED,
            unseen: false,
            trial: Trial::Over,
            keeping: Keeping::Not,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<RunMsg>,
        message: RunMsg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        while state.tasks.try_join_next().is_some() {}
        match message {
            RunMsg::Boot => {
                if matches!(state.trial, Trial::Over) && recovery::is_suspect(&state.hosted.places)
                {
                    state.wait_for_trial(&myself);
                }
                if state.run.is_none() {
                    let hosted = state.hosted.clone();
                    let folded = tokio::task::spawn_blocking(move || hosted.open_log()).await?;
                    state.run = folded
                        .map_err(|error| crate::dispatch::error::chain(&error))?
                        .map(Arc::new);
                    state.publish();
                }
                if !std::mem::replace(&mut state.beating, true) {
                    myself.cast(RunMsg::Heartbeat)?;
                }
            }
            RunMsg::Input(input) => drop(state.feed(*input).await?),
            RunMsg::Command(input, reply) => {
                if matches!(*input, Input::Stop { .. }) {
                    state.leave_queue().await?;
                }
                let taken = state.feed(*input).await?;
                state.settle(&myself).await?;
                state.show().await?;
                let _ = reply.send(taken);
            }
            RunMsg::Failed { key, code, message } => {
                let tries = state.tries.entry(key.clone()).or_default();
                *tries += 1;
                if PASSING.iter().any(|passing| passing.as_str() == code) && *tries < TRIES {
                    tracing::warn!(%key, %code, %message, "an effect failed; retrying");
                    myself.send_after(AGAIN * *tries, || RunMsg::Again(key));
                    return Ok(());
                }
                state.tries.remove(&key);
                state.carried.remove(&key);
                state.feed(Input::Fatal { code, message }).await?;
            }
            RunMsg::Again(key) => drop(state.carried.remove(&key)),
            RunMsg::Wake => state.carried.retain(|key| !key.starts_with("WakeAt")),
            RunMsg::Heartbeat => {
                if let Some(run) = state.run.clone().filter(|run| run.is_live()) {
                    let (hosted, since) = (state.hosted.clone(), run.runtime.since);
                    tokio::task::spawn_blocking(move || hosted.write_lock_note(since)).await?;
                    let waits = matches!(state.trial, Trial::Waiting);
                    if !waits && state.unproven > 1 {
                        state.unproven -= 1;
                    } else {
                        state.outlived();
                    }
                    if run.frozen.is_some() && !waits {
                        state.watch_hub(run.target());
                    }
                    myself.send_after(HEARTBEAT, || RunMsg::Heartbeat);
                    return Ok(());
                }
            }
            RunMsg::Kept { seq, event } => state.keeping = Keeping::Done { seq, event },
            // This run no longer needs the turn, and drops it for the next one.
            RunMsg::Trial(_) if !matches!(state.trial, Trial::Waiting) => {}
            RunMsg::Trial(turn) => {
                let places = state.hosted.places.clone();
                tokio::task::spawn_blocking(move || recovery::begin_trial(&places)).await?;
                state.trial = Trial::Held { _turn: turn };
            }
        }
        state.settle(&myself).await?;
        state.show().await?;
        state.carry_out(&myself);
        Ok(())
    }
}

impl State {
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

    fn wait_for_trial(&mut self, myself: &ActorRef<RunMsg>) {
        self.trial = Trial::Waiting;
        let (trial, myself) = (self.daemon.runs.trial.clone(), myself.clone());
        self.tasks.spawn(async move {
            let _ = myself.cast(RunMsg::Trial(trial.lock_owned().await));
        });
    }

    /// Ends a suspect that a person stops at once, instead of after every trial before its own. Its
    /// mark is changed first, because the run may cause a crash from here on.
    async fn leave_queue(&mut self) -> Result<(), ActorProcessingErr> {
        if matches!(self.trial, Trial::Waiting) {
            let places = self.hosted.places.clone();
            tokio::task::spawn_blocking(move || recovery::begin_trial(&places)).await?;
            self.trial = Trial::Stopped;
        }
        Ok(())
    }

    /// Feeds an input to the run, and returns whether it had an effect.
    async fn feed(&mut self, input: Input) -> Result<bool, ActorProcessingErr> {
        let Some(run) = &self.run else { return Ok(false) };
        let events = spec_run::decide(run, input, Timestamp::now());
        let taken = !events.is_empty();
        self.commit(events).await?;
        Ok(taken)
    }

    async fn settle(&mut self, myself: &ActorRef<RunMsg>) -> Result<(), ActorProcessingErr> {
        while let Some(run) = self.run.clone() {
            let mut events = spec_run::advance(&run, Timestamp::now());
            if events.is_empty() {
                return Ok(());
            }
            if ends_early(&run, &events) {
                if matches!(self.trial, Trial::Waiting) {
                    return Ok(());
                }
                // This comes first, so that a client that sees the end also sees where the work is.
                match std::mem::replace(&mut self.keeping, Keeping::UnderWay) {
                    Keeping::Done { seq, event } if seq == run.seq => {
                        self.keeping = Keeping::Not;
                        events.splice(0..0, event.map(|event| *event));
                    }
                    // The run has progressed since, so its newer work must be brought home.
                    Keeping::Not | Keeping::Done { .. } => {
                        self.keep(myself, run);
                        return Ok(());
                    }
                    Keeping::UnderWay => return Ok(()),
                }
            }
            self.commit(events).await?;
        }
        Ok(())
    }

    fn keep(&mut self, myself: &ActorRef<RunMsg>, run: Arc<Run>) {
        let (daemon, hosted, myself) = (self.daemon.clone(), self.hosted.clone(), myself.clone());
        self.tasks.spawn(async move {
            let event = publish::keep_early(&daemon, &hosted, &run).await.map(Box::new);
            let _ = myself.cast(RunMsg::Kept { seq: run.seq, event });
        });
    }

    /// Appends the events durably, then folds them. [`Self::show`] publishes the state.
    async fn commit(&mut self, events: Vec<Event>) -> Result<(), ActorProcessingErr> {
        if events.is_empty() {
            return Ok(());
        }
        fault::point("run.before_commit");
        let hosted = self.hosted.clone();
        let records = tokio::task::spawn_blocking(move || hosted.append(events)).await??;
        self.outlived();
        fault::point("run.committed");
        let Some(run) = self.run.as_mut().map(Arc::make_mut) else { return Ok(()) };
        for record in &records {
            run.apply(record);
            steps::tidy(&self.daemon, &self.hosted, run, &record.entry.event, &mut self.tasks);
        }
        self.unseen = true;
        Ok(())
    }

    /// Writes the snapshots, once for all events that followed from one input, and then publishes
    /// the new state.
    async fn show(&mut self) -> Result<(), ActorProcessingErr> {
        let Some(run) = self.run.clone().filter(|_| std::mem::take(&mut self.unseen)) else {
            return Ok(());
        };
        let (daemon, hosted) = (self.daemon.clone(), self.hosted.clone());
        tokio::task::spawn_blocking(move || snapshots::write(&daemon, &hosted, &run)).await?;
        fault::point("run.checkpointed");
        self.publish();
        Ok(())
    }

    fn publish(&self) {
        self.hosted.state.send_replace(self.run.clone());
        self.daemon.runs.moved.send_modify(|moves| *moves += 1);
    }

    fn carry_out(&mut self, myself: &ActorRef<RunMsg>) {
        let Some(run) = self.run.clone() else { return };
        if !run.is_live() {
            self.rest();
            return;
        }
        if matches!(self.trial, Trial::Waiting) {
            return;
        }
        for effect in spec_run::effects(&run) {
            let key = key_of(&run, &effect);
            if !self.carried.insert(key.clone()) {
                continue;
            }
            if let Effect::WakeAt(at) = effect {
                let wait = at.duration_since(Timestamp::now()).try_into().unwrap_or(Duration::ZERO);
                myself.send_after(wait, || RunMsg::Wake);
                continue;
            }
            let (daemon, hosted, run, myself) =
                (self.daemon.clone(), self.hosted.clone(), run.clone(), myself.clone());
            self.tasks.spawn(async move {
                let outcome = survive(carry(&daemon, &hosted, &run, effect)).await;
                let message = match outcome {
                    Ok(Ok(Some(input))) => RunMsg::Input(Box::new(input)),
                    Ok(Ok(None)) => return,
                    Ok(Err(trouble)) => {
                        RunMsg::Failed { key, code: trouble.code, message: trouble.message }
                    }
                    Err(panicked) => {
                        let message = panicked.to_string();
                        RunMsg::Failed { key, code: ErrorCode::Internal.into(), message }
                    }
                };
                let _ = myself.cast(message);
            });
        }
    }

    /// Repairs the hub, which agents can write and may have removed.
    fn watch_hub(&mut self, target: String) {
        let (daemon, hosted) = (self.daemon.clone(), self.hosted.clone());
        self.tasks.spawn(async move {
            if let Err(error) = hub::watch(&hosted.repos, &target).await {
                tracing::warn!(run = %hosted.run_id, %error, "failed to repair the hub");
            }
            repairs::report(&daemon, &hosted);
        });
    }

    /// Removes the run from the daemon, because it has ended or rests.
    fn rest(&mut self) {
        fault::point("run.before_rest");
        self.trial = Trial::Over;
        self.outlived();
        let _ = std::fs::remove_file(self.hosted.places.live());
        self.hosted.remove_lock_note();
        self.daemon.runs.remove(&self.hosted.key);
        self.daemon.lifecycle.connections.send_modify(|count| *count = count.saturating_sub(1));
        self.daemon.ports.runs.cast(BranchMsg::Remove(self.hosted.key.clone()));
        // Clients that follow the run see the last state and disconnect.
        self.publish();
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

/// Returns the key of an effect, which is carried out once per incarnation and key. The key has
/// nothing that can change while the effect runs, as a resumption would: two effects of one kind
/// would conflict.
fn key_of(run: &Run, effect: &Effect) -> String {
    match effect {
        Effect::Agent(job) => format!("Agent/{}", job.start.dispatch),
        Effect::End(job) => format!("End/{}", job.start.dispatch),
        Effect::LookOutside => format!("LookOutside/{}", run.seq),
        Effect::ApplyVerdict { verdict, .. } => format!("ApplyVerdict/{verdict}"),
        Effect::WakeAt(at) => format!("WakeAt/{at}"),
        Effect::Gather { made } => {
            format!(
                "Gather/{made}/{}/{}",
                run.spawns,
                if run.rereads_beads() { run.sitting } else { 0 }
            )
        }
        other => format!("{other:?}"),
    }
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
        Effect::WakeAt(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Found by the crash campaign: a resumption during the end of a run started the end a second
    /// time at once.
    #[test]
    fn resume_request_keeps_the_keys_of_effects() {
        let samples = include_str!("../../../store/samples/events-v1.jsonl");
        let started =
            samples.lines().find(|line| line.contains(r#""event":"run_started""#)).unwrap();
        let before = Run::begin(&serde_json::from_str(started).unwrap()).unwrap();
        let mut after = before.clone();
        after.runtime.since = Timestamp::now();
        let effects = [Effect::Finish, Effect::Freeze, Effect::SealGiven, Effect::AcceptBeads];
        for effect in effects {
            assert_eq!(key_of(&before, &effect), key_of(&after, &effect));
        }
    }
}
