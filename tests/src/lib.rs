//! The harness of the system tests: real binaries, real processes, and a separate world for each
//! test.
//!
//! - [`World`]: HOME, XDG directories and repositories of one test; nothing of it outlives the
//!   test.
//! - [`Daemon`]: a daemon in the foreground, to be killed with `kill -9` at will.
//! - [`wait_until`]: every wait is on a predicate, with a deadline. There is no bare sleep.
//! - [`processes`]: the living processes of a world, known by its path in environment, arguments or
//!   cwd.
//! - [`journal_of_events`](events): `events.jsonl` read as a stranger would, checksums and all.
//! - [`mcp`]: a client of `muleteer mcp`.
//! - [`model_server`]: the scripted model that the real `claude` and `codex` talk to.
//! - [`collector`], [`rotel`]: receivers of traces, a double that reads them back and a real one.
//! - [`crash`]: kills with `kill -9` at named points and seeded moments, and the invariants
//!   afterwards.
//! - [`task_list`]: a repository with a task list in it, and the list's invariants.
//! - [`spec_stage`]: a spec run whose agents are a shell script.
//! - [`talk`], [`tally`]: the model's view of a request, and a whole spec run that it plays.
//! - [`tbd`]: the real `tbd`, which stores beads.
//! - [`program`]: scripts that replace a program.
//! - [`frozen`], [`probe`], [`shape`]: the surface that users rely on, compared with checked-in
//!   files.
//! - [`skip`]: the report of a test that cannot run.

// This package exists to start processes and to measure time from outside.
#![allow(clippy::disallowed_methods)]
// A test fails by a panic, so the harness does too.
#![allow(clippy::unwrap_used)]

pub mod agents;
pub mod crash;
pub mod events;
pub mod frozen;
pub mod model_server;
pub mod scenes;
pub mod skip;
pub mod surface;
pub mod telemetry;
pub mod wait;
pub mod world;

pub use agents::{acp, claude, cli, codex, mcp, tbd};
pub use scenes::scene::Scene;
pub use scenes::{play, scene, spec_stage, talk, tally, task_list};
pub use surface::{probe, shape};
pub use telemetry::{collector, rotel};
pub use wait::{PATIENCE, wait_until};
pub use world::daemon::Daemon;
pub use world::repo::Repo;
pub use world::run::{Muleteer, Output};
pub use world::{World, daemon, processes, program, repo, run, segments, wire};
