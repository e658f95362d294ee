//! Prompts and turns.

use crate::agent::event::TurnError;
use crate::agent::transcript::{Session, Standing};
use crate::dispatch::{Dispatch, Phase, Prompt, PromptState, Turn, TurnFailure};
use crate::event::{Event, PromptKind};
use crate::{
    api_events, attempt_events, conversation_events, daemon_events, intervention_events,
    output_events, permission_events, result_events, session_events, spec_run_events,
    task_list_events, tool_events,
};

impl Dispatch {
    pub(super) fn fold_prompt(&mut self, event: &Event) {
        match event {
            Event::PromptQueued { key, kind, .. } => self.queue_prompt(key, *kind),
            Event::PromptSent { key } => self.set_prompt(key, PromptState::Sent),
            Event::PromptWritten { key } => {
                let sent = |p: &&mut Prompt| p.key == *key && p.state == PromptState::Sent;
                self.prompts.iter_mut().filter(sent).for_each(|prompt| prompt.written = true);
            }
            Event::PromptFolded { key, .. } => {
                self.warnings.monitor = None;
                self.set_prompt(key, PromptState::Taken);
            }
            Event::PromptProbed { key, standing, session, session_id, detail, .. } => {
                self.probed(key, *standing, *session, session_id.as_ref(), detail);
            }
            Event::TurnStarted { turn, key } => {
                self.warnings.monitor = None;
                self.turns = *turn;
                self.result.said = None;
                self.usage.owes_model_turn = true;
                self.set_prompt(key, PromptState::Taken);
                if self.prompt(key).is_some_and(|prompt| prompt.kind == PromptKind::Send) {
                    // A follow-up is a new question: its answer may be repaired as well.
                    self.result.value = None;
                    self.result.repair_used = false;
                }
                if let Phase::Working { turn, .. } = &mut self.phase {
                    *turn = Turn::Running { key: key.clone() };
                }
            }
            // The turn of a one-shot agent lasts as long as its process, which may do more.
            Event::TurnFinished { ok, error, status, text, .. } if !self.created.has_turns() => {
                let (error, status, text) = (*error, *status, text.clone());
                self.result.failure = (!ok).then_some(TurnFailure { error, status, text });
                self.result.said = None;
            }
            Event::TurnFinished { turn, ok, error, status, text } => {
                self.with_process(|process| process.interrupt = None);
                if *ok {
                    self.outage = None;
                    self.files.unsynced = false;
                    self.model.on_trial.take_if(|trial| *turn > trial.turn);
                }
                let interrupted = *error == Some(TurnError::Interrupted);
                let mut answered = false;
                for prompt in self.prompts.iter_mut().filter(|p| p.state == PromptState::Taken) {
                    // A failed turn is continued after a restart.
                    if *ok || interrupted {
                        prompt.state = PromptState::Done;
                        answered = true;
                    }
                }
                if *ok && answered {
                    self.retries.restarts = 0;
                }
                // The process of a conversation stays a while for the next message.
                let holds = self.created.idle_hold_s.is_some() && self.stop.is_none();
                let stays = interrupted || (*ok && (holds || self.has_unheard()));
                // A process that takes one prompt has nothing to wait for.
                let leaving = !self.created.multi_turn || !stays;
                if let Phase::Working { turn, .. } | Phase::Gone { turn, .. } = &mut self.phase {
                    *turn = Turn::Done {
                        ok: *ok,
                        error: *error,
                        status: *status,
                        text: text.clone(),
                        leaving,
                    };
                }
            }
            attempt_events!()
            | session_events!()
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

    fn queue_prompt(&mut self, key: &str, kind: PromptKind) {
        if self.prompt(key).is_some() {
            return;
        }
        // The agent is being terminated, and somebody still wants it.
        if let (PromptKind::Send, Some(stop)) = (kind, &mut self.stop) {
            stop.speak_to();
        }
        match (kind, &mut self.phase) {
            (PromptKind::Continue, _) => self.supersede_taken(),
            (PromptKind::Repair, Phase::Working { turn: Turn::Done { leaving, .. }, .. }) => {
                *leaving = !self.created.multi_turn;
            }
            (PromptKind::Send, Phase::Closing { spoken_to, .. }) => *spoken_to = true,
            _ => {}
        }
        let state = match kind == PromptKind::Send && self.is_being_killed() {
            true => PromptState::Withdrawn,
            false => PromptState::Queued,
        };
        let prompt = Prompt { key: key.into(), kind, state, written: false, standing: None };
        // A repair or a continuation goes before the prompts that people queued meanwhile.
        let urgent = matches!(kind, PromptKind::Repair | PromptKind::Continue);
        let place = if urgent {
            self.prompts.iter().position(|p| p.state == PromptState::Queued)
        } else {
            None
        };
        self.prompts.insert(place.unwrap_or(self.prompts.len()), prompt);
        if self.is_finished() && self.can_go_on() {
            self.reopen();
        }
    }

    fn probed(
        &mut self,
        key: &str,
        standing: Standing,
        session: Session,
        id: Option<&String>,
        detail: &str,
    ) {
        let had_history = self.has_history();
        self.set_prompt(
            key,
            match standing {
                Standing::NotTaken => PromptState::Queued,
                Standing::Unknown => PromptState::Doubtful,
                _ => PromptState::Taken,
            },
        );
        if let Some(prompt) = self.prompts.iter_mut().find(|p| p.key == key) {
            prompt.standing = Some(standing);
        }
        if standing == Standing::Unknown {
            // Nothing is known, so nothing is changed: the session may still exist.
            if let Phase::Gone { doubt, .. } = &mut self.phase {
                *doubt = Some(detail.to_string());
            }
            return;
        }
        match session {
            Session::Held => self.session.id = id.cloned().or(self.session.id.take()),
            Session::Empty | Session::Lost if had_history => self.lose_session(),
            Session::Empty => {
                self.session.id = None;
                self.session.spoiled += 1;
            }
            Session::Missing | Session::Lost => self.session.id = None,
            Session::Unread => {}
        }
    }

    /// Gives the session up: the next session begins without its history.
    pub(super) fn lose_session(&mut self) {
        if let Some(id) = self.session.id.take() {
            self.session.spoiled += 1;
            self.session.lost = self.has_history();
            self.with_process(|process| process.lost_session = Some(id));
        }
    }

    /// Records that nothing was done for the prompts on their way, because there was no session.
    /// Where there are transcripts, these say so.
    pub(super) fn requeue_sent(&mut self) {
        if !self.created.transcripts {
            for prompt in self.prompts.iter_mut().filter(|p| p.state == PromptState::Sent) {
                (prompt.state, prompt.written) = (PromptState::Queued, false);
            }
        }
    }

    pub(in crate::dispatch) fn supersede_taken(&mut self) {
        for prompt in self.prompts.iter_mut().filter(|p| p.state == PromptState::Taken) {
            prompt.state = PromptState::Superseded;
        }
        if let Phase::Working { turn, .. } = &mut self.phase
            && matches!(turn, Turn::Running { .. })
        {
            *turn = Turn::None;
        }
    }

    fn set_prompt(&mut self, key: &str, state: PromptState) {
        if let Some(prompt) = self.prompts.iter_mut().find(|p| p.key == key) {
            prompt.state = state;
            prompt.written = false;
            prompt.standing = None;
        }
    }
}
