//! The shape of the code by the design: the allowed dependencies between crates, and the entries of
//! the top level.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use xtask::module_graph::ModuleGraph;

/// The allowed dependencies (docs/architecture.md, "The crates"). Arrows point only to the right in
/// `muleteer → supervisor → vcs, rehearsal → backends, store, shim → process, telemetry → model →
/// protocol`; the list below is stricter.
const LAYERS: &[&[&str]] = &[
    &["muleteer"],
    &["muleteer-supervisor"],
    &["muleteer-vcs", "muleteer-rehearsal"],
    &["muleteer-backends", "muleteer-store", "muleteer-shim"],
    &["muleteer-process", "muleteer-telemetry"],
    &["muleteer-model"],
    &["muleteer-protocol"],
];

/// Dependencies that are forbidden although they point to the right.
const NEVER: &[(&str, &str)] = &[
    ("muleteer-vcs", "muleteer-backends"),
    ("muleteer-vcs", "muleteer-shim"),
    ("muleteer-vcs", "muleteer-protocol"),
    ("muleteer-shim", "muleteer-store"),
    ("muleteer-shim", "muleteer-backends"),
    ("muleteer-shim", "tokio"),
    ("muleteer-backends", "muleteer-process"),
    ("muleteer-backends", "tokio"),
    ("muleteer-rehearsal", "tokio"),
    ("muleteer-rehearsal", "muleteer-store"),
    ("muleteer-rehearsal", "muleteer-shim"),
    ("muleteer-model", "tokio"),
    ("muleteer-model", "rustix"),
    ("muleteer-model", "libc"),
];

/// Returns the normal (not dev, not build) dependencies of each workspace crate.
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
        assert!(
            !all[*name].iter().any(|dependency| dependency == other),
            "{name} must not depend on {other}"
        );
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
        assert!(
            layer(name).is_some() || tools.contains(&name.as_str()),
            "{name} stands in no layer"
        );
    }
}

/// The size of an import cycle up to which a person can still read its modules together.
const LARGEST_CYCLE: usize = 8;

#[test]
fn modules_form_no_large_import_cycle() {
    let mut found = vec![];
    for folder in std::fs::read_dir(xtask::workspace::root().join("crates")).unwrap() {
        let folder = folder.unwrap().path();
        let name = folder.file_name().unwrap().to_str().unwrap();
        for root in ["src/lib.rs", "src/main.rs"].map(|root| folder.join(root)) {
            if !root.exists() {
                continue;
            }
            let graph = ModuleGraph::read(&root).unwrap();
            for cycle in graph.cycles().iter().filter(|cycle| cycle.len() > LARGEST_CYCLE) {
                let names: Vec<_> = cycle.iter().map(|module| module.to_string()).collect();
                found.push(format!("{name}: {} modules: {}", names.len(), names.join(" ")));
            }
        }
    }
    assert!(found.is_empty(), "import cycles that are too large: {found:#?}");
}

/// Adapters and other callers will use these modules without the sockets of the gate.
#[test]
fn modules_below_the_gate_do_not_import_it() {
    let root = xtask::workspace::root().join("crates/supervisor/src/lib.rs");
    let below = ["agent", "daemon", "dispatch", "ledger", "ports", "spec_run", "task_list"];
    let graph = ModuleGraph::read(&root).unwrap();
    let wrong: Vec<_> = graph
        .imports()
        .filter(|(from, to)| {
            let is_upward = below.contains(&from.top()) && to.top() == "gate";
            is_upward || (from.top() == "ports" && to.top() != "ports")
        })
        .map(|(from, to)| format!("{from} imports {to}"))
        .collect();
    assert!(wrong.is_empty(), "these send by crate::ports, or call crate::dispatch: {wrong:#?}");
}

/// A verb is a client: it reaches an actor through the daemon's socket only, so that a closed
/// terminal stops no work. The verb `daemon` starts the tree as a whole.
#[test]
fn verbs_import_no_actor() {
    let crates = xtask::workspace::root().join("crates");
    let supervisor = crates.join("supervisor/src");
    let modules: BTreeMap<String, bool> = rust_files(&supervisor)
        .iter()
        .map(|file| {
            let path = file.strip_prefix(&supervisor).unwrap().with_extension("");
            let names: Vec<_> = path.iter().map(|name| name.to_str().unwrap()).collect();
            let names: Vec<_> = names.into_iter().filter(|name| *name != "mod").collect();
            (names.join("::"), read(file).contains("impl Actor for"))
        })
        .collect();
    let is_actor = |path: &[String]| {
        let mut longest_first = (1..=path.len()).rev().map(|length| path[..length].join("::"));
        longest_first.find_map(|name| modules.get(&name).copied()).unwrap_or_default()
    };
    assert!(is_actor(&["ledger".into(), "Ledger".into()]), "the ledger is an actor");
    let graph = ModuleGraph::read(&crates.join("muleteer/src/lib.rs")).unwrap();
    let wrong: Vec<_> = graph
        .paths_into("muleteer_supervisor")
        .filter(|(from, path)| from.top() == "verbs" && is_actor(path))
        .map(|(from, path)| format!("{from} names {}", path.join("::")))
        .collect();
    assert!(wrong.is_empty(), "ask the daemon instead: {wrong:#?}");
}

/// git runs programs that a repository names, unless its command is hardened as `vcs` does it.
#[test]
fn no_crate_but_vcs_runs_git() {
    // `model` starts no process. A build script runs before `vcs` is there. `doctor` asks the git
    // on PATH for its version, and for the identity of the user.
    let allowed = [
        "crates/vcs/",
        "crates/xtask/",
        "crates/model/",
        "crates/muleteer/build.rs",
        "crates/muleteer/src/doctor/mod.rs",
    ];
    let root = xtask::workspace::root();
    let mut found = vec![];
    for file in rust_files(&root.join("crates")) {
        let name = file.strip_prefix(&root).unwrap().display().to_string();
        let is_test = name.contains("/tests/") || name.ends_with("/tests.rs");
        if is_test || allowed.iter().any(|place| name.starts_with(place)) {
            continue;
        }
        let text = read(&file);
        let product = text.split("\nmod tests {").next().unwrap_or_default();
        let lines = product.lines().filter(|line| !line.trim_start().starts_with("//"));
        found.extend(
            lines
                .filter(|line| line.contains("\"git\"") || line.contains("/git\""))
                .map(|line| format!("{name}: {}", line.trim())),
        );
    }
    assert!(found.is_empty(), "add a function to `vcs` instead: {found:#?}");
}

#[test]
fn top_level_has_only_the_expected_entries() {
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
        "CONTRIBUTING.md",
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
        assert!(
            top.starts_with('.') || allowed.contains(&top),
            "`{top}` does not belong on the top level"
        );
    }
}

/// A reader does not find a document that the index leaves out.
#[test]
fn every_document_is_in_the_index() {
    let docs = xtask::workspace::root().join("docs");
    let index = std::fs::read_to_string(docs.join("README.md")).unwrap();
    let left_out: BTreeSet<_> = files_of(&docs, "md")
        .iter()
        .map(|page| page.strip_prefix(&docs).unwrap().display().to_string())
        .filter(|name| name != "README.md" && !index.contains(&format!("]({name})")))
        .collect();
    assert!(left_out.is_empty(), "docs/README.md does not name {left_out:?}");
}

/// A link that leads nowhere costs a reader more than no link.
#[test]
fn documentation_links_lead_to_files_and_headings() {
    let mut broken = vec![];
    for page in pages() {
        let text = prose(&read(&page));
        for link in
            text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link)
        {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            let found =
                target.exists() && (anchor.is_empty() || anchors(&read(&target)).contains(anchor));
            if !found {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere: {broken:#?}");
}

/// A person reads the map as a whole, and a folder as a list, so both stay small.
#[test]
fn architecture_page_and_folders_of_pages_stay_small() {
    let docs = xtask::workspace::root().join("docs");
    let lines = read(&docs.join("architecture.md")).lines().count();
    assert!(lines <= 250, "docs/architecture.md has {lines} lines: move rules to docs/design");
    let below = std::fs::read_dir(&docs).unwrap().map(|entry| entry.unwrap().path());
    for folder in below.filter(|path| path.is_dir()).chain([docs.clone()]) {
        let entries = std::fs::read_dir(&folder).unwrap().count();
        assert!(entries <= 14, "{} has {entries} entries: merge pages", folder.display());
    }
}

/// A design page that names old code or tests misleads the person who changes them.
#[test]
fn design_pages_name_files_and_tests_that_exist() {
    let root = xtask::workspace::root();
    let functions: BTreeSet<String> = [root.join("crates"), root.join("tests")]
        .iter()
        .flat_map(|folder| rust_files(folder))
        .flat_map(|file| functions(&read(&file)))
        .collect();
    let tops = ["crates/", "tests/", "config/", "deploy/", "docs/", "roles/"];
    let mut missing = vec![];
    for page in pages() {
        let text = read(&page);
        let is_for_developers = ["design", "architecture.md", "testing.md", "CONTRIBUTING.md"]
            .iter()
            .any(|part| page.iter().any(|name| name == *part));
        if !is_for_developers {
            continue;
        }
        for name in code_spans(&text).filter(|name| tops.iter().any(|top| name.starts_with(top))) {
            if !name.contains(['<', '*', ' ']) && !root.join(name).exists() {
                missing.push(format!("{}: {name}", page.display()));
            }
        }
        let tests = text
            .split("\n\n")
            .filter_map(|part| part.split_once("Test: ").or(part.split_once("Tests: ")));
        for name in
            tests.flat_map(|(_, named)| code_spans(named)).filter(|name| is_function_name(name))
        {
            if !functions.contains(name) {
                missing.push(format!("{}: no test {name}", page.display()));
            }
        }
    }
    assert!(missing.is_empty(), "files and tests that are not there: {missing:#?}");
}

/// A reader cannot look up the number of a decision, or a document that is not in the repository.
#[test]
fn no_text_cites_a_number_of_a_decision_or_a_missing_document() {
    let root = xtask::workspace::root();
    let sources = [root.join("crates"), root.join("tests")]
        .into_iter()
        .flat_map(|folder| rust_files(&folder));
    let mut found = vec![];
    for file in pages().into_iter().chain(sources) {
        let text = read(&file).to_lowercase();
        let word = concat!("deci", "sion");
        let by_number = text.split(word).skip(1).any(|rest| {
            let rest = rest.strip_prefix('s').unwrap_or(rest).trim_start();
            rest.starts_with(|char: char| char.is_ascii_digit())
        });
        if by_number || text.contains(concat!("(design", ".md")) {
            found.push(file.strip_prefix(&root).unwrap_or(&file).display().to_string());
        }
    }
    assert!(
        found.is_empty(),
        "link the page in docs/design, or give the reason itself: {found:#?}"
    );
}

/// Returns the pages that people read.
fn pages() -> Vec<PathBuf> {
    let root = xtask::workspace::root();
    let mut found =
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root.join(name)).to_vec();
    found.extend(files_of(&root.join("docs"), "md"));
    found
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Returns a page without its code, in which nothing is a link.
fn prose(text: &str) -> String {
    let outside = text.split("```").step_by(2).collect::<String>();
    outside.split('`').step_by(2).collect()
}

fn code_spans(text: &str) -> impl Iterator<Item = &str> {
    text.split("```").step_by(2).flat_map(|outside| outside.split('`').skip(1).step_by(2))
}

fn is_function_name(name: &str) -> bool {
    name.contains('_')
        && name
            .chars()
            .all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_')
}

fn functions(source: &str) -> Vec<String> {
    let names = source.split("fn ").skip(1);
    names
        .map(|rest| {
            rest.chars().take_while(|char| char.is_alphanumeric() || *char == '_').collect()
        })
        .collect()
}

/// Returns the anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let outside = text.split("```").step_by(2).collect::<String>();
    let headings = outside.lines().filter(|line| line.starts_with('#'));
    let mut times: BTreeMap<String, u32> = BTreeMap::new();
    headings
        .map(|line| {
            let words = line.trim_start_matches('#').trim().to_lowercase();
            let kept = words.chars().filter(|char| char.is_alphanumeric() || " -_".contains(*char));
            let anchor = kept.collect::<String>().replace(' ', "-");
            let earlier = times.entry(anchor.clone()).or_default();
            *earlier += 1;
            if *earlier == 1 { anchor } else { format!("{anchor}-{}", *earlier - 1) }
        })
        .collect()
}

/// Files that may spell the name or a variable of a backend, with the reason. The list may only
/// shrink.
const NAMES_BACKENDS: [(&str, &str); 2] = [
    ("crates/model/src/agent/capability.rs", "the table that all decisions about agents read"),
    ("crates/model/src/monitor/drift.rs", "recorded streams name no backend, and are judged too"),
];

/// Code that decides by a backend's name must be found and changed for each new backend. The trait
/// `Backend` answers instead.
#[test]
fn backend_names_stay_in_their_places() {
    let root = xtask::workspace::root();
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in rust_files(&root.join("crates")) {
        let path = file.strip_prefix(&root).unwrap().display().to_string();
        let may = ["crates/backends/", "crates/rehearsal/", "crates/xtask/"]
            .iter()
            .any(|folder| path.starts_with(folder));
        let is_test = ["/tests/", "/examples/", "tests.rs"].iter().any(|part| path.contains(part));
        if may || is_test {
            continue;
        }
        let text = read(&file);
        // Tests stand at the end of a file.
        let product = text.split("#[cfg(test)]").next().unwrap();
        let lines = product.lines().filter(|line| !line.trim_start().starts_with("//"));
        for line in lines.filter(|line| names_a_backend(line)) {
            found.entry(path.clone()).or_default().push(line.trim().to_string());
        }
    }
    for (path, reason) in NAMES_BACKENDS {
        assert!(found.remove(path).is_some(), "{path} ({reason}) needs no exception: remove it");
    }
    assert!(found.is_empty(), "ask the trait `Backend` instead: {found:#?}");
}

/// Returns whether a line has the name of a backend as a literal, or a variable or folder of its
/// CLI in one.
fn names_a_backend(line: &str) -> bool {
    const NAMES: [&str; 7] =
        ["acp", "claude", "claude-code", "claude_code", "codex", "rehearsal", "subprocess"];
    const PARTS: [&str; 6] = ["ANTHROPIC_", "CLAUDE_", "CODEX_", "OPENAI_", ".claude", ".codex"];
    let is_name = |literal: &str| {
        NAMES.contains(&literal) || NAMES.iter().any(|name| literal == format!("{name}:"))
    };
    line.split('"')
        .skip(1)
        .step_by(2)
        .any(|literal| is_name(literal) || PARTS.iter().any(|part| literal.contains(part)))
}

/// A code that is spelled out may be mistyped, and has no exit code then.
#[test]
fn error_codes_are_spelled_only_in_the_table() {
    let is_code = |line: &str| line.contains(concat!("\"E", "_"));
    let spelled = product_lines(is_code, "protocol/src/error_code.rs");
    at_most(&spelled, &[], "write an `ErrorCode` instead");
}

/// A text as an error has no source, and a caller cannot match on it.
#[test]
fn errors_are_types_instead_of_texts() {
    let found = product_lines(xtask::text_error::has_text_error, "");
    at_most(&found, &[], "write an error enum instead");
}

/// Returns the lines of product code that `matches` accepts, by crate, without those of `except`.
fn product_lines(
    matches: impl Fn(&str) -> bool,
    except: &str,
) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let crates = xtask::workspace::root().join("crates");
    for file in rust_files(&crates) {
        let path = file.strip_prefix(&crates).unwrap();
        let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
        let is_product = parts[1] == "src"
            && parts[0] != "xtask"
            && !parts.iter().any(|part| part == "tests" || part == "tests.rs")
            && path != Path::new(except);
        if !is_product {
            continue;
        }
        let text = read(&file);
        let product = text.split("\nmod tests {").next().unwrap();
        for (index, line) in product.lines().enumerate() {
            if !line.trim_start().starts_with("//") && matches(line) {
                let place = format!("{}:{}: {}", path.display(), index + 1, line.trim());
                found.entry(parts[0].to_string()).or_default().insert(place);
            }
        }
    }
    found
}

/// Checks that only the crates of `remaining` have such lines. Their numbers only shrink.
fn at_most(found: &BTreeMap<String, BTreeSet<String>>, remaining: &[(&str, usize)], instead: &str) {
    for (name, lines) in found {
        let allowed =
            remaining.iter().find(|(known, _)| known == name).map_or(0, |(_, most)| *most);
        assert!(lines.len() <= allowed, "{name}: {instead}: {lines:#?}");
    }
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    files_of(dir, "rs")
}

fn files_of(dir: &Path, kind: &str) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_of(&path, kind));
        } else if path.extension().is_some_and(|extension| extension == kind) {
            found.push(path);
        }
    }
    found
}
