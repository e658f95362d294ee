//! The pool, which admits dispatches. It reads the running and waiting dispatches from the folded
//! fleet each time. Its own state is the dispatches that it has admitted and not seen start yet. A
//! restart of the pool restarts the whole fleet, so both sides forget these.

use crate::daemon::context::Daemon;
use crate::ports::agent::LifeMsg;
use crate::ports::pool::PoolMsg;
use jiff::Timestamp;
use muleteer_model::admission;
use muleteer_model::config::Pool as Limits;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event};
use ractor::rpc::CallResult;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The timeout for reserving a slot. Without an answer the dispatch waits in the queue.
const RESERVE_PATIENCE: Duration = Duration::from_secs(1);

/// The slot of a dispatch that is being made. Held until that is durable, or has failed.
#[derive(Debug)]
pub struct Reservation {
    daemon: Arc<Daemon>,
    id: DispatchId,
}

impl Reservation {
    /// Asks for a slot for a dispatch that these entries will make. Also returns the events that
    /// start it at once if it has a slot. If the future is dropped, the slot is released.
    pub async fn ask(daemon: &Arc<Daemon>, id: &DispatchId, made: &[Entry]) -> (Self, Vec<Event>) {
        let reservation = Self { daemon: daemon.clone(), id: id.clone() };
        let Some(pool) = daemon.ports.pool.get() else { return (reservation, vec![]) };
        let asked = pool.call(
            |reply| PoolMsg::Reserve(id.clone(), made.to_vec(), reply),
            Some(RESERVE_PATIENCE),
        );
        let begun = match asked.await {
            Ok(CallResult::Success(events)) => events,
            _ => vec![],
        };
        (reservation, begun)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.daemon.ports.pool.cast(PoolMsg::Release(self.id.clone()));
    }
}

pub struct Pool;

pub struct State {
    daemon: Arc<Daemon>,
    limits: Limits,
    alarm: Alarm,
    door: admission::Door,
}

/// The longest time until the next `Look`, because the clock may be set and the machine may be
/// suspended.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// The next scheduled `Look`. It is timed by a clock that nobody sets: by the wall clock, a `Look`
/// after that was set back would take the alarm that rang for one to come, and arm none.
#[derive(Debug, Default)]
struct Alarm {
    at: Option<Instant>,
}

impl Alarm {
    /// Arms the alarm at `now` to ring within `wait`, and returns when it does. `None` if it rings
    /// by then already.
    fn arm(&mut self, wait: Duration, now: Instant) -> Option<Duration> {
        let wait = wait.min(LONGEST_SLEEP) + Duration::from_millis(1);
        let at = now + wait;
        if self.at.is_some_and(|armed| armed > now && armed <= at) {
            return None;
        }
        self.at = Some(at);
        Some(wait)
    }
}

impl Actor for Pool {
    type Msg = PoolMsg;
    type State = State;
    type Arguments = Arc<Daemon>;

    async fn pre_start(
        &self,
        myself: ActorRef<PoolMsg>,
        daemon: Arc<Daemon>,
    ) -> Result<State, ActorProcessingErr> {
        daemon.ports.pool.set(myself.clone());
        // This first `Look` covers all requests to a predecessor.
        daemon.looking.store(false, Ordering::SeqCst);
        myself.cast(PoolMsg::Look)?;
        let limits = daemon.settings.pool_limits;
        Ok(State { daemon, limits, alarm: Alarm::default(), door: admission::Door::default() })
    }

    async fn handle(
        &self,
        myself: ActorRef<PoolMsg>,
        message: PoolMsg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            PoolMsg::Look => {
                muleteer_process::fault::point("pool.look");
                // This comes before the fleet is read, so that later requests cause another `Look`.
                state.daemon.looking.store(false, Ordering::SeqCst);
                let now = Timestamp::now();
                let fleet = state.daemon.snapshot();
                let admission = state.door.look(state.limits, &fleet, now);
                for dispatch in admission.start.iter().filter_map(|id| fleet.get(id)) {
                    // If the life is not there yet, it asks again when it starts.
                    state
                        .daemon
                        .agent(&dispatch.id)
                        .life
                        .cast(LifeMsg::Admitted(dispatch.ticket()));
                }
                let wait = |at: Timestamp| Duration::try_from(at.duration_since(now));
                if let Some(at) = admission.look_again
                    && let Some(wait) =
                        state.alarm.arm(wait(at).unwrap_or_default(), Instant::now())
                {
                    myself.send_after(wait, || PoolMsg::Look);
                }
            }
            PoolMsg::Reserve(id, made, reply) => {
                let fleet = state.daemon.snapshot();
                let begun = state.door.reserve(state.limits, &fleet, (&id, made), Timestamp::now());
                // If the caller has timed out, its `Release` is in the queue behind this message.
                let _ = reply.send(begun);
            }
            PoolMsg::Release(id) => {
                if state.door.release(&id) && state.daemon.snapshot().get(&id).is_none() {
                    state.daemon.look();
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use crate::ledger::entry;

    #[test]
    fn alarm_that_rang_is_armed_again_whatever_the_wall_clock_says() {
        let (mut alarm, start) = (Alarm::default(), Instant::now());
        let hours = Duration::from_secs(5 * 3600);
        let mut now = start;
        // The reset does not come nearer: the clock is set back again and again.
        for _ in 0..3 {
            let wait = alarm.arm(hours, now).expect("an alarm");
            assert_eq!(alarm.arm(hours, now), None, "one is enough");
            assert!(alarm.arm(Duration::ZERO, now).is_some(), "an earlier time counts");
            now += wait;
        }
    }

    /// No other event might make the pool look.
    #[tokio::test]
    #[allow(clippy::disallowed_methods)]
    async fn slot_of_a_failed_dispatch_goes_to_the_queue() {
        let daemon =
            test_daemon::daemon("/nowhere".as_ref(), Limits { max_agents: 1, ..Limits::default() });
        let (pool, _) = Pool::spawn(None, Pool, daemon.clone()).await.expect("a pool");
        let (first, second) = (test_daemon::id("abcd2345"), test_daemon::id("bcde2345"));
        let (reservation, begun) = Reservation::ask(
            &daemon,
            &first,
            &[entry(&first, None, test_daemon::sample("dispatch_created"))],
        )
        .await;
        assert!(!begun.is_empty(), "the only place is its");

        let (life, mut heard) = test_daemon::stand_in().await;
        daemon.agent(&second).life.set(life);
        daemon.fold(&second, test_daemon::sample("dispatch_created"));
        daemon.look();
        // The answer comes after the `Look`.
        let third = test_daemon::id("cdef2345");
        assert_eq!(
            Reservation::ask(
                &daemon,
                &third,
                &[entry(&third, None, test_daemon::sample("dispatch_created"))]
            )
            .await
            .1,
            []
        );
        assert!(heard.is_empty());

        drop(reservation);
        let told = tokio::time::timeout(Duration::from_secs(20), heard.recv()).await;
        let ticket = daemon.snapshot().get(&second).expect("it waits").ticket();
        assert!(
            matches!(&told, Ok(Some(LifeMsg::Admitted(given))) if *given == ticket),
            "{told:?}"
        );
        pool.stop_and_wait(None, None).await.expect("stopped");
    }
}
