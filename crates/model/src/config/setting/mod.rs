//! Settings that people change while the daemon runs: `/set` in a thread, and `config set`.
//!
//! A changed setting is a layer of the configuration over the files and the environment
//! ([`crate::config`]). It is durable, and holds until it is changed or withdrawn. The same checks
//! hold for it as for a value of a file.

pub mod event;

pub use crate::config::setting::event::SettingChanged;

use crate::config::people::LOCAL;
use crate::config::trust::{Effect, effect};
use crate::config::{Config, ConfigError, Source, canonical, load};
use crate::event::Record;
use jiff::Timestamp;
use rpds::RedBlackTreeMapSync;
use serde::{Deserialize, Serialize};

/// The most bytes of a value.
const VALUE_LIMIT: usize = 4096;
/// The most settings that are changed at the same time.
const MOST: usize = 256;

/// A setting in force that was changed at run time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// YAML.
    pub value: String,
    pub by: String,
    pub adapter: String,
    pub at: Timestamp,
    /// The record of the change: a later change is the stronger one.
    pub seq: u64,
}

/// All settings that were changed at run time, by their keys.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RuntimeSettings {
    by_key: RedBlackTreeMapSync<String, Setting>,
}

/// The reason why a setting cannot be changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsettable {
    #[error("the value is longer than {VALUE_LIMIT} bytes, or has several lines")]
    Value,
    #[error("`{0}` is not set at run time")]
    NotSet(String),
    #[error("{MOST} settings are changed already: withdraw one first")]
    TooMany,
    #[error("only the local operator may change `{0}` at run time")]
    Local(String),
    /// The first fault that the configuration would have.
    #[error("{}", .0.message)]
    Invalid(Box<ConfigError>),
}

impl RuntimeSettings {
    /// Folds a change in.
    pub fn apply(&mut self, changed: &SettingChanged, record: &Record) {
        match &changed.value {
            None => drop(self.by_key.remove_mut(&changed.key)),
            Some(value) => self.by_key.insert_mut(
                changed.key.clone(),
                Setting {
                    value: value.clone(),
                    by: changed.by.clone(),
                    adapter: changed.adapter.clone(),
                    at: record.ts,
                    seq: record.seq,
                },
            ),
        }
    }

    /// Returns the settings by their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Setting)> {
        self.by_key.iter().map(|(key, setting)| (key.as_str(), setting))
    }

    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Returns the sources of the configuration, the oldest change first.
    pub fn sources(&self) -> Vec<Source> {
        let mut all: Vec<_> = self.by_key.iter().collect();
        all.sort_by_key(|(_, setting)| setting.seq);
        all.into_iter().map(|(key, setting)| source(key, setting)).collect()
    }

    /// Checks a change against the configuration that it would give, and returns that. `weaker`
    /// are the sources of the files, and `env` the environment. A change may be withdrawn from a
    /// configuration with other faults, which has no values yet: otherwise an edit of a file could
    /// make two changes invalid, and neither could be withdrawn.
    ///
    /// # Errors
    /// The setting may not have this value, or not by this user.
    pub fn check(
        &self,
        changed: &SettingChanged,
        weaker: &[Source],
        env: &[(String, String)],
    ) -> Result<Option<Config>, Unsettable> {
        let key = &changed.key;
        let parts = parts(key);
        let path: Vec<_> = parts.iter().map(|part| canonical(part)).collect();
        if changed.adapter != LOCAL && !is_for_remote(&path) {
            return Err(Unsettable::Local(key.clone()));
        }
        let mut sources = weaker.to_vec();
        let others = self.by_key.iter().filter(|(known, _)| *known != key);
        let mut others: Vec<_> = others.collect();
        others.sort_by_key(|(_, setting)| setting.seq);
        sources.extend(others.iter().map(|(key, setting)| source(key, setting)));
        match &changed.value {
            None if !self.by_key.contains_key(key) => {
                return Err(Unsettable::NotSet(key.clone()));
            }
            None => {}
            Some(_) if others.len() >= MOST => return Err(Unsettable::TooMany),
            Some(value) if value.len() > VALUE_LIMIT || value.chars().any(char::is_control) => {
                return Err(Unsettable::Value);
            }
            Some(value) => {
                let parts: Vec<_> = parts.iter().map(String::as_str).collect();
                sources.push(Source::set(&parts, value, format!("/set {key}")));
            }
        }
        let errors = match load(&sources, env) {
            Ok(config) => return Ok(Some(config)),
            Err(errors) => errors,
        };
        if changed.value.is_none() {
            let before = load(&[weaker, &self.sources()].concat(), env).err().unwrap_or_default();
            if errors.iter().all(|error| before.contains(error)) {
                return Ok(None);
            }
        }
        let first = errors.into_iter().next();
        let unknown = || ConfigError::new("the configuration would be invalid");
        Err(Unsettable::Invalid(Box::new(first.unwrap_or_else(unknown))))
    }
}

/// Returns whether a person of an adapter may set a key: models, and keys that loosen no limit.
fn is_for_remote(path: &[String]) -> bool {
    path.first().is_some_and(|first| first == "models") || effect(path) == Effect::Safe
}

fn source(key: &str, setting: &Setting) -> Source {
    let parts = parts(key);
    let parts: Vec<_> = parts.iter().map(String::as_str).collect();
    let who = match setting.adapter.as_str() {
        LOCAL => setting.by.clone(),
        adapter => format!("{} ({adapter})", setting.by),
    };
    Source::set(&parts, &setting.value, format!("/set by {who} at {:.0}", setting.at))
}

/// Splits a dotted key. A part with a dot stands in double quotes.
fn parts(key: &str) -> Vec<String> {
    let (mut parts, mut part, mut quoted) = (vec![], String::new(), false);
    for c in key.chars() {
        match c {
            '"' => quoted = !quoted,
            '.' if !quoted => parts.push(std::mem::take(&mut part)),
            c => part.push(c),
        }
    }
    parts.push(part);
    parts
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::Layer;
    use crate::event::{Entry, Event, VERSION};

    fn change(key: &str, value: Option<&str>, adapter: &str) -> SettingChanged {
        let (key, value) = (key.into(), value.map(String::from));
        SettingChanged { key, value, by: "anna".into(), adapter: adapter.into() }
    }

    fn apply(settings: &mut RuntimeSettings, seq: u64, changed: &SettingChanged) {
        let event = Event::SettingChanged(Box::new(changed.clone()));
        let entry = Entry { id: String::new(), dispatch_id: None, at: None, more: false, event };
        let record = Record { v: VERSION, seq, ts: Timestamp::UNIX_EPOCH, entry };
        settings.apply(changed, &record);
    }

    fn config(settings: &RuntimeSettings, user: &str) -> Config {
        let mut sources = vec![Source::new(Layer::User, "/c.yaml", user)];
        sources.extend(settings.sources());
        load(&sources, &[("MULETEER_CONFIG__POOL__MAX_DEPTH".into(), "7".into())]).unwrap()
    }

    #[test]
    fn setting_overrides_files_and_environment_until_it_is_withdrawn() {
        let mut settings = RuntimeSettings::default();
        let user = "models: {default: m1}\npool: {max_depth: 3}\n";
        apply(&mut settings, 1, &change("pool", Some("{max_depth: 4}"), "slack"));
        apply(&mut settings, 2, &change("pool.max_depth", Some("5"), "cli"));
        apply(&mut settings, 3, &change("models.default", Some("m2"), "slack"));
        let now = config(&settings, user);
        assert_eq!((now.pool.max_depth, now.models.default.as_deref()), (5, Some("m2")));
        let origin = now.origin("models.default").unwrap();
        assert_eq!((origin.layer, origin.line), (Layer::Set, None));
        assert_eq!(origin.file.as_deref(), Some("/set by anna (slack) at 1970-01-01T00:00:00Z"));
        apply(&mut settings, 4, &change("pool", None, "cli"));
        apply(&mut settings, 5, &change("pool.max_depth", None, "cli"));
        assert_eq!(config(&settings, user).pool.max_depth, 7, "the environment's");
    }

    #[test]
    fn invalid_or_private_settings_are_refused() {
        let mut settings = RuntimeSettings::default();
        let user = [Source::new(Layer::User, "/c.yaml", "categories: {own: {max_turns: 3}}\n")];
        let check = |settings: &RuntimeSettings, key: &str, value: Option<&str>, adapter: &str| {
            let checked = settings.check(&change(key, value, adapter), &user, &[]);
            checked.map(drop).map_err(|error| error.to_string())
        };
        for (key, value, wanted) in [
            ("models.defualt", "m", "unknown key `defualt`"),
            ("pool.max_agents", "0", "expected a number from 1 to 1000"),
            ("pool.max_agents", "{", ""),
            ("models.overrides.nobody", "m", "no category `nobody`"),
            ("models.default", "a\nb: c", "several lines"),
        ] {
            let error = check(&settings, key, Some(value), "cli").unwrap_err();
            assert!(error.contains(wanted), "{key}: {error}");
        }
        for key in [
            "backends.codex.command",
            "people.eve.slack",
            "People.eve.slack",
            "\"people\".eve.slack",
            "adapters.x.command",
            "sandbox",
            "sandbox.write",
            "env.pass",
            "permissions",
            "permissions.mode",
            "categories.coding.permissions.mode",
            "categories.coding.budget_usd",
            "categories",
            "projects.shop",
            "telemetry.endpoint",
            "pool.max_depth",
            "pool",
            "notify",
        ] {
            for value in [Some("U1"), None] {
                let error = check(&settings, key, value, "slack").unwrap_err();
                assert!(error.contains("only the local operator"), "{key}: {error}");
            }
        }
        assert_eq!(check(&settings, "retention.events", Some("100000"), "slack"), Ok(()));
        assert_eq!(check(&settings, "people.eve.slack", Some("U1"), "cli"), Ok(()));
        assert_eq!(check(&settings, "models.prices.\"gpt-4.1\".input", Some("2"), "slack"), Ok(()));
        assert!(check(&settings, "models.default", None, "cli").is_err());
        apply(&mut settings, 1, &change("models.default", Some("m"), "cli"));
        assert_eq!(check(&settings, "models.default", None, "slack"), Ok(()));
    }

    #[test]
    fn withdrawal_needs_no_valid_configuration_but_adds_no_fault() {
        let mut settings = RuntimeSettings::default();
        apply(&mut settings, 1, &change("models.overrides.one", Some("m"), "cli"));
        apply(&mut settings, 2, &change("models.overrides.two", Some("m"), "cli"));
        // An edit has removed both categories.
        let user = [Source::new(Layer::User, "/c.yaml", "models: {default: m1}\n")];
        let one = settings.check(&change("models.overrides.one", None, "cli"), &user, &[]).unwrap();
        assert!(one.is_none(), "the other one is still invalid");
        let set = change("models.default", Some("m2"), "cli");
        assert!(matches!(settings.check(&set, &user, &[]), Err(Unsettable::Invalid(_))));
        apply(&mut settings, 3, &change("models.overrides.one", None, "cli"));
        let two = settings.check(&change("models.overrides.two", None, "cli"), &user, &[]).unwrap();
        assert_eq!(two.unwrap().models.default.as_deref(), Some("m1"));
        // A withdrawal that causes a fault is refused.
        let mut settings = RuntimeSettings::default();
        let category = "{max_turns: 3}";
        apply(&mut settings, 1, &change("categories.own", Some(category), "cli"));
        apply(&mut settings, 2, &change("models.overrides.own", Some("m"), "cli"));
        let withdrawn = settings.check(&change("categories.own", None, "cli"), &user, &[]);
        assert!(matches!(withdrawn, Err(Unsettable::Invalid(_))), "{withdrawn:?}");
    }
}
