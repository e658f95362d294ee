//! Other supervisors, where they are on PATH: the same work, done their way.

use super::measure::Subject;
use super::place::Place;
use std::path::Path;

/// What was looked for, so that a table can say what was not there.
pub const KNOWN: [(&str, &str); 5] =
    [("runit", "runsvdir"), ("s6", "s6-svscan"), ("supervisord", "supervisord"), ("pm2", "pm2"), ("pueue", "pueued")];

/// The peers found here.
pub fn found() -> Vec<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |program: &str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    KNOWN.iter().filter(|(_, program)| there(program)).map(|(name, _)| *name).collect()
}

/// Peers that can start `count` programs at once.
pub fn starting<'a>(_: &'a Place, _: &'a Path, _: &'a Path, _: usize) -> Vec<(String, Subject<'a>)> {
    vec![]
}
