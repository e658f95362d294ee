//! Samples of the events of a spec run.

use crate::events::catalog::TRACE;
use jiff::Timestamp;
use muleteer_model::event::{Event, Outcome};
use muleteer_model::spec_run::event as run;
use muleteer_model::spec_run::judge::{Acceptance, JudgeResult, NewBead, SpecDrift};
use muleteer_protocol::ErrorCode;

const RUN: &str = "run-2026-02-12-a1b2c3";

/// Returns the events of a spec run, in their usual order.
pub(super) fn all() -> Vec<Event> {
    [planning, work, judgement, ending].into_iter().flat_map(|part| part()).collect()
}

/// Returns the events about the plan of a run.
fn planning() -> Vec<Event> {
    vec![
        Event::RunStarted(Box::new(run_started())),
        Event::RunResumed {
            run_id: RUN.into(),
            settings: Box::new(run_settings()),
            by: "operator".into(),
            trace: Some(TRACE.into()),
        },
        Event::PhaseChanged { phase: run::Phase::Implement },
        Event::SpecAmended(Box::new(run::SpecAmended {
            number: 1,
            spec: "plan.md".into(),
            title: "Parser".into(),
            sha256: "b2c3d4e5".into(),
            changes: vec![run::SectionChange {
                section: "Header".into(),
                kind: run::ChangeKind::Changed,
            }],
            kept: vec!["k3f9abcd".into()],
            withdrawn: vec![],
            outdated: vec![],
        })),
        Event::BeadsReplanned { beads: vec![planned()] },
        Event::SpecReviewed {
            findings: vec![run::SpecFinding {
                section: "Header".into(),
                description: "No limit of its length is given.".into(),
                severity: run::Severity::Major,
            }],
        },
        Event::SpecFrozen {
            sha256: "a1b2c3d4".into(),
            base_branch: "main".into(),
            base_commit: "9fceb02d".into(),
            target_branch: format!("muleteer/{RUN}"),
        },
        Event::AcceptanceSealed {
            path: "/home/u/.cache/muleteer/run/acceptance".into(),
            sha256: "d4c3b2a1".into(),
        },
        Event::Decomposed {},
        Event::BeadsCreated { count: 1, dependency_edges: 0, beads: vec![planned()] },
        Event::BeadsAccepted {},
        Event::RunApproved { by: "operator".into() },
        Event::PlanChangeRequested {
            by: "slack:U0123ABCD".into(),
            text: "split the export in two".into(),
        },
    ]
}

/// Returns the events about the agents and beads of a run.
fn work() -> Vec<Event> {
    vec![
        Event::BeadAssigned { bead_id: "k3f9abcd".into(), agent: 1, claim: format!("{RUN}:1:0") },
        Event::AgentStarted(Box::new(run::AgentStarted {
            agent: 1,
            purpose: run::Purpose::Implement,
            bead_id: Some("k3f9abcd".into()),
            workdir: format!(".muleteer/worktrees/{RUN}/bead-k3f9abcd-1"),
            dispatch: "a1b2c3x3".into(),
            attempt: 0,
            reuse: true,
        })),
        Event::AgentFinished(Box::new(run::AgentFinished {
            agent: 1,
            purpose: run::Purpose::Implement,
            bead_id: Some("k3f9abcd".into()),
            status: Outcome::Failure,
            duration_ms: 779_980,
            reason: "exit code 1".into(),
            cost_usd: 0.12,
            cli_changed: false,
        })),
        Event::AgentRetried {
            purpose: run::Purpose::Judge,
            reason: "exit code 1".into(),
            counted: true,
        },
        Event::BeadCompleted {
            bead_id: "k3f9abcd".into(),
            by: "agent".into(),
            no_change: false,
            commits: 2,
        },
        Event::BeadRetried {
            bead_id: "k3f9abcd".into(),
            attempt: 1,
            reason: "incomplete: it ended without closing the bead".into(),
            reuse: true,
            counted: true,
            note: "incomplete".into(),
            kind: None,
        },
        Event::BeadBlocked {
            bead_id: "k3f9abcd".into(),
            reason: "exit code 1".into(),
            dependants: vec!["x2ab9999".into()],
            kind: Some(run::FailureKind::Test),
        },
        Event::BeadReopened { bead_id: "k3f9abcd".into(), by: "operator".into() },
        Event::OutsideClosed { bead_id: "k3f9abcd".into(), on: "bd-7".into() },
        Event::PoolSlowed { until: Timestamp::UNIX_EPOCH, reason: "rate limited".into() },
    ]
}

/// Returns the events about observations, maintenance and the judge.
fn judgement() -> Vec<Event> {
    vec![
        Event::ObservationCreated {
            bead_id: "m4n5abcd".into(),
            created_by: "agent-1".into(),
            title: "The parser accepts an empty header".into(),
        },
        Event::MaintenanceStarted {
            maintenance: "maint-1".into(),
            bead_id: "a1b2c3m1".into(),
            trigger_completed_count: 5,
        },
        Event::PushUndone {
            agent: 2,
            reason: "undid a push to main that was not a \
            fast-forward"
                .into(),
        },
        Event::MaintenanceCoalesced { completed_count: 10 },
        Event::MaintenanceFinished { maintenance: "maint-1".into(), status: "success".into() },
        Event::JudgeStarted { iteration: 1, round: 1, observations: vec!["m4n5abcd".into()] },
        Event::JudgeReasoned { round: 1 },
        Event::JudgeFinished(Box::new(run::JudgeFinished {
            iteration: 1,
            verdict: run::Verdict::Fail,
            new_beads: 1,
            reason: "see its result".into(),
            result: Some(verdict()),
        })),
        Event::VerdictApplied {
            iteration: 1,
            triage: Box::new(run::Triage {
                beads: vec![planned()],
                promoted: vec!["m4n5abcd".into()],
                dismissed: vec!["m4n5abce".into()],
            }),
        },
        Event::IterationStarted { iteration: 2, beads: vec![planned()] },
    ]
}

/// Returns the events about the end of a run.
fn ending() -> Vec<Event> {
    vec![
        Event::BranchPublished {
            branch: format!("muleteer/{RUN}"),
            commit: "9fceb02d".into(),
            merge: "git merge".into(),
            unpushed: Some("2 of 15 beads are blocked".into()),
        },
        Event::PrCreated { url: "https://example.org/pull/1".into() },
        Event::BranchPushed {
            branch: format!("muleteer/{RUN}"),
            page: Some(format!("https://github.com/o/r/compare/main...muleteer/{RUN}?expand=1")),
            trouble: Some("gh: not logged in".into()),
        },
        Event::RunWorkKept(run::KeptWork {
            branch: Some(format!("muleteer/{RUN}")),
            commit: Some("9fceb02d".into()),
            commits: 3,
            clones: Some(format!("/repo/.muleteer/worktrees/{RUN}")),
            trouble: Some(
                "cannot fetch the branch into the repository: disk full; the work is in \
                           /state/runs/keep.git"
                    .into(),
            ),
        }),
        Event::RunStopping {
            code: ErrorCode::Deadlock.into(),
            message: "all remaining beads depend on \
            blocked beads"
                .into(),
        },
        Event::RunRested {
            status: run::RunStatus::AwaitingApproval,
            reason: "waiting for approval of its beads".into(),
            question: None,
        },
        Event::RunCompleted { status: run::RunStatus::Completed, total_beads: 15 },
        Event::RunFailed {
            code: ErrorCode::MaxIterations.into(),
            message: "the judge found faults in each of 3 iterations".into(),
            status: run::RunStatus::Partial,
        },
    ]
}

fn run_started() -> run::RunStarted {
    run::RunStarted {
        run_id: RUN.into(),
        spec: "plan.md".into(),
        title: "Feature X".into(),
        repo: "/repo".into(),
        target: "auto".into(),
        bead_label: Some("v2".into()),
        settings: run_settings(),
        trace: Some(TRACE.into()),
        thread: None,
    }
}

fn run_settings() -> run::RunSettings {
    run::RunSettings {
        backend: "example".into(),
        model: Some("opus".into()),
        max_concurrency: 4,
        max_retries: 2,
        timeout_s: 900,
        canary: 0,
        maintain_every: 5,
        maintain_after_all: false,
        maintain_parallel: true,
        judge: true,
        spec_drift: true,
        acceptance: true,
        acceptance_path: Some("/criteria".into()),
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
        budget_usd: Some(20.0),
        max_runtime_s: Some(3600),
        confined: false,
        unconfined: "unshare: Operation not permitted (os error 1)".into(),
        exposed: String::new(),
        private_home: false,
        weakened: String::new(),
    }
}

fn planned() -> run::Planned {
    run::Planned {
        id: "k3f9abcd".into(),
        title: "Parse the header".into(),
        priority: 1,
        created_at: "2026-02-12T10:00:00.000Z".into(),
        depends_on: vec!["x2ab9999".into()],
        outside: vec!["bd-7".into()],
        closed: true,
    }
}

fn verdict() -> JudgeResult {
    JudgeResult {
        status: "success".into(),
        spec_drift: Some(SpecDrift { detected: true, issues: vec![] }),
        acceptance: Some(Acceptance { passed: true, results: vec![] }),
        new_beads: vec![NewBead {
            title: "Add the callback".into(),
            description: String::new(),
            kind: "task".into(),
        }],
        ..JudgeResult::default()
    }
}
