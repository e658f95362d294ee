//! The messages of the supervisor actor of each inner node of the tree.

use muleteer_model::event::id::DispatchId;
use muleteer_protocol::v1::TreeNode;
use ractor::RpcReplyPort;

#[derive(Debug)]
pub enum BranchMsg {
    /// Starts the listed children. The actor sends it to itself first, so that a failing child has
    /// a supervisor.
    Boot,
    /// Restarts the children at these places, in order, if they are down. Then the span ends.
    Start(Vec<usize>, tracing::Span),
    /// Restarts a dynamic child, or those of its parts that are down, if the number is the one of
    /// its newest restart. Then the span ends.
    Again(DispatchId, u64, tracing::Span),
    /// Adds a dynamic child: the subtree of one dispatch or run. Answered once it runs, or at once
    /// if it does already. If the child is being removed, it starts again afterwards.
    Add(DispatchId, RpcReplyPort<()>),
    /// Stops a dynamic child, which is not restarted.
    Remove(DispatchId),
    /// A removed child has stopped. The supervisor sends it to itself.
    Removed(DispatchId),
    Describe(RpcReplyPort<TreeNode>),
    /// Answered at once: it checks that the supervisor still answers.
    Ping(RpcReplyPort<()>),
}
