//! Every decision of Muleteer, as pure functions over plain data.
//!
//! Invariant: no IO, no clock, no randomness, no async. A function that needs the time or random
//! bytes takes them as an argument. So the tests simulate a million hours in seconds and crash a
//! run at every step.
//!
//! - [`event`]: the lines of `events.jsonl`, ids, and places in a trace;
//! - [`agent`]: roles, permissions, prompts, the events of an agent's output, results;
//! - [`dispatch`]: the state of one dispatch, its next decisions, and the fleet of all dispatches;
//! - [`admission`]: the order of starts, back-pressure of model APIs, restart strategies and
//!   backoff;
//! - [`monitor`]: signs that an agent is sick or stalled;
//! - [`beads`]: the work items of a run and their graph;
//! - [`spec_run`]: a run from a spec to judged, merged code;
//! - [`task_list`]: the rules of the task-list harness;
//! - [`conversation`]: threads between people and agents, and the way of their messages;
//! - [`question`] and [`notify`], parts of it: everything that waits for the answer of a person,
//!   and the notifications;
//! - [`journal`]: the file that the harness and an agent both write;
//! - [`config`]: layers of settings and the place that each value came from;
//! - [`people`] and [`setting`], parts of it: the humans that adapters know with their rights, and
//!   the settings that they change while the daemon runs;
//! - [`doctor`]: verdicts about the facts of a machine;
//! - [`text`]: text formats that several domains read.

pub mod admission;
pub mod agent;
pub mod beads;
pub mod config;
pub mod conversation;
pub mod dispatch;
pub mod doctor;
pub mod event;
pub mod journal;
pub mod monitor;
pub mod spec_run;
pub mod task_list;
pub mod text;

pub use admission::restart;
pub use config::{people, setting};
pub use conversation::{meeting, notify, question, schedule};
