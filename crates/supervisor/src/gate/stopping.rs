//! Stops the daemon on request: its agents go on under a long lease, or end first.

use crate::daemon::context::{Daemon, random_key};
use crate::daemon::heartbeat;
use crate::dispatch::control::{KILL_PATIENCE, command, finished};
use crate::dispatch::error::{fault, unappended};
use crate::gate::runs;
use crate::ledger::try_append;
use muleteer_model::dispatch::Stop;
use muleteer_model::dispatch::life::Input;
use muleteer_model::event::{Entry, Event};
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Reply, WireError};
use std::sync::Arc;
use std::time::Duration;

/// The lease of agents after an explicit stop (docs/design/shim-and-spool.md).
const LONG_LEASE: Duration = Duration::from_secs(8 * 3600);

/// Stops the daemon. `agents` is `keep` or `stop`. While it ends all agents, none can begin: a
/// message that is due then begins one under the next daemon.
///
/// # Errors
/// Not all agents ended in time, or the event cannot be recorded; then the daemon continues.
pub(super) async fn stop(daemon: &Arc<Daemon>, agents: &str) -> Result<Reply, WireError> {
    if agents != "stop" {
        return stop_now(daemon, agents).await;
    }
    // It waits for the dispatches that are being made, so that all are known.
    *daemon.lifecycle.ends_agents.write().await = true;
    let stopped = stop_now(daemon, agents).await;
    if stopped.is_err() {
        *daemon.lifecycle.ends_agents.write().await = false;
    }
    stopped
}

async fn stop_now(daemon: &Arc<Daemon>, agents: &str) -> Result<Reply, WireError> {
    let active: Vec<_> =
        daemon.snapshot().unfinished().map(|dispatch| dispatch.id.clone()).collect();
    let (alive, lease_s) = match agents {
        "keep" => {
            (heartbeat::renew(daemon, LONG_LEASE.as_millis() as u64).await, LONG_LEASE.as_secs())
        }
        "stop" => {
            for run in daemon.runs.all() {
                runs::stop(daemon, &run.run_id).await?;
            }
            for id in &active {
                let input = Input::Kill { reason: Stop::WITH_DAEMON.into(), by: "operator".into() };
                command(daemon, id, input).await?;
            }
            if tokio::time::timeout(KILL_PATIENCE, finished(daemon, &active)).await.is_err() {
                return Err(fault(
                    ErrorCode::Busy,
                    "not all agents ended in time, so the daemon continues",
                    "run `muleteer status` to list them, then try again",
                ));
            }
            (0, 0)
        }
        other => {
            return Err(fault(
                ErrorCode::BadInput,
                &format!("`{other}` is not `keep` or `stop`"),
                "",
            ));
        }
    };
    let event = Event::DaemonStopping { agents: agents.into(), alive, lease_s };
    let entry = Entry { id: random_key(), dispatch_id: None, at: None, more: false, event };
    try_append(daemon, vec![entry]).await.map_err(|error| unappended(&error))?;
    Ok(Reply::Stopping { agents_alive: alive, lease_s })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use crate::dispatch::control::create;
    use crate::dispatch::request::Asker;
    use crate::ports::ledger::LedgerMsg;
    use muleteer_model::config::Pool;
    use muleteer_protocol::v1::Spawn;

    /// The agents are without a daemon until somebody starts one again, which may take a night.
    #[tokio::test]
    async fn daemon_stop_with_kept_agents_renews_their_lease_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let shim = test_daemon::Shim::of(&daemon, &test_daemon::id("abcd2345"));
        let (ledger, mut asked) = test_daemon::stand_in().await;
        daemon.ports.ledger.set(ledger);
        let stopping = stop(&daemon, "keep");
        tokio::pin!(stopping);
        let lease_ms = tokio::select! {
            lease_ms = shim.lease_ms() => lease_ms,
            told = &mut stopping => panic!("{told:?}"),
            _ = asked.recv() => panic!("it is written before it is done"),
        };
        assert_eq!(Duration::from_millis(lease_ms), LONG_LEASE);
        let written = tokio::select! {
            written = asked.recv() => written,
            told = &mut stopping => panic!("{told:?} before it is written"),
        };
        let Some(LedgerMsg::Append(entries, reply)) = written else { panic!("{written:?}") };
        assert!(
            matches!(&entries[0].event, Event::DaemonStopping { agents, .. } if agents == "keep"),
            "{entries:?}"
        );
        assert!(reply.send(Ok(vec![])).is_ok());
        assert!(matches!(stopping.await, Ok(Reply::Stopping { .. })));
    }

    /// The thread of a killed agent gave its message to a new one, which outlived the daemon.
    #[tokio::test]
    async fn no_agent_begins_while_all_are_ended() {
        let dir = tempfile::tempdir().expect("a directory");
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let (ledger, mut asked) = test_daemon::stand_in().await;
        daemon.ports.ledger.set(ledger);
        let stopping = stop(&daemon, "stop");
        tokio::pin!(stopping);
        let reply = tokio::select! {
            written = asked.recv() => match written {
                Some(LedgerMsg::Append(_, reply)) => reply,
                other => panic!("{other:?}"),
            },
            told = &mut stopping => panic!("{told:?}"),
        };
        let id = test_daemon::id("abcd2345").to_string();
        let spawn = Spawn { id, role: "developer".into(), ..Spawn::default() };
        let refused = create(&daemon, &spawn, &Asker::Thread("thrd2345".into()), None).await;
        assert_eq!(refused.expect_err("it is ending").code, "E_DAEMON_ENDING");
        // The disk is full, so the daemon goes on.
        assert!(reply.send(Err(crate::ports::ledger::LedgerError::Full)).is_ok());
        assert_eq!(stopping.await.expect_err("it goes on").code, "E_DISK_FULL");
        assert!(!*daemon.lifecycle.ends_agents.read().await);
    }
}
