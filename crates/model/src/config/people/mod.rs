//! People: the humans that adapters know, and the actions that each of them may take.
//!
//! ```yaml
//! people:
//!   anna: {slack: [U0123ABCD], web: true, may: [talk, answer, spawn, kill, set]}
//!   ben: {slack: U0456EFGH, may: [talk, "spawn:project=shop", "kill:role=reviewer"]}
//! ```
//!
//! The local operator may do everything. A person who is not listed may do nothing. The entries are
//! the daemon's: it reads them from the user's configuration, never from a repository's.
//!
//! - [`person`]: one entry of `people`;
//! - [`right`]: the rights and the rules of `may`;
//! - [`permit`]: the decision about one action.

pub mod permit;
pub mod person;
pub mod right;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

pub use permit::{Action, LOCAL, Refusal, check, check_right, known_as, unlisted};
pub use person::{Accounts, Person};
pub use right::{Right, Rule};

use std::collections::BTreeMap;

/// All people, by the names that the configuration gives them.
pub type People = BTreeMap<String, Person>;

/// A fault in the entries of people that no single entry shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The key below `people`: the name of the person, and the faulty key.
    pub path: [String; 2],
    pub message: String,
    pub hint: String,
}

/// Returns the faults of all entries together: an id that two people have, and a rule for a
/// project that is not configured.
pub fn faults<'a>(
    people: &'a People,
    projects: impl Iterator<Item = &'a str> + Clone,
) -> Vec<Fault> {
    let mut faults = vec![];
    let mut owners: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for (name, person) in people {
        for (adapter, accounts) in &person.accounts {
            for id in accounts.ids(name) {
                let Some(other) = owners.insert((adapter.as_str(), id), name) else { continue };
                let message = match other == name {
                    true => format!("the id `{id}` is given twice"),
                    false => format!("the id `{id}` belongs to `{other}` already"),
                };
                faults.push(Fault {
                    path: [name.clone(), adapter.clone()],
                    message,
                    hint: "give each id of an adapter to one person".into(),
                });
            }
        }
        let scoped = person.may.iter().filter_map(|rule| rule.project.as_deref());
        for project in scoped.filter(|project| !projects.clone().any(|known| known == *project)) {
            let unknown = crate::config::error::NotFound::new("project", project, projects.clone());
            faults.push(Fault {
                path: [name.clone(), "may".into()],
                message: unknown.to_string(),
                hint: unknown.hint,
            });
        }
    }
    faults
}
