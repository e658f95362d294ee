//! Remembers idempotency keys of the newest commands: a repeated command is answered, but not
//! carried out again.

use muleteer_protocol::shim::v1::{Idem, Outcome};
use std::collections::VecDeque;

/// The most keys that are kept. A daemon repeats only an unanswered command, which is never this
/// old.
const KEPT: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Keys {
    known: VecDeque<(Idem, Option<Outcome>)>,
}

/// The state of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    New,
    /// The command is being carried out.
    Pending,
    Done(Outcome),
}

impl Keys {
    pub fn seen(&self, idem: &Idem) -> Seen {
        match self.known.iter().rev().find(|(known, _)| known == idem) {
            None => Seen::New,
            Some((_, None)) => Seen::Pending,
            Some((_, Some(outcome))) => Seen::Done(*outcome),
        }
    }

    pub fn begin(&mut self, idem: Idem) {
        if self.known.len() >= KEPT {
            // A pending key must stay, because a forgotten one could be started twice. Fewer keys
            // are pending than kept.
            let oldest_done = self.known.iter().position(|(_, outcome)| outcome.is_some());
            self.known.remove(oldest_done.unwrap_or(0));
        }
        self.known.push_back((idem, None));
    }

    pub fn end(&mut self, idem: &Idem, outcome: Outcome) {
        if let Some(entry) = self.known.iter_mut().rev().find(|(known, _)| known == idem) {
            entry.1 = Some(outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_key_is_never_evicted() {
        let mut keys = Keys::default();
        keys.begin([255; 16]);
        for n in 0..2000u128 {
            keys.begin(n.to_le_bytes());
            keys.end(&n.to_le_bytes(), Outcome::Ok);
        }
        assert_eq!(keys.seen(&[255; 16]), Seen::Pending);
        assert_eq!(keys.seen(&1999u128.to_le_bytes()), Seen::Done(Outcome::Ok));
        assert_eq!(keys.seen(&0u128.to_le_bytes()), Seen::New);
        assert!(keys.known.len() <= KEPT);
    }
}
