//! An amendment of the spec of a stopped run.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::spec_stage::{PATIENCE, SpecStage as Stage, last};
use muleteer_tests::wait_until;
use serde_json::Value;

const SPEC: &str =
    "# The plan\n\n## Base\n\nOne file.\n\n## Left\n\nA file.\n\n## Right\n\nA file.\n";

/// An agent whose beads Left and Right wait until the file `go` exists, and whose second plan has
/// one bead. The planner keeps the prompt.
fn agent() -> String {
    let content = super::verbs::content();
    let replan = "decompose)\n  if grep -q '## The amendment' \"$HOME/prompt\"; then muleteer bead \
                  create --title \"New Left\"; exit 0; fi\n";
    let hold = "  test \"$title\" = Base || while ! test -e \"$HOME/go\"; do sleep 0.1; done\n  echo \
                \"$title\" > \"$title.txt\"\n";
    content
        .replace("cat > /dev/null\n", "cat > \"$HOME/$MULETEER_PURPOSE.prompt\"\n")
        .replace("decompose)\n", &replan.replace("/prompt", "/decompose.prompt"))
        .replace("  echo \"$title\" > \"$title.txt\"\n", hold)
}

fn titles(stage: &Stage, wanted: &str) -> Vec<String> {
    let beads = stage.muleteer(&["bead", "list", "--json"]).json();
    let open = |bead: &&Value| (bead["status"] == "closed") == (wanted == "closed");
    let list = beads.as_array().unwrap().iter().filter(open);
    list.map(|bead| bead["title"].as_str().unwrap().to_string()).collect()
}

#[test]
fn amendment_keeps_unaffected_beads_and_plans_the_others_again() {
    let stage = Stage::new(&agent());
    stage.configure("run: {acceptance: {generate: false}, phases: {judge: {enabled: false}}}\n");
    stage.repo.write("plan.md", SPEC);
    let daemon = stage.world.daemon();
    let id = stage.begin(&["--detach"]).run().expect_code(0).stdout.trim().to_string();
    let is_done = |names: Vec<String>| names.iter().any(|name| name == "bead_completed");
    wait_until("the first bead", PATIENCE, || is_done(stage.names(&id)).then_some(()));
    let amend = ["run", "amend", &id, "plan.md", "--json"];
    stage.repo.write("plan.md", &SPEC.replace("## Left\n\nA file.", "## Left\n\nTwo files."));
    let live = stage.muleteer(&amend).run().expect_code(3);
    assert_eq!(live.error_code(), "E_RUN_LOCKED", "{}", live.stdout);
    stage.muleteer(&["run", "stop", &id]).run().expect_code(0);
    std::fs::write(stage.world.home().join("go"), "").unwrap();
    let planned = last(&stage.muleteer(&[&amend[..], &["--dry-run"]].concat()).run().stdout);
    assert_eq!(
        (&planned["status"], &planned["beads"]["open"], &planned["beads"]["closed"]),
        (&"pending".into(), &2.into(), &1.into()),
        "{planned}"
    );
    let prompt = std::fs::read_to_string(stage.world.home().join("decompose.prompt")).unwrap();
    for words in ["### changed: Left", "<before>\n## Left\n\nA file.", ": Right", "Two files."] {
        assert!(prompt.contains(words), "{words} in {prompt}");
    }
    let frozen = stage.repo.path.join(".muleteer/runs").join(&id).join("frozen-spec.md");
    assert!(std::fs::read_to_string(frozen).unwrap().contains("Two files."));
    let same = stage.muleteer(&amend).run().expect_code(2);
    assert_eq!(same.error_code(), "E_BAD_INPUT", "{}", same.stdout);
    assert_eq!(titles(&stage, "open"), ["Right", "New Left"]);
    let done = last(&stage.muleteer(&["run", "resume", &id, "--json"]).run().stdout);
    assert_eq!(
        (&done["status"], &done["beads"]["closed"]),
        (&"completed".into(), &3.into()),
        "{done}"
    );
    let amended: Vec<Value> =
        stage.events(&id).into_iter().filter(|event| event["event"] == "spec_amended").collect();
    assert_eq!(amended.len(), 1);
    assert_eq!(amended[0]["kept"].as_array().unwrap().len(), 2, "{}", amended[0]);
    stage.world.finish(Some(daemon));
}
