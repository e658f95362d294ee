//! How often agents write to their journals, and what a thread is told of their work.

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

/// How much the thread of an agent is told of its work. Each level includes the one before.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ThreadVerbosity {
    /// Stalls, and the ends of tasks.
    Quiet,
    /// Also journal entries, warnings of monitors, crashes, compactions and reached limits.
    #[default]
    Normal,
    /// Also notes of monitors, failed tools, changes of the model and waits for the model API.
    All,
}

impl ThreadVerbosity {
    const ALL: [Self; 3] = [Self::Quiet, Self::Normal, Self::All];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Normal => "normal",
            Self::All => "all",
        }
    }

    /// Returns the level with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == name)
    }
}
