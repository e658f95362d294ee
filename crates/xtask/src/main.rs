//! `cargo xtask`: the commands of developers and CI.

#![allow(clippy::disallowed_methods)]

mod commands;

use commands::{
    agents, bench, crash, detect, fuzz, install, lint, platforms, style, systemd_test, test,
};
use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask test [-- ARGS]   everything that must pass; ARGS go to the test binaries
cargo xtask install [--to DIR]
                             muleteer and muleteer-shim, built for use, into DIR (cargo's own \
                             folder of programs)
cargo xtask lint             formatting, clippy and docs, all without a warning, and the length
                             of commit subjects where there is a history
cargo xtask style [--list | --update]
                             the rules of CONTRIBUTING.md that a program can check
cargo xtask crash [--calls | --power | --runs] [--seeds N [--from S] [--jobs J]] [--point NAME] \
[--seed S]
                             kill -9 at every named point and at N seeded moments (default 200);
                             with --calls, faults at N seeded system calls (needs strace);
                             with --power, power cuts at N seeded steps (needs strace)
cargo xtask detect [--dir DIR] [--json]
                             recorded streams of agents through the monitors (tests/corpus), and \
                             how well they judge
cargo xtask fuzz [NAME…] [--seconds N]
                             every decoder (or the named ones) under libFuzzer, N seconds each (60)
cargo xtask systemd-test [--require]
                             the service units under a real systemd (root, systemd-container)
cargo xtask platforms [--require]
                             that it compiles for macOS, ARM and musl (needs rustup, or the targets)
cargo xtask bench [NAME…] [--json | --markdown]
                             what it costs, each figure beside a floor of the same run; `bench list`
cargo xtask bench build [--json]
                             what a cold release build costs: CPU minutes, sizes, the slowest crates
cargo xtask agents [NAME…] [--latest] [--scenario S] [--jobs N] [--update]
                             the conformance suite: every agent CLI (or the named ones) through the
                             same probes, pinned or newest; --update accepts the results
cargo xtask agents --install
                             install the pinned agent CLIs and print where they are";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let task = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    let outcome = match task.as_str() {
        "test" => test::run(&rest),
        "install" => install::run(&rest),
        "lint" => lint::run(),
        "style" => style::run(&rest),
        "crash" => crash::run(&rest),
        "detect" => return detect::run(&rest),
        "fuzz" => fuzz::run(&rest),
        "bench" => bench::run(&rest),
        "platforms" => platforms::run(&rest),
        "systemd-test" => systemd_test::run(&rest),
        "agents" => agents::run(&rest),
        "" | "help" | "--help" | "-h" => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        other => {
            eprintln!("xtask: no task `{other}`\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::from(4)
        }
    }
}
