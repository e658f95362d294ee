//! Tests the output of `--help` for each verb, completions and manual pages.

mod support;

use clap::CommandFactory;
use muleteer_cli::cli::Cli;
use muleteer_cli::cli::help::{GROUPS, INTERNAL};
use support::User;

const VERBS: &[&str] = &[
    "daemon",
    "daemon stop",
    "spawn",
    "status",
    "why",
    "tree",
    "events",
    "logs",
    "journal",
    "send",
    "thread",
    "thread new",
    "thread send",
    "thread list",
    "thread show",
    "thread archive",
    "chat",
    "adapter",
    "adapter list",
    "adapter restart",
    "adapter enable",
    "adapter disable",
    "meeting",
    "meeting start",
    "meeting end",
    "meeting list",
    "meeting show",
    "schedule",
    "schedule list",
    "schedule run",
    "questions",
    "answer",
    "model",
    "interrupt",
    "kill",
    "close",
    "wait",
    "cost",
    "clean",
    "prune",
    "tasks",
    "tasks init",
    "tasks run",
    "tasks stop",
    "tasks status",
    "tasks add",
    "tasks edit",
    "tasks show",
    "tasks graph",
    "tasks retry",
    "tasks validate",
    "tasks import",
    "tasks claim",
    "tasks renew",
    "tasks checkpoint",
    "tasks complete",
    "tasks fail",
    "tasks recover",
    "tasks undo",
    "hooks",
    "hooks install",
    "hooks uninstall",
    "hooks status",
    "hook",
    "hook session-start",
    "hook stop",
    "hook subagent-stop",
    "hook teammate-idle",
    "hook claim",
    "hook renew",
    "hook self-reflect-stop",
    "agents",
    "roles",
    "config",
    "config show",
    "config set",
    "config unset",
    "config check",
    "config schema",
    "trust",
    "run",
    "run status",
    "run resume",
    "run list",
    "run report",
    "run stop",
    "runs",
    "bead",
    "bead dep",
    "demo",
    "doctor",
    "notify",
    "notify test",
    "service",
    "service install",
    "service uninstall",
    "service status",
    "connect",
    "mcp",
    "parse",
    "completions",
    "man",
];

#[test]
fn help_reads_like_this() {
    let user = User::new();
    insta::assert_snapshot!("help", user.run(&["--help"]).stdout);
    for verb in VERBS {
        let words: Vec<_> = verb.split(' ').chain(["--help"]).collect();
        let said = user.run(&words);
        assert_eq!(said.code, 0, "{verb}");
        assert!(said.stdout.contains("Example"), "{verb} has no example");
        let wide = said.stdout.lines().find(|line| line.chars().count() > 80);
        assert_eq!(wide, None, "{verb} has a line of more than 80 columns");
        insta::assert_snapshot!(format!("help_{}", verb.replace(' ', "_")), said.stdout);
    }
}

#[test]
fn every_verb_is_in_the_list_above() {
    for verb in Cli::command().get_subcommands().map(clap::Command::get_name) {
        assert!(VERBS.contains(&verb), "{verb} has no snapshot");
    }
}

#[test]
fn help_is_grouped_and_hides_internal_verbs_at_every_width() {
    let user = User::new();
    let help = user.run(&["--help"]).stdout;
    assert_eq!(user.run(&["help"]).stdout, help);
    for (heading, verbs) in GROUPS {
        let below = help.split(&format!("{heading}:\n")).nth(1).expect(heading);
        let group = below.split("\n\n").next().expect("a group");
        for verb in *verbs {
            assert!(group.lines().any(|line| line.starts_with(&format!("  {verb} "))), "{verb}");
        }
    }
    for verb in INTERNAL {
        assert!(!help.lines().any(|line| line.starts_with(&format!("  {verb} "))), "{verb}");
        assert_eq!(user.run(&[verb, "--help"]).code, 0, "{verb}");
    }
    assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
}

#[test]
fn completions_and_manual_pages_know_every_verb() {
    let user = User::new();
    let dir = user.path("man");
    assert_eq!(user.run(&["man", dir.to_str().expect("utf-8")]).code, 0);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let said = user.run(&["completions", shell]);
        assert_eq!(said.code, 0, "{shell}");
        for verb in VERBS {
            let word = verb.rsplit(' ').next().expect("word");
            assert!(said.stdout.contains(word), "{shell}: no {verb}");
        }
    }
    for verb in VERBS {
        let page = format!("muleteer-{}.1", verb.replace(' ', "-"));
        let text = std::fs::read_to_string(dir.join(&page)).expect(&page);
        let wanted =
            [".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS", ".SH \"EXIT STATUS\"", ".SH EXAMPLES"];
        assert!(
            wanted.iter().all(|title| text.contains(title)) && text.contains("muleteer"),
            "{page}: {text}"
        );
        let title = text.lines().find(|line| line.starts_with(".TH ")).expect("title");
        assert!(
            title.contains(concat!("\"muleteer ", env!("CARGO_PKG_VERSION"), "\"")),
            "{page}: {title}"
        );
    }
    let page = |name: &str| std::fs::read_to_string(dir.join(name)).expect("page");
    let codes = |page: &str| -> Vec<u8> {
        let section = page
            .split(".SH \"EXIT STATUS\"\n.nf\n")
            .nth(1)
            .and_then(|rest| rest.split(".fi").next());
        let code =
            |line: &str| line.split(' ').next().and_then(|word| word.parse().ok()).expect("a code");
        section.expect("section").lines().map(code).collect()
    };
    assert_eq!(codes(&page("muleteer.1")), [0, 2, 3, 4, 5, 6, 130]);
    assert_eq!(codes(&page("muleteer-wait.1")), [0, 2, 3, 4, 6, 130]);
    assert_eq!(codes(&page("muleteer-status.1")), [0, 2, 3, 4]);
    assert!(page("muleteer-wait.1").contains("partial, failed, blocked or stalled"));
}

/// If the build knows no commit, the text says so.
#[test]
fn version_names_commit_and_day() {
    let user = User::new();
    let said = user.run(&["--version"]);
    assert_eq!((said.code, user.run(&["-V"]).stdout), (0, said.stdout.clone()));
    let line = said.stdout.strip_suffix('\n').expect("one line");
    let rest =
        line.strip_prefix(concat!("muleteer ", env!("CARGO_PKG_VERSION"), " (")).expect(line);
    let inside = rest
        .strip_suffix(')')
        .expect(line)
        .split(", development build")
        .next()
        .unwrap_or_default();
    let (commit, day) = inside.rsplit_once(' ').expect(line);
    // A packager may name it by `MULETEER_BUILD_COMMIT`: `abc1234`, `v1.2`.
    let is_name =
        (1..=12).contains(&commit.chars().count()) && !commit.contains(char::is_whitespace);
    assert!(is_name || commit == "unknown commit", "{line}");
    let parts: Vec<_> = day.split('-').map(str::len).collect();
    assert!(
        parts == [4, 2, 2] && day.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-'),
        "{line}"
    );
}
