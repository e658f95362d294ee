//! The state of one process of an agent. The phase owns it: it ends with the attempt.

use crate::agent::acp_handshake::{CallFailure, Opening};
use crate::dispatch::calls::{OpenCalls, SessionMode};
use crate::dispatch::{Dispatch, Phase};
use crate::event::ModeStep;

#[derive(Debug, Clone, PartialEq)]
pub struct Process {
    /// The step that the opening of the session has reached, if the agent speaks by calls.
    pub opening: Opening,
    /// The failed call because of which the process is being terminated.
    pub call_failed: Option<CallFailure>,
    /// The mode of the session, if the agent has modes.
    pub mode: SessionMode,
    /// The newest requested interrupt that has not ended a turn.
    pub interrupt: Option<String>,
    pub calls: OpenCalls,
    pub blocked_by_us: bool,
    /// The shim's clock when the process began. `lived_ms` is how long it lived, once it is over.
    pub began_ms: u64,
    pub lived_ms: u64,
}

impl Process {
    pub const fn new() -> Self {
        Self {
            opening: Opening::Ready,
            call_failed: None,
            mode: SessionMode::new(),
            interrupt: None,
            calls: OpenCalls::new(),
            blocked_by_us: false,
            began_ms: 0,
            lived_ms: 0,
        }
    }

    /// Records that the agent accepted a mode. In the opening of the session, that is the mode that
    /// the policy needs.
    pub(super) fn set_mode(&mut self, mode: &str) {
        self.mode.current = Some(mode.into());
        self.mode.left_for = None;
        if let Opening::Mode { by, model_by, .. } = &self.opening {
            let (by, next) = (by.clone(), after_mode(model_by.clone()));
            self.mode.wanted = Some(ModeStep { mode: mode.into(), by, otherwise: None });
            self.opening = next;
        }
    }

    /// Records that the agent refused the mode of the opening; `next` is requested instead.
    pub(super) fn refuse_mode(&mut self, next: Option<&String>) {
        let Opening::Mode { mode, otherwise, model_by, .. } = &mut self.opening else { return };
        match next {
            Some(next) => {
                mode.clone_from(next);
                *otherwise = None;
            }
            None => self.opening = after_mode(model_by.take()),
        }
    }
}

/// Returns the step of the opening that follows the mode.
pub(super) fn after_mode(model_by: Option<String>) -> Opening {
    model_by.map_or(Opening::Ready, |by| Opening::Model { by })
}

impl Default for Process {
    fn default() -> Self {
        Self::new()
    }
}

impl Dispatch {
    /// Returns the state of the process whose attempt is under way. Without a process, that is the
    /// state of one that has done nothing.
    pub fn process(&self) -> &Process {
        static NONE: Process = Process::new();
        match &self.phase {
            Phase::Working { process, .. } | Phase::Gone { process, .. } => process,
            Phase::Queued
            | Phase::Starting { .. }
            | Phase::Backoff { .. }
            | Phase::Closing { .. }
            | Phase::Finished { .. } => &NONE,
        }
    }

    pub(super) fn process_mut(&mut self) -> Option<&mut Process> {
        match &mut self.phase {
            Phase::Working { process, .. } | Phase::Gone { process, .. } => Some(process),
            Phase::Queued
            | Phase::Starting { .. }
            | Phase::Backoff { .. }
            | Phase::Closing { .. }
            | Phase::Finished { .. } => None,
        }
    }

    pub(super) fn with_process(&mut self, change: impl FnOnce(&mut Process)) {
        if let Some(process) = self.process_mut() {
            change(process);
        }
    }

    /// Takes the state of the process over to the next phase.
    pub(super) fn take_process(&mut self) -> Box<Process> {
        self.process_mut().map(std::mem::take).unwrap_or_default().into()
    }
}
