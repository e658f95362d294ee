//! The error of starting an agent.

use std::io;

/// Says why an agent was not started, and whether a retry cannot help.
#[derive(Debug)]
pub(super) struct StartError {
    pub message: String,
    pub permanent: bool,
}

impl From<String> for StartError {
    fn from(message: String) -> Self {
        Self { message, permanent: true }
    }
}

impl From<io::Error> for StartError {
    /// A temporary failure of the machine (no space, no more processes), which is retried.
    fn from(error: io::Error) -> Self {
        Self { message: error.to_string(), permanent: false }
    }
}
