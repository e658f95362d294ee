//! Waits for states, never for times.

use std::time::{Duration, Instant};

/// The time limit for states that normally come in well under a second. It is long because only a
/// failure uses all of it, and a loaded machine is no bug.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Polls `state` until it answers, and returns the answer.
///
/// # Panics
/// After `deadline`; the message names `what` the test waited for.
pub fn wait_until<T>(what: &str, deadline: Duration, mut state: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        if let Some(answer) = state() {
            return answer;
        }
        assert!(start.elapsed() < deadline, "waited {deadline:?} in vain for {what}");
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Asserts that `state` holds all through `span`. This is for things that must *not* happen, which
/// no event reports; keep `span` short.
///
/// # Panics
/// As soon as `state` no longer holds.
pub fn holds_for(what: &str, span: Duration, mut state: impl FnMut() -> bool) {
    let start = Instant::now();
    while start.elapsed() < span {
        assert!(state(), "{what} no longer holds after {:?}", start.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
}
