//! The whole life of one dispatch with any command as the agent, by the contract.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::{PATIENCE, Repo, World, program, wait_until};
use serde_json::{Value, json};
use std::process::Command;

pub(super) const RESULT: &str =
    r#"echo '{"type":"result","status":"success","summary":"made it","changes":["a.txt"]}'"#;

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap_or_else(|| panic!("no object: {value}"))
        .keys()
        .map(String::as_str)
        .collect()
}

/// Makes a finished dispatch and returns its id.
pub(super) fn succeeded(world: &World, repo: &Repo) -> String {
    let script = format!("echo working; echo hi > a.txt; {RESULT}");
    let id = world.spawn(repo, &script, &["--wait"]).ok();
    assert!(
        !id.is_empty() && !id.contains(char::is_whitespace),
        "plain spawn prints only the id: {id:?}"
    );
    id
}

#[test]
fn successful_dispatch_is_reported_everywhere() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = succeeded(&world, &repo);
    assert_eq!(repo.read("a.txt"), "hi\n");

    let entry = world.dispatch(&id);
    assert_eq!(entry["state"], "success");
    assert_eq!(entry["role"], "developer");
    assert_eq!(entry["backend"], "subprocess");
    assert_eq!(entry["attempts"], 1);
    assert_eq!(entry["project"], repo.to_str());
    assert_eq!(entry["result"]["status"], "success");
    assert_eq!(entry["result"]["summary"], "made it");
    assert_eq!(entry["result"]["changes"], json!(["a.txt"]));
    assert_eq!(world.muleteer(&["wait", &id]).run().code, Some(0));
    let twice = world.muleteer(&["wait", &id, &id, &id[..6]]).run().expect_code(0);
    assert_eq!(twice.stdout.matches("success, 1 turn").count(), 1, "{twice:?}");
    let socket = world.state().join("agents").join(&id).join("pub/sock");
    wait_until("its agent's socket to be gone", PATIENCE, || (!socket.exists()).then_some(()));

    let names: Vec<String> = world
        .events()
        .iter()
        .filter(|event| event["dispatch_id"] == id.as_str())
        .map(|event| event["event"].as_str().unwrap().into())
        .collect();
    assert_eq!(names.first().map(String::as_str), Some("dispatch_created"));
    assert_eq!(names.last().map(String::as_str), Some("dispatch_finished"));
    for once in
        ["attempt_started", "agent_spawned", "agent_exited", "attempt_finished", "result_received"]
    {
        assert_eq!(names.iter().filter(|name| *name == once).count(), 1, "{once} in {names:?}");
    }
    world.finish(Some(daemon));
}

#[test]
fn status_has_the_keys_of_the_contract() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = succeeded(&world, &repo);
    let status = world.status();
    for key in ["running", "pid", "version", "socket"] {
        assert!(keys(&status["daemon"]).contains(&key), "daemon.{key}");
    }
    assert_eq!(status["daemon"]["pid"], daemon.pid());
    let entry = world.dispatch(&id);
    for key in [
        "id",
        "role",
        "project",
        "state",
        "since",
        "backend",
        "model",
        "session_id",
        "turns",
        "attempts",
        "last_activity",
        "cost_usd",
        "tokens",
        "worktree",
        "result",
    ] {
        assert!(keys(&entry).contains(&key), "{key} is missing in {entry}");
    }
    for key in ["input", "output", "cache_read", "cache_write"] {
        assert!(entry["tokens"][key].is_u64(), "tokens.{key} in {entry}");
    }
    for key in ["status", "summary", "changes", "issues", "questions", "pr_url"] {
        assert!(keys(&entry["result"]).contains(&key), "result.{key} in {entry}");
    }
    let tree = world.muleteer(&["tree", "--json"]).json();
    for key in ["name", "strategy", "restart", "restarts_in_window", "state", "children", "process"]
    {
        assert!(keys(&tree).contains(&key), "{key} is missing in {tree}");
    }
    let children: Vec<&str> = tree["children"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|child| child["name"].as_str())
        .collect();
    for child in ["ledger", "heartbeat", "fleet", "gate"] {
        assert!(children.contains(&child), "{child} under the root: {children:?}");
    }
    world.finish(Some(daemon));
}

#[test]
fn the_agent_gets_its_prompt_and_its_variables() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let script = "cat > stdin.txt; cp \"$MULETEER_PROMPT_FILE\" file.txt; env > env.txt; \
                  tr '\\0' '\\n' < /proc/$$/cmdline > args.txt; command -v muleteer > which.txt; \
                  true";
    let id = world.spawn(&repo, script, &["--wait"]).env("A_SECRET_OF_THE_SHELL", "1").ok();
    for file in ["stdin.txt", "file.txt"] {
        assert!(repo.read(file).contains("do it"), "the prompt in {file}: {:?}", repo.read(file));
    }
    let env = repo.read("env.txt");
    for name in ["MULETEER_SOCKET", "MULETEER_JOURNAL", "MULETEER_PROMPT_FILE", "TRACEPARENT"] {
        assert!(env.contains(&format!("{name}=")), "{name} in the agent's environment:\n{env}");
    }
    assert!(
        env.contains(&format!("MULETEER_DISPATCH_ID={id}"))
            && env.contains("MULETEER_ROLE=developer"),
        "{env}"
    );
    assert!(!env.contains("A_SECRET_OF_THE_SHELL"), "only names on the list pass");
    assert!(!repo.read("args.txt").contains("do it"), "a prompt is never in argv");
    assert!(repo.read("which.txt").contains("muleteer"), "muleteer is on the agent's PATH");
    world.finish(Some(daemon));
}

#[test]
fn spawn_answers_when_the_dispatch_is_durable() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let reply = world.spawn(&repo, "sleep 0.2", &["--json"]).json();
    daemon.kill_9();
    let id = reply["dispatch_id"].as_str().unwrap().to_string();
    assert_eq!(world.events_of(&id, "dispatch_created").len(), 1, "answered, so it is on disk");
    let daemon = world.daemon();
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    world.finish(Some(daemon));
}

/// The case is `muleteer wait … | head -1 && deploy`, with `pipefail`.
#[test]
fn outcome_does_not_depend_on_the_reader() {
    let world = World::new();
    let repo = world.repo("repo");
    let id = world.spawn(&repo, "exit 1", &[]).ok();
    assert_eq!(world.wait_for_end(&id)["state"], "failed");
    for args in [&["wait", &id][..], &["wait", &id, "--json"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(world.program());
        world.environment(&mut command);
        let status = command
            .args(args)
            .current_dir(&repo.path)
            .stdout(writer)
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(4), "{args:?}");
    }
    world.finish(None);
}

#[test]
fn worktree_leaves_the_checkout_clean_and_returns_its_branch() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let script =
        format!("echo new > b.txt && git add b.txt && git commit --quiet -m 'Add b' && {RESULT}");
    let id = world.spawn(&repo, &script, &["--wait", "--worktree"]).ok();
    let made = world.events_of(&id, "worktree_created");
    assert_eq!(made.len(), 1);
    assert_eq!(made[0]["base"], repo.git(&["rev-parse", "HEAD"]).trim());
    assert_eq!(made[0]["path"], world.dispatch(&id)["worktree"]);
    assert_eq!(repo.read("b.txt"), "", "the checkout is untouched");
    assert_eq!(repo.git(&["show", &format!("muleteer/{id}:b.txt")]), "new");
    assert_eq!(
        repo.git(&["status", "--porcelain"]),
        "",
        "`.muleteer` and the journals stay out of git status"
    );

    // Submodule directories would be empty in a clone, and the user would not know why.
    repo.write(".gitmodules", "[submodule \"lib\"]\n\tpath = lib\n\turl = ../lib\n");
    let warned = world.spawn(&repo, "true", &["--wait", "--worktree"]).run().expect_code(0);
    assert!(
        warned.stderr.contains("warning: the agent's clone does not contain the submodules"),
        "{warned:?}"
    );
    let here = world.spawn(&repo, "true", &["--wait"]).run().expect_code(0);
    assert!(!here.stderr.contains("submodules"), "{here:?}");
    world.finish(Some(daemon));
}

/// A reported success survives a power cut: its commit, tree, file and branch are on the disk.
#[test]
fn fetched_work_is_durable() {
    let world = World::new();
    let repo = world.repo("repo");
    let trace = world.path().join("git.trace");
    let daemon = world.daemon_with(&[("GIT_TRACE2_EVENT", trace.to_str().unwrap())]);
    let script =
        format!("echo new > b.txt && git add b.txt && git commit --quiet -m 'Add b' && {RESULT}");
    let id = world.spawn(&repo, &script, &["--wait", "--worktree"]).ok();
    assert_eq!(repo.git(&["show", &format!("muleteer/{id}:b.txt")]), "new");
    assert_eq!(Repo::syncs(&trace, &["unpack-objects", "index-pack"]), 3);
    assert_eq!(Repo::syncs(&trace, &["fetch"]), 1);
    world.finish(Some(daemon));
}

/// No other dispatch comes or goes, so nothing else would make the pool look.
#[test]
fn one_that_ends_leaves_its_place_to_the_next() {
    let world = World::new();
    world.configure("pool:\n  max_agents: 1\n");
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let spawn = |name: &str| {
        let script = format!("echo {name} >> effects; while [ ! -e go ]; do sleep 0.05; done");
        world.spawn(&repo, &script, &[]).ok()
    };
    let names = ["first", "second", "third"];
    let ids = names.map(spawn);
    let begun = |name: &str| {
        wait_until(name, PATIENCE, || (repo.effects("effects").last()? == name).then_some(()))
    };
    begun("first");
    let states =
        || ids.each_ref().map(|id| world.dispatch(id)["state"].as_str().unwrap().to_string());
    assert_eq!(states(), ["running", "queued", "queued"]);
    let queued = world.muleteer(&["status", &ids[2], "--json"]).json()["dispatches"][0].clone();
    assert!(queued["task"].is_string(), "its prompt has no file yet: {queued}");
    world.muleteer(&["kill", &ids[0]]).ok();
    begun("second");
    repo.write("go", "");
    begun("third");
    ids[1..].iter().for_each(|id| assert_eq!(world.wait_for_end(id)["state"], "success"));
    assert_eq!(repo.effects("effects"), names);
    world.finish(Some(daemon));
}

/// Another git holds the repository's locks for a moment.
#[test]
fn failed_fetch_of_work_is_retried() {
    let world = World::new();
    let repo = world.repo("repo");
    program::write(
        &world.bin().join("git"),
        &program::failing_once("git", " fetch ", &world.home().join("failed")),
    );
    let daemon = world.daemon();
    let id = world
        .spawn(&repo, "git commit -q --allow-empty -m precious", &["--worktree", "--wait"])
        .ok();
    assert!(world.home().join("failed").exists(), "it could not be fetched at once");
    assert_eq!(repo.git(&["log", "-1", "--format=%s", &format!("muleteer/{id}")]), "precious");
    world.finish(Some(daemon));
}

#[test]
fn agents_may_dispatch_agents_but_no_deeper_than_allowed() {
    let world = World::new();
    world.configure("pool:\n  max_depth: 2\n");
    let repo = world.repo("repo");
    let daemon = world.daemon();
    repo.write(
        "deeper.sh",
        r#"echo "$DEPTH" >> depths
[ "$DEPTH" = 2 ] && mkdir -p .muleteer &&
    echo 'pool: {max_depth: 9}' | tee .muleteer/config.yaml > own.yaml
muleteer spawn developer . deeper --backend subprocess --command 'sh deeper.sh' \
    --env DEPTH=$((DEPTH+1)) $([ "$DEPTH" = 2 ] && echo --config own.yaml) --wait --json \
    > "$DEPTH.json"
echo $? > "$DEPTH.code"
"#,
    );
    let run = world.spawn(&repo, "DEPTH=0 sh deeper.sh", &["--wait"]).run();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(repo.effects("depths"), ["0", "1", "2"]);
    assert_eq!((repo.read("1.code").trim(), repo.read("2.code").trim()), ("0", "2"));
    let refused = repo.read("2.json");
    assert!(
        refused.contains("E_TOO_DEEP"),
        "whatever configuration the agent asks with: {refused}"
    );
    world.finish(Some(daemon));
}

/// Twenty results of half a megabyte do not fit into one frame.
#[test]
fn long_answer_is_split_into_frames() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let text = |letter: &str, length: usize| letter.repeat(length);
    let result = json!({"type": "result", "status": "success", "summary": text("s", 60_000),
        "changes": vec![text("c", 60_000); 8]});
    repo.write("result.json", &format!("{result}\n"));
    let ids: Vec<_> = (0..20).map(|_| world.spawn(&repo, "cat result.json", &[]).ok()).collect();
    let wait: Vec<_> =
        ["wait", "--json"].into_iter().chain(ids.iter().map(String::as_str)).collect();
    let ended = world.muleteer(&wait).deadline(PATIENCE).run().expect_code(0).json();
    let named: Vec<_> = ended["dispatches"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["id"].as_str().unwrap())
        .collect();
    assert_eq!(named, ids, "in the order in which they were asked for");
    let status = world.status();
    assert_eq!(status["daemon"]["running"], true);
    let whole = |one: &Value| one["result"]["changes"][7].as_str().map(str::len) == Some(60_000);
    let all = status["dispatches"].as_array().unwrap();
    assert!(all.len() == 20 && all.iter().all(whole), "{} of them", all.len());
    world.finish(Some(daemon));
}

#[test]
fn agent_has_muleteer_on_path_and_no_keys_of_other_clis() {
    let world = World::new();
    world.configure("env: {pass: [GEMINI_API_KEY]}\n");
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let keys =
        ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY", "MY_SECRET"];
    let script = |name: &str, text: &str| {
        let path = format!("{}/{name}", repo.to_str());
        program::write(path.as_ref(), &format!("#!/bin/sh\n{text}\n"));
        path
    };
    let tell = script("told.sh", "{ env; command -v muleteer; } > \"told.$MULETEER_DISPATCH_ID\"");
    let spawn = |backend: &str, command: &str| {
        let asked =
            ["spawn", "developer", repo.to_str(), "x", "--backend", backend, "--command", command];
        let spawn = world.muleteer(&[&asked[..], &["--env", "PATH=/usr/bin:/bin"]].concat());
        let id = keys.iter().fold(spawn, |spawn, key| spawn.env(key, "dummy")).ok();
        world.wait_for_end(&id);
        id
    };
    let has = |id: &str, key: &str| {
        repo.read(&format!("told.{id}")).lines().any(|line| line == format!("{key}=dummy"))
    };
    for (backend, own) in [
        ("claude-code", vec!["ANTHROPIC_API_KEY", "GEMINI_API_KEY"]),
        ("codex", vec!["OPENAI_API_KEY", "GEMINI_API_KEY"]),
        ("subprocess", keys[..4].to_vec()),
    ] {
        let id = spawn(backend, &tell);
        assert_eq!(
            keys.into_iter().filter(|key| has(&id, key)).collect::<Vec<_>>(),
            own,
            "{backend}"
        );
        assert!(repo.read(&format!("told.{id}")).trim_end().ends_with("/bin/muleteer"));
    }
    // A child gets the keys of its own CLI, which its parent was not given.
    spawn(
        "claude-code",
        &script(
            "nest.sh",
            "muleteer spawn developer . x --backend codex --command \"$PWD/told.sh\" > nested",
        ),
    );
    let nested = repo.read("nested").trim().to_string();
    world.wait_for_end(&nested);
    assert!(has(&nested, "OPENAI_API_KEY") && !has(&nested, "ANTHROPIC_API_KEY"));
    world.finish(Some(daemon));
}

/// Lines without an event are a sign of life too.
#[test]
fn plain_output_is_activity() {
    let world = World::new();
    let repo = world.repo("project");
    let daemon = world.daemon();
    let id = world
        .spawn(&repo, "while [ ! -e \"$HOME/stop\" ]; do echo line; sleep 0.1; done", &[])
        .ok();
    // The agent's start writes events of its own.
    wait_until("its turn to begin", PATIENCE, || {
        (!world.events_of(&id, "turn_started").is_empty()).then_some(())
    });
    let seen = || world.dispatch(&id)["last_activity"].as_str().map(String::from);
    let first = wait_until("a sign of life", PATIENCE, &seen);
    let events =
        || std::fs::read_to_string(world.state().join("events.jsonl")).unwrap().lines().count();
    let before = events();
    wait_until("another one", PATIENCE, || seen().filter(|at| *at > first));
    assert_eq!(events(), before, "and nothing was written for it");
    std::fs::write(world.home().join("stop"), "").unwrap();
    world.wait_for_end(&id);
    world.finish(Some(daemon));
}

/// `spawn` reports the error, and not only `config check`.
#[test]
fn a_role_of_no_category_is_refused_with_its_place() {
    let world = World::new();
    let repo = world.repo("project");
    let role = repo.path.join(".muleteer/roles/critic.md");
    std::fs::create_dir_all(role.parent().unwrap()).unwrap();
    std::fs::write(&role, "---\ncategory: reserch\n---\nYou are.\n").unwrap();
    let daemon = world.daemon();
    let args = [
        "spawn",
        "critic",
        repo.to_str(),
        "x",
        "--backend",
        "subprocess",
        "--command",
        "true",
        "--json",
    ];
    let refused = world.muleteer(&args).run().expect_code(2);
    let error = &refused.json()["error"];
    assert_eq!(
        (refused.error_code().as_str(), &error["line"]),
        ("E_CONFIG_INVALID", &json!(2)),
        "{error}"
    );
    assert_eq!(error["file"], json!(role), "{error}");
    world.finish(Some(daemon));
}

#[test]
fn killed_processes_are_named_in_events_and_journal() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    // The new process has the shell's name until it runs its program.
    let started = r#"while [ "$(cat /proc/$!/comm)" != sleep ]; do :; done"#;
    let id = world.spawn(&repo, &format!("sleep 1000 & {started}; echo done"), &["--wait"]).ok();
    let exited = &world.events_of(&id, "agent_exited")[0];
    let left = exited["left"].as_array().unwrap_or_else(|| panic!("{exited}"));
    let sleep = left.iter().find(|process| process["name"] == "sleep").unwrap();
    let named = format!("killed what it left: sleep (pid {})", sleep["pid"]);
    let journal = world.muleteer(&["journal", &id]).ok();
    assert!(journal.contains(&named), "{journal}");
    let events = world.muleteer(&["events"]).ok();
    assert!(events.contains(&named), "{events}");
    world.finish(Some(daemon));
}

#[test]
fn agent_that_leaves_nothing_names_nothing() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = world.spawn(&repo, "echo done", &["--wait"]).ok();
    assert!(world.events_of(&id, "agent_exited")[0].get("left").is_none());
    assert!(!world.muleteer(&["journal", &id]).ok().contains("killed what it left"));
    world.finish(Some(daemon));
}

/// Each file of an agent costs its start some system calls, and a month has thousands of agents.
#[test]
fn running_agent_has_at_most_eight_files() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = world.spawn(&repo, "touch begun; sleep 1000", &[]).ok();
    wait_until("the agent to run", PATIENCE, || repo.path.join("begun").exists().then_some(()));
    world.wait_for_state(&id, &["running"]);
    let journal = world.dispatch(&id)["journal"].as_str().unwrap().to_string();
    assert!(std::path::Path::new(&journal).is_file());
    let (mut files, mut folders) =
        (vec![journal.into()], vec![world.state().join("agents").join(&id)]);
    let mut next = 0;
    while let Some(folder) = folders.get(next).cloned() {
        next += 1;
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let list = if entry.path().is_dir() { &mut folders } else { &mut files };
            list.push(entry.path());
        }
    }
    assert_eq!((files.len(), folders.len()), (8, 2), "{files:?}");
    world.muleteer(&["kill", &id]).ok();
    world.finish(Some(daemon));
}
