//! The healing of one dispatch, folded from its events.

use crate::monitor::healing::event::{Choice, HealingBegun, HealingChosen, HealingDone};
use serde::{Deserialize, Serialize};

/// The newest healing of a dispatch.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HealingState {
    /// How often the dispatch had been reopened when it began: a later end is another trouble.
    pub of: Option<u32>,
    pub begun: Option<HealingBegun>,
    pub chosen: Option<HealingChosen>,
    /// It was carried out, or cannot be; with the reason why not.
    pub done: Option<String>,
    /// The task was tried with a better model.
    pub was_retried: bool,
}

impl HealingState {
    /// The number of choices so far.
    pub fn number(&self) -> u32 {
        self.begun.as_ref().map_or(0, |begun| begun.number)
    }

    /// Whether something has begun and is not over.
    pub fn is_under_way(&self) -> bool {
        self.begun.is_some() && self.done.is_none()
    }

    /// Returns why a person has to decide after an end, if a healing said so. `reopened` counts how
    /// often the dispatch was reopened.
    pub fn escalated(&self, reopened: u32) -> Option<&str> {
        let done = self.done.as_deref().filter(|_| self.of == Some(reopened))?;
        match &self.chosen {
            _ if !done.is_empty() => Some(done),
            Some(chosen) if chosen.choice == Choice::Escalate => Some(&chosen.reason),
            _ => None,
        }
    }

    pub fn begin(&mut self, begun: &HealingBegun, reopened: u32) {
        if begun.number <= self.number() {
            return;
        }
        let was_retried = self.was_retried;
        let begun = Some(begun.clone());
        *self = Self { of: Some(reopened), begun, was_retried, ..Self::default() };
    }

    pub fn choose(&mut self, chosen: &HealingChosen) {
        if chosen.number == self.number() && self.chosen.is_none() {
            self.was_retried |= chosen.choice == Choice::BetterModel;
            self.chosen = Some(chosen.clone());
        }
    }

    pub fn end(&mut self, done: &HealingDone) {
        if done.number == self.number() && self.done.is_none() {
            self.done = Some(done.reason.clone());
        }
    }
}
