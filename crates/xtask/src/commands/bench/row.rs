//! One figure of the benchmark, and the options that it gets.

use super::measure::{Judged, Samples};
use super::place::Place;
use xtask::Failure;

/// One figure and its goals.
pub struct Row {
    pub name: &'static str,
    /// A description of the measured work, with its start and end.
    pub what: &'static str,
    /// A description of the floor; empty for an absolute figure.
    pub floor: &'static str,
    pub judged: Judged,
    /// The required and the desired value, in the unit that is judged.
    pub gate: Option<f64>,
    pub ambition: Option<f64>,
    pub run: fn(&Options) -> Result<Samples, Failure>,
}

/// The options of the command line, which every row gets.
#[derive(Debug, Clone)]
pub struct Options {
    /// The folder of `muleteer` and `muleteer-shim`.
    pub bin: std::path::PathBuf,
    /// The folder of the probes that are built for this (`stamp`, `spawner`, `append`).
    pub probes: std::path::PathBuf,
    /// The number of rounds of floor and subject in turns; the median counts.
    pub rounds: usize,
    /// The number of agents in rows about many agents, 500 by default: a smaller machine may lower
    /// it.
    pub many: usize,
    /// The number of finished dispatches in rows about a month, 5,000 by default.
    pub month: usize,
    /// The folder of the place of those rows: made if it is not there, and never removed.
    pub at: Option<std::path::PathBuf>,
    /// The number of threads in rows about many threads, 10,000 by default.
    pub threads: usize,
}

impl Options {
    pub fn place(&self) -> Result<Place, Failure> {
        Place::new(&self.bin)
    }
}
