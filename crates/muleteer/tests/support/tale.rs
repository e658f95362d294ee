//! Example runs as sequences of events, for tests of their display.
#![allow(dead_code)] // each test uses its part

use jiff::{SignedDuration, Timestamp};
use muleteer_model::event::{Entry, Event, Outcome, Record};
use muleteer_model::spec_run::event::*;
use muleteer_model::spec_run::judge::{
    Acceptance, Criterion, Issue, JudgeResult, NewBead, Observation, SpecDrift,
};
use muleteer_model::spec_run::report::history::Chronicle;

pub struct Tale {
    pub chronicle: Chronicle,
    pub now: Timestamp,
    seq: u64,
}

impl Tale {
    pub fn new(title: &str) -> Self {
        let now: Timestamp = "2026-02-12T10:00:00Z".parse().expect("a time");
        let settings = RunSettings {
            backend: "claude-code".into(),
            model: Some("claude-opus-4-6".into()),
            max_concurrency: 4,
            max_retries: 2,
            timeout_s: 900,
            canary: 0,
            maintain_every: 3,
            maintain_after_all: false,
            maintain_parallel: true,
            judge: true,
            spec_drift: true,
            acceptance: true,
            acceptance_path: None,
            acceptance_links: false,
            max_iterations: 3,
            judge_only: false,
            human_review: false,
            review_merge: false,
            preview_acceptance: false,
            review_spec: false,
            review_approved: false,
            dry_run: false,
            pull_request: true,
            push: false,
            cleanup: true,
            confined: true,
            unconfined: String::new(),
            exposed: String::new(),
            private_home: false,
            weakened: String::new(),
            budget_usd: None,
            max_runtime_s: None,
        };
        let started = RunStarted {
            run_id: "run-2026-02-12-a1b2c3".into(),
            spec: "plan.md".into(),
            title: title.into(),
            repo: "/home/u/web".into(),
            target: "auto".into(),
            bead_label: None,
            settings,
            trace: None,
            thread: None,
        };
        let first = record(1, now, Event::RunStarted(Box::new(started)));
        let chronicle = Chronicle::begin(&first).expect("a run");
        Self { chronicle, now, seq: 1 }
    }

    pub fn pass(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    pub fn event(&mut self, event: Event) {
        self.seq += 1;
        self.chronicle.apply(&record(self.seq, self.now, event));
    }

    pub fn start(&mut self, agent: u32, purpose: Purpose, bead: Option<&str>, attempt: u32) {
        if let Some(bead) = bead {
            self.event(Event::BeadAssigned { bead_id: bead.into(), agent, claim: String::new() });
        }
        self.event(Event::AgentStarted(Box::new(AgentStarted {
            agent,
            purpose,
            bead_id: bead.map(str::to_string),
            workdir: format!(".muleteer/worktrees/agent-{agent}"),
            dispatch: format!("d{:05}", self.seq),
            attempt,
            reuse: false,
        })));
    }

    pub fn end(&mut self, agent: u32, status: Outcome, reason: &str, cost_usd: f64) {
        let stint = self
            .chronicle
            .stints
            .iter()
            .rev()
            .find(|stint| stint.start.agent == agent)
            .expect("at work");
        let (start, began) = (stint.start.clone(), stint.began);
        let duration_ms = (self.now.as_millisecond() - began.as_millisecond()).unsigned_abs();
        self.event(Event::AgentFinished(Box::new(AgentFinished {
            agent,
            purpose: start.purpose,
            bead_id: start.bead_id.clone(),
            status,
            duration_ms,
            reason: reason.into(),
            cost_usd,
            cli_changed: false,
        })));
    }

    pub fn done(&mut self, agent: u32, cost_usd: f64) {
        let stint = self
            .chronicle
            .stints
            .iter()
            .rev()
            .find(|stint| stint.start.agent == agent)
            .expect("at work");
        let bead_id = stint.start.bead_id.clone().unwrap_or_default();
        self.end(agent, Outcome::Success, "", cost_usd);
        self.event(Event::BeadCompleted {
            bead_id,
            by: "agent".into(),
            no_change: false,
            commits: 1,
        });
    }

    pub fn retried(&mut self, agent: u32, status: Outcome, reason: &str) {
        let stint = self
            .chronicle
            .stints
            .iter()
            .rev()
            .find(|stint| stint.start.agent == agent)
            .expect("at work");
        let bead_id = stint.start.bead_id.clone().unwrap_or_default();
        let attempt = stint.start.attempt + 1;
        self.end(agent, status, reason, 0.11);
        let (reuse, counted, note) = (false, true, String::new());
        self.event(Event::BeadRetried {
            bead_id,
            attempt,
            reason: reason.into(),
            reuse,
            counted,
            note,
            kind: None,
        });
    }

    /// Freezes the spec and decomposes it into these beads.
    pub fn beads(&mut self, beads: &[Planned]) {
        self.event(Event::SpecFrozen {
            sha256: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08".into(),
            base_branch: "main".into(),
            base_commit: "0123456789abcdef0123456789abcdef01234567".into(),
            target_branch: "muleteer/run-2026-02-12-a1b2c3".into(),
        });
        self.start(1, Purpose::Acceptance, None, 0);
        self.pass(40);
        self.end(1, Outcome::Success, "", 0.21);
        self.event(Event::AcceptanceSealed {
            path: "/cache/acceptance".into(),
            sha256: "ab".repeat(32),
        });
        self.event(Event::PhaseChanged { phase: Phase::Decompose });
        self.start(1, Purpose::Decompose, None, 0);
        self.pass(75);
        self.end(1, Outcome::Success, "", 0.34);
        self.event(Event::Decomposed {});
        let edges = beads.iter().map(|bead| bead.depends_on.len() as u32).sum();
        let (count, beads) = (beads.len() as u32, beads.to_vec());
        self.event(Event::BeadsCreated { count, dependency_edges: edges, beads });
        self.event(Event::BeadsAccepted {});
        self.event(Event::PhaseChanged { phase: Phase::Implement });
    }

    pub fn judge(&mut self, end: JudgeFinished) {
        self.event(Event::PhaseChanged { phase: Phase::Judge });
        self.event(Event::JudgeStarted {
            iteration: end.iteration,
            round: 1,
            observations: vec![],
        });
        self.start(1, Purpose::Judge, None, 0);
        self.pass(150);
        self.end(1, Outcome::Success, "", 0.62);
        self.event(Event::JudgeReasoned { round: 1 });
        self.start(1, Purpose::Structure, None, 0);
        self.pass(20);
        self.end(1, Outcome::Success, "", 0.04);
        self.event(Event::JudgeFinished(Box::new(end)));
    }

    pub fn complete(&mut self) {
        self.event(Event::PhaseChanged { phase: Phase::Finish });
        let branch = "muleteer/run-2026-02-12-a1b2c3".to_string();
        self.event(Event::BranchPublished {
            merge: format!("git merge {branch}"),
            branch,
            commit: "0".repeat(40),
            unpushed: None,
        });
        self.event(Event::PrCreated { url: "https://example.invalid/pull/7".into() });
        let total_beads = self.chronicle.run.beads.len() as u32;
        self.event(Event::RunCompleted { status: RunStatus::Completed, total_beads });
    }
}

fn record(seq: u64, ts: Timestamp, event: Event) -> Record {
    let entry = Entry { id: format!("e{seq}"), dispatch_id: None, at: None, more: false, event };
    Record { v: 1, seq, ts, entry }
}

pub fn planned(id: &str, title: &str, on: &[&str]) -> Planned {
    Planned {
        id: id.into(),
        title: title.into(),
        priority: 2,
        created_at: "2026-02-12T10:01:00Z".into(),
        depends_on: on.iter().map(|on| (*on).to_string()).collect(),
        outside: vec![],
        closed: false,
    }
}

pub fn verdict(iteration: u32, verdict: Verdict) -> JudgeFinished {
    let passed = verdict == Verdict::Pass;
    let criterion = |criterion: &str, passed, evidence: &str| Criterion {
        criterion: criterion.into(),
        passed,
        evidence: evidence.into(),
    };
    let issue = Issue {
        section: "Output".into(),
        description: "The spec wants a trailing newline; none is written.".into(),
        severity: "major".into(),
    };
    let result = JudgeResult {
        status: "success".into(),
        spec_drift: Some(SpecDrift {
            detected: !passed,
            issues: if passed { vec![] } else { vec![issue] },
        }),
        acceptance: Some(Acceptance {
            passed,
            results: vec![
                criterion("A file of numbers is sorted as numbers", true, "10 comes after 9"),
                criterion(
                    "Sorting an empty file prints nothing",
                    passed,
                    "exit code 1, and a message",
                ),
            ],
        }),
        observations: vec![Observation {
            bead_id: "obs1".into(),
            action: "dismiss".into(),
            reason: "Out of scope.".into(),
            merge_with: None,
        }],
        new_beads: if passed {
            vec![]
        } else {
            vec![NewBead {
                title: "End with a newline".into(),
                description: "See Output.".into(),
                kind: "bug".into(),
            }]
        },
    };
    let reason = if passed { "everything was accepted" } else { "the spec was not kept" };
    JudgeFinished {
        iteration,
        verdict,
        new_beads: u32::from(!passed),
        reason: reason.into(),
        result: Some(result),
    }
}

/// Returns a run with three beads, one of them tried twice, and a judge that passes it the second
/// time.
pub fn small() -> Chronicle {
    let mut tale = Tale::new("A line sorter");
    tale.beads(&[
        planned("p4k2", "Parse the command line", &[]),
        planned("s7m1", "Sort lines, by text and by number", &["p4k2"]),
        planned("o9x3", "Write them out, and tell of errors", &["p4k2"]),
    ]);
    tale.start(1, Purpose::Implement, Some("p4k2"), 0);
    tale.pass(190);
    tale.done(1, 0.42);
    tale.start(1, Purpose::Implement, Some("s7m1"), 0);
    tale.start(2, Purpose::Implement, Some("o9x3"), 0);
    tale.pass(120);
    tale.retried(2, Outcome::Failure, "exit code 1: the tests do not pass");
    tale.start(2, Purpose::Implement, Some("o9x3"), 1);
    tale.pass(60);
    tale.done(1, 0.51);
    tale.pass(100);
    tale.done(2, 0.38);
    tale.event(Event::MaintenanceStarted {
        maintenance: "maintain-1".into(),
        bead_id: "mnt1".into(),
        trigger_completed_count: 3,
    });
    tale.start(1, Purpose::Maintain, Some("mnt1"), 0);
    tale.pass(80);
    tale.end(1, Outcome::Success, "", 0.12);
    tale.event(Event::MaintenanceFinished {
        maintenance: "maintain-1".into(),
        status: "success".into(),
    });
    tale.judge(verdict(1, Verdict::Fail));
    let mended = vec![planned("n1l8", "End with a newline", &[])];
    tale.event(Event::IterationStarted { iteration: 2, beads: mended });
    tale.start(1, Purpose::Implement, Some("n1l8"), 0);
    tale.pass(70);
    tale.done(1, 0.19);
    tale.judge(verdict(2, Verdict::Pass));
    tale.complete();
    tale.chronicle
}

/// Returns a run with this many beads in layers. Four agents work on it, with an occasional
/// failure, and one bead is added in the second iteration.
pub fn many(count: usize, layers: usize) -> Chronicle {
    const WORDS: [&str; 8] = [
        "Parse the header",
        "Store what was read",
        "Draw the table of contents",
        "Refuse bad input",
        "Write tests for limits",
        "Cache",
        "Follow links between pages and tell of broken ones",
        "Document the format",
    ];
    let mut dice = 42u64;
    let mut roll = move |sides: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % sides
    };
    let id = |at: usize| format!("b{at:04}");
    let per = count.div_ceil(layers).max(1);
    let beads: Vec<Planned> = (0..count)
        .map(|at| {
            let layer = at / per;
            let mut on: Vec<String> = vec![];
            if layer > 0 && roll(12) > 0 {
                for _ in 0..=roll(3) {
                    let from = if roll(5) == 0 && layer > 1 { layer - 2 } else { layer - 1 };
                    let other = id(from * per + usize::try_from(roll(per as u64)).unwrap_or(0));
                    if !on.contains(&other) {
                        on.push(other);
                    }
                }
            }
            let on: Vec<&str> = on.iter().map(String::as_str).collect();
            planned(&id(at), &format!("{} ({at})", WORDS[at % WORDS.len()]), &on)
        })
        .collect();
    let mut tale = Tale::new(
        "A static site generator with a rather long name, so that it has to be broken somewhere",
    );
    tale.beads(&beads);
    // The ends to come: (second, agent, bead, attempt).
    let mut at_work: Vec<(i64, u32, String, u32)> = vec![];
    let mut clock = 0i64;
    let mut again: Vec<(String, u32)> = vec![];
    loop {
        while at_work.len() < 4 {
            let free = (1..=4)
                .find(|agent| at_work.iter().all(|(_, busy, ..)| busy != agent))
                .unwrap_or(1);
            let next = again
                .pop()
                .or_else(|| tale.chronicle.run.schedule.next().map(|id| (id.to_string(), 0)));
            let Some((bead, attempt)) = next else { break };
            tale.start(free, Purpose::Implement, Some(&bead), attempt);
            let length = 60 + i64::try_from(roll(400)).unwrap_or(0);
            at_work.push((clock + length, free, bead, attempt));
        }
        at_work.sort();
        if at_work.is_empty() {
            break;
        }
        let (end, agent, bead, attempt) = at_work.remove(0);
        tale.pass(end - clock);
        clock = end;
        if attempt == 0 && roll(9) == 0 {
            let (status, why) = if roll(2) == 0 {
                (Outcome::Timeout, "no end after 15m")
            } else {
                (Outcome::Failure, "exit code 1")
            };
            tale.retried(agent, status, why);
            again.push((bead, attempt + 1));
        } else {
            tale.done(agent, 0.05 + roll(90) as f64 / 100.0);
        }
    }
    tale.judge(verdict(1, Verdict::Fail));
    tale.event(Event::IterationStarted {
        iteration: 2,
        beads: vec![planned("again", "End with a newline", &[])],
    });
    tale.start(1, Purpose::Implement, Some("again"), 0);
    tale.pass(200);
    tale.done(1, 0.2);
    tale.judge(verdict(2, Verdict::Pass));
    tale.complete();
    tale.chronicle
}

/// Returns a run with a bead that fails permanently, and beads that wait for it.
pub fn failed() -> Chronicle {
    let mut tale = Tale::new("A run that did not get far");
    tale.beads(&[
        planned("base", "The base of it all", &[]),
        planned("left", "The left part", &["base"]),
        planned("rght", "The right part", &["base"]),
        planned("free", "Something else entirely", &[]),
    ]);
    tale.start(1, Purpose::Implement, Some("free"), 0);
    tale.start(2, Purpose::Implement, Some("base"), 0);
    tale.pass(100);
    tale.done(1, 0.2);
    tale.pass(800);
    tale.retried(2, Outcome::Timeout, "timeout after 15m");
    tale.start(2, Purpose::Implement, Some("base"), 1);
    tale.pass(300);
    tale.retried(2, Outcome::Failure, "exit code 2");
    tale.start(2, Purpose::Implement, Some("base"), 2);
    tale.pass(200);
    tale.end(2, Outcome::Failure, "exit code 2", 0.3);
    let dependants = vec!["left".into(), "rght".into()];
    tale.event(Event::BeadBlocked {
        bead_id: "base".into(),
        reason: "exit code 2, after 3 attempts".into(),
        dependants,
        kind: None,
    });
    let message = "no bead can be worked on: left ← base (blocked), rght ← base (blocked)";
    tale.event(Event::RunFailed {
        code: "E_DEADLOCK".into(),
        message: message.into(),
        status: RunStatus::Failed,
    });
    tale.chronicle
}
