//! Configuration: layers of YAML merged key by key, with the origin of every value known.
//!
//! ```text
//!  default  embedded, config/default.yaml           weakest
//!  user     $XDG_CONFIG_HOME/muleteer/config.yaml
//!  project  <repo>/.muleteer/config.yaml
//!  file     --config FILE
//!  env      MULETEER_CONFIG__POOL__MAX_AGENTS=4
//!  flag     [`Source::flag`]                         strongest
//! ```
//!
//! Mappings merge, anything else (a list too) replaces what a weaker layer said; `null` unsets.
//! Keys are snake_case; `inactivityTimeout` and `claude-code` are read as well.
//!
//! **Variables.** `MULETEER_CONFIG__` and then the key, `__` between its parts, in upper case; the
//! value is YAML (`4`, `15m`, `[A, B]`). Parts become lower case, except the name of a variable
//! below `backends.<name>.env`. A name with characters a variable cannot hold needs a file.
//!
//! **Trust.** A repository's file is a stranger's until the user trusts it: [`trust`] says which of
//! its keys count before that.
//!
//! This module reads no file: callers pass text in.

pub mod otlp_endpoint;

mod decode;
mod error;
mod layers;
mod span;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
pub mod trust;
mod types;
pub(crate) mod yaml;

pub(crate) use decode::decode;
pub(crate) use error::Place;
pub use error::{CODE, ConfigError, NotFound, nearest};
pub use span::{BadSpan, Span};
pub use trust::{Ignored, Trust};
pub use types::*;
pub use yaml::with_file_lines;

use serde::Serialize;
use serde_json::Value;
use std::fmt;
use std::path::{Path, PathBuf};

/// The embedded defaults; every key has its value here.
pub const DEFAULT: &str = include_str!("../../../../config/default.yaml");

/// Prefix of the variables that set configuration keys.
pub const ENV_PREFIX: &str = "MULETEER_CONFIG__";

/// Where a value came from, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    Default,
    User,
    Project,
    /// `--config FILE`.
    File,
    Env,
    Flag,
}

impl Layer {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::User => "user",
            Self::Project => "project",
            Self::File => "file",
            Self::Env => "env",
            Self::Flag => "flag",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One layer's text. Several sources of the same layer are merged in the order given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    pub layer: Layer,
    /// The path, as errors and `config show` print it.
    pub file: Option<String>,
    pub text: String,
    /// Which of its values count.
    pub trust: Trust,
}

impl Source {
    /// A repository's is not trusted; see [`Self::trusted`].
    pub fn new(layer: Layer, file: impl Into<String>, text: impl Into<String>) -> Self {
        Self { layer, file: Some(file.into()), text: text.into(), trust: trust::of_layer(layer) }
    }

    /// The same with another trust.
    #[must_use]
    pub fn trusted(self, trust: Trust) -> Self {
        Self { trust, ..self }
    }

    /// One key set on the command line: `Source::flag("pool.max_agents", "4")`. The value is YAML.
    pub fn flag(key: &str, value: &str) -> Self {
        let parts: Vec<&str> = key.split('.').collect();
        Self::new(Layer::Flag, format!("flag {key}"), layers::nested(&parts, value))
    }
}

/// The configuration in force. Dereferences to [`Settings`], the typed keys.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    settings: Settings,
    origins: Vec<Origin>,
    ignored: Vec<Ignored>,
}

/// One effective leaf: a scalar, a list, or an empty mapping.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Origin {
    /// Dotted: `categories.coding.budget_usd`.
    pub key: String,
    /// As it was written (`15m` stays text); [`Config::to_json`] has the typed value.
    pub value: Value,
    pub layer: Layer,
    /// A path, a variable's name, or `flag <key>`; none for the embedded default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
}

impl Origin {
    /// One daemon serves all projects: what is its own is taken from no project's file.
    pub fn is_in_vain(&self) -> bool {
        let daemon_s = || {
            self.key == "pool.max_agents"
                || self.key.starts_with("retention.")
                || self.key.starts_with("telemetry.")
        };
        self.layer == Layer::Project && daemon_s()
    }
}

/// Merges the embedded default, `sources` (in any order) and those of `env` that begin with
/// [`ENV_PREFIX`].
///
/// # Errors
/// Every fault that could be found, in all layers, each with its place.
pub fn load(sources: &[Source], env: &[(String, String)]) -> Result<Config, Vec<ConfigError>> {
    layers::load(sources, env)
}

/// The JSON schema of a configuration file (`config schema`).
pub fn schema() -> Value {
    // The defaults a derive can see are Rust's, not those of `default.yaml`.
    let no_defaults = schemars::transform::RecursiveTransform(|schema: &mut schemars::Schema| {
        schema.remove("default");
    });
    let mut schema = schemars::generate::SchemaSettings::default()
        .with_transform(no_defaults)
        .into_generator()
        .into_root_schema_for::<Settings>();
    schema.insert("title".into(), "Muleteer configuration".into());
    schema.to_value()
}

impl std::ops::Deref for Config {
    type Target = Settings;
    fn deref(&self) -> &Settings {
        &self.settings
    }
}

impl Config {
    /// The same, with agents' CLIs called as another configuration has it.
    pub fn with_backends_of(&self, other: &Self) -> Self {
        let settings =
            Settings { backends: other.settings.backends.clone(), ..self.settings.clone() };
        Self { settings, origins: self.origins.clone(), ignored: self.ignored.clone() }
    }

    /// The embedded defaults alone.
    ///
    /// # Errors
    /// Never in a build whose tests passed.
    pub fn defaults() -> Result<Self, Vec<ConfigError>> {
        load(&[], &[])
    }

    /// # Errors
    /// When no such category is configured.
    pub fn category(&self, name: &str) -> Result<&Category, NotFound> {
        let known = || NotFound::new("category", name, self.categories.keys().map(String::as_str));
        self.categories.get(name).ok_or_else(known)
    }

    /// Every effective leaf with the layer, file and line it came from, in order of the keys.
    pub fn origins(&self) -> &[Origin] {
        &self.origins
    }

    /// The values of a repository's file that do not count, because the user has not trusted it.
    pub fn ignored(&self) -> &[Ignored] {
        &self.ignored
    }

    /// The origin of one dotted key.
    pub fn origin(&self, key: &str) -> Option<&Origin> {
        self.origins.iter().find(|origin| origin.key == key)
    }

    /// The typed configuration, durations in seconds.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(&self.settings).unwrap_or_default()
    }

    /// The directory of a configured project: `~/` is `home`; a relative path is relative to the
    /// repository of a project file, else to the folder of the file it stands in.
    pub fn project_path(&self, name: &str, home: Option<&Path>) -> Option<PathBuf> {
        let path = self.projects.get(name)?.path();
        if let (Some(rest), Some(home)) = (path.strip_prefix("~/"), home) {
            return Some(home.join(rest));
        }
        let key = format!("projects.{name}");
        let origin = self.origin(&key).or_else(|| self.origin(&format!("{key}.path")));
        let base = origin
            .filter(|o| matches!(o.layer, Layer::User | Layer::Project | Layer::File))
            .and_then(|origin| {
                let folder = Path::new(origin.file.as_ref()?).parent()?;
                if origin.layer == Layer::Project { folder.parent() } else { Some(folder) }
            });
        Some(base.map_or_else(|| PathBuf::from(path), |base| base.join(path)))
    }
}

/// Which of the four layers chose a dispatch's model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelSource {
    Flag,
    Role,
    Category,
    Default,
}

impl ModelSource {
    /// As [`crate::event::Created::model_source`] holds it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::Role => "role",
            Self::Category => "category",
            Self::Default => "default",
        }
    }
}

/// The most specific model named: `--model`, the role's, the category's override, the default. No
/// model at all leaves the choice to the agent CLI.
pub fn resolve_model(
    flag: Option<&str>,
    role: Option<&str>,
    category: &str,
    settings: &Settings,
) -> (Option<String>, ModelSource) {
    let overridden = settings.models.overrides.get(category).map(String::as_str);
    [(flag, ModelSource::Flag), (role, ModelSource::Role), (overridden, ModelSource::Category)]
        .into_iter()
        .find_map(|(model, source)| {
            model.filter(|m| !m.is_empty()).map(|model| (Some(model.to_string()), source))
        })
        .unwrap_or_else(|| (settings.models.default.clone(), ModelSource::Default))
}

/// Longest name of a model, in bytes. It becomes an event, which is kept for ever.
const MODEL_LIMIT: usize = 200;

/// What may be asked for as a model; whether there is one of that name only the agent CLI knows.
pub fn is_model_name(name: &str) -> bool {
    !name.trim().is_empty() && name.len() <= MODEL_LIMIT && !name.chars().any(char::is_control)
}

/// One spelling for `maxAgents`, `max-agents` and `max_agents`.
pub(crate) fn canonical(key: &str) -> String {
    let mut text = String::with_capacity(key.len() + 4);
    let mut after_lower = false;
    for c in key.chars() {
        match c {
            '-' => text.push('_'),
            c if c.is_ascii_uppercase() => {
                if after_lower {
                    text.push('_');
                }
                text.push(c.to_ascii_lowercase());
            }
            c => text.push(c),
        }
        after_lower = c.is_ascii_lowercase() || c.is_ascii_digit();
    }
    text
}
