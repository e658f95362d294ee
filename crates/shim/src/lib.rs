//! The shim: one small process per agent. It outlives the daemon, writes the agent's output to the
//! spool, and ends everything that the agent started.
//!
//! ```text
//! daemon side                      files in agents/<id>/            the shim (`muleteer-shim`)
//!   start::prepare, start::launch ──▶ lock, launch-<epoch>.json ─▶    run::main
//!   zygote::ask (where there is one)      a fork of the zygote ──▶   run::shim
//!   attach::probe                ◀── lock (held = alive)       ◀──    holds it
//!   spool::Reader                ◀── spool/*.seg               ◀──    spool::Writer
//!   attach::Client, or your own  ◀──────── sock ──────────────▶       run::peers
//! ```
//!
//! Invariants: the shim is single-threaded and does not parse the agent's output. Its memory does
//! not grow with that output. It appends only to spool segments of its own epoch. Each epoch ends
//! with exactly one of `exited` and `start_failed`, or, if the shim was killed, with neither.

pub mod attach;
pub mod control;
pub mod launch;
pub mod meta;
mod notes;
pub mod record;
pub mod run;
pub mod spool;
pub mod start;
pub mod zygote;

pub use run::main;
