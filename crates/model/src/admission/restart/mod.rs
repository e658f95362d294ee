//! The restart policy: which siblings restart with a failed child, how often a child may fail
//! before its supervisor fails, and the backoff in between. The supervisor carries it out; agents'
//! processes use [`agent_backoff_ms`] (docs/design/supervision-tree.md).
//!
//! ```text
//!            fails                        in the window already `max` restarts
//!  running ────────▶ Window::record ──────────────────────────────▶ Escalate (the parent fails)
//!     ▲                    │ otherwise
//!     └── after a pause ◀──┘
//! ```

pub mod shim_watch;

use std::collections::VecDeque;
use std::time::Duration;

/// The effect of a failed child on its siblings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    OneForOne,
    OneForAll,
    /// Restarts the failed child and those listed after it: later ones depend on earlier ones.
    RestForOne,
}

/// The condition under which a child that ended is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartClass {
    Permanent,
    /// Restarts only after a failure; a normal end is final.
    Transient,
    Temporary,
}

/// The most restarts (`max`) within `window` of awake time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Intensity {
    pub max: u32,
    pub window: Duration,
}

/// The pause before a restart: `base`, doubled with every restart in the window, at most `max`.
/// Then up to `jitter` (0.0 to 1.0) of it is subtracted, so that children that failed together do
/// not restart together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    pub base: Duration,
    pub max: Duration,
    pub jitter: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    RestartAfter(Duration),
    Escalate,
}

/// The restarts of one child, or of one group that restarts together, within its intensity's
/// window.
#[derive(Debug, Clone)]
pub struct Window {
    intensity: Intensity,
    backoff: Backoff,
    seed: u64,
    /// The times of the restarts still in the window in awake milliseconds, oldest first.
    restarts: VecDeque<u64>,
}

impl Strategy {
    /// Returns the name that `tree` prints.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OneForOne => "one-for-one",
            Self::OneForAll => "one-for-all",
            Self::RestForOne => "rest-for-one",
        }
    }
}

impl RestartClass {
    /// Returns the name that `tree` prints.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Permanent => "permanent",
            Self::Transient => "transient",
            Self::Temporary => "temporary",
        }
    }

    /// Whether a child that ended, `failed` or not, is restarted.
    pub fn restarts(self, failed: bool) -> bool {
        match self {
            Self::Permanent => true,
            Self::Transient => failed,
            Self::Temporary => false,
        }
    }
}

impl Backoff {
    pub const fn none() -> Self {
        Self { base: Duration::ZERO, max: Duration::ZERO, jitter: 0.0 }
    }

    /// Returns the pause before restart number `restart` (from 1). The same `seed` gives the same
    /// pause.
    pub fn delay(&self, restart: u32, seed: u64) -> Duration {
        let doublings = restart.saturating_sub(1).min(32);
        let full = self
            .base
            .saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX))
            .min(self.max);
        let share = mix(seed ^ u64::from(restart)) as f64 / u64::MAX as f64;
        full.mul_f64(1.0 - self.jitter.clamp(0.0, 1.0) * share)
    }
}

impl Window {
    /// Creates an empty window. `seed` chooses the jitter: a hash of the child's name, or random
    /// bytes.
    pub fn new(intensity: Intensity, backoff: Backoff, seed: u64) -> Self {
        Self { intensity, backoff, seed, restarts: VecDeque::new() }
    }

    /// Records a failure at `now` (awake milliseconds) and decides what follows. A child that has
    /// escalated keeps its window: another failure at once escalates again.
    pub fn record(&mut self, now_awake_ms: u64) -> Decision {
        self.forget(now_awake_ms);
        if self.restarts.len() >= self.intensity.max as usize {
            return Decision::Escalate;
        }
        self.restarts.push_back(now_awake_ms);
        Decision::RestartAfter(self.backoff.delay(self.restarts.len() as u32, self.seed))
    }

    /// Returns the number of restarts in the window that ends at `now`, for `tree`.
    pub fn restarts(&self, now_awake_ms: u64) -> u32 {
        let horizon = self.horizon(now_awake_ms);
        self.restarts.iter().filter(|at| Some(**at) > horizon).count() as u32
    }

    fn forget(&mut self, now: u64) {
        let horizon = self.horizon(now);
        while self.restarts.front().is_some_and(|at| Some(*at) <= horizon) {
            self.restarts.pop_front();
        }
    }

    /// Returns the newest time that is outside of the window; `None` while the window reaches
    /// before 0.
    fn horizon(&self, now: u64) -> Option<u64> {
        now.checked_sub(u64::try_from(self.intensity.window.as_millis()).unwrap_or(u64::MAX))
    }
}

/// Returns the children to stop (in reverse order) and restart (in order) after `failed` ended, as
/// indices in the supervisor's list. Returns nothing for an index out of range.
pub fn affected(strategy: Strategy, children: usize, failed: usize) -> Vec<usize> {
    if failed >= children {
        return vec![];
    }
    match strategy {
        Strategy::OneForOne => vec![failed],
        Strategy::OneForAll => (0..children).collect(),
        Strategy::RestForOne => (failed..children).collect(),
    }
}

/// Returns the milliseconds before restart number `attempt` (from 1) of a crashed agent: 1 s,
/// doubling, at most 60 s, less up to a fifth that depends on the dispatch's id only. So folding
/// the events again gives the same time.
pub fn agent_backoff_ms(id: &str, attempt: u32) -> u64 {
    const AGENT: Backoff =
        Backoff { base: Duration::from_secs(1), max: Duration::from_secs(60), jitter: 0.2 };
    AGENT.delay(attempt, seed(id)).as_millis() as u64
}

/// Returns a seed from a name, the same on every machine and in every version (FNV-1a).
pub fn seed(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Spreads a seed over all 64 bits (the finaliser of SplitMix64).
fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_strategy_restarts_its_siblings() {
        for (strategy, failed, expected) in [
            (Strategy::OneForOne, 1, vec![1]),
            (Strategy::OneForAll, 1, vec![0, 1, 2, 3]),
            (Strategy::RestForOne, 0, vec![0, 1, 2, 3]),
            (Strategy::RestForOne, 2, vec![2, 3]),
            (Strategy::RestForOne, 3, vec![3]),
            (Strategy::OneForAll, 4, vec![]),
        ] {
            assert_eq!(affected(strategy, 4, failed), expected, "{strategy:?} {failed}");
        }
    }

    /// `tree --json` shows these names.
    #[test]
    fn strategy_names_match_the_contract() {
        let strategies =
            [Strategy::OneForOne, Strategy::OneForAll, Strategy::RestForOne].map(Strategy::as_str);
        assert_eq!(strategies, ["one-for-one", "one-for-all", "rest-for-one"]);
        let classes = [RestartClass::Permanent, RestartClass::Transient, RestartClass::Temporary]
            .map(RestartClass::as_str);
        assert_eq!(classes, ["permanent", "transient", "temporary"]);
    }

    /// Published values of both functions: a dispatch's pauses are the same after an update.
    #[test]
    fn a_seed_is_the_same_in_every_version() {
        for (name, hash) in [
            ("", 0xcbf2_9ce4_8422_2325),
            ("a", 0xaf63_dc4c_8601_ec8c),
            ("foobar", 0x8594_4171_f739_67e8),
        ] {
            assert_eq!(seed(name), hash, "{name}");
        }
        assert_eq!([mix(0), mix(1_234_567)], [0xe220_a839_7b1d_cdaf, 6_457_827_717_110_365_317]);
        let pauses = [1, 2, 3].map(|attempt| agent_backoff_ms("abcd2345", attempt));
        assert_eq!(pauses, [828, 1888, 3219]);
    }

    #[test]
    fn restart_class_decides_the_restart() {
        for (class, after_failure, after_end) in [
            (RestartClass::Permanent, true, true),
            (RestartClass::Transient, true, false),
            (RestartClass::Temporary, false, false),
        ] {
            assert_eq!(
                (class.restarts(true), class.restarts(false)),
                (after_failure, after_end),
                "{class:?}"
            );
        }
    }

    #[test]
    fn the_sixth_failure_in_a_minute_escalates_and_a_later_one_does_not() {
        let mut window = Window::new(Intensity { max: 5, window: 60 * SECOND }, Backoff::none(), 0);
        for at in [0, 1, 2, 3, 4_000] {
            assert_eq!(window.record(at), Decision::RestartAfter(Duration::ZERO));
        }
        assert_eq!(window.record(59_999), Decision::Escalate);
        assert_eq!(window.restarts(59_999), 5);
        assert_eq!(
            window.record(60_000),
            Decision::RestartAfter(Duration::ZERO),
            "the first one left the window"
        );
        assert_eq!(
            (window.restarts(60_000), window.restarts(60_001)),
            (5, 4),
            "and then the second"
        );
        assert_eq!(window.restarts(500_000), 0);
    }

    #[test]
    fn no_restart_is_allowed_by_an_intensity_of_zero() {
        let mut window = Window::new(Intensity { max: 0, window: SECOND }, Backoff::none(), 0);
        assert_eq!(window.record(5), Decision::Escalate);
    }

    #[test]
    fn an_agents_pauses_double_up_to_a_minute() {
        for (attempt, full) in
            [(0, 1_000), (1, 1_000), (2, 2_000), (5, 16_000), (7, 60_000), (4_000_000_000, 60_000)]
        {
            let pause = agent_backoff_ms("abcd2345", attempt);
            assert!((full * 8 / 10..=full).contains(&pause), "attempt {attempt}: {pause}");
        }
        assert_eq!(agent_backoff_ms("abcd2345", 3), agent_backoff_ms("abcd2345", 3));
        assert_ne!(agent_backoff_ms("abcd2345", 3), agent_backoff_ms("abcd2346", 3));
    }

    proptest! {
        #[test]
        fn restarts_in_a_window_never_exceed_the_intensity(
            max in 0_u32..6,
            window_ms in 1_u64..1_000,
            steps in prop::collection::vec(0_u64..400, 0..60),
        ) {
            let intensity = Intensity { max, window: Duration::from_millis(window_ms) };
            let mut window = Window::new(intensity, Backoff::none(), 0);
            let mut now = 0;
            let mut granted: Vec<u64> = vec![];
            for step in steps {
                now += step;
                if let Decision::RestartAfter(_) = window.record(now) {
                    granted.push(now);
                }
                let recent = granted.iter().filter(|at| now - **at < window_ms).count();
                prop_assert!(recent <= max as usize);
                prop_assert_eq!(window.restarts(now) as usize, recent);
            }
        }

        #[test]
        fn a_pause_is_bounded(
            base in 0_u64..100_000, max in 0_u64..100_000, jitter in -1.0_f64..2.0,
            restart in any::<u32>(), seed in any::<u64>()
        ) {
            let backoff = Backoff {
                base: Duration::from_millis(base), max: Duration::from_millis(max), jitter
            };
            prop_assert!(backoff.delay(restart, seed) <= backoff.max);
        }
    }
}
