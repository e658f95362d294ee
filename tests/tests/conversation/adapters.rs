//! Adapters: real processes, written from docs/adapters.md, and their abuse.

use crate::ECHO;
use muleteer_tests::{Daemon, PATIENCE, Repo, World, wait_until};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A world with an adapter called `folder`, whose outside system is a folder.
pub struct Outside {
    pub world: World,
    pub repo: Repo,
    happenings: std::cell::Cell<usize>,
}

/// Returns the adapter that is written from the documentation.
fn adapter() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/adapter/adapter.py")
}

impl Outside {
    pub fn new(scenario: &str, more: &str) -> Self {
        let world = World::new();
        let repo = world.repo("repo");
        std::fs::write(world.path().join("scenario.yaml"), scenario).expect("a scenario");
        std::fs::create_dir_all(world.path().join("outside/inbox")).expect("a folder");
        let outside = Self { world, repo, happenings: std::cell::Cell::new(0) };
        outside.configure(&format!("[python3, {}]", adapter().display()), more);
        outside
    }

    pub fn configure(&self, command: &str, more: &str) {
        let folder = self.folder();
        self.world.configure(&format!(
            "adapters:\n  folder:\n    command: {command}\n    env: {{FOLDER: {}}}\n    \
             project: {}\n    backend: rehearsal\n    max_backoff: 200ms\n{more}",
            folder.display(),
            self.repo.to_str(),
        ));
    }

    pub fn folder(&self) -> PathBuf {
        self.world.path().join("outside")
    }

    pub fn daemon(&self) -> Daemon {
        self.daemon_with(&[])
    }

    pub fn daemon_with(&self, variables: &[(&str, &str)]) -> Daemon {
        let scenario = self.world.path().join("scenario.yaml");
        let scenario = ("MULETEER_SCENARIO", scenario.to_str().expect("a path"));
        self.world.daemon_with(&[&[scenario], variables].concat())
    }

    /// Lets something happen in the outside system.
    pub fn happens(&self, happening: &Value) {
        let number = self.happenings.get() + 1;
        self.happenings.set(number);
        let name = self.folder().join(format!("inbox/{number:06}"));
        let temporary = name.with_extension("tmp");
        std::fs::write(&temporary, happening.to_string()).expect("a file");
        std::fs::rename(temporary, name).expect("a file");
    }

    /// Lets a person write in a conversation.
    pub fn writes(&self, external: &str, source: &str, text: &str) {
        self.happens(&json!({
            "kind": "message", "source_id": source, "external": external, "user": "U1",
            "name": "anna", "text": text,
        }));
    }

    fn lines(&self, name: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder().join(name)).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Returns the texts that were posted in a conversation.
    pub fn posts(&self, external: &str) -> Vec<String> {
        let posts = self.lines("posts.jsonl").into_iter();
        let here = posts.filter(|post| post["external"] == external);
        here.map(|post| post["text"].as_str().unwrap_or_default().to_string()).collect()
    }

    pub fn wait_for_posts(&self, external: &str, expected: &[&str]) {
        let what = format!("posts in {external}: {expected:?}");
        wait_until(&what, PATIENCE, || (self.posts(external) == expected).then_some(()));
    }

    /// Returns the entry of the adapter in `adapter list --json`.
    pub fn entry(&self) -> Value {
        let list = self.world.muleteer(&["adapter", "list", "--json"]).json();
        let all = list["adapters"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|one| one["name"] == "folder").unwrap_or_default()
    }

    pub fn wait_for_entry(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        wait_until(what, PATIENCE, || Some(self.entry()).filter(|entry| is_it(entry)))
    }

    fn thread(&self, external: &str) -> Value {
        let list = self.world.muleteer(&["thread", "list", "--json"]).json();
        let all = list["threads"].as_array().cloned().unwrap_or_default();
        let found = all.into_iter().find(|thread| thread["external"] == external);
        let id = found.unwrap_or_default()["id"].as_str().expect("a thread").to_string();
        self.world.muleteer(&["thread", "show", &id, "--json"]).json()
    }
}

#[test]
fn conversation_through_an_adapter_is_answered_and_acknowledged() {
    let outside = Outside::new(ECHO, "");
    let daemon = outside.daemon();
    outside.writes("C1/1", "e1", "hello");
    outside.wait_for_posts("C1/1", &["1: hello"]);
    outside.writes("C1/1", "e2", "and now");
    outside.wait_for_posts("C1/1", &["1: hello", "2: and now"]);
    let entry = outside.wait_for_entry("all items to be acknowledged", |entry| {
        entry["outbox"]["posted"] == 2 && entry["outbox"]["pending"] == 0
    });
    assert_eq!(entry["state"], "running");
    assert_eq!(entry["connected"], true);
    assert_eq!(entry["inbox"], json!({"accepted": 2, "duplicates": 0}));
    assert_eq!(entry["capabilities"], json!(["threads"]));
    let shown = outside.thread("C1/1");
    assert_eq!(shown["adapter"], "folder");
    let states: Vec<_> = shown["messages"].as_array().expect("messages").iter().collect();
    let states: Vec<_> = states.iter().map(|message| message["state"].clone()).collect();
    assert_eq!(states, ["answered", "posted", "answered", "posted"]);
    let posts = outside.lines("posts.jsonl");
    assert_eq!((&posts[0]["reply_to"], &posts[1]["reply_to"]), (&json!("e1"), &json!("e2")));
    let accepted = outside.lines("log.jsonl");
    assert_eq!(accepted[0]["message_id"], shown["messages"][0]["id"]);
    outside.world.finish(Some(daemon));
}

#[test]
fn history_that_is_submitted_again_is_a_duplicate() {
    let outside = Outside::new(ECHO, "");
    let daemon = outside.daemon();
    outside.writes("C1/1", "e1", "hello");
    outside.wait_for_posts("C1/1", &["1: hello"]);
    outside.world.muleteer(&["adapter", "restart", "folder"]).ok();
    let entry = outside.wait_for_entry("the history to be submitted again", |entry| {
        entry["inbox"]["duplicates"] == 1
    });
    assert_eq!(entry["inbox"]["accepted"], 1);
    assert_eq!(outside.posts("C1/1"), ["1: hello"]);
    assert_eq!(outside.repo.effects("heard"), ["hello"]);
    outside.world.finish(Some(daemon));
}
