//! Tests with a real git in a real repository.

mod clones;
mod config;
mod forward;
mod own;
mod person;
mod raw;
mod repository;
mod rollback;
mod state;

use crate::user_repo::*;
use muleteer_model::task_list::Stand;
use muleteer_process::command::helper;
use std::process::Stdio;

struct Repo {
    dir: tempfile::TempDir,
}

impl Repo {
    fn new() -> Self {
        let repo = Self { dir: tempfile::tempdir().expect("a directory") };
        repo.git(&["init", "-q", "-b", "main"]);
        repo.git(&["config", "user.name", "Tester"]);
        repo.git(&["config", "user.email", "tester@example.invalid"]);
        repo.write("kept.txt", "kept\n");
        repo.write(".gitignore", "ignored/\n.env\n");
        repo.git(&["add", "."]);
        repo.git(&["commit", "-q", "-m", "start"]);
        repo.write("harness-tasks.json", "{}");
        repo
    }

    fn git(&self, args: &[&str]) -> String {
        let mut command = helper("git");
        command.arg("-C").arg(self.dir.path()).args(args).env("GIT_CONFIG_GLOBAL", "/dev/null");
        run(command, b"", "test").expect("git works")
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        std::fs::write(path, text).expect("a file");
    }

    fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.dir.path().join(name)).ok()
    }

    fn open(&self) -> Git {
        Git::open(self.dir.path()).expect("a repository")
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.dir.path().join(name)).expect("it is there");
    }
}

/// A git process that runs in a repository until it is dropped.
struct LivingGit(std::process::Child);

impl LivingGit {
    fn new(repo: &Repo) -> Self {
        let mut git = helper("git");
        git.arg("-C").arg(repo.dir.path()).args(["cat-file", "--batch"]);
        let git = Self(git.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a git"));
        let place = repo.dir.path().canonicalize().expect("a place");
        // Its working directory is that once it has started.
        while !may_be_at_work("git", &[&place]) {
            std::thread::sleep(Duration::from_millis(5));
        }
        git
    }
}

impl Drop for LivingGit {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        drop(self.0.wait());
    }
}

fn on_main() -> Stand {
    Stand::On("main".into())
}

fn quiet() -> impl FnMut(&Saved) {
    |_| {}
}
