//! The commit that a run begins from, and its files that agents may be able to write.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use crate::spec_run::host::Hosted;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

const RUN: &str = "run-2026-01-01-abcdef";

struct Stage {
    _dir: tempfile::TempDir,
    hosted: Hosted,
}

fn git_in(dir: &Path, args: &[&str]) -> String {
    let who = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@example.invalid",
        "-c",
        "init.defaultBranch=main",
    ];
    let output = Command::new("git").arg("-C").arg(dir).args(who).args(args).output().unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_string()
}

impl Stage {
    fn empty() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(dir.path()).unwrap();
        let repo = root.join("repo");
        std::fs::create_dir_all(&repo).unwrap();
        git_in(&repo, &["init", "--quiet"]);
        git_in(&repo, &["commit", "--quiet", "--allow-empty", "--message=first"]);
        Self { _dir: dir, hosted: Hosted::alone(&root, RUN) }
    }
}

#[tokio::test]
async fn existing_target_is_continued_and_missing_base_is_an_error() {
    use crate::spec_run::steps::base;
    let stage = Stage::empty();
    let repo = stage.hosted.repo.clone();
    let main = git_in(&repo, &["rev-parse", "HEAD"]);
    git_in(&repo, &["checkout", "--quiet", "-b", "feature"]);
    git_in(&repo, &["commit", "--quiet", "--allow-empty", "--message=more"]);
    let feature = git_in(&repo, &["rev-parse", "HEAD"]);
    let found = async |target: &str, configured: Option<&str>| {
        base(&stage.hosted, target, configured.map(str::to_string))
            .await
            .map_err(|trouble| trouble.code)
    };
    assert_eq!(found("main", None).await.unwrap(), ("main".into(), main.clone()));
    assert_eq!(found("auto", None).await.unwrap(), ("feature".into(), feature.clone()));
    assert_eq!(found("auto", Some("main")).await.unwrap(), ("main".into(), main));
    assert_eq!(found("new", None).await.unwrap(), ("feature".into(), feature.clone()));
    for none in ["none", "main~0", "origin/main"] {
        assert_eq!(found("auto", Some(none)).await.unwrap_err(), "E_CONFIG_INVALID", "{none}");
    }
    // A tag of the same name is not the branch, and makes git print `heads/feature`.
    git_in(&repo, &["tag", "feature", "main"]);
    assert_eq!(found("auto", None).await.unwrap(), ("feature".into(), feature.clone()));
    git_in(&repo, &["checkout", "--quiet", "--detach"]);
    assert_eq!(found("auto", None).await.unwrap(), ("HEAD".into(), feature));
}

/// The frozen spec is in a folder that agents may be able to write.
#[tokio::test]
async fn endless_file_is_not_read_instead_of_a_small_one() {
    let stage = Stage::empty();
    let public = &stage.hosted.places.public;
    std::fs::create_dir_all(public).unwrap();
    for name in ["lock.json", "checkpoint.yml"] {
        symlink("/dev/zero", public.join(name)).unwrap();
    }
    drop(crate::spec_run::host::take_lock(&stage.hosted.places, RUN).unwrap());
    std::fs::remove_file(public.join("lock.json")).unwrap();
}

/// A container is made again under another name, on the machine that holds its old lock.
#[tokio::test]
async fn lock_of_another_host_or_boot_is_recognized() {
    let stage = Stage::empty();
    let public = &stage.hosted.places.public;
    std::fs::create_dir_all(public).unwrap();
    let found = |more: &str| {
        let note = format!(
            r#"{{"run_id":"r","pid":1,"hostname":"gone","started_at":"2026-01-01T00:00:00Z","heartbeat_at":"2026-01-01T00:00:00Z"{more}}}"#
        );
        std::fs::write(public.join("lock.json"), note).unwrap();
        crate::spec_run::host::take_lock(&stage.hosted.places, RUN)
    };
    for elsewhere in ["", r#","boot_id":"another""#] {
        let refused = found(elsewhere).unwrap_err();
        assert_eq!(refused.code, "E_RUN_LOCKED");
        assert!(refused.hint.unwrap().contains("lock.json"));
    }
    let boot = muleteer_process::identity::boot_id();
    drop(found(&format!(r#","boot_id":"{boot}""#)).unwrap());
}
