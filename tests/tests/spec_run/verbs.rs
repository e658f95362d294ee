//! The verbs for a run: approval, the judge, beads, reports and preconditions.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::program;
use muleteer_tests::spec_stage::{AGENT, SpecStage as Stage, last};

pub(super) fn count(stage: &Stage, run: &str, name: &str) -> usize {
    stage.names(run).iter().filter(|known| *known == name).count()
}

/// An agent whose judge finds nothing, so that a run ends after one iteration.
pub(super) fn content() -> String {
    AGENT.replace("if test \"$MULETEER_ITERATION\" = 1; then", "if false; then")
}

#[test]
fn beads_wait_for_approval_and_yes_continues() {
    let stage = Stage::new(&content());
    stage.configure("run: {phases: {decompose: {human_review: true}}}\n");
    let daemon = stage.world.daemon();
    let waits = last(&stage.begin(&["--json"]).run().expect_code(0).stdout);
    assert_eq!(
        (&waits["status"], &waits["beads"]["open"]),
        (&"awaiting_approval".into(), &3.into()),
        "{waits}"
    );
    let run = waits["run_id"].as_str().unwrap();
    // Without an approval the run continues to wait.
    let again =
        last(&stage.muleteer(&["run", "--resume", run, "--json"]).run().expect_code(0).stdout);
    assert_eq!(again["status"], "awaiting_approval");
    let done = last(
        &stage.muleteer(&["run", "--resume", run, "--yes", "--json"]).run().expect_code(0).stdout,
    );
    assert_eq!(done["status"], "completed", "{done}");
    stage.world.finish(Some(daemon));
}

/// A person who is asked for approval may change the beads first.
#[test]
fn changes_before_the_approval_are_implemented() {
    let stage = Stage::new(&content());
    stage.configure("run: {phases: {decompose: {human_review: true}}}\n");
    let daemon = stage.world.daemon();
    let waits = last(&stage.begin(&["--json", "--concurrency", "1"]).run().expect_code(0).stdout);
    let run = waits["run_id"].as_str().unwrap();
    let bead = |args: &[&str]| {
        stage.muleteer(&[&["bead"], args, &["--json"]].concat()).run().expect_code(0).json()
    };
    let label = format!("run:{run}");
    let listed = bead(&["list", "--label", &label]);
    let ids: Vec<String> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|bead| bead["id"].as_str().unwrap().to_string())
        .collect();
    let more = bead(&["create", "--title", "more", "--priority", "0", "--label", &label])["id"]
        .as_str()
        .unwrap()
        .to_string();
    bead(&["update", &ids[0], "--status", "blocked"]);
    let later: Vec<&String> = ids[1..].iter().collect();
    for id in &later {
        bead(&["dep", "add", id, &more]);
    }
    let done = last(&stage.muleteer(&["run", "--resume", run, "--yes", "--json"]).run().stdout);
    let events = stage.events(run);
    let assigned: Vec<&str> = events
        .iter()
        .filter(|event| event["event"] == "bead_assigned")
        .map(|event| event["bead_id"].as_str().unwrap())
        .collect();
    assert_eq!(
        assigned.first(),
        Some(&more.as_str()),
        "what all others wait for: {assigned:?} {done}"
    );
    assert!(!assigned.contains(&ids[0].as_str()), "it was put off: {assigned:?}");
    stage.world.finish(Some(daemon));
}

#[test]
fn run_status_and_report_work_without_a_daemon() {
    let stage =
        Stage::new(&AGENT.replace("maintain) ", "maintain) test -n \"$MULETEER_BEAD_ID\"; "));
    stage.configure("run: {phases: {maintain: {n: 2}}}\n");
    let daemon = stage.world.daemon();
    let run = last(&stage.begin(&["--json"]).run().expect_code(0).stdout)["run_id"]
        .as_str()
        .unwrap()
        .to_string();
    assert_eq!(count(&stage, &run, "maintenance_finished"), 1, "{:?}", stage.names(&run));
    stage.world.expect_clean_end(Some(daemon));
    let document = stage.status();
    assert_eq!(
        (&document["status"], &document["maintenance_runs"]),
        (&"completed".into(), &1.into())
    );
    let report = stage.muleteer(&["run", "report", &run]).ok();
    assert!(
        ["Base", "Left", "Right", "Mended", "judge: fail", "judge: pass"]
            .iter()
            .all(|word| report.contains(word))
    );
    assert!(stage.muleteer(&["runs"]).ok().contains(&run));
    for empty in [&["run", "--status", ""][..], &["run", "--resume", ""], &["run", "report", ""]] {
        stage.muleteer(empty).run().expect_code(2);
    }
    assert_eq!(stage.world.status()["daemon"]["running"], false, "nobody was started for it");
}

/// A command without turns reports a rate limit once. No attempt counts, and the run continues.
#[test]
fn a_rate_limit_in_a_run_costs_no_attempt() {
    let limited = "implement)\n  if test \"$(muleteer bead show \"$MULETEER_BEAD_ID\" --json | \
        grep -c '\"Left\"')\" = 1 && ! test -e \"$HOME/out/limited\"; then touch \
        \"$HOME/out/limited\"; \
        echo '{\"type\":\"rate_limit\",\"resets_in_s\":1}'; exit 1; fi\n";
    let stage = Stage::new(&content().replace("implement)\n", limited));
    let daemon = stage.world.daemon();
    let run = last(&stage.begin(&["--json"]).run().expect_code(0).stdout)["run_id"]
        .as_str()
        .unwrap()
        .to_string();
    let retried: Vec<_> = stage
        .events(&run)
        .into_iter()
        .filter(|event| event["event"] == "bead_retried")
        .map(|event| event["counted"].clone())
        .collect();
    assert_eq!(retried, [serde_json::Value::from(false)], "{:?}", stage.names(&run));
    assert_eq!(count(&stage, &run, "pool_slowed"), 1);
    stage.world.finish(Some(daemon));
}

#[test]
fn pull_request_has_the_rebased_branch_and_lists_conflicts() {
    let stage =
        Stage::new(&content().replacen("#!/bin/sh\n", "#!/bin/sh\nenv >> \"$HOME/out/seen\"\n", 1));
    let origin = stage.world.path().join("origin.git");
    let origin = origin.to_str().unwrap();
    stage.repo.git(&["init", "--quiet", "--bare", "--initial-branch=main", origin]);
    stage.repo.git(&["remote", "add", "origin", origin]);
    // Another person has pushed a file of the same name there.
    stage.repo.write("Base.txt", "somebody else's\n");
    stage.repo.git(&["add", "Base.txt"]);
    stage.repo.git(&["commit", "--quiet", "--message=theirs"]);
    stage.repo.git(&["push", "--quiet", "origin", "main"]);
    stage.repo.git(&["reset", "--quiet", "--hard", "HEAD~1"]);
    let script = "#!/bin/sh\ncase \"$1 $2\" in\n\"pr view\") exit 1 ;;\n\"pr create\") printf \
        '%s\\n' \"$GH_TOKEN\" \"$@\" > \"$HOME/out/pr\"; echo https://example.invalid/pull/7 \
        ;;\nesac\n";
    program::write(&stage.world.bin().join("gh"), script);
    let daemon = stage.world.daemon();
    // Only the pull request gets the token: no agent has it, and no file.
    let begin = stage.begin(&["--json"]).env("GH_TOKEN", "only-for-the-push");
    let document = last(&begin.run().expect_code(0).stdout);
    assert_eq!(document["pr_url"], "https://example.invalid/pull/7", "{document}");
    let asked = std::fs::read_to_string(stage.world.home().join("out/pr")).unwrap();
    assert!(asked.starts_with("only-for-the-push\n"), "{asked}");
    let run = document["run_id"].as_str().unwrap();
    let kept = std::fs::read_to_string(stage.world.state().join("runs").join(run).join("run.json"))
        .unwrap();
    let seen = std::fs::read_to_string(stage.world.home().join("out/seen")).unwrap();
    assert!(
        seen.contains("MULETEER_RUN_ID") && !(seen + &kept).contains("only-for-the-push"),
        "{kept}"
    );
    for word in [
        &format!("muleteer/{run}"),
        "muleteer run: The plan",
        "muleteer-run",
        "automated",
        "- Base.txt",
    ] {
        assert!(asked.contains(word), "{word} in {asked}");
    }
    let pushed = stage.repo.git(&["ls-remote", "origin", &format!("refs/heads/muleteer/{run}")]);
    assert!(!pushed.is_empty());
    stage.world.finish(Some(daemon));
}

#[test]
fn judge_only_runs_the_judge_again() {
    let stage = Stage::new(
        &AGENT.replace("test \"$MULETEER_ITERATION\" = 1;", "! test -e \"$HOME/out/content\";"),
    );
    stage.configure("run: {phases: {judge: {max_iterations: 1}}}\n");
    let daemon = stage.world.daemon();
    let stopped = last(&stage.begin(&["--json"]).run().expect_code(5).stdout);
    assert_eq!(stopped["error"]["code"], "E_MAX_ITERATIONS", "{stopped}");
    let run = stopped["run_id"].as_str().unwrap();
    // Iterations are left, and the judge still finds something.
    stage.configure("run: {phases: {judge: {max_iterations: 5}}}\n");
    let again =
        last(&stage.muleteer(&["run", "--judge-only", run, "--json"]).run().expect_code(5).stdout);
    assert!(
        again["error"]["message"].as_str().unwrap().contains("only the judge was requested"),
        "{again}"
    );
    assert_eq!(
        (count(&stage, run, "verdict_applied"), count(&stage, run, "iteration_started")),
        (2, 0)
    );
    std::fs::write(stage.world.home().join("out/content"), "").unwrap();
    let done =
        last(&stage.muleteer(&["run", "--judge-only", run, "--json"]).run().expect_code(0).stdout);
    assert_eq!(
        (&done["status"], count(&stage, run, "iteration_started")),
        (&"completed".into(), 0),
        "{done}"
    );
    stage.world.finish(Some(daemon));
}

#[test]
fn judge_phase_cannot_be_skipped() {
    let stage = Stage::new(&content());
    let daemon = stage.world.daemon();
    let planned = last(&stage.begin(&["--json", "--dry-run"]).run().expect_code(0).stdout);
    let run = planned["run_id"].as_str().unwrap();
    let refused = stage.muleteer(&["run", "--judge-only", run, "--json"]).run().expect_code(2);
    assert_eq!(refused.error_code(), "E_BAD_INPUT", "{}", refused.stdout);
    let document = stage.status();
    assert_eq!(
        (&document["status"], &document["beads"]["open"]),
        (&"pending".into(), &3.into()),
        "{document}"
    );
    let done =
        last(&stage.muleteer(&["run", "--resume", run, "--json"]).run().expect_code(0).stdout);
    assert_eq!(
        (&done["status"], &done["beads"]["closed"]),
        (&"completed".into(), &3.into()),
        "{done}"
    );
    // After the end, a run can go back to every phase.
    let args = ["run", "--resume", run, "--from-phase", "maintain", "--json"];
    assert_eq!(last(&stage.muleteer(&args).run().expect_code(0).stdout)["maintenance_runs"], 1);
    stage.world.finish(Some(daemon));
}

#[test]
fn closing_a_blocked_bead_continues_the_run() {
    let cannot = "  test \"$title\" != Base || { echo I cannot; exit 3; }\n  echo \"$title\" > \
        \"$title.txt\"\n";
    let stage = Stage::new(&content().replace("  echo \"$title\" > \"$title.txt\"\n", cannot));
    stage.configure("run: {agent: {max_retries_per_bead: 0}}\n");
    let daemon = stage.world.daemon();
    let stuck = last(&stage.begin(&["--json"]).run().expect_code(4).stdout);
    assert_eq!(stuck["error"]["code"], "E_DEADLOCK", "{stuck}");
    let run = stuck["run_id"].as_str().unwrap();
    let beads = stage.muleteer(&["bead", "list", "--status", "blocked", "--json"]).json();
    assert_eq!(beads[0]["title"], "Base", "the store says what the run says: {beads}");
    let resume = ["run", "--resume", run, "--json"];
    assert_eq!(
        last(&stage.muleteer(&resume).run().expect_code(4).stdout)["error"]["code"],
        "E_DEADLOCK"
    );
    let base = beads[0]["id"].as_str().unwrap();
    stage
        .muleteer(&["bead", "close", base, "--reason", "by hand", "--no-change"])
        .run()
        .expect_code(0);
    let done = last(&stage.muleteer(&resume).run().expect_code(0).stdout);
    assert_eq!(
        (&done["status"], &done["beads"]["closed"]),
        (&"completed".into(), &3.into()),
        "{done}"
    );
    stage.world.finish(Some(daemon));
}

#[test]
fn a_run_that_never_began_has_no_id() {
    let stage = Stage::new(&content());
    let daemon = stage.world.daemon();
    let refused =
        last(&stage.begin(&["--target", "no..branch", "--json"]).run().expect_code(2).stdout);
    assert_eq!(
        (&refused["error"]["code"], refused["error"].get("run_id")),
        (&"E_BAD_INPUT".into(), None),
        "{refused}"
    );
    assert_eq!(stage.muleteer(&["runs", "--json"]).json()["runs"], serde_json::json!([]));
    stage.world.finish(Some(daemon));
}

#[test]
fn cyclic_plan_is_repeated_on_resume() {
    let circle = "  test -e \"$HOME/out/mended\" || muleteer bead dep add \"$a\" \"$c\" \
                  2>/dev/null\n";
    let stage = Stage::new(&content().replace(
        "  muleteer bead dep add \"$c\" \"$a\"",
        &format!("{circle}  muleteer bead dep add \"$c\" \"$a\""),
    ));
    let daemon = stage.world.daemon();
    let refused = last(&stage.begin(&["--json"]).run().expect_code(2).stdout);
    assert_eq!(refused["error"]["code"], "E_GRAPH_CYCLE", "{refused}");
    std::fs::write(stage.world.home().join("out/mended"), "").unwrap();
    let run = refused["run_id"].as_str().unwrap();
    let done =
        last(&stage.muleteer(&["run", "--resume", run, "--json"]).run().expect_code(0).stdout);
    assert_eq!(
        (&done["status"], &done["beads"]["closed"]),
        (&"completed".into(), &3.into()),
        "{done}"
    );
    stage.world.finish(Some(daemon));
}

#[test]
fn verdict_without_requested_parts_is_unreadable() {
    let bare = r#"structure)
  echo '{"status":"success","newBeads":[{"title":"This must be done"}]}'; exit 0
"#;
    let stage = Stage::new(&AGENT.replace("structure)\n", bare));
    let daemon = stage.world.daemon();
    let document = last(&stage.begin(&["--json"]).run().expect_code(4).stdout);
    assert_eq!(document["error"]["code"], "E_JUDGE_PARSE_FAILED", "{document}");
    assert!(document["error"]["message"].as_str().unwrap().contains("specDrift"), "{document}");
    let run = document["run_id"].as_str().unwrap();
    assert_eq!(count(&stage, run, "judge_finished"), 2, "it was asked once more");
    stage.world.finish(Some(daemon));
}

/// Every backend gets them, whether or not its CLI has a place for rules.
#[test]
fn every_coding_prompt_has_the_guidelines() {
    let script = "#!/bin/sh\ncat > \"$HOME/out/told\"\nmuleteer bead close \"$MULETEER_BEAD_ID\" \
        --reason seen --no-change\n";
    let stage = Stage::new(script);
    stage.configure(
        "run: {acceptance: {generate: false}, phases: {implement: {guidelines: [house]}, judge: \
         {enabled: false}}}\n",
    );
    std::fs::create_dir_all(stage.repo.path.join(".muleteer/guidelines")).unwrap();
    stage.repo.write(".muleteer/guidelines/house.md", "Every name is a whole word.\n");
    let scenario = "v: 1\nturns:\n  - steps:\n      - run: printf %s \"$prompt\" > \
        \"$HOME/out/told\"\n      - run: muleteer bead close \"$bead\" --reason seen \
        --no-change\n      - result: {status: success, summary: seen}\n";
    stage.repo.write("scenario.yaml", scenario);
    let daemon = stage.world.daemon();
    let told = stage.world.home().join("out/told");
    for label in ["subprocess", "rehearsal"] {
        stage.muleteer(&["bead", "create", "--title", "One", "--label", label]).ok();
        let done = match label {
            "subprocess" => stage.begin(&["--json", "--bead-label", label]),
            _ => {
                let args = [
                    "--backend",
                    label,
                    "--scenario",
                    "scenario.yaml",
                    "--bead-label",
                    label,
                    "--json",
                ];
                stage.muleteer(&[&["run", "--spec", "plan.md"][..], &args].concat())
            }
        };
        assert_eq!(last(&done.run().expect_code(0).stdout)["beads"]["closed"], 1, "{label}");
        let said = std::fs::read_to_string(&told).unwrap();
        assert!(said.contains("## Guidelines\n\nEvery name is a whole word."), "{label}: {said}");
        std::fs::remove_file(&told).unwrap();
    }
    stage.world.finish(Some(daemon));
}

/// A coding agent may work on its own bead, and not turn it into another one.
#[test]
fn a_coding_agent_may_close_its_bead_and_change_nothing_else_of_it() {
    let tries = r#"implement)
  try() {
    code=0
    muleteer bead "$@" --json >> "$HOME/out/said" 2>/dev/null || code=$?
    echo "$code $*" >> "$HOME/out/codes"
  }
  mine=$MULETEER_BEAD_ID
  try label "$mine" run:run-2026-01-01-abcdef
  try label "$mine" "run:$MULETEER_RUN_ID" --remove
  try update "$mine" --title "Another"
  try update "$mine" --description "Nothing"
  try update "$mine" --status blocked
  try reopen "$mine"
  try create --title "Elsewhere" --label run:run-2026-01-01-abcdef
"#;
    let stage = Stage::new(&content().replace("implement)\n", tries));
    stage.configure("run: {acceptance: {generate: false}, phases: {judge: {enabled: false}}}\n");
    let daemon = stage.world.daemon();
    let done = last(&stage.begin(&["--json", "--concurrency", "1"]).run().expect_code(0).stdout);
    assert_eq!(
        (&done["status"], &done["beads"]["closed"]),
        (&"completed".into(), &3.into()),
        "{done}"
    );
    let codes = std::fs::read_to_string(stage.world.home().join("out/codes")).unwrap();
    assert_eq!(codes.lines().count(), 3 * 7);
    assert!(codes.lines().all(|line| line.starts_with("3 ")), "{codes}");
    let said = std::fs::read_to_string(stage.world.home().join("out/said")).unwrap();
    for line in said.lines() {
        let error = &last(line)["error"];
        assert_eq!(error["code"], "E_FORBIDDEN", "{line}");
        assert!(error["hint"].as_str().is_some_and(|hint| hint.contains("bead close")), "{line}");
    }
    let beads = stage.muleteer(&["bead", "list", "--json"]).json();
    let titles: Vec<_> =
        beads.as_array().unwrap().iter().map(|bead| bead["title"].as_str().unwrap()).collect();
    assert_eq!(titles, ["Base", "Left", "Right", "Observation: odd"]);
    stage.world.finish(Some(daemon));
}

/// A user with a remote expects the branch there.
#[test]
fn a_branch_that_is_not_pushed_says_why() {
    let stage = Stage::new(&content());
    stage.configure("run: {acceptance: {generate: false}, phases: {judge: {enabled: false}}}\n");
    let origin = stage.world.path().join("origin.git");
    stage.repo.git(&["init", "--quiet", "--bare", origin.to_str().unwrap()]);
    stage.repo.git(&["remote", "add", "upstream", origin.to_str().unwrap()]);
    stage.repo.git(&["checkout", "--quiet", "--detach"]);
    program::write(&stage.world.bin().join("gh"), "#!/bin/sh\nexit 1\n");
    let daemon = stage.world.daemon();
    let done = stage.begin(&[]).run().expect_code(0);
    assert!(
        done.stderr.contains("it is not pushed: the run started from a commit"),
        "{}",
        done.stderr
    );
    assert!(done.stdout.contains("not pushed: the run started from a commit"), "{}", done.stdout);
    let run = stage.status()["run_id"].as_str().unwrap().to_string();
    let events = stage.events(&run);
    let published = events.iter().find(|event| event["event"] == "branch_published").unwrap();
    assert!(
        published["unpushed"].as_str().is_some_and(|why| why.contains("on no branch")),
        "{published}"
    );
    stage.world.finish(Some(daemon));
}

#[test]
fn cyclic_existing_beads_are_rejected_before_any_agent() {
    let stage = Stage::new("#!/bin/sh\necho x >> \"$HOME/out/begun\"\nexit 1\n");
    let daemon = stage.world.daemon();
    let bead = |title| {
        stage
            .muleteer(&["bead", "create", "--title", title, "--label", "v2"])
            .ok()
            .trim()
            .to_string()
    };
    let (a, b) = (bead("One"), bead("Other"));
    stage.muleteer(&["bead", "dep", "add", &a, &b]).run().expect_code(0);
    stage.muleteer(&["bead", "dep", "add", &b, &a]).run().expect_code(0);
    let refused = stage.begin(&["--json", "--bead-label", "v2"]).run().expect_code(2);
    assert_eq!(refused.error_code(), "E_GRAPH_CYCLE", "{}", refused.stdout);
    let error = last(&refused.stdout)["error"].clone();
    // Ids are random, so either may be named first.
    let circle = error["message"].as_str().unwrap();
    let (one, other) = (format!("{a} (One)"), format!("{b} (Other)"));
    let circles = [format!("{one} → {other} → {one}"), format!("{other} → {one} → {other}")];
    assert!(circles.iter().any(|wanted| circle.contains(wanted)), "{error}");
    assert!(error["hint"].as_str().unwrap().contains("bead dep rm"), "{error}");
    assert!(!stage.world.home().join("out/begun").exists());
    assert_eq!(stage.muleteer(&["runs", "--json"]).json()["runs"], serde_json::json!([]));
    stage.world.finish(Some(daemon));
}

#[test]
fn decomposition_without_beads_fails() {
    let stage = Stage::new("#!/bin/sh\necho \"$MULETEER_PURPOSE\" >> \"$HOME/out/begun\"\n");
    stage.configure("run: {acceptance: {generate: false}, agent: {max_retries_per_bead: 1}}\n");
    let daemon = stage.world.daemon();
    let document = last(&stage.begin(&["--json"]).run().expect_code(4).stdout);
    assert_eq!(document["error"]["code"], "E_GRAPH_EMPTY", "{document}");
    let begun = std::fs::read_to_string(stage.world.home().join("out/begun")).unwrap();
    assert_eq!(begun, "decompose\ndecompose\n", "it was asked for them once more");
    stage.world.finish(Some(daemon));
}

/// A script can open the file at fault.
#[test]
fn run_preconditions_fail_with_a_place() {
    let stage = Stage::new(&content());
    let daemon = stage.world.daemon();
    let refused = |code: i32, error: &str| {
        let document = last(&stage.begin(&["--json"]).run().expect_code(code).stdout);
        assert_eq!(document["error"]["code"], error, "{document}");
        document["error"].clone()
    };
    let ends = |error: &serde_json::Value, file: &str| {
        error["file"].as_str().is_some_and(|path| path.ends_with(file))
    };
    for key in
        ["  worktree: {base_branch: nowhere}", "  phases: {implement: {guidelines: [nowhere]}}"]
    {
        stage.configure(&format!("run:\n{key}\n"));
        let error = refused(2, "E_CONFIG_INVALID");
        assert!(ends(&error, ".muleteer/config.yaml"), "{error}");
        assert_eq!(error["line"], 2, "{error}");
    }
    stage.configure("run: {}\n");
    let beads = stage.repo.path.join(".muleteer/beads/beads.jsonl");
    std::fs::create_dir_all(beads.parent().unwrap()).unwrap();
    std::fs::write(&beads, "damaged\nand more\n").unwrap();
    let error = refused(3, "E_BEADS_CORRUPT");
    assert!(ends(&error, "beads/beads.jsonl") && error["line"] == 1, "{error}");
    let listed = stage.muleteer(&["bead", "list", "--json"]).run().expect_code(3);
    let error = last(&listed.stdout)["error"].clone();
    assert!(ends(&error, "beads/beads.jsonl") && error["line"] == 1, "{error}");
    std::fs::remove_file(&beads).unwrap();
    let planned = last(&stage.begin(&["--json", "--dry-run"]).run().expect_code(0).stdout);
    let run = planned["run_id"].as_str().unwrap();
    let frozen = stage.repo.path.join(".muleteer/runs").join(run).join("frozen-spec.md");
    std::fs::remove_file(&frozen).unwrap();
    std::fs::write(&frozen, "another").unwrap();
    let refused =
        last(&stage.muleteer(&["run", "--resume", run, "--json"]).run().expect_code(4).stdout);
    assert_eq!(refused["error"]["code"], "E_SPEC_HASH_MISMATCH", "{refused}");
    assert!(ends(&refused["error"], "frozen-spec.md"), "{refused}");
    stage.world.finish(Some(daemon));
}
