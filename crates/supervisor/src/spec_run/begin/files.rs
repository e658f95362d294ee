//! The files of a run that tell how it may be resumed: the saved request, the events and the
//! checkpoint.

use crate::daemon::paths::Paths;
use crate::dispatch::error::{fault, internal, unwritten};
use crate::spec_run::host::{Chosen, Places, Saved};
use muleteer_model::spec_run::{Run, checkpoint};
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{self, WireError};
use muleteer_store::StoreError;
use muleteer_store::atomic::write_atomic;
use std::path::Path;

const SAVED_VERSION: u16 = 1;
const CHECKPOINT_LIMIT: u64 = 64 * 1024 * 1024;

pub(super) fn saved(path: &Path) -> Result<Saved, WireError> {
    let bytes =
        std::fs::read(path).map_err(|error| internal(&format!("{}: {error}", path.display())))?;
    let saved: Saved = serde_json::from_slice(&bytes)
        .map_err(|error| internal(&format!("{}: {error}", path.display())))?;
    if saved.v > SAVED_VERSION {
        return Err(fault(
            ErrorCode::CheckpointCorrupt,
            &format!(
                "{} has version {}, but this muleteer knows {SAVED_VERSION}",
                path.display(),
                saved.v
            ),
            "use the newer muleteer that wrote it",
        ));
    }
    Ok(saved)
}

pub(super) fn save(places: &Places, request: &v1::Run, chosen: &Chosen) -> Result<(), WireError> {
    let request = v1::Run { push_env: vec![], ..request.clone() };
    let saved = Saved { v: SAVED_VERSION, request, removed: vec![], chosen: chosen.clone() };
    write(places, &saved)
}

pub(super) fn write(places: &Places, saved: &Saved) -> Result<(), WireError> {
    let bytes = serde_json::to_vec_pretty(saved).map_err(|error| internal(&error.to_string()))?;
    write_atomic(&places.saved(), &bytes, 0o600).map_err(|error| unwritten(&error))
}

/// Reads the run from its events.
pub(super) fn read(places: &Places) -> Result<Option<Run>, WireError> {
    let mut run: Option<Run> = None;
    let path = places.events();
    muleteer_store::events::read(&path, |record| match &mut run {
        Some(run) => run.apply(&record),
        None => run = Run::begin(&record),
    })
    .map_err(|error| WireError {
        file: Some(path.display().to_string()),
        ..match &error {
            StoreError::Short { .. } => {
                fault(error.code(), &crate::dispatch::error::chain(&error), &error.hint())
            }
            _ => fault(
                ErrorCode::CheckpointCorrupt,
                &crate::dispatch::error::chain(&error),
                "the run cannot be resumed",
            ),
        }
    })?;
    let checkpoint = places.public.join("checkpoint.yml");
    if run.is_none() && checkpoint.exists() {
        let message = format!(
            "{} has no events, but {} refers to some",
            path.display(),
            checkpoint.display()
        );
        let hint = "restore the file from a backup: durable events are missing";
        return Err(WireError {
            file: Some(path.display().to_string()),
            ..fault(ErrorCode::EventsShort, &message, hint)
        });
    }
    Ok(run)
}

/// Rejects a checkpoint that is damaged or from a newer version. It is only a snapshot, but such a
/// file shows that something is wrong.
pub(super) fn check_checkpoint(places: &Places) -> Result<(), WireError> {
    let path = places.public.join("checkpoint.yml");
    let corrupt = |why: String| {
        let at_fault = if path.exists() { "checkpoint.yml" } else { "checkpoint.yml.tmp" };
        let last = match read(places) {
            Ok(Some(run)) => format!(
                "delete {at_fault} to continue from the last valid state in events.jsonl: event \
                 {} in phase {}",
                run.seq,
                run.phase().as_str()
            ),
            _ => "events.jsonl cannot be read either".into(),
        };
        WireError {
            file: Some(path.display().to_string()),
            ..fault(ErrorCode::CheckpointCorrupt, &format!("{}: {why}", path.display()), &last)
        }
    };
    let read = muleteer_vcs::untrusted_path::read_file(&path, CHECKPOINT_LIMIT);
    match read.and_then(|bytes| String::from_utf8(bytes).map_err(std::io::Error::other)) {
        Ok(text) => match checkpoint::parse(&text) {
            Ok(_) => Ok(()),
            Err(error) => Err(corrupt(error.to_string())),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if places.public.join("checkpoint.yml.tmp").exists() {
                return Err(corrupt("it is missing; only an incomplete copy exists".into()));
            }
            Ok(())
        }
        Err(error) => Err(corrupt(error.to_string())),
    }
}

/// Returns why the daemon of this state directory does not drive a run that is under way. It only
/// knows the run's files.
pub fn obstacle(paths: &Paths, run_id: &str) -> String {
    let private = paths.run(run_id);
    if !private.exists() {
        let dir = paths.state_dir.display();
        return format!(
            "use the state directory with which the run was started: {dir} does not contain the run"
        );
    }
    match saved(&private.join("run.json")) {
        Err(error) if error.code == ErrorCode::CheckpointCorrupt => {
            format!("{}; {}", error.message, error.hint.unwrap_or_default())
        }
        Err(error) => error.message,
        Ok(_) => "read its faults with `muleteer events`".into(),
    }
}
