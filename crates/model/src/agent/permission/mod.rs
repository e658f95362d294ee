//! The policy of a role: what its agent may do without asking.
//!
//! Rules have the syntax of Claude Code's own (`Bash(git *)`, `Edit(src/**)`,
//! `WebFetch(domain:example.com)`, `mcp__server__*`), and mean the same for every agent that asks:
//!
//! | rule | matches |
//! |---|---|
//! | `Tool`, `mcp__server`, `mcp__server__*`, `*` | every call of the tool |
//! | `Bash(git status)` | this command; `Bash(git *)` and `Bash(git:*)`: all commands with this prefix |
//! | `Read(src/**)`, `Edit(//etc/**)`, `Read(~/.ssh/**)` | files, as in a `.gitignore` of the agent's directory; `//` begins an absolute path. `Edit` covers every tool that changes files, `Read` every tool that reads them |
//! | `WebFetch(domain:example.com)` | that host and those below it |
//! | `Other(text*)` | the subject of the call; `*` matches any text |
//!
//! `deny` counts before `ask`, and `ask` before `allow`; if no rule matches, the mode decides. A
//! rule allows only a call that it can see whole (no substitutions in a command, no output written
//! with `>`), and denies a call that is too long to be seen. A shell has many ways to hide what it
//! does. If something must not happen at all, use a sandbox, not a rule.

mod pattern;
mod restriction;
mod rule;
pub mod shell;

use crate::agent::ask::{Ask, AskKind, SUBJECTS, Verdict};
use crate::agent::event::AgentEvent;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use pattern::Strictness;
pub(crate) use pattern::{absolute, path};
pub use restriction::PermissionMode;
use restriction::THINKING;
pub(crate) use restriction::is_harmless;
pub use rule::{BadRule, Rule};
pub(crate) use rule::{EDITING, READING};

/// The `by` of answers that the policy gives.
pub const POLICY: &str = "policy";

/// The policy of one role. Each dispatch keeps it as it was when the dispatch was created.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Policy {
    /// The decision if no rule matches.
    pub mode: Mode,
    /// Rules for tools that need no permission.
    #[schemars(with = "Vec<String>")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Rule>,
    /// Rules for tools that need permission even if `allow` matches.
    #[schemars(with = "Vec<String>")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ask: Vec<Rule>,
    /// Rules for tools that are refused even if `allow` or `ask` matches.
    #[schemars(with = "Vec<String>")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<Rule>,
    /// The role's `tools`: all others are refused. Empty: all may be used. A rule that matches no
    /// tool represents a role's empty list.
    #[schemars(with = "Vec<String>")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<Rule>,
    /// The role's `permissionMode`, which counts if it is stricter than the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permission_mode: Option<PermissionMode>,
    /// The policies of the agents above, which dispatched this one: it may do only what each of
    /// them may do as well.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<Policy>,
}

/// The permission rules of one layer: the configuration, a category or a role.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Permissions {
    /// The decision if no rule matches. Null inherits it from the next layer: role, category,
    /// configuration, then `allow` (`ask` for a rehearsal).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Tools that need no permission, in Claude Code's syntax: `Read`, `Bash(git *)`.
    #[schemars(with = "Vec<String>")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Rule>,
    /// Tools that need permission even if `allow` matches.
    #[schemars(with = "Vec<String>")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ask: Vec<Rule>,
    /// Tools that are refused even if `allow` or `ask` matches.
    #[schemars(with = "Vec<String>")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<Rule>,
}

/// The decision if no rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Allow the tool. Only the worktree, the sandbox and the limits restrict such an agent.
    #[default]
    Allow,
    /// Ask a person, or the parent agent.
    Ask,
    /// Refuse the tool.
    Deny,
}

/// The policy's decision on a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub verdict: Verdict,
    /// The rule or the mode that decided.
    pub rule: String,
}

impl Policy {
    /// Whether nothing is ever asked or refused: then the agent need not be told of a policy.
    pub fn is_open(&self) -> bool {
        self.mode == Mode::Allow
            && self.ask.is_empty()
            && self.deny.is_empty()
            && self.only.is_empty()
            && matches!(self.permission_mode, None | Some(PermissionMode::BypassPermissions))
            && self.within.is_empty()
    }

    /// Adds another agent's policy as an outer bound: the stricter verdict of the two counts.
    pub fn hold_within(&mut self, above: Policy) {
        let Policy { within, .. } = above;
        let own = Policy { within: vec![], ..above };
        for policy in [own].into_iter().chain(within) {
            if !policy.is_open() && !self.within.contains(&policy) {
                self.within.push(policy);
            }
        }
    }

    /// Whether policies of other agents bound this one.
    pub fn is_held(&self) -> bool {
        !self.within.is_empty()
    }

    /// The rules of all policies that count whose calls must be asked about.
    pub fn asks(&self) -> impl Iterator<Item = &Rule> {
        self.all().flat_map(|policy| &policy.ask)
    }

    /// The rules of all policies that count whose calls are refused.
    pub fn denies(&self) -> impl Iterator<Item = &Rule> {
        self.all().flat_map(|policy| &policy.deny)
    }

    fn all(&self) -> impl Iterator<Item = &Policy> {
        std::iter::once(self).chain(&self.within)
    }

    /// Makes the rules that forbid files in `dir` hold for an agent that works elsewhere.
    pub fn forbid_in(&mut self, dir: &str) {
        self.each(&|policy| {
            for rules in [&mut policy.ask, &mut policy.deny] {
                // A rule that would become too long to be read again covers all files.
                let short =
                    |rule: Rule| if rule.fits() { rule } else { Rule { content: None, ..rule } };
                let there: Vec<_> =
                    rules.iter().filter_map(|rule| rule.anchored(dir)).map(short).collect();
                rules.extend(there);
            }
        });
    }

    /// Limits the rules that allow files to `dir`, so that they allow nothing where a child works.
    pub fn allow_in(&mut self, dir: &str) {
        self.each(&|policy| {
            for rules in [&mut policy.allow, &mut policy.only] {
                let there = rules.drain(..).map(|rule| rule.anchored(dir).unwrap_or(rule));
                // A rule that cannot be kept allows nothing, and must not leave everything allowed.
                *rules = there.map(|rule| if rule.fits() { rule } else { Rule::none() }).collect();
            }
        });
    }

    fn each(&mut self, change: &dyn Fn(&mut Policy)) {
        change(self);
        self.within.iter_mut().for_each(change);
    }

    /// Combines `layers`, the strongest first: the rules of all count, and the mode of the first
    /// that names one.
    pub fn of(layers: &[&Permissions], otherwise: Mode) -> Self {
        let mode = layers.iter().find_map(|layer| layer.mode).unwrap_or(otherwise);
        let all = |list: fn(&Permissions) -> &Vec<Rule>| {
            let mut rules: Vec<Rule> = Vec::new();
            for rule in layers.iter().flat_map(|layer| list(layer)) {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
            rules
        };
        Self {
            mode,
            allow: all(|layer| &layer.allow),
            ask: all(|layer| &layer.ask),
            deny: all(|layer| &layer.deny),
            only: vec![],
            permission_mode: None,
            within: vec![],
        }
    }

    /// Allows the tools of an MCP server whose own rules bound them.
    pub fn add_server(&mut self, name: &str) {
        let Ok(rule) = Rule::try_from(format!("mcp__{name}")) else { return };
        if !self.only.is_empty() && !self.only.contains(&rule) {
            self.only.push(rule.clone());
        }
        if !self.allow.contains(&rule) {
            self.allow.push(rule);
        }
    }

    /// Replaces `~` by the agent's home directory.
    pub fn at_home(&mut self, home: &str) {
        let home = home.trim_end_matches('/');
        for rule in
            self.allow.iter_mut().chain(&mut self.ask).chain(&mut self.deny).chain(&mut self.only)
        {
            if let Some(content) = &mut rule.content
                && let Some(rest) = content.strip_prefix("~/")
            {
                *content = format!("/{home}/{rest}");
            }
        }
    }

    /// Decides a request of an agent that works in `cwd`. Returns `None` if somebody has to be
    /// asked.
    pub fn decide(&self, ask: &Ask, cwd: &str) -> Option<Decision> {
        self.all().map(|policy| policy.word(ask, cwd)).min_by_key(leave)?
    }

    /// Whether this event requests something that is allowed at once: nobody has to answer, so it
    /// is not shown as a question.
    pub fn allows(&self, event: &AgentEvent, cwd: &str) -> bool {
        let AgentEvent::Permission { ask, .. } = event else { return false };
        self.decide(ask, cwd).is_some_and(|said| said.verdict == Verdict::Allow)
    }

    /// Returns the rule or the front matter that asks about a call or refuses it, whatever the
    /// mode. Only certain matches count: a call without a subject matches no rule about a subject.
    pub fn names_call(&self, ask: &Ask, cwd: &str) -> Option<String> {
        let told =
            !ask.target.is_empty() || SUBJECTS.iter().any(|key| ask.input.get(*key).is_some());
        let fits =
            |rule: &&Rule| (told || rule.is_whole()) && rule.matches(ask, cwd, Strictness::Any);
        self.all().find_map(|policy| {
            let denied = policy.deny.iter().find(fits).map(|rule| format!("deny {rule}"));
            let kept =
                || policy.kept_from(ask, cwd).filter(|_| !THINKING.contains(&ask.tool.as_str()));
            let asked = || policy.ask.iter().find(fits).map(|rule| format!("ask {rule}"));
            denied.or_else(kept).or_else(asked)
        })
    }

    /// Returns the mode or the rule that forbids to make this call without asking, if there is one.
    pub fn mode_holds(&self, ask: &Ask, cwd: &str) -> Option<String> {
        self.all().find_map(|policy| match policy.word(ask, cwd) {
            Some(Decision { verdict: Verdict::Allow, .. }) => None,
            Some(Decision { rule, .. }) => Some(rule),
            None => Some(match policy.permission_mode {
                Some(mode) if policy.mode == Mode::Allow => {
                    format!("permissionMode {}", mode.as_str())
                }
                _ => "mode ask".into(),
            }),
        })
    }

    /// Whether the agents above may do what this agent asks for without asking. If not, none of
    /// them can allow it.
    pub fn is_given_above(&self, ask: &Ask, cwd: &str) -> bool {
        let given = |policy: &Policy| {
            policy.word(ask, cwd).is_some_and(|said| said.verdict == Verdict::Allow)
        };
        ask.kind == AskKind::Question || self.within.iter().all(given)
    }

    /// The verdict of this policy alone, without those that bound it.
    fn word(&self, ask: &Ask, cwd: &str) -> Option<Decision> {
        let by = |verdict, rule: String| Some(Decision { verdict, rule });
        if let Some(rule) = self.deny.iter().find(|rule| rule.matches(ask, cwd, Strictness::Any)) {
            return by(Verdict::Deny, rule.to_string());
        }
        if ask.kind == AskKind::Question {
            // No policy knows the answer.
            return if self.mode == Mode::Deny {
                by(Verdict::Deny, "mode deny".into())
            } else {
                None
            };
        }
        if let Some(why) = self.kept_from(ask, cwd) {
            return by(Verdict::Deny, why);
        }
        let unasked = self.permission_mode == Some(PermissionMode::DontAsk);
        if self.ask.iter().any(|rule| rule.matches(ask, cwd, Strictness::Any)) {
            return if unasked { by(Verdict::Deny, "permissionMode dontAsk".into()) } else { None };
        }
        if let Some(rule) = self.allow.iter().find(|rule| rule.matches(ask, cwd, Strictness::All)) {
            return by(Verdict::Allow, rule.to_string());
        }
        match (self.mode, self.permission_mode) {
            (Mode::Deny, _) => by(Verdict::Deny, "mode deny".into()),
            (_, Some(PermissionMode::DontAsk)) => {
                by(Verdict::Deny, "permissionMode dontAsk".into())
            }
            (Mode::Ask, _) | (_, Some(PermissionMode::Default)) => None,
            (_, Some(PermissionMode::AcceptEdits)) => match EDITING.contains(&ask.tool.as_str()) {
                true => by(Verdict::Allow, "permissionMode acceptEdits".into()),
                false => None,
            },
            (Mode::Allow, _) => by(Verdict::Allow, "mode allow".into()),
        }
    }

    /// Returns the key of its role's front matter that refuses this call, if one does.
    fn kept_from(&self, ask: &Ask, cwd: &str) -> Option<String> {
        if !self.only.is_empty()
            && !self.only.iter().any(|rule| rule.matches(ask, cwd, Strictness::All))
        {
            let names: Vec<_> = self.only.iter().map(Rule::to_string).collect();
            return Some(format!("tools {}", crate::agent::event::cut(&names.join(", "), 200)));
        }
        let plan = self.permission_mode == Some(PermissionMode::Plan);
        (plan && !is_harmless(&ask.tool)).then(|| "permissionMode plan".to_string())
    }
}

/// Ranks a verdict; a stricter one is smaller.
fn leave(word: &Option<Decision>) -> u8 {
    match word {
        Some(Decision { verdict: Verdict::Allow, .. }) => 2,
        None => 1,
        Some(_) => 0,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
