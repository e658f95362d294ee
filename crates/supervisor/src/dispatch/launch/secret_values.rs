//! The values of secret variables, in lists of files and in the daemon's memory.

use muleteer_backends::variables::is_secret;
use muleteer_model::event::id::DispatchId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, PoisonError};

/// So many dispatches are remembered, the latest ones.
const REMEMBERED: usize = 4096;

/// The secret variables of one dispatch.
pub(crate) type Values = Vec<(String, String)>;

/// Finds a variable in another environment.
pub(crate) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Removes the secret variables from a list of a file, and returns them.
pub(crate) fn take(list: &mut Values) -> Values {
    let (secret, rest) = std::mem::take(list).into_iter().partition(|(name, _)| is_secret(name));
    *list = rest;
    secret
}

/// Gives removed variables back: those that the daemon remembers (`known`), and else those of
/// another environment. A variable without a value stays removed, so that a later start can have
/// it.
pub(crate) fn give<K>(
    removed: &mut Vec<K>,
    name: impl Fn(&K) -> &str,
    known: &[(String, String)],
    other: Lookup<'_>,
    mut add: impl FnMut(&K, (String, String)),
) {
    removed.retain(|key| {
        let name = name(key);
        let found = known.iter().rev().find(|(known, _)| known == name);
        match found.map(|(_, value)| value.clone()).or_else(|| other(name)) {
            Some(value) => add(key, (name.to_string(), value)),
            None => {
                tracing::warn!(variable = %name, "a key is no longer known");
                return true;
            }
        }
        false
    });
}

/// The secrets of ended dispatches.
#[derive(Default)]
pub struct Secrets {
    known: Mutex<(BTreeMap<DispatchId, Values>, VecDeque<DispatchId>)>,
    /// The dispatches whose files still have secrets, because they could not be removed.
    left: Mutex<BTreeSet<DispatchId>>,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets")
    }
}

impl Secrets {
    pub(crate) fn remember(&self, id: &DispatchId, values: Values) {
        let (known, order) = &mut *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.insert(id.clone(), values).is_none() {
            order.push_back(id.clone());
        }
        while order.len() > REMEMBERED {
            if let Some(oldest) = order.pop_front() {
                known.remove(&oldest);
            }
        }
    }

    pub(crate) fn forget(&self, id: &DispatchId) {
        let (known, order) = &mut *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.remove(id).is_some() {
            order.retain(|known| known != id);
        }
    }

    pub(crate) fn of(&self, id: &DispatchId) -> Values {
        let (known, _) = &*self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(id).cloned().unwrap_or_default()
    }

    /// Whether its files still have secrets. It must not be archived then: the next daemon looks
    /// for such files in the fleet alone.
    pub(crate) fn are_left(&self, id: &DispatchId) -> bool {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).contains(id)
    }

    pub(crate) fn record(&self, id: &DispatchId, is_done: bool) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if is_done {
            left.remove(id);
        } else if left.len() < REMEMBERED {
            left.insert(id.clone());
        }
    }
}
