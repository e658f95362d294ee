//! The properties of an agent CLI on which the rules of this crate depend.
//!
//! The rules get these values and no backend's name. The crate `backends` fills them in
//! (`Backend::traits`), and [`crate::dispatch::fleet::Fleet`] stores them with each dispatch.

use crate::agent::capability::Agent;

/// Properties of one agent CLI. The default is a CLI of which nothing is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    /// It plays a scenario. The scenario says what it asks, so no policy can hold it.
    pub scripted: bool,
    /// It reports the cost of its turns. Otherwise the cost needs a price for each token.
    pub reports_cost: bool,
    /// It enforces a limit of model turns itself.
    pub limits_turns: bool,
    /// The model's provider, by its name in the conventions of OpenTelemetry.
    pub provider: Option<&'static str>,
    /// The errors at its start that no further attempt changes.
    pub start_errors: &'static [StartError],
    /// The agents that it can run, as far as they are known.
    pub agents: &'static [Agent],
    /// The agent that it runs, if it is always the same one.
    pub agent: Option<&'static Agent>,
}

impl Default for Traits {
    fn default() -> Self {
        Self {
            scripted: false,
            reports_cost: true,
            limits_turns: false,
            provider: None,
            start_errors: &[],
            agents: &[],
            agent: None,
        }
    }
}

/// An error that a CLI prints before it exits, and that the same command line would cause again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartError {
    /// The texts that one line of stderr contains.
    pub marks: &'static [&'static str],
    /// The reason of the failure for people, with what to do about it.
    pub reason: &'static str,
}

/// Finds the traits of a backend by the name that a dispatch has on record.
#[derive(Debug, Clone, Copy)]
pub struct TraitsOf(pub fn(&str) -> Traits);

impl TraitsOf {
    pub fn get(self, backend: &str) -> Traits {
        (self.0)(backend)
    }
}

/// Knows no backend. It is enough where a fleet is only shown.
impl Default for TraitsOf {
    fn default() -> Self {
        Self(|_| Traits::default())
    }
}
