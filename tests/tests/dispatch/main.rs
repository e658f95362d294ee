//! System tests of the whole life of a dispatch, with scripted agents.

mod clients;
mod clones;
mod compressed;
mod deep_state;
mod descent;
mod endings;
mod healing;
mod journal;
mod lifecycle;
mod monitors;
mod prune;
mod signals;
mod spawning;
mod stall;
mod task_and_access;
