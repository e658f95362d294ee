//! The idempotency keys of effects.

use crate::dispatch::Dispatch;
use crate::dispatch::life::Effect;
use std::fmt;

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
