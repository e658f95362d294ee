//! Drives the life of one dispatch: `model::dispatch::life` decides, the ledger makes decisions
//! durable, the driver carries them out. All its state is folded from the ledger, so it can be
//! killed at any line.

mod carry_out;
mod machine;

use crate::agent::life::machine::{LifeInput, LifeMachine};
use crate::daemon::context::Daemon;
use crate::driver::Driver;
use crate::ports::agent::LifeMsg;
use crate::ports::shim_command::Command;
use muleteer_model::dispatch::Phase;
use muleteer_model::dispatch::life::Input;
use muleteer_model::event::id::DispatchId;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::sync::Arc;

pub struct Life;

pub struct State {
    driver: Driver<LifeMachine, ActorRef<LifeMsg>>,
}

impl Actor for Life {
    type Msg = LifeMsg;
    type State = State;
    type Arguments = (Arc<Daemon>, DispatchId);

    async fn pre_start(
        &self,
        myself: ActorRef<LifeMsg>,
        (daemon, id): (Arc<Daemon>, DispatchId),
    ) -> Result<State, ActorProcessingErr> {
        let machine = LifeMachine::new(daemon, id, myself.clone())?;
        machine.slots.life.set(myself.clone());
        myself.cast(LifeMsg::Boot)?;
        Ok(State { driver: Driver::new(machine, myself) })
    }

    async fn handle(
        &self,
        _: ActorRef<LifeMsg>,
        message: LifeMsg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        // It is boxed, so that the memory for the largest message is not held between messages.
        Box::pin(state.on(message)).await
    }
}

impl State {
    async fn on(&mut self, message: LifeMsg) -> Result<(), ActorProcessingErr> {
        match message {
            LifeMsg::Boot | LifeMsg::Wake => {
                self.driver.woken();
                // The gate appends prompts by itself.
                self.driver.machine_mut().refresh()?;
                self.driver.machine_mut().observe();
                self.driver.settle().await?;
            }
            LifeMsg::LinkEnded(epoch, error) => {
                self.driver.machine_mut().link.ended(epoch, error)?;
            }
            LifeMsg::LinkUp => {
                self.driver.machine_mut().link.resume();
                self.driver.forget_all();
                self.driver.machine_mut().discard_pieces();
                self.driver.settle().await?;
            }
            LifeMsg::Admitted(ticket) => self.feed(Input::Admitted(ticket)).await?,
            LifeMsg::Input(input) => self.feed(input).await?,
            LifeMsg::Command(input, reply) => {
                let meant = self.driver.feed(LifeInput::One(Box::new(input))).await?;
                let _ = reply.send(meant);
            }
            LifeMsg::Output(steps, reply) => {
                self.driver.machine_mut().pass_on(&steps);
                self.driver.feed(LifeInput::Output(steps)).await?;
                self.driver.machine_mut().tell_actions();
                let _ = reply.send(self.driver.machine().dispatch.position);
            }
            LifeMsg::Written(epoch, idem) => {
                if let Some(key) = self.driver.machine().prompt_of(&idem) {
                    self.feed(Input::Written { at: None, epoch, key }).await?;
                }
            }
            LifeMsg::Overdue(epoch) => self.end_overdue(epoch),
            LifeMsg::Look => {
                let machine = self.driver.machine_mut();
                machine.refresh()?;
                machine.monitor.look(&machine.dispatch);
                return Ok(());
            }
            LifeMsg::HoldDue(number) => {
                self.driver.machine().monitor.hold_due(number);
                return Ok(());
            }
            LifeMsg::CallDue(number) => {
                self.driver.machine().monitor.call_due(number);
                return Ok(());
            }
            LifeMsg::Failed(error) => return Err(error.into()),
        }
        self.carry_out().await
    }

    async fn feed(&mut self, input: Input) -> Result<(), ActorProcessingErr> {
        self.driver.feed(LifeInput::One(Box::new(input))).await.map(drop)
    }

    async fn carry_out(&mut self) -> Result<(), ActorProcessingErr> {
        if self.driver.machine().dispatch.phase == Phase::Queued {
            // Effects of an earlier life may have to be repeated.
            self.driver.forget_all();
        }
        self.driver.carry_out().await?;
        if self.driver.machine().dispatch.is_finished() {
            self.driver.machine_mut().finish().await;
        }
        Ok(())
    }

    fn end_overdue(&self, overdue: u32) {
        let machine = self.driver.machine();
        if let Phase::Working { epoch, .. } = machine.dispatch.phase
            && epoch == overdue
            && machine.leaving
        {
            let command = Command::terminate(&format!("overdue/{epoch}"));
            machine.link.send(command);
        }
    }
}

#[cfg(test)]
mod tests;
