//! The pace of a relay in a call that waits: when it tells its client that the call goes on, and
//! how long the daemon may let the call wait.

use std::time::Duration;

/// The periods of calls that wait for people or agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Periods {
    /// Between two reports of progress. Claude Code gives up a call that is silent for 30 minutes.
    pub progress: Duration,
    /// After this time, a client that is not known to wait gets an answer. Many give up after 60 s.
    pub patience: Duration,
    /// The longest call of a CLI that Muleteer starts. An answer of a person may take a day.
    pub longest: Duration,
}

impl Default for Periods {
    fn default() -> Self {
        Self {
            progress: Duration::from_secs(20),
            patience: Duration::from_secs(50),
            longest: Duration::from_secs(24 * 60 * 60),
        }
    }
}

/// The pace of one call. Times count from the beginning of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    periods: Periods,
    /// The client waits as long as the call takes.
    waits: bool,
}

impl Pace {
    pub fn new(periods: Periods, waits: bool) -> Self {
        Self { periods, waits }
    }

    /// Returns the time of the next report of progress. Reports whose time has passed are skipped:
    /// a machine that slept sends one, and not all that it missed.
    pub fn next_report(self, elapsed: Duration) -> Duration {
        let period = self.periods.progress.max(Duration::from_millis(1));
        let passed = u32::try_from(elapsed.as_nanos() / period.as_nanos()).unwrap_or(u32::MAX);
        period.saturating_mul(passed.saturating_add(1))
    }

    /// Returns the time at which the client gets an answer, whether there is one or not. `None`:
    /// the client waits as long as the call takes.
    pub fn end(self) -> Option<Duration> {
        (!self.waits).then_some(self.periods.patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn progress_is_reported_every_twenty_seconds_for_a_day() {
        let pace = Pace::new(Periods::default(), true);
        for (elapsed, next) in [
            (0, 20_000),
            (1, 20_000),
            (19_999, 20_000),
            (20_000, 40_000),
            (39_000, 40_000),
            (86_399_999, 86_400_000),
        ] {
            assert_eq!(pace.next_report(ms(elapsed)), ms(next), "{elapsed}");
        }
        let (mut elapsed, mut reports) = (Duration::ZERO, 0);
        while elapsed < Periods::default().longest {
            let next = pace.next_report(elapsed);
            assert!(next > elapsed && next - elapsed <= Duration::from_secs(20));
            (elapsed, reports) = (next, reports + 1);
        }
        assert_eq!(reports, 24 * 60 * 3);
    }

    #[test]
    fn machine_that_slept_reports_once() {
        let pace = Pace::new(Periods::default(), true);
        let woken = ms(3_600_500);
        assert_eq!(pace.next_report(woken), ms(3_620_000));
        assert!(pace.next_report(Duration::MAX) > Duration::from_secs(86_400));
        let never = Periods { progress: Duration::ZERO, ..Periods::default() };
        assert_eq!(Pace::new(never, true).next_report(ms(5)), ms(6), "it does not spin");
    }

    #[test]
    fn only_a_client_that_is_not_known_to_wait_gets_an_answer_after_fifty_seconds() {
        let periods = Periods::default();
        assert_eq!(Pace::new(periods, false).end(), Some(ms(50_000)));
        assert_eq!(Pace::new(periods, true).end(), None);
        // It comes before the limit of the common client library, and after two reports.
        assert!(periods.patience < Duration::from_secs(60));
        assert!(periods.progress * 2 < periods.patience);
    }
}
