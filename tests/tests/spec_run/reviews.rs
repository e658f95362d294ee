//! The gates of a run as questions: plan reviews and the approval of the result.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_process::fault::QUESTION_POINTS;
use muleteer_tests::spec_stage::{PATIENCE, SpecStage as Stage, last};
use muleteer_tests::wait_until;
use serde_json::{Value, json};

const QUICK: &str = "run: {acceptance: {generate: false}, phases: {judge: {enabled: false}}}\n";

/// The agents keep the last prompt of each purpose.
fn stage() -> Stage {
    let keeps = "cat > \"$HOME/out/prompt-$MULETEER_PURPOSE\"\n";
    let stage = Stage::new(&super::verbs::content().replace("cat > /dev/null\n", keeps));
    stage.configure(QUICK);
    stage
}

fn questions(stage: &Stage, all: bool) -> Vec<Value> {
    let mut args = vec!["questions", "--json"];
    args.extend(all.then_some("--all"));
    stage.muleteer(&args).json()["questions"].as_array().unwrap().clone()
}

/// Waits until one question is open that is not `known`.
fn asked(stage: &Stage, known: &str) -> Value {
    wait_until("a question of the run", PATIENCE, || {
        let open = questions(stage, false);
        (open.len() == 1 && open[0]["id"] != known).then(|| open[0].clone())
    })
}

fn id(value: &Value) -> &str {
    value["id"].as_str().unwrap()
}

fn answer(stage: &Stage, question: &Value, words: &[&str]) {
    stage.muleteer(&[&["answer", id(question)], words].concat()).run().expect_code(0);
}

fn ended(stage: &Stage, run: &str) -> Value {
    wait_until("the end of the run", PATIENCE, || {
        let status = stage.muleteer(&["run", "status", run, "--json"]).json();
        ["completed", "failed"].iter().any(|end| status["status"] == *end).then_some(status)
    })
}

#[test]
fn plan_is_changed_then_approved_and_the_result_is_published_after_its_approval() {
    let stage = stage();
    let daemon = stage.world.daemon();
    let begun = stage.begin(&["--review", "plan,merge", "--json"]).run().expect_code(0);
    let waits = last(&begun.stdout);
    let run = waits["run_id"].as_str().unwrap();
    let plan = asked(&stage, "");
    assert_eq!((&waits["status"], &waits["question"]), (&json!("awaiting_approval"), &plan["id"]));
    assert_eq!((&plan["kind"], &plan["detail"]["run_id"]), (&json!("plan"), &json!(run)));
    assert!(plan["text"].as_str().is_some_and(|text| text.contains("3 beads")), "{plan}");
    let shown = stage.muleteer(&["run", "status", run]).ok();
    assert!(shown.contains(&format!("muleteer answer {} approve", id(&plan))), "{shown}");

    answer(&stage, &plan, &["change", "name", "the", "files", "well"]);
    let second = asked(&stage, id(&plan));
    let prompt = std::fs::read_to_string(stage.world.home().join("out/prompt-decompose")).unwrap();
    assert!(prompt.contains("asks for changes: name the files well"), "{prompt}");
    let label = format!("run:{run}");
    let beads = stage.muleteer(&["bead", "list", "--label", &label, "--json"]).json();
    let open = beads.as_array().unwrap().iter().filter(|bead| bead["status"] == "open");
    assert_eq!(open.count(), 3, "the first plan is closed: {beads}");

    answer(&stage, &second, &["approve"]);
    let merge = asked(&stage, id(&second));
    assert_eq!((&merge["kind"], &merge["detail"]["gate"]), (&json!("approval"), &json!("merge")));
    assert!(merge["detail"]["commits"].as_u64() >= Some(3), "{merge}");
    assert!(merge["detail"]["diff"].as_str().unwrap().contains("3 files"), "{merge}");
    let branch = merge["detail"]["branch"].as_str().unwrap();
    assert!(!stage.repo.git(&["branch", "--list"]).contains(branch), "it is not published");
    answer(&stage, &merge, &["approve"]);
    assert_eq!(ended(&stage, run)["status"], "completed");
    assert!(stage.repo.git(&["branch", "--list"]).contains(branch));
    let late = stage.muleteer(&["answer", id(&merge), "reject", "--json"]).run();
    assert_eq!(late.error_code(), "E_ALREADY_ANSWERED");
    let states: Vec<_> = questions(&stage, true).iter().map(|one| one["state"].clone()).collect();
    assert_eq!(states, vec![json!("delivered"); 3]);
    assert_eq!(super::verbs::count(&stage, run, "plan_change_requested"), 1);
    stage.world.finish(Some(daemon));
}

#[test]
fn rejected_plan_ends_the_run_and_a_resumption_with_yes_answers_the_question() {
    let stage = stage();
    let daemon = stage.world.daemon();
    let run = stage.begin(&["--review", "plan", "--detach"]).ok();
    let plan = asked(&stage, "");
    answer(&stage, &plan, &["reject", "too", "large"]);
    let failed = ended(&stage, &run);
    assert_eq!(failed["error"]["code"], "E_REJECTED", "{failed}");
    let message = failed["error"]["message"].as_str().unwrap();
    assert!(message.contains("operator rejected the beads: too large"), "{message}");

    let other = stage.begin(&["--review", "plan", "--detach"]).ok();
    let plan = asked(&stage, "");
    stage.muleteer(&["run", "resume", &other, "--yes", "--json"]).run().expect_code(0);
    let late = stage.muleteer(&["answer", id(&plan), "reject", "--json"]).run();
    assert_eq!(late.error_code(), "E_ALREADY_ANSWERED", "{late:?}");
    let closed = questions(&stage, true).into_iter().find(|one| one["id"] == plan["id"]).unwrap();
    assert_eq!(closed["answered_by"], json!({"adapter": "cli", "user": "operator"}));
    stage.world.finish(Some(daemon));
}

#[test]
fn answer_reaches_the_run_once_whatever_daemon_is_killed() {
    answered_over_kills("plan");
}

#[test]
fn approval_publishes_the_result_once_whatever_daemon_is_killed() {
    answered_over_kills("merge");
}

/// Kills a daemon at each point between the question of a gate and the run that continues.
fn answered_over_kills(gate: &str) {
    for point in QUESTION_POINTS {
        let stage = stage();
        let fault = format!("{point}=kill");
        let asks = *point == "question.asked";
        let mut first = match asks {
            true => stage.world.daemon_with(&[("MULETEER_FAULT", &fault)]),
            false => stage.world.daemon(),
        };
        let run = stage.begin(&["--review", gate, "--detach"]).ok();
        // A daemon is killed before anybody can see the question, or on the way of the answer.
        let mut next = None;
        if asks {
            first.ended();
            next = Some(stage.world.daemon());
        }
        let plan = asked(&stage, "");
        wait_until("the rest", PATIENCE, || {
            (stage.status()["status"] == "awaiting_approval").then_some(())
        });
        if asks {
            answer(&stage, &plan, &["approve"]);
        } else {
            first.kill_9();
            let mut killed = stage.world.daemon_with(&[("MULETEER_FAULT", &fault)]);
            answer(&stage, &plan, &["approve"]);
            killed.ended();
            // A client starts the next daemon.
            let late = stage.muleteer(&["answer", id(&plan), "reject", "--json"]).run();
            assert_eq!(late.error_code(), "E_ALREADY_ANSWERED", "{point}: {late:?}");
        }
        assert_eq!(ended(&stage, &run)["status"], "completed", "{point}");
        let all = wait_until("the delivery", PATIENCE, || {
            let all = questions(&stage, true);
            all.iter().all(|one| one["state"] == "delivered").then_some(all)
        });
        assert_eq!(all.len(), 1, "{point}: {all:?}");
        assert_eq!(super::verbs::count(&stage, &run, "run_approved"), 1, "{point}");
        assert_eq!(super::verbs::count(&stage, &run, "run_resumed"), 1, "{point}");
        assert_eq!(super::verbs::count(&stage, &run, "question_answered"), 1, "{point}");
        let published = super::verbs::count(&stage, &run, "branch_published");
        assert_eq!(published, 1, "{point}");
        stage.world.finish(next);
    }
}
