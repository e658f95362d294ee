//! The tasks that `/spawn` and a coordinator's `spawn` open in a thread.
//!
//! The task and its dispatch have the id of the command's message. Both are durable before the
//! dispatch is created, so a daemon that is killed in between creates it for the same task, once.

use super::{Done, Given};
use crate::conversation::deliver::{entries, template};
use crate::conversation::rights::project;
use crate::dispatch::control::create;
use crate::dispatch::error::{fault, is_passing, unappended};
use crate::dispatch::request::Asker;
use crate::ledger::{archive, try_append};
use muleteer_model::conversation::{command, directed};
use muleteer_model::event;
use muleteer_model::event::Event;
use muleteer_model::event::id::DispatchId;
use muleteer_model::people::Right;
use muleteer_process::fault::point;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Reply, Spawn, WireError};
use std::path::Path;

impl Given<'_> {
    /// Handles the request for a task: it resolves the role and the project, gets or creates the
    /// task, and dispatches an agent for it.
    ///
    /// # Errors
    /// The author may not dispatch there, or the request cannot be fulfilled. The task is closed
    /// then.
    pub(super) async fn handle_task(&self, asked: command::Spawn) -> Result<Done, WireError> {
        let template = template(self.daemon, self.thread)?;
        let by_agent = self.message.command.is_some();
        let place = project(self.daemon, self.thread, &template, (&asked.project, by_agent))?;
        self.author.permit(self.daemon, Right::Spawn, Some(&place), Some(&asked.role))?;
        let id = DispatchId::try_from(self.message.id.clone())
            .map_err(|error| fault(ErrorCode::BadInput, &error.to_string(), ""))?;
        // It was made before the daemon was killed.
        if let Some(known) = archive::known(self.daemon, &id)?
            && known.created.thread() == Some(self.thread.id())
        {
            return Ok(spawned(&id, &known.created.role, &place));
        }
        let title = event::title(asked.title.as_deref(), &asked.prompt).unwrap_or_default();
        self.append(directed::task_opened(self.thread, &id, &asked.role, &title)).await?;
        point("thread.task_opened");
        let spawn = Spawn {
            id: id.to_string(),
            role: asked.role,
            project: place.display().to_string(),
            prompt: asked.prompt,
            model: asked.model,
            title: asked.title,
            ..template
        };
        match self.draft_agent(&spawn, &id).await {
            Err(error) if !is_passing(&error) => {
                let reason = format!("{}: {}", error.code, error.message);
                self.append(vec![self.thread.task_closed(id.as_str(), &reason)]).await?;
                Err(error)
            }
            drafted => drafted,
        }
    }

    /// Dispatches an agent of the pool. The same id again is the same dispatch.
    async fn draft_agent(&self, spawn: &Spawn, id: &DispatchId) -> Result<Done, WireError> {
        let asker = Asker::Thread(self.thread.id().into());
        let mut done = spawned(id, &spawn.role, Path::new(&spawn.project));
        if let Reply::Spawned { warnings, .. } = create(self.daemon, spawn, &asker, None).await?
            && !warnings.is_empty()
        {
            done.text = format!("{}\nwarning: {}", done.text, warnings.join("\nwarning: "));
        }
        Ok(done)
    }

    async fn append(&self, events: Vec<Event>) -> Result<(), WireError> {
        if events.is_empty() {
            return Ok(());
        }
        let appended = try_append(self.daemon, entries(events)).await;
        appended.map(drop).map_err(|error| unappended(&error))
    }
}

/// Says that an agent is dispatched. The reply is not about the dispatch, whose end may be told
/// before this reply.
fn spawned(id: &DispatchId, role: &str, place: &Path) -> Done {
    let place = place.display();
    let text =
        format!("Dispatched `{role}` as {id} in {place}. Its answer comes into this thread.");
    Done::says(text)
}
