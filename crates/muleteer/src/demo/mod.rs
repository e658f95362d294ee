//! `muleteer demo`: the promise shown, and checked, on the machine it is run on.
//!
//! ```text
//!  Place ── a folder, a repository, a private daemon ──────────────────────────────┐
//!    │                                                                             │
//!  Play ─▶ a run ─▶ kill -9 an agent ─▶ kill -9 the daemon ─▶ a new daemon ─▶ merge │
//!    │ writes                                                                      │
//!  Log ──▶ checks (✓/✗ with what was seen) ──▶ report                dropped: all gone
//! ```
//!
//! The run is a whole one: criteria, beads, agents side by side, maintenance, a judge that finds
//! something and then nothing, a merge. Its agents are rehearsed ([`cast`], `run.yaml`).
//!
//! Architecture invariant: the demo is a client like any other. It asks the daemon over its socket
//! and reads files; it knows nothing that `muleteer events` and `muleteer status` do not tell, so
//! what it shows is what a user would see. And it reaches no daemon but its own: see [`running`].

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
use muleteer_supervisor::signals::AsyncSignals;
use rustix::process::Signal;

/// Plays, checks and tells. With `keep` the folder stays for looking around.
///
/// # Errors
/// When it could not be set up, or was interrupted. That something did not hold is no error but a
/// check that failed, and an exit code.
pub async fn run(out: Output, keep: bool) -> Result<Exit, Failure> {
    // Before anything is started, so that no Ctrl-C leaves something behind.
    let mut signals = AsyncSignals::catch(&[Signal::INT, Signal::TERM, Signal::HUP])?;
    let mut place = Place::make(out, keep)?;
    tokio::select! {
        done = perform(out, &mut place, keep) => return done,
        _ = signals.next() => {}
    }
    place.discard();
    drop(place);
    Err(Failure::new(
        "E_CANCELLED",
        "the demo was interrupted; what it had started is ended and removed",
    ))
}

async fn perform(out: Output, place: &mut Place, keep: bool) -> Result<Exit, Failure> {
    shim::provide(out).await?;
    let began = awake();
    let mut log = Log::default();
    let screen = Screen::new(out, &place.root);
    let played = Play::new(place, &mut log, &screen).run().await;
    // Nobody reads on: there is nobody to check for.
    if let Err(Failure::OutputClosed) = played {
        return Err(Failure::OutputClosed);
    }
    if played.is_err() && place.daemon.is_some() {
        // So that what is then left alive is what should not be.
        drop(place.stop_daemon().await);
    }
    let mut checks = vec![Check::went_to_the_end(&played)];
    checks.extend(checks::all(place, &log).await);
    let held = checks.iter().all(|check| check.held);
    report::show(out, place, &log, &checks, awake().saturating_sub(began), keep)?;
    Ok(if held { Exit::Done } else { Exit::Failed })
}
