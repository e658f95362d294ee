//! Going on with the runs that were under way when the last daemon died.
//!
//! A run can hold something that crashes the daemon which goes on with it, as an agent's files once did. So
//! that such a run does not crash one daemon after the other, each of them writes `recovering` into the
//! run's directory before it goes on: how many daemons have crashed so. Progress of the run, a minute of
//! it, or an orderly end of the daemon removes the file. After [`LIMIT`] crashes the run is set aside with
//! its reason, and `run --resume` goes on with it. A daemon that was killed has not crashed.
//!
//! Several runs go on at once, and a crash does not tell which of them caused it. So all of them are
//! suspects after the first crash, and from then on suspects go on one at a time: each waits for the
//! one before it to be outlived, and a crash counts only for the run whose trial it was. Otherwise one
//! run would have others set aside that only waited for their agents.

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

/// What a run's mark says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    crashes: u32,
    /// The run had not gone on yet, so a crash was not its doing.
    is_waiting: bool,
}

/// The word after the number in the mark of a suspect that waits for its trial.
const WAITING: &str = "waiting";

impl Mark {
    fn parse(text: &str) -> Self {
        let mut words = text.split_whitespace();
        let crashes = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        Self { crashes, is_waiting: words.next() == Some(WAITING) }
    }

    fn read(places: &Places) -> Option<Self> {
        let text = crate::beneath::read_file(&mark(places), MARK_LIMIT).ok()?;
        Some(Self::parse(std::str::from_utf8(&text).unwrap_or_default()))
    }

    /// The mark once another daemon goes on with the run; `crashed`: the one before it did.
    fn after(before: Option<Self>, crashed: bool) -> Self {
        let crashes = before.map_or(0, |mark| mark.crashes.saturating_add(u32::from(crashed && !mark.is_waiting)));
        Self { crashes, is_waiting: crashes > 0 }
    }

    fn write(self, places: &Places) -> Result<(), WireError> {
        let text = match self.is_waiting {
            true => format!("{} {WAITING}", self.crashes),
            false => self.crashes.to_string(),
        };
        write_atomic(&mark(places), text.as_bytes(), 0o600).map_err(|error| unwritten(&error))
    }
}

/// Whether a daemon has crashed while the run was one of those that went on: it waits for its trial.
pub fn is_suspect(places: &Places) -> bool {
    Mark::read(places).is_some_and(|mark| mark.crashes > 0)
}

/// Notes that a suspect goes on now: from here on a crash is its doing.
pub fn begin_trial(places: &Places) {
    let Some(known) = Mark::read(places) else { return };
    if let Err(error) = (Mark { is_waiting: false, ..known }).write(places) {
        tracing::warn!(error = %error.message, path = %mark(places).display(), "failed to write");
    }
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
    let now = Mark::after(Mark::read(&places), crashed);
    if now.crashes >= LIMIT {
        let hosted = Hosted::new(places, run_id, key, saved, lock);
        return set_aside(daemon, &hosted, now.crashes);
    }
    now.write(&places)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crash_counts_only_for_the_run_on_trial() {
        let mark = |crashes, is_waiting| Mark { crashes, is_waiting };
        assert_eq!(Mark::after(None, true), mark(0, false), "it had been outlived");
        // Nobody knows which of the runs that went on at once caused the first crash.
        assert_eq!(Mark::after(Some(mark(0, false)), true), mark(1, true));
        assert_eq!(Mark::after(Some(mark(1, true)), true), mark(1, true), "another one's trial");
        assert_eq!(Mark::after(Some(mark(1, false)), true), mark(LIMIT, true));
        // One that was killed has not crashed.
        assert_eq!(Mark::after(Some(mark(0, false)), false), mark(0, false));
        assert_eq!(Mark::after(Some(mark(1, false)), false), mark(1, true));
        for (text, read) in [("1", mark(1, false)), ("1 waiting", mark(1, true)), ("?", mark(0, false))] {
            assert_eq!(Mark::parse(text), read, "{text}");
        }
    }
}
