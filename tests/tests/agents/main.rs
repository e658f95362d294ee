//! System tests of the real agent CLIs, driven by muleteer against the scripted model.

mod acp;
mod acp_scripted;
mod acp_sessions;
mod api_errors;
mod claude;
mod codex;
mod kills;
mod mcp;
mod model_server;
mod permissions;
mod replays;
mod role_tools;
