//! The shim: one small process per agent, which outlives the daemon, spools what the agent
//! prints, and ends everything the agent started.
//!
//! ```text
//! daemon side                      files in agents/<id>/            the shim (`muleteer-shim`)
//!   start::prepare, start::launch ──▶ key, launch-<epoch>.json ──▶    run::main
//!   zygote::ask (where there is one)      a fork of the zygote ──▶   run::shim
//!   attach::probe                ◀── lock (held = alive)       ◀──    holds it
//!   spool::Reader                ◀── spool/*.seg               ◀──    spool::Writer
//!   attach::Client, or your own  ◀──────── sock ──────────────▶       run::peers
//! ```
//!
//! Invariants: the shim is single-threaded and parses nothing an agent prints; its memory does
//! not grow with an agent's output; it appends only to spool segments of its own epoch; each epoch
//! ends in exactly one of `exited`, `start_failed`, or (the shim was killed) neither.

pub mod attach;
pub mod control;
pub mod launch;
pub mod meta;
pub mod record;
pub mod run;
pub mod spool;
pub mod start;
pub mod zygote;

pub use run::main;
