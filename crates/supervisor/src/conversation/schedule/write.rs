//! Writes the message of a start into its thread.

use crate::conversation::adapter::template;
use crate::conversation::serve::{self, Origin};
use crate::conversation::view;
use crate::daemon::context::Daemon;
use crate::dispatch::error::{fault, internal};
use muleteer_model::conversation::adapter::settings::AdapterSettings;
use muleteer_model::conversation::event::{Author, AuthorKind};
use muleteer_model::conversation::thread::Thread;
use muleteer_model::people::LOCAL;
use muleteer_model::schedule::event::ScheduleDue;
use muleteer_model::schedule::{PREFIX, thread_id};
use muleteer_process::fault::point;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Reply, ThreadNew, ThreadSend, WireError};
use std::sync::Arc;

/// A message that is accepted.
pub(super) struct Written {
    pub thread: String,
    pub message: String,
}

/// Writes the message of a start. Returns once it is durable; a repeated start finds its message.
///
/// # Errors
/// The thread is not there or cannot be opened, or it does not accept the message.
pub(super) async fn write(daemon: &Arc<Daemon>, due: &ScheduleDue) -> Result<Written, WireError> {
    let thread = match due.thread.as_deref() {
        Some(named) => given(daemon, named)?,
        None => own(daemon, due).await?,
    };
    // Another role than the one that answers in the thread is addressed.
    let text = match thread.opened.role == due.role {
        true => due.prompt.clone(),
        false => format!("@{} {}", due.role, due.prompt),
    };
    let name = format!("schedule {}", due.schedule);
    let (id, key) = (thread.id().to_string(), due.key.clone());
    let sent = ThreadSend { thread: id, text, key, name: name.clone(), ..ThreadSend::default() };
    // The operator configured it, so it has the operator's rights in each thread.
    let author = Author { kind: AuthorKind::Operator, id: "operator".into(), name };
    match serve::send_as(daemon, &sent, author).await? {
        Reply::MessageAccepted { thread_id, message_id, .. } => {
            Ok(Written { thread: thread_id, message: message_id })
        }
        _ => Err(internal("the message of a schedule got another reply")),
    }
}

/// Finds the thread that the configuration names: an id, or `ADAPTER:PLACE`.
fn given(daemon: &Daemon, named: &str) -> Result<Arc<Thread>, WireError> {
    let Some((adapter, place)) = named.split_once(':') else { return view::find(daemon, named) };
    let fleet = daemon.snapshot();
    fleet.conversations.by_external(adapter, place).cloned().ok_or_else(|| {
        let message = format!("the adapter `{adapter}` has no thread `{place}`");
        fault(ErrorCode::NotFound, &message, "write to that thread first, or name another one")
    })
}

/// Returns the thread of the schedule's own, which is opened with its first message.
async fn own(daemon: &Arc<Daemon>, due: &ScheduleDue) -> Result<Arc<Thread>, WireError> {
    let by = format!("{PREFIX}{}", due.schedule);
    let project = due.project.as_deref().unwrap_or_default();
    let id = thread_id(&due.schedule, &due.role, project, due.backend.as_deref());
    if let Some(known) = daemon.snapshot().conversations.get(&id) {
        return match known.opened.by == by {
            true => Ok(known.clone()),
            false => {
                let message = format!("another thread {id} already exists");
                Err(fault(ErrorCode::IdTaken, &message, "give the schedule another name"))
            }
        };
    }
    let settings = AdapterSettings {
        role: Some(due.role.clone()),
        project: due.project.clone(),
        backend: due.backend.clone(),
        ..AdapterSettings::default()
    };
    let (dispatch, _) = template(daemon, &due.schedule, &settings, None, "")?;
    let new = ThreadNew {
        id: id.clone(),
        title: Some(due.schedule.clone()),
        dispatch,
        ..ThreadNew::default()
    };
    let origin = Origin { adapter: LOCAL, external: None, bang: None };
    serve::open_from(daemon, &new, origin, &by).await?;
    point("schedule.thread_opened");
    view::find(daemon, &id)
}
