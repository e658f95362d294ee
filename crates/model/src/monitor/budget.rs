//! Detects an agent that spends too fast. The budget is a hard limit; a flood is a rate of spending
//! far above the earlier rate.

use crate::monitor::Action;
use std::collections::VecDeque;

/// The rate is measured over this many seconds.
const SPAN: f64 = 60.0;
/// The earlier rate needs at least this many seconds of data.
const BEFORE: f64 = 90.0;
/// A flood is this many times the earlier rate and this share of the budget (of `UNLIMITED_USD` if
/// there is no budget).
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

    /// Records the cost of a model call.
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

    /// Records the cost of the whole session, as the CLI reports it.
    pub fn total(&mut self, usd: f64, t: f64) -> Option<(Action, String)> {
        let more = usd - self.spent;
        // The difference covers an unknown time, so it must not count as a rate.
        let lately = std::mem::take(&mut self.lately);
        let found = self.cost(more, t);
        self.lately = lately;
        found.filter(|(action, _)| *action != Action::Warn)
    }
}
