//! Going on with the runs that were under way when the last daemon died.
//!
//! A run can hold something that crashes the daemon which goes on with it, as an agent's files once did. So
//! that such a run does not crash one daemon after the other, each of them writes `recovering` into the
//! run's directory before it goes on: how many daemons have crashed so. Progress of the run, a minute of
//! it, or an orderly end of the daemon removes the file. After [`LIMIT`] crashes the run is set aside with
//! its reason, and `run --resume` goes on with it. A daemon that was killed has not crashed.

use super::{host, saved, take_lock};
use crate::context::Daemon;
use crate::request::unwritten;
use crate::runs::host::{Hosted, LIVE, Places, key_of};
use muleteer_model::event::Event;
use muleteer_model::pipeline::Run;
use muleteer_model::pipeline::event::RunStatus;
use muleteer_protocol::v1::WireError;
use muleteer_store::atomic::write_atomic;
use std::path::{Path, PathBuf};

/// So many daemons may crash while they go on with a run, before it is set aside.
const LIMIT: u32 = 2;
/// The file is one number.
const MARK_LIMIT: u64 = 64;

fn mark(places: &Places) -> PathBuf {
    places.private.join("recovering")
}

/// How many daemons have crashed while they went on with the run, the last one included if it did.
fn crashes(places: &Places, last: bool) -> u32 {
    let Ok(text) = crate::beneath::read_file(&mark(places), MARK_LIMIT) else { return 0 };
    let before: u32 = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    before.saturating_add(u32::from(last))
}

/// Notes that the run goes on: the daemon outlived that.
pub fn outlived(places: &Places) {
    match std::fs::remove_file(mark(places)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(%error, path = %mark(places).display(), "failed to remove");
        }
        _ => {}
    }
}

/// Hosts the runs that were under way; tells which could not be, and why. `crashed`: the daemon before this one did. Blocks;
/// called before the tree starts.
pub fn boot(daemon: &Daemon, crashed: bool) -> Vec<(String, WireError)> {
    let mut troubles = Vec::new();
    let Ok(entries) = std::fs::read_dir(daemon.paths.runs()) else { return troubles };
    for entry in entries.flatten() {
        let Ok(run_id) = entry.file_name().into_string() else { continue };
        if entry.path().join(LIVE).exists()
            && let Err(error) = go_on(daemon, &run_id, &entry.path(), crashed)
        {
            troubles.push((run_id, error));
        }
    }
    troubles
}

fn go_on(daemon: &Daemon, run_id: &str, private: &Path, crashed: bool) -> Result<(), WireError> {
    let Some(key) = key_of(run_id) else { return Ok(()) };
    let saved = saved(&private.join("run.json"))?;
    let places = Places::new(daemon, Path::new(&saved.request.repo), run_id);
    let lock = take_lock(&places, run_id)?;
    let before = crashes(&places, crashed);
    if before >= LIMIT {
        let hosted = Hosted::new(places, run_id, key, saved, lock);
        return set_aside(daemon, &hosted, before);
    }
    write_atomic(&mark(&places), before.to_string().as_bytes(), 0o600).map_err(|error| unwritten(&error))?;
    host(daemon, &places, key, Some(lock)).map(drop)
}

/// Has the run rest, and says why, in its log and to the caller.
fn set_aside(daemon: &Daemon, hosted: &Hosted, before: u32) -> Result<(), WireError> {
    let failed = |message: String| crate::request::internal(&message);
    let why = format!("{before} daemons crashed while they went on with this run, so it was set aside");
    let run = hosted.open_log().map_err(|error| failed(crate::launch::chain(&error)))?;
    if let Some(mut run) = run.filter(Run::is_live) {
        let rested = Event::RunRested { status: RunStatus::Failed, reason: why.clone() };
        for record in hosted.append(vec![rested]).map_err(failed)? {
            run.apply(&record);
        }
        hosted.write_snapshots(daemon, &run);
    }
    let _ = std::fs::remove_file(hosted.places.live());
    outlived(&hosted.places);
    hosted.remove_lock_note();
    Err(failed(why))
}
