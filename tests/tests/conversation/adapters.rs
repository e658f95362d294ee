//! Adapters: real processes, written from docs/adapters.md, and their abuse.

use crate::{ECHO, SLOW};
use muleteer_tests::{Daemon, PATIENCE, Repo, World, wait_until};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A world with an adapter called `folder`, whose outside system is a folder.
pub struct Outside {
    pub world: World,
    pub repo: Repo,
    happenings: std::cell::Cell<usize>,
    /// Further environment of the adapter, as YAML.
    env: String,
}

/// Returns the adapter that is written from the documentation.
pub fn adapter() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/adapter/adapter.py")
}

impl Outside {
    pub fn new(scenario: &str, more: &str) -> Self {
        Self::with(scenario, "", more)
    }

    /// Lets the listed person talk with the product analyst, and nothing else.
    pub fn leave_only_the_right_to_talk(&self) {
        let path = self.world.path().join("config/muleteer/config.yaml");
        let config = std::fs::read_to_string(&path).expect("a configuration");
        let may = "[U1], may: ['talk:role=product-analyst']}";
        std::fs::write(&path, config.replace("[U1]}", may)).expect("a configuration");
    }

    /// An adapter with these capabilities, and variables as YAML.
    pub fn able(scenario: &str, capabilities: &str, variables: &str) -> Self {
        Self::with(scenario, &format!(", CAPABILITIES: '{capabilities}'{variables}"), "")
    }

    fn with(scenario: &str, env: &str, more: &str) -> Self {
        let world = World::new();
        let repo = world.repo("repo");
        std::fs::write(world.path().join("scenario.yaml"), scenario).expect("a scenario");
        std::fs::create_dir_all(world.path().join("outside/inbox")).expect("a folder");
        let outside = Self { world, repo, happenings: std::cell::Cell::new(0), env: env.into() };
        outside.configure(&format!("[python3, {}]", adapter().display()), more);
        outside
    }

    pub fn configure(&self, command: &str, more: &str) {
        let folder = self.folder();
        self.world.configure(&format!(
            "people:\n  anna: {{folder: [U1]}}\nadapters:\n  folder:\n    \
             command: {command}\n    env: {{FOLDER: {}{}}}\n    \
             project: {}\n    backend: rehearsal\n    max_backoff: 200ms\n{more}",
            folder.display(),
            self.env,
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

    pub fn lines(&self, name: &str) -> Vec<Value> {
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

    pub fn thread(&self, external: &str) -> Value {
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
    assert_eq!(entry["capabilities"], json!(["threads", "questions"]));
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

/// Each first message opens a thread under the lock of its conversation. A lock that two names
/// share would stop the adapter at one of a hundred.
#[test]
fn first_messages_of_two_hundred_conversations_are_all_accepted() {
    const CONVERSATIONS: usize = 200;
    let outside = Outside::new(SLOW, "");
    for number in 0..CONVERSATIONS {
        outside.writes(&format!("C{number}"), &format!("e{number}"), "hello");
    }
    let daemon = outside.daemon();
    // The daemon accepts them one after the other; a stop of one is a stop of all.
    let accepted = || outside.lines("log.jsonl").len();
    let mut before = 0;
    while before < CONVERSATIONS {
        before = wait_until("one more message to be accepted", PATIENCE, || {
            Some(accepted()).filter(|now| *now > before)
        });
    }
    assert_eq!(outside.entry()["inbox"]["accepted"], CONVERSATIONS);
    drop(daemon);
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

#[test]
fn history_that_left_the_memory_is_still_a_duplicate() {
    /// Each has an answer, so there are more messages than the memory keeps.
    const MESSAGES: usize = 30;
    let outside = Outside::new(ECHO, "");
    let daemon = outside.daemon();
    for n in 0..MESSAGES {
        outside.writes("C1/1", &format!("e{n}"), &format!("message {n}"));
    }
    let answers: Vec<_> = (0..MESSAGES).map(|n| format!("{}: message {n}", n + 1)).collect();
    let expected: Vec<_> = answers.iter().map(String::as_str).collect();
    outside.wait_for_posts("C1/1", &expected);
    outside.wait_for_entry("all items to be acknowledged", |entry| {
        entry["outbox"]["posted"] == MESSAGES && entry["outbox"]["pending"] == 0
    });
    outside.world.muleteer(&["adapter", "restart", "folder"]).ok();
    let entry = outside.wait_for_entry("the history to be submitted again", |entry| {
        entry["inbox"]["duplicates"] == MESSAGES
    });
    assert_eq!(entry["inbox"]["accepted"], MESSAGES);
    for (n, post) in outside.lines("posts.jsonl").iter().enumerate() {
        assert_eq!(post["reply_to"], format!("e{n}"), "{post}");
    }
    let states: Vec<_> = outside.thread("C1/1")["messages"]
        .as_array()
        .expect("messages")
        .iter()
        .map(|message| message["state"].as_str().unwrap_or_default().to_string())
        .collect();
    let count = |state: &str| states.iter().filter(|one| *one == state).count();
    assert_eq!((count("answered"), count("posted")), (MESSAGES, MESSAGES), "{states:?}");
    outside.world.finish(Some(daemon));
}

#[test]
fn unlisted_person_gets_one_reply_with_the_line_to_add() {
    let outside = Outside::new(ECHO, "");
    let daemon = outside.daemon();
    let stranger = |source: &str| {
        json!({"kind": "message", "source_id": source, "external": "C1/1", "user": "U9",
               "text": "hello"})
    };
    outside.happens(&stranger("s1"));
    outside.happens(&stranger("s2"));
    // A kill may have lost the reply.
    outside.happens(&stranger("s1"));
    outside.writes("C1/2", "e1", "hello");
    outside.wait_for_posts("C1/2", &["1: hello"]);
    let answers = outside.lines("log.jsonl");
    let rejected: Vec<_> = answers.iter().filter(|answer| answer["t"] == "rejected").collect();
    assert_eq!(rejected.len(), 3, "{answers:?}");
    assert!(rejected.iter().all(|one| one["error"]["code"] == "E_FORBIDDEN"), "{rejected:?}");
    let reply = rejected[0]["reply"].as_str().expect("a reply");
    assert!(reply.contains("NAME: {folder: [U9]}"), "{reply}");
    assert_eq!(rejected[1].get("reply"), None);
    assert_eq!(rejected[2]["reply"], reply);
    let list = outside.world.muleteer(&["thread", "list", "--json"]).json();
    assert_eq!(list["threads"].as_array().map(Vec::len), Some(1), "{list}");
    // Once the line is there, the person may talk, without a restart.
    let path = outside.world.path().join("config/muleteer/config.yaml");
    let config = std::fs::read_to_string(&path).expect("a configuration");
    std::fs::write(&path, config.replace("people:\n", "people:\n  ben: {folder: [U9]}\n"))
        .expect("a configuration");
    outside.happens(&stranger("s3"));
    outside.wait_for_posts("C1/1", &["1: hello"]);
    outside.world.finish(Some(daemon));
}

#[test]
fn adapter_user_who_may_only_talk_is_refused_every_other_command() {
    let outside = Outside::new(ECHO, "");
    outside.leave_only_the_right_to_talk();
    let daemon = outside.daemon();
    outside.writes("C1/1", "e1", "hello");
    outside.wait_for_posts("C1/1", &["1: hello"]);
    let commands = [
        "/set models.default m",
        "/spawn developer . work",
        "/kill product-analyst",
        "/model m",
        "/role developer",
        "/cli /compact",
        "@tester work",
    ];
    for (number, command) in commands.iter().enumerate() {
        outside.writes("C1/1", &format!("c{number}"), command);
        let posts = wait_until(command, PATIENCE, || {
            Some(outside.posts("C1/1")).filter(|posts| posts.len() == number + 2)
        });
        assert!(posts[number + 1].starts_with("E_FORBIDDEN: "), "{command}: {posts:?}");
    }
    let shown = outside.thread("C1/1");
    let messages = shown["messages"].as_array().expect("messages").iter();
    let refused = messages.filter(|message| message["state"] == "refused");
    assert_eq!(refused.count(), commands.len(), "{shown}");
    let status = outside.world.muleteer(&["status", "--json"]).json();
    assert_eq!(status["dispatches"].as_array().map(Vec::len), Some(1), "{status}");
    let events = outside.world.events();
    assert!(events.iter().all(|event| event["event"] != "setting_changed"), "{events:?}");
    outside.writes("C1/2", "n1", "@tester work");
    let rejected = wait_until("the rejection", PATIENCE, || {
        outside.lines("log.jsonl").into_iter().find(|answer| answer["t"] == "rejected")
    });
    assert_eq!(rejected["error"]["code"], "E_FORBIDDEN", "{rejected}");
    // The local operator still may do everything in the same thread.
    let id = shown["id"].as_str().expect("an id");
    let set = crate::ask(&outside.world, id, "/set models.default m");
    assert_eq!(set["answer"]["text"], "`models.default` is m.", "{set}");
    outside.world.finish(Some(daemon));
}

#[test]
fn refused_post_is_shown_and_a_delayed_one_is_repeated() {
    let outside = Outside::new(ECHO, "");
    let daemon = outside.daemon();
    let refuse = outside.folder().join("refuse");
    let refusal = json!({"once": true, "error": "no such channel", "permanent": true});
    std::fs::write(&refuse, refusal.to_string()).expect("a file");
    outside.writes("C1/1", "e1", "one");
    outside.wait_for_entry("the refusal", |entry| entry["outbox"]["refused"] == 1);
    let shown = outside.thread("C1/1");
    let answer = &shown["messages"][1];
    assert_eq!(
        (&answer["state"], &answer["reason"]),
        (&json!("refused"), &json!("no such channel"))
    );
    let delay = json!({"once": true, "error": "too fast", "retry_after_s": 0.05});
    std::fs::write(&refuse, delay.to_string()).expect("a file");
    outside.writes("C1/1", "e2", "two");
    outside.wait_for_posts("C1/1", &["2: two"]);
    let refusing = outside.lines("log.jsonl").into_iter();
    let refusing: Vec<_> = refusing.filter(|line| line["t"] == "refusing").collect();
    assert_eq!(refusing.len(), 2, "{refusing:?}");
    assert!(refusing.iter().all(|one| one["again"] == false), "{refusing:?}");
    outside.world.finish(Some(daemon));
}

#[test]
fn question_of_an_agent_is_asked_and_answered_through_the_adapter() {
    const ASKING: &str = "
v: 1
turns:
  - steps:
      - ask: {permission: rm -rf build}
      - say: done
";
    let outside = Outside::new(ASKING, "");
    let daemon = outside.daemon();
    outside.writes("C1/1", "e1", "build it");
    let ask = wait_until("the question", PATIENCE, || {
        outside.lines("posts.jsonl").into_iter().find(|post| post["op"] == "ask")
    });
    let options: Vec<_> = ask["options"].as_array().expect("options").iter().collect();
    assert_eq!(options.len(), 2, "{ask}");
    let answer = json!({
        "kind": "answer", "source_id": "a1", "external": "C1/1", "user": "U1",
        "question_id": ask["question_id"], "options": ["allow"],
    });
    outside.happens(&answer);
    let resolved = wait_until("the end of the question", PATIENCE, || {
        outside.lines("posts.jsonl").into_iter().find(|post| post["op"] == "resolve")
    });
    assert_eq!(resolved["question_id"], ask["question_id"]);
    assert_eq!(resolved["text"], "answered by U1 (folder): allow");
    outside.happens(&answer);
    outside.wait_for_entry("the repetition", |entry| entry["inbox"]["duplicates"] == 1);
    outside.world.finish(Some(daemon));
}

#[test]
fn stall_is_asked_and_answered_through_the_adapter_of_its_thread() {
    const HANGS: &str = "v: 1\nturns:\n  - steps:\n      - say: I begin\n      - hang: {for: 1h}\n";
    let more = "categories:\n  conversational:\n    inactivity_timeout: 3s\n";
    let outside = Outside::new(HANGS, more);
    let daemon = outside.daemon();
    let of = |op: &str, external: &str| {
        let posts = outside.lines("posts.jsonl").into_iter();
        let mut found = posts.filter(|post| post["op"] == op && post["external"] == external);
        found.next()
    };
    let wait_for = |op: &str, external: &str| {
        let what = format!("{op} in {external}");
        wait_until(&what, PATIENCE, || of(op, external))
    };
    outside.writes("C1/1", "e1", "hello");
    outside.writes("C1/2", "e2", "hello");
    let (ask, _) = (wait_for("ask", "C1/1"), wait_for("ask", "C1/2"));
    let options = ask["options"].as_array().expect("options").iter();
    let ids: Vec<_> = options.map(|option| option["id"].clone()).collect();
    assert_eq!(ids, ["respawn", "abandon", "leave"], "{ask}");
    let answer = |source: &str, external: &str, option: &str| {
        outside.happens(&json!({
            "kind": "answer", "source_id": source, "external": external, "user": "U1",
            "question_id": ask["question_id"], "options": [option],
        }));
    };
    let rejected = |source: &str| {
        let what = format!("the rejection of {source}");
        wait_until(&what, PATIENCE, || {
            let lines = outside.lines("log.jsonl").into_iter();
            let mut found =
                lines.filter(|line| line["t"] == "rejected" && line["source_id"] == source);
            found.next().map(|line| line["error"].clone())
        })
    };
    answer("a1", "C1/2", "abandon");
    assert_eq!(rejected("a1")["code"], "E_FORBIDDEN");
    answer("a2", "C1/1", "perhaps");
    assert_eq!(rejected("a2")["code"], "E_BAD_INPUT");
    answer("a3", "C1/1", "leave");
    let resolved = wait_for("resolve", "C1/1");
    assert_eq!(resolved["question_id"], ask["question_id"]);
    assert_eq!(resolved["text"], "answered by U1 (folder): leave");
    let place = outside.lines("posts.jsonl").iter().position(|post| post["key"] == ask["key"]);
    let place = place.map(|before| (before + 1).to_string());
    assert_eq!(resolved["external_ref"].as_str(), place.as_deref(), "{resolved}");
    answer("a4", "C1/1", "abandon");
    let late = rejected("a4");
    assert_eq!(late["code"], "E_ALREADY_ANSWERED", "{late}");
    assert!(late["message"].as_str().is_some_and(|text| text.contains("U1 (folder)")), "{late}");
    // A message that fits is an answer too.
    outside.writes("C1/2", "e3", "Abandon");
    assert_eq!(wait_for("resolve", "C1/2")["text"], "answered by U1 (folder): abandon");
    let all = outside.world.muleteer(&["questions", "--all", "--json"]).json();
    let all = all["questions"].as_array().expect("questions").clone();
    assert_eq!(all.len(), 2, "{all:?}");
    let by = json!({"adapter": "folder", "user": "U1"});
    assert!(all.iter().all(|question| question["answered_by"] == by), "{all:?}");
    outside.world.finish(Some(daemon));
}

#[test]
fn failing_adapter_is_set_aside_while_everything_else_goes_on() {
    let outside = Outside::new(ECHO, "");
    outside.configure("exit 3", "    max_restarts: 2\n");
    let daemon = outside.daemon();
    let entry = outside.wait_for_entry("it to be set aside", |entry| entry["state"] == "set_aside");
    assert_eq!(
        (&entry["restarts"], &entry["reason"]),
        (&json!(2), &json!("it exited with code 3"))
    );
    let names: Vec<_> = outside.world.events().iter().map(|event| event["event"].clone()).collect();
    let count = |name: &str| names.iter().filter(|event| **event == name).count();
    assert_eq!(
        ["adapter_started", "adapter_lost", "adapter_set_aside"].map(count),
        [3, 2, 1],
        "{names:?}"
    );
    let thread = crate::open(&outside.world, &outside.repo, ECHO);
    assert_eq!(crate::ask(&outside.world, &thread, "hi")["answer"]["text"], "1: hi");
    outside.writes("C1/1", "e1", "hello");
    outside.configure(&format!("[python3, {}]", adapter().display()), "");
    outside.world.muleteer(&["adapter", "restart", "folder"]).ok();
    outside.wait_for_posts("C1/1", &["1: hello"]);
    outside.world.finish(Some(daemon));
}

#[test]
fn disabled_adapter_owes_its_posts_until_it_is_enabled() {
    let outside = Outside::new(SLOW, "");
    let mut daemon = outside.daemon();
    outside.writes("C1/1", "e1", "hello");
    wait_until("the agent to read it", PATIENCE, || {
        (outside.repo.effects("heard") == ["hello"]).then_some(())
    });
    outside.world.muleteer(&["adapter", "disable", "folder"]).ok();
    assert_eq!(outside.entry()["state"], "disabled");
    outside.repo.write("go", "");
    outside.wait_for_entry("a pending post", |entry| entry["outbox"]["pending"] == 1);
    daemon.kill_9();
    let daemon = outside.daemon();
    let entry = outside.entry();
    assert_eq!((&entry["state"], &entry["outbox"]["pending"]), (&json!("disabled"), &json!(1)));
    let enabled = outside.world.muleteer(&["adapter", "enable", "folder", "--json"]).json();
    assert_eq!(enabled["adapters"][0]["state"], "running");
    outside.wait_for_posts("C1/1", &["1: hello"]);
    let unknown = outside.world.muleteer(&["adapter", "enable", "nobody"]).run();
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    outside.world.finish(Some(daemon));
}

#[test]
fn abuse_by_an_adapter_is_bounded_and_changes_nothing() {
    let outside = Outside::new(SLOW, "");
    let script = adapter().with_file_name("abuse.py");
    let more = "    max_restarts: 0\n  other:\n    command: sleep 1000\n";
    outside.configure(&format!("[python3, {}]", script.display()), more);
    let daemon = outside.daemon();
    let answers = wait_until("the end of the abuse", PATIENCE, || {
        let answers = outside.lines("abuse.jsonl");
        answers.iter().any(|answer| answer["what"] == "end").then_some(answers)
    });
    let answer = |what: &str| {
        let found = answers.iter().find(|answer| answer["what"] == what);
        found.unwrap_or_else(|| panic!("no {what} in {answers:?}"))["answer"].clone()
    };
    for what in ["wrong key", "empty key", "another name"] {
        assert_eq!(answer(what)["error"]["code"], "E_FORBIDDEN", "{what}: {answers:?}");
    }
    assert_eq!(answer("version 0")["error"]["code"], "E_PROTOCOL_VERSION");
    assert_eq!(answer("newer version")["version"], 1);
    assert_eq!(answer("no hello")["t"], "refused");
    assert_eq!(answer("never given")["error"]["code"], "E_BAD_INPUT");
    assert_eq!(answer("unknown")["error"]["code"], "E_UNSUPPORTED");
    assert_eq!(answer("flood"), json!({"accepted": 256, "E_BUSY": 44}));
    let ends = [answer("1 GB"), answer("no map")];
    assert!(ends.iter().all(|end| end["t"] == "refused" || end.is_string()), "{ends:?}");
    let entry = outside.entry();
    assert_eq!((&entry["state"], &entry["restarts"]), (&json!("running"), &json!(0)), "{entry}");
    assert_eq!(
        entry["outbox"],
        json!({"pending": 0, "posted": 0, "refused": 0, "oldest_age_s": null})
    );
    drop(daemon);
}
