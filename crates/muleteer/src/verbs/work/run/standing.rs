//! The state of a run as files tell it, so that a hanging daemon cannot hide it.

use crate::cli::context::Context;
use crate::client::offline;
use crate::client::run_files::Runs;
use jiff::Timestamp;
use muleteer_model::spec_run::Run;
use muleteer_model::spec_run::report::status::Standing;
use muleteer_process::clock::awake;
use muleteer_supervisor::spec_run::is_hosted;
use std::time::Duration;

/// A starting daemon has taken the locks of its runs within this time.
pub(in crate::verbs::work) const BOOTING: Duration = Duration::from_secs(2);

/// Returns whether a daemon hosts a run that was live just now. The run's own lock decides, because
/// the daemon of the state directory may be unable to host this run. The function waits until
/// `deadline` for a daemon that is starting.
pub(in crate::verbs::work) fn is_carried_on(
    context: &Context,
    runs: &Runs,
    id: &str,
    deadline: Duration,
) -> bool {
    let folder = runs.folder().join(id);
    loop {
        let is_held = context.is_held();
        // A run that has ended since then was hosted until its end.
        if is_hosted(&folder) || runs.read(id).is_ok_and(|now| !now.is_live()) {
            return true;
        }
        if !is_held || awake() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Determines the state of the run from files alone, so that a hanging daemon cannot hide it.
pub(super) fn standing(context: &Context, runs: &Runs, run: &Run) -> Standing {
    let hosted = run.is_live() && is_carried_on(context, runs, run.id(), awake() + BOOTING);
    // Without the fleet nothing is known about what the agents wait for, and about a question.
    let fleet = (run.is_live() || run.question().is_some())
        .then(|| offline::fleet(context).ok())
        .flatten();
    let standing = Standing::of(run, fleet.as_ref(), hosted, Timestamp::now());
    standing.with_obstacle(run, obstacle(context, run, hosted))
}

/// Returns why a running daemon does not host this run, as far as files tell.
pub(in crate::verbs::work) fn obstacle(
    context: &Context,
    run: &Run,
    hosted: bool,
) -> Option<String> {
    let is_due = run.is_live() && !hosted && context.is_held();
    is_due.then(|| muleteer_supervisor::spec_run::obstacle(&context.paths, run.id()))
}
