//! Decides which keys of a repository's configuration take effect before the user has trusted it.
//!
//! A repository's `.muleteer/config.yaml` comes with a clone, so a stranger may have written it. A
//! key that names a program, or that is less strict than the weaker layers, takes effect only after
//! `muleteer trust`. A value that is at least as strict always takes effect.

use crate::config::{Layer, Span};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path};

/// How much a source is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trust {
    /// Only safe values take effect.
    Untrusted,
    /// All values take effect except programs and their arguments and variables: for `doctor`.
    RunsNothing,
    Trusted,
}

/// The possible effect of a key in a repository's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Takes effect from any repository.
    Safe,
    /// Gives agents more rights, more money or less supervision. A value that is as strict as that
    /// of the weaker layers takes effect from any repository.
    Loosens(Stricter),
    /// Names a program, its arguments or its variables.
    Runs,
}

impl Effect {
    /// Returns the word in `muleteer trust --json` and `config show --json`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::Loosens(_) => "loosens",
            Self::Runs => "runs",
        }
    }
}

/// When a value counts as at least as strict as the one that it replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stricter {
    /// Only the same value.
    Same,
    /// A number or a duration that is not larger; null means no limit.
    AtMost,
    /// A word that is not before the other one in this order. The first word is the least strict.
    NotBefore(&'static [&'static str]),
    /// A list with no items that the other one lacks.
    Fewer,
    /// A list with all items of the other one.
    More,
    /// `true`.
    True,
    /// This word.
    Word(&'static str),
    /// A path below the repository, if no path is set yet.
    Below,
    /// A model with a price, if the replaced model has one. Without a price, a cost limit does not
    /// stop an agent that reports only tokens.
    Priced,
    /// The name is not set yet. The name is followed by this many parts of the key.
    NewName(usize),
    /// A permission mode; null means that of the next weaker setting.
    Mode,
    /// `sandbox: on`.
    Sandboxed,
}

use Effect::{Loosens, Runs, Safe};
use Stricter::{
    AtMost, Below, Fewer, Mode, More, NewName, NotBefore, Priced, Same, Sandboxed, True, Word,
};

/// The most warnings, because a file may have any number of keys.
const MOST_WARNINGS: usize = 20;

const RESPONSES: &[&str] = &["ignore", "note", "warn", "stop"];
const MODES: &[&str] = &["allow", "ask", "deny"];

/// Every key of the schema; `*` matches any name. A key that is missing here counts as one that
/// runs a program.
const KEYS: &[(&str, Effect)] = &[
    ("backend", Safe),
    ("categories.*.inactivity_timeout", Loosens(AtMost)),
    ("categories.*.max_restarts", Loosens(AtMost)),
    ("categories.*.budget_usd", Loosens(AtMost)),
    ("categories.*.max_turns", Loosens(AtMost)),
    ("categories.*.timeout", Loosens(AtMost)),
    ("categories.*.api_patience", Loosens(AtMost)),
    ("categories.*.api_timeout", Loosens(AtMost)),
    ("categories.*.answer_timeout", Loosens(AtMost)),
    ("categories.*.on_crash", Loosens(NotBefore(&["resume", "ask"]))),
    ("categories.*.result", Safe),
    ("categories.*.monitors.*", Loosens(NotBefore(RESPONSES))),
    ("categories.*.permissions.mode", Loosens(Mode)),
    ("categories.*.permissions.allow", Loosens(Fewer)),
    // Under `mode: deny`, an additional ask rule would ask for something that is denied now.
    ("categories.*.permissions.ask", Loosens(Same)),
    ("categories.*.permissions.deny", Loosens(More)),
    ("categories.*.verbosity", Safe),
    ("categories.*.idle_hold", Loosens(AtMost)),
    ("categories.*.thread_verbosity", Safe),
    ("models.default", Loosens(Priced)),
    ("models.overrides.*", Loosens(Priced)),
    // A low price makes a budget last longer, also for a model without one: without a price,
    // Muleteer warns that the budget cannot be enforced.
    ("models.prices.*.input", Loosens(Same)),
    ("models.prices.*.output", Loosens(Same)),
    ("models.prices.*.cache_read", Loosens(Same)),
    ("models.prices.*.cache_write", Loosens(Same)),
    ("pool.max_agents", Safe),
    ("pool.max_depth", Loosens(AtMost)),
    ("permissions.mode", Loosens(Mode)),
    ("permissions.allow", Loosens(Fewer)),
    ("permissions.ask", Loosens(Same)),
    ("permissions.deny", Loosens(More)),
    ("backends.*.command", Runs),
    ("backends.*.args", Runs),
    ("backends.*.env", Runs),
    ("backends.acp.agent", Safe),
    ("backends.acp.call_timeout", Safe),
    ("env.pass", Loosens(Fewer)),
    ("sandbox", Loosens(Sandboxed)),
    ("sandbox.write", Loosens(Fewer)),
    ("sandbox.show", Loosens(Fewer)),
    ("sandbox.home", Loosens(NotBefore(&["shared", "private"]))),
    ("sandbox.nested", Loosens(Same)),
    ("sandbox.max_processes", Loosens(Same)),
    ("sandbox.max_memory_mib", Loosens(Same)),
    ("sandbox.max_home_mib", Loosens(Same)),
    // A changed name would send an agent to another directory than the user meant.
    ("projects.*", Loosens(NewName(0))),
    ("projects.*.path", Loosens(NewName(1))),
    // The file's text becomes part of prompts.
    ("run.spec", Loosens(Below)),
    ("run.review_spec", Loosens(True)),
    ("run.agent.backend", Safe),
    ("run.agent.command", Runs),
    // These only divide the work of a run: the budgets of the run and its agents limit its cost.
    ("run.agent.max_concurrency", Safe),
    ("run.agent.timeout_per_bead", Safe),
    ("run.agent.max_retries_per_bead", Safe),
    // `auto` is a branch of the run's own; any other branch is the user's.
    ("run.target_branch", Loosens(Word("auto"))),
    ("run.beads.store", Safe),
    ("run.beads.command", Runs),
    ("run.beads.timeout", Safe),
    ("run.worktree.strategy", Loosens(NotBefore(&["shared", "per_agent"]))),
    ("run.worktree.base_branch", Safe),
    ("run.worktree.cleanup", Safe),
    ("run.phases.decompose.auto", Safe),
    ("run.phases.decompose.human_review", Loosens(True)),
    ("run.phases.decompose.existing_selector", Safe),
    ("run.phases.implement.canary", Safe),
    ("run.phases.implement.guidelines", Safe),
    ("run.phases.implement.completion_checks", Safe),
    ("run.phases.maintain.trigger", Safe),
    ("run.phases.maintain.n", Safe),
    ("run.phases.maintain.parallel", Safe),
    ("run.phases.maintain.max_concurrency", Safe),
    ("run.phases.judge.enabled", Loosens(True)),
    ("run.phases.judge.spec_drift", Loosens(True)),
    ("run.phases.judge.acceptance", Loosens(True)),
    ("run.phases.judge.max_iterations", Safe),
    ("run.phases.judge.model", Loosens(Priced)),
    // Pushes and pull requests leave the machine, with the user's credentials.
    ("run.phases.judge.on_complete", Loosens(NotBefore(&["pr", "push", "none"]))),
    ("run.phases.finish.human_review", Loosens(True)),
    ("run.acceptance.generate", Loosens(True)),
    ("run.acceptance.model", Loosens(Priced)),
    // The judge reads that file.
    ("run.acceptance.path", Loosens(Below)),
    // One daemon serves all repositories, and a repository gives nobody rights.
    ("people", Loosens(Same)),
    // They start agents, and one daemon serves all repositories.
    ("schedules", Runs),
    ("healing", Runs),
    // Only the adapters know the meaning of these keys.
    ("adapters", Runs),
    ("mcp.clients", Loosens(Same)),
    ("coordinator.commands", Loosens(Same)),
    ("telemetry.endpoint", Loosens(Same)),
    // It runs commands, and tells other hosts.
    ("notify", Runs),
    ("questions.hold", Safe),
    ("retention.output_mib", Safe),
    ("retention.clean_after", Safe),
    ("retention.compress_after", Safe),
    ("retention.events", Safe),
    ("retention.in_memory", Safe),
];

/// Returns the effect of a key in canonical spelling. A key inherits the effect of the key above
/// it.
pub fn effect(path: &[impl AsRef<str>]) -> Effect {
    let length = |pattern: &str| pattern.split('.').count();
    let fits = |pattern: &str| {
        let mut pairs = pattern.split('.').zip(path);
        length(pattern) <= path.len()
            && pairs.all(|(want, part)| want == "*" || want == part.as_ref())
    };
    // The most specific pattern wins: `sandbox.write` before `sandbox`.
    let fitting = KEYS.iter().filter(|(pattern, _)| fits(pattern));
    fitting.max_by_key(|(pattern, _)| length(pattern)).map_or(Runs, |(_, effect)| *effect)
}

/// Every effective leaf of the weaker layers, by its path.
pub(super) type Weaker = BTreeMap<Vec<String>, Value>;

/// Returns whether a leaf of a source takes effect over the weaker layers.
pub(super) fn counts(trust: Trust, path: &[String], value: &Value, weaker: &Weaker) -> bool {
    let effect = effect(path);
    match (trust, effect) {
        (Trust::Trusted, _) | (_, Safe) | (Trust::RunsNothing, Loosens(_)) => true,
        // An empty mapping replaces nothing.
        _ if value.as_object().is_some_and(serde_json::Map::is_empty) => true,
        _ if weaker.get(path) == Some(value) => true,
        (_, Runs) => false,
        (_, Loosens(stricter)) => is_as_strict(stricter, path, value, weaker),
    }
}

fn is_as_strict(stricter: Stricter, path: &[String], value: &Value, weaker: &Weaker) -> bool {
    let before = replaced(path, weaker);
    let items = |list: Option<&Value>| list.and_then(Value::as_array).cloned().unwrap_or_default();
    let within = |some: &[Value], others: &[Value]| some.iter().all(|item| others.contains(item));
    match stricter {
        Same => false,
        AtMost => amount(Some(value)) <= amount(before),
        NotBefore(order) => rank(order, value) >= rank(order, before.unwrap_or(&Value::Null)),
        Fewer => within(&items(Some(value)), &items(before)),
        More => within(&items(before), &items(Some(value))),
        True => value == &Value::Bool(true),
        Word(word) => value == word,
        Below => before.is_none_or(Value::is_null) && value.as_str().is_some_and(is_below),
        Priced => !was_priced(path, weaker) || is_priced(Some(value), weaker),
        NewName(parts) => {
            let name = &path[..path.len().saturating_sub(parts)];
            !weaker.keys().any(|key| key.starts_with(name))
        }
        Mode => {
            let word = |mode: &Option<Value>| mode.as_ref().map_or(1, |mode| rank(MODES, mode));
            let of_all =
                || weaker.get(&["permissions".to_string(), "mode".to_string()][..]).cloned();
            let set = |mode: Option<&Value>| mode.filter(|mode| !mode.is_null()).cloned();
            // A null in a category means the global mode; a null there means `allow`.
            let next = || if path.len() > 2 { set(of_all().as_ref()) } else { None };
            word(&set(Some(value)).or_else(next)) >= word(&set(before).or_else(next))
        }
        Sandboxed => value == &Value::Bool(true) || value == "on",
    }
}

/// Returns a deny list extended by the rules of the weaker layers that it would drop. `None` for
/// other keys, or if the list adds no rule.
pub(super) fn united(path: &[String], value: &Value, weaker: &Weaker) -> Option<Value> {
    if effect(path) != Loosens(More) {
        return None;
    }
    let before = replaced(path, weaker).and_then(Value::as_array)?;
    let new: Vec<_> = value.as_array()?.iter().filter(|rule| !before.contains(rule)).collect();
    (!new.is_empty()).then(|| before.iter().chain(new).cloned().collect())
}

/// Returns whether a path is relative and does not lead upwards. A symbolic link may still lead
/// elsewhere; the reader of the file checks that.
pub fn is_below(path: &str) -> bool {
    let mut parts = Path::new(path).components();
    !path.starts_with('~')
        && parts.all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

/// Returns whether the model that a key replaces has a price.
fn was_priced(path: &[String], weaker: &Weaker) -> bool {
    let set = weaker.get(path).filter(|model| !model.is_null());
    match path {
        _ if set.is_some() => is_priced(set, weaker),
        // An agent of a run has the model of its category, if it has none of its own.
        [run, ..] if run == "run" => models(weaker).any(|model| is_priced(Some(model), weaker)),
        _ => is_priced(default_model(weaker), weaker),
    }
}

fn default_model(weaker: &Weaker) -> Option<&Value> {
    weaker.get(&["models".to_string(), "default".to_string()][..])
}

/// Returns the default model and those of categories.
fn models(weaker: &Weaker) -> impl Iterator<Item = &Value> {
    let overrides = ["models".to_string(), "overrides".to_string()];
    let of_categories = weaker.iter().filter(move |(key, _)| key.starts_with(&overrides));
    let set = of_categories.map(|(_, model)| model).filter(|model| model.is_string());
    default_model(weaker).into_iter().chain(set)
}

fn is_priced(model: Option<&Value>, weaker: &Weaker) -> bool {
    let Some(model) = model.and_then(Value::as_str) else { return false };
    let name = ["models".to_string(), "prices".to_string(), model.to_string()];
    weaker.keys().any(|key| key.starts_with(&name))
}

/// Returns the value that a leaf replaces. A new category has the limits of `coding`.
fn replaced<'a>(path: &[String], weaker: &'a Weaker) -> Option<&'a Value> {
    let of_coding = || match path {
        [first, _, key, rest @ ..] if first == "categories" && key != "permissions" => {
            let coding = [&["categories".into(), "coding".into(), key.clone()], rest].concat();
            weaker.get(&coding)
        }
        _ => None,
    };
    weaker.get(path).or_else(of_coding)
}

/// Returns a value as a number. No limit is infinite; invalid values are rejected elsewhere.
fn amount(value: Option<&Value>) -> f64 {
    match value {
        Some(Value::Number(number)) => number.as_f64().unwrap_or(f64::INFINITY),
        Some(Value::String(text)) => {
            text.parse::<Span>().map_or(f64::INFINITY, |span| span.as_duration().as_secs_f64())
        }
        _ => f64::INFINITY,
    }
}

/// Returns the position of a word in an order. Unknown words come first.
fn rank(order: &[&str], value: &Value) -> usize {
    let word = value.as_str().map(crate::config::canonical);
    word.and_then(|word| order.iter().position(|known| *known == word)).map_or(0, |at| at + 1)
}

/// A value without effect, because the user has not trusted its repository.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ignored {
    /// The dotted key in its file: `backends.codex.command`; in a role's file `permissions.mode`.
    pub key: String,
    pub value: Value,
    /// `runs` or `loosens`.
    pub effect: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

/// Formats the problem in one line; [`Ignored::warnings`] adds the remedy.
impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.as_deref().unwrap_or_default();
        let line = self.line.map(|line| format!(":{line}")).unwrap_or_default();
        let what = match &self.value {
            // The deny rules of all layers take effect together.
            Value::Array(_) if self.key.ends_with(".deny") || self.key == "disallowedTools" => {
                "removes no rule"
            }
            // The file has no such line.
            Value::Null if self.line.is_none() => "is ignored, and your own value is used",
            _ => "is ignored",
        };
        write!(
            f,
            "{file}{line}: `{}` {what}: you have not trusted the configuration of this repository",
            self.key
        )
    }
}

impl Ignored {
    /// Returns one warning for each value, with the remedy in the last one.
    pub fn warnings(ignored: &[Self]) -> Vec<String> {
        let mut lines: Vec<_> =
            ignored.iter().take(MOST_WARNINGS).map(ToString::to_string).collect();
        if ignored.len() > MOST_WARNINGS {
            lines.push(format!("{} more values are ignored", ignored.len() - MOST_WARNINGS));
        }
        if let Some(last) = lines.last_mut() {
            last.push_str(" (run `muleteer trust` in the repository to allow it)");
        }
        lines
    }
}

/// Returns the default trust of a layer. The user writes all of them except the repository's.
pub(super) fn of_layer(layer: Layer) -> Trust {
    match layer {
        Layer::Project => Trust::Untrusted,
        Layer::Default | Layer::User | Layer::File | Layer::Env | Layer::Set | Layer::Flag => {
            Trust::Trusted
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
