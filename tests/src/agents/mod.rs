//! The real programs that agents and runs use, isolated from everything but a test.

pub mod acp;
pub mod claude;
pub mod cli;
pub mod codex;
pub mod mcp;
pub mod tbd;
