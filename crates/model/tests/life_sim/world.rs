//! The world outside of the daemon: a shim, its spool, and a CLI that deduplicates prompts as
//! Claude does. A prompt that was recorded and not answered runs; any repetition after that is only
//! acknowledged.

use crate::rng::Rng;
use muleteer_model::agent::ask::Ask;
use muleteer_model::agent::event::{AgentEvent, ModelUsage, TurnError, TurnResult};
use muleteer_model::dispatch::Exit;
use muleteer_model::event::ExitCause;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Flavour {
    /// Ends with its one prompt; its exit is its result.
    OneShot,
    /// Reports the total use of its process.
    Cumulative,
    /// Reports the use of each turn; its totals continue those of the resumed session.
    PerTurn,
    /// Ends with each turn, while its session continues. It repeats a prompt that it gets again,
    /// names no prompt, and reports the total use of the session.
    ByTurns,
}

#[derive(Debug, Clone)]
pub enum Rec {
    Spawned,
    CannotStart,
    Blocked(bool),
    /// The prompt of this key was written to the agent's stdin.
    Written(String),
    Line(Vec<AgentEvent>),
    Exited(Exit),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Stdin {
    Prompt(String),
    Interrupt,
    Answer(String),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    Write { idem: String, said: Option<Stdin>, close: bool },
    Interrupt { idem: String },
    Terminate { idem: String },
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Progress {
    Recorded,
    Running,
    Over,
}

#[derive(Debug)]
struct Shim {
    epoch: u32,
    resume: Option<String>,
    released: bool,
    idem: BTreeSet<String>,
    exit: Option<(Option<i32>, ExitCause)>,
}

#[derive(Debug)]
struct Agent {
    session: String,
    announced: bool,
    stdin: VecDeque<Stdin>,
    closed: bool,
    turn: Option<(String, u32)>,
    /// The request whose answer it waits for.
    asks: Option<String>,
    failed: bool,
    /// It does not exit when its stdin ends.
    hangs: bool,
    used: f64,
}

#[derive(Debug)]
pub struct World {
    pub flavour: Flavour,
    pub spools: BTreeMap<u32, Vec<Rec>>,
    pub sessions: BTreeMap<String, BTreeMap<String, Progress>>,
    totals: BTreeMap<String, f64>,
    /// The part of these totals that a shim has spooled.
    told: BTreeMap<String, f64>,
    /// The cost that the CLI has reported, as far as a shim has spooled it.
    pub charged: f64,
    /// The sessions in which each prompt was worked on.
    pub worked: BTreeMap<String, Vec<String>>,
    /// The number of requests so far; `heard` has those whose answer the agent received.
    pub asked: u64,
    pub heard: BTreeSet<String>,
    /// The newest epoch for which a shim was started.
    pub tried: u32,
    /// The processes that a dead shim left cannot be terminated.
    pub stubborn: bool,
    /// The number of faults that are still allowed.
    pub chaos: u32,
    shim: Option<Shim>,
    agent: Option<Agent>,
}

pub enum Standing {
    Alive,
    Other,
    Dead,
    Never,
}

impl World {
    pub fn new(flavour: Flavour, chaos: u32) -> Self {
        Self {
            flavour,
            spools: BTreeMap::new(),
            sessions: BTreeMap::new(),
            totals: BTreeMap::new(),
            told: BTreeMap::new(),
            charged: 0.0,
            worked: BTreeMap::new(),
            asked: 0,
            heard: BTreeSet::new(),
            tried: 0,
            stubborn: false,
            chaos,
            shim: None,
            agent: None,
        }
    }

    pub fn fault(&mut self, rng: &mut Rng, one_in: u64) -> bool {
        let hit = self.chaos > 0 && rng.one_in(one_in);
        self.chaos -= u32::from(hit);
        hit
    }

    pub fn stand(&self, epoch: u32) -> Standing {
        match &self.shim {
            Some(shim) if shim.epoch == epoch => Standing::Alive,
            Some(_) => Standing::Other,
            None if self.tried >= epoch => Standing::Dead,
            None => Standing::Never,
        }
    }

    pub fn begin(&mut self, epoch: u32, resume: Option<String>) {
        assert!(self.shim.is_none() && self.agent.is_none(), "a second agent would live");
        self.tried = epoch;
        self.spools.insert(epoch, vec![]);
        self.shim =
            Some(Shim { epoch, resume, released: false, idem: BTreeSet::new(), exit: None });
    }

    /// Terminates the processes that dead shims left. Returns how many, and whether none is left.
    pub fn sweep(&mut self) -> (u32, bool) {
        assert!(self.shim.is_none(), "a sweep beside a living shim");
        if self.stubborn && self.agent.is_some() {
            return (0, false);
        }
        (u32::from(self.agent.take().is_some()), true)
    }

    pub fn command(&mut self, command: Command) {
        let Some(shim) = &mut self.shim else { return };
        let (Command::Write { idem, .. }
        | Command::Interrupt { idem }
        | Command::Terminate { idem }) = &command;
        if !shim.idem.insert(idem.clone()) {
            return;
        }
        let Some(agent) = &mut self.agent else { return };
        match command {
            Command::Write { said, close, .. } => {
                if !agent.closed {
                    agent.closed |= close;
                    agent.stdin.extend(said.clone());
                    if let Some(Stdin::Prompt(key)) = said {
                        self.spool(Rec::Written(key));
                    }
                }
            }
            Command::Interrupt { .. } => agent.stdin.push_back(Stdin::Interrupt),
            Command::Terminate { .. } => self.end(None, ExitCause::Terminated),
        }
    }

    fn end(&mut self, code: Option<i32>, cause: ExitCause) {
        self.agent = None;
        if let Some(shim) = &mut self.shim {
            shim.exit = Some((code, cause));
        }
    }

    fn spool(&mut self, record: Rec) -> bool {
        let Some(shim) = &self.shim else { return false };
        self.spools.entry(shim.epoch).or_default().push(record);
        true
    }

    fn say(&mut self, events: Vec<AgentEvent>) -> bool {
        self.spool(Rec::Line(events))
    }

    /// Performs a random step; returns `false` if none was possible.
    pub fn step(&mut self, rng: &mut Rng) -> bool {
        if self.shim.is_some() && self.fault(rng, 40) {
            self.shim = None;
            // A process that PDEATHSIG missed runs for a while.
            if rng.one_in(3) {
                self.stubborn = rng.one_in(3);
            } else {
                self.agent = None;
            }
            return true;
        }
        if let Some(shim) = &mut self.shim {
            if !shim.released {
                return self.release(rng);
            }
            if let Some((code, cause)) = shim.exit.take() {
                self.spool(Rec::Exited(Exit {
                    code,
                    signal: None,
                    cause,
                    stderr_tail: String::new(),
                    left: vec![],
                }));
                self.shim = None;
                return true;
            }
        }
        if self.agent.is_none() {
            return false;
        }
        if self.shim.is_some() && self.fault(rng, 30) {
            match rng.below(8) {
                0 => self.end(Some(143), ExitCause::LeaseExpired),
                1 => self.end(None, ExitCause::ShimPolicy),
                2 => drop(self.spool(Rec::Blocked(true)) && self.spool(Rec::Blocked(false))),
                3 => self.end(Some(0), ExitCause::Exited),
                _ => self.end(Some(1), ExitCause::Exited),
            }
            return true;
        }
        if self.flavour == Flavour::OneShot {
            self.step_one_shot(rng)
        } else {
            self.step_session(rng)
        }
    }

    fn release(&mut self, rng: &mut Rng) -> bool {
        if self.fault(rng, 30) {
            self.spool(Rec::CannotStart);
            self.shim = None;
            return true;
        }
        let Some(shim) = &mut self.shim else { return false };
        shim.released = true;
        let (epoch, resume) = (shim.epoch, shim.resume.clone());
        self.spool(Rec::Spawned);
        let session = resume.unwrap_or_else(|| format!("s{epoch}"));
        self.sessions.entry(session.clone()).or_default();
        self.agent = Some(Agent {
            session,
            announced: false,
            stdin: VecDeque::new(),
            closed: false,
            turn: None,
            asks: None,
            failed: false,
            hangs: false,
            used: 0.0,
        });
        true
    }

    fn step_one_shot(&mut self, rng: &mut Rng) -> bool {
        let Some(agent) = &mut self.agent else { return false };
        match (agent.turn.is_some(), agent.stdin.pop_front()) {
            (false, Some(Stdin::Prompt(key))) => {
                agent.turn = Some((key.clone(), 1));
                self.work(&key);
                true
            }
            (_, Some(Stdin::Answer(_))) => unreachable!("it asks nothing"),
            (_, Some(Stdin::Interrupt)) => {
                self.end(Some(130), ExitCause::Exited);
                true
            }
            (true, _) => {
                let structured = match rng.below(4) {
                    0 => None,
                    1 => Some(json!({"status": "done"})),
                    _ => Some(json!({"status": "success", "summary": "ok"})),
                };
                if structured.is_some() {
                    self.result(TurnResult { ok: true, structured, ..TurnResult::default() }, 0.25);
                }
                self.end(Some(i32::from(rng.one_in(4))), ExitCause::Exited);
                true
            }
            (false, None) => agent.closed,
        }
    }

    fn step_session(&mut self, rng: &mut Rng) -> bool {
        let Some(agent) = &mut self.agent else { return false };
        match agent.turn.clone() {
            Some((key, left)) => {
                if matches!(agent.stdin.front(), Some(Stdin::Interrupt)) {
                    agent.stdin.pop_front();
                    if self.flavour == Flavour::ByTurns {
                        self.end(Some(1), ExitCause::Exited);
                        return true;
                    }
                    agent.turn = None;
                    if let Some(id) = agent.asks.take() {
                        self.say(vec![AgentEvent::PermissionAnswer { id }]);
                    }
                    self.progress(&key, Progress::Over);
                    let error = Some(TurnError::Interrupted);
                    self.result(TurnResult { ok: false, error, ..TurnResult::default() }, 0.25);
                    return true;
                }
                if let Some(Stdin::Answer(id)) = agent.stdin.front().cloned() {
                    agent.stdin.pop_front();
                    assert!(self.heard.insert(id.clone()), "the answer to {id} was given twice");
                    agent.asks.take_if(|asked| *asked == id);
                    return true;
                }
                assert!(agent.stdin.is_empty(), "a prompt was sent into a running turn");
                if agent.asks.is_some() {
                    return false;
                }
                if left > 0 && self.flavour != Flavour::ByTurns && rng.one_in(12) {
                    self.asked += 1;
                    let id = format!("ask-{}", self.asked);
                    agent.asks = Some(id.clone());
                    let ask = Box::new(Ask::tool("Bash", json!({"command": "ls"})));
                    self.say(vec![AgentEvent::Permission { id, ask }]);
                    return true;
                }
                if left > 0 {
                    agent.turn = Some((key.clone(), left - 1));
                    self.progress(&key, Progress::Running);
                    let text = AgentEvent::Text { chars: 1, text: "x".into() };
                    let call = AgentEvent::ToolCall {
                        id: "t".into(),
                        name: "Bash".into(),
                        input: json!({"command": "ls"}),
                    };
                    self.say(if rng.one_in(2) { vec![text] } else { vec![text, call] });
                    return true;
                }
                self.finish(&key, rng)
            }
            None => match agent.stdin.pop_front() {
                Some(Stdin::Prompt(key)) => self.take(&key, rng),
                // An interrupt or an answer that arrives too late is ignored.
                Some(Stdin::Interrupt | Stdin::Answer(_)) => true,
                None if agent.hangs => false,
                None if agent.closed => {
                    let code = i32::from(agent.failed);
                    if self.fault(rng, 12) {
                        self.agent.iter_mut().for_each(|agent| agent.hangs = true);
                        return true;
                    }
                    self.end(Some(code), ExitCause::Exited);
                    true
                }
                None => false,
            },
        }
    }

    fn take(&mut self, key: &str, rng: &mut Rng) -> bool {
        let Some(agent) = &mut self.agent else { return false };
        let session = agent.session.clone();
        if !std::mem::replace(&mut agent.announced, true) {
            self.say(vec![AgentEvent::Session {
                model: None,
                cwd: None,
                session_id: Some(session.clone()),
            }]);
            // The CLI may die between any two of its steps.
            if self.fault(rng, 12) {
                self.end(Some(1), ExitCause::Exited);
                return true;
            }
        }
        let known = self.sessions.get(&session).and_then(|keys| keys.get(key)).copied();
        let by_turns = self.flavour == Flavour::ByTurns;
        let repeated = !by_turns && matches!(known, Some(Progress::Running | Progress::Over));
        if known.is_none() {
            self.progress(key, Progress::Recorded);
            if self.fault(rng, 12) {
                self.end(Some(1), ExitCause::Exited);
                return true;
            }
        }
        if !repeated {
            if let Some(agent) = &mut self.agent {
                agent.turn = Some((key.into(), *rng.pick(&[0, 1, 3, 30])));
            }
            self.work(key);
        }
        // A receipt can be lost in the pipe of a dying process; its work may have begun.
        if !repeated && self.fault(rng, 12) {
            self.progress(key, Progress::Running);
            self.end(Some(1), ExitCause::Exited);
            return true;
        }
        let key = (!by_turns).then(|| key.into());
        self.say(vec![AgentEvent::Prompt { text: String::new(), key, repeated }]);
        true
    }

    fn finish(&mut self, key: &str, rng: &mut Rng) -> bool {
        self.progress(key, Progress::Over);
        if self.fault(rng, 12) {
            // The reply is in the transcript, and its result was never printed.
            self.end(Some(1), ExitCause::Exited);
            return true;
        }
        let mut result = TurnResult { ok: true, ..TurnResult::default() };
        let failed = self.fault(rng, 6);
        if failed {
            result.ok = false;
            result.error = Some(*rng.pick(&[
                TurnError::ApiError,
                TurnError::ApiError,
                TurnError::RateLimit,
                TurnError::Other,
                TurnError::Auth,
                TurnError::MaxTurns,
                TurnError::Budget,
                TurnError::Mistakes,
                TurnError::Context,
            ]));
        } else {
            match rng.below(6) {
                0 => result.text = Some("all done, I think".into()),
                1 => result.structured = Some(json!({"status": "done"})),
                _ => result.structured = Some(json!({"status": "success", "summary": "ok"})),
            }
        }
        if self.flavour == Flavour::ByTurns {
            let document = result.structured.take().map(|document| document.to_string());
            if let Some(text) = document.or_else(|| result.text.take()) {
                self.say(vec![AgentEvent::Text { chars: 1, text }]);
            }
        } else if rng.one_in(2) {
            result.keys = vec![key.into()];
        }
        if let Some(agent) = &mut self.agent {
            agent.turn = None;
            agent.failed = failed;
        }
        self.result(result, 0.25 * (1 + rng.below(4)) as f64);
        true
    }

    /// Prints a turn's result with its cost, in the way of this CLI.
    fn result(&mut self, mut result: TurnResult, cost: f64) {
        let Some(agent) = &mut self.agent else { return };
        let usage = |cost_usd: f64| {
            vec![ModelUsage {
                model: "m".into(),
                output: (cost_usd * 4.0) as u64,
                cost_usd,
                ..ModelUsage::default()
            }]
        };
        agent.used += cost;
        let total = self.totals.entry(agent.session.clone()).or_default();
        *total += cost;
        let (session, total) = (agent.session.clone(), *total);
        match self.flavour {
            Flavour::OneShot => result.cost_usd = Some(agent.used),
            Flavour::Cumulative => result.per_model = usage(agent.used),
            Flavour::ByTurns => result.per_session = usage(total),
            Flavour::PerTurn => {
                result.cost_usd = Some(total);
                result.per_model = usage(total);
                result.per_model_turn = usage(cost);
            }
        }
        let extra = AgentEvent::Usage {
            total_usd: None,
            input: 1,
            output: 1,
            cost_usd: 0.5,
            cache_read: 0,
            cache_write: 0,
            model: Some("m".into()),
            call: Some("msg".into()),
        };
        if self.say(vec![extra, AgentEvent::Result(result)]) {
            let told = self.told.insert(session, total).unwrap_or_default();
            // A total also includes the use that was never read.
            self.charged += if self.flavour == Flavour::ByTurns { total - told } else { cost };
        }
    }

    fn progress(&mut self, key: &str, progress: Progress) {
        let Some(agent) = &self.agent else { return };
        self.sessions.entry(agent.session.clone()).or_default().insert(key.into(), progress);
    }

    fn work(&mut self, key: &str) {
        let Some(agent) = &self.agent else { return };
        let sessions = self.worked.entry(key.into()).or_default();
        if !sessions.contains(&agent.session) {
            sessions.push(agent.session.clone());
        }
    }

    pub fn was_taken(&self, key: &str) -> bool {
        self.sessions.values().any(|keys| keys.contains_key(key))
    }

    pub fn leaves_something(&self) -> bool {
        self.shim.is_none() && self.agent.is_some()
    }

    pub fn is_quiet(&self) -> bool {
        match &self.shim {
            Some(shim) => {
                shim.released
                    && shim.exit.is_none()
                    && self.agent.as_ref().is_some_and(|agent| {
                        agent.turn.is_none() && agent.stdin.is_empty() && !agent.closed
                    })
            }
            // The daemon of a running dispatch will notice.
            None => false,
        }
    }
}
