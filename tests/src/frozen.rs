//! Compares facts, one a line, with a file that was checked in before a change.
//!
//! A line that is gone or changed breaks the promise to users. `UPDATE_FROZEN=1` rewrites the
//! files. `crates/muleteer/tests/frozen.rs` includes this file too, so it uses nothing but the
//! standard library.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Returns the path of a file in `tests/frozen`.
pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|folder| folder.join("tests/frozen"))
        .find(|folder| folder.is_dir())
        .expect("tests/frozen of the workspace")
        .join(name)
}

/// Returns whether the files are to be rewritten.
pub fn is_update() -> bool {
    std::env::var_os("UPDATE_FROZEN").is_some()
}

/// Returns the lines of a frozen file; none if the file is missing.
pub fn read(name: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(path(name)).unwrap_or_default();
    text.lines().map(String::from).collect()
}

/// Writes a frozen file, one sorted line for each fact.
pub fn write(name: &str, lines: &BTreeSet<String>) {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(path(name), text).expect("a frozen file can be written");
}

/// Asserts that the lines are exactly those of the frozen file, or rewrites it.
///
/// # Panics
/// When a line is missing or new; the message lists them.
#[track_caller]
pub fn check(name: &str, lines: &BTreeSet<String>) {
    if is_update() {
        write(name, lines);
        return;
    }
    fail_on(name, &differences(&read(name), lines));
}

/// Returns the lines that are gone, then the lines that are new.
pub fn differences(frozen: &BTreeSet<String>, lines: &BTreeSet<String>) -> Vec<String> {
    let gone = frozen.difference(lines).map(|line| format!("- {line}"));
    let new = lines.difference(frozen).map(|line| format!("+ {line}"));
    gone.chain(new).collect()
}

/// Fails when there are differences.
///
/// # Panics
/// When the list is not empty.
#[track_caller]
pub fn fail_on(name: &str, differences: &[String]) {
    assert!(
        differences.is_empty(),
        "the surface differs from tests/frozen/{name}:\n{}\n\
         `-` is a line that is gone or changed. That breaks the promise to users: restore it.\n\
         `+` is a line that is new. Where it only adds to the surface, review it and run the test \
         with UPDATE_FROZEN=1.",
        differences.join("\n")
    );
}
