//! The session of the agent's CLI, its mode and its model.

use crate::agent::acp_handshake::{CallFailure, ModelStep, Opening};
use crate::dispatch::process::after_mode;
use crate::dispatch::{Dispatch, ModelChange, Phase, SessionContent, Stop};
use crate::event::{Event, ModeStep};
use crate::{
    api_events, attempt_events, conversation_events, daemon_events, intervention_events,
    output_events, permission_events, prompt_events, result_events, spec_run_events,
    task_list_events, tool_events,
};
use jiff::Timestamp;

impl Dispatch {
    pub(super) fn fold_session(&mut self, event: &Event, ts: Timestamp) {
        match event {
            Event::SessionStarted { session_id, model } => {
                let id = Some(session_id.clone()).filter(|id| !id.is_empty());
                if self.session.id != id {
                    self.session.made_at = id.is_some().then_some(ts);
                    // A session that was loaded may get another id, and may have any content.
                    let is_loaded =
                        matches!(self.process().opening, Opening::Session { load: Some(_) });
                    self.session.content = match is_loaded {
                        true => SessionContent::Something,
                        false => SessionContent::Nothing,
                    };
                    self.session.unanswered.clear();
                }
                self.session.id = id;
                self.session.lost = false;
                self.session.model = model.clone().or(self.session.model.take());
            }
            Event::AgentGreeted { agent, load } => {
                self.session.agent.clone_from(agent);
                self.open(Opening::Session { load: load.clone() });
            }
            Event::SessionOpened { set_model_by, model_by, set_mode, .. } => {
                self.model.set_by.clone_from(model_by);
                let then = self.model_step(set_model_by.as_ref());
                self.open(match set_mode.as_deref().cloned() {
                    Some(ModeStep { mode, by, otherwise }) => {
                        Opening::Mode { by, mode, otherwise, then }
                    }
                    None => after_mode(then),
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
            Event::CallFailed { call, reason, for_good, missing } => {
                let (call, reason) = (call.clone(), reason.clone());
                let failure = CallFailure { call, reason, for_good: *for_good, missing: *missing };
                self.with_process(|process| process.call_failed = Some(failure));
            }
            Event::SessionLost { .. } if self.loads_nothing() => self.replace_session(),
            Event::SessionLost { .. } => {
                self.lose_session();
                self.requeue_sent();
            }
            Event::ModelRequested { key, model, .. } => self.request_model(key, model),
            Event::ModelChanged { key, model } => {
                self.session.model = Some(model.clone());
                if let Some(change) = self.model.change.take_if(|change| change.key == *key) {
                    self.try_model(change);
                }
            }
            Event::ModelRefused { key, .. } => self.refuse_model(key),
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
            | conversation_events!()
            | task_list_events!()
            | Event::Unknown => {}
        }
    }

    /// Records a requested model. Without a process nothing has used the last request, so the model
    /// before that one stays the old one.
    fn request_model(&mut self, key: &str, model: &str) {
        let runs = matches!(self.phase, Phase::Working { .. });
        let unused = self.model.change.take().filter(|_| !runs);
        let (before, used) = match unused {
            Some(change) => (change.before, change.used),
            None => (self.model.wanted.clone(), self.session.model.clone()),
        };
        self.model.wanted = Some(model.into());
        self.model.change = Some(ModelChange { key: key.into(), before, used, turn: self.turns });
    }

    /// Records that a process uses the requested model. It is on trial until a turn ends well; the
    /// model before all changes on trial is the old one.
    pub(super) fn try_model(&mut self, change: ModelChange) {
        let ModelChange { before, used, .. } = match self.model.on_trial.take() {
            Some(earlier) => earlier,
            None => change.clone(),
        };
        self.model.on_trial = Some(ModelChange { before, used, turn: self.turns, ..change });
    }

    /// Returns to the model before a change that the CLI or the model API refused.
    fn refuse_model(&mut self, key: &str) {
        // A session that is being opened has not taken the model. After that it may keep it, so the
        // next process must be told the old one.
        let took = self.process().opening == Opening::Ready;
        if let Some(change) = self.model.change.take_if(|change| change.key == *key) {
            self.model.wanted = change.before;
        } else if (self.model.change.is_none() || !took)
            && let Some(trial) = self.model.on_trial.take_if(|trial| trial.key == *key)
        {
            if took || self.session.model.as_ref() == self.model_of_opening() {
                self.session.model.clone_from(&trial.used);
            }
            let old = trial.before.or(trial.used.clone().filter(|_| took));
            match &mut self.model.change {
                // Somebody requested another model meanwhile. Its old one is the one before both.
                Some(change) => (change.before, change.used) = (old, trial.used),
                None => self.model.wanted = old,
            }
            if let Opening::Model(step) = &self.process().opening {
                let by = step.by.clone();
                self.open(after_mode(self.model_step(Some(&by))));
            }
        }
    }

    /// Returns the step that sets the model of the session that is being opened.
    fn model_step(&self, by: Option<&String>) -> Option<ModelStep> {
        let (by, model) = (by?.clone(), self.model_of_opening()?.clone());
        Some(ModelStep { by, model })
    }

    fn open(&mut self, next: Opening) {
        self.with_process(|process| process.opening = next);
    }
}
