//! Watches one dispatch for its limits, signs of life and unhealthy behaviour, as a part of its
//! life. `dispatch::life` and `monitor` of `model` judge; this part only gives them the state and
//! the evidence. Its findings are inputs in the mailbox of the life.

use crate::ports::agent::LifeMsg;
use jiff::Timestamp;
use muleteer_model::dispatch::child_limits::overspent;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::dispatch::life::{Input, awaited, can_be_held, current_epoch, limit_reached};
use muleteer_model::dispatch::{Dispatch, Phase};
use muleteer_model::monitor::stall::own_processes::{OwnProcesses, ProcessUse};
use muleteer_model::monitor::stall::{Known, Look, Mark, Verdict, Watch, counts_own_cpu};
use muleteer_model::monitor::{Monitors, Seen, hung};
use muleteer_process::clock;
use muleteer_process::fault;
use muleteer_process::group;
use ractor::ActorRef;
use std::time::Duration;

/// The monitor of one life. It has no state that matters: a new one starts to observe again.
pub struct Monitor {
    life: ActorRef<LifeMsg>,
    watched: Option<Watched>,
    /// The monitors of this epoch's process. A daemon that has just started has no observations; of
    /// earlier ones it only has the findings in the log.
    monitors: Option<(u32, Monitors)>,
    call: Option<Waiting>,
    /// The number of calls so far.
    calls: u64,
    /// The wait of a process for a person, and the number of waits so far.
    hold: Option<Hold>,
    holds: u64,
    /// A `Look` is scheduled. There is none while no turn runs, so that an idle daemon sleeps.
    armed: bool,
    /// This monitor has seen the dispatch idle, so it misses none of the coming events.
    from_the_start: bool,
}

/// A call that the agent has not answered. Its time counts from when this monitor first saw it,
/// because unobserved time must not count against an agent.
struct Waiting {
    number: u64,
    epoch: u32,
    call: &'static str,
    since: Duration,
    limit: Duration,
}

/// A process that waits for an answer or a further message of a person. Its time counts from when
/// this monitor first saw it wait, so a new daemon begins it anew.
struct Hold {
    number: u64,
    epoch: u32,
    turn: u32,
    since: Duration,
    limit: Duration,
}

/// The process that owes an answer.
struct Watched {
    epoch: u32,
    watch: Watch,
    /// Set if the CPU time of the agent's own processes is no sign of life.
    own: Option<OwnProcesses>,
}

/// Returns the CPU time below a shim that shows life.
fn living_cpu(shim_pid: u32, watched: &mut Watched) -> Option<Duration> {
    let all = group::cpu_below(shim_pid)?;
    let Some(own) = &mut watched.own else { return Some(all) };
    let others = own.cpu_of_others(watched.watch.tool_ran(), &processes(shim_pid));
    Some(if watched.watch.tool_runs() { all } else { others })
}

fn processes(shim_pid: u32) -> Vec<ProcessUse> {
    let below = group::descendants(shim_pid).into_iter();
    below
        .map(|stat| ProcessUse {
            pid: stat.pid,
            start_time: stat.start_time,
            cpu: stat.cpu + stat.reaped_cpu,
        })
        .collect()
}

impl Monitor {
    pub fn new(life: ActorRef<LifeMsg>) -> Self {
        Self {
            life,
            watched: None,
            monitors: None,
            call: None,
            calls: 0,
            hold: None,
            holds: 0,
            armed: false,
            from_the_start: false,
        }
    }

    /// Follows a dispatch with new durable events.
    pub fn folded(&mut self, fleet: &Fleet, dispatch: &Dispatch) {
        if let Some((limit, detail)) =
            limit_reached(dispatch).or_else(|| overspent(fleet, dispatch))
        {
            self.tell(Input::Limit { limit, detail });
        }
        self.follow(dispatch);
        self.follow_call(dispatch);
        self.follow_hold(dispatch);
        self.arm();
    }

    /// Notes output of the agent, which has these marks.
    pub fn heard(&mut self, marks: &[Mark]) {
        if let Some(watched) = &mut self.watched {
            watched.watch.hear(marks, clock::awake());
        }
    }

    /// Looks for signs of life, as [`LifeMsg::Look`] asks.
    pub fn look(&mut self, dispatch: &Dispatch) {
        self.armed = false;
        self.follow(dispatch);
        self.look_for_life(dispatch);
        self.arm();
    }

    /// Schedules the next look, unless there is one or nothing to look at.
    fn arm(&mut self) {
        if let Some(watched) = &self.watched
            && !std::mem::replace(&mut self.armed, true)
        {
            self.life.send_after(watched.watch.interval(), || LifeMsg::Look);
        }
    }

    fn tell(&self, input: Input) {
        let _ = self.life.cast(LifeMsg::Input(input));
    }

    /// Starts to watch a process that got work, and stops with the end of its turn.
    fn follow(&mut self, dispatch: &Dispatch) {
        let Some(epoch) = dispatch.owes_an_answer() else {
            self.watched = None;
            self.from_the_start = true;
            return;
        };
        if self.watched.as_ref().is_none_or(|watched| watched.epoch != epoch) {
            let timeout = Duration::from_secs(dispatch.created.limits.inactivity_timeout_s);
            let now = clock::awake();
            let watch = Watch::new(timeout, &dispatch.created.api, self.from_the_start, now);
            let watch = watch.knowing(Known::of(dispatch, Timestamp::now()), now);
            let own = (!counts_own_cpu(&dispatch.created.backend)).then(|| match &dispatch.phase {
                Phase::Working { shim_pid, .. } => OwnProcesses::new(&processes(*shim_pid)),
                _ => OwnProcesses::default(),
            });
            self.watched = Some(Watched { epoch, watch, own });
            self.from_the_start = true;
        }
    }

    /// Gives durable actions of this epoch's agent to the monitors, each with its time in
    /// seconds of the shim's clock of awake time.
    pub fn judge(&mut self, dispatch: &Dispatch, epoch: u32, seen: Vec<(f64, Seen)>) {
        if self.monitors.as_ref().is_none_or(|(of, _)| *of != epoch) {
            let created = &dispatch.created;
            // The dispatch enforces its budget, over all its processes.
            let mut monitors = Monitors::new(&created.watched, None);
            monitors.hear(Seen::At(created.directory().into()), 0.0);
            self.monitors = Some((epoch, monitors));
        }
        let Some((_, monitors)) = &mut self.monitors else { return };
        let found: Vec<_> = seen.into_iter().flat_map(|(t, seen)| monitors.hear(seen, t)).collect();
        for finding in found {
            self.tell(Input::Sick { epoch, finding });
        }
    }

    /// Times the wait of a process for the answer or the next message of a person.
    fn follow_hold(&mut self, dispatch: &Dispatch) {
        let limit_s = match dispatch.holds_idle() {
            true => dispatch.created.idle_hold_s,
            false => dispatch.created.hold_s.filter(|_| can_be_held(dispatch)),
        };
        let (Some(epoch), Some(hold_s)) = (current_epoch(dispatch), limit_s) else {
            self.hold = None;
            return;
        };
        let limit = Duration::from_secs(hold_s);
        let turn = dispatch.turns;
        let is_this = |hold: &Hold| (hold.epoch, hold.turn, hold.limit) == (epoch, turn, limit);
        if self.hold.as_ref().is_some_and(is_this) {
            return;
        }
        self.holds += 1;
        let number = self.holds;
        self.hold = Some(Hold { number, epoch, turn, since: clock::awake(), limit });
        self.life.send_after(limit, move || LifeMsg::HoldDue(number));
    }

    /// Reports a wait that is over, as [`LifeMsg::HoldDue`] asks.
    pub fn hold_due(&self, number: u64) {
        let Some(hold) = self.hold.as_ref().filter(|hold| hold.number == number) else { return };
        let waited = clock::awake().saturating_sub(hold.since);
        match hold.limit.checked_sub(waited).filter(|left| !left.is_zero()) {
            // The machine slept meanwhile.
            Some(left) => {
                self.life.send_after(left, move || LifeMsg::HoldDue(number));
            }
            None => {
                fault::point("hold.over");
                self.tell(Input::HoldOver { epoch: hold.epoch });
            }
        }
    }

    /// Times the call that waits for an answer.
    fn follow_call(&mut self, dispatch: &Dispatch) {
        let Some((epoch, call, limit_s)) = awaited(dispatch) else {
            self.call = None;
            return;
        };
        if self.call.as_ref().is_some_and(|waiting| (waiting.epoch, waiting.call) == (epoch, call))
        {
            return;
        }
        self.calls += 1;
        let (number, limit) = (self.calls, Duration::from_secs(limit_s));
        self.call = Some(Waiting { number, epoch, call, since: clock::awake(), limit });
        self.life.send_after(limit, move || LifeMsg::CallDue(number));
    }

    /// Checks the call with this number, which should have been answered by now.
    pub fn call_due(&self, number: u64) {
        let Some(Waiting { epoch, call, since, limit, .. }) =
            self.call.as_ref().filter(|call| call.number == number)
        else {
            return;
        };
        // The timer may count time during which the machine was suspended.
        let waited = clock::awake().saturating_sub(*since);
        if waited < *limit {
            self.life.send_after(*limit - waited, move || LifeMsg::CallDue(number));
            return;
        }
        self.tell(Input::CallOverdue {
            epoch: *epoch,
            call: (*call).into(),
            waited_s: waited.as_secs(),
        });
    }

    fn look_for_life(&mut self, dispatch: &Dispatch) {
        let (Some(watched), Phase::Working { shim_pid, process, .. }) =
            (&mut self.watched, &dispatch.phase)
        else {
            return;
        };
        // Reads a file of every process, which takes some milliseconds.
        let cpu = tokio::task::block_in_place(|| living_cpu(*shim_pid, watched));
        let look = Look { cpu, blocked_by_us: process.blocked_by_us };
        let epoch = watched.epoch;
        match watched.watch.look(look, clock::awake()) {
            Verdict::Stalled(silent) => {
                let evidence = watched.watch.evidence();
                self.tell(Input::Stalled { epoch, silent_s: silent.as_secs(), evidence });
            }
            Verdict::ApiDown(trouble, lasted) => {
                self.tell(Input::ApiDown { epoch, trouble, for_s: lasted.as_secs() });
            }
            Verdict::ToolHangs(quiet) => self.tell(Input::Sick { epoch, finding: hung(quiet) }),
            Verdict::Alive(_) | Verdict::Quiet(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use muleteer_model::config::Pool;
    use muleteer_model::event::Event;

    /// The monitor may miss the states between two processes: the newest state shows the next one
    /// running.
    #[tokio::test]
    async fn the_next_process_is_watched_for_itself() {
        let (daemon, id) = (
            test_daemon::daemon("/nowhere".as_ref(), Pool::default()),
            test_daemon::id("abcd2345"),
        );
        daemon.fold(&id, test_daemon::sample("dispatch_created"));
        let (life, _heard) = test_daemon::stand_in().await;
        let mut monitor = Monitor::new(life);
        for epoch in 1..=2 {
            let begun = Event::AttemptStarted { attempt: epoch, epoch, resume: None };
            for event in
                [begun, test_daemon::sample("agent_spawned"), test_daemon::sample("turn_started")]
            {
                daemon.fold(&id, event);
            }
            let fleet = daemon.snapshot();
            fleet.get(&id).into_iter().for_each(|dispatch| monitor.follow(dispatch));
            assert_eq!(monitor.watched.as_ref().map(|watched| watched.epoch), Some(epoch));
        }
    }
}
