//! Configuration: layers of YAML that are merged key by key. The origin of every value is known.
//!
//! ```text
//!  default  embedded, config/default.yaml           weakest
//!  user     $XDG_CONFIG_HOME/muleteer/config.yaml
//!  project  <repo>/.muleteer/config.yaml
//!  file     --config FILE
//!  env      MULETEER_CONFIG__POOL__MAX_AGENTS=4
//!  set      /set and `config set`, at run time
//!  flag     [`Source::flag`]                         strongest
//! ```
//!
//! Mappings are merged. Any other value (also a list) replaces that of weaker layers; `null` unsets
//! it. Keys are snake_case; `inactivityTimeout` and `claude-code` are accepted too.
//!
//! **Variables.** A variable is `MULETEER_CONFIG__` and the key in upper case, with `__` between
//! its parts. The value is YAML (`4`, `15m`, `[A, B]`). Parts become lower case, except a variable
//! name below `backends.<name>.env`. A name with characters that a variable cannot have needs a
//! file.
//!
//! **Trust.** A repository's file is not trusted until the user trusts it. [`trust`] decides which
//! of its keys take effect before that.
//!
//! This module reads no files: callers pass the text.

pub mod otlp_endpoint;

mod decode;
mod error;
pub(crate) mod key;
mod layers;
pub mod people;
mod ranges;
pub mod setting;
pub(crate) mod span;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
pub mod trust;
pub(crate) mod types;
pub(crate) mod yaml;

pub(crate) use decode::decode;
pub(crate) use error::Place;
pub use error::{CODE, ConfigError, NotFound, nearest};
pub(crate) use key::canonical;
pub use span::{BadSpan, Span};
pub use trust::{Ignored, Trust};
pub use types::*;
pub use yaml::with_file_lines;

use serde::Serialize;
use serde_json::Value;
use std::fmt;
use std::path::{Path, PathBuf};

/// The embedded defaults. Every key has a value here.
pub const DEFAULT: &str = include_str!("../../../../config/default.yaml");

/// Prefix of the variables that set configuration keys.
pub const ENV_PREFIX: &str = "MULETEER_CONFIG__";

/// The layer of a value; the weakest comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    Default,
    User,
    Project,
    /// `--config FILE`.
    File,
    Env,
    /// `/set` and `config set`, while the daemon runs.
    Set,
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
            Self::Set => "set",
            Self::Flag => "flag",
        }
    }
}

impl Layer {
    /// Whether the text of its sources is made from one value, so that its lines mean nothing.
    fn is_generated(self) -> bool {
        match self {
            Self::Env | Self::Set | Self::Flag => true,
            Self::Default | Self::User | Self::Project | Self::File => false,
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
    /// The path, as in errors and in `config show`.
    pub file: Option<String>,
    pub text: String,
    /// The trust in this source, which decides which values take effect.
    pub trust: Trust,
}

impl Source {
    /// Creates a source. A repository's file is untrusted; see [`Self::trusted`].
    pub fn new(layer: Layer, file: impl Into<String>, text: impl Into<String>) -> Self {
        Self { layer, file: Some(file.into()), text: text.into(), trust: trust::of_layer(layer) }
    }

    /// Returns the source with another trust.
    #[must_use]
    pub fn trusted(self, trust: Trust) -> Self {
        Self { trust, ..self }
    }

    /// Returns a source for one key that was set at run time. `origin` says by whom and when.
    pub fn set(parts: &[&str], value: &str, origin: String) -> Self {
        Self::new(Layer::Set, origin, layers::nested(parts, value))
    }

    /// Returns a source for one key of the command line: `Source::flag("pool.max_agents", "4")`.
    /// The value is YAML.
    pub fn flag(key: &str, value: &str) -> Self {
        let parts: Vec<&str> = key.split('.').collect();
        Self::new(Layer::Flag, format!("flag {key}"), layers::nested(&parts, value))
    }
}

/// The effective configuration. Dereferences to [`Settings`], the typed keys.
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
    /// The value as written (`15m` stays text); [`Config::to_json`] has the typed value.
    pub value: Value,
    pub layer: Layer,
    /// A path, a variable's name, or `flag <key>`; `None` for the embedded default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    #[serde(skip)]
    pub trust: Trust,
}

impl Origin {
    /// Returns whether a project sets a key of the daemon. One daemon serves all projects, so it
    /// ignores such keys in a project's file.
    pub fn is_in_vain(&self) -> bool {
        let daemon_s = || {
            self.key == "pool.max_agents"
                || self.key.starts_with("healing.")
                || self.key.starts_with("coordinator.")
                || self.key.starts_with("mcp.")
                || self.key.starts_with("people.")
                || self.key.starts_with("retention.")
                || self.key.starts_with("schedules.")
                || self.key.starts_with("telemetry.")
        };
        self.layer == Layer::Project && daemon_s()
    }
}

/// Returns whether the daemon reads a key only at its start.
pub fn is_read_at_start(key: &str) -> bool {
    let key = canonical(key);
    ["notify", "pool", "retention", "telemetry"].iter().any(|part| {
        key.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// Merges the embedded default, `sources` (in any order), and those variables of `env` that begin
/// with [`ENV_PREFIX`].
///
/// # Errors
/// All faults in all layers, each with its position.
pub fn load(sources: &[Source], env: &[(String, String)]) -> Result<Config, Vec<ConfigError>> {
    layers::load(sources, env)
}

/// Returns the JSON schema of a configuration file (`config schema`).
pub fn schema() -> Value {
    // A derive knows only Rust's defaults, not those of `default.yaml`.
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
    /// Returns this configuration with the backends of another one.
    pub fn with_backends_of(&self, other: &Self) -> Self {
        let settings =
            Settings { backends: other.settings.backends.clone(), ..self.settings.clone() };
        Self { settings, origins: self.origins.clone(), ignored: self.ignored.clone() }
    }

    /// Loads only the embedded defaults.
    ///
    /// # Errors
    /// Never in a build whose tests passed.
    pub fn defaults() -> Result<Self, Vec<ConfigError>> {
        load(&[], &[])
    }

    /// Returns a category by name.
    ///
    /// # Errors
    /// The category is not configured.
    pub fn category(&self, name: &str) -> Result<&Category, NotFound> {
        let known = || NotFound::new("category", name, self.categories.keys().map(String::as_str));
        self.categories.get(name).ok_or_else(known)
    }

    /// Returns every effective leaf with its layer, file and line, sorted by key.
    pub fn origins(&self) -> &[Origin] {
        &self.origins
    }

    /// Returns the values of a repository's file that have no effect, because the user has not
    /// trusted it.
    pub fn ignored(&self) -> &[Ignored] {
        &self.ignored
    }

    /// Returns the origin of a dotted key.
    pub fn origin(&self, key: &str) -> Option<&Origin> {
        self.origins.iter().find(|origin| origin.key == key)
    }

    /// Returns whether the user vouches for the links in the repository that a path of this key
    /// leads over. A path of the user's own `config.yaml` holds for every repository, also for one
    /// that a stranger filled with links.
    pub fn follows_links(&self, key: &str) -> bool {
        self.origin(key).is_some_and(|origin| match origin.layer {
            Layer::Default | Layer::User => false,
            Layer::Project => origin.trust > Trust::Untrusted,
            Layer::File | Layer::Env | Layer::Set | Layer::Flag => true,
        })
    }

    /// Returns the typed configuration, with durations in seconds.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(&self.settings).unwrap_or_default()
    }

    /// Returns the directory of a configured project. `~/` is expanded to `home`. A relative path
    /// is relative to the repository for a project file, and otherwise to the directory of its
    /// file.
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

/// The layer that chose a dispatch's model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelSource {
    Flag,
    Role,
    Category,
    Default,
}

impl ModelSource {
    /// Returns the value of [`crate::event::Created::model_source`].
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::Role => "role",
            Self::Category => "category",
            Self::Default => "default",
        }
    }
}

/// Returns the most specific model: `--model`, the role's, the category's override, or the default.
/// Without any, the agent CLI chooses.
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

/// The longest name of a model, in bytes. The name goes into an event, which is never deleted.
const MODEL_LIMIT: usize = 200;

/// Returns whether a text can be a model's name. Only the agent CLI knows whether that model
/// exists.
pub fn is_model_name(name: &str) -> bool {
    !name.trim().is_empty() && name.len() <= MODEL_LIMIT && !name.chars().any(char::is_control)
}
