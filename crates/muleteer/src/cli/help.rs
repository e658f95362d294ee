//! The help of the program: its verbs, grouped by purpose. The library lists them in one block.

use crate::cli::Cli;
use crate::render::terminal;
use clap::{Command, CommandFactory};
use std::fmt::Write as _;

/// The width of all help. `max_term_width` of [`Cli`] says the same for the verbs.
pub const WIDTH: usize = 80;

const HEADING: &str = "\x1b[1m\x1b[4m";
const VERB: &str = "\x1b[1m";
const RESET: &str = "\x1b[0m";

/// The verbs by purpose. Every verb is here or in [`INTERNAL`].
pub const GROUPS: &[(&str, &[&str])] = &[
    (
        "Start and steer agents",
        &[
            "spawn",
            "send",
            "questions",
            "answer",
            "interrupt",
            "model",
            "wait",
            "kill",
            "close",
            "clean",
            "prune",
        ],
    ),
    ("Talk with agents", &["chat", "thread", "meeting", "schedule"]),
    ("See what happens", &["status", "why", "logs", "journal", "events", "cost", "tree"]),
    ("Specs: from a text to merged code", &["run", "runs", "bead"]),
    ("Task lists", &["tasks", "hooks"]),
    (
        "Set up",
        &[
            "doctor", "agents", "config", "roles", "trust", "adapter", "mcp", "notify", "service",
            "daemon",
        ],
    ),
    ("Learn", &["demo", "completions", "man", "help"]),
];

/// The verbs that other programs call: the hooks of an agent CLI, `--remote` on another host, and
/// tools that read recordings.
/// They have help, completions and manual pages, but a person does not need them in the list.
pub const INTERNAL: &[&str] = &["hook", "connect", "parse"];

/// Returns the command line with the help that people see.
pub fn command() -> Command {
    let command = Cli::command();
    let width = terminal::width().map_or(WIDTH, |width| width.min(WIDTH));
    let template = template(&command, width);
    command.help_template(template)
}

fn template(command: &Command, width: usize) -> String {
    let mut text = String::from("{about-with-newline}\n{usage-heading} {usage}\n");
    let names = GROUPS.iter().flat_map(|(_, verbs)| verbs.iter());
    let longest = names.map(|name| name.len()).max().unwrap_or_default();
    for (heading, verbs) in GROUPS {
        let _ = writeln!(text, "\n{HEADING}{heading}:{RESET}");
        for name in *verbs {
            let about = about(command, name);
            let _ = writeln!(text, "{}", entry(name, &about, longest, width));
        }
    }
    let _ = write!(text, "\n{HEADING}Options:{RESET}\n{{options}}{{after-help}}");
    text
}

fn about(command: &Command, verb: &str) -> String {
    let found = command.find_subcommand(verb).and_then(Command::get_about);
    // The library adds the verb `help` when it builds the command.
    found.map_or_else(|| "Print this list, or the help of a verb".into(), ToString::to_string)
}

/// Returns one verb with its description, which continues below itself.
fn entry(name: &str, about: &str, longest: usize, width: usize) -> String {
    let indent = longest + 4;
    let room = width.saturating_sub(indent).max(20);
    let mut lines = vec![String::new()];
    for word in about.split_whitespace() {
        let fits = lines.last().is_some_and(|line| {
            line.is_empty() || line.chars().count() + 1 + word.chars().count() <= room
        });
        if !fits {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    let below = format!("\n{}", " ".repeat(indent));
    format!("  {VERB}{name}{RESET}{}{}", " ".repeat(indent - 2 - name.len()), lines.join(&below))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_verb_is_in_one_group_or_internal() {
        let command = Cli::command();
        let coded: BTreeSet<_> =
            command.get_subcommands().map(|verb| verb.get_name().to_string()).collect();
        let grouped = GROUPS.iter().flat_map(|(_, verbs)| verbs.iter()).chain(INTERNAL);
        let listed: Vec<_> =
            grouped.filter(|name| **name != "help").map(ToString::to_string).collect();
        assert_eq!(listed.len(), coded.len(), "a verb is missing or listed twice");
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), coded);
    }

    #[test]
    fn description_continues_below_itself() {
        let shown = entry("wait", "one two three four five six", 9, 33);
        let plain = anstream::adapter::strip_str(&shown).to_string();
        assert_eq!(plain, "  wait       one two three four\n             five six");
    }

    /// Collects the lines of all help that are too wide, or that name a file of the sources.
    fn faults(verb: &mut Command, name: &str, found: &mut Vec<String>) {
        for text in [verb.render_help(), verb.render_long_help()] {
            for line in text.to_string().lines() {
                let names_source = ["docs/", "deploy/", "crates/", "CHANGELOG"]
                    .iter()
                    .any(|folder| line.contains(folder));
                if line.chars().count() > WIDTH || names_source {
                    found.push(format!("{name}: {line}"));
                }
            }
        }
        for below in verb.get_subcommands_mut() {
            let name = format!("{name} {}", below.get_name());
            faults(below, &name, found);
        }
    }

    #[test]
    fn help_fits_into_80_columns_and_names_no_file_of_the_sources() {
        let mut found = vec![];
        let mut command = command().term_width(WIDTH);
        command.build();
        faults(&mut command, "muleteer", &mut found);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn commands_in_examples_are_not_broken_by_the_width() {
        fn examples(verb: &Command, name: &str, long: &mut Vec<String>) {
            let after = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            let wide = |line: &&str| line.starts_with("  ") && line.chars().count() > WIDTH;
            long.extend(after.lines().filter(wide).map(|line| format!("{name}: {line}")));
            for below in verb.get_subcommands() {
                examples(below, &format!("{name} {}", below.get_name()), long);
            }
        }
        let mut long = vec![];
        examples(&Cli::command(), "muleteer", &mut long);
        assert_eq!(long, [""; 0]);
    }
}
