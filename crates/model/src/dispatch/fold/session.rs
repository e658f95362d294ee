//! The session of the agent's CLI, its mode and its model.

use crate::agent::acp_handshake::{CallFailure, Opening};
use crate::dispatch::process::after_mode;
use crate::dispatch::{Dispatch, ModelChange, Stop};
use crate::event::{Event, ModeStep};
use crate::{
    api_events, attempt_events, daemon_events, intervention_events, output_events,
    permission_events, prompt_events, result_events, spec_run_events, task_list_events,
    tool_events,
};

impl Dispatch {
    pub(super) fn fold_session(&mut self, event: &Event) {
        match event {
            Event::SessionStarted { session_id, model } => {
                self.session.id = Some(session_id.clone()).filter(|id| !id.is_empty());
                self.session.model = model.clone().or(self.session.model.take());
            }
            Event::AgentGreeted { agent, load } => {
                self.session.agent.clone_from(agent);
                self.open(Opening::Session { load: load.clone() });
            }
            Event::SessionOpened { set_model_by, model_by, set_mode, .. } => {
                self.model.set_by.clone_from(model_by);
                self.open(match set_mode.as_deref().cloned() {
                    Some(ModeStep { mode, by, otherwise }) => {
                        Opening::Mode { by, mode, otherwise, model_by: set_model_by.clone() }
                    }
                    None => after_mode(set_model_by.clone()),
                });
            }
            Event::SessionModeKept { mode, by } => {
                self.with_process(|process| process.mode.keep(mode, by));
            }
            Event::SessionModeSet { mode } => self.with_process(|process| process.set_mode(mode)),
            Event::SessionModeChanged { mode, back } => {
                self.with_process(|process| process.mode.change(mode, back.is_some()));
            }
            Event::SessionModeStays { mode, reason } if self.stop.is_none() => {
                let reason = format!(
                    "the agent switched to its mode `{mode}`, which does not ask for permission, \
                     and did not leave it: {reason}"
                );
                self.stop = Some(Stop::Policy { reason });
            }
            Event::SessionModeRefused { next, .. } => {
                self.with_process(|process| process.refuse_mode(next.as_ref()));
            }
            Event::SessionModelSet { model } => {
                self.open(Opening::Ready);
                self.session.model = Some(model.clone());
            }
            Event::CallFailed { call, reason, for_good } => {
                let failure =
                    CallFailure { call: call.clone(), reason: reason.clone(), for_good: *for_good };
                self.with_process(|process| process.call_failed = Some(failure));
            }
            Event::SessionLost { .. } => self.lose_session(),
            Event::ModelRequested { key, model, .. } => {
                let before = self.model.wanted.replace(model.clone());
                self.model.change = Some(ModelChange { key: key.clone(), before });
            }
            Event::ModelChanged { key, model } => {
                self.session.model = Some(model.clone());
                self.model.change.take_if(|change| change.key == *key);
            }
            Event::ModelRefused { key, .. } => {
                if let Some(change) = self.model.change.take_if(|change| change.key == *key) {
                    self.model.wanted = change.before;
                }
            }
            // The first stop counts.
            Event::SessionModeStays { .. } => {}
            attempt_events!()
            | prompt_events!()
            | output_events!()
            | tool_events!()
            | permission_events!()
            | result_events!()
            | api_events!()
            | intervention_events!()
            | daemon_events!()
            | spec_run_events!()
            | task_list_events!()
            | Event::Unknown => {}
        }
    }

    fn open(&mut self, next: Opening) {
        self.with_process(|process| process.opening = next);
    }
}
