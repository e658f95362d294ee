//! The state machine of a dispatch: `model::dispatch::life` decides, and the ledger has its events
//! and its state. Its difference from other machines: a batch of output is decided as a whole, and
//! becomes durable with one append.

use crate::agent::assembler::Pieces;
use crate::agent::link::Link;
use crate::agent::monitor::Monitor;
use crate::daemon::context::{AgentSlots, Daemon};
use crate::dispatch::launch::private_home;
use crate::dispatch::launch::secrets::put_away;
use crate::driver::{Carried, Due, Machine, Report};
use crate::ledger::{append, entry};
use crate::ports::agent::{JournalMsg, LifeMsg, Step, StepInput};
use crate::ports::shim_command;
use crate::ports::tree::BranchMsg;
use jiff::Timestamp;
use muleteer_backends::Backend;
use muleteer_model::agent::event::{AgentEvent, TurnError};
use muleteer_model::dispatch::life::{self, Decided, Effect, EffectKey, Input};
use muleteer_model::dispatch::{Dispatch, Phase};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event, Position, Record};
use muleteer_model::monitor;
use muleteer_model::monitor::stall;
use muleteer_process::{fault, group};
use ractor::{ActorProcessingErr, ActorRef};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Output without events gets a checkpoint after this many bytes, so that its spool can be trimmed.
const CHECKPOINT_BYTES: u64 = 4 * 1024 * 1024;

/// The longest wait for the end of the killed commands.
const END_PATIENCE: Duration = Duration::from_secs(2);

pub(super) struct LifeMachine {
    pub daemon: Arc<Daemon>,
    id: DispatchId,
    pub slots: Arc<AgentSlots>,
    pub link: Link,
    pub monitor: Monitor,
    pub dispatch: Arc<Dispatch>,
    pub backend: &'static dyn Backend,
    pub myself: ActorRef<LifeMsg>,
    /// The chunks of incomplete messages.
    pieces: Pieces,
    /// The actions in the last batch of output, for the monitor once the batch is durable. The
    /// epoch is that of the process that printed them.
    actions: Option<(u32, Vec<(f64, monitor::Seen)>)>,
    /// The agent should exit by itself.
    pub leaving: bool,
    /// The agent waited for an answer when the pool was asked last.
    holds: bool,
}

#[derive(Debug)]
pub(super) enum LifeInput {
    One(Box<Input>),
    Output(Vec<Step>),
}

impl From<Report<Input, EffectKey>> for LifeMsg {
    fn from(report: Report<Input, EffectKey>) -> Self {
        match report {
            Report::Done(input) => Self::Input(input),
            Report::Woken => Self::Wake,
            Report::Panicked(_, panic) => Self::Failed(panic.to_string()),
        }
    }
}

fn ends_interrupted(event: &Event) -> bool {
    matches!(event, Event::TurnFinished { error: Some(TurnError::Interrupted), .. })
}

impl Machine for LifeMachine {
    type Input = LifeInput;
    type Event = Entry;
    type Record = Record;
    type Effect = Effect;
    type Key = EffectKey;
    type Report = Input;
    type Error = ActorProcessingErr;

    fn decide(&mut self, input: LifeInput) -> Vec<Entry> {
        match input {
            LifeInput::One(input) => {
                let decided = life::decide(&self.dispatch, *input).into_iter();
                decided.map(|(at, event)| entry(&self.id, at, event)).collect()
            }
            LifeInput::Output(steps) => self.read(steps),
        }
    }

    fn advance(&mut self, now: Timestamp) -> Vec<Entry> {
        self.entries(life::follow(&mut Cow::Borrowed(&self.dispatch), now))
    }

    async fn append(&mut self, entries: Vec<Entry>) -> Result<Vec<Record>, ActorProcessingErr> {
        let ends = |entry: &Entry| matches!(entry.event, Event::DispatchFinished { .. });
        let is_end = entries.iter().any(ends);
        if is_end {
            fault::point("life.before_finish");
            private_home::close(&self.daemon, &self.id).await;
            fault::point("life.home_closed");
        }
        if entries.iter().any(|entry| ends_interrupted(&entry.event)) {
            self.end_commands().await;
        }
        let records = append(&self.daemon, entries).await?;
        fault::point("life.batch_durable");
        if is_end {
            fault::point("life.end_durable");
            put_away(&self.daemon, &self.id, self.dispatch.epoch).await;
        }
        Ok(records)
    }

    /// The ledger has folded the records. Others may have written before them.
    fn fold(&mut self, records: Vec<Record>) -> Result<(), ActorProcessingErr> {
        self.refresh()?;
        self.slots.journal.cast(JournalMsg::Records(records));
        let holds = self.dispatch.gives_up_slot();
        if holds && !std::mem::replace(&mut self.holds, holds) {
            // It gives up its slot of the pool.
            self.daemon.look();
        }
        self.holds = holds;
        self.observe();
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.dispatch.is_finished()
    }

    fn due(&self) -> Due<Effect> {
        let mut due = Due { effects: vec![], wake_at: None };
        for effect in life::effects(&self.dispatch) {
            match effect {
                Effect::WakeAt(at) => {
                    due.wake_at = Some(due.wake_at.map_or(at, |before| before.min(at)));
                }
                effect => due.effects.push(effect),
            }
        }
        due
    }

    fn key(&self, effect: &Effect) -> EffectKey {
        effect.key(&self.dispatch)
    }

    async fn carry_out(
        &mut self,
        key: &EffectKey,
        effect: Effect,
    ) -> Result<Carried<Input>, ActorProcessingErr> {
        self.carry(key, effect).await
    }
}

impl LifeMachine {
    pub fn new(
        daemon: Arc<Daemon>,
        id: DispatchId,
        myself: ActorRef<LifeMsg>,
    ) -> Result<Self, ActorProcessingErr> {
        let dispatch =
            daemon.snapshot().get(&id).cloned().ok_or("the dispatch is not in the ledger")?;
        let backend = muleteer_backends::by_name(&dispatch.created.backend)?;
        let slots = daemon.agent(&id);
        let pieces = Pieces::new(backend, dispatch.created.api.zone.as_deref());
        let link = Link::new(daemon.clone(), id.clone(), myself.clone());
        let monitor = Monitor::new(myself.clone());
        Ok(Self {
            daemon,
            id,
            slots,
            link,
            monitor,
            dispatch,
            backend,
            myself,
            pieces,
            actions: None,
            leaving: false,
            holds: false,
        })
    }

    pub fn refresh(&mut self) -> Result<(), ActorProcessingErr> {
        self.dispatch = self
            .daemon
            .snapshot()
            .get(&self.id)
            .cloned()
            .ok_or("the ledger no longer has the dispatch")?;
        Ok(())
    }

    /// Shows the monitor the present state.
    pub fn observe(&mut self) {
        self.monitor.folded(&self.daemon.snapshot(), &self.dispatch);
    }

    /// Discards buffered chunks: a link that restarts reads them again, because they were not
    /// accounted for.
    pub fn discard_pieces(&mut self) {
        self.pieces = Pieces::new(self.backend, self.dispatch.created.api.zone.as_deref());
    }

    /// Returns the key of the unwritten prompt that was sent to the shim under `idem`.
    pub fn prompt_of(&self, idem: &str) -> Option<String> {
        prompt_of(&self.dispatch, idem)
    }

    /// Ends the commands of an agent that leaves them running when its turn is interrupted, before
    /// the interruption is on record. A daemon that is killed here reads the same output again.
    async fn end_commands(&self) {
        let agent = self.dispatch.known_agent();
        let (Some(true), false, &Phase::Working { pid, shim_pid, .. }) = (
            agent.map(|agent| agent.leaves_commands),
            self.dispatch.was_rebooted(),
            &self.dispatch.phase,
        ) else {
            return;
        };
        let end = move || group::kill_other_sessions(shim_pid, pid, END_PATIENCE);
        let ended = tokio::task::spawn_blocking(end);
        if let Ok(count @ 1..) = ended.await {
            tracing::info!(id = %self.id, count, "ended commands of an interrupted turn");
        }
    }

    fn entries(&self, events: Vec<Event>) -> Vec<Entry> {
        events.into_iter().map(|event| entry(&self.id, None, event)).collect()
    }

    /// Turns a batch of output into events for one append. Decisions within the batch work on a
    /// copy; the real state changes only when the whole batch is durable.
    fn read(&mut self, steps: Vec<Step>) -> Vec<Entry> {
        let mut scratch: Cow<'_, Dispatch> = Cow::Owned((*self.dispatch).clone());
        let (mut entries, mut seen) = (Vec::new(), Vec::new());
        // The epoch of the process that printed these lines; a decision in this batch may start the
        // next one.
        let epoch = self.dispatch.epoch;
        let mut last = None;
        for step in steps {
            let (at, awake_ms) = (step.at, step.awake_ms);
            last = Some(at);
            let inputs = match written(&scratch, &step) {
                // Buffered chunks come before it.
                Some(written) => self.pieces.finish(at).into_iter().chain([written]).collect(),
                None => self.pieces.put(step, scratch.epoch),
            };
            for input in inputs {
                seen.extend(seen_in(&scratch, &input).map(|seen| (awake_ms as f64 / 1000.0, seen)));
                let decided = life::timed(life::decide(&scratch, input), awake_ms);
                self.stage(decided, scratch.to_mut(), &mut entries);
                // A process that is gone concludes only when its whole output has been read.
                if !matches!(scratch.phase, Phase::Gone { .. }) {
                    entries.extend(self.entries(life::follow(&mut scratch, Timestamp::now())));
                }
            }
        }
        if let (true, Some(at)) = (entries.is_empty(), last)
            && far(self.dispatch.position, at)
        {
            let checkpoint = self.pieces.finish(at).into_iter().chain([Input::Read { at }]);
            for input in checkpoint {
                let decided = life::decide(&scratch, input);
                self.stage(decided, scratch.to_mut(), &mut entries);
            }
        }
        entries.extend(self.entries(life::follow(&mut scratch, Timestamp::now())));
        self.actions = (!seen.is_empty()).then_some((epoch, seen));
        entries
    }

    /// Gives the monitor the actions of the last batch of output, once it is durable.
    pub fn tell_actions(&mut self) {
        if let Some((epoch, seen)) = self.actions.take() {
            #[cfg(test)]
            self.slots.note_seen(&seen);
            self.monitor.judge(&self.dispatch, epoch, seen);
        }
    }

    /// Gives the monitor all output, even without events, and before it is durable. The silence of
    /// an agent is about the present.
    pub fn pass_on(&mut self, steps: &[Step]) {
        let now = Timestamp::now().as_millisecond();
        let unix_now = now as f64 / 1000.0;
        if steps.iter().any(|step| matches!(step.input, StepInput::Agent(_))) {
            self.slots.heard.store(now, Ordering::Relaxed);
        }
        // A prompt of ours ends the past that an agent reports of the session that it loads.
        let until = steps.iter().position(|step| written_prompt(&self.dispatch, step).is_some());
        let is_past = |at: usize, event: &AgentEvent| {
            until.is_none_or(|until| at < until) && life::is_past(&self.dispatch, event)
        };
        let events = steps.iter().enumerate().flat_map(|(at, step)| match &step.input {
            StepInput::Agent(events) => events.iter().map(|event| (at, event)).collect(),
            StepInput::Shim(_) | StepInput::Written(_) => vec![],
        });
        let events = events.filter(|(at, event)| !is_past(*at, event)).map(|(_, event)| event);
        let mark = if self.backend.by_calls() { stall::mark_of_piece } else { stall::mark };
        let marks: Vec<_> = events.filter_map(|event| mark(event, unix_now)).collect();
        self.monitor.heard(&marks);
    }

    fn stage(&self, decided: Vec<Decided>, scratch: &mut Dispatch, entries: &mut Vec<Entry>) {
        for (at, event) in decided {
            let entry = entry(&self.id, at, event);
            let record = Record {
                v: muleteer_model::event::VERSION,
                seq: 0,
                ts: Timestamp::now(),
                entry: entry.clone(),
            };
            scratch.apply(&record);
            entries.push(entry);
        }
    }

    /// Ends the actors of a finished dispatch: the journal is completed, then the subtree is
    /// removed.
    pub async fn finish(&mut self) {
        fault::point("life.exit_durable");
        if let Some(journal) = self.slots.journal.get() {
            let _ = journal.call(JournalMsg::Flush, Some(Duration::from_secs(5))).await;
        }
        self.daemon.look();
        self.daemon.ports.agents.cast(BranchMsg::Remove(self.id.clone()));
    }
}

/// Returns the actions in a line for the monitors, once: whole messages, and none that were seen
/// before.
fn seen_in<'a>(
    dispatch: &'a Dispatch,
    input: &'a Input,
) -> impl Iterator<Item = monitor::Seen> + use<'a> {
    let events: &[AgentEvent] = match input {
        Input::Line { at, events }
            if *at > dispatch.position && dispatch.created.watched.is_on() =>
        {
            events
        }
        _ => &[],
    };
    events.iter().filter(|event| !life::is_past(dispatch, event)).filter_map(monitor::observe)
}

/// Returns the input for the prompt whose write this step records.
fn written_prompt(dispatch: &Dispatch, step: &Step) -> Option<Input> {
    let StepInput::Written(idem) = &step.input else { return None };
    let key = prompt_of(dispatch, idem)?;
    Some(Input::Written { at: Some(step.at), epoch: step.at.epoch, key })
}

/// Returns the input for the prompt or the answer whose write this step records.
fn written(dispatch: &Dispatch, step: &Step) -> Option<Input> {
    let StepInput::Written(idem) = &step.input else { return None };
    let (at, epoch) = (step.at, step.at.epoch);
    let is_this = |id: &str| shim_command::shown(&answer_key(epoch, id)) == *idem;
    let mut owed = dispatch.asks.answered().filter(|(pending, _)| pending.owes_delivery());
    match owed.find(|(pending, _)| is_this(&pending.id)) {
        Some((pending, _)) => Some(Input::AnswerWritten { at, epoch, id: pending.id.clone() }),
        None => written_prompt(dispatch, step),
    }
}

/// Returns the key of the command that sends an answer to the process of an epoch.
pub(super) fn answer_key(epoch: u32, id: &str) -> String {
    format!("answer/{epoch}/{id}")
}

/// Returns the key of the unwritten prompt that was sent to the shim under `idem`.
fn prompt_of(dispatch: &Dispatch, idem: &str) -> Option<String> {
    let prompt = dispatch.unwritten().filter(|prompt| shim_command::shown(&prompt.key) == idem)?;
    Some(prompt.key.clone())
}

fn far(durable: Position, read: Position) -> bool {
    read.epoch == durable.epoch && read.offset >= durable.offset.saturating_add(CHECKPOINT_BYTES)
}
