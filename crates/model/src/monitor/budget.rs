//! Does an agent burn money? The budget is a bound; a flood is a rate that nothing before it
//! explains.

use crate::monitor::Action;
use std::collections::VecDeque;

/// Seconds that a rate is measured over.
const SPAN: f64 = 60.0;
/// And compared with what was before, for so long at least.
const BEFORE: f64 = 90.0;
/// So many times what it cost before, and so much of the budget (of this many dollars where there
/// is none), is a flood.
const TIMES: f64 = 8.0;
const SHARE: f64 = 0.25;
const UNLIMITED_USD: f64 = 12.0;
const NEAR: f64 = 0.8;
const MOST: usize = 4096;

#[derive(Debug)]
pub struct Spend {
    budget_usd: Option<f64>,
    spent: f64,
    lately: VecDeque<(f64, f64)>,
    began: Option<f64>,
}

impl Spend {
    pub fn new(budget_usd: Option<f64>) -> Self {
        Self { budget_usd, spent: 0.0, lately: VecDeque::new(), began: None }
    }

    /// A model call cost so much.
    pub fn cost(&mut self, usd: f64, t: f64) -> Option<(Action, String)> {
        if !usd.is_finite() || usd <= 0.0 {
            return None;
        }
        self.spent += usd;
        let began = *self.began.get_or_insert(t);
        self.lately.push_back((t, usd));
        while self.lately.len() > MOST || self.lately.front().is_some_and(|(at, _)| t - at > SPAN) {
            self.lately.pop_front();
        }
        if let Some(budget) = self.budget_usd.filter(|budget| self.spent >= *budget) {
            return Some((Action::Stop, format!("${:.2} of ${budget:.2} spent", self.spent)));
        }
        let lately: f64 = self.lately.iter().map(|(_, usd)| usd).sum();
        let (before, passed) = (self.spent - lately, t - began - SPAN);
        let bound = self.budget_usd.unwrap_or(UNLIMITED_USD) * SHARE;
        if passed > BEFORE && lately >= bound && lately >= TIMES * before / passed * SPAN {
            let rate = before / passed * SPAN;
            return Some((
                Action::Warn,
                format!("${lately:.2} in {SPAN:.0} seconds, where it was ${rate:.2} before"),
            ));
        }
        let near = self.budget_usd.filter(|budget| self.spent >= budget * NEAR)?;
        Some((Action::Note, format!("${:.2} of ${near:.2} spent", self.spent)))
    }

    /// What the CLI says the whole session has cost.
    pub fn total(&mut self, usd: f64, t: f64) -> Option<(Action, String)> {
        let more = usd - self.spent;
        // What comes at once is no rate.
        let lately = std::mem::take(&mut self.lately);
        let found = self.cost(more, t);
        self.lately = lately;
        found.filter(|(action, _)| *action != Action::Warn)
    }
}
