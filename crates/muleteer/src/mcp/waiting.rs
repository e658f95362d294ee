//! The wait for the daemon's answer to a call, and the reports of progress meanwhile.

use muleteer_model::event::mcp_pace::{Pace, Periods};
use muleteer_process::fault;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Returns the periods of waiting calls. Only a test shortens them.
pub(super) fn periods() -> Periods {
    let usual = Periods::default();
    Periods {
        progress: fault::period("progress", usual.progress),
        patience: fault::period("patience", usual.patience),
        longest: fault::period("longest", usual.longest),
    }
}

/// Waits for the end of `asking`, and calls `report` with the time since the beginning of the call
/// whenever a report is due. Returns `None` if the client cancelled the call.
///
/// Cancel safety: nothing is lost that `asking` does not lose.
pub(super) async fn reporting<T, R: Future<Output = ()>>(
    pace: Pace,
    began: Instant,
    asking: impl Future<Output = T>,
    cancelled: impl Future<Output = ()>,
    mut report: impl FnMut(Duration) -> R,
) -> Option<T> {
    tokio::pin!(asking, cancelled);
    loop {
        let due = began + pace.next_report(began.elapsed());
        tokio::select! {
            biased;
            () = &mut cancelled => return None,
            done = &mut asking => return Some(done),
            () = sleep_until(due) => report(began.elapsed()).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use tokio::time::sleep;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Returns the end of a call that lasts for `call`, the seconds at which reports were sent, and
    /// its whole duration. The client cancels it after `cancelled`.
    async fn call(call: Duration, cancelled: Duration) -> (Option<()>, Vec<u64>, Duration) {
        let (began, reports) = (Instant::now(), RefCell::new(vec![]));
        let pace = Pace::new(Periods::default(), true);
        let report = |elapsed: Duration| {
            reports.borrow_mut().push(elapsed.as_secs());
            std::future::ready(())
        };
        let ended = reporting(pace, began, sleep(call), sleep(cancelled), report).await;
        (ended, reports.into_inner(), began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_call_reports_every_twenty_seconds_until_its_end() {
        let day = s(24 * 60 * 60);
        let (ended, reports, lasted) = call(s(70), day).await;
        assert_eq!((ended, reports, lasted.as_secs()), (Some(()), vec![20, 40, 60], 70));
        let (ended, reports, _) = call(s(19), day).await;
        assert_eq!((ended, reports), (Some(()), vec![]));
        let (ended, reports, lasted) = call(day, day * 2).await;
        assert_eq!((ended, reports.len(), lasted.as_secs()), (Some(()), 4319, 86_400));
        assert!(reports.windows(2).all(|pair| pair[1] - pair[0] == 20));
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_call_ends_at_once() {
        let (ended, reports, lasted) = call(s(1000), s(30)).await;
        assert_eq!((ended, reports, lasted.as_secs()), (None, vec![20], 30));
    }
}
