//! Writes the files in which people see how a run stands.

use crate::daemon::context::Daemon;
use crate::dispatch::error::chain;
use crate::spec_run::host::Hosted;
use muleteer_model::event::Event;
use muleteer_model::event::id::DispatchId;
use muleteer_model::spec_run::{Run, checkpoint};
use muleteer_store::atomic::replace_snapshots;

/// Writes the snapshots. A failure stops nothing, because the events are the truth.
pub fn write(daemon: &Daemon, hosted: &Hosted, run: &Run) {
    let fleet = daemon.snapshot();
    let pid = |dispatch: &str| {
        let id = DispatchId::try_from(dispatch.to_string()).ok()?;
        fleet.get(&id)?.pid()
    };
    let texts = checkpoint::snapshots(run, pid)
        .map(|(name, text)| (name, hosted.places.public.join(name), text));
    let good = texts
        .iter()
        .filter_map(|(_, path, text)| Some((path.as_path(), text.as_ref().ok()?.as_bytes())));
    let mut written = replace_snapshots(&good.collect::<Vec<_>>(), 0o600).into_iter();
    for (name, _, text) in texts {
        let text = text.map_err(|error| error.to_string());
        let written = text.and_then(|_| match written.next() {
            Some(Err(error)) => Err(chain(&error)),
            _ => Ok(()),
        });
        if let Err(message) = written {
            daemon.note(Event::Fault { what: format!("{} of {}", name, hosted.run_id), message });
        }
    }
}
