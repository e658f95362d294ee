//! Failures of a run, their reports to a person, and the person's next steps.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::spec_stage::{AGENT, PATIENCE, SpecStage as Stage, last};
use muleteer_tests::{program, wait_until};
use serde_json::{Value, json};

/// Returns the document of a finished or resting run, from the last line of `--json`.
fn ended(stage: &Stage, args: &[&str], code: i32) -> Value {
    last(&stage.muleteer(args).run().expect_code(code).stdout)
}

fn begun(stage: &Stage, more: &[&str], code: i32) -> Value {
    last(&stage.begin(&[&["--json"], more].concat()).run().expect_code(code).stdout)
}

fn id(document: &Value) -> String {
    document["run_id"]
        .as_str()
        .unwrap_or_else(|| panic!("no run id in {document}"))
        .to_string()
}

/// These tests are not about the judge and the criteria.
const UNJUDGED: &str = "run: {acceptance: {generate: false}, phases: {judge: {enabled: false}}}\n";

fn is(stage: &Stage, run: &str, event: &str) -> Vec<Value> {
    stage.events(run).into_iter().filter(|one| one["event"] == event).collect()
}

#[test]
fn criteria_are_shown_and_wait_for_approval() {
    let stage =
        Stage::new(&AGENT.replace("if test \"$MULETEER_ITERATION\" = 1; then", "if false; then"));
    let daemon = stage.world.daemon();
    let shown = stage.begin(&["--preview-acceptance"]).run().expect_code(0).stdout;
    for word in ["user-stories.md", "secret edge-cases", "secret negative-tests", "--yes"] {
        assert!(shown.contains(word), "{word} in {shown}");
    }
    let document = stage.status();
    let run = id(&document);
    assert_eq!(
        (&document["status"], &document["phase"]),
        (&json!("awaiting_approval"), &json!("freeze"))
    );
    assert_eq!(document["beads"]["total"], 0, "nothing is planned before: {document}");
    let waits = ended(&stage, &["run", "--resume", &run, "--json"], 0);
    assert_eq!(waits["status"], "awaiting_approval", "{waits}");
    let done = ended(&stage, &["run", "--resume", &run, "--yes", "--json"], 0);
    assert_eq!(done["status"], "completed", "{done}");
    stage.world.finish(Some(daemon));
}

#[test]
fn bead_blocked_outside_the_run_is_named_and_continues_later() {
    let stage = Stage::new(AGENT);
    stage.configure(UNJUDGED);
    let daemon = stage.world.daemon();
    let make =
        |args: &[&str]| stage.muleteer(&[&["bead", "create", "--title"], args].concat()).ok();
    let outside = make(&["Elsewhere"]);
    let (waits, free) = (make(&["Right", "--label", "v2"]), make(&["Base", "--label", "v2"]));
    stage.muleteer(&["bead", "dep", "add", &waits, &outside]).run().expect_code(0);
    let blocked = begun(&stage, &["--bead-label", "v2"], 4);
    let message = blocked["error"]["message"].as_str().unwrap_or_default();
    assert_eq!(blocked["error"]["code"], "E_EXTERNAL_BLOCKED", "{blocked}");
    assert!(message.contains(&waits) && message.contains(&outside), "{message}");
    assert_eq!(blocked["beads"]["closed"], 1, "the other one was worked on: {blocked}");
    let run = id(&blocked);
    assert_eq!(is(&stage, &run, "bead_completed")[0]["bead_id"], json!(free));
    stage.muleteer(&["bead", "close", &outside, "--reason", "done"]).run().expect_code(0);
    let done = ended(&stage, &["run", "--resume", &run, "--json"], 0);
    assert_eq!(
        (&done["status"], &done["beads"]["closed"]),
        (&json!("completed"), &json!(2)),
        "{done}"
    );
    stage.world.finish(Some(daemon));
}

#[test]
fn slow_bead_is_retried_in_a_fresh_worktree_then_blocked_with_its_dependants() {
    let stage = Stage::new(&AGENT.replace(
        "  title=$(",
        "  test \"$MULETEER_BEAD_ID\" != \"$(cat \"$HOME/out/slow\")\" || sleep 600\n  title=$(",
    ));
    stage.configure(
        &UNJUDGED
            .replace("run: {", "run: {agent: {timeout_per_bead: 2s, max_retries_per_bead: 1}, "),
    );
    let daemon = stage.world.daemon();
    let make =
        |title: &str| stage.muleteer(&["bead", "create", "--title", title, "--label", "v2"]).ok();
    let (slow, after, free) = (make("Slow"), make("After"), make("Free"));
    stage.muleteer(&["bead", "dep", "add", &after, &slow]).run().expect_code(0);
    std::fs::write(stage.world.home().join("out/slow"), &slow).unwrap();
    let document = begun(&stage, &["--bead-label", "v2"], 4);
    assert_eq!(document["error"]["code"], "E_DEADLOCK", "{document}");
    let run = id(&document);
    let ends: Vec<Value> = is(&stage, &run, "agent_finished");
    assert_eq!(ends.iter().filter(|end| end["status"] == "timeout").count(), 2, "{ends:?}");
    let retried = is(&stage, &run, "bead_retried");
    assert_eq!(
        (retried.len(), &retried[0]["reuse"], &retried[0]["bead_id"]),
        (1, &json!(false), &json!(slow))
    );
    let starts: Vec<Value> = is(&stage, &run, "agent_started");
    let places: Vec<&Value> = starts
        .iter()
        .filter(|start| start["bead_id"] == json!(slow))
        .map(|start| &start["workdir"])
        .collect();
    assert!(places.len() == 2 && places[0] != places[1], "{places:?}");
    let blocked = is(&stage, &run, "bead_blocked");
    assert_eq!(
        (&blocked[0]["bead_id"], &blocked[0]["dependants"]),
        (&json!(slow), &json!([after]))
    );
    assert_eq!(is(&stage, &run, "bead_completed")[0]["bead_id"], json!(free));
    assert_eq!(stage.muleteer(&["bead", "show", &slow, "--json"]).json()["status"], "blocked");
    stage.world.finish(Some(daemon));
}

/// No bead waits for it, so the run ends; a person will want to see its clone.
#[test]
fn the_clone_of_a_bead_that_is_blocked_at_the_end_stays_and_no_other() {
    let failing = "  test \"$MULETEER_BEAD_ID\" != \"$(cat \"$HOME/out/bad\")\" || { echo half > \
                   half; \
        exit 3; }\n  title=$(";
    let stage = Stage::new(&AGENT.replace("  title=$(", failing));
    stage.configure(&UNJUDGED.replace("run: {", "run: {agent: {max_retries_per_bead: 0}, "));
    let daemon = stage.world.daemon();
    let make =
        |title: &str| stage.muleteer(&["bead", "create", "--title", title, "--label", "v2"]).ok();
    let (bad, good) = (make("Bad"), make("Good"));
    std::fs::write(stage.world.home().join("out/bad"), &bad).unwrap();
    let document = begun(&stage, &["--bead-label", "v2"], 4);
    assert_eq!(
        (&document["status"], &document["beads"]["blocked"]),
        (&json!("partial"), &json!(1)),
        "{document}"
    );
    let left = |bead: &str| {
        let starts = is(&stage, &id(&document), "agent_started");
        let start = starts.iter().find(|start| start["bead_id"] == json!(bead)).unwrap();
        stage.repo.path.join(start["workdir"].as_str().unwrap())
    };
    assert_eq!((left(&bad).join("half").exists(), left(&good).exists()), (true, false));
    stage.world.finish(Some(daemon));
}

/// A killed daemon's git holds its locks for a moment longer, which looks like this.
#[test]
fn temporary_fault_is_retried_without_failing_the_run() {
    let stage = Stage::new(AGENT);
    stage.configure(UNJUDGED);
    let failed = stage.world.home().join("out/failed");
    // Only the harness runs this program; no agent does.
    program::write(
        &stage.world.bin().join("git"),
        &program::failing_once("git", " --no-write-fetch-head ", &failed),
    );
    let daemon = stage.world.daemon();
    let make =
        |title: &str| stage.muleteer(&["bead", "create", "--title", title, "--label", "v2"]).ok();
    make("Only");
    let document = begun(&stage, &["--bead-label", "v2"], 0);
    assert!(failed.exists(), "something has failed: {document}");
    assert_eq!(document["beads"]["closed"], 1, "{document}");
    assert_eq!(is(&stage, &id(&document), "bead_retried").len(), 0);
    stage.world.finish(Some(daemon));
}

/// The harness cannot read the agent's clone, though the agent has closed its bead.
#[test]
fn uninspected_work_is_not_done() {
    let stage = Stage::new(&AGENT.replace(
        "  muleteer bead close \"$MULETEER_BEAD_ID\" --reason done ;;",
        "  muleteer bead close \"$MULETEER_BEAD_ID\" --reason done\n  while [ ! -e \
         \"$HOME/out/go\" ]; \
         do sleep 0.05; done ;;",
    ));
    stage.configure(UNJUDGED);
    let daemon = stage.world.daemon();
    let bead = stage.muleteer(&["bead", "create", "--title", "Base", "--label", "v2"]).ok();
    stage.begin(&["--bead-label", "v2", "--detach"]).run().expect_code(0);
    wait_until("the agent to close its bead", PATIENCE, || {
        (stage.muleteer(&["bead", "show", &bead, "--json"]).json()["status"] == "closed")
            .then_some(())
    });
    let run = id(&stage.status());
    let keep = stage.world.state().join("runs").join(&run).join("keep.git");
    let away = keep.with_extension("away");
    std::fs::rename(&keep, &away).unwrap();
    std::fs::write(&keep, "").unwrap();
    std::fs::write(stage.world.home().join("out/go"), "").unwrap();
    wait_until("the run to stop", PATIENCE, || {
        (stage.status()["status"] == "failed").then_some(())
    });
    assert_eq!(stage.muleteer(&["bead", "show", &bead, "--json"]).json()["status"], "open");
    std::fs::remove_file(&keep).unwrap();
    std::fs::rename(&away, &keep).unwrap();
    let done = ended(&stage, &["run", "--resume", &run, "--json"], 0);
    let completed = is(&stage, &run, "bead_completed");
    assert_ne!(completed[0]["by"], "operator", "{completed:?}");
    let branch = done["target_branch"].as_str().unwrap();
    assert_eq!(stage.repo.git(&["show", &format!("{branch}:Base.txt")]), "Base");
    stage.world.finish(Some(daemon));
}

/// The agent is confined as agents of a run are: the shell that runs the command ends at once, and
/// its child has its time to end.
#[test]
fn terminated_agent_gets_its_grace_period() {
    let tail = "  trap 'sleep 1; echo flushed >> flushed.txt; exit 1' TERM; echo begun; sleep 600 \
        & wait; ;;";
    let stage =
        Stage::new(&AGENT.replacen("implement)\n", &format!("implement)\n{tail}\nunused)\n"), 1));
    stage.configure(
        &UNJUDGED
            .replace("run: {", "run: {agent: {timeout_per_bead: 2s, max_retries_per_bead: 0}, "),
    );
    let daemon = stage.world.daemon();
    stage.muleteer(&["bead", "create", "--title", "Base", "--label", "v2"]).ok();
    let document = begun(&stage, &["--bead-label", "v2"], 4);
    let run = id(&document);
    let start = &is(&stage, &run, "agent_started")[0];
    let clone = stage.repo.path.join(start["workdir"].as_str().unwrap());
    assert_eq!(
        std::fs::read_to_string(clone.join("flushed.txt")).unwrap(),
        "flushed\n",
        "{document}"
    );
    stage.world.finish(Some(daemon));
}

#[test]
fn run_resumes_only_from_intact_state() {
    let stage = Stage::new(AGENT);
    let daemon = stage.world.daemon();
    let run = id(&begun(&stage, &["--dry-run"], 0));
    let resume = ["run", "--resume", &run, "--json"];
    let folder = stage.repo.path.join(".muleteer/runs").join(&run);

    let checkpoint = folder.join("checkpoint.yml");
    let whole = std::fs::read_to_string(&checkpoint).unwrap();
    std::fs::write(&checkpoint, whole[..whole.len() / 2].replace("run_id", "run_")).unwrap();
    let corrupt = ended(&stage, &resume, 3);
    assert_eq!(corrupt["error"]["code"], "E_CHECKPOINT_CORRUPT", "{corrupt}");
    assert_eq!(corrupt["error"]["file"], json!(checkpoint), "{corrupt}");
    assert!(corrupt["error"]["hint"].as_str().unwrap().contains("in phase decompose"), "{corrupt}");
    std::fs::write(&checkpoint, whole.replace("schema_version: 1", "schema_version: 9")).unwrap();
    let newer = ended(&stage, &resume, 3);
    assert!(newer["error"]["message"].as_str().unwrap().contains("newer muleteer"), "{newer}");
    std::fs::write(&checkpoint, &whole).unwrap();

    let named = whole.lines().find_map(|line| line.strip_prefix("acceptance_path: ")).unwrap();
    let criteria = std::path::PathBuf::from(named.trim_matches(['"', '\'']));
    let story = criteria.join("user-stories.md");
    let text = std::fs::read_to_string(&story).unwrap();
    std::fs::remove_file(&story).unwrap();
    let missing = ended(&stage, &resume, 3);
    assert_eq!(missing["error"]["code"], "E_ACCEPTANCE_MISSING", "{missing}");
    std::fs::write(&story, text).unwrap();

    // With the file restored, the run resumes. The frozen spec counts, not the spec as it is by
    // now.
    stage.repo.write("plan.md", "# Something else\n");
    let done = ended(&stage, &resume, 0);
    assert_eq!(done["status"], "completed", "{done}");
    let events = stage.names(&run);
    assert_eq!(ended(&stage, &resume, 0)["status"], "completed");
    assert_eq!(stage.names(&run), events, "there was nothing left to be done");
    assert!(
        std::fs::read_to_string(folder.join("frozen-spec.md")).unwrap().contains("Three files.")
    );
    stage.world.finish(Some(daemon));
}

#[test]
fn foreign_branch_is_not_overwritten() {
    let stage = Stage::new(&AGENT.replace(
        "  muleteer bead close \"$MULETEER_BEAD_ID\" --reason done ;;",
        "  git push --quiet \"$(dirname \"$HOME\")/origin.git\" \
         \"HEAD~1:refs/heads/$MULETEER_TARGET_BRANCH\" 2>/dev/null || true\n  muleteer bead close \
         \"$MULETEER_BEAD_ID\" --reason done ;;",
    ));
    // A confined agent would not find the remote, which is in the temporary directory here.
    stage.configure(&format!("sandbox: off\n{UNJUDGED}"));
    let origin = stage.world.path().join("origin.git");
    let origin = origin.to_str().unwrap();
    stage.repo.git(&["init", "--quiet", "--bare", "--initial-branch=main", origin]);
    stage.repo.git(&["remote", "add", "origin", origin]);
    stage.repo.git(&["push", "--quiet", "origin", "main"]);
    let script = "#!/bin/sh\ncase \"$1 $2\" in\n\"pr view\") exit 1 ;;\n\"pr create\") printf \
        '%s\\n' \"$@\" > \"$HOME/out/pr\"; test ! -e \"$HOME/out/refuse\" || { echo not logged in \
        >&2; \
        exit 1; }; echo https://example.invalid/pull/7 ;;\nesac\n";
    program::write(&stage.world.bin().join("gh"), script);
    std::fs::write(stage.world.home().join("out/refuse"), "").unwrap();
    let daemon = stage.world.daemon();
    // The run has passed, whatever `gh` says.
    let done = begun(&stage, &["--concurrency", "1"], 0);
    assert_eq!((&done["status"], &done["error"]), (&json!("completed"), &Value::Null), "{done}");
    assert!(done["work"]["pr_trouble"].as_str().unwrap().contains("not logged in"), "{done}");
    let run = id(&done);
    let at = |name: &str| {
        stage.repo.git(&["ls-remote", "origin", &format!("refs/heads/muleteer/{run}{name}")])
    };
    let theirs = at("");
    assert!(!theirs.is_empty());
    assert_eq!(done["work"]["pushed"], format!("muleteer/{run}-rebased"), "{done}");
    assert_eq!(at(""), theirs, "it was not this run's to overwrite");
    assert!(!at("-rebased").is_empty());
    let asked = std::fs::read_to_string(stage.world.home().join("out/pr")).unwrap();
    assert!(asked.contains(&format!("muleteer/{run}-rebased")), "{asked}");
    stage.world.finish(Some(daemon));
}

/// A person's commit on the result of a run stays, and a later result goes beside it.
#[test]
fn result_branch_with_new_commits_is_not_overwritten() {
    let stage = Stage::new(AGENT);
    let daemon = stage.world.daemon();
    let in_the_way = stage.repo.path.join("Base.txt");
    std::fs::write(&in_the_way, "a person's\n").unwrap();
    let document = begun(&stage, &["--target", "main"], 0);
    let run = id(&document);
    let result = format!("muleteer/{run}");
    std::fs::rename(&in_the_way, stage.world.path().join("Base.txt")).unwrap();
    stage.repo.git(&["checkout", "--quiet", &result]);
    stage.repo.git(&["commit", "--quiet", "--allow-empty", "--message", "a person's own"]);
    stage.repo.git(&["checkout", "--quiet", "main"]);
    std::fs::rename(stage.world.path().join("Base.txt"), &in_the_way).unwrap();
    ended(&stage, &["run", "--judge-only", &run, "--json"], 0);
    assert_eq!(stage.repo.git(&["log", "-1", "--format=%s", &result]), "a person's own");
    // If the branch cannot move forward, the result takes the next name.
    stage.repo.git(&["branch", "--quiet", "--force", &result, "main"]);
    stage.repo.git(&["checkout", "--quiet", &result]);
    stage.repo.git(&["commit", "--quiet", "--allow-empty", "--message", "another one"]);
    stage.repo.git(&["checkout", "--quiet", "main"]);
    ended(&stage, &["run", "--judge-only", &run, "--json"], 0);
    assert_eq!(stage.repo.git(&["log", "-1", "--format=%s", &result]), "another one");
    assert_eq!(stage.repo.git(&["show", &format!("{result}-2:Base.txt")]), "Base");
    assert_eq!(std::fs::read_to_string(&in_the_way).unwrap(), "a person's\n");
    stage.world.finish(Some(daemon));
}

/// A person rewrites the commit from which the run began, and git forgets it. The run was stopped
/// while a clone was being made.
#[test]
fn run_survives_the_removal_of_its_start_branch() {
    let stage =
        Stage::new(&AGENT.replace("if test \"$MULETEER_ITERATION\" = 1; then", "if false; then"));
    let daemon = stage.world.daemon();
    stage.begin(&["--preview-acceptance"]).run().expect_code(0);
    let run = id(&stage.status());
    let kept = format!("refs/muleteer/base/{run}");
    let base = stage.repo.git(&["rev-parse", "HEAD"]);
    assert_eq!(stage.repo.git(&["rev-parse", &kept]), base);
    stage.repo.git(&["commit", "--quiet", "--amend", "--message", "rewritten"]);
    stage.repo.git(&["reflog", "expire", "--expire=now", "--all"]);
    stage.repo.git(&["gc", "--quiet", "--prune=now"]);
    // One of our git processes was killed while it wrote there.
    let lock = stage.repo.path.join(".git").join(format!("{kept}.lock"));
    std::fs::create_dir_all(lock.parent().unwrap()).unwrap();
    std::fs::write(&lock, "").unwrap();
    let worktrees = stage.repo.path.join(".muleteer/worktrees").join(&run);
    std::fs::create_dir_all(worktrees.join(".bead-1.partial/.git")).unwrap();
    let done = ended(&stage, &["run", "--resume", &run, "--yes", "--json"], 0);
    let branch = done["target_branch"].as_str().unwrap();
    assert_eq!(stage.repo.git(&["merge-base", &base, branch]), base);
    assert_eq!(
        stage.repo.git(&["for-each-ref", "refs/muleteer/base"]),
        "",
        "the branch holds it now"
    );
    assert!(!worktrees.exists(), "nothing is left of its clones");
    stage.world.finish(Some(daemon));
}

#[test]
fn branch_is_pushed_to_the_users_push_remote() {
    let stage = Stage::new(AGENT);
    stage.configure(UNJUDGED);
    for name in ["origin.git", "push.git"] {
        let path = stage.world.path().join(name);
        stage.repo.git(&[
            "init",
            "--quiet",
            "--bare",
            "--initial-branch=main",
            path.to_str().unwrap(),
        ]);
    }
    stage.repo.git(&["remote", "add", "origin", "../origin.git"]);
    stage.repo.git(&["push", "--quiet", "origin", "main"]);
    stage.repo.git(&["remote", "set-url", "--push", "origin", "../push.git"]);
    let gh = "#!/bin/sh\ncase \"$1 $2\" in\n\"pr create\") echo https://example.invalid/pull/7 \
        ;;\n*) exit 1 ;;\nesac\n";
    program::write(&stage.world.bin().join("gh"), gh);
    let daemon = stage.world.daemon();
    let document = begun(&stage, &[], 0);
    assert_eq!(document["pr_url"], "https://example.invalid/pull/7", "{document}");
    let branch = format!("refs/heads/muleteer/{}", id(&document));
    assert_ne!(stage.repo.git(&["ls-remote", "../push.git", &branch]), "");
    assert_eq!(stage.repo.git(&["ls-remote", "../origin.git", &branch]), "");
    stage.world.finish(Some(daemon));
}

/// Nobody has judged the pushed commits, and the run's own branch would be rebased onto them. The
/// remote is the base branch's, whatever its name is.
#[test]
fn direct_push_of_an_agent_stops_the_run() {
    for remotes in [&["origin"][..], &["upstream"], &["origin", "upstream"]] {
        let stage = Stage::new(&AGENT.replace(
            "  muleteer bead close \"$MULETEER_BEAD_ID\"",
            "  git push --quiet \"$HOME/out/last.git\" HEAD:main\n  muleteer bead close \
             \"$MULETEER_BEAD_ID\"",
        ));
        stage.configure(UNJUDGED);
        for name in remotes {
            let path = stage.world.home().join(if Some(name) == remotes.last() {
                "out/last.git"
            } else {
                "other.git"
            });
            let path = path.to_str().unwrap();
            stage.repo.git(&["init", "--quiet", "--bare", "--initial-branch=main", path]);
            stage.repo.git(&["remote", "add", name, path]);
            stage.repo.git(&["push", "--quiet", name, "main"]);
        }
        if remotes.len() > 1 {
            stage.repo.git(&["config", "branch.main.remote", "upstream"]);
        }
        let daemon = stage.world.daemon();
        let stopped = begun(&stage, &[], 4);
        let message = stopped["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(stopped["error"]["code"], "E_REMOTE_CHANGED", "{remotes:?}: {stopped}");
        assert!(message.contains("to main of the remote on its own"), "{message}");
        let branches = stage.repo.git(&["branch", "--list", "muleteer/*"]);
        assert_eq!(branches, "", "nothing of it is a branch that somebody might merge");
        let kept = stopped["work"]["branch"].as_str().unwrap_or_default();
        assert!(kept.starts_with("refs/muleteer/run/"), "{stopped}");
        assert_eq!(stage.repo.git(&["show", &format!("{kept}:Base.txt")]), "Base");
        stage.world.finish(Some(daemon));
    }
}

/// CI systems make such a clone, which has only a part of the history.
#[test]
fn a_run_works_in_a_shallow_clone() {
    let stage = Stage::new(AGENT);
    stage.repo.git(&["commit", "--quiet", "--allow-empty", "--message", "second"]);
    let whole = stage.world.path().join("whole");
    std::fs::rename(&stage.repo.path, &whole).unwrap();
    let from = format!("file://{}", whole.display());
    let cloned = std::process::Command::new("git")
        .args(["clone", "--quiet", "--depth", "1", &from])
        .arg(&stage.repo.path)
        .status()
        .unwrap();
    assert!(cloned.success());
    std::fs::copy(whole.join("plan.md"), stage.repo.path.join("plan.md")).unwrap();
    stage.configure(UNJUDGED);
    let daemon = stage.world.daemon();
    let document = begun(&stage, &[], 0);
    let branch = document["target_branch"].as_str().unwrap();
    for file in ["Base", "Left", "Right"] {
        assert_eq!(stage.repo.git(&["show", &format!("{branch}:{file}.txt")]), file);
    }
    assert_eq!(stage.repo.git(&["rev-parse", "--is-shallow-repository"]), "true");
    stage.world.finish(Some(daemon));
}

/// These are an agent that decomposes, and a judge that does not write as asked.
#[test]
fn agents_the_run_cannot_do_without_fail_with_their_own_codes() {
    let one = |from: &str, to: &str, config: &str, code: &str| {
        let stage = Stage::new(&AGENT.replace(from, to));
        stage.configure(config);
        let daemon = stage.world.daemon();
        let document = begun(&stage, &[], 4);
        assert_eq!(document["error"]["code"], code, "{document}");
        stage.world.finish(Some(daemon));
    };
    let quick = "run: {agent: {timeout_per_bead: 1s, max_retries_per_bead: 0}, acceptance: \
        {generate: false}}\n";
    one("decompose)\n", "decompose) sleep 600 ;;\nnever)\n", quick, "E_AGENT_TIMEOUT");
    one(
        "structure)\n",
        "structure) echo it looks fine ;;\nnever)\n",
        "run: {}\n",
        "E_JUDGE_PARSE_FAILED",
    );
}
