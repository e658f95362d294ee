//! Carries out the answer to the question about an agent's commands: they become messages of the
//! person whom the agent answered, or the agent is told that they were rejected.

use crate::conversation::rights::own_config;
use crate::conversation::{new_id, older, serve as threads, view};
use crate::daemon::context::Daemon;
use crate::dispatch::error::unappended;
use crate::ledger::try_append;
use crate::ports::conversation::ConversationsMsg;
use muleteer_model::config::CoordinatorCommands;
use muleteer_model::conversation::command::confirm::{self, Proposal};
use muleteer_model::conversation::event::Author;
use muleteer_model::conversation::route::OWN_KEY;
use muleteer_model::event::{Entry, Event};
use muleteer_model::question::Question;
use muleteer_model::spec_run::gate::APPROVE;
use muleteer_process::fault::point;
use muleteer_protocol::v1::{ThreadSend, WireError};
use std::sync::Arc;

/// Whether the commands of agents wait for a person's yes. They do if the configuration is invalid.
pub fn asks_first(daemon: &Daemon) -> bool {
    own_config(daemon)
        .map_or(true, |config| config.coordinator.commands == CoordinatorCommands::Ask)
}

/// Carries an answer out. May be repeated: the keys of the messages follow from the turn that gave
/// the commands, and from the question.
///
/// # Errors
/// The thread is unknown, or nothing can be written now.
pub async fn carry_out(
    daemon: &Arc<Daemon>,
    question: &Question,
    proposal: Proposal,
) -> Result<(), WireError> {
    let (Some(answer), Some(by), Some(thread)) =
        (&question.answer, &question.answered_by, &question.thread)
    else {
        return Ok(());
    };
    if !answer.is(APPROVE) {
        let key = format!("{OWN_KEY}{}", question.id);
        let text = confirm::rejected(&by.user, &answer.text);
        let sent = ThreadSend { thread: thread.clone(), key, text, ..ThreadSend::default() };
        return threads::send_as(daemon, &sent, Author::muleteer()).await.map(drop);
    }
    let _alone = daemon.creating(&format!("thread {thread}")).await;
    let thread = view::find(daemon, thread)?;
    let mut entries = vec![];
    for accepted in proposal.accepted(&thread, &mut new_id) {
        if older::by_key(daemon, &thread, &accepted.key).await?.is_none() {
            entries.push(Entry {
                id: format!("thread/{}/key/{}", thread.id(), accepted.key),
                dispatch_id: None,
                at: None,
                more: true,
                event: Event::MessageAccepted(Box::new(accepted)),
            });
        }
    }
    let Some(last) = entries.last_mut() else { return Ok(()) };
    last.more = false;
    try_append(daemon, entries).await.map_err(|error| unappended(&error))?;
    point("thread.accepted");
    daemon.ports.conversations.cast(ConversationsMsg::Look);
    Ok(())
}
