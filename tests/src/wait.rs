//! Waiting for a state, never for a time.

use std::time::{Duration, Instant};

/// How long a test waits for what should be there in well under a second. Long, because it is only
/// ever spent on the way to a failure, and a loaded machine is no bug.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Asks `state` until it answers, and gives that answer.
///
/// # Panics
/// After `deadline`, naming `what` was waited for.
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

/// Makes sure that `state` holds all through `span`. For what must *not* happen, where there is no
/// event to wait for; keep `span` short.
///
/// # Panics
/// As soon as it no longer holds.
pub fn holds_for(what: &str, span: Duration, mut state: impl FnMut() -> bool) {
    let start = Instant::now();
    while start.elapsed() < span {
        assert!(state(), "{what} no longer holds after {:?}", start.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
}
