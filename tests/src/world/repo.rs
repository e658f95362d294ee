//! A git repository of a test.

use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug, Clone)]
pub struct Repo {
    pub path: PathBuf,
    home: PathBuf,
}

impl Repo {
    /// Creates a repository with one commit, which has `README.md`.
    pub(crate) fn create(path: PathBuf, home: &Path) -> Self {
        std::fs::create_dir_all(&path).expect("the repository's directory");
        let repo = Self { path, home: home.into() };
        repo.git(&["init", "--quiet", "--initial-branch=main"]);
        repo.write("README.md", "a repository for tests\n");
        repo.git(&["add", "."]);
        repo.git(&["commit", "--quiet", "--message=start"]);
        repo
    }

    /// Runs git and returns its trimmed stdout.
    ///
    /// # Panics
    /// When git fails.
    pub fn git(&self, args: &[&str]) -> String {
        let output = Command::new("git")
            .args(args)
            .current_dir(&self.path)
            .env("HOME", &self.home)
            .env_remove("GIT_DIR")
            .env_remove("GIT_WORK_TREE")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()
            .expect("git runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "git {args:?} in {}: {stderr}", self.path.display());
        String::from_utf8_lossy(&output.stdout).trim().to_string()
    }

    /// Returns how often git waited for the disk, in all commands of these names. `trace` is the
    /// file that `GIT_TRACE2_EVENT` named.
    ///
    /// # Panics
    /// When the trace cannot be read.
    pub fn syncs(trace: &Path, commands: &[&str]) -> u64 {
        let text = std::fs::read_to_string(trace).expect("git was traced");
        let events: Vec<serde_json::Value> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let named = |event: &&serde_json::Value| {
            let words =
                event["argv"].as_array().into_iter().flatten().filter_map(|word| word.as_str());
            event["event"] == "start" && words.take(80).any(|word| commands.contains(&word))
        };
        let ids: Vec<_> = events.iter().filter(named).map(|event| &event["sid"]).collect();
        events
            .iter()
            .filter(|event| event["category"] == "fsync" && ids.contains(&&event["sid"]))
            // The trace has a value up to git 2.45, and a counter since.
            .filter_map(|event| match event["key"].as_str() {
                Some("fsync/hardware-flush") => event["value"].as_str()?.parse().ok(),
                _ => event["count"].as_u64().filter(|_| event["name"] == "hardware-flush"),
            })
            .sum::<u64>()
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path.join(name), text).expect("a file of the repository");
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path.join(name)).unwrap_or_default()
    }

    /// Returns the lines of a file to which an agent appends one line for each effect.
    pub fn effects(&self, name: &str) -> Vec<String> {
        self.read(name).lines().map(str::to_string).collect()
    }

    pub fn to_str(&self) -> &str {
        self.path.to_str().expect("a test's paths are UTF-8")
    }
}
