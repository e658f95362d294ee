//! Watches one dispatch for its limits, signs of life and unhealthy behaviour. `dispatch::life` and
//! `monitor` of `model` judge; this actor only gives them the state and the evidence.

use crate::daemon::context::Daemon;
use crate::ports::agent::{LifeMsg, MonitorMsg};
use jiff::Timestamp;
use muleteer_model::dispatch::child_limits::overspent;
use muleteer_model::dispatch::life::{Input, awaited, limit_reached};
use muleteer_model::dispatch::{Dispatch, Phase};
use muleteer_model::event::id::DispatchId;
use muleteer_model::monitor::stall::own_processes::{OwnProcesses, ProcessUse};
use muleteer_model::monitor::stall::{Known, Look, Verdict, Watch, counts_own_cpu};
use muleteer_model::monitor::{Monitors, Seen, hung};
use muleteer_process::clock;
use muleteer_process::group;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::sync::Arc;
use std::time::Duration;

pub struct Monitor;

pub struct State {
    daemon: Arc<Daemon>,
    id: DispatchId,
    watched: Option<Watched>,
    /// The monitors of this epoch's process. A daemon that has just started has no observations; of
    /// earlier ones it only has the findings in the log.
    monitors: Option<(u32, Monitors)>,
    call: Option<Waiting>,
    /// The number of calls so far.
    calls: u64,
    /// A `Look` is scheduled. There is none while no turn runs, so that an idle daemon sleeps.
    armed: bool,
    /// This actor has seen the dispatch idle, so it misses none of the coming events.
    from_the_start: bool,
}

/// A call that the agent has not answered. Its time counts from when this actor first saw it,
/// because unobserved time must not count against an agent.
struct Waiting {
    number: u64,
    epoch: u32,
    call: &'static str,
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

impl Actor for Monitor {
    type Msg = MonitorMsg;
    type State = State;
    type Arguments = (Arc<Daemon>, DispatchId);

    async fn pre_start(
        &self,
        myself: ActorRef<MonitorMsg>,
        (daemon, id): (Arc<Daemon>, DispatchId),
    ) -> Result<State, ActorProcessingErr> {
        daemon.agent(&id).monitor.set(myself.clone());
        myself.cast(MonitorMsg::Folded)?;
        Ok(State::new(daemon, id))
    }

    async fn handle(
        &self,
        myself: ActorRef<MonitorMsg>,
        message: MonitorMsg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let snapshot = state.daemon.snapshot();
        let Some(dispatch) = snapshot.get(&state.id) else { return Ok(()) };
        match message {
            MonitorMsg::Folded => {
                if let Some((limit, detail)) =
                    limit_reached(dispatch).or_else(|| overspent(&snapshot, dispatch))
                {
                    state.tell(Input::Limit { limit, detail });
                }
                state.follow(dispatch);
                state.follow_call(dispatch, &myself);
            }
            MonitorMsg::CallDue(number) => state.look_at_call(number, &myself),
            MonitorMsg::Heard(marks) => {
                if let Some(watched) = &mut state.watched {
                    watched.watch.hear(&marks, clock::awake());
                }
            }
            MonitorMsg::Seen(epoch, seen) => state.judge(dispatch, epoch, seen),
            MonitorMsg::Look => {
                state.armed = false;
                state.follow(dispatch);
                state.look(dispatch);
            }
        }
        if let Some(watched) = &state.watched
            && !state.armed
        {
            state.armed = true;
            myself.send_after(watched.watch.interval(), || MonitorMsg::Look);
        }
        Ok(())
    }
}

impl State {
    fn new(daemon: Arc<Daemon>, id: DispatchId) -> Self {
        Self {
            daemon,
            id,
            watched: None,
            monitors: None,
            call: None,
            calls: 0,
            armed: false,
            from_the_start: false,
        }
    }

    fn tell(&self, input: Input) {
        self.daemon.agent(&self.id).life.cast(LifeMsg::Input(input));
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

    /// Gives the agent's actions to the monitors.
    fn judge(&mut self, dispatch: &Dispatch, epoch: u32, seen: Vec<(f64, Seen)>) {
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

    /// Times the call that waits for an answer.
    fn follow_call(&mut self, dispatch: &Dispatch, myself: &ActorRef<MonitorMsg>) {
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
        myself.send_after(limit, move || MonitorMsg::CallDue(number));
    }

    fn look_at_call(&mut self, number: u64, myself: &ActorRef<MonitorMsg>) {
        let Some(Waiting { epoch, call, since, limit, .. }) =
            self.call.as_ref().filter(|call| call.number == number)
        else {
            return;
        };
        // The timer may count time during which the machine was suspended.
        let waited = clock::awake().saturating_sub(*since);
        if waited < *limit {
            myself.send_after(*limit - waited, move || MonitorMsg::CallDue(number));
            return;
        }
        self.tell(Input::CallOverdue {
            epoch: *epoch,
            call: (*call).into(),
            waited_s: waited.as_secs(),
        });
    }

    fn look(&mut self, dispatch: &Dispatch) {
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
    #[test]
    fn the_next_process_is_watched_for_itself() {
        let (daemon, id) = (
            test_daemon::daemon("/nowhere".as_ref(), Pool::default()),
            test_daemon::id("abcd2345"),
        );
        daemon.fold(&id, test_daemon::sample("dispatch_created"));
        let mut state = State::new(daemon, id);
        for epoch in 1..=2 {
            let begun = Event::AttemptStarted { attempt: epoch, epoch, resume: None };
            for event in
                [begun, test_daemon::sample("agent_spawned"), test_daemon::sample("turn_started")]
            {
                state.daemon.fold(&state.id, event);
            }
            let fleet = state.daemon.snapshot();
            fleet.get(&state.id).into_iter().for_each(|dispatch| state.follow(dispatch));
            assert_eq!(state.watched.as_ref().map(|watched| watched.epoch), Some(epoch));
        }
    }
}
