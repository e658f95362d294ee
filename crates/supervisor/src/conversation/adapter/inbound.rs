//! Handles what comes from an adapter: resolves the thread, the role and the person, opens the
//! thread if it is new, and adds the message. The acknowledgement follows once that is durable.

use crate::conversation::adapter::place;
use crate::conversation::deliver::{entries, new_id};
use crate::conversation::older;
use crate::conversation::question::serve::{self as questions, Given};
use crate::conversation::rights::{Author, forbidden};
use crate::conversation::serve::{self, Origin};
use crate::daemon::context::Daemon;
use crate::dispatch::control::interrupt_now;
use crate::dispatch::error::{fault, unappended};
use crate::dispatch::request::Asker;
use crate::ledger::try_append;
use muleteer_model::conversation::adapter::event::{AdapterSignal, StrangerTold};
use muleteer_model::conversation::adapter::outbox::MOST_STRANGERS;
use muleteer_model::conversation::adapter::settings::{CommandMark, addressed};
use muleteer_model::conversation::event::{self, AuthorKind};
use muleteer_model::conversation::thread::{Message, Thread};
use muleteer_model::conversation::{DEFAULT_ROLE, command, route};
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::Event;
use muleteer_model::people::{Refusal, Right};
use muleteer_model::question::Question;
use muleteer_process::fault::point;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{
    AttachedFile, Inbound, Reply, ThreadNew, ThreadSend, ToAdapter, WireError,
};
use muleteer_store::hash::sha256;
use std::path::Path;
use std::sync::Arc;

/// The longest id of the outside system in bytes.
const ID_LIMIT: usize = 200;
/// The most threads of an adapter with unanswered messages.
const MOST_BUSY: usize = 1000;
/// In front of the source's id in the key of a message.
const KEY: &str = "in/";

/// The outcome of a request.
struct Taken {
    message: Option<String>,
    duplicate: bool,
}

/// A refusal, with a text that the adapter posts.
struct Refused {
    error: WireError,
    reply: Option<String>,
}

impl From<WireError> for Refused {
    fn from(error: WireError) -> Self {
        Self { error, reply: None }
    }
}

/// Handles a request of the adapter `name`, and returns the answer.
pub(super) async fn handle(daemon: &Arc<Daemon>, name: &str, inbound: Inbound) -> ToAdapter {
    let source_id = inbound.source_id.clone();
    match take(daemon, name, inbound).await {
        Ok(Taken { message, duplicate }) => {
            if duplicate {
                daemon.adapters.change(name, |live| live.duplicates += 1);
            }
            ToAdapter::Accepted { source_id, message_id: message, duplicate }
        }
        Err(Refused { error, reply }) => ToAdapter::Rejected { source_id, error, reply },
    }
}

async fn take(daemon: &Arc<Daemon>, name: &str, inbound: Inbound) -> Result<Taken, Refused> {
    for (what, id) in [
        ("source_id", Some(&inbound.source_id)),
        ("external", Some(&inbound.external)),
        ("user", Some(&inbound.user)),
        ("question_id", inbound.question_id.as_ref()),
        ("reply_to", inbound.reply_to.as_ref()),
    ] {
        let Some(id) = id else { continue };
        if id.is_empty() || id.len() > ID_LIMIT || id.chars().any(char::is_control) {
            let message = format!("`{what}` has 1 to {ID_LIMIT} bytes without control characters");
            return Err(fault(ErrorCode::BadInput, &message, "").into());
        }
    }
    match inbound.kind.as_str() {
        "message" | "edit" => message(daemon, name, inbound).await,
        "interrupt" | "delete" | "answer" => signal(daemon, name, inbound).await,
        other => {
            let message = format!("the kind `{other}` is not supported");
            let hint = "use message, edit, delete, answer or interrupt";
            Err(fault(ErrorCode::Unsupported, &message, hint).into())
        }
    }
}

/// Accepts a message: in its thread, or in a new one.
async fn message(daemon: &Arc<Daemon>, name: &str, mut inbound: Inbound) -> Result<Taken, Refused> {
    let key = format!("{KEY}{}", inbound.source_id);
    // One at a time for each conversation, because two first messages would open two threads.
    let alone = daemon.creating(&format!("{name}/{}", inbound.external)).await;
    let known = known(daemon, name, &inbound.external);
    if let Some(thread) = &known
        && let Some(message) = older::id_by_key(daemon, thread, &key).await?
    {
        return Ok(Taken { message: Some(message), duplicate: true });
    }
    let author = Author::of_adapter(name, &inbound.user);
    // A stranger learns nothing of the configuration.
    if let Some(refusal) = author.stranger(daemon)? {
        return Err(refused(daemon, &author, &inbound.source_id, &refusal).await);
    }
    let files = std::mem::take(&mut inbound.files).into_iter();
    let files = files.map(|file| AttachedFile { name: file.name, content: file.content });
    let person = shown_name(inbound.name.as_deref().unwrap_or(&inbound.user));
    let text = worded(&inbound.kind, &inbound.text);
    let thread = String::new();
    let sent = ThreadSend { thread, key, text, name: person, files: files.collect() };
    serve::check_content(&sent)?;
    let (thread, text) = match known {
        Some(thread) => {
            may_write(daemon, &author, &thread, &inbound).await?;
            (thread.id().to_string(), text_for(&thread, &inbound.text))
        }
        None => open(daemon, name, &inbound).await?,
    };
    drop(alone);
    let sent = ThreadSend { thread, text: worded(&inbound.kind, &text), ..sent };
    let id = inbound.user.clone();
    let author = event::Author { kind: AuthorKind::Person, id, name: sent.name.clone() };
    match serve::send_as(daemon, &sent, author).await? {
        Reply::MessageAccepted { message_id, .. } => {
            point("adapter.accepted");
            Ok(Taken { message: Some(message_id), duplicate: false })
        }
        _ => Ok(Taken { message: None, duplicate: false }),
    }
}

/// Returns a name for people without control characters, in at most [`ID_LIMIT`] bytes.
fn shown_name(name: &str) -> String {
    let mut shown: String = name.chars().filter(|c| !c.is_control()).collect();
    shown.truncate(shown.floor_char_boundary(ID_LIMIT));
    shown
}

/// Returns the text of a message or an edit.
fn worded(kind: &str, text: &str) -> String {
    match kind {
        "edit" => format!("(An earlier message was edited. It now says:)\n{text}"),
        _ => text.into(),
    }
}

/// Returns the text for the agent of a thread that exists. A daemon that was killed after it opened
/// the thread gets the first message again, whose `@role` has chosen the role already.
fn text_for(thread: &Thread, text: &str) -> String {
    let is_first = thread.messages.is_empty();
    match addressed(text).filter(|(role, _)| is_first && *role == thread.opened.role) {
        Some((_, rest)) => rest.into(),
        None => text.into(),
    }
}

/// Checks that a person may write a message in a thread: for its role, or for the one that the
/// message addresses. The command or the delivery of the message checks further rights.
async fn may_write(
    daemon: &Arc<Daemon>,
    author: &Author,
    thread: &Thread,
    inbound: &Inbound,
) -> Result<(), Refused> {
    let (project, own) = (&thread.opened.project, &thread.opened.role);
    let place = Some(Path::new(project.as_str()));
    if let Some((role, _)) = command::addressed(&inbound.text)
        && [Right::Talk, Right::Spawn]
            .into_iter()
            .map(|right| author.refusal(daemon, right, place, Some(role)))
            .any(|refusal| matches!(refusal, Ok(None)))
    {
        return Ok(());
    }
    let needed = Needed { right: Right::Talk, project, role: own };
    permit(daemon, author, &inbound.source_id, needed).await
}

/// The right that a request needs.
struct Needed<'a> {
    right: Right,
    project: &'a str,
    role: &'a str,
}

/// Checks that a person has a right in threads of a project and a role.
async fn permit(
    daemon: &Arc<Daemon>,
    author: &Author,
    source: &str,
    needed: Needed<'_>,
) -> Result<(), Refused> {
    let Needed { right, project, role } = needed;
    match author.refusal(daemon, right, Some(Path::new(project)), Some(role))? {
        Some(refusal) => Err(refused(daemon, author, source, &refusal).await),
        None => Ok(()),
    }
}

/// Returns the refusal of a request. A person who is not listed is told once how to get
/// permissions.
async fn refused(
    daemon: &Arc<Daemon>,
    author: &Author,
    source: &str,
    refusal: &Refusal,
) -> Refused {
    let error = forbidden(refusal);
    if !refusal.unlisted {
        return Refused { error, reply: Some(refusal.reply()) };
    }
    let fleet = daemon.snapshot();
    let told = fleet.conversations.adapter(&author.adapter).map(|known| &known.told);
    match told.and_then(|told| told.get(&author.user)) {
        // A kill may have lost the reply.
        Some(known) if known == source => {
            return Refused { error, reply: Some(refusal.reply()) };
        }
        Some(_) => return error.into(),
        None if told.is_some_and(|told| told.size() >= MOST_STRANGERS) => return error.into(),
        None => {}
    }
    let (adapter, user) = (author.adapter.clone(), author.user.clone());
    let told = StrangerTold { adapter, user, source: source.into() };
    let event = Event::StrangerTold(Box::new(told));
    match try_append(daemon, entries(vec![event])).await {
        Ok(_) => Refused { error, reply: Some(refusal.reply()) },
        Err(error) => unappended(&error).into(),
    }
}

/// Opens the thread of a conversation. Returns its id and the text for its agent.
async fn open(
    daemon: &Arc<Daemon>,
    name: &str,
    inbound: &Inbound,
) -> Result<(String, String), Refused> {
    let (author, source) = (Author::of_adapter(name, &inbound.user), &inbound.source_id);
    let settings = daemon.adapters.get(name).map(|live| live.settings).unwrap_or_default();
    let channel = inbound.channel.as_deref();
    let (dispatch, text) = place::template(daemon, name, &settings, channel, &inbound.text)?;
    let (project, role) = (&dispatch.project, &dispatch.role);
    permit(daemon, &author, source, Needed { right: Right::Talk, project, role }).await?;
    // Another role than the one of the place is the author's choice.
    if settings.channel(channel).role.as_deref().unwrap_or(DEFAULT_ROLE) != role {
        permit(daemon, &author, source, Needed { right: Right::Spawn, project, role }).await?;
    }
    let fleet = daemon.snapshot();
    let all = &fleet.conversations;
    let is_own = |id: &&str| all.get(id).is_some_and(|thread| thread.opened.adapter == name);
    if all.busy().filter(is_own).count() >= MOST_BUSY {
        let message = format!("{MOST_BUSY} threads of `{name}` have unanswered messages");
        return Err(fault(
            ErrorCode::Busy,
            &message,
            "wait 10 s, then try again: a message is accepted as soon as a thread is answered",
        )
        .into());
    }
    let id = new_id().to_string();
    let new = ThreadNew { id: id.clone(), title: None, dispatch, ..ThreadNew::default() };
    let bang = settings.commands.map(|commands| commands == CommandMark::Bang);
    let origin = Origin { adapter: name, external: Some(&inbound.external), bang };
    serve::open_from(daemon, &new, origin, &inbound.user).await?;
    point("adapter.thread_opened");
    Ok((id, text))
}

/// Handles a request that is no message.
async fn signal(daemon: &Arc<Daemon>, name: &str, inbound: Inbound) -> Result<Taken, Refused> {
    let Some(thread) = known(daemon, name, &inbound.external) else {
        let message = format!("`{name}` has no thread `{}`", inbound.external);
        return Err(fault(ErrorCode::NotFound, &message, "").into());
    };
    let right = if inbound.kind == "answer" { Right::Answer } else { Right::Talk };
    let author = Author::of_adapter(name, &inbound.user);
    let (project, role) = (&thread.opened.project, &thread.opened.role);
    permit(daemon, &author, &inbound.source_id, Needed { right, project, role }).await?;
    if older::has_signal(daemon, name, &inbound.source_id).await? {
        return Ok(Taken { message: None, duplicate: true });
    }
    let about = match &inbound.reply_to {
        Some(id) => older::id_by_key(daemon, &thread, &format!("{KEY}{id}")).await?,
        None => None,
    };
    // The effect comes first. It has a key, so the same request interrupts no second turn after a
    // crash in between.
    if inbound.kind == "interrupt"
        && let Some(dispatch) = &thread.dispatch
    {
        // It does not wait for a turn to begin: the whole adapter would wait. The adapter submits
        // it again after `E_BUSY`.
        let key = format!("interrupt-{name}-{}", inbound.source_id);
        // Its first submission may have interrupted an earlier agent of the thread.
        if !route::has_interrupted(&thread, &daemon.snapshot(), &key) {
            interrupt_now(daemon, dispatch.as_str(), &inbound.user, key).await?;
        }
        point("adapter.interrupted");
    }
    if inbound.kind == "answer" {
        answer(daemon, name, &thread, &inbound).await?;
    }
    let signal = AdapterSignal {
        adapter: name.into(),
        source: inbound.source_id,
        kind: inbound.kind,
        thread: thread.id().into(),
        by: inbound.user,
        about: inbound.question_id.or_else(|| about.clone()),
    };
    let event = Event::AdapterSignal(Box::new(signal));
    try_append(daemon, entries(vec![event])).await.map_err(|error| unappended(&error))?;
    Ok(Taken { message: about, duplicate: false })
}

/// Answers a question of the thread. The key of the answer follows from the source's id, so a
/// repetition is no second answer.
async fn answer(
    daemon: &Arc<Daemon>,
    name: &str,
    thread: &Thread,
    inbound: &Inbound,
) -> Result<(), WireError> {
    let question = question(&daemon.snapshot(), thread, inbound.question_id.as_deref())?;
    let foreign = |id: &&String| question.options.iter().all(|option| option.id != **id);
    if let Some(id) = inbound.options.iter().find(foreign) {
        let message = format!("question {} has no option `{id}`", question.id);
        return Err(fault(ErrorCode::BadInput, &message, "send the id of an option"));
    }
    let said = match &inbound.options[..] {
        [] => inbound.text.clone(),
        chosen => chosen.join(","),
    };
    if said.trim().is_empty() {
        return Err(fault(ErrorCode::BadInput, "the answer has neither `options` nor `text`", ""));
    }
    let key = sha256(format!("{name}/{}", inbound.source_id).as_bytes());
    let asker = Asker::Thread(thread.id().into());
    let given = Given {
        id: &question.id,
        request: None,
        said: &said,
        arguments: &inbound.options,
        key: &key,
        asker: &asker,
        by: &format!("{name}:{}", inbound.user),
    };
    questions::answer(daemon, given).await.map(drop)
}

/// Returns the question that an answer names; without an id the only open one of the thread.
///
/// # Errors
/// `E_FORBIDDEN` for a question of another thread.
fn question(fleet: &Fleet, thread: &Thread, id: Option<&str>) -> Result<Question, WireError> {
    if let Some(id) = id {
        let found = fleet.questions.get(id);
        return match found.filter(|found| found.is_in(thread.id())) {
            Some(found) => Ok(found.clone()),
            None => {
                let message = format!("`{id}` is no question of thread {}", thread.id());
                Err(fault(ErrorCode::Forbidden, &message, "answer the questions of the thread"))
            }
        };
    }
    match &fleet.questions.open_of(thread.id())[..] {
        [one] => Ok(Question::clone(one)),
        [] => {
            let message = format!("no question of thread {} is open", thread.id());
            Err(fault(ErrorCode::NothingAsked, &message, ""))
        }
        _ => {
            let message = format!("several questions of thread {} are open", thread.id());
            Err(fault(ErrorCode::Ambiguous, &message, "send `question_id`"))
        }
    }
}

fn known(daemon: &Daemon, name: &str, external: &str) -> Option<Arc<Thread>> {
    daemon.snapshot().conversations.by_external(name, external).cloned()
}

/// Returns the source's id of an inbound message.
pub(super) fn source_of(message: &Message) -> Option<String> {
    message.key.as_deref()?.strip_prefix(KEY).map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_names_are_short_and_without_control_characters() {
        assert_eq!(shown_name("an\u{1b}[31m\nna"), "an[31mna");
        let long = shown_name(&"ä".repeat(150));
        assert_eq!((long.len(), long.chars().count()), (200, 100));
        assert_eq!(shown_name(&format!("a{}", "ä".repeat(150))).len(), 199);
    }
}
