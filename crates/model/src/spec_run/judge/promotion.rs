//! Plans the beads that a verdict created or promoted, in the order of their dependencies.

use crate::agent::event::cut;
use crate::beads::graph::Graph;
use crate::beads::{Bead, named};
use crate::spec_run::event::Planned;
use crate::spec_run::state::Run;
use std::collections::BTreeMap;

impl Planned {
    /// Plans a bead. Its dependencies are split into those inside the run and the awaited ones
    /// outside.
    pub fn of(
        bead: &Bead,
        inside: impl Fn(&str) -> bool,
        waited_for: impl Fn(&str) -> bool,
    ) -> Self {
        let (inside, outside): (Vec<&str>, Vec<&str>) = bead.blockers().partition(|on| inside(on));
        Self {
            id: bead.id.clone(),
            title: cut(&bead.title, 200),
            priority: bead.priority,
            created_at: bead.created_at.clone(),
            depends_on: inside.into_iter().map(Into::into).collect(),
            outside: outside.into_iter().filter(|on| waited_for(on)).map(Into::into).collect(),
            closed: bead.status.is_over(),
        }
    }
}

/// Returns the blockers that are neither in `beads` nor in the run, and have to be looked up.
pub fn strangers(run: &Run, beads: &[Bead]) -> Vec<String> {
    let known = |on: &str| run.beads.contains_key(on) || beads.iter().any(|bead| bead.id == on);
    let mut ids: Vec<String> =
        beads.iter().flat_map(Bead::blockers).filter(|on| !known(on)).map(Into::into).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Plans the beads, and returns the dependencies that were dropped. A dependency on work that no
/// agent will ever do is dropped, so that an observation cannot deadlock the run. `strangers` maps
/// the existing ones to whether they are closed.
pub fn plan(
    run: &Run,
    beads: &[Bead],
    strangers: &BTreeMap<String, bool>,
) -> (Vec<Planned>, Vec<String>) {
    let mut left_out = vec![];
    let inside = |on: &str| run.beads.contains_key(on) || beads.iter().any(|bead| bead.id == on);
    let mut planned: Vec<Planned> = beads
        .iter()
        .map(|bead| {
            Planned::of(bead, inside, |on| match strangers.get(on) {
                Some(closed) => !closed,
                None => true,
            })
        })
        .collect();
    for one in &mut planned {
        let name = named(&one.id, Some(&one.title));
        one.outside.retain(|on| {
            let why = match (strangers.contains_key(on), run.observations.pending.contains(on)) {
                (false, _) => "which does not exist",
                (true, true) => "which is only an observation",
                (true, false) => return true,
            };
            left_out.push(format!("{name} depends on {on}, {why}"));
            false
        });
    }
    loop {
        let nodes = run.beads.values().map(|task| &task.planned).chain(&planned);
        let graph = Graph::new(
            nodes.map(|one| (one.id.as_str(), one.depends_on.iter().map(String::as_str))),
        );
        let Some(chain) = graph.cycles().into_iter().next() else { break };
        // The last noted bead of the cycle loses its dependencies on the others.
        let Some(one) = planned.iter_mut().rev().find(|one| chain.contains(&one.id)) else { break };
        one.depends_on.retain(|on| !chain.contains(on));
        let title = |id: &str| planned.iter().find(|one| one.id == id).map(|one| &*one.title);
        let names: Vec<_> =
            chain.iter().map(|id| named(id, title(id).or_else(|| run.title_of(id)))).collect();
        left_out.push(format!("beads depend on each other: {}", names.join(" → ")));
    }
    (planned, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec_run::tests::play::{Play, bead, settings};

    fn ids(planned: &[Planned]) -> Vec<String> {
        let told = |one: &Planned| {
            format!("{}: {} | {}", one.id, one.depends_on.join(" "), one.outside.join(" "))
        };
        planned.iter().map(told).collect()
    }

    /// A promoted bead must not be worked on before its blockers.
    #[test]
    fn promoted_observation_keeps_its_dependencies() {
        let play = Play::with(settings(), vec![bead("a", &[])]);
        let promoted = [bead("o1", &["o2", "a", "elsewhere", "done"]), bead("o2", &[])];
        assert_eq!(strangers(&play.run, &promoted), ["done", "elsewhere"]);
        let found = [("done", true), ("elsewhere", false)]
            .map(|(id, closed)| (id.to_string(), closed))
            .into();
        let (planned, left_out) = plan(&play.run, &promoted, &found);
        assert_eq!(ids(&planned), ["o1: o2 a | elsewhere", "o2:  | "]);
        assert!(left_out.is_empty());
    }

    #[test]
    fn dependency_on_a_dismissed_bead_is_dropped_and_reported() {
        let mut play = Play::with(settings(), vec![bead("a", &[])]);
        play.run.observations.pending.insert("noted".into());
        let promoted =
            [bead("o1", &["o2"]), bead("o2", &["o3"]), bead("o3", &["o1", "noted", "nowhere"])];
        let found = [("noted".to_string(), false)].into();
        let (planned, left_out) = plan(&play.run, &promoted, &found);
        assert_eq!(ids(&planned), ["o1: o2 | ", "o2: o3 | ", "o3:  | "]);
        assert_eq!(left_out.len(), 3, "{left_out:?}");
    }
}
