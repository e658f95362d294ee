//! The calls of MCP tools that wait for an answer at this moment.
//!
//! An answer reaches the agent in one of two ways: as the result of its call, or as a prompt. While
//! a call waits, or may come back soon, the answer is kept for it. Otherwise an agent whose relay
//! reconnects after a restart of the daemon would get the answer twice.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The time in which the relay confirms that the agent's CLI has the result. It also is the time in
/// which a relay that lost its daemon is back.
pub(crate) const BACK_WITHIN: Duration = Duration::from_secs(10);

/// The waiting calls by their questions.
#[derive(Debug)]
pub struct Waiters {
    began: Instant,
    calls: Mutex<HashMap<String, Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    count: usize,
    /// The end of the newest call that has ended.
    ended: Option<Instant>,
}

impl Default for Waiters {
    fn default() -> Self {
        Self { began: Instant::now(), calls: Mutex::default() }
    }
}

/// A call that waits for the answer to a question, until it is dropped.
#[derive(Debug)]
pub struct Waiter<'a> {
    waiters: &'a Waiters,
    question: String,
}

impl Waiters {
    /// Notes that a call waits.
    pub fn enter(&self, question: &str) -> Waiter<'_> {
        let mut calls = self.calls();
        // Calls that ended long ago are forgotten.
        let now = Instant::now();
        calls.retain(|_, waiting| waiting.count > 0 || waiting.is_recent(now));
        calls.entry(question.into()).or_insert(Waiting { count: 0, ended: None }).count += 1;
        Waiter { waiters: self, question: question.into() }
    }

    /// Whether the answer is kept for a call: one waits, has ended a short while ago, or may come
    /// back after the restart of the daemon. `had_call` says that the agent's process lives and may
    /// have a call from before the restart.
    pub fn expects(&self, question: &str, had_call: bool) -> bool {
        let now = Instant::now();
        let calls = self.calls();
        calls.get(question).is_some_and(|waiting| waiting.count > 0 || waiting.is_recent(now))
            || (had_call && now < self.began + BACK_WITHIN)
    }

    /// Whether a call of this name waits now.
    pub fn has(&self, name: &str) -> bool {
        self.calls().get(name).is_some_and(|waiting| waiting.count > 0)
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<String, Waiting>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn is_recent(&self, now: Instant) -> bool {
        self.ended.is_some_and(|ended| now < ended + BACK_WITHIN)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut calls = self.waiters.calls();
        if let Some(waiting) = calls.get_mut(&self.question) {
            waiting.count = waiting.count.saturating_sub(1);
            waiting.ended = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answer_is_kept_for_a_call_and_a_while_after_it() {
        let waiters = Waiters::default();
        tokio::time::advance(BACK_WITHIN).await;
        assert!(!waiters.expects("q", true));
        let call = waiters.enter("q");
        assert!(waiters.expects("q", false));
        assert!(!waiters.expects("other", false));
        drop(call);
        assert!(waiters.expects("q", false));
        tokio::time::advance(BACK_WITHIN).await;
        assert!(!waiters.expects("q", false));
    }

    #[tokio::test(start_paused = true)]
    async fn answer_is_kept_after_a_restart_only_for_a_living_process() {
        let waiters = Waiters::default();
        assert!(waiters.expects("q", true));
        assert!(!waiters.expects("q", false));
    }
}
