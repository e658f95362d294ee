//! The effects that follow from the state of a dispatch.

use crate::agent::acp_handshake::Call;
use crate::dispatch::life::{acp_handshake, asks, resume_session};
use crate::dispatch::{Dispatch, Phase, Process, PromptState, Turn};
use jiff::Timestamp;
use std::fmt;

/// An action for the actors to carry out, derived from the state alone.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Ask the pool for a slot.
    Admit,
    /// Make sure that the shim of `epoch` runs: probe its lock, adopt it, or start it.
    EnsureShim {
        epoch: u32,
        resume: Option<String>,
    },
    /// Make the call that the opening of a session has reached.
    Call(Call),
    /// Send the prompt to the agent; with `close`, its stdin is closed after it.
    Prompt {
        key: String,
        close: bool,
    },
    /// Search the CLI's transcript for the prompt.
    Probe {
        key: String,
    },
    CloseStdin,
    /// Send the agent the answer to its request.
    Answer {
        id: String,
    },
    /// Ask the CLI to change to another model.
    SetModel {
        key: String,
        model: String,
    },
    Interrupt {
        key: String,
    },
    Terminate,
    FetchWork,
    WakeAt(Timestamp),
}

/// The idempotency key of an effect. Its text is part of the keys of commands to the shim, which a
/// newer daemon may repeat, so it stays the same across releases.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EffectKey(String);

impl fmt::Display for EffectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Effect {
    /// Returns the idempotency key of the effect: it is carried out once while the key stays the
    /// same. The key of a call does not contain the turn. A session that an agent loads reports
    /// past turns, and a changed key would load it twice.
    pub fn key(&self, d: &Dispatch) -> EffectKey {
        EffectKey(match self {
            Self::Call(_) => format!("{self:?}/{}", d.epoch),
            _ => format!("{self:?}/{}/{}", d.epoch, d.turns),
        })
    }
}

/// Returns the effects that are due in this state. Each may be carried out twice without harm.
pub fn effects(d: &Dispatch) -> Vec<Effect> {
    match &d.phase {
        Phase::Queued if d.awaits_answer() => asks::wakes(d).into_iter().collect(),
        Phase::Queued => vec![Effect::Admit],
        Phase::Starting { epoch, .. } => {
            vec![Effect::EnsureShim { epoch: *epoch, resume: resume_session(d) }]
        }
        Phase::Working { epoch, turn, process, .. } => working(d, *epoch, turn, process),
        Phase::Backoff { until, .. } => vec![Effect::WakeAt(*until)],
        Phase::Closing { .. } => vec![Effect::FetchWork],
        Phase::Gone { .. } => {
            d.to_probe().map(|p| Effect::Probe { key: p.key.clone() }).into_iter().collect()
        }
        Phase::Finished { .. } => vec![],
    }
}

fn working(d: &Dispatch, epoch: u32, turn: &Turn, process: &Process) -> Vec<Effect> {
    let mut effects = vec![Effect::EnsureShim { epoch, resume: None }];
    if d.stop.is_some() || process.call_failed.is_some() || d.asks.held {
        effects.push(Effect::Terminate);
        return effects;
    }
    effects.extend(acp_handshake::restores(d));
    if let Some(call) = acp_handshake::effect(d) {
        effects.push(call);
        return effects;
    }
    // The turn of a one-shot agent begins as its prompt is sent, so `Taken` is still on its way.
    let on_its_way = |state: PromptState| {
        state == PromptState::Sent || (state == PromptState::Taken && !d.created.has_turns())
    };
    if matches!(turn, Turn::Done { leaving: true, .. }) {
        effects.push(Effect::CloseStdin);
    } else if let Some(prompt) = d.prompts.iter().find(|p| on_its_way(p.state)) {
        effects.push(Effect::Prompt { key: prompt.key.clone(), close: !d.created.multi_turn });
    }
    effects.extend(asks::effects(d));
    effects.extend(asks::wakes(d));
    if let (Some(change), Some(model)) = (&d.model.change, &d.model.wanted) {
        effects.push(Effect::SetModel { key: change.key.clone(), model: model.clone() });
    }
    if let Some(key) = &process.interrupt {
        effects.push(Effect::Interrupt { key: key.clone() });
    }
    effects
}
