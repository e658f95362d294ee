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

mod restriction;
pub mod shell;

use crate::agent::ask::{Ask, AskKind, SUBJECTS, Verdict, looks_cut};
use crate::agent::event::AgentEvent;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

pub use restriction::PermissionMode;
use restriction::THINKING;
pub(crate) use restriction::is_harmless;

/// The most bytes of a rule.
const LONGEST: usize = 2000;

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

/// A permission rule: `Tool` or `Tool(content)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rule {
    tool: String,
    content: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a rule: write `Tool` or `Tool(pattern)`, like `Bash(git *)`")]
pub struct BadRule(String);

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

/// The part of a call that a rule must match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strictness {
    /// Any part of it, or one that cannot be judged: for rules that forbid.
    Any,
    /// All of it, and for certain: for rules that allow.
    All,
}

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
    fn matches(&self, ask: &Ask, cwd: &str, strictness: Strictness) -> bool {
        if !self.names(&ask.tool) {
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
    fn none() -> Self {
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
    fn anchored(&self, dir: &str) -> Option<Self> {
        let content = self.content.as_deref().filter(|_| is_file(&self.tool))?;
        (!content.starts_with("//") && !is_all(content)).then(|| Self {
            tool: self.tool.clone(),
            content: Some(format!("/{}", absolute_pattern(content, dir))),
        })
    }

    fn fits(&self) -> bool {
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
}

/// Matches a shell command. Each of its parts is judged by itself, so `git status && rm -rf /` is
/// not allowed by `Bash(git *)`, and is denied by `Bash(rm *)`.
fn command(pattern: &str, command: &str, strictness: Strictness) -> bool {
    let fits = |part: &str| prefix(pattern, part.trim());
    let whole = command.trim();
    match strictness {
        Strictness::Any => {
            // White space between words does not count.
            let fits = |part: &str| fits(&part.split_whitespace().collect::<Vec<_>>().join(" "));
            let whole = &whole.replace("\\\n", " ");
            let parts = whole.split(['\n', ';', '|', '&', '`', '(', ')', '{', '}']);
            fits(whole) || parts.map(bare).any(fits)
        }
        Strictness::All => {
            // A command that runs something unseen or writes a file never matches by its prefix.
            let unseen = ['`', '$', '<', '>', '(', ')', '{', '}', '\\']
                .iter()
                .any(|sign| whole.contains(*sign));
            let mut parts =
                whole.split(['\n', ';', '|', '&']).filter(|part| !part.trim().is_empty());
            pattern == whole || (!unseen && !whole.is_empty() && parts.all(fits))
        }
    }
}

/// Returns a command without what may precede it: variables, and words that run what follows.
fn bare(part: &str) -> &str {
    const BEFORE: [&str; 9] =
        ["!", "sudo", "env", "command", "exec", "nohup", "time", "nice", "eval"];
    let mut rest = part.trim();
    while let Some((word, more)) = rest.split_once(char::is_whitespace) {
        let sets = word
            .split_once('=')
            .is_some_and(|(name, _)| !name.is_empty() && !name.contains(['-', '/']));
        if !sets && !BEFORE.contains(&word) {
            break;
        }
        rest = more.trim_start();
    }
    rest
}

/// Whether `text` matches a prefix: `git *` and `git:*` match `git` alone or with arguments.
fn prefix(pattern: &str, text: &str) -> bool {
    let head = pattern.strip_suffix(":*").or_else(|| pattern.strip_suffix(" *"));
    match head {
        Some(head) if !head.contains('*') => {
            text == head || text.strip_prefix(head).is_some_and(|r| r.starts_with(' '))
        }
        _ => wild(pattern, text) || head.is_some_and(|head| wild(head, text)),
    }
}

/// Matches a path. Returns `None` for a path that cannot be resolved.
pub(crate) fn path(pattern: &str, path: &str, cwd: &str) -> Option<bool> {
    let path = absolute(path, cwd)?;
    let anchored = absolute_pattern(pattern, cwd);
    let pattern: Vec<_> =
        anchored.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
    Some(segments(&pattern, &parts))
}

/// Returns the absolute path without `.` and `..`; `None` above the root.
pub(crate) fn absolute(path: &str, cwd: &str) -> Option<String> {
    if path.starts_with('/') { normal(path) } else { normal(&format!("{cwd}/{path}")) }
}

fn absolute_pattern(pattern: &str, cwd: &str) -> String {
    if let Some(rest) = pattern.strip_prefix("//") {
        return format!("/{rest}");
    }
    match pattern.strip_prefix("./").or_else(|| pattern.strip_prefix('/')) {
        Some(inner) => format!("{cwd}/{inner}"),
        // A name without a slash matches at any depth, as in a .gitignore.
        None if !pattern.trim_end_matches('/').contains('/') => format!("{cwd}/**/{pattern}"),
        None => format!("{cwd}/{pattern}"),
    }
}

/// Removes `.` and `..`; returns `None` above the root.
fn normal(path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(format!("/{}", parts.join("/")))
}

/// Matches segments. `**` is any number of segments. A pattern that names a directory covers its
/// content.
fn segments(pattern: &[&str], path: &[&str]) -> bool {
    match (pattern, path) {
        ([], _) => true,
        (["**", rest @ ..], path) => {
            rest.is_empty() || (0..=path.len()).any(|skipped| segments(rest, &path[skipped..]))
        }
        (_, []) => false,
        ([first, rest @ ..], [name, path @ ..]) => wild(first, name) && segments(rest, path),
    }
}

/// Matches a host. Returns `None` if the address names no host.
fn domain(pattern: &str, url: &str) -> Option<bool> {
    let wanted = pattern.strip_prefix("domain:")?.trim().to_ascii_lowercase();
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#', '\\']).next()?;
    // An address that hides the host behind a user name is not trusted.
    if authority.contains('@') {
        return None;
    }
    let host = authority.split(':').next()?.trim_end_matches('.').to_ascii_lowercase();
    let wanted = wanted.strip_prefix("*.").unwrap_or(&wanted);
    (!host.is_empty())
        .then(|| host == wanted || host.strip_suffix(wanted).is_some_and(|sub| sub.ends_with('.')))
}

/// Matches a pattern in which `*` is any text, also none. The time grows with both lengths,
/// whatever the pattern.
fn wild(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let Some(first) = pieces.next() else { return text.is_empty() };
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let pieces: Vec<_> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else { return rest.is_empty() };
    for piece in middle {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
