//! `chat` on a terminal: the person types while the agent's text arrives.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::settings;
use crate::client::connect::unexpected;
use crate::client::interrupt;
use crate::render::{BOLD, DIM, RESET, YELLOW};
use crate::verbs::thread::chat::completion::{Assistant, LOCAL};
use crate::verbs::thread::chat::feed::{Fed, feed};
use crate::verbs::thread::chat::input::{self, Typed, too_long};
use crate::verbs::thread::chat::questions::{self, Answer};
use crate::verbs::thread::chat::screen::{Hold, Screen};
use crate::verbs::thread::chat::view::View;
use crate::verbs::thread::list::fetch;
use crate::verbs::thread::send::{author, new_key, send};
use muleteer_model::agent::role::Catalog;
use muleteer_model::conversation::TEXT_LIMIT;
use muleteer_model::conversation::command;
use muleteer_protocol::v1::{Reply, Request, ThreadInFull, ThreadSend};
use muleteer_supervisor::daemon::service::signals::AsyncSignals;
use rustix::process::Signal;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// The parts that may wait to be shown.
const FED: usize = 64;
/// The requests that may wait for the daemon. Then the chat reads no further line.
const MOST_WAITING: usize = 32;
/// A message that waits for less time is not worth a line.
const NEWS_AFTER: Duration = Duration::from_millis(700);
/// The most earlier messages in the history of the line editor.
const EARLIER: usize = 500;

/// A request of the person to the daemon.
#[derive(Debug)]
enum Asked {
    Message { key: String, text: String },
    Answer { key: String, answer: Answer },
    Interrupt { dispatch: String },
}

impl Asked {
    /// Returns the question that it answers.
    fn question(&self) -> Option<String> {
        match self {
            Self::Answer { answer, .. } => Some(answer.question().to_string()),
            Self::Message { .. } | Self::Interrupt { .. } => None,
        }
    }
}

/// Restores the terminal when the chat ends while the line editor reads.
struct Restored(Option<Termios>);

impl Restored {
    fn new() -> Self {
        Self(tcgetattr(io::stdin()).ok())
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        if let Some(termios) = &self.0 {
            let _ = tcsetattr(io::stdin(), OptionalActions::Drain, termios);
        }
    }
}

/// Runs the chat until the person leaves.
///
/// # Errors
/// When the thread or the terminal cannot be used.
pub async fn typed(thread: &str, history: u32, context: &Context) -> Result<Exit, Failure> {
    // Remarks would appear within the line that the person types.
    let mut quiet = context.clone();
    quiet.out.quiet = true;
    let shown = fetch(&quiet, thread).await?;
    let thread = shown.thread.id.clone();
    context.out.note(continues(&thread));
    let restored = Restored::new();
    let mut signals = interrupt::endings()?;
    let hold = Hold::default();
    let assistant = Assistant { roles: roles(&quiet, &shown.thread.project) };
    let (mut lines, printer) = input::start(assistant, &earlier(&shown), hold.clone())?;
    let screen = Screen::new(printer, hold, context.out.color_on_stdout())?;
    let (fed, mut parts) = mpsc::channel(FED);
    let feeding = feed(&quiet, &thread, history, fed);
    let chat = Chat::new(&quiet, &thread, &screen);
    let outcome = tokio::select! {
        outcome = chat.run(&mut lines, &mut parts, &mut signals) => outcome,
        // It ends only after a failure, which `parts` has.
        () = async { feeding.await; std::future::pending().await } => Ok(()),
    };
    screen.close().await;
    let is_unread = !lines.is_closed();
    drop(restored);
    if is_unread {
        // The line editor still reads, and the cursor is behind its prompt.
        drop(io::stdout().write_all(b"\x1b[?2004l\r\n"));
    }
    outcome?;
    context.out.note(continues(&thread));
    Ok(Exit::Done)
}

/// Returns how to come back to a thread.
pub fn continues(thread: &str) -> String {
    format!("thread {thread}; `muleteer chat --thread {thread}` continues it")
}

/// Returns the earlier messages of people, for the history of the line editor.
fn earlier(shown: &ThreadInFull) -> Vec<String> {
    let inbound = shown.messages.iter().filter(|message| message.direction == "in");
    let texts: Vec<_> = inbound.map(|message| message.text.clone()).collect();
    texts[texts.len().saturating_sub(EARLIER)..].to_vec()
}

fn roles(context: &Context, project: &str) -> Vec<String> {
    let sources = settings::role_sources(context, Some(Path::new(project))).unwrap_or_default();
    Catalog::new(&sources).roles().map(|role| role.name.clone()).collect()
}

type Sending<'a> = Pin<Box<dyn Future<Output = Result<Option<String>, Failure>> + 'a>>;

struct Chat<'a> {
    context: &'a Context,
    thread: &'a str,
    screen: &'a Screen,
    view: View,
    waiting: VecDeque<Asked>,
    /// Ctrl-C was pressed, and nothing else since.
    interrupted: bool,
    leaves: bool,
}

impl<'a> Chat<'a> {
    fn new(context: &'a Context, thread: &'a str, screen: &'a Screen) -> Self {
        Self {
            context,
            thread,
            screen,
            view: View::default(),
            waiting: VecDeque::new(),
            interrupted: false,
            leaves: false,
        }
    }

    async fn run(
        mut self,
        lines: &mut mpsc::Receiver<Typed>,
        parts: &mut mpsc::Receiver<Fed>,
        signals: &mut AsyncSignals,
    ) -> Result<(), Failure> {
        let mut sending: Option<Sending<'a>> = None;
        // The question whose answer is sent now.
        let mut answers: Option<String> = None;
        let mut news_at = None;
        loop {
            if sending.is_none() {
                let next = self.waiting.pop_front();
                answers = next.as_ref().and_then(Asked::question);
                sending = next.map(|asked| self.send(asked));
            }
            // The text that the person typed before leaving is sent first.
            if self.leaves && sending.is_none() {
                return Ok(());
            }
            if !self.view.has_news_of_waiting() {
                news_at = None;
            } else if news_at.is_none() {
                news_at = Some(Instant::now() + NEWS_AFTER);
            }
            let may_read = !self.leaves && self.waiting.len() < MOST_WAITING;
            tokio::select! {
                line = lines.recv(), if may_read => match line {
                    Some(Typed::Failed(failure)) => return Err(failure),
                    Some(typed) => self.typed(typed).await?,
                    None => self.leaves = true,
                },
                fed = parts.recv() => match fed {
                    Some(Fed::Failed(failure)) => return Err(failure),
                    Some(fed) => self.fed(fed).await,
                    None => return Ok(()),
                },
                sent = async {
                    match sending.as_mut() {
                        Some(sending) => sending.await,
                        None => std::future::pending().await,
                    }
                } => {
                    sending = None;
                    match sent {
                        Ok(note) => self.note(note).await,
                        Err(failure) => {
                            if let Some(question) = answers.take() {
                                self.view.not_answered(&question);
                            }
                            self.screen.show(lines_of(&failure)).await;
                        }
                    }
                }
                signal = signals.next() => match signal {
                    signal if signal == Signal::INT.as_raw() => self.interrupt().await,
                    _ => return Ok(()),
                },
                () = sleep_until(news_at.unwrap_or_else(Instant::now)), if news_at.is_some() => {
                    let line = self.view.waiting();
                    self.screen.show(line).await;
                }
            }
        }
    }

    async fn fed(&mut self, fed: Fed) {
        match fed {
            Fed::Part(part) => {
                let shown = self.view.part(part);
                match shown.bell {
                    true => self.screen.ring(shown.lines).await,
                    false => self.screen.show(shown.lines).await,
                }
            }
            Fed::Lost => {
                let line = "the daemon is gone; the agent continues. Connecting again …";
                self.screen.show([format!("  {YELLOW}{line}{RESET}")]).await;
            }
            Fed::Back => self.note(Some("connected again".into())).await,
            Fed::Failed(_) => {}
        }
    }

    async fn typed(&mut self, typed: Typed) -> Result<(), Failure> {
        let was_interrupted = std::mem::take(&mut self.interrupted);
        match typed {
            Typed::Text(text) if text.len() > TEXT_LIMIT => {
                self.screen.show(lines_of(&too_long())).await;
            }
            Typed::Text(text) => self.text(text)?,
            Typed::Help => self.screen.show(help()).await,
            Typed::Interrupt => {
                self.interrupted = was_interrupted;
                self.interrupt().await;
            }
            Typed::End => self.leaves = true,
            Typed::Failed(_) => {}
        }
        Ok(())
    }

    /// Takes a line: an answer to the oldest open question that it fits, or a message.
    fn text(&mut self, text: String) -> Result<(), Failure> {
        let questions: Vec<_> = self.view.questions().collect();
        let reason = text.strip_prefix("/answer ").map(str::trim).filter(|text| !text.is_empty());
        let answer = match (questions.first(), reason) {
            (Some(question), Some(reason)) => {
                Some(question.answer(reason).unwrap_or_else(|| question.with(reason.into())))
            }
            _ => questions.iter().find_map(|question| question.answer(&text)),
        };
        let key = new_key()?;
        self.waiting.push_back(match answer {
            Some(answer) => {
                self.view.answers(answer.question());
                Asked::Answer { key, answer }
            }
            None => {
                self.view.typed(&key);
                Asked::Message { key, text }
            }
        });
        Ok(())
    }

    /// Interrupts the agent's turn; a second Ctrl-C leaves.
    async fn interrupt(&mut self) {
        if std::mem::replace(&mut self.interrupted, true) {
            self.leaves = true;
            return;
        }
        let agent = self.view.agent();
        let text = match agent.is_at_work() {
            true => {
                self.waiting.push_front(Asked::Interrupt { dispatch: agent.dispatch.clone() });
                "interrupting the turn; press Ctrl-C again to leave"
            }
            false => "press Ctrl-C again, or Ctrl-D, to leave",
        };
        self.note(Some(text.into())).await;
    }

    async fn note(&self, text: Option<String>) {
        self.screen.show(text.map(|text| format!("  {DIM}{text}{RESET}"))).await;
    }

    /// Sends a request. Its key makes it the same request after a lost answer.
    fn send(&self, asked: Asked) -> Sending<'a> {
        let (context, thread) = (self.context, self.thread.to_string());
        Box::pin(async move {
            match asked {
                Asked::Message { key, text } => {
                    let name = author();
                    let files = vec![];
                    send(context, ThreadSend { thread, key, text, name, files }).await?;
                    Ok(None)
                }
                Asked::Answer { key, answer } => {
                    questions::send(context, answer, key).await.map(Some)
                }
                Asked::Interrupt { dispatch } => {
                    match context.ask(Request::Interrupt { id: dispatch }).await? {
                        Reply::Done { note, .. } => Ok(note),
                        other => Err(unexpected(&other)),
                    }
                }
            }
        })
    }
}

fn lines_of(failure: &Failure) -> Vec<String> {
    failure.text().lines().map(|line| format!("{YELLOW}{line}{RESET}")).collect()
}

fn help() -> Vec<String> {
    let local = LOCAL.iter().map(|(name, text)| (format!("/{name}"), *text));
    let others = command::all().filter(|one| LOCAL.iter().all(|(name, _)| *name != one.name));
    let others = others.map(|one| (one.usage.to_string(), one.purpose));
    let mut lines: Vec<_> = local
        .chain(others)
        .map(|(name, text)| format!("  {BOLD}{name:<28}{RESET} {text}"))
        .collect();
    lines.push(format!(
        "  {DIM}Tab completes; a backslash at the end goes on in the next line; Ctrl-C interrupts \
         the turn; Ctrl-D leaves{RESET}"
    ));
    lines
}
