//! Tests errors as people and programs read them, and the exit code of each.

mod support;

use support::User;

/// The arguments, the exit code, and the error code.
const TABLE: &[(&[&str], i32, &str)] = &[
    (&["levitate"], 2, "E_USAGE"),
    (&["spawn"], 2, "E_USAGE"),
    (&["spawn", "developer", ".", "x", "--budget-usd", "0"], 2, "E_USAGE"),
    (&["spawn", "developer", ".", "x", "--timeout", "soon"], 2, "E_USAGE"),
    (&["spawn", "developer", "Fix the test"], 2, "E_PROJECT_NOT_FOUND"),
    (&["spawn", "developer", "nowhere", "Fix the test"], 2, "E_PROJECT_NOT_FOUND"),
    (&["spawn", "developer", "."], 2, "E_PROMPT_MISSING"),
    (&["spawn", "developer", ".", "  "], 2, "E_PROMPT_MISSING"),
    (&["spawn", "developer", ".", "--prompt-file", "missing.md"], 2, "E_NOT_FOUND"),
    (&["spawn", "developer", ".", "x", "--config", "missing.yaml"], 2, "E_CONFIG_INVALID"),
    (&["spawn", "developer", ".", "x", "--command", "[]"], 2, "E_USAGE"),
    (&["spawn", "developer", ".", "x", "--model", ""], 2, "E_USAGE"),
    (&["run", "--model", " "], 2, "E_USAGE"),
    (&["model", "k3f9", ""], 2, "E_USAGE"),
    (&["config", "check", "--project", "nowhere"], 2, "E_PROJECT_NOT_FOUND"),
    (&["roles", "--project", "nowhere"], 2, "E_PROJECT_NOT_FOUND"),
    (&["journal", "-f"], 2, "E_USAGE"),
    (&["send", "k3f9", " "], 2, "E_PROMPT_MISSING"),
    (&["send", "k3f9", "go on"], 2, "E_NOT_FOUND"),
    (&["kill", "k3f9"], 2, "E_NOT_FOUND"),
    (&["interrupt", "k3f9"], 2, "E_NOT_FOUND"),
    (&["wait", "k3f9"], 2, "E_NOT_FOUND"),
    (&["status", "k3f9"], 2, "E_NOT_FOUND"),
    (&["logs", "k3f9"], 2, "E_NOT_FOUND"),
    (&["journal", "k3f9"], 2, "E_NOT_FOUND"),
    (&["roles", "developper"], 2, "E_ROLE_UNKNOWN"),
    (&["config", "show", "pool.max_agent"], 2, "E_NOT_FOUND"),
    (&["parse", "telepathy"], 2, "E_BACKEND_UNAVAILABLE"),
    (&["parse", "acp:gemni"], 2, "E_BACKEND_UNAVAILABLE"),
    (&["parse", "codex:gemini"], 2, "E_BACKEND_UNAVAILABLE"),
    (&["daemon", "stop"], 3, "E_NO_DAEMON"),
    (&["events", "-f"], 3, "E_NO_DAEMON"),
];

#[test]
fn every_error_has_its_code_and_exit_code() {
    let user = User::new();
    let mut all = String::new();
    for (args, code, name) in TABLE {
        let human = user.run(args);
        assert_eq!(human.code, *code, "{args:?}: {human:?}");
        assert_eq!(human.stdout, "", "{args:?}: errors for people go to stderr");
        let json = user.run(&[args, &["--json"][..]].concat());
        assert_eq!(
            (json.code, json.json()["error"]["code"].as_str()),
            (*code, Some(*name)),
            "{args:?}: {json:?}"
        );
        assert_eq!(json.stderr, "", "{args:?}: with --json all is said on stdout");
        all.push_str(&format!("$ muleteer {}\n{}\n", args.join(" "), human.stderr));
    }
    assert!(!user.state().exists(), "none of this started a daemon");
    insta::assert_snapshot!("errors", user.plain(&all));
}

/// The message contains the error, and arguments that did not parse still determine its format.
#[test]
fn a_command_line_that_is_not_understood_is_shown_as_it_asks() {
    let user = User::new();
    let error = &user.run(&["spawn", "--json"]).json()["error"];
    assert!(error["message"].as_str().expect("text").contains("<ROLE>"), "{error}");
    for (color, coloured) in [
        (&["--color=always"][..], true),
        (&["--color", "always"], true),
        (&["--color", "never"], false),
    ] {
        let said = user.run(&[&["levitate"][..], color].concat());
        assert_eq!((said.code, said.stderr.contains('\u{1b}')), (2, coloured), "{said:?}");
        let help = user.run(&[&["status", "--help"][..], color].concat());
        assert_eq!((help.code, help.stdout.contains('\u{1b}')), (0, coloured), "{help:?}");
    }
    let mut command = user.command(&["status", "--json"]);
    command.arg(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"k3\xff"));
    let said = support::said(command.output().expect("run"));
    assert!(
        said.json()["error"]["message"].as_str().expect("text").contains("k3\u{fffd}"),
        "{said:?}"
    );
}

/// Help that could not be written must not count as success.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_no_success() {
    let user = User::new();
    for args in [&["--help"][..], &["--version"], &["spawn", "--help"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("full");
        let status = user.command(args).stdout(full).status().expect("run");
        assert_eq!(status.code(), Some(4), "{args:?}");
    }
    for args in [&["status"][..], &["status", "--json"], &["cost", "--json"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("full");
        let output = user.command(args).stdout(full).output().expect("run");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(4) && stderr.contains("E_IO"), "{args:?}: {output:?}");
    }
}

#[test]
fn an_agent_behind_acp_is_parsed_by_its_name() {
    let user = User::new();
    let said = user.run(&["parse", "acp:gemini"]);
    assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (0, "", ""), "{said:?}");
}

#[test]
fn a_faulty_configuration_is_shown_with_its_place() {
    let user = User::new();
    user.write(
        ".config/muleteer/config.yaml",
        "pool:\n  max_agnets: 3\ncategories:\n  coding:\n    budget_usd: lots\n",
    );
    let human = user.run(&["config", "check"]);
    assert_eq!(human.code, 2);
    insta::assert_snapshot!("config_check", user.plain(&human.stderr));
    let error = &user.run(&["config", "check", "--json"]).json()["error"];
    assert_eq!(
        (error["code"].as_str(), error["line"].as_u64()),
        (Some("E_CONFIG_INVALID"), Some(2)),
        "{error}"
    );
    assert!(error["file"].as_str().is_some_and(|file| file.ends_with("config.yaml")), "{error}");
}

#[test]
fn a_role_of_no_category_is_shown_with_its_place() {
    let user = User::new();
    let role = "---\nname: critic\ncategory: reserch\n---\nYou are.\n";
    user.write(".config/muleteer/roles/critic.md", role);
    let said = user.run(&["config", "check", "--json"]);
    let error = &said.json()["error"];
    assert_eq!((said.code, error["code"].as_str()), (2, Some("E_CONFIG_INVALID")), "{said:?}");
    assert_eq!(error["message"], "role `critic`: no category `reserch`");
    assert_eq!(
        (error["line"].as_u64(), error["hint"].as_str()),
        (Some(3), Some("did you mean `research`?")),
        "{error}"
    );
    assert!(
        error["file"].as_str().is_some_and(|file| file.ends_with("roles/critic.md")),
        "{error}"
    );
    let listed = user.run(&["roles", "--json"]).json();
    assert_eq!(
        (&listed["errors"][0]["line"], &listed["errors"][0]["message"]),
        (&error["line"], &error["message"])
    );
    // Defining the category fixes the error.
    user.write(".config/muleteer/config.yaml", "categories: {reserch: {timeout: 1h}}\n");
    let said = user.run(&["config", "check"]);
    assert_eq!(said.code, 0, "{said:?}");
}

/// The key is set without effect, and a user who displays it is warned.
#[test]
fn daemon_settings_of_a_project_are_shown_as_ignored() {
    let user = User::new();
    user.write("shop/.muleteer/config.yaml", "pool:\n  max_agents: 2\n  max_depth: 1\n");
    let project = user.path("shop").display().to_string();
    for args in [
        &["config", "show", "--project", &project][..],
        &["config", "check", "--project", &project],
    ] {
        let said = user.run(args);
        let told: Vec<_> = said.stderr.lines().collect();
        assert_eq!((said.code, told.len()), (0, 1), "{said:?}");
        assert!(
            told[0].contains("config.yaml:2: pool.max_agents is a setting of the daemon"),
            "{said:?}"
        );
    }
}

/// Only a request for that role is rejected.
#[test]
fn a_role_that_cannot_be_read_is_a_fault_of_its_own() {
    let user = User::new();
    user.write(".config/muleteer/roles/critic.md", "You are.\n");
    // Neither file depends on a permission, which root would have anyway.
    std::fs::create_dir(user.path(".config/muleteer/roles/folder.md")).unwrap();
    std::fs::write(user.path(".config/muleteer/roles/latin.md"), b"Sei sch\xf6n.\n").unwrap();
    let listed = user.run(&["roles", "--json"]).json();
    let names: Vec<_> = listed["roles"]
        .as_array()
        .unwrap()
        .iter()
        .map(|role| role["name"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"critic") && names.contains(&"developer"), "{names:?}");
    assert_eq!(user.run(&["roles", "critic"]).code, 0);
    for (name, at) in [("folder", 0), ("latin", 1)] {
        let file = listed["errors"][at]["file"].as_str().unwrap();
        assert!(file.ends_with(&format!("roles/{name}.md")), "{listed}");
        let refused = user.run(&["roles", name, "--json"]);
        let error = &refused.json()["error"];
        assert_eq!(
            (refused.code, &error["code"], &error["file"]),
            (2, &"E_CONFIG_INVALID".into(), &file.into()),
            "{error}"
        );
    }
    assert_eq!(user.run(&["config", "check"]).code, 2);
}

#[test]
fn verbs_that_read_do_without_a_daemon() {
    let user = User::new();
    for args in
        [&["status"][..], &["tree"], &["events"], &["journal"], &["roles"], &["config", "show"]]
    {
        let said = user.run(args);
        assert_eq!(said.code, 0, "{args:?}: {said:?}");
    }
    assert!(user.run(&["status"]).stderr.contains("no daemon is running"));
    assert_eq!(user.run(&["status", "--json"]).json()["daemon"]["running"], false);
    assert_eq!(user.run(&["events", "--json"]).json()["daemon"]["running"], false);
    let tree = user.run(&["tree", "--json"]).json();
    assert_eq!((tree["running"].as_bool(), tree["name"].as_str()), (Some(false), Some("root")));
    assert!(!user.state().exists(), "reading makes nothing");
}

#[test]
fn ctl_is_a_synonym() {
    let user = User::new();
    assert_eq!(
        user.run(&["--json", "ctl", "status"]).stdout,
        user.run(&["status", "--json"]).stdout
    );
}

#[test]
fn colours_are_for_terminals_or_on_request() {
    let user = User::new();
    assert!(!user.run(&["kill", "k3f9"]).stderr.contains('\x1b'));
    assert!(user.run(&["kill", "k3f9", "--color", "always"]).stderr.contains('\x1b'));
    assert!(!user.run(&["status", "-q"]).stderr.contains("no daemon"));
}

#[test]
fn closed_pipe_of_a_reader_is_not_an_error() {
    let user = User::new();
    let mut child = user.command(&["config", "show"]).spawn().expect("spawn");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("wait").code(), Some(0));
}
