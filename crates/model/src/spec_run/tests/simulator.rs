//! Drives the state machine with random schedules, failures and crashes, and checks its invariants.
//! A seed reproduces each life of a run.

use crate::beads::{Bead, Beads};
use crate::event::{Entry, Event, Outcome, Record};
use crate::spec_run::decide::{GoOn, Input, JobEnd, Settled, advance, decide};
use crate::spec_run::effects::{Effect, effects};
use crate::spec_run::event::*;
use crate::spec_run::judge::{
    self, Acceptance, JudgeResult, NewBead, Observation, SpecDrift, VerdictError,
};
use crate::spec_run::spec::amendment;
use crate::spec_run::state::{Run, Sealed, Stage};
use crate::spec_run::tests::play::{bead, settings};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// A small random number generator, determined by its seed.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn one_in(&mut self, chance: usize) -> bool {
        self.below(chance) == 0
    }
}

struct World {
    dice: Dice,
    now: Timestamp,
    log: Vec<Record>,
    run: Run,
    /// How many times each bead was assigned.
    taken: BTreeMap<String, u32>,
    /// The requested bead of each key: its id and its title. A repeated request returns the same.
    made: BTreeMap<String, (String, String)>,
    starved: Option<Purpose>,
    /// How often a person resumed an ended run.
    returns: u32,
    /// The text of each section of the spec, by version.
    texts: Vec<[u64; SECTIONS]>,
    /// The beads that agents have completed.
    done: BTreeSet<String>,
    /// The beads that amendments have withdrawn.
    withdrawn: BTreeSet<String>,
}

/// How many sections the spec has, and how often a person amends it.
const SECTIONS: usize = 4;
const AMENDMENTS: usize = 3;

fn spec_of(texts: &[u64]) -> String {
    let section = |(at, text)| format!("\n## Part {at}\n\nVersion {text}.\n");
    let sections: String = texts.iter().enumerate().map(section).collect();
    format!("# T\n{sections}")
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let mut settings = settings();
        settings.max_concurrency = 1 + dice.below(4) as u32;
        settings.max_retries = dice.below(3) as u32;
        settings.maintain_every = dice.below(4) as u32;
        settings.maintain_after_all = dice.one_in(4);
        settings.maintain_parallel = !dice.one_in(3);
        settings.judge = !dice.one_in(5);
        settings.acceptance = !dice.one_in(3);
        settings.human_review = dice.one_in(4);
        settings.review_merge = dice.one_in(4);
        let starved = [Purpose::Acceptance, Purpose::Decompose, Purpose::Judge, Purpose::Structure];
        let starved = starved.get(dice.below(60)).copied();
        let now = Timestamp::from_second(1_700_000_000).expect("a time");
        let started = RunStarted {
            run_id: "run-2026-02-12-a1b2c3".into(),
            spec: "plan.md".into(),
            title: "T".into(),
            repo: "/repo".into(),
            target: "auto".into(),
            bead_label: dice.one_in(3).then(|| "v2".into()),
            settings,
            trace: None,
            thread: None,
        };
        let first = record(1, now, Event::RunStarted(Box::new(started)));
        let run = Run::begin(&first).expect("a run");
        Self {
            dice,
            now,
            log: vec![first],
            run,
            taken: BTreeMap::new(),
            made: BTreeMap::new(),
            starved,
            returns: 0,
            texts: vec![[0; SECTIONS]],
            done: BTreeSet::new(),
            withdrawn: BTreeSet::new(),
        }
    }

    fn commit(&mut self, events: Vec<Event>) {
        for event in events {
            self.check(&event);
            let record = record(self.log.len() as u64 + 1, self.now, event);
            self.run.apply(&record);
            self.log.push(record);
        }
        self.invariants();
    }

    fn feed(&mut self, input: Input) {
        let events = decide(&self.run, input, self.now);
        self.commit(events);
        self.settle();
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            let events = advance(&self.run, self.now);
            if events.is_empty() {
                return;
            }
            self.commit(events);
        }
        panic!("it goes on for ever by itself");
    }

    /// Checks the invariants of an event before it is folded.
    fn check(&mut self, event: &Event) {
        match event {
            Event::SpecAmended(amended) => {
                assert!(self.run.jobs.is_empty(), "it is amended with agents at work");
                assert!(amended.withdrawn.iter().all(|id| !self.done.contains(id)));
                self.withdrawn.extend(amended.withdrawn.iter().cloned());
            }
            Event::BeadCompleted { bead_id, by, .. } if by != "operator" => {
                self.done.insert(bead_id.clone());
            }
            Event::BeadAssigned { bead_id, .. } => {
                assert!(!self.withdrawn.contains(bead_id), "{bead_id} was withdrawn");
                let task = &self.run.beads[bead_id];
                assert_eq!(task.stage, Stage::Open, "{bead_id} is assigned twice at once");
                for on in &task.planned.depends_on {
                    assert_eq!(self.run.beads[on].stage, Stage::Done, "{bead_id} before {on}");
                }
                assert!(task.outside.is_empty());
                let alone = !self.run.settings.maintain_parallel
                    && self.run.job_of(Purpose::Maintain).is_some();
                assert!(!alone, "{bead_id} is begun beside a maintenance run that is to be alone");
                *self.taken.entry(bead_id.clone()).or_default() += 1;
            }
            Event::AgentStarted(start) => {
                assert!(!self.run.jobs.contains_key(&start.agent), "agent {} twice", start.agent);
                assert!(self.run.jobs.values().all(|job| job.start.dispatch != start.dispatch));
                assert!(!self.run.is_unfrozen(), "an agent starts before the spec is frozen");
                if start.purpose == Purpose::Implement {
                    assert!(self.run.coding() < self.run.settings.max_concurrency as usize);
                    assert!(
                        self.run.sealed.is_some(),
                        "a coding agent before the criteria are sealed"
                    );
                } else if start.purpose == Purpose::Maintain {
                    assert!(self.run.job_of(Purpose::Maintain).is_none(), "two maintenance runs");
                    assert!(
                        self.run.settings.maintain_parallel || self.run.coding() == 0,
                        "maintenance is not alone"
                    );
                }
            }
            Event::JudgeStarted { .. } => {
                assert!(self.run.jobs.is_empty(), "the judge before its barrier");
                assert_eq!(self.run.count(Stage::Open) + self.run.count(Stage::Taken), 0);
                assert!(self.run.maintenance.runs.iter().all(|one| one.state != "running"));
            }
            Event::JudgeFinished(end) if end.verdict == Verdict::Pass => {
                let result = end.result.as_ref().expect("a pass has its result");
                let named = |bead: &NewBead| end.reason.contains(&bead.title);
                assert!(
                    result.new_beads.iter().all(named),
                    "a pass drops what it found without a word"
                );
                assert!(
                    !self.run.settings.spec_drift || result.spec_drift.is_some(),
                    "a pass says nothing of the spec"
                );
                let criteria =
                    self.run.sealed.as_ref().is_some_and(|sealed| !sealed.path.is_empty());
                let asked = criteria && self.run.settings.acceptance;
                assert!(
                    !asked || result.acceptance.is_some(),
                    "a pass says nothing of the criteria"
                );
            }
            Event::RunCompleted { .. } => {
                assert!(self.run.jobs.is_empty(), "it ends with agents at work")
            }
            _ => {}
        }
    }

    fn invariants(&self) {
        for task in self.run.beads.values().filter(|task| task.stage == Stage::Taken) {
            let mut owners = self
                .run
                .jobs
                .values()
                .filter(|job| job.start.bead_id.as_ref() == Some(&task.planned.id));
            assert!(
                owners.next().is_some()
                    || self.log.last().is_some_and(|record| matches!(
                        record.entry.event,
                        Event::BeadAssigned { .. } | Event::AgentFinished(_)
                    )),
                "{} is lost",
                task.planned.id
            );
            assert!(owners.next().is_none(), "{} has two agents", task.planned.id);
        }
        for id in &self.done {
            let stage = self.run.beads.get(id).map(|task| task.stage);
            assert_eq!(stage, Some(Stage::Done), "the work of {id} is lost or done twice");
        }
        for task in self.run.beads.values() {
            // The failure that blocks a bead is one more than there are retries. A person may close
            // a blocked bead afterwards.
            let last = u32::from(!matches!(task.stage, Stage::Open | Stage::Taken));
            assert!(
                task.failures <= self.run.settings.max_retries + last,
                "{} ({:?}) is retried without bound",
                task.planned.id,
                task.stage
            );
        }
    }

    /// Simulates a killed daemon: the state is folded again from the log.
    fn crash(&mut self) {
        let again = Run::fold(&self.log).expect("a run");
        assert_eq!(again, self.run, "the fold of the log is another state");
        self.run = again;
        self.settle();
    }

    fn job_end(&mut self, purpose: Purpose) -> JobEnd {
        let outcome = match self.dice.below(8) {
            0 => Outcome::Failure,
            1 => Outcome::Timeout,
            _ => Outcome::Success,
        };
        let mut end = JobEnd::new(outcome, "r");
        if self.dice.one_in(2) {
            end.last_lines = "the tests failed".into();
        }
        end.unknown = outcome == Outcome::Failure && self.dice.one_in(3);
        end.rate_limited = outcome == Outcome::Failure && self.dice.one_in(3);
        if self.starved == Some(purpose) {
            // The model's provider never has capacity for this purpose.
            (end.outcome, end.rate_limited) = (Outcome::Failure, true);
        }
        match purpose {
            Purpose::Implement | Purpose::Maintain => {
                end.closed = !self.dice.one_in(5);
                end.no_change = end.closed && self.dice.one_in(6);
                end.commits = if end.no_change { 0 } else { self.dice.below(3) as u32 };
                end.on_target = !self.dice.one_in(6);
                end.whole = end.commits > 0 && end.on_target && !self.dice.one_in(6);
                if self.dice.one_in(4) {
                    end.observations = vec![format!("obs{}", self.dice.below(5))];
                }
            }
            Purpose::Acceptance => {
                end.sealed = Some(Sealed { path: "/c".into(), sha256: "x".into() })
            }
            Purpose::Judge => end.wrote = self.dice.one_in(6),
            Purpose::Structure => {
                let mut result = JudgeResult { status: "success".into(), ..JudgeResult::default() };
                // A model sometimes leaves out a requested part.
                result.spec_drift = (!self.dice.one_in(10)).then(SpecDrift::default);
                result.acceptance = (!self.dice.one_in(10))
                    .then(|| Acceptance { passed: !self.dice.one_in(8), results: vec![] });
                if self.dice.one_in(12) {
                    result.new_beads =
                        vec![NewBead { title: "left over".into(), ..NewBead::default() }];
                }
                if self.dice.one_in(2) {
                    result.spec_drift = Some(SpecDrift { detected: true, issues: vec![] });
                    result.new_beads = vec![NewBead { title: "n".into(), ..NewBead::default() }];
                }
                let waiting: Vec<String> = self.run.observations.pending.iter().cloned().collect();
                for id in waiting {
                    let action = ["promote", "dismiss", "merge", ""][self.dice.below(4)];
                    if !action.is_empty() {
                        let (bead_id, action) = (id, action.into());
                        result.observations.push(Observation {
                            bead_id,
                            action,
                            ..Observation::default()
                        });
                    }
                }
                // A model sometimes mistakes a planned bead for an observation.
                if self.dice.one_in(12)
                    && let Some(id) = self.run.beads.keys().next()
                {
                    let (bead_id, action) = (id.clone(), "dismiss".into());
                    result.observations.push(Observation {
                        bead_id,
                        action,
                        ..Observation::default()
                    });
                }
                end.verdict = Some(if self.dice.one_in(6) {
                    Err(VerdictError::NoJson("x".into()))
                } else {
                    Ok(result)
                });
            }
            _ => {}
        }
        end
    }

    fn resume(&mut self, settings: RunSettings, from: Option<GoOn>) {
        if !self.run.is_live() {
            let left: Vec<String> = self
                .run
                .beads
                .values()
                .filter(|task| matches!(task.stage, Stage::Open | Stage::Blocked))
                .map(|task| task.planned.id.clone())
                .collect();
            let mut settled = vec![];
            for bead in left {
                if self.dice.one_in(3) {
                    settled.push(Settled { bead, closed: self.dice.one_in(2), no_change: false });
                }
            }
            let settings = Box::new(settings);
            let resume = Input::Resume {
                settings,
                by: "operator".into(),
                approve: true,
                from,
                settled,
                trace: None,
            };
            match self.amendment().filter(|_| from.is_none()) {
                Some(amended) => {
                    let before = self.run.versions.current;
                    self.feed(Input::Amend {
                        amended: Box::new(amended.clone()),
                        resume: Box::new(resume.clone()),
                    });
                    assert_eq!(self.run.versions.current, before + 1, "it was not taken");
                    // A repeated request changes nothing.
                    let again =
                        Input::Amend { amended: Box::new(amended), resume: Box::new(resume) };
                    assert!(decide(&self.run, again, self.now).is_empty());
                }
                None => self.feed(resume),
            }
        }
    }

    /// Sometimes changes the spec, and plans the amendment of the run.
    fn amendment(&mut self) -> Option<SpecAmended> {
        if self.texts.len() > AMENDMENTS || !self.dice.one_in(8) {
            return None;
        }
        let planned = self.run.versions.planned.unwrap_or(self.run.versions.current);
        let old = spec_of(&self.texts[planned as usize]);
        let mut texts = *self.texts.last().expect("a version");
        let number = self.texts.len() as u64;
        for _ in 0..=self.dice.below(2) {
            texts[self.dice.below(SECTIONS)] = number;
        }
        let of_part = |(at, id): (usize, &String)| {
            // Some beads tell no section.
            let description = match at % (SECTIONS + 1) {
                SECTIONS => String::new(),
                part => format!("Sections: Part {part}"),
            };
            (id.clone(), Bead { description, ..bead(id, &[]) })
        };
        let beads: Beads = self.run.beads.keys().enumerate().map(of_part).collect();
        let (spec, sha256) = ("plan.md".to_string(), format!("s{number}"));
        let amended =
            amendment::amend(&self.run, (&old, &spec_of(&texts)), &beads, spec, sha256).ok()?;
        self.texts.push(texts);
        Some(amended)
    }

    /// A person resumes an ended run.
    fn come_back(&mut self) -> bool {
        if self.returns == 3 || !self.dice.one_in(3) {
            return false;
        }
        self.returns += 1;
        let mut settings = self.run.settings.clone();
        settings.max_iterations += 1;
        settings.judge_only = self.dice.one_in(2);
        let from = self.dice.one_in(2).then_some(GoOn::Judge);
        self.resume(settings, from);
        self.run.is_live()
    }

    /// Makes the beads of a plan. Those of an amendment may wait for beads that stay.
    fn plan(&mut self) -> Vec<Bead> {
        let id = match self.run.versions.current {
            0 => "b".to_string(),
            version => format!("v{version}b"),
        };
        let kept: Vec<String> = match self.run.is_amending() {
            true => self.run.beads.keys().cloned().collect(),
            false => vec![],
        };
        let mut beads = vec![];
        for n in 0..1 + self.dice.below(8) {
            let mut on: Vec<String> = vec![];
            for before in (0..n).map(|before| format!("{id}{before}")).chain(kept.clone()) {
                if self.dice.one_in(3) {
                    on.push(before);
                }
            }
            let on: Vec<&str> = on.iter().map(String::as_str).collect();
            beads.push(bead(&format!("{id}{n}"), &on));
        }
        beads
    }

    /// Carries out one of the pending effects.
    fn step(&mut self) {
        let pending = effects(&self.run);
        if pending.is_empty() {
            // The run rests: a person resumes it, possibly from a phase that is not allowed.
            let settings = self.run.settings.clone();
            let from = self.dice.below(6);
            self.resume(
                settings,
                [GoOn::Implement, GoOn::Maintain, GoOn::Judge].get(from).copied(),
            );
            self.resume(self.run.settings.clone(), None);
            return;
        }
        let at = self.dice.below(pending.len());
        match pending[at].clone() {
            Effect::Freeze => self.feed(Input::Frozen {
                sha256: "s".into(),
                base_branch: "main".into(),
                base_commit: "c".into(),
                target_branch: "t".into(),
            }),
            Effect::SealGiven => {
                self.feed(Input::Sealed(Sealed { path: "/c".into(), sha256: "x".into() }))
            }
            Effect::Gather { .. } => {
                let beads = self.plan();
                self.feed(Input::Gathered { beads, closed_outside: vec![] });
            }
            Effect::AcceptBeads => self.feed(Input::BeadsAccepted),
            Effect::Agent(job) | Effect::End(job) => {
                let end = Box::new(self.job_end(job.start.purpose));
                self.feed(Input::JobEnded { dispatch: job.start.dispatch, end });
            }
            Effect::LookOutside => self.feed(Input::Outside { closed: vec![] }),
            Effect::ApplyVerdict { iteration, verdict, result } => {
                let mut triage = Triage::default();
                // Each verdict has different findings.
                for (at, _) in result.remedies().iter().enumerate() {
                    let title = format!("finding {at} of verdict {}", self.run.verdicts.len());
                    let id = judge::remedy_id(self.run.hash(), verdict, at);
                    let key = judge::remedy_key(self.run.id(), verdict, at);
                    let (id, made) = self.made.entry(key).or_insert((id, title.clone())).clone();
                    assert_eq!(made, title, "another verdict's bead is given back");
                    assert!(!self.run.beads.contains_key(&id), "{id} has been worked on");
                    triage.beads.push(planned(&id));
                }
                for one in self.run.triaged(&result) {
                    assert!(
                        !self.run.beads.contains_key(&one.bead_id),
                        "{} is worked on",
                        one.bead_id
                    );
                    if one.action == "promote" {
                        triage.beads.push(planned(&one.bead_id));
                        triage.promoted.push(one.bead_id.clone());
                    } else {
                        triage.dismissed.push(one.bead_id.clone());
                    }
                }
                self.feed(Input::Applied { iteration, triage });
            }
            Effect::Finish => self.feed(Input::Published {
                branch: "b".into(),
                commit: "c".into(),
                merge: "m".into(),
                pr: None,
            }),
            Effect::WakeAt(at) => {
                self.now = self.now.max(at);
                self.settle();
            }
        }
    }
}

fn planned(id: &str) -> Planned {
    Planned {
        id: id.into(),
        title: id.into(),
        priority: 1,
        created_at: String::new(),
        depends_on: vec![],
        outside: vec![],
        closed: false,
    }
}

fn record(seq: u64, ts: Timestamp, event: Event) -> Record {
    let entry = Entry { id: format!("e{seq}"), dispatch_id: None, at: None, more: false, event };
    Record { v: 1, seq, ts, entry }
}

fn simulate(seed: u64) {
    let mut world = World::new(seed);
    world.settle();
    for _ in 0..5_000 {
        if world.run.outcome().is_some() {
            let blocked = world.run.count(Stage::Blocked);
            if world.run.outcome() == Some(RunStatus::Completed) {
                assert_eq!(blocked, 0, "completed with a blocked bead");
                assert_eq!(world.run.count(Stage::Done), world.run.beads.len());
            }
            assert!(world.run.iteration <= world.run.settings.max_iterations);
            if !world.come_back() {
                return;
            }
            continue;
        }
        world.now = world.now.checked_add(SignedDuration::from_secs(1)).expect("a time");
        if world.dice.one_in(6) {
            world.crash();
        }
        if world.dice.one_in(60) {
            world.feed(Input::Stop { reason: "a person".into() });
        }
        world.step();
    }
    panic!("seed {seed}: the run does not end: {:?} {:?}", world.run.phase, world.log.last());
}

#[test]
fn every_run_ends_and_nothing_is_lost_or_done_twice_at_once() {
    let seeds = match std::env::var("MULETEER_SEED") {
        Ok(seed) => vec![seed.parse().expect("MULETEER_SEED is a number")],
        Err(_) => (0..2_000).collect(),
    };
    for seed in seeds {
        if std::panic::catch_unwind(|| simulate(seed)).is_err() {
            panic!("seed {seed} fails: MULETEER_SEED={seed} replays it");
        }
    }
}
