//! The state of one process of an agent. The phase owns it: it ends with the attempt.

use crate::agent::acp_handshake::{CallFailure, ModelStep, Opening};
use crate::dispatch::calls::{OpenCalls, SessionMode};
use crate::dispatch::{Dispatch, Phase, ProcessUsage};
use crate::event::ModeStep;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    pub usage: ProcessUsage,
    pub blocked_by_us: bool,
    /// The process gave a result that no text preceded on its line.
    pub own_result: bool,
    /// The session that was to be resumed and that the CLI no longer has.
    pub lost_session: Option<String>,
    /// The shim's clock of awake time when the process began.
    pub began_ms: u64,
    /// The machine was rebooted since the attempt began. No process of the attempt lives, and
    /// unsynced files may be lost. So missing files do not prove that the agent has not run.
    pub rebooted: bool,
}

impl Process {
    pub const fn new() -> Self {
        Self {
            opening: Opening::Ready,
            call_failed: None,
            mode: SessionMode::new(),
            interrupt: None,
            calls: OpenCalls::new(),
            usage: ProcessUsage::new(),
            blocked_by_us: false,
            own_result: false,
            lost_session: None,
            began_ms: 0,
            rebooted: false,
        }
    }

    /// Records that the agent accepted a mode. In the opening of the session, that is the mode that
    /// the policy needs.
    pub(super) fn set_mode(&mut self, mode: &str) {
        self.mode.current = Some(mode.into());
        self.mode.left_for = None;
        if let Opening::Mode { by, then, .. } = &self.opening {
            let (by, next) = (by.clone(), after_mode(then.clone()));
            self.mode.wanted = Some(ModeStep { mode: mode.into(), by, otherwise: None });
            self.opening = next;
        }
    }

    /// Records that the agent refused the mode of the opening; `next` is requested instead.
    pub(super) fn refuse_mode(&mut self, next: Option<&String>) {
        let Opening::Mode { mode, otherwise, then, .. } = &mut self.opening else { return };
        match next {
            Some(next) => {
                mode.clone_from(next);
                *otherwise = None;
            }
            None => self.opening = after_mode(then.take()),
        }
    }
}

/// Returns the step of the opening that follows the mode.
pub(super) fn after_mode(then: Option<ModelStep>) -> Opening {
    then.map_or(Opening::Ready, Opening::Model)
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

    /// The model that the opening of its session sets. A change that was requested while the
    /// process runs follows when the session is open.
    pub fn model_of_opening(&self) -> Option<&String> {
        match &self.model.change {
            Some(change) => change.before.as_ref().or(self.created.model.as_ref()),
            None => self.model(),
        }
    }

    /// Whether the machine was rebooted since the attempt that is under way began.
    pub fn was_rebooted(&self) -> bool {
        matches!(self.phase, Phase::Starting { rebooted: true, .. }) || self.process().rebooted
    }

    /// Records a reboot of the machine, which no process survives.
    pub(super) fn reboot(&mut self) {
        self.files.unsynced = true;
        match &mut self.phase {
            Phase::Starting { rebooted, .. } => *rebooted = true,
            Phase::Working { process, .. } => process.rebooted = true,
            Phase::Queued
            | Phase::Gone { .. }
            | Phase::Backoff { .. }
            | Phase::Closing { .. }
            | Phase::Finished { .. } => {}
        }
    }
}
