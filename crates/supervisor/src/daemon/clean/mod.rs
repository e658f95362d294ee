//! Removes the clones of ended dispatches whose work is in the user's repository, archives their
//! journals, compresses their output and the logs of runs, and removes old events.
//!
//! ```text
//!   nobody uses the clone ──▶ its work is brought home once more ──▶ CloneRemoved (durable)
//!     ──▶ the clone is renamed to .<id>.removed ──▶ that directory is removed
//! ```
//!
//! A daemon that is killed before the rename leaves the whole clone, and the next pass begins
//! again. After the rename the next pass removes the rest. A clone with work that git cannot fetch
//! stays, and the reply says why.

mod clones;
mod events;
mod journals;
mod output;
pub mod prune;
pub mod retention;
mod runs;
mod strangers;
mod threads;

use crate::daemon::clean::output::Due;
use crate::daemon::context::Daemon;
use crate::dispatch::error::{chain, internal};
use crate::ledger::{archive, entry, try_append};
use crate::spec_run::host::LIVE;
use jiff::{SignedDuration, Timestamp};
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::retention::{Keep, Terms, check};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event};
use muleteer_protocol::v1::{
    Archived, Clean, Cleaned, Compressed, Kept, Removed, Reply, WireError,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The number of dispatches in one request. Each may need several calls of git.
const BATCH: usize = 20;

/// The fate of one clone or journal.
enum Outcome {
    Nothing,
    Removed {
        bytes: u64,
    },
    Archived {
        to: PathBuf,
    },
    Kept(String),
    /// It stays because a removal failed.
    Failed(String),
}

/// Removes clones and archives journals that may go, starting with dispatches that were created at
/// `from_seq` or later. Without `apply` it only reports.
///
/// # Errors
/// An event cannot be recorded, or old events cannot be removed; earlier removals stay.
pub async fn clean(daemon: &Arc<Daemon>, asked: Clean, by: &str) -> Result<Reply, WireError> {
    let of = daemon.clone();
    let exists = move |dispatch: &Dispatch| {
        clones::exists(dispatch) || journals::exists(dispatch) || output::exists(&of, dispatch)
    };
    let Candidates { batch, next_seq } = candidates(daemon, asked.from_seq, BATCH, exists).await?;
    let mut report = Cleaned { next_seq, ..Cleaned::default() };
    let open = Arc::default();
    for id in batch {
        let pass = Pass { daemon, asked, by, now: Timestamp::now(), open: &open };
        pass.one(&id, &mut report).await?;
    }
    if next_seq.is_none() {
        report.kept.extend(strangers::find(daemon).await?);
        let due = Due { now: Timestamp::now(), age: age(asked.older_than_s) };
        let (compressed, failed) = runs::clean(daemon, due, asked.apply).await?;
        note(&mut report, compressed);
        for (path, reason) in failed {
            report.faults += 1;
            report.kept.push(Kept { path, reason, dispatch_id: None });
        }
        report.events = events::clean(daemon, asked.apply, by).await?;
    }
    Ok(Reply::Cleaned(report))
}

/// Dispatches of one request.
struct Candidates {
    batch: Vec<DispatchId>,
    /// The seq that created the next one, if there are more.
    next_seq: Option<u64>,
}

/// Returns the first dispatches that were created at `from_seq` or later and that fit, archived
/// ones too, in the order of their creation.
///
/// # Errors
/// The archive cannot be read.
async fn candidates(
    daemon: &Arc<Daemon>,
    from_seq: u64,
    most: usize,
    fits: impl Fn(&Dispatch) -> bool + Send + 'static,
) -> Result<Candidates, WireError> {
    let (fleet, of) = (daemon.snapshot(), daemon.clone());
    let read = tokio::task::spawn_blocking(move || {
        let recent = fleet.iter().filter(|dispatch| dispatch.created_seq >= from_seq);
        let recent = recent.filter(|dispatch| fits(dispatch)).take(most + 1);
        let mut found: Vec<_> =
            recent.map(|dispatch| (dispatch.created_seq, dispatch.id.clone())).collect();
        let mut archived = 0;
        archive::each(&of, &fleet, from_seq, |dispatch| {
            if fits(&dispatch) {
                archived += 1;
                found.push((dispatch.created_seq, dispatch.id));
            }
            archived <= most
        })?;
        found.sort_unstable();
        Ok::<_, WireError>(found)
    });
    let found = read.await.map_err(|error| internal(&error.to_string()))??;
    let next_seq = found.get(most).map(|(seq, _)| *seq);
    let batch = found.into_iter().take(most).map(|(_, id)| id).collect();
    Ok(Candidates { batch, next_seq })
}

/// One pass over dispatches.
struct Pass<'a> {
    daemon: &'a Arc<Daemon>,
    asked: Clean,
    by: &'a str,
    now: Timestamp,
    open: &'a Arc<runs::Open>,
}

impl Pass<'_> {
    async fn one(&self, id: &DispatchId, report: &mut Cleaned) -> Result<(), WireError> {
        // A message to this dispatch waits here, and is then rejected as too late.
        let _alone = self.daemon.creating(id.as_str()).await;
        let Some(dispatch) = archive::known(self.daemon, id)? else { return Ok(()) };
        let outcome = clones::clean(self, &dispatch).await?;
        if let Some(clone) = &dispatch.created.worktree {
            take(report, clone, id, outcome);
        }
        let outcome = journals::clean(self, &dispatch).await?;
        take(report, &dispatch.created.journal, id, outcome);
        let due = Due { now: self.now, age: age(self.asked.older_than_s) };
        match output::compress(self.daemon, id, due, self.open, self.asked.apply).await? {
            Ok(None) => {}
            Ok(Some(bytes)) => note(report, Compressed { outputs: 1, runs: 0, bytes }),
            Err(error) => {
                let output = self.daemon.paths.spool(id.as_str()).display().to_string();
                let why = format!("it cannot be compressed: {}", chain(&error));
                take(report, &output, id, Outcome::Failed(why));
            }
        }
        Ok(())
    }

    /// Checks whether the clone and the journal of a dispatch may go.
    fn check(&self, dispatch: &Dispatch) -> Result<(), Keep> {
        let terms = Terms { age: age(self.asked.older_than_s), failed: self.asked.failed };
        let daemon = self.daemon;
        check(dispatch, self.now, terms, |run| {
            daemon.runs.find(run).is_some() || daemon.paths.runs().join(run).join(LIVE).exists()
        })
    }

    /// Records an event of a dispatch. With the same name, it is recorded once.
    async fn record(
        &self,
        id: &DispatchId,
        name: Option<&str>,
        event: Event,
    ) -> Result<(), WireError> {
        let mut entry: Entry = entry(id, None, event);
        if let Some(name) = name {
            entry.id = format!("{id}/{name}");
        }
        let appended = try_append(self.daemon, vec![entry]).await;
        appended.map(drop).map_err(|error| crate::dispatch::error::unappended(&error))
    }
}

fn age(older_than_s: u64) -> SignedDuration {
    SignedDuration::from_secs(i64::try_from(older_than_s).unwrap_or(i64::MAX))
}

/// Adds what was compressed to the report, which is silent about it if nothing was.
fn note(report: &mut Cleaned, compressed: Compressed) {
    if compressed != Compressed::default() {
        report.compressed.get_or_insert_default().add(compressed);
    }
}

/// Adds an outcome to the report.
fn take(report: &mut Cleaned, path: &str, id: &DispatchId, outcome: Outcome) {
    let (path, dispatch_id) = (path.to_string(), Some(id.to_string()));
    match outcome {
        Outcome::Nothing => {}
        Outcome::Removed { bytes } => report.removed.push(Removed { path, bytes, dispatch_id }),
        Outcome::Archived { to } => {
            report.archived.push(Archived { path, to: to.display().to_string(), dispatch_id });
        }
        Outcome::Kept(reason) => report.kept.push(Kept { path, reason, dispatch_id }),
        Outcome::Failed(reason) => {
            report.faults += 1;
            report.kept.push(Kept { path, reason, dispatch_id });
        }
    }
}

/// Whether something is at a path. A link there counts, wherever it leads.
fn is_there(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}

/// Whether a path is a directory, and no link to one.
fn is_folder(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir())
}

/// Returns the reason in the form of the reply, with the way to remove a flagged dispatch's files.
fn kept(why: &Keep) -> Outcome {
    let hint = match why {
        Keep::Flagged { .. } => " (look at it, then remove it with `muleteer clean --failed`)",
        Keep::Unfinished(_) | Keep::ActiveRun(_) | Keep::InUse(_) | Keep::Recent(_) => "",
    };
    Outcome::Kept(format!("{why}{hint}"))
}

#[cfg(test)]
mod tests;
