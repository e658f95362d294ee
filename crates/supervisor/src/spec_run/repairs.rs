//! Records the repairs of a run's hub as fault events.

use crate::daemon::context::Daemon;
use crate::spec_run::host::Hosted;
use muleteer_model::event::Event;

/// Records the repairs since the last call.
pub fn report(daemon: &Daemon, hosted: &Hosted) {
    for message in hosted.repos.take_repairs() {
        daemon.note(Event::Fault { what: format!("the hub of {}", hosted.run_id), message });
    }
}
