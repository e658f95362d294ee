//! Handles the gate's requests about threads.

use crate::conversation::deliver::{entries, new_id};
use crate::conversation::files::Withheld;
use crate::conversation::view::{self, find};
use crate::conversation::{files, older};
use crate::daemon::context::Daemon;
use crate::dispatch::error::{fault, internal, unappended};
use crate::dispatch::request;
use crate::ledger::try_append;
use crate::ports::conversation::ConversationsMsg;
use muleteer_model::conversation::event::{
    Author, AuthorKind, MessageAccepted, MessageRecorded, ThreadOpened,
};
use muleteer_model::conversation::thread::{Message, Thread};
use muleteer_model::conversation::{KEY_LIMIT, MOST_OPEN, TEXT_LIMIT, limits, step};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event};
use muleteer_model::people::LOCAL;
use muleteer_model::schedule;
use muleteer_process::fault::point;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Reply, ThreadInFull, ThreadNew, ThreadSend, WireError};
use std::path::Path;
use std::sync::Arc;

/// The place where a thread is opened.
#[derive(Debug, Clone, Copy)]
pub(in crate::conversation) struct Origin<'a> {
    pub adapter: &'a str,
    /// The adapter's own id of the thread.
    pub external: Option<&'a str>,
    /// Whether `!` begins a command in it; `None` means the adapter's usual way.
    pub bang: Option<bool>,
}

/// Opens a thread. Returns once it is durable; a repeated request is answered, and opens no second
/// one.
///
/// # Errors
/// Its role, project or backend cannot be used.
pub async fn open(daemon: &Arc<Daemon>, new: &ThreadNew, by: &str) -> Result<Reply, WireError> {
    open_from(daemon, new, Origin { adapter: LOCAL, external: None, bang: None }, by).await
}

/// Does the same for a thread of an adapter.
///
/// # Errors
/// Those of [`open`].
pub(in crate::conversation) async fn open_from(
    daemon: &Arc<Daemon>,
    new: &ThreadNew,
    origin: Origin<'_>,
    by: &str,
) -> Result<Reply, WireError> {
    let _alone = daemon.creating(&new.id).await;
    let opened = Reply::ThreadOpened { thread_id: new.id.clone() };
    if let Some(known) = daemon.snapshot().conversations.get(&new.id) {
        let of = &known.opened;
        return match of.role == new.dispatch.role && of.project == new.dispatch.project {
            true => {
                // An earlier daemon may have opened it, and lost its variables.
                remember_push(daemon, new);
                Ok(opened)
            }
            false => Err(fault(
                ErrorCode::IdTaken,
                &format!("another thread {} already exists", new.id),
                "choose another id",
            )),
        };
    }
    DispatchId::try_from(new.id.clone())
        .map_err(|error| fault(ErrorCode::BadInput, &error.to_string(), ""))?;
    let project = Path::new(&new.dispatch.project);
    if !project.is_absolute() || !project.is_dir() {
        let message = format!("the project {} is not a directory", project.display());
        let hint = "name an existing directory, or a configured project";
        return Err(fault(ErrorCode::ProjectNotFound, &message, hint));
    }
    if new.dispatch.sandbox {
        request::sandbox::possible(daemon).await?;
    }
    // The template of a thread of an adapter, a schedule or a run has no environment, and was
    // checked with the daemon's.
    if origin.external.is_none() && !schedule::is_opener(by) && by != limits::OURSELVES {
        request::check(daemon, &new.dispatch)?;
    }
    let push = new.push_env.iter().map(|(name, _)| name.clone()).collect();
    let withheld = Withheld { push, removed: vec![] };
    files::write_template(daemon, &new.id, &new.dispatch, &withheld)?;
    remember_push(daemon, new);
    let event = Event::ThreadOpened(Box::new(ThreadOpened {
        thread: new.id.clone(),
        role: new.dispatch.role.clone(),
        project: new.dispatch.project.clone(),
        title: new.title.as_deref().and_then(|title| muleteer_model::event::title(Some(title), "")),
        adapter: origin.adapter.into(),
        external: origin.external.map(String::from),
        by: by.into(),
        bang: origin.bang,
    }));
    let id = format!("thread/{}", new.id);
    let entry = Entry { id, dispatch_id: None, at: None, more: false, event };
    try_append(daemon, vec![entry]).await.map_err(|error| unappended(&error))?;
    Ok(opened)
}

/// Keeps the variables for the push in memory.
fn remember_push(daemon: &Daemon, new: &ThreadNew) {
    if let (Ok(id), false) = (DispatchId::try_from(new.id.clone()), new.push_env.is_empty()) {
        daemon.caches.push_of_threads.remember(&id, new.push_env.clone());
    }
}

/// Accepts a message of the local operator. Returns once it is durable. A message with a known key
/// is the same message.
///
/// # Errors
/// The message is empty or too long, or the thread has too many unanswered ones.
pub async fn send(daemon: &Arc<Daemon>, sent: &ThreadSend, by: &str) -> Result<Reply, WireError> {
    let name = if sent.name.trim().is_empty() { by } else { sent.name.trim() };
    let kind = match find(daemon, &sent.thread)?.has_adapter() {
        // Not a user of that adapter, who might have the same id.
        true => AuthorKind::Operator,
        false => AuthorKind::Person,
    };
    send_as(daemon, sent, Author { kind, id: by.into(), name: name.into() }).await
}

/// Accepts a message of any author. A `Person` has the rights that `people` gives to the user of
/// the thread's adapter with the author's id.
///
/// # Errors
/// Those of [`send`].
pub(crate) async fn send_as(
    daemon: &Arc<Daemon>,
    sent: &ThreadSend,
    author: Author,
) -> Result<Reply, WireError> {
    let id = find(daemon, &sent.thread)?.id().to_string();
    // One message at a time for each thread, because two would each find no message with the key.
    let _alone = daemon.creating(&format!("thread {id}")).await;
    let thread = find(daemon, &id)?;
    if let Some(known) = older::by_key(daemon, &thread, &sent.key).await? {
        return Ok(Reply::MessageAccepted {
            thread_id: id,
            message_id: known.id.clone(),
            state: known.state.as_str().into(),
        });
    }
    check(sent, &thread)?;
    let message = loop {
        let id = new_id().to_string();
        if thread.message(&id).is_none() {
            break id;
        }
    };
    let files = files::attach(&daemon.paths, &id, sent.files.clone()).await?;
    // The people of the adapter see what the operator writes elsewhere.
    let shown = author.kind == AuthorKind::Operator && thread.has_adapter();
    let event = Event::MessageAccepted(Box::new(MessageAccepted {
        thread: id.clone(),
        message: message.clone(),
        author,
        text: sent.text.clone(),
        key: sent.key.clone(),
        files,
        shown,
        command: None,
    }));
    let entry = Entry {
        id: format!("thread/{id}/key/{}", sent.key),
        dispatch_id: None,
        at: None,
        more: false,
        event,
    };
    try_append(daemon, vec![entry]).await.map_err(|error| unappended(&error))?;
    point("thread.accepted");
    daemon.ports.conversations.cast(ConversationsMsg::Look);
    Ok(Reply::MessageAccepted { thread_id: id, message_id: message, state: "accepted".into() })
}

fn check(sent: &ThreadSend, thread: &Thread) -> Result<(), WireError> {
    check_content(sent)?;
    if thread.open_count() >= MOST_OPEN {
        let message = format!("{MOST_OPEN} messages of thread {} are unanswered", thread.id());
        return Err(fault(
            ErrorCode::Busy,
            &message,
            "wait 10 s, then try again: a message is accepted as soon as another one is answered",
        ));
    }
    Ok(())
}

/// Checks what follows from the message alone.
///
/// # Errors
/// The message is empty or too long, or its files are too many or too large.
pub(super) fn check_content(sent: &ThreadSend) -> Result<(), WireError> {
    if sent.text.trim().is_empty() && sent.files.is_empty() {
        return Err(fault(ErrorCode::PromptMissing, "the message is empty", ""));
    }
    if sent.text.len() > TEXT_LIMIT {
        let message = format!("the message is longer than {} KiB", TEXT_LIMIT >> 10);
        let hint = "put the text in a file, and attach it with --file";
        return Err(fault(ErrorCode::PromptTooLong, &message, hint));
    }
    if sent.key.is_empty() || sent.key.len() > KEY_LIMIT {
        let message = format!("a key has 1 to {KEY_LIMIT} bytes");
        return Err(fault(ErrorCode::BadInput, &message, ""));
    }
    files::check(&sent.files)
}

/// Writes a message of Muleteer with this id into a thread, unless the thread has it.
///
/// # Errors
/// `E_NOT_FOUND`; those that may pass.
pub(in crate::conversation) async fn tell_once(
    daemon: &Arc<Daemon>,
    thread: &str,
    message: &str,
    text: String,
) -> Result<(), WireError> {
    let _alone = daemon.creating(&format!("thread {thread}")).await;
    let thread = find(daemon, thread)?;
    if older::message(daemon, &thread, message).await?.is_some() {
        return Ok(());
    }
    let event = Event::MessageRecorded(Box::new(MessageRecorded {
        thread: thread.id().into(),
        message: message.into(),
        author: Author::muleteer(),
        text,
        answers: vec![],
        dispatch: None,
        turn: None,
        files: vec![],
        reports_through: None,
    }));
    let recorded = try_append(daemon, entries(vec![event])).await;
    recorded.map(drop).map_err(|error| unappended(&error))
}

/// Waits until the state of a message changes no more. Cancel-safe.
///
/// # Errors
/// `E_NOT_FOUND`.
pub async fn wait(daemon: &Arc<Daemon>, thread: &str, message: &str) -> Result<Reply, WireError> {
    let id = find(daemon, thread)?.id().to_string();
    let mut changes = daemon.fleet.subscribe();
    loop {
        let fleet = changes.borrow_and_update().clone();
        let unknown = || {
            let message = format!("thread {id} has no message `{message}`");
            fault(ErrorCode::NotFound, &message, "")
        };
        let thread = fleet.conversations.get(&id).ok_or_else(unknown)?;
        let found = older::message(daemon, thread, message).await?.ok_or_else(unknown)?;
        if found.state.is_final() {
            let document = |message: &Message| Box::new(view::message(thread, message, &fleet));
            let answer = older::answer_to(daemon, thread, &found.id).await?;
            let answer = answer.map(|answer| document(&answer));
            return Ok(Reply::Message { thread_id: id, message: document(&found), answer });
        }
        if changes.changed().await.is_err() {
            return Err(unappended(&crate::ports::ledger::LedgerError::Ending));
        }
    }
}

/// Archives a thread. Returns once that is durable and its template has no keys any more. A client
/// that repeats the request after a crash in between gets the same.
///
/// # Errors
/// `E_NOT_FOUND`, `E_AMBIGUOUS`.
pub async fn archive(daemon: &Arc<Daemon>, thread: &str, by: &str) -> Result<Reply, WireError> {
    let id = find(daemon, thread)?.id().to_string();
    let _alone = daemon.creating(&format!("thread {id}")).await;
    let thread = find(daemon, &id)?;
    if !thread.archived {
        let events = entries(step::archived(&thread, by));
        try_append(daemon, events).await.map_err(|error| unappended(&error))?;
    }
    point("thread.archived");
    if let Ok(id) = DispatchId::try_from(id.clone()) {
        daemon.caches.push_of_threads.forget(&id);
    }
    put_away_secrets(daemon, &id).await?;
    Ok(Reply::ThreadArchived { thread_id: id })
}

async fn put_away_secrets(daemon: &Arc<Daemon>, thread: &str) -> Result<(), WireError> {
    let (files_of, at) = (daemon.clone(), thread.to_string());
    let put_away = move || files::put_away_secrets(&files_of, &at);
    let done = tokio::task::spawn_blocking(put_away).await;
    done.map_err(|error| internal(&error.to_string()))?
}

/// Removes the keys of the threads that an earlier daemon had archived when it was killed.
pub(super) async fn put_away_left_secrets(daemon: Arc<Daemon>) {
    let fleet = daemon.snapshot();
    let archived = fleet.conversations.iter().filter(|thread| thread.archived);
    let ids: Vec<String> = archived.map(|thread| thread.id().to_string()).collect();
    drop(fleet);
    for id in ids {
        let _alone = daemon.creating(&format!("thread {id}")).await;
        // A message may have opened it again.
        if !find(&daemon, &id).is_ok_and(|thread| thread.archived) {
            continue;
        }
        if let Err(error) = put_away_secrets(&daemon, &id).await {
            let message = format!("failed to remove its keys: {}", error.message);
            daemon.note(Event::Fault { what: format!("thread {id}"), message });
        }
    }
}

pub fn list(daemon: &Daemon) -> Reply {
    Reply::Threads { threads: view::threads(&daemon.snapshot()) }
}

/// Returns a thread without its messages, and these page by page.
///
/// # Errors
/// `E_NOT_FOUND`, `E_AMBIGUOUS`.
pub fn show(daemon: &Daemon, thread: &str) -> Result<(ThreadInFull, older::Pages), WireError> {
    let thread = find(daemon, thread)?;
    Ok((view::without_messages(&thread, &daemon.snapshot()), older::Pages::of(thread)))
}
