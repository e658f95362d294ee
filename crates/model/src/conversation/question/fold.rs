//! All questions, folded from the events.

use crate::agent::ask::{OURSELVES, UNATTENDED};
use crate::dispatch::{Dispatch, Phase};
use crate::event::id::{self, DispatchId, Unfound};
use crate::event::{Event, Record};
use crate::question::entity::{answer_of, is_for_people};
use crate::question::event::{AnsweredBy, State};
use crate::question::{MOST_CLOSED, Question};
use crate::{daemon_events, dispatch_events, spec_run_events, task_list_events, thread_events};
use jiff::Timestamp;
use rpds::{RedBlackTreeMapSync, RedBlackTreeSetSync};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The questions of all dispatches, runs and threads.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Questions {
    all: RedBlackTreeMapSync<String, Arc<Question>>,
    /// The questions without an answer.
    open: RedBlackTreeSetSync<String>,
    /// The questions that are no requests of agents' CLIs and whose state may change.
    unsettled: RedBlackTreeSetSync<String>,
    /// The questions of agents' CLIs by dispatch, until the dispatch forgets the request.
    of_dispatches: RedBlackTreeMapSync<DispatchId, Vec<String>>,
    /// The closed ones by the record that closed them; only the newest are kept.
    closed: RedBlackTreeMapSync<u64, Vec<String>>,
    closed_count: usize,
    /// The sequence number of the newest record that changed a question.
    stirred: u64,
    /// The questions that the record at hand changed.
    #[serde(skip)]
    changed: Vec<Arc<Question>>,
}

/// The reason why a prefix names no question.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    #[error("no question `{0}`")]
    Unknown(String),
    #[error("`{prefix}` matches {} questions: {}", .ids.len(), .ids.join(", "))]
    Ambiguous { prefix: String, ids: Vec<String> },
}

impl Questions {
    pub fn get(&self, id: &str) -> Option<&Question> {
        self.all.get(id).map(|question| &**question)
    }

    /// All questions, by their ids.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Question>> {
        self.all.values()
    }

    /// The questions without an answer.
    pub fn open(&self) -> impl Iterator<Item = &Arc<Question>> {
        self.open.iter().filter_map(|id| self.all.get(id))
    }

    /// The questions that are no requests of agents' CLIs and whose state may change.
    pub fn unsettled(&self) -> impl Iterator<Item = &Arc<Question>> {
        self.unsettled.iter().filter_map(|id| self.all.get(id))
    }

    /// The sequence number of the newest record that changed a question.
    pub fn stirred(&self) -> u64 {
        self.stirred
    }

    /// Returns the newest question about a subject.
    pub fn of_subject(&self, subject: &str) -> Option<&Question> {
        let about = |question: &&Arc<Question>| question.subject == subject;
        let found = self.all.values().filter(about).max_by_key(|question| question.asked_at);
        found.map(|question| &**question)
    }

    /// Returns the question of a dispatch that a request of its CLI became.
    pub fn of_request(&self, dispatch: &DispatchId, request: &str) -> Option<&Question> {
        let live = self.of_dispatches.get(dispatch)?;
        live.iter()
            .filter_map(|id| self.get(id))
            .find(|question| question.request.as_deref() == Some(request))
    }

    /// The questions of a thread, oldest first.
    pub fn of_thread(&self, thread: &str) -> Vec<&Arc<Question>> {
        let of = |question: &&Arc<Question>| question.is_in(thread);
        let mut found: Vec<_> = self.all.values().filter(of).collect();
        found.sort_by_key(|question| (question.asked_at, question.id.clone()));
        found
    }

    /// Returns the question of a thread that the request with this key answered.
    pub fn answered_with(&self, thread: &str, key: &str) -> Option<&Arc<Question>> {
        let mut all = self.all.values().filter(|_| !key.is_empty());
        all.find(|question| question.key == key && question.is_in(thread))
    }

    /// The open questions of a thread, oldest first.
    pub fn open_of(&self, thread: &str) -> Vec<&Arc<Question>> {
        let of = |question: &&Arc<Question>| question.is_in(thread);
        let mut found: Vec<_> = self.open().filter(of).collect();
        found.sort_by_key(|question| (question.asked_at, question.id.clone()));
        found
    }

    /// Returns the number of open questions of a thread.
    pub fn open_in(&self, thread: &str) -> usize {
        self.open().filter(|question| question.is_in(thread)).count()
    }

    /// Finds the one question whose id begins with `prefix`.
    ///
    /// # Errors
    /// When no id fits, or more than one.
    pub fn find(&self, prefix: &str) -> Result<&Arc<Question>, LookupError> {
        let all = self.all.iter().map(|(id, question)| (id.as_str(), question));
        id::by_beginning(all, prefix).map_err(|unfound| match unfound {
            Unfound::Unknown => LookupError::Unknown(prefix.into()),
            Unfound::Ambiguous(ids) => LookupError::Ambiguous { prefix: prefix.into(), ids },
        })
    }

    /// Takes the questions that changed since the last call, in the order of the changes.
    pub(crate) fn take_changed(&mut self) -> Vec<Arc<Question>> {
        std::mem::take(&mut self.changed)
    }

    /// Folds an event of a question in.
    pub fn apply(&mut self, record: &Record) {
        match &record.entry.event {
            Event::QuestionAsked(asked) if !self.all.contains_key(&asked.question) => {
                self.put(Question::of_event(asked, record.ts), record.seq);
            }
            Event::QuestionAnswered(answered) => {
                let Some(mut question) = self.get(&answered.question).cloned() else { return };
                if !question.is_open() {
                    return;
                }
                question.state = State::Answered;
                question.answer = Some(answered.answer.clone());
                question.answered_at = Some(record.ts);
                question.answered_by = Some(answered.by.clone());
                question.key.clone_from(&answered.key);
                self.put(question, record.seq);
            }
            Event::QuestionState { question, state, reason } => {
                let Some(mut question) = self.get(question).cloned() else { return };
                if question.state == State::Expired && question.is_unsettled() {
                    question.carried_out = true;
                    if *state == State::Undeliverable {
                        question.reason = format!("{}; {reason}", question.reason);
                    }
                    return self.put(question, record.seq);
                }
                if question.state.is_final() || *state == State::Open {
                    return;
                }
                if *state == State::Expired {
                    question.answer = question.default_answer();
                    question.answered_at = Some(record.ts);
                    question.answered_by = Some(AnsweredBy::of(OURSELVES));
                }
                question.state = *state;
                question.reason.clone_from(reason);
                self.put(question, record.seq);
            }
            // The question is known already.
            Event::QuestionAsked(_) => {}
            // Requests of agents' CLIs are followed with their dispatch.
            dispatch_events!()
            | daemon_events!()
            | spec_run_events!()
            | task_list_events!()
            | thread_events!()
            | Event::Unknown => {}
        }
    }

    /// Follows an event of a dispatch, which has it folded in already: its requests are questions.
    pub fn follow(&mut self, dispatch: &Dispatch, record: &Record) {
        let live = self.of_dispatches.get(&dispatch.id).cloned().unwrap_or_default();
        if live.is_empty() && dispatch.asks.is_empty() {
            return;
        }
        let mut present = vec![];
        for pending in dispatch.asks.all().filter(|pending| is_for_people(pending)) {
            let known = live.iter().filter_map(|id| self.get(id));
            let known = known
                .into_iter()
                .find(|question| question.request.as_deref() == Some(pending.question.as_str()));
            let before = known.cloned();
            let mut question = before.clone().unwrap_or_else(|| {
                Question::of_request(&self.free_id(&pending.question), pending, dispatch)
            });
            present.push(question.id.clone());
            if question.is_open() && pending.answer.is_some() {
                answer(&mut question, pending, record.ts);
                if let Event::PermissionAnswered { request_id, key, .. } = &record.entry.event
                    && *request_id == pending.id
                {
                    question.key.clone_from(key);
                }
            }
            if question.state == State::Answered && pending.delivered {
                question.state = State::Delivered;
            }
            if before.as_ref() != Some(&question) {
                self.put(question, record.seq);
            }
        }
        for id in live.iter().filter(|id| !present.contains(id)) {
            let Some(mut question) = self.get(id).cloned() else { continue };
            if !question.state.is_final() {
                (question.state, question.reason) = end(&question, dispatch);
                self.put(question, record.seq);
            }
        }
        match present.is_empty() {
            true => {
                self.of_dispatches.remove_mut(&dispatch.id);
            }
            false => self.of_dispatches.insert_mut(dispatch.id.clone(), present),
        }
    }

    /// Returns the id of the question that a request becomes. It never is the agent's own id of the
    /// request: an agent could choose the id of a dispatch, and so get the answer meant for that.
    fn free_id(&self, question: &str) -> String {
        let mut id = question.to_string();
        while self.all.contains_key(&id) {
            id.push('2');
        }
        id
    }

    fn put(&mut self, question: Question, seq: u64) {
        let id = question.id.clone();
        self.stirred = seq;
        match question.is_open() {
            true => self.open.insert_mut(id.clone()),
            false => {
                self.open.remove_mut(&id);
            }
        }
        match question.is_unsettled() {
            true => self.unsettled.insert_mut(id.clone()),
            false => {
                self.unsettled.remove_mut(&id);
            }
        }
        if let (Some(dispatch), true) = (&question.dispatch, question.request.is_some()) {
            let mut live = self.of_dispatches.get(dispatch).cloned().unwrap_or_default();
            if !live.contains(&id) {
                live.push(id.clone());
                self.of_dispatches.insert_mut(dispatch.clone(), live);
            }
        }
        if question.state.is_final() && !self.get(&id).is_some_and(|known| known.state.is_final()) {
            self.close(seq, &id);
        }
        let question = Arc::new(question);
        self.changed.push(question.clone());
        self.all.insert_mut(id, question);
    }

    /// Notes that a question is closed.
    fn close(&mut self, seq: u64, id: &str) {
        let mut closed = self.closed.get(&seq).cloned().unwrap_or_default();
        closed.push(id.into());
        self.closed.insert_mut(seq, closed);
        self.closed_count += 1;
    }

    /// Forgets the questions that were closed longest ago, beyond a limit. `is_needed` tells for a
    /// question whether it would be asked again without it. One whose request its dispatch still
    /// has stays too, because the request would become a new question.
    pub fn forget_old(&mut self, is_needed: impl Fn(&Question) -> bool) {
        while self.closed_count > MOST_CLOSED {
            let is_gone = |id: &&String| {
                self.get(id).is_none_or(|question| {
                    !question.is_unsettled() && !self.is_followed(question) && !is_needed(question)
                })
            };
            let oldest = self.closed.iter().find_map(|(seq, ids)| {
                let gone: Vec<_> = ids.iter().filter(is_gone).cloned().collect();
                (!gone.is_empty()).then_some((*seq, gone))
            });
            let Some((seq, gone)) = oldest else { return };
            self.drop_closed(seq, &gone);
        }
    }

    /// Forgets the questions that followed from removed events only: the requests of dispatches
    /// whose events are gone. All of them are closed. `seq` is the record of the removal.
    pub fn forget_removed(
        &mut self,
        through: u64,
        seq: u64,
        is_kept: impl Fn(&DispatchId) -> bool,
    ) {
        let is_gone = |id: &&String| {
            self.get(id).is_some_and(|question| {
                let dispatch = question.dispatch.as_ref().filter(|_| question.request.is_some());
                dispatch.is_some_and(|id| !is_kept(id))
            })
        };
        let removed: Vec<(u64, Vec<String>)> = self
            .closed
            .iter()
            .take_while(|(closed, _)| **closed <= through)
            .map(|(closed, ids)| (*closed, ids.iter().filter(is_gone).cloned().collect()))
            .collect();
        removed.iter().for_each(|(closed, ids)| self.drop_closed(*closed, ids));
        // Of both folds, whether or not they had the events.
        self.stirred = seq;
    }

    /// Drops some of the questions that a record closed.
    fn drop_closed(&mut self, seq: u64, gone: &[String]) {
        let Some(mut ids) = self.closed.get(&seq).cloned() else { return };
        ids.retain(|id| !gone.contains(id));
        self.closed_count = self.closed_count.saturating_sub(gone.len());
        match ids.is_empty() {
            true => {
                self.closed.remove_mut(&seq);
            }
            false => self.closed.insert_mut(seq, ids),
        }
        gone.iter().for_each(|id| {
            self.all.remove_mut(id);
        });
    }

    /// Whether a dispatch still has the request that a question is.
    fn is_followed(&self, question: &Question) -> bool {
        let live = question.dispatch.as_ref().and_then(|id| self.of_dispatches.get(id));
        live.is_some_and(|live| live.contains(&question.id))
    }
}

/// Records the answer to a request.
fn answer(question: &mut Question, pending: &crate::agent::ask::Pending, at: Timestamp) {
    let by = pending.by.as_deref().unwrap_or(OURSELVES);
    question.state = match (by, pending.rule.as_deref()) {
        (OURSELVES, Some(UNATTENDED)) => State::Expired,
        _ => State::Answered,
    };
    question.answer = answer_of(pending);
    question.answered_at = Some(at);
    question.answered_by = Some(AnsweredBy::of(by));
}

/// Returns the last state of a question whose request is gone, with the reason.
fn end(question: &Question, dispatch: &Dispatch) -> (State, String) {
    let ended = matches!(dispatch.phase, Phase::Closing { .. } | Phase::Finished { .. });
    let reason = match (ended, dispatch.reason.as_deref().filter(|reason| !reason.is_empty())) {
        (true, Some(reason)) => format!("its agent ended: {reason}"),
        (true, None) => "its agent ended".to_string(),
        (false, _) => "the agent continued without the answer".to_string(),
    };
    match question.state {
        State::Open => (State::Withdrawn, reason),
        // The turn went on, so the agent has the answer.
        State::Answered if !ended => (State::Delivered, String::new()),
        State::Answered => (State::Undeliverable, reason),
        state => (state, question.reason.clone()),
    }
}
