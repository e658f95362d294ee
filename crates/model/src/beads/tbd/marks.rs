//! The labels by which beads in tbd have Muleteer's own fields (table in [`crate::beads::tbd`]).

/// Labels with this prefix belong to Muleteer.
pub const MARK: &str = "muleteer-";
pub(super) const KEY: &str = "muleteer-key:";
pub(super) const STAGED: &str = "muleteer-staged:";
pub(super) const NO_CHANGE: &str = "muleteer-no-change";
pub(super) const DISCARDED: &str = "muleteer-discarded";

/// Returns whether a label is one of Muleteer's own, which users may not set.
pub fn is_mark(label: &str) -> bool {
    label.starts_with(KEY) || label.starts_with(STAGED) || label == NO_CHANGE || label == DISCARDED
}
