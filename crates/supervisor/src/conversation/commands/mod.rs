//! Carries out the commands that people write in threads.
//!
//! The command is a durable message. Its effect has keys that follow from the message's id, so a
//! daemon that is killed after the effect and before the reply repeats the effect without another
//! one. The reply and the end of the message are one batch.

mod setting;
mod show;
mod task;
#[cfg(test)]
mod tests;

pub(crate) use setting::check_setting;

use crate::conversation::deliver::{new_id, template};
use crate::conversation::question::{serve as questions, sign_off};
use crate::conversation::rights::Author;
use crate::daemon::context::Daemon;
use crate::dispatch::answer::set_model;
use crate::dispatch::control::{find, interrupt_as, kill, send};
use crate::dispatch::error::{fault, is_passing};
use crate::dispatch::prompt_files::Further;
use crate::dispatch::request::{self, Asker};
use crate::ledger::archive;
use muleteer_model::conversation::command::{self, Command, Misuse};
use muleteer_model::conversation::directed::{self, Replied};
use muleteer_model::conversation::prompt_key;
use muleteer_model::conversation::route::{self, Answering, Route};
use muleteer_model::conversation::thread::{Message, Thread};
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::dispatch::{Dispatch, Phase, Prompt, PromptState, Stop, Turn};
use muleteer_model::event::Event;
use muleteer_model::event::id::DispatchId;
use muleteer_model::people::Right;
use muleteer_model::question::{Answer, Question};
use muleteer_model::setting::SettingChanged;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Reply, Spawn, WireError};
use std::path::Path;
use std::sync::Arc;

/// The reason in the state of a message that was left to the thread's agent.
const FOR_THE_AGENT: &str = "for the agent";

/// The outcome of a command: the reply, and further events of the same batch.
struct Done {
    text: String,
    dispatch: Option<DispatchId>,
    events: Vec<Event>,
}

impl Done {
    fn says(text: impl Into<String>) -> Self {
        Self { text: text.into(), dispatch: None, events: vec![] }
    }

    fn about(self, dispatch: &DispatchId) -> Self {
        Self { dispatch: Some(dispatch.clone()), ..self }
    }
}

/// A command that is being carried out.
struct Given<'a> {
    daemon: &'a Arc<Daemon>,
    thread: &'a Thread,
    message: &'a Message,
    author: Author,
}

/// Carries out what a message asks of Muleteer, and returns the events after it. `None` if it
/// cannot be done now and is to be tried again.
pub(super) async fn carry_out(
    daemon: &Arc<Daemon>,
    thread: &Thread,
    message: &Message,
    route: Route,
) -> Option<Vec<Event>> {
    let author = Author::of(thread, message);
    let given = Given { daemon, thread, message, author };
    let done = match route {
        Route::Agent => return Some(directed::handed_on(thread, message, FOR_THE_AGENT)),
        // Its next speaker gets it.
        Route::Meeting => return None,
        Route::Answer(answering) => match given.answering(&answering).await {
            // Another answer was first, so this one is a message like any other. So is a text of a
            // person who may talk and not answer.
            Err(error)
                if is_too_late(&error)
                    || (answering.answer.options.is_empty() && is_forbidden(&error)) =>
            {
                return Some(directed::handed_on(thread, message, FOR_THE_AGENT));
            }
            done => done,
        },
        Route::Addressed { role, .. } => match given.addressed(&role) {
            Ok(events) => return Some(events),
            // Not the thread's agent but this role has the turn of the meeting.
            Err(error) if is_turn(thread, message) => {
                let reason = format!("{}: {}", error.code, error.message);
                let id = &message.id;
                return Some(directed::refused_elsewhere(thread, id, &reason, &mut new_id));
            }
            Err(error) => Err(error),
        },
        Route::Command(Err(misuse)) => Ok(Done::says(used_wrongly(&misuse))),
        Route::Command(Ok(command)) => given.command(command).await,
    };
    let (reply, mut events) = match done {
        Ok(Done { text, dispatch, events }) => (Replied { text, refusal: None, dispatch }, events),
        Err(error) if is_passing(&error) && error.code != ErrorCode::Busy.as_str() => return None,
        Err(error) => {
            let forbidden = is_forbidden(&error);
            let reason = format!("{}: {}", error.code, error.message);
            let hint = error.hint.filter(|hint| !hint.is_empty());
            let text = match hint {
                Some(hint) => format!("{reason} ({hint})"),
                None => reason.clone(),
            };
            (Replied { text, refusal: forbidden.then_some(reason), dispatch: None }, vec![])
        }
    };
    events.extend(directed::replied(thread, message, reply, &mut new_id));
    Some(events)
}

/// Whether a message gives a turn of the meeting that is held in the thread.
fn is_turn(thread: &Thread, message: &Message) -> bool {
    thread.meeting().is_some_and(|meeting| meeting.gave(&message.id))
}

fn is_forbidden(error: &WireError) -> bool {
    error.code == ErrorCode::Forbidden.as_str()
}

fn is_too_late(error: &WireError) -> bool {
    [ErrorCode::AlreadyAnswered, ErrorCode::NothingAsked]
        .iter()
        .any(|code| error.code == code.as_str())
}

fn used_wrongly(misuse: &Misuse) -> String {
    format!("{}: {misuse}", ErrorCode::Usage.as_str())
}

impl Given<'_> {
    async fn command(&self, command: Command) -> Result<Done, WireError> {
        self.author.listed(self.daemon)?;
        match command {
            Command::Spawn(asked) => self.handle_task(asked).await,
            Command::Kill { target } => self.kill(&target).await,
            Command::Stop => self.stop().await,
            Command::Status => {
                self.permit(Right::Talk)?;
                Ok(Done::says(show::status(self.thread, &self.daemon.snapshot())))
            }
            Command::Cost => {
                self.permit(Right::Talk)?;
                Ok(Done::says(show::cost(self.thread, &self.daemon.snapshot())))
            }
            Command::Answer { text } => self.answer(&text).await,
            Command::Model { name } => self.model(name.as_deref()).await,
            Command::Role { name } => self.role(name.as_deref()),
            Command::Set { key, value } => self.set(key, value),
            Command::Cli { text } => self.cli(&text).await,
            Command::Message { dispatch, text } => self.message(&dispatch, &text).await,
            Command::SignOff { path } => self.sign_off(&path).await,
            Command::Help => {
                self.permit(Right::Talk)?;
                Ok(Done::says(command::help()))
            }
        }
    }

    /// Checks a right in the thread's own project, for its role.
    fn permit(&self, right: Right) -> Result<(), WireError> {
        let opened = &self.thread.opened;
        let place = Path::new(&opened.project);
        self.author.permit(self.daemon, right, Some(place), Some(&opened.role))
    }

    /// Returns the dispatch of the thread's agent.
    fn present(&self) -> Result<Arc<Dispatch>, WireError> {
        let none = || {
            let hint = "write a message first: it begins the agent";
            fault(ErrorCode::NotFound, "this thread has no agent yet", hint)
        };
        let id = self.thread.dispatch.as_ref().ok_or_else(none)?;
        archive::known(self.daemon, id)?.ok_or_else(none)
    }

    /// Decides where a message goes that begins with `@ROLE`. Its author needs `talk` for an agent
    /// that the role has in the thread, and `spawn` for a new one.
    fn addressed(&self, role: &str) -> Result<Vec<Event>, WireError> {
        self.author.listed(self.daemon)?;
        let checked = template(self.daemon, self.thread).and_then(|template| {
            let asked = Spawn { role: role.into(), model: None, ..template };
            request::check(self.daemon, &asked)
        });
        let fleet = self.daemon.snapshot();
        let is_present = directed::present(self.thread, role, &fleet).is_some();
        match checked {
            // It is a text that begins with the name of a person.
            Err(error)
                if error.code == ErrorCode::RoleUnknown.as_str()
                    && !is_turn(self.thread, self.message) =>
            {
                self.permit(Right::Talk)?;
                let reason = format!("not for another role: {}", error.message);
                return Ok(directed::handed_on(self.thread, self.message, &reason));
            }
            // An agent that works needs no valid role file.
            Err(error) if !is_present => {
                self.permit(Right::Talk)?;
                return Err(error);
            }
            _ => {}
        }
        let right = if is_present { Right::Talk } else { Right::Spawn };
        let place = Path::new(&self.thread.opened.project);
        self.author.permit(self.daemon, right, Some(place), Some(role))?;
        Ok(directed::addressed(self.thread, self.message, role, &fleet))
    }

    async fn kill(&self, target: &str) -> Result<Done, WireError> {
        let fleet = self.daemon.snapshot();
        let reason = format!(
            "killed by {} in thread {}, message {}",
            self.author.name,
            self.thread.id(),
            self.message.id
        );
        // This command has killed it before the daemon was killed.
        let is_done = |dispatch: &&Arc<Dispatch>| match &dispatch.stop {
            Some(Stop::Kill { reason: known }) => *known == reason,
            _ => false,
        };
        let is_meant = |dispatch: &&Arc<Dispatch>| {
            dispatch.created.role == target
                && !dispatch.is_finished()
                && !self.thread.is_begun_after(&dispatch.id, &self.message.id)
        };
        let known = fleet.iter().rev().find(is_done);
        let of_role = || route::dispatches(self.thread, &fleet).find(is_meant);
        let dispatch = match known.or_else(of_role) {
            Some(dispatch) => dispatch.clone(),
            None if self.message.command.is_some() => self.own_to_kill(target, &fleet)?,
            None => self.found_to_kill(target)?,
        };
        let place = Path::new(dispatch.created.directory_of_work());
        let role = Some(dispatch.created.role.as_str());
        self.author.permit(self.daemon, Right::Kill, Some(place), role)?;
        let by = &self.author.user;
        let note = match kill(self.daemon, dispatch.id.as_str(), Some(reason), by).await? {
            Reply::Done { note: Some(note), .. } => format!(": {note}"),
            _ => String::new(),
        };
        let text = format!("Killed `{}`, {}{note}.", dispatch.created.role, dispatch.id);
        Ok(Done::says(text).about(&dispatch.id))
    }

    /// Finds a dispatch of the thread by the start of its id, for a coordinator: a text that an
    /// agent reads could make it kill any other dispatch.
    fn own_to_kill(&self, target: &str, fleet: &Fleet) -> Result<Arc<Dispatch>, WireError> {
        let mut found = route::dispatches(self.thread, fleet)
            .filter(|dispatch| dispatch.id.as_str().starts_with(target));
        match (found.next(), found.next()) {
            (Some(dispatch), None) => Ok(dispatch.clone()),
            (Some(_), Some(_)) => {
                let message = format!("several dispatches of this thread begin with `{target}`");
                Err(fault(ErrorCode::Ambiguous, &message, "give the whole id"))
            }
            (None, _) => {
                let message = format!("this thread has no agent `{target}`");
                Err(fault(ErrorCode::NotFound, &message, "name a dispatch of this thread"))
            }
        }
    }

    /// Finds a dispatch by its id. A person learns of no id that the person may not kill.
    fn found_to_kill(&self, target: &str) -> Result<Arc<Dispatch>, WireError> {
        let found = find(self.daemon, target);
        match self.author.permit(self.daemon, Right::Kill, None, None) {
            Ok(()) => found,
            Err(refusal) => match found {
                // The rights for its project and role decide.
                Ok(dispatch) => Ok(dispatch),
                Err(_) => Err(refusal),
            },
        }
    }

    async fn stop(&self) -> Result<Done, WireError> {
        self.permit(Right::Talk)?;
        let dispatch = self.present()?;
        let key = format!("stop-{}", self.message.id);
        let is_unheard =
            |prompt: &&Prompt| matches!(prompt.state, PromptState::Queued | PromptState::Sent);
        let key_of_turn = match &dispatch.phase {
            Phase::Working { turn: Turn::Running { key }, .. } => Some(key),
            _ => dispatch.prompts.iter().find(is_unheard).map(|prompt| &prompt.key),
        };
        // The turn that ran when the message was accepted has ended, perhaps without a daemon.
        let is_later =
            key_of_turn.is_some_and(|key| self.thread.is_prompted_after(key, &self.message.id));
        if is_later && !dispatch.interrupts.contains(&key) {
            let text = "Nothing to stop: that turn has ended, and a later message is answered now.";
            return Ok(Done::says(text).about(&dispatch.id));
        }
        let (id, by) = (dispatch.id.as_str(), &self.author.user);
        let text = match interrupt_as(self.daemon, id, by, key).await? {
            Reply::Done { note: Some(note), .. } => format!("Nothing to stop: {note}."),
            _ => format!("Stopped the turn of `{}`, {id}.", dispatch.created.role),
        };
        Ok(Done::says(text).about(&dispatch.id))
    }

    async fn answer(&self, text: &str) -> Result<Done, WireError> {
        self.permit(Right::Answer)?;
        let fleet = self.daemon.snapshot();
        // This command may have answered it before the daemon was killed.
        if let Some(known) = fleet.questions.answered_with(self.thread.id(), &self.message.id) {
            return Ok(answered(known));
        }
        let (first, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let open = fleet.questions.open_of(self.thread.id());
        let is_named = |question: &&&Arc<Question>| {
            let of_dispatch = question.dispatch.as_ref().map(DispatchId::as_str);
            first.len() >= 4
                && (question.id.starts_with(first)
                    || of_dispatch.is_some_and(|dispatch| dispatch.starts_with(first)))
        };
        let named = open.iter().find(is_named).filter(|_| !rest.trim().is_empty());
        let (question, said) = match (named, &open[..]) {
            (Some(question), _) => (question, rest.trim()),
            (None, [question]) => (question, text),
            (None, [_, _, ..]) => {
                let ids: Vec<_> = open.iter().map(|question| question.id.as_str()).collect();
                let message = format!("several questions are open: {}", ids.join(", "));
                let hint = "give the id of the question first: /answer QUESTION TEXT";
                return Err(fault(ErrorCode::Ambiguous, &message, hint));
            }
            (None, []) => return Err(self.nothing_asked(&fleet, first)),
        };
        self.give(&question.id, said).await
    }

    /// Returns the error for an answer without an open question. A question that is named says who
    /// was first.
    fn nothing_asked(&self, fleet: &Fleet, name: &str) -> WireError {
        let of_thread = |question: &&&Question| {
            name.len() >= 4 && question.is_in(self.thread.id()) && question.answered_by.is_some()
        };
        let found = fleet.questions.find(name).ok().map(|found| &**found);
        match found.as_ref().filter(of_thread) {
            Some(question) => questions::closed(question),
            None => {
                let message = "no agent of this thread waits for an answer";
                fault(ErrorCode::NothingAsked, message, "")
            }
        }
    }

    /// Gives the answer that a message is.
    async fn answering(&self, answering: &Answering) -> Result<Done, WireError> {
        let fleet = self.daemon.snapshot();
        if let Some(known) = fleet.questions.answered_with(self.thread.id(), &self.message.id) {
            return Ok(answered(known));
        }
        self.author.listed(self.daemon)?;
        self.permit(Right::Answer)?;
        let said = match &answering.answer.options[..] {
            [] => answering.answer.text.clone(),
            chosen => chosen.join(","),
        };
        self.give(&answering.question, &said).await
    }

    /// Answers a question. The key of the answer is the message's id.
    async fn give(&self, question: &str, said: &str) -> Result<Done, WireError> {
        let (asker, by) = (Asker::Operator, self.author.answered_by());
        let key = self.message.id.as_str();
        let given = questions::Given {
            id: question,
            request: None,
            said,
            arguments: &[],
            key,
            asker: &asker,
            by: &by,
        };
        questions::answer(self.daemon, given).await?;
        match self.daemon.snapshot().questions.get(question) {
            Some(known) => Ok(answered(known)),
            None => Ok(Done::says(format!("Answered question {question}."))),
        }
    }

    async fn model(&self, name: Option<&str>) -> Result<Done, WireError> {
        let Some(name) = name else {
            self.permit(Right::Talk)?;
            let dispatch = self.present()?;
            let model = dispatch.model.wanted.as_deref().or(dispatch.created.model.as_deref());
            let model = model.unwrap_or("the default of its CLI");
            let text = format!("`{}`, {}: {model}", dispatch.created.role, dispatch.id);
            return Ok(Done::says(text).about(&dispatch.id));
        };
        self.permit(Right::Set)?;
        let dispatch = self.present()?;
        let (id, key, by) = (dispatch.id.as_str(), &self.message.id, self.author.user.clone());
        let note = match set_model(self.daemon, id, key, name, by).await? {
            Reply::Done { note: Some(note), .. } => format!(": {note}"),
            _ => String::new(),
        };
        let text = format!("`{}`, {id}, uses the model {name}{note}.", dispatch.created.role);
        Ok(Done::says(text).about(&dispatch.id))
    }

    fn role(&self, name: Option<&str>) -> Result<Done, WireError> {
        let present = &self.thread.opened.role;
        let Some(name) = name else {
            self.permit(Right::Talk)?;
            return Ok(Done::says(format!("`{present}` answers in this thread.")));
        };
        self.permit(Right::Set)?;
        if name == present {
            return Ok(Done::says(format!("`{present}` answers in this thread already.")));
        }
        let template = template(self.daemon, self.thread)?;
        request::check(self.daemon, &Spawn { role: name.into(), model: None, ..template })?;
        let text = format!("`{name}` answers in this thread from the next message on.");
        let events = directed::given_to(self.thread, name, &self.author.user);
        Ok(Done { events, ..Done::says(text) })
    }

    fn set(&self, key: String, value: Option<String>) -> Result<Done, WireError> {
        if key == setting::VERBOSITY {
            self.permit(Right::Set)?;
            let by = &self.author.user;
            let (text, event) = setting::verbosity(self.thread, value.as_deref(), by)?;
            return Ok(Done { events: vec![event], ..Done::says(text) });
        }
        // A setting holds everywhere, so a right for one project or role is not enough.
        self.author.permit(self.daemon, Right::Set, None, None)?;
        let (by, adapter) = (self.author.user.clone(), self.author.adapter.clone());
        let changed = SettingChanged { key, value, by, adapter };
        let text = check_setting(self.daemon, &changed)?;
        Ok(Done { events: vec![Event::SettingChanged(Box::new(changed))], ..Done::says(text) })
    }

    /// Asks for the sign-off of a spec. The question has the id of this message.
    async fn sign_off(&self, path: &str) -> Result<Done, WireError> {
        self.permit(Right::Answer)?;
        let by = match &self.message.command {
            Some(_) => format!("{} for {}", self.role_of_command(), self.author.name),
            None => self.author.name.clone(),
        };
        let asked = (path, by.as_str(), self.message.id.as_str());
        let (id, path) = sign_off::request(self.daemon, self.thread, asked).await?;
        Ok(Done::says(format!("Question {id} asks for the sign-off of {path}.")))
    }

    /// Returns the role of the agent whose output has this command.
    fn role_of_command(&self) -> String {
        let key = self.message.key.as_deref().unwrap_or_default();
        let of = directed::commander(key).and_then(|id| archive::known(self.daemon, &id).ok()?);
        of.map_or_else(|| self.thread.opened.role.clone(), |known| known.created.role.clone())
    }

    /// Writes to a dispatch of the thread, for a coordinator.
    async fn message(&self, dispatch: &str, text: &str) -> Result<Done, WireError> {
        let found = find(self.daemon, dispatch)?;
        if found.created.thread() != Some(self.thread.id()) {
            let message = format!("dispatch {} is not of this thread", found.id);
            return Err(fault(ErrorCode::NotFound, &message, "name a dispatch of this thread"));
        }
        let place = Path::new(found.created.directory_of_work());
        let role = Some(found.created.role.as_str());
        self.author.permit(self.daemon, Right::Talk, Some(place), role)?;
        let key = prompt_key(self.thread.id(), &self.message.id);
        let further = Further { key: &key, text, cli_command: false };
        send(self.daemon, found.id.as_str(), further, &self.author.user, None).await?;
        let text = format!("Wrote to `{}`, {}.", found.created.role, found.id);
        Ok(Done::says(text).about(&found.id))
    }

    async fn cli(&self, text: &str) -> Result<Done, WireError> {
        self.permit(Right::Set)?;
        let dispatch = self.present()?;
        let key = prompt_key(self.thread.id(), &self.message.id);
        let further = Further { key: &key, text, cli_command: true };
        let (id, by) = (dispatch.id.as_str(), &self.author.user);
        send(self.daemon, id, further, by, None).await?;
        let text = format!("Gave the command to the CLI of `{}`, {id}.", dispatch.created.role);
        Ok(Done::says(text).about(&dispatch.id))
    }
}

/// Says what was answered.
fn answered(question: &Question) -> Done {
    let answer = question.answer.as_ref().map(Answer::describe).unwrap_or_default();
    let (id, of) = (&question.id, &question.asked_by);
    let done = Done::says(format!("Answered question {id} of {of}: {answer}"));
    match &question.dispatch {
        Some(dispatch) => done.about(dispatch),
        None => done,
    }
}
