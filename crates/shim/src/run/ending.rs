//! Ends the agent and everything it started: TERM, a grace period, KILL, recorded in the right
//! order.

use super::{Phase, Shim};
use crate::attach::NAME;
use crate::control::{Cause, Control, Left, MOST_LEFT, Policy};
use muleteer_process::cgroup;
use muleteer_process::clock::awake;
use muleteer_process::fault;
use muleteer_process::group::{self, by_nonce, descendants, signal_group};
use muleteer_process::host::{Stat, host};
use muleteer_process::identity::Pinned;
use muleteer_process::spawn::{self, Exit};
use muleteer_protocol::shim::v1::FromShim;
use std::time::Duration;

/// The time between two searches for remaining processes while something is being killed.
const RESCAN: Duration = Duration::from_millis(20);

impl Shim {
    /// Sends TERM to everything now, and KILL after `grace`. A second call can only shorten the
    /// time.
    pub(super) fn terminate(&mut self, grace: Duration, cause: Cause) {
        let kill_at = awake() + grace;
        match &mut self.phase {
            Phase::Starting(_) | Phase::Running | Phase::Letting { .. } => {
                self.cause = Some(cause);
                self.phase = Phase::Terminating { kill_at };
                self.signal_all(libc::SIGTERM);
            }
            Phase::Terminating { kill_at: sooner } | Phase::Clearing { kill_at: sooner } => {
                *sooner = kill_at.min(*sooner);
            }
            Phase::Killing { .. } | Phase::ClearKilling { .. } | Phase::Gone => {}
        }
    }

    /// Handles ended children.
    pub(super) fn reap(&mut self) {
        let agent = self.agent.pid;
        if self.agent_is_ours() {
            // The agent is not reaped: as a zombie it keeps its pid, and so its group's number,
            // from being reused until we no longer signal them.
            if let Some(exit) = spawn::peek_exit(Some(agent)) {
                self.agent_ended(exit);
            }
        }
        while let Some(exit) = spawn::peek_exit(None).filter(|exit| exit.pid != agent) {
            spawn::reap(exit.pid);
        }
        if matches!(self.phase, Phase::Clearing { .. } | Phase::ClearKilling { .. }) {
            self.scan_at = Some(Duration::ZERO);
        }
    }

    fn agent_is_ours(&self) -> bool {
        !matches!(self.phase, Phase::Clearing { .. } | Phase::ClearKilling { .. } | Phase::Gone)
    }

    fn agent_ended(&mut self, exit: Exit) {
        // A failed exec ends the child too, and must not count as the agent's end.
        self.look_at_exec();
        if !self.agent_is_ours() {
            return;
        }
        self.drain();
        let cause = self.cause.unwrap_or(Cause::Exited);
        self.say(Control::Exited { code: exit.code, signal: exit.signal, cause });
        fault::point("shim.exited_written");
        self.close_stdin();
        let now = awake();
        let grace = Duration::from_millis(self.launch.timing.term_grace_ms);
        self.phase = match self.phase {
            Phase::Terminating { kill_at } => Phase::Clearing { kill_at },
            Phase::Killing { give_up_at } => Phase::ClearKilling { give_up_at },
            _ => Phase::Clearing { kill_at: now + grace },
        };
        // Skipped if a record still waits for room on the disk: then the record itself reports the
        // end.
        if self.unsaid.is_empty() {
            let end = self.writer.cursor();
            self.peers.tell(&FromShim::Exited { epoch: end.epoch, offset: end.offset });
        }
        // The usual case is an agent that ended by itself and left nothing. It needs no search.
        if self.cause.is_none() && self.is_alone() == Some(true) {
            return self.finish(0);
        }
        // If the shim ended the agent, the rest got its signal too and may be about to end.
        if self.cause.is_none() {
            let left = self.left_behind();
            self.note_left(&left);
        }
        self.signal_all(libc::SIGTERM);
        self.scan_at = Some(Duration::ZERO);
    }

    /// Notes the names of living processes that are about to be killed.
    fn note_left(&mut self, left: &[Stat]) {
        for stat in left.iter().filter(|stat| !stat.zombie) {
            if self.left.len() == MOST_LEFT {
                break;
            }
            if self.left.iter().any(|known| known.pid == stat.pid) {
                continue;
            }
            // A confined agent has processes of ours around it.
            if let Some(name) = host().name(stat.pid).filter(|name| name != NAME) {
                self.left.push(Left { pid: stat.pid, name });
            }
        }
    }

    /// Does everything that is due while ending.
    pub(super) fn advance_ending(&mut self, now: Duration) {
        let give_up_at = now + Duration::from_millis(self.launch.timing.kill_grace_ms);
        match self.phase {
            Phase::Letting { term_at } if term_at <= now => {
                let grace = Duration::from_millis(self.launch.timing.term_grace_ms);
                self.terminate(grace, Cause::LeaseExpired);
            }
            Phase::Terminating { kill_at } if kill_at <= now => {
                self.phase = Phase::Killing { give_up_at };
                self.kill_all();
                self.scan_at = Some(now + RESCAN);
            }
            // It never gives up: while the agent itself cannot be killed, our lock says that it
            // lives.
            Phase::Killing { give_up_at } if self.scan_at.is_some_and(|at| at <= now) => {
                self.kill_all();
                self.scan_at = Some(now + if give_up_at <= now { RESCAN * 50 } else { RESCAN });
            }
            Phase::Clearing { kill_at } => {
                let kill = kill_at <= now;
                if kill {
                    self.phase = Phase::ClearKilling { give_up_at };
                }
                if kill || self.scan_at.is_some_and(|at| at <= now) {
                    self.clear(now, kill, false);
                }
            }
            Phase::ClearKilling { give_up_at } if self.scan_at.is_some_and(|at| at <= now) => {
                self.clear(now, true, give_up_at <= now);
            }
            _ => {}
        }
    }

    /// Whether the dead agent left no process, judged by our children and its cgroup: below a
    /// subreaper every orphan becomes its child. `None` if the system does not report children.
    fn is_alone(&self) -> Option<bool> {
        let mut others = group::children_of_this_thread()?;
        others.retain(|&pid| pid != self.agent.pid && spawn::reap(pid).is_none());
        let outside =
            || self.cgroup.as_deref().is_some_and(|cgroup| !cgroup::members(cgroup).is_empty());
        Some(others.is_empty() && !outside())
    }

    /// Checks whether processes are left, and kills them or waits for their end.
    fn clear(&mut self, now: Duration, kill: bool, give_up: bool) {
        if !kill && self.is_alone() == Some(false) {
            // The search waits for their end: we get SIGCHLD for the death of each of them.
            self.scan_at = None;
            return;
        }
        let left = self.left_behind();
        // Children of dead children become ours, and we must reap them.
        for stat in left.iter().filter(|stat| stat.zombie && stat.parent == self.own.pid) {
            spawn::reap(stat.pid);
        }
        let living = left.iter().filter(|stat| !stat.zombie).count() as u32;
        if living == 0 || give_up {
            return self.finish(living);
        }
        if kill {
            self.note_left(&left);
            self.kill_all();
        }
        // The death of the last one always sends us SIGCHLD. Processes that were killed are checked
        // again.
        self.scan_at = kill.then_some(now + RESCAN);
    }

    /// Writes the last records of the epoch.
    pub(super) fn finish(&mut self, survivors: u32) {
        self.drain();
        self.phase = Phase::Gone;
        let left = std::mem::take(&mut self.left);
        self.say(Control::Ended { survivors, left });
    }

    /// Returns all processes of the agent except the agent itself, zombies included.
    fn left_behind(&self) -> Vec<Stat> {
        let agent = self.agent.pid;
        let mut left: Vec<Stat> =
            descendants(self.own.pid).into_iter().filter(|stat| stat.pid != agent).collect();
        let elsewhere = self
            .cgroup
            .iter()
            .flat_map(|cgroup| cgroup::members(cgroup))
            .chain(by_nonce(&self.launch.nonce));
        for pid in elsewhere {
            if pid != agent
                && pid != self.own.pid
                && !left.iter().any(|stat| stat.pid == pid)
                && let Some(stat) = muleteer_process::host::host().stat(pid)
            {
                left.push(stat);
            }
        }
        left
    }

    fn signal_all(&self, signo: i32) {
        let agent = self.agent.pid;
        let _ = signal_group(agent, signo);
        for stat in self.left_behind() {
            // The group already got the signal.
            if stat.group != agent && !stat.zombie {
                let _ = Pinned::open(stat.pid).and_then(|pinned| pinned.signal(signo));
            }
        }
    }

    fn kill_all(&self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup::kill(cgroup);
        }
        self.signal_all(libc::SIGKILL);
    }

    /// Checks the limits that can only be sampled.
    pub(super) fn sample(&mut self) {
        if !matches!(self.phase, Phase::Running | Phase::Letting { .. }) {
            return;
        }
        let limits = self.launch.limits;
        if limits.max_private_bytes > 0
            && let Some(detail) = self.private_size.excess(limits.max_private_bytes)
        {
            return self.break_rule(Policy::Disk, detail);
        }
        if self.is_limited {
            return;
        }
        let below = group::descendants(self.own.pid);
        let processes = below.iter().filter(|stat| !stat.zombie).count() as u32;
        let memory: u64 = below.iter().map(|stat| stat.rss).sum();
        if limits.max_procs > 0 && processes > limits.max_procs {
            self.break_rule(Policy::Processes, format!("{processes} of {}", limits.max_procs));
        } else if limits.max_memory_bytes > 0 && memory > limits.max_memory_bytes {
            self.break_rule(
                Policy::Memory,
                format!("{memory} of {} bytes", limits.max_memory_bytes),
            );
        }
    }
}
