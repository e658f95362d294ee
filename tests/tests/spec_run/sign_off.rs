//! The sign-off of a spec in a thread, which can start its run.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::spec_stage::{PATIENCE, SpecStage as Stage};
use muleteer_tests::{program, wait_until};
use serde_json::{Value, json};

/// The agent of the thread.
const ECHO: &str = "
v: 1
turns:
  - repeat: true
    steps:
      - say: \"${prompt}\"
";

/// The points before the question is durable, and those between the answer and its effect.
const BEFORE: [&str; 2] = ["signoff.saved", "question.asked"];
const AFTER: [&str; 9] = [
    "question.answered",
    "question.before_effect",
    "run.before_started",
    "run.recorded",
    "signoff.begun",
    "signoff.told",
    "question.after_effect",
    "signoff.copy_unneeded",
    "signoff.copy_removed",
];

pub(super) fn stage() -> Stage {
    let stage = Stage::new(&super::verbs::content());
    stage.configure(&format!(
        "run: {{agent: {{backend: subprocess, command: {}}}, acceptance: {{generate: false}}, \
         phases: {{decompose: {{human_review: true}}, judge: {{enabled: false}}}}}}\n",
        stage.agent.display()
    ));
    stage
}

pub(super) fn open(stage: &Stage) -> String {
    open_with(stage, &[], &[])
}

/// Opens a thread by a command with these arguments and variables.
fn open_with(stage: &Stage, more: &[&str], variables: &[(&str, &str)]) -> String {
    open_playing(stage, ECHO, more, variables)
}

/// Does the same for a thread whose agent plays another scenario.
fn open_playing(
    stage: &Stage,
    scenario: &str,
    more: &[&str],
    variables: &[(&str, &str)],
) -> String {
    let file = stage.world.path().join("scenario.yaml");
    std::fs::write(&file, scenario).unwrap();
    let (project, file) = (stage.repo.to_str(), file.to_str().unwrap());
    let args = ["thread", "new", "--project", project, "--backend", "rehearsal", "--scenario"];
    let mut command = stage.muleteer(&[&args[..], &[file], more].concat());
    for (name, value) in variables {
        command = command.env(name, value);
    }
    command.ok()
}

fn questions(stage: &Stage) -> Vec<Value> {
    let all = stage.muleteer(&["questions", "--all", "--json"]).json();
    all["questions"].as_array().unwrap().clone()
}

/// Waits for the open question of a kind that is not `known`.
pub(super) fn asked(stage: &Stage, kind: &str, known: &str) -> Value {
    wait_until(&format!("a question of the kind {kind}"), PATIENCE, || {
        let is_it = |one: &Value| {
            one["kind"] == kind && one["state"] == "open" && one["id"].as_str() != Some(known)
        };
        questions(stage).into_iter().find(is_it)
    })
}

fn closed(stage: &Stage, id: &str, state: &str) -> Value {
    wait_until(&format!("question {id} to be {state}"), PATIENCE, || {
        questions(stage).into_iter().find(|one| one["id"] == id && one["state"] == state)
    })
}

/// Returns the messages of Muleteer in a thread that contain some words.
pub(super) fn messages(stage: &Stage, thread: &str, words: &str) -> usize {
    let shown = stage.muleteer(&["thread", "show", thread, "--json"]).json();
    let all = shown["messages"].as_array().unwrap().clone();
    let has = |one: &&Value| {
        one["author"]["kind"] == "muleteer"
            && one["text"].as_str().is_some_and(|text| text.contains(words))
    };
    all.iter().filter(has).count()
}

/// Waits until exactly the copies with these hashes are left of the texts that a thread showed.
fn copies(stage: &Stage, thread: &str, hashes: &[&Value]) {
    let folder = stage.world.state().join("threads").join(thread).join("specs");
    let mut wanted: Vec<_> =
        hashes.iter().map(|hash| format!("{}.md", hash.as_str().unwrap())).collect();
    wanted.sort();
    wait_until(&format!("the copies {wanted:?}"), PATIENCE, || {
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let mut found: Vec<_> =
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        found.sort();
        (found == wanted && folder.exists() != wanted.is_empty()).then_some(())
    });
}

#[test]
fn signed_off_spec_starts_its_run_once_whatever_daemon_is_killed() {
    for point in BEFORE.into_iter().chain(AFTER) {
        let stage = stage();
        let fault = format!("{point}=kill");
        let fault = [("MULETEER_FAULT", fault.as_str())];
        let mut first = match BEFORE.contains(&point) {
            true => stage.world.daemon_with(&fault),
            false => stage.world.daemon(),
        };
        let thread = open(&stage);
        stage.muleteer(&["thread", "send", &thread, "/signoff plan.md"]).run();
        let mut next = None;
        if BEFORE.contains(&point) {
            first.ended();
            next = Some(stage.world.daemon());
        }
        let question = asked(&stage, "sign_off", "");
        assert_eq!(question["thread_id"], json!(thread), "{point}: {question}");
        assert!(question["text"].as_str().unwrap().contains("Three files."), "{question}");
        let id = question["id"].as_str().unwrap();
        if next.is_none() {
            first.kill_9();
            let mut killed = stage.world.daemon_with(&fault);
            stage.muleteer(&["answer", id, "start_run"]).run();
            killed.ended();
            // A client starts the next daemon.
            let late = stage.muleteer(&["answer", id, "sign_off", "--json"]).run();
            assert_eq!(late.error_code(), "E_ALREADY_ANSWERED", "{point}: {late:?}");
        } else {
            stage.muleteer(&["answer", id, "start_run"]).run().expect_code(0);
        }
        let plan = asked(&stage, "plan", "");
        assert_eq!(plan["thread_id"], json!(thread), "{point}: it asks where it was started");
        let run = plan["detail"]["run_id"].as_str().unwrap();
        assert!(run.ends_with(id), "{point}: {run}");
        closed(&stage, id, "delivered");
        let runs = stage.muleteer(&["runs", "--json"]).json();
        assert_eq!(runs["runs"].as_array().unwrap().len(), 1, "{point}: {runs}");
        assert_eq!(super::verbs::count(&stage, run, "run_started"), 1, "{point}");
        assert_eq!(messages(&stage, &thread, "signed off plan.md"), 1, "{point}");
        copies(&stage, &thread, &[]);
        let plan = plan["id"].as_str().unwrap();
        stage.muleteer(&["answer", plan, "reject"]).run().expect_code(0);
        wait_until("the end of the run", PATIENCE, || {
            (stage.status()["error"]["code"] == "E_REJECTED").then_some(())
        });
        stage.world.finish(next);
    }
}

#[test]
fn answer_to_a_changed_spec_is_refused_and_the_new_text_is_asked_about() {
    let stage = stage();
    let daemon = stage.world.daemon();
    let thread = open(&stage);
    let sends = |text: &str| stage.muleteer(&["thread", "send", &thread, text]).ok();
    sends("/signoff plan.md");
    let first = asked(&stage, "sign_off", "");
    let id = first["id"].as_str().unwrap();
    stage.repo.write("plan.md", "# The plan\n\nFour files.\n");
    let refused = stage.muleteer(&["answer", id, "start_run", "--json"]).run();
    assert_eq!(refused.error_code(), "E_SPEC_HASH_MISMATCH", "{refused:?}");
    closed(&stage, id, "withdrawn");
    let second = asked(&stage, "sign_off", id);
    assert!(second["text"].as_str().unwrap().contains("Four files."), "{second}");
    assert_ne!(first["detail"]["sha256"], second["detail"]["sha256"]);
    copies(&stage, &thread, &[&second["detail"]["sha256"]]);
    let id = second["id"].as_str().unwrap();
    stage.muleteer(&["answer", id, "sign_off"]).ok();
    closed(&stage, id, "delivered");
    assert_eq!(messages(&stage, &thread, "signed off plan.md"), 1);
    assert_eq!(stage.muleteer(&["runs", "--json"]).json()["runs"], json!([]));
    copies(&stage, &thread, &[]);

    sends("/signoff plan.md");
    let third = asked(&stage, "sign_off", id);
    copies(&stage, &thread, &[&third["detail"]["sha256"]]);
    stage
        .muleteer(&["answer", third["id"].as_str().unwrap(), "revise", "name the files"])
        .ok();
    closed(&stage, third["id"].as_str().unwrap(), "delivered");
    copies(&stage, &thread, &[]);
    assert_eq!(messages(&stage, &thread, "plan.md: name the files"), 1);
    // A file outside the repository is never shown, not even through a link that an agent puts in
    // place of the spec after the question.
    sends("/signoff plan.md");
    let open_now = || {
        let all = questions(&stage).into_iter().filter(|one| one["state"] == "open");
        all.map(|one| one["id"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    // The message is accepted before its command is carried out.
    let fourth = wait_until("the fourth question", PATIENCE, || {
        let open = open_now();
        (!open.is_empty()).then_some(open)
    });
    assert_eq!(fourth.len(), 1);
    let secret = stage.world.path().join("secret.md");
    std::fs::write(&secret, "# Secret\n\nA key.\n").unwrap();
    std::fs::remove_file(stage.repo.path.join("plan.md")).unwrap();
    std::os::unix::fs::symlink(&secret, stage.repo.path.join("plan.md")).unwrap();
    let refused = stage.muleteer(&["answer", &fourth[0], "start_run", "--json"]).run();
    assert_eq!(refused.error_code(), "E_SPEC_NOT_FOUND", "{refused:?}");
    assert_eq!(open_now(), fourth, "nothing is asked about the secret");
    let answer = ["thread", "send", &thread, "/signoff ../agent.sh", "--wait"];
    assert!(stage.muleteer(&answer).run().stdout.contains("E_SPEC_NOT_FOUND"));
    stage.world.finish(Some(daemon));
}

#[test]
fn daemon_killed_between_the_question_about_a_new_text_and_the_end_of_the_old_one_leaves_one() {
    let stage = stage();
    let mut killed = stage.world.daemon_with(&[("MULETEER_FAULT", "signoff.asked_again=kill")]);
    let thread = open(&stage);
    stage.muleteer(&["thread", "send", &thread, "/signoff plan.md"]).ok();
    let first = asked(&stage, "sign_off", "");
    let old = first["id"].as_str().unwrap();
    stage.repo.write("plan.md", "# The plan\n\nFour files.\n");
    // The client starts the next daemon, and repeats its answer.
    let refused = stage.muleteer(&["answer", old, "start_run", "--json"]).run();
    let code = refused.error_code();
    assert!(["E_SPEC_HASH_MISMATCH", "E_NOTHING_ASKED"].contains(&&*code), "{refused:?}");
    killed.ended();
    let withdrawn = closed(&stage, old, "withdrawn");
    let second = asked(&stage, "sign_off", old);
    let new = second["id"].as_str().unwrap();
    assert!(withdrawn["reason"].as_str().unwrap().contains(new), "{withdrawn}");
    assert_eq!(questions(&stage).len(), 2);
    copies(&stage, &thread, &[&second["detail"]["sha256"]]);
    let late = stage.muleteer(&["answer", old, "start_run", "--json"]).run();
    assert_eq!(late.error_code(), "E_NOTHING_ASKED", "{late:?}");
    stage.muleteer(&["answer", new, "sign_off"]).ok();
    closed(&stage, new, "delivered");
    assert_eq!(messages(&stage, &thread, "signed off plan.md"), 1);
    assert_eq!(stage.muleteer(&["runs", "--json"]).json()["runs"], json!([]));
    copies(&stage, &thread, &[]);
    stage.world.finish(None);
}

#[test]
fn copy_without_a_question_is_removed_by_the_next_daemon() {
    for point in ["signoff.saved", "signoff.copy_unneeded"] {
        let stage = stage();
        let mut killed = stage.world.daemon_with(&[("MULETEER_FAULT", &format!("{point}=kill"))]);
        let thread = open(&stage);
        let send = ["thread", "send", &thread, "/signoff plan.md"];
        stage.muleteer(&send).run();
        let mut answered = String::new();
        if point != "signoff.saved" {
            let question = asked(&stage, "sign_off", "");
            answered = question["id"].as_str().unwrap().into();
            stage.muleteer(&["answer", &answered, "sign_off"]).run();
        }
        killed.ended();
        stage.repo.write("plan.md", "# The plan\n\nFour files.\n");
        let daemon = stage.world.daemon();
        if !answered.is_empty() {
            closed(&stage, &answered, "delivered");
            copies(&stage, &thread, &[]);
            stage.muleteer(&send).ok();
        }
        // The repeated command shows the text that the file has now.
        let question = asked(&stage, "sign_off", &answered);
        assert!(question["text"].as_str().unwrap().contains("Four files."), "{question}");
        copies(&stage, &thread, &[&question["detail"]["sha256"]]);
        stage.world.finish(Some(daemon));
    }
}

/// An analyst that asks for the sign-off of its spec. Its other command is refused.
const ANALYST: &str = "
v: 1
turns:
  - repeat: true
    steps:
      - say: '{\"response\": \"It is ready.\", \"commands\": [ \
        {\"action\": \"sign_off\", \"path\": \"plan.md\"}, \
        {\"action\": \"spawn\", \"role\": \"developer\", \"prompt\": \"build\"}]}'
";

#[test]
fn sign_off_that_an_analyst_asks_for_starts_the_run_after_the_yes_of_a_person() {
    for point in ["thread.decided:2", "question.asked", "thread.command_done"] {
        let stage = stage();
        let first = stage.world.daemon();
        let thread = open_playing(&stage, ANALYST, &[], &[]);
        drop(first);
        let fault = format!("{point}=kill");
        let mut killed = stage.world.daemon_with(&[("MULETEER_FAULT", fault.as_str())]);
        stage.muleteer(&["thread", "send", &thread, "write it", "--key", "k"]).run();
        killed.ended();
        let daemon = stage.world.daemon();
        let question = asked(&stage, "sign_off", "");
        let id = question["id"].as_str().unwrap();
        assert_eq!(question["thread_id"], json!(thread), "{point}: {question}");
        assert!(question["text"].as_str().unwrap().contains("Three files."), "{question}");
        let by = question["asked_by"].as_str().unwrap();
        assert!(by.starts_with("product-analyst for "), "{point}: {by}");
        let refusal = "a product-analyst may only `sign_off`";
        wait_until("the refusal", PATIENCE, || {
            (messages(&stage, &thread, refusal) == 1).then_some(())
        });
        assert_eq!(stage.muleteer(&["runs", "--json"]).json()["runs"], json!([]), "{point}");
        stage.muleteer(&["answer", id, "start_run"]).ok();
        let plan = asked(&stage, "plan", "");
        assert_eq!(plan["thread_id"], json!(thread), "{point}: it asks where it was started");
        stage.muleteer(&["answer", plan["id"].as_str().unwrap(), "approve"]).ok();
        let run = plan["detail"]["run_id"].as_str().unwrap();
        assert_eq!(stage.over(run)["thread_id"], json!(thread), "{point}");
        let told = format!("Run {run} (The plan) is completed: 3 of 3 beads done, 0 failed, ");
        wait_until("the end of the run in the thread", PATIENCE, || {
            (messages(&stage, &thread, &told) == 1).then_some(())
        });
        assert_eq!(messages(&stage, &thread, "signed off plan.md"), 1, "{point}");
        assert_eq!(questions(&stage).len(), 2, "{point}: nothing is asked twice");
        stage.world.finish(Some(daemon));
    }
}

/// The requests by which an agent could try to approve a spec, or ask for its sign-off.
#[test]
fn agent_neither_signs_off_nor_asks_for_it() {
    let stage = stage();
    let daemon = stage.world.daemon();
    let thread = open(&stage);
    stage.muleteer(&["thread", "send", &thread, "/signoff plan.md"]).ok();
    let question = asked(&stage, "sign_off", "");
    let id = question["id"].as_str().unwrap();
    let tries = format!(
        "muleteer answer {id} start_run --json >> tried; \
         muleteer answer {id} sign_off --json >> tried; \
         muleteer thread send {thread} '/answer {id} start_run' --json >> tried; \
         muleteer thread send {thread} '/signoff plan.md' --json >> tried; \
         test $(grep -c E_FORBIDDEN tried) = 4"
    );
    let agent = stage.world.spawn(&stage.repo, &tries, &[]).ok();
    let end = stage.world.wait_for_end(&agent);
    let tried = std::fs::read_to_string(stage.repo.path.join("tried")).unwrap();
    assert_eq!(end["state"], "success", "{tried}");
    let still = asked(&stage, "sign_off", "");
    assert_eq!(still["id"], question["id"]);
    assert_eq!(questions(&stage).len(), 1);
    assert_eq!(stage.muleteer(&["runs", "--json"]).json()["runs"], json!([]));
    stage.world.finish(Some(daemon));
}

/// The token is the opener's, in the memory of the daemon: no agent has it, and no file.
#[test]
fn run_of_a_sign_off_pushes_with_the_token_of_the_opener_of_its_thread() {
    let stage = Stage::new(&super::verbs::content().replacen(
        "#!/bin/sh\n",
        "#!/bin/sh\nenv >> \"$HOME/out/seen\"\n",
        1,
    ));
    stage.configure(&format!(
        "run: {{agent: {{backend: subprocess, command: {}}}, acceptance: {{generate: false}}, \
         phases: {{judge: {{enabled: false}}}}}}\n",
        stage.agent.display()
    ));
    let origin = stage.world.path().join("origin.git");
    let origin = origin.to_str().unwrap();
    stage.repo.git(&["init", "--quiet", "--bare", "--initial-branch=main", origin]);
    stage.repo.git(&["remote", "add", "origin", origin]);
    stage.repo.git(&["push", "--quiet", "origin", "main"]);
    let script = "#!/bin/sh\ncase \"$1 $2\" in\n\"pr view\") exit 1 ;;\n\"pr create\") printf \
        '%s\\n' \"$GH_TOKEN\" > \"$HOME/out/pr\"; echo https://example.invalid/pull/7 ;;\nesac\n";
    program::write(&stage.world.bin().join("gh"), script);
    let daemon = stage.world.daemon();
    let given = [("GH_TOKEN", "only-for-the-push"), ("ANTHROPIC_API_KEY", "for-the-agents")];
    let thread = open_with(&stage, &[], &given);
    stage.muleteer(&["thread", "send", &thread, "/signoff plan.md"]).ok();
    let question = asked(&stage, "sign_off", "");
    stage.muleteer(&["answer", question["id"].as_str().unwrap(), "start_run"]).ok();
    let run = wait_until("the run", PATIENCE, || {
        let runs = stage.muleteer(&["runs", "--json"]).json();
        Some(runs["runs"][0]["run_id"].as_str()?.to_string())
    });
    let over = stage.over(&run);
    assert_eq!(over["pr_url"], "https://example.invalid/pull/7", "{over}");
    let out = stage.world.home().join("out");
    let pushed = std::fs::read_to_string(out.join("pr")).unwrap();
    assert_eq!(pushed, "only-for-the-push\n");
    let seen = std::fs::read_to_string(out.join("seen")).unwrap();
    assert!(seen.contains("for-the-agents") && !seen.contains("only-for-the-push"), "{seen}");
    let state = stage.world.state();
    for file in [state.join("runs").join(&run).join("run.json"), state.join("events.jsonl")] {
        assert!(!std::fs::read_to_string(file).unwrap().contains("only-for-the-push"));
    }
    let request = state.join("threads").join(&thread).join("request.json");
    let request = std::fs::read_to_string(request).unwrap();
    assert!(request.contains("GH_TOKEN") && !request.contains("only-for-the-push"), "{request}");
    stage.world.finish(Some(daemon));
}

#[test]
fn run_of_a_sign_off_without_the_variables_of_the_opener_is_refused_or_says_so() {
    let stage = stage();
    let first = stage.world.daemon();
    let token = [("GH_TOKEN", "only-for-the-push")];
    let lost = open_with(&stage, &[], &token);
    let archived = open_with(&stage, &["--env", "MY_API_KEY=sk-one"], &[]);
    let mut ids: Vec<String> = vec![];
    for thread in [&lost, &archived] {
        stage.muleteer(&["thread", "send", thread, "/signoff plan.md"]).ok();
        let known = ids.last().cloned().unwrap_or_default();
        ids.push(asked(&stage, "sign_off", &known)["id"].as_str().unwrap().to_string());
    }
    // The keys of a thread go when it is archived.
    stage.muleteer(&["thread", "archive", &archived]).ok();
    let refused = stage.muleteer(&["answer", &ids[1], "start_run", "--json"]).run();
    assert_eq!(refused.error_code(), "E_UNSUPPORTED", "{refused:?}");
    assert!(refused.stdout.contains("MY_API_KEY"), "{refused:?}");
    stage.muleteer(&["answer", &ids[1], "sign_off"]).ok();
    closed(&stage, &ids[1], "delivered");
    // The variables for the push go with the daemon.
    drop(first);
    let daemon = stage.world.daemon();
    stage.muleteer(&["answer", &ids[0], "start_run"]).ok();
    closed(&stage, &ids[0], "delivered");
    assert_eq!(messages(&stage, &lost, "It pushes without GH_TOKEN"), 1);
    let plan = asked(&stage, "plan", "");
    stage.muleteer(&["answer", plan["id"].as_str().unwrap(), "reject"]).run().expect_code(0);
    wait_until("the end of the run", PATIENCE, || {
        (stage.status()["error"]["code"] == "E_REJECTED").then_some(())
    });
    stage.world.finish(Some(daemon));
}
