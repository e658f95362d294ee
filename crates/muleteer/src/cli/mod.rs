//! The command line: the global options and the list of verbs. Each verb's arguments are defined
//! beside its code, in [`crate::verbs`].

pub mod arg_error;
pub mod context;
pub mod exit;
pub mod failure;
pub mod far_screen;
pub mod filter;
pub mod global;
pub mod help;
pub mod output;
pub mod settings;
pub mod time_arg;

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::global::Global;
use crate::cli::output::{Color, Output};
use crate::verbs::agents::{
    answer, clean, close, interrupt, kill, model, prune, questions, send, spawn, wait,
};
use crate::verbs::inspect::{cost, events, journal, logs, parse, status, tree, why};
use crate::verbs::setup::{completions, config, doctor, hooks, man, notify, roles, service, trust};
use crate::verbs::work::{bead, hook, run, runs, tasks};
use crate::verbs::{adapter, connect, daemon, demo, mcp, setup, thread};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{FromArgMatches, Parser, Subcommand, ValueEnum};
use muleteer_protocol::ErrorCode;
use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

const ABOUT: &str = "Supervises AI coding agents: starts them, restarts or stops them by rule, and \
    records their work";

const EXAMPLES: &str = "\
Examples:
  muleteer demo                                    a scripted run (one minute)
  muleteer spawn developer . \"Fix the flaky test\"  start an agent here
  muleteer status                                  running and finished agents
  muleteer logs k3f9 -f                            follow one agent

A unique prefix of an id is enough. `muleteer ctl VERB` is the same as `muleteer VERB`.
Exit codes: 0 done, 2 bad input, 3 precondition (no daemon, locked), 4 failed, 5 limit (run, \
tasks run), 6 killed (wait, spawn --wait), 130 Ctrl-C while waiting.";

#[derive(Debug, Parser)]
#[command(
    name = "muleteer",
    version = env!("VERSION_WITH_COMMIT"),
    about = ABOUT,
    after_help = EXAMPLES,
    max_term_width = 80
)]
#[command(subcommand_required = true, arg_required_else_help = true, infer_subcommands = false)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    Daemon(daemon::Args),
    Spawn(Box<spawn::Args>),
    Status(status::Args),
    Why(why::Args),
    Tree(tree::Args),
    Events(events::Args),
    Logs(logs::Args),
    Journal(journal::Args),
    Send(send::Args),
    Thread(thread::Args),
    Chat(Box<thread::chat::Args>),
    Adapter(adapter::Args),
    Meeting(Box<thread::meeting::Args>),
    Schedule(thread::schedule::Args),
    Questions(questions::Args),
    Answer(answer::Args),
    Model(model::Args),
    Interrupt(interrupt::Args),
    Kill(kill::Args),
    Close(close::Args),
    Wait(wait::Args),
    Cost(cost::Args),
    Clean(clean::Args),
    Prune(prune::Args),
    Tasks(tasks::Args),
    Hooks(hooks::Args),
    Hook(hook::Args),
    Agents(setup::agents::Args),
    Roles(roles::Args),
    Config(config::Args),
    Trust(trust::Args),
    Notify(notify::Args),
    Run(Box<run::Args>),
    Runs(runs::Args),
    Bead(bead::Args),
    Demo(demo::Args),
    Doctor(doctor::Args),
    Service(service::Args),
    Connect(connect::Args),
    Mcp(mcp::Args),
    Parse(parse::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// The outcome of parsing the arguments.
#[derive(Debug)]
pub enum Parsed {
    Run(Box<Cli>),
    /// Help, a version or an error was shown; nothing is left to do.
    Shown(ExitCode),
}

impl Cli {
    pub fn read(args: Vec<OsString>) -> Parsed {
        // The global options, as far as they can be recognised in arguments that may not parse.
        let output = Output {
            json: args.iter().any(|arg| arg == "--json"),
            color: color(&args),
            ..Output::default()
        };
        let unreadable = args.iter().find(|arg| arg.to_str().is_none()).cloned();
        let parsed = help::command().try_get_matches_from(without_ctl(args));
        let error = match parsed.and_then(|mut matches| Self::from_arg_matches_mut(&mut matches)) {
            Ok(cli) => return Parsed::Run(Box::new(cli)),
            Err(error) => error,
        };
        let text = error.render().ansi().to_string();
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => match output.text(text) {
                Ok(()) | Err(Failure::OutputClosed) => Parsed::Shown(ExitCode::SUCCESS),
                Err(failure) => {
                    output.failure(&failure);
                    Parsed::Shown(failure.exit().into())
                }
            },
            _ if output.json || unreadable.is_some() => {
                output.failure(&usage(&error, unreadable.as_deref()));
                Parsed::Shown(Exit::BadInput.into())
            }
            _ => {
                output.note(text.trim_end());
                Parsed::Shown(Exit::BadInput.into())
            }
        }
    }
}

/// Returns the value of `--color` from arguments that did not parse.
fn color(args: &[OsString]) -> Color {
    let words: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
    let said =
        words.iter().enumerate().find_map(|(at, word)| match word.strip_prefix("--color")? {
            "" => words.get(at + 1).map(ToString::to_string),
            rest => rest.strip_prefix('=').map(str::to_string),
        });
    said.and_then(|word| Color::from_str(&word, false).ok()).unwrap_or_default()
}

/// Converts clap's error to a [`Failure`]. The first line and the names of missing arguments become
/// the message, the other lines the hint.
pub(crate) fn usage(error: &clap::Error, unreadable: Option<&OsStr>) -> Failure {
    if let Some(word) = unreadable {
        return Failure::new(
            ErrorCode::Usage,
            format!("the argument `{}` is not valid UTF-8", word.to_string_lossy()),
        );
    }
    let text = error.render().to_string();
    let mut lines = text.trim().lines();
    let first = lines.next().unwrap_or("the command line is invalid");
    let mut message = first.strip_prefix("error: ").unwrap_or(first).to_string();
    let mut rest: Vec<_> = lines.map(str::trim).filter(|line| !line.is_empty()).collect();
    if let (ErrorKind::MissingRequiredArgument, Some(ContextValue::Strings(missing))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    {
        message = format!("{message} {}", missing.join(", "));
        rest.retain(|line| !missing.iter().any(|name| name == line));
    }
    let failure = Failure::new(ErrorCode::Usage, message);
    if rest.is_empty() { failure } else { failure.hint(rest.join(" ")) }
}

/// Removes the word `ctl` if it stands where the verb belongs.
fn without_ctl(mut args: Vec<OsString>) -> Vec<OsString> {
    let mut at = 1;
    while let Some(arg) = args.get(at).map(|arg| arg.to_string_lossy().into_owned()) {
        match arg.as_str() {
            "ctl" => {
                args.remove(at);
                break;
            }
            // These global options take their value from the next argument.
            "--socket" | "--config" | "--color" | "--remote" => at += 2,
            option if option.starts_with('-') && option != "--" => at += 1,
            _ => break,
        }
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn ctl_is_a_synonym_of_the_verbs() {
        for (typed, meant) in [
            ("muleteer ctl status", "muleteer status"),
            ("muleteer --json --socket ctl ctl status", "muleteer --json --socket ctl status"),
            ("muleteer send k3f9 ctl", "muleteer send k3f9 ctl"),
        ] {
            assert_eq!(without_ctl(words(typed)), words(meant), "{typed}");
        }
    }

    #[test]
    fn every_verb_takes_the_global_options_and_its_help_has_an_example() {
        fn look(above: &clap::Command) {
            for verb in above
                .get_subcommands()
                .filter(|verb| verb.get_name() != "help" && !verb.is_hide_set())
            {
                let help = verb.clone().render_long_help().to_string();
                assert!(
                    help.contains("Example"),
                    "{} {} has no example",
                    above.get_name(),
                    verb.get_name()
                );
                look(verb);
            }
        }
        look(&Cli::command());
        for line in [
            "muleteer status --json -q --color never --socket /s --config /c",
            "muleteer --json wait abcd",
        ] {
            assert!(
                matches!(Cli::read(words(line)), Parsed::Run(cli) if cli.global.json),
                "{line}"
            );
        }
    }
}
