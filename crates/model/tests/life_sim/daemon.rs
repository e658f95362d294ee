//! The daemon, which drives the pure machine as `supervisor` does. It can also die between any two
//! steps: before an append, between the append and its effects, between effects, while it reads.

use crate::rng::Rng;
use crate::world::{Command, Rec, Standing, Stdin, World};
use jiff::Timestamp;
use muleteer_model::agent::permission::{Mode, Policy};
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::dispatch::life::{self, Decided, Effect, Input};
use muleteer_model::dispatch::work::WorkHome;
use muleteer_model::dispatch::{Dispatch, Phase};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Created, Entry, Event, Limits, Position, PromptKind, Record, VERSION};
use std::collections::{BTreeSet, VecDeque};

/// The daemon is dead: everything that was not durable is gone.
pub struct Crashed;
type Lives<T = ()> = Result<T, Crashed>;

pub const MAX_RESTARTS: u32 = 3;

struct Link {
    epoch: u32,
    resume: Option<String>,
    /// The next record to read.
    cursor: u64,
    commands: VecDeque<Command>,
    ended: bool,
}

pub struct Daemon {
    pub id: DispatchId,
    pub now: Timestamp,
    /// The durable records.
    pub ledger: Vec<Record>,
    pub fleet: Fleet,
    /// The messages that the gate makes durable beside the life's own decisions.
    pub gate: Vec<String>,
    pub mailbox: VecDeque<Input>,
    link: Option<Link>,
    carried: BTreeSet<String>,
    overdue: Option<u32>,
    /// The number of steps until the daemon is killed.
    fuse: Option<u64>,
}

impl Daemon {
    pub fn new(multi: bool, resumable: bool, worktree: bool, budget: Option<f64>) -> Self {
        let text = |text: &str| text.to_string();
        let created = Created {
            role: text("developer"),
            category: text("coding"),
            project: text("/p"),
            repository: None,
            feature: text("f"),
            title: None,
            spec: None,
            backend: text("sim"),
            model: None,
            model_source: None,
            limits: Limits {
                budget_usd: budget,
                max_turns: None,
                timeout_s: None,
                inactivity_timeout_s: 300,
                max_restarts: MAX_RESTARTS,
            },
            purse: None,
            worktree: worktree.then(|| text("/w")),
            branch: None,
            journal: text("/j"),
            parent: None,
            by: text("operator"),
            multi_turn: multi,
            resumable,
            wants_result: resumable,
            calls: None,
            program: None,
            trace: None,
            ask_on_crash: false,
            permissions: Policy { mode: Mode::Ask, ..Policy::default() },
            confined: false,
            can_ask: true,
            unattended_s: None,
            hold_s: None,
            mcp: None,
            idle_hold_s: None,
            role_fault: None,
            thread_verbosity: None,
            transcripts: false,
            folds: false,
            api: muleteer_model::admission::api_error::Terms::default(),
            watched: muleteer_model::monitor::Terms::default(),
            fingerprint: text("f"),
        };
        let mut daemon = Self {
            id: DispatchId::from_random([1, 2, 3, 4, 5]),
            now: Timestamp::UNIX_EPOCH,
            ledger: vec![],
            fleet: Fleet::default(),
            gate: vec![],
            mailbox: VecDeque::new(),
            link: None,
            carried: BTreeSet::new(),
            overdue: None,
            fuse: None,
        };
        daemon.durable(None, Event::DispatchCreated(Box::new(created)), false);
        let key = life::prompt_key(&daemon.id, PromptKind::Initial, 0);
        daemon.durable(
            None,
            Event::PromptQueued {
                key,
                kind: PromptKind::Initial,
                by: text("operator"),
                trace: None,
            },
            false,
        );
        daemon
    }

    pub fn d(&self) -> &Dispatch {
        self.fleet.get(&self.id).expect("it was created")
    }

    fn durable(&mut self, at: Option<Position>, event: Event, more: bool) {
        let entry =
            Entry { id: String::new(), dispatch_id: Some(self.id.clone()), at, more, event };
        let record = Record { v: VERSION, seq: self.ledger.len() as u64 + 1, ts: self.now, entry };
        self.fleet.apply(&record);
        self.ledger.push(record);
    }

    fn instruction(&mut self) -> Lives {
        match &mut self.fuse {
            Some(0) => Err(Crashed),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Sets the number of steps after which the daemon is killed.
    pub fn doom(&mut self, steps: u64) {
        self.fuse.get_or_insert(steps);
    }

    /// Starts a new process, which knows only what is durable.
    pub fn reborn(&mut self, rng: &mut Rng) {
        self.fleet = self.replayed(rng);
        self.mailbox.clear();
        self.link = None;
        self.carried.clear();
        self.overdue = None;
        self.fuse = None;
    }

    /// Folds the ledger from its start, some records twice, with a snapshot at one of them.
    pub fn replayed(&self, rng: &mut Rng) -> Fleet {
        let mut fleet = Fleet::default();
        let snapshot = rng.below(self.ledger.len() as u64 + 1);
        for record in &self.ledger {
            if record.seq == snapshot {
                let text = serde_json::to_vec(&fleet).unwrap();
                fleet = serde_json::from_slice(&text).unwrap();
            }
            fleet.apply(record);
            if rng.one_in(8) {
                fleet.apply(record);
            }
        }
        fleet
    }

    /// Fails one actor of the subtree: its own work is lost, its siblings' is not.
    pub fn lose_link(&mut self) {
        // Its last inputs are read before its successor gets anything to do.
        if self
            .mailbox
            .iter()
            .any(|input| matches!(input, Input::StartFailed { .. } | Input::ShimLost { .. }))
        {
            return;
        }
        self.link = None;
        self.carried.clear();
    }

    pub fn turn(&mut self, world: &mut World, rng: &mut Rng) -> Lives {
        self.settle(rng)?;
        self.carry_out(world, rng)?;
        match rng.below(3) {
            0 => {
                if let Some(input) = self.mailbox.pop_front() {
                    // The end of an epoch is reported once, before anybody retries.
                    if !matches!(input, Input::StartFailed { .. } | Input::ShimLost { .. })
                        && rng.one_in(6)
                    {
                        self.mailbox.push_back(input.clone());
                    }
                    let decided = life::decide(self.d(), input);
                    self.append(decided, rng)?;
                    self.settle(rng)?;
                }
            }
            1 => self.serve(world, rng)?,
            _ => self.wake(),
        }
        if !self.gate.is_empty() && rng.one_in(4) {
            self.gate_appends();
        }
        if let Some((limit, detail)) = life::limit_reached(self.d()) {
            self.mailbox.push_back(Input::Limit { limit, detail });
        }
        self.carry_out(world, rng)
    }

    fn gate_appends(&mut self) {
        for key in std::mem::take(&mut self.gate) {
            if self.d().prompt(&key).is_none() {
                self.durable(
                    None,
                    Event::PromptQueued {
                        key,
                        kind: PromptKind::Send,
                        by: "operator".into(),
                        trace: None,
                    },
                    false,
                );
            }
        }
    }

    fn wake(&mut self) {
        if let Phase::Backoff { until, .. } = self.d().phase {
            self.now = self.now.max(until);
        }
        if let (Some(epoch), Phase::Working { epoch: current, .. }) =
            (self.overdue, &self.d().phase)
            && epoch == *current
        {
            self.overdue = None;
            self.tell(Command::Terminate { idem: format!("overdue/{epoch}") });
        }
    }

    fn append(&mut self, decided: Vec<Decided>, rng: &mut Rng) -> Lives {
        if decided.is_empty() {
            return Ok(());
        }
        self.instruction()?;
        // The gate appends by itself, so a decision may already be outdated.
        if !self.gate.is_empty() && rng.one_in(2) {
            self.gate_appends();
        }
        let last = decided.len() - 1;
        for (n, (at, event)) in decided.into_iter().enumerate() {
            self.durable(at, event, n < last);
        }
        self.instruction()
    }

    fn settle(&mut self, rng: &mut Rng) -> Lives {
        for _ in 0..30 {
            let events = life::advance(self.d(), self.now);
            if events.is_empty() {
                return Ok(());
            }
            self.append(events.into_iter().map(|event| (None, event)).collect(), rng)?;
        }
        panic!("it never settles: {:?}", self.d());
    }

    fn carry_out(&mut self, world: &mut World, rng: &mut Rng) -> Lives {
        for effect in life::effects(self.d()) {
            self.instruction()?;
            let d = self.d();
            let (name, ticket) = (effect.key(d).to_string(), d.ticket());
            if !self.carried.insert(name.clone()) && !rng.one_in(10) {
                continue;
            }
            match effect {
                Effect::Admit => {
                    self.carried.remove(&name);
                    if self.mailbox.len() < 20 {
                        self.mailbox.push_back(Input::Admitted(ticket));
                    }
                }
                Effect::EnsureShim { epoch, resume } => {
                    if self.link.as_ref().is_none_or(|link| link.epoch != epoch) {
                        let at = self.d().position;
                        let cursor = if at.epoch == epoch { at.offset } else { 0 };
                        self.link = Some(Link {
                            epoch,
                            resume,
                            cursor,
                            commands: VecDeque::new(),
                            ended: false,
                        });
                    }
                }
                Effect::Prompt { key, close } => {
                    assert!(self.d().stop.is_none(), "a prompt after a kill");
                    self.tell(Command::Write {
                        idem: key.clone(),
                        said: Some(Stdin::Prompt(key)),
                        close,
                    });
                }
                Effect::CloseStdin => {
                    self.overdue = Some(self.d().epoch);
                    self.tell(Command::Write { idem: name, said: None, close: true });
                }
                Effect::Answer { id } => {
                    let idem = format!("answer/{}/{id}", self.d().epoch);
                    self.tell(Command::Write { idem, said: Some(Stdin::Answer(id)), close: false });
                }
                Effect::SetModel { .. } => {}
                Effect::Interrupt { key } => self.tell(Command::Interrupt { idem: key }),
                Effect::Terminate => {
                    let idem = format!("terminate/{}", self.d().epoch);
                    self.tell(Command::Terminate { idem });
                }
                Effect::FetchWork => {
                    self.carried.remove(&name);
                    if self.mailbox.len() < 20 {
                        self.mailbox.push_back(Input::WorkFetched(WorkHome::default()));
                    }
                }
                // The simulated agents keep no transcript.
                Effect::Probe { .. } => {}
                Effect::Call(_) => unreachable!("no agent of the simulation is spoken to by calls"),
                Effect::WakeAt(_) => {}
            }
        }
        let _ = world;
        Ok(())
    }

    fn tell(&mut self, command: Command) {
        // A command that is queued already is not queued again. Otherwise an agent with many
        // requests would wait behind thousands of equal commands.
        if let Some(link) = self.link.as_mut().filter(|link| !link.commands.contains(&command)) {
            link.commands.push_back(command);
        }
    }

    /// One step of the link, as in `supervisor`'s `Session::serve`.
    fn serve(&mut self, world: &mut World, rng: &mut Rng) -> Lives {
        self.instruction()?;
        let Some(link) = self.link.as_mut().filter(|link| !link.ended) else { return Ok(()) };
        let epoch = link.epoch;
        match world.stand(epoch) {
            Standing::Alive => {
                while let Some(command) = link.commands.pop_front() {
                    world.command(command);
                    if rng.one_in(3) {
                        break;
                    }
                }
                let count = 1 + rng.below(4);
                self.read(world, epoch, count, rng)?;
            }
            Standing::Other => {}
            Standing::Dead => {
                self.read(world, epoch, u64::MAX, rng)?;
                let ended = matches!(
                    world.spools.get(&epoch).and_then(|spool| spool.last()),
                    Some(Rec::Exited(_) | Rec::CannotStart)
                );
                if !ended {
                    let spawned = world.spools.get(&epoch).is_some_and(|spool| !spool.is_empty());
                    let (killed, clean) = world.sweep();
                    self.instruction()?;
                    self.mailbox.push_back(Input::ShimLost {
                        epoch,
                        spawned,
                        killed,
                        clean,
                        awake_ms: 0,
                        said: String::new(),
                        left: vec![],
                    });
                    // It may be reported twice, or only after another step.
                    if rng.one_in(2) {
                        return Ok(());
                    }
                }
                if let Some(link) = &mut self.link {
                    link.ended = true;
                }
            }
            Standing::Never => {
                let resume = link.resume.clone();
                if world.leaves_something() {
                    let (killed, clean) = world.sweep();
                    if !clean {
                        link.ended = true;
                        self.mailbox.push_back(Input::ShimLost {
                            epoch,
                            spawned: false,
                            killed,
                            clean,
                            awake_ms: 0,
                            said: String::new(),
                            left: vec![],
                        });
                    }
                    return Ok(());
                }
                if self.fleet.get(&self.id).is_none_or(|d| d.stop.is_some()) || world.fault(rng, 20)
                {
                    link.ended = true;
                    let permanent = self.d().stop.is_none() && rng.one_in(4);
                    self.mailbox.push_back(Input::StartFailed {
                        at: None,
                        epoch,
                        error: "no".into(),
                        permanent,
                    });
                    return Ok(());
                }
                // A link that is behind must not start an epoch that the dispatch has left.
                if matches!(
                    self.d().phase,
                    Phase::Starting { epoch: current, .. } if current == epoch
                ) {
                    world.begin(epoch, resume);
                }
                self.instruction()?;
            }
        }
        Ok(())
    }

    /// Reads records and appends all decisions at once, as `supervisor`'s `State::read` does.
    fn read(&mut self, world: &mut World, epoch: u32, count: u64, rng: &mut Rng) -> Lives {
        let Some(link) = &mut self.link else { return Ok(()) };
        // A link that began from an older snapshot reads some records again.
        if rng.one_in(10) {
            link.cursor = link.cursor.saturating_sub(rng.below(6));
        } else if world.fault(rng, 40) {
            link.cursor = rng.below(link.cursor + 1);
        }
        let Some(spool) = world.spools.get(&epoch) else { return Ok(()) };
        let from = link.cursor;
        let to = from.saturating_add(count).min(spool.len() as u64);
        link.cursor = to;
        let mut scratch = self.d().clone();
        let mut batch: Vec<Decided> = vec![];
        let stage = |decided: Vec<Decided>,
                     scratch: &mut Dispatch,
                     batch: &mut Vec<Decided>,
                     now: Timestamp| {
            for (at, event) in decided {
                let entry = Entry {
                    id: String::new(),
                    dispatch_id: None,
                    at,
                    more: true,
                    event: event.clone(),
                };
                scratch.apply(&Record { v: VERSION, seq: 0, ts: now, entry });
                batch.push((at, event));
            }
        };
        for offset in from..to {
            let at = Position { epoch, offset: offset + 1, skip: 0 };
            let input = match spool[offset as usize].clone() {
                Rec::Spawned => Input::Spawned {
                    at,
                    pid: 2,
                    shim_pid: 1,
                    containment: "none".into(),
                    awake_ms: 0,
                },
                Rec::CannotStart => Input::StartFailed {
                    at: Some(at),
                    epoch,
                    error: "no such program".into(),
                    permanent: true,
                },
                Rec::Blocked(on) => Input::Blocked { at, on },
                Rec::Line(events) => Input::Line { at, events },
                Rec::Written(key) => Input::Written { at: Some(at), epoch, key },
                Rec::Exited(exit) => Input::Exited { at, epoch, exit, awake_ms: 0 },
            };
            let decided = life::decide(&scratch, input);
            stage(decided, &mut scratch, &mut batch, self.now);
            if !matches!(scratch.phase, Phase::Gone { .. }) {
                let events = life::advance(&scratch, self.now);
                stage(
                    events.into_iter().map(|event| (None, event)).collect(),
                    &mut scratch,
                    &mut batch,
                    self.now,
                );
            }
        }
        let overtaken = !self.gate.is_empty();
        self.append(batch, rng)?;
        // The scratch copy was folded before the records had numbers.
        scratch.last_seq = self.d().last_seq;
        let numbers = scratch.turn_began.as_mut().zip(self.d().turn_began);
        if let Some(((scratched, _), (folded, _))) = numbers {
            *scratched = folded;
        }
        assert!(overtaken || scratch == *self.d(), "the fold of the scratch copy is another");
        self.settle(rng)
    }

    pub fn has_read_all(&self, world: &World) -> bool {
        let newest = self.d().epoch;
        let Some(spool) = world.spools.get(&newest) else { return true };
        self.d().is_finished()
            || self
                .link
                .as_ref()
                .is_some_and(|link| link.cursor == spool.len() as u64 && link.commands.is_empty())
    }
}
