//! Kills with `kill -9` in conversations that people have through an adapter.
//!
//! There is one scene: the adapter of `tests/fixtures/adapter`, whose outside system is a folder.
//! People write in several conversations there. Each turn of an agent asks for a permission, which
//! a person gives there, twice. Meanwhile daemons, shims, agents and the adapter are killed.
//! Afterwards:
//!
//! - each message is accepted once, and its state is final: answered, or with a reason;
//! - no agent heard it in two turns, and the agent of a conversation heard its messages in order;
//! - each item is posted once, in the order of the thread, and each answer names its message;
//! - each question has at most one answer, takes none any more, and each that was shown is closed;
//! - no recorded event is lost, changed or doubled, and no process is left alive.

use super::{Dice, Victim, conversations::actions_of_long, strike};
use crate::{Daemon, Repo, World, events, wait_until};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time limit of all messages on a loaded machine with several kills.
const LONG: Duration = Duration::from_secs(240);
const CONVERSATIONS: usize = 2;
/// The messages of a conversation at its beginning. In a long trial each action brings another one.
const MESSAGES: usize = 3;

/// A prompt with the context of a lost session ends with the message.
const SCENARIO: &str = "
v: 1
turns:
  - repeat: true
    steps:
      - run: |
          said=$(printf %s \"$prompt\" | tail -n 1)
          printf '%s %s %s\\n' \"$dispatch\" \"$turn\" \"$said\" >> heard
      - ask: {permission: go on}
      - say: \"I heard ${prompt}\"
";

struct Scene {
    world: World,
    repo: Repo,
    happenings: std::cell::Cell<usize>,
    /// The messages of a conversation so far.
    written: std::cell::Cell<usize>,
    /// The questions that were answered outside.
    answered: std::cell::RefCell<BTreeSet<String>>,
    daemons: std::cell::RefCell<Vec<Daemon>>,
}

/// Kills once at the named point, when it is reached for the `nth` time.
///
/// # Panics
/// When an invariant does not hold, or the daemon did not reach the point.
pub fn at_point(point: &str, nth: u32) {
    let fault = format!("{point}:{nth}");
    let scene = Scene::new();
    scene.people_write(MESSAGES);
    let mut killed = scene.world.daemon_unready(&[
        ("MULETEER_FAULT", &fault),
        ("MULETEER_SCENARIO", scene.scenario().to_str().expect("a path")),
    ]);
    wait_until(&format!("{fault}: the death of the daemon"), LONG, || {
        scene.answer_questions();
        killed.has_ended().then_some(())
    });
    let status = killed.ended();
    assert!(status.code().is_none(), "{fault}: the daemon was to be killed, but {status}");
    scene.end();
}

/// Kills at moments, both chosen by `seed`.
///
/// # Panics
/// When an invariant does not hold.
pub fn seeded(seed: u64) {
    let mut dice = Dice::new(seed);
    let scene = Scene::new();
    scene.start();
    scene.people_write(MESSAGES);
    let mut done = vec![];
    let long = actions_of_long();
    for _ in 0..long.unwrap_or_else(|| dice.below(5) + 1) {
        if long.is_some() {
            scene.people_write(1);
        }
        scene.answer_questions();
        // This sleep *is* the test's input: a moment chosen by the seed.
        std::thread::sleep(Duration::from_millis(dice.below(600)));
        let victim = match dice.below(8) {
            0..=2 => None,
            3 | 4 => Some(Victim::Daemon),
            5 => Some(Victim::Shim),
            6 => Some(Victim::Agent),
            _ => Some(Victim::Everything),
        };
        match victim {
            Some(victim) => strike(&scene.world, victim),
            None => scene.kill_adapter(),
        }
        done.push(victim);
        scene.start();
    }
    eprintln!("adapter seed {seed}: {done:?} (None is the adapter)");
    scene.end();
}

impl Scene {
    fn new() -> Self {
        let world = World::new();
        let repo = world.repo("repo");
        let adapter = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/adapter/adapter.py");
        let folder = world.path().join("outside");
        std::fs::create_dir_all(folder.join("inbox")).expect("a folder");
        world.configure(&format!(
            "people:\n  anna: {{folder: [U1]}}\nadapters:\n  folder:\n    \
             command: [python3, {}]\n    env: {{FOLDER: {}, \
             CAPABILITIES: 'questions,streaming,reactions,status'}}\n    project: {}\n    \
             backend: rehearsal\n    max_backoff: 100ms\n    max_restarts: 1000\n",
            adapter.display(),
            folder.display(),
            repo.to_str(),
        ));
        let scene = Self {
            world,
            repo,
            happenings: std::cell::Cell::new(0),
            written: std::cell::Cell::new(0),
            answered: std::cell::RefCell::default(),
            daemons: std::cell::RefCell::default(),
        };
        std::fs::write(scene.scenario(), SCENARIO).expect("a scenario");
        scene
    }

    fn scenario(&self) -> PathBuf {
        self.world.path().join("scenario.yaml")
    }

    /// Starts a daemon unless one runs.
    fn start(&self) {
        if self.world.status()["daemon"]["running"] == true {
            return;
        }
        let scenario = self.scenario();
        let scenario = ("MULETEER_SCENARIO", scenario.to_str().expect("a path"));
        self.daemons.borrow_mut().push(self.world.daemon_with(&[scenario]));
    }

    fn kill_adapter(&self) {
        let all = self.world.processes();
        let is_adapter = |command: &str| command.contains("adapter.py");
        for process in all.iter().filter(|process| is_adapter(&process.command)) {
            self.world.kill_9(process.pid);
        }
    }

    fn happens(&self, happening: &Value) {
        let number = self.happenings.get() + 1;
        self.happenings.set(number);
        let name = self.world.path().join(format!("outside/inbox/{number:06}"));
        let temporary = name.with_extension("tmp");
        std::fs::write(&temporary, happening.to_string()).expect("a file");
        std::fs::rename(temporary, name).expect("a file");
    }

    /// People write this many messages in each conversation.
    fn people_write(&self, count: usize) {
        let written = self.written.get();
        self.written.set(written + count);
        for number in written..written + count {
            for conversation in 0..CONVERSATIONS {
                let text = text(conversation, number);
                self.happens(&json!({
                    "kind": "message", "source_id": text, "external": external(conversation),
                    "user": "U1", "name": "anna", "text": text,
                }));
            }
        }
    }

    fn lines(&self, name: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.world.path().join("outside").join(name));
        let text = text.unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Answers the questions that are shown outside: each twice, and differently.
    fn answer_questions(&self) {
        for ask in self.lines("posts.jsonl").iter().filter(|post| post["op"] == "ask") {
            let id = ask["question_id"].as_str().unwrap_or_default().to_string();
            if !self.answered.borrow_mut().insert(id.clone()) {
                continue;
            }
            for option in ["allow", "deny"] {
                self.happens(&json!({
                    "kind": "answer", "source_id": format!("{id}/{option}"), "user": "U1",
                    "external": ask["external"], "question_id": id, "options": [option],
                }));
            }
        }
    }

    fn thread(&self, conversation: usize) -> Option<Value> {
        let list = self.world.muleteer(&["thread", "list", "--json"]).run();
        let list: Value = serde_json::from_str(&list.stdout).ok()?;
        let all = list["threads"].as_array()?;
        let found = all.iter().find(|thread| thread["external"] == external(conversation))?;
        let shown = self.world.muleteer(&["thread", "show", found["id"].as_str()?, "--json"]).run();
        serde_json::from_str(&shown.stdout).ok()
    }

    /// Lets everything come to its end, and checks it.
    fn end(self) {
        let log = self.world.state().join("events.jsonl");
        let before = events::lines(&log);
        self.start();
        wait_until("the end of all messages and posts", LONG, || {
            self.answer_questions();
            self.is_settled().then_some(())
        });
        events::check_nothing_lost(&before, &log);
        let posts = self.lines("posts.jsonl");
        let keys: BTreeSet<_> = posts.iter().map(|post| post["key"].to_string()).collect();
        assert_eq!(keys.len(), posts.len(), "no post twice: {posts:#?}");
        self.check_questions(&posts);
        let all = self.world.events();
        for conversation in 0..CONVERSATIONS {
            self.check_conversation(conversation, &posts, &all);
        }
        self.world.muleteer(&["daemon", "stop", "--agents", "stop"]).run();
        drop(self.daemons);
        self.world.wait_for_nothing_left(&[]);
        events::check(&log);
    }

    /// Whether all messages were accepted, then were final, and then no post was owed: each is
    /// looked at only after the one before it, because it follows from it.
    fn is_settled(&self) -> bool {
        let entry = || {
            let list = self.world.muleteer(&["adapter", "list", "--json"]).run();
            let list: Value = serde_json::from_str(&list.stdout).unwrap_or_default();
            list["adapters"][0].clone()
        };
        let is_final = |message: &Value| {
            let state = message["state"].as_str().unwrap_or_default();
            message["direction"] == "out" || ["answered", "refused", "unknown"].contains(&state)
        };
        entry()["inbox"]["accepted"] == CONVERSATIONS * self.written.get()
            && (0..CONVERSATIONS).all(|conversation| {
                self.thread(conversation).is_some_and(|shown| {
                    shown["open_questions"] == 0
                        && shown["messages"].as_array().is_some_and(|all| all.iter().all(is_final))
                })
            })
            && entry()["outbox"]["pending"] == 0
    }

    fn check_questions(&self, posts: &[Value]) {
        let of = |op: &str| {
            let these = posts.iter().filter(|post| post["op"] == op);
            these.map(|post| post["question_id"].to_string()).collect::<Vec<_>>()
        };
        let (mut asks, mut resolves) = (of("ask"), of("resolve"));
        asks.sort();
        resolves.sort();
        assert_eq!(asks, resolves, "each question that was shown is closed once");
        let all = self.world.muleteer(&["questions", "--all", "--json"]).json();
        for question in all["questions"].as_array().expect("questions") {
            let state = question["state"].as_str().unwrap_or_default();
            assert!(["delivered", "undeliverable", "withdrawn"].contains(&state), "{question}");
        }
        let mut answered = BTreeSet::new();
        for event in self.world.events() {
            if event["event"] == "question_answered" {
                assert!(answered.insert(event["question"].to_string()), "two answers: {event}");
            }
        }
    }

    fn check_conversation(&self, conversation: usize, posts: &[Value], all: &[Value]) {
        let shown = self.thread(conversation).expect("a thread");
        let messages = shown["messages"].as_array().expect("messages");
        let inbound: Vec<_> = messages.iter().filter(|one| one["direction"] == "in").collect();
        let texts: Vec<_> = inbound.iter().map(|one| one["text"].clone()).collect();
        let written: Vec<_> =
            (0..self.written.get()).map(|number| text(conversation, number)).collect();
        assert_eq!(texts, written, "each message is accepted once, in order");
        for message in &inbound {
            let is_answered = message["state"] == "answered";
            assert!(is_answered || !message["reason"].is_null(), "explained: {message}");
        }
        let recorded = all.iter().filter(|event| event["event"] == "message_recorded");
        let recorded = recorded.filter(|event| event["thread"] == shown["id"]);
        let recorded: Vec<_> = recorded.map(|event| event["text"].clone()).collect();
        let is_here = |post: &&Value| {
            post["external"] == external(conversation) && post["question_id"].is_null()
        };
        let posted: Vec<_> =
            posts.iter().filter(is_here).map(|post| post["text"].clone()).collect();
        assert_eq!(posted, recorded, "each post once, in order");
        let mut turns = BTreeMap::<String, BTreeSet<String>>::new();
        let mut order = vec![];
        for line in self.repo.effects("heard") {
            let (place, text) = line.rsplit_once(' ').expect("a dispatch, a turn and a text");
            let is_new = turns.entry(text.into()).or_default().insert(place.into());
            if is_new && written.iter().any(|one| one == text) && !order.contains(&text.to_string())
            {
                order.push(text.to_string());
            }
        }
        for text in &order {
            assert_eq!(turns[text].len(), 1, "{text} was heard in {:?}", turns[text]);
        }
        assert!(order.is_sorted(), "out of order: {order:?}");
    }
}

fn external(conversation: usize) -> String {
    format!("C{conversation}")
}

fn text(conversation: usize, number: usize) -> String {
    format!("c{conversation}n{number:03}")
}
