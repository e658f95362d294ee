//! One test's world: its own directories, variables and processes.

pub mod daemon;
pub mod processes;
pub mod program;
pub mod repo;
pub mod run;
pub mod terminal;
pub mod wire;

use crate::{Daemon, Muleteer, PATIENCE, Repo, events, wait_until};
use muleteer_process::fault::SEGMENT_VAR;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A world. Dropping it ends every process that belongs to it and removes its files.
#[derive(Debug)]
pub struct World {
    root: tempfile::TempDir,
}

impl World {
    #[allow(clippy::new_without_default)] // it makes directories: a surprise for a `default()`
    pub fn new() -> Self {
        // The path is short, because socket paths are limited to 107 bytes.
        let root = tempfile::Builder::new().prefix("mt").tempdir().expect("a temporary directory");
        for dir in ["home", "state", "config", "cache", "run", "tmp", "bin"] {
            std::fs::create_dir(root.path().join(dir)).expect("a directory of the world");
        }
        let identity =
            "[user]\n\tname = Tester\n\temail = tester@example.invalid\n[gc]\n\tauto = 0\n";
        std::fs::write(root.path().join("home/.gitconfig"), identity).expect("a git identity");
        Self { root }
    }

    pub fn path(&self) -> &Path {
        self.root.path()
    }

    pub fn home(&self) -> PathBuf {
        self.path().join("home")
    }

    /// Returns `$XDG_STATE_HOME/muleteer`.
    pub fn state(&self) -> PathBuf {
        self.path().join("state/muleteer")
    }

    /// Returns `$XDG_RUNTIME_DIR`.
    pub fn runtime(&self) -> PathBuf {
        self.path().join("run")
    }

    /// Returns a folder at the front of every `PATH`, for fake or linked programs.
    pub fn bin(&self) -> PathBuf {
        self.path().join("bin")
    }

    /// Writes the user's `config.yaml`.
    pub fn configure(&self, yaml: &str) {
        let dir = self.path().join("config/muleteer");
        std::fs::create_dir_all(&dir).expect("the configuration directory");
        std::fs::write(dir.join("config.yaml"), yaml).expect("the configuration");
    }

    /// Trusts a repository's configuration as it is now.
    ///
    /// # Panics
    /// When it is invalid.
    pub fn trust(&self, repo: &Repo) {
        self.muleteer(&["trust", repo.to_str()]).ok();
    }

    pub fn repo(&self, name: &str) -> Repo {
        Repo::create(self.path().join(name), &self.home())
    }

    /// # Panics
    /// When the binaries under test do not build.
    pub fn muleteer(&self, args: &[&str]) -> Muleteer {
        Muleteer::new(self, &binaries().join("muleteer"), args)
    }

    /// Does the same with a shell program that reads the output. The command ends when both have
    /// ended.
    pub fn muleteer_into(&self, args: &[&str], reader: &str) -> Muleteer {
        let (program, script) = (binaries().join("muleteer"), format!("\"$0\" \"$@\" | {reader}"));
        let words = ["-c", script.as_str(), program.to_str().expect("a build's paths are UTF-8")];
        Muleteer::new(self, std::path::Path::new("sh"), &[&words, args].concat())
    }

    /// Does the same below the program that `words` start; without words, directly.
    ///
    /// # Panics
    /// When the binaries under test do not build.
    pub fn under(&self, words: &[String], args: &[&str]) -> Muleteer {
        let program = self.program();
        let Some((tool, rest)) = words.split_first() else { return self.muleteer(args) };
        let program = program.to_str().expect("a build's paths are UTF-8");
        let words: Vec<&str> =
            rest.iter().map(String::as_str).chain([program]).chain(args.iter().copied()).collect();
        Muleteer::new(self, std::path::Path::new(tool), &words)
    }

    /// Returns the path of the `muleteer` under test.
    ///
    /// # Panics
    /// When it does not build.
    pub fn program(&self) -> PathBuf {
        binaries().join("muleteer")
    }

    /// Spawns a `subprocess` agent in `repo` that runs `script` under `sh -c`.
    pub fn spawn(&self, repo: &Repo, script: &str, more: &[&str]) -> Muleteer {
        let mut args = vec!["spawn", "developer", repo.to_str(), "do it"];
        args.extend(["--backend", "subprocess", "--command", script]);
        args.extend(more);
        self.muleteer(&args)
    }

    /// Starts a daemon and waits until it answers.
    pub fn daemon(&self) -> Daemon {
        self.daemon_with(&[])
    }

    /// Does the same with additional variables.
    pub fn daemon_with(&self, variables: &[(&str, &str)]) -> Daemon {
        Daemon::launch(self, variables).ready(self)
    }

    /// Starts a daemon below a tracer (`words` come before the daemon's own command line). It may
    /// die before it answers.
    pub fn daemon_under(&self, words: &[String]) -> Daemon {
        Daemon::launch_under(self, words, &[])
    }

    /// Starts a daemon that may die before it answers.
    pub fn daemon_unready(&self, variables: &[(&str, &str)]) -> Daemon {
        Daemon::launch(self, variables)
    }

    /// Returns `status --json`.
    pub fn status(&self) -> Value {
        self.muleteer(&["status", "--json"]).json()
    }

    /// Returns the entry of one dispatch in `status --json`.
    pub fn dispatch(&self, id: &str) -> Value {
        let status = self.status();
        let all = status["dispatches"].as_array().cloned().unwrap_or_default();
        all.into_iter()
            .find(|one| one["id"] == id)
            .unwrap_or_else(|| panic!("no dispatch {id} in {status}"))
    }

    /// Waits until the dispatch is in one of `states`, and returns its entry.
    pub fn wait_for_state(&self, id: &str, states: &[&str]) -> Value {
        wait_until(&format!("{id} to be {states:?}"), PATIENCE, || {
            let entry = self.dispatch(id);
            let state = entry["state"].as_str()?.to_string();
            states.contains(&state.as_str()).then_some(entry)
        })
    }

    /// Waits until the dispatch has ended, and returns its entry.
    pub fn wait_for_end(&self, id: &str) -> Value {
        self.wait_for_state(id, &["success", "partial", "failed", "blocked", "killed", "stalled"])
    }

    /// Returns the events as they are on disk.
    pub fn events(&self) -> Vec<Value> {
        events::read(&self.state().join("events.jsonl"))
    }

    /// Returns the events of one dispatch with one name.
    pub fn events_of(&self, id: &str, name: &str) -> Vec<Value> {
        let of = |event: &Value| event["dispatch_id"] == id && event["event"] == name;
        self.events().into_iter().filter(of).collect()
    }

    pub fn processes(&self) -> Vec<processes::Process> {
        processes::of_world(self.path())
    }

    pub fn kill_9(&self, pid: u32) {
        processes::kill_9(self.path(), pid);
    }

    pub fn signal(&self, pid: u32, signal: rustix::process::Signal) {
        processes::signal(self.path(), pid, signal);
    }

    /// Waits until no process of the world is alive except those that this test started (its
    /// daemons, in `except`, each with its zygote).
    pub fn wait_for_nothing_left(&self, except: &[u32]) {
        let mut left = vec![];
        let start = std::time::Instant::now();
        while start.elapsed() < PATIENCE {
            left = self.processes();
            left.retain(|one| {
                !(except.contains(&one.pid) || one.is_zygote() && except.contains(&one.parent))
            });
            if left.is_empty() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let list: Vec<_> = left
            .iter()
            .map(|process| format!("{process}{}", processes::at_what(process.pid)))
            .collect();
        let log = std::fs::read_to_string(self.state().join("logs/daemon.log")).unwrap_or_default();
        panic!(
            "still alive after {PATIENCE:?}:\n{}\n--- the log of daemons started on demand\n{log}",
            list.join("\n")
        );
    }

    /// Ends a test that succeeded: stops the daemon with its agents, and checks that no process of
    /// the world is alive and that its events are whole.
    pub fn finish(self, daemon: Option<Daemon>) {
        self.expect_clean_end(daemon);
    }

    /// Does the same as [`World::finish`] for a test that still needs the world's files.
    pub fn expect_clean_end(&self, daemon: Option<Daemon>) {
        self.muleteer(&["daemon", "stop", "--agents", "stop"]).run();
        if let Some(mut daemon) = daemon {
            daemon.ended();
        }
        self.wait_for_nothing_left(&[]);
        events::check(&self.state().join("events.jsonl"));
    }

    /// Sets the variables that every program of the world gets, and no others.
    pub fn environment(&self, command: &mut Command) {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut search = std::ffi::OsString::from(self.bin());
        search.push(":");
        search.push(path);
        command.env_clear().env("PATH", search).env("LANG", "C.UTF-8").env("HOME", self.home());
        command.env("TMPDIR", self.path().join("tmp")).env("GIT_CONFIG_NOSYSTEM", "1");
        for (name, dir) in [
            ("STATE_HOME", "state"),
            ("CONFIG_HOME", "config"),
            ("CACHE_HOME", "cache"),
            ("RUNTIME_DIR", "run"),
        ] {
            command.env(format!("XDG_{name}"), self.path().join(dir));
        }
        // Any test can be run with a log in many segments.
        if let Some(bytes) = std::env::var_os(SEGMENT_VAR) {
            command.env(SEGMENT_VAR, bytes);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.path().join("daemon.log")).unwrap_or_default();
            let events =
                std::fs::read_to_string(self.state().join("events.jsonl")).unwrap_or_default();
            eprintln!(
                "--- the daemon's log\n{}\n--- the last events\n{}",
                last(&log, 15),
                last(&events, 15)
            );
        }
        let left = processes::end_all(self.path());
        if !left.is_empty() && !std::thread::panicking() {
            let list: Vec<_> = left.iter().map(ToString::to_string).collect();
            panic!("could not end:\n{}", list.join("\n"));
        }
    }
}

fn last(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    let cut = |line: &&str| line.chars().take(300).collect::<String>();
    all[all.len().saturating_sub(lines)..].iter().map(cut).collect::<Vec<_>>().join("\n")
}

/// Builds the binaries once per test binary; other tests do not retry a failed build.
fn binaries() -> &'static PathBuf {
    static BINARIES: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built =
        BINARIES.get_or_init(|| xtask::binaries::ensure().map_err(|failure| failure.to_string()));
    built.as_ref().unwrap_or_else(|failure| panic!("no binaries: {failure}"))
}

/// Returns the files with the output of an agent, oldest first.
pub fn segments(agent_dir: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(agent_dir).into_iter().flatten().flatten();
    let mut found: Vec<_> = files.map(|entry| entry.path()).collect();
    found.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
    found.sort();
    found
}
