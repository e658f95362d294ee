//! A spec run from outside: a shell script plays every part, as in
//! docs/guides/subprocess-agents.md.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_process::fault::PUSH_POINTS;
use muleteer_tests::spec_stage::{AGENT, PATIENCE, SpecStage as Stage, last};
use muleteer_tests::wait_until;

#[test]
fn a_spec_becomes_a_judged_branch() {
    let stage = Stage::new(AGENT);
    let daemon = stage.world.daemon();
    let output = stage.begin(&["--json"]).run().expect_code(0);
    let document = last(&output.stdout);
    assert_eq!(
        (&document["status"], &document["iteration"]),
        (&"completed".into(), &2.into()),
        "{document}"
    );
    assert_eq!(
        document["beads"],
        serde_json::json!({"total":4,"open":0,"in_progress":0,"closed":4,"blocked":0})
    );
    let enforced = &document["enforced"];
    assert_eq!(
        (&enforced["judge_read_only"], &enforced["acceptance_hidden"]),
        (&"checked".into(), &"checked".into()),
        "the judge is a command of unknown settings: {enforced}"
    );
    assert_eq!(
        enforced["reason"].as_str().unwrap().contains("the judge's CLI may load settings"),
        muleteer_tests::spec_stage::confined(),
        "{enforced}"
    );
    let run = document["run_id"].as_str().unwrap();
    let branch = format!("muleteer/{run}");
    assert_eq!(document["target_branch"], branch.as_str());
    let files = stage.repo.git(&["ls-tree", "--name-only", &branch]);
    for name in ["Base.txt", "Left.txt", "Right.txt", "Mended.txt"] {
        assert!(files.contains(name), "{files}");
    }
    assert_eq!(
        stage.repo.git(&["status", "--porcelain"]),
        "?? plan.md",
        "nothing of ours is in the way"
    );
    let names: Vec<String> = stage
        .events(run)
        .iter()
        .map(|event| event["event"].as_str().unwrap().to_string())
        .collect();
    for name in
        ["run_started", "beads_created", "observation_created", "judge_finished", "run_completed"]
    {
        assert!(names.iter().any(|known| known == name), "{name} in {names:?}");
    }
    let folder = stage.repo.path.join(".muleteer/runs").join(run);
    assert!(folder.join("checkpoint.yml").exists() && folder.join("run-log.yml").exists());
    assert!(!folder.join("lock.json").exists(), "the lock is given back");
    assert!(
        !stage.repo.path.join(".muleteer/worktrees").join(run).exists(),
        "worktrees are tidied away"
    );
    stage.world.finish(Some(daemon));
}

#[test]
fn a_daemon_killed_in_the_middle_costs_no_attempt() {
    let stage = Stage::new(&AGENT.replace("implement)\n", "implement)\n  sleep 1\n"));
    let mut daemon = stage.world.daemon();
    let run = stage.begin(&["--detach"]).ok();
    wait_until("a bead to be worked on", PATIENCE, || {
        (stage.status()["beads"]["in_progress"].as_u64()? > 0).then_some(())
    });
    daemon.kill_9();
    let output = stage.muleteer(&["run", "--resume", &run, "--json"]).run().expect_code(0);
    assert_eq!(last(&output.stdout)["status"], "completed");
    let retried =
        stage.events(&run).into_iter().filter(|event| event["event"] == "bead_retried").count();
    assert_eq!(retried, 0, "its agents lived on, and were adopted");
    stage.world.finish(None);
}

#[test]
fn run_preconditions_fail_with_a_code() {
    let stage = Stage::new(AGENT);
    let daemon = stage.world.daemon();
    assert_eq!(
        stage.muleteer(&["run", "--spec", "nope.md", "--json"]).run().expect_code(2).error_code(),
        "E_SPEC_NOT_FOUND"
    );
    // A clone may contain a link to any file, whose text would become part of prompts.
    let private = stage.world.path().join("private.md");
    std::fs::write(&private, "private").unwrap();
    std::os::unix::fs::symlink(&private, stage.repo.path.join("linked.md")).unwrap();
    std::fs::create_dir_all(stage.repo.path.join(".muleteer")).unwrap();
    stage.repo.write(".muleteer/config.yaml", "run: {spec: linked.md}\n");
    let refused = stage.muleteer(&["run", "--json"]).run().expect_code(2);
    assert_eq!(refused.error_code(), "E_SPEC_NOT_FOUND");
    assert!(
        format!("{refused:?}").contains("is a link to a file outside the repository"),
        "{refused:?}"
    );
    std::fs::remove_file(stage.repo.path.join(".muleteer/config.yaml")).unwrap();
    assert_eq!(
        stage
            .muleteer(&["run", "--spec", "plan.md", "--backend", "codex", "--json"])
            .run()
            .expect_code(2)
            .error_code(),
        "E_BACKEND_UNAVAILABLE"
    );
    stage.muleteer(&["bead", "create", "--title", "stray"]).ok();
    assert_eq!(
        stage.begin(&["--json"]).run().expect_code(2).error_code(),
        "E_BEAD_SCOPE_AMBIGUOUS"
    );
    stage.world.finish(Some(daemon));
}

#[test]
fn existing_beads_are_worked_on_and_a_circle_is_refused() {
    let stage = Stage::new(AGENT);
    let daemon = stage.world.daemon();
    let make =
        |title: &str| stage.muleteer(&["bead", "create", "--title", title, "--label", "v2"]).ok();
    let (a, b) = (make("Base"), make("Right"));
    stage.muleteer(&["bead", "dep", "add", &b, &a]).run().expect_code(0);
    stage.muleteer(&["bead", "dep", "add", &a, &b]).run().expect_code(0);
    let refused = stage.begin(&["--json", "--bead-label", "v2"]).run().expect_code(2);
    let document = last(&refused.stdout);
    assert_eq!(document["error"]["code"], "E_GRAPH_CYCLE");
    assert!(
        document["error"]["message"]
            .as_str()
            .unwrap()
            .contains(&format!("{a} (Base) → {b} (Right) → {a}"))
            || document["error"]["message"]
                .as_str()
                .unwrap()
                .contains(&format!("{b} (Right) → {a} (Base) → {b}")),
        "{document}"
    );
    stage.muleteer(&["bead", "dep", "rm", &a, &b]).run().expect_code(0);
    let done = stage.begin(&["--json", "--bead-label", "v2"]).run().expect_code(0);
    assert_eq!(last(&done.stdout)["beads"]["closed"], 3);
    assert_eq!(stage.muleteer(&["bead", "show", &a, "--json"]).json()["status"], "closed");
    stage.world.finish(Some(daemon));
}

#[test]
fn failing_bead_is_retried_then_blocked_and_cannot_change_others() {
    let script = AGENT.replace(
        "  title=$(",
        "  other=$(muleteer bead list --label \"run:$MULETEER_RUN_ID\" --json | tr '{' '\\n' | sed \
         -n 's/.*\"id\":\"\\([a-z0-9]*\\)\".*/\\1/p' | grep -v \"$MULETEER_BEAD_ID\" | head -n \
         1)\n  if muleteer bead close \"$other\" 2>/dev/null; then touch \"$HOME/out/closed\"; \
         fi\n  \
         echo I cannot; exit 3\n  title=$(",
    );
    let stage = Stage::new(&script);
    let daemon = stage.world.daemon();
    let output = stage.begin(&["--json"]).run().expect_code(4);
    let document = last(&output.stdout);
    assert_eq!(document["error"]["code"], "E_DEADLOCK", "{document}");
    assert_eq!((&document["status"], &document["beads"]["blocked"]), (&"failed".into(), &1.into()));
    let run = document["run_id"].as_str().unwrap();
    let count =
        |name: &str| stage.events(run).iter().filter(|event| event["event"] == name).count();
    assert_eq!((count("bead_assigned"), count("bead_retried"), count("bead_blocked")), (3, 2, 1));
    assert!(!stage.world.home().join("out/closed").exists(), "it closed another's bead");
    stage.world.finish(Some(daemon));
}

#[test]
fn a_judge_that_writes_is_not_believed() {
    let stage = Stage::new(&AGENT.replace("judge) ", "judge) echo x >> README.md; "));
    stage.configure("sandbox: off\n");
    let daemon = stage.world.daemon();
    let output = stage.begin(&["--json"]).run().expect_code(4);
    assert_eq!(last(&output.stdout)["error"]["code"], "E_JUDGE_WROTE");
    stage.world.finish(Some(daemon));
}

/// After the push is undone nothing shows it any more.
#[test]
fn pushing_judge_is_discarded_across_daemon_deaths() {
    let push = "judge) test -e \"$HOME/out/pushed\" || { echo x > late.txt; git add late.txt; git \
        commit --quiet --message late; \
                git push --quiet \"$MULETEER_REMOTE\" HEAD:\"$MULETEER_TARGET_BRANCH\"; git reset \
                --quiet --hard HEAD~1; \
                touch \"$HOME/out/pushed\"; }; ";
    for point in PUSH_POINTS {
        let stage = Stage::new(&AGENT.replace("judge) ", push));
        stage.configure("sandbox: off\n");
        let mut first = stage.world.daemon_with(&[("MULETEER_FAULT", point)]);
        let run = stage.begin(&["--detach"]).ok();
        first.ended();
        let second = stage.world.daemon();
        let document = stage.over(&run);
        assert_eq!(document["status"], "completed", "{point}: {document}");
        assert!(
            stage.names(&run).iter().any(|name| name == "push_undone"),
            "{point}: {:?}",
            stage.names(&run)
        );
        let events = stage.events(&run);
        let verdicts: Vec<_> =
            events.iter().filter(|event| event["event"] == "judge_finished").collect();
        assert_eq!(verdicts[0]["verdict"], "discarded", "{point}: {verdicts:?}");
        let branch = document["target_branch"].as_str().unwrap();
        assert!(!stage.repo.git(&["log", "--format=%s", branch]).contains("late"), "{point}");
        stage.world.finish(Some(second));
    }
}

#[test]
fn an_agent_that_changes_the_frozen_spec_stops_the_run() {
    let change =
        "implement)\n  chmod u+w \"$MULETEER_SPEC_FILE\"; echo more >> \"$MULETEER_SPEC_FILE\"\n";
    let stage = Stage::new(&AGENT.replace("implement)\n", change));
    stage.configure("sandbox: off\n");
    let daemon = stage.world.daemon();
    let output = stage.begin(&["--json"]).run().expect_code(4);
    assert_eq!(last(&output.stdout)["error"]["code"], "E_SPEC_HASH_MISMATCH");
    stage.world.finish(Some(daemon));
}

#[test]
fn dry_run_shows_its_plan_and_resumes_once() {
    let stage = Stage::new(&AGENT.replace("implement)\n", "implement)\n  sleep 1\n"));
    let daemon = stage.world.daemon();
    let document = last(&stage.begin(&["--dry-run", "--json"]).run().expect_code(0).stdout);
    assert_eq!(
        (&document["status"], &document["beads"]["open"]),
        (&"pending".into(), &3.into()),
        "{document}"
    );
    let plan = &document["plan"];
    let id = |title: &str| {
        plan["beads"].as_array().unwrap().iter().find(|bead| bead["title"] == title).unwrap()["id"]
            .clone()
    };
    let (base, left, right) = (id("Base"), id("Left"), id("Right"));
    let of_left = plan["beads"].as_array().unwrap().iter().find(|bead| bead["id"] == left).unwrap();
    assert_eq!(of_left["depends_on"], serde_json::json!([base]), "{plan}");
    assert_eq!(plan["waves"], serde_json::json!([[base], [left, right]]), "{plan}");
    assert_eq!(
        (&plan["order"], &plan["agents"]),
        (&serde_json::json!([base, left, right]), &2.into()),
        "{plan}"
    );
    let run = document["run_id"].as_str().unwrap().to_string();
    stage.muleteer(&["run", "--resume", &run, "--detach"]).run().expect_code(0);
    let second = stage.muleteer(&["run", "--resume", &run, "--json"]).run().expect_code(3);
    assert_eq!(
        (second.error_code().as_str(), &second.json()["error"]["run_id"]),
        ("E_RUN_LOCKED", &run.as_str().into())
    );
    wait_until("the run to be over", PATIENCE, || {
        (stage.status()["status"] == "completed").then_some(())
    });
    stage.world.finish(Some(daemon));
}

/// The script in docs/guides/subprocess-agents.md, exactly as a reader would copy it.
#[test]
fn the_script_in_the_document_plays_every_part_of_a_run() {
    let document = include_str!("../../../docs/guides/subprocess-agents.md");
    let script: Vec<&str> =
        document.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let [script] = script.as_slice() else { panic!("one script is wanted, not {}", script.len()) };
    let stage = Stage::new(script);
    stage.configure("run: {phases: {maintain: {n: 2}}}\n");
    let daemon = stage.world.daemon();
    let document = last(&stage.begin(&["--json"]).run().expect_code(0).stdout);
    assert_eq!(
        (&document["status"], &document["beads"]["closed"]),
        (&"completed".into(), &2.into()),
        "{document}"
    );
    let run = document["run_id"].as_str().unwrap();
    let played: std::collections::BTreeSet<String> = stage
        .events(run)
        .into_iter()
        .filter(|event| event["event"] == "agent_finished" && event["status"] == "success")
        .map(|event| event["purpose"].as_str().unwrap().to_string())
        .collect();
    let parts = ["acceptance", "decompose", "implement", "judge", "maintain", "structure"];
    assert_eq!(
        played.into_iter().collect::<Vec<_>>(),
        parts,
        "every part was played, and none badly"
    );
    assert_eq!(stage.names(run).iter().filter(|name| *name == "bead_retried").count(), 0);
    stage.world.finish(Some(daemon));
}

/// The first agent waits until its program has changed, so that the judge's has too.
#[test]
fn judge_whose_program_changes_during_the_run_is_a_reason_for_checked() {
    let wait = "acceptance)\n  until grep -q '^# changed' \"$0\"; do sleep 0.05; done\n";
    let stage = Stage::new(&AGENT.replace("acceptance)\n", wait));
    let daemon = stage.world.daemon();
    let run = stage.begin(&["--detach"]).ok();
    wait_until("the first agent to start", PATIENCE, || {
        stage.names(&run).iter().any(|name| name == "agent_started").then_some(())
    });
    let mut program = std::fs::File::options().append(true).open(&stage.agent).unwrap();
    std::io::Write::write_all(&mut program, b"# changed\n").unwrap();
    drop(program);
    let document = stage.over(&run);
    assert_eq!(document["status"], "completed", "{document}");
    let reason = document["enforced"]["reason"].as_str().unwrap();
    assert_eq!(
        reason.contains("CLI changed during the run"),
        muleteer_tests::spec_stage::confined(),
        "{document}"
    );
    stage.world.finish(Some(daemon));
}
