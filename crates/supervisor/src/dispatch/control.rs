//! Creates dispatches, sends prompts and commands to them, kills them and waits for their end. The
//! gate, spec runs and task lists all call this module.

use crate::daemon::context::{Daemon, random_key};
use crate::daemon::trust;
use crate::dispatch::error::{ending, fault, unappended};
use crate::dispatch::prompt_files::{Further, write_further};
use crate::dispatch::request::place_warnings::{self, Lfs};
use crate::dispatch::request::{Asker, Prepared, ignored, is_same, prepare};
use crate::ledger::{archive, entry, try_append};
use crate::ports::agent::{JournalMsg, LifeMsg};
use crate::ports::gate::GateMsg;
use crate::ports::tree::BranchMsg;
use muleteer_backends::RepositorySettings;
use muleteer_model::config::Ignored;
use muleteer_model::dispatch::closing::{self, CLOSED, Closing};
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::dispatch::life::Input;
use muleteer_model::dispatch::{Dispatch, Prompt, PromptState};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event, PromptKind};
use muleteer_process::fault;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Reply, Spawn, WireError};
use ractor::rpc::CallResult;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The longest wait for a killed agent's end (TERM, 10 s, KILL), with a margin. A kill is answered
/// when the agent is gone.
pub(crate) const KILL_PATIENCE: Duration = Duration::from_secs(15);
const JOURNAL_PATIENCE: Duration = Duration::from_secs(5);
/// The time in which an agent accepts a prompt, unless it hangs.
const TURN_PATIENCE: Duration = Duration::from_secs(10);
const LIFE_PATIENCE: Duration = Duration::from_secs(10);

/// Creates a dispatch, or finds the one that this very request made before. Returns once it is
/// durable and its actors run.
///
/// # Errors
/// The fault of the request, or a full disk; then there is no such dispatch.
pub async fn create(
    daemon: &Arc<Daemon>,
    spawn: &Spawn,
    asker: &Asker,
    trace: Option<String>,
) -> Result<Reply, WireError> {
    let _alone = daemon.creating(&spawn.id).await;
    let known = match DispatchId::try_from(spawn.id.clone()) {
        Ok(id) => match archive::known_in_time(daemon, &id).await {
            Ok(known) => known,
            // The daemon made this id, and archives no dispatch of an active task list.
            Err(_) if matches!(asker, Asker::Tasks(_)) => None,
            Err(error) => return Err(error),
        },
        Err(_) => None,
    };
    if let Some(known) = known {
        if !is_same(&known.created, spawn) {
            return Err(fault(
                ErrorCode::IdTaken,
                &format!("another dispatch {} already exists", spawn.id),
                "choose another id",
            ));
        }
        // The daemon or client that made it may have died before its actors were started.
        bring_up(daemon, &known.id).await;
        let (ignored, loaded) =
            (ignored(daemon, spawn), trust::claude::recorded(&daemon.paths, &known));
        return Ok(spawned(daemon, &known, spawn, (&ignored, loaded)).await);
    }
    let id = DispatchId::try_from(spawn.id.clone())
        .map_err(|error| fault(ErrorCode::BadInput, &error.to_string(), ""))?;
    // Without a trace from the client, the dispatch's own span is the root.
    let trace = daemon.place_in_trace(trace, muleteer_model::event::trace_ids::dispatch(&id, 0));
    let ends_agents = daemon.lifecycle.ends_agents.read().await;
    if *ends_agents {
        return Err(ending("the daemon is being stopped with its agents"));
    }
    let Prepared { entries, saved, reservation, ignored, loaded } =
        prepare(daemon, spawn, asker, Some(trace)).await?;
    try_append(daemon, entries).await.map_err(|error| unappended(&error))?;
    drop((reservation, ends_agents));
    fault::point("gate.create_durable");
    if let Some(saved) = saved {
        daemon.agent(&id).keep_saved(saved);
    }
    bring_up(daemon, &id).await;
    let made = daemon.snapshot().get(&id).cloned();
    Ok(match made {
        Some(made) => spawned(daemon, &made, spawn, (&ignored, loaded)).await,
        None => Reply::Spawned { dispatch_id: spawn.id.clone(), warnings: vec![], access: None },
    })
}

/// The settings of the repository that do not count for a dispatch, and those that its agent loads.
type Settings<'a> = (&'a [Ignored], Option<RepositorySettings>);

async fn spawned(
    daemon: &Daemon,
    dispatch: &Dispatch,
    spawn: &Spawn,
    settings: Settings<'_>,
) -> Reply {
    let warnings = warnings(daemon, dispatch, spawn, settings).await;
    let access = Some(dispatch.created.access());
    Reply::Spawned { dispatch_id: spawn.id.clone(), warnings, access }
}

/// Returns warnings for the client: the dispatch works, but perhaps not as expected.
async fn warnings(
    daemon: &Daemon,
    dispatch: &Dispatch,
    spawn: &Spawn,
    (ignored, loaded): Settings<'_>,
) -> Vec<String> {
    let created = &dispatch.created;
    let unkept = created.unkept(dispatch.traits, spawn.budget_usd.is_some());
    let useless = created.useless_rule(dispatch.traits);
    let mut warnings: Vec<String> = unkept.into_iter().chain(useless).collect();
    warnings.extend(Ignored::warnings(ignored));
    if let Some(loaded) = loaded {
        warnings.extend(trust::claude::warning(&daemon.paths, dispatch, loaded).await);
    }
    let project = Path::new(&created.project);
    match created.worktree {
        Some(_) => {
            let lfs = Lfs::for_agents(spawn.env.iter().chain(&spawn.extra_env));
            warnings.extend(place_warnings::of_clones(project, None, lfs).await);
        }
        None => {
            warnings.extend(place_warnings::of_checkout(daemon, project, Some(&dispatch.id)));
        }
    }
    warnings
}

/// Queues a further prompt, or a command for the agent's CLI. Returns once it is durable.
///
/// # Errors
/// The dispatch takes no further prompt, or is being killed.
pub(crate) async fn send(
    daemon: &Arc<Daemon>,
    id: &str,
    said: Further<'_>,
    by: &str,
    trace: Option<String>,
) -> Result<Reply, WireError> {
    let (key, text) = (said.key, said.text);
    let name = find(daemon, id)?.id.clone();
    // This lock keeps the dispatch's files from being removed meanwhile.
    let _alone = daemon.creating(name.as_str()).await;
    archive::catch_up(daemon, &name).await?;
    let dispatch = find(daemon, name.as_str())?;
    let too_late = || WireError {
        dispatch_id: Some(name.to_string()),
        ..fault(ErrorCode::Busy, "it ended before it received the message", "spawn a new dispatch")
    };
    let is_withdrawn =
        |prompt: &Prompt| matches!(prompt.state, PromptState::Withdrawn | PromptState::Returned);
    match dispatch.prompt(key) {
        Some(prompt) if is_withdrawn(prompt) => return Err(too_late()),
        Some(_) => return Ok(Reply::Sent { dispatch_id: name.to_string(), queued: false }),
        None => {}
    }
    if dispatch.files.removed {
        return Err(WireError {
            dispatch_id: Some(name.to_string()),
            ..fault(
                ErrorCode::Unsupported,
                "its files were pruned, so it cannot receive messages",
                "spawn a new dispatch",
            )
        });
    }
    if dispatch.files.clone_removed {
        return Err(WireError {
            dispatch_id: Some(name.to_string()),
            ..fault(
                ErrorCode::Unsupported,
                "its clone was removed by `muleteer clean`, so it cannot receive messages",
                "spawn a new dispatch",
            )
        });
    }
    if dispatch.is_being_killed() {
        return Err(too_late());
    }
    if dispatch.was_killed_for_good() {
        return Err(WireError {
            dispatch_id: Some(name.to_string()),
            ..fault(
                ErrorCode::Unsupported,
                "it was killed, and a message does not revive it",
                "spawn a new dispatch",
            )
        });
    }
    if !dispatch.created.has_turns() || (dispatch.is_finished() && !dispatch.created.resumable) {
        let message = format!("the {} backend accepts one prompt only", dispatch.created.backend);
        return Err(WireError {
            dispatch_id: Some(name.to_string()),
            ..fault(ErrorCode::Unsupported, &message, "spawn a new dispatch")
        });
    }
    if text.trim().is_empty() {
        return Err(fault(ErrorCode::PromptMissing, "the message is empty", ""));
    }
    archive::restore(daemon, &name).await?;
    write_further(&daemon.paths.agent(name.as_str()), &dispatch.created.backend, &said)?;
    let event = Event::PromptQueued {
        key: key.into(),
        kind: PromptKind::Send,
        by: by.into(),
        trace: daemon.given_place(trace),
    };
    let entry = Entry { id: format!("{name}/prompt/{key}"), ..entry(&name, None, event) };
    let queued = dispatch.state() == "running"
        || dispatch.owes_an_answer().is_some()
        || dispatch.waits_for_an_answer();
    let records = try_append(daemon, vec![entry]).await.map_err(|error| unappended(&error))?;
    daemon.agent(&name).journal.cast(JournalMsg::Records(records));
    // The dispatch was killed since the check.
    let now = daemon.snapshot();
    if now.get(&name).and_then(|dispatch| dispatch.prompt(key)).is_some_and(is_withdrawn) {
        return Err(too_late());
    }
    bring_up(daemon, &name).await;
    Ok(Reply::Sent { dispatch_id: name.to_string(), queued })
}

/// Sends a command to the dispatch's life and waits until it is durable.
pub(crate) async fn command(
    daemon: &Daemon,
    id: &DispatchId,
    input: Input,
) -> Result<bool, WireError> {
    let deadline = tokio::time::Instant::now() + LIFE_PATIENCE;
    loop {
        if let Some(life) = daemon.agent(id).life.get()
            && let Ok(CallResult::Success(meant)) =
                life.call(|reply| LifeMsg::Command(input.clone(), reply), Some(LIFE_PATIENCE)).await
        {
            return Ok(meant);
        }
        if daemon.snapshot().get(id).is_some_and(|dispatch| dispatch.is_finished()) {
            return Ok(false);
        }
        if tokio::time::Instant::now() > deadline {
            return Err(fault(
                ErrorCode::Busy,
                &format!("dispatch {id} did not accept the command in time"),
                "try again",
            ));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Interrupts the running turn. Returns once that is durable.
///
/// # Errors
/// `E_BUSY` if the turn has not started in time.
pub(crate) async fn interrupt(daemon: &Daemon, id: &str, by: &str) -> Result<Reply, WireError> {
    interrupt_as(daemon, id, by, random_key()).await
}

/// Does the same under a key: a turn is interrupted once under each.
///
/// # Errors
/// Those of [`interrupt`].
pub(crate) async fn interrupt_as(
    daemon: &Daemon,
    id: &str,
    by: &str,
    key: String,
) -> Result<Reply, WireError> {
    let id = find(daemon, id)?.id.clone();
    let mut changes = daemon.fleet.subscribe();
    // A dispatch that just got a prompt has not accepted it yet: the turn that the user means is
    // about to start.
    let settled =
        |fleet: &Arc<Fleet>| fleet.get(&id).is_none_or(|dispatch| !dispatch.is_about_to_turn());
    let _ = tokio::time::timeout(TURN_PATIENCE, changes.wait_for(settled)).await;
    interrupt_present(daemon, &id, by, key).await
}

/// Interrupts the running turn once under the key, and does not wait for one to begin.
///
/// # Errors
/// `E_BUSY` if the turn has not started.
pub(crate) async fn interrupt_now(
    daemon: &Daemon,
    id: &str,
    by: &str,
    key: String,
) -> Result<Reply, WireError> {
    let dispatch = find(daemon, id)?;
    if dispatch.is_about_to_turn() {
        return Err(not_started(&dispatch.id));
    }
    interrupt_present(daemon, &dispatch.id, by, key).await
}

fn not_started(id: &DispatchId) -> WireError {
    WireError {
        dispatch_id: Some(id.to_string()),
        ..fault(ErrorCode::Busy, "its turn has not started yet", "try again, or kill it")
    }
}

async fn interrupt_present(
    daemon: &Daemon,
    id: &DispatchId,
    by: &str,
    key: String,
) -> Result<Reply, WireError> {
    let is_done = |dispatch: &Arc<Dispatch>| dispatch.interrupts.contains(&key);
    // The request was made before the daemon was killed. A later turn goes on.
    if daemon.snapshot().get(id).is_some_and(is_done) {
        return Ok(Reply::Done { dispatch_id: id.to_string(), note: None });
    }
    // An archived dispatch has ended, and no actor answers for it.
    let meant = daemon.snapshot().get(id).is_some()
        && command(daemon, id, Input::Interrupt { key, by: by.into() }).await?;
    let dispatch = find(daemon, id.as_str())?;
    if !meant && dispatch.is_about_to_turn() {
        return Err(not_started(id));
    }
    let note =
        (!meant).then(|| format!("no turn was running (the dispatch is {})", dispatch.state()));
    Ok(Reply::Done { dispatch_id: id.to_string(), note })
}

/// Kills a dispatch, and waits for the end of its agent for up to [`KILL_PATIENCE`].
///
/// # Errors
/// The kill could not be recorded.
pub(crate) async fn kill(
    daemon: &Daemon,
    id: &str,
    reason: Option<String>,
    by: &str,
) -> Result<Reply, WireError> {
    let dispatch = find(daemon, id)?;
    if dispatch.is_finished() {
        let note = Some(format!("it had already ended: {}", dispatch.state()));
        return Ok(Reply::Done { dispatch_id: dispatch.id.to_string(), note });
    }
    let reason = reason.unwrap_or_else(|| format!("killed by {by}"));
    command(daemon, &dispatch.id, Input::Kill { reason, by: by.into() }).await?;
    let ended =
        tokio::time::timeout(KILL_PATIENCE, finished(daemon, std::slice::from_ref(&dispatch.id)))
            .await
            .is_ok();
    let under_way = (!ended)
        .then(|| "the kill is recorded and in progress; the agent is still running".to_string());
    let withdrawn = |dispatch: &Dispatch| {
        dispatch.prompts.iter().filter(|prompt| prompt.state == PromptState::Withdrawn).count()
    };
    let now = daemon.snapshot().get(&dispatch.id).map_or(0, |now| withdrawn(now));
    let withdrawn = match now.saturating_sub(withdrawn(&dispatch)) {
        0 => None,
        1 => Some("withdrew 1 queued prompt".to_string()),
        many => Some(format!("withdrew {many} queued prompts")),
    };
    let notes: Vec<_> = under_way.into_iter().chain(withdrawn).collect();
    let note = (!notes.is_empty()).then(|| notes.join("; "));
    Ok(Reply::Done { dispatch_id: dispatch.id.to_string(), note })
}

/// Closes a dispatch, so that no message revives it. Returns once that is durable.
///
/// # Errors
/// `E_NOT_FOUND` and `E_AMBIGUOUS`; `E_BUSY` while the dispatch is at work.
pub(crate) async fn close(daemon: &Daemon, id: &str, by: &str) -> Result<Reply, WireError> {
    let name = find(daemon, id)?.id.clone();
    // A message that is being sent at this moment is either refused or reopens the dispatch first.
    let alone = daemon.creating(name.as_str()).await;
    let dispatch = find(daemon, name.as_str())?;
    let done = |note: Option<String>| Reply::Done { dispatch_id: name.to_string(), note };
    let events = match closing::close(&dispatch, by) {
        Closing::Events(events) => events,
        Closing::Kill => {
            drop(alone);
            return kill(daemon, name.as_str(), Some(CLOSED.into()), by).await;
        }
        Closing::Ended => {
            return Ok(done(Some(format!("it had already ended: {}", dispatch.state()))));
        }
        Closing::AtWork => {
            let message = format!(
                "it is {}; `close` ends a stalled dispatch, or one that waits for a message",
                dispatch.state()
            );
            return Err(WireError {
                dispatch_id: Some(name.to_string()),
                ..fault(ErrorCode::Busy, &message, &format!("run `muleteer kill {name}`"))
            });
        }
    };
    let ids = std::slice::from_ref(&name);
    // Its actors may still write the journal's last lines.
    finished(daemon, ids).await;
    archive::restore(daemon, &name).await?;
    let entries = events.into_iter().map(|event| entry(&name, None, event)).collect();
    try_append(daemon, entries).await.map_err(|error| unappended(&error))?;
    // Actors of its own complete the journal, and end again.
    if let Some(agents) = daemon.ports.agents.get() {
        let _ = agents.call(|reply| BranchMsg::Add(name.clone(), reply), Some(LIFE_PATIENCE)).await;
    }
    finished(daemon, ids).await;
    Ok(done(None))
}

/// Returns when all of `ids` have ended. Cancel-safe.
pub async fn finished(daemon: &Daemon, ids: &[DispatchId]) {
    until_all(daemon, ids, Dispatch::is_finished).await;
}

/// Returns when each of `ids` has ended, or its process only stays for a further message.
/// Cancel-safe.
pub async fn finished_or_idle(daemon: &Daemon, ids: &[DispatchId]) {
    until_all(daemon, ids, Dispatch::is_finished_or_idle).await;
}

async fn until_all(daemon: &Daemon, ids: &[DispatchId], is_over: fn(&Dispatch) -> bool) {
    let mut changes = daemon.fleet.subscribe();
    let all = |fleet: &Arc<Fleet>| {
        ids.iter().all(|id| fleet.get(id).is_none_or(|dispatch| is_over(dispatch)))
    };
    let _ = changes.wait_for(all).await;
    // Then the journals of those that have ended are completed, because the client may read them at
    // once.
    let fleet = daemon.snapshot();
    let has_ended = |id: &DispatchId| fleet.get(id).is_none_or(|one| one.is_finished());
    let closes = |id: &DispatchId| daemon.agents.has(id) && has_ended(id);
    let mut closed = daemon.agents.closed.subscribe();
    let gone = closed.wait_for(|_| !ids.iter().any(closes));
    let _ = tokio::time::timeout(JOURNAL_PATIENCE, gone).await;
}

/// Returns when at least one of `ids` has ended, and its journal is complete, or when its process
/// only stays for a further message. Cancel-safe.
pub async fn one_finished(daemon: &Daemon, ids: &[DispatchId]) {
    let ended = |fleet: &Fleet| -> Option<DispatchId> {
        let is_over = |id: &&DispatchId| fleet.get(id).is_none_or(|it| it.is_finished_or_idle());
        ids.iter().find(is_over).cloned()
    };
    let mut changes = daemon.fleet.subscribe();
    let _ = changes.wait_for(|fleet: &Arc<Fleet>| ended(fleet.as_ref()).is_some()).await;
    if let Some(id) = ended(daemon.snapshot().as_ref()) {
        finished_or_idle(daemon, std::slice::from_ref(&id)).await;
    }
}

/// Makes sure that the dispatch's actors run. If that fails now, the next start does it.
pub(crate) async fn bring_up(daemon: &Daemon, id: &DispatchId) {
    if daemon.snapshot().get(id).is_none_or(|dispatch| dispatch.is_finished()) {
        return;
    }
    // The agent may call `muleteer` in its first millisecond, so its socket listens before it
    // starts.
    if let Some(gate) = daemon.ports.gate.get() {
        let open = |reply| GateMsg::OpenAgent(id.clone(), Some(reply));
        let _ = gate.call(open, Some(LIFE_PATIENCE)).await;
    }
    if let Some(agents) = daemon.ports.agents.get() {
        let _ = agents.call(|reply| BranchMsg::Add(id.clone(), reply), Some(LIFE_PATIENCE)).await;
    }
    daemon.agent(id).life.cast(LifeMsg::Wake);
}

/// Finds a dispatch by the start of its id.
///
/// # Errors
/// `E_NOT_FOUND` or `E_AMBIGUOUS`.
pub(crate) fn find(daemon: &Daemon, prefix: &str) -> Result<Arc<Dispatch>, WireError> {
    archive::find(daemon, prefix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use futures_util::FutureExt;
    use muleteer_model::config::Pool;

    #[tokio::test(start_paused = true)]
    async fn task_gets_its_dispatch_while_the_archive_cannot_be_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        test_daemon::archived(&daemon, &test_daemon::id("abcd2345"));
        let spawn = Spawn { id: "bcde3456".into(), ..Spawn::default() };
        let refused = create(&daemon, &spawn, &Asker::Operator, None).await;
        assert_eq!(refused.expect_err("it may be archived").code, "E_BUSY");
        let asker = Asker::Tasks(dir.path().into());
        let refused = create(&daemon, &spawn, &asker, None).await;
        assert_eq!(refused.expect_err("it has no project").code, "E_PROJECT_NOT_FOUND");
    }

    /// The files of the dispatch may be about to be removed.
    #[tokio::test]
    async fn send_waits_for_a_prune_of_the_same_dispatch() {
        let dir = tempfile::tempdir().expect("a directory");
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let id = test_daemon::id("abcd2345");
        daemon.fold(&id, test_daemon::sample("dispatch_created"));
        let alone = daemon.creating(id.as_str()).await;
        let said = Further { key: "k1", text: " ", cli_command: false };
        let send = send(&daemon, id.as_str(), said, "operator", None);
        tokio::pin!(send);
        assert_eq!(send.as_mut().now_or_never(), None);
        drop(alone);
        let refused = send.await.expect_err("the message is empty");
        assert_eq!(refused.code, "E_PROMPT_MISSING");
    }
}
