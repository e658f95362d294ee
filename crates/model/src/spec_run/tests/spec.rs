//! The review of a spec before its freeze.

use crate::event::Outcome;
use crate::spec_run::decide::Input;
use crate::spec_run::effects::{Effect, effects};
use crate::spec_run::event::*;
use crate::spec_run::tests::play::{Play, resume, settings};

fn finding() -> SpecFinding {
    let (section, description) = ("Header".into(), "no limit".into());
    SpecFinding { section, description, severity: Severity::Major }
}

fn under_review(settings: RunSettings) -> Play {
    let play = Play::new(RunSettings { review_spec: true, ..settings });
    assert!(play.run.job_of(Purpose::Review).is_some(), "{:?}", play.run.jobs);
    assert!(!effects(&play.run).contains(&Effect::Freeze), "a review comes before the freeze");
    play
}

#[test]
fn findings_of_the_spec_review_wait_for_approval() {
    let mut play =
        under_review(RunSettings { preview_acceptance: true, human_review: true, ..settings() });
    play.needed(Purpose::Review, Outcome::Success, |end| end.findings = vec![finding()]);
    assert_eq!((play.run.status(), play.run.phase()), (RunStatus::AwaitingApproval, Phase::Freeze));
    let settings = play.run.settings.clone();
    play.feed(resume(settings.clone(), None));
    assert_eq!(play.run.status(), RunStatus::AwaitingApproval, "nobody has approved them");
    assert!(play.run.jobs.is_empty(), "the spec is reviewed once");
    let (preview_acceptance, review_approved) = (false, true);
    play.feed(Input::Resume {
        settings: Box::new(RunSettings { preview_acceptance, review_approved, ..settings }),
        by: "o".into(),
        approve: true,
        from: None,
        settled: vec![],
        trace: None,
    });
    assert_eq!(effects(&play.run), [Effect::Freeze]);
    assert!(play.run.settings.preview_acceptance, "the criteria are not approved");
    assert!(!play.run.approved, "the beads are not approved");
}

#[test]
fn spec_review_without_findings_or_with_approval_continues_to_the_freeze() {
    for (findings, review_approved) in [(vec![], false), (vec![finding()], true)] {
        let mut play = under_review(RunSettings { review_approved, ..settings() });
        play.needed(Purpose::Review, Outcome::Success, |end| end.findings = findings);
        assert_eq!(effects(&play.run), [Effect::Freeze]);
    }
}

#[test]
fn failed_spec_review_fails_the_run() {
    let mut play = under_review(settings());
    for _ in 0..=play.run.settings.max_retries {
        play.needed(Purpose::Review, Outcome::Failure, |_| ());
    }
    assert_eq!(play.error(), Some("E_AGENT_FAILED"));
}
