//! System tests of hostile clients, agents and repositories.

mod attack;
mod claude_sandbox;
mod firewall;
mod home_kills;
mod hostile;
mod links;
mod ordinary;
mod private_home;
mod programs;
mod strangers;
mod trust;
mod view;
