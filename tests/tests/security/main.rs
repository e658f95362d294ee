//! System tests of hostile clients, agents and repositories.

mod attack;
mod firewall;
mod hostile;
mod links;
mod ordinary;
mod private_home;
mod programs;
mod strangers;
mod trust;
mod view;
