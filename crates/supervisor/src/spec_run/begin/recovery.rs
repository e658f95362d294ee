//! Resumes the runs that were under way when the last daemon died.
//!
//! A run can contain something that crashes each daemon which resumes it, as an agent's files once
//! did. To break such a loop, each daemon writes the number of such crashes into the file
//! `recovering` in the run's directory before it resumes the run. Progress of the run, a minute of
//! running, or an orderly end of the daemon removes the file. After [`LIMIT`] crashes the run is
//! set aside with its reason, and `run --resume` resumes it. A killed daemon does not count as
//! crashed.
//!
//! Several runs resume at once, and a crash does not tell which of them caused it. So after the
//! first crash each of them is a *suspect*, and suspects resume one at a time. The time in which a
//! suspect resumes is its *trial*: a crash counts only for the run on trial, and the next suspect
//! waits until the daemon has outlived the trial. Otherwise one run would cause others to be set
//! aside that only waited for their agents. A suspect that a person stops leaves this queue and
//! ends at once; then a crash counts for it too.
//!
//! A run that is set aside pauses at once. Afterwards a task of the daemon fetches its work into
//! the repository ([`keep_set_aside`]). The file `keeping` says that this is pending, and counts
//! the daemons that crashed over it, so that it cannot crash daemons for ever either.

use crate::daemon::context::{Busy, Daemon};
use crate::daemon::owned_task::own;
use crate::dispatch::error::unwritten;
use crate::question::run_end;
use crate::spec_run::begin::files::saved;
use crate::spec_run::begin::{host, secrets, take_lock};
use crate::spec_run::host::{Aside, Hosted, LIVE, LogError, Places, key_of};
use crate::spec_run::{publish, snapshots};
use muleteer_model::event::Event;
use muleteer_model::spec_run::event::RunStatus;
use muleteer_process::fault;
use muleteer_protocol::v1::WireError;
use muleteer_store::atomic::write_atomic;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

/// A run is set aside after this many daemons crashed while they resumed it.
const LIMIT: u32 = 2;
/// The limit of the file, which has one number and perhaps a word.
const MARK_LIMIT: u64 = 64;

fn mark(places: &Places) -> PathBuf {
    places.private.join("recovering")
}

/// The file which says that a run was set aside, and that its work is not in the user's repository
/// yet. It is in the run's private directory.
const KEEPING: &str = "keeping";

fn keeping(places: &Places) -> PathBuf {
    places.private.join(KEEPING)
}

/// The content of a run's `recovering` file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    crashes: u32,
    /// The run had not been resumed yet, so it cannot have caused the crash.
    is_waiting: bool,
}

/// Follows the number in the file `recovering` while the suspect waits for its trial.
const WAITING: &str = "waiting";

impl Mark {
    fn parse(text: &str) -> Self {
        let mut words = text.split_whitespace();
        let crashes = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        Self { crashes, is_waiting: words.next() == Some(WAITING) }
    }

    fn read(path: &Path) -> Option<Self> {
        let text = muleteer_vcs::untrusted_path::read_file(path, MARK_LIMIT).ok()?;
        Some(Self::parse(std::str::from_utf8(&text).unwrap_or_default()))
    }

    /// Returns the mark for the next daemon that resumes the run; `crashed` says whether the last
    /// one crashed.
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

/// Whether a daemon crashed while it resumed this run among others, so that the run waits for its
/// trial.
pub fn is_suspect(places: &Places) -> bool {
    Mark::read(&mark(places)).is_some_and(|mark| mark.crashes > 0)
}

/// Records that the trial of a suspect begins: from here on a crash counts for it.
pub fn begin_trial(places: &Places) {
    let Some(known) = Mark::read(&mark(places)) else { return };
    if let Err(error) = (Mark { is_waiting: false, ..known }).write(&mark(places)) {
        tracing::warn!(error = %error.message, path = %mark(places).display(), "failed to write \
            the mark of a crash trial");
    }
}

/// Records that the daemon has outlived the resumption of the run.
pub fn outlived(places: &Places) {
    remove(&mark(places));
}

fn remove(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(%error, path = %path.display(), "failed to remove a file");
        }
        _ => {}
    }
}

/// Hosts the runs that were under way, and returns those that failed, with the reasons. `crashed`
/// says whether the last daemon crashed. Blocks; called before the tree starts.
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
    let places = Places::new(&daemon.paths, Path::new(&saved.request.repo), run_id);
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

/// Ends the run with a reason, in its log and for the caller. Its work is fetched afterwards.
fn set_aside(daemon: &Daemon, hosted: Hosted, before: u32) -> Result<(), WireError> {
    let failed = |message: String| crate::dispatch::error::internal(&message);
    let why =
        format!("{before} daemons crashed while they continued this run, so it was suspended");
    let run = hosted.open_log().map_err(|error| failed(crate::dispatch::error::chain(&error)))?;
    Mark { crashes: 0, is_waiting: false }.write(&keeping(&hosted.places))?;
    fault::point("aside.noted");
    if let Some(mut run) = run {
        if run.is_live() {
            let (status, reason) = (RunStatus::Failed, why.clone());
            let rested = Event::RunRested { status, reason, question: None };
            let records = hosted.append(vec![rested]).map_err(|error| failed(error.to_string()))?;
            for record in records {
                run.apply(&record);
            }
            snapshots::write(daemon, &hosted, &run);
        }
        // An earlier daemon may have been killed before it saved this.
        run_end::save(daemon, &hosted.places.private, &run)?;
    }
    fault::point("aside.rested");
    let _ = std::fs::remove_file(hosted.places.live());
    outlived(&hosted.places);
    hosted.remove_lock_note();
    daemon.runs.aside.lock().unwrap_or_else(PoisonError::into_inner).push(hosted);
    Err(failed(why))
}

/// Hosts a run that an earlier daemon set aside, to bring its work into the repository.
fn keep_on(daemon: &Daemon, run_id: &str, private: &Path, crashed: bool) -> Result<(), WireError> {
    let Some(key) = key_of(run_id) else { return Ok(()) };
    let saved = saved(&private.join("run.json"))?;
    let places = Places::new(&daemon.paths, Path::new(&saved.request.repo), run_id);
    let lock = take_lock(&places, run_id)?;
    let before = Mark::read(&keeping(&places)).map_or(0, |mark| mark.crashes);
    let now = Mark { crashes: before.saturating_add(u32::from(crashed)), is_waiting: false };
    if now.crashes >= LIMIT {
        secrets::put_away(daemon, &places, &key);
        remove(&keeping(&places));
        let message = format!(
            "{} daemons crashed while they fetched its work into the repository; the work is in {}",
            now.crashes,
            places.repos().keep().display()
        );
        return Err(crate::dispatch::error::internal(&message));
    }
    now.write(&keeping(&places))?;
    let hosted = Hosted::new(places, run_id, key, saved, lock);
    daemon.runs.aside.lock().unwrap_or_else(PoisonError::into_inner).push(hosted);
    Ok(())
}

fn begin_aside(daemon: &Arc<Daemon>, hosted: Hosted) -> Aside {
    let released = hosted.released();
    Aside { task: own(keep(daemon.clone(), Arc::new(hosted))), released }
}

/// Starts to bring the work of the runs that [`boot`] found set aside into their repositories.
pub fn keep_set_aside(daemon: &Arc<Daemon>) {
    let found =
        std::mem::take(&mut *daemon.runs.aside.lock().unwrap_or_else(PoisonError::into_inner));
    let mut tasks = daemon.runs.keeping.lock().unwrap_or_else(PoisonError::into_inner);
    for hosted in found {
        tasks.insert(hosted.run_id.clone(), begin_aside(daemon, hosted));
    }
}

/// Aborts bringing the work of a run, because a person resumes the run and needs its lock. Called
/// after the checks that need no lock, so that a refused request does not disturb the task.
pub async fn leave_aside(daemon: &Daemon, run_id: &str) {
    let task = daemon.runs.keeping.lock().unwrap_or_else(PoisonError::into_inner).remove(run_id);
    if let Some(task) = task {
        task.end().await;
    }
}

/// Begins again to fetch the work of a run into the user's repository, after a refused resumption
/// for which [`leave_aside`] aborted the fetch. Otherwise only the next daemon would fetch it.
pub fn keep_again(daemon: &Arc<Daemon>, repo: &Path, run_id: &str) {
    let places = Places::new(&daemon.paths, repo, run_id);
    let mut tasks = daemon.runs.keeping.lock().unwrap_or_else(PoisonError::into_inner);
    let is_due = keeping(&places).exists()
        && !tasks.contains_key(run_id)
        && daemon.runs.find(run_id).is_none();
    let Some(key) = key_of(run_id).filter(|_| is_due) else { return };
    let hosted = saved(&places.saved()).and_then(|saved| {
        let lock = take_lock(&places, run_id)?;
        Ok(Hosted::new(places, run_id, key, saved, lock))
    });
    match hosted {
        Ok(hosted) => {
            tasks.insert(run_id.into(), begin_aside(daemon, hosted));
        }
        Err(error) => {
            tracing::warn!(run = %run_id, error = %error.message, "failed to fetch the work again");
        }
    }
}

/// Removes the marks, because a person resumes the run: its work comes home with its next end.
pub fn taken_up(places: &Places) {
    outlived(places);
    remove(&keeping(places));
}

async fn keep(daemon: Arc<Daemon>, hosted: Arc<Hosted>) {
    let _busy = Busy::new(&daemon);
    if let Err(message) = kept(&daemon, &hosted).await {
        tracing::warn!(run = %hosted.run_id, %message, "failed to fetch the work of a run");
        let what = format!("run {}", hosted.run_id);
        let message = format!("its work was not fetched into the repository: {message}");
        daemon.note(Event::Fault { what, message });
    }
}

async fn kept(daemon: &Arc<Daemon>, hosted: &Arc<Hosted>) -> Result<(), LogError> {
    // No agent of the run starts before a person resumes it. The daemon holds the keys in memory.
    secrets::put_away(daemon, &hosted.places, &hosted.key);
    let opened = hosted.clone();
    let run = tokio::task::spawn_blocking(move || opened.open_log()).await??;
    // If a person has resumed the run meanwhile, its work is kept when it ends.
    if let Some(mut run) = run.filter(|run| !run.is_live())
        && let Some(event) = publish::keep_early(daemon, hosted, &run).await
    {
        let (daemon, hosted) = (daemon.clone(), hosted.clone());
        let recorded = tokio::task::spawn_blocking(move || {
            for record in hosted.append(vec![event])? {
                run.apply(&record);
            }
            snapshots::write(&daemon, &hosted, &run);
            Ok::<_, LogError>(())
        });
        recorded.await??;
    }
    fault::point("aside.kept");
    remove(&keeping(&hosted.places));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use crate::spec_run::begin::files::save;
    use crate::spec_run::host::Chosen;
    use muleteer_model::config::Pool;
    use muleteer_protocol::v1;
    use tokio::sync::watch;

    #[tokio::test]
    async fn end_of_a_task_waits_for_its_blocking_part() {
        let (lock, released) = watch::channel(());
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (resume, is_resumed) = std::sync::mpsc::sync_channel::<()>(1);
        let task = own(async move {
            let blocking = tokio::task::spawn_blocking(move || {
                let _ = (begun.send(()), is_resumed.recv());
                drop(lock);
            });
            let _ = blocking.await;
        });
        has_begun.await.expect("the blocking part");
        let watched = released.clone();
        let end = Aside { task, released }.end();
        tokio::pin!(end);
        // Nothing but the blocking part is left after some turns of the runtime.
        for _ in 0..100 {
            assert!(futures_util::poll!(&mut end).is_pending());
            tokio::task::yield_now().await;
        }
        resume.send(()).expect("the blocking part waits");
        end.await;
        assert!(watched.has_changed().is_err(), "the lock is released");
    }

    #[test]
    fn run_that_daemons_give_up_has_no_keys_left() {
        let dir = tempfile::tempdir().expect("a folder");
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let run_id = "run-2026-11-27-abcd2345";
        let places = Places::new(&daemon.paths, dir.path(), run_id);
        std::fs::create_dir_all(&places.private).expect("a folder");
        let request = v1::Run {
            run_id: run_id.into(),
            repo: dir.path().display().to_string(),
            env: vec![("ANTHROPIC_API_KEY".into(), "sk-one".into())],
            extra_env: vec![("MY_TOKEN".into(), "sk-two".into())],
            ..v1::Run::default()
        };
        save(&places, &request, &Chosen::default()).expect("run.json");
        Mark { crashes: LIMIT - 1, is_waiting: false }.write(&keeping(&places)).expect("a mark");
        let troubles = boot(&daemon, true);
        assert!(matches!(&troubles[..], [(id, _)] if id == run_id), "{troubles:?}");
        let left = std::fs::read_to_string(places.saved()).expect("run.json");
        assert!(!left.contains("sk-") && left.contains("MY_TOKEN"), "{left}");
        assert!(!keeping(&places).exists());
    }

    #[test]
    fn crash_counts_only_for_the_run_on_trial() {
        let mark = |crashes, is_waiting| Mark { crashes, is_waiting };
        assert_eq!(Mark::after(None, true), mark(0, false), "it had been outlived");
        // Nobody knows which of the runs that resumed at once caused the first crash.
        assert_eq!(Mark::after(Some(mark(0, false)), true), mark(1, true));
        assert_eq!(Mark::after(Some(mark(1, true)), true), mark(1, true), "another one's trial");
        assert_eq!(Mark::after(Some(mark(1, false)), true), mark(LIMIT, true));
        // A killed daemon has not crashed.
        assert_eq!(Mark::after(Some(mark(0, false)), false), mark(0, false));
        assert_eq!(Mark::after(Some(mark(1, false)), false), mark(1, true));
        for (text, read) in
            [("1", mark(1, false)), ("1 waiting", mark(1, true)), ("?", mark(0, false))]
        {
            assert_eq!(Mark::parse(text), read, "{text}");
        }
    }
}
