//! A test user with separate directories and nothing installed.

// Each test that includes this file uses only a part of it.
#![allow(dead_code)]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

pub struct User {
    dir: TempDir,
}

/// The output of a finished command.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Said {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("no JSON document ({error}): {self:?}"))
    }

    pub fn lines(&self) -> Vec<Value> {
        self.stdout
            .lines()
            .map(|line| {
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
            })
            .collect()
    }
}

impl User {
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("mul").tempdir().expect("dir");
        for name in ["run", "project"] {
            std::fs::create_dir(dir.path().join(name)).expect("dir");
        }
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn project(&self) -> PathBuf {
        self.path("project")
    }

    pub fn state(&self) -> PathBuf {
        self.path(".local/state/muleteer")
    }

    /// Returns the command `muleteer` with these arguments, in the project.
    pub fn command(&self, args: &[&str]) -> Command {
        // A test starts its own program; `process` starts agents.
        #[allow(clippy::disallowed_methods)]
        let mut command = Command::new(env!("CARGO_BIN_EXE_muleteer"));
        command
            .args(args)
            .env_clear()
            .env("HOME", self.dir.path())
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("TZ", "UTC")
            .current_dir(self.project())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub fn run(&self, args: &[&str]) -> Said {
        said(self.command(args).output().expect("run"))
    }

    /// Replaces the names that differ from one run to the next.
    pub fn plain(&self, text: &str) -> String {
        let real = self.dir.path().canonicalize().expect("real");
        let [real, given] =
            [real.as_path(), self.dir.path()].map(|path| path.to_str().expect("utf-8").to_string());
        let text = text.replace(&real, "~").replace(&given, "~");
        // The name of the socket's directory is a hash of the state directory's path.
        let mut parts = text.split("~/run/muleteer/");
        let first = parts.next().unwrap_or_default().to_string();
        parts.fold(first, |text, rest| format!("{text}~/run/muleteer/HASH{}", &rest[8..]))
    }

    pub fn write(&self, path: impl AsRef<Path>, text: &str) {
        let path = self.dir.path().join(path);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("dir");
        std::fs::write(path, text).expect("write");
    }
}

impl Drop for User {
    /// Stops the daemon, so that none outlives its test.
    fn drop(&mut self) {
        if self.state().exists() {
            self.run(&["daemon", "stop", "--agents", "stop", "-q"]);
        }
    }
}

pub fn said(output: Output) -> Said {
    let text = |bytes| String::from_utf8(bytes).expect("utf-8");
    Said {
        code: output.status.code().unwrap_or(-1),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}
