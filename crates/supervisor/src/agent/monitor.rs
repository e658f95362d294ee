//! Watches one dispatch against its limits. The judgement is `model::life`'s; this actor only brings
//! it the state. Stall, loop and drift detection come to this place.

use crate::context::Daemon;
use muleteer_model::id::DispatchId;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::sync::Arc;

#[derive(Debug)]
pub enum MonitorMsg {
    /// New events of this dispatch are durable.
    Folded,
}

pub struct Monitor;

pub struct State {
    daemon: Arc<Daemon>,
    id: DispatchId,
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
        Ok(State { daemon, id })
    }

    async fn handle(
        &self,
        _: ActorRef<MonitorMsg>,
        message: MonitorMsg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            MonitorMsg::Folded => {
                let snapshot = state.daemon.snapshot();
                let Some(dispatch) = snapshot.get(&state.id) else { return Ok(()) };
                if let Some((limit, detail)) = muleteer_model::life::limit_reached(dispatch) {
                    let input = muleteer_model::life::Input::Limit { limit, detail };
                    state.daemon.agent(&state.id).life.cast(super::life::LifeMsg::Input(input));
                }
            }
        }
        Ok(())
    }
}
