//! System tests of hostile clients, agents and repositories.

mod attack;
mod firewall;
mod hostile;
mod links;
mod ordinary;
mod private_home;
mod strangers;
mod programs;
mod trust;
mod view;
