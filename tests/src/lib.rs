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

pub mod acp;
pub mod claude;
pub mod codex;
pub mod collector;
pub mod crash;
pub mod daemon;
pub mod events;
pub mod frozen;
pub mod model_server;
pub mod probe;
pub mod processes;
pub mod program;
pub mod repo;
pub mod rotel;
pub mod run;
pub mod scene;
pub mod shape;
pub mod skip;
pub mod spec_stage;
pub mod talk;
pub mod tally;
pub mod task_list;
pub mod tbd;
pub mod wait;
pub mod wire;
pub mod world;

pub use daemon::Daemon;
pub use repo::Repo;
pub use run::{Muleteer, Output};
pub use scene::Scene;
pub use wait::{PATIENCE, wait_until};
pub use world::World;
