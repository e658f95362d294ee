//! Handles each request. A reply is sent after the effect, never when it is enqueued.

use crate::conversation::adapter::serve as adapters;
use crate::conversation::commands::check_setting;
use crate::conversation::meeting::serve as meetings;
use crate::conversation::rights::own_config;
use crate::conversation::schedule::serve as schedules;
use crate::conversation::serve as threads;
use crate::daemon::clean::clean;
use crate::daemon::clean::prune::prune;
use crate::daemon::context::{Daemon, random_key};
use crate::dispatch::answer;
use crate::dispatch::control::{
    close, create, find, finished_or_idle, interrupt, kill, one_finished, send,
};
use crate::dispatch::error::{chain, fault, internal, unappended};
use crate::dispatch::prompt_files::Further;
use crate::dispatch::request::{Asker, check_faulty};
use crate::dispatch::view;
use crate::gate::connection::{Answer, Connection, Heard};
use crate::gate::listing;
use crate::gate::peer::{Identity, has_ended};
use crate::gate::runs;
use crate::gate::stopping;
use crate::gate::thread_follow;
use crate::gate::tool_calls;
use crate::ledger::{archive, try_append};
use crate::ports::tree::BranchMsg;
use crate::question::serve::{self as questions, Given};
use crate::question::view as question_view;
use crate::task_list::serve as tasklist;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event};
use muleteer_model::people;
use muleteer_model::setting::SettingChanged;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{
    DaemonStatus, DispatchStatus, Item, Reply, Request, Run, StatusReport, WireError,
};
use muleteer_store::StoreError;
use muleteer_store::events::tail;
use ractor::rpc::CallResult;
use std::sync::Arc;
use std::time::Duration;

const TREE_DEADLINE: Duration = Duration::from_secs(5);

pub async fn handle(connection: &mut Connection, body: Request, trace: Option<String>) -> Answer {
    if let Err(error) = permitted(&connection.daemon, &connection.identity, &body) {
        return Ok(Err(error));
    }
    let daemon = connection.daemon.clone();
    match body {
        Request::Ping => Ok(Ok(Some(Reply::Pong))),
        Request::Status { id, archived } => report(connection, id, archived).await,
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
        Request::Answer { id, request, answer: said, arguments, key } => {
            let (request, asker) = (request.as_deref(), asker(&connection.identity));
            let by = &asker.name();
            let given = Given {
                id: &id,
                request,
                said: &said,
                arguments: &arguments,
                key: &key,
                asker: &asker,
                by,
            };
            Ok(questions::answer(&daemon, given).await.map(Some))
        }
        Request::SetModel { id, key, model } => {
            let by = asker(&connection.identity).name();
            Ok(answer::set_model(&daemon, &id, &key, &model, by).await.map(Some))
        }
        Request::Kill { id, reason } => {
            Ok(kill(&daemon, &id, reason, connection.identity.as_str()).await.map(Some))
        }
        Request::Close { id } => {
            Ok(close(&daemon, &id, connection.identity.as_str()).await.map(Some))
        }
        Request::Prune { older_than_s, dry_run, from_seq } => {
            let by = connection.identity.as_str();
            Ok(prune(&daemon, older_than_s, dry_run, from_seq, by).await.map(Some))
        }
        Request::Clean(asked) => {
            Ok(clean(&daemon, asked, connection.identity.as_str()).await.map(Some))
        }
        Request::Wait { ids } => wait(connection, &ids, Until::All).await,
        Request::WaitAny { ids } => wait(connection, &ids, Until::Any).await,
        Request::Events { from_seq, follow } => events(connection, from_seq, follow).await,
        Request::TasksRun(run) => {
            renew_configuration(&daemon, &connection.identity).await;
            Ok(tasklist::run(&daemon, &run, connection.identity.as_str(), trace).await.map(Some))
        }
        Request::TasksWait { id } => tasks_wait(connection, &id).await,
        Request::TasksStop { id, now } => {
            Ok(tasklist::stop(&daemon, &id, now, connection.identity.as_str()).await.map(Some))
        }
        Request::ThreadNew(new) => {
            Ok(threads::open(&daemon, &new, connection.identity.as_str()).await.map(Some))
        }
        Request::ThreadSend(sent) => {
            Ok(threads::send(&daemon, &sent, connection.identity.as_str()).await.map(Some))
        }
        Request::ThreadWait { thread, message } => {
            thread_follow::wait(connection, &thread, &message).await
        }
        Request::ThreadArchive { thread } => {
            Ok(threads::archive(&daemon, &thread, connection.identity.as_str()).await.map(Some))
        }
        Request::ConfigSet { key, value } => Ok(set_config(&daemon, key, value).await.map(Some)),
        Request::Threads => Ok(Ok(Some(threads::list(&daemon)))),
        Request::ThreadShow { thread } => thread_follow::show(connection, &thread).await,
        Request::ThreadFollow(asked) => thread_follow::follow(connection, *asked).await,
        Request::Tools { read_only } => Ok(Ok(Some(tool_calls::list(connection, read_only)))),
        Request::Tool(call) => tool_calls::call(connection, *call, trace).await,
        Request::ToolTaken(taken) => Ok(tool_calls::taken(connection, &taken).await.map(Some)),
        Request::Adapters => Ok(Ok(Some(adapters::list(&daemon)))),
        Request::Adapter { name, act } => {
            Ok(adapters::act(&daemon, &name, &act, connection.identity.as_str()).await.map(Some))
        }
        Request::Schedules => Ok(schedules::list(&daemon).map(Some)),
        Request::ScheduleRun { name, key } => {
            let by = connection.identity.as_str();
            Ok(schedules::run(&daemon, &name, &key, by).await.map(Some))
        }
        Request::Meetings { meeting } => Ok(meetings::list(&daemon, meeting.as_deref()).map(Some)),
        Request::MeetingStart(asked) => {
            Ok(meetings::start(&daemon, &asked, connection.identity.as_str()).await.map(Some))
        }
        Request::MeetingEnd { meeting } => {
            Ok(meetings::end(&daemon, &meeting, connection.identity.as_str()).await.map(Some))
        }
        Request::MeetingWait { meeting } => {
            thread_follow::answered(connection, meetings::wait(&daemon, &meeting)).await
        }
        Request::Questions { all } => {
            let questions = question_view::questions(&daemon.snapshot(), all);
            Ok(Ok(Some(Reply::Questions { questions })))
        }
        Request::Stop { agents } => Ok(stopping::stop(&daemon, &agents).await.map(Some)),
        Request::Bead { key, op } => Ok(runs::bead(connection, &key, &op).await.map(Some)),
        Request::Run(run) => {
            renew_configuration(&daemon, &connection.identity).await;
            Ok(runs::begin(&daemon, &run, false, trace).await.map(Some))
        }
        Request::RunAmend(run) => {
            let run = Run { resume: true, ..*run };
            Ok(runs::begin(&daemon, &run, true, trace).await.map(Some))
        }
        Request::RunEvents { run_id, from_seq, follow } => {
            runs::events(connection, &run_id, from_seq, follow).await
        }
        Request::RunStop { run_id } => Ok(runs::stop(&daemon, &run_id).await.map(Some)),
        Request::Unknown => Ok(Err(fault(
            ErrorCode::UnknownVerb,
            "the daemon does not support this request",
            "restart the daemon: it may be older than the client",
        ))),
    }
}

/// Answers `status`, with the archived dispatches as items before the reply.
async fn report(connection: &mut Connection, id: Option<String>, archived: bool) -> Answer {
    let fleet = connection.daemon.snapshot();
    match status(&connection.daemon, &fleet, id.as_deref(), &connection.identity) {
        Ok(report) if archived && report.archived > 0 => {
            listing::send(connection, fleet, report).await
        }
        Ok(report) => Ok(Ok(Some(Reply::Status(report)))),
        Err(error) => Ok(Err(error)),
    }
}

/// Makes git obey the configuration that the person has when they begin work. Changes that
/// an agent makes there during its work have no effect on that work.
async fn renew_configuration(daemon: &Arc<Daemon>, identity: &Identity) {
    if matches!(identity, Identity::Agent(_)) {
        return;
    }
    let folder = daemon.paths.git();
    let renew = move || muleteer_vcs::command::renew_configuration(&folder);
    if let Ok(Err(error)) = tokio::task::spawn_blocking(renew).await {
        let message = format!("git obeys an earlier copy of the person's configuration: {error}");
        daemon.note(Event::Fault { what: "git configuration".into(), message });
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
    // Each tool has rules of its own, and refuses by a result that the agent can read.
    if matches!(body, Request::Tools { .. } | Request::Tool(_) | Request::ToolTaken(_)) {
        return Ok(());
    }
    if let Identity::Agent(id) = identity
        && in_a_run(daemon, id)
    {
        let allowed = match body {
            Request::Ping | Request::Tree | Request::Bead { .. } | Request::Unknown => true,
            // The list leaves other dispatches out.
            Request::Status { id: asked, .. } => {
                asked.as_ref().is_none_or(|asked| asked == id.as_str())
            }
            _ => false,
        };
        return allowed.then_some(()).ok_or_else(|| {
            fault(
                ErrorCode::Forbidden,
                &format!("agent {id} is part of a run, and may not do this"),
                "work on your own bead; report other work with `muleteer bead create --label \
                 observation`",
            )
        });
    }
    if let (Identity::Agent(id), Request::Spawn(_)) = (identity, body)
        && daemon.snapshot().get(id).is_some_and(|dispatch| dispatch.created.confined)
    {
        return Err(fault(
            ErrorCode::Forbidden,
            &format!("agent {id} works in a sandbox, and its child would not: it may not dispatch"),
            "do the task without another dispatch",
        ));
    }
    let reads = matches!(
        body,
        Request::Ping
            | Request::Status { .. }
            | Request::Tree
            | Request::Wait { .. }
            | Request::WaitAny { .. }
            | Request::TasksWait { .. }
            | Request::ThreadWait { .. }
            | Request::Threads
            | Request::ThreadShow { .. }
            | Request::Adapters
            | Request::Schedules
            | Request::Meetings { .. }
            | Request::MeetingWait { .. }
            | Request::Questions { .. }
            | Request::Events { .. }
            | Request::RunEvents { .. }
            | Request::Unknown
    );
    let own_question = |agent: &DispatchId, id: &str| {
        let fleet = daemon.snapshot();
        let question = fleet.questions.find(id).ok().cloned();
        let of = question.and_then(|question| question.dispatch.clone());
        let of = of.and_then(|of| fleet.get(&of).cloned());
        of.is_some_and(|of| of.created.parent.as_ref() == Some(agent))
    };
    let own = |agent: &DispatchId, id: &str| {
        find(daemon, id).is_ok_and(|dispatch| dispatch.created.parent.as_ref() == Some(agent))
    };
    let allowed = match (identity, body) {
        (Identity::Operator, _) => true,
        _ if reads => true,
        // Processes that an ended agent left may continue, but act for nobody.
        (Identity::Agent(agent), _) if has_ended(daemon, agent) => false,
        (Identity::Agent(_), Request::Spawn(_) | Request::Bead { .. }) => true,
        (Identity::Agent(agent), Request::Answer { id, .. }) => {
            own(agent, id) || own_question(agent, id)
        }
        (
            Identity::Agent(agent),
            Request::Send { id, .. }
            | Request::SetModel { id, .. }
            | Request::Interrupt { id }
            | Request::Close { id }
            | Request::Kill { id, .. },
        ) => own(agent, id),
        _ => false,
    };
    if allowed {
        return Ok(());
    }
    Err(match identity {
        Identity::Agent(id) if has_ended(daemon, id) => fault(
            ErrorCode::Forbidden,
            &format!("dispatch {id} has ended: its remaining processes may only read"),
            "run it in a terminal of the daemon's user",
        ),
        Identity::Agent(id) => fault(
            ErrorCode::Forbidden,
            &format!("agent {id} may not do this"),
            "agents may only read, dispatch other agents, and act on their own children",
        ),
        _ => fault(
            ErrorCode::Forbidden,
            "this process is neither an agent of this daemon nor known to belong to its user: it \
             may only read",
            "run it in a terminal of the daemon's user, without MULETEER_NONCE in its environment, \
             or let the client read operator.key in the state directory",
        ),
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

/// Whether a peer may read the prompt of a dispatch. The prompt of a judge has criteria that other
/// agents must not know.
fn may_read_task(asker: &Identity, dispatch: &Dispatch) -> bool {
    match asker {
        Identity::Operator => true,
        Identity::Agent(id) => dispatch.id == *id || dispatch.created.parent.as_ref() == Some(id),
        Identity::Unknown => false,
    }
}

fn status(
    daemon: &Daemon,
    fleet: &Fleet,
    id: Option<&str>,
    asker: &Identity,
) -> Result<StatusReport, WireError> {
    let only = match asker {
        Identity::Agent(agent) if in_a_run(daemon, agent) => Some(agent.as_str()),
        _ => id,
    };
    let mut dispatches = match only {
        Some(id) => {
            let dispatch = find(daemon, id)?;
            let mut status = view::in_full(fleet, &dispatch);
            if may_read_task(asker, &dispatch) {
                status.task = view::task(&dispatch, &daemon.paths);
            }
            vec![status]
        }
        None => view::statuses(fleet),
    };
    let heard = daemon.agents.heard();
    for dispatch in &mut dispatches {
        if let Some(at) = heard.get(&dispatch.id) {
            view::heard(dispatch, *at);
        }
    }
    let archived = if only.is_some() { 0 } else { fleet.archived() };
    // They read the files again; their faults are in the report.
    let _ = own_config(daemon);
    check_faulty(daemon);
    let config_faults = daemon.caches.last_valid.faults();
    let role_faults = daemon.caches.last_valid_roles.faults();
    let daemon = DaemonStatus {
        config_faults,
        role_faults,
        running: true,
        pid: Some(std::process::id()),
        version: Some(env!("CARGO_PKG_VERSION").into()),
        socket: Some(daemon.paths.socket.display().to_string()),
    };
    let run_questions = only.map_or_else(|| question_view::of_runs(fleet), |_| vec![]);
    Ok(StatusReport { daemon, dispatches, archived, run_questions })
}

/// Changes a setting at run time for the local operator. Returns once it is durable.
async fn set_config(
    daemon: &Arc<Daemon>,
    key: String,
    value: Option<String>,
) -> Result<Reply, WireError> {
    let (by, adapter) = (Identity::Operator.as_str().into(), people::LOCAL.into());
    let changed = SettingChanged { key, value, by, adapter };
    let note = check_setting(daemon, &changed)?;
    let event = Event::SettingChanged(Box::new(changed));
    let entry = Entry { id: random_key(), dispatch_id: None, at: None, more: false, event };
    try_append(daemon, vec![entry]).await.map_err(|error| unappended(&error))?;
    Ok(Reply::ConfigSet { note })
}

async fn tree(daemon: &Daemon) -> Result<Reply, WireError> {
    let root = daemon.ports.root.get().ok_or_else(|| internal("the root supervisor is missing"))?;
    match root.call(BranchMsg::Describe, Some(TREE_DEADLINE)).await {
        Ok(CallResult::Success(node)) => Ok(Reply::Tree(node)),
        _ => {
            Err(fault(ErrorCode::Busy, "the supervision tree did not answer in time", "try again"))
        }
    }
}

/// The condition that ends a `wait`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    All,
    Any,
}

async fn wait(connection: &mut Connection, ids: &[String], until: Until) -> Answer {
    let daemon = connection.daemon.clone();
    let found: Result<Vec<_>, _> =
        ids.iter().map(|id| find(&daemon, id).map(|dispatch| dispatch.id.clone())).collect();
    let ids = match found {
        Ok(ids) => ids,
        Err(error) => return Ok(Err(error)),
    };
    let ended = async {
        match until {
            Until::All => finished_or_idle(&daemon, &ids).await,
            Until::Any => one_finished(&daemon, &ids).await,
        }
    };
    tokio::pin!(ended);
    loop {
        tokio::select! {
            () = &mut ended => break,
            heard = connection.hear() => {
                if let Heard::Cancelled = heard? {
                    return Ok(Ok(None));
                }
            }
        }
    }
    Ok(waited(&daemon, &ids, until).map(|dispatches| Some(Reply::Waited { dispatches })))
}

/// Returns the dispatches that a `wait` reports.
///
/// # Errors
/// The archive cannot be read: a dispatch that is left out would count as unknown.
fn waited(
    daemon: &Daemon,
    ids: &[DispatchId],
    until: Until,
) -> Result<Vec<DispatchStatus>, WireError> {
    let fleet = daemon.snapshot();
    let mut dispatches = vec![];
    for id in ids {
        let known = archive::known(daemon, id)?;
        let shown = known.filter(|dispatch| until == Until::All || dispatch.is_finished_or_idle());
        dispatches.extend(shown.map(|dispatch| view::status(&fleet, &dispatch)));
    }
    Ok(dispatches)
}

async fn tasks_wait(connection: &mut Connection, id: &str) -> Answer {
    let daemon = connection.daemon.clone();
    loop {
        tokio::select! {
            answer = tasklist::wait(&daemon, id) => return Ok(answer.map(Some)),
            heard = connection.hear() => {
                if let Heard::Cancelled = heard? {
                    return Ok(Ok(None));
                }
            }
        }
    }
}

async fn events(connection: &mut Connection, from_seq: u64, follow: bool) -> Answer {
    let daemon = connection.daemon.clone();
    let mut changes = daemon.fleet.subscribe();
    let mut reader = match tail::Reader::follow(&daemon.paths.events(), tail::Start::Seq(from_seq))
    {
        Ok(reader) => reader,
        Err(error) => return Ok(Err(unread(&error))),
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
            Err(error) => return Ok(Err(unread(&error))),
        }
    }
}

fn unread(error: &StoreError) -> WireError {
    fault(error.code(), &chain(error), &error.hint())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use muleteer_model::config::Pool;

    #[tokio::test]
    async fn wait_is_refused_while_the_archive_cannot_be_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let id = test_daemon::id("abcd2345");
        test_daemon::archived(&daemon, &id);
        let refused = waited(&daemon, &[id], Until::All).expect_err("there is no database");
        assert_eq!(refused.code, "E_BUSY");
    }
}
