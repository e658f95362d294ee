//! The end of a run, its error, and its resumption.

use crate::event::Outcome;
use crate::spec_run::checkpoint;
use crate::spec_run::decide::{GoOn, Input, Settled, may_go_on};
use crate::spec_run::effects::{Effect, effects};
use crate::spec_run::event::*;
use crate::spec_run::report::work_place::Whereabouts;
use crate::spec_run::state::{PhaseState, Stage};
use crate::spec_run::tests::play::{Play, bead, finds, plan_of, resume, settings, told};
use crate::spec_run::{Frozen, PullRequest, unpushed};

#[test]
fn run_with_open_beads_ends_partial() {
    let mut play = Play::with(settings(), vec![bead("a", &[]), bead("b", &["a"])]);
    play.done("a");
    // An older version allowed this state.
    play.run.jobs.clear();
    play.run.phase = PhaseState::Finish;
    play.feed(Input::Published {
        branch: "b".into(),
        commit: "c".into(),
        merge: "m".into(),
        pr: None,
    });
    assert_eq!(play.run.outcome(), Some(RunStatus::Partial));
    let told = checkpoint::document(&play.run).error.expect("it never exits 0, and says why");
    assert!(told.code == "E_BEADS_BLOCKED" && told.message.contains("are not done: "), "{told:?}");
}

#[test]
fn a_branch_that_is_not_pushed_says_why() {
    let frozen = |branch: &str| Frozen {
        sha256: String::new(),
        base_branch: branch.into(),
        base_commit: "c0".into(),
        target_branch: "t".into(),
    };
    let mut play = Play::with(RunSettings { judge: false, ..settings() }, vec![bead("a", &[])]);
    play.done("a");
    play.run.frozen = Some(frozen("main"));
    assert_eq!(unpushed(&play.run), None);
    let mut of = play.run.clone();
    of.frozen = Some(frozen("HEAD"));
    assert!(unpushed(&of).is_some_and(|why| why.contains("on no branch")));
    let mut of = play.run.clone();
    of.started.target = "feature".into();
    assert!(unpushed(&of).is_some_and(|why| why.contains("push it yourself")));
    let mut of = play.run.clone();
    of.beads.values_mut().for_each(|task| task.stage = Stage::Blocked);
    assert_eq!(unpushed(&of).as_deref(), Some("1 of 1 beads are blocked"));
    let pr = Some(PullRequest::Unpushed("nobody may".into()));
    play.feed(Input::Published { branch: "b".into(), commit: "c".into(), merge: "m".into(), pr });
    assert_eq!(play.run.outcome(), Some(RunStatus::Completed), "it is no failure");
    assert_eq!(play.run.publication.unpushed.as_deref(), Some("nobody may"));
}

#[test]
fn a_branch_without_a_pull_request_names_the_page_for_one() {
    let finish = |pr: Option<PullRequest>| {
        let mut play = Play::with(RunSettings { judge: false, ..settings() }, vec![bead("a", &[])]);
        play.done("a");
        play.feed(Input::Published {
            branch: "b".into(),
            commit: "c".into(),
            merge: "m".into(),
            pr,
        });
        assert_eq!(play.run.outcome(), Some(RunStatus::Completed));
        Whereabouts::of(&play.run).expect("it is over")
    };
    let pushed = |page: Option<&str>| PullRequest::Pushed {
        branch: "t".into(),
        page: page.map(String::from),
        trouble: page.is_none().then(|| "gh: not logged in".to_string()),
    };
    let told = finish(Some(pushed(Some("https://h/new"))));
    assert_eq!((told.branch.as_deref(), told.pushed.as_deref()), (Some("b"), Some("t")));
    assert_eq!(told.next.as_deref(), Some("make a pull request: https://h/new"));
    assert_eq!(told.pr_trouble, None);
    let told = finish(Some(pushed(None)));
    assert!(told.next.is_some_and(|next| next.contains("the branch t at the remote")));
    assert_eq!(told.pr_trouble.as_deref(), Some("gh: not logged in"));
    assert!(
        finish(Some(PullRequest::Made("u".into())))
            .next
            .is_some_and(|next| next.contains("merge u"))
    );
}

#[test]
fn early_end_names_the_work_and_the_next_step() {
    let mut play = Play::with(settings(), vec![bead("a", &[])]);
    assert_eq!(Whereabouts::of(&play.run), None, "it is under way");
    play.run.jobs.clear();
    let kept = KeptWork { branch: Some("muleteer/x".into()), commits: 2, ..KeptWork::default() };
    play.run.publication.preserved = Some(kept);
    play.feed(Input::Fatal { code: "E_GIT".into(), message: "no".into() });
    let told = Whereabouts::of(&play.run).expect("it is over");
    assert_eq!((told.branch.as_deref(), told.commits), (Some("muleteer/x"), Some(2)));
    assert!(told.next.is_some_and(|next| next.starts_with("muleteer run --resume ")));
}

#[test]
fn going_on_from_maintenance_maintains_at_once_and_then_judges() {
    let mut play = Play::with(
        RunSettings { judge: false, maintain_every: 0, ..settings() },
        vec![bead("a", &[])],
    );
    play.done("a");
    play.feed(Input::Published {
        branch: "b".into(),
        commit: "c".into(),
        merge: "m".into(),
        pr: None,
    });
    assert_eq!(play.run.outcome(), Some(RunStatus::Completed));
    play.feed(resume(RunSettings { maintain_every: 0, ..settings() }, Some(GoOn::Maintain)));
    assert!(
        play.run.job_of(Purpose::Maintain).is_some() && play.run.job_of(Purpose::Judge).is_none()
    );
    play.needed(Purpose::Maintain, Outcome::Success, |_| ());
    assert!(play.run.job_of(Purpose::Judge).is_some());
}

#[test]
fn raised_iteration_limit_continues_open_beads() {
    let mut play =
        Play::with(RunSettings { max_iterations: 1, ..settings() }, vec![bead("a", &[])]);
    play.done("a");
    play.verdict(finds("First"));
    let applied = || {
        let beads = ["r", "s"].map(|id| plan_of(&bead(id, &[]))).into();
        Input::Applied { iteration: 1, triage: Triage { beads, ..Triage::default() } }
    };
    play.feed(applied());
    assert_eq!((play.error(), play.run.beads.len()), (Some("E_MAX_ITERATIONS"), 1));
    let told = |play: &Play| checkpoint::document(&play.run).beads;
    assert_eq!(
        (told(&play).total, told(&play).open, told(&play).closed),
        (3, 2, 1),
        "what is left is told"
    );
    play.feed(resume(settings(), None));
    assert!(matches!(
        effects(&play.run).as_slice(),
        [Effect::ApplyVerdict { iteration: 1, verdict: 1, .. }]
    ));
    play.feed(applied());
    assert_eq!(told(&play).total, 3, "each once");
    assert_eq!((play.run.iteration, play.working_on()), (2, vec!["r", "s"]));
}

/// `a` is blocked, and `b` depends on it.
fn deadlocked() -> Play {
    let mut play = Play::with(
        RunSettings { max_retries: 0, ..settings() },
        vec![bead("a", &[]), bead("b", &["a"])],
    );
    play.end("a", Outcome::Failure, |_| ());
    assert_eq!(play.error(), Some("E_DEADLOCK"));
    play
}

fn resumed_after(settled: Vec<Settled>) -> Input {
    Input::Resume {
        settings: Box::new(settings()),
        by: "o".into(),
        approve: false,
        from: None,
        settled,
        trace: None,
    }
}

#[test]
fn resume_uses_changes_to_blocked_beads() {
    let mut play = deadlocked();
    play.feed(resumed_after(vec![told("a", true)]));
    assert_eq!((play.run.beads["a"].stage, play.working_on()), (Stage::Done, vec!["b"]));

    let mut play = deadlocked();
    play.feed(resumed_after(vec![told("a", false)]));
    let task = &play.run.beads["a"];
    assert_eq!(
        (task.stage, task.failures, task.reuse, play.working_on()),
        (Stage::Taken, 0, false, vec!["a"])
    );
    // The bead has all its attempts again.
    play.end("a", Outcome::Failure, |_| ());
    assert_eq!(play.working_on(), ["a"]);

    let mut play = deadlocked();
    play.feed(resumed_after(vec![]));
    assert_eq!(play.error(), Some("E_DEADLOCK"), "nothing was done about it");
    let both = [told("a", true), told("b", true)];
    assert!(may_go_on(&play.run, GoOn::Judge, false, &[]).is_err());
    assert!(may_go_on(&play.run, GoOn::Judge, false, &both).is_ok(), "nothing is left to do");
}

/// After Ctrl-C the maintenance once counted as failed, and was never repeated.
#[test]
fn maintenance_stopped_with_its_run_is_repeated() {
    let mut play =
        Play::with(RunSettings { maintain_every: 1, ..settings() }, vec![bead("a", &[])]);
    play.done("a");
    play.feed(Input::Stop { reason: "it was stopped".into() });
    play.needed(Purpose::Maintain, Outcome::Failure, |_| ());
    assert_eq!(
        (play.run.status(), play.run.maintenance.runs[0].state.as_str()),
        (RunStatus::Pending, "stopped")
    );
    play.feed(resume(RunSettings { maintain_every: 1, ..settings() }, None));
    assert!(
        play.run.job_of(Purpose::Maintain).is_some() && play.run.job_of(Purpose::Judge).is_none()
    );
    // Maintenance that failed by itself is not repeated, nor is one that succeeded while the run
    // stopped.
    play.needed(Purpose::Maintain, Outcome::Failure, |_| ());
    assert!(play.run.job_of(Purpose::Judge).is_some());
    assert_eq!(
        play.run.maintenance.runs.iter().map(|one| one.state.as_str()).collect::<Vec<_>>(),
        ["stopped", "failure"]
    );

    let forced = RunSettings { judge: false, maintain_every: 0, ..settings() };
    let mut play = Play::with(forced.clone(), vec![bead("a", &[])]);
    play.done("a");
    play.feed(Input::Published {
        branch: "b".into(),
        commit: "c".into(),
        merge: "m".into(),
        pr: None,
    });
    play.feed(resume(forced.clone(), Some(GoOn::Maintain)));
    play.feed(Input::Stop { reason: "it was stopped".into() });
    play.needed(Purpose::Maintain, Outcome::Failure, |_| ());
    play.feed(resume(forced.clone(), None));
    play.feed(Input::Stop { reason: "it was stopped".into() });
    play.needed(Purpose::Maintain, Outcome::Success, |_| ());
    play.feed(resume(forced, None));
    assert_eq!((play.run.phase(), play.run.jobs.len()), (Phase::Finish, 0), "it had ended well");
}

#[test]
fn stopped_run_has_an_error_and_waiting_run_has_none() {
    let mut play = Play::with(settings(), vec![bead("a", &[])]);
    play.feed(Input::Stop { reason: "it was stopped".into() });
    play.end("a", Outcome::Failure, |_| ());
    let code = |play: &Play| checkpoint::document(&play.run).error.map(|error| error.code);
    assert_eq!(
        (play.run.status(), code(&play)),
        (RunStatus::Pending, Some("E_RUN_STOPPED".into()))
    );
    assert_eq!(
        checkpoint::run_log(&play.run).error.map(|error| error.code),
        Some("E_RUN_STOPPED".into())
    );
    play.feed(resume(settings(), None));
    assert_eq!(code(&play), None);
    let play = Play::with(RunSettings { dry_run: true, ..settings() }, vec![bead("a", &[])]);
    assert_eq!((play.run.status(), code(&play)), (RunStatus::Pending, None));
}
