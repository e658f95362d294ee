//! `run/<id>`: feeds the machine of a run with messages. All its state is folded from the run's
//! log, so it can be killed at any line.

mod machine;

use crate::daemon::context::Daemon;
use crate::driver::Driver;
use crate::ports::spec_run::RunMsg;
use crate::spec_run::actor::machine::{Keeping, RunKey, RunMachine, Trial};
use crate::spec_run::begin::recovery;
use muleteer_model::event::id::DispatchId;
use muleteer_model::spec_run::{EffectKey, Input};
use muleteer_protocol::ErrorCode;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The interval at which `lock.json` is rewritten.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Codes of failures that may pass by themselves. The git of a killed daemon works for a moment
/// longer, and holds its locks.
const PASSING: &[ErrorCode] =
    &[ErrorCode::Git, ErrorCode::Io, ErrorCode::StoreIo, ErrorCode::Busy, ErrorCode::BeadsFailed];
const TRIES: u32 = 4;
const AGAIN: Duration = Duration::from_millis(500);

pub struct RunActor;

pub struct State {
    driver: Driver<RunMachine, ActorRef<RunMsg>>,
    /// The number of failures in a row of each effect that is retried.
    tries: HashMap<EffectKey, u32>,
    beating: bool,
}

impl Actor for RunActor {
    type Msg = RunMsg;
    type State = State;
    type Arguments = (Arc<Daemon>, DispatchId);

    async fn pre_start(
        &self,
        myself: ActorRef<RunMsg>,
        (daemon, key): (Arc<Daemon>, DispatchId),
    ) -> Result<State, ActorProcessingErr> {
        let hosted = daemon.runs.get(&key).ok_or("this daemon does not host the run")?;
        hosted.actor.set(myself.clone());
        myself.cast(RunMsg::Boot)?;
        let driver = Driver::new(RunMachine::new(daemon, hosted), myself);
        Ok(State { driver, tries: HashMap::new(), beating: false })
    }

    async fn handle(
        &self,
        myself: ActorRef<RunMsg>,
        message: RunMsg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let driver = &mut state.driver;
        match message {
            RunMsg::Boot => {
                let machine = driver.machine_mut();
                let places = &machine.hosted.places;
                if matches!(machine.trial, Trial::Over) && recovery::is_suspect(places) {
                    machine.wait_for_trial(&myself);
                }
                machine.open().await?;
                if !std::mem::replace(&mut state.beating, true) {
                    myself.cast(RunMsg::Heartbeat)?;
                }
            }
            RunMsg::Input(input) => drop(driver.feed(*input).await?),
            RunMsg::Command(input, reply) => {
                if matches!(*input, Input::Stop { .. }) {
                    driver.machine_mut().leave_queue().await?;
                }
                let _ = reply.send(driver.feed(*input).await?);
            }
            RunMsg::Failed { key, code, message } => {
                let tries = state.tries.entry(key.clone()).or_default();
                *tries += 1;
                if PASSING.iter().any(|passing| passing.as_str() == code) && *tries < TRIES {
                    tracing::warn!(?key, %code, %message, "an effect failed; retrying");
                    myself.send_after(AGAIN * *tries, || RunMsg::Again(key));
                    return Ok(());
                }
                state.tries.remove(&key);
                driver.forget(&RunKey::Step(key));
                driver.feed(Input::Fatal { code, message }).await?;
            }
            RunMsg::Again(key) => driver.forget(&RunKey::Step(key)),
            RunMsg::Wake => driver.woken(),
            RunMsg::Heartbeat => {
                let run = driver.machine().run.clone().filter(|run| run.is_live());
                if let Some(run) = run {
                    driver.machine_mut().beat(&run).await?;
                    myself.send_after(HEARTBEAT, || RunMsg::Heartbeat);
                    return Ok(());
                }
            }
            RunMsg::Kept { seq, event } => {
                driver.machine_mut().keeping = Keeping::Done { seq, event };
            }
            RunMsg::Asked { seq, question } => {
                driver.machine_mut().take_question(seq, question);
            }
            RunMsg::Trial(turn) => driver.machine_mut().begin_trial(turn).await?,
        }
        driver.settle().await?;
        let machine = driver.machine_mut();
        if machine.run.as_ref().is_some_and(|run| !run.is_live()) {
            let is_saved = machine.save_end().await?;
            machine.rest(is_saved);
        }
        driver.carry_out().await
    }
}
