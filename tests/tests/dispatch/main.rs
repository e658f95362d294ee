//! System tests of the whole life of a dispatch, with scripted agents.

mod clean;
mod clients;
mod deep_state;
mod descent;
mod endings;
mod foreign_owner;
mod journal;
mod large_files;
mod lifecycle;
mod monitors;
mod prune;
mod signals;
mod spawning;
mod stall;
mod task_and_access;
mod work_home;
