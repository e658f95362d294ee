//! The messages of the actor of all adapters.

use muleteer_protocol::v1::WireError;
use tokio::sync::oneshot;

/// A change of an adapter that a person requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Starts it again, also if it was set aside.
    Restart,
    Enable,
    Disable,
}

#[derive(Debug)]
pub enum AdaptersMsg {
    Boot,
    /// Answered when it is done.
    Act {
        name: String,
        act: Act,
        by: String,
        reply: oneshot::Sender<Result<(), WireError>>,
    },
    /// The task of the adapter panicked.
    Panicked(String, String),
    /// Starts the adapter again after that.
    Again(String),
}
