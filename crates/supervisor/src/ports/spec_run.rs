//! The messages of `run/<id>`.

use muleteer_model::event::Event;
use muleteer_model::spec_run::{EffectKey, Input};
use ractor::RpcReplyPort;
use tokio::sync::OwnedMutexGuard;

#[derive(Debug)]
pub enum RunMsg {
    Boot,
    Input(Box<Input>),
    /// Answered once the input is durable, with whether it had an effect.
    Command(Box<Input>, RpcReplyPort<bool>),
    /// An effect has failed.
    Failed {
        key: EffectKey,
        code: String,
        message: String,
    },
    /// Retries an effect that has failed.
    Again(EffectKey),
    Wake,
    Heartbeat,
    /// A suspect run may resume now. While it holds this guard, no other suspect resumes.
    Trial(OwnedMutexGuard<()>),
    /// The question of the gate at which the run is about to rest, as of the event `seq`.
    Asked {
        seq: u64,
        question: Option<String>,
    },
    /// The work of a run that ends early is in the repository, as of the event `seq`.
    Kept {
        seq: u64,
        event: Option<Box<Event>>,
    },
}
