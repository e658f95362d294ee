//! The dependencies of the beads that stay after an amendment of the spec.

use crate::spec_run::event::Planned;
use crate::spec_run::state::{Run, Stage};
use std::collections::{BTreeMap, BTreeSet};

/// Returns the beads that stay and depended on a withdrawn bead, with their new dependencies: the
/// new beads, except those that wait for the bead themselves.
pub(super) fn replanned(run: &Run, new: &[Planned]) -> Vec<Planned> {
    if !run.is_amending() {
        return vec![];
    }
    let kept = run.beads.values().map(|task| &task.planned);
    let mut edges: BTreeMap<&str, Vec<String>> =
        kept.chain(new).map(|bead| (bead.id.as_str(), bead.depends_on.clone())).collect();
    let mut changed = vec![];
    for task in run.order.iter().filter_map(|id| run.beads.get(id)) {
        let is_withdrawn = |on: &String| run.versions.withdrawn.contains_key(on);
        if task.stage == Stage::Done || !task.planned.depends_on.iter().any(is_withdrawn) {
            continue;
        }
        let id = task.planned.id.as_str();
        let before = task.planned.depends_on.iter().filter(|on| !is_withdrawn(on));
        let mut depends_on: Vec<String> = before.cloned().collect();
        let free = new.iter().map(|bead| &bead.id).filter(|on| !reaches(&edges, on, id));
        depends_on.extend(free.cloned());
        edges.insert(id, depends_on.clone());
        changed.push(Planned { depends_on, ..task.planned.clone() });
    }
    changed
}

/// Returns whether a bead depends on another, directly or not.
fn reaches(edges: &BTreeMap<&str, Vec<String>>, from: &str, to: &str) -> bool {
    let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(at) = left.pop() {
        if at == to {
            return true;
        }
        if seen.insert(at) {
            left.extend(edges.get(at).into_iter().flatten().map(String::as_str));
        }
    }
    false
}
