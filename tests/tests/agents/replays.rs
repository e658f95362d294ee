//! The behaviour of the real `claude` when it gets a prompt a second time in a resumed session. The
//! rules about prompts (docs/design/dispatch-lifecycle.md) rely on it. There is no daemon;
//! `muleteer parse` reads the output.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::model_server::{ModelServer, Step};
use muleteer_tests::{Repo, World, claude, wait_until};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const KEY: &str = "00000000-0000-4000-8000-00000000000a";
const SESSION: &str = "00000000-0000-4000-8000-00000000000b";
const PATIENCE: Duration = Duration::from_secs(90);

struct Scene {
    world: World,
    repo: Repo,
    server: ModelServer,
    claude: PathBuf,
}

/// A process that ends with its group, whatever becomes of the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(group) = rustix::process::Pid::from_raw(self.0.id().cast_signed()) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

impl Scene {
    fn new(test: &str, steps: impl IntoIterator<Item = Step>) -> Option<Self> {
        let claude = claude::binary(test)?;
        let world = World::new();
        let repo = world.repo("repo");
        Some(Self { world, repo, server: ModelServer::start(steps), claude })
    }

    /// Starts a process that gets only this prompt, in the session that `how` makes or resumes.
    fn prompted(&self, how: &str) -> Process {
        let mut command = Command::new(&self.claude);
        command.args([
            "-p",
            "--output-format",
            "stream-json",
            "--input-format",
            "stream-json",
            "--verbose",
        ]);
        command.args([
            "--replay-user-messages",
            "--permission-mode",
            "bypassPermissions",
            how,
            SESSION,
        ]);
        self.world.environment(&mut command);
        command
            .envs(claude::variables(&self.server))
            .current_dir(&self.repo.path)
            .process_group(0);
        command
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .stdout(File::create(self.output()).unwrap());
        let mut process = Process(command.spawn().unwrap());
        let prompt = json!({
            "type": "user", "uuid": KEY, "session_id": SESSION, "parent_tool_use_id": null,
            "message": {"role": "user", "content": [{"type": "text", "text": "Do it"}]},
        });
        // The process ends with its turn, because its stdin is closed.
        writeln!(process.0.stdin.take().unwrap(), "{prompt}").unwrap();
        process
    }

    fn output(&self) -> PathBuf {
        self.world.path().join("output.jsonl")
    }

    /// Runs a process with the prompt in the existing session, and returns its events.
    fn again(&self) -> Vec<Value> {
        let mut process = self.prompted("--resume");
        wait_until("it to end", PATIENCE, || process.0.try_wait().unwrap());
        let output = std::fs::read_to_string(self.output()).unwrap();
        let parsed = self.world.muleteer(&["parse", "claude-code"]).stdin(&output).ok();
        parsed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn asked(&self) -> usize {
        self.server.main_requests().len()
    }
}

fn kinds<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["type"] == kind).collect()
}

#[test]
fn after_a_complete_answer_it_is_acknowledged_and_nothing_follows() {
    let steps = [Step::text("done"), Step::text("a second answer")];
    let Some(scene) =
        Scene::new("after_a_complete_answer_it_is_acknowledged_and_nothing_follows", steps)
    else {
        return;
    };
    let mut first = scene.prompted("--session-id");
    wait_until("the first to end", PATIENCE, || first.0.try_wait().unwrap());
    assert_eq!(scene.asked(), 1);

    let events = scene.again();
    let prompts = kinds(&events, "prompt");
    assert_eq!(prompts.len(), 1, "{events:?}");
    assert_eq!(
        (&prompts[0]["key"], &prompts[0]["repeated"]),
        (&json!(KEY), &json!(true)),
        "{events:?}"
    );
    assert!(kinds(&events, "result").is_empty(), "nobody waits for an answer: {events:?}");
    assert_eq!(scene.asked(), 1, "the model is not asked again");
}

#[test]
fn in_the_middle_of_a_tool_nothing_runs() {
    let waiting = Step::bash("echo up >> effects; while [ ! -e go ]; do sleep 0.05; done");
    let Some(scene) =
        Scene::new("in_the_middle_of_a_tool_nothing_runs", [waiting, Step::text("more")])
    else {
        return;
    };
    let first = scene.prompted("--session-id");
    wait_until("the tool to run", PATIENCE, || {
        (!scene.repo.effects("effects").is_empty()).then_some(())
    });
    drop(first);
    scene.repo.write("go", "");

    let events = scene.again();
    assert!(kinds(&events, "result").is_empty(), "{events:?}");
    assert_eq!(
        (scene.asked(), scene.repo.effects("effects").len()),
        (1, 1),
        "so it must be told to go on"
    );
}

#[test]
fn recorded_and_unanswered_it_runs() {
    let steps = [Step::text("lost").held(), Step::text("done")];
    let Some(scene) = Scene::new("recorded_and_unanswered_it_runs", steps) else { return };
    let first = scene.prompted("--session-id");
    let projects = scene.world.home().join(".claude/projects");
    wait_until("the record", PATIENCE, || {
        let folders = std::fs::read_dir(&projects).ok()?.flatten();
        let file = folders
            .map(|folder| folder.path().join(format!("{SESSION}.jsonl")))
            .find(|file| file.exists())?;
        let recorded = std::fs::read_to_string(file)
            .is_ok_and(|text| text.contains(&format!("\"uuid\":\"{KEY}\"")));
        (recorded && scene.asked() == 1).then_some(())
    });
    drop(first);
    scene.server.release();

    let events = scene.again();
    let results = kinds(&events, "result");
    assert_eq!((results.len(), &results[0]["ok"]), (1, &json!(true)), "{events:?}");
    assert_eq!(scene.asked(), 2, "it is worked on");
}
