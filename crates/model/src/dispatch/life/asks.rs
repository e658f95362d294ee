//! What an agent asks: who answers, and that it hears the answer.

use crate::agent::acp_handshake::INTERRUPTED;
use crate::agent::ask::{
    Answer, Ask, AskKind, ID_LIMIT, MOST_OPEN, OURSELVES, UNATTENDED, Verdict,
};
use crate::agent::permission::POLICY;
use crate::config::Span;
use crate::dispatch::life::{Effect, waited};
use crate::dispatch::{Dispatch, Phase};
use crate::event::Event;
use jiff::{SignedDuration, Timestamp};

/// The agent asks something: recorded, and answered at once where nobody has to be asked.
pub(super) fn asked(d: &Dispatch, id: &str, ask: &Ask) -> Vec<Event> {
    // An id goes back as it came, so one that is too long cannot be answered; no CLI makes such.
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
        })
    };
    let answer = if ask.kind == AskKind::Other {
        deny(OURSELVES, format!("`{}` is not known here", ask.tool), None)
    } else if let Some(said) = d.created.permissions.decide(ask, d.created.directory()) {
        let text = match said.verdict {
            Verdict::Deny => format!("The policy of this role does not allow it ({}).", said.rule),
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
        })
    } else if ask.kind == AskKind::Question && is_alone(d) {
        deny(OURSELVES, NOBODY_ANSWERS.into(), Some(UNATTENDED.into()))
    } else if d.asks.open().count() >= MOST_OPEN {
        deny(OURSELVES, format!("{MOST_OPEN} requests are waiting for an answer already."), None)
    } else {
        None
    };
    let (request_id, ask) = (id.to_string(), Box::new(ask.clone()));
    let mut events =
        vec![Event::PermissionRequested { request_id, answered: answer.is_some(), ask }];
    events.extend(answer);
    events
}

const NOBODY_ANSWERS: &str = "Nobody is here to answer: this work is unattended. Decide by yourself, go on, and note the \
                              question and your decision in your journal and in your final report.";

/// Nobody is there whom it could ask: no person watches, and no agent dispatched it.
fn is_alone(d: &Dispatch) -> bool {
    d.created.unattended_s.is_some() && d.created.parent.is_none()
}

/// How long what an unattended agent asks may wait.
fn patience(d: &Dispatch) -> Option<Span> {
    d.created.unattended_s.map(Span::from_secs)
}

/// When an ask that has waited since then is denied, if it ever is.
fn due(since: Timestamp, patience: Span) -> Option<Timestamp> {
    let seconds = i64::try_from(patience.as_secs()).ok()?;
    since.checked_add(SignedDuration::from_secs(seconds)).ok()
}

/// Denies what an unattended agent has waited for too long.
pub(super) fn overdue(d: &Dispatch, now: Timestamp) -> Vec<Event> {
    let Some(patience) = patience(d).filter(|_| d.waits_for_an_answer()) else { return vec![] };
    let is_over = |since| {
        let longest = patience.as_secs().saturating_mul(1000);
        due(since, patience).is_some_and(|until| waited(until, longest, now))
    };
    let denied = d.asks.open().filter(|pending| is_over(pending.since));
    denied
        .map(|pending| Event::PermissionAnswered {
            request_id: pending.id.clone(),
            answer: Verdict::Deny,
            text: format!(
                "Nobody has answered for {patience}: this work is unattended. Go on without it, or in a way that needs \
                 no answer, and note in your journal and in your final report what you left out."
            ),
            by: OURSELVES.into(),
            rule: Some(UNATTENDED.into()),
            key: String::new(),
        })
        .collect()
}

/// When the next of them is denied.
pub(super) fn wakes(d: &Dispatch) -> Option<Effect> {
    let patience = patience(d).filter(|_| d.waits_for_an_answer())?;
    let next = d.asks.open().filter_map(|pending| due(pending.since, patience)).min()?;
    Some(Effect::WakeAt(next))
}

/// It no longer waits, though nobody has answered.
pub(super) fn withdrawn(d: &Dispatch, id: &str) -> Vec<Event> {
    match d.asks.get(id) {
        Some(pending) if pending.answer.is_none() => {
            vec![Event::PermissionClosed { request_id: id.into() }]
        }
        _ => vec![],
    }
}

/// Somebody has answered. The first answer counts.
pub(super) fn answered(
    d: &Dispatch,
    id: String,
    answer: Answer,
    by: String,
    key: String,
) -> Vec<Event> {
    let open = d.waits_for_an_answer() && d.asks.open().any(|pending| pending.id == id);
    if !open {
        return vec![];
    }
    let Answer { verdict, text } = answer;
    vec![Event::PermissionAnswered { request_id: id, answer: verdict, text, by, rule: None, key }]
}

/// Nobody answers any more what stands in the way of an interrupt.
pub(super) fn cancelled(d: &Dispatch) -> Vec<Event> {
    let denied = d.asks.open().map(|pending| Event::PermissionAnswered {
        request_id: pending.id.clone(),
        answer: Verdict::Deny,
        text: INTERRUPTED.into(),
        by: OURSELVES.into(),
        rule: None,
        key: String::new(),
    });
    denied.collect()
}

/// Every answer the agent may not have heard is (again) carried to it.
pub(super) fn effects(d: &Dispatch) -> impl Iterator<Item = Effect> {
    let working = matches!(d.phase, Phase::Working { .. });
    d.asks
        .answered()
        .filter(move |_| working)
        .map(|(pending, _)| Effect::Answer { id: pending.id.clone() })
}
