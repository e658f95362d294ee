//! Identifies the peer of a connection (docs/design/permissions-and-trust.md). This prevents
//! confusion and simple injection. Only the sandbox helps against a determined program of the same
//! user.

use crate::daemon::context::Daemon;
use crate::ledger::archive;
use muleteer_model::dispatch::{Dispatch, Phase};
use muleteer_model::event::id::DispatchId;
use muleteer_process::identity::{self, Ancestry, ProcessId};
use muleteer_protocol::socket::Stream;
use muleteer_shim::launch::Launch;
use muleteer_shim::meta;
use std::cell::OnceCell;
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    Operator,
    Agent(DispatchId),
    /// A process that may only read.
    Unknown,
}

impl Identity {
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Agent(_) => "agent",
            Self::Unknown => "unknown",
        }
    }
}

/// Identifies the peer; `None` for another user, who gets no access.
///
/// Blocking: it reads `/proc` and a few small files.
pub fn identify(
    daemon: &Daemon,
    stream: &Stream,
    through: Option<&DispatchId>,
    operator_key: Option<&str>,
) -> Option<Identity> {
    let peer = stream.peer().ok()?;
    if peer.uid != rustix::process::getuid().as_raw() {
        return None;
    }
    if let Some(id) = through {
        return Some(Identity::Agent(id.clone()));
    }
    let shown = operator_key.is_some_and(|key| key_matches(daemon, key));
    let unless_shown = if shown { Identity::Operator } else { Identity::Unknown };
    let Some(pid) = peer.pid else {
        return Some(unless_shown);
    };
    // A daemon that an agent started has that agent's nonce, and so do all its clients there.
    let around = std::env::var(identity::NONCE_VAR).ok();
    if let Some(nonce) = identity::nonce_of(pid).filter(|nonce| Some(nonce) != around.as_ref()) {
        // Muleteer marks the processes of agents and their validations. If the nonce belongs to no
        // dispatch, the process has outlived its purpose, or was never an agent's. Then no key
        // helps it.
        return Some(owner_of(daemon, &nonce).map_or(Identity::Unknown, Identity::Agent));
    }
    let (agents, own) = (living_agents(daemon), ProcessId::current());
    let owner = |process| agents.iter().find(|agent| agent.is_below(daemon, process));
    // Agents that this daemon adopted are older than the daemon.
    let oldest = agents.is_empty().then_some(own);
    match identity::ancestry(pid, oldest, |process| process == own || owner(process).is_some()) {
        Ancestry::Below(found) => match owner(found) {
            Some(agent) => Some(Identity::Agent(agent.id.clone())),
            // The daemon's own children run code that agents wrote, or were left by agents that
            // have ended.
            None => Some(Identity::Unknown),
        },
        Ancestry::Unknown | Ancestry::Orphan => Some(unless_shown),
        Ancestry::Apart if no_new_privs(pid) && !no_new_privs(std::process::id()) => {
            Some(unless_shown)
        }
        Ancestry::Apart => Some(Identity::Operator),
    }
}

/// Whether an agent's dispatch is over, so that a process with its nonce is a leftover.
pub fn has_ended(daemon: &Daemon, id: &DispatchId) -> bool {
    // Each archived dispatch has ended; an unknown one is being made.
    archive::known(daemon, id)
        .map_or(true, |found| found.is_some_and(|dispatch| dispatch.is_finished()))
}

fn key_matches(daemon: &Daemon, key: &str) -> bool {
    std::fs::read_to_string(daemon.paths.operator_key()).is_ok_and(|known| {
        let (known, key) = (known.trim().as_bytes(), key.trim().as_bytes());
        // The comparison takes constant time, so that its duration reveals nothing of the key.
        known.len() == key.len()
            && !key.is_empty()
            && known.iter().zip(key).fold(0, |all, (a, b)| all | (a ^ b)) == 0
    })
}

/// An agent that may be alive.
struct Living {
    id: DispatchId,
    /// The pid of its shim, if known.
    pid: Option<u32>,
    /// The identity of its shim, read from the shim's file when needed.
    shim: OnceCell<Option<ProcessId>>,
}

impl Living {
    /// Whether this process is the agent's shim.
    fn is_below(&self, daemon: &Daemon, process: ProcessId) -> bool {
        let read = || Some(meta::read(&daemon.paths.agent(self.id.as_str())).ok()??.shim);
        self.pid.is_none_or(|pid| pid == process.pid)
            && *self.shim.get_or_init(read) == Some(process)
    }
}

fn living_agents(daemon: &Daemon) -> Vec<Living> {
    let fleet = daemon.snapshot();
    let living = |dispatch: &Arc<Dispatch>| {
        let pid = match dispatch.phase {
            Phase::Working { shim_pid, .. } => Some(shim_pid),
            _ => None,
        };
        Living { id: dispatch.id.clone(), pid, shim: OnceCell::new() }
    };
    fleet.unfinished().filter(|dispatch| dispatch.is_active()).map(living).collect()
}

/// Returns the dispatch of a nonce: any dispatch of this state directory, in any attempt.
fn owner_of(daemon: &Daemon, nonce: &str) -> Option<DispatchId> {
    let fleet = daemon.snapshot();
    fleet.iter().rev().find_map(|dispatch| {
        let dir = daemon.paths.agent(dispatch.id.as_str());
        let newest = meta::read(&dir).ok().flatten();
        let known = newest.is_some_and(|meta| meta.nonce == nonce)
            || (1..=dispatch.epoch)
                .rev()
                .any(|epoch| Launch::read(&dir, epoch).is_ok_and(|launch| launch.nonce == nonce));
        known.then(|| dispatch.id.clone())
    })
}

#[cfg(target_os = "linux")]
fn no_new_privs(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| {
        status.lines().any(|line| line.starts_with("NoNewPrivs:") && line.ends_with('1'))
    })
}

#[cfg(not(target_os = "linux"))]
fn no_new_privs(_: u32) -> bool {
    false
}
