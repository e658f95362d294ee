//! Files that git-lfs keeps: an agent in a clone sees their content, and what it adds comes home.
//! A script stands in for git-lfs.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::{Repo, World, program};
use serde_json::json;

/// Exchanges contents and pointers as git-lfs does, with the objects in the git directory.
const GIT_LFS: &str = r#"#!/bin/sh
set -e
objects=$(git rev-parse --absolute-git-dir)/lfs/objects
place() { echo "$objects/$(echo "$1" | cut -c1-2)/$(echo "$1" | cut -c3-4)"; }
t=$(mktemp)
trap 'rm -f "$t"' EXIT
cat >"$t"
case $1 in
clean)
    if head -c 42 "$t" | grep -q '^version https://git-lfs'; then cat "$t"; exit; fi
    oid=$( (sha256sum "$t" 2>/dev/null || shasum -a 256 "$t") | cut -d' ' -f1)
    mkdir -p "$(place "$oid")"
    cp "$t" "$(place "$oid")/$oid"
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %s\n' \
        "$oid" "$(($(wc -c <"$t")))" ;;
smudge)
    oid=$(sed -n 's/^oid sha256://p' "$t")
    cat "$(place "$oid")/$oid" ;;
*) exit 1 ;;
esac
"#;

/// Makes a repository with the file `a.bin`, which the script keeps. Returns it, and the `PATH` on
/// which the script is.
fn stage(world: &World) -> (Repo, String) {
    let programs = world.path().join("programs");
    std::fs::create_dir(&programs).unwrap();
    program::write(&programs.join("git-lfs"), GIT_LFS);
    let repo = world.repo("repo");
    for what in ["clean", "smudge"] {
        let command = format!("{}/git-lfs {what} -- %f", programs.display());
        repo.git(&["config", &format!("filter.lfs.{what}"), &command]);
    }
    repo.git(&["config", "filter.lfs.required", "true"]);
    repo.write(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n");
    repo.write("a.bin", "content of a");
    repo.git(&["add", "."]);
    repo.git(&["commit", "--quiet", "-m", "large"]);
    assert!(repo.git(&["show", "HEAD:a.bin"]).starts_with("version https://git-lfs"));
    (repo, format!("{}:{}", programs.display(), std::env::var("PATH").unwrap()))
}

#[test]
fn branch_with_new_files_of_git_lfs_can_be_checked_out() {
    let world = World::new();
    let (repo, path) = stage(&world);
    let daemon = world.daemon();
    // The script does not speak git's protocol for long-running filters.
    let script = "git config --unset filter.lfs.process; cat a.bin > seen; \
                  printf 'content of b' > b.bin; git add b.bin seen; git commit --quiet -m b";
    let spawn = world.spawn(&repo, script, &["--worktree", "--wait"]).env("PATH", &path);
    let id = spawn.ok();
    let work = world.dispatch(&id)["work"].clone();
    // The file a.bin is not changed, so nothing is left but the commit.
    let others = (&work["skipped"], &work["left"]);
    assert_eq!((&work["commits"], others), (&1.into(), (&json!([]), &json!([]))), "{work}");
    let branch = format!("muleteer/{id}");
    assert_eq!(repo.git(&["show", &format!("{branch}:seen")]), "content of a");
    repo.git(&["checkout", "--quiet", &branch]);
    assert_eq!(repo.read("b.bin"), "content of b");
    world.finish(Some(daemon));
}

#[test]
fn agent_without_git_lfs_sees_pointers_and_an_event_says_so() {
    let world = World::new();
    let (repo, path) = stage(&world);
    let daemon = world.daemon();
    let without = path.split_once(':').unwrap().1;
    if std::env::split_paths(without).any(|dir| dir.join("git-lfs").exists()) {
        eprintln!("git-lfs is on the PATH of the tests");
        return world.finish(Some(daemon));
    }
    let script = "head -c 7 a.bin | grep -q version";
    let id = world.spawn(&repo, script, &["--worktree", "--wait"]).ok();
    let faults = world.events_of(&id, "fault");
    assert!(faults.iter().any(|fault| fault.to_string().contains("git-lfs")), "{faults:?}");
    world.finish(Some(daemon));
}
