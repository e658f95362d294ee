//! Gives `muleteer --version` the commit and its date. Nothing else depends on them: client and
//! daemon negotiate protocol versions.
//!
//! A release build reruns this script when `HEAD` moves. A development build does not, so that a
//! commit recompiles nothing; its version text says that the sources may be newer. Packagers set
//! `MULETEER_BUILD_COMMIT`, and `SOURCE_DATE_EPOCH` for the date. Without a repository or without
//! the `git` program the build succeeds with a shorter version text.

// A build script cannot use the product's own way of starting programs.
#![allow(clippy::disallowed_methods)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for name in ["MULETEER_BUILD_COMMIT", "SOURCE_DATE_EPOCH"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let given =
        std::env::var("MULETEER_BUILD_COMMIT").ok().filter(|commit| !commit.trim().is_empty());
    let repository = if given.is_none() { Repository::find() } else { None };
    if let Some(repository) = repository.as_ref().filter(|_| is_release) {
        for file in repository.files() {
            println!("cargo::rerun-if-changed={}", file.display());
        }
    }
    let commit = given.or_else(|| repository.as_ref().and_then(Repository::commit));
    let epoch =
        std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.trim().parse().ok()).map(day);
    let date =
        epoch.or_else(|| repository.as_ref().and_then(Repository::date)).unwrap_or_else(|| {
            day(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
        });
    let commit = commit.map_or("unknown commit".into(), |commit| {
        commit.trim().chars().take(12).collect::<String>()
    });
    let note = if is_release { "" } else { ", development build: may be newer" };
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo::rustc-env=VERSION_WITH_COMMIT={version} ({commit} {date}{note})");
}

struct Repository {
    /// The Git directory of this work tree; it contains `HEAD`.
    own: PathBuf,
    /// The Git directory that all work trees share; it contains the branches.
    shared: PathBuf,
}

impl Repository {
    /// Returns the repository whose root contains this workspace. A repository further up is
    /// ignored: a package that was unpacked inside another repository does not belong to its
    /// commit.
    fn find() -> Option<Self> {
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR")?;
        let dot_git = Path::new(&manifest).ancestors().nth(2)?.join(".git");
        let own = match std::fs::read_to_string(&dot_git) {
            // A linked work tree or a submodule has a `.git` file that names the directory.
            Ok(text) => dot_git.parent()?.join(text.strip_prefix("gitdir:")?.trim()),
            Err(_) => dot_git,
        };
        let shared = std::fs::read_to_string(own.join("commondir"));
        let shared = shared.map_or_else(|_| own.clone(), |path| own.join(path.trim()));
        own.join("HEAD").is_file().then_some(Self { own, shared })
    }

    fn head(&self) -> Option<String> {
        Some(std::fs::read_to_string(self.own.join("HEAD")).ok()?.trim().to_string())
    }

    /// The checked-out branch, for example `refs/heads/main`.
    fn branch(&self) -> Option<String> {
        Some(self.head()?.strip_prefix("ref:")?.trim().to_string())
    }

    fn commit(&self) -> Option<String> {
        let Some(branch) = self.branch() else { return self.head().filter(|head| is_id(head)) };
        let loose =
            std::fs::read_to_string(self.shared.join(&branch)).map(|text| text.trim().to_string());
        let packed = || {
            let text = std::fs::read_to_string(self.shared.join("packed-refs")).ok()?;
            let ids = text.lines().filter_map(|line| line.split_once(' '));
            ids.into_iter().find(|(_, name)| *name == branch).map(|(id, _)| id.to_string())
        };
        loose.ok().or_else(packed).filter(|id| is_id(id))
    }

    /// The date of the commit, if `git` can be run.
    fn date(&self) -> Option<String> {
        let mut git = Command::new("git");
        git.arg("--git-dir").arg(&self.own).args(["show", "--no-patch", "--format=%cs", "HEAD"]);
        let output = git.output().ok().filter(|output| output.status.success())?;
        let text = String::from_utf8(output.stdout).ok()?.trim().to_string();
        let is_day =
            text.len() == 10 && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        is_day.then_some(text)
    }

    /// The files that change when the commit changes. A missing file would make Cargo rerun the
    /// script on every build, so only existing ones are listed. The log of `HEAD` is listed too,
    /// because a branch may have no file of its own yet.
    fn files(&self) -> Vec<PathBuf> {
        let branch = self.branch().map(|branch| self.shared.join(branch));
        let (head, packed) = (self.own.join("HEAD"), self.shared.join("packed-refs"));
        let files = [Some(head), Some(self.own.join("logs/HEAD")), branch, Some(packed)];
        files.into_iter().flatten().filter(|file| file.is_file()).collect()
    }
}

fn is_id(text: &str) -> bool {
    text.len() >= 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Converts seconds since 1970 to a UTC date (Howard Hinnant's `civil_from_days`).
fn day(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let (day, month) = (
        of_year - (153 * shifted + 2) / 5 + 1,
        if shifted < 10 { shifted + 3 } else { shifted - 9 },
    );
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}
