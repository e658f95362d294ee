//! Damage to each durable file that a month leaves, and the answers of a daemon that starts
//! afterwards.
//!
//! There is one scene for many seeds: a state directory with archived dispatches, removed events,
//! a snapshot, compressed and plain segments, compressed output, metrics, an ended run with a
//! compressed log and a thread whose old messages left the memory. No daemon runs. Each seed
//! damages one file of a copy of it. Then:
//!
//! - a daemon starts and each command gives the same answer as before (what was damaged is made
//!   again), or ends with an error that has a code, names the damaged file and says what to do;
//! - or the daemon refuses to start with such an error, and has changed no file of the log;
//! - files that follow from the log (snapshot, mark, database) prevent no answer at all;
//! - damage to the output of one agent or to the log of a run concerns its own commands only;
//! - nothing panics.
//!
//! Two kinds of damage are not tried, because nobody notices them: bytes that change in the middle
//! of the database, and (no command reads them while the database is whole) in the metrics.

mod damage;
mod scene;

pub use damage::Damage;
pub use scene::Scene;

use crate::crash::Dice;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;

/// The purpose of a file, which says what its damage may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A part of the log.
    Log,
    /// It is made from the log: its damage may cost time only.
    Derived,
    /// The lines of ends, which nobody can make again once the events are removed.
    Metrics,
    /// The output of one agent.
    Output,
    /// A part of a run's log.
    RunLog,
}

const CLASSES: [Class; 5] =
    [Class::Log, Class::Derived, Class::Metrics, Class::Output, Class::RunLog];

/// Damages one file of the scene, both chosen by `seed`, and checks what a daemon makes of it.
///
/// # Panics
/// When an invariant does not hold.
pub fn seeded(scene: &Scene, seed: u64) {
    let mut dice = Dice::new(seed);
    let files = scene.files();
    let of = |class: Class| -> Vec<_> {
        files.iter().filter(|(_, of)| **of == class).map(|(path, _)| path.clone()).collect()
    };
    let class = CLASSES[usize::try_from(dice.below(CLASSES.len() as u64)).expect("it is small")];
    let of_class = of(class);
    assert!(!of_class.is_empty(), "the scene has no file of the class {class:?}");
    let file = &of_class[usize::try_from(dice.below(of_class.len() as u64)).expect("small")];
    let others: Vec<_> = of_class.iter().filter(|other| *other != file).cloned().collect();
    // SQLite has no checksums of its pages: a changed number in a row is not noticed.
    let in_part = !file.ends_with("muleteer.db");
    let damage = Damage::choose(&mut dice, file, &others, in_part);
    eprintln!("corruption seed {seed}: {class:?} {}: {damage:?}", file.display());
    damage.inflict(file);
    let mut damaged = vec![file.as_path()];
    if let Damage::Swapped(other) = &damage {
        damaged.push(other);
    }
    let checked = catch_unwind(AssertUnwindSafe(|| scene.check(class, &damaged)));
    scene.restore();
    if let Err(panic) = checked {
        resume_unwind(panic);
    }
}

/// Files with their classes, by path.
pub type Files = BTreeMap<PathBuf, Class>;
