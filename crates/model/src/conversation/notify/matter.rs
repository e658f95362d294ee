//! The things that wait for a person.

use crate::agent::ask::AskKind;
pub use crate::config::types::notify::Kind;
use crate::dispatch::fleet::Fleet;
use crate::dispatch::{Dispatch, Phase};
use crate::event::FinalState;
use crate::event::id::DispatchId;
use crate::monitor::healing;
use crate::question::{self, Question};
use jiff::Timestamp;
use std::sync::Arc;

/// The most characters of a text.
const TEXT_LIMIT: usize = 200;

/// Something that waits for a person, or that they want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matter {
    /// The same matter has the same key, also after a restart.
    pub key: String,
    pub kind: Kind,
    pub since: Timestamp,
    /// `None` for a matter of no dispatch, such as the question of a run.
    pub dispatch: Option<DispatchId>,
    /// The question that waits for an answer, if it is no request of an agent's CLI.
    pub question: Option<String>,
    /// One line.
    pub text: String,
}

/// Returns everything that waits for a person now. A dispatch of another dispatch or of a run
/// concerns nobody by its end: its parent handles that.
pub fn matters(fleet: &Fleet) -> Vec<Matter> {
    // A request of an agent's CLI and a stall are matters of their dispatch.
    let is_own = |question: &&Arc<Question>| {
        question.request.is_none() && question.kind != question::Kind::Stall
    };
    let asked = fleet.questions.open().filter(is_own);
    fleet.iter().flat_map(|dispatch| of(dispatch)).chain(asked.map(|one| asks(one))).collect()
}

/// Returns the matter of an open question that is no request of an agent's CLI.
fn asks(question: &Question) -> Matter {
    Matter {
        key: format!("question/{}", question.id),
        kind: Kind::Question,
        since: question.asked_at,
        dispatch: question.dispatch.clone(),
        question: Some(question.id.clone()),
        text: line(&format!("{} asks ({}): {}", question.asked_by, question.id, question.text)),
    }
}

fn of(dispatch: &Dispatch) -> Vec<Matter> {
    let matter = |key: String, kind, since, text: String| Matter {
        key,
        kind,
        since,
        dispatch: Some(dispatch.id.clone()),
        question: None,
        text: line(&format!("{} {}: {text}", dispatch.created.role, dispatch.id)),
    };
    if dispatch.waits_for_an_answer() {
        let asks = dispatch.asks.open().map(|pending| {
            let ask = &pending.ask;
            let text = match ask.kind {
                AskKind::Question => format!("asks: {}", ask.text),
                _ => format!("asks for permission: {}", ask.describe()),
            };
            let key = format!("ask/{}/{}", dispatch.id, pending.id);
            matter(key, Kind::Question, pending.since, text)
        });
        return asks.collect();
    }
    let created = &dispatch.created;
    let is_own = created.parent.is_none()
        && (created.by == "operator"
            || created.by.starts_with(healing::RETRY_BY)
            || created.thread().is_some());
    match dispatch.phase {
        // A healing decides first whether a person is needed.
        Phase::Finished { .. } if dispatch.healing.is_under_way() => vec![],
        Phase::Finished { state } if is_own => {
            let kind = match state {
                FinalState::Success | FinalState::Partial => Kind::End,
                FinalState::Failed | FinalState::Blocked | FinalState::Stalled => Kind::Stall,
                // The person did it.
                FinalState::Killed => return vec![],
            };
            // A conversation is told of in its thread.
            if kind == Kind::End && created.thread().is_some() {
                return vec![];
            }
            let reason = dispatch.reason.as_deref().filter(|reason| !reason.is_empty());
            let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
            // A dispatch that is continued ends again.
            let key = format!("end/{}/{}/{}", dispatch.id, dispatch.turns, state.as_str());
            let escalated = dispatch.healing.escalated(dispatch.retries.reopened);
            let healing = escalated.map(|why| format!("; self-healing: {why}")).unwrap_or_default();
            let text = format!("has ended ({}){reason}{healing}", state.as_str());
            vec![matter(key, kind, dispatch.since, text)]
        }
        _ => vec![],
    }
}

/// Returns a text on one line without control characters, cut.
fn line(text: &str) -> String {
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let text: String = clean.take(TEXT_LIMIT + 1).collect();
    match text.chars().count() > TEXT_LIMIT {
        true => text.chars().take(TEXT_LIMIT - 1).chain(['…']).collect(),
        false => text,
    }
}
