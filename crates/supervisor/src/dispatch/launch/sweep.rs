//! Terminates the processes that a dead shim left.

use crate::daemon::context::Daemon;
use crate::dispatch::error::chain;
use crate::dispatch::shim::error::ShimError;
use muleteer_model::event::LeftProcess;
use muleteer_model::event::id::DispatchId;
use muleteer_process::group::{self, Before};
use muleteer_process::lock::LockGuard;
use muleteer_shim::launch::Launch;
use muleteer_shim::{meta, spool, start};
use std::time::Duration;

/// The timeout of a sweep after a dead shim; then the dispatch is `blocked`
/// (docs/design/adoption-and-recovery.md).
const SWEEP: Duration = Duration::from_secs(30);

/// Terminates the processes that a dead shim left, by its nonce, and by its cgroup if it had one.
/// `of` has the epoch of a shim that died early, and whether the machine has restarted since. Its
/// nonce is in two of its files; without them nobody can say that no process lives, unless the
/// machine restarted. Without `of` this is the search before the next attempt, the second of two
/// that must find nothing.
///
/// The sweep shares the agent's `lock` until it ends, even if nobody waits for it any more: it
/// would kill a successor that began meanwhile.
pub async fn sweep(
    daemon: &Daemon,
    id: &DispatchId,
    of: Option<(u32, bool)>,
    lock: &LockGuard,
) -> Result<Swept, ShimError> {
    let dir = daemon.paths.agent(id.as_str());
    let held = lock.share().map_err(ShimError::Probe)?;
    let (swept, faults) = tokio::task::spawn_blocking(move || {
        let _held = held;
        let mut faults = vec![];
        let meta = meta::read(&dir).unwrap_or_else(|error| {
            faults.push(chain(&error));
            None
        });
        let newest = spool::newest_epoch(&spool::dir_of(&dir)).map_err(ShimError::Spool)?;
        let mut nonces: Vec<String> = meta.iter().map(|meta| meta.nonce.clone()).collect();
        for epoch in 1..=newest.max(meta.as_ref().map_or(0, |meta| meta.epoch)) + 1 {
            if let Ok(launch) = Launch::read(&dir, epoch)
                && !nonces.contains(&launch.nonce)
            {
                nonces.push(launch.nonce);
            }
        }
        let said = of.and_then(|(epoch, _)| start::last_words(&dir, epoch)).unwrap_or_default();
        let mut swept = Swept { killed: 0, clean: true, said, left: vec![] };
        if let Some((epoch, false)) = of
            && meta.as_ref().is_none_or(|meta| meta.epoch != epoch)
            && let Err(error) = Launch::read(&dir, epoch)
        {
            faults.push(format!("{}; its processes cannot be searched for", chain(&error)));
            swept.clean = false;
        }
        let cgroup = meta.and_then(|meta| meta.cgroup);
        // An attempt starts only after the one before it was swept, by its own shim or by a sweep.
        let before = if of.is_some() { Before::Nobody } else { Before::FoundNothing };
        let nonces: Vec<&str> = nonces.iter().map(String::as_str).collect();
        let report = group::sweep(&nonces, cgroup.as_deref(), before, SWEEP);
        swept.killed += report.killed;
        swept.clean &= report.clean;
        swept.left =
            report.named.into_iter().map(|(pid, name)| LeftProcess { pid, name }).collect();
        Ok::<_, ShimError>((swept, faults))
    })
    .await??;
    for message in faults {
        daemon.fault(id, format!("the dead shim of {id}"), message);
    }
    Ok(swept)
}

#[derive(Debug, Clone)]
pub struct Swept {
    pub killed: u32,
    pub clean: bool,
    /// The dead shim's last message about its end; empty if there was none.
    pub said: String,
    /// The processes that were killed.
    pub left: Vec<LeftProcess>,
}
