//! Carries out what follows from questions by itself: their deadlines, and the effects of answers
//! to questions that are no requests of an agent's CLI. It reads the folded fleet, so a new daemon
//! goes on where the last one was killed.

use crate::conversation::{new_id, serve as threads};
use crate::daemon::context::Daemon;
use crate::daemon::owned_task::{own, survive};
use crate::dispatch::control::{close, send};
use crate::dispatch::error::is_passing;
use crate::dispatch::prompt_files::Further;
use crate::question::healing;
use crate::question::serve::{self, record};
use crate::question::waits;
use crate::question::{approved, confirmed, copies};
use crate::spec_run::begin::gate::{self, Applied};
use muleteer_model::conversation::command::confirm::Proposal;
use muleteer_model::conversation::event::Author;
use muleteer_model::conversation::route::OWN_KEY;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::dispatch::{Phase, Prompt, PromptState, answer_prompt};
use muleteer_model::event::Event;
use muleteer_model::question::event::{Kind, State};
use muleteer_model::question::{Question, step};
use muleteer_process::fault::point;
use muleteer_protocol::v1::{ThreadSend, WireError};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// The longest sleep until the next deadline, because the clock may be set and the machine may be
/// suspended.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// The most effects at the same time.
const MOST_EFFECTS: usize = 64;
/// The pause before an effect that could not be carried out is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// The result of an effect.
enum Done {
    /// The one who asked has the answer.
    Delivered,
    /// Nobody can take it.
    Undeliverable(String),
    /// It is on its way.
    NotYet,
    /// A call of the agent may take it.
    Kept,
}

/// Follows all questions until the daemon ends. Each effect has a task of its own, because an agent
/// that is slow to end must not delay the deadlines of other questions.
pub async fn watch(daemon: Arc<Daemon>) {
    let mut changes = daemon.fleet.subscribe();
    let (ended, mut ends) = mpsc::channel(MOST_EFFECTS);
    gate::reconcile(&daemon).await;
    let forgetful = daemon.clone();
    let _forgetting = own(async move { waits::forget_lost(&forgetful).await });
    let _removing = own(copies::watch(daemon.clone()));
    let mut effects = Effects { running: HashMap::new(), is_full: false, ended };
    loop {
        let fleet = changes.borrow_and_update().clone();
        let mut again = false;
        for question in fleet.questions.unsettled() {
            if let Some(event) = step::next(question, &fleet, jiff::Timestamp::now()) {
                again |= settle(&daemon, question, event).await.is_err();
            } else if matches!(question.state, State::Answered | State::Expired) {
                effects.begin(&daemon, &fleet, question);
            }
        }
        for dispatch in fleet.stalled_in_threads() {
            let id = new_id().to_string();
            if let Some(asked) = step::stall(&fleet, dispatch, id)
                && !healing::defers(&daemon, &fleet, dispatch)
            {
                again |= serve::ask(&daemon, &asked).await.is_err();
            }
        }
        let sleep = tokio::time::sleep(match again {
            true => PAUSE,
            false => until_deadline(&fleet),
        });
        tokio::pin!(sleep);
        // A question that has an effect under way changes with its dispatch.
        loop {
            tokio::select! {
                changed = changes.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                Some(end) = ends.recv() => if effects.end(end) { break },
                () = &mut sleep => break,
            }
        }
    }
}

/// The effects that are carried out now.
struct Effects {
    running: HashMap<String, Running>,
    /// An effect waits for the end of another one.
    is_full: bool,
    ended: mpsc::Sender<End>,
}

struct Running {
    _task: AbortOnDropHandle<()>,
    /// The sequence number of the newest record that its question may follow from.
    seen: u64,
    newest: u64,
}

/// The end of a task.
struct End {
    question: String,
    /// It could not be carried out, and the pause is over.
    again: bool,
}

impl Effects {
    /// Begins to carry an answer further, unless that is under way.
    fn begin(&mut self, daemon: &Arc<Daemon>, fleet: &Arc<Fleet>, question: &Arc<Question>) {
        if let Some(running) = self.running.get_mut(&question.id) {
            running.newest = fleet.seq;
            return;
        }
        if self.running.len() >= MOST_EFFECTS {
            self.is_full = true;
            return;
        }
        let (daemon, fleet, ended) = (daemon.clone(), fleet.clone(), self.ended.clone());
        let (id, seen) = (question.id.clone(), fleet.seq);
        let question = question.clone();
        let task = own(async move {
            let again = match survive(follow(&daemon, &fleet, &question)).await {
                Ok(again) => again,
                Err(panicked) => {
                    let what = format!("question {}", question.id);
                    daemon.note(Event::Fault { what, message: panicked.to_string() });
                    true
                }
            };
            if again {
                tokio::time::sleep(PAUSE).await;
            }
            let _ = ended.send(End { question: question.id.clone(), again }).await;
        });
        self.running.insert(id, Running { _task: task, seen, newest: seen });
    }

    /// Notes the end of a task. Returns whether the questions have to be looked at again.
    fn end(&mut self, end: End) -> bool {
        let ended = self.running.remove(&end.question);
        let is_stale = ended.is_some_and(|ended| ended.newest > ended.seen);
        std::mem::take(&mut self.is_full) || is_stale || end.again
    }
}

fn until_deadline(fleet: &Fleet) -> Duration {
    let left = step::next_deadline(fleet).map(|at| at.duration_since(jiff::Timestamp::now()));
    let left = left.map(|left| Duration::try_from(left).unwrap_or_default());
    left.unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP)
}

async fn settle(daemon: &Daemon, question: &Question, event: Event) -> Result<(), WireError> {
    let what = match &event {
        Event::QuestionState { state, .. } => state.as_str(),
        _ => "state",
    };
    record(daemon, &question.id, what, question.dispatch.as_ref(), event).await
}

/// Carries the answer to a question further. Returns whether it has to be tried again.
async fn follow(daemon: &Arc<Daemon>, fleet: &Fleet, question: &Question) -> bool {
    point("question.before_effect");
    let (state, reason) = match carry_out(daemon, fleet, question).await {
        Ok(Done::Delivered) => (State::Delivered, String::new()),
        Ok(Done::Undeliverable(reason)) => (State::Undeliverable, reason),
        Ok(Done::NotYet) => return false,
        Ok(Done::Kept) => return true,
        Err(error) if is_passing(&error) => return true,
        Err(error) => (State::Undeliverable, format!("{}: {}", error.code, error.message)),
    };
    point("question.after_effect");
    let event = Event::QuestionState { question: question.id.clone(), state, reason };
    settle(daemon, question, event).await.is_err()
}

async fn carry_out(
    daemon: &Arc<Daemon>,
    fleet: &Fleet,
    question: &Question,
) -> Result<Done, WireError> {
    match question.kind {
        Kind::Question | Kind::Permission => to_agent(daemon, fleet, question).await,
        Kind::Stall => after_stall(daemon, fleet, question).await,
        Kind::Approval if let Some(proposal) = Proposal::of(question) => {
            confirmed::carry_out(daemon, question, proposal).await?;
            Ok(Done::Delivered)
        }
        Kind::Approval | Kind::Plan => match gate::apply(daemon, question).await? {
            Applied::Done => Ok(Done::Delivered),
            Applied::Impossible(reason) => Ok(Done::Undeliverable(reason)),
        },
        Kind::SignOff => Ok(match approved::carry_out(daemon, question).await? {
            None => Done::Delivered,
            Some(reason) => Done::Undeliverable(reason),
        }),
        Kind::Newer => Ok(Done::NotYet),
    }
}

/// Sends the answer to the agent as a prompt. The key of the prompt follows from the question, so a
/// repeated delivery is no second one.
async fn to_agent(
    daemon: &Arc<Daemon>,
    fleet: &Fleet,
    question: &Question,
) -> Result<Done, WireError> {
    let Some(id) = &question.dispatch else { return Ok(Done::Delivered) };
    let key = answer_prompt(id, &question.id);
    let has = |prompt: &Prompt| match prompt.state {
        PromptState::Taken | PromptState::Done | PromptState::Superseded => true,
        PromptState::Sent => prompt.written,
        PromptState::Queued
        | PromptState::Withdrawn
        | PromptState::Returned
        | PromptState::Doubtful => false,
    };
    let prompt = fleet.get(id).and_then(|dispatch| dispatch.prompt(&key));
    match prompt {
        Some(prompt) if has(prompt) => return Ok(Done::Delivered),
        Some(prompt) if prompt.state == PromptState::Withdrawn => {
            return Ok(Done::Undeliverable("its agent was killed".into()));
        }
        Some(prompt) if prompt.state == PromptState::Returned => {
            return Ok(Done::Undeliverable("its agent ended before it got the answer".into()));
        }
        Some(prompt) if prompt.state == PromptState::Doubtful => {
            return Ok(Done::Undeliverable("nobody can tell whether its agent got it".into()));
        }
        Some(_) => return Ok(Done::NotYet),
        None => {}
    }
    let asker = fleet.get(id);
    let had_call = asker.is_some_and(|dispatch| matches!(dispatch.phase, Phase::Working { .. }));
    // A process that is ended after the hold returns no answer from its call.
    let is_held = asker.is_some_and(|dispatch| dispatch.mcp.held.contains(&question.id));
    if !is_held && daemon.waiters.expects(&question.id, had_call) {
        return Ok(Done::Kept);
    }
    // A call may have taken it since.
    if daemon.snapshot().questions.get(&question.id).is_none_or(|now| !now.is_unsettled()) {
        return Ok(Done::NotYet);
    }
    let answer = question.answer.as_ref().map(|answer| answer.told()).unwrap_or_default();
    let text = format!("You asked: {}\n\nThe answer: {answer}", question.text.trim());
    let further = Further { key: &key, text: &text, cli_command: false };
    let by = question.answered_by.as_ref().map(ToString::to_string).unwrap_or_default();
    send(daemon, id.as_str(), further, &by, None).await?;
    Ok(Done::NotYet)
}

/// Respawns, abandons or leaves a stalled dispatch of a thread.
async fn after_stall(
    daemon: &Arc<Daemon>,
    fleet: &Fleet,
    question: &Question,
) -> Result<Done, WireError> {
    let (Some(answer), Some(dispatch), Some(thread)) =
        (&question.answer, &question.dispatch, &question.thread)
    else {
        return Ok(Done::Delivered);
    };
    let by = question.answered_by.as_ref().map(ToString::to_string).unwrap_or_default();
    if answer.is(step::LEAVE) {
        return Ok(Done::Delivered);
    }
    // `abandon` closes it; a respawn gives it up first, so that the message begins another agent.
    if fleet.get(dispatch).is_some_and(|dispatch| !dispatch.was_killed_for_good()) {
        close(daemon, dispatch.as_str(), &by).await?;
    }
    if answer.is(step::RESPAWN) {
        let sent = ThreadSend {
            thread: thread.clone(),
            key: format!("{OWN_KEY}{}", question.id),
            text: "The agent stalled and was ended. Continue its work from here.".into(),
            ..ThreadSend::default()
        };
        // A person's answer led to it, but no person wrote this text.
        threads::send_as(daemon, &sent, Author::muleteer()).await?;
    }
    Ok(Done::Delivered)
}
