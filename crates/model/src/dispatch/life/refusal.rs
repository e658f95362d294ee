//! Errors at the start of an agent CLI that no further attempt changes.

use crate::dispatch::{Dispatch, Exit};

/// Returns why the same command line would be rejected again, and what to do about it.
pub(super) fn of(d: &Dispatch, exit: &Exit) -> Option<&'static str> {
    let failed = exit.code.is_some_and(|code| code != 0);
    let printed = |marks: &[&str]| {
        exit.stderr_tail.lines().any(|line| marks.iter().all(|mark| line.contains(mark)))
    };
    let mut errors = d.traits.start_errors.iter().filter(|_| failed);
    errors.find(|error| printed(error.marks)).map(|error| error.reason)
}
