//! All threads, folded from the events.

use crate::agent::event::TurnError;
use crate::conversation::adapter::outbox::{self, AdapterState, Outbox, Owed};
use crate::conversation::event::{
    MessageAccepted, MessageRecorded, State, TaskState, ThreadOpened,
};
use crate::conversation::meeting::of_thread::thread_of;
use crate::conversation::schedule::fold::Schedules;
use crate::conversation::thread::report::{self, Reports};
use crate::conversation::thread::window::{HOLDERS, KEPT, KEPT_BYTES, Window};
use crate::conversation::thread::{Delivery, Message, Task, Thread, TurnEnd};
use crate::dispatch::{Dispatch, PromptState};
use crate::event::id::{self, DispatchId, Unfound};
use crate::event::{Event, FinalState, Record};
use crate::question::Question;
use crate::{daemon_events, dispatch_events, meeting_events, question_events, schedule_events};
use crate::{spec_run_events, task_list_events};
use jiff::Timestamp;
use rpds::{RedBlackTreeMapSync, RedBlackTreeSetSync};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Conversations {
    threads: RedBlackTreeMapSync<String, Arc<Thread>>,
    /// All messages stay in memory.
    #[serde(skip)]
    keeps_messages: bool,
    /// The threads in which something follows by itself.
    busy: RedBlackTreeSetSync<String>,
    /// The threads with final messages in memory, by the record that changed them last.
    holders: RedBlackTreeMapSync<u64, String>,
    /// The sequence number of the newest record that changed a busy thread.
    stirred: u64,
    /// The threads of adapters, by the adapter and its id of the thread.
    by_external: RedBlackTreeMapSync<String, String>,
    /// The adapters that ever did something.
    adapters: RedBlackTreeMapSync<String, AdapterState>,
    #[serde(default)]
    schedules: Schedules,
}

/// The reason why a prefix names no thread.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    #[error("no thread `{0}`")]
    Unknown(String),
    #[error("`{prefix}` matches {} threads: {}", .ids.len(), .ids.join(", "))]
    Ambiguous { prefix: String, ids: Vec<String> },
}

impl Conversations {
    /// Returns no threads; those to come keep all their messages in memory.
    pub fn with_messages() -> Self {
        Self { keeps_messages: true, ..Self::default() }
    }

    pub fn get(&self, id: &str) -> Option<&Arc<Thread>> {
        self.threads.get(id)
    }

    /// All threads, by their ids.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Thread>> {
        self.threads.values()
    }

    /// The threads in which something follows by itself.
    pub fn busy(&self) -> impl Iterator<Item = &str> {
        self.busy.iter().map(String::as_str)
    }

    pub fn is_busy(&self, id: &str) -> bool {
        self.busy.contains(id)
    }

    pub fn stirred(&self) -> u64 {
        self.stirred
    }

    /// Finds the one thread whose id begins with `prefix`.
    ///
    /// # Errors
    /// When no id fits, or more than one.
    pub fn find(&self, prefix: &str) -> Result<&Arc<Thread>, LookupError> {
        let all = self.threads.iter().map(|(id, thread)| (id.as_str(), thread));
        id::by_beginning(all, prefix).map_err(|unfound| match unfound {
            Unfound::Unknown => LookupError::Unknown(prefix.into()),
            Unfound::Ambiguous(ids) => LookupError::Ambiguous { prefix: prefix.into(), ids },
        })
    }

    /// Folds an event of a thread in.
    pub fn apply(&mut self, record: &Record) {
        let event = &record.entry.event;
        let id = match event {
            Event::ThreadOpened(opened) => return self.open(opened, record),
            Event::AdapterStarted(_)
            | Event::AdapterLost(_)
            | Event::AdapterSetAside(_)
            | Event::AdapterSwitched(_)
            | Event::AdapterSignal(_)
            | Event::StrangerTold(_) => return self.apply_adapter(event, record.seq),
            Event::ScheduleSet(set) => return self.schedules.set(set),
            Event::ScheduleDue(due) => return self.schedules.due(due),
            Event::ScheduleDone(done) => return self.schedules.done(done),
            meeting_events!() => thread_of(event),
            Event::PostState(changed) => Some(&*changed.thread),
            Event::MessageAccepted(accepted) => Some(&*accepted.thread),
            Event::MessageRecorded(recorded) => Some(&*recorded.thread),
            Event::ThreadRole(changed) => Some(&*changed.thread),
            Event::ThreadVerbosity(changed) => Some(&*changed.thread),
            Event::MessageState { thread, .. }
            | Event::ThreadTaskOpened { thread, .. }
            | Event::ThreadTaskState { thread, .. }
            | Event::ThreadArchived { thread, .. } => Some(&**thread),
            daemon_events!()
            | dispatch_events!()
            | spec_run_events!()
            | task_list_events!()
            | question_events!()
            | Event::Unknown => None,
        };
        let Some(id) = id.map(String::from) else { return };
        if let Some(thread) = self.threads.get_mut(&id) {
            let thread = Arc::make_mut(thread);
            let before = Owed::of(thread);
            thread.apply(event, record);
            let after = Owed::of(thread);
            if !self.keeps_messages {
                thread.trim(KEPT, KEPT_BYTES, record.seq);
            }
            if thread.has_adapter() {
                let adapter = thread.opened.adapter.clone();
                self.adapter_mut(&adapter).follow(event, &id, before, after);
            }
            if !self.keeps_messages {
                self.hold(&id, record.seq);
            }
            self.note(&id, record.seq);
        }
    }

    fn adapter_mut(&mut self, name: &str) -> &mut AdapterState {
        if !self.adapters.contains_key(name) {
            self.adapters.insert_mut(name.into(), AdapterState::default());
        }
        self.adapters.get_mut(name).unwrap_or_else(|| unreachable!())
    }

    fn apply_adapter(&mut self, event: &Event, seq: u64) {
        match event {
            Event::AdapterStarted(started) => drop(self.adapter_mut(&started.adapter)),
            Event::AdapterSwitched(switched) => {
                self.adapter_mut(&switched.adapter).switched = Some(switched.enabled);
            }
            Event::AdapterSignal(signal) => {
                let adapter = self.adapter_mut(&signal.adapter);
                adapter.signals.add(&signal.source, seq);
            }
            Event::StrangerTold(told) => {
                let adapter = self.adapter_mut(&told.adapter);
                if adapter.told.size() < outbox::MOST_STRANGERS {
                    adapter.told.insert_mut(told.user.clone(), told.source.clone());
                }
            }
            _ => {}
        }
    }

    /// Returns the thread of an adapter by the adapter's own id of it.
    pub fn by_external(&self, adapter: &str, external: &str) -> Option<&Arc<Thread>> {
        self.threads.get(self.by_external.get(&place(adapter, external))?)
    }

    /// Returns the schedules that the daemon follows.
    pub fn schedules(&self) -> &Schedules {
        &self.schedules
    }

    /// Returns the folded state of an adapter.
    pub fn adapter(&self, name: &str) -> Option<&AdapterState> {
        self.adapters.get(name)
    }

    /// Makes a thread the most recently active one. If too many threads have messages in memory,
    /// the one that was quiet for the longest time loses its own. A busy one has them a while
    /// longer.
    fn hold(&mut self, id: &str, seq: u64) {
        /// The most threads that are looked at: all threads may be busy.
        const LOOKS: usize = 8;
        let Some(thread) = self.threads.get_mut(id) else { return };
        let before = std::mem::replace(&mut Arc::make_mut(thread).held_since, seq);
        self.holders.remove_mut(&before);
        self.holders.insert_mut(seq, id.into());
        if self.holders.size() <= HOLDERS {
            return;
        }
        let mut oldest = self.holders.iter().take(LOOKS).filter(|(_, id)| !self.busy.contains(*id));
        let Some((since, quiet)) = oldest.next().map(|(since, id)| (*since, id.clone())) else {
            return;
        };
        self.holders.remove_mut(&since);
        if let Some(thread) = self.threads.get_mut(&quiet) {
            let thread = Arc::make_mut(thread);
            thread.held_since = 0;
            thread.trim(0, 0, seq);
        }
    }

    /// Follows an event of a dispatch of a thread; the dispatch has it folded in already. Only the
    /// last message of a turn is taken over, because the dispatch forgets it with its next turn.
    pub fn follow(&mut self, dispatch: &Dispatch, record: &Record) {
        if let Event::DispatchFinished { state, .. } = &record.entry.event {
            return self.follow_end(dispatch, *state, record);
        }
        self.report(dispatch, record);
        if let Event::UsageRecorded { cost_usd, .. } = &record.entry.event {
            self.spend(dispatch, *cost_usd);
        }
        let Event::TurnFinished { turn, ok, error, text, .. } = &record.entry.event else { return };
        let Some(id) = dispatch.created.thread().map(String::from) else { return };
        // The answer of a one-shot agent is recorded when it has ended.
        if !dispatch.created.has_turns() {
            return;
        }
        let Some(thread) = self.threads.get_mut(&id) else { return };
        let interrupted = *error == Some(TurnError::Interrupted);
        // A failed turn is continued, or the dispatch ends.
        if !ok && !interrupted {
            return;
        }
        // An earlier turn has answered it, and that is not recorded yet.
        let is_known = |id: &String| thread.turns.iter().any(|end| end.answers.contains(id));
        let mut answers: Vec<_> = thread
            .open()
            .filter(|message| is_over(message, thread.id(), dispatch) && !is_known(&message.id))
            .map(|message| message.id.clone())
            .collect();
        if answers.is_empty() && text.trim().is_empty() {
            return;
        }
        answers.extend(thread.heard_with(&answers));
        let end = TurnEnd {
            dispatch: dispatch.id.clone(),
            turn: *turn,
            interrupted,
            text: text.clone(),
            answers,
        };
        Arc::make_mut(thread).turns.push(end);
        self.note(&id, record.seq);
    }

    /// Follows the questions that a record changed, which have it folded in already: the adapters
    /// of their threads show them.
    pub fn follow_questions(&mut self, changed: &[Arc<Question>], record: &Record) {
        for question in changed {
            for id in question.threads() {
                self.follow_question(id, question, record);
            }
        }
    }

    fn follow_question(&mut self, id: &str, question: &Question, record: &Record) {
        let Some(thread) = self.threads.get_mut(id).filter(|thread| thread.has_adapter()) else {
            return;
        };
        let thread = Arc::make_mut(thread);
        let before = Owed::of(thread);
        if thread.follow_question(question, record) {
            let (adapter, after) = (thread.opened.adapter.clone(), Owed::of(thread));
            self.adapter_mut(&adapter).follow(&record.entry.event, id, before, after);
        }
    }

    /// Notes the end of a dispatch of another role than the thread's. A message waits for the end
    /// of the thread's own dispatch, so that one is told anyway; and the last turn of a dispatch
    /// that ended well is in the thread.
    fn follow_end(&mut self, dispatch: &Dispatch, state: FinalState, record: &Record) {
        let Some(id) = dispatch.created.thread().map(String::from) else { return };
        let Some(thread) = self.threads.get_mut(&id) else { return };
        if thread.is_own(&dispatch.id) {
            return;
        }
        let is_well = matches!(state, FinalState::Success | FinalState::Partial);
        let is_reported = dispatch.created.thread_verbosity.is_some();
        let summary = dispatch.result.value.as_ref().map(|result| result.summary.trim());
        let has_summary = state != FinalState::Failed && summary.is_some_and(|it| !it.is_empty());
        let thread = Arc::make_mut(thread);
        let has_task = thread.task_of(&dispatch.id).is_some();
        // Each turn of a conversation ends its dispatch, which is no news.
        if is_reported && (has_task || !is_well || !dispatch.created.has_turns()) {
            thread.report_end(dispatch, record);
        }
        if !(is_well && dispatch.created.has_turns()) && (has_summary || !is_reported) {
            thread.ends.push(dispatch.id.clone());
        }
        self.note(&id, record.seq);
    }

    /// Adds a cost of a dispatch to the meeting that is held in its thread.
    fn spend(&mut self, dispatch: &Dispatch, cost_usd: f64) {
        let thread = dispatch.created.thread().and_then(|id| self.threads.get_mut(id));
        if let Some(thread) = thread.filter(|thread| thread.meeting().is_some()) {
            Arc::make_mut(thread).spend(cost_usd);
        }
    }

    /// Adds what the thread of a dispatch is told of a record.
    fn report(&mut self, dispatch: &Dispatch, record: &Record) {
        // Most records are of dispatches without a thread, or are not told.
        if dispatch.created.thread_verbosity.is_none() || !report::may_tell(&record.entry.event) {
            return;
        }
        let Some(id) = dispatch.created.thread().map(String::from) else { return };
        let Some(thread) = self.threads.get_mut(&id) else { return };
        if Arc::make_mut(thread).report(dispatch, record) {
            self.note(&id, record.seq);
        }
    }

    fn open(&mut self, opened: &ThreadOpened, record: &Record) {
        if self.threads.contains_key(&opened.thread) {
            return;
        }
        let thread = Thread {
            opened: opened.clone(),
            archived: false,
            created: record.ts,
            last_activity: record.ts,
            messages: Window::default(),
            first_line: None,
            held_since: 0,
            keys: RedBlackTreeMapSync::default(),
            places: RedBlackTreeMapSync::default(),
            open: BTreeSet::new(),
            tasks: vec![],
            dispatch: None,
            fresh: false,
            heard: false,
            lost: None,
            turns: vec![],
            outbox: Outbox::default(),
            shown: RedBlackTreeMapSync::default(),
            ends: vec![],
            reports: Reports::default(),
            verbosity: None,
            meetings: vec![],
        };
        if let Some(external) = &opened.external {
            let place = place(&opened.adapter, external);
            self.by_external.insert_mut(place, opened.thread.clone());
        }
        self.threads.insert_mut(opened.thread.clone(), Arc::new(thread));
    }

    fn note(&mut self, id: &str, seq: u64) {
        match self.threads.get(id).is_some_and(|thread| thread.is_busy()) {
            true => {
                self.stirred = seq;
                self.busy.insert_mut(id.into());
            }
            false => {
                self.busy.remove_mut(id);
            }
        }
    }
}

/// Returns the key of an adapter's thread. No name of an adapter has a NUL.
fn place(adapter: &str, external: &str) -> String {
    format!("{adapter}\0{external}")
}

/// Whether the turn of a message's prompt has ended. A prompt that was cut by a crash was continued
/// by another prompt, and the turn of that one has ended.
fn is_over(message: &Message, thread: &str, dispatch: &Dispatch) -> bool {
    let prompt = message.prompt(thread).filter(|(of, _)| **of == dispatch.id);
    let state = prompt.and_then(|(_, key)| dispatch.prompt(&key)).map(|prompt| prompt.state);
    matches!(state, Some(PromptState::Done | PromptState::Superseded))
}

impl Thread {
    fn apply(&mut self, event: &Event, record: &Record) {
        let (place, at) = (record.seq, record.ts);
        match event {
            Event::MessageAccepted(accepted) => self.accept(accepted, place, at),
            Event::MessageRecorded(recorded) => {
                self.record(recorded, place, at);
                self.owe_recorded(recorded, place, at);
            }
            Event::PostState(changed) => drop(self.posted(changed)),
            Event::MessageState { message, state, reason, dispatch, .. } => {
                self.set_state(message, *state, reason, dispatch.as_ref());
            }
            Event::ThreadTaskOpened { task, title, role, .. } => self.tasks.push(Task {
                id: task.clone(),
                title: title.clone(),
                state: TaskState::Open,
                role: role.clone(),
                dispatches: vec![],
            }),
            Event::ThreadTaskState { task, state, dispatch, reason, .. } => {
                self.set_task(task, *state, dispatch.as_ref(), reason);
            }
            Event::ThreadArchived { .. } => {
                self.archived = true;
                self.last_activity = at;
            }
            Event::ThreadRole(changed) => {
                self.opened.role = changed.role.clone();
                self.last_activity = at;
            }
            Event::ThreadVerbosity(changed) => self.verbosity = changed.verbosity,
            // `Conversations` has opened the thread with it.
            Event::ThreadOpened(_)
            | Event::AdapterStarted(_)
            | Event::AdapterLost(_)
            | Event::AdapterSetAside(_)
            | Event::AdapterSwitched(_)
            | Event::AdapterSignal(_)
            | Event::StrangerTold(_) => {}
            schedule_events!() => {}
            meeting_events!() => self.apply_meeting(event, record),
            daemon_events!()
            | dispatch_events!()
            | spec_run_events!()
            | task_list_events!()
            | question_events!()
            | Event::Unknown => {}
        }
    }

    /// Adds a message. The first one with its key counts. A message opens an archived thread.
    fn accept(&mut self, accepted: &MessageAccepted, place: u64, at: Timestamp) {
        if self.keys.contains_key(&accepted.key) {
            return;
        }
        self.begin_with(&accepted.text);
        self.keys.insert_mut(accepted.key.clone(), place);
        self.places.insert_mut(accepted.message.clone(), place);
        self.open.insert(place);
        self.archived = false;
        self.last_activity = at;
        self.messages.push(place, Message::accepted(accepted, at));
        if accepted.shown {
            self.owe_elsewhere(accepted, place, at);
        }
    }

    /// Remembers the first line of the first message, which is the title of a thread without one.
    fn begin_with(&mut self, text: &str) {
        if self.messages.is_empty() {
            self.first_line = crate::event::title(None, text);
        }
    }

    /// Takes final messages out of the memory, which the database has.
    fn trim(&mut self, most: usize, bytes: u64, now: u64) {
        let owes = self.opened.external.is_some();
        while let Some(message) = self.messages.pop(most, bytes, owes, now) {
            self.places.remove_mut(&message.id);
            if let Some(key) = &message.key {
                self.keys.remove_mut(key);
            }
        }
    }

    fn record(&mut self, recorded: &MessageRecorded, place: u64, at: Timestamp) {
        if let (Some(dispatch), Some(turn)) = (&recorded.dispatch, recorded.turn) {
            self.turns.retain(|end| end.dispatch != *dispatch || end.turn != turn);
        }
        if let Some(through) = recorded.reports_through {
            self.reports.remove_through(through);
        } else if let (Some(dispatch), None) = (&recorded.dispatch, recorded.turn) {
            self.ends.retain(|end| end != dispatch);
        }
        self.answer_turn(recorded);
        self.last_activity = at;
        self.begin_with(&recorded.text);
        self.places.insert_mut(recorded.message.clone(), place);
        self.messages.push(place, Message::recorded(recorded, at));
    }

    /// Changes the state of an open message. A final state stays.
    fn set_state(&mut self, id: &str, state: State, reason: &str, to: Option<&DispatchId>) {
        if self.set_outbound(id, state, reason) {
            return;
        }
        let open = self.places.get(id).copied().filter(|place| self.open.contains(place));
        let Some(place) = open else { return };
        let Some(message) = self.messages.get(place) else { return };
        let mut message = Message::clone(message);
        message.state = state;
        message.reason = reason.into();
        if let Some(dispatch) = to {
            // The first message of a dispatch for another role has the id of the dispatch.
            let elsewhere = message.delivery.is_none() && dispatch.as_str() == id;
            let first = elsewhere
                || (self.dispatch.as_ref() == Some(dispatch) && std::mem::take(&mut self.fresh));
            // The same dispatch once more: the prompt before was withdrawn.
            let before = message.delivery.take().filter(|before| before.dispatch == *dispatch);
            let withdrawn = before.map_or(0, |before| before.withdrawn + 1);
            message.delivery = Some(Delivery { dispatch: dispatch.clone(), first, withdrawn });
        }
        if matches!(state, State::Delivered | State::Read | State::Answered | State::Unknown)
            && to.is_none()
            && message
                .delivery
                .as_ref()
                .is_some_and(|to| self.dispatch.as_ref() == Some(&to.dispatch))
        {
            self.heard = true;
        }
        if state.is_final() {
            self.open.remove(&place);
            self.end_turn(id, state, reason);
        }
        self.messages.set(place, message);
    }

    /// Changes the state of an outbound message. Returns whether it is one.
    fn set_outbound(&mut self, id: &str, state: State, reason: &str) -> bool {
        self.change_outbound(id, |message| {
            message.state = state;
            message.reason = reason.into();
        })
    }

    /// Notes the place of an outbound message in the outside system.
    pub(super) fn set_reference(&mut self, id: &str, place: &str) {
        self.change_outbound(id, |message| message.external_ref = Some(place.into()));
    }

    fn change_outbound(&mut self, id: &str, change: impl FnOnce(&mut Message)) -> bool {
        let Some(place) = self.places.get(id).copied() else { return false };
        let found = self.messages.get(place).filter(|message| !message.is_inbound());
        let Some(mut message) = found.map(|message| Message::clone(message)) else { return false };
        change(&mut message);
        self.messages.set(place, message);
        true
    }

    fn set_task(
        &mut self,
        id: &str,
        state: TaskState,
        dispatch: Option<&DispatchId>,
        reason: &str,
    ) {
        let Some(task) = self.tasks.iter_mut().find(|task| task.id == id) else { return };
        task.state = state;
        task.dispatches.extend(dispatch.cloned());
        if task.role.is_some() {
            return;
        }
        match (state, dispatch) {
            (_, Some(dispatch)) => {
                self.dispatch = Some(dispatch.clone());
                (self.fresh, self.heard, self.lost) = (true, false, None);
            }
            (TaskState::Open, None) => {
                self.dispatch = None;
                self.fresh = false;
                if std::mem::take(&mut self.heard) {
                    self.lost = Some(reason.into());
                }
            }
            // The thread was archived: a later message continues the session.
            (TaskState::Active | TaskState::Closed | TaskState::Newer, None) => {}
        }
    }
}
