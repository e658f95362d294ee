//! Simulates a whole daemon with many dispatches: one ledger on a slow disk, one pool, agents that
//! dispatch agents, people who kill and send messages, clocks that jump, and a daemon that dies at
//! any step, while finished families leave the fleet for the archive and return.
//!
//! `life_sim` covers the details of a single dispatch; this simulation covers what dispatches
//! share. The seed alone determines a life: `MULETEER_SIM_SEEDS=1000000` runs as many, from
//! `MULETEER_SIM_FROM`; `MULETEER_SIM_SEED=42` runs that one and prints its events.

#![allow(clippy::unwrap_used)]

mod archive;
mod daemon;
#[path = "../life_sim/rng.rs"]
mod rng;
mod world;

use daemon::Daemon;
use muleteer_model::config::Pool;
use muleteer_model::dispatch::{Dispatch, Phase};
use muleteer_model::event::FinalState;
use muleteer_model::event::id::DispatchId;
use rng::Rng;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use world::World;

const SEEDS: u64 = 400;
/// The steps in which faults occur, and the steps in which everything must then come to rest.
const UNREST: u64 = 600;
const REST: u64 = 30_000;
const MOST: usize = 7;
const DEPTH: u32 = 2;

struct Life {
    rng: Rng,
    daemon: Daemon,
    world: World,
    /// Whether agents dispatch agents.
    families: bool,
    made: u64,
    words: u64,
    killed: Vec<DispatchId>,
}

#[test]
fn every_fleet_terminates_within_its_limits() {
    let number = |name: &str| {
        std::env::var(name).ok().and_then(|text| text.replace('_', "").parse::<u64>().ok())
    };
    if let Some(seed) = number("MULETEER_SIM_SEED") {
        let mut life = Life::new(seed);
        let outcome = catch_unwind(AssertUnwindSafe(|| life.live()));
        for record in &life.daemon.ledger {
            println!("{}", serde_json::to_string(record).unwrap());
        }
        assert!(outcome.is_ok(), "seed {seed}");
        return;
    }
    let from = number("MULETEER_SIM_FROM").unwrap_or(0);
    let seeds = number("MULETEER_SIM_SEEDS").unwrap_or(SEEDS);
    let (mut deaths, mut longest, mut full) = (0, 0, 0);
    let (mut archived, mut restored) = (0, 0);
    for seed in from..from + seeds {
        let mut life = Life::new(seed);
        if catch_unwind(AssertUnwindSafe(|| life.live())).is_err() {
            panic!("a life went wrong; see it with MULETEER_SIM_SEED={seed}");
        }
        deaths += life.daemon.deaths;
        longest = longest.max(life.daemon.ledger.len());
        full += u64::from(life.daemon.was_full);
        archived += life.daemon.moved.0;
        restored += life.daemon.moved.1;
    }
    println!(
        "{seeds} lives, {deaths} deaths of their daemons, {full} full pools, {archived} times \
         archived, {restored} times restored, at most {longest} events"
    );
    assert!(
        seeds < SEEDS
            || (deaths > seeds && full > seeds / 4 && archived > seeds && restored > seeds),
        "the simulator has lost its bite"
    );
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let max_agents = 1 + rng.below(3) as u32;
        let families = rng.one_in(2);
        let chaos = rng.below(10);
        let words = rng.below(8);
        let daemon = Daemon::new(Pool { max_agents, max_depth: DEPTH });
        Self { rng, daemon, world: World::new(chaos), families, made: 0, words, killed: vec![] }
    }

    fn live(&mut self) {
        for step in 0..UNREST + REST {
            if step == UNREST {
                self.world.chaos = 0;
                self.words = 0;
            }
            if step < UNREST {
                self.people();
            }
            self.step();
            self.check_always();
            if step > UNREST && self.at_rest() {
                return self.check_at_rest();
            }
        }
        let states: Vec<_> =
            self.daemon.fleet.iter().map(|d| (d.id.to_string(), d.state())).collect();
        panic!("it never came to rest: {states:?}");
    }

    /// Makes a random request of a person or an agent.
    fn people(&mut self) {
        let mut known: Vec<DispatchId> = self.daemon.fleet.iter().map(|d| d.id.clone()).collect();
        known.extend(self.daemon.archived());
        if known.len() < MOST && self.rng.one_in(20) {
            let resumable = self.rng.one_in(2);
            let parent = (self.families && self.rng.one_in(2))
                .then(|| self.world.working(&mut self.rng))
                .flatten()
                .filter(|parent| self.daemon.may_parent(parent));
            self.made += 1;
            self.daemon.create(self.made, parent, resumable, &mut self.rng);
        }
        if self.words > 0
            && self.rng.one_in(60)
            && let Some(id) = (!known.is_empty()).then(|| self.rng.pick(&known).clone())
        {
            self.words -= 1;
            if self.rng.one_in(3) {
                self.killed.push(id.clone());
                self.daemon.kill(&id);
            } else {
                self.daemon.say(&id, self.words);
            }
        }
    }

    fn step(&mut self) {
        if self.world.trouble(&mut self.rng, 60) {
            self.daemon.die(&mut self.rng);
        }
        if self.world.trouble(&mut self.rng, 80) {
            // The machine was suspended, or its clock was set forward or back.
            self.daemon.jump(&mut self.rng);
        }
        if self.rng.one_in(40) {
            self.daemon.archive(&mut self.rng);
        }
        if self.rng.one_in(3) {
            self.world.step(&mut self.rng, &self.daemon.fleet);
        } else {
            self.daemon.step(&mut self.world, &mut self.rng);
        }
    }

    fn check_always(&self) {
        let limits = self.daemon.limits;
        // A closing dispatch has no agent any more.
        let has_agent = |phase: &Phase| !matches!(phase, Phase::Closing { .. });
        let active =
            self.daemon.fleet.iter().filter(|d| d.is_active() && has_agent(&d.phase)).count();
        let most = if self.families {
            limits.max_agents * (limits.max_depth + 1)
        } else {
            limits.max_agents
        };
        assert!(active <= most as usize, "{active} agents where {most} may be");
        // The same bound holds for dispatches with a slot that they do not share with a descendant.
        let fleet = &self.daemon.fleet;
        let works = |d: &&Arc<Dispatch>| d.is_active() && has_agent(&d.phase);
        let mut above = BTreeSet::new();
        for dispatch in fleet.iter().filter(works) {
            let mut at = dispatch.created.parent.as_ref();
            while let Some(id) = at {
                above.insert(id);
                at = fleet.get(id).and_then(|d| d.created.parent.as_ref());
            }
        }
        let places = fleet.iter().filter(works).filter(|d| !above.contains(&d.id)).count();
        assert!(
            places <= limits.max_agents as usize,
            "{places} places taken of {}",
            limits.max_agents
        );
    }

    fn at_rest(&self) -> bool {
        self.daemon.is_idle() && self.daemon.fleet.iter().all(|d| d.is_finished())
    }

    fn check_at_rest(&mut self) {
        assert_eq!(self.world.alive(), 0, "an agent outlives its dispatch");
        for id in self.daemon.archived() {
            self.daemon.restore(&id);
        }
        assert_eq!(self.daemon.fleet.archived(), 0, "all have returned");
        let folded = self.daemon.replayed(&mut self.rng);
        let never = self.daemon.never_archived();
        assert!(
            never.iter().eq(self.daemon.fleet.iter()),
            "a restored dispatch is another than one that was never archived"
        );
        for dispatch in self.daemon.fleet.iter() {
            assert_eq!(
                folded.get(&dispatch.id).unwrap(),
                dispatch,
                "a replay folds to another state"
            );
            let state = match &dispatch.phase {
                Phase::Finished { state, .. } => *state,
                other => panic!("at rest in {other:?}"),
            };
            if state == FinalState::Killed {
                assert!(self.killed.contains(&dispatch.id), "killed by nobody");
            }
            // Only a kill withdraws a person's message.
            if dispatch.created.resumable && state == FinalState::Success {
                assert!(!dispatch.has_unheard(), "a word to {} was lost", dispatch.id);
            }
        }
    }
}
