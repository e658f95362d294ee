//! Roles: how an agent behaves. A role is a Markdown file with YAML front matter; its body is
//! appended to the agent's system prompt (docs/glossary.md).
//!
//! ```text
//! ---
//! name: reviewer            # default: the file's name
//! category: research        # selects the limits; default: coding
//! displayName: Reviewer     # snake_case is accepted too
//! iconUrl: https://…
//! model: claude-opus-4-6
//! description: Reads a change and says what is wrong with it.
//! backend: auto
//! tools: [Read, Grep]           # no other tool; `[]` is no tool at all
//! disallowedTools: [WebFetch]
//! permissionMode: plan          # default, acceptEdits, dontAsk, auto, bypassPermissions
//! scope: [src/api/**, docs/api.md]   # an edit elsewhere is reported as drift
//! threadVerbosity: quiet        # what a thread is told of its work: quiet, normal, all
//! mcp: read-only            # of Muleteer's MCP tools: full, read-only or none
//! permissions: {mode: ask, allow: [Read, "Bash(git *)"], deny: [WebFetch]}
//! ---
//! You review …
//! ```
//!
//! Unknown keys are errors, except in `.claude/agents/*.md`, which belong to another program:
//! there, known keys are used and the others ignored.

#![allow(
    clippy::result_large_err,
    reason = "a faulty file is reported once, and then nothing runs"
)]

mod trust;

pub use trust::InForce;

use crate::agent::permission::{PermissionMode, Permissions, Rule};
use crate::config::{
    BackendChoice, Config, ConfigError, NotFound, Place, ThreadVerbosity, Trust, decode, yaml,
};
use crate::event::mcp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

/// The built-in roles: file name and text.
pub const SHIPPED: [(&str, &str); 5] = [
    ("product-analyst", include_str!("../../../../../roles/product-analyst.md")),
    ("project-coordinator", include_str!("../../../../../roles/project-coordinator.md")),
    ("developer", include_str!("../../../../../roles/developer.md")),
    ("tester", include_str!("../../../../../roles/tester.md")),
    ("reviewer", include_str!("../../../../../roles/reviewer.md")),
];

/// The most bytes of a role's text.
const BODY_LIMIT: usize = 256 * 1024;

/// The origin of a role, weakest first: of two roles with one name the stronger is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoleLayer {
    /// Built in.
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

/// A role file that its reader could not read, with the system's reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnreadableRole(pub String);

/// The text of a role file, read by the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleSource {
    pub layer: RoleLayer,
    /// Its path. The file name without `.md` is the role's name if the file gives none.
    pub file: String,
    /// The text, or why the file cannot be read. Such an error affects no other role.
    pub text: Result<String, UnreadableRole>,
    /// Whether the user trusts the file. A repository's role may loosen nothing before that.
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
    /// The tools that the agent may use, none if the list is empty; `None`: its CLI's own choice.
    #[serde(serialize_with = "list_or_empty")]
    pub tools: Option<Vec<String>>,
    /// The tools that it may not use.
    pub disallowed_tools: Vec<String>,
    /// Claude Code's permission mode; every backend that can enforces it.
    pub permission_mode: Option<PermissionMode>,
    /// Globs of the files that it is to edit, relative to its directory; empty: all of that
    /// directory.
    pub scope: Vec<String>,
    /// How much a thread is told of its work; `None`: as its category says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_verbosity: Option<ThreadVerbosity>,
    /// The rules for what it may do without asking.
    pub permissions: Permissions,
    /// The tools of Muleteer's MCP server; `None`: as the category has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcp: Option<mcp::Access>,
    /// The text that is appended to the system prompt.
    pub body: String,
    pub layer: RoleLayer,
    pub file: String,
    /// The trust in its file; [`Catalog::in_force`] restricts an untrusted role.
    #[serde(skip)]
    pub trust: Trust,
}

/// Serializes an array in both cases, because `roles --json` has always had one.
fn list_or_empty<S: serde::Serializer>(
    tools: &Option<Vec<String>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    tools.as_deref().unwrap_or_default().serialize(serializer)
}

impl Role {
    /// Returns the name that people see.
    pub fn display(&self) -> &str {
        self.display_name.as_deref().unwrap_or(&self.name)
    }

    /// Names the keys of its front matter that restrict the tools of its agent, for people.
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
    /// The strongest file of that name is not a valid role.
    #[error(transparent)]
    Invalid(#[from] ConfigError),
}

/// Returns the built-in roles as sources.
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

/// Every role by name, the strongest of each; an unreadable file hides no other role.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    roles: BTreeMap<String, Result<Role, ConfigError>>,
    /// For each name, the strongest role that the user wrote or trusts. It bounds an untrusted role
    /// of that name.
    own: BTreeMap<String, Result<Role, ConfigError>>,
}

type Named = (String, Result<Role, ConfigError>);

/// Parses a file. Returns it with the role's name, or with the file's name if it is faulty.
fn named(source: &RoleSource) -> Named {
    let read = parse(source);
    (read.as_ref().map_or_else(|_| stem(&source.file), |role| role.name.clone()), read)
}

/// Returns the roles of one layer. Two files with one name are a fault, since neither is stronger.
/// A faulty file is reported even if another file has its name.
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

/// Returns the text, or an empty text if the file cannot be read.
fn text_of(source: &RoleSource) -> &str {
    source.text.as_deref().unwrap_or_default()
}

fn twice(first: &Role, second: &Role, text: &str) -> ConfigError {
    let message =
        format!("two files define the role `{}`: {} and {}", second.name, first.file, second.file);
    let hint = "rename one of them with `name`, or remove it".to_string();
    ConfigError::new(message).with_hint(Some(hint)).at(
        Some(&second.file),
        text,
        place_of(text, "name"),
    )
}

impl Catalog {
    /// Reads `sources`, in any order, over the shipped roles.
    pub fn new(sources: &[RoleSource]) -> Self {
        /// Parsed once, because every dispatch looks up a role.
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

    /// The valid roles in order of their names.
    pub fn roles(&self) -> impl Iterator<Item = &Role> {
        self.roles.values().filter_map(|role| role.as_ref().ok())
    }

    /// Returns the roles with a category that is not configured, and the places that name it.
    /// `sources` are those that the catalog was made of.
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

/// Returns one role out of `sources` and the shipped ones; see [`Catalog`].
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
        // The name becomes part of file names, branches and journals.
        let message =
            format!("`{}` cannot be the name of a role", name.chars().take(80).collect::<String>());
        let hint =
            "use at most 64 letters, digits, `-`, `_` and `.`, beginning with a letter or digit"
                .to_string();
        return Err(ConfigError::new(message).with_hint(Some(hint)).at(
            file,
            text,
            place_of(text, "name"),
        ));
    }
    if body.len() > BODY_LIMIT {
        let message =
            format!("the text of the role has {} bytes: the limit is {BODY_LIMIT}", body.len());
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
        thread_verbosity: front.thread_verbosity,
        permissions: front.permissions.unwrap_or_default(),
        mcp: front.mcp.map(mcp::Access::from),
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
    thread_verbosity: Option<ThreadVerbosity>,
    permissions: Option<Permissions>,
    mcp: Option<McpKey>,
}

/// The values of the key `mcp`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum McpKey {
    Full,
    ReadOnly,
    None,
}

impl From<McpKey> for mcp::Access {
    fn from(key: McpKey) -> Self {
        match key {
            McpKey::Full => Self::Full,
            McpKey::ReadOnly => Self::ReadOnly,
            McpKey::None => Self::None,
        }
    }
}

/// A list of tools: `[Read, Grep]` or `Read, Grep`.
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

/// Splits a text at commas and spaces; a text in parentheses belongs to its word.
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

/// Returns the tools that a key of the front matter names. An unreadable rule would restrict
/// nothing, so it is an error in every file.
fn rules(
    tools: Option<Tools>,
    key: &str,
    file: Option<&str>,
    text: &str,
) -> Result<Option<Vec<String>>, ConfigError> {
    let Some(Tools(words)) = tools else { return Ok(None) };
    if let Some(error) = words.iter().find_map(|word| Rule::try_from(word.clone()).err()) {
        let hint = format!("list tools in `{key}` like `Read, Bash(git *)`");
        let error = ConfigError::new(format!("`{key}`: {error}")).with_hint(Some(hint));
        return Err(error.at(file, text, place_of(text, key)));
    }
    Ok(Some(words))
}

/// Returns the front matter and the body. The front matter is padded so that its line numbers are
/// the file's. A file without front matter is all body.
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
            Err(ConfigError::new("the front matter is not closed").with_hint(Some(hint)))
        }
        _ => Ok((String::new(), text)),
    }
}

fn read(front: &str, file: Option<&str>, whole: &str) -> Result<Front, ConfigError> {
    let node = yaml::parse(front, file).map_err(|error| error.in_text(whole))?;
    let read = decode(node, file, whole);
    read.map(|(front, _)| front).map_err(|mut errors| errors.swap_remove(0))
}

/// Claude Code reads its agents line by line and accepts invalid YAML, so Muleteer does the same.
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
            // The items are on the lines below.
            open if open.starts_with('[') && !open.ends_with(']') => {
                format!("{open},{}", listed(front, key).unwrap_or_default())
            }
            // An empty text names no tool.
            _ => value(key).unwrap_or_default(),
        };
        Some(Tools(words(&text)))
    };
    let permission_mode = match value("permissionMode") {
        None => None,
        Some(name) => Some(PermissionMode::parse(&name).ok_or_else(|| {
            let hint =
                "use default, acceptEdits, plan, dontAsk, auto or bypassPermissions".to_string();
            ConfigError::new(format!(
                "`{}` is not a permission mode",
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

/// Returns the list below a key, one item a line or in brackets over several lines. Returns `None`
/// if there is no list, which names no tools.
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

/// Returns the name of a file without `.md`: `some/where/reviewer.md` is `reviewer`.
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
