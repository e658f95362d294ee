//! Removes the files that people attached to the messages of archived threads.
//!
//! A message opens an archived thread again. So its request stays, which is the template of its
//! dispatches. Its files go once no dispatch of the thread can continue: only the sessions of those
//! know their paths, and the context of a new session does not name them. The thread still shows
//! the names, lengths and hashes. An open message keeps them too.
//!
//! A removal that was cut off is finished by the next one.

use crate::conversation::ATTACHED;
use crate::daemon::clean::output::{Due, with_files};
use crate::daemon::clean::prune::is_due;
use crate::daemon::context::Daemon;
use crate::dispatch::error::{chain, internal};
use crate::ledger::archive;
use muleteer_model::conversation::thread::Thread;
use muleteer_model::event::id::DispatchId;
use muleteer_process::fault;
use muleteer_protocol::v1::WireError;
use muleteer_store::removal;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The timeout for measuring the files of one thread.
const SIZE_PATIENCE: Duration = Duration::from_secs(10);

/// The threads whose files were removed, or would be.
#[derive(Debug, Default)]
pub(super) struct Pruned {
    pub threads: u64,
    pub bytes: u64,
    /// The removals that failed, for people.
    pub faults: Vec<String>,
}

/// Removes the attached files of threads that were archived long enough ago.
///
/// # Errors
/// The archive cannot be read.
pub(super) async fn prune(
    daemon: &Arc<Daemon>,
    due: Due,
    dry_run: bool,
) -> Result<Pruned, WireError> {
    let (of, fleet) = (daemon.clone(), daemon.snapshot());
    let found = tokio::task::spawn_blocking(move || {
        let threads = fleet.conversations.iter().filter(|thread| may_go(thread, due));
        let ids = threads.map(|thread| thread.id().to_string());
        let ids: Vec<_> = ids.filter(|id| of.paths.thread(id).join(ATTACHED).is_dir()).collect();
        match ids.is_empty() {
            true => Ok((ids, BTreeSet::new())),
            false => sessions(&of, dry_run.then_some(due)).map(|sessions| (ids, sessions)),
        }
    });
    let (ids, sessions) = found.await.map_err(|error| internal(&error.to_string()))??;
    let mut pruned = Pruned::default();
    for id in ids.into_iter().filter(|id| !sessions.contains(id)) {
        // A message to this thread waits here. It opens the thread, or opened it just now.
        let _alone = daemon.creating(&format!("thread {id}")).await;
        if !daemon.snapshot().conversations.get(&id).is_some_and(|thread| may_go(thread, due)) {
            continue;
        }
        let folder = daemon.paths.thread(&id).join(ATTACHED);
        let removed = tokio::task::spawn_blocking(move || {
            let bytes = removal::tree_size(&folder, SIZE_PATIENCE)?;
            if !dry_run {
                fault::point("prune.thread_chosen");
                removal::remove_tree(&folder, removal::PATIENCE)?;
                fault::point("prune.thread_removed");
            }
            Ok::<_, std::io::Error>(bytes)
        });
        match removed.await.map_err(|error| internal(&error.to_string()))? {
            Ok(bytes) => {
                pruned.threads += 1;
                pruned.bytes += bytes;
            }
            Err(error) => pruned.faults.push(format!("thread {id}: {}", chain(&error))),
        }
    }
    Ok(pruned)
}

/// Whether a thread was archived long enough ago. The agent of an open message has yet to read its
/// files. Minutes that could not be written into the project exist nowhere else.
fn may_go(thread: &Thread, due: Due) -> bool {
    let old = thread.archived && due.now.duration_since(thread.last_activity) >= due.age;
    let has_minutes = thread.meetings.iter().any(|meeting| meeting.has_only_copy());
    old && thread.open_count() == 0 && !has_minutes
}

/// Returns the threads with a dispatch that has files, so that its session can continue, or that
/// has not ended. Dispatches of its dispatches count: they may know the path of a file.
///
/// Dispatches whose files could go by `without` do not count: a dry run removed none. Blocks.
fn sessions(daemon: &Daemon, without: Option<Due>) -> Result<BTreeSet<String>, WireError> {
    let mut ids = with_files(daemon);
    ids.extend(daemon.snapshot().unfinished().map(|dispatch| dispatch.id.clone()));
    let mut threads = BTreeSet::new();
    for id in ids {
        let mut next = archive::known(daemon, &id)?;
        next.take_if(|dispatch| without.is_some_and(|due| is_due(daemon, dispatch, due)));
        while let Some(dispatch) = next {
            let created = &dispatch.created;
            threads.extend(created.thread().map(String::from));
            let above = created.by.strip_prefix("agent/").map(String::from);
            let above = above.and_then(|id| DispatchId::try_from(id).ok());
            next = above.map(|id| archive::known(daemon, &id)).transpose()?.flatten();
        }
    }
    Ok(threads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use jiff::{SignedDuration, Timestamp};
    use muleteer_model::config::Pool;
    use muleteer_model::conversation::event::{
        Author, AuthorKind, MessageAccepted, State, ThreadOpened,
    };
    use muleteer_model::event::{Event, FinalState};

    const THREAD: &str = "thrd2345";

    fn make(daemon: &Daemon, id: &str, by: &str, has_ended: bool) {
        let id = test_daemon::id(id);
        let Event::DispatchCreated(mut created) = test_daemon::sample("dispatch_created") else {
            unreachable!()
        };
        created.by = by.into();
        daemon.fold(&id, Event::DispatchCreated(created));
        let (state, reason) = (FinalState::Success, String::new());
        if has_ended {
            daemon.fold(&id, Event::DispatchFinished { state, reason, result: None });
        }
    }

    #[test]
    fn files_stay_while_a_message_is_open() {
        let dir = tempfile::tempdir().expect("a directory");
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        daemon.fold_plain(Event::ThreadOpened(Box::new(ThreadOpened {
            thread: THREAD.into(),
            role: "product-analyst".into(),
            project: "/p".into(),
            title: None,
            adapter: "local".into(),
            external: None,
            by: "operator".into(),
            bang: None,
        })));
        daemon.fold_plain(Event::MessageAccepted(Box::new(MessageAccepted {
            thread: THREAD.into(),
            message: "msga2345".into(),
            author: Author { kind: AuthorKind::Person, id: "ben".into(), name: "ben".into() },
            text: "look".into(),
            key: "k".into(),
            files: vec![],
            shown: false,
            command: None,
        })));
        let may_go_now = || {
            let fleet = daemon.snapshot();
            let mut thread = Thread::clone(fleet.conversations.get(THREAD).expect("a thread"));
            thread.archived = true;
            let due = Due { now: thread.last_activity, age: SignedDuration::ZERO };
            may_go(&thread, due)
        };
        assert!(!may_go_now());
        daemon.fold_plain(Event::MessageState {
            thread: THREAD.into(),
            message: "msga2345".into(),
            state: State::Refused,
            reason: String::new(),
            dispatch: None,
        });
        assert!(may_go_now());
    }

    #[test]
    fn dispatches_below_the_agent_of_a_thread_keep_its_files() {
        for (has_ended, has_files, keeps) in
            [(true, true, true), (true, false, false), (false, false, true)]
        {
            let dir = tempfile::tempdir().expect("a directory");
            let daemon = test_daemon::daemon(dir.path(), Pool::default());
            make(&daemon, "abcd2345", &format!("thread/{THREAD}"), true);
            make(&daemon, "bcde2345", "agent/abcd2345", true);
            make(&daemon, "cdef2345", "agent/bcde2345", has_ended);
            if has_files {
                std::fs::create_dir_all(daemon.paths.agent("cdef2345")).expect("a directory");
            }
            let known = sessions(&daemon, None).expect("they can be read");
            assert_eq!(known.contains(THREAD), keeps, "{has_ended} {has_files}");
            // A dry run counts what the removal of the dispatches' files would leave.
            let due = Due { now: Timestamp::now(), age: SignedDuration::ZERO };
            let left = sessions(&daemon, Some(due)).expect("they can be read");
            assert_eq!(left.contains(THREAD), !has_ended, "{has_ended} {has_files}");
        }
    }
}
