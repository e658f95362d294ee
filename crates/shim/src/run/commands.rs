//! Carries out the daemon's commands: each once per key, and answered after its effect.

use super::keys::Seen;
use super::{Phase, Shim};
use crate::control::{Cause, Control, hex};
use crate::record::Cursor;
use muleteer_process::clock::awake;
use muleteer_process::group::signal_group;
use muleteer_process::identity::Pinned;
use muleteer_protocol::shim::v1::{AgentState, FromShim, Idem, Outcome, ToShim};
use std::time::Duration;

impl Shim {
    /// Carries out one frame of an accepted connection; returns an immediate answer, if there is
    /// one.
    pub(super) fn command(&mut self, frame: ToShim) -> Option<FromShim> {
        match frame {
            ToShim::WriteStdin { idem, close, bytes } => self.once(idem, |shim| {
                if !shim.agent_lives() {
                    return Some(Outcome::NoAgent);
                }
                if let Some(refusal) = shim.stdin.refusal(bytes.len()) {
                    return Some(refusal);
                }
                shim.stdin.push(idem, bytes, close);
                None
            }),
            ToShim::Signal { idem, signo, group } => self.once(idem, |shim| {
                if !shim.agent_lives() {
                    return Some(Outcome::NoAgent);
                }
                // The agent is our unreaped child, so neither number can mean another process.
                let sent = if group {
                    signal_group(shim.agent.pid, signo)
                } else {
                    Pinned::open_exact(shim.agent).and_then(|agent| agent.signal(signo))
                };
                shim.say(Control::Signalled { idem: hex(&idem), signo, group });
                Some(match sent {
                    Ok(()) => Outcome::Ok,
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Outcome::NoAgent,
                    Err(error) => Outcome::Failed { errno: error.raw_os_error().unwrap_or(0) },
                })
            }),
            ToShim::Terminate { idem, grace_ms } => self.once(idem, |shim| {
                if matches!(shim.phase, Phase::Gone) {
                    return Some(Outcome::NoAgent);
                }
                shim.say(Control::Terminating { idem: hex(&idem), grace_ms });
                shim.terminate(Duration::from_millis(grace_ms), Cause::Terminated);
                Some(Outcome::Ok)
            }),
            ToShim::Heartbeat { lease_ms } => {
                self.lease_at = awake().saturating_add(Duration::from_millis(lease_ms));
                if matches!(self.phase, Phase::Letting { .. }) {
                    self.phase = Phase::Running;
                    self.say(Control::LeaseRenewed);
                }
                Some(self.status())
            }
            ToShim::Ack { epoch, offset } => {
                self.writer.ack(Cursor { epoch, offset });
                self.look_for_room();
                None
            }
            ToShim::Query => Some(self.status()),
            // A second hello changes nothing; an unknown kind comes from a newer daemon.
            ToShim::Hello { .. } | ToShim::Unknown { .. } => None,
        }
    }

    /// Reports the outcome of a command to all connected daemons, because the sender may have been
    /// replaced meanwhile.
    pub(super) fn answer(&mut self, idem: &Idem, outcome: Outcome) {
        self.keys.end(idem, outcome);
        self.peers.tell(&FromShim::Done { idem: *idem, outcome });
    }

    pub(super) fn agent_state(&self) -> AgentState {
        match self.phase {
            Phase::Starting(_) => AgentState::Starting,
            Phase::Running => AgentState::Running,
            Phase::Letting { .. } | Phase::Terminating { .. } | Phase::Killing { .. } => {
                AgentState::Ending
            }
            Phase::Clearing { .. } | Phase::ClearKilling { .. } | Phase::Gone => AgentState::Exited,
        }
    }

    fn agent_lives(&self) -> bool {
        self.agent_state() != AgentState::Exited
    }

    /// Runs a command unless its key is known. `run` returns the outcome, or `None` if that comes
    /// later.
    fn once(
        &mut self,
        idem: Idem,
        run: impl FnOnce(&mut Self) -> Option<Outcome>,
    ) -> Option<FromShim> {
        let outcome = match self.keys.seen(&idem) {
            Seen::Done(outcome) => Some(outcome),
            Seen::Pending => None,
            Seen::New => {
                let outcome = run(self);
                // A full queue is transient: the same key may be retried.
                if outcome != Some(Outcome::QueueFull) {
                    self.keys.begin(idem);
                }
                if let Some(outcome) = outcome {
                    self.keys.end(&idem, outcome);
                }
                outcome
            }
        };
        outcome.map(|outcome| FromShim::Done { idem, outcome })
    }

    fn status(&self) -> FromShim {
        let (end, acked) = (self.writer.cursor(), self.writer.acked());
        FromShim::Status {
            epoch: end.epoch,
            offset: end.offset,
            state: self.agent_state(),
            blocked: self.blocked.is_some(),
            stdin_open: self.stdin.is_open(),
            stdin_queued: self.stdin.queued() as u32,
            lease_left_ms: self.lease_at.saturating_sub(awake()).as_millis() as u64,
            acked_epoch: acked.epoch,
            acked_offset: acked.offset,
        }
    }
}
