//! Drives one thread: it makes the decisions of [`step`] durable and carries out their effects,
//! until nothing is open.

use crate::conversation::adapter::{self, environment_layer};
use crate::conversation::question::confirmed;
use crate::conversation::{commands, files, meeting};
use crate::daemon::context::{Daemon, random_key};
use crate::daemon::settings;
use crate::dispatch::control::{create, send};
use crate::dispatch::error::is_passing;
use crate::dispatch::prompt_files::Further;
use crate::dispatch::request::{Asker, load};
use crate::ledger::append;
use crate::ports::ledger::LedgerError;
use jiff::Timestamp;
use muleteer_model::conversation::command::confirm;
use muleteer_model::conversation::limits::OURSELVES;
use muleteer_model::conversation::meeting::prompt::of as of_turn;
use muleteer_model::conversation::step::{self, Effect, Way};
use muleteer_model::conversation::thread::{Message, Thread, report};
use muleteer_model::conversation::{context, directed, route};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event};
use muleteer_model::schedule;
use muleteer_process::fault::point;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Spawn, WireError};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The outcome of an effect.
enum Outcome {
    Done,
    /// It could not be carried out now. It is tried again, or the state has changed.
    Again,
    /// It cannot be carried out: these events say so.
    Failed(Vec<Event>),
}

/// Drives a thread until nothing follows by itself. Cancel-safe: what was durable is resumed by the
/// next call.
///
/// # Errors
/// When the ledger cannot write.
pub(super) async fn drive(daemon: &Arc<Daemon>, id: &str) -> Result<(), LedgerError> {
    let mut changes = daemon.fleet.subscribe();
    let (mut last, mut pause) = (None, FIRST_PAUSE);
    let mut clock = meeting::Clock::default();
    loop {
        let fleet = changes.borrow_and_update().clone();
        let Some(thread) = fleet.conversations.get(id).filter(|thread| thread.is_busy()) else {
            return Ok(());
        };
        if let Some(events) = report::next(thread, Timestamp::now(), &mut new_id) {
            point("thread.report_due");
            record(daemon, events).await?;
            point("thread.reported");
            continue;
        }
        let mut events = step::next(thread, &fleet, &mut new_id);
        if confirm::is_due(&events) && confirmed::asks_first(daemon) {
            events = confirm::asked_first(thread, events, &mut new_id);
        }
        if !events.is_empty() {
            record(daemon, events).await?;
            point("thread.decided");
            continue;
        }
        if meeting::drive(daemon, thread, &fleet, &mut clock).await? {
            continue;
        }
        if let Some((message, route)) = route::due(thread, &fleet.questions) {
            let events = commands::carry_out(daemon, thread, message, route).await;
            point("thread.command_done");
            match events {
                Some(events) => {
                    record(daemon, events).await?;
                    (last, pause) = (None, FIRST_PAUSE);
                }
                None => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
            point("thread.command_recorded");
            continue;
        }
        let Some(effect) = step::effect(thread, &fleet) else {
            let due =
                report::due_in(thread, Timestamp::now()).into_iter().chain(clock.left()).min();
            drop(fleet);
            tokio::select! {
                changed = changes.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                }
                () = tokio::time::sleep(due.unwrap_or_default()), if due.is_some() => {}
            }
            continue;
        };
        // The effect of the last round is still due, so carrying it out changed nothing.
        let is_repeated = last.replace(effect.clone()) == Some(effect.clone());
        match carry_out(daemon, thread, &effect).await {
            Outcome::Done if !is_repeated => pause = FIRST_PAUSE,
            Outcome::Failed(events) => record(daemon, events).await?,
            Outcome::Done | Outcome::Again => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        point("thread.delivered");
    }
}

/// Makes the events of one decision durable.
pub(super) async fn record(daemon: &Daemon, events: Vec<Event>) -> Result<(), LedgerError> {
    append(daemon, entries(events)).await.map(drop)
}

pub(super) fn entries(events: Vec<Event>) -> Vec<Entry> {
    let entry = |event| Entry { id: random_key(), dispatch_id: None, at: None, more: false, event };
    events.into_iter().map(entry).collect()
}

pub(crate) fn new_id() -> DispatchId {
    let mut bytes = [0; muleteer_model::event::id::ID_BYTES];
    // Without randomness there are no safe ids, so the process must not continue.
    if let Err(error) = getrandom::fill(&mut bytes) {
        panic!("failed to get random bytes: {error}");
    }
    DispatchId::from_random(bytes)
}

async fn carry_out(daemon: &Arc<Daemon>, thread: &Thread, effect: &Effect) -> Outcome {
    let (Effect::Create { message, .. } | Effect::Send { message, .. }) = effect;
    let Some(message) = thread.open().find(|open| open.id == *message) else {
        return Outcome::Again;
    };
    let text = prompt(daemon, thread, message);
    match effect {
        Effect::Create { dispatch, .. } => begin(daemon, thread, message, dispatch, text).await,
        Effect::Send { dispatch, key, .. } => {
            let further = Further { key, text: &text, cli_command: false };
            match send(daemon, dispatch.as_str(), further, &message.author.id, None).await {
                Ok(_) => Outcome::Done,
                Err(error) => unsent(daemon, thread, message, dispatch, &error),
            }
        }
    }
}

/// Creates the dispatch that begins with a message.
async fn begin(
    daemon: &Arc<Daemon>,
    thread: &Thread,
    message: &Message,
    dispatch: &DispatchId,
    prompt: String,
) -> Outcome {
    let template = match template(daemon, thread) {
        Ok(template) => template,
        Err(error) => return Outcome::Failed(refused(thread, message, &error)),
    };
    let prompt = match route::sent_elsewhere(thread, message) {
        Some(_) => prompt,
        None => continued(daemon, thread, message, prompt).await,
    };
    let id = dispatch.to_string();
    let title = thread.opened.title.clone();
    let spawn = match route::sent_elsewhere(thread, message) {
        Some((role, _)) => Spawn { id, prompt, role: role.into(), model: None, ..template },
        None if template.role != thread.opened.role => {
            let role = thread.opened.role.clone();
            Spawn { id, prompt, title, role, model: None, ..template }
        }
        None => Spawn { id, prompt, title, ..template },
    };
    let asker = Asker::Thread(thread.id().to_string());
    match create(daemon, &spawn, &asker, None).await {
        Ok(_) => Outcome::Done,
        Err(error) if is_passing(&error) => Outcome::Again,
        // The id is another dispatch's, which is not the thread's: choose another.
        Err(error)
            if is(&error, ErrorCode::IdTaken)
                && route::sent_elsewhere(thread, message).is_none() =>
        {
            Outcome::Failed(step::given_up(thread, &error.message))
        }
        Err(error) => Outcome::Failed(refused(thread, message, &error)),
    }
}

/// Returns the template of the dispatches of a thread. In the thread of an adapter, a schedule or a
/// run they get the environment of the daemon, which the file of the template does not have.
///
/// # Errors
/// The file is missing or damaged, or the configuration is invalid.
pub(super) fn template(daemon: &Daemon, thread: &Thread) -> Result<Spawn, WireError> {
    let template = files::template(daemon, thread.id())?;
    let by = &*thread.opened.by;
    if !thread.has_adapter() && !schedule::is_opener(by) && by != OURSELVES {
        return Ok(template);
    }
    let top = settings::repository(Path::new(&template.project));
    let config = load(daemon, template.config.as_deref(), Some(&top), environment_layer())?;
    Ok(Spawn { env: adapter::environment(&config), ..template })
}

/// Adds the context of the thread to the first prompt of an agent that continues it.
async fn continued(daemon: &Daemon, thread: &Thread, message: &Message, text: String) -> String {
    let fleet = daemon.snapshot();
    let journal = match context::predecessor(thread, &fleet) {
        Some(dispatch) => {
            let path = dispatch.created.journal.clone();
            let read = move || files::end_of(Path::new(&path), context::JOURNAL_LIMIT as u64);
            // A journal that is gone or unreadable is left out.
            tokio::task::spawn_blocking(read).await.ok().and_then(Result::ok).unwrap_or_default()
        }
        None => return text,
    };
    context::prompt(thread, &message.id, &text, &fleet, &journal).unwrap_or(text)
}

/// Decides after a message that its dispatch did not take.
fn unsent(
    daemon: &Daemon,
    thread: &Thread,
    message: &Message,
    dispatch: &DispatchId,
    error: &WireError,
) -> Outcome {
    let is_elsewhere = route::sent_elsewhere(thread, message).is_some();
    let goes_there = |fleet: &muleteer_model::dispatch::fleet::Fleet| {
        let now = fleet.conversations.get(thread.id());
        let way = match is_elsewhere {
            true => Some(step::way_to(dispatch, fleet)),
            false => now.map(|now| step::way(now, fleet)),
        };
        way == Some(Way::To(dispatch.clone()))
    };
    if is_elsewhere && !is_passing(error) && goes_there(&daemon.snapshot()) {
        let reason = format!("{}: {}", error.code, error.message);
        let events = directed::refused_elsewhere(thread, &message.id, &reason, &mut new_id);
        return Outcome::Failed(events);
    }
    if is_passing(error) || !goes_there(&daemon.snapshot()) {
        return Outcome::Again;
    }
    match is(error, ErrorCode::Unsupported) || is(error, ErrorCode::NotFound) {
        true => Outcome::Failed(step::given_up(thread, &error.message)),
        false => Outcome::Failed(refused(thread, message, error)),
    }
}

fn refused(thread: &Thread, message: &Message, error: &WireError) -> Vec<Event> {
    let reason = format!("{}: {}", error.code, error.message);
    match route::sent_elsewhere(thread, message) {
        Some(_) => directed::refused_elsewhere(thread, &message.id, &reason, &mut new_id),
        None => step::refused(thread, &message.id, &reason, &mut new_id),
    }
}

fn is(error: &WireError, code: ErrorCode) -> bool {
    error.code == code.as_str()
}

/// Returns the prompt of a message: its text, with the paths of its files.
fn prompt(daemon: &Daemon, thread: &Thread, message: &Message) -> String {
    if let Some(prompt) = of_turn(thread, &message.id) {
        return prompt;
    }
    let text = route::sent_elsewhere(thread, message).map_or(&*message.text, |(_, text)| text);
    if message.files.is_empty() {
        return text.to_string();
    }
    let paths = message.files.iter().map(|file| {
        let path = files::attached(&daemon.paths, thread.id(), file);
        format!("- {} ({} bytes)", path.display(), file.bytes)
    });
    let list: Vec<_> = paths.collect();
    format!("{}\n\nAttached files:\n{}", text.trim_end(), list.join("\n"))
}
