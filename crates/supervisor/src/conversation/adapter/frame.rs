//! The frames of outbound items, as the outside system can show them.

use crate::conversation::adapter::inbound;
use crate::conversation::{files, older};
use crate::daemon::context::Daemon;
use muleteer_model::conversation::adapter::abilities::{Abilities, file_text, question_text};
use muleteer_model::conversation::adapter::asks::{Asked, Resolved};
use muleteer_model::conversation::adapter::outbox::{Content, Post};
use muleteer_model::conversation::command::Marks;
use muleteer_model::conversation::event::{Author, MessageFile};
use muleteer_model::conversation::thread::{Message, Thread};
use muleteer_model::question::{AnsweredBy, Choice};
use muleteer_protocol::v1::{AuthorDoc, Outbound, OutboundOption};
use std::sync::Arc;

/// The name of a text that is given as a document.
const DOCUMENT: &str = "message.md";

/// An outbound item of a thread, and the way in which its adapter shows it.
pub(super) struct Item<'a> {
    pub seq: u64,
    pub thread: &'a Thread,
    pub post: &'a Post,
    pub abilities: Abilities,
    /// The place of the stream whose last text it is.
    pub stream: Option<String>,
}

/// Returns the frame of an item that a record owes; `None` while its message or its file cannot be
/// read.
pub(super) async fn owed(daemon: &Arc<Daemon>, item: Item<'_>) -> Option<Outbound> {
    let Item { seq, thread, post, abilities, stream } = item;
    let frame = Outbound {
        seq,
        key: post.key.clone(),
        again: post.sent,
        at: format!("{:.3}", post.at),
        ..of_thread(thread)
    };
    Some(match &post.content {
        Content::Message(id) => {
            let Some(message) = thread.message(id) else { return Some(frame) };
            let reply_to = match message.answers.last() {
                Some(id) => source_of(daemon, thread, id).await,
                None => None,
            };
            let own_stream = post.stream.clone().filter(|_| abilities.streaming);
            let frame = Outbound { reply_to, stream: own_stream, ..frame };
            text(frame, message, abilities, stream)
        }
        Content::Elsewhere(id) => text(frame, &*kept(daemon, thread, id).await?, abilities, None),
        Content::File(message, file) => {
            upload(daemon, frame, thread, message, file, abilities).await?
        }
        Content::Ask(asked) => ask(frame, thread, asked, abilities),
        Content::Resolve(resolved) => resolve(frame, thread, resolved, abilities),
    })
}

/// Returns a frame about a thread.
pub(super) fn of_thread(thread: &Thread) -> Outbound {
    Outbound {
        external: thread.opened.external.clone().unwrap_or_default(),
        op: "post".into(),
        thread_id: thread.id().into(),
        ..Outbound::default()
    }
}

/// Adds a message to a frame: a post, the last text of a stream, or a document.
fn text(
    frame: Outbound,
    message: &Message,
    abilities: Abilities,
    stream: Option<String>,
) -> Outbound {
    let (op, file) = match abilities.is_document(&message.text) {
        true => ("document", Some(DOCUMENT.to_string())),
        false if stream.is_some() => ("update", None),
        false => ("post", None),
    };
    Outbound {
        op: op.into(),
        message_id: Some(message.id.clone()),
        author: author(&message.author),
        text: message.text.to_string(),
        external_ref: stream,
        file,
        ..frame
    }
}

/// Adds a file to a frame. A text names it if the outside system has no files, or if the file is
/// gone. Returns `None` for a failure that may pass: the item is due again later.
async fn upload(
    daemon: &Arc<Daemon>,
    frame: Outbound,
    thread: &Thread,
    message: &str,
    file: &MessageFile,
    abilities: Abilities,
) -> Option<Outbound> {
    let path = files::attached(&daemon.paths, thread.id(), file);
    let of = kept(daemon, thread, message).await;
    let frame = Outbound {
        message_id: Some(message.into()),
        author: of.as_ref().map(|message| author(&message.author)).unwrap_or_default(),
        external_ref: of.and_then(|message| message.external_ref.clone()),
        file: Some(file.name.clone()),
        sha256: Some(file.sha256.clone()),
        ..frame
    };
    let named = file_text(file, &path.display().to_string());
    if !abilities.files {
        return Some(Outbound { text: named, ..frame });
    }
    let (wanted, of_path) = (file.clone(), path.clone());
    let read = tokio::task::spawn_blocking(move || files::read(&of_path, &wanted)).await;
    match read.map_err(std::io::Error::other).flatten() {
        Ok(content) => Some(Outbound { op: "upload".into(), content: Some(content), ..frame }),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "failed to read an attached file");
            let text = format!("{named} It cannot be read: {error}.");
            files::is_lost(&error).then_some(Outbound { text, ..frame })
        }
    }
}

/// Adds a question to a frame.
fn ask(frame: Outbound, thread: &Thread, asked: &Asked, abilities: Abilities) -> Outbound {
    let mark = Marks::of(&thread.opened).usual();
    let (op, text) = match abilities.questions {
        true => ("ask", asked.text.clone()),
        false => ("post", question_text(asked, mark)),
    };
    Outbound {
        op: op.into(),
        question_id: Some(asked.id.clone()),
        text,
        options: asked.options.iter().map(option).collect(),
        ..frame
    }
}

/// Adds the end of a question to a frame.
fn resolve(
    frame: Outbound,
    thread: &Thread,
    resolved: &Resolved,
    abilities: Abilities,
) -> Outbound {
    let (op, text) = match abilities.questions {
        true => ("resolve", resolved.text.clone()),
        false => ("post", format!("Question {}: {}", resolved.id, resolved.text)),
    };
    Outbound {
        op: op.into(),
        question_id: Some(resolved.id.clone()),
        text,
        author: resolved.by.as_ref().map(|by| answerer(thread, by)).unwrap_or_default(),
        options: resolved.options.iter().map(option).collect(),
        external_ref: thread.place_of_question(&resolved.id).map(String::from),
        ..frame
    }
}

fn option(choice: &Choice) -> OutboundOption {
    OutboundOption {
        id: choice.id.clone(),
        label: choice.label.clone(),
        description: choice.description.clone(),
    }
}

fn author(author: &Author) -> AuthorDoc {
    AuthorDoc {
        kind: author.kind.as_str().into(),
        id: author.id.clone(),
        name: author.name.clone(),
    }
}

/// Returns the author of an answer. A person of the thread's own adapter has the adapter's id.
fn answerer(thread: &Thread, by: &AnsweredBy) -> AuthorDoc {
    let kind = match by.adapter.as_str() {
        kind @ ("agent" | "muleteer") => kind,
        _ => "person",
    };
    let id = match by.adapter == thread.opened.adapter {
        true => by.user.clone(),
        false => by.to_string(),
    };
    AuthorDoc { kind: kind.into(), id, name: by.user.clone() }
}

/// Returns a message, kept in memory or not; `None` if the database cannot be read.
async fn kept(daemon: &Arc<Daemon>, thread: &Thread, message: &str) -> Option<Arc<Message>> {
    match older::message(daemon, thread, message).await {
        Ok(found) => found,
        Err(error) => {
            let error = error.message;
            tracing::warn!(thread = thread.id(), message, %error, "failed to read a message");
            None
        }
    }
}

/// Returns the source's id of the message that an item answers. The item goes without it if the
/// message left the memory and the database cannot be read.
async fn source_of(daemon: &Arc<Daemon>, thread: &Thread, message: &str) -> Option<String> {
    kept(daemon, thread, message).await.and_then(|answered| inbound::source_of(&answered))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use muleteer_model::config::Pool;
    use muleteer_model::conversation::event::ThreadOpened;
    use muleteer_model::event::Event;
    use muleteer_store::hash::sha256;

    #[tokio::test]
    async fn unreadable_file_is_due_again_and_a_lost_one_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let id = "thrd2345".to_string();
        daemon.fold_plain(Event::ThreadOpened(Box::new(ThreadOpened {
            thread: id.clone(),
            role: "product-analyst".into(),
            project: "/p".into(),
            title: None,
            adapter: "slack".into(),
            external: Some("C1".into()),
            by: "U1".into(),
            bang: None,
        })));
        let fleet = daemon.snapshot();
        let thread = fleet.conversations.get(&id).unwrap();
        let file = MessageFile { name: "a.txt".into(), bytes: 2, sha256: sha256(b"hi") };
        let abilities = Abilities::of(&["files".into()], None);
        let given = || upload(&daemon, of_thread(thread), thread, "msga2345", &file, abilities);
        let text = |frame: Option<Outbound>| frame.expect("a frame").text;
        assert!(text(given().await).contains("It cannot be read: "));
        let path = files::attached(&daemon.paths, &id, &file);
        // A folder in its place stands for a failure of the disk.
        std::fs::create_dir_all(&path).unwrap();
        assert!(given().await.is_none());
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, "no").unwrap();
        assert!(text(given().await).contains("its content has changed"));
        std::fs::write(&path, "hi").unwrap();
        assert_eq!(given().await.expect("a frame").content.as_deref(), Some(&b"hi"[..]));
    }
}
