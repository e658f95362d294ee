//! The daemon: a ledger on a slow disk, a pool, and a life for each dispatch. Each life waits for
//! the disk after each of its decisions, as its actor does, while the others continue.

use crate::archive::fold;
use crate::rng::Rng;
use crate::world::{Rec, Standing, World};
use jiff::{SignedDuration, Timestamp};
use muleteer_model::admission::Door;
use muleteer_model::config::Pool;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::dispatch::life::{self, Decided, Effect, Input};
use muleteer_model::dispatch::work::WorkHome;
use muleteer_model::dispatch::{Dispatch, Phase};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Created, Entry, Event, Position, PromptKind, Record, VERSION};
use serde_json::json;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The actors of one dispatch.
#[derive(Default)]
struct Subtree {
    mailbox: VecDeque<Input>,
    /// Whether it waits for its batch to become durable.
    appending: bool,
    linked: Option<u32>,
    cursor: u64,
    swept: bool,
    carried: BTreeSet<String>,
}

pub struct Daemon {
    pub limits: Pool,
    /// The records on the disk.
    pub ledger: Vec<Record>,
    /// The fleet, folded from the durable records.
    pub fleet: Fleet,
    pub deaths: u64,
    pub was_full: bool,
    /// How often a family was archived, and how often one returned.
    pub moved: (u64, u64),
    now: Timestamp,
    /// The batches that are written and not yet durable, each with the life that waits for it.
    pub unsynced: VecDeque<(Option<DispatchId>, Vec<Entry>)>,
    lives: BTreeMap<DispatchId, Subtree>,
    door: Door,
    look: bool,
}

impl Daemon {
    pub fn new(limits: Pool) -> Self {
        Self {
            limits,
            ledger: vec![],
            fleet: Fleet::default(),
            deaths: 0,
            was_full: false,
            moved: (0, 0),
            now: Timestamp::UNIX_EPOCH,
            unsynced: VecDeque::new(),
            lives: BTreeMap::new(),
            door: Door::default(),
            look: false,
        }
    }

    pub fn create(&mut self, n: u64, parent: Option<DispatchId>, resumable: bool, rng: &mut Rng) {
        let id = DispatchId::from_random([n as u8, 2, 3, 4, 5]);
        let created: Created = serde_json::from_value(json!({
            "role": "developer", "category": "coding", "project": "/p", "feature": "f",
            "backend": "sim",
            "limits": {"budget_usd": null, "max_turns": null, "timeout_s": null,
                       "inactivity_timeout_s": 300, "max_restarts": 3},
            "journal": "/j", "parent": parent, "by": "operator", "multi_turn": false,
            "resumable": resumable,
            "wants_result": false, "fingerprint": "f",
        }))
        .unwrap();
        let key = life::prompt_key(&id, PromptKind::Initial, 0);
        let prompt = Event::PromptQueued {
            key,
            kind: PromptKind::Initial,
            by: "operator".into(),
            trace: None,
        };
        let mut batch = vec![Event::DispatchCreated(Box::new(created)), prompt];
        let made = batch.iter().cloned().map(|event| entry(&id, None, event)).collect();
        batch.extend(self.door.reserve(self.limits, &self.fleet, (&id, made), self.now));
        if rng.one_in(10) {
            // The files of the dispatch could not be written.
            self.look |= self.door.release(&id);
            return;
        }
        self.enqueue(&id, batch.into_iter().map(|event| (None, event)).collect(), false);
    }

    /// Whether an agent may dispatch others: its children must not be too deep, and it must not be
    /// stopped.
    pub fn may_parent(&self, id: &DispatchId) -> bool {
        let parent_of = |of: &DispatchId| self.fleet.get(of)?.created.parent.clone();
        let depth = muleteer_model::admission::depth(self.limits, Some(id), parent_of);
        depth.is_ok() && self.fleet.get(id).is_some_and(|d| d.stop.is_none() && !d.is_finished())
    }

    pub fn kill(&mut self, id: &DispatchId) {
        self.settle();
        if self.fleet.get(id).is_none() {
            // It is archived, so it has ended.
            return;
        }
        self.tell(id, Input::Kill { reason: "enough".into(), by: "operator".into() });
    }

    /// Makes a message durable, as the gate does by itself.
    pub fn say(&mut self, id: &DispatchId, n: u64) {
        self.restore(id);
        let hears = self.fleet.get(id).is_some_and(|d| d.created.resumable);
        if hears {
            let queued = Event::PromptQueued {
                key: format!("word-{n}"),
                kind: PromptKind::Send,
                by: "operator".into(),
                trace: None,
            };
            self.enqueue(id, vec![(None, queued)], false);
        }
    }

    /// Whether a dispatch has actors, or an event of it is on its way to the disk.
    pub fn is_held(&self, id: &DispatchId) -> bool {
        let is_of = |entry: &Entry| entry.dispatch_id.as_ref() == Some(id);
        self.lives.contains_key(id)
            || self.unsynced.iter().any(|(_, batch)| batch.iter().any(is_of))
    }

    fn tell(&mut self, id: &DispatchId, input: Input) {
        self.lives.entry(id.clone()).or_default().mailbox.push_back(input);
    }

    fn enqueue(&mut self, id: &DispatchId, decided: Vec<Decided>, waits: bool) {
        if decided.is_empty() {
            return;
        }
        let last = decided.len() - 1;
        let chained =
            |(n, (at, event)): (usize, Decided)| Entry { more: n < last, ..entry(id, at, event) };
        let batch = decided.into_iter().enumerate().map(chained).collect();
        if waits {
            self.lives.entry(id.clone()).or_default().appending = true;
        }
        self.unsynced.push_back((waits.then(|| id.clone()), batch));
    }

    /// Makes batches durable: one fsync covers all earlier writes.
    pub fn sync(&mut self, batches: usize) {
        for (waiter, batch) in self.unsynced.drain(..batches) {
            for entry in batch {
                let record =
                    Record { v: VERSION, seq: self.ledger.len() as u64 + 1, ts: self.now, entry };
                let before = self.fleet.archived();
                fold(&mut self.fleet, &self.ledger, &record);
                self.moved.0 += u64::from(self.fleet.archived() > before);
                self.moved.1 += u64::from(self.fleet.archived() < before);
                check_unfinished(&self.fleet);
                self.ledger.push(record);
            }
            if let Some(subtree) = waiter.and_then(|id| self.lives.get_mut(&id)) {
                subtree.appending = false;
            }
        }
        let active = self.fleet.iter().filter(|d| d.is_active()).count();
        self.was_full |= active >= self.limits.max_agents as usize
            && self.fleet.iter().any(|d| d.phase == Phase::Queued);
    }

    /// Kills the daemon: any number of the written batches survives, whole and in their order. A
    /// new daemon starts at once.
    pub fn die(&mut self, rng: &mut Rng) {
        let survive = rng.below(self.unsynced.len() as u64 + 1) as usize;
        self.sync(survive);
        self.unsynced.clear();
        self.lives.clear();
        self.door = Door::default();
        self.look = true;
        self.deaths += 1;
        let fleet = self.replayed(rng);
        assert!(fleet.iter().eq(self.fleet.iter()), "a replay folds to another fleet");
        assert_eq!(fleet.archived(), self.fleet.archived(), "a replay has another archive");
        self.fleet = fleet;
    }

    pub fn jump(&mut self, rng: &mut Rng) {
        let seconds = rng.below(100_000) as i64 - 20_000;
        self.now = self
            .now
            .checked_add(SignedDuration::from_secs(seconds))
            .unwrap()
            .max(Timestamp::UNIX_EPOCH);
    }

    /// Folds the ledger from its start, with a snapshot at one of its records.
    pub fn replayed(&self, rng: &mut Rng) -> Fleet {
        let mut fleet = Fleet::default();
        let snapshot = rng.below(self.ledger.len() as u64 + 1);
        for record in &self.ledger {
            if record.seq == snapshot {
                let text = serde_json::to_vec(&fleet).unwrap();
                fleet = serde_json::from_slice(&text).unwrap();
            }
            fold(&mut fleet, &self.ledger, record);
        }
        check_unfinished(&fleet);
        fleet
    }

    pub fn is_idle(&self) -> bool {
        self.unsynced.is_empty() && self.lives.values().all(|subtree| subtree.mailbox.is_empty())
    }

    pub fn step(&mut self, world: &mut World, rng: &mut Rng) {
        // Time passes slowly.
        self.now = self.now.checked_add(SignedDuration::from_millis(200)).unwrap();
        match rng.below(6) {
            0 => self.sync(self.unsynced.len()),
            1 if self.look || rng.one_in(10) => {
                self.look = false;
                for id in self.door.look(self.limits, &self.fleet, self.now).start {
                    let ticket = self.fleet.get(&id).unwrap().ticket();
                    self.tell(&id, Input::Admitted(ticket));
                }
            }
            _ => {
                let ids: Vec<DispatchId> = self.fleet.iter().map(|d| d.id.clone()).collect();
                if !ids.is_empty() {
                    let id = rng.pick(&ids).clone();
                    self.live(&id, world, rng);
                }
            }
        }
    }

    /// Handles one message of one life, and what follows from it.
    fn live(&mut self, id: &DispatchId, world: &mut World, rng: &mut Rng) {
        let d = self.fleet.get(id).unwrap().clone();
        let subtree = self.lives.entry(id.clone()).or_default();
        if subtree.appending {
            return;
        }
        let events = life::follow(&mut Cow::Borrowed(&*d), self.now);
        if !events.is_empty() {
            let decided = events.into_iter().map(|event| (None, event)).collect();
            return self.enqueue(id, decided, true);
        }
        if d.is_finished() {
            // Its actors are removed; a message that is on its way starts them again.
            self.lives.remove(id);
            self.look = true;
            return;
        }
        self.carry_out(&d, world, rng);
        let subtree = self.lives.entry(id.clone()).or_default();
        if let Some(input) = subtree.mailbox.pop_front() {
            let decided = life::decide(&d, input);
            return self.enqueue(id, decided, true);
        }
        self.read(&d, world, rng);
    }

    fn carry_out(&mut self, d: &Dispatch, world: &mut World, rng: &mut Rng) {
        for effect in life::effects(d) {
            let subtree = self.lives.entry(d.id.clone()).or_default();
            if matches!(effect, Effect::Admit) {
                self.look = true;
            } else if !subtree.carried.insert(effect.key(d).to_string()) && !rng.one_in(10) {
                continue;
            }
            match effect {
                Effect::EnsureShim { epoch, .. } if subtree.linked != Some(epoch) => {
                    subtree.linked = Some(epoch);
                    subtree.cursor = if d.position.epoch == epoch { d.position.offset } else { 0 };
                    subtree.swept = false;
                }
                Effect::Prompt { .. } => world.prompt(&d.id, d.epoch),
                Effect::Terminate => world.terminate(&d.id, d.epoch),
                Effect::FetchWork => {
                    self.look = true;
                    subtree.mailbox.push_back(Input::WorkFetched(WorkHome::default()));
                }
                _ => {}
            }
        }
    }

    /// One step of the link: it starts the shim, reads one record of its spool, or finds the shim
    /// dead.
    fn read(&mut self, d: &Dispatch, world: &mut World, rng: &mut Rng) {
        let subtree = self.lives.entry(d.id.clone()).or_default();
        let Some(epoch) = subtree.linked.filter(|epoch| *epoch == d.epoch) else { return };
        let spool = world.spools.get(&(d.id.clone(), epoch));
        let unread = spool.and_then(|spool| spool.get(subtree.cursor as usize)).cloned();
        let Some(rec) = unread else {
            match world.stand(&d.id, epoch) {
                Standing::Never if matches!(d.phase, Phase::Starting { .. }) => {
                    world.begin(&d.id, epoch, d.created.resumable, rng);
                }
                Standing::Lost if !subtree.swept => {
                    world.sweep(&d.id);
                    subtree.swept = true;
                    let spawned = subtree.cursor > 0;
                    let lost = Input::ShimLost {
                        epoch,
                        spawned,
                        killed: 0,
                        clean: true,
                        awake_ms: 0,
                        said: String::new(),
                        left: vec![],
                    };
                    subtree.mailbox.push_back(lost);
                }
                _ => {}
            }
            return;
        };
        subtree.cursor += 1;
        let at = Position { epoch, offset: subtree.cursor, skip: 0 };
        let input = match rec {
            Rec::Spawned => {
                Input::Spawned { at, pid: 2, shim_pid: 1, containment: "none".into(), awake_ms: 0 }
            }
            Rec::Line(events) => Input::Line { at, events },
            Rec::Exited(exit) => Input::Exited { at, epoch, exit, awake_ms: 0 },
        };
        let decided = life::decide(d, input);
        let id = d.id.clone();
        self.enqueue(&id, decided, true);
    }
}

fn entry(id: &DispatchId, at: Option<Position>, event: Event) -> Entry {
    Entry { id: String::new(), dispatch_id: Some(id.clone()), at, more: false, event }
}

/// Checks that the index of unfinished dispatches equals a search of all, in the same order.
fn check_unfinished(fleet: &Fleet) {
    let all = fleet.iter().filter(|dispatch| !dispatch.is_finished());
    assert!(fleet.unfinished().eq(all), "the unfinished are others than are kept");
}
