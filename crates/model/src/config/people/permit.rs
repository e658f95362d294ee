//! Decides whether a person may take an action.

use crate::config::people::right::{Right, Rule};
use crate::config::people::{People, Person};

/// The adapter of the command line: its user is the local operator, who may do everything.
pub const LOCAL: &str = "cli";

/// The most characters of an id of a stranger that a message repeats.
const ID_SHOWN: usize = 80;

/// An action of a user of an adapter.
#[derive(Debug, Clone, Copy)]
pub struct Action<'a> {
    pub adapter: &'a str,
    /// The id of the user in that adapter.
    pub user: &'a str,
    pub right: Right,
    /// The names of the configured projects whose directory the action is about.
    pub projects: &'a [&'a str],
    /// The role of the dispatch that the action is about.
    pub role: Option<&'a str>,
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub message: String,
    /// The change of the configuration that would allow the action.
    pub hint: String,
    /// The person is not listed at all.
    pub unlisted: bool,
}

/// Returns the entry of the person that an adapter knows by this id.
pub fn known_as<'a>(
    people: &'a People,
    adapter: &str,
    user: &str,
) -> Option<(&'a str, &'a Person)> {
    let entry = people.iter().find(|(name, person)| person.is(name, adapter, user));
    entry.map(|(name, person)| (name.as_str(), person))
}

/// Decides whether a user of an adapter may take an action. The local operator may do everything.
///
/// # Errors
/// The person is not listed, or no rule allows the action.
pub fn check(people: &People, action: Action<'_>) -> Result<(), Refusal> {
    if action.adapter == LOCAL {
        return Ok(());
    }
    let Some((name, person)) = known_as(people, action.adapter, action.user) else {
        return Err(unlisted(action.adapter, action.user));
    };
    let allows = |rule: &Rule| rule.allows(action.right, action.projects, action.role);
    if person.may.iter().any(allows) {
        return Ok(());
    }
    let place = [
        action.projects.first().map(|project| format!("in project `{project}`")),
        action.role.map(|role| format!("with role `{role}`")),
    ];
    let place: Vec<_> = place.into_iter().flatten().collect();
    let place = if place.is_empty() { String::new() } else { format!(" {}", place.join(" ")) };
    let wanted = Rule {
        right: action.right,
        project: action.projects.first().map(|name| (*name).to_string()),
        role: None,
    };
    let general = Rule::all(action.right);
    let rule = match wanted.project {
        Some(_) => format!("`{wanted}` (or `{general}`)"),
        None => format!("`{general}`"),
    };
    Err(Refusal {
        message: format!("{name} has no right to {}{place}", action.right),
        hint: format!("add {rule} to `people.{name}.may` in config.yaml"),
        unlisted: false,
    })
}

/// Decides about an action that is about no project and no role.
///
/// # Errors
/// Those of [`check`].
pub fn check_right(
    people: &People,
    adapter: &str,
    user: &str,
    right: Right,
) -> Result<(), Refusal> {
    check(people, Action { adapter, user, right, projects: &[], role: None })
}

/// Returns the refusal of a person who is not listed. Its [`Refusal::reply`] is the one reply that
/// an adapter gives to this person.
pub fn unlisted(adapter: &str, user: &str) -> Refusal {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '@');
    let shown: String = user.chars().filter(|c| !c.is_control()).take(ID_SHOWN).collect();
    let starts = shown.starts_with(|c: char| c.is_ascii_alphabetic());
    let id = match starts && shown.chars().all(is_plain) {
        true => shown.clone(),
        // A JSON string is YAML too.
        false => serde_json::Value::String(shown.clone()).to_string(),
    };
    Refusal {
        message: format!("the {adapter} user `{shown}` is not listed in `people`"),
        hint: format!(
            "add the line `  NAME: {{{adapter}: [{id}]}}` below `people:` in config.yaml"
        ),
        unlisted: true,
    }
}

impl Refusal {
    /// Returns the text for the person.
    pub fn reply(&self) -> String {
        match self.unlisted {
            true => format!(
                "I cannot do this: {}. The owner of this Muleteer can {}.",
                self.message, self.hint
            ),
            false => format!("I cannot do this: {}. Hint: {}.", self.message, self.hint),
        }
    }
}
