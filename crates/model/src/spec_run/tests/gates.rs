//! The gates at which a run waits for the answer of a person.

use super::play::*;
use crate::event::{Event, Outcome};
use crate::question::event::{Answer, Kind};
use crate::spec_run::event::*;
use crate::spec_run::gate::{self, Merge};
use crate::spec_run::{Effect, GateAnswer, Input, PullRequest, Run, decide, effects};

/// Lets the run rest for this question, as the actor does.
fn asked(play: &mut Play, id: &str) {
    let rested = Event::RunRested {
        status: RunStatus::AwaitingApproval,
        reason: "waiting".into(),
        question: Some(id.into()),
    };
    play.fold(vec![rested]);
}

fn answered(play: &Play, question: &str, answer: GateAnswer) -> Input {
    let resume = Box::new(resume(play.run.settings.clone(), None));
    Input::Answered { question: question.into(), answer, resume }
}

fn approve() -> GateAnswer {
    GateAnswer::Approve { by: "anna".into() }
}

fn reviewed() -> Play {
    let mut play = Play::new(RunSettings { human_review: true, ..settings() });
    play.run.started.bead_label = None;
    play.feed(Input::Outside { closed: vec![] });
    play.needed(Purpose::Decompose, Outcome::Success, |_| ());
    play.feed(Input::Gathered {
        beads: vec![bead("a", &[]), bead("b", &["a"])],
        closed_outside: vec![],
    });
    play.feed(Input::BeadsAccepted);
    asked(&mut play, "q1");
    play
}

fn question(run: &Run) -> crate::question::QuestionAsked {
    gate::question(run, run.gate().expect("a gate"), &Merge::default(), "q1".into())
}

#[test]
fn plan_review_shows_the_beads_and_offers_a_change() {
    let play = reviewed();
    let asked = question(&play.run);
    let options: Vec<_> = asked.options.iter().map(|option| option.id.as_str()).collect();
    assert_eq!((asked.kind, options), (Kind::Plan, vec!["approve", "change", "reject"]));
    assert!(asked.text.contains("2 beads") && asked.text.contains("b Do b (after a)"), "{asked:?}");
    assert_eq!(asked.detail["run_id"], play.run.id());
    assert_eq!(asked.detail["beads"][1]["depends_on"][0], "a");
    // Existing beads are the person's own.
    let mut labelled = play;
    labelled.run.started.bead_label = Some("v2".into());
    assert_eq!(question(&labelled.run).options.len(), 2);
}

#[test]
fn answer_counts_once_and_only_for_the_question_of_the_rest() {
    let mut play = reviewed();
    for other in ["q0", ""] {
        assert_eq!(decide(&play.run, answered(&play, other, approve()), now()), vec![]);
    }
    play.feed(answered(&play, "q1", approve()));
    assert!(play.run.is_live() && play.run.approved && play.run.question().is_none());
    assert_eq!(decide(&play.run, answered(&play, "q1", approve()), now()), vec![]);
}

#[test]
fn requested_change_plans_again_with_the_words_of_the_person() {
    let mut play = reviewed();
    let change = GateAnswer::Change { by: "anna".into(), text: "split b".into() };
    play.feed(answered(&play, "q1", change));
    let agent = play.run.job_of(Purpose::Decompose).expect("a planner").clone();
    assert!(play.run.complaint(Purpose::Decompose).contains("split b"));
    assert_eq!((play.run.beads.len(), play.run.versions.withdrawn.len()), (0, 2));
    assert!(effects(&play.run).contains(&Effect::Agent(agent)));
    play.needed(Purpose::Decompose, Outcome::Success, |_| ());
    play.feed(Input::Gathered { beads: vec![bead("c", &[])], closed_outside: vec![] });
    play.feed(Input::BeadsAccepted);
    assert!(play.run.versions.withdrawn.is_empty());
    assert_eq!(play.run.status(), RunStatus::AwaitingApproval, "the new plan is reviewed too");
    assert_eq!(play.run.order, ["c"]);
    // The whole log folds to the same state.
    let mut folded = Run::fold(&play.log).expect("a run");
    folded.started.bead_label = None;
    assert_eq!(folded, play.run);
}

#[test]
fn rejected_plan_ends_the_run_with_the_reason() {
    let mut play = reviewed();
    let answer = Answer { options: vec!["reject".into()], text: "too large".into() };
    play.feed(answered(&play, "q1", gate::read(&answer, "anna")));
    assert_eq!(play.error(), Some("E_REJECTED"));
    let message = &play.run.error().expect("an error").message;
    assert!(message.contains("anna rejected the beads: too large"), "{message}");
}

#[test]
fn result_is_published_only_after_its_approval() {
    let gated = RunSettings { judge: false, review_merge: true, ..settings() };
    let mut play = Play::with(gated, vec![bead("a", &[])]);
    play.done("a");
    assert_eq!((play.run.status(), play.run.phase()), (RunStatus::AwaitingApproval, Phase::Finish));
    assert_eq!(question(&play.run).kind, Kind::Approval);
    asked(&mut play, "q2");
    // A resumption alone approves nothing.
    play.feed(resume(play.run.settings.clone(), None));
    assert_eq!((play.run.status(), effects(&play.run)), (RunStatus::AwaitingApproval, vec![]));
    asked(&mut play, "q3");
    play.feed(answered(&play, "q3", approve()));
    assert_eq!(effects(&play.run), [Effect::Finish]);
    play.feed(Input::Published {
        branch: "b".into(),
        commit: "c".into(),
        merge: "m".into(),
        pr: None::<PullRequest>,
    });
    assert_eq!(play.run.status(), RunStatus::Completed);
}
