//! Who is at the other end (design.md, "Identity and trust"). This stops confusion and simple
//! injection; against a determined program of the same user only the sandbox helps.

use crate::context::Daemon;
use muleteer_model::id::DispatchId;
use muleteer_process::identity::{self, Ancestry, ProcessId};
use muleteer_shim::launch::Launch;
use muleteer_shim::meta;
use tokio::net::UnixStream;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    Operator,
    Agent(DispatchId),
    /// Read-only.
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

/// Decides who the peer is; `None` when it is another user, who gets nothing.
///
/// Blocking: it reads `/proc` and a few small files.
pub fn identify(
    daemon: &Daemon,
    stream: &UnixStream,
    through: Option<&DispatchId>,
    operator_key: Option<&str>,
) -> Option<Identity> {
    let credentials = stream.peer_cred().ok()?;
    if credentials.uid() != rustix::process::getuid().as_raw() {
        return None;
    }
    if let Some(id) = through {
        return Some(Identity::Agent(id.clone()));
    }
    let shown = operator_key.is_some_and(|key| key_matches(daemon, key));
    let unless_shown = if shown { Identity::Operator } else { Identity::Unknown };
    let Some(pid) = credentials.pid().and_then(|pid| u32::try_from(pid).ok()) else {
        return Some(unless_shown);
    };
    if let Some(nonce) = identity::nonce_of(pid)
        && let Some(id) = owner_of(daemon, &nonce)
    {
        return Some(Identity::Agent(id));
    }
    let shims = living_shims(daemon);
    match identity::ancestry(pid, |process| shims.iter().any(|(_, shim)| *shim == process)) {
        Ancestry::Below(shim) => shims.into_iter().find(|(_, known)| *known == shim).map(|(id, _)| Identity::Agent(id)),
        Ancestry::Unknown | Ancestry::Orphan => Some(unless_shown),
        Ancestry::Apart if no_new_privs(pid) && !no_new_privs(std::process::id()) => Some(unless_shown),
        Ancestry::Apart => Some(Identity::Operator),
    }
}

fn key_matches(daemon: &Daemon, key: &str) -> bool {
    std::fs::read_to_string(daemon.paths.operator_key()).is_ok_and(|known| {
        let (known, key) = (known.trim().as_bytes(), key.trim().as_bytes());
        // In constant time, so that the time taken tells nothing of the key.
        known.len() == key.len() && !key.is_empty() && known.iter().zip(key).fold(0, |all, (a, b)| all | (a ^ b)) == 0
    })
}

fn living_shims(daemon: &Daemon) -> Vec<(DispatchId, ProcessId)> {
    let fleet = daemon.snapshot();
    fleet
        .iter()
        .filter(|dispatch| dispatch.is_active())
        .filter_map(|dispatch| {
            let meta = meta::read(&daemon.paths.agent(dispatch.id.as_str())).ok()??;
            Some((dispatch.id.clone(), meta.shim))
        })
        .collect()
}

/// Whose nonce this is: of any dispatch of this state directory, in any of its attempts.
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
    std::fs::read_to_string(format!("/proc/{pid}/status"))
        .is_ok_and(|status| status.lines().any(|line| line.starts_with("NoNewPrivs:") && line.ends_with('1')))
}

#[cfg(not(target_os = "linux"))]
fn no_new_privs(_: u32) -> bool {
    false
}
