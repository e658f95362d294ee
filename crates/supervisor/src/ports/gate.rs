//! The messages of the gate.

use muleteer_model::event::id::DispatchId;
use ractor::{ActorProcessingErr, RpcReplyPort};

#[derive(Debug)]
pub enum GateMsg {
    /// Binds and listens. `pre_start` does no IO, so that a failure here is the supervisor's to
    /// handle.
    Boot,
    /// Makes the daemon's socket again if it is gone. A logout, for example, removes runtime
    /// directories.
    Look,
    /// Opens the sockets of all living agents that are not open, now that their shims were
    /// contacted.
    OpenAgents,
    /// Opens the socket of one dispatch's agent, which [`GateMsg::CloseAgent`] closes. Answered
    /// when the socket accepts connections, or cannot be opened.
    OpenAgent(DispatchId, Option<RpcReplyPort<()>>),
    CloseAgent(DispatchId),
    /// A listener's task has ended, which it never should.
    ListenerEnded(ActorProcessingErr),
}
