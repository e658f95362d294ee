//! An amendment of the spec of a stopped run.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_process::fault::AMEND_POINTS;
use muleteer_tests::run::Running;
use muleteer_tests::spec_stage::{PATIENCE, SpecStage as Stage, last};
use muleteer_tests::wait_until;
use serde_json::Value;

const SPEC: &str =
    "# The plan\n\n## Base\n\nOne file.\n\n## Left\n\nA file.\n\n## Right\n\nA file.\n";

/// An agent whose beads Left and Right wait until the file `go` exists, and whose second plan has
/// one bead. The planner keeps the prompt.
fn agent() -> String {
    let content = super::verbs::content();
    let replan = "decompose)\n  if grep -q '## The amendment' \"$HOME/out/prompt\"; then muleteer \
                  bead create --title \"New Left\"; exit 0; fi\n";
    let hold = "  test \"$title\" = Base || while ! test -e \"$HOME/out/go\"; do sleep 0.1; \
                done\n  echo \"$title\" > \"$title.txt\"\n";
    content
        .replace("cat > /dev/null\n", "cat > \"$HOME/out/$MULETEER_PURPOSE.prompt\"\n")
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
    std::fs::write(stage.world.home().join("out/go"), "").unwrap();
    let planned = last(&stage.muleteer(&[&amend[..], &["--dry-run"]].concat()).run().stdout);
    assert_eq!(
        (&planned["status"], &planned["beads"]["open"], &planned["beads"]["closed"]),
        (&"pending".into(), &2.into(), &1.into()),
        "{planned}"
    );
    let prompt = std::fs::read_to_string(stage.world.home().join("out/decompose.prompt")).unwrap();
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

/// Waits for the daemon's socket, and begins the amendment by a client that starts no daemon.
fn amend_without_help(stage: &Stage, id: &str) -> Running {
    let socket = wait_until("the daemon to answer", PATIENCE, || {
        let daemon = stage.world.status()["daemon"].clone();
        (daemon["running"] == true).then(|| daemon["socket"].as_str().map(str::to_string))?
    });
    let words = ["run", "amend", id, "plan.md", "--json"];
    stage.muleteer(&words).env("MULETEER_SOCKET", socket).start()
}

/// The daemon is killed at each point on the way of an amendment. An amendment that was not
/// recorded is requested again; each next daemon continues one that was.
#[test]
fn amendment_killed_at_every_point_is_recorded_and_planned_once() {
    let note = "case \"$MULETEER_PURPOSE\" in\n";
    let noted = format!("echo \"$MULETEER_PURPOSE\" >> \"$HOME/out/effects\"\n{note}");
    let stage = Stage::new(&agent().replacen(note, &noted, 1));
    stage.configure(
        "run: {acceptance: {generate: false}, phases: {judge: {enabled: false}, maintain: \
         {n: 9}}}\n",
    );
    stage.repo.write("plan.md", SPEC);
    let mut daemon = stage.world.daemon();
    let id = stage.begin(&["--detach"]).run().expect_code(0).stdout.trim().to_string();
    let count = |wanted: &str| stage.names(&id).iter().filter(|name| *name == wanted).count();
    wait_until("the first bead", PATIENCE, || (count("bead_completed") > 0).then_some(()));
    stage.muleteer(&["run", "stop", &id]).run().expect_code(0);
    daemon.kill_9();
    let effects = stage.world.home().join("out/effects");
    std::fs::write(&effects, "").unwrap();
    std::fs::write(stage.world.home().join("out/go"), "").unwrap();
    stage.repo.write("plan.md", &SPEC.replace("## Left\n\nA file.", "## Left\n\nTwo files."));
    let [planned, saved, recorded, withdrawn] = AMEND_POINTS else { panic!("{AMEND_POINTS:?}") };
    for point in [planned, saved, recorded] {
        assert_eq!(count("spec_amended"), 0, "{point}");
        let mut daemon = stage.world.daemon_unready(&[("MULETEER_FAULT", point)]);
        let client = amend_without_help(&stage, &id);
        wait_until(&format!("a daemon to die at {point}"), PATIENCE, || {
            (!daemon.is_alive()).then_some(())
        });
        daemon.ended();
        drop(client);
    }
    assert_eq!(count("spec_amended"), 1);
    let next = ["run.before_freeze", withdrawn, "run.after_freeze", "run.before_accept"];
    for point in next.into_iter().chain(["run.after_accept"]) {
        let mut daemon = stage.world.daemon_unready(&[("MULETEER_FAULT", point)]);
        wait_until(&format!("a daemon to die at {point}"), PATIENCE, || {
            assert_eq!(count("run_completed"), 0, "{point} was never passed");
            (!daemon.is_alive()).then_some(())
        });
        daemon.ended();
    }
    let daemon = stage.world.daemon();
    let done = stage.over(&id);
    assert_eq!(
        (&done["status"], &done["beads"]["closed"]),
        (&"completed".into(), &3.into()),
        "{done}"
    );
    assert_eq!((count("spec_amended"), count("beads_created")), (1, 2));
    let mut parts: Vec<String> =
        std::fs::read_to_string(&effects).unwrap().lines().map(str::to_string).collect();
    parts.sort();
    assert_eq!(parts, ["decompose", "implement", "implement"], "no prompt was given twice");
    assert_eq!(titles(&stage, "closed").len(), 4, "Left is withdrawn");
    let branch = done["target_branch"].as_str().unwrap();
    let files = stage.repo.git(&["ls-tree", "--name-only", branch]);
    for file in ["Base.txt", "New Left.txt", "Right.txt"] {
        assert!(files.lines().any(|name| name == file), "{file} in {files}");
    }
    assert!(!files.lines().any(|name| name == "Left.txt"), "{files}");
    let frozen = stage.repo.path.join(".muleteer/runs").join(&id).join("frozen-spec.md");
    assert!(std::fs::read_to_string(frozen).unwrap().contains("Two files."));
    stage.world.finish(Some(daemon));
}
