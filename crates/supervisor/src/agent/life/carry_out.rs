//! Carries out the effects of a dispatch: short ones at once and in order, because the agent gets
//! commands in the order in which the link does; those that wait for git or files as tasks.

use crate::agent::fetch;
use crate::agent::life::machine::{LifeMachine, answer_key};
use crate::agent::transcript_probe;
use crate::dispatch::launch::command_line::tool_server_for;
use crate::dispatch::launch::project_settings::settings_for;
use crate::dispatch::prompt_files::{Said, prompt_text};
use crate::driver::Carried;
use crate::ports::agent::{JournalMsg, LifeMsg};
use crate::ports::shim_command::Command;
use muleteer_model::agent::acp_handshake::Call;
use muleteer_model::agent::ask::Verdict;
use muleteer_model::dispatch::Phase;
use muleteer_model::dispatch::life::{Effect, EffectKey, Input};
use muleteer_model::monitor::stall;
use muleteer_process::fault;
use ractor::ActorProcessingErr;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The longest time that an agent waits for its journal to be made.
const JOURNAL_PATIENCE: Duration = Duration::from_secs(10);
/// The time for a CLI to exit after its stdin was closed.
pub(super) const LEAVE_GRACE: Duration = Duration::from_secs(60);

impl LifeMachine {
    pub(super) async fn carry(
        &mut self,
        key: &EffectKey,
        effect: Effect,
    ) -> Result<Carried<Input>, ActorProcessingErr> {
        let epoch = self.dispatch.epoch;
        match effect {
            Effect::Admit => self.daemon.look(),
            Effect::EnsureShim { epoch, resume } => self.ensure_shim(epoch, resume).await,
            // After a link's pause everything is requested again.
            Effect::Prompt { .. } if self.link.is_pausing() => {}
            Effect::Prompt { key, close } => self.prompt(&key, close).await?,
            Effect::Call(call) => self.call(key, &call).await,
            Effect::CloseStdin => self.close_stdin(key),
            Effect::Answer { id } => self.answer(&id),
            Effect::SetModel { key, model } => self.set_model(&key, &model),
            Effect::Interrupt { key } => {
                let command = match self.backend.interrupt(self.session(), &key) {
                    Some(bytes) => Command::write(&format!("interrupt/{key}"), bytes, false),
                    None => Command::interrupt(&key),
                };
                self.link.send(command);
            }
            Effect::Terminate => {
                let command = Command::terminate(&format!("terminate/{epoch}"));
                self.link.send(command);
            }
            Effect::FetchWork => {
                // The agent is gone, so its slot is free already.
                self.daemon.look();
                let (daemon, dispatch) = (self.daemon.clone(), self.dispatch.clone());
                return Ok(Carried::Task(Box::pin(async move {
                    Some(Input::WorkFetched(fetch::fetch_work(&daemon, &dispatch).await))
                })));
            }
            Effect::Probe { key } => {
                let (daemon, dispatch, backend) =
                    (self.daemon.clone(), self.dispatch.clone(), self.backend);
                return Ok(Carried::Task(Box::pin(async move {
                    let reading = transcript_probe::probe(&daemon, &dispatch, backend, &key).await;
                    Some(Input::Probed { epoch, key, reading })
                })));
            }
            // The driver has the timer.
            Effect::WakeAt(_) => {}
        }
        Ok(Carried::Done)
    }

    fn session(&self) -> Option<&str> {
        self.dispatch.session.id.as_deref()
    }

    async fn ensure_shim(&mut self, epoch: u32, resume: Option<String>) {
        fault::point("life.attempt_durable");
        if let (Phase::Starting { .. }, Some(journal)) =
            (&self.dispatch.phase, self.slots.journal.get())
            && !self.slots.has_journal.load(Ordering::SeqCst)
        {
            let _ = journal.call(JournalMsg::Ready, Some(JOURNAL_PATIENCE)).await;
        }
        self.leaving = false;
        self.link.ensure(epoch, resume);
    }

    async fn prompt(&mut self, key: &str, close: bool) -> Result<(), ActorProcessingErr> {
        let said = prompt_text(&self.daemon, &self.dispatch, key).await?;
        fault::point("link.before_prompt");
        let bytes = match said {
            Said::Prompt(text) => self.backend.prompt(self.session(), key, &text),
            // A command is only accepted for a backend that supports commands.
            Said::CliCommand(text) => {
                self.backend.cli_command(self.session(), key, &text).unwrap_or_default()
            }
        };
        self.leaving = false;
        self.link.send(Command::write(key, bytes, close));
        fault::point("link.after_prompt");
        Ok(())
    }

    async fn call(&mut self, key: &EffectKey, call: &Call) {
        let settings = settings_for(&self.daemon, &self.dispatch.id, call).await;
        let tools = tool_server_for(&self.daemon, &self.dispatch, call).await;
        if let Some(bytes) = self.backend.call(call, self.session(), settings, tools.as_ref()) {
            let command = Command::write(&format!("call/{key}"), bytes, false);
            self.link.send(command);
        }
    }

    fn close_stdin(&mut self, key: &EffectKey) {
        let epoch = self.dispatch.epoch;
        if self.dispatch.created.idle_hold_s.is_some() {
            fault::point("hold.before_close");
        }
        self.leaving = true;
        // The stdin of a process with one prompt was closed after the prompt.
        if self.dispatch.created.multi_turn {
            let command = Command::write(&key.to_string(), vec![], true);
            self.link.send(command);
        }
        self.myself.send_after(LEAVE_GRACE, move || LifeMsg::Overdue(epoch));
    }

    fn set_model(&self, key: &str, model: &str) {
        // If only a new process can change the model, the next process will.
        let by = self.dispatch.model.set_by.as_deref();
        if let Some(bytes) = self.backend.set_model(self.session(), by, key, model) {
            let command = Command::write(&format!("model/{key}"), bytes, false);
            self.link.send(command);
        }
    }

    /// Sends an answer to the agent, and tells the monitor that the agent no longer waits.
    fn answer(&mut self, id: &str) {
        let Some((pending, answer)) =
            self.dispatch.asks.answered().find(|(pending, _)| pending.id == id)
        else {
            return;
        };
        fault::point("link.before_answer");
        match self.backend.answer(id, &pending.ask, answer) {
            Some(bytes) => {
                let key = answer_key(self.dispatch.epoch, id);
                self.link.send(Command::write(&key, bytes, false));
            }
            None => {
                tracing::error!(
                    id = %self.dispatch.id,
                    request = id,
                    "this backend does not accept answers"
                )
            }
        }
        fault::point("link.after_answer");
        let call = pending.ask.call_id.as_deref();
        let marks = match answer.verdict {
            Verdict::Deny if self.dispatch.created.calls.is_some() => stall::refused(id, call),
            Verdict::Allow | Verdict::Deny | Verdict::Text => stall::answered(id),
        };
        self.monitor.heard(&marks);
    }
}
