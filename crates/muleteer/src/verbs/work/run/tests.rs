//! The arguments of `run`: verbs and options mean the same.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::cli::{Cli, Verb};
use clap::Parser as _;

fn parsed(words: &str) -> Box<Args> {
    let words = words.split_whitespace().map(str::to_string);
    let cli = Cli::try_parse_from(["muleteer".into(), "run".to_string()].into_iter().chain(words));
    match cli.unwrap_or_else(|error| panic!("{error}")).verb {
        Verb::Run(args) => args,
        other => panic!("{other:?}"),
    }
}

#[test]
fn verbs_of_a_run_mean_the_same_as_its_options() {
    for (verb, option) in [
        ("plan.md", "--spec plan.md"),
        ("plan.md --yes --detach", "--spec plan.md --yes --detach"),
        ("--yes plan.md", "--spec plan.md --yes"),
        ("resume", "--resume"),
        ("resume a1b2 --yes", "--resume a1b2 --yes"),
        ("resume a1b2 --from-phase judge", "--resume a1b2 --from-phase judge"),
    ] {
        let (verb, option) = (parsed(verb), parsed(option));
        assert_eq!(format!("{:?}", verb.wanted()), format!("{:?}", option.wanted()));
        assert!(verb.acts() && option.acts());
    }
}

#[test]
fn status_and_list_only_show() {
    for words in ["status", "status a1b2 --follow", "list", "report", "--status", "--status a1b2"] {
        assert!(!parsed(words).acts(), "{words}");
    }
}

#[test]
fn spec_is_given_once() {
    for words in ["plan.md --spec other.md", "plan.md --resume a1b2", "plan.md --status"] {
        let words = format!("muleteer run {words}");
        assert!(Cli::try_parse_from(words.split(' ')).is_err(), "{words}");
    }
}
