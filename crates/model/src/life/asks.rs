//! What an agent asks: who answers, and that it hears the answer.

use super::Effect;
use crate::ask::{Answer, Ask, AskKind, ID_LIMIT, MOST_OPEN, OURSELVES, Verdict};
use crate::dispatch::{Dispatch, Phase};
use crate::event::Event;
use crate::opening::INTERRUPTED;
use crate::permission::POLICY;

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
    } else if d.asks.open().count() >= MOST_OPEN {
        deny(OURSELVES, format!("{MOST_OPEN} requests are waiting for an answer already."), None)
    } else {
        None
    };
    let (request_id, ask) = (id.to_string(), Box::new(ask.clone()));
    let mut events = vec![Event::PermissionRequested { request_id, answered: answer.is_some(), ask }];
    events.extend(answer);
    events
}

/// It no longer waits, though nobody has answered.
pub(super) fn withdrawn(d: &Dispatch, id: &str) -> Vec<Event> {
    match d.asks.get(id) {
        Some(pending) if pending.answer.is_none() => vec![Event::PermissionClosed { request_id: id.into() }],
        _ => vec![],
    }
}

/// Somebody has answered. The first answer counts.
pub(super) fn answered(d: &Dispatch, id: String, answer: Answer, by: String, key: String) -> Vec<Event> {
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
