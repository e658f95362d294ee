//! The operations of adapters: streams, reactions, states, documents and files, and the texts for
//! outside systems that lack them.

use crate::adapters::Outside;
use crate::{ECHO, SLOW};
use muleteer_tests::{PATIENCE, wait_until};
use serde_json::{Value, json};

/// An agent that says something, and its last text once a file exists.
const TWO_TEXTS: &str = "
v: 1
turns:
  - repeat: true
    steps:
      - say: the first part
      - run: {command: \"while [ ! -e go ]; do sleep 0.05; done\", timeout: 120s}
      - say: \"the last text\"
";

/// An agent that asks before it goes on.
const ASKING: &str = "
v: 1
turns:
  - steps:
      - ask: {permission: rm -rf build}
      - say: done
";

fn ops(lines: &[Value], op: &str) -> Vec<Value> {
    lines.iter().filter(|line| line["op"] == op).cloned().collect()
}

impl Outside {
    fn wait_for_line(&self, name: &str, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        wait_until(what, PATIENCE, || self.lines(name).into_iter().find(&is_it))
    }
}

#[test]
fn turn_is_streamed_and_its_last_text_replaces_the_stream() {
    let outside = Outside::able(TWO_TEXTS, "threads,streaming,reactions,status", "");
    let daemon = outside.daemon();
    outside.writes("C1/1", "e1", "hello");
    let first = outside.wait_for_line("live.jsonl", "a stream", |line| line["op"] == "stream");
    assert_eq!((&first["text"], &first["offset"]), (&json!("the first part"), &json!(0)));
    assert_eq!(first["author"]["name"], "product-analyst");
    assert_eq!(outside.posts("C1/1"), Vec::<String>::new());
    outside.wait_for_line("live.jsonl", "the tool call", |line| {
        line["op"] == "status" && line["text"].as_str().is_some_and(|text| text.contains("while"))
    });
    outside.repo.write("go", "");
    outside.wait_for_posts("C1/1", &["the last text"]);
    let post = outside.lines("posts.jsonl")[0].clone();
    assert_eq!((&post["op"], &post["reply_to"]), (&json!("update"), &json!("e1")), "{post}");
    assert_eq!(post["stream"], first["key"]);
    let all = outside.lines("live.jsonl");
    let at = all.iter().position(|line| line["key"] == first["key"]).map(|at| at + 1);
    assert_eq!(post["external_ref"], format!("live-{}", at.unwrap_or_default()));
    let marks: Vec<_> = ops(&all, "react").iter().map(|line| line["state"].clone()).collect();
    assert_eq!(marks.last(), Some(&json!("done")), "{marks:?}");
    assert!(marks.contains(&json!("working")), "{marks:?}");
    assert!(ops(&all, "react").iter().all(|line| line["reply_to"] == "e1"), "{all:?}");
    outside.wait_for_line("live.jsonl", "the agent to rest", |line| {
        line["op"] == "status" && line["state"] == "idle"
    });
    // The next turn has a stream of its own.
    outside.writes("C1/1", "e2", "again");
    wait_until("the second answer", PATIENCE, || (outside.posts("C1/1").len() == 2).then_some(()));
    let streams: Vec<_> = ops(&outside.lines("live.jsonl"), "stream");
    let keys: std::collections::BTreeSet<_> =
        streams.iter().map(|line| line["key"].to_string()).collect();
    assert!(keys.len() <= 2 && streams.iter().all(|line| line["external"] == "C1/1"), "{keys:?}");
    outside.world.finish(Some(daemon));
}

#[test]
fn last_text_names_the_stream_of_an_adapter_that_was_killed() {
    let outside = Outside::able(TWO_TEXTS, "threads,streaming,reactions", "");
    let daemon = outside.daemon();
    outside.writes("C1/1", "e1", "hello");
    let first = outside.wait_for_line("live.jsonl", "a stream", |line| line["op"] == "stream");
    let pid = outside.entry()["pid"].as_u64().expect("a pid");
    outside.world.kill_9(u32::try_from(pid).expect("a pid"));
    outside
        .wait_for_entry("its successor", |entry| entry["pid"] != pid && entry["connected"] == true);
    outside.repo.write("go", "");
    outside.wait_for_posts("C1/1", &["the last text"]);
    let lines = outside.lines("posts.jsonl");
    assert_eq!((&lines[0]["op"], &lines[0]["stream"]), (&json!("post"), &first["key"]));
    let marks = ops(&outside.lines("live.jsonl"), "react");
    assert_eq!(marks.last().map(|line| line["state"].clone()), Some(json!("done")), "{marks:?}");
    outside.world.finish(Some(daemon));
}

#[test]
fn adapter_without_capabilities_gets_texts_only() {
    let outside = Outside::able(ASKING, "threads", ", LONGEST_TEXT: '256'");
    let daemon = outside.daemon();
    outside.writes("C1/1", "e1", "build it");
    let ask = outside
        .wait_for_line("posts.jsonl", "the question", |line| line["question_id"].is_string());
    let id = ask["question_id"].as_str().expect("an id").to_string();
    assert_eq!(ask["op"], "post");
    let text = ask["text"].as_str().expect("a text");
    assert!(text.contains("`allow`"), "{text}");
    assert!(text.ends_with(&format!("Answer with `/answer {id} OPTION`.")), "{text}");
    outside.writes("C1/1", "e2", &format!("/answer {id} allow"));
    let resolved = outside.wait_for_line("posts.jsonl", "the end of the question", |line| {
        line["question_id"] == id.as_str() && line["key"] != ask["key"]
    });
    let expected = format!("Question {id}: answered by U1 (folder): allow");
    assert_eq!((&resolved["op"], &resolved["text"]), (&json!("post"), &json!(expected)));
    outside.wait_for_line("posts.jsonl", "the answer", |line| line["text"] == "done");
    assert_eq!(outside.lines("live.jsonl"), Vec::<Value>::new());
    outside.world.finish(Some(daemon));
}

#[test]
fn long_text_is_a_document_and_the_operator_attaches_files() {
    let outside = Outside::able(ECHO, "threads,files", ", LONGEST_TEXT: '256'");
    let daemon = outside.daemon();
    let long = "a long text ".repeat(40);
    outside.writes("C1/1", "e1", long.trim());
    let document =
        outside.wait_for_line("posts.jsonl", "the document", |line| line["op"] == "document");
    assert_eq!(document["text"], format!("1: {}", long.trim()));
    assert_eq!(document["file"], "message.md");
    // The operator writes in the same thread: the people of the adapter see it with its file.
    let id = outside.thread("C1/1")["id"].as_str().expect("an id").to_string();
    let file = outside.world.path().join("report.bin");
    let content: Vec<u8> = (0..70_000u32).map(|n| (n % 251) as u8).collect();
    std::fs::write(&file, &content).expect("a file");
    let file = file.to_str().expect("a path");
    outside
        .world
        .muleteer(&["thread", "send", &id, "see this", "--file", file, "--wait"])
        .ok();
    let upload = outside.wait_for_line("posts.jsonl", "the file", |line| line["op"] == "upload");
    assert_eq!(upload["file"], "report.bin");
    let posts = outside.lines("posts.jsonl");
    let said = posts.iter().position(|line| line["text"] == "see this").expect("the message");
    assert_eq!(posts[said]["author"]["kind"], "person", "{posts:?}");
    assert_eq!(posts[said + 1], upload, "the file follows its message");
    assert_eq!(std::fs::read(outside.folder().join("files/report.bin")).expect("it"), content);
    outside.wait_for_entry("all items to be acknowledged", |entry| {
        entry["outbox"]["pending"] == 0 && entry["outbox"]["refused"] == 0
    });
    let shown = outside.thread("C1/1");
    let states: Vec<_> = shown["messages"].as_array().expect("messages").iter().collect();
    assert!(states.iter().all(|one| one["state"] == "answered" || one["state"] == "posted"));
    outside.world.finish(Some(daemon));
}

#[test]
fn file_is_named_to_an_adapter_without_files_after_a_kill_too() {
    let outside = Outside::able(SLOW, "threads", "");
    let mut daemon = outside.daemon();
    outside.writes("C1/1", "e1", "hello");
    wait_until("the message", PATIENCE, || {
        (outside.repo.effects("heard") == ["hello"]).then_some(())
    });
    outside.world.muleteer(&["adapter", "disable", "folder"]).ok();
    let id = outside.thread("C1/1")["id"].as_str().expect("an id").to_string();
    let file = outside.world.path().join("report.txt");
    std::fs::write(&file, "a report").expect("a file");
    let file = file.to_str().expect("a path");
    outside.world.muleteer(&["thread", "send", &id, "see this", "--file", file]).ok();
    daemon.kill_9();
    let daemon = outside.daemon();
    outside.wait_for_entry("pending items", |entry| entry["outbox"]["pending"] == 2);
    outside.world.muleteer(&["adapter", "enable", "folder"]).ok();
    let named = outside.wait_for_line("posts.jsonl", "the file", |line| line["file"].is_string());
    assert_eq!(named["op"], "post");
    let text = named["text"].as_str().expect("a text");
    assert!(text.contains("`report.txt`") && text.contains("8 bytes"), "{text}");
    outside.repo.write("go", "");
    wait_until("all answers", PATIENCE, || (outside.posts("C1/1").len() == 4).then_some(()));
    assert_eq!(outside.posts("C1/1")[0], "see this");
    outside.world.finish(Some(daemon));
}

/// An adapter whose outside system keeps slash commands for itself says so.
#[test]
fn bang_begins_a_command_if_the_settings_say_so() {
    let outside = Outside::new(ECHO, "    commands: bang\n");
    let daemon = outside.daemon();
    outside.writes("C1/1", "e1", "!help");
    let posts = wait_until("the reply", PATIENCE, || {
        Some(outside.posts("C1/1")).filter(|posts| !posts.is_empty())
    });
    assert!(posts[0].contains("/spawn ROLE"), "{posts:?}");
    assert_eq!(outside.repo.effects("heard"), Vec::<String>::new());
    outside.world.finish(Some(daemon));
}

/// The daemon's memory has the newest requests other than messages, the database all of them.
#[test]
fn deletion_that_left_the_memory_is_still_a_duplicate() {
    const DELETIONS: usize = 300;
    let outside = Outside::new(ECHO, "");
    let mut daemon = outside.daemon();
    outside.writes("C1/1", "e1", "hello");
    outside.wait_for_posts("C1/1", &["1: hello"]);
    for number in 0..DELETIONS {
        outside.happens(&json!({
            "kind": "delete", "source_id": format!("d{number}"), "external": "C1/1", "user": "U1",
            "reply_to": "e1",
        }));
    }
    let handled = || {
        let events = outside.world.events();
        events.iter().filter(|event| event["event"] == "adapter_signal").count()
    };
    wait_until("all deletions", PATIENCE, || (handled() == DELETIONS).then_some(()));
    daemon.kill_9();
    let daemon = outside.daemon();
    outside.wait_for_entry("the history to be submitted again", |entry| {
        entry["inbox"]["duplicates"] == DELETIONS + 1
    });
    assert_eq!(handled(), DELETIONS);
    outside.world.finish(Some(daemon));
}
