//! The starts that cannot be carried out now, with their reasons. A new daemon finds them again by
//! its own tries.

use jiff::Timestamp;
use muleteer_model::schedule::event::ScheduleDue;
use muleteer_model::schedule::step;
use muleteer_protocol::v1::WireError;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The delayed starts, by the name of the schedule: at most one of each.
#[derive(Debug, Default)]
pub struct Delays {
    all: watch::Sender<BTreeMap<String, Delay>>,
}

/// A start that failed for a passing reason.
#[derive(Debug, Clone)]
pub struct Delay {
    /// The key of the start.
    pub key: String,
    /// The error of the newest try.
    pub error: WireError,
    /// The time of the next try, for people.
    pub retry_at: Timestamp,
    failures: u32,
    next: Instant,
}

impl Delays {
    pub fn get(&self, schedule: &str) -> Option<Delay> {
        self.all.borrow().get(schedule).cloned()
    }

    pub fn subscribe(&self) -> watch::Receiver<BTreeMap<String, Delay>> {
        self.all.subscribe()
    }

    /// Returns the time until the next try of a start; `None` if it is due.
    pub fn left(&self, due: &ScheduleDue) -> Option<Duration> {
        let all = self.all.borrow();
        let delay = all.get(&due.schedule).filter(|delay| delay.key == due.key)?;
        let left = delay.next.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Notes a failed try. Returns the pause before the next one, and whether its reason is news.
    pub fn failed(&self, due: &ScheduleDue, error: WireError) -> (Duration, bool) {
        let known = self.get(&due.schedule).filter(|delay| delay.key == due.key);
        let is_news = known.as_ref().is_none_or(|delay| delay.error.code != error.code);
        let failures = known.map_or(0, |delay| delay.failures).saturating_add(1);
        let pause = step::pause(failures);
        let retry_at = Timestamp::now().checked_add(pause).unwrap_or(Timestamp::MAX);
        let (key, next) = (due.key.clone(), Instant::now() + pause);
        let delay = Delay { key, error, retry_at, failures, next };
        self.all.send_modify(|all| drop(all.insert(due.schedule.clone(), delay)));
        (pause, is_news)
    }

    /// Notes that a start is over.
    pub fn ended(&self, schedule: &str) {
        self.all.send_if_modified(|all| all.remove(schedule).is_some());
    }
}
