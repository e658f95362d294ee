//! Estimates beforehand what the open beads of a run will cost, by the earlier runs of the
//! repository.
//!
//! Each earlier run has a price for a bead: its whole cost (with planning, retries, maintenance and
//! the judge) divided by its finished beads. The estimate is a range between a cheap run and an
//! expensive one. Runs of other backends and models do not count, and neither do runs whose agents
//! reported no cost.

use crate::spec_run::state::{Run, Stage};
use serde::Serialize;

/// The expected cost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Price {
    pub low_usd: f64,
    pub high_usd: f64,
    /// The open beads.
    pub beads: usize,
    /// The number of runs that it is estimated from.
    pub runs: usize,
}

impl Price {
    /// Estimates the cost of the open beads of `run`. `None` if no earlier run tells.
    pub fn of<'a>(run: &Run, earlier: impl IntoIterator<Item = &'a Run>) -> Option<Self> {
        let is_like = |other: &&Run| {
            other.id() != run.id()
                && other.settings.backend == run.settings.backend
                && other.settings.model == run.settings.model
        };
        let priced = earlier.into_iter().filter(is_like);
        let priced = priced.map(|other| (other.cost_usd, other.count(Stage::Done)));
        Self::between(run.count(Stage::Open), priced)
    }

    /// Estimates from the cost and the number of finished beads of each run.
    fn between(beads: usize, runs: impl Iterator<Item = (f64, usize)>) -> Option<Self> {
        #[allow(clippy::cast_precision_loss)] // No run has that many beads.
        let each = |(usd, done): (f64, usize)| {
            (usd.is_finite() && usd > 0.0 && done > 0).then(|| usd / done as f64)
        };
        let mut prices: Vec<f64> = runs.filter_map(each).collect();
        prices.sort_by(f64::total_cmp);
        let [.., dearest] = prices.as_slice() else { return None };
        // The extremes of few runs; the quartiles of many.
        let low = prices[prices.len() / 4];
        let high = if prices.len() < 4 { *dearest } else { prices[prices.len() * 3 / 4] };
        #[allow(clippy::cast_precision_loss)]
        let count = beads as f64;
        let runs = prices.len();
        (beads > 0).then_some(Self { low_usd: low * count, high_usd: high * count, beads, runs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(beads: usize, runs: &[(f64, usize)]) -> Option<(f64, f64, usize)> {
        let price = Price::between(beads, runs.iter().copied())?;
        Some((price.low_usd, price.high_usd, price.runs))
    }

    #[test]
    fn price_is_between_cheap_and_expensive_runs() {
        assert_eq!(range(4, &[(2.0, 4)]), Some((2.0, 2.0, 1)));
        assert_eq!(range(4, &[(8.0, 4), (2.0, 4)]), Some((2.0, 8.0, 2)));
        let many: Vec<_> = (1..=8).map(|n| (f64::from(n), 1)).collect();
        assert_eq!(range(10, &many), Some((30.0, 70.0, 8)));
    }

    #[test]
    fn price_without_data_is_unknown() {
        assert_eq!(range(4, &[]), None);
        assert_eq!(range(0, &[(2.0, 4)]), None, "no bead is open");
        let useless = [(0.0, 4), (3.0, 0), (f64::NAN, 2), (f64::INFINITY, 2), (-1.0, 1)];
        assert_eq!(range(4, &useless), None);
    }
}
