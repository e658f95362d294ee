//! A permission rule: its text, and whether it matches a request.

use crate::agent::ask::{Ask, SUBJECTS, looks_cut};
use crate::agent::permission::pattern::{
    Strictness, absolute_pattern, command, domain, path, wild,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The most bytes of a rule.
const LONGEST: usize = 2000;

/// A permission rule: `Tool` or `Tool(content)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rule {
    pub(super) tool: String,
    pub(super) content: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a rule: write `Tool` or `Tool(pattern)`, like `Bash(git *)`")]
pub struct BadRule(String);

/// Tools that change files, and tools that read them. A rule for the first of a list covers all.
pub(crate) const EDITING: [&str; 4] = ["Edit", "Write", "MultiEdit", "NotebookEdit"];
pub(crate) const READING: [&str; 5] = ["Read", "Grep", "Glob", "LS", "NotebookRead"];

fn is_file(tool: &str) -> bool {
    EDITING.contains(&tool) || READING.contains(&tool)
}

/// Whether the content matches everything.
fn is_all(content: &str) -> bool {
    matches!(content, "*" | "**" | ":*")
}

impl Rule {
    pub(super) fn matches(&self, ask: &Ask, cwd: &str, strictness: Strictness) -> bool {
        if !self.names(&ask.tool) && !self.names_joined(&ask.tool, strictness) {
            return false;
        }
        let Some(content) = self.content.as_deref().filter(|content| !is_all(content)) else {
            return true;
        };
        let unknown = strictness == Strictness::Any;
        let text = |keys: &[&str]| keys.iter().find_map(|key| ask.input.get(*key)?.as_str());
        let subject = match self.tool.as_str() {
            "Bash" => text(&["command"]),
            tool if is_file(tool) => text(&["file_path", "notebook_path", "path"]),
            "WebFetch" => text(&["url"]),
            _ => text(&SUBJECTS),
        };
        // `target` may be only the first line of the subject in `input`.
        let subject = subject.or_else(|| crate::agent::event::subject(&ask.input));
        let subject = subject.or(Some(ask.target.as_str()).filter(|target| !target.is_empty()));
        let Some(subject) = subject.filter(|subject| !looks_cut(subject)) else { return unknown };
        match self.tool.as_str() {
            "Bash" => command(content, subject, strictness),
            tool if is_file(tool) => path(content, subject, cwd).unwrap_or(unknown),
            "WebFetch" => domain(content, subject).unwrap_or(unknown),
            _ => wild(content, subject),
        }
    }

    /// Returns a rule that matches no tool.
    pub(super) fn none() -> Self {
        Self { tool: "none".into(), content: None }
    }

    /// Returns the tool that the rule names.
    pub fn tool(&self) -> &str {
        &self.tool
    }

    /// Whether it covers every call of every tool.
    pub(crate) fn is_every(&self) -> bool {
        self.tool == "*" && self.content.is_none()
    }

    /// Whether it covers every call that `other` covers: it is the same rule, or covers all of the
    /// tool.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self == other || (self.is_whole() && self.tool == other.tool)
    }

    /// Whether it covers every call of its tool.
    pub fn is_whole(&self) -> bool {
        self.content.as_deref().is_none_or(is_all)
    }

    /// Returns a rule about files as an absolute one, for an agent that works in another directory.
    /// Returns `None` for all other rules.
    pub(super) fn anchored(&self, dir: &str) -> Option<Self> {
        let content = self.content.as_deref().filter(|_| is_file(&self.tool))?;
        (!content.starts_with("//") && !is_all(content)).then(|| Self {
            tool: self.tool.clone(),
            content: Some(format!("/{}", absolute_pattern(content, dir))),
        })
    }

    pub(super) fn fits(&self) -> bool {
        self.to_string().len() <= LONGEST
    }

    fn names(&self, tool: &str) -> bool {
        let mine = self.tool.as_str();
        if mine == tool || wild(mine, tool) {
            return true;
        }
        let alike = |group: &[&str]| mine == group[0] && group.contains(&tool);
        let server = mine.starts_with("mcp__") && mine.matches("__").count() == 1;
        alike(&EDITING)
            || alike(&READING)
            || (server && tool.strip_prefix(mine).is_some_and(|r| r.starts_with("__")))
    }

    /// Whether the rule names a tool of an MCP server whose agent joins the two names by one sign,
    /// like `server-tool` (Copilot) and `server_tool` (opencode).
    ///
    /// Nothing tells where the server's name ends, so each place counts. A rule that names no
    /// server may deny such a tool but not allow it, because the tool may be the agent's own.
    fn names_joined(&self, tool: &str, strictness: Strictness) -> bool {
        const SIGNS: [char; 5] = ['-', '_', '.', '/', ':'];
        let Some(server) = self.tool.strip_prefix("mcp__") else { return false };
        let server = server.split("__").next().unwrap_or_default();
        let names_one = !server.is_empty() && !server.contains('*');
        if tool.starts_with("mcp__") || (strictness == Strictness::All && !names_one) {
            return false;
        }
        let folded = |name: &str| name.replace(['.', '/', ':'], "_");
        let rule = Self { tool: folded(&self.tool), content: None };
        let joined = tool.strip_prefix("mcp_").unwrap_or(tool);
        joined.match_indices(SIGNS).any(|(at, _)| {
            let server = joined[..at].trim_end_matches(SIGNS);
            let rest = joined[at..].trim_start_matches(SIGNS);
            let parts = !server.is_empty() && !rest.is_empty();
            parts && rule.names(&format!("mcp__{}__{}", folded(server), folded(rest)))
        })
    }
}

impl TryFrom<String> for Rule {
    type Error = BadRule;

    fn try_from(text: String) -> Result<Self, BadRule> {
        let bad = || BadRule(crate::agent::event::cut(&text, 200));
        let trimmed = text.trim();
        let (tool, content) = match trimmed.split_once('(') {
            None => (trimmed, None),
            Some((tool, rest)) => (tool, Some(rest.strip_suffix(')').ok_or_else(bad)?.trim())),
        };
        let named = !tool.is_empty() && tool.len() <= 200;
        let plain = tool
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '*'));
        if !named || !plain || content.is_some_and(str::is_empty) || text.len() > LONGEST {
            return Err(bad());
        }
        Ok(Self { tool: tool.into(), content: content.map(str::to_string) })
    }
}

impl From<Rule> for String {
    fn from(rule: Rule) -> Self {
        rule.to_string()
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.content {
            Some(content) => write!(f, "{}({content})", self.tool),
            None => f.write_str(&self.tool),
        }
    }
}
