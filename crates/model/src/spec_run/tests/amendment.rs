//! Amendments of the spec of a run that rests.

use crate::beads::{Bead, Beads};
use crate::event::Outcome;
use crate::spec_run::decide::Input;
use crate::spec_run::effects::{Effect, effects};
use crate::spec_run::event::*;
use crate::spec_run::spec::amendment::amend;
use crate::spec_run::state::{Run, Stage};
use crate::spec_run::tests::play::{Play, bead, resume, settings, told};

const OLD: &str = "# T\n\n## Alpha\n\nOne.\n\n## Beta\n\nTwo.\n\n## Gamma\n\nThree.\n";

fn of_section(id: &str, section: &str, on: &[&str]) -> Bead {
    Bead { description: format!("Sections: {section}\n"), ..bead(id, on) }
}

/// Four beads: a and b are of one section and done or not, c waits for b, d is unknown.
fn beads() -> Vec<Bead> {
    vec![
        of_section("a", "Alpha", &[]),
        of_section("b", "Alpha", &["a"]),
        of_section("c", "Gamma", &["b"]),
        bead("d", &["a"]),
    ]
}

/// Plays until one bead of four is done and the run was stopped.
fn stopped() -> Play {
    let mut play = Play::with(settings(), beads());
    play.done("a");
    play.feed(Input::Stop { reason: "it was stopped".into() });
    for id in ["b", "d"] {
        play.end(id, Outcome::Failure, |_| ());
    }
    assert_eq!(play.run.status(), RunStatus::Pending);
    play
}

fn amended(run: &Run, new: &str) -> Result<SpecAmended, String> {
    let beads: Beads = beads().into_iter().map(|bead| (bead.id.clone(), bead)).collect();
    amend(run, (OLD, new), &beads, "plan.md".into(), "s2".into()).map_err(|barred| barred.message)
}

fn input(run: &Run, new: &str) -> Input {
    let amended = Box::new(amended(run, new).expect("an amendment"));
    Input::Amend { amended, resume: Box::new(resume(run.settings.clone(), None)) }
}

#[test]
fn only_beads_of_changed_or_unknown_sections_are_affected() {
    let play = stopped();
    let of_alpha = amended(&play.run, &OLD.replace("One.", "Uno.")).expect("an amendment");
    assert_eq!(
        (of_alpha.kept, of_alpha.withdrawn, of_alpha.outdated),
        (vec!["c".into()], vec!["b".into(), "d".into()], vec!["a".into()])
    );
    let of_gamma = amended(&play.run, &OLD.replace("Three.", "Tre.")).expect("an amendment");
    assert_eq!((of_gamma.kept.len(), of_gamma.withdrawn), (2, vec!["c".into(), "d".into()]));
}

#[test]
fn unchanged_spec_and_live_or_completed_run_are_rejected() {
    let play = stopped();
    assert!(
        amended(&play.run, &format!("{OLD}  \n\n")).is_err_and(|why| why.contains("same text"))
    );
    let live = Play::with(settings(), beads());
    assert!(amended(&live.run, "# N\n").is_err_and(|why| why.contains("in progress")));
}

#[test]
fn amended_run_freezes_again_and_plans_only_the_changes() {
    let mut play = stopped();
    let spent = play.run.spawns;
    play.feed(input(&play.run, &OLD.replace("One.", "Uno.")));
    assert_eq!(effects(&play.run), [Effect::Freeze]);
    assert_eq!(play.run.order, ["a", "c"], "what stays");
    let frozen = play.run.frozen.clone().expect("the branch stays");
    play.feed(Input::Frozen {
        sha256: "s2".into(),
        base_branch: frozen.base_branch,
        base_commit: frozen.base_commit,
        target_branch: frozen.target_branch,
    });
    assert_eq!(play.run.spawns, spent + 1, "an agent plans, although a label selected the beads");
    play.needed(Purpose::Decompose, Outcome::Success, |_| ());
    assert_eq!(effects(&play.run), [Effect::Gather { made: true }]);
    let beads = vec![bead("n", &["a"]), bead("m", &["c"])];
    play.feed(Input::Gathered { beads, closed_outside: vec![] });
    let task = &play.run.beads["c"];
    assert_eq!(task.planned.depends_on, ["n"], "m waits for c itself");
    play.feed(Input::BeadsAccepted);
    assert_eq!((play.working_on(), play.run.count(Stage::Done)), (vec!["n"], 1));
    play.done("n");
    play.needed(Purpose::Maintain, Outcome::Success, |_| ());
    assert_eq!(play.working_on(), ["c"]);
    assert_eq!(Run::fold(&play.log).as_ref(), Some(&play.run));
    assert!(play.run.versions.withdrawn.is_empty());
}

#[test]
fn second_amendment_before_the_plan_keeps_what_the_first_withdrew() {
    let mut play = stopped();
    play.feed(input(&play.run, &OLD.replace("One.", "Uno.")));
    play.feed(Input::Stop { reason: "it was stopped".into() });
    assert_eq!(play.run.status(), RunStatus::Pending);
    let second = amended(&play.run, &OLD.replace("Three.", "Tre.")).expect("an amendment");
    assert_eq!((second.number, &*second.withdrawn), (2, &["c".to_string()][..]));
    play.feed(input(&play.run, &OLD.replace("Three.", "Tre.")));
    let withdrawn: Vec<_> = play.run.versions.withdrawn.keys().cloned().collect();
    assert_eq!(withdrawn, ["b", "c", "d"]);
}

#[test]
fn amendment_before_the_plan_starts_the_plan_anew() {
    let mut play = Play::new(settings());
    play.feed(Input::Stop { reason: "it was stopped".into() });
    play.feed(input(&play.run, "# T\n\nNew.\n"));
    assert_eq!(effects(&play.run), [Effect::Freeze]);
    assert!(!play.run.is_amending(), "there is no plan to change");
}

/// The simulator found this.
#[test]
fn reopened_bead_does_not_skip_the_freeze_of_an_amendment() {
    let mut play = Play::with(RunSettings { max_retries: 0, ..settings() }, beads());
    play.end("a", Outcome::Failure, |_| ());
    play.feed(Input::Stop { reason: "it was stopped".into() });
    let new = OLD.replace("Three.", "Tre.");
    play.feed(input(&play.run, &new));
    play.feed(Input::Stop { reason: "it was stopped".into() });
    assert_eq!(play.run.beads["a"].stage, Stage::Blocked);
    let mut again = resume(play.run.settings.clone(), None);
    if let Input::Resume { settled, .. } = &mut again {
        settled.push(told("a", false));
    }
    play.feed(again);
    assert_eq!(effects(&play.run), [Effect::Freeze]);
    assert_eq!((play.run.beads["a"].stage, play.working_on().len()), (Stage::Open, 0));
}
