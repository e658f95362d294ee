//! How often agents write to their journals.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How often an agent is told to write to its journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verbosity {
    /// When it has finished, has decided something that others must know, or is blocked.
    Low,
    /// When it starts or finishes a step, and at least every 15 minutes.
    #[default]
    Normal,
    /// Also before a command that takes longer, and at least every 5 minutes.
    High,
}
