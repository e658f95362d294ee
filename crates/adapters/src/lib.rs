//! Slack, web, terminal and MCP: clients of the protocol, one module each as they come.
//!
//! Architecture invariant: nothing here can link the supervisor; an adapter is a process of its own
//! that speaks `muleteer-protocol` and may crash without anybody noticing but its users.
