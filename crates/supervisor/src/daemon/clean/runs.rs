//! Compresses the logs of runs that have ended. A log stays in its folder and keeps its format: its
//! file is closed, as the daemon's own log does it, and becomes a compressed segment.
//!
//! A run that rests can be resumed, so its log stays as it is. Also an ended run can be continued
//! from a phase or amended; its log is then read from the segment. Its repositories and its sealed
//! files stay for that.

use crate::daemon::clean::output::Due;
use crate::daemon::context::Daemon;
use crate::dispatch::error::internal;
use crate::spec_run::host::{LIVE, Places, repo_of};
use jiff::Timestamp;
use muleteer_model::spec_run::Run;
use muleteer_process::lock;
use muleteer_protocol::v1::{Compressed, WireError};
use muleteer_store::StoreError;
use muleteer_store::events::{self, EventLog};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Shorter logs stay as they are: the compressed file and its folder take two blocks of the disk.
const LEAST: u64 = 8 * 1024;
/// The length of a piece before its compression: a reader holds one in memory.
const PIECE: u64 = 8 << 20;

/// Which runs can go on, as far as somebody asked.
#[derive(Debug, Default)]
pub(super) struct Open(Mutex<BTreeMap<String, bool>>);

impl Open {
    /// Whether a run is active or rests. A run whose log cannot be read counts as such. Blocks.
    pub(super) fn has(&self, daemon: &Daemon, run: &str) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry(run.to_string()).or_insert_with(|| is_open(daemon, run))
    }
}

fn is_open(daemon: &Daemon, run: &str) -> bool {
    if is_active(daemon, run) {
        return true;
    }
    let Some(repo) = repo_of(&daemon.paths, run) else { return false };
    let log = Places::new(&daemon.paths, &repo, run).events();
    !has_ended(&log).unwrap_or(false)
}

fn is_active(daemon: &Daemon, run: &str) -> bool {
    daemon.runs.find(run).is_some() || daemon.paths.runs().join(run).join(LIVE).exists()
}

fn has_ended(log: &Path) -> Result<bool, StoreError> {
    let mut run: Option<Run> = None;
    events::read(log, |record| match &mut run {
        Some(run) => run.apply(&record),
        None => run = Run::begin(&record),
    })?;
    Ok(run.is_some_and(|run| run.outcome().is_some()))
}

/// Compresses the logs of runs that ended long enough ago; without `apply` it only counts them.
/// Returns the logs that could not be compressed beside the figures, with the reasons.
///
/// # Errors
/// The task panicked, or the daemon ends.
pub(super) async fn clean(
    daemon: &Arc<Daemon>,
    due: Due,
    apply: bool,
) -> Result<(Compressed, Vec<(String, String)>), WireError> {
    let (mut sum, mut failed) = (Compressed::default(), vec![]);
    let folder = daemon.paths.runs();
    let listed = tokio::task::spawn_blocking(move || {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>()
    });
    for run in listed.await.map_err(|error| internal(&error.to_string()))? {
        let Some(repo) = repo_of(&daemon.paths, &run) else { continue };
        // No run begins or resumes meanwhile.
        let _gate = daemon.runs.gate.lock().await;
        if is_active(daemon, &run) {
            continue;
        }
        let places = Places::new(&daemon.paths, &repo, &run);
        let path = places.events().display().to_string();
        let done = tokio::task::spawn_blocking(move || compress(&places, due, apply));
        match done.await.map_err(|error| internal(&error.to_string()))? {
            Ok(Some(bytes)) => {
                sum.runs += 1;
                sum.bytes += bytes;
            }
            Ok(None) => {}
            Err(error) => failed.push((path, crate::dispatch::error::chain(&error))),
        }
    }
    Ok((sum, failed))
}

/// Compresses the log of a run, if it has ended. Blocks.
fn compress(places: &Places, due: Due, apply: bool) -> Result<Option<u64>, StoreError> {
    let log = places.events();
    let is_due = |path: &Path| {
        let meta = std::fs::symlink_metadata(path).ok().filter(|meta| meta.is_file())?;
        let written = Timestamp::try_from(meta.modified().ok()?).ok()?;
        (due.now.duration_since(written) >= due.age).then_some(meta.len())
    };
    // A daemon that was killed may have closed the file and not compressed it.
    let closed = || events::plain_segments(&log).unwrap_or_default();
    let Some(length) = is_due(&log).map(|length| if length < LEAST { 0 } else { length }) else {
        return Ok(None);
    };
    let before = length + closed();
    if before == 0 || !has_ended(&log)? {
        return Ok(None);
    }
    let _lock = match lock::try_lock(&places.lock()) {
        Ok(Some(lock)) => lock,
        // Another daemon drives it.
        Ok(None) => return Ok(None),
        Err(error) => {
            let path = places.lock().display().to_string();
            tracing::warn!(path, %error, "failed to lock a run, so its log stays as it is");
            return Ok(None);
        }
    };
    if !apply {
        return Ok(Some(before));
    }
    if length > 0 {
        EventLog::open(&log, 0, |_| ())?.0.close_file()?;
    }
    let was = events::stored_bytes(&log)?;
    while events::compress_next(&log, PIECE)? {}
    Ok(Some(was.saturating_sub(events::stored_bytes(&log)?)))
}
