//! Watches one dispatch against its limits, and for signs of life. The judgement is `model::life`'s and
//! `model::stall`'s; this actor only brings them the state and the evidence. Loop and drift detection
//! come to this place.

use super::life::LifeMsg;
use crate::context::Daemon;
use muleteer_model::dispatch::{Dispatch, Phase};
use muleteer_model::id::DispatchId;
use muleteer_model::life::{Input, limit_reached};
use muleteer_model::stall::{Look, Mark, Verdict, Watch};
use muleteer_process::{clock, group};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug)]
pub enum MonitorMsg {
    /// New events of this dispatch are durable.
    Folded,
    /// The agent has put something out, with these marks in it.
    Heard(Vec<Mark>),
    /// It is time to look for signs of life again.
    Look,
}

pub struct Monitor;

pub struct State {
    daemon: Arc<Daemon>,
    id: DispatchId,
    watched: Option<Watched>,
    /// A `Look` is on its way. There is none while no turn runs: an idle daemon sleeps.
    armed: bool,
    /// This actor has seen the dispatch with nothing to do, so it misses nothing of what comes.
    from_the_start: bool,
}

/// The process that owes an answer.
struct Watched {
    epoch: u32,
    watch: Watch,
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
        Ok(State { daemon, id, watched: None, armed: false, from_the_start: false })
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
                if let Some((limit, detail)) = limit_reached(dispatch) {
                    state.tell(Input::Limit { limit, detail });
                }
                state.follow(dispatch);
            }
            MonitorMsg::Heard(marks) => {
                if let Some(watched) = &mut state.watched {
                    watched.watch.hear(&marks, clock::awake());
                }
            }
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
    fn tell(&self, input: Input) {
        self.daemon.agent(&self.id).life.cast(LifeMsg::Input(input));
    }

    /// Begins to watch a process that is given something to do, and ends with its turn.
    fn follow(&mut self, dispatch: &Dispatch) {
        let Some(epoch) = dispatch.owes_an_answer() else {
            self.watched = None;
            self.from_the_start = true;
            return;
        };
        if self.watched.as_ref().is_none_or(|watched| watched.epoch != epoch) {
            let timeout = Duration::from_secs(dispatch.created.limits.inactivity_timeout_s);
            let watch = Watch::new(timeout, &dispatch.created.api, self.from_the_start, clock::awake());
            self.watched = Some(Watched { epoch, watch });
            self.from_the_start = true;
        }
    }

    fn look(&mut self, dispatch: &Dispatch) {
        let (Some(watched), Phase::Working { shim_pid, .. }) = (&mut self.watched, &dispatch.phase) else { return };
        // Reads a file of every process there is: some milliseconds.
        let cpu = tokio::task::block_in_place(|| group::cpu_below(*shim_pid));
        let look = Look { cpu, blocked_by_us: dispatch.blocked_by_us };
        let epoch = watched.epoch;
        match watched.watch.look(look, clock::awake()) {
            Verdict::Stalled(silent) => {
                let evidence = watched.watch.evidence();
                self.tell(Input::Stalled { epoch, silent_s: silent.as_secs(), evidence });
            }
            Verdict::ApiDown(trouble, lasted) => {
                self.tell(Input::ApiDown { epoch, trouble, for_s: lasted.as_secs() });
            }
            Verdict::Alive(_) | Verdict::Quiet(_) => {}
        }
    }
}
