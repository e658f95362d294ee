//! Tests that a repository's configuration runs and loosens nothing until its user trusts it.

mod support;

use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use support::{Said, User, said};

/// A configuration in which every key that names a program names one that leaves a marker file.
const FOREIGN: &str = "\
backends:
  claude_code: {command: ./mark}
  codex: {command: ./mark}
  subprocess: {command: [./mark]}
run:
  beads: {store: tbd, command: [./mark]}
sandbox: off
";
const KEYS: [&str; 5] = [
    "backends.claude_code.command",
    "backends.codex.command",
    "backends.subprocess.command",
    "run.beads.command",
    "sandbox",
];

fn git(user: &User, args: &[&str]) {
    #[allow(clippy::disallowed_methods)]
    let mut git = std::process::Command::new("git");
    let status = git.args(args).current_dir(user.project()).env("HOME", user.path("")).status();
    assert!(status.expect("git").success());
}

fn cloned(config: &str) -> User {
    let user = User::new();
    git(&user, &["init", "--quiet"]);
    std::fs::create_dir_all(user.project().join(".muleteer/roles")).expect("dir");
    user.write("project/.muleteer/config.yaml", config);
    user.write("project/mark", "#!/bin/sh\ntouch \"${0%/*}/ran\"\necho '2.1.0 {}'\n");
    std::fs::set_permissions(user.path("project/mark"), std::fs::Permissions::from_mode(0o755))
        .expect("mode");
    user
}

fn has_run(user: &User) -> bool {
    user.path("project/ran").exists()
}

/// Runs `doctor` with a `claude` on PATH, because `doctor` requires one.
fn doctor(user: &User) -> Said {
    std::fs::create_dir_all(user.path("bin")).expect("dir");
    user.write("bin/claude", "#!/bin/sh\necho 2.1.3\n");
    std::fs::set_permissions(user.path("bin/claude"), std::fs::Permissions::from_mode(0o755))
        .expect("mode");
    let mut command = user.command(&["doctor", "--json"]);
    command.env("PATH", format!("{}:/usr/bin:/bin", user.path("bin").display()));
    said(command.output().expect("run"))
}

fn check(said: &Said, name: &str) -> Option<Value> {
    let document = said.json();
    document["checks"]
        .as_array()
        .expect("checks")
        .iter()
        .find(|check| check["name"] == name)
        .cloned()
}

fn keys(list: &Value) -> Vec<&str> {
    list.as_array().expect("a list").iter().filter_map(|one| one["key"].as_str()).collect()
}

#[test]
fn untrusted_clone_runs_nothing_and_warns() {
    let user = cloned(FOREIGN);
    for args in
        [&["bead", "list"][..], &["config", "show"], &["config", "check"], &["roles"], &["status"]]
    {
        user.run(args);
        assert!(!has_run(&user), "{args:?}");
    }
    let said = doctor(&user);
    assert!(!has_run(&user), "{said:?}");
    assert_eq!(said.code, 0, "{said:?}");
    let found = check(&said, "trust").expect("a check");
    assert!(
        found["status"] == "warn"
            && found["hint"].as_str().is_some_and(|hint| hint.contains("muleteer trust"))
    );

    let said = user.run(&["bead", "list"]);
    let warning =
        said.stderr.lines().find(|line| line.starts_with("warning: ")).expect("a warning");
    assert!(
        warning.contains(".muleteer/config.yaml:6: `run.beads.command` is ignored"),
        "{warning}"
    );
    assert!(warning.contains("muleteer trust"), "{warning}");
    assert!(!said.stderr.contains("backends.codex"), "beads need no agent: {said:?}");
    let shown = user.run(&["config", "show", "--json"]).json();
    assert_eq!(keys(&shown["ignored"]), KEYS, "{shown}");
    assert_eq!(
        (&shown["config"]["backends"]["codex"]["command"], &shown["ignored"][0]["line"]),
        (&Value::Null, &json!(2))
    );
}

#[test]
fn trusted_configuration_applies_until_it_changes() {
    let user = cloned(FOREIGN);
    let only_shown = user.run(&["trust", "--dry-run", "--json"]).json();
    assert_eq!(
        (&only_shown["trusted"], user.run(&["trust", "--list"]).stdout.trim()),
        (&json!(false), "no repository is trusted")
    );
    let trusted = user.run(&["trust", "--json"]);
    let document = trusted.json();
    assert_eq!((trusted.code, &document["trusted"]), (0, &json!(true)), "{trusted:?}");
    assert_eq!(keys(&document["files"][0]["allows"]), KEYS, "{document}");
    assert_eq!(document["files"][0]["allows"][4]["effect"], "loosens", "{document}");
    assert!(!has_run(&user), "trust runs nothing");
    assert_eq!(
        keys(&user.run(&["config", "show", "--json"]).json()["ignored"]),
        Vec::<&str>::new()
    );
    let said = doctor(&user);
    assert!(!has_run(&user), "the doctor runs nothing that a repository names: {said:?}");
    let found = check(&said, "trust").expect("a check");
    assert!(
        found["status"] == "ok"
            && found["message"].as_str().is_some_and(|text| text.contains(KEYS[0])),
        "{found}"
    );
    user.run(&["bead", "list"]);
    assert!(has_run(&user), "what is trusted runs when it is asked for");

    let list = user.run(&["trust", "--list", "--json"]).json();
    assert_eq!(list["repositories"][0]["state"], "current", "{list}");
    user.write("project/.muleteer/config.yaml", &format!("{FOREIGN}# changed\n"));
    assert_eq!(keys(&user.run(&["config", "show", "--json"]).json()["ignored"]), KEYS);
    assert_eq!(
        user.run(&["trust", "--list", "--json"]).json()["repositories"][0]["state"],
        "changed"
    );
    assert_eq!(user.run(&["trust", "--json"]).json()["trusted"], json!(true));
    let revoked = user.run(&["trust", "--revoke", "--json"]).json();
    assert_eq!(revoked["revoked"], json!(true), "{revoked}");
    assert_eq!(keys(&user.run(&["config", "show", "--json"]).json()["ignored"]), KEYS);
}

#[test]
fn trust_shows_the_allowed_settings() {
    let user = cloned(FOREIGN);
    let role = "---\nname: tester\npermissions: {allow: [Bash]}\n---\nYou test.\n";
    user.write("project/.muleteer/roles/tester.md", role);
    let listed = user.run(&["roles", "tester"]);
    assert!(listed.stderr.contains("tester.md:3: `permissions.allow` is ignored"), "{listed:?}");
    let said = user.run(&["trust"]);
    assert_eq!(said.code, 0, "{said:?}");
    insta::assert_snapshot!("trust", user.plain(&said.stdout));
    assert_eq!(user.run(&["roles", "tester"]).stderr, "");
}

#[test]
fn trust_without_files_or_with_unreadable_files_fails() {
    let user = User::new();
    let said = user.run(&["trust", "--json"]);
    assert_eq!(
        (said.code, &said.json()["trusted"], &said.json()["files"]),
        (0, &json!(false), &json!([])),
        "{said:?}"
    );
    assert!(!user.state().exists(), "nothing is recorded of nothing");
    let user = cloned("sandboxx: off\n");
    let said = user.run(&["trust", "--json"]);
    assert_eq!(
        (said.code, said.json()["error"]["code"].as_str()),
        (2, Some("E_CONFIG_INVALID")),
        "{said:?}"
    );
}

#[test]
fn agent_may_not_trust() {
    let user = cloned(FOREIGN);
    for variable in ["MULETEER_SOCKET", "MULETEER_DISPATCH_ID"] {
        for args in [&["trust", "--json"][..], &["trust", "--revoke", "--json"]] {
            let refused = said(user.command(args).env(variable, "x").output().expect("run"));
            assert_eq!(
                (refused.code, refused.json()["error"]["code"].as_str()),
                (3, Some("E_FORBIDDEN")),
                "{refused:?}"
            );
        }
    }
    assert_eq!(user.run(&["trust", "--list", "--json"]).json()["repositories"], json!([]));
}

#[test]
fn repository_in_which_nothing_can_be_trusted_is_not_called_trusted() {
    let user = User::new();
    git(&user, &["init", "--quiet"]);
    std::fs::create_dir_all(user.project().join(".opencode/tool")).expect("dir");
    let large = std::fs::File::create(user.path("project/.opencode/tool/x.wasm"));
    large.and_then(|file| file.set_len(1 << 30)).expect("a large file");
    for args in [&["trust", "--dry-run"][..], &["trust"]] {
        let said = user.run(args);
        assert!(said.stdout.contains("cannot be trusted"), "{said:?}");
        assert!(!said.stdout.contains("is trusted"), "{said:?}");
    }
    assert_eq!(user.run(&["trust", "--json"]).json()["trusted"], false);
    assert_eq!(user.run(&["trust", "--list"]).stdout.trim(), "no repository is trusted");
}
