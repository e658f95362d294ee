//! Whether the session of an agent holds anything that a new session would lose or repeat.

use crate::agent::acp_handshake::Opening;
use crate::agent::event::TurnError;
use crate::dispatch::{Dispatch, PromptState, SessionContent};
use crate::event::{Event, PromptKind};
use crate::{
    api_events, conversation_events, daemon_events, intervention_events, permission_events,
    result_events, spec_run_events, task_list_events, tool_events,
};

impl Dispatch {
    /// Folds an event into the content of the session. A new session has none
    /// ([`Event::SessionStarted`]).
    pub(super) fn apply_to_session_content(&mut self, event: &Event) {
        use SessionContent::{Awaited, Nothing, Something};
        let content = self.session.content;
        self.session.content = match event {
            Event::PromptSent { key }
            | Event::PromptFolded { key, .. }
            | Event::TurnStarted { key, .. }
                if content != Something =>
            {
                if !self.session.unanswered.contains(key) {
                    self.session.unanswered.push(key.clone());
                }
                Awaited
            }
            Event::TurnFinished { ok, error, .. } => {
                let failed = !ok && *error != Some(TurnError::Interrupted);
                if failed && content == Awaited { Nothing } else { Something }
            }
            // The fate of a prompt whose process is gone is unknown.
            Event::AttemptStarted { .. } if content == Awaited => Something,
            Event::UsageRecorded { output, .. } if *output > 0 => Something,
            Event::AgentSaid { .. } | Event::Compacted { .. } => Something,
            tool_events!() | permission_events!() | result_events!() => Something,
            Event::AttemptStarted { .. }
            | Event::DispatchCreated { .. }
            | Event::WorktreeCreated { .. }
            | Event::AgentSpawned { .. }
            | Event::AgentAdopted { .. }
            | Event::StartFailed { .. }
            | Event::AgentExited { .. }
            | Event::SweepFinished { .. }
            | Event::AttemptFinished { .. }
            | Event::AnswerAwaited {}
            | Event::RestartScheduled { .. }
            | Event::DispatchClosing { .. }
            | Event::WorkFetched { .. }
            | Event::DispatchFinished { .. }
            | Event::FilesRemoved { .. }
            | Event::CloneRemoved { .. }
            | Event::JournalArchived { .. }
            | Event::PromptQueued { .. }
            | Event::PromptSent { .. }
            | Event::PromptFolded { .. }
            | Event::TurnStarted { .. }
            | Event::PromptWritten { .. }
            | Event::PromptProbed { .. }
            | Event::SessionStarted { .. }
            | Event::AgentGreeted { .. }
            | Event::SessionOpened { .. }
            | Event::SessionModeKept { .. }
            | Event::SessionModeChanged { .. }
            | Event::SessionModeStays { .. }
            | Event::SessionModeSet { .. }
            | Event::SessionModeRefused { .. }
            | Event::SessionModelSet { .. }
            | Event::CallFailed { .. }
            | Event::SessionLost { .. }
            | Event::ModelRequested { .. }
            | Event::ModelChanged { .. }
            | Event::ModelRefused { .. }
            | Event::AgentNotice { .. }
            | Event::McpCalled(_)
            | Event::UsageRecorded { .. }
            | Event::JournalEntry { .. }
            | Event::OutputRead { .. }
            | Event::BlockedByUs { .. } => content,
            api_events!()
            | intervention_events!()
            | daemon_events!()
            | spec_run_events!()
            | conversation_events!()
            | task_list_events!()
            | Event::Unknown => content,
        };
        if self.session.content == Something {
            self.session.unanswered.clear();
        }
    }

    /// Whether a process is to load a session in which nothing has happened.
    pub(super) fn loads_nothing(&self) -> bool {
        self.session.content == SessionContent::Nothing
            && matches!(self.process().opening, Opening::Session { load: Some(_) })
    }

    /// Opens a new session in place of one without content, which the agent does not have. Nothing
    /// was done for its prompts, so they are sent again.
    pub(super) fn replace_session(&mut self) {
        let unanswered = std::mem::take(&mut self.session.unanswered);
        for prompt in &mut self.prompts {
            let was_cut = matches!(prompt.state, PromptState::Taken | PromptState::Superseded);
            if prompt.kind == PromptKind::Continue && prompt.state != PromptState::Done {
                prompt.state = PromptState::Withdrawn;
            } else if was_cut && unanswered.contains(&prompt.key) {
                (prompt.state, prompt.standing) = (PromptState::Queued, None);
            }
        }
        self.session.id = None;
        self.session.made_at = None;
        self.session.spoiled += 1;
        self.spend.session.clear();
        self.with_process(|process| process.opening = Opening::Session { load: None });
    }
}
