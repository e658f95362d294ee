//! The conformance suite: every agent CLI through the same probes, on real processes against the
//! scripted model. `cargo xtask agents` runs it.
//!
//! ```text
//! conformance --agents DIR [--jobs N] [--agent NAME]… [--scenario NAME]… [--check]
//! ```
//!
//! With `--check` it only checks the names.
//!
//! It prints one line for each result, and at the end the results as one JSON document. Each
//! scenario runs in a process of its own, so that one that fails leaves its output in
//! `target/system-test/conformance/AGENT.SCENARIO.log` and nothing else.

// This program exists to start processes.
#![allow(clippy::disallowed_methods)]

mod report;
mod scenarios;

use muleteer_tests::cli::Cli;
use report::{Outcome, Report};
use scenarios::{SCENARIOS, Scenario};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use xtask::agents::Agents;

#[derive(Debug, Default)]
struct Options {
    dir: PathBuf,
    jobs: usize,
    agents: Vec<String>,
    scenarios: Vec<String>,
    /// Runs one scenario here, and prints its results.
    only: bool,
    /// Checks the names, and runs nothing.
    check: bool,
}

fn main() -> ExitCode {
    let Some(options) = options(std::env::args().skip(1)) else {
        eprintln!("conformance: it takes --agents DIR [--jobs N] [--agent NAME] [--scenario NAME]");
        return ExitCode::from(2);
    };
    if let Some(unknown) = unknown(&options) {
        let agents = Cli::ALL.map(Cli::backend).join(", ");
        let scenarios = SCENARIOS.iter().map(|scenario| scenario.name).collect::<Vec<_>>();
        eprintln!(
            "conformance: nothing is named `{unknown}`\nagents: {agents}\nscenarios: {}",
            scenarios.join(", ")
        );
        return ExitCode::from(2);
    }
    if options.check {
        return ExitCode::SUCCESS;
    }
    let agents = Agents { dir: options.dir.clone() };
    let jobs: Vec<(Cli, &Scenario)> = Cli::ALL
        .into_iter()
        .filter(|cli| chosen(&options.agents, cli.backend()))
        .flat_map(|cli| SCENARIOS.iter().map(move |scenario| (cli, scenario)))
        .filter(|(_, scenario)| chosen(&options.scenarios, scenario.name))
        .collect();
    if options.only {
        let Some((cli, scenario)) = jobs.first() else { return ExitCode::from(2) };
        println!("{}", json!(report::of(*cli, scenario, &agents).results));
        return ExitCode::SUCCESS;
    }
    let results = all(&options, jobs);
    let agents: BTreeMap<&str, Value> = results
        .into_iter()
        .map(|(cli, results)| {
            let version = agents.version(cli.package());
            (cli.backend(), json!({"version": version, "results": results}))
        })
        .collect();
    println!("{}", json!({"v": 1, "agents": agents}));
    ExitCode::SUCCESS
}

fn options(mut words: impl Iterator<Item = String>) -> Option<Options> {
    let mut options = Options { jobs: 2, ..Options::default() };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--only" => options.only = true,
            "--check" => options.check = true,
            "--agents" => options.dir = words.next()?.into(),
            "--jobs" => options.jobs = words.next()?.parse().ok().filter(|jobs| *jobs > 0)?,
            "--agent" => options.agents.push(words.next()?),
            "--scenario" => options.scenarios.push(words.next()?),
            _ => return None,
        }
    }
    options.dir.is_dir().then_some(options)
}

/// Returns a name that chooses no agent or no scenario.
fn unknown(options: &Options) -> Option<&str> {
    let chooses = |name: &str, one: &str| chosen(&[name.to_string()], one);
    let agent = |name: &&String| !Cli::ALL.iter().any(|cli| chooses(name, cli.backend()));
    let scenario = |name: &&String| !SCENARIOS.iter().any(|one| chooses(name, one.name));
    let agents = options.agents.iter().find(agent);
    agents.or(options.scenarios.iter().find(scenario)).map(String::as_str)
}

/// Whether one of `names` chooses it. `gemini` chooses `acp:gemini` too.
fn chosen(names: &[String], name: &str) -> bool {
    let short = name.strip_prefix("acp:");
    names.is_empty() || names.iter().any(|one| one == name || Some(one.as_str()) == short)
}

/// Runs the scenarios, as many at a time as `jobs` says.
fn all(options: &Options, jobs: Vec<(Cli, &Scenario)>) -> BTreeMap<Cli, BTreeMap<String, Outcome>> {
    let (total, done) = (jobs.len(), Mutex::new(0));
    let waiting = Mutex::new(jobs.into_iter());
    let results: Mutex<BTreeMap<Cli, BTreeMap<String, Outcome>>> = Mutex::default();
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|threads| {
        for _ in 0..options.jobs {
            threads.spawn(|| {
                while let Some((cli, scenario)) = next() {
                    let mut report = in_its_own_process(&options.dir, cli, scenario);
                    if report.failed() {
                        // A machine under load is no fault of the agent.
                        report = in_its_own_process(&options.dir, cli, scenario);
                    }
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    *done += 1;
                    for (probe, outcome) in &report.results {
                        eprintln!("[{done}/{total}] {} {probe}: {outcome}", cli.backend());
                    }
                    if report.failed() {
                        eprintln!("    see {}", log(cli, scenario).display());
                    }
                    let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                    results.entry(cli).or_default().extend(report.results);
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn in_its_own_process(dir: &Path, cli: Cli, scenario: &Scenario) -> Report {
    let log = log(cli, scenario);
    let outcome = log.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| {
        let own = std::env::current_exe()?;
        Command::new(own)
            .arg("--only")
            .arg("--agents")
            .arg(dir)
            .args(["--agent", cli.backend(), "--scenario", scenario.name])
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(&log)?)
            .output()
    });
    let output = match outcome {
        Ok(output) => output,
        Err(error) => return Report::broken(scenario, &error.to_string()),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().last().and_then(|line| serde_json::from_str(line).ok()) {
        Some(results) => Report::with(results),
        None => Report::broken(scenario, &format!("it ended early ({})", output.status)),
    }
}

fn log(cli: Cli, scenario: &Scenario) -> PathBuf {
    let target = xtask::workspace::target_dir().unwrap_or_else(|_| "target".into());
    target
        .join("system-test/conformance")
        .join(format!("{}.{}.log", cli.backend(), scenario.name).replace([' ', ':'], "-"))
}
