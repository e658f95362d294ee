//! Does an agent work on something else?
//!
//! Known from where it edits. Inside its scope, where it has one (globs, as in permission rules,
//! relative to its directory), else inside its directory. What is edited along with anything (a
//! lock file, a manifest, a test, a page of the docs) counts for little, a temporary file for
//! nothing, and reading is never drift.

use crate::agent::permission;
use crate::monitor::Action;
use std::collections::{BTreeSet, VecDeque};

/// Edits that are looked back at.
const WINDOW: usize = 10;
/// Files outside that are remembered.
const MOST: usize = 200;
/// What agents keep for themselves, or for us: journals, plans, memories.
const OWN: [&str; 4] = ["/.agents/journals/", "/.claude/plans/", "/.claude/projects/", "/.codex/"];
const TEMPORARY: [&str; 5] = ["/tmp/", "/var/tmp/", "/var/folders/", "/private/", "/dev/"];
/// Along with a change anywhere.
const COMPANIONS: [&str; 22] = [
    "cargo.toml",
    "cargo.lock",
    "package.json",
    "package-lock.json",
    "yarn.lock",
    "pnpm-lock.yaml",
    "go.mod",
    "go.sum",
    "pyproject.toml",
    "poetry.lock",
    "uv.lock",
    "requirements.txt",
    "gemfile",
    "gemfile.lock",
    "changelog.md",
    "readme.md",
    ".gitignore",
    "mod.rs",
    "lib.rs",
    "index.ts",
    "__init__.py",
    "makefile",
];
const COMPANION_PARTS: [&str; 9] =
    ["test", "tests", "__tests__", "spec", "docs", "doc", "fixtures", "snapshots", "journals"];

#[derive(Debug, Default)]
pub struct Drift {
    cwd: String,
    scope: Vec<String>,
    outside: BTreeSet<String>,
    companions: BTreeSet<String>,
    /// Of the newest edits, which were outside.
    edits: VecDeque<bool>,
}

impl Drift {
    pub fn new(scope: &[String]) -> Self {
        Self { scope: scope.to_vec(), ..Self::default() }
    }

    /// Where relative paths begin.
    pub fn at(&mut self, cwd: &str) {
        if self.cwd.is_empty() {
            self.cwd = cwd.trim_end_matches('/').to_string();
        }
    }

    /// A file was edited.
    pub fn edited(&mut self, path: &str) -> Option<(Action, String)> {
        let path = &permission::absolute(path, &self.cwd).filter(|_| !self.cwd.is_empty())?;
        let temporary =
            TEMPORARY.iter().any(|dir| path.starts_with(dir)) && !path.starts_with(&self.cwd);
        if temporary || OWN.iter().any(|dir| path.contains(dir)) {
            return None;
        }
        let inside = self.is_inside(path)?;
        self.edits.push_back(!inside);
        if self.edits.len() > WINDOW {
            self.edits.pop_front();
        }
        if inside {
            return None;
        }
        let is_companion = self.at_home(path).is_some_and(is_companion);
        let known = if is_companion { &mut self.companions } else { &mut self.outside };
        if known.len() < MOST {
            known.insert(path.to_string());
        }
        // A step out of the directory is a longer one than out of the scope.
        let far = self.outside.iter().filter(|path| self.at_home(path).is_none()).count();
        let score = self.outside.len() + far / 2 + self.companions.len() / 4;
        let lately = self.edits.iter().filter(|outside| **outside).count();
        let share = lately as f64 / self.edits.len() as f64;
        let action = if score >= 6 && lately >= 6 && share >= 0.8 {
            Action::Stop
        } else if (score >= 3 || far >= 2) && share >= 0.5 {
            Action::Warn
        } else {
            Action::Note
        };
        let of = if self.scope.is_empty() { self.cwd.clone() } else { self.scope.join(", ") };
        Some((
            action,
            format!(
                "{path} is outside of {of}, as {lately} of the last {} edits",
                self.edits.len()
            ),
        ))
    }

    pub fn begin_anew(&mut self) {
        self.edits.clear();
        self.outside.clear();
        self.companions.clear();
    }

    /// `None` where it cannot be told.
    fn is_inside(&self, path: &str) -> Option<bool> {
        if self.scope.is_empty() {
            return permission::path("**", path, &self.cwd);
        }
        let mut told = self.scope.iter().filter_map(|glob| permission::path(glob, path, &self.cwd));
        let first = told.next()?;
        Some(first || told.any(|inside| inside))
    }

    /// An absolute path as seen from its directory, if it is below that.
    fn at_home<'a>(&self, path: &'a str) -> Option<&'a str> {
        path.strip_prefix(&self.cwd)?.strip_prefix('/')
    }
}

fn is_companion(path: &str) -> bool {
    let lower = path.to_lowercase();
    let name = lower.rsplit('/').next().unwrap_or_default();
    COMPANIONS.contains(&name)
        || lower.split('/').any(|part| COMPANION_PARTS.contains(&part))
        || ["_test.", ".test.", ".spec.", "test_"].iter().any(|part| name.contains(part))
}
