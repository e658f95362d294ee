//! The agent of a dispatch: its role and permissions, its prompt, the events parsed from its
//! output, its requests, and its result.

pub mod acp_handshake;
pub mod ask;
pub mod backend;
pub mod capability;
pub mod event;
pub mod permission;
pub mod prompt;
pub mod result;
pub mod role;
pub mod session_age;
pub mod session_mode;
pub mod transcript;
pub mod vocabulary;
