//! System tests of hostile clients, agents and repositories.

mod firewall;
mod hostile;
mod links;
mod trust;
