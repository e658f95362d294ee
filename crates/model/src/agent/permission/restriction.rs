//! Restrictions by a role's front matter in Claude Code's syntax, and tools that change nothing.

use crate::agent::permission::{Mode, Policy, READING, Rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A permission mode of Claude Code, as an agent's file names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PermissionMode {
    /// Tools that no rule allows need permission.
    #[serde(alias = "manual")]
    Default,
    /// The same as `default`, but files may be edited.
    #[serde(alias = "accept_edits")]
    AcceptEdits,
    /// The agent may read and change nothing.
    Plan,
    /// Tools that no rule allows are refused. Muleteer refuses them; no CLI runs in this mode.
    #[serde(alias = "dont_ask")]
    DontAsk,
    /// A model of the CLI decides. Only Claude Code has this mode.
    Auto,
    /// The mode adds nothing to the policy.
    #[serde(alias = "bypass_permissions")]
    BypassPermissions,
}

impl PermissionMode {
    /// Returns the name as Claude Code spells it.
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

    /// Returns the mode of that name.
    pub fn parse(name: &str) -> Option<Self> {
        serde_json::from_value(serde_json::Value::String(name.trim().into())).ok()
    }
}

impl Policy {
    /// Applies the restrictions of a role's front matter other than its `permissions`. An empty
    /// list of `tools` allows no tool; without a list, all may be used.
    pub fn restrict(
        &mut self,
        tools: Option<&[String]>,
        disallowed: &[String],
        mode: Option<PermissionMode>,
    ) {
        // Role files are checked. A rule that cannot be read all the same allows nothing.
        let rule = |text: &String| Rule::try_from(text.clone()).unwrap_or_else(|_| Rule::none());
        let read = |list: &[String]| list.iter().map(rule).collect::<Vec<_>>();
        let disallowed = read(disallowed);
        self.only = match tools.map(read) {
            None => vec![],
            // A list that names every tool restricts nothing.
            Some(tools) if tools.iter().any(Rule::is_every) => vec![],
            Some(tools) if tools.is_empty() => vec![Rule::none()],
            Some(tools) => tools,
        };
        let new: Vec<_> = disallowed.into_iter().filter(|rule| !self.deny.contains(rule)).collect();
        self.deny.extend(new);
        self.permission_mode = mode;
    }

    /// Whether its only restriction is the role's `plan` mode, under which it may change no files.
    pub fn is_open_but_for_plan(&self) -> bool {
        let open = Self { permission_mode: None, ..self.clone() }.is_open();
        open && self.permission_mode == Some(PermissionMode::Plan)
    }

    /// Whether only the role's `permissionMode` and the `deny` rules restrict it.
    pub fn leaves_the_rest(&self) -> bool {
        self.mode == Mode::Allow
            && self.ask.is_empty()
            && self.only.is_empty()
            && self.within.is_empty()
    }

    /// The role's `tools` in effect.
    pub fn only(&self) -> &[Rule] {
        &self.only
    }

    /// Whether its role's `tools` allow no tool.
    pub fn has_no_tools(&self) -> bool {
        !self.only.is_empty() && self.only.iter().all(|rule| *rule == Rule::none())
    }

    /// The tools that are refused whatever their input.
    pub fn never(&self) -> impl Iterator<Item = &str> {
        self.denies().filter(|rule| rule.is_whole()).map(|rule| rule.tool.as_str())
    }
}

/// Tools that only change their agent's own notes and context.
pub(super) const THINKING: [&str; 13] = [
    "TodoWrite",
    "TodoRead",
    "ToolSearch",
    "AskUserQuestion",
    "EnterPlanMode",
    "Skill",
    "Think",
    "TaskCreate",
    "TaskUpdate",
    "TaskList",
    "TaskGet",
    "WebSearch",
    "StructuredOutput",
];

/// Whether a tool only reads, or only changes its agent's own notes and context.
pub(crate) fn is_harmless(tool: &str) -> bool {
    READING.contains(&tool) || THINKING.contains(&tool) || tool == "WebFetch"
}

impl Policy {
    /// Whether a rule allows the reading of some files and not of others.
    pub(crate) fn limits_reading(&self) -> bool {
        let limits = |rule: &Rule| READING.contains(&rule.tool.as_str()) && !rule.is_whole();
        self.all().any(|policy| policy.allow.iter().any(limits))
    }
}
