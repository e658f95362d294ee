//! Simulates whole lives of a dispatch, thousands a second, with a kill of any process at any step.
//!
//! The seed alone determines a life. `MULETEER_SIM_SEEDS=1000000` runs as many, from
//! `MULETEER_SIM_FROM`; `MULETEER_SIM_SEED=42` runs that one and prints its events.

#![allow(clippy::unwrap_used)]

mod daemon;
mod rng;
mod world;

use daemon::{Daemon, MAX_RESTARTS};
use muleteer_model::agent::ask::Answer;
use muleteer_model::dispatch::life::Input;
use muleteer_model::dispatch::{Phase, PromptState, Stop, Turn};
use muleteer_model::event::{Event, Outcome, PromptKind, Record};
use rng::Rng;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::{Flavour, World};

const SEEDS: u64 = 3_000;
/// The steps in which faults occur, and the steps in which the life must then come to rest.
const UNREST: u64 = 250;
const REST: u64 = 20_000;

struct Life {
    daemon: Daemon,
    world: World,
    rng: Rng,
    down: u64,
    words: u64,
    said: Vec<String>,
}

#[test]
fn every_dispatch_terminates_with_correct_totals() {
    let number = |name: &str| {
        std::env::var(name).ok().and_then(|text| text.replace('_', "").parse::<u64>().ok())
    };
    if let Some(seed) = number("MULETEER_SIM_SEED") {
        let mut life = Life::new(seed);
        let outcome = catch_unwind(AssertUnwindSafe(|| life.live()));
        for record in &life.daemon.ledger {
            println!("{}", serde_json::to_string(record).unwrap());
        }
        println!("{:#?}\n{:#?}", life.daemon.d(), life.world);
        assert!(outcome.is_ok(), "seed {seed}");
        return;
    }
    let from = number("MULETEER_SIM_FROM").unwrap_or(0);
    let seeds = number("MULETEER_SIM_SEEDS").unwrap_or(SEEDS);
    let mut ends = std::collections::BTreeMap::<&str, u64>::new();
    let mut heard = 0;
    for seed in from..from + seeds {
        let mut life = Life::new(seed);
        if catch_unwind(AssertUnwindSafe(|| life.live())).is_err() {
            panic!("a life went wrong; see it with MULETEER_SIM_SEED={seed}");
        }
        *ends.entry(life.daemon.d().state()).or_default() += 1;
        heard += life.world.heard.len();
    }
    println!("{seeds} lives ended: {ends:?}; {heard} answers were heard");
    if seeds >= SEEDS {
        assert!(heard > 500, "only {heard} answers were heard: nobody asks any more");
        for end in ["success", "partial", "failed", "blocked", "killed", "stalled", "waiting"] {
            assert!(ends.contains_key(end), "no life ended {end}: the simulator has lost its bite");
        }
    }
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let flavour = *rng.pick(&[
            Flavour::OneShot,
            Flavour::Cumulative,
            Flavour::PerTurn,
            Flavour::PerTurn,
            Flavour::ByTurns,
            Flavour::ByTurns,
        ]);
        let budget = if rng.one_in(3) { Some(1.0) } else { None };
        let resumable = flavour != Flavour::OneShot;
        let multi_turn = resumable && flavour != Flavour::ByTurns;
        let daemon = Daemon::new(multi_turn, resumable, rng.one_in(2), budget);
        let chaos = rng.below(14) as u32;
        let words = rng.below(6);
        Self { daemon, world: World::new(flavour, chaos), rng, down: 0, words, said: vec![] }
    }

    fn live(&mut self) {
        for step in 0..UNREST + REST {
            if step == UNREST {
                self.world.chaos = 0;
                self.world.stubborn = false;
                self.words = 0;
            }
            self.step();
            self.check_always();
            // No further message follows, and a fault cannot affect a dispatch that has ended.
            let over = step > UNREST || (self.words == 0 && self.daemon.d().is_finished());
            if over && self.is_at_rest() {
                return self.check_at_rest();
            }
        }
        panic!("it never came to rest: {}", self.daemon.d().state());
    }

    fn step(&mut self) {
        if self.words > 0 && self.rng.one_in(25) {
            self.words -= 1;
            self.speak();
        }
        let d = self.daemon.d();
        // Somebody answers sooner or later, and perhaps twice, because the first answer was not
        // acknowledged.
        if d.waits_for_an_answer() && self.rng.one_in(20) {
            let id = d.asks.open().next().map(|pending| pending.id.clone()).unwrap_or_default();
            let answer = if self.rng.one_in(2) { Answer::allow() } else { Answer::deny("no") };
            for _ in 0..=self.rng.below(2) {
                let (id, answer, by) = (id.clone(), answer.clone(), "operator".to_string());
                self.daemon.mailbox.push_back(Input::Answer { id, answer, by, key: String::new() });
            }
        }
        let d = self.daemon.d();
        if let Some(epoch) = d.owes_an_answer()
            && self.world.fault(&mut self.rng, 80)
        {
            // One report in four arrives late: it names the agent's process before this one.
            let epoch = epoch - u32::from(self.rng.one_in(4));
            let evidence = "nothing".to_string();
            self.daemon.mailbox.push_back(Input::Stalled { epoch, silent_s: 300, evidence });
        }
        if self.world.stubborn && self.rng.one_in(60) {
            self.world.stubborn = false;
        }
        if self.world.fault(&mut self.rng, 60) {
            match self.rng.below(3) {
                0 => self.daemon.lose_link(),
                _ => self.daemon.doom(self.rng.below(12)),
            }
        }
        if self.rng.one_in(2) {
            self.world.step(&mut self.rng);
        } else if self.down > 0 {
            self.down -= 1;
        } else if self.daemon.turn(&mut self.world, &mut self.rng).is_err() {
            let before = self.daemon.d().clone();
            self.daemon.reborn(&mut self.rng);
            assert_eq!(*self.daemon.d(), before, "the ledger folds to another state");
            self.down = self.rng.below(30);
        }
    }

    /// Sends a message. A message that is lost with the daemon is sent again under its key.
    fn speak(&mut self) {
        let d = self.daemon.d();
        let by = "operator".to_string();
        match self.rng.below(8) {
            0..3 if matches!(
                d.phase,
                Phase::Working { turn: Turn::None | Turn::Done { .. }, .. }
            ) =>
            {
                self.words += 1
            }
            0..3 => self
                .daemon
                .mailbox
                .push_back(Input::Interrupt { key: format!("i{}", self.words), by }),
            3 => self.daemon.mailbox.push_back(Input::Kill { reason: "enough".into(), by }),
            _ if d.created.has_turns() => {
                let key = format!("word-{}", self.said.len());
                self.said.push(key.clone());
                if self.rng.one_in(2) {
                    self.daemon.gate.push(key);
                } else {
                    self.daemon.mailbox.push_back(Input::Send { key, by });
                }
            }
            _ => {}
        }
    }

    fn check_always(&self) {
        let d = self.daemon.d();
        assert!(d.retries.restarts <= MAX_RESTARTS, "restarted {} times", d.retries.restarts);
        assert!(
            d.prompts.iter().filter(|p| p.state == PromptState::Sent).count() <= 1,
            "two prompts on their way"
        );
        for (key, sessions) in &self.world.worked {
            // A second session is right only if the first one was never recorded.
            let known = |session: &str| {
                self.daemon.ledger.iter().any(|record: &Record| {
                    matches!(&record.entry.event,
                        Event::SessionStarted { session_id, .. } if session_id == session)
                })
            };
            if sessions.len() > 1 && self.world.flavour != Flavour::OneShot {
                assert!(!known(&sessions[0]), "the prompt {key} was worked on in {sessions:?}");
            }
        }
    }

    fn is_at_rest(&self) -> bool {
        let d = self.daemon.d();
        let idle = self.daemon.mailbox.is_empty() && self.daemon.gate.is_empty() && self.down == 0;
        // A dispatch that waits for the model API continues by itself; an interrupted one does not.
        let interrupted = d.state() == "waiting" && !d.waits_for_api();
        (d.is_finished() && idle)
            || (interrupted
                && idle
                && self.world.is_quiet()
                && self.daemon.has_read_all(&self.world))
    }

    fn check_at_rest(&mut self) {
        let d = self.daemon.d();
        assert_eq!(d.spend.cost_usd, self.world.charged, "the books are wrong");
        let events = || self.daemon.ledger.iter().map(|record| &record.entry.event);
        let counted = events().fold((0_u32, 0_u32), |(row, most), event| match event {
            Event::AttemptFinished { counted: true, .. } => (row + 1, most.max(row + 1)),
            Event::TurnFinished { ok: true, .. } | Event::DispatchFinished { .. } => (0, most),
            _ => (row, most),
        });
        assert!(counted.1 <= MAX_RESTARTS, "{} counted restarts in a row", counted.1);
        let mut answers = BTreeSet::new();
        for event in events() {
            if let Event::PermissionAnswered { request_id, .. } = event {
                assert!(answers.insert(request_id.clone()), "{request_id} was answered twice");
            }
        }
        for id in &self.world.heard {
            assert!(answers.contains(id), "the answer to {id} was given before it was durable");
        }
        let outcome = events().rev_find_outcome();
        let killed = matches!(d.stop, Some(Stop::Kill { .. })) || d.state() == "killed";
        // A message to a dispatch that had used up its limits was not begun, and the end reports
        // the limit.
        let limited = matches!(d.stop, Some(Stop::Limit { .. })) && d.state() != "success";
        for prompt in &d.prompts {
            let theirs = matches!(prompt.kind, PromptKind::Initial | PromptKind::Send);
            match prompt.state {
                PromptState::Queued | PromptState::Sent => {
                    let answered_all = d.state() == "waiting"
                        || (outcome == Some(Outcome::Success) && !killed && !limited);
                    assert!(!answered_all, "the prompt {} was lost", prompt.key);
                }
                PromptState::Withdrawn => {
                    let was_killed =
                        events().any(|event| matches!(event, Event::KillRequested { .. }));
                    assert!(was_killed, "nobody withdrew {}", prompt.key);
                }
                PromptState::Taken | PromptState::Done | PromptState::Superseded
                    if theirs && d.created.has_turns() =>
                {
                    assert!(
                        self.world.was_taken(&prompt.key),
                        "the prompt {} was never taken",
                        prompt.key
                    );
                }
                _ => {}
            }
        }
        let folded = self.daemon.replayed(&mut self.rng);
        assert_eq!(**folded.get(&self.daemon.id).unwrap(), *d, "a replay folds to another state");
        if self.rng.one_in(8) {
            let written: Vec<_> = self
                .daemon
                .ledger
                .iter()
                .map(|record| serde_json::to_string(record).unwrap())
                .collect();
            let mut fleet = muleteer_model::dispatch::fleet::Fleet::default();
            for line in &written {
                fleet.apply(&serde_json::from_str(line).unwrap());
            }
            assert_eq!(
                **fleet.get(&self.daemon.id).unwrap(),
                *d,
                "what was written reads as another state"
            );
        }
        assert!(!matches!(d.phase, Phase::Gone { .. }));
    }
}

trait LastOutcome {
    fn rev_find_outcome(self) -> Option<Outcome>;
}

impl<'a, I: Iterator<Item = &'a Event>> LastOutcome for I {
    fn rev_find_outcome(self) -> Option<Outcome> {
        self.filter_map(|event| match event {
            Event::AttemptFinished { outcome, .. } => Some(*outcome),
            _ => None,
        })
        .last()
    }
}
