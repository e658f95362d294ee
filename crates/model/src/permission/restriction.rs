//! What a role's front matter restricts in Claude Code's own words, and tools that change nothing.

use super::READING;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What Claude Code calls a permission mode, as an agent's file names one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PermissionMode {
    /// What is not allowed by a rule is asked about.
    #[serde(alias = "manual")]
    Default,
    /// As `default`, except that files may be edited.
    #[serde(alias = "accept_edits")]
    AcceptEdits,
    /// It may read, and change nothing.
    Plan,
    /// What is not allowed by a rule is refused. Muleteer refuses it; no CLI runs in this mode.
    #[serde(alias = "dont_ask")]
    DontAsk,
    /// A model of the CLI's own decides. Claude Code alone has it.
    Auto,
    /// Nothing beyond the policy.
    #[serde(alias = "bypass_permissions")]
    BypassPermissions,
}

impl PermissionMode {
    /// As Claude Code spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::AcceptEdits => "acceptEdits",
            Self::Plan => "plan",
            Self::DontAsk => "dontAsk",
            Self::Auto => "auto",
            Self::BypassPermissions => "bypassPermissions",
        }
    }

    /// The mode of that name.
    pub fn parse(name: &str) -> Option<Self> {
        serde_json::from_value(serde_json::Value::String(name.trim().into())).ok()
    }
}

/// Tools that change nothing outside of their agent's head.
pub(super) const THINKING: [&str; 12] = [
    "TodoWrite",
    "TodoRead",
    "ToolSearch",
    "AskUserQuestion",
    "EnterPlanMode",
    "Skill",
    "TaskCreate",
    "TaskUpdate",
    "TaskList",
    "TaskGet",
    "WebSearch",
    "StructuredOutput",
];

/// A tool that reads, or only orders its agent's thoughts.
pub(crate) fn is_harmless(tool: &str) -> bool {
    READING.contains(&tool) || THINKING.contains(&tool) || tool == "WebFetch"
}
