//! `cargo xtask crash`: the campaign of `muleteer_tests::crash`, with more seeds than CI has time
//! for.
//!
//! The engine is a test of the tests package, because it needs the harness and its invariants. This
//! command only sets the variables that say how much to do.

use xtask::{Failure, binaries, workspace};

const DEFAULT_SEEDS: u64 = 200;

pub fn run(args: &[String]) -> Result<(), Failure> {
    let mut cargo = workspace::cargo();
    let runs = args.iter().any(|flag| flag == "--runs");
    // The binary, and the module of it that has the campaign.
    let (binary, campaign) = if runs { ("spec_run", "crash::") } else { ("crash", "campaign::") };
    cargo.args(["test", "-p", "muleteer-tests", "--test", binary]);
    let mut seeds = DEFAULT_SEEDS;
    let mut filter = campaign;
    let (mut calls, mut power, mut conversations, mut corruption) = (false, false, false, false);
    let mut args = args.iter();
    while let Some(flag) = args.next() {
        if flag == "--calls" {
            calls = true;
            continue;
        }
        if flag == "--power" {
            power = true;
            continue;
        }
        if flag == "--conversations" {
            conversations = true;
            continue;
        }
        if flag == "--corruption" {
            corruption = true;
            continue;
        }
        if flag == "--runs" {
            continue;
        }
        let value = args.next().ok_or_else(|| format!("{flag} wants a value"))?;
        match flag.as_str() {
            "--seeds" => {
                seeds = value.parse()?;
                filter = "seeded_moments";
            }
            "--from" => {
                cargo.env("MULETEER_CRASH_FROM", value);
            }
            "--jobs" => {
                cargo.env("MULETEER_CRASH_JOBS", value);
            }
            "--kills" => {
                cargo.env("MULETEER_CRASH_KILLS", value);
            }
            "--seed" => {
                cargo.env("MULETEER_CRASH_SEED", value);
                filter = "seeded_moments";
            }
            "--point" => {
                cargo.env(if runs { "MULETEER_RUN_POINT" } else { "MULETEER_CRASH_POINT" }, value);
                filter = "every_named_point";
            }
            other => {
                return Err(format!(
                    "no option `{other}`: [--calls|--power|--runs|--conversations|--corruption] \
                     --seeds N [--from S] [--jobs J] [--kills K], --seed S, or --point NAME"
                )
                .into());
            }
        }
    }
    if conversations && filter == "every_named_point" {
        filter = "every_named_point_of_a_conversation";
    } else if conversations {
        filter = "seeded_moments_of_conversations";
    }
    if calls {
        filter = "seeded_system_calls";
    }
    if corruption {
        filter = "seeded_damage";
    }
    if power {
        filter = "seeded_power_cuts";
    }
    cargo.env("MULETEER_CRASH_SEEDS", seeds.to_string());
    cargo.env(binaries::DIR_VARIABLE, binaries::build()?);
    cargo.args(["--", "--nocapture", "--test-threads=1", filter]);
    if runs && filter == campaign {
        cargo.arg("--include-ignored");
    }
    workspace::run(&mut cargo)
}
