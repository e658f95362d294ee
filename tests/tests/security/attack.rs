//! One agent that attacks its sandbox.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::skip::skip;
use muleteer_tests::spec_stage::{PATIENCE, confined};
use muleteer_tests::{Daemon, Muleteer, Repo, World, wait_until};
use std::process::Command;

/// An agent of `spawn --sandbox on`. Each success of its attack is a line of `through.txt`.
pub struct Attack {
    pub world: World,
    pub repo: Repo,
    /// The words before each command line, for another user or another mount namespace.
    words: Vec<String>,
    /// The agent's PATH, if it is not that of the tests.
    pub path: Option<String>,
    /// More variables of the agent, as NAME=VALUE.
    pub variables: Vec<String>,
}

impl Attack {
    /// `None` where agents cannot be confined; `test` is then reported as skipped.
    pub fn new(test: &str) -> Option<Self> {
        if !confined() {
            skip(test, "no namespaces");
            return None;
        }
        let world = World::new();
        let repo = world.repo("repo");
        Some(Self { world, repo, words: vec![], path: None, variables: vec![] })
    }

    /// Does the same for a user who is not root. Only root can be that user.
    pub fn of_nobody(test: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip(test, "only root can be another user");
            return None;
        }
        let words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        Some(Self { words: words.map(String::from).into(), ..Self::new(test)? })
    }

    /// Runs the script in the sandbox, and returns what came through.
    pub fn run(&self, script: &str) -> String {
        let script = format!(
            "through() {{ echo \"$*\" >> through.txt; }}\n: > through.txt\n\
             (set +e\n{script}\n) > attack.log 2>&1\nexit 0"
        );
        let path = self.path.as_ref().map(|path| format!("PATH={path}"));
        let mut args = vec![
            "spawn",
            "developer",
            self.repo.to_str(),
            "do it",
            "--backend",
            "subprocess",
            "--command",
            &script,
            "--sandbox",
            "on",
            "--wait",
        ];
        args.extend(path.iter().chain(&self.variables).flat_map(|pair| ["--env", pair]));
        let said = self.world.under(&self.words, &args).deadline(PATIENCE).run();
        assert!(said.code.is_some(), "{}", said.stderr);
        let read =
            |name: &str| std::fs::read_to_string(self.repo.path.join(name)).unwrap_or_default();
        let (through, log) = (read("through.txt"), read("attack.log"));
        assert!(self.repo.path.join("through.txt").exists(), "{}\n{log}", said.stderr);
        eprintln!("{log}");
        through
    }

    /// Returns a command of the user of this attack.
    pub fn muleteer(&self, args: &[&str]) -> Muleteer {
        self.world.under(&self.words, args).deadline(PATIENCE)
    }

    pub fn daemon(&self) -> Daemon {
        if !self.words.is_empty() {
            let owner = ["-R", "65534:65534"];
            let owned = Command::new("chown").args(owner).arg(self.world.path()).status().unwrap();
            assert!(owned.success());
        }
        self.daemon_under(&self.words)
    }

    pub fn daemon_under(&self, words: &[String]) -> Daemon {
        let daemon = self.world.daemon_under(words);
        wait_until("the daemon to answer", PATIENCE, || {
            let output = self.world.under(&self.words, &["status", "--json"]).run();
            let status: serde_json::Value = serde_json::from_str(&output.stdout).ok()?;
            (status["daemon"]["running"] == true).then_some(())
        });
        daemon
    }

    pub fn end(self, daemon: Daemon) {
        let output = self.world.under(&self.words, &["daemon", "stop", "--agents", "stop"]).run();
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        drop(daemon);
        self.world.wait_for_nothing_left(&[]);
    }
}
