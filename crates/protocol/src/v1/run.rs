//! A run to start or resume.

use crate::v1::Command;
use serde::{Deserialize, Serialize};

/// A run to start or resume. The client chooses `run_id`, as in [`Spawn`](crate::v1::Spawn).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct Run {
    pub run_id: String,
    /// Absolute path of the repository's top.
    pub repo: String,
    /// The run exists. Decisions from its freeze stay.
    #[serde(default)]
    pub resume: bool,
    /// Absolute path; absent when resumed.
    #[serde(default)]
    pub spec: Option<String>,
    /// The path of the spec that people know, if `spec` is a copy of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_shown: Option<String>,
    #[serde(default)]
    pub target: Option<String>,
    #[serde(default)]
    pub bead_label: Option<String>,
    #[serde(default)]
    pub concurrency: Option<u32>,
    #[serde(default)]
    pub backend: Option<String>,
    #[serde(default)]
    pub command: Option<Command>,
    #[serde(default)]
    pub scenario: Option<String>,
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub budget_usd: Option<f64>,
    #[serde(default)]
    pub max_runtime_s: Option<u64>,
    /// Freeze and decompose, then rest.
    #[serde(default)]
    pub dry_run: bool,
    /// The acceptance criteria wait for approval before anything is planned.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preview_acceptance: bool,
    /// An agent reviews the spec before it is frozen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub review_spec: bool,
    /// The gates at which the run waits for a person, beside those of the configuration: `plan`,
    /// `merge`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub review: Vec<String>,
    /// Approve everything that waits for approval.
    #[serde(default)]
    pub yes: bool,
    /// `implement`, `maintain` or `judge`: continue a run that has ended from this phase.
    /// `judge-only`: have the run judged, and start no further iteration.
    #[serde(default)]
    pub from_phase: Option<String>,
    #[serde(default)]
    pub env: Vec<(String, String)>,
    #[serde(default)]
    pub extra_env: Vec<(String, String)>,
    #[serde(default)]
    pub config: Option<String>,
    /// The thread in which the run asks its questions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Variables for the final push and pull request only. No agent gets them, and they are never
    /// stored on disk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub push_env: Vec<(String, String)>,
}
