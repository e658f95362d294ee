//! Meetings: they are started and ended ([`serve`]), give their turns and write their minutes
//! (`minutes`), and clients see them ([`view`]). The rules are in `model::conversation::meeting`.

mod minutes;
pub mod serve;
pub mod view;

use crate::conversation::deliver::{new_id, record};
use crate::daemon::context::Daemon;
use crate::dispatch::control::interrupt_as;
use crate::ports::ledger::LedgerError;
use muleteer_model::conversation::thread::Thread;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::Event;
use muleteer_model::meeting::NAME;
use muleteer_model::meeting::step;
use muleteer_process::fault::point;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The pause before minutes that could not be written are written again.
const PAUSE: Duration = Duration::from_secs(10);

/// The time of the present wait. It counts while the machine is awake, and begins again with a new
/// daemon.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// The wait, its end, and the time until then.
    wait: Option<(String, Instant)>,
    /// The time of the next try to write the minutes.
    retry: Option<Instant>,
}

impl Clock {
    /// Returns the time until [`drive`] has something to do.
    pub fn left(&self) -> Option<Duration> {
        let ends = self.wait.iter().map(|(_, end)| *end).chain(self.retry);
        ends.min().map(|end| end.saturating_duration_since(Instant::now()))
    }

    /// Notes what is waited for now. Returns it if the time for it has passed.
    fn passed(&mut self, wait: Option<(String, Duration)>) -> Option<String> {
        let Some((what, limit)) = wait else {
            self.wait = None;
            return None;
        };
        match &self.wait {
            Some((known, end)) if *known == what => (*end <= Instant::now()).then_some(what),
            _ => {
                self.wait = Some((what, Instant::now() + limit));
                None
            }
        }
    }
}

/// Makes the next decision of the meeting of a thread durable and carries out its effects. Returns
/// whether anything changed. Cancel-safe: what was durable is resumed by the next call.
///
/// # Errors
/// When the ledger cannot write.
pub(super) async fn drive(
    daemon: &Arc<Daemon>,
    thread: &Thread,
    fleet: &Fleet,
    clock: &mut Clock,
) -> Result<bool, LedgerError> {
    if thread.meeting().is_none() {
        *clock = Clock::default();
        return Ok(false);
    }
    let events = step::next(thread, fleet, &mut new_id);
    if !events.is_empty() {
        record(daemon, events).await?;
        point("meeting.decided");
        return Ok(true);
    }
    if let Some(document) = step::minutes_due(thread) {
        return end(daemon, thread, document, clock).await;
    }
    let Some(wait) = clock.passed(step::waits(thread, fleet)) else { return Ok(false) };
    // First the interrupt, which has a key. A daemon that is killed in between finds a turn that
    // was interrupted, or gives it its time again.
    if let Some((dispatch, key)) = step::interrupt(thread) {
        // An agent that cannot be interrupted answers too late, and loses its turn too.
        let _ = interrupt_as(daemon, dispatch.as_str(), NAME, key).await;
        point("meeting.interrupted");
    }
    // The turn may have ended meanwhile.
    let now = daemon.snapshot();
    let now = now.conversations.get(thread.id());
    let events = now.map(|now| step::timed_out(now, &wait, &mut new_id)).unwrap_or_default();
    *clock = Clock::default();
    if !events.is_empty() {
        record(daemon, events).await?;
    }
    Ok(true)
}

/// Writes the minutes, and then ends the meeting.
async fn end(
    daemon: &Arc<Daemon>,
    thread: &Thread,
    document: String,
    clock: &mut Clock,
) -> Result<bool, LedgerError> {
    if clock.retry.is_some_and(|at| at > Instant::now()) {
        return Ok(false);
    }
    match minutes::write(daemon, thread, document).await {
        Ok((file, place)) => {
            point("meeting.minutes_written");
            record(daemon, step::ended(thread, file, &place, &mut new_id)).await?;
            point("meeting.ended");
            *clock = Clock::default();
            Ok(true)
        }
        Err(error) => {
            // A reason is told once, and not with each try.
            if clock.retry.is_none() {
                let message =
                    format!("failed to write the minutes, tries again: {}", error.message);
                daemon.note(Event::Fault { what: format!("thread {}", thread.id()), message });
            }
            clock.retry = Some(Instant::now() + PAUSE);
            Ok(false)
        }
    }
}
