//! The requests of one dispatch, from the request to the agent that has the answer.
//!
//! ```text
//!         PermissionRequested        PermissionAnswered         its call or turn ended
//!  (none) ──────────────────▶ open ────────────────────▶ answered ──────────────▶ (none)
//!                              │                            │
//!                              │ its process ended          │ its process ended, and the shim had
//!                              ▼                            ▼ not written the answer
//!                             left ────────────────────▶ left, answered ─┬─▶ told in a prompt
//!                              │     PermissionAnswered                  └─▶ asked for again, and
//!                              └─▶ open: the next process asks the same      answered at once
//! ```
//!
//! `PermissionClosed` (the agent withdrew it) and the end of the dispatch end every request. An
//! answer is durable before it is sent, and is sent again until the shim has written it.

use crate::agent::ask::{Answer, Ask, MOST_ANSWERED, Verdict};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The requests of one dispatch.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Asks {
    /// The requests of the process that runs.
    list: Vec<Pending>,
    /// The requests of processes that are gone. Each waits for its answer, or for a process that
    /// takes the answer.
    left: Vec<Pending>,
    /// The newest keys of clients' answers, each with the request that it answered and the verdict.
    heard: VecDeque<(String, String, Verdict)>,
    /// Its process is being ended, or is gone, because nobody answered within the hold.
    pub held: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pending {
    pub id: String,
    pub ask: Ask,
    pub since: Timestamp,
    pub answer: Option<Answer>,
    /// The key of the question that this request is. A request that repeats another one, also one
    /// of an earlier process, is the same question.
    pub question: String,
    /// The author of the answer.
    pub by: Option<String>,
    /// The rule that gave the answer.
    pub rule: Option<String>,
    /// It was answered as it was made, so that nobody had to be asked.
    pub silent: bool,
    /// An agent has the answer.
    pub delivered: bool,
    /// The prompt that tells a successor of the process the answer.
    pub told_in: Option<String>,
}

impl Pending {
    /// Whether its answer has to reach an agent yet.
    pub fn owes_delivery(&self) -> bool {
        self.answer.is_some() && !self.delivered
    }
}

impl Asks {
    /// Whether there is no request, open or answered.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty() && self.left.is_empty()
    }

    /// All requests: those of the process that runs, then those of processes that are gone.
    pub fn all(&self) -> impl Iterator<Item = &Pending> {
        self.list.iter().chain(&self.left)
    }

    /// The requests of the process that runs which have no answer, oldest first.
    pub fn open(&self) -> impl Iterator<Item = &Pending> {
        self.list.iter().filter(|pending| pending.answer.is_none())
    }

    /// All requests without an answer, also those of processes that are gone.
    pub fn unanswered(&self) -> impl Iterator<Item = &Pending> {
        self.all().filter(|pending| pending.answer.is_none())
    }

    /// The answered requests of the process that runs; the agent may or may not have received the
    /// answer.
    pub fn answered(&self) -> impl Iterator<Item = (&Pending, &Answer)> {
        self.list.iter().filter_map(|pending| Some((pending, pending.answer.as_ref()?)))
    }

    /// The requests of processes that are gone.
    pub fn left(&self) -> impl Iterator<Item = &Pending> {
        self.left.iter()
    }

    pub fn get(&self, id: &str) -> Option<&Pending> {
        self.list.iter().find(|pending| pending.id == id)
    }

    /// Returns the answer that an earlier process's equal request got.
    pub fn answered_before(&self, ask: &Ask) -> Option<&Pending> {
        self.left.iter().find(|pending| pending.answer.is_some() && pending.ask.is_like(ask))
    }

    /// Adds a request. `question` is the key of its question, if it is a new one.
    pub(crate) fn request(
        &mut self,
        id: &str,
        ask: &Ask,
        at: Timestamp,
        silent: bool,
        question: &str,
    ) {
        if self.get(id).is_some() {
            return;
        }
        // A new process counts its requests anew, so its ids may be those of an earlier one.
        for left in self.left.iter_mut().filter(|left| left.id == id) {
            left.id.clone_from(&left.question);
        }
        let mut pending = Pending {
            id: id.into(),
            ask: ask.clone(),
            since: at,
            answer: None,
            question: question.into(),
            by: None,
            rule: None,
            silent,
            delivered: false,
            told_in: None,
        };
        if let Some(same) = self.unanswered().find(|same| same.ask.is_like(ask)) {
            pending.question.clone_from(&same.question);
            pending.since = same.since;
            pending.silent = same.silent;
        } else if let Some(before) = self.answered_before(ask) {
            // Its answer is the one before. The earlier request stands for the question.
            pending.question.clone_from(&before.question);
        }
        // The process that runs waits for it now.
        let key = pending.question.clone();
        self.left.retain(|left| left.answer.is_some() || left.question != key);
        self.list.push(pending);
    }

    pub(crate) fn answer(&mut self, id: &str, answer: Answer, by: &str, rule: Option<&String>) {
        let of = |pending: &&mut Pending| pending.id == id && pending.answer.is_none();
        let mut all = self.list.iter_mut().chain(&mut self.left);
        if let Some(pending) = all.find(of) {
            pending.answer = Some(answer);
            pending.by = Some(by.into());
            pending.rule = rule.cloned();
        }
        let over = self.answered().count().saturating_sub(MOST_ANSWERED);
        for _ in 0..over {
            if let Some(oldest) = self.list.iter().position(|pending| pending.answer.is_some()) {
                self.list.remove(oldest);
            }
        }
    }

    /// Records that the shim has written the answer to the process that runs.
    pub(crate) fn delivered(&mut self, id: &str) {
        let of = |pending: &&Pending| pending.id == id && pending.answer.is_some();
        let Some(question) = self.list.iter().find(of).map(|found| found.question.clone()) else {
            return;
        };
        let same =
            |pending: &&mut Pending| pending.question == question && pending.answer.is_some();
        let all = self.list.iter_mut().chain(&mut self.left);
        all.filter(same).for_each(|pending| pending.delivered = true);
    }

    /// Records that a prompt tells the successor all answers that no agent has.
    pub(crate) fn told_in(&mut self, key: &str) {
        let owed = |left: &&mut Pending| left.owes_delivery() && left.told_in.is_none();
        self.left.iter_mut().filter(owed).for_each(|left| left.told_in = Some(key.into()));
    }

    /// Records that an agent has the prompt with this key, and with it the answers in it.
    pub(crate) fn prompt_taken(&mut self, key: &str) {
        let told = |left: &&mut Pending| left.told_in.as_deref() == Some(key);
        self.left.iter_mut().filter(told).for_each(|left| left.delivered = true);
    }

    /// Returns the request that the client's answer with this key answered, and the verdict. The
    /// client may repeat its request long after the agent has continued.
    pub fn by_key(&self, key: &str) -> Option<(&str, Verdict)> {
        let found = self.heard.iter().find(|(known, ..)| known == key && !key.is_empty());
        found.map(|(_, id, verdict)| (id.as_str(), *verdict))
    }

    pub(crate) fn heard(&mut self, key: &str, id: &str, verdict: Verdict) {
        if !key.is_empty() {
            self.heard.push_back((key.into(), id.into(), verdict));
            while self.heard.len() > MOST_ANSWERED {
                self.heard.pop_front();
            }
        }
    }

    pub(crate) fn close(&mut self, id: &str) {
        self.list.retain(|pending| pending.id != id);
    }

    /// Removes the requests about a call that has ended.
    pub(crate) fn call_ended(&mut self, call_id: &str) {
        self.list.retain(|pending| pending.ask.call_id.as_deref() != Some(call_id));
    }

    /// Records that the process is gone. Its successor gets the answers that nobody has.
    pub(crate) fn process_ended(&mut self) {
        for pending in std::mem::take(&mut self.list) {
            let is_known = self.left.iter().any(|left| left.question == pending.question);
            if !pending.silent && !pending.delivered && !is_known {
                self.left.push(pending);
            }
        }
    }

    /// Forgets the requests of the turn that has ended. Answers that are on their way stay.
    pub(crate) fn turn_ended(&mut self) {
        self.list.clear();
        self.left.retain(Pending::owes_delivery);
        self.held = false;
    }

    /// Forgets all requests.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.left.clear();
        self.held = false;
    }
}
