//! The subtree of one dispatch: `journal`, `monitor`, `life`, `link`, rest-for-one in this order.

pub mod adopt;
pub mod assembler;
mod fetch;
pub mod journal;
pub mod life;
pub mod link;
pub mod monitor;
pub mod spool_decoder;
mod transcript_probe;
