//! Every decision Muleteer makes, as pure functions over plain data.
//!
//! Architecture invariant: no IO, no clock, no randomness, no async. What needs `now` or random
//! bytes takes them as an argument, so a million simulated hours run in seconds and every crash
//! point can be tried.
//!
//! - [`event`]: what happened (the lines of `events.jsonl`); [`agent_event`]: what an agent's
//!   output means, whatever CLI printed it; [`stall`]: whether it hangs; [`monitor`]: whether it is
//!   sick.
//! - [`dispatch`]: the state of one dispatch, folded from events; [`life`]: what to decide next.
//! - [`fleet`]: all dispatches, folded; what `status` shows.
//! - [`config`]: layers of settings and where each came from; [`role`]: who an agent is;
//!   [`prompt`]: what it is told; [`journal`]: the file it and the harness write.
//! - [`tasklist`]: the rules of the task-list harness.
//! - [`text`]: what people write, whatever editor they have.
//! - [`ask`]: what an agent waits to be told; [`permission`]: what it need not ask; [`descent`]:
//!   what it may have of the agent that dispatched it.
//! - [`doctor`]: what to make of the facts about a machine; [`telemetry`]: spans and metrics of the
//!   events.
//! - [`bead`]: the nodes of a run's graph, [`graph`]: what holds what back, [`schedule`]: who is
//!   next, [`layered`]: how a graph is drawn;
//! - [`tbd`]: beads kept by the real `tbd`; [`pipeline`]: the spec run;
//! - [`admission`]: who starts next; [`restart`]: who starts again, and when; [`cost`]: what it
//!   came to; [`retention`]: what need not be kept; [`api_error`]: what trouble with the model API
//!   means, and [`pressure`]: what it means for the others.
//! - [`opening`]: how a session is opened with an agent that is spoken to by calls; [`shim_watch`]:
//!   what is done about a shim that does not answer; [`work`]: what came home from a clone.

pub mod agent;
pub mod text;

pub mod admission;
pub mod beads;
pub mod config;
pub mod dispatch;
pub mod doctor;
pub mod event;
pub mod journal;
pub mod monitor;
pub mod restart;
pub mod spec_run;
pub mod task_list;
