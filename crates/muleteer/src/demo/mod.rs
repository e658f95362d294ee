//! `muleteer demo`: demonstrates and checks Muleteer's promise on the user's machine.
//!
//! ```text
//!  Place ── a folder, a repository, a private daemon ──────────────────────────────┐
//!    │                                                                             │
//!  Play ─▶ a run ─▶ kill -9 an agent ─▶ kill -9 the daemon ─▶ a new daemon ─▶ merge │
//!    │ writes                                                                      │
//!  Log ──▶ checks (✓/✗ with what was seen) ──▶ report                dropped: all gone
//! ```
//!
//! The run is complete: criteria, beads, agents side by side, maintenance, a judge that finds
//! something and then nothing, a merge. Its agents are rehearsed ([`cast`], `run.yaml`).
//!
//! Architecture invariant: the demo is a client like any other. It asks the daemon over its socket
//! and reads files. It knows only what `muleteer events` and `muleteer status` report, so a user
//! would see the same. It reaches no daemon but its own: see [`running`].

pub mod cast;
pub mod checks;
pub mod follower;
pub mod log;
pub mod place;
pub mod play;
pub mod report;
pub mod running;
pub mod screen;
mod shim;

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::output::Output;
use crate::demo::checks::Check;
use crate::demo::log::Log;
use crate::demo::place::Place;
use crate::demo::play::Play;
use crate::demo::screen::Screen;
use muleteer_process::clock::awake;
use muleteer_protocol::ErrorCode;
use muleteer_supervisor::daemon::service::signals::AsyncSignals;
use rustix::process::Signal;

/// Plays the demo, checks it and reports. With `keep` the folder is preserved for inspection.
///
/// # Errors
/// When the demo could not be set up, or was interrupted. A failed check is no error; it determines
/// the exit code.
pub async fn run(out: Output, keep: bool) -> Result<Exit, Failure> {
    // Signals are caught before anything is started, so that Ctrl-C leaves nothing behind.
    let mut signals = AsyncSignals::catch(&[Signal::INT, Signal::TERM, Signal::HUP])?;
    let mut place = Place::make(out, keep)?;
    tokio::select! {
        done = perform(out, &mut place, keep) => return done,
        _ = signals.next() => {}
    }
    place.discard();
    drop(place);
    Err(Failure::new(
        ErrorCode::Cancelled,
        "the demo was interrupted; its processes were stopped and its files removed",
    ))
}

async fn perform(out: Output, place: &mut Place, keep: bool) -> Result<Exit, Failure> {
    shim::provide(out).await?;
    let began = awake();
    let mut log = Log::default();
    let screen = Screen::new(out, &place.root);
    let played = Play::new(place, &mut log, &screen).run().await;
    // The reader of stdout is gone, so the checks are skipped.
    if let Err(Failure::OutputClosed) = played {
        return Err(Failure::OutputClosed);
    }
    if played.is_err() && place.daemon.is_some() {
        // The daemon is stopped first, so that a process that is still alive afterwards is a leak.
        drop(place.stop_daemon().await);
    }
    let mut checks = vec![Check::went_to_the_end(&played)];
    checks.extend(checks::all(place, &log).await);
    let held = checks.iter().all(|check| check.held);
    report::show(out, place, &log, &checks, awake().saturating_sub(began), keep)?;
    Ok(if held { Exit::Done } else { Exit::Failed })
}
