//! The messages of the pool.

use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event};
use ractor::RpcReplyPort;

#[derive(Debug)]
pub enum PoolMsg {
    /// A dispatch waits, or a slot has become free.
    Look,
    /// Asks for a slot for a dispatch that these entries will make. Answered with the events that
    /// start it at once; empty if it has to wait.
    Reserve(DispatchId, Vec<Entry>, RpcReplyPort<Vec<Event>>),
    /// The dispatch was made, or will not be.
    Release(DispatchId),
}
