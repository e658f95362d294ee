//! Processes that stay for a person: for an answer in the middle of a turn, or for a further
//! message after it. [`Event::HoldExpired`](crate::event::Event::HoldExpired) ends the wait.

use crate::dispatch::{Dispatch, Phase, Prompt, Turn, answer_prompt};

impl Dispatch {
    /// Whether it waits for an answer before it continues, with or without a process.
    pub fn waits_for_an_answer(&self) -> bool {
        self.awaits_answer() || self.holds_for_an_answer()
    }

    /// Whether its process waits for an answer. Meanwhile it takes no slot of the pool.
    pub fn holds_for_an_answer(&self) -> bool {
        matches!(self.phase, Phase::Working { .. })
            && self.stop.is_none()
            && (self.asks.open().next().is_some() || self.mcp.awaited().is_some())
    }

    /// Whether no call of its process is at work beside those that wait. A CLI makes calls in
    /// parallel, and the end of its process would cut the others.
    pub fn only_waits(&self) -> bool {
        let open = self.process().calls.open.len();
        !self.mcp.waits_for_agents() && (self.mcp.waits.is_empty() || open <= self.mcp.waits.len())
    }

    /// Whether a call of its process waits for other agents, and none for a person. Meanwhile it
    /// takes no slot of the pool: an agent for which it waits may need that slot.
    pub fn waits_for_agents(&self) -> bool {
        matches!(self.phase, Phase::Working { .. })
            && self.stop.is_none()
            && self.mcp.waits_for_agents()
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

    /// Whether its process only waits: for an answer, for other agents, or for a further message.
    /// Meanwhile it takes no slot of the pool.
    pub fn gives_up_slot(&self) -> bool {
        self.holds_for_an_answer() || self.waits_for_agents() || self.holds_idle()
    }

    /// Whether its process ended after the hold, and only an answer or a message continues it.
    pub fn awaits_answer(&self) -> bool {
        self.phase == Phase::Queued
            && self.asks.held
            && self.stop.is_none()
            && !self.has_unheard()
            && self.has_held_question()
    }

    /// Whether a question of a process that was ended after the hold has not reached its successor.
    pub(super) fn has_held_question(&self) -> bool {
        self.asks.unanswered().next().is_some() || !self.mcp.held.is_empty()
    }

    /// Whether the answer to a question of an MCP call begins the next turn. It replaces the prompt
    /// that would continue the turn that the hold has cut.
    pub(in crate::dispatch) fn continues_with_answer(&self) -> bool {
        let is_answer = |prompt: &Prompt| {
            let of = |question: &String| answer_prompt(&self.id, question) == prompt.key;
            prompt.is_waiting() && self.mcp.held.iter().any(of)
        };
        self.prompts.iter().any(is_answer)
    }
}
