//! The results of one scenario.

use crate::scenarios::{self, Context, Scenario};
use muleteer_tests::cli::Cli;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, PoisonError};
use xtask::agents::Agents;

/// The result of one probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Holds,
    /// Muleteer refuses it for this agent, with the reason.
    Refused,
    /// The agent has nothing of the kind.
    Absent,
    Fails(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holds => out.write_str("yes"),
            Self::Refused => out.write_str("refused"),
            Self::Absent => out.write_str("absent"),
            Self::Fails(why) => write!(out, "NO: {why}"),
        }
    }
}

#[derive(Debug)]
pub struct Report {
    pub results: BTreeMap<String, Outcome>,
    /// The probes of the scenario that are still to come.
    open: Vec<&'static str>,
}

impl Report {
    fn new(scenario: &Scenario) -> Self {
        Self { results: BTreeMap::new(), open: scenario.probes.to_vec() }
    }

    /// Returns a whole report.
    pub fn with(results: BTreeMap<String, Outcome>) -> Self {
        Self { results, open: vec![] }
    }

    /// Returns a report in which every probe of the scenario failed for the same reason.
    pub fn broken(scenario: &Scenario, why: &str) -> Self {
        let mut report = Self::new(scenario);
        report.fail_the_rest(why);
        report
    }

    pub fn failed(&self) -> bool {
        self.results.values().any(|outcome| matches!(outcome, Outcome::Fails(_)))
    }

    /// Records a result; `why` says what was found instead.
    ///
    /// # Panics
    /// When the scenario has no such probe.
    pub fn holds(&mut self, probe: &'static str, holds: bool, why: impl fmt::Display) {
        if !holds {
            eprintln!("--- {probe} fails: {why}");
        }
        let outcome = if holds { Outcome::Holds } else { Outcome::Fails(cut(&why.to_string())) };
        self.record(probe, outcome);
    }

    pub fn record(&mut self, probe: &'static str, outcome: Outcome) {
        assert!(self.open.contains(&probe), "no open probe {probe}");
        self.open.retain(|open| *open != probe);
        self.results.insert(probe.into(), outcome);
    }

    /// Records that Muleteer refuses the rest of the scenario.
    pub fn refused(&mut self) {
        for probe in std::mem::take(&mut self.open) {
            self.results.insert(probe.into(), Outcome::Refused);
        }
    }

    /// Records that the agent has nothing that the scenario probes.
    pub fn absent(&mut self) {
        for probe in std::mem::take(&mut self.open) {
            self.results.insert(probe.into(), Outcome::Absent);
        }
    }

    fn fail_the_rest(&mut self, why: &str) {
        for probe in std::mem::take(&mut self.open) {
            self.results.insert(probe.into(), Outcome::Fails(cut(why)));
        }
    }
}

/// Runs one scenario here. A panic fails the probes that had no result yet.
pub fn of(cli: Cli, scenario: &Scenario, agents: &Agents) -> Report {
    static SAID: Mutex<String> = Mutex::new(String::new());
    std::panic::set_hook(Box::new(|info| {
        eprintln!("{info}");
        let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_empty() {
            *said = info.payload_as_str().unwrap_or("it panicked").to_string();
        }
    }));
    let mut report = Report::new(scenario);
    let context = Context { cli, agents: agents.clone() };
    let run = AssertUnwindSafe(|| match cli.capabilities().refused {
        Some(refused) => scenarios::refused(&context, refused.instead, &mut report),
        None => (scenario.run)(&context, &mut report),
    });
    if std::panic::catch_unwind(run).is_err() {
        let said = SAID.lock().unwrap_or_else(PoisonError::into_inner).clone();
        report.fail_the_rest(&said);
    }
    report.fail_the_rest("the scenario ended without a result");
    report
}

fn cut(text: &str) -> String {
    const ENOUGH: usize = 600;
    text.replace('\n', " ").chars().take(ENOUGH).collect()
}
