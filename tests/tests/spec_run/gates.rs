//! The approval gates of a run as a person meets them: the printed command, the titles of beads,
//! and the verbs that mean the same as options.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::spec_stage::{SpecStage as Stage, last};

/// Returns the command that a text gives, without its first word.
fn command(text: &str) -> Vec<String> {
    let printed = text.rsplit("`muleteer ").find(|rest| rest.contains("--resume")).expect(text);
    let words = printed.split('`').next().unwrap().split(' ');
    words.map(str::to_string).collect()
}

fn run(stage: &Stage, words: &[String]) -> String {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    stage.muleteer(&words).run().expect_code(0).stdout
}

#[test]
fn printed_command_approves_the_beads_after_a_dry_run() {
    let stage = Stage::new(&super::verbs::content());
    stage.configure(
        "run: {acceptance: {generate: false}, phases: {decompose: {human_review: true}, judge: \
         {enabled: false}}}\n",
    );
    let daemon = stage.world.daemon();
    let agent = stage.agent.to_str().unwrap();
    let begin = ["run", "plan.md", "--dry-run", "--backend", "subprocess", "--command", agent];
    let plan = stage.muleteer(&begin).run().expect_code(0).stdout;
    for words in ["Base", "Left", " ← \"Base\" (", "1. \"Base\" (", "Approve and continue"] {
        assert!(plan.contains(words), "{words} in {plan}");
    }
    let status = stage.muleteer(&["run", "status"]).run().expect_code(0).stdout;
    assert!(status.contains("--yes"), "{status}");
    assert!(stage.muleteer(&["run", "list"]).run().expect_code(0).stdout.contains("The plan"));
    let done = run(&stage, &command(&plan));
    assert!(done.contains("completed"), "{done}");
    stage.world.finish(Some(daemon));
}

#[test]
fn verb_resume_with_yes_approves_the_criteria() {
    let stage = Stage::new(&super::verbs::content());
    let daemon = stage.world.daemon();
    let shown = stage.begin(&["--preview-acceptance", "--dry-run"]).run().expect_code(0).stdout;
    assert!(command(&shown).last().is_some_and(|word| word == "--yes"), "{shown}");
    assert!(!shown.contains("in scheduling order"), "there is no plan yet: {shown}");
    let done = stage.muleteer(&["run", "resume", "--yes", "--json"]).run().expect_code(0).stdout;
    assert_eq!(last(&done)["status"], "completed", "{done}");
    stage.world.finish(Some(daemon));
}

/// The agent that structures the verdict prints JSON, which is for Muleteer.
#[test]
fn verdict_is_printed_as_text() {
    let stage = Stage::new(&super::verbs::content());
    let daemon = stage.world.daemon();
    let done = stage.begin(&[]).run().expect_code(0);
    let lines = format!("{}{}", done.stdout, done.stderr);
    assert!(!lines.contains("specDrift"), "{lines}");
    assert!(lines.contains("pass: the result matches the spec"), "{lines}");
    let events = stage.muleteer(&["events"]).run().expect_code(0).stdout;
    assert!(!events.contains("specDrift"), "{events}");
    stage.world.finish(Some(daemon));
}

/// The reviewer finds something in the first spec and nothing in a later one.
const REVIEW: &str = r#"case "$MULETEER_PURPOSE" in
review)
  test -z "$MULETEER_SPEC_FILE"
  echo 'Read it. {"findings":[{"section":"The plan","description":"Which files?",'\
'"severity":"critical"}]}'; exit 0 ;;
esac
"#;

/// Returns the content agent, with a reviewer.
pub(super) fn reviewed() -> String {
    super::verbs::content().replace("cat > /dev/null\n", &format!("cat > /dev/null\n{REVIEW}"))
}

#[test]
fn findings_of_the_review_are_shown_and_wait_for_approval_before_the_freeze() {
    let stage = Stage::new(&reviewed());
    stage.configure("run: {acceptance: {generate: false}, phases: {judge: {enabled: false}}}\n");
    let daemon = stage.world.daemon();
    let shown = stage.begin(&["--review-spec"]).run().expect_code(0).stdout;
    assert!(shown.contains("critical The plan: Which files?"), "{shown}");
    let id = stage.status()["run_id"].as_str().unwrap().to_string();
    assert!(!stage.names(&id).contains(&"spec_frozen".to_string()), "{:?}", stage.names(&id));
    assert!(!stage.repo.path.join(".muleteer/runs").join(&id).join("frozen-spec.md").exists());
    assert_eq!(stage.status()["spec_review"][0]["severity"], "critical");
    let again = stage.muleteer(&["run", "resume", "--json"]).run().expect_code(0).stdout;
    assert_eq!(last(&again)["status"], "awaiting_approval", "{again}");
    let done = run(&stage, &command(&shown));
    assert!(done.contains("completed"), "{done}");
    let names = stage.names(&id);
    let place = |name: &str| names.iter().position(|known| known == name).unwrap();
    assert!(place("spec_reviewed") < place("spec_frozen"), "{names:?}");
    assert_eq!(super::verbs::count(&stage, &id, "spec_reviewed"), 1);
    stage.world.finish(Some(daemon));
}

/// Of two beads that could be done at the same time, one goes first alone, and stops the run when
/// it fails.
#[test]
fn failed_canary_stops_the_run_before_the_others_start() {
    let fails = "  test \"$title\" != Left || test -e \"$HOME/out/mended\" || exit 1\n  echo \
                 \"$title\" > \"$title.txt\"\n";
    let agent = super::verbs::content();
    let agent = agent.replace("  echo \"$title\" > \"$title.txt\"\n", fails);
    assert!(agent.contains("$HOME/out/mended"), "{agent}");
    let stage = Stage::new(&agent);
    stage.configure(
        "run: {acceptance: {generate: false}, agent: {max_retries_per_bead: 1}, phases: \
         {implement: {canary: 3}, judge: {enabled: false}}}\n",
    );
    let daemon = stage.world.daemon();
    let stopped = last(&stage.begin(&["--json"]).run().expect_code(4).stdout);
    let error = stopped["error"]["message"].as_str().unwrap_or_default();
    assert!(error.contains("the canary bead"), "{stopped}");
    let id = stopped["run_id"].as_str().unwrap();
    let beads = &stopped["beads"];
    assert_eq!((&beads["blocked"], &beads["open"]), (&1.into(), &1.into()), "{stopped}");
    let reopen: Vec<&str> = error.split('`').nth(1).unwrap().split(' ').skip(1).collect();
    std::fs::write(stage.world.home().join("out/mended"), "").unwrap();
    stage.muleteer(&reopen).run().expect_code(0);
    let done = last(&stage.muleteer(&["run", "resume", id, "--json"]).run().expect_code(0).stdout);
    assert_eq!(done["status"], "completed", "{done}");
    stage.world.finish(Some(daemon));
}
