//! One test's world: directories, variables and processes of its own.

use crate::{Daemon, Muleteer, PATIENCE, Repo, events, processes, wait_until};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Dropping it ends every process that belongs to it and removes its files.
#[derive(Debug)]
pub struct World {
    root: tempfile::TempDir,
}

impl World {
    #[allow(clippy::new_without_default)] // it makes directories: a surprise for a `default()`
    pub fn new() -> Self {
        // Short, because socket paths are limited to 107 bytes.
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

    /// `$XDG_STATE_HOME/muleteer`.
    pub fn state(&self) -> PathBuf {
        self.path().join("state/muleteer")
    }

    /// `$XDG_RUNTIME_DIR`.
    pub fn runtime(&self) -> PathBuf {
        self.path().join("run")
    }

    /// A folder at the front of every `PATH`, for fake or linked programs.
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

    /// The same, read by a program of the shell's: over when both are.
    pub fn muleteer_into(&self, args: &[&str], reader: &str) -> Muleteer {
        let (program, script) = (binaries().join("muleteer"), format!("\"$0\" \"$@\" | {reader}"));
        let words = ["-c", script.as_str(), program.to_str().expect("a build's paths are UTF-8")];
        Muleteer::new(self, std::path::Path::new("sh"), &[&words, args].concat())
    }

    /// The same as the program that `words` start; by itself where there are none.
    pub(crate) fn under(&self, words: &[String], args: &[&str]) -> Muleteer {
        let program = self.program();
        let Some((tool, rest)) = words.split_first() else { return self.muleteer(args) };
        let program = program.to_str().expect("a build's paths are UTF-8");
        let words: Vec<&str> =
            rest.iter().map(String::as_str).chain([program]).chain(args.iter().copied()).collect();
        Muleteer::new(self, std::path::Path::new(tool), &words)
    }

    /// The `muleteer` under test.
    ///
    /// # Panics
    /// When it does not build.
    pub fn program(&self) -> PathBuf {
        binaries().join("muleteer")
    }

    /// A spawn of a `subprocess` agent in `repo`, running `script` under `sh -c`.
    pub fn spawn(&self, repo: &Repo, script: &str, more: &[&str]) -> Muleteer {
        let mut args = vec!["spawn", "developer", repo.to_str(), "do it"];
        args.extend(["--backend", "subprocess", "--command", script]);
        args.extend(more);
        self.muleteer(&args)
    }

    /// A daemon that answers.
    pub fn daemon(&self) -> Daemon {
        self.daemon_with(&[])
    }

    /// A daemon that answers, started with these variables too.
    pub fn daemon_with(&self, variables: &[(&str, &str)]) -> Daemon {
        Daemon::launch(self, variables).ready(self)
    }

    /// A daemon that a tracer starts (`words` come before its own command line), and that may die
    /// before it answers.
    pub fn daemon_under(&self, words: &[String]) -> Daemon {
        Daemon::launch_under(self, words, &[])
    }

    /// A daemon that may die before it answers.
    pub fn daemon_unready(&self, variables: &[(&str, &str)]) -> Daemon {
        Daemon::launch(self, variables)
    }

    /// `status --json`.
    pub fn status(&self) -> Value {
        self.muleteer(&["status", "--json"]).json()
    }

    /// The entry of one dispatch in `status --json`.
    pub fn dispatch(&self, id: &str) -> Value {
        let status = self.status();
        let all = status["dispatches"].as_array().cloned().unwrap_or_default();
        all.into_iter()
            .find(|one| one["id"] == id)
            .unwrap_or_else(|| panic!("no dispatch {id} in {status}"))
    }

    /// Waits until the dispatch is in one of `states`, and gives its entry.
    pub fn wait_for_state(&self, id: &str, states: &[&str]) -> Value {
        wait_until(&format!("{id} to be {states:?}"), PATIENCE, || {
            let entry = self.dispatch(id);
            let state = entry["state"].as_str()?.to_string();
            states.contains(&state.as_str()).then_some(entry)
        })
    }

    /// Waits until the dispatch has ended, and gives its entry.
    pub fn wait_for_end(&self, id: &str) -> Value {
        self.wait_for_state(id, &["success", "partial", "failed", "blocked", "killed", "stalled"])
    }

    /// The events as they stand on disk.
    pub fn events(&self) -> Vec<Value> {
        events::read(&self.state().join("events.jsonl"))
    }

    /// The events of one dispatch and one name.
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

    /// Waits until nothing of the world is alive but what descends from this test on purpose (its
    /// daemons, by `except`, each with its zygote).
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

    /// The end of a test that went well: the daemon is asked to stop with its agents, and then
    /// nothing of the world may be alive, and its events must be whole.
    pub fn finish(self, daemon: Option<Daemon>) {
        self.expect_clean_end(daemon);
    }

    /// [`World::finish`] for a test that still needs the world's files.
    pub fn expect_clean_end(&self, daemon: Option<Daemon>) {
        self.muleteer(&["daemon", "stop", "--agents", "stop"]).run();
        if let Some(mut daemon) = daemon {
            daemon.ended();
        }
        self.wait_for_nothing_left(&[]);
        events::check(&self.state().join("events.jsonl"));
    }

    /// The variables every program of the world gets, and no others.
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

/// Built once per test binary; a build that fails is not tried again by every test.
fn binaries() -> &'static PathBuf {
    static BINARIES: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built =
        BINARIES.get_or_init(|| xtask::binaries::ensure().map_err(|failure| failure.to_string()));
    built.as_ref().unwrap_or_else(|failure| panic!("no binaries: {failure}"))
}
