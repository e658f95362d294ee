//! Requests of an agent: the decision who answers, and the delivery of the answer.

use crate::agent::acp_handshake::INTERRUPTED;
use crate::agent::ask::{
    Answer, Ask, AskKind, ID_LIMIT, MOST_OPEN, OURSELVES, Pending, UNATTENDED, Verdict,
};
use crate::agent::event::cut;
use crate::agent::permission::POLICY;
use crate::config::Span;
use crate::dispatch::life::{Effect, waited};
use crate::dispatch::{Dispatch, Phase, Prompt, PromptState, answer_prompt};
use crate::event::{Event, PromptKind};
use jiff::{SignedDuration, Timestamp};
use std::borrow::Cow;

/// Records a request of the agent, with the answer if nobody has to be asked.
pub(super) fn asked(d: &Dispatch, id: &str, ask: &Ask) -> Vec<Event> {
    // An id is returned unchanged, so a request with an id that is too long cannot be answered. No
    // CLI makes such ids.
    if !d.created.can_ask || id.is_empty() || id.len() > ID_LIMIT || d.asks.get(id).is_some() {
        return vec![];
    }
    let deny = |by: &str, text: String, rule| {
        Some(Event::PermissionAnswered {
            request_id: id.into(),
            answer: Verdict::Deny,
            text,
            by: by.into(),
            rule,
            key: String::new(),
            question: false,
        })
    };
    let answer = if ask.kind == AskKind::Other {
        deny(OURSELVES, format!("`{}` is not supported", ask.tool), None)
    } else if let Some(said) = d.created.permissions.decide(ask, d.created.directory()) {
        let text = match said.verdict {
            Verdict::Deny => {
                format!("The policy of this role does not allow this ({}).", said.rule)
            }
            _ => String::new(),
        };
        let rule = Some(said.rule);
        Some(Event::PermissionAnswered {
            request_id: id.into(),
            answer: said.verdict,
            text,
            by: POLICY.into(),
            rule,
            key: String::new(),
            question: false,
        })
    } else if let Some((before, answer)) = answered_before(d, ask) {
        Some(Event::PermissionAnswered {
            request_id: id.into(),
            answer: answer.verdict,
            text: answer.text.clone(),
            by: before.by.clone().unwrap_or_else(|| OURSELVES.into()),
            rule: before.rule.clone(),
            key: String::new(),
            question: false,
        })
    } else if ask.kind == AskKind::Question && is_alone(d) {
        deny(OURSELVES, NOBODY_ANSWERS.into(), Some(UNATTENDED.into()))
    } else if d.asks.open().count() >= MOST_OPEN {
        deny(OURSELVES, format!("Too many open requests: the limit is {MOST_OPEN}."), None)
    } else {
        None
    };
    let (request_id, ask) = (id.to_string(), Box::new(ask.clone()));
    let (answered, question) = (answer.is_some(), answer.is_none());
    let mut events = vec![Event::PermissionRequested { request_id, answered, question, ask }];
    events.extend(answer);
    events
}

/// Returns the answer that an equal request of an earlier process got. Nobody is asked again for
/// what they have answered.
fn answered_before<'a>(d: &'a Dispatch, ask: &Ask) -> Option<(&'a Pending, &'a Answer)> {
    let before = d.asks.answered_before(ask)?;
    Some((before, before.answer.as_ref()?))
}

/// Adds the tool and the subject of the call that the request is about, where the request itself
/// does not give them. Some agents name only the call that they reported before.
pub(super) fn completed<'a>(d: &Dispatch, ask: &'a Ask) -> Cow<'a, Ask> {
    let reported = &d.process().calls.reported;
    let id = ask.call_id.as_ref().map(|id| cut(id, 200));
    let call = id.and_then(|id| reported.iter().rev().find(|call| call.id == id));
    let is_mcp = |tool: &str| tool.starts_with("mcp__");
    match call {
        Some(call) if ask.tool.is_empty() || (is_mcp(&call.tool) && !is_mcp(&ask.tool)) => {
            let mut ask = ask.clone();
            ask.tool.clone_from(&call.tool);
            if ask.target.is_empty() {
                ask.target.clone_from(&call.target);
            }
            Cow::Owned(ask.bound())
        }
        _ => Cow::Borrowed(ask),
    }
}

const NOBODY_ANSWERS: &str = "No person can answer: this work is unattended. Decide yourself, \
    continue, and note the question and your decision in your journal and in your final report.";

/// Whether nobody can answer a question: no person watches, and no agent dispatched it.
fn is_alone(d: &Dispatch) -> bool {
    d.created.unattended_s.is_some() && d.created.parent.is_none()
}

/// Returns the longest time that a request of an unattended agent may wait.
fn patience(d: &Dispatch) -> Option<Span> {
    d.created.unattended_s.map(Span::from_secs)
}

/// Returns the time at which a request that waits since `since` is denied.
fn due(since: Timestamp, patience: Span) -> Option<Timestamp> {
    let seconds = i64::try_from(patience.as_secs()).ok()?;
    since.checked_add(SignedDuration::from_secs(seconds)).ok()
}

/// Denies the requests that an unattended agent has waited for too long.
pub(super) fn overdue(d: &Dispatch, now: Timestamp) -> Vec<Event> {
    let Some(patience) = patience(d).filter(|_| d.waits_for_an_answer()) else { return vec![] };
    let is_over = |since| {
        let longest = patience.as_secs().saturating_mul(1000);
        due(since, patience).is_some_and(|until| waited(until, longest, now))
    };
    let denied = d.asks.unanswered().filter(|pending| is_over(pending.since));
    denied
        .map(|pending| Event::PermissionAnswered {
            request_id: pending.id.clone(),
            answer: Verdict::Deny,
            text: format!(
                "No person answered within {patience}: this work is unattended. Continue without \
                 it, or in a way that needs no answer, and note in your journal and in your final \
                 report what you left out."
            ),
            by: OURSELVES.into(),
            rule: Some(UNATTENDED.into()),
            key: String::new(),
            question: true,
        })
        .collect()
}

/// Returns a wake-up at the time when the next request is denied.
pub(super) fn wakes(d: &Dispatch) -> Option<Effect> {
    let patience = patience(d).filter(|_| d.waits_for_an_answer())?;
    let next = d.asks.unanswered().filter_map(|pending| due(pending.since, patience)).min()?;
    Some(Effect::WakeAt(next))
}

/// Closes a request that the agent withdrew before an answer.
pub(super) fn withdrawn(d: &Dispatch, id: &str) -> Vec<Event> {
    match d.asks.get(id) {
        Some(pending) if pending.answer.is_none() => {
            vec![Event::PermissionClosed { request_id: id.into() }]
        }
        _ => vec![],
    }
}

/// Records an answer. The first answer counts. All requests that are one question get it. If the
/// process that asked is gone and the next one is at work already, a prompt tells it the answer.
pub(super) fn answered(
    d: &Dispatch,
    id: String,
    answer: Answer,
    by: String,
    key: String,
) -> Vec<Event> {
    let asked = d.asks.unanswered().find(|pending| pending.id == id);
    let Some(asked) = asked.filter(|_| d.takes_answers()) else { return vec![] };
    let Answer { verdict, text } = answer;
    let same = d.asks.unanswered().filter(|pending| pending.question == asked.question);
    let mut key = Some(key);
    let mut events: Vec<_> = same
        .map(|pending| Event::PermissionAnswered {
            request_id: pending.id.clone(),
            answer: verdict,
            text: text.clone(),
            by: by.clone(),
            rule: None,
            key: key.take().unwrap_or_default(),
            question: true,
        })
        .collect();
    let is_left = d.asks.left().any(|left| left.question == asked.question);
    let continues = |prompt: &Prompt| {
        prompt.kind == PromptKind::Continue && prompt.state == PromptState::Queued
    };
    let is_late = matches!(d.phase, Phase::Working { .. })
        && d.created.resumable
        && !d.asks.held
        && !d.prompts.iter().any(continues);
    if is_left && is_late {
        let key = answer_prompt(&d.id, &asked.question);
        events.push(Event::PromptQueued { key, kind: PromptKind::Send, by, trace: None });
    }
    events
}

/// Records that the shim has written the answer to a request.
pub(super) fn delivered(d: &Dispatch, id: &str) -> Option<Event> {
    // The answers of the policy are no questions, and need no record.
    let counts = |pending: &Pending| {
        !pending.silent || d.asks.left().any(|left| left.question == pending.question)
    };
    let pending = d.asks.get(id).filter(|pending| pending.owes_delivery());
    pending.is_some_and(counts).then(|| Event::AnswerDelivered { request_id: id.into() })
}

/// Whether the process of a dispatch may be ended while it waits for an answer: the session can be
/// resumed, and everything that it was given is known to have arrived.
pub fn can_be_held(d: &Dispatch) -> bool {
    d.created.hold_s.is_some()
        && d.created.resumable
        && d.session.id.is_some()
        && d.holds_for_an_answer()
        && d.only_waits()
        && !d.asks.held
        && !d.has_unheard()
        && d.process().interrupt.is_none()
}

/// Denies all open requests, because they would block an interrupt.
pub(super) fn cancelled(d: &Dispatch) -> Vec<Event> {
    let denied = d.asks.open().map(|pending| Event::PermissionAnswered {
        request_id: pending.id.clone(),
        answer: Verdict::Deny,
        text: INTERRUPTED.into(),
        by: OURSELVES.into(),
        rule: None,
        key: String::new(),
        question: false,
    });
    denied.collect()
}

/// Returns an effect for every answer that the agent may not have received.
pub(super) fn effects(d: &Dispatch) -> impl Iterator<Item = Effect> {
    let working = matches!(d.phase, Phase::Working { .. });
    d.asks
        .answered()
        .filter(move |(pending, _)| working && !pending.delivered)
        .map(|(pending, _)| Effect::Answer { id: pending.id.clone() })
}
