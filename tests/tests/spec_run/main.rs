//! System tests of spec runs.

mod amend;
mod asking;
mod crash;
mod faults;
mod gates;
mod real_agents;
mod reviews;
mod screen;
mod scripted;
mod sealed;
mod sign_off;
mod standing;
mod stopping;
mod stored;
mod verbs;
mod work;
