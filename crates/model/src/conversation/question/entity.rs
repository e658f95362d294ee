//! The state of one question.

use crate::agent::ask::{Ask, AskKind, Pending, Verdict};
use crate::agent::permission::POLICY;
use crate::dispatch::Dispatch;
use crate::event::id::DispatchId;
use crate::question::event::{Answer, AnsweredBy, Choice, Kind, QuestionAsked, State};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The options of a request for permission that offers none of its own.
pub const ALLOW: &str = "allow";
pub const DENY: &str = "deny";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Question {
    pub id: String,
    pub kind: Kind,
    pub state: State,
    pub dispatch: Option<DispatchId>,
    pub thread: Option<String>,
    /// See [`QuestionAsked::shown_in`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shown_in: Vec<String>,
    pub asked_by: String,
    pub text: String,
    pub options: Vec<Choice>,
    pub multi: bool,
    pub free_text: bool,
    pub detail: Value,
    pub default: Option<String>,
    pub deadline: Option<Timestamp>,
    pub asked_at: Timestamp,
    pub answered_at: Option<Timestamp>,
    pub answered_by: Option<AnsweredBy>,
    pub answer: Option<Answer>,
    /// Why it is in this state; may be empty.
    pub reason: String,
    /// The key of the request of an agent's CLI; `None` for all other questions.
    pub request: Option<String>,
    /// See [`QuestionAsked::subject`].
    pub subject: String,
    /// The key of the client's request that answered it; may be empty.
    pub key: String,
    /// The effect of its default was carried out, or cannot be.
    #[serde(default)]
    pub carried_out: bool,
}

impl Question {
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// The threads in which it is shown.
    pub fn threads(&self) -> impl Iterator<Item = &str> {
        self.thread.iter().chain(&self.shown_in).map(String::as_str)
    }

    /// Whether it is shown in this thread.
    pub fn is_in(&self, thread: &str) -> bool {
        self.threads().any(|shown| shown == thread)
    }

    /// Returns the event that asked it.
    pub fn as_asked(&self) -> QuestionAsked {
        QuestionAsked {
            question: self.id.clone(),
            kind: self.kind,
            text: self.text.clone(),
            options: self.options.clone(),
            multi: self.multi,
            free_text: self.free_text,
            detail: self.detail.clone(),
            default: self.default.clone(),
            deadline: self.deadline,
            thread: self.thread.clone(),
            shown_in: self.shown_in.clone(),
            dispatch: self.dispatch.clone(),
            asked_by: self.asked_by.clone(),
            subject: self.subject.clone(),
        }
    }

    /// Whether a text in a conversation may be its answer. A text that answers a request for
    /// permission is a denial, and one that answers a plan changes a run, so they have to be given
    /// on purpose.
    pub fn takes_text(&self) -> bool {
        match self.kind {
            Kind::Question => self.free_text,
            Kind::Permission
            | Kind::Approval
            | Kind::Plan
            | Kind::SignOff
            | Kind::Stall
            | Kind::Newer => false,
        }
    }

    /// Whether it is no request of an agent's CLI and something follows yet: its answer, or the
    /// default that was taken at its deadline, has not reached its agent. The runs and plans take
    /// their answers themselves.
    pub fn is_unsettled(&self) -> bool {
        let has_effect = match self.kind {
            Kind::Question | Kind::Permission | Kind::Stall | Kind::SignOff => true,
            Kind::Approval | Kind::Plan | Kind::Newer => false,
        };
        let owes_default = self.state == State::Expired && has_effect && !self.carried_out;
        self.request.is_none() && (!self.state.is_final() || owes_default)
    }

    /// Whether only a person may answer it: no agent approves the work of agents.
    pub fn is_for_people(&self) -> bool {
        match self.kind {
            Kind::Approval | Kind::Plan | Kind::SignOff => true,
            Kind::Question | Kind::Permission | Kind::Stall | Kind::Newer => false,
        }
    }

    /// Returns the answer that its default stands for.
    pub fn default_answer(&self) -> Option<Answer> {
        let default = self.default.as_deref()?;
        Some(match self.options.iter().any(|option| option.id == default) {
            true => Answer::option(default),
            false => Answer::text(default),
        })
    }

    /// Returns the question of an event.
    pub(super) fn of_event(asked: &QuestionAsked, at: Timestamp) -> Self {
        Self {
            id: asked.question.clone(),
            kind: asked.kind,
            state: State::Open,
            dispatch: asked.dispatch.clone(),
            thread: asked.thread.clone(),
            shown_in: asked.shown_in.clone(),
            asked_by: asked.asked_by.clone(),
            text: asked.text.clone(),
            options: asked.options.clone(),
            multi: asked.multi,
            free_text: asked.free_text,
            detail: asked.detail.clone(),
            default: asked.default.clone(),
            deadline: asked.deadline,
            asked_at: at,
            answered_at: None,
            answered_by: None,
            answer: None,
            reason: String::new(),
            request: None,
            subject: asked.subject.clone(),
            key: String::new(),
            carried_out: false,
        }
    }

    /// Returns the question that a request of an agent's CLI is.
    pub(super) fn of_request(id: &str, pending: &Pending, dispatch: &Dispatch) -> Self {
        let ask = &pending.ask;
        let kind = match ask.kind {
            AskKind::Question => Kind::Question,
            AskKind::Permission | AskKind::Other => Kind::Permission,
        };
        let patience = dispatch.created.unattended_s.and_then(|seconds| {
            let seconds = i64::try_from(seconds).ok()?;
            pending.since.checked_add(SignedDuration::from_secs(seconds)).ok()
        });
        Self {
            id: id.into(),
            kind,
            state: State::Open,
            dispatch: Some(dispatch.id.clone()),
            thread: dispatch.created.thread().map(String::from),
            shown_in: vec![],
            asked_by: dispatch.created.role.clone(),
            text: text(ask),
            options: options(ask),
            multi: false,
            free_text: true,
            detail: detail(ask),
            // Nobody watches an unattended agent, so its request is denied in time.
            default: patience.map(|_| DENY.into()),
            deadline: patience,
            asked_at: pending.since,
            answered_at: None,
            answered_by: None,
            answer: None,
            reason: String::new(),
            request: Some(pending.question.clone()),
            subject: String::new(),
            key: String::new(),
            carried_out: false,
        }
    }
}

fn text(ask: &Ask) -> String {
    match ask.kind {
        AskKind::Question if !ask.text.is_empty() => ask.text.clone(),
        AskKind::Question | AskKind::Permission | AskKind::Other => ask.describe(),
    }
}

fn options(ask: &Ask) -> Vec<Choice> {
    let offered = ask.options.iter().map(|option| Choice {
        id: option.id.clone(),
        label: option.name.clone(),
        description: option.kind.clone().unwrap_or_default(),
    });
    match ask.kind {
        AskKind::Permission | AskKind::Other if ask.options.is_empty() => {
            vec![Choice::new(ALLOW, ""), Choice::new(DENY, "")]
        }
        AskKind::Permission | AskKind::Other | AskKind::Question => offered.collect(),
    }
}

fn detail(ask: &Ask) -> Value {
    match ask.kind {
        AskKind::Question => json!({}),
        AskKind::Permission | AskKind::Other => json!({
            "tool": ask.tool,
            "target": ask.target,
            "input": ask.input,
            "input_cut": ask.input_cut,
            "text": ask.text,
        }),
    }
}

/// Returns the answer to a request in the form of a question's answer.
pub(super) fn answer_of(pending: &Pending) -> Option<Answer> {
    let answer = pending.answer.as_ref()?;
    Some(match answer.verdict {
        Verdict::Allow => Answer { options: vec![ALLOW.into()], text: answer.text.clone() },
        Verdict::Deny => Answer { options: vec![DENY.into()], text: answer.text.clone() },
        Verdict::Text if pending.ask.option(&answer.text).is_some() => Answer::option(&answer.text),
        Verdict::Text => Answer::text(&answer.text),
    })
}

/// Whether people saw a request: the policy did not answer it at once.
pub(super) fn is_for_people(pending: &Pending) -> bool {
    !pending.silent && pending.by.as_deref() != Some(POLICY)
}
