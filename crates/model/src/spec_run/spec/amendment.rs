//! An amendment of the spec of a run that rests: the sections that differ, and the beads that they
//! affect.
//!
//! A bead implements the sections that the first line of its description names (`Sections: A; B`).
//! Without this line it implements the sections whose headings its title or its description
//! mentions, or else those whose text mentions its title. A bead that matches no section may
//! implement any, so every change affects it.

use crate::agent::event::cut;
use crate::beads::{Bead, Beads, Status, run_label};
use crate::spec_run::decide::Barred;
use crate::spec_run::event::{ChangeKind, RunStatus, SectionChange, SpecAmended};
use crate::spec_run::spec;
use crate::spec_run::state::{Run, Stage};
use crate::text::markdown_fence::Fence;
use muleteer_protocol::ErrorCode;
use std::collections::{BTreeMap, BTreeSet};

/// The line of a bead's description that names the sections that it implements.
pub const SECTIONS: &str = "Sections:";

/// The sections of a spec by their names, with their text. The text before the first heading below
/// the title has an empty name.
fn sections(text: &str) -> BTreeMap<String, String> {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    let (mut path, mut name): (Vec<(usize, String)>, String) = (vec![], String::new());
    let (mut fence, mut titled): (Option<Fence>, bool) = (None, false);
    for line in crate::text::bom::unmarked(text).lines() {
        let inner = line.trim_start_matches(' ');
        let level = inner.len() - inner.trim_start_matches('#').len();
        let is_heading = fence.is_none()
            && line.len() - inner.len() <= 3
            && (1..=6).contains(&level)
            && inner[level..].starts_with([' ', '\t']);
        if is_heading {
            let heading = inner[level..].trim().trim_end_matches('#').trim().to_string();
            path.retain(|(above, _)| *above < level);
            if level == 1 && !titled {
                // The title of the spec is no section of its own.
                (titled, name) = (true, String::new());
            } else {
                path.push((level, heading));
                let names: Vec<&str> = path.iter().map(|(_, name)| name.as_str()).collect();
                name = names.join(" > ");
            }
        } else {
            fence = match fence {
                Some(open) => Some(open).filter(|open| !open.is_closed_by(inner)),
                None => Fence::opened_by(inner),
            };
        }
        let section = found.entry(name.clone()).or_default();
        section.push_str(line.trim_end());
        section.push('\n');
    }
    found.values_mut().for_each(|text| *text = text.trim().to_string());
    found.retain(|_, text| !text.is_empty());
    found
}

/// A section that differs, with its old text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub change: SectionChange,
    /// Empty if the section is new.
    pub before: String,
}

/// Returns the sections that differ between two versions of a spec. White space at the end of a
/// line or a section is no difference.
pub fn differences(old: &str, new: &str) -> Vec<Difference> {
    let (old, new) = (sections(old), sections(new));
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let of = |name: &String| {
        let kind = match (old.get(name), new.get(name)) {
            (Some(before), Some(after)) if before == after => return None,
            (Some(_), Some(_)) => ChangeKind::Changed,
            (None, _) => ChangeKind::Added,
            (_, None) => ChangeKind::Removed,
        };
        let change = SectionChange { section: name.clone(), kind };
        Some(Difference { change, before: old.get(name).cloned().unwrap_or_default() })
    };
    names.into_iter().filter_map(of).collect()
}

/// Returns the last heading of a section's name.
fn heading(name: &str) -> &str {
    name.rsplit(" > ").next().unwrap_or_default()
}

/// Returns whether `text` contains `words` as whole words. Both are lower-case.
fn mentions(text: &str, words: &str) -> bool {
    let bare = words.trim_start_matches(|c: char| !c.is_alphabetic()).trim();
    if bare.chars().count() < 3 {
        return false;
    }
    text.match_indices(bare).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + bare.len()..].chars().next();
        ![before, after].into_iter().flatten().any(char::is_alphanumeric)
    })
}

/// Returns the sections that a bead implements; empty if nothing tells.
fn implemented<'a>(
    title: &str,
    description: &str,
    sections: &'a BTreeMap<String, String>,
) -> Vec<&'a str> {
    let title = title.to_lowercase();
    let first = description.trim_start().lines().next().unwrap_or_default().to_lowercase();
    let named: Vec<&str> = match first.strip_prefix(&SECTIONS.to_lowercase()) {
        Some(names) => names.split(';').map(str::trim).collect(),
        None => vec![],
    };
    let select = |matches: &dyn Fn(&str, &str) -> bool| -> Vec<&'a str> {
        let found = sections.iter().filter(|(name, text)| matches(&name.to_lowercase(), text));
        found.map(|(name, _)| name.as_str()).collect()
    };
    let exact = select(&|name, _| {
        !name.is_empty() && (named.contains(&name) || named.contains(&heading(name)))
    });
    if !exact.is_empty() {
        return exact;
    }
    let text = format!("{title}\n{}", description.to_lowercase());
    let mentioned = select(&|name, _| mentions(&text, heading(name)));
    if !mentioned.is_empty() {
        return mentioned;
    }
    select(&|_, text| mentions(&text.to_lowercase(), &title))
}

/// Plans the amendment of a run's spec. `beads` are those of the store, and `shown` is the path of
/// the new spec for people.
///
/// # Errors
/// The reason why the run does not take this spec.
pub fn amend(
    run: &Run,
    (old, new): (&str, &str),
    beads: &Beads,
    shown: String,
    sha256: String,
) -> Result<SpecAmended, Barred> {
    let bad = |message: &str| Barred { code: ErrorCode::BadInput, message: message.into() };
    if run.is_live() || !run.jobs.is_empty() {
        let message = "it is in progress: stop it before its spec is amended".into();
        return Err(Barred { code: ErrorCode::RunLocked, message });
    }
    if run.outcome() == Some(RunStatus::Completed) {
        return Err(bad("it is completed: start a new run with the new spec"));
    }
    let changes: Vec<SectionChange> =
        differences(old, new).into_iter().map(|difference| difference.change).collect();
    if changes.is_empty() {
        return Err(bad("its spec has the same text already"));
    }
    let mut amended = SpecAmended {
        number: run.versions.current + 1,
        spec: shown,
        title: spec::title(new),
        sha256,
        changes,
        kept: vec![],
        withdrawn: vec![],
        outdated: vec![],
    };
    if run.versions.planned.is_none() {
        // Nothing is planned yet, so everything is planned from the new spec.
        return Ok(amended);
    }
    let sections = sections(old);
    let changed: BTreeSet<&str> =
        amended.changes.iter().map(|change| change.section.as_str()).collect();
    for task in run.order.iter().filter_map(|id| run.beads.get(id)) {
        let id = task.planned.id.clone();
        let (title, description) = match beads.get(&id) {
            Some(bead) => (bead.title.as_str(), bead.description.as_str()),
            None => (task.planned.title.as_str(), ""),
        };
        let parts = implemented(title, description, &sections);
        let affected = parts.is_empty() || parts.iter().any(|part| changed.contains(part));
        match (affected, task.stage) {
            (false, _) => amended.kept.push(id),
            (true, Stage::Done) => amended.outdated.push(id),
            (true, Stage::Open | Stage::Taken | Stage::Blocked) => amended.withdrawn.push(id),
        }
    }
    amended.withdrawn.extend(unplanned(run, beads));
    Ok(amended)
}

/// Returns the beads that a verdict created and no iteration has planned.
fn unplanned<'a>(run: &'a Run, beads: &'a Beads) -> impl Iterator<Item = String> + 'a {
    let own = run_label(run.id());
    let is_left = move |bead: &&Bead| {
        bead.status == Status::Open
            && bead.has_label(&own)
            && !bead.has_label("maintenance")
            && !bead.is_observation()
            && bead.staged.is_none()
            && !run.beads.contains_key(&bead.id)
    };
    beads.values().filter(is_left).map(|bead| bead.id.clone())
}

/// Describes an amendment in one line.
pub fn describe(amended: &SpecAmended) -> String {
    let changes = amended.changes.iter().map(|change| {
        let section = match change.section.as_str() {
            "" => "the beginning",
            name => name,
        };
        format!("{} {}", cut(section, 60), change.kind.as_str())
    });
    format!(
        "amended the spec ({}): {} beads stay, {} are withdrawn, {} are done for the old text",
        changes.collect::<Vec<_>>().join(", "),
        amended.kept.len(),
        amended.withdrawn.len(),
        amended.outdated.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "# Shop\n\nIntro.\n\n## Cart\n\nA list.\n\n```\n# no heading\n```\n\n\
                       ## 2. Checkout\n\nPays.\n\n### Errors\n\nNone.\n\n## Notes\n\nThe Footer.\n";

    fn changed(old: &str, new: &str) -> String {
        let edited = OLD.replace(old, new);
        let all = differences(OLD, &edited).into_iter().map(|one| one.change);
        let lines: Vec<_> =
            all.map(|one| format!("{}: {}", one.section, one.kind.as_str())).collect();
        lines.join(", ")
    }

    #[test]
    fn differences_are_named_by_their_section() {
        for (old, new, wanted) in [
            ("\n", "  \n", ""),
            ("# Shop", "# Store", ": changed"),
            ("# no heading", "# none", "Cart: changed"),
            ("None.", "Some.", "2. Checkout > Errors: changed"),
            ("## Notes", "## Remarks", "Notes: removed, Remarks: added"),
        ] {
            assert_eq!(changed(old, new), wanted, "{old}");
        }
    }

    #[test]
    fn bead_implements_the_sections_that_it_names_or_mentions() {
        let sections = sections(OLD);
        for (title, description, wanted) in [
            ("x", "sections: CART; Errors\nMore about Notes.", "2. Checkout > Errors, Cart"),
            ("Implement the cart", "", "Cart"),
            ("Pay", "The checkout calls it.", "2. Checkout"),
            ("Footer", "", "Notes"),
            ("Cartography", "", ""),
            ("x", "Sections: Gone", ""),
        ] {
            assert_eq!(implemented(title, description, &sections).join(", "), wanted, "{title}");
        }
    }
}
