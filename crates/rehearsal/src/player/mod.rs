//! Plays a scenario: takes prompts, executes their steps, prints the events.

mod inbox;
mod misbehave;
mod session_file;
mod work;

use crate::Vars;
use crate::player::inbox::{Inbox, Mail};
use crate::player::session_file::{Keep, KeepError};
use crate::scenario::{Scenario, Step};
use crate::session::{Session, Taken};
use crate::step::{self, Act, Noise, Outcome, Plan};
use muleteer_backends::rehearsal::wire::Input;
use muleteer_model::agent::event::{AgentEvent, TEXT_LIMIT, TurnError, TurnResult, cut};
use muleteer_model::config::Span;
use muleteer_model::text::error_chain::chain;
use muleteer_process::clock;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

pub use misbehave::linger;

/// The model's name in the agent's events if neither the user nor the scenario gives one.
pub const DEFAULT_MODEL: &str = "rehearsal";

/// The maximum output of a command that becomes part of its result.
const OUTPUT_LIMIT: usize = 64 * 1024;

/// The maximum length of a command's name in events and errors.
const NAME_LIMIT: usize = 200;

/// How long to wait for the last output of an exited command: a child that it left behind may hold
/// the pipe open.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// The scenario to play, with its settings.
#[derive(Debug)]
pub struct Part {
    pub scenario: Scenario,
    pub model: String,
    pub vars: Vars,
    /// The folder in which sessions are stored, if any.
    pub folder: Option<PathBuf>,
    pub resume: Option<String>,
    pub session_id: Option<String>,
}

/// The reason why playing ends.
#[derive(Debug, thiserror::Error)]
enum End {
    /// The reader of our stdout has closed it.
    #[error("no listener")]
    Unheard(#[from] io::Error),
    #[error(transparent)]
    Keep(#[from] KeepError),
    #[error("exit")]
    Exit(u8),
}

/// Plays until stdin ends, the scenario exits, or the reader of stdout is gone.
pub fn play(part: Part) -> ExitCode {
    match Player::begin(part).and_then(Player::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(End::Exit(code)) => ExitCode::from(code),
        Err(End::Unheard(_)) => ExitCode::FAILURE,
        Err(End::Keep(error)) => {
            eprintln!("{}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

struct Player {
    scenario: Scenario,
    model: String,
    vars: Vars,
    keep: Keep,
    session: Session,
    inbox: Inbox,
    prompts: VecDeque<(Option<String>, String)>,
    closed: bool,
    interrupted: bool,
    runs: u64,
}

/// The outcome of a step.
enum Done {
    Well(Outcome),
    /// The turn cannot continue, with the reason.
    Badly(Outcome, String),
    Interrupted,
    Turn(Box<TurnResult>),
    Exit(i32),
}

impl Player {
    fn begin(part: Part) -> Result<Self, End> {
        let folder = part.folder.as_deref();
        let opened = match &part.resume {
            Some(id) => Keep::resume(folder, id),
            None => Keep::create(folder, &part.session_id.unwrap_or_else(random_id)),
        };
        let (keep, session) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                // As a real CLI does, print a result with the error, and exit with 1.
                print(&AgentEvent::Result(TurnResult {
                    ok: false,
                    error: Some(TurnError::Other),
                    session_id: part.resume,
                    text: Some(chain(&error)),
                    ..TurnResult::default()
                }))?;
                return Err(error.into());
            }
        };
        let mut vars = part.vars;
        let cwd = std::env::current_dir()?.to_string_lossy().into_owned();
        vars.set("cwd", cwd.clone());
        vars.set("session", session.session_id.clone());
        vars.set("model", part.model.clone());
        vars.set("prompt", "");
        vars.set("turn", "0");
        for (name, value) in &part.scenario.vars {
            match vars.expand(value) {
                Ok(value) => vars.set(name, value),
                Err(error) => {
                    eprintln!("vars.{name}: {error}");
                    return Err(End::Exit(2));
                }
            }
        }
        print(&AgentEvent::Session {
            model: Some(part.model.clone()),
            cwd: Some(cwd),
            session_id: Some(session.session_id.clone()),
        })?;
        Ok(Self {
            scenario: part.scenario,
            model: part.model,
            vars,
            keep,
            session,
            inbox: Inbox::open(),
            prompts: VecDeque::new(),
            closed: false,
            interrupted: false,
            runs: 0,
        })
    }

    fn run(mut self) -> Result<(), End> {
        loop {
            let Some((key, text)) = self.prompts.pop_front() else {
                if self.closed {
                    return Ok(());
                }
                if let Some(mail) = self.inbox.next(None) {
                    self.sort(mail);
                }
                continue;
            };
            // An interrupt that arrived between turns has no effect.
            self.interrupted = false;
            let taken = self.session.take(&self.scenario, &self.vars, key.as_deref(), &text);
            // The session is saved before the receipt is printed: a receipt promises that a resumed
            // session knows the prompt.
            self.keep.save(&self.session)?;
            let repeated = taken == Taken::Known;
            print(&AgentEvent::Prompt { text: cut(&text, TEXT_LIMIT), key, repeated })?;
            if !repeated {
                self.turn()?;
            }
        }
    }

    fn turn(&mut self) -> Result<(), End> {
        if let Some(open) = &self.session.open {
            self.vars.set("prompt", open.prompt.clone());
            self.vars.set("turn", open.number.to_string());
        }
        let result = loop {
            while let Some(mail) = self.inbox.pending() {
                self.sort(mail);
            }
            if self.interrupted {
                break step::interrupted();
            }
            let Some(step) = self.session.next(&self.scenario).cloned() else {
                break step::silent_end();
            };
            let plan = match step::plan(&step, &self.step_id(), &self.model, &self.vars) {
                Ok(plan) => plan,
                Err(error) => break step::broken(&error.to_string()),
            };
            if let Some(result) = self.step(&step, &plan)? {
                break result;
            }
        };
        // The result is printed before it is forgotten: an agent that dies in between prints it
        // again when it is resumed.
        let session_id = Some(self.session.session_id.clone());
        print(&AgentEvent::Result(TurnResult { session_id, ..result }))?;
        self.session.turn_over();
        self.keep.save(&self.session)?;
        Ok(())
    }

    /// Executes one step; returns a result if the step ends the turn.
    fn step(&mut self, step: &Step, plan: &Plan) -> Result<Option<TurnResult>, End> {
        if let Step::Crash(crash) = step
            && crash.once
        {
            self.done()?;
        }
        for event in &plan.before {
            print(event)?;
        }
        match self.act(plan)? {
            Done::Well(outcome) => {
                self.done()?;
                for event in step::report(plan, &outcome) {
                    print(&event)?;
                }
                Ok(None)
            }
            Done::Badly(outcome, why) => {
                for event in step::report(plan, &outcome) {
                    print(&event)?;
                }
                Ok(Some(step::broken(&why)))
            }
            Done::Interrupted => {
                let outcome =
                    Outcome { ok: false, text: "interrupted".to_string(), exit_code: None };
                if plan.call.is_some() {
                    for event in step::report(plan, &outcome) {
                        print(&event)?;
                    }
                }
                Ok(Some(step::interrupted()))
            }
            Done::Turn(result) => Ok(Some(*result)),
            Done::Exit(code) => {
                self.done()?;
                Err(End::Exit(u8::try_from(code & 0xff).unwrap_or(1)))
            }
        }
    }

    fn done(&mut self) -> Result<(), End> {
        self.session.step_done(&self.scenario);
        Ok(self.keep.save(&self.session)?)
    }

    fn act(&mut self, plan: &Plan) -> Result<Done, End> {
        let well = |text: String| Done::Well(Outcome { ok: true, text, exit_code: None });
        let told = |done: io::Result<String>| match done {
            Ok(text) => well(text),
            Err(error) => badly(error.to_string(), None, error.to_string()),
        };
        Ok(match &plan.act {
            Act::Nothing => well(String::new()),
            Act::Write { path, text, append } => told(
                work::write(path, text, *append)
                    .map_err(|error| io::Error::other(format!("{path}: {error}"))),
            ),
            Act::Run { command, may_fail, timeout } => {
                self.command(plan, command, command, *may_fail, *timeout)?
            }
            Act::Commit { message } => {
                self.vars.set("message", message.clone());
                self.command(plan, work::COMMIT, "git commit", false, None)?
            }
            Act::Wait { span, deaf } => {
                if self.wait(span.map(|span| clock::awake() + span), *deaf) {
                    Done::Interrupted
                } else {
                    well(String::new())
                }
            }
            Act::Ask { id, patience, answered } => self.ask(id, *patience, answered)?,
            Act::Rounds { rounds, every } => {
                for round in rounds {
                    round.iter().try_for_each(print)?;
                    if self.wait(Some(clock::awake() + *every), false) {
                        return Ok(Done::Interrupted);
                    }
                }
                well(String::new())
            }
            Act::Noise(noise) => self.noise(noise)?,
            Act::Complain(line) => {
                // A closed stderr must not end the scenario.
                let _ = writeln!(io::stderr(), "{line}");
                well(String::new())
            }
            Act::Crash { code, signal } => misbehave::crash(*code, signal.as_deref()),
            Act::IgnoreTerm => told(misbehave::ignore_term().map(|()| String::new())),
            Act::Leak(life) => told(misbehave::leak(*life).map(|pid| pid.to_string())),
            Act::EndTurn(result) => Done::Turn(result.clone()),
            Act::Exit(code) => Done::Exit(*code),
        })
    }

    /// Waits until the deadline, and returns true if an interrupt came. Without a deadline only an
    /// interrupt ends the wait.
    fn wait(&mut self, deadline: Option<Duration>, deaf: bool) -> bool {
        while let Some(mail) = self.inbox.next(deadline) {
            self.sort(mail);
            if self.interrupted && !deaf {
                return true;
            }
        }
        self.interrupted && !deaf
    }

    /// Runs `command`; events and errors call it `name`.
    fn command(
        &mut self,
        plan: &Plan,
        command: &str,
        name: &str,
        may_fail: bool,
        timeout: Option<Duration>,
    ) -> Result<Done, End> {
        let name = cut(name.trim().lines().next().unwrap_or_default(), NAME_LIMIT);
        self.runs += 1;
        let run = self.runs;
        let running = match work::start(&self.inbox, run, command, &self.vars) {
            Ok(running) => running,
            Err(error) => return Ok(badly(error.to_string(), None, format!("`{name}`: {error}"))),
        };
        let mut output = Vec::new();
        let mut deadline = timeout.map(|timeout| clock::awake() + timeout);
        let mut ended = None;
        let mut streams = 2;
        loop {
            if let (Some(status), 0) = (ended, streams) {
                return Ok(outcome(&output, status, may_fail, &name));
            }
            match self.inbox.next(deadline) {
                Some(Mail::Output { run: of, bytes }) if of == run && bytes.is_empty() => {
                    streams -= 1
                }
                Some(Mail::Output { run: of, bytes }) if of == run => {
                    if let Some(id) = &plan.call {
                        print(&AgentEvent::ToolOutput {
                            id: id.clone(),
                            bytes: bytes.len() as u64,
                        })?;
                    }
                    let room = OUTPUT_LIMIT.saturating_sub(output.len());
                    output.extend_from_slice(&bytes[..bytes.len().min(room)]);
                }
                Some(Mail::Exited { run: of, status }) if of == run => {
                    ended = Some(status);
                    deadline = Some(clock::awake() + LAST_WORDS);
                }
                Some(mail) => self.sort(mail),
                None => match ended {
                    Some(status) => return Ok(outcome(&output, status, may_fail, &name)),
                    None => {
                        running.end();
                        let printed = String::from_utf8_lossy(&output);
                        let text = format!("{printed}\ntimed out");
                        if may_fail {
                            return Ok(Done::Well(Outcome { ok: false, text, exit_code: None }));
                        }
                        let why = format!(
                            "`{name}` timed out after {}",
                            Span(timeout.unwrap_or_default())
                        );
                        return Ok(badly(text, None, reason(&why, &printed)));
                    }
                },
            }
            if self.interrupted {
                running.end();
                return Ok(Done::Interrupted);
            }
        }
    }

    fn ask(
        &mut self,
        id: &str,
        patience: Option<Duration>,
        answered: &AgentEvent,
    ) -> Result<Done, End> {
        let deadline = patience.map(|patience| clock::awake() + patience);
        // After the end of stdin nobody can answer.
        while !self.closed {
            let Some(mail) = self.inbox.next(deadline) else { break };
            match mail {
                Mail::Input(
                    Input::PermissionAnswer { id: to, .. } | Input::Answer { id: to, .. },
                ) if to == id || to.is_empty() => {
                    print(answered)?;
                    break;
                }
                mail => self.sort(mail),
            }
            if self.interrupted {
                return Ok(Done::Interrupted);
            }
            // A further prompt counts as an answer to a question, because people answer that way.
            if matches!(answered, AgentEvent::Answer { .. }) && !self.prompts.is_empty() {
                print(answered)?;
                break;
            }
        }
        Ok(Done::Well(Outcome { ok: true, ..Outcome::default() }))
    }

    fn noise(&mut self, noise: &Noise) -> Result<Done, End> {
        let mut stdout = io::stdout().lock();
        for piece in noise.pieces() {
            stdout.write_all(&piece)?;
            while let Some(mail) = self.inbox.pending() {
                self.sort(mail);
            }
            if self.interrupted {
                // The next output must begin on its own line.
                stdout.write_all(b"\n")?;
                stdout.flush()?;
                return Ok(Done::Interrupted);
            }
        }
        stdout.flush()?;
        Ok(Done::Well(Outcome { ok: true, ..Outcome::default() }))
    }

    /// Stores a message that arrived while the player waited for something else.
    fn sort(&mut self, mail: Mail) {
        match mail {
            Mail::Input(Input::Prompt { key, text }) => self.prompts.push_back((key, text)),
            Mail::Input(Input::Interrupt) => self.interrupted = true,
            Mail::Closed => self.closed = true,
            Mail::Input(_) | Mail::Output { .. } | Mail::Exited { .. } => {}
        }
    }

    fn step_id(&self) -> String {
        self.session
            .open
            .as_ref()
            .map(|open| format!("call-{}-{}", open.number, open.done + 1))
            .unwrap_or_default()
    }
}

fn badly(text: String, exit_code: Option<i64>, why: String) -> Done {
    Done::Badly(Outcome { ok: false, text, exit_code }, why)
}

/// Combines an error with the output that was printed.
fn reason(what: &str, printed: &str) -> String {
    format!("{what}\n{}", printed.trim_end()).trim_end().to_string()
}

fn outcome(output: &[u8], status: Option<ExitStatus>, may_fail: bool, name: &str) -> Done {
    let ok = status.is_some_and(|status| status.success());
    let exit_code = status.and_then(|status| status.code()).map(i64::from);
    let text = String::from_utf8_lossy(output).into_owned();
    if ok || may_fail {
        return Done::Well(Outcome { ok, text, exit_code });
    }
    let how = match (exit_code, status.and_then(|status| status.signal())) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "its end is unknown".into(),
    };
    let why = reason(&format!("`{name}`: {how}"), &text);
    badly(text, exit_code, why)
}

fn print(event: &AgentEvent) -> io::Result<()> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(&line)?;
    stdout.flush()
}

/// Returns a UUID of version 4, the form in which real CLIs name their sessions.
fn random_id() -> String {
    let mut bytes = [0; 16];
    if getrandom::fill(&mut bytes).is_err() {
        // There is no randomness this early after boot, so the id is made from the pid and the
        // time.
        bytes[..4].copy_from_slice(&std::process::id().to_be_bytes());
        bytes[8..].copy_from_slice(&clock::wall_ms().to_be_bytes());
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
