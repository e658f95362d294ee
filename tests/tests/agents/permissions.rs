//! The permissions and questions of an agent and their answers: the real `claude` against the
//! scripted model.

#![allow(clippy::unwrap_used)]

use muleteer_protocol::v1::Request;
use muleteer_tests::model_server::Step;
use muleteer_tests::wire::Wire;
use muleteer_tests::{PATIENCE, Scene, World, wait_until};
use serde_json::{Value, json};
use std::time::Duration;

/// Makes a scene with the real `claude` under a configuration.
pub(super) fn claude(
    test: &str,
    configuration: &str,
    steps: impl IntoIterator<Item = Step>,
) -> Option<Scene> {
    let scene = Scene::claude(test, steps)?;
    scene.world.configure(configuration);
    Some(scene)
}

/// Helpers for questions and answers.
pub(super) trait Asks {
    fn asked(&self, id: &str) -> Value;
    fn answer(&self, id: &str, answer: &str) -> Value;
    fn has(&self, file: &str) -> bool;
    fn answers(&self, id: &str) -> Vec<(Value, Value)>;
}

impl Asks for Scene {
    /// Waits until the dispatch asks something, and returns the request.
    fn asked(&self, id: &str) -> Value {
        let entry = self.world.wait_for_state(id, &["waiting"]);
        let waiting = entry["waiting_for"].as_array().unwrap().clone();
        assert_eq!(waiting.len(), 1, "{entry}");
        waiting[0].clone()
    }

    fn answer(&self, id: &str, answer: &str) -> Value {
        self.world.muleteer(&["answer", id, answer, "--json"]).json()
    }

    fn has(&self, file: &str) -> bool {
        self.repo.path.join(file).exists()
    }

    fn answers(&self, id: &str) -> Vec<(Value, Value)> {
        let answered = self.world.events_of(id, "permission_answered");
        answered.into_iter().map(|event| (event["answer"].clone(), event["by"].clone())).collect()
    }
}

const ASK: &str = "permissions:\n  mode: ask\n";

#[test]
fn allowed_and_denied_requests_reach_the_agent_with_the_reason() {
    let test = "allowed_and_denied_requests_reach_the_agent_with_the_reason";
    let steps = [Step::bash("touch one"), Step::bash("touch two"), Step::success("as told")];
    let Some(scene) = claude(test, ASK, steps) else { return };
    let daemon = scene.world.daemon();
    let waiting = scene.spawn(&["--wait"]).start();
    let id = wait_until("a dispatch", PATIENCE, || {
        scene.world.status()["dispatches"][0]["id"].as_str().map(str::to_string)
    });

    let ask = scene.asked(&id);
    assert_eq!(
        (&ask["kind"], &ask["tool"], &ask["target"]),
        (&json!("permission"), &json!("Bash"), &json!("touch one"))
    );
    let entry = scene.world.dispatch(&id);
    let how = format!("`muleteer answer {id} allow|deny|TEXT`");
    assert!(entry["reason"].as_str().unwrap().contains(&how), "{entry}");
    let table = scene.world.muleteer(&["status"]).ok();
    assert!(table.contains("waiting") && table.contains("touch one"), "{table}");
    let journal = scene.world.muleteer(&["journal", &id]).ok();
    assert!(journal.contains("waits for an answer: may it use Bash: touch one?"), "{journal}");
    assert!(!scene.has("one"), "it waits");

    let wrong =
        scene.world.muleteer(&["answer", &id, "allow", "--request", "nosuch", "--json"]).run();
    assert_eq!((wrong.code, wrong.error_code().as_str()), (Some(2), "E_NOT_FOUND"), "{wrong:?}");
    let unknown = scene.world.muleteer(&["answer", "zzzzzzzz", "allow", "--json"]).run();
    assert_eq!(
        (unknown.code, unknown.error_code().as_str()),
        (Some(2), "E_NOT_FOUND"),
        "{unknown:?}"
    );
    let request = ask["request_id"].as_str().unwrap();
    let answered = scene
        .world
        .muleteer(&["answer", &id, "allow", "--request", &request[..8], "--json"])
        .json();
    assert_eq!(answered, json!({"dispatch_id": id, "request_id": request, "answer": "allow"}));

    wait_until("the second question", PATIENCE, || {
        (scene.has("one") && scene.asked(&id)["target"] == "touch two").then_some(())
    });
    assert_eq!(scene.answer(&id, "leave two alone")["answer"], "text");
    let run = waiting.finish();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(
        run.stderr.contains("may it use Bash: touch one?") && run.stderr.contains(&how),
        "{run:?}"
    );
    assert!(run.stderr.contains("may it use Bash: touch two?"), "{run:?}");
    assert!(!scene.has("two"));
    assert!(scene.last_told().contains("leave two alone"), "the agent is told why");
    let by = || json!("operator");
    assert_eq!(scene.answers(&id), [(json!("allow"), by()), (json!("text"), by())]);
    let late = scene.world.muleteer(&["answer", &id, "allow", "--json"]).run();
    assert_eq!((late.code, late.error_code().as_str()), (Some(3), "E_NOTHING_ASKED"), "{late:?}");
    assert_eq!(late.json()["error"]["hint"], "it has ended (success)", "{late:?}");
    assert_eq!(scene.world.dispatch(&id)["waiting_for"], json!([]));
    scene.world.finish(Some(daemon));
}

#[test]
fn a_policy_allows_and_denies_without_asking() {
    let test = "a_policy_allows_and_denies_without_asking";
    let policy = "categories:\n  coding:\n    permissions:\n      mode: deny\n      allow: \
        [\"Bash(touch *)\"]\n      deny: [\"Bash(touch three)\"]\n";
    let steps = [
        Step::bash("touch one"),
        Step::bash("touch two && mkdir two-too"),
        Step::bash("touch three"),
        Step::success("as far as it may"),
    ];
    let Some(scene) = claude(test, policy, steps) else { return };
    let daemon = scene.world.daemon();
    let run = scene.spawn(&["--wait"]).run();
    assert_eq!(run.code, Some(0), "{run:?}");
    let id = run.stdout.trim();
    assert_eq!([scene.has("one"), scene.has("two"), scene.has("three")], [true, false, false]);
    let by = || json!("policy");
    assert_eq!(
        scene.answers(id),
        [(json!("allow"), by()), (json!("deny"), by())],
        "the third Claude refuses itself"
    );
    let rules: Vec<_> = scene
        .world
        .events_of(id, "permission_answered")
        .iter()
        .map(|event| event["rule"].clone())
        .collect();
    assert_eq!(rules, ["Bash(touch *)", "mode deny"]);
    assert_eq!(scene.world.events_of(id, "tool_failed").len(), 2);
    assert!(!run.stderr.contains("muleteer answer"), "nobody was asked: {}", run.stderr);
    scene.world.finish(Some(daemon));
}

/// Without configuration, no action of the agent is asked about, but its own questions are.
#[test]
fn a_question_reaches_a_person_under_an_open_policy() {
    let test = "a_question_reaches_a_person_under_an_open_policy";
    let question = json!({"questions": [{"question": "Which colour?", "header": "Colour",
        "multiSelect": false,
        "options": [{"label": "Red", "description": "warm"}, {"label": "Blue",
        "description": "cold"}]}]});
    let steps = [
        Step::bash("touch one"),
        Step::tool("AskUserQuestion", question),
        Step::bash("touch two"),
        Step::success("blue"),
    ];
    let Some(scene) = claude(test, "", steps) else { return };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    let ask = scene.asked(&id);
    assert_eq!(
        (&ask["kind"], &ask["options"]),
        (&json!("question"), &json!(["Red", "Blue"])),
        "{ask}"
    );
    assert_eq!([scene.has("one"), scene.has("two")], [true, false], "commands are not asked about");
    assert_eq!(scene.answer(&id, "blue")["answer"], "text");
    let entry = scene.world.wait_for_end(&id);
    assert_eq!((&entry["state"], &entry["attempts"]), (&json!("success"), &json!(1)), "{entry}");
    assert!(scene.has("two"));
    let told = scene
        .server
        .main_requests()
        .iter()
        .map(|request| request.body.to_string())
        .collect::<String>();
    assert!(told.contains("\\\"Which colour?\\\"=\\\"Blue\\\""), "{told}");
    assert!(
        scene.answers(&id).iter().all(|(_, by)| by == "operator" || by == "policy"),
        "{:?}",
        scene.answers(&id)
    );
    scene.world.finish(Some(daemon));
}

/// Nobody watches a task list, so its agent decides by itself and continues.
#[test]
fn unattended_task_agent_gets_requests_denied() {
    let test = "unattended_task_agent_gets_requests_denied";
    let Some(binary) = muleteer_tests::claude::binary(test) else { return };
    let scene = muleteer_tests::task_list::Scene::new();
    muleteer_tests::claude::link(&scene.world, &binary);
    scene.world.configure(
        "categories: {coding: {answer_timeout: 2s}}\npermissions: {ask: [\"Bash(touch two)\"]}\n",
    );
    scene.add("Write one", "test -f one", &[]);
    let question = json!({"questions": [{"question": "Which colour?", "header": "Colour",
        "multiSelect": false,
        "options": [{"label": "Red", "description": "warm"}, {"label": "Blue",
        "description": "cold"}]}]});
    let server = muleteer_tests::model_server::ModelServer::start([
        Step::tool("AskUserQuestion", question),
        Step::bash("touch two"),
        Step::bash("touch one"),
        Step::success("decided by myself"),
    ]);
    let daemon = scene.world.daemon();
    let options = muleteer_tests::claude::env_options(&server);
    let options = options.iter().map(String::as_str);
    let args: Vec<_> = ["run", "--backend", "claude-code"].into_iter().chain(options).collect();
    scene.tasks(&args).expect_code(0);
    assert_eq!(scene.status("task-001"), "completed");
    let told: String =
        server.main_requests().iter().map(|request| request.body.to_string()).collect();
    for part in ["No person can answer", "No person answered within 2s"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let events = scene.world.events();
    let answers = events.iter().filter(|event| event["event"] == "permission_answered");
    let answers: Vec<_> = answers.filter(|event| event["rule"] == "unattended").collect();
    let is_ours = |event: &&Value| event["by"] == "muleteer" && event["answer"] == "deny";
    assert!(answers.len() == 2 && answers.iter().all(is_ours), "{answers:?}");
    scene.world.finish(Some(daemon));
}

#[test]
fn question_survives_the_daemon_and_is_answered_later() {
    let test = "question_survives_the_daemon_and_is_answered_later";
    let question = json!({"questions": [{"question": "Which colour?", "header": "Colour",
        "multiSelect": false,
        "options": [{"label": "Red", "description": "warm"}, {"label": "Blue",
        "description": "cold"}]}]});
    let steps = [
        Step::tool("AskUserQuestion", question),
        Step::bash("touch one"),
        Step::success("blue it is"),
    ];
    // An agent that waits is not stalled, also under the next daemon.
    // The limit leaves the CLI time to load on a busy disk, which is silence too.
    let limit = 12;
    let impatient = format!("{ASK}categories:\n  coding:\n    inactivity_timeout: {limit}s\n");
    let Some(scene) = claude(test, &impatient, steps) else { return };
    let mut daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    let ask = scene.asked(&id);
    assert_eq!((&ask["kind"], &ask["options"]), (&json!("question"), &json!(["Red", "Blue"])));
    assert!(ask["text"].as_str().unwrap().contains("Which colour?"), "{ask}");
    let allowed = scene.world.muleteer(&["answer", &id, "allow", "--json"]).run();
    assert_eq!(
        (allowed.code, allowed.error_code().as_str()),
        (Some(2), "E_BAD_INPUT"),
        "{allowed:?}"
    );

    daemon.kill_9();
    let mut daemon = scene.world.daemon();
    assert_eq!(scene.asked(&id), ask, "it still waits for the same");
    let longer = Duration::from_secs(limit + 2);
    muleteer_tests::wait::holds_for("nobody calls it stalled", longer, || {
        scene.world.dispatch(&id)["state"] == "waiting"
    });
    assert_eq!(scene.answer(&id, "blue")["answer"], "text");
    wait_until("the next question", PATIENCE, || {
        (scene.asked(&id)["target"] == "touch one").then_some(())
    });
    assert!(
        scene.last_told().contains("\\\"Which colour?\\\"=\\\"Blue\\\""),
        "{}",
        scene.last_told()
    );

    daemon.kill_9();
    // `answer` starts a daemon if none runs.
    assert_eq!(scene.answer(&id, "allow")["answer"], "allow");
    let entry = scene.world.wait_for_end(&id);
    assert_eq!((&entry["state"], &entry["attempts"]), (&json!("success"), &json!(1)), "{entry}");
    assert!(scene.has("one"));
    scene.world.muleteer(&["daemon", "stop"]).ok();
    scene.world.finish(None);
}

#[test]
fn a_waiting_agent_is_killed_like_any_other_and_interrupted_too() {
    let test = "a_waiting_agent_is_killed_like_any_other_and_interrupted_too";
    let steps = [Step::bash("touch one").times(2), Step::success("never").times(3)];
    let Some(scene) = claude(test, ASK, steps) else { return };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    scene.asked(&id);
    scene.world.muleteer(&["interrupt", &id]).ok();
    wait_until("the request to be taken back", PATIENCE, || {
        (scene.world.dispatch(&id)["waiting_for"] == json!([])).then_some(())
    });
    let late = scene.world.muleteer(&["answer", &id, "allow"]).run();
    assert_eq!(late.code, Some(3), "{late:?}");
    scene.world.muleteer(&["kill", &id]).ok();

    let id = scene.spawn(&[]).ok();
    scene.asked(&id);
    scene.world.muleteer(&["kill", &id]).ok();
    let entry = scene.world.wait_for_end(&id);
    assert_eq!((&entry["state"], &entry["waiting_for"]), (&json!("killed"), &json!([])), "{entry}");
    assert!(!scene.has("one"));
    scene.world.wait_for_nothing_left(&[daemon.pid()]);
    scene.world.finish(Some(daemon));
}

/// The resumed session asks again, and that is the same question.
#[test]
fn agent_killed_with_an_open_request_asks_again() {
    let test = "agent_killed_with_an_open_request_asks_again";
    let steps = [Step::bash("touch one").times(2), Step::success("in the end").times(2)];
    let Some(scene) = claude(test, ASK, steps) else { return };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    let first = scene.asked(&id)["request_id"].clone();
    // Claude asks a moment before it writes the call to its transcript. If it is killed in between,
    // nobody knows how far it was.
    let projects = scene.world.home().join(".claude/projects");
    wait_until("the call in its transcript", PATIENCE, || {
        let folders = std::fs::read_dir(&projects).ok()?.flatten();
        let files = folders
            .flat_map(|folder| std::fs::read_dir(folder.path()).into_iter().flatten().flatten());
        let mut texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
        texts.any(|text| text.contains("touch one")).then_some(())
    });
    scene.world.kill_9(scene.world.dispatch(&id)["pid"].as_u64().unwrap() as u32);
    wait_until("a request of its own", PATIENCE, || {
        let requests = scene.world.events_of(&id, "permission_requested");
        let waiting = &scene.world.dispatch(&id)["waiting_for"];
        (requests.len() == 2 && waiting[0]["request_id"].is_string()).then_some(())
    });
    assert_eq!(scene.asked(&id)["request_id"], first, "asking again is the same question");
    scene.answer(&id, "allow");
    assert_eq!(scene.world.wait_for_end(&id)["state"], "success");
    assert!(scene.has("one"));
    scene.world.finish(Some(daemon));
}

#[test]
fn model_change_reaches_the_model_api() {
    let test = "model_change_reaches_the_model_api";
    let steps = [
        Step::bash("echo up >> effects; while [ ! -e go ]; do sleep 0.05; done"),
        Step::success("changed").times(2),
    ];
    let Some(scene) = claude(test, "", steps) else { return };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&["--model", "claude-opus-4-5"]).ok();
    scene.wait_for_the_tool();
    scene.world.muleteer(&["model", &id, "claude-haiku-4-5"]).ok();
    wait_until("its CLI to say yes", PATIENCE, || {
        scene.world.events_of(&id, "model_changed").pop()
    });
    std::fs::write(scene.repo.path.join("go"), "").unwrap();
    let entry = scene.world.wait_for_end(&id);
    assert_eq!(
        (&entry["state"], &entry["model"]),
        (&json!("success"), &json!("claude-haiku-4-5")),
        "{entry}"
    );
    let asked: Vec<_> =
        scene.server.main_requests().iter().map(|request| request.body["model"].clone()).collect();
    assert_eq!(
        (&asked[0], asked.last()),
        (&json!("claude-opus-4-5"), Some(&json!("claude-haiku-4-5"))),
        "{asked:?}"
    );

    // A dispatch that has ended also uses the new model when it continues.
    scene.world.muleteer(&["model", &id, "claude-opus-4-5"]).ok();
    scene.world.muleteer(&["send", &id, "once more"]).ok();
    wait_until("the second turn", PATIENCE, || {
        let entry = scene.world.dispatch(&id);
        (entry["turns"] == 2 && entry["state"] == "success").then_some(())
    });
    let last = scene.server.main_requests().pop().unwrap();
    assert_eq!(last.body["model"], "claude-opus-4-5");
    scene.world.finish(Some(daemon));
}

#[test]
fn backend_without_permission_requests_is_rejected_under_a_policy() {
    let world = World::new();
    world.configure(ASK);
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let refused = world.spawn(&repo, "true", &["--json"]).run();
    assert_eq!(
        (refused.code, refused.error_code().as_str()),
        (Some(2), "E_UNSUPPORTED"),
        "{refused:?}"
    );
    let bad = World::new();
    bad.configure("permissions:\n  allow: [\"Bash(\"]\n");
    let found = bad.muleteer(&["config", "check", "--json"]).run();
    assert_eq!(
        (found.code, found.error_code().as_str()),
        (Some(2), "E_CONFIG_INVALID"),
        "{found:?}"
    );
    assert!(found.stdout.contains("is not a rule"), "{found:?}");
    let model = world.muleteer(&["model", "zzzz", "x", "--json"]).run();
    assert_eq!(model.error_code(), "E_NOT_FOUND");
    world.finish(Some(daemon));
}

/// Claude Code would refuse by itself, and no event would record it.
#[test]
fn claude_under_dont_ask_is_refused_by_the_policy() {
    let test = "claude_under_dont_ask_is_refused_by_the_policy";
    let steps =
        [Step::bash("touch one"), Step::bash("touch two"), Step::success("as far as it may")];
    let Some(scene) = claude(test, "permissions: {allow: [\"Bash(touch two)\"]}\n", steps) else {
        return;
    };
    std::fs::create_dir_all(scene.repo.path.join(".muleteer/roles")).unwrap();
    scene
        .repo
        .write(".muleteer/roles/developer.md", "---\npermissionMode: dontAsk\n---\nYou work.\n");
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    assert_eq!(scene.world.wait_for_end(&id)["state"], "success");
    assert_eq!([scene.has("one"), scene.has("two")], [false, true]);
    let answered = scene.world.events_of(&id, "permission_answered");
    let refused =
        answered.iter().find(|event| event.to_string().contains("permissionMode dontAsk"));
    assert_eq!(refused.map(|event| event["by"].clone()), Some("policy".into()), "{answered:?}");
    scene.world.finish(Some(daemon));
}

/// The agent that made a dispatch may answer its child; another agent may not.
#[test]
fn parent_answers_requests_of_its_child() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let scenario = world.path().join("asks.yaml");
    let steps = "v: 1\nturns:\n  - steps:\n      - ask: {permission: \"rm -rf build\"}\n      \
                 - run: echo allowed >> effects\n      - result: {status: success, summary: s}\n";
    std::fs::write(&scenario, steps).unwrap();
    let ask = format!(
        "id=$(muleteer spawn developer . 'the child' --backend rehearsal --scenario '{}') && echo \
         $id > child && \
         while [ ! -e go ]; do sleep 0.05; done && \
         muleteer answer $id allow && muleteer wait $id",
        scenario.display()
    );
    let parent = world.spawn(&repo, &ask, &[]).ok();
    let child = wait_until("the child", PATIENCE, || repo.effects("child").pop());
    world.wait_for_state(&child, &["waiting"]);

    let stranger = world
        .spawn(&repo, &format!("muleteer answer {child} allow --json > answered; test $? = 3"), &[])
        .ok();
    assert_eq!(world.wait_for_end(&stranger)["state"], "success");
    let refused = std::fs::read_to_string(repo.path.join("answered")).unwrap();
    assert!(refused.contains("E_FORBIDDEN"), "{refused}");
    assert_eq!(world.dispatch(&child)["state"], "waiting");

    repo.write("go", "");
    assert_eq!(world.wait_for_end(&parent)["state"], "success");
    assert_eq!(world.dispatch(&child)["state"], "success");
    assert_eq!(repo.effects("effects"), ["allowed"]);
    let answered = world.events_of(&child, "permission_answered");
    assert_eq!(answered[0]["by"], format!("agent/{parent}"), "{answered:?}");
    world.finish(Some(daemon));
}

/// The daemon dies after it has recorded the answer and before it replies. The client repeats its
/// request, and by then the agent asks something else.
#[test]
fn repeated_answer_is_idempotent() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let scenario = world.path().join("scenario.yaml");
    let steps = "v: 1\nturns:\n  - steps:\n      - ask: {permission: \"the first\"}\n      \
                 - ask: {permission: \"the second\"}\n      - result: {status: success, summary: \
                 s}\n";
    std::fs::write(&scenario, steps).expect("a scenario");
    let scenario = scenario.display().to_string();
    let spawn = ["spawn", "developer", repo.to_str(), "do it", "--scenario", &scenario];
    let id = world.muleteer(&spawn).ok();
    let waits_for = |text: &str| {
        wait_until(&format!("a request for {text}"), PATIENCE, || {
            let waiting = world.dispatch(&id)["waiting_for"].clone();
            waiting.to_string().contains(text).then(|| waiting[0]["request_id"].clone())
        })
    };
    let first = waits_for("the first");
    let mut client = Wire::greeted(&world, true);
    client.receive().expect("a welcome");
    let mut allow = |key: &str| -> Value {
        let (id, answer) = (id.clone(), "allow".to_string());
        client.request(Request::Answer {
            id,
            request: None,
            answer,
            arguments: vec![],
            key: key.into(),
        });
        serde_json::to_value(client.receive().expect("a reply")).expect("json")
    };
    let told = allow("once");
    assert!(told.to_string().contains(first.as_str().unwrap_or("?")), "{told}");
    let second = waits_for("the second");
    assert_ne!(first, second);
    assert_eq!(allow("once"), told, "the same again");
    assert_eq!(waits_for("the second"), second, "nobody has answered that");
    assert_ne!(allow("twice"), told);
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    assert_eq!(world.events_of(&id, "permission_answered").len(), 2);
    let refused = allow("not a key").to_string();
    assert!(refused.contains("E_BAD_INPUT"), "{refused}");
    world.finish(Some(daemon));
}
