//! Places the nodes of a dependency graph in layers from left to right, so that all lines point the
//! same way (Sugiyama's method). The height of a layer is bounded (Coffman-Graham). A line that
//! spans several layers gets a point in each of them; all lines from one node share these points.
//! The order within a layer follows from the positions of the neighbours (barycentres, in
//! alternating direction). The rows are those closest to the neighbours' that keep the distances
//! (least squares).
//!
//! Lengths are in rows and layers; the renderer chooses their size. The same graph always gives the
//! same picture. No function recurses.

use crate::beads::graph::Graph;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

/// Above this number of line points, lines are straight: they would be unreadable anyway.
const BENDS: usize = 20_000;
/// Above this number of nodes, implied dependencies are not searched for.
const REDUCIBLE: usize = 4096;
const SWEEPS: usize = 12;
/// The minimum distance between two lines, where that between two nodes is 1.
const LINE_ROOM: f64 = 0.45;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Picture {
    /// The places of nodes with a dependency or a dependant; `None` for all others.
    pub places: Vec<Option<Place>>,
    pub lines: Vec<Line>,
    /// Dependencies that follow from the drawn lines and are not drawn.
    pub implied: usize,
    pub layers: usize,
    /// The distance from the first row to the last.
    pub height: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Place {
    pub layer: usize,
    pub row: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    pub from: usize,
    pub to: usize,
    /// Points in the layers in between.
    pub bends: Vec<Place>,
}

/// A node, or a point of a line in a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Item {
    /// `None` for a point of a line.
    node: Option<usize>,
    layer: usize,
    row: f64,
}

pub fn picture(graph: &Graph) -> Picture {
    let tied = |at: usize| !graph.blockers(at).is_empty() || !graph.dependants(at).is_empty();
    let (edges, implied) = reduced(graph);
    let layer_of = layers(graph, &tied);
    let mut items: Vec<Item> = vec![];
    let mut item_of = vec![usize::MAX; graph.len()];
    for at in (0..graph.len()).filter(|at| tied(*at)) {
        item_of[at] = items.len();
        items.push(Item { node: Some(at), layer: layer_of[at], row: 0.0 });
    }
    let reach = |at: usize| graph.dependants(at).iter().map(|to| layer_of[*to]).max().unwrap_or(0);
    let bend =
        (0..graph.len()).map(|at| reach(at).saturating_sub(layer_of[at])).sum::<usize>() <= BENDS;
    // The items of each line, from start to end.
    let mut tracks: Vec<Vec<usize>> = vec![];
    let mut trunk: HashMap<(usize, usize), usize> = HashMap::new();
    for (from, to) in &edges {
        let mut track = vec![item_of[*from]];
        if bend {
            for layer in layer_of[*from] + 1..layer_of[*to] {
                track.push(*trunk.entry((*from, layer)).or_insert_with(|| {
                    items.push(Item { node: None, layer, row: 0.0 });
                    items.len() - 1
                }));
            }
        }
        track.push(item_of[*to]);
        tracks.push(track);
    }
    let count = items.iter().map(|item| item.layer + 1).max().unwrap_or(0);
    let mut columns: Vec<Vec<usize>> = vec![vec![]; count];
    for (at, item) in items.iter().enumerate() {
        columns[item.layer].push(at);
    }
    let mut before: Vec<Vec<usize>> = vec![vec![]; items.len()];
    let mut after: Vec<Vec<usize>> = vec![vec![]; items.len()];
    let pairs: BTreeSet<(usize, usize)> =
        tracks.iter().flat_map(|track| track.windows(2)).map(|pair| (pair[0], pair[1])).collect();
    for (one, next) in pairs {
        after[one].push(next);
        before[next].push(one);
    }
    for column in &columns {
        stack(column, &mut items);
    }
    let sweeps = if items.len() > BENDS / 2 { SWEEPS / 3 } else { SWEEPS };
    for sweep in 0..sweeps {
        let (forwards, neighbours) = if sweep % 2 == 0 { (true, &before) } else { (false, &after) };
        let order: Vec<usize> =
            if forwards { (0..count).collect() } else { (0..count).rev().collect() };
        for layer in order {
            let wish =
                |at: usize, items: &[Item]| mean(&neighbours[at], items).unwrap_or(items[at].row);
            columns[layer].sort_by(|a, b| wish(*a, &items).total_cmp(&wish(*b, &items)));
            stack(&columns[layer], &mut items);
        }
    }
    for sweep in 0..sweeps {
        let layers: Vec<usize> =
            if sweep % 2 == 0 { (0..count).collect() } else { (0..count).rev().collect() };
        for layer in layers {
            let column = &columns[layer];
            let wishes: Vec<f64> = column
                .iter()
                .map(|&at| {
                    let both: Vec<usize> = before[at].iter().chain(&after[at]).copied().collect();
                    mean(&both, &items).unwrap_or(items[at].row)
                })
                .collect();
            settle(column, &wishes, &mut items);
        }
    }
    let top = items.iter().map(|item| item.row).fold(f64::INFINITY, f64::min);
    let place = |at: &usize| Place { layer: items[*at].layer, row: items[*at].row - top };
    let lines = tracks.iter().zip(&edges).map(|(track, (from, to))| Line {
        from: *from,
        to: *to,
        bends: track[1..track.len() - 1].iter().map(place).collect(),
    });
    let lines: Vec<Line> = lines.collect();
    let places: Vec<Option<Place>> =
        item_of.iter().map(|at| (*at != usize::MAX).then(|| place(at))).collect();
    let bends = lines.iter().flat_map(|line| &line.bends);
    let height = places.iter().flatten().chain(bends).map(|place| place.row).fold(0.0, f64::max);
    Picture { places, lines, implied, layers: count, height }
}

/// Returns the lines from blocker to dependant, without those that a longer path implies.
fn reduced(graph: &Graph) -> (Vec<(usize, usize)>, usize) {
    let mut edges = vec![];
    let mut implied = 0;
    let order = graph.topological();
    if graph.len() > REDUCIBLE || order.len() < graph.len() {
        for at in 0..graph.len() {
            edges.extend(graph.blockers(at).iter().map(|on| (*on, at)));
        }
        return (edges, 0);
    }
    let words = graph.len().div_ceil(64);
    let mut above = vec![0u64; words * graph.len()];
    for &at in &order {
        let blockers = graph.blockers(at);
        for &on in blockers {
            let known = |by: &usize| above[by * words + on / 64] >> (on % 64) & 1 == 1;
            if blockers.iter().any(known) {
                implied += 1;
            } else {
                edges.push((on, at));
            }
        }
        for &on in blockers {
            for word in 0..words {
                above[at * words + word] |= above[on * words + word];
            }
            above[at * words + on / 64] |= 1 << (on % 64);
        }
    }
    edges.sort_unstable();
    (edges, implied)
}

/// Assigns each node a layer after its blockers, and limits the size of each layer. Nodes on a
/// cycle are in the first layer.
fn layers(graph: &Graph, tied: &dyn Fn(usize) -> bool) -> Vec<usize> {
    let nodes = (0..graph.len()).filter(|at| tied(*at)).count();
    let most = nodes.isqrt().saturating_mul(3).div_ceil(2).max(8);
    let height = graph.height();
    let order = graph.topological();
    let mut rank = vec![0usize; graph.len()];
    for &at in &order {
        rank[at] = graph.blockers(at).iter().map(|on| rank[*on] + 1).max().unwrap_or(0);
    }
    let mut sorted: Vec<usize> = order.into_iter().filter(|at| tied(*at)).collect();
    sorted.sort_by_key(|at| (rank[*at], Reverse(height[*at]), *at));
    let mut layer = vec![0usize; graph.len()];
    let mut filled: Vec<usize> = vec![];
    for at in sorted {
        let mut here = graph.blockers(at).iter().map(|on| layer[*on] + 1).max().unwrap_or(0);
        while filled.get(here).is_some_and(|count| *count >= most) {
            here += 1;
        }
        if filled.len() <= here {
            filled.resize(here + 1, 0);
        }
        filled[here] += 1;
        layer[at] = here;
    }
    layer
}

fn mean(of: &[usize], items: &[Item]) -> Option<f64> {
    #[allow(clippy::cast_precision_loss)] // Not that many neighbours.
    (!of.is_empty()).then(|| of.iter().map(|at| items[*at].row).sum::<f64>() / of.len() as f64)
}

/// Returns the minimum distance between two neighbours in a layer.
fn room(above: Item, below: Item) -> f64 {
    match (above.node, below.node) {
        (Some(_), Some(_)) => 1.0,
        (None, None) => LINE_ROOM,
        _ => f64::midpoint(1.0, LINE_ROOM),
    }
}

/// Places the items of a layer below each other, as close as possible.
fn stack(column: &[usize], items: &mut [Item]) {
    let mut row = 0.0;
    for (index, &at) in column.iter().enumerate() {
        if index > 0 {
            row += room(items[column[index - 1]], items[at]);
        }
        items[at].row = row;
    }
    // Centre the layer, so that a short layer is not at the top.
    for &at in column {
        items[at].row -= row / 2.0;
    }
}

/// Places the items of a layer as close to their wishes as the order and the distances allow.
/// Overlapping neighbours move as one block (pool adjacent violators).
fn settle(column: &[usize], wishes: &[f64], items: &mut [Item]) {
    // With these offsets subtracted, keeping the distances means "not less than the one before".
    let mut offsets = vec![0.0; column.len()];
    for index in 1..column.len() {
        offsets[index] = offsets[index - 1] + room(items[column[index - 1]], items[column[index]]);
    }
    // (sum of wishes, number of items)
    let mut blocks: Vec<(f64, f64)> = vec![];
    for (wish, offset) in wishes.iter().zip(&offsets) {
        blocks.push((wish - offset, 1.0));
        while let [.., before, last] = blocks.as_slice()
            && before.0 / before.1 > last.0 / last.1
        {
            let joined = (before.0 + last.0, before.1 + last.1);
            blocks.truncate(blocks.len() - 2);
            blocks.push(joined);
        }
    }
    let mut index = 0;
    for (sum, count) in blocks {
        let mut left = count;
        while left > 0.5 && index < column.len() {
            items[column[index]].row = sum / count + offsets[index];
            index += 1;
            left -= 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn graph(count: usize, edges: &[(usize, usize)]) -> Graph {
        let names: Vec<String> = (0..count).map(|n| n.to_string()).collect();
        let mut nodes: Vec<(&str, Vec<&str>)> =
            names.iter().map(|name| (name.as_str(), vec![])).collect();
        for (on, at) in edges {
            nodes[*at].1.push(&names[*on]);
        }
        Graph::new(nodes)
    }

    #[test]
    fn diamond_layout_omits_implied_edges() {
        // 0 blocks 1 and 2, and both block 3, so the line from 0 to 3 is implied. 4 is alone.
        let picture = picture(&graph(5, &[(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)]));
        let layers: Vec<_> =
            picture.places.iter().map(|place| place.map(|place| place.layer)).collect();
        assert_eq!(layers, [Some(0), Some(1), Some(1), Some(2), None]);
        let row = |at: usize| picture.places[at].expect("placed").row;
        assert!((row(0) - row(3)).abs() < 1e-6 && (row(1) - row(2)).abs() >= 1.0 - 1e-6);
        assert_eq!((picture.lines.len(), picture.implied, picture.layers), (4, 1, 3));
    }

    #[test]
    fn a_fan_does_not_become_a_tower() {
        let edges: Vec<_> = (1..400).map(|at| (0, at)).collect();
        let picture = picture(&graph(400, &edges));
        assert!(
            picture.layers > 5 && picture.height < 60.0,
            "{} × {}",
            picture.layers,
            picture.height
        );
    }

    #[test]
    fn long_and_large_graphs_are_drawn_too() {
        let chain: Vec<_> = (1..2000).map(|at| (at - 1, at)).collect();
        assert_eq!(picture(&graph(2000, &chain)).layers, 2000);
        let dense: Vec<_> =
            (1..2000).flat_map(|at| (1..4).map(move |back| (at / (back + 1), at))).collect();
        let picture = picture(&graph(2000, &dense));
        assert!(picture.places.iter().all(Option::is_some));
    }

    #[test]
    fn a_circle_is_drawn_somehow() {
        assert_eq!(picture(&graph(2, &[(0, 1), (1, 0)])).lines.len(), 2);
        assert_eq!(picture(&graph(0, &[])), Picture { places: vec![], ..Picture::default() });
    }

    proptest! {
        /// Lines point forwards, nodes keep their distance, and every dependency is drawn or
        /// implied.
        #[test]
        fn pictures_are_sound(edges in prop::collection::vec((0usize..25, 0usize..25), 0..60)) {
            let edges: Vec<_> = edges.into_iter().filter(|(a, b)| a < b).collect();
            let graph = graph(25, &edges);
            let picture = picture(&graph);
            prop_assert_eq!(picture.lines.len() + picture.implied, graph.edges());
            for line in &picture.lines {
                let (from, to) =
                    (picture.places[line.from].expect("placed"),
                    picture.places[line.to].expect("placed"));
                prop_assert!(from.layer < to.layer);
                prop_assert_eq!(line.bends.len(), to.layer - from.layer - 1);
            }
            let placed: Vec<_> = picture.places.iter().flatten().collect();
            for (index, one) in placed.iter().enumerate() {
                for other in &placed[index + 1..] {
                    prop_assert!(one.layer != other.layer
                        || (one.row - other.row).abs() > 1.0 - 1e-6);
                }
                prop_assert!(one.row >= -1e-9 && one.row <= picture.height + 1e-9);
            }
            // The drawn lines alone give the same reachability.
            let drawn: Vec<_> = picture.lines.iter().map(|line| (line.from, line.to)).collect();
            let drawn = self::graph(25, &drawn);
            for at in 0..25 {
                prop_assert_eq!(drawn.downstream(at), graph.downstream(at));
            }
        }
    }
}
