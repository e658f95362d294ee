//! Admission: which waiting dispatches get an agent now (design.md, `pool`). First come, first
//! served; nothing here holds a lock or a process, so the policy is tested without either.

use crate::config::Pool;
use crate::fleet::Fleet;
use crate::id::DispatchId;

/// A dispatch that may not be made: agents would dispatch agents too deeply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("agents may dispatch agents at most {max} deep (`pool.max_depth`)")]
pub struct TooDeep {
    pub max: u32,
}

/// How many of `waiting` dispatches, taken from the front of the queue, may start now.
pub fn free(limits: Pool, active: usize, waiting: usize) -> usize {
    (limits.max_agents as usize).saturating_sub(active).min(waiting)
}

/// The dispatches to start now: the longest-waiting queued ones, as many as there is room for.
/// `waiting` is in order of arrival.
pub fn admit<T>(limits: Pool, active: usize, waiting: &[T]) -> &[T] {
    &waiting[..free(limits, active, waiting.len())]
}

/// The dispatches of a fleet to start now. One that was sent a further turn waits from its creation
/// on: a conversation in progress goes before new work.
pub fn next(limits: Pool, fleet: &Fleet) -> Vec<DispatchId> {
    let active = fleet.iter().filter(|dispatch| dispatch.is_active()).count();
    let waiting: Vec<_> = fleet.iter().filter(|dispatch| !dispatch.is_active() && !dispatch.is_finished()).collect();
    admit(limits, active, &waiting).iter().map(|dispatch| dispatch.id.clone()).collect()
}

/// How deep a new dispatch of `parent` would be: 0 for a person's own, 1 for one an agent of that
/// asked for. The walk stops at the limit, so a damaged chain that is a circle is just too deep.
///
/// # Errors
/// When that is deeper than `limits` allow.
pub fn depth(
    limits: Pool,
    parent: Option<&DispatchId>,
    parent_of: impl Fn(&DispatchId) -> Option<DispatchId>,
) -> Result<u32, TooDeep> {
    let mut depth = 0;
    let mut at = parent.cloned();
    while let Some(id) = at {
        if depth == limits.max_depth {
            return Err(TooDeep { max: limits.max_depth });
        }
        depth += 1;
        at = parent_of(&id);
    }
    Ok(depth)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};
    use std::collections::VecDeque;

    const LIMITS: Pool = Pool { max_agents: 3, max_depth: 2 };

    fn id(text: &str) -> DispatchId {
        DispatchId::try_from(text.to_string()).unwrap()
    }

    #[test]
    fn the_longest_waiting_start_first_as_far_as_there_is_room() {
        for (active, waiting, expected) in [
            (0, vec!["a", "b"], vec!["a", "b"]),
            (1, vec!["a", "b", "c"], vec!["a", "b"]),
            (3, vec!["a"], vec![]),
            (0, vec![], vec![]),
            // The limit was lowered while more were running: nobody is ended, nobody starts.
            (9, vec!["a"], vec![]),
        ] {
            assert_eq!(admit(LIMITS, active, &waiting), expected, "{active} active, {waiting:?} waiting");
        }
    }

    #[test]
    fn agents_dispatch_agents_only_so_deep() {
        // person → root → child → grandchild
        let parent_of = |of: &DispatchId| match of.as_str() {
            "grandchild" => Some(id("child")),
            "child" => Some(id("root")),
            _ => None,
        };
        for (parent, expected) in [
            (None, Ok(0)),
            (Some(id("root")), Ok(1)),
            (Some(id("child")), Ok(2)),
            (Some(id("grandchild")), Err(TooDeep { max: 2 })),
        ] {
            assert_eq!(depth(LIMITS, parent.as_ref(), parent_of), expected, "{parent:?}");
        }
        let none = Pool { max_depth: 0, ..LIMITS };
        assert_eq!(depth(none, Some(&id("root")), parent_of), Err(TooDeep { max: 0 }));
    }

    #[test]
    fn a_circle_of_parents_ends() {
        let other = |of: &DispatchId| Some(id(if of.as_str() == "ping" { "pong" } else { "ping" }));
        assert_eq!(depth(LIMITS, Some(&id("ping")), other), Err(TooDeep { max: 2 }));
    }

    proptest! {
        /// Arrivals and ends in any order: never more than allowed, in the order of arrival, and
        /// nobody waits beside a free place.
        #[test]
        fn the_pool_is_full_fair_and_bounded(max_agents in 1_u32..6, steps in prop::collection::vec(0_u8..3, 0..80)) {
            let limits = Pool { max_agents, max_depth: 0 };
            let (mut waiting, mut active, mut started, mut arrived) = (VecDeque::new(), 0_usize, vec![], 0_u32);
            for step in steps {
                if step > 0 {
                    waiting.push_back(arrived);
                    arrived += 1;
                } else {
                    active = active.saturating_sub(1);
                }
                let next = admit(limits, active, waiting.make_contiguous()).to_vec();
                active += next.len();
                waiting.drain(..next.len());
                started.extend(next);
                prop_assert!(active <= max_agents as usize);
                prop_assert!(waiting.is_empty() || active == max_agents as usize);
            }
            prop_assert_eq!(&started, &(0..started.len() as u32).collect::<Vec<_>>());
        }
    }
}
