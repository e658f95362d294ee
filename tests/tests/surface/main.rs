//! System tests of the output for users and other programs.

mod cost;
mod demo;
mod foreign_json;
mod frozen;
mod frozen_json;
mod looking_on;
mod remote;
mod service;
mod telemetry;
mod telemetry_daemon;
