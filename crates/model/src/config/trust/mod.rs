//! Which keys of a repository's configuration count before a person has trusted it.
//!
//! A repository's `.muleteer/config.yaml` comes with a clone, so a stranger wrote it. A key that
//! names something to run, or that loosens what the weaker layers say, counts only after `muleteer
//! trust`. A value that is at least as strict as theirs counts always.

pub mod claude;

use crate::config::{Layer, Span};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path};

/// How far a source's values count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trust {
    /// Only what is safe from anybody.
    Untrusted,
    /// All but what names a program to run, or what such a program is started with: for `doctor`.
    RunsNothing,
    Trusted,
}

/// What a key of a repository's configuration can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Counts from any repository.
    Safe,
    /// Gives agents more rights, more money or less supervision. A value that is as strict as that
    /// of the weaker layers counts from any repository.
    Loosens(Stricter),
    /// Names a program, its arguments or its variables.
    Runs,
}

impl Effect {
    /// As `muleteer trust --json` and `config show --json` say it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::Loosens(_) => "loosens",
            Self::Runs => "runs",
        }
    }
}

/// When a value is as strict as the one it replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stricter {
    /// Only the same value.
    Same,
    /// A number or a duration that is not larger; null is no limit.
    AtMost,
    /// A word that does not come before the other one in this order, the loosest first.
    NotBefore(&'static [&'static str]),
    /// A list whose items the other one has too.
    Fewer,
    /// A list that has all items of the other one.
    More,
    /// `true`.
    True,
    /// This word.
    Word(&'static str),
    /// A path below the repository, where no path is set yet.
    Below,
    /// A model with a price, where the model that it replaces has one: without a price, a cost
    /// limit does not hold an agent that reports tokens only.
    Priced,
    /// Nothing is set yet for the name, which is the key's last but so many parts.
    NewName(usize),
    /// The mode of permissions: what the next layer says where it is null.
    Mode,
    /// `sandbox` itself: `on`.
    Sandboxed,
}

use Effect::{Loosens, Runs, Safe};
use Stricter::{
    AtMost, Below, Fewer, Mode, More, NewName, NotBefore, Priced, Same, Sandboxed, True, Word,
};

/// A file may have any number of keys.
const MOST_WARNINGS: usize = 20;

const RESPONSES: &[&str] = &["ignore", "note", "warn", "stop"];
const MODES: &[&str] = &["allow", "ask", "deny"];

/// Every key of the schema; `*` is any name. A key that is missing here is taken for one that runs
/// something.
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
    // Under `mode: deny` a further rule asks where it was refused before.
    ("categories.*.permissions.ask", Loosens(Same)),
    ("categories.*.permissions.deny", Loosens(More)),
    ("models.default", Loosens(Priced)),
    ("models.overrides.*", Loosens(Priced)),
    // A low price makes a budget last longer, also of a model that had none: without a price,
    // Muleteer warns that the budget cannot be kept.
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
    // A name that leads elsewhere than the person said sends an agent to another directory.
    ("projects.*", Loosens(NewName(0))),
    ("projects.*.path", Loosens(NewName(1))),
    // It becomes part of prompts.
    ("run.spec", Loosens(Below)),
    ("run.agent.backend", Safe),
    ("run.agent.command", Runs),
    // How a run divides its work: its agents' budgets and those of the run bound what it costs.
    ("run.agent.max_concurrency", Safe),
    ("run.agent.timeout_per_bead", Safe),
    ("run.agent.max_retries_per_bead", Safe),
    // `auto` is a branch of the run's own; any other is the person's.
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
    ("run.phases.judge.model", Safe),
    // What leaves this machine, with the person's own credentials.
    ("run.phases.judge.on_complete", Loosens(NotBefore(&["pr", "push", "none"]))),
    ("run.acceptance.generate", Loosens(True)),
    ("run.acceptance.model", Safe),
    // The judge reads what is there.
    ("run.acceptance.path", Loosens(Below)),
    // Their adapters alone know what they mean.
    ("adapters", Runs),
    ("telemetry.endpoint", Loosens(Same)),
    ("retention.output_mib", Safe),
];

/// What a key can do, in canonical spelling; what is below a key can do what the key can.
pub fn effect(path: &[impl AsRef<str>]) -> Effect {
    let length = |pattern: &str| pattern.split('.').count();
    let fits = |pattern: &str| {
        let mut pairs = pattern.split('.').zip(path);
        length(pattern) <= path.len()
            && pairs.all(|(want, part)| want == "*" || want == part.as_ref())
    };
    // The longest one speaks: of `sandbox.write`, not `sandbox`.
    let fitting = KEYS.iter().filter(|(pattern, _)| fits(pattern));
    fitting.max_by_key(|(pattern, _)| length(pattern)).map_or(Runs, |(_, effect)| *effect)
}

/// Every effective leaf of the layers below, by its path.
pub(super) type Weaker = BTreeMap<Vec<String>, Value>;

/// Whether a leaf of a source counts over what weaker layers say.
pub(super) fn counts(trust: Trust, path: &[String], value: &Value, weaker: &Weaker) -> bool {
    let effect = effect(path);
    match (trust, effect) {
        (Trust::Trusted, _) | (_, Safe) | (Trust::RunsNothing, Loosens(_)) => true,
        // It replaces nothing.
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
        Priced => !is_priced(model_before(path, weaker), weaker) || is_priced(Some(value), weaker),
        NewName(parts) => {
            let name = &path[..path.len().saturating_sub(parts)];
            !weaker.keys().any(|key| key.starts_with(name))
        }
        Mode => {
            let word = |mode: &Option<Value>| mode.as_ref().map_or(1, |mode| rank(MODES, mode));
            let of_all =
                || weaker.get(&["permissions".to_string(), "mode".to_string()][..]).cloned();
            let set = |mode: Option<&Value>| mode.filter(|mode| !mode.is_null()).cloned();
            // A category's null leaves it to the configuration, and that one's to `allow`.
            let next = || if path.len() > 2 { set(of_all().as_ref()) } else { None };
            word(&set(Some(value)).or_else(next)) >= word(&set(before).or_else(next))
        }
        Sandboxed => value == &Value::Bool(true) || value == "on",
    }
}

/// A list of rules that refuse, with those that it would leave out of the layers below; `None` for
/// any other key, or where it adds nothing.
pub(super) fn united(path: &[String], value: &Value, weaker: &Weaker) -> Option<Value> {
    if effect(path) != Loosens(More) {
        return None;
    }
    let before = replaced(path, weaker).and_then(Value::as_array)?;
    let new: Vec<_> = value.as_array()?.iter().filter(|rule| !before.contains(rule)).collect();
    (!new.is_empty()).then(|| before.iter().chain(new).cloned().collect())
}

/// A relative path that does not lead upwards. A link on its way may still lead elsewhere: the
/// reader of the file checks that.
pub fn is_below(path: &str) -> bool {
    let mut parts = Path::new(path).components();
    !path.starts_with('~')
        && parts.all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

/// The model that a key of `models` replaces.
fn model_before<'a>(path: &[String], weaker: &'a Weaker) -> Option<&'a Value> {
    let default = ["models".to_string(), "default".to_string()];
    weaker.get(path).filter(|model| !model.is_null()).or_else(|| weaker.get(&default[..]))
}

fn is_priced(model: Option<&Value>, weaker: &Weaker) -> bool {
    let Some(model) = model.and_then(Value::as_str) else { return false };
    let name = ["models".to_string(), "prices".to_string(), model.to_string()];
    weaker.keys().any(|key| key.starts_with(&name))
}

/// What it replaces; a category that is new has `coding`'s limits until then.
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

/// No limit is more than any; what cannot be read is refused elsewhere.
fn amount(value: Option<&Value>) -> f64 {
    match value {
        Some(Value::Number(number)) => number.as_f64().unwrap_or(f64::INFINITY),
        Some(Value::String(text)) => {
            text.parse::<Span>().map_or(f64::INFINITY, |span| span.as_duration().as_secs_f64())
        }
        _ => f64::INFINITY,
    }
}

/// A word that is none of them comes first.
fn rank(order: &[&str], value: &Value) -> usize {
    let word = value.as_str().map(crate::config::canonical);
    word.and_then(|word| order.iter().position(|known| *known == word)).map_or(0, |at| at + 1)
}

/// A value that does not count, because nobody trusted the repository that it comes from.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ignored {
    /// Dotted, in its file: `backends.codex.command`; of a role's file `permissions.mode`.
    pub key: String,
    pub value: Value,
    /// `runs` or `loosens`.
    pub effect: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

/// What is wrong, in one line; what to do about it is said by [`Ignored::warnings`].
impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.as_deref().unwrap_or_default();
        let line = self.line.map(|line| format!(":{line}")).unwrap_or_default();
        let what = match &self.value {
            // Of lists of rules that refuse, the rules of all layers count.
            Value::Array(_) if self.key.ends_with(".deny") || self.key == "disallowedTools" => {
                "takes away no rule"
            }
            // The file has no line that says so.
            Value::Null if self.line.is_none() => "is left out, and yours counts",
            _ => "is ignored",
        };
        write!(
            f,
            "{file}{line}: `{}` {what}: you have not trusted this repository's configuration",
            self.key
        )
    }
}

impl Ignored {
    /// One line for each, and what to do about them in the last; none for none.
    pub fn warnings(ignored: &[Self]) -> Vec<String> {
        let mut lines: Vec<_> =
            ignored.iter().take(MOST_WARNINGS).map(ToString::to_string).collect();
        if ignored.len() > MOST_WARNINGS {
            lines.push(format!("{} more values are ignored", ignored.len() - MOST_WARNINGS));
        }
        if let Some(last) = lines.last_mut() {
            last.push_str(" (run `muleteer trust` in it to allow what it says)");
        }
        lines
    }
}

/// The trust that a layer has where nobody says otherwise: a person writes all of them but the
/// repository's.
pub(super) fn of_layer(layer: Layer) -> Trust {
    match layer {
        Layer::Project => Trust::Untrusted,
        Layer::Default | Layer::User | Layer::File | Layer::Env | Layer::Flag => Trust::Trusted,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
