//! The search for a dispatch's program, refusals if it is missing, and the exit codes of clients
//! that follow a dispatch.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::skip::skip;
use muleteer_tests::spec_stage::{AGENT, SpecStage};
use muleteer_tests::task_list::Scene;
use muleteer_tests::{PATIENCE, Repo, World, crash, program, wait_until};
use serde_json::json;

/// Adds a program to the project and commits it.
fn own_program(repo: &Repo, name: &str) {
    program::write(&repo.path.join(name), "#!/bin/sh\ncat > /dev/null\npwd >> \"$HOME/ran\"\n");
    repo.git(&["add", name]);
    repo.git(&["commit", "--quiet", "--message", name]);
}

#[test]
fn relative_program_is_resolved_in_the_agents_directory() {
    let world = World::new();
    let repo = world.repo("repo");
    own_program(&repo, "prog");
    let daemon = world.daemon();
    let spawn = |backend: &str, command: &str, more: &[&str]| {
        let args = [
            "spawn",
            "developer",
            repo.to_str(),
            "x",
            "--backend",
            backend,
            "--command",
            command,
            "--wait",
        ];
        // The client runs elsewhere, because only the agent's directory counts.
        world.muleteer(&[&args, more].concat()).current_dir(world.path()).run()
    };
    let ran = || std::fs::read_to_string(world.home().join("ran")).unwrap_or_default();
    spawn("subprocess", "[\"./prog\"]", &[]).expect_code(0);
    assert_eq!(ran(), format!("{}\n", repo.to_str()));
    let id = spawn("subprocess", "[\"./prog\", \"x\"]", &["--worktree"]).expect_code(0).stdout;
    assert!(ran().lines().last().unwrap().ends_with(id.trim()), "{}", ran());
    let codex = spawn("codex", "./prog", &[]);
    let here = ran().lines().skip(2).any(|line| line == repo.to_str());
    assert!(here, "whatever became of one that says nothing: {codex:?}");
    world.finish(Some(daemon));
}

#[test]
fn repository_rejected_by_git_reports_its_message() {
    let world = World::new();
    let repo = world.repo("repo");
    // The repository looks like another user's, and no configuration trusts every directory.
    let daemon = world.daemon_with(&[
        ("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1"),
        ("GIT_CONFIG_SYSTEM", "/dev/null"),
    ]);
    let refused = world.spawn(&repo, "true", &["--worktree", "--json"]).run().expect_code(2);
    assert_eq!(refused.error_code(), "E_NOT_A_REPOSITORY");
    let said = refused.json()["error"].to_string();
    assert!(said.contains("dubious ownership") && said.contains("safe.directory"), "{said}");
    assert_eq!(world.status()["dispatches"], json!([]));
    world.finish(Some(daemon));
}

/// git names the place of borrowed objects on one line of a file.
#[test]
fn repository_path_with_a_line_break_is_rejected_for_clones() {
    let world = World::new();
    let repo = world.repo("two\nlines");
    let daemon = world.daemon();
    let spec = world.path().join("plan.md");
    std::fs::write(&spec, "# Plan\n\nDo it.\n").unwrap();
    let run = ["run", "--spec", spec.to_str().unwrap(), "--command", "true", "--json"];
    let refused = [
        world.spawn(&repo, "true", &["--worktree", "--json"]).run(),
        world.muleteer(&run).current_dir(&repo.path).run(),
    ];
    for refused in refused {
        let refused = refused.expect_code(2);
        assert_eq!(refused.error_code(), "E_NOT_A_REPOSITORY");
        assert!(
            refused.json()["error"]["message"].to_string().contains("line break"),
            "{refused:?}"
        );
    }
    world.spawn(&repo, "echo ran >> effects", &["--wait"]).run().expect_code(0);
    assert_eq!(repo.effects("effects"), ["ran"], "without a clone it works");
    world.finish(Some(daemon));
}

/// A command makes hardly any events, so its output is what a person wants to see.
#[test]
fn spawn_follow_shows_the_output_of_a_command() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let script = "echo first; while [ ! -e go ]; do sleep 0.05; done; echo complaint >&2; printf \
        'no newline'";
    let following = world.spawn(&repo, script, &["--follow"]).start();
    wait_until("its first line", PATIENCE, || {
        following.stdout_so_far().contains("first").then_some(())
    });
    repo.write("go", "");
    let output = following.finish().expect_code(0);
    let at = |text: &str| {
        output.stdout.find(text).unwrap_or_else(|| panic!("no `{text}` in {}", output.stdout))
    };
    assert!(
        at("first") < at("complaint") && at("no newline") < at("agent exited"),
        "{}",
        output.stdout
    );
    assert_eq!(output.stdout.matches("first").count(), 1);
    assert!(!output.stdout.contains('\u{1b}'), "colours are for terminals: {:?}", output.stdout);
    let lines = world.spawn(&repo, "echo first", &["--follow", "--json"]).run().expect_code(0);
    assert!(lines.stdout.lines().all(|line| line.starts_with('{')), "{lines:?}");
    world.finish(Some(daemon));
}

/// Muleteer could accept these options, but it could not keep them.
#[test]
fn unenforceable_limits_and_reserved_variables_are_rejected() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let refused = |more: &[&str], flag: &str| {
        let output = world.spawn(&repo, "true", &[more, &["--json"]].concat()).run().expect_code(2);
        assert_eq!(output.error_code(), "E_USAGE", "{more:?}: {output:?}");
        assert!(output.json()["error"]["message"].to_string().contains(flag), "{output:?}");
    };
    refused(&["--max-turns", "3"], "--max-turns");
    refused(&["--env", "MULETEER_ROLE=boss"], "--env");
    refused(
        &["--env", "TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"],
        "TRACEPARENT",
    );
    assert_eq!(world.status()["dispatches"], json!([]), "and nothing was made");
    world
        .spawn(&repo, "test \"$MY_OWN\" = x", &["--env", "MY_OWN=x", "--wait"])
        .run()
        .expect_code(0);
    world.finish(Some(daemon));
}

#[test]
fn missing_program_is_rejected_before_the_dispatch() {
    let world = World::new();
    world.configure("backends: {claude_code: {command: [surely-no-such-program]}}\n");
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let begun = ["spawn", "developer", repo.to_str(), "x", "--json"];
    let refused = |more: &[&str]| {
        let output =
            world.muleteer(&[&begun, more].concat()).current_dir(&repo.path).run().expect_code(2);
        assert_eq!(output.error_code(), "E_BACKEND_UNAVAILABLE", "{more:?}: {output:?}");
    };
    refused(&["--backend", "codex", "--command", "surely-no-such-program"]);
    refused(&["--backend", "codex", "--command", "./surely-no-such-program"]);
    refused(&["--backend", "claude-code"]);
    refused(&["--command", "[\"/nonexistent/x\"]"]);
    refused(&["--command", "[\"surely-no-such-program\", \"x\"]", "--worktree"]);
    assert_eq!(world.status()["dispatches"], json!([]), "and nothing was made");
    // A shell looks for its program itself, and a clone may have other files, so the agent itself
    // reports these.
    for later in
        [&["--command", "surely-no-such-program"][..], &["--command", "[\"./none\"]", "--worktree"]]
    {
        world.muleteer(&[&begun, later, &["--wait"]].concat()).run().expect_code(4);
    }
    world.finish(Some(daemon));
}

#[test]
fn runs_are_refused_for_want_of_a_program_too() {
    let stage = SpecStage { agent: "surely-no-such-program".into(), ..SpecStage::new(AGENT) };
    let daemon = stage.world.daemon();
    let list = [
        "run",
        "--spec",
        "plan.md",
        "--backend",
        "subprocess",
        "--command",
        "[\"/nonexistent/x\"]",
        "--json",
    ];
    let output = stage.muleteer(&list).run().expect_code(2);
    assert_eq!(output.error_code(), "E_BACKEND_UNAVAILABLE", "{output:?}");
    stage.world.finish(Some(daemon));

    let scene = Scene::new();
    let daemon = scene.world.daemon();
    scene.add("one", "true", &[]);
    let output = scene.run("[\"/nonexistent/x\"]", &["--json"]).expect_code(2);
    assert_eq!(output.error_code(), "E_BACKEND_UNAVAILABLE", "{output:?}");
    assert_eq!(scene.status("task-001"), "pending");
    scene.world.finish(Some(daemon));
}

/// Ctrl-C means that the user has seen enough. A client that is terminated has not seen the end.
#[test]
fn killed_follower_does_not_exit_with_success() {
    use rustix::process::Signal;
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let script = "while [ ! -e \"$HOME/go\" ]; do sleep 0.05; done";
    // The test omits HUP: its parent may ignore that signal, and we leave it ignored.
    for (signal, code) in [(Signal::INT, Some(0)), (Signal::TERM, None)] {
        let following = world.spawn(&repo, script, &["--follow"]).start();
        wait_until("what it does to be shown", PATIENCE, || {
            (following.stdout_so_far().lines().count() > 1).then_some(())
        });
        world.signal(following.pid(), signal);
        let said = following.finish();
        assert_eq!(said.code, code, "{signal:?}: {said:?}");
    }
    std::fs::write(world.home().join("go"), "").unwrap();
    for dispatch in world.status()["dispatches"].as_array().unwrap() {
        world.wait_for_end(dispatch["id"].as_str().unwrap());
    }
    world.finish(Some(daemon));
}

/// A refusal of the system is no bug of ours, and it may pass.
#[test]
fn unwritable_state_directory_is_named() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let (agents, aside) = (world.state().join("agents"), world.state().join("aside"));
    std::fs::rename(&agents, &aside).unwrap();
    std::fs::write(&agents, "in the way").unwrap();
    let refused = world.spawn(&repo, "true", &["--json"]).run().expect_code(4);
    assert_eq!(refused.error_code(), "E_STORE_IO", "{refused:?}");
    let error = &refused.json()["error"];
    assert!(error["file"].as_str().unwrap().contains("agents"), "{error}");
    std::fs::remove_file(&agents).unwrap();
    std::fs::rename(&aside, &agents).unwrap();
    world.spawn(&repo, "true", &["--wait"]).run().expect_code(0);
    world.finish(Some(daemon));
}

/// `config show` says that these variables are in force, so they must be.
#[test]
fn configuration_variables_affect_dispatches_and_not_agents() {
    let world = World::new();
    world.configure("models: {default: from-the-file}\n");
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let spawn =
        ["spawn", "developer", repo.to_str(), "x", "--backend", "subprocess", "--wait", "--json"];
    world.muleteer(&spawn).run().expect_code(2);
    let output = world
        .muleteer(&spawn)
        .env("MULETEER_CONFIG__BACKENDS__SUBPROCESS__COMMAND", "env > \"$HOME/seen\"")
        .env("MULETEER_CONFIG__MODELS__DEFAULT", "from-the-variable")
        .run()
        .expect_code(0);
    assert_eq!(output.json()["model"], "from-the-variable", "{output:?}");
    let seen = std::fs::read_to_string(world.home().join("seen")).unwrap();
    assert!(
        seen.contains("MULETEER_DISPATCH_ID=") && !seen.contains("MULETEER_CONFIG__"),
        "{seen}"
    );
    world.finish(Some(daemon));
}

#[test]
fn interrupted_wait_exits_130_and_names_the_dispatch() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let script = "while [ ! -e \"$HOME/go\" ]; do sleep 0.05; done";
    let waiting = world.spawn(&repo, script, &["--wait"]).start();
    let id = wait_until("its id", PATIENCE, || {
        Some(waiting.stdout_so_far().lines().next()?.to_string())
    });
    wait_until("the agent to run", PATIENCE, || {
        (world.dispatch(&id)["state"] == "running").then_some(())
    });
    world.signal(waiting.pid(), rustix::process::Signal::INT);
    let said = waiting.finish().expect_code(130);
    assert!(
        said.stderr.contains("the dispatches continue")
            && said.stderr.contains(&format!("muleteer wait {id}")),
        "{said:?}"
    );
    std::fs::write(world.home().join("go"), "").unwrap();
    world.muleteer(&["wait", &id]).ok();
    world.finish(Some(daemon));
}

#[test]
fn missing_configuration_file_is_rejected_by_every_verb() {
    let world = World::new();
    for verb in [&["status"][..], &["roles"], &["events"], &["runs"], &["cost"]] {
        let asked = [verb, &["--config", "/nonexistent.yaml", "--json"]].concat();
        let refused = world.muleteer(&asked).run().expect_code(2);
        assert_eq!(refused.error_code(), "E_CONFIG_INVALID", "{verb:?}");
        assert_eq!(refused.json()["error"]["file"], "/nonexistent.yaml");
    }
    world.finish(None);
}

#[test]
fn native_event_lines_need_only_their_fields() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let said = r#"{"type":"session","model":"small","cwd":"/"}"#;
    let script = format!("echo '{said}'; echo '{}'", r#"{"type":"result","status":"success"}"#);
    let output = world.spawn(&repo, &script, &["--wait", "--json"]).run().expect_code(0);
    let dispatch = output.json();
    assert_eq!(
        (&dispatch["model"], &dispatch["session_id"]),
        (&json!("small"), &json!(null)),
        "{dispatch}"
    );
    assert_eq!(dispatch["result"]["status"], "success");
    world.finish(Some(daemon));
}

#[test]
fn clone_starts_in_the_project_folder_at_a_commit() {
    let world = World::new();
    let repo = world.repo("repo");
    let project = repo.path.join("web/shop");
    std::fs::create_dir_all(&project).unwrap();
    std::fs::write(project.join("page"), "page").unwrap();
    repo.git(&["add", "--all"]);
    repo.git(&["commit", "--quiet", "--message", "a page"]);
    let daemon = world.daemon();
    let spawn = |project: &str| {
        let ask = [
            "--backend",
            "subprocess",
            "--command",
            "cat page; pwd",
            "--worktree",
            "--wait",
            "--json",
        ];
        world.muleteer(&[&["spawn", "developer", project, "x"][..], &ask].concat()).run()
    };
    let dispatch = spawn(project.to_str().unwrap()).expect_code(0).json();
    let output = world.muleteer(&["logs", dispatch["id"].as_str().unwrap()]).ok();
    let clone = dispatch["worktree"].as_str().unwrap();
    assert!(output.contains("page") && output.contains(&format!("{clone}/web/shop")), "{output}");
    let empty = world.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    repo.git(&["init", "--quiet", empty.to_str().unwrap()]);
    let refused = spawn(empty.to_str().unwrap()).expect_code(2);
    assert_eq!(refused.error_code(), "E_NOT_A_REPOSITORY", "{refused:?}");
    world.finish(Some(daemon));
}

/// git removes a working directory together with all files that it is told to ignore.
#[test]
fn journal_of_a_linked_worktree_survives_its_removal() {
    let world = World::new();
    let repo = world.repo("repo");
    let beside = world.path().join("beside");
    repo.git(&["worktree", "add", "--quiet", beside.to_str().unwrap()]);
    let in_it = |args: &[&str]| world.muleteer(args).current_dir(&beside).run().expect_code(0);
    in_it(&["bead", "create", "--title", "precious", "--json"]);
    let daemon = world.daemon();
    let ask = ["--backend", "subprocess", "--command", "true", "--wait", "--json"];
    let dispatch = in_it(&[&["spawn", "developer", ".", "x"][..], &ask].concat()).json();
    assert!(dispatch["journal"].as_str().unwrap().starts_with(repo.to_str()), "{dispatch}");
    repo.git(&["worktree", "remove", beside.to_str().unwrap()]);
    let listed =
        world.muleteer(&["bead", "list", "--json"]).current_dir(&repo.path).run().expect_code(0);
    assert!(listed.stdout.contains("precious"), "{listed:?}");
    world.finish(Some(daemon));
}

#[test]
fn scenario_fault_has_a_hint() {
    let world = World::new();
    let repo = world.repo("repo");
    let scenario = world.path().join("scenario.yaml");
    let spawn = |text: &str| {
        std::fs::write(&scenario, text).unwrap();
        let with = ["--backend", "rehearsal", "--scenario", scenario.to_str().unwrap(), "--json"];
        let refused = world
            .muleteer(&[&["spawn", "developer", repo.to_str(), "x"][..], &with].concat())
            .run();
        refused.expect_code(2).json()["error"].clone()
    };
    let error = spawn("v: 1\nturns: [{steps: [{sya: a}]}]\n");
    assert_eq!(
        (&error["code"], &error["line"]),
        (&"E_SCENARIO_INVALID".into(), &2.into()),
        "{error}"
    );
    assert!(error["hint"].as_str().unwrap().contains("`say`"), "{error}");
    world.finish(None);
}

/// Docker's own filter answers ENOSYS to clone3, because it cannot see its flags.
#[test]
fn an_agent_is_started_where_there_is_no_clone3() {
    if let Err(why) = crash::syscalls::available() {
        return skip("an_agent_is_started_where_there_is_no_clone3", &why);
    }
    let world = World::new();
    let repo = world.repo("repo");
    let log = world.path().join("strace.log");
    let log = log.to_str().unwrap();
    let refused = ["-e", "trace=clone3", "-e", "inject=clone3:error=ENOSYS"];
    // strace follows the daemon's children, because the zygote is one. `-D`: the daemon stays our
    // own child.
    let words = [&["strace", "-D", "-f", "--seccomp-bpf", "-qq", "-o", log][..], &refused].concat();
    let daemon = world.daemon_under(&words.into_iter().map(String::from).collect::<Vec<_>>());
    wait_until("the daemon to answer", PATIENCE, || {
        (world.status()["daemon"]["running"] == true).then_some(())
    });
    let command = r#"["sh", "-c", "cat > /dev/null; touch \"$HOME/ran\""]"#;
    let args = [
        "spawn",
        "developer",
        repo.to_str(),
        "x",
        "--backend",
        "subprocess",
        "--command",
        command,
        "--wait",
    ];
    world.muleteer(&args).run().expect_code(0);
    assert!(world.home().join("ran").exists());
    let calls = std::fs::read_to_string(log).unwrap();
    assert!(calls.contains("(INJECTED)"), "nothing was refused: {calls}");
    world.finish(Some(daemon));
}

/// A further attempt would be refused with the same message.
#[test]
fn claude_refusing_root_fails_once_with_a_hint() {
    let world = World::new();
    let repo = world.repo("repo");
    let refusal = "--dangerously-skip-permissions cannot be used with root/sudo privileges for \
        security reasons";
    let script = format!("#!/bin/sh\necho start >> starts\necho '{refusal}' >&2\nexit 1\n");
    program::write(&world.bin().join("claude"), &script);
    let daemon = world.daemon();
    let id = world
        .muleteer(&["spawn", "developer", repo.to_str(), "x", "--backend", "claude-code"])
        .ok();
    let entry = world.wait_for_end(&id);
    assert_eq!((&entry["state"], &entry["attempts"]), (&json!("failed"), &json!(1)), "{entry}");
    assert_eq!(repo.effects("starts"), ["start"], "{entry}");
    let reason = entry["reason"].as_str().unwrap();
    assert!(reason.contains("IS_SANDBOX=1") && reason.contains("ordinary user"), "{entry}");
    world.finish(Some(daemon));
}
