//! Detects an agent that works on something else.
//!
//! The monitor compares edits with the agent's scope (globs as in permission rules, relative to its
//! directory), or with its directory if it has no scope. Files that accompany any change (lock
//! files, manifests, tests, documentation) count little. Temporary files do not count, and reading
//! is never drift.

use crate::agent::permission;
use crate::monitor::Action;
use std::collections::{BTreeSet, VecDeque};

/// Edits in the window.
const WINDOW: usize = 10;
/// The most outside files that are remembered.
const MOST: usize = 200;
/// Files that agents write for themselves or for Muleteer: journals, plans, memories.
const OWN: [&str; 4] = ["/.agents/journals/", "/.claude/plans/", "/.claude/projects/", "/.codex/"];
const TEMPORARY: [&str; 5] = ["/tmp/", "/var/tmp/", "/var/folders/", "/private/", "/dev/"];
/// Files that accompany a change anywhere.
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
    /// The newest edits; `true` is an edit outside.
    edits: VecDeque<bool>,
}

impl Drift {
    pub fn new(scope: &[String]) -> Self {
        Self { scope: scope.to_vec(), ..Self::default() }
    }

    /// Sets the directory of relative paths. Later calls have no effect.
    pub fn at(&mut self, cwd: &str) {
        if self.cwd.is_empty() {
            self.cwd = cwd.trim_end_matches('/').to_string();
        }
    }

    /// Records an edited file.
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
        // An edit outside the directory counts more than one outside the scope.
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
                "{lately} of the last {} edits were outside of {of}, like {path}",
                self.edits.len()
            ),
        ))
    }

    pub fn begin_anew(&mut self) {
        self.edits.clear();
        self.outside.clear();
        self.companions.clear();
    }

    /// Returns `None` if no glob can be evaluated for this path.
    fn is_inside(&self, path: &str) -> Option<bool> {
        if self.scope.is_empty() {
            return permission::path("**", path, &self.cwd);
        }
        let mut told = self.scope.iter().filter_map(|glob| permission::path(glob, path, &self.cwd));
        let first = told.next()?;
        Some(first || told.any(|inside| inside))
    }

    /// Returns an absolute path relative to the agent's directory, or `None` if it is outside.
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
