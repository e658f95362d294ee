//! MCP: the servers of the agents' users, and Muleteer's own one with real agents and clients.

mod clients;
mod coordinator;
mod servers;
mod tools;
mod waits;
