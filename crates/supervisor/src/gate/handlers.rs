//! Handles each request. A reply is sent after the effect, never when it is enqueued.

use crate::agent::journal::JournalMsg;
use crate::agent::life::LifeMsg;
use crate::daemon::context::Daemon;
use crate::daemon::heartbeat;
use crate::daemon::prune::prune;
use crate::daemon::trust;
use crate::dispatch::request::{
    Asker, Further, disk_full, fault, ignored, internal, is_same, prepare, write_further,
};
use crate::dispatch::view;
use crate::gate::answer;
use crate::gate::connection::{Answer, Connection, Heard};
use crate::gate::peer::{Identity, has_ended};
use crate::ledger::{LedgerError, entry, try_append};
use crate::task_list::serve as tasklist;
use crate::tree::supervisor_actor::BranchMsg;
use muleteer_model::config::Ignored;
use muleteer_model::dispatch::fleet::{Fleet, LookupError};
use muleteer_model::dispatch::life::Input;
use muleteer_model::dispatch::{Dispatch, Prompt, PromptState};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event, PromptKind};
use muleteer_process::fault;
use muleteer_protocol::v1::{
    self, DaemonStatus, Item, Reply, Request, Spawn, StatusReport, WireError,
};
use muleteer_store::events::tail;
use ractor::rpc::CallResult;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The longest wait for a killed agent's end (TERM, 10 s, KILL), with a margin. A kill is answered
/// when the agent is gone.
const KILL_PATIENCE: Duration = Duration::from_secs(15);
/// The lease of agents after an explicit stop (docs/design/shim-and-spool.md).
const LONG_LEASE: Duration = Duration::from_secs(8 * 3600);
const JOURNAL_PATIENCE: Duration = Duration::from_secs(5);
const TREE_DEADLINE: Duration = Duration::from_secs(5);
/// The time in which an agent accepts a prompt, unless it hangs.
const TURN_PATIENCE: Duration = Duration::from_secs(10);
const LIFE_PATIENCE: Duration = Duration::from_secs(10);

pub async fn handle(connection: &mut Connection, body: Request, trace: Option<String>) -> Answer {
    if let Err(error) = permitted(&connection.daemon, &connection.identity, &body) {
        return Ok(Err(error));
    }
    let daemon = connection.daemon.clone();
    match body {
        Request::Ping => Ok(Ok(Some(Reply::Pong))),
        Request::Status { id } => {
            Ok(status(&daemon, id.as_deref(), &connection.identity).map(Some))
        }
        Request::Tree => Ok(tree(&daemon).await.map(Some)),
        Request::Spawn(spawn) => {
            let asker = asker(&connection.identity);
            Ok(create(&daemon, &spawn, &asker, trace).await.map(Some))
        }
        Request::Send { id, key, text, cli_command } => {
            let by = connection.identity.as_str();
            let said = Further { key: &key, text: &text, cli_command };
            Ok(send(&daemon, &id, said, by, trace).await.map(Some))
        }
        Request::Interrupt { id } => {
            Ok(interrupt(&daemon, &id, connection.identity.as_str()).await.map(Some))
        }
        Request::Answer { id, request, answer: said, key } => {
            let by = asker(&connection.identity);
            Ok(answer::answer(&daemon, &id, request.as_deref(), &said, &key, &by).await.map(Some))
        }
        Request::SetModel { id, key, model } => {
            let by = asker(&connection.identity).name();
            Ok(answer::set_model(&daemon, &id, &key, &model, by).await.map(Some))
        }
        Request::Kill { id, reason } => {
            Ok(kill(&daemon, &id, reason, connection.identity.as_str()).await.map(Some))
        }
        Request::Prune { older_than_s, dry_run, from_seq } => {
            let by = connection.identity.as_str();
            Ok(prune(&daemon, older_than_s, dry_run, from_seq, by).await.map(Some))
        }
        Request::Wait { ids } => wait(connection, &ids).await,
        Request::Events { from_seq, follow } => events(connection, from_seq, follow).await,
        Request::TasksRun(run) => {
            Ok(tasklist::run(&daemon, &run, connection.identity.as_str(), trace).await.map(Some))
        }
        Request::TasksWait { id } => loop {
            tokio::select! {
                answer = tasklist::wait(&daemon, &id) => return Ok(answer.map(Some)),
                heard = connection.hear() => {
                    if let Heard::Cancelled = heard? {
                        return Ok(Ok(None));
                    }
                }
            }
        },
        Request::TasksStop { id, now } => {
            Ok(tasklist::stop(&daemon, &id, now, connection.identity.as_str()).await.map(Some))
        }
        Request::Stop { agents } => Ok(stop(&daemon, &agents).await.map(Some)),
        Request::Bead { key, op } => {
            Ok(crate::gate::runs::bead(connection, &key, &op).await.map(Some))
        }
        Request::Run(run) => Ok(crate::spec_run::begin(&daemon, &run, trace)
            .await
            .map(|run_id| Some(Reply::RunUp { run_id }))),
        Request::RunEvents { run_id, from_seq, follow } => {
            crate::gate::runs::events(connection, &run_id, from_seq, follow).await
        }
        Request::RunStop { run_id } => {
            Ok(crate::gate::runs::stop(&daemon, &run_id).await.map(Some))
        }
        Request::Unknown => Ok(Err(fault(
            "E_UNKNOWN_VERB",
            "this daemon does not know that request",
            "it may be older than the client: restart it",
        ))),
    }
}

fn asker(identity: &Identity) -> Asker {
    match identity {
        Identity::Agent(id) => Asker::Agent(id.clone()),
        _ => Asker::Operator,
    }
}

/// Checks permissions. Any authenticated peer may read; only the operator may act. An agent may
/// dispatch others, and act on those it dispatched. A run's agent may do neither, and only sees
/// itself: other agents' output is about criteria that it must not know, and its children would not
/// be confined as it is.
fn permitted(daemon: &Daemon, identity: &Identity, body: &Request) -> Result<(), WireError> {
    if let Identity::Agent(id) = identity
        && in_a_run(daemon, id)
    {
        let allowed = match body {
            Request::Ping | Request::Tree | Request::Bead { .. } | Request::Unknown => true,
            // The list leaves other dispatches out.
            Request::Status { id: asked } => {
                asked.as_ref().is_none_or(|asked| asked == id.as_str())
            }
            _ => false,
        };
        return allowed.then_some(()).ok_or_else(|| {
            fault(
                "E_FORBIDDEN",
                &format!("agent {id} is part of a run, and may not do that"),
                "it works on its own bead; what else is to be done is for `muleteer bead create \
                 --label observation`",
            )
        });
    }
    let reads = matches!(
        body,
        Request::Ping
            | Request::Status { .. }
            | Request::Tree
            | Request::Wait { .. }
            | Request::TasksWait { .. }
            | Request::Events { .. }
            | Request::RunEvents { .. }
            | Request::Unknown
    );
    let own = |agent: &DispatchId, id: &str| {
        let fleet = daemon.snapshot();
        fleet.find(id).is_ok_and(|dispatch| dispatch.created.parent.as_ref() == Some(agent))
    };
    let allowed = match (identity, body) {
        (Identity::Operator, _) => true,
        _ if reads => true,
        // Processes that an ended agent left may continue, but act for nobody.
        (Identity::Agent(agent), _) if has_ended(daemon, agent) => false,
        (Identity::Agent(_), Request::Spawn(_) | Request::Bead { .. }) => true,
        (
            Identity::Agent(agent),
            Request::Send { id, .. }
            | Request::Answer { id, .. }
            | Request::SetModel { id, .. }
            | Request::Interrupt { id }
            | Request::Kill { id, .. },
        ) => own(agent, id),
        _ => false,
    };
    if allowed {
        return Ok(());
    }
    Err(match identity {
        Identity::Agent(id) if has_ended(daemon, id) => fault(
            "E_FORBIDDEN",
            &format!("dispatch {id} has ended: what it left running may only read"),
            "run it from a terminal of the daemon's user",
        ),
        Identity::Agent(id) => fault(
            "E_FORBIDDEN",
            &format!("agent {id} may not do that"),
            "agents may read, dispatch others, and act on those they dispatched",
        ),
        _ => fault(
            "E_FORBIDDEN",
            "this process is no agent of this daemon and not known to be its user's: it may only \
             read",
            "run it from a terminal of the daemon's user, without MULETEER_NONCE in its \
             environment, or let the \
             client read operator.key in the state directory",
        ),
    })
}

pub(super) fn find(daemon: &Daemon, prefix: &str) -> Result<Arc<Dispatch>, WireError> {
    let fleet = daemon.snapshot();
    fleet.find(prefix).cloned().map_err(|error| {
        let (code, hint) = match error {
            LookupError::Unknown(_) => ("E_NOT_FOUND", "`muleteer status` lists them"),
            LookupError::Ambiguous { .. } => ("E_AMBIGUOUS", "give more of the id"),
        };
        WireError { dispatch_id: Some(prefix.into()), ..fault(code, &error.to_string(), hint) }
    })
}

/// Whether the dispatch, or one of its ancestors, is an agent of a run.
fn in_a_run(daemon: &Daemon, id: &DispatchId) -> bool {
    let fleet = daemon.snapshot();
    let mut next = fleet.get(id);
    // Ancestors are older, so this ends. The depth of dispatches is limited too.
    while let Some(dispatch) = next {
        if dispatch.created.by.starts_with("run/") {
            return true;
        }
        next = dispatch.created.parent.as_ref().and_then(|parent| fleet.get(parent));
    }
    false
}

fn status(daemon: &Daemon, id: Option<&str>, asker: &Identity) -> Result<Reply, WireError> {
    let only = match asker {
        Identity::Agent(agent) if in_a_run(daemon, agent) => Some(agent.as_str()),
        _ => id,
    };
    let mut dispatches = match only {
        Some(id) => vec![view::status(&daemon.snapshot(), &*find(daemon, id)?)],
        None => view::statuses(&daemon.snapshot()),
    };
    let heard = daemon.heard();
    for dispatch in &mut dispatches {
        if let Some(at) = heard.get(&dispatch.id) {
            view::heard(dispatch, *at);
        }
    }
    let daemon = DaemonStatus {
        running: true,
        pid: Some(std::process::id()),
        version: Some(env!("CARGO_PKG_VERSION").into()),
        socket: Some(daemon.paths.socket.display().to_string()),
    };
    Ok(Reply::Status(StatusReport { daemon, dispatches }))
}

async fn tree(daemon: &Daemon) -> Result<Reply, WireError> {
    let root = daemon.root.get().ok_or_else(|| internal("the root is not there"))?;
    match root.call(BranchMsg::Describe, Some(TREE_DEADLINE)).await {
        Ok(CallResult::Success(node)) => Ok(Reply::Tree(node)),
        _ => Err(fault("E_BUSY", "the tree did not describe itself in time", "try again")),
    }
}

pub async fn create(
    daemon: &Arc<Daemon>,
    spawn: &Spawn,
    asker: &Asker,
    trace: Option<String>,
) -> Result<Reply, WireError> {
    let _alone = daemon.creating(&spawn.id).await;
    let known = DispatchId::try_from(spawn.id.clone())
        .ok()
        .and_then(|id| daemon.snapshot().get(&id).cloned());
    if let Some(known) = known {
        if !is_same(&known.created, spawn) {
            return Err(fault(
                "E_ID_TAKEN",
                &format!("dispatch {} exists and is another", spawn.id),
                "choose another id",
            ));
        }
        // The daemon or client that made it may have died before its actors were started.
        bring_up(daemon, &known.id).await;
        let warnings = warnings(daemon, &known, spawn).await;
        return Ok(Reply::Spawned { dispatch_id: spawn.id.clone(), warnings });
    }
    let id = DispatchId::try_from(spawn.id.clone())
        .map_err(|error| fault("E_BAD_INPUT", &error.to_string(), ""))?;
    // Without a trace from the client, the dispatch's own span is the root.
    let trace = daemon.place_in_trace(trace, muleteer_model::event::trace_ids::dispatch(&id, 0));
    let (entries, reservation) = prepare(daemon, spawn, asker, Some(trace)).await?;
    try_append(daemon, entries).await.map_err(|error| unappended(&error))?;
    drop(reservation);
    fault::point("gate.create_durable");
    bring_up(daemon, &id).await;
    let made = daemon.snapshot().get(&id).cloned();
    let warnings = match made {
        Some(made) => warnings(daemon, &made, spawn).await,
        None => vec![],
    };
    Ok(Reply::Spawned { dispatch_id: spawn.id.clone(), warnings })
}

/// Returns warnings for the client: the dispatch works, but perhaps not as expected.
async fn warnings(daemon: &Daemon, dispatch: &Dispatch, spawn: &Spawn) -> Vec<String> {
    let created = &dispatch.created;
    let mut warnings: Vec<String> = created.unkept().into_iter().collect();
    warnings.extend(Ignored::warnings(&ignored(daemon, spawn)));
    warnings.extend(trust::claude::warning(&daemon.paths, dispatch).await);
    if created.worktree.is_some()
        && let Some(repository) = daemon.repositories.of(Path::new(&created.project)).await
        && repository.top.join(".gitmodules").exists()
    {
        warnings.push(
            "the repository's submodules are not checked out in the clone that the agent works in"
                .into(),
        );
    }
    warnings
}

pub(crate) fn unappended(error: &LedgerError) -> WireError {
    match error {
        LedgerError::Full => disk_full(),
        LedgerError::Ending => {
            let hint = "ask again: the next daemon answers, and does nothing twice";
            fault(v1::ENDING, "the daemon ended before it could answer", hint)
        }
        other => internal(&other.to_string()),
    }
}

/// Makes sure that the dispatch's actors run. If that fails now, the next start does it.
pub(crate) async fn bring_up(daemon: &Daemon, id: &DispatchId) {
    if daemon.snapshot().get(id).is_none_or(|dispatch| dispatch.is_finished()) {
        return;
    }
    // The agent may call `muleteer` in its first millisecond, so its socket listens before it
    // starts.
    if let Some(gate) = daemon.gate.get() {
        let open = |reply| crate::gate::GateMsg::OpenAgent(id.clone(), Some(reply));
        let _ = gate.call(open, Some(LIFE_PATIENCE)).await;
    }
    if let Some(agents) = daemon.agents.get() {
        let _ = agents.call(|reply| BranchMsg::Add(id.clone(), reply), Some(LIFE_PATIENCE)).await;
    }
    daemon.agent(id).life.cast(LifeMsg::Wake);
}

async fn send(
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
    let dispatch = find(daemon, name.as_str())?;
    let too_late = || WireError {
        dispatch_id: Some(name.to_string()),
        ..fault(
            "E_BUSY",
            "it was killed before it could hear that",
            "say it again when it has ended, to go on with it",
        )
    };
    let is_withdrawn = |prompt: &Prompt| prompt.state == PromptState::Withdrawn;
    match dispatch.prompt(key) {
        Some(prompt) if is_withdrawn(prompt) => return Err(too_late()),
        Some(_) => return Ok(Reply::Sent { dispatch_id: name.to_string(), queued: false }),
        None => {}
    }
    if dispatch.files_removed {
        return Err(WireError {
            dispatch_id: Some(name.to_string()),
            ..fault(
                "E_UNSUPPORTED",
                "its files were removed, so it cannot be spoken to again",
                "spawn a new dispatch",
            )
        });
    }
    if dispatch.is_being_killed() {
        return Err(too_late());
    }
    if !dispatch.created.has_turns() || (dispatch.is_finished() && !dispatch.created.resumable) {
        let message = format!("the {} backend takes one prompt only", dispatch.created.backend);
        return Err(WireError {
            dispatch_id: Some(name.to_string()),
            ..fault("E_UNSUPPORTED", &message, "spawn a new dispatch")
        });
    }
    if text.trim().is_empty() {
        return Err(fault("E_PROMPT_MISSING", "the text is empty", ""));
    }
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
                "E_BUSY",
                &format!("dispatch {id} did not take the command in time"),
                "try again",
            ));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn interrupt(daemon: &Daemon, id: &str, by: &str) -> Result<Reply, WireError> {
    let id = find(daemon, id)?.id.clone();
    let mut changes = daemon.fleet.subscribe();
    // A dispatch that just got a prompt has not accepted it yet: the turn that the user means is
    // about to start.
    let settled =
        |fleet: &Arc<Fleet>| fleet.get(&id).is_none_or(|dispatch| !dispatch.is_about_to_turn());
    let _ = tokio::time::timeout(TURN_PATIENCE, changes.wait_for(settled)).await;
    let key = crate::daemon::context::random_key();
    let meant = command(daemon, &id, Input::Interrupt { key, by: by.into() }).await?;
    let dispatch = find(daemon, id.as_str())?;
    if !meant && dispatch.is_about_to_turn() {
        return Err(WireError {
            dispatch_id: Some(id.to_string()),
            ..fault(
                "E_BUSY",
                "it has not begun with what it was told, so there is no turn yet",
                "ask again, or kill it",
            )
        });
    }
    let note =
        (!meant).then(|| format!("no turn was running (the dispatch is {})", dispatch.state()));
    Ok(Reply::Done { dispatch_id: id.to_string(), note })
}

async fn kill(
    daemon: &Daemon,
    id: &str,
    reason: Option<String>,
    by: &str,
) -> Result<Reply, WireError> {
    let dispatch = find(daemon, id)?;
    if dispatch.is_finished() {
        let note = Some(format!("it had ended already: {}", dispatch.state()));
        return Ok(Reply::Done { dispatch_id: dispatch.id.to_string(), note });
    }
    let reason = reason.unwrap_or_else(|| format!("killed by {by}"));
    command(daemon, &dispatch.id, Input::Kill { reason, by: by.into() }).await?;
    let ended =
        tokio::time::timeout(KILL_PATIENCE, finished(daemon, std::slice::from_ref(&dispatch.id)))
            .await
            .is_ok();
    let under_way = (!ended)
        .then(|| "the kill is recorded and under way; the agent is not gone yet".to_string());
    let withdrawn = |dispatch: &Dispatch| {
        dispatch.prompts.iter().filter(|prompt| prompt.state == PromptState::Withdrawn).count()
    };
    let now = daemon.snapshot().get(&dispatch.id).map_or(0, |now| withdrawn(now));
    let withdrawn = match now.saturating_sub(withdrawn(&dispatch)) {
        0 => None,
        1 => Some("one of its prompts was waiting, and is withdrawn".to_string()),
        many => Some(format!("{many} of its prompts were waiting, and are withdrawn")),
    };
    let notes: Vec<_> = under_way.into_iter().chain(withdrawn).collect();
    let note = (!notes.is_empty()).then(|| notes.join("; "));
    Ok(Reply::Done { dispatch_id: dispatch.id.to_string(), note })
}

/// Returns when all of `ids` have ended. Cancel-safe.
pub async fn finished(daemon: &Daemon, ids: &[DispatchId]) {
    let mut changes = daemon.fleet.subscribe();
    let all = |fleet: &Arc<Fleet>| {
        ids.iter().all(|id| fleet.get(id).is_none_or(|dispatch| dispatch.is_finished()))
    };
    let _ = changes.wait_for(all).await;
    // Then their journals are completed, because the client may read them at once.
    let mut closed = daemon.closed.subscribe();
    let gone = closed.wait_for(|_| !ids.iter().any(|id| daemon.has_agent(id)));
    let _ = tokio::time::timeout(JOURNAL_PATIENCE, gone).await;
}

async fn wait(connection: &mut Connection, ids: &[String]) -> Answer {
    let daemon = connection.daemon.clone();
    let found: Result<Vec<_>, _> =
        ids.iter().map(|id| find(&daemon, id).map(|dispatch| dispatch.id.clone())).collect();
    let ids = match found {
        Ok(ids) => ids,
        Err(error) => return Ok(Err(error)),
    };
    loop {
        tokio::select! {
            () = finished(&daemon, &ids) => break,
            heard = connection.hear() => {
                if let Heard::Cancelled = heard? {
                    return Ok(Ok(None));
                }
            }
        }
    }
    let fleet = daemon.snapshot();
    let dispatches = ids
        .iter()
        .filter_map(|id| fleet.get(id))
        .map(|dispatch| view::status(&fleet, dispatch))
        .collect();
    Ok(Ok(Some(Reply::Waited { dispatches })))
}

async fn events(connection: &mut Connection, from_seq: u64, follow: bool) -> Answer {
    let daemon = connection.daemon.clone();
    let mut changes = daemon.fleet.subscribe();
    let mut reader = match tail::Reader::follow(&daemon.paths.events(), tail::Start::Seq(from_seq))
    {
        Ok(reader) => reader,
        Err(error) => return Ok(Err(internal(&error.to_string()))),
    };
    let mut next_seq = from_seq;
    loop {
        match reader.next_line() {
            Ok(Some(line)) => {
                let seq = line.record.seq;
                next_seq = seq + 1;
                if !connection.send(Item::Event { seq, line: line.raw }).await? {
                    return Ok(Ok(None));
                }
            }
            Ok(None) if !follow => return Ok(Ok(Some(Reply::EndOfEvents { next_seq }))),
            Ok(None) => {
                tokio::select! {
                    changed = changes.changed() => {
                        if changed.is_err() {
                            return Ok(Ok(Some(Reply::EndOfEvents { next_seq })));
                        }
                    }
                    heard = connection.hear() => {
                        if let Heard::Cancelled = heard? {
                            return Ok(Ok(None));
                        }
                    }
                }
            }
            Err(error) => return Ok(Err(internal(&error.to_string()))),
        }
    }
}

async fn stop(daemon: &Arc<Daemon>, agents: &str) -> Result<Reply, WireError> {
    let active: Vec<_> =
        daemon.snapshot().unfinished().map(|dispatch| dispatch.id.clone()).collect();
    let (alive, lease_s) = match agents {
        "keep" => {
            (heartbeat::renew(daemon, LONG_LEASE.as_millis() as u64).await, LONG_LEASE.as_secs())
        }
        "stop" => {
            for run in daemon.runs.all() {
                crate::gate::runs::stop(daemon, &run.run_id).await?;
            }
            for id in &active {
                let input = Input::Kill {
                    reason: "the daemon was stopped with its agents".into(),
                    by: "operator".into(),
                };
                command(daemon, id, input).await?;
            }
            if tokio::time::timeout(KILL_PATIENCE, finished(daemon, &active)).await.is_err() {
                return Err(fault(
                    "E_BUSY",
                    "not every agent has ended in time, so the daemon goes on",
                    "`muleteer status` shows which; try again",
                ));
            }
            (0, 0)
        }
        other => {
            return Err(fault("E_BAD_INPUT", &format!("`{other}` is not `keep` or `stop`"), ""));
        }
    };
    let event = Event::DaemonStopping { agents: agents.into(), alive, lease_s };
    let entry = Entry {
        id: crate::daemon::context::random_key(),
        dispatch_id: None,
        at: None,
        more: false,
        event,
    };
    try_append(daemon, vec![entry]).await.map_err(|error| unappended(&error))?;
    Ok(Reply::Stopping { agents_alive: alive, lease_s })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use crate::ledger::LedgerMsg;
    use futures_util::FutureExt;
    use muleteer_model::config::Pool;

    /// The agents are without a daemon until somebody starts one again, which may take a night.
    #[tokio::test]
    async fn who_stops_a_daemon_and_keeps_its_agents_gives_them_a_long_lease_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let shim = test_daemon::Shim::of(&daemon, &test_daemon::id("abcd2345"));
        let (ledger, mut asked) = test_daemon::stand_in().await;
        daemon.ledger.set(ledger);
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

    /// The files of the dispatch may be about to be removed.
    #[tokio::test]
    async fn who_speaks_to_a_dispatch_waits_for_who_is_at_its_files() {
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
        let refused = send.await.expect_err("the text is empty");
        assert_eq!(refused.code, "E_PROMPT_MISSING");
    }
}
