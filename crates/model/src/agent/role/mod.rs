//! Roles: who an agent is. A markdown file with YAML front matter; its body is appended to the
//! agent's system prompt (docs/glossary.md).
//!
//! ```text
//! ---
//! name: reviewer            # the file's name where it is left out
//! category: research        # which limits apply; coding where it is left out
//! displayName: Reviewer     # snake_case is read as well
//! iconUrl: https://…
//! model: claude-opus-4-6
//! description: Reads a change and says what is wrong with it.
//! backend: auto
//! tools: [Read, Grep]           # it gets no other; `[]` is none at all
//! disallowedTools: [WebFetch]
//! permissionMode: plan          # default, acceptEdits, dontAsk, auto, bypassPermissions
//! scope: [src/api/**, docs/api.md]   # an edit elsewhere is told as drift
//! permissions: {mode: ask, allow: [Read, "Bash(git *)"], deny: [WebFetch]}
//! ---
//! You review …
//! ```
//!
//! Unknown keys are errors, except in `.claude/agents/*.md`, which belong to another program: what
//! is of use there is taken, the rest passed over.

#![allow(
    clippy::result_large_err,
    reason = "a faulty file is reported once, and then nothing runs"
)]

mod trust;

pub use trust::InForce;

use crate::agent::permission::{PermissionMode, Permissions, Rule};
use crate::config::{BackendChoice, Config, ConfigError, NotFound, Place, Trust, decode, yaml};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

/// The roles in the binary: file name and text.
pub const SHIPPED: [(&str, &str); 5] = [
    ("product-analyst", include_str!("../../../../../roles/product-analyst.md")),
    ("project-coordinator", include_str!("../../../../../roles/project-coordinator.md")),
    ("developer", include_str!("../../../../../roles/developer.md")),
    ("tester", include_str!("../../../../../roles/tester.md")),
    ("reviewer", include_str!("../../../../../roles/reviewer.md")),
];

/// Longest system prompt taken from a role.
const BODY_LIMIT: usize = 256 * 1024;

/// Where a role came from, weakest first: of two roles with one name the stronger is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoleLayer {
    /// Embedded.
    Shipped,
    /// `$XDG_CONFIG_HOME/muleteer/roles/*.md`.
    User,
    /// `<repo>/.claude/agents/*.md`.
    ClaudeAgents,
    /// `<repo>/.muleteer/roles/*.md`.
    Project,
}

impl RoleLayer {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Shipped => "shipped",
            Self::User => "user",
            Self::ClaudeAgents => "claude_agents",
            Self::Project => "project",
        }
    }
}

impl fmt::Display for RoleLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A role file's text, read by the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleSource {
    pub layer: RoleLayer,
    /// Its path; the name of the file without `.md` is the role's name where the file gives none.
    pub file: String,
    /// Or why it cannot be read, which is that file's fault and no other role's.
    pub text: Result<String, String>,
    /// A repository's may loosen nothing until the user trusts it.
    pub trust: Trust,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Role {
    pub name: String,
    pub category: String,
    pub display_name: Option<String>,
    pub icon_url: Option<String>,
    pub model: Option<String>,
    pub description: Option<String>,
    /// `None`: the configured one.
    pub backend: Option<BackendChoice>,
    /// Tools the agent may use, none where the list is empty; `None`: its CLI's own choice.
    #[serde(serialize_with = "list_or_empty")]
    pub tools: Option<Vec<String>>,
    /// Tools it may not use.
    pub disallowed_tools: Vec<String>,
    /// How Claude Code would run it; kept with every backend that can.
    pub permission_mode: Option<PermissionMode>,
    /// Globs of what it is to edit, relative to where it works; empty: all of that.
    pub scope: Vec<String>,
    /// What it may do without asking.
    pub permissions: Permissions,
    /// Appended to the system prompt.
    pub body: String,
    pub layer: RoleLayer,
    pub file: String,
    /// Of the file it stands in; [`Catalog::in_force`] holds an untrusted one to what it may say.
    #[serde(skip)]
    pub trust: Trust,
}

/// Writes an array in both cases, because `roles --json` has always had one.
fn list_or_empty<S: serde::Serializer>(
    tools: &Option<Vec<String>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    tools.as_deref().unwrap_or_default().serialize(serializer)
}

impl Role {
    /// What a person sees it as.
    pub fn display(&self) -> &str {
        self.display_name.as_deref().unwrap_or(&self.name)
    }

    /// The keys of its front matter by which it restricts what its agent may use, as people read
    /// them.
    pub fn restricts(&self) -> Option<String> {
        let open = matches!(self.permission_mode, None | Some(PermissionMode::BypassPermissions));
        let keys = [
            ("`tools`", self.tools.is_some()),
            ("`disallowedTools`", !self.disallowed_tools.is_empty()),
            ("`permissionMode`", !open),
        ];
        let keys: Vec<_> =
            keys.into_iter().filter_map(|(key, there)| there.then_some(key)).collect();
        (!keys.is_empty()).then(|| keys.join(" and "))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RoleError {
    #[error(transparent)]
    Unknown(#[from] NotFound),
    /// The strongest file of that name cannot be read as a role.
    #[error(transparent)]
    Invalid(#[from] ConfigError),
}

/// The roles in the binary, as sources.
pub fn shipped() -> Vec<RoleSource> {
    SHIPPED
        .iter()
        .map(|(name, text)| RoleSource {
            layer: RoleLayer::Shipped,
            file: format!("{name}.md (built in)"),
            text: Ok((*text).into()),
            trust: Trust::Trusted,
        })
        .collect()
}

/// Every role by name, the strongest of each; a file that cannot be read hides no other role.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    roles: BTreeMap<String, Result<Role, ConfigError>>,
    /// The strongest of each name that the user wrote or trusts: what holds an untrusted one of
    /// that name.
    own: BTreeMap<String, Result<Role, ConfigError>>,
}

type Named = (String, Result<Role, ConfigError>);

/// What a file says, under the name of its role; of one that cannot be read, under its own.
fn named(source: &RoleSource) -> Named {
    let read = parse(source);
    (read.as_ref().map_or_else(|_| stem(&source.file), |role| role.name.clone()), read)
}

/// The roles of one layer. Two files with one name are a fault, since neither is stronger; one that
/// cannot be read is told also where another has its name.
fn one_of_each(layer: &[&RoleSource]) -> BTreeMap<String, Result<Role, ConfigError>> {
    let mut roles = BTreeMap::new();
    for source in layer {
        let (name, read) = named(source);
        let read = match (roles.remove(&name), read) {
            (Some(Ok(first)), Ok(role)) => Err(twice(&first, &role, text_of(source))),
            (Some(Err(error)), _) => Err(error),
            (_, read) => read,
        };
        roles.insert(name, read);
    }
    roles
}

/// Nothing of one that cannot be read.
fn text_of(source: &RoleSource) -> &str {
    source.text.as_deref().unwrap_or_default()
}

fn twice(first: &Role, second: &Role, text: &str) -> ConfigError {
    let message =
        format!("two files are the role `{}`: {} and {}", second.name, first.file, second.file);
    let hint = "give one of them another `name`, or remove it".to_string();
    ConfigError::new(message).with_hint(Some(hint)).at(
        Some(&second.file),
        text,
        place_of(text, "name"),
    )
}

impl Catalog {
    /// Reads `sources`, in any order, over the shipped roles.
    pub fn new(sources: &[RoleSource]) -> Self {
        /// Every dispatch asks for a role.
        static SHIPPED: LazyLock<Vec<Named>> =
            LazyLock::new(|| shipped().iter().map(named).collect());
        let mut sources: Vec<_> = sources.iter().collect();
        sources.sort_by_key(|source| (source.layer, source.file.as_str()));
        let mut roles: BTreeMap<_, _> = SHIPPED.iter().cloned().collect();
        let mut own = roles.clone();
        for layer in sources.chunk_by(|one, next| one.layer == next.layer) {
            for (name, role) in one_of_each(layer) {
                let is_user = layer.iter().all(|source| source.layer <= RoleLayer::User);
                if is_user || role.as_ref().is_ok_and(Role::is_own) {
                    own.insert(name.clone(), role.clone());
                }
                roles.insert(name, role);
            }
        }
        Self { roles, own }
    }

    /// # Errors
    /// When no role has that name, or its file is faulty.
    pub fn resolve(&self, name: &str) -> Result<&Role, RoleError> {
        match self.roles.get(name) {
            Some(Ok(role)) => Ok(role),
            Some(Err(error)) => Err(error.clone().into()),
            None => Err(NotFound::new("role", name, self.roles.keys().map(String::as_str)).into()),
        }
    }

    /// In order of their names.
    pub fn roles(&self) -> impl Iterator<Item = &Role> {
        self.roles.values().filter_map(|role| role.as_ref().ok())
    }

    /// The names of roles of a category that is not configured, and where they say it; `sources`
    /// are those that the catalog was made of.
    pub fn without_category(
        &self,
        config: &Config,
        sources: &[RoleSource],
    ) -> Vec<(String, ConfigError)> {
        let faulty =
            self.roles().filter_map(|role| Some((role, config.category(&role.category).err()?)));
        let located = faulty.map(|(role, unknown)| {
            let source = sources
                .iter()
                .find(|source| source.layer == role.layer && source.file == role.file);
            let text = source.map_or("", text_of);
            let error = ConfigError::new(format!("role `{}`: {unknown}", role.name))
                .with_hint(Some(unknown.hint))
                .at(Some(&role.file), text, place_of(text, "category"));
            (role.name.clone(), error)
        });
        located.collect()
    }

    pub fn errors(&self) -> impl Iterator<Item = &ConfigError> {
        self.roles.values().filter_map(|role| role.as_ref().err())
    }
}

/// One role out of `sources` and the shipped ones; see [`Catalog`].
///
/// # Errors
/// When no role has that name, or its file is faulty.
pub fn resolve(name: &str, sources: &[RoleSource]) -> Result<Role, RoleError> {
    Catalog::new(sources).resolve(name).cloned()
}

/// Reads one role file.
///
/// # Errors
/// The first fault, located.
pub fn parse(source: &RoleSource) -> Result<Role, ConfigError> {
    let file = Some(source.file.as_str());
    let text = source.text.as_ref().map_err(|why| {
        ConfigError::new(format!("the role cannot be read: {why}")).at(file, "", None)
    })?;
    let text = crate::text::bom::unmarked(text);
    let (front, body) =
        split(text).map_err(|error| error.at(file, text, Some(Place { line: 1, column: 1 })))?;
    let front = match source.layer {
        RoleLayer::ClaudeAgents => claude_agent(&front, file, text)?,
        _ => read(&front, file, text)?,
    };
    let name = front.name.unwrap_or_else(|| stem(&source.file));
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let named = (1..=64).contains(&name.len())
        && name.chars().all(plain)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !named {
        // It becomes part of file names, branches and journals.
        let message =
            format!("`{}` is not a name for a role", name.chars().take(80).collect::<String>());
        let hint =
            "letters, digits, `-`, `_` and `.` are, beginning with a letter or digit, at most 64"
                .to_string();
        return Err(ConfigError::new(message).with_hint(Some(hint)).at(
            file,
            text,
            place_of(text, "name"),
        ));
    }
    if body.len() > BODY_LIMIT {
        let message =
            format!("the role's text has {} bytes: at most {BODY_LIMIT} are used", body.len());
        return Err(ConfigError::new(message).at(file, text, None));
    }
    Ok(Role {
        name,
        category: front.category.unwrap_or_else(|| "coding".into()),
        display_name: front.display_name,
        icon_url: front.icon_url,
        model: front.model.filter(|model| model != "inherit" && !model.is_empty()),
        description: front.description,
        backend: front.backend,
        tools: rules(front.tools, "tools", file, text)?,
        disallowed_tools: rules(front.disallowed_tools, "disallowedTools", file, text)?
            .unwrap_or_default(),
        permission_mode: front.permission_mode,
        scope: front.scope.unwrap_or_default(),
        permissions: front.permissions.unwrap_or_default(),
        body: body.trim().to_string(),
        layer: source.layer,
        file: source.file.clone(),
        trust: source.trust,
    })
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Front {
    name: Option<String>,
    category: Option<String>,
    display_name: Option<String>,
    icon_url: Option<String>,
    model: Option<String>,
    description: Option<String>,
    backend: Option<BackendChoice>,
    tools: Option<Tools>,
    disallowed_tools: Option<Tools>,
    permission_mode: Option<PermissionMode>,
    scope: Option<Vec<String>>,
    permissions: Option<Permissions>,
}

/// `[Read, Grep]` or `Read, Grep`.
#[derive(Debug)]
struct Tools(Vec<String>);

impl<'de> Deserialize<'de> for Tools {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrList;
        impl<'de> serde::de::Visitor<'de> for TextOrList {
            type Value = Tools;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of tools")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Tools, E> {
                Ok(Tools(words(text)))
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, seq: A) -> Result<Tools, A::Error> {
                Vec::deserialize(serde::de::value::SeqAccessDeserializer::new(seq)).map(Tools)
            }
        }
        deserializer.deserialize_any(TextOrList)
    }
}

/// Kept apart by commas, or by spaces; what stands in parentheses is part of its word.
fn words(text: &str) -> Vec<String> {
    let text = text.trim().trim_start_matches('[').trim_end_matches(']');
    let mut depth = 0_usize;
    let split = text.split(|c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && (c == ',' || c.is_whitespace())
    });
    let bare = |word: &str| word.trim().trim_matches(['"', '\'']).to_string();
    split.map(bare).filter(|word| !word.is_empty()).collect()
}

/// The tools that a key of the front matter names. One that cannot be read restricts nothing, so it
/// is an error wherever it stands.
fn rules(
    tools: Option<Tools>,
    key: &str,
    file: Option<&str>,
    text: &str,
) -> Result<Option<Vec<String>>, ConfigError> {
    let Some(Tools(words)) = tools else { return Ok(None) };
    if let Some(error) = words.iter().find_map(|word| Rule::try_from(word.clone()).err()) {
        let hint = format!("name tools in `{key}` as in `Read, Bash(git *)`");
        let error = ConfigError::new(format!("`{key}`: {error}")).with_hint(Some(hint));
        return Err(error.at(file, text, place_of(text, key)));
    }
    Ok(Some(words))
}

/// The front matter, padded so that its line numbers are the file's, and the body. A file without
/// front matter is all body.
fn split(text: &str) -> Result<(String, &str), ConfigError> {
    let mut lines = text.split_inclusive('\n');
    match lines.next() {
        Some(first) if first.trim_end() == "---" => {
            let mut front = String::from("\n");
            let mut at = first.len();
            for line in lines {
                at += line.len();
                if line.trim_end() == "---" {
                    return Ok((front, &text[at..]));
                }
                front.push_str(line);
            }
            let hint = "end it with a line `---`".to_string();
            Err(ConfigError::new("the front matter that begins here has no end")
                .with_hint(Some(hint)))
        }
        _ => Ok((String::new(), text)),
    }
}

fn read(front: &str, file: Option<&str>, whole: &str) -> Result<Front, ConfigError> {
    let node = yaml::parse(front, file).map_err(|error| error.in_text(whole))?;
    let read = decode(node, file, whole);
    read.map(|(front, _)| front).map_err(|mut errors| errors.swap_remove(0))
}

/// Claude Code reads its agents line by line and does not mind what YAML would, so neither do we.
fn claude_agent(front: &str, file: Option<&str>, text: &str) -> Result<Front, ConfigError> {
    let line = |key: &str| {
        Some(front.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?.trim())
    };
    let value = |key: &str| {
        let line = line(key)?;
        let quoted =
            |quote| line.strip_prefix(quote).and_then(|rest: &str| rest.strip_suffix(quote));
        Some(quoted('"').or_else(|| quoted('\'')).unwrap_or(line).to_string())
            .filter(|value| !value.is_empty())
    };
    let tools = |key: &str| {
        let text = match line(key)? {
            "" => listed(front, key)?,
            // Its items stand in the lines below.
            open if open.starts_with('[') && !open.ends_with(']') => {
                format!("{open},{}", listed(front, key).unwrap_or_default())
            }
            // Of an empty text nothing is left but no tool.
            _ => value(key).unwrap_or_default(),
        };
        Some(Tools(words(&text)))
    };
    let permission_mode = match value("permissionMode") {
        None => None,
        Some(name) => Some(PermissionMode::parse(&name).ok_or_else(|| {
            let hint =
                "it is default, acceptEdits, plan, dontAsk, auto or bypassPermissions".to_string();
            ConfigError::new(format!(
                "`{}` is no permission mode",
                crate::agent::event::cut(&name, 80)
            ))
            .with_hint(Some(hint))
            .at(file, text, place_of(text, "permissionMode"))
        })?),
    };
    Ok(Front {
        name: value("name"),
        model: value("model"),
        description: value("description"),
        tools: tools("tools"),
        disallowed_tools: tools("disallowedTools"),
        permission_mode,
        ..Front::default()
    })
}

/// The list that stands below a key, an item a line or in brackets over several; `None` where
/// nothing stands there, which names no tools.
fn listed(front: &str, key: &str) -> Option<String> {
    let mut lines = front
        .lines()
        .skip_while(|line| line.strip_prefix(key).is_none_or(|rest| !rest.starts_with(':')));
    lines.next()?;
    let items = lines.take_while(|line| {
        let item = line.trim_start();
        line.trim().is_empty() || item.starts_with(['-', ']']) || item.len() < line.len()
    });
    let items: Vec<_> = items
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(|line| line.trim_start_matches("- ").trim_matches(['[', ']', ',']))
        .collect();
    (!items.is_empty()).then(|| items.join(","))
}

/// `some/where/reviewer.md` is `reviewer`.
fn stem(file: &str) -> String {
    let name = file.rsplit(['/', '\\']).next().unwrap_or(file);
    name.split(".md").next().unwrap_or(name).to_string()
}

fn place_of(text: &str, key: &str) -> Option<Place> {
    let at = text.lines().position(|line| {
        line.starts_with(key) && line[key.len()..].trim_start().starts_with(':')
    })?;
    Some(Place { line: at as u32 + 1, column: 1 })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
