//! The dependency graph: blockers and dependants, cycles, and how much each bead unblocks. No
//! function recurses, so a chain of 100,000 beads cannot overflow the stack.

use crate::beads::Bead;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// The exact count of dependants needs quadratic memory. Above this number of nodes it is replaced
/// by the number of paths, which is exact in a forest and too high elsewhere.
const EXACT: usize = 4096;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Graph {
    names: Names,
    /// For each node `b`, the nodes that depend on it: `b` unblocks them.
    forward: Edges,
    /// For each node `a`, the nodes that it depends on.
    reverse: Edges,
    /// Dependencies on ids that are not in the graph.
    outside: Vec<(usize, String)>,
}

/// Many texts in one string, so that 100,000 ids are not 100,000 allocations.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Texts {
    all: String,
    ends: Vec<usize>,
}

impl Texts {
    pub(crate) fn get(&self, at: usize) -> &str {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.all[start..self.ends[at]]
    }

    fn push(&mut self, text: &str) {
        self.all.push_str(text);
        self.ends.push(self.all.len());
    }
}

impl<'a> FromIterator<&'a str> for Texts {
    fn from_iter<I: IntoIterator<Item = &'a str>>(texts: I) -> Self {
        let mut all = Self::default();
        texts.into_iter().for_each(|text| all.push(text));
        all
    }
}

/// Ids and their positions.
#[derive(Debug, Clone, Default)]
struct Names {
    texts: Texts,
    places: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Names {
    fn find(&self, name: &str) -> Option<usize> {
        let hash = self.hasher.hash_one(name);
        self.places.find(hash, |at| self.texts.get(*at as usize) == name).map(|at| *at as usize)
    }

    /// Builds the index. If two nodes have the same name, the later one is found.
    fn of<'a>(all: impl ExactSizeIterator<Item = &'a str>) -> Self {
        let mut names = Self {
            texts: Texts::default(),
            places: HashTable::with_capacity(all.len()),
            hasher: DefaultHashBuilder::default(),
        };
        for (at, name) in (0u32..).zip(all) {
            names.texts.push(name);
            let (places, texts, hasher) = (&mut names.places, &names.texts, &names.hasher);
            let hash = hasher.hash_one(name);
            match places.find_mut(hash, |at| texts.get(*at as usize) == name) {
                Some(place) => *place = at,
                None => drop(
                    places.insert_unique(hash, at, |at| hasher.hash_one(texts.get(*at as usize))),
                ),
            }
        }
        names
    }
}

/// The positions follow from the names.
impl PartialEq for Names {
    fn eq(&self, other: &Self) -> bool {
        self.texts == other.texts
    }
}

/// The neighbours of each node, all in one list.
#[derive(Debug, Clone, Default, PartialEq)]
struct Edges {
    all: Vec<usize>,
    ends: Vec<usize>,
}

impl Edges {
    fn of(&self, at: usize) -> &[usize] {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.all[start..self.ends[at]]
    }

    fn counts(&self) -> impl Iterator<Item = usize> {
        (0..self.ends.len()).map(|at| self.of(at).len())
    }

    /// Returns the reversed edges. Each node's neighbours are in order of their positions.
    fn turned(&self) -> Self {
        let mut next = vec![0; self.ends.len() + 1];
        for &to in &self.all {
            next[to + 1] += 1;
        }
        for at in 1..next.len() {
            next[at] += next[at - 1];
        }
        let mut all = vec![0; self.all.len()];
        for from in 0..self.ends.len() {
            for &to in self.of(from) {
                all[next[to]] = from;
                next[to] += 1;
            }
        }
        // Each entry has moved from the start of its node to its end.
        next.truncate(self.ends.len());
        Self { all, ends: next }
    }
}

impl Graph {
    /// Creates a graph from nodes and the ids that each depends on.
    pub fn new<'a, D: IntoIterator<Item = &'a str>>(
        nodes: impl IntoIterator<Item = (&'a str, D)>,
    ) -> Self {
        let nodes: Vec<(&str, D)> = nodes.into_iter().collect();
        let names = Names::of(nodes.iter().map(|(id, _)| *id));
        let mut reverse =
            Edges { all: Vec::with_capacity(nodes.len()), ends: Vec::with_capacity(nodes.len()) };
        let mut outside = vec![];
        // The last node that depended on each target: a dependency that is listed twice counts
        // once.
        let mut last = vec![usize::MAX; nodes.len()];
        for (at, (_, depends_on)) in nodes.into_iter().enumerate() {
            for on in depends_on {
                match names.find(on) {
                    Some(on) if std::mem::replace(&mut last[on], at) == at => {}
                    Some(on) => reverse.all.push(on),
                    None => outside.push((at, on.into())),
                }
            }
            reverse.ends.push(reverse.all.len());
        }
        Self { names, forward: reverse.turned(), reverse, outside }
    }

    pub fn of_beads<'a>(beads: impl IntoIterator<Item = &'a Bead>) -> Self {
        Self::new(beads.into_iter().map(|bead| (bead.id.as_str(), bead.blockers())))
    }

    pub fn len(&self) -> usize {
        self.names.texts.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.names.texts.ends.is_empty()
    }

    pub fn index(&self, id: &str) -> Option<usize> {
        self.names.find(id)
    }

    pub fn id(&self, at: usize) -> &str {
        self.names.texts.get(at)
    }

    pub fn edges(&self) -> usize {
        self.reverse.all.len()
    }

    /// Returns the nodes that `at` unblocks directly.
    pub fn dependants(&self, at: usize) -> &[usize] {
        self.forward.of(at)
    }

    /// Returns the nodes that block `at` directly.
    pub fn blockers(&self, at: usize) -> &[usize] {
        self.reverse.of(at)
    }

    /// Returns the dependencies on ids outside the graph, as (node, dependency).
    pub fn outside(&self) -> impl Iterator<Item = (&str, &str)> {
        self.outside.iter().map(|(at, on)| (self.id(*at), on.as_str()))
    }

    /// Returns all nodes that `at` blocks, directly or not, in order of the graph.
    pub fn downstream(&self, at: usize) -> Vec<usize> {
        let mut seen = vec![false; self.len()];
        let mut stack = vec![at];
        while let Some(node) = stack.pop() {
            for &next in self.forward.of(node) {
                if !std::mem::replace(&mut seen[next], true) {
                    stack.push(next);
                }
            }
        }
        (0..self.len()).filter(|node| seen[*node]).collect()
    }

    /// Returns an order in which every node comes after its blockers. Nodes on or behind a cycle
    /// are missing.
    pub fn topological(&self) -> Vec<usize> {
        let mut waiting: Vec<usize> = self.reverse.counts().collect();
        let mut order: Vec<usize> = (0..self.len()).filter(|at| waiting[*at] == 0).collect();
        let mut done = 0;
        while let Some(&at) = order.get(done) {
            done += 1;
            for &next in self.forward.of(at) {
                waiting[next] -= 1;
                if waiting[next] == 0 {
                    order.push(next);
                }
            }
        }
        order
    }

    /// Returns one cycle for each group of nodes that depend on each other, as a chain `a, b, …, a`
    /// in which each depends on the next. Empty if there is no cycle.
    pub fn cycles(&self) -> Vec<Vec<String>> {
        let mut left = vec![true; self.len()];
        for at in self.topological() {
            left[at] = false;
        }
        // The remaining nodes are on a cycle or behind one. Those without dependants among the rest
        // are behind, and are removed.
        let mut outdegree: Vec<usize> = (0..self.len())
            .map(|at| self.forward.of(at).iter().filter(|next| left[**next]).count())
            .collect();
        let mut dead: Vec<usize> =
            (0..self.len()).filter(|at| left[*at] && outdegree[*at] == 0).collect();
        while let Some(at) = dead.pop() {
            left[at] = false;
            for &on in self.reverse.of(at) {
                if left[on] {
                    outdegree[on] -= 1;
                    if outdegree[on] == 0 {
                        dead.push(on);
                    }
                }
            }
        }
        let mut cycles = Vec::new();
        let mut place = vec![usize::MAX; self.len()];
        for start in 0..self.len() {
            if !left[start] {
                continue;
            }
            // Follow the dependencies until a node repeats: each remaining node depends on a
            // remaining one.
            let mut path = vec![];
            let mut at = start;
            let closed = loop {
                if place[at] != usize::MAX {
                    break Some(place[at]);
                }
                place[at] = path.len();
                path.push(at);
                match self.reverse.of(at).iter().find(|on| left[**on]) {
                    Some(&on) => at = on,
                    None => break None,
                }
            };
            if let Some(from) = closed {
                let mut chain: Vec<String> =
                    path[from..].iter().map(|at| self.id(*at).to_string()).collect();
                chain.push(self.id(path[from]).to_string());
                cycles.push(chain);
            }
            for &at in &path {
                place[at] = usize::MAX;
                left[at] = false;
            }
        }
        cycles
    }

    /// Returns the cycle through `id`, if there is one.
    pub fn cycle_through(&self, id: &str) -> Option<Vec<String>> {
        let start = self.index(id)?;
        let mut from = vec![usize::MAX; self.len()];
        let mut queue = std::collections::VecDeque::from([start]);
        while let Some(at) = queue.pop_front() {
            for &on in self.reverse.of(at) {
                if on == start {
                    let mut chain = vec![self.id(start).to_string(), self.id(at).to_string()];
                    let mut back = at;
                    while back != start {
                        back = from[back];
                        chain.push(self.id(back).to_string());
                    }
                    chain.reverse();
                    chain.dedup();
                    return Some(chain);
                }
                if from[on] == usize::MAX {
                    from[on] = at;
                    queue.push_back(on);
                }
            }
        }
        None
    }

    /// Returns how many nodes each node unblocks, directly or not (see `EXACT`).
    pub fn impact(&self) -> Vec<u64> {
        let order = self.topological();
        let mut impact = vec![0u64; self.len()];
        if self.len() > EXACT {
            for &at in order.iter().rev() {
                impact[at] = self
                    .forward
                    .of(at)
                    .iter()
                    .fold(0u64, |sum, next| sum.saturating_add(1 + impact[*next]));
            }
            return impact;
        }
        let words = self.len().div_ceil(64);
        let mut below = vec![0u64; words * self.len()];
        for &at in order.iter().rev() {
            for &next in self.forward.of(at) {
                for word in 0..words {
                    below[at * words + word] |= below[next * words + word];
                }
                below[at * words + next / 64] |= 1 << (next % 64);
            }
            impact[at] = below[at * words..(at + 1) * words]
                .iter()
                .map(|word| u64::from(word.count_ones()))
                .sum();
        }
        impact
    }

    /// Returns the length of the longest chain of dependants of each node, including the node
    /// itself.
    pub fn height(&self) -> Vec<u32> {
        let order = self.topological();
        let mut height = vec![1u32; self.len()];
        for &at in order.iter().rev() {
            height[at] =
                1 + self.forward.of(at).iter().map(|next| height[*next]).max().unwrap_or(0);
        }
        height
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn graph(edges: &[(&str, &str)]) -> Graph {
        let mut nodes: std::collections::BTreeMap<&str, Vec<&str>> =
            std::collections::BTreeMap::new();
        for (a, b) in edges {
            nodes.entry(a).or_default();
            if !b.is_empty() {
                nodes.entry(b).or_default();
                nodes.entry(a).or_default().push(b);
            }
        }
        Graph::new(nodes)
    }

    #[test]
    fn cycles_are_spelled_out() {
        assert_eq!(
            graph(&[("a", "b"), ("b", "c"), ("c", "a")]).cycles(),
            [vec!["a", "b", "c", "a"]]
        );
        assert_eq!(graph(&[("a", "b"), ("b", "a"), ("x", "a")]).cycles(), [vec!["a", "b", "a"]]);
        assert_eq!(graph(&[("a", "a")]).cycles(), [vec!["a", "a"]]);
        assert_eq!(
            graph(&[("a", "b"), ("b", "c"), ("a", "c")]).cycles(),
            Vec::<Vec<String>>::new()
        );
        assert_eq!(
            graph(&[("a", "b"), ("b", "a"), ("c", "d"), ("d", "c"), ("d", "a")]).cycles().len(),
            2
        );
        let through =
            graph(&[("a", "b"), ("b", "c"), ("c", "a")]).cycle_through("b").expect("a cycle");
        assert_eq!((through.first(), through.len()), (through.last(), 4));
        assert_eq!(graph(&[("a", "b")]).cycle_through("a"), None);
    }

    #[test]
    fn impact_counts_each_dependant_once() {
        // A diamond: d depends on b and c, both depend on a.
        let graph = graph(&[("b", "a"), ("c", "a"), ("d", "b"), ("d", "c")]);
        let impact = graph.impact();
        let of = |id: &str| impact[graph.index(id).expect("there")];
        assert_eq!((of("a"), of("b"), of("c"), of("d")), (3, 1, 1, 0));
        assert_eq!(graph.height()[graph.index("a").expect("there")], 3);
    }

    #[test]
    fn missing_bead_is_named() {
        let graph = Graph::new([("a", vec!["b", "gone"]), ("b", vec![])]);
        assert_eq!(graph.outside().collect::<Vec<_>>(), [("a", "gone")]);
    }

    #[test]
    fn a_chain_of_a_hundred_thousand_is_no_deeper_than_a_flat_set() {
        let names: Vec<String> = (0..100_000).map(|n| format!("n{n}")).collect();
        let nodes = names.iter().enumerate().map(|(at, name)| {
            (name.as_str(), if at == 0 { vec![] } else { vec![names[at - 1].as_str()] })
        });
        let graph = Graph::new(nodes);
        assert_eq!(
            (graph.impact()[0], graph.cycles().len(), graph.height()[0]),
            (99_999, 0, 100_000)
        );
        assert_eq!(graph.downstream(0).len(), 99_999);
    }

    /// With quadratic work this test would take hours.
    #[test]
    fn bead_with_100000_duplicate_dependencies_is_handled() {
        let names: Vec<String> = (0..100_000).map(|n| format!("n{n}")).collect();
        let all: Vec<&str> = names.iter().chain(&names).map(String::as_str).collect();
        let nodes = names.iter().map(|name| (name.as_str(), vec![])).chain([("last", all)]);
        let graph = Graph::new(nodes);
        assert_eq!(
            (graph.edges(), graph.blockers(100_000).len(), graph.impact()[7]),
            (100_000, 100_000, 1)
        );
    }

    proptest! {
        #[test]
        fn cycle_detection_is_exact(
            edges in prop::collection::vec((0usize..12, 0usize..12), 0..30)) {
            let names: Vec<String> = (0..12).map(|n| n.to_string()).collect();
            let mut nodes: Vec<(&str, Vec<&str>)> = names.iter().map(|name| (name.as_str(), vec![]))
                .collect();
            for (a, b) in &edges {
                nodes[*a].1.push(&names[*b]);
            }
            let graph = Graph::new(nodes);
            let cycles = graph.cycles();
            prop_assert_eq!(cycles.is_empty(), graph.topological().len() == graph.len());
            for chain in cycles {
                prop_assert_eq!(chain.first(), chain.last());
                for pair in chain.windows(2) {
                    let (a, b) = (graph.index(&pair[0]).expect("there"),
                        graph.index(&pair[1]).expect("there"));
                    prop_assert!(graph.blockers(a).contains(&b));
                }
            }
        }
    }
}
