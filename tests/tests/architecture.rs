//! What the design says about the shape of the code: which crate may know which, and what the top
//! level holds.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Who may depend on whom (design.md, "The crates"): arrows point only to the right in
/// `muleteer → adapters, supervisor → backends, store, shim → process → model, protocol`, and the
/// exceptions are stricter.
const LAYERS: &[&[&str]] = &[
    &["muleteer"],
    &["muleteer-adapters", "muleteer-supervisor"],
    &["muleteer-backends", "muleteer-store", "muleteer-shim"],
    &["muleteer-process"],
    &["muleteer-model", "muleteer-protocol"],
];

/// What a crate must not reach, even though it stands to the right.
const NEVER: &[(&str, &str)] = &[
    ("muleteer-adapters", "muleteer-backends"),
    ("muleteer-adapters", "muleteer-store"),
    ("muleteer-adapters", "muleteer-shim"),
    ("muleteer-adapters", "muleteer-process"),
    ("muleteer-adapters", "muleteer-supervisor"),
    ("muleteer-shim", "muleteer-store"),
    ("muleteer-shim", "muleteer-backends"),
    ("muleteer-shim", "tokio"),
    ("muleteer-backends", "muleteer-process"),
    ("muleteer-backends", "tokio"),
    ("muleteer-protocol", "muleteer-model"),
    ("muleteer-model", "tokio"),
    ("muleteer-model", "rustix"),
    ("muleteer-model", "libc"),
];

/// The normal (not dev, not build) dependencies of each workspace crate.
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let output = xtask::workspace::cargo()
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let name = |value: &Value| value["name"].as_str().unwrap().to_string();
    let list = |package: &Value| {
        let all = package["dependencies"].as_array().unwrap();
        all.iter().filter(|one| one["kind"].is_null()).map(name).collect()
    };
    metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|package| (name(package), list(package)))
        .collect()
}

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&name))
}

#[test]
fn dependencies_point_to_the_right() {
    let all = dependencies();
    for (name, layer_of_name) in all.keys().filter_map(|name| Some((name, layer(name)?))) {
        for other in &all[name] {
            if let Some(layer_of_other) = layer(other) {
                assert!(layer_of_name < layer_of_other, "{name} must not depend on {other}");
            }
        }
    }
    for (name, other) in NEVER {
        assert!(!all[*name].iter().any(|dependency| dependency == other), "{name} must not depend on {other}");
    }
    for (name, of) in &all {
        let knows_ractor = of.iter().any(|dependency| dependency == "ractor");
        assert!(!knows_ractor || name == "muleteer-supervisor", "{name} knows ractor");
    }
}

#[test]
fn every_crate_has_its_place() {
    let all = dependencies();
    let tools = ["xtask", "muleteer-tests", "muleteer-fuzz"];
    for name in all.keys() {
        assert!(layer(name).is_some() || tools.contains(&name.as_str()), "{name} stands in no layer");
    }
}

#[test]
fn the_top_level_holds_what_the_issue_names() {
    let allowed = [
        "Cargo.toml",
        "Cargo.lock",
        "crates",
        "deploy",
        "roles",
        "config",
        "tests",
        "docs",
        "README.md",
        "CHANGELOG.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
    ];
    let output = std::process::Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(xtask::workspace::root())
        .output()
        .unwrap();
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    for file in listed.lines() {
        let top = file.split('/').next().unwrap();
        assert!(top.starts_with('.') || allowed.contains(&top), "`{top}` does not belong on the top level");
    }
}

/// Nobody finds a document that the index leaves out.
#[test]
fn every_document_is_in_the_index() {
    let docs = xtask::workspace::root().join("docs");
    let index = std::fs::read_to_string(docs.join("README.md")).unwrap();
    let names = std::fs::read_dir(&docs)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let left_out: BTreeSet<_> = names
        .filter(|name| name != "README.md" && !index.contains(&format!("]({name})")))
        .collect();
    assert!(left_out.is_empty(), "docs/README.md does not name {left_out:?}");
}

/// An error code that the table of exit codes does not know exits as "failed", whatever it means.
#[test]
fn every_error_code_of_the_sources_has_its_exit_code() {
    let crates = xtask::workspace::root().join("crates");
    let table = std::fs::read_to_string(crates.join("muleteer/src/exit.rs")).unwrap();
    let mut missing = BTreeSet::new();
    for file in rust_files(&crates) {
        let text = std::fs::read_to_string(&file).unwrap();
        for (at, _) in text.match_indices("\"E_") {
            let code: String = text[at + 1..]
                .chars()
                .take_while(|char| char.is_ascii_uppercase() || *char == '_')
                .collect();
            let closed = text[at + 1 + code.len()..].starts_with('"');
            if closed && code.len() > 2 && !table.contains(&format!("\"{code}\"")) {
                missing.insert(format!("{code} ({})", file.strip_prefix(&crates).unwrap().display()));
            }
        }
    }
    assert!(missing.is_empty(), "without an exit code: {missing:#?}");
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}
