//! Going on with the runs that were under way when the last daemon died.
//!
//! A run can hold something that crashes the daemon which goes on with it, as an agent's files once
//! did. So that such a run does not crash one daemon after the other, each of them writes
//! `recovering` into the run's directory before it goes on: how many daemons have crashed so.
//! Progress of the run, a minute of it, or an orderly end of the daemon removes the file. After
//! [`LIMIT`] crashes the run is set aside with its reason, and `run --resume` goes on with it. A
//! daemon that was killed has not crashed.
//!
//! Several runs go on at once, and a crash does not tell which of them caused it. So all of them
//! are suspects after the first crash, and from then on suspects go on one at a time: each waits
//! for the one before it to be outlived, and a crash counts only for the run whose trial it was.
//! Otherwise one run would have others set aside that only waited for their agents. A suspect that
//! a person stops leaves this queue and is ended at once; a crash counts for it too then.
//!
//! A run that is set aside rests at once, and what there is of its work is brought into the
//! repository afterwards, by a task of the daemon ([`keep_set_aside`]). `keeping` says that this is
//! to be done, and counts the daemons that crashed over it, so that it ends no daemon for ever
//! either.

use crate::daemon::context::Daemon;
use crate::daemon::owned_task::own;
use crate::dispatch::request::unwritten;
use crate::spec_run::begin::{host, saved, take_lock};
use crate::spec_run::host::{Hosted, LIVE, Places, key_of};
use crate::spec_run::publish;
use muleteer_model::event::Event;
use muleteer_model::spec_run::Run;
use muleteer_model::spec_run::event::RunStatus;
use muleteer_process::fault;
use muleteer_protocol::v1::WireError;
use muleteer_store::atomic::write_atomic;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

/// So many daemons may crash while they go on with a run, before it is set aside.
const LIMIT: u32 = 2;
/// The file is one number.
const MARK_LIMIT: u64 = 64;

fn mark(places: &Places) -> PathBuf {
    places.private.join("recovering")
}

/// Of a run's directory in the state directory, the mark of one that was set aside, whose work is
/// to be brought into the repository.
const KEEPING: &str = "keeping";

fn keeping(places: &Places) -> PathBuf {
    places.private.join(KEEPING)
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

    fn read(path: &Path) -> Option<Self> {
        let text = crate::vcs::untrusted_path::read_file(path, MARK_LIMIT).ok()?;
        Some(Self::parse(std::str::from_utf8(&text).unwrap_or_default()))
    }

    /// The mark once another daemon goes on with the run; `crashed`: the one before it did.
    fn after(before: Option<Self>, crashed: bool) -> Self {
        let crashes = before
            .map_or(0, |mark| mark.crashes.saturating_add(u32::from(crashed && !mark.is_waiting)));
        Self { crashes, is_waiting: crashes > 0 }
    }

    fn write(self, path: &Path) -> Result<(), WireError> {
        let text = match self.is_waiting {
            true => format!("{} {WAITING}", self.crashes),
            false => self.crashes.to_string(),
        };
        write_atomic(path, text.as_bytes(), 0o600).map_err(|error| unwritten(&error))
    }
}

/// Whether a daemon has crashed while the run was one of those that went on: it waits for its
/// trial.
pub fn is_suspect(places: &Places) -> bool {
    Mark::read(&mark(places)).is_some_and(|mark| mark.crashes > 0)
}

/// Notes that a suspect goes on now: from here on a crash is its doing.
pub fn begin_trial(places: &Places) {
    let Some(known) = Mark::read(&mark(places)) else { return };
    if let Err(error) = (Mark { is_waiting: false, ..known }).write(&mark(places)) {
        tracing::warn!(error = %error.message, path = %mark(places).display(), "failed to write");
    }
}

/// Notes that the run goes on: the daemon outlived that.
pub fn outlived(places: &Places) {
    remove(&mark(places));
}

fn remove(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(%error, path = %path.display(), "failed to remove");
        }
        _ => {}
    }
}

/// Hosts the runs that were under way; tells which could not be, and why. `crashed`: the daemon
/// before this one did. Blocks; called before the tree starts.
pub fn boot(daemon: &Daemon, crashed: bool) -> Vec<(String, WireError)> {
    let mut troubles = Vec::new();
    let Ok(entries) = std::fs::read_dir(daemon.paths.runs()) else { return troubles };
    for entry in entries.flatten() {
        let Ok(run_id) = entry.file_name().into_string() else { continue };
        let outcome = if entry.path().join(LIVE).exists() {
            go_on(daemon, &run_id, &entry.path(), crashed)
        } else if entry.path().join(KEEPING).exists() {
            keep_on(daemon, &run_id, &entry.path(), crashed)
        } else {
            Ok(())
        };
        if let Err(error) = outcome {
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
    let now = Mark::after(Mark::read(&mark(&places)), crashed);
    now.write(&mark(&places))?;
    if now.crashes >= LIMIT {
        fault::point("aside.counted");
        let hosted = Hosted::new(places, run_id, key, saved, lock);
        return set_aside(daemon, hosted, now.crashes);
    }
    host(daemon, &places, key, Some(lock)).map(drop)
}

/// Has the run rest, and says why, in its log and to the caller. Its work is kept afterwards.
fn set_aside(daemon: &Daemon, hosted: Hosted, before: u32) -> Result<(), WireError> {
    let failed = |message: String| crate::dispatch::request::internal(&message);
    let why =
        format!("{before} daemons crashed while they went on with this run, so it was set aside");
    let run = hosted.open_log().map_err(|error| failed(crate::dispatch::launch::chain(&error)))?;
    Mark { crashes: 0, is_waiting: false }.write(&keeping(&hosted.places))?;
    fault::point("aside.noted");
    if let Some(mut run) = run.filter(Run::is_live) {
        let rested = Event::RunRested { status: RunStatus::Failed, reason: why.clone() };
        for record in hosted.append(vec![rested]).map_err(failed)? {
            run.apply(&record);
        }
        hosted.write_snapshots(daemon, &run);
    }
    fault::point("aside.rested");
    let _ = std::fs::remove_file(hosted.places.live());
    outlived(&hosted.places);
    hosted.remove_lock_note();
    daemon.runs.aside.lock().unwrap_or_else(PoisonError::into_inner).push(hosted);
    Err(failed(why))
}

/// Has the work of a run kept that an earlier daemon set aside.
fn keep_on(daemon: &Daemon, run_id: &str, private: &Path, crashed: bool) -> Result<(), WireError> {
    let Some(key) = key_of(run_id) else { return Ok(()) };
    let saved = saved(&private.join("run.json"))?;
    let places = Places::new(daemon, Path::new(&saved.request.repo), run_id);
    let lock = take_lock(&places, run_id)?;
    let before = Mark::read(&keeping(&places)).map_or(0, |mark| mark.crashes);
    let now = Mark { crashes: before.saturating_add(u32::from(crashed)), is_waiting: false };
    if now.crashes >= LIMIT {
        remove(&keeping(&places));
        let message = format!(
            "{} daemons crashed while they brought its work into the repository; it is in {}",
            now.crashes,
            places.keep().display()
        );
        return Err(crate::dispatch::request::internal(&message));
    }
    now.write(&keeping(&places))?;
    let hosted = Hosted::new(places, run_id, key, saved, lock);
    daemon.runs.aside.lock().unwrap_or_else(PoisonError::into_inner).push(hosted);
    Ok(())
}

/// Begins to bring the work of the runs that [`boot`] found set aside into their repositories.
pub fn keep_set_aside(daemon: &Arc<Daemon>) {
    let found =
        std::mem::take(&mut *daemon.runs.aside.lock().unwrap_or_else(PoisonError::into_inner));
    let mut tasks = daemon.runs.keeping.lock().unwrap_or_else(PoisonError::into_inner);
    for hosted in found {
        let run_id = hosted.run_id.clone();
        tasks.insert(run_id, own(keep(daemon.clone(), Arc::new(hosted))));
    }
}

/// Ends the bringing of a run's work, for a person goes on with the run, and its lock is needed.
pub async fn leave_aside(daemon: &Daemon, run_id: &str) {
    let task = daemon.runs.keeping.lock().unwrap_or_else(PoisonError::into_inner).remove(run_id);
    if let Some(task) = task {
        task.abort();
        let _ = task.await;
    }
}

/// A person goes on with the run: its work comes home with its next end.
pub fn taken_up(places: &Places) {
    outlived(places);
    remove(&keeping(places));
}

/// A daemon that has something to do is not idle.
struct Busy(Arc<Daemon>);

impl Busy {
    fn new(daemon: &Arc<Daemon>) -> Self {
        daemon.connections.send_modify(|count| *count += 1);
        Self(daemon.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.connections.send_modify(|count| *count = count.saturating_sub(1));
    }
}

async fn keep(daemon: Arc<Daemon>, hosted: Arc<Hosted>) {
    let _busy = Busy::new(&daemon);
    if let Err(message) = kept(&daemon, &hosted).await {
        tracing::warn!(run = %hosted.run_id, %message, "failed to keep the work of a run");
        let what = format!("run {}", hosted.run_id);
        let message = format!("its work was not brought into the repository: {message}");
        daemon.note(Event::Fault { what, message });
    }
}

async fn kept(daemon: &Arc<Daemon>, hosted: &Arc<Hosted>) -> Result<(), String> {
    let opened = hosted.clone();
    let folded = tokio::task::spawn_blocking(move || opened.open_log()).await;
    let folded = folded.map_err(|error| error.to_string())?;
    let run = folded.map_err(|error| crate::dispatch::launch::chain(&error))?;
    // One that a person has gone on with since has an end of its own.
    if let Some(mut run) = run.filter(|run| !run.is_live())
        && let Some(event) = publish::keep_early(daemon, hosted, &run).await
    {
        let (daemon, hosted) = (daemon.clone(), hosted.clone());
        let recorded = tokio::task::spawn_blocking(move || {
            for record in hosted.append(vec![event])? {
                run.apply(&record);
            }
            hosted.write_snapshots(&daemon, &run);
            Ok::<_, String>(())
        });
        recorded.await.map_err(|error| error.to_string())??;
    }
    fault::point("aside.kept");
    remove(&keeping(&hosted.places));
    Ok(())
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
        for (text, read) in
            [("1", mark(1, false)), ("1 waiting", mark(1, true)), ("?", mark(0, false))]
        {
            assert_eq!(Mark::parse(text), read, "{text}");
        }
    }
}
