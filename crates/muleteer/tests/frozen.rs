//! Compares verbs, flags, codes and states with `tests/frozen`; no refactoring may change them.
//!
//! `tests/tests/surface/frozen.rs` names the rest of the surface and the tests that check it.

#[path = "../../../tests/src/frozen.rs"]
mod frozen;

use clap::{Arg, Command, CommandFactory};
use muleteer_cli::cli::Cli;
use muleteer_cli::cli::exit;
use muleteer_protocol::ErrorCode;
use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn verbs_and_flags_match_the_frozen_list() {
    let mut command = Cli::command();
    command.build();
    let mut lines = BTreeSet::new();
    describe(&command, "muleteer", &mut lines);
    frozen::check("verbs.txt", &lines);
}

/// Adds one line for the verb and one for each of its arguments, without texts.
fn describe(command: &Command, name: &str, lines: &mut BTreeSet<String>) {
    let mut facts = vec![];
    if command.is_hide_set() {
        facts.push("hidden".to_string());
    }
    if command.is_subcommand_required_set() {
        facts.push("needs a verb".into());
    }
    let aliases: Vec<_> = command.get_all_aliases().collect();
    if !aliases.is_empty() {
        facts.push(format!("also {}", aliases.join(" ")));
    }
    let (mut required, mut optional) = (BTreeSet::new(), BTreeSet::new());
    for group in command.get_groups().filter(|group| group.get_args().next().is_some()) {
        let ids: BTreeSet<_> = group.get_args().map(|id| id.as_str()).collect();
        let set = if group.is_required_set() { &mut required } else { &mut optional };
        set.insert(ids.into_iter().collect::<Vec<_>>().join("|"));
    }
    facts.extend(required.iter().map(|group| format!("one of {group}")));
    lines.insert(format!(
        "{name}: {}",
        if facts.is_empty() { "verb".into() } else { facts.join(", ") }
    ));
    for (position, arg) in command.get_arguments().enumerate() {
        let at = command.get_positionals().position(|other| other.get_id() == arg.get_id());
        lines.insert(format!("{name} {}", argument(command, arg, at.unwrap_or(position))));
    }
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
        describe(verb, &format!("{name} {}", verb.get_name()), lines);
    }
}

fn argument(command: &Command, arg: &Arg, position: usize) -> String {
    let name = match (arg.get_long(), arg.get_short()) {
        (Some(long), Some(short)) => format!("--{long} -{short}"),
        (Some(long), None) => format!("--{long}"),
        (None, Some(short)) => format!("-{short}"),
        (None, None) => format!("[{position}]"),
    };
    let list = |words: Vec<String>| words.join(" ");
    let mut facts = vec![format!("{:?}", arg.get_action())];
    if arg.get_action().takes_values() {
        let names = arg.get_value_names().unwrap_or_default();
        facts.push(format!("value {}", list(names.iter().map(|name| name.to_string()).collect())));
        facts.extend(arg.get_num_args().map(|count| format!("count {count}")));
        let values = arg.get_possible_values();
        if !values.is_empty() {
            facts.push(format!(
                "of {}",
                list(values.iter().map(|value| value.get_name().to_string()).collect())
            ));
        }
        let default =
            arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned());
        facts.push(format!("default {:?}", list(default.collect())));
    }
    facts.extend(arg.get_env().map(|env| format!("env {}", env.to_string_lossy())));
    let aliases = arg.get_all_aliases().unwrap_or_default();
    if !aliases.is_empty() {
        facts.push(format!("also {}", aliases.join(" ")));
    }
    let conflicts: BTreeSet<_> = command
        .get_arg_conflicts_with(arg)
        .into_iter()
        .map(|other| {
            other.get_long().map_or_else(|| other.get_id().to_string(), |long| format!("--{long}"))
        })
        .collect();
    if !conflicts.is_empty() {
        facts.push(format!("not with {}", list(conflicts.into_iter().collect())));
    }
    for (is, fact) in [
        (arg.is_required_set(), "required"),
        (arg.is_global_set(), "global"),
        (arg.is_hide_set(), "hidden"),
        (arg.is_last_set(), "last"),
        (arg.is_require_equals_set(), "needs ="),
        (arg.is_allow_hyphen_values_set(), "takes hyphens"),
        (arg.is_trailing_var_arg_set(), "takes the rest"),
    ] {
        if is {
            facts.push(fact.into());
        }
    }
    format!("{name}: {}", facts.join(", "))
}

#[test]
fn codes_match_the_frozen_list() {
    let mut lines: BTreeSet<_> = ErrorCode::ALL
        .iter()
        .map(|code| format!("{code}: exit {}", code.exit_code() as u8))
        .collect();
    let mut command = Cli::command();
    command.build();
    exits(&command, "", &mut lines);
    frozen::check("codes.txt", &lines);
}

/// Adds the exit codes that a verb documents.
fn exits(command: &Command, path: &str, lines: &mut BTreeSet<String>) {
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
        let name = format!("{path} {}", verb.get_name()).trim().to_string();
        let codes: BTreeSet<_> =
            exit::of_verb(&name).into_iter().map(|(code, _)| code as u8).collect();
        let codes: Vec<_> = codes.iter().map(u8::to_string).collect();
        lines.insert(format!("{name}: exits {}", codes.join(" ")));
        exits(verb, &name, lines);
    }
}

/// `contract.rs` compares the page's words with the code.
#[test]
fn states_and_variables_match_the_frozen_list() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/contract.md");
    let text = std::fs::read_to_string(page).expect("docs/contract.md");
    let section = |heading: &str| {
        let rest = text.split(&format!("\n## {heading}\n")).nth(1).expect("the section");
        rest.split("\n## ").next().unwrap_or_default().to_string()
    };
    let mut lines = BTreeSet::new();
    // Indented lines continue a list item.
    let items = section("States and outcomes").replace("\n  ", " ");
    for item in items.lines().filter_map(|line| line.strip_prefix("- ")) {
        let name = item.split([':', ' ']).next().unwrap_or_default();
        let list =
            item.split('`').skip(1).step_by(2).find(|list| list.contains(' ')).expect("a list");
        let words: BTreeSet<_> = list.split(' ').collect();
        lines.insert(format!("{name}: {}", words.into_iter().collect::<Vec<_>>().join(" ")));
    }
    let variables = section("Variables every agent gets");
    let quoted = variables.split('`').skip(1).step_by(2);
    for name in quoted.filter(|word| word.starts_with("MULETEER_") || *word == "TRACEPARENT") {
        lines.insert(format!("variable {name}"));
    }
    frozen::check("states.txt", &lines);
}

/// Collects the names of variables that the programs read or set, wherever the sources name them.
#[test]
fn variables_in_the_sources_match_the_frozen_list() {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("..")];
    let mut lines = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the sources") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() {
                folders.extend(
                    (!["tests", "target", "xtask", "samples"].contains(&name)).then_some(path),
                );
            } else if name.ends_with(".rs") && !name.contains("tests") && name != "build.rs" {
                let text = std::fs::read_to_string(&path).expect("a source");
                let text = text.split("#[cfg(test)]").next().unwrap_or_default();
                let is_name = |word: &&str| {
                    ["MULETEER_", "HARNESS_", "REFLECT_"]
                        .iter()
                        .any(|start| word.starts_with(start))
                        && !word.contains("_FAULT")
                        && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
                };
                lines.extend(text.split('"').filter(is_name).map(String::from));
            }
        }
    }
    frozen::check("variables.txt", &lines);
}
