//! The section `healing` of the configuration.

use crate::config::span::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Self-healing of dispatches that stall, fail, or are stopped by a monitor. Only the user's own
/// configuration counts.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Healing {
    /// Whether anything is healed.
    pub enabled: bool,
    /// The role of the light agent.
    pub role: String,
    /// The backend of the light agent; null is the one of any other dispatch.
    pub backend: Option<String>,
    /// The model of the light agent; null is that of its role or backend.
    pub model: Option<String>,
    /// The most choices for one dispatch. The next trouble is left to a person.
    pub max_choices: u32,
    /// The most that all light agents of one dispatch may cost together, in US dollars.
    pub budget_usd: f64,
    /// The most awake time of one light agent.
    pub timeout: Span,
    /// The model with which a failed dispatch is tried once more; null is none.
    pub better_model: Option<String>,
}

impl Healing {
    /// Returns the keys with invalid values, each with the reason.
    pub fn faults(&self) -> Vec<(&'static str, &'static str)> {
        let name =
            |model: &Option<String>| model.as_deref().is_none_or(|model| !model.trim().is_empty());
        let checks = [
            (!self.role.trim().is_empty(), "role", "expected the name of a role"),
            (name(&self.backend), "backend", "expected the name of a backend, or null"),
            (name(&self.model), "model", "expected the name of a model, or null"),
            (name(&self.better_model), "better_model", "expected the name of a model, or null"),
            ((1..=100).contains(&self.max_choices), "max_choices", "expected 1 to 100"),
            (
                self.budget_usd.is_finite() && self.budget_usd > 0.0,
                "budget_usd",
                "expected more than 0",
            ),
            (self.timeout.as_secs() > 0, "timeout", "expected at least one second"),
        ];
        let wrong = checks.into_iter().filter(|(ok, ..)| !ok);
        wrong.map(|(_, key, message)| (key, message)).collect()
    }
}
