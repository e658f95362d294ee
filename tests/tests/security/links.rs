//! Links that come with a repository: nothing is written through them.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::{Repo, World};
use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// A repository with a committed link to a place of the person's.
struct Trap {
    world: World,
    repo: Repo,
    outside: PathBuf,
}

impl Trap {
    fn new(link: &str) -> Self {
        let world = World::new();
        let repo = world.repo("repo");
        let outside = world.path().join("outside");
        std::fs::create_dir_all(outside.join("dir")).unwrap();
        std::fs::write(outside.join("file"), "theirs\n").unwrap();
        let is_file = matches!(link, ".gitignore" | "harness-progress.txt" | ".harness-active");
        let to = outside.join(if is_file { "file" } else { "dir" });
        if let Some(above) = Path::new(link).parent() {
            std::fs::create_dir_all(repo.path.join(above)).unwrap();
        }
        symlink(to, repo.path.join(link)).unwrap();
        repo.git(&["add", "--force", link]);
        repo.git(&["commit", "--quiet", "-m", "a link"]);
        Self { world, repo, outside }
    }

    fn outside(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.outside.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path.clone());
                }
                found.insert(path.clone(), std::fs::read(&path).unwrap_or_default());
            }
        }
        found
    }
}

#[test]
fn nothing_is_written_through_committed_links() {
    let spawn = ["spawn", "developer", ".", "x", "--backend", "subprocess", "--command", "true"];
    let run = ["run", "plan.md", "--backend", "subprocess", "--command", "true"];
    let bead = ["bead", "create", "--title", "x"];
    let hooks = ["hooks", "install"];
    let init = ["tasks", "init", "--gitignore"];
    let clone = [&spawn[..], &["--worktree"]].concat();
    for (link, verb) in [
        (".gitignore", &init[..]),
        ("harness-progress.txt", &init),
        (".harness-active", &init),
        (".muleteer", &init),
        (".muleteer/tasks", &init),
        (".muleteer", &bead),
        (".muleteer/beads", &bead),
        (".muleteer", &clone),
        (".muleteer/worktrees", &clone),
        (".muleteer/runs", &run),
        (".agents", &spawn),
        (".agents/journals", &spawn),
        (".agents", &run),
        (".claude", &hooks),
        (".claude/skills", &hooks),
    ] {
        let trap = Trap::new(link);
        trap.repo.write("plan.md", "# Plan\n\nSay hello.\n");
        let before = trap.outside();
        let daemon = trap.world.daemon();
        let args = [verb, &["--json"]].concat();
        let refused = trap.world.muleteer(&args).current_dir(&trap.repo.path).run();
        let said = format!("{refused:?}");
        assert!(refused.code.is_some_and(|code| code != 0), "{link} {verb:?}: {said}");
        assert!(said.contains("is a symbolic link to"), "{link} {verb:?}: {said}");
        assert_eq!(trap.outside(), before, "{link} {verb:?}: {said}");
        trap.world.finish(Some(daemon));
    }
}

#[test]
fn journals_and_state_are_closed_to_other_users() {
    let world = World::new();
    let repo = world.repo("repo");
    std::fs::create_dir_all(world.state()).unwrap();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(world.state(), open).unwrap();
    let daemon = world.daemon();
    let args = ["spawn", "developer", repo.to_str(), "x", "--backend", "subprocess", "--command"];
    world.muleteer(&[&args[..], &["true", "--wait"]].concat()).ok();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&world.state()), 0o700);
    let journals = repo.path.join(".agents/journals");
    let mut files = 0;
    for folder in std::fs::read_dir(&journals).unwrap().map(|entry| entry.unwrap().path()) {
        assert_eq!(mode(&folder), 0o700, "{}", folder.display());
        for file in std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            assert_eq!(mode(&file), 0o600, "{}", file.display());
            files += 1;
        }
    }
    assert!(files > 0);
    world.finish(Some(daemon));
}
