//! Checks that `docs/contract.md` agrees with the code: verbs, options, exit codes, error codes,
//! states.

use clap::{Command, CommandFactory};
use muleteer_cli::cli::Cli;
use muleteer_cli::cli::exit::{self, Exit};
use muleteer_model::event::FinalState;
use muleteer_model::journal::Status;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

fn contract() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/contract.md"))
        .expect("docs/contract.md")
}

/// Returns the rows of the table under a heading, as cells, without the table's head.
fn rows(text: &str, heading: &str) -> Vec<Vec<String>> {
    let section = text
        .split(&format!("{heading}\n"))
        .nth(1)
        .unwrap_or_else(|| panic!("no section {heading}"));
    let lines = section
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'));
    lines
        .skip(2)
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_string()).collect())
        .collect()
}

/// Returns everything between backticks.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_string).collect()
}

/// Returns the words of the line that begins with `- KEY:`.
fn words(text: &str, key: &str) -> BTreeSet<String> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("- ")?.strip_prefix(key))
        .unwrap_or_else(|| panic!("no line {key}"));
    quoted(line).last().expect("words").split(' ').map(str::to_string).collect()
}

/// Collects every verb that does something, with its own options.
fn verbs(command: &Command, path: &str, all: &mut BTreeMap<String, BTreeSet<String>>) {
    for verb in
        command.get_subcommands().filter(|verb| verb.get_name() != "help" && !verb.is_hide_set())
    {
        let name = format!("{path} {}", verb.get_name()).trim().to_string();
        if !verb.is_subcommand_required_set() {
            let own = verb
                .get_arguments()
                .filter(|arg| !arg.is_global_set() && !arg.is_hide_set() && !arg.is_positional());
            let long = own
                .filter_map(|arg| arg.get_long())
                .filter(|long| *long != "help")
                .map(|long| format!("--{long}"));
            all.insert(name.clone(), long.collect());
        }
        verbs(verb, &name, all);
    }
}

#[test]
fn verbs_and_their_options() {
    let text = contract();
    let documented: BTreeMap<String, BTreeSet<String>> = rows(&text, "## Verbs")
        .into_iter()
        .map(|row| {
            let usage = quoted(&row[0]).concat();
            let verb: Vec<_> = usage
                .split(' ')
                .take_while(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-'))
                .collect();
            let options =
                quoted(&row[1]).into_iter().filter(|option| option.starts_with("--")).collect();
            (verb.join(" "), options)
        })
        .collect();
    let mut coded = BTreeMap::new();
    verbs(&Cli::command(), "", &mut coded);
    for verb in documented.keys().chain(coded.keys()) {
        assert_eq!(
            documented.get(verb),
            coded.get(verb),
            "`{verb}`: docs/contract.md and the code"
        );
    }
}

/// Users cannot depend on JSON that is not documented.
#[test]
fn every_json_document_is_in_the_contract() {
    let text = contract();
    let section = text
        .split("## Output\n")
        .nth(1)
        .and_then(|rest| rest.split("\n## ").next())
        .expect("the section");
    let shown = quoted(section);
    let mut coded = BTreeMap::new();
    verbs(&Cli::command(), "", &mut coded);
    // These verbs print for another program, or print no JSON.
    let other = ["daemon", "parse", "completions", "config schema", "demo", "chat"];
    let is_other = |verb: &str| other.contains(&verb) || verb.starts_with("hook ");
    let is_shown = |verb: &str| {
        let with_options = format!("{verb} ");
        shown.iter().any(|usage| usage == verb || usage.starts_with(&with_options))
    };
    let missing: Vec<_> = coded.keys().filter(|verb| !is_other(verb) && !is_shown(verb)).collect();
    assert!(missing.is_empty(), "docs/contract.md does not show the JSON of {missing:?}");
}

#[test]
fn global_options() {
    let line = contract()
        .lines()
        .find(|line| line.starts_with("Global options:"))
        .expect("line")
        .to_string();
    let documented: BTreeSet<_> =
        quoted(&line).into_iter().filter(|option| option.starts_with("--")).collect();
    let command = Cli::command();
    let coded =
        command.get_arguments().filter(|arg| arg.is_global_set()).filter_map(|arg| arg.get_long());
    assert_eq!(documented, coded.map(|long| format!("--{long}")).collect());
}

#[test]
fn exit_codes() {
    let text = contract();
    let table = rows(&text, "## Exit codes");
    let of = |verb: &str, column: usize| {
        table.iter().find(|row| row[0].contains(verb)).expect("row")[column].clone()
    };
    // The columns are the verb, then 0 2 3 4 5 6.
    assert_eq!(
        (of("wait", 1), of("wait", 4), of("wait", 6)),
        ("success".into(), "partial, failed, blocked, stalled".into(), "killed".into())
    );
    for (state, code) in [
        ("success", 0),
        ("partial", 4),
        ("failed", 4),
        ("blocked", 4),
        ("stalled", 4),
        ("killed", 6),
    ] {
        assert_eq!(exit::of_state(state) as i32, code, "{state}");
    }
    let says = |verb: &str, code: Exit| exit::of_verb(verb).iter().any(|(known, _)| *known == code);
    for (verb, row) in
        [("wait", "`wait`"), ("spawn", "`wait`"), ("run", "`run`"), ("tasks run", "`tasks run`")]
    {
        for (column, code) in [(5, Exit::Limit), (6, Exit::Killed)] {
            assert_eq!(says(verb, code), !of(row, column).is_empty(), "{verb}: {code:?}");
        }
        assert!(says(verb, Exit::Interrupted), "{verb}: 130");
    }
    let told = |verb: &str, code| {
        exit::of_verb(verb).into_iter().find(|(known, _)| *known == code).map(|(_, says)| says)
    };
    for verb in ["wait", "spawn"] {
        let states = told(verb, Exit::Failed).expect("4").replace(" or ", ", ");
        assert!(states.contains(&of("`wait`", 4)), "{verb}: {states}");
    }
    assert!(of("all verbs", 2).contains("bad input") && Exit::BadInput as i32 == 2);
    assert!(of("all verbs", 3).contains("precondition") && Exit::Precondition as i32 == 3);
}

#[test]
fn states() {
    let text = contract();
    let dispatch = words(&text, "dispatch:");
    use FinalState::*;
    // A new state does not compile until somebody has considered the contract.
    let last = |state: FinalState| match state {
        Success | Partial | Failed | Blocked | Killed | Stalled => state.as_str().to_string(),
    };
    for state in [Success, Partial, Failed, Blocked, Killed, Stalled].map(last) {
        assert!(dispatch.contains(&state), "{state}");
    }
    for state in ["queued", "starting", "running", "waiting", "idle"] {
        assert!(dispatch.contains(state), "{state}");
    }
    assert_eq!(
        words(&text, "journal `Status:`"),
        Status::ALL.iter().map(|status| status.as_str().to_string()).collect()
    );
    assert_eq!(
        words(&text, "attempt:"),
        ["success", "failure", "timeout"].map(String::from).into()
    );
}

#[test]
fn variables_that_pass_to_agents() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md"))
        .expect("docs/cli.md");
    let list = text
        .split("```text\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("the list");
    let documented: Vec<_> = list.split_whitespace().collect();
    assert_eq!(documented, muleteer_cli::client::env_pass::built_in().collect::<Vec<_>>());
}
