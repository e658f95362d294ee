//! Attempts, their processes, and the end of the dispatch.

use crate::agent::acp_handshake::Opening;
use crate::agent::result::AgentResult;
use crate::dispatch::{AttemptEnd, Dispatch, Exit, Phase, Process, PromptState, Stop, Turn};
use crate::event::{Event, ExitCause, FinalState, Position, PromptKind};
use crate::{
    api_events, conversation_events, daemon_events, intervention_events, output_events,
    permission_events, prompt_events, result_events, session_events, spec_run_events,
    task_list_events, tool_events,
};

impl Dispatch {
    pub(super) fn fold_attempt(&mut self, event: &Event) {
        match event {
            Event::WorktreeCreated { base, .. } => {
                self.files.cloned = true;
                self.files.base = Some(base.clone()).filter(|base| !base.is_empty());
            }
            Event::AttemptStarted { attempt, epoch, resume } => {
                self.start_attempt(*attempt, *epoch, resume.is_some());
            }
            Event::AgentSpawned { pid, shim_pid, containment, awake_ms } => {
                if let Phase::Starting { attempt, epoch, rebooted } = self.phase {
                    self.containment = Some(containment.clone());
                    self.retries.start_failures = 0;
                    let opening = match self.created.calls {
                        Some(_) => Opening::Greeting,
                        None => Opening::Ready,
                    };
                    let began_ms = *awake_ms;
                    let process = Process { opening, began_ms, rebooted, ..Process::new() };
                    self.phase = Phase::Working {
                        attempt,
                        epoch,
                        pid: *pid,
                        shim_pid: *shim_pid,
                        turn: Turn::None,
                        process: Box::new(process),
                    };
                }
            }
            Event::StartFailed { epoch, error, permanent } => {
                let cause = if *permanent { ExitCause::CannotStart } else { ExitCause::NeverRan };
                let exit = Exit {
                    code: None,
                    signal: None,
                    cause,
                    stderr_tail: error.clone(),
                    left: vec![],
                };
                if self.end_process(*epoch, exit, 0) {
                    self.retries.start_failures += u32::from(!permanent);
                    // Its program never ran, so it had no turn.
                    if let Phase::Gone { turn, .. } = &mut self.phase {
                        *turn = Turn::None;
                    }
                }
            }
            Event::AgentExited { epoch, code, signal, cause, stderr_tail, used_ms, .. } => {
                let (code, signal, cause) = (*code, *signal, *cause);
                let exit =
                    Exit { code, signal, cause, stderr_tail: stderr_tail.clone(), left: vec![] };
                self.usage.awake_ms = self.usage.awake_ms.saturating_add(*used_ms);
                self.retries.start_failures += u32::from(cause == ExitCause::NeverRan);
                self.end_process(*epoch, exit, *used_ms);
            }
            Event::AttemptFinished { counted, reason, outcome, .. } => {
                self.ended = Some(AttemptEnd::of(self, *outcome));
                if *counted {
                    self.retries.restarts += 1;
                }
                self.reason = Some(reason.clone());
            }
            Event::RestartScheduled { until, delay_ms } => {
                self.phase =
                    Phase::Backoff { attempt: self.attempts, until: *until, delay_ms: *delay_ms };
            }
            Event::AnswerAwaited {} if !self.is_finished() => self.phase = Phase::Queued,
            Event::AnswerAwaited {} => {}
            Event::DispatchClosing { state, reason } => self.close(*state, reason),
            Event::WorkFetched(work) => {
                if let Phase::Closing { fetched, .. } = &mut self.phase {
                    *fetched = true;
                }
                self.files.work = Some(work.clone());
            }
            Event::FilesRemoved { .. } => self.files.removed = true,
            Event::CloneRemoved { .. } => self.files.clone_removed = true,
            Event::DispatchFinished { state, reason, result } => {
                self.finish(*state, reason, result.as_ref());
            }
            // These change no state.
            Event::DispatchCreated(_)
            | Event::AgentAdopted { .. }
            | Event::JournalArchived { .. }
            | Event::SweepFinished { .. } => {}
            prompt_events!()
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

    fn start_attempt(&mut self, attempt: u32, epoch: u32, resumes: bool) {
        self.attempts = attempt;
        self.epoch = epoch;
        if !resumes {
            self.spend.session.clear();
        }
        self.warnings.notices.clear();
        // This process is started with the requested model.
        if let Some(change) = self.model.change.take() {
            self.session.model.clone_from(&self.model.wanted);
            self.try_model(change);
        }
        // There is more to do, so the earlier result does not count.
        self.result.value = None;
        self.result.failure = None;
        for prompt in &mut self.prompts {
            // A prompt that was sent without a receipt is sent again under its key, which
            // the CLI knows. In a fresh session no prompt was ever taken.
            let again = match prompt.state {
                PromptState::Sent => true,
                PromptState::Taken => !resumes && !self.created.transcripts,
                _ => false,
            };
            if again {
                prompt.state = PromptState::Queued;
            }
        }
        self.position = self.position.max(Position { epoch, ..Position::default() });
        self.phase = Phase::Starting { attempt, epoch, rebooted: false };
        self.reason = None;
    }

    /// Enters the phase after a process. Returns whether there was one, or one was being started.
    fn end_process(&mut self, epoch: u32, exit: Exit, lived_ms: u64) -> bool {
        let (attempt, turn, process) = match &mut self.phase {
            Phase::Starting { attempt, rebooted, .. } => {
                let process = Process { rebooted: *rebooted, ..Process::new() };
                (*attempt, Turn::None, Box::new(process))
            }
            Phase::Working { attempt, turn, process, .. } => {
                (*attempt, std::mem::replace(turn, Turn::None), std::mem::take(process))
            }
            Phase::Queued
            | Phase::Gone { .. }
            | Phase::Backoff { .. }
            | Phase::Closing { .. }
            | Phase::Finished { .. } => return false,
        };
        self.phase = Phase::Gone { attempt, epoch, exit, turn, process, lived_ms, doubt: None };
        true
    }

    fn close(&mut self, state: FinalState, reason: &str) {
        // A message that arrived while the end was being decided was overlooked. A doubtful prompt
        // goes to a person first.
        let is_sure = matches!(
            &self.phase,
            Phase::Gone { turn, doubt: None, .. } if turn.ended_well()
        );
        let spoken_to = match &self.stop {
            Some(stop) => stop.is_spoken_to(),
            None => is_sure && self.has_unheard(),
        };
        if self.process().call_failed.as_ref().is_some_and(|failure| failure.missing) {
            self.session.lost = self.has_history();
        }
        self.phase = Phase::Closing { state, reason: reason.into(), spoken_to, fetched: false };
        self.reason = Some(reason.into());
    }

    fn finish(&mut self, state: FinalState, reason: &str, result: Option<&AgentResult>) {
        let spoken_to = matches!(self.phase, Phase::Closing { spoken_to: true, .. });
        let killed = state == FinalState::Killed || matches!(self.stop, Some(Stop::Kill { .. }));
        self.phase = Phase::Finished { state };
        self.reason = (!reason.is_empty()).then(|| reason.into());
        if result.is_some() {
            self.result.value = result.cloned();
        }
        // Somebody sent a message as the dispatch ended: it becomes a further turn, not a
        // lost prompt.
        if spoken_to && !killed && self.created.resumable {
            self.reopen();
        } else if self.created.thread().is_some() {
            self.give_back_unheard();
        }
    }

    /// Reopens a dispatch that had ended, for a further turn: it waits for the pool again.
    pub(super) fn reopen(&mut self) {
        self.retries.reopened += 1;
        if self.session.id.is_some() || self.created.transcripts {
            // The end cut this turn. It is not resumed without a request, and the sender knows of
            // the end.
            self.supersede_taken();
            for prompt in &mut self.prompts {
                let ours = matches!(prompt.kind, PromptKind::Repair | PromptKind::Continue);
                if ours && matches!(prompt.state, PromptState::Queued | PromptState::Sent) {
                    prompt.state = PromptState::Superseded;
                }
            }
        }
        for prompt in self.prompts.iter_mut().filter(|p| p.state == PromptState::Doubtful) {
            prompt.state = PromptState::Superseded;
        }
        self.phase = Phase::Queued;
        self.stop = None;
        self.retries.restarts = 0;
        self.retries.start_failures = 0;
        self.result.value = None;
        self.result.failure = None;
        self.result.faults.clear();
        self.result.repair_used = false;
        self.ended = None;
        self.reason = None;
        self.outage = None;
    }
}
