//! Repositories that try to run code when the harness works with them.
//!
//! Each entry point of this crate is called with repositories of several kinds, whose
//! configuration, hooks, attributes, `.git` file, replace refs and addresses name programs. Each
//! program leaves a marker. No marker may appear. A new entry point gets a line in
//! [`entries::ENTRIES`]; one that is missing there fails a test. An entry point that must fail with
//! a kind of repository is in [`entries::REFUSED`]; all others must succeed.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod entries;
mod stage;

use entries::{ENTRIES, NO_GIT, REFUSED};
use stage::{Kind, Stage};
use std::collections::BTreeSet;
use std::path::Path;

#[tokio::test]
async fn repositories_with_settings_that_run_code_run_nothing() {
    call_all(Kind::Settings).await;
}

#[tokio::test]
async fn repositories_with_attributes_that_run_code_run_nothing() {
    call_all(Kind::Attributes).await;
}

#[tokio::test]
async fn repositories_with_addresses_that_run_code_run_nothing() {
    call_all(Kind::Addresses).await;
}

#[tokio::test]
async fn repositories_with_a_git_file_that_leads_elsewhere_run_nothing() {
    call_all(Kind::GitFile).await;
}

/// Calls every entry point with repositories of a kind, and compares its outcome with
/// [`entries::REFUSED`].
async fn call_all(kind: Kind) {
    let mut failed = vec![];
    let stage = Stage::new(kind);
    for entry in ENTRIES.iter().filter(|entry| !entry.may_run(kind)) {
        stage.restore();
        let outcome = (entry.call)(&stage).await;
        let ran = stage.markers();
        if !ran.is_empty() {
            failed.push(format!("{} ran {ran:?}", entry.name));
        }
        // Otherwise an entry point that fails at once would prove nothing.
        match (outcome, entry.refusal(kind)) {
            (Ok(()), None) => {}
            (Err(why), Some(refusal)) if why.to_string().contains(refusal) => {}
            (Ok(()), Some(_)) => failed.push(format!("{} was not refused", entry.name)),
            (Err(why), Some(refusal)) => {
                failed.push(format!("{} failed with `{why}`, not with `{refusal}`", entry.name));
            }
            (Err(why), None) => failed.push(format!("{} failed: {why}", entry.name)),
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// The traps work: an ordinary git springs them.
#[test]
fn ordinary_git_in_such_repositories_runs_the_programs() {
    let stage = Stage::new(Kind::Settings);
    let project = stage.project();
    std::fs::write(project.join("more"), "more\n").unwrap();
    for args in
        [&["status"][..], &["add", "more"], &["commit", "--quiet", "--message=more"], &["diff"]]
    {
        stage.ordinary(&project, args);
    }
    let stage_of_filters = Stage::new(Kind::Attributes);
    std::fs::write(stage_of_filters.project().join("more"), "more\n").unwrap();
    stage_of_filters.ordinary(&stage_of_filters.project(), &["add", "more"]);
    let stage_of_addresses = Stage::new(Kind::Addresses);
    let clone = stage_of_addresses.clone_dir();
    let from = stage_of_addresses.project();
    stage_of_addresses.ordinary(&clone, &["fetch", from.to_str().unwrap()]);
    let mut ran = stage.markers();
    ran.extend(stage_of_filters.markers());
    ran.extend(stage_of_addresses.markers());
    for wanted in ["fsmonitor", "hook", "gpg", "external", "process", "ssh"] {
        assert!(ran.contains(wanted), "the trap `{wanted}` does not work: {ran:?}");
    }
}

#[test]
fn every_entry_point_of_the_crate_is_in_the_table() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let named: BTreeSet<&str> =
        ENTRIES.iter().map(|entry| entry.name).chain(NO_GIT.iter().copied()).collect();
    let there: BTreeSet<String> = public_functions(&src, "");
    let missing: Vec<_> = there.iter().filter(|name| !named.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "add these to ENTRIES, or to NO_GIT: {missing:#?}");
    let refused = REFUSED.iter().flat_map(|(_, _, names)| names.iter());
    let unknown: Vec<_> = refused.filter(|name| !named.contains(**name)).collect();
    assert!(unknown.is_empty(), "REFUSED names these, which are in no table: {unknown:#?}");
    let gone: Vec<_> = named.iter().filter(|name| !there.contains(**name)).collect();
    assert!(gone.is_empty(), "these are not there any more: {gone:#?}");
}

/// Returns the public functions below a folder, as `module::function`. Modules that only this crate
/// sees, and those that read files without git, are left out.
fn public_functions(folder: &Path, module: &str) -> BTreeSet<String> {
    const INTERNAL: [&str; 4] = ["private_repo", "index", "leftover", "lfs"];
    const FILES_ALONE: [&str; 4] = ["git_files", "git_repair", "reflog", "untrusted_path"];
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let left_out = INTERNAL.iter().chain(&FILES_ALONE).any(|module| name == *module);
        if left_out || name.contains("tests") {
            continue;
        }
        let module = match (name.as_str(), module) {
            ("mod" | "lib", module) => module.to_string(),
            // The parts of these modules are exported by the module itself.
            (_, "user_repo" | "worktree" | "command" | "clones") => module.to_string(),
            (name, _) => name.to_string(),
        };
        if path.is_dir() {
            found.extend(public_functions(&path, &module));
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for line in text.lines().map(str::trim_start) {
            let rest = line.strip_prefix("pub fn ").or(line.strip_prefix("pub async fn "));
            if let Some(name) = rest.and_then(|rest| rest.split(['(', '<']).next()) {
                found.insert(format!("{module}::{name}"));
            }
        }
    }
    found
}
