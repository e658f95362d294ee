//! The pool: admission. It holds nothing but the configuration: who is active and who waits is read
//! from the folded fleet each time, so it is right again the moment it restarts.

use crate::agent::life::LifeMsg;
use crate::context::Daemon;
use muleteer_model::admission;
use muleteer_model::config::Pool as Limits;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::sync::Arc;

#[derive(Debug)]
pub enum PoolMsg {
    /// Somebody waits, or a place has become free.
    Look,
}

pub struct Pool;

pub struct State {
    daemon: Arc<Daemon>,
    limits: Limits,
}

impl Actor for Pool {
    type Msg = PoolMsg;
    type State = State;
    type Arguments = Arc<Daemon>;

    async fn pre_start(&self, myself: ActorRef<PoolMsg>, daemon: Arc<Daemon>) -> Result<State, ActorProcessingErr> {
        daemon.pool.set(myself.clone());
        myself.cast(PoolMsg::Look)?;
        let limits = daemon.pool_limits;
        Ok(State { daemon, limits })
    }

    async fn handle(
        &self,
        _: ActorRef<PoolMsg>,
        message: PoolMsg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            PoolMsg::Look => {
                muleteer_process::fault::point("pool.look");
                for id in admission::next(state.limits, &state.daemon.snapshot()) {
                    // Not there yet: its life asks again as soon as it is.
                    state.daemon.agent(&id).life.cast(LifeMsg::Admitted);
                }
            }
        }
        Ok(())
    }
}
