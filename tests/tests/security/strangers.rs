//! Another user of the machine who was first in `/tmp`: this user is kept out, and is told by whom
//! and what helps.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_store::task_list::Root;
use muleteer_tests::skip::skip;
use muleteer_tests::spec_stage::PATIENCE;
use muleteer_tests::{Output, Repo, World};
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

/// The other user, without a process of their own.
const STRANGER: u32 = 1;

/// The place of a user who is not root.
struct Place {
    world: World,
    repo: Repo,
    words: Vec<String>,
}

impl Place {
    /// `None` if the tests are not root's; `test` is then reported as skipped.
    fn of(test: &str, user: u32) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip(test, "only root can be another user");
            return None;
        }
        let world = World::new();
        let repo = world.repo("repo");
        let owner = format!("{user}:{user}");
        let owned = Command::new("chown").args(["-R", &owner]).arg(world.path()).status().unwrap();
        assert!(owned.success());
        let words = [format!("--reuid={user}"), format!("--regid={user}")];
        let words = ["setpriv".into()].into_iter().chain(words).chain(["--clear-groups".into()]);
        Some(Self { words: words.collect(), world, repo })
    }

    fn run(&self, args: &[&str], runtime: Option<&str>) -> Output {
        let run = self.world.under(&self.words, args).current_dir(&self.repo.path);
        let run = run.deadline(PATIENCE);
        match runtime {
            Some(folder) => run.env("XDG_RUNTIME_DIR", folder).run(),
            None => run.run(),
        }
    }
}

#[test]
fn lock_of_another_user_is_named_and_can_be_removed() {
    let test = "lock_of_another_user_is_named_and_can_be_removed";
    let Some(place) = Place::of(test, 65_531) else { return };
    assert_eq!(place.run(&["tasks", "init"], None).code, Some(0));
    let lock = Root::at(&place.repo.path).lock_dir();
    std::fs::create_dir(&lock).unwrap();
    chown(&lock, Some(STRANGER), Some(STRANGER)).unwrap();
    let add = ["tasks", "add", "Title", "--validate", "true", "--json"];
    let refused = place.run(&add, None);
    let said = format!("{refused:?}");
    std::fs::remove_dir(&lock).unwrap();
    assert!(refused.code.is_some_and(|code| code != 0), "{said}");
    for word in ["E_TASKS_LOCKED", "uid 1", "sudo rm -r /tmp/harness-"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert_eq!(place.run(&add, None).code, Some(0));
}

#[test]
fn socket_folder_of_another_user_is_named_and_can_be_avoided() {
    const USER: u32 = 65_532;
    let test = "socket_folder_of_another_user_is_named_and_can_be_avoided";
    let Some(place) = Place::of(test, USER) else { return };
    let folder = format!("/tmp/muleteer-{USER}");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).unwrap();
    chown(&folder, Some(STRANGER), Some(STRANGER)).unwrap();
    // The client starts a daemon.
    let agent = ["--backend", "subprocess", "--command", "true", "--wait", "--json"];
    let start = [&["spawn", "developer", ".", "x"][..], &agent].concat();
    let refused = place.run(&start, Some(""));
    let said = format!("{refused:?}");
    std::fs::remove_dir_all(Path::new(&folder)).unwrap();
    assert!(refused.code.is_some_and(|code| code != 0), "{said}");
    for word in ["uid 1", &folder, "XDG_RUNTIME_DIR"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let own = place.repo.path.with_file_name("run");
    let started = place.run(&start, own.to_str());
    assert_eq!(started.code, Some(0), "{started:?}");
    assert_eq!(place.run(&["daemon", "stop"], own.to_str()).code, Some(0));
}
