//! Processes that stay for a person: for an answer in the middle of a turn, or for a further
//! message after it. [`Event::HoldExpired`](crate::event::Event::HoldExpired) ends the wait.

use crate::dispatch::{Dispatch, Phase, Turn};

impl Dispatch {
    /// Whether it waits for an answer before it continues, with or without a process.
    pub fn waits_for_an_answer(&self) -> bool {
        self.awaits_answer() || self.holds_for_an_answer()
    }

    /// Whether its process waits for an answer. Meanwhile it takes no slot of the pool.
    pub fn holds_for_an_answer(&self) -> bool {
        matches!(self.phase, Phase::Working { .. })
            && self.stop.is_none()
            && self.asks.open().next().is_some()
    }

    /// Whether its process stays after a turn for a further message of its thread.
    pub fn holds_idle(&self) -> bool {
        matches!(
            self.phase,
            Phase::Working { turn: Turn::Done { ok: true, leaving: false, .. }, .. }
        ) && self.created.idle_hold_s.is_some()
            && self.stop.is_none()
            && !self.has_unheard()
            && self.asks.open().next().is_none()
    }

    /// Whether nothing more comes without a further message: it has ended, or its process stays
    /// idle.
    pub fn is_finished_or_idle(&self) -> bool {
        self.is_finished() || self.holds_idle()
    }

    /// Whether its process only waits for a person: for an answer, or for a further message.
    /// Meanwhile it takes no slot of the pool.
    pub fn gives_up_slot(&self) -> bool {
        self.holds_for_an_answer() || self.holds_idle()
    }

    /// Whether its process ended after the hold, and only an answer or a message continues it.
    pub fn awaits_answer(&self) -> bool {
        self.phase == Phase::Queued
            && self.asks.held
            && self.stop.is_none()
            && !self.has_unheard()
            && self.asks.unanswered().next().is_some()
    }
}
