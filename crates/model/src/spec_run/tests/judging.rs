//! The verdicts of the judge: which ones are accepted, and the beads that they create.

use crate::event::Outcome;
use crate::spec_run::checkpoint;
use crate::spec_run::decide::{GoOn, Input, may_go_on};
use crate::spec_run::effects::{Effect, effects};
use crate::spec_run::event::*;
use crate::spec_run::judge::{self, Issue, JudgeResult, NewBead, Observation, SpecDrift};
use crate::spec_run::tests::play::{Play, bead, content, finds, resume, settings};

#[test]
fn incomplete_verdict_is_requested_again_and_never_passes() {
    let judged = || {
        let mut play = Play::with(settings(), vec![bead("a", &[])]);
        play.done("a");
        play
    };
    let bare = JudgeResult {
        status: "success".into(),
        new_beads: vec![NewBead { title: "This must be done".into(), ..NewBead::default() }],
        ..JudgeResult::default()
    };
    let mut play = judged();
    play.verdict(bare.clone());
    assert_eq!(play.run.phase(), Phase::Judge);
    assert!(
        play.run.complaint(Purpose::Structure).contains("specDrift"),
        "it is told what was missing"
    );
    play.structured(content());
    play.feed(Input::Applied { iteration: 1, triage: Triage::default() });
    assert_eq!(play.run.phase(), Phase::Finish);
    let mut play = judged();
    play.verdict(bare.clone());
    play.structured(bare);
    assert_eq!(play.error(), Some("E_JUDGE_PARSE_FAILED"));
    // Sealed criteria must be judged too.
    let mut play = judged();
    play.run.settings.acceptance = true;
    play.run.sealed =
        Some(crate::spec_run::state::Sealed { path: "/criteria".into(), sha256: "s".into() });
    play.verdict(JudgeResult { acceptance: None, ..content() });
    assert!(play.run.complaint(Purpose::Structure).contains("acceptance"));
}

/// The contract defines a pass without regard to `newBeads`.
#[test]
fn pass_with_new_beads_is_requested_again_once() {
    let spare = JudgeResult {
        new_beads: vec![NewBead { title: "Tidy the tests".into(), ..NewBead::default() }],
        ..content()
    };
    let mut play = Play::with(settings(), vec![bead("a", &[])]);
    play.done("a");
    play.verdict(spare.clone());
    assert_eq!((play.run.phase(), play.error()), (Phase::Judge, None));
    assert!(
        play.run.complaint(Purpose::Structure).contains("Tidy the tests"),
        "it is told what contradicts"
    );
    play.structured(spare);
    let last = play.run.verdicts.last().expect("a verdict");
    assert_eq!((last.verdict, last.new_beads), (Verdict::Pass, 0));
    assert!(last.reason.contains("Tidy the tests"), "{}", last.reason);
    play.feed(Input::Applied { iteration: 1, triage: Triage::default() });
    assert_eq!((play.run.phase(), play.error()), (Phase::Finish, None));
}

/// Plays a pass that `with` modifies, twice: the first time it is rejected.
fn told_twice(with: impl Fn(&Play) -> JudgeResult) -> Play {
    let mut play = noted();
    let result = with(&play);
    play.verdict(result.clone());
    assert_eq!(
        (play.run.phase(), play.run.verdicts.len()),
        (Phase::Judge, 1),
        "it is asked for once more"
    );
    assert!(play.run.job_of(Purpose::Structure).is_some());
    play.structured(result);
    play
}

/// A run before its judge: one bead is blocked, and an agent has noted an observation.
fn noted() -> Play {
    let mut play = Play::with(
        RunSettings { max_retries: 0, ..settings() },
        vec![bead("a", &[]), bead("bad", &[])],
    );
    play.end("bad", Outcome::Failure, |_| ());
    play.end("a", Outcome::Success, |end| {
        (end.closed, end.commits, end.on_target) = (true, 1, true);
        end.observations = vec!["noted".into()];
    });
    play
}

fn triages(id: &str, action: &str) -> Vec<Observation> {
    vec![Observation { bead_id: id.into(), action: action.into(), ..Observation::default() }]
}

/// The verdict once dismissed a blocked bead; the bead was closed, and the run completed.
#[test]
fn verdict_about_a_bead_in_progress_is_ignored() {
    for action in ["dismiss", "merge", "promote"] {
        for id in ["bad", "unknown"] {
            let play =
                told_twice(|_| JudgeResult { observations: triages(id, action), ..content() });
            assert_eq!(
                (play.error(), play.run.iteration),
                (Some("E_JUDGE_PARSE_FAILED"), 1),
                "{action} {id}"
            );
        }
    }
    // An older version may have recorded such a verdict. It has no effect.
    let mut play = Play::with(settings(), vec![bead("bad", &[])]);
    play.run.observations.pending.insert("noted".into());
    let result = JudgeResult {
        observations: [
            triages("bad", "dismiss"),
            triages("noted", "dismiss"),
            triages("noted", "promote"),
        ]
        .concat(),
        ..content()
    };
    let told: Vec<_> = play
        .run
        .triaged(&result)
        .iter()
        .map(|one| (one.bead_id.as_str(), one.action.as_str()))
        .collect();
    assert_eq!(told, [("noted", "dismiss")]);
}

#[test]
fn contradictory_pass_fails_and_a_missing_observation_is_named() {
    let issue = Issue { severity: "critical".into(), ..Issue::default() };
    let play = told_twice(|_| JudgeResult {
        spec_drift: Some(SpecDrift { detected: false, issues: vec![issue.clone()] }),
        observations: triages("noted", "dismiss"),
        ..content()
    });
    assert_eq!(
        (play.error(), play.run.status()),
        (Some("E_JUDGE_PARSE_FAILED"), RunStatus::Failed)
    );

    let mut play = noted();
    play.verdict(content());
    assert!(
        play.run.verdicts[0].verdict == Verdict::Pass
            && play.run.verdicts[0].reason.contains("noted")
    );
    assert_eq!(play.run.complaints().count(), 0);
    play.feed(Input::Applied { iteration: 1, triage: Triage::default() });
    assert_eq!(
        (play.run.phase(), checkpoint::document(&play.run).observations),
        (Phase::Finish, vec!["noted".into()])
    );
}

#[test]
fn no_phase_skips_the_judge_or_an_approval() {
    let mut play = Play::with(RunSettings { dry_run: true, ..settings() }, vec![bead("a", &[])]);
    assert_eq!(
        may_go_on(&play.run, GoOn::Judge, false, &[]).expect_err("a is open").code,
        "E_BAD_INPUT"
    );
    play.feed(resume(settings(), Some(GoOn::Judge)));
    assert_eq!(
        (play.run.status(), play.run.jobs.len()),
        (RunStatus::Pending, 0),
        "nothing of it is recorded"
    );
    play.feed(resume(settings(), Some(GoOn::Implement)));
    assert_eq!(play.working_on(), ["a"]);
    assert_eq!(
        may_go_on(&play.run, GoOn::Judge, false, &[]).expect_err("it is at work").code,
        "E_RUN_LOCKED"
    );

    let play = Play::new(settings());
    assert_eq!(
        may_go_on(&play.run, GoOn::Implement, false, &[]).expect_err("there are no beads").code,
        "E_BAD_INPUT"
    );
    let play = Play::with(RunSettings { human_review: true, ..settings() }, vec![bead("a", &[])]);
    assert!(
        may_go_on(&play.run, GoOn::Implement, false, &[]).is_err()
            && may_go_on(&play.run, GoOn::Implement, true, &[]).is_ok()
    );
}

/// The store returns an existing bead for a known key, so two verdicts must not share a key.
#[test]
fn each_verdict_creates_its_own_beads() {
    let mut play =
        Play::with(RunSettings { max_iterations: 1, ..settings() }, vec![bead("a", &[])]);
    play.done("a");
    let number = |play: &Play| match effects(&play.run).as_slice() {
        [Effect::ApplyVerdict { verdict, .. }] => *verdict,
        other => panic!("{other:?}"),
    };
    play.verdict(finds("First"));
    let first = number(&play);
    play.feed(Input::Applied { iteration: 1, triage: Triage::default() });
    assert_eq!(play.error(), Some("E_MAX_ITERATIONS"));
    play.feed(resume(settings(), Some(GoOn::Judge)));
    play.verdict(finds("Second"));
    let second = number(&play);
    let key = |verdict| {
        (
            judge::remedy_key(play.run.id(), verdict, 0),
            judge::remedy_id(play.run.hash(), verdict, 0),
        )
    };
    assert_ne!((key(first).0, key(first).1), key(second));
}

/// A wrong judge would pass anything, so its run does not claim more than a check.
#[test]
fn judge_whose_cli_changed_during_the_run_is_a_reason_for_checked() {
    let confined = RunSettings { confined: true, ..settings() };
    let mut play = Play::with(confined, vec![bead("a", &[])]);
    play.done("a");
    let changed = |play: &Play| {
        let enforced = play.run.enforced();
        assert_eq!(enforced.judge_read_only, "checked");
        enforced.reason.is_some_and(|reason| reason.contains("CLI changed during the run"))
    };
    assert!(!changed(&play));
    play.needed(Purpose::Judge, Outcome::Success, |end| end.cli_changed = true);
    assert!(changed(&play));
}
