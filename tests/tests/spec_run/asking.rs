//! The places that show the question of a run: a thread of its own or the one of `run --thread`,
//! the conversations of adapters, `status`, and the log of the run; and the end of a run in its
//! thread.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use super::sign_off::{asked, messages, open, stage};
use muleteer_process::fault::RUN_END_POINTS;
use muleteer_tests::spec_stage::{PATIENCE, SpecStage as Stage, last};
use muleteer_tests::wait_until;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const QUICK: &str = "run: {acceptance: {generate: false}, phases: {judge: {enabled: false}}}\n";

/// A run with an adapter called `folder`, whose outside system is a folder.
struct Shown {
    stage: Stage,
    folder: PathBuf,
    other: PathBuf,
}

impl Shown {
    fn new(may: &str) -> Self {
        let stage = Stage::new(&super::verbs::content());
        let folder = stage.world.path().join("outside");
        std::fs::create_dir_all(folder.join("inbox")).unwrap();
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let adapter = manifest.join("fixtures/adapter/adapter.py");
        let other = stage.world.repo("other");
        stage.world.configure(&format!(
            "people:\n  anna: {{folder: [U1]{may}}}\nprojects:\n  shop: {}\n  other: {}\n\
             adapters:\n  folder:\n    command: [python3, {}]\n    env: {{FOLDER: {}}}\n    \
             project: other\n    questions: C9/1\n    max_backoff: 200ms\n",
            stage.repo.to_str(),
            other.to_str(),
            adapter.display(),
            folder.display(),
        ));
        stage.configure(QUICK);
        Self { stage, folder, other: other.path.clone() }
    }

    fn lines(&self, name: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    fn line(&self, name: &str, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        wait_until(what, PATIENCE, || self.lines(name).into_iter().find(&is_it))
    }

    fn answers(&self, source: &str, question: &Value, option: &str) {
        let answer = json!({
            "kind": "answer", "source_id": source, "external": "C9/1", "user": "U1",
            "question_id": question, "options": [option],
        });
        self.happens(source, &answer);
    }

    /// Lets something happen in the outside system.
    fn happens(&self, name: &str, happening: &Value) {
        let name = self.folder.join("inbox").join(name);
        std::fs::write(name.with_extension("tmp"), happening.to_string()).unwrap();
        std::fs::rename(name.with_extension("tmp"), name).unwrap();
    }
}

#[test]
fn question_of_a_run_is_shown_in_its_thread_and_by_the_adapter_and_answered_there() {
    let shown = Shown::new("");
    let stage = &shown.stage;
    let daemon = stage.world.daemon();
    let begun = stage.begin(&["--review", "plan"]).run().expect_code(0);
    let said = format!("{}{}", begun.stdout, begun.stderr);
    assert!(said.contains("BLOCKED: Approve the plan of run "), "{said}");
    let status = stage.status();
    let (run, question) = (status["run_id"].as_str().unwrap(), &status["question"]);
    let ask = shown.line("posts.jsonl", "the question", |line| line["op"] == "ask");
    assert_eq!((&ask["question_id"], &ask["external"]), (question, &json!("C9/1")), "{ask}");

    let threads = stage.muleteer(&["thread", "list", "--json"]).json();
    let threads = threads["threads"].as_array().unwrap().clone();
    let own = threads.iter().find(|one| one["adapter"] == "cli").unwrap();
    assert_eq!(own["title"], format!("{run}: The plan"), "{own}");
    assert!(threads.iter().all(|one| one["open_questions"] == 1), "{threads:?}");
    let listed = stage.muleteer(&["status", "--json"]).json();
    assert_eq!(&listed["run_questions"][0]["id"], question, "{listed}");
    let text = stage.muleteer(&["status"]).ok();
    let command = format!("muleteer answer {} approve", question.as_str().unwrap());
    assert!(text.contains(&command), "{text}");
    let runs = stage.muleteer(&["runs", "--json"]).json();
    assert!(runs["runs"][0].to_string().contains(&command), "{runs}");

    shown.answers("a1", question, "approve");
    let resolved = shown.line("posts.jsonl", "the end", |line| line["op"] == "resolve");
    assert_eq!(resolved["text"], "answered by U1 (folder): approve", "{resolved}");
    // The adapter shows the answer before the run resumes.
    wait_until("the end of the run", PATIENCE, || {
        (stage.over(run)["status"] == "completed").then_some(())
    });
    let names = stage.names(run);
    let place = |name: &str| names.iter().position(|known| known == name).unwrap();
    assert!(place("question_asked") < place("run_rested"), "{names:?}");
    assert!(place("question_answered") < place("run_resumed"), "{names:?}");
    // A closed question asks nobody to answer.
    let listed = stage.muleteer(&["status", "--json"]).json();
    assert!(listed["run_questions"].is_null(), "{listed}");
    shown.stage.world.finish(Some(daemon));
}

#[test]
fn right_to_answer_elsewhere_is_no_right_to_answer_a_run() {
    let shown = Shown::new(", may: ['talk', 'answer:project=other']");
    let stage = &shown.stage;
    let daemon = stage.world.daemon();
    let waits = last(&stage.begin(&["--review", "plan", "--json"]).run().stdout);
    let ask = shown.line("posts.jsonl", "the question", |line| line["op"] == "ask");
    shown.answers("a1", &ask["question_id"], "approve");
    let refused = |source: &str| {
        let line = shown.line("log.jsonl", "the refusal", |line| {
            line["t"] == "rejected" && line["source_id"] == source
        });
        line["error"]["code"].clone()
    };
    assert_eq!(refused("a1"), "E_FORBIDDEN");

    // The person may sign off a spec of the other project, and start no run of it.
    std::fs::write(shown.other.join("plan.md"), "# Other\n\nText.\n").unwrap();
    shown.happens(
        "a2",
        &json!({
            "kind": "message", "source_id": "a2", "external": "C9/1", "user": "U1", "name": "anna",
            "text": "/signoff plan.md",
        }),
    );
    let ask = shown.line("posts.jsonl", "the sign-off", |line| {
        line["op"] == "ask" && line["text"].as_str().is_some_and(|text| text.contains("# Other"))
    });
    shown.answers("a3", &ask["question_id"], "start_run");
    assert_eq!(refused("a3"), "E_FORBIDDEN");
    shown.answers("a4", &ask["question_id"], "sign_off");
    let resolved = shown.line("posts.jsonl", "the end", |line| line["op"] == "resolve");
    assert_eq!(resolved["text"], "answered by U1 (folder): sign_off", "{resolved}");
    assert_eq!(stage.status()["status"], "awaiting_approval");
    let run = waits["run_id"].as_str().unwrap();
    stage.muleteer(&["run", "stop", run]).run();
    shown.stage.world.finish(Some(daemon));
}

/// Begins a run in a thread, named by the start of its id.
fn begin_in(stage: &Stage, thread: &str) {
    stage
        .muleteer(&["run", "plan.md", "--thread", &thread[..5], "--detach"])
        .run()
        .expect_code(0);
}

/// Waits for the question about the plan of a run in a thread.
fn asked_in(stage: &Stage, thread: &str) -> Value {
    let plan = asked(stage, "plan", "");
    assert_eq!(plan["thread_id"], json!(thread), "{plan}");
    plan
}

/// Waits until a thread is told of the end of a run, and returns how often it was told.
fn ends_told(stage: &Stage, thread: &str) -> usize {
    wait_until("the end of the run in its thread", PATIENCE, || {
        let count = messages(stage, thread, " beads done, ");
        (count > 0).then_some(count)
    })
}

#[test]
fn run_with_a_thread_asks_there_whatever_daemon_is_killed() {
    let points = ["run.before_started", "run.recorded", "run.before_commit:3", "question.asked"];
    for point in points {
        let stage = stage();
        let first = stage.world.daemon();
        let thread = open(&stage);
        drop(first);
        let fault = format!("{point}=kill");
        let mut killed = stage.world.daemon_with(&[("MULETEER_FAULT", fault.as_str())]);
        begin_in(&stage, &thread);
        killed.ended();
        // A client that asks starts the next daemon, unless the one above did.
        stage.muleteer(&["thread", "send", &thread, "/help", "--wait"]).ok();
        let plan = asked_in(&stage, &thread);
        let run = plan["detail"]["run_id"].as_str().unwrap();
        assert_eq!(super::verbs::count(&stage, run, "run_started"), 1, "{point}");
        assert_eq!(stage.over(run)["thread_id"], json!(thread), "{point}");
        let threads = stage.muleteer(&["thread", "list", "--json"]).json();
        assert_eq!(threads["threads"].as_array().unwrap().len(), 1, "{point}: {threads}");
        // The question is in the thread, so the rest for it is no end.
        assert_eq!(messages(&stage, &thread, " beads done, "), 0, "{point}");
        stage.muleteer(&["answer", plan["id"].as_str().unwrap(), "reject", "too big"]).ok();
        assert_eq!(ends_told(&stage, &thread), 1, "{point}");
        assert_eq!(messages(&stage, &thread, "E_REJECTED"), 1, "{point}");
        stage.world.finish(None);
    }
}

#[test]
fn end_of_a_run_is_told_once_whatever_daemon_is_killed() {
    let others = ["run.committed", "run.checkpointed", "run.before_rest"];
    for point in others.iter().chain(RUN_END_POINTS) {
        let stage = stage();
        let mut first = stage.world.daemon();
        let thread = open(&stage);
        begin_in(&stage, &thread);
        let plan = asked_in(&stage, &thread);
        first.kill_9();
        let fault = format!("{point}=kill");
        let mut killed = stage.world.daemon_with(&[("MULETEER_FAULT", fault.as_str())]);
        stage.muleteer(&["answer", plan["id"].as_str().unwrap(), "reject", "too big"]).run();
        killed.ended();
        let mut next = stage.world.daemon();
        assert_eq!(ends_told(&stage, &thread), 1, "{point}");
        let run = plan["detail"]["run_id"].as_str().unwrap();
        let untold = stage.world.state().join("runs").join(run).join("untold");
        wait_until("the file of the message to be gone", PATIENCE, || {
            (std::fs::read_dir(&untold).unwrap().count() == 0).then_some(())
        });
        next.kill_9();
        let last = stage.world.daemon();
        assert_eq!(messages(&stage, &thread, " beads done, "), 1, "{point}");
        stage.world.finish(Some(last));
    }
}

/// Two daemons crash over the run, and the next one is killed while it suspends the run.
#[test]
fn suspended_run_is_told_in_its_thread_once_whatever_daemon_is_killed() {
    for point in ["aside.noted", "runend.due", "runend.saved", "aside.rested", "runend.told"] {
        let stage = stage();
        let first = stage.world.daemon();
        let thread = open(&stage);
        drop(first);
        let mut killed = stage.world.daemon_with(&[("MULETEER_FAULT", "run.before_worktree")]);
        let begun = stage.muleteer(&["run", "plan.md", "--thread", &thread, "--detach"]).start();
        killed.ended();
        drop(begun);
        let crash = "run.before_worktree=abort";
        for fault in [crash, crash, point] {
            stage.world.daemon_unready(&[("MULETEER_FAULT", fault)]).ended();
        }
        let mut next = stage.world.daemon();
        assert_eq!(ends_told(&stage, &thread), 1, "{point}");
        next.kill_9();
        let last = stage.world.daemon();
        assert_eq!(messages(&stage, &thread, "2 daemons crashed"), 1, "{point}");
        stage.world.finish(Some(last));
    }
}

#[test]
fn quiet_thread_is_told_of_each_end_of_its_run() {
    let stage = stage();
    let daemon = stage.world.daemon();
    let thread = open(&stage);
    stage.muleteer(&["thread", "send", &thread, "/set verbosity quiet", "--wait"]).ok();
    let begin = ["run", "plan.md", "--thread", &thread, "--dry-run", "--json"];
    let planned = last(&stage.muleteer(&begin).run().expect_code(0).stdout);
    assert_eq!(planned["thread_id"], json!(thread), "{planned}");
    let run = planned["run_id"].as_str().unwrap();
    assert_eq!(ends_told(&stage, &thread), 1);
    let done = ["run", "--resume", run, "--yes", "--json"];
    let done = last(&stage.muleteer(&done).run().expect_code(0).stdout);
    assert_eq!(done["status"], "completed", "{done}");
    wait_until("the second end", PATIENCE, || {
        let told = format!("Run {run} (The plan) is completed: 3 of 3 beads done, 0 failed, ");
        (messages(&stage, &thread, &told) == 1).then_some(())
    });
    assert_eq!(messages(&stage, &thread, &format!("Branch: muleteer/{run}")), 1);
    stage.world.finish(Some(daemon));
}

#[test]
fn unknown_or_archived_thread_is_refused_before_anything_starts() {
    let stage = stage();
    let daemon = stage.world.daemon();
    let thread = open(&stage);
    stage.muleteer(&["thread", "archive", &thread]).ok();
    for (name, code) in [("zzzzzzzz", "E_NOT_FOUND"), (thread.as_str(), "E_BAD_INPUT")] {
        let refused = stage.muleteer(&["run", "plan.md", "--thread", name, "--json"]).run();
        assert_eq!(refused.error_code(), code, "{refused:?}");
        assert!(refused.stdout.contains("hint"), "{refused:?}");
    }
    assert_eq!(stage.muleteer(&["runs", "--json"]).json()["runs"], json!([]));
    assert!(!stage.world.state().join("runs").exists());
    stage.world.finish(Some(daemon));
}
