//! The places that show the question of a run: a thread of its own, the conversations of adapters,
//! `status`, and the log of the run.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

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
    assert_eq!(stage.over(run)["status"], "completed");
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
