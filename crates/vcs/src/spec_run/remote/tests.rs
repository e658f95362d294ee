//! Tests of how the remote is reached.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use crate::spec_run::remote::*;
use std::os::unix::fs::PermissionsExt;

fn git_in(dir: &Path, args: &[&str]) -> String {
    let who = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@example.invalid",
        "-c",
        "init.defaultBranch=main",
    ];
    let output = std::process::Command::new("git")
        .arg("-C")
        .arg(dir)
        .args(who)
        .args(args)
        .output()
        .unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_string()
}

/// Makes a person's repository, the harness's own, and a remote. The remote is reached through an
/// `ssh` that only the repository configures, with a path relative to it.
fn stage(root: &Path) -> (PathBuf, PathBuf) {
    let (repo, own) = (root.join("repo"), root.join("own.git"));
    for (dir, kind) in [(&repo, &["init", "--quiet"][..]), (&own, &["init", "--quiet", "--bare"])] {
        std::fs::create_dir(dir).unwrap();
        git_in(dir, kind);
    }
    std::fs::create_dir(root.join("origin.git")).unwrap();
    git_in(&root.join("origin.git"), &["init", "--quiet", "--bare"]);
    let ssh = "#!/bin/sh\necho \"$GH_TOKEN $*\" >> \"$(dirname \"$0\")/asked\"\n\
               shift\nexec sh -c \"$*\"\n";
    std::fs::write(repo.join("ssh.sh"), ssh).unwrap();
    std::fs::set_permissions(repo.join("ssh.sh"), PermissionsExt::from_mode(0o755)).unwrap();
    git_in(&repo, &["config", "core.sshCommand", "./ssh.sh"]);
    git_in(&repo, &["config", "ssh.variant", "simple"]);
    (repo, own)
}

#[tokio::test]
async fn push_uses_the_configured_remote() {
    let root = tempfile::tempdir().unwrap();
    let (repo, own) = stage(root.path());
    let tree = git_in(&own, &["hash-object", "-w", "-t", "tree", "/dev/null"]);
    let commit = git_in(&own, &["commit-tree", "-m", "one", &tree]);
    let path = std::env::var("PATH").unwrap();
    let env = [("PATH", path.as_str()), ("GH_TOKEN", "t")]
        .map(|(name, value)| (name.into(), value.into()))
        .to_vec();
    let settings = settings(&repo).await;
    let url = format!("host:{}", root.path().join("origin.git").display());
    let remote = Remote { fetch: url.clone(), push: url.clone() };
    let environment = env;
    let connection = Connection { remote, environment, settings, repo: repo.clone(), own };
    let refspec = format!("{commit}:refs/heads/main");
    connection
        .with_own(&["push", "--quiet", &url, &refspec], TRANSFER, "cannot push")
        .await
        .unwrap();
    assert_eq!(git_in(&root.path().join("origin.git"), &["rev-parse", "main"]), commit);
    let asked = std::fs::read_to_string(repo.join("asked")).unwrap();
    assert!(asked.starts_with("t host git-receive-pack"), "{asked}");
}

#[tokio::test]
async fn only_remote_transport_settings_come_from_the_repository() {
    let root = tempfile::tempdir().unwrap();
    let repo = root.path().join("repo");
    std::fs::create_dir(&repo).unwrap();
    git_in(&repo, &["init", "--quiet"]);
    std::fs::write(repo.join("more"), "[http]\n\tproxy = http://proxy.invalid\n\tsslVerify\n")
        .unwrap();
    for (key, value) in [
        ("include.path", "../more"),
        ("credential.helper", ""),
        ("credential.https://a.invalid.helper", "!f() {\necho x; }; f"),
        ("core.fsmonitor", "./evil"),
        ("core.hooksPath", "evil"),
        ("filter.p.clean", "./evil"),
    ] {
        git_in(&repo, &["config", "--add", key, value]);
    }
    let expected = [
        ("http.proxy", "http://proxy.invalid"),
        ("http.sslverify", "true"),
        ("credential.helper", ""),
        ("credential.https://a.invalid.helper", "!f() {\necho x; }; f"),
    ];
    assert_eq!(
        settings(&repo).await,
        expected.map(|(key, value)| (key.to_string(), value.to_string()))
    );
    assert_eq!(settings(&root.path().join("none")).await, []);
}

/// The choice is the one of git itself.
#[tokio::test]
async fn remote_is_that_of_the_base_branch_or_the_only_one() {
    let root = tempfile::tempdir().unwrap();
    let repo = root.path();
    git_in(repo, &["init", "--quiet"]);
    let at = async |base: &str| Remote::find(repo, base).await.map(|remote| remote.fetch);
    assert_eq!(at("main").await, None);
    git_in(repo, &["remote", "add", "upstream", "host:up.git"]);
    assert_eq!(at("main").await.as_deref(), Some("host:up.git"), "the only one");
    git_in(repo, &["remote", "add", "other", "host:other.git"]);
    assert_eq!(at("main").await, None, "nothing says which");
    git_in(repo, &["remote", "add", "origin", "host:origin.git"]);
    assert_eq!(at("main").await.as_deref(), Some("host:origin.git"));
    git_in(repo, &["config", "branch.main.remote", "other"]);
    assert_eq!(at("main").await.as_deref(), Some("host:other.git"));
    assert_eq!(at("next").await.as_deref(), Some("host:origin.git"));
    git_in(repo, &["config", "branch.next.remote", "."]);
    assert_eq!(at("next").await.as_deref(), Some("host:origin.git"));
    git_in(repo, &["config", "branch.next.remote", "../elsewhere.git"]);
    let elsewhere = repo.join("../elsewhere.git").display().to_string();
    assert_eq!(at("next").await, Some(elsewhere), "an address without a name");
}
