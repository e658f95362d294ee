//! Carries out the life of one dispatch: decides with `model::dispatch::life`, makes decisions
//! durable, then acts. All its state is folded from the ledger, so it can be killed at any line.

use crate::agent::assembler::Pieces;
use crate::agent::fetch;
use crate::agent::link;
use crate::agent::transcript_probe;
use crate::daemon::context::{AgentSlots, Daemon};
use crate::daemon::owned_task::survive;
use crate::dispatch::launch::project_settings::settings_for;
use crate::dispatch::prompt_files::{Said, prompt_text};
use crate::ledger::{append, entry};
use crate::ports::agent::{JournalMsg, LifeMsg, LinkMsg, MonitorMsg, Step, StepInput};
use crate::ports::shim_command::Command;
use crate::ports::tree::BranchMsg;
use jiff::Timestamp;
use muleteer_backends::Backend;
use muleteer_model::agent::event::AgentEvent;
use muleteer_model::dispatch::life::{self, Decided, Effect, Input};
use muleteer_model::dispatch::{Dispatch, Phase};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event, Position, Record};
use muleteer_model::monitor;
use muleteer_model::monitor::stall;
use muleteer_process::fault;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;

/// Output without events gets a checkpoint after this many bytes, so that its spool can be trimmed.
const CHECKPOINT_BYTES: u64 = 4 * 1024 * 1024;
/// The longest time that an agent waits for its journal to be made.
const JOURNAL_PATIENCE: Duration = Duration::from_secs(10);
/// The time for a CLI to exit after its stdin was closed.
const LEAVE_GRACE: Duration = Duration::from_secs(60);

pub struct Life;

pub struct State {
    daemon: Arc<Daemon>,
    id: DispatchId,
    slots: Arc<AgentSlots>,
    dispatch: Arc<Dispatch>,
    backend: &'static dyn Backend,
    /// The chunks of incomplete messages.
    pieces: Pieces,
    /// The effects that this incarnation has carried out; cleared when a link restarts.
    carried: HashSet<String>,
    tasks: JoinSet<()>,
    leaving: bool,
}

impl Actor for Life {
    type Msg = LifeMsg;
    type State = State;
    type Arguments = (Arc<Daemon>, DispatchId);

    async fn pre_start(
        &self,
        myself: ActorRef<LifeMsg>,
        (daemon, id): (Arc<Daemon>, DispatchId),
    ) -> Result<State, ActorProcessingErr> {
        let dispatch =
            daemon.snapshot().get(&id).cloned().ok_or("the dispatch is not in the ledger")?;
        let backend = muleteer_backends::by_name(&dispatch.created.backend)?;
        let slots = daemon.agent(&id);
        slots.life.set(myself.clone());
        myself.cast(LifeMsg::Boot)?;
        Ok(State {
            daemon,
            id,
            slots,
            dispatch,
            backend,
            pieces: Pieces::new(backend),
            carried: HashSet::new(),
            tasks: JoinSet::new(),
            leaving: false,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<LifeMsg>,
        message: LifeMsg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        while state.tasks.try_join_next().is_some() {}
        // It is boxed, so that the memory for the largest message is not held between messages.
        Box::pin(state.on(&myself, message)).await
    }
}

impl State {
    async fn on(
        &mut self,
        myself: &ActorRef<LifeMsg>,
        message: LifeMsg,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            LifeMsg::Boot | LifeMsg::Wake => {
                // The timer may be early, or the clock may have been set back: then the timer is
                // set again.
                self.carried.retain(|key| !key.starts_with("WakeAt"));
                // The gate appends prompts by itself.
                self.refresh()?;
                self.settle().await?;
            }
            LifeMsg::LinkUp => {
                self.carried.clear();
                // Buffered chunks are read again, because they were not accounted for.
                self.pieces = Pieces::new(self.backend);
                self.settle().await?;
            }
            LifeMsg::Admitted(ticket) => self.feed(Input::Admitted(ticket)).await?,
            LifeMsg::Input(input) => self.feed(input).await?,
            LifeMsg::Command(input, reply) => {
                let meant = !life::decide(&self.dispatch, input.clone()).is_empty();
                self.feed(input).await?;
                let _ = reply.send(meant);
            }
            LifeMsg::Output(steps, reply) => {
                self.pass_on(&steps);
                self.read(steps).await?;
                let _ = reply.send(self.dispatch.position);
            }
            LifeMsg::Written(epoch, idem) => {
                if let Some(key) = prompt_of(&self.dispatch, &idem) {
                    self.feed(Input::Written { at: None, epoch, key }).await?;
                }
            }
            LifeMsg::Overdue(epoch) => {
                if let Phase::Working { epoch: current, .. } = self.dispatch.phase
                    && current == epoch
                    && self.leaving
                {
                    self.slots
                        .link
                        .cast(LinkMsg::Do(Command::terminate(&format!("overdue/{epoch}"))));
                }
            }
            LifeMsg::Failed(error) => return Err(error.into()),
        }
        self.carry_out(myself).await
    }

    async fn feed(&mut self, input: Input) -> Result<(), ActorProcessingErr> {
        let decided = life::decide(&self.dispatch, input);
        self.commit(decided).await?;
        self.settle().await
    }

    /// Applies the decisions that follow from the state alone, until there are none.
    async fn settle(&mut self) -> Result<(), ActorProcessingErr> {
        loop {
            let events = life::follow(&mut Cow::Borrowed(&self.dispatch), Timestamp::now());
            if events.is_empty() {
                return Ok(());
            }
            self.append(self.entries(events)).await?;
        }
    }

    fn entries(&self, events: Vec<Event>) -> Vec<Entry> {
        events.into_iter().map(|event| entry(&self.id, None, event)).collect()
    }

    /// Turns a batch of output into events with one append. Decisions within the batch work on a
    /// copy; the real state changes only when the whole batch is durable.
    async fn read(&mut self, steps: Vec<Step>) -> Result<(), ActorProcessingErr> {
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
        self.append(entries).await?;
        if !seen.is_empty() {
            self.slots.monitor.cast(MonitorMsg::Seen(epoch, seen));
        }
        self.settle().await
    }

    /// Gives the monitor all output, even without events, and before it is durable. The silence of
    /// an agent is about the present.
    fn pass_on(&self, steps: &[Step]) {
        let now = Timestamp::now().as_millisecond();
        let unix_now = now as f64 / 1000.0;
        if steps.iter().any(|step| matches!(step.input, StepInput::Agent(_))) {
            self.slots.heard.store(now, Ordering::Relaxed);
        }
        let events = steps.iter().flat_map(|step| match &step.input {
            StepInput::Agent(events) => events.as_slice(),
            StepInput::Shim(_) | StepInput::Written(_) => &[],
        });
        let mark = if self.backend.by_calls() { stall::mark_of_piece } else { stall::mark };
        let marks = events.filter_map(|event| mark(event, unix_now)).collect();
        self.slots.monitor.cast(MonitorMsg::Heard(marks));
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

    async fn commit(&mut self, decided: Vec<Decided>) -> Result<(), ActorProcessingErr> {
        let entries = decided.into_iter().map(|(at, event)| entry(&self.id, at, event)).collect();
        self.append(entries).await
    }

    async fn append(&mut self, entries: Vec<Entry>) -> Result<(), ActorProcessingErr> {
        if entries.is_empty() {
            return Ok(());
        }
        if entries.iter().any(|entry| matches!(entry.event, Event::DispatchFinished { .. })) {
            fault::point("life.before_finish");
        }
        let records = append(&self.daemon, entries).await?;
        fault::point("life.batch_durable");
        self.refresh()?;
        self.slots.journal.cast(JournalMsg::Records(records));
        self.slots.monitor.cast(MonitorMsg::Folded);
        Ok(())
    }

    fn session(&self) -> Option<&str> {
        self.dispatch.session.id.as_deref()
    }

    fn refresh(&mut self) -> Result<(), ActorProcessingErr> {
        self.dispatch = self
            .daemon
            .snapshot()
            .get(&self.id)
            .cloned()
            .ok_or("the ledger no longer has the dispatch")?;
        Ok(())
    }

    async fn carry_out(&mut self, myself: &ActorRef<LifeMsg>) -> Result<(), ActorProcessingErr> {
        if self.dispatch.phase == Phase::Queued {
            // Effects of an earlier life may have to be repeated.
            self.carried.clear();
        }
        for effect in life::effects(&self.dispatch) {
            if matches!(effect, Effect::Admit) {
                self.daemon.look();
                continue;
            }
            let key = effect.key(&self.dispatch);
            if !self.carried.insert(key.clone()) {
                continue;
            }
            if matches!(effect, Effect::FetchWork) {
                // The agent is gone, so its slot is free already.
                self.daemon.look();
            }
            self.carry(myself, effect, &key).await?;
        }
        if self.dispatch.is_finished() {
            self.finish().await;
        }
        Ok(())
    }

    async fn carry(
        &mut self,
        myself: &ActorRef<LifeMsg>,
        effect: Effect,
        key: &str,
    ) -> Result<(), ActorProcessingErr> {
        let epoch = self.dispatch.epoch;
        match effect {
            Effect::Admit => {}
            Effect::EnsureShim { epoch, resume } => {
                fault::point("life.attempt_durable");
                if let (Phase::Starting { .. }, Some(journal)) =
                    (&self.dispatch.phase, self.slots.journal.get())
                    && !self.slots.has_journal.load(Ordering::SeqCst)
                {
                    let _ = journal.call(JournalMsg::Ready, Some(JOURNAL_PATIENCE)).await;
                }
                self.leaving = false;
                self.slots.link.cast(LinkMsg::Ensure { epoch, resume });
            }
            // The link requests everything again when it starts.
            Effect::Prompt { .. } if self.slots.link.get().is_none() => {}
            Effect::Prompt { key, close } => {
                let said = prompt_text(&self.daemon, &self.dispatch, &key).await?;
                fault::point("link.before_prompt");
                let bytes = match said {
                    Said::Prompt(text) => self.backend.prompt(self.session(), &key, &text),
                    // A command is only accepted for a backend that supports commands.
                    Said::CliCommand(text) => {
                        self.backend.cli_command(self.session(), &key, &text).unwrap_or_default()
                    }
                };
                self.leaving = false;
                self.slots.link.cast(LinkMsg::Do(Command::write(&key, bytes, close)));
                fault::point("link.after_prompt");
            }
            Effect::Call(call) => {
                let settings = settings_for(&self.daemon, &call).await;
                if let Some(bytes) = self.backend.call(&call, self.session(), settings) {
                    self.slots.link.cast(LinkMsg::Do(Command::write(
                        &format!("call/{key}"),
                        bytes,
                        false,
                    )));
                }
            }
            Effect::CloseStdin => {
                self.leaving = true;
                // The stdin of a process with one prompt was closed after the prompt.
                if self.dispatch.created.multi_turn {
                    self.slots.link.cast(LinkMsg::Do(Command::write(key, vec![], true)));
                }
                myself.send_after(LEAVE_GRACE, move || LifeMsg::Overdue(epoch));
            }
            Effect::Answer { id } => self.answer(&id),
            Effect::SetModel { key, model } => {
                // If only a new process can change the model, the next process will.
                let by = self.dispatch.model.set_by.as_deref();
                if let Some(bytes) = self.backend.set_model(self.session(), by, &key, &model) {
                    self.slots.link.cast(LinkMsg::Do(Command::write(
                        &format!("model/{key}"),
                        bytes,
                        false,
                    )));
                }
            }
            Effect::Interrupt { key } => {
                let command = match self.backend.interrupt(self.session(), &key) {
                    Some(bytes) => Command::write(&format!("interrupt/{key}"), bytes, false),
                    None => Command::interrupt(&key),
                };
                self.slots.link.cast(LinkMsg::Do(command));
            }
            Effect::Terminate => {
                self.slots
                    .link
                    .cast(LinkMsg::Do(Command::terminate(&format!("terminate/{epoch}"))));
            }
            Effect::FetchWork => {
                let (daemon, dispatch, myself) =
                    (self.daemon.clone(), self.dispatch.clone(), myself.clone());
                self.tasks.spawn(async move {
                    let message = match survive(fetch::fetch_work(&daemon, &dispatch)).await {
                        Ok(work) => LifeMsg::Input(Input::WorkFetched(work)),
                        Err(error) => LifeMsg::Failed(error.to_string()),
                    };
                    let _ = myself.cast(message);
                });
            }
            Effect::Probe { key } => {
                let (daemon, dispatch, backend) =
                    (self.daemon.clone(), self.dispatch.clone(), self.backend);
                let myself = myself.clone();
                self.tasks.spawn(async move {
                    let message =
                        match survive(transcript_probe::probe(&daemon, &dispatch, backend, &key))
                            .await
                        {
                            Ok(reading) => LifeMsg::Input(Input::Probed { epoch, key, reading }),
                            Err(error) => LifeMsg::Failed(error.to_string()),
                        };
                    let _ = myself.cast(message);
                });
            }
            Effect::WakeAt(at) => {
                let wait = at.duration_since(Timestamp::now()).try_into().unwrap_or(Duration::ZERO);
                myself.send_after(wait, || LifeMsg::Wake);
            }
        }
        Ok(())
    }

    /// Sends an answer to the agent, and tells the monitor that the agent no longer waits.
    fn answer(&self, id: &str) {
        let Some((pending, answer)) =
            self.dispatch.asks.answered().find(|(pending, _)| pending.id == id)
        else {
            return;
        };
        fault::point("link.before_answer");
        match self.backend.answer(id, &pending.ask, answer) {
            Some(bytes) => {
                let key = format!("answer/{}/{id}", self.dispatch.epoch);
                self.slots.link.cast(LinkMsg::Do(Command::write(&key, bytes, false)));
            }
            None => {
                tracing::error!(
                    id = %self.id,
                    request = id,
                    "this backend does not accept answers"
                )
            }
        }
        fault::point("link.after_answer");
        self.slots.monitor.cast(MonitorMsg::Heard(stall::answered(id)));
    }

    /// Ends the actors of a finished dispatch: the journal is completed, then the subtree is
    /// removed.
    async fn finish(&mut self) {
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
    dispatch: &Dispatch,
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
    events.iter().filter_map(monitor::observe)
}

/// Returns the input for the prompt whose write this step records.
fn written(dispatch: &Dispatch, step: &Step) -> Option<Input> {
    let StepInput::Written(idem) = &step.input else { return None };
    let key = prompt_of(dispatch, idem)?;
    Some(Input::Written { at: Some(step.at), epoch: step.at.epoch, key })
}

/// Returns the key of the unwritten prompt that was sent to the shim under `idem`.
fn prompt_of(dispatch: &Dispatch, idem: &str) -> Option<String> {
    let prompt = dispatch.unwritten().filter(|prompt| link::shown(&prompt.key) == idem)?;
    Some(prompt.key.clone())
}

fn far(durable: Position, read: Position) -> bool {
    read.epoch == durable.epoch && read.offset >= durable.offset.saturating_add(CHECKPOINT_BYTES)
}

#[cfg(test)]
mod tests;
