//! Adapters and people that break the rules: floods, forged threads, commands without a right, and
//! texts that attack a terminal.

use crate::adapters::Outside;
use crate::mcp::helper_role;
use crate::{ECHO, SLOW};
use muleteer_model::conversation::command;
use muleteer_tests::mcp::Mcp;
use muleteer_tests::{PATIENCE, World, wait_until};
use serde_json::json;

/// Returns the most memory that a process has had, in KiB.
fn peak_kib(pid: u64) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn adapter_that_floods_or_sends_a_gigabyte_takes_no_memory() {
    /// The peak with the longest frames, on the way and being read, and their copies.
    const MOST_KIB: u64 = 120 * 1024;
    let outside = Outside::new(SLOW, "");
    let script = crate::adapters::adapter().with_file_name("abuse.py");
    outside.configure(&format!("[python3, {}]", script.display()), "    max_restarts: 0\n");
    let daemon = outside.daemon();
    let pid = outside.world.status()["daemon"]["pid"].as_u64().expect("a pid");
    let before = peak_kib(pid);
    wait_until("the end of the abuse", PATIENCE, || {
        let answers = outside.lines("abuse.jsonl");
        answers.iter().any(|answer| answer["what"] == "end").then_some(())
    });
    let after = peak_kib(pid);
    assert!(after - before < MOST_KIB, "the daemon grew from {before} to {after} KiB");
    outside.world.finish(Some(daemon));
}

/// Each adapter has its own threads: the same `external` names another thread, and what belongs to
/// the first one is refused.
#[test]
fn adapter_cannot_use_the_threads_of_another_one() {
    let outside = Outside::new(SLOW, "");
    let folder = outside.world.path().join("forger");
    std::fs::create_dir_all(folder.join("inbox")).expect("a folder");
    let more = format!(
        "  forger:\n    command: [python3, {}]\n    env: {{FOLDER: {}}}\n    project: {}\n    \
         backend: rehearsal\n",
        crate::adapters::adapter().display(),
        folder.display(),
        outside.repo.to_str(),
    );
    outside.configure(&format!("[python3, {}]", crate::adapters::adapter().display()), &more);
    let path = outside.world.path().join("config/muleteer/config.yaml");
    let config = std::fs::read_to_string(&path).expect("a configuration");
    std::fs::write(&path, config.replace("folder: [U1]", "folder: [U1], forger: [U1]"))
        .expect("a configuration");
    let daemon = outside.daemon();
    outside.writes("C1/1", "e1", "hello");
    wait_until("the agent to read it", PATIENCE, || {
        (outside.repo.effects("heard") == ["hello"]).then_some(())
    });
    let forged = |kind: &str, source: &str| {
        let happening = json!({
            "kind": kind, "source_id": source, "external": "C1/1", "user": "U1", "text": "x",
            "reply_to": "e1",
        });
        let name = folder.join(format!("inbox/{source}"));
        std::fs::write(name.with_extension("tmp"), happening.to_string()).expect("a file");
        std::fs::rename(name.with_extension("tmp"), name).expect("a file");
    };
    for (number, kind) in ["interrupt", "delete", "answer"].iter().enumerate() {
        forged(kind, &format!("{number}"));
    }
    let rejected = wait_until("the rejections", PATIENCE, || {
        let text = std::fs::read_to_string(folder.join("log.jsonl")).unwrap_or_default();
        let all: Vec<serde_json::Value> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        (all.len() == 3).then_some(all)
    });
    for one in rejected {
        assert_eq!((&one["t"], &one["error"]["code"]), (&json!("rejected"), &json!("E_NOT_FOUND")));
    }
    outside.repo.write("go", "");
    outside.wait_for_posts("C1/1", &["1: hello"]);
    let shown = outside.thread("C1/1");
    assert_eq!(shown["messages"].as_array().map(Vec::len), Some(2), "{shown}");
    assert_eq!(shown["messages"][0]["reason"], json!(null), "nobody interrupted it");
    outside.world.finish(Some(daemon));
}

/// The commands come from the parser, so that a new one cannot be forgotten.
#[test]
fn person_without_rights_gets_no_command_done() {
    let outside = Outside::new(ECHO, "");
    outside.leave_only_the_right_to_talk();
    let daemon = outside.daemon();
    outside.writes("C1/1", "e1", "hello");
    outside.wait_for_posts("C1/1", &["1: hello"]);
    for (number, known) in command::all().enumerate() {
        let words = match known.name {
            "spawn" => "developer . work",
            "set" => "models.default m",
            "status" | "cost" | "help" | "stop" => "",
            _ => "x",
        };
        let text = format!("/{} {words}", known.name);
        outside.writes("C1/1", &format!("c{number}"), &text);
        let posts = wait_until(&text, PATIENCE, || {
            Some(outside.posts("C1/1")).filter(|posts| posts.len() == number + 2)
        });
        let reply = &posts[number + 1];
        // These show what the person can see anyway, or stop a turn of the role that it talks to.
        let is_allowed = ["status", "cost", "help", "stop"].contains(&known.name);
        assert_eq!(!reply.starts_with("E_"), is_allowed, "{text}: {reply}");
        if !is_allowed {
            assert!(reply.starts_with("E_FORBIDDEN: "), "{text}: {reply}");
        }
    }
    assert_eq!(outside.repo.effects("heard"), ["hello"], "no command went to the agent");
    let status = outside.world.muleteer(&["status", "--json"]).json();
    assert_eq!(status["dispatches"].as_array().map(Vec::len), Some(1), "{status}");
    outside.world.finish(Some(daemon));
}

#[test]
fn terminal_escapes_in_messages_reach_no_terminal() {
    let outside = Outside::new(ECHO, "");
    let daemon = outside.daemon();
    let attack = "a\u{1b}]0;owned\u{7}b\u{1b}[2Jc\u{9b}31md\u{202e}e\rf";
    outside.happens(&json!({
        "kind": "message", "source_id": "e1", "external": "C1/1", "user": "U1",
        "name": "an\u{1b}[31mna", "text": attack,
    }));
    wait_until("the answer", PATIENCE, || (outside.posts("C1/1").len() == 1).then_some(()));
    let id = outside.thread("C1/1")["id"].as_str().expect("an id").to_string();
    let shown = [
        outside.world.muleteer(&["thread", "show", &id]).run(),
        outside.world.muleteer(&["thread", "list"]).run(),
        outside.world.muleteer(&["events"]).run(),
        outside.world.muleteer(&["status"]).run(),
        outside.world.muleteer(&["adapter", "list"]).run(),
    ];
    for output in shown {
        assert_eq!(output.code, Some(0), "{output:?}");
        for text in [&output.stdout, &output.stderr] {
            let is_bad =
                |c: &char| (c.is_control() && *c != '\n' && *c != '\t') || *c == '\u{202e}';
            assert_eq!(text.chars().find(is_bad), None, "{text:?}");
        }
    }
    let logs = outside.world.state().join("logs");
    for entry in std::fs::read_dir(logs).expect("logs").flatten() {
        let text = std::fs::read(entry.path()).expect("a log");
        assert!(!text.contains(&0x1b), "{}", entry.path().display());
    }
    outside.world.finish(Some(daemon));
}

/// Without the operator's consent such a client only reads, and is told how to change that. With it
/// a draft is one agent, although the daemon is killed right after it.
#[test]
fn client_of_the_operator_acts_only_after_consent() {
    let world = World::new();
    helper_role(&world);
    let repo = world.repo("repo");
    let killing = ("MULETEER_FAULT", "tool.drafted=kill");
    let mut killed = world.daemon_with(&[killing]);
    let client = Mcp::with(&world, None, &["mcp"]);
    let task = json!({"role": "helper", "prompt": "x", "project": repo.to_str()});
    let refused = client.refused("draft_agent", task.clone());
    assert!(refused.contains("mcp: {clients: act}"), "{refused}");
    // A file of a repository gives nobody this right.
    std::fs::create_dir(repo.path.join(".muleteer")).expect("a folder");
    repo.write(".muleteer/config.yaml", "mcp: {clients: act}\n");
    world.trust(&repo);
    assert!(client.refused("draft_agent", task.clone()).contains("mcp: {clients: act}"));

    world.configure("mcp: {clients: act}\n");
    assert!(client.tools().contains(&"draft_agent".into()), "{:?}", client.tools());
    assert!(!client.tools().contains(&"note".into()), "{:?}", client.tools());
    let drafting = client.begin("draft_agent", task);
    killed.ended();
    // The operator's relay starts the next daemon, as any command does.
    let drafted = client.end(drafting);
    let id = drafted["dispatch_id"].as_str().expect("an id").to_string();
    let all = world.muleteer(&["status", "--json"]).json();
    assert_eq!(all["dispatches"].as_array().map(Vec::len), Some(1), "{all}");
    let killed = client.call("kill_agent", json!({"dispatch_id": id, "reason": "enough"}));
    assert_eq!(killed["dispatch_id"], json!(id));
    world.wait_for_end(&id);
    let quiet = Mcp::with(&world, None, &["mcp", "--read-only"]);
    assert!(!quiet.tools().contains(&"draft_agent".into()), "{:?}", quiet.tools());
    quiet.close();
    client.close();
    world.finish(None);
}
